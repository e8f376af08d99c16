//! The command line. Turns arguments into configuration sources, and outcomes into exit codes.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Parser, Subcommand};
use mcp_sidecard::audit::Audit;
use mcp_sidecard::config::{Config, Environment, Sources};
use mcp_sidecard::operation::Operation;
use mcp_sidecard::processes::guard;
use mcp_sidecard::{Daemon, Keys, Survey};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::allocator;

/// Exit code of a wrong command line or configuration (`EX_USAGE`).
const BAD_CONFIG: u8 = 64;
/// Exit code where the vault does not open, or is open to others (`EX_CONFIG`): trying again does not help.
const BAD_VAULT: u8 = 78;

/// Holds every MCP connection, token and pending question of this host, and serves them to local apps over gRPC.
#[derive(Debug, Parser)]
#[command(name = "mcp-sidecard", version)]
pub(crate) struct Cli {
    /// Configuration file [default: $MCP_SIDECARD_CONFIG, else the user's or the system's config.toml]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Directory for the daemon's state
    #[arg(long, value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
    /// Path of the application socket
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// Sets one configuration key, for example `--set log.filter=debug`; may be repeated
    #[arg(long, value_name = "KEY=VALUE", global = true)]
    set: Vec<String>,
    /// Prints the effective configuration as TOML, without secrets, and ends
    #[arg(long)]
    print_config: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Checks the configuration and ends: exit code 0 if it is acceptable, 64 if not
    CheckConfig,
    /// Encrypts all that is secret with another key and ends. No daemon may run on the data directory
    ///
    /// The new key takes the place of the old one once everything is encrypted with it; whatever happens before that, the
    /// old one is still the right one. Back up the new key then: older backups of the database need the older key.
    RotateKey {
        /// A file with the new key, 32 bytes or 64 hexadecimal digits [default: one is made]
        #[arg(long, value_name = "FILE")]
        new_key: Option<PathBuf>,
        /// A file with the key in use, for keys that the service manager passes; nothing but the database is changed then
        #[arg(long, value_name = "FILE", requires = "new_key")]
        old_key: Option<PathBuf>,
    },
}

impl Cli {
    /// Does what the command line says and reports on standard error what went wrong.
    pub(crate) fn run() -> ExitCode {
        // Before anything else: a guard shall stay small.
        if let Some(ended) = guard::run(std::env::args_os().skip(1)) {
            return ended;
        }
        let cli = match Self::try_parse() {
            Ok(cli) => cli,
            Err(error) => {
                // Help and version come this way too, and are no failure.
                let _ = error.print();
                return ExitCode::from(if error.use_stderr() { BAD_CONFIG } else { 0 });
            }
        };
        let allocator = if cli.serves() {
            allocator::settle()
        } else {
            Ok(())
        };
        let config = match Config::load(&cli.sources()) {
            Ok(config) => config,
            Err(error) => {
                report(&error.to_string());
                return ExitCode::from(BAD_CONFIG);
            }
        };
        match cli.act(config, allocator) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                report(&format!("{error:#}"));
                exit_code(&error)
            }
        }
    }

    fn sources(&self) -> Sources {
        Sources {
            file: self.config.clone(),
            data_dir: self.data_dir.clone(),
            socket: self.socket.clone(),
            set: self.set.clone(),
            environment: Environment::of_process(),
        }
    }

    fn serves(&self) -> bool {
        !self.print_config && self.command.is_none()
    }

    fn act(&self, config: Config, allocator: std::io::Result<()>) -> Result<()> {
        let mut out = std::io::stdout();
        if self.print_config {
            return Ok(write!(out, "{}", config.to_toml()?)?);
        }
        match &self.command {
            Some(Command::CheckConfig) => {
                mcp_sidecard::check(&config, &self.sources())?;
                Ok(writeln!(out, "the configuration is acceptable")?)
            }
            Some(Command::RotateKey { new_key, old_key }) => {
                let keys = Keys {
                    old: old_key.clone(),
                    new: new_key.clone(),
                };
                rotate(&config, &keys, &mut out)
            }
            None => serve(config, self.sources(), allocator),
        }
    }
}

fn rotate(config: &Config, keys: &Keys, out: &mut impl Write) -> Result<()> {
    mcp_sidecard::telemetry::init(&config.log)?;
    let rotated = mcp_sidecard::rotate_key(config, keys)?;
    let key = &rotated.key;
    let what_next = if rotated.in_place {
        "back it up"
    } else {
        "the daemon does not start until it gets this key in place of the old one"
    };
    writeln!(
        out,
        "{} entries are encrypted with the key in `{key}`: {what_next}",
        rotated.resealed
    )?;
    if rotated.left > 0 {
        report(&format!(
            "{} entries could not be decrypted before, and are left as they are",
            rotated.left
        ));
    }
    if let Some(cause) = rotated.remains {
        report(&format!(
            "remains of what the old key encrypted may still be in the database's files: {cause}"
        ));
    }
    Ok(())
}

fn exit_code(error: &anyhow::Error) -> ExitCode {
    let own = error.downcast_ref::<mcp_sidecard::error::Error>();
    let facts = own
        .map(mcp_sidecard::error::Error::facts)
        .unwrap_or_default();
    let about = |what: &str| facts.iter().any(|(fact, _)| *fact == what);
    if about("vault") {
        return ExitCode::from(BAD_VAULT);
    }
    if about("config") {
        return ExitCode::from(BAD_CONFIG);
    }
    ExitCode::FAILURE
}

fn serve(config: Config, sources: Sources, allocator: std::io::Result<()>) -> Result<()> {
    let log = mcp_sidecard::telemetry::init(&config.log)?;
    if let Err(cause) = allocator {
        tracing::warn!(%cause, "the allocator keeps its defaults: memory that is not used goes back late");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("the runtime cannot be started")?;
    runtime.block_on(async {
        let terminate = signal(SignalKind::terminate()).context("SIGTERM cannot be watched")?;
        let interrupt = signal(SignalKind::interrupt()).context("SIGINT cannot be watched")?;
        let user = signal(SignalKind::user_defined1()).context("SIGUSR1 cannot be watched")?;
        let hangup = signal(SignalKind::hangup()).context("SIGHUP cannot be watched")?;
        let shutdown = CancellationToken::new();
        let daemon = Daemon::build(config, sources, log).await?;
        let (survey, audit) = (daemon.survey(), daemon.audit());
        let operation = daemon.operation();
        let running = daemon.run(shutdown.clone());
        let mut running = std::pin::pin!(running);
        let mut signals = Signals {
            terminate,
            interrupt,
            user,
            hangup,
            survey,
            audit,
            operation,
        };
        tokio::select! {
            ended = &mut running => return Ok(ended?),
            () = signals.next() => shutdown.cancel(),
        }
        // A second signal means: now.
        tokio::select! {
            ended = &mut running => Ok(ended?),
            () = signals.next() => anyhow::bail!("ended by a second signal before the drain was over"),
        }
    })
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    user: Signal,
    hangup: Signal,
    survey: Survey,
    audit: Audit,
    operation: Operation,
}

impl Signals {
    /// The next signal to stop. Those to report and to read the configuration again are obeyed on the way.
    async fn next(&mut self) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return,
                _ = self.interrupt.recv() => return,
                _ = self.user.recv() => self.survey.log(),
                // A signal to stop does not wait for it.
                _ = self.hangup.recv() => {
                    self.audit.reopen();
                    self.operation.reload_in_background();
                }
            }
        }
    }
}

fn report(message: &str) {
    let _ = writeln!(std::io::stderr(), "mcp-sidecard: {message}");
}
