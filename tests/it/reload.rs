//! The configuration is read again while the daemon runs, and servers in it are registrations like any others that only the
//! operator changes.

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::DeclaredServerOutcome as Outcome;
use rustix::process::Signal;

fn server(id: &str, url: &str, more: &str) -> String {
    format!("{{ id = \"{id}\", url = \"{url}\"{more} }}")
}

fn servers(list: &[String]) -> String {
    format!("[{}]", list.join(", "))
}

/// The authorization of the last request.
fn last_token(fake: &FakeMcp) -> String {
    let last = fake.seen().pop().expect("a request");
    last.header("authorization").to_owned()
}

/// What became of servers, as pairs.
fn changes(reloaded: &v1::ReloadConfigResponse) -> Vec<(&str, v1::DeclaredServerOutcome)> {
    let changes = reloaded.servers.iter();
    changes
        .map(|change| (change.server_id.as_str(), change.outcome()))
        .collect()
}

#[tokio::test]
async fn servers_in_the_configuration_are_there_at_start_and_follow_the_file() {
    let (one, two) = (
        FakeMcp::modern().tool(tool("echo")).start().await,
        FakeMcp::modern().tool(tool("echo")).start().await,
    );
    let declared = [
        server("one", &one.url(), ""),
        server("two", &two.url(), ", name = \"Two\""),
    ];
    let mut daemon = TestDaemon::builder()
        .servers(&servers(&declared))
        .start()
        .await;
    let app = daemon.clients().await;
    for id in ["one", "two"] {
        let server = app.wait_for(id, ConnectionState::Ready).await;
        assert!(server.from_configuration);
    }
    let own = FakeMcp::modern().tool(tool("echo")).start().await;
    let added = app.add("own", http_spec("Own", &own.url())).await;
    assert!(!added.unwrap().server.unwrap().from_configuration);
    app.wait_for("own", ConnectionState::Ready).await;

    // An app does not change them; to add the same again is to find it.
    let refused = app.remove("one").await;
    let facts = ErrorFacts::expect(refused, Code::PermissionDenied, "CALLER_NOT_ALLOWED");
    assert!(facts.message.contains("[[servers]]"), "{}", facts.message);
    let other = ServerSpec {
        check_results: true,
        ..http_spec("one", &one.url())
    };
    let refused = app.add("one", other).await;
    ErrorFacts::expect(refused, Code::PermissionDenied, "CALLER_NOT_ALLOWED");
    let same = app.add("one", http_spec("one", &one.url())).await.unwrap();
    assert_eq!(same.outcome(), AddOutcome::Existing);

    // One leaves, one changes, one comes; what an app added stays.
    let three = FakeMcp::modern().tool(tool("echo")).start().await;
    let declared = [
        server("two", &two.url(), ", name = \"Two\", check_results = true"),
        server("three", &three.url(), ""),
    ];
    daemon.rewrite_as("servers", &servers(&declared));
    let operator = daemon.operator().await;
    let reloaded = operator.reload().await.expect("ReloadConfig");
    assert_eq!(reloaded.applied_keys, ["servers"]);
    assert_eq!(
        changes(&reloaded),
        [
            ("one", Outcome::Removed),
            ("two", Outcome::Updated),
            ("three", Outcome::Created)
        ]
    );
    let ids: Vec<_> = app.list().await.into_iter().map(|one| one.id).collect();
    assert_eq!(ids, ["own", "three", "two"]);
    let now = app.get("two").await.unwrap().spec.unwrap();
    assert!(now.check_results);

    // While the daemon does not run, the file changes once more.
    daemon.rewrite_as("servers", &servers(&declared[1..]));
    daemon.restart().await;
    let app = daemon.clients().await;
    let ids: Vec<_> = app.list().await.into_iter().map(|one| one.id).collect();
    assert_eq!(ids, ["own", "three"]);
    let said = one.seen().len();
    app.wait_for("three", ConnectionState::Ready).await;
    assert_eq!(one.seen().len(), said, "a server that left is not dialled");
}

#[tokio::test]
async fn unchanged_servers_keep_their_connection_and_their_process_over_a_reload() {
    let dir = tempfile::tempdir().unwrap();
    let script = Script::faulty(StdioFault::Say("started".to_owned()));
    let spec = script.spec("child", dir.path()).await;
    let Some(v1::server_spec::Transport::Stdio(child)) = spec.transport else {
        panic!("a child");
    };
    let legacy = FakeMcp::legacy().tool(tool("echo")).start().await;
    let stdio = |more: &str| {
        let (command, args) = (json!(child.command), json!(child.args));
        format!("{{ id = \"child\", command = {command}, args = {args}{more} }}")
    };
    let declared = |more: &str| {
        servers(&[
            stdio(more),
            server("session", &legacy.url(), ", timeouts = { call = \"1m\" }"),
        ])
    };
    let mut daemon = TestDaemon::builder().servers(&declared("")).start().await;
    let app = daemon.clients().await;
    for id in ["child", "session"] {
        app.wait_for(id, ConnectionState::Ready).await;
    }
    let operator = daemon.operator().await;
    let reloaded = operator.reload().await.expect("ReloadConfig");
    assert_eq!(changes(&reloaded), []);
    assert_eq!(reloaded.applied_keys, [""; 0]);
    // A setting that needs no other connection.
    daemon.rewrite_as("servers", &declared(", timeouts = { call = \"2m\" }"));
    let reloaded = operator.reload().await.expect("ReloadConfig");
    assert_eq!(
        changes(&reloaded),
        [("child", v1::DeclaredServerOutcome::Updated)]
    );
    for id in ["child", "session"] {
        let server = app.get(id).await.unwrap();
        assert_eq!(server.state(), ConnectionState::Ready);
        app.call_tool(id, "echo", "{}").await.expect("CallTool");
    }
    let lines = app.log("child").await.expect("GetServerLog");
    let starts: Vec<_> = lines.iter().map(|line| line.start).collect();
    assert_eq!(starts, [1], "the process is the same: {lines:?}");
    assert_eq!(legacy.seen_of("initialize").len(), 1);
}

#[tokio::test]
async fn a_wrong_file_changes_nothing_and_says_what_to_do() {
    let fake = FakeMcp::modern().start().await;
    let good = servers(&[server("good", &fake.url(), "")]);
    let mut daemon = TestDaemon::builder()
        .set("log.filter", "info")
        .servers(&good)
        .start()
        .await;
    let app = daemon.clients().await;
    app.wait_for("good", ConnectionState::Ready).await;
    let operator = daemon.operator().await;
    let mine = FakeMcp::modern().start().await;
    app.add("mine", http_spec("Mine", &mine.url()))
        .await
        .unwrap();

    let expect = async |daemon: &mut TestDaemon, list: String, said: &[&str]| {
        daemon.rewrite_as("servers", &list);
        let refused = operator.reload().await;
        let facts = ErrorFacts::of(&refused.unwrap_err());
        for text in said {
            assert!(facts.message.contains(text), "{}", facts.message);
        }
    };
    daemon.rewrite("log.filter", "warn");
    let nowhere = server("x", "ftp://nowhere", "");
    expect(&mut daemon, servers(&[nowhere]), &["servers.0.url", "ftp"]).await;
    let secret = ", headers = { Authorization = { file = \"/nonexistent/token\" } }";
    let secret = server("x", &fake.url(), secret);
    expect(
        &mut daemon,
        servers(&[secret]),
        &["`servers.0`", "headers.Authorization", "/nonexistent/token"],
    )
    .await;
    // What belongs to an app is not taken from it.
    let taken = server("mine", &fake.url(), "");
    expect(
        &mut daemon,
        servers(&[taken]),
        &["`mine`", "an app registered"],
    )
    .await;
    let private = server("private", "http://10.1.2.3/mcp", "");
    expect(&mut daemon, servers(&[private]), &["private", "policy"]).await;

    let status = operator.status().await;
    assert_eq!(status.log_filter, "info");
    let ids: Vec<_> = app.list().await.into_iter().map(|one| one.id).collect();
    assert_eq!(ids, ["good", "mine"]);
    assert_eq!(status.config_file, daemon.config_file().to_str().unwrap());
    // The signal says the same in the log.
    let refusals = || daemon.log().matches("and is not applied").count();
    let before = refusals();
    daemon.signal(Signal::HUP);
    eventually("the refusal in the log", PATIENCE, async || {
        (refusals() > before).then_some(())
    })
    .await;
    daemon.rewrite_as("servers", &good);
    let reloaded = operator.reload().await.expect("ReloadConfig");
    assert_eq!(reloaded.applied_keys, ["log.filter"]);
}

#[tokio::test]
async fn rules_of_access_and_the_filter_hold_at_once_and_the_rest_waits_for_a_restart() {
    let mut daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let follower = daemon.clients().await;
    let mut updates = follower.updates("").await;
    updates.snapshot().await;
    assert_eq!(app.list().await, []);
    daemon.rewrite_as("access", "[{ namespaces = [\"team\"] }]");
    daemon.rewrite("log.filter", "info,mcp_sidecard::operation=debug");
    daemon.rewrite("limits.rounds", 7_u32);
    let operator = daemon.operator().await;
    let validate = v1::ReloadConfigRequest {
        validate_only: true,
    };
    let would = operator.admin().reload_config(validate).await;
    let would = would.expect("ReloadConfig").into_inner();
    assert_eq!(app.list().await, [], "nothing is applied yet");
    let reloaded = operator.reload().await.expect("ReloadConfig");
    assert_eq!(reloaded.applied_keys, ["access", "log.filter"]);
    assert_eq!(reloaded.restart_keys, ["limits.rounds"]);
    assert_eq!(would, reloaded);
    let refused = app.get("x").await;
    ErrorFacts::expect(refused, Code::PermissionDenied, "CALLER_NOT_ALLOWED");
    app.in_namespace("team")
        .add("x", http_spec("X", "http://127.0.0.1:1/mcp"))
        .await
        .unwrap();
    let status = operator.status().await;
    assert_eq!(status.log_filter, "info,mcp_sidecard::operation=debug");
    // What still needs a restart is said again, what holds is not.
    let again = operator.reload().await.expect("ReloadConfig");
    assert_eq!(again.applied_keys, [""; 0]);
    assert_eq!(again.restart_keys, ["limits.rounds"]);
}

#[tokio::test]
async fn a_secret_in_a_file_is_read_again() {
    let fake = FakeMcp::modern().tool(tool("echo")).start().await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "first\n").unwrap();
    let header = format!(
        ", headers = {{ Authorization = {{ file = {}, prefix = \"Bearer \" }} }}",
        json!(file)
    );
    let declared = servers(&[server("s", &fake.url(), &header)]);
    let daemon = TestDaemon::builder().servers(&declared).start().await;
    let app = daemon.clients().await;
    let server = app.wait_for("s", ConnectionState::Ready).await;
    assert_eq!(last_token(&fake), "Bearer first");
    std::fs::write(&file, "second\n").unwrap();
    let operator = daemon.operator().await;
    let reloaded = operator.reload().await.expect("ReloadConfig");
    assert_eq!(
        changes(&reloaded),
        [("s", v1::DeclaredServerOutcome::Updated)]
    );
    app.wait_for("s", ConnectionState::Ready).await;
    app.call_tool("s", "echo", "{}").await.expect("CallTool");
    assert_eq!(last_token(&fake), "Bearer second");
    assert_ne!(app.get("s").await.unwrap().etag, server.etag);
    drop(dir);
}
