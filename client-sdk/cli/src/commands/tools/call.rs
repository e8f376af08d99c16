//! `tools call`: a call with its progress, its log messages and its questions.

use std::collections::BTreeMap;
use std::future::pending;
use std::pin::Pin;
use std::time::Duration;

use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use mcp_sidecar_client::proto::{
    CallStarted, CallToolResponse, CallToolStreamResponse, CanAnswer, Elicitation,
    ElicitationState, LogLevel, LogMessage, Progress, ToolCall, ToolResult, UpdateKind,
};
use mcp_sidecar_client::{CallEvent, Client, Json, Reason, UpdateEvent, UpdateFilter, Updates};
use serde_json::Value;

use super::{Found, find};
use crate::app::App;
use crate::arguments::{self, Types};
use crate::ask::Keyboard;
use crate::commands::spec::Level;
use crate::exit::{Failure, Outcome, usage};
use crate::out::{self, Format, WARNING, styled};
use crate::plain::{one_line, plain};
use crate::{files, form, show, terminal};

/// A call that ends before this shows no progress.
const SHORT: Duration = Duration::from_millis(400);
/// Steps of a progress bar.
const STEPS: u64 = 1000;

/// A call of a tool.
#[allow(
    clippy::struct_excessive_bools,
    reason = "independent switches of the command line"
)]
#[derive(Debug, Args)]
pub(crate) struct Call {
    /// `SERVER/TOOL`, the tool's name if no other server has one, or its model name
    name: String,
    /// The arguments: `key=value`, typed by the tool's schema, and `key:=JSON`; or one JSON object, `@FILE` or `-`
    #[arg(value_name = "ARGUMENTS")]
    arguments: Vec<String>,
    /// Make the call and do not wait for it
    #[arg(long)]
    detach: bool,
    /// Name the call, so that it is made once however often it is asked for
    #[arg(long, value_name = "ID")]
    request_id: Option<String>,
    /// Ask nothing, and end with code 5 if an answer is needed
    #[arg(long)]
    no_input: bool,
    /// If the server wants a sign-in, wait for it
    #[arg(long)]
    wait_for_sign_in: bool,
    /// Show the server's log messages of this severity and above
    #[arg(long, value_enum, value_name = "LEVEL")]
    log_level: Option<Level>,
    /// Write every event of the call as a line of JSON
    #[arg(long, conflicts_with = "detach")]
    events: bool,
}

pub(crate) async fn run(command: Call, client: &Client, app: &App) -> Outcome {
    let call = prepare(&command, client).await?;
    if command.detach {
        let answer = client.call_tool(call).await?;
        return finish(&answer, app);
    }
    let answer = Running {
        client,
        app,
        events: command.events,
        no_input: command.no_input,
        keyboard: Keyboard::new(),
        call_id: String::new(),
        questions: BTreeMap::new(),
    }
    .follow(call)
    .await?;
    app.clear_progress();
    if command.events {
        return verdict(&answer);
    }
    finish(&answer, app)
}

async fn prepare(command: &Call, client: &Client) -> Outcome<ToolCall> {
    let mut call = ToolCall {
        detach: command.detach,
        request_id: command.request_id.clone().unwrap_or_default(),
        wait_for_sign_in: command.wait_for_sign_in,
        log_level: command
            .log_level
            .map_or(LogLevel::Unspecified, LogLevel::from)
            .into(),
        ..Default::default()
    };
    let schema = match find(client, &command.name).await? {
        Found::Tool(tool) => {
            call.server_id = tool.server_id;
            call.tool_name = tool.name;
            serde_json::from_str(&tool.input_schema_json).unwrap_or_default()
        }
        Found::Unknown { server, tool } if server.is_empty() => {
            call.model_name = tool;
            Value::Null
        }
        Found::Unknown { server, tool } => {
            call.server_id = server;
            call.tool_name = tool;
            Value::Null
        }
    };
    let json = match &command.arguments[..] {
        [one] if one.starts_with(['{', '@']) || one == "-" => files::text_or_file(one)?,
        [] => "{}".to_owned(),
        pairs => arguments::object(pairs, &Types::Schema(&schema))?,
    };
    if !serde_json::from_str::<Value>(&json).is_ok_and(|json| json.is_object()) {
        return usage("the arguments are no JSON object");
    }
    call.arguments_json = Some(json);
    Ok(call)
}

/// Writes the result; an error that the tool reports is one of the command.
fn finish(answer: &CallToolResponse, app: &App) -> Outcome {
    out::message(app.format(), answer, || {
        if let Some(result) = &answer.result {
            return print(result, app);
        }
        app.note("the call goes on; see `mcp-sidecar calls wait`");
        out::line(&one_line(&answer.call_id))
    })?;
    verdict(answer)
}

fn verdict(answer: &CallToolResponse) -> Outcome {
    match &answer.result {
        Some(result) if result.is_error => Err(Failure::Tool),
        _ => Ok(()),
    }
}

/// A result for people.
pub(crate) fn print(result: &ToolResult, app: &App) -> Outcome {
    for block in &result.content {
        out::line(&show::block(block))?;
    }
    match &result.structured_content_json {
        Some(structured) if result.content.is_empty() => out::line(&plain(structured))?,
        _ => {}
    }
    for violation in result.check.iter().flat_map(|check| &check.violations) {
        let text = format!("{}: {}", violation.instance_path, violation.message);
        app.note(&format!(
            "{} {}",
            styled(WARNING, "not as declared:"),
            plain(&text)
        ));
    }
    if result.is_error {
        app.note(&styled(WARNING, "the tool reports an error"));
    }
    Ok(())
}

type Prompt<'a> = Pin<Box<dyn Future<Output = Outcome<Elicitation>> + 'a>>;

/// A call that is waited for.
struct Running<'a> {
    client: &'a Client,
    app: &'a App,
    events: bool,
    no_input: bool,
    keyboard: Keyboard,
    call_id: String,
    /// The pending questions of the namespace.
    questions: BTreeMap<String, Elicitation>,
}

impl Running<'_> {
    async fn follow(mut self, call: ToolCall) -> Outcome<CallToolResponse> {
        let asks = !self.no_input && terminal::is_interactive();
        let mut updates = if asks {
            Some(self.attach().await?)
        } else {
            None
        };
        let title = match &*call.tool_name {
            "" => call.model_name.clone(),
            tool => format!("{}/{tool}", call.server_id),
        };
        let mut stream = self.client.call_tool_stream(call).await?;
        let (client, app) = (self.client, self.app);
        let keyboard = std::mem::replace(&mut self.keyboard, Keyboard::new());
        let mut asked: Option<(String, Prompt<'_>)> = None;
        let slow = tokio::time::sleep(SHORT);
        tokio::pin!(slow);
        let mut waits_long = false;
        loop {
            if asked.is_none() {
                let next = self.questions.values();
                let mut next = next.filter(|question| {
                    !self.call_id.is_empty() && question.call_id == self.call_id
                });
                if let Some(question) = next.next().cloned() {
                    app.clear_progress();
                    let id = question.id.clone();
                    let keyboard = &keyboard;
                    let prompt = async move { form::put(client, keyboard, app, &question).await };
                    asked = Some((id, Box::pin(prompt)));
                }
            }
            tokio::select! {
                biased;
                event = stream.next() => {
                    let Some(event) = event else {
                        return Err(Failure::Refused("the call ended without a result".to_owned()));
                    };
                    // What ends the call ends its question, whichever is heard of first.
                    if asked.is_some() && matches!(event, Ok(CallEvent::Result(_)) | Err(_)) {
                        asked = None;
                        ended_elsewhere(app);
                    }
                    let event = event?;
                    if self.events {
                        let line = CallToolStreamResponse { event: Some(event.clone()) };
                        let format = match app.format() {
                            Format::Table => Format::Json,
                            format => format,
                        };
                        out::event(format, &Json(&line))?;
                    }
                    if let Some(result) = self.take(event, asks, asked.is_some())? {
                        return Ok(CallToolResponse { result: Some(result), call_id: self.call_id });
                    }
                }
                update = next(&mut updates) => {
                    self.note(update?);
                    let is_over = |id: &String| !self.questions.contains_key(id);
                    if asked.as_ref().is_some_and(|(id, _)| is_over(id)) {
                        asked = None;
                        ended_elsewhere(app);
                    }
                }
                answered = answer(&mut asked) => {
                    if let Some((id, _)) = asked.take() {
                        self.questions.remove(&id);
                    }
                    match answered {
                        Ok(_) => {}
                        // Somebody else was faster.
                        Err(Failure::Daemon(error))
                            if error.reason() == Some(&Reason::ALREADY_RESOLVED) => {}
                        Err(failure) => return Err(failure),
                    }
                }
                () = &mut slow, if !waits_long => {
                    waits_long = true;
                    if asked.is_none() && app.progress().is_none() {
                        app.show_progress(spinner(&title));
                    }
                }
            }
        }
    }

    /// Says to the daemon, and so to servers, that somebody is here who can be asked.
    async fn attach(&mut self) -> Outcome<Updates> {
        let mut updates = self.client.updates_with(UpdateFilter {
            kinds: vec![UpdateKind::Elicitation, UpdateKind::Sampling],
            can_answer: Some(CanAnswer {
                elicitation_form: true,
                elicitation_url: true,
                approval: true,
                ..Default::default()
            }),
            ..Default::default()
        });
        loop {
            match updates.next().await {
                Some(update) => match update?.event {
                    UpdateEvent::SnapshotEnd => return Ok(updates),
                    event => self.note(event),
                },
                None => return Err(Failure::Refused("the updates have ended".to_owned())),
            }
        }
    }

    /// Keeps track of the questions.
    fn note(&mut self, event: UpdateEvent) {
        match event {
            UpdateEvent::Elicitation(question) if question.state() == ElicitationState::Pending => {
                self.questions.insert(question.id.clone(), *question);
            }
            UpdateEvent::Elicitation(question) => {
                self.questions.remove(&question.id);
            }
            UpdateEvent::Sampling(request)
                if request.state() == ElicitationState::Pending
                    && request.call_id == self.call_id =>
            {
                let text = format!(
                    "a language model is asked; see `mcp-sidecar questions show {}`",
                    request.id
                );
                self.app.note(&plain(&text));
            }
            UpdateEvent::Deleted { id, .. } => {
                self.questions.remove(&id);
            }
            _ => {}
        }
    }

    /// Takes an event; returns the result if it is the last.
    fn take(
        &mut self,
        event: CallEvent,
        asks: bool,
        is_asking: bool,
    ) -> Outcome<Option<ToolResult>> {
        match event {
            CallEvent::Started(CallStarted { call_id }) => {
                self.app.detail(&format!("call {}", one_line(&call_id)));
                self.call_id = call_id;
            }
            CallEvent::Progress(progress) if !is_asking => self.progress(&progress),
            CallEvent::Log(message) => self.log(&message),
            CallEvent::InputRequired(input) if self.no_input => {
                let ids = input.elicitation_ids.join(", ");
                let text = format!("the call needs an answer (question {ids}); it is cancelled");
                return Err(Failure::AnswerNeeded(text));
            }
            CallEvent::InputRequired(input) if !asks => {
                for id in &input.elicitation_ids {
                    let text = format!("the call waits for `mcp-sidecar questions answer {id}`");
                    self.app.note(&plain(&text));
                }
            }
            CallEvent::Task(task) => {
                let text = format!("task {}: {}", task.status, task.message);
                self.app.detail(&one_line(&text));
            }
            CallEvent::Result(result) => return Ok(Some(result)),
            _ => {}
        }
        Ok(None)
    }

    fn log(&self, message: &LogMessage) {
        let (style, level) = show::level(message.level());
        let text = match serde_json::from_str(&message.data_json) {
            Ok(Value::String(text)) => text,
            _ => message.data_json.clone(),
        };
        let logger = one_line(&message.logger);
        let head = format!("{} {logger}", styled(style, &level));
        self.app.note(&format!("{}: {}", head.trim(), plain(&text)));
    }

    fn progress(&self, progress: &Progress) {
        let bar = self.app.progress().unwrap_or_else(|| {
            let bar = spinner("");
            self.app.show_progress(bar.clone());
            bar
        });
        let message = one_line(&progress.message).into_owned();
        match progress.total {
            Some(total) if total > 0.0 => {
                if bar.length().is_none() {
                    bar.set_style(style("{bar:30} {percent:>3}% {wide_msg}"));
                    bar.set_length(STEPS);
                }
                bar.set_position(steps(progress.progress / total));
                bar.set_message(message);
            }
            _ => bar.set_message(format!("{} {message}", progress.progress)),
        }
        bar.tick();
        if self.app.progress().is_none() || !terminal::is_stderr() {
            let text = match progress.total {
                Some(total) => format!("{} of {total} {}", progress.progress, progress.message),
                None => format!("{} {}", progress.progress, progress.message),
            };
            self.app.detail(&one_line(&text));
        }
    }
}

/// Says so behind the prompt that is still on the screen.
fn ended_elsewhere(app: &App) {
    out::note("");
    app.note("this question has ended elsewhere");
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "the share is clamped to the range of the bar first"
)]
fn steps(share: f64) -> u64 {
    (share.clamp(0.0, 1.0) * STEPS as f64) as u64
}

fn spinner(title: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    bar.set_style(style("{spinner} {wide_msg}"));
    bar.set_message(one_line(title).into_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

fn style(template: &str) -> ProgressStyle {
    // Templates are written here, and right.
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner())
}

/// The next update; never, where none are followed.
async fn next(updates: &mut Option<Updates>) -> Outcome<UpdateEvent> {
    match updates {
        Some(updates) => match updates.next().await {
            Some(update) => Ok(update?.event),
            None => pending().await,
        },
        None => pending().await,
    }
}

/// The end of the prompt; never, where there is none.
async fn answer(asked: &mut Option<(String, Prompt<'_>)>) -> Outcome<Elicitation> {
    match asked {
        Some((_, prompt)) => prompt.await,
        None => pending().await,
    }
}
