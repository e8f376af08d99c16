//! The operator's commands.

use mcp_sidecar_tests::prelude::*;

#[tokio::test]
async fn an_operator_looks_at_the_daemon_sets_its_log_and_stops_it() {
    let mut daemon = TestDaemon::start().await;
    daemon
        .cli(&["servers", "add", "http://127.0.0.1:1/mcp", "--id", "lost"])
        .await
        .ends_with(1);
    let status = daemon.cli(&["status"]).await.ok();
    assert!(status.contains("`lost` cannot be reached"), "{status}");
    let status = daemon.cli(&["status", "-o", "json"]).await.json();
    assert_eq!(status["pid"], daemon.pid());
    assert_eq!(status["notReady"][0]["serverId"], "lost");

    let app = daemon.clients().await;
    let _updates = app.updates("").await;
    let apps = daemon.cli(&["apps"]).await.ok();
    assert!(
        apps.contains("mcp-sidecar (admin)") && apps.contains("default"),
        "{apps}"
    );

    let set = daemon
        .cli(&["log-filter", "warn", "--for", "1h"])
        .await
        .ok();
    assert!(set.starts_with("warn until 20"), "{set}");
    daemon
        .cli(&["log-filter", "mcp_sidecard=loud"])
        .await
        .fails(1, "INVALID_FIELD");
    daemon.cli(&["log-filter", ""]).await.ok();
    let elsewhere = daemon.data_dir().join("x.sock");
    let elsewhere = ["status", "--admin-socket", elsewhere.to_str().unwrap()];
    daemon.cli(&elsewhere).await.fails(3, "x.sock");

    daemon.cli(&["drain"]).await.ok();
    assert!(daemon.ends().await.success());
}
