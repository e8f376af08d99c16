//! `prompts`.

use std::collections::HashMap;

use clap::{Args, Subcommand};
use mcp_sidecar_client::proto::{GetPromptRequest, GetPromptResponse, ListPromptsResponse, Prompt};

use super::resources::of_server;
use crate::app::App;
use crate::exit::{Outcome, usage};
use crate::out::{self, HEADING, Table, styled};
use crate::plain::one_line;
use crate::show;

/// What to do with prompts.
#[derive(Debug, Subcommand)]
pub(crate) enum Prompts {
    /// List the prompts
    #[command(visible_alias = "ls")]
    List {
        /// Only those of this server
        server: Option<String>,
    },
    /// Fill a prompt
    Get(Get),
}

/// A prompt to fill.
#[derive(Debug, Args)]
pub(crate) struct Get {
    /// The server
    server: String,
    /// The prompt
    name: String,
    /// Its arguments
    #[arg(value_name = "KEY=VALUE")]
    arguments: Vec<String>,
}

pub(crate) async fn run(command: Prompts, app: &App) -> Outcome {
    let client = app.client().await?;
    match command {
        Prompts::List { server } => {
            let listing = client.list_prompts().await;
            let answer = ListPromptsResponse {
                prompts: of_server(app, listing, server.as_deref(), |prompt| &prompt.server_id)?,
                ..Default::default()
            };
            out::message(app.format(), &answer, || table(&answer.prompts))
        }
        Prompts::Get(get) => {
            let mut arguments = HashMap::new();
            for pair in &get.arguments {
                let Some((key, value)) = pair.split_once('=') else {
                    return usage(format!("`{pair}` is no argument: give `key=value`"));
                };
                arguments.insert(key.to_owned(), value.to_owned());
            }
            let request = GetPromptRequest {
                server_id: get.server,
                name: get.name,
                arguments,
                ..Default::default()
            };
            let answer = client.get_prompt_with(request).await?;
            out::message(app.format(), &answer, || print(&answer))
        }
    }
}

/// A filled prompt for people.
pub(crate) fn print(answer: &GetPromptResponse) -> Outcome {
    for message in &answer.messages {
        let role = format!("{}:", one_line(&message.role));
        let content = message
            .content
            .as_ref()
            .map_or_else(String::new, show::block);
        out::line(&format!("{} {content}", styled(HEADING, &role)))?;
    }
    Ok(())
}

fn table(prompts: &[Prompt]) -> Outcome {
    if prompts.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["SERVER", "NAME", "ARGUMENTS", "DESCRIPTION"]);
    for prompt in prompts {
        let arguments = prompt.arguments.iter().map(|argument| {
            if argument.required {
                argument.name.clone()
            } else {
                format!("[{}]", argument.name)
            }
        });
        let arguments: Vec<String> = arguments.collect();
        let description = match &*prompt.description {
            "" => &prompt.title,
            description => description,
        };
        table.row([
            &prompt.server_id,
            &prompt.name,
            &arguments.join(" "),
            description,
        ]);
    }
    table.print()
}
