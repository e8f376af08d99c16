//! Turns a server's request for input into a question on the queue, and the answer into what the server expects.
//!
//! Nothing is answered here that nobody decided: roots come from the registration, everything else from people.

mod sampling;

use std::sync::{Arc, PoisonError, RwLock};

use tokio_util::sync::CancellationToken;
use url::Url;

use crate::base::{CallId, ServerKey};
use crate::error::{Error, RpcError};
use crate::inputs::{Inputs, NewQuestion, Ticket};
use crate::mcp::link::Running;
use crate::mcp::protocol::{ObjectWriter, RawJson, code, method};
use crate::model::question::{Answer, Mode};
use crate::model::spec::{Abilities, QuestionPolicy, Root, ServerSpec};

/// Answers the requests of one server.
#[derive(Clone, Debug)]
pub struct Asker {
    inputs: Inputs,
    server: Arc<RwLock<About>>,
    name: Arc<str>,
    /// What the server was told for good; `None` if it is told anew with every request what somebody can answer.
    told: Option<Abilities>,
    roots: Arc<[Root]>,
}

/// What may change about a server while it is connected.
#[derive(Clone, Debug)]
struct About {
    key: ServerKey,
    policy: QuestionPolicy,
}

/// What a request of a server needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Need {
    /// Nobody: this is the answer.
    Nobody(RawJson),
    /// Somebody who answers this question.
    Human(NewQuestion),
    /// Nobody is there who can, and it shall not wait: it is put on the queue as one that was declined.
    Declined(NewQuestion),
}

/// Why a request of a server got no answer.
#[derive(Clone, PartialEq, Debug)]
pub enum Unanswered {
    /// The server may not ask for that.
    Refused(RpcError),
    /// It may, and nobody can be asked now.
    Failed(Error),
    /// It may, somebody was asked, and what came of it is no answer that can be written: why.
    Declined(&'static str),
}

impl Unanswered {
    /// What a server is told that waits for a response.
    #[must_use]
    pub fn into_rpc(self) -> RpcError {
        match self {
            Self::Refused(rpc) => rpc,
            Self::Failed(error) => RpcError {
                code: code::INTERNAL,
                message: error.message().to_owned(),
                data: None,
            },
            Self::Declined(why) => RpcError {
                code: code::USER_REJECTED,
                message: why.to_owned(),
                data: None,
            },
        }
    }
}

impl Asker {
    /// An asker for the server with this registration. `told`: what a legacy server was told in its handshake.
    #[must_use]
    pub fn new(
        inputs: Inputs,
        server: ServerKey,
        spec: &ServerSpec,
        told: Option<Abilities>,
    ) -> Self {
        let explicit = spec.capabilities.as_ref();
        Self {
            inputs,
            server: Arc::new(RwLock::new(About {
                key: server,
                policy: spec.questions,
            })),
            name: spec.name.as_str().into(),
            told: told.or_else(|| explicit.map(|explicit| explicit.abilities)),
            roots: spec.roots.clone().into(),
        }
    }

    /// The server has a new id.
    pub fn rename(&self, key: ServerKey) {
        self.server
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .key = key;
    }

    /// What becomes of questions.
    #[must_use]
    pub fn policy(&self) -> QuestionPolicy {
        self.about().policy
    }

    /// What becomes of questions has changed.
    pub fn set_policy(&self, policy: QuestionPolicy) {
        self.server
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .policy = policy;
    }

    fn about(&self) -> About {
        let about = self.server.read();
        about.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What the server may ask for, as of now.
    #[must_use]
    pub fn abilities(&self) -> Abilities {
        let now = || {
            self.inputs
                .audience()
                .abilities(&self.about().key.namespace)
        };
        self.told.unwrap_or_else(now)
    }

    /// Finds out what to do about a request of the server, which was `told` what it may ask for: the answer, where nobody has
    /// to be asked, or the question.
    ///
    /// # Errors
    /// Refused with -32601 for what was not advertised, with -32602 for a malformed request or a mode that was not.
    pub fn consider(
        &self,
        method: &str,
        params: &RawJson,
        told: Abilities,
    ) -> Result<Need, Unanswered> {
        match method {
            method::ROOTS_LIST if !self.roots.is_empty() => Ok(Need::Nobody(self.list_roots())),
            method::ELICIT => {
                let question = self.elicitation(params, told)?;
                Ok(self.need(question))
            }
            method::CREATE_MESSAGE if told.sampling => {
                let summary = sampling::summary(params, told)?;
                let question = self.question(Mode::Sampling, summary, params);
                Ok(self.need(question))
            }
            _ => Err(Unanswered::Refused(RpcError {
                code: code::METHOD_NOT_FOUND,
                message: format!("`{method}` is not supported by this client"),
                data: None,
            })),
        }
    }

    /// Whether a question waits for somebody.
    fn need(&self, question: NewQuestion) -> Need {
        let About { key, policy } = self.about();
        if self.inputs.holds(&key.namespace, question.mode, &policy) {
            Need::Human(question)
        } else {
            Need::Declined(question)
        }
    }

    fn list_roots(&self) -> RawJson {
        let roots = self.roots.iter().map(|root| {
            let mut object = ObjectWriter::new();
            object.string("uri", &root.uri);
            if !root.name.is_empty() {
                object.string("name", &root.name);
            }
            object.finish().as_str().to_owned()
        });
        let mut result = ObjectWriter::new();
        result.raw(
            "roots",
            &format!("[{}]", roots.collect::<Vec<_>>().join(",")),
        );
        result.finish()
    }

    fn elicitation(&self, params: &RawJson, told: Abilities) -> Result<NewQuestion, Unanswered> {
        let text = |name: &str| params.get(name).and_then(|value| value.read::<String>());
        let (mode, advertised) = match text("mode").as_deref() {
            None | Some("form") => (Mode::Form, told.elicitation_form),
            Some("url") => (Mode::Url, told.elicitation_url),
            Some(_) => return Err(invalid("unknown elicitation mode")),
        };
        if !advertised {
            return Err(invalid("this client does not support the elicitation mode"));
        }
        let message = text("message").ok_or_else(|| invalid("`message` is missing"))?;
        let requested_schema = params
            .get("requestedSchema")
            .map(|schema| schema.as_str().to_owned());
        let url = text("url");
        match mode {
            Mode::Form if requested_schema.is_none() => {
                return Err(invalid("`requestedSchema` is missing"));
            }
            Mode::Url if !url.as_deref().is_some_and(is_web_url) => {
                return Err(invalid("`url` must be an absolute http(s) URL"));
            }
            _ => {}
        }
        Ok(NewQuestion {
            requested_schema: requested_schema.filter(|_| mode == Mode::Form),
            url: url.filter(|_| mode == Mode::Url),
            server_elicitation_id: text("elicitationId").filter(|_| mode == Mode::Url),
            ..self.question(mode, message, params)
        })
    }

    fn question(&self, mode: Mode, message: String, params: &RawJson) -> NewQuestion {
        let About { key, policy } = self.about();
        NewQuestion {
            server: key,
            server_name: self.name.to_string(),
            call_id: None,
            mode,
            message,
            requested_schema: None,
            url: None,
            request: params.as_str().to_owned(),
            server_elicitation_id: None,
            expiry: policy.expiry(mode),
        }
    }

    /// The server says that what was opened for a question is done with.
    pub async fn completed(&self, server_elicitation_id: String) {
        let server = self.about().key;
        match self.inputs.completed(server, server_elicitation_id).await {
            Ok(known) if known.is_empty() => {
                tracing::debug!(
                    "ignored the end of something that was not opened, or is done with"
                );
            }
            Ok(_) => {}
            Err(failure) => {
                tracing::warn!(%failure, "what was opened for a question is done with, and that could not be noted");
            }
        }
    }

    /// Puts a question on the queue that nobody is there to answer, and gives the answer.
    ///
    /// # Errors
    /// As [`Asker::ask`]; declined as [`Asker::encode`].
    pub async fn decline(
        &self,
        method: &str,
        question: NewQuestion,
        call: Option<&CallId>,
    ) -> Result<RawJson, Unanswered> {
        let question = NewQuestion {
            call_id: call.cloned(),
            ..question
        };
        let declining = self.inputs.decline(question);
        declining.await.map_err(Unanswered::Failed)?;
        Self::encode(method, Answer::Decline)
    }

    /// Puts a question on the queue; see [`Inputs::ask`] for `server_gone`.
    ///
    /// # Errors
    /// Failed with the reason of the queue when it does not take the question.
    pub async fn ask(
        &self,
        question: NewQuestion,
        call: Option<&Running>,
        server_gone: Vec<CancellationToken>,
    ) -> Result<Ticket, Unanswered> {
        let question = NewQuestion {
            call_id: call.map(|call| call.call_id.clone()),
            ..question
        };
        let asking = self.inputs.ask(question, server_gone);
        asking.await.map_err(Unanswered::Failed)
    }

    /// Writes the answer to a request of this method as the server expects it: as an `ElicitResult` or a
    /// `CreateMessageResult`.
    ///
    /// # Errors
    /// Declined where the result has no way to say so: what a model should have answered.
    pub fn encode(method: &str, answer: Answer) -> Result<RawJson, Unanswered> {
        if method == method::CREATE_MESSAGE {
            return match answer {
                // It was checked when it was given.
                Answer::Accept(result) => RawJson::parse(result.unwrap_or_default())
                    .map_err(|_| Unanswered::Failed(Error::internal("an answer is not JSON"))),
                Answer::Decline => Err(Unanswered::Declined("User rejected sampling request")),
                Answer::Cancel => Err(Unanswered::Declined(
                    "Nobody answered the sampling request, or it was cancelled",
                )),
            };
        }
        let mut result = ObjectWriter::new();
        match answer {
            Answer::Accept(content) => {
                result.string("action", "accept");
                if let Some(content) = content {
                    result.raw("content", &content);
                }
            }
            Answer::Decline => {
                result.string("action", "decline");
            }
            Answer::Cancel => {
                result.string("action", "cancel");
            }
        }
        Ok(result.finish())
    }
}

fn invalid(message: &str) -> Unanswered {
    Unanswered::Refused(RpcError {
        code: code::INVALID_PARAMS,
        message: message.to_owned(),
        data: None,
    })
}

/// What people may be asked to open; the daemon itself opens nothing.
fn is_web_url(text: &str) -> bool {
    Url::parse(text).is_ok_and(|url| matches!(url.scheme(), "https" | "http") && url.has_host())
}
