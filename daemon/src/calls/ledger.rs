//! Every call that is under way or rests: who watches it, who waits for it, how it is cancelled. In memory; what is kept is
//! in the store as well.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::base::{CallId, Namespace};
use crate::mcp::link::Listeners;
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
}

impl Entry {
    /// A call that is over.
    pub(super) fn ended(call: Call, outcome: Outcome) -> Self {
        Self::new(call, Stage::Ended(Arc::new(outcome)), Listeners::default())
    }

    fn new(call: Call, stage: Stage, listeners: Listeners) -> Self {
        Self {
            call: Mutex::new(call),
            stage: watch::Sender::new(stage),
            cancel: CancellationToken::new(),
            listeners,
            waiters: AtomicUsize::new(0),
        }
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
        self.stage.send_if_modified(|now| {
            if matches!(now, Stage::Ended(_)) {
                return false;
            }
            *now = stage;
            true
        })
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
#[derive(Clone, Debug, Default)]
pub(super) struct Ledger(Arc<Mutex<HashMap<CallId, Arc<Entry>>>>);

impl Ledger {
    /// Enters a call.
    pub(super) fn enter(&self, call: Call, stage: Stage, listeners: Listeners) -> Arc<Entry> {
        let id = call.id.clone();
        let entry = Arc::new(Entry::new(call, stage, listeners));
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
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes a plain call out of the ledger when its caller lets go of it.
#[derive(Debug)]
pub(super) struct Entered {
    ledger: Ledger,
    entry: Option<Arc<Entry>>,
}

impl Entered {
    pub(super) fn new(ledger: &Ledger, call: Call, listeners: Listeners) -> Self {
        Self {
            ledger: ledger.clone(),
            entry: Some(ledger.enter(call, Stage::Plain, listeners)),
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
        }
    }
}
