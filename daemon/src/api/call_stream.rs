//! `ToolService.CallTools`: many calls over one stream.
//!
//! One task reads what the app wants, every call is a task of its own, and responses go out in the order in which they come.
//! Never keeps more than `limits.calls_per_stream` calls: a call is under way until its response was handed to the gRPC library.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use futures_core::Stream;
use futures_util::stream;
use mcp_sidecar_proto::v1;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;
use tonic::{Status, Streaming};
use v1::call_tools_request::Action;
use v1::call_tools_response::Outcome;

use super::context::{RequestContext, bounded};
use super::status::{explained, to_call_error};
use super::tools::Tools;
use super::{content, input};
use crate::audit::{self, Trail};
use crate::base::{Clock, Deadline};
use crate::error::{Error, Reason, Result};

/// Responses that wait to be taken; with more than that, the tasks of the calls wait.
const WAITING: usize = 64;

/// Makes the calls that come in. Dropping the stream cancels all that are under way, but those that were detached.
pub(super) fn responses(
    tools: Tools,
    context: RequestContext,
    requests: Streaming<v1::CallToolsRequest>,
) -> impl Stream<Item = Result<v1::CallToolsResponse, Status>> + use<> {
    // What is audited is each call.
    context.note(Trail::begun);
    let (outbox, inbox) = mpsc::channel(WAITING);
    let (deadline, tasks) = (context.deadline, tools.0.tasks.clone());
    let gone = CancellationToken::new();
    let reader = Reader {
        under_way: UnderWay::new(tools.0.calls_per_stream),
        gone: gone.clone(),
        outbox,
        tools,
        context,
    };
    let outgoing = Outgoing {
        inbox,
        reader: Some(AbortOnDropHandle::new(tasks.spawn(reader.read(requests)))),
        _gone: gone.drop_guard(),
    };
    bounded(deadline, stream::unfold(outgoing, Outgoing::next))
}

/// Reads what the app wants.
struct Reader {
    tools: Tools,
    context: RequestContext,
    under_way: UnderWay,
    /// Cancelled when nobody wants responses any more.
    gone: CancellationToken,
    outbox: mpsc::Sender<Response>,
}

/// A response, and the place of its call until it is taken.
type Response = (v1::CallToolsResponse, Option<Place>);

impl Reader {
    /// Reads to the end. The status with which the stream is to end when all calls have.
    async fn read(self, mut requests: Streaming<v1::CallToolsRequest>) -> Result<(), Status> {
        let (shutdown, gone) = (self.tools.0.shutdown.clone(), self.gone.clone());
        let mut shutdown = std::pin::pin!(shutdown.cancelled_owned());
        let mut gone = std::pin::pin!(gone.cancelled_owned());
        let ended = loop {
            let request = tokio::select! {
                biased;
                () = &mut gone => return Ok(()),
                // What is not read is not made; what is under way has until the daemon's patience ends.
                () = &mut shutdown => {
                    return Err(Error::new(Reason::Draining, "the daemon is stopping").into());
                }
                request = requests.message() => request,
            };
            match request {
                Ok(Some(request)) => {
                    if let Err(error) = self.take(request).await {
                        break Status::from(error);
                    }
                }
                Ok(None) => return Ok(()),
                Err(status) => break explained(&status).unwrap_or(status),
            }
        };
        self.gone.cancel();
        Err(ended)
    }

    /// # Errors
    /// INVALID_FIELD if the number is in use: whose response would be whose?
    async fn take(&self, request: v1::CallToolsRequest) -> Result<()> {
        let number = request.number;
        let refused = match request.action {
            Some(Action::Cancel(_)) => {
                self.under_way.cancel(number);
                return Ok(());
            }
            Some(Action::Call(call)) => match self.under_way.enter(number, &self.gone)? {
                Some(place) => {
                    self.begin(call, request.deadline, place);
                    return Ok(());
                }
                None => self.under_way.full(),
            },
            None => Error::invalid("action", "say what to do: `call` or `cancel`"),
        };
        // Nothing more is read until there is room for it. If the app has gone, nobody is to be told.
        let response = response(number, Err(refused), String::new());
        let _ = self.outbox.send((response, None)).await;
        Ok(())
    }

    fn begin(&self, call: v1::ToolCall, deadline: Option<prost_types::Duration>, place: Place) {
        let mut context = self.context.clone();
        context.trail = context
            .trail
            .map(|trail| Trail::new(trail.origin().clone()));
        let one = One {
            tools: self.tools.clone(),
            context,
            call_id: String::new(),
        };
        let outbox = self.outbox.clone();
        self.tools.0.tasks.spawn(async move {
            let response = one.make(call, deadline, &place).await;
            let _ = outbox.send((response, Some(place))).await;
        });
    }
}

/// One call of a stream.
struct One {
    tools: Tools,
    context: RequestContext,
    /// Empty until the call has begun.
    call_id: String,
}

impl One {
    /// Makes it. Its place being cancelled, or its deadline, ends it.
    async fn make(
        mut self,
        call: v1::ToolCall,
        deadline: Option<prost_types::Duration>,
        place: &Place,
    ) -> v1::CallToolsResponse {
        let began = Clock.now();
        let cancelled = place.cancelled.clone();
        let outcome = tokio::select! {
            biased;
            outcome = self.result(call, deadline) => outcome,
            () = cancelled.cancelled() => {
                Err(Error::new(Reason::Cancelled, "the call was cancelled"))
            }
        };
        self.write_down(outcome.as_ref().err(), began);
        response(place.number, outcome, self.call_id)
    }

    async fn result(
        &mut self,
        call: v1::ToolCall,
        deadline: Option<prost_types::Duration>,
    ) -> Result<Option<v1::ToolResult>> {
        if let Some(bound) = input::bound(deadline, "deadline")? {
            self.context.deadline = self.context.deadline.min(Deadline::after(bound));
        }
        let context = &self.context;
        let audit = &self.tools.0.audit;
        if context.trail.is_some() && audit.is_full() {
            audit.clone().room(context.deadline).await?;
        }
        let detach = call.detach;
        let prepared = self.tools.prepare(Some(call), context, None)?;
        let made = context.within(prepared.make()).await?;
        self.call_id = made.id().to_string();
        let answer = if detach {
            made.answer_so_far()?
        } else {
            Some(context.within(made.answer()).await?)
        };
        answer
            .map(|answer| content::tool_answer(&answer, &self.tools.0.checker))
            .transpose()
    }

    /// In the audit log, unless the call has a record of its own.
    fn write_down(&self, error: Option<&Error>, began: Instant) {
        self.context.note(|trail| {
            let outcome = error.map_or(audit::OK, |error| error.reason().as_str());
            let took = Clock.now().saturating_duration_since(began);
            self.tools
                .0
                .audit
                .rpc(trail, audit::TOOL_CALL, outcome, took);
        });
    }
}

fn response(
    number: u64,
    outcome: Result<Option<v1::ToolResult>>,
    call_id: String,
) -> v1::CallToolsResponse {
    let outcome = match outcome {
        Ok(result) => result.map(Outcome::Result),
        Err(error) => Some(Outcome::Error(to_call_error(&error))),
    };
    v1::CallToolsResponse {
        number,
        outcome,
        call_id,
    }
}

/// What the app gets.
struct Outgoing {
    inbox: mpsc::Receiver<Response>,
    /// `None` when its word was passed on.
    reader: Option<AbortOnDropHandle<Result<(), Status>>>,
    _gone: DropGuard,
}

impl Outgoing {
    async fn next(mut self) -> Option<(Result<v1::CallToolsResponse, Status>, Self)> {
        if let Some((response, place)) = self.inbox.recv().await {
            drop(place);
            return Some((Ok(response), self));
        }
        // The reader has ended, and so have all calls: they were what could send.
        let ended = self.reader.take()?.await;
        let lost = |_| Err(Error::internal("the task of a stream ended early").into());
        let status = ended.unwrap_or_else(lost).err()?;
        Some((Err(status), self))
    }
}

/// The calls of a stream that are under way, by their numbers. Clones share them.
#[derive(Clone)]
struct UnderWay {
    calls: Arc<Mutex<HashMap<u64, CancellationToken>>>,
    limit: usize,
}

/// The place of a call among those that are under way; free again when it is dropped.
struct Place {
    number: u64,
    cancelled: CancellationToken,
    under_way: UnderWay,
}

impl UnderWay {
    fn new(limit: usize) -> Self {
        Self {
            calls: Arc::default(),
            limit,
        }
    }

    fn calls(&self) -> MutexGuard<'_, HashMap<u64, CancellationToken>> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for one more; `None` if all are taken.
    ///
    /// # Errors
    /// INVALID_FIELD `number` if it is in use.
    fn enter(&self, number: u64, gone: &CancellationToken) -> Result<Option<Place>> {
        let mut calls = self.calls();
        let full = calls.len() >= self.limit;
        let Entry::Vacant(vacant) = calls.entry(number) else {
            return Err(Error::invalid(
                "number",
                format!("{number} is the number of a call whose response was not sent yet"),
            ));
        };
        if full {
            return Ok(None);
        }
        let cancelled = vacant.insert(gone.child_token()).clone();
        Ok(Some(Place {
            number,
            cancelled,
            under_way: self.clone(),
        }))
    }

    fn full(&self) -> Error {
        Error::new(
            Reason::TooManyCalls,
            format!(
                "the stream has {} calls under way, as many as limits.calls_per_stream allows; read responses, or open another \
                 stream",
                self.limit
            ),
        )
    }

    fn cancel(&self, number: u64) {
        if let Some(cancelled) = self.calls().get(&number) {
            cancelled.cancel();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.under_way.calls().remove(&self.number);
    }
}
