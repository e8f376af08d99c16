//! `ToolService`: lists tools from the catalog and calls them.

use std::pin::Pin;

use futures_core::Stream;
use futures_util::stream::{self, StreamExt};
use mcp_sidecar_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status};
use v1::call_tool_stream_response::Event;
use v1::tool_service_server::ToolService;

use super::context::{RequestContext, bounded};
use super::page::Page;
use super::{Shared, calls, content, convert, spec};
use crate::base::Namespace;
use crate::catalog::Catalog;
use crate::catalog::entry::Tool;
use crate::catalog::names::{Style, server_of};
use crate::error::{Error, Reason, Result};
use crate::mcp::connection::not_usable;
use crate::mcp::era;
use crate::mcp::headers::param_headers;
use crate::mcp::link::{CallEvent, CallOptions};
use crate::mcp::protocol::{RawJson, method};
use crate::model::status::{ConnectionState, ListStatus, TransportKind};
use crate::registry::Server;

/// Tools of a page by default.
const PAGE: usize = 500;
/// Events of a call that an app may leave unread before progress and log messages are dropped.
const UNREAD: usize = 64;

/// The service.
#[derive(Clone, Debug)]
pub struct Tools(pub Shared);

/// A call that was understood.
struct Prepared {
    server: Server,
    tool: String,
    arguments: Option<RawJson>,
    meta: Vec<(String, RawJson)>,
    log_level: Option<&'static str>,
    options: CallOptions,
}

impl Tools {
    fn prepare(
        &self,
        call: Option<v1::ToolCall>,
        context: &RequestContext,
        events: Option<mpsc::Sender<CallEvent>>,
    ) -> Result<Prepared> {
        let call = call.ok_or_else(|| Error::invalid("call", "say which tool to call"))?;
        let namespace = self.0.access.namespace(context.caller, &call.namespace)?;
        let arguments = call
            .arguments_json
            .as_deref()
            .map(|text| calls::object(text, "call.arguments_json"))
            .transpose()?;
        let meta = calls::meta(&call.meta_json, "call.meta_json", context)?;
        let timeout = spec::duration(call.timeout, "call.timeout")?;
        let idle = spec::duration(call.idle_timeout, "call.idle_timeout")?;
        let log_level = log_level(call.log_level)?;
        let (server, tool) = self.find(&namespace, call)?;
        let options = calls::options(&server, &self.0.settings, context, timeout, idle, events)?;
        Ok(Prepared {
            server,
            tool,
            arguments,
            meta,
            log_level,
            options,
        })
    }

    /// The server and the tool's name there: from the pair, or from a model name.
    fn find(&self, namespace: &Namespace, call: v1::ToolCall) -> Result<(Server, String)> {
        let registry = &self.0.registry;
        let by_pair = !call.server_id.is_empty() || !call.tool_name.is_empty();
        match (by_pair, call.model_name.is_empty()) {
            (true, false) => Err(Error::invalid(
                "call.model_name",
                "give either `server_id` and `tool_name`, or `model_name`",
            )),
            (false, true) => Err(Error::invalid(
                "call.tool_name",
                "give `server_id` and `tool_name`, or `model_name`",
            )),
            (true, true) if call.tool_name.is_empty() => Err(Error::invalid(
                "call.tool_name",
                "name the tool; ListTools shows the names",
            )),
            (true, true) => Ok((registry.get(namespace, &call.server_id)?, call.tool_name)),
            (false, false) => {
                let name = &call.model_name;
                let likely =
                    server_of(name).and_then(|id| registry.get(namespace, id.as_str()).ok());
                let others = registry.list(namespace, &[])?;
                likely
                    .into_iter()
                    .chain(others)
                    .find_map(|server| {
                        let tool = server.live().catalog.tool_by_model_name(name)?.name.clone();
                        Some((server, tool))
                    })
                    .ok_or_else(|| {
                        Error::new(
                            Reason::ToolNotFound,
                            format!(
                                "no tool has the model name `{name}`; ListTools shows the names"
                            ),
                        )
                        .with("model_name", name.clone())
                    })
            }
        }
    }

    fn list(&self, request: &Request<v1::ListToolsRequest>) -> Result<v1::ListToolsResponse> {
        let context = RequestContext::of(request)?;
        let request = request.get_ref();
        let namespace = self
            .0
            .access
            .namespace(context.caller, &request.namespace)?;
        let style = match request.model_name_style() {
            v1::ModelNameStyle::Mcp => Style::Mcp,
            v1::ModelNameStyle::Tool | v1::ModelNameStyle::Unspecified => Style::Tool,
        };
        let mut page = Page::start(&request.page_token, request.page_size, PAGE)?;
        let mut issues = Vec::new();
        for server in self.0.registry.list(&namespace, &request.server_ids)? {
            let live = server.live();
            let state: i32 = convert::connection_state(live.status.state).into();
            if !request.states.is_empty() && !request.states.contains(&state) {
                continue;
            }
            if page.is_first() {
                issues.extend(issue(&server, &live.status.tools));
            }
            let id = server.record.key.id.clone();
            let tools = live.catalog.tools.entries.iter().enumerate();
            let wanted =
                |tool: &Tool| request.names.is_empty() || request.names.contains(&tool.name);
            page.offer(
                id.as_str(),
                tools.filter(|(_, tool)| wanted(tool)),
                |tool| convert::tool(&id, style, tool),
            );
        }
        let (tools, next_page_token) = page.finish();
        Ok(v1::ListToolsResponse {
            tools,
            next_page_token,
            issues,
        })
    }
}

/// Why a server's entries are missing or may be out of date; `None` if they are not.
pub(super) fn issue(server: &Server, list: &ListStatus) -> Option<v1::ListingIssue> {
    let status = server.live().status;
    let (reason, message) = match (status.state, &list.incomplete_reason) {
        (ConnectionState::Ready, None) => return None,
        (ConnectionState::Ready, Some(incomplete)) => ("LIST_INCOMPLETE", incomplete.clone()),
        _ => {
            let error = not_usable(&server.record.key, &status);
            (error.reason().as_str(), error.message().to_owned())
        }
    };
    Some(v1::ListingIssue {
        server_id: server.record.key.id.to_string(),
        state: convert::connection_state(status.state).into(),
        reason: reason.to_owned(),
        message,
    })
}

fn log_level(level: i32) -> Result<Option<&'static str>> {
    let level = v1::LogLevel::try_from(level)
        .map_err(|_| Error::invalid("call.log_level", format!("{level} is not a log level")))?;
    Ok(match level {
        v1::LogLevel::Unspecified => None,
        v1::LogLevel::Debug => Some("debug"),
        v1::LogLevel::Info => Some("info"),
        v1::LogLevel::Notice => Some("notice"),
        v1::LogLevel::Warning => Some("warning"),
        v1::LogLevel::Error => Some("error"),
        v1::LogLevel::Critical => Some("critical"),
        v1::LogLevel::Alert => Some("alert"),
        v1::LogLevel::Emergency => Some("emergency"),
    })
}

impl Prepared {
    async fn run(self) -> Result<v1::CallToolResponse> {
        let over_http =
            |link: &crate::mcp::link::Link| link.transport_kind() == TransportKind::StreamableHttp;
        let result = calls::invoke(&self.server, &self.options, |link, catalog| {
            let tool = self.known(catalog)?;
            let mut request =
                era::Request::new(method::TOOLS_CALL).param("name", RawJson::encode(&self.tool));
            if let Some(arguments) = &self.arguments {
                request = request.param("arguments", arguments.clone());
                if let Some(tool) = tool.filter(|_| over_http(link)) {
                    request.param_headers = param_headers(&tool.param_headers, arguments);
                }
            }
            request.name = Some(self.tool.clone());
            request.meta.clone_from(&self.meta);
            request.progress = true;
            request.log_level = self.log_level;
            Ok(request)
        })
        .await?;
        let result = Some(content::tool_result(&result)?);
        Ok(v1::CallToolResponse {
            result,
            call_id: self.options.call_id.to_string(),
        })
    }

    /// The tool's definition. A tool that is not in an incomplete list may exist all the same: the server decides.
    fn known<'a>(&self, catalog: &'a Catalog) -> Result<Option<&'a Tool>> {
        let id = &self.server.record.key.id;
        if let Some(tool) = catalog.tool(&self.tool) {
            return Ok(Some(tool));
        }
        if let Some(bad) = catalog.withheld.iter().find(|bad| bad.name == self.tool) {
            return Err(Error::new(
                Reason::NotSupported,
                format!(
                    "tool `{}` of server `{id}` is withheld: {}",
                    self.tool, bad.reason
                ),
            ));
        }
        if catalog.tools.status.incomplete_reason.is_some() {
            return Ok(None);
        }
        Err(Error::new(
            Reason::ToolNotFound,
            format!(
                "server `{id}` offers no tool `{}`; ListTools shows the names",
                self.tool
            ),
        )
        .with("server_id", id.as_str())
        .with("tool_name", self.tool.clone()))
    }
}

#[tonic::async_trait]
impl ToolService for Tools {
    async fn list_tools(
        &self,
        request: Request<v1::ListToolsRequest>,
    ) -> Result<Response<v1::ListToolsResponse>, Status> {
        Ok(Response::new(self.list(&request)?))
    }

    async fn call_tool(
        &self,
        request: Request<v1::CallToolRequest>,
    ) -> Result<Response<v1::CallToolResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let prepared = self.prepare(request.into_inner().call, &context, None)?;
        // A caller that goes away drops this future, which cancels the call at the server.
        Ok(Response::new(context.within(prepared.run()).await?))
    }

    type CallToolStreamStream =
        Pin<Box<dyn Stream<Item = Result<v1::CallToolStreamResponse, Status>> + Send>>;

    async fn call_tool_stream(
        &self,
        request: Request<v1::CallToolStreamRequest>,
    ) -> Result<Response<Self::CallToolStreamStream>, Status> {
        let context = RequestContext::of(&request)?;
        let (events_tx, events) = mpsc::channel(UNREAD);
        let prepared = self.prepare(request.into_inner().call, &context, Some(events_tx))?;
        let started = v1::CallStarted {
            call_id: prepared.options.call_id.to_string(),
        };
        // A task of its own: the call goes on at its own pace whether or not the app reads; dropping the stream ends it.
        let deadline = context.deadline;
        let running = AbortOnDropHandle::new(
            self.0
                .tasks
                .spawn(async move { context.within(prepared.run()).await }),
        );
        let first = stream::iter([Ok(Event::Started(started))]);
        let middle = ReceiverStream::new(events).map(|event| Ok(stream_event(&event)));
        let last = stream::once(async move {
            match running.await {
                Ok(Ok(response)) => Ok(Event::Result(response.result.unwrap_or_default())),
                Ok(Err(error)) => Err(Status::from(error)),
                Err(_) => Err(Error::new(Reason::Draining, "the daemon is stopping").into()),
            }
        });
        // The events end when the call has dropped its sender, so the result is always the last.
        let all = first
            .chain(middle)
            .chain(last)
            .map(|event| event.map(|event| v1::CallToolStreamResponse { event: Some(event) }));
        Ok(Response::new(Box::pin(bounded(deadline, all))))
    }
}

fn stream_event(event: &CallEvent) -> Event {
    match event {
        CallEvent::Progress(params) => Event::Progress(content::progress(params)),
        CallEvent::Log(params) => Event::Log(content::log_message(params)),
        CallEvent::InputRequired(ids) => Event::InputRequired(v1::InputRequired {
            elicitation_ids: ids.iter().map(ToString::to_string).collect(),
        }),
    }
}
