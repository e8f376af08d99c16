//! Calls for apps: rounds of questions, bounds on time, cancellation, and what a lost call means.
//!
//! A call runs in its caller's task and is sent again by nobody here.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use super::patience::Patience;
use super::{Link, closed_error};
use crate::base::{CallId, Deadline, ElicitationId};
use crate::error::{Error, Reason, Result, RpcError};
use crate::mcp::asker::Asker;
use crate::mcp::era::{InputRequired, Outcome, Request};
use crate::mcp::protocol::{Message, ObjectWriter, RawJson, code, method};
use crate::mcp::transport::{Loss, Sent};
use crate::model::status::Era;

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

/// A call that is running, for questions and notifications that do not say where they belong.
#[derive(Debug)]
pub struct Running {
    /// Its id.
    pub call_id: CallId,
    pub(super) wants_log: bool,
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

    pub(super) fn tell(&self, event: CallEvent) {
        if let Some(events) = &self.events {
            let _ = events.try_send(event);
        }
    }
}

/// Stops the clocks of calls while a human is asked; dropping it lets them run on.
#[derive(Debug)]
struct Pause(Vec<Arc<Running>>);

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

impl Link {
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
    pub(super) async fn answer(
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

fn lost_call(cause: &Error) -> Error {
    Error::new(
        Reason::OutcomeUnknown,
        format!("the call was sent and may have taken effect, but no result came back: {cause}"),
    )
}

/// A registered call; leaving ends what still hangs on it.
pub(super) struct Entered {
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
