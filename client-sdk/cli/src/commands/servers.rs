//! `servers`: registrations and their connections.

mod documents;

use std::path::PathBuf;
use std::time::Duration;

use anstyle::Style;
use clap::{Args, Subcommand};
use mcp_sidecar_client::proto::{
    AddOutcome, AddServerRequest, ConnectionState, GetServerLogResponse, ListServersResponse,
    Server, UpdateServerRequest, WaitForServersResponse, server_spec,
};
use mcp_sidecar_client::{Client, Error, Reason};
use prost_types::FieldMask;

use super::spec::{self, Settings};
use crate::app::App;
use crate::exit::{Failure, Outcome, usage};
use crate::out::{self, BAD, DIM, Table, styled};
use crate::plain::{one_line, plain};
use crate::show;

/// What to do with servers.
#[derive(Debug, Subcommand)]
pub(crate) enum Servers {
    /// Register a server, connect to it and say what became of it
    ///
    /// The same name at the same place is the same server: adding it again changes its settings.
    Add(Add),
    /// List the servers
    #[command(visible_alias = "ls")]
    List,
    /// Show everything about a server
    Show(One),
    /// Change the settings of a server
    Update(Update),
    /// End the connection of a server and forget it
    #[command(visible_alias = "rm")]
    Remove(One),
    /// Connect a server that is disconnected, or try one again that has failed
    Connect(Awaited),
    /// End the connection of a server and keep its registration
    Disconnect(Several),
    /// Read the lists of a server again
    Refresh(Awaited),
    /// Wait until servers have settled: ready, failed, disconnected, or waiting for a sign-in
    Wait(Wait),
    /// Show the last lines that a server's processes wrote to their standard error
    Log(One),
    /// Register the servers in a file of another MCP client (`mcpServers` and the like)
    Import(documents::Import),
    /// Write the servers as such a file to standard output, without their secrets
    Export(documents::Export),
}

/// A server to register.
#[derive(Debug, Args)]
pub(crate) struct Add {
    /// A URL, `unix:PATH`, or a command with its arguments behind `--`
    #[arg(value_name = "URL | -- COMMAND", required_unless_present = "spec_file")]
    place: Vec<String>,
    /// The wanted id [default: made from the name]
    #[arg(long)]
    id: Option<String>,
    /// A whole `ServerSpec` as JSON from a file or `-`; other options change it
    #[arg(long, value_name = "FILE")]
    spec_file: Option<PathBuf>,
    /// Do not connect
    #[arg(long)]
    register_only: bool,
    /// How long to wait for the connection [default: the server's connect timeout]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,
    #[command(flatten)]
    settings: Box<Settings>,
}

/// A change of a server.
#[derive(Debug, Args)]
pub(crate) struct Update {
    /// The server
    server: String,
    /// A new place of the same kind: a URL, `unix:PATH`, or a command behind `--`
    #[arg(value_name = "URL | -- COMMAND")]
    place: Vec<String>,
    /// A whole `ServerSpec` as JSON from a file or `-`; give what to take of it with --mask
    #[arg(long, value_name = "FILE", requires = "mask")]
    spec_file: Option<PathBuf>,
    /// Which fields of the file to take, such as `approval,question_policy`; `*` for all
    #[arg(
        long,
        value_delimiter = ',',
        value_name = "FIELD",
        requires = "spec_file"
    )]
    mask: Vec<String>,
    /// Only if this is still the server's etag
    #[arg(long)]
    etag: Option<String>,
    #[command(flatten)]
    settings: Box<Settings>,
}

/// A server.
#[derive(Debug, Args)]
pub(crate) struct One {
    /// The server
    server: String,
}

/// A server, or all.
#[derive(Debug, Args)]
pub(crate) struct Several {
    /// The server
    #[arg(required_unless_present = "all")]
    server: Option<String>,
    /// All servers of the namespace
    #[arg(long, conflicts_with = "server")]
    all: bool,
}

/// A server to wait for.
#[derive(Debug, Args)]
pub(crate) struct Awaited {
    /// The server
    server: String,
    /// How long to wait for it [default: the server's connect timeout]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,
}

/// Servers to wait for.
#[derive(Debug, Args)]
pub(crate) struct Wait {
    /// The servers [default: all]
    servers: Vec<String>,
    /// How long to wait [default: the daemon's longest wait]
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    wait: Option<Duration>,
}

pub(crate) async fn run(command: Servers, app: &App) -> Outcome {
    let client = app.client().await?;
    match command {
        Servers::Add(add) => self::add(add, &client, app).await,
        Servers::List => list(&client, app).await,
        Servers::Show(one) => {
            let server = client.get_server(one.server).await?;
            out::message(app.format(), &server, || facts(&server))
        }
        Servers::Update(update) => self::update(update, &client, app).await,
        Servers::Remove(one) => {
            client.remove_server(&one.server).await?;
            app.note(&format!("{} is removed", one_line(&one.server)));
            Ok(())
        }
        Servers::Connect(awaited) => {
            let server = client.connect_server(awaited.server, awaited.wait).await?;
            reached(&server, app)
        }
        Servers::Refresh(awaited) => {
            let server = client.refresh_server(awaited.server, awaited.wait).await?;
            reached(&server, app)
        }
        Servers::Disconnect(some) => {
            let servers = match some.server {
                Some(server) => vec![client.disconnect_server(server).await?],
                None => client.disconnect_all_servers().await?,
            };
            print(servers, app)
        }
        Servers::Wait(wait) => {
            let answer = client.wait_for_servers(wait.servers, wait.wait).await?;
            waited(&answer, app)
        }
        Servers::Import(import) => documents::import(import, &client, app).await,
        Servers::Export(export) => documents::export(export, &client, app).await,
        Servers::Log(one) => {
            let lines = client.server_log(one.server).await?;
            let answer = GetServerLogResponse { lines };
            out::message(app.format(), &answer, || log(&answer))
        }
    }
}

async fn add(add: Add, client: &Client, app: &App) -> Outcome {
    let mut spec = match &add.spec_file {
        Some(path) => spec::from_file(path)?,
        None => mcp_sidecar_client::proto::ServerSpec::default(),
    };
    if !add.place.is_empty() {
        spec.transport = Some(spec::place(&add.place)?);
    }
    add.settings.apply(&mut spec)?;
    if spec.name.is_empty() {
        let name = spec.transport.as_ref().map(spec::name_of);
        spec.name = add.id.clone().or(name).unwrap_or_default();
    }
    let answer = client
        .add_server(AddServerRequest {
            server_id: add.id.unwrap_or_default(),
            spec: Some(spec),
            register_only: add.register_only,
            wait_timeout: add.wait.map(spec::length).transpose()?,
            ..Default::default()
        })
        .await?;
    let outcome = answer.outcome();
    let server = answer.server.clone().unwrap_or_default();
    out::message(app.format(), &answer, || {
        let outcome = match outcome {
            AddOutcome::Created => "added",
            AddOutcome::Existing => "known already",
            AddOutcome::Updated => "changed",
            AddOutcome::Migrated => "renamed",
            AddOutcome::Unspecified => "",
        };
        say(&server, outcome)
    })?;
    failed(&server)
}

async fn update(update: Update, client: &Client, app: &App) -> Outcome {
    let known = client.get_server(&update.server).await?;
    let mut spec = match &update.spec_file {
        Some(path) => spec::from_file(path)?,
        None => known.spec.unwrap_or_default(),
    };
    let mut paths = update.mask;
    if !update.place.is_empty() {
        move_to(&mut spec, spec::place(&update.place)?, &mut paths)?;
    }
    paths.extend(update.settings.apply(&mut spec)?);
    if paths.is_empty() {
        return usage("nothing to change: give a setting");
    }
    let server = client
        .update_server(UpdateServerRequest {
            server_id: update.server,
            spec: Some(spec),
            update_mask: Some(FieldMask { paths }),
            etag: update.etag.unwrap_or_default(),
            ..Default::default()
        })
        .await?;
    out::message(app.format(), &server, || say(&server, "changed"))
}

/// Puts a place into settings and leaves the rest of them.
fn move_to(
    spec: &mut mcp_sidecar_client::proto::ServerSpec,
    place: server_spec::Transport,
    paths: &mut Vec<String>,
) -> Outcome {
    use server_spec::Transport;
    let mut changed = |fields: &[&str]| paths.extend(fields.iter().map(ToString::to_string));
    match (&mut spec.transport, place) {
        (Some(Transport::Http(known)), Transport::Http(new)) => {
            known.url = new.url;
            changed(&["http.url"]);
        }
        (Some(Transport::Stdio(known)), Transport::Stdio(new)) => {
            known.command = new.command;
            known.args = new.args;
            changed(&["stdio.command", "stdio.args"]);
        }
        (Some(Transport::UnixSocket(known)), Transport::UnixSocket(new)) => {
            known.path = new.path;
            changed(&["unix_socket.path"]);
        }
        _ => {
            return usage("the new place is of another kind: remove the server and add it anew");
        }
    }
    Ok(())
}

async fn list(client: &Client, app: &App) -> Outcome {
    let servers = match client.list_servers().await {
        Ok(servers) => servers,
        // Where nobody has registered anything there is nothing.
        Err(error) if is_new(&error) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    if servers.is_empty() {
        app.note("no servers; add one with `mcp-sidecar servers add`");
    }
    print(servers, app)
}

/// Whether the namespace is unknown, because no server was ever registered in it.
pub(crate) fn is_new(error: &Error) -> bool {
    error.reason() == Some(&Reason::NAMESPACE_NOT_FOUND)
}

fn print(servers: Vec<Server>, app: &App) -> Outcome {
    let answer = ListServersResponse {
        servers,
        ..Default::default()
    };
    out::message(app.format(), &answer, || table(&answer.servers))
}

fn table(servers: &[Server]) -> Outcome {
    if servers.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["ID", "STATE", "TOOLS", "TARGET", "NOTE"]);
    for server in servers {
        let status = server.status.clone().unwrap_or_default();
        let spec = server.spec.clone().unwrap_or_default();
        let (style, state) = show::state(status.state());
        let tools = status.tools.unwrap_or_default().count.to_string();
        let plain = Style::new();
        table.styled_row([
            (plain, &*server.id),
            (style, &state),
            (plain, &tools),
            (plain, &show::target(&spec)),
            (plain, &show::trouble(server)),
        ]);
    }
    table.print()
}

fn say(server: &Server, outcome: &str) -> Outcome {
    let status = server.status.clone().unwrap_or_default();
    let (style, state) = show::state(status.state());
    let id = one_line(&server.id);
    let mut text = format!("{id}: {outcome}, {}", styled(style, &state));
    let mut rest = show::trouble(server);
    if rest.is_empty() && status.state() == ConnectionState::Ready {
        let tools = status.tools.unwrap_or_default().count;
        rest = match tools {
            1 => "1 tool".to_owned(),
            tools => format!("{tools} tools"),
        };
    }
    if !rest.is_empty() {
        text = format!("{text} ({})", one_line(&rest));
    }
    out::line(&text)
}

/// Shows a server that was to be connected; it is a failure if it is not.
fn reached(server: &Server, app: &App) -> Outcome {
    out::message(app.format(), server, || say(server, "tried"))?;
    failed(server)
}

fn failed(server: &Server) -> Outcome {
    let status = server.status.clone().unwrap_or_default();
    match status.state() {
        ConnectionState::Failed => {
            let text = format!(
                "`{}` is not connected: {}",
                server.id,
                show::trouble(server)
            );
            Err(Failure::Refused(text))
        }
        _ => Ok(()),
    }
}

fn waited(answer: &WaitForServersResponse, app: &App) -> Outcome {
    out::message(app.format(), answer, || table(&answer.servers))?;
    if answer.settled {
        return Ok(());
    }
    Err(Failure::Refused(
        "the time is over, and not all have settled".to_owned(),
    ))
}

fn facts(server: &Server) -> Outcome {
    let status = server.status.clone().unwrap_or_default();
    let spec = server.spec.clone().unwrap_or_default();
    let mut table = Table::of_facts();
    let (style, state) = show::state(status.state());
    table.fact("Id", &server.id);
    table.fact("Name", &spec.name);
    table.fact("Target", &show::target(&spec));
    table.styled_fact("State", style, &state);
    table.fact("Since", &show::time(status.state_time.as_ref()));
    table.styled_fact("Trouble", BAD, &show::trouble(server));
    table.fact("Next attempt", &show::time(status.next_retry_time.as_ref()));
    table.fact("Sign in at", &status.auth_url);
    let transport = show::transport(status.transport());
    let version = &status.protocol_version;
    table.fact("Speaks", format!("{transport} {version}").trim());
    let info = status.server_info.clone().unwrap_or_default();
    table.fact(
        "Says it is",
        format!("{} {}", info.name, info.version).trim(),
    );
    for (name, list) in [
        ("Tools", &status.tools),
        ("Resources", &status.resources),
        ("Templates", &status.resource_templates),
        ("Prompts", &status.prompts),
    ] {
        if let Some(list) = list {
            let text = format!("{} {}", list.count, list.incomplete_reason);
            table.fact(name, text.trim());
        }
    }
    for withheld in &status.withheld_tools {
        table.fact(
            "Withheld",
            &format!("{}: {}", withheld.name, withheld.reason),
        );
    }
    table.fact("Allowed tools", &spec.allowed_tools.join(" "));
    table.fact("Denied tools", &spec.denied_tools.join(" "));
    let (headers, env): (Vec<_>, Vec<_>) = match &spec.transport {
        Some(server_spec::Transport::Http(http)) => (names(&http.headers, |h| &h.name), Vec::new()),
        Some(server_spec::Transport::UnixSocket(unix)) => {
            (names(&unix.headers, |h| &h.name), Vec::new())
        }
        Some(server_spec::Transport::Stdio(stdio)) => (Vec::new(), names(&stdio.env, |v| &v.name)),
        None => Default::default(),
    };
    table.fact("Headers", &headers.join(" "));
    table.fact("Environment", &env.join(" "));
    table.fact("Calls", &status.calls_in_flight.to_string());
    table.fact("Instructions", &status.instructions);
    table.fact("Standard error", &status.stderr_tail);
    table.fact("Registered", &show::time(server.create_time.as_ref()));
    table.fact("Changed", &show::time(server.update_time.as_ref()));
    table.fact("Etag", &server.etag);
    table.print()
}

/// Names alone; the daemon returns no values.
fn names<T>(all: &[T], name: impl Fn(&T) -> &String) -> Vec<String> {
    all.iter().map(|one| name(one).clone()).collect()
}

fn log(answer: &GetServerLogResponse) -> Outcome {
    for line in &answer.lines {
        let time = show::time(line.time.as_ref());
        let stream = if line.standard_output {
            " (stdout)"
        } else {
            ""
        };
        let head = styled(DIM, &format!("{time} #{}{stream}", line.start));
        out::line(&format!("{head} {}", plain(&line.text)))?;
    }
    Ok(())
}
