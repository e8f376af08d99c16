//! Questions of servers, answered by callbacks: one for each way in which a question can be put.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::{AbortHandle, Abortable, Aborted};
use futures_util::stream::FuturesUnordered;

use crate::Arguments;
use crate::client::Client;
use crate::error::{Error, Reason, Result, Violation};
use crate::proto::{
    CanAnswer, Elicitation, ElicitationMode, ElicitationState, SamplingRequest, UpdateKind,
};
use crate::updates::{UpdateEvent, UpdateFilter};

/// Pauses between attempts to give an answer while the daemon cannot be reached.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const MAX_PAUSE: Duration = Duration::from_secs(5);

/// What a callback says to a question.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Answer {
    /// The user agrees. The answer of a form is a JSON object; other questions take `()`.
    Accept(Arguments),
    /// The user says no.
    Decline,
    /// The user does not decide.
    Cancel,
    /// Somebody else may answer.
    Leave,
}

/// What a callback says to a request for an answer of a language model.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum SamplingAnswer {
    /// The model's answer: a `CreateMessageResult` of MCP as JSON text.
    Accept(String),
    /// No.
    Reject,
    /// Somebody else may answer.
    Leave,
}

/// A question as a callback gets it.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Question<Q = Elicitation> {
    /// The question.
    pub asked: Q,
    /// What the daemon found wrong with the answer that the callback gave before; empty the first time.
    pub violations: Vec<Violation>,
}

type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Callback<Q, A> = Arc<dyn Fn(Question<Q>) -> Pending<A> + Send + Sync>;

/// Callbacks that answer questions; see [`Client::answer_questions`]. Servers are told that what has a callback can be
/// answered, and are not told so of the rest.
///
/// ```no_run
/// use mcp_sidecar_client::{Answer, Client, QuestionHandlers};
///
/// # async fn run() -> Result<(), mcp_sidecar_client::Error> {
/// let handlers = QuestionHandlers::new()
///     .on_form(async |question| {
///         println!("{} asks: {}", question.asked.server_name, question.asked.message);
///         Answer::Accept(r#"{"name": "Ada"}"#.into())
///     })
///     .on_url(async |question| {
///         println!("open {}?", question.asked.url);
///         Answer::Leave
///     });
/// Client::connect().await?.answer_questions(&handlers).await
/// # }
/// ```
#[derive(Clone, Default)]
pub struct QuestionHandlers {
    form: Option<Callback<Elicitation, Answer>>,
    url: Option<Callback<Elicitation, Answer>>,
    approval: Option<Callback<Elicitation, Answer>>,
    sampling: Option<Callback<SamplingRequest, SamplingAnswer>>,
}

impl QuestionHandlers {
    /// No callbacks.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Answers forms.
    #[must_use]
    pub fn on_form<F, Fut>(mut self, callback: F) -> Self
    where
        F: Fn(Question) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Answer> + Send + 'static,
    {
        self.form = Some(Arc::new(move |question| Box::pin(callback(question))));
        self
    }

    /// Has the user open URLs. [`Answer::Accept`] with `()` says that the user agrees, before or after the page is
    /// opened; show the URL and its warnings first.
    #[must_use]
    pub fn on_url<F, Fut>(mut self, callback: F) -> Self
    where
        F: Fn(Question) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Answer> + Send + 'static,
    {
        self.url = Some(Arc::new(move |question| Box::pin(callback(question))));
        self
    }

    /// Agrees to calls of tools, or not.
    #[must_use]
    pub fn on_approval<F, Fut>(mut self, callback: F) -> Self
    where
        F: Fn(Question) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Answer> + Send + 'static,
    {
        self.approval = Some(Arc::new(move |question| Box::pin(callback(question))));
        self
    }

    /// Asks a language model.
    #[must_use]
    pub fn on_sampling<F, Fut>(mut self, callback: F) -> Self
    where
        F: Fn(Question<SamplingRequest>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = SamplingAnswer> + Send + 'static,
    {
        self.sampling = Some(Arc::new(move |question| Box::pin(callback(question))));
        self
    }

    /// What servers are told that can be answered.
    #[must_use]
    pub fn can_answer(&self) -> CanAnswer {
        CanAnswer {
            elicitation_form: self.form.is_some(),
            elicitation_url: self.url.is_some(),
            approval: self.approval.is_some(),
            sampling: self.sampling.is_some(),
            ..Default::default()
        }
    }

    fn of(&self, mode: ElicitationMode) -> Option<&Callback<Elicitation, Answer>> {
        match mode {
            ElicitationMode::Form => self.form.as_ref(),
            ElicitationMode::Url => self.url.as_ref(),
            ElicitationMode::Approval => self.approval.as_ref(),
            ElicitationMode::Unspecified => None,
        }
    }
}

impl fmt::Debug for QuestionHandlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let can = self.can_answer();
        f.debug_struct("QuestionHandlers")
            .field("form", &can.elicitation_form)
            .field("url", &can.elicitation_url)
            .field("approval", &can.approval)
            .field("sampling", &can.sampling)
            .finish()
    }
}

/// Questions that are with their callbacks, or were. Dropping it drops the callbacks' futures.
#[derive(Default)]
struct Open {
    running: FuturesUnordered<Pending<Result<(), Aborted>>>,
    /// The pending questions that callbacks got. Ends the callback of a question that has ended elsewhere.
    ends: HashMap<String, AbortHandle>,
    /// The questions of the snapshot that is being read, if the stream had to start over.
    snapshot: Option<HashSet<String>>,
}

impl Open {
    /// Hands a pending question to its callback, unless it has it already.
    fn begin(&mut self, id: &str, work: impl FnOnce() -> Option<Pending<()>>) {
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.insert(id.to_owned());
        }
        if self.ends.contains_key(id) {
            return;
        }
        if let Some(work) = work() {
            let (end, registration) = AbortHandle::new_pair();
            self.ends.insert(id.to_owned(), end);
            self.running
                .push(Box::pin(Abortable::new(work, registration)));
        }
    }

    fn end(&mut self, id: &str) {
        if let Some(end) = self.ends.remove(id) {
            end.abort();
        }
    }

    /// What has ended while nobody was told is not in a new snapshot.
    fn end_all_but_the_snapshot(&mut self) {
        if let Some(snapshot) = self.snapshot.take() {
            self.ends.retain(|id, end| {
                let pending = snapshot.contains(id);
                if !pending {
                    end.abort();
                }
                pending
            });
        }
    }
}

/// Answers by callbacks.
impl Client {
    /// Answers the questions of the namespace with callbacks, those that wait already and all that come, for ever: until
    /// an error that is final, or until the future is dropped. It survives lost connections and restarts of the daemon.
    ///
    /// Callbacks run side by side. When a question ends elsewhere, because another app was faster or its call has ended,
    /// the callback's future is dropped. An answer that the daemon refuses brings the question back to the callback, with
    /// what is wrong.
    ///
    /// # Errors
    ///
    /// See [`Updates`](crate::Updates).
    pub async fn answer_questions(&self, handlers: &QuestionHandlers) -> Result<()> {
        let mut updates = self.updates_with(UpdateFilter {
            kinds: vec![UpdateKind::Elicitation, UpdateKind::Sampling],
            can_answer: Some(handlers.can_answer()),
            ..Default::default()
        });
        let mut open = Open::default();
        loop {
            let event = tokio::select! {
                update = updates.next() => match update {
                    Some(update) => update?.event,
                    None => return Ok(()),
                },
                Some(_ended) = open.running.next() => continue,
            };
            match event {
                UpdateEvent::Elicitation(asked) if asked.state() == ElicitationState::Pending => {
                    open.begin(&asked.id, || {
                        let callback = handlers.of(asked.mode())?.clone();
                        Some(Box::pin(answer(self.clone(), callback, *asked.clone())))
                    });
                }
                UpdateEvent::Sampling(asked) if asked.state() == ElicitationState::Pending => {
                    open.begin(&asked.id, || {
                        let callback = handlers.sampling.clone()?;
                        Some(Box::pin(sample(self.clone(), callback, *asked.clone())))
                    });
                }
                UpdateEvent::Elicitation(ended) => open.end(&ended.id),
                UpdateEvent::Sampling(ended) => open.end(&ended.id),
                UpdateEvent::Deleted { id, .. } => open.end(&id),
                UpdateEvent::Reset(_) => open.snapshot = Some(HashSet::new()),
                UpdateEvent::SnapshotEnd => open.end_all_but_the_snapshot(),
                _ => {}
            }
        }
    }
}

async fn answer(client: Client, callback: Callback<Elicitation, Answer>, asked: Elicitation) {
    let client = client.with_namespace(&asked.namespace);
    let mut violations = Vec::new();
    loop {
        let question = Question {
            asked: asked.clone(),
            violations,
        };
        let answer = callback(question).await;
        let mut pauses = Pauses::default();
        violations = loop {
            let id = &asked.id;
            let outcome = match answer.clone() {
                Answer::Accept(content) => client.accept_elicitation(id, content).await,
                Answer::Decline => client.decline_elicitation(id).await,
                Answer::Cancel => client.cancel_elicitation(id).await,
                Answer::Leave => return,
            };
            match judge(outcome) {
                Verdict::Over => return,
                Verdict::Wrong(violations) => break violations,
                Verdict::Lost(wish) => pauses.next(wish).await,
            }
        };
    }
}

async fn sample(
    client: Client,
    callback: Callback<SamplingRequest, SamplingAnswer>,
    asked: SamplingRequest,
) {
    let client = client.with_namespace(&asked.namespace);
    let mut violations = Vec::new();
    loop {
        let question = Question {
            asked: asked.clone(),
            violations,
        };
        let answer = callback(question).await;
        let mut pauses = Pauses::default();
        violations = loop {
            let id = &asked.id;
            let outcome = match answer.clone() {
                SamplingAnswer::Accept(result) => client.accept_sampling(id, result).await,
                SamplingAnswer::Reject => client.reject_sampling(id).await,
                SamplingAnswer::Leave => return,
            };
            match judge(outcome) {
                Verdict::Over => return,
                Verdict::Wrong(violations) => break violations,
                Verdict::Lost(wish) => pauses.next(wish).await,
            }
        };
    }
}

/// What has become of an answer.
enum Verdict {
    /// It was taken, or nobody can take it any more: the question's state on the update stream says which.
    Over,
    /// Another one can be given.
    Wrong(Vec<Violation>),
    /// It may not have arrived. A question ends once, so that giving the answer twice does no harm.
    Lost(Option<Duration>),
}

fn judge<T>(outcome: Result<T>) -> Verdict {
    match outcome {
        Err(Error::Status {
            reason,
            violations,
            message,
            ..
        }) if reason == Reason::INVALID_FIELD => Verdict::Wrong(match violations {
            none if none.is_empty() => vec![Violation::of("", &message)],
            violations => violations,
        }),
        Err(error) if error.is_retryable() || matches!(error, Error::Transport { .. }) => {
            Verdict::Lost(error.retry_after())
        }
        Ok(_) | Err(_) => Verdict::Over,
    }
}

/// Pauses that grow, up to a bound.
#[derive(Default)]
struct Pauses(Option<Duration>);

impl Pauses {
    async fn next(&mut self, wish: Option<Duration>) {
        let pause = self.0.map_or(FIRST_PAUSE, |last| (last * 2).min(MAX_PAUSE));
        self.0 = Some(pause);
        tokio::time::sleep(wish.unwrap_or(pause).min(MAX_PAUSE)).await;
    }
}
