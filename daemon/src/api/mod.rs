//! The edge to apps: gRPC over Unix sockets, and over TCP for who has a token. The only part that knows protobuf types and gRPC statuses.
//!
//! `socket` makes the listener, `serve` owns connections, `rpc` what is under way on them, `slots` counts them, `peer` knows who is at the
//! other end, `gate` lets in who has a token, `context` says who asks and until when, `status` turns errors into statuses. Never holds state of servers, calls or questions.

pub mod admin;
mod app_tokens;
mod approval;
pub mod apps;
pub mod auth;
mod authorization;
mod call_stream;
pub mod calls;
mod content;
pub mod context;
mod convert;
pub mod elicitations;
mod form;
pub mod gate;
mod import;
pub mod infrastructure;
mod input;
mod listing;
mod meter;
mod model_request;
mod page;
pub mod peer;
pub mod prompts;
pub mod resources;
mod rpc;
pub mod sampling;
pub mod serve;
pub mod servers;
mod slots;
pub mod socket;
mod spec;
pub mod status;
pub mod tools;
pub mod updates;

pub use context::{RequestContext, bounded, within};
pub use gate::Gate;
pub use infrastructure::{Health, infrastructure, methods};
pub use serve::{Listener, Observers, ServeOptions, serve};

use std::sync::Arc;
use std::time::Duration;

use mcp_sidecar_proto::v1;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

use crate::access::Access;
use crate::audit::Audit;
use crate::auth::Auth;
use crate::base::Namespace;
use crate::calls::Calls;
use crate::catalog::output::Checker;
use crate::error::Result;
use crate::inputs::Inputs;
use crate::operation::Operation;
use crate::registry::Registry;
use crate::store::Store;
use crate::tokens::Tokens;

/// The services of the contract that the daemon serves, by full name.
pub const SERVICES: &[&str] = &[
    "mcpsidecar.v1.AuthService",
    "mcpsidecar.v1.ServerService",
    "mcpsidecar.v1.ToolService",
    "mcpsidecar.v1.CallService",
    "mcpsidecar.v1.ResourceService",
    "mcpsidecar.v1.PromptService",
    "mcpsidecar.v1.ElicitationService",
    "mcpsidecar.v1.SamplingService",
    "mcpsidecar.v1.UpdateService",
];

/// The services on the admin socket.
pub const ADMIN_SERVICES: &[&str] = &[
    "mcpsidecar.v1.AdminService",
    "mcpsidecar.v1.AuthService",
    "mcpsidecar.v1.ServerService",
    "mcpsidecar.v1.ToolService",
    "mcpsidecar.v1.CallService",
    "mcpsidecar.v1.ResourceService",
    "mcpsidecar.v1.PromptService",
    "mcpsidecar.v1.ElicitationService",
    "mcpsidecar.v1.SamplingService",
    "mcpsidecar.v1.UpdateService",
];

/// What the services work with. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Shared {
    /// Who may use which namespaces.
    pub access: Access,
    /// The apps that are connected.
    pub apps: apps::Apps,
    /// The servers.
    pub registry: Registry,
    /// What the daemon is authorized to do.
    pub auth: Auth,
    /// The questions.
    pub inputs: Inputs,
    /// The update log; read only.
    pub store: Store,
    /// Makes calls.
    pub calls: Calls,
    /// Most calls that are under way on one stream.
    pub calls_per_stream: usize,
    /// Where the calls of a stream are written down that are refused; RPCs are by themselves.
    pub audit: Audit,
    /// Checks results of tools.
    pub checker: Arc<Checker>,
    /// Default bound on opening a connection.
    pub connect: Duration,
    /// Longest wait of one waiting RPC.
    pub wait_max: Duration,
    /// How often an idle update stream gives a sign of life.
    pub bookmark_interval: Duration,
    /// One permit per open update stream.
    pub subscribers: Arc<Semaphore>,
    /// Largest gRPC message, in bytes, in both directions.
    pub message_bytes: usize,
    /// Cancelled when the daemon begins to stop.
    pub shutdown: CancellationToken,
    /// Owner of the tasks of streams.
    pub tasks: TaskTracker,
}

impl Shared {
    /// The namespace that a request names; the empty name is the default one.
    ///
    /// # Errors
    /// `CALLER_NOT_ALLOWED` if the caller may not use it, `INVALID_FIELD` if it is no name.
    fn namespace(&self, context: &RequestContext, name: &str) -> Result<Namespace> {
        context.note(|trail| {
            trail.namespace(if name.is_empty() {
                Namespace::DEFAULT
            } else {
                name
            });
        });
        self.access.namespace(&context.caller, name)
    }
}

/// What is served on the admin socket: everything that apps are served, under the same rules, and AdminService.
#[must_use]
pub fn admin_routes(shared: &Shared, operation: &Operation, tokens: &Tokens) -> Routes {
    let admin = admin::Admin::new(shared.clone(), operation.clone(), tokens.clone());
    routes(shared).add_service(v1::admin_service_server::AdminServiceServer::new(admin))
}

/// The services of the contract.
#[must_use]
pub fn routes(shared: &Shared) -> Routes {
    /// Every service takes and gives messages up to the same size.
    macro_rules! service {
        ($module:ident :: $server:ident, $service:expr) => {
            v1::$module::$server::new($service)
                .max_decoding_message_size(shared.message_bytes)
                .max_encoding_message_size(shared.message_bytes)
        };
    }
    Routes::default()
        .add_service(service!(
            server_service_server::ServerServiceServer,
            servers::Servers(shared.clone())
        ))
        .add_service(service!(
            tool_service_server::ToolServiceServer,
            tools::Tools(shared.clone())
        ))
        .add_service(service!(
            call_service_server::CallServiceServer,
            calls::Calls(shared.clone())
        ))
        .add_service(service!(
            resource_service_server::ResourceServiceServer,
            resources::Resources(shared.clone())
        ))
        .add_service(service!(
            prompt_service_server::PromptServiceServer,
            prompts::Prompts(shared.clone())
        ))
        .add_service(service!(
            elicitation_service_server::ElicitationServiceServer,
            elicitations::Elicitations(shared.clone())
        ))
        .add_service(service!(
            sampling_service_server::SamplingServiceServer,
            sampling::Sampling(shared.clone())
        ))
        .add_service(service!(
            auth_service_server::AuthServiceServer,
            auth::Auths(shared.clone())
        ))
        .add_service(service!(
            update_service_server::UpdateServiceServer,
            updates::Updates(shared.clone())
        ))
}
