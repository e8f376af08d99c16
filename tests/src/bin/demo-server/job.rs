//! The tool `job`: runs as a task for clients that know tasks (extension `io.modelcontextprotocol/tasks`).

use std::time::Duration;

use rmcp::ErrorData;
use rmcp::model::{
    CallToolResult, ContentBlock, ElicitRequest, ElicitRequestParams, ElicitationSchema,
    InputRequest, JsonObject, Task,
};
use rmcp::task_manager::{TaskContext, TaskExit, TaskManager, TaskOptions};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::Value;

/// Its name.
pub(crate) const NAME: &str = "job";

const STEP: Duration = Duration::from_millis(50);

/// Arguments of `job`.
#[derive(Deserialize, JsonSchema)]
pub(crate) struct JobArguments {
    /// How many steps to take, at most 100.
    #[serde(default)]
    #[schemars(range(max = 100))]
    steps: u8,
    /// Whether to ask for a name before the last step.
    #[serde(default)]
    ask: bool,
}

impl JobArguments {
    /// Reads the arguments of a call.
    pub(crate) fn of(arguments: Option<JsonObject>) -> Result<Self, ErrorData> {
        serde_json::from_value(Value::Object(arguments.unwrap_or_default()))
            .map_err(|error| ErrorData::invalid_params(error.to_string(), None))
    }

    /// Starts the job as a task.
    pub(crate) fn start(self, tasks: &TaskManager) -> Task {
        let options = TaskOptions::new().with_poll_interval_ms(100);
        tasks.spawn(options, move |context| Box::pin(run(self, context)))
    }

    /// Does the job at once, for clients that know no tasks.
    pub(crate) async fn at_once(self) -> CallToolResult {
        tokio::time::sleep(STEP * u32::from(self.steps)).await;
        done(self.steps, "nobody was asked")
    }
}

async fn run(job: JobArguments, context: TaskContext) -> Result<CallToolResult, TaskExit> {
    for step in 1..=job.steps {
        context.set_status_message(format!("step {step} of {}", job.steps));
        tokio::select! {
            () = tokio::time::sleep(STEP) => {}
            () = context.cancelled() => return Err(TaskExit::Cancelled),
        }
    }
    let answer = if job.ask {
        context
            .request_input("name", question()?)
            .await?
            .to_string()
    } else {
        "nobody was asked".to_owned()
    };
    Ok(done(job.steps, &answer))
}

fn done(steps: u8, answer: &str) -> CallToolResult {
    let text = format!("{steps} steps done; {answer}");
    CallToolResult::success(vec![ContentBlock::text(text)])
}

fn question() -> Result<InputRequest, ErrorData> {
    let schema = ElicitationSchema::builder()
        .required_string("name")
        .build()
        .map_err(|error| ErrorData::internal_error(error.to_string(), None))?;
    let params = ElicitRequestParams::FormElicitationParams {
        meta: None,
        message: "Who wants to know?".to_owned(),
        requested_schema: schema,
    };
    Ok(InputRequest::Elicitation(ElicitRequest::new(params)))
}
