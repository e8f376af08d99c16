//! The client that the MCP conformance suite tests: everything it does, the daemon does, driven
//! through gRPC. Started by `tests/conformance/run.sh`; see there.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::print_stderr,
    clippy::disallowed_methods,
    reason = "a test program: it fails by panicking and says so on standard error"
)]

use std::process::ExitCode;

use mcp_sidecar_tests::conformance::{Credentials, SignIns};
use mcp_sidecar_tests::prelude::*;
use serde::Deserialize;
use serde_json::value::RawValue;

/// The suite gives 30 s, and hangs if the client does not end by itself.
const DEADLINE: Duration = Duration::from_secs(20);

/// What the daemon calls itself where a URL can be a client identifier; the suite expects this one.
const CLIENT_METADATA: &str = "https://conformance-test.local/client-metadata.json";

/// What the suite wants, from its environment variables.
struct Task {
    url: String,
    scenario: String,
    /// Empty: the era is found automatically.
    pin: String,
    calls: Option<Vec<Call>>,
    credentials: Credentials,
}

/// A call that the suite prescribes.
#[derive(Deserialize)]
struct Call {
    name: String,
    arguments: Box<RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Context {
    tool_calls: Option<Vec<Call>>,
}

impl Task {
    fn from_env() -> Self {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        let context = variable("MCP_CONFORMANCE_CONTEXT");
        let credentials = Credentials::read(&context);
        let context: Context = match context.as_str() {
            "" => Context::default(),
            text => serde_json::from_str(text).expect("the suite's context"),
        };
        let pin = match variable("CONFORMANCE_MODE").as_str() {
            "auto" => String::new(),
            _ => variable("MCP_CONFORMANCE_PROTOCOL_VERSION"),
        };
        Self {
            url: std::env::args().next_back().expect("the server's URL"),
            scenario: variable("MCP_CONFORMANCE_SCENARIO"),
            pin,
            calls: context.tool_calls,
            credentials,
        }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    // A daemon that is dropped is killed with its whole process group.
    match Box::pin(run(Task::from_env())).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

async fn run(task: Task) -> Result<(), String> {
    let mut daemon = TestDaemon::builder()
        .env("RUST_BACKTRACE", "1")
        .set("auth.client_metadata_url", CLIENT_METADATA)
        .start()
        .await;
    let app = daemon.clients().await;
    let answering = tokio::spawn(answer_everything(app.clone()));
    let outcome = tokio::time::timeout(DEADLINE, drive(&app, &task)).await;
    let outcome = outcome.unwrap_or_else(|_| Err(format!("not done after {DEADLINE:?}")));
    if let Err(problem) = &outcome {
        eprintln!("{problem}\n--- log of the daemon\n{}\n---", daemon.log());
    }
    answering.abort();
    daemon.terminate().await;
    outcome
}

async fn drive(app: &Clients, task: &Task) -> Result<(), String> {
    let spec = ServerSpec {
        protocol_version: task.pin.clone(),
        client_capabilities: Some(v1::ClientCapabilities {
            elicitation_form: true,
            elicitation_url: true,
            extensions_json: String::new(),
            ..Default::default()
        }),
        authorization: task.credentials.authorization(),
        ..http_spec("conformance", &task.url)
    };
    let added = app
        .add("conformance", spec)
        .await
        .map_err(said("AddServer"))?;
    let id = added.server.expect("AddServer returns the server").id;
    let mut sign_ins = SignIns::at(app, &id);
    let outcome = match sign_ins.settle().await {
        Ok(server) => use_everything(app, task, &server, &mut sign_ins).await,
        Err(problem) => Err(problem),
    };
    let problem = outcome.as_ref().err().map_or("", String::as_str);
    // What the suite does not look at. `run.sh` looks for the marker.
    for failed in sign_ins.assertions(&task.scenario, problem) {
        eprintln!("ASSERTION FAILED: {failed}");
    }
    app.remove(&id).await.map_err(said("RemoveServer"))?;
    outcome
}

/// Lists, reads, fills and calls all that the server offers.
async fn use_everything(
    app: &Clients,
    task: &Task,
    server: &Server,
    sign_ins: &mut SignIns,
) -> Result<(), String> {
    let tools = app.list_tools().await;
    for prompt in app.list_prompts(&server.id).await {
        let arguments = prompt.arguments.iter();
        let arguments = arguments.map(|argument| (argument.name.clone(), "test".to_owned()));
        let arguments: std::collections::HashMap<_, _> = arguments.collect();
        let filled = sign_ins.over(async || {
            let arguments = arguments.clone();
            app.prompt(&server.id, &prompt.name, arguments).await
        });
        filled.await?.map_err(said("GetPrompt"))?;
    }
    for resource in app.list_resources(&server.id).await {
        let read = sign_ins.over(async || app.read(&server.id, &resource.uri).await);
        read.await?.map_err(said("ReadResource"))?;
    }
    for (name, arguments) in calls(task, &tools) {
        // A tool may report an error, and a server may have no `tools/call` at all; the call itself
        // may not fail.
        let called = sign_ins.over(async || app.call_tool(&server.id, &name, &arguments).await);
        if let Err(status) = called.await? {
            let code = ErrorFacts::of(&status).metadata.remove("jsonrpc_code");
            if code.as_deref() != Some("-32601") {
                return Err(said(&format!("CallTool {name}"))(status));
            }
        }
    }
    Ok(())
}

/// Which tools to call with what.
fn calls(task: &Task, tools: &[v1::Tool]) -> Vec<(String, String)> {
    if let Some(calls) = &task.calls {
        let calls = calls.iter();
        return calls
            .map(|call| (call.name.clone(), call.arguments.get().to_owned()))
            .collect();
    }
    let named = |name: &str| tools.iter().find(|tool| tool.name == name);
    if let (Some(schema), Some(echo)) =
        (named("json_schema_2020_12_tool"), named("json_schema_echo"))
    {
        let arguments = format!("{{\"schema\":{}}}", schema.input_schema_json);
        return vec![(echo.name.clone(), arguments)];
    }
    let each = tools.iter();
    each.map(|tool| (tool.name.clone(), arguments_for(&tool.input_schema_json)))
        .collect()
}

/// A value of the right type for every property of an object schema.
fn arguments_for(schema: &str) -> String {
    let schema: Value = serde_json::from_str(schema).unwrap_or_default();
    let properties = schema["properties"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let members = properties.into_iter().map(|(name, property)| {
        let value = match property["type"].as_str() {
            Some("number" | "integer") => json!(1),
            Some("boolean") => json!(true),
            Some("object") => json!({}),
            Some("array") => json!([]),
            _ => json!("test"),
        };
        (name, value)
    });
    Value::Object(members.collect()).to_string()
}

/// Follows the update stream and answers each question as it comes.
async fn answer_everything(app: Clients) {
    let mut updates = app.updates("").await;
    // Ends with the daemon.
    while let Ok(Some(update)) = updates.try_next_unbounded().await {
        let Some(v1::upsert::Resource::Elicitation(question)) =
            mcp_sidecar_tests::updates::upsert(&update)
        else {
            continue;
        };
        if question.state() != v1::ElicitationState::Pending {
            continue;
        }
        let form = question.mode() == v1::ElicitationMode::Form;
        let content = form.then(|| answer_to(&question.requested_schema_json));
        let action = v1::ElicitationAction::Accept;
        if let Err(status) = app.respond(&question.id, action, content.as_deref()).await {
            eprintln!("{}", said("RespondElicitation")(status));
        }
    }
}

/// Each property's default, else `true`, 1 or `test`.
fn answer_to(schema: &str) -> String {
    let schema: Value = serde_json::from_str(schema).unwrap_or_default();
    let properties = schema["properties"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let members = properties.into_iter().map(|(name, property)| {
        let value = match (property.get("default"), property["type"].as_str()) {
            (Some(default), _) => default.clone(),
            (None, Some("boolean")) => json!(true),
            (None, Some("number" | "integer")) => json!(1),
            (None, _) => match property["enum"].as_array() {
                Some(choices) => choices.first().cloned().unwrap_or_default(),
                None => json!("test"),
            },
        };
        (name, value)
    });
    Value::Object(members.collect()).to_string()
}

fn said(what: &str) -> impl Fn(tonic::Status) -> String {
    move |status| format!("{what}: {:?}", ErrorFacts::of(&status))
}
