//! A committed change that apps can follow.

use serde::{Deserialize, Serialize};

use crate::base::{Namespace, Revision, ServerId, Timestamp};
use crate::model::call::Call;
use crate::model::question::{Mode, Question};
use crate::model::status::ServerView;

/// What an update is about.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A server.
    Server,
    /// A question.
    Elicitation,
    /// A call.
    Call,
    /// A request for an answer of a model: a question, too, for other apps.
    Sampling,
}

impl From<Mode> for Kind {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Form | Mode::Url | Mode::Approval => Self::Elicitation,
            Mode::Sampling => Self::Sampling,
        }
    }
}

/// The new state of a thing, or that it is gone.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Body {
    /// A server is new or has changed.
    Server(Box<ServerView>),
    /// A question, of whatever mode, is new or has changed.
    Elicitation(Box<Question>),
    /// A call is new or has changed.
    Call(Box<Call>),
    /// Something is gone.
    Deleted {
        /// What it was.
        kind: Kind,
        /// Its id.
        id: String,
    },
}

/// One entry of the update log.
#[derive(Clone, PartialEq, Debug)]
pub struct Update {
    /// Its position.
    pub revision: Revision,
    /// When it was committed.
    pub committed: Timestamp,
    /// The namespace it belongs to.
    pub namespace: Namespace,
    /// The server it is about.
    pub server_id: ServerId,
    /// What it is about.
    pub kind: Kind,
    /// What it says.
    pub body: Body,
}

/// Which updates a subscriber wants. An empty list means "all".
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Filter {
    /// Only these namespaces.
    pub namespaces: Vec<Namespace>,
    /// Only updates about these servers.
    pub server_ids: Vec<ServerId>,
    /// Only these kinds.
    pub kinds: Vec<Kind>,
}

impl Filter {
    /// Whether something with these coordinates is wanted.
    #[must_use]
    pub fn admits(&self, namespace: &Namespace, server_id: &ServerId, kind: Kind) -> bool {
        (self.namespaces.is_empty() || self.namespaces.contains(namespace))
            && (self.server_ids.is_empty() || self.server_ids.contains(server_id))
            && (self.kinds.is_empty() || self.kinds.contains(&kind))
    }
}
