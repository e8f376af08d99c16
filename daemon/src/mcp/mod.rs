//! The client side of MCP: from raw JSON-RPC up to one supervised connection per server.
//!
//! Bottom up: `protocol` (envelopes), `headers` and `era` (what versions differ in), `transport` (how bytes travel), `link`
//! (a live link: calls, questions), `open` (finding the era, the handshake), `push` (notifications), `listing` (page
//! walks), `state` (the pure machine) and `connection` (the actor that performs its effects).

pub mod asker;
pub mod connection;
pub mod era;
pub mod headers;
pub mod link;
pub mod listing;
pub mod open;
pub mod protocol;
pub mod push;
pub mod state;
pub mod subscriptions;
pub mod transport;

use std::time::Duration;

use transport::stdio::StdioOptions;

/// Bounds and defaults that all connections share; from the configuration.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Default bound on opening a connection.
    pub connect: Duration,
    /// Bound on one answer while the era is being found.
    pub probe: Duration,
    /// Default bound on a server's silence during a call.
    pub call_idle: Duration,
    /// Default bound on a call.
    pub call: Duration,
    /// Pause between two looks at a task whose server suggests none.
    pub task_poll: Duration,
    /// Whether a call of a tool that is declared read-only or idempotent is made again when its answer was cut off.
    pub repeat_safe: bool,
    /// Bound on one message of a server, in bytes.
    pub message_bytes: usize,
    /// Most pages of one list.
    pub list_pages: usize,
    /// Most entries of one list.
    pub list_items: usize,
    /// Most calls of one server at a time.
    pub calls_per_server: usize,
    /// Most calls that are under way or wait for answers, of all servers together.
    pub calls: usize,
    /// Most sessions of single apps with one server.
    pub sessions_per_server: usize,
    /// How long such a session is kept that nobody uses.
    pub session_idle: Duration,
    /// Most `input_required` rounds of one call.
    pub rounds: usize,
    /// Bound on each step of ending a connection.
    pub close_grace: Duration,
    /// Upper bound of the delay between background reconnections.
    pub reconnect_max: Duration,
    /// How often a READY server is asked for a sign of life.
    pub liveness: Duration,
    /// How often a connection with nothing to say is probed.
    pub keepalive: Duration,
    /// How often lists are read again from a server that does not push.
    pub list_refresh: Duration,
    /// Whether servers may be child processes.
    pub stdio_enabled: bool,
    /// How child processes are run.
    pub stdio: StdioOptions,
}
