//! HTTP+SSE, the transport of MCP 2024-11-05 (basic/transports, "HTTP with SSE"): one stream that a GET opens carries
//! everything that the server says; what we say is POSTed to the URL that its first event names.
//!
//! Never sends anything to another origin than the registered one. Never opens a lost stream again: its end is the end of
//! the link, because the session ended with it.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::base::load::Load;
use crate::error::{Error, Reason};
use crate::mcp::era::Frame;
use crate::mcp::protocol::{self, Message};
use crate::mcp::transport::Loss;
use crate::mcp::transport::http::{EventStream, Http, StreamEnd};
use crate::mcp::transport::pending::{Pending, SharedExchange};
use crate::policy::{Policy, printable};

/// Refusals of the server's requests that wait to be sent; more are dropped.
const REFUSALS: usize = 16;
/// How long one refusal may take.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(10);

/// One session with a server.
#[derive(Debug)]
pub struct HttpSse {
    /// Where messages are POSTed.
    endpoint: Arc<Http>,
    pending: Arc<Pending>,
    /// Ends the stream.
    hang_up: CancellationToken,
}

impl Drop for HttpSse {
    fn drop(&mut self) {
        self.hang_up.cancel();
    }
}

impl HttpSse {
    /// Opens the stream of the server at this URL and waits for the URL to POST to. Takes as long as the server takes:
    /// the caller bounds it. Dropping the future leaves nothing behind. Messages that belong to no request of ours go to
    /// `inbound`; when it is full they are refused.
    ///
    /// # Errors
    /// `DESTINATION_BLOCKED` for a URL of another origin; else why there is no such stream.
    pub async fn open(
        http: &Http,
        policy: &Policy,
        inbound: mpsc::Sender<Message>,
        tasks: &TaskTracker,
        load: &Load,
    ) -> Result<Self, Error> {
        let opened = http.open_stream(None).await;
        let mut stream = opened.map_err(|loss| loss.error)?;
        stream.skip_oversize();
        let url = endpoint(http, policy, &mut stream).await?;
        let endpoint = Arc::new(http.for_session(url));
        let (who, limit) = (http.shown().to_owned(), http.message_limit());
        let pending = Pending::new(who, limit, load.waiting.clone());
        let hang_up = CancellationToken::new();
        let (refusals, to_send) = mpsc::channel(REFUSALS);
        tasks.spawn(send_refusals(Arc::clone(&endpoint), to_send));
        let (reading, end) = (Arc::clone(&pending), hang_up.clone());
        tasks.spawn(async move {
            let why = tokio::select! {
                why = read(stream, &reading, &inbound, &refusals) => why,
                () = end.cancelled() => "was closed",
            };
            let message = format!("the event stream of {} {why}", reading.who());
            reading.end(&Error::new(Reason::UpstreamUnreachable, message));
        });
        Ok(Self {
            endpoint,
            pending,
            hang_up,
        })
    }

    /// Completes when the stream has ended.
    pub(super) async fn ended(&self) -> Error {
        self.pending.ended().await
    }

    pub(super) fn request(&self, frame: Frame) -> Result<SseExchange, Loss> {
        let shared = self.pending.enter(frame.id)?;
        let endpoint = Arc::clone(&self.endpoint);
        let posting = async move { endpoint.send(frame.body, &frame.headers).await };
        Ok(SseExchange {
            shared,
            posting: Some(Box::pin(posting)),
        })
    }

    pub(super) async fn send(&self, body: Bytes, headers: &[(String, String)]) -> Result<(), Loss> {
        self.endpoint.send(body, headers).await
    }

    /// Ends the stream, and with it the session.
    pub(super) fn close(&self) {
        self.hang_up.cancel();
    }
}

/// Waits for the event that says where to POST.
async fn endpoint(
    http: &Http,
    policy: &Policy,
    stream: &mut EventStream,
) -> Result<url::Url, Error> {
    let not_sse = |what: &str| {
        let message = format!("{} is no HTTP+SSE server: {what}", http.shown());
        Error::new(Reason::NotAnMcpServer, message)
    };
    let event = loop {
        match stream.next_event().await {
            Ok(event) if event.kind == "endpoint" && !event.cut => break event,
            Ok(event) if event.kind == "message" => {
                return Err(not_sse("a message came before the `endpoint` event"));
            }
            Ok(_) => {}
            Err(_) => return Err(not_sse("the stream ended before the `endpoint` event")),
        }
    };
    let text = std::str::from_utf8(&event.data).map(str::trim);
    let url = text.ok().and_then(|text| http.url().join(text).ok());
    let url = url.ok_or_else(|| not_sse("its `endpoint` event holds no URL"))?;
    if url.origin() != http.url().origin() {
        let message = format!(
            "{} wants its messages at `{}`, which is another origin",
            http.shown(),
            printable(&url)
        );
        let host = url.host_str().unwrap_or_default();
        return Err(Error::new(Reason::DestinationBlocked, message)
            .with("host", host)
            .with("rule", "another origin"));
    }
    policy.check_url(&url)?;
    Ok(url)
}

/// Reads the stream to its end, and says how it ended.
async fn read(
    mut stream: EventStream,
    pending: &Pending,
    inbound: &mpsc::Sender<Message>,
    refusals: &mpsc::Sender<Bytes>,
) -> &'static str {
    loop {
        let event = match stream.next_event().await {
            Ok(event) => event,
            Err(StreamEnd::Closed) => return "was closed by the server",
            Err(StreamEnd::Broken | StreamEnd::Unusable(_)) => return "broke",
        };
        if event.kind != "message" {
            continue;
        }
        if event.cut {
            pending.oversize(&event.data);
            continue;
        }
        match protocol::parse_all(&event.data) {
            Ok(messages) => {
                for message in messages {
                    if let Some(refusal) = pending.deliver(message, inbound) {
                        let _ = refusals.try_send(refusal);
                    }
                }
            }
            Err(cause) => {
                tracing::debug!(%cause, "skipped an event that is no message");
                pending.unreadable(&event.data, &cause);
            }
        }
    }
}

/// Ends when the reader has ended.
async fn send_refusals(endpoint: Arc<Http>, mut refusals: mpsc::Receiver<Bytes>) {
    while let Some(refusal) = refusals.recv().await {
        let sending = endpoint.send(refusal, &[]);
        if !matches!(
            tokio::time::timeout(REFUSAL_PATIENCE, sending).await,
            Ok(Ok(()))
        ) {
            tracing::debug!("a refusal did not reach the server");
        }
    }
}

type Posting = Pin<Box<dyn Future<Output = Result<(), Loss>> + Send>>;

/// A request under way over HTTP+SSE.
pub struct SseExchange {
    shared: SharedExchange,
    /// The POST, until the server has acknowledged it. Some servers answer on the stream first.
    posting: Option<Posting>,
}

impl std::fmt::Debug for SseExchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SseExchange")
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

impl SseExchange {
    /// The next message; see [`Exchange::next`](super::Exchange::next).
    ///
    /// # Errors
    /// [`Loss`] when the request is refused, or the stream ends before the answer.
    pub async fn next(&mut self) -> Result<Message, Loss> {
        loop {
            let Some(posting) = &mut self.posting else {
                return self.shared.next().await;
            };
            tokio::select! {
                biased;
                message = self.shared.next() => return message,
                posted = posting => {
                    self.posting = None;
                    posted?;
                }
            }
        }
    }
}
