//! A scriptable OAuth authorization server, what it protects, and the user's browser.
//!
//! [`FakeAuth`] verifies all that a client must do (PKCE, redirect URIs, resources, client authentication, single use of
//! codes and refresh tokens, proofs of possession) and keeps a list of what was wrong: see [`Guard::take_faults`]. A test changes
//! its [`Shape`], queues single answers with [`FakeAuth::next`], holds requests back with [`FakeAuth::hold`], and counts
//! what arrived. [`Guard`] protects a [`FakeMcp`](crate::fake::FakeMcp); [`Browser`] plays the user.

use std::collections::{HashMap, HashSet, VecDeque};
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use http::{HeaderMap, Method};
use serde_json::Value;
use tokio::sync::watch;

use crate::fake::Reply;
use crate::wait::{eventually, within};

mod authorize;
mod browser;
mod guard;
pub mod jose;
pub mod planted;
mod register;
mod shape;
mod site;
mod stage;
mod token;

pub use browser::{Browser, Page};
pub use guard::{DpopRule, Guard, Metadata, Rules};
pub use shape::{Decision, Dpop, Redirects, Shape, WellKnown};
pub use stage::{AuthStage, play, protected, protected_with, watched};

use jose::PublicKey;
use site::{Arrived, Site};
use token::Tokens;

type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Hook = Arc<dyn Fn(Asked) -> Pending<Option<Reply>> + Send + Sync>;

/// The places of an authorization server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Endpoint {
    /// Any well-known document.
    Metadata,
    /// Where users sign in.
    Authorize,
    /// Where tokens are given out.
    Token,
    /// Where clients are registered.
    Register,
    /// Where tokens are revoked.
    Revoke,
    /// Anywhere else.
    Elsewhere,
}

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Asked {
    /// Where.
    pub endpoint: Endpoint,
    /// HTTP method.
    pub http: Method,
    /// Path and query.
    pub path: String,
    /// All headers.
    pub headers: HeaderMap,
    /// The parameters of the query, or else of the form in the body, in order.
    pub params: Vec<(String, String)>,
    /// The body as JSON; null where it is none.
    pub json: Value,
    /// The body, byte for byte.
    pub body: bytes::Bytes,
}

impl Asked {
    /// A parameter; empty if it is not there.
    pub fn param(&self, name: &str) -> &str {
        self.params
            .iter()
            .find(|(known, _)| known == name)
            .map_or("", |(_, value)| value)
    }

    /// Whether there is such a parameter.
    pub fn has(&self, name: &str) -> bool {
        self.params.iter().any(|(known, _)| known == name)
    }

    /// A header's value; empty if it is not there.
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().expect("a header is text"))
    }

    /// The scopes that are asked for, in order.
    pub fn scopes(&self) -> Vec<&str> {
        self.param("scope").split_ascii_whitespace().collect()
    }
}

/// A client that is known.
#[derive(Clone, Debug)]
pub struct KnownClient {
    /// Its identifier.
    pub id: String,
    /// How it proves who it is.
    pub auth: &'static str,
    /// Its secret.
    pub secret: Option<String>,
    /// Its key.
    pub key: Option<PublicKey>,
    /// Where its users may come back to.
    pub redirect_uris: Vec<String>,
    /// What it may ask for; `None`: anything.
    pub scope: Option<String>,
}

/// Requests that wait until a test lets them go on.
pub struct Gate {
    open: watch::Sender<bool>,
    auth: FakeAuth,
    endpoint: Endpoint,
    before: usize,
}

impl Gate {
    /// Waits until so many requests have come to it.
    pub async fn arrived(&self, count: usize) {
        self.auth
            .wait_count(self.endpoint, self.before + count)
            .await;
    }

    /// Lets all requests go on, also those that come later.
    pub fn open(self) {
        self.open.send_replace(true);
    }
}

struct Inner {
    base: String,
    path: &'static str,
    shape: Mutex<Shape>,
    clients: Mutex<HashMap<String, KnownClient>>,
    tokens: Mutex<Tokens>,
    decisions: Mutex<VecDeque<Decision>>,
    asked: watch::Sender<Vec<Asked>>,
    replies: Mutex<HashMap<Endpoint, VecDeque<Reply>>>,
    hooks: Mutex<HashMap<Endpoint, Hook>>,
    gates: Mutex<HashMap<Endpoint, watch::Receiver<bool>>>,
    delays: Mutex<HashMap<Endpoint, Duration>>,
    /// The next answers that are lost.
    losses: Mutex<HashMap<Endpoint, usize>>,
    faults: Mutex<Vec<String>>,
    proofs: Mutex<HashSet<String>>,
    trusted: Mutex<Vec<PublicKey>>,
    signer: Mutex<Option<jose::KeyPair>>,
}

/// A scriptable OAuth authorization server.
#[derive(Clone)]
pub struct FakeAuth {
    inner: Arc<Inner>,
    addr: SocketAddr,
    _site: Arc<Site>,
}

impl FakeAuth {
    /// Starts one on a free port of the loopback interface. Its issuer has no path.
    pub async fn start() -> Self {
        Self::at("").await
    }

    /// Starts one whose issuer has this path, for example `/tenant`, or `/` for a slash at the end.
    pub async fn at(path: &'static str) -> Self {
        Self::open("127.0.0.1", path, None).await
    }

    /// Starts one that wants certificates of its clients (mutual TLS).
    pub async fn mutual_tls() -> Self {
        Self::open("localhost", "", Some(crate::fake::tls::mutual())).await
    }

    async fn open(host: &str, path: &'static str, tls: Option<tokio_rustls::TlsAcceptor>) -> Self {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let addr = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut made = None;
        let site = Site::open(addr, tls, |addr| {
            let inner = Arc::new(Inner {
                base: format!("{scheme}://{host}:{}", addr.port()),
                path,
                shape: Mutex::default(),
                clients: Mutex::default(),
                tokens: Mutex::default(),
                decisions: Mutex::default(),
                asked: watch::Sender::default(),
                replies: Mutex::default(),
                hooks: Mutex::default(),
                gates: Mutex::default(),
                delays: Mutex::default(),
                losses: Mutex::default(),
                faults: Mutex::default(),
                proofs: Mutex::default(),
                trusted: Mutex::default(),
                signer: Mutex::default(),
            });
            made = Some(Arc::clone(&inner));
            move |arrived| {
                let inner = Arc::clone(&inner);
                async move { answer(&inner, arrived).await }
            }
        });
        let site = site.await;
        Self {
            inner: made.expect("the site has a handler"),
            addr: site.addr,
            _site: Arc::new(site),
        }
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its origin, without a slash.
    pub fn origin(&self) -> &str {
        &self.inner.base
    }

    /// Its issuer identifier.
    pub fn issuer(&self) -> String {
        self.inner.issuer()
    }

    /// The URL of an endpoint.
    pub fn endpoint(&self, name: &str) -> String {
        format!("{}/{name}", self.issuer().trim_end_matches('/'))
    }

    /// Changes what kind of server it is.
    pub fn shape(&self, change: impl FnOnce(&mut Shape)) {
        change(&mut self.inner.shape.lock().unwrap());
    }

    /// Changes a member of the metadata; null removes it.
    pub fn metadata(&self, member: &str, value: Value) {
        self.shape(|shape| {
            shape.metadata.insert(member.to_owned(), value);
        });
    }

    /// What the next users decide; by default they grant what is asked for.
    pub fn decide(&self, decision: Decision) {
        self.inner.decisions.lock().unwrap().push_back(decision);
    }

    /// Answers the next request to an endpoint with this, and the ones behind it with what is queued later. Nothing is
    /// looked at, nothing changes.
    pub fn next(&self, endpoint: Endpoint, reply: Reply) {
        let mut replies = self.inner.replies.lock().unwrap();
        replies.entry(endpoint).or_default().push_back(reply);
    }

    /// Replaces the answers of an endpoint; `None`: the default.
    pub fn on<F, Fut>(&self, endpoint: Endpoint, hook: F)
    where
        F: Fn(Asked) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<Reply>> + Send + 'static,
    {
        let hook: Hook = Arc::new(move |asked| Box::pin(hook(asked)));
        self.inner.hooks.lock().unwrap().insert(endpoint, hook);
    }

    /// Like [`FakeAuth::on`] for an answer that needs no waiting.
    pub fn reply(
        &self,
        endpoint: Endpoint,
        reply: impl Fn(&Asked) -> Option<Reply> + Send + Sync + 'static,
    ) {
        self.on(endpoint, move |asked| std::future::ready(reply(&asked)));
    }

    /// Goes back to the default answers.
    pub fn reset(&self, endpoint: Endpoint) {
        self.inner.hooks.lock().unwrap().remove(&endpoint);
        self.inner.replies.lock().unwrap().remove(&endpoint);
        self.inner.delays.lock().unwrap().remove(&endpoint);
    }

    /// Holds back whatever arrives at an endpoint until the gate is opened.
    pub fn hold(&self, endpoint: Endpoint) -> Gate {
        let (open, gate) = watch::channel(false);
        self.inner.gates.lock().unwrap().insert(endpoint, gate);
        Gate {
            open,
            auth: self.clone(),
            endpoint,
            before: self.count(endpoint),
        }
    }

    /// Lets an endpoint take this long for every answer.
    pub fn delay(&self, endpoint: Endpoint, delay: Duration) {
        self.inner.delays.lock().unwrap().insert(endpoint, delay);
    }

    /// Does what the next request to an endpoint wants, and drops the connection in place of an answer.
    pub fn lose_next_answer(&self, endpoint: Endpoint) {
        *self
            .inner
            .losses
            .lock()
            .unwrap()
            .entry(endpoint)
            .or_default() += 1;
    }

    /// Everything that arrived at an endpoint.
    pub fn asked(&self, endpoint: Endpoint) -> Vec<Asked> {
        let mut asked = self.all_asked();
        asked.retain(|asked| asked.endpoint == endpoint);
        asked
    }

    /// Everything that arrived.
    pub fn all_asked(&self) -> Vec<Asked> {
        self.inner.asked.borrow().clone()
    }

    /// The last that arrived at an endpoint.
    pub fn last(&self, endpoint: Endpoint) -> Asked {
        let last = self.asked(endpoint).pop();
        last.unwrap_or_else(|| panic!("nothing arrived at {endpoint:?}"))
    }

    /// How much arrived at an endpoint.
    pub fn count(&self, endpoint: Endpoint) -> usize {
        self.asked(endpoint).len()
    }

    /// How many token requests of this grant type arrived.
    pub fn grants(&self, grant_type: &str) -> usize {
        let asked = self.asked(Endpoint::Token).into_iter();
        asked
            .filter(|asked| asked.param("grant_type") == grant_type)
            .count()
    }

    /// Waits until so much has arrived at an endpoint.
    pub async fn wait_count(&self, endpoint: Endpoint, count: usize) {
        let mut asked = self.inner.asked.subscribe();
        let enough = asked.wait_for(|asked| {
            asked
                .iter()
                .filter(|asked| asked.endpoint == endpoint)
                .count()
                >= count
        });
        let what = format!("{count} requests at {endpoint:?}");
        within(&what, enough).await.expect("the fake lives");
    }

    /// Knows a client that was agreed beforehand.
    pub fn add_client(&self, client: KnownClient) {
        if let Some(secret) = &client.secret {
            planted::plant_if_long(secret);
        }
        let mut clients = self.inner.clients.lock().unwrap();
        clients.insert(client.id.clone(), client);
    }

    /// The clients that it knows.
    pub fn clients(&self) -> Vec<KnownClient> {
        let clients = self.inner.clients.lock().unwrap();
        clients.values().cloned().collect()
    }

    /// Forgets all clients, and nothing else.
    pub fn forget_clients(&self) {
        self.inner.clients.lock().unwrap().clear();
    }

    /// Takes assertions that are signed with this key.
    pub fn trust(&self, key: &PublicKey) {
        self.inner.trusted.lock().unwrap().push(key.clone());
    }

    /// Vouches for users with this key: an ID token of it is exchanged for an assertion to others.
    pub fn vouch_with(&self, key: jose::KeyPair) {
        self.trust(&key.public);
        *self.inner.signer.lock().unwrap() = Some(key);
    }

    /// Ends the life of all access tokens.
    pub fn expire_tokens(&self) {
        self.tokens().expire();
    }

    /// Ends all grants: neither access tokens nor refresh tokens are worth anything.
    pub fn revoke_everything(&self) {
        self.tokens().revoke();
    }

    fn tokens(&self) -> MutexGuard<'_, Tokens> {
        self.inner.tokens.lock().unwrap()
    }

    /// The access tokens that are alive.
    pub fn live_tokens(&self) -> Vec<String> {
        self.tokens().live()
    }

    /// What was wrong with requests, and forgets it.
    pub fn take_faults(&self) -> Vec<String> {
        std::mem::take(&mut self.inner.faults.lock().unwrap())
    }

    /// Waits until something was wrong with a request, for example because a test provoked it.
    pub async fn wait_fault(&self, text: &str) {
        eventually(
            &format!("a fault with `{text}`"),
            crate::wait::PATIENCE,
            async || {
                let faults = self.inner.faults.lock().unwrap();
                faults
                    .iter()
                    .any(|fault| fault.contains(text))
                    .then_some(())
            },
        )
        .await;
    }

    /// Nothing was wrong with any request.
    #[track_caller]
    pub fn assert_clean(&self) {
        let faults = self.take_faults();
        assert!(faults.is_empty(), "{faults:#?}");
    }
}

impl Inner {
    fn issuer(&self) -> String {
        format!("{}{}", self.base, self.path)
    }

    fn shape(&self) -> Shape {
        self.shape.lock().unwrap().clone()
    }

    fn fault(&self, what: impl Into<String>) {
        self.faults.lock().unwrap().push(what.into());
    }

    fn endpoint_of(&self, path: &str) -> Endpoint {
        let path = path.split('?').next().unwrap_or_default();
        if path.contains("/.well-known/") {
            return Endpoint::Metadata;
        }
        match path.strip_prefix(self.path.trim_end_matches('/')) {
            Some("/authorize") => Endpoint::Authorize,
            Some("/token") => Endpoint::Token,
            Some("/register") => Endpoint::Register,
            Some("/revoke") => Endpoint::Revoke,
            _ => Endpoint::Elsewhere,
        }
    }

    /// The metadata, if they are there.
    fn metadata(&self, path: &str) -> Reply {
        let shape = self.shape();
        let tenant = self.path.trim_end_matches('/');
        let here = shape.well_known.iter().any(|form| {
            path == match form {
                WellKnown::OAuth => format!("/.well-known/oauth-authorization-server{tenant}"),
                WellKnown::OpenIdBefore => format!("/.well-known/openid-configuration{tenant}"),
                WellKnown::OpenIdBehind => format!("{tenant}/.well-known/openid-configuration"),
            }
        });
        if here {
            Reply::Json(shape.document(&self.issuer()))
        } else {
            plain(404, "no metadata here")
        }
    }
}

/// An answer in plain text.
fn plain(status: u16, text: &str) -> Reply {
    let kind = ("content-type", "text/plain".to_owned());
    Reply::Raw(status, vec![kind], text.to_owned().into())
}

/// A page.
pub fn html(status: u16, text: &str) -> Reply {
    let kind = ("content-type", "text/html; charset=utf-8".to_owned());
    Reply::Raw(status, vec![kind], text.to_owned().into())
}

/// An OAuth error (RFC 6749 section 5.2).
pub fn oauth_error(status: u16, code: &str, description: &str) -> Reply {
    let kind = ("content-type", "application/json".to_owned());
    let body = serde_json::json!({"error": code, "error_description": description});
    Reply::Raw(status, vec![kind], body.to_string().into())
}

async fn answer(inner: &Arc<Inner>, arrived: Arrived) -> Reply {
    let endpoint = inner.endpoint_of(&arrived.path);
    let body = std::str::from_utf8(&arrived.body).unwrap_or_default();
    let pairs = match arrived.path.split_once('?') {
        Some((_, query)) => query,
        None => body,
    };
    let asked = Asked {
        endpoint,
        params: url::form_urlencoded::parse(pairs.as_bytes())
            .into_owned()
            .collect(),
        json: serde_json::from_str(body).unwrap_or_default(),
        http: arrived.http,
        path: arrived.path,
        headers: arrived.headers,
        body: arrived.body.clone(),
    };
    inner.asked.send_modify(|all| all.push(asked.clone()));
    let gate = inner.gates.lock().unwrap().get(&endpoint).cloned();
    if let Some(mut gate) = gate {
        // A gate that is dropped is open.
        let _open = gate.wait_for(|open| *open).await;
    }
    let delay = inner.delays.lock().unwrap().get(&endpoint).copied();
    if let Some(delay) = delay {
        tokio::time::sleep(delay).await;
    }
    let queued = {
        let mut replies = inner.replies.lock().unwrap();
        replies.get_mut(&endpoint).and_then(VecDeque::pop_front)
    };
    if let Some(reply) = queued {
        return reply;
    }
    let hook = inner.hooks.lock().unwrap().get(&endpoint).cloned();
    if let Some(hook) = hook
        && let Some(reply) = hook(asked.clone()).await
    {
        return reply;
    }
    let reply = match endpoint {
        Endpoint::Metadata => inner.metadata(&asked.path),
        Endpoint::Authorize => authorize::answer(inner, &asked),
        Endpoint::Token => token::answer(inner, &asked),
        Endpoint::Register => register::answer(inner, &asked),
        Endpoint::Revoke => token::revoke(inner, &asked),
        Endpoint::Elsewhere => plain(404, "nothing is here"),
    };
    let mut losses = inner.losses.lock().unwrap();
    match losses.get_mut(&endpoint) {
        Some(count) if *count > 0 => {
            *count -= 1;
            Reply::Reset
        }
        _ => reply,
    }
}
