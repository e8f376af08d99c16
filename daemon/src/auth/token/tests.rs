//! Tests of `token`.

use std::sync::atomic::{AtomicUsize, Ordering};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use serde_json::{Value, json};

use super::super::site::{Seen, Site, json as answer, message, web};
use super::*;
use crate::model::auth::{Client, ClientAuth, ClientSpec};
use crate::model::spec::NamedSecret;

#[path = "answer_tests.rs"]
mod answers;

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
                assert_eq!(fields, [id, None, None]);
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
        text("me :)"),
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
