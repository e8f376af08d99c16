//! How questions end by themselves: the keeper of one that somebody waits for, the clock of those whose calls rest, and the
//! look at the log for those that the store ended.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::Inner;
use crate::base::{Clock, ElicitationId, Namespace, Revision};
use crate::error::{Reason, Result};
use crate::model::question::{Answer, Question, QuestionState};
use crate::model::update::Body;

/// Delays between attempts to write the end of a question while the store fails; the last one repeats.
const RETRIES: [Duration; 4] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(10),
    Duration::from_mins(1),
];
/// Updates that are looked at together.
const PAGE: usize = 256;
/// Pause before another attempt to end a question whose time is over.
const AGAIN: Duration = Duration::from_secs(1);

/// The life of one question: commits it, and ends it unless somebody else does.
pub(super) async fn keep(
    inner: Arc<Inner>,
    question: Question,
    expiry: Duration,
    commit: oneshot::Sender<Result<()>>,
    mut ended: oneshot::Receiver<()>,
    taken_back: impl Future<Output = QuestionState>,
) {
    let id = question.id.clone();
    let namespace = question.server.namespace.clone();
    let expires = tokio::time::sleep(expiry);
    let limits = inner.config.limits();
    if let Err(failure) = inner.store.put_question(question, limits).await {
        inner.waiting().entries.remove(&id);
        // Nobody listens if the call was cancelled meanwhile.
        let _ = commit.send(Err(failure));
        return;
    }
    let _ = commit.send(Ok(()));
    let end = tokio::select! {
        biased;
        _ = &mut ended => return,
        state = taken_back => state,
        () = inner.closing.cancelled() => QuestionState::Void,
        () = expires => QuestionState::Expired,
    };
    let mut delays = RETRIES.iter();
    let mut delay = Duration::ZERO;
    loop {
        match inner
            .store
            .end_question(id.clone(), namespace.clone(), end, None)
            .await
        {
            Ok(_) => break,
            // Somebody else was first: the task of an answer, which delivers it, or the end of its call or server.
            Err(lost) if lost.reason() == Reason::AlreadyResolved => {
                let question = inner.store.question(namespace.clone(), id.clone()).await;
                if question.is_ok_and(|question| question.state.is_by_answer()) {
                    // An error means that the entry is gone, which is what is waited for.
                    let _ = ended.await;
                    return;
                }
                break;
            }
            Err(failure)
                if inner.closing.is_cancelled() || failure.reason() != Reason::StoreFailed =>
            {
                tracing::warn!(elicitation_id = %id, %failure, "the end of a question could not be written; it ends at the next start");
                break;
            }
            Err(failure) => {
                delay = delays.next().copied().unwrap_or(delay);
                tracing::warn!(elicitation_id = %id, %failure, ?delay, "the end of a question could not be written yet");
                tokio::select! {
                    _ = &mut ended => return,
                    () = inner.closing.cancelled() => {}
                    () = tokio::time::sleep(delay) => {}
                }
            }
        }
    }
    inner.deliver(&id, Answer::Cancel);
}

/// When the questions of calls that rest expire, by the monotonic clock: the wall clock decides only over a restart.
#[derive(Default)]
pub(super) struct Deadlines {
    by_time: BTreeMap<(Instant, ElicitationId), Namespace>,
    by_id: HashMap<ElicitationId, Instant>,
}

impl Deadlines {
    pub(super) fn insert(&mut self, namespace: Namespace, id: ElicitationId, after: Duration) {
        let now = Clock.now();
        let at = now.checked_add(after).unwrap_or(now);
        self.remove(&id);
        self.by_id.insert(id.clone(), at);
        self.by_time.insert((at, id), namespace);
    }

    pub(super) fn remove(&mut self, id: &ElicitationId) {
        if let Some(at) = self.by_id.remove(id) {
            self.by_time.remove(&(at, id.clone()));
        }
    }

    fn next(&self) -> Option<Instant> {
        self.by_time.keys().next().map(|(at, _)| *at)
    }

    /// Takes out at most [`PAGE`] whose time is over.
    fn take_due(&mut self) -> Vec<(Namespace, ElicitationId)> {
        let now = Clock.now();
        let mut due = Vec::new();
        while due.len() < PAGE
            && let Some(first) = self.by_time.first_entry()
            && first.key().0 <= now
        {
            let ((_, id), namespace) = first.remove_entry();
            self.by_id.remove(&id);
            due.push((namespace, id));
        }
        due
    }
}

/// Lets the questions of calls that rest expire, those from before the start of the daemon too.
pub(super) async fn expire(inner: Weak<Inner>, rested: Arc<Notify>, closing: CancellationToken) {
    recall(&inner, &closing).await;
    loop {
        let due = {
            let Some(inner) = inner.upgrade() else {
                return;
            };
            let due = inner.deadlines().take_due();
            let ends = due
                .iter()
                .map(|(namespace, id)| end_expired(&inner, namespace, id));
            join_all(ends).await;
            if !due.is_empty() {
                continue;
            }
            inner.deadlines().next()
        };
        let over = async {
            match due {
                Some(at) => tokio::time::sleep_until(at.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = closing.cancelled() => return,
            () = rested.notified() => {}
            () = over => {}
        }
    }
}

/// Reads what has to expire from the store.
async fn recall(inner: &Weak<Inner>, closing: &CancellationToken) {
    let mut delays = RETRIES.iter().cycle();
    loop {
        let Some(inner) = inner.upgrade() else {
            return;
        };
        match inner.store.resting_questions().await {
            Ok(resting) => {
                let now = Clock.wall();
                let mut deadlines = inner.deadlines();
                for (namespace, id, expires) in resting {
                    deadlines.insert(namespace, id, now.until(expires));
                }
                return;
            }
            Err(failure) => {
                tracing::warn!(%failure, "the expiry of questions could not be read yet");
            }
        }
        drop(inner);
        let delay = delays.next().copied().unwrap_or_default();
        tokio::select! {
            () = closing.cancelled() => return,
            () = tokio::time::sleep(delay) => {}
        }
    }
}

async fn end_expired(inner: &Inner, namespace: &Namespace, id: &ElicitationId) {
    let store = &inner.store;
    let ended = store.end_question(id.clone(), namespace.clone(), QuestionState::Expired, None);
    if let Err(failure) = ended.await
        && failure.reason() == Reason::StoreFailed
    {
        tracing::warn!(elicitation_id = %id, %failure, "a question whose time is over could not be ended yet");
        let mut deadlines = inner.deadlines();
        deadlines.insert(namespace.clone(), id.clone(), AGAIN);
    }
}

/// Reads the update log for questions that the store ended as void, with their server for example, and tells whoever
/// waits for them. One that ends with its call is not answered: the server is told that the call is cancelled, and whoever
/// waits lets go.
pub(super) async fn watch(
    inner: Weak<Inner>,
    mut head: tokio::sync::watch::Receiver<Revision>,
    closing: CancellationToken,
) {
    let mut at = *head.borrow_and_update();
    loop {
        tokio::select! {
            () = closing.cancelled() => return,
            changed = head.changed() => if changed.is_err() { return },
        }
        let newest = *head.borrow_and_update();
        while at < newest {
            let Some(inner) = inner.upgrade() else {
                return;
            };
            match inner.store.updates_after(at, PAGE).await {
                Ok(updates) => {
                    for update in &updates {
                        at = update.revision;
                        let Body::Elicitation(question) = &update.body else {
                            continue;
                        };
                        if question.state != QuestionState::Pending {
                            inner.deadlines().remove(&question.id);
                        }
                        if question.state == QuestionState::Void {
                            inner.deliver(&question.id, Answer::Cancel);
                        }
                    }
                    if updates.is_empty() {
                        break;
                    }
                }
                Err(behind) if behind.reason() == Reason::ResumeTokenExpired => {
                    inner.sweep().await;
                    at = newest;
                }
                Err(failure) => {
                    tracing::warn!(%failure, "the update log could not be read for questions that ended");
                    break;
                }
            }
        }
    }
}
