//! `cargo bench-sidecar CASE [--json]`: what the daemon costs, beside the thing it is compared with, in one interleaved run.
//!
//! Machines are noisy: only what one run says of both sides can be compared.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a program for people: it prints, reads the clock and fails by panicking"
)]

mod questions;

use std::process::ExitCode;

const USAGE: &str = "usage: cargo bench-sidecar questions [--json]
  questions  10,000 questions that wait, beside 10";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let json = arguments.iter().any(|argument| argument == "--json");
    let words: Vec<_> = arguments
        .iter()
        .filter(|argument| *argument != "--json")
        .map(String::as_str)
        .collect();
    if words == ["questions"] {
        questions::measure(json).await;
    } else {
        eprintln!("{USAGE}");
        return ExitCode::from(64);
    }
    ExitCode::SUCCESS
}
