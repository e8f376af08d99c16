//! The life of a connection: connect, wait, fail, retry, come back.

use std::net::SocketAddr;

use mcp_sidecar_tests::prelude::*;

fn added(answer: v1::AddServerResponse) -> (Server, AddOutcome) {
    let outcome = answer.outcome();
    (
        answer.server.expect("AddServer returns the server"),
        outcome,
    )
}

/// Attempts per connect and their longest pause in milliseconds.
fn with_retry(mut spec: ServerSpec, attempts: u32, base: u64, max: u64) -> ServerSpec {
    spec.retry = Some(v1::RetryPolicy {
        max_attempts: Some(attempts),
        base_delay: Some(millis(base)),
        max_delay: Some(millis(max)),
    });
    spec
}

/// Number of times a connection to the server was begun.
fn dials(fake: &FakeMcp) -> usize {
    let first = fake.seen().first().map(|seen| seen.method().to_owned());
    first.map_or(0, |first| fake.seen_of(&first).len())
}

#[tokio::test]
async fn a_server_can_be_registered_connected_disconnected_and_refreshed() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(true).await;
    let request = v1::AddServerRequest {
        spec: Some(http_spec("Fake", &fake.url())),
        register_only: true,
        ..Default::default()
    };
    let (server, _) = added(app.add_with(request).await.unwrap());
    assert_eq!(server.state(), ConnectionState::Disconnected);
    assert!(fake.seen().is_empty(), "nothing is dialled");
    let call = app.call_tool(&server.id, "echo", "{}").await;
    ErrorFacts::expect(call, Code::FailedPrecondition, "NOT_CONNECTED");

    let id = server.id.clone();
    let connect = v1::ConnectServerRequest {
        namespace: app.namespace(),
        server_id: id.clone(),
        wait_timeout: None,
    };
    let connected = app
        .servers()
        .connect_server(connect)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(connected.server.unwrap().state(), ConnectionState::Ready);

    fake.set_list("tools", vec![tool("echo"), tool("more")]);
    let refresh = v1::RefreshServerRequest {
        namespace: app.namespace(),
        server_id: id.clone(),
        wait_timeout: None,
    };
    let refreshed = app
        .servers()
        .refresh_server(refresh)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(refreshed.server.unwrap().tool_count(), 2);

    let disconnect = v1::DisconnectServerRequest {
        namespace: app.namespace(),
        target: Some(v1::disconnect_server_request::Target::AllServers(true)),
    };
    let gone = app
        .servers()
        .disconnect_server(disconnect)
        .await
        .unwrap()
        .into_inner();
    assert_eq!(gone.servers[0].state(), ConnectionState::Disconnected);
    assert_eq!(app.list().await.len(), 1, "the registration is kept");
}

#[tokio::test]
async fn a_disconnected_server_stays_so_over_a_restart() {
    let mut daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let (on, off) = (FakeMcp::echo(true).await, FakeMcp::echo(true).await);
    let on = app.add_http("on", &on.url()).await.id;
    let off_id = app.add_http("off", &off.url()).await.id;
    let disconnect = v1::DisconnectServerRequest {
        namespace: app.namespace(),
        target: Some(v1::disconnect_server_request::Target::ServerId(
            off_id.clone(),
        )),
    };
    app.servers().disconnect_server(disconnect).await.unwrap();
    let requests = off.seen().len();

    daemon.restart().await;
    let app = daemon.clients().await;
    app.wait_for(&on, ConnectionState::Ready).await;
    assert_eq!(
        app.get(&off_id).await.unwrap().state(),
        ConnectionState::Disconnected
    );
    assert_eq!(off.seen().len(), requests);
}

/// WaitForServers with this bound in milliseconds and these ids.
async fn wait(
    app: &Clients,
    timeout: Option<u64>,
    ids: &[&str],
) -> Result<v1::WaitForServersResponse, tonic::Status> {
    let request = v1::WaitForServersRequest {
        namespace: app.namespace(),
        server_ids: ids.iter().map(|&id| id.to_owned()).collect(),
        timeout: timeout.map(millis),
    };
    let answer = app.servers().wait_for_servers(request).await;
    answer.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn behaviour_101_waiting_has_the_bound_that_was_asked_for() {
    one_and_two(async |stage| {
        // Nobody is there: nothing is waited for.
        let nobody = stage.everyone(async |app, _| wait(&app, None, &[]).await.unwrap());
        for answer in within("the answers", nobody).await {
            assert!(answer.settled && answer.servers.is_empty());
        }
        let fake = FakeMcp::echo(true).await;
        fake.reply("*", |_| Reply::Hang);
        let request = v1::AddServerRequest {
            server_id: "slow".to_owned(),
            spec: Some(http_spec("slow", &fake.url())),
            wait_timeout: Some(millis(0)),
            ..Default::default()
        };
        let (server, _) = added(stage.app().add_with(request).await.unwrap());
        assert_eq!(server.state(), ConnectionState::Connecting, "{server:#?}");
        stage
            .everyone(async |app, _| {
                for timeout in [0, 50] {
                    let answer = wait(&app, Some(timeout), &[]).await.unwrap();
                    assert!(!answer.settled);
                    assert_eq!(answer.servers[0].state(), ConnectionState::Connecting);
                }
                let unknown = wait(&app, Some(0), &["nobody"]).await;
                let facts = ErrorFacts::expect(unknown, Code::NotFound, "SERVER_NOT_FOUND");
                assert!(facts.message.contains("nobody"), "{facts:?}");
            })
            .await;

        // The answer comes as soon as the server has settled.
        let healthy = FakeMcp::echo(true).await;
        stage.add("quick", http_spec("quick", &healthy.url())).await;
        let quick = stage.everyone(async |app, _| wait(&app, None, &["quick"]).await.unwrap());
        for answer in within("the answers", quick).await {
            assert!(answer.settled);
            assert_eq!(answer.servers[0].state(), ConnectionState::Ready);
        }

        // What takes the place of the work that is waited for is waited for too, and shown as it is then.
        let waiting = stage.everyone(async |app, _| wait(&app, None, &["slow"]).await.unwrap());
        let replace = async {
            let moved = http_spec("slow", &healthy.url());
            let changed = stage.other().update("slow", moved, &["http.url"]).await;
            changed.unwrap();
        };
        let both = Box::pin(async { tokio::join!(waiting, replace) });
        let (answers, ()) = within("the answers", both).await;
        for answer in answers {
            assert!(answer.settled);
            let server = &answer.servers[0];
            assert_eq!(server.state(), ConnectionState::Ready, "{server:#?}");
            let now = stage.other().get("slow").await.unwrap();
            assert_eq!(server.spec, now.spec);
            assert_eq!(server.etag, now.etag);
        }
    })
    .await;
}

#[tokio::test]
async fn a_failed_server_keeps_its_cause_and_is_retried_on_add() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(true).await;
    let addr = fake.addr();
    let url = fake.url();
    drop(fake);
    let spec = with_retry(http_spec("Fake", &url), 1, 3_600_000, 3_600_000);
    let (failed, _) = added(app.add("", spec.clone()).await.unwrap());
    assert_eq!(failed.state(), ConnectionState::Failed, "{failed:#?}");
    let (reason, message) = failed.failure();
    assert_eq!(reason, "UPSTREAM_UNREACHABLE");
    assert!(message.contains(&addr.to_string()), "{message}");
    assert!(failed.facts().next_retry_time.is_some());
    let call = app.call_tool(&failed.id, "echo", "{}").await;
    ErrorFacts::expect(call, Code::Unavailable, "UPSTREAM_UNREACHABLE");
    let issues = app
        .tools()
        .list_tools(v1::ListToolsRequest::default())
        .await
        .unwrap();
    assert_eq!(issues.into_inner().issues[0].reason, "UPSTREAM_UNREACHABLE");

    let _fake = revive(addr).await;
    let (ready, outcome) = added(app.add("", spec).await.unwrap());
    assert_eq!((&ready.id, outcome), (&failed.id, AddOutcome::Existing));
    assert_eq!(ready.state(), ConnectionState::Ready, "{ready:#?}");
    assert_eq!(ready.failure(), ("", ""));
    assert_eq!(ready.facts().failed_attempts, 0);
}

async fn revive(addr: SocketAddr) -> FakeMcp {
    FakeMcp::modern().at(addr).tool(tool("echo")).start().await
}

/// The next two attempts to connect fail, those behind them do not.
fn fail_twice(fake: &FakeMcp) {
    let attempts = std::sync::atomic::AtomicUsize::new(0);
    fake.reply("server/discover", move |_| {
        match attempts.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
            0 | 1 => Reply::Raw(503, Vec::new(), "busy".into()),
            _ => Reply::Default,
        }
    });
}

#[tokio::test]
async fn behaviour_99_quick_attempts_are_counted() {
    for (attempts, ready) in [(3, true), (2, false)] {
        one_and_two(async |mut stage| {
            let fake = FakeMcp::echo(true).await;
            let spec = with_retry(http_spec("Fake", &fake.url()), attempts, 1, 1);
            let mut token = String::new();
            for restored in [false, true] {
                fail_twice(&fake);
                let before = dials(&fake);
                let mut updates = stage.other().updates("").await;
                if restored {
                    // Everything since the end of the last round, however fast it was.
                    stage.restart().await;
                    updates = stage.other().updates(&token).await;
                    let dialled = |server: &Server| server.state() == ConnectionState::Connecting;
                    updates.server_where("a dial", dialled).await;
                } else {
                    stage.app().add("s", spec.clone()).await.unwrap();
                }
                let verdict = |server: &Server| {
                    matches!(
                        server.state(),
                        ConnectionState::Ready | ConnectionState::Failed
                    )
                };
                let server = updates.server_where("a verdict", verdict).await;
                if ready {
                    assert_eq!(server.state(), ConnectionState::Ready, "{server:#?}");
                } else {
                    assert_eq!(server.state(), ConnectionState::Failed, "{server:#?}");
                    assert_eq!(server.facts().failed_attempts, 2, "{server:#?}");
                    // Now the background goes on, more slowly.
                    let back = |server: &Server| server.state() == ConnectionState::Ready;
                    updates.server_where("the return", back).await;
                }
                assert_eq!(dials(&fake) - before, 3, "restored: {restored}");
                for app in &stage.apps {
                    app.call_tool("s", "echo", "{}").await.unwrap();
                }
                token = updates.token();
            }
        })
        .await;
    }
}

#[tokio::test]
async fn who_waits_for_a_connection_waits_as_long_as_the_settings_say_now() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        fake.reply("server/discover", |_| Reply::Hang);
        let mut spec = http_spec("S", &fake.url());
        spec.protocol_version = "2026-07-28".to_owned();
        spec.timeouts = Some(v1::ServerTimeouts {
            connect: Some(seconds(600)),
            ..Default::default()
        });
        let add = v1::AddServerRequest {
            server_id: "s".to_owned(),
            spec: Some(spec.clone()),
            wait_timeout: Some(seconds(0)),
            ..Default::default()
        };
        stage.app().add_with(add).await.unwrap();
        let calls = stage
            .apps
            .iter()
            .cloned()
            .map(|app| tokio::spawn(async move { app.call_tool("s", "echo", "{}").await }));
        let calls: Vec<_> = calls.collect();
        fake.wait_method("server/discover").await;
        spec.timeouts = Some(v1::ServerTimeouts {
            connect: Some(millis(300)),
            ..Default::default()
        });
        let update = v1::UpdateServerRequest {
            server_id: "s".to_owned(),
            spec: Some(spec),
            update_mask: Some(prost_types::FieldMask {
                paths: vec!["timeouts.connect".to_owned()],
            }),
            ..Default::default()
        };
        let servers = stage.other().servers();
        servers.clone().update_server(update).await.unwrap();
        for call in calls {
            let outcome = within("the end of the wait", call).await.unwrap();
            ErrorFacts::expect(outcome, Code::Unavailable, "UPSTREAM_UNREACHABLE");
        }
    })
    .await;
}

#[tokio::test]
async fn behaviour_33_a_lost_server_comes_back_by_itself() {
    let builder = TestDaemon::builder().set("reconnect.liveness_interval", "100ms");
    one_and_two_with(builder, async |stage| {
        let fake = FakeMcp::echo(false).await;
        let addr = fake.addr();
        let spec = with_retry(http_spec("Fake", &fake.url()), 2, 10, 20);
        let server = stage.add("s", spec).await;
        let mut streams = Vec::new();
        for app in &stage.apps {
            let mut updates = app.updates("").await;
            updates.snapshot().await;
            streams.push(updates);
        }
        drop(fake);
        for updates in &mut streams {
            let lost = |server: &Server| server.state() != ConnectionState::Ready;
            updates.server_where("the loss", lost).await;
        }
        let _fake = FakeMcp::legacy().at(addr).tool(tool("echo")).start().await;
        for updates in &mut streams {
            let back = |server: &Server| server.state() == ConnectionState::Ready;
            updates.server_where("the return", back).await;
        }
        let (id, calls) = (&server.id, &stage);
        calls
            .everyone(async |app, _| app.call_tool(id, "echo", "{}").await.unwrap())
            .await;
    })
    .await;
}

#[tokio::test]
async fn behaviour_100_retry_options_are_validated() {
    let cases = [
        ((0, 10, 10), "spec.retry.max_attempts", "0"),
        ((101, 10, 10), "spec.retry.max_attempts", "101"),
        ((3, 0, 10), "spec.retry.base_delay", "0"),
        ((3, 4_000_000, 4_000_000), "spec.retry.base_delay", ""),
        ((3, 100, 10), "spec.retry.max_delay", ""),
    ];
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        let spec = http_spec("Fake", &fake.url());
        let refused = stage.everyone(async |app, _| {
            for ((attempts, base, max), field, value) in cases {
                let spec = with_retry(spec.clone(), attempts, base, max);
                let outcome = app.add("", spec).await;
                let facts = ErrorFacts::expect(outcome, Code::InvalidArgument, "INVALID_FIELD");
                assert_eq!(facts.field, field, "{facts:?}");
                assert!(facts.message.contains(value), "{facts:?}");
            }
            assert!(app.list().await.is_empty());
        });
        refused.await;
        assert!(fake.seen().is_empty());

        // Nor can they be changed to such, by whatever app.
        let server = stage.add_http(&fake.url()).await;
        for ((attempts, base, max), field, _) in cases {
            let spec = with_retry(spec.clone(), attempts, base, max);
            let outcome = stage.other().update(&server.id, spec, &["retry"]).await;
            let facts = ErrorFacts::expect(outcome, Code::InvalidArgument, "INVALID_FIELD");
            assert_eq!(facts.field, field, "{facts:?}");
        }
        let still = stage.app().get(&server.id).await.unwrap();
        assert_eq!(still.spec, server.spec);
    })
    .await;
}

#[tokio::test]
async fn everything_comes_back_after_a_restart() {
    let mut daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let (http, dead) = (FakeMcp::echo(true).await, FakeMcp::echo(true).await);
    let dead_url = dead.url();
    drop(dead);
    let scripts = tempfile::tempdir().unwrap();
    let stdio = Script::healthy(false).spec("stdio", scripts.path()).await;
    app.add("http", http_spec("http", &http.url()))
        .await
        .unwrap();
    app.add("stdio", stdio).await.unwrap();
    let dead = with_retry(http_spec("dead", &dead_url), 1, 1, 1);
    app.add("dead", dead).await.unwrap();
    let other = daemon.clients_in("other").await;
    other
        .add("http", http_spec("http", &http.url()))
        .await
        .unwrap();

    daemon.restart().await;
    let app = daemon.clients().await;
    app.wait_for("http", ConnectionState::Ready).await;
    app.wait_for("stdio", ConnectionState::Ready).await;
    app.wait_for("dead", ConnectionState::Failed).await;
    for id in ["http", "stdio"] {
        app.call_tool(id, "echo", "{}").await.unwrap();
    }
    let other = daemon.clients_in("other").await;
    other.wait_for("http", ConnectionState::Ready).await;
    assert_eq!(other.list().await.len(), 1);
}

#[tokio::test]
async fn a_pinned_version_is_the_only_one_that_is_tried() {
    for (modern, version) in [(true, "2026-07-28"), (false, "2025-11-25")] {
        let daemon = TestDaemon::start().await;
        let app = daemon.clients().await;
        let fake = FakeMcp::echo(modern).await;
        let spec = ServerSpec {
            protocol_version: version.to_owned(),
            ..http_spec("Fake", &fake.url())
        };
        let server = app.add_ready(spec).await;
        assert_eq!(server.facts().protocol_version, version);
        let other = if modern {
            "initialize"
        } else {
            "server/discover"
        };
        assert!(fake.seen_of(other).is_empty());
    }
}

#[tokio::test]
async fn announced_changes_reach_the_catalog() {
    for modern in [true, false] {
        let daemon = TestDaemon::start().await;
        let app = daemon.clients().await;
        let fake = FakeMcp::echo(modern).await;
        app.add_http("Fake", &fake.url()).await;
        let mut updates = app.updates("").await;
        updates.snapshot().await;
        fake.set_list("tools", vec![tool("echo"), tool("fresh")]);
        fake.notify("notifications/tools/list_changed").await;
        updates
            .server_where("two tools", |server| server.tool_count() == 2)
            .await;
        let names: Vec<_> = app
            .list_tools()
            .await
            .into_iter()
            .map(|tool| tool.name)
            .collect();
        assert_eq!(names, ["echo", "fresh"]);
    }
}

#[tokio::test]
async fn b20_a_process_has_ended_before_the_next_one_starts() {
    one_and_two(async |stage| {
        let scripts = tempfile::tempdir().unwrap();
        let path = |name: &str| scripts.path().join(name).to_str().unwrap().to_owned();
        let script = Script {
            modern: false,
            // A second process at the same time finds the lock taken and fails.
            faults: vec![
                StdioFault::LockFile(path("lock")),
                StdioFault::Register(path("pids")),
            ],
        };
        let mut spec = script.spec("s", scripts.path()).await;
        stage.add("s", spec.clone()).await;
        for n in 0..4 {
            if let Some(v1::server_spec::Transport::Stdio(stdio)) = &mut spec.transport {
                stdio.env = vec![v1::EnvVar {
                    name: "N".to_owned(),
                    value: n.to_string(),
                }];
            }
            let app = &stage.apps[n % stage.apps.len()];
            let (again, outcome) = added(app.add("s", spec.clone()).await.unwrap());
            assert_eq!(outcome, AddOutcome::Updated);
            assert_eq!(again.state(), ConnectionState::Ready, "{again:#?}");
            stage.other().call_tool("s", "echo", "{}").await.unwrap();
        }
        let pids = std::fs::read_to_string(path("pids")).unwrap();
        assert_eq!(pids.lines().count(), 5, "one process per change");
    })
    .await;
}

#[tokio::test]
async fn b25_a_server_that_comes_late_needs_nobody() {
    let builder = TestDaemon::builder().set("reconnect.max_delay", "1s");
    one_and_two_with(builder, async |stage| {
        let early = FakeMcp::echo(true).await;
        let addr = early.addr();
        let url = early.url();
        early.stop().await;
        let spec = with_retry(http_spec("S", &url), 1, 10, 100);
        stage.app().add("s", spec).await.unwrap();
        let calls = stage.everyone(async |app, _| {
            let refused = app.call_tool("s", "echo", "{}").await;
            let facts = ErrorFacts::expect(refused, Code::Unavailable, "UPSTREAM_UNREACHABLE");
            assert!(facts.retry.is_some(), "{facts:?}");
        });
        calls.await;
        let _late = revive(addr).await;
        for app in &stage.apps {
            app.wait_for("s", ConnectionState::Ready).await;
            app.call_tool("s", "echo", "{}").await.unwrap();
        }
    })
    .await;
}
