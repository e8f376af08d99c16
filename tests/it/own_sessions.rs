//! Registrations that keep the sessions of apps apart: what one app leaves with the server, another does not find.

use std::collections::HashMap;
use std::sync::Mutex;

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::{children, not_tested};
use mcp_sidecar_tests::stranger::OpenHouse;
use mcp_sidecar_tests::v1::Isolation;
use tokio_util::sync::CancellationToken;

/// A legacy server whose tool counts its calls per session.
async fn counter() -> FakeMcp {
    let fake = FakeMcp::legacy().tool(tool("count")).start().await;
    let counts = Mutex::new(HashMap::<String, u32>::new());
    fake.reply("tools/call", move |seen| {
        let mut counts = counts.lock().unwrap();
        let count = counts
            .entry(seen.header("mcp-session-id").to_owned())
            .or_default();
        *count += 1;
        Reply::Json(json!({"content": [{"type": "text", "text": count.to_string()}]}))
    });
    fake
}

fn isolated(mut spec: ServerSpec, isolation: Isolation) -> ServerSpec {
    spec.isolation = isolation.into();
    spec
}

/// Such a server, where every connection of an app has a session of its own.
async fn added(app: &Clients) -> FakeMcp {
    let fake = counter().await;
    let spec = isolated(http_spec("S", &fake.url()), Isolation::PerConnection);
    app.add("s", spec).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    fake
}

async fn count(app: &Clients) -> String {
    text_of(&app.call_tool("s", "count", "{}").await.unwrap())
}

async fn no_sessions_but(fake: &FakeMcp, left: usize) {
    eventually("the end of the other sessions", PATIENCE, async || {
        (fake.sessions().len() == left).then_some(())
    })
    .await;
}

#[tokio::test]
async fn b38_apps_share_a_session_or_have_their_own() {
    for (isolation, alone, together) in [
        (Isolation::Unspecified, ["1", "2"], ["1", "2", "3", "4"]),
        (Isolation::Shared, ["1", "2"], ["1", "2", "3", "4"]),
        // All are processes of one user.
        (Isolation::PerUser, ["1", "2"], ["1", "2", "3", "4"]),
        (Isolation::PerConnection, ["1", "2"], ["1", "1", "2", "2"]),
    ] {
        one_and_two(async |stage| {
            let fake = counter().await;
            let spec = isolated(http_spec("S", &fake.url()), isolation);
            stage.add("s", spec).await;
            let mut seen = Vec::new();
            for _ in 0..2 {
                for app in &stage.apps {
                    seen.push(count(app).await);
                }
            }
            let counts = match stage.apps.len() {
                1 => &alone[..],
                _ => &together[..],
            };
            assert_eq!(seen, counts, "{isolation:?}");
            stage.other().remove("s").await.unwrap();
            // Every session was ended at the server.
            no_sessions_but(&fake, 0).await;
        })
        .await;
    }
}

#[tokio::test]
async fn b38_users_have_sessions_of_their_own() {
    if !rustix::process::geteuid().is_root() {
        return not_tested("sessions per user, because only root can be another one");
    }
    // The other user has one app attached, or two.
    for attached in 1..=2 {
        let house = OpenHouse::start(TestDaemon::builder()).await;
        let app = house.daemon.clients().await;
        let fake = counter().await;
        let spec = isolated(http_spec("S", &fake.url()), Isolation::PerUser);
        app.add("s", spec).await.unwrap();
        app.wait_for("s", ConnectionState::Ready).await;
        let mut others = Vec::new();
        for _ in 0..attached {
            others.push(house.stranger().await);
        }
        assert_eq!(count(&app).await, "1");
        for (before, other) in others.iter().enumerate() {
            assert_eq!(count(other).await, (before + 1).to_string());
        }
        // An app of that user goes on where the first one was, also when that has gone.
        others.push(house.stranger().await);
        others.remove(0);
        let last = others.last().unwrap();
        assert_eq!(count(last).await, (attached + 1).to_string());
        assert_eq!(count(&app).await, "2");
    }
}

#[tokio::test]
async fn an_own_session_ends_with_the_connection_of_its_app() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = added(&app).await;
    assert_eq!(fake.sessions().len(), 1);
    let guest = daemon.clients().await;
    assert_eq!(
        (count(&guest).await, count(&guest).await),
        ("1".to_owned(), "2".to_owned())
    );
    assert_eq!(count(&app).await, "1");
    assert_eq!(fake.sessions().len(), 3);
    drop(guest);
    no_sessions_but(&fake, 2).await;
    assert_eq!(count(&app).await, "2");
    assert_eq!(count(&daemon.clients().await).await, "1");
}

#[tokio::test]
async fn many_first_calls_of_an_app_open_one_session() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = added(&app).await;
    let calls = (0..20).map(|_| count(&app));
    let mut counts = futures_util::future::join_all(calls).await;
    counts.sort_by_key(|count| count.parse::<u32>().unwrap());
    assert_eq!(
        counts,
        (1..=20).map(|count| count.to_string()).collect::<Vec<_>>()
    );
    assert_eq!(fake.sessions().len(), 2);
}

#[tokio::test]
async fn an_own_session_that_is_lost_is_replaced() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = added(&app).await;
    assert_eq!(count(&app).await, "1");
    fake.end_sessions();
    // The call that was refused for it is made again in a new one.
    assert_eq!(count(&app).await, "1");
    assert_eq!(count(&app).await, "2");
}

#[tokio::test]
async fn own_sessions_have_a_limit_and_do_not_stay_for_ever() {
    let daemon = TestDaemon::builder()
        .set("limits.sessions_per_server", 1)
        .set("timeouts.session_idle", "1s")
        .start()
        .await;
    let (app, other) = (daemon.clients().await, daemon.clients().await);
    let fake = added(&app).await;
    assert_eq!(count(&app).await, "1");
    let refused = other.call_tool("s", "count", "{}").await;
    let facts = ErrorFacts::expect(refused, Code::ResourceExhausted, "TOO_MANY");
    assert!(
        facts.message.contains("limits.sessions_per_server"),
        "{facts:?}"
    );
    // Nobody uses it any more: it makes room.
    no_sessions_but(&fake, 1).await;
    assert_eq!(count(&other).await, "1");
}

#[tokio::test]
async fn a_process_of_its_own_ends_with_its_app() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let scripts = tempfile::tempdir().unwrap();
    let spec = Script::healthy(true).spec("stdio", scripts.path()).await;
    app.add("s", isolated(spec, Isolation::PerConnection))
        .await
        .unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let before = children(daemon.pid(), false).len();
    let guest = daemon.clients().await;
    guest.call_tool("s", "echo", "{}").await.unwrap();
    assert_eq!(children(daemon.pid(), false).len(), before + 1);
    drop(guest);
    eventually("the end of the process", PATIENCE, async || {
        (children(daemon.pid(), false).len() == before).then_some(())
    })
    .await;
    app.call_tool("s", "echo", "{}").await.unwrap();
    app.remove("s").await.unwrap();
    assert!(children(daemon.pid(), false).len() < before);
}

#[tokio::test]
async fn a_server_that_is_only_there_once_is_not_started_for_every_call() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let scripts = tempfile::tempdir().unwrap();
    let at = |name: &str| scripts.path().join(name).to_str().unwrap().to_owned();
    let script = Script {
        modern: true,
        faults: vec![
            StdioFault::Register(at("starts")),
            StdioFault::LockFile(at("lock")),
        ],
    };
    let spec = script.spec("stdio", scripts.path()).await;
    app.add("s", isolated(spec, Isolation::PerConnection))
        .await
        .unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let starts = || {
        let starts = std::fs::read_to_string(at("starts")).unwrap();
        starts.lines().count()
    };
    let before = starts();
    for _ in 0..20 {
        let app = daemon.clients().await;
        let outcome = app.call_tool("s", "echo", "{}").await;
        let facts = ErrorFacts::expect(outcome, Code::Unavailable, "UPSTREAM_UNREACHABLE");
        assert!(facts.message.contains("exit"), "{facts:?}");
    }
    // Two for the first attempt, see `open`, and the next ones after some seconds.
    assert!(starts() - before <= 4, "{} starts", starts() - before);
    app.remove("s").await.unwrap();
}

#[tokio::test]
async fn a_session_that_could_not_be_opened_is_opened_later() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = counter().await;
    let mut spec = isolated(http_spec("S", &fake.url()), Isolation::PerConnection);
    spec.retry = Some(v1::RetryPolicy {
        max_attempts: Some(10),
        base_delay: Some(millis(200)),
        max_delay: Some(millis(200)),
    });
    app.add("s", spec).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    fake.reply("initialize", |_| {
        Reply::Error(-32000, "not now", Value::Null)
    });
    app.call_tool("s", "count", "{}").await.unwrap_err();
    fake.reset("initialize");
    eventually("the session", PATIENCE, async || {
        app.call_tool("s", "count", "{}").await.ok()
    })
    .await;
}

#[tokio::test]
async fn a_session_that_does_not_open_holds_up_nobody_for_long() {
    let daemon = TestDaemon::builder()
        .set("timeouts.connect", "1s")
        .set("timeouts.probe", "500ms")
        .set("limits.sessions_per_server", 1)
        .start()
        .await;
    let app = daemon.clients().await;
    let fake = counter().await;
    let mut spec = isolated(http_spec("S", &fake.url()), Isolation::PerConnection);
    spec.retry = Some(v1::RetryPolicy {
        max_attempts: Some(10),
        base_delay: Some(millis(100)),
        max_delay: Some(millis(100)),
    });
    app.add("s", spec.clone()).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    fake.reply("initialize", |_| Reply::Hang);
    let calls = (0..10).map(|_| app.call_tool("s", "count", "{}"));
    let outcomes = within("the calls", futures_util::future::join_all(calls)).await;
    for outcome in outcomes {
        let facts = ErrorFacts::of(&outcome.unwrap_err());
        assert_ne!(facts.reason, "INTERNAL", "{facts:?}");
    }
    // An app that goes away while its session is opened leaves its place to others.
    let guest = daemon.clients().await;
    let dials = fake.seen_of("initialize").len();
    let call = {
        let guest = guest.clone();
        tokio::spawn(async move { while guest.call_tool("s", "count", "{}").await.is_err() {} })
    };
    eventually("the dial", PATIENCE, async || {
        (fake.seen_of("initialize").len() > dials).then_some(())
    })
    .await;
    call.abort();
    drop(guest);
    fake.reset("initialize");
    eventually("a session", PATIENCE, async || {
        app.call_tool("s", "count", "{}").await.ok()
    })
    .await;
    // And a server that is removed meanwhile is gone at once.
    fake.reply("initialize", |_| Reply::Hang);
    let other = daemon.clients().await;
    app.update("s", isolated(spec, Isolation::PerUser), &["isolation"])
        .await
        .unwrap_or_else(|status| panic!("{status:?}"));
    let call = tokio::spawn(async move { other.call_tool("s", "count", "{}").await });
    within("the removal", app.remove("s")).await.unwrap();
    within("the call", call).await.unwrap().unwrap_err();
}

#[tokio::test]
async fn a_server_that_is_renamed_while_it_is_dialled_asks_under_its_new_name() {
    for isolation in [Isolation::Shared, Isolation::PerConnection] {
        let fake = FakeMcp::modern().tool(tool("ask")).start().await;
        fake.reply("tools/call", |seen| {
            let answered = seen.params().get("inputResponses").is_some();
            Reply::Json(if answered {
                json!({"resultType": "complete", "content": []})
            } else {
                let ask = crate::tasks::question("name");
                json!({"resultType": "input_required", "inputRequests": {"q": ask}})
            })
        });
        let hold = CancellationToken::new();
        let held = |hold: &CancellationToken| {
            let hold = hold.clone();
            fake.on("server/discover", move |_| {
                let hold = hold.clone();
                async move {
                    hold.cancelled().await;
                    Reply::Default
                }
            });
        };
        let daemon = TestDaemon::start().await;
        let app = daemon.clients().await;
        let mut updates = app.updates("").await;
        updates.snapshot().await;
        let spec = isolated(
            crate::questions::with_forms(http_spec("S", &fake.url())),
            isolation,
        );
        let shared = isolation == Isolation::Shared;
        if shared {
            held(&hold);
        }
        let added = app.add("", spec.clone()).await.unwrap();
        let old = added.server.unwrap().id;
        let begin = |id: &str| {
            let (app, id) = (app.clone(), id.to_owned());
            tokio::spawn(async move { app.call_tool(&id, "ask", "{}").await })
        };
        let early = if shared {
            None
        } else {
            app.wait_for(&old, ConnectionState::Ready).await;
            held(&hold);
            Some(begin(&old))
        };
        let dials = if shared { 1 } else { 2 };
        eventually("the dial", PATIENCE, async || {
            (fake.seen_of("server/discover").len() >= dials).then_some(())
        })
        .await;
        let renamed = app.add("new", spec).await.unwrap();
        assert_eq!(renamed.outcome(), AddOutcome::Migrated);
        hold.cancel();
        app.wait_for("new", ConnectionState::Ready).await;
        let call = early.unwrap_or_else(|| begin("new"));
        let question = updates.pending().await;
        assert_eq!(question.server_id, "new", "{isolation:?}");
        app.accept(&question.id, r#"{"name":"Ada"}"#).await.unwrap();
        within("the call", call).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn isolation_is_a_setting_like_others() {
    let mut daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = counter().await;
    let added = app.add("s", http_spec("S", &fake.url())).await.unwrap();
    let spec = added.server.unwrap().spec.unwrap();
    assert_eq!(spec.isolation(), Isolation::Shared);
    app.wait_for("s", ConnectionState::Ready).await;
    let wanted = isolated(spec.clone(), Isolation::PerConnection);
    let updated = app
        .servers()
        .update_server(v1::UpdateServerRequest {
            server_id: "s".to_owned(),
            spec: Some(wanted),
            update_mask: Some(prost_types::FieldMask {
                paths: vec!["isolation".to_owned()],
            }),
            ..Default::default()
        })
        .await
        .unwrap();
    let server = updated.into_inner().server.unwrap();
    assert_eq!(server.spec.unwrap().isolation(), Isolation::PerConnection);
    daemon.restart().await;
    let (one, two) = (daemon.clients().await, daemon.clients().await);
    one.wait_for("s", ConnectionState::Ready).await;
    assert_eq!(
        (count(&one).await, count(&two).await),
        ("1".to_owned(), "1".to_owned())
    );
    let mut odd = spec;
    (odd.name, odd.isolation) = ("Odd".to_owned(), 99);
    let facts = ErrorFacts::expect(
        one.add("", odd).await,
        Code::InvalidArgument,
        "INVALID_FIELD",
    );
    assert_eq!(facts.field, "spec.isolation");
}
