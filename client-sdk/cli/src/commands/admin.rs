//! For operators, over the admin socket: `status`, `apps`, `log-filter`, `reload`, `drain`.

use std::time::Duration;

use clap::Args;
use mcp_sidecar_client::proto::{
    AppSocket, ConnectedApp, GetStatusResponse, ListAppsResponse, ReloadConfigResponse,
};

use crate::app::App;
use crate::exit::Outcome;
use crate::out::{self, Table, WARNING};
use crate::plain::one_line;
use crate::show;

/// A log filter.
#[derive(Debug, Args)]
pub(crate) struct LogFilter {
    /// A level, or directives per module such as `info,mcp_sidecard::mcp=debug`; an empty one brings the configured filter
    /// back
    filter: String,
    /// For how long [default: until the daemon ends]
    #[arg(long = "for", value_name = "TIME", value_parser = humantime::parse_duration)]
    time: Option<Duration>,
}

/// A reload.
#[derive(Debug, Args)]
pub(crate) struct Reload {
    /// Only say what would be applied
    #[arg(long)]
    validate_only: bool,
}

pub(crate) async fn status(app: &App) -> Outcome {
    let status = app.operator().await?.status().await?;
    out::message(app.format(), &status, || facts(&status))
}

fn facts(status: &GetStatusResponse) -> Outcome {
    let mut table = Table::of_facts();
    let started = show::time(status.start_time.as_ref());
    table.fact("Version", &status.version);
    table.fact("Process", &format!("{}, started {started}", status.pid));
    if status.draining {
        table.styled_fact("Stopping", WARNING, "yes");
    }
    table.fact("Socket", &status.app_socket);
    table.fact("Admin socket", &status.admin_socket);
    if !status.tcp_address.is_empty() {
        table.fact("Address", &status.tcp_address);
    }
    table.fact("Configuration", &status.config_file);
    table.fact("Data", &status.data_dir);
    let until = show::time(status.log_filter_until.as_ref());
    let until = if until.is_empty() {
        until
    } else {
        format!(" until {until}")
    };
    table.fact("Logs", &format!("{}{until}", status.log_filter));
    let counts = status.counts.clone().unwrap_or_default();
    let servers = counts.servers.iter().map(|one| {
        let (_, state) = show::state(one.state());
        format!("{} {state}", one.count)
    });
    table.fact("Servers", &servers.collect::<Vec<_>>().join(", "));
    let calls = (counts.calls_under_way, counts.calls_resting);
    table.fact(
        "Calls",
        &format!("{} under way, {} resting", calls.0, calls.1),
    );
    table.fact("Questions", &counts.questions_pending.to_string());
    let apps = (counts.apps, counts.rpcs, counts.subscribers);
    table.fact(
        "Apps",
        &format!("{}, {} requests, {} follow updates", apps.0, apps.1, apps.2),
    );
    table.print()?;
    if status.not_ready.is_empty() {
        return Ok(());
    }
    out::line("")?;
    let mut table = Table::new(&["NAMESPACE", "SERVER", "STATE", "WHY"]);
    for server in &status.not_ready {
        let (style, state) = show::state(server.state());
        let plain = anstyle::Style::new();
        table.styled_row([
            (plain, &*server.namespace),
            (plain, &server.server_id),
            (style, &state),
            (plain, &server.explanation),
        ]);
    }
    table.print()?;
    match status.not_ready_omitted {
        0 => Ok(()),
        more => out::line(&format!("and {more} more")),
    }
}

pub(crate) async fn apps(app: &App) -> Outcome {
    let answer = app.operator().await?.list_apps().await?;
    out::message(app.format(), &answer, || table(&answer))
}

fn table(answer: &ListAppsResponse) -> Outcome {
    let mut table = Table::new(&["APP", "PID", "UID", "SINCE", "REQUESTS", "FOLLOWS"]);
    for app in &answer.apps {
        let program = match app.socket() {
            AppSocket::Admin => format!("{} (admin)", app.program),
            AppSocket::Tcp => format!("{} (token)", app.token_name),
            _ => app.program.clone(),
        };
        // Of whoever bears a token nothing else is known.
        let known = |number: &dyn std::fmt::Display| match app.socket() {
            AppSocket::Tcp => String::new(),
            _ => number.to_string(),
        };
        table.row([
            &program,
            &known(&app.pid),
            &known(&app.uid),
            &show::time(app.connect_time.as_ref()),
            &app.rpcs_under_way.to_string(),
            &follows(app),
        ]);
    }
    table.print()?;
    match answer.omitted {
        0 => Ok(()),
        more => out::line(&format!("and {more} more")),
    }
}

fn follows(app: &ConnectedApp) -> String {
    let streams = app
        .follows
        .iter()
        .map(|stream| match &stream.namespaces[..] {
            [] => "*".to_owned(),
            namespaces => namespaces.join(","),
        });
    streams.collect::<Vec<_>>().join(" ")
}

pub(crate) async fn log_filter(command: LogFilter, app: &App) -> Outcome {
    let operator = app.operator().await?;
    let answer = operator
        .set_log_filter(command.filter, command.time)
        .await?;
    out::message(app.format(), &answer, || {
        let until = show::time(answer.until.as_ref());
        let until = if until.is_empty() {
            until
        } else {
            format!(" until {until}")
        };
        out::line(&format!("{}{until}", one_line(&answer.filter)))
    })
}

pub(crate) async fn reload(command: Reload, app: &App) -> Outcome {
    let operator = app.operator().await?;
    let answer = operator.reload_config(command.validate_only).await?;
    out::message(app.format(), &answer, || {
        reloaded(&answer, command.validate_only)
    })
}

fn reloaded(answer: &ReloadConfigResponse, validate_only: bool) -> Outcome {
    let done = if validate_only {
        "would apply"
    } else {
        "applied"
    };
    for key in &answer.applied_keys {
        out::line(&format!("{done} {}", one_line(key)))?;
    }
    for key in &answer.restart_keys {
        out::line(&format!("after a restart: {}", one_line(key)))?;
    }
    for server in &answer.servers {
        let what = show::word(server.outcome().as_str_name(), "DECLARED_SERVER_OUTCOME_");
        let place = format!("{}/{}", server.namespace, server.server_id);
        out::line(&format!("{}: {what}", one_line(&place)))?;
    }
    let nothing = answer.applied_keys.is_empty()
        && answer.restart_keys.is_empty()
        && answer.servers.is_empty();
    if nothing {
        out::line("nothing has changed")
    } else {
        Ok(())
    }
}

pub(crate) async fn drain(app: &App) -> Outcome {
    let answer = app.operator().await?.drain().await?;
    out::message(app.format(), &answer, || {
        out::line(if answer.already {
            "the daemon is stopping already"
        } else {
            "the daemon stops once what is under way has ended"
        })
    })
}
