//! Harness of the tests: a daemon in a temporary directory, clients for all its services, fake and
//! real MCP servers.
//!
//! Everything here fails by panicking with a message that says what was expected, and every wait
//! has a bound.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::missing_panics_doc,
    clippy::missing_errors_doc,
    clippy::must_use_candidate,
    reason = "a test harness fails by panicking, reads the clock and owns its tasks by test"
)]

pub mod asker;
pub mod audience;
pub mod audit;
pub mod call_stream;
pub mod calls;
pub mod cgroup;
pub mod cli;
pub mod clients;
pub mod conformance;
pub mod daemon;
pub mod facts;
pub mod fake;
pub mod fake_auth;
pub mod fake_keyring;
pub mod fake_stdio;
pub mod json;
pub mod own_systemd;
pub mod package;
pub mod peers;
pub mod process;
pub mod sampling;
pub mod sign_in;
pub mod stage;
pub mod stranger;
mod tapped;
pub mod tokens;
pub mod updates;
pub mod wait;
pub mod wall_clock;

/// The messages of the contract.
pub use mcp_sidecar_proto::v1;

/// What most tests need.
pub mod prelude {
    pub use crate::cgroup::TestCgroup;
    pub use crate::clients::{
        CallEvents, Clients, http_spec, http_spec_as, millis, seconds, socket_spec, stdio_spec,
    };
    pub use crate::daemon::TestDaemon;
    pub use crate::facts::{ErrorFacts, ServerFacts, text_of};
    pub use crate::fake::{FakeMcp, Reply, Seen, Step, tool};
    pub use crate::fake_auth::{AuthStage, Browser, Decision, Endpoint, FakeAuth, Guard};
    pub use crate::fake_auth::{Rules, Shape, protected, protected_with, watched};
    pub use crate::fake_stdio::{Form, Helper, Script, StdioFault};
    pub use crate::sign_in::by_user;
    pub use crate::stage::{Stage, one_and_two, one_and_two_at_once, one_and_two_with};
    pub use crate::tokens::by_tcp;
    pub use crate::updates::Updates;
    pub use crate::v1;
    pub use crate::v1::{AddOutcome, ConnectionState, Era, Server, ServerSpec};
    pub use crate::wait::{PATIENCE, eventually, within};
    pub use serde_json::{Value, json};
    pub use std::time::Duration;
    pub use tonic::Code;
}
