//! What a server's first answers mean: its era and its transport, as pure functions.

use crate::error::{Error, Reason, RpcError};
use crate::mcp::era::{LEGACY_VERSIONS, MODERN_VERSIONS, NEWEST_LEGACY};
use crate::mcp::protocol::{RawJson, code};

/// How a server answered the probe.
#[derive(Clone, Debug)]
pub(super) enum ProbeAnswer {
    /// With a result.
    Result(RawJson),
    /// With a JSON-RPC error, by whatever status.
    Rpc(RpcError),
    /// With an HTTP status and no JSON-RPC error.
    Status(u16, Error),
    /// With something that is not MCP.
    Garbage,
    /// Not in time.
    Silence,
    /// It ended the connection.
    Gone(Error),
}

/// What a probe's answer means.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Judgement {
    /// Modern, with this version.
    Modern(&'static str),
    /// Modern, but it wants to be asked with this version.
    AskAgain(&'static str),
    /// Legacy; offer this version first.
    Legacy(&'static str),
    /// No verdict.
    Fail(Error),
}

/// Judges a server's era by its answer to `server/discover`. `first` is false on the second probe.
#[must_use]
pub(super) fn judge(answer: ProbeAnswer, asked: &'static str, first: bool) -> Judgement {
    match answer {
        ProbeAnswer::Result(result) => match read_versions(result.get("supportedVersions")) {
            // Some legacy servers answer every method they do not know with an empty result.
            None => Judgement::Legacy(NEWEST_LEGACY),
            Some(versions) => choose(&versions, asked).unwrap_or_else(|| no_common(&versions)),
        },
        ProbeAnswer::Rpc(error) if error.code == code::UNSUPPORTED_VERSION => {
            let data = error
                .data
                .clone()
                .and_then(|data| RawJson::parse(data).ok());
            let versions =
                read_versions(data.and_then(|data| data.get("supported"))).unwrap_or_default();
            match choose(&versions, asked) {
                Some(Judgement::Legacy(version)) => Judgement::Legacy(version),
                Some(Judgement::Modern(version)) if first => Judgement::AskAgain(version),
                None if first && versions.is_empty() => Judgement::AskAgain(asked),
                _ => no_common(&versions),
            }
        }
        ProbeAnswer::Rpc(error)
            if matches!(error.code, code::HEADER_MISMATCH | code::MISSING_CAPABILITY) =>
        {
            Judgement::Fail(Error::upstream(error))
        }
        ProbeAnswer::Status(status, error)
            if matches!(status, 401 | 403 | 407 | 429) || status >= 500 =>
        {
            Judgement::Fail(error)
        }
        ProbeAnswer::Gone(error) => Judgement::Fail(error),
        ProbeAnswer::Rpc(_)
        | ProbeAnswer::Status(..)
        | ProbeAnswer::Garbage
        | ProbeAnswer::Silence => Judgement::Legacy(NEWEST_LEGACY),
    }
}

pub(super) fn read_versions(list: Option<RawJson>) -> Option<Vec<String>> {
    let elements = list?.elements()?;
    Some(elements.iter().filter_map(RawJson::read).collect())
}

fn choose(versions: &[String], asked: &'static str) -> Option<Judgement> {
    let offered = |version: &&'static str| versions.iter().any(|other| other == version);
    if offered(&asked) {
        return Some(Judgement::Modern(asked));
    }
    if let Some(version) = MODERN_VERSIONS.iter().copied().find(offered) {
        return Some(Judgement::Modern(version));
    }
    LEGACY_VERSIONS
        .iter()
        .copied()
        .find(offered)
        .map(Judgement::Legacy)
}

fn no_common(versions: &[String]) -> Judgement {
    Judgement::Fail(Error::new(
        Reason::UpstreamProtocol,
        format!(
            "the server speaks MCP versions {versions:?}; the daemon speaks {MODERN_VERSIONS:?} and {LEGACY_VERSIONS:?}"
        ),
    ))
}

/// Whether a refused handshake over Streamable HTTP means that the server has no such transport: by its status alone,
/// never by what it says. A JSON-RPC error comes from somebody who reads what is POSTed; with 404 and 405 some old servers
/// decorate their refusal with one, but those that modern servers give out are theirs.
#[must_use]
pub(super) fn lacks_transport(error: &Error) -> bool {
    let modern = |rpc: &RpcError| {
        matches!(
            rpc.code,
            code::METHOD_NOT_FOUND
                | code::UNSUPPORTED_VERSION
                | code::HEADER_MISMATCH
                | code::MISSING_CAPABILITY
        )
    };
    match error.http_status() {
        Some(400) => error.rpc().is_none(),
        Some(404 | 405) => !error.rpc().is_some_and(modern),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{Judgement, ProbeAnswer, judge, lacks_transport};
    use crate::error::{Error, Reason, RpcError};
    use crate::mcp::protocol::RawJson;

    const NEW: &str = "2026-07-28";
    const OLD: Judgement = Judgement::Legacy("2025-11-25");

    fn rpc(code: i64, data: Option<&str>) -> ProbeAnswer {
        ProbeAnswer::Rpc(RpcError {
            code,
            message: String::new(),
            data: data.map(str::to_owned),
        })
    }

    fn result(json: &str) -> ProbeAnswer {
        ProbeAnswer::Result(RawJson::parse(json.to_owned()).unwrap())
    }

    fn status(code: u16) -> ProbeAnswer {
        ProbeAnswer::Status(code, Error::new(Reason::NotAnMcpServer, "x"))
    }

    #[test]
    fn every_known_way_to_refuse_the_probe() {
        // Old servers, as they are in the field.
        for old in [
            rpc(-32601, None),
            rpc(-32602, None),
            rpc(-32600, None),
            rpc(-32000, None),
            result("{}"),
            status(400),
            status(404),
            status(405),
            ProbeAnswer::Garbage,
            ProbeAnswer::Silence,
        ] {
            assert_eq!(judge(old.clone(), NEW, true), OLD, "{old:?}");
        }
        // Modern servers.
        assert_eq!(
            judge(result(r#"{"supportedVersions":["2026-07-28"]}"#), NEW, true),
            Judgement::Modern(NEW)
        );
        assert_eq!(
            judge(
                rpc(-32022, Some(r#"{"supported":["2026-07-28"]}"#)),
                NEW,
                true
            ),
            Judgement::AskAgain(NEW)
        );
        assert_eq!(
            judge(rpc(-32022, None), NEW, true),
            Judgement::AskAgain(NEW)
        );
        assert_eq!(
            judge(
                rpc(-32022, Some(r#"{"supported":["2099-01-01","2025-06-18"]}"#)),
                NEW,
                true
            ),
            Judgement::Legacy("2025-06-18")
        );
        // No verdict.
        for unclear in [
            rpc(-32022, Some(r#"{"supported":["2099-01-01"]}"#)),
            rpc(-32021, None),
            result(r#"{"supportedVersions":["2099-01-01"]}"#),
            status(401),
            status(403),
            status(429),
            status(502),
            ProbeAnswer::Gone(Error::internal("x")),
        ] {
            assert!(
                matches!(judge(unclear.clone(), NEW, true), Judgement::Fail(_)),
                "{unclear:?}"
            );
        }
        // The second time is the last.
        let again = judge(
            rpc(-32022, Some(r#"{"supported":["2026-07-28"]}"#)),
            NEW,
            false,
        );
        assert!(matches!(again, Judgement::Fail(_)));
    }

    #[test]
    fn a_transport_is_missed_by_status_alone() {
        let refused = |status: u16, code: Option<i64>| {
            let error = match code {
                None => Error::new(Reason::NotAnMcpServer, "HTTP 404 401 405 not found"),
                Some(code) => Error::upstream(RpcError {
                    code,
                    message: "Session not found".to_owned(),
                    data: None,
                }),
            };
            lacks_transport(&error.with("http_status", status.to_string()))
        };
        for status in [400, 404, 405] {
            assert!(refused(status, None), "{status}");
        }
        for status in [200, 401, 403, 406, 409, 410, 415, 429, 500, 501, 503] {
            assert!(!refused(status, None), "{status}");
        }
        // Somebody reads what is POSTed.
        assert!(!refused(400, Some(-32000)));
        for modern in [-32601, -32020, -32021, -32022] {
            assert!(!refused(404, Some(modern)) && !refused(405, Some(modern)));
        }
        assert!(refused(405, Some(-32000)));
        assert!(!lacks_transport(&Error::new(
            Reason::UpstreamTimeout,
            "404"
        )));
    }
}
