//! `servers import` and `servers export`: the files of other MCP clients.

use std::collections::HashMap;
use std::path::PathBuf;

use anstyle::Style;
use clap::Args;
use mcp_sidecar_client::Client;
use mcp_sidecar_client::proto::{
    ImportOutcome, ImportServersRequest, ImportServersResponse, ImportedServer,
};

use crate::app::App;
use crate::exit::{Failure, Outcome, usage};
use crate::out::{self, BAD, DIM, Format, GOOD, Table, WARNING, styled};
use crate::plain::plain;
use crate::{files, show};

/// A file to import.
#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The file, or `-`
    file: PathBuf,
    /// Values for the variables of the file, from a file or `-`, one `NAME=value` a line
    #[arg(long, value_name = "FILE")]
    var_file: Option<PathBuf>,
    /// A variable of the file, with the value that it has in the environment of this program
    #[arg(long = "var", value_name = "NAME")]
    vars: Vec<String>,
    /// Only say what would be done
    #[arg(long)]
    validate_only: bool,
}

/// What to export.
#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The servers [default: all]
    servers: Vec<String>,
}

pub(crate) async fn import(import: Import, client: &Client, app: &App) -> Outcome {
    let mut variables = HashMap::new();
    if let Some(path) = &import.var_file {
        let pairs = files::environment(path)?.into_iter();
        variables.extend(pairs.map(|pair| (pair.name, pair.value)));
    }
    for name in &import.vars {
        let Ok(value) = std::env::var(name) else {
            return usage(format!(
                "`{name}` is not in the environment of this program"
            ));
        };
        variables.insert(name.clone(), value);
    }
    let entries = client
        .import_servers(ImportServersRequest {
            document_json: files::read(&import.file)?,
            variables,
            validate_only: import.validate_only,
            ..Default::default()
        })
        .await?;
    let answer = ImportServersResponse { entries };
    out::message(app.format(), &answer, || table(&answer.entries))?;
    let refused = answer.entries.iter();
    match refused.filter(|entry| entry.refusal.is_some()).count() {
        0 => Ok(()),
        count => Err(Failure::Refused(format!("{count} entries were refused"))),
    }
}

fn table(entries: &[ImportedServer]) -> Outcome {
    let mut table = Table::new(&["NAME", "OUTCOME", "ID", "NOTE"]);
    for entry in entries {
        let style = match entry.outcome() {
            ImportOutcome::Created | ImportOutcome::Updated => GOOD,
            ImportOutcome::Refused => BAD,
            _ => DIM,
        };
        let outcome = show::word(entry.outcome().as_str_name(), "IMPORT_OUTCOME_");
        let mut notes = Vec::new();
        if let Some(refusal) = &entry.refusal {
            notes.push(format!("{}: {}", refusal.reason, refusal.message));
        }
        if !entry.missing_variables.is_empty() {
            let names = entry.missing_variables.join(", ");
            notes.push(format!("no value for {names}"));
        }
        if !entry.ignored_keys.is_empty() {
            notes.push(format!("left out: {}", entry.ignored_keys.join(", ")));
        }
        table.styled_row([
            (Style::new(), &*entry.name),
            (style, &outcome),
            (Style::new(), &entry.server_id),
            (Style::new(), &notes.join("; ")),
        ]);
    }
    table.print()
}

pub(crate) async fn export(export: Export, client: &Client, app: &App) -> Outcome {
    let answer = client.export_servers(export.servers).await?;
    if app.format() != Format::Table {
        return out::message(app.format(), &answer, || Ok(()));
    }
    // The document is JSON of the daemon's own making, whatever the format for people.
    out::line(plain(&answer.document_json).trim_end())?;
    for variable in &answer.variables {
        let text = format!(
            "{} stands for {} of {}",
            variable.name, variable.setting, variable.server_id
        );
        app.note(&plain(&text));
    }
    for id in &answer.incomplete_server_ids {
        let text = format!("{id} has settings that the document has no form for");
        app.note(&format!(
            "{} {}",
            styled(WARNING, "incomplete:"),
            plain(&text)
        ));
    }
    Ok(())
}
