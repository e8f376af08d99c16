//! `UpdateService`: the state and every change of it, as a cursor over the update log.
//!
//! A subscriber has no queue: it reads the log at its own pace, so one that stops reading costs nothing. Nothing is sent
//! before it is committed.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_core::Stream;
use futures_util::stream;
use mcp_sidecar_proto::v1;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use v1::stream_updates_response::Event;
use v1::update_service_server::UpdateService;

use super::apps::{Following, Follows};
use super::context::{RequestContext, bounded};
use super::{Shared, convert, model_request};
use crate::access::Access;
use crate::base::{Caller, Clock, Namespace, Revision, ServerId};
use crate::error::{Error, Reason, Result};
use crate::inputs::audience::{Attachment, Scope};
use crate::model::question::Mode;
use crate::model::spec::Abilities;
use crate::model::update::{Body, Filter, Kind, Update};
use crate::store::Store;

/// Updates that are read from the log at once.
const BATCH: usize = 128;

/// Most namespaces for which an app can declare what it can answer, unless it is all.
const MAX_NAMESPACES: usize = 1000;

/// The service.
#[derive(Clone, Debug)]
pub struct Updates(pub Shared);

/// What follows is decided by where the subscriber is.
struct Subscriber {
    store: Store,
    access: Access,
    caller: Caller,
    filter: Filter,
    head: watch::Receiver<Revision>,
    shutdown: CancellationToken,
    idle: Duration,
    /// When the subscriber wants a sign of life, if nothing else is sent until then.
    told: Instant,
    cursor: Revision,
    /// What is left of the snapshot; `None` once its end was sent.
    snapshot: Option<VecDeque<Body>>,
    batch: VecDeque<Arc<Update>>,
    _permit: OwnedSemaphorePermit,
    /// Shows the subscriber to the operator.
    _follows: Follows,
    /// Says what the subscriber can answer.
    _attachment: Option<Attachment>,
}

impl Updates {
    async fn subscribe(&self, request: Request<v1::StreamUpdatesRequest>) -> Result<Subscriber> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let filter = self.filter(&request, &context)?;
        let permit = Arc::clone(&self.0.subscribers).try_acquire_owned().map_err(|_| {
            Error::new(
                Reason::TooMany,
                "as many update streams are open as limits.subscribers allows; close some first",
            )
        })?;
        let store = self.0.store.clone();
        // Before the first response: whoever has that has been heard.
        let can_answer = request.can_answer.map(abilities).transpose()?;
        let attachment = match can_answer {
            Some(can_answer) => Some(self.attach(&filter, can_answer, &context).await?),
            None => None,
        };
        let following = Following {
            namespaces: filter.namespaces.clone(),
            can_answer,
        };
        let follows = self.0.apps.follow(&context.app, following);
        let head = store.head();
        let (cursor, snapshot) = if request.resume_token.is_empty() {
            let (revision, bodies) = context.within(store.snapshot(filter.clone())).await?;
            (revision, Some(VecDeque::from(bodies)))
        } else {
            let revision = store.parse_resume_token(&request.resume_token)?;
            // Refused here, before the stream begins, if the log no longer reaches back so far.
            store.updates_after(revision, 1).await?;
            (revision, None)
        };
        Ok(Subscriber {
            store,
            access: self.0.access.clone(),
            caller: context.caller.clone(),
            filter,
            head,
            shutdown: self.0.shutdown.clone(),
            idle: self.0.bookmark_interval,
            told: Clock.now() + self.0.bookmark_interval,
            cursor,
            snapshot,
            batch: VecDeque::new(),
            _permit: permit,
            _follows: follows,
            _attachment: attachment,
        })
    }

    /// Lets servers know what a subscriber can answer, for as long as it follows.
    async fn attach(
        &self,
        filter: &Filter,
        abilities: Abilities,
        context: &RequestContext,
    ) -> Result<Attachment> {
        if filter.namespaces.len() > MAX_NAMESPACES {
            return Err(Error::invalid(
                "namespaces",
                format!("at most {MAX_NAMESPACES} can be named together with `can_answer`; or `*`"),
            ));
        }
        let scope = if filter.namespaces.is_empty() {
            let (access, caller) = (self.0.access.clone(), context.caller.clone());
            Scope::Permitted(Arc::new(move |namespace| access.allows(&caller, namespace)))
        } else {
            Scope::These(filter.namespaces.clone())
        };
        let attaching = self.0.inputs.audience().attach(scope, abilities);
        context.within(attaching).await
    }

    fn filter(
        &self,
        request: &v1::StreamUpdatesRequest,
        context: &RequestContext,
    ) -> Result<Filter> {
        let mut filter = Filter::default();
        let everything = request.namespaces.iter().any(|namespace| namespace == "*");
        if request.namespaces.is_empty() {
            filter.namespaces.push(self.0.namespace(context, "")?);
        } else if !everything {
            for name in &request.namespaces {
                filter.namespaces.push(self.0.namespace(context, name)?);
            }
        }
        filter.server_ids = request
            .server_ids
            .iter()
            .map(|id| ServerId::new(id.as_str()))
            .collect();
        for kind in &request.kinds {
            filter.kinds.push(match v1::UpdateKind::try_from(*kind) {
                Ok(v1::UpdateKind::Server) => Kind::Server,
                Ok(v1::UpdateKind::Elicitation) => Kind::Elicitation,
                Ok(v1::UpdateKind::Call) => Kind::Call,
                Ok(v1::UpdateKind::Sampling) => Kind::Sampling,
                _ => {
                    return Err(Error::invalid(
                        "kinds",
                        format!("{kind} is not a kind of update"),
                    ));
                }
            });
        }
        Ok(filter)
    }
}

/// What a subscriber says that it can answer.
///
/// # Errors
/// `INVALID_FIELD` for a part of what is not there.
fn abilities(can: v1::CanAnswer) -> Result<Abilities> {
    let abilities = Abilities {
        elicitation_form: can.elicitation_form,
        elicitation_url: can.elicitation_url,
        sampling: can.sampling,
        sampling_tools: can.sampling_tools,
        sampling_context: can.sampling_context,
        approval: can.approval,
    };
    if let Some(part) = abilities.stray_part() {
        return Err(Error::invalid(
            format!("can_answer.{part}"),
            "it is a part of `sampling`, which is not set",
        ));
    }
    Ok(abilities)
}

impl Subscriber {
    /// The next response; waits for it. Ends with an error when the daemon stops or the log has moved on too far.
    async fn next(&mut self) -> Result<v1::StreamUpdatesResponse> {
        if let Some(response) = self.next_of_snapshot() {
            return Ok(response);
        }
        loop {
            while let Some(update) = self.batch.pop_front() {
                self.cursor = update.revision;
                if self.wants(&update) {
                    return Ok(self.response(&update));
                }
            }
            let head = *self.head.borrow_and_update();
            if head > self.cursor {
                self.batch = self.store.updates_after(self.cursor, BATCH).await?.into();
                if !self.batch.is_empty() {
                    continue;
                }
            }
            tokio::select! {
                () = self.shutdown.cancelled() => {
                    return Err(Error::new(Reason::Draining, "the daemon is stopping; resume when it is back")
                        .retry_after(Duration::from_secs(1)));
                }
                changed = self.head.changed() => {
                    if changed.is_err() {
                        return Err(Error::new(Reason::Draining, "the daemon is stopping"));
                    }
                }
                () = tokio::time::sleep_until(self.told.into()) => {
                    return Ok(self.at_cursor(Event::Bookmark(v1::Bookmark {})));
                }
            }
        }
    }

    fn next_of_snapshot(&mut self) -> Option<v1::StreamUpdatesResponse> {
        let snapshot = self.snapshot.as_mut()?;
        loop {
            let Some(body) = snapshot.pop_front() else {
                self.snapshot = None;
                return Some(self.at_cursor(Event::SnapshotEnd(v1::SnapshotEnd {})));
            };
            let Some((namespace, upsert)) = upsert(body) else {
                continue;
            };
            if self.access.allows(&self.caller, &namespace) {
                return Some(v1::StreamUpdatesResponse {
                    event: Some(Event::Upsert(upsert)),
                    resume_token: String::new(),
                    revision: self.cursor.0,
                    commit_time: None,
                });
            }
        }
    }

    fn wants(&self, update: &Update) -> bool {
        self.filter
            .admits(&update.namespace, &update.server_id, update.kind)
            && self.access.allows(&self.caller, &update.namespace)
    }

    fn response(&self, update: &Update) -> v1::StreamUpdatesResponse {
        let event = match update.body.clone() {
            Body::Deleted { kind, id } => Event::Delete(v1::Delete {
                kind: match kind {
                    Kind::Server => v1::UpdateKind::Server,
                    Kind::Elicitation => v1::UpdateKind::Elicitation,
                    Kind::Call => v1::UpdateKind::Call,
                    Kind::Sampling => v1::UpdateKind::Sampling,
                }
                .into(),
                namespace: update.namespace.to_string(),
                id,
            }),
            body => match upsert(body) {
                Some((_, upsert)) => Event::Upsert(upsert),
                None => Event::Bookmark(v1::Bookmark {}),
            },
        };
        v1::StreamUpdatesResponse {
            commit_time: Some(convert::timestamp(update.committed)),
            ..self.at_cursor(event)
        }
    }

    fn at_cursor(&self, event: Event) -> v1::StreamUpdatesResponse {
        v1::StreamUpdatesResponse {
            event: Some(event),
            resume_token: self.store.resume_token(self.cursor),
            revision: self.cursor.0,
            commit_time: None,
        }
    }
}

/// A new state with the namespace it belongs to; `None` for what is no state.
fn upsert(body: Body) -> Option<(Namespace, v1::Upsert)> {
    let (namespace, resource) = match body {
        Body::Server(view) => (
            view.key.namespace.clone(),
            v1::upsert::Resource::Server(convert::server(*view)),
        ),
        Body::Elicitation(question) => (
            question.server.namespace.clone(),
            match question.mode {
                Mode::Form | Mode::Url | Mode::Approval => {
                    v1::upsert::Resource::Elicitation(convert::elicitation(*question))
                }
                Mode::Sampling => {
                    v1::upsert::Resource::SamplingRequest(model_request::shown(*question))
                }
            },
        ),
        Body::Call(call) => (
            call.server.namespace.clone(),
            v1::upsert::Resource::Call(convert::call(*call)),
        ),
        Body::Deleted { .. } => return None,
    };
    Some((
        namespace,
        v1::Upsert {
            resource: Some(resource),
        },
    ))
}

#[tonic::async_trait]
impl UpdateService for Updates {
    type StreamUpdatesStream =
        Pin<Box<dyn Stream<Item = Result<v1::StreamUpdatesResponse, Status>> + Send>>;

    async fn stream_updates(
        &self,
        request: Request<v1::StreamUpdatesRequest>,
    ) -> Result<Response<Self::StreamUpdatesStream>, Status> {
        let deadline = RequestContext::of(&request)?.deadline;
        let subscriber = self.subscribe(request).await?;
        let updates = stream::unfold(Some(subscriber), |subscriber| async {
            let mut subscriber = subscriber?;
            match subscriber.next().await {
                Ok(response) => {
                    subscriber.told = Clock.now() + subscriber.idle;
                    Some((Ok(response), Some(subscriber)))
                }
                Err(error) => Some((Err(Status::from(error)), None)),
            }
        });
        Ok(Response::new(Box::pin(bounded(deadline, updates))))
    }
}
