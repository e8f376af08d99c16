//! A server as a child process: newline-delimited JSON-RPC on its standard streams
//! (MCP 2026-07-28 basic/transports/stdio).
//!
//! The child leads a process group of its own, and the group ends with the transport. Everything is bounded: the length
//! of a line, the queue towards the child, the kept lines of its standard error, every step of its end.

use std::collections::VecDeque;
use std::path::Path;
use std::process::Stdio as Pipe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{Error, Reason};
use crate::mcp::era::Frame;
use crate::mcp::protocol::Message;
use crate::mcp::transport::pending::{Pending, SharedExchange, closed};
use crate::mcp::transport::{Loss, lines};
use crate::model::spec::StdioSpec;

/// How often a process group is asked whether it is empty.
const GROUP_POLL: Duration = Duration::from_millis(20);
/// How long a child that has closed its output may take to exit before its link is given up.
const EXIT_PATIENCE: Duration = Duration::from_millis(500);
/// Bounds and surroundings of a child.
#[derive(Clone, Debug)]
pub struct StdioOptions {
    /// Names of the daemon's environment variables that a child inherits.
    pub pass_env: Vec<String>,
    /// Working directory where the registration names none.
    pub default_cwd: std::path::PathBuf,
    /// Longest line, in bytes.
    pub message_limit: usize,
    /// Kept bytes of standard error.
    pub stderr_tail: usize,
    /// Bound on each step of stopping the child: end of input, SIGTERM, SIGKILL.
    pub close_grace: Duration,
}

/// One running child.
#[derive(Debug)]
pub struct Stdio {
    outbox: mpsc::Sender<Bytes>,
    shared: Arc<Shared>,
    close_grace: Duration,
    group: Option<Pid>,
    /// Drops the child's standard input.
    hang_up: CancellationToken,
    /// Becomes true when the child was reaped.
    gone: watch::Receiver<bool>,
}

#[derive(Debug)]
struct Shared {
    pending: Arc<Pending>,
    stderr: Mutex<Tail>,
    /// Cancelled when the child's output is read to its end.
    drained: CancellationToken,
}

/// The last bytes of a text that never ends.
#[derive(Debug)]
struct Tail {
    bytes: VecDeque<u8>,
    limit: usize,
}

impl Tail {
    fn push(&mut self, chunk: &[u8]) {
        self.bytes.extend(chunk);
        let excess = self.bytes.len().saturating_sub(self.limit);
        self.bytes.drain(..excess);
    }
}

impl Stdio {
    /// Starts the child. Messages that belong to no request of ours go to `inbound`; when it is full they are refused.
    ///
    /// # Errors
    /// `UPSTREAM_UNREACHABLE` when the program cannot be started; nothing is left behind.
    pub fn spawn(
        spec: &StdioSpec,
        options: &StdioOptions,
        inbound: mpsc::Sender<Message>,
        tasks: &TaskTracker,
    ) -> Result<Self, Error> {
        let mut command = Command::new(&spec.command);
        command.args(&spec.args).env_clear().stdin(Pipe::piped());
        command
            .stdout(Pipe::piped())
            .stderr(Pipe::piped())
            .process_group(0)
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
        for variable in &spec.env {
            command.env(&variable.name, variable.value.expose());
        }
        let mut child = command
            .spawn()
            .map_err(|cause| cannot_start(spec, &cause))?;
        let pid = child.id().and_then(|pid| i32::try_from(pid).ok());
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Error::internal("a child was started without its pipes"));
        };
        let shared = Arc::new(Shared {
            pending: Pending::new(spec.command.clone(), options.message_limit),
            stderr: Mutex::new(Tail {
                bytes: VecDeque::new(),
                limit: options.stderr_tail,
            }),
            drained: CancellationToken::new(),
        });
        let (outbox, to_write) = mpsc::channel(lines::OUTBOX);
        let (gone_tx, gone) = watch::channel(false);
        let hang_up = CancellationToken::new();
        tasks.spawn(until(gone.clone(), keep_tail(stderr, Arc::clone(&shared))));
        tasks.spawn(lines::write(stdin, to_write, hang_up.clone()));
        let (reading, answers) = (Arc::clone(&shared), outbox.clone());
        let reader = async move {
            lines::read(stdout, Arc::clone(&reading.pending), inbound, answers).await;
            reading.drained.cancel();
        };
        tasks.spawn(until(gone.clone(), reader));
        tasks.spawn(reap(
            child,
            Arc::clone(&shared),
            gone_tx,
            options.close_grace,
        ));
        let group = pid.and_then(Pid::from_raw);
        Ok(Self {
            outbox,
            shared,
            close_grace: options.close_grace,
            group,
            hang_up,
            gone,
        })
    }

    /// Completes when no further message will come: the child has closed its output or has ended.
    pub(super) async fn ended(&self) -> Error {
        self.shared.pending.ended().await
    }

    pub(super) fn stderr_tail(&self) -> String {
        let tail = self
            .shared
            .stderr
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let bytes: Vec<u8> = tail.bytes.iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
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

    /// Ends the child and its group: end of input, SIGTERM, SIGKILL, each with a grace period. Idempotent.
    pub(super) async fn close(&self) {
        self.hang_up.cancel();
        let mut gone = self.gone.clone();
        for signal in [Some(Signal::TERM), Some(Signal::KILL), None] {
            let ended = tokio::time::timeout(self.close_grace, gone.wait_for(|gone| *gone)).await;
            if ended.is_ok() {
                return;
            }
            if let (Some(group), Some(signal)) = (self.group, signal) {
                // The group may be gone already; that is what is wanted.
                let _ = kill_process_group(group, signal);
            }
        }
    }
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

/// Waits for the child, fails everything that waits for it and ends what is left of its group.
async fn reap(mut child: Child, shared: Arc<Shared>, gone: watch::Sender<bool>, grace: Duration) {
    let group = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw);
    let exited = async {
        // A child that has closed its output is about to exit, and its exit status says more. One that stays is useless.
        shared.drained.cancelled().await;
        tokio::time::sleep(EXIT_PATIENCE).await;
        shared.pending.end(&closed(shared.pending.who()));
        std::future::pending::<std::convert::Infallible>().await
    };
    let status = tokio::select! {
        status = child.wait() => status,
        never = exited => match never {},
    };
    // Answers that the child wrote before it ended are still in the pipe: let the reader finish, but not for ever,
    // because a grandchild may hold the pipe open.
    let _ = tokio::time::timeout(grace, shared.drained.cancelled()).await;
    let how = match status {
        Ok(status) => status.to_string(),
        Err(cause) => cause.to_string(),
    };
    let end = Error::new(
        Reason::UpstreamUnreachable,
        format!("the process `{}` has ended ({how})", shared.pending.who()),
    );
    shared.pending.end(&end);
    if let Some(group) = group {
        end_group(group, grace).await;
    }
    let _ = gone.send(true);
}

/// Ends what a child leaves behind in its group. There is no event for "the group is empty": it is asked for.
async fn end_group(group: Pid, grace: Duration) {
    let _ = kill_process_group(group, Signal::TERM);
    let emptied = async {
        while test_kill_process_group(group).is_ok() {
            tokio::time::sleep(GROUP_POLL).await;
        }
    };
    if tokio::time::timeout(grace, emptied).await.is_err() {
        let _ = kill_process_group(group, Signal::KILL);
    }
}

/// Runs until the child is reaped at the latest: what it left behind may hold its pipes for ever.
async fn until(mut gone: watch::Receiver<bool>, task: impl Future<Output = ()>) {
    tokio::select! {
        () = task => {}
        _ = gone.wait_for(|gone| *gone) => {}
    }
}

async fn keep_tail(mut stderr: impl AsyncRead + Unpin, shared: Arc<Shared>) {
    let mut chunk = vec![0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
        let mut tail = shared.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        tail.push(chunk.get(..read).unwrap_or_default());
    }
}
