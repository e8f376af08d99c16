//! Requests of servers for an answer of a language model.

use crate::client::{Client, required};
use crate::error::Result;
use crate::listing::all_pages;
use crate::proto::respond_sampling_request::Action;
use crate::proto::{
    AcceptSampling, GetSamplingRequestRequest, ListSamplingRequestsRequest, RejectSampling,
    RespondSamplingRequest, SamplingRequest,
};

/// Sampling.
impl Client {
    /// The pending requests of the namespace for an answer of a model, oldest first.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_sampling_requests(&self) -> Result<Vec<SamplingRequest>> {
        self.list_sampling_requests_with(ListSamplingRequestsRequest::default())
            .await
    }

    /// The requests that match the filters, oldest first.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_sampling_requests_with(
        &self,
        mut request: ListSamplingRequestsRequest,
    ) -> Result<Vec<SamplingRequest>> {
        self.fill(&mut request.namespace);
        let request = &request;
        let listing = all_pages(|page_token| async move {
            let request = self.request(ListSamplingRequestsRequest {
                page_token,
                ..request.clone()
            });
            let answer = self.sampling().list_sampling_requests(request).await?;
            let answer = answer.into_inner();
            Ok((answer.sampling_requests, Vec::new(), answer.next_page_token))
        });
        Ok(listing.await?.items)
    }

    /// One of them.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::SAMPLING_REQUEST_NOT_FOUND`] if its end is long past.
    pub async fn get_sampling_request(&self, id: impl Into<String>) -> Result<SamplingRequest> {
        let request = self.request(GetSamplingRequestRequest {
            namespace: self.namespace().to_owned(),
            sampling_request_id: id.into(),
        });
        let answer = self.sampling().get_sampling_request(request).await?;
        required(answer.into_inner().sampling_request)
    }

    /// Gives the server the answer of a model: a `CreateMessageResult` of MCP as JSON text, passed on as it is.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::INVALID_FIELD`] leaves the request pending,
    /// [`crate::Reason::ALREADY_RESOLVED`] means that it has ended.
    pub async fn accept_sampling(
        &self,
        id: impl Into<String>,
        result_json: impl Into<String>,
    ) -> Result<SamplingRequest> {
        let result_json = result_json.into();
        let accept = Action::Accept(AcceptSampling { result_json });
        self.respond_sampling(id.into(), accept).await
    }

    /// Refuses a request.
    ///
    /// # Errors
    ///
    /// See [`Client::accept_sampling`].
    pub async fn reject_sampling(&self, id: impl Into<String>) -> Result<SamplingRequest> {
        self.respond_sampling(id.into(), Action::Reject(RejectSampling {}))
            .await
    }

    async fn respond_sampling(
        &self,
        sampling_request_id: String,
        action: Action,
    ) -> Result<SamplingRequest> {
        let request = self.request(RespondSamplingRequest {
            namespace: self.namespace().to_owned(),
            sampling_request_id,
            action: Some(action),
        });
        let answer = self.sampling().respond_sampling(request).await?;
        required(answer.into_inner().sampling_request)
    }
}
