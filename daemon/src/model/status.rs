//! How a server stands: the connection's state and what is known of the peer.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::{Secret, ServerKey, Timestamp};
use crate::model::spec::{Abilities, ServerSpec};

/// The state of a connection; see design section 2.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ConnectionState {
    /// The transport is being opened and the era found.
    Connecting,
    /// The server wants the user to sign in.
    Authenticating,
    /// The protocol is agreed; lists are not read yet.
    Connected,
    /// The lists are being read.
    Discovering,
    /// The server can be used.
    Ready,
    /// The last attempt failed; another will follow.
    Failed,
    /// Not connected on purpose.
    #[default]
    Disconnected,
}

impl ConnectionState {
    /// Its name, in lower case.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Connecting => "connecting",
            Self::Authenticating => "authenticating",
            Self::Connected => "connected",
            Self::Discovering => "discovering",
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::Disconnected => "disconnected",
        }
    }

    /// Whether nothing is under way: what WaitForServers waits for.
    #[must_use]
    pub fn is_settled(self) -> bool {
        matches!(
            self,
            Self::Ready | Self::Authenticating | Self::Failed | Self::Disconnected
        )
    }
}

/// The protocol era (MCP 2026-07-28 basic/versioning).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Era {
    /// 2026-07-28 and later: stateless.
    Modern,
    /// 2025-11-25 and earlier: `initialize` handshake.
    Legacy,
}

/// The transport in use.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportKind {
    /// Streamable HTTP.
    StreamableHttp,
    /// A child process.
    Stdio,
    /// HTTP+SSE, as of MCP 2024-11-05.
    Sse,
    /// A Unix socket.
    UnixSocket,
}

/// How change notifications arrive.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Push {
    /// Not known yet.
    #[default]
    Unknown,
    /// The server offers no stream.
    None,
    /// The stream is open.
    Open,
    /// The stream was lost and is being opened again.
    Lost,
}

/// Name and version of a program, self-reported.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Implementation {
    /// Programmatic name.
    pub name: String,
    /// Name for people.
    pub title: String,
    /// Version.
    pub version: String,
    /// Further members, as raw JSON object; empty if none.
    pub extra: String,
}

/// One list of the catalog.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ListStatus {
    /// Entries that are offered.
    pub count: u32,
    /// Changes exactly when an entry changes.
    pub digest: String,
    /// Why the list is incomplete.
    pub incomplete_reason: Option<String>,
    /// When it was last read.
    pub fetched: Option<Timestamp>,
    /// For how long the server vouches for it from then on.
    #[serde(default)]
    pub ttl: Option<Duration>,
    /// Whom the server lets it be shown to.
    #[serde(default)]
    pub cache_scope: Option<CacheScope>,
}

/// Whom a result may be shown to (MCP 2026-07-28 server/utilities/caching). The stricter one is the greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheScope {
    /// Anybody.
    Public,
    /// Whoever has the same authorization.
    Private,
}

/// A tool that is not offered.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Withheld {
    /// Its name, as far as it has one.
    pub name: String,
    /// What is wrong with it.
    pub reason: String,
}

/// Why something failed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Failure {
    /// Reason code as apps see it.
    pub reason: String,
    /// For people.
    pub message: String,
    /// When.
    pub at: Timestamp,
}

/// What is known of a server now. Written by the connection only.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ServerStatus {
    /// The state of the connection.
    pub state: ConnectionState,
    /// Since when.
    pub since: Timestamp,
    /// The era in use.
    pub era: Option<Era>,
    /// The protocol version in use.
    pub protocol_version: String,
    /// The transport in use.
    pub transport: Option<TransportKind>,
    /// Who the server says it is.
    pub server_info: Option<Implementation>,
    /// How the server wants to be used.
    pub instructions: String,
    /// The server's capabilities, raw; empty if unknown.
    pub capabilities: String,
    /// The tools.
    pub tools: ListStatus,
    /// The resources.
    pub resources: ListStatus,
    /// The resource templates.
    pub resource_templates: ListStatus,
    /// The prompts.
    pub prompts: ListStatus,
    /// Tools that are not offered; at most 100 are named.
    pub withheld: Vec<Withheld>,
    /// How many tools the rules of the registration keep from apps. They are not named.
    pub not_allowed: u32,
    /// Why the last attempt failed or the last connection ended.
    pub last_failure: Option<Failure>,
    /// When the next attempt starts.
    pub next_retry: Option<Timestamp>,
    /// Failed attempts since the server was last ready.
    pub failed_attempts: u32,
    /// Where a user signs in, if a sign-in is pending.
    pub auth_url: Option<String>,
    /// How change notifications arrive.
    pub push: Push,
    /// The last lines of a child's standard error.
    pub stderr_tail: String,
    /// Calls under way now. A gauge for whoever asks: never stored, and no news.
    #[serde(skip)]
    pub calls_in_flight: u32,
}

/// A line that a child process wrote to its standard error, or to its standard output though it is no message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogLine {
    /// When its first byte was read.
    pub at: Timestamp,
    /// Which start of the process wrote it, counted from 1 since the daemon started.
    pub start: u32,
    /// The line without its end; what is not UTF-8 is replaced.
    pub text: String,
    /// It was written to standard output.
    pub output: bool,
}

/// What era detection found, kept so that the next start skips the probe. Valid only for the same target and pin.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The era.
    pub era: Era,
    /// The version that was agreed.
    pub version: String,
    /// The transport; `None` in what older daemons kept.
    #[serde(default)]
    pub transport: Option<TransportKind>,
    /// Fingerprint of what was probed, see [`ServerSpec::target_fingerprint`].
    pub target: String,
}

/// The session that a legacy server gave over HTTP: the daemon goes on with it after a restart. Whoever knows the id has
/// the session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Session {
    /// Its id.
    pub id: Secret<String>,
    /// The version that the handshake agreed on.
    pub version: String,
    /// The server's answer to `initialize`, raw.
    pub hello: String,
    /// What the server was told that it may ask for, if that is known.
    pub told: Option<Abilities>,
}

/// A registered server as it is stored.
#[derive(Clone, PartialEq, Debug)]
pub struct ServerRecord {
    /// Its full name.
    pub key: ServerKey,
    /// Whether the daemon made up the id; such a server can still be given a stable one.
    pub generated_id: bool,
    /// Whether it is in the configuration of the daemon: apps do not change it then.
    pub declared: bool,
    /// Its settings, with secrets.
    pub spec: ServerSpec,
    /// Whether it shall be connected: false after DisconnectServer and `register_only`.
    pub connect: bool,
    /// Counts the changes of `spec`; the etag.
    pub generation: u64,
    /// When it was registered.
    pub created: Timestamp,
    /// When `spec` last changed.
    pub updated: Timestamp,
    /// What era detection found.
    pub verdict: Option<Verdict>,
    /// The session to go on with; as it was when the daemon started.
    pub session: Option<Session>,
}

impl ServerRecord {
    /// The etag of this generation.
    #[must_use]
    pub fn etag(&self) -> String {
        format!("{:x}-{:x}", self.created.0, self.generation)
    }

    /// What apps see of it, with the given status. Secrets are wiped.
    #[must_use]
    pub fn view(&self, status: ServerStatus) -> ServerView {
        ServerView {
            key: self.key.clone(),
            spec: self.spec.without_secrets(),
            status,
            etag: self.etag(),
            created: self.created,
            updated: self.updated,
            declared: self.declared,
        }
    }
}

/// A server as apps see it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ServerView {
    /// Its full name.
    pub key: ServerKey,
    /// Its settings without secrets.
    pub spec: ServerSpec,
    /// How it stands.
    pub status: ServerStatus,
    /// See [`ServerRecord::etag`].
    pub etag: String,
    /// When it was registered.
    pub created: Timestamp,
    /// When `spec` last changed.
    pub updated: Timestamp,
    /// See [`ServerRecord::declared`].
    #[serde(default)]
    pub declared: bool,
}
