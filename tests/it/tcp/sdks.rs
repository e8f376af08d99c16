//! The clients over TCP: the same app in every language, with an address and a token in its environment. The Rust client plays it
//! as the command line.

use mcp_sidecar_tests::fake::showcase;
use mcp_sidecar_tests::peers::apps::need_runtimes;
use mcp_sidecar_tests::peers::packages::go_programs;
use mcp_sidecar_tests::peers::programs::{Talker, need};
use mcp_sidecar_tests::peers::python_sdk::environment;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::workspace_dir;
use tokio::process::Command;

/// The app calls tools, is refused with a wrong token and without one, and follows updates until its token is revoked.
async fn play(mut app: Command) {
    let daemon = by_tcp().start().await;
    let fake = showcase().await;
    let local = daemon.clients().await;
    local
        .add("demo", http_spec("Demo", &fake.url()))
        .await
        .unwrap();
    local.wait_for("demo", ConnectionState::Ready).await;
    let operator = daemon.operator().await;
    let (token, id) = operator.token("app", &[]).await;
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("token");
    std::fs::write(&file, format!("{token}\n")).unwrap();
    app.env_remove("MCP_SIDECAR_SOCKET")
        .env_remove("MCP_SIDECAR_TOKEN")
        .env("MCP_SIDECAR_ADDRESS", daemon.tcp_address().await)
        .env("MCP_SIDECAR_TOKEN_FILE", &file)
        // A proxy is no way to the daemon, and must never see the token.
        .env("http_proxy", "http://127.0.0.1:1")
        .env("https_proxy", "http://127.0.0.1:1");
    let mut app = Talker::start(&mut app);
    let heard = app.until("it follows", |line| line == "following").await;
    let expected = [
        "{\"sum\":5}",
        "progress step 1",
        "progress step 2",
        "progress step 3",
        "APP_TOKEN_REQUIRED",
        "`nowhere` is no address of a daemon; write host and port, such as `127.0.0.1",
        "the token is none; `mcp-sidecar tokens create` makes one",
        "following",
    ];
    assert_eq!(heard, expected);
    operator.revoke_token(&id).await.unwrap();
    let heard = app.until("its end", |line| line.starts_with("ended")).await;
    assert_eq!(heard, ["ended APP_TOKEN_REQUIRED"]);
}

#[tokio::test]
async fn a_python_app_needs_an_address_and_a_token() {
    need("the Python client", &[("python3", "--version")]);
    let mut app = Command::new(environment().await.join("venv/bin/python"));
    app.args(["-W", "error", "-u"])
        .arg(workspace_dir().join("tests/apps/tcp/app.py"));
    play(app).await;
}

#[tokio::test]
async fn a_typescript_app_needs_an_address_and_a_token() {
    need_runtimes("the TypeScript client", &["node", "npm"]);
    let code = workspace_dir().join("tests/apps/tcp/app.mts");
    let code = std::fs::read_to_string(code).unwrap();
    let programs = vec![("app.mts".to_owned(), code)];
    let (_kept, place) = crate::typescript_sdk::compiled(programs).await;
    let mut app = Command::new("node");
    app.arg(place.join("app.mjs"));
    play(app).await;
}

#[tokio::test]
async fn a_go_app_needs_an_address_and_a_token() {
    need_runtimes("the Go client", &["go"]);
    let code = workspace_dir().join("tests/apps/tcp/app.go");
    let code = std::fs::read_to_string(code).unwrap();
    let building = tokio::task::spawn_blocking(|| go_programs("tcp", &[("app".to_owned(), code)]));
    play(Command::new(&building.await.unwrap()[0])).await;
}
