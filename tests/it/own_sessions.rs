//! Registrations that keep the sessions of apps apart: what one app leaves with the server, another does not find.

use std::collections::HashMap;
use std::sync::Mutex;

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::{children, not_tested};
use mcp_sidecar_tests::stranger::OpenHouse;
use mcp_sidecar_tests::v1::Isolation;

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
    let fake = counter().await;
    let spec = isolated(http_spec("S", &fake.url()), Isolation::PerConnection);
    app.add("s", spec).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
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
    let fake = counter().await;
    let spec = isolated(http_spec("S", &fake.url()), Isolation::PerConnection);
    app.add("s", spec).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
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
    let fake = counter().await;
    let spec = isolated(http_spec("S", &fake.url()), Isolation::PerConnection);
    app.add("s", spec).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
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
    let fake = counter().await;
    let spec = isolated(http_spec("S", &fake.url()), Isolation::PerConnection);
    app.add("s", spec).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
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
