//! The command line, and what each command does.

mod admin;
mod auth;
mod calls;
mod prompts;
mod questions;
mod resources;
mod servers;
mod spec;
mod tokens;
mod tools;
mod watch;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::app::{App, Globals};
use crate::exit::Outcome;
use crate::out;

const AFTER: &str = "\
Exit codes: 0 done, 1 the daemon or a server refused, 2 usage, 3 no daemon can be reached, 4 the tool reports an error, \
5 an answer is needed and --no-input is given, 130 interrupted.";

/// Works with the MCP servers of this host through the daemon mcp-sidecard
#[derive(Debug, Parser)]
#[command(name = "mcp-sidecar", version, after_help = AFTER, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Add, list, change and connect servers
    #[command(subcommand, visible_alias = "server")]
    Servers(servers::Servers),
    /// List, describe and call tools
    #[command(subcommand, visible_alias = "tool")]
    Tools(tools::Tools),
    /// List, read and follow resources
    #[command(subcommand, visible_alias = "resource")]
    Resources(resources::Resources),
    /// List and fill prompts
    #[command(subcommand, visible_alias = "prompt")]
    Prompts(prompts::Prompts),
    /// Sign in at a server with a browser
    SignIn(auth::SignIn),
    /// Forget what the daemon was granted at a server
    SignOut(auth::OfServer),
    /// Say what the daemon is authorized to do at a server
    Auth(auth::OfServer),
    /// List and answer what servers ask
    #[command(subcommand, visible_alias = "question")]
    Questions(questions::Questions),
    /// List, await and cancel calls
    #[command(subcommand, visible_alias = "call")]
    Calls(calls::Calls),
    /// Follow everything that happens
    Watch(watch::Watch),
    /// Tell how the daemon is, and why servers are not ready
    Status,
    /// List the connections of apps
    Apps,
    /// Make, list and revoke tokens, for apps that reach the daemon over TCP
    #[command(subcommand, visible_alias = "token")]
    Tokens(tokens::Tokens),
    /// Set what the daemon logs
    LogFilter(admin::LogFilter),
    /// Have the daemon read its configuration again
    Reload(admin::Reload),
    /// Let the daemon stop, once what is under way has ended
    Drain,
    /// Write a completion script for a shell to standard output
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Does it.
pub(crate) async fn run(command: Command, app: &App) -> Outcome {
    match command {
        Command::Servers(command) => servers::run(command, app).await,
        Command::Tools(command) => tools::run(command, app).await,
        Command::Resources(command) => resources::run(command, app).await,
        Command::Prompts(command) => prompts::run(command, app).await,
        Command::SignIn(command) => auth::sign_in(command, app).await,
        Command::SignOut(command) => auth::sign_out(command, app).await,
        Command::Auth(command) => auth::status(command, app).await,
        Command::Questions(command) => questions::run(command, app).await,
        Command::Calls(command) => calls::run(command, app).await,
        Command::Watch(command) => watch::run(command, app).await,
        Command::Status => admin::status(app).await,
        Command::Apps => admin::apps(app).await,
        Command::Tokens(command) => tokens::run(command, app).await,
        Command::LogFilter(command) => admin::log_filter(command, app).await,
        Command::Reload(command) => admin::reload(command, app).await,
        Command::Drain => admin::drain(app).await,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "mcp-sidecar", &mut script);
            Ok(out::write(&String::from_utf8_lossy(&script))?)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
