//! Where the daemon may be led: by registrations, names, redirects and stored rows (behaviours 37 to 46). Where authorization
//! servers lead it, `auth_safety` tells.

use mcp_sidecar_tests::prelude::*;

fn url(host: &str) -> String {
    format!("http://{host}/mcp")
}

/// Neither a new registration nor a changed one may name these hosts; nothing is registered or changed.
async fn blocked(stage: &Stage, hosts: &[&str]) {
    let fake = FakeMcp::echo(true).await;
    stage.add_http(&fake.url()).await;
    for host in hosts {
        let added = stage.app().add("", http_spec("Other", &url(host))).await;
        let facts = ErrorFacts::expect(added, Code::PermissionDenied, "DESTINATION_BLOCKED");
        assert!(facts.message.contains("policy.allow"), "{host}: {facts:?}");
        let moved = http_spec("S", &url(host));
        let moved = stage.other().update("s", moved, &["http.url"]).await;
        ErrorFacts::expect(moved, Code::PermissionDenied, "DESTINATION_BLOCKED");
    }
    let servers = stage.other().list().await;
    assert_eq!(servers.len(), 1, "nothing is registered");
    assert_eq!(servers[0].state(), ConnectionState::Ready);
    stage.app().remove("s").await.unwrap();
}

#[tokio::test]
async fn behaviour_37_special_networks_are_blocked_in_every_spelling() {
    one_and_two(async |stage| {
        let plain = [
            "10.0.0.1",
            "10.255.255.255",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.169.254",
            "0.0.0.0",
            "[::]",
            "[fc00::1]",
            "[fdff::1]",
            "[fe80::1]",
            "[::ffff:10.0.0.1]",
        ];
        blocked(&stage, &plain).await;
        let disguised = ["167772161", "0x0a000001", "012.0.0.1", "10.1", "１0.0.0.1"];
        blocked(&stage, &disguised).await;
    })
    .await;
}

#[tokio::test]
async fn behaviour_38_all_of_the_link_local_network_is_blocked_and_no_more() {
    one_and_two(async |stage| {
        blocked(&stage, &["[fe81::1]", "[feab::1]", "[febf::ffff]"]).await;
        // Nobody is there; but nobody says that it may not be tried.
        let mut spec = http_spec("S", &url("[fe7f::1]"));
        spec.timeouts = Some(v1::ServerTimeouts {
            connect: Some(millis(200)),
            ..Default::default()
        });
        let added = stage.app().add("s", spec).await.unwrap();
        let server = added.server.unwrap();
        assert_ne!(server.failure().0, "DESTINATION_BLOCKED");
    })
    .await;
}

#[tokio::test]
async fn behaviour_39_mapped_metadata_addresses_are_blocked() {
    one_and_two(async |stage| {
        let mapped = [
            "[::ffff:a9fe:a9fe]",
            "[::ffff:169.254.169.254]",
            "[::a9fe:a9fe]",
        ];
        blocked(&stage, &mapped).await;
    })
    .await;
}

#[tokio::test]
async fn behaviour_41_loopback_is_open_unless_the_operator_closes_it() {
    let closed = TestDaemon::builder().set("policy.allow_loopback", false);
    one_and_two_with(closed, async |stage| {
        for host in ["127.0.0.1", "127.9.9.9", "[::1]", "[::ffff:127.0.0.1]"] {
            let added = stage.app().add("", http_spec("S", &url(host))).await;
            ErrorFacts::expect(added, Code::PermissionDenied, "DESTINATION_BLOCKED");
        }
    })
    .await;
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        stage.add_http(&fake.url()).await;
        stage.other().call_tool("s", "echo", "{}").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn behaviour_42_a_name_is_judged_by_what_it_resolves_to_when_it_is_dialled() {
    // Names that change their mind between two looks are in the tests of `policy`, which have a resolver of their own.
    let closed = TestDaemon::builder().set("policy.allow_loopback", false);
    one_and_two_with(closed, async |stage| {
        let fake = FakeMcp::echo(true).await;
        let named = url(&format!("localhost:{}", fake.addr().port()));
        let added = stage.app().add("s", http_spec("S", &named)).await.unwrap();
        let server = added.server.unwrap();
        assert_eq!(server.state(), ConnectionState::Failed, "{server:?}");
        assert_eq!(server.failure().0, "DESTINATION_BLOCKED");
        let called = stage.other().call_tool("s", "echo", "{}").await;
        assert!(called.is_err());
        assert!(fake.seen().is_empty(), "nothing was sent");
    })
    .await;
}

#[tokio::test]
async fn behaviour_42_what_was_stored_is_judged_again_at_a_start() {
    for count in 1..=2 {
        let dir = tempfile::tempdir().unwrap();
        let fake = FakeMcp::echo(true).await;
        let builder = TestDaemon::builder().data_dir(&dir.path().join("data"));
        let mut stage = Stage::set(builder.clone(), count).await;
        stage.add_http(&fake.url()).await;
        stage.daemon.terminate().await;
        let before = fake.seen().len();
        let builder = builder.set("policy.allow_loopback", false);
        let stage = Stage::set(builder, count).await;
        let server = stage.other().wait_for("s", ConnectionState::Failed).await;
        assert_eq!(server.failure().0, "DESTINATION_BLOCKED");
        assert_eq!(fake.seen().len(), before, "nothing was sent");
    }
}

#[tokio::test]
async fn behaviour_43_a_redirect_leads_nowhere_else_and_takes_no_headers_along() {
    one_and_two(async |stage| {
        let other = FakeMcp::echo(true).await;
        for place in ["http://10.0.0.1/mcp".to_owned(), other.url()] {
            let fake = FakeMcp::echo(true).await;
            let location = place.clone();
            fake.reply("*", move |_| {
                Reply::Raw(307, vec![("location", location.clone())], Vec::new().into())
            });
            let mut spec = http_spec("S", &fake.url());
            if let Some(v1::server_spec::Transport::Http(http)) = &mut spec.transport {
                http.headers.push(v1::Header {
                    name: "x-api-key".to_owned(),
                    value: "a secret of this server".to_owned(),
                });
            }
            let added = stage.app().add("s", spec).await.unwrap();
            let server = added.server.unwrap();
            assert_eq!(server.state(), ConnectionState::Failed, "{server:?}");
            let (reason, message) = server.failure();
            assert_eq!(reason, "DESTINATION_BLOCKED", "{message}");
            assert!(message.contains(&place), "{message}");
            stage.other().remove("s").await.unwrap();
        }
        assert!(
            other.seen().is_empty(),
            "nothing was sent to another origin"
        );
    })
    .await;
}

#[tokio::test]
async fn behaviour_45_what_leads_to_private_addresses_by_way_of_others_is_blocked() {
    one_and_two(async |stage| {
        let hosts = [
            "100.64.0.1",
            "100.127.255.255",
            "[64:ff9b::a00:1]",
            "[2002:a00:1::]",
            "224.0.0.1",
            "[ff02::1]",
            "metadata.google.internal",
            "metadata.google.internal.",
            "METADATA.google.internal",
        ];
        blocked(&stage, &hosts).await;
    })
    .await;
}

#[tokio::test]
async fn behaviour_46_only_http_without_user_info_is_registered() {
    one_and_two(async |stage| {
        for bad in [
            "ftp://example.com/mcp",
            "file:///etc/passwd",
            "javascript:alert(1)",
            "ws://example.com/mcp",
            "http://user@example.com/mcp",
            "http://user:hunter2@example.com/mcp",
            "//example.com/mcp",
            "example.com/mcp",
        ] {
            let added = stage.app().add("", http_spec("S", bad)).await;
            let facts = ErrorFacts::expect(added, Code::InvalidArgument, "INVALID_FIELD");
            assert!(!facts.message.contains("hunter2"), "{facts:?}");
        }
        assert!(stage.other().list().await.is_empty());
    })
    .await;
}
