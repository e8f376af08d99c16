//! Stories against the built daemon, one module per capability, driven through gRPC only.
//!
//! A name that begins with a letter and a number, such as `b13_`, is a story about a fault that users of other clients and
//! gateways met; one that begins with `behaviour_` and a number is about a behaviour that apps may rely on, as they know it
//! from other clients. Relatives of a fault bear its number.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, reads the clock and owns its tasks"
)]

mod admin;
mod allow_lists;
mod answers;
mod approvals;
mod audience;
mod audit;
mod auth_attacks;
mod auth_clients;
mod auth_discovery;
mod auth_machines;
mod auth_peers;
mod auth_races;
mod auth_renewals;
mod auth_safety;
mod auth_scopes;
mod auth_servers;
mod auth_sign_ins;
mod auth_waiting;
mod bad_authorization;
mod bad_input;
mod call_streams;
mod calls;
mod cancel;
mod cli;
mod clock;
mod completions;
mod crash;
mod destinations;
mod encodings;
mod eras;
mod fake_auth;
mod fidelity;
mod go_sdk;
mod grpcurl;
mod half_open;
mod harness;
mod headers;
mod hostile;
mod http2;
mod human;
mod import;
mod interleavings;
mod interop;
mod interop_stubs;
mod isolation;
mod legacy_tasks;
mod lifecycle;
mod listings;
mod matrix;
mod memory;
mod metrics;
mod odd_tasks;
mod odd_tools;
mod operations;
mod outliving;
mod output_checks;
mod own_sessions;
mod pages;
mod peers;
mod processes;
mod python_sdk;
mod question_peers;
mod questions;
mod readme;
mod reflection;
mod reload;
mod repeats;
mod sampling;
mod sampling_queue;
mod servers;
mod sessions;
mod shared_calls;
mod streams;
mod subscriptions;
mod survey;
mod systemd;
mod task_transports;
mod tasks;
mod tcp;
mod three_processes;
mod traces;
mod transports;
mod typescript_sdk;
mod unattended;
mod updates;
mod vault;
mod wire;
