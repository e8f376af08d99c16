//! A server as a child process: newline-delimited JSON-RPC on its standard streams
//! (MCP 2026-07-28 basic/transports/stdio).
//!
//! The child leads a family of processes (see `processes`), and the family ends with the transport. Everything is bounded:
//! the length of a line, the queue towards the child, the kept lines of its standard error, every step of its end.

use std::path::Path;
use std::process::{ExitStatus, Stdio as Pipe};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::base::load::Load;
use crate::error::{Error, Reason};
use crate::mcp::era::Frame;
use crate::mcp::protocol::Message;
use crate::mcp::transport::journal::Writer;
use crate::mcp::transport::pending::{Pending, SharedExchange, closed};
use crate::mcp::transport::{Loss, lines};
use crate::model::spec::StdioSpec;
use crate::processes::{Family, Keeper};

/// How long a child that has closed its output may take to exit before its link is given up, and how long after its exit
/// the rest of its output is waited for, which a grandchild may hold open for ever.
const EXIT_PATIENCE: Duration = Duration::from_millis(500);
/// How long what a child leaves behind may take to notice the end of its input before it is terminated.
const LINGER: Duration = Duration::from_secs(1);

/// Bounds and surroundings of a child.
#[derive(Clone, Debug)]
pub struct StdioOptions {
    /// Names of the daemon's environment variables that a child inherits.
    pub pass_env: Vec<String>,
    /// Working directory where the registration names none.
    pub default_cwd: std::path::PathBuf,
    /// Longest line, in bytes.
    pub message_limit: usize,
    /// Kept bytes of standard error, see [`Journal`](super::journal::Journal).
    pub stderr_tail: usize,
    /// Bound on each step of stopping the child: end of input, SIGTERM, SIGKILL.
    pub close_grace: Duration,
}

/// One running child.
#[derive(Debug)]
pub struct Stdio {
    outbox: mpsc::Sender<Bytes>,
    shared: Arc<Shared>,
    /// Ends the child, beginning with its standard input.
    hang_up: CancellationToken,
    /// Becomes true when nothing of the child is left.
    gone: watch::Receiver<bool>,
}

#[derive(Debug)]
struct Shared {
    pending: Arc<Pending>,
    /// Cancelled when the child's output is read to its end.
    drained: CancellationToken,
}

impl Stdio {
    /// Starts the child. Messages that belong to no request of ours go to `inbound`; when it is full they are refused.
    /// Dropping the future before it completes starts nothing.
    ///
    /// # Errors
    /// `UPSTREAM_UNREACHABLE` when the program cannot be started; nothing is left behind.
    pub async fn spawn(
        spec: &StdioSpec,
        options: &StdioOptions,
        keeper: &Arc<Keeper>,
        journal: Writer,
        inbound: mpsc::Sender<Message>,
        tasks: &TaskTracker,
        load: &Load,
    ) -> Result<Self, Error> {
        let mut command = Command::new(&spec.command);
        command.args(&spec.args).env_clear().stdin(Pipe::piped());
        command
            .stdout(Pipe::piped())
            .stderr(Pipe::piped())
            .kill_on_drop(true);
        command.current_dir(
            spec.cwd
                .as_deref()
                .map_or(options.default_cwd.as_path(), Path::new),
        );
        for name in &options.pass_env {
            if let Some(value) = std::env::var_os(name) {
                command.env(name, value);
            }
        }
        for (name, value) in utf8_locale(|name| {
            let passed = options.pass_env.iter().any(|passed| passed == name);
            passed.then(|| std::env::var(name).ok()).flatten()
        }) {
            command.env(name, value);
        }
        for variable in &spec.env {
            command.env(&variable.name, variable.value.expose());
        }
        let (mut child, family) = keeper
            .spawn(&mut command)
            .await
            .map_err(|cause| cannot_start(spec, &cause))?;
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Error::internal("a child was started without its pipes"));
        };
        let shared = Arc::new(Shared {
            pending: Pending::new(
                spec.command.clone(),
                options.message_limit,
                load.waiting.clone(),
            ),
            drained: CancellationToken::new(),
        });
        let (outbox, to_write) = mpsc::channel(lines::OUTBOX);
        let (gone_tx, gone) = watch::channel(false);
        let hang_up = CancellationToken::new();
        let silent = CancellationToken::new();
        let mut aside = journal.aside();
        let kept = keep_journal(stderr, journal, silent.clone());
        tasks.spawn(until(gone.clone(), kept));
        tasks.spawn(lines::write(stdin, to_write, hang_up.clone()));
        let (reading, answers) = (Arc::clone(&shared), outbox.clone());
        let reader = async move {
            let pending = Arc::clone(&reading.pending);
            lines::read(stdout, pending, inbound, answers, |line| aside.note(line)).await;
            reading.drained.cancel();
        };
        tasks.spawn(until(gone.clone(), reader));
        let life = Life {
            family,
            shared: Arc::clone(&shared),
            silent,
            hang_up: hang_up.clone(),
            gone: gone_tx,
            grace: options.close_grace,
        };
        tasks.spawn(life.live(child));
        Ok(Self {
            outbox,
            shared,
            hang_up,
            gone,
        })
    }

    /// Completes when no further message will come: the child has closed its output or has ended.
    pub(super) async fn ended(&self) -> Error {
        self.shared.pending.ended().await
    }

    pub(super) async fn request(&self, frame: Frame) -> Result<SharedExchange, Loss> {
        let exchange = self.shared.pending.enter(frame.id)?;
        self.send(frame.body).await?;
        Ok(exchange)
    }

    pub(super) async fn send(&self, body: Bytes) -> Result<(), Loss> {
        let sent = self.outbox.send(body).await;
        sent.map_err(|_| Loss::not_sent(self.shared.pending.why()))
    }

    /// Ends the child and everything that it has started: end of input, SIGTERM, SIGKILL, each with a grace period.
    /// Returns when nothing of it is left. Idempotent.
    pub(super) async fn close(&self) {
        self.hang_up.cancel();
        let _ = self.gone.clone().wait_for(|gone| *gone).await;
    }
}

/// What is to be set so that a child takes text for UTF-8, as JSON-RPC is: programs in a C locale mangle or refuse whatever
/// is not ASCII.
fn utf8_locale(passed: impl Fn(&str) -> Option<String>) -> Vec<(&'static str, &'static str)> {
    const UTF8: &str = "C.UTF-8";
    let set = |name| passed(name).filter(|value| !value.is_empty());
    let all = set("LC_ALL");
    let effective = all
        .clone()
        .or_else(|| set("LC_CTYPE"))
        .or_else(|| set("LANG"));
    let effective = effective.unwrap_or_default().to_ascii_lowercase();
    if effective.ends_with("utf-8") || effective.ends_with("utf8") {
        return Vec::new();
    }
    // LC_ALL wins over everything: where it says otherwise, it has to give way.
    let mut names = vec!["LANG", "LC_CTYPE"];
    names.extend(all.map(|_| "LC_ALL"));
    names.into_iter().map(|name| (name, UTF8)).collect()
}

fn cannot_start(spec: &StdioSpec, cause: &std::io::Error) -> Error {
    let hint = match cause.kind() {
        std::io::ErrorKind::NotFound => {
            "; it must be an absolute path or lie in the daemon's PATH, and the working directory must exist"
        }
        std::io::ErrorKind::PermissionDenied => "; it must be executable by the daemon's user",
        _ => "",
    };
    let message = format!("`{}` cannot be started: {cause}{hint}", spec.command);
    Error::new(Reason::UpstreamUnreachable, message).with("command", spec.command.clone())
}

fn closed_output(command: &str) -> Error {
    closed(command).with("process", "closed its output")
}

/// A child from its start until nothing of it is left.
struct Life {
    family: Family,
    shared: Arc<Shared>,
    /// Cancelled when its standard error has ended.
    silent: CancellationToken,
    hang_up: CancellationToken,
    gone: watch::Sender<bool>,
    grace: Duration,
}

impl Life {
    async fn live(self, mut child: Child) {
        let output_ended = async {
            // A child that has closed its output is about to exit, and its exit status says more. One that stays is useless.
            self.shared.drained.cancelled().await;
            tokio::time::sleep(EXIT_PATIENCE).await;
            self.shared
                .pending
                .end(&closed_output(self.shared.pending.who()));
            std::future::pending::<std::convert::Infallible>().await
        };
        let status = tokio::select! {
            status = child.wait() => Some(status),
            () = self.hang_up.cancelled() => None,
            never = output_ended => match never {},
        };
        let by_itself = status.is_some();
        let mut exited = by_itself;
        if let Some(status) = status {
            self.shared.pending.end(&self.obituary(status).await);
        }
        // Nobody may write any more. The steps of the end; what is left of a child that exited has no use for the first.
        self.hang_up.cancel();
        let mut extinct = false;
        for signal in [None, Some(Signal::TERM), Some(Signal::KILL)] {
            match signal {
                None if by_itself => continue,
                None => {}
                Some(signal) => self.family.signal(signal).await,
            }
            let step = async {
                if !exited {
                    let status = child.wait().await;
                    exited = true;
                    self.shared.pending.end(&self.obituary(status).await);
                }
                if signal.is_none() {
                    return tokio::time::timeout(LINGER, self.family.extinct())
                        .await
                        .is_ok();
                }
                self.family.extinct().await;
                true
            };
            if let Ok(true) = tokio::time::timeout(self.grace, step).await {
                extinct = true;
                break;
            }
        }
        if !extinct {
            tracing::error!(
                command = self.shared.pending.who(),
                "a process cannot be killed"
            );
        }
        self.shared
            .pending
            .end(&closed_output(self.shared.pending.who()));
        let _ = self.gone.send(true);
        if !exited {
            let _ = child.wait().await;
        }
    }

    /// What is to be said of a child that has exited, when all that it had to say is read.
    async fn obituary(&self, status: std::io::Result<ExitStatus>) -> Error {
        let read = async {
            self.shared.drained.cancelled().await;
            self.silent.cancelled().await;
        };
        let _ = tokio::time::timeout(EXIT_PATIENCE, read).await;
        let how = match status {
            Ok(status) => status.to_string(),
            Err(cause) => cause.to_string(),
        };
        let message = format!(
            "the process `{}` has ended ({how})",
            self.shared.pending.who()
        );
        Error::new(Reason::UpstreamUnreachable, message).with("process", how)
    }
}

/// Runs until nothing of the child can be left: a process that cannot be ended may hold its pipes for ever.
async fn until(mut gone: watch::Receiver<bool>, task: impl Future<Output = ()>) {
    tokio::select! {
        () = task => {}
        _ = gone.wait_for(|gone| *gone) => {}
    }
}

async fn keep_journal(
    mut stderr: impl AsyncRead + Unpin,
    mut journal: Writer,
    silent: CancellationToken,
) {
    let mut chunk = vec![0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
        journal.write(chunk.get(..read).unwrap_or_default());
    }
    silent.cancel();
}

#[cfg(test)]
mod tests {
    use super::utf8_locale;

    #[test]
    fn a_child_has_a_utf8_locale() {
        let set = |variables: &[(&str, &str)]| {
            let found = |name: &str| variables.iter().find(|(other, _)| *other == name);
            let chosen = utf8_locale(|name| found(name).map(|(_, value)| (*value).to_owned()));
            chosen.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(set(&[]), ["LANG", "LC_CTYPE"]);
        assert_eq!(set(&[("LANG", "C")]), ["LANG", "LC_CTYPE"]);
        assert_eq!(
            set(&[("LANG", "de_DE.UTF-8"), ("LC_ALL", "C")]),
            ["LANG", "LC_CTYPE", "LC_ALL"]
        );
        assert!(set(&[("LANG", "de_DE.UTF-8"), ("LC_ALL", "")]).is_empty());
        assert!(set(&[("LANG", "C"), ("LC_ALL", "C.utf8")]).is_empty());
    }
}
