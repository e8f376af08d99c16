//! Apps on plain generated stubs, without a line of an SDK: the same story in every language. Their sources are in
//! `tests/interop`.

use std::path::Path;

use mcp_sidecar_tests::fake::showcase;
use mcp_sidecar_tests::peers::install::installed;
use mcp_sidecar_tests::peers::java;
use mcp_sidecar_tests::peers::programs::{Talker, blocks, need, succeed};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::workspace_dir;
use tokio::process::Command;

/// Makes stubs as any app in Python does.
pub(crate) async fn python_stubs(into: &Path) {
    let python = installed("pyinterop").await.join("bin/python");
    let protos = workspace_dir().join("proto");
    let mut command = Command::new(python);
    command.args(["-m", "grpc_tools.protoc", "-I"]).arg(&protos);
    for kind in ["python_out", "grpc_python_out"] {
        command.arg(format!("--{kind}={}", into.display()));
    }
    let files = std::fs::read_dir(protos.join("mcpsidecar/v1")).expect("the contract");
    command.args(files.flatten().map(|file| file.path()));
    succeed(&mut command).await;
}

/// The app adds a server, lists and calls its tools with progress, follows the updates over a restart of the daemon, answers
/// a question and reads the details of errors. It says what it sees.
async fn play(app: impl AsyncFn() -> Command) {
    let mut daemon = TestDaemon::start().await;
    let fake = showcase().await;
    let mut command = app().await;
    command.arg(daemon.socket()).arg(fake.url());
    let mut app = Talker::start(&mut command);

    let heard = app.until("it follows", |line| line == "following").await;
    let expected = [
        "added READY",
        "listed add ask broken hang picture slow",
        "progress 1 of 3: step 1",
        "progress 2 of 3: step 2",
        "progress 3 of 3: step 3",
        "result slow is done",
        "sum {\"sum\":12345678901234567891}",
        "following",
    ];
    assert_eq!(heard, expected);

    daemon.kill9().await;
    daemon.restart().await;
    let other = daemon.clients().await;
    other
        .add("between", http_spec("Between", &fake.url()))
        .await
        .unwrap();
    let heard = app
        .until("it goes on", |line| line == "resumed between")
        .await;
    assert!(!heard.iter().any(|line| line == "snapshot"), "{heard:#?}");

    let heard = app.until("its end", |line| line == "done").await;
    let expected = [
        "question Who are you?",
        "answered accept: {\"name\":\"Ada\"}",
        "error NOT_FOUND SERVER_NOT_FOUND",
        "violation INVALID_ARGUMENT INVALID_FIELD spec.http.url",
        "done",
    ];
    assert_eq!(heard, expected);
}

async fn play_python(file: &str) {
    need(
        "the stories with stubs in Python",
        &[("python3", "--version")],
    );
    let stubs = tempfile::tempdir().unwrap();
    python_stubs(stubs.path()).await;
    let python = installed("pyinterop").await.join("bin/python");
    play(async || {
        let mut command = Command::new(&python);
        command
            .arg("-u")
            .arg(workspace_dir().join("tests/interop/python").join(file))
            .env("PYTHONPATH", stubs.path());
        command
    })
    .await;
}

#[tokio::test]
async fn synchronous_python_stubs_are_enough() {
    play_python("sync_story.py").await;
}

#[tokio::test]
async fn asyncio_python_stubs_are_enough() {
    play_python("aio_story.py").await;
}

#[tokio::test]
async fn java_stubs_are_enough() {
    need(
        "the story with stubs in Java",
        &[("java", "-version"), ("mvn", "-version")],
    );
    let classes = java::classes().await;
    play(async || {
        let mut command = Command::new("java");
        command.arg("-cp").arg(&classes).arg("Story");
        command
    })
    .await;
}

#[tokio::test]
async fn the_guide_for_java_is_right() {
    need(
        "the guide for Java",
        &[
            ("java", "-version"),
            ("javac", "-version"),
            ("mvn", "-version"),
        ],
    );
    let guide = workspace_dir().join("docs/java.md");
    let pom = std::fs::read_to_string(workspace_dir().join("tests/interop/java/pom.xml")).unwrap();
    for block in blocks(&guide, "xml") {
        for dependency in block.split_inclusive("</dependency>\n") {
            assert!(
                pom.contains(dependency),
                "not in the app's pom.xml:\n{dependency}"
            );
        }
    }
    let classes = java::classes().await;
    let made = tempfile::tempdir().unwrap();
    let [example] = &blocks(&guide, "java")[..] else {
        panic!("the guide has one example");
    };
    std::fs::write(made.path().join("Example.java"), example).unwrap();
    let mut compile = Command::new("javac");
    compile.arg("-cp").arg(&classes).arg("-d").arg(made.path());
    succeed(compile.arg(made.path().join("Example.java"))).await;

    let daemon = TestDaemon::start().await;
    let fake = showcase().await;
    let app = daemon.clients().await;
    app.add("demo", http_spec("Demo", &fake.url()))
        .await
        .unwrap();
    app.wait_for("demo", ConnectionState::Ready).await;
    let mut path = made.path().as_os_str().to_owned();
    path.push(":");
    path.push(&classes);
    let mut example = Command::new("java");
    example
        .arg("-cp")
        .arg(path)
        .arg("Example")
        .env("MCP_SIDECAR_SOCKET", daemon.socket());
    assert_eq!(
        succeed(&mut example).await,
        "{\"sum\":5}\nNOT_FOUND TOOL_NOT_FOUND\n"
    );
}
