//! `ToolService`: lists tools from the catalog and calls them.

use std::pin::Pin;
use std::sync::Arc;

use futures_core::Stream;
use futures_util::stream::{self, StreamExt};
use mcp_sidecar_proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::task::AbortOnDropHandle;
use tonic::{Request, Response, Status, Streaming};
use v1::call_tool_stream_response::Event;
use v1::tool_service_server::ToolService;

use super::context::{RequestContext, bounded};
use super::listing::Listing;
use super::{Shared, call_stream, content, convert, input};
use crate::calls::{Answer, CallEvent, Prepared, Target, Terms};
use crate::catalog::entry::Tool;
use crate::catalog::names::Style;
use crate::catalog::output::Checker;
use crate::error::{Error, Reason, Result};

/// Events of a call that an app may leave unread before progress and log messages are dropped.
const UNREAD: usize = 64;

/// The service.
#[derive(Clone, Debug)]
pub struct Tools(pub Shared);

impl Tools {
    /// Understands a call; nothing is made yet.
    ///
    /// # Errors
    /// `INVALID_FIELD`; `CALLER_NOT_ALLOWED`; what cannot be called.
    pub(super) fn prepare(
        &self,
        call: Option<v1::ToolCall>,
        context: &RequestContext,
        events: Option<mpsc::Sender<CallEvent>>,
    ) -> Result<Prepared> {
        let call = call.ok_or_else(|| Error::invalid("call", "say which tool to call"))?;
        let namespace = self.0.namespace(context, &call.namespace)?;
        context.note(|trail| {
            if call.model_name.is_empty() {
                trail.server(&call.server_id);
                trail.tool(&call.tool_name);
            } else {
                trail.tool(&call.model_name);
            }
        });
        let arguments = call
            .arguments_json
            .as_deref()
            .map(|text| input::object(text, "call.arguments_json"))
            .transpose()?;
        let terms = Terms {
            app: context.app.clone(),
            deadline: context.deadline,
            timeout: input::bound(call.timeout, "call.timeout")?,
            idle: input::bound(call.idle_timeout, "call.idle_timeout")?,
            meta: input::meta(&call.meta_json, "call.meta_json", context)?,
            log_level: input::log_level(call.log_level, "call.log_level")?,
            wait_for_sign_in: call.wait_for_sign_in,
            events,
            request_id: input::request_id(&call.request_id, "call.request_id")?,
            detach: call.detach,
            trail: context.trail.clone(),
        };
        context.note(|trail| {
            if !call.request_id.is_empty() {
                trail.request_id(&call.request_id);
            }
        });
        self.0
            .calls
            .tool(&namespace, target(call)?, arguments, terms)
    }

    fn list(&self, request: &Request<v1::ListToolsRequest>) -> Result<v1::ListToolsResponse> {
        let context = RequestContext::of(request)?;
        let request = request.get_ref();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        let style = match request.model_name_style() {
            v1::ModelNameStyle::Mcp => Style::Mcp,
            v1::ModelNameStyle::Tool | v1::ModelNameStyle::Unspecified => Style::Tool,
        };
        let mut listing = Listing::start(&request.page_token, request.page_size)?;
        for server in self.0.registry.list(&namespace, &request.server_ids)? {
            let live = server.live();
            let state: i32 = convert::connection_state(live.status.state).into();
            if !request.states.is_empty() && !request.states.contains(&state) {
                continue;
            }
            let id = &server.record.key.id;
            let tools = live.catalog.tools.entries.iter().enumerate();
            let wanted =
                |tool: &Tool| request.names.is_empty() || request.names.contains(&tool.name);
            listing.offer(
                &server,
                &live.status.tools,
                tools.filter(|(_, tool)| wanted(tool)),
                |tool| convert::tool(id, style, tool),
            );
        }
        let (tools, next_page_token, issues) = listing.finish();
        Ok(v1::ListToolsResponse {
            tools,
            next_page_token,
            issues,
        })
    }
}

/// The tool: the pair, or a model name.
fn target(call: v1::ToolCall) -> Result<Target> {
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
        (true, true) => Ok(Target::Pair {
            server_id: call.server_id,
            tool: call.tool_name,
        }),
        (false, false) => Ok(Target::ModelName(call.model_name)),
    }
}

fn response(answer: &Answer, checker: &Checker) -> Result<v1::CallToolResponse> {
    let result = Some(content::tool_answer(answer, checker)?);
    Ok(v1::CallToolResponse {
        result,
        call_id: answer.call_id.to_string(),
    })
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
        let call = request.into_inner().call;
        let detach = call.as_ref().is_some_and(|call| call.detach);
        let prepared = self.prepare(call, &context, None)?;
        // A caller that goes away drops this future, which cancels the call at the server.
        let made = context.within(prepared.make()).await?;
        if detach {
            let response = match made.answer_so_far()? {
                Some(answer) => response(&answer, &self.0.checker)?,
                None => v1::CallToolResponse {
                    result: None,
                    call_id: made.id().to_string(),
                },
            };
            return Ok(Response::new(response));
        }
        let answer = context.within(made.answer()).await?;
        Ok(Response::new(response(&answer, &self.0.checker)?))
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
        let made = context.within(prepared.make()).await?;
        let started = v1::CallStarted {
            call_id: made.id().to_string(),
        };
        // A task of its own: the call goes on at its own pace whether or not the app reads; dropping the stream ends it.
        let deadline = context.deadline;
        let running = AbortOnDropHandle::new(
            self.0
                .tasks
                .spawn(async move { context.within(made.answer()).await }),
        );
        let first = stream::iter([Ok(Event::Started(started))]);
        let middle = ReceiverStream::new(events).map(|event| Ok(stream_event(&event)));
        let checker = Arc::clone(&self.0.checker);
        let last = stream::once(async move {
            match running.await {
                Ok(Ok(answer)) => Ok(Event::Result(content::tool_answer(&answer, &checker)?)),
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

    type CallToolsStream =
        Pin<Box<dyn Stream<Item = Result<v1::CallToolsResponse, Status>> + Send>>;

    async fn call_tools(
        &self,
        request: Request<Streaming<v1::CallToolsRequest>>,
    ) -> Result<Response<Self::CallToolsStream>, Status> {
        let context = RequestContext::of(&request)?;
        let responses = call_stream::responses(self.clone(), context, request.into_inner());
        Ok(Response::new(Box::pin(responses)))
    }
}

fn stream_event(event: &CallEvent) -> Event {
    match event {
        CallEvent::Progress(params) => Event::Progress(content::progress(params)),
        CallEvent::Log(params) => Event::Log(content::log_message(params)),
        CallEvent::Task { status, message } => Event::Task(v1::TaskStatus {
            status: status.clone(),
            message: message.clone(),
        }),
        CallEvent::InputRequired(ids) => Event::InputRequired(v1::InputRequired {
            elicitation_ids: ids.iter().map(ToString::to_string).collect(),
        }),
    }
}
