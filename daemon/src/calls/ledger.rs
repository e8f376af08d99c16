//! Every call that is under way or rests: who watches it, who waits for it, how it is cancelled. In memory; what is kept is
//! in the store as well.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::audit::{self, Arguments, Audit};
use crate::base::{CallId, Clock, Deadline, Namespace};
use crate::error::Reason;
use crate::mcp::link::Listeners;
use crate::metrics::Metrics;
use crate::model::call::{Call, CallState, Outcome};

/// How far a call is that is in the ledger.
#[derive(Clone, Debug)]
pub(super) enum Stage {
    /// In the hands of its caller: nothing of it is kept.
    Plain,
    /// On disk, and under way.
    Kept,
    /// On disk, and waits for answers.
    Rests,
    /// Over.
    Ended(Arc<Outcome>),
}

/// One call.
#[derive(Debug)]
pub(super) struct Entry {
    call: Mutex<Call>,
    stage: watch::Sender<Stage>,
    /// Ends what is under way.
    pub(super) cancel: CancellationToken,
    /// Who is told of progress and questions.
    pub(super) listeners: Listeners,
    /// How many wait for the outcome.
    waiters: AtomicUsize,
    /// What is still to be audited; `None` once it was, and for what is no call of its own.
    unaudited: Mutex<Option<Unaudited>>,
}

/// The duty to write a call down, and to count it, when it ends.
#[derive(Debug)]
struct Unaudited {
    audit: Audit,
    metrics: Metrics,
    arguments: Option<Arguments>,
}

impl Entry {
    /// A call that is over.
    pub(super) fn ended(call: Call, outcome: Outcome) -> Self {
        let stage = Stage::Ended(Arc::new(outcome));
        Self::new(call, stage, Listeners::default(), None)
    }

    fn new(call: Call, stage: Stage, listeners: Listeners, unaudited: Option<Unaudited>) -> Self {
        Self {
            call: Mutex::new(call),
            stage: watch::Sender::new(stage),
            cancel: CancellationToken::new(),
            listeners,
            waiters: AtomicUsize::new(0),
            unaudited: Mutex::new(unaudited),
        }
    }

    fn unaudited(&self) -> MutexGuard<'_, Option<Unaudited>> {
        self.unaudited
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// It is no call of its own: another one was made before, and is audited.
    pub(super) fn is_another(&self) {
        self.unaudited().take();
    }

    /// Its arguments are known again.
    pub(super) fn knows(&self, arguments: Option<Arguments>) {
        if let Some(unaudited) = &mut *self.unaudited() {
            unaudited.arguments = arguments;
        }
    }

    /// Whether somebody wants to know how it ends.
    pub(super) fn is_watched(&self) -> bool {
        self.unaudited().is_some()
    }

    /// It has ended; the first end counts.
    pub(super) fn has_ended(&self, outcome: &'static str) {
        let Some(unaudited) = self.unaudited().take() else {
            return;
        };
        let call = self.call();
        let took = call.created.until(Clock.wall());
        unaudited.metrics.call(&call.server, outcome, took);
        unaudited.audit.call(&call, outcome, unaudited.arguments);
    }

    /// Whether nothing of it is kept.
    pub(super) fn is_plain(&self) -> bool {
        matches!(&*self.stage.borrow(), Stage::Plain)
    }

    /// Whether nothing of it is under way.
    fn rests(&self) -> bool {
        matches!(&*self.stage.borrow(), Stage::Rests)
    }

    /// What is shown of it.
    pub(super) fn call(&self) -> Call {
        let call = self.call.lock().unwrap_or_else(PoisonError::into_inner);
        let mut call = call.clone();
        match &*self.stage.borrow() {
            // The store knows of the questions that its server has pushed.
            Stage::Plain | Stage::Kept => {}
            Stage::Rests => call.state = CallState::InputRequired,
            Stage::Ended(outcome) => call.state = outcome.state(),
        }
        call
    }

    /// How far it is, to follow.
    pub(super) fn stage(&self) -> watch::Receiver<Stage> {
        self.stage.subscribe()
    }

    /// It has come to another stage. What has ended stays so; tells whether it was taken.
    pub(super) fn reach(&self, stage: Stage) -> bool {
        let outcome = match &stage {
            Stage::Ended(outcome) => Some(Arc::clone(outcome)),
            _ => None,
        };
        let reached = self.stage.send_if_modified(|now| {
            if matches!(now, Stage::Ended(_)) {
                return false;
            }
            *now = stage;
            true
        });
        if let Some(outcome) = outcome.filter(|_| reached) {
            self.ends_with(&outcome);
        }
        reached
    }

    fn ends_with(&self, outcome: &Outcome) {
        if self.is_watched() {
            self.has_ended(audit::outcome_of(&self.call(), outcome));
        }
    }

    /// This is what the store says of it: its server has another id, or it has ended. What has ended does not change any more.
    pub(super) fn is_now(&self, stored: Call) {
        let mut call = self.call.lock().unwrap_or_else(PoisonError::into_inner);
        if call.ended.is_none() {
            *call = stored;
        }
    }

    /// One more waits for the outcome.
    pub(super) fn join(&self) {
        self.waiters.fetch_add(1, Ordering::AcqRel);
    }

    /// One less waits; tells whether it was the last.
    pub(super) fn leave(&self) -> bool {
        self.waiters.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// The calls. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    entries: Arc<Mutex<HashMap<CallId, Arc<Entry>>>>,
    audit: Audit,
    metrics: Metrics,
}

impl Ledger {
    /// No calls yet; their ends will be audited and counted.
    pub(super) fn new(audit: Audit, metrics: Metrics) -> Self {
        Self {
            entries: Arc::default(),
            audit,
            metrics,
        }
    }

    /// Enters a call. From now on it is audited and counted when it ends, however that happens.
    pub(super) fn enter(
        &self,
        call: Call,
        stage: Stage,
        listeners: Listeners,
        arguments: Option<Arguments>,
    ) -> Arc<Entry> {
        let id = call.id.clone();
        let watched = self.audit.is_on() || self.metrics.is_on();
        let unaudited = watched.then(|| Unaudited {
            audit: self.audit.clone(),
            metrics: self.metrics.clone(),
            arguments,
        });
        let entry = Arc::new(Entry::new(call, stage, listeners, unaudited));
        self.all().insert(id, Arc::clone(&entry));
        entry
    }

    /// Takes a call out.
    pub(super) fn leave(&self, id: &CallId) {
        self.all().remove(id);
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.all().len()
    }

    /// How many of them rest.
    pub(super) fn resting(&self) -> usize {
        let all = self.all();
        let resting = all.values().filter(|entry| entry.rests());
        resting.count()
    }

    /// One of them.
    pub(super) fn get(&self, id: &CallId) -> Option<Arc<Entry>> {
        self.all().get(id).cloned()
    }

    /// The calls of a namespace that are not kept.
    pub(super) fn plain(&self, namespace: &Namespace) -> Vec<Call> {
        let all: Vec<_> = self.all().values().cloned().collect();
        let plain = all.iter().filter(|entry| entry.is_plain());
        plain
            .map(|entry| entry.call())
            .filter(|call| call.server.namespace == *namespace)
            .collect()
    }

    /// The ids of all that are kept.
    pub(super) fn kept(&self) -> Vec<Arc<Entry>> {
        let all: Vec<_> = self.all().values().cloned().collect();
        let kept = all.into_iter().filter(|entry| {
            let stage = entry.stage.borrow();
            matches!(&*stage, Stage::Kept | Stage::Rests)
        });
        kept.collect()
    }

    fn all(&self) -> MutexGuard<'_, HashMap<CallId, Arc<Entry>>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a plain call out of the ledger when its caller lets go of it.
#[derive(Debug)]
pub(super) struct Entered {
    ledger: Ledger,
    entry: Option<Arc<Entry>>,
    /// When its caller gives up.
    deadline: Deadline,
}

impl Entered {
    pub(super) fn new(
        ledger: &Ledger,
        call: Call,
        listeners: Listeners,
        deadline: Deadline,
        arguments: Option<Arguments>,
    ) -> Self {
        Self {
            ledger: ledger.clone(),
            entry: Some(ledger.enter(call, Stage::Plain, listeners, arguments)),
            deadline,
        }
    }

    /// The call; `None` once it was kept.
    pub(super) fn entry(&self) -> Option<&Arc<Entry>> {
        self.entry.as_ref()
    }

    /// The call is kept from now on, and stays in the ledger.
    pub(super) fn keep(mut self) -> Option<Arc<Entry>> {
        self.entry.take()
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(entry) = &self.entry {
            let id = entry
                .call
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .id
                .clone();
            self.ledger.leave(&id);
            // Dropped before its end: its caller has left, or its time was over.
            let late = self.deadline.remaining().is_some_and(|left| left.is_zero());
            let reason = if late {
                Reason::DeadlineExceeded
            } else {
                Reason::Cancelled
            };
            entry.has_ended(reason.as_str());
        }
    }
}
