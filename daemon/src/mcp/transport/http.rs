//! Streamable HTTP, client side: POST with JSON or SSE answers, GET streams, sessions, resumption
//! (MCP 2025-11-25 basic/transports; MCP 2026-07-28 basic/transports/streamable-http).
//!
//! Custom headers are sent to the registered URL's origin only; `policy` refuses every other destination.

mod authorized;
mod exchange;
mod refusal;

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_core::Stream;
use futures_util::StreamExt;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue,
};
use reqwest::{Client, RequestBuilder, Response, StatusCode};
use url::Url;

pub use exchange::{EventStream, HttpExchange, StreamEnd};

use exchange::Pace;
use refusal::{excerpt, is_broken, refusal_error, root_cause};

use crate::auth::Account;
use crate::base::Secret;
use crate::error::{Error, Reason};
use crate::mcp::era::Frame;
use crate::mcp::headers::SESSION;
use crate::mcp::protocol::{self, Message};
use crate::mcp::transport::sse;
use crate::mcp::transport::{Loss, Refusal, Sent};
use crate::model::spec::{HttpSpec, NamedSecret, UnixSocketSpec};
use crate::model::status::TransportKind;
use crate::policy::{Policy, blocked_cause, printable};

/// How long an error body may take.
const ERROR_PATIENCE: Duration = Duration::from_secs(2);
/// Bytes of an error body that are read to find a JSON-RPC error in it.
const ERROR_BODY: usize = 64 * 1024;

/// One server behind a URL, on the network or on a Unix socket.
#[derive(Debug)]
pub struct Http {
    client: Client,
    url: Url,
    /// The URL without its query, which may hold a key.
    shown: String,
    kind: TransportKind,
    headers: HeaderMap,
    /// What authorizes requests; `None` where registered headers do, or nothing can.
    account: Option<Account>,
    session: RwLock<Option<HeaderValue>>,
    /// The URL itself names a session, as the POST URL of HTTP+SSE does.
    session_in_url: bool,
    version: RwLock<Option<HeaderValue>>,
    message_limit: usize,
    close_grace: Duration,
}

impl Http {
    /// Prepares requests to a server, which `account` authorizes unless a registered header does. Dials nothing.
    ///
    /// # Errors
    /// `DESTINATION_BLOCKED`, or `INVALID_FIELD` for a header that HTTP does not allow.
    pub fn new(
        client: Client,
        policy: &Policy,
        spec: &HttpSpec,
        account: Account,
        message_limit: usize,
        close_grace: Duration,
    ) -> Result<Self, Error> {
        policy.check_url(&spec.url)?;
        let headers = custom_headers(&spec.headers, "spec.http.headers")?;
        let account = (!headers.contains_key(AUTHORIZATION)).then_some(account);
        Ok(Self {
            client,
            url: spec.url.clone(),
            shown: printable(&spec.url),
            kind: TransportKind::StreamableHttp,
            headers,
            account,
            session: RwLock::default(),
            session_in_url: false,
            version: RwLock::default(),
            message_limit,
            close_grace,
        })
    }

    /// Prepares requests to a server on a Unix socket; `client` connects to that socket only. Dials nothing.
    ///
    /// # Errors
    /// `INVALID_FIELD` for a path or a header that HTTP does not allow.
    pub fn on_socket(
        client: Client,
        spec: &UnixSocketSpec,
        message_limit: usize,
        close_grace: Duration,
    ) -> Result<Self, Error> {
        Ok(Self {
            client,
            url: spec.http_url()?,
            shown: format!("unix:{}", spec.path),
            kind: TransportKind::UnixSocket,
            headers: custom_headers(&spec.headers, "spec.unix_socket.headers")?,
            account: None,
            session: RwLock::default(),
            session_in_url: false,
            version: RwLock::default(),
            message_limit,
            close_grace,
        })
    }

    /// Over what it runs.
    pub(super) fn kind(&self) -> TransportKind {
        self.kind
    }

    /// The same server at another URL of the same origin, which the server gave out for this session only.
    pub(super) fn for_session(&self, url: Url) -> Self {
        Self {
            client: self.client.clone(),
            shown: printable(&url),
            url,
            kind: self.kind,
            headers: self.headers.clone(),
            account: self.account.clone(),
            session: RwLock::default(),
            session_in_url: true,
            version: RwLock::default(),
            message_limit: self.message_limit,
            close_grace: self.close_grace,
        }
    }

    /// The URL.
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// The URL as people may see it.
    pub(super) fn shown(&self) -> &str {
        &self.shown
    }

    /// The longest message, in bytes.
    pub(super) fn message_limit(&self) -> usize {
        self.message_limit
    }

    fn has_session(&self) -> bool {
        self.session_in_url || self.session().is_some()
    }

    /// Remembers the version that the legacy handshake agreed on, for streams that are opened with GET.
    pub fn set_version(&self, version: &str) {
        *self.version.write().unwrap_or_else(PoisonError::into_inner) =
            HeaderValue::try_from(version).ok();
    }

    /// Goes on with a session that an earlier run of the daemon agreed on.
    pub fn resume_session(&self, id: &Secret<String>, version: &str) {
        let session = HeaderValue::try_from(id.expose()).ok().map(|mut id| {
            id.set_sensitive(true);
            id
        });
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = session;
        self.set_version(version);
    }

    /// The id of the session, if the server gave one.
    #[must_use]
    pub fn session_id(&self) -> Option<Secret<String>> {
        let session = self.session()?;
        Some(Secret::new(session.to_str().ok()?.to_owned()))
    }

    /// Leaves the session to a later run of the daemon: [`close`](Self::close) no longer ends it.
    pub(super) fn leave_session(&self) {
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn session(&self) -> Option<HeaderValue> {
        self.session
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn prepare(&self, request: RequestBuilder, headers: &[(String, String)]) -> RequestBuilder {
        let mut all = self.headers.clone();
        for (name, value) in headers {
            let pair = (
                HeaderName::try_from(name.as_str()),
                HeaderValue::try_from(value.as_str()),
            );
            if let (Ok(name), Ok(value)) = pair {
                all.insert(name, value);
            }
        }
        if let Some(session) = self.session() {
            all.insert(HeaderName::from_static(SESSION), session);
        }
        request.headers(all)
    }

    fn with_version(&self, request: RequestBuilder) -> RequestBuilder {
        let version = self.version.read().unwrap_or_else(PoisonError::into_inner);
        match version.as_ref() {
            Some(version) => request.header(crate::mcp::headers::PROTOCOL_VERSION, version),
            None => request,
        }
    }

    async fn post(&self, body: Bytes, headers: &[(String, String)]) -> Result<Response, Loss> {
        let request = || {
            self.prepare(self.client.post(self.url.clone()), headers)
                .header(CONTENT_TYPE, "application/json")
                .header(ACCEPT, "application/json, text/event-stream")
                .body(body.clone())
        };
        self.ask("POST", Some(&body), request).await
    }

    /// Sends a request; see [`Transport::request`](super::Transport::request).
    pub(super) async fn request(self: &Arc<Self>, frame: Frame) -> Result<HttpExchange, Loss> {
        let response = self.post(frame.body, &frame.headers).await?;
        self.exchange(frame.id, response).await
    }

    /// Sends the legacy handshake. The session id in its answer is used from then on; no other answer can set one.
    ///
    /// # Errors
    /// As [`Transport::request`](super::Transport::request).
    pub async fn initialize(self: &Arc<Self>, frame: Frame) -> Result<HttpExchange, Loss> {
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = None;
        let response = self.post(frame.body, &frame.headers).await?;
        let session = session_of(response.headers()).map_err(|what| {
            let message = format!("{} {what}", self.shown);
            Loss::maybe_sent(Error::new(Reason::UpstreamProtocol, message))
        })?;
        let exchange = self.exchange(frame.id, response).await?;
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = session;
        Ok(exchange)
    }

    async fn exchange(self: &Arc<Self>, id: u64, response: Response) -> Result<HttpExchange, Loss> {
        self.decoded(&response).map_err(Loss::maybe_sent)?;
        let mut exchange = HttpExchange {
            http: Arc::clone(self),
            id,
            ready: VecDeque::new(),
            stream: None,
            resumed_from: None,
            idle_resumes: 0,
        };
        let declared = media_type(response.headers()).map(is_event_stream);
        let (head, body) = match declared {
            Some(_) => (Bytes::new(), body_of(response)),
            None => self.peek(response).await?,
        };
        let body =
            futures_util::stream::iter((!head.is_empty()).then(|| Ok(head.clone()))).chain(body);
        if declared.unwrap_or_else(|| !looks_like_json(&head)) {
            let mut stream = self.event_stream(Box::pin(body));
            stream.awaited = Some(id);
            exchange.stream = Some(stream);
        } else {
            let body = self.read_body(body, self.message_limit).await?;
            let messages = protocol::parse_all(&body).map_err(|cause| {
                let excerpt = excerpt(&body);
                Loss::maybe_sent(Error::new(
                    Reason::NotAnMcpServer,
                    format!(
                        "{} answered with something that is not MCP ({cause}): `{excerpt}`",
                        self.shown
                    ),
                ))
            })?;
            exchange.ready.extend(messages);
        }
        Ok(exchange)
    }

    /// Sends a notification or response; any 2xx acknowledges it.
    pub(super) async fn send(&self, body: Bytes, headers: &[(String, String)]) -> Result<(), Loss> {
        self.post(body, headers).await.map(drop)
    }

    /// Opens a stream with GET: a new one, or the rest of one that broke off (legacy era).
    ///
    /// # Errors
    /// [`Loss`]; a status of 405 means that the server offers no such stream.
    pub async fn open_stream(&self, last_event_id: Option<&str>) -> Result<EventStream, Loss> {
        let mut headers = Vec::new();
        if let Some(id) = last_event_id {
            headers.push(("last-event-id".to_owned(), id.to_owned()));
        }
        let request = || {
            let request = self
                .prepare(self.client.get(self.url.clone()), &headers)
                .header(ACCEPT, "text/event-stream");
            self.with_version(request)
        };
        let response = self.ask("GET", None, request).await?;
        if !media_type(response.headers()).is_none_or(is_event_stream) {
            return Err(Loss::not_sent(Error::new(
                Reason::NotSupported,
                format!("{} answered GET without an event stream", self.shown),
            )));
        }
        self.decoded(&response).map_err(Loss::not_sent)?;
        Ok(self.event_stream(body_of(response)))
    }

    /// Ends the session, if there is one. The server's answer does not matter.
    pub(super) async fn close(&self) {
        if self.session().is_none() {
            return;
        }
        let request = || self.with_version(self.prepare(self.client.delete(self.url.clone()), &[]));
        let ending = self.ask("DELETE", None, request);
        let ended = tokio::time::timeout(self.close_grace, ending).await;
        let outcome = match &ended {
            Ok(Ok(response)) => response.status().to_string(),
            Ok(Err(loss)) => loss.error.to_string(),
            Err(_) => format!("no answer within {:?}", self.close_grace),
        };
        tracing::debug!(outcome, "ended the session");
        *self.session.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn event_stream(&self, body: Body) -> EventStream {
        EventStream {
            body,
            parser: sse::Parser::new(self.message_limit),
            events: VecDeque::new(),
            ready: VecDeque::new(),
            pace: Pace::default(),
            silent: 0,
            limit: self.message_limit,
            awaited: None,
        }
    }

    /// Whether the body is plain now: the HTTP client has taken off what it asked for, and says what is left.
    fn decoded(&self, response: &Response) -> Result<(), Error> {
        let left: Vec<_> = encodings(response.headers()).collect();
        if left.is_empty() {
            return Ok(());
        }
        Err(Error::new(
            Reason::UpstreamProtocol,
            format!(
                "{} answered in the content encoding `{}`, which is not one that was asked for",
                self.shown,
                left.join(", ")
            ),
        ))
    }

    /// Reads the first bytes of an answer that does not say what it is.
    async fn peek(&self, response: Response) -> Result<(Bytes, Body), Loss> {
        let mut body = body_of(response);
        let head = loop {
            match body.next().await {
                Some(Ok(chunk)) if chunk.is_empty() => {}
                Some(chunk) => break chunk.map_err(|error| self.loss(&error))?,
                None => break Bytes::new(),
            }
        };
        Ok((head, body))
    }

    async fn read_body(
        &self,
        mut body: impl Stream<Item = reqwest::Result<Bytes>> + Unpin,
        limit: usize,
    ) -> Result<Bytes, Loss> {
        let (mut bytes, mut pace) = (BytesMut::new(), Pace::default());
        while let Some(chunk) = body.next().await {
            pace.take_turns(chunk.as_ref().map_or(0, Bytes::len)).await;
            let chunk = chunk.map_err(|error| self.loss(&error))?;
            if bytes.len() + chunk.len() > limit {
                return Err(Loss::maybe_sent(Error::new(
                    Reason::MessageTooLarge,
                    format!(
                        "an answer of {} is larger than {limit} bytes (limits.message_bytes)",
                        self.shown
                    ),
                )));
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes.freeze())
    }

    /// Turns a failure of the HTTP client into a loss.
    fn loss(&self, error: &reqwest::Error) -> Loss {
        if let Some(blocked) = blocked_cause(error) {
            return Loss::not_sent(blocked);
        }
        let sent = if error.is_connect() || error.is_builder() {
            Sent::No
        } else {
            Sent::Maybe
        };
        let message = format!("{} cannot be reached: {}", self.shown, root_cause(error));
        Loss {
            error: Error::new(Reason::UpstreamUnreachable, message),
            sent,
            refusal: None,
            cut_off: sent == Sent::Maybe && is_broken(error),
        }
    }

    async fn refusal(&self, response: Response, had_session: bool) -> Loss {
        let status = response.status();
        // The status says enough; a body that does not come is not waited for.
        let body = match self.decoded(&response) {
            Ok(()) => {
                let reading = self.read_body(body_of(response), ERROR_BODY);
                let read = tokio::time::timeout(ERROR_PATIENCE, reading).await;
                read.unwrap_or_else(|_| Ok(Bytes::new()))
                    .unwrap_or_default()
            }
            Err(_) => Bytes::new(),
        };
        let (rpc, answers) = match protocol::parse(&body) {
            Ok(Message::Response {
                outcome: Err(error),
                id,
            }) => (Some(error), id.is_some()),
            _ => (None, false),
        };
        let session_doubtful = had_session && status == StatusCode::BAD_REQUEST && !answers;
        // Some servers say 401 for a session that they have forgotten. Whether it is that, a new handshake shows.
        let session_gone =
            had_session && matches!(status, StatusCode::NOT_FOUND | StatusCode::UNAUTHORIZED);
        let error = refusal_error(&self.shown, status, rpc.as_ref(), &body, session_gone);
        // A gateway's 5xx does not tell whether the server behind it has seen the request.
        let sent = if status.is_server_error() {
            Sent::Maybe
        } else {
            Sent::No
        };
        Loss {
            error,
            sent,
            refusal: Some(Refusal {
                status: status.as_u16(),
                rpc,
                session_gone,
                session_doubtful,
            }),
            cut_off: false,
        }
    }
}

/// The headers of a registration, ready to be sent; `field` is where they are in it.
///
/// # Errors
/// `INVALID_FIELD` for a name or a value that HTTP does not allow; the value is not shown.
pub fn custom_headers(list: &[NamedSecret], field: &'static str) -> Result<HeaderMap, Error> {
    let mut headers = HeaderMap::new();
    for header in list {
        let name = HeaderName::try_from(header.name.as_str()).map_err(|_| {
            Error::invalid(
                format!("{field}.name"),
                format!("`{}` is not a header name", header.name),
            )
        })?;
        let mut value = HeaderValue::try_from(header.value.expose().as_str()).map_err(|_| {
            Error::invalid(
                format!("{field}.value"),
                format!(
                    "the value of header `{}` has characters that HTTP does not allow",
                    header.name
                ),
            )
        })?;
        value.set_sensitive(true);
        // One Authorization header exactly, however it is spelt; other headers may repeat.
        if name == AUTHORIZATION {
            headers.insert(name, value);
        } else {
            headers.append(name, value);
        }
    }
    Ok(headers)
}

type Body = Pin<Box<dyn Stream<Item = reqwest::Result<Bytes>> + Send>>;

fn body_of(response: Response) -> Body {
    Box::pin(response.bytes_stream())
}

/// The content encodings that change something.
fn encodings(headers: &HeaderMap) -> impl Iterator<Item = String> {
    let values = headers.get_all(CONTENT_ENCODING).into_iter();
    let all = values.flat_map(|value| {
        let text = String::from_utf8_lossy(value.as_bytes()).into_owned();
        let names = text.split(',').map(|name| name.trim().to_owned());
        names.collect::<Vec<_>>()
    });
    all.filter(|name| !name.is_empty() && !name.eq_ignore_ascii_case("identity"))
}

/// The session that the answer to a handshake names (MCP 2025-11-25 basic/transports, "Session Management"). An empty id
/// is none.
///
/// # Errors
/// Says what is wrong with an id that could not be told from another, or not be kept.
fn session_of(headers: &HeaderMap) -> Result<Option<HeaderValue>, &'static str> {
    let all = headers.get_all(SESSION).into_iter();
    let mut given = all.filter(|id| !id.is_empty());
    let Some(id) = given.next() else {
        return Ok(None);
    };
    if given.any(|other| other != id) {
        return Err("gave two different session ids in one answer");
    }
    if id.to_str().is_err() {
        return Err("gave a session id that is not ASCII");
    }
    let mut id = id.clone();
    id.set_sensitive(true);
    Ok(Some(id))
}

/// The media type without parameters; `None` if the answer names none.
fn media_type(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let essence = value.split(';').next().unwrap_or_default().trim();
    (!essence.is_empty()).then_some(essence)
}

fn is_event_stream(media_type: &str) -> bool {
    media_type.eq_ignore_ascii_case("text/event-stream")
}

/// Whether this is how a JSON message begins, as opposed to an event.
fn looks_like_json(head: &[u8]) -> bool {
    let head = head.strip_prefix("\u{feff}".as_bytes()).unwrap_or(head);
    let first = head.iter().find(|byte| !byte.is_ascii_whitespace());
    matches!(first, Some(b'{' | b'['))
}
