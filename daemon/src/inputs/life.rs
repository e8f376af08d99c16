//! How questions end by themselves: the keeper of one that somebody waits for, the clock of those whose calls rest, and the
//! look at the log for those that the store ended.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

use super::Inner;
use crate::base::{Clock, Revision};
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
/// Longest pause between two looks at what expires.
const LOOK_AGAIN: Duration = Duration::from_secs(10);

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
            // Somebody else was first: the task of an answer, which delivers it, or the store, which ended it as void.
            Err(lost) if lost.reason() == Reason::AlreadyResolved => {
                let question = inner.store.question(namespace.clone(), id.clone()).await;
                if question.is_ok_and(|question| question.state != QuestionState::Void) {
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

/// Lets the questions of calls that rest expire. The wall clock decides, because they outlive the daemon; it is looked at
/// again after a while, because it may be set.
pub(super) async fn expire(inner: Weak<Inner>, rested: Arc<Notify>, closing: CancellationToken) {
    loop {
        let next = {
            let Some(inner) = inner.upgrade() else {
                return;
            };
            inner.store.next_expiry().await.unwrap_or_else(|failure| {
                tracing::warn!(%failure, "the expiry of questions could not be read");
                None
            })
        };
        let wait = next.map_or(LOOK_AGAIN, |next| Clock.wall().until(next).min(LOOK_AGAIN));
        tokio::select! {
            () = closing.cancelled() => return,
            () = rested.notified() => continue,
            () = tokio::time::sleep(wait) => {}
        }
        let Some(inner) = inner.upgrade() else {
            return;
        };
        loop {
            match inner.store.expire_questions().await {
                Ok(true) => {}
                Ok(false) => break,
                Err(failure) => {
                    tracing::warn!(%failure, "questions whose time is over could not be ended yet");
                    break;
                }
            }
        }
    }
}

/// Reads the update log for questions that the store ended as void, with their server for example, and tells whoever
/// waits for them.
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
                        if let Body::Elicitation(question) = &update.body
                            && question.state == QuestionState::Void
                        {
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
