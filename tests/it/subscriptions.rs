//! Resources that apps follow: counted over apps, in both eras, over lost connections.

use mcp_sidecar_tests::peers::catalogue;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::subscribe_resource_response::Event;
use tonic::{Status, Streaming};

type Events = Streaming<v1::SubscribeResourceResponse>;

const URI: &str = "note://1";

async fn follow(app: &Clients, server: &str) -> Result<Events, Status> {
    let request = v1::SubscribeResourceRequest {
        namespace: app.namespace(),
        server_id: server.to_owned(),
        uri: URI.to_owned(),
    };
    let response = app.resources().subscribe_resource(request).await?;
    Ok(response.into_inner())
}

async fn next(events: &mut Events) -> Event {
    let event = within("an event of the resource", events.message()).await;
    event.unwrap().unwrap().event.unwrap()
}

async fn subscribed(app: &Clients, server: &str) -> Events {
    let mut events = follow(app, server).await.unwrap();
    assert!(matches!(next(&mut events).await, Event::Subscribed(_)));
    events
}

async fn updated(events: &mut Events) {
    assert!(matches!(next(events).await, Event::Updated(updated) if updated.uri == URI));
}

/// A legacy server that lets its clients subscribe.
async fn fake() -> FakeMcp {
    let fake = FakeMcp::legacy()
        .entry("resources", json!({"uri": URI, "name": "note"}))
        .start()
        .await;
    fake.reply("initialize", |_| {
        Reply::Json(json!({
            "protocolVersion": "2025-11-25",
            "capabilities": {"resources": {"subscribe": true}},
            "serverInfo": {"name": "fake", "version": "1"},
        }))
    });
    for method in ["resources/subscribe", "resources/unsubscribe"] {
        fake.reply(method, |_| Reply::Json(json!({})));
    }
    fake
}

fn update() -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": URI}})
}

#[tokio::test]
async fn the_server_is_asked_once_for_all_apps() {
    let daemon = TestDaemon::start().await;
    let (one, two) = (daemon.clients().await, daemon.clients().await);
    let fake = fake().await;
    let id = one.add_http("Notes", &fake.url()).await.id;
    let mut first = subscribed(&one, &id).await;
    let mut second = subscribed(&two, &id).await;
    assert_eq!(fake.seen_of("resources/subscribe").len(), 1);

    fake.push(update()).await;
    updated(&mut first).await;
    updated(&mut second).await;

    drop(first);
    fake.push(update()).await;
    updated(&mut second).await;
    assert!(fake.seen_of("resources/unsubscribe").is_empty());
    drop(second);
    let last = fake.wait_method("resources/unsubscribe").await;
    assert_eq!(last.params()["uri"], URI);
}

#[tokio::test]
async fn a_real_server_tells_of_updates() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let server = app
        .add_ready(catalogue::py2_stdio().await.spec("py2"))
        .await;
    let mut events = subscribed(&app, &server.id).await;
    app.call_tool(&server.id, "bump", "{}").await.unwrap();
    updated(&mut events).await;
}

#[tokio::test]
async fn a_follower_hears_of_a_gap_and_of_the_end() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = fake().await;
    let id = app.add_http("Notes", &fake.url()).await.id;
    let mut events = subscribed(&app, &id).await;
    let named =
        |server_id: &str| v1::disconnect_server_request::Target::ServerId(server_id.to_owned());
    let request = v1::DisconnectServerRequest {
        namespace: app.namespace(),
        target: Some(named(&id)),
    };
    app.servers().disconnect_server(request).await.unwrap();
    let request = v1::ConnectServerRequest {
        namespace: app.namespace(),
        server_id: id.clone(),
        wait_timeout: None,
    };
    app.servers().connect_server(request).await.unwrap();
    // Nobody listened meanwhile: it may have changed.
    updated(&mut events).await;

    app.remove(&id).await.unwrap();
    let end = within("the end of the stream", events.message()).await;
    ErrorFacts::expect(end, Code::NotFound, "SERVER_NOT_FOUND");
}

#[tokio::test]
async fn a_server_that_announces_nothing_says_so() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(false).await;
    let id = app.add_http("Echo", &fake.url()).await.id;
    let outcome = follow(&app, &id).await;
    ErrorFacts::expect(outcome, Code::Unimplemented, "NOT_SUPPORTED");
}

#[tokio::test]
async fn b13_a_new_session_renews_what_is_followed() {
    one_and_two(async |stage| {
        let fake = fake().await;
        fake.set_list("tools", vec![tool("echo")]);
        stage.add_http(&fake.url()).await;
        let mut all = Vec::new();
        for app in &stage.apps {
            all.push(subscribed(app, "s").await);
        }
        let old = fake.wait_method("resources/subscribe").await;
        fake.end_sessions();
        let found = stage.other().read("s", URI).await;
        ErrorFacts::expect(found, Code::Unimplemented, "UPSTREAM_ERROR");
        let renewed = fake
            .wait("the renewal under the new session", |seen| {
                seen.method() == "resources/subscribe"
                    && seen.header("mcp-session-id") != old.header("mcp-session-id")
            })
            .await;
        assert!(fake.sessions().contains(renewed.header("mcp-session-id")));
        fake.push(update()).await;
        for events in &mut all {
            while !matches!(next(events).await, Event::Updated(updated) if updated.uri == URI) {}
        }
        assert_eq!(fake.seen_of("initialize").len(), 2);
    })
    .await;
}
