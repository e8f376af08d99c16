//! Rust client of `mcp-sidecar`, the daemon that holds every MCP connection of a host.
//!
//! ```no_run
//! use mcp_sidecar_client::{Client, http_server, tool_call};
//! use serde_json::json;
//!
//! # async fn run() -> Result<(), mcp_sidecar_client::Error> {
//! let client = Client::connect().await?;
//! let added = client.add_server(http_server("weather", "https://mcp.example.com/mcp")).await?;
//! let server_id = added.server.unwrap_or_default().id;
//! for tool in client.list_tools().await?.items {
//!     println!("{} {}", tool.server_id, tool.name);
//! }
//! let answer = client
//!     .call_tool(tool_call(server_id, "forecast", json!({ "city": "Bern" })))
//!     .await?;
//! println!("{:?}", answer.result);
//! # Ok(())
//! # }
//! ```
//!
//! What this crate adds to the generated stubs:
//!
//! - it finds the daemon's socket, or takes an address and a token, and waits, for a bounded time, until the daemon answers
//!   ([`Builder`]);
//! - it fills in the namespace and the deadline, and walks through pages ([`Client`]);
//! - errors carry the daemon's reason code and facts ([`Error`], [`Reason`]);
//! - an app that calls often makes its calls over one stream ([`ToolCalls`]);
//! - updates go on by themselves after a lost connection or a restart of the daemon ([`Updates`]);
//! - questions of servers are answered by callbacks ([`QuestionHandlers`]);
//! - tools take the shapes of the APIs of language models, and the models' calls find the way back ([`ModelApi`]);
//! - with the feature `json`, messages are written and read in the contract's JSON mapping (`Json`, `from_json`).
//!
//! The messages are those of the contract, re-exported as [`proto`]; their comments are the reference. The generated
//! clients stay reachable, for example with [`Client::tools`].

mod admin;
mod calls;
mod client;
mod connect;
mod connection;
mod error;
mod handlers;
#[cfg(feature = "json")]
mod json;
mod listing;
mod models;
mod prompts;
mod questions;
mod requests;
mod resources;
mod sampling;
mod servers;
mod sign_in;
mod tool_calls;
mod tools;
mod updates;

pub use admin::{AdminClient, admin_socket};
pub use calls::{CallEvent, CallStream};
pub use client::Client;
pub use connect::{
    ADDRESS_ENV, ADMIN_SOCKET_ENV, Builder, ConnectAttempt, SOCKET_ENV, TOKEN_ENV, TOKEN_FILE_ENV,
    socket_candidates,
};
pub use connection::{Connection, Token};
pub use error::{Error, Reason, Result, Violation};
pub use handlers::{Answer, Question, QuestionHandlers, SamplingAnswer};
#[cfg(feature = "json")]
pub use json::{Json, from_json};
pub use listing::Listing;
pub use mcp_sidecar_proto::v1 as proto;
pub use models::{ModelApi, ModelToolCall};
pub use requests::{Arguments, http_server, model_tool_call, stdio_server, tool_call};
pub use resources::{ResourceChange, ResourceChanges};
pub use sign_in::open_browser;
pub use tool_calls::ToolCalls;
pub use updates::{ResetCause, Update, UpdateEvent, UpdateFilter, Updates};

/// The largest message in either direction: 72 MiB, the daemon's own limit (`limits.grpc_message_bytes`).
pub const MAX_MESSAGE_BYTES: usize = 72 * 1024 * 1024;

/// Compiles the Rust snippet of the project's README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
