//! The life of a sign-in: begun, shown to everybody, completed once, over a restart, or ended without harm (behaviours 48 to
//! 63, 69 and 75).

use mcp_sidecar_tests::fake_auth::{Page, oauth_error, play};
use mcp_sidecar_tests::prelude::*;
use v1::SignInState;

/// Expects that a page says these words.
#[track_caller]
fn says(page: &Page, status: u16, words: &str) {
    assert_eq!(page.status, status, "{page:?}");
    assert!(page.text.contains(words), "`{words}` in {}", page.text);
}

/// The pages of redirects that are visited one after the other.
async fn redirects(set: &AuthStage, urls: &[&str]) -> Vec<String> {
    let mut redirects = Vec::new();
    for url in urls {
        redirects.push(set.browser.decide(url).await);
    }
    redirects
}

#[tokio::test]
async fn behaviour_48_a_place_to_sign_in_is_on_disk_before_anybody_hears_of_it() {
    for modern in [true, false] {
        play(&watched(), modern, &async |set: &mut AuthStage| {
            let mut updates = set.other().updates("").await;
            let adding = {
                let (app, spec) = (set.app().clone(), set.spec());
                tokio::spawn(async move { app.add("s", spec).await })
            };
            let server = updates.server_where("a place to sign in", |server| {
                !server.facts().auth_url.is_empty()
            });
            let url = server.await.facts().auth_url.clone();
            set.daemon.kill9().await;
            let _gone = adding.await;
            set.restart().await;
            assert_eq!(set.auth_url().await, url);
            says(&set.browser.visit(&url).await, 200, "Signed in");
            set.all_ready().await;
            set.all_can_call().await;
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_49_a_sign_in_that_succeeded_leaves_no_place_to_sign_in() {
    protected(async |set| {
        let url = set.add_protected().await;
        let pending = set.app().auth_status("s").await.unwrap().pending;
        let [sign_in] = &pending[..] else {
            panic!("one sign-in is pending: {pending:?}");
        };
        assert_eq!(
            (sign_in.state(), &sign_in.auth_url),
            (SignInState::Pending, &url)
        );
        let waiting = {
            let (app, id) = (set.other().clone(), sign_in.id.clone());
            tokio::spawn(async move { app.sign_in_within(&id, PATIENCE).await })
        };
        set.browser.visit(&url).await;
        let ended = within("the end of the sign-in", waiting)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(ended.state(), SignInState::Succeeded);
        assert_eq!(ended.auth_url, "");
        assert_eq!(ended.redirect_uri, sign_in.redirect_uri);
        assert_eq!(ended.issuer, set.auth.issuer());
        set.all_ready().await;
        let status = set.other().auth_status("s").await.unwrap();
        assert!(status.signed_in && status.pending.is_empty(), "{status:?}");
        assert_eq!(status.token_type, "Bearer");
    })
    .await;
}

#[tokio::test]
async fn behaviour_50_a_state_that_was_used_is_of_no_use_while_somebody_has_to_sign_in() {
    protected(async |set| {
        let url = set.add_protected().await;
        set.auth.next(
            Endpoint::Token,
            oauth_error(400, "invalid_grant", "not this one"),
        );
        let redirect = set.browser.decide(&url).await;
        says(&set.browser.visit(&redirect).await, 400, "not this one");
        let tokens = set.auth.count(Endpoint::Token);
        for _ in 0..2 {
            let page = set.browser.try_get(&redirect).await;
            // The listener may be gone with the last sign-in that needed it.
            if let Some(page) = page {
                assert_eq!(page.status, 400);
            }
            let outcome = set.other().complete_sign_in(&redirect).await;
            ErrorFacts::expect(outcome, Code::FailedPrecondition, "ALREADY_RESOLVED");
        }
        assert_eq!(set.auth.count(Endpoint::Token), tokens);
        for app in &set.apps {
            assert_eq!(
                app.get("s").await.unwrap().state(),
                ConnectionState::Authenticating
            );
        }
    })
    .await;
}

#[tokio::test]
async fn behaviour_51_a_state_that_was_used_is_harmless_when_somebody_has_signed_in() {
    protected(async |set| {
        let url = set.add_protected().await;
        // Another sign-in keeps the listener there.
        let redirect = set.browser.decide(&url).await;
        let tabs = tokio::join!(set.browser.get(&redirect), set.browser.get(&redirect));
        for page in [&tabs.0, &tabs.1] {
            assert_eq!(page.header("cache-control"), "no-store");
        }
        let done = [&tabs.0, &tabs.1]
            .into_iter()
            .filter(|page| page.status == 200);
        assert!(done.count() >= 1, "{tabs:?}");
        set.all_ready().await;
        let outcome = set.other().complete_sign_in(&redirect).await;
        ErrorFacts::expect(outcome, Code::FailedPrecondition, "ALREADY_RESOLVED");
        if let Some(page) = set.browser.try_get(&redirect).await {
            says(&page, 200, "Signed in already");
        }
        assert_eq!(set.auth.count(Endpoint::Token), 1);
        set.all_ready().await;
        set.all_can_call().await;
    })
    .await;
}

#[tokio::test]
async fn behaviour_52_a_sign_in_that_took_too_long_has_expired() {
    let quick = watched().set("auth.sign_in_expiry", "1s");
    protected_with(quick, async |set| {
        let url = set.add_protected().await;
        let redirect = set.browser.decide(&url).await;
        let pending = set.app().auth_status("s").await.unwrap().pending;
        let ended = set
            .other()
            .sign_in_within(&pending[0].id, PATIENCE)
            .await
            .unwrap();
        assert_eq!(ended.state(), SignInState::Expired);
        let outcome = set.other().complete_sign_in(&redirect).await;
        let facts = ErrorFacts::expect(outcome, Code::FailedPrecondition, "ALREADY_RESOLVED");
        assert!(facts.message.contains("expired"), "{facts:?}");
        assert_eq!(set.auth.count(Endpoint::Token), 0);
        for app in &set.apps {
            let server = app.get("s").await.unwrap();
            assert_eq!(server.state(), ConnectionState::Authenticating);
            assert_eq!(
                server.facts().auth_url,
                "",
                "nobody is sent to what has expired"
            );
        }
        // Whoever wants something of the server gets a new place to sign in.
        let outcome = set.app().call_tool("s", "echo", "{}").await;
        let facts = ErrorFacts::expect(outcome, Code::FailedPrecondition, "SIGN_IN_REQUIRED");
        let fresh = facts
            .metadata
            .get("auth_url")
            .expect("a new place to sign in");
        assert_ne!(*fresh, url);
        set.browser.visit(fresh).await;
        set.all_ready().await;
    })
    .await;
}

#[tokio::test]
async fn behaviour_54_and_63_what_is_forged_changes_nothing() {
    protected(async |set| {
        let url = set.add_protected().await;
        let genuine = set.browser.decide(&url).await;
        let (place, query) = genuine.split_once('?').unwrap();
        let wrong_state = query.replace("state=", "state=x");
        let no_state = query.replace("state=", "status=");
        let twice = format!("{query}&code=another");
        for query in [
            &wrong_state,
            &no_state,
            &twice,
            "",
            "state=",
            "code=x&state=y",
        ] {
            let forged = format!("{place}?{query}");
            assert_eq!(set.browser.visit(&forged).await.status, 400, "{query}");
            set.other().complete_sign_in(&forged).await.unwrap_err();
        }
        // Another path, another origin, another method.
        let elsewhere = format!("{place}/other?{query}");
        assert_eq!(set.browser.visit(&elsewhere).await.status, 404);
        for forged in [
            elsewhere.clone(),
            format!("https://evil.example/oauth/callback?{query}"),
            genuine.replace("127.0.0.1", "127.0.0.2"),
            genuine.replace("http://", "https://"),
        ] {
            let outcome = set.other().complete_sign_in(&forged).await;
            let facts = ErrorFacts::expect(outcome, Code::InvalidArgument, "INVALID_FIELD");
            assert_eq!(facts.field, "redirect_url");
        }
        let post = reqwest::Client::new().post(&genuine).send().await.unwrap();
        assert_eq!(post.status(), 405);
        assert_eq!(set.auth.count(Endpoint::Token), 0);
        assert_eq!(set.auth_url().await, url);
        says(&set.browser.visit(&genuine).await, 200, "Signed in");
        set.all_ready().await;
        set.all_can_call().await;
    })
    .await;
}

#[tokio::test]
async fn behaviour_55_a_sign_in_that_failed_spoils_no_other() {
    protected(async |set| {
        let first = set.add_protected().await;
        let second = set.other().start_sign_in("s").await.unwrap();
        set.auth
            .decide(Decision::Refuse("access_denied", "the user said no"));
        let page = set.browser.visit(&first).await;
        says(&page, 400, "the user said no");
        let outcome = set.other().call_tool("s", "echo", "{}").await;
        let facts = ErrorFacts::expect(outcome, Code::FailedPrecondition, "SIGN_IN_REQUIRED");
        assert_eq!(facts.metadata["auth_url"], second.auth_url);
        says(&set.browser.visit(&second.auth_url).await, 200, "Signed in");
        set.all_ready().await;
        set.all_can_call().await;
        let server = set.other().get("s").await.unwrap();
        assert_eq!(server.failure(), ("", ""), "{server:?}");
    })
    .await;
}

#[tokio::test]
async fn behaviour_56_and_60_of_two_sign_ins_that_end_at_once_one_counts() {
    for modern in [true, false] {
        play(&watched(), modern, &async |set: &mut AuthStage| {
            let first = set.add_protected().await;
            let second = set.other().start_sign_in("s").await.unwrap();
            let back = redirects(set, &[&first, &second.auth_url]).await;
            // The first is being redeemed while the second arrives.
            let gate = set.auth.hold(Endpoint::Token);
            let first = {
                let (browser, url) = (set.browser.clone(), back[0].clone());
                tokio::spawn(async move { browser.get(&url).await })
            };
            gate.arrived(1).await;
            gate.open();
            says(&within("the page", first).await.unwrap(), 200, "Signed in");
            let late = set.other().complete_sign_in(&back[1]).await;
            ErrorFacts::expect(late, Code::FailedPrecondition, "ALREADY_RESOLVED");
            set.all_ready().await;
            set.all_can_call().await;
            assert_eq!(set.auth.count(Endpoint::Token), 1);
            let ended = set.app().sign_in(&second.id).await.unwrap();
            assert_eq!(ended.state(), SignInState::Superseded);
            // One handshake was refused, and one was not.
            let method = if modern {
                "server/discover"
            } else {
                "initialize"
            };
            let accepted = set.mcp.seen_of(method).into_iter();
            let accepted = accepted.filter(|seen| !seen.header("authorization").is_empty());
            assert_eq!(accepted.count(), 1);
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_57_two_sign_ins_that_are_redeemed_at_once_do_no_harm() {
    protected(async |set| {
        let first = set.add_protected().await;
        let second = set.other().start_sign_in("s").await.unwrap();
        let back = redirects(set, &[&first, &second.auth_url]).await;
        let gate = set.auth.hold(Endpoint::Token);
        let visits = back.into_iter().map(|url| {
            let browser = set.browser.clone();
            tokio::spawn(async move { browser.get(&url).await })
        });
        let visits: Vec<_> = visits.collect();
        gate.arrived(2).await;
        gate.open();
        for visit in visits {
            let page = within("the page", visit).await.unwrap();
            assert_eq!(page.status, 200, "{page:?}");
        }
        set.all_ready().await;
        set.all_can_call().await;
        set.restart().await;
        set.all_ready().await;
        set.all_can_call().await;
    })
    .await;
}

#[tokio::test]
async fn behaviour_58_an_error_that_comes_after_the_success_is_ignored() {
    protected(async |set| {
        let first = set.add_protected().await;
        let second = set.other().start_sign_in("s").await.unwrap();
        let good = set.browser.decide(&first).await;
        set.auth
            .decide(Decision::Refuse("access_denied", "too late"));
        let bad = set.browser.decide(&second.auth_url).await;
        says(&set.browser.visit(&good).await, 200, "Signed in");
        let outcome = set.other().complete_sign_in(&bad).await;
        ErrorFacts::expect(outcome, Code::FailedPrecondition, "ALREADY_RESOLVED");
        set.all_ready().await;
        set.all_can_call().await;
        let server = set.other().get("s").await.unwrap();
        assert_eq!(server.failure(), ("", ""), "{server:?}");
        let status = set.other().auth_status("s").await.unwrap();
        assert_eq!(status.last_failure, "");
    })
    .await;
}

#[tokio::test]
async fn behaviour_61_every_tab_has_a_verifier_of_its_own() {
    protected(async |set| {
        let first = set.add_protected().await;
        let second = set.other().start_sign_in("s").await.unwrap();
        // The tab that was opened first is the last that is used.
        let back = redirects(set, &[&first, &second.auth_url]).await;
        says(&set.browser.visit(&back[1]).await, 200, "Signed in");
        set.all_ready().await;
        set.app().sign_out("s").await.unwrap();
        let third = set.auth_url().await;
        says(&set.browser.visit(&third).await, 200, "Signed in");
        set.all_ready().await;
        let verifiers = set.auth.asked(Endpoint::Token).into_iter();
        let mut verifiers: Vec<_> = verifiers
            .map(|asked| asked.param("code_verifier").to_owned())
            .collect();
        assert_eq!(verifiers.len(), 2);
        verifiers.dedup();
        assert_eq!(verifiers.len(), 2);
    })
    .await;
}

#[tokio::test]
async fn behaviour_62_the_redirect_of_one_server_is_nothing_to_another() {
    protected(async |set| {
        let url = set.add_protected().await;
        let other = FakeMcp::echo(true).await;
        let _guard = Guard::before(&other, &set.auth);
        set.other()
            .add("b", http_spec("B", &other.url()))
            .await
            .unwrap();
        let b = set.app().wait_authenticating("b").await;
        let b_id = set.app().auth_status("b").await.unwrap().pending[0]
            .id
            .clone();
        let redirect = set.browser.decide(&url).await;
        let outcome = set.other().complete_sign_in_of(&b_id, &redirect).await;
        let facts = ErrorFacts::expect(outcome, Code::InvalidArgument, "INVALID_FIELD");
        assert_eq!(facts.field, "redirect_url");
        // In another namespace there is no such sign-in.
        let stranger = set.other().in_namespace("elsewhere");
        stranger
            .add("x", http_spec("X", &other.url()))
            .await
            .unwrap();
        stranger.complete_sign_in(&redirect).await.unwrap_err();
        let outcome = stranger.sign_in(&b_id).await;
        ErrorFacts::expect(outcome, Code::NotFound, "SIGN_IN_NOT_FOUND");
        let outcome = stranger.cancel_sign_in(&b_id).await;
        ErrorFacts::expect(outcome, Code::NotFound, "SIGN_IN_NOT_FOUND");
        assert_eq!(set.auth.count(Endpoint::Token), 0);
        assert_eq!(set.app().wait_authenticating("b").await, b);
        let done = set.other().complete_sign_in(&redirect).await.unwrap();
        assert_eq!(done.server_id, "s");
        set.all_ready().await;
        assert_eq!(
            set.app().get("b").await.unwrap().state(),
            ConnectionState::Authenticating
        );
        says(&set.browser.visit(&b).await, 200, "Signed in");
        set.other().wait_for("b", ConnectionState::Ready).await;
    })
    .await;
}

#[tokio::test]
async fn a_refusal_while_a_code_is_redeemed_waits_for_what_comes_of_it() {
    protected(async |set| {
        set.sign_in().await;
        let second = set.other().start_sign_in("s").await.unwrap();
        let redirect = set.browser.decide(&second.auth_url).await;
        set.auth.revoke_everything();
        let gate = set.auth.hold(Endpoint::Token);
        let visit = {
            let (browser, url) = (set.browser.clone(), redirect);
            tokio::spawn(async move { browser.get(&url).await })
        };
        gate.arrived(1).await;
        // The server refuses these; a user has been there already, so nobody is asked once more.
        let refused = set.guard.refused().len();
        let calls = (0..5).map(|number| {
            let app = set.apps[number % set.apps.len()].clone();
            tokio::spawn(async move { app.call_tool("s", "echo", "{}").await })
        });
        let calls: Vec<_> = calls.collect();
        eventually("the refusals", PATIENCE, async || {
            (set.guard.refused().len() >= refused + 5).then_some(())
        })
        .await;
        gate.open();
        says(&within("the page", visit).await.unwrap(), 200, "Signed in");
        for call in calls {
            within("the call", call).await.unwrap().unwrap();
        }
        set.all_ready().await;
        assert_eq!(set.auth.count(Endpoint::Authorize), 2);
        let pending = set.other().auth_status("s").await.unwrap().pending;
        assert!(pending.is_empty(), "{pending:?}");
    })
    .await;
}

#[tokio::test]
async fn behaviour_69_a_pending_sign_in_survives_a_restart() {
    for kill in [true, false] {
        protected(async |set| {
            let url = set.add_protected().await;
            let id = set.app().auth_status("s").await.unwrap().pending[0]
                .id
                .clone();
            let seen = set.mcp.seen().len();
            if kill {
                set.daemon.kill9().await;
            }
            set.restart().await;
            assert_eq!(set.auth_url().await, url);
            let added = set.other().add("s", set.spec()).await.unwrap();
            assert_eq!(added.server.unwrap().facts().auth_url, url);
            let outcome = set.app().call_tool("s", "echo", "{}").await;
            let facts = ErrorFacts::expect(outcome, Code::FailedPrecondition, "SIGN_IN_REQUIRED");
            assert_eq!(facts.metadata["auth_url"], url);
            assert_eq!(facts.metadata["sign_in_id"], id);
            assert_eq!(set.mcp.seen().len(), seen, "the server is left alone");
            // The browser that was on its way all the time arrives where it was sent to.
            let page = eventually("the listener", PATIENCE, async || {
                set.browser.try_get(&set.browser.decide(&url).await).await
            });
            says(&page.await, 200, "Signed in");
            set.all_ready().await;
            set.all_can_call().await;
            let ended = set.other().sign_in(&id).await.unwrap();
            assert_eq!(ended.state(), SignInState::Succeeded);
        })
        .await;
    }
}

#[tokio::test]
async fn a_restart_while_a_code_is_redeemed_voids_that_sign_in_cleanly() {
    protected(async |set| {
        let url = set.add_protected().await;
        let id = set.app().auth_status("s").await.unwrap().pending[0]
            .id
            .clone();
        let redirect = set.browser.decide(&url).await;
        let gate = set.auth.hold(Endpoint::Token);
        let visit = {
            let (browser, url) = (set.browser.clone(), redirect.clone());
            tokio::spawn(async move { browser.try_get(&url).await })
        };
        gate.arrived(1).await;
        set.daemon.kill9().await;
        assert!(within("the page", visit).await.unwrap().is_none());
        gate.open();
        set.restart().await;
        // What came of the code nobody knows: there is a new place to sign in, and the old one is over.
        let outcome = set.other().call_tool("s", "echo", "{}").await;
        ErrorFacts::expect(outcome, Code::FailedPrecondition, "SIGN_IN_REQUIRED");
        let fresh = set.auth_url().await;
        assert_ne!(fresh, url);
        let ended = set.other().sign_in(&id).await.unwrap();
        assert_ne!(ended.state(), SignInState::Pending);
        assert_ne!(ended.state(), SignInState::Redeeming);
        set.other().complete_sign_in(&redirect).await.unwrap_err();
        says(&set.browser.visit(&fresh).await, 200, "Signed in");
        set.all_ready().await;
        set.all_can_call().await;
    })
    .await;
}

#[tokio::test]
async fn behaviour_75_where_nobody_shall_sign_in_the_error_says_exactly_that() {
    protected(async |set| {
        let spec = set.spec_with(v1::Authorization {
            method: Some(v1::authorization::Method::None(v1::NoAuthorization {})),
            ..Default::default()
        });
        set.app().add("s", spec).await.unwrap();
        for app in &set.apps {
            let server = app.wait_for("s", ConnectionState::Failed).await;
            let (_, message) = server.failure();
            assert!(message.contains("401"), "{message}");
            assert_eq!(server.facts().auth_url, "");
        }
        assert_eq!(set.auth.all_asked().len(), 0);
    })
    .await;
    // A callback that a proxy passes on to a port, and the port is taken.
    let there = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = u32::from(there.local_addr().unwrap().port());
    let builder = watched()
        .set(
            "auth.callback_url",
            "https://sidecar.example/oauth/callback",
        )
        .set("auth.callback_port", port);
    protected_with(builder, async |set| {
        set.app().add("s", set.spec()).await.unwrap();
        let outcome = set.other().start_sign_in("s").await;
        let facts = ErrorFacts::expect(outcome, Code::Unavailable, "AUTHORIZATION_UNAVAILABLE");
        assert!(facts.message.contains("auth.callback_port"), "{facts:?}");
        assert_eq!(set.auth.count(Endpoint::Authorize), 0);
    })
    .await;
}

#[tokio::test]
async fn a_sign_in_that_is_cancelled_is_over() {
    protected(async |set| {
        let url = set.add_protected().await;
        let redirect = set.browser.decide(&url).await;
        let id = set.app().auth_status("s").await.unwrap().pending[0]
            .id
            .clone();
        let cancelled = set.other().cancel_sign_in(&id).await.unwrap();
        assert_eq!(cancelled.state(), SignInState::Cancelled);
        let outcome = set.app().cancel_sign_in(&id).await;
        ErrorFacts::expect(outcome, Code::FailedPrecondition, "ALREADY_RESOLVED");
        let outcome = set.app().complete_sign_in(&redirect).await;
        ErrorFacts::expect(outcome, Code::FailedPrecondition, "ALREADY_RESOLVED");
        assert_eq!(set.auth.count(Endpoint::Token), 0);
        let outcome = set.other().cancel_sign_in("nobody-knows-it").await;
        ErrorFacts::expect(outcome, Code::NotFound, "SIGN_IN_NOT_FOUND");
        let fresh = set.other().start_sign_in("s").await.unwrap();
        says(&set.browser.visit(&fresh.auth_url).await, 200, "Signed in");
        set.all_ready().await;
    })
    .await;
}

#[tokio::test]
async fn only_a_few_sign_ins_of_a_server_are_pending() {
    protected_with(
        watched().set("auth.pending_per_server", 2_u32),
        async |set| {
            let first = set.add_protected().await;
            let first_back = set.browser.decide(&first).await;
            let mut later = Vec::new();
            for number in 0..3 {
                let app = &set.apps[number % set.apps.len()];
                later.push(app.start_sign_in("s").await.unwrap());
            }
            let pending = set.other().auth_status("s").await.unwrap().pending;
            let pending: Vec<_> = pending.iter().map(|sign_in| &sign_in.id).collect();
            assert_eq!(pending.len(), 2);
            for newest in &later[1..] {
                assert!(pending.contains(&&newest.id));
            }
            let oldest = set.app().sign_in(&later[0].id).await.unwrap();
            assert_eq!(oldest.state(), SignInState::Superseded);
            let outcome = set.other().complete_sign_in(&first_back).await;
            ErrorFacts::expect(outcome, Code::FailedPrecondition, "ALREADY_RESOLVED");
            says(
                &set.browser.visit(&later[1].auth_url).await,
                200,
                "Signed in",
            );
            set.all_ready().await;
        },
    )
    .await;
}
