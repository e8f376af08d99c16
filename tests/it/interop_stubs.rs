//! Apps in Node and Go on plain generated stubs, without a line of an SDK: the same story in each. Their sources are in
//! `tests/interop`.

use std::path::{Path, PathBuf};
use std::process::Command;

use mcp_sidecar_tests::fake::showcase;
use mcp_sidecar_tests::peers::apps::{App, need_runtimes};
use mcp_sidecar_tests::peers::install::{install, installed, run};
use mcp_sidecar_tests::peers::packages::go_module;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::workspace_dir;
use tempfile::TempDir;

fn source(file: &str) -> PathBuf {
    workspace_dir().join("tests/interop").join(file)
}

/// The app adds a server, lists and calls its tools with progress, follows the updates over a restart of the daemon, answers
/// a question and reads the details of errors. It says what it sees.
async fn play(mut command: tokio::process::Command) {
    let mut daemon = TestDaemon::start().await;
    let fake = showcase().await;
    let mut app = App::start(command.arg(daemon.socket()).arg(fake.url()));
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
    assert_eq!(app.hears("following").await, expected);

    daemon.kill9().await;
    daemon.restart().await;
    let between = http_spec("Between", &fake.url());
    let other = daemon.clients().await;
    other.add("between", between).await.unwrap();
    assert_eq!(app.hears("resumed").await, ["resumed between"]);
    let expected = [
        "question Who are you?",
        "answered accept: {\"name\":\"Ada\"}",
        "error NOT_FOUND SERVER_NOT_FOUND",
        "violation INVALID_ARGUMENT INVALID_FIELD spec.http.url",
        "done",
    ];
    assert_eq!(app.hears("done").await, expected);
    app.ends().await;
}

/// Runs generators over the contract: a template of buf.
fn generate(template: &Value) {
    let buf = install("buf").join("node_modules/.bin/buf");
    let mut command = Command::new(buf);
    command
        .args(["generate", "--template", &template.to_string()])
        .arg(workspace_dir().join("proto"));
    run(&mut command).unwrap_or_else(|cause| panic!("{cause}"));
}

/// A project of its own, where the modules of a set are found.
fn beside(set: &Path) -> TempDir {
    let place = tempfile::tempdir_in(set).unwrap();
    std::fs::write(place.path().join("package.json"), "{\"type\":\"module\"}\n").unwrap();
    place
}

async fn blocking<T: Send + 'static>(make: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(make).await.unwrap()
}

#[tokio::test]
async fn node_and_proto_loader_are_enough() {
    need_runtimes("the story with proto-loader in Node", &["node", "npm"]);
    let place = beside(&installed("nodeapp").await);
    let program = place.path().join("story.mjs");
    std::fs::copy(source("node/story.mjs"), &program).unwrap();
    let mut command = tokio::process::Command::new("node");
    command.arg(&program);
    command.env("PROTOS", workspace_dir().join("proto"));
    play(command).await;
}

#[tokio::test]
async fn the_stubs_of_ts_proto_are_enough() {
    need_runtimes("the story with ts-proto", &["node", "npm"]);
    let place = blocking(|| {
        let set = install("tsbuild");
        let place = beside(&set);
        let plugin = install("buf").join("node_modules/.bin/protoc-gen-ts_proto");
        generate(&json!({"version": "v2", "plugins": [{
            "local": plugin, "out": place.path().join("stubs"), "include_imports": true, "include_wkt": true,
            "opt": ["outputServices=grpc-js", "env=node", "esModuleInterop=true", "importSuffix=.js"],
        }]}));
        let story = place.path().join("story.mts");
        std::fs::copy(source("typescript/story.mts"), &story).unwrap();
        let tsc = set.join("node_modules/.bin/tsc");
        let options = "--strict --noUncheckedIndexedAccess --target ES2022 --module NodeNext --types node --skipLibCheck";
        let mut compile = Command::new(tsc);
        compile.args(options.split_ascii_whitespace()).arg(story);
        run(compile.current_dir(place.path())).unwrap_or_else(|cause| panic!("{cause}"));
        place
    })
    .await;
    let mut command = tokio::process::Command::new("node");
    command.arg(place.path().join("story.mjs"));
    play(command).await;
}

#[tokio::test]
async fn the_stubs_of_grpc_go_are_enough() {
    need_runtimes("the story with grpc-go", &["go", "npm"]);
    let place = blocking(|| {
        let place = tempfile::tempdir().unwrap();
        let out = place.path();
        let plugin = |name: &str| install(name).join(name);
        let of_app = json!({"file_option": "go_package", "path": "mcpsidecar/v1", "value": "example.com/app/mcpsidecarv1"});
        let options = ["module=example.com/app"];
        generate(&json!({
            "version": "v2",
            "managed": {"enabled": true, "override": [of_app]},
            "plugins": [
                {"local": plugin("protoc-gen-go"), "out": out, "opt": options},
                {"local": plugin("protoc-gen-go-grpc"), "out": out, "opt": options},
            ],
        }));
        std::fs::copy(source("go/main.go"), out.join("main.go")).unwrap();
        go_module(out).unwrap_or_else(|cause| panic!("{cause}"));
        let mut build = Command::new("go");
        build.args(["build", "-mod=mod", "-o", "story", "."]);
        run(build.current_dir(out)).unwrap_or_else(|cause| panic!("{cause}"));
        place
    })
    .await;
    play(tokio::process::Command::new(place.path().join("story"))).await;
}
