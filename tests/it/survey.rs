//! What the daemon says on demand about what it has under way.

use mcp_sidecar_tests::prelude::*;

#[tokio::test]
async fn a_signal_shows_what_is_under_way_and_nothing_is_when_it_has_ended() {
    let fake = FakeMcp::legacy().lines().tool(tool("slow")).start().await;
    fake.reply("tools/call", |_| Reply::Hang);
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let protocol = v1::UnixSocketProtocol::Ndjson;
    let spec = mcp_sidecar_tests::clients::socket_spec("S", &fake.socket(), protocol);
    app.add("s", spec).await.expect("AddServer");
    app.wait_for("s", ConnectionState::Ready).await;
    let count = async |name: &str| daemon.survey().await[name];
    eventually("the end of the stream of updates", PATIENCE, async || {
        (count("rpcs").await == 0).then_some(())
    })
    .await;
    let quiet = daemon.survey().await;
    for (name, expected) in [("servers", 1), ("links", 1), ("calls", 0), ("waiting", 0)] {
        assert_eq!(quiet[name], expected, "{name} in {quiet:?}");
    }

    let calling = tokio::spawn({
        let app = app.clone();
        async move { app.call_tool("s", "slow", "{}").await }
    });
    fake.wait_method("tools/call").await;
    let busy = daemon.survey().await;
    for name in ["rpcs", "calls", "waiting"] {
        assert_eq!(busy[name], 1, "{name} in {busy:?}");
    }

    calling.abort();
    eventually("rest", PATIENCE, async || {
        let now = daemon.survey().await;
        let rest = ["rpcs", "calls", "waiting"].map(|name| now[name]);
        (rest == [0; 3] && now["tasks"] <= quiet["tasks"]).then_some(())
    })
    .await;
    app.remove("s").await.expect("RemoveServer");
    eventually("the end of the link", PATIENCE, async || {
        let now = daemon.survey().await;
        (now["servers"] == 0 && now["links"] == 0).then_some(())
    })
    .await;
}
