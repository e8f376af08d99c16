//! Stories against the built daemon, one module per capability, driven through gRPC only.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, reads the clock and owns its tasks"
)]

mod answers;
mod bad_input;
mod calls;
mod cancel;
mod clock;
mod crash;
mod encodings;
mod eras;
mod fidelity;
mod half_open;
mod harness;
mod headers;
mod hostile;
mod human;
mod isolation;
mod lifecycle;
mod listings;
mod matrix;
mod odd_tools;
mod peers;
mod processes;
mod questions;
mod reflection;
mod servers;
mod sessions;
mod streams;
mod subscriptions;
mod transports;
mod updates;
mod wire;
