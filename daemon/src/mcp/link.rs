//! A live link to one server: requests, calls with their questions, and what the server sends unasked.
//!
//! A link never changes its state by itself: it reports ([`Link::news`], [`Link::lost`]) and the connection decides.
//! Calls run in the caller's task; nothing of one call waits for another.

mod call;
mod flight;
mod patience;
mod pulse;
mod serve;
mod task;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore, mpsc};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use call::{
    Answered, CallEvent, CallFailure, CallOptions, Listeners, Repeat, Running, not_answered,
};
pub use patience::Patience;
pub use pulse::Pulse;
pub use task::Unfinished;

use crate::base::load::{Counted, Gauge, Load};
use crate::base::{CallId, Clock, ServerKey};
use crate::error::{Error, Reason, Result};
use crate::mcp::asker::Asker;
use crate::mcp::era::{Dialect, Frame, Outcome, Request};
use crate::mcp::protocol::{Message, RawJson};
use crate::mcp::subscriptions::{self, Subscriptions};
use crate::mcp::transport::redact::Redactor;
use crate::mcp::transport::{Loss, Transport};
use crate::model::spec::{LogLevel, QuestionPolicy, TransportSpec};
use crate::model::status::{Implementation, Push, TransportKind};

/// What a server said about itself when the link was opened.
#[derive(Clone, Debug, Default)]
pub struct Peer {
    /// Its name and version.
    pub info: Option<Implementation>,
    /// How it wants to be used.
    pub instructions: String,
    /// Its capabilities, raw.
    pub capabilities: Option<RawJson>,
}

impl Peer {
    /// Whether a capability such as `tools` or `logging` is declared.
    #[must_use]
    pub fn has(&self, capability: &str) -> bool {
        self.capability(capability).is_some()
    }

    /// Whether a flag of a capability, such as `listChanged` of `tools`, is set.
    #[must_use]
    pub fn has_flag(&self, capability: &str, flag: &str) -> bool {
        let flag = self
            .capability(capability)
            .and_then(|inner| inner.get(flag));
        flag.and_then(|flag| flag.read::<bool>()).unwrap_or(false)
    }

    /// Whether it runs tool calls as tasks when it is asked to (MCP 2025-11-25 basic/utilities/tasks).
    #[must_use]
    pub fn runs_tasks(&self) -> bool {
        let requests = self.capability("tasks").and_then(|it| it.get("requests"));
        let tools = requests.and_then(|requests| requests.get("tools"));
        tools.is_some_and(|tools| tools.get("call").is_some())
    }

    /// Whether it takes `tasks/cancel` (MCP 2025-11-25 basic/utilities/tasks).
    #[must_use]
    pub fn cancels_tasks(&self) -> bool {
        self.capability("tasks")
            .is_some_and(|tasks| tasks.get("cancel").is_some())
    }

    fn capability(&self, name: &str) -> Option<RawJson> {
        self.capabilities
            .as_ref()?
            .get(name)
            .filter(RawJson::is_object)
    }
}

/// What has happened on a link since it was last asked.
#[derive(Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent flags that are raised and taken together"
)]
pub struct News {
    /// The tools have changed.
    pub tools: bool,
    /// The resources have changed.
    pub resources: bool,
    /// The prompts have changed.
    pub prompts: bool,
    /// The notification stream changed its state.
    pub push: Option<Push>,
    /// A request met a fault that may mean that the server is gone.
    pub suspect: bool,
    /// The server was asked for a sign of life, with this outcome.
    pub pulse: Option<Pulse>,
    /// Whether everything that the server offers is announced when it changes.
    pub announces_all: Option<bool>,
}

/// The parts a link is made of.
#[derive(Debug)]
pub struct LinkParts {
    /// How to talk.
    pub dialect: Dialect,
    /// Who is there.
    pub peer: Peer,
    /// The way.
    pub transport: Transport,
    /// First request id that is free.
    pub next_id: u64,
    /// Answers the server's questions.
    pub asker: Asker,
    /// Keeps the server's secrets out of errors.
    pub redactor: Redactor,
    /// The resources that apps follow.
    pub subscriptions: Subscriptions,
    /// Most calls at a time.
    pub max_calls: usize,
    /// Most `input_required` rounds of one call.
    pub max_rounds: usize,
    /// Bound on requests of the daemon's own, such as pings.
    pub request_timeout: Duration,
    /// Pause between two looks at a task whose server suggests none.
    pub task_poll: Duration,
    /// How long a server may take the cancellations of its tasks when the link is closed.
    pub close_grace: Duration,
    /// Where it leads.
    pub target: TransportSpec,
    /// Counts the link and its calls.
    pub load: Load,
}

/// A live link. Ends with [`Link::close`].
#[derive(Debug)]
pub struct Link {
    /// How to talk.
    pub dialect: Dialect,
    /// Who is there.
    pub peer: Peer,
    pub(super) transport: Transport,
    pub(super) tasks: TaskTracker,
    pub(super) closed: CancellationToken,
    next_id: AtomicU64,
    asker: Asker,
    redactor: Redactor,
    subscriptions: Subscriptions,
    calls: Semaphore,
    max_rounds: usize,
    request_timeout: Duration,
    task_poll: Duration,
    close_grace: Duration,
    target: Arc<TransportSpec>,
    running: Mutex<HashMap<CallId, Arc<Running>>>,
    log_level: Mutex<Option<LogLevel>>,
    /// Requests of the server that are being answered, by their raw ids.
    asked: Mutex<HashMap<String, CancellationToken>>,
    /// Room for notes of the server that what was opened for a question is done with.
    completions: Arc<Semaphore>,
    last_heard: Mutex<Instant>,
    /// Tasks that the server is to cancel when nobody waits for them any more, one for each wait.
    unended: Mutex<HashMap<u64, String>>,
    /// A call was refused in a way that may mean that the session is gone.
    session_doubted: AtomicBool,
    /// The server no longer knows the session: it refuses whatever is under way.
    session_gone: AtomicBool,
    news: Mutex<News>,
    has_news: Notify,
    lost: CancellationToken,
    cause: OnceLock<Error>,
    calls_made: Gauge,
    _counted: Counted,
}

impl Link {
    /// Brings a link to life. `inbound` carries what the server sends outside of our exchanges.
    #[must_use]
    pub fn start(parts: LinkParts, inbound: mpsc::Receiver<Message>) -> Arc<Self> {
        let link = Arc::new(Self {
            dialect: parts.dialect,
            peer: parts.peer,
            transport: parts.transport,
            tasks: TaskTracker::new(),
            closed: CancellationToken::new(),
            next_id: AtomicU64::new(parts.next_id),
            asker: parts.asker,
            redactor: parts.redactor,
            subscriptions: parts.subscriptions,
            calls: Semaphore::new(parts.max_calls),
            max_rounds: parts.max_rounds,
            request_timeout: parts.request_timeout,
            task_poll: parts.task_poll,
            close_grace: parts.close_grace,
            target: Arc::new(parts.target),
            running: Mutex::default(),
            log_level: Mutex::default(),
            asked: Mutex::default(),
            completions: Arc::new(Semaphore::new(serve::MAX_COMPLETIONS)),
            unended: Mutex::default(),
            last_heard: Mutex::new(Clock.now()),
            session_doubted: AtomicBool::new(false),
            session_gone: AtomicBool::new(false),
            news: Mutex::default(),
            has_news: Notify::new(),
            lost: CancellationToken::new(),
            cause: OnceLock::new(),
            calls_made: parts.load.calls,
            _counted: parts.load.links.enter(),
        });
        link.tasks.spawn(serve::inbound(Arc::clone(&link), inbound));
        if link.peer.has_flag("resources", "subscribe") {
            let keeper = subscriptions::keep(Arc::clone(&link), link.subscriptions.clone());
            link.tasks.spawn(keeper);
        }
        if !link.transport.is_streamable_http() {
            let link = Arc::clone(&link);
            link.tasks.clone().spawn(async move {
                tokio::select! {
                    // What is closed on purpose is not lost.
                    biased;
                    () = link.closed.cancelled() => {}
                    error = link.transport.ended() => link.report_lost(error),
                }
            });
        }
        link
    }

    /// Ends the link: running calls fail, open questions become void, tasks are cancelled, the transport is closed.
    /// Returns when all that has happened; bounded by the grace periods.
    pub async fn close(self: &Arc<Self>) {
        self.closed.cancel();
        self.cancel_tasks().await;
        self.transport.close().await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// Ends the link and leaves the server's session for the next start of the daemon.
    pub async fn suspend(self: &Arc<Self>) {
        self.closed.cancel();
        self.transport.leave_session();
        self.close().await;
    }

    /// Completes when the server is gone or refuses us, with the cause.
    pub async fn lost(&self) -> Error {
        self.lost.cancelled().await;
        self.cause
            .get()
            .cloned()
            .unwrap_or_else(|| Error::internal("a link was lost without a cause"))
    }

    /// Whether the server is known to be gone, or to refuse us.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.lost.is_cancelled() || self.closed.is_cancelled()
    }

    /// Whether it was lost because the server wants a user to sign in: then it refuses whatever else is under way, too.
    fn wants_sign_in(&self) -> bool {
        let cause = self.cause.get();
        cause.is_some_and(|cause| cause.reason() == Reason::SignInRequired)
    }

    /// Where it leads, and with which credentials.
    #[must_use]
    pub fn target(&self) -> &Arc<TransportSpec> {
        &self.target
    }

    /// How messages travel.
    #[must_use]
    pub fn transport_kind(&self) -> TransportKind {
        self.transport.kind()
    }

    /// Whether a call may be described in HTTP headers; see [`Transport::is_streamable_http`].
    #[must_use]
    pub fn over_streamable_http(&self) -> bool {
        self.transport.is_streamable_http()
    }

    /// Whether the server has to be asked for signs of life; see [`Transport::sees_the_end`].
    #[must_use]
    pub fn needs_pulse(&self) -> bool {
        !self.transport.sees_the_end()
    }

    /// What answers the server's requests.
    #[must_use]
    pub fn asker(&self) -> &Asker {
        &self.asker
    }

    /// Most rounds of questions in one call.
    #[must_use]
    pub fn max_rounds(&self) -> usize {
        self.max_rounds
    }

    /// Calls for apps that are under way.
    #[must_use]
    pub fn calls_in_flight(&self) -> u32 {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        u32::try_from(running.len()).unwrap_or(u32::MAX)
    }

    /// Waits until something has happened, and takes it.
    pub async fn news(&self) -> News {
        self.has_news.notified().await;
        std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Encodes a request of the daemon's own under a fresh id.
    pub(in crate::mcp) fn encode(&self, request: &Request) -> Frame {
        self.dialect
            .encode(request, self.fresh_id(), self.asker.abilities())
    }

    /// What becomes of the server's questions.
    #[must_use]
    pub fn question_policy(&self) -> QuestionPolicy {
        self.asker.policy()
    }

    /// What becomes of the server's questions has changed.
    pub fn set_question_policy(&self, policy: QuestionPolicy) {
        self.asker.set_policy(policy);
    }

    /// The server has a new id: its questions carry it from now on.
    pub fn rename(&self, key: ServerKey) {
        self.asker.rename(key);
    }

    pub(super) fn report(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner));
        self.has_news.notify_one();
    }

    /// The server is gone, or refuses us: what is under way may go on elsewhere.
    pub(super) fn report_lost(&self, error: Error) {
        let _ = self.cause.set(self.redactor.error(error));
        self.lost.cancel();
    }

    /// Judges what a loss means for the link as a whole. A server that seems to be gone is asked before it is given up:
    /// one refused connection may only be a full backlog.
    fn note_loss(&self, loss: &Loss) {
        if loss.session_gone() {
            self.session_gone.store(true, Ordering::Relaxed);
        }
        // Where everything comes on one stream, the link goes with it: a repetition must not find it alive. A process says
        // more of its end than its output does.
        let over = loss.cut_off
            && !self.transport.is_streamable_http()
            && !self.transport.sees_the_end()
            && !self.closed.is_cancelled();
        if over || loss.wants_sign_in() || loss.session_gone() {
            self.report_lost(loss.error.clone());
        } else if matches!(
            loss.error.reason(),
            Reason::UpstreamUnreachable | Reason::OutcomeUnknown
        ) {
            self.report(|news| news.suspect = true);
        }
    }

    /// Something came from the server.
    fn heard(&self) {
        *self
            .last_heard
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Clock.now();
    }

    pub(super) fn fresh_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a request of the daemon's own, such as a list or a ping.
    ///
    /// # Errors
    /// `UPSTREAM_ERROR` with the server's error, or why there is no answer.
    pub async fn request(self: &Arc<Self>, request: &Request) -> Result<RawJson> {
        tokio::select! {
            answer = self.request_to_the_last(request) => answer,
            () = self.closed.cancelled() => Err(closed_error()),
        }
    }

    /// The same, also while the link is being closed.
    async fn request_to_the_last(self: &Arc<Self>, request: &Request) -> Result<RawJson> {
        let answer = async {
            let mut flight = self
                .send(request, self.fresh_id(), self.asker.abilities())
                .await?;
            loop {
                let message = flight.exchange.next().await?;
                self.heard();
                match message {
                    Message::Response { outcome, .. } => {
                        flight.landed = true;
                        return Ok(outcome);
                    }
                    other => self.receive(other, None),
                }
            }
        };
        match tokio::time::timeout(self.request_timeout, answer).await {
            Ok(Ok(Ok(result))) => match self.dialect.decode(request, result)? {
                Outcome::Complete(result) => Ok(result),
                Outcome::InputRequired(_) | Outcome::Task(_) => Err(Error::new(
                    Reason::UpstreamProtocol,
                    format!(
                        "the server asks for input during `{}`, which it may not",
                        request.method
                    ),
                )),
            },
            Ok(Ok(Err(rpc))) => Err(self.redactor.error(Error::upstream(rpc))),
            Ok(Err(loss)) => {
                let loss: Loss = loss;
                self.note_loss(&loss);
                Err(self.redactor.error(loss.error))
            }
            Err(_) => Err(Error::new(
                Reason::UpstreamTimeout,
                format!(
                    "the server did not answer `{}` within {:?}",
                    request.method, self.request_timeout
                ),
            )),
        }
    }
}

/// What whoever asks for something over a link is told that is no more.
#[must_use]
pub fn closed_error() -> Error {
    Error::new(
        Reason::UpstreamUnreachable,
        "the connection to the server has ended",
    )
}
