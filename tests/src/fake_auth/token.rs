//! Where tokens are given out and revoked.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::Method;
use serde_json::{Value, json};

use super::jose::{self, Jwt};
use super::{Asked, Dpop, Inner, KnownClient, Shape, oauth_error, plain, planted};
use crate::fake::Reply;

/// An authorization code.
#[derive(Clone, Debug)]
pub(super) struct Code {
    pub(super) client: String,
    pub(super) redirect_uri: String,
    pub(super) challenge: String,
    pub(super) resource: String,
    pub(super) scopes: Vec<String>,
    /// The family that it was redeemed for.
    pub(super) used: Option<u64>,
}

/// A token.
#[derive(Clone, Debug)]
pub struct Token {
    /// The client that it was given to.
    pub client: String,
    /// What it is for.
    pub resource: String,
    /// What it permits.
    pub scopes: Vec<String>,
    /// The thumbprint of the key that it is bound to; empty if it is not.
    pub thumbprint: String,
    family: u64,
    /// Whether a refresh token was used.
    spent: bool,
    dead: bool,
    expires: Option<Instant>,
}

/// All codes and tokens.
#[derive(Default)]
pub(super) struct Tokens {
    pub(super) codes: HashMap<String, Code>,
    access: HashMap<String, Token>,
    refresh: HashMap<String, Token>,
    families: u64,
}

impl Tokens {
    pub(super) fn expire(&mut self) {
        for token in self.access.values_mut() {
            token.dead = true;
        }
    }

    pub(super) fn revoke(&mut self) {
        self.expire();
        for token in self.refresh.values_mut() {
            token.dead = true;
        }
    }

    pub(super) fn live(&self) -> Vec<String> {
        let live = self.access.iter().filter(|(_, token)| token.lives());
        live.map(|(text, _)| text.clone()).collect()
    }

    fn end_family(&mut self, family: u64) {
        let all = self.access.values_mut().chain(self.refresh.values_mut());
        for token in all.filter(|token| token.family == family) {
            token.dead = true;
        }
    }
}

impl Token {
    fn lives(&self) -> bool {
        !self.dead && self.expires.is_none_or(|end| end > Instant::now())
    }
}

impl super::FakeAuth {
    /// What an access token permits, if it is alive; else what is wrong with it.
    pub fn check(&self, token: &str) -> Result<Token, &'static str> {
        match self.tokens().access.get(token) {
            Some(token) if token.lives() => Ok(token.clone()),
            Some(_) => Err("it is no longer valid"),
            None => Err("it is not from here"),
        }
    }

    /// A token that somebody got in another way.
    pub fn mint(&self, resource: &str, scopes: &str) -> String {
        let text = planted::plant(jose::random("minted"));
        let token = Token {
            client: String::new(),
            resource: resource.to_owned(),
            scopes: scopes.split_ascii_whitespace().map(str::to_owned).collect(),
            thumbprint: String::new(),
            family: 0,
            spent: false,
            dead: false,
            expires: None,
        };
        self.tokens().access.insert(text.clone(), token);
        text
    }

    /// Whether it ever gave out this access token.
    pub fn issued(&self, token: &str) -> bool {
        self.tokens().access.contains_key(token)
    }
}

/// What is refused: status, error code, description.
type Refusal = (u16, &'static str, String);

fn bad(code: &'static str, description: impl Into<String>) -> Refusal {
    (400, code, description.into())
}

pub(super) fn answer(inner: &Arc<Inner>, asked: &Asked) -> Reply {
    let shape = inner.shape();
    for name in [
        "code_verifier",
        "code",
        "refresh_token",
        "assertion",
        "subject_token",
    ] {
        planted::plant_if_long(asked.param(name));
    }
    planted::plant_if_long(asked.param("client_assertion"));
    let reply = match give(inner, &shape, asked) {
        Ok(answer) => {
            let headers = vec![
                ("content-type", "application/json".to_owned()),
                ("cache-control", "no-store".to_owned()),
            ];
            Reply::Raw(200, headers, answer.to_string().into())
        }
        Err((status, code, description)) => oauth_error(status, code, &description),
    };
    match (reply, shape.dpop_nonce) {
        (Reply::Raw(status, mut headers, body), Some(nonce)) => {
            headers.push(("dpop-nonce", nonce));
            Reply::Raw(status, headers, body)
        }
        (reply, _) => reply,
    }
}

fn give(inner: &Inner, shape: &Shape, asked: &Asked) -> Result<Value, Refusal> {
    form(asked).map_err(|fault| {
        inner.fault(format!("token request: {fault}"));
        bad("invalid_request", fault)
    })?;
    let client = authenticate(inner, shape, asked)?;
    let thumbprint = possession(inner, shape, asked)?;
    let new = Token {
        client: client.id.clone(),
        resource: asked.param("resource").to_owned(),
        scopes: asked.scopes().into_iter().map(str::to_owned).collect(),
        thumbprint,
        family: 0,
        spent: false,
        dead: false,
        expires: None,
    };
    match asked.param("grant_type") {
        "authorization_code" => redeem(inner, shape, asked, new),
        "refresh_token" => renew(inner, shape, asked, new),
        "client_credentials" => {
            if client.auth == "none" {
                return Err(bad("unauthorized_client", "a public client"));
            }
            right_resource(inner, shape, &new.resource)?;
            Ok(tokens(inner, shape, new, false))
        }
        "urn:ietf:params:oauth:grant-type:jwt-bearer" => {
            right_resource(inner, shape, &new.resource)?;
            assertion(inner, asked.param("assertion"))
                .map_err(|fault| bad("invalid_grant", fault))?;
            Ok(tokens(inner, shape, new, false))
        }
        "urn:ietf:params:oauth:grant-type:token-exchange" => exchange(inner, asked),
        other => {
            inner.fault(format!("token request: grant type `{other}`"));
            Err(bad("unsupported_grant_type", "no such grant"))
        }
    }
}

fn form(asked: &Asked) -> Result<(), String> {
    if asked.http != Method::POST {
        return Err(format!("the method is {}", asked.http));
    }
    if asked.path.contains('?') {
        return Err("there are parameters in the URL".to_owned());
    }
    let kind = asked.header("content-type");
    if kind != "application/x-www-form-urlencoded" {
        return Err(format!("the body is `{kind}`"));
    }
    for (at, (name, _)) in asked.params.iter().enumerate() {
        if asked.params[..at].iter().any(|(known, _)| known == name) {
            return Err(format!("`{name}` is there twice"));
        }
    }
    Ok(())
}

/// Who asks, as far as it is proven.
fn authenticate(inner: &Inner, shape: &Shape, asked: &Asked) -> Result<KnownClient, Refusal> {
    let refusal = |what: &str| (401, "invalid_client", what.to_owned());
    let decode = |text: &str| {
        let pair = format!("x={text}");
        let (_, value) = url::form_urlencoded::parse(pair.as_bytes()).next().unwrap();
        value.into_owned()
    };
    let basic = asked.header("authorization").strip_prefix("Basic ");
    let basic = basic.map(|text| {
        planted::plant_if_long(text);
        let pair = STANDARD.decode(text).unwrap_or_default();
        let pair = String::from_utf8_lossy(&pair).into_owned();
        let (id, secret) = pair.split_once(':').unwrap_or_default();
        (decode(id), decode(secret))
    });
    let (method, id, secret) = match basic {
        Some((id, secret)) => ("client_secret_basic", id, secret),
        None if asked.has("client_assertion") => {
            let claims = Jwt::parse(asked.param("client_assertion"));
            let claims = claims.map_err(|fault| refusal(&fault))?;
            let id = claims.claim("sub").to_owned();
            ("private_key_jwt", id, String::new())
        }
        None => {
            let method = if asked.has("client_secret") {
                "client_secret_post"
            } else {
                "none"
            };
            let id = asked.param("client_id").to_owned();
            (method, id, asked.param("client_secret").to_owned())
        }
    };
    if method != "client_secret_post" && asked.has("client_secret") {
        inner.fault("token request: two ways of client authentication at once");
    }
    let assertion_grant = asked.param("grant_type").ends_with("jwt-bearer");
    if id.is_empty() && assertion_grant {
        return Ok(anonymous());
    }
    let known = inner.clients.lock().unwrap().get(&id).cloned();
    let client = match known {
        Some(client) => client,
        None if shape.reads_client_documents && id.starts_with("https://") => {
            KnownClient { id, ..anonymous() }
        }
        None => return Err(refusal("this client is not known")),
    };
    if method != client.auth {
        inner.fault(format!(
            "token request: `{method}` where `{}` was agreed",
            client.auth
        ));
        return Err(refusal("not as it was agreed"));
    }
    if method == "private_key_jwt" {
        client_assertion(inner, &client, asked).map_err(|fault| {
            inner.fault(format!("client assertion: {fault}"));
            refusal(&fault)
        })?;
    } else if client.secret.as_ref().is_some_and(|right| *right != secret) {
        return Err(refusal("the secret is wrong"));
    }
    Ok(client)
}

fn anonymous() -> KnownClient {
    KnownClient {
        id: String::new(),
        auth: "none",
        secret: None,
        key: None,
        redirect_uris: Vec::new(),
        scope: None,
    }
}

/// An assertion of a client about itself (RFC 7523 section 3).
fn client_assertion(inner: &Inner, client: &KnownClient, asked: &Asked) -> Result<(), String> {
    let kind = asked.param("client_assertion_type");
    if kind != "urn:ietf:params:oauth:client-assertion-type:jwt-bearer" {
        return Err(format!("its type is `{kind}`"));
    }
    let jwt = Jwt::parse(asked.param("client_assertion"))?;
    jwt.verify(client.key.as_ref().ok_or("there is no key")?)?;
    jwt.timely()?;
    for (name, wanted) in [
        ("iss", &client.id),
        ("sub", &client.id),
        ("aud", &inner.issuer()),
    ] {
        if jwt.claim(name) != wanted {
            return Err(format!("`{name}` is {}, not {wanted}", jwt.claims[name]));
        }
    }
    once(inner, jwt.claim("jti"))
}

/// Every identifier of a proof or an assertion is used once.
fn once(inner: &Inner, jti: &str) -> Result<(), String> {
    if jti.is_empty() {
        return Err("there is no `jti`".to_owned());
    }
    let new = inner.proofs.lock().unwrap().insert(jti.to_owned());
    if new {
        Ok(())
    } else {
        Err(format!("`jti` {jti} was used before"))
    }
}

/// The thumbprint of the key that the client has, or nothing.
fn possession(inner: &Inner, shape: &Shape, asked: &Asked) -> Result<String, Refusal> {
    let text = asked.header("dpop");
    if shape.dpop == Dpop::Unknown {
        return Ok(String::new());
    }
    if text.is_empty() {
        return match shape.dpop {
            Dpop::Required => Err(bad("invalid_dpop_proof", "a proof is required")),
            _ => Ok(String::new()),
        };
    }
    let url = format!("{}{}", inner.base, asked.path);
    let proof = jose::proof(text, "POST", &url).and_then(|proof| {
        once(inner, &proof.jti)?;
        Ok(proof)
    });
    let proof = proof.map_err(|fault| {
        inner.fault(format!("proof at the token endpoint: {fault}"));
        bad("invalid_dpop_proof", fault)
    })?;
    match &shape.dpop_nonce {
        Some(nonce) if *nonce != proof.nonce => Err(bad("use_dpop_nonce", "with this nonce")),
        _ => Ok(proof.thumbprint),
    }
}

fn right_resource(inner: &Inner, shape: &Shape, resource: &str) -> Result<(), Refusal> {
    if shape.resources.is_empty() || shape.resources.iter().any(|known| known == resource) {
        return Ok(());
    }
    inner.fault(format!("token request: `resource` is `{resource}`"));
    Err(bad("invalid_target", "no such resource"))
}

fn redeem(inner: &Inner, shape: &Shape, asked: &Asked, new: Token) -> Result<Value, Refusal> {
    let text = asked.param("code");
    let mut store = inner.tokens.lock().unwrap();
    let Some(code) = store.codes.get(text).cloned() else {
        inner.fault("token request: a code that is not from here");
        return Err(bad("invalid_grant", "no such code"));
    };
    if let Some(family) = code.used {
        store.end_family(family);
        inner.fault("token request: a code for the second time");
        return Err(bad("invalid_grant", "the code was used"));
    }
    let wrong = if code.client != new.client {
        Some("the code of another client")
    } else if code.redirect_uri != asked.param("redirect_uri") {
        Some("another redirect URI")
    } else if jose::sha256(asked.param("code_verifier")) != code.challenge {
        Some("the verifier does not fit")
    } else if asked.param("code_verifier").len() < 43 {
        Some("the verifier is too short")
    } else if code.resource != new.resource {
        Some("another resource")
    } else {
        None
    };
    if let Some(wrong) = wrong {
        store.codes.remove(text);
        inner.fault(format!("token request: {wrong}"));
        return Err(bad("invalid_grant", wrong));
    }
    store.families += 1;
    let family = store.families;
    store.codes.get_mut(text).expect("it was there").used = Some(family);
    drop(store);
    let new = Token {
        scopes: code.scopes,
        family,
        ..new
    };
    Ok(tokens(inner, shape, new, shape.refreshes))
}

fn renew(inner: &Inner, shape: &Shape, asked: &Asked, new: Token) -> Result<Value, Refusal> {
    let text = asked.param("refresh_token");
    let mut store = inner.tokens.lock().unwrap();
    let Some(old) = store.refresh.get(text).cloned() else {
        inner.fault("token request: a refresh token that is not from here");
        return Err(bad("invalid_grant", "no such token"));
    };
    if old.dead {
        return Err(bad("invalid_grant", "the token was revoked"));
    }
    if old.spent && shape.rotates {
        store.end_family(old.family);
        inner.fault("token request: a refresh token for the second time");
        return Err(bad("invalid_grant", "the token was used"));
    }
    let wrong = if old.client != new.client {
        Some("the refresh token of another client")
    } else if old.resource != new.resource {
        Some("refreshed for another resource")
    } else if !new.scopes.iter().all(|scope| old.scopes.contains(scope)) {
        Some("refreshed with more scopes than were granted")
    } else if old.thumbprint != new.thumbprint {
        Some("refreshed with another key")
    } else {
        None
    };
    if let Some(wrong) = wrong {
        inner.fault(format!("token request: {wrong}"));
        return Err(bad("invalid_grant", wrong));
    }
    if shape.rotates {
        store.refresh.get_mut(text).expect("it was there").spent = true;
    }
    drop(store);
    let scopes = if new.scopes.is_empty() {
        old.scopes
    } else {
        new.scopes.clone()
    };
    let new = Token {
        scopes,
        family: old.family,
        ..new
    };
    Ok(tokens(inner, shape, new, shape.rotates))
}

/// Whether somebody who is trusted signed it for this server.
fn assertion(inner: &Inner, text: &str) -> Result<(), String> {
    let jwt = Jwt::parse(text)?;
    let trusted = inner.trusted.lock().unwrap();
    if !trusted.iter().any(|key| jwt.verify(key).is_ok()) {
        return Err("nobody who is trusted signed it".to_owned());
    }
    jwt.timely()?;
    if jwt.claim("aud") != inner.issuer() {
        return Err(format!("it is for {}", jwt.claims["aud"]));
    }
    Ok(())
}

/// An identity assertion (ID-JAG) for an ID token (RFC 8693). The fake is its own client of trust: whoever takes what it
/// signs has to [`trust`](super::FakeAuth::trust) its key.
fn exchange(inner: &Inner, asked: &Asked) -> Result<Value, Refusal> {
    let wanted = [
        (
            "requested_token_type",
            "urn:ietf:params:oauth:token-type:id-jag",
        ),
        (
            "subject_token_type",
            "urn:ietf:params:oauth:token-type:id_token",
        ),
    ];
    for (name, value) in wanted {
        if asked.param(name) != value {
            inner.fault(format!(
                "token exchange: `{name}` is `{}`",
                asked.param(name)
            ));
            return Err(bad("invalid_request", format!("`{name}`")));
        }
    }
    for name in ["audience", "resource", "subject_token"] {
        if !asked.has(name) {
            inner.fault(format!("token exchange: no `{name}`"));
            return Err(bad("invalid_request", format!("no `{name}`")));
        }
    }
    // The ID token is one that this provider signed for itself.
    assertion(inner, asked.param("subject_token")).map_err(|fault| bad("invalid_grant", fault))?;
    let subject =
        Jwt::parse(asked.param("subject_token")).map_err(|fault| bad("invalid_grant", fault))?;
    let now = jose::unix_now();
    let claims = json!({
        "iss": inner.issuer(), "aud": asked.param("audience"), "sub": subject.claim("sub"),
        "client_id": asked.param("client_id"), "resource": asked.param("resource"),
        "scope": asked.param("scope"), "jti": jose::random("jag"), "iat": now, "exp": now + 300,
    });
    let signer = inner.signer.lock().unwrap();
    let Some(signer) = signer.as_ref() else {
        return Err(bad("invalid_request", "it vouches for nobody"));
    };
    let jag = planted::plant(signer.sign("oauth-id-jag+jwt", &claims));
    Ok(json!({
        "access_token": jag, "token_type": "N_A", "expires_in": 300,
        "issued_token_type": "urn:ietf:params:oauth:token-type:id-jag",
    }))
}

/// New tokens, and the answer that gives them out.
fn tokens(inner: &Inner, shape: &Shape, new: Token, refreshable: bool) -> Value {
    let access = planted::plant(jose::random("access"));
    let mut answer = json!({
        "access_token": access,
        "token_type": if new.thumbprint.is_empty() { "Bearer" } else { "DPoP" },
    });
    if let Some(seconds) = shape.expires_in {
        answer["expires_in"] = json!(seconds);
    }
    if shape.says_scope && !new.scopes.is_empty() {
        answer["scope"] = json!(new.scopes.join(" "));
    }
    if let Some(subject) = shape.subject {
        let header = jose::b64(json!({"alg": "none"}).to_string());
        let now = jose::unix_now();
        let claims = json!({
            "iss": inner.issuer(), "sub": subject, "aud": new.client, "iat": now, "exp": now + 300,
        });
        let token = format!("{header}.{}.", jose::b64(claims.to_string()));
        answer["id_token"] = json!(planted::plant(token));
    }
    let mut store = inner.tokens.lock().unwrap();
    if refreshable {
        let refresh = planted::plant(jose::random("refresh"));
        answer["refresh_token"] = json!(refresh);
        store.refresh.insert(refresh, new.clone());
    }
    let expires = shape
        .expires_in
        .map(|seconds| Instant::now() + Duration::from_secs(seconds));
    store.access.insert(access, Token { expires, ..new });
    answer
}

/// Revocation (RFC 7009).
pub(super) fn revoke(inner: &Arc<Inner>, asked: &Asked) -> Reply {
    let shape = inner.shape();
    if let Err(fault) = form(asked) {
        inner.fault(format!("revocation: {fault}"));
        return oauth_error(400, "invalid_request", &fault);
    }
    if !shape.revokes {
        return plain(404, "no revocation here");
    }
    let client = match authenticate(inner, &shape, asked) {
        Ok(client) => client,
        Err((status, code, description)) => return oauth_error(status, code, &description),
    };
    let text = asked.param("token");
    let mut store = inner.tokens.lock().unwrap();
    let known = store.refresh.get(text).or_else(|| store.access.get(text));
    if let Some(token) = known.cloned() {
        if token.client != client.id {
            inner.fault("revocation: the token of another client");
        }
        if token.family == 0 {
            if let Some(token) = store.access.get_mut(text) {
                token.dead = true;
            }
        } else {
            store.end_family(token.family);
        }
    }
    plain(200, "")
}
