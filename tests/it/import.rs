//! Documents of other clients become registrations, and registrations documents.

use std::collections::HashMap;

use mcp_sidecar_tests::clients::Clients;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::ImportOutcome as Outcome;

async fn import(
    app: &Clients,
    document: &Value,
    variables: &[(&str, &str)],
    validate_only: bool,
) -> Vec<v1::ImportedServer> {
    let variables = variables.iter();
    let request = v1::ImportServersRequest {
        namespace: app.namespace(),
        document_json: document.to_string(),
        variables: variables
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect(),
        validate_only,
    };
    let answer = app.servers().import_servers(request).await;
    answer.expect("ImportServers").into_inner().entries
}

async fn export(app: &Clients) -> v1::ExportServersResponse {
    let request = v1::ExportServersRequest {
        namespace: app.namespace(),
        ..Default::default()
    };
    let answer = app.servers().export_servers(request).await;
    answer.expect("ExportServers").into_inner()
}

fn outcomes(entries: &[v1::ImportedServer]) -> Vec<(&str, Outcome)> {
    let entries = entries.iter();
    entries
        .map(|entry| (entry.name.as_str(), entry.outcome()))
        .collect()
}

#[tokio::test]
async fn every_entry_has_an_outcome_of_its_own() {
    let (open, closed) = (
        FakeMcp::modern().tool(tool("echo")).start().await,
        FakeMcp::modern().start().await,
    );
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let document = json!({"mcpServers": {
        "blocked": {"url": "http://10.1.2.3/mcp"},
        "Missing Key": {"command": "x", "env": {"A": "${A_KEY}", "B": "${env:B_KEY}"}},
        "off": {"url": closed.url(), "disabled": true, "autoApprove": ["x"]},
        "Open One": {"type": "http", "url": open.url(), "headers": {"X-Key": "k ${KEY}"}},
        "file": {"command": "x", "mcpSidecar": {"authorization": {"method": "bearer", "token": {"file": "/etc/shadow"}}}},
    }});
    let variables = [("KEY", "one")];
    let would = import(&app, &document, &variables, true).await;
    assert_eq!(app.list().await, [], "nothing is registered yet");
    let entries = import(&app, &document, &variables, false).await;
    let expected = [
        ("Missing Key", Outcome::Refused),
        ("Open One", Outcome::Created),
        ("blocked", Outcome::Refused),
        ("file", Outcome::Refused),
        ("off", Outcome::Disabled),
    ];
    assert_eq!(outcomes(&entries), expected);
    assert_eq!(outcomes(&would), expected);
    assert_eq!(entries[0].missing_variables, ["A_KEY", "B_KEY"]);
    assert_eq!(entries[1].server_id, "open-one");
    let reason = |index: usize| entries[index].refusal.as_ref().unwrap().reason.as_str();
    assert_eq!(reason(0), "INVALID_FIELD");
    assert_eq!(reason(2), "DESTINATION_BLOCKED");
    assert_eq!(reason(3), "INVALID_FIELD");
    assert_eq!(entries[4].ignored_keys, ["autoApprove"]);

    let ready = app.wait_for("open-one", ConnectionState::Ready).await;
    assert_eq!(ready.spec.unwrap().name, "Open One");
    assert_eq!(open.seen()[0].header("x-key"), "k one");
    let off = app.get("off").await.unwrap();
    assert_eq!(off.state(), ConnectionState::Disconnected);
    assert!(closed.seen().is_empty());

    // Once more: what is there is found, and what differs is changed.
    let again = import(&app, &document, &variables, false).await;
    assert_eq!(again[1].outcome(), Outcome::Existing);
    assert_eq!(again[4].outcome(), Outcome::Disabled);
    let again = import(&app, &document, &[("KEY", "two")], true).await;
    assert_eq!(again[1].outcome(), Outcome::Updated);

    let bad = v1::ImportServersRequest {
        document_json: "{\"mcpServers\": ".to_owned(),
        ..Default::default()
    };
    let refused = app.servers().import_servers(bad).await;
    let facts = ErrorFacts::expect(refused, Code::InvalidArgument, "INVALID_FIELD");
    assert_eq!(facts.field, "document_json");
}

#[tokio::test]
async fn an_export_holds_no_secret_and_gives_the_same_registrations() {
    let fake = FakeMcp::modern().tool(tool("echo")).start().await;
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let mut http = http_spec("The notes", &fake.url());
    let Some(v1::server_spec::Transport::Http(transport)) = &mut http.transport else {
        panic!("a server at a URL");
    };
    for (name, value) in [("X-Zeta", "z-s3cret"), ("Authorization", "Bearer a-s3cret")] {
        transport.headers.push(v1::Header {
            name: name.to_owned(),
            value: value.to_owned(),
        });
    }
    http.denied_tools = vec!["rm*".to_owned()];
    http.timeouts = Some(v1::ServerTimeouts {
        call: Some(seconds(90)),
        ..Default::default()
    });
    http.isolation = v1::Isolation::PerUser.into();
    app.add("notes", http).await.expect("AddServer");
    let mut stdio = stdio_spec(
        "Files",
        "/bin/false",
        &["--root".to_owned(), "/srv".to_owned()],
    );
    let Some(v1::server_spec::Transport::Stdio(transport)) = &mut stdio.transport else {
        panic!("a child");
    };
    transport.env.push(v1::EnvVar {
        name: "API_KEY".to_owned(),
        value: "c-s3cret".to_owned(),
    });
    let request = v1::AddServerRequest {
        namespace: "default".to_owned(),
        server_id: "files".to_owned(),
        spec: Some(stdio),
        register_only: true,
        ..Default::default()
    };
    app.servers().add_server(request).await.expect("AddServer");

    let exported = export(&app).await;
    assert!(
        !exported.document_json.contains("s3cret"),
        "{}",
        exported.document_json
    );
    assert_eq!(exported.incomplete_server_ids, [""; 0]);
    let document: Value = serde_json::from_str(&exported.document_json).unwrap();
    // What other clients read of it.
    let files = &document["mcpServers"]["files"];
    assert_eq!(files["command"], "/bin/false");
    assert_eq!(files["args"], json!(["--root", "/srv"]));
    assert_eq!(files["env"], json!({"API_KEY": "${FILES_API_KEY}"}));
    assert_eq!(document["mcpServers"]["notes"]["type"], "http");
    let settings: HashMap<_, _> = exported
        .variables
        .iter()
        .map(|variable| (variable.name.as_str(), variable.setting.as_str()))
        .collect();
    let expected = HashMap::from([
        ("FILES_API_KEY", "env.API_KEY"),
        ("NOTES_AUTHORIZATION", "headers.Authorization"),
        ("NOTES_X_ZETA", "headers.X-Zeta"),
    ]);
    assert_eq!(settings, expected);

    let values = [
        ("FILES_API_KEY", "c-s3cret"),
        ("NOTES_AUTHORIZATION", "Bearer a-s3cret"),
        ("NOTES_X_ZETA", "z-s3cret"),
    ];
    let same = import(&app, &document, &values, false).await;
    assert_eq!(
        outcomes(&same),
        [("files", Outcome::Disabled), ("notes", Outcome::Existing)]
    );
    let elsewhere = app.in_namespace("elsewhere");
    let new = import(&elsewhere, &document, &values, false).await;
    assert_eq!(
        outcomes(&new),
        [("files", Outcome::Disabled), ("notes", Outcome::Created)]
    );
    elsewhere.wait_for("notes", ConnectionState::Ready).await;
    for id in ["files", "notes"] {
        let [one, other] = [&app, &elsewhere].map(|app| app.get(id));
        let sorted = |server: v1::Server| {
            let mut spec = server.spec.unwrap();
            if let Some(v1::server_spec::Transport::Http(http)) = &mut spec.transport {
                http.headers.sort_by(|one, other| one.name.cmp(&other.name));
            }
            spec
        };
        assert_eq!(sorted(one.await.unwrap()), sorted(other.await.unwrap()));
    }
    let last = fake.seen().pop().unwrap();
    assert_eq!(last.header("authorization"), "Bearer a-s3cret");
    assert_eq!(last.header("x-zeta"), "z-s3cret");
}
