//! Tokens for apps that come over TCP, and the program as such an app.

use mcp_sidecar_tests::cli::Invocation;
use mcp_sidecar_tests::prelude::*;

#[tokio::test]
async fn a_token_is_made_used_in_place_of_the_socket_and_revoked() {
    let daemon = by_tcp().start().await;
    let fake = FakeMcp::modern().tool(tool("echo")).start().await;
    let app = daemon.clients().await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;

    let made = daemon.cli(&["tokens", "create", "build"]).await;
    let made = made.ends_with(0);
    let token = made.stdout.trim_end();
    assert!(token.starts_with("mcps_") && !token.contains(char::is_whitespace));
    assert!(!made.stderr.contains(token), "{made:#?}");
    assert!(made.stderr.contains("cannot be shown again"), "{made:#?}");
    let arguments = [
        "tokens",
        "create",
        "wide",
        "--for-namespace",
        "team-*",
        "--for-namespace",
        "a",
        "--lifetime",
        "30days",
    ];
    daemon.cli(&arguments).await.ok();
    let list = daemon.cli(&["tokens", "list"]).await.ok();
    assert!(
        list.contains("build") && list.contains("team-*, a") && list.contains("never"),
        "{list}"
    );
    let json = daemon.cli(&["tokens", "list", "-o", "json"]).await.json();
    assert_eq!(json["tokens"][1]["namespaces"], json!(["team-*", "a"]));
    assert!(!list.contains(token) && !json.to_string().contains(token));

    // Where the socket is out of reach: by options, and by the environment.
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("token");
    std::fs::write(&file, &made.stdout).unwrap();
    let (file, address) = (file.to_str().unwrap(), daemon.tcp_address().await);
    let nowhere = place.path().join("nowhere.sock");
    let call = ["tools", "call", "s/echo", "text=hello"];
    let options = [&["--address", &address, "--token-file", file], &call[..]].concat();
    Invocation::new(&options).run(&nowhere).await.ok();
    let away = Invocation::new(&call).elsewhere();
    let away = away.env("MCP_SIDECAR_ADDRESS", &address);
    for (name, value) in [
        ("MCP_SIDECAR_TOKEN", token),
        ("MCP_SIDECAR_TOKEN_FILE", file),
    ] {
        away.clone().env(name, value).run(&nowhere).await.ok();
    }
    // A socket that is named comes first, and needs no token.
    let named = Invocation::new(&call).env("MCP_SIDECAR_ADDRESS", &address);
    named.run(daemon.socket()).await.ok();
    assert_eq!(fake.seen_of("tools/call").len(), 4);
    away.run(&nowhere).await.fails(2, "MCP_SIDECAR_TOKEN");
    let gone = [
        "--address",
        &address,
        "--token-file",
        "/nowhere/token",
        "status",
    ];
    // What is for operators is not there.
    Invocation::new(&gone)
        .run(&nowhere)
        .await
        .fails(3, "nowhere.sock");
    let gone = [&gone[..4], &call[..]].concat();
    Invocation::new(&gone)
        .run(&nowhere)
        .await
        .fails(2, "`/nowhere/token`");

    // Whoever follows what happens is told when the token is gone.
    let watch = [&options[..4], &["watch"]].concat();
    let watching = Invocation::new(&watch).start(&nowhere).await;
    eventually("the follower", PATIENCE, async || {
        let apps = daemon.cli(&["apps"]).await.ok();
        apps.contains("build (token)").then_some(())
    })
    .await;
    daemon.cli(&["tokens", "revoke", "build"]).await.ok();
    let ended = mcp_sidecar_tests::cli::finish(watching).await;
    ended.fails(1, "APP_TOKEN_REQUIRED");
    Invocation::new(&options)
        .run(&nowhere)
        .await
        .fails(1, "APP_TOKEN_REQUIRED");
    daemon
        .cli(&["tokens", "revoke", "build"])
        .await
        .fails(1, "APP_TOKEN_NOT_FOUND");
    // Two of one name are told apart by their ids.
    daemon.cli(&["tokens", "create", "wide"]).await.ok();
    daemon
        .cli(&["tokens", "revoke", "wide"])
        .await
        .fails(1, "2 tokens have the name `wide`");
    let id = json["tokens"][1]["tokenId"].as_str().unwrap();
    daemon.cli(&["tokens", "revoke", id]).await.ok();
    daemon.cli(&["tokens", "revoke", "wide"]).await.ok();
}

#[tokio::test]
async fn whoever_makes_a_token_too_early_is_told() {
    let daemon = TestDaemon::start().await;
    let made = daemon.cli(&["tokens", "create", "early"]).await;
    let made = made.ends_with(0);
    assert!(made.stderr.contains("`tcp.listen`"), "{made:#?}");
    let made = daemon.cli(&["tokens", "create", "two words"]).await;
    made.fails(1, "INVALID_FIELD in `name`");
}
