//! A live link to one server: requests, calls with their questions, and what the server sends unasked.
//!
//! A link never changes its state by itself: it reports ([`Link::news`], [`Link::lost`]) and the connection decides.
//! Calls run in the caller's task; nothing of one call waits for another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::base::{CallId, Clock, Deadline, ElicitationId, ServerKey};
use crate::error::{Error, Reason, Result, RpcError};
use crate::mcp::asker::Asker;
use crate::mcp::era::{Dialect, InputRequired, Outcome, Request};
use crate::mcp::protocol::{self, Message, ObjectWriter, RawJson, code, method};
use crate::mcp::transport::{Exchange, Loss, Sent, Transport};
use crate::model::status::{Era, Implementation, Push, TransportKind};

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

    fn capability(&self, name: &str) -> Option<RawJson> {
        self.capabilities
            .as_ref()?
            .get(name)
            .filter(RawJson::is_object)
    }
}

/// What an app can watch while a call runs.
#[derive(Clone, Debug)]
pub enum CallEvent {
    /// Parameters of a progress notification.
    Progress(RawJson),
    /// Parameters of a log message.
    Log(RawJson),
    /// The call waits for answers to these questions.
    InputRequired(Vec<ElicitationId>),
}

/// Bounds and listeners of one call.
#[derive(Clone, Debug)]
pub struct CallOptions {
    /// The call's id.
    pub call_id: CallId,
    /// When the app gives up, whatever happens.
    pub deadline: Deadline,
    /// Bound on the call without the time spent waiting for a human.
    pub call_timeout: Duration,
    /// Bound on silence of the server.
    pub idle_timeout: Duration,
    /// Where progress, log messages and questions go. A reader that does not keep up loses progress and log messages.
    pub events: Option<mpsc::Sender<CallEvent>>,
}

/// Why a call has no result.
#[derive(Clone, Debug)]
pub struct CallFailure {
    /// What the app is told.
    pub error: Error,
    /// The server refused the call because our session is gone: it had no effect and may be made again on a new link.
    pub session_gone: bool,
}

impl From<Error> for CallFailure {
    fn from(error: Error) -> Self {
        Self {
            error,
            session_gone: false,
        }
    }
}

/// What has happened on a link since it was last asked.
#[derive(Clone, Copy, Debug, Default)]
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
}

/// A call that is running, for questions and notifications that do not say where they belong.
#[derive(Debug)]
pub struct Running {
    /// Its id.
    pub call_id: CallId,
    wants_log: bool,
    events: Option<mpsc::Sender<CallEvent>>,
    /// Questions that are open: while there are any, the server's time does not run.
    questions: watch::Sender<usize>,
    over: CancellationToken,
}

impl Running {
    /// Tells the app that the call waits for answers.
    pub async fn announce(&self, questions: Vec<ElicitationId>) {
        if let Some(events) = &self.events {
            // The app may have stopped reading: its own call waits, nothing else does.
            let _ = events.send(CallEvent::InputRequired(questions)).await;
        }
    }

    fn tell(&self, event: CallEvent) {
        if let Some(events) = &self.events {
            let _ = events.try_send(event);
        }
    }
}

/// Stops the clocks of calls while a human is asked; dropping it lets them run on.
#[derive(Debug)]
pub struct Pause(Vec<Arc<Running>>);

impl Pause {
    fn new(calls: Vec<Arc<Running>>) -> Self {
        for call in &calls {
            call.questions.send_modify(|open| *open += 1);
        }
        Self(calls)
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        for call in &self.0 {
            call.questions
                .send_modify(|open| *open = open.saturating_sub(1));
        }
    }
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
    /// Most calls at a time.
    pub max_calls: usize,
    /// Most `input_required` rounds of one call.
    pub max_rounds: usize,
    /// Bound on requests of the daemon's own, such as pings.
    pub request_timeout: Duration,
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
    calls: Semaphore,
    max_rounds: usize,
    request_timeout: Duration,
    running: Mutex<HashMap<CallId, Arc<Running>>>,
    log_level: Mutex<Option<&'static str>>,
    news: Mutex<News>,
    has_news: Notify,
    lost: CancellationToken,
    cause: OnceLock<Error>,
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
            calls: Semaphore::new(parts.max_calls),
            max_rounds: parts.max_rounds,
            request_timeout: parts.request_timeout,
            running: Mutex::default(),
            log_level: Mutex::default(),
            news: Mutex::default(),
            has_news: Notify::new(),
            lost: CancellationToken::new(),
            cause: OnceLock::new(),
        });
        link.tasks.spawn(serve_inbound(Arc::clone(&link), inbound));
        if let Transport::Stdio(stdio) = &link.transport {
            let (link, stdio) = (Arc::clone(&link), Arc::clone(stdio));
            link.tasks.clone().spawn(async move {
                tokio::select! {
                    error = stdio.ended() => link.report_lost(error),
                    () = link.closed.cancelled() => {}
                }
            });
        }
        link
    }

    /// Ends the link: running calls fail, open questions become void, the transport is closed. Returns when all that
    /// has happened; bounded by the transport's grace periods.
    pub async fn close(&self) {
        self.closed.cancel();
        self.transport.close().await;
        self.tasks.close();
        self.tasks.wait().await;
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

    /// How messages travel.
    #[must_use]
    pub fn transport_kind(&self) -> TransportKind {
        self.transport.kind()
    }

    /// Waits until something has happened, and takes it.
    pub async fn news(&self) -> News {
        self.has_news.notified().await;
        std::mem::take(&mut *self.news.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The server has a new id: its questions carry it from now on.
    pub fn rename(&self, key: ServerKey) {
        self.asker.rename(key);
    }

    /// The last lines on a child's standard error.
    #[must_use]
    pub fn stderr_tail(&self) -> String {
        self.transport.stderr_tail()
    }

    pub(super) fn report(&self, change: impl FnOnce(&mut News)) {
        change(&mut self.news.lock().unwrap_or_else(PoisonError::into_inner));
        self.has_news.notify_one();
    }

    pub(super) fn report_lost(&self, error: Error) {
        let _ = self.cause.set(error);
        self.lost.cancel();
    }

    /// Judges what a loss means for the link as a whole.
    fn note_loss(&self, loss: &Loss) {
        let refused = loss.error.reason() == Reason::SignInRequired;
        if refused || (loss.ends_connection() && loss.sent == Sent::No) {
            self.report_lost(loss.error.clone());
        } else if matches!(
            loss.error.reason(),
            Reason::UpstreamUnreachable | Reason::OutcomeUnknown
        ) {
            self.report(|news| news.suspect = true);
        }
    }

    pub(super) fn fresh_id(&self) -> u64 {
        self.next_id.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes a request of the daemon's own, such as a list or a ping.
    ///
    /// # Errors
    /// `UPSTREAM_ERROR` with the server's error, or why there is no answer.
    pub async fn request(self: &Arc<Self>, request: &Request) -> Result<RawJson> {
        let answer = async {
            let mut flight = self.send(request).await?;
            loop {
                match flight.exchange.next().await? {
                    Message::Response { outcome, .. } => {
                        flight.landed = true;
                        return Ok(outcome);
                    }
                    other => self.receive(other, None),
                }
            }
        };
        let timed = tokio::select! {
            timed = tokio::time::timeout(self.request_timeout, answer) => timed,
            () = self.closed.cancelled() => return Err(closed_error()),
        };
        match timed {
            Ok(Ok(Ok(result))) => Ok(result),
            Ok(Ok(Err(rpc))) => Err(Error::upstream(rpc)),
            Ok(Err(loss)) => {
                let loss: Loss = loss;
                self.note_loss(&loss);
                Err(loss.error)
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

    async fn send(self: &Arc<Self>, request: &Request) -> std::result::Result<Flight, Loss> {
        let id = self.fresh_id();
        let frame = self.dialect.encode(request, id);
        let mut guard = Guard {
            link: Arc::clone(self),
            id,
            armed: true,
        };
        let exchange = self.transport.request(frame).await;
        match exchange {
            Ok(exchange) => Ok(Flight {
                exchange,
                guard,
                landed: false,
            }),
            Err(loss) => {
                guard.armed = false;
                Err(loss)
            }
        }
    }

    /// Makes a call for an app, through every question of the server, to its result.
    ///
    /// Dropping the future cancels the call at the server at once and ends its open questions as cancelled.
    ///
    /// # Errors
    /// See [`CallFailure`]. `OUTCOME_UNKNOWN` when the call may have taken effect.
    pub async fn call(
        self: &Arc<Self>,
        mut request: Request,
        options: &CallOptions,
    ) -> std::result::Result<RawJson, CallFailure> {
        let Ok(_permit) = self.calls.try_acquire() else {
            return Err(Error::new(
                Reason::TooManyCalls,
                "the server has as many calls under way as limits.calls_per_server allows",
            )
            .retry_after(Duration::from_secs(1))
            .into());
        };
        self.raise_log_level(&request).await;
        let call = self.enter(&request, options);
        let mut patience = Patience::new(options);
        let fixed = request.params.len();
        for _ in 0..=self.max_rounds {
            let result = self
                .round(&request, &call.running, &mut patience, options.deadline)
                .await?;
            match self.dialect.decode(result)? {
                Outcome::Complete(result) => return Ok(result),
                Outcome::InputRequired(asked) => {
                    let answers = self
                        .answer_all(&asked, &call.running, options.deadline)
                        .await?;
                    request.params.truncate(fixed);
                    request
                        .params
                        .extend(answers.map(|answers| ("inputResponses", answers)));
                    request
                        .params
                        .extend(asked.state.map(|state| ("requestState", state)));
                    patience.sign_of_life();
                }
            }
        }
        Err(Error::new(
            Reason::UpstreamProtocol,
            format!(
                "the server asked for more input {} times (limits.rounds)",
                self.max_rounds + 1
            ),
        )
        .into())
    }

    /// One request with its answer.
    async fn round(
        self: &Arc<Self>,
        request: &Request,
        running: &Arc<Running>,
        patience: &mut Patience,
        deadline: Deadline,
    ) -> std::result::Result<RawJson, CallFailure> {
        let mut questions = running.questions.subscribe();
        let attempt = async {
            let mut flight = self.send(request).await?;
            loop {
                let message = flight.exchange.next().await?;
                if let Message::Response { outcome, .. } = message {
                    flight.landed = true;
                    return Ok(outcome);
                }
                self.receive(message, Some(running));
                running.questions.send_modify(|_| {}); // a sign of life: re-arm the idle clock
            }
        };
        tokio::pin!(attempt);
        loop {
            let paused = *questions.borrow_and_update() > 0;
            patience.run(!paused);
            tokio::select! {
                // A result that is there counts, even if the time is over too.
                biased;
                answer = &mut attempt => {
                    let answer: std::result::Result<_, Loss> = answer;
                    patience.run(false);
                    return match answer {
                        Ok(Ok(result)) => Ok(result),
                        Ok(Err(rpc)) => Err(Error::upstream(rpc).into()),
                        Err(loss) => Err(self.failure(loss)),
                    };
                }
                changed = questions.changed() => {
                    if changed.is_ok() {
                        patience.sign_of_life();
                    }
                }
                () = patience.exhausted(), if !paused => return Err(patience.error().into()),
                () = deadline.elapsed() => {
                    return Err(Error::new(Reason::DeadlineExceeded, "the deadline of the call is over").into());
                }
                () = self.closed.cancelled() => return Err(lost_call(&closed_error()).into()),
            }
        }
    }

    fn failure(&self, loss: Loss) -> CallFailure {
        self.note_loss(&loss);
        let session_gone = loss
            .refusal
            .as_ref()
            .is_some_and(|refusal| refusal.session_gone);
        let unclear = matches!(
            loss.error.reason(),
            Reason::UpstreamUnreachable | Reason::OutcomeUnknown
        );
        let error = if loss.sent == Sent::Maybe && unclear {
            lost_call(&loss.error)
        } else {
            loss.error
        };
        CallFailure {
            error,
            session_gone,
        }
    }

    /// Registers a call for as long as the returned value lives.
    fn enter(self: &Arc<Self>, request: &Request, options: &CallOptions) -> Entered {
        let running = Arc::new(Running {
            call_id: options.call_id.clone(),
            wants_log: request.log_level.is_some(),
            events: options.events.clone(),
            questions: watch::Sender::new(0),
            over: CancellationToken::new(),
        });
        let mut calls = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        calls.insert(options.call_id.clone(), Arc::clone(&running));
        Entered {
            link: Arc::clone(self),
            running,
        }
    }

    /// Legacy servers have one log level per session: it only ever becomes more talkative.
    async fn raise_log_level(self: &Arc<Self>, request: &Request) {
        const LEVELS: [&str; 8] = [
            "debug",
            "info",
            "notice",
            "warning",
            "error",
            "critical",
            "alert",
            "emergency",
        ];
        let Some(wanted) = request.log_level else {
            return;
        };
        if self.dialect.era() != Era::Legacy || !self.peer.has("logging") {
            return;
        }
        let rank = |level: &str| LEVELS.iter().position(|known| *known == level);
        {
            let mut current = self
                .log_level
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if current.is_some_and(|current| rank(current) <= rank(wanted)) {
                return;
            }
            *current = Some(wanted);
        }
        let set = Request::new(method::SET_LEVEL).param("level", RawJson::encode(wanted));
        if let Err(error) = self.request(&set).await {
            tracing::debug!(%error, "the server did not take the log level");
        }
    }

    /// Handles a message that is no response: on the exchange of a call, or from elsewhere.
    pub(super) fn receive(self: &Arc<Self>, message: Message, origin: Option<&Arc<Running>>) {
        match message {
            Message::Response { .. } => {} // to a request that is no longer waited for
            Message::Notification { method, params } => {
                self.notified(&method, params.unwrap_or(RawJson::EMPTY_OBJECT), origin);
            }
            Message::Request { id, method, params } => {
                let link = Arc::clone(self);
                let origin = origin.cloned();
                self.tasks.spawn(async move {
                    let params = params.unwrap_or(RawJson::EMPTY_OBJECT);
                    let outcome = link.answer(&method, &params, origin).await;
                    let body = protocol::encode_response(&id, &outcome);
                    let headers = link.dialect.message_headers("");
                    if let Err(loss) = link.transport.send(body, &headers).await {
                        tracing::debug!(error = %loss.error, "an answer did not reach the server");
                    }
                });
            }
        }
    }

    fn notified(&self, method: &str, params: RawJson, origin: Option<&Arc<Running>>) {
        match method {
            method::TOOLS_CHANGED => self.report(|news| news.tools = true),
            method::RESOURCES_CHANGED => self.report(|news| news.resources = true),
            method::PROMPTS_CHANGED => self.report(|news| news.prompts = true),
            method::ACKNOWLEDGED => self.report(|news| news.push = Some(Push::Open)),
            method::PROGRESS => {
                if let Some(call) = origin {
                    call.tell(CallEvent::Progress(params));
                }
            }
            method::LOG => {
                if let Some(call) = origin {
                    call.tell(CallEvent::Log(params));
                    return;
                }
                let calls = self.running.lock().unwrap_or_else(PoisonError::into_inner);
                for call in calls.values().filter(|call| call.wants_log) {
                    call.tell(CallEvent::Log(params.clone()));
                }
            }
            _ => tracing::debug!(method, "ignored a notification"),
        }
    }

    /// Answers every request of an `input_required` result; `None` if there are none.
    async fn answer_all(
        self: &Arc<Self>,
        asked: &InputRequired,
        call: &Arc<Running>,
        deadline: Deadline,
    ) -> Result<Option<RawJson>> {
        if asked.requests.is_empty() {
            return Ok(None);
        }
        let answers = asked.requests.iter().map(|one| async {
            let outcome = self
                .answer(&one.method, &one.params, Some(Arc::clone(call)))
                .await;
            outcome
                .map(|answer| (one.key.as_str(), answer))
                .map_err(|rpc| {
                    Error::new(
                        Reason::NotSupported,
                        format!(
                            "the server asked for `{}`, which it may not: {}",
                            one.method, rpc.message
                        ),
                    )
                })
        });
        let waiting = futures_util::future::try_join_all(answers);
        let answers = tokio::select! {
            answers = waiting => answers?,
            () = deadline.elapsed() => {
                return Err(Error::new(Reason::DeadlineExceeded, "nobody answered before the deadline of the call"));
            }
            () = self.closed.cancelled() => return Err(closed_error()),
        };
        let mut responses = ObjectWriter::new();
        for (key, answer) in answers {
            responses.raw(key, answer.as_str());
        }
        Ok(Some(responses.finish()))
    }

    /// Answers one request of the server.
    async fn answer(
        &self,
        method: &str,
        params: &RawJson,
        origin: Option<Arc<Running>>,
    ) -> std::result::Result<RawJson, RpcError> {
        if method == method::PING {
            return Ok(RawJson::EMPTY_OBJECT);
        }
        if method != method::ELICIT {
            return self.asker.answer_without_asking(method);
        }
        // A request on a shared stream does not say which call it is about: with one call running it is that one.
        let calls: Vec<_> = if let Some(call) = origin {
            vec![call]
        } else {
            let calls = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            calls.values().cloned().collect()
        };
        let call = if let [call] = calls.as_slice() {
            Some(Arc::clone(call))
        } else {
            None
        };
        let over = call
            .as_ref()
            .map(|call| call.over.clone())
            .unwrap_or_default();
        let _pause = Pause::new(calls);
        let mut ticket = self.asker.ask(params, call.as_deref()).await?;
        tokio::select! {
            answer = ticket.answered() => Ok(Asker::encode(answer)),
            () = self.closed.cancelled() => {
                ticket.void();
                Err(cancelled("the connection has ended"))
            }
            () = over.cancelled() => Err(cancelled("the call has ended")),
        }
    }
}

fn cancelled(message: &str) -> RpcError {
    RpcError {
        code: code::INTERNAL,
        message: message.to_owned(),
        data: None,
    }
}

fn closed_error() -> Error {
    Error::new(
        Reason::UpstreamUnreachable,
        "the connection to the server has ended",
    )
}

fn lost_call(cause: &Error) -> Error {
    Error::new(
        Reason::OutcomeUnknown,
        format!("the call was sent and may have taken effect, but no result came back: {cause}"),
    )
}

async fn serve_inbound(link: Arc<Link>, mut inbound: mpsc::Receiver<Message>) {
    loop {
        tokio::select! {
            message = inbound.recv() => match message {
                Some(message) => link.receive(message, None),
                None => return,
            },
            () = link.closed.cancelled() => return,
        }
    }
}

/// A registered call; leaving ends what still hangs on it.
struct Entered {
    link: Arc<Link>,
    running: Arc<Running>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        self.running.over.cancel();
        let mut calls = self
            .link
            .running
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        calls.remove(&self.running.call_id);
    }
}

/// A request under way; giving it up tells the server.
struct Flight {
    exchange: Exchange,
    guard: Guard,
    landed: bool,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.guard.armed &= !self.landed;
    }
}

/// Sends `notifications/cancelled` when a request is given up before its answer
/// (MCP 2026-07-28 basic/patterns/cancellation). Modern HTTP has no such message: closing the stream says it.
struct Guard {
    link: Arc<Link>,
    id: u64,
    armed: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let link = &self.link;
        let by_stream =
            link.dialect.era() == Era::Modern && matches!(link.transport, Transport::Http(_));
        if !self.armed || by_stream || link.closed.is_cancelled() {
            return;
        }
        let mut params = ObjectWriter::new();
        params
            .raw("requestId", &self.id.to_string())
            .string("reason", "cancelled by the caller");
        let body = protocol::encode_notification(method::CANCELLED, Some(&params.finish()));
        let headers = link.dialect.message_headers(method::CANCELLED);
        let (transport, closed) = (link.transport.clone(), link.closed.clone());
        let bound = link.request_timeout;
        link.tasks.spawn(async move {
            tokio::select! {
                _ = tokio::time::timeout(bound, transport.send(body, &headers)) => {}
                () = closed.cancelled() => {}
            }
        });
    }
}

/// How long a call may still take. The clocks run only while the server is expected to work.
#[derive(Debug)]
struct Patience {
    call: Duration,
    idle: Duration,
    left: Duration,
    idle_since: Instant,
    running_since: Option<Instant>,
}

impl Patience {
    fn new(options: &CallOptions) -> Self {
        let (call, idle) = (options.call_timeout, options.idle_timeout);
        Self {
            call,
            idle,
            left: call,
            idle_since: Clock.now(),
            running_since: None,
        }
    }

    /// Starts or stops both clocks.
    fn run(&mut self, run: bool) {
        let now = Clock.now();
        if let Some(since) = self.running_since.take() {
            self.left = self
                .left
                .saturating_sub(now.saturating_duration_since(since));
        } else {
            self.idle_since = now;
        }
        self.running_since = run.then_some(now);
    }

    fn sign_of_life(&mut self) {
        self.idle_since = Clock.now();
    }

    fn end(&self) -> Instant {
        let start = self.running_since.unwrap_or_else(|| Clock.now());
        let far = start + Duration::from_hours(24 * 365);
        let call_end = start.checked_add(self.left).unwrap_or(far);
        let idle_end = self.idle_since.checked_add(self.idle).unwrap_or(far);
        call_end.min(idle_end)
    }

    fn exhausted(&self) -> impl Future<Output = ()> + use<> {
        tokio::time::sleep_until(self.end().into())
    }

    fn error(&self) -> Error {
        let idle_end = self.idle_since.checked_add(self.idle);
        let message = if idle_end.is_some_and(|end| end <= Clock.now()) {
            format!(
                "the server was silent for {:?} (timeouts.call_idle); the call was cancelled",
                self.idle
            )
        } else {
            format!(
                "the call took longer than {:?} (timeouts.call) and was cancelled",
                self.call
            )
        };
        Error::new(Reason::UpstreamTimeout, message)
    }
}
