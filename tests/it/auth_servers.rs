//! What is granted belongs to a registration: it goes with it wherever it goes, and ends with it (behaviours 6, 10, 12, 68 and
//! 74); it serves every transport and every session of the server.

use mcp_sidecar_tests::fake_auth::Page;
use mcp_sidecar_tests::prelude::*;
use v1::Isolation;

/// Expects that a page says these words.
#[track_caller]
fn says(page: &Page, status: u16, words: &str) {
    assert_eq!(page.status, status, "{page:?}");
    assert!(page.text.contains(words), "`{words}` in {}", page.text);
}

#[tokio::test]
async fn behaviour_06_a_server_that_is_added_again_is_signed_in_already() {
    protected(async |set| {
        set.sign_in().await;
        set.other().disconnect_server("s").await.unwrap();
        set.restart().await;
        let before = set.auth.all_asked().len();
        let added = set.other().add("s", set.spec()).await.unwrap();
        assert_eq!(added.outcome(), AddOutcome::Existing);
        set.app().connect_server("s").await.unwrap();
        set.all_ready().await;
        set.all_can_call().await;
        assert_eq!(
            set.auth.all_asked().len(),
            before,
            "nobody was asked anything"
        );
        assert_eq!(set.app().list().await.len(), 1);
    })
    .await;
}

#[tokio::test]
async fn behaviour_10_tokens_move_with_their_server_to_its_new_id() {
    protected(async |set| {
        let added = set.app().add("", set.spec()).await.unwrap();
        let generated = added.server.unwrap().id;
        let url = set.other().wait_authenticating(&generated).await;
        says(&set.browser.visit(&url).await, 200, "Signed in");
        set.other()
            .wait_for(&generated, ConnectionState::Ready)
            .await;
        set.other().add("s", set.spec()).await.unwrap();
        set.all_ready().await;
        set.all_can_call().await;
        let outcome = set.app().auth_status(&generated).await;
        ErrorFacts::expect(outcome, Code::NotFound, "SERVER_NOT_FOUND");
        // They are still there after a restart, and can be renewed.
        set.restart().await;
        set.all_ready().await;
        set.auth.expire_tokens();
        set.all_can_call().await;
        assert_eq!(set.auth.count(Endpoint::Authorize), 1);
        assert_eq!(set.auth.count(Endpoint::Register), 1);
    })
    .await;
}

#[tokio::test]
async fn behaviour_12_a_sign_in_that_began_under_another_id_completes() {
    for restart in [false, true] {
        protected(async |set| {
            let added = set.app().add("", set.spec()).await.unwrap();
            let generated = added.server.unwrap().id;
            let url = set.other().wait_authenticating(&generated).await;
            set.other().add("s", set.spec()).await.unwrap();
            assert_eq!(set.auth_url().await, url);
            if restart {
                set.restart().await;
                assert_eq!(set.auth_url().await, url);
            }
            let redirect = set.browser.decide(&url).await;
            let done = set.other().complete_sign_in(&redirect).await.unwrap();
            assert_eq!(done.server_id, "s");
            set.all_ready().await;
            set.all_can_call().await;
            assert_eq!(set.auth.count(Endpoint::Authorize), 1);
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_68_what_expired_while_no_daemon_ran_is_handed_to_nobody() {
    let quick = watched().set("auth.sign_in_expiry", "1s");
    protected_with(quick, async |set| {
        let url = set.add_protected().await;
        let pending = set.app().auth_status("s").await.unwrap().pending;
        let expires = pending[0].expire_time.unwrap();
        set.daemon.kill9().await;
        eventually("the end of the sign-in", PATIENCE, async || {
            let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
            (now.as_secs() > u64::try_from(expires.seconds).unwrap()).then_some(())
        })
        .await;
        set.restart().await;
        let fresh = set.auth_url().await;
        assert_ne!(fresh, url);
        let ended = set.other().sign_in(&pending[0].id).await.unwrap();
        assert_eq!(ended.state(), v1::SignInState::Expired);
        assert_eq!(ended.auth_url, "");
    })
    .await;
}

#[tokio::test]
async fn an_app_that_must_not_use_a_namespace_learns_nothing_of_its_sign_ins() {
    protected(async |set| {
        let url = set.add_protected().await;
        let id = set.app().auth_status("s").await.unwrap().pending[0]
            .id
            .clone();
        let redirect = set.browser.decide(&url).await;
        let stranger = set.other().in_namespace("elsewhere");
        for (what, outcome) in [
            ("status", stranger.auth_status("s").await.err()),
            ("start", stranger.start_sign_in("s").await.err()),
            ("sign-in", stranger.sign_in(&id).await.err()),
            ("complete", stranger.complete_sign_in(&redirect).await.err()),
            ("cancel", stranger.cancel_sign_in(&id).await.err()),
            ("sign-out", stranger.sign_out("s").await.err()),
        ] {
            let status = outcome.unwrap_or_else(|| panic!("{what} is refused"));
            assert_eq!(status.code(), Code::NotFound, "{what}: {status:?}");
            assert!(
                !status.message().contains("127.0.0.1"),
                "{what}: {status:?}"
            );
        }
        assert_eq!(set.auth_url().await, url);
    })
    .await;
}

#[tokio::test]
async fn http_with_a_stream_of_its_own_is_signed_in_at_as_well() {
    for count in 1..=2 {
        let auth = FakeAuth::start().await;
        let old = FakeMcp::legacy().http_sse();
        let mut set = AuthStage::set_before(watched(), count, old, auth).await;
        set.sign_in().await;
        set.all_can_call().await;
        set.auth.expire_tokens();
        set.all_can_call().await;
        // So is the stream, when it has to be opened again.
        set.auth.expire_tokens();
        set.mcp.end_streams();
        let again = eventually("a call over a new stream", PATIENCE, async || {
            set.other().call_tool("s", "echo", "{}").await.ok()
        });
        again.await;
        set.restart().await;
        set.all_ready().await;
        set.all_can_call().await;
        assert_eq!(set.auth.count(Endpoint::Authorize), 1);
        set.finish().await;
    }
}

#[tokio::test]
async fn sessions_of_single_apps_share_what_was_granted() {
    for count in 1..=2 {
        let set = AuthStage::set(watched(), count, false).await;
        let spec = ServerSpec {
            isolation: Isolation::PerConnection.into(),
            ..set.spec()
        };
        set.sign_in_as(spec).await;
        set.all_can_call().await;
        set.auth.expire_tokens();
        let calls = (0..20).map(|number| {
            let app = &set.apps[number % set.apps.len()];
            app.call_tool("s", "echo", "{}")
        });
        for result in futures_util::future::join_all(calls).await {
            result.unwrap();
        }
        assert_eq!(set.auth.grants("refresh_token"), 1);
        // One that ends ends for all of them.
        set.auth.revoke_everything();
        for app in &set.apps {
            let outcome = app.call_tool("s", "echo", "{}").await;
            ErrorFacts::expect(outcome, Code::FailedPrecondition, "SIGN_IN_REQUIRED");
        }
        set.browser.visit(&set.auth_url().await).await;
        set.all_ready().await;
        set.all_can_call().await;
        assert_eq!(set.auth.live_tokens().len(), 1);
        set.finish().await;
    }
}

#[tokio::test]
async fn the_stream_of_notifications_goes_on_with_a_new_token() {
    for modern in [true, false] {
        for count in 1..=2 {
            let set = AuthStage::set(watched(), count, modern).await;
            set.sign_in().await;
            set.auth.expire_tokens();
            set.mcp.crash().await;
            set.mcp.revive().await;
            set.all_ready().await;
            set.all_can_call().await;
            set.mcp.set_list("tools", vec![tool("another")]);
            set.mcp.notify("notifications/tools/list_changed").await;
            for app in &set.apps {
                eventually("the new list", PATIENCE, async || {
                    let tools = app.list_tools().await;
                    tools
                        .iter()
                        .any(|tool| tool.name == "another")
                        .then_some(())
                })
                .await;
            }
            assert_eq!(set.auth.count(Endpoint::Authorize), 1);
            set.finish().await;
        }
    }
}

#[tokio::test]
async fn behaviour_74_a_server_that_is_removed_leaves_nothing_behind() {
    protected(async |set| {
        set.sign_in().await;
        let pending = set.app().start_sign_in("s").await.unwrap();
        let redirect = set.browser.decide(&pending.auth_url).await;
        set.other().remove("s").await.unwrap();
        eventually("the revocation", PATIENCE, async || {
            set.auth.live_tokens().is_empty().then_some(())
        })
        .await;
        assert!(set.auth.count(Endpoint::Revoke) >= 1);
        let outcome = set.app().sign_in(&pending.id).await;
        ErrorFacts::expect(outcome, Code::NotFound, "SIGN_IN_NOT_FOUND");
        set.app().complete_sign_in(&redirect).await.unwrap_err();
        let outcome = set.app().auth_status("s").await;
        ErrorFacts::expect(outcome, Code::NotFound, "SERVER_NOT_FOUND");
        // Not even the client is remembered.
        set.sign_in().await;
        set.all_can_call().await;
        assert_eq!(set.auth.count(Endpoint::Register), 2);
    })
    .await;
}

#[tokio::test]
async fn who_signs_out_is_asked_to_sign_in_again() {
    for revokes in [true, false] {
        protected(async |set| {
            set.auth.shape(|shape| shape.revokes = revokes);
            set.sign_in().await;
            let out = set.other().sign_out("s").await.unwrap();
            assert_eq!((out.was_signed_in, out.revoked), (true, revokes));
            if revokes {
                assert_eq!(set.auth.live_tokens(), Vec::<String>::new());
            }
            let url = set.auth_url().await;
            let status = set.app().auth_status("s").await.unwrap();
            assert!(!status.signed_in && status.issuer.is_empty(), "{status:?}");
            let out = set.app().sign_out("s").await.unwrap();
            assert_eq!((out.was_signed_in, out.revoked), (false, false));
            let url = match set.app().auth_status("s").await.unwrap().pending.first() {
                Some(pending) => pending.auth_url.clone(),
                None => set
                    .app()
                    .start_sign_in("s")
                    .await
                    .map_or(url, |begun| begun.auth_url),
            };
            says(&set.browser.visit(&url).await, 200, "Signed in");
            set.all_ready().await;
            set.all_can_call().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_revocation_that_cannot_be_had_keeps_nobody_signed_in() {
    protected(async |set| {
        set.sign_in().await;
        set.auth.reply(Endpoint::Revoke, |_| Some(Reply::Reset));
        let out = set.other().sign_out("s").await.unwrap();
        assert_eq!((out.was_signed_in, out.revoked), (true, false));
        set.auth_url().await;
        set.restart().await;
        set.auth_url().await;
        assert!(!set.app().auth_status("s").await.unwrap().signed_in);
    })
    .await;
}

#[tokio::test]
async fn changed_settings_of_authorization_end_what_was_granted_under_the_old_ones() {
    protected(async |set| {
        set.sign_in().await;
        let spec = set.spec_with(v1::Authorization {
            scopes: vec!["other".to_owned()],
            ..Default::default()
        });
        set.other()
            .update("s", spec, &["authorization"])
            .await
            .unwrap();
        let url = set.auth_url().await;
        says(&set.browser.visit(&url).await, 200, "Signed in");
        set.all_ready().await;
        set.all_can_call().await;
        assert_eq!(set.auth.last(Endpoint::Authorize).scopes(), ["other"]);
        // Other settings are none of its business.
        let mut spec = set.spec();
        spec.name = "Another name".to_owned();
        set.other().update("s", spec, &["name"]).await.unwrap();
        set.all_ready().await;
        set.all_can_call().await;
        assert_eq!(set.auth.count(Endpoint::Authorize), 2);
    })
    .await;
}
