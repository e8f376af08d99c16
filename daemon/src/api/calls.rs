//! What calls of tools, prompts and resources have in common: their parts from the request, and the way through the
//! registry to a link and back.

use std::time::Duration;

use tokio::sync::mpsc;

use super::context::RequestContext;
use crate::base::CallId;
use crate::catalog::Catalog;
use crate::error::{Error, Result};
use crate::mcp::Settings;
use crate::mcp::era::{Request, is_reserved_meta_key};
use crate::mcp::link::{CallEvent, CallOptions, Link};
use crate::mcp::protocol::{RawJson, code};
use crate::registry::Server;

/// Longest waiting time that a call may ask for.
const MAX_TIMEOUT: Duration = Duration::from_hours(24);

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

/// Members for the request's `_meta`: the app's own, and the trace context of the RPC where the app names none.
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

/// Bounds of a call: the app's, else the server's, else the configured ones.
///
/// # Errors
/// `INVALID_FIELD` for a bound of zero or more than a day.
pub(super) fn options(
    server: &Server,
    settings: &Settings,
    context: &RequestContext,
    timeout: Option<Duration>,
    idle: Option<Duration>,
    events: Option<mpsc::Sender<CallEvent>>,
) -> Result<CallOptions> {
    for (field, bound) in [("call.timeout", timeout), ("call.idle_timeout", idle)] {
        if bound.is_some_and(|bound| bound.is_zero() || bound > MAX_TIMEOUT) {
            return Err(Error::invalid(
                field,
                "the bound must be more than 0 and at most 24 h",
            ));
        }
    }
    let own = server.record.spec.timeouts;
    Ok(CallOptions {
        call_id: CallId::generate(),
        deadline: context.deadline,
        call_timeout: timeout.or(own.call).unwrap_or(settings.call),
        idle_timeout: idle.or(own.call_idle).unwrap_or(settings.call_idle),
        events,
    })
}

/// Makes a call. `build` makes the request for the catalog of the link that is used.
///
/// A call that the server refused before looking at it is made once more: on a new link when the session was gone, with
/// fresh tool definitions when mirrored headers did not match (MCP 2026-07-28 basic/transports/streamable-http,
/// "Client Behavior"). Nothing else is ever repeated.
///
/// # Errors
/// Why there is no result; see [`Link::call`].
pub(super) async fn invoke(
    server: &Server,
    options: &CallOptions,
    build: impl Fn(&Link, &Catalog) -> Result<Request>,
) -> Result<RawJson> {
    let mut again = true;
    loop {
        let (link, catalog) = server.handle.link(options.deadline).await?;
        let request = build(&link, &catalog)?;
        let failure = match link.call(request, options).await {
            Ok(result) => return Ok(result),
            Err(failure) => failure,
        };
        let mismatch = failure
            .error
            .rpc()
            .is_some_and(|rpc| rpc.code == code::HEADER_MISMATCH);
        if !std::mem::take(&mut again) || !(failure.session_gone || mismatch) {
            return Err(failure
                .error
                .with("server_id", server.record.key.id.as_str()));
        }
        tracing::debug!(error = %failure.error, "a refused call is made again");
        if mismatch {
            let refreshed = server.handle.refresh().await.done();
            let _ = tokio::time::timeout(options.idle_timeout, refreshed).await;
        }
    }
}
