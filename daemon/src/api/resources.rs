//! `ResourceService`: lists resources and templates from the catalog, and reads resources.

use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream;
use futures_util::stream;
use mcp_sidecar_proto::v1;
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};
use v1::resource_service_server::ResourceService;

use super::context::{RequestContext, bounded};
use super::listing::Listing;
use super::{Shared, content, convert, input};
use crate::calls::{Follower, Told};
use crate::error::{Error, Reason, Result};
use crate::registry::Server;

/// The service.
#[derive(Clone, Debug)]
pub struct Resources(pub Shared);

#[tonic::async_trait]
impl ResourceService for Resources {
    async fn list_resources(
        &self,
        request: Request<v1::ListResourcesRequest>,
    ) -> Result<Response<v1::ListResourcesResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        let mut listing = Listing::start(&request.page_token, request.page_size)?;
        for server in self.0.registry.list(&namespace, &request.server_ids)? {
            let live = server.live();
            let id = &server.record.key.id;
            let entries = live.catalog.resources.entries.iter().enumerate();
            listing.offer(&server, &live.status.resources, entries, |resource| {
                convert::resource(id, resource)
            });
        }
        let (resources, next_page_token, issues) = listing.finish();
        Ok(Response::new(v1::ListResourcesResponse {
            resources,
            next_page_token,
            issues,
        }))
    }

    async fn list_resource_templates(
        &self,
        request: Request<v1::ListResourceTemplatesRequest>,
    ) -> Result<Response<v1::ListResourceTemplatesResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        let mut listing = Listing::start(&request.page_token, request.page_size)?;
        for server in self.0.registry.list(&namespace, &request.server_ids)? {
            let live = server.live();
            let id = &server.record.key.id;
            let entries = live.catalog.resource_templates.entries.iter().enumerate();
            listing.offer(&server, &live.status.resource_templates, entries, |entry| {
                convert::resource_template(id, entry)
            });
        }
        let (resource_templates, next_page_token, issues) = listing.finish();
        let response = v1::ListResourceTemplatesResponse {
            resource_templates,
            next_page_token,
            issues,
        };
        Ok(Response::new(response))
    }

    async fn read_resource(
        &self,
        request: Request<v1::ReadResourceRequest>,
    ) -> Result<Response<v1::ReadResourceResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        context.note(|trail| {
            trail.server(&request.server_id);
            trail.resource(&request.uri);
        });
        if request.uri.is_empty() {
            return Err(Error::invalid("uri", "name a resource; ListResources shows them").into());
        }
        let meta = input::meta(&request.meta_json, "meta_json", &context)?;
        let terms = input::terms(
            &context,
            input::bound(request.timeout, "timeout")?,
            meta,
            request.wait_for_sign_in,
        );
        let calls = &self.0.calls;
        let prepared = calls.read_resource(&namespace, &request.server_id, request.uri, terms)?;
        let made = context.within(prepared.make()).await?;
        let answer = context.within(made.answer()).await?;
        Ok(Response::new(content::read_resource(
            &answer.result,
            answer.call_id.to_string(),
        )?))
    }

    type SubscribeResourceStream =
        Pin<Box<dyn Stream<Item = Result<v1::SubscribeResourceResponse, Status>> + Send>>;

    async fn subscribe_resource(
        &self,
        request: Request<v1::SubscribeResourceRequest>,
    ) -> Result<Response<Self::SubscribeResourceStream>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        if request.uri.is_empty() {
            return Err(Error::invalid("uri", "name a resource; ListResources shows them").into());
        }
        let permit = Arc::clone(&self.0.subscribers)
            .try_acquire_owned()
            .map_err(|_| {
                Error::new(
                    Reason::TooMany,
                    "as many streams are open as limits.subscribers allows; close some first",
                )
            })?;
        let calls = &self.0.calls;
        let follow = calls.follow(
            &namespace,
            &request.server_id,
            &request.uri,
            context.deadline,
        );
        let (server, follower) = context.within(follow).await?;
        let following = Following {
            server,
            follower,
            uri: request.uri,
            shutdown: self.0.shutdown.clone(),
            _permit: permit,
        };
        let events = stream::unfold(Some(following), |following| async {
            let mut following = following?;
            match following.next().await {
                Ok(event) => Some((Ok(event), Some(following))),
                Err(error) => Some((Err(Status::from(error)), None)),
            }
        });
        Ok(Response::new(Box::pin(bounded(context.deadline, events))))
    }
}

/// An app that follows a resource.
struct Following {
    server: Server,
    follower: Follower,
    uri: String,
    shutdown: CancellationToken,
    _permit: OwnedSemaphorePermit,
}

impl Following {
    async fn next(&mut self) -> Result<v1::SubscribeResourceResponse> {
        use v1::subscribe_resource_response::Event;
        let told = tokio::select! {
            told = self.follower.next() => told?,
            () = self.server.handle.gone() => {
                let id = &self.server.record.key.id;
                return Err(Error::new(Reason::ServerNotFound, format!("server `{id}` was removed")));
            }
            () = self.shutdown.cancelled() => {
                return Err(Error::new(Reason::Draining, "the daemon is stopping"));
            }
        };
        let event = match told {
            Told::Subscribed => Event::Subscribed(v1::ResourceSubscribed {}),
            Told::Updated => Event::Updated(v1::ResourceUpdated {
                uri: self.uri.clone(),
            }),
        };
        Ok(v1::SubscribeResourceResponse { event: Some(event) })
    }
}
