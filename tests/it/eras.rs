//! Finding out which era a server speaks, without breaking old servers (case B17, behaviour 22).

use mcp_sidecar_tests::daemon::Builder;
use mcp_sidecar_tests::fake::MODERN;
use mcp_sidecar_tests::prelude::*;

fn quick() -> Builder {
    TestDaemon::builder()
        .set("timeouts.probe", "300ms")
        .set("timeouts.connect", "3s")
}

/// How often a text is in a file.
fn count(file: &std::path::Path, text: &str) -> usize {
    let found = std::fs::read_to_string(file).unwrap_or_default();
    found.lines().filter(|line| line.contains(text)).count()
}

#[tokio::test]
async fn b17_every_old_process_is_understood_with_one_probe() {
    let kinds: [(&str, usize, Vec<StdioFault>); 8] = [
        ("exits", 2, vec![StdioFault::ExitOnDiscover]),
        ("swallows", 1, vec![StdioFault::SwallowDiscover]),
        ("unknown", 1, vec![StdioFault::RefuseDiscover(-32601)]),
        ("parameters", 1, vec![StdioFault::RefuseDiscover(-32602)]),
        ("request", 1, vec![StdioFault::RefuseDiscover(-32600)]),
        ("other", 1, vec![StdioFault::RefuseDiscover(-1)]),
        (
            "chatty",
            1,
            vec![StdioFault::StderrFlood(6), StdioFault::SwallowDiscover],
        ),
        // A second process while the first one lives would end at once.
        ("locks", 2, vec![StdioFault::ExitOnDiscover]),
    ];
    one_and_two_with(quick(), async |mut stage| {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str, kind: &str| dir.path().join(format!("{name}.{kind}"));
        let text = |path: std::path::PathBuf| path.to_str().unwrap().to_owned();
        for (name, starts, faults) in &kinds {
            let mut script = Script::healthy(false);
            script.faults.extend(faults.clone());
            script
                .faults
                .push(StdioFault::Register(text(path(name, "pids"))));
            script
                .faults
                .push(StdioFault::Record(text(path(name, "lines"))));
            if *name == "locks" {
                script
                    .faults
                    .push(StdioFault::LockFile(text(path(name, "lock"))));
            }
            let spec = script.spec(name, dir.path()).await;
            // All apps add it at the same time: it is one server all the same.
            stage
                .everyone(async |app, _| {
                    app.add(name, spec.clone()).await.unwrap();
                    let server = app.wait_for(name, ConnectionState::Ready).await;
                    assert_eq!(server.facts().era(), Era::Legacy, "{name}");
                    app.call_tool(name, "echo", "{}").await.unwrap();
                })
                .await;
            assert_eq!(count(&path(name, "pids"), ""), *starts, "{name}");
            assert_eq!(count(&path(name, "lines"), "server/discover"), 1, "{name}");
        }
        // What was found is kept: the next start asks for the handshake at once.
        stage.restart().await;
        for (name, starts, _) in &kinds {
            stage.other().wait_for(name, ConnectionState::Ready).await;
            assert_eq!(count(&path(name, "pids"), ""), starts + 1, "{name}");
            assert_eq!(count(&path(name, "lines"), "server/discover"), 1, "{name}");
        }
    })
    .await;
}

type Answer = Box<dyn Fn(&Seen) -> Reply + Send + Sync>;

fn http(status: u16, text: &'static str) -> Answer {
    Box::new(move |_| Reply::Raw(status, Vec::new(), text.into()))
}

fn rpc(code: i64) -> Answer {
    Box::new(move |_| Reply::Error(code, "no", Value::Null))
}

/// An HTTP refusal with a JSON-RPC error that answers nothing.
fn both(status: u16, code: i64) -> Answer {
    Box::new(move |_| {
        let error = json!({"code": code, "message": "Bad Request: no session"});
        let text = json!({"jsonrpc": "2.0", "id": null, "error": error}).to_string();
        Reply::Raw(status, Vec::new(), text.into())
    })
}

/// Every answer by which a server shows that it does not know the probe.
fn old_answers() -> Vec<(&'static str, Answer)> {
    vec![
        ("400", http(400, "Bad Request")),
        ("404", http(404, "<html>not here</html>")),
        ("405", http(405, "")),
        ("406", http(406, r#"{"error":"not acceptable"}"#)),
        ("415", http(415, "")),
        ("a page", http(200, "<!doctype html><title>401 404</title>")),
        ("nothing", http(202, "")),
        ("unknown", rpc(-32601)),
        ("parameters", rpc(-32602)),
        ("request", rpc(-32600)),
        ("other", rpc(-32000)),
        ("400 and an error", both(400, -32000)),
        ("404 and an error", both(404, -32001)),
        ("an empty result", Box::new(|_| Reply::Json(json!({})))),
        (
            "no answer in a stream",
            Box::new(|_| Reply::Sse(Vec::new())),
        ),
        (
            "half an answer",
            Box::new(|_| Reply::Sse(vec![Step::Bytes("data: {".into())])),
        ),
    ]
}

#[tokio::test]
async fn b17_every_old_answer_to_the_probe_leads_to_one_handshake() {
    one_and_two_with(quick(), async |mut stage| {
        let mut fakes = Vec::new();
        for (place, (name, answer)) in old_answers().into_iter().enumerate() {
            let fake = FakeMcp::legacy().sessionless().tool(tool("echo"));
            let fake = fake.start().await;
            fake.reply("server/discover", answer);
            let id = format!("s{place}");
            stage.add(&id, http_spec(name, &fake.url())).await;
            fakes.push((id, name, fake));
        }
        for start in 1..=2 {
            for (id, name, fake) in &fakes {
                let server = stage.other().wait_for(id, ConnectionState::Ready).await;
                assert_eq!(server.facts().era(), Era::Legacy, "{name}");
                stage.other().call_tool(id, "echo", "{}").await.unwrap();
                assert_eq!(fake.seen_of("server/discover").len(), 1, "{name}");
                assert_eq!(fake.seen_of("initialize").len(), start, "{name}");
            }
            // The verdict is kept: the second start asks for the handshake at once.
            if start == 1 {
                stage.restart().await;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn b17_a_server_that_is_only_slow_is_probed_again_next_time() {
    one_and_two_with(quick(), async |mut stage| {
        let fake = FakeMcp::legacy().sessionless().tool(tool("echo"));
        let fake = fake.start().await;
        fake.reply("server/discover", |_| Reply::Hang);
        stage.add_http(&fake.url()).await;
        assert_eq!(fake.seen_of("initialize").len(), 1);
        stage.restart().await;
        stage.other().wait_for("s", ConnectionState::Ready).await;
        assert_eq!(fake.seen_of("server/discover").len(), 2);
    })
    .await;
}

#[tokio::test]
async fn b17_trouble_is_no_verdict() {
    type Trouble = (&'static str, fn() -> Answer, ConnectionState);
    let troubles: [Trouble; 7] = [
        ("s500", || http(500, "oops"), ConnectionState::Failed),
        (
            "s502",
            || http(502, "<html>400 404</html>"),
            ConnectionState::Failed,
        ),
        ("s503", || both(503, -32601), ConnectionState::Failed),
        (
            "reset",
            || Box::new(|_| Reply::Reset),
            ConnectionState::Failed,
        ),
        ("s401", || http(401, "404"), ConnectionState::Authenticating),
        ("s403", || http(403, "404"), ConnectionState::Failed),
        ("s429", || http(429, ""), ConnectionState::Failed),
    ];
    one_and_two_with(quick(), async |stage| {
        for (name, answer, state) in troubles {
            let fake = FakeMcp::echo(true).await;
            fake.reply("server/discover", answer());
            let mut spec = http_spec(name, &fake.url());
            spec.retry = Some(v1::RetryPolicy {
                max_attempts: Some(1),
                base_delay: Some(seconds(10)),
                max_delay: Some(seconds(10)),
            });
            stage.app().add(name, spec).await.unwrap();
            let server = stage.other().wait_for(name, state).await;
            assert_ne!(server.failure().1, "", "{name}");
            assert!(fake.seen_of("initialize").is_empty(), "{name}");
            fake.reset("server/discover");
            let connect = v1::ConnectServerRequest {
                namespace: stage.other().namespace(),
                server_id: name.to_owned(),
                ..Default::default()
            };
            stage
                .other()
                .servers()
                .connect_server(connect)
                .await
                .unwrap();
            let server = stage.app().wait_for(name, ConnectionState::Ready).await;
            assert_eq!(server.facts().era(), Era::Modern, "{name}");
            assert!(fake.seen_of("initialize").is_empty(), "{name}");
        }
    })
    .await;
}

/// Refuses a version and names others.
fn unsupported(supported: &Value) -> Reply {
    let data = json!({"supported": supported, "requested": MODERN});
    Reply::Error(-32022, "Unsupported protocol version", data)
}

#[tokio::test]
async fn b17_a_refused_version_is_chosen_anew_from_the_list() {
    Box::pin(one_and_two_with(quick(), async |stage| {
        // It knows the version after all.
        let fake = FakeMcp::echo(true).await;
        let asked = std::sync::atomic::AtomicBool::new(false);
        fake.reply("server/discover", move |_| {
            if asked.swap(true, std::sync::atomic::Ordering::SeqCst) {
                Reply::Default
            } else {
                unsupported(&json!(["2099-01-01", MODERN]))
            }
        });
        let server = stage.add("modern", http_spec("Modern", &fake.url())).await;
        assert_eq!(server.facts().protocol_version, MODERN);
        assert_eq!(fake.seen_of("server/discover").len(), 2);
        assert!(fake.seen_of("initialize").is_empty());
        // It only knows older ones: the handshake offers what it knows.
        let fake = FakeMcp::legacy().version("2025-06-18").start().await;
        fake.reply("server/discover", |_| unsupported(&json!(["2025-06-18"])));
        let server = stage.add("legacy", http_spec("Legacy", &fake.url())).await;
        assert_eq!(server.facts().protocol_version, "2025-06-18");
        let offered = fake.wait_method("initialize").await;
        assert_eq!(offered.params()["protocolVersion"], "2025-06-18");
        // It knows nothing that the daemon knows.
        let fake = FakeMcp::echo(true).await;
        fake.reply("server/discover", |_| unsupported(&json!(["2099-01-01"])));
        let spec = http_spec("Future", &fake.url());
        stage.app().add("future", spec).await.unwrap();
        let server = stage
            .other()
            .wait_for("future", ConnectionState::Failed)
            .await;
        let (reason, message) = server.failure();
        assert_eq!(reason, "UPSTREAM_PROTOCOL");
        assert!(message.contains("2099-01-01"), "{message}");
        assert!(fake.seen_of("initialize").is_empty());
        // It says no and nothing else: asked once more, and then no more.
        let fake = FakeMcp::echo(true).await;
        fake.reply("server/discover", |_| {
            Reply::Error(-32022, "no", Value::Null)
        });
        let spec = http_spec("Mute", &fake.url());
        stage.app().add("mute", spec).await.unwrap();
        stage
            .other()
            .wait_for("mute", ConnectionState::Failed)
            .await;
        assert_eq!(fake.seen_of("server/discover").len(), 2);
        assert!(fake.seen_of("initialize").is_empty());
    }))
    .await;
}

#[tokio::test]
async fn b17_every_older_version_is_agreed_on_and_used() {
    one_and_two_with(quick(), async |stage| {
        for version in ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"] {
            let fake = FakeMcp::legacy().version(version).tool(tool("echo"));
            let fake = fake.start().await;
            let id = format!("v-{version}");
            let server = stage.add(&id, http_spec(&id, &fake.url())).await;
            assert_eq!(server.facts().protocol_version, version);
            let (id, apps) = (&server.id, &stage);
            apps.everyone(async |app, _| app.call_tool(id, "echo", "{}").await.unwrap())
                .await;
            let handshake = fake.wait_method("initialize").await;
            assert_eq!(handshake.header("mcp-protocol-version"), "");
            for seen in fake.seen().split_off(handshake.index + 1) {
                assert_eq!(seen.header("mcp-protocol-version"), version, "{seen:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn b17_a_verdict_that_no_longer_holds_is_found_anew() {
    one_and_two_with(quick(), async |mut stage| {
        // An old server becomes a new one while the daemon is away, and the other way round.
        let old = FakeMcp::legacy().sessionless().tool(tool("echo"));
        let (old, new) = (old.start().await, FakeMcp::echo(true).await);
        stage.add("up", http_spec("Up", &old.url())).await;
        stage.add("down", http_spec("Down", &new.url())).await;
        stage.daemon.terminate().await;
        let (up, down) = (old.addr(), new.addr());
        drop((old, new));
        let up = FakeMcp::modern().at(up).tool(tool("echo")).start().await;
        let down = FakeMcp::legacy().at(down).tool(tool("echo")).start().await;
        stage.restart().await;
        for (id, era) in [("up", Era::Modern), ("down", Era::Legacy)] {
            let server = stage.other().wait_for(id, ConnectionState::Ready).await;
            assert_eq!(server.facts().era(), era, "{id}");
            let all = &stage;
            all.everyone(async |app, _| app.call_tool(id, "echo", "{}").await.unwrap())
                .await;
        }
        assert_eq!(up.seen_of("initialize").len(), 1);
        assert_eq!(down.seen_of("initialize").len(), 1);
        // What was found holds for one target only.
        let moved = FakeMcp::legacy().tool(tool("echo")).start().await;
        let request = v1::UpdateServerRequest {
            namespace: stage.other().namespace(),
            server_id: "up".to_owned(),
            spec: Some(http_spec("Up", &moved.url())),
            update_mask: Some(prost_types::FieldMask {
                paths: vec!["http.url".to_owned()],
            }),
            ..Default::default()
        };
        stage
            .other()
            .servers()
            .update_server(request)
            .await
            .unwrap();
        let first = moved.wait("the first message", |_| true).await;
        assert_eq!(first.method(), "server/discover");
    })
    .await;
}

#[tokio::test]
async fn behaviour_22_a_modern_server_never_sees_a_handshake() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        stage.add_http(&fake.url()).await;
        stage
            .everyone(async |app, _| app.call_tool("s", "echo", "{}").await.unwrap())
            .await;
        assert_eq!(fake.seen()[0].method(), "server/discover");
        assert!(fake.seen_of("initialize").is_empty());
        // A legacy server sees one probe and one handshake, on the same connection.
        let fake = FakeMcp::echo(false).await;
        stage.add("old", http_spec("Old", &fake.url())).await;
        let first: Vec<_> = fake.seen().into_iter().take(2).collect();
        let first: Vec<_> = first.iter().map(Seen::method).collect();
        assert_eq!(first, ["server/discover", "initialize"]);
    })
    .await;
}
