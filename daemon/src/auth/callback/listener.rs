//! The sockets of the callback, and what is said over them: HTTP/1.1, one request per connection.
//!
//! A request that was not meant for the listener (another host name, which could be a page that has its own name point
//! here; another path; another method) is refused before anybody hears of it. Everything is bounded: the head, the
//! connections, and the time of each.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, HOST, LOCATION};
use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use url::Url;

use super::page;
use super::{CallbackOptions, Landing, Place, Visit};

/// Connections at a time, over all sockets; browsers open some in advance. Further ones wait in the kernel.
const CONNECTIONS: usize = 32;
/// Size of a request's head, in bytes.
const HEAD: usize = 32 * 1024;
/// Headers of a request.
const HEADERS: usize = 100;
/// How long a request's head may take to arrive.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// How long a visitor waits for the outcome; it takes some requests to an authorization server.
const ANSWER_TIME: Duration = Duration::from_mins(2);
/// How long a connection may last, whatever happens on it.
const CONNECTION_TIME: Duration = Duration::from_secs(150);
/// Pause after a failed accept, for example when the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Longest text in a redirect, in characters.
const MAX_ERROR: usize = 500;

/// A socket that listens as long as somebody holds it.
#[derive(Debug)]
pub(super) struct Socket {
    address: SocketAddr,
    _closes: DropGuard,
}

impl Socket {
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }
}

/// What is remembered of a socket.
#[derive(Debug)]
pub(super) struct Entry {
    socket: Weak<Socket>,
    stopped: CancellationToken,
}

impl Entry {
    /// The socket, if somebody holds it.
    pub(super) fn socket(&self) -> Option<Arc<Socket>> {
        self.socket.upgrade()
    }

    /// Whether somebody holds it.
    pub(super) fn is_open(&self) -> bool {
        self.socket.strong_count() > 0
    }

    /// Whether its address is free again.
    pub(super) fn has_stopped(&self) -> bool {
        self.stopped.is_cancelled()
    }

    /// Completes when its address is free again.
    pub(super) async fn stopped(&self) {
        self.stopped.cancelled().await;
    }
}

/// What every connection needs to know.
#[derive(Debug)]
pub(super) struct Desk {
    path: String,
    public_url: Option<String>,
    public: Option<Url>,
    success: Option<Url>,
    failure: Option<Url>,
    visits: mpsc::Sender<Visit>,
    places: Arc<Semaphore>,
}

impl Desk {
    pub(super) fn new(options: &CallbackOptions, visits: mpsc::Sender<Visit>) -> Self {
        // The configuration has been checked: what is no URL is not there.
        let url = |text: &Option<String>| text.as_deref().and_then(|text| Url::parse(text).ok());
        Self {
            path: options.path.clone(),
            public_url: options.public_url.clone(),
            public: url(&options.public_url),
            success: url(&options.success_redirect),
            failure: url(&options.error_redirect),
            visits,
            places: Arc::new(Semaphore::new(CONNECTIONS)),
        }
    }
}

/// Listens at an address; port 0: any.
pub(super) async fn open(
    address: SocketAddr,
    desk: Arc<Desk>,
    tasks: &TaskTracker,
) -> io::Result<(Arc<Socket>, Entry)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    let closing = CancellationToken::new();
    let stopped = CancellationToken::new();
    let socket = Arc::new(Socket {
        address,
        _closes: closing.clone().drop_guard(),
    });
    let entry = Entry {
        socket: Arc::downgrade(&socket),
        stopped: stopped.clone(),
    };
    let connections = tasks.clone();
    tasks.spawn(async move {
        accept(listener, &desk, &closing, &connections).await;
        stopped.cancel();
    });
    tracing::info!(%address, "listening for the end of a sign-in");
    Ok((socket, entry))
}

/// Accepts until the socket is let go. Connections that are open then may finish.
async fn accept(
    listener: TcpListener,
    desk: &Arc<Desk>,
    closing: &CancellationToken,
    tasks: &TaskTracker,
) {
    let port = listener.local_addr().map_or(0, |address| address.port());
    loop {
        let next = async {
            // Closed never: the desk keeps it.
            let place = Arc::clone(&desk.places).acquire_owned().await.ok();
            (place, listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            biased;
            () = closing.cancelled() => break,
            next = next => next,
        };
        match accepted {
            Ok((stream, _)) => {
                let connection = converse(stream, port, Arc::clone(desk), closing.clone(), place);
                tasks.spawn(connection);
            }
            Err(cause) => {
                tracing::warn!(%cause, "accept failed");
                tokio::select! {
                    () = closing.cancelled() => break,
                    () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
    tracing::debug!(port, "no sign-in is waited for any more");
}

async fn converse(
    stream: TcpStream,
    port: u16,
    desk: Arc<Desk>,
    closing: CancellationToken,
    _place: Option<OwnedSemaphorePermit>,
) {
    let service = service_fn(move |request| {
        let desk = Arc::clone(&desk);
        async move { Ok::<_, Infallible>(desk.answer(port, request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD)
        .max_headers(HEADERS)
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let talk = async {
        tokio::select! {
            ended = connection.as_mut() => ended,
            // A visitor whose visit ended the last sign-in is still to be answered.
            () = closing.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        }
    };
    match tokio::time::timeout(CONNECTION_TIME, talk).await {
        Ok(Ok(())) => {}
        Ok(Err(cause)) => {
            tracing::debug!(%cause, "a connection to the callback ended with an error");
        }
        Err(_elapsed) => tracing::debug!("a connection to the callback took too long"),
    }
}

impl Desk {
    async fn answer(&self, port: u16, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let Some(own) = self.own_host(port, &request) else {
            return page::refusal(
                StatusCode::MISDIRECTED_REQUEST,
                "This request is for another host.",
            );
        };
        if request.uri().path() != self.path {
            return page::refusal(StatusCode::NOT_FOUND, "There is nothing here.");
        }
        if request.method() != Method::GET {
            let mut refusal =
                page::refusal(StatusCode::METHOD_NOT_ALLOWED, "Only GET is answered.");
            refusal
                .headers_mut()
                .insert(ALLOW, HeaderValue::from_static("GET"));
            return refusal;
        }
        let url = match &self.public_url {
            Some(public) => public.clone(),
            None => format!("http://{own}{}", self.path),
        };
        let url = match request.uri().query() {
            // The URL that was configured may have a query of its own.
            Some(query) if url.contains('?') => format!("{url}&{query}"),
            Some(query) => format!("{url}?{query}"),
            None => url,
        };
        let (reply, landing) = oneshot::channel();
        let outcome = async {
            self.visits.send(Visit { url, reply }).await.ok()?;
            landing.await.ok()
        };
        match tokio::time::timeout(ANSWER_TIME, outcome).await {
            Ok(Some(landing)) => self.land(&landing),
            Ok(None) => page::stopping(),
            Err(_elapsed) => page::unfinished(),
        }
    }

    /// The host and port that the request names, if they are of this listener: a spelling of this host with the port, or
    /// the host of the public URL.
    fn own_host(&self, port: u16, request: &Request<Incoming>) -> Option<String> {
        let mut hosts = request.headers().get_all(HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return None;
        };
        let named = Authority::try_from(host.as_bytes()).ok()?;
        // A target in absolute form comes before the header (RFC 9112 section 3.2.2); both have to be right.
        let mut all = std::iter::once(&named).chain(request.uri().authority());
        all.all(|authority| self.is_own(port, authority))
            .then(|| named.as_str().to_ascii_lowercase())
    }

    fn is_own(&self, port: u16, authority: &Authority) -> bool {
        if authority.as_str().contains('@') {
            return false;
        }
        let host = authority.host().to_ascii_lowercase();
        let named = authority.port_u16();
        let local = Place::of(&host).is_some() && named.unwrap_or(80) == port;
        let public = self.public.as_ref().is_some_and(|public| {
            let known = named.is_none() || named == public.port_or_known_default();
            public.host_str() == Some(host.as_str()) && known
        });
        local || public
    }

    /// The page for an outcome, or the way to the operator's own.
    fn land(&self, landing: &Landing) -> Response<Full<Bytes>> {
        let target = match landing {
            Landing::SignedIn { .. } | Landing::Already { .. } => self.success.clone(),
            Landing::Failed { message } => self.failure.clone().map(|url| with_error(url, message)),
            Landing::Unknown => {
                let error = page::UNKNOWN;
                self.failure.clone().map(|url| with_error(url, error))
            }
        };
        match target.map(|url| HeaderValue::try_from(url.as_str())) {
            Some(Ok(location)) => {
                let mut away = page::refusal(StatusCode::SEE_OTHER, "");
                away.headers_mut().insert(LOCATION, location);
                away
            }
            _ => page::landing(landing),
        }
    }
}

/// The URL with `error` behind whatever query it has, and before a fragment.
fn with_error(mut url: Url, message: &str) -> Url {
    let message: String = page::plain(message, MAX_ERROR);
    url.query_pairs_mut().append_pair("error", &message);
    url
}
