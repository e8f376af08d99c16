//! What answers say, in short forms for assertions.

use std::collections::HashMap;
use std::time::Duration;

use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use crate::v1::{self, ConnectionState, Server};

/// The text blocks of a result, joined.
pub fn text_of(result: &v1::ToolResult) -> String {
    let texts = result
        .content
        .iter()
        .filter_map(|block| match &block.block {
            Some(v1::content_block::Block::Text(text)) => Some(text.text.as_str()),
            _ => None,
        });
    texts.collect::<Vec<_>>().join("\n")
}

/// What a status says, decoded.
#[derive(Debug)]
pub struct ErrorFacts {
    /// The gRPC code.
    pub code: Code,
    /// `ErrorInfo.reason`; empty if there is none.
    pub reason: String,
    /// `ErrorInfo.domain`; empty if there is none.
    pub domain: String,
    /// `ErrorInfo.metadata`.
    pub metadata: HashMap<String, String>,
    /// The first field of `BadRequest`; empty if there is none.
    pub field: String,
    /// `RetryInfo.retry_delay`.
    pub retry: Option<Duration>,
    /// The message.
    pub message: String,
}

impl ErrorFacts {
    /// Decodes the details of a status.
    pub fn of(status: &Status) -> Self {
        let details = status.get_error_details();
        let info = details.error_info();
        let field = details
            .bad_request()
            .and_then(|bad| bad.field_violations.first())
            .map(|violation| violation.field.clone());
        Self {
            code: status.code(),
            reason: info.map(|info| info.reason.clone()).unwrap_or_default(),
            domain: info.map(|info| info.domain.clone()).unwrap_or_default(),
            metadata: info.map(|info| info.metadata.clone()).unwrap_or_default(),
            field: field.unwrap_or_default(),
            retry: details.retry_info().and_then(|info| info.retry_delay),
            message: status.message().to_owned(),
        }
    }

    /// Expects a refusal with this code and reason, and returns its facts.
    #[track_caller]
    pub fn expect<T: std::fmt::Debug>(
        outcome: Result<T, Status>,
        code: Code,
        reason: &str,
    ) -> Self {
        let status = outcome.expect_err("a refusal is expected");
        let facts = Self::of(&status);
        assert_eq!(
            (facts.code, facts.reason.as_str()),
            (code, reason),
            "{facts:?}"
        );
        assert_eq!(facts.domain, "mcpsidecar", "{facts:?}");
        assert!(!facts.message.is_empty(), "{facts:?}");
        facts
    }
}

/// Short forms for a server's status.
pub trait ServerFacts {
    /// The whole status.
    fn facts(&self) -> &v1::ServerStatus;

    /// The state of the connection.
    fn state(&self) -> ConnectionState {
        self.facts().state()
    }

    /// Reason and message of the last failure; empty if there is none.
    fn failure(&self) -> (&str, &str) {
        let failure = self.facts().last_failure.as_ref();
        failure.map_or(("", ""), |failure| (&failure.reason, &failure.message))
    }

    /// Number of tools in the catalog.
    fn tool_count(&self) -> u32 {
        self.facts().tools.as_ref().map_or(0, |list| list.count)
    }
}

impl ServerFacts for Server {
    fn facts(&self) -> &v1::ServerStatus {
        self.status.as_ref().expect("a server has a status")
    }
}
