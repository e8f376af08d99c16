//! The update stream that repairs itself. Nothing runs in the background: the stream works while it is polled.

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher as _, Hasher as _};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use futures_core::stream::BoxStream;
use futures_util::StreamExt as _;
use futures_util::stream;
use prost_types::Timestamp;
use tonic::{Code, Streaming};

use crate::connection::Connection;
use crate::error::{Error, Reason, Result};
use crate::proto::update_service_client::UpdateServiceClient;
use crate::proto::{
    Call, CanAnswer, Elicitation, SamplingRequest, Server, StreamUpdatesRequest,
    StreamUpdatesResponse, UpdateKind, stream_updates_response, upsert,
};

const FIRST_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_secs(5);
/// The daemon's wish for a longer pause is followed up to here.
const MAX_WISHED_DELAY: Duration = Duration::from_secs(30);

/// What to follow. All filters must hold; an empty one lets everything through.
#[derive(Clone, Default, Debug)]
pub struct UpdateFilter {
    /// Only these namespaces. Empty: the client's. `*`: all that this process may use.
    pub namespaces: Vec<String>,
    /// Only updates about these servers.
    pub server_ids: Vec<String>,
    /// Only updates of these kinds.
    pub kinds: Vec<UpdateKind>,
    /// [`Update::resume_token`] of the last update that was handled, also by an earlier process. Empty: a snapshot.
    pub resume_token: String,
    /// What this app can answer while it follows: servers are told, also after the stream was repaired. `None`: nothing.
    pub can_answer: Option<CanAnswer>,
}

/// One item of [`Updates`].
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Update {
    /// What has happened.
    pub event: UpdateEvent,
    /// Where a later stream can continue; keep it once this update is handled. Empty within a snapshot, which cannot
    /// be resumed, and with [`UpdateEvent::Reset`].
    pub resume_token: String,
    /// Position of the change; grows, with gaps. 0 with [`UpdateEvent::Reset`].
    pub revision: u64,
    /// When the change was committed.
    pub commit_time: Option<Timestamp>,
}

/// What has happened.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub enum UpdateEvent {
    /// The stream could not go on where it was and starts over: forget everything it said. A snapshot follows.
    Reset(ResetCause),
    /// A server is new or has changed; this is its whole new state.
    Server(Box<Server>),
    /// A question is new or has changed; this is its whole new state.
    Elicitation(Box<Elicitation>),
    /// A call that is kept is new or has changed; this is its whole new state, without its outcome.
    Call(Box<Call>),
    /// A request for an answer of a language model is new or has changed; this is its whole new state.
    Sampling(Box<SamplingRequest>),
    /// Something is gone.
    Deleted {
        /// What it was.
        kind: UpdateKind,
        /// The namespace it belonged to.
        namespace: String,
        /// Its id.
        id: String,
    },
    /// Everything that existed has been sent; what follows are changes.
    SnapshotEnd,
    /// Nothing has happened; only the resume token has moved on.
    Bookmark,
}

/// Why the stream starts over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ResetCause {
    /// The daemon no longer keeps the position of the resume token.
    TokenExpired,
    /// The connection was lost within a snapshot.
    SnapshotInterrupted,
}

/// Every change of the daemon's state, in the order of the commits, for as long as it is read.
///
/// After a lost connection or a restart of the daemon the stream reconnects by itself, with a growing pause of at
/// most 5 s (or what the daemon asks for, at most 30 s), and goes on behind the last update: nothing is missed and
/// nothing comes twice. Where that is impossible it says so with [`UpdateEvent::Reset`]. An error is final and only
/// reported for a request that can never succeed, for example a namespace that this process may not use.
///
/// Dropping the stream ends it. Not reading costs the daemon nothing.
#[must_use = "streams do nothing unless polled"]
pub struct Updates {
    inner: BoxStream<'static, Result<Update>>,
}

impl Updates {
    pub(crate) fn new(client: UpdateServiceClient<Connection>, filter: UpdateFilter) -> Self {
        let state = State {
            client,
            request: StreamUpdatesRequest {
                namespaces: filter.namespaces,
                server_ids: filter.server_ids,
                kinds: filter.kinds.into_iter().map(i32::from).collect(),
                resume_token: filter.resume_token,
                can_answer: filter.can_answer,
            },
            link: None,
            in_snapshot: false,
            failures: 0,
            pause: None,
            ended: false,
        };
        Self {
            inner: stream::unfold(state, |mut state| async move {
                let item = state.next().await?;
                Some((item, state))
            })
            .boxed(),
        }
    }

    /// The next update; `None` only after an error. Cancel-safe: no update is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Result<Update>> {
        self.inner.next().await
    }
}

impl Stream for Updates {
    type Item = Result<Update>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.inner.poll_next_unpin(cx)
    }
}

impl fmt::Debug for Updates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Updates").finish_non_exhaustive()
    }
}

struct State {
    client: UpdateServiceClient<Connection>,
    /// `resume_token` is that of the last update that was handed out.
    request: StreamUpdatesRequest,
    link: Option<Streaming<StreamUpdatesResponse>>,
    /// Updates of an unfinished snapshot were handed out.
    in_snapshot: bool,
    /// Failures since the last response.
    failures: u32,
    /// To be waited before the next attempt.
    pause: Option<Duration>,
    /// An error was handed out.
    ended: bool,
}

impl State {
    async fn next(&mut self) -> Option<Result<Update>> {
        if self.ended {
            return None;
        }
        loop {
            let received = if let Some(link) = &mut self.link {
                link.message().await.map_err(Error::from)
            } else {
                if let Some(pause) = self.pause.take() {
                    tokio::time::sleep(pause).await;
                }
                match self.client.stream_updates(self.request.clone()).await {
                    Ok(answer) => {
                        self.link = Some(answer.into_inner());
                        continue;
                    }
                    Err(status) => Err(Error::from(status)),
                }
            };
            match received {
                Ok(Some(response)) => {
                    self.failures = 0;
                    if let Some(update) = self.accept(response) {
                        return Some(Ok(update));
                    }
                }
                // The daemon ends a stream only when it stops.
                Ok(None) => {
                    if let Some(update) = self.lost(None) {
                        return Some(Ok(update));
                    }
                }
                Err(error)
                    if error.reason() == Some(&Reason::RESUME_TOKEN_EXPIRED)
                        && !self.request.resume_token.is_empty() =>
                {
                    self.link = None;
                    self.request.resume_token.clear();
                    return Some(Ok(reset(ResetCause::TokenExpired)));
                }
                Err(error) if is_final(&error) => {
                    self.link = None;
                    self.ended = true;
                    return Some(Err(error));
                }
                Err(error) => {
                    if let Some(update) = self.lost(error.retry_after()) {
                        return Some(Ok(update));
                    }
                }
            }
        }
    }

    /// Takes a response; `None` if it is an event of a newer contract.
    fn accept(&mut self, response: StreamUpdatesResponse) -> Option<Update> {
        let event = event(response.event);
        if response.resume_token.is_empty() {
            self.in_snapshot |= event.is_some();
        } else {
            self.in_snapshot = false;
            self.request.resume_token.clone_from(&response.resume_token);
        }
        Some(Update {
            event: event?,
            resume_token: response.resume_token,
            revision: response.revision,
            commit_time: response.commit_time,
        })
    }

    /// The connection is gone or was refused. An unfinished snapshot is worthless. The daemon's wish is the least
    /// pause and not shortened by chance.
    fn lost(&mut self, wish: Option<Duration>) -> Option<Update> {
        let bound = FIRST_DELAY
            .saturating_mul(1 << self.failures.min(16))
            .min(MAX_DELAY);
        self.failures = self.failures.saturating_add(1);
        let wish = wish.unwrap_or_default().min(MAX_WISHED_DELAY);
        self.pause = Some(wish.max(jittered(bound)));
        self.link = None;
        std::mem::take(&mut self.in_snapshot).then(|| reset(ResetCause::SnapshotInterrupted))
    }
}

/// Between half of the bound and the bound, so that many apps do not come back at the same instant.
fn jittered(bound: Duration) -> Duration {
    let parts = u32::try_from(RandomState::new().build_hasher().finish() % 1024).unwrap_or(0);
    bound / 2 + bound / 2 * parts / 1024
}

fn reset(cause: ResetCause) -> Update {
    Update {
        event: UpdateEvent::Reset(cause),
        resume_token: String::new(),
        revision: 0,
        commit_time: None,
    }
}

/// Whether the same request can never succeed.
fn is_final(error: &Error) -> bool {
    matches!(
        error.code(),
        Some(
            Code::InvalidArgument
                | Code::NotFound
                | Code::PermissionDenied
                | Code::Unauthenticated
                | Code::Unimplemented
                | Code::OutOfRange
        )
    )
}

fn event(event: Option<stream_updates_response::Event>) -> Option<UpdateEvent> {
    Some(match event? {
        stream_updates_response::Event::Upsert(upsert) => match upsert.resource? {
            upsert::Resource::Server(server) => UpdateEvent::Server(Box::new(server)),
            upsert::Resource::Elicitation(elicitation) => {
                UpdateEvent::Elicitation(Box::new(elicitation))
            }
            upsert::Resource::Call(call) => UpdateEvent::Call(Box::new(call)),
            upsert::Resource::SamplingRequest(request) => UpdateEvent::Sampling(Box::new(request)),
        },
        stream_updates_response::Event::Delete(delete) => UpdateEvent::Deleted {
            kind: delete.kind(),
            namespace: delete.namespace,
            id: delete.id,
        },
        stream_updates_response::Event::SnapshotEnd(_) => UpdateEvent::SnapshotEnd,
        stream_updates_response::Event::Bookmark(_) => UpdateEvent::Bookmark,
    })
}
