//! `mcp-sidecar`: the daemon's servers, tools, questions and calls from a terminal. It uses nothing but the public API of
//! the Rust SDK.

mod app;
mod arguments;
mod ask;
mod commands;
mod exit;
mod files;
mod form;
mod out;
mod plain;
mod show;
mod terminal;

use std::process::ExitCode;

use clap::Parser as _;

use crate::app::App;
use crate::commands::Cli;
use crate::exit::{Failure, code};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => {
            out::complain(&format!("the runtime does not start: {error}"));
            return ExitCode::from(code::REFUSED);
        }
    };
    let code = runtime.block_on(run(cli));
    // A thread may still wait for a line from the keyboard; it is not waited for.
    runtime.shutdown_background();
    ExitCode::from(code)
}

/// Runs a command until it ends or is interrupted. What it has under way ends with it: its connection is closed, and the
/// daemon cancels its calls at the servers.
async fn run(cli: Cli) -> u8 {
    let app = App::new(&cli.globals);
    let outcome = tokio::select! {
        outcome = commands::run(cli.command, &app) => outcome,
        () = interrupted() => {
            app.clear_progress();
            return code::INTERRUPTED;
        }
    };
    app.clear_progress();
    match outcome {
        Ok(()) => code::OK,
        Err(failure) => {
            if !matches!(failure, Failure::Tool | Failure::BrokenPipe) {
                app.complain(&failure.to_string());
            }
            failure.code()
        }
    }
}

async fn interrupted() {
    if tokio::signal::ctrl_c().await.is_err() {
        // Without a handler the signal ends the program by itself.
        std::future::pending::<()>().await;
    }
}
