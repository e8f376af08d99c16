//! The client: one method per RPC, with namespace and deadline filled in.

use std::collections::HashMap;
use std::time::Duration;

use tonic::Request;
use tonic::transport::Channel;

use crate::calls::CallStream;
use crate::connect::Builder;
use crate::error::{Error, Result};
use crate::listing::{Listing, all_pages};
use crate::proto::call_service_client::CallServiceClient;
use crate::proto::elicitation_service_client::ElicitationServiceClient;
use crate::proto::prompt_service_client::PromptServiceClient;
use crate::proto::resource_service_client::ResourceServiceClient;
use crate::proto::sampling_service_client::SamplingServiceClient;
use crate::proto::server_service_client::ServerServiceClient;
use crate::proto::tool_service_client::ToolServiceClient;
use crate::proto::update_service_client::UpdateServiceClient;
use crate::proto::{
    AddServerRequest, AddServerResponse, Call, CallToolRequest, CallToolResponse,
    CallToolStreamRequest, CancelCallRequest, CompleteRequest, CompleteResponse,
    ConnectServerRequest, DisconnectServerRequest, Elicitation, ElicitationAction, GetCallRequest,
    GetElicitationRequest, GetPromptRequest, GetPromptResponse, GetServerRequest, ListCallsRequest,
    ListElicitationsRequest, ListPromptsRequest, ListResourceTemplatesRequest,
    ListResourcesRequest, ListServersRequest, ListToolsRequest, Prompt, ReadResourceRequest,
    ReadResourceResponse, RefreshServerRequest, RemoveServerRequest, Resource, ResourceTemplate,
    RespondElicitationRequest, Server, Tool, ToolCall, UpdateServerRequest, WaitCallRequest,
    WaitForServersRequest, WaitForServersResponse, disconnect_server_request,
};
use crate::updates::{UpdateFilter, Updates};
use crate::{Arguments, MAX_MESSAGE_BYTES};

/// A connection to the daemon. Cheap to clone; all clones share one connection, which is opened again when needed.
///
/// Dropping the future of a request cancels the request, at the MCP server too.
///
/// # Errors
///
/// Every request fails with [`Error::Status`] if the daemon refuses or fails it, and with [`Error::Transport`] if the
/// daemon goes away.
#[derive(Clone, Debug)]
pub struct Client {
    channel: Channel,
    namespace: String,
    deadline: Option<Duration>,
}

/// Generated clients, for what has no method here. They fill in neither namespace nor deadline.
macro_rules! raw_clients {
    ($($(#[doc = $doc:literal])+ $name:ident: $client:ident;)+) => {
        impl Client {
            $(
                $(#[doc = $doc])+
                #[must_use]
                pub fn $name(&self) -> $client<Channel> {
                    $client::new(self.channel.clone())
                        .max_decoding_message_size(MAX_MESSAGE_BYTES)
                        .max_encoding_message_size(MAX_MESSAGE_BYTES)
                }
            )+
        }
    };
}

raw_clients! {
    /// The generated client of `ServerService`.
    servers: ServerServiceClient;
    /// The generated client of `ToolService`.
    tools: ToolServiceClient;
    /// The generated client of `CallService`.
    calls: CallServiceClient;
    /// The generated client of `ResourceService`.
    resources: ResourceServiceClient;
    /// The generated client of `PromptService`.
    prompts: PromptServiceClient;
    /// The generated client of `ElicitationService`.
    elicitations: ElicitationServiceClient;
    /// The generated client of `SamplingService`.
    sampling: SamplingServiceClient;
    /// The generated client of `UpdateService`; see [`Client::updates`] for a stream that repairs itself.
    raw_updates: UpdateServiceClient;
}

impl Client {
    /// Connects to the daemon of this host with the defaults of [`Builder`].
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] names every path that was tried.
    pub async fn connect() -> Result<Self> {
        Self::builder().connect().await
    }

    /// Settings other than the defaults.
    pub fn builder() -> Builder {
        Builder::default()
    }

    pub(crate) fn new(channel: Channel, namespace: String, deadline: Option<Duration>) -> Self {
        Self {
            channel,
            namespace,
            deadline,
        }
    }

    /// The same connection with another namespace.
    #[must_use]
    pub fn with_namespace(&self, namespace: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            ..self.clone()
        }
    }

    /// The same connection with another deadline for each request, or none.
    #[must_use]
    pub fn with_deadline(&self, deadline: impl Into<Option<Duration>>) -> Self {
        Self {
            deadline: deadline.into(),
            ..self.clone()
        }
    }

    /// The namespace of requests that name none; empty: the daemon's `default`.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// Fills in the deadline (`grpc-timeout`).
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        if let Some(deadline) = self.deadline {
            request.set_timeout(deadline);
        }
        request
    }

    fn fill(&self, namespace: &mut String) {
        if namespace.is_empty() {
            namespace.clone_from(&self.namespace);
        }
    }
}

/// Servers.
impl Client {
    /// Registers a server, connects to it and reports the state it has reached. Idempotent. A server that cannot be
    /// reached is registered all the same: look at the state in the answer.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn add_server(&self, mut request: AddServerRequest) -> Result<AddServerResponse> {
        self.fill(&mut request.namespace);
        let answer = self.servers().add_server(self.request(request)).await?;
        Ok(answer.into_inner())
    }

    /// One server.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::SERVER_NOT_FOUND`] if it is not registered.
    pub async fn get_server(&self, server_id: impl Into<String>) -> Result<Server> {
        let request = self.request(GetServerRequest {
            namespace: self.namespace.clone(),
            server_id: server_id.into(),
        });
        let answer = self.servers().get_server(request).await?;
        required(answer.into_inner().server)
    }

    /// All servers of the namespace, in order of their ids.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_servers(&self) -> Result<Vec<Server>> {
        let listing = all_pages(|page_token| async move {
            let request = self.request(ListServersRequest {
                namespace: self.namespace.clone(),
                page_token,
                ..Default::default()
            });
            let answer = self.servers().list_servers(request).await?.into_inner();
            Ok((answer.servers, Vec::new(), answer.next_page_token))
        });
        Ok(listing.await?.items)
    }

    /// Changes the settings that the update mask names.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::ETAG_MISMATCH`] if somebody else was faster.
    pub async fn update_server(&self, mut request: UpdateServerRequest) -> Result<Server> {
        self.fill(&mut request.namespace);
        let answer = self.servers().update_server(self.request(request)).await?;
        required(answer.into_inner().server)
    }

    /// Removes a server with its connection, its process and its running calls.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn remove_server(&self, server_id: impl Into<String>) -> Result<()> {
        let request = self.request(RemoveServerRequest {
            namespace: self.namespace.clone(),
            server_id: server_id.into(),
            etag: String::new(),
        });
        self.servers().remove_server(request).await?;
        Ok(())
    }

    /// Connects a disconnected server, or retries a failed one at once. Waits for the server to settle: as long as
    /// given, or its connect timeout.
    ///
    /// # Errors
    ///
    /// See [`Client`]. A server that still fails is no error: look at the state in the answer.
    pub async fn connect_server(
        &self,
        server_id: impl Into<String>,
        wait: impl Into<Option<Duration>>,
    ) -> Result<Server> {
        let request = self.request(ConnectServerRequest {
            namespace: self.namespace.clone(),
            server_id: server_id.into(),
            wait_timeout: wait.into().map(duration),
        });
        let answer = self.servers().connect_server(request).await?;
        required(answer.into_inner().server)
    }

    /// Ends the connection of a server and keeps its registration.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn disconnect_server(&self, server_id: impl Into<String>) -> Result<Server> {
        let target = disconnect_server_request::Target::ServerId(server_id.into());
        required(self.disconnect(target).await?.into_iter().next())
    }

    /// Ends the connections of all servers of the namespace and keeps their registrations.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn disconnect_all_servers(&self) -> Result<Vec<Server>> {
        self.disconnect(disconnect_server_request::Target::AllServers(true))
            .await
    }

    async fn disconnect(&self, target: disconnect_server_request::Target) -> Result<Vec<Server>> {
        let request = self.request(DisconnectServerRequest {
            namespace: self.namespace.clone(),
            target: Some(target),
        });
        let answer = self.servers().disconnect_server(request).await?;
        Ok(answer.into_inner().servers)
    }

    /// Reads the lists of a connected server again and waits for them: as long as given, or its connect timeout.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn refresh_server(
        &self,
        server_id: impl Into<String>,
        wait: impl Into<Option<Duration>>,
    ) -> Result<Server> {
        let request = self.request(RefreshServerRequest {
            namespace: self.namespace.clone(),
            server_id: server_id.into(),
            wait_timeout: wait.into().map(duration),
        });
        let answer = self.servers().refresh_server(request).await?;
        required(answer.into_inner().server)
    }

    /// Waits until the named servers (none named: all) have settled: ready, waiting for a sign-in, failed or
    /// disconnected. Without a time the deadline or the daemon's maximum applies.
    ///
    /// # Errors
    ///
    /// See [`Client`]. The end of the wait is no error: look at `settled`.
    pub async fn wait_for_servers<I>(
        &self,
        server_ids: I,
        timeout: impl Into<Option<Duration>>,
    ) -> Result<WaitForServersResponse>
    where
        I: IntoIterator,
        I::Item: Into<String>,
    {
        let request = self.request(WaitForServersRequest {
            namespace: self.namespace.clone(),
            server_ids: server_ids.into_iter().map(Into::into).collect(),
            timeout: timeout.into().map(duration),
        });
        let answer = self.servers().wait_for_servers(request).await?;
        Ok(answer.into_inner())
    }
}

/// Tools.
impl Client {
    /// All tools of all servers of the namespace that can be used.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_tools(&self) -> Result<Listing<Tool>> {
        self.list_tools_with(ListToolsRequest::default()).await
    }

    /// All tools that match the filters of the request.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_tools_with(&self, mut request: ListToolsRequest) -> Result<Listing<Tool>> {
        self.fill(&mut request.namespace);
        let request = &request;
        all_pages(|page_token| async move {
            let request = self.request(ListToolsRequest {
                page_token,
                ..request.clone()
            });
            let answer = self.tools().list_tools(request).await?.into_inner();
            Ok((answer.tools, answer.issues, answer.next_page_token))
        })
        .await
    }

    /// Calls a tool and waits for its result, also through questions that the server asks. A tool that reports an
    /// error is `Ok` with `is_error` in the result.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::UPSTREAM_ERROR`] carries a JSON-RPC error of the server, and
    /// [`crate::Reason::OUTCOME_UNKNOWN`] means that the call may have been carried out.
    pub async fn call_tool(&self, mut call: ToolCall) -> Result<CallToolResponse> {
        self.fill(&mut call.namespace);
        let request = self.request(CallToolRequest { call: Some(call) });
        Ok(self.tools().call_tool(request).await?.into_inner())
    }

    /// Calls a tool and follows its progress, log messages and questions.
    ///
    /// # Errors
    ///
    /// See [`Client::call_tool`]; errors of the running call come from the stream.
    pub async fn call_tool_stream(&self, mut call: ToolCall) -> Result<CallStream> {
        self.fill(&mut call.namespace);
        let request = self.request(CallToolStreamRequest { call: Some(call) });
        let answer = self.tools().call_tool_stream(request).await?;
        Ok(CallStream::new(answer.into_inner()))
    }
}

/// Calls as things of their own.
impl Client {
    /// One call, with what came of it if it has ended.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::CALL_NOT_FOUND`] if it was not kept, or its end is long past.
    pub async fn get_call(&self, id: impl Into<String>) -> Result<Call> {
        let request = self.request(GetCallRequest {
            namespace: self.namespace.clone(),
            call_id: id.into(),
            ..Default::default()
        });
        required(self.calls().get_call(request).await?.into_inner().call)
    }

    /// Waits for the end of a call, as long as the daemon lets one request wait: look at its state, and wait again.
    ///
    /// # Errors
    ///
    /// See [`Client::get_call`].
    pub async fn wait_call(&self, id: impl Into<String>) -> Result<Call> {
        let request = self.request(WaitCallRequest {
            namespace: self.namespace.clone(),
            call_id: id.into(),
            ..Default::default()
        });
        required(self.calls().wait_call(request).await?.into_inner().call)
    }

    /// Cancels a call.
    ///
    /// # Errors
    ///
    /// See [`Client::get_call`]; [`crate::Reason::ALREADY_RESOLVED`] if it has ended.
    pub async fn cancel_call(&self, id: impl Into<String>) -> Result<()> {
        let request = self.request(CancelCallRequest {
            namespace: self.namespace.clone(),
            call_id: id.into(),
        });
        self.calls().cancel_call(request).await?;
        Ok(())
    }

    /// The calls of the namespace that have not ended, oldest first.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_calls(&self) -> Result<Vec<Call>> {
        let listing = all_pages(|page_token| async move {
            let request = self.request(ListCallsRequest {
                namespace: self.namespace.clone(),
                page_token,
                ..Default::default()
            });
            let answer = self.calls().list_calls(request).await?.into_inner();
            Ok((answer.calls, Vec::new(), answer.next_page_token))
        });
        Ok(listing.await?.items)
    }
}

/// Resources and prompts.
impl Client {
    /// All resources of all servers of the namespace.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_resources(&self) -> Result<Listing<Resource>> {
        all_pages(|page_token| async move {
            let request = self.request(ListResourcesRequest {
                namespace: self.namespace.clone(),
                page_token,
                ..Default::default()
            });
            let answer = self.resources().list_resources(request).await?.into_inner();
            Ok((answer.resources, answer.issues, answer.next_page_token))
        })
        .await
    }

    /// All resource templates of all servers of the namespace.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_resource_templates(&self) -> Result<Listing<ResourceTemplate>> {
        all_pages(|page_token| async move {
            let request = self.request(ListResourceTemplatesRequest {
                namespace: self.namespace.clone(),
                page_token,
                ..Default::default()
            });
            let answer = self.resources().list_resource_templates(request).await?;
            let answer = answer.into_inner();
            Ok((
                answer.resource_templates,
                answer.issues,
                answer.next_page_token,
            ))
        })
        .await
    }

    /// Reads a resource from its server.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn read_resource(
        &self,
        server_id: impl Into<String>,
        uri: impl Into<String>,
    ) -> Result<ReadResourceResponse> {
        let request = self.request(ReadResourceRequest {
            namespace: self.namespace.clone(),
            server_id: server_id.into(),
            uri: uri.into(),
            ..Default::default()
        });
        Ok(self.resources().read_resource(request).await?.into_inner())
    }

    /// All prompts of all servers of the namespace.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_prompts(&self) -> Result<Listing<Prompt>> {
        all_pages(|page_token| async move {
            let request = self.request(ListPromptsRequest {
                namespace: self.namespace.clone(),
                page_token,
                ..Default::default()
            });
            let answer = self.prompts().list_prompts(request).await?.into_inner();
            Ok((answer.prompts, answer.issues, answer.next_page_token))
        })
        .await
    }

    /// Fills a prompt with arguments.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn get_prompt(
        &self,
        server_id: impl Into<String>,
        name: impl Into<String>,
        arguments: HashMap<String, String>,
    ) -> Result<GetPromptResponse> {
        let request = self.request(GetPromptRequest {
            namespace: self.namespace.clone(),
            server_id: server_id.into(),
            name: name.into(),
            arguments,
            ..Default::default()
        });
        Ok(self.prompts().get_prompt(request).await?.into_inner())
    }

    /// Asks a server for values of an argument of a prompt or of a resource template.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn complete(&self, mut request: CompleteRequest) -> Result<CompleteResponse> {
        self.fill(&mut request.namespace);
        let answer = self.prompts().complete(self.request(request)).await?;
        Ok(answer.into_inner())
    }
}

/// Questions.
impl Client {
    /// The pending questions of the namespace, oldest first.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn list_elicitations(&self) -> Result<Vec<Elicitation>> {
        let listing = all_pages(|page_token| async move {
            let request = self.request(ListElicitationsRequest {
                namespace: self.namespace.clone(),
                page_token,
                ..Default::default()
            });
            let answer = self.elicitations().list_elicitations(request).await?;
            let answer = answer.into_inner();
            Ok((answer.elicitations, Vec::new(), answer.next_page_token))
        });
        Ok(listing.await?.items)
    }

    /// One question.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::ELICITATION_NOT_FOUND`] if its end is long past.
    pub async fn get_elicitation(&self, id: impl Into<String>) -> Result<Elicitation> {
        let request = self.request(GetElicitationRequest {
            namespace: self.namespace.clone(),
            elicitation_id: id.into(),
        });
        let answer = self.elicitations().get_elicitation(request).await?;
        required(answer.into_inner().elicitation)
    }

    /// Accepts a question. The answer of a form is a JSON object that follows its schema; a URL question has none:
    /// `()`.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::INVALID_FIELD`] leaves the question pending,
    /// [`crate::Reason::ALREADY_RESOLVED`] means that it has ended.
    pub async fn accept_elicitation(
        &self,
        id: impl Into<String>,
        content: impl Into<Arguments>,
    ) -> Result<Elicitation> {
        self.respond(id.into(), ElicitationAction::Accept, content.into())
            .await
    }

    /// Declines a question: the user says no.
    ///
    /// # Errors
    ///
    /// See [`Client::accept_elicitation`].
    pub async fn decline_elicitation(&self, id: impl Into<String>) -> Result<Elicitation> {
        self.respond(id.into(), ElicitationAction::Decline, ().into())
            .await
    }

    /// Cancels a question: the user does not decide.
    ///
    /// # Errors
    ///
    /// See [`Client::accept_elicitation`].
    pub async fn cancel_elicitation(&self, id: impl Into<String>) -> Result<Elicitation> {
        self.respond(id.into(), ElicitationAction::Cancel, ().into())
            .await
    }

    async fn respond(
        &self,
        elicitation_id: String,
        action: ElicitationAction,
        content: Arguments,
    ) -> Result<Elicitation> {
        let request = self.request(RespondElicitationRequest {
            namespace: self.namespace.clone(),
            elicitation_id,
            action: action.into(),
            content_json: content.into_json(),
        });
        let answer = self.elicitations().respond_elicitation(request).await?;
        required(answer.into_inner().elicitation)
    }
}

/// Updates.
impl Client {
    /// Follows everything in the client's namespace, beginning with a snapshot. See [`Updates`].
    pub fn updates(&self) -> Updates {
        self.updates_with(UpdateFilter::default())
    }

    /// Follows what the filter lets through, beginning with a snapshot or behind the filter's resume token.
    pub fn updates_with(&self, mut filter: UpdateFilter) -> Updates {
        if filter.namespaces.is_empty() && !self.namespace.is_empty() {
            filter.namespaces.push(self.namespace.clone());
        }
        Updates::new(self.raw_updates(), filter)
    }
}

pub(crate) fn required<T>(field: Option<T>) -> Result<T> {
    field.ok_or(Error::Contract("the thing that was asked for is missing"))
}

/// A duration of the contract; what does not fit is the largest one.
fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration::try_from(duration).unwrap_or(prost_types::Duration {
        seconds: 315_576_000_000,
        nanos: 0,
    })
}
