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
    let session = answer.headers()["mcp-session-id"].to_str().unwrap();
    assert!(fake.sessions().contains(session), "{session}");
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

/// Reads an event stream until it holds a text.
async fn read_until(mut stream: reqwest::Response, text: &str) -> String {
    let mut read = String::new();
    while !read.contains(text) {
        let chunk = within("more of the stream", stream.chunk()).await.unwrap();
        read.push_str(std::str::from_utf8(&chunk.expect("the stream goes on")).unwrap());
    }
    read
}

#[tokio::test]
async fn a_fake_pushes_to_those_who_listen() {
    let legacy = FakeMcp::echo(false).await;
    let stream = reqwest::get(legacy.url()).await.unwrap();
    legacy.notify("notifications/tools/list_changed").await;
    read_until(stream, "tools/list_changed").await;

    let modern = FakeMcp::echo(true).await;
    assert_eq!(reqwest::get(modern.url()).await.unwrap().status(), 405);
    let wanted = json!({"notifications": {"toolsListChanged": true}});
    let listen =
        json!({"jsonrpc": "2.0", "id": "l", "method": "subscriptions/listen", "params": wanted});
    let stream = post(&modern, listen).await;
    modern.notify("notifications/tools/list_changed").await;
    let read = read_until(stream, "tools/list_changed").await;
    assert!(
        read.contains("notifications/subscriptions/acknowledged"),
        "{read}"
    );
    assert_eq!(
        read.matches(r#""io.modelcontextprotocol/subscriptionId":"l""#)
            .count(),
        2,
        "{read}"
    );
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

/// The official SDK as a client: what it understands, a fake says right.
async fn lists_and_calls<T, E, A>(transport: T, modern: bool)
where
    T: rmcp::transport::IntoTransport<rmcp::RoleClient, E, A>,
    E: std::error::Error + Send + Sync + 'static,
{
    use rmcp::service::{ClientLifecycleMode, ClientServiceExt as _};
    let lifecycle = if modern {
        ClientLifecycleMode::Discover {
            preferred_versions: vec![rmcp::model::ProtocolVersion::V_2026_07_28],
        }
    } else {
        ClientLifecycleMode::Initialize
    };
    let client = ().serve_with_lifecycle(transport, lifecycle).await.unwrap();
    let tools = client.list_all_tools().await.unwrap();
    assert_eq!(tools[0].name, "echo");
    let call = rmcp::model::CallToolRequestParams::new("echo");
    let arguments = json!({"n": 1}).as_object().unwrap().clone();
    let result = client
        .call_tool(call.with_arguments(arguments))
        .await
        .unwrap();
    assert_eq!(result.content[0].as_text().unwrap().text, r#"{"n":1}"#);
    client.cancel().await.unwrap();
}

#[tokio::test]
async fn the_official_client_understands_the_fakes() {
    use rmcp::transport::{StreamableHttpClientTransport, TokioChildProcess};
    for modern in [true, false] {
        let fake = FakeMcp::echo(modern).await;
        lists_and_calls(StreamableHttpClientTransport::from_uri(fake.url()), modern).await;

        let scripts = tempfile::tempdir().unwrap();
        let spec = Script::healthy(modern).spec("s", scripts.path()).await;
        let Some(v1::server_spec::Transport::Stdio(stdio)) = spec.transport else {
            panic!("a script runs as a process");
        };
        let mut command = tokio::process::Command::new(&stdio.command);
        command.args(&stdio.args);
        lists_and_calls(TokioChildProcess::new(command).unwrap(), modern).await;
    }
}
