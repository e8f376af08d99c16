//! What an operator sees of the daemon and does to it, on the socket that is for nobody else.

use mcp_sidecar_tests::audience::FORMS;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::stranger::OpenHouse;

async fn set_filter(
    operator: &mcp_sidecar_tests::clients::Clients,
    filter: &str,
    time: Option<prost_types::Duration>,
) -> Result<v1::SetLogFilterResponse, tonic::Status> {
    let request = v1::SetLogFilterRequest {
        filter: filter.to_owned(),
        duration: time,
    };
    let answer = operator.admin().set_log_filter(request).await;
    answer.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn the_status_explains_every_server_that_is_not_ready_and_counts_the_rest() {
    let good = FakeMcp::modern().tool(tool("echo")).start().await;
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    app.add_http("Good", &good.url()).await;
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = closed.local_addr().unwrap();
    drop(closed);
    let lost = http_spec("Lost", &format!("http://{address}/mcp"));
    let elsewhere = app.in_namespace("team");
    elsewhere.add("lost", lost).await.expect("AddServer");
    elsewhere.wait_for("lost", ConnectionState::Failed).await;
    let resting = FakeMcp::modern().start().await;
    let added = app.add("rests", http_spec("Rests", &resting.url())).await;
    added.expect("AddServer");
    app.disconnect_server("rests").await.expect("Disconnect");

    let operator = daemon.operator().await;
    let status = operator.status().await;
    assert_eq!(status.version, env!("CARGO_PKG_VERSION"));
    assert_eq!(i64::from(status.pid), i64::from(daemon.pid()));
    assert_eq!(status.app_socket, daemon.socket().to_str().unwrap());
    assert_eq!(status.admin_socket, daemon.admin_socket().to_str().unwrap());
    assert_eq!(status.data_dir, daemon.data_dir().to_str().unwrap());
    assert!(!status.draining);
    assert_eq!(status.log_filter, "info,mcp_sidecard=debug");
    let said: Vec<_> = status
        .not_ready
        .iter()
        .map(|one| (one.namespace.as_str(), one.server_id.as_str(), one.state()))
        .collect();
    assert_eq!(
        said,
        [
            ("default", "rests", ConnectionState::Disconnected),
            ("team", "lost", ConnectionState::Failed)
        ]
    );
    let [rests, lost] = [0, 1].map(|index| &status.not_ready[index]);
    assert!(
        rests.explanation.contains("ConnectServer"),
        "{}",
        rests.explanation
    );
    assert_eq!(lost.reason, "UPSTREAM_UNREACHABLE");
    assert!(
        lost.explanation.starts_with("`lost` cannot be reached: ")
            && lost.explanation.contains("refused")
            && lost.explanation.contains("attempt"),
        "{}",
        lost.explanation
    );
    let counts = status.counts.expect("counts");
    let states: Vec<_> = counts
        .servers
        .iter()
        .map(|one| (one.state(), one.count))
        .collect();
    assert_eq!(
        states,
        [
            (ConnectionState::Ready, 1),
            (ConnectionState::Failed, 1),
            (ConnectionState::Disconnected, 1)
        ]
    );
    assert_eq!(counts.apps, 2);
    assert_eq!((counts.calls_under_way, counts.questions_pending), (0, 0));
}

#[tokio::test]
async fn the_operator_sees_who_is_connected_and_what_they_follow() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let following = v1::StreamUpdatesRequest {
        namespaces: vec!["team".to_owned()],
        can_answer: Some(FORMS),
        ..Default::default()
    };
    let updates = app.updates_with(following).await.expect("StreamUpdates");
    let operator = daemon.operator().await;
    let apps = operator.apps().await;
    assert_eq!(apps.len(), 2, "{apps:?}");
    let [one, own] = [&apps[0], &apps[1]];
    assert_eq!(one.socket(), v1::AppSocket::App);
    assert_eq!(own.socket(), v1::AppSocket::Admin);
    let me = std::process::id();
    for app in [one, own] {
        assert_eq!(app.uid, rustix::process::geteuid().as_raw());
        assert_eq!(app.gid, rustix::process::getegid().as_raw());
        assert_eq!(u32::try_from(app.pid).unwrap(), me);
        let exe = std::env::current_exe().unwrap();
        assert_eq!(app.executable, exe.to_str().unwrap());
        assert!(!app.program.is_empty());
        assert_eq!(app.rpcs_under_way, 1, "{app:?}");
        assert!(app.connect_time.is_some());
    }
    assert!(one.connection_id < own.connection_id);
    assert!(own.follows.is_empty());
    assert_eq!(one.follows.len(), 1);
    assert_eq!(one.follows[0].namespaces, ["team"]);
    assert_eq!(one.follows[0].can_answer, Some(FORMS));
    assert_eq!(operator.status().await.counts.unwrap().subscribers, 1);

    drop(updates);
    drop(app);
    eventually("only the operator is left", PATIENCE, async || {
        (operator.apps().await.len() == 1).then_some(())
    })
    .await;
    assert_eq!(operator.status().await.counts.unwrap().subscribers, 0);
}

#[tokio::test]
async fn another_log_filter_holds_for_its_time() {
    let daemon = TestDaemon::builder()
        .set("log.filter", "info")
        .start()
        .await;
    let operator = daemon.operator().await;
    let set = set_filter(&operator, "info,mcp_sidecard::api=debug", None).await;
    let set = set.expect("SetLogFilter");
    assert_eq!(set.previous_filter, "info");
    assert_eq!(set.filter, "info,mcp_sidecard::api=debug");
    assert!(set.until.is_none());
    // The end of an RPC is told at this level.
    operator.status().await;
    daemon.log_holds("GetStatus").await;

    let error = set_filter(&operator, "mcp_sidecard=loud", None).await;
    let facts = ErrorFacts::expect(error, Code::InvalidArgument, "INVALID_FIELD");
    assert_eq!(facts.field, "filter");
    let error = set_filter(&operator, "debug", Some(seconds(0))).await;
    let facts = ErrorFacts::expect(error, Code::InvalidArgument, "INVALID_FIELD");
    assert_eq!(facts.field, "duration");
    let still = operator.status().await.log_filter;
    assert_eq!(still, "info,mcp_sidecard::api=debug");

    let set = set_filter(&operator, "warn", Some(seconds(1))).await;
    assert!(set.expect("SetLogFilter").until.is_some());
    assert!(operator.status().await.log_filter_until.is_some());
    eventually("the configured filter is back", PATIENCE, async || {
        let status = operator.status().await;
        (status.log_filter == "info" && status.log_filter_until.is_none()).then_some(())
    })
    .await;

    set_filter(&operator, "error", None)
        .await
        .expect("SetLogFilter");
    let back = set_filter(&operator, "", None).await.expect("SetLogFilter");
    assert_eq!(back.filter, "info");
}

#[tokio::test]
async fn to_drain_is_to_stop_in_order() {
    let fake = FakeMcp::modern().tool(tool("slow")).start().await;
    fake.reply("tools/call", |_| Reply::Hang);
    let mut daemon = TestDaemon::builder()
        .set("timeouts.drain", "300ms")
        .start()
        .await;
    let app = daemon.clients().await;
    let added = app.add("slow", http_spec("Slow", &fake.url())).await;
    added.expect("AddServer");
    app.wait_for("slow", ConnectionState::Ready).await;
    let calling = tokio::spawn({
        let app = app.clone();
        async move { app.call_tool("slow", "slow", "{}").await }
    });
    fake.wait_method("tools/call").await;
    let operator = daemon.operator().await;
    let answer = operator.admin().drain(v1::DrainRequest {}).await;
    assert!(!answer.expect("Drain").into_inner().already);
    let status = daemon.ends().await;
    assert!(status.success(), "{status}");
    assert!(within("the call", calling).await.unwrap().is_err());
    assert!(!daemon.socket().exists() && !daemon.admin_socket().exists());
    daemon.restart().await;
    assert!(!daemon.operator().await.status().await.draining);
}

#[tokio::test]
async fn nobody_else_operates_the_daemon() {
    // On the socket for apps there is no such service, for root neither.
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let refused = app.admin().get_status(v1::GetStatusRequest {}).await;
    assert_eq!(refused.unwrap_err().code(), Code::Unimplemented);
    let mode = |path: &std::path::Path| {
        use std::os::unix::fs::PermissionsExt as _;
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    };
    assert_eq!(mode(&daemon.admin_socket()), 0o600);
    drop(daemon);

    if !rustix::process::geteuid().is_root() {
        eprintln!("not run: only root can be another user");
        return;
    }
    let house = OpenHouse::start(TestDaemon::builder().set("admin.mode", "0666")).await;
    let stranger = house.stranger_at_admin().await;
    // Where apps may be, the operator's socket is no way around the rules, nor in the way.
    assert_eq!(stranger.list().await, []);
    let mut admin = stranger.admin();
    ErrorFacts::expect(
        admin.get_status(v1::GetStatusRequest {}).await,
        Code::PermissionDenied,
        "CALLER_NOT_ALLOWED",
    );
    ErrorFacts::expect(
        admin.list_apps(v1::ListAppsRequest {}).await,
        Code::PermissionDenied,
        "CALLER_NOT_ALLOWED",
    );
    ErrorFacts::expect(
        set_filter(&stranger, "trace", None).await,
        Code::PermissionDenied,
        "CALLER_NOT_ALLOWED",
    );
    ErrorFacts::expect(
        stranger.reload().await,
        Code::PermissionDenied,
        "CALLER_NOT_ALLOWED",
    );
    ErrorFacts::expect(
        stranger.create_token("mine", &["*"], None).await,
        Code::PermissionDenied,
        "CALLER_NOT_ALLOWED",
    );
    ErrorFacts::expect(
        admin.list_app_tokens(v1::ListAppTokensRequest {}).await,
        Code::PermissionDenied,
        "CALLER_NOT_ALLOWED",
    );
    ErrorFacts::expect(
        stranger.revoke_token("some").await,
        Code::PermissionDenied,
        "CALLER_NOT_ALLOWED",
    );
    ErrorFacts::expect(
        admin.drain(v1::DrainRequest {}).await,
        Code::PermissionDenied,
        "CALLER_NOT_ALLOWED",
    );
    assert!(!house.daemon.operator().await.status().await.draining);
}
