//! The bounded queue of records, and the thread that writes them.
//!
//! Nobody who adds a record waits for the disk. A record that cannot be written stays where it is and is tried again, so that
//! the file has no gap once there is room again; meanwhile the queue fills, and `audit.when_full` says what becomes of that.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::Notify;

use super::OK;
use super::record::Record;
use crate::base::Clock;
use crate::config::{AuditConfig, AuditDestination, WhenFull};
use crate::error::{Error, Result};

/// Records that are taken from the queue and written together.
const BATCH: usize = 256;
/// Pause before a write that failed is tried again.
const AGAIN: Duration = Duration::from_secs(1);
/// How often lost records are told of in the daemon's log.
const TELL: Duration = Duration::from_secs(10);

/// The queue.
#[derive(Debug)]
pub(super) struct Sink {
    when_full: WhenFull,
    bound: usize,
    wait: Duration,
    arguments: Option<usize>,
    state: Mutex<State>,
    /// There is something to do.
    wake: Condvar,
    /// There is room again.
    room: Notify,
    writer: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Record>,
    dropped: u64,
    reopen: bool,
    closing: bool,
}

impl Sink {
    /// Opens the destination and starts the writer.
    ///
    /// # Errors
    /// INTERNAL if it cannot be opened.
    pub(super) fn open(config: &AuditConfig) -> Result<Arc<Self>> {
        let target = match config.destination {
            AuditDestination::File => Target::file(&config.file)?,
            AuditDestination::Journal | AuditDestination::Off => Target::journal()?,
        };
        let sink = Arc::new(Self {
            when_full: config.when_full,
            bound: config.queue,
            wait: config.wait,
            arguments: config.arguments.then_some(config.arguments_bytes),
            state: Mutex::default(),
            wake: Condvar::new(),
            room: Notify::new(),
            writer: Mutex::default(),
        });
        let writer = {
            let sink = Arc::clone(&sink);
            std::thread::Builder::new()
                .name("audit".to_owned())
                .spawn(move || sink.write(target))
                .map_err(|cause| Error::internal(format!("the audit log has no thread: {cause}")))?
        };
        *sink.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(writer);
        Ok(sink)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many bytes of arguments are written, if any.
    pub(super) fn arguments(&self) -> Option<usize> {
        self.arguments
    }

    /// How long an RPC waits for room.
    pub(super) fn wait(&self) -> Duration {
        self.wait
    }

    /// Whether nothing may begin that has to be audited.
    pub(super) fn is_full(&self) -> bool {
        self.when_full == WhenFull::Block && self.state().queue.len() >= self.bound
    }

    /// Waits until something may begin.
    pub(super) async fn room(&self) {
        loop {
            let mut notified = std::pin::pin!(self.room.notified());
            notified.as_mut().enable();
            if !self.is_full() {
                return;
            }
            notified.await;
        }
    }

    /// Adds a record. What began before the queue was full still finds room: as much again.
    pub(super) fn push(&self, record: Record) {
        let most = match self.when_full {
            WhenFull::Drop => self.bound,
            WhenFull::Block => self.bound.saturating_mul(2),
        };
        let record = record.bounded();
        let mut state = self.state();
        if state.queue.len() >= most {
            state.dropped += 1;
        } else {
            state.queue.push_back(record);
        }
        drop(state);
        self.wake.notify_one();
    }

    /// Has the writer open its file anew.
    pub(super) fn reopen(&self) {
        self.state().reopen = true;
        self.wake.notify_one();
    }

    /// Has the writer end when the queue is empty, and waits for that.
    pub(super) async fn close(&self, bound: Duration) {
        self.state().closing = true;
        self.wake.notify_one();
        let writer = {
            let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
            writer.take()
        };
        if let Some(writer) = writer {
            let joined = tokio::task::spawn_blocking(move || writer.join());
            if tokio::time::timeout(bound, joined).await.is_err() {
                let left = self.state().queue.len();
                tracing::error!(
                    records = left,
                    "the audit log could not be written to its end"
                );
            }
        }
    }

    /// The writer's life.
    fn write(&self, mut target: Target) {
        let mut told = None;
        let mut lost = 0;
        loop {
            let (batch, closing) = {
                let mut state = self.state();
                while state.queue.is_empty() && !state.reopen && !state.closing {
                    state = self
                        .wake
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                let many = state.queue.len().min(BATCH);
                let mut batch: Vec<_> = state.queue.drain(..many).collect();
                let dropped = std::mem::take(&mut state.dropped);
                if dropped > 0 {
                    lost += dropped;
                    batch.push(missing(dropped));
                }
                if std::mem::take(&mut state.reopen) {
                    target.reopen();
                }
                (batch, state.closing && state.queue.is_empty())
            };
            self.room.notify_waiters();
            if lost > 0 && (closing || told.is_none_or(|told| Clock.now() - told >= TELL)) {
                tracing::warn!(
                    records = lost,
                    "audit records were lost: the queue was full (audit.queue)"
                );
                (told, lost) = (Some(Clock.now()), 0);
            }
            if !self.write_all(&mut target, &batch) {
                return;
            }
            if closing {
                target.finish();
                return;
            }
        }
    }

    /// Writes records, however long it takes. Tells whether to go on: a log that cannot be written when the daemon ends is
    /// given up.
    fn write_all(&self, target: &mut Target, batch: &[Record]) -> bool {
        let mut failing = false;
        target.take(batch);
        while let Err(cause) = target.flush() {
            if !std::mem::replace(&mut failing, true) {
                tracing::error!(%cause, "the audit log cannot be written; it is tried again");
            }
            let state = self.state();
            if state.closing {
                let left = state.queue.len() + batch.len();
                tracing::error!(
                    records = left,
                    "audit records were lost: the daemon ends, and they cannot be written"
                );
                return false;
            }
            let waited = self
                .wake
                .wait_timeout_while(state, AGAIN, |state| !state.reopen && !state.closing);
            let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            if std::mem::take(&mut state.reopen) {
                target.reopen();
            }
        }
        if failing {
            tracing::info!("the audit log can be written again");
        }
        true
    }
}

/// Tells of records that are not there.
fn missing(count: u64) -> Record {
    let mut record = Record::new(Clock.wall(), "records_dropped", OK);
    record.count = Some(count);
    record
}

/// Where records go.
#[derive(Debug)]
enum Target {
    File {
        path: PathBuf,
        file: File,
        /// Whole lines, and what of them is written already.
        lines: Vec<u8>,
        written: usize,
    },
    Journal,
}

impl Target {
    fn file(path: &Path) -> Result<Self> {
        let file = open(path).map_err(|cause| {
            Error::internal(format!(
                "the audit log `{}` cannot be opened: {cause}; `audit.file` names it",
                path.display()
            ))
        })?;
        Ok(Self::File {
            path: path.to_owned(),
            file,
            lines: Vec::new(),
            written: 0,
        })
    }

    fn journal() -> Result<Self> {
        if tracing::enabled!(target: "audit", tracing::Level::INFO) {
            return Ok(Self::Journal);
        }
        Err(Error::internal(
            "the audit log goes to the daemon's log, and `log.filter` keeps it out of there: add `audit=info` to the filter",
        ))
    }

    fn reopen(&mut self) {
        let Self::File { path, file, .. } = self else {
            return;
        };
        match open(path) {
            Ok(new) => {
                *file = new;
                tracing::info!(file = %path.display(), "the audit log was opened anew");
            }
            Err(cause) => {
                tracing::error!(%cause, file = %path.display(), "the audit log cannot be opened anew; the old file goes on");
            }
        }
    }

    fn take(&mut self, batch: &[Record]) {
        match self {
            Self::File { lines, written, .. } => {
                lines.clear();
                *written = 0;
                for record in batch {
                    // A record has nothing that cannot be written.
                    if serde_json::to_writer(&mut *lines, record).is_ok() {
                        lines.push(b'\n');
                    }
                }
            }
            Self::Journal => batch.iter().for_each(tell),
        }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let Self::File {
            file,
            lines,
            written,
            ..
        } = self
        else {
            return Ok(());
        };
        while let Some(rest) = lines.get(*written..).filter(|rest| !rest.is_empty()) {
            match file.write(rest) {
                Ok(0) => return Err(std::io::ErrorKind::WriteZero.into()),
                Ok(bytes) => *written += bytes,
                Err(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {}
                Err(cause) => return Err(cause),
            }
        }
        Ok(())
    }

    fn finish(&self) {
        if let Self::File { file, .. } = self
            && let Err(cause) = file.sync_data()
        {
            tracing::warn!(%cause, "the end of the audit log may not be on disk");
        }
    }
}

/// Never through a link that somebody put there.
fn open(path: &Path) -> std::io::Result<File> {
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits();
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .custom_flags(i32::try_from(no_follow).unwrap_or(0))
        .open(path)
}

/// One line of the daemon's log.
fn tell(record: &Record) {
    let origin = record.origin.as_ref();
    let asked = record.asked.as_ref();
    let arguments = record.arguments.as_ref();
    let arguments = arguments.and_then(|arguments| serde_json::to_string(arguments).ok());
    tracing::info!(
        target: "audit",
        time = record.time(),
        event = record.event,
        outcome = record.outcome,
        namespace = record.namespace,
        server = record.server,
        tool = record.tool,
        resource = record.resource,
        prompt = record.prompt,
        app_token = record.app_token,
        call_id = record.call_id,
        request_id = record.request_id,
        joined = record.joined.then_some(true),
        question_id = asked.map(|asked| asked.question_id.as_str()),
        mode = asked.and_then(|asked| asked.mode),
        action = asked.map(|asked| asked.action),
        uid = origin.and_then(|origin| origin.uid),
        gid = origin.and_then(|origin| origin.gid),
        pid = origin.and_then(|origin| origin.pid),
        program = origin.and_then(|origin| origin.program.as_deref()),
        token_id = origin.and_then(|origin| origin.token_id.as_deref()),
        token_name = origin.and_then(|origin| origin.token_name.as_deref()),
        rpc_id = origin.map(|origin| origin.rpc_id.as_str()),
        duration_ms = record.duration_ms,
        arguments,
        count = record.count,
    );
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Sink;
    use crate::audit::{Audit, Record};
    use crate::base::{Deadline, Timestamp};
    use crate::config::{AuditConfig, AuditDestination, WhenFull};
    use crate::error::Reason;

    fn config(file: &std::path::Path, when_full: WhenFull) -> AuditConfig {
        AuditConfig {
            destination: AuditDestination::File,
            file: file.to_owned(),
            queue: 10,
            wait: Duration::from_millis(50),
            when_full,
            ..AuditConfig::default()
        }
    }

    fn record() -> Record {
        Record::new(Timestamp(0), "event", "ok")
    }

    /// A device that is always full.
    const FULL: &str = "/dev/full";

    #[tokio::test]
    async fn what_cannot_be_written_lets_nothing_begin() {
        let config = config(FULL.as_ref(), WhenFull::Block);
        let sink = Sink::open(&config).unwrap();
        let audit = Audit(Some(sink.clone()));
        // The writer may hold a batch beside the queue.
        let refused = loop {
            match audit.clone().room(Deadline::NONE).await {
                Ok(()) => sink.push(record()),
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused.reason(), Reason::TooMany);
        // What had begun before still finds room, to a bound.
        sink.push(record());
        assert_eq!(sink.state().dropped, 0);
        for _ in 0..20 {
            sink.push(record());
        }
        assert!(sink.state().queue.len() <= 20 && sink.state().dropped > 0);
        audit.close(Duration::from_secs(10)).await;
    }

    #[tokio::test]
    async fn records_beyond_the_bound_are_dropped_and_counted() {
        let sink = Sink::open(&config(FULL.as_ref(), WhenFull::Drop)).unwrap();
        while sink.state().dropped == 0 {
            sink.push(record());
        }
        assert!(sink.state().queue.len() <= 10 && !sink.is_full());
        sink.close(Duration::from_secs(10)).await;
    }

    #[tokio::test]
    async fn a_file_that_was_renamed_is_left_for_a_new_one() {
        let directory = tempfile::tempdir().unwrap();
        let (path, old) = (directory.path().join("a"), directory.path().join("a.1"));
        let sink = Sink::open(&config(&path, WhenFull::Block)).unwrap();
        std::fs::rename(&path, &old).unwrap();
        sink.reopen();
        sink.push(record());
        sink.close(Duration::from_secs(10)).await;
        let lines = |path| std::fs::read_to_string(path).unwrap().lines().count();
        assert_eq!((lines(&old), lines(&path)), (0, 1));
    }
}
