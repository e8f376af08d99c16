//! `watch`: the update stream, live.

use clap::{Args, ValueEnum};
use mcp_sidecar_client::proto::{
    Bookmark, Delete, SnapshotEnd, StreamUpdatesResponse, UpdateKind, Upsert,
    stream_updates_response::Event, upsert::Resource,
};
use mcp_sidecar_client::{Json, ResetCause, Update, UpdateEvent, UpdateFilter};
use serde::Serialize;

use crate::app::App;
use crate::exit::Outcome;
use crate::out::{self, DIM, Format, styled};
use crate::plain::one_line;
use crate::show;

/// What to follow.
#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Only updates of these kinds
    #[arg(long = "kind", value_enum, value_delimiter = ',', value_name = "KIND")]
    kinds: Vec<Kind>,
    /// Only updates about these servers
    #[arg(long = "server", value_name = "ID")]
    servers: Vec<String>,
    /// All namespaces that you may use
    #[arg(long)]
    all_namespaces: bool,
    /// Go on behind this update: its `resumeToken`
    #[arg(long, value_name = "TOKEN")]
    from: Option<String>,
    /// End when everything that exists has been told
    #[arg(long, conflicts_with = "from")]
    once: bool,
}

/// What an update is about.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    Servers,
    Questions,
    Calls,
    Models,
}

impl From<Kind> for UpdateKind {
    fn from(kind: Kind) -> Self {
        match kind {
            Kind::Servers => Self::Server,
            Kind::Questions => Self::Elicitation,
            Kind::Calls => Self::Call,
            Kind::Models => Self::Sampling,
        }
    }
}

/// A line of JSON when the stream has to start over.
#[derive(Serialize)]
struct Reset {
    reset: &'static str,
}

pub(crate) async fn run(command: Watch, app: &App) -> Outcome {
    let client = app.client().await?;
    let mut namespaces = Vec::new();
    if command.all_namespaces {
        namespaces.push("*".to_owned());
    }
    let mut updates = client.updates_with(UpdateFilter {
        namespaces,
        server_ids: command.servers,
        kinds: command.kinds.into_iter().map(UpdateKind::from).collect(),
        resume_token: command.from.unwrap_or_default(),
        can_answer: None,
    });
    while let Some(update) = updates.next().await {
        let update = update?;
        let is_end = matches!(update.event, UpdateEvent::SnapshotEnd);
        match app.format() {
            Format::Table => line(&update, app)?,
            format => match &update.event {
                UpdateEvent::Reset(cause) => {
                    let reset = match cause {
                        ResetCause::TokenExpired => "TOKEN_EXPIRED",
                        _ => "SNAPSHOT_INTERRUPTED",
                    };
                    out::event(format, &Reset { reset })?;
                }
                _ => {
                    if let Some(message) = message(update) {
                        out::event(format, &Json(&message))?;
                    }
                }
            },
        }
        if is_end && command.once {
            return Ok(());
        }
    }
    Ok(())
}

/// The update as the contract has it.
fn message(update: Update) -> Option<StreamUpdatesResponse> {
    let resource = |resource| {
        Event::Upsert(Upsert {
            resource: Some(resource),
        })
    };
    let event = match update.event {
        UpdateEvent::Server(server) => resource(Resource::Server(*server)),
        UpdateEvent::Elicitation(question) => resource(Resource::Elicitation(*question)),
        UpdateEvent::Call(call) => resource(Resource::Call(*call)),
        UpdateEvent::Sampling(request) => resource(Resource::SamplingRequest(*request)),
        UpdateEvent::Deleted {
            kind,
            namespace,
            id,
        } => Event::Delete(Delete {
            kind: kind.into(),
            namespace,
            id,
        }),
        UpdateEvent::SnapshotEnd => Event::SnapshotEnd(SnapshotEnd {}),
        UpdateEvent::Bookmark => Event::Bookmark(Bookmark {}),
        // Of a newer SDK.
        _ => return None,
    };
    Some(StreamUpdatesResponse {
        event: Some(event),
        resume_token: update.resume_token,
        revision: update.revision,
        commit_time: update.commit_time,
    })
}

fn line(update: &Update, app: &App) -> Outcome {
    let (kind, id, (style, state), rest) = match &update.event {
        UpdateEvent::Server(server) => {
            let status = server.status.clone().unwrap_or_default();
            let state = show::state(status.state());
            ("server", &server.id, state, show::trouble(server))
        }
        UpdateEvent::Elicitation(question) => {
            let text = format!("{}: {}", question.server_id, question.message);
            let state = show::question_state(question.state());
            ("question", &question.id, state, text)
        }
        UpdateEvent::Sampling(request) => {
            let text = format!("{}: {}", request.server_id, request.summary);
            let state = show::question_state(request.state());
            ("model", &request.id, state, text)
        }
        UpdateEvent::Call(call) => {
            let text = format!("{}/{}", call.server_id, call.tool_name);
            ("call", &call.id, show::call_state(call.state()), text)
        }
        UpdateEvent::Deleted { kind, id, .. } => {
            let kind = match kind {
                UpdateKind::Server => "server",
                UpdateKind::Call => "call",
                UpdateKind::Sampling => "model",
                _ => "question",
            };
            (kind, id, (DIM, "gone".to_owned()), String::new())
        }
        UpdateEvent::SnapshotEnd => {
            app.note(&styled(DIM, "that is everything; changes follow"));
            return Ok(());
        }
        UpdateEvent::Reset(_) => {
            app.note("what was told may be out of date; everything follows again");
            return Ok(());
        }
        _ => return Ok(()),
    };
    let time = styled(DIM, &show::time(update.commit_time.as_ref()));
    let text = format!(
        "{time} {kind:<8} {} {} {}",
        one_line(id),
        styled(style, &state),
        one_line(&rest)
    );
    out::line(text.trim_end())
}
