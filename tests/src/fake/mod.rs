//! A scriptable MCP server, for faults and for looking at what the daemon sends: Streamable HTTP, the
//! HTTP+SSE of old, and lines of JSON, on the loopback interface or on a Unix socket.
//!
//! It answers every method sensibly for its era. A test replaces single answers with
//! [`FakeMcp::on`], reads what arrived with [`FakeMcp::seen`] or awaits it with [`FakeMcp::wait`].

use std::collections::{HashMap, HashSet};
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use serde_json::{Value, json};
use tokio::sync::{broadcast, mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;

use crate::json::{lenient, raw_member};
use crate::wait::within;

mod builder;
mod channel;
mod defaults;
pub mod line;
mod linger;
mod place;
pub mod proxy;
pub mod relay;
mod reply;
mod showcase;
pub mod tls;

pub use builder::Builder;
use channel::Channel;
use place::{Place, SOCKET, ServerTask};
pub use reply::{Dropped, Reply, SseWriter, Step, Write, body, stream};
use reply::{Pending, Wire, play};
pub use showcase::showcase;

/// Newest version of the modern era.
pub const MODERN: &str = "2026-07-28";
/// Newest version of the legacy era.
pub const LEGACY: &str = "2025-11-25";

type Body = UnsyncBoxBody<Bytes, Dropped>;
type Hook = Arc<dyn Fn(Seen) -> Pending<Reply> + Send + Sync>;

/// A request as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Its place in the order of arrival, from 0.
    pub index: usize,
    /// HTTP method.
    pub http: Method,
    /// Path and query.
    pub path: String,
    /// All headers.
    pub headers: HeaderMap,
    /// The body, byte for byte.
    pub body: Bytes,
    /// The body as JSON; null where it is none or cannot be decoded.
    pub json: Value,
}

impl Seen {
    /// The JSON-RPC method; empty for a response, and for GET and DELETE.
    pub fn method(&self) -> &str {
        self.json["method"].as_str().unwrap_or_default()
    }

    /// The JSON-RPC parameters.
    pub fn params(&self) -> &Value {
        &self.json["params"]
    }

    /// The tool's name in a `tools/call`.
    pub fn tool(&self) -> &str {
        self.params()["name"].as_str().unwrap_or_default()
    }

    /// The arguments of a `tools/call`, byte for byte; empty if there are none.
    pub fn arguments(&self) -> String {
        raw_member(self.text(), &["params", "arguments"]).unwrap_or_default()
    }

    /// The body as text.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("a request is UTF-8")
    }

    /// A header's value; empty if it is not there.
    pub fn header(&self, name: &str) -> &str {
        let value = self.headers.get(name);
        value.map_or("", |value| value.to_str().expect("a header is text"))
    }

    /// Whether this is a JSON-RPC response with this id.
    pub fn answers(&self, id: &Value) -> bool {
        self.json["id"] == *id && self.json.get("method").is_none() && self.json.is_object()
    }
}

/// What kind of server it is.
#[allow(clippy::struct_excessive_bools, reason = "independent switches")]
struct Traits {
    modern: bool,
    sse: bool,
    sessions: bool,
    offer_stream: bool,
    wire: Wire,
    version: &'static str,
    forgetful: bool,
    follows: bool,
    /// HTTP/2 over TLS.
    tls: bool,
    /// TLS, and clients have certificates.
    mutual_tls: bool,
}

struct Inner {
    traits: Traits,
    hooks: Mutex<HashMap<String, Hook>>,
    /// Looks at every request first.
    guard: Mutex<Option<Hook>>,
    lists: Mutex<HashMap<&'static str, Vec<Value>>>,
    more_capabilities: serde_json::Map<String, Value>,
    seen: watch::Sender<Vec<Seen>>,
    arrived: AtomicUsize,
    dropped: watch::Sender<Vec<usize>>,
    pushes: broadcast::Sender<Value>,
    listeners: watch::Sender<usize>,
    session_count: AtomicU64,
    /// Open sessions of HTTP+SSE, by their URLs.
    channels: Mutex<HashMap<String, Channel>>,
    sessions: Mutex<HashSet<String>>,
    /// Counts the times that clients were sent away; see [`FakeMcp::go_away`].
    sent_away: watch::Sender<usize>,
    /// How requests of a session that is unknown are refused.
    unknown_session: Mutex<(u16, String)>,
}

/// A scriptable MCP server over HTTP.
#[derive(Clone)]
pub struct FakeMcp {
    inner: Arc<Inner>,
    place: Arc<Place>,
    server: Arc<tokio::sync::Mutex<ServerTask>>,
}

impl FakeMcp {
    /// A server of the modern era.
    pub fn modern() -> Builder {
        Builder::new(true)
    }

    /// A server of the legacy era, with sessions.
    pub fn legacy() -> Builder {
        Builder::new(false)
    }

    /// A server of the given era that offers `echo`.
    pub async fn echo(modern: bool) -> Self {
        Builder::new(modern).tool(tool("echo")).start().await
    }

    /// Its URL.
    pub fn url(&self) -> String {
        let path = match self.inner.traits.wire {
            Wire::Sse => channel::STREAM,
            Wire::Streamable | Wire::Lines => "/mcp",
        };
        format!("{}{path}", self.origin())
    }

    /// The beginning of its URL, without a slash.
    pub fn origin(&self) -> String {
        let secure = self.inner.traits.tls || self.inner.traits.mutual_tls;
        let scheme = if secure { "https" } else { "http" };
        format!("{scheme}://{}", self.addr())
    }

    /// Its address.
    pub fn addr(&self) -> SocketAddr {
        match &*self.place {
            Place::Tcp(addr) => *addr,
            Place::Unix(_) => panic!("a fake on a socket has no address"),
        }
    }

    /// Settings that run a child which passes everything on to this fake; it speaks lines on a socket.
    pub async fn as_child(&self, name: &str) -> crate::v1::ServerSpec {
        let program = crate::daemon::programs().await.join("fake-relay");
        let socket = self.socket().to_str().expect("a path is UTF-8").to_owned();
        crate::clients::stdio_spec(name, program.to_str().expect("a path is UTF-8"), &[socket])
    }

    /// The path of its socket.
    pub fn socket(&self) -> PathBuf {
        match &*self.place {
            Place::Tcp(_) => panic!("a fake on a port has no socket"),
            Place::Unix(dir) => dir.path().join(SOCKET),
        }
    }

    /// Ends the server and everything that is open, and waits until its place is free.
    pub async fn stop(self) {
        self.server.lock().await.end().await;
    }

    /// Dies with everything that is open and every session; nobody listens until [`FakeMcp::revive`].
    pub async fn crash(&self) {
        self.server.lock().await.end().await;
        self.inner.channels.lock().unwrap().clear();
        self.end_sessions();
    }

    /// Comes back at the same place after a crash.
    pub async fn revive(&self) {
        let mut server = self.server.lock().await;
        let inner = Arc::clone(&self.inner);
        *server = match &*self.place {
            Place::Tcp(addr) => place::listen_at(*addr, inner).await.1,
            Place::Unix(dir) => place::listen_in(dir, inner),
        };
    }

    /// Sends GOAWAY on every connection of HTTP/2: what is under way may end, and nothing new begins on it.
    pub fn go_away(&self) {
        self.inner.sent_away.send_modify(|times| *times += 1);
    }

    /// Ends every open stream of HTTP+SSE.
    pub fn end_streams(&self) {
        self.inner.channels.lock().unwrap().clear();
    }

    /// Replaces the answer to a JSON-RPC method, to `GET`, `DELETE` or, with `*`, to everything.
    pub fn on<F, Fut>(&self, method: &str, hook: F)
    where
        F: Fn(Seen) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Reply> + Send + 'static,
    {
        let hook: Hook = Arc::new(move |seen| Box::pin(hook(seen)));
        let mut hooks = self.inner.hooks.lock().unwrap();
        hooks.insert(method.to_owned(), hook);
    }

    /// Like [`FakeMcp::on`] for an answer that needs no waiting.
    pub fn reply(&self, method: &str, reply: impl Fn(&Seen) -> Reply + Send + Sync + 'static) {
        self.on(method, move |seen| std::future::ready(reply(&seen)));
    }

    /// Lets somebody look at every request first; [`Reply::Default`] passes it on.
    pub(crate) fn guard_with<F, Fut>(&self, guard: F)
    where
        F: Fn(Seen) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Reply> + Send + 'static,
    {
        let hook: Hook = Arc::new(move |seen| Box::pin(guard(seen)));
        *self.inner.guard.lock().unwrap() = Some(hook);
    }

    /// Goes back to the default answer.
    pub fn reset(&self, method: &str) {
        self.inner.hooks.lock().unwrap().remove(method);
    }

    /// Replaces one of the lists.
    pub fn set_list(&self, list: &'static str, entries: Vec<Value>) {
        self.inner.lists.lock().unwrap().insert(list, entries);
    }

    /// Forgets every session.
    pub fn end_sessions(&self) {
        self.inner.sessions.lock().unwrap().clear();
    }

    /// Knows a session that a hook gave.
    pub fn allow_session(&self, id: &str) {
        self.inner.sessions.lock().unwrap().insert(id.to_owned());
    }

    /// Refuses requests of unknown sessions with this status and body; 404 and nothing unless it is changed.
    pub fn refuse_sessions_with(&self, status: u16, body: &str) {
        *self.inner.unknown_session.lock().unwrap() = (status, body.to_owned());
    }

    /// The sessions that it knows.
    pub fn sessions(&self) -> HashSet<String> {
        self.inner.sessions.lock().unwrap().clone()
    }

    /// Everything that arrived so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.inner.seen.borrow().clone()
    }

    /// The requests of one HTTP method so far.
    pub fn seen_http(&self, method: &Method) -> Vec<Seen> {
        let mut seen = self.seen();
        seen.retain(|seen| seen.http == *method);
        seen
    }

    /// The requests of one JSON-RPC method so far.
    pub fn seen_of(&self, method: &str) -> Vec<Seen> {
        let mut seen = self.seen();
        seen.retain(|seen| seen.method() == method);
        seen
    }

    /// Waits until a request arrives, or has arrived, that `wanted` accepts.
    pub async fn wait(&self, what: &str, wanted: impl Fn(&Seen) -> bool) -> Seen {
        let mut all = self.inner.seen.subscribe();
        let found = async {
            let all = all.wait_for(|all| all.iter().any(&wanted)).await.unwrap();
            all.iter().find(|seen| wanted(seen)).unwrap().clone()
        };
        within(what, found).await
    }

    /// Waits for the first request of a JSON-RPC method.
    pub async fn wait_method(&self, method: &str) -> Seen {
        self.wait(method, |seen| seen.method() == method).await
    }

    /// Waits until the client has given up a request before its answer was complete.
    pub async fn wait_dropped(&self, index: usize) {
        let mut dropped = self.inner.dropped.subscribe();
        let gone = dropped.wait_for(|dropped| dropped.contains(&index));
        within("the client to give up the request", gone)
            .await
            .unwrap();
    }

    /// Waits until the client listens for notifications, then sends one to it.
    pub async fn push(&self, message: Value) {
        let mut listeners = self.inner.listeners.subscribe();
        let open = listeners.wait_for(|open| *open > 0);
        within("the client to listen", open).await.unwrap();
        self.shout(message);
    }

    /// Sends a notification to whoever listens.
    pub fn shout(&self, message: Value) {
        let _nobody = self.inner.pushes.send(message);
    }

    /// Sends a notification without parameters; see [`FakeMcp::push`].
    pub async fn notify(&self, method: &str) {
        self.push(json!({"jsonrpc": "2.0", "method": method})).await;
    }
}

/// A tool that takes any object.
pub fn tool(name: &str) -> Value {
    json!({"name": name, "description": format!("the tool {name}"), "inputSchema": {"type": "object"}})
}

/// Notes that an answer was given up before it was complete.
struct Watch {
    inner: Arc<Inner>,
    index: usize,
    complete: bool,
}

impl Watch {
    fn end(mut self, complete: bool) {
        self.complete = complete;
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        if !self.complete && !self.inner.traits.forgetful {
            self.inner.dropped.send_modify(|all| all.push(self.index));
        }
    }
}

/// The refusal of a request whose session the server does not know.
fn refuse_session(inner: &Inner, seen: &Seen) -> Option<Hook> {
    let id = seen.header("mcp-session-id");
    if id.is_empty() || inner.sessions.lock().unwrap().contains(id) {
        return None;
    }
    let (status, body) = inner.unknown_session.lock().unwrap().clone();
    Some(Arc::new(move |_| {
        let reply = Reply::Raw(status, Vec::new(), body.clone().into());
        Box::pin(std::future::ready(reply))
    }))
}

/// The next message to push. Who lags behind misses some.
async fn next_push(pushes: &mut broadcast::Receiver<Value>) -> Value {
    loop {
        match pushes.recv().await {
            Ok(message) => return message,
            Err(broadcast::error::RecvError::Lagged(_)) => {}
            Err(broadcast::error::RecvError::Closed) => std::future::pending().await,
        }
    }
}

/// `None` drops the connection.
async fn answer(inner: &Arc<Inner>, request: Request<Incoming>) -> Option<Response<Body>> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.ok()?.to_bytes();
    let mut seen = Seen {
        index: 0,
        http: head.method,
        // Over HTTP/2 the URI is absolute.
        path: head
            .uri
            .path_and_query()
            .map_or_else(String::new, ToString::to_string),
        headers: head.headers,
        json: lenient(std::str::from_utf8(&body).unwrap_or_default()),
        body,
    };
    note(inner, &mut seen);
    let watch = Watch {
        inner: Arc::clone(inner),
        index: seen.index,
        complete: false,
    };
    let guard = inner.guard.lock().unwrap().clone();
    let verdict = match guard {
        Some(guard) => guard(seen.clone()).await,
        None => Reply::Default,
    };
    let reply = match verdict {
        Reply::Default if inner.traits.wire == Wire::Sse => channel::answer(inner, &seen).await,
        Reply::Default => decide(inner, &seen).await,
        refusal => refusal,
    };
    let id = seen.json["id"].clone();
    let respond = |watch: Watch, text: String| {
        if inner.traits.sse && !seen.method().is_empty() {
            let steps = vec![Step::Bytes(format!("data: {text}\n\n").into())];
            event_stream(&id, watch, play(steps))
        } else {
            watch.end(true);
            plain(
                200,
                &[("content-type", "application/json".to_owned())],
                text.into(),
            )
        }
    };
    let mut response = match reply {
        Reply::Default => unreachable!("the default was taken above"),
        Reply::Json(result) => respond(
            watch,
            json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string(),
        ),
        Reply::Text(result) => respond(
            watch,
            format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
        ),
        Reply::Error(code, message, data) => {
            let mut error = json!({"code": code, "message": message});
            if !data.is_null() {
                error["data"] = data;
            }
            respond(
                watch,
                json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string(),
            )
        }
        Reply::Raw(status, headers, body) => {
            watch.end(true);
            plain(status, &headers, body)
        }
        Reply::Sse(steps) => event_stream(&id, watch, play(steps)),
        Reply::Stream(write) => event_stream(&id, watch, write),
        Reply::Body(status, headers, write) => {
            let mut response = plain(status, &headers, Bytes::new());
            *response.body_mut() = written(&id, watch, write);
            response
        }
        Reply::Hang => std::future::pending().await,
        Reply::Reset => {
            watch.end(true);
            return None;
        }
    };
    if inner.traits.sessions && seen.method() == "initialize" && response.status() == StatusCode::OK
    {
        static COUNT: AtomicU64 = AtomicU64::new(1);
        let session = format!("session-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let value = session.parse().unwrap();
        response.headers_mut().insert("mcp-session-id", value);
        inner.sessions.lock().unwrap().insert(session);
    }
    Some(response)
}

/// Remembers a request.
fn note(inner: &Inner, seen: &mut Seen) {
    if inner.traits.forgetful {
        seen.index = inner.arrived.fetch_add(1, Ordering::Relaxed);
        return;
    }
    inner.seen.send_modify(|all| {
        seen.index = all.len();
        all.push(seen.clone());
    });
}

/// What the test wants to be answered, or else the default.
async fn decide(inner: &Arc<Inner>, seen: &Seen) -> Reply {
    let key = match seen.method() {
        "" => seen.http.as_str(),
        method => method,
    };
    let hook = refuse_session(inner, seen).or_else(|| {
        let hooks = inner.hooks.lock().unwrap();
        hooks.get(key).or_else(|| hooks.get("*")).cloned()
    });
    let reply = match hook {
        Some(hook) => hook(seen.clone()).await,
        None => Reply::Default,
    };
    match reply {
        Reply::Default => defaults::reply(inner, seen),
        reply => reply,
    }
}

fn plain(status: u16, headers: &[(&'static str, String)], body: Bytes) -> Response<Body> {
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(*name, value);
    }
    let body = Full::new(body).map_err(|never| match never {});
    response.body(body.boxed_unsync()).unwrap()
}

fn event_stream(id: &Value, watch: Watch, write: Write) -> Response<Body> {
    Response::builder()
        .header("content-type", "text/event-stream")
        .body(written(id, watch, write))
        .unwrap()
}

/// A body that a task writes.
fn written(id: &Value, watch: Watch, write: Write) -> Body {
    let (sender, receiver) = mpsc::channel(16);
    let reader = sender.clone();
    let mut writing = write(SseWriter {
        id: id.clone(),
        sender,
        wire: Wire::Streamable,
    });
    tokio::spawn(async move {
        tokio::select! {
            () = &mut writing => watch.end(!reader.is_closed()),
            () = reader.closed() => {
                drop(watch);
                writing.await;
            }
        }
    });
    let frames = ReceiverStream::new(receiver).map(|bytes| bytes.map(Frame::data));
    StreamBody::new(frames).boxed_unsync()
}
