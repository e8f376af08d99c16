//! From a call that was understood to what came of it: made in its caller's task, or kept.

use super::kept::{self, Waiter, Watcher, Work};
use super::ledger::Entered;
use super::operation::Operation;
use super::plan::Plan;
use super::rounds::Advance;
use super::{Answer, Calls, approval};
use crate::audit::{self, Trail};
use crate::base::{AppConnection, CallId, Clock, Deadline};
use crate::error::{Error, Reason, Result};
use crate::mcp::link::{CallOptions, Listeners};
use crate::mcp::protocol::RawJson;
use crate::model::call::{self as model, CallState, NewCall};
use crate::registry::Server;

/// A call that was understood and is not made yet.
#[derive(Debug)]
pub struct Prepared {
    pub(super) calls: Calls,
    pub(super) server: Server,
    pub(super) app: AppConnection,
    pub(super) deadline: Deadline,
    pub(super) plan: Plan,
    pub(super) listeners: Option<Listeners>,
    /// The id that the app gave it.
    pub(super) request_id: Option<String>,
    pub(super) detach: bool,
    /// What its RPC tells the audit log.
    pub(super) trail: Option<Trail>,
}

/// A call that was made.
#[derive(Debug)]
pub struct Made {
    calls: Calls,
    call_id: CallId,
    way: Way,
}

#[derive(Debug)]
enum Way {
    Plain(Box<Prepared>, Entered),
    Kept(Waiter),
}

impl Prepared {
    /// Makes the call. One that is kept is on disk then, and goes on by itself; a plain one goes on with [`Made::answer`].
    ///
    /// # Errors
    /// INVALID_FIELD if the request id names another call; `CALL_NOT_APPROVED`; TOO_MANY; STORE_FAILED.
    pub async fn make(mut self) -> Result<Made> {
        let call = model::Call {
            id: CallId::generate(),
            server: self.server.record.key.clone(),
            subject: self.plan.operation.subject(),
            request_id: self.request_id.clone(),
            detached: self.detach,
            state: CallState::Running,
            created: Clock.wall(),
            ended: None,
            expires: None,
            began: self
                .trail
                .as_ref()
                .map(|trail| Box::new(trail.origin().clone())),
        };
        let calls = self.calls.clone();
        // The rules are for calls that are to be made: one that was made is not made again, whatever they say by now.
        if let Some(known) = self.known().await? {
            let listeners = self.listeners.unwrap_or_default();
            if let Some(trail) = &self.trail {
                trail.joined(&known);
            }
            let waiter = calls.join(call.server.namespace, known, listeners).await?;
            return Ok(Made {
                call_id: waiter.call().id,
                way: Way::Kept(waiter),
                calls,
            });
        }
        let asked = approval::ask(
            &calls,
            &self.server,
            &mut self.plan,
            &call.id,
            self.deadline,
        )
        .await?;
        let arguments = calls.0.audit.arguments(|| self.plan.operation.arguments());
        if self.request_id.is_none() && !self.detach && asked.is_none() {
            let call_id = call.id.clone();
            let listeners = self.listeners.clone().unwrap_or_default();
            let ledger = &calls.0.ledger;
            if let Some(trail) = &self.trail {
                trail.begun();
            }
            let entered = Entered::new(ledger, call, listeners, self.deadline, arguments);
            return Ok(Made {
                calls,
                call_id,
                way: Way::Plain(Box::new(self), entered),
            });
        }
        let new = NewCall {
            digest: self.digest(),
            plan: kept::encode(&self.plan)?,
            call,
        };
        let work = Work {
            plan: self.plan,
            replies: None,
        };
        let listeners = self.listeners.unwrap_or_default();
        let asked = asked.into_iter().collect();
        let (trail, call_id) = (self.trail, new.call.id.clone());
        if let Some(trail) = &trail {
            trail.begun();
        }
        // On a task of its own: a caller that leaves in the middle leaves nothing half begun.
        let begun = {
            let calls = calls.clone();
            let begin = async move { calls.begin(new, work, listeners, asked, arguments).await };
            self.calls.0.tasks.spawn(begin)
        };
        let lost = || Err(Error::internal("the task of a call ended early"));
        let waiter = begun.await.unwrap_or_else(|_| lost())?;
        let made = waiter.call().id;
        if let Some(trail) = trail.filter(|_| made != call_id) {
            trail.joined(&made);
        }
        Ok(Made {
            call_id: made,
            way: Way::Kept(waiter),
            calls,
        })
    }

    /// The call that was made before under this request id.
    async fn known(&self) -> Result<Option<CallId>> {
        let Some(request_id) = &self.request_id else {
            return Ok(None);
        };
        let namespace = self.server.record.key.namespace.clone();
        let store = &self.calls.0.store;
        store
            .known_call(namespace, request_id.clone(), self.digest())
            .await
    }

    /// Recognises what is asked for.
    fn digest(&self) -> Vec<u8> {
        let asked = (
            self.server.record.key.id.as_str(),
            &self.plan.operation,
            &self.plan.meta,
        );
        let text = RawJson::encode(&asked);
        aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.bytes())
            .as_ref()
            .to_vec()
    }

    /// Makes a call that nothing is kept of, in the caller's task.
    async fn run(mut self, entered: Entered) -> Result<Answer> {
        let Some(entry) = entered.entry() else {
            return Err(Error::internal("a call was kept before it began"));
        };
        let call = entry.call();
        let options = CallOptions {
            call_id: call.id.clone(),
            deadline: self.deadline,
            call_timeout: self.plan.call_timeout,
            idle_timeout: self.plan.idle_timeout,
            events: self.listeners.take(),
        };
        let calls = &self.calls;
        let advance = calls.advance(&self.server, &self.app, &options, &mut self.plan, None);
        let advanced = tokio::select! {
            biased;
            advanced = advance => advanced,
            () = entry.cancel.cancelled() => {
                Err(Error::new(Reason::Cancelled, "the call was cancelled with CancelCall"))
            }
        };
        let advanced = advanced.inspect_err(|error| entry.has_ended(error.reason().as_str()))?;
        match advanced {
            Advance::Done(result, catalog) => {
                if entry.is_watched() {
                    let of_tool = matches!(self.plan.operation, Operation::Tool { .. });
                    entry.has_ended(audit::result_outcome(of_tool, |name| {
                        result
                            .get(name)
                            .is_some_and(|value| value.as_str() == "true")
                    }));
                }
                let output = match (&self.plan.operation, self.server.record.spec.check_results) {
                    (Operation::Tool { name, .. }, true) => {
                        let tool = catalog.tool(name);
                        tool.and_then(|tool| tool.output_schema.clone())
                    }
                    _ => None,
                };
                Ok(Answer {
                    call_id: call.id,
                    result,
                    output,
                })
            }
            Advance::Rest(asked) => {
                // The caller's listeners are its own no longer: the entry has them.
                drop(options);
                let Some(entry) = entered.keep() else {
                    return Err(Error::internal("a call was kept before it rested"));
                };
                // Meanwhile the server may have got another id; from here on the store knows of the call and sees to that.
                let server = calls.0.registry.again(&self.server);
                entry.is_now(model::Call {
                    server: server.record.key.clone(),
                    ..entry.call()
                });
                let waiter = calls.keep(&entry, &self.plan, asked).await?;
                drop(entry);
                answer_of(calls, waiter).await
            }
        }
    }
}

async fn answer_of(calls: &Calls, waiter: Waiter) -> Result<Answer> {
    let outcome = waiter.outcome().await?;
    calls.told(&waiter.call(), &outcome)
}

impl Made {
    /// The call's id.
    #[must_use]
    pub fn id(&self) -> &CallId {
        &self.call_id
    }

    /// What came of it if it has ended; nothing is waited for.
    ///
    /// # Errors
    /// As [`Made::answer`].
    pub fn answer_so_far(&self) -> Result<Option<Answer>> {
        let Way::Kept(waiter) = &self.way else {
            return Ok(None);
        };
        let ended = waiter.ended();
        ended
            .map(|outcome| self.calls.told(&waiter.call(), &outcome))
            .transpose()
    }

    /// Waits for the result, through every question. Dropping the future cancels the call at the server at once, unless it
    /// is detached or somebody else waits for it too.
    ///
    /// # Errors
    /// `TOOL_NOT_FOUND`, `TOOL_NOT_ALLOWED`; why the server cannot be used; `UPSTREAM_ERROR`; `OUTCOME_UNKNOWN`;
    /// `CANCELLED`; `DRAINING` if it waits on when the daemon stops.
    pub async fn answer(self) -> Result<Answer> {
        match self.way {
            Way::Plain(prepared, entered) => Box::pin(prepared.run(entered)).await,
            Way::Kept(waiter) => answer_of(&self.calls, waiter).await,
        }
    }
}

/// What names a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Name {
    /// Its id.
    Id(CallId),
    /// The id that an app gave it.
    Request(String),
}

/// A call that was found. Looking at it keeps nothing alive.
#[derive(Debug)]
pub struct Found {
    pub(super) calls: Calls,
    pub(super) watcher: Watcher,
}

impl Found {
    /// The call.
    ///
    /// # Errors
    /// `STORE_FAILED`.
    pub async fn call(&self) -> Result<model::Call> {
        let call = self.watcher.call();
        if call.state != CallState::Running {
            return Ok(call);
        }
        let with_questions = self.calls.with_questions(vec![call]).await?;
        let mut all = with_questions.into_iter();
        all.next()
            .ok_or_else(|| Error::internal("a call was lost on the way"))
    }

    /// What came of it, if it has ended.
    #[must_use]
    pub fn outcome(&self) -> Option<Result<Answer>> {
        let outcome = self.watcher.ended()?;
        Some(self.calls.told(&self.watcher.call(), &outcome))
    }

    /// Waits for its end. Dropping the future does nothing to it.
    pub async fn wait(&self) {
        self.watcher.over().await;
    }
}
