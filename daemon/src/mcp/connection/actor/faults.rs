//! What kind of failure an error is, as the machine knows them.

use crate::error::{Error, Reason};
use crate::mcp::state::Fault;

/// The fault behind an error.
pub(in crate::mcp::connection) fn fault_of(error: &Error) -> Fault {
    let has = |fact| error.facts().iter().any(|(name, _)| *name == fact);
    let (bad_command, ended) = (has("command"), has("process"));
    match error.reason() {
        Reason::SignInRequired => Fault::Unauthorized,
        Reason::UpstreamUnreachable if bad_command => Fault::Permanent,
        Reason::UpstreamUnreachable if ended => Fault::Crash,
        Reason::UpstreamUnreachable
        | Reason::UpstreamTimeout
        | Reason::UpstreamError
        | Reason::AuthorizationUnavailable
        | Reason::OutcomeUnknown => Fault::Transient,
        _ => Fault::Permanent,
    }
}
