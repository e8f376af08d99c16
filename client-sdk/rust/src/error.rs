//! What can go wrong, with the daemon's reason codes. Decodes `google.rpc` details; makes no requests.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::error::Error as StdError;
use std::fmt;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::connect::ConnectAttempt;
use crate::proto::CallError;

/// Result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No daemon answered at any of the paths, or at the address, before the connect timeout was over.
    #[error("no mcp-sidecar daemon answers; tried {}", Tried(.tried))]
    Connect {
        /// Each path in the order of the search, with its last error.
        tried: Vec<ConnectAttempt>,
    },
    /// The daemon refused or failed the request.
    #[error("{}", status_text(*.code, .reason, .message, .violations))]
    #[non_exhaustive]
    Status {
        /// The gRPC code.
        code: Code,
        /// The daemon's reason code; [`Reason::UNSPECIFIED`] if the status came without one.
        reason: Reason,
        /// What is wrong, for people.
        message: String,
        /// Everything that is wrong with the request, field by field.
        violations: Vec<Violation>,
        /// Facts for programs, for example `jsonrpc_code`.
        metadata: BTreeMap<String, String>,
        /// When another attempt makes sense.
        retry_after: Option<Duration>,
    },
    /// The connection to the daemon could not be opened again, or was lost while the request ran.
    #[error("{}", if *.sent { "the connection to the daemon was lost" } else { "the daemon cannot be reached" })]
    #[non_exhaustive]
    Transport {
        /// Whether the request may have reached the daemon. False means that it certainly did not.
        sent: bool,
        /// The cause.
        #[source]
        source: Box<Status>,
    },
    /// A setting of the client cannot be used: which one, and why.
    #[error("{0}")]
    Setting(String),
    /// The daemon's answer does not follow the contract.
    #[error("the daemon's answer does not follow the contract: {0}")]
    Contract(&'static str),
}

/// Something that is wrong with a field of a request (`google.rpc.BadRequest.FieldViolation`).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Violation {
    /// Path of the field, for example `content_json.age`.
    pub field: String,
    /// What is wrong; it follows the field's name in a sentence.
    pub description: String,
}

impl Violation {
    pub(crate) fn of(field: &str, description: &str) -> Self {
        Self {
            field: field.to_owned(),
            description: description.to_owned(),
        }
    }
}

impl Error {
    /// The deadline of a request is over, by the app's own clock.
    pub(crate) fn late(message: &str) -> Self {
        Self::Status {
            code: Code::DeadlineExceeded,
            reason: Reason::DEADLINE_EXCEEDED,
            message: message.to_owned(),
            violations: Vec::new(),
            metadata: BTreeMap::new(),
            retry_after: None,
        }
    }

    /// Everything that is wrong with the request, field by field, as far as the daemon said.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        match self {
            Self::Status { violations, .. } => violations,
            _ => &[],
        }
    }

    /// Path of the first offending field in the request message.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        self.violations().first().map(|wrong| &*wrong.field)
    }

    /// Whether the same request may be sent again with a chance to succeed and without the risk that it is carried
    /// out twice. See [`Error::retry_after`] for the delay.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Connect { .. } => true,
            Self::Transport { sent, .. } => !sent,
            Self::Status {
                code,
                reason,
                retry_after,
                ..
            } => match code {
                Code::Unavailable => *reason != Reason::OUTCOME_UNKNOWN,
                Code::ResourceExhausted => {
                    retry_after.is_some() || *reason == Reason::TOO_MANY_CALLS
                }
                _ => false,
            },
            Self::Setting(_) | Self::Contract(_) => false,
        }
    }

    /// The daemon's reason code, if the daemon gave one.
    #[must_use]
    pub fn reason(&self) -> Option<&Reason> {
        match self {
            Self::Status { reason, .. } if *reason != Reason::UNSPECIFIED => Some(reason),
            _ => None,
        }
    }

    /// The gRPC code of the daemon's answer.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// When another attempt makes sense, if the daemon said so.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            Self::Status { retry_after, .. } => *retry_after,
            _ => None,
        }
    }
}

impl From<Status> for Error {
    /// Decodes the details of a status; for users of the generated clients.
    fn from(status: Status) -> Self {
        if let Some(source) = status.source() {
            if has_cause::<tonic::TimeoutExpired>(source) {
                // tonic ends a late request with CANCELLED of its own; to the app it is the deadline.
                return Self::late("the deadline of the request is over");
            }
            return Self::Transport {
                sent: !has_cause::<tonic::ConnectError>(source),
                source: Box::new(status),
            };
        }
        let details = status.get_error_details();
        let (reason, metadata) = details.error_info().map_or_else(
            || (Reason::UNSPECIFIED, BTreeMap::new()),
            |info| {
                (
                    Reason::from(info.reason.clone()),
                    info.metadata.clone().into_iter().collect(),
                )
            },
        );
        let bad_request = details.bad_request();
        let violations = bad_request.map_or_else(Vec::new, |bad| {
            let violations = bad.field_violations.iter();
            violations
                .map(|wrong| Violation::of(&wrong.field, &wrong.description))
                .collect()
        });
        Self::Status {
            code: status.code(),
            reason,
            message: status.message().to_owned(),
            violations,
            metadata,
            retry_after: details.retry_info().and_then(|info| info.retry_delay),
        }
    }
}

impl From<CallError> for Error {
    /// What the status of the call's RPC would have become; for outcomes of [`crate::proto::Call`].
    fn from(error: CallError) -> Self {
        let violations = error.field_violations.iter();
        Self::Status {
            code: Code::from(error.code),
            reason: Reason::from(error.reason),
            message: error.message,
            violations: violations
                .map(|wrong| Violation::of(&wrong.field, &wrong.description))
                .collect(),
            metadata: error.metadata.into_iter().collect(),
            retry_after: error.retry_delay.and_then(|delay| delay.try_into().ok()),
        }
    }
}

fn has_cause<E: StdError + 'static>(error: &(dyn StdError + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error.is::<E>() {
            return true;
        }
        next = error.source();
    }
    false
}

struct Tried<'a>(&'a [ConnectAttempt]);

impl fmt::Display for Tried<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, attempt) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(
                f,
                "{separator}`{}` ({})",
                attempt.path.display(),
                attempt.error
            )?;
        }
        Ok(())
    }
}

fn status_text(code: Code, reason: &Reason, message: &str, wrong: &[Violation]) -> String {
    let reason = match reason.as_str() {
        "" => format!("{code:?}"),
        reason => reason.to_owned(),
    };
    let message = match message {
        "" => code.description(),
        message => message,
    };
    match wrong.first() {
        Some(Violation { field, .. }) => format!("{reason} in `{field}`: {message}"),
        None => format!("{reason}: {message}"),
    }
}

/// A reason code of the daemon (`google.rpc.ErrorInfo.reason`). Codes are added over time, never renamed.
///
/// ```
/// use mcp_sidecar_client::Reason;
///
/// assert!(Reason::from("SERVER_NOT_FOUND") == Reason::SERVER_NOT_FOUND);
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Reason(Cow<'static, str>);

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident;)+) => {
        impl Reason {
            $($(#[doc = $doc])+ pub const $name: Self = Self(Cow::Borrowed(stringify!($name)));)+
        }
    };
}

reasons! {
    /// A field, URL, JSON text or argument is not acceptable.
    INVALID_FIELD;
    /// The caller may not use this namespace.
    CALLER_NOT_ALLOWED;
    /// Over TCP every request needs a valid token.
    APP_TOKEN_REQUIRED;
    /// The registration of the server keeps this tool from apps.
    TOOL_NOT_ALLOWED;
    /// The address policy refuses a destination.
    DESTINATION_BLOCKED;
    /// No server was ever registered in this namespace.
    NAMESPACE_NOT_FOUND;
    /// No such server in the namespace.
    SERVER_NOT_FOUND;
    /// The server has no such tool, or offers none under this name.
    TOOL_NOT_FOUND;
    /// The settings of the server let nobody make this call, or whoever was asked did not agree to it.
    CALL_NOT_APPROVED;
    /// No such question, or its end is long past.
    ELICITATION_NOT_FOUND;
    /// No such call, it was not kept, or its end is long past.
    CALL_NOT_FOUND;
    /// No such request for an answer of a model, or its end is long past.
    SAMPLING_REQUEST_NOT_FOUND;
    /// No such token of an app.
    APP_TOKEN_NOT_FOUND;
    /// The wanted id belongs to another server.
    SERVER_ID_TAKEN;
    /// The MCP server wants the user to sign in.
    SIGN_IN_REQUIRED;
    /// No such sign-in, or its end is long past.
    SIGN_IN_NOT_FOUND;
    /// The authorization server refused, or what it said is not acceptable.
    SIGN_IN_FAILED;
    /// The configured credentials were refused, or there are none and no user can give any.
    CREDENTIALS_REFUSED;
    /// The user has signed in, and the authorization server did not grant what the MCP server wants.
    SCOPE_NOT_GRANTED;
    /// The authorization server cannot be reached now.
    AUTHORIZATION_UNAVAILABLE;
    /// The server is disconnected on purpose.
    NOT_CONNECTED;
    /// The server does not offer what was asked for.
    NOT_SUPPORTED;
    /// The server asked for something that nobody gave, and that cannot be said to it.
    INPUT_DECLINED;
    /// The question, call or sign-in has ended already.
    ALREADY_RESOLVED;
    /// The server was removed, or its connection replaced, while the operation ran.
    SUPERSEDED;
    /// The server cannot be reached now.
    UPSTREAM_UNREACHABLE;
    /// The peer does not speak MCP as far as can be told.
    NOT_AN_MCP_SERVER;
    /// The peer broke the protocol.
    UPSTREAM_PROTOCOL;
    /// The request was sent to the server and no answer came back.
    OUTCOME_UNKNOWN;
    /// The server did not answer in the time that was given to it.
    UPSTREAM_TIMEOUT;
    /// The deadline of the request is over.
    DEADLINE_EXCEEDED;
    /// The caller went away or cancelled.
    CANCELLED;
    /// The daemon is stopping.
    DRAINING;
    /// The etag is not the current one.
    ETAG_MISMATCH;
    /// Too many calls are running.
    TOO_MANY_CALLS;
    /// Too many servers, questions or subscribers exist.
    TOO_MANY;
    /// A message is larger than the limit.
    MESSAGE_TOO_LARGE;
    /// The resume token's position is no longer kept.
    RESUME_TOKEN_EXPIRED;
    /// The server answered with a JSON-RPC error; see `jsonrpc_code`, `jsonrpc_message` and `data_json` in the
    /// metadata.
    UPSTREAM_ERROR;
    /// The daemon's store failed: disk full, read-only, corrupt.
    STORE_FAILED;
    /// A fault of the daemon itself.
    INTERNAL;
}

impl Reason {
    /// The status came without a reason code, for example because it is older than the daemon's own handlers.
    pub const UNSPECIFIED: Self = Self(Cow::Borrowed(""));

    /// The code in `UPPER_SNAKE` form.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Reason {
    fn from(code: String) -> Self {
        Self(Cow::Owned(code))
    }
}

impl From<&'static str> for Reason {
    fn from(code: &'static str) -> Self {
        Self(Cow::Borrowed(code))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tonic_types::ErrorDetails;

    use super::*;

    #[test]
    fn details_become_fields() {
        let mut details = ErrorDetails::new();
        details
            .set_error_info(
                "INVALID_FIELD",
                "mcpsidecar",
                HashMap::from([("value".to_owned(), "ftp://x".to_owned())]),
            )
            .add_bad_request_violation("spec.http.url", "not http")
            .add_bad_request_violation("spec.name", "is missing")
            .set_retry_info(Some(Duration::from_millis(1500)));
        let status = Status::with_error_details(Code::InvalidArgument, "use http:", details);
        let error = Error::from(status);
        assert_eq!(
            error.to_string(),
            "INVALID_FIELD in `spec.http.url`: use http:"
        );
        assert!(!error.is_retryable());
        assert_eq!(error.field(), Some("spec.http.url"));
        let wrong = error.violations().iter();
        let wrong: Vec<_> = wrong.map(|one| (&*one.field, &*one.description)).collect();
        assert_eq!(
            wrong,
            [("spec.http.url", "not http"), ("spec.name", "is missing")]
        );
        assert_eq!(error.retry_after(), Some(Duration::from_millis(1500)));
        let Error::Status {
            code,
            reason,
            metadata,
            ..
        } = error
        else {
            panic!("{error:?}");
        };
        assert_eq!(code, Code::InvalidArgument);
        assert_eq!(reason, Reason::INVALID_FIELD);
        assert_eq!(metadata["value"], "ftp://x");
    }

    #[test]
    fn a_call_with_unknown_outcome_is_not_retried() {
        let with = |reason: &str| {
            let details = ErrorDetails::with_error_info(reason, "mcpsidecar", HashMap::new());
            Error::from(Status::with_error_details(Code::Unavailable, "x", details))
        };
        assert!(!with("OUTCOME_UNKNOWN").is_retryable());
        assert!(with("UPSTREAM_UNREACHABLE").is_retryable());
        assert!(with("DRAINING").is_retryable());
    }

    #[test]
    fn the_error_of_a_call_is_what_its_status_would_be() {
        let error = Error::from(CallError {
            code: 8,
            reason: "TOO_MANY_CALLS".to_owned(),
            message: "too many".to_owned(),
            metadata: HashMap::from([("limit".to_owned(), "7".to_owned())]),
            field_violations: vec![crate::proto::FieldViolation {
                field: "call".to_owned(),
                description: "one too many".to_owned(),
            }],
            retry_delay: Some(prost_types::Duration {
                seconds: 1,
                nanos: 500_000_000,
            }),
        });
        assert_eq!(error.code(), Some(Code::ResourceExhausted));
        assert_eq!(error.reason(), Some(&Reason::TOO_MANY_CALLS));
        assert_eq!(error.field(), Some("call"));
        assert_eq!(error.retry_after(), Some(Duration::from_millis(1500)));
        assert!(error.is_retryable());
    }

    #[test]
    fn a_status_without_details_is_readable() {
        let error = Error::from(Status::unimplemented(""));
        assert_eq!(error.reason(), None);
        assert!(error.to_string().starts_with("Unimplemented: "), "{error}");
    }
}
