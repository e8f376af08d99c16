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
    clippy::cast_precision_loss,
    reason = "a program for people: it prints, reads the clock and fails by panicking"
)]

mod budget;
mod calls;
mod instructions;
mod lists;
mod load;
mod memory;
mod paths;
mod questions;
mod server;
mod starts;
mod updates;

use std::process::ExitCode;

use crate::server::Manner;

const USAGE: &str = "usage: cargo bench-sidecar CASE [--json]
  calls      a call by every way to the same server: HTTP of both eras, event streams, stdio; sizes and concurrency
  lists      10 to 10,000 tools, and 10 of each of 1,000 servers, beside the server's own list
  updates    a change on its way to 1 to 1,000 subscribers, some of which do not read
  instructions [--update]
             instructions of one call, by callgrind; exit status 1 if they are more than they were
  questions  10,000 questions that wait, beside 10
  budgets [calls|memory|instructions|starts|lists|updates]...
             what the daemon may cost, and whether it keeps to it; exit status 1 if it does not";

/// Groups of budgets.
const BUDGETS: &[&str] = &[
    "calls",
    "memory",
    "instructions",
    "starts",
    "lists",
    "updates",
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<_> = arguments.iter().map(String::as_str).collect();
    // Without a runtime: standard streams are read as a server would that has nothing else to do.
    if let ["serve", "stdio", options @ ..] = &words[..] {
        server::stdio(manner(options));
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(run(&words))
}

async fn run(words: &[&str]) -> ExitCode {
    match words {
        ["serve", "http", options @ ..] => {
            let port = option(options, "--port").and_then(|port| port.parse().ok());
            server::http(manner(options), port.expect("a port")).await;
            return ExitCode::SUCCESS;
        }
        ["serve", "grpc", "--socket", socket] => {
            server::grpc(socket.as_ref()).await;
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let as_json = words.contains(&"--json");
    let case: Vec<_> = words
        .iter()
        .copied()
        .filter(|word| *word != "--json")
        .collect();
    match &case[..] {
        ["calls"] => calls::measure(as_json).await,
        ["questions"] => questions::measure(as_json).await,
        ["lists"] => lists::measure(as_json).await,
        ["updates"] => updates::measure(as_json).await,
        ["instructions", options @ ..] => {
            if !instructions::guard(options.contains(&"--update")).await {
                return ExitCode::FAILURE;
            }
        }
        ["budgets", groups @ ..] => {
            if !Box::pin(budgets(groups, as_json)).await {
                return ExitCode::FAILURE;
            }
        }
        _ => {
            eprintln!("{USAGE}");
            return ExitCode::from(64);
        }
    }
    ExitCode::SUCCESS
}

/// All budgets, or those of some groups; whether all are kept.
async fn budgets(groups: &[&str], as_json: bool) -> bool {
    let mut rows = Vec::new();
    for group in BUDGETS {
        if !groups.is_empty() && !groups.contains(group) {
            continue;
        }
        let measured = match *group {
            "calls" => Box::pin(calls::budgets()).await,
            "memory" => memory::budgets().await,
            "instructions" => instructions::budgets().await,
            "starts" => starts::budgets().await,
            "lists" => lists::budgets().await,
            _ => updates::budgets().await,
        };
        if !as_json {
            measured.iter().for_each(budget::Row::print);
        }
        rows.extend(measured);
    }
    if as_json {
        println!("{}", budget::as_json(&rows));
    }
    rows.iter().all(budget::Row::is_within)
}

fn option<'a>(options: &[&'a str], name: &str) -> Option<&'a str> {
    let at = options.iter().position(|option| *option == name)?;
    options.get(at + 1).copied()
}

fn manner(options: &[&str]) -> Manner {
    let tools = option(options, "--tools").and_then(|tools| tools.parse().ok());
    Manner {
        modern: !options.contains(&"--legacy"),
        sse: options.contains(&"--sse"),
        tools: tools.unwrap_or(1),
    }
}
