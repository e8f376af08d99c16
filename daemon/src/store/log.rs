//! The update log: rows in the database, and the last of them in memory.
//!
//! Never publishes an update before its transaction is committed, and never changes one afterwards.

use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::{READ_BYTES, count, json, unreadable};
use crate::base::{Clock, Namespace, Revision, ServerId, Timestamp};
use crate::error::{Error, Reason, Result};
use crate::model::call::{Call, KeepCalls};
use crate::model::question::Question;
use crate::model::status::ServerView;
use crate::model::update::{Body, Kind, Update};

/// The tail in memory ends at this many bytes of bodies, however few updates that is.
const TAIL_BYTES: usize = 4 << 20;

/// An open transaction: SQL goes through `connection`, and every change appends what it changed.
pub(super) struct Changes<'a> {
    /// Inside a transaction.
    pub(super) connection: &'a Connection,
    /// When the transaction began; the time of everything it commits.
    pub(super) now: Timestamp,
    appended: Vec<Entry>,
    written: i64,
}

/// An update and the size of its body.
#[derive(Clone)]
pub(super) struct Entry {
    update: Arc<Update>,
    size: usize,
}

/// How far a transaction had come; see [`Changes::mark`].
pub(super) struct Mark {
    appended: usize,
    written: i64,
}

impl<'a> Changes<'a> {
    /// For a transaction that has just begun.
    pub(super) fn new(connection: &'a Connection) -> Result<Self> {
        let written = connection
            .prepare_cached("SELECT written FROM updates ORDER BY revision DESC LIMIT 1")?
            .query_row([], |row| row.get(0))
            .optional()?;
        Ok(Self {
            connection,
            now: Clock.wall(),
            appended: Vec::new(),
            written: written.unwrap_or(0),
        })
    }

    /// Appends that a server is new or has changed.
    pub(super) fn server(&mut self, view: ServerView) -> Result<Revision> {
        let key = view.key.clone();
        let body = Body::Server(Box::new(view));
        self.append(key.namespace, key.id, Kind::Server, body)
    }

    /// Appends that a question is new or has changed.
    pub(super) fn question(&mut self, question: Question) -> Result<Revision> {
        let key = question.server.clone();
        let kind = Kind::from(question.mode);
        let body = Body::Elicitation(Box::new(question));
        self.append(key.namespace, key.id, kind, body)
    }

    /// Appends that a call is new or has changed.
    pub(super) fn call(&mut self, call: Call) -> Result<Revision> {
        let key = call.server.clone();
        let body = Body::Call(Box::new(call));
        self.append(key.namespace, key.id, Kind::Call, body)
    }

    /// Appends that something is gone.
    pub(super) fn deleted(
        &mut self,
        namespace: &Namespace,
        server_id: &ServerId,
        kind: Kind,
        id: &str,
    ) -> Result<Revision> {
        let body = Body::Deleted {
            kind,
            id: id.to_owned(),
        };
        self.append(namespace.clone(), server_id.clone(), kind, body)
    }

    fn append(
        &mut self,
        namespace: Namespace,
        server_id: ServerId,
        kind: Kind,
        body: Body,
    ) -> Result<Revision> {
        let text = json(&body)?;
        self.written = self.written.saturating_add(count(text.len()));
        self.connection
            .prepare_cached(
                "INSERT INTO updates (committed, namespace, server_id, kind, body_json, written)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                self.now.0,
                namespace.as_str(),
                server_id.as_str(),
                kind_text(kind),
                text,
                self.written
            ])?;
        let revision = revision(self.connection.last_insert_rowid());
        self.appended.push(Entry {
            update: Arc::new(Update {
                revision,
                committed: self.now,
                namespace,
                server_id,
                kind,
                body,
            }),
            size: text.len(),
        });
        Ok(revision)
    }

    /// Remembers how far this transaction has come.
    pub(super) fn mark(&self) -> Mark {
        Mark {
            appended: self.appended.len(),
            written: self.written,
        }
    }

    /// Forgets what was appended since the mark; the caller rolls the savepoint back.
    pub(super) fn reset(&mut self, mark: &Mark) {
        self.appended.truncate(mark.appended);
        self.written = mark.written;
    }

    /// What was appended, to publish after the commit.
    pub(super) fn into_entries(self) -> Vec<Entry> {
        self.appended
    }
}

/// The last committed updates, so that a subscriber who keeps up never reads the database.
pub(super) struct Tail {
    capacity: usize,
    held: RwLock<Held>,
}

#[derive(Default)]
struct Held {
    entries: VecDeque<Entry>,
    bytes: usize,
}

impl Tail {
    /// Keeps at most this many updates and at most [`TAIL_BYTES`] of bodies.
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            held: RwLock::default(),
        }
    }

    /// Adds committed updates, in order; returns the revision of the last.
    pub(super) fn push(&self, entries: Vec<Entry>) -> Option<Revision> {
        let last = entries.last().map(|entry| entry.update.revision);
        let mut held = self.held.write().unwrap_or_else(PoisonError::into_inner);
        for entry in entries {
            held.bytes += entry.size;
            held.entries.push_back(entry);
        }
        while held.entries.len() > self.capacity || held.bytes > TAIL_BYTES {
            let Some(oldest) = held.entries.pop_front() else {
                break;
            };
            held.bytes -= oldest.size;
        }
        last
    }

    /// Up to `limit` updates behind `after`, ending behind the one that reaches [`READ_BYTES`]; `None` if the tail does
    /// not reach back that far.
    pub(super) fn after(&self, after: Revision, limit: usize) -> Option<Vec<Arc<Update>>> {
        let held = self.held.read().unwrap_or_else(PoisonError::into_inner);
        let first = held.entries.front()?.update.revision;
        let last = held.entries.back()?.update.revision;
        if after.0.saturating_add(1) < first.0 || after > last {
            return None;
        }
        // Revisions have no gaps, so the position follows from the number.
        let skip = usize::try_from(after.0 + 1 - first.0).ok()?;
        let mut bytes = 0;
        let wanted = held.entries.iter().skip(skip).take(limit);
        let wanted = wanted.take_while(|entry| {
            let more = bytes < READ_BYTES;
            bytes += entry.size;
            more
        });
        Some(wanted.map(|entry| Arc::clone(&entry.update)).collect())
    }
}

/// The last revision that was ever committed.
pub(super) fn head(connection: &Connection) -> Result<Revision> {
    let sequence = connection
        .prepare_cached("SELECT seq FROM sqlite_sequence WHERE name = 'updates'")?
        .query_row([], |row| row.get(0))
        .optional()?;
    Ok(revision(sequence.unwrap_or(0)))
}

/// Up to `limit` updates behind `after`, ending behind the one that reaches [`READ_BYTES`], from the database.
///
/// # Errors
/// [`Reason::ResumeTokenExpired`] if updates behind `after` are no longer kept, or `after` was never reached.
pub(super) fn read_after(
    connection: &Connection,
    after: Revision,
    limit: usize,
) -> Result<Vec<Arc<Update>>> {
    let transaction = connection.unchecked_transaction()?;
    let head = head(&transaction)?;
    let oldest: Option<i64> = transaction
        .prepare_cached("SELECT min(revision) FROM updates")?
        .query_row([], |row| row.get(0))?;
    let first_kept = oldest.map_or(head.0.saturating_add(1), |oldest| revision(oldest).0);
    if after > head || after.0.saturating_add(1) < first_kept {
        return Err(Error::new(
            Reason::ResumeTokenExpired,
            format!(
                "changes behind revision {after} are not kept (the log holds {first_kept} to {head}): start again \
                 without a resume token"
            ),
        ));
    }
    let mut statement = transaction.prepare_cached(
        "SELECT revision, committed, namespace, server_id, kind, body_json
         FROM updates WHERE revision > ?1 ORDER BY revision LIMIT ?2",
    )?;
    let mut rows = statement.query(params![
        i64::try_from(after.0).unwrap_or(i64::MAX),
        count(limit)
    ])?;
    let (mut updates, mut bytes) = (Vec::new(), 0);
    while bytes < READ_BYTES
        && let Some(row) = rows.next()?
    {
        bytes += row.get_ref(5)?.as_str().map_or(0, str::len);
        updates.push(Arc::new(update(row)?));
    }
    Ok(updates)
}

fn update(row: &Row<'_>) -> Result<Update> {
    let revision = revision(row.get(0)?);
    let kind = match row.get_ref(4)?.as_str() {
        Ok("server") => Kind::Server,
        Ok("elicitation") => Kind::Elicitation,
        Ok("call") => Kind::Call,
        Ok("sampling") => Kind::Sampling,
        _ => return Err(unreadable("kind of update", &revision)),
    };
    let body = row.get_ref(5)?.as_str().ok();
    let body = body.and_then(|text| serde_json::from_str(text).ok());
    Ok(Update {
        revision,
        committed: Timestamp(row.get(1)?),
        namespace: Namespace::new(row.get::<_, String>(2)?),
        server_id: ServerId::new(row.get::<_, String>(3)?),
        kind,
        body: body.ok_or_else(|| unreadable("body of update", &revision))?,
    })
}

/// How much is kept.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// At most this many updates.
    pub(super) updates: u64,
    /// No update older than this.
    pub(super) age: Duration,
    /// At most this many bytes of bodies.
    pub(super) bytes: u64,
    /// No question that ended longer ago than this.
    pub(super) ended_questions: Duration,
    /// How much of calls that have ended.
    pub(super) calls: KeepCalls,
}

/// Deletes the oldest updates that are out of bounds, up to the first one that is not, and at most `chunk` of them. The
/// wall clock may have been ahead for a while: an update that seems older than one before it stays as long as that one,
/// because a log with a gap would let readers resume before the gap and miss what was in it.
pub(super) fn prune(
    connection: &Connection,
    bounds: Bounds,
    now: Timestamp,
    chunk: usize,
) -> Result<usize> {
    let last: Option<(i64, i64)> = connection
        .prepare_cached("SELECT revision, written FROM updates ORDER BY revision DESC LIMIT 1")?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    let Some((last_revision, last_written)) = last else {
        return Ok(0);
    };
    let bound = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let age = i64::try_from(bounds.age.as_millis()).unwrap_or(i64::MAX);
    let deleted = connection
        .prepare_cached(
            "WITH oldest AS (SELECT revision, committed, written FROM updates ORDER BY revision LIMIT ?1)
             DELETE FROM updates WHERE revision < coalesce(
                 (SELECT min(revision) FROM oldest WHERE revision > ?2 AND committed >= ?3 AND written > ?4),
                 (SELECT max(revision) + 1 FROM oldest))",
        )?
        .execute(params![
            count(chunk),
            last_revision.saturating_sub(bound(bounds.updates)),
            now.0.saturating_sub(age),
            last_written.saturating_sub(bound(bounds.bytes)),
        ])?;
    Ok(deleted)
}

fn kind_text(kind: Kind) -> &'static str {
    match kind {
        Kind::Server => "server",
        Kind::Elicitation => "elicitation",
        Kind::Call => "call",
        Kind::Sampling => "sampling",
    }
}

fn revision(stored: i64) -> Revision {
    Revision(u64::try_from(stored).unwrap_or(0))
}
