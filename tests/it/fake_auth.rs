//! The fakes of authorization themselves, without a daemon: what they let pass, what they refuse, what they remember.

use std::collections::HashMap;

use mcp_sidecar_tests::fake_auth::jose::{self, Jwt, KeyPair};
use mcp_sidecar_tests::fake_auth::planted;
use mcp_sidecar_tests::fake_auth::{Dpop, DpopRule, KnownClient, WellKnown};
use mcp_sidecar_tests::prelude::*;
use url::Url;

const REDIRECT: &str = "http://127.0.0.1:9/callback";
const VERIFIER: &str = "a-verifier-that-is-long-enough-to-be-taken-0123456789";

/// A client that does everything by hand.
struct Hand {
    auth: FakeAuth,
    http: reqwest::Client,
    client_id: String,
    resource: String,
}

type Form<'a> = &'a [(&'a str, &'a str)];

impl Hand {
    async fn registered(auth: &FakeAuth, resource: &str) -> Self {
        let http = reqwest::Client::new();
        let body = json!({
            "redirect_uris": [REDIRECT], "client_name": "hand", "application_type": "native",
            "grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"],
        });
        let answer = http.post(auth.endpoint("register")).json(&body).send();
        let answer = answer.await.unwrap();
        assert_eq!(answer.status(), 201);
        let answer: Value = answer.json().await.unwrap();
        Self {
            auth: auth.clone(),
            http,
            client_id: answer["client_id"].as_str().unwrap().to_owned(),
            resource: resource.to_owned(),
        }
    }

    /// The query of the redirect that answers an authorization request.
    async fn authorize(&self, scope: &str) -> HashMap<String, String> {
        let challenge = jose::sha256(VERIFIER);
        let fields = [
            ("response_type", "code"),
            ("client_id", &self.client_id),
            ("redirect_uri", REDIRECT),
            ("state", "a-state-that-nobody-can-guess"),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
            ("resource", &self.resource),
            ("scope", scope),
        ];
        let url = Url::parse_with_params(&self.auth.endpoint("authorize"), fields).unwrap();
        let location = Browser::new().decide(url.as_str()).await;
        let location = Url::parse(&location).unwrap();
        assert!(location.as_str().starts_with(REDIRECT), "{location}");
        location.query_pairs().into_owned().collect()
    }

    /// Status and body of a token request.
    async fn token(&self, form: Form<'_>, proof: Option<String>) -> (u16, Value) {
        let mut request = self.http.post(self.auth.endpoint("token"));
        if let Some(proof) = proof {
            request = request.header("dpop", proof);
        }
        let body = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(form)
            .finish();
        let request = request.header("content-type", "application/x-www-form-urlencoded");
        let answer = request.body(body).send().await.unwrap();
        (answer.status().as_u16(), answer.json().await.unwrap())
    }

    async fn redeem(&self, code: &str, verifier: &str) -> (u16, Value) {
        let form = [
            ("grant_type", "authorization_code"),
            ("code", code),
            ("redirect_uri", REDIRECT),
            ("client_id", &self.client_id),
            ("code_verifier", verifier),
            ("resource", &self.resource),
        ];
        self.token(&form, None).await
    }

    async fn renew(&self, token: &str) -> (u16, Value) {
        let form = [
            ("grant_type", "refresh_token"),
            ("refresh_token", token),
            ("client_id", &self.client_id),
            ("resource", &self.resource),
        ];
        self.token(&form, None).await
    }
}

fn text<'a>(value: &'a Value, member: &str) -> &'a str {
    value[member].as_str().unwrap_or_default()
}

async fn call(mcp: &FakeMcp, headers: &[(&'static str, String)]) -> reqwest::Response {
    let body = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "t1"}});
    let mut request = reqwest::Client::new().post(mcp.url()).json(&body);
    for (name, value) in headers {
        request = request.header(*name, value);
    }
    request.send().await.unwrap()
}

#[tokio::test]
async fn a_user_signs_in_and_a_guard_lets_pass() {
    let auth = FakeAuth::start().await;
    let mcp = FakeMcp::modern().tool(tool("t1")).start().await;
    let guard = Guard::before(&mcp, &auth);
    guard.rules(|rules| {
        rules.needs.insert("t1", "b");
    });
    let refused = call(&mcp, &[]).await;
    assert_eq!(refused.status(), 401);
    let challenge = refused.headers()["www-authenticate"].to_str().unwrap();
    let wanted = format!("Bearer resource_metadata=\"{}\"", guard.metadata_url());
    assert_eq!(challenge, wanted);
    let browser = Browser::new();
    let document: Value =
        serde_json::from_str(&browser.get(&guard.metadata_url()).await.text).unwrap();
    assert_eq!(document["authorization_servers"], json!([auth.issuer()]));
    let well_known = format!("{}/.well-known/oauth-authorization-server", auth.origin());
    let document: Value = serde_json::from_str(&browser.get(&well_known).await.text).unwrap();
    assert_eq!(document["issuer"], auth.issuer());

    let hand = Hand::registered(&auth, &mcp.url()).await;
    for (scope, status) in [("a", 403), ("a b", 200)] {
        let back = hand.authorize(scope).await;
        assert_eq!(back["iss"], auth.issuer());
        assert_eq!(back["state"], "a-state-that-nobody-can-guess");
        let (_, tokens) = hand.redeem(&back["code"], VERIFIER).await;
        assert_eq!(tokens["scope"], scope);
        let bearer = format!("Bearer {}", text(&tokens, "access_token"));
        let answer = call(&mcp, &[("authorization", bearer)]).await;
        assert_eq!(answer.status(), status);
        if status == 403 {
            let challenge = answer.headers()["www-authenticate"].to_str().unwrap();
            assert!(challenge.contains("insufficient_scope"), "{challenge}");
            assert!(challenge.contains("scope=\"b\""), "{challenge}");
        }
    }
    guard.assert_clean();
    auth.assert_clean();

    let foreign = ("authorization", "Bearer of-somebody-else".to_owned());
    assert_eq!(call(&mcp, &[foreign]).await.status(), 401);
    assert_eq!(guard.take_faults().len(), 1);
}

#[tokio::test]
async fn codes_and_refresh_tokens_are_used_once() {
    let auth = FakeAuth::at("/tenant").await;
    let hand = Hand::registered(&auth, "https://resource.example/mcp").await;
    let code = hand.authorize("a").await["code"].clone();
    let (status, answer) = hand.redeem(&code, "another-verifier").await;
    assert_eq!((status, text(&answer, "error")), (400, "invalid_grant"));
    let code = hand.authorize("a").await["code"].clone();
    let (status, first) = hand.redeem(&code, VERIFIER).await;
    assert_eq!(status, 200);
    let (status, second) = hand.renew(text(&first, "refresh_token")).await;
    assert_eq!(status, 200);
    assert!(auth.check(text(&second, "access_token")).is_ok());
    // The second use ends the whole family.
    let (status, answer) = hand.renew(text(&first, "refresh_token")).await;
    assert_eq!((status, text(&answer, "error")), (400, "invalid_grant"));
    let (status, _) = hand.renew(text(&second, "refresh_token")).await;
    assert_eq!(status, 400);
    assert_eq!(auth.live_tokens(), Vec::<String>::new());
    let faults = auth.take_faults();
    assert_eq!(faults.len(), 2, "{faults:?}");

    let leaks = planted::leaks([("here".to_owned(), format!("<{code}>").as_bytes())]);
    assert_eq!(leaks.len(), 1, "{leaks:?}");
    assert_eq!(
        planted::leaks([("here".to_owned(), &b"nothing"[..])]),
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn single_answers_and_delays_are_scripted() {
    let auth = FakeAuth::start().await;
    auth.shape(|shape| shape.well_known = vec![WellKnown::OpenIdBehind]);
    auth.next(Endpoint::Metadata, Reply::Raw(502, Vec::new(), "".into()));
    auth.next(Endpoint::Metadata, Reply::Reset);
    let place = format!("{}/.well-known/openid-configuration", auth.origin());
    let browser = Browser::new();
    assert_eq!(browser.get(&place).await.status, 502);
    assert!(browser.try_get(&place).await.is_none());
    assert_eq!(browser.get(&place).await.status, 200);
    let other = format!("{}/.well-known/oauth-authorization-server", auth.origin());
    assert_eq!(browser.get(&other).await.status, 404);

    let gate = auth.hold(Endpoint::Metadata);
    let held = tokio::spawn(async move { browser.get(&place).await.status });
    gate.arrived(1).await;
    assert!(!held.is_finished());
    gate.open();
    assert_eq!(within("the held answer", held).await.unwrap(), 200);
    assert_eq!(auth.count(Endpoint::Metadata), 5);
}

#[tokio::test]
async fn what_a_client_says_about_itself_is_verified() {
    for algorithm in ["ES256", "ES384", "RS256", "PS256", "EdDSA"] {
        let pair = KeyPair::new(algorithm);
        assert!(pair.pem.starts_with("-----BEGIN PRIVATE KEY-----\n"));
    }
    let auth = FakeAuth::start().await;
    let pair = KeyPair::new("ES256");
    auth.add_client(KnownClient {
        id: "job".to_owned(),
        auth: "private_key_jwt",
        secret: None,
        key: Some(pair.public.clone()),
        redirect_uris: Vec::new(),
        scope: None,
    });
    let hand = Hand {
        auth: auth.clone(),
        http: reqwest::Client::new(),
        client_id: "job".to_owned(),
        resource: String::new(),
    };
    let now = jose::unix_now();
    let claims = |audience: &str, jti: &str| json!({"iss": "job", "sub": "job", "aud": audience, "jti": jti, "iat": now, "exp": now + 60});
    let attempt = async |key: &KeyPair, claims: Value| {
        let assertion = key.sign("JWT", &claims);
        let form = [
            ("grant_type", "client_credentials"),
            ("client_assertion", assertion.as_str()),
            (
                "client_assertion_type",
                "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            ),
        ];
        hand.token(&form, None).await.0
    };
    assert_eq!(attempt(&pair, claims(&auth.issuer(), "1")).await, 200);
    assert_eq!(attempt(&pair, claims(&auth.issuer(), "1")).await, 401);
    assert_eq!(
        attempt(&pair, claims("https://other.example", "2")).await,
        401
    );
    let other = KeyPair::new("ES256");
    assert_eq!(attempt(&other, claims(&auth.issuer(), "3")).await, 401);
    assert_eq!(auth.take_faults().len(), 3);
}

#[tokio::test]
async fn an_identity_provider_vouches_for_a_user() {
    let (idp, auth) = (FakeAuth::start().await, FakeAuth::start().await);
    let key = KeyPair::new("ES256");
    auth.trust(&key.public);
    let now = jose::unix_now();
    let id_token = key.sign(
        "JWT",
        &json!({"iss": idp.issuer(), "aud": idp.issuer(), "sub": "ann", "iat": now, "exp": now + 60}),
    );
    idp.vouch_with(key);
    let client = |id: &str| KnownClient {
        id: id.to_owned(),
        auth: "none",
        secret: None,
        key: None,
        redirect_uris: Vec::new(),
        scope: None,
    };
    idp.add_client(client("at-idp"));
    auth.add_client(client("at-auth"));
    let hand = |auth: &FakeAuth| Hand {
        auth: auth.clone(),
        http: reqwest::Client::new(),
        client_id: String::new(),
        resource: String::new(),
    };
    let form = [
        (
            "grant_type",
            "urn:ietf:params:oauth:grant-type:token-exchange",
        ),
        ("client_id", "at-idp"),
        (
            "requested_token_type",
            "urn:ietf:params:oauth:token-type:id-jag",
        ),
        (
            "subject_token_type",
            "urn:ietf:params:oauth:token-type:id_token",
        ),
        ("subject_token", &id_token),
        ("audience", &auth.issuer()),
        ("resource", "https://resource.example"),
    ];
    let (status, answer) = hand(&idp).token(&form, None).await;
    assert_eq!(status, 200, "{answer}");
    let jag = text(&answer, "access_token");
    assert_eq!(Jwt::parse(jag).unwrap().claim("sub"), "ann");
    let form = [
        ("grant_type", "urn:ietf:params:oauth:grant-type:jwt-bearer"),
        ("client_id", "at-auth"),
        ("assertion", jag),
    ];
    let (status, answer) = hand(&auth).token(&form, None).await;
    assert_eq!(status, 200, "{answer}");
    // An assertion for somebody else.
    let form = [form[0], form[1], ("assertion", id_token.as_str())];
    let (status, answer) = hand(&auth).token(&form, None).await;
    assert_eq!((status, text(&answer, "error")), (400, "invalid_grant"));
}

#[tokio::test]
async fn possession_is_proven_with_nonces() {
    let auth = FakeAuth::start().await;
    auth.shape(|shape| {
        shape.dpop = Dpop::Required;
        shape.dpop_nonce = Some("nonce-1".to_owned());
    });
    let mcp = FakeMcp::modern().tool(tool("t1")).start().await;
    let guard = Guard::before(&mcp, &auth);
    guard.rules(|rules| {
        rules.dpop = DpopRule::Required;
        rules.nonce = Some("nonce-2".to_owned());
    });
    let hand = Hand::registered(&auth, &mcp.url()).await;
    let key = KeyPair::new("ES256");
    let proof = |url: &str, nonce: &str, token: &str| {
        let header = json!({"typ": "dpop+jwt", "alg": "ES256", "jwk": key.jwk()});
        let mut claims = json!({
            "jti": jose::random("jti"), "htm": "POST", "htu": url, "iat": jose::unix_now(),
        });
        if !nonce.is_empty() {
            claims["nonce"] = json!(nonce);
        }
        if !token.is_empty() {
            claims["ath"] = json!(jose::sha256(token));
        }
        key.sign_with(&header, &claims)
    };
    let code = hand.authorize("a").await["code"].clone();
    let form = [
        ("grant_type", "authorization_code"),
        ("code", &code),
        ("redirect_uri", REDIRECT),
        ("client_id", &hand.client_id),
        ("code_verifier", VERIFIER),
        ("resource", &hand.resource),
    ];
    let place = auth.endpoint("token");
    let (_, answer) = hand.token(&form, None).await;
    assert_eq!(text(&answer, "error"), "invalid_dpop_proof");
    let (_, answer) = hand.token(&form, Some(proof(&place, "", ""))).await;
    assert_eq!(text(&answer, "error"), "use_dpop_nonce");
    let (_, answer) = hand.token(&form, Some(proof(&place, "nonce-1", ""))).await;
    assert_eq!(text(&answer, "token_type"), "DPoP", "{answer}");
    let token = text(&answer, "access_token");

    let attempt = async |scheme: &str, proof: String| {
        let headers = [
            ("authorization", format!("{scheme} {token}")),
            ("dpop", proof),
        ];
        call(&mcp, &headers).await
    };
    let refused = attempt("DPoP", proof(&mcp.url(), "", token)).await;
    assert_eq!(refused.headers()["dpop-nonce"], "nonce-2");
    let right = proof(&mcp.url(), "nonce-2", token);
    assert_eq!(attempt("DPoP", right.clone()).await.status(), 200);
    guard.assert_clean();
    auth.assert_clean();
    // Used again; as a bearer token; for another URL; for another token.
    assert_eq!(attempt("DPoP", right.clone()).await.status(), 401);
    assert_eq!(attempt("Bearer", right).await.status(), 401);
    let elsewhere = proof("https://other.example/mcp", "nonce-2", token);
    assert_eq!(attempt("DPoP", elsewhere).await.status(), 401);
    let other = proof(&mcp.url(), "nonce-2", "another");
    assert_eq!(attempt("DPoP", other).await.status(), 401);
    assert_eq!(guard.take_faults().len(), 4);
}

#[tokio::test]
async fn a_decision_is_not_always_yes() {
    let auth = FakeAuth::start().await;
    let hand = Hand::registered(&auth, "https://resource.example").await;
    auth.decide(Decision::Refuse("access_denied", "no"));
    let back = hand.authorize("a").await;
    assert_eq!(
        (back["error"].as_str(), back.get("code")),
        ("access_denied", None)
    );
    auth.decide(Decision::Issuer("https://evil.example".to_owned()));
    assert_eq!(hand.authorize("a").await["iss"], "https://evil.example");
    auth.decide(Decision::NoIssuer);
    assert_eq!(hand.authorize("a").await.get("iss"), None);
    auth.decide(Decision::GrantOnly("a"));
    let code = hand.authorize("a b").await["code"].clone();
    let (_, tokens) = hand.redeem(&code, VERIFIER).await;
    assert_eq!(tokens["scope"], "a");
    auth.assert_clean();
    // Who is not known learns of it on a page only.
    auth.forget_clients();
    let fields = [
        ("client_id", hand.client_id.as_str()),
        ("redirect_uri", REDIRECT),
    ];
    let url = Url::parse_with_params(&auth.endpoint("authorize"), fields).unwrap();
    let page = Browser::new().visit(url.as_str()).await;
    assert_eq!(page.status, 400);
}

#[tokio::test]
async fn a_watched_daemon_cannot_hide_what_it_tells() {
    let daemon = TestDaemon::builder().watched().start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(true).await;
    app.add_http("S", &fake.url()).await;
    daemon.assert_no_leaks();
    // The name of a server is told to everybody.
    let secret = planted::plant(jose::random("name"));
    app.add_http(&secret, &fake.url()).await;
    let found = daemon.leaks();
    assert!(
        found.iter().any(|leak| leak.starts_with("an answer")),
        "{found:#?}"
    );
    assert!(found.iter().any(|leak| leak.contains(".db")), "{found:#?}");
    // So is what an error says, in its message and its details.
    let secret = planted::plant(jose::random("id"));
    let known = daemon.leaks().len();
    app.get(&secret).await.unwrap_err();
    assert!(daemon.leaks().len() > known);
}
