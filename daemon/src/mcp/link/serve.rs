//! What the server sends unasked: notifications, and in the legacy era requests.
//!
//! Every request is answered by a task of its own, so that a question which waits for a human holds up nothing else.
//! Those tasks end with the link, with the call they belong to, or when the server no longer wants an answer.

use std::sync::{Arc, PoisonError};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::call::{Pause, Running};
use super::{CallEvent, Link, closed_error};
use crate::error::{Error, Reason, RpcError};
use crate::mcp::asker::{Asker, Need, Unanswered};
use crate::mcp::protocol::{self, META_PROGRESS_TOKEN, Message, ObjectWriter, RawJson, method};
use crate::model::spec::Abilities;
use crate::model::status::Era;

/// Most requests of one server that are being answered at a time.
const MAX_ASKED: usize = 64;

/// Most notes of one server, that what was opened for a question is done with, that are being written at a time.
pub(super) const MAX_COMPLETIONS: usize = 64;

/// Key of `_meta` under which messages about a task name it.
const META_RELATED_TASK: &str = "io.modelcontextprotocol/related-task";

/// Takes what arrives outside of our exchanges.
pub(super) async fn inbound(link: Arc<Link>, mut messages: mpsc::Receiver<Message>) {
    loop {
        tokio::select! {
            message = messages.recv() => match message {
                Some(message) => link.receive(message, None),
                None => return,
            },
            () = link.closed.cancelled() => return,
        }
    }
}

impl Link {
    /// Handles a message that is no response: on the exchange of a call, or from elsewhere.
    pub(in crate::mcp) fn receive(
        self: &Arc<Self>,
        message: Message,
        origin: Option<&Arc<Running>>,
    ) {
        self.heard();
        match message {
            Message::Response { .. } => {} // to a request that is no longer waited for
            Message::Notification { method, params } => {
                self.notified(&method, params.unwrap_or(RawJson::EMPTY_OBJECT), origin);
            }
            // Modern servers must not, and a modern client must not answer (MCP 2026-07-28 basic/transports).
            Message::Request { method, .. } if self.dialect.era() == Era::Modern => {
                tracing::debug!(method, "ignored a request of a modern server");
            }
            Message::Request { id, method, params } => self.serve(id, method, params, origin),
        }
    }

    fn serve(
        self: &Arc<Self>,
        id: RawJson,
        method: String,
        params: Option<RawJson>,
        origin: Option<&Arc<Running>>,
    ) {
        let withdrawn = CancellationToken::new();
        {
            let mut asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
            if asked.len() >= MAX_ASKED {
                // Not even refused: every answer would be one more request under way to a server that floods us.
                tracing::debug!(method, "ignored a request: too many are being answered");
                return;
            }
            asked.insert(id.as_str().to_owned(), withdrawn.clone());
        }
        let (link, origin) = (Arc::clone(self), origin.cloned());
        self.tasks.spawn(async move {
            let params = params.unwrap_or(RawJson::EMPTY_OBJECT);
            let task = related_task(&params);
            let origin = origin.or_else(|| link.by_task(task.as_ref()?));
            let outcome = tokio::select! {
                outcome = link.answer(&method, &params, origin) => Some(outcome),
                () = withdrawn.cancelled() => None,
            };
            // A server that has withdrawn its request, or that is being left, gets no answer.
            if let Some(outcome) = outcome
                && !link.closed.is_cancelled()
            {
                let outcome = outcome.map(|answer| about_task(answer, task.as_ref()));
                link.respond(&id, &outcome.map_err(Unanswered::into_rpc))
                    .await;
            }
            link.asked
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .remove(id.as_str());
        });
    }

    async fn respond(&self, id: &RawJson, outcome: &Result<RawJson, RpcError>) {
        let body = protocol::encode_response(id, outcome);
        let headers = self.dialect.message_headers("");
        let sending =
            tokio::time::timeout(self.request_timeout, self.transport.send(body, &headers));
        tokio::select! {
            sent = sending => match sent {
                Ok(Ok(())) => {}
                Ok(Err(loss)) => tracing::debug!(error = %loss.error, "an answer did not reach the server"),
                Err(_) => tracing::debug!("the server did not take an answer in time"),
            },
            () = self.closed.cancelled() => {}
        }
    }

    fn notified(self: &Arc<Self>, method: &str, params: RawJson, origin: Option<&Arc<Running>>) {
        match method {
            method::TOOLS_CHANGED => self.report(|news| news.tools = true),
            method::RESOURCES_CHANGED => self.report(|news| news.resources = true),
            method::PROMPTS_CHANGED => self.report(|news| news.prompts = true),
            method::RESOURCE_UPDATED => {
                if let Some(uri) = params.get("uri").and_then(|uri| uri.read::<String>()) {
                    self.subscriptions.updated(&uri);
                }
            }
            method::PROGRESS => {
                if let Some(call) = origin.cloned().or_else(|| self.by_progress(&params)) {
                    call.tell(&CallEvent::Progress(params));
                    call.sign_of_life();
                }
            }
            method::LOG => match origin {
                Some(call) => call.log(params),
                None => {
                    for call in self.calls() {
                        call.log(params.clone());
                    }
                }
            },
            method::ELICITATION_COMPLETE => self.completed(&params),
            method::CANCELLED => {
                let id = params.get("requestId");
                let asked = self.asked.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(withdrawn) = id.and_then(|id| asked.get(id.as_str())) {
                    withdrawn.cancel();
                }
            }
            _ => tracing::debug!(method, "ignored a notification"),
        }
    }

    /// What the user opened for a question is done with (MCP 2025-11-25 client/elicitation, "Completion Notifications").
    fn completed(self: &Arc<Self>, params: &RawJson) {
        let id = params.get("elicitationId");
        let Some(id) = id.and_then(|id| id.read::<String>()) else {
            return;
        };
        let Ok(room) = Arc::clone(&self.completions).try_acquire_owned() else {
            tracing::debug!(
                "ignored the end of something that was opened: too many are being noted"
            );
            return;
        };
        let link = Arc::clone(self);
        self.tasks.spawn(async move {
            link.asker.completed(id).await;
            drop(room);
        });
    }

    /// The call that progress on a shared stream is about.
    fn by_progress(&self, params: &RawJson) -> Option<Arc<Running>> {
        let token: u64 = params.get(META_PROGRESS_TOKEN)?.read()?;
        self.calls()
            .into_iter()
            .find(|call| call.request_id() == token)
    }

    /// The call that runs as the task which a request names.
    fn by_task(&self, related: &RawJson) -> Option<Arc<Running>> {
        let id: String = related.get("taskId")?.read()?;
        let mut calls = self.calls().into_iter();
        calls.find(|call| call.task_id() == Some(&id))
    }

    fn calls(&self) -> Vec<Arc<Running>> {
        let calls = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        calls.values().cloned().collect()
    }

    /// Answers one request of the server. Dropping the future withdraws its question.
    ///
    /// # Errors
    /// See [`Unanswered`].
    pub(super) async fn answer(
        &self,
        method: &str,
        params: &RawJson,
        origin: Option<Arc<Running>>,
    ) -> Result<RawJson, Unanswered> {
        if method == method::PING {
            return Ok(RawJson::EMPTY_OBJECT);
        }
        // Whoever looks after a task is told with every look; the rest of the time it is what was told with the call.
        let told = origin
            .as_ref()
            .map_or(Abilities::NOTHING, |call| call.told());
        let told = told.union(self.asker.abilities());
        let need = self.asker.consider(method, params, told)?;
        // A request on a shared stream does not say which call it is about: with one call running it is that one.
        let calls = origin.map_or_else(|| self.calls(), |call| vec![call]);
        let call = if let [call] = calls.as_slice() {
            Some(Arc::clone(call))
        } else {
            None
        };
        let question = match need {
            Need::Nobody(answer) => return Ok(answer),
            Need::Human(question) => question,
            Need::Declined(question) => {
                let call = call.as_ref().map(|call| &call.call_id);
                return self.asker.decline(method, question, call).await;
            }
        };
        let over = call
            .as_ref()
            .map(|call| call.over.clone())
            .unwrap_or_default();
        let _pause = Pause::new(calls);
        // However the wait ends, the question ends as void if the server was lost, and as cancelled if only nobody wants the
        // answer any longer.
        let lost = call.as_ref().map(|call| call.lost.clone());
        let gone = lost.into_iter().chain([self.closed.clone()]).collect();
        let mut ticket = tokio::select! {
            biased;
            () = self.closed.cancelled() => return Err(Unanswered::Failed(closed_error())),
            ticket = self.asker.ask(question, call.as_deref(), gone) => ticket?,
        };
        // The app may be slow to read its own call's events: that must not hold up the answer.
        let id = ticket.id().clone();
        let announced = async {
            if let Some(call) = &call {
                call.announce(vec![id]).await;
            }
            std::future::pending::<std::convert::Infallible>().await
        };
        tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(Unanswered::Failed(closed_error())),
            () = over.cancelled() => {
                let ended = Error::new(Reason::Cancelled, "the call has ended");
                Err(Unanswered::Failed(ended))
            }
            answer = ticket.answered() => Asker::encode(method, answer),
            never = announced => match never {},
        }
    }
}

/// The task that a request of the server belongs to (MCP 2025-11-25 basic/utilities/tasks, "Related Task Metadata").
fn related_task(params: &RawJson) -> Option<RawJson> {
    let related = params.get("_meta")?.get(META_RELATED_TASK)?;
    related.is_object().then_some(related)
}

/// An answer, which has to name the task that its request belongs to.
fn about_task(answer: RawJson, related: Option<&RawJson>) -> RawJson {
    let (Some(related), Some(members)) = (related, answer.members()) else {
        return answer;
    };
    let mut meta = ObjectWriter::new();
    meta.raw(META_RELATED_TASK, related.as_str());
    let mut all = ObjectWriter::new();
    for (name, value) in &members {
        all.raw(name, value.as_str());
    }
    all.raw("_meta", meta.finish().as_str());
    all.finish()
}
