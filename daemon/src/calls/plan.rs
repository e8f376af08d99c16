//! What is needed to go on with a call, also after a restart of the daemon; it is sealed on disk.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::operation::Operation;
use crate::base::{ElicitationId, Timestamp, TokenId, User};
use crate::error::{Error, Reason, Result};
use crate::mcp::asker::Asker;
use crate::mcp::era::Replies;
use crate::mcp::link::not_answered;
use crate::mcp::protocol::{ObjectWriter, RawJson};
use crate::model::call::Answered;
use crate::model::question::QuestionState;
use crate::model::spec::LogLevel;

/// A call with all its terms.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    /// What is asked.
    pub(super) operation: Operation,
    /// Which target the server had when the call was made.
    pub(super) target: String,
    /// Members for the request's `_meta`.
    pub(super) meta: Vec<(String, RawJson)>,
    /// Level from which log messages are wanted.
    pub(super) log_level: Option<LogLevel>,
    /// Bound on the whole call, and what is left of it.
    pub(super) call_timeout: Duration,
    pub(super) left: Duration,
    /// Bound on silence of the server.
    pub(super) idle_timeout: Duration,
    /// Whether to wait for a sign-in.
    pub(super) wait_for_sign_in: bool,
    /// On whose behalf.
    pub(super) user: Behalf,
    /// Rounds of questions so far.
    pub(super) rounds: usize,
    /// The last round, and how often it came in a row.
    pub(super) last: Option<(u64, u32)>,
    /// What was opened because an error of the server wanted that, and until when it is waited for.
    pub(super) opened: Option<(Vec<String>, Timestamp)>,
    /// The question whether it may be made, while that is open.
    pub(super) approval: Option<ElicitationId>,
    /// What it waits for while it rests.
    pub(super) wait: Option<Wait>,
}

/// On whose behalf a call is made, as it is stored.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(untagged)]
pub(super) enum Behalf {
    /// A user of the host and the group, as it was written before there were tokens.
    UserAndGroup(u32, u32),
    /// A user of the host.
    User(u32),
    /// Whoever bears this token.
    Token(TokenId),
}

impl From<&User> for Behalf {
    fn from(user: &User) -> Self {
        match user {
            User::Uid(uid) => Self::User(*uid),
            User::Token(id) => Self::Token(id.clone()),
        }
    }
}

/// What a call waits for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) struct Wait {
    /// What the server asked for, by its keys.
    pub(super) slots: Vec<(String, Slot)>,
    /// State to hand back byte for byte.
    pub(super) state: Option<RawJson>,
    /// The server wants no answers, only that it is done.
    pub(super) by_error: bool,
}

/// One thing that a server asked for.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(super) enum Slot {
    /// It needed nobody.
    Answer(RawJson),
    /// It is on the queue; for this method.
    Question(ElicitationId, String),
}

impl Plan {
    /// On whose behalf the call is made.
    pub(super) fn user(&self) -> User {
        match &self.user {
            Behalf::UserAndGroup(uid, _) | Behalf::User(uid) => User::Uid(*uid),
            Behalf::Token(id) => User::Token(id.clone()),
        }
    }

    /// Whether somebody has agreed that it is made, if that was asked.
    ///
    /// # Errors
    /// `CALL_NOT_APPROVED` if nobody has.
    pub(super) fn approved(&mut self, answers: &[Answered]) -> Result<()> {
        let Some(id) = self.approval.take() else {
            return Ok(());
        };
        let answered = answers.iter().find(|answered| answered.id == id);
        let state = answered.map_or(QuestionState::Void, |answered| answered.state);
        let how = match state {
            QuestionState::Answered => return Ok(()),
            QuestionState::Declined => "was declined",
            QuestionState::Expired => "was not given in time",
            _ => "was withdrawn",
        };
        let error = Error::new(
            Reason::CallNotApproved,
            format!("the approval of the call {how}; it was not made"),
        );
        let error = match &self.operation {
            Operation::Tool { name, .. } => error.with("tool_name", name.as_str()),
            _ => error,
        };
        Err(error
            .with("elicitation_id", id.as_str())
            .with("policy", "ask"))
    }

    /// What somebody has agreed to open, so that the server does it; it is waited for until then.
    pub(super) fn opened_by(
        &self,
        answers: &[Answered],
        until: Timestamp,
    ) -> Option<(Vec<String>, Timestamp)> {
        let wait = self.wait.as_ref().filter(|wait| wait.by_error)?;
        let agreed = |id: &ElicitationId| {
            let mut answers = answers.iter();
            answers.any(|it| it.id == *id && it.state == QuestionState::Answered)
        };
        let keys = wait.slots.iter().filter_map(|(key, slot)| match slot {
            Slot::Question(id, _) if agreed(id) => Some(key.clone()),
            _ => None,
        });
        Some((keys.collect(), until))
    }

    /// What the next request says, from what came of the questions.
    ///
    /// # Errors
    /// `INPUT_DECLINED` if the server cannot be told what came of them.
    pub(super) fn replies(&mut self, answers: &[Answered]) -> Result<Replies> {
        let Some(wait) = self.wait.take() else {
            return Ok(Replies::default());
        };
        let mut all = ObjectWriter::new();
        for (key, slot) in wait.slots {
            let reply = match slot {
                Slot::Answer(reply) => reply,
                Slot::Question(id, method) => {
                    let answered = answers.iter().find(|answered| answered.id == id);
                    let answered = answered
                        .ok_or_else(|| Error::internal("the answer to a question is gone"))?;
                    if wait.by_error && answered.state != QuestionState::Answered {
                        return Err(declined(answered));
                    }
                    Asker::encode(&method, answered.answer.clone())
                        .map_err(|unanswered| not_answered(&method, unanswered))?
                }
            };
            all.raw(&key, reply.as_str());
        }
        if wait.by_error {
            return Ok(Replies::default());
        }
        Ok(Replies {
            answers: Some(all.finish()),
            state: wait.state,
        })
    }
}

fn declined(question: &Answered) -> Error {
    let how = match question.state {
        QuestionState::Declined => "was declined",
        QuestionState::Expired => "was not answered in time",
        _ => "was cancelled",
    };
    Error::new(
        Reason::InputDeclined,
        format!("what the server needs {how}, and it does not go on without"),
    )
    .with("elicitation_id", question.id.as_str())
}

#[cfg(test)]
mod tests {
    use super::Behalf;
    use crate::base::TokenId;

    #[test]
    fn on_whose_behalf_is_understood_as_it_was_written_at_any_time() {
        for (text, behalf) in [
            ("[7,8]", Behalf::UserAndGroup(7, 8)),
            ("7", Behalf::User(7)),
            ("\"t\"", Behalf::Token(TokenId::new("t"))),
        ] {
            assert_eq!(serde_json::from_str::<Behalf>(text).unwrap(), behalf);
            assert_eq!(serde_json::to_string(&behalf).unwrap(), text);
        }
    }
}
