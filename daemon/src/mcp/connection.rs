//! One actor per server: owns its link, performs the effects of [`state`](super::state), keeps status and catalog.
//!
//! Calls do not pass through the actor: they take the link from [`Handle::link`] and run in their own tasks. Whatever
//! the actor learns it publishes twice: at once to handles, and as a committed change to the update log.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::base::{Clock, Deadline, ServerKey};
use crate::catalog::{Catalog, Pages};
use crate::error::{Error, Reason, Result};
use crate::mcp::era::Request;
use crate::mcp::link::{Link, News};
use crate::mcp::listing::read_list;
use crate::mcp::open::{Dialer, Opened};
use crate::mcp::protocol::method;
use crate::mcp::state::{self, Effect, Event, Fault, STABLE_AFTER, Spacing, State};
use crate::model::spec::ServerSpec;
use crate::model::status::{
    ConnectionState, Era, Failure, Push, ServerRecord, ServerStatus, TransportKind, Verdict,
};
use crate::store::Store;

/// Commands that may wait for the actor.
const COMMANDS: usize = 32;
/// Change notifications within this time lead to one reading of the list (behaviour 96).
const DEBOUNCE: Duration = Duration::from_millis(100);

/// What is known of a server now.
#[derive(Clone, Debug, Default)]
pub struct Live {
    /// Its status.
    pub status: Arc<ServerStatus>,
    /// What it offers; the last known lists while it is not connected.
    pub catalog: Arc<Catalog>,
    /// The way to it, if there is one.
    pub link: Option<Arc<Link>>,
}

/// A way to reach the actor. Cheap to clone; the actor ends with [`Handle::stop`].
#[derive(Clone, Debug)]
pub struct Handle {
    key: ServerKey,
    commands: mpsc::Sender<Command>,
    live: watch::Receiver<Live>,
    connect_bound: Duration,
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
    /// Answered when the lists have been read, or cannot be.
    Refresh(oneshot::Sender<()>),
    /// New settings; the connection is replaced if it has to be.
    Apply(Box<ServerRecord>, oneshot::Sender<()>),
    /// The server has a new id; everything else stays.
    Rename(ServerKey, oneshot::Sender<()>),
    Stop(oneshot::Sender<()>),
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
            ..Live::default()
        });
        let key = record.key.clone();
        let connect_bound = record
            .spec
            .timeouts
            .connect
            .unwrap_or(dialer.settings.connect);
        let actor = Actor {
            key: key.clone(),
            spec: record.spec,
            verdict: record.verdict,
            dialer,
            store,
            live: live_tx,
            status,
            catalog: Arc::default(),
            state: State::Disconnected,
            link: None,
            ready_since: None,
            opening: None,
            listing: None,
            dirty: Dirty::default(),
            dirty_due: None,
            retry_due: None,
            next_ping: None,
            next_refresh: None,
            refreshers: Vec::new(),
        };
        tasks.spawn(actor.run(inbox, connect));
        Self {
            key,
            commands,
            live,
            connect_bound,
        }
    }

    /// The server's full name.
    #[must_use]
    pub fn key(&self) -> &ServerKey {
        &self.key
    }

    /// What is known of the server now.
    #[must_use]
    pub fn live(&self) -> Live {
        self.live.borrow().clone()
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

    /// Reads the lists again. Done when they have been read, or cannot be.
    pub async fn refresh(&self) -> Ack {
        self.tell(Command::Refresh).await
    }

    /// Takes over changed settings. Done when they are in force.
    pub async fn apply(&self, record: ServerRecord) -> Ack {
        self.tell(|done| Command::Apply(Box::new(record), done))
            .await
    }

    /// Gives the server another id, without touching its connection. Returns the handle under the new id.
    #[must_use = "the old handle has the old id"]
    pub async fn rename(&self, key: ServerKey) -> Self {
        self.tell(|done| Command::Rename(key.clone(), done))
            .await
            .done()
            .await;
        Self {
            key,
            ..self.clone()
        }
    }

    /// Ends the connection and the actor. Returns when everything of it is gone.
    pub async fn stop(&self) {
        self.tell(Command::Stop).await.done().await;
    }

    /// Waits until nothing is under way, at most `timeout`. Tells whether that is so.
    pub async fn settled(&self, timeout: Duration) -> bool {
        let mut live = self.live.clone();
        let settled = live.wait_for(|live| live.status.state.is_settled());
        matches!(tokio::time::timeout(timeout, settled).await, Ok(Ok(_)))
    }

    /// The link and the catalog, as soon as the server can take calls.
    ///
    /// # Errors
    /// `NOT_CONNECTED`, `SIGN_IN_REQUIRED` or `UPSTREAM_UNREACHABLE` with the cause; `DEADLINE_EXCEEDED`.
    pub async fn link(&self, deadline: Deadline) -> Result<(Arc<Link>, Arc<Catalog>)> {
        let mut live = self.live.clone();
        let bound = Deadline::after(self.connect_bound);
        loop {
            let now = live.borrow_and_update().clone();
            // A link that is lost is about to be replaced: wait for what comes of it.
            let link = now.link.filter(|link| !link.is_lost());
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
                _ => return Err(not_usable(&self.key, &now.status)),
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
                () = bound.elapsed() => return Err(not_usable(&self.key, &now.status)),
            }
        }
    }
}

/// Why calls cannot be made in this state.
#[must_use]
pub fn not_usable(key: &ServerKey, status: &ServerStatus) -> Error {
    let id = &key.id;
    let cause = status
        .last_failure
        .as_ref()
        .map(|failure| failure.message.as_str());
    let error = match status.state {
        ConnectionState::Disconnected => Error::new(
            Reason::NotConnected,
            format!("server `{id}` is disconnected on purpose; ConnectServer connects it"),
        ),
        ConnectionState::Authenticating => Error::new(
            Reason::SignInRequired,
            format!(
                "server `{id}` wants authorization: {}",
                cause.unwrap_or("it answered with 401")
            ),
        ),
        _ => {
            let message = match cause {
                Some(cause) => format!("server `{id}` cannot be reached: {cause}"),
                None => format!("server `{id}` is still connecting"),
            };
            let delay = status
                .next_retry
                .map_or(1000, |at| at.0.saturating_sub(Clock.wall().0));
            let delay = Duration::from_millis(u64::try_from(delay).unwrap_or(0));
            Error::new(Reason::UpstreamUnreachable, message).retry_after(delay)
        }
    };
    error.with("server_id", id.to_string())
}

/// Which lists are to be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Dirty {
    tools: bool,
    resources: bool,
    prompts: bool,
}

impl Dirty {
    const ALL: Self = Self {
        tools: true,
        resources: true,
        prompts: true,
    };

    fn any(self) -> bool {
        self.tools || self.resources || self.prompts
    }

    fn and(self, other: Self) -> Self {
        Self {
            tools: self.tools || other.tools,
            resources: self.resources || other.resources,
            prompts: self.prompts || other.prompts,
        }
    }
}

/// The outcome of reading lists; `None` for one that was not asked for.
#[derive(Debug, Default)]
struct Lists {
    tools: Option<Result<Pages>>,
    resources: Option<Result<Pages>>,
    templates: Option<Result<Pages>>,
    prompts: Option<Result<Pages>>,
}

struct Listing {
    what: Dirty,
    reading: Pin<Box<dyn Future<Output = Lists> + Send>>,
}

struct Opening {
    cancel: CancellationToken,
    task: JoinHandle<Result<Opened>>,
}

struct Actor {
    key: ServerKey,
    spec: ServerSpec,
    verdict: Option<Verdict>,
    dialer: Dialer,
    store: Store,
    live: watch::Sender<Live>,
    status: ServerStatus,
    catalog: Arc<Catalog>,
    state: State,
    link: Option<Arc<Link>>,
    ready_since: Option<Instant>,
    opening: Option<Opening>,
    listing: Option<Listing>,
    /// Lists that have changed and are not being read yet, and when to read them.
    dirty: Dirty,
    dirty_due: Option<Instant>,
    retry_due: Option<Instant>,
    next_ping: Option<Instant>,
    next_refresh: Option<Instant>,
    refreshers: Vec<oneshot::Sender<()>>,
}

/// What woke the actor.
enum Wake {
    Command(Option<Command>),
    Opened(Result<Opened>),
    Listed(Lists),
    Lost(Error),
    News(News),
    Timer,
}

impl Actor {
    #[tracing::instrument(name = "connection", skip_all, fields(server = %self.key))]
    async fn run(mut self, mut inbox: mpsc::Receiver<Command>, connect: bool) {
        if connect {
            self.handle(Event::Connect { fresh: false }).await;
        }
        loop {
            match self.wake(&mut inbox).await {
                Wake::Command(Some(Command::Stop(done))) => {
                    self.handle(Event::Disconnect).await;
                    let _ = done.send(());
                    return;
                }
                Wake::Command(None) => {
                    self.handle(Event::Disconnect).await;
                    return;
                }
                Wake::Command(Some(command)) => self.command(command).await,
                Wake::Opened(Ok(opened)) => self.opened(opened).await,
                Wake::Opened(Err(error)) => {
                    let fault = fault_of(&error);
                    self.note_failure(&error);
                    self.handle(Event::OpenFailed(fault)).await;
                }
                Wake::Listed(lists) => self.listed(lists).await,
                Wake::Lost(error) => self.lost(&error).await,
                Wake::News(news) => self.news(news).await,
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
                    Err(Error::internal(format!(
                        "opening a connection failed: {error}"
                    )))
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
            lists = listing => Wake::Listed(lists),
            () = timer.elapsed() => Wake::Timer,
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

    async fn command(&mut self, command: Command) {
        match command {
            Command::Connect(done) => {
                self.handle(Event::Connect { fresh: false }).await;
                let _ = done.send(());
            }
            Command::Disconnect(done) => {
                self.handle(Event::Disconnect).await;
                let _ = done.send(());
            }
            Command::Refresh(done) => {
                if let State::Ready { attempt } = self.state {
                    self.refreshers.push(done);
                    self.state = State::Discovering { attempt };
                    self.read_lists(Dirty::ALL);
                    self.publish().await;
                } else if self.link.is_some() || self.opening.is_some() {
                    self.refreshers.push(done);
                }
            }
            Command::Apply(record, done) => {
                let wanted = record.connect;
                let same_link = same_connection(&self.spec, &record.spec);
                self.spec = record.spec;
                if wanted {
                    self.handle(Event::Connect { fresh: !same_link }).await;
                } else {
                    self.handle(Event::Disconnect).await;
                }
                let _ = done.send(());
            }
            Command::Rename(key, done) => {
                self.key = key;
                self.carry_new_key();
                self.publish().await;
                let _ = done.send(());
            }
            Command::Stop(_) => {} // handled where the loop ends
        }
    }

    /// Carries the new id to whatever holds the old one.
    fn carry_new_key(&mut self) {
        if let Some(link) = &self.link {
            link.rename(self.key.clone());
        }
        let mut catalog = Catalog::clone(&self.catalog);
        catalog.rename(&self.key.id);
        self.catalog = Arc::new(catalog);
    }

    /// Lets the machine take a step and performs what it says.
    async fn handle(&mut self, event: Event) {
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
                let (verdict, token) = (self.verdict.clone(), cancel.clone());
                let task = self
                    .dialer
                    .tasks
                    .spawn(async move { dialer.open(&key, &spec, verdict.as_ref(), &token).await });
                self.opening = Some(Opening { cancel, task });
            }
            Effect::AbortOpen => {
                if let Some(opening) = self.opening.take() {
                    opening.cancel.cancel();
                    if let Ok(Ok(opened)) = opening.task.await {
                        opened.link.close().await;
                    }
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
            link.close().await;
            self.status.stderr_tail = link.stderr_tail();
        }
    }

    async fn opened(&mut self, opened: Opened) {
        let Opened { link, verdict } = opened;
        self.status.era = Some(link.dialect.era());
        link.dialect
            .version()
            .clone_into(&mut self.status.protocol_version);
        self.status.transport = Some(link.transport.kind());
        self.status.server_info = link.peer.info.clone();
        self.status.instructions.clone_from(&link.peer.instructions);
        let capabilities = link.peer.capabilities.as_ref();
        self.status.capabilities = capabilities
            .map(|raw| raw.as_str().to_owned())
            .unwrap_or_default();
        tracing::info!(era = ?verdict.era, version = %verdict.version, "connected");
        self.verdict = Some(verdict);
        self.link = Some(link);
        self.next_ping = Clock.now().checked_add(self.dialer.settings.liveness);
        self.handle(Event::Opened).await;
    }

    async fn lost(&mut self, error: &Error) {
        let healthy = self
            .ready_since
            .is_some_and(|since| Clock.now().saturating_duration_since(since) >= STABLE_AFTER);
        self.note_failure(error);
        self.handle(Event::Lost {
            fault: fault_of(error),
            healthy,
        })
        .await;
    }

    fn note_failure(&mut self, error: &Error) {
        tracing::warn!(reason = %error.reason(), %error, "the connection failed");
        if let Some((_, tail)) = error
            .facts()
            .iter()
            .find(|(name, _)| *name == "stderr_tail")
        {
            self.status.stderr_tail.clone_from(tail);
        }
        self.status.last_failure = Some(Failure {
            reason: error.reason().to_string(),
            message: error.message().to_owned(),
            at: Clock.wall(),
        });
    }

    async fn news(&mut self, news: News) {
        if let Some(push) = news.push {
            let pushes = push == Push::Open;
            let pause = self.dialer.settings.list_refresh;
            self.next_refresh = if pushes {
                None
            } else {
                Clock.now().checked_add(pause)
            };
            if self.status.push != push {
                self.status.push = push;
                self.publish().await;
            }
        }
        if news.suspect {
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
            self.next_refresh = now.checked_add(self.dialer.settings.list_refresh);
            if self.listing.is_none() {
                self.read_lists(Dirty::ALL);
            }
        }
        if due(&mut self.next_ping) {
            self.next_ping = now.checked_add(self.dialer.settings.liveness);
            self.ping();
        }
    }

    /// Asks an HTTP server for a sign of life; any answer is one. A child's end is seen without asking.
    fn ping(&self) {
        let Some(link) = self.link.clone() else {
            return;
        };
        if link.transport.kind() != TransportKind::StreamableHttp {
            return;
        }
        let bound = self.dialer.settings.probe;
        link.tasks.clone().spawn(async move {
            let request = match link.dialect.era() {
                Era::Modern => Request::new(method::DISCOVER),
                Era::Legacy => Request::new(method::PING),
            };
            let answer = tokio::select! {
                answer = tokio::time::timeout(bound, link.request(&request)) => answer,
                () = link.closed.cancelled() => return,
            };
            match answer {
                Ok(Err(error))
                    if matches!(
                        error.reason(),
                        Reason::UpstreamUnreachable | Reason::OutcomeUnknown
                    ) =>
                {
                    link.report_lost(error);
                }
                Err(_) => link.report_lost(Error::new(
                    Reason::UpstreamUnreachable,
                    format!("the server gave no sign of life within {bound:?}"),
                )),
                _ => {}
            }
        });
    }

    /// Starts to read lists; a reading that runs is superseded.
    fn read_lists(&mut self, what: Dirty) {
        let Some(link) = self.link.clone() else {
            return;
        };
        let what = what.and(self.listing.take().map(|old| old.what).unwrap_or_default());
        let settings = Arc::clone(&self.dialer.settings);
        let reading = Box::pin(async move {
            let has = |name: &str| link.peer.capabilities.is_none() || link.peer.has(name);
            let read = |wanted: bool, capability: &str, method: &'static str, key: &'static str| {
                let (link, settings, offered) =
                    (Arc::clone(&link), Arc::clone(&settings), has(capability));
                async move {
                    match (wanted, offered) {
                        (false, _) => None,
                        (true, false) => Some(Ok(Pages::default())),
                        (true, true) => Some(read_list(&link, method, key, &settings).await),
                    }
                }
            };
            let (tools, resources, templates, prompts) = tokio::join!(
                read(what.tools, "tools", method::TOOLS_LIST, "tools"),
                read(
                    what.resources,
                    "resources",
                    method::RESOURCES_LIST,
                    "resources"
                ),
                read(
                    what.resources,
                    "resources",
                    method::TEMPLATES_LIST,
                    "resourceTemplates"
                ),
                read(what.prompts, "prompts", method::PROMPTS_LIST, "prompts"),
            );
            Lists {
                tools,
                resources,
                templates,
                prompts,
            }
        });
        self.listing = Some(Listing { what, reading });
    }

    async fn listed(&mut self, lists: Lists) {
        let at = Clock.wall();
        let over_http = self.status.transport == Some(TransportKind::StreamableHttp);
        let mut catalog = Catalog::clone(&self.catalog);
        let first = matches!(self.state, State::Discovering { .. }) && self.ready_since.is_none();
        let mut dead = None;
        match lists.tools {
            Some(Ok(pages)) => catalog.set_tools(&self.key.id, &pages, over_http, at),
            Some(Err(error)) => {
                catalog.tools.status.incomplete_reason = Some(error.to_string());
                dead = Some(error).filter(|error| first && error.rpc().is_none());
            }
            None => {}
        }
        match lists.resources {
            Some(Ok(pages)) => catalog.set_resources(&pages, at),
            Some(Err(error)) => {
                catalog.resources.status.incomplete_reason = Some(error.to_string());
            }
            None => {}
        }
        match lists.templates {
            Some(Ok(pages)) => catalog.set_resource_templates(&pages, at),
            Some(Err(error)) => {
                catalog.resource_templates.status.incomplete_reason = Some(error.to_string());
            }
            None => {}
        }
        match lists.prompts {
            Some(Ok(pages)) => catalog.set_prompts(&pages, at),
            Some(Err(error)) => catalog.prompts.status.incomplete_reason = Some(error.to_string()),
            None => {}
        }
        self.status.tools = catalog.tools.status.clone();
        self.status.resources = catalog.resources.status.clone();
        self.status.resource_templates = catalog.resource_templates.status.clone();
        self.status.prompts = catalog.prompts.status.clone();
        self.status.withheld.clone_from(&catalog.withheld);
        self.catalog = Arc::new(catalog);
        for waiting in self.refreshers.drain(..) {
            let _ = waiting.send(());
        }
        if let Some(error) = dead {
            // A server whose tools cannot even be asked for is not READY, whatever it said before.
            self.lost(&error).await;
        } else if matches!(self.state, State::Discovering { .. }) {
            self.handle(Event::Listed).await;
        } else {
            self.publish().await;
        }
    }

    /// Shows the current status to handles.
    fn show(&mut self) {
        self.live.send_replace(Live {
            status: Arc::new(self.status.clone()),
            catalog: Arc::clone(&self.catalog),
            link: self.link.clone(),
        });
    }

    /// Shows the current status to handles and commits it to the update log.
    async fn publish(&mut self) {
        let state = self.state.public();
        if self.status.state != state {
            self.status.state = state;
            self.status.since = Clock.wall();
        }
        self.status.failed_attempts = self.state.attempts();
        if let Some(link) = &self.link {
            self.status.stderr_tail = link.stderr_tail();
        }
        self.show();
        let written = self
            .store
            .set_status(self.key.clone(), self.status.clone(), self.verdict.clone())
            .await;
        if let Err(error) = written {
            tracing::error!(%error, "a status could not be stored");
        }
    }
}

/// Whether the same link serves both registrations.
fn same_connection(old: &ServerSpec, new: &ServerSpec) -> bool {
    old.transport == new.transport
        && old.protocol_version == new.protocol_version
        && old.capabilities == new.capabilities
        && old.roots == new.roots
}

fn fault_of(error: &Error) -> Fault {
    let bad_command = error.facts().iter().any(|(name, _)| *name == "command");
    match error.reason() {
        Reason::SignInRequired => Fault::Unauthorized,
        Reason::UpstreamUnreachable if bad_command => Fault::Permanent,
        Reason::UpstreamUnreachable
        | Reason::UpstreamTimeout
        | Reason::UpstreamError
        | Reason::OutcomeUnknown => Fault::Transient,
        _ => Fault::Permanent,
    }
}

/// A number in [0, 1); its quality matters little.
fn jitter() -> f64 {
    let bits = uuid::Uuid::new_v4().as_u128() & u128::from(u32::MAX);
    f64::from(u32::try_from(bits).unwrap_or(0)) / (f64::from(u32::MAX) + 1.0)
}
