//! The life of calls that are kept: on disk from their beginning, or from when they first rest, to their end.
//!
//! A call that rests is in the store and the ledger and nowhere else; no task waits for it. The update log says when its
//! questions have ended, and the store lets exactly one take it up again. What ends a call elsewhere, such as the removal of
//! its server, comes from the log too.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use super::ledger::{Entry, Stage};
use super::plan::Plan;
use super::rounds::Advance;
use super::{Answer, Calls};
use crate::audit::{self, Arguments};
use crate::base::{AppConnection, CallId, Clock, Deadline, Namespace, Revision};
use crate::error::{Error, Reason, Result};
use crate::mcp::era::Replies;
use crate::mcp::link::{CallOptions, Listeners};
use crate::mcp::protocol::RawJson;
use crate::model::call::{Begun, Call, GoneOn, NewCall, Outcome};
use crate::model::question::{Question, QuestionState};
use crate::model::update::Body;
use crate::registry::Server;
use crate::store::already_ended;

/// Updates that are looked at together.
const PAGE: usize = 256;
/// For how long a page that a server wants opened is waited for after somebody has agreed to open it.
const OPENED: Duration = Duration::from_hours(1);

/// A claim to the outcome of a call that is kept. When the last one is dropped before the call has ended, the call is
/// cancelled, unless it is detached, or rests while the daemon stops.
#[derive(Debug)]
pub(super) struct Waiter {
    calls: Calls,
    entry: Arc<Entry>,
}

impl Waiter {
    fn new(calls: &Calls, entry: &Arc<Entry>) -> Self {
        entry.join();
        Self {
            calls: calls.clone(),
            entry: Arc::clone(entry),
        }
    }

    /// The call.
    pub(super) fn call(&self) -> Call {
        self.entry.call()
    }

    /// What came of the call, if it has ended.
    pub(super) fn ended(&self) -> Option<Arc<Outcome>> {
        match &*self.entry.stage().borrow() {
            Stage::Ended(outcome) => Some(Arc::clone(outcome)),
            _ => None,
        }
    }

    /// Waits for the end of the call.
    ///
    /// # Errors
    /// DRAINING if the daemon stops while the call rests: it goes on after the next start.
    pub(super) async fn outcome(&self) -> Result<Arc<Outcome>> {
        let mut stage = self.entry.stage();
        loop {
            let rests = match &*stage.borrow_and_update() {
                Stage::Ended(outcome) => return Ok(Arc::clone(outcome)),
                stage => matches!(stage, Stage::Rests),
            };
            tokio::select! {
                changed = stage.changed() => if changed.is_err() {
                    return Err(Error::internal("a call was forgotten before its end"));
                },
                () = self.calls.0.draining.cancelled(), if rests => {
                    let call = self.entry.call();
                    let error = Error::new(
                        Reason::Draining,
                        format!("the daemon is stopping; the call `{}` waits on, and WaitCall finds it", call.id),
                    );
                    return Err(error.with("call_id", call.id.as_str()));
                }
            }
        }
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        if !self.entry.leave() {
            return;
        }
        let call = self.entry.call();
        let rests = matches!(&*self.entry.stage().borrow(), Stage::Rests);
        if call.detached || call.state.is_end() || (rests && self.calls.0.draining.is_cancelled()) {
            return;
        }
        let (calls, entry) = (self.calls.clone(), Arc::clone(&self.entry));
        self.calls.0.tasks.spawn(async move {
            let gone = Error::new(Reason::Cancelled, "nobody waits for the call any more");
            let ended = calls.end_by(&call.server.namespace, &call.id, gone.clone());
            match ended.await {
                Ok(()) => {}
                Err(error) if error.reason() == Reason::AlreadyResolved => {}
                // Its caller left before it was on disk.
                Err(error) if error.reason() == Reason::CallNotFound => {
                    calls.forget(&entry, Outcome::Cancelled(gone));
                }
                Err(error) => {
                    tracing::warn!(call_id = %call.id, %error, "a call that nobody waits for could not be ended");
                }
            }
        });
    }
}

/// A look at a call, which keeps nothing alive.
#[derive(Debug)]
pub(super) struct Watcher(Arc<Entry>);

impl Watcher {
    /// The call.
    pub(super) fn call(&self) -> Call {
        self.0.call()
    }

    /// What came of the call, if it has ended.
    pub(super) fn ended(&self) -> Option<Arc<Outcome>> {
        match &*self.0.stage().borrow() {
            Stage::Ended(outcome) => Some(Arc::clone(outcome)),
            _ => None,
        }
    }

    /// Waits for its end.
    pub(super) async fn over(&self) {
        let mut stage = self.0.stage();
        let _ended = stage
            .wait_for(|stage| matches!(stage, Stage::Ended(_)))
            .await;
    }
}

impl Calls {
    /// Begins a call that is kept from the beginning, or joins the one that was made before under its request id. With
    /// `asked` it rests at once, until they are answered.
    ///
    /// # Errors
    /// INVALID_FIELD if the request id names another call; STORE_FAILED; TOO_MANY.
    pub(super) async fn begin(
        &self,
        new: NewCall,
        work: Work,
        listeners: Listeners,
        asked: Vec<Question>,
        arguments: Option<Arguments>,
    ) -> Result<Waiter> {
        let admitted = self.admit();
        let id = new.call.id.clone();
        let namespace = new.call.server.namespace.clone();
        let rests = !asked.is_empty();
        let stage = if rests { Stage::Rests } else { Stage::Kept };
        // In the ledger first: whoever joins it by its request id finds it there.
        let entry = self
            .0
            .ledger
            .enter(new.call.clone(), stage, listeners.clone(), arguments);
        if let Err(error) = admitted {
            self.forget(&entry, Outcome::Error(error.clone()));
            return Err(error);
        }
        // Held from now on, so that a caller who is gone before it begins is gone.
        let waiter = Waiter::new(self, &entry);
        let begun = match self.0.store.begin_call(new.clone()).await {
            Ok(Begun::New) if rests => {
                let ids = asked.iter().map(|question| question.id.clone()).collect();
                let rested = self.0.inputs.rest(new, asked).await;
                if rested.is_ok() {
                    self.announce(&entry, ids);
                }
                rested.map(|()| Begun::New)
            }
            begun => begun,
        };
        match begun {
            Ok(Begun::New) => {
                if !rests {
                    self.drive(&entry, work);
                }
                Ok(waiter)
            }
            Ok(Begun::Known(known)) => {
                entry.is_another();
                self.forget(
                    &entry,
                    Outcome::Cancelled(Error::internal("it was another call")),
                );
                drop(waiter);
                self.join(namespace, known, listeners).await
            }
            Err(error) => {
                let outcome = Outcome::Error(error.clone());
                // It may have been begun, and not laid to rest.
                let _gone = self.0.store.end_call(namespace, id, outcome.clone()).await;
                self.forget(&entry, outcome);
                Err(error)
            }
        }
    }

    /// Waits for a call with others.
    ///
    /// # Errors
    /// `CALL_NOT_FOUND`.
    pub(super) async fn join(
        &self,
        namespace: Namespace,
        id: CallId,
        listeners: Listeners,
    ) -> Result<Waiter> {
        let Watcher(entry) = self.watch(namespace, id).await?;
        entry.listeners.add_all(&listeners);
        Ok(Waiter::new(self, &entry))
    }

    /// Looks at a call.
    ///
    /// # Errors
    /// `CALL_NOT_FOUND`, `STORE_FAILED`.
    pub(super) async fn watch(&self, namespace: Namespace, id: CallId) -> Result<Watcher> {
        let held = self.0.ledger.get(&id);
        if let Some(entry) = held.filter(|entry| entry.call().server.namespace == namespace) {
            return Ok(Watcher(entry));
        }
        let (call, outcome) = self.0.store.call(namespace, id).await?;
        // It has ended since: what is on disk and has not is in the ledger.
        let outcome = outcome.unwrap_or_else(|| Outcome::Error(interrupted()));
        Ok(Watcher(Arc::new(Entry::ended(call, outcome))))
    }

    /// Lays a call to rest that its caller made by itself until now, and goes on as its waiter.
    ///
    /// # Errors
    /// TOO_MANY, STORE_FAILED.
    pub(super) async fn keep(
        &self,
        entry: &Arc<Entry>,
        plan: &Plan,
        asked: Vec<Question>,
    ) -> Result<Waiter> {
        let waiter = Waiter::new(self, entry);
        let admitted = self.admit();
        if let Err(error) = admitted {
            self.forget(entry, Outcome::Error(error.clone()));
            return Err(error);
        }
        entry.reach(Stage::Rests);
        let rested = self.rest(entry, plan, asked).await;
        if let Err(error) = rested {
            self.forget(entry, Outcome::Error(error.clone()));
            return Err(error);
        }
        Ok(waiter)
    }

    /// Whether one more call may be kept.
    fn admit(&self) -> Result<()> {
        let (held, most) = (self.0.ledger.count(), self.0.settings.calls);
        if held <= most {
            return Ok(());
        }
        Err(Error::new(
            Reason::TooManyCalls,
            format!("{held} calls are under way or wait for answers, and {most} is the limit (limits.calls)"),
        )
        .retry_after(Duration::from_secs(1)))
    }

    async fn rest(&self, entry: &Arc<Entry>, plan: &Plan, asked: Vec<Question>) -> Result<()> {
        let ids: Vec<_> = asked.iter().map(|question| question.id.clone()).collect();
        let new = NewCall {
            call: entry.call(),
            digest: Vec::new(),
            plan: encode(plan)?,
        };
        // Before it is seen to rest, so that nobody takes it up while this still holds it.
        entry.reach(Stage::Rests);
        self.0.inputs.rest(new, asked).await?;
        self.announce(entry, ids);
        Ok(())
    }

    fn announce(&self, entry: &Arc<Entry>, ids: Vec<crate::base::ElicitationId>) {
        let listeners = entry.listeners.clone();
        let stage = entry.stage();
        self.0.tasks.spawn(async move {
            let mut stage = stage;
            // An app that does not read holds up nothing, and is told no more once the call is over.
            tokio::select! {
                () = listeners.announce(ids) => {}
                _ended = stage.wait_for(|stage| matches!(stage, Stage::Ended(_))) => {}
            }
        });
    }

    /// Works on a call in a task of its own, until it has ended or rests.
    pub(super) fn drive(&self, entry: &Arc<Entry>, work: Work) {
        let (calls, entry) = (self.clone(), Arc::clone(entry));
        self.0.drivers.spawn(async move {
            let call = entry.call();
            let Work { mut plan, replies } = work;
            let outcome = tokio::select! {
                biased;
                () = entry.cancel.cancelled() => return,
                outcome = calls.work(&call, &mut plan, replies, &entry.listeners) => outcome,
            };
            let outcome = match outcome {
                Ok(Advance::Done(result, _)) => Outcome::Result(result.as_str().to_owned()),
                Ok(Advance::Rest(asked)) => match calls.rest(&entry, &plan, asked).await {
                    Ok(()) => return,
                    // Cancelled meanwhile: whoever did it says so.
                    Err(ended) if ended.reason() == Reason::AlreadyResolved => return,
                    Err(error) => Outcome::Error(error),
                },
                Err(error) => Outcome::Error(error),
            };
            calls.finish(&entry, outcome).await;
        });
    }

    async fn work(
        &self,
        call: &Call,
        plan: &mut Plan,
        replies: Option<Replies>,
        listeners: &Listeners,
    ) -> Result<Advance> {
        let key = &call.server;
        let server: Server = self.0.registry.get(&key.namespace, key.id.as_str())?;
        let options = CallOptions {
            call_id: call.id.clone(),
            deadline: Deadline::NONE,
            call_timeout: plan.call_timeout,
            idle_timeout: plan.idle_timeout,
            events: Some(listeners.clone()),
        };
        // A call that goes on without its caller is an app of its own to the server; what is opened for it ends with it.
        let over = CancellationToken::new();
        let _over = over.clone().drop_guard();
        let app = AppConnection::new(plan.user(), over);
        self.advance(&server, &app, &options, plan, replies).await
    }

    /// A call has ended: writes that down, and tells whoever waits.
    async fn finish(&self, entry: &Arc<Entry>, outcome: Outcome) {
        let call = entry.call();
        let namespace = call.server.namespace.clone();
        let ended = self
            .0
            .store
            .end_call(namespace.clone(), call.id.clone(), outcome.clone())
            .await;
        let outcome = match ended {
            Ok(Some(ended)) => {
                entry.is_now(ended);
                outcome
            }
            // It had ended already.
            Ok(None) => match self.0.store.call(namespace, call.id.clone()).await {
                Ok((ended, Some(first))) => {
                    entry.is_now(ended);
                    first
                }
                _ => outcome,
            },
            Err(error) => {
                tracing::warn!(call_id = %call.id, %error, "the end of a call could not be written; a restart forgets it");
                outcome
            }
        };
        self.forget(entry, outcome);
    }

    fn forget(&self, entry: &Arc<Entry>, outcome: Outcome) {
        entry.reach(Stage::Ended(Arc::new(outcome)));
        entry.listeners.close();
        entry.cancel.cancel();
        self.0.ledger.leave(&entry.call().id);
    }

    /// Cancels a call. What is under way at its server ends, and its questions do.
    ///
    /// # Errors
    /// `CALL_NOT_FOUND`; ALREADY_RESOLVED if it has ended; STORE_FAILED, and then it goes on.
    pub async fn cancel(&self, namespace: &Namespace, id: &CallId) -> Result<()> {
        let cancelled = Error::new(Reason::Cancelled, "the call was cancelled with CancelCall");
        self.end_by(namespace, id, cancelled).await
    }

    async fn end_by(&self, namespace: &Namespace, id: &CallId, why: Error) -> Result<()> {
        let entry = self.0.ledger.get(id);
        let entry = entry.filter(|entry| entry.call().server.namespace == *namespace);
        if let Some(entry) = &entry
            && entry.is_plain()
        {
            entry.cancel.cancel();
            return Ok(());
        }
        let outcome = Outcome::Cancelled(why.with("call_id", id.as_str()));
        let ended = self
            .0
            .store
            .end_call(namespace.clone(), id.clone(), outcome.clone())
            .await?;
        match (ended, entry) {
            (Some(ended), Some(entry)) => {
                entry.is_now(ended);
                self.forget(&entry, outcome);
                Ok(())
            }
            (Some(_), None) => Ok(()),
            (None, _) => {
                let (call, _) = self.0.store.call(namespace.clone(), id.clone()).await?;
                Err(already_ended(&call))
            }
        }
    }

    /// Takes a call up again, if all its questions have ended.
    async fn wake(&self, entry: &Arc<Entry>) {
        let Call { id, server, .. } = entry.call();
        let server_id = server.id;
        let GoneOn { plan, answers, .. } = match self.0.store.go_on(id.clone()).await {
            Ok(Some(gone_on)) => gone_on,
            Ok(None) => return,
            Err(error) => {
                tracing::warn!(call_id = %id, %error, "a call could not be taken up again");
                self.finish(entry, Outcome::Error(error)).await;
                return;
            }
        };
        if !entry.reach(Stage::Kept) {
            return;
        }
        let work = decode(&plan).and_then(|mut plan| {
            plan.approved(&answers)
                .map_err(|error| error.with("server_id", server_id.as_str()))?;
            entry.knows(self.0.audit.arguments(|| plan.operation.arguments()));
            plan.opened = plan.opened_by(&answers, Clock.wall().plus(OPENED));
            let replies = match plan.wait {
                Some(_) => Some(plan.replies(&answers)?),
                // It was not made yet.
                None => None,
            };
            Ok(Work { plan, replies })
        });
        match work {
            Ok(work) => self.drive(entry, work),
            Err(error) => self.finish(entry, Outcome::Error(error)).await,
        }
    }

    /// Takes up what was left when the daemon ended, and follows the log from then on.
    ///
    /// # Errors
    /// STORE_FAILED.
    pub(super) async fn restore(&self) -> Result<()> {
        let head = self.0.store.head();
        let at = *head.borrow();
        let interrupted = Outcome::Error(interrupted());
        let unended = self.0.store.calls_at_start(interrupted.clone()).await?;
        for call in &unended.interrupted {
            let outcome = audit::outcome_of(call, &interrupted);
            self.0.audit.call(call, outcome, None);
        }
        for resting in unended.resting {
            let ledger = &self.0.ledger;
            let entry = ledger.enter(resting.call, Stage::Rests, Listeners::default(), None);
            if !resting.waits {
                self.wake(&entry).await;
            }
        }
        let calls = self.clone();
        self.0.tasks.spawn(calls.follow_log(at));
        Ok(())
    }

    /// Reads the log for ends of questions of calls that rest, and for ends of calls that others decided.
    async fn follow_log(self, mut at: Revision) {
        let mut head = self.0.store.head();
        loop {
            let newest = *head.borrow_and_update();
            while at < newest {
                match self.0.store.updates_after(at, PAGE).await {
                    Ok(updates) => {
                        for update in &updates {
                            at = update.revision;
                            self.note(&update.body).await;
                        }
                        if updates.is_empty() {
                            break;
                        }
                    }
                    Err(behind) if behind.reason() == Reason::ResumeTokenExpired => {
                        at = newest;
                        for entry in self.0.ledger.kept() {
                            self.look_after(&entry).await;
                        }
                    }
                    Err(failure) => {
                        tracing::warn!(%failure, "the update log could not be read for questions of calls");
                        break;
                    }
                }
            }
            tokio::select! {
                () = self.0.closing.cancelled() => return,
                changed = head.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn note(&self, body: &Body) {
        match body {
            Body::Elicitation(question) if question.state != QuestionState::Pending => {
                let entry = question
                    .call_id
                    .as_ref()
                    .and_then(|id| self.0.ledger.get(id));
                if let Some(entry) = entry
                    && matches!(&*entry.stage().borrow(), Stage::Rests)
                {
                    let calls = self.clone();
                    self.0.tasks.spawn(async move { calls.wake(&entry).await });
                }
            }
            Body::Call(call) => {
                let Some(entry) = self.0.ledger.get(&call.id) else {
                    return;
                };
                entry.is_now((**call).clone());
                if call.state.is_end() {
                    self.look_after(&entry).await;
                }
            }
            _ => {}
        }
    }

    /// Brings an entry in line with the store.
    async fn look_after(&self, entry: &Arc<Entry>) {
        let call = entry.call();
        match self.0.store.call(call.server.namespace, call.id).await {
            Ok((ended, Some(outcome))) => {
                entry.is_now(ended);
                self.forget(entry, outcome);
            }
            Ok((_, None)) => self.wake(entry).await,
            Err(_) => {}
        }
    }

    /// What came of a call, as its caller is told.
    ///
    /// # Errors
    /// Why it has no result.
    pub(super) fn told(&self, call: &Call, outcome: &Outcome) -> Result<Answer> {
        match outcome {
            Outcome::Result(result) => Ok(Answer {
                call_id: call.id.clone(),
                result: RawJson::parse(result.clone())
                    .map_err(|_| Error::internal("a result that was kept is no JSON"))?,
                output: self.output_schema(call),
            }),
            Outcome::Error(error) | Outcome::Cancelled(error) => Err(error.clone()),
        }
    }

    /// Lets what is under way come to its end after the servers were let go. Resting calls stay as they are.
    pub async fn close(&self, grace: Duration) {
        self.0.closing.cancel();
        self.0.drivers.close();
        let over = tokio::time::timeout(grace, self.0.drivers.wait()).await;
        if over.is_err() {
            tracing::warn!("calls are left behind; they end at the next start");
        }
    }
}

/// What is to be done for a call.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) plan: Plan,
    /// What the server wanted in the round before; `None` in the first.
    pub(super) replies: Option<Replies>,
}

/// A plan as it is stored.
///
/// # Errors
/// INTERNAL.
pub(super) fn encode(plan: &Plan) -> Result<String> {
    serde_json::to_string(plan)
        .map_err(|cause| Error::internal(format!("cannot write the plan of a call: {cause}")))
}

fn decode(plan: &str) -> Result<Plan> {
    serde_json::from_str(plan)
        .map_err(|cause| Error::internal(format!("cannot read the plan of a call: {cause}")))
}

/// What is known of a call that was under way when the daemon ended.
fn interrupted() -> Error {
    Error::new(
        Reason::OutcomeUnknown,
        "the daemon ended while the call was under way: it may have taken effect, but no result came back",
    )
}
