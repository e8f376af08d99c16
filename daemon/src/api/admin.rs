//! `AdminService`: for the operator, on the admin socket only.

use std::collections::BTreeMap;

use mcp_sidecar_proto::v1;
use tonic::{Request, Response, Status};
use v1::admin_service_server::AdminService;

use super::apps::{App, Following, Via};
use super::context::RequestContext;
use super::{Shared, app_tokens, convert, spec};
use crate::base::{Caller, Clock, ServerKey};
use crate::error::{Error, Reason, Result};
use crate::model::status::ConnectionState;
use crate::operation::Operation;
use crate::operation::explain::explain;
use crate::registry::Server;
use crate::registry::declared::Change;
use crate::tokens::Tokens;

/// Most servers that are explained in one answer.
const MOST_SERVERS: usize = 1_000;
/// Most apps that are named in one answer.
const MOST_APPS: usize = 10_000;

/// The service.
#[derive(Clone, Debug)]
pub struct Admin {
    shared: Shared,
    operation: Operation,
    tokens: Tokens,
    own_uid: u32,
}

impl Admin {
    /// The service of a daemon that runs as this process's user.
    #[must_use]
    pub fn new(shared: Shared, operation: Operation, tokens: Tokens) -> Self {
        Self {
            shared,
            operation,
            tokens,
            own_uid: rustix::process::geteuid().as_raw(),
        }
    }

    /// The first thing that every RPC asks.
    ///
    /// # Errors
    /// `CALLER_NOT_ALLOWED` for anybody but the daemon's own user and root.
    fn permit<T>(&self, request: &Request<T>) -> Result<()> {
        let caller = RequestContext::of(request)?.caller;
        let uid = caller.process().map(|process| process.uid);
        if uid.is_some_and(|uid| uid == self.own_uid || uid == 0) {
            return Ok(());
        }
        let who = match &caller {
            Caller::Process(process) => format!("user {}", process.uid),
            Caller::Token(bearer) => format!("the bearer of the token `{}`", bearer.name),
        };
        let error = Error::new(
            Reason::CallerNotAllowed,
            format!(
                "{who} may not operate the daemon; user {} may, as whom it runs, and root",
                self.own_uid
            ),
        );
        Err(match uid {
            Some(uid) => error.with("uid", uid.to_string()),
            None => error,
        })
    }

    fn counts(&self, servers: &[Server]) -> v1::StatusCounts {
        let mut by_state = BTreeMap::<i32, u32>::new();
        for server in servers {
            let state = convert::connection_state(server.live().status.state);
            *by_state.entry(state.into()).or_default() += 1;
        }
        let load = self.operation.load();
        let (apps, subscribers) = self.shared.apps.count();
        v1::StatusCounts {
            servers: by_state
                .into_iter()
                .map(|(state, count)| v1::ServersInState { state, count })
                .collect(),
            apps: count(apps),
            rpcs: count(load.rpcs.count()),
            calls_under_way: count(load.calls.count()),
            calls_resting: count(self.shared.calls.resting()),
            questions_pending: count(self.shared.inputs.waiting()),
            subscribers: count(subscribers),
        }
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn text(path: Option<&std::path::Path>) -> String {
    path.map_or_else(String::new, |path| path.display().to_string())
}

/// One that cannot be used, with the sentence that says why.
fn not_ready(server: &Server) -> Option<v1::ServerNotReady> {
    let status = server.live().status;
    if status.state == ConnectionState::Ready {
        return None;
    }
    let key = &server.record.key;
    Some(v1::ServerNotReady {
        namespace: key.namespace.to_string(),
        server_id: key.id.to_string(),
        name: server.record.spec.name.clone(),
        state: convert::connection_state(status.state).into(),
        state_time: Some(convert::timestamp(status.since)),
        explanation: explain(key, &status, Clock.wall()),
        reason: status
            .last_failure
            .as_ref()
            .map_or_else(String::new, |failure| failure.reason.clone()),
        next_retry_time: status.next_retry.map(convert::timestamp),
    })
}

fn app(app: App) -> v1::ConnectedApp {
    let process = app.caller.process();
    let bearer = app.caller.bearer();
    v1::ConnectedApp {
        connection_id: app.connection.id(),
        uid: process.map_or(0, |process| process.uid),
        gid: process.map_or(0, |process| process.gid),
        pid: process.and_then(|process| process.pid).unwrap_or_default(),
        program: app.program,
        executable: app.executable,
        connect_time: Some(convert::timestamp(app.since)),
        rpcs_under_way: count(app.rpcs.count()),
        follows: app.follows.into_values().map(followed).collect(),
        socket: match app.via {
            Via::App => v1::AppSocket::App,
            Via::Admin => v1::AppSocket::Admin,
            Via::Tcp => v1::AppSocket::Tcp,
        }
        .into(),
        token_id: bearer.map_or_else(String::new, |bearer| bearer.id.to_string()),
        token_name: bearer.map_or_else(String::new, |bearer| bearer.name.clone()),
    }
}

fn changed((key, change): (ServerKey, Change)) -> v1::DeclaredServerChange {
    v1::DeclaredServerChange {
        namespace: key.namespace.to_string(),
        server_id: key.id.to_string(),
        outcome: match change {
            Change::Created => v1::DeclaredServerOutcome::Created,
            Change::Updated => v1::DeclaredServerOutcome::Updated,
            Change::Removed => v1::DeclaredServerOutcome::Removed,
        }
        .into(),
    }
}

fn followed(following: Following) -> v1::FollowedUpdates {
    let names = following.namespaces.into_iter();
    v1::FollowedUpdates {
        namespaces: names.map(|name| name.to_string()).collect(),
        can_answer: following.can_answer.map(|can| v1::CanAnswer {
            elicitation_form: can.elicitation_form,
            elicitation_url: can.elicitation_url,
            sampling: can.sampling,
            sampling_tools: can.sampling_tools,
            sampling_context: can.sampling_context,
            approval: can.approval,
        }),
    }
}

#[tonic::async_trait]
impl AdminService for Admin {
    async fn get_status(
        &self,
        request: Request<v1::GetStatusRequest>,
    ) -> Result<Response<v1::GetStatusResponse>, Status> {
        self.permit(&request)?;
        let servers = self.shared.registry.all();
        let mut unready: Vec<_> = servers.iter().filter_map(not_ready).collect();
        let omitted = unready.len().saturating_sub(MOST_SERVERS);
        unready.truncate(MOST_SERVERS);
        let operation = &self.operation;
        let places = operation.places();
        let (log_filter, until) = operation.log_filter();
        let (config_file, config_time) = operation.configuration();
        Ok(Response::new(v1::GetStatusResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            start_time: Some(convert::timestamp(operation.started())),
            uptime: Some(convert::duration(operation.uptime())),
            app_socket: text(places.app_socket.as_deref()),
            admin_socket: text(places.admin_socket.as_deref()),
            data_dir: text(Some(&places.data_dir)),
            draining: operation.is_draining(),
            log_filter,
            log_filter_until: until.map(convert::timestamp),
            counts: Some(self.counts(&servers)),
            not_ready: unready,
            not_ready_omitted: count(omitted),
            config_file: text(config_file.as_deref()),
            config_time: Some(convert::timestamp(config_time)),
            tcp_address: places.tcp.map_or_else(String::new, |at| at.to_string()),
        }))
    }

    async fn list_apps(
        &self,
        request: Request<v1::ListAppsRequest>,
    ) -> Result<Response<v1::ListAppsResponse>, Status> {
        self.permit(&request)?;
        let (all, _) = self.shared.apps.count();
        let apps = self.shared.apps.list(MOST_APPS);
        Ok(Response::new(v1::ListAppsResponse {
            omitted: count(all.saturating_sub(MOST_APPS)),
            apps: apps.into_iter().map(app).collect(),
        }))
    }

    async fn set_log_filter(
        &self,
        request: Request<v1::SetLogFilterRequest>,
    ) -> Result<Response<v1::SetLogFilterResponse>, Status> {
        self.permit(&request)?;
        let request = request.into_inner();
        let time = spec::duration(request.duration, "duration")?;
        let (previous_filter, _) = self.operation.log_filter();
        self.operation.set_log_filter(&request.filter, time)?;
        let (filter, until) = self.operation.log_filter();
        Ok(Response::new(v1::SetLogFilterResponse {
            previous_filter,
            filter,
            until: until.map(convert::timestamp),
        }))
    }

    async fn reload_config(
        &self,
        request: Request<v1::ReloadConfigRequest>,
    ) -> Result<Response<v1::ReloadConfigResponse>, Status> {
        self.permit(&request)?;
        let done = self.operation.reload(request.into_inner().validate_only);
        let done = done.await?;
        let servers = done.servers.into_iter();
        Ok(Response::new(v1::ReloadConfigResponse {
            applied_keys: done.applied,
            restart_keys: done.restart,
            servers: servers.map(changed).collect(),
        }))
    }

    async fn create_app_token(
        &self,
        request: Request<v1::CreateAppTokenRequest>,
    ) -> Result<Response<v1::CreateAppTokenResponse>, Status> {
        self.permit(&request)?;
        Ok(app_tokens::create(&self.tokens, request).await?)
    }

    async fn list_app_tokens(
        &self,
        request: Request<v1::ListAppTokensRequest>,
    ) -> Result<Response<v1::ListAppTokensResponse>, Status> {
        self.permit(&request)?;
        let tokens = self.tokens.list();
        Ok(Response::new(v1::ListAppTokensResponse {
            tokens: tokens.iter().map(app_tokens::shown).collect(),
        }))
    }

    async fn revoke_app_token(
        &self,
        request: Request<v1::RevokeAppTokenRequest>,
    ) -> Result<Response<v1::RevokeAppTokenResponse>, Status> {
        self.permit(&request)?;
        Ok(app_tokens::revoke(&self.tokens, request).await?)
    }

    async fn drain(
        &self,
        request: Request<v1::DrainRequest>,
    ) -> Result<Response<v1::DrainResponse>, Status> {
        self.permit(&request)?;
        let already = self.operation.drain();
        Ok(Response::new(v1::DrainResponse { already }))
    }
}
