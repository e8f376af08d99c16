//! A call for an app, as it is stored and shown, and what comes of it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::{CallId, ElicitationId, ServerKey, Timestamp};
use crate::error::Error;
use crate::model::origin::Origin;
use crate::model::question::{Answer, QuestionState};

/// How far a call is. Everything behind `InputRequired` is an end, and a call has exactly one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallState {
    /// The server works on it, or is about to be asked.
    Running,
    /// It waits for answers.
    InputRequired,
    /// It has a result.
    Completed,
    /// It has ended with an error.
    Failed,
    /// It was cancelled.
    Cancelled,
}

impl CallState {
    /// Whether the call has ended.
    #[must_use]
    pub fn is_end(self) -> bool {
        !matches!(self, Self::Running | Self::InputRequired)
    }
}

/// What a call is about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Subject {
    /// The tool of this name at the server.
    Tool(String),
    /// The resource with this URI.
    Resource(String),
    /// The prompt of this name.
    Prompt(String),
}

/// What is shown of a call. Holds neither its arguments nor its outcome.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Call {
    /// Its id.
    pub id: CallId,
    /// The server.
    pub server: ServerKey,
    /// What it is about.
    pub subject: Subject,
    /// The id that the app gave it.
    pub request_id: Option<String>,
    /// Whether it goes on without anybody waiting for it.
    pub detached: bool,
    /// How far it is.
    pub state: CallState,
    /// When it was made.
    pub created: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// Until when its outcome can be had, if it has ended.
    pub expires: Option<Timestamp>,
    /// Who began it, for the audit log; apps are not told. `None` if there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub began: Option<Box<Origin>>,
}

/// What came of a call.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The server's result, raw.
    Result(String),
    /// Why there is none.
    Error(Error),
    /// It was cancelled, for this reason.
    Cancelled(Error),
}

impl Outcome {
    /// The state of a call that has ended so.
    #[must_use]
    pub fn state(&self) -> CallState {
        match self {
            Self::Result(_) => CallState::Completed,
            Self::Error(_) => CallState::Failed,
            Self::Cancelled(_) => CallState::Cancelled,
        }
    }
}

/// A call as it is put on disk.
#[derive(Clone, Debug)]
pub struct NewCall {
    /// The call.
    pub call: Call,
    /// Recognises what is asked for, so that a repeat under the same request id can be told from something else.
    pub digest: Vec<u8>,
    /// What is needed to go on with it; opaque to the store, and sealed there.
    pub plan: String,
}

/// What a call that is put on disk under a request id has met there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Begun {
    /// Nothing: it is there now.
    New,
    /// The same call, made before.
    Known(CallId),
}

/// What came of a question of a call that rests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answered {
    /// The question.
    pub id: ElicitationId,
    /// How it ended.
    pub state: QuestionState,
    /// The answer; other than an acceptance, if nobody gave one.
    pub answer: Answer,
}

/// A call that goes on.
#[derive(Clone, Debug)]
pub struct GoneOn {
    /// The call.
    pub call: Call,
    /// What is needed to go on with it.
    pub plan: String,
    /// What came of its questions.
    pub answers: Vec<Answered>,
}

/// Calls that had not ended when the daemon did.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unended {
    /// Those that were under way; they have ended now.
    pub interrupted: Vec<Call>,
    /// Those that rested, oldest first.
    pub resting: Vec<Resting>,
}

/// A call that rested when the daemon ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resting {
    /// The call.
    pub call: Call,
    /// Whether it waits for answers; else it can go on.
    pub waits: bool,
}

/// How much is kept of calls that have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeepCalls {
    /// An outcome is kept for this long ...
    pub age: Duration,
    /// ... those of so many calls ...
    pub count: usize,
    /// ... and so many bytes of them, as they are on disk.
    pub bytes: u64,
}

impl Default for KeepCalls {
    /// One hour, 10,000 calls, 256 MiB.
    fn default() -> Self {
        Self {
            age: Duration::from_hours(1),
            count: 10_000,
            bytes: 256 << 20,
        }
    }
}

/// Bounds on the questions that are pending.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QuestionLimits {
    /// Of one server.
    pub per_server: usize,
    /// Bytes of all together.
    pub bytes: usize,
}
