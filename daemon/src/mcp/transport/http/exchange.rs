//! What comes back over HTTP: the messages of an event stream, and those of one request with its resumptions.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use futures_util::StreamExt;

use super::{Body, Http};
use crate::error::{Error, Reason};
use crate::mcp::protocol::{self, Message};
use crate::mcp::transport::pending::{HEAD, find_id};
use crate::mcp::transport::{Loss, sse};

/// Longest pause that a server may impose with `retry:`.
const MAX_RETRY: Duration = Duration::from_mins(10);
/// Pause before a stream is resumed when the server names none.
const DEFAULT_RETRY: Duration = Duration::from_secs(1);
/// Resumptions in a row that bring no new event before an exchange is given up.
const MAX_IDLE_RESUMES: u32 = 5;
/// Bytes of a body that are taken in one turn.
const TURN: usize = 64 * 1024;

/// Lets other tasks, and the timers of this one, have their turn while a body is always ready: a bomb that is being
/// unpacked must not keep a worker to itself. (The runtime's own budget does not help: once it is used up, timers of the
/// same task do not fire either.)
#[derive(Debug, Default)]
pub(super) struct Pace(usize);

impl Pace {
    pub(super) async fn take_turns(&mut self, bytes: usize) {
        self.0 += bytes;
        if self.0 > TURN {
            self.0 = 0;
            tokio::task::yield_now().await;
        }
    }
}

/// Messages of one SSE body.
pub struct EventStream {
    pub(super) body: Body,
    pub(super) parser: sse::Parser,
    pub(super) events: VecDeque<sse::Event>,
    pub(super) ready: VecDeque<Message>,
    pub(super) pace: Pace,
    /// Bytes since the last event.
    pub(super) silent: usize,
    pub(super) limit: usize,
    /// The request whose answer is awaited here; `None` on a stream of notifications.
    pub(super) awaited: Option<u64>,
}

impl std::fmt::Debug for EventStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EventStream")
            .field("parser", &self.parser)
            .finish_non_exhaustive()
    }
}

/// Why a stream of events ended.
#[derive(Debug)]
pub enum StreamEnd {
    /// The server closed it: it may be resumed.
    Closed,
    /// The connection broke: it may be resumed.
    Broken,
    /// What the server sent cannot be used: more than it may send, or the awaited answer in a form that nobody can read.
    Unusable(Error),
}

impl EventStream {
    /// The next message. Events that are no MCP messages are skipped and counted in the log. Cancel-safe.
    ///
    /// # Errors
    /// When the stream has ended.
    pub async fn next(&mut self) -> Result<Message, StreamEnd> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                return Ok(message);
            }
            let event = self.next_event().await?;
            if event.kind != "message" {
                continue;
            }
            match protocol::parse_all(&event.data) {
                Ok(messages) => self.ready.extend(messages),
                Err(cause) => {
                    let head = event.data.get(..HEAD.min(event.data.len()));
                    let answer = head.and_then(find_id);
                    if answer.is_some() && answer == self.awaited {
                        // There will be no other.
                        return Err(StreamEnd::Unusable(Error::new(
                            Reason::UpstreamProtocol,
                            format!("the answer is not JSON: {cause}"),
                        )));
                    }
                    tracing::debug!(%cause, "skipped an event that is no message");
                }
            }
        }
    }

    /// The next event of any kind. Cancel-safe.
    pub(in crate::mcp::transport) async fn next_event(&mut self) -> Result<sse::Event, StreamEnd> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(event);
            }
            let chunk = match self.body.next().await {
                Some(Ok(chunk)) => chunk,
                Some(Err(_)) => return Err(StreamEnd::Broken),
                None => return Err(StreamEnd::Closed),
            };
            self.pace.take_turns(chunk.len()).await;
            let too_large =
                |text: String| StreamEnd::Unusable(Error::new(Reason::MessageTooLarge, text));
            let events = self
                .parser
                .push(&chunk)
                .map_err(|cause| too_large(cause.to_string()))?;
            self.silent = if events.is_empty() {
                self.silent + chunk.len()
            } else {
                0
            };
            if self.silent > self.limit && !self.parser.skips_oversize() {
                return Err(too_large(format!(
                    "{} bytes of the stream held no event (limits.message_bytes)",
                    self.silent
                )));
            }
            self.events.extend(events);
        }
    }

    /// Skips events that are too large: many share this stream.
    pub(in crate::mcp::transport) fn skip_oversize(&mut self) {
        self.parser.skip_oversize();
    }

    /// For `Last-Event-ID`.
    #[must_use]
    pub fn last_event_id(&self) -> Option<&str> {
        self.parser.last_event_id()
    }

    /// How long to wait before resuming; bounded.
    #[must_use]
    pub fn retry(&self) -> Duration {
        self.parser.retry().unwrap_or(DEFAULT_RETRY).min(MAX_RETRY)
    }
}

/// A request under way over HTTP.
#[derive(Debug)]
pub struct HttpExchange {
    pub(super) http: Arc<Http>,
    pub(super) id: u64,
    pub(super) ready: VecDeque<Message>,
    pub(super) stream: Option<EventStream>,
    /// The event behind which it was last resumed.
    pub(super) resumed_from: Option<String>,
    /// Resumptions in a row behind the same event.
    pub(super) idle_resumes: u32,
}

impl HttpExchange {
    /// The next message; see [`Exchange::next`](crate::mcp::transport::Exchange::next). Answers to other requests are not ours: a server
    /// that puts them here is not believed.
    ///
    /// # Errors
    /// [`Loss`] when the answer ends without a response and cannot be resumed.
    pub async fn next(&mut self) -> Result<Message, Loss> {
        loop {
            if let Some(message) = self.ready.pop_front() {
                match &message {
                    Message::Response {
                        id: Some(other), ..
                    } if *other != self.id => {
                        tracing::debug!(id = other, "skipped the answer to another request");
                    }
                    _ => return Ok(message),
                }
                continue;
            }
            let Some(stream) = &mut self.stream else {
                return Err(self.no_answer("it has no result"));
            };
            match stream.next().await {
                Ok(message) => {
                    self.idle_resumes = 0;
                    self.ready.push_back(message);
                }
                Err(StreamEnd::Unusable(error)) => return Err(Loss::maybe_sent(error)),
                Err(StreamEnd::Closed | StreamEnd::Broken) => self.resume().await?,
            }
        }
    }

    /// Re-opens a broken stream where it broke off (MCP 2025-11-25 basic/transports, "Resumability"). Only legacy servers
    /// can: a modern stream without its response ends here. Whatever comes of it, the request was sent.
    async fn resume(&mut self) -> Result<(), Loss> {
        let Some(stream) = &self.stream else {
            return Err(self.ended("it has no result"));
        };
        let legacy = self
            .http
            .version
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some();
        let (Some(id), true) = (stream.last_event_id().map(str::to_owned), legacy) else {
            return Err(self.ended("the stream ended before the result"));
        };
        let retry = stream.retry();
        if self.resumed_from.as_ref() != Some(&id) {
            // The server is getting on: it only ends its connections early, as it may.
            self.idle_resumes = 0;
            self.resumed_from = Some(id.clone());
        }
        loop {
            self.idle_resumes += 1;
            if self.idle_resumes > MAX_IDLE_RESUMES {
                return Err(
                    self.ended("the stream was resumed again and again and brought nothing")
                );
            }
            tokio::time::sleep(retry).await;
            match self.http.open_stream(Some(&id)).await {
                Ok(mut resumed) => {
                    // A resumed stream that breaks before its first event goes on from the same place.
                    resumed.parser.inherit(id, retry);
                    resumed.awaited = Some(self.id);
                    self.stream = Some(resumed);
                    return Ok(());
                }
                Err(loss) if is_passing(&loss) => {
                    tracing::debug!(error = %loss.error, "a stream cannot be resumed yet");
                }
                Err(loss) => {
                    return Err(
                        self.ended(&format!("the stream cannot be resumed: {}", loss.error))
                    );
                }
            }
        }
    }

    fn ended(&self, why: &str) -> Loss {
        Loss {
            cut_off: true,
            ..self.no_answer(why)
        }
    }

    fn no_answer(&self, why: &str) -> Loss {
        Loss::maybe_sent(Error::new(
            Reason::OutcomeUnknown,
            format!("{} gave no complete answer: {why}", self.http.shown),
        ))
    }
}

/// Whether another attempt may succeed: the server cannot be reached, or something before it is overloaded.
fn is_passing(loss: &Loss) -> bool {
    match &loss.refusal {
        Some(refusal) => matches!(refusal.status, 408 | 425 | 429) || refusal.status >= 500,
        None => loss.error.reason() == Reason::UpstreamUnreachable,
    }
}
