//! The Python client: its wheel in an empty environment, against the built daemon.

use std::path::PathBuf;

use mcp_sidecar_tests::fake::showcase;
use mcp_sidecar_tests::peers::install::installed;
use mcp_sidecar_tests::peers::programs::{Talker, blocks, need, run, succeed};
use mcp_sidecar_tests::peers::python_sdk::{environment, sources};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::workspace_dir;
use tokio::process::Command;

/// A daemon, a server for it, and Python with the client.
struct Scene {
    daemon: TestDaemon,
    fake: FakeMcp,
    python: PathBuf,
}

impl Scene {
    async fn set() -> Self {
        need("the Python client", &[("python3", "--version")]);
        Self {
            python: environment().await.join("venv/bin/python"),
            daemon: TestDaemon::start().await,
            fake: showcase().await,
        }
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.python);
        command
            .env("MCP_SIDECAR_SOCKET", self.daemon.socket())
            .env("MCP_URL", self.fake.url())
            // Warnings are failures: of the generated code, of asyncio, of what is never awaited.
            .args(["-W", "error"]);
        command
    }

    fn example(&self, name: &str) -> Command {
        let mut command = self.command();
        command.arg(sources().join("examples").join(name));
        command
    }

    async fn add(&self, id: &str) -> Server {
        let app = self.daemon.clients().await;
        let spec = crate::questions::with_forms(http_spec(id, &self.fake.url()));
        app.add(id, spec).await.unwrap();
        app.wait_for(id, ConnectionState::Ready).await
    }
}

#[tokio::test]
async fn the_examples_of_the_python_readme_run() {
    let scene = Scene::set().await;
    let examples = blocks(&sources().join("README.md"), "python");
    let said: &[&[&str]] = &[
        &[
            "demo add tool_demo_add",
            "12345678901234567891 {\"sum\":12345678901234567891}",
            "progress 3.0 step 3",
            "slow is done",
            "{'sum': 3}",
            "SERVER_NOT_FOUND NOT_FOUND",
            "-32050 {\"part\":7}",
        ],
        &["demo CONNECTION_STATE_READY", "that is all for now"],
        &["demo asks: Who are you?", "accept: {\"name\":\"Ada\"}"],
        &["tool_demo_add", "'tool_use_id': 'toolu_1'", "the sum is 5"],
        &["SERVER_NOT_FOUND"],
    ];
    assert_eq!(examples.len(), said.len(), "each example is known here");
    for (example, said) in examples.iter().zip(said) {
        let output = succeed(scene.command().args(["-c", example]))
            .await
            .replace("Demo asks", "demo asks");
        for line in *said {
            assert!(
                output.contains(line),
                "`{line}` is not in:\n{output}\nof:\n{example}"
            );
        }
    }
}

#[tokio::test]
async fn the_python_client_has_the_version_of_the_workspace() {
    let scene = Scene::set().await;
    let script = "import importlib.metadata as m, mcp_sidecar as s; print(s.__version__, m.version('mcp-sidecar-client'))";
    let said = succeed(scene.command().args(["-c", script])).await;
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(said.trim(), format!("{version} {version}"));
}

#[tokio::test]
async fn python_updates_go_on_over_restarts_of_the_daemon_and_of_the_app() {
    let mut scene = Scene::set().await;
    scene.add("before").await;
    let mut app = Talker::start(&mut scene.example("follow.py"));
    let ready = |id: &'static str| {
        move |line: &str| line.contains(&format!("\"server\": \"{id}\"")) && line.contains("_READY")
    };
    let mut heard = app
        .until("the snapshot", |line| line.contains("snapshot"))
        .await;
    assert!(heard.iter().any(|line| ready("before")(line)), "{heard:#?}");

    scene.daemon.kill9().await;
    scene.daemon.restart().await;
    scene.add("between").await;
    heard = app
        .until("what came after the restart", ready("between"))
        .await;
    assert!(
        !heard
            .iter()
            .any(|line| line.contains("reset") || line.contains("snapshot")),
        "{heard:#?}"
    );
    let last: Value = serde_json::from_str(heard.last().unwrap()).unwrap();
    drop(app);

    scene.add("meanwhile").await;
    scene.daemon.restart().await;
    let mut app = Talker::start(
        scene
            .example("follow.py")
            .arg(last["token"].as_str().unwrap()),
    );
    heard = app
        .until("what came while it was away", ready("meanwhile"))
        .await;
    assert!(
        !heard
            .iter()
            .any(|line| line.contains("reset") || line.contains("snapshot")),
        "{heard:#?}"
    );
    drop(app);

    // A token of another database is visible as such, and then everything comes anew.
    let other = TestDaemon::start().await;
    let mut command = scene.example("follow.py");
    command
        .arg(last["token"].as_str().unwrap())
        .env("MCP_SIDECAR_SOCKET", other.socket());
    let mut app = Talker::start(&mut command);
    heard = app
        .until("a snapshot", |line| line.contains("snapshot"))
        .await;
    assert!(heard[0].contains("token expired"), "{heard:#?}");
}

#[tokio::test]
async fn a_python_app_answers_questions_on_the_terminal() {
    let scene = Scene::set().await;
    scene.add("demo").await;
    let mut command = scene.example("ask.py");
    let input = "many\n36\nAda\n";
    let (success, said, errors) = run(command.args(["demo", "ask"]), input, PATIENCE).await;
    assert!(success, "{said}\n{errors}");
    assert!(said.contains("demo asks: Who are you?"), "{said}");
    assert!(said.contains("invalid literal"), "{said}");
    assert!(
        said.ends_with("accept: {\"age\":36,\"name\":\"Ada\"}\n"),
        "{said}"
    );
}

#[tokio::test]
async fn the_python_client_keeps_its_promises() {
    let scene = Scene::set().await;
    scene.add("demo").await;
    // Stubs of the contract, made by the app itself, live in the same process.
    let stubs = tempfile::tempdir().unwrap();
    super::interop::python_stubs(stubs.path()).await;
    let script = workspace_dir().join("tests/apps/python_sdk.py");
    let said = succeed(scene.command().arg(script).env("PYTHONPATH", stubs.path())).await;
    assert!(said.ends_with("all promises kept\n"), "{said}");
}

#[tokio::test]
async fn the_python_client_and_its_examples_are_strictly_typed() {
    need(
        "the types of the Python client",
        &[("python3", "--version")],
    );
    let checker = installed("pycheck").await;
    let cache = tempfile::tempdir().unwrap();
    let mut command = Command::new(checker.join("bin/mypy"));
    command
        .args(["--python-version", "3.10", "--cache-dir"])
        .arg(cache.path())
        .current_dir(sources());
    succeed(&mut command).await;
}
