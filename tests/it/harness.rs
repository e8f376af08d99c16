//! The harness itself, without a daemon.

use mcp_sidecar_tests::fake::stream;
use mcp_sidecar_tests::peers::{HttpPeer, catalogue};
use mcp_sidecar_tests::prelude::*;

async fn post(fake: &FakeMcp, body: Value) -> reqwest::Response {
    let post = reqwest::Client::new().post(fake.url()).json(&body);
    post.send().await.expect("an answer")
}

#[tokio::test]
async fn a_fake_answers_and_remembers() {
    let fake = FakeMcp::legacy().tool(tool("echo")).start().await;
    let answer = post(
        &fake,
        json!({"jsonrpc": "2.0", "id": 1, "method": "initialize"}),
    )
    .await;
    assert_eq!(answer.headers()["mcp-session-id"], "session-1");
    let call =
        json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "echo"}});
    post(&fake, call).await;
    assert_eq!(fake.wait_method("tools/call").await.tool(), "echo");
    assert_eq!(fake.seen().len(), 2);
}

#[tokio::test]
async fn a_fake_notices_that_its_client_is_gone() {
    let fake = FakeMcp::echo(true).await;
    fake.reply("tools/call", |_| Reply::Hang);
    fake.on("ping", |_| {
        std::future::ready(stream(async |writer| writer.closed().await))
    });
    for method in ["tools/call", "ping"] {
        let ask = post(&fake, json!({"jsonrpc": "2.0", "id": 1, "method": method}));
        let asking = tokio::spawn({
            let fake = fake.clone();
            async move {
                let body = json!({"jsonrpc": "2.0", "id": 1, "method": method});
                post(&fake, body).await.text().await
            }
        });
        drop(ask);
        let seen = fake.wait_method(method).await;
        asking.abort();
        fake.wait_dropped(seen.index).await;
    }
}

#[tokio::test]
async fn real_peers_listen() {
    let peers: Vec<HttpPeer> = vec![
        catalogue::everything_http().await,
        catalogue::py1_http("http-json").await,
        catalogue::py2_http("http").await,
        catalogue::fastmcp_http().await,
        catalogue::ts2_http("modern-only").await,
    ];
    assert_eq!(peers.len(), 5);
}
