//! `questions`: what servers ask, of people and of language models.

use clap::{Args, Subcommand};
use mcp_sidecar_client::proto::{
    Elicitation, ElicitationMode, ElicitationState, ListElicitationsRequest,
    ListElicitationsResponse, ListSamplingRequestsRequest, ListSamplingRequestsResponse,
    SamplingContent, SamplingRequest, sampling_content,
};
use mcp_sidecar_client::{Arguments, Client, Error, Json, Reason};
use serde::Serialize;

use crate::app::App;
use crate::arguments::{self, Types};
use crate::ask::Keyboard;
use crate::exit::{Failure, Outcome, usage};
use crate::out::{self, Format, HEADING, Table, styled};
use crate::plain::{one_line, plain};
use crate::{files, form, show, terminal};

/// What to do with questions.
#[derive(Debug, Subcommand)]
pub(crate) enum Questions {
    /// List the pending questions
    #[command(visible_alias = "ls")]
    List {
        /// Those that have ended, too
        #[arg(long)]
        all: bool,
    },
    /// Show a question
    Show {
        /// The question
        id: String,
    },
    /// Answer a question, at the terminal or by options
    Answer(Answer),
}

/// An answer.
#[derive(Debug, Args)]
pub(crate) struct Answer {
    /// The question
    id: String,
    /// Accept it; a form with its members as `name=value` or `name:=JSON`
    #[arg(long, num_args = 0.., value_name = "NAME=VALUE", group = "how")]
    accept: Option<Vec<String>>,
    /// Accept a form with this JSON object: text, `@FILE` or `-`
    #[arg(long, value_name = "JSON", group = "how")]
    content_json: Option<String>,
    /// Say no
    #[arg(long, group = "how")]
    decline: bool,
    /// Do not decide
    #[arg(long, group = "how")]
    cancel: bool,
    /// Give the answer of a language model, a `CreateMessageResult`: text, `@FILE` or `-`
    #[arg(long, value_name = "JSON", group = "how")]
    result_json: Option<String>,
    /// Refuse to ask a language model
    #[arg(long, group = "how")]
    reject: bool,
}

/// A question of either kind.
enum Question {
    Person(Box<Elicitation>),
    Model(Box<SamplingRequest>),
}

impl Question {
    fn print(&self, app: &App) -> Outcome {
        match self {
            Self::Person(question) => {
                out::message(app.format(), &**question, || show_question(question))
            }
            Self::Model(request) => {
                out::message(app.format(), &**request, || show_request(request))
            }
        }
    }
}

pub(crate) async fn run(command: Questions, app: &App) -> Outcome {
    let client = app.client().await?;
    match command {
        Questions::List { all } => list(&client, all, app).await,
        Questions::Show { id } => find(&client, &id).await?.print(app),
        Questions::Answer(answer) => self::answer(answer, &client, app).await,
    }
}

/// The two lists as one document.
#[derive(Serialize)]
struct Both<'a> {
    #[serde(flatten)]
    people: Json<'a, ListElicitationsResponse>,
    #[serde(flatten)]
    models: Json<'a, ListSamplingRequestsResponse>,
}

async fn list(client: &Client, all: bool, app: &App) -> Outcome {
    let states = if all { (1..=6).collect() } else { Vec::new() };
    let people = client
        .list_elicitations_with(ListElicitationsRequest {
            states: states.clone(),
            ..Default::default()
        })
        .await;
    let models = client
        .list_sampling_requests_with(ListSamplingRequestsRequest {
            states,
            ..Default::default()
        })
        .await;
    let people = ListElicitationsResponse {
        elicitations: or_none(people)?,
        ..Default::default()
    };
    let models = ListSamplingRequestsResponse {
        sampling_requests: or_none(models)?,
        ..Default::default()
    };
    if app.format() != Format::Table {
        let both = Both {
            people: Json(&people),
            models: Json(&models),
        };
        return out::document(app.format(), &both);
    }
    let mut rows: Vec<[String; 5]> = Vec::new();
    for question in &people.elicitations {
        let mode = show::word(question.mode().as_str_name(), "ELICITATION_MODE_");
        let text = match question.mode() {
            ElicitationMode::Approval => question.tool_name.clone(),
            _ => question.message.clone(),
        };
        let state = show::question_state(question.state()).1;
        rows.push([
            question.id.clone(),
            question.server_id.clone(),
            mode,
            state,
            text,
        ]);
    }
    for request in &models.sampling_requests {
        let state = show::question_state(request.state()).1;
        rows.push([
            request.id.clone(),
            request.server_id.clone(),
            "model".to_owned(),
            state,
            request.summary.clone(),
        ]);
    }
    if rows.is_empty() {
        app.note("no questions");
        return Ok(());
    }
    let mut table = Table::new(&["ID", "SERVER", "KIND", "STATE", "QUESTION"]);
    for row in &rows {
        table.row(row.each_ref().map(String::as_str));
    }
    table.print()
}

fn or_none<T>(listed: Result<Vec<T>, Error>) -> Outcome<Vec<T>> {
    match listed {
        Err(error) if super::servers::is_new(&error) => Ok(Vec::new()),
        listed => Ok(listed?),
    }
}

async fn find(client: &Client, id: &str) -> Outcome<Question> {
    match client.get_elicitation(id).await {
        Ok(question) => Ok(Question::Person(Box::new(question))),
        Err(error) if error.reason() == Some(&Reason::ELICITATION_NOT_FOUND) => {
            match client.get_sampling_request(id).await {
                Ok(request) => Ok(Question::Model(Box::new(request))),
                Err(other) if other.reason() == Some(&Reason::SAMPLING_REQUEST_NOT_FOUND) => {
                    Err(error.into())
                }
                Err(other) => Err(other.into()),
            }
        }
        Err(error) => Err(error.into()),
    }
}

async fn answer(answer: Answer, client: &Client, app: &App) -> Outcome {
    let id = &answer.id;
    let ended = match find(client, id).await? {
        Question::Person(question) => {
            Question::Person(Box::new(to_person(&answer, &question, client, app).await?))
        }
        Question::Model(request) => {
            let ended = match (&answer.result_json, answer.reject) {
                (Some(result), _) => {
                    client
                        .accept_sampling(id, files::text_or_file(result)?)
                        .await?
                }
                (None, true) => client.reject_sampling(id).await?,
                (None, false) => {
                    show_request(&request)?;
                    return usage("a language model is asked: give --result-json or --reject");
                }
            };
            Question::Model(Box::new(ended))
        }
    };
    if app.format() != Format::Table {
        return ended.print(app);
    }
    let (id, state) = match &ended {
        Question::Person(question) => (&question.id, question.state()),
        Question::Model(request) => (&request.id, request.state()),
    };
    let (style, state) = show::question_state(state);
    out::line(&format!("{}: {}", one_line(id), styled(style, &state)))
}

async fn to_person(
    answer: &Answer,
    question: &Elicitation,
    client: &Client,
    app: &App,
) -> Outcome<Elicitation> {
    let id = &question.id;
    if answer.decline || answer.reject {
        return Ok(client.decline_elicitation(id).await?);
    }
    if answer.cancel {
        return Ok(client.cancel_elicitation(id).await?);
    }
    if answer.result_json.is_some() {
        return usage("no language model is asked: give --accept, --decline or --cancel");
    }
    let content = match (&answer.accept, &answer.content_json) {
        (_, Some(json)) => files::text_or_file(json)?.into(),
        (Some(pairs), None) if question.mode() == ElicitationMode::Form => {
            arguments::object(pairs, &Types::Form(&question.fields))?.into()
        }
        (Some(pairs), None) if pairs.is_empty() => Arguments::from(()),
        (Some(_), None) => return usage("this question takes no values: give --accept alone"),
        (None, None) if question.state() != ElicitationState::Pending => {
            let (_, state) = show::question_state(question.state());
            return Err(Failure::Refused(format!("the question has ended: {state}")));
        }
        (None, None) if terminal::is_interactive() => {
            return form::put(client, &Keyboard::new(), app, question).await;
        }
        (None, None) => {
            return usage("there is no terminal to ask at: give --accept, --decline or --cancel");
        }
    };
    Ok(client.accept_elicitation(id, content).await?)
}

fn show_question(question: &Elicitation) -> Outcome {
    out::line(&form::introduction(question))?;
    let mut table = Table::of_facts();
    let (style, state) = show::question_state(question.state());
    table.fact("Id", &question.id);
    table.styled_fact("State", style, &state);
    table.fact("Call", &question.call_id);
    table.fact("Asked", &show::time(question.create_time.as_ref()));
    table.fact("Expires", &show::time(question.expire_time.as_ref()));
    table.fact("Ended", &show::time(question.resolve_time.as_ref()));
    table.print()?;
    if question.fields.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["FIELD", "TITLE", "TAKES", "DEFAULT"]);
    for field in &question.fields {
        let (takes, default) = form::in_words(field);
        table.row([&field.name, &field.title, &takes, &default]);
    }
    table.print()
}

fn show_request(request: &SamplingRequest) -> Outcome {
    let server = styled(HEADING, &one_line(&request.server_id));
    out::line(&format!("{server} asks for an answer of a language model"))?;
    let mut table = Table::of_facts();
    let (style, state) = show::question_state(request.state());
    table.fact("Id", &request.id);
    table.styled_fact("State", style, &state);
    table.fact("Call", &request.call_id);
    table.fact("Asked", &show::time(request.create_time.as_ref()));
    table.fact("Expires", &show::time(request.expire_time.as_ref()));
    table.fact("System prompt", &request.system_prompt);
    table.fact("Most tokens", &request.max_tokens.to_string());
    let tools = request.tools.iter().map(|tool| tool.name.clone());
    table.fact("Tools", &tools.collect::<Vec<_>>().join(" "));
    table.print()?;
    for message in &request.messages {
        let role = styled(HEADING, &format!("{}:", one_line(&message.role)));
        for content in &message.content {
            out::line(&format!("{role} {}", said(content)))?;
        }
    }
    Ok(())
}

/// What a message says. The text is harmless.
fn said(content: &SamplingContent) -> String {
    use sampling_content::Block;
    match &content.block {
        Some(Block::Text(text)) => plain(&text.text).into_owned(),
        Some(Block::Image(image)) => format!("[image, {}]", one_line(&image.mime_type)),
        Some(Block::Audio(audio)) => format!("[audio, {}]", one_line(&audio.mime_type)),
        Some(Block::ToolUse(used)) => {
            format!(
                "[uses {} with {}]",
                one_line(&used.name),
                plain(&used.input_json)
            )
        }
        Some(Block::ToolResult(result)) => {
            let blocks = result.content.iter().map(show::block);
            blocks.collect::<Vec<_>>().join("\n")
        }
        Some(Block::RawJson(json)) => plain(json).into_owned(),
        None => String::new(),
    }
}
