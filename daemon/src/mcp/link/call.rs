//! Calls for apps: rounds of questions, bounds on time, cancellation, and what a lost call means.
//!
//! A call runs in its caller's task and is sent again by nobody here: a failure says whether its caller may.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{SemaphorePermit, mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::patience::Patience;
use super::task::Unfinished;
use super::{Link, closed_error};
use crate::base::load::Counted;
use crate::base::{CallId, Deadline, ElicitationId};
use crate::error::{Error, Reason, Result};
use crate::mcp::asker::Unanswered;
use crate::mcp::era::{InputRequired, Outcome, Replies, Request, Task};
use crate::mcp::protocol::{Message, RawJson, code, method};
use crate::mcp::transport::{Loss, Sent};
use crate::model::spec::{Abilities, LogLevel};
use crate::model::status::Era;

/// Shortest and longest pause before a server that only wants to be asked again is asked again.
const AGAIN: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));

/// How long a call may still be refused after the server has refused another one because the session or the grant is gone.
const LAST_WORD: Duration = Duration::from_secs(1);

/// What an app can watch while a call runs.
#[derive(Clone, Debug)]
pub enum CallEvent {
    /// Parameters of a progress notification.
    Progress(RawJson),
    /// Parameters of a log message.
    Log(RawJson),
    /// The call waits for answers to these questions.
    InputRequired(Vec<ElicitationId>),
    /// The server runs the call as a task, which is now at this point.
    Task {
        /// The task's status, in the server's word.
        status: String,
        /// What the server says about it; empty if nothing.
        message: String,
    },
}

/// Who watches a call. Cheap to clone; a listener is told until it is dropped, or all clones are.
#[derive(Clone, Debug, Default)]
pub struct Listeners(Arc<Mutex<Vec<mpsc::Sender<CallEvent>>>>);

impl Listeners {
    /// One more listens. It misses what was told before, and progress, log messages and states of tasks while it does not
    /// keep up.
    pub fn add(&self, listener: mpsc::Sender<CallEvent>) {
        self.all().push(listener);
    }

    /// Those of another list listen too.
    pub fn add_all(&self, others: &Self) {
        let others = others.all().clone();
        self.all().extend(others);
    }

    /// There is nothing more to hear.
    pub fn close(&self) {
        self.all().clear();
    }

    /// Tells all who keep up.
    fn tell(&self, event: &CallEvent) {
        self.all().retain(|listener| {
            let sent = listener.try_send(event.clone());
            !matches!(sent, Err(mpsc::error::TrySendError::Closed(_)))
        });
    }

    /// Tells all of questions, and waits for those who do not keep up: nobody may miss that.
    pub async fn announce(&self, questions: Vec<ElicitationId>) {
        let event = CallEvent::InputRequired(questions);
        let all = self.all().clone();
        // An app may have stopped reading: its own call waits, nothing else does.
        let _gone = join_all(all.iter().map(|listener| listener.send(event.clone()))).await;
    }

    fn all(&self) -> MutexGuard<'_, Vec<mpsc::Sender<CallEvent>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl From<mpsc::Sender<CallEvent>> for Listeners {
    fn from(listener: mpsc::Sender<CallEvent>) -> Self {
        Self(Arc::new(Mutex::new(vec![listener])))
    }
}

/// How a server has answered a call.
#[derive(Clone, Debug)]
pub enum Answered {
    /// With the result.
    Complete(RawJson),
    /// It needs something first, and has let go of the call: to be made again with what it needs.
    Asked(InputRequired),
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
    /// Where progress, log messages and questions go.
    pub events: Option<Listeners>,
}

/// Why a call has no result.
#[derive(Clone, Debug)]
pub struct CallFailure {
    /// What the app is told.
    pub error: Error,
    /// Whether and how the call may go on all the same.
    pub repeat: Option<Repeat>,
}

/// How a call may go on after a failure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Repeat {
    /// The server refused it because our session is gone, so it had no effect: make it again on a new link.
    OnNewLink,
    /// The server refused it because mirrored headers did not match, so it had no effect: make it again with fresh tool
    /// definitions.
    WithFreshTools,
    /// The server runs it as a task: wait for that on a new link.
    GoOn(Unfinished),
    /// Its answer was cut off, and nobody was asked anything. It may have had its effect: only for a call that does no
    /// harm when it is carried out twice.
    IfHarmless,
}

impl From<Error> for CallFailure {
    fn from(error: Error) -> Self {
        Self {
            error,
            repeat: None,
        }
    }
}

/// A call that is running, for questions and notifications that do not say where they belong.
#[derive(Debug)]
pub struct Running {
    /// Its id.
    pub call_id: CallId,
    /// Level from which it wants log messages.
    log_level: Option<LogLevel>,
    /// Id of its request that is under way.
    request_id: AtomicU64,
    events: Option<Listeners>,
    /// Questions that are open: while there are any, the server's time does not run.
    questions: watch::Sender<usize>,
    /// The task that it is.
    task_id: OnceLock<String>,
    /// Status and message of the task, as the app knows them.
    task: Mutex<(String, String)>,
    /// Somebody was asked something.
    asked: AtomicBool,
    /// What the server was told with the call that it may ask for.
    told: Mutex<Abilities>,
    pub(super) over: CancellationToken,
    /// The server, or its answer, was lost: whoever answers a question of it now answers nobody.
    pub(super) lost: CancellationToken,
    _counted: Counted,
}

impl Running {
    /// Tells the app that the call waits for answers.
    pub async fn announce(&self, questions: Vec<ElicitationId>) {
        if let Some(events) = &self.events {
            events.announce(questions).await;
        }
    }

    /// Hands a log message on, if it is severe enough for what the call asked for.
    pub(super) fn log(&self, params: RawJson) {
        let level = params.get("level").and_then(|level| level.read::<String>());
        let level = level.and_then(|level| LogLevel::of(&level));
        if self
            .log_level
            .is_some_and(|wanted| level.is_none_or(|level| level >= wanted))
        {
            self.tell(&CallEvent::Log(params));
        }
    }

    /// The server is at work: its silence begins anew.
    pub(super) fn sign_of_life(&self) {
        self.questions.send_modify(|_| {});
    }

    /// Id of the request that is under way; its progress token.
    pub(super) fn request_id(&self) -> u64 {
        self.request_id.load(Ordering::Relaxed)
    }

    /// What the server was told with the call that it may ask for.
    pub(super) fn told(&self) -> Abilities {
        *self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The server runs it as this task.
    pub(super) fn is_task(&self, id: &str) {
        let _same = self.task_id.set(id.to_owned());
    }

    /// The task that it is, if it is one.
    pub(super) fn task_id(&self) -> Option<&str> {
        self.task_id.get().map(String::as_str)
    }

    /// Tells the app how the task is doing, if that is news.
    pub(super) fn report(&self, task: &Task) {
        let now = (task.status.clone(), task.message.clone());
        let mut known = self.task.lock().unwrap_or_else(PoisonError::into_inner);
        if *known != now {
            known.clone_from(&now);
            let (status, message) = now;
            self.tell(&CallEvent::Task { status, message });
        }
    }

    pub(super) fn tell(&self, event: &CallEvent) {
        if let Some(events) = &self.events {
            events.tell(event);
        }
    }
}

/// Stops the clocks of calls while a human is asked; dropping it lets them run on.
#[derive(Debug)]
pub(super) struct Pause(Vec<Arc<Running>>);

impl Pause {
    pub(super) fn new(calls: Vec<Arc<Running>>) -> Self {
        for call in &calls {
            call.asked.store(true, Ordering::Relaxed);
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

impl Link {
    /// Makes a call for an app, through every question that the server pushes, to its result, or to where it has to be made
    /// again with what the server needs. `first` if it never was made before.
    ///
    /// Dropping the future cancels the call at the server at once and ends its open questions as cancelled. `patience` is
    /// the call's, however often it is made.
    ///
    /// # Errors
    /// See [`CallFailure`]. `OUTCOME_UNKNOWN` when the call may have taken effect.
    pub async fn call(
        self: &Arc<Self>,
        mut request: Request,
        options: &CallOptions,
        patience: &mut Patience,
        first: bool,
    ) -> std::result::Result<Answered, CallFailure> {
        let _permit = self.admit()?;
        let level = self.raise_log_level(request.log_level);
        tokio::select! {
            () = level => {}
            () = options.deadline.elapsed() => return Err(deadline_over().into()),
        }
        let call = self.enter(request.log_level, options);
        let mut waits = 0;
        loop {
            let first = first && waits == 0;
            let round = self.round(&request, &call.running, patience, options.deadline, first);
            let result = match round.await {
                Ok(result) => result,
                Err(failure) => {
                    let asked = failure.error.rpc();
                    let asked = asked.and_then(|rpc| self.dialect.elicitations_required(rpc));
                    let asked = asked.map(|asked| InputRequired {
                        told: call.running.told(),
                        ..asked
                    });
                    return asked.map(Answered::Asked).ok_or(failure);
                }
            };
            let asked = match self.dialect.decode(&request, result)? {
                Outcome::Complete(result) => return Ok(Answered::Complete(result)),
                Outcome::InputRequired(asked) => InputRequired {
                    told: call.running.told(),
                    ..asked
                },
                Outcome::Task(task) => {
                    // Boxed: most calls are none, and need not carry the room for it.
                    let outcome = self.follow(task, &call.running, patience, options.deadline);
                    return Box::pin(outcome).await.map(Answered::Complete);
                }
            };
            if !asked.requests.is_empty() {
                return Ok(Answered::Asked(asked));
            }
            // The server only wants to be asked again, for example while the user is elsewhere: not all at once.
            let pause = AGAIN.0.saturating_mul(1 << waits.min(8)).min(AGAIN.1);
            let pause = pin!(tokio::time::sleep(pause));
            self.within(pause, &call.running, patience, options.deadline)
                .await?;
            waits += 1;
            request.replies = Replies {
                answers: None,
                state: asked.state,
            };
            patience.sign_of_life();
        }
    }

    /// A place among the calls of the server.
    pub(super) fn admit(&self) -> Result<SemaphorePermit<'_>> {
        self.calls.try_acquire().map_err(|_| {
            Error::new(
                Reason::TooManyCalls,
                "the server has as many calls under way as limits.calls_per_server allows",
            )
            .retry_after(Duration::from_secs(1))
        })
    }

    /// Does work of a call for as long as its clocks allow.
    pub(super) async fn within<T>(
        &self,
        mut work: Pin<&mut impl Future<Output = T>>,
        call: &Running,
        patience: &mut Patience,
        deadline: Deadline,
    ) -> Result<T> {
        let mut questions = call.questions.subscribe();
        let cut_off = async {
            self.closed.cancelled().await;
            if self.session_gone.load(Ordering::Relaxed) || self.wants_sign_in() {
                tokio::time::sleep(LAST_WORD).await;
            }
        };
        tokio::pin!(cut_off);
        loop {
            let paused = *questions.borrow_and_update() > 0;
            patience.run(!paused);
            tokio::select! {
                // A result that is there counts, even if the time is over too.
                biased;
                done = &mut work => {
                    patience.run(false);
                    return Ok(done);
                }
                changed = questions.changed() => {
                    if changed.is_ok() {
                        patience.sign_of_life();
                    }
                }
                () = patience.exhausted(), if !paused => return Err(patience.error()),
                () = deadline.elapsed() => return Err(deadline_over()),
                () = &mut cut_off => return Err(lost_call(&closed_error())),
            }
        }
    }

    /// One request with its answer.
    pub(super) async fn round(
        self: &Arc<Self>,
        request: &Request,
        running: &Arc<Running>,
        patience: &mut Patience,
        deadline: Deadline,
        first: bool,
    ) -> std::result::Result<RawJson, CallFailure> {
        let attempt = pin!(async {
            let id = self.fresh_id();
            running.request_id.store(id, Ordering::Relaxed);
            let able = self.asker.abilities();
            *running.told.lock().unwrap_or_else(PoisonError::into_inner) = able;
            let mut flight = self.send(request, id, able).await?;
            loop {
                let message = flight.exchange.next().await?;
                self.heard();
                if let Message::Response { outcome, .. } = message {
                    flight.landed = true;
                    return Ok(outcome);
                }
                self.receive(message, Some(running));
                running.sign_of_life();
            }
        });
        let answer: std::result::Result<_, Loss> =
            self.within(attempt, running, patience, deadline).await?;
        match answer {
            Ok(Ok(result)) => Ok(result),
            Ok(Err(rpc)) => Err(self.redactor.error(Error::upstream(rpc)).into()),
            Err(loss) => {
                running.lost.cancel();
                Err(self.failure(loss, first, running))
            }
        }
    }

    fn failure(&self, loss: Loss, first: bool, running: &Running) -> CallFailure {
        // Closed, and not because it was lost: whoever did that did not want the call elsewhere.
        let on_purpose = self.closed.is_cancelled() && !self.lost.is_cancelled();
        self.note_loss(&loss);
        let rpc = loss
            .refusal
            .as_ref()
            .and_then(|refusal| refusal.rpc.as_ref());
        let doubtful = loss.refusal.as_ref().is_some_and(|it| it.session_doubtful);
        if doubtful {
            self.session_doubted.store(true, Ordering::Relaxed);
        }
        if doubtful || rpc.is_some_and(|rpc| rpc.code == code::UNSUPPORTED_VERSION) {
            self.report(|news| news.suspect = true);
        }
        // A modern HTTP server checks headers before it looks at the call, and says so with 400.
        let mismatch = self.dialect.era() == Era::Modern
            && loss
                .refusal
                .as_ref()
                .is_some_and(|refusal| refusal.status == 400)
            && rpc.is_some_and(|rpc| rpc.code == code::HEADER_MISMATCH);
        // A process that ended in a call may have ended of it: it is not given it again.
        let cut_off = loss.cut_off && !on_purpose && !self.transport.sees_the_end();
        let repeat = if loss.sent == Sent::Maybe {
            let untouched = first && !running.asked.load(Ordering::Relaxed);
            (cut_off && untouched).then_some(Repeat::IfHarmless)
        } else if loss.session_gone() {
            Some(Repeat::OnNewLink)
        } else {
            (mismatch && first).then_some(Repeat::WithFreshTools)
        };
        // Whatever is not an answer leaves it open what the server did.
        let unclear = matches!(
            loss.error.reason(),
            Reason::UpstreamUnreachable
                | Reason::OutcomeUnknown
                | Reason::NotAnMcpServer
                | Reason::UpstreamProtocol
        );
        let error = if loss.sent == Sent::Maybe && unclear {
            lost_call(&loss.error)
        } else {
            loss.error
        };
        let error = self.redactor.error(error);
        CallFailure { error, repeat }
    }

    /// Registers a call for as long as the returned value lives.
    pub(super) fn enter(
        self: &Arc<Self>,
        log_level: Option<LogLevel>,
        options: &CallOptions,
    ) -> Entered {
        let running = Arc::new(Running {
            call_id: options.call_id.clone(),
            log_level,
            request_id: AtomicU64::new(0),
            events: options.events.clone(),
            questions: watch::Sender::new(0),
            task_id: OnceLock::new(),
            task: Mutex::default(),
            asked: AtomicBool::new(false),
            told: Mutex::default(),
            over: CancellationToken::new(),
            lost: CancellationToken::new(),
            _counted: self.calls_made.enter(),
        });
        let mut calls = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        calls.insert(options.call_id.clone(), Arc::clone(&running));
        Entered {
            link: Arc::clone(self),
            running,
        }
    }

    /// Legacy servers have one log level per session: it only ever becomes more talkative. The request is the link's own:
    /// it goes on when the call that wanted it has ended.
    async fn raise_log_level(self: &Arc<Self>, wanted: Option<LogLevel>) {
        let Some(wanted) = wanted else {
            return;
        };
        if self.dialect.era() != Era::Legacy || !self.peer.has("logging") {
            return;
        }
        let before = {
            let mut current = self.log_level();
            if current.is_some_and(|current| current <= wanted) {
                return;
            }
            current.replace(wanted)
        };
        let link = Arc::clone(self);
        let raising = self.tasks.spawn(async move {
            let set =
                Request::new(method::SET_LEVEL).param("level", RawJson::encode(wanted.as_str()));
            if let Err(error) = link.request(&set).await {
                tracing::debug!(%error, "the server did not take the log level");
                let mut current = link.log_level();
                // Another call may have wanted more meanwhile: that is its own affair.
                if *current == Some(wanted) {
                    *current = before;
                }
            }
        });
        // It ends by the bound on requests; a panic in it has been reported already.
        let _ = raising.await;
    }

    fn log_level(&self) -> MutexGuard<'_, Option<LogLevel>> {
        self.log_level
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Why a call goes on no more whose server asked for something and gets no answer.
#[must_use]
pub fn not_answered(method: &str, unanswered: Unanswered) -> Error {
    match unanswered {
        Unanswered::Refused(rpc) => Error::new(
            Reason::NotSupported,
            format!(
                "the server asked for `{method}`, which it may not: {}",
                rpc.message
            ),
        ),
        Unanswered::Failed(error) => error,
        Unanswered::Declined(why) => Error::new(
            Reason::InputDeclined,
            format!("the server needs an answer to `{method}` and gets none: {why}"),
        ),
    }
}

fn deadline_over() -> Error {
    Error::new(Reason::DeadlineExceeded, "the deadline of the call is over")
}

pub(super) fn lost_call(cause: &Error) -> Error {
    Error::new(
        Reason::OutcomeUnknown,
        format!("the call was sent and may have taken effect, but no result came back: {cause}"),
    )
}

/// A registered call; leaving ends what still hangs on it.
pub(super) struct Entered {
    link: Arc<Link>,
    pub(super) running: Arc<Running>,
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
