//! Tokens are renewed once for everybody, kept when that fails for a while, and given up only if their authorization server
//! says so (cases B01 and B02, behaviours 71 to 73).

use futures_util::future::join_all;
use mcp_sidecar_tests::fake_auth::{html, oauth_error, play};
use mcp_sidecar_tests::prelude::*;

/// Starts so many calls, shared out among the apps, and waits for all results.
async fn calls(set: &AuthStage, count: usize) -> Vec<Result<v1::ToolResult, tonic::Status>> {
    let calls = (0..count).map(|number| {
        let app = &set.apps[number % set.apps.len()];
        async move {
            app.call_tool("s", "echo", &format!("{{\"call\":{number}}}"))
                .await
        }
    });
    join_all(calls).await
}

fn all_succeeded(results: Vec<Result<v1::ToolResult, tonic::Status>>) {
    for (number, result) in results.into_iter().enumerate() {
        let result = result.unwrap_or_else(|status| panic!("call {number}: {status:?}"));
        assert_eq!(text_of(&result), format!("{{\"call\":{number}}}"));
    }
}

/// How often a refresh token was used.
fn renewals(set: &AuthStage) -> usize {
    set.auth.grants("refresh_token")
}

#[tokio::test]
async fn b01_and_behaviour_71_an_expired_token_is_renewed_once() {
    for modern in [true, false] {
        play(&watched(), modern, &async |set: &mut AuthStage| {
            set.sign_in().await;
            let before = set.app().auth_status("s").await.unwrap();
            set.auth.expire_tokens();
            let refused = set.guard.refused().len();
            let gate = set.auth.hold(Endpoint::Token);
            let open = async {
                gate.arrived(1).await;
                // Everybody has met the old token before there is a new one.
                eventually("50 refusals", PATIENCE, async || {
                    (set.guard.refused().len() >= refused + 50).then_some(())
                })
                .await;
                gate.open();
            };
            let (results, ()) = tokio::join!(calls(set, 50), open);
            all_succeeded(results);
            assert_eq!(renewals(set), 1);
            let after = set.other().auth_status("s").await.unwrap();
            assert!(after.renewable && after.signed_in, "{after:?}");
            assert!(after.expire_time.unwrap().seconds >= before.expire_time.unwrap().seconds);
            assert_ne!(after.renew_time, before.renew_time);
            assert_eq!(set.auth.live_tokens().len(), 1);
        })
        .await;
    }
}

/// Five apps, a token that has just expired, an endpoint that takes 300 ms and ends a family whose token is used twice.
async fn five_apps() -> AuthStage {
    let set = AuthStage::set(watched(), 5, true).await;
    set.sign_in().await;
    set.auth.delay(Endpoint::Token, Duration::from_millis(300));
    set.auth.expire_tokens();
    set
}

#[tokio::test]
async fn b01_five_hundred_calls_of_five_apps_at_the_instant_of_expiry() {
    let set = five_apps().await;
    all_succeeded(calls(&set, 500).await);
    assert_eq!(renewals(&set), 1);
    assert_eq!(set.auth.count(Endpoint::Authorize), 1);
    set.finish().await;
}

#[tokio::test]
async fn b01_a_daemon_that_is_killed_between_a_new_token_and_its_use_has_it() {
    let mut set = five_apps().await;
    // The server takes the new token, and never answers.
    set.mcp.reply("tools/call", |_| Reply::Hang);
    let mcp = set.mcp.clone();
    let held = async {
        mcp.wait_method("tools/call").await;
        set.mcp
            .wait("a call with the new token", |seen| {
                let live = set.auth.live_tokens();
                seen.method() == "tools/call"
                    && live
                        .iter()
                        .any(|token| seen.header("authorization").contains(token))
            })
            .await;
    };
    tokio::select! {
        _ = calls(&set, 500) => panic!("the server does not answer"),
        () = held => {}
    }
    assert_eq!(renewals(&set), 1);
    set.daemon.kill9().await;
    set.mcp.reset("tools/call");
    set.restart().await;
    set.all_ready().await;
    all_succeeded(calls(&set, 500).await);
    // Nobody had to sign in again, and the token was not renewed again, either.
    assert_eq!(renewals(&set), 1);
    assert_eq!(set.auth.count(Endpoint::Authorize), 1);
    set.finish().await;
}

#[tokio::test]
async fn b01_a_new_token_that_never_arrived_costs_one_sign_in_and_no_loop() {
    protected(async |set| {
        set.sign_in().await;
        set.auth.expire_tokens();
        // The refresh token is used up, and nobody knows what came of it.
        set.auth.lose_next_answer(Endpoint::Token);
        let lost = set.app().call_tool("s", "echo", "{}").await;
        ErrorFacts::expect(lost, Code::Unavailable, "AUTHORIZATION_UNAVAILABLE");
        assert!(set.app().auth_status("s").await.unwrap().signed_in);
        let url = eventually("the end of the grant", PATIENCE, async || {
            let outcome = set.other().call_tool("s", "echo", "{}").await;
            let facts = ErrorFacts::of(&outcome.unwrap_err());
            facts.metadata.get("auth_url").cloned()
        });
        let url = url.await;
        let faults = set.auth.take_faults();
        assert_eq!(faults.len(), 1, "the same token once more: {faults:?}");
        assert_eq!(renewals(set), 2);
        set.browser.visit(&url).await;
        set.all_ready().await;
        set.all_can_call().await;
    })
    .await;
}

fn raw(status: u16, headers: &[(&'static str, &str)], body: &str) -> Reply {
    let headers = headers
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()));
    Reply::Raw(status, headers.collect(), body.to_owned().into())
}

/// Every answer of the token endpoint is trouble that passes. The pauses between attempts grow, so there cannot be many.
async fn passes(set: &AuthStage, hiccups: Vec<Reply>) {
    set.sign_in().await;
    set.auth.expire_tokens();
    for hiccup in hiccups {
        let before = set.auth.count(Endpoint::Token);
        set.auth.next(Endpoint::Token, hiccup);
        eventually("the endpoint to be asked", PATIENCE, async || {
            let outcome = set.other().call_tool("s", "echo", "{}").await;
            let facts = ErrorFacts::expect(outcome, Code::Unavailable, "AUTHORIZATION_UNAVAILABLE");
            assert!(facts.retry.is_some(), "{facts:?}");
            (set.auth.count(Endpoint::Token) > before).then_some(())
        })
        .await;
        for app in &set.apps {
            let status = app.auth_status("s").await.unwrap();
            assert!(status.signed_in && status.renewable, "{status:?}");
            assert_ne!(status.last_failure, "");
            assert!(status.pending.is_empty(), "{status:?}");
            let server = app.get("s").await.unwrap();
            assert_eq!(server.state(), ConnectionState::Ready);
            assert_eq!(server.facts().auth_url, "");
        }
    }
    eventually("a call that succeeds", PATIENCE, async || {
        set.app().call_tool("s", "echo", "{}").await.ok()
    })
    .await;
    set.all_can_call().await;
    let status = set.other().auth_status("s").await.unwrap();
    assert_eq!(status.last_failure, "");
    assert_eq!(set.auth.count(Endpoint::Authorize), 1);
    assert_eq!(set.auth.live_tokens().len(), 1);
}

#[tokio::test]
async fn b02_and_behaviour_72_trouble_at_the_token_endpoint_is_no_sign_out() {
    let play = async |count| {
        let set = AuthStage::set(watched(), count, true).await;
        let hiccups = vec![
            raw(502, &[], "bad gateway"),
            raw(530, &[("content-type", "text/html")], "<h1>530</h1>"),
            raw(429, &[("retry-after", "2")], "{\"error\":\"slow_down\"}"),
            Reply::Reset,
            html(200, "<html>maintenance</html>"),
        ];
        passes(&set, hiccups).await;
        set.finish().await;
    };
    tokio::join!(play(1), play(2));
}

#[tokio::test]
async fn b02_what_says_nothing_about_the_grant_is_trouble_that_passes() {
    let play = async |count| {
        let set = AuthStage::set(watched(), count, true).await;
        let json = [("content-type", "application/json")];
        let hiccups = vec![
            raw(200, &json, "{\"access_token\":1}"),
            oauth_error(400, "temporarily_unavailable", "later"),
            oauth_error(503, "server_error", "later"),
            raw(400, &json, "{\"error\":[\"invalid_grant\"]}"),
        ];
        passes(&set, hiccups).await;
        set.finish().await;
    };
    tokio::join!(play(1), play(2));
}

#[tokio::test]
async fn b02_who_says_how_long_to_wait_is_not_asked_before() {
    protected(async |set| {
        set.sign_in().await;
        set.auth.expire_tokens();
        set.auth
            .next(Endpoint::Token, raw(429, &[("retry-after", "2")], ""));
        let asked = set.auth.count(Endpoint::Token);
        let outcome = set.app().call_tool("s", "echo", "{}").await;
        let since = tokio::time::Instant::now();
        let facts = ErrorFacts::expect(outcome, Code::Unavailable, "AUTHORIZATION_UNAVAILABLE");
        let delay = facts.retry.unwrap();
        assert!(
            delay > Duration::from_millis(1500) && delay <= Duration::from_secs(2),
            "{delay:?}"
        );
        eventually("a call that succeeds", PATIENCE, async || {
            set.other().call_tool("s", "echo", "{}").await.ok()
        })
        .await;
        assert!(
            since.elapsed() > Duration::from_millis(1500),
            "{:?}",
            since.elapsed()
        );
        assert_eq!(set.auth.count(Endpoint::Token), asked + 2);
    })
    .await;
}

#[tokio::test]
async fn b02_trouble_survives_a_restart_and_tokens_do() {
    protected(async |set| {
        set.sign_in().await;
        set.auth.expire_tokens();
        set.auth
            .reply(Endpoint::Token, |_| Some(raw(502, &[], "no")));
        let outcome = set.app().call_tool("s", "echo", "{}").await;
        ErrorFacts::expect(outcome, Code::Unavailable, "AUTHORIZATION_UNAVAILABLE");
        set.daemon.kill9().await;
        set.restart().await;
        // The server refuses the old token, so the connection is tried again and again, as for any outage.
        let status = set.other().auth_status("s").await.unwrap();
        assert!(status.signed_in, "{status:?}");
        set.auth
            .wait_count(Endpoint::Token, set.auth.count(Endpoint::Token) + 1)
            .await;
        set.auth.reset(Endpoint::Token);
        set.app().connect_server("s").await.unwrap();
        set.all_ready().await;
        set.all_can_call().await;
        assert_eq!(set.auth.count(Endpoint::Authorize), 1);
    })
    .await;
}

#[tokio::test]
async fn a_token_is_renewed_before_it_expires() {
    protected(async |set| {
        // The server would refuse an expired one: nobody ever meets that.
        set.auth.shape(|shape| shape.expires_in = Some(4));
        set.sign_in().await;
        let refused = set.guard.refused().len();
        eventually("two renewals", PATIENCE, async || {
            set.all_can_call().await;
            (renewals(set) >= 2).then_some(())
        })
        .await;
        assert_eq!(set.guard.refused().len(), refused);
    })
    .await;
}

#[tokio::test]
async fn all_calls_that_meet_the_end_of_a_grant_hear_of_the_same_sign_in() {
    for modern in [true, false] {
        play(&watched(), modern, &async |set: &mut AuthStage| {
            set.sign_in().await;
            set.auth.revoke_everything();
            let mut places = std::collections::HashSet::new();
            for outcome in calls(set, 50).await {
                let facts =
                    ErrorFacts::expect(outcome, Code::FailedPrecondition, "SIGN_IN_REQUIRED");
                places.insert(facts.metadata["auth_url"].clone());
            }
            assert_eq!(places.len(), 1, "{places:?}");
            let url = set.auth_url().await;
            assert!(places.contains(&url));
            set.browser.visit(&url).await;
            set.all_ready().await;
            all_succeeded(calls(set, 50).await);
            assert_eq!(set.auth.count(Endpoint::Authorize), 2);
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_73_a_call_that_meets_the_end_of_a_grant_says_where_to_sign_in() {
    // The refresh token was revoked; there never was one; the client is not known any more.
    for end in 0..3 {
        protected(async |set| {
            set.auth.shape(|shape| shape.refreshes = end != 1);
            set.sign_in().await;
            let mut updates = set.other().updates("").await;
            updates.snapshot().await;
            match end {
                0 => set.auth.revoke_everything(),
                1 => set.auth.expire_tokens(),
                _ => {
                    set.auth.expire_tokens();
                    set.auth.forget_clients();
                }
            }
            let outcome = set.app().call_tool("s", "echo", "{}").await;
            let facts = ErrorFacts::expect(outcome, Code::FailedPrecondition, "SIGN_IN_REQUIRED");
            let url = &facts.metadata["auth_url"];
            let streamed = updates.server_where("the end of the grant", |server| {
                server.state() == ConnectionState::Authenticating
                    && !server.facts().auth_url.is_empty()
            });
            assert_eq!(streamed.await.facts().auth_url, *url);
            assert_eq!(set.auth_url().await, *url);
            // Who comes later hears the same.
            let outcome = set.other().call_tool("s", "echo", "{}").await;
            let again = ErrorFacts::expect(outcome, Code::FailedPrecondition, "SIGN_IN_REQUIRED");
            for fact in ["auth_url", "sign_in_id", "scopes"] {
                assert_eq!(again.metadata[fact], facts.metadata[fact]);
            }
            let sign_in = set
                .other()
                .sign_in(&facts.metadata["sign_in_id"])
                .await
                .unwrap();
            assert_eq!(sign_in.auth_url, *url);
            set.browser.visit(url).await;
            set.all_ready().await;
            set.all_can_call().await;
            let registrations = if end == 2 { 2 } else { 1 };
            assert_eq!(set.auth.count(Endpoint::Register), registrations);
        })
        .await;
    }
}
