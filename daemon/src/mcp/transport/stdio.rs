//! A server as a child process: newline-delimited JSON-RPC on its standard streams
//! (MCP 2026-07-28 basic/transports/stdio).
//!
//! The child leads a process group of its own, and the group ends with the transport. Everything is bounded: the length
//! of a line, the queue towards the child, the kept lines of its standard error, every step of its end.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::process::Stdio as Pipe;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::error::{Error, Reason};
use crate::mcp::era::Frame;
use crate::mcp::protocol::{self, META_SUBSCRIPTION, Message, RawJson, code, method};
use crate::mcp::transport::Loss;
use crate::model::spec::StdioSpec;

/// How often a process group is asked whether it is empty.
const GROUP_POLL: Duration = Duration::from_millis(20);
/// How long a child that has closed its output may take to exit before its link is given up.
const EXIT_PATIENCE: Duration = Duration::from_millis(500);
/// Messages that wait to be written.
const OUTBOX: usize = 256;
/// Progress and log messages that one slow caller may leave unread; more are dropped.
const UNREAD: usize = 64;
/// Bytes at the head of an oversize line in which its id is looked for.
const HEAD: usize = 4096;

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
    command: String,
    pending: Mutex<Pending>,
    stderr: Mutex<Tail>,
    message_limit: usize,
    /// Cancelled when the child's output is read to its end.
    drained: CancellationToken,
    /// Cancelled when no further message will come.
    ended: CancellationToken,
}

#[derive(Debug, Default)]
struct Pending {
    requests: HashMap<u64, Waiter>,
    /// Set once the child is gone: requests are refused from then on.
    end: Option<Error>,
}

#[derive(Debug)]
struct Waiter {
    events: mpsc::Sender<Message>,
    response: oneshot::Sender<Result<Message, Loss>>,
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
            command: spec.command.clone(),
            pending: Mutex::default(),
            stderr: Mutex::new(Tail {
                bytes: VecDeque::new(),
                limit: options.stderr_tail,
            }),
            message_limit: options.message_limit,
            drained: CancellationToken::new(),
            ended: CancellationToken::new(),
        });
        let (outbox, to_write) = mpsc::channel(OUTBOX);
        let (gone_tx, gone) = watch::channel(false);
        let hang_up = CancellationToken::new();
        tasks.spawn(until(gone.clone(), keep_tail(stderr, Arc::clone(&shared))));
        tasks.spawn(write_lines(stdin, to_write, hang_up.clone()));
        let reader = read_lines(stdout, Arc::clone(&shared), inbound, outbox.clone());
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
    pub async fn ended(&self) -> Error {
        self.shared.ended.cancelled().await;
        let pending = self
            .shared
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        pending
            .end
            .clone()
            .unwrap_or_else(|| closed_output(&self.shared.command))
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

    pub(super) async fn request(self: &Arc<Self>, frame: Frame) -> Result<StdioExchange, Loss> {
        let (events_tx, events) = mpsc::channel(UNREAD);
        let (response_tx, response) = oneshot::channel();
        {
            let mut pending = self
                .shared
                .pending
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if let Some(end) = &pending.end {
                return Err(Loss::not_sent(end.clone()));
            }
            let waiter = Waiter {
                events: events_tx,
                response: response_tx,
            };
            pending.requests.insert(frame.id, waiter);
        }
        // Made before the write, so that a caller that gives up while the pipe is full leaves no entry behind.
        let exchange = StdioExchange {
            id: frame.id,
            events,
            response,
            shared: Arc::clone(&self.shared),
        };
        self.send(frame.body).await?;
        Ok(exchange)
    }

    pub(super) async fn send(&self, body: Bytes) -> Result<(), Loss> {
        self.outbox.send(body).await.map_err(|_| {
            let pending = self
                .shared
                .pending
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            Loss::not_sent(
                pending
                    .end
                    .clone()
                    .unwrap_or_else(|| closed_output(&self.shared.command)),
            )
        })
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

fn closed_output(command: &str) -> Error {
    Error::new(
        Reason::UpstreamUnreachable,
        format!("`{command}` has closed its output"),
    )
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
        shared.end(&closed_output(&shared.command));
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
        format!("the process `{}` has ended ({how})", shared.command),
    );
    shared.end(&end);
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

impl Shared {
    /// Fails every waiting request. The first reason stays.
    fn end(&self, error: &Error) {
        let waiting = {
            let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
            pending.end.get_or_insert_with(|| error.clone());
            std::mem::take(&mut pending.requests)
        };
        for waiter in waiting.into_values() {
            let _ = waiter.response.send(Err(Loss::maybe_sent(error.clone())));
        }
        self.ended.cancel();
    }

    /// Hands a message to the request it belongs to, or returns it.
    fn route(&self, message: Message) -> Option<Message> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        match &message {
            Message::Response { id, .. } => {
                // An answer to nothing we wait for: late after a cancellation, or forged. Dropped either way.
                if let Some(waiter) = id.and_then(|id| pending.requests.remove(&id)) {
                    let _ = waiter.response.send(Ok(message));
                }
                None
            }
            Message::Notification { method, params } if method == method::PROGRESS => {
                let token = params
                    .as_ref()
                    .and_then(|params| params.get("progressToken"));
                let waiter = token
                    .and_then(|token| token.read())
                    .and_then(|id: u64| pending.requests.get(&id));
                if let Some(waiter) = waiter {
                    let _ = waiter.events.try_send(message);
                }
                None
            }
            // The modern era sends everything on one channel: what belongs to a subscription says so.
            Message::Notification { method, params } => {
                let named = |member: &str| params.as_ref().and_then(|params| params.get(member));
                if method == method::CANCELLED {
                    let id = named("requestId").and_then(|id| id.read::<u64>());
                    if let Some(waiter) = id.and_then(|id| pending.requests.remove(&id)) {
                        let ended =
                            Error::new(Reason::OutcomeUnknown, "the server ended the request");
                        let _ = waiter.response.send(Err(Loss::maybe_sent(ended)));
                        return None;
                    }
                    return Some(message);
                }
                let id = named("_meta").and_then(|meta| meta.get(META_SUBSCRIPTION));
                let waiter = id
                    .and_then(|id| id.read())
                    .and_then(|id: u64| pending.requests.get(&id));
                match waiter {
                    Some(waiter) => waiter
                        .events
                        .try_send(message)
                        .err()
                        .map(TrySendError::into_inner),
                    None => Some(message),
                }
            }
            Message::Request { .. } => Some(message),
        }
    }

    /// A line is no message; if it seems to answer a request, that request fails, and nothing else.
    fn unreadable(&self, line: &Bytes, cause: &protocol::ParseError) {
        let head = line.get(..HEAD.min(line.len())).unwrap_or_default();
        let error = Error::new(
            Reason::UpstreamProtocol,
            format!(
                "`{}` wrote an answer that is not JSON: {cause}",
                self.command
            ),
        );
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiter) = find_id(head).and_then(|id| pending.requests.remove(&id)) {
            let _ = waiter.response.send(Err(Loss::maybe_sent(error)));
        }
    }

    /// A line was too long to be read; fails the request that it seems to answer.
    fn oversize(&self, head: &[u8]) {
        let error = Error::new(
            Reason::MessageTooLarge,
            format!(
                "`{}` wrote a message of more than {} bytes (limits.message_bytes)",
                self.command, self.message_limit
            ),
        );
        tracing::warn!(%error, "skipped a message");
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiter) = find_id(head).and_then(|id| pending.requests.remove(&id)) {
            let _ = waiter.response.send(Err(Loss::maybe_sent(error)));
        }
    }
}

/// Finds `"id": <number>` near the head of a message that is not read as a whole, if it looks like an answer: a log line
/// that quotes one of our requests must not end that request.
fn find_id(head: &[u8]) -> Option<u64> {
    let head = String::from_utf8_lossy(head);
    let answers = head.contains("\"result\"") || head.contains("\"error\"");
    if !head.trim_start().starts_with('{') || head.contains("\"method\"") || !answers {
        return None;
    }
    let (_, after) = head.split_once("\"id\"")?;
    let digits = after.trim_start().strip_prefix(':')?.trim_start();
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits.get(..end)?.parse().ok()
}

/// Runs until the child is reaped at the latest: what it left behind may hold its pipes for ever.
async fn until(mut gone: watch::Receiver<bool>, task: impl Future<Output = ()>) {
    tokio::select! {
        () = task => {}
        _ = gone.wait_for(|gone| *gone) => {}
    }
}

async fn write_lines(
    mut stdin: ChildStdin,
    mut lines: mpsc::Receiver<Bytes>,
    hang_up: CancellationToken,
) {
    loop {
        let line = tokio::select! {
            () = hang_up.cancelled() => return,
            line = lines.recv() => line,
        };
        let Some(line) = line else { return };
        let mut framed = BytesMut::with_capacity(line.len() + 1);
        // JSON that an app wrote over several lines: a line break between tokens is worth a space.
        framed.extend(line.iter().map(|byte| {
            if matches!(byte, b'\n' | b'\r') {
                b' '
            } else {
                *byte
            }
        }));
        framed.put_u8(b'\n');
        let written = tokio::select! {
            () = hang_up.cancelled() => return,
            written = stdin.write_all(&framed) => written,
        };
        if written.is_err() {
            // The child no longer reads; `reap` or the reader will say why.
            return;
        }
    }
}

async fn read_lines(
    mut stdout: ChildStdout,
    shared: Arc<Shared>,
    inbound: mpsc::Sender<Message>,
    outbox: mpsc::Sender<Bytes>,
) {
    let mut lines = Lines::new(shared.message_limit);
    let mut garbage = 0_u64;
    loop {
        let mut chunk = BytesMut::with_capacity(16 * 1024);
        let read = stdout.read_buf(&mut chunk).await;
        let last = !matches!(read, Ok(bytes) if bytes > 0);
        let found = if last {
            lines.finish()
        } else {
            lines.push(&chunk)
        };
        for line in found {
            match line {
                Line::Oversize(head) => shared.oversize(&head),
                Line::Whole(line) => match protocol::parse_all(&line) {
                    Ok(messages) => {
                        for message in messages {
                            deliver(message, &shared, &inbound, &outbox);
                        }
                    }
                    Err(cause) => {
                        shared.unreadable(&line, &cause);
                        garbage += 1;
                        if garbage.is_power_of_two() {
                            let command = &shared.command;
                            tracing::warn!(%command, %cause, count = garbage, "skipped output that is no message");
                        }
                    }
                },
            }
        }
        if last {
            break;
        }
    }
    shared.drained.cancel();
}

fn deliver(
    message: Message,
    shared: &Shared,
    inbound: &mpsc::Sender<Message>,
    outbox: &mpsc::Sender<Bytes>,
) {
    let Some(message) = shared.route(message) else {
        return;
    };
    // Log messages may fill half of the queue: what must not be lost finds room behind them.
    let chatter = matches!(&message, Message::Notification { method, .. } if method == method::LOG);
    if chatter && inbound.capacity() < inbound.max_capacity() / 2 {
        return;
    }
    if let Err(refused) = inbound.try_send(message)
        && let Message::Request { id, .. } = refused.into_inner()
    {
        // Nobody may be left waiting: say that the request was not taken.
        let error = crate::error::RpcError {
            code: code::INTERNAL,
            message: "too many requests are waiting".to_owned(),
            data: None,
        };
        let _ = outbox.try_send(protocol::encode_response(&id, &Err::<RawJson, _>(error)));
    }
}

async fn keep_tail(mut stderr: impl AsyncRead + Unpin, shared: Arc<Shared>) {
    let mut chunk = vec![0; 4096];
    while let Ok(read @ 1..) = stderr.read(&mut chunk).await {
        let mut tail = shared.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        tail.push(chunk.get(..read).unwrap_or_default());
    }
}

/// Splits a byte stream into lines with a bound; borders between chunks mean nothing.
#[derive(Debug)]
struct Lines {
    limit: usize,
    buffer: BytesMut,
    /// Inside a line that is too long: the rest of it is dropped.
    skipping: bool,
}

#[derive(Debug, PartialEq, Eq)]
enum Line {
    Whole(Bytes),
    Oversize(Bytes),
}

impl Lines {
    fn new(limit: usize) -> Self {
        Self {
            limit,
            buffer: BytesMut::new(),
            skipping: false,
        }
    }

    fn push(&mut self, mut chunk: &[u8]) -> Vec<Line> {
        let mut lines = Vec::new();
        while let Some(end) = chunk.iter().position(|byte| *byte == b'\n') {
            let (head, tail) = chunk.split_at(end);
            chunk = tail.get(1..).unwrap_or_default();
            self.take(head, &mut lines);
            self.end_line(&mut lines);
        }
        self.take(chunk, &mut lines);
        lines
    }

    /// The stream is over: what is left is a line too.
    fn finish(&mut self) -> Vec<Line> {
        let mut lines = Vec::new();
        self.end_line(&mut lines);
        lines
    }

    fn take(&mut self, part: &[u8], lines: &mut Vec<Line>) {
        if self.skipping {
            return;
        }
        if self.buffer.len() + part.len() > self.limit {
            self.skipping = true;
            self.buffer
                .extend_from_slice(part.get(..HEAD.min(part.len())).unwrap_or_default());
            self.buffer.truncate(HEAD);
            lines.push(Line::Oversize(self.buffer.split().freeze()));
            self.buffer = BytesMut::new();
            return;
        }
        self.buffer.extend_from_slice(part);
    }

    fn end_line(&mut self, lines: &mut Vec<Line>) {
        let line = self.buffer.split().freeze();
        if std::mem::take(&mut self.skipping) {
            return;
        }
        let line = if line.starts_with(b"\xef\xbb\xbf") {
            line.slice(3..)
        } else {
            line
        };
        if !line.trim_ascii().is_empty() {
            lines.push(Line::Whole(line));
        }
    }
}

/// A request under way over a child's standard streams.
#[derive(Debug)]
pub struct StdioExchange {
    id: u64,
    events: mpsc::Receiver<Message>,
    response: oneshot::Receiver<Result<Message, Loss>>,
    shared: Arc<Shared>,
}

impl StdioExchange {
    /// The next message; see [`Exchange::next`](super::Exchange::next).
    ///
    /// # Errors
    /// [`Loss`] when the child ends before it answers.
    pub async fn next(&mut self) -> Result<Message, Loss> {
        tokio::select! {
            // Progress that came before the response is delivered before it.
            biased;
            Some(event) = self.events.recv() => Ok(event),
            response = &mut self.response => response.unwrap_or_else(|_| {
                Err(Loss::maybe_sent(Error::new(Reason::OutcomeUnknown, "the answer was already taken")))
            }),
        }
    }
}

impl Drop for StdioExchange {
    fn drop(&mut self) {
        let mut pending = self
            .shared
            .pending
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        pending.requests.remove(&self.id);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::{Line, Lines, find_id};

    fn whole(text: &'static str) -> Line {
        Line::Whole(Bytes::from(text))
    }

    #[test]
    fn lines_survive_any_framing() {
        let mut lines = Lines::new(8);
        assert_eq!(lines.push(b"a\r\n\n  \nbc"), [whole("a\r")]);
        assert_eq!(lines.push(b"d\n"), [whole("bcd")]);
        assert_eq!(
            lines.push(b"123456789"),
            [Line::Oversize(Bytes::from("123456789"))]
        );
        assert_eq!(lines.push(b"more\nok\nlast"), [whole("ok")]);
        assert_eq!(lines.finish(), [whole("last")]);
    }

    #[test]
    fn the_id_of_an_oversize_answer_is_found() {
        assert_eq!(
            find_id(br#"{"jsonrpc":"2.0","id" : 42,"result":"#),
            Some(42)
        );
        for other in [
            r#"{"id":"x","result":1}"#,
            r#"DEBUG got {"jsonrpc":"2.0","id":12,"result":{}}"#,
            r#"{"jsonrpc":"2.0","method":"notifications/message","params":{"id":7,"result":"#,
            r#"{"id":7}"#,
        ] {
            assert_eq!(find_id(other.as_bytes()), None, "{other}");
        }
    }

    proptest! {
        #[test]
        fn chunk_borders_mean_nothing(bytes in any::<Vec<u8>>(), cut in any::<usize>()) {
            let cut = cut % (bytes.len() + 1);
            let (mut one, mut two) = (Lines::new(1000), Lines::new(1000));
            let mut whole = one.push(&bytes);
            whole.extend(one.finish());
            let mut split = two.push(&bytes[..cut]);
            split.extend(two.push(&bytes[cut..]));
            split.extend(two.finish());
            prop_assert_eq!(whole, split);
        }
    }
}
