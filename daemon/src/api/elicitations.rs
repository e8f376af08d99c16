//! `ElicitationService`: the questions of servers.

use mcp_sidecar_proto::v1;
use tonic::{Request, Response, Status};
use v1::elicitation_service_server::ElicitationService;

use super::context::RequestContext;
use super::{Shared, convert, input, page};
use crate::audit::Asked;
use crate::base::{ElicitationId, Namespace, ServerId};
use crate::error::{Error, Result};
use crate::model::question::{Answer, Mode, Question, QuestionState};

/// Questions of a page by default.
const PAGE: usize = 100;

/// The service.
#[derive(Clone, Debug)]
pub struct Elicitations(pub Shared);

fn state(state: i32) -> Result<QuestionState> {
    let unknown = || Error::invalid("states", format!("{state} is not a state of a question"));
    Ok(
        match v1::ElicitationState::try_from(state).map_err(|_| unknown())? {
            v1::ElicitationState::Unspecified => return Err(unknown()),
            v1::ElicitationState::Pending => QuestionState::Pending,
            v1::ElicitationState::Answered => QuestionState::Answered,
            v1::ElicitationState::Declined => QuestionState::Declined,
            v1::ElicitationState::Cancelled => QuestionState::Cancelled,
            v1::ElicitationState::Expired => QuestionState::Expired,
            v1::ElicitationState::Void => QuestionState::Void,
        },
    )
}

fn question_id(id: &str) -> Result<ElicitationId> {
    let hint = "name a question; ListElicitations shows them";
    input::named(id, "elicitation_id", hint).map(ElicitationId::new)
}

/// Which questions an app wants to have listed.
pub(super) struct PageRequest<'a> {
    pub(super) namespace: &'a str,
    pub(super) server_ids: &'a [String],
    pub(super) states: &'a [i32],
    pub(super) page_size: u32,
    pub(super) page_token: String,
}

/// A page of questions of these modes, and the token of the next one; empty if there is none.
///
/// # Errors
/// `INVALID_FIELD` for an unknown state; as [`Shared::namespace`] and the queue.
pub(super) async fn list(
    shared: &Shared,
    context: &RequestContext,
    modes: &'static [Mode],
    wanted: PageRequest<'_>,
) -> Result<(Vec<Question>, String)> {
    let namespace = shared.namespace(context, wanted.namespace)?;
    let states = wanted.states.iter().map(|one| state(*one));
    let mut states = states.collect::<Result<Vec<_>>>()?;
    if states.is_empty() {
        states.push(QuestionState::Pending);
    }
    let servers = wanted.server_ids.iter();
    let servers = servers.map(|id| ServerId::new(id.as_str())).collect();
    let size = page::size(wanted.page_size, PAGE);
    // Ids sort by time: the last id of a page is where the next one starts.
    let after = (!wanted.page_token.is_empty()).then(|| ElicitationId::new(wanted.page_token));
    let found = shared
        .inputs
        .list(modes, namespace, servers, states, after, size);
    let (found, more) = context.within(found).await?;
    let last = found.last().filter(|_| more);
    let next = last.map(|question| question.id.to_string());
    Ok((found, next.unwrap_or_default()))
}

/// Answers a question, and has the audit log know which one, and how.
///
/// # Errors
/// As [`Inputs::respond`](crate::inputs::Inputs::respond).
pub(super) async fn answered(
    shared: &Shared,
    context: &RequestContext,
    modes: &'static [Mode],
    (namespace, id): (Namespace, ElicitationId),
    answer: Answer,
) -> Result<Question> {
    let action = match answer {
        Answer::Accept(_) => "accept",
        Answer::Decline => "decline",
        Answer::Cancel => "cancel",
    };
    let asked = |mode| Asked {
        question_id: id.to_string(),
        mode,
        action,
    };
    context.note(|trail| trail.asked(asked(None)));
    let ended = shared
        .inputs
        .respond(modes, namespace, id.clone(), answer)
        .await?;
    context.note(|trail| {
        trail.asked(asked(Some(match ended.mode {
            Mode::Form => "form",
            Mode::Url => "url",
            Mode::Approval => "approval",
            Mode::Sampling => "sampling",
        })));
        trail.server(ended.server.id.as_str());
        if let Some(call) = &ended.call_id {
            trail.call(call.as_str());
        }
    });
    Ok(ended)
}

#[tonic::async_trait]
impl ElicitationService for Elicitations {
    async fn list_elicitations(
        &self,
        request: Request<v1::ListElicitationsRequest>,
    ) -> Result<Response<v1::ListElicitationsResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let page = PageRequest {
            namespace: &request.namespace,
            server_ids: &request.server_ids,
            states: &request.states,
            page_size: request.page_size,
            page_token: request.page_token,
        };
        let (found, next_page_token) = list(&self.0, &context, Mode::ELICITATION, page).await?;
        Ok(Response::new(v1::ListElicitationsResponse {
            elicitations: found.into_iter().map(convert::elicitation).collect(),
            next_page_token,
        }))
    }

    async fn get_elicitation(
        &self,
        request: Request<v1::GetElicitationRequest>,
    ) -> Result<Response<v1::GetElicitationResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        let id = question_id(&request.elicitation_id)?;
        let question = self.0.inputs.get(Mode::ELICITATION, namespace, id);
        let question = context.within(question).await?;
        let elicitation = Some(convert::elicitation(question));
        Ok(Response::new(v1::GetElicitationResponse { elicitation }))
    }

    async fn respond_elicitation(
        &self,
        request: Request<v1::RespondElicitationRequest>,
    ) -> Result<Response<v1::RespondElicitationResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        let id = question_id(&request.elicitation_id)?;
        let action = request.action();
        let answer = match (action, request.content_json) {
            (v1::ElicitationAction::Accept, content) => Answer::Accept(content),
            (v1::ElicitationAction::Decline, None) => Answer::Decline,
            (v1::ElicitationAction::Cancel, None) => Answer::Cancel,
            (v1::ElicitationAction::Decline | v1::ElicitationAction::Cancel, Some(_)) => {
                return Err(
                    Error::invalid("content_json", "only an accepted form has content").into(),
                );
            }
            (v1::ElicitationAction::Unspecified, _) => {
                return Err(Error::invalid("action", "say ACCEPT, DECLINE or CANCEL").into());
            }
        };
        let ended = answered(
            &self.0,
            &context,
            Mode::ELICITATION,
            (namespace, id),
            answer,
        );
        let elicitation = Some(convert::elicitation(ended.await?));
        Ok(Response::new(v1::RespondElicitationResponse {
            elicitation,
        }))
    }
}
