//! Counts how questions end. Every end is in the update log, whoever decided it.

use tokio_util::sync::CancellationToken;

use super::Metrics;
use crate::error::Reason;
use crate::model::question::{Mode, QuestionState};
use crate::model::update::{Body, Update};
use crate::store::Store;

/// Updates that are looked at together.
const PAGE: usize = 256;

/// Follows the log until `stop` is cancelled. What is no longer kept when it is looked for is not counted.
pub async fn follow(metrics: Metrics, store: Store, stop: CancellationToken) {
    let mut head = store.head();
    let mut at = *head.borrow();
    loop {
        let newest = *head.borrow_and_update();
        while at < newest {
            match store.updates_after(at, PAGE).await {
                Ok(updates) => {
                    for update in &updates {
                        at = update.revision;
                        if let Some((mode, end)) = end_in(update) {
                            metrics.question(mode, end);
                        }
                    }
                    if updates.is_empty() {
                        break;
                    }
                }
                Err(behind) if behind.reason() == Reason::ResumeTokenExpired => at = newest,
                Err(failure) => {
                    tracing::warn!(%failure, "the update log could not be read for the ends of questions");
                    break;
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            changed = head.changed() => if changed.is_err() { return },
        }
    }
}

/// The mode and the end of a question that has ended with this update.
fn end_in(update: &Update) -> Option<(&'static str, &'static str)> {
    let Body::Elicitation(question) = &update.body else {
        return None;
    };
    let end = match question.state {
        QuestionState::Pending => return None,
        QuestionState::Answered => "answered",
        QuestionState::Declined => "declined",
        QuestionState::Cancelled => "cancelled",
        QuestionState::Expired => "expired",
        QuestionState::Void => "void",
    };
    // A question that has ended is shown once more when its server is done with what was opened.
    if question.completed.is_some() && question.resolved != Some(update.committed) {
        return None;
    }
    let mode = match question.mode {
        Mode::Form => "form",
        Mode::Url => "url",
        Mode::Approval => "approval",
        Mode::Sampling => "sampling",
    };
    Some((mode, end))
}
