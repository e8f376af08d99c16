//! Calls for apps: finds the tool, prompt or resource, goes through the registry to a link and comes back with a result.
//!
//! The one place that ever makes a call twice: when the server refused it before looking at it, and when its answer was cut
//! off, the tool says that it may be carried out twice, and the operator allows it.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

pub use crate::mcp::link::CallEvent;
pub use crate::mcp::subscriptions::{Follower, Told};

use crate::base::{AppConnection, CallId, Deadline, Namespace};
use crate::catalog::Catalog;
use crate::catalog::entry::Tool;
use crate::catalog::names::{Claim, claim, server_of};
use crate::catalog::output::OutputSchema;
use crate::error::{Error, Reason, Result};
use crate::mcp::Settings;
use crate::mcp::era::Request;
use crate::mcp::headers::param_headers;
use crate::mcp::link::{CallFailure, CallOptions, Link, Patience, Repeat, Unfinished};
use crate::mcp::protocol::{RawJson, method};
use crate::model::spec::{LogLevel, TransportSpec};
use crate::registry::{Registry, Server};

/// Which tool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Target {
    /// The tool of this name at this server: its identity.
    Pair {
        /// The server.
        server_id: String,
        /// The tool's name there.
        tool: String,
    },
    /// The tool with this model name, in either style.
    ModelName(String),
}

/// Sign-ins that one call waits for.
const MAX_SIGN_INS: u32 = 5;

/// What every call brings along.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The connection on which the app asks.
    pub app: AppConnection,
    /// When the app gives up.
    pub deadline: Deadline,
    /// Bound on the whole call; `None`: the server's, else the configured one.
    pub timeout: Option<Duration>,
    /// Bound on the server's silence; `None`: the server's, else the configured one.
    pub idle: Option<Duration>,
    /// Members for the request's `_meta`; free of reserved keys.
    pub meta: Vec<(String, RawJson)>,
    /// Level from which log messages are wanted; `None`: the server's.
    pub log_level: Option<LogLevel>,
    /// Wait for a sign-in that the server wants, instead of ending with `SIGN_IN_REQUIRED`.
    pub wait_for_sign_in: bool,
    /// Where progress, log messages and questions go.
    pub events: Option<mpsc::Sender<CallEvent>>,
}

/// What an argument to be completed belongs to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reference {
    /// A prompt, by name.
    Prompt(String),
    /// A resource template, by its URI template.
    Template(String),
}

/// A result with the id of its call.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The call.
    pub call_id: CallId,
    /// The result, raw.
    pub result: RawJson,
    /// The schema that the result is to be checked against, if the registration wants it.
    pub output: Option<Arc<OutputSchema>>,
}

/// Makes calls. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Calls {
    registry: Registry,
    settings: Arc<Settings>,
}

/// A tool call that was understood and is not made yet.
#[derive(Debug)]
pub struct ToolCall {
    server: Server,
    tool: String,
    arguments: Option<RawJson>,
    call: Call,
}

/// What `invoke` needs of any call.
#[derive(Debug)]
struct Call {
    app: AppConnection,
    options: CallOptions,
    meta: Vec<(String, RawJson)>,
    log_level: Option<LogLevel>,
    wait_for_sign_in: bool,
    /// Whether calls of tools that are declared safe may be carried out twice.
    repeat_safe: bool,
}

impl Calls {
    /// Calls to the servers of this registry.
    #[must_use]
    pub fn new(registry: Registry, settings: Arc<Settings>) -> Self {
        Self { registry, settings }
    }

    /// Finds the tool's server and fixes the terms of the call. Nothing is sent yet.
    ///
    /// # Errors
    /// `SERVER_NOT_FOUND`, `NAMESPACE_NOT_FOUND`; `TOOL_NOT_ALLOWED`, whether there is such a tool or not; `TOOL_NOT_FOUND`
    /// for an unknown model name.
    pub fn tool(
        &self,
        namespace: &Namespace,
        target: Target,
        arguments: Option<RawJson>,
        terms: Terms,
    ) -> Result<ToolCall> {
        let (server, tool) = match target {
            Target::Pair { server_id, tool } => (self.registry.get(namespace, &server_id)?, tool),
            Target::ModelName(name) => self.by_model_name(namespace, &name)?,
        };
        if !server.record.spec.tools.admit(&tool) {
            return Err(not_allowed(&server, "tool_name", &tool));
        }
        let call = self.call(&server, terms);
        Ok(ToolCall {
            server,
            tool,
            arguments,
            call,
        })
    }

    fn by_model_name(&self, namespace: &Namespace, name: &str) -> Result<(Server, String)> {
        let known = |server: Server| {
            let tool = server.live().catalog.tool_by_model_name(name)?.name.clone();
            Some((server, tool))
        };
        let likely = server_of(name).and_then(|id| self.registry.get(namespace, id.as_str()).ok());
        if let Some(found) = likely.and_then(known) {
            return Ok(found);
        }
        // A shortened name may not tell its server: look everywhere.
        let all = self.registry.list(namespace, &[])?;
        if let Some(found) = all.iter().cloned().find_map(known) {
            return Ok(found);
        }
        // What the rules keep from apps is told from what does not exist by its name alone.
        let kept = |server: &&Server| {
            let rules = &server.record.spec.tools;
            match claim(&server.record.key.id, name) {
                Claim::Tool(tool) => !rules.admit(tool),
                Claim::Hashed => !rules.is_empty(),
                Claim::Other => false,
            }
        };
        if let Some(server) = all.iter().find(kept) {
            return Err(not_allowed(server, "model_name", name));
        }
        Err(Error::new(
            Reason::ToolNotFound,
            format!("no tool has the model name `{name}`; ListTools shows the names"),
        )
        .with("model_name", name))
    }

    fn call(&self, server: &Server, terms: Terms) -> Call {
        let own = server.record.spec.timeouts;
        // What nobody can see need not be sent.
        let watched = terms.events.as_ref();
        let log_level = watched.and(server.record.spec.log_level);
        let options = CallOptions {
            call_id: CallId::generate(),
            deadline: terms.deadline,
            call_timeout: terms.timeout.or(own.call).unwrap_or(self.settings.call),
            idle_timeout: terms
                .idle
                .or(own.call_idle)
                .unwrap_or(self.settings.call_idle),
            events: terms.events,
        };
        Call {
            app: terms.app,
            options,
            meta: terms.meta,
            wait_for_sign_in: terms.wait_for_sign_in,
            log_level: terms.log_level.or(log_level),
            repeat_safe: self.settings.repeat_safe,
        }
    }

    /// Reads a resource. Dropping the future cancels the call at the server.
    ///
    /// # Errors
    /// As [`ToolCall::run`].
    pub async fn read_resource(
        &self,
        namespace: &Namespace,
        server_id: &str,
        uri: &str,
        terms: Terms,
    ) -> Result<Answer> {
        let server = self.registry.get(namespace, server_id)?;
        let call = self.call(&server, terms);
        let build = |link: &Link, _: &Catalog| {
            offered(&server, link, "resources")?;
            let mut request =
                Request::new(method::RESOURCES_READ).param("uri", RawJson::encode(uri));
            request.name = Some(uri.to_owned());
            Ok(request)
        };
        let (answer, _) = call.invoke(&server, |_| false, build).await?;
        Ok(answer)
    }

    /// Follows a resource: whoever holds the result is told of its updates, over every connection of the server.
    ///
    /// # Errors
    /// Why the server cannot be used now; `NOT_SUPPORTED` if it announces no updates.
    pub async fn follow(
        &self,
        namespace: &Namespace,
        server_id: &str,
        uri: &str,
        deadline: Deadline,
    ) -> Result<(Server, Follower)> {
        let server = self.registry.get(namespace, server_id)?;
        let (link, _) = server.handle.link(deadline).await?;
        if !link.peer.has_flag("resources", "subscribe") {
            return Err(Error::new(
                Reason::NotSupported,
                format!(
                    "server `{}` does not announce updates of resources",
                    server.record.key.id
                ),
            ));
        }
        let follower = server.handle.subscriptions().follow(uri);
        Ok((server, follower))
    }

    /// Fills a prompt. Dropping the future cancels the call at the server.
    ///
    /// # Errors
    /// As [`ToolCall::run`].
    pub async fn get_prompt(
        &self,
        namespace: &Namespace,
        server_id: &str,
        name: &str,
        arguments: &RawJson,
        terms: Terms,
    ) -> Result<Answer> {
        let server = self.registry.get(namespace, server_id)?;
        let call = self.call(&server, terms);
        let build = |link: &Link, _: &Catalog| {
            offered(&server, link, "prompts")?;
            let mut request = Request::new(method::PROMPTS_GET)
                .param("name", RawJson::encode(name))
                .param("arguments", arguments.clone());
            request.name = Some(name.to_owned());
            Ok(request)
        };
        let (answer, _) = call.invoke(&server, |_| false, build).await?;
        Ok(answer)
    }

    /// Completes an argument. Dropping the future cancels the call at the server.
    ///
    /// # Errors
    /// As [`ToolCall::run`]; `NOT_SUPPORTED` if the server completes nothing.
    pub async fn complete(
        &self,
        namespace: &Namespace,
        server_id: &str,
        reference: &Reference,
        argument: (&str, &str),
        known: Option<&RawJson>,
        terms: Terms,
    ) -> Result<Answer> {
        let server = self.registry.get(namespace, server_id)?;
        let call = self.call(&server, terms);
        let reference = match reference {
            Reference::Prompt(name) => RawJson::object(&[("type", "ref/prompt"), ("name", name)]),
            Reference::Template(uri) => RawJson::object(&[("type", "ref/resource"), ("uri", uri)]),
        };
        let argument = RawJson::object(&[("name", argument.0), ("value", argument.1)]);
        let build = |link: &Link, _: &Catalog| {
            // The first revision had completion and no capability for it.
            if link.dialect.version() != "2024-11-05" {
                offered(&server, link, "completions")?;
            }
            let mut request = Request::new(method::COMPLETE)
                .param("ref", reference.clone())
                .param("argument", argument.clone());
            if let Some(known) = known {
                request = request.param("context", known.clone());
            }
            Ok(request)
        };
        let (answer, _) = call.invoke(&server, |_| false, build).await?;
        Ok(answer)
    }
}

/// The registration keeps this tool from apps; nothing is said about whether the server has it.
fn not_allowed(server: &Server, kind: &'static str, name: &str) -> Error {
    let id = &server.record.key.id;
    Error::new(
        Reason::ToolNotAllowed,
        format!(
            "the settings of server `{id}` do not allow the tool `{name}`; UpdateServer changes `allowed_tools` and \
             `denied_tools`"
        ),
    )
    .with("server_id", id.as_str())
    .with(kind, name)
}

/// Only what was agreed is used (MCP 2025-11-25 basic/lifecycle, "Operation").
fn offered(server: &Server, link: &Link, capability: &str) -> Result<()> {
    if link.peer.capabilities.is_none() || link.peer.has(capability) {
        return Ok(());
    }
    Err(Error::new(
        Reason::NotSupported,
        format!(
            "server `{}` does not offer `{capability}`",
            server.record.key.id
        ),
    ))
}

impl ToolCall {
    /// The call's id.
    #[must_use]
    pub fn id(&self) -> &CallId {
        &self.call.options.call_id
    }

    /// Makes the call and waits for its result, through every question. Dropping the future cancels the call at the
    /// server at once.
    ///
    /// # Errors
    /// `TOOL_NOT_FOUND`, `TOOL_NOT_ALLOWED`; why the server cannot be used; `UPSTREAM_ERROR`; `OUTCOME_UNKNOWN`.
    pub async fn run(self) -> Result<Answer> {
        let build = |link: &Link, catalog: &Catalog| {
            let tool = self.known(catalog)?;
            let mut request =
                Request::new(method::TOOLS_CALL).param("name", RawJson::encode(&self.tool));
            if let Some(arguments) = &self.arguments {
                request = request.param("arguments", arguments.clone());
                let over_http = link.over_streamable_http();
                if let Some(tool) = tool.filter(|_| over_http) {
                    request.param_headers = param_headers(&tool.param_headers, arguments);
                }
            }
            request.as_task = tool.is_some_and(|tool| tool.only_as_task) && link.peer.runs_tasks();
            request.name = Some(self.tool.clone());
            request.progress = true;
            Ok(request)
        };
        let harmless = |catalog: &Catalog| {
            let hints = catalog.tool(&self.tool).map(|tool| tool.hints);
            hints.is_some_and(|hints| {
                hints.read_only == Some(true) || hints.idempotent == Some(true)
            })
        };
        let (mut answer, catalog) = self.call.invoke(&self.server, harmless, build).await?;
        if self.server.record.spec.check_results {
            let tool = catalog.tool(&self.tool);
            answer.output = tool.and_then(|tool| tool.output_schema.clone());
        }
        Ok(answer)
    }

    /// The tool's definition. A tool that is not in an incomplete list may exist all the same: the server decides.
    fn known<'a>(&self, catalog: &'a Catalog) -> Result<Option<&'a Tool>> {
        let id = &self.server.record.key.id;
        // They may have changed while the call waited for its server.
        if !catalog.rules().admit(&self.tool) {
            return Err(not_allowed(&self.server, "tool_name", &self.tool));
        }
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

impl Call {
    /// Makes a call. `build` makes the request for the catalog of the link that is used, which comes back with the answer.
    ///
    /// A call that the server refused before looking at it is made once more: on a new link when the session was gone,
    /// with fresh tool definitions when mirrored headers did not match (MCP 2026-07-28 basic/transports/streamable-http,
    /// "Client Behavior"). A call whose answer was cut off is made once more if the operator allows it and `harmless` says
    /// that it may be carried out twice. Nothing else is ever repeated. A task whose link was lost is waited for on the
    /// next one.
    async fn invoke(
        &self,
        server: &Server,
        harmless: impl Fn(&Catalog) -> bool,
        build: impl Fn(&Link, &Catalog) -> Result<Request>,
    ) -> Result<(Answer, Arc<Catalog>)> {
        let options = &self.options;
        let mut patience = Patience::new(options);
        let mut refused = false;
        // What is known of the call since its answer was cut off, or its task lost its link.
        let mut cut_off: Option<Error> = None;
        let mut task: Option<Unfinished> = None;
        let mut target: Option<Arc<TransportSpec>> = None;
        let mut sign_ins = 0;
        loop {
            let mut used = None;
            let before = server.handle.sign_ins();
            let attempt = async {
                let (link, catalog) = server.handle.link_for(&self.app, options.deadline).await?;
                // What may have had an effect goes on where it began, with the same credentials, or nowhere.
                let before = target.replace(Arc::clone(link.target()));
                if cut_off.is_some() && before.is_some_and(|before| before != *link.target()) {
                    return Err(moved().into());
                }
                if let Some(task) = task.take() {
                    used = Some(catalog);
                    return Box::pin(link.resume(task, options, &mut patience)).await;
                }
                let mut request = build(&link, &catalog)?;
                request.meta.clone_from(&self.meta);
                request.log_level = self.log_level;
                used = Some(catalog);
                link.call(request, options, &mut patience).await
            };
            let outcome: std::result::Result<RawJson, CallFailure> = attempt.await;
            let catalog = used.unwrap_or_default();
            let failure = match outcome {
                Ok(result) => {
                    let answer = Answer {
                        call_id: options.call_id.clone(),
                        result,
                        output: None,
                    };
                    return Ok((answer, catalog));
                }
                Err(failure) => failure,
            };
            if self.wait_for_sign_in
                && failure.error.reason() == Reason::SignInRequired
                && cut_off.is_none()
                && sign_ins < MAX_SIGN_INS
                && server.handle.signed_in(before, options.deadline).await
            {
                // It was refused before it was looked at.
                sign_ins += 1;
                continue;
            }
            let fresh_tools = failure.repeat == Some(Repeat::WithFreshTools);
            match failure.repeat {
                Some(Repeat::GoOn(unfinished)) => {
                    cut_off = Some(failure.error.clone());
                    task = Some(unfinished);
                }
                Some(Repeat::OnNewLink | Repeat::WithFreshTools) if !refused => refused = true,
                Some(Repeat::IfHarmless)
                    if self.repeat_safe && cut_off.is_none() && harmless(&catalog) =>
                {
                    cut_off = Some(failure.error.clone());
                }
                _ => {
                    let error = cut_off
                        .filter(|_| !is_about_the_call(failure.error.reason()))
                        .unwrap_or(failure.error);
                    return Err(error.with("server_id", server.record.key.id.as_str()));
                }
            }
            tracing::debug!(error = %failure.error, "a call is made again");
            if fresh_tools {
                let refreshed = server.handle.refresh().await.done();
                let _ = tokio::time::timeout(options.idle_timeout, refreshed).await;
            }
        }
    }
}

fn moved() -> Error {
    Error::new(
        Reason::UpstreamUnreachable,
        "the server was moved while the call was under way",
    )
}

/// Whether a failed repetition says more about a call than that its first answer was cut off. What kept the repetition from
/// being sent does not: the first one may have had its effect all the same.
fn is_about_the_call(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::UpstreamError
            | Reason::UpstreamTimeout
            | Reason::UpstreamProtocol
            | Reason::DeadlineExceeded
            | Reason::OutcomeUnknown
            | Reason::MessageTooLarge
    )
}
