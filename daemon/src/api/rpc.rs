//! One RPC from its request to the end of its response: what it waits for, what ends it before its time, and how its end is
//! told: to the log, the metrics, the trace and the audit log.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tonic_types::StatusExt;
use tower::Service;
use tracing::{Span, debug, info, warn};

use super::gate::no_longer_valid;
use super::meter::Metered;
use super::status::explained;
use crate::audit::{self, Audit, Trail};
use crate::base::Clock;
use crate::base::load::Counted;
use crate::error::{Error, Reason, Result};
use crate::metrics::Metrics;
use crate::traces::Traced;

/// An RPC that is written down when it has ended.
pub(super) struct Audited {
    pub(super) audit: Audit,
    pub(super) event: String,
    pub(super) trail: Trail,
}

#[expect(
    clippy::large_enum_variant,
    reason = "the large variant is the usual one, and a box would cost every RPC an allocation"
)]
pub(super) enum Work {
    Routed(<Routes as Service<Request<Metered<Incoming>>>>::Future),
    Refused(Option<Status>),
}

/// Waits for room in the audit log.
pub(super) type Room = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// What ends an RPC before its time.
#[derive(Default)]
pub(super) struct Bounds {
    /// The daemon stops; for streams that would not end by themselves.
    shutdown: Option<Wait>,
    /// The token of the caller is no longer valid.
    token: Option<Wait>,
}

impl Bounds {
    /// Those that there are: cancelled when the daemon stops, and when the caller's token is no longer valid.
    pub(super) fn new(
        shutdown: Option<CancellationToken>,
        token: Option<CancellationToken>,
    ) -> Self {
        let wait = |it: CancellationToken| -> Wait { Box::pin(it.cancelled_owned()) };
        Self {
            shutdown: shutdown.map(wait),
            token: token.map(wait),
        }
    }
}

/// Completes when something is cancelled.
type Wait = Pin<Box<WaitForCancellationFutureOwned>>;

fn is_over(wait: &mut Option<Wait>, cx: &mut Context<'_>) -> bool {
    let over = wait.as_mut().map(|wait| wait.as_mut().poll(cx));
    let over = over.is_some_and(|polled| polled.is_ready());
    if over {
        *wait = None;
    }
    over
}

/// One RPC until its response headers.
pub(super) struct Rpc {
    /// What it waits for before it begins.
    pub(super) room: Option<Room>,
    pub(super) work: Work,
    pub(super) watch: Option<Watch>,
    pub(super) bounds: Bounds,
}

impl Future for Rpc {
    type Output = Result<Response<WatchedBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        if is_over(&mut this.bounds.token, cx) {
            this.room = None;
            this.work = Work::Refused(Some(no_longer_valid().into()));
        }
        if let Some(room) = &mut this.room {
            let room = std::task::ready!(room.as_mut().poll(cx));
            this.room = None;
            if let Err(error) = room {
                this.work = Work::Refused(Some(error.into()));
            }
        }
        let polled = {
            let _entered = this.watch.as_ref().map(|watch| watch.span.enter());
            match &mut this.work {
                Work::Routed(future) => Pin::new(future).poll(cx),
                Work::Refused(status) => {
                    let status = status.take().unwrap_or_else(|| Status::internal(""));
                    Poll::Ready(Ok(status.into_http::<Body>()))
                }
            }
        };
        let mut response = std::task::ready!(polled)?;
        let refused = Status::from_header_map(response.headers());
        if let Some(status) = refused.as_ref().and_then(explained) {
            response = status.into_http();
        }
        let mut watch = this.watch.take();
        if let (Some(code), Some(watch)) = (code_in(response.headers()), &mut watch) {
            watch.end(code, || Status::from_header_map(response.headers()));
        }
        let bounds = std::mem::take(&mut this.bounds);
        Poll::Ready(Ok(response.map(|inner| WatchedBody {
            inner: Some(inner),
            watch,
            bounds,
        })))
    }
}

/// The status in headers or trailers.
fn code_in(headers: &HeaderMap) -> Option<Code> {
    let value = headers.get(Status::GRPC_STATUS)?;
    Some(Code::from_bytes(value.as_bytes()))
}

/// A response body that notes the status at its end, and ends itself at its bounds.
pub(super) struct WatchedBody {
    inner: Option<Body>,
    watch: Option<Watch>,
    bounds: Bounds,
}

impl WatchedBody {
    /// Ends the body with a status.
    fn end(&mut self, error: Error) -> Result<Frame<Bytes>, Status> {
        self.inner = None;
        let status = Status::from(error);
        let mut trailers = HeaderMap::new();
        status.add_header(&mut trailers)?;
        if let Some(watch) = &mut self.watch {
            watch.end(status.code(), || Some(status));
        }
        Ok(Frame::trailers(trailers))
    }
}

impl http_body::Body for WatchedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = &mut *self;
        let Some(inner) = &mut this.inner else {
            return Poll::Ready(None);
        };
        // First: a stream that always has something must end too.
        if is_over(&mut this.bounds.token, cx) {
            return Poll::Ready(Some(this.end(no_longer_valid())));
        }
        let polled = {
            let _entered = this.watch.as_ref().map(|watch| watch.span.enter());
            Pin::new(inner).poll_frame(cx)
        };
        match polled {
            Poll::Ready(frame) => {
                let code = match &frame {
                    Some(Ok(frame)) => frame.trailers_ref().and_then(code_in),
                    Some(Err(status)) => Some(status.code()),
                    None => Some(Code::Ok),
                };
                if let (Some(code), Some(watch)) = (code, &mut this.watch) {
                    watch.end(code, || match &frame {
                        Some(Ok(frame)) => Status::from_header_map(frame.trailers_ref()?),
                        Some(Err(status)) => Some(status.clone()),
                        None => None,
                    });
                }
                Poll::Ready(frame)
            }
            Poll::Pending if is_over(&mut this.bounds.shutdown, cx) => {
                let error = Error::new(Reason::Draining, "the daemon is stopping");
                Poll::Ready(Some(this.end(error)))
            }
            Poll::Pending => Poll::Pending,
        }
    }

    fn is_end_stream(&self) -> bool {
        self.inner.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.inner
            .as_ref()
            .map_or_else(SizeHint::default, Body::size_hint)
    }
}

/// Logs the end of an RPC once: quietly if it went well, louder if it did not. Dropped before the end, the caller
/// went away.
pub(super) struct Watch {
    pub(super) traced: Option<Traced>,
    span: Span,
    started: Instant,
    ended: bool,
    /// Where it is counted, by its path.
    pub(super) counted: Option<(Metrics, String)>,
    pub(super) audited: Option<Audited>,
    _counted: [Option<Counted>; 2],
}

impl Watch {
    /// Of an RPC that begins now, and is counted there while it is under way.
    pub(super) fn new(span: Span, counting: [Option<Counted>; 2]) -> Self {
        Self {
            traced: None,
            span,
            started: Clock.now(),
            ended: false,
            counted: None,
            audited: None,
            _counted: counting,
        }
    }

    fn end(&mut self, code: Code, status: impl FnOnce() -> Option<Status>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
        }
        if let Some(traced) = self.traced.take() {
            traced.status(code.into());
        }
        let elapsed = Clock.now().saturating_duration_since(self.started);
        if let Some((metrics, path)) = &self.counted {
            metrics.rpc(path, name_of(code), elapsed);
        }
        if let Some(audited) = self.audited.take() {
            let reason = match code {
                Code::Ok => audit::OK.to_owned(),
                code => status()
                    .and_then(|status| reason_in(&status))
                    .unwrap_or_else(|| reason_of(code).to_owned()),
            };
            let Audited {
                audit,
                event,
                trail,
            } = audited;
            audit.rpc(&trail, &event, &reason, elapsed);
        }
        let (status, elapsed_us) = (format_args!("{code:?}"), elapsed.as_micros());
        let _entered = self.span.enter();
        match code {
            // The gate tells of refusals by itself, within bounds: anybody on the host can ask for any number of them.
            Code::Ok | Code::Cancelled | Code::Unauthenticated => {
                debug!(status, elapsed_us, "rpc ended");
            }
            Code::Internal | Code::DataLoss => warn!(status, elapsed_us, "rpc ended"),
            _ => info!(status, elapsed_us, "rpc ended"),
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.end(Code::Cancelled, || None);
    }
}

/// A code as the gRPC specification writes it.
fn name_of(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

/// The reason code that a status has in its details.
fn reason_in(status: &Status) -> Option<String> {
    let details = status.get_error_details();
    details.error_info().map(|info| info.reason.clone())
}

/// The reason of a status without details, which is not ours, or of none.
fn reason_of(code: Code) -> &'static str {
    let reason = match code {
        Code::Cancelled => Reason::Cancelled,
        Code::DeadlineExceeded => Reason::DeadlineExceeded,
        Code::Unimplemented => Reason::NotSupported,
        Code::InvalidArgument => Reason::InvalidField,
        _ => Reason::Internal,
    };
    reason.as_str()
}
