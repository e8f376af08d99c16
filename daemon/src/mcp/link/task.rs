//! Calls that the server runs as tasks: asked for their state until they have ended, with the questions on the way.
//!
//! Asking is harmless to repeat, so a task outlives a lost answer, and a lost link: whoever made the call may go on with it
//! over the next one.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use tokio_util::sync::CancellationToken;

use super::call::{CallFailure, Repeat, Running, lost_call, not_answered};
use super::patience::Patience;
use super::{CallOptions, Link};
use crate::base::Deadline;
use crate::error::{Error, Reason, Result};
use crate::mcp::asker::Unanswered;
use crate::mcp::era::{InputRequest, Task, TaskProgress};
use crate::mcp::protocol::{ObjectWriter, RawJson, code};
use crate::model::status::Era;

/// Shortest and longest pause between two looks at a task, whatever the server wants.
const PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_mins(10));

/// A task whose link was lost before it had ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Unfinished(String);

/// Cancels the task at the server when nobody waits for it any more (SEP-2663 "Task Cancellation").
struct Guard {
    link: Arc<Link>,
    id: String,
    armed: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let link = Arc::clone(&self.link);
        let possible = link.dialect.era() == Era::Modern || link.peer.cancels_tasks();
        if !self.armed || !possible || link.closed.is_cancelled() {
            return;
        }
        let cancel = link.dialect.task_cancel(&self.id);
        link.tasks.clone().spawn(async move {
            if let Err(error) = link.request(&cancel).await {
                tracing::debug!(%error, "the server did not take the cancellation of a task");
            }
        });
    }
}

/// What happens next to a task that is waited for.
enum Turn {
    /// It is time to look.
    Look,
    /// A question has got an answer.
    Answered(String, RawJson),
    /// A question gets none.
    Unanswered(String, Unanswered),
}

/// A question with its answer, or `None` once it is withdrawn.
type Answered = Option<(InputRequest, Result<RawJson, Unanswered>)>;

/// The questions of one task.
#[derive(Default)]
struct Questions<'a> {
    open: FuturesUnordered<BoxFuture<'a, Answered>>,
    /// Every key that was ever asked: a server shows a question again until it has seen the answer.
    asked: HashMap<String, CancellationToken>,
    /// Answers that the server has not taken yet.
    answers: Vec<(String, RawJson)>,
    rounds: usize,
}

impl<'a> Questions<'a> {
    /// Asks what is new, and withdraws what is no longer wanted.
    fn update(
        &mut self,
        link: &'a Link,
        call: &'a Arc<Running>,
        wanted: &[InputRequest],
    ) -> Result<()> {
        for (key, withdrawn) in &self.asked {
            if wanted.iter().all(|request| request.key != *key) {
                withdrawn.cancel();
            }
        }
        self.answers
            .retain(|(key, _)| wanted.iter().any(|request| request.key == *key));
        let new = wanted
            .iter()
            .filter(|request| !self.asked.contains_key(&request.key));
        let new: Vec<_> = new.cloned().collect();
        if new.is_empty() {
            return Ok(());
        }
        if self.rounds == link.max_rounds {
            return Err(Error::new(
                Reason::UpstreamProtocol,
                format!(
                    "the task asked for more input {} times (limits.rounds)",
                    self.rounds + 1
                ),
            ));
        }
        self.rounds += 1;
        for request in new {
            let withdrawn = CancellationToken::new();
            self.asked.insert(request.key.clone(), withdrawn.clone());
            self.open.push(Box::pin(async move {
                let answer = link.answer(&request.method, &request.params, Some(Arc::clone(call)));
                let answer = tokio::select! {
                    answer = answer => answer,
                    () = withdrawn.cancelled() => return None,
                };
                Some((request, answer))
            }));
        }
        Ok(())
    }

    /// Waits until a question that is still wanted has an answer.
    async fn answered(&mut self) -> Turn {
        loop {
            match self.open.next().await {
                Some(Some((request, Ok(answer)))) => return Turn::Answered(request.key, answer),
                Some(Some((request, Err(unanswered)))) => {
                    return Turn::Unanswered(request.method, unanswered);
                }
                Some(None) => {}
                None => std::future::pending().await,
            }
        }
    }

    fn unsent(&self) -> Option<RawJson> {
        let mut all = ObjectWriter::new();
        for (key, answer) in &self.answers {
            all.raw(key, answer.as_str());
        }
        (!all.is_empty()).then(|| all.finish())
    }
}

impl Link {
    /// Goes on with a task that another link began. Dropping the future cancels the task at the server.
    ///
    /// # Errors
    /// As [`Link::call`].
    pub async fn resume(
        self: &Arc<Self>,
        Unfinished(id): Unfinished,
        options: &CallOptions,
        patience: &mut Patience,
    ) -> std::result::Result<RawJson, CallFailure> {
        let _permit = self.admit()?;
        let call = self.enter(None, options);
        // Nothing is known of it: the first look tells.
        let task = Task::unknown(id);
        self.follow(task, &call.running, patience, options.deadline)
            .await
    }

    /// Waits for the outcome of a task.
    pub(super) async fn follow(
        self: &Arc<Self>,
        task: Task,
        call: &Arc<Running>,
        patience: &mut Patience,
        deadline: Deadline,
    ) -> std::result::Result<RawJson, CallFailure> {
        let mut guard = Guard {
            link: Arc::clone(self),
            id: task.id.clone(),
            armed: true,
        };
        let id = task.id.clone();
        let outcome = self.watch(task, call, patience, deadline, &mut guard).await;
        outcome.map_err(|mut failure| {
            if self.is_lost() && failure.error.reason() == Reason::OutcomeUnknown {
                guard.armed = false;
                failure.repeat = Some(Repeat::GoOn(Unfinished(id)));
            }
            failure
        })
    }

    async fn watch(
        self: &Arc<Self>,
        mut task: Task,
        call: &Arc<Running>,
        patience: &mut Patience,
        deadline: Deadline,
        guard: &mut Guard,
    ) -> std::result::Result<RawJson, CallFailure> {
        let mut questions = Questions::default();
        loop {
            call.report(&task);
            guard.armed = !task.has_ended();
            match &task.progress {
                TaskProgress::Completed(result) => return Ok(result.clone()),
                TaskProgress::Failed(rpc) => {
                    return Err(self.redactor.error(Error::upstream(rpc.clone())).into());
                }
                TaskProgress::Cancelled => {
                    let why = format!(
                        "the server cancelled the task of the call: {}",
                        task.message
                    );
                    return Err(self
                        .redactor
                        .error(Error::new(Reason::UpstreamError, why))
                        .into());
                }
                TaskProgress::Fetch => match self.fetch(&task, call, patience, deadline).await {
                    // An outcome that was lost on its way is still there.
                    Err(failure) if self.only_lost(&failure.error) => {}
                    outcome => {
                        let rpc = |failure: &CallFailure| failure.error.rpc().is_some();
                        guard.armed = outcome.as_ref().is_err_and(|failure| !rpc(failure));
                        return outcome;
                    }
                },
                TaskProgress::Working => questions.update(self, call, &[])?,
                TaskProgress::Asking(wanted) => questions.update(self, call, wanted)?,
            }
            task = self
                .next_state(task, call, &mut questions, patience, deadline)
                .await?;
        }
    }

    /// Waits for the next look at a task, sends answers that come meanwhile, and looks.
    async fn next_state(
        self: &Arc<Self>,
        task: Task,
        call: &Arc<Running>,
        questions: &mut Questions<'_>,
        patience: &mut Patience,
        deadline: Deadline,
    ) -> std::result::Result<Task, CallFailure> {
        loop {
            let pause = self.pause(&task);
            patience.expect_silence(pause);
            let timer = tokio::time::sleep(pause);
            tokio::pin!(timer);
            loop {
                let turn = {
                    let turn = pin!(async {
                        tokio::select! {
                            biased;
                            turn = questions.answered() => turn,
                            () = &mut timer => Turn::Look,
                        }
                    });
                    self.within(turn, call, patience, deadline).await?
                };
                match turn {
                    Turn::Look => break,
                    Turn::Answered(key, answer) => questions.answers.push((key, answer)),
                    Turn::Unanswered(method, unanswered) => {
                        return Err(not_answered(&method, unanswered).into());
                    }
                }
                self.hand_over(&task, call, questions, patience, deadline)
                    .await?;
            }
            self.hand_over(&task, call, questions, patience, deadline)
                .await?;
            let look = self.dialect.task_get(&task.id);
            let look = pin!(self.request(&look));
            let look = self.within(look, call, patience, deadline);
            let state = look
                .await?
                .and_then(|result| self.dialect.read_task(&result));
            match state {
                Ok(state) if state.id == task.id => {
                    patience.sign_of_life();
                    return Ok(state);
                }
                Ok(_) => return Err(lost_call(&foreign()).into()),
                Err(error) if self.may_pass(&error) => {}
                Err(error) => return Err(lost_call(&error).into()),
            }
        }
    }

    /// Sends the answers that the server has not taken yet. What is lost on its way is sent again at the next look, if the
    /// server still asks for it.
    async fn hand_over(
        self: &Arc<Self>,
        task: &Task,
        call: &Arc<Running>,
        questions: &mut Questions<'_>,
        patience: &mut Patience,
        deadline: Deadline,
    ) -> std::result::Result<(), CallFailure> {
        let Some(answers) = questions.unsent() else {
            return Ok(());
        };
        let update = self.dialect.task_update(&task.id, answers);
        let sent = pin!(self.request(&update));
        let sent = self.within(sent, call, patience, deadline);
        match sent.await? {
            Ok(_) => {
                questions.answers.clear();
                patience.sign_of_life();
                Ok(())
            }
            Err(error) if self.may_pass(&error) => Ok(()),
            Err(error) => Err(lost_call(&error).into()),
        }
    }

    /// Gets the outcome of a task where it comes as an answer of its own. While the server is silent on it, the state of
    /// the task shows that it is alive.
    async fn fetch(
        self: &Arc<Self>,
        task: &Task,
        call: &Arc<Running>,
        patience: &mut Patience,
        deadline: Deadline,
    ) -> std::result::Result<RawJson, CallFailure> {
        let request = self.dialect.task_result(&task.id);
        let look = self.dialect.task_get(&task.id);
        let pulse = async {
            loop {
                tokio::time::sleep(self.pause(task)).await;
                let state = self.request(&look).await;
                if let Ok(state) = state.and_then(|result| self.dialect.read_task(&result)) {
                    call.report(&state);
                    call.sign_of_life();
                }
            }
        };
        patience.expect_silence(self.pause(task));
        tokio::select! {
            biased;
            outcome = self.round(&request, call, patience, deadline, false) => outcome,
            () = pulse => Err(Error::internal("a pulse does not end").into()),
        }
    }

    fn pause(&self, task: &Task) -> Duration {
        task.poll_after
            .unwrap_or(self.task_poll)
            .clamp(PAUSE.0, PAUSE.1)
    }

    /// Whether an answer was lost, and nothing else.
    fn only_lost(&self, error: &Error) -> bool {
        let lost = [Reason::UpstreamUnreachable, Reason::OutcomeUnknown];
        !self.is_lost() && lost.contains(&error.reason())
    }

    /// Whether the next look at a task may succeed. A server that says that it knows no such task does not change its mind.
    fn may_pass(&self, error: &Error) -> bool {
        let refused = [code::INVALID_PARAMS, code::METHOD_NOT_FOUND];
        match error.rpc() {
            Some(rpc) => !refused.contains(&rpc.code),
            None => self.only_lost(error) || error.reason() == Reason::UpstreamTimeout,
        }
    }
}

fn foreign() -> Error {
    Error::new(
        Reason::UpstreamProtocol,
        "the server answered with the state of another task",
    )
}
