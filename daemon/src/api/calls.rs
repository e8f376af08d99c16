//! `CallService`: calls as things of their own.

use mcp_sidecar_proto::v1;
use tonic::{Request, Response, Status};
use v1::call::Outcome;
use v1::call_service_server::CallService;

use super::context::RequestContext;
use super::{Shared, content, convert, input, page, status};
use crate::base::{CallId, Deadline, ServerId};
use crate::calls::{Found, Name};
use crate::error::{Error, Result};
use crate::model::call::{CallState, Subject};

/// Calls of a page by default.
const PAGE: usize = 100;

/// The service.
#[derive(Clone, Debug)]
pub struct Calls(pub Shared);

impl Calls {
    async fn find(
        &self,
        context: &RequestContext,
        namespace: &str,
        call_id: String,
        request_id: &str,
    ) -> Result<Found> {
        let namespace = self.0.namespace(context, namespace)?;
        let name = match (
            call_id.is_empty(),
            input::request_id(request_id, "request_id")?,
        ) {
            (false, None) => Name::Id(CallId::new(call_id)),
            (true, Some(request_id)) => Name::Request(request_id),
            _ => {
                return Err(Error::invalid(
                    "call_id",
                    "name the call: give either `call_id` or `request_id`",
                ));
            }
        };
        context.within(self.0.calls.find(namespace, name)).await
    }

    /// A call with what came of it.
    async fn whole(&self, found: &Found) -> Result<v1::Call> {
        let call = found.call().await?;
        let outcome = found.outcome().map(|outcome| {
            let shown = outcome.and_then(|answer| {
                let id = call.id.to_string();
                Ok(match call.subject {
                    Subject::Tool(_) => {
                        Outcome::ToolResult(content::tool_answer(&answer, &self.0.checker)?)
                    }
                    Subject::Resource(_) => {
                        Outcome::ResourceResult(content::read_resource(&answer.result, id)?)
                    }
                    Subject::Prompt(_) => {
                        Outcome::PromptResult(content::prompt(&answer.result, id)?)
                    }
                })
            });
            shown.unwrap_or_else(|error| Outcome::Error(status::to_call_error(&error)))
        });
        Ok(v1::Call {
            outcome,
            ..convert::call(call)
        })
    }
}

fn state(state: i32) -> Result<CallState> {
    let unknown = || Error::invalid("states", format!("{state} is not a state of a call"));
    Ok(
        match v1::CallState::try_from(state).map_err(|_| unknown())? {
            v1::CallState::Unspecified => return Err(unknown()),
            v1::CallState::Running => CallState::Running,
            v1::CallState::InputRequired => CallState::InputRequired,
            v1::CallState::Completed => CallState::Completed,
            v1::CallState::Failed => CallState::Failed,
            v1::CallState::Cancelled => CallState::Cancelled,
        },
    )
}

#[tonic::async_trait]
impl CallService for Calls {
    async fn get_call(
        &self,
        request: Request<v1::GetCallRequest>,
    ) -> Result<Response<v1::GetCallResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let (namespace, id) = (&request.namespace, request.call_id);
        let found = self.find(&context, namespace, id, &request.request_id);
        let call = Some(self.whole(&found.await?).await?);
        Ok(Response::new(v1::GetCallResponse { call }))
    }

    async fn wait_call(
        &self,
        request: Request<v1::WaitCallRequest>,
    ) -> Result<Response<v1::WaitCallResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let (namespace, id) = (&request.namespace, request.call_id);
        let found = self.find(&context, namespace, id, &request.request_id);
        let found = found.await?;
        let bound = Deadline::after(self.0.wait_max).min(context.deadline);
        tokio::select! {
            biased;
            () = found.wait() => {}
            () = bound.elapsed() => {}
            () = self.0.shutdown.cancelled() => {}
        }
        let call = Some(self.whole(&found).await?);
        Ok(Response::new(v1::WaitCallResponse { call }))
    }

    async fn cancel_call(
        &self,
        request: Request<v1::CancelCallRequest>,
    ) -> Result<Response<v1::CancelCallResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        context.note(|trail| trail.call(&request.call_id));
        let hint = "name a call; ListCalls shows them";
        let id = input::named(&request.call_id, "call_id", hint).map(CallId::new)?;
        self.0.calls.cancel(&namespace, &id).await?;
        Ok(Response::new(v1::CancelCallResponse {}))
    }

    async fn list_calls(
        &self,
        request: Request<v1::ListCallsRequest>,
    ) -> Result<Response<v1::ListCallsResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        let mut states = request
            .states
            .iter()
            .map(|one| state(*one))
            .collect::<Result<Vec<_>>>()?;
        if states.is_empty() {
            states = vec![CallState::Running, CallState::InputRequired];
        }
        let servers = request
            .server_ids
            .iter()
            .map(|id| ServerId::new(id.as_str()))
            .collect();
        let size = page::size(request.page_size, PAGE);
        // Ids sort by time: the last id of a page is where the next one starts.
        let after = (!request.page_token.is_empty()).then(|| CallId::new(request.page_token));
        let calls = &self.0.calls;
        let found = calls.list(namespace, servers, states, after, size + 1);
        let mut found = context.within(found).await?;
        let more = found.len() > size;
        found.truncate(size);
        let last = found
            .last()
            .filter(|_| more)
            .map(|call| call.id.to_string());
        Ok(Response::new(v1::ListCallsResponse {
            calls: found.into_iter().map(convert::call).collect(),
            next_page_token: last.unwrap_or_default(),
        }))
    }
}
