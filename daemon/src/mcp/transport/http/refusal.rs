//! What a refused or broken HTTP request means, in words for people.

use bytes::Bytes;
use reqwest::StatusCode;

use crate::error::{Error, Reason, RpcError};

/// How much of a foreign error body is shown.
const EXCERPT: usize = 200;

/// What a status of refusal means, with what the server says about it.
pub(super) fn refusal_error(
    url: &str,
    status: StatusCode,
    rpc: Option<&RpcError>,
    body: &Bytes,
    session_gone: bool,
) -> Error {
    let fact = |error: Error| error.with("http_status", status.as_u16().to_string());
    if status == StatusCode::UNAUTHORIZED && !session_gone {
        return fact(Error::new(
            Reason::SignInRequired,
            format!(
                "{url} wants authorization (HTTP 401): register it with an `Authorization` header"
            ),
        ));
    }
    if session_gone {
        return fact(Error::new(
            Reason::UpstreamUnreachable,
            format!("{url} has ended the session"),
        ));
    }
    if let Some(rpc) = rpc {
        return fact(Error::upstream(rpc.clone()));
    }
    let reason = match status.as_u16() {
        400 | 404..=406 | 410 | 415 | 501 => Reason::NotAnMcpServer,
        _ => Reason::UpstreamUnreachable,
    };
    let excerpt = excerpt(body);
    let said = if excerpt.is_empty() {
        String::new()
    } else {
        format!(": `{excerpt}`")
    };
    fact(Error::new(
        reason,
        format!("{url} answered with HTTP {status}{said}"),
    ))
}

/// The beginning of a body, in one line.
pub(super) fn excerpt(body: &Bytes) -> String {
    let text = String::from_utf8_lossy(body);
    let mut excerpt: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = excerpt.char_indices().nth(EXCERPT) {
        excerpt.truncate(end);
        excerpt.push_str("...");
    }
    excerpt
}

/// Whether the connection broke, as opposed to a body that came and cannot be decoded: that is an answer, and no good one.
pub(super) fn is_broken(error: &reqwest::Error) -> bool {
    let source = std::error::Error::source(error);
    let mut causes = std::iter::successors(source, |cause| cause.source());
    let by_hyper = causes.any(<dyn std::error::Error>::is::<hyper::Error>);
    !error.is_timeout() && (by_hyper || !error.is_decode())
}

/// The innermost cause of an error.
pub(super) fn root_cause(error: &reqwest::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
