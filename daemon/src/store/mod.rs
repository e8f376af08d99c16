//! What the daemon remembers: servers, questions and the update log, in one SQLite database. The only place with SQL.
//!
//! Never stores an answer to a question longer than its call rests, never stores a secret that is not sealed, and never commits a change without
//! its entry in the update log, in the same transaction.
//!
//! # What is durable
//!
//! A write that is *durable* is synced to disk before its future completes; everything that a remote side or an app
//! acts upon is. Waiters share one sync (group commit). A *lazy* write survives the end of the process at once, and a
//! loss of power from the next durable write on.
//!
//! | write | |
//! |---|---|
//! | [`Store::put_server`], [`Store::rename_server`], [`Store::remove_server`] | durable |
//! | [`Store::put_grant`], [`Store::finish_sign_in`] and all else about authorization | durable |
//! | [`Store::put_question`], [`Store::end_question`], [`Store::void_questions`] | durable |
//! | [`Store::begin_call`], [`Store::rest_call`], [`Store::go_on`], [`Store::end_call`] | durable |
//! | [`Store::add_app_token`], [`Store::remove_app_token`] | durable |
//! | what [`Store::open`] changes, [`Store::check_vault`], [`Store::close`] | durable |
//! | [`Store::set_status`], [`Store::set_session`], pruning | lazy |
//!
//! # Resume tokens and lost power
//!
//! A revision of a lazy write can be seen by a subscriber, lost with the power, and used again for another change. So
//! the log gets another identity, and old tokens become foreign, when the database is opened on another boot of the
//! machine than the last one and was not closed cleanly. The end of the process alone keeps the identity.
//!
//! # Threads
//!
//! What is out of bounds is pruned by the writing thread, a bounded amount at a time, after a write: an idle store keeps
//! what it has.
//!
//! One thread writes, one reads, each with its own connection, fed by bounded queues. Futures of this module may be
//! dropped at any time; a write that was queued happens all the same.

mod app_tokens;
mod audiences;
mod auth;
mod calls;
mod key;
mod keyring;
mod lock;
mod log;
mod migrate;
mod probe;
mod questions;
mod rotate;
mod seal;
mod servers;
#[cfg(test)]
mod tests;
mod thread;
mod token;
mod waiting;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};
use serde::Serialize;
use tokio::sync::watch;

pub use self::auth::Authorizations;
pub use self::calls::{already_ended, no_such_call};
pub use self::questions::already_resolved;
pub use self::rotate::{Keys, Rotated, rotate_key};

use self::key::KeySource;
use self::lock::DirLock;
use self::log::{Bounds, Tail};
use self::probe::Probe;
use self::seal::Sealer;
use self::thread::{Durability, ReadThread, WriteThread, Writer};
use self::token::LogId;
use crate::base::{Namespace, Revision, ServerKey};
use crate::error::{Error, Reason, Result};
use crate::model::call::KeepCalls;
use crate::model::status::{ServerRecord, ServerStatus, Session, Verdict};
use crate::model::update::{Body, Filter, Update};
use crate::model::vault::KeyBackend;

/// Name of the database in the data directory.
const DATABASE: &str = "sidecar.db";
/// How long a statement waits for a lock of another process, such as a backup.
const BUSY: Duration = Duration::from_secs(5);
/// The write-ahead log is cut to this many bytes when it is reset.
const JOURNAL_LIMIT: i64 = 16 << 20;

/// A reader gets no more than this many bytes of updates or questions at once, and at least one.
const READ_BYTES: usize = 1 << 20;

/// Key in `meta`: identity of the update log.
const LOG_ID: &str = "log_id";
/// Key in `meta`: the boot on which the database was last opened.
const BOOT_ID: &str = "boot_id";
/// Key in `meta`: "1" after a clean close, "0" while open.
const CLEAN: &str = "clean";
/// Key in `meta`: recognises the key that seals.
const KEY_CHECK: &str = "key_check";

/// Where a store is and how much it keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StoreConfig {
    /// Directory of the database, the lock and, by default, the key. Created with mode 0700 if absent.
    pub data_dir: PathBuf,
    /// Where the key is that seals secrets.
    pub key_backend: KeyBackend,
    /// The file with that key. Default: `vault.key` in the data directory. Created with mode 0600 if absent while nothing
    /// is sealed.
    pub key_file: Option<PathBuf>,
    /// Directory in which systemd puts credentials. By default a file `vault-key` there comes before `key_file`.
    pub credentials_dir: Option<PathBuf>,
    /// The update log holds about this many updates.
    pub keep_updates: u64,
    /// The update log holds updates of about this time.
    pub keep_age: Duration,
    /// The update log holds about this many bytes.
    pub keep_bytes: u64,
    /// This many of the last updates are held in memory, and at most 4 MiB of them.
    pub tail: usize,
    /// Questions can be read for this long after their end; of all, the last 10,000.
    pub keep_ended_questions: Duration,
    /// What is kept of calls that have ended.
    pub keep_calls: KeepCalls,
}

impl StoreConfig {
    /// The defaults: 100,000 updates, 24 hours, 256 MiB, 4096 updates in memory, ended questions for 24 hours, those of
    /// [`KeepCalls`], and the credentials directory that the environment variable `CREDENTIALS_DIRECTORY` names.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        Self {
            data_dir: data_dir.into(),
            key_backend: KeyBackend::default(),
            key_file: None,
            credentials_dir: std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from),
            keep_updates: 100_000,
            keep_age: Duration::from_hours(24),
            keep_bytes: 256 << 20,
            tail: 4096,
            keep_ended_questions: Duration::from_hours(24),
            keep_calls: KeepCalls::default(),
        }
    }
}

/// The daemon's memory. Cheap to clone. When the last clone is dropped without [`Store::close`], the drop waits for the
/// queued writes; the database then counts as not closed cleanly, which costs nothing but the resume tokens, and those
/// only if the machine was started anew.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

struct Inner {
    reads: ReadThread,
    writes: WriteThread,
    tail: Arc<Tail>,
    head: watch::Receiver<Revision>,
    sealer: Arc<Sealer>,
    log_id: LogId,
    keep_calls: KeepCalls,
}

impl Store {
    /// Opens the database, or creates it. Returns every server with its secrets opened, ordered by namespace and id.
    /// Blocks: call it before there is a runtime, or on a blocking thread.
    ///
    /// Pending questions end as void, since nobody waits for their answers any more, but those of calls that rest. The status of every server starts
    /// over, as connecting or disconnected. Both are in the update log.
    ///
    /// A server whose secrets do not open (its row was tampered with) is returned without them, with `connect` off and
    /// the failure in its status, and its row is left as it is.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`], with the remedy in the message: the directory is open to others, belongs to another
    /// user or is in use by another daemon; the schema is newer than this daemon; the key is missing or wrong; what is
    /// sealed cannot be kept; the disk is full, read-only or corrupt. Nothing is deleted. The fact `vault` is set where
    /// another attempt does not help.
    pub fn open(config: StoreConfig) -> Result<(Self, Vec<ServerRecord>)> {
        Self::open_on_boot(config, &boot_id())
    }

    fn open_on_boot(config: StoreConfig, boot_id: &str) -> Result<(Self, Vec<ServerRecord>)> {
        let key = KeySource::find(&config)?;
        let StoreConfig {
            data_dir,
            keep_updates,
            keep_age,
            keep_bytes,
            tail,
            keep_ended_questions,
            keep_calls,
            ..
        } = config;
        lock::prepare_dir(&data_dir)?;
        let lock = DirLock::acquire(&data_dir)?;
        let path = data_dir.join(DATABASE);
        lock::private_file(&path).map_err(|cause| lock::file_failed("open", &path, &cause))?;
        lock::sync_dir(&data_dir)?;
        let mut connection = connect(&path, Access::Write)?;
        migrate::run(&mut connection)?;

        let check = meta(&connection, KEY_CHECK)?;
        let in_use = rotate::any_sealed(&connection)?;
        let sealer = key.unlock(check.as_deref(), in_use)?;

        let tail = Arc::new(Tail::new(tail));
        let (head_sender, head) = watch::channel(log::head(&connection)?);
        let bounds = Bounds {
            updates: keep_updates,
            age: keep_age,
            bytes: keep_bytes,
            ended_questions: keep_ended_questions,
            calls: keep_calls,
        };
        let probe = Probe::generate();
        let mut writer = Writer::new(connection, lock, Arc::clone(&tail), head_sender, bounds);
        let (log_id, records) = writer.now(|changes| {
            let connection = changes.connection;
            if !check.is_some_and(|check| sealer.accepts(&check)) {
                meta_put(connection, KEY_CHECK, &sealer.key_check()?)?;
            }
            let log_id = begin_log(connection, boot_id)?;
            probe::forget_all(connection)?;
            probe.put(connection, &probe.seal(&sealer)?)?;
            questions::void(changes, None)?;
            auth::start_over(changes)?;
            Ok((log_id, servers::start_over(changes, &sealer)?))
        })?;

        let reader = connect(&path, Access::Read)?;
        probe.judge(&sealer, probe.find(&reader)?.as_deref())?;
        writer.now(|changes| probe.forget(changes.connection))?;

        let store = Self(Arc::new(Inner {
            reads: ReadThread::spawn(reader)?,
            writes: WriteThread::spawn(writer)?,
            tail,
            head,
            sealer: Arc::new(sealer),
            log_id,
            keep_calls,
        }));
        Ok((store, records))
    }

    /// Inserts a server, or replaces the one with its key; with its status. Durable. Returns the revision of the change.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn put_server(&self, record: ServerRecord, status: ServerStatus) -> Result<Revision> {
        let sealed = self.seal(&record)?;
        self.durable(move |changes| servers::put(changes, &record, status, sealed.as_deref()))
            .await
    }

    /// Replaces the server `old` by `record`, which has another id in the same namespace; its secrets are sealed anew
    /// and its questions go with it. The log says that `old` is deleted, then that `record` is new; each pending
    /// question is then deleted at `old` and new at `record`. Durable, and all of it or nothing. Returns the last
    /// revision.
    ///
    /// # Errors
    /// [`Reason::ServerNotFound`] without `old`, [`Reason::ServerIdTaken`] if the new id is in use,
    /// [`Reason::StoreFailed`].
    pub async fn rename_server(
        &self,
        old: ServerKey,
        record: ServerRecord,
        status: ServerStatus,
    ) -> Result<Revision> {
        let sealed = self.seal(&record)?;
        let sealer = Arc::clone(&self.0.sealer);
        let rename = move |changes: &mut log::Changes<'_>| {
            servers::rename(changes, &old, &record, status, sealed.as_deref(), &sealer)
        };
        self.durable(rename).await
    }

    /// Removes a server with its secrets. Calls to it end as failed and its pending questions as void before it; ended questions can still be
    /// read for their time. Durable. Returns the revision of the removal.
    ///
    /// # Errors
    /// [`Reason::ServerNotFound`], [`Reason::StoreFailed`].
    pub async fn remove_server(&self, key: ServerKey) -> Result<Revision> {
        let (sealer, keep) = (Arc::clone(&self.0.sealer), self.0.keep_calls);
        self.durable(move |changes| servers::remove(changes, &sealer, &key, keep))
            .await
    }

    /// Replaces the status of a server, and its verdict if one is given. Lazy. `None`, and no change, if no such server
    /// is registered: a late report never brings a removed server back.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn set_status(
        &self,
        key: ServerKey,
        status: ServerStatus,
        verdict: Option<Verdict>,
    ) -> Result<Option<Revision>> {
        let run = move |changes: &mut log::Changes<'_>| {
            servers::set_status(changes, &key, status, verdict.as_ref())
        };
        self.0.writes.write(Durability::Lazy, run).await
    }

    /// Keeps the session of a server for the next start, or forgets it. Lazy, and no update: apps never see it. Nothing
    /// is kept for a server that is not registered; changed settings, a new id and a removal forget the session.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn set_session(&self, key: ServerKey, session: Option<Session>) -> Result<()> {
        let sealed = session
            .map(|session| self.0.sealer.seal_session(&key, &session))
            .transpose()?;
        let run = move |changes: &mut log::Changes<'_>| match &sealed {
            Some(sealed) => servers::keep_session(changes.connection, &key, sealed),
            None => servers::forget_session(changes.connection, &key),
        };
        self.0.writes.write(Durability::Lazy, run).await
    }

    /// Whether a server was ever registered in the namespace.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn namespace_exists(&self, namespace: Namespace) -> Result<bool> {
        let run = move |connection: &Connection| servers::namespace_exists(connection, &namespace);
        self.0.reads.read(run).await
    }

    /// Up to `limit` namespaces in which a server was ever registered, behind `after`, in order.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn namespaces(
        &self,
        after: Option<Namespace>,
        limit: usize,
    ) -> Result<Vec<Namespace>> {
        let run =
            move |connection: &Connection| servers::namespaces(connection, after.as_ref(), limit);
        self.0.reads.read(run).await
    }

    /// Everything that matches at one moment (servers, pending questions, calls that have not ended), and the revision of that moment:
    /// [`Store::updates_after`] that revision misses nothing.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn snapshot(&self, filter: Filter) -> Result<(Revision, Vec<Body>)> {
        let run = move |connection: &Connection| {
            let transaction = connection.unchecked_transaction()?;
            let revision = log::head(&transaction)?;
            let mut bodies = Vec::new();
            servers::snapshot(&transaction, &filter, &mut bodies)?;
            questions::snapshot(&transaction, &filter, &mut bodies)?;
            calls::snapshot(&transaction, &filter, &mut bodies)?;
            Ok((revision, bodies))
        };
        self.0.reads.read(run).await
    }

    /// The revision of the last committed update, to wait for the next. Closed when the store is.
    #[must_use]
    pub fn head(&self) -> watch::Receiver<Revision> {
        self.0.head.clone()
    }

    /// Up to `limit` updates behind `after`, in order and without a gap, and no more than the first of them with 1 MiB
    /// together; none if there is nothing newer. From memory if that reaches back far enough.
    ///
    /// # Errors
    /// [`Reason::ResumeTokenExpired`] if updates behind `after` are no longer kept, or `after` was never reached;
    /// [`Reason::StoreFailed`].
    pub async fn updates_after(&self, after: Revision, limit: usize) -> Result<Vec<Arc<Update>>> {
        if after == *self.0.head.borrow() {
            return Ok(Vec::new());
        }
        if let Some(updates) = self.0.tail.after(after, limit) {
            return Ok(updates);
        }
        let run = move |connection: &Connection| log::read_after(connection, after, limit);
        self.0.reads.read(run).await
    }

    /// A text with which an app can continue behind this revision later.
    #[must_use]
    pub fn resume_token(&self, revision: Revision) -> String {
        token::encode(self.0.log_id, revision)
    }

    /// The revision in a resume token. Whether it is still kept, [`Store::updates_after`] says.
    ///
    /// # Errors
    /// [`Reason::InvalidField`] on `resume_token` for a text that is none, [`Reason::ResumeTokenExpired`] for one of
    /// another log.
    pub fn parse_resume_token(&self, token: &str) -> Result<Revision> {
        token::decode(self.0.log_id, token)
    }

    /// Lets queued writes finish, marks the database as closed cleanly, and ends both threads. Later operations of any
    /// clone fail with [`Reason::StoreFailed`]; a second close does nothing.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`] if the last write fails; the store is closed all the same.
    pub async fn close(&self) -> Result<()> {
        self.0.reads.close().await;
        self.0.writes.close().await
    }

    fn seal(&self, record: &ServerRecord) -> Result<Option<Vec<u8>>> {
        self.0
            .sealer
            .seal_secrets(&record.key, &record.spec.secrets())
    }

    async fn durable<T: Send + 'static>(
        &self,
        run: impl FnOnce(&mut log::Changes<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        self.0.writes.write(Durability::Durable, run).await
    }
}

/// Marks the database as open on this boot, and gives the log a new identity where the old one can no longer be
/// trusted.
fn begin_log(connection: &Connection, boot_id: &str) -> Result<LogId> {
    let clean = meta(connection, CLEAN)?.is_some_and(|clean| clean == b"1");
    let same_boot = !boot_id.is_empty()
        && meta(connection, BOOT_ID)?.is_some_and(|known| known == boot_id.as_bytes());
    let known = meta(connection, LOG_ID)?.and_then(|id| LogId::from_bytes(&id));
    let log_id = match known {
        Some(known) if clean || same_boot => known,
        _ => LogId::generate(),
    };
    meta_put(connection, LOG_ID, log_id.as_bytes())?;
    meta_put(connection, BOOT_ID, boot_id.as_bytes())?;
    meta_put(connection, CLEAN, b"0")?;
    Ok(log_id)
}

/// Identifies this boot of the machine; empty if the kernel does not say, which counts as another boot each time.
fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.map(|id| id.trim().to_owned()).unwrap_or_default()
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Access {
    Read,
    Write,
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one place that opens the database"
)]
fn connect(path: &Path, access: Access) -> Result<Connection> {
    let mode = match access {
        Access::Read => OpenFlags::SQLITE_OPEN_READ_ONLY,
        Access::Write => OpenFlags::SQLITE_OPEN_READ_WRITE,
    };
    let connection = Connection::open_with_flags(path, mode | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY)?;
    connection.set_prepared_statement_cache_capacity(64);
    if access == Access::Write {
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "journal_size_limit", JOURNAL_LIMIT)?;
    }
    Ok(connection)
}

fn meta(connection: &Connection, key: &str) -> Result<Option<Vec<u8>>> {
    Ok(connection
        .prepare_cached("SELECT value FROM meta WHERE key = ?1")?
        .query_row([key], |row| row.get(0))
        .optional()?)
}

fn meta_put(connection: &Connection, key: &str, value: &[u8]) -> Result<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO meta (key, value) VALUES (?1, ?2)")?
        .execute(params![key, value])?;
    Ok(())
}

fn json<T: Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|cause| Error::internal(format!("cannot write as JSON: {cause}")))
}

/// A size as SQLite takes it; cut at the largest it knows.
fn count(size: usize) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

fn unreadable(what: &str, which: &dyn Display) -> Error {
    Error::new(
        Reason::StoreFailed,
        format!("the {what} `{which}` in the database is not readable"),
    )
}

impl From<rusqlite::Error> for Error {
    fn from(cause: rusqlite::Error) -> Self {
        let hint = match cause.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => "the disk is full: make room",
            Some(ErrorCode::ReadOnly) => {
                "the database cannot be written: check its file system and owner"
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                "the database file is damaged: restore a backup"
            }
            Some(ErrorCode::SystemIoFailure) => "the disk or its file system fails",
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                "another process holds the database"
            }
            _ => "the database refused an operation",
        };
        Self::new(Reason::StoreFailed, format!("{hint} ({cause})"))
    }
}
