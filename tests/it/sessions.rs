//! Sessions of legacy servers over HTTP: kept over a restart, healed when they are gone, ended when they are left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use http::Method;
use mcp_sidecar_tests::daemon::Builder;
use mcp_sidecar_tests::fake::stream;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::disconnect_server_request::Target;

/// Header of the session.
const SESSION: &str = "mcp-session-id";

/// Handshakes so far.
fn handshakes(fake: &FakeMcp) -> usize {
    fake.seen_of("initialize").len()
}

/// The one session that the server knows.
fn only_session(fake: &FakeMcp) -> String {
    let sessions: Vec<_> = fake.sessions().into_iter().collect();
    match &sessions[..] {
        [session] => session.clone(),
        other => panic!("one session is expected: {other:?}"),
    }
}

/// Every app can call, and gets its own answer.
async fn all_can_call(stage: &Stage) {
    let answers = stage.everyone(async |app, number| {
        let arguments = format!("{{\"app\":{number}}}");
        let result = app.call_tool("s", "echo", &arguments).await;
        assert_eq!(text_of(&result.expect("CallTool")), arguments);
    });
    answers.await;
}

/// An app connects the server again.
async fn connect(app: &Clients) {
    let request = v1::ConnectServerRequest {
        namespace: app.namespace(),
        server_id: "s".to_owned(),
        ..Default::default()
    };
    app.servers().connect_server(request).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
}

/// An app disconnects a server, or all of them.
async fn disconnect(app: &Clients, id: &str) -> Result<(), tonic::Status> {
    let request = v1::DisconnectServerRequest {
        namespace: app.namespace(),
        target: Some(if id.is_empty() {
            Target::AllServers(true)
        } else {
            Target::ServerId(id.to_owned())
        }),
    };
    app.servers().disconnect_server(request).await.map(drop)
}

/// Settings under which nothing takes long.
fn quick() -> Builder {
    TestDaemon::builder()
        .set("timeouts.close", "200ms")
        .set("reconnect.liveness_interval", "1h")
}

#[tokio::test]
async fn behaviour_24_and_27_a_restart_goes_on_with_the_session() {
    one_and_two(async |mut stage| {
        let fake = FakeMcp::echo(false).await;
        stage.add_http(&fake.url()).await;
        let session = only_session(&fake);
        let before = stage.other().get("s").await.unwrap();
        // Stopped in order, then killed: both times the session goes on.
        for kill in [false, true] {
            if kill {
                stage.daemon.kill9().await;
            }
            let known = fake.seen().len();
            stage.restart().await;
            let after = stage.other().wait_for("s", ConnectionState::Ready).await;
            all_can_call(&stage).await;
            // The stream of notifications is open again, too.
            fake.notify("notifications/tools/list_changed").await;
            let since: Vec<Seen> = fake.seen().split_off(known);
            assert!(since.iter().any(|seen| seen.http == Method::GET));
            for seen in &since {
                assert_eq!(seen.header(SESSION), session, "{seen:?}");
                assert_eq!(
                    seen.header("mcp-protocol-version"),
                    "2025-11-25",
                    "{seen:?}"
                );
                assert_ne!(seen.http, Method::DELETE);
            }
            let (before, after) = (before.facts(), after.facts());
            assert_eq!(after.protocol_version, before.protocol_version);
            assert_eq!(after.capabilities_json, before.capabilities_json);
            assert_eq!(after.instructions, before.instructions);
            assert_eq!(after.server_info, before.server_info);
        }
        assert_eq!(handshakes(&fake), 1);
        assert_eq!(fake.seen_of("server/discover").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn behaviour_25_a_session_that_is_left_is_ended_and_forgotten() {
    for failing in [None, Some(500), Some(405), Some(0)] {
        one_and_two_with(quick(), async |mut stage| {
            let fake = FakeMcp::echo(false).await;
            stage.add_http(&fake.url()).await;
            let session = only_session(&fake);
            if let Some(status) = failing {
                fake.reply("DELETE", move |_| match status {
                    0 => Reply::Hang,
                    status => Reply::Raw(status, Vec::new(), "no".into()),
                });
            }
            disconnect(stage.other(), "s").await.unwrap();
            let deleted = fake.seen_http(&Method::DELETE);
            assert_eq!(deleted.len(), 1);
            assert_eq!(deleted[0].header(SESSION), session);
            assert_eq!(deleted[0].header("content-type"), "");
            // Whatever came of it, nothing of the session is used again.
            stage.daemon.kill9().await;
            stage.restart().await;
            connect(stage.other()).await;
            all_can_call(&stage).await;
            assert_eq!(handshakes(&fake), 2);
            assert_eq!(fake.seen_of("initialize")[1].header(SESSION), "");
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_25_changed_settings_and_a_removal_end_the_session() {
    one_and_two_with(quick(), async |stage| {
        let fake = FakeMcp::echo(false).await;
        stage.add_http(&fake.url()).await;
        let first = only_session(&fake);
        let mut spec = http_spec("S", &fake.url());
        let Some(v1::server_spec::Transport::Http(http)) = &mut spec.transport else {
            panic!("a server at a URL");
        };
        http.headers.push(v1::Header {
            name: "x-other".to_owned(),
            value: "1".to_owned(),
        });
        stage.other().add("s", spec).await.unwrap();
        stage.app().wait_for("s", ConnectionState::Ready).await;
        let second = only_session(&fake);
        assert_ne!(first, second);
        stage.other().remove("s").await.unwrap();
        assert!(fake.sessions().is_empty());
        let ended: Vec<_> = fake.seen_http(&Method::DELETE);
        let ended: Vec<_> = ended.iter().map(|seen| seen.header(SESSION)).collect();
        assert_eq!(ended, [first, second]);
    })
    .await;
}

#[tokio::test]
async fn behaviour_26_all_are_closed_though_one_cannot_be() {
    one_and_two_with(quick(), async |mut stage| {
        let (well, ill) = (FakeMcp::echo(false).await, FakeMcp::echo(false).await);
        stage.add_http(&well.url()).await;
        stage.add("ill", http_spec("Ill", &ill.url())).await;
        ill.reply("DELETE", |_| Reply::Raw(500, Vec::new(), Bytes::new()));
        disconnect(stage.other(), "").await.unwrap();
        for server in stage.app().list().await {
            assert_eq!(server.state(), ConnectionState::Disconnected, "{server:#?}");
        }
        assert!(well.sessions().is_empty());
        stage.daemon.log_holds("500 Internal Server Error").await;
        stage.restart().await;
        connect(stage.other()).await;
        assert_eq!(handshakes(&well), 2);
    })
    .await;
}

#[tokio::test]
async fn behaviour_28_a_session_that_ended_meanwhile_is_replaced_once() {
    one_and_two(async |mut stage| {
        let fake = FakeMcp::echo(false).await;
        let mut spec = http_spec("S", &fake.url());
        // It is no failed attempt: one attempt is enough.
        spec.retry = Some(v1::RetryPolicy {
            max_attempts: Some(1),
            base_delay: Some(seconds(5)),
            max_delay: Some(seconds(5)),
        });
        stage.add("s", spec).await;
        let old = only_session(&fake);
        fake.end_sessions();
        stage.restart().await;
        stage.other().wait_for("s", ConnectionState::Ready).await;
        all_can_call(&stage).await;
        assert_eq!(handshakes(&fake), 2);
        assert_eq!(fake.seen_of("initialize")[1].header(SESSION), "");
        let new = only_session(&fake);
        assert_ne!(old, new);
        // The new one is stored as the old one was.
        stage.restart().await;
        stage.other().wait_for("s", ConnectionState::Ready).await;
        all_can_call(&stage).await;
        assert_eq!(handshakes(&fake), 2);
        assert_eq!(
            fake.seen_of("tools/call").last().unwrap().header(SESSION),
            new
        );
    })
    .await;
}

#[tokio::test]
async fn behaviour_29_a_json_rpc_error_404_is_no_lost_session() {
    one_and_two(async |mut stage| {
        let fake = FakeMcp::echo(false).await;
        stage.add_http(&fake.url()).await;
        let session = only_session(&fake);
        fake.reply("tools/list", |_| Reply::Error(404, "not here", Value::Null));
        stage.restart().await;
        let server = stage.other().wait_for("s", ConnectionState::Ready).await;
        let tools = server.facts().tools.clone().unwrap();
        assert!(tools.incomplete_reason.contains("not here"), "{tools:?}");
        fake.reset("tools/list");
        stage.restart().await;
        stage.other().wait_for("s", ConnectionState::Ready).await;
        all_can_call(&stage).await;
        assert_eq!(handshakes(&fake), 1);
        assert_eq!(only_session(&fake), session);
    })
    .await;
}

#[tokio::test]
async fn behaviour_32_without_a_session_a_restart_begins_anew() {
    // A stored session always has its version, since both are sealed together. Where there is none, the start is a new
    // one: a legacy server is asked for a handshake, a modern one what it is.
    for modern in [false, true] {
        one_and_two(async |mut stage| {
            let fake = if modern {
                FakeMcp::echo(true).await
            } else {
                let fake = FakeMcp::legacy().sessionless().tool(tool("echo"));
                fake.start().await
            };
            stage.add_http(&fake.url()).await;
            let first = if modern {
                "server/discover"
            } else {
                "initialize"
            };
            let known = fake.seen().len();
            stage.restart().await;
            stage.other().wait_for("s", ConnectionState::Ready).await;
            all_can_call(&stage).await;
            assert_eq!(fake.seen()[known].method(), first);
            assert!(
                fake.seen()
                    .iter()
                    .all(|seen| seen.header(SESSION).is_empty())
            );
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_31_a_session_lost_in_mid_life_is_replaced() {
    // 401 means the same as 404, as far as the new handshake succeeds.
    for status in [404, 401] {
        one_and_two(async |stage| {
            let fake = FakeMcp::echo(false).await;
            fake.refuse_sessions_with(status, "");
            stage.add_http(&fake.url()).await;
            for lost in 1..=2 {
                fake.end_sessions();
                all_can_call(&stage).await;
                all_can_call(&stage).await;
                assert_eq!(handshakes(&fake), lost + 1);
            }
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_20_and_b13_a_session_refused_with_400_is_replaced() {
    // 400 alone may be about the call: it fails, and what follows finds a new session.
    let body =
        r#"{"jsonrpc":"2.0","error":{"code":-32000,"message":"Bad Request: 401, 404"},"id":null}"#;
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(false).await;
        fake.refuse_sessions_with(400, body);
        stage.add_http(&fake.url()).await;
        let mut updates = stage.other().updates("").await;
        updates.snapshot().await;
        fake.end_sessions();
        let refused = stage.app().call_tool("s", "echo", "{}").await;
        let facts = ErrorFacts::expect(refused, Code::Unknown, "UPSTREAM_ERROR");
        assert_eq!(facts.metadata["http_status"], "400", "{facts:?}");
        // The end of the old session is seen on the update stream.
        for state in [ConnectionState::Connecting, ConnectionState::Ready] {
            updates
                .server_where("a new session", |server| server.state() == state)
                .await;
        }
        all_can_call(&stage).await;
        assert_eq!(handshakes(&fake), 2);
        // A call that the server answers with 400 costs no session.
        let id = "{\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32602,\"message\":\"bad\"},\"id\":";
        fake.reply("tools/call", move |seen| {
            let body = format!("{id}{}}}", seen.json["id"]);
            Reply::Raw(400, Vec::new(), body.into())
        });
        let refused = stage.app().call_tool("s", "echo", "{}").await;
        ErrorFacts::expect(refused, Code::InvalidArgument, "UPSTREAM_ERROR");
        fake.reset("tools/call");
        all_can_call(&stage).await;
        assert_eq!(handshakes(&fake), 2);
    })
    .await;
}

#[tokio::test]
async fn b13_session_404_with_calls_in_flight() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(false).await;
        let served = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&served);
        fake.on("tools/call", move |seen| {
            counter.fetch_add(1, Ordering::SeqCst);
            std::future::ready(match seen.params()["arguments"]["slow"].as_bool() {
                Some(true) => stream(async |writer| writer.closed().await),
                _ => Reply::Default,
            })
        });
        stage.add_http(&fake.url()).await;
        let slow = stage.everyone(async |app, _| {
            let calls = (0..10).map(|_| app.call_tool("s", "echo", r#"{"slow":true}"#));
            futures_util::future::join_all(calls).await
        });
        let lose = async {
            let slow = 10 * stage.apps.len();
            eventually("the slow calls", PATIENCE, async || {
                (served.load(Ordering::SeqCst) == slow).then_some(())
            })
            .await;
            fake.end_sessions();
            all_can_call(&stage).await;
        };
        let (ended, ()) = tokio::join!(slow, lose);
        for outcome in ended.into_iter().flatten() {
            ErrorFacts::expect(outcome, Code::Unavailable, "OUTCOME_UNKNOWN");
        }
        assert_eq!(handshakes(&fake), 2);
        assert_eq!(served.load(Ordering::SeqCst), 11 * stage.apps.len());
        // The lists are read again, and notifications listened to, under the new session.
        let new = only_session(&fake);
        for method in ["tools/list", ""] {
            fake.wait("a request under the new session", |seen| {
                seen.method() == method && seen.header(SESSION) == new
            })
            .await;
        }
    })
    .await;
}

#[tokio::test]
async fn b13_a_new_session_that_is_refused_too_ends_the_call() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(false).await;
        stage.add_http(&fake.url()).await;
        fake.reply("tools/call", |_| Reply::Raw(404, Vec::new(), "gone".into()));
        let ended = stage.everyone(async |app, _| app.call_tool("s", "echo", "{}").await);
        for outcome in ended.await {
            ErrorFacts::expect(outcome, Code::Unavailable, "UPSTREAM_UNREACHABLE");
        }
        assert!(fake.seen_of("tools/call").len() <= 2 * stage.apps.len());
        fake.reset("tools/call");
        // A server that loses every session is backed off from: what is told here is that it heals.
        stage.apps[0].wait_for("s", ConnectionState::Ready).await;
        all_can_call(&stage).await;
    })
    .await;
}

#[tokio::test]
async fn b13_an_error_in_an_event_is_no_lost_session() {
    one_and_two(async |stage| {
        let fake = FakeMcp::legacy().sse().tool(tool("echo")).start().await;
        stage.add_http(&fake.url()).await;
        fake.reply("tools/call", |_| {
            Reply::Error(-32001, "session not found", json!({"status": 404}))
        });
        let outcomes = stage.everyone(async |app, _| app.call_tool("s", "echo", "{}").await);
        for outcome in outcomes.await {
            let facts = ErrorFacts::expect(outcome, Code::Unknown, "UPSTREAM_ERROR");
            assert_eq!(facts.metadata["data_json"], r#"{"status":404}"#);
        }
        fake.reset("tools/call");
        all_can_call(&stage).await;
        assert_eq!(handshakes(&fake), 1);
    })
    .await;
}

#[tokio::test]
async fn b13_a_session_comes_from_a_successful_handshake_only() {
    one_and_two(async |stage| {
        let fake = FakeMcp::legacy()
            .sessionless()
            .tool(tool("echo"))
            .start()
            .await;
        let poison = |session: &str| vec![(SESSION, session.to_owned())];
        let attempts = AtomicUsize::new(0);
        fake.reply("initialize", move |seen| {
            let mut headers = vec![("content-type", "application/json".to_owned())];
            headers.extend(match attempts.fetch_add(1, Ordering::SeqCst) {
                0 => return Reply::Raw(503, poison("of an error"), "busy".into()),
                _ => poison("true"),
            });
            let result = json!({
                "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
                "serverInfo": {"name": "fake", "version": "1"},
            });
            let answer = json!({"jsonrpc": "2.0", "id": seen.json["id"], "result": result});
            Reply::Raw(200, headers, answer.to_string().into())
        });
        fake.reply("notifications/initialized", move |_| {
            Reply::Raw(202, poison("of a notification"), Bytes::new())
        });
        // The fake only knows sessions that it gave itself.
        fake.allow_session("true");
        stage.add_http(&fake.url()).await;
        all_can_call(&stage).await;
        let handshakes = fake.seen_of("initialize");
        assert_eq!(handshakes.len(), 2);
        assert!(
            handshakes
                .iter()
                .all(|seen| seen.header(SESSION).is_empty())
        );
        for seen in fake.seen_of("tools/call") {
            assert_eq!(seen.header(SESSION), "true");
        }
    })
    .await;
}

/// A legacy server whose handshake answers with these session headers.
async fn giving(ids: &'static [&'static str]) -> FakeMcp {
    let builder = FakeMcp::legacy().sessionless().without_push();
    let fake = builder.tool(tool("echo")).start().await;
    for id in ids {
        fake.allow_session(id);
    }
    fake.reply("initialize", move |seen| {
        let mut headers = vec![("content-type", "application/json".to_owned())];
        headers.extend(ids.iter().map(|id| (SESSION, (*id).to_owned())));
        let result = json!({
            "protocolVersion": "2025-11-25", "capabilities": {"tools": {}},
            "serverInfo": {"name": "fake", "version": "1"},
        });
        let answer = json!({"jsonrpc": "2.0", "id": seen.json["id"], "result": result});
        Reply::Raw(200, headers, answer.to_string().into())
    });
    fake
}

#[tokio::test]
async fn b13_odd_session_ids_have_a_defined_way() {
    // Eight kilobytes of everything that is visible.
    static LONG: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| ('!'..='~').cycle().take(8192).collect());
    let long: &'static str = &LONG;
    let used: [(&'static [&'static str], &str); 5] = [
        (&[""], ""),
        (&["twice", "twice"], "twice"),
        (&["", "one"], "one"),
        (&["a b;c=\"d\", e"], "a b;c=\"d\", e"),
        (Box::leak(Box::new([long])), long),
    ];
    one_and_two(async |mut stage| {
        let mut fakes = Vec::new();
        for (number, (ids, wanted)) in used.iter().enumerate() {
            let fake = giving(ids).await;
            let name = format!("s-{number}");
            stage.add(&name, http_spec(&name, &fake.url())).await;
            fakes.push((name, fake, *wanted));
        }
        for _ in 0..2 {
            for (name, fake, wanted) in &fakes {
                stage.other().wait_for(name, ConnectionState::Ready).await;
                stage.other().call_tool(name, "echo", "{}").await.unwrap();
                let seen = fake.seen_of("tools/call");
                let last = seen.last().unwrap();
                assert_eq!(last.headers.contains_key(SESSION), !wanted.is_empty());
                assert_eq!(last.header(SESSION), *wanted, "{name}");
            }
            stage.restart().await;
        }
        for (ids, part) in [
            (&["one", "two"][..], "two different session ids"),
            (&["sessi\u{f6}n"], "not ASCII"),
        ] {
            let fake = giving(ids).await;
            let added = stage
                .other()
                .add("odd", http_spec("Odd", &fake.url()))
                .await;
            let server = added.unwrap().server.unwrap();
            assert_eq!(server.state(), ConnectionState::Failed);
            let (reason, message) = server.failure();
            assert_eq!(reason, "UPSTREAM_PROTOCOL", "{message}");
            assert!(message.contains(part), "{message}");
            stage.other().remove("odd").await.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn b13_a_modern_404_means_that_the_method_is_unknown() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        stage.add_http(&fake.url()).await;
        fake.reply("tools/call", |seen| {
            let error = json!({"code": -32601, "message": "no such method"});
            let answer = json!({"jsonrpc": "2.0", "id": seen.json["id"], "error": error});
            Reply::Raw(404, Vec::new(), answer.to_string().into())
        });
        let outcomes = stage.everyone(async |app, _| app.call_tool("s", "echo", "{}").await);
        for outcome in outcomes.await {
            ErrorFacts::expect(outcome, Code::Unimplemented, "UPSTREAM_ERROR");
        }
        assert_eq!(fake.seen_of("tools/call").len(), stage.apps.len());
        assert_eq!(handshakes(&fake), 0);
        assert_eq!(fake.seen_of("server/discover").len(), 1);
        fake.reset("tools/call");
        all_can_call(&stage).await;
    })
    .await;
}
