//! The actor itself: waits for what happens, lets the machine judge, performs its effects, publishes what is new.

mod authorization;
mod commands;
mod faults;
mod lists;
mod publish;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

pub(super) use self::faults::fault_of;
use self::lists::{Dirty, Listing, Lists};
use super::apart::Apart;
use super::{Command, Live};
use crate::auth::{Account, View};
use crate::base::{Clock, Deadline, ServerKey, jitter};
use crate::catalog::Catalog;
use crate::error::{Error, Reason};
use crate::mcp::link::{Link, News, Pulse};
use crate::mcp::open::{Approach, Attempt, Dialer, Known, OpenFailed, Opened};
use crate::mcp::state::{self, Effect, Event, Fault, STABLE_AFTER, Spacing, State};
use crate::mcp::subscriptions::Subscriptions;
use crate::mcp::transport::journal::Journal;
use crate::model::spec::ServerSpec;
use crate::model::status::{ConnectionState, Push, ServerRecord, ServerStatus, Session, Verdict};
use crate::store::Store;

/// Signs of life in a row that must fail before a server is given up, and the pause between them.
const SILENCES: u32 = 2;
const PULSE_AGAIN: Duration = Duration::from_secs(1);
/// Change notifications within this time lead to one reading of the list (behaviour 96).
const DEBOUNCE: Duration = Duration::from_millis(100);

struct Opening {
    cancel: CancellationToken,
    task: JoinHandle<Result<Opened, OpenFailed>>,
}

/// What the actor shares with its handles.
pub(super) struct Shared {
    pub(super) journal: Journal,
    pub(super) subscriptions: Subscriptions,
    pub(super) stale: Arc<Notify>,
    pub(super) account: Account,
}

pub(super) struct Actor {
    key: ServerKey,
    spec: ServerSpec,
    verdict: Option<Verdict>,
    /// The session as it is stored. It ends with its link, unless the daemon ends.
    session: Option<Session>,
    suspending: bool,
    dialer: Dialer,
    store: Store,
    live: watch::Sender<Live>,
    status: ServerStatus,
    /// The status as it was last committed.
    published: ServerStatus,
    catalog: Arc<Catalog>,
    subscriptions: Subscriptions,
    state: State,
    link: Option<Arc<Link>>,
    /// Ways for single apps, beside the link.
    pub(super) apart: Option<Apart>,
    /// The link goes on with the session of an earlier run.
    resumed: bool,
    ready_since: Option<Instant>,
    opening: Option<Opening>,
    /// What was before is being closed: nobody waits for it but the next dial, and whoever wants the connection ended.
    closing: Option<JoinHandle<()>>,
    journal: Journal,
    account: Account,
    /// How the account stands.
    authorization: watch::Receiver<View>,
    /// As of it was dealt with last.
    authorized: View,
    /// How many sign-ins had succeeded when the last dial began.
    dialled_after: u64,
    /// Dials in a row that a process did not survive.
    crashes: u32,
    listing: Option<Listing>,
    /// Lists that have changed and are not being read yet, and when to read them.
    dirty: Dirty,
    dirty_due: Option<Instant>,
    retry_due: Option<Instant>,
    next_ping: Option<Instant>,
    next_refresh: Option<Instant>,
    stale: Arc<Notify>,
    /// When stale lists may be read again, and how often in a row they could not be.
    reread_after: Instant,
    failed_readings: u32,
    /// When a status that could not be stored is stored again.
    publish_due: Option<Instant>,
    /// A fault was seen that may mean that the server is gone.
    suspected: bool,
    /// Signs of life in a row that did not come.
    silences: u32,
    refreshers: Vec<oneshot::Sender<()>>,
}

/// What woke the actor.
enum Wake {
    Command(Option<Command>),
    Opened(Result<Opened, OpenFailed>),
    Listed(Box<Lists>),
    Lost(Error),
    News(News),
    Authorization,
    Stale,
    Timer,
}

impl Actor {
    pub(super) fn new(
        record: ServerRecord,
        dialer: Dialer,
        store: Store,
        live: watch::Sender<Live>,
        status: ServerStatus,
        shared: Shared,
    ) -> Self {
        Self {
            catalog: Arc::new(Catalog::new(record.spec.tools.clone())),
            key: record.key,
            spec: record.spec,
            verdict: record.verdict,
            session: record.session,
            suspending: false,
            dialer,
            store,
            live,
            published: status.clone(),
            status,
            subscriptions: shared.subscriptions,
            state: State::Disconnected,
            link: None,
            apart: None,
            resumed: false,
            ready_since: None,
            opening: None,
            closing: None,
            journal: shared.journal,
            authorization: shared.account.watch(),
            authorized: View::default(),
            dialled_after: 0,
            account: shared.account,
            crashes: 0,
            listing: None,
            dirty: Dirty::default(),
            dirty_due: None,
            retry_due: None,
            next_ping: None,
            next_refresh: None,
            stale: shared.stale,
            reread_after: Clock.now(),
            failed_readings: 0,
            publish_due: None,
            suspected: false,
            silences: 0,
            refreshers: Vec::new(),
        }
    }

    #[tracing::instrument(name = "connection", skip_all, fields(server = %self.key))]
    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Command>, connect: bool) {
        self.authorized = self.authorization.borrow_and_update().clone();
        if connect && self.authorized.waits_for_user() {
            self.go_on_waiting().await;
        } else if connect {
            self.handle(Event::Connect { fresh: false }).await;
        }
        loop {
            match self.wake(&mut inbox).await {
                Wake::Command(Some(Command::Stop(done))) => {
                    self.disconnect().await;
                    let _ = done.send(());
                    return;
                }
                Wake::Command(Some(Command::Suspend(done))) => {
                    self.suspending = true;
                    self.disconnect().await;
                    let _ = done.send(());
                    return;
                }
                Wake::Command(None) => {
                    self.disconnect().await;
                    return;
                }
                Wake::Command(Some(command)) => self.command(command).await,
                Wake::Opened(Ok(opened)) => self.opened(opened).await,
                Wake::Opened(Err(OpenFailed { error, remains })) => {
                    if let Some(remains) = remains {
                        self.dispose(async move { remains.close().await });
                    }
                    let fault = self.fault_of_dial(&error);
                    self.crashes = match fault {
                        Fault::Crash => self.crashes.saturating_add(1),
                        _ => 0,
                    };
                    self.note_failure(&error);
                    self.refreshers.clear();
                    if error.reason() == Reason::UpstreamTimeout {
                        // What was found about the server before may no longer be so: look again.
                        self.verdict = None;
                    }
                    self.handle(Event::OpenFailed(fault)).await;
                }
                Wake::Listed(lists) => self.listed(*lists).await,
                Wake::Lost(error) => self.lost(&error).await,
                Wake::News(news) => self.news(news).await,
                Wake::Authorization => self.authorization_changed().await,
                Wake::Stale => self.read_stale_lists(),
                Wake::Timer => self.timers().await,
            }
        }
    }

    /// Waits for the next thing to deal with.
    async fn wake(&mut self, inbox: &mut mpsc::Receiver<Command>) -> Wake {
        let timer = [
            self.retry_due,
            self.dirty_due,
            self.next_ping,
            self.next_refresh,
            self.publish_due,
        ];
        let timer = timer
            .into_iter()
            .flatten()
            .min()
            .map_or(Deadline::NONE, Deadline::at);
        let link = self.link.clone();
        let news = async {
            match &link {
                Some(link) => tokio::select! {
                    biased;
                    error = link.lost() => Wake::Lost(error),
                    news = link.news() => Wake::News(news),
                },
                None => std::future::pending().await,
            }
        };
        let opening = async {
            match &mut self.opening {
                Some(opening) => (&mut opening.task).await.unwrap_or_else(|error| {
                    Err(Error::internal(format!("opening a connection failed: {error}")).into())
                }),
                None => std::future::pending().await,
            }
        };
        let listing = async {
            match &mut self.listing {
                Some(listing) => (&mut listing.reading).await,
                None => std::future::pending().await,
            }
        };
        // Every branch is cancel-safe: nothing is taken before it completes.
        let wake = tokio::select! {
            biased;
            command = inbox.recv() => Wake::Command(command),
            wake = news => wake,
            opened = opening => Wake::Opened(opened),
            lists = listing => Wake::Listed(Box::new(lists)),
            () = timer.elapsed() => Wake::Timer,
            // The account lives as long as the actor.
            Ok(()) = self.authorization.changed() => Wake::Authorization,
            () = self.stale.notified() => Wake::Stale,
        };
        match &wake {
            Wake::Opened(_) => self.opening = None,
            Wake::Listed(_) => {
                self.listing = None;
            }
            _ => {}
        }
        wake
    }

    /// Ends the connection; returns when everything of it is gone.
    async fn disconnect(&mut self) {
        self.handle(Event::Disconnect).await;
        if let Some(closing) = self.closing.take() {
            let _ = closing.await;
        }
    }

    /// Closes something in the background. The next dial begins when it is done.
    fn dispose(&mut self, closing: impl Future<Output = ()> + Send + 'static) {
        let before = self.closing.take();
        self.closing = Some(self.dialer.tasks.spawn(async move {
            closing.await;
            if let Some(before) = before {
                let _ = before.await;
            }
        }));
    }

    /// Lets the machine take a step and performs what it says.
    async fn handle(&mut self, event: Event) {
        if matches!(event, Event::Connect { .. } | Event::Opened) {
            self.crashes = 0;
        }
        let spacing = Spacing {
            retry: self.spec.retry,
            max_background: self.dialer.settings.reconnect_max,
            jitter: jitter(),
        };
        let (next, effects) = state::step(self.state, event, &spacing);
        let changed = next != self.state || !effects.is_empty();
        self.state = next;
        for effect in effects {
            self.perform(effect).await;
        }
        self.ready_since = match (self.state, self.ready_since) {
            (State::Ready { .. }, None) => Some(Clock.now()),
            (State::Ready { .. }, since) => since,
            _ => None,
        };
        if matches!(self.state, State::Ready { .. }) {
            self.status.last_failure = None;
        }
        if changed {
            self.publish().await;
        }
    }

    async fn perform(&mut self, effect: Effect) {
        match effect {
            Effect::Open => {
                let cancel = CancellationToken::new();
                let (dialer, key, spec) =
                    (self.dialer.clone(), self.key.clone(), self.spec.clone());
                let attempt = Attempt {
                    known: Known {
                        verdict: self.verdict.clone(),
                        session: self.session.clone(),
                    },
                    approach: Approach::after_crashes(self.crashes),
                    journal: self.journal.clone(),
                    subscriptions: self.subscriptions.clone(),
                    account: self.account.clone(),
                    cancel: cancel.clone(),
                };
                self.dialled_after = self.authorization.borrow().signed_in;
                let before = self.closing.take();
                let task = self.dialer.tasks.spawn(async move {
                    if let Some(before) = before {
                        let _ = before.await;
                    }
                    dialer.open(&key, &spec, attempt).await
                });
                self.opening = Some(Opening { cancel, task });
            }
            Effect::AbortOpen => {
                if let Some(opening) = self.opening.take() {
                    opening.cancel.cancel();
                    let keeps = self.keeps_session().await;
                    self.dispose(async move {
                        match opening.task.await {
                            Ok(Ok(opened)) => end(&opened.link, keeps).await,
                            Ok(Err(OpenFailed {
                                remains: Some(remains),
                                ..
                            })) => remains.close().await,
                            Ok(Err(_)) | Err(_) => {}
                        }
                    });
                }
            }
            Effect::Close => self.close_link().await,
            Effect::List => {
                // The agreed protocol is worth seeing even if the lists take long.
                self.status.state = ConnectionState::Connected;
                self.show();
                self.read_lists(Dirty::ALL);
            }
            Effect::Retry(delay) => {
                self.retry_due = Clock.now().checked_add(delay);
                self.status.next_retry = Some(Clock.wall().plus(delay));
            }
            Effect::CancelRetry => {
                self.retry_due = None;
                self.status.next_retry = None;
            }
        }
    }

    async fn close_link(&mut self) {
        self.listing = None;
        self.dirty = Dirty::default();
        (self.dirty_due, self.next_ping, self.next_refresh) = (None, None, None);
        self.refreshers.clear();
        self.status.push = Push::Unknown;
        if let Some(link) = self.link.take() {
            // Nobody may start a call on a link that is being closed.
            self.show();
            let keeps = self.keeps_session().await;
            let apart = self.apart.take();
            self.dispose(async move {
                let apart = async {
                    if let Some(apart) = apart {
                        apart.close().await;
                    }
                };
                tokio::join!(apart, end(&link, keeps));
            });
        }
    }

    /// Whether the session outlives the link that is about to end: only if the daemon ends. Otherwise it is forgotten
    /// first, because what comes of ending it at the server does not matter.
    async fn keeps_session(&mut self) -> bool {
        if !self.suspending && self.session.take().is_some() {
            self.keep_session().await;
        }
        self.suspending && self.session.is_some()
    }

    /// Stores the session as it is.
    async fn keep_session(&mut self) {
        let (key, session) = (self.key.clone(), self.session.clone());
        if let Err(error) = self.store.set_session(key, session).await {
            tracing::error!(%error, "a session could not be stored");
        }
    }

    async fn opened(&mut self, opened: Opened) {
        let Opened {
            link,
            verdict,
            session,
            resumed,
        } = opened;
        if self.session != session {
            self.session = session;
            self.keep_session().await;
        }
        self.resumed = resumed;
        self.status.era = Some(link.dialect.era());
        link.dialect
            .version()
            .clone_into(&mut self.status.protocol_version);
        self.status.transport = Some(link.transport.kind());
        self.status.server_info.clone_from(&link.peer.info);
        self.status.instructions.clone_from(&link.peer.instructions);
        let capabilities = link.peer.capabilities.as_ref();
        self.status.capabilities = capabilities
            .map(|raw| raw.as_str().to_owned())
            .unwrap_or_default();
        tracing::info!(era = ?link.dialect.era(), version = link.dialect.version(), "connected");
        if verdict.is_some() {
            self.verdict = verdict;
        }
        self.silences = 0;
        // It may have got a new id while it was dialled.
        link.rename(self.key.clone());
        link.set_question_policy(self.spec.questions);
        let registration = (&self.key, &self.spec);
        let verdict = self.verdict.as_ref();
        self.apart = Apart::new(
            &self.dialer,
            registration,
            verdict,
            &self.journal,
            &self.account,
            &link,
        );
        self.link = Some(link);
        self.next_ping = soon(self.dialer.settings.liveness);
        self.next_refresh = self.refresh_time();
        self.handle(Event::Opened).await;
    }

    async fn lost(&mut self, error: &Error) {
        let stable = self
            .ready_since
            .is_some_and(|since| Clock.now().saturating_duration_since(since) >= STABLE_AFTER);
        // A session of an earlier run may have ended unseen: that says nothing about the server.
        let healthy = stable || std::mem::take(&mut self.resumed);
        self.note_failure(error);
        // What is under way learns that nobody wanted this.
        if let Some(link) = &self.link {
            link.report_lost(error.clone());
        }
        if let Some(apart) = &self.apart {
            apart.lost(error);
        }
        self.handle(Event::Lost {
            fault: fault_of(error),
            healthy,
        })
        .await;
    }

    async fn news(&mut self, news: News) {
        if let Some(push) = news.push {
            // Lists are read again from time to time unless the server announces every change of them.
            let announced = push == Push::Open && news.announces_all == Some(true);
            if announced {
                self.next_refresh = None;
            } else if self.next_refresh.is_none() {
                self.next_refresh = self.refresh_time();
            }
            if self.status.push != push {
                self.status.push = push;
                self.publish().await;
            }
        }
        match news.pulse {
            None => {}
            Some(Pulse::Alive) => self.silences = 0,
            Some(Pulse::Silent(error)) => {
                self.silences += 1;
                if self.silences >= SILENCES {
                    return self.lost(&error).await;
                }
                self.next_ping = Clock.now().checked_add(PULSE_AGAIN);
            }
            Some(Pulse::Changed(error)) => {
                self.verdict = None;
                return self.lost(&error).await;
            }
        }
        if news.suspect {
            self.suspected = true;
            self.next_ping = Some(Clock.now());
        }
        let changed = Dirty {
            tools: news.tools,
            resources: news.resources,
            prompts: news.prompts,
        };
        if changed.any() {
            self.dirty = self.dirty.and(changed);
            if self.dirty_due.is_none() {
                self.dirty_due = Clock.now().checked_add(DEBOUNCE);
            }
        }
    }

    async fn timers(&mut self) {
        let now = Clock.now();
        let due = |timer: &mut Option<Instant>| timer.take_if(|at| *at <= now).is_some();
        if due(&mut self.retry_due) {
            self.status.next_retry = None;
            self.handle(Event::RetryDue).await;
        }
        if due(&mut self.publish_due) {
            self.publish().await;
        }
        if due(&mut self.dirty_due) {
            if self.listing.is_some() {
                // One reading at a time: look again when it is done.
                self.dirty_due = now.checked_add(DEBOUNCE);
            } else {
                let dirty = std::mem::take(&mut self.dirty);
                self.read_lists(dirty);
            }
        }
        if due(&mut self.next_refresh) {
            self.next_refresh = self.refresh_time();
            if self.listing.is_none() {
                self.read_lists(Dirty::ALL);
            }
        }
        if due(&mut self.next_ping) {
            let interval = self.dialer.settings.liveness;
            self.next_ping = soon(interval);
            let suspected = std::mem::take(&mut self.suspected) || self.silences > 0;
            if let Some(link) = &self.link
                && link.needs_pulse()
                && (suspected || link.is_quiet(interval / 2))
            {
                link.feel_pulse(self.dialer.settings.probe);
            }
        }
    }
}

/// Ends a link, with its session or without.
async fn end(link: &Arc<Link>, keeps_session: bool) {
    if keeps_session {
        link.suspend().await;
    } else {
        link.close().await;
    }
}

/// About this long from now, so that many servers are not all asked at the same time.
fn soon(interval: Duration) -> Option<Instant> {
    Clock
        .now()
        .checked_add(interval.mul_f64(0.75 + jitter() / 2.0))
}
