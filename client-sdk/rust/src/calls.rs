//! A tool call as a stream of events, and calls as things of their own.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_util::StreamExt;
use tonic::Streaming;

pub use crate::proto::call_tool_stream_response::Event as CallEvent;

use crate::client::{Client, required};
use crate::error::{Error, Result};
use crate::listing::all_pages;
use crate::proto::{
    Call, CallToolStreamResponse, CancelCallRequest, GetCallRequest, ListCallsRequest,
    WaitCallRequest,
};

/// The events of a running call; the last one is [`CallEvent::Result`] or an error. Dropping it cancels the call at
/// the server.
#[derive(Debug)]
pub struct CallStream {
    inner: Option<Streaming<CallToolStreamResponse>>,
}

impl CallStream {
    pub(crate) fn new(inner: Streaming<CallToolStreamResponse>) -> Self {
        Self { inner: Some(inner) }
    }

    /// The next event; `None` after the last one. Cancel-safe: no event is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Result<CallEvent>> {
        StreamExt::next(self).await
    }
}

impl Stream for CallStream {
    type Item = Result<CallEvent>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Some(inner) = &mut self.inner else {
                return Poll::Ready(None);
            };
            let item = match ready!(inner.poll_next_unpin(cx)) {
                // An event of a newer contract.
                Some(Ok(CallToolStreamResponse { event: None })) => continue,
                Some(Ok(CallToolStreamResponse { event: Some(event) })) => Ok(event),
                Some(Err(status)) => Err(Error::from(status)),
                None => Err(Error::Contract("the call's stream ended without a result")),
            };
            if matches!(item, Ok(CallEvent::Result(_)) | Err(_)) {
                self.inner = None;
            }
            return Poll::Ready(Some(item));
        }
    }
}

/// Calls as things of their own.
impl Client {
    /// One call, with what came of it if it has ended.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::CALL_NOT_FOUND`] if it was not kept, or its end is long past.
    pub async fn get_call(&self, id: impl Into<String>) -> Result<Call> {
        let request = self.request(GetCallRequest {
            namespace: self.namespace().to_owned(),
            call_id: id.into(),
            ..Default::default()
        });
        required(self.calls().get_call(request).await?.into_inner().call)
    }

    /// Waits for the end of a call, as long as the daemon lets one request wait: look at its state, and wait again.
    ///
    /// # Errors
    ///
    /// See [`Client::get_call`].
    pub async fn wait_call(&self, id: impl Into<String>) -> Result<Call> {
        let request = self.request(WaitCallRequest {
            namespace: self.namespace().to_owned(),
            call_id: id.into(),
            ..Default::default()
        });
        required(self.calls().wait_call(request).await?.into_inner().call)
    }

    /// Cancels a call.
    ///
    /// # Errors
    ///
    /// See [`Client::get_call`]; [`crate::Reason::ALREADY_RESOLVED`] if it has ended.
    pub async fn cancel_call(&self, id: impl Into<String>) -> Result<()> {
        let request = self.request(CancelCallRequest {
            namespace: self.namespace().to_owned(),
            call_id: id.into(),
        });
        self.calls().cancel_call(request).await?;
        Ok(())
    }

    /// One call by the `request_id` that its app gave it, with what came of it if it has ended.
    ///
    /// # Errors
    ///
    /// See [`Client::get_call`].
    pub async fn get_call_of_request(&self, request_id: impl Into<String>) -> Result<Call> {
        let request = self.request(GetCallRequest {
            namespace: self.namespace().to_owned(),
            request_id: request_id.into(),
            ..Default::default()
        });
        required(self.calls().get_call(request).await?.into_inner().call)
    }

    /// The calls of the namespace that have not ended, oldest first.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_calls(&self) -> Result<Vec<Call>> {
        self.list_calls_with(ListCallsRequest::default()).await
    }

    /// The calls that match the filters of the request, oldest first.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_calls_with(&self, mut request: ListCallsRequest) -> Result<Vec<Call>> {
        self.fill(&mut request.namespace);
        let request = &request;
        let listing = all_pages(|page_token| async move {
            let request = self.request(ListCallsRequest {
                page_token,
                ..request.clone()
            });
            let answer = self.calls().list_calls(request).await?.into_inner();
            Ok((answer.calls, Vec::new(), answer.next_page_token))
        });
        Ok(listing.await?.items)
    }
}
