//! The audit log: who did what, with which outcome. One line for every RPC that changes something or makes a call, and one
//! for every sign-in that a browser completes.
//!
//! | file | |
//! |---|---|
//! | `record` | one line, as it is queued and written |
//! | `trail` | what an RPC tells about itself on its way, and who made it |
//! | `sink` | the bounded queue, and the thread that writes |
//!
//! It is written from three places, so that nothing is forgotten: `api::serve` writes an RPC when it ends, whichever it is,
//! unless it only reads ([`READS`]) or has begun a call; `calls::ledger` writes a call when it ends, however that happens;
//! `auth` writes what a browser brought, since no RPC does. Never holds a result, nor what somebody answered.

mod record;
mod sink;
mod trail;

use std::sync::Arc;
use std::time::Duration;

pub use record::{Arguments, Asked, Record};
pub use trail::Trail;

use sink::Sink;

use crate::base::{Clock, Deadline, ServerKey, Timestamp};
use crate::config::{AuditConfig, AuditDestination};
use crate::error::{Error, Reason, Result};
use crate::model::call::{Call, Outcome, Subject};

/// RPCs that change nothing and call no server for an app, as `Service/Method`. Everything else is audited, so a new RPC is
/// unless somebody puts it here.
pub const READS: &[&str] = &[
    "AdminService/GetStatus",
    "AdminService/ListAppTokens",
    "AdminService/ListApps",
    "AuthService/GetAuthStatus",
    "AuthService/GetSignIn",
    "CallService/GetCall",
    "CallService/ListCalls",
    "CallService/WaitCall",
    "ElicitationService/GetElicitation",
    "ElicitationService/ListElicitations",
    "PromptService/Complete",
    "PromptService/ListPrompts",
    "ResourceService/ListResourceTemplates",
    "ResourceService/ListResources",
    "ResourceService/SubscribeResource",
    "SamplingService/GetSamplingRequest",
    "SamplingService/ListSamplingRequests",
    "ServerService/ExportServers",
    "ServerService/GetServer",
    "ServerService/GetServerLog",
    "ServerService/ListServers",
    "ServerService/RefreshServer",
    "ServerService/WaitForServers",
    "ToolService/ListTools",
    "UpdateService/StreamUpdates",
];

/// The package whose RPCs are audited.
const PACKAGE: &str = "/mcpsidecar.v1.";
/// Longest name of an event, in bytes: a caller may ask for any method.
const MAX_EVENT: usize = 64;
/// The event of a call to a tool; those of other calls are named alike.
pub const TOOL_CALL: &str = "tool_call";
const RESOURCE_READ: &str = "resource_read";
const PROMPT_GET: &str = "prompt_get";
/// The outcome of what went well.
pub const OK: &str = "ok";
/// The outcome of a tool that says that it failed.
const TOOL_ERROR: &str = "tool_error";

/// The event of an RPC, by its path; `None` if it is not audited.
#[must_use]
pub fn event_of(path: &str) -> Option<String> {
    let name = path.strip_prefix(PACKAGE)?;
    if READS.contains(&name) {
        return None;
    }
    let method = name.rsplit('/').next().unwrap_or_default();
    Some(match method {
        "CallTool" | "CallToolStream" | "CallTools" => TOOL_CALL.to_owned(),
        "ReadResource" => RESOURCE_READ.to_owned(),
        "GetPrompt" => PROMPT_GET.to_owned(),
        other => snake_case(other),
    })
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for c in name.chars().take(MAX_EVENT) {
        if c.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        if c.is_ascii_alphanumeric() {
            snake.push(c.to_ascii_lowercase());
        }
    }
    snake
}

/// The audit log, or none. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Audit(Option<Arc<Sink>>);

impl Audit {
    /// Opens the log as configured, and starts the thread that writes it.
    ///
    /// # Errors
    /// INTERNAL if the file cannot be opened, or the log filter would swallow the lines.
    pub fn open(config: &AuditConfig) -> Result<Self> {
        if config.destination == AuditDestination::Off {
            return Ok(Self(None));
        }
        Ok(Self(Some(Sink::open(config)?)))
    }

    /// Whether anything is written.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// What is written of the arguments of a call; `None` if nothing is.
    #[must_use]
    pub fn arguments(&self, arguments: impl FnOnce() -> Option<String>) -> Option<Arguments> {
        let bound = self.0.as_ref()?.arguments()?;
        Some(Arguments::cut(&arguments()?, bound))
    }

    /// Whether an RPC that is to be audited has to wait for [`Audit::room`] before it begins.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.0.as_ref().is_some_and(|sink| sink.is_full())
    }

    /// Waits until there is room in the queue, for as long as is configured, or until the deadline.
    ///
    /// # Errors
    /// TOO_MANY if there is none.
    pub async fn room(self, deadline: Deadline) -> Result<()> {
        let Some(sink) = &self.0 else { return Ok(()) };
        let patience = sink.wait();
        let bound = Deadline::after(patience).min(deadline);
        tokio::select! {
            biased;
            () = sink.room() => Ok(()),
            () = bound.elapsed() => Err(Error::new(
                Reason::TooMany,
                "the audit log cannot be written as fast as it grows, and nothing is done unaudited (audit.when_full); \
                 the daemon's log says why",
            )
            .retry_after(Duration::from_secs(1))),
        }
    }

    /// An RPC has ended that did not begin a call.
    pub fn rpc(&self, trail: &Trail, event: &str, outcome: &str, took: Duration) {
        let Some(sink) = &self.0 else { return };
        if trail.has_begun() {
            return;
        }
        let mut record = trail.record(event, outcome);
        record.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        sink.push(record);
    }

    /// A call has ended.
    pub fn call(&self, call: &Call, outcome: &str, arguments: Option<Arguments>) {
        let Some(sink) = &self.0 else { return };
        let (event, tool, resource, prompt) = match &call.subject {
            Subject::Tool(name) => (TOOL_CALL, Some(name), None, None),
            Subject::Resource(uri) => (RESOURCE_READ, None, Some(uri), None),
            Subject::Prompt(name) => (PROMPT_GET, None, None, Some(name)),
        };
        let now = Clock.wall();
        let took = call.created.until(now);
        let mut record = Record::new(now, event, outcome);
        record.namespace = Some(call.server.namespace.to_string());
        record.server = Some(call.server.id.to_string());
        record.tool = tool.cloned();
        record.resource = resource.cloned();
        record.prompt = prompt.cloned();
        record.call_id = Some(call.id.to_string());
        record.request_id.clone_from(&call.request_id);
        record.origin = call.began.as_deref().cloned();
        record.arguments = arguments;
        record.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        sink.push(record);
    }

    /// A browser came back from a sign-in at a server, begun at that time.
    pub fn browser(&self, server: &ServerKey, began: Timestamp, outcome: &str) {
        let Some(sink) = &self.0 else { return };
        let now = Clock.wall();
        let mut record = Record::new(now, "browser_sign_in", outcome);
        record.namespace = Some(server.namespace.to_string());
        record.server = Some(server.id.to_string());
        let took = began.until(now);
        record.duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        sink.push(record);
    }

    /// Opens the file anew, after it was renamed. If it cannot be opened, the old one goes on.
    pub fn reopen(&self) {
        if let Some(sink) = &self.0 {
            sink.reopen();
        }
    }

    /// Writes what is queued, and ends. What cannot be written within the bound is lost, and the log says how much.
    pub async fn close(&self, bound: Duration) {
        if let Some(sink) = &self.0 {
            sink.close(bound).await;
        }
    }
}

/// How a call that has ended so is told.
#[must_use]
pub fn outcome_of(call: &Call, outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Result(result) => {
            result_outcome(matches!(call.subject, Subject::Tool(_)), |name| {
                let members: Option<std::collections::HashMap<&str, &serde_json::value::RawValue>> =
                    serde_json::from_str(result).ok();
                members.is_some_and(|members| {
                    members.get(name).is_some_and(|value| value.get() == "true")
                })
            })
        }
        Outcome::Error(error) | Outcome::Cancelled(error) => error.reason().as_str(),
    }
}

/// How a result is told; `is_set` looks for a member of it that is true.
pub fn result_outcome(of_tool: bool, is_set: impl FnOnce(&str) -> bool) -> &'static str {
    if of_tool && is_set("isError") {
        TOOL_ERROR
    } else {
        OK
    }
}

#[cfg(test)]
mod tests {
    use super::event_of;

    #[test]
    fn what_only_reads_is_no_event_and_all_else_is() {
        for (path, event) in [
            ("/grpc.health.v1.Health/Check", None),
            ("/mcpsidecar.v1.ToolService/ListTools", None),
            ("/mcpsidecar.v1.ToolService/CallTool", Some("tool_call")),
            (
                "/mcpsidecar.v1.ToolService/CallToolStream",
                Some("tool_call"),
            ),
            ("/mcpsidecar.v1.ToolService/CallTools", Some("tool_call")),
            ("/mcpsidecar.v1.ServerService/AddServer", Some("add_server")),
            ("/mcpsidecar.v1.New/Do\"It", Some("do_it")),
        ] {
            assert_eq!(event_of(path).as_deref(), event, "{path}");
        }
        let long = format!("/mcpsidecar.v1.X/{}", "a".repeat(1000));
        assert_eq!(event_of(&long).unwrap().len(), 64);
    }
}
