//! A channel that records what comes back, and brings a token.

use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes};
use http::HeaderValue;
use http::header::AUTHORIZATION;
use http_body::Frame;
use tonic::Status;
use tonic::body::Body;
use tonic::transport::Channel;
use tower::Service;

use crate::fake_auth::planted::{Recorded, Tap};

/// A channel, and where its answers are recorded.
#[derive(Clone)]
pub struct Tapped {
    channel: Channel,
    tap: Option<Tap>,
    authorization: Option<HeaderValue>,
}

impl Tapped {
    pub(crate) fn new(
        channel: Channel,
        tap: Option<Tap>,
        authorization: Option<HeaderValue>,
    ) -> Self {
        Self {
            channel,
            tap,
            authorization,
        }
    }
}

impl Service<http::Request<Body>> for Tapped {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut self.channel, cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        if let Some(value) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, value.clone());
        }
        let answer = Service::call(&mut self.channel, request);
        let recorded = self.tap.as_ref().map(Tap::record);
        Box::pin(async move {
            let answer = answer.await?;
            let Some(recorded) = recorded else {
                return Ok(answer);
            };
            note_status(&recorded, answer.headers());
            Ok(answer.map(|body| Body::new(Recording { body, recorded })))
        })
    }
}

/// What an error says, in clear.
fn note_status(recorded: &Recorded, headers: &http::HeaderMap) {
    if let Some(status) = Status::from_header_map(headers) {
        let mut recorded = recorded.lock().unwrap();
        recorded.extend_from_slice(status.message().as_bytes());
        recorded.extend_from_slice(status.details());
    }
}

struct Recording {
    body: Body,
    recorded: Recorded,
}

impl http_body::Body for Recording {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = Pin::new(&mut self.body).poll_frame(cx);
        if let Poll::Ready(Some(Ok(frame))) = &polled {
            if let Some(data) = frame.data_ref() {
                self.recorded
                    .lock()
                    .unwrap()
                    .extend_from_slice(data.chunk());
            }
            if let Some(trailers) = frame.trailers_ref() {
                note_status(&self.recorded, trailers);
            }
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}
