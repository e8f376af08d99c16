//! Scopes: what is asked for at first, and what is added when a tool wants more (case B04).

use std::collections::BTreeSet;
use std::sync::Arc;

use mcp_sidecar_tests::fake_auth::play;
use mcp_sidecar_tests::prelude::*;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// The scopes of all authorization requests.
fn asked(set: &AuthStage) -> Vec<BTreeSet<String>> {
    let asked = set.auth.asked(Endpoint::Authorize);
    let scopes = asked
        .iter()
        .map(|asked| asked.scopes().into_iter().map(str::to_owned).collect());
    scopes.collect()
}

fn sets(lists: &[&str]) -> Vec<BTreeSet<String>> {
    let all = lists.iter().map(|list| list.split_ascii_whitespace());
    all.map(|scopes| scopes.map(str::to_owned).collect())
        .collect()
}

/// Listing takes `a`, `t1` takes `b`, `t2` takes `c`; each challenge names its own scope only.
fn alphabet(set: &AuthStage) {
    set.guard.rules(|rules| {
        rules.scope = Some("a");
        rules
            .needs
            .extend([("tools/list", "a"), ("t1", "b"), ("t2", "c")]);
        rules.scopes_supported = Some("a decoy");
    });
}

/// An app calls a tool that wants more scopes; every app sees where the user agrees to that.
async fn wants_more(set: &AuthStage, tool: &str, scopes: &str) -> String {
    let outcome = set.app().call_tool("s", tool, "{}").await;
    let facts = ErrorFacts::expect(outcome, Code::FailedPrecondition, "SIGN_IN_REQUIRED");
    assert_eq!(
        sets(&[&facts.metadata["scopes"]]),
        sets(&[scopes]),
        "{facts:?}"
    );
    let url = facts.metadata["auth_url"].clone();
    for app in &set.apps {
        let server = app.wait_for_auth_url("s").await;
        assert_eq!(server.facts().auth_url, url);
        assert_eq!(server.state(), ConnectionState::Ready);
    }
    // What was granted is good for everything else meanwhile.
    set.all_can_call().await;
    url
}

#[tokio::test]
async fn b04_each_step_asks_for_what_was_granted_and_what_is_missing() {
    for modern in [true, false] {
        play(&watched(), modern, &async |set: &mut AuthStage| {
            alphabet(set);
            set.sign_in().await;
            for (tool, scopes) in [("t1", "a b"), ("t2", "a b c")] {
                let url = wants_more(set, tool, scopes).await;
                assert_eq!(set.browser.visit(&url).await.status, 200);
                set.all_ready().await;
                set.other().call_tool("s", tool, "{}").await.unwrap();
            }
            for tool in ["t1", "t2", "echo", "t1"] {
                set.other().call_tool("s", tool, "{}").await.unwrap();
            }
            assert_eq!(asked(set), sets(&["a", "a b", "a b c"]));
            // Renewing cannot add anything.
            assert_eq!(set.auth.grants("refresh_token"), 0);
            // The server lets a client ask for no more than it was registered for.
            assert_eq!(set.auth.count(Endpoint::Register), 3);
            let status = set.other().auth_status("s").await.unwrap();
            assert_eq!(sets(&[&status.scopes.join(" ")]), sets(&["a b c"]));
            // A renewal keeps all of them.
            set.auth.expire_tokens();
            for tool in ["t1", "t2"] {
                set.app().call_tool("s", tool, "{}").await.unwrap();
            }
            assert_eq!(set.auth.grants("refresh_token"), 1);
        })
        .await;
    }
}

#[tokio::test]
async fn b04_who_is_granted_less_hears_so_once_and_clearly() {
    protected(async |set| {
        alphabet(set);
        set.sign_in().await;
        let url = wants_more(set, "t1", "a b").await;
        set.auth.decide(Decision::GrantOnly("a"));
        assert_eq!(set.browser.visit(&url).await.status, 200);
        set.all_ready().await;
        for app in &set.apps {
            for _ in 0..3 {
                let outcome = app.call_tool("s", "t1", "{}").await;
                let facts =
                    ErrorFacts::expect(outcome, Code::PermissionDenied, "SCOPE_NOT_GRANTED");
                assert_eq!(facts.metadata["scopes"], "b", "{facts:?}");
            }
            let server = app.get("s").await.unwrap();
            assert_eq!(server.facts().auth_url, "", "no sign-in is begun for that");
            assert_eq!(server.state(), ConnectionState::Ready);
        }
        set.all_can_call().await;
        assert_eq!(asked(set), sets(&["a", "a b"]));
        // Whoever wants it asks again, and this time the user agrees.
        let sign_in = set.other().start_sign_in_for("s", &["b"]).await.unwrap();
        set.browser.visit(&sign_in.auth_url).await;
        set.all_ready().await;
        set.app().call_tool("s", "t1", "{}").await.unwrap();
        assert_eq!(asked(set), sets(&["a", "a b", "a b"]));
    })
    .await;
}

#[tokio::test]
async fn b04_a_403_that_does_not_say_so_begins_no_sign_in() {
    let refusals: [&[&str]; 4] = [
        &[],
        &["Bearer"],
        &["Bearer error=\"access_denied\", scope=\"b\""],
        &["Basic realm=\"insufficient_scope\""],
    ];
    for refusal in refusals {
        protected(async |set| {
            alphabet(set);
            set.guard.rules(|rules| {
                rules.refusals = Some(refusal.iter().map(|&line| line.to_owned()).collect());
            });
            set.sign_in().await;
            let status = set.other().call_tool("s", "t1", "{}").await.unwrap_err();
            let facts = ErrorFacts::of(&status);
            assert_ne!(facts.reason, "SIGN_IN_REQUIRED", "{facts:?}");
            assert_eq!(facts.metadata.get("auth_url"), None);
            set.all_ready().await;
            set.all_can_call().await;
            assert_eq!(asked(set), sets(&["a"]));
            assert_eq!(set.auth.grants("refresh_token"), 0);
        })
        .await;
    }
}

#[tokio::test]
async fn b04_a_server_that_is_never_content_is_given_up() {
    protected(async |set| {
        alphabet(set);
        set.sign_in().await;
        let url = wants_more(set, "t1", "a b").await;
        set.browser.visit(&url).await;
        set.all_ready().await;
        // What it wanted was granted, and it says the same again.
        set.mcp.reply("tools/call", |seen| match seen.tool() {
            "t1" => {
                let challenge = "Bearer error=\"insufficient_scope\", scope=\"b\"".to_owned();
                Reply::Raw(403, vec![("www-authenticate", challenge)], "".into())
            }
            _ => Reply::Default,
        });
        for _ in 0..3 {
            let outcome = set.other().call_tool("s", "t1", "{}").await;
            ErrorFacts::expect(outcome, Code::PermissionDenied, "SCOPE_NOT_GRANTED");
        }
        set.all_ready().await;
        assert_eq!(asked(set), sets(&["a", "a b"]));
    })
    .await;
}

#[tokio::test]
async fn a_refusal_that_is_older_than_what_was_granted_meanwhile_is_no_refusal() {
    protected(async |set| {
        alphabet(set);
        set.guard.rules(|rules| {
            rules.needs.remove("t2");
        });
        set.sign_in().await;
        // The server looks at a call with the old token, and takes long to say so.
        let (arrived, answer) = (Arc::new(Notify::new()), CancellationToken::new());
        let (there, let_go) = (Arc::clone(&arrived), answer.clone());
        set.mcp.on("tools/call", move |seen| {
            let (there, let_go) = (Arc::clone(&there), let_go.clone());
            async move {
                if seen.tool() != "t2" || let_go.is_cancelled() {
                    return Reply::Default;
                }
                there.notify_one();
                let_go.cancelled().await;
                let challenge = "Bearer error=\"insufficient_scope\", scope=\"b\"".to_owned();
                Reply::Raw(403, vec![("www-authenticate", challenge)], "".into())
            }
        });
        let call = {
            let app = set.other().clone();
            tokio::spawn(async move { app.call_tool("s", "t2", "{}").await })
        };
        within("the call", arrived.notified()).await;
        let url = wants_more(set, "t1", "a b").await;
        set.browser.visit(&url).await;
        set.all_ready().await;
        answer.cancel();
        within("the end of the call", call).await.unwrap().unwrap();
        assert_eq!(set.auth.count(Endpoint::Authorize), 2);
    })
    .await;
}

#[tokio::test]
async fn scopes_come_from_the_challenge_else_from_the_metadata_else_from_nowhere() {
    let cases = [
        (Some("x"), Some("y z"), "", "x"),
        (None, Some("y z"), "", "y z"),
        (None, None, "", ""),
        (Some("x"), Some("y z"), "own", "own x"),
        (None, Some("y z"), "own", "own"),
    ];
    for (challenged, supported, own, wanted) in cases {
        protected(async |set| {
            set.guard.rules(|rules| {
                rules.scope = challenged;
                rules.scopes_supported = supported;
            });
            let scopes = own.split_ascii_whitespace().map(str::to_owned).collect();
            let spec = set.spec_with(v1::Authorization {
                scopes,
                ..Default::default()
            });
            set.sign_in_as(spec).await;
            assert_eq!(asked(set), sets(&[wanted]));
            let request = set.auth.last(Endpoint::Authorize);
            assert_eq!(request.has("scope"), !wanted.is_empty());
        })
        .await;
    }
}
