//! The accept loop and what surrounds every RPC: caller, deadline, span, log line, graceful end.
//!
//! tonic's own server is not used because it answers `grpc-timeout` with CANCELLED and does not bound streams. Never
//! decodes a message; never waits without a bound while it drains.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::Status;
use tonic::service::Routes;
use tower::Service;
use tracing::{Instrument, Span, debug, debug_span, info_span, warn};

use super::apps::{Apps, Via};
use super::context::RequestContext;
use super::gate::{Gate, Guests, GuestsParts};
use super::meter::{Meter, Metered};
use super::peer::{Known, Met, process_of};
use super::rpc::{Audited, Bounds, Room, Rpc, Watch, WatchedBody, Work};
use super::slots::{Slot, Slots};
use crate::audit::{self, Audit, Trail};
use crate::base::load::Gauge;
use crate::base::{Caller, Deadline};
use crate::error::{Error, Result};
use crate::metrics::Metrics;
use crate::model::origin::Origin;
use crate::traces::Traced;

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
/// How long the RPCs of a connection may still take on which nobody has a valid token.
const HANG_UP: Duration = Duration::from_secs(5);

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    /// A Unix socket: the kernel names the caller.
    Unix(UnixListener),
    /// TCP, behind a gate: tokens name the caller.
    Tcp(TcpListener, Gate),
}

impl Listener {
    async fn accept(&self) -> std::io::Result<Accepted> {
        match self {
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok(Accepted::Unix(stream))
            }
            Self::Tcp(listener, gate) => {
                let (stream, _) = listener.accept().await?;
                stream.set_nodelay(true)?;
                Ok(Accepted::Tcp(stream, gate.clone()))
            }
        }
    }
}

enum Accepted {
    Unix(UnixStream),
    Tcp(TcpStream, Gate),
}

/// Bounds of [`serve`].
#[derive(Clone, Copy, Debug)]
pub struct ServeOptions {
    /// Connections that may be open at the same time, 1 to 65,536; one more is closed at once.
    pub connections: usize,
    /// How many of them one user may have, 1 to `connections`; one more is closed at once.
    pub connections_per_user: usize,
    /// How long running RPCs may go on after the shutdown began.
    pub drain: Duration,
    /// What the listener is.
    pub via: Via,
    /// Largest message, in bytes. One connection may have four of this size unfinished, all together may have sixteen.
    pub message_bytes: usize,
}

/// Who is told of every RPC.
#[derive(Clone, Debug, Default)]
pub struct Observers {
    /// RPCs that change something are written down here when they have ended.
    pub audit: Audit,
    /// Connections are entered here.
    pub apps: Apps,
    /// Every RPC is counted here when it has ended.
    pub metrics: Metrics,
}

/// Serves the routes on the listener until `shutdown` is cancelled. Then it stops accepting, tells every client to go
/// elsewhere (GOAWAY), lets running RPCs finish for `options.drain`, and drops the rest. Streams of health and
/// reflection end at once. Long streams of other services should watch the same token.
///
/// Every task is spawned on `tracker`, every connection is entered with the observers, and every RPC counted in `rpcs`; when this function returns, no connection is left. Dropping the future stops
/// accepting, but leaves open connections to end with `shutdown`.
///
/// # Errors
/// INTERNAL if a number of connections in `options` is out of bounds. A failed accept is logged and tried again.
pub async fn serve(
    listener: Listener,
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
        via: options.via,
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
            Ok(accepted) => acceptor.accept(accepted, &mut slots),
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
    via: Via,
    message_bytes: usize,
    meter: Meter,
}

impl Acceptor {
    /// Serves a connection, if there is a place for it.
    fn accept(&self, accepted: Accepted, slots: &mut Slots) {
        let ended = CancellationToken::new();
        match accepted {
            Accepted::Unix(stream) => {
                let process = match process_of(&stream) {
                    Ok(process) => process,
                    Err(cause) => return warn!(%cause, "connection refused"),
                };
                let caller = Caller::Process(process);
                let Some(slot) = slots.take(&caller.user()) else {
                    return;
                };
                let span = debug_span!(
                    "connection",
                    caller.uid = process.uid,
                    caller.pid = process.pid
                );
                let known = Known::new(&self.observers.apps, caller, &ended, self.via);
                let peer = Peer::Process(Arc::new(known));
                self.serve(stream, peer, (ended, slot), span);
            }
            Accepted::Tcp(stream, gate) => {
                let Some(slot) = slots.take_for_anybody() else {
                    return;
                };
                let guests = Guests::new(GuestsParts {
                    gate,
                    apps: self.observers.apps.clone(),
                    shares: slots.shares(),
                    ended: ended.clone(),
                    tasks: self.tracker.clone(),
                });
                let span = debug_span!("connection", tcp = true);
                self.serve(stream, Peer::Guests(guests), (ended, slot), span);
            }
        }
    }

    fn serve<S>(&self, stream: S, peer: Peer, (ended, slot): (CancellationToken, Slot), span: Span)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let guests = match &peer {
            Peer::Process(_) => None,
            Peer::Guests(guests) => Some(guests.clone()),
        };
        let edge = Edge {
            routes: self.routes.clone(),
            meters: [
                Meter::new(self.message_bytes.saturating_mul(4), "the connection"),
                self.meter.clone(),
            ],
            peer,
            rpcs: self.rpcs.clone(),
            observers: self.observers.clone(),
            shutdown: self.shutdown.clone(),
        };
        let connection = self.http.serve_connection(TokioIo::new(stream), edge);
        let shutdown = self.shutdown.clone();
        let kill = self.kill.clone();
        let task = async move {
            let _slot = slot;
            let _ended = ended.drop_guard();
            let nobody = async {
                match &guests {
                    Some(guests) => guests.nobody().await,
                    None => std::future::pending().await,
                }
            };
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
                () = nobody => {
                    debug!("nobody on the connection has a valid token");
                    connection.as_mut().graceful_shutdown();
                    tokio::select! {
                        ended = connection.as_mut() => ended,
                        () = tokio::time::sleep(HANG_UP) => Ok(()),
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

/// Who is at the other end of a connection.
enum Peer {
    Process(Arc<Known>),
    Guests(Guests),
}

/// What one connection does with each request.
struct Edge {
    routes: Routes,
    meters: [Meter; 2],
    peer: Peer,
    /// What counts the RPCs of all connections.
    rpcs: Gauge,
    observers: Observers,
    shutdown: CancellationToken,
}

impl Edge {
    /// How the RPC is to be audited, if it is.
    fn audited(&self, path: &str, known: &Known, request_id: &str) -> Option<Audited> {
        let audit = &self.observers.audit;
        let event = audit.is_on().then(|| audit::event_of(path))??;
        let origin = Origin::of(&known.caller, known.program(), request_id);
        Some(Audited {
            audit: audit.clone(),
            event,
            trail: Trail::new(origin),
        })
    }

    fn counted(&self, path: &str) -> Option<(Metrics, String)> {
        let metrics = &self.observers.metrics;
        metrics.is_on().then(|| (metrics.clone(), path.to_owned()))
    }

    /// An RPC of nobody who is known. It is counted and logged; there is nobody to be audited.
    fn refuse(&self, path: &str, error: Error) -> Rpc {
        let mut watch = Watch::new(
            info_span!("rpc", rpc = path),
            [Some(self.rpcs.enter()), None],
        );
        watch.counted = self.counted(path);
        Rpc {
            room: None,
            work: Work::Refused(Some(Status::from(error))),
            watch: Some(watch),
            bounds: Bounds::default(),
        }
    }
}

impl hyper::service::Service<Request<Incoming>> for Edge {
    type Response = Response<WatchedBody>;
    type Error = Infallible;
    type Future = Rpc;

    fn call(&self, mut request: Request<Incoming>) -> Rpc {
        let met = match &self.peer {
            Peer::Process(known) => Ok(Met {
                known: Arc::clone(known),
                valid: None,
            }),
            Peer::Guests(guests) => guests.meet(&mut request),
        };
        let Met { known, valid } = match met {
            Ok(met) => met,
            Err(error) => return self.refuse(request.uri().path(), error),
        };
        let (caller, path) = (&known.caller, request.uri().path());
        let mut context = RequestContext::from_headers(caller, &known.app, request.headers());
        let request_id = context.as_ref().map_or("", |context| &*context.request_id);
        let span = info_span!(
            "rpc",
            rpc = path,
            caller.uid = caller.process().map(|process| process.uid),
            caller.token = caller.bearer().map(|bearer| bearer.id.as_str()),
            request_id,
        );
        let audited = self.audited(path, &known, request_id);
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
        let infrastructure = path.starts_with("/grpc.");
        // Health and reflection are no work of an app's.
        let traced = match &mut context {
            Ok(context) if !infrastructure => {
                let parent = context.traceparent.as_deref();
                let traced = Traced::rpc(path, parent, &context.request_id);
                if let Some(traceparent) = traced.traceparent() {
                    context.traceparent = Some(traceparent.into());
                }
                Some(traced)
            }
            _ => None,
        };
        let counting = [Some(self.rpcs.enter()), Some(known.rpcs().enter())];
        let mut watch = Watch::new(span, counting);
        watch.traced = traced;
        watch.counted = self.counted(path);
        watch.audited = audited;
        let work = match context {
            Ok(mut context) => {
                context.trail = trail;
                request.extensions_mut().insert(context);
                let request = request.map(|body| Metered::new(body, self.meters.clone()));
                Work::Routed(self.routes.clone().call(request))
            }
            Err(error) => Work::Refused(Some(Status::from(error))),
        };
        let shutdown = infrastructure.then(|| self.shutdown.clone());
        Rpc {
            room,
            work,
            watch: Some(watch),
            bounds: Bounds::new(shutdown, valid),
        }
    }
}

#[cfg(test)]
#[path = "serve_tests.rs"]
mod tests;
