//! The two threads of the store: one writes in groups, one reads.
//!
//! The writer takes everything that is queued, runs it in one transaction with a savepoint per write, commits once, and
//! only then answers. A write that fails undoes itself and nothing else; a commit that fails fails all of its writes. A
//! write that panics is a write that fails. Whoever waits for a thread that is gone gets an error, never silence.
//!
//! Never holds a lock while it runs SQL, and never answers before the commit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rusqlite::Connection;
use tokio::sync::{mpsc, oneshot, watch};

use super::calls;
use super::lock::DirLock;
use super::log::{self, Bounds, Changes, Entry, Tail};
use super::questions;
use crate::base::{Clock, Revision, Timestamp};
use crate::error::{Error, Reason, Result};

/// Writes or reads that wait; a further one waits for a place.
const QUEUE: usize = 1024;
/// Writes in one transaction.
const BATCH: usize = 256;
/// The log and the ended questions are pruned after this many updates ...
const PRUNE_AFTER: usize = 64;
/// ... or when this long has passed, at the next write.
const PRUNE_INTERVAL: Duration = Duration::from_mins(1);

/// What the daemon must not lose once it has acted on it is `Durable`: synced to disk before it is acknowledged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Durability {
    /// Synced before the answer.
    Durable,
    /// Survives the end of the process at once, and a loss of power from the next durable write on.
    Lazy,
}

trait Write: Send {
    fn durability(&self) -> Durability;
    /// Runs once, inside a savepoint; false if the savepoint must be rolled back.
    fn run(&mut self, changes: &mut Changes<'_>) -> bool;
    /// The transaction's outcome; hands the result to who waits.
    fn answer(self: Box<Self>, committed: &Result<()>);
}

struct Task<T, F> {
    durability: Durability,
    run: Option<F>,
    result: Result<T>,
    reply: oneshot::Sender<Result<T>>,
}

impl<T, F> Write for Task<T, F>
where
    T: Send,
    F: FnOnce(&mut Changes<'_>) -> Result<T> + Send,
{
    fn durability(&self) -> Durability {
        self.durability
    }

    fn run(&mut self, changes: &mut Changes<'_>) -> bool {
        if let Some(run) = self.run.take() {
            self.result = catch_unwind(AssertUnwindSafe(|| run(changes)))
                .unwrap_or_else(|_| Err(panicked("write")));
        }
        self.result.is_ok()
    }

    fn answer(self: Box<Self>, committed: &Result<()>) {
        let result = match (self.result, committed) {
            (Ok(_), Err(failure)) => Err(failure.clone()),
            // It never ran: the transaction did not get that far.
            (Err(_), Err(failure)) if self.run.is_some() => Err(failure.clone()),
            (result, _) => result,
        };
        // Nobody listens if the caller was cancelled; the write counts all the same.
        let _ = self.reply.send(result);
    }
}

enum Message {
    Write(Box<dyn Write>),
    Close(oneshot::Sender<Result<()>>),
}

type Read = Box<dyn FnOnce(&Connection) + Send>;

enum Request {
    Read(Read),
    Close(oneshot::Sender<()>),
}

/// The sending side of a thread. On drop the queue closes, and the drop waits until the thread has worked it off.
struct Worker<M> {
    // Declared, and so dropped, before the thread it feeds: the thread ends when its queue is closed.
    queue: mpsc::Sender<M>,
    thread: Joined,
}

struct Joined(Mutex<Option<JoinHandle<()>>>);

impl Joined {
    fn join(&self) {
        let thread = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if thread.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("a thread of the store panicked");
        }
    }
}

impl Drop for Joined {
    fn drop(&mut self) {
        self.join();
    }
}

impl<M: Send + 'static> Worker<M> {
    fn spawn(
        name: &str,
        run: impl FnOnce(mpsc::Receiver<M>) + Send + 'static,
    ) -> Result<Self, Error> {
        let (queue, receiver) = mpsc::channel(QUEUE);
        let thread = Builder::new()
            .name(name.to_owned())
            .spawn(move || run(receiver))
            .map_err(|cause| {
                Error::new(
                    Reason::StoreFailed,
                    format!("cannot start a thread: {cause}"),
                )
            })?;
        Ok(Self {
            queue,
            thread: Joined(Mutex::new(Some(thread))),
        })
    }

    async fn send(&self, message: M) -> Result<()> {
        self.queue.send(message).await.map_err(|_| gone())
    }
}

/// Sends writes to their thread.
pub(super) struct WriteThread(Worker<Message>);

impl WriteThread {
    /// Starts the thread.
    pub(super) fn spawn(writer: Writer) -> Result<Self> {
        Worker::spawn("store-write", move |queue| writer.serve(queue)).map(Self)
    }

    /// Runs a write and waits for its commit. Writes run in the order in which they were sent. A caller that stops
    /// waiting once the write is queued does not stop it.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        durability: Durability,
        run: impl FnOnce(&mut Changes<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let task = Task {
            durability,
            run: Some(run),
            result: Err(gone()),
            reply,
        };
        self.0.send(Message::Write(Box::new(task))).await?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Lets what is queued finish, marks the database as closed cleanly, and ends the thread. Ok if it had ended.
    pub(super) async fn close(&self) -> Result<()> {
        let (reply, answer) = oneshot::channel();
        if self.0.send(Message::Close(reply)).await.is_err() {
            return Ok(());
        }
        let closed = answer.await.unwrap_or_else(|_| Err(gone()));
        self.0.thread.join();
        closed
    }
}

/// Sends reads to their thread.
pub(super) struct ReadThread(Worker<Request>);

impl ReadThread {
    /// Starts the thread. The connection must be read-only.
    pub(super) fn spawn(connection: Connection) -> Result<Self> {
        Worker::spawn("store-read", move |queue| serve_reads(&connection, queue)).map(Self)
    }

    /// Runs a read. It sees everything that was acknowledged before it was sent.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        run: impl FnOnce(&Connection) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let read: Read = Box::new(move |connection| {
            let result = catch_unwind(AssertUnwindSafe(|| run(connection)))
                .unwrap_or_else(|_| Err(panicked("read")));
            let _ = reply.send(result);
        });
        self.0.send(Request::Read(read)).await?;
        answer.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Lets what is queued finish and ends the thread.
    pub(super) async fn close(&self) {
        let (reply, answer) = oneshot::channel();
        if self.0.send(Request::Close(reply)).await.is_ok() {
            // An error means that the thread has ended already, which is what is wanted.
            let _ = answer.await;
            self.0.thread.join();
        }
    }
}

fn serve_reads(connection: &Connection, mut queue: mpsc::Receiver<Request>) {
    while let Some(request) = queue.blocking_recv() {
        match request {
            Request::Read(read) => read(connection),
            Request::Close(reply) => {
                let _ = reply.send(());
                return;
            }
        }
    }
}

/// The state of the writing thread.
pub(super) struct Writer {
    connection: Connection,
    /// Held as long as anything can be written.
    lock: DirLock,
    tail: Arc<Tail>,
    head: watch::Sender<Revision>,
    bounds: Bounds,
    synchronous: Option<Durability>,
    unpruned: usize,
    pruned: Timestamp,
}

impl Writer {
    /// A writer over a migrated database.
    pub(super) fn new(
        connection: Connection,
        lock: DirLock,
        tail: Arc<Tail>,
        head: watch::Sender<Revision>,
        bounds: Bounds,
    ) -> Self {
        Self {
            connection,
            lock,
            tail,
            head,
            bounds,
            synchronous: None,
            unpruned: 0,
            pruned: Timestamp(0),
        }
    }

    /// Runs one durable write on the calling thread; for the time before there is a thread.
    pub(super) fn now<T>(&mut self, run: impl FnOnce(&mut Changes<'_>) -> Result<T>) -> Result<T> {
        let mut result = None;
        let entries = self.transaction(Durability::Durable, |changes| {
            result = Some(run(changes)?);
            Ok(())
        })?;
        self.publish(entries);
        result.ok_or_else(gone)
    }

    fn serve(mut self, mut queue: mpsc::Receiver<Message>) {
        while let Some(message) = queue.blocking_recv() {
            let mut batch = Vec::new();
            let mut next = Some(message);
            let mut close = None;
            while let Some(message) = next.take() {
                match message {
                    Message::Write(write) => batch.push(write),
                    Message::Close(reply) => {
                        close = Some(reply);
                        break;
                    }
                }
                if batch.len() < BATCH {
                    next = queue.try_recv().ok();
                }
            }
            self.commit(batch);
            self.prune();
            if let Some(reply) = close {
                let closed = self.shut();
                let _ = reply.send(closed);
                return;
            }
        }
    }

    fn commit(&mut self, mut batch: Vec<Box<dyn Write>>) {
        if batch.is_empty() {
            return;
        }
        let durable = batch
            .iter()
            .any(|write| write.durability() == Durability::Durable);
        let durability = if durable {
            Durability::Durable
        } else {
            Durability::Lazy
        };
        let committed = self.transaction(durability, |changes| {
            batch
                .iter_mut()
                .try_for_each(|write| isolated(changes, write.as_mut()))
        });
        let outcome = committed.map(|entries| self.publish(entries));
        for write in batch {
            write.answer(&outcome);
        }
    }

    /// One transaction. On an error nothing of it remains.
    fn transaction(
        &mut self,
        durability: Durability,
        run: impl FnOnce(&mut Changes<'_>) -> Result<()>,
    ) -> Result<Vec<Entry>> {
        if self.synchronous != Some(durability) {
            self.connection.execute_batch(match durability {
                Durability::Durable => "PRAGMA synchronous = FULL",
                Durability::Lazy => "PRAGMA synchronous = NORMAL",
            })?;
            self.synchronous = Some(durability);
        }
        self.connection.execute_batch("BEGIN IMMEDIATE")?;
        let done = Changes::new(&self.connection).and_then(|mut changes| {
            run(&mut changes)?;
            self.connection.execute_batch("COMMIT")?;
            Ok(changes.into_entries())
        });
        // SQLite ends the transaction itself after some failures, such as a full disk.
        if done.is_err() && !self.connection.is_autocommit() {
            self.connection.execute_batch("ROLLBACK")?;
        }
        done
    }

    /// Makes committed updates visible: first the tail, then the head that tells subscribers to look.
    fn publish(&mut self, entries: Vec<Entry>) {
        self.unpruned += entries.len();
        if let Some(head) = self.tail.push(entries) {
            self.head.send_replace(head);
        }
    }

    /// Deletes what is out of bounds, a bounded amount at a time. A failure is no failure of anybody's write.
    fn prune(&mut self) {
        let now = Clock.wall();
        let idle = now >= self.pruned && now < self.pruned.plus(PRUNE_INTERVAL);
        if self.unpruned < PRUNE_AFTER && idle {
            return;
        }
        // More than has been added since, so that it catches up.
        let chunk = 2 * self.unpruned.max(BATCH);
        let bounds = self.bounds;
        let pruned = self.transaction(Durability::Lazy, |changes| {
            log::prune(changes.connection, bounds, now, chunk)?;
            questions::prune(changes.connection, bounds.ended_questions, now, chunk)?;
            calls::prune(changes.connection, bounds.calls, now, chunk)
        });
        if let Err(failure) = pruned {
            tracing::warn!(%failure, "old updates, questions and calls could not be pruned");
        }
        self.unpruned = 0;
        self.pruned = now;
    }

    /// Marks the database as closed cleanly and lets go of it.
    fn shut(mut self) -> Result<()> {
        let marked = self
            .transaction(Durability::Durable, |changes| {
                super::meta_put(changes.connection, super::CLEAN, b"1")
            })
            .map(drop);
        let checkpointed = self
            .connection
            .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
            .map_err(Error::from);
        let closed = self
            .connection
            .close()
            .map_err(|(_, cause)| Error::from(cause));
        drop(self.lock);
        marked.and(checkpointed).and(closed)
    }
}

/// Runs one write in a savepoint. An error is one of the transaction, not of the write.
fn isolated(changes: &mut Changes<'_>, write: &mut dyn Write) -> Result<()> {
    let connection = changes.connection;
    let sql = |text: &str| connection.prepare_cached(text)?.execute([]).map(drop);
    sql("SAVEPOINT one")?;
    let mark = changes.mark();
    if !write.run(changes) {
        changes.reset(&mark);
        if connection.is_autocommit() {
            return Err(Error::new(
                Reason::StoreFailed,
                "a write next to this one failed so badly that the transaction was undone; the disk may be full",
            ));
        }
        sql("ROLLBACK TO one")?;
    }
    sql("RELEASE one")?;
    Ok(())
}

fn gone() -> Error {
    Error::new(Reason::StoreFailed, "the store is closed")
}

fn panicked(what: &str) -> Error {
    Error::new(
        Reason::StoreFailed,
        format!("a {what} of the store panicked; this is a fault of the daemon"),
    )
}
