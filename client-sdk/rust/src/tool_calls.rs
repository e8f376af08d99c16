//! Tool calls over one stream (`ToolService.CallTools`). Makes no calls of its own, and repeats none.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tonic::{Request, Status, Streaming};

use crate::client::{Client, duration};
use crate::error::{Error, Result};
use crate::proto::call_tools_request::Action;
use crate::proto::call_tools_response::Outcome;
use crate::proto::{
    CallToolResponse, CallToolsRequest, CallToolsResponse, CancelCallOfStream, ToolCall,
};

/// Calls tools over one stream: for apps that call often, since a call costs about half of what it costs as a request of its
/// own. All calls are under way at the same time.
///
/// Made by [`Client::tool_calls`], in whose namespace and with whose deadline every call is made. Cheap to clone; clones share
/// the stream. It is opened with the first call, and again with the next one after it was lost. When the last clone is
/// dropped, so is the stream.
#[derive(Clone, Debug)]
pub struct ToolCalls {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    client: Client,
    open: tokio::sync::Mutex<Option<Arc<Open>>>,
}

/// A stream that is open, or was.
#[derive(Debug)]
struct Open {
    /// Bounded by the calls that wait: each has one request in it, and one to cancel it.
    requests: mpsc::UnboundedSender<CallToolsRequest>,
    waiting: Arc<Mutex<Waiting>>,
    next: AtomicU64,
    reader: JoinHandle<()>,
}

/// Who waits for the response to which number.
#[derive(Debug, Default)]
struct Waiting {
    calls: HashMap<u64, oneshot::Sender<Result<CallToolResponse>>>,
    /// How the stream has ended.
    ended: Option<Status>,
}

impl Client {
    /// A stream of calls; see [`ToolCalls`]. Nothing is sent before the first call.
    #[must_use]
    pub fn tool_calls(&self) -> ToolCalls {
        ToolCalls {
            inner: Arc::new(Inner {
                client: self.clone(),
                open: tokio::sync::Mutex::default(),
            }),
        }
    }
}

impl ToolCalls {
    /// Calls a tool and waits for its result, as [`Client::call_tool`] does. Dropping the future cancels the call, at the server
    /// too.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call_tool`]. A stream that is lost fails every call of it with [`Error::Transport`]; one that
    /// the daemon ended because it stops, with [`crate::Reason::DRAINING`]: such a call was not made.
    pub async fn call(&self, mut call: ToolCall) -> Result<CallToolResponse> {
        let client = &self.inner.client;
        client.fill(&mut call.namespace);
        let deadline = client.deadline();
        let made = self.make(call, deadline);
        match deadline {
            None => made.await,
            Some(bound) => tokio::time::timeout(bound, made)
                .await
                .unwrap_or_else(|_| Err(Error::late("the deadline of the call is over"))),
        }
    }

    async fn make(&self, call: ToolCall, deadline: Option<Duration>) -> Result<CallToolResponse> {
        let mut pending = self.pending().await?;
        let request = CallToolsRequest {
            number: pending.number,
            action: Some(Action::Call(call)),
            deadline: deadline.map(duration),
        };
        // A reader that has ended says so to everybody who waits.
        let _ = pending.open.requests.send(request);
        (&mut pending.response)
            .await
            .unwrap_or(Err(Error::Contract("the stream ended without a response")))
    }

    /// A place among those who wait, on a stream that is open.
    async fn pending(&self) -> Result<Pending> {
        let mut open = self.inner.open.lock().await;
        if let Some(pending) = open.as_ref().and_then(|open| Pending::on(open).ok()) {
            return Ok(pending);
        }
        let opened = Arc::new(Open::new(&self.inner.client).await?);
        *open = Some(Arc::clone(&opened));
        Pending::on(&opened).map_err(Error::from)
    }
}

impl Open {
    #[expect(
        clippy::disallowed_methods,
        reason = "the queue is bounded by the calls that wait; the task ends with what it is spawned for"
    )]
    async fn new(client: &Client) -> Result<Self> {
        let (requests, mut outbox) = mpsc::unbounded_channel();
        let outgoing = stream::poll_fn(move |cx| outbox.poll_recv(cx));
        let answer = client.tools().call_tools(Request::new(outgoing)).await?;
        let waiting = Arc::<Mutex<Waiting>>::default();
        let reader = read(answer.into_inner(), Arc::clone(&waiting));
        Ok(Self {
            requests,
            waiting,
            next: AtomicU64::new(1),
            reader: tokio::spawn(reader),
        })
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Hands out the responses, until the stream ends.
async fn read(mut responses: Streaming<CallToolsResponse>, waiting: Arc<Mutex<Waiting>>) {
    let ended = loop {
        match responses.message().await {
            Ok(Some(response)) => {
                let call = locked(&waiting).calls.remove(&response.number);
                // `None`: the call was given up.
                if let Some(call) = call {
                    let _ = call.send(result_of(response));
                }
            }
            Ok(None) => break Status::unavailable("the stream of calls has ended"),
            Err(status) => break status,
        }
    };
    let left = {
        let mut waiting = locked(&waiting);
        waiting.ended = Some(ended.clone());
        std::mem::take(&mut waiting.calls)
    };
    for call in left.into_values() {
        let _ = call.send(Err(ended.clone().into()));
    }
}

fn result_of(response: CallToolsResponse) -> Result<CallToolResponse> {
    let result = match response.outcome {
        Some(Outcome::Error(error)) => return Err(error.into()),
        Some(Outcome::Result(result)) => Some(result),
        None => None,
    };
    Ok(CallToolResponse {
        result,
        call_id: response.call_id,
    })
}

fn locked(waiting: &Mutex<Waiting>) -> MutexGuard<'_, Waiting> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One call that waits for its response; dropped before, it is cancelled.
struct Pending {
    open: Arc<Open>,
    number: u64,
    response: oneshot::Receiver<Result<CallToolResponse>>,
}

impl Pending {
    fn on(open: &Arc<Open>) -> Result<Self, Status> {
        let (call, response) = oneshot::channel();
        let mut waiting = locked(&open.waiting);
        if let Some(ended) = &waiting.ended {
            return Err(ended.clone());
        }
        let number = open.next.fetch_add(1, Ordering::Relaxed);
        waiting.calls.insert(number, call);
        drop(waiting);
        Ok(Self {
            open: Arc::clone(open),
            number,
            response,
        })
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let unanswered = locked(&self.open.waiting).calls.remove(&self.number);
        if unanswered.is_some() {
            let _ = self.open.requests.send(CallToolsRequest {
                number: self.number,
                action: Some(Action::Cancel(CancelCallOfStream {})),
                deadline: None,
            });
        }
    }
}
