//! A small, real MCP server on the official Rust SDK, for `cargo quickstart` and for the tests.
//!
//! `demo-server stdio` speaks on its standard streams, `demo-server http [--port N]` at one Streamable HTTP endpoint
//! on the loopback address. Both speak every protocol version that the SDK knows, in both eras, unless
//! `--legacy-only` or `--modern-only` narrows that.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for the terminal: it says where it listens and what is wrong with its arguments"
)]

mod job;

use std::borrow::Cow;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, bail};
use rmcp::handler::server::tool::ToolCallContext;
use rmcp::handler::server::wrapper::Parameters;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, CancelTaskParams, ContentBlock,
    CreateTaskResult, GetTaskParams, GetTaskResult, Implementation, JsonObject,
    ListResourcesResult, PaginatedRequestParams, ProgressNotificationParam, PromptMessage,
    ProtocolVersion, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult, Resource,
    ResourceContents, Role, ServerCapabilities, ServerConfig, UpdateTaskParams,
};
use rmcp::service::RequestContext;
use rmcp::task_manager::TaskManager;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{
    ErrorData, RoleServer, ServerHandler, ServiceExt as _, prompt, prompt_handler, prompt_router,
    tool, tool_handler, tool_router,
};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use job::JobArguments;

const USAGE: &str = "usage: demo-server stdio [--legacy-only | --modern-only]
       demo-server http [--port PORT] [--legacy-only | --modern-only]";

const README_URI: &str = "demo://readme";
const README: &str =
    "The demo server: tools add, echo, slow and job, this text, and the prompt greet.";

/// One step of `slow`.
const STEP: Duration = Duration::from_millis(300);
const MAX_STEPS: u32 = 100;

/// Which protocol versions are spoken.
#[derive(Clone, Copy)]
enum Eras {
    Both,
    Legacy,
    Modern,
}

#[derive(Clone)]
struct Demo {
    eras: Eras,
    tasks: TaskManager,
}

/// Arguments of `add`.
#[derive(Deserialize, JsonSchema)]
struct AddArguments {
    /// The first number.
    a: i64,
    /// The second number.
    b: i64,
}

/// Arguments of `slow`.
#[derive(Deserialize, JsonSchema)]
struct SlowArguments {
    /// How many steps to take, 1 to 100.
    #[schemars(range(min = 1, max = 100))]
    steps: u32,
}

/// Arguments of `greet`.
#[derive(Deserialize, JsonSchema)]
struct GreetArguments {
    /// Who is greeted.
    name: String,
}

#[tool_router]
impl Demo {
    /// Adds two integers.
    #[tool(annotations(read_only_hint = true, idempotent_hint = true))]
    async fn add(
        &self,
        Parameters(AddArguments { a, b }): Parameters<AddArguments>,
    ) -> CallToolResult {
        match a.checked_add(b) {
            Some(sum) => CallToolResult::structured(json!({ "sum": sum })),
            None => CallToolResult::error(vec![ContentBlock::text(
                "the sum does not fit into 64 bits",
            )]),
        }
    }

    /// Returns its arguments, whatever they are.
    #[tool(annotations(read_only_hint = true, idempotent_hint = true))]
    async fn echo(&self, Parameters(arguments): Parameters<JsonObject>) -> CallToolResult {
        CallToolResult::structured(Value::Object(arguments))
    }

    /// Takes its time and reports progress after each step.
    #[tool(annotations(read_only_hint = true))]
    async fn slow(
        &self,
        Parameters(SlowArguments { steps }): Parameters<SlowArguments>,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResult, ErrorData> {
        if !(1..=MAX_STEPS).contains(&steps) {
            let text = format!("steps must be 1 to {MAX_STEPS}, not {steps}");
            return Ok(CallToolResult::error(vec![ContentBlock::text(text)]));
        }
        let token = context.meta.get_progress_token();
        for step in 1..=steps {
            tokio::select! {
                () = tokio::time::sleep(STEP) => {}
                () = context.ct.cancelled() => {
                    return Err(ErrorData::internal_error("cancelled", None));
                }
            }
            if let Some(token) = &token {
                let progress = ProgressNotificationParam::new(token.clone(), f64::from(step))
                    .with_total(f64::from(steps))
                    .with_message(format!("step {step} of {steps}"));
                // Whoever asked may be gone; the call's own end says so.
                let _ = context.peer.notify_progress(progress).await;
            }
        }
        Ok(CallToolResult::success(vec![ContentBlock::text(format!(
            "{steps} steps done"
        ))]))
    }

    /// Takes its time, as a task where the client knows tasks.
    #[tool]
    async fn job(&self, Parameters(arguments): Parameters<JobArguments>) -> CallToolResult {
        arguments.at_once().await
    }
}

#[prompt_router]
impl Demo {
    /// Asks for a greeting.
    #[prompt(name = "greet")]
    async fn greet(
        &self,
        Parameters(GreetArguments { name }): Parameters<GreetArguments>,
    ) -> Vec<PromptMessage> {
        vec![PromptMessage::new_text(
            Role::User,
            format!("Greet {name} in one friendly sentence."),
        )]
    }
}

#[tool_handler]
#[prompt_handler]
impl ServerHandler for Demo {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_resources()
            .enable_prompts()
            .enable_tasks()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new(
                "demo-server",
                env!("CARGO_PKG_VERSION"),
            ))
            .with_instructions("Four tools to try a client with: add, echo, slow, job.")
    }

    fn supported_protocol_versions(&self) -> Cow<'static, [ProtocolVersion]> {
        match self.eras {
            Eras::Both => Cow::Borrowed(ProtocolVersion::KNOWN_VERSIONS),
            Eras::Legacy => Cow::Borrowed(ProtocolVersion::known_up_to(
                &ProtocolVersion::LATEST_WITH_INITIALIZE,
            )),
            Eras::Modern => Cow::Borrowed(&[ProtocolVersion::V_2026_07_28]),
        }
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let capabilities = context.client_capabilities();
        if request.name == job::NAME && capabilities.is_some_and(|it| it.supports_tasks()) {
            let task = JobArguments::of(request.arguments)?.start(&self.tasks);
            return Ok(CallToolResponse::Task(CreateTaskResult::new(task)));
        }
        let call = ToolCallContext::new(self, request, context);
        Self::tool_router().call(call).await
    }

    async fn get_task(
        &self,
        request: GetTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<GetTaskResult, ErrorData> {
        Ok(GetTaskResult::new(self.tasks.get_task(&request.task_id)?))
    }

    async fn update_task(
        &self,
        request: UpdateTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks
            .update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(
        &self,
        request: CancelTaskParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<(), ErrorData> {
        self.tasks.cancel_task(&request.task_id)
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let readme = Resource::new(README_URI, "readme")
            .with_description("What this server offers")
            .with_mime_type("text/plain");
        Ok(ListResourcesResult {
            resources: vec![readme],
            ..Default::default()
        })
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        if request.uri != README_URI {
            let data = json!({ "uri": request.uri });
            return Err(ErrorData::resource_not_found(
                "no such resource",
                Some(data),
            ));
        }
        let contents = ResourceContents::text(README, README_URI);
        Ok(ReadResourceResult::new(vec![contents]).into())
    }
}

#[derive(Clone, Copy)]
enum Face {
    Stdio,
    Http { port: u16 },
}

fn parse(mut args: impl Iterator<Item = String>) -> anyhow::Result<(Face, Demo)> {
    let mut face = match args.next().as_deref() {
        Some("stdio") => Face::Stdio,
        Some("http") => Face::Http { port: 0 },
        Some(other) => bail!("unknown transport `{other}`"),
        None => bail!("no transport given"),
    };
    let mut eras = Eras::Both;
    while let Some(arg) = args.next() {
        match (arg.as_str(), &mut face) {
            ("--legacy-only", _) => eras = Eras::Legacy,
            ("--modern-only", _) => eras = Eras::Modern,
            ("--port", Face::Http { port }) => {
                let value = args.next().context("--port needs a number")?;
                *port = value
                    .parse()
                    .with_context(|| format!("--port needs a number, not `{value}`"))?;
            }
            (other, _) => bail!("unknown argument `{other}`"),
        }
    }
    let tasks = TaskManager::new();
    Ok((face, Demo { eras, tasks }))
}

async fn serve_stdio(demo: Demo) -> anyhow::Result<()> {
    demo.serve(rmcp::transport::stdio())
        .await?
        .waiting()
        .await?;
    Ok(())
}

async fn serve_http(demo: Demo, port: u16) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    let service: StreamableHttpService<Demo, LocalSessionManager> = StreamableHttpService::new(
        move || Ok(demo.clone()),
        Arc::default(),
        StreamableHttpServerConfig::default().with_cancellation_token(stop.child_token()),
    );
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port))
        .await
        .with_context(|| format!("cannot listen on port {port}"))?;
    println!("listening on http://{}/mcp", listener.local_addr()?);
    axum::serve(listener, axum::Router::new().nest_service("/mcp", service))
        .with_graceful_shutdown(async move {
            terminated().await;
            stop.cancel();
        })
        .await?;
    Ok(())
}

/// SIGINT or SIGTERM.
async fn terminated() {
    use tokio::signal::unix::{SignalKind, signal};
    match signal(SignalKind::terminate()) {
        Ok(mut terminate) => {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = tokio::signal::ctrl_c() => {}
            }
        }
        Err(_) => {
            let _ = tokio::signal::ctrl_c().await;
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let (face, demo) = match parse(std::env::args().skip(1)) {
        Ok(parsed) => parsed,
        Err(error) => {
            eprintln!("demo-server: {error:#}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let served = match face {
        Face::Stdio => serve_stdio(demo).await,
        Face::Http { port } => serve_http(demo, port).await,
    };
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("demo-server: {error:#}");
            ExitCode::FAILURE
        }
    }
}
