//! `calls`: calls as things of their own.

use std::time::Duration;

use clap::{Args, Subcommand};
use mcp_sidecar_client::proto::{
    Call, CallState, ListCallsRequest, ListCallsResponse, call::Outcome as CallOutcome,
};
use mcp_sidecar_client::{Client, Error, Reason};

use super::{prompts, resources, tools};
use crate::app::App;
use crate::exit::{Failure, Outcome};
use crate::out::{self, Table};
use crate::plain::one_line;
use crate::show;

/// Pause before a lost connection is tried again while a call is waited for.
const PAUSE: Duration = Duration::from_millis(200);

/// What to do with calls.
#[derive(Debug, Subcommand)]
pub(crate) enum Calls {
    /// List the calls that have not ended
    #[command(visible_alias = "ls")]
    List {
        /// Those that have ended, too, as long as they are kept
        #[arg(long)]
        all: bool,
    },
    /// Show a call, and what came of it
    Show(One),
    /// Wait for the end of a call and show what came of it
    Wait(One),
    /// Cancel a call
    Cancel {
        /// The call
        id: String,
    },
}

/// A call.
#[derive(Debug, Args)]
pub(crate) struct One {
    /// The call
    #[arg(required_unless_present = "request_id")]
    id: Option<String>,
    /// The request id that its app gave it, in place of the id
    #[arg(long, value_name = "ID", conflicts_with = "id")]
    request_id: Option<String>,
}

impl One {
    async fn get(self, client: &Client) -> Outcome<Call> {
        Ok(match (self.id, self.request_id) {
            (None, Some(request)) => client.get_call_of_request(request).await?,
            (id, _) => client.get_call(id.unwrap_or_default()).await?,
        })
    }
}

pub(crate) async fn run(command: Calls, app: &App) -> Outcome {
    let client = app.client().await?;
    match command {
        Calls::List { all } => {
            let states = if all { (1..=5).collect() } else { Vec::new() };
            let request = ListCallsRequest {
                states,
                ..Default::default()
            };
            let calls = match client.list_calls_with(request).await {
                Err(error) if super::servers::is_new(&error) => Vec::new(),
                calls => calls?,
            };
            let answer = ListCallsResponse {
                calls,
                ..Default::default()
            };
            if answer.calls.is_empty() {
                app.note("no calls");
            }
            out::message(app.format(), &answer, || table(&answer.calls))
        }
        Calls::Show(one) => {
            let call = one.get(&client).await?;
            out::message(app.format(), &call, || facts(&call, app))
        }
        Calls::Wait(one) => {
            let id = one.get(&client).await?.id;
            let call = wait(&client, &id).await?;
            out::message(app.format(), &call, || outcome(&call, app))?;
            verdict(&call)
        }
        Calls::Cancel { id } => {
            client.cancel_call(&id).await?;
            app.note(&format!("{} is cancelled", one_line(&id)));
            Ok(())
        }
    }
}

/// Waits for the end, also over a restart of the daemon: a call that is kept is still there then.
async fn wait(client: &Client, id: &str) -> Outcome<Call> {
    loop {
        let call = match client.wait_call(id).await {
            Ok(call) => call,
            Err(Error::Transport { .. }) => {
                tokio::time::sleep(PAUSE).await;
                // A daemon that is gone for good is an error of this request.
                client.get_call(id).await?
            }
            Err(error) if error.reason() == Some(&Reason::DRAINING) => {
                tokio::time::sleep(error.retry_after().unwrap_or(PAUSE)).await;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        if !matches!(call.state(), CallState::Running | CallState::InputRequired) {
            return Ok(call);
        }
    }
}

fn what(call: &Call) -> &str {
    let names = [&call.tool_name, &call.resource_uri, &call.prompt_name];
    names
        .into_iter()
        .find(|name| !name.is_empty())
        .map_or("", String::as_str)
}

fn table(calls: &[Call]) -> Outcome {
    if calls.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["ID", "SERVER", "CALL", "STATE", "MADE", "REQUEST ID"]);
    for call in calls {
        let (style, state) = show::call_state(call.state());
        let plain = anstyle::Style::new();
        table.styled_row([
            (plain, &*call.id),
            (plain, &call.server_id),
            (plain, what(call)),
            (style, &state),
            (plain, &show::time(call.create_time.as_ref())),
            (plain, &call.request_id),
        ]);
    }
    table.print()
}

fn facts(call: &Call, app: &App) -> Outcome {
    let mut table = Table::of_facts();
    let (style, state) = show::call_state(call.state());
    table.fact("Id", &call.id);
    table.fact("Server", &call.server_id);
    table.fact("Call", what(call));
    table.styled_fact("State", style, &state);
    table.fact("Request id", &call.request_id);
    table.fact("Detached", if call.detached { "yes" } else { "" });
    table.fact("Made", &show::time(call.create_time.as_ref()));
    table.fact("Ended", &show::time(call.end_time.as_ref()));
    table.fact("Kept until", &show::time(call.expire_time.as_ref()));
    if let Some(CallOutcome::Error(error)) = &call.outcome {
        table.fact("Error", &format!("{}: {}", error.reason, error.message));
    }
    table.print()?;
    outcome(call, app)
}

/// What came of a call, without an error.
fn outcome(call: &Call, app: &App) -> Outcome {
    match &call.outcome {
        Some(CallOutcome::ToolResult(result)) => tools::print(result, app),
        Some(CallOutcome::ResourceResult(result)) => resources::print(result),
        Some(CallOutcome::PromptResult(result)) => prompts::print(result),
        Some(CallOutcome::Error(_)) | None => Ok(()),
    }
}

fn verdict(call: &Call) -> Outcome {
    match &call.outcome {
        Some(CallOutcome::ToolResult(result)) if result.is_error => Err(Failure::Tool),
        Some(CallOutcome::Error(error)) => {
            let text = format!("{}: {}", error.reason, error.message);
            Err(Failure::Refused(text))
        }
        _ if call.state() == CallState::Cancelled => {
            Err(Failure::Refused("the call was cancelled".to_owned()))
        }
        _ => Ok(()),
    }
}
