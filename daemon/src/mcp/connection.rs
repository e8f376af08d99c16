//! One actor per server: owns its link, performs the effects of [`state`](super::state), keeps status and catalog.
//!
//! Calls do not pass through the actor: they take the link from [`Handle::link`] and run in their own tasks. Whatever
//! the actor learns it publishes twice: at once to handles, and as a committed change to the update log.

mod actor;
mod apart;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio_util::task::TaskTracker;

use crate::auth::{Account, Pending, View};
use crate::base::{AppConnection, Clock, Deadline, ServerKey};
use crate::catalog::Catalog;
use crate::error::{Error, Reason, Result};
use crate::mcp::link::Link;
use crate::mcp::open::Dialer;
use crate::mcp::subscriptions::Subscriptions;
use crate::mcp::transport::journal::Journal;
use crate::model::status::{ConnectionState, ServerRecord, ServerStatus};
use crate::store::Store;
use actor::{Actor, Shared};
use apart::Apart;

/// Commands that may wait for the actor.
const COMMANDS: usize = 1024;
/// When to call again while no attempt is due: one is under way.
const RETRY: Duration = Duration::from_secs(1);

/// What is known of a server now.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// Its status.
    pub status: Arc<ServerStatus>,
    /// What it offers; the last known lists while it is not connected.
    pub catalog: Arc<Catalog>,
    /// The way to it, if there is one.
    pub link: Option<Arc<Link>>,
    /// When the next attempt starts. The time in the status is for show: the wall clock may be set meanwhile.
    pub retry_due: Option<Instant>,
    /// Ways to it for single apps, where they share none.
    apart: Option<Apart>,
    /// How long a call waits for the connection.
    connect_bound: Duration,
    /// The sign-in that is pending.
    pending: Option<Pending>,
    /// How many sign-ins had succeeded when the connection last acted on that.
    sign_ins: u64,
}

/// A way to reach the actor. Cheap to clone; the actor ends with [`Handle::stop`].
#[derive(Clone, Debug)]
pub struct Handle {
    key: ServerKey,
    commands: mpsc::Sender<Command>,
    live: watch::Receiver<Live>,
    journal: Journal,
    subscriptions: Subscriptions,
    /// Somebody looked at lists that are stale.
    stale: Arc<Notify>,
    account: Account,
    /// How the account stands.
    authorization: watch::Receiver<View>,
}

/// A command that was accepted. Commands are carried out in the order in which they were accepted, so a caller may let
/// go of its own locks before it waits.
#[derive(Debug)]
#[must_use = "the command is not carried out yet"]
pub struct Ack(oneshot::Receiver<()>);

impl Ack {
    /// Waits until the command was carried out. Bounded by the grace periods of closing a connection.
    pub async fn done(self) {
        let _ = self.0.await;
    }
}

#[derive(Debug)]
enum Command {
    Connect(oneshot::Sender<()>),
    Disconnect(oneshot::Sender<()>),
    /// What has become of sign-ins is to be noticed now.
    LookAtAccount(oneshot::Sender<()>),
    /// Answered when the lists have been read, or cannot be.
    Refresh(oneshot::Sender<()>),
    /// New settings; the connection is replaced if it has to be.
    Apply(Box<ServerRecord>, oneshot::Sender<()>),
    /// The server has a new id; everything else stays.
    Rename(ServerKey, oneshot::Sender<()>),
    Stop(oneshot::Sender<()>),
    /// Stop, and leave the session for the next start of the daemon.
    Suspend(oneshot::Sender<()>),
}

impl Handle {
    /// Starts the actor of a server. It connects at once if the registration says so.
    #[must_use]
    pub fn spawn(record: ServerRecord, dialer: Dialer, store: Store, tasks: &TaskTracker) -> Self {
        let (commands, inbox) = mpsc::channel(COMMANDS);
        let connect = record.connect;
        let state = if connect {
            ConnectionState::Connecting
        } else {
            ConnectionState::Disconnected
        };
        let status = ServerStatus {
            state,
            since: Clock.wall(),
            ..ServerStatus::default()
        };
        let (live_tx, live) = watch::channel(Live {
            status: Arc::new(status.clone()),
            connect_bound: dialer.connect_bound(&record.spec),
            ..Live::default()
        });
        let key = record.key.clone();
        let journal = Journal::new(dialer.settings.stdio.stderr_tail);
        let subscriptions = Subscriptions::default();
        let stale = Arc::new(Notify::new());
        let account = dialer.auth.account(&key, &record.spec);
        let authorization = account.watch();
        let shared = Shared {
            account: account.clone(),
            journal: journal.clone(),
            subscriptions: subscriptions.clone(),
            stale: Arc::clone(&stale),
        };
        let actor = Actor::new(record, dialer, store, live_tx, status, shared);
        tasks.spawn(actor.run(inbox, connect));
        Self {
            key,
            commands,
            live,
            journal,
            subscriptions,
            stale,
            account,
            authorization,
        }
    }

    /// The server's full name.
    #[must_use]
    pub fn key(&self) -> &ServerKey {
        &self.key
    }

    /// Whether both lead to the same connection.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.live.same_channel(&other.live)
    }

    /// The resources that apps follow at this server.
    #[must_use]
    pub fn subscriptions(&self) -> &Subscriptions {
        &self.subscriptions
    }

    /// Completes when the server is no longer registered.
    pub async fn gone(&self) {
        let mut live = self.live.clone();
        while live.changed().await.is_ok() {}
    }

    /// What is known of the server now.
    #[must_use]
    pub fn live(&self) -> Live {
        self.live.borrow().clone()
    }

    /// What the server's processes wrote to their standard error; empty for a server at a URL.
    #[must_use]
    pub fn journal(&self) -> &Journal {
        &self.journal
    }

    async fn tell(&self, command: impl FnOnce(oneshot::Sender<()>) -> Command) -> Ack {
        let (done_tx, done) = oneshot::channel();
        // An actor that has ended has nothing left to do: the receiver reports it at once.
        let _ = self.commands.send(command(done_tx)).await;
        Ack(done)
    }

    /// Connects, or tries again without waiting for the back-off. Done when the attempt has begun.
    pub async fn connect(&self) -> Ack {
        self.tell(Command::Connect).await
    }

    /// Ends the connection. Done when it is closed.
    pub async fn disconnect(&self) -> Ack {
        self.tell(Command::Disconnect).await
    }

    /// Notices what has become of sign-ins. Done when the status shows it, and a connection that waited for one is being
    /// opened.
    pub async fn look_at_account(&self) -> Ack {
        self.tell(Command::LookAtAccount).await
    }

    /// Reads the lists again. Done when they have been read, or cannot be.
    pub async fn refresh(&self) -> Ack {
        self.tell(Command::Refresh).await
    }

    /// Has lists read again, in the background, that the server no longer vouches for (MCP 2026-07-28
    /// server/utilities/caching). For whoever is about to show them.
    pub fn look_again_if_stale(&self) {
        if self.live.borrow().catalog.is_stale(Clock.now()) {
            self.stale.notify_one();
        }
    }

    /// Takes over changed settings. Done when they are in force.
    pub async fn apply(&self, record: ServerRecord) -> Ack {
        self.tell(|done| Command::Apply(Box::new(record), done))
            .await
    }

    /// Gives the server another id, without touching its connection: the handle under the new id, whose later commands
    /// find it in force.
    #[must_use = "the old handle has the old id"]
    pub async fn rename(&self, key: ServerKey) -> Self {
        let renamed = Self {
            key: key.clone(),
            ..self.clone()
        };
        let _in_order = self.tell(|done| Command::Rename(key, done)).await;
        renamed
    }

    /// Ends the connection and the actor. Returns when everything of it is gone.
    pub async fn stop(&self) {
        self.tell(Command::Stop).await.done().await;
    }

    /// As [`stop`](Self::stop), but the server's session goes on after the next start of the daemon.
    pub async fn suspend(&self) {
        self.tell(Command::Suspend).await.done().await;
    }

    /// Waits until nothing is under way, at most `timeout`. Tells whether that is so.
    pub async fn settled(&self, timeout: Duration) -> bool {
        let mut live = self.live.clone();
        let settled = live.wait_for(|live| live.status.state.is_settled());
        matches!(tokio::time::timeout(timeout, settled).await, Ok(Ok(_)))
    }

    /// How many sign-ins have succeeded while the daemon runs.
    #[must_use]
    pub fn sign_ins(&self) -> u64 {
        self.authorization.borrow().signed_in
    }

    /// Waits until more than `before` sign-ins have succeeded. False if the deadline is over first, or nobody is asked to
    /// sign in any more.
    pub async fn signed_in(&self, before: u64, deadline: Deadline) -> bool {
        let mut authorization = self.authorization.clone();
        loop {
            {
                let now = authorization.borrow_and_update();
                if now.signed_in > before || !now.is_under_way() {
                    return now.signed_in > before;
                }
            }
            tokio::select! {
                changed = authorization.changed() => if changed.is_err() {
                    return false;
                },
                () = deadline.elapsed() => return false,
            }
        }
    }

    /// The link for calls of an app, and the catalog, as soon as the server can take calls.
    ///
    /// # Errors
    /// As [`Handle::link`]; where apps share no session, why there is none for this one.
    pub async fn link_for(
        &self,
        app: &AppConnection,
        deadline: Deadline,
    ) -> Result<(Arc<Link>, Arc<Catalog>)> {
        loop {
            let (link, catalog) = self.link(deadline).await?;
            let Some(apart) = self.live().apart else {
                return Ok((link, catalog));
            };
            if apart.is_spent() {
                // The link of another app has met the end of the grant, and the server's own is about to hear of it.
                link.report_lost(Error::new(
                    Reason::SignInRequired,
                    "what was granted for the server has ended",
                ));
                continue;
            }
            match apart.link(app, deadline).await {
                Ok(own) => return Ok((own, catalog)),
                // It ended with the server's own link: wait for what comes of that.
                Err(_) if link.is_lost() => {}
                Err(error) => return Err(error.with("server_id", self.key.id.as_str())),
            }
        }
    }

    /// The link and the catalog, as soon as the server can take calls.
    ///
    /// # Errors
    /// `NOT_CONNECTED`, `SIGN_IN_REQUIRED` or `UPSTREAM_UNREACHABLE` with the cause; `DEADLINE_EXCEEDED`.
    pub async fn link(&self, deadline: Deadline) -> Result<(Arc<Link>, Arc<Catalog>)> {
        let mut live = self.live.clone();
        let since = Clock.now();
        loop {
            let mut now = live.borrow_and_update().clone();
            let bound = since.checked_add(now.connect_bound);
            let bound = bound.map_or(Deadline::NONE, Deadline::at);
            // A link that is lost is about to be replaced: wait for what comes of it.
            let link = now.link.take().filter(|link| !link.is_lost());
            match (now.status.state, link) {
                (ConnectionState::Ready, Some(link)) => return Ok((link, now.catalog)),
                // A refresh: what was known before still holds.
                (ConnectionState::Discovering, Some(link))
                    if now.status.tools.fetched.is_some() =>
                {
                    return Ok((link, now.catalog));
                }
                (
                    ConnectionState::Connecting
                    | ConnectionState::Connected
                    | ConnectionState::Discovering
                    | ConnectionState::Ready,
                    _,
                ) => {}
                // Somebody has just signed in, and the connection is about to be opened.
                (ConnectionState::Authenticating, _)
                    if self.authorization.borrow().signed_in > now.sign_ins => {}
                // Or somebody is about to have.
                (ConnectionState::Authenticating, _) if self.authorization.borrow().redeeming => {}
                // What was pending has ended without anybody: there has to be a new place to sign in.
                (ConnectionState::Authenticating, _) if now.pending.is_none() => {
                    let asking = tokio::select! {
                        error = self.account.ask_to_sign_in() => error,
                        () = deadline.elapsed() => None,
                    };
                    let error = asking.map(|error| error.with("server_id", self.key.id.as_str()));
                    return Err(error.unwrap_or_else(|| not_usable(&self.key, &now)));
                }
                _ => return Err(not_usable(&self.key, &now)),
            }
            tokio::select! {
                changed = live.changed() => {
                    if changed.is_err() {
                        return Err(Error::new(Reason::ServerNotFound, format!("server `{}` was removed", self.key.id)));
                    }
                }
                () = deadline.elapsed() => {
                    return Err(Error::new(Reason::DeadlineExceeded, format!("server `{}` is still connecting", self.key.id)));
                }
                () = bound.elapsed() => return Err(not_usable(&self.key, &now)),
            }
        }
    }
}

/// Why calls cannot be made in this state.
#[must_use]
pub fn not_usable(key: &ServerKey, live: &Live) -> Error {
    let (id, status) = (&key.id, &live.status);
    let cause = status
        .last_failure
        .as_ref()
        .map(|failure| failure.message.as_str());
    let error = match status.state {
        ConnectionState::Disconnected => Error::new(
            Reason::NotConnected,
            format!("server `{id}` is disconnected on purpose; ConnectServer connects it"),
        ),
        ConnectionState::Authenticating => {
            let error = Error::new(
                Reason::SignInRequired,
                format!(
                    "server `{id}` wants authorization: {}",
                    cause.unwrap_or("it answered with 401")
                ),
            );
            match &live.pending {
                Some(pending) => error
                    .with("auth_url", pending.auth_url.clone())
                    .with("sign_in_id", pending.id.as_str())
                    .with("scopes", pending.scopes.to_string()),
                None => error,
            }
        }
        _ => {
            let message = match cause {
                Some(cause) => format!("server `{id}` cannot be reached: {cause}"),
                None => format!("server `{id}` is still connecting"),
            };
            let delay = live
                .retry_due
                .map_or(RETRY, |at| at.saturating_duration_since(Clock.now()));
            Error::new(Reason::UpstreamUnreachable, message).retry_after(delay)
        }
    };
    error.with("server_id", id.to_string())
}
