//! From a domain error to a gRPC status: one table, one function.
//!
//! A status carries exactly one `ErrorInfo`. Everything in it is bounded, because it travels in HTTP/2 trailers and
//! many clients refuse trailers above 8 KiB. Never adds what the error does not say.

use std::collections::HashMap;
use std::time::Duration;

use mcp_sidecar_proto::v1;
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

use crate::error::{Error, Reason, RpcError};

/// `ErrorInfo.domain` of every status.
pub const DOMAIN: &str = "mcpsidecar";
/// Longest status message, in bytes; it appears twice, once of it percent-encoded.
const MAX_MESSAGE: usize = 1024;
/// Longest value of one fact, in bytes.
const MAX_FACT: usize = 512;
/// The fact that says where a user signs in.
const AUTH_URL: &str = "auth_url";
/// Room for all facts of a status, in bytes of keys and values.
const MAX_FACTS: usize = 2048;
/// Longest description of a violation, in bytes.
const MAX_DESCRIPTION: usize = 512;
/// Room for all field violations of a status, in bytes of paths and descriptions. It is part of the room for facts, and
/// leaves enough of that to say how many are missing.
const MAX_VIOLATIONS: usize = MAX_FACTS - 64;
/// What a violation costs beside its texts, in bytes.
const VIOLATION_OVERHEAD: usize = 8;
/// When to try again if the error does not say, for reasons that pass by themselves.
const DEFAULT_RETRY: Duration = Duration::from_secs(1);

/// The code of a reason. [`Reason::UpstreamError`] has a code per JSON-RPC error: see [`to_status`].
#[must_use]
pub fn code(reason: Reason) -> Code {
    match reason {
        Reason::InvalidField => Code::InvalidArgument,
        Reason::CallerNotAllowed
        | Reason::ToolNotAllowed
        | Reason::CallNotApproved
        | Reason::DestinationBlocked
        | Reason::ScopeNotGranted => Code::PermissionDenied,
        Reason::NamespaceNotFound
        | Reason::ServerNotFound
        | Reason::ToolNotFound
        | Reason::ElicitationNotFound
        | Reason::CallNotFound
        | Reason::SamplingRequestNotFound
        | Reason::SignInNotFound
        | Reason::AppTokenNotFound => Code::NotFound,
        Reason::AppTokenRequired => Code::Unauthenticated,
        Reason::ServerIdTaken => Code::AlreadyExists,
        Reason::SignInRequired
        | Reason::SignInFailed
        | Reason::CredentialsRefused
        | Reason::NotConnected
        | Reason::InputDeclined
        | Reason::AlreadyResolved
        | Reason::NotAnMcpServer => Code::FailedPrecondition,
        Reason::NotSupported => Code::Unimplemented,
        Reason::Superseded | Reason::EtagMismatch => Code::Aborted,
        Reason::UpstreamUnreachable
        | Reason::AuthorizationUnavailable
        | Reason::OutcomeUnknown
        | Reason::Draining => Code::Unavailable,
        Reason::UpstreamTimeout | Reason::DeadlineExceeded => Code::DeadlineExceeded,
        Reason::Cancelled => Code::Cancelled,
        Reason::TooManyCalls | Reason::TooMany | Reason::MessageTooLarge => Code::ResourceExhausted,
        Reason::ResumeTokenExpired => Code::OutOfRange,
        Reason::UpstreamProtocol | Reason::UpstreamError => Code::Unknown,
        Reason::StoreFailed | Reason::Internal => Code::Internal,
    }
}

/// The code of a JSON-RPC error (MCP 2026-07-28, JSON-RPC 2.0 section 5.1).
fn upstream_code(rpc: &RpcError) -> Code {
    match rpc.code {
        -32602 => Code::InvalidArgument,
        -32601 => Code::Unimplemented,
        -32002 => Code::NotFound,
        _ => Code::Unknown,
    }
}

/// The status of an error, with its details. Texts beyond their bounds are cut; `data` of a JSON-RPC error that does
/// not fit is left out and `data_truncated` says how many bytes it had; of field violations that do not fit,
/// `violations_omitted` says how many there are.
#[must_use]
pub fn to_status(error: &Error) -> Status {
    let reason = error.reason();
    let code = error.rpc().map_or_else(|| code(reason), upstream_code);
    let message = cut(error.message(), MAX_MESSAGE);
    let description = cut(&message, MAX_DESCRIPTION);
    let mut details = ErrorDetails::new();
    let used = add_violations(error, &mut details);
    let room = MAX_FACTS.saturating_sub(used);
    details.set_error_info(reason.as_str(), DOMAIN, metadata(error, room, &details));
    match code {
        Code::FailedPrecondition => {
            let subject = subject(error);
            details.add_precondition_failure_violation(reason.as_str(), subject, description);
        }
        Code::ResourceExhausted => {
            details.add_quota_failure_violation(subject(error), description);
        }
        _ => {}
    }
    let delay = retry_delay(error);
    if delay.is_some() {
        details.set_retry_info(delay);
    }
    Status::with_error_details(code, message, details)
}

/// When it is worth another try: what the error says, else a moment for what passes by itself.
fn retry_delay(error: &Error) -> Option<Duration> {
    let passing = matches!(
        error.reason(),
        Reason::Draining | Reason::UpstreamUnreachable | Reason::AuthorizationUnavailable
    );
    error
        .retry_delay()
        .or_else(|| passing.then_some(DEFAULT_RETRY))
}

/// What the status of a call's RPC would have said.
#[must_use]
pub fn to_call_error(error: &Error) -> v1::CallError {
    let reason = error.reason();
    let code = error.rpc().map_or_else(|| code(reason), upstream_code);
    let mut details = ErrorDetails::new();
    let used = add_violations(error, &mut details);
    let metadata = metadata(error, MAX_FACTS.saturating_sub(used), &details);
    let violations = details.bad_request().map(|bad| &bad.field_violations);
    v1::CallError {
        code: code.into(),
        reason: reason.as_str().to_owned(),
        message: cut(error.message(), MAX_MESSAGE),
        metadata,
        field_violations: violations
            .into_iter()
            .flatten()
            .map(|violation| v1::FieldViolation {
                field: violation.field.clone(),
                description: violation.description.clone(),
            })
            .collect(),
        retry_delay: retry_delay(error).and_then(|delay| delay.try_into().ok()),
    }
}

/// A refusal of the gRPC library itself, with the details that every other error has; `None` if it is none.
#[must_use]
pub fn explained(status: &Status) -> Option<Status> {
    if !status.details().is_empty() {
        return None;
    }
    refused_by_library(status.code(), status.message()).map(Status::from)
}

/// What the gRPC library means when it refuses a request before any service sees it. Errors of ours always have details, so
/// a status without them is the library's.
#[must_use]
pub fn refused_by_library(code: Code, message: &str) -> Option<Error> {
    Some(match code {
        Code::OutOfRange => Error::new(
            Reason::MessageTooLarge,
            format!("the request is larger than limits.grpc_message_bytes allows: {message}"),
        ),
        Code::Internal => Error::invalid(
            "request",
            format!(
                "the request is not a message of this RPC; is the client's contract current? {message}"
            ),
        ),
        Code::Unimplemented => Error::new(
            Reason::NotSupported,
            "there is no such RPC; reflection lists the services and their RPCs",
        ),
        _ => return None,
    })
}

impl From<Error> for Status {
    fn from(error: Error) -> Self {
        to_status(&error)
    }
}

/// Adds the field violations that fit, in order; returns the bytes that they use.
fn add_violations(error: &Error, details: &mut ErrorDetails) -> usize {
    let mut used = 0;
    for violation in error.violations() {
        let field = cut(&violation.field, MAX_FACT);
        let description = cut(&violation.message, MAX_DESCRIPTION);
        let size = field.len() + description.len() + VIOLATION_OVERHEAD;
        if used + size > MAX_VIOLATIONS {
            break;
        }
        used += size;
        details.add_bad_request_violation(field, description);
    }
    used
}

/// What a violation is about: the server, if the error names one.
fn subject(error: &Error) -> String {
    let mut facts = error.facts().iter();
    let server = facts.find(|(key, _)| matches!(key.as_ref(), "server" | "server_id"));
    server.map_or_else(String::new, |(_, value)| cut(value, MAX_FACT))
}

/// The facts that fit into the room, in the order in which they were added; what is missing from the violations and the
/// JSON-RPC error come first.
fn metadata(error: &Error, mut room: usize, details: &ErrorDetails) -> HashMap<String, String> {
    let mut metadata = HashMap::new();
    let mut add = |key: &str, value: String| {
        let size = key.len() + value.len();
        let fits = size <= room && !metadata.contains_key(key);
        if fits {
            room -= size;
            metadata.insert(key.to_owned(), value);
        }
        fits
    };
    let told = details
        .bad_request()
        .map_or(0, |bad| bad.field_violations.len());
    let omitted = error.violations().len() - told;
    if omitted > 0 {
        add("violations_omitted", omitted.to_string());
    }
    if let Some(rpc) = error.rpc() {
        add("jsonrpc_code", rpc.code.to_string());
        add("jsonrpc_message", cut(&rpc.message, MAX_FACT));
    }
    let (urls, others): (Vec<_>, Vec<_>) =
        error.facts().iter().partition(|(key, _)| *key == AUTH_URL);
    for (key, value) in others {
        add(key, cut(value, MAX_FACT));
    }
    // Whole or not at all: half a URL leads astray. The status of the server has it as well.
    for (key, value) in urls {
        add(key, value.clone());
    }
    if let Some(data) = error.rpc().and_then(|rpc| rpc.data.as_ref()) {
        // Whole or not at all: half a JSON text is of no use.
        if !add("data_json", data.clone()) {
            add("data_truncated", data.len().to_string());
        }
    }
    metadata
}

/// At most `max` bytes, cut between characters and marked.
fn cut(text: &str, max: usize) -> String {
    const MARK: &str = "...";
    if text.len() <= max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(max - MARK.len());
    format!("{}{MARK}", text.get(..end).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use std::fmt::Write;
    use std::time::Duration;

    use tonic::Code;
    use tonic_types::StatusExt;

    use super::{DOMAIN, to_call_error, to_status};
    use crate::error::{Error, Reason, RpcError, Violation};

    /// The size of a status in trailers, as HTTP/2 counts it.
    fn size(status: &tonic::Status) -> usize {
        let mut headers = http::HeaderMap::new();
        status.add_header(&mut headers).unwrap();
        headers
            .iter()
            .map(|(name, value)| name.as_str().len() + value.len() + 32)
            .sum()
    }

    fn upstream(code: i64, message: &str, data: Option<String>) -> Error {
        Error::upstream(RpcError {
            code,
            message: message.to_owned(),
            data,
        })
    }

    #[test]
    fn every_reason_has_its_status() {
        let mut table = String::new();
        for reason in Reason::ALL {
            let error = Error::new(*reason, "what is wrong").with("server", "s");
            let status = to_status(&error);
            let details = status.get_error_details();
            let info = details.error_info().unwrap();
            assert_eq!(info.domain, DOMAIN);
            assert_eq!(info.reason, reason.as_str());
            let mut extras = String::new();
            for (shown, name) in [
                (details.retry_info().is_some(), " +RetryInfo"),
                (details.quota_failure().is_some(), " +QuotaFailure"),
                (
                    details.precondition_failure().is_some(),
                    " +PreconditionFailure",
                ),
            ] {
                extras.push_str(if shown { name } else { "" });
            }
            writeln!(table, "{reason} {:?}{extras}", status.code()).unwrap();
        }
        insta::assert_snapshot!(table, @r"
        INVALID_FIELD InvalidArgument
        CALLER_NOT_ALLOWED PermissionDenied
        APP_TOKEN_REQUIRED Unauthenticated
        TOOL_NOT_ALLOWED PermissionDenied
        DESTINATION_BLOCKED PermissionDenied
        NAMESPACE_NOT_FOUND NotFound
        SERVER_NOT_FOUND NotFound
        TOOL_NOT_FOUND NotFound
        CALL_NOT_APPROVED PermissionDenied
        ELICITATION_NOT_FOUND NotFound
        CALL_NOT_FOUND NotFound
        SAMPLING_REQUEST_NOT_FOUND NotFound
        APP_TOKEN_NOT_FOUND NotFound
        SERVER_ID_TAKEN AlreadyExists
        SIGN_IN_REQUIRED FailedPrecondition +PreconditionFailure
        SIGN_IN_NOT_FOUND NotFound
        SIGN_IN_FAILED FailedPrecondition +PreconditionFailure
        CREDENTIALS_REFUSED FailedPrecondition +PreconditionFailure
        SCOPE_NOT_GRANTED PermissionDenied
        AUTHORIZATION_UNAVAILABLE Unavailable +RetryInfo
        NOT_CONNECTED FailedPrecondition +PreconditionFailure
        NOT_SUPPORTED Unimplemented
        INPUT_DECLINED FailedPrecondition +PreconditionFailure
        ALREADY_RESOLVED FailedPrecondition +PreconditionFailure
        SUPERSEDED Aborted
        UPSTREAM_UNREACHABLE Unavailable +RetryInfo
        NOT_AN_MCP_SERVER FailedPrecondition +PreconditionFailure
        UPSTREAM_PROTOCOL Unknown
        OUTCOME_UNKNOWN Unavailable
        UPSTREAM_TIMEOUT DeadlineExceeded
        DEADLINE_EXCEEDED DeadlineExceeded
        CANCELLED Cancelled
        DRAINING Unavailable +RetryInfo
        ETAG_MISMATCH Aborted
        TOO_MANY_CALLS ResourceExhausted +QuotaFailure
        TOO_MANY ResourceExhausted +QuotaFailure
        MESSAGE_TOO_LARGE ResourceExhausted +QuotaFailure
        RESUME_TOKEN_EXPIRED OutOfRange
        UPSTREAM_ERROR Unknown
        STORE_FAILED Internal
        INTERNAL Internal
        ");
    }

    #[test]
    fn a_place_to_sign_in_is_named_whole_or_not_at_all() {
        for (length, told) in [(600, true), (1500, true), (5000, false)] {
            let url = format!("https://as.example/?{}", "x".repeat(length));
            let error = Error::new(Reason::SignInRequired, "sign in").with("auth_url", url.clone());
            let error = error.with("scopes", "s ".repeat(300));
            let status = to_status(&error);
            let info = status.get_details_error_info().unwrap();
            assert_eq!(info.metadata.get("auth_url"), told.then_some(&url));
        }
    }

    #[test]
    fn a_wrong_field_is_named() {
        let status = to_status(&Error::invalid("spec.http.url", "`x` is not a URL"));
        let details = status.get_error_details();
        let violations = &details.bad_request().unwrap().field_violations;
        assert_eq!(violations.len(), 1);
        assert_eq!(violations[0].field, "spec.http.url");
        assert_eq!(violations[0].description, "`x` is not a URL");
    }

    #[test]
    fn json_rpc_errors_keep_code_message_and_data() {
        for (rpc, expected) in [
            (-32602, Code::InvalidArgument),
            (-32601, Code::Unimplemented),
            (-32002, Code::NotFound),
            (-32603, Code::Unknown),
            (7, Code::Unknown),
        ] {
            let status = to_status(&upstream(rpc, "no", Some("{\"a\":1.10}".to_owned())));
            assert_eq!(status.code(), expected, "{rpc}");
            let info = status.get_details_error_info().unwrap();
            assert_eq!(info.metadata["jsonrpc_code"], rpc.to_string());
            assert_eq!(info.metadata["jsonrpc_message"], "no");
            assert_eq!(info.metadata["data_json"], "{\"a\":1.10}");
        }
    }

    #[test]
    fn a_status_fits_into_the_trailers_of_every_client() {
        let error = upstream(-32000, &"ä".repeat(5_000), Some("x".repeat(1 << 20)))
            .with("server", "s".repeat(5_000))
            .with("url", "u".repeat(5_000));
        let status = to_status(&error);
        let info = status.get_details_error_info().unwrap();
        assert_eq!(info.metadata["data_truncated"], (1 << 20).to_string());
        assert!(!info.metadata.contains_key("data_json"));
        assert!(size(&status) < 8 * 1024, "{}", size(&status));
    }

    #[test]
    fn several_wrong_fields_are_named_as_far_as_they_fit() {
        let violations = |count: usize, text: &str| {
            let one = |n| Violation::new(format!("content_json.{n}"), text);
            (0..count).map(one).collect::<Vec<_>>()
        };
        let status = to_status(&Error::invalid_fields("two", violations(2, "is wrong")));
        let details = status.get_error_details();
        let told = &details.bad_request().unwrap().field_violations;
        assert_eq!(told.len(), 2);
        assert_eq!(told[1].field, "content_json.1");
        assert_eq!(told[1].description, "is wrong");
        assert!(details.error_info().unwrap().metadata.is_empty());

        for text in ["is required".to_owned(), "ä".repeat(5_000)] {
            let error = Error::invalid_fields("ä".repeat(5_000), violations(300, &text))
                .with("server", "s".repeat(5_000))
                .with("url", "u".repeat(5_000));
            let status = to_status(&error);
            assert!(size(&status) < 8 * 1024, "{}", size(&status));
            let details = status.get_error_details();
            let told = details.bad_request().unwrap().field_violations.len();
            assert!(told >= 3, "{told}");
            let omitted = &details.error_info().unwrap().metadata["violations_omitted"];
            assert_eq!(*omitted, (300 - told).to_string());
        }
    }

    #[test]
    fn a_retry_delay_is_passed_on() {
        let error = Error::new(Reason::TooMany, "x").retry_after(Duration::from_millis(1_500));
        let retry = to_status(&error).get_details_retry_info().unwrap();
        assert_eq!(retry.retry_delay, Some(Duration::from_millis(1_500)));
    }

    #[test]
    fn the_error_of_a_call_says_what_its_status_says() {
        let error = Error::invalid("call.timeout", "is zero").retry_after(Duration::from_secs(3));
        let (status, told) = (to_status(&error), to_call_error(&error));
        let details = status.get_error_details();
        assert_eq!(told.code, i32::from(status.code()));
        assert_eq!(told.message, status.message());
        assert_eq!(told.reason, details.error_info().unwrap().reason);
        let violations = &details.bad_request().unwrap().field_violations;
        assert_eq!(violations.len(), told.field_violations.len());
        assert_eq!(told.field_violations[0].field, violations[0].field);
        assert_eq!(
            told.field_violations[0].description,
            violations[0].description
        );
        let delay = details.retry_info().unwrap().retry_delay.unwrap();
        assert_eq!(
            told.retry_delay.unwrap().seconds.unsigned_abs(),
            delay.as_secs()
        );
    }
}
