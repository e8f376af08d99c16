//! `SamplingService`: what servers want to be asked of a language model.

use mcp_sidecar_proto::v1;
use tonic::{Request, Response, Status};
use v1::respond_sampling_request::Action;
use v1::sampling_service_server::SamplingService;

use super::Shared;
use super::context::RequestContext;
use super::elicitations::{PageRequest, answered, list};
use super::{input, model_request};
use crate::base::ElicitationId;
use crate::error::{Error, Result};
use crate::model::question::{Answer, Mode};

/// The service.
#[derive(Clone, Debug)]
pub struct Sampling(pub Shared);

fn request_id(id: &str) -> Result<ElicitationId> {
    let hint = "name a request; ListSamplingRequests shows them";
    input::named(id, "sampling_request_id", hint).map(ElicitationId::new)
}

#[tonic::async_trait]
impl SamplingService for Sampling {
    async fn list_sampling_requests(
        &self,
        request: Request<v1::ListSamplingRequestsRequest>,
    ) -> Result<Response<v1::ListSamplingRequestsResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let page = PageRequest {
            namespace: &request.namespace,
            server_ids: &request.server_ids,
            states: &request.states,
            page_size: request.page_size,
            page_token: request.page_token,
        };
        let (found, next_page_token) = list(&self.0, &context, Mode::SAMPLING, page).await?;
        Ok(Response::new(v1::ListSamplingRequestsResponse {
            sampling_requests: found.into_iter().map(model_request::shown).collect(),
            next_page_token,
        }))
    }

    async fn get_sampling_request(
        &self,
        request: Request<v1::GetSamplingRequestRequest>,
    ) -> Result<Response<v1::GetSamplingRequestResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        let id = request_id(&request.sampling_request_id)?;
        let found = self.0.inputs.get(Mode::SAMPLING, namespace, id);
        let found = context.within(found).await?;
        Ok(Response::new(v1::GetSamplingRequestResponse {
            sampling_request: Some(model_request::shown(found)),
        }))
    }

    async fn respond_sampling(
        &self,
        request: Request<v1::RespondSamplingRequest>,
    ) -> Result<Response<v1::RespondSamplingResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        let id = request_id(&request.sampling_request_id)?;
        let answer = match request.action {
            Some(Action::Accept(accept)) => Answer::Accept(Some(accept.result_json)),
            Some(Action::Reject(_)) => Answer::Decline,
            None => return Err(Error::invalid("action", "give `accept` or `reject`").into()),
        };
        let ended = answered(&self.0, &context, Mode::SAMPLING, (namespace, id), answer);
        Ok(Response::new(v1::RespondSamplingResponse {
            sampling_request: Some(model_request::shown(ended.await?)),
        }))
    }
}
