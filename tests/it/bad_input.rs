//! Bad input: a status, a reason, a field and a message that names value and remedy, and nothing is
//! half-registered.

use bytes::Bytes;
use mcp_sidecar_tests::prelude::*;

async fn refused(app: &Clients, spec: ServerSpec, field: &str, part: &str) {
    let facts = ErrorFacts::expect(
        app.add("", spec).await,
        Code::InvalidArgument,
        "INVALID_FIELD",
    );
    // Whether a field of a repeated message carries its index is not part of the contract.
    assert_eq!(facts.field.replace("[0]", ""), field, "{facts:?}");
    assert!(
        facts.message.contains(part),
        "`{part}` is missing in: {}",
        facts.message
    );
    assert!(app.list().await.is_empty(), "nothing is registered");
}

fn headers(name: &str, value: &str) -> ServerSpec {
    let mut spec = http_spec("S", "https://example.com/");
    if let Some(v1::server_spec::Transport::Http(http)) = &mut spec.transport {
        http.headers = vec![v1::Header {
            name: name.to_owned(),
            value: value.to_owned(),
        }];
    }
    spec
}

#[tokio::test]
async fn urls_that_are_none_or_not_http() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    for url in [
        "",
        "nonsense",
        "file:///etc/passwd",
        "ftp://example.com/",
        "javascript:alert(1)",
        "http://",
        "https://user:pass@example.com/",
        "https://example.com/#part",
        "/relative",
        "http://[::1",
        "http://a b/",
    ] {
        let part = if url.contains("pass@") || url.is_empty() {
            ""
        } else {
            url
        };
        refused(&app, http_spec("S", url), "spec.http.url", part).await;
    }
    let added = app
        .add("", http_spec("S", "https://user:pass@example.com/"))
        .await;
    let facts = ErrorFacts::of(&added.unwrap_err());
    assert!(
        !facts.message.contains("pass@"),
        "a secret is repeated: {facts:?}"
    );
}

#[tokio::test]
async fn specifications_that_make_no_sense() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let url = "https://example.com/";
    let absent = app.add_with(v1::AddServerRequest::default()).await;
    let facts = ErrorFacts::expect(absent, Code::InvalidArgument, "INVALID_FIELD");
    assert_eq!(facts.field, "spec");
    let no_transport = ServerSpec {
        name: "S".to_owned(),
        ..Default::default()
    };
    refused(&app, no_transport, "spec.transport", "").await;
    refused(&app, http_spec("", url), "spec.name", "").await;
    refused(&app, http_spec(&"n".repeat(129), url), "spec.name", "128").await;
    refused(&app, stdio_spec("S", "", &[]), "spec.stdio.command", "").await;
    let pinned = ServerSpec {
        protocol_version: "1900-01-01".to_owned(),
        ..http_spec("S", url)
    };
    refused(&app, pinned, "spec.protocol_version", "1900-01-01").await;
    let roots = ServerSpec {
        roots: vec![v1::Root {
            uri: "https://example.com/".to_owned(),
            name: String::new(),
        }],
        ..http_spec("S", url)
    };
    refused(&app, roots, "spec.roots.uri", "https://example.com/").await;
    let extensions = ServerSpec {
        client_capabilities: Some(v1::ClientCapabilities {
            extensions_json: "[]".to_owned(),
            ..Default::default()
        }),
        ..http_spec("S", url)
    };
    refused(
        &app,
        extensions,
        "spec.client_capabilities.extensions_json",
        "",
    )
    .await;
}

#[tokio::test]
async fn headers_that_cannot_be_sent() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    for name in [
        "",
        "bad name",
        "bad:name",
        "Mcp-Session-Id",
        "mcp-protocol-version",
        "Content-Type",
        "Host",
    ] {
        refused(&app, headers(name, "v"), "spec.http.headers.name", name).await;
    }
    refused(
        &app,
        headers("X-Key", "line\r\nbreak"),
        "spec.http.headers.value",
        "",
    )
    .await;
}

#[tokio::test]
async fn a_command_that_does_not_exist() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    for command in ["no-such-command-anywhere", "/no/such/path"] {
        let added = app
            .add("", stdio_spec(command, command, &[]))
            .await
            .unwrap();
        let server = added.server.unwrap();
        assert_eq!(server.state(), ConnectionState::Failed, "{server:#?}");
        let (reason, message) = server.failure();
        assert_eq!(reason, "UPSTREAM_UNREACHABLE");
        assert!(message.contains(command), "{message}");
    }
    assert_eq!(app.list().await.len(), 2, "both are registered");
}

#[tokio::test]
async fn a_process_that_ends_at_once() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let scripts = tempfile::tempdir().unwrap();
    let spec = Script::faulty(StdioFault::ExitAtOnce(7))
        .spec("s", scripts.path())
        .await;
    let server = app.add("", spec).await.unwrap().server.unwrap();
    assert_eq!(server.state(), ConnectionState::Failed, "{server:#?}");
    assert!(server.failure().1.contains("exit"), "{server:#?}");
}

#[tokio::test]
async fn peers_that_do_not_speak_mcp() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let answers: [(&str, u16, &str, &str); 6] = [
        (
            "html",
            200,
            "text/html",
            "<html><body>Welcome</body></html>",
        ),
        ("missing", 404, "text/html", "<h1>Not found</h1>"),
        ("garbage", 200, "application/json", "{{{{"),
        (
            "other-json",
            200,
            "application/json",
            r#"{"hello":"world"}"#,
        ),
        ("nothing", 204, "text/plain", ""),
        ("stream", 200, "text/event-stream", "data: not json\n\n"),
    ];
    for (name, status, kind, body) in answers {
        let fake = FakeMcp::echo(true).await;
        fake.reply("*", move |_| {
            Reply::Raw(
                status,
                vec![("content-type", kind.to_owned())],
                Bytes::from_static(body.as_bytes()),
            )
        });
        let mut spec = http_spec(name, &fake.url());
        spec.retry = Some(v1::RetryPolicy {
            max_attempts: Some(1),
            ..Default::default()
        });
        let server = app.add(name, spec).await.unwrap().server.unwrap();
        assert_eq!(
            server.state(),
            ConnectionState::Failed,
            "{name}: {server:#?}"
        );
        let (reason, message) = server.failure();
        assert!(
            ["NOT_AN_MCP_SERVER", "UPSTREAM_PROTOCOL"].contains(&reason),
            "{name}: {reason} {message}"
        );
        assert!(!message.is_empty());
        let call = app.call_tool(name, "echo", "{}").await.unwrap_err();
        assert_ne!(ErrorFacts::of(&call).reason, "", "{call:?}");
    }
    // One bad server affects no other.
    let healthy = FakeMcp::echo(true).await;
    app.add_http("healthy", &healthy.url()).await;
}

#[tokio::test]
async fn namespaces_that_do_not_exist_or_cannot() {
    let daemon = TestDaemon::start().await;
    let nowhere = daemon.clients_in("nowhere").await;
    for outcome in [
        nowhere
            .tools_where(v1::ListToolsRequest::default())
            .await
            .map(|_| ()),
        nowhere.get("s").await.map(|_| ()),
        nowhere.call_tool("s", "t", "{}").await.map(|_| ()),
        nowhere.remove("s").await,
    ] {
        let facts = ErrorFacts::expect(outcome, Code::NotFound, "NAMESPACE_NOT_FOUND");
        assert!(facts.message.contains("nowhere"), "{facts:?}");
    }
    let long = "n".repeat(65);
    for bad in ["a b", "a/b", "../x", "*", "é", long.as_str()] {
        let app = daemon.clients_in(bad).await;
        let added = app.add("", http_spec("S", "https://example.com/")).await;
        let facts = ErrorFacts::expect(added, Code::InvalidArgument, "INVALID_FIELD");
        assert_eq!(facts.field, "namespace", "{facts:?}");
        assert!(facts.message.len() > 20, "{facts:?}");
    }
}

#[tokio::test]
async fn arguments_over_the_limit() {
    let mebibyte: u32 = 1 << 20;
    let daemon = TestDaemon::builder()
        .set("limits.message_bytes", mebibyte)
        .set("limits.grpc_message_bytes", mebibyte)
        .start()
        .await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(true).await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    let arguments = format!("{{\"text\":\"{}\"}}", "x".repeat(2 << 20));
    let outcome = app.call_tool("s", "echo", &arguments).await;
    let facts = ErrorFacts::expect(outcome, Code::ResourceExhausted, "MESSAGE_TOO_LARGE");
    assert!(
        facts.message.contains("limits.grpc_message_bytes"),
        "{facts:?}"
    );
    assert!(fake.seen_of("tools/call").is_empty());
    app.call_tool("s", "echo", "{}").await.unwrap();
}

#[tokio::test]
async fn required_fields_that_are_missing() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let call = app
        .tools()
        .call_tool(v1::CallToolRequest { call: None })
        .await;
    let facts = ErrorFacts::expect(call, Code::InvalidArgument, "INVALID_FIELD");
    assert_eq!(facts.field, "call");
    let facts = ErrorFacts::expect(app.get("").await, Code::InvalidArgument, "INVALID_FIELD");
    assert_eq!(facts.field, "server_id");
    let disconnect = v1::DisconnectServerRequest::default();
    let facts = ErrorFacts::expect(
        app.servers().disconnect_server(disconnect).await,
        Code::InvalidArgument,
        "INVALID_FIELD",
    );
    assert_eq!(facts.field, "target");
    for token in ["x", "AAAA"] {
        let request = v1::ListServersRequest {
            page_token: token.to_owned(),
            ..Default::default()
        };
        app.add("s", http_spec("S", "http://127.0.0.1:9/"))
            .await
            .unwrap();
        let listed = app.servers().list_servers(request).await;
        let facts = ErrorFacts::expect(listed, Code::InvalidArgument, "INVALID_FIELD");
        assert_eq!(facts.field, "page_token");
    }
}

#[tokio::test]
async fn two_daemons_on_one_data_directory() {
    let daemon = TestDaemon::start().await;
    let builder = TestDaemon::builder().data_dir(daemon.data_dir());
    let (status, log) = builder.start_and_fail().await;
    assert!(!status.success());
    assert!(log.contains(daemon.data_dir().to_str().unwrap()), "{log}");
    let app = daemon.clients().await;
    assert!(app.list().await.is_empty(), "the first goes on");
}

#[tokio::test]
async fn two_daemons_on_one_socket() {
    let mut daemon = TestDaemon::start().await;
    let builder = TestDaemon::builder().socket(daemon.socket());
    let (status, log) = builder.start_and_fail().await;
    assert!(!status.success());
    assert!(log.contains(daemon.socket().to_str().unwrap()), "{log}");
    assert!(
        Clients::is_serving(daemon.socket()).await,
        "the first goes on"
    );

    // The socket of a dead daemon is replaced.
    daemon.kill9().await;
    assert!(daemon.socket().exists());
    daemon.restart().await;
}

#[tokio::test]
async fn configuration_that_makes_no_sense() {
    let cases = [
        ("updates.keep_cout", "10", "keep_count"),
        ("updats.keep_count", "10", "updates"),
    ];
    for (key, value, nearest) in cases {
        let builder = TestDaemon::builder().set(key, value);
        let (status, log) = builder.start_and_fail().await;
        assert_eq!(status.code(), Some(64), "{log}");
        let wrong = key
            .split('.')
            .find(|part| !["updates", "keep_count"].contains(part));
        for part in [wrong.unwrap(), nearest] {
            assert!(log.contains(part), "`{part}` is missing in: {log}");
        }
    }
    let (status, log) = TestDaemon::builder()
        .set("updates.keep_count", "many")
        .start_and_fail()
        .await;
    assert_eq!(status.code(), Some(64), "{log}");
    assert!(log.contains("keep_count"), "{log}");
}
