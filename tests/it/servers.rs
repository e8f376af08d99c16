//! Registering servers: identity, settings, namespaces.

use mcp_sidecar_tests::prelude::*;

fn with_headers(mut spec: ServerSpec, headers: &[(&str, &str)]) -> ServerSpec {
    if let Some(v1::server_spec::Transport::Http(http)) = &mut spec.transport {
        http.headers = headers
            .iter()
            .map(|&(name, value)| v1::Header {
                name: name.to_owned(),
                value: value.to_owned(),
            })
            .collect();
    }
    spec
}

fn url_of(server: &Server) -> String {
    match server.spec.as_ref().and_then(|spec| spec.transport.clone()) {
        Some(v1::server_spec::Transport::Http(http)) => http.url,
        other => panic!("not a server at a URL: {other:?}"),
    }
}

fn added(answer: v1::AddServerResponse) -> (Server, AddOutcome) {
    let outcome = answer.outcome();
    (
        answer.server.expect("AddServer returns the server"),
        outcome,
    )
}

#[tokio::test]
async fn an_added_server_is_ready_and_complete() {
    for modern in [true, false] {
        let daemon = TestDaemon::start().await;
        let app = daemon.clients().await;
        let fake = FakeMcp::echo(modern).await;
        let (server, outcome) = added(app.add("", http_spec("Fake", &fake.url())).await.unwrap());
        assert_eq!(outcome, AddOutcome::Created);
        assert_eq!(server.state(), ConnectionState::Ready, "{server:#?}");
        assert_eq!(server.namespace, "default");
        assert_eq!(url_of(&server), fake.url());
        assert_eq!(server.tool_count(), 1);
        assert_eq!(server.failure(), ("", ""));
        let status = server.facts();
        assert_eq!(status.instructions, "a fake");
        assert_eq!(status.server_info.as_ref().unwrap().name, "fake");
        assert!(!server.etag.is_empty());
        assert!(server.create_time.is_some() && server.update_time.is_some());
        assert_eq!(app.get(&server.id).await.unwrap().spec, server.spec);
        assert_eq!(app.list().await.len(), 1);
        // The other era was tried at most once on the way.
        let (first, other) = if modern {
            ("server/discover", "initialize")
        } else {
            ("initialize", "server/discover")
        };
        assert_eq!(fake.seen_of(first).len(), 1);
        assert!(fake.seen_of(other).len() <= usize::from(!modern));
    }
}

#[tokio::test]
async fn adding_twice_changes_nothing() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(true).await;
    let first = app.add_http("Fake", &fake.url()).await;
    let requests = fake.seen_of("server/discover").len();
    let shouted = fake.url().replace("http:", "HTTP:");
    for url in [fake.url(), shouted] {
        let (again, outcome) = added(app.add("", http_spec("Fake", &url)).await.unwrap());
        assert_eq!(outcome, AddOutcome::Existing, "{url}");
        assert_eq!((&again.id, &again.etag), (&first.id, &first.etag));
    }
    assert_eq!(fake.seen_of("server/discover").len(), requests);
    assert_eq!(app.list().await.len(), 1);
}

#[tokio::test]
async fn another_name_or_another_url_is_another_server() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let (one, two) = (FakeMcp::echo(true).await, FakeMcp::echo(true).await);
    let mut ids = vec![
        app.add_http("A", &one.url()).await.id,
        app.add_http("A", &two.url()).await.id,
        app.add_http("B", &one.url()).await.id,
    ];
    ids.sort();
    ids.dedup();
    let listed: Vec<_> = app
        .list()
        .await
        .into_iter()
        .map(|server| server.id)
        .collect();
    assert_eq!(listed, ids, "three servers in order of their ids");
}

#[tokio::test]
async fn urls_are_stored_normalised() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let register = async |url: &str| {
        let request = v1::AddServerRequest {
            spec: Some(http_spec("N", url)),
            register_only: true,
            ..Default::default()
        };
        url_of(&added(app.add_with(request).await.unwrap()).0)
    };
    assert_eq!(
        register("HTTPS://EXAMPLE.com:443").await,
        "https://example.com/"
    );
    assert_eq!(
        register("https://example.com/a/../B?x=1").await,
        "https://example.com/B?x=1"
    );
    assert_eq!(
        register("https://example.com/b/").await,
        "https://example.com/b/"
    );
    assert_eq!(
        register("https://bücher.example").await,
        "https://xn--bcher-kva.example/"
    );
    assert_eq!(
        register("https://example.com").await,
        "https://example.com/"
    );
    assert_eq!(app.list().await.len(), 4);
}

#[tokio::test]
async fn given_ids_are_normalised_and_belong_to_one_server() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let (one, two) = (FakeMcp::echo(true).await, FakeMcp::echo(true).await);
    let (server, _) = added(
        app.add("GitHub MCP!", http_spec("A", &one.url()))
            .await
            .unwrap(),
    );
    assert_eq!(server.id, "github-mcp");
    let (again, outcome) = added(
        app.add("github-mcp", http_spec("A", &one.url()))
            .await
            .unwrap(),
    );
    assert_eq!(
        (again.id.as_str(), outcome),
        ("github-mcp", AddOutcome::Existing)
    );

    let taken = app.add("github mcp", http_spec("B", &two.url())).await;
    let facts = ErrorFacts::expect(taken, Code::AlreadyExists, "SERVER_ID_TAKEN");
    let message = &facts.message;
    for part in ["github-mcp", &one.url(), &two.url()] {
        assert!(message.contains(part), "`{part}` is missing in: {message}");
    }
    assert_eq!(app.list().await.len(), 1);
    assert!(two.seen().is_empty(), "a refused server is not dialled");

    // Ids with nothing usable are kept apart.
    let (bang, _) = added(app.add("!!!", http_spec("C", &two.url())).await.unwrap());
    let (what, _) = added(app.add("???", http_spec("D", &two.url())).await.unwrap());
    assert_ne!(bang.id, what.id);
}

#[tokio::test]
async fn a_generated_id_gives_way_to_a_stable_one() {
    let mut daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(false).await;
    let old = app.add_http("Fake", &fake.url()).await;
    let handshakes = fake.seen_of("initialize").len();
    let mut updates = app.updates("").await;
    updates.snapshot().await;

    let (new, outcome) = added(
        app.add("stable", http_spec("Fake", &fake.url()))
            .await
            .unwrap(),
    );
    assert_eq!((new.id.as_str(), outcome), ("stable", AddOutcome::Migrated));
    assert_eq!(new.state(), ConnectionState::Ready);
    assert_eq!(
        fake.seen_of("initialize").len(),
        handshakes,
        "the connection moves along"
    );
    updates.deleted(&old.id).await;
    ErrorFacts::expect(app.get(&old.id).await, Code::NotFound, "SERVER_NOT_FOUND");
    let result = app.call_tool("stable", "echo", r#"{"n":1}"#).await.unwrap();
    assert_eq!(text_of(&result), r#"{"n":1}"#);

    daemon.restart().await;
    let app = daemon.clients().await;
    let servers = app.list().await;
    assert_eq!(servers.len(), 1);
    assert_eq!(servers[0].id, "stable");
    // A server under a stable id is not renamed again.
    let _other = app.add("other", http_spec("Fake", &fake.url())).await;
    app.get("stable").await.expect("the stable id stays");
}

#[tokio::test]
async fn changed_headers_take_effect() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(true).await;
    let spec = |key| {
        with_headers(
            http_spec("Fake", &fake.url()),
            &[("X-Key", key), ("Authorization", "Bearer t")],
        )
    };
    let (first, _) = added(app.add("", spec("one")).await.unwrap());
    let (second, outcome) = added(app.add("", spec("two")).await.unwrap());
    assert_eq!((&second.id, outcome), (&first.id, AddOutcome::Updated));
    assert_ne!(second.etag, first.etag);
    let (_, outcome) = added(app.add("", spec("two")).await.unwrap());
    assert_eq!(outcome, AddOutcome::Existing);

    app.call_tool(&first.id, "echo", "{}").await.unwrap();
    let call = fake.wait_method("tools/call").await;
    assert_eq!(call.header("x-key"), "two");
    assert_eq!(call.headers.get_all("authorization").iter().count(), 1);
    // No answer holds the values.
    let shown = format!("{:?}", app.list().await);
    assert!(
        shown.contains("X-Key") || shown.contains("x-key"),
        "{shown}"
    );
    for secret in ["\"two\"", "Bearer t"] {
        assert!(!shown.contains(secret), "{shown}");
    }
}

#[tokio::test]
async fn settings_are_updated_by_mask_and_guarded_by_the_etag() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(true).await;
    let server = app.add_http("Fake", &fake.url()).await;
    let update = async |spec: ServerSpec, mask: &[&str], etag: &str| {
        let request = v1::UpdateServerRequest {
            namespace: app.namespace(),
            server_id: server.id.clone(),
            spec: Some(spec),
            update_mask: Some(prost_types::FieldMask {
                paths: mask.iter().map(|&path| path.to_owned()).collect(),
            }),
            etag: etag.to_owned(),
        };
        let answer = app.servers().update_server(request).await?;
        Ok::<_, tonic::Status>(answer.into_inner().server.expect("the server"))
    };

    let change = http_spec("Renamed", "http://127.0.0.1:1/never");
    let renamed = update(change.clone(), &["name"], &server.etag)
        .await
        .unwrap();
    assert_eq!(renamed.spec.as_ref().unwrap().name, "Renamed");
    assert_eq!(
        url_of(&renamed),
        fake.url(),
        "only what the mask names changes"
    );
    assert_ne!(renamed.etag, server.etag);

    let stale = update(change.clone(), &["name"], &server.etag).await;
    ErrorFacts::expect(stale, Code::Aborted, "ETAG_MISMATCH");
    let unknown = update(change.clone(), &["nmae"], "").await;
    let facts = ErrorFacts::expect(unknown, Code::InvalidArgument, "INVALID_FIELD");
    assert!(facts.field.starts_with("update_mask"), "{facts:?}");
    assert!(facts.message.contains("nmae"), "{facts:?}");
    let empty = update(change, &[], "").await;
    let facts = ErrorFacts::expect(empty, Code::InvalidArgument, "INVALID_FIELD");
    assert_eq!(facts.field, "update_mask");

    // A change of the transport reconnects.
    let other = FakeMcp::echo(true).await;
    update(http_spec("", &other.url()), &["http.url"], "")
        .await
        .unwrap();
    other.wait_method("tools/list").await;
    let moved = app.wait_for(&server.id, ConnectionState::Ready).await;
    assert_eq!(url_of(&moved), other.url());
    app.call_tool(&server.id, "echo", "{}").await.unwrap();
    other.wait_method("tools/call").await;
}

#[tokio::test]
async fn what_belongs_to_one_namespace_is_not_seen_in_another() {
    let daemon = TestDaemon::start().await;
    let (a, b) = (
        daemon.clients_in("app-a").await,
        daemon.clients_in("app-b").await,
    );
    let fake = FakeMcp::echo(true).await;
    a.add("mine", http_spec("Fake", &fake.url())).await.unwrap();
    b.add("yours", http_spec("Fake", &fake.url()))
        .await
        .unwrap();
    ErrorFacts::expect(b.get("mine").await, Code::NotFound, "SERVER_NOT_FOUND");
    ErrorFacts::expect(b.remove("mine").await, Code::NotFound, "SERVER_NOT_FOUND");
    ErrorFacts::expect(
        b.call_tool("mine", "echo", "{}").await,
        Code::NotFound,
        "SERVER_NOT_FOUND",
    );
    let tools: Vec<_> = b
        .list_tools()
        .await
        .into_iter()
        .map(|tool| tool.server_id)
        .collect();
    assert_eq!(tools, ["yours"]);
}

#[test]
fn any_wanted_id_becomes_a_valid_one_that_stays() {
    use proptest::strategy::{Strategy as _, ValueTree as _};
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let daemon = TestDaemon::start().await;
        let app = daemon.clients().await;
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        for n in 0..60 {
            let wanted = "\\PC{1,80}".new_tree(&mut runner).unwrap().current();
            let register = async |id: &str| {
                let request = v1::AddServerRequest {
                    server_id: id.to_owned(),
                    spec: Some(http_spec(
                        &format!("S{n}"),
                        &format!("http://127.0.0.1:9/{n}"),
                    )),
                    register_only: true,
                    ..Default::default()
                };
                app.add_with(request).await
            };
            let (server, _) = match register(&wanted).await {
                Ok(answer) => added(answer),
                // Two wanted ids may mean the same.
                Err(status) if status.code() == Code::AlreadyExists => continue,
                Err(status) => panic!("`{wanted}`: {status:?}"),
            };
            let id = &server.id;
            let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(
                id.chars().all(valid) && (1..=64).contains(&id.len()),
                "`{wanted}` -> `{id}`"
            );
            assert!(
                !id.contains("--") && !id.ends_with('-'),
                "`{wanted}` -> `{id}`"
            );
            assert!(
                id.starts_with(|c: char| c.is_ascii_lowercase()),
                "`{wanted}` -> `{id}`"
            );
            for same in [id, &wanted] {
                let (again, outcome) = added(register(same).await.unwrap());
                assert_eq!((&again.id, outcome), (id, AddOutcome::Existing));
            }
        }
    });
}

#[tokio::test]
async fn a_server_that_is_being_dialled_can_be_given_a_stable_id() {
    let mut daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(true).await;
    let old = app.add_http("Fake", &fake.url()).await;
    let (open, gate) = tokio::sync::watch::channel(false);
    fake.on("server/discover", move |_| {
        let mut gate = gate.clone();
        async move {
            gate.wait_for(|open| *open).await.unwrap();
            Reply::Default
        }
    });
    let before = fake.seen().len();
    daemon.restart().await;
    let app = daemon.clients().await;
    fake.wait("the dial of the restart", |seen| {
        seen.method() == "server/discover" && seen.index >= before
    })
    .await;
    let renaming = tokio::spawn({
        let (app, url) = (app.clone(), fake.url());
        async move { app.add("stable", http_spec("Fake", &url)).await }
    });
    let mut updates = app.updates("").await;
    updates
        .server_where("the new id", |server| server.id == "stable")
        .await;
    open.send_replace(true);
    let (server, outcome) = added(within("AddServer", renaming).await.unwrap().unwrap());
    assert_eq!(
        (server.id.as_str(), outcome),
        ("stable", AddOutcome::Migrated)
    );
    app.wait_for("stable", ConnectionState::Ready).await;
    ErrorFacts::expect(app.get(&old.id).await, Code::NotFound, "SERVER_NOT_FOUND");
    assert_eq!(app.list().await.len(), 1);
}

#[tokio::test]
async fn a_stored_server_without_a_connection_is_the_same_server() {
    let mut daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(true).await;
    let first = app.add_http("Fake", &fake.url()).await;
    let target = v1::disconnect_server_request::Target::ServerId(first.id.clone());
    let disconnect = v1::DisconnectServerRequest {
        namespace: app.namespace(),
        target: Some(target),
    };
    app.servers().disconnect_server(disconnect).await.unwrap();
    daemon.restart().await;
    let app = daemon.clients().await;
    let (again, outcome) = added(app.add("", http_spec("Fake", &fake.url())).await.unwrap());
    assert_eq!((&again.id, outcome), (&first.id, AddOutcome::Existing));
    assert_eq!(app.list().await.len(), 1);
}
