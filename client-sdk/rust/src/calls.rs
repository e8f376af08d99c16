//! A tool call as a stream of events.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_util::StreamExt;
use tonic::Streaming;

pub use crate::proto::call_tool_stream_response::Event as CallEvent;

use crate::error::{Error, Result};
use crate::proto::CallToolStreamResponse;

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
