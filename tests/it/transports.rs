//! Which transport is used, and what legacy HTTP+SSE does when things go wrong.

use mcp_sidecar_tests::fake::stream;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::{HttpMode, TransportKind, UnixSocketProtocol};

async fn sse() -> FakeMcp {
    FakeMcp::legacy()
        .http_sse()
        .tool(tool("echo"))
        .start()
        .await
}

/// Messages that were POSTed to the URL of the stream.
fn posted_to_stream(fake: &FakeMcp) -> usize {
    let seen = fake.seen();
    seen.iter()
        .filter(|seen| seen.http == "POST" && seen.path == "/sse")
        .count()
}

/// Adds a server that cannot be connected, with one app attached and with two, and returns reason and message of its
/// failure: the same for all.
async fn failure(spec: ServerSpec) -> (ConnectionState, String, String) {
    let told = std::cell::RefCell::new(Vec::new());
    one_and_two(async |stage| {
        stage.app().add("s", spec.clone()).await.unwrap();
        for app in &stage.apps {
            let server = app.get("s").await.unwrap();
            let (reason, message) = server.failure();
            let told = &mut *told.borrow_mut();
            told.push((server.state(), reason.to_owned(), message.to_owned()));
        }
    })
    .await;
    let mut told = told.into_inner();
    told.dedup();
    assert_eq!(told.len(), 1, "{told:?}");
    told.remove(0)
}

fn refuse(status: u16, body: &'static str) -> Reply {
    Reply::Raw(status, Vec::new(), body.into())
}

#[tokio::test]
async fn behaviour_17_auto_finds_sse_and_remembers_it() {
    for status in [404, 405] {
        one_and_two(async |mut stage| {
            let fake = sse().await;
            fake.reply("*", move |seen| {
                if seen.http == "POST" && seen.path == "/sse" {
                    return refuse(status, "");
                }
                Reply::Default
            });
            let server = stage.add_http(&fake.url()).await;
            let facts = server.facts();
            assert_eq!(facts.transport(), TransportKind::Sse);
            assert_eq!(
                (facts.era(), facts.push()),
                (Era::Legacy, v1::PushState::Open)
            );
            for app in &stage.apps {
                let result = app.call_tool("s", "echo", r#"{"n":1.0}"#).await;
                assert_eq!(text_of(&result.unwrap()), r#"{"n":1.0}"#);
            }
            let probes = posted_to_stream(&fake);
            assert!(probes > 0);
            stage.restart().await;
            stage.other().wait_for("s", ConnectionState::Ready).await;
            assert_eq!(posted_to_stream(&fake), probes, "the transport was known");
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_19_a_text_decides_nothing() {
    let fake = FakeMcp::legacy().start().await;
    fake.reply("*", |seen| match seen.http.as_str() {
        "POST" => refuse(500, "401 Unauthorized, 404 Not Found, 405"),
        _ => refuse(404, ""),
    });
    let (state, _, message) = failure(http_spec("S", &fake.url())).await;
    assert_ne!(state, ConnectionState::Authenticating, "{message}");
    assert!(message.contains("500"), "{message}");
    assert!(
        fake.seen().iter().all(|seen| seen.http == "POST"),
        "no fallback"
    );

    // With 400 the other transport is looked for, and the failure is still that of the status.
    fake.reply("*", |seen| match seen.http.as_str() {
        "POST" => refuse(400, "401 Unauthorized"),
        _ => refuse(404, ""),
    });
    let (state, reason, message) = failure(http_spec("S", &fake.url())).await;
    assert_eq!(
        (state, reason.as_str()),
        (ConnectionState::Failed, "NOT_AN_MCP_SERVER")
    );
    assert!(message.contains("400"), "{message}");
}

#[tokio::test]
async fn behaviour_20_a_session_that_is_not_found_is_no_missing_transport() {
    let fake = FakeMcp::legacy().start().await;
    fake.reply("*", |seen| match seen.http.as_str() {
        "POST" => refuse(
            400,
            r#"{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"Session not found 404"}}"#,
        ),
        _ => refuse(405, ""),
    });
    let (state, _, message) = failure(http_spec("S", &fake.url())).await;
    assert_eq!(state, ConnectionState::Failed);
    assert!(message.contains("Session not found"), "{message}");
    assert!(!message.contains("HTTP+SSE"), "{message}");
    assert!(
        fake.seen().iter().all(|seen| seen.http == "POST"),
        "no fallback"
    );
}

#[tokio::test]
async fn behaviour_21_when_both_fail_the_failure_names_both() {
    let fake = FakeMcp::legacy().start().await;
    fake.reply("*", |seen| match seen.http.as_str() {
        "POST" => refuse(405, "no POST here"),
        _ => refuse(404, "no stream here"),
    });
    let (state, reason, message) = failure(http_spec("S", &fake.url())).await;
    assert_eq!(
        (state, reason.as_str()),
        (ConnectionState::Failed, "NOT_AN_MCP_SERVER")
    );
    for part in ["405", "no POST here", "404", "no stream here"] {
        assert!(message.contains(part), "`{part}` in {message}");
    }
    // A server that only has the old transport and wants a sign-in is no failure.
    fake.reply("*", |seen| match seen.http.as_str() {
        "POST" => refuse(405, ""),
        _ => refuse(401, ""),
    });
    let (state, reason, message) = failure(http_spec("S", &fake.url())).await;
    assert_eq!(
        (state, reason.as_str()),
        (ConnectionState::Authenticating, "SIGN_IN_REQUIRED"),
        "{message}"
    );
}

#[tokio::test]
async fn b10_a_name_with_two_addresses_is_reached_at_the_one_that_listens() {
    one_and_two(async |stage| {
        for (family, addr) in [("four", "127.0.0.1:0"), ("six", "[::1]:0")] {
            for (kind, builder) in [
                ("modern", FakeMcp::modern()),
                ("legacy", FakeMcp::legacy()),
                ("sse", FakeMcp::legacy().http_sse()),
            ] {
                let builder = builder.tool(tool("echo")).at(addr.parse().unwrap());
                let fake = builder.start().await;
                let literal = fake.url();
                let host = literal.split('/').nth(2).unwrap();
                let port = fake.addr().port();
                let named = literal.replace(host, &format!("localhost:{port}"));
                for (form, url) in [("literal", &literal), ("named", &named)] {
                    let id = format!("{kind}-{family}-{form}");
                    let server = stage.add(&id, http_spec(&id, url)).await;
                    let spec = format!("{:?}", server.spec.unwrap());
                    assert!(spec.contains(url.as_str()), "{url} in {spec}");
                    for app in &stage.apps {
                        app.call_tool(&id, "echo", "{}").await.unwrap();
                    }
                    let seen = fake.seen();
                    assert_eq!(
                        seen.last().unwrap().header("host"),
                        url.split('/').nth(2).unwrap()
                    );
                }
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_chosen_transport_is_the_only_one() {
    let fake = sse().await;
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let server = app
        .add_ready(http_spec_as("S", &fake.url(), HttpMode::Sse))
        .await;
    assert_eq!(server.facts().transport(), TransportKind::Sse);
    assert_eq!(posted_to_stream(&fake), 0);
    let Some(v1::server_spec::Transport::Http(http)) = server.spec.unwrap().transport else {
        panic!("a server at a URL");
    };
    assert_eq!(http.mode(), HttpMode::Sse);

    let streams = |fake: &FakeMcp| fake.seen().iter().filter(|seen| seen.http == "GET").count();
    let before = streams(&fake);
    let only = http_spec_as("T", &fake.url(), HttpMode::StreamableHttp);
    let other = app.add("t", only).await.unwrap().server.unwrap();
    assert_eq!(other.state(), ConnectionState::Failed);
    assert_eq!(streams(&fake), before);

    let mut pinned = http_spec_as("U", &fake.url(), HttpMode::Sse);
    pinned.protocol_version = "2026-07-28".to_owned();
    let refused = ErrorFacts::expect(
        app.add("u", pinned).await,
        Code::InvalidArgument,
        "INVALID_FIELD",
    );
    assert_eq!(refused.field, "spec.protocol_version");
    let mut unknown = http_spec("V", &fake.url());
    if let Some(v1::server_spec::Transport::Http(http)) = &mut unknown.transport {
        http.mode = 99;
    }
    let refused = ErrorFacts::expect(
        app.add("v", unknown).await,
        Code::InvalidArgument,
        "INVALID_FIELD",
    );
    assert_eq!(refused.field, "spec.http.mode");
}

#[tokio::test]
async fn messages_go_to_no_other_origin() {
    let (fake, other) = (sse().await, sse().await);
    let elsewhere = format!(
        "event: endpoint\ndata: http://{}/messages\n\n",
        other.addr()
    );
    fake.reply("GET", move |_| {
        let event = elsewhere.clone();
        stream(async move |writer| {
            writer.bytes(event).await;
            writer.closed().await;
        })
    });
    let (state, reason, message) = failure(http_spec_as("S", &fake.url(), HttpMode::Sse)).await;
    assert_eq!(
        (state, reason.as_str()),
        (ConnectionState::Failed, "DESTINATION_BLOCKED"),
        "{message}"
    );
    assert_eq!(other.seen().len(), 0);
}

#[tokio::test]
async fn a_lost_stream_ends_the_link_and_a_new_one_follows() {
    let fake = sse().await;
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let server = app.add_http("S", &fake.url()).await;
    fake.reply("tools/call", |_| Reply::Hang);
    let call = tokio::spawn({
        let (app, id) = (app.clone(), server.id.clone());
        async move { app.call_tool(&id, "echo", "{}").await }
    });
    fake.wait_method("tools/call").await;
    fake.end_streams();
    let lost = within("the end of the call", call).await.unwrap();
    let facts = ErrorFacts::of(&lost.unwrap_err());
    assert_eq!(facts.reason, "OUTCOME_UNKNOWN", "{facts:?}");
    fake.reset("tools/call");
    // The second session names its URL absolutely.
    app.call_tool(&server.id, "echo", "{}").await.unwrap();
    assert_eq!(
        app.get(&server.id).await.unwrap().facts().transport(),
        TransportKind::Sse
    );
}

#[tokio::test]
async fn a_session_that_is_gone_is_healed_once() {
    let fake = sse().await;
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let server = app.add_http("S", &fake.url()).await;
    fake.reply("ack", |seen| {
        if seen.method() == "tools/call" && seen.path.ends_with("=1") {
            refuse(404, "no such session")
        } else {
            Reply::Default
        }
    });
    app.call_tool(&server.id, "echo", "{}").await.unwrap();
    assert_eq!(fake.seen_of("tools/call").len(), 2);
    assert_eq!(
        fake.seen_of("initialize")
            .iter()
            .filter(|seen| seen.path != "/sse")
            .count(),
        2
    );
}

#[tokio::test]
async fn one_answer_that_is_too_large_ends_nothing_else() {
    let fake = sse().await;
    let daemon = TestDaemon::builder()
        .set("limits.message_bytes", 65_536)
        .start()
        .await;
    let app = daemon.clients().await;
    let server = app.add_http("S", &fake.url()).await;
    fake.reply(
        "tools/call",
        |seen| match seen.params()["arguments"]["big"].as_bool() {
            Some(true) => Reply::Json(json!({"content": [], "x": "y".repeat(100_000)})),
            _ => Reply::Default,
        },
    );
    let large = app.call_tool(&server.id, "echo", r#"{"big":true}"#).await;
    let facts = ErrorFacts::of(&large.unwrap_err());
    assert_eq!(facts.reason, "MESSAGE_TOO_LARGE", "{facts:?}");
    app.call_tool(&server.id, "echo", "{}").await.unwrap();
    assert_eq!(
        fake.seen_of("initialize")
            .iter()
            .filter(|seen| seen.path != "/sse")
            .count(),
        1
    );
}

#[tokio::test]
async fn a_server_that_was_replaced_is_looked_at_again() {
    let old = sse().await;
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let server = app.add_http("S", &old.url()).await;
    let addr = old.addr();
    old.stop().await;
    let new = FakeMcp::modern().tool(tool("new")).at(addr).start().await;
    let mut updates = app.updates("").await;
    let found = updates
        .server_where("the new server", |found| {
            found.id == server.id
                && found.state() == ConnectionState::Ready
                && found.facts().transport() == TransportKind::StreamableHttp
        })
        .await;
    assert_eq!(found.facts().era(), Era::Modern);
    app.call_tool(&server.id, "new", "{}").await.unwrap();
    assert_eq!(new.seen_of("initialize").len(), 0);
}

#[tokio::test]
async fn a_socket_is_refused_where_it_cannot_be_one() {
    fn lines() -> i32 {
        UnixSocketProtocol::Ndjson.into()
    }

    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let refused = async |field: &str, change: fn(&mut v1::UnixSocketTransport)| {
        let mut socket = v1::UnixSocketTransport {
            path: "/run/mcp.sock".to_owned(),
            ..Default::default()
        };
        change(&mut socket);
        let spec = ServerSpec {
            name: "S".to_owned(),
            transport: Some(v1::server_spec::Transport::UnixSocket(socket)),
            ..Default::default()
        };
        let facts = ErrorFacts::expect(
            app.add("", spec).await,
            Code::InvalidArgument,
            "INVALID_FIELD",
        );
        assert_eq!(facts.field, format!("spec.unix_socket.{field}"));
    };
    refused("path", |socket| socket.path = "mcp.sock".to_owned()).await;
    refused("path", |socket| {
        socket.path = format!("/{}", "x".repeat(107));
    })
    .await;
    refused("protocol", |socket| socket.protocol = 99).await;
    refused("http_path", |socket| socket.http_path = "mcp".to_owned()).await;
    refused("http_path", |socket| {
        socket.http_path = "//elsewhere/mcp".to_owned();
    })
    .await;
    refused("http_path", |socket| {
        (socket.protocol, socket.http_path) = (lines(), "/mcp".to_owned());
    })
    .await;
    refused("headers.name", |socket| {
        let (name, value) = ("mcp-session-id".to_owned(), "x".to_owned());
        socket.headers.push(v1::Header { name, value });
    })
    .await;
    refused("headers", |socket| {
        socket.protocol = lines();
        socket.headers.push(v1::Header::default());
    })
    .await;
}

#[tokio::test]
async fn headers_and_the_path_reach_a_server_behind_a_socket() {
    let fake = FakeMcp::modern()
        .tool(tool("echo"))
        .on_socket()
        .start()
        .await;
    let mut daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let mut spec = socket_spec("S", &fake.socket(), UnixSocketProtocol::Http);
    let Some(v1::server_spec::Transport::UnixSocket(socket)) = &mut spec.transport else {
        panic!("a server on a socket");
    };
    socket.http_path = "/deep/mcp?tenant=1".to_owned();
    let (name, value) = ("x-props".to_owned(), "secret-of-mine".to_owned());
    socket.headers.push(v1::Header { name, value });
    let server = app.add_ready(spec).await;
    assert!(!format!("{server:?}").contains("secret-of-mine"));
    daemon.restart().await;
    let app = daemon.clients().await;
    app.wait_for(&server.id, ConnectionState::Ready).await;
    app.call_tool(&server.id, "echo", "{}").await.unwrap();
    for seen in fake.seen() {
        assert_eq!(seen.path, "/deep/mcp?tenant=1");
        assert_eq!(seen.header("x-props"), "secret-of-mine");
    }
}

#[tokio::test]
async fn sockets_can_be_forbidden() {
    let daemon = TestDaemon::builder()
        .set("policy.allow_unix_sockets", false)
        .start()
        .await;
    let app = daemon.clients().await;
    let fake = FakeMcp::modern().on_socket().start().await;
    for protocol in [UnixSocketProtocol::Http, UnixSocketProtocol::Ndjson] {
        let spec = socket_spec("S", &fake.socket(), protocol);
        ErrorFacts::expect(
            app.add("", spec).await,
            Code::PermissionDenied,
            "DESTINATION_BLOCKED",
        );
    }
    assert_eq!(fake.seen().len(), 0);
}

#[tokio::test]
async fn a_server_behind_a_socket_may_come_later_and_come_back() {
    for protocol in [UnixSocketProtocol::Http, UnixSocketProtocol::Ndjson] {
        let lines = protocol == UnixSocketProtocol::Ndjson;
        let builder = || {
            let builder = FakeMcp::legacy().tool(tool("echo"));
            if lines {
                builder.lines()
            } else {
                builder.on_socket()
            }
        };
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mcp.sock");
        let daemon = TestDaemon::builder()
            .set("reconnect.max_delay", "1s")
            .set("reconnect.liveness_interval", "200ms")
            .start()
            .await;
        let app = daemon.clients().await;
        let mut spec = socket_spec("S", &path, protocol);
        spec.retry = Some(v1::RetryPolicy {
            max_attempts: Some(1),
            base_delay: Some(millis(10)),
            max_delay: Some(millis(10)),
        });
        let server = app.add("s", spec).await.unwrap().server.unwrap();
        assert_eq!(
            server.failure().0,
            "UPSTREAM_UNREACHABLE",
            "{:?}",
            server.failure()
        );
        for _ in 0..2 {
            let fake = builder().start().await;
            let _old = std::fs::remove_file(&path);
            std::os::unix::fs::symlink(fake.socket(), &path).unwrap();
            app.wait_for("s", ConnectionState::Ready).await;
            app.call_tool("s", "echo", "{}").await.unwrap();
            let mut updates = app.updates("").await;
            fake.stop().await;
            updates
                .server_where("the loss", |server| {
                    server.state() != ConnectionState::Ready
                })
                .await;
        }
    }
}
