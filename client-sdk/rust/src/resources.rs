//! Resources: listed, read and followed.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_util::StreamExt;
use tonic::Streaming;

use crate::client::Client;
use crate::error::{Error, Result};
use crate::listing::{Listing, all_pages};
use crate::proto::subscribe_resource_response::Event;
use crate::proto::{
    ListResourceTemplatesRequest, ListResourcesRequest, ReadResourceRequest, ReadResourceResponse,
    Resource, ResourceTemplate, SubscribeResourceRequest, SubscribeResourceResponse,
};

/// Resources.
impl Client {
    /// All resources of all servers of the namespace.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_resources(&self) -> Result<Listing<Resource>> {
        all_pages(|page_token| async move {
            let request = self.request(ListResourcesRequest {
                namespace: self.namespace().to_owned(),
                page_token,
                ..Default::default()
            });
            let answer = self.resources().list_resources(request).await?.into_inner();
            Ok((answer.resources, answer.issues, answer.next_page_token))
        })
        .await
    }

    /// All resource templates of all servers of the namespace.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_resource_templates(&self) -> Result<Listing<ResourceTemplate>> {
        all_pages(|page_token| async move {
            let request = self.request(ListResourceTemplatesRequest {
                namespace: self.namespace().to_owned(),
                page_token,
                ..Default::default()
            });
            let answer = self.resources().list_resource_templates(request).await?;
            let answer = answer.into_inner();
            Ok((
                answer.resource_templates,
                answer.issues,
                answer.next_page_token,
            ))
        })
        .await
    }

    /// Reads a resource from its server.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn read_resource(
        &self,
        server_id: impl Into<String>,
        uri: impl Into<String>,
    ) -> Result<ReadResourceResponse> {
        self.read_resource_with(ReadResourceRequest {
            server_id: server_id.into(),
            uri: uri.into(),
            ..Default::default()
        })
        .await
    }

    /// Reads a resource with further settings, such as a timeout.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn read_resource_with(
        &self,
        mut request: ReadResourceRequest,
    ) -> Result<ReadResourceResponse> {
        self.fill(&mut request.namespace);
        let request = self.request(request);
        Ok(self.resources().read_resource(request).await?.into_inner())
    }

    /// Follows a resource for as long as the stream is read. The client's deadline does not apply.
    ///
    /// # Errors
    ///
    /// See [`Client`]; the stream ends with [`crate::Reason::SERVER_NOT_FOUND`] when the server is removed.
    pub async fn follow_resource(
        &self,
        server_id: impl Into<String>,
        uri: impl Into<String>,
    ) -> Result<ResourceChanges> {
        let request = SubscribeResourceRequest {
            namespace: self.namespace().to_owned(),
            server_id: server_id.into(),
            uri: uri.into(),
        };
        let answer = self.resources().subscribe_resource(request).await?;
        Ok(ResourceChanges {
            inner: Some(answer.into_inner()),
        })
    }
}

/// What happens to a resource that is followed. Dropping it ends the subscription.
#[derive(Debug)]
#[must_use = "streams do nothing unless polled"]
pub struct ResourceChanges {
    inner: Option<Streaming<SubscribeResourceResponse>>,
}

/// An event of [`ResourceChanges`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ResourceChange {
    /// First: changes are announced from now on.
    Subscribed,
    /// The resource has changed, or may have: read it to see how.
    Updated {
        /// The URI that is followed.
        uri: String,
    },
}

impl ResourceChanges {
    /// The next event; `None` only after an error. Cancel-safe: no event is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Result<ResourceChange>> {
        StreamExt::next(self).await
    }
}

impl Stream for ResourceChanges {
    type Item = Result<ResourceChange>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            let Some(inner) = &mut self.inner else {
                return Poll::Ready(None);
            };
            let item = match ready!(inner.poll_next_unpin(cx)) {
                Some(Ok(SubscribeResourceResponse { event })) => match event {
                    Some(Event::Subscribed(_)) => Ok(ResourceChange::Subscribed),
                    Some(Event::Updated(updated)) => {
                        Ok(ResourceChange::Updated { uri: updated.uri })
                    }
                    // An event of a newer contract.
                    None => continue,
                },
                Some(Err(status)) => Err(Error::from(status)),
                None => Err(Error::Contract("the subscription ended without a reason")),
            };
            if item.is_err() {
                self.inner = None;
            }
            return Poll::Ready(Some(item));
        }
    }
}
