//! What every command needs: the settings of the command line, the client, and the progress bar.

use std::cell::{OnceCell, RefCell};
use std::time::Duration;

use clap::{ArgAction, Args};
use indicatif::ProgressBar;
use mcp_sidecar_client::{AdminClient, Builder, Client, Token};

use crate::exit::Outcome;
use crate::out::{self, DIM, Format, styled};
use crate::plain::plain;
use crate::terminal;

/// How long a daemon that is just starting is waited for.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// Options of all commands.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Globals {
    /// The daemon's socket [default: found: the user's daemon, then the host's]
    #[arg(
        long,
        global = true,
        env = "MCP_SIDECAR_SOCKET",
        value_name = "PATH",
        hide_env_values = true
    )]
    pub(crate) socket: Option<std::path::PathBuf>,
    /// The daemon's address, where its socket cannot be reached; with a token [default: MCP_SIDECAR_ADDRESS, without a socket]
    #[arg(long, global = true, value_name = "HOST:PORT")]
    pub(crate) address: Option<String>,
    /// A file with the token for the address [default: MCP_SIDECAR_TOKEN, MCP_SIDECAR_TOKEN_FILE]
    #[arg(long, global = true, value_name = "PATH")]
    pub(crate) token_file: Option<std::path::PathBuf>,
    /// The daemon's admin socket [default: the one beside its socket]
    #[arg(
        long,
        global = true,
        env = "MCP_SIDECAR_ADMIN_SOCKET",
        value_name = "PATH",
        hide_env_values = true
    )]
    pub(crate) admin_socket: Option<std::path::PathBuf>,
    /// The namespace [default: `default`]
    #[arg(
        long,
        short,
        global = true,
        env = "MCP_SIDECAR_NAMESPACE",
        value_name = "NAME",
        hide_env_values = true
    )]
    pub(crate) namespace: Option<String>,
    /// How results are written
    #[arg(
        long,
        short,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT"
    )]
    pub(crate) output: Format,
    /// No colours (nor with NO_COLOR in the environment, nor where there is no terminal)
    #[arg(long, global = true)]
    pub(crate) no_color: bool,
    /// How long a request may take, for example `30s` [default: the daemon's own timeouts]
    #[arg(long, global = true, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) timeout: Option<Duration>,
    /// Nothing but results and errors
    #[arg(long, short, global = true, conflicts_with = "verbose")]
    pub(crate) quiet: bool,
    /// Say more about what happens
    #[arg(long, short, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,
}

/// A run of the program.
pub(crate) struct App {
    globals: Globals,
    client: OnceCell<Client>,
    progress: RefCell<Option<ProgressBar>>,
}

impl App {
    pub(crate) fn new(globals: &Globals) -> Self {
        if globals.no_color {
            anstream::ColorChoice::Never.write_global();
        }
        Self {
            globals: globals.clone(),
            client: OnceCell::new(),
            progress: RefCell::new(None),
        }
    }

    pub(crate) fn format(&self) -> Format {
        self.globals.output
    }

    /// The client; connects the first time. A daemon that is starting is waited for.
    pub(crate) async fn client(&self) -> Outcome<Client> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        let mut builder = self.builder();
        if let Some(address) = &self.globals.address {
            builder = builder.address(address);
        }
        if let Some(file) = &self.globals.token_file {
            builder = builder.token(Token::from_file(file)?);
        }
        let client = builder.connect().await?;
        Ok(self.client.get_or_init(|| client).clone())
    }

    /// A client of the admin socket.
    pub(crate) async fn operator(&self) -> Outcome<AdminClient> {
        let path = self.globals.admin_socket.clone();
        Ok(self.builder().connect_admin(path).await?)
    }

    fn builder(&self) -> Builder {
        let mut builder = Client::builder().connect_timeout(CONNECT_TIMEOUT);
        if let Some(socket) = &self.globals.socket {
            builder = builder.socket(socket);
        }
        if let Some(namespace) = &self.globals.namespace {
            builder = builder.namespace(namespace);
        }
        if let Some(timeout) = self.globals.timeout {
            builder = builder.deadline(timeout);
        }
        builder
    }

    /// Tells people something beside the result, unless they want it quiet. The text is harmless already.
    pub(crate) fn note(&self, text: &str) {
        if !self.globals.quiet {
            self.aside(|| out::note(text));
        }
    }

    /// Tells those people something who want to know more. The text is harmless already.
    pub(crate) fn detail(&self, text: &str) {
        if self.globals.verbose > 0 {
            self.aside(|| out::note(&styled(DIM, text)));
        }
    }

    /// Says why the command failed.
    pub(crate) fn complain(&self, text: &str) {
        self.aside(|| out::complain(text));
    }

    /// Does something with the terminal while no progress bar is on it.
    pub(crate) fn aside<T>(&self, act: impl FnOnce() -> T) -> T {
        match &*self.progress.borrow() {
            Some(bar) => bar.suspend(act),
            None => act(),
        }
    }

    /// Shows that something is under way, if somebody watches.
    pub(crate) fn show_progress(&self, bar: ProgressBar) {
        if !self.globals.quiet && terminal::is_stderr() {
            *self.progress.borrow_mut() = Some(bar);
        }
    }

    /// The progress bar, if one is shown.
    pub(crate) fn progress(&self) -> Option<ProgressBar> {
        self.progress.borrow().clone()
    }

    /// Takes the progress bar away.
    pub(crate) fn clear_progress(&self) {
        if let Some(bar) = self.progress.borrow_mut().take() {
            bar.finish_and_clear();
        }
    }

    /// Tells of servers whose entries are missing from a listing.
    pub(crate) fn issues(&self, issues: &[mcp_sidecar_client::proto::ListingIssue]) {
        for issue in issues {
            let text = format!("{}: {}", issue.server_id, issue.message);
            self.note(&format!(
                "{} {}",
                styled(out::WARNING, "incomplete:"),
                plain(&text)
            ));
        }
    }
}
