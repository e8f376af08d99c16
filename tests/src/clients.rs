//! Clients for every service, and the short forms that tests use.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use http::HeaderValue;
use hyper_util::rt::TokioIo;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status, Streaming};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use crate::facts::ServerFacts as _;
use crate::fake_auth::planted::Tap;
use crate::tapped::Tapped;
use crate::updates::Updates;
use crate::v1::admin_service_client::AdminServiceClient;
use crate::v1::auth_service_client::AuthServiceClient;
use crate::v1::call_service_client::CallServiceClient;
use crate::v1::elicitation_service_client::ElicitationServiceClient;
use crate::v1::prompt_service_client::PromptServiceClient;
use crate::v1::resource_service_client::ResourceServiceClient;
use crate::v1::sampling_service_client::SamplingServiceClient;
use crate::v1::server_service_client::ServerServiceClient;
use crate::v1::tool_service_client::ToolServiceClient;
use crate::v1::update_service_client::UpdateServiceClient;
use crate::v1::{self, ConnectionState, Server, ServerSpec};

/// Largest message a test client takes.
const MESSAGE_LIMIT: usize = 64 << 20;

/// Clients for every service over one connection, bound to a namespace.
#[derive(Clone)]
pub struct Clients {
    channel: Channel,
    namespace: String,
    tap: Option<Tap>,
    authorization: Option<HeaderValue>,
}

macro_rules! service {
    ($(#[$doc:meta])* $name:ident, $client:ident) => {
        $(#[$doc])*
        pub fn $name(&self) -> $client<Tapped> {
            $client::new(self.tapped_channel())
                .max_decoding_message_size(MESSAGE_LIMIT)
                .max_encoding_message_size(MESSAGE_LIMIT)
        }
    };
}

impl Clients {
    /// Connects to a daemon's socket.
    pub async fn connect(socket: &Path) -> Self {
        let channel = connect(socket).await;
        Self::over(channel.unwrap_or_else(|cause| panic!("connect to the daemon: {cause}")))
    }

    /// Clients on a connection that was made elsewhere.
    pub fn over(channel: Channel) -> Self {
        Self {
            channel,
            namespace: "default".to_owned(),
            tap: None,
            authorization: None,
        }
    }

    /// The same connection, where every request brings this value of `authorization`.
    #[must_use]
    pub fn authorized(mut self, value: &str) -> Self {
        let value = HeaderValue::from_str(value).expect("a header value");
        self.authorization = Some(value);
        self
    }

    /// The connection, with what every request brings.
    pub fn tapped_channel(&self) -> Tapped {
        Tapped::new(
            self.channel.clone(),
            self.tap.clone(),
            self.authorization.clone(),
        )
    }

    /// Records what the daemon says.
    #[must_use]
    pub fn tapped(mut self, tap: Tap) -> Self {
        self.tap = Some(tap);
        self
    }

    /// Whether the daemon at this socket says that it serves.
    pub async fn is_serving(socket: &Path) -> bool {
        let Ok(channel) = connect(socket).await else {
            return false;
        };
        let request = HealthCheckRequest::default();
        let answer = HealthClient::new(channel).check(request).await;
        answer.is_ok_and(|answer| answer.into_inner().status == ServingStatus::Serving as i32)
    }

    /// The same connection, another namespace.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Self {
        Self {
            channel: self.channel.clone(),
            namespace: namespace.to_owned(),
            tap: self.tap.clone(),
            authorization: self.authorization.clone(),
        }
    }

    /// The namespace of all short forms.
    pub fn namespace(&self) -> String {
        self.namespace.clone()
    }

    /// The connection, for services that have no accessor.
    pub fn channel(&self) -> Channel {
        self.channel.clone()
    }

    service!(
        /// ServerService.
        servers, ServerServiceClient
    );
    service!(
        /// ToolService.
        tools, ToolServiceClient
    );
    service!(
        /// ResourceService.
        resources, ResourceServiceClient
    );
    service!(
        /// PromptService.
        prompts, PromptServiceClient
    );
    service!(
        /// ElicitationService.
        elicitations, ElicitationServiceClient
    );
    service!(
        /// CallService.
        calls, CallServiceClient
    );
    service!(
        /// SamplingService.
        sampling, SamplingServiceClient
    );
    service!(
        /// AuthService.
        auth, AuthServiceClient
    );
    service!(
        /// AdminService.
        admin, AdminServiceClient
    );
    service!(
        /// UpdateService.
        update_service, UpdateServiceClient
    );

    /// GetStatus.
    pub async fn status(&self) -> v1::GetStatusResponse {
        let answer = self.admin().get_status(v1::GetStatusRequest {}).await;
        answer.expect("GetStatus").into_inner()
    }

    /// ListApps.
    pub async fn apps(&self) -> Vec<v1::ConnectedApp> {
        let answer = self.admin().list_apps(v1::ListAppsRequest {}).await;
        answer.expect("ListApps").into_inner().apps
    }

    /// ReloadConfig.
    pub async fn reload(&self) -> Result<v1::ReloadConfigResponse, Status> {
        let request = v1::ReloadConfigRequest::default();
        let answer = self.admin().reload_config(request).await;
        answer.map(tonic::Response::into_inner)
    }

    /// AddServer with these settings and an id, if not empty.
    pub async fn add(&self, id: &str, spec: ServerSpec) -> Result<v1::AddServerResponse, Status> {
        self.add_with(v1::AddServerRequest {
            server_id: id.to_owned(),
            spec: Some(spec),
            ..Default::default()
        })
        .await
    }

    /// AddServer with a request that is complete but for the namespace.
    pub async fn add_with(
        &self,
        mut request: v1::AddServerRequest,
    ) -> Result<v1::AddServerResponse, Status> {
        request.namespace = self.namespace();
        Ok(self.servers().add_server(request).await?.into_inner())
    }

    /// Adds a server at a URL and expects it to be READY.
    pub async fn add_http(&self, name: &str, url: &str) -> Server {
        self.add_ready(http_spec(name, url)).await
    }

    /// Adds a server that the daemon starts and expects it to be READY.
    pub async fn add_stdio(&self, name: &str, command: &str, args: &[String]) -> Server {
        self.add_ready(stdio_spec(name, command, args)).await
    }

    /// Adds a server and expects it to be READY.
    pub async fn add_ready(&self, spec: ServerSpec) -> Server {
        let added = self.add("", spec).await.expect("AddServer");
        let server = added.server.expect("AddServer returns the server");
        assert_eq!(
            server.state(),
            ConnectionState::Ready,
            "state after AddServer: {server:#?}"
        );
        server
    }

    /// GetServer.
    pub async fn get(&self, id: &str) -> Result<Server, Status> {
        let request = v1::GetServerRequest {
            namespace: self.namespace(),
            server_id: id.to_owned(),
        };
        let answer = self.servers().get_server(request).await?.into_inner();
        Ok(answer.server.expect("GetServer returns the server"))
    }

    /// UpdateServer of the named fields.
    pub async fn update(
        &self,
        id: &str,
        spec: ServerSpec,
        paths: &[&str],
    ) -> Result<Server, Status> {
        let request = v1::UpdateServerRequest {
            namespace: self.namespace(),
            server_id: id.to_owned(),
            spec: Some(spec),
            update_mask: Some(prost_types::FieldMask {
                paths: paths.iter().map(|&path| path.to_owned()).collect(),
            }),
            etag: String::new(),
        };
        let answer = self.servers().update_server(request).await?.into_inner();
        Ok(answer.server.expect("UpdateServer returns the server"))
    }

    /// RemoveServer.
    pub async fn remove(&self, id: &str) -> Result<(), Status> {
        let request = v1::RemoveServerRequest {
            namespace: self.namespace(),
            server_id: id.to_owned(),
            etag: String::new(),
        };
        self.servers().remove_server(request).await.map(|_| ())
    }

    /// ConnectServer, with the server's own bound on waiting.
    pub async fn connect_server(&self, id: &str) -> Result<Server, Status> {
        let request = v1::ConnectServerRequest {
            namespace: self.namespace(),
            server_id: id.to_owned(),
            wait_timeout: None,
        };
        let answer = self.servers().connect_server(request).await?.into_inner();
        Ok(answer.server.expect("ConnectServer returns the server"))
    }

    /// DisconnectServer.
    pub async fn disconnect_server(&self, id: &str) -> Result<(), Status> {
        let request = v1::DisconnectServerRequest {
            namespace: self.namespace(),
            target: Some(v1::disconnect_server_request::Target::ServerId(
                id.to_owned(),
            )),
        };
        self.servers().disconnect_server(request).await.map(|_| ())
    }

    /// Waits until so many calls are under way at a server.
    pub async fn calls_in_flight(&self, id: &str, wanted: usize) {
        crate::wait::eventually(
            &format!("{wanted} calls in flight at `{id}`"),
            crate::wait::PATIENCE,
            async || {
                let server = self.get(id).await.expect("GetServer");
                (server.facts().calls_in_flight as usize == wanted).then_some(())
            },
        )
        .await;
    }

    /// GetServerLog.
    pub async fn log(&self, id: &str) -> Result<Vec<v1::ServerLogLine>, Status> {
        let request = v1::GetServerLogRequest {
            namespace: self.namespace(),
            server_id: id.to_owned(),
        };
        Ok(self
            .servers()
            .get_server_log(request)
            .await?
            .into_inner()
            .lines)
    }

    /// All servers of the namespace.
    pub async fn list(&self) -> Vec<Server> {
        let mut servers = Vec::new();
        let mut request = v1::ListServersRequest {
            namespace: self.namespace(),
            ..Default::default()
        };
        loop {
            let page = self.servers().list_servers(request.clone()).await;
            let page = match page {
                Ok(page) => page.into_inner(),
                // A namespace without any server does not exist.
                Err(status) if status.code() == Code::NotFound => return servers,
                Err(status) => panic!("ListServers: {status:?}"),
            };
            servers.extend(page.servers);
            if page.next_page_token.is_empty() {
                return servers;
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Waits until the server is in this state and returns it.
    pub async fn wait_for(&self, id: &str, state: ConnectionState) -> Server {
        let mut updates = self.updates("").await;
        updates
            .server_where(&format!("`{id}` in state {state:?}"), |server| {
                server.id == id && server.state() == state
            })
            .await
    }

    /// All tools of the namespace.
    pub async fn list_tools(&self) -> Vec<v1::Tool> {
        self.tools_where(v1::ListToolsRequest::default())
            .await
            .expect("ListTools")
    }

    /// All tools that a request asks for, over all pages.
    pub async fn tools_where(
        &self,
        mut request: v1::ListToolsRequest,
    ) -> Result<Vec<v1::Tool>, Status> {
        request.namespace = self.namespace();
        let mut tools = Vec::new();
        loop {
            let page = self.tools().list_tools(request.clone()).await?.into_inner();
            tools.extend(page.tools);
            if page.next_page_token.is_empty() {
                return Ok(tools);
            }
            request.page_token = page.next_page_token;
        }
    }

    /// All resources of a server.
    pub async fn list_resources(&self, server: &str) -> Vec<v1::Resource> {
        let request = v1::ListResourcesRequest {
            namespace: self.namespace(),
            server_ids: vec![server.to_owned()],
            ..Default::default()
        };
        let answer = self.resources().list_resources(request).await;
        answer.expect("ListResources").into_inner().resources
    }

    /// ReadResource.
    pub async fn read(&self, server: &str, uri: &str) -> Result<v1::ReadResourceResponse, Status> {
        let request = v1::ReadResourceRequest {
            namespace: self.namespace(),
            server_id: server.to_owned(),
            uri: uri.to_owned(),
            ..Default::default()
        };
        Ok(self.resources().read_resource(request).await?.into_inner())
    }

    /// All prompts of a server.
    pub async fn list_prompts(&self, server: &str) -> Vec<v1::Prompt> {
        let request = v1::ListPromptsRequest {
            namespace: self.namespace(),
            server_ids: vec![server.to_owned()],
            ..Default::default()
        };
        let answer = self.prompts().list_prompts(request).await;
        answer.expect("ListPrompts").into_inner().prompts
    }

    /// GetPrompt.
    pub async fn prompt(
        &self,
        server: &str,
        name: &str,
        arguments: HashMap<String, String>,
    ) -> Result<v1::GetPromptResponse, Status> {
        let request = v1::GetPromptRequest {
            namespace: self.namespace(),
            server_id: server.to_owned(),
            name: name.to_owned(),
            arguments,
            ..Default::default()
        };
        Ok(self.prompts().get_prompt(request).await?.into_inner())
    }

    /// A call of a tool with arguments as JSON text; empty: none.
    pub fn call(&self, server: &str, tool: &str, arguments: &str) -> v1::ToolCall {
        v1::ToolCall {
            namespace: self.namespace(),
            server_id: server.to_owned(),
            tool_name: tool.to_owned(),
            arguments_json: (!arguments.is_empty()).then(|| arguments.to_owned()),
            ..Default::default()
        }
    }

    /// CallTool.
    pub async fn call_tool(
        &self,
        server: &str,
        tool: &str,
        arguments: &str,
    ) -> Result<v1::ToolResult, Status> {
        self.call_with(self.call(server, tool, arguments)).await
    }

    /// CallTool with a prepared call.
    pub async fn call_with(&self, call: v1::ToolCall) -> Result<v1::ToolResult, Status> {
        let request = v1::CallToolRequest { call: Some(call) };
        let answer = self.tools().call_tool(request).await?.into_inner();
        assert!(!answer.call_id.is_empty(), "a call has an id");
        Ok(answer.result.expect("CallTool returns the result"))
    }

    /// CallToolStream.
    pub async fn call_stream(
        &self,
        server: &str,
        tool: &str,
        arguments: &str,
    ) -> Result<CallEvents, Status> {
        self.stream_with(self.call(server, tool, arguments)).await
    }

    /// CallToolStream with a prepared call.
    pub async fn stream_with(&self, call: v1::ToolCall) -> Result<CallEvents, Status> {
        let request = v1::CallToolStreamRequest { call: Some(call) };
        let events = self.tools().call_tool_stream(request).await?.into_inner();
        Ok(CallEvents { events })
    }

    /// StreamUpdates of this namespace, from a token or, if empty, with a snapshot.
    pub async fn updates(&self, token: &str) -> Updates {
        let updates = self.try_updates(token).await;
        updates.expect("StreamUpdates")
    }

    /// StreamUpdates, where a refusal is expected.
    pub async fn try_updates(&self, token: &str) -> Result<Updates, Status> {
        self.updates_with(v1::StreamUpdatesRequest {
            namespaces: vec![self.namespace()],
            resume_token: token.to_owned(),
            ..Default::default()
        })
        .await
    }

    /// StreamUpdates with a prepared request.
    pub async fn updates_with(&self, request: v1::StreamUpdatesRequest) -> Result<Updates, Status> {
        let stream = self.update_service().stream_updates(request).await?;
        Ok(Updates::new(stream.into_inner()))
    }

    /// Answers a question.
    pub async fn respond(
        &self,
        id: &str,
        action: v1::ElicitationAction,
        content: Option<&str>,
    ) -> Result<v1::Elicitation, Status> {
        let request = v1::RespondElicitationRequest {
            namespace: self.namespace(),
            elicitation_id: id.to_owned(),
            action: action.into(),
            content_json: content.map(str::to_owned),
        };
        let answer = self.elicitations().respond_elicitation(request).await?;
        let question = answer.into_inner().elicitation;
        Ok(question.expect("RespondElicitation returns the question"))
    }

    /// Accepts a form.
    pub async fn accept(&self, id: &str, content: &str) -> Result<v1::Elicitation, Status> {
        self.respond(id, v1::ElicitationAction::Accept, Some(content))
            .await
    }

    /// GetElicitation.
    pub async fn question(&self, id: &str) -> Result<v1::Elicitation, Status> {
        let request = v1::GetElicitationRequest {
            namespace: self.namespace(),
            elicitation_id: id.to_owned(),
        };
        let answer = self.elicitations().get_elicitation(request).await?;
        let question = answer.into_inner().elicitation;
        Ok(question.expect("GetElicitation returns the question"))
    }
}

/// The events of a streamed call.
pub struct CallEvents {
    events: Streaming<v1::CallToolStreamResponse>,
}

impl CallEvents {
    /// The next event; `None` at the end.
    pub async fn next(&mut self) -> Result<Option<v1::call_tool_stream_response::Event>, Status> {
        let message = crate::wait::within("an event of the call", self.events.message()).await?;
        Ok(message.map(|message| message.event.expect("an event is set")))
    }

    /// All events to the end.
    pub async fn collect(mut self) -> Result<Vec<v1::call_tool_stream_response::Event>, Status> {
        let mut all = Vec::new();
        while let Some(event) = self.next().await? {
            all.push(event);
        }
        Ok(all)
    }
}

async fn connect(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let socket = socket.to_owned();
    // The authority is what the server sees as `:authority`; the path of the socket is not one.
    Endpoint::from_static("http://localhost")
        .connect_with_connector(tower::service_fn(move |_| {
            let socket = socket.clone();
            async move {
                let stream = tokio::net::UnixStream::connect(socket).await?;
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        }))
        .await
}

/// Settings of a server at a URL.
pub fn http_spec(name: &str, url: &str) -> ServerSpec {
    ServerSpec {
        name: name.to_owned(),
        transport: Some(v1::server_spec::Transport::Http(v1::HttpTransport {
            url: url.to_owned(),
            ..Default::default()
        })),
        ..Default::default()
    }
}

/// Settings of a server at a URL that speaks one HTTP transport.
pub fn http_spec_as(name: &str, url: &str, mode: v1::HttpMode) -> ServerSpec {
    let mut spec = http_spec(name, url);
    if let Some(v1::server_spec::Transport::Http(http)) = &mut spec.transport {
        http.mode = mode.into();
    }
    spec
}

/// Settings of a server on a Unix socket.
pub fn socket_spec(name: &str, path: &Path, protocol: v1::UnixSocketProtocol) -> ServerSpec {
    let socket = v1::UnixSocketTransport {
        path: path.to_str().expect("a path is UTF-8").to_owned(),
        protocol: protocol.into(),
        ..Default::default()
    };
    ServerSpec {
        name: name.to_owned(),
        transport: Some(v1::server_spec::Transport::UnixSocket(socket)),
        ..Default::default()
    }
}

/// Settings of a server that the daemon starts.
pub fn stdio_spec(name: &str, command: &str, args: &[String]) -> ServerSpec {
    ServerSpec {
        name: name.to_owned(),
        transport: Some(v1::server_spec::Transport::Stdio(v1::StdioTransport {
            command: command.to_owned(),
            args: args.to_vec(),
            ..Default::default()
        })),
        ..Default::default()
    }
}

/// A duration of milliseconds.
pub fn millis(millis: u64) -> prost_types::Duration {
    Duration::from_millis(millis).try_into().unwrap()
}

/// A duration of seconds.
pub fn seconds(seconds: u64) -> prost_types::Duration {
    millis(seconds * 1000)
}
