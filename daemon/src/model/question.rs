//! A question that a server asks in the middle of a call, and the answer to it.
//!
//! Never prints the content of an answer, nor that of a request.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::{CallId, ElicitationId, ServerKey, Timestamp};

/// How a question is put (MCP client/elicitation, client/sampling).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// The answer is an object that follows the requested schema.
    Form,
    /// The user opens a URL; the answer has no content.
    Url,
    /// The daemon asks whether a call of a tool may be made; the answer has no content.
    Approval,
    /// A language model is asked; the answer is what it says.
    Sampling,
}

impl Mode {
    /// Those of questions to people.
    pub const ELICITATION: &'static [Self] = &[Self::Form, Self::Url, Self::Approval];
    /// Those of requests for an answer of a model.
    pub const SAMPLING: &'static [Self] = &[Self::Sampling];
}

/// What became of a question. Everything but `Pending` is an end, and a question has exactly one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QuestionState {
    /// It waits for an answer.
    Pending,
    /// It was accepted.
    Answered,
    /// It was declined.
    Declined,
    /// It was cancelled, by an answer or because its call was.
    Cancelled,
    /// Nobody answered in time.
    Expired,
    /// The server can no longer take an answer.
    Void,
}

impl QuestionState {
    /// Whether nothing but an answer ends a question so. Every other end means [`Answer::Cancel`] to whoever waits.
    #[must_use]
    pub fn is_by_answer(self) -> bool {
        matches!(self, Self::Answered | Self::Declined)
    }
}

/// A question, as it is stored and shown. Holds no answer: answers go to the server and nowhere else.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Question {
    /// Its id.
    pub id: ElicitationId,
    /// The server that asks.
    pub server: ServerKey,
    /// The registered name of that server when it asked.
    pub server_name: String,
    /// The call in which it is asked, if the server said so.
    pub call_id: Option<CallId>,
    /// How it is put.
    pub mode: Mode,
    /// The question, in the server's words; of what a model is asked, the beginning.
    pub message: String,
    /// JSON Schema of the answer, raw (form).
    pub requested_schema: Option<String>,
    /// The URL to open (url).
    pub url: Option<String>,
    /// What has become of it.
    pub state: QuestionState,
    /// When it was asked.
    pub created: Timestamp,
    /// When it expires.
    pub expires: Timestamp,
    /// When it ended.
    pub resolved: Option<Timestamp>,
    /// The parameters of the server's request, raw.
    pub request: String,
    /// The server's own id of the question (url).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_elicitation_id: Option<String>,
    /// When the server said that what was opened is done with (url).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub completed: Option<Timestamp>,
}

impl Question {
    /// What it takes in memory and on disk, but for a constant.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.message.len()
            + optional(&self.requested_schema)
            + optional(&self.url)
            + optional(&self.server_elicitation_id)
            + self.request.len()
    }
}

/// An answer's action with its content (MCP schema `ElicitResult`, `CreateMessageResult`). `Debug` prints stars for the
/// content: it is between the person who answers and the server.
#[derive(Clone, PartialEq, Eq)]
pub enum Answer {
    /// The user agrees; with a JSON object for a form or of a model, raw.
    Accept(Option<String>),
    /// The user says no.
    Decline,
    /// The user does not decide, or nobody can be asked any more.
    Cancel,
}

impl fmt::Debug for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Accept(None) => "Accept(None)",
            Self::Accept(Some(_)) => "Accept(***)",
            Self::Decline => "Decline",
            Self::Cancel => "Cancel",
        })
    }
}

/// What somebody can answer.
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent flags, as they are in the protocol"
)]
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Abilities {
    /// Elicitation mode `form`.
    pub elicitation_form: bool,
    /// Elicitation mode `url`.
    pub elicitation_url: bool,
    /// Sampling.
    pub sampling: bool,
    /// Sampling with tools.
    pub sampling_tools: bool,
    /// Sampling with context of servers.
    pub sampling_context: bool,
    /// Approval of calls; no server is told.
    pub approval: bool,
}

impl Abilities {
    /// Nothing at all.
    pub const NOTHING: Self = Self {
        elicitation_form: false,
        elicitation_url: false,
        sampling: false,
        sampling_tools: false,
        sampling_context: false,
        approval: false,
    };

    /// What one or the other can answer.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self {
            elicitation_form: self.elicitation_form || other.elicitation_form,
            elicitation_url: self.elicitation_url || other.elicitation_url,
            sampling: self.sampling || other.sampling,
            sampling_tools: self.sampling_tools || other.sampling_tools,
            sampling_context: self.sampling_context || other.sampling_context,
            approval: self.approval || other.approval,
        }
    }

    /// Whether questions of this mode can be answered.
    #[must_use]
    pub fn answer(self, mode: Mode) -> bool {
        match mode {
            Mode::Form => self.elicitation_form,
            Mode::Url => self.elicitation_url,
            Mode::Sampling => self.sampling,
            Mode::Approval => self.approval,
        }
    }

    /// A part of sampling that is named without the whole; `None` if there is none.
    #[must_use]
    pub fn stray_part(self) -> Option<&'static str> {
        match self {
            Self { sampling: true, .. } => None,
            Self {
                sampling_tools: true,
                ..
            } => Some("sampling_tools"),
            Self {
                sampling_context: true,
                ..
            } => Some("sampling_context"),
            _ => None,
        }
    }
}

/// What becomes of the questions of a server; `None` means the configured default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct QuestionPolicy {
    /// Those that come while nobody is attached who can answer them.
    pub unattended: Option<Unattended>,
    /// How long those to people can be answered.
    pub elicitation_expiry: Option<Duration>,
    /// How long those for a model can be answered.
    pub sampling_expiry: Option<Duration>,
    /// How long calls that need an approval wait for it.
    pub approval_expiry: Option<Duration>,
}

impl QuestionPolicy {
    /// How long questions of this mode can be answered.
    #[must_use]
    pub fn expiry(&self, mode: Mode) -> Option<Duration> {
        match mode {
            Mode::Form | Mode::Url => self.elicitation_expiry,
            Mode::Sampling => self.sampling_expiry,
            Mode::Approval => self.approval_expiry,
        }
    }
}

/// What becomes of a question that comes while nobody is attached who can answer it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unattended {
    /// It waits for somebody.
    #[default]
    Hold,
    /// It is declined at once.
    Decline,
}

#[cfg(test)]
mod tests {
    use super::Answer;

    #[test]
    fn debug_does_not_show_content() {
        let content = Answer::Accept(Some(r#"{"name":"Ada"}"#.to_owned()));
        assert_eq!(format!("{content:?}"), "Accept(***)");
        assert_eq!(format!("{:?}", Some(Answer::Decline)), "Some(Decline)");
    }
}
