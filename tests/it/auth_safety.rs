//! The defences that the specification asks for: against mix-up, open redirects, tokens that are passed through, confused
//! deputies, and destinations that nobody may be led to.

use mcp_sidecar_tests::fake::tls;
use mcp_sidecar_tests::fake_auth::{KnownClient, jose, planted};
use mcp_sidecar_tests::prelude::*;
use url::Url;

/// An authorization server of an attacker that sends users to the honest one, as the client that the daemon is there.
async fn impostor(set: &mut AuthStage) -> FakeAuth {
    let evil = FakeAuth::start().await;
    set.also(&evil);
    let honest = set.auth.clone();
    evil.metadata(
        "authorization_endpoint",
        json!(honest.endpoint("authorize")),
    );
    evil.reply(Endpoint::Register, move |_| {
        let known = honest.clients().pop().expect("the daemon is known");
        let answer = json!({"client_id": known.id, "token_endpoint_auth_method": "none"});
        Some(Reply::Raw(201, Vec::new(), answer.to_string().into()))
    });
    evil
}

#[tokio::test]
async fn mix_up_a_code_is_never_shown_to_another_authorization_server() {
    for announced in [true, false] {
        protected(async |set| {
            set.sign_in().await;
            let evil = impostor(set).await;
            evil.shape(|shape| shape.says_issuer = announced);
            let lure = FakeMcp::echo(true).await;
            let _guard = Guard::before(&lure, &evil);
            set.auth.shape(|shape| shape.resources.push(lure.url()));
            set.app()
                .add("lure", http_spec("Lure", &lure.url()))
                .await
                .unwrap();
            let url = set.other().wait_authenticating("lure").await;
            assert!(url.starts_with(set.auth.origin()), "{url}");
            let page = set.browser.visit(&url).await;
            assert_eq!(page.status, 400, "{page:?}");
            let redirect = set.browser.decide(&url).await;
            let outcome = set.other().complete_sign_in(&redirect).await;
            ErrorFacts::expect(outcome, Code::InvalidArgument, "INVALID_FIELD");
            assert_eq!(evil.count(Endpoint::Token), 0);
            set.all_ready().await;
            set.all_can_call().await;
        })
        .await;
    }
}

#[tokio::test]
async fn open_redirect_nothing_in_a_callback_says_where_the_browser_goes() {
    protected(async |set| {
        let url = set.add_protected().await;
        let redirect = set.browser.decide(&url).await;
        let place = redirect.split_once('?').unwrap().0;
        let lures = [
            "redirect_uri",
            "redirect",
            "next",
            "url",
            "return_to",
            "success_redirect",
            "error_uri",
        ];
        let lure = |name: &str| format!("{name}=https%3A%2F%2Fevil.example");
        for name in lures {
            let page = set.browser.get(&format!("{place}?{}", lure(name))).await;
            assert_eq!(page.location(), "", "{page:?}");
            assert!(!page.text.contains("evil.example"), "{}", page.text);
        }
        let all: Vec<_> = lures.into_iter().map(lure).collect();
        let page = set
            .browser
            .get(&format!("{redirect}&{}", all.join("&")))
            .await;
        assert_eq!(
            (page.status.as_u16(), page.location()),
            (200, String::new())
        );
        assert!(!page.text.contains("evil.example"), "{}", page.text);
        set.all_ready().await;
    })
    .await;
}

#[tokio::test]
async fn the_operator_may_say_where_browsers_end() {
    let builder = watched()
        .set("auth.success_redirect", "https://app.example/done?x=1")
        .set("auth.error_redirect", "https://app.example/failed");
    protected_with(builder, async |set| {
        let url = set.add_protected().await;
        let other = set.other().start_sign_in("s").await.unwrap();
        set.auth
            .decide(Decision::Refuse("access_denied", "no & <b>no</b>"));
        let failed = set
            .browser
            .get(&set.browser.decide(&url).await)
            .await
            .location();
        let failed = Url::parse(&failed).unwrap();
        assert!(
            failed.as_str().starts_with("https://app.example/failed?"),
            "{failed}"
        );
        assert!(
            failed.query_pairs().any(|(name, _)| name == "error"),
            "{failed}"
        );
        let back = set.browser.decide(&other.auth_url).await;
        let done = set.browser.get(&back).await.location();
        assert_eq!(done, "https://app.example/done?x=1");
        set.all_ready().await;
    })
    .await;
}

#[tokio::test]
async fn what_an_authorization_server_says_is_only_text() {
    protected(async |set| {
        let url = set.add_protected().await;
        let evil = "</blockquote><script>alert(1)</script><img src=x onerror=alert(2)>\u{202e}";
        set.auth.decide(Decision::Refuse("access_denied", evil));
        let page = set.browser.visit(&url).await;
        assert_eq!(page.status, 400);
        for part in ["<script>alert", "<img", "\u{202e}", "</blockquote><"] {
            assert!(!page.text.contains(part), "`{part}` in {}", page.text);
        }
        let policy = page.header("content-security-policy");
        assert!(policy.contains("default-src 'none'"), "{policy}");
        assert!(!policy.contains("unsafe"), "{policy}");
        for (name, value) in [
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cache-control", "no-store"),
        ] {
            assert_eq!(page.header(name), value, "{page:?}");
        }
        let failure = set.other().get("s").await.unwrap();
        let (_, message) = failure.failure();
        assert!(!message.contains('\u{202e}'), "{message:?}");
    })
    .await;
}

#[tokio::test]
async fn token_passthrough_every_server_sees_its_own_tokens_only() {
    protected(async |set| {
        set.sign_in().await;
        // Another server of the same authorization server, and the first one in another namespace.
        let other = FakeMcp::echo(true).await;
        let guard = Guard::before(&other, &set.auth);
        set.app()
            .add("other", http_spec("Other", &other.url()))
            .await
            .unwrap();
        let url = set.other().wait_authenticating("other").await;
        set.browser.visit(&url).await;
        set.other().wait_for("other", ConnectionState::Ready).await;
        set.all_can_call().await;
        set.app().call_tool("other", "echo", "{}").await.unwrap();
        for token in guard.tokens() {
            assert!(!set.guard.tokens().contains(&token));
        }
        guard.assert_clean();
        let elsewhere = set.other().in_namespace("elsewhere");
        elsewhere.add("s", set.spec()).await.unwrap();
        let url = elsewhere.wait_authenticating("s").await;
        assert!(!elsewhere.auth_status("s").await.unwrap().signed_in);
        set.browser.visit(&url).await;
        elsewhere.wait_for("s", ConnectionState::Ready).await;
        assert_eq!(set.auth.live_tokens().len(), 3);
        assert_eq!(set.guard.tokens().len(), 2);
        // What one namespace does is nothing to the other.
        elsewhere.sign_out("s").await.unwrap();
        set.all_can_call().await;
    })
    .await;
}

#[tokio::test]
async fn tokens_do_not_follow_redirects() {
    for status in [301, 302, 307, 308] {
        protected(async |set| {
            set.sign_in().await;
            let thief = FakeMcp::echo(true).await;
            let place = thief.url();
            set.mcp.reply("tools/call", move |_| {
                Reply::Raw(status, vec![("location", place.clone())], "".into())
            });
            let _whatever = set.other().call_tool("s", "echo", "{}").await;
            for seen in thief.seen() {
                assert_eq!(seen.header("authorization"), "", "{seen:?}");
            }
            // Nor do codes, verifiers and refresh tokens.
            let evil = FakeAuth::start().await;
            let place = evil.endpoint("token");
            set.auth.reply(Endpoint::Token, move |_| {
                Some(Reply::Raw(
                    status,
                    vec![("location", place.clone())],
                    "".into(),
                ))
            });
            set.mcp.reset("tools/call");
            set.auth.expire_tokens();
            let outcome = set.other().call_tool("s", "echo", "{}").await;
            outcome.unwrap_err();
            for asked in evil.all_asked() {
                assert!(!asked.has("refresh_token"), "{asked:?}");
            }
            assert_eq!(evil.count(Endpoint::Token), 0);
        })
        .await;
    }
}

#[tokio::test]
async fn confused_deputy_a_code_serves_the_sign_in_that_it_was_given_for() {
    protected(async |set| {
        let first = set.add_protected().await;
        let second = set.other().start_sign_in("s").await.unwrap();
        let swap = |redirect: &str, code: &str| {
            let mut url = Url::parse(redirect).unwrap();
            let pairs: Vec<_> = url.query_pairs().into_owned().collect();
            let pairs = pairs.into_iter().map(|(name, value)| match name.as_str() {
                "code" => (name, code.to_owned()),
                _ => (name, value),
            });
            let query: Vec<_> = pairs.collect();
            url.query_pairs_mut().clear().extend_pairs(query);
            url.to_string()
        };
        let code_of = |redirect: &str| {
            let url = Url::parse(redirect).unwrap();
            let found = url.query_pairs().find(|(name, _)| name == "code");
            found.unwrap().1.into_owned()
        };
        // Somebody plants the code of another sign-in into the victim's.
        let planted = set.browser.decide(&second.auth_url).await;
        let victim = set.browser.decide(&first).await;
        let outcome = set
            .other()
            .complete_sign_in(&swap(&victim, &code_of(&planted)))
            .await;
        ErrorFacts::expect(outcome, Code::FailedPrecondition, "SIGN_IN_FAILED");
        let faults = set.auth.take_faults();
        assert_eq!(faults.len(), 1, "{faults:?}");
        assert!(faults[0].contains("verifier"), "{faults:?}");
        for app in &set.apps {
            assert!(!app.auth_status("s").await.unwrap().signed_in);
        }
        let third = set.other().start_sign_in("s").await.unwrap();
        set.browser.visit(&third.auth_url).await;
        set.all_ready().await;
    })
    .await;
}

#[tokio::test]
async fn confused_deputy_every_client_has_a_state_and_a_challenge_of_its_own() {
    protected(async |set| {
        set.add_protected().await;
        for _ in 0..4 {
            set.other().start_sign_in("s").await.unwrap();
        }
        let pending = set.other().auth_status("s").await.unwrap().pending;
        for name in ["state", "code_challenge"] {
            let values = pending.iter().map(|sign_in| {
                let url = Url::parse(&sign_in.auth_url).unwrap();
                let found = url.query_pairs().find(|(known, _)| known == name);
                found.unwrap().1.into_owned()
            });
            let values: std::collections::HashSet<_> = values.collect();
            assert_eq!(values.len(), pending.len());
            assert!(values.iter().all(|value| value.len() >= 43), "{values:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn headers_of_a_server_are_for_that_server() {
    protected(async |set| {
        let secret = planted::plant(jose::random("header"));
        let mut spec = set.spec();
        if let Some(v1::server_spec::Transport::Http(http)) = &mut spec.transport {
            let (name, value) = ("X-Api-Key".to_owned(), secret.clone());
            http.headers.push(v1::Header { name, value });
        }
        set.sign_in_as(spec).await;
        set.auth.expire_tokens();
        set.all_can_call().await;
        set.other().sign_out("s").await.unwrap();
        for asked in set.auth.all_asked() {
            assert_eq!(asked.header("x-api-key"), "", "{asked:?}");
        }
        for seen in set.mcp.seen() {
            if seen.path == "/mcp" {
                assert_eq!(seen.header("x-api-key"), secret, "{seen:?}");
            } else {
                assert_eq!(seen.header("x-api-key"), "", "{seen:?}");
            }
        }
    })
    .await;
}

/// Places that nobody is to be led to, with a word that says why.
const FORBIDDEN: [(&str, &str); 8] = [
    ("http://169.254.169.254/latest", "169.254.169.254"),
    ("https://10.0.0.1/x", "10.0.0.1"),
    ("https://192.168.1.1/x", "192.168.1.1"),
    ("https://[fd00::1]/x", "fd00::1"),
    ("https://[::ffff:169.254.169.254]/x", "169.254.169.254"),
    (
        "https://metadata.google.internal/x",
        "metadata.google.internal",
    ),
    // Without TLS only this host is asked.
    ("http://authorization.example/x", "authorization.example"),
    ("ftp://127.0.0.1/x", "ftp"),
];

/// No sign-in begins, and the message names the place.
async fn leads_nowhere(set: &AuthStage, word: &str) {
    set.app().add("s", set.spec()).await.unwrap();
    let outcome = set.other().start_sign_in("s").await;
    let facts = ErrorFacts::of(&outcome.unwrap_err());
    assert!(facts.message.contains(word), "`{word}` in {facts:?}");
    let server = set.other().get("s").await.unwrap();
    assert_eq!(server.facts().auth_url, "", "{server:?}");
    assert_eq!(set.auth.count(Endpoint::Token), 0);
}

#[tokio::test]
async fn no_destination_of_authorization_is_exempt_from_the_address_policy() {
    for (place, word) in FORBIDDEN {
        protected(async |set| {
            let challenge = format!("Bearer resource_metadata=\"{place}\"");
            set.guard
                .rules(|rules| rules.challenges = Some(vec![challenge.clone()]));
            leads_nowhere(set, word).await;
            assert_eq!(set.auth.all_asked().len(), 0);
        })
        .await;
        protected(async |set| {
            set.guard.rules(|rules| {
                rules
                    .document
                    .insert("authorization_servers".to_owned(), json!([place]));
            });
            leads_nowhere(set, word).await;
            assert_eq!(set.auth.all_asked().len(), 0);
        })
        .await;
        for endpoint in ["token_endpoint", "registration_endpoint"] {
            protected(async |set| {
                set.auth.metadata(endpoint, json!(place));
                if endpoint == "registration_endpoint" {
                    leads_nowhere(set, word).await;
                } else {
                    set.app().add("s", set.spec()).await.unwrap();
                    let Ok(sign_in) = set.other().start_sign_in("s").await else {
                        return;
                    };
                    let page = set.browser.visit(&sign_in.auth_url).await;
                    assert_eq!(page.status, 400, "{page:?}");
                }
                assert!(!set.other().auth_status("s").await.unwrap().signed_in);
            })
            .await;
        }
    }
}

#[tokio::test]
async fn metadata_that_redirect_lead_nowhere_forbidden() {
    protected(async |set| {
        set.auth.reply(Endpoint::Metadata, |_| {
            let place = "http://169.254.169.254/latest".to_owned();
            Some(Reply::Raw(302, vec![("location", place)], "".into()))
        });
        set.app().add("s", set.spec()).await.unwrap();
        set.other().start_sign_in("s").await.unwrap_err();
        assert_eq!(set.auth.count(Endpoint::Authorize), 0);
    })
    .await;
}

#[tokio::test]
async fn an_authorization_server_that_says_too_much_or_nothing_is_let_go() {
    let builder = watched()
        .set("auth.response_bytes", 4096_u32)
        .set("auth.request_timeout", "300ms");
    protected_with(builder, async |set| {
        set.app().add("s", set.spec()).await.unwrap();
        let url = set.auth_url().await;
        set.browser.visit(&url).await;
        set.all_ready().await;
        set.auth.expire_tokens();
        let huge = format!("{{\"access_token\":\"{}\"}}", "x".repeat(1 << 20));
        for reply in [Reply::Raw(200, Vec::new(), huge.into()), Reply::Hang] {
            set.auth.next(Endpoint::Token, reply);
            let asked = set.auth.count(Endpoint::Token);
            eventually("the endpoint to be asked", PATIENCE, async || {
                let outcome = set.other().call_tool("s", "echo", "{}").await;
                ErrorFacts::expect(outcome, Code::Unavailable, "AUTHORIZATION_UNAVAILABLE");
                (set.auth.count(Endpoint::Token) > asked).then_some(())
            })
            .await;
        }
        eventually("a call that succeeds", PATIENCE, async || {
            set.app().call_tool("s", "echo", "{}").await.ok()
        })
        .await;
        set.app().sign_out("s").await.unwrap();
        for reply in ["metadata", "registration"] {
            let endpoint = match reply {
                "metadata" => Endpoint::Metadata,
                _ => Endpoint::Register,
            };
            set.auth.forget_clients();
            set.auth.reply(endpoint, |_| {
                Some(Reply::Raw(200, Vec::new(), " ".repeat(1 << 20).into()))
            });
            let _refused = set.other().start_sign_in("s").await;
            set.auth.reset(endpoint);
        }
    })
    .await;
}

/// What everything together is about: it all runs with a log at trace level and a record of every answer, and none of it
/// has a secret. This story has one of every kind, panics included, and ends with the daemon looked at from every side.
#[tokio::test]
async fn no_secret_is_seen_anywhere() {
    protected(async |set| {
        set.auth.shape(|shape| {
            shape.client_auth = "client_secret_basic";
            shape.subject = Some("ann@example.com");
        });
        // A server that repeats what it was shown, in its refusals and in its answers.
        set.sign_in().await;
        set.mcp.reply("tools/call", |seen| {
            let shown = seen.header("authorization").to_owned();
            Reply::Raw(403, vec![("x-seen", shown.clone())], shown.into())
        });
        let outcome = set.app().call_tool("s", "echo", "{}").await;
        outcome.unwrap_err();
        set.mcp.reply("tools/call", |seen| {
            let shown: &'static str = seen.header("authorization").to_owned().leak();
            Reply::Error(-32000, shown, json!({"seen": shown}))
        });
        let outcome = set.app().call_tool("s", "echo", "{}").await;
        outcome.unwrap_err();
        set.mcp.reset("tools/call");
        // An authorization server that does the same.
        set.auth.expire_tokens();
        set.auth.reply(Endpoint::Token, |asked| {
            let shown: Vec<_> = asked
                .params
                .iter()
                .map(|(_, value)| value.clone())
                .collect();
            let shown = format!("{} {}", asked.header("authorization"), shown.join(" "));
            let body = json!({"error": "invalid_request", "error_description": shown});
            Some(Reply::Raw(
                400,
                vec![("content-type", "application/json".to_owned())],
                body.to_string().into(),
            ))
        });
        let outcome = set.other().call_tool("s", "echo", "{}").await;
        outcome.unwrap_err();
        let status = set.other().auth_status("s").await.unwrap();
        assert_ne!(status.last_failure, "");
        set.auth.reset(Endpoint::Token);
        // Redirects that are refused, and one that is not.
        let sign_in = set.other().start_sign_in("s").await.unwrap();
        let redirect = set.browser.decide(&sign_in.auth_url).await;
        let code = Url::parse(&redirect).unwrap();
        let code = code
            .query_pairs()
            .find(|(name, _)| name == "code")
            .unwrap()
            .1;
        for spoiled in [
            redirect.replace("iss=", "iss=x"),
            redirect.replace("state=", "state=x"),
            format!("{redirect}&code={code}"),
            redirect.replace("/oauth/", "/other/"),
        ] {
            set.other().complete_sign_in(&spoiled).await.unwrap_err();
            set.browser.get(&spoiled).await;
        }
        set.other().complete_sign_in(&redirect).await.unwrap();
        set.all_ready().await;
        set.all_can_call().await;
        let status = set.other().auth_status("s").await.unwrap();
        assert_eq!(status.subject, "ann@example.com");
        set.restart().await;
        set.all_ready().await;
        set.daemon.kill9().await;
        set.restart().await;
        set.all_ready().await;
        set.all_can_call().await;
        set.other().sign_out("s").await.unwrap();
    })
    .await;
}

#[tokio::test]
async fn no_secret_is_seen_on_a_connection_that_carries_many_requests() {
    for modern in [true, false] {
        for count in 1..=2 {
            let mcp = if modern {
                FakeMcp::modern()
            } else {
                FakeMcp::legacy()
            };
            let trusting = watched().env(tls::TRUST, tls::roots().to_str().unwrap());
            let auth = FakeAuth::start().await;
            let set = AuthStage::set_before(trusting, count, mcp.tls(), auth).await;
            let secret = planted::plant(jose::random("header"));
            let mut spec = set.spec();
            if let Some(v1::server_spec::Transport::Http(http)) = &mut spec.transport {
                let (name, value) = ("X-Api-Key".to_owned(), secret);
                http.headers.push(v1::Header { name, value });
            }
            set.sign_in_as(spec).await;
            set.all_can_call().await;
            set.auth.expire_tokens();
            set.all_can_call().await;
            let log = set.daemon.log();
            for part in ["TRACE", "h2::codec", "hyper_util::client"] {
                assert!(log.contains(part), "the log has no `{part}`");
            }
            set.finish().await;
        }
    }
}

/// A client that is known beforehand, as an agent of the attacker's would like to be.
#[tokio::test]
async fn a_client_that_was_configured_is_shown_to_the_issuer_that_it_is_for() {
    protected(async |set| {
        let uri = format!("http://127.0.0.1:{}/oauth/callback", set.callback_port());
        let known = KnownClient {
            id: "ours".to_owned(),
            auth: "client_secret_basic",
            secret: Some(planted::plant(jose::random("secret"))),
            key: None,
            redirect_uris: vec![uri],
            scope: None,
        };
        set.auth.add_client(known.clone());
        let mut spec = set.spec_with(by_user(v1::AuthorizationCode {
            client: Some(v1::OAuthClient {
                client_id: known.id.clone(),
                client_secret: known.secret.clone().unwrap(),
                ..Default::default()
            }),
            ..Default::default()
        }));
        spec.authorization.as_mut().unwrap().issuer = set.auth.issuer();
        set.sign_in_as(spec).await;
        set.all_can_call().await;
        // The server names another authorization server: the secret stays where it is.
        let evil = FakeAuth::start().await;
        set.guard.trust_only(&[&evil]);
        let outcome = set.other().call_tool("s", "echo", "{}").await;
        outcome.unwrap_err();
        // The issuer that is pinned speaks for itself.
        let begun = set.other().start_sign_in("s").await.unwrap();
        assert!(begun.auth_url.starts_with(set.auth.origin()), "{begun:?}");
        assert_eq!(evil.all_asked().len(), 0);
        set.guard.take_faults();
    })
    .await;
}
