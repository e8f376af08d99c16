//! The accept loop and what surrounds every RPC: caller, deadline, span, log line, graceful end.
//!
//! tonic's own server is not used because it answers `grpc-timeout` with CANCELLED and does not bound streams. Never
//! decodes a message; never waits without a bound while it drains.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tokio_util::task::TaskTracker;
use tonic::body::Body;
use tonic::service::Routes;
use tonic::{Code, Status};
use tonic_types::StatusExt;
use tower::Service;
use tracing::{Instrument, Span, debug, debug_span, info, info_span, warn};

use super::context::RequestContext;
use super::meter::{Meter, Metered};
use super::peer::{caller_of, program_of};
use super::slots::{Slot, Slots};
use super::status::refused_by_library;
use crate::audit::{self, Audit, Trail};
use crate::base::load::{Counted, Gauge};
use crate::base::{AppConnection, Caller, Clock, Deadline};
use crate::error::{Error, Reason, Result};
use crate::metrics::Metrics;
use crate::model::origin::Origin;

/// RPCs that one connection may run at the same time; more wait in the client.
const STREAMS_PER_CONNECTION: u32 = 4_096;
/// Streams that a client may reset before or while they are served, until the connection counts as hostile. The usual
/// defaults (20 and 1,024) end the channel of an honest app that cancels many calls at once.
const RESETS_PER_CONNECTION: usize = 16_384;
/// Bytes that a client may send ahead per stream, and per connection.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;
/// Bytes that are buffered per stream for a client that reads slowly.
const SEND_BUFFER: usize = 1024 * 1024;
/// Largest HTTP/2 frame that is accepted, in bytes.
const FRAME: u32 = 256 * 1024;
/// Size of the headers of one request, in bytes.
const HEADERS: u32 = 64 * 1024;
/// When an idle connection is pinged, and how long the answer may take.
const PING_INTERVAL: Duration = Duration::from_mins(1);
const PING_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause after a failed accept, for example when the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Bounds of [`serve`].
#[derive(Clone, Copy, Debug)]
pub struct ServeOptions {
    /// Connections that may be open at the same time, 1 to 65,536; one more is closed at once.
    pub connections: usize,
    /// How many of them one user may have, 1 to `connections`; one more is closed at once.
    pub connections_per_user: usize,
    /// How long running RPCs may go on after the shutdown began.
    pub drain: Duration,
    /// Largest message, in bytes. One connection may have four of this size unfinished, all together may have sixteen.
    pub message_bytes: usize,
}

/// Who is told of every RPC.
#[derive(Clone, Debug, Default)]
pub struct Observers {
    /// RPCs that change something are written down here when they have ended.
    pub audit: Audit,
    /// Every RPC is counted here when it has ended.
    pub metrics: Metrics,
}

/// Serves the routes on the listener until `shutdown` is cancelled. Then it stops accepting, tells every client to go
/// elsewhere (GOAWAY), lets running RPCs finish for `options.drain`, and drops the rest. Streams of health and
/// reflection end at once. Long streams of other services should watch the same token.
///
/// Every task is spawned on `tracker` and every RPC is counted in `rpcs`; when this function returns, no connection is left. Dropping the future stops
/// accepting, but leaves open connections to end with `shutdown`.
///
/// # Errors
/// INTERNAL if a number of connections in `options` is out of bounds. A failed accept is logged and tried again.
pub async fn serve(
    listener: UnixListener,
    routes: Routes,
    options: ServeOptions,
    shutdown: CancellationToken,
    tracker: TaskTracker,
    rpcs: Gauge,
    observers: Observers,
) -> Result<()> {
    let mut slots = Slots::new(options.connections, options.connections_per_user)?;
    let kill = CancellationToken::new();
    let acceptor = Acceptor {
        http: builder(&tracker),
        routes: routes.prepare(),
        shutdown: shutdown.clone(),
        kill: kill.clone(),
        tracker,
        rpcs,
        observers,
        message_bytes: options.message_bytes,
        meter: Meter::new(options.message_bytes.saturating_mul(16), "the daemon"),
    };
    loop {
        let accepted = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => match caller_of(&stream) {
                Ok(caller) => {
                    if let Some(slot) = slots.take(caller.uid) {
                        acceptor.accept(stream, caller, slot);
                    }
                }
                Err(cause) => warn!(%cause, "connection refused"),
            },
            Err(cause) => {
                warn!(%cause, "accept failed");
                tokio::select! {
                    () = shutdown.cancelled() => break,
                    () = tokio::time::sleep(ACCEPT_PAUSE) => {}
                }
            }
        }
    }
    drop(listener);
    if tokio::time::timeout(options.drain, slots.all_free())
        .await
        .is_err()
    {
        warn!(
            connections = slots.open(),
            "drain is over; the remaining connections are dropped"
        );
        kill.cancel();
        slots.all_free().await;
    }
    Ok(())
}

/// Runs hyper's tasks where shutdown can wait for them.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    fn execute(&self, task: F) {
        self.0.spawn(task);
    }
}

fn builder(tracker: &TaskTracker) -> http2::Builder<Tracked> {
    let mut http = http2::Builder::new(Tracked(tracker.clone()));
    http.timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_PER_CONNECTION)
        .max_pending_accept_reset_streams(RESETS_PER_CONNECTION)
        .max_local_error_reset_streams(RESETS_PER_CONNECTION)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER)
        .max_frame_size(FRAME)
        .max_header_list_size(HEADERS)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT)
        .auto_date_header(false);
    http
}

struct Acceptor {
    http: http2::Builder<Tracked>,
    routes: Routes,
    shutdown: CancellationToken,
    kill: CancellationToken,
    tracker: TaskTracker,
    rpcs: Gauge,
    observers: Observers,
    message_bytes: usize,
    meter: Meter,
}

impl Acceptor {
    fn accept(&self, stream: UnixStream, caller: Caller, slot: Slot) {
        let ended = CancellationToken::new();
        let edge = Edge {
            routes: self.routes.clone(),
            meters: [
                Meter::new(self.message_bytes.saturating_mul(4), "the connection"),
                self.meter.clone(),
            ],
            app: AppConnection::new(caller, ended.clone()),
            rpcs: self.rpcs.clone(),
            program: if self.observers.audit.is_on() {
                program_of(caller)
            } else {
                None
            },
            observers: self.observers.clone(),
            shutdown: self.shutdown.clone(),
        };
        let connection = self.http.serve_connection(TokioIo::new(stream), edge);
        let shutdown = self.shutdown.clone();
        let kill = self.kill.clone();
        let span = debug_span!(
            "connection",
            caller.uid = caller.uid,
            caller.pid = caller.pid
        );
        let task = async move {
            let _slot = slot;
            let _ended = ended.drop_guard();
            let mut connection = std::pin::pin!(connection);
            let ended = tokio::select! {
                ended = connection.as_mut() => ended,
                () = shutdown.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        ended = connection.as_mut() => ended,
                        () = kill.cancelled() => Ok(()),
                    }
                }
            };
            if let Err(cause) = ended {
                debug!(%cause, "connection ended with an error");
            }
        };
        self.tracker.spawn(task.instrument(span));
    }
}

/// What one connection does with each request.
struct Edge {
    routes: Routes,
    meters: [Meter; 2],
    app: AppConnection,
    rpcs: Gauge,
    /// What the app is, if somebody wants to know.
    program: Option<String>,
    observers: Observers,
    shutdown: CancellationToken,
}

impl Edge {
    /// How the RPC is to be audited, if it is.
    fn audited(&self, path: &str, request_id: &str) -> Option<Audited> {
        let audit = &self.observers.audit;
        let event = audit.is_on().then(|| audit::event_of(path))??;
        let caller = self.app.caller();
        Some(Audited {
            audit: audit.clone(),
            event,
            trail: Trail::new(Origin {
                uid: caller.uid,
                gid: caller.gid,
                pid: caller.pid,
                program: self.program.clone(),
                rpc_id: request_id.to_owned(),
            }),
        })
    }
}

/// An RPC that is written down when it has ended.
struct Audited {
    audit: Audit,
    event: String,
    trail: Trail,
}

impl hyper::service::Service<Request<Incoming>> for Edge {
    type Response = Response<WatchedBody>;
    type Error = Infallible;
    type Future = Rpc;

    fn call(&self, mut request: Request<Incoming>) -> Rpc {
        let context = RequestContext::from_headers(&self.app, request.headers());
        let request_id = context.as_ref().map_or("", |context| &*context.request_id);
        let span = info_span!(
            "rpc",
            rpc = request.uri().path(),
            caller.uid = self.app.caller().uid,
            request_id,
        );
        let audited = self.audited(request.uri().path(), request_id);
        let (mut room, mut trail) = (None, None);
        if let Some(audited) = &audited {
            trail = Some(audited.trail.clone());
            if audited.audit.is_full() {
                let deadline = context
                    .as_ref()
                    .map_or(Deadline::NONE, |context| context.deadline);
                let waiting: Room = Box::pin(audited.audit.clone().room(deadline));
                room = Some(waiting);
            }
        }
        let infrastructure = request.uri().path().starts_with("/grpc.");
        let watch = Watch {
            span,
            started: Clock.now(),
            ended: false,
            counted: self.observers.metrics.is_on().then(|| {
                let path = request.uri().path().to_owned();
                (self.observers.metrics.clone(), path)
            }),
            audited,
            _counted: self.rpcs.enter(),
        };
        let work = match context {
            Ok(mut context) => {
                context.trail = trail;
                request.extensions_mut().insert(context);
                let request = request.map(|body| Metered::new(body, self.meters.clone()));
                Work::Routed(self.routes.clone().call(request))
            }
            Err(error) => Work::Refused(Some(Status::from(error))),
        };
        Rpc {
            room,
            work,
            watch: Some(watch),
            shutdown: infrastructure.then(|| self.shutdown.clone()),
        }
    }
}

#[expect(
    clippy::large_enum_variant,
    reason = "the large variant is the usual one, and a box would cost every RPC an allocation"
)]
enum Work {
    Routed(<Routes as Service<Request<Metered<Incoming>>>>::Future),
    Refused(Option<Status>),
}

/// Waits for room in the audit log.
type Room = Pin<Box<dyn Future<Output = Result<()>> + Send>>;

/// One RPC until its response headers.
struct Rpc {
    /// What it waits for before it begins.
    room: Option<Room>,
    work: Work,
    watch: Option<Watch>,
    shutdown: Option<CancellationToken>,
}

impl Future for Rpc {
    type Output = Result<Response<WatchedBody>, Infallible>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
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
        if let Some(status) = explained(response.headers()) {
            response = status.into_http();
        }
        let mut watch = this.watch.take();
        if let (Some(code), Some(watch)) = (code_in(response.headers()), &mut watch) {
            watch.end(code, || Status::from_header_map(response.headers()));
        }
        let until = this.shutdown.take();
        Poll::Ready(Ok(response.map(|inner| WatchedBody {
            inner: Some(inner),
            watch,
            until: until.map(|token| Box::pin(token.cancelled_owned())),
        })))
    }
}

/// The refusals of the gRPC library itself, with the details that every other error has.
fn explained(headers: &HeaderMap) -> Option<Status> {
    let status = Status::from_header_map(headers).filter(|status| status.details().is_empty())?;
    refused_by_library(status.code(), status.message()).map(Status::from)
}

/// The status in headers or trailers.
fn code_in(headers: &HeaderMap) -> Option<Code> {
    let value = headers.get(Status::GRPC_STATUS)?;
    Some(Code::from_bytes(value.as_bytes()))
}

/// A response body that notes the status at its end, and ends itself with the shutdown if `until` is set.
struct WatchedBody {
    inner: Option<Body>,
    watch: Option<Watch>,
    until: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
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
            Poll::Pending => {
                let Some(until) = &mut this.until else {
                    return Poll::Pending;
                };
                std::task::ready!(until.as_mut().poll(cx));
                this.inner = None;
                let status = Status::from(Error::new(Reason::Draining, "the daemon is stopping"));
                let mut trailers = HeaderMap::new();
                status.add_header(&mut trailers)?;
                if let Some(watch) = &mut this.watch {
                    watch.end(status.code(), || Some(status));
                }
                Poll::Ready(Some(Ok(Frame::trailers(trailers))))
            }
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
struct Watch {
    span: Span,
    started: Instant,
    ended: bool,
    /// Where it is counted, by its path.
    counted: Option<(Metrics, String)>,
    audited: Option<Audited>,
    _counted: Counted,
}

impl Watch {
    fn end(&mut self, code: Code, status: impl FnOnce() -> Option<Status>) {
        if std::mem::replace(&mut self.ended, true) {
            return;
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
            Code::Ok | Code::Cancelled => debug!(status, elapsed_us, "rpc ended"),
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

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
