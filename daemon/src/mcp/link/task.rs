//! Calls that the server runs as tasks: asked for their state until they have ended, with the questions on the way.
//!
//! Asking is harmless to repeat, so a task outlives a lost answer, and a lost link: whoever made the call may go on with it
//! over the next one.

use std::collections::{HashMap, HashSet};
use std::pin::pin;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt as _, StreamExt as _};
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

/// Cancels the task at the server when nobody waits for it any more (SEP-2663 "Task Cancellation"). A link that is closed
/// meanwhile does it instead, see [`Link::cancel_tasks`].
struct Guard {
    link: Arc<Link>,
    id: String,
    /// Tells it from other waits, also for the same task.
    number: u64,
    armed: bool,
}

impl Guard {
    fn new(link: &Arc<Link>, id: &str) -> Self {
        let number = link.fresh_id();
        link.unended().insert(number, id.to_owned());
        Self {
            link: Arc::clone(link),
            id: id.to_owned(),
            number,
            armed: true,
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.armed {
            self.link.unended().remove(&self.number);
            return;
        }
        let (link, number) = (Arc::clone(&self.link), self.number);
        let id = std::mem::take(&mut self.id);
        if link.closed.is_cancelled() {
            return;
        }
        link.tasks.clone().spawn(async move {
            tokio::select! {
                () = link.cancel_task(&id) => {
                    link.unended().remove(&number);
                }
                () = link.closed.cancelled() => {}
            }
        });
    }
}

/// What happens next to a task that is waited for.
enum Turn {
    /// It is time to look.
    Look,
    /// Questions have got answers.
    Answered,
    /// A question gets none.
    Unanswered(String, Unanswered),
}

/// A question with its answer, or `None` once it is withdrawn.
type Answered = Option<(InputRequest, Result<RawJson, Unanswered>)>;

/// How far a question of a task is.
enum Progress {
    /// It waits for an answer; cancelled when the server no longer wants one.
    Open(CancellationToken),
    /// The server has not taken the answer yet.
    Answered(RawJson),
    /// The server has taken the answer: whatever it shows, nobody is asked again.
    Taken,
}

/// The questions of one task.
#[derive(Default)]
struct Questions<'a> {
    open: FuturesUnordered<BoxFuture<'a, Answered>>,
    /// What was asked, by the server's keys: it shows a question again until it has seen the answer.
    asked: HashMap<String, Progress>,
    /// What the server wanted to know when it was last looked at.
    wanted: HashSet<String>,
    rounds: usize,
}

impl<'a> Questions<'a> {
    /// Asks what is new, and withdraws what is no longer wanted. A question that comes back without having been answered
    /// is a new one.
    fn update(
        &mut self,
        link: &'a Link,
        call: &'a Arc<Running>,
        wanted: &[InputRequest],
    ) -> Result<()> {
        self.wanted = wanted.iter().map(|request| request.key.clone()).collect();
        let still_wanted = &self.wanted;
        self.asked.retain(|key, progress| match progress {
            Progress::Open(withdrawn) if !still_wanted.contains(key) => {
                withdrawn.cancel();
                false
            }
            _ => true,
        });
        let before = self.asked.len();
        for request in wanted {
            if self.asked.contains_key(&request.key) {
                continue;
            }
            let (request, withdrawn) = (request.clone(), CancellationToken::new());
            let open = Progress::Open(withdrawn.clone());
            self.asked.insert(request.key.clone(), open);
            self.open.push(Box::pin(async move {
                let answer = link.answer(&request.method, &request.params, Some(Arc::clone(call)));
                let answer = tokio::select! {
                    answer = answer => answer,
                    () = withdrawn.cancelled() => return None,
                };
                Some((request, answer))
            }));
        }
        if self.asked.len() > before {
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
        }
        Ok(())
    }

    /// Waits until questions that are still wanted have answers, and takes all that are there.
    async fn answered(&mut self) -> Turn {
        let mut any = false;
        loop {
            let next = if any {
                let Some(next) = self.open.next().now_or_never() else {
                    return Turn::Answered;
                };
                next
            } else {
                self.open.next().await
            };
            match next {
                Some(Some((request, Ok(answer)))) => {
                    any = true;
                    self.keep(request.key, answer);
                }
                Some(Some((request, Err(unanswered)))) => {
                    return Turn::Unanswered(request.method, unanswered);
                }
                Some(None) => {}
                None if any => return Turn::Answered,
                None => std::future::pending().await,
            }
        }
    }

    fn keep(&mut self, key: String, answer: RawJson) {
        if !matches!(self.asked.get(&key), Some(Progress::Taken)) {
            self.asked.insert(key, Progress::Answered(answer));
        }
    }

    /// What the server still wants and has not taken yet.
    fn unsent(&self) -> Option<RawJson> {
        let mut all = ObjectWriter::new();
        for key in &self.wanted {
            if let Some(Progress::Answered(answer)) = self.asked.get(key) {
                all.raw(key, answer.as_str());
            }
        }
        (!all.is_empty()).then(|| all.finish())
    }

    /// The server has taken what was [unsent](Self::unsent).
    fn taken(&mut self) {
        for key in &self.wanted {
            if let Some(progress @ Progress::Answered(_)) = self.asked.get_mut(key) {
                *progress = Progress::Taken;
            }
        }
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
        let mut guard = Guard::new(self, &task.id);
        let id = task.id.clone();
        call.is_task(&id);
        let outcome = self.watch(task, call, patience, deadline, &mut guard).await;
        outcome.map_err(|failure| {
            let mut failure = CallFailure::from(failure.error);
            // The call itself was answered: a refusal since then is no reason to make it again.
            let lost = [Reason::UpstreamUnreachable, Reason::OutcomeUnknown];
            if lost.contains(&failure.error.reason()) {
                if failure.error.reason() != Reason::OutcomeUnknown {
                    failure.error = lost_call(&failure.error);
                }
                // Whoever closed the link on purpose did not want the task to go on.
                if self.lost.is_cancelled() {
                    guard.armed = false;
                    failure.repeat = Some(Repeat::GoOn(Unfinished(id)));
                }
            }
            failure
        })
    }

    /// Cancels what nobody waits for any more, because the link is being closed. A server that was lost is not told: its
    /// tasks may be waited for over another link.
    pub(super) async fn cancel_tasks(self: &Arc<Self>) {
        let tasks = std::mem::take(&mut *self.unended());
        if tasks.is_empty() || self.lost.is_cancelled() {
            return;
        }
        let all = join_all(tasks.values().map(|id| self.cancel_task(id)));
        if tokio::time::timeout(self.close_grace, all).await.is_err() {
            tracing::debug!("the server did not take all cancellations of tasks in time");
        }
    }

    async fn cancel_task(self: &Arc<Self>, id: &str) {
        if self.dialect.era() == Era::Legacy && !self.peer.cancels_tasks() {
            return;
        }
        if let Err(error) = self
            .request_to_the_last(&self.dialect.task_cancel(id))
            .await
        {
            tracing::debug!(%error, "the server did not take the cancellation of a task");
        }
    }

    fn unended(&self) -> MutexGuard<'_, HashMap<u64, String>> {
        self.unended.lock().unwrap_or_else(PoisonError::into_inner)
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
                    Turn::Answered => {}
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
                Err(error) if error.reason() == Reason::MessageTooLarge => return Err(error.into()),
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
                questions.taken();
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
            let mut pause = self.pause(task);
            loop {
                tokio::time::sleep(pause).await;
                let state = self.request(&look).await;
                let state = state.and_then(|result| self.dialect.read_task(&result));
                if let Ok(state) = state
                    && state.id == task.id
                {
                    pause = self.pause(&state);
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
