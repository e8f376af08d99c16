//! Why a server cannot be used now, in one sentence with the remedy. Pure: a status goes in, text comes out.

use std::time::{Duration, UNIX_EPOCH};

use crate::base::{ServerKey, Timestamp};
use crate::error::Reason;
use crate::model::status::{ConnectionState, Failure, ServerStatus};

/// Longest part of a failure's own message that is repeated, in characters.
const MAX_CAUSE: usize = 300;

/// One sentence about a server that is not READY, for the operator: what is the matter, and what can be done. `now` is the time
/// at which it is said.
#[must_use]
pub fn explain(key: &ServerKey, status: &ServerStatus, now: Timestamp) -> String {
    let id = key.id.as_str();
    let since = clock(status.since, now);
    match status.state {
        ConnectionState::Ready => format!("`{id}` can be used since {since}"),
        ConnectionState::Connecting => match &status.last_failure {
            None => format!("`{id}` is being connected since {since}: nothing has to be done yet"),
            Some(failure) => format!(
                "`{id}` is being connected again since {since}, after: {}",
                cause(failure)
            ),
        },
        ConnectionState::Connected | ConnectionState::Discovering => format!(
            "`{id}` is connected, and its lists are being read since {since}: nothing has to be done yet"
        ),
        ConnectionState::Disconnected => match &status.last_failure {
            Some(failure) if is(failure, Reason::StoreFailed) => {
                format!("`{id}` is not connected: {}", cause(failure))
            }
            _ => format!(
                "`{id}` is disconnected on purpose since {since}: ConnectServer or `mcp-sidecar connect {id}` connects it"
            ),
        },
        ConnectionState::Authenticating => authenticating(id, status, &since),
        ConnectionState::Failed => failed(id, status, now),
    }
}

fn authenticating(id: &str, status: &ServerStatus, since: &str) -> String {
    let sign_in = format!("StartSignIn or `mcp-sidecar sign-in {id}`");
    let reason = status.last_failure.as_ref().map(reason_of);
    match (reason, &status.last_failure) {
        (Some(Reason::CredentialsRefused), Some(failure)) => format!(
            "`{id}` is not authorized since {since}, because its credentials are refused ({}): set others with UpdateServer or `mcp-sidecar update {id}`",
            cause(failure)
        ),
        (Some(Reason::SignInFailed), Some(failure)) => {
            format!(
                "the last sign-in at `{id}` failed ({}): try again with {sign_in}",
                cause(failure)
            )
        }
        (Some(Reason::ScopeNotGranted), Some(failure)) => format!(
            "`{id}` wants more rights than were granted ({}): sign in again and grant them, with {sign_in}",
            cause(failure)
        ),
        (Some(Reason::AuthorizationUnavailable), Some(failure)) => format!(
            "the authorization server of `{id}` cannot be used now ({}): it is asked again with the next call, or with {sign_in}",
            cause(failure)
        ),
        _ if status.auth_url.is_some() => format!(
            "`{id}` waits for a user to sign in since {since}: open its sign-in page, with {sign_in}"
        ),
        _ => format!("`{id}` waits for a user to sign in since {since}: {sign_in}"),
    }
}

fn failed(id: &str, status: &ServerStatus, now: Timestamp) -> String {
    let next = next(status, now);
    let Some(failure) = &status.last_failure else {
        return format!("`{id}` cannot be used, and nothing is known of the cause; {next}");
    };
    let cause = cause(failure);
    match reason_of(failure) {
        Reason::UpstreamUnreachable => format!("`{id}` cannot be reached: {cause}; {next}"),
        Reason::UpstreamTimeout | Reason::DeadlineExceeded => {
            format!("`{id}` does not answer in time: {cause}; {next}")
        }
        Reason::NotAnMcpServer => format!(
            "`{id}` is no MCP server as far as can be told ({cause}): check its address with `mcp-sidecar show {id}`; {next}"
        ),
        Reason::UpstreamProtocol | Reason::NotSupported => format!(
            "`{id}` does not keep to the protocol ({cause}): its provider has to mend that; {next}"
        ),
        Reason::UpstreamError => format!("`{id}` refuses the connection: {cause}; {next}"),
        Reason::MessageTooLarge => format!(
            "`{id}` sends more than is taken ({cause}): `limits.message_bytes` of the configuration allows more; {next}"
        ),
        Reason::DestinationBlocked => format!(
            "`{id}` is where nothing may be connected to ({cause}): `policy` of the configuration decides that; {next}"
        ),
        Reason::InvalidField => format!(
            "the registration of `{id}` cannot be used ({cause}): change it with UpdateServer or `mcp-sidecar update {id}`; {next}"
        ),
        Reason::CredentialsRefused => format!(
            "the credentials of `{id}` are refused ({cause}): set others with UpdateServer or `mcp-sidecar update {id}`; {next}"
        ),
        Reason::AuthorizationUnavailable => {
            format!("the authorization server of `{id}` cannot be used now: {cause}; {next}")
        }
        Reason::SignInRequired | Reason::SignInFailed | Reason::ScopeNotGranted => format!(
            "`{id}` wants a user to sign in ({cause}): StartSignIn or `mcp-sidecar sign-in {id}`; {next}"
        ),
        Reason::TooMany | Reason::TooManyCalls => format!(
            "`{id}` meets a limit of the daemon ({cause}): see `limits` of the configuration; {next}"
        ),
        Reason::StoreFailed => format!(
            "`{id}` cannot be used because the daemon cannot write or read its state ({cause}): see its data directory; {next}"
        ),
        Reason::Internal => format!(
            "`{id}` cannot be used because of a fault of the daemon ({cause}): please report it; {next}"
        ),
        // What is no state of a connection, or comes from a later version of the daemon.
        _ => format!("`{id}` cannot be used: {cause}; {next}"),
    }
}

fn next(status: &ServerStatus, now: Timestamp) -> String {
    match status.next_retry {
        Some(at) if at > now => format!("next attempt in {}", seconds(now.until(at))),
        Some(_) => "the next attempt is about to start".to_owned(),
        None => "ConnectServer tries again".to_owned(),
    }
}

/// A duration for people: whole seconds, and at least one.
fn seconds(time: Duration) -> String {
    let whole = Duration::from_secs(
        time.as_millis()
            .div_ceil(1000)
            .try_into()
            .unwrap_or(u64::MAX),
    );
    humantime::format_duration(whole.max(Duration::from_secs(1))).to_string()
}

fn is(failure: &Failure, reason: Reason) -> bool {
    failure.reason == reason.as_str()
}

fn reason_of(failure: &Failure) -> Reason {
    let mut all = Reason::ALL.iter();
    let known = all.find(|reason| is(failure, **reason));
    // One of another version: nothing particular is known of it.
    known.copied().unwrap_or(Reason::OutcomeUnknown)
}

/// The failure's own words, as a part of a sentence.
fn cause(failure: &Failure) -> String {
    let text = failure.message.replace(|c: char| c.is_control(), " ");
    let text = text.trim().trim_end_matches('.');
    match text.char_indices().nth(MAX_CAUSE) {
        Some((end, _)) => format!("{}…", text.get(..end).unwrap_or_default()),
        None if text.is_empty() => failure.reason.clone(),
        None => text.to_owned(),
    }
}

/// A time of the day, in UTC, with the date unless it is today.
fn clock(at: Timestamp, now: Timestamp) -> String {
    let show = |at: Timestamp| {
        let millis = u64::try_from(at.0).unwrap_or(0);
        let time = UNIX_EPOCH + Duration::from_millis(millis);
        humantime::format_rfc3339_seconds(time).to_string()
    };
    let (at, now) = (show(at), show(now));
    let (date, time) = at.split_once('T').unwrap_or(("", &at));
    let time = time.get(..5).unwrap_or(time);
    if now.starts_with(date) {
        format!("{time} UTC")
    } else {
        format!("{date} {time} UTC")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{Namespace, ServerId};

    /// 2026-12-01 10:02:00 UTC.
    const SINCE: Timestamp = Timestamp(1_796_119_320_000);
    const NOW: Timestamp = Timestamp(1_796_119_380_000);

    fn said(state: ConnectionState, failure: Option<(&str, &str)>, next: Option<i64>) -> String {
        let status = ServerStatus {
            state,
            since: SINCE,
            last_failure: failure.map(|(reason, message)| Failure {
                reason: reason.to_owned(),
                message: message.to_owned(),
                at: SINCE,
            }),
            next_retry: next.map(|millis| Timestamp(NOW.0 + millis)),
            ..ServerStatus::default()
        };
        let key = ServerKey::new(Namespace::default(), ServerId::new("notes"));
        explain(&key, &status, NOW)
    }

    #[test]
    fn the_usual_ones_read_well() {
        use ConnectionState as State;
        for (sentence, expected) in [
            (
                said(
                    State::Authenticating,
                    Some(("SIGN_IN_REQUIRED", "401")),
                    None,
                ),
                "`notes` waits for a user to sign in since 10:02 UTC: StartSignIn or `mcp-sidecar sign-in notes`",
            ),
            (
                said(
                    State::Failed,
                    Some((
                        "UPSTREAM_UNREACHABLE",
                        "connection refused by 10.0.0.7:443.\n",
                    )),
                    Some(11_001),
                ),
                "`notes` cannot be reached: connection refused by 10.0.0.7:443; next attempt in 12s",
            ),
            (
                said(State::Disconnected, None, None),
                "`notes` is disconnected on purpose since 10:02 UTC: ConnectServer or `mcp-sidecar connect notes` connects it",
            ),
            (
                said(State::Connecting, None, None),
                "`notes` is being connected since 10:02 UTC: nothing has to be done yet",
            ),
        ] {
            assert_eq!(sentence, expected);
        }
    }

    #[test]
    fn every_state_and_reason_has_one_sentence_with_its_cause() {
        use ConnectionState as State;
        let states = [
            State::Connecting,
            State::Authenticating,
            State::Connected,
            State::Discovering,
            State::Failed,
            State::Disconnected,
        ];
        let others = ["", "OF_ANOTHER_VERSION"];
        let reasons = Reason::ALL.iter().map(|reason| reason.as_str());
        for reason in reasons.chain(others) {
            for state in states {
                for next in [None, Some(0), Some(5_000)] {
                    let sentence = said(state, Some((reason, "the\ncause")), next);
                    assert!(sentence.contains("`notes`"), "{sentence}");
                    assert!(!sentence.contains(['\n', '\r']), "{sentence}");
                    assert!(!sentence.contains(". "), "one sentence: {sentence}");
                    if state == State::Failed {
                        assert!(sentence.contains("the cause"), "{sentence}");
                        assert!(
                            sentence.contains("attempt") || sentence.contains("ConnectServer"),
                            "{sentence}"
                        );
                    }
                }
            }
        }
        for state in states {
            assert!(said(state, None, None).contains("`notes`"));
        }
    }

    #[test]
    fn long_causes_are_cut_and_other_days_are_named() {
        let long = "ä".repeat(1000);
        let sentence = said(
            ConnectionState::Failed,
            Some(("UPSTREAM_ERROR", &long)),
            None,
        );
        assert!(sentence.chars().count() < 400, "{sentence}");
        let later = Timestamp(NOW.0 + 86_400_000);
        assert_eq!(clock(SINCE, later), "2026-12-01 10:02 UTC");
    }
}
