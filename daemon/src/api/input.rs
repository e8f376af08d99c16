//! Parts of requests that several services read the same way: JSON texts, `_meta`, bounds.

use std::time::Duration;

use mcp_sidecar_proto::v1;

use super::context::RequestContext;
use crate::calls::Terms;
use crate::error::{Error, Result};
use crate::mcp::protocol::{RawJson, is_reserved_meta_key};
use crate::model::auth::Scopes;
use crate::model::spec::LogLevel;

/// Longest waiting time that a call may ask for.
const MAX_TIMEOUT: Duration = Duration::from_hours(24);

/// Most scopes of one request, and the longest one in bytes.
const MAX_SCOPES: usize = 100;
const MAX_SCOPE: usize = 256;

/// A JSON object from an app. Surrounding white space is not part of it.
///
/// # Errors
/// `INVALID_FIELD` that says where the text stops being JSON, or that it is not an object.
pub(super) fn object(text: &str, field: &'static str) -> Result<RawJson> {
    let raw = RawJson::parse(text.trim().to_owned())
        .map_err(|cause| Error::invalid(field, format!("the text is not JSON: {cause}")))?;
    if !raw.is_object() {
        return Err(Error::invalid(
            field,
            "the JSON must be an object, for example `{}`",
        ));
    }
    Ok(raw)
}

/// The id of what a request names.
///
/// # Errors
/// `INVALID_FIELD` with this hint if it names nothing.
pub(super) fn named<'a>(id: &'a str, field: &'static str, hint: &str) -> Result<&'a str> {
    if id.is_empty() {
        return Err(Error::invalid(field, hint));
    }
    Ok(id)
}

/// Members for a request's `_meta`: the app's own, and the trace context of the RPC where the app names none.
///
/// # Errors
/// `INVALID_FIELD` for a key that the protocol owns.
pub(super) fn meta(
    text: &str,
    field: &'static str,
    context: &RequestContext,
) -> Result<Vec<(String, RawJson)>> {
    let mut members = match text {
        "" => Vec::new(),
        text => object(text, field)?.members().unwrap_or_default(),
    };
    if let Some((key, _)) = members.iter().find(|(key, _)| is_reserved_meta_key(key)) {
        return Err(Error::invalid(
            field,
            format!("`{key}` belongs to the protocol and is set by the daemon; leave it out"),
        ));
    }
    if let Some(traceparent) = &context.traceparent
        && !members.iter().any(|(key, _)| key == "traceparent")
    {
        members.push(("traceparent".to_owned(), RawJson::encode(&**traceparent)));
    }
    Ok(members)
}

/// A bound on a call.
///
/// # Errors
/// `INVALID_FIELD` for a bound of zero, below zero, or of more than a day.
pub(super) fn bound(
    value: Option<prost_types::Duration>,
    field: &'static str,
) -> Result<Option<Duration>> {
    let bound = super::spec::duration(value, field)?;
    if bound.is_some_and(|bound| bound.is_zero() || bound > MAX_TIMEOUT) {
        return Err(Error::invalid(
            field,
            "the bound must be more than 0 and at most 24 h",
        ));
    }
    Ok(bound)
}

/// The id that an app gives a call; `None` if it gives none.
///
/// # Errors
/// `INVALID_FIELD` at `field`.
pub(super) fn request_id(id: &str, field: &'static str) -> Result<Option<String>> {
    if id.len() > MAX_REQUEST_ID || !id.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Error::invalid(
            field,
            format!("an id of a call is 1 to {MAX_REQUEST_ID} visible ASCII characters"),
        ));
    }
    Ok((!id.is_empty()).then(|| id.to_owned()))
}

/// A level of log messages; `None` if it is not set.
pub(super) fn log_level(level: i32, field: &'static str) -> Result<Option<LogLevel>> {
    let level = v1::LogLevel::try_from(level)
        .map_err(|_| Error::invalid(field, format!("{level} is not a log level")))?;
    Ok(match level {
        v1::LogLevel::Unspecified => None,
        v1::LogLevel::Debug => Some(LogLevel::Debug),
        v1::LogLevel::Info => Some(LogLevel::Info),
        v1::LogLevel::Notice => Some(LogLevel::Notice),
        v1::LogLevel::Warning => Some(LogLevel::Warning),
        v1::LogLevel::Error => Some(LogLevel::Error),
        v1::LogLevel::Critical => Some(LogLevel::Critical),
        v1::LogLevel::Alert => Some(LogLevel::Alert),
        v1::LogLevel::Emergency => Some(LogLevel::Emergency),
    })
}

/// Longest id that an app gives a call, in bytes.
const MAX_REQUEST_ID: usize = 128;

/// The terms of a call without a stream of events.
pub(super) fn terms(
    context: &RequestContext,
    timeout: Option<Duration>,
    meta: Vec<(String, RawJson)>,
    wait_for_sign_in: bool,
) -> Terms {
    Terms {
        app: context.app.clone(),
        deadline: context.deadline,
        timeout,
        idle: None,
        meta,
        log_level: None,
        wait_for_sign_in,
        events: None,
        request_id: None,
        detach: false,
        trail: context.trail.clone(),
    }
}

/// Scopes to ask for (RFC 6749 section 3.3).
///
/// # Errors
/// `INVALID_FIELD` at `field`.
pub(super) fn scopes(scopes: Vec<String>, field: &'static str) -> Result<Scopes> {
    if scopes.len() > MAX_SCOPES {
        return Err(Error::invalid(
            field,
            format!("at most {MAX_SCOPES} can be asked for"),
        ));
    }
    let allowed = |c: char| matches!(c, '\x21' | '\x23'..='\x5b' | '\x5d'..='\x7e');
    for scope in &scopes {
        if scope.is_empty() || scope.len() > MAX_SCOPE || !scope.chars().all(allowed) {
            return Err(Error::invalid(field, format!("`{scope}` is not a scope")));
        }
    }
    Ok(scopes.into_iter().collect())
}
