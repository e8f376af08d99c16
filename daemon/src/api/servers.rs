//! `ServerService`: registrations and their connections.

use std::time::Duration;

use mcp_sidecar_proto::v1;
use tonic::{Request, Response, Status};
use v1::server_service_server::ServerService;

use super::Shared;
use super::context::RequestContext;
use super::page::Page;
use super::{convert, import, spec};
use crate::base::{Deadline, Namespace};
use crate::error::{Error, Result};
use crate::model::status::ConnectionState;
use crate::registry::{NewServer, Outcome, Server};

/// Most that is waited for the outcome of a connection beyond its timeout.
const SLACK: Duration = Duration::from_secs(2);
/// Servers of a page by default.
const PAGE: usize = 100;

/// The service.
#[derive(Clone, Debug)]
pub struct Servers(pub Shared);

impl Servers {
    fn namespace<T>(
        &self,
        request: &Request<T>,
        name: &str,
    ) -> Result<(RequestContext, Namespace)> {
        let context = RequestContext::of(request)?;
        let namespace = self.0.namespace(&context, name)?;
        Ok((context, namespace))
    }

    /// How long to wait for a server: what the app says, else as long as connecting may take.
    fn wait(&self, asked: Option<Duration>, server: &Server, context: &RequestContext) -> Duration {
        let own = server
            .record
            .spec
            .timeouts
            .connect
            .unwrap_or(self.0.connect);
        // A little longer than connecting may take: a timeout is worth waiting for, it is the cause.
        let wait = asked
            .unwrap_or(own + (own / 4).min(SLACK))
            .min(self.0.wait_max);
        // The answer still has to travel: a little before the deadline it is worth more than after it.
        let left = context.deadline.remaining().map(|left| left.mul_f64(0.9));
        left.map_or(wait, |left| wait.min(left))
    }

    async fn settled(
        &self,
        server: &Server,
        asked: Option<Duration>,
        context: &RequestContext,
    ) -> v1::Server {
        server
            .handle
            .settled(self.wait(asked, server, context))
            .await;
        self.shown(server)
    }

    /// A server that was waited for, as it is now.
    fn shown(&self, server: &Server) -> v1::Server {
        convert::server(self.0.registry.again(server).view())
    }
}

#[tonic::async_trait]
impl ServerService for Servers {
    async fn add_server(
        &self,
        request: Request<v1::AddServerRequest>,
    ) -> Result<Response<v1::AddServerResponse>, Status> {
        let (context, namespace) = self.namespace(&request, &request.get_ref().namespace)?;
        let request = request.into_inner();
        let wait = spec::duration(request.wait_timeout, "wait_timeout")?;
        let new = NewServer {
            namespace,
            wanted_id: (!request.server_id.is_empty()).then_some(request.server_id),
            spec: spec::server_spec(request.spec)?,
            register_only: request.register_only,
        };
        let (server, outcome) = Box::pin(self.0.registry.add(new)).await?;
        let outcome = match outcome {
            Outcome::Created => v1::AddOutcome::Created,
            Outcome::Existing => v1::AddOutcome::Existing,
            Outcome::Updated => v1::AddOutcome::Updated,
            Outcome::Migrated => v1::AddOutcome::Migrated,
        };
        let server = self.settled(&server, wait, &context).await;
        Ok(Response::new(v1::AddServerResponse {
            server: Some(server),
            outcome: outcome.into(),
        }))
    }

    async fn get_server(
        &self,
        request: Request<v1::GetServerRequest>,
    ) -> Result<Response<v1::GetServerResponse>, Status> {
        let (_, namespace) = self.namespace(&request, &request.get_ref().namespace)?;
        let server = self
            .0
            .registry
            .get(&namespace, &request.get_ref().server_id)?;
        let server = Some(convert::server(server.view()));
        Ok(Response::new(v1::GetServerResponse { server }))
    }

    async fn list_servers(
        &self,
        request: Request<v1::ListServersRequest>,
    ) -> Result<Response<v1::ListServersResponse>, Status> {
        let (_, namespace) = self.namespace(&request, &request.get_ref().namespace)?;
        let request = request.into_inner();
        let mut page = Page::start(&request.page_token, request.page_size, PAGE)?;
        for server in self.0.registry.list(&namespace, &[])? {
            let view = server.view();
            let state: i32 = convert::connection_state(view.status.state).into();
            if request.states.is_empty() || request.states.contains(&state) {
                let id = view.key.id.clone();
                let one = [convert::server(view)];
                page.offer(id.as_str(), one.iter().enumerate(), v1::Server::clone);
            }
        }
        let (servers, next_page_token) = page.finish();
        Ok(Response::new(v1::ListServersResponse {
            servers,
            next_page_token,
        }))
    }

    async fn update_server(
        &self,
        request: Request<v1::UpdateServerRequest>,
    ) -> Result<Response<v1::UpdateServerResponse>, Status> {
        let (_, namespace) = self.namespace(&request, &request.get_ref().namespace)?;
        let v1::UpdateServerRequest {
            server_id,
            spec,
            update_mask,
            etag,
            ..
        } = request.into_inner();
        let server = self
            .0
            .registry
            .update(namespace, server_id, etag, |current| {
                spec::apply_mask(current, spec, update_mask)
            })
            .await?;
        let server = Some(convert::server(server.view()));
        Ok(Response::new(v1::UpdateServerResponse { server }))
    }

    async fn remove_server(
        &self,
        request: Request<v1::RemoveServerRequest>,
    ) -> Result<Response<v1::RemoveServerResponse>, Status> {
        let (_, namespace) = self.namespace(&request, &request.get_ref().namespace)?;
        let request = request.into_inner();
        self.0
            .registry
            .remove(namespace, request.server_id, request.etag)
            .await?;
        Ok(Response::new(v1::RemoveServerResponse {}))
    }

    async fn connect_server(
        &self,
        request: Request<v1::ConnectServerRequest>,
    ) -> Result<Response<v1::ConnectServerResponse>, Status> {
        let (context, namespace) = self.namespace(&request, &request.get_ref().namespace)?;
        let request = request.into_inner();
        let wait = spec::duration(request.wait_timeout, "wait_timeout")?;
        let server = self
            .0
            .registry
            .connect(&namespace, &request.server_id)
            .await?;
        let server = Some(self.settled(&server, wait, &context).await);
        Ok(Response::new(v1::ConnectServerResponse { server }))
    }

    async fn disconnect_server(
        &self,
        request: Request<v1::DisconnectServerRequest>,
    ) -> Result<Response<v1::DisconnectServerResponse>, Status> {
        use v1::disconnect_server_request::Target;
        let (_, namespace) = self.namespace(&request, &request.get_ref().namespace)?;
        let registry = &self.0.registry;
        let ids: Vec<String> = match request.into_inner().target {
            Some(Target::ServerId(id)) => vec![id],
            Some(Target::AllServers(true)) => registry
                .list(&namespace, &[])?
                .iter()
                .map(|server| server.record.key.id.to_string())
                .collect(),
            Some(Target::AllServers(false)) | None => {
                return Err(Error::invalid(
                    "target",
                    "give `server_id`, or `all_servers` = true for every server of the namespace",
                )
                .into());
            }
        };
        let ended = ids.iter().map(|id| registry.disconnect(&namespace, id));
        let ended = futures_util::future::try_join_all(ended).await?;
        let servers = ended.iter().map(|server| self.shown(server)).collect();
        Ok(Response::new(v1::DisconnectServerResponse { servers }))
    }

    async fn refresh_server(
        &self,
        request: Request<v1::RefreshServerRequest>,
    ) -> Result<Response<v1::RefreshServerResponse>, Status> {
        let (context, namespace) = self.namespace(&request, &request.get_ref().namespace)?;
        let request = request.into_inner();
        let asked = spec::duration(request.wait_timeout, "wait_timeout")?;
        let server = self.0.registry.get(&namespace, &request.server_id)?;
        let live = server.live();
        if live.link.is_none() && live.status.state != ConnectionState::Connecting {
            return Err(server.why_not_usable().into());
        }
        let read = server.handle.refresh().await;
        let wait = self.wait(asked, &server, &context);
        // What is not read in time is read all the same; the answer shows how far it is.
        let _ = tokio::time::timeout(wait, read.done()).await;
        let server = Some(self.shown(&server));
        Ok(Response::new(v1::RefreshServerResponse { server }))
    }

    async fn wait_for_servers(
        &self,
        request: Request<v1::WaitForServersRequest>,
    ) -> Result<Response<v1::WaitForServersResponse>, Status> {
        let (context, namespace) = self.namespace(&request, &request.get_ref().namespace)?;
        let request = request.into_inner();
        let asked = spec::duration(request.timeout, "timeout")?;
        let servers = self.0.registry.list(&namespace, &request.server_ids)?;
        let left = context.deadline.remaining().map(|left| left.mul_f64(0.9));
        let wait = asked
            .or(left)
            .unwrap_or(self.0.wait_max)
            .min(self.0.wait_max);
        let wait = left.map_or(wait, |left| wait.min(left));
        let end = Deadline::after(wait);
        let waiting = servers
            .iter()
            .map(|server| server.handle.settled(end.remaining().unwrap_or_default()));
        let settled = futures_util::future::join_all(waiting)
            .await
            .into_iter()
            .all(|settled| settled);
        let servers = servers.iter().map(|server| self.shown(server)).collect();
        Ok(Response::new(v1::WaitForServersResponse {
            servers,
            settled,
        }))
    }

    async fn get_server_log(
        &self,
        request: Request<v1::GetServerLogRequest>,
    ) -> Result<Response<v1::GetServerLogResponse>, Status> {
        let (_, namespace) = self.namespace(&request, &request.get_ref().namespace)?;
        let id = &request.get_ref().server_id;
        let server = self.0.registry.get(&namespace, id)?;
        let lines = server.handle.journal().lines();
        let lines = lines.into_iter().map(convert::log_line).collect();
        Ok(Response::new(v1::GetServerLogResponse { lines }))
    }

    async fn import_servers(
        &self,
        request: Request<v1::ImportServersRequest>,
    ) -> Result<Response<v1::ImportServersResponse>, Status> {
        let (_, namespace) = self.namespace(&request, &request.get_ref().namespace)?;
        let entries = import::import(&self.0.registry, &namespace, request.into_inner()).await?;
        Ok(Response::new(v1::ImportServersResponse { entries }))
    }

    async fn export_servers(
        &self,
        request: Request<v1::ExportServersRequest>,
    ) -> Result<Response<v1::ExportServersResponse>, Status> {
        let (_, namespace) = self.namespace(&request, &request.get_ref().namespace)?;
        let servers = self
            .0
            .registry
            .list(&namespace, &request.get_ref().server_ids)?;
        Ok(Response::new(import::export(&servers)?))
    }
}
