//! Short forms for apps that have a language model.

use tonic::Status;

use crate::clients::Clients;
use crate::v1::respond_sampling_request::Action;
use crate::v1::{self, SamplingRequest};

impl Clients {
    /// Gives a server the answer of a model.
    pub async fn sampled(&self, id: &str, result: &str) -> Result<SamplingRequest, Status> {
        let result_json = result.to_owned();
        let accept = Action::Accept(v1::AcceptSampling { result_json });
        self.respond_sampling(id, Some(accept)).await
    }

    /// Refuses to ask a model.
    pub async fn reject_sampling(&self, id: &str) -> Result<SamplingRequest, Status> {
        let reject = Action::Reject(v1::RejectSampling {});
        self.respond_sampling(id, Some(reject)).await
    }

    /// RespondSampling.
    pub async fn respond_sampling(
        &self,
        id: &str,
        action: Option<Action>,
    ) -> Result<SamplingRequest, Status> {
        let request = v1::RespondSamplingRequest {
            namespace: self.namespace(),
            sampling_request_id: id.to_owned(),
            action,
        };
        let answer = self.sampling().respond_sampling(request).await?;
        let request = answer.into_inner().sampling_request;
        Ok(request.expect("RespondSampling returns the request"))
    }

    /// GetSamplingRequest.
    pub async fn sampling_request(&self, id: &str) -> Result<SamplingRequest, Status> {
        let request = v1::GetSamplingRequestRequest {
            namespace: self.namespace(),
            sampling_request_id: id.to_owned(),
        };
        let answer = self.sampling().get_sampling_request(request).await?;
        let request = answer.into_inner().sampling_request;
        Ok(request.expect("GetSamplingRequest returns the request"))
    }

    /// All requests of the namespace that wait for the answer of a model, in pages of this size.
    pub async fn sampling_requests(&self, page_size: u32) -> Vec<SamplingRequest> {
        let mut request = v1::ListSamplingRequestsRequest {
            namespace: self.namespace(),
            page_size,
            ..Default::default()
        };
        let mut all = Vec::new();
        loop {
            let page = self
                .sampling()
                .list_sampling_requests(request.clone())
                .await;
            let page = page.expect("ListSamplingRequests").into_inner();
            assert!(page.sampling_requests.len() <= page_size as usize);
            all.extend(page.sampling_requests);
            if page.next_page_token.is_empty() {
                return all;
            }
            request.page_token = page.next_page_token;
        }
    }

    /// All questions of the namespace that wait for an answer, in pages of this size.
    pub async fn pending_questions(&self, page_size: u32) -> Vec<v1::Elicitation> {
        let mut request = v1::ListElicitationsRequest {
            namespace: self.namespace(),
            page_size,
            ..Default::default()
        };
        let mut all = Vec::new();
        loop {
            let page = self.elicitations().list_elicitations(request.clone()).await;
            let page = page.expect("ListElicitations").into_inner();
            assert!(page.elicitations.len() <= page_size as usize);
            all.extend(page.elicitations);
            if page.next_page_token.is_empty() {
                return all;
            }
            request.page_token = page.next_page_token;
        }
    }
}
