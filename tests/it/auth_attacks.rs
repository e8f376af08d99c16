//! Servers, authorization servers and visitors that mean harm: what they can make the daemon do has an end, and nothing of it
//! opens a door.

use std::collections::BTreeSet;

use mcp_sidecar_tests::fake_auth::{Dpop, KnownClient, jose, oauth_error, planted};
use mcp_sidecar_tests::prelude::*;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use url::Url;

/// How often tokens were renewed.
fn renewals(set: &AuthStage) -> usize {
    set.auth.grants("refresh_token")
}

/// Settings with which the daemon gets tokens as itself.
fn as_itself(set: &AuthStage) -> ServerSpec {
    let known = KnownClient {
        id: "a-service".to_owned(),
        auth: "client_secret_basic",
        secret: Some(planted::plant(jose::random("secret"))),
        key: None,
        redirect_uris: Vec::new(),
        scope: None,
    };
    set.auth.add_client(known.clone());
    let client = v1::OAuthClient {
        client_id: known.id,
        client_secret: known.secret.unwrap(),
        ..Default::default()
    };
    let method = v1::ClientCredentials {
        client: Some(client),
    };
    set.spec_with(v1::Authorization {
        method: Some(v1::authorization::Method::ClientCredentials(method)),
        ..Default::default()
    })
}

#[tokio::test]
async fn a_server_that_refuses_every_token_for_ever_costs_a_few_tokens() {
    protected(async |set| {
        set.sign_in().await;
        set.mcp.reply("tools/call", |_| {
            let challenge = "Bearer error=\"invalid_token\"".to_owned();
            Reply::Raw(401, vec![("www-authenticate", challenge)], "".into())
        });
        for _ in 0..20 {
            let outcome = set.other().call_tool("s", "echo", "{}").await;
            ErrorFacts::expect(outcome, Code::FailedPrecondition, "SIGN_IN_REQUIRED");
        }
        assert!(renewals(set) <= 1, "{} renewals", renewals(set));
        assert_eq!(set.auth.count(Endpoint::Register), 1);
        let status = set.other().auth_status("s").await.unwrap();
        assert_eq!(status.pending.len(), 1, "{status:?}");
        // It was wrong: what was held is still good.
        set.mcp.reset("tools/call");
        set.other().connect_server("s").await.unwrap();
        set.app().wait_for("s", ConnectionState::Ready).await;
        set.all_can_call().await;
        // And is renewed as ever when its time has come.
        let before = renewals(set);
        set.auth.expire_tokens();
        set.all_can_call().await;
        assert_eq!(renewals(set), before + 1);
        set.auth.expire_tokens();
        set.all_can_call().await;
        assert_eq!(renewals(set), before + 2);
    })
    .await;
}

#[tokio::test]
async fn a_token_is_renewed_although_a_nonce_had_to_be_learnt_first() {
    protected(async |set| {
        set.auth.shape(|shape| shape.dpop = Dpop::Offered);
        set.sign_in().await;
        let refusals = [
            "DPoP error=\"use_dpop_nonce\"",
            "DPoP error=\"invalid_token\"",
        ];
        let refusals = std::sync::Mutex::new(refusals.into_iter());
        set.mcp.reply("tools/call", move |_| {
            let Some(challenge) = refusals.lock().unwrap().next() else {
                return Reply::Default;
            };
            let headers = vec![
                ("www-authenticate", challenge.to_owned()),
                ("dpop-nonce", "n-1".to_owned()),
            ];
            Reply::Raw(401, headers, "".into())
        });
        set.other().call_tool("s", "echo", "{}").await.unwrap();
        assert_eq!(renewals(set), 1);
        set.all_ready().await;
    })
    .await;
}

#[tokio::test]
async fn a_server_that_wants_other_scopes_each_time_gets_no_more_in_the_end() {
    protected(async |set| {
        let spec = as_itself(set);
        set.app().add("s", spec).await.unwrap();
        set.all_ready().await;
        let count = std::sync::atomic::AtomicUsize::new(0);
        set.mcp.reply("tools/call", move |_| {
            let next = || count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let scopes: Vec<_> = (0..100).map(|_| format!("scope-{}", next())).collect();
            let challenge = format!(
                "Bearer error=\"insufficient_scope\", scope=\"{}\"",
                scopes.join(" ")
            );
            Reply::Raw(403, vec![("www-authenticate", challenge)], "".into())
        });
        let before = set.auth.count(Endpoint::Token);
        for _ in 0..10 {
            let outcome = set.other().call_tool("s", "echo", "{}").await;
            let facts = ErrorFacts::of(&outcome.unwrap_err());
            assert_eq!(facts.reason, "SCOPE_NOT_GRANTED", "{facts:?}");
        }
        let asked = set.auth.count(Endpoint::Token) - before;
        assert!(asked <= 3, "{asked} token requests");
        assert!(set.auth.last(Endpoint::Token).scopes().len() <= 200);
        set.mcp.reset("tools/call");
        set.all_can_call().await;
    })
    .await;
}

#[tokio::test]
async fn what_was_agreed_with_one_authorization_server_is_shown_to_no_other() {
    protected(async |set| {
        // Nobody has said which one it is for: it is the one that gives tokens for it.
        let spec = as_itself(set);
        set.app().add("s", spec.clone()).await.unwrap();
        set.all_ready().await;
        set.restart().await;
        set.all_ready().await;
        let evil = FakeAuth::start().await;
        set.guard.trust_only(&[&evil]);
        set.auth.revoke_everything();
        set.app().call_tool("s", "echo", "{}").await.unwrap_err();
        // The grant is gone; there is to be another one, from where the client belongs or not at all.
        let outcome = set.other().call_tool("s", "echo", "{}").await;
        let facts = ErrorFacts::of(&outcome.unwrap_err());
        assert_eq!(facts.reason, "CREDENTIALS_REFUSED", "{facts:?}");
        assert!(facts.message.contains(&evil.issuer()), "{facts:?}");
        assert_eq!(evil.count(Endpoint::Token), 0);
        set.guard.take_faults();
        // Unless somebody says so.
        set.also(&evil);
        evil.add_client(set.auth.clients().pop().unwrap());
        let mut spec = spec;
        spec.authorization.as_mut().unwrap().issuer = evil.issuer();
        set.other()
            .update("s", spec, &["authorization"])
            .await
            .unwrap();
        set.all_ready().await;
        set.all_can_call().await;
    })
    .await;
}

#[tokio::test]
async fn challenges_without_end_are_read_up_to_a_bound() {
    protected(async |set| {
        let many: Vec<_> = (0..60)
            .map(|n| format!("Bearer scope=\"s{n}\", realm=\"{}\"", "x\\\"".repeat(200)))
            .collect();
        let good = format!(
            "Bearer resource_metadata=\"{}\", scope=\"{}\"",
            set.guard.metadata_url(),
            "y ".repeat(1000)
        );
        let all = std::iter::once(good).chain(many);
        let all: Vec<_> = all.collect();
        set.guard.rules(|rules| rules.challenges = Some(all));
        let url = set.add_protected().await;
        assert!(url.len() < 2000, "{url}");
        assert_eq!(set.browser.visit(&url).await.status, 200);
        set.all_ready().await;
        set.all_can_call().await;
    })
    .await;
}

#[tokio::test]
async fn tokens_that_are_none_are_never_sent() {
    protected(async |set| {
        set.add_protected().await;
        for token in ["a\r\nx-evil: 1", "a b", "", "\u{7f}", "tök"] {
            let body = json!({"access_token": token, "token_type": "bearer"});
            set.auth.reply(Endpoint::Token, move |_| {
                Some(Reply::Raw(200, Vec::new(), body.to_string().into()))
            });
            let begun = set.other().start_sign_in("s").await.unwrap();
            let page = set.browser.visit(&begun.auth_url).await;
            assert_eq!(page.status, 400, "{token:?}: {page:?}");
        }
        set.auth.reset(Endpoint::Token);
        assert_eq!(set.guard.tokens().len(), 0);
        let begun = set.other().start_sign_in("s").await.unwrap();
        assert_eq!(set.browser.visit(&begun.auth_url).await.status, 200);
        set.all_ready().await;
    })
    .await;
}

#[tokio::test]
async fn a_life_of_any_length_is_one_that_can_be_shown() {
    for life in [
        json!(u64::MAX),
        json!(1e300),
        json!(-5),
        json!("18446744073709551615"),
        json!(0.001),
        json!({"a": 1}),
        json!(315_537_897_599_u64),
    ] {
        protected(async |set| {
            let shown = life.clone();
            let url = set.add_protected().await;
            let token = set.auth.mint(&set.mcp.url(), "");
            set.auth.reply(Endpoint::Token, move |_| {
                let body = json!({
                    "access_token": token, "token_type": "Bearer", "expires_in": shown,
                });
                Some(Reply::Raw(200, Vec::new(), body.to_string().into()))
            });
            assert_eq!(set.browser.visit(&url).await.status, 200, "{life}");
            set.all_ready().await;
            set.all_can_call().await;
            let status = set.other().auth_status("s").await.unwrap();
            // The last second that a timestamp can hold (year 9999).
            let end = status.expire_time.map_or(0, |end| end.seconds);
            assert!(end <= 253_402_300_799, "{life}: {status:?}");
            set.restart().await;
            set.all_ready().await;
            set.all_can_call().await;
        })
        .await;
    }
}

#[tokio::test]
async fn an_answer_in_drips_and_one_without_end_are_let_go() {
    let builder = watched().set("auth.request_timeout", "1s");
    protected_with(builder, async |set| {
        for endpoint in [Endpoint::Metadata, Endpoint::Register] {
            set.auth.reply(endpoint, |_| {
                let mut all = Vec::new();
                for _ in 0..600 {
                    all.push(Step::Bytes(" ".into()));
                    all.push(Step::Pause(Duration::from_millis(100)));
                }
                Some(Reply::Sse(all))
            });
            if endpoint == Endpoint::Metadata {
                set.app().add("s", set.spec()).await.unwrap();
            }
            let begin = set.other().start_sign_in("s");
            within("the refusal", begin).await.unwrap_err();
            set.auth.reset(endpoint);
        }
        let begun = set.other().start_sign_in("s").await.unwrap();
        let redirect = set.browser.decide(&begun.auth_url).await;
        set.auth.reply(Endpoint::Token, |_| {
            Some(mcp_sidecar_tests::fake::body(
                200,
                &[("content-type", "application/json")],
                async |writer| {
                    for _ in 0..600 {
                        writer.bytes(" ").await;
                        tokio::time::sleep(Duration::from_millis(100)).await;
                    }
                },
            ))
        });
        let visit = set.browser.get(&redirect);
        assert_eq!(within("the page", visit).await.status, 400);
    })
    .await;
}

/// The port and the path of where browsers come back to.
fn callback(set: &AuthStage) -> (u16, &'static str) {
    (set.callback_port(), "/oauth/callback")
}

/// What is answered to bytes that somebody sends to the callback.
async fn say(port: u16, text: &str) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    // A reset after the answer is an end as well.
    let _end = within("the answer", stream.read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn whoever_knocks_at_the_callback_changes_nothing() {
    protected(async |set| {
        let url = set.add_protected().await;
        let (port, path) = callback(set);
        let state = Url::parse(&url).unwrap();
        let state = state.query_pairs().find(|(name, _)| name == "state");
        let state = state.unwrap().1.into_owned();
        let own = format!("127.0.0.1:{port}");
        let query = format!("state={state}&error=access_denied");
        let get =
            |host: &str, target: &str| format!("GET {target} HTTP/1.1\r\nhost: {host}\r\n\r\n");
        let evil = format!("evil.example:{port}");
        for (request, status) in [
            (get(&evil, &format!("{path}?{query}")), "421"),
            (get("127.0.0.1", &format!("{path}?{query}")), "421"),
            (get(&format!("a@{own}"), &format!("{path}?{query}")), "4"),
            (
                get(&own, &format!("http://evil.example{path}?{query}")),
                "421",
            ),
            (get(&own, &format!("{path}/?{query}")), "404"),
            (get(&own, &format!("/other?{query}")), "404"),
            (
                format!("POST {path}?{query} HTTP/1.1\r\nhost: {own}\r\ncontent-length: 0\r\n\r\n"),
                "405",
            ),
            (
                format!("GET {path}?{query} HTTP/1.1\r\nhost: {own}\r\nhost: evil.example\r\n\r\n"),
                "4",
            ),
            (format!("GET {path}?{query} HTTP/1.0\r\n\r\n"), "4"),
            (
                get(&own, &format!("{path}?state={state}&error=a&error=b")),
                "400",
            ),
            (get(&own, &format!("{path}?state={state}")), "400"),
            (get(&own, &format!("{path}?state={state}&code=")), "400"),
            (
                get(&own, &format!("{path}?state={state}&code=a&error=b")),
                "400",
            ),
            // The issuer is announced, and not named or another one: not even a refusal is believed.
            (get(&own, &format!("{path}?{query}")), "400"),
            (
                get(
                    &own,
                    &format!("{path}?{query}&iss=https%3A%2F%2Fevil.example"),
                ),
                "400",
            ),
            (get(&own, &format!("{path}?state=%00&code=x")), "400"),
            (
                get(&own, &format!("{path}?state={}&code=x", "s".repeat(20_000))),
                "400",
            ),
            (
                get(&own, &format!("{path}?state={}&code=x", "s".repeat(60_000))),
                "4",
            ),
        ] {
            let answer = say(port, &request).await;
            let wanted = format!("HTTP/1.1 {status}");
            let wanted_old = format!("HTTP/1.0 {status}");
            assert!(
                answer.starts_with(&wanted) || answer.starts_with(&wanted_old),
                "{request:?}: {answer}"
            );
            assert!(!answer.contains(&state), "{answer}");
        }
        // A line break in a parameter is a character of the parameter.
        let split = format!("{path}?state={state}&iss=%0d%0aset-cookie:%20a=b&code=x");
        let answer = say(port, &get(&own, &split)).await.to_ascii_lowercase();
        assert!(!answer.contains("set-cookie"), "{answer}");
        assert_eq!(set.auth.count(Endpoint::Token), 0);
        assert_eq!(set.auth_url().await, url);
        assert_eq!(set.browser.visit(&url).await.status, 200);
        set.all_ready().await;
    })
    .await;
}

#[tokio::test]
async fn a_crowd_at_the_callback_keeps_the_user_waiting_for_a_while_at_most() {
    protected(async |set| {
        let url = set.add_protected().await;
        let (port, path) = callback(set);
        let mut crowd = Vec::new();
        for n in 0..500 {
            let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)).await else {
                break;
            };
            if n % 2 == 0 {
                let _sent = stream
                    .write_all(format!("GET {path} HTTP/1.1\r\nx: ").as_bytes())
                    .await;
            }
            crowd.push(stream);
        }
        // While they hang about, the redirect can be handed over in another way.
        let redirect = set.browser.decide(&url).await;
        let completed = set.other().complete_sign_in(&redirect).await.unwrap();
        assert_eq!(completed.state(), v1::SignInState::Succeeded);
        set.all_ready().await;
        drop(crowd);
        let begun = set.other().start_sign_in("s").await.unwrap();
        let visit = set.browser.visit(&begun.auth_url);
        assert_eq!(within("the page", visit).await.status, 200);
        set.all_ready().await;
    })
    .await;
}

#[tokio::test]
async fn an_app_of_another_namespace_neither_sees_nor_touches_a_sign_in() {
    protected(async |set| {
        let url = set.add_protected().await;
        let redirect = set.browser.decide(&url).await;
        let id = set.app().auth_status("s").await.unwrap().pending[0]
            .id
            .clone();
        let stranger = set.other().in_namespace("elsewhere");
        let outcome = stranger.sign_in(&id).await;
        ErrorFacts::expect(outcome, Code::NotFound, "SIGN_IN_NOT_FOUND");
        let outcome = stranger.cancel_sign_in(&id).await;
        ErrorFacts::expect(outcome, Code::NotFound, "SIGN_IN_NOT_FOUND");
        let outcome = stranger.complete_sign_in(&redirect).await;
        ErrorFacts::expect(outcome, Code::NotFound, "SIGN_IN_NOT_FOUND");
        for outcome in [
            stranger.auth_status("s").await.err(),
            stranger.sign_out("s").await.err(),
            stranger.start_sign_in("s").await.err(),
        ] {
            let facts = ErrorFacts::of(&outcome.unwrap());
            assert_eq!(facts.reason, "NAMESPACE_NOT_FOUND", "{facts:?}");
        }
        // Not even with a server of that name.
        stranger.add("s", set.spec()).await.unwrap();
        stranger.wait_authenticating("s").await;
        let outcome = stranger.complete_sign_in(&redirect).await;
        ErrorFacts::expect(outcome, Code::NotFound, "SIGN_IN_NOT_FOUND");
        assert_eq!(set.auth_url().await, url);
        set.other().complete_sign_in(&redirect).await.unwrap();
        set.all_ready().await;
    })
    .await;
}

/// A small generator that can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        // xorshift64
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

#[tokio::test]
async fn a_daemon_that_is_killed_at_any_moment_of_a_renewal_needs_nobody_if_it_had_its_answer() {
    let mut set = AuthStage::set(watched(), 1, true).await;
    set.sign_in().await;
    let mut random = Random(0x5eed);
    let mut ends = BTreeSet::new();
    for round in 0..12 {
        set.auth.expire_tokens();
        let asked = renewals(&set);
        let call = {
            let app = set.app().clone();
            tokio::spawn(async move { app.call_tool("s", "echo", "{}").await.is_ok() })
        };
        set.auth.wait_count(Endpoint::Token, asked + 2).await;
        // Some microseconds to some milliseconds: before, while and after the answer is stored.
        let moment = Duration::from_micros(random.below(12_000));
        tokio::time::sleep(moment).await;
        set.daemon.kill9().await;
        let finished = within("the call", call).await.unwrap();
        set.restart().await;
        let app = set.app();
        let answered = eventually("an outcome", PATIENCE, async || {
            let server = app.get("s").await.unwrap();
            match server.state() {
                ConnectionState::Ready => Some(true),
                ConnectionState::Authenticating => Some(false),
                _ => None,
            }
        })
        .await;
        assert!(answered || !finished, "round {round}: used, and not kept");
        let status = app.auth_status("s").await.unwrap();
        // Never half a state: either all of it, or a place to sign in.
        assert_eq!(status.signed_in, answered, "round {round}: {status:?}");
        ends.insert(answered);
        if !answered {
            // The answer was on its way: its refresh token is used up, and somebody has to come.
            let url = set.auth_url().await;
            assert_eq!(set.browser.visit(&url).await.status, 200);
            set.all_ready().await;
            set.auth.take_faults();
        }
        set.all_can_call().await;
    }
    assert!(!ends.is_empty());
    set.finish().await;
}

#[tokio::test]
async fn a_daemon_that_is_killed_at_any_moment_of_a_sign_in_has_all_of_it_or_a_place_to_sign_in() {
    let mut set = AuthStage::set(watched(), 1, true).await;
    set.add_protected().await;
    let mut random = Random(0xd1ce);
    for round in 0..12 {
        let begun = set.app().start_sign_in("s").await.unwrap();
        let redirect = set.browser.decide(&begun.auth_url).await;
        let visit = {
            let browser = set.browser.clone();
            tokio::spawn(async move { browser.try_get(&redirect).await })
        };
        tokio::time::sleep(Duration::from_micros(random.below(30_000))).await;
        set.daemon.kill9().await;
        let page = within("the page", visit).await.unwrap();
        let told = page.is_some_and(|page| page.status == 200);
        set.restart().await;
        let status = set.app().auth_status("s").await.unwrap();
        assert!(
            status.signed_in || !told,
            "round {round}: told, and not kept"
        );
        let known = set.app().sign_in(&begun.id).await.unwrap();
        assert_ne!(known.state(), v1::SignInState::Redeeming, "{known:?}");
        let succeeded = known.state() == v1::SignInState::Succeeded;
        assert_eq!(
            status.signed_in, succeeded,
            "round {round}: {status:?}, {known:?}"
        );
        if succeeded {
            set.all_ready().await;
            set.all_can_call().await;
            set.app().sign_out("s").await.unwrap();
        } else {
            set.auth_url().await;
        }
    }
    set.auth.take_faults();
    set.finish().await;
}

#[tokio::test]
async fn what_a_refusing_authorization_server_says_stays_short_and_plain() {
    protected(async |set| {
        let url = set.add_protected().await;
        let text = format!(
            "<script>alert(1)</script>\u{1b}[31m\r\n{}",
            "A".repeat(100_000)
        );
        set.auth
            .next(Endpoint::Token, oauth_error(400, "invalid_grant", &text));
        let page = set.browser.visit(&url).await;
        assert_eq!(page.status, 400);
        assert!(page.text.len() < 10_000, "{}", page.text.len());
        assert!(!page.text.contains("<script>alert"), "{}", page.text);
        assert!(!page.text.contains('\u{1b}'), "{}", page.text);
        let begun = set.other().start_sign_in("s").await.unwrap();
        assert_eq!(set.browser.visit(&begun.auth_url).await.status, 200);
        set.all_ready().await;
    })
    .await;
}
