//! A question that a server asks in the middle of a call, and the answer to it.
//!
//! Never prints the content of an answer, nor that of a request.

use std::fmt;

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
}

impl Question {
    /// What it takes in memory and on disk, but for a constant.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let optional = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.message.len()
            + optional(&self.requested_schema)
            + optional(&self.url)
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
