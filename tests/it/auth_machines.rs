//! Tokens without a user: client credentials, enterprise-managed authorization, workload identity, tokens that somebody else
//! looks after, and what binds them: keys and certificates.

use mcp_sidecar_tests::fake::tls;
use mcp_sidecar_tests::fake_auth::jose::{self, KeyPair};
use mcp_sidecar_tests::fake_auth::{Dpop, DpopRule, KnownClient, oauth_error, play};
use mcp_sidecar_tests::prelude::*;
use v1::authorization::Method;
use v1::workload_identity::AssertionSource;

fn by(method: Method) -> v1::Authorization {
    v1::Authorization {
        method: Some(method),
        ..Default::default()
    }
}

fn known(id: &str, auth: &'static str) -> KnownClient {
    KnownClient {
        id: id.to_owned(),
        auth,
        secret: auth
            .starts_with("client_secret")
            .then(|| jose::random("known-secret")),
        key: None,
        redirect_uris: Vec::new(),
        scope: None,
    }
}

/// The client in the settings of the server.
fn client_of(known: &KnownClient) -> v1::OAuthClient {
    v1::OAuthClient {
        client_id: known.id.clone(),
        client_secret: known.secret.clone().unwrap_or_default(),
        ..Default::default()
    }
}

fn credentials(client: v1::OAuthClient) -> v1::Authorization {
    by(Method::ClientCredentials(v1::ClientCredentials {
        client: Some(client),
    }))
}

/// The server is READY without anybody's help, and goes on so.
async fn needs_nobody(set: &mut AuthStage, authorization: v1::Authorization, grant: &str) {
    let spec = set.spec_with(authorization);
    set.app().add("s", spec).await.unwrap();
    set.all_ready().await;
    set.all_can_call().await;
    assert_eq!(set.auth.grants(grant), 1);
    let status = set.other().auth_status("s").await.unwrap();
    assert!(status.signed_in && status.renewable, "{status:?}");
    set.restart().await;
    set.all_ready().await;
    set.all_can_call().await;
    assert_eq!(set.auth.grants(grant), 1, "a restart keeps the token");
    set.auth.expire_tokens();
    set.all_can_call().await;
    assert_eq!(set.auth.grants(grant), 2);
    let outcome = set.other().start_sign_in("s").await;
    ErrorFacts::expect(outcome, Code::FailedPrecondition, "CREDENTIALS_REFUSED");
    assert_eq!(set.auth.count(Endpoint::Authorize), 0);
    assert_eq!(set.auth.count(Endpoint::Register), 0);
}

const CLIENT_CREDENTIALS: &str = "client_credentials";
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";

#[tokio::test]
async fn a_client_signs_in_as_itself_with_a_secret() {
    for way in ["client_secret_basic", "client_secret_post"] {
        for modern in [true, false] {
            play(&watched(), modern, &async |set: &mut AuthStage| {
                set.auth
                    .metadata("token_endpoint_auth_methods_supported", json!([way]));
                let known = known("a service", way);
                set.auth.add_client(known.clone());
                needs_nobody(set, credentials(client_of(&known)), CLIENT_CREDENTIALS).await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_client_signs_in_as_itself_with_a_key() {
    for algorithm in ["ES256", "ES384", "RS256", "PS256", "EdDSA"] {
        protected(async |set| {
            let pair = KeyPair::new(algorithm);
            let known = KnownClient {
                key: Some(pair.public.clone()),
                ..known("a-service", "private_key_jwt")
            };
            set.auth.add_client(known.clone());
            let client = v1::OAuthClient {
                client_id: known.id.clone(),
                private_key_pem: pair.pem.clone(),
                // The other kinds are told by the key.
                signing_algorithm: if algorithm == "PS256" { algorithm } else { "" }.to_owned(),
                ..Default::default()
            };
            needs_nobody(set, credentials(client), CLIENT_CREDENTIALS).await;
        })
        .await;
    }
}

#[tokio::test]
async fn credentials_that_are_refused_are_not_tried_again_and_again() {
    protected(async |set| {
        let right = known("a-service", "client_secret_basic");
        set.auth.add_client(right.clone());
        let wrong = KnownClient {
            secret: Some(jose::random("wrong-secret")),
            ..right.clone()
        };
        let spec = set.spec_with(credentials(client_of(&wrong)));
        set.app().add("s", spec).await.unwrap();
        for app in &set.apps {
            let server = app.wait_for("s", ConnectionState::Failed).await;
            let (reason, message) = server.failure();
            assert_eq!(reason, "CREDENTIALS_REFUSED");
            assert!(message.contains("invalid_client"), "{message}");
            assert_eq!(server.facts().auth_url, "");
        }
        assert_eq!(set.auth.count(Endpoint::Token), 1);
        // The right ones put it right.
        let spec = set.spec_with(credentials(client_of(&right)));
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
async fn an_authorization_server_in_trouble_is_no_refusal_of_credentials() {
    protected(async |set| {
        let known = known("a-service", "client_secret_basic");
        set.auth.add_client(known.clone());
        let spec = set.spec_with(credentials(client_of(&known)));
        set.app().add("s", spec).await.unwrap();
        set.all_ready().await;
        set.auth.expire_tokens();
        set.auth
            .next(Endpoint::Token, oauth_error(503, "server_error", "later"));
        let outcome = set.other().call_tool("s", "echo", "{}").await;
        let facts = ErrorFacts::expect(outcome, Code::Unavailable, "AUTHORIZATION_UNAVAILABLE");
        assert!(facts.retry.is_some(), "{facts:?}");
        let again = eventually("a call that succeeds", PATIENCE, async || {
            set.app().call_tool("s", "echo", "{}").await.ok()
        });
        again.await;
        set.all_ready().await;
    })
    .await;
}

#[tokio::test]
async fn a_client_that_signs_in_as_itself_gets_more_scopes_without_anybody() {
    protected(async |set| {
        let known = known("a-service", "client_secret_basic");
        set.auth.add_client(known.clone());
        set.guard.rules(|rules| {
            rules.scope = Some("a");
            rules.needs.extend([("tools/list", "a"), ("t1", "b")]);
        });
        let spec = set.spec_with(credentials(client_of(&known)));
        set.app().add("s", spec).await.unwrap();
        set.all_ready().await;
        set.other().call_tool("s", "t1", "{}").await.unwrap();
        set.all_can_call().await;
        let asked = set.auth.asked(Endpoint::Token);
        let scopes: Vec<_> = asked.iter().map(|asked| asked.param("scope")).collect();
        assert_eq!(scopes, ["a", "a b"]);
    })
    .await;
}

/// An identity provider, its client there, and an ID token of a user that lives so long.
struct Enterprise {
    idp: FakeAuth,
    at_idp: KnownClient,
    at_auth: KnownClient,
    key: KeyPair,
}

impl Enterprise {
    async fn of(set: &mut AuthStage) -> Self {
        let idp = FakeAuth::start().await;
        set.also(&idp);
        let (at_idp, at_auth) = (
            known("at-idp", "client_secret_post"),
            known("at-auth", "client_secret_basic"),
        );
        idp.add_client(at_idp.clone());
        set.auth.add_client(at_auth.clone());
        let (key, signer) = (KeyPair::new("ES256"), KeyPair::new("ES256"));
        idp.trust(&key.public);
        set.auth.trust(&signer.public);
        idp.vouch_with(signer);
        Self {
            idp,
            at_idp,
            at_auth,
            key,
        }
    }

    fn settings(&self, seconds: i64) -> v1::Authorization {
        let now = jose::unix_now();
        let issuer = self.idp.issuer();
        let claims = json!({
            "iss": issuer, "aud": issuer, "sub": "ann", "iat": now - 10, "exp": now + seconds,
        });
        by(Method::EnterpriseManaged(v1::EnterpriseManaged {
            client: Some(client_of(&self.at_auth)),
            idp_token_endpoint: self.idp.endpoint("token"),
            idp_client: Some(v1::OAuthClient {
                auth_method: v1::ClientAuthMethod::Post.into(),
                ..client_of(&self.at_idp)
            }),
            id_token: self.key.sign("JWT", &claims),
        }))
    }
}

#[tokio::test]
async fn an_enterprise_vouches_for_its_users() {
    protected(async |set| {
        let enterprise = Enterprise::of(set).await;
        needs_nobody(set, enterprise.settings(60), JWT_BEARER).await;
        let exchange = enterprise.idp.last(Endpoint::Token);
        assert_eq!(exchange.param("audience"), set.auth.issuer());
        assert_eq!(exchange.param("resource"), set.mcp.url());
        // Neither of the two sees what belongs to the other.
        for asked in enterprise.idp.all_asked() {
            assert_ne!(asked.param("client_id"), "at-auth");
        }
        for asked in set.auth.all_asked() {
            assert!(!asked.has("subject_token"), "{asked:?}");
            assert_ne!(asked.param("client_id"), "at-idp");
        }
    })
    .await;
}

#[tokio::test]
async fn an_enterprise_that_vouches_no_longer_is_told_from_one_that_cannot_be_asked() {
    protected(async |set| {
        let enterprise = Enterprise::of(set).await;
        let spec = set.spec_with(enterprise.settings(-5));
        set.app().add("s", spec).await.unwrap();
        let server = set.other().wait_for("s", ConnectionState::Failed).await;
        let (reason, message) = server.failure();
        assert_eq!(reason, "CREDENTIALS_REFUSED", "{message}");
        assert!(message.contains("invalid_grant"), "{message}");
        assert_eq!(set.auth.count(Endpoint::Token), 0);
        let fresh = set.spec_with(enterprise.settings(60));
        set.other()
            .update("s", fresh, &["authorization"])
            .await
            .unwrap();
        set.all_ready().await;
        set.auth.expire_tokens();
        enterprise.idp.next(Endpoint::Token, Reply::Reset);
        let outcome = set.app().call_tool("s", "echo", "{}").await;
        ErrorFacts::expect(outcome, Code::Unavailable, "AUTHORIZATION_UNAVAILABLE");
        eventually("a call that succeeds", PATIENCE, async || {
            set.other().call_tool("s", "echo", "{}").await.ok()
        })
        .await;
    })
    .await;
}

fn workload(source: AssertionSource, client: Option<v1::OAuthClient>) -> v1::Authorization {
    by(Method::WorkloadIdentity(v1::WorkloadIdentity {
        client,
        assertion_source: Some(source),
    }))
}

/// What a platform says about a workload, for so long.
fn assertion(key: &KeyPair, auth: &FakeAuth, seconds: i64) -> String {
    let now = jose::unix_now();
    key.sign(
        "JWT",
        &json!({
            "iss": "https://platform.example", "sub": "a-workload", "aud": auth.issuer(), "iat": now - 10,
            "exp": now + seconds, "jti": jose::random("assertion"),
        }),
    )
}

#[tokio::test]
async fn a_platform_vouches_for_its_workloads() {
    for client in [None, Some("a-workload")] {
        protected(async |set| {
            let key = KeyPair::new("ES256");
            set.auth.trust(&key.public);
            let client = client.map(|id| {
                let known = known(id, "none");
                set.auth.add_client(known.clone());
                client_of(&known)
            });
            let source = AssertionSource::Assertion(assertion(&key, &set.auth, 600));
            needs_nobody(set, workload(source, client), JWT_BEARER).await;
        })
        .await;
    }
}

#[tokio::test]
async fn the_file_of_an_assertion_is_read_for_every_token() {
    let dir = tempfile::tempdir().unwrap();
    let allowed = [dir.path().to_str().unwrap()];
    let builder = watched().set("auth.assertion_dirs", &allowed[..]);
    protected_with(builder, async |set| {
        let key = KeyPair::new("ES256");
        set.auth.trust(&key.public);
        let file = dir.path().join("token");
        let write = |text: &str| std::fs::write(&file, text).unwrap();
        write(&format!("{}\n", assertion(&key, &set.auth, 600)));
        let at = |path: &std::path::Path| {
            workload(
                AssertionSource::AssertionFile(path.to_str().unwrap().to_owned()),
                None,
            )
        };
        set.app().add("s", set.spec_with(at(&file))).await.unwrap();
        set.all_ready().await;
        let second = assertion(&key, &set.auth, 600);
        write(&second);
        set.auth.expire_tokens();
        set.all_can_call().await;
        assert_eq!(set.auth.last(Endpoint::Token).param("assertion"), second);
        // One that cannot be used costs one request, and nothing else is tried.
        write(&assertion(&key, &set.auth, -5));
        set.auth.expire_tokens();
        let asked = set.auth.count(Endpoint::Token);
        let outcome = set.other().call_tool("s", "echo", "{}").await;
        let facts = ErrorFacts::of(&outcome.unwrap_err());
        assert_eq!(facts.reason, "CREDENTIALS_REFUSED", "{facts:?}");
        assert_eq!(set.auth.count(Endpoint::Token), asked + 1);
        // Nor is any other file of this host.
        for place in ["/etc/hostname", &format!("{}/../hosts", allowed[0])] {
            let outcome = set.other().add(
                "t",
                ServerSpec {
                    name: "T".to_owned(),
                    ..set.spec_with(at(std::path::Path::new(place)))
                },
            );
            if let Err(status) = outcome.await {
                assert_eq!(status.code(), Code::InvalidArgument, "{status:?}");
                continue;
            }
            let server = set.app().wait_for("t", ConnectionState::Failed).await;
            assert!(
                server.failure().1.contains("auth.assertion_dirs"),
                "{server:?}"
            );
            set.app().remove("t").await.unwrap();
        }
        assert_eq!(set.auth.count(Endpoint::Token), asked + 1);
    })
    .await;
}

#[tokio::test]
async fn a_token_that_somebody_else_looks_after_is_sent_and_never_renewed() {
    protected(async |set| {
        let bearer = |token: String| by(Method::BearerToken(v1::BearerToken { token }));
        let token = set.auth.mint(&set.mcp.url(), "a");
        let spec = set.spec_with(bearer(token.clone()));
        set.app().add("s", spec).await.unwrap();
        set.all_ready().await;
        set.all_can_call().await;
        assert_eq!(set.guard.tokens(), [token]);
        set.auth.expire_tokens();
        let outcome = set.other().call_tool("s", "echo", "{}").await;
        let facts = ErrorFacts::expect(outcome, Code::FailedPrecondition, "CREDENTIALS_REFUSED");
        assert!(facts.message.contains("bearer_token"), "{facts:?}");
        assert_eq!(set.auth.all_asked().len(), 0);
        let fresh = set.auth.mint(&set.mcp.url(), "a");
        let spec = set.spec_with(bearer(fresh));
        set.other()
            .update("s", spec, &["authorization"])
            .await
            .unwrap();
        set.all_ready().await;
        set.all_can_call().await;
        assert_eq!(set.auth.all_asked().len(), 0);
    })
    .await;
}

/// Both servers take bound tokens only, and want nonces.
fn bound(set: &AuthStage) {
    set.auth.shape(|shape| {
        shape.dpop = Dpop::Required;
        shape.dpop_nonce = Some("nonce-of-the-authorization-server".to_owned());
    });
    set.guard.rules(|rules| {
        rules.dpop = DpopRule::Required;
        rules.nonce = Some("nonce-of-the-resource".to_owned());
    });
}

#[tokio::test]
async fn tokens_are_bound_to_a_key_where_that_is_offered() {
    for modern in [true, false] {
        play(&watched(), modern, &async |set: &mut AuthStage| {
            bound(set);
            set.sign_in().await;
            set.all_can_call().await;
            let status = set.other().auth_status("s").await.unwrap();
            assert_eq!(status.token_type, "DPoP");
            // Every request has a proof of its own: the guard has looked at each.
            let seen = set.mcp.seen().into_iter();
            let proven = seen.filter(|seen| !seen.header("dpop").is_empty());
            assert!(proven.count() >= 3);
            // Nonces change at any time.
            set.guard
                .rules(|rules| rules.nonce = Some("the-next-nonce".to_owned()));
            set.all_can_call().await;
            set.auth
                .shape(|shape| shape.dpop_nonce = Some("its-next-nonce".to_owned()));
            set.auth.expire_tokens();
            set.all_can_call().await;
            set.restart().await;
            set.all_ready().await;
            set.all_can_call().await;
            let out = set.other().sign_out("s").await.unwrap();
            assert!(out.was_signed_in && out.revoked, "{out:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn many_calls_at_once_have_a_proof_each() {
    protected(async |set| {
        bound(set);
        set.sign_in().await;
        set.auth.expire_tokens();
        let calls = (0..100).map(|number| {
            let app = &set.apps[number % set.apps.len()];
            app.call_tool("s", "echo", "{}")
        });
        for result in futures_util::future::join_all(calls).await {
            result.unwrap();
        }
        assert_eq!(set.auth.live_tokens().len(), 1);
    })
    .await;
}

#[tokio::test]
async fn whether_tokens_are_bound_is_also_a_matter_of_settings() {
    let cases = [
        (v1::DpopMode::Off, Dpop::Offered, Some("Bearer")),
        (v1::DpopMode::Auto, Dpop::Offered, Some("DPoP")),
        (v1::DpopMode::Auto, Dpop::Unknown, Some("Bearer")),
        (v1::DpopMode::Required, Dpop::Offered, Some("DPoP")),
        (v1::DpopMode::Required, Dpop::Unknown, None),
    ];
    for (mode, offer, wanted) in cases {
        protected(async |set| {
            set.auth.shape(|shape| shape.dpop = offer);
            let spec = set.spec_with(v1::Authorization {
                dpop: mode.into(),
                ..Default::default()
            });
            let Some(wanted) = wanted else {
                set.app().add("s", spec).await.unwrap();
                let begun = set.other().start_sign_in("s").await;
                let message = match begun {
                    Err(status) => status.message().to_owned(),
                    // The authorization server may know more than it says.
                    Ok(sign_in) => {
                        let page = set.browser.visit(&sign_in.auth_url).await;
                        assert_eq!(page.status, 400, "{page:?}");
                        page.text
                    }
                };
                assert!(
                    message.contains("bound") || message.contains("DPoP"),
                    "{message}"
                );
                assert!(!set.app().auth_status("s").await.unwrap().signed_in);
                return;
            };
            set.sign_in_as(spec).await;
            set.all_can_call().await;
            let status = set.other().auth_status("s").await.unwrap();
            assert_eq!(status.token_type, wanted);
        })
        .await;
    }
}

/// A server and its authorization server that want certificates.
#[tokio::test]
async fn a_certificate_proves_the_daemon_at_both_servers() {
    for modern in [true, false] {
        for count in 1..=2 {
            let auth = FakeAuth::mutual_tls().await;
            let builder = if modern {
                FakeMcp::modern()
            } else {
                FakeMcp::legacy()
            };
            let mcp = builder.mutual_tls().tool(tool("echo")).start().await;
            let guard = Guard::before(&mcp, &auth);
            let known = known("a-service", "client_secret_basic");
            auth.add_client(known.clone());
            let trusting = watched().env(tls::TRUST, tls::roots().to_str().unwrap());
            let mut stage = Stage::set(trusting, count).await;
            let key_line = tls::CLIENT.1.lines().nth(1).unwrap();
            mcp_sidecar_tests::fake_auth::planted::plant(key_line);

            let mut spec = http_spec("S", &mcp.url());
            spec.authorization = Some(credentials(client_of(&known)));
            // Without it nobody listens.
            stage.app().add("s", spec.clone()).await.unwrap();
            stage.other().wait_for("s", ConnectionState::Failed).await;
            if let Some(v1::server_spec::Transport::Http(http)) = &mut spec.transport {
                http.client_certificate = Some(v1::ClientCertificate {
                    certificate_pem: tls::CLIENT.0.to_owned(),
                    private_key_pem: tls::CLIENT.1.to_owned(),
                });
            }
            let updated = stage.other().update("s", spec, &["http"]).await.unwrap();
            let Some(v1::server_spec::Transport::Http(http)) = updated.spec.unwrap().transport
            else {
                panic!("a server at a URL");
            };
            let shown = http.client_certificate.unwrap();
            assert_eq!(shown.certificate_pem, tls::CLIENT.0);
            assert_eq!(shown.private_key_pem, "", "the key is never shown");
            for app in &stage.apps {
                app.wait_for("s", ConnectionState::Ready).await;
                app.call_tool("s", "echo", "{}").await.unwrap();
            }
            stage.restart().await;
            for app in &stage.apps {
                app.wait_for("s", ConnectionState::Ready).await;
                app.call_tool("s", "echo", "{}").await.unwrap();
            }
            assert_eq!(auth.grants(CLIENT_CREDENTIALS), 1);
            guard.assert_clean();
            auth.assert_clean();
            stage.daemon.assert_no_leaks();
        }
    }
}
