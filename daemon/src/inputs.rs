//! The durable queue of questions that servers ask in the middle of a call.
//!
//! A question is committed before anybody sees it, and gets exactly one end: an answer, its expiry, the end of its
//! call, or void. Which one, the store decides (compare and set); whoever waits for the answer then gets it once.
//!
//! Never logs an answer, and never leaves a question pending that nothing waits for.
//!
//! There are two ways to wait. A call that is under way at its server holds a [`Ticket`]: each such question has one task, its
//! keeper, that commits it, waits for the first thing that can end it, and ends it; a ticket only talks to its keeper, so that
//! dropping one needs no runtime and cannot be forgotten. The answer exists in memory only. A call that *rests* is on disk with
//! its questions ([`Inputs::rest`]) and costs nothing else: whoever goes on with it reads the update log, one task lets the
//! questions of all of them expire, and an answer is sealed until the call goes on.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::base::{CallId, Clock, ElicitationId, Namespace, ServerId, ServerKey};
use crate::error::{Error, Reason, Result, Violation};
use crate::inputs::audience::Audience;
use crate::inputs::form::{Form, Refusal};
use crate::inputs::life::Deadlines;
use crate::model::call::{NewCall, QuestionLimits};
use crate::model::question::{Answer, Mode, Question, QuestionState};
use crate::model::spec::{QuestionPolicy, Unattended};
use crate::store::{Store, already_resolved};

pub mod audience;
pub mod destination;
pub mod form;
mod life;
mod sampling;

/// Bounds of the queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InputsConfig {
    /// A question to people without an expiry of its own ends after this long.
    pub expiry: Duration,
    /// The same for what a model is asked.
    pub sampling_expiry: Duration,
    /// The same for approvals of calls.
    pub approval_expiry: Duration,
    /// What becomes of questions that nobody can answer who is there, unless their server says.
    pub unattended: Unattended,
    /// Pending questions of one server; a further one is refused.
    pub max_pending_per_server: usize,
    /// Bytes of one question to people; a larger one is refused.
    pub max_bytes: usize,
    /// Bytes of one request for an answer of a model, which may hold a whole conversation; a larger one is refused.
    pub max_sampling_bytes: usize,
    /// Bytes of the pending questions of all servers; a further one is refused.
    pub max_pending_bytes: usize,
}

impl InputsConfig {
    fn limits(&self) -> QuestionLimits {
        QuestionLimits {
            per_server: self.max_pending_per_server,
            bytes: self.max_pending_bytes,
        }
    }

    fn expiry(&self, mode: Mode) -> Duration {
        match mode {
            Mode::Form | Mode::Url => self.expiry,
            Mode::Sampling => self.sampling_expiry,
            Mode::Approval => self.approval_expiry,
        }
    }

    /// The bound on one question, and the key that sets it.
    fn most_bytes(&self, mode: Mode) -> (usize, &'static str) {
        match mode {
            Mode::Form | Mode::Url | Mode::Approval => (self.max_bytes, "questions.max_bytes"),
            Mode::Sampling => (self.max_sampling_bytes, "questions.max_sampling_bytes"),
        }
    }
}

impl Default for InputsConfig {
    /// One hour, 1000 per server, 256 KiB each or 1 MiB for a model, 64 MiB in all.
    fn default() -> Self {
        Self {
            expiry: Duration::from_hours(1),
            sampling_expiry: Duration::from_hours(1),
            approval_expiry: Duration::from_hours(1),
            unattended: Unattended::Hold,
            max_pending_per_server: 1000,
            max_bytes: 256 << 10,
            max_sampling_bytes: 1 << 20,
            max_pending_bytes: 64 << 20,
        }
    }
}

/// What a server asks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewQuestion {
    /// The server that asks.
    pub server: ServerKey,
    /// Its registered name.
    pub server_name: String,
    /// The call in which it asks, if known.
    pub call_id: Option<CallId>,
    /// How it is put.
    pub mode: Mode,
    /// The question, in the server's words.
    pub message: String,
    /// JSON Schema of the answer, raw (form).
    pub requested_schema: Option<String>,
    /// The URL to open (url).
    pub url: Option<String>,
    /// The parameters of the server's request, raw.
    pub request: String,
    /// The server's own id of the question (url).
    pub server_elicitation_id: Option<String>,
    /// How long it can be answered; `None` means the configured default.
    pub expiry: Option<Duration>,
}

/// The queue. Cheap to clone.
#[derive(Clone)]
pub struct Inputs(Arc<Inner>);

impl std::fmt::Debug for Inputs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inputs").finish_non_exhaustive()
    }
}

struct Inner {
    store: Store,
    audience: Audience,
    config: InputsConfig,
    /// Questions whose answers somebody waits for. Never locked across an await.
    waiting: Mutex<Waiting>,
    /// When questions of calls that rest expire. Never locked across an await.
    deadlines: Mutex<Deadlines>,
    /// There are such questions which were not there before.
    rested: Arc<Notify>,
    tasks: TaskTracker,
    closing: CancellationToken,
}

#[derive(Default)]
struct Waiting {
    entries: HashMap<ElicitationId, Entry>,
    closed: bool,
}

/// One question that waits. Dropping it tells ticket and keeper that the question has ended.
struct Entry {
    namespace: Namespace,
    answer: oneshot::Sender<Answer>,
    _ended: oneshot::Sender<()>,
}

/// The claim to the answer of one question. Dropping it before the answer ends the question: as void
/// if the server is gone, see [`Inputs::ask`], and else as cancelled. The write happens in the background.
#[derive(Debug)]
pub struct Ticket {
    id: ElicitationId,
    answer: Option<oneshot::Receiver<Answer>>,
    /// Dropped with the ticket, which tells the keeper that it was abandoned.
    _abandon: oneshot::Sender<Infallible>,
}

impl Ticket {
    /// Id of the question.
    #[must_use]
    pub fn id(&self) -> &ElicitationId {
        &self.id
    }

    /// Waits until the question has ended, which is committed by then. Its answer; [`Answer::Cancel`] if it ended in
    /// another way. Can be dropped and called again. After it has given the answer, it gives [`Answer::Cancel`].
    pub async fn answered(&mut self) -> Answer {
        let Some(receiver) = &mut self.answer else {
            return Answer::Cancel;
        };
        let answer = receiver.await.unwrap_or(Answer::Cancel);
        self.answer = None;
        answer
    }
}

impl Inputs {
    /// An empty queue. Starts a task that follows the store, so it must be called within a runtime.
    #[must_use]
    pub fn new(store: Store, config: InputsConfig) -> Self {
        let inner = Arc::new(Inner {
            audience: Audience::new(store.clone()),
            store,
            config,
            waiting: Mutex::default(),
            deadlines: Mutex::default(),
            rested: Arc::default(),
            tasks: TaskTracker::new(),
            closing: CancellationToken::new(),
        });
        inner.tasks.spawn(life::expire(
            Arc::downgrade(&inner),
            Arc::clone(&inner.rested),
            inner.closing.clone(),
        ));
        inner.tasks.spawn(life::watch(
            Arc::downgrade(&inner),
            inner.store.head(),
            inner.closing.clone(),
        ));
        Self(inner)
    }

    /// Who can be asked.
    #[must_use]
    pub fn audience(&self) -> &Audience {
        &self.0.audience
    }

    /// Whether a question of this mode waits, under the policy of its server, for somebody who can answer it.
    #[must_use]
    pub fn holds(&self, namespace: &Namespace, mode: Mode, policy: &QuestionPolicy) -> bool {
        let unattended = policy.unattended.unwrap_or(self.0.config.unattended);
        unattended == Unattended::Hold || self.0.audience.attends(namespace, mode)
    }

    /// Puts a question on the queue that ends at once as declined, for whoever looks later.
    ///
    /// # Errors
    /// As [`Inputs::ask`].
    pub async fn decline(&self, question: NewQuestion) -> Result<()> {
        let question = self.prepare(question)?;
        let question = Question {
            state: QuestionState::Declined,
            resolved: Some(question.created),
            ..question
        };
        let limits = self.0.config.limits();
        self.0.store.put_question(question, limits).await?;
        Ok(())
    }

    /// Gives a question its id and its times.
    ///
    /// # Errors
    /// [`Reason::MessageTooLarge`] if it is.
    pub fn prepare(&self, question: NewQuestion) -> Result<Question> {
        let expiry = question
            .expiry
            .unwrap_or(self.0.config.expiry(question.mode));
        let created = Clock.wall();
        let question = Question {
            id: ElicitationId::generate(),
            server: question.server,
            server_name: question.server_name,
            call_id: question.call_id,
            mode: question.mode,
            message: question.message,
            requested_schema: question.requested_schema,
            url: question.url,
            state: QuestionState::Pending,
            created,
            expires: created.plus(expiry),
            resolved: None,
            request: question.request,
            server_elicitation_id: question.server_elicitation_id,
            completed: None,
        };
        let bytes = question.bytes();
        let (most, key) = self.0.config.most_bytes(question.mode);
        if bytes > most {
            return Err(Error::new(
                Reason::MessageTooLarge,
                format!(
                    "the server `{}` asks a question of {bytes} bytes, and {most} is the limit ({key})",
                    question.server
                ),
            ));
        }
        Ok(question)
    }

    /// Lays a call to rest with its questions. They are committed, and visible to apps, when this returns; the update log
    /// tells how each of them ends.
    ///
    /// # Errors
    /// [`Reason::AlreadyResolved`] if the call has ended, [`Reason::TooMany`] if too many questions are pending,
    /// [`Reason::StoreFailed`].
    pub async fn rest(&self, call: NewCall, asked: Vec<Question>) -> Result<()> {
        let limits = self.0.config.limits();
        let expiring: Vec<_> = asked
            .iter()
            .map(|question| {
                let namespace = question.server.namespace.clone();
                let after = question.created.until(question.expires);
                (namespace, question.id.clone(), after)
            })
            .collect();
        let watch = || {
            let mut deadlines = self.0.deadlines();
            for (namespace, id, after) in &expiring {
                deadlines.insert(namespace.clone(), id.clone(), *after);
            }
        };
        // Before the commit, because nobody may be here any more behind it; and behind it, because the time of one may have
        // been over before it was there.
        watch();
        let rested = self.0.store.rest_call(call, asked, limits).await;
        if rested.is_ok() {
            watch();
        } else {
            for (_, id, _) in &expiring {
                self.0.deadlines().remove(id);
            }
        }
        self.0.rested.notify_one();
        rested
    }

    /// Asks. The question is committed, and visible to apps, when this returns. Dropping the future takes the question
    /// back, as dropping the ticket does. Once one of `server_gone` is cancelled the server can no longer take an answer.
    ///
    /// # Errors
    /// [`Reason::MessageTooLarge`] if it is, [`Reason::TooMany`] if too many questions are pending,
    /// [`Reason::Draining`] after [`Inputs::close`], [`Reason::StoreFailed`].
    pub async fn ask(
        &self,
        question: NewQuestion,
        server_gone: Vec<CancellationToken>,
    ) -> Result<Ticket> {
        let expiry = question
            .expiry
            .unwrap_or(self.0.config.expiry(question.mode));
        let question = self.prepare(question)?;
        let (answer, answered) = oneshot::channel();
        let (end, ended) = oneshot::channel();
        let (abandon, abandoned) = oneshot::channel::<Infallible>();
        let (commit, committed) = oneshot::channel();
        let taken_back = async move {
            // The sender is dropped with the ticket.
            let _ = abandoned.await;
            if server_gone.iter().any(CancellationToken::is_cancelled) {
                QuestionState::Void
            } else {
                QuestionState::Cancelled
            }
        };
        let ticket = Ticket {
            id: question.id.clone(),
            answer: Some(answered),
            _abandon: abandon,
        };
        let entry = Entry {
            namespace: question.server.namespace.clone(),
            answer,
            _ended: end,
        };
        {
            let mut waiting = self.0.waiting();
            if waiting.closed {
                return Err(Error::new(Reason::Draining, "the daemon is stopping"));
            }
            waiting.entries.insert(ticket.id.clone(), entry);
            let inner = Arc::clone(&self.0);
            // Under the lock, so that `close` waits for every keeper.
            self.0.tasks.spawn(life::keep(
                inner, question, expiry, commit, ended, taken_back,
            ));
        }
        let lost = || Err(Error::internal("the keeper of a question ended early"));
        committed.await.unwrap_or_else(|_| lost())?;
        Ok(ticket)
    }

    /// Answers a question of one of these modes: the first acceptable answer ends it and goes to whoever waits, and nowhere
    /// else. Returns the ended question. Dropping the future does not take the answer back once it has begun.
    ///
    /// # Errors
    /// [`Reason::InvalidField`] if the content does not fit, and the question stays pending: on `content_json`, or on
    /// `content_json.<name>` for every member that is wrong, see [`form`]; of what a model is asked, on `result_json` and
    /// the paths in it;
    /// [`Reason::AlreadyResolved`], [`Reason::StoreFailed`], and as [`Inputs::get`].
    pub async fn respond(
        &self,
        modes: &'static [Mode],
        namespace: Namespace,
        id: ElicitationId,
        answer: Answer,
    ) -> Result<Question> {
        let question = self.get(modes, namespace.clone(), id.clone()).await?;
        if question.state != QuestionState::Pending {
            return Err(already_resolved(&question));
        }
        let answer = check(&question, answer).await?;
        let state = match &answer {
            Answer::Accept(_) => QuestionState::Answered,
            Answer::Decline => QuestionState::Declined,
            Answer::Cancel => QuestionState::Cancelled,
        };
        let inner = Arc::clone(&self.0);
        // On a task of its own: an app that leaves between commit and hand-over must not lose the answer.
        let respond = self.0.tasks.spawn(async move {
            let store = &inner.store;
            let ended = store
                .end_question(id, namespace, state, Some(&answer))
                .await?;
            inner.deliver(&ended.id, answer);
            Ok(ended)
        });
        respond
            .await
            .unwrap_or_else(|_| Err(Error::internal("the task of an answer ended early")))
    }

    /// Ends every pending question of a server as void; their tickets give [`Answer::Cancel`]. Returns their ids. The
    /// same happens to tickets whose questions the store voids for another reason, such as the server's removal.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn void_server(&self, server: ServerKey) -> Result<Vec<ElicitationId>> {
        self.0.store.void_questions(server).await
    }

    /// Notes that a server says what was opened for its question is done with: once, if the question is known and pending or
    /// accepted. It is no answer. Returns the ids of the questions which that is news for.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn completed(
        &self,
        server: ServerKey,
        server_elicitation_id: String,
    ) -> Result<Vec<ElicitationId>> {
        let store = &self.0.store;
        store
            .complete_questions(server, server_elicitation_id)
            .await
    }

    /// One question of one of these modes, pending or ended.
    ///
    /// # Errors
    /// [`Reason::ElicitationNotFound`], or [`Reason::SamplingRequestNotFound`] where only those are wanted;
    /// [`Reason::StoreFailed`].
    pub async fn get(
        &self,
        modes: &'static [Mode],
        namespace: Namespace,
        id: ElicitationId,
    ) -> Result<Question> {
        match self.0.store.question(namespace.clone(), id.clone()).await {
            Ok(question) if modes.contains(&question.mode) => Ok(question),
            Err(failure) if failure.reason() != Reason::ElicitationNotFound => Err(failure),
            _ => Err(not_found(modes, &namespace, &id)),
        }
    }

    /// Up to `limit` questions of these modes and of a namespace behind the id `after`, oldest first, but no more than a
    /// message should hold, and whether there are more. An empty list of servers or states means "all".
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn list(
        &self,
        modes: &'static [Mode],
        namespace: Namespace,
        server_ids: Vec<ServerId>,
        states: Vec<QuestionState>,
        after: Option<ElicitationId>,
        limit: usize,
    ) -> Result<(Vec<Question>, bool)> {
        self.0
            .store
            .questions(namespace, modes, server_ids, states, after, limit)
            .await
    }

    /// How many questions wait for their answers.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.0.waiting().entries.len()
    }

    /// Refuses further questions, ends the pending ones as void, and waits until that is committed, or this time is over.
    /// Call it before the store is closed.
    pub async fn close(&self, grace: Duration) {
        self.0.waiting().closed = true;
        self.0.closing.cancel();
        self.0.tasks.close();
        if tokio::time::timeout(grace, self.0.tasks.wait())
            .await
            .is_err()
        {
            tracing::warn!("questions are left behind; they end at the next start");
        }
    }
}

impl Inner {
    fn deadlines(&self) -> MutexGuard<'_, Deadlines> {
        self.deadlines
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands the answer to whoever waits, if anybody still does.
    fn deliver(&self, id: &ElicitationId, answer: Answer) {
        let entry = self.waiting().entries.remove(id);
        if entry.is_some_and(|entry| entry.answer.send(answer).is_err()) {
            tracing::debug!(elicitation_id = %id, "nobody waits for the answer of a question any more");
        }
    }

    /// Looks at every question that waits; for the case that the log is too short to tell.
    async fn sweep(&self) {
        let asked: Vec<_> = {
            let waiting = self.waiting();
            let entries = waiting.entries.iter();
            entries
                .map(|(id, entry)| (id.clone(), entry.namespace.clone()))
                .collect()
        };
        for (id, namespace) in asked {
            let question = self.store.question(namespace, id.clone()).await;
            if question.is_ok_and(|question| question.state == QuestionState::Void) {
                self.deliver(&id, Answer::Cancel);
            }
        }
    }
}

/// Gives the answer back if it fits the question.
async fn check(question: &Question, answer: Answer) -> Result<Answer> {
    let refuse = |message: &str| Err(Error::invalid("content_json", message));
    let content = match (question.mode, answer) {
        (Mode::Form, Answer::Accept(Some(content))) => content,
        (Mode::Form, Answer::Accept(None)) => {
            return refuse(
                "accepting a form needs its content: a JSON object that follows the requested schema",
            );
        }
        (Mode::Url, Answer::Accept(Some(_))) => {
            return refuse("a question that opens a URL takes no content");
        }
        (Mode::Approval, Answer::Accept(Some(_))) => {
            return refuse("a call is approved as it is: an approval takes no content");
        }
        (Mode::Sampling, Answer::Accept(content)) => {
            let request = question.request.clone();
            return sampling::accept(request, content.unwrap_or_default()).await;
        }
        (_, answer) => return Ok(answer),
    };
    let schema = question.requested_schema.clone().unwrap_or_default();
    // The server chooses the schema and so what the check costs, within bounds: not on a thread that others need.
    let checked = tokio::task::spawn_blocking(move || {
        let outcome = Form::parse(&schema).check(&content);
        (content, outcome)
    });
    let (content, outcome) = checked
        .await
        .map_err(|_| Error::internal("the check of an answer ended early"))?;
    outcome.map_err(refused)?;
    Ok(Answer::Accept(Some(content)))
}

/// The error for what is not there, or not of these modes.
fn not_found(modes: &'static [Mode], namespace: &Namespace, id: &ElicitationId) -> Error {
    let (reason, what) = if modes == Mode::SAMPLING {
        (
            Reason::SamplingRequestNotFound,
            "request for an answer of a model",
        )
    } else {
        (Reason::ElicitationNotFound, "question")
    };
    let message =
        format!("there is no {what} `{id}` in namespace `{namespace}`, or its end is long past");
    Error::new(reason, message)
}

/// Says what is wrong with the content of an answer, without its values.
fn refused(refusal: Refusal) -> Error {
    let problems = match refusal {
        Refusal::NotAnObject => {
            return Error::invalid("content_json", "the content is not a JSON object");
        }
        Refusal::Members(problems) => problems,
    };
    let all: Vec<_> = problems
        .iter()
        .map(|problem| format!("`{}` {}", problem.name, problem.message))
        .collect();
    let message = format!("the content does not fit the form: {}", all.join(", "));
    let violations = problems
        .into_iter()
        .map(|problem| Violation::new(format!("content_json.{}", problem.name), problem.message));
    Error::invalid_fields(message, violations.collect())
}

#[cfg(test)]
mod tests;
