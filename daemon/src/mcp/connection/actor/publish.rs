//! How what the actor knows reaches handles and the update log.

use std::sync::Arc;
use std::time::Duration;

use super::Actor;
use crate::base::Clock;
use crate::error::Error;
use crate::mcp::connection::Live;
use crate::model::status::{Failure, ServerStatus};

/// Pause before a status that could not be stored is stored again.
const PUBLISH_AGAIN: Duration = Duration::from_secs(1);

impl Actor {
    /// Keeps the cause of a failure for the next status.
    pub(super) fn note_failure(&mut self, error: &Error) {
        tracing::warn!(reason = %error.reason(), %error, "the connection failed");
        self.status.last_failure = Some(Failure {
            reason: error.reason().to_string(),
            message: error.message().to_owned(),
            at: Clock.wall(),
        });
    }

    /// Shows the current status to handles.
    pub(super) fn show(&mut self) {
        // A sign-in is begun before the refusal is reported that made it necessary: both are seen together.
        let account = self.authorization.borrow().clone();
        let pending = account.pending.as_ref();
        self.status.auth_url = pending.map(|pending| pending.auth_url.clone());
        self.live.send_replace(Live {
            status: Arc::new(self.status.clone()),
            catalog: Arc::clone(&self.catalog),
            link: self.link.clone(),
            retry_due: self.retry_due,
            apart: self.apart.clone(),
            connect_bound: self.dialer.connect_bound(&self.spec),
            pending: account.pending,
            sign_ins: self.authorized.signed_in,
        });
    }

    /// Shows the current status to handles and commits it to the update log.
    pub(super) async fn publish(&mut self) {
        let state = self.state.public();
        if self.status.state != state {
            self.status.state = state;
            self.status.since = Clock.wall();
        }
        self.status.failed_attempts = self.state.attempts();
        self.status.stderr_tail = self.journal.tail();
        self.show();
        if comparable(&self.status) == comparable(&self.published) {
            return;
        }
        let written = self
            .store
            .set_status(self.key.clone(), self.status.clone(), self.verdict.clone())
            .await;
        match written {
            Ok(_) => self.published = self.status.clone(),
            Err(error) => {
                tracing::error!(%error, "a status could not be stored");
                self.publish_due = Clock.now().checked_add(PUBLISH_AGAIN);
            }
        }
    }
}

/// A status without what changes all the time and is no news: apps read it with GetServer.
fn comparable(status: &ServerStatus) -> ServerStatus {
    let mut status = status.clone();
    for list in [
        &mut status.tools,
        &mut status.resources,
        &mut status.resource_templates,
        &mut status.prompts,
    ] {
        list.fetched = None;
    }
    status.stderr_tail.clear();
    status
}
