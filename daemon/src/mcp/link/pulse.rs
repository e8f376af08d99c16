//! Signs of life: whether a server on the network is still there. A child's end is seen without asking.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::Link;
use crate::base::Clock;
use crate::error::{Error, Reason};
use crate::mcp::era::Request;
use crate::mcp::protocol::{code, method};
use crate::model::status::Era;

/// What came of asking for a sign of life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Pulse {
    /// It answered; any answer is one.
    Alive,
    /// It did not, or something before it did. Once may be chance.
    Silent(Error),
    /// It is there, but no longer the server that we know.
    Changed(Error),
}

impl Link {
    /// Whether nothing has come from the server for this long.
    #[must_use]
    pub fn is_quiet(&self, interval: Duration) -> bool {
        let heard = *self
            .last_heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        Clock.now().saturating_duration_since(heard) >= interval
    }

    /// Counts as heard from now.
    pub fn touch(&self) {
        self.heard();
    }

    /// Whether no call is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.running
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    /// Asks the server for a sign of life, at most for `bound`; the outcome comes as news.
    pub fn feel_pulse(self: &Arc<Self>, bound: Duration) {
        let link = Arc::clone(self);
        self.tasks.spawn(async move {
            let request = Request::new(match link.dialect.era() {
                Era::Modern => method::DISCOVER,
                Era::Legacy => method::PING,
            });
            let answer = tokio::select! {
                answer = tokio::time::timeout(bound, link.request(&request)) => answer,
                () = link.closed.cancelled() => return,
            };
            let pulse = match answer {
                Ok(Ok(result)) if link.dialect.era() == Era::Modern => {
                    if result.get("supportedVersions").is_some() {
                        Pulse::Alive
                    } else {
                        Pulse::Changed(changed("it no longer answers `server/discover`"))
                    }
                }
                Ok(Err(error)) if link.refuses_session(&error) => {
                    return link.report_lost(changed("it no longer accepts our session"));
                }
                Ok(Err(error)) => link.judge_error(error),
                // A server that is busy with a call may have no time for this; calls have bounds of their own.
                Err(_) if link.calls_in_flight() == 0 => Pulse::Silent(Error::new(
                    Reason::UpstreamUnreachable,
                    format!("the server gave no sign of life within {bound:?}"),
                )),
                Ok(Ok(_)) | Err(_) => Pulse::Alive,
            };
            link.report(|news| news.pulse = Some(pulse));
        });
    }

    /// Whether the server refuses everything since it refused a call: some say 400 of a session that they have forgotten.
    fn refuses_session(&self, error: &Error) -> bool {
        self.session_doubted.swap(false, Ordering::Relaxed) && error.http_status() == Some(400)
    }

    fn judge_error(&self, error: Error) -> Pulse {
        let unsupported = error
            .rpc()
            .is_some_and(|rpc| rpc.code == code::UNSUPPORTED_VERSION);
        if unsupported && self.dialect.era() == Era::Modern {
            return Pulse::Changed(changed("it no longer speaks the version that was agreed"));
        }
        match (error.reason(), error.http_status()) {
            // A client error comes from somebody who is there.
            (_, Some(400..500)) => Pulse::Alive,
            (Reason::UpstreamUnreachable | Reason::OutcomeUnknown, _) => Pulse::Silent(error),
            _ => Pulse::Alive,
        }
    }
}

fn changed(how: &str) -> Error {
    Error::new(
        Reason::UpstreamUnreachable,
        format!("the server has changed: {how}"),
    )
}
