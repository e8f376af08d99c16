//! Following what happens, across restarts and losses.

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::stream_updates_response::Event;
use mcp_sidecar_tests::v1::upsert::Resource;

pub(crate) async fn register(app: &Clients, id: &str) {
    let request = v1::AddServerRequest {
        server_id: id.to_owned(),
        spec: Some(http_spec(id, &format!("http://127.0.0.1:9/{id}"))),
        register_only: true,
        ..Default::default()
    };
    app.add_with(request).await.unwrap();
}

pub(crate) async fn rename(app: &Clients, id: &str, name: String) {
    let request = v1::UpdateServerRequest {
        namespace: app.namespace(),
        server_id: id.to_owned(),
        spec: Some(http_spec(&name, "")),
        update_mask: Some(prost_types::FieldMask {
            paths: vec!["name".to_owned()],
        }),
        etag: String::new(),
    };
    app.servers().update_server(request).await.unwrap();
}

fn ids(held: &[Resource]) -> Vec<String> {
    let ids = held.iter().filter_map(|resource| match resource {
        Resource::Server(server) => Some(server.id.clone()),
        Resource::Elicitation(_) | Resource::SamplingRequest(_) | Resource::Call(_) => None,
    });
    ids.collect()
}

/// Reads on to the server with this id and returns the ids of all others on the way.
pub(crate) async fn until(updates: &mut Updates, id: &str) -> Vec<String> {
    let mut before = Vec::new();
    updates
        .find(&format!("`{id}`"), |response| match &response.event {
            Some(Event::Upsert(v1::Upsert {
                resource: Some(Resource::Server(server)),
            })) => {
                if server.id == id {
                    return Some(());
                }
                before.push(server.id.clone());
                None
            }
            Some(Event::Delete(gone)) => {
                before.push(format!("-{}", gone.id));
                None
            }
            _ => None,
        })
        .await;
    before
}

fn expired(outcome: Result<(), tonic::Status>) {
    ErrorFacts::expect(outcome, Code::OutOfRange, "RESUME_TOKEN_EXPIRED");
}

/// Opens a stream that is expected to be refused, at once or with its first message.
async fn refused(app: &Clients, token: &str) -> Result<(), tonic::Status> {
    app.try_updates(token).await?.try_next().await.map(|_| ())
}

#[tokio::test]
async fn a_stream_starts_with_everything_and_goes_on_with_changes() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    register(&app, "a").await;
    register(&app, "b").await;
    let mut updates = app.updates("").await;
    assert_eq!(ids(&updates.snapshot().await), ["a", "b"]);

    let mut last = 0;
    for id in ["c", "d"] {
        register(&app, id).await;
        let response = updates.next().await;
        assert!(response.revision > last, "revisions grow");
        assert!(response.commit_time.is_some());
        assert_ne!(response.resume_token, "");
        last = response.revision;
        let Some(Event::Upsert(v1::Upsert {
            resource: Some(Resource::Server(server)),
        })) = response.event
        else {
            panic!("unexpected: {response:?}");
        };
        assert_eq!(server.id, id);
    }
    app.remove("a").await.unwrap();
    let gone = updates.deleted("a").await;
    assert_eq!(
        (gone.kind(), gone.namespace.as_str()),
        (v1::UpdateKind::Server, "default")
    );
}

#[tokio::test]
async fn an_empty_snapshot_ends_too() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let mut updates = app.updates("").await;
    assert!(updates.snapshot().await.is_empty());
    register(&app, "first").await;
    assert!(until(&mut updates, "first").await.is_empty());
}

#[tokio::test]
async fn an_idle_stream_shows_that_it_lives() {
    let daemon = TestDaemon::builder()
        .set("updates.bookmark_interval", "100ms")
        .start()
        .await;
    let app = daemon.clients().await;
    let mut updates = app.updates("").await;
    updates.snapshot().await;
    let bookmark = updates.next().await;
    assert!(
        matches!(bookmark.event, Some(Event::Bookmark(_))),
        "{bookmark:?}"
    );
    register(&app, "a").await;
    let mut resumed = app.updates(&bookmark.resume_token).await;
    assert!(until(&mut resumed, "a").await.is_empty());
}

#[tokio::test]
async fn a_stream_resumes_where_it_was_also_after_a_restart() {
    for kill in [false, true] {
        let mut daemon = TestDaemon::start().await;
        let app = daemon.clients().await;
        register(&app, "a").await;
        let mut updates = app.updates("").await;
        updates.snapshot().await;
        register(&app, "b").await;
        until(&mut updates, "b").await;
        let token = updates.token();
        register(&app, "c").await;
        app.remove("a").await.unwrap();
        register(&app, "d").await;

        let mut resumed = app.updates(&token).await;
        assert_eq!(until(&mut resumed, "d").await, ["c", "-a"]);
        if kill {
            daemon.kill9().await;
        }
        daemon.restart().await;
        let app = daemon.clients().await;
        let mut resumed = app.updates(&token).await;
        assert_eq!(until(&mut resumed, "d").await, ["c", "-a"]);
        register(&app, "e").await;
        until(&mut resumed, "e").await;
    }
}

#[tokio::test]
async fn a_token_that_is_too_old_foreign_or_nonsense_is_refused() {
    let mut daemon = TestDaemon::builder()
        .set("updates.keep_count", 1000_u32)
        .start()
        .await;
    let app = daemon.clients().await;
    let mut updates = app.updates("").await;
    updates.snapshot().await;
    register(&app, "old").await;
    until(&mut updates, "old").await;
    let token = updates.token();
    for round in 0..25 {
        let renames = (0..100).map(|n| rename(&app, "old", format!("name {round}-{n}")));
        futures_util::future::join_all(renames).await;
    }
    // A running daemon may remember more than it keeps.
    daemon.restart().await;
    let app = daemon.clients().await;
    expired(refused(&app, &token).await);
    let mut updates = app.updates("").await;
    updates.snapshot().await;
    let recent = updates.token();
    register(&app, "new").await;
    until(&mut app.updates(&recent).await, "new").await;

    let other = TestDaemon::start().await;
    expired(refused(&other.clients().await, &recent).await);
    for nonsense in ["nonsense", "0", "\u{0}", "AAAAAAAA", &"x".repeat(10_000)] {
        let facts = ErrorFacts::of(&refused(&app, nonsense).await.unwrap_err());
        let known = [
            (Code::OutOfRange, "RESUME_TOKEN_EXPIRED"),
            (Code::InvalidArgument, "INVALID_FIELD"),
        ];
        assert!(
            known.contains(&(facts.code, facts.reason.as_str())),
            "{facts:?}"
        );
    }
}

#[tokio::test]
async fn filters_hold_for_the_snapshot_and_for_changes() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let other = daemon.clients_in("other").await;
    register(&app, "a").await;
    register(&app, "b").await;
    register(&other, "a").await;
    register(&other, "x").await;
    let open = async |namespaces: &[&str], server_ids: &[&str], kinds: &[v1::UpdateKind]| {
        let strings = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
        let request = v1::StreamUpdatesRequest {
            namespaces: strings(namespaces),
            server_ids: strings(server_ids),
            kinds: kinds.iter().map(|&kind| kind.into()).collect(),
            resume_token: String::new(),
            ..Default::default()
        };
        app.updates_with(request).await.unwrap()
    };
    let mut default = open(&[], &[], &[]).await;
    assert_eq!(ids(&default.snapshot().await), ["a", "b"]);
    let mut all = open(&["*"], &[], &[]).await;
    assert_eq!(ids(&all.snapshot().await).len(), 4);
    let mut only_a = open(&["*"], &["a"], &[v1::UpdateKind::Server]).await;
    assert_eq!(ids(&only_a.snapshot().await), ["a", "a"]);
    let mut questions = open(&["*"], &[], &[v1::UpdateKind::Elicitation]).await;
    assert!(questions.snapshot().await.is_empty());

    register(&other, "y").await;
    register(&app, "c").await;
    assert!(until(&mut default, "c").await.is_empty());
    assert_eq!(until(&mut all, "c").await, ["y"]);
    app.remove("b").await.unwrap();
    other.remove("a").await.unwrap();
    let gone = only_a.next().await;
    assert!(
        matches!(&gone.event, Some(Event::Delete(gone)) if gone.namespace == "other"),
        "{gone:?}"
    );
}

#[tokio::test]
async fn b37_a_reader_that_stops_reading_delays_nobody() {
    one_and_two_at_once(TestDaemon::builder(), async |stage| {
        // With one app attached it has two streams, of which it reads one.
        let mut stopped = stage.other().updates("").await;
        stopped.snapshot().await;
        let mut reader = stage.app().updates("").await;
        reader.snapshot().await;
        // Far more than the flow control windows of the stopped stream hold.
        let text = "x".repeat(100);
        for n in 0..1000 {
            register(stage.app(), &format!("s{n}-{text}")[..64]).await;
        }
        let last = stage.other().list().await.len();
        assert_eq!(last, 1000);
        register(stage.app(), "last").await;
        assert_eq!(until(&mut reader, "last").await.len(), 1000);
        // It has missed nothing either.
        assert_eq!(until(&mut stopped, "last").await.len(), 1000);
    })
    .await;
}

#[tokio::test]
async fn a_server_tells_every_step_of_its_connection() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let mut updates = app.updates("").await;
    updates.snapshot().await;
    let fake = FakeMcp::echo(true).await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    let mut states = Vec::new();
    updates
        .server_where("READY", |server| server.state() == ConnectionState::Ready)
        .await;
    let mut again = app.updates("").await;
    again.snapshot().await;
    app.remove("s").await.unwrap();
    again
        .find("the deletion", |response| match &response.event {
            Some(Event::Upsert(v1::Upsert {
                resource: Some(Resource::Server(server)),
            })) => {
                states.push(server.state());
                None
            }
            Some(Event::Delete(gone)) => Some(gone.id.clone()),
            _ => None,
        })
        .await;
    assert!(!states.contains(&ConnectionState::Ready), "{states:?}");
}
