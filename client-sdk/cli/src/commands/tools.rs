//! `tools`: listed and described; `call` is in `tools/call.rs`.

mod call;

pub(crate) use call::print;

use clap::Subcommand;
use mcp_sidecar_client::Client;
use mcp_sidecar_client::proto::{ListToolsRequest, ListToolsResponse, Tool};
use serde_json::Value;

use super::resources::of_server;
use crate::app::App;
use crate::exit::{Failure, Outcome, usage};
use crate::out::{self, HEADING, Table, styled};
use crate::plain::{PlainJson, plain};

/// What to do with tools.
#[derive(Debug, Subcommand)]
pub(crate) enum Tools {
    /// List the tools
    #[command(visible_alias = "ls")]
    List {
        /// Only those of this server
        server: Option<String>,
    },
    /// Show what a tool does and takes
    #[command(visible_alias = "show")]
    Describe {
        /// `SERVER/TOOL`, the tool's name if no other server has one, or its model name
        name: String,
    },
    /// Call a tool
    Call(call::Call),
}

pub(crate) async fn run(command: Tools, app: &App) -> Outcome {
    let client = app.client().await?;
    match command {
        Tools::List { server } => {
            let listing = client.list_tools().await;
            let answer = ListToolsResponse {
                tools: of_server(app, listing, server.as_deref(), |tool| &tool.server_id)?,
                ..Default::default()
            };
            out::message(app.format(), &answer, || table(&answer.tools))
        }
        Tools::Describe { name } => match find(&client, &name).await? {
            Found::Tool(tool) => out::message(app.format(), &*tool, || describe(&tool)),
            Found::Unknown { .. } => Err(Failure::Refused(format!("there is no tool `{name}`"))),
        },
        Tools::Call(command) => call::run(command, &client, app).await,
    }
}

/// What a name on the command line stands for.
enum Found {
    Tool(Box<Tool>),
    /// Nothing that is known now: the server and the tool as far as the name says. The daemon may know more.
    Unknown {
        server: String,
        tool: String,
    },
}

/// Finds a tool by `SERVER/TOOL`, by its name, or by its model name.
async fn find(client: &Client, name: &str) -> Outcome<Found> {
    let (server, tool) = match name.split_once('/') {
        Some((server, tool)) => (server, tool),
        None => ("", name),
    };
    let request = ListToolsRequest {
        server_ids: vec![server.to_owned()]
            .into_iter()
            .filter(|id| !id.is_empty())
            .collect(),
        names: vec![tool.to_owned()],
        ..Default::default()
    };
    let mut tools = client.list_tools_with(request).await?.items;
    if tools.is_empty() && server.is_empty() {
        tools = client.list_tools().await?.items;
        tools.retain(|tool| tool.model_name == name);
    }
    if tools.len() > 1 {
        let places = tools
            .iter()
            .map(|tool| format!("`{}/{}`", tool.server_id, tool.name));
        let places = places.collect::<Vec<_>>().join(", ");
        return usage(format!(
            "several servers have a tool `{name}`: say {places}"
        ));
    }
    Ok(match tools.pop() {
        Some(tool) => Found::Tool(Box::new(tool)),
        None => Found::Unknown {
            server: server.to_owned(),
            tool: tool.to_owned(),
        },
    })
}

fn table(tools: &[Tool]) -> Outcome {
    if tools.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["TOOL", "DESCRIPTION"]);
    for tool in tools {
        let description = match &*tool.description {
            "" => &tool.title,
            description => description,
        };
        // A table is for an overview; `describe` has the rest.
        let first = description.trim().lines().next().unwrap_or_default();
        table.row([&format!("{}/{}", tool.server_id, tool.name), first]);
    }
    table.print()
}

fn describe(tool: &Tool) -> Outcome {
    let mut table = Table::of_facts();
    table.fact("Tool", &format!("{}/{}", tool.server_id, tool.name));
    table.fact("Title", &tool.title);
    table.fact("Model name", &tool.model_name);
    table.fact("Description", &tool.description);
    let said = tool.annotations.unwrap_or_default();
    let hints = [
        (said.read_only_hint, "changes nothing", "changes things"),
        (said.destructive_hint, "may destroy", "destroys nothing"),
        (
            said.idempotent_hint,
            "may be repeated",
            "must not be repeated",
        ),
        (
            said.open_world_hint,
            "deals with the outside",
            "deals with nothing outside",
        ),
    ];
    let hints = hints
        .iter()
        .filter_map(|(said, yes, no)| said.map(|said| if said { *yes } else { *no }));
    table.fact("The server says", &hints.collect::<Vec<_>>().join(", "));
    table.print()?;
    schema("Takes", &tool.input_schema_json)?;
    schema("Returns", &tool.output_schema_json)
}

fn schema(title: &str, json: &str) -> Outcome {
    if json.is_empty() {
        return Ok(());
    }
    out::line(&styled(HEADING, title))?;
    match serde_json::from_str::<Value>(json) {
        Ok(schema) => out::line(&out::json(PlainJson::pretty(), &schema)?),
        Err(_) => out::line(&plain(json)),
    }
}
