//! Calls for apps: finds the tool, prompt or resource, makes the call through the registry on a link, and comes back with a
//! result.
//!
//! A call is *plain* while it is in the hands of its caller: it runs in the caller's task and nothing of it is stored. It is
//! *kept*, on disk, from the beginning if it was detached or has a request id, and from when it first has to wait for people
//! without anything being under way at its server.
//!
//! | file | |
//! |---|---|
//! | `approval` | whether somebody is asked before it is made |
//! | `operation` | what is asked, and the request for it |
//! | `attempt` | one round; the one place that ever makes it twice |
//! | `rounds` | from what the server asks to the next request |
//! | `plan` | what is needed to go on, also after a restart |
//! | `made` | from a call that was understood to what came of it |
//! | `ledger` | every call that is under way or rests |
//! | `kept` | the life of calls that are kept |

mod approval;
mod attempt;
mod kept;
mod ledger;
mod made;
mod operation;
mod plan;
mod rounds;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use self::made::{Found, Made, Name, Prepared};
pub use crate::mcp::link::CallEvent;
pub use crate::mcp::subscriptions::{Follower, Told};

use self::attempt::Attempt;
use self::ledger::Ledger;
use self::operation::Operation;
use self::plan::Plan;
use crate::audit::{Audit, Trail};
use crate::base::{AppConnection, CallId, Deadline, Namespace, ServerId};
use crate::catalog::Catalog;
use crate::catalog::names::{Claim, claim, server_of};
use crate::catalog::output::OutputSchema;
use crate::error::{Error, Reason, Result};
use crate::inputs::Inputs;
use crate::mcp::Settings;
use crate::mcp::era::Request;
use crate::mcp::link::{Answered, CallOptions, Link, Listeners, Patience};
use crate::mcp::protocol::{RawJson, method};
use crate::metrics::Metrics;
use crate::model::call::{self as model, CallState, Subject};
use crate::model::spec::LogLevel;
use crate::registry::{Registry, Server};
use crate::store::Store;

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
    /// The id that the app gives the call.
    pub request_id: Option<String>,
    /// Make it go on without its caller.
    pub detach: bool,
    /// What the RPC tells the audit log.
    pub trail: Option<Trail>,
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
pub struct Calls(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    registry: Registry,
    inputs: Inputs,
    store: Store,
    settings: Arc<Settings>,
    audit: Audit,
    ledger: Ledger,
    /// Work for calls that are kept.
    drivers: TaskTracker,
    tasks: TaskTracker,
    draining: CancellationToken,
    closing: CancellationToken,
}

/// What calls need.
#[derive(Debug)]
pub struct CallsParts {
    /// The servers.
    pub registry: Registry,
    /// The queue of questions.
    pub inputs: Inputs,
    /// Where calls are kept.
    pub store: Store,
    /// Bounds and defaults.
    pub settings: Arc<Settings>,
    /// Where every call is written down that has ended.
    pub audit: Audit,
    /// Where it is counted.
    pub metrics: Metrics,
    /// Owner of short tasks.
    pub tasks: TaskTracker,
    /// Cancelled when the daemon begins to stop.
    pub draining: CancellationToken,
}

impl Calls {
    /// Takes up what was left when the daemon ended.
    ///
    /// # Errors
    /// STORE_FAILED.
    pub async fn start(parts: CallsParts) -> Result<Self> {
        let calls = Self(Arc::new(Inner {
            registry: parts.registry,
            inputs: parts.inputs,
            store: parts.store,
            settings: parts.settings,
            ledger: Ledger::new(parts.audit.clone(), parts.metrics),
            audit: parts.audit,
            drivers: TaskTracker::new(),
            tasks: parts.tasks,
            draining: parts.draining,
            closing: CancellationToken::new(),
        }));
        calls.restore().await?;
        Ok(calls)
    }

    /// How many calls rest: they wait for answers, and nothing of them is under way.
    #[must_use]
    pub fn resting(&self) -> usize {
        self.0.ledger.resting()
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
    ) -> Result<Prepared> {
        let (server, name) = match target {
            Target::Pair { server_id, tool } => (self.0.registry.get(namespace, &server_id)?, tool),
            Target::ModelName(name) => self.by_model_name(namespace, &name)?,
        };
        if !server.record.spec.tools.admit(&name) {
            return Err(not_allowed(&server, "tool_name", &name));
        }
        let operation = Operation::Tool { name, arguments };
        Ok(self.prepare(server, operation, terms))
    }

    fn by_model_name(&self, namespace: &Namespace, name: &str) -> Result<(Server, String)> {
        let known = |server: Server| {
            let tool = server.live().catalog.tool_by_model_name(name)?.name.clone();
            Some((server, tool))
        };
        let likely =
            server_of(name).and_then(|id| self.0.registry.get(namespace, id.as_str()).ok());
        if let Some(found) = likely.and_then(known) {
            return Ok(found);
        }
        // A shortened name may not tell its server: look everywhere.
        let all = self.0.registry.list(namespace, &[])?;
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

    fn prepare(&self, server: Server, operation: Operation, terms: Terms) -> Prepared {
        let spec = &server.record.spec;
        // What nobody can see need not be sent.
        let watched = terms.events.as_ref();
        let log_level = terms.log_level.or(watched.and(spec.log_level));
        let user = terms.app.user().into();
        let call_timeout = terms
            .timeout
            .or(spec.timeouts.call)
            .unwrap_or(self.0.settings.call);
        let idle = terms.idle.or(spec.timeouts.call_idle);
        Prepared {
            calls: self.clone(),
            app: terms.app,
            deadline: terms.deadline,
            plan: Plan {
                operation,
                target: spec.target(),
                meta: terms.meta,
                log_level,
                call_timeout,
                left: call_timeout,
                idle_timeout: idle.unwrap_or(self.0.settings.call_idle),
                wait_for_sign_in: terms.wait_for_sign_in,
                user,
                rounds: 0,
                last: None,
                opened: None,
                approval: None,
                wait: None,
            },
            listeners: terms.events.map(Listeners::from),
            request_id: terms.request_id,
            detach: terms.detach,
            trail: terms.trail,
            server,
        }
    }

    /// Finds the server of a resource that is to be read. Nothing is sent yet.
    ///
    /// # Errors
    /// `SERVER_NOT_FOUND`, `NAMESPACE_NOT_FOUND`.
    pub fn read_resource(
        &self,
        namespace: &Namespace,
        server_id: &str,
        uri: String,
        terms: Terms,
    ) -> Result<Prepared> {
        let server = self.0.registry.get(namespace, server_id)?;
        Ok(self.prepare(server, Operation::Resource { uri }, terms))
    }

    /// Finds the server of a prompt that is to be filled. Nothing is sent yet.
    ///
    /// # Errors
    /// `SERVER_NOT_FOUND`, `NAMESPACE_NOT_FOUND`.
    pub fn get_prompt(
        &self,
        namespace: &Namespace,
        server_id: &str,
        name: String,
        arguments: RawJson,
        terms: Terms,
    ) -> Result<Prepared> {
        let server = self.0.registry.get(namespace, server_id)?;
        Ok(self.prepare(server, Operation::Prompt { name, arguments }, terms))
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
        let server = self.0.registry.get(namespace, server_id)?;
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

    /// Completes an argument. Dropping the future cancels the call at the server.
    ///
    /// # Errors
    /// As [`Made::answer`]; `NOT_SUPPORTED` if the server completes nothing.
    pub async fn complete(
        &self,
        namespace: &Namespace,
        server_id: &str,
        reference: &Reference,
        argument: (&str, &str),
        known: Option<&RawJson>,
        terms: Terms,
    ) -> Result<Answer> {
        let server = self.0.registry.get(namespace, server_id)?;
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
        let timeouts = server.record.spec.timeouts;
        let options = CallOptions {
            call_id: CallId::generate(),
            deadline: terms.deadline,
            call_timeout: terms
                .timeout
                .or(timeouts.call)
                .unwrap_or(self.0.settings.call),
            idle_timeout: timeouts.call_idle.unwrap_or(self.0.settings.call_idle),
            events: None,
        };
        let attempt = Attempt {
            server: &server,
            app: &terms.app,
            options: &options,
            meta: &terms.meta,
            log_level: None,
            wait_for_sign_in: terms.wait_for_sign_in,
            replies: None,
        };
        let mut patience = Patience::new(&options);
        let made = attempt.make(self, &mut patience, |_| false, build).await?;
        match made.answered {
            Answered::Complete(result) => Ok(Answer {
                call_id: options.call_id,
                result,
                output: None,
            }),
            // Only calls may ask (MCP 2026-07-28 basic/patterns/mrtr, "Supported Requests").
            Answered::Asked(_) => Err(Error::new(
                Reason::UpstreamProtocol,
                "the server asks for input to complete an argument, which it may not",
            )),
        }
    }

    /// A call that is under way, rests, or was kept.
    ///
    /// # Errors
    /// `CALL_NOT_FOUND`, `STORE_FAILED`.
    pub async fn find(&self, namespace: Namespace, name: Name) -> Result<Found> {
        let id = match name {
            Name::Id(id) => id,
            Name::Request(request_id) => {
                let store = &self.0.store;
                store.call_by_request(namespace.clone(), request_id).await?
            }
        };
        Ok(Found {
            watcher: self.watch(namespace, id).await?,
            calls: self.clone(),
        })
    }

    /// Up to `limit` calls of a namespace behind the id `after`, oldest first. An empty list of servers or states means
    /// "all".
    ///
    /// # Errors
    /// `STORE_FAILED`.
    pub async fn list(
        &self,
        namespace: Namespace,
        server_ids: Vec<ServerId>,
        states: Vec<CallState>,
        after: Option<CallId>,
        limit: usize,
    ) -> Result<Vec<model::Call>> {
        let mut all = self.with_questions(self.0.ledger.plain(&namespace)).await?;
        all.retain(|call| {
            (server_ids.is_empty() || server_ids.contains(&call.server.id))
                && (states.is_empty() || states.contains(&call.state))
                && after.as_ref().is_none_or(|after| call.id > *after)
        });
        let kept = self
            .0
            .store
            .calls(namespace, server_ids, states, after, limit)
            .await?;
        all.extend(kept);
        all.sort_by(|one, other| one.id.cmp(&other.id));
        // One that was kept in between is in both.
        all.dedup_by(|one, other| one.id == other.id);
        all.truncate(limit);
        Ok(all)
    }

    /// Plain calls as they are: the store knows of their questions.
    pub(super) async fn with_questions(
        &self,
        mut calls: Vec<model::Call>,
    ) -> Result<Vec<model::Call>> {
        let ids: Vec<_> = calls.iter().map(|call| call.id.clone()).collect();
        if ids.is_empty() {
            return Ok(calls);
        }
        let waiting = self.0.store.calls_that_wait(ids).await?;
        for call in &mut calls {
            if waiting.contains(&call.id) {
                call.state = CallState::InputRequired;
            }
        }
        Ok(calls)
    }

    fn output_schema(&self, call: &model::Call) -> Option<Arc<OutputSchema>> {
        let Subject::Tool(name) = &call.subject else {
            return None;
        };
        let key = &call.server;
        let server = self.0.registry.get(&key.namespace, key.id.as_str()).ok()?;
        if !server.record.spec.check_results {
            return None;
        }
        let live = server.live();
        live.catalog.tool(name)?.output_schema.clone()
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
