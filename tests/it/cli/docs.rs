//! The commands in `docs/cli.md` do what the page says: all of them are run, in their order, by a shell.

use std::process::Stdio;

use mcp_sidecar_tests::daemon::programs;
use mcp_sidecar_tests::peers::programs::blocks;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::workspace_dir;

#[tokio::test]
async fn every_command_of_the_page_works() {
    let blocks = blocks(&workspace_dir().join("docs/cli.md"), "sh");
    assert!(blocks.len() > 7, "{blocks:?}");
    let fake = FakeMcp::modern()
        .tool(tool("echo"))
        .entry(
            "resources",
            json!({"uri": "file:///greeting", "name": "greeting"}),
        )
        .entry(
            "prompts",
            json!({"name": "greet", "arguments": [{"name": "who"}]}),
        )
        .start()
        .await;
    fake.reply("resources/read", |_| {
        let contents = json!([{"uri": "file:///greeting", "text": "hello"}]);
        Reply::Json(json!({"resultType": "complete", "contents": contents}))
    });
    fake.reply("prompts/get", |_| {
        Reply::Json(json!({"resultType": "complete", "messages": []}))
    });
    let daemon = TestDaemon::start().await;
    let path = std::env::var("PATH").unwrap();
    let place = tempfile::tempdir().unwrap();
    for block in blocks {
        let shell = tokio::process::Command::new("sh")
            .args(["-euxc", &block])
            .current_dir(place.path())
            .env_clear()
            .env("PATH", format!("{}:{path}", programs().await.display()))
            .env("MCP_SIDECAR_SOCKET", daemon.socket())
            .env("DEMO_URL", fake.url())
            .env("DEMO_KEY", "key-of-the-page")
            .stdin(Stdio::null())
            .output();
        let output = within("the commands to end", shell).await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{block}\n{said}");
    }
    fake.wait("the key", |seen| {
        seen.header("x-api-key") == "key-of-the-page"
    })
    .await;
    let sent = fake.seen_of("tools/call");
    assert_eq!(sent[0].arguments(), r#"{"text":"hello","n":3}"#);
    let script = std::fs::read_to_string(place.path().join("mcp-sidecar.fish")).unwrap();
    assert!(script.contains("sign-in"));
}

#[test]
fn the_page_has_every_exit_code_of_the_program() {
    let page = std::fs::read_to_string(workspace_dir().join("docs/cli.md")).unwrap();
    for code in [0, 1, 2, 3, 4, 5, 130] {
        assert!(page.contains(&format!("\n| {code} |")), "{code}");
    }
}
