//! Tests of `token`.

use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::site::{Seen, Site, json as answer, message, web};
use super::*;
use crate::model::auth::{Client, ClientAuth, ClientSpec};
use crate::model::spec::NamedSecret;

fn secret(text: &str) -> Secret<String> {
    Secret::new(text.to_owned())
}

fn named(text: &str) -> NamedSecret {
    NamedSecret {
        name: String::new(),
        value: secret(text),
    }
}

/// A client "me :)" at the site, with a secret that has to be encoded.
fn terms(site: &Site, auth: ClientAuth) -> Terms {
    Terms {
        server: AuthServer {
            issuer: site.base.clone(),
            token_endpoint: Some(format!("{}/token", site.base)),
            revocation_endpoint: Some(format!("{}/revoke", site.base)),
            ..AuthServer::default()
        },
        client: Client {
            issuer: site.base.clone(),
            client_id: "me :)".to_owned(),
            auth,
            secret: matches!(auth, ClientAuth::Basic | ClientAuth::Post).then(|| secret("p/w+ %:")),
            private_key: (auth == ClientAuth::PrivateKeyJwt)
                .then(|| DpopKey::generate().unwrap().to_pem()),
            algorithm: None,
        },
        resource: "https://h.example".to_owned(),
        scopes: Scopes::parse("a b"),
    }
}

/// A site that answers every request with this.
async fn always(status: u16, document: Value) -> Site {
    Site::start(move |_, _| answer(status, &document)).await
}

fn good() -> Value {
    json!({"access_token": "the-access-token", "token_type": "Bearer", "expires_in": 3600})
}

async fn redeem_at(site: &Site, auth: ClientAuth) -> Result<Tokens, Failure> {
    let code = secret("the-code/1");
    let home = "http://127.0.0.1:33433/oauth/callback";
    redeem(
        &web(),
        &terms(site, auth),
        &code,
        &secret("the-verifier"),
        home,
        None,
    )
    .await
}

async fn refresh_at(site: &Site) -> Result<Tokens, Failure> {
    let old = secret("the-refresh-token");
    refresh(&web(), &terms(site, ClientAuth::Basic), &old, None).await
}

fn sent(seen: &Seen, names: &[&str]) -> Vec<Option<String>> {
    names.iter().map(|name| seen.field(name)).collect()
}

#[tokio::test]
async fn a_code_is_redeemed_with_all_that_belongs_to_it() {
    let site = always(200, good()).await;
    let tokens = redeem_at(&site, ClientAuth::None).await.unwrap();
    assert_eq!(
        tokens,
        Tokens {
            access_token: secret("the-access-token"),
            refresh_token: None,
            bound: false,
            expires_in: Some(Duration::from_hours(1)),
            scopes: None,
            subject: None,
        }
    );
    let seen = site.seen().remove(0);
    assert_eq!(
        (seen.method.as_str(), seen.target.as_str()),
        ("POST", "/token")
    );
    assert_eq!(
        seen.header("content-type"),
        Some("application/x-www-form-urlencoded")
    );
    assert_eq!(seen.header("accept"), Some("application/json"));
    assert_eq!(seen.header("dpop"), None);
    let names = [
        "grant_type",
        "code",
        "code_verifier",
        "redirect_uri",
        "resource",
        "client_id",
        "scope",
    ];
    assert_eq!(
        sent(&seen, &names),
        [
            Some("authorization_code".to_owned()),
            Some("the-code/1".to_owned()),
            Some("the-verifier".to_owned()),
            Some("http://127.0.0.1:33433/oauth/callback".to_owned()),
            Some("https://h.example".to_owned()),
            Some("me :)".to_owned()),
            None,
        ]
    );
}

#[tokio::test]
async fn a_client_proves_itself_in_its_own_way() {
    let site = always(200, good()).await;
    for auth in ClientAuth::ALL {
        redeem_at(&site, auth).await.unwrap();
        let seen = site.seen().pop().unwrap();
        let header = seen.header("authorization");
        let fields = ["client_id", "client_secret", "client_assertion_type"];
        let fields = sent(&seen, &fields);
        let id = Some("me :)".to_owned());
        match auth {
            ClientAuth::None => assert_eq!((header, fields), (None, vec![id, None, None])),
            ClientAuth::Basic => {
                let pair = STANDARD.encode("me+%3A%29:p%2Fw%2B+%25%3A");
                assert_eq!(header, Some(format!("Basic {pair}").as_str()));
                assert_eq!(fields, [None, None, None]);
            }
            ClientAuth::Post => {
                assert_eq!(
                    (header, fields),
                    (None, vec![id, Some("p/w+ %:".to_owned()), None])
                );
            }
            ClientAuth::PrivateKeyJwt => {
                let kind = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer".to_owned();
                assert_eq!((header, fields), (None, vec![id, None, Some(kind)]));
                let assertion = seen.field("client_assertion").unwrap();
                let claims = URL_SAFE_NO_PAD
                    .decode(assertion.split('.').nth(1).unwrap())
                    .unwrap();
                let claims: Value = serde_json::from_slice(&claims).unwrap();
                assert_eq!(
                    (&claims["aud"], &claims["sub"]),
                    (&json!(site.base), &json!("me :)"))
                );
            }
        }
    }
}

#[tokio::test]
async fn a_refresh_names_the_resource_and_widens_nothing() {
    let mut document = good();
    document["refresh_token"] = json!("next");
    document["scope"] = json!("a");
    let site = always(200, document).await;
    let tokens = refresh_at(&site).await.unwrap();
    assert_eq!(tokens.refresh_token, Some(secret("next")));
    assert_eq!(tokens.scopes, Some(Scopes::parse("a")));
    let names = ["grant_type", "refresh_token", "resource", "scope"];
    let text = |text: &str| Some(text.to_owned());
    let expected = [
        text("refresh_token"),
        text("the-refresh-token"),
        text("https://h.example"),
        None,
    ];
    assert_eq!(sent(&site.seen()[0], &names), expected);

    let mut bare = terms(&site, ClientAuth::Basic);
    bare.resource = String::new();
    refresh(&web(), &bare, &secret("the-refresh-token"), None)
        .await
        .unwrap();
    assert_eq!(site.seen()[1].field("resource"), None);
}

#[tokio::test]
async fn the_daemon_signs_in_as_itself() {
    let site = always(200, good()).await;
    client_credentials(&web(), &terms(&site, ClientAuth::Basic), None)
        .await
        .unwrap();
    let text = |text: &str| Some(text.to_owned());
    let expected = [
        text("client_credentials"),
        text("a b"),
        text("https://h.example"),
    ];
    assert_eq!(
        sent(&site.seen()[0], &["grant_type", "scope", "resource"]),
        expected
    );
    let mut bare = terms(&site, ClientAuth::Basic);
    bare.scopes = Scopes::default();
    client_credentials(&web(), &bare, None).await.unwrap();
    assert_eq!(site.seen()[1].field("scope"), None);
}

fn enterprise_spec(site: &Site) -> EnterpriseSpec {
    EnterpriseSpec {
        client: ClientSpec::default(),
        idp_token_endpoint: format!("{}/idp", site.base),
        idp_client: ClientSpec {
            client_id: "at-the-idp".to_owned(),
            ..ClientSpec::default()
        },
        id_token: named("the-id-token"),
    }
}

#[tokio::test]
async fn an_identity_provider_vouches_for_the_user() {
    let site = Site::start(|_, request| match request.target.as_str() {
        "/idp" => answer(
            200,
            &json!({"access_token": "the-id-jag", "issued_token_type": ID_JAG, "token_type": "N_A"}),
        ),
        _ => answer(200, &good()),
    })
    .await;
    let terms = terms(&site, ClientAuth::Basic);
    enterprise(&web(), &terms, &enterprise_spec(&site), None)
        .await
        .unwrap();
    let seen = site.seen();
    let text = |text: &str| Some(text.to_owned());
    let names = [
        "grant_type",
        "requested_token_type",
        "subject_token",
        "subject_token_type",
        "audience",
        "resource",
        "scope",
        "client_id",
    ];
    let expected = [
        text(TOKEN_EXCHANGE),
        text(ID_JAG),
        text("the-id-token"),
        text(ID_TOKEN),
        text(&site.base),
        text("https://h.example"),
        text("a b"),
        text("at-the-idp"),
    ];
    assert_eq!(sent(&seen[0], &names), expected);
    let expected = [
        text(JWT_BEARER),
        text("the-id-jag"),
        text("https://h.example"),
        text("a b"),
        None,
    ];
    assert_eq!(
        sent(
            &seen[1],
            &["grant_type", "assertion", "resource", "scope", "client_id"]
        ),
        expected
    );
    assert!(
        seen[1]
            .header("authorization")
            .unwrap()
            .starts_with("Basic ")
    );
}

#[tokio::test]
async fn what_an_identity_provider_refuses_is_not_asked_for_elsewhere() {
    for (status, document, is_grant) in [
        (
            400,
            json!({"error": "invalid_grant", "error_description": "the-id-token is old"}),
            true,
        ),
        (
            200,
            json!({"access_token": "x", "issued_token_type": "urn:ietf:params:oauth:token-type:access_token"}),
            false,
        ),
    ] {
        let site = always(status, document).await;
        let failure = enterprise(
            &web(),
            &terms(&site, ClientAuth::Basic),
            &enterprise_spec(&site),
            None,
        )
        .await
        .unwrap_err();
        assert_eq!(
            matches!(failure, Failure::Grant(_)),
            is_grant,
            "{failure:?}"
        );
        assert_eq!(failure.error().reason(), Reason::CredentialsRefused);
        assert!(
            !failure.error().message().contains("the-id-token"),
            "{failure}"
        );
        assert_eq!(site.targets(), ["/idp"]);
    }
}

#[tokio::test]
async fn a_platform_vouches_for_the_workload() {
    let site = always(200, good()).await;
    let mut terms = terms(&site, ClientAuth::None);
    workload(&web(), &terms, &secret("the-assertion"), None)
        .await
        .unwrap();
    terms.client.client_id = String::new();
    workload(&web(), &terms, &secret("the-assertion"), None)
        .await
        .unwrap();
    let text = |text: &str| Some(text.to_owned());
    let names = ["grant_type", "assertion", "resource", "scope", "client_id"];
    for (seen, id) in site.seen().iter().zip([text("me :)"), None]) {
        let expected = [
            text(JWT_BEARER),
            text("the-assertion"),
            text("https://h.example"),
            text("a b"),
            id,
        ];
        assert_eq!(sent(seen, &names), expected);
    }
}

#[tokio::test]
async fn loose_answers_are_understood() {
    let subject = URL_SAFE_NO_PAD.encode(json!({"sub": "user-1"}).to_string());
    for (extra, expires, scopes, subject) in [
        (json!({}), None, None, None),
        (
            json!({"token_type": "bearer", "expires_in": "600"}),
            Some(600),
            None,
            None,
        ),
        (
            json!({"token_type": "BEARER", "expires_in": 600.9}),
            Some(600),
            None,
            None,
        ),
        (
            json!({"token_type": null, "expires_in": null, "scope": null, "refresh_token": null}),
            None,
            None,
            None,
        ),
        (json!({"expires_in": 0}), None, None, None),
        (json!({"expires_in": -5}), None, None, None),
        (json!({"expires_in": "soon"}), None, None, None),
        (json!({"expires_in": 1e300}), None, None, None),
        (json!({"scope": ["a", "b"]}), None, Some("a b"), None),
        (json!({"scope": "a,b"}), None, Some("a b"), None),
        (json!({"scope": ""}), None, None, None),
        (
            json!({"refresh_token": "", "unknown": {"x": [1]}}),
            None,
            None,
            None,
        ),
        (
            json!({"id_token": format!("x.{subject}.y")}),
            None,
            None,
            Some("user-1"),
        ),
        (json!({"id_token": "nonsense"}), None, None, None),
    ] {
        let mut document = json!({"access_token": "t"});
        document
            .as_object_mut()
            .unwrap()
            .extend(extra.as_object().unwrap().clone());
        let text = document.to_string();
        // Neither the type of the content nor the exact status says anything.
        let site = Site::start(move |_, _| {
            message(201, "content-type: text/plain\r\n", &document.to_string())
        })
        .await;
        for tokens in [refresh_at(&site).await, workload_at(&site).await] {
            let tokens = tokens.unwrap_or_else(|failure| panic!("{text}: {failure}"));
            assert_eq!(
                tokens.expires_in,
                expires.map(Duration::from_secs),
                "{text}"
            );
            assert_eq!(tokens.scopes, scopes.map(Scopes::parse), "{text}");
            assert_eq!(tokens.subject.as_deref(), subject, "{text}");
            assert_eq!((tokens.refresh_token, tokens.bound), (None, false));
        }
    }
}

async fn workload_at(site: &Site) -> Result<Tokens, Failure> {
    workload(
        &web(),
        &terms(site, ClientAuth::None),
        &secret("the-assertion"),
        None,
    )
    .await
}

/// The kind of a failure, as a word.
fn kind(failure: &Failure) -> &'static str {
    match failure {
        Failure::Grant(_) => "grant",
        Failure::Client(_) => "client",
        Failure::Refused(_) => "refused",
        Failure::Unavailable(_) => "unavailable",
    }
}

#[tokio::test]
async fn only_an_error_that_is_one_condemns_anything() {
    let oauth = |code: &str| json!({"error": code, "error_description": "because"}).to_string();
    for (status, body, expected) in [
        (400, oauth("invalid_grant"), "grant"),
        (401, oauth("invalid_grant"), "grant"),
        (200, oauth("bad_refresh_token"), "grant"),
        (200, oauth("bad_verification_code"), "grant"),
        (401, oauth("invalid_client"), "client"),
        (400, oauth("unauthorized_client"), "client"),
        (200, oauth("incorrect_client_credentials"), "client"),
        (400, oauth("invalid_scope"), "refused"),
        (400, oauth("invalid_request"), "refused"),
        (400, oauth("invalid_target"), "refused"),
        (400, oauth("temporarily_unavailable"), "unavailable"),
        (400, oauth("use_dpop_nonce"), "unavailable"),
        (500, oauth("invalid_grant"), "unavailable"),
        (502, "<html>bad gateway".to_owned(), "unavailable"),
        (530, String::new(), "unavailable"),
        (429, oauth("invalid_grant"), "unavailable"),
        (408, String::new(), "unavailable"),
        (400, String::new(), "unavailable"),
        (401, "unauthorized".to_owned(), "unavailable"),
        (403, "<html>blocked".to_owned(), "unavailable"),
        (404, "{}".to_owned(), "unavailable"),
        (
            400,
            json!({"error": {"code": 400}}).to_string(),
            "unavailable",
        ),
        (200, "<html>hello".to_owned(), "unavailable"),
        (200, String::new(), "unavailable"),
        (200, "{}".to_owned(), "unavailable"),
        (200, "[]".to_owned(), "unavailable"),
        (200, json!({"access_token": ""}).to_string(), "unavailable"),
        (200, json!({"access_token": 7}).to_string(), "unavailable"),
        (
            200,
            json!({"access_token": "a b"}).to_string(),
            "unavailable",
        ),
        (
            200,
            json!({"access_token": "t", "refresh_token": 7}).to_string(),
            "unavailable",
        ),
        (
            200,
            json!({"access_token": "t", "token_type": "mac"}).to_string(),
            "refused",
        ),
        (
            200,
            json!({"access_token": "t", "token_type": "DPoP"}).to_string(),
            "refused",
        ),
    ] {
        let text = body.clone();
        let site = Site::start(move |_, _| message(status, "", &text)).await;
        for failure in [
            refresh_at(&site).await.unwrap_err(),
            workload_at(&site).await.unwrap_err(),
        ] {
            assert_eq!(kind(&failure), expected, "{status} {body}: {failure}");
            if expected == "unavailable" {
                assert_eq!(failure.error().reason(), Reason::AuthorizationUnavailable);
            }
        }
        assert_eq!(site.seen().len(), 2, "nothing is repeated");
    }
    let late = Site::start(|_, _| message(429, "retry-after: 2\r\n", "")).await;
    let failure = refresh_at(&late).await.unwrap_err();
    assert_eq!(failure.error().retry_delay(), Some(Duration::from_secs(2)));
    let reset = Site::start(|_, _| String::new()).await;
    assert_eq!(kind(&refresh_at(&reset).await.unwrap_err()), "unavailable");
}

#[tokio::test]
async fn what_was_sent_is_not_shown() {
    let echo = Site::start(|_, request| {
        let said = format!(
            "you sent {} and {:?}\r\n\u{7}",
            request.body,
            request.header("authorization")
        );
        answer(
            400,
            &json!({"error": "invalid_grant", "error_description": said}),
        )
    })
    .await;
    let mut shown = Vec::new();
    for auth in ClientAuth::ALL {
        shown.push(redeem_at(&echo, auth).await.unwrap_err());
        let assertion = echo.seen().last().unwrap().field("client_assertion");
        if let Some(assertion) = assertion {
            let text = shown.last().unwrap().error().message();
            assert!(!text.contains(&assertion[..40]), "{text}");
        }
    }
    shown.push(refresh_at(&echo).await.unwrap_err());
    shown.push(workload_at(&echo).await.unwrap_err());
    let pair = STANDARD.encode("me+%3A%29:p%2Fw%2B+%25%3A");
    for failure in shown {
        let text = failure.error().message();
        assert!(
            text.contains("invalid_grant") && text.contains("***"),
            "{text}"
        );
        for secret in [
            "the-code",
            "the-verifier",
            "the-refresh-token",
            "the-assertion",
            "p/w+",
            "p%2Fw",
            &pair,
        ] {
            assert!(!text.contains(secret), "{secret} in {text}");
        }
        assert!(
            text.len() < 600 && !text.chars().any(char::is_control),
            "{text}"
        );
    }
}

/// A site that wants a nonce in a proof, as often as it is told to.
async fn wants_nonce(times: usize) -> Site {
    let asked = AtomicUsize::new(0);
    Site::start(move |_, _| {
        if asked.fetch_add(1, Ordering::Relaxed) < times {
            let body = json!({"error": "use_dpop_nonce"}).to_string();
            return message(400, "DPoP-Nonce: the-nonce\r\n", &body);
        }
        answer(200, &json!({"access_token": "t", "token_type": "DPoP"}))
    })
    .await
}

fn proof(seen: &Seen) -> Value {
    let proof = seen.header("dpop").unwrap();
    let claims = URL_SAFE_NO_PAD
        .decode(proof.split('.').nth(1).unwrap())
        .unwrap();
    serde_json::from_slice(&claims).unwrap()
}

#[tokio::test]
async fn tokens_are_bound_to_a_key_with_the_nonce_of_the_server() {
    let key = DpopKey::generate().unwrap();
    let site = wants_nonce(1).await;
    let terms = terms(&site, ClientAuth::PrivateKeyJwt);
    let tokens = refresh(&web(), &terms, &secret("the-refresh-token"), Some(&key))
        .await
        .unwrap();
    assert!(tokens.bound);
    let seen = site.seen();
    assert_eq!(seen.len(), 2);
    let (first, second) = (proof(&seen[0]), proof(&seen[1]));
    assert_eq!(first["htu"], format!("{}/token", site.base));
    assert_eq!(first["htm"], "POST");
    assert_eq!(
        (first.get("nonce"), &second["nonce"]),
        (None, &json!("the-nonce"))
    );
    assert_ne!(first["jti"], second["jti"]);
    assert_ne!(
        seen[0].field("client_assertion"),
        seen[1].field("client_assertion"),
        "none is used twice"
    );

    let never = wants_nonce(usize::MAX).await;
    let terms = self::terms(&never, ClientAuth::None);
    let failure = refresh(&web(), &terms, &secret("the-refresh-token"), Some(&key))
        .await
        .unwrap_err();
    assert_eq!(kind(&failure), "unavailable");
    assert_eq!(never.seen().len(), 2, "one repetition");
}

#[tokio::test]
async fn a_server_that_does_not_bind_is_believed() {
    let key = DpopKey::generate().unwrap();
    let site = always(200, good()).await;
    let terms = terms(&site, ClientAuth::None);
    let tokens = refresh(&web(), &terms, &secret("the-refresh-token"), Some(&key))
        .await
        .unwrap();
    assert!(!tokens.bound, "whether that is enough is not decided here");
}

#[tokio::test]
async fn a_token_is_given_back() {
    let site = Site::start(|_, _| message(200, "", "")).await;
    let terms = terms(&site, ClientAuth::Post);
    let old = secret("the-refresh-token");
    assert!(revoke(&web(), &terms, &old, "refresh_token").await.unwrap());
    let seen = site.seen().remove(0);
    assert_eq!(seen.target, "/revoke");
    let text = |text: &str| Some(text.to_owned());
    let names = ["token", "token_type_hint", "client_id", "client_secret"];
    assert_eq!(
        sent(&seen, &names),
        [
            text("the-refresh-token"),
            text("refresh_token"),
            text("me :)"),
            text("p/w+ %:")
        ]
    );

    let refuses = always(400, json!({"error": "unsupported_token_type"})).await;
    let terms = self::terms(&refuses, ClientAuth::None);
    assert!(!revoke(&web(), &terms, &old, "access_token").await.unwrap());
    let down = always(503, json!({})).await;
    let mut terms = self::terms(&down, ClientAuth::None);
    let error = revoke(&web(), &terms, &old, "access_token")
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::AuthorizationUnavailable);
    terms.server.revocation_endpoint = None;
    assert!(!revoke(&web(), &terms, &old, "access_token").await.unwrap());
}

#[tokio::test]
async fn an_endpoint_that_may_not_be_talked_to_condemns_nothing() {
    let site = always(200, good()).await;
    let mut terms = terms(&site, ClientAuth::None);
    for (endpoint, expected) in [
        (Some("https://10.0.0.1/token"), "unavailable"),
        (Some("http://as.example/token"), "unavailable"),
        (Some("nonsense"), "refused"),
        (None, "refused"),
    ] {
        terms.server.token_endpoint = endpoint.map(str::to_owned);
        let failure = refresh(&web(), &terms, &secret("the-refresh-token"), None)
            .await
            .unwrap_err();
        assert_eq!(kind(&failure), expected, "{endpoint:?}");
    }
    assert!(site.seen().is_empty());
}

#[test]
fn what_is_fresh_is_fresh_and_long() {
    let (one, two) = (pkce(), pkce());
    assert_ne!(one, two);
    let digest =
        aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, one.verifier.expose().as_bytes());
    assert_eq!(one.challenge, URL_SAFE_NO_PAD.encode(digest));
    assert!((43..=128).contains(&one.verifier.len()));
    assert_ne!(fresh_state(), fresh_state());
    assert!(fresh_state().len() >= 43);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn no_answer_makes_it_fail(status in 200_u16..600, body in "[{}\\[\\]\":,a-z_0-9 ]{0,80}") {
        let url = url::Url::parse("https://as.example/token").unwrap();
        let asked = answer::Asked {
            url: &url,
            issuer: "https://as.example",
            reason: Reason::SignInFailed,
            secrets: Vec::new(),
        };
        let reply = crate::auth::web::Reply {
            status: http::StatusCode::from_u16(status).unwrap(),
            headers: http::HeaderMap::new(),
            body: body.into_bytes(),
            cut: false,
        };
        let _ = answer::verdict(reply, &asked);
    }
}
