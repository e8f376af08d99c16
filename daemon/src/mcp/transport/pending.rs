//! Requests that wait on a channel which carries everything: what arrives is routed by its id, and what belongs to no
//! request of ours goes to whoever holds the link (MCP 2026-07-28 basic/transports/stdio).
//!
//! Shared by every transport with one channel. Never writes, never reads a clock, and keeps no entry for a request that
//! nobody waits for any longer.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::base::load::{Counted, Gauge};
use crate::error::{Error, Reason, RpcError};
use crate::mcp::protocol::{self, META_SUBSCRIPTION, Message, RawJson, code, method};
use crate::mcp::transport::Loss;

/// Progress and log messages that one slow caller may leave unread; more are dropped.
const UNREAD: usize = 64;
/// Bytes at the head of an oversize message in which its id is looked for.
pub(super) const HEAD: usize = 4096;

/// The requests of one channel.
#[derive(Debug)]
pub(super) struct Pending {
    /// The peer as people know it.
    who: String,
    table: Mutex<Table>,
    message_limit: usize,
    waiting: Gauge,
    /// Cancelled when no further message will come.
    over: CancellationToken,
}

#[derive(Debug, Default)]
struct Table {
    requests: HashMap<u64, Waiter>,
    /// Set once the channel is gone: requests are refused from then on.
    end: Option<Error>,
}

#[derive(Debug)]
struct Waiter {
    events: mpsc::Sender<Message>,
    response: oneshot::Sender<Result<Message, Loss>>,
    _counted: Counted,
}

impl Waiter {
    fn settle(self, outcome: Result<Message, Loss>) {
        // Whoever waited may have given up at this moment.
        let _ = self.response.send(outcome);
    }
}

impl Pending {
    /// An empty table for the channel to `who`; messages of more than `message_limit` bytes are not read. Its requests
    /// are counted in `waiting`.
    pub(super) fn new(who: String, message_limit: usize, waiting: Gauge) -> Arc<Self> {
        Arc::new(Self {
            who,
            table: Mutex::default(),
            message_limit,
            waiting,
            over: CancellationToken::new(),
        })
    }

    /// The peer as people know it.
    pub(super) fn who(&self) -> &str {
        &self.who
    }

    /// The longest message, in bytes.
    pub(super) fn message_limit(&self) -> usize {
        self.message_limit
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a request. Do it before the request is written, so that a caller that gives up while the channel is full
    /// leaves no entry behind.
    ///
    /// # Errors
    /// [`Loss`] when the channel has ended.
    pub(super) fn enter(self: &Arc<Self>, id: u64) -> Result<SharedExchange, Loss> {
        let (events_tx, events) = mpsc::channel(UNREAD);
        let (response_tx, response) = oneshot::channel();
        let mut table = self.table();
        if let Some(end) = &table.end {
            return Err(Loss::not_sent(end.clone()));
        }
        let waiter = Waiter {
            events: events_tx,
            response: response_tx,
            _counted: self.waiting.enter(),
        };
        table.requests.insert(id, waiter);
        Ok(SharedExchange {
            id,
            events,
            response,
            pending: Arc::clone(self),
        })
    }

    /// Fails every waiting request. The first reason stays.
    pub(super) fn end(&self, error: &Error) {
        let waiting = {
            let mut table = self.table();
            table.end.get_or_insert_with(|| error.clone());
            std::mem::take(&mut table.requests)
        };
        for waiter in waiting.into_values() {
            waiter.settle(Err(Loss::cut_off(error.clone())));
        }
        self.over.cancel();
    }

    /// Why the channel has ended, or that it is closed.
    pub(super) fn why(&self) -> Error {
        let end = self.table().end.clone();
        end.unwrap_or_else(|| closed(&self.who))
    }

    /// Completes when no further message will come, with the reason.
    pub(super) async fn ended(&self) -> Error {
        self.over.cancelled().await;
        self.why()
    }

    /// Takes a message from the channel: to the request it belongs to, or to `inbound`. Returns the refusal that has to
    /// be sent when a request of the server finds `inbound` full.
    pub(super) fn deliver(
        &self,
        message: Message,
        inbound: &mpsc::Sender<Message>,
    ) -> Option<Bytes> {
        let message = self.route(message)?;
        // Log messages may fill half of the queue: what must not be lost finds room behind them.
        let chatter =
            matches!(&message, Message::Notification { method, .. } if method == method::LOG);
        if chatter && inbound.capacity() < inbound.max_capacity() / 2 {
            return None;
        }
        let refused = inbound.try_send(message).err()?;
        let Message::Request { id, .. } = refused.into_inner() else {
            return None;
        };
        // Nobody may be left waiting: say that the request was not taken.
        let error = RpcError {
            code: code::INTERNAL,
            message: "too many requests are waiting".to_owned(),
            data: None,
        };
        Some(protocol::encode_response(&id, &Err::<RawJson, _>(error)))
    }

    /// Hands a message to the request it belongs to, or returns it.
    fn route(&self, message: Message) -> Option<Message> {
        let mut table = self.table();
        match &message {
            Message::Response { id, .. } => {
                // An answer to nothing we wait for: late after a cancellation, or forged. Dropped either way.
                if let Some(waiter) = id.and_then(|id| table.requests.remove(&id)) {
                    waiter.settle(Ok(message));
                }
                None
            }
            Message::Notification { method, params } if method == method::PROGRESS => {
                let token = params
                    .as_ref()
                    .and_then(|params| params.get("progressToken"));
                let waiter = token
                    .and_then(|token| token.read())
                    .and_then(|id: u64| table.requests.get(&id));
                if let Some(waiter) = waiter {
                    let _ = waiter.events.try_send(message);
                }
                None
            }
            // The modern era sends everything on one channel: what belongs to a subscription says so.
            Message::Notification { method, params } => {
                let named = |member: &str| params.as_ref().and_then(|params| params.get(member));
                if method == method::CANCELLED {
                    let id = named("requestId").and_then(|id| id.read::<u64>());
                    if let Some(waiter) = id.and_then(|id| table.requests.remove(&id)) {
                        let ended =
                            Error::new(Reason::OutcomeUnknown, "the server ended the request");
                        waiter.settle(Err(Loss::maybe_sent(ended)));
                        return None;
                    }
                    return Some(message);
                }
                let id = named("_meta").and_then(|meta| meta.get(META_SUBSCRIPTION));
                let waiter = id
                    .and_then(|id| id.read())
                    .and_then(|id: u64| table.requests.get(&id));
                match waiter {
                    Some(waiter) => waiter
                        .events
                        .try_send(message)
                        .err()
                        .map(TrySendError::into_inner),
                    None => Some(message),
                }
            }
            Message::Request { .. } => Some(message),
        }
    }

    /// What came is no message; if it seems to answer a request, that request fails, and nothing else.
    pub(super) fn unreadable(&self, bytes: &Bytes, cause: &protocol::ParseError) {
        let head = bytes.get(..HEAD.min(bytes.len())).unwrap_or_default();
        let who = &self.who;
        let error = Error::new(
            Reason::UpstreamProtocol,
            format!("`{who}` wrote an answer that is not JSON: {cause}"),
        );
        self.fail(head, error);
    }

    /// A message was too long to be read; fails the request that it seems to answer.
    pub(super) fn oversize(&self, head: &[u8]) {
        let error = Error::new(
            Reason::MessageTooLarge,
            format!(
                "`{}` wrote a message of more than {} bytes (limits.message_bytes)",
                self.who, self.message_limit
            ),
        );
        tracing::warn!(%error, "skipped a message");
        self.fail(head, error);
    }

    fn fail(&self, head: &[u8], error: Error) {
        let mut table = self.table();
        if let Some(waiter) = find_id(head).and_then(|id| table.requests.remove(&id)) {
            waiter.settle(Err(Loss::maybe_sent(error)));
        }
    }
}

/// The channel to a peer was closed at its end.
pub(super) fn closed(who: &str) -> Error {
    Error::new(
        Reason::UpstreamUnreachable,
        format!("`{who}` has closed its output"),
    )
}

/// Finds `"id": <number>` near the head of a message that is not read as a whole, if it looks like an answer: a log line
/// that quotes one of our requests must not end that request.
pub(super) fn find_id(head: &[u8]) -> Option<u64> {
    let head = String::from_utf8_lossy(head);
    let answers = head.contains("\"result\"") || head.contains("\"error\"");
    if !head.trim_start().starts_with('{') || head.contains("\"method\"") || !answers {
        return None;
    }
    let (_, after) = head.split_once("\"id\"")?;
    let digits = after.trim_start().strip_prefix(':')?.trim_start();
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits.get(..end)?.parse().ok()
}

/// A request under way on a shared channel.
#[derive(Debug)]
pub struct SharedExchange {
    id: u64,
    events: mpsc::Receiver<Message>,
    response: oneshot::Receiver<Result<Message, Loss>>,
    pending: Arc<Pending>,
}

impl SharedExchange {
    /// The next message; see [`Exchange::next`](super::Exchange::next).
    ///
    /// # Errors
    /// [`Loss`] when the channel ends before the answer.
    pub async fn next(&mut self) -> Result<Message, Loss> {
        tokio::select! {
            // Progress that came before the response is delivered before it.
            biased;
            Some(event) = self.events.recv() => Ok(event),
            response = &mut self.response => response.unwrap_or_else(|_| {
                Err(Loss::maybe_sent(Error::new(Reason::OutcomeUnknown, "the answer was already taken")))
            }),
        }
    }
}

impl Drop for SharedExchange {
    fn drop(&mut self) {
        self.pending.table().requests.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::find_id;

    #[test]
    fn the_id_of_an_oversize_answer_is_found() {
        assert_eq!(
            find_id(br#"{"jsonrpc":"2.0","id" : 42,"result":"#),
            Some(42)
        );
        for other in [
            r#"{"id":"x","result":1}"#,
            r#"DEBUG got {"jsonrpc":"2.0","id":12,"result":{}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"id":7,"result":"#,
            r#"{"id":7}"#,
        ] {
            assert_eq!(find_id(other.as_bytes()), None, "{other}");
        }
    }
}
