//! Questions of servers, put at the terminal: forms field by field, URLs, approvals. What is wrong with an answer the daemon
//! says, and what it complains of is asked again.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use mcp_sidecar_client::proto::{
    ChoiceField, Elicitation, ElicitationMode, FormField, form_field::Kind,
};
use mcp_sidecar_client::{Arguments, Client, Error, Reason, Violation, open_browser};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::app::App;
use crate::ask::Keyboard;
use crate::exit::Outcome;
use crate::out::{self, DIM, HEADING, WARNING, styled};
use crate::plain::{one_line, plain};

/// What somebody at the terminal says.
enum Decision {
    Accept,
    Open,
    Decline,
    Cancel,
}

/// Puts a pending question and gives the answer.
pub(crate) async fn put(
    client: &Client,
    keyboard: &Keyboard,
    app: &App,
    question: &Elicitation,
) -> Outcome<Elicitation> {
    keyboard.forget();
    out::note(&introduction(question));
    let mut form = BTreeMap::new();
    let mut wrong: Vec<Violation> = Vec::new();
    loop {
        // What was complained of is asked again without asking whether to answer at all.
        let decision = if wrong.is_empty() {
            decide(keyboard, question.mode()).await?
        } else {
            Decision::Accept
        };
        let content = match decision {
            Decision::Decline => return Ok(client.decline_elicitation(&question.id).await?),
            Decision::Cancel => return Ok(client.cancel_elicitation(&question.id).await?),
            Decision::Open => {
                if let Err(error) = open_browser(&question.url) {
                    out::note(&plain(&format!("no browser was opened: {error}")));
                    continue;
                }
                ().into()
            }
            Decision::Accept if question.mode() != ElicitationMode::Form => ().into(),
            Decision::Accept => match fill(keyboard, question, &mut form, &wrong).await? {
                Some(content) => Arguments::from(content),
                None => return Ok(client.cancel_elicitation(&question.id).await?),
            },
        };
        match client.accept_elicitation(&question.id, content).await {
            Ok(ended) => return Ok(ended),
            Err(error) if error.reason() == Some(&Reason::INVALID_FIELD) => {
                wrong = complaints(&error);
                for violation in &wrong {
                    let text = format!("{} {}", member(violation), violation.description);
                    app.complain(text.trim());
                }
                if question.mode() != ElicitationMode::Form {
                    return Err(error.into());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// What the daemon says is wrong; never empty.
fn complaints(error: &Error) -> Vec<Violation> {
    error.violations().to_vec()
}

/// The member of the form that a complaint is about.
fn member(violation: &Violation) -> &str {
    let field = &*violation.field;
    field.strip_prefix("content_json.").unwrap_or(field)
}

/// Who asks, and what. The text is harmless.
pub(crate) fn introduction(question: &Elicitation) -> String {
    let server = match &*question.server_name {
        name if name.is_empty() || name == question.server_id => question.server_id.clone(),
        name => format!("{name} ({})", question.server_id),
    };
    let server = styled(HEADING, &one_line(&server));
    let message = plain(&question.message);
    match question.mode() {
        ElicitationMode::Url => {
            let mut text = format!("{server} asks you to open a page: {message}\n");
            let _never = writeln!(text, "  {}", plain(&question.url));
            let host = styled(HEADING, &one_line(&question.url_host));
            let _never = write!(text, "  which leads to {host}");
            if !question.url_warnings.is_empty() {
                let warnings = one_line(&question.url_warnings.join(", ")).into_owned();
                let _never = write!(text, "\n  {} {warnings}", styled(WARNING, "beware:"));
            }
            text
        }
        ElicitationMode::Approval => {
            let tool = styled(HEADING, &one_line(&question.tool_name));
            let arguments = match &*question.arguments_json {
                "" => "without arguments".into(),
                arguments => plain(arguments),
            };
            format!("May this call be made? {server}: {tool}\n  {arguments}")
        }
        _ => format!("{server} asks: {message}"),
    }
}

async fn decide(keyboard: &Keyboard, mode: ElicitationMode) -> Outcome<Decision> {
    let prompt = match mode {
        ElicitationMode::Url => "[o]pen it, [y]es, I have opened it, [d]ecline, [c]ancel: ",
        ElicitationMode::Approval => "[y]es, [d]ecline, [c]ancel: ",
        _ => "Answer? [Y]es, [d]ecline, [c]ancel: ",
    };
    loop {
        let Some(line) = keyboard.ask(prompt).await? else {
            return Ok(Decision::Cancel);
        };
        return Ok(match line.trim().to_lowercase().as_str() {
            "y" | "yes" => Decision::Accept,
            "" if mode == ElicitationMode::Form => Decision::Accept,
            "o" | "open" if mode == ElicitationMode::Url => Decision::Open,
            "d" | "decline" | "n" | "no" => Decision::Decline,
            "c" | "cancel" => Decision::Cancel,
            _ => continue,
        });
    }
}

/// Asks for the fields that were not answered or are wrong, and returns the answer as JSON; `None` at the end of the input.
async fn fill(
    keyboard: &Keyboard,
    question: &Elicitation,
    form: &mut BTreeMap<String, String>,
    wrong: &[Violation],
) -> Outcome<Option<String>> {
    if question.fields.is_empty() {
        return whole(keyboard, question).await;
    }
    let named = |field: &FormField| wrong.iter().any(|one| member(one) == field.name);
    let asks_for_some = question.fields.iter().any(named);
    for field in &question.fields {
        // A complaint that names no field may be about any of them.
        if !wrong.is_empty() && asks_for_some && !named(field) {
            continue;
        }
        loop {
            let Some(line) = keyboard.ask(&prompt(field)).await? else {
                return Ok(None);
            };
            match value_of(field, &line) {
                Ok(Some(value)) => {
                    form.insert(field.name.clone(), value);
                    break;
                }
                Ok(None) => {
                    form.remove(&field.name);
                    break;
                }
                Err(why) => out::note(&plain(&format!("  {why}"))),
            }
        }
    }
    Ok(Some(object(form)))
}

/// A schema that is no form is answered with a whole JSON object.
async fn whole(keyboard: &Keyboard, question: &Elicitation) -> Outcome<Option<String>> {
    if question.requested_schema_json.is_empty() {
        return Ok(Some("{}".to_owned()));
    }
    out::note(&styled(DIM, &plain(&question.requested_schema_json)));
    loop {
        let Some(line) = keyboard
            .ask("A JSON object that follows this schema: ")
            .await?
        else {
            return Ok(None);
        };
        match serde_json::from_str::<&RawValue>(&line) {
            Ok(json) if json.get().starts_with('{') => return Ok(Some(json.get().to_owned())),
            _ => out::note("  this is no JSON object"),
        }
    }
}

fn object(form: &BTreeMap<String, String>) -> String {
    let members = form.iter();
    let members = members.map(|(name, value)| format!("{}:{value}", Value::from(name.as_str())));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

/// What a field is asked with.
fn prompt(field: &FormField) -> String {
    let label = match &*field.title {
        "" => &field.name,
        title => title,
    };
    let mut text = String::new();
    if !field.description.is_empty() {
        let _never = writeln!(text, "{}", styled(DIM, &plain(&field.description)));
    }
    if let Some(Kind::Choice(choice)) = &field.kind {
        for (index, option) in choice.options.iter().enumerate() {
            let _never = writeln!(text, "  {}) {}", index + 1, one_line(&option.title));
        }
    }
    text += &styled(HEADING, &one_line(label));
    let hint = hint(field);
    if !hint.is_empty() {
        let _never = write!(text, " ({})", one_line(&hint));
    }
    if let Some(default) = default(field) {
        let _never = write!(text, " [{}]", one_line(&default));
    }
    text + ": "
}

/// What a field takes, in a few words.
fn hint(field: &FormField) -> String {
    let bounds = |minimum: &str, maximum: &str| match (minimum, maximum) {
        ("", "") => String::new(),
        (minimum, "") => format!("at least {minimum}"),
        ("", maximum) => format!("at most {maximum}"),
        (minimum, maximum) => format!("{minimum} to {maximum}"),
    };
    let mut hint = match &field.kind {
        Some(Kind::Text(text)) => text.format.clone(),
        Some(Kind::Number(number) | Kind::Integer(number)) => {
            bounds(&number.minimum, &number.maximum)
        }
        Some(Kind::Boolean(_)) => "y/n".to_owned(),
        Some(Kind::Choice(choice)) if choice.multiple => "numbers, with commas".to_owned(),
        Some(Kind::Choice(_)) => "number".to_owned(),
        Some(Kind::OtherJson(schema)) => format!("JSON, {schema}"),
        None => "JSON".to_owned(),
    };
    if !field.required {
        let separator = if hint.is_empty() { "" } else { ", " };
        hint = format!("{hint}{separator}may be left out");
    }
    hint
}

/// What a field takes and what it starts with, in words.
pub(crate) fn in_words(field: &FormField) -> (String, String) {
    let kind = match &field.kind {
        Some(Kind::Text(_)) => "text".to_owned(),
        Some(Kind::Number(_)) => "number".to_owned(),
        Some(Kind::Integer(_)) => "whole number".to_owned(),
        Some(Kind::Boolean(_)) => "true or false".to_owned(),
        Some(Kind::Choice(choice)) => {
            let values = choice.options.iter().map(|option| &*option.value);
            let values = values.collect::<Vec<_>>().join(", ");
            if choice.multiple {
                format!("any of {values}")
            } else {
                format!("one of {values}")
            }
        }
        Some(Kind::OtherJson(_)) | None => "JSON".to_owned(),
    };
    let bounds = match &field.kind {
        Some(Kind::Choice(_) | Kind::Boolean(_) | Kind::OtherJson(_)) | None if field.required => {
            String::new()
        }
        Some(Kind::Choice(_) | Kind::Boolean(_) | Kind::OtherJson(_)) | None => {
            "may be left out".to_owned()
        }
        _ => hint(field),
    };
    let takes = match &*bounds {
        "" => kind,
        bounds => format!("{kind}, {bounds}"),
    };
    (takes, default(field).unwrap_or_default())
}

/// What an empty line stands for, as it is typed.
fn default(field: &FormField) -> Option<String> {
    match field.kind.as_ref()? {
        Kind::Text(text) => text.default_value.clone(),
        Kind::Number(number) | Kind::Integer(number) => {
            Some(number.default_value.clone()).filter(|value| !value.is_empty())
        }
        Kind::Boolean(boolean) => {
            let default = boolean.default_value?;
            Some(if default { "y" } else { "n" }.to_owned())
        }
        Kind::Choice(choice) if choice.default_values.is_empty() => None,
        Kind::Choice(choice) => {
            let numbers = choice.default_values.iter().filter_map(|value| {
                let place = choice.options.iter().position(|one| one.value == *value)?;
                Some((place + 1).to_string())
            });
            Some(numbers.collect::<Vec<_>>().join(","))
        }
        Kind::OtherJson(_) => None,
    }
}

/// The JSON of what was typed; `None` leaves the field out.
fn value_of(field: &FormField, line: &str) -> Result<Option<String>, String> {
    let default = default(field);
    let line = match (line.trim(), default) {
        ("", None) if !field.required => return Ok(None),
        ("", None) => return Err("an answer is needed".to_owned()),
        // The text of a default is taken with its spaces.
        ("", Some(default)) => default,
        (line, _) => line.to_owned(),
    };
    let text = |text: &str| Value::from(text).to_string();
    let json = |wanted: &str, fits: &dyn Fn(&str) -> bool| {
        let raw = serde_json::from_str::<&RawValue>(&line).ok();
        let raw = raw.map(RawValue::get).filter(|raw| fits(raw));
        raw.map(|raw| Some(raw.to_owned()))
            .ok_or_else(|| format!("this is no {wanted}"))
    };
    match &field.kind {
        // The empty text, which an empty line does not stand for.
        Some(Kind::Text(_)) if line == "\"\"" => Ok(Some(text(""))),
        Some(Kind::Text(_)) => Ok(Some(text(&line))),
        Some(Kind::Number(_) | Kind::Integer(_)) => json("number", &|raw| {
            raw.starts_with(|first: char| first == '-' || first.is_ascii_digit())
        }),
        Some(Kind::Boolean(_)) => match line.to_lowercase().as_str() {
            "y" | "yes" | "true" => Ok(Some("true".to_owned())),
            "n" | "no" | "false" => Ok(Some("false".to_owned())),
            _ => Err("answer with y or n".to_owned()),
        },
        Some(Kind::Choice(choice)) if choice.multiple => {
            let words = line
                .split(',')
                .map(str::trim)
                .filter(|word| !word.is_empty());
            let values = words.map(|word| chosen(choice, word).map(|value| text(&value)));
            let values: Vec<String> = values.collect::<Result<_, _>>()?;
            Ok(Some(format!("[{}]", values.join(","))))
        }
        Some(Kind::Choice(choice)) => Ok(Some(text(&chosen(choice, &line)?))),
        Some(Kind::OtherJson(_)) | None => json("JSON", &|_| true),
    }
}

/// The value that a number, a value or a title chooses. Values come first: a server may offer numbers.
fn chosen(choice: &ChoiceField, word: &str) -> Result<String, String> {
    let by_number = || {
        choice
            .options
            .get(word.parse::<usize>().ok()?.checked_sub(1)?)
    };
    let numbers_are_values = choice
        .options
        .iter()
        .any(|one| one.value.parse::<usize>().is_ok());
    let named = choice.options.iter();
    let mut named = named.filter(|one| one.value == word || one.title == word);
    let found = if numbers_are_values {
        by_number().or_else(|| named.next())
    } else {
        named.next().or_else(by_number)
    };
    found
        .map(|option| option.value.clone())
        .ok_or_else(|| format!("choose a number from 1 to {}", choice.options.len()))
}

#[cfg(test)]
mod tests {
    use mcp_sidecar_client::proto::{BooleanField, ChoiceOption, NumberField, TextField};

    use super::*;

    fn field(kind: Kind, required: bool) -> FormField {
        FormField {
            name: "f".to_owned(),
            required,
            kind: Some(kind),
            ..Default::default()
        }
    }

    fn sizes(multiple: bool, values: &[&str]) -> Kind {
        let options = values.iter().map(|&value| ChoiceOption {
            value: value.to_owned(),
            title: format!("size {value}"),
        });
        Kind::Choice(ChoiceField {
            options: options.collect(),
            multiple,
            default_values: vec![values[1].to_owned()],
            ..Default::default()
        })
    }

    #[test]
    fn what_is_typed_becomes_json_of_the_fields_type() {
        let number = Kind::Number(NumberField::default());
        let yes = Kind::Boolean(BooleanField {
            default_value: Some(true),
        });
        let text = Kind::Text(TextField::default());
        for (kind, line, json) in [
            (number.clone(), " 9007199254740993 ", Ok("9007199254740993")),
            (number.clone(), "1.10", Ok("1.10")),
            (number, "ten", Err("this is no number")),
            (yes.clone(), "", Ok("true")),
            (yes.clone(), "No", Ok("false")),
            (yes, "perhaps", Err("answer with y or n")),
            (text.clone(), "a \"b\"", Ok(r#""a \"b\"""#)),
            (text.clone(), "\"\"", Ok(r#""""#)),
            (text, "", Err("an answer is needed")),
            (sizes(false, &["s", "m"]), "", Ok(r#""m""#)),
            (sizes(false, &["s", "m"]), "1", Ok(r#""s""#)),
            (sizes(false, &["s", "m"]), "size m", Ok(r#""m""#)),
            (
                sizes(false, &["s", "m"]),
                "3",
                Err("choose a number from 1 to 2"),
            ),
            (sizes(false, &["2", "1"]), "1", Ok(r#""2""#)),
            (sizes(true, &["s", "m"]), "2, s", Ok(r#"["m","s"]"#)),
            (
                Kind::OtherJson("{}".to_owned()),
                "{\"a\":1}",
                Ok("{\"a\":1}"),
            ),
        ] {
            let value = value_of(&field(kind, true), line);
            assert_eq!(
                value,
                json.map(|json| Some(json.to_owned()))
                    .map_err(str::to_owned)
            );
        }
        let optional = field(Kind::Text(TextField::default()), false);
        assert_eq!(value_of(&optional, " "), Ok(None));
    }

    #[test]
    fn a_prompt_obeys_no_server() {
        let mut field = field(sizes(false, &["s", "m\u{1b}[2J"]), true);
        field.title = "Size\u{1b}]0;x\u{7}".to_owned();
        field.description = "two\nlines\u{9b}1m".to_owned();
        let shown = anstream::adapter::strip_str(&prompt(&field)).to_string();
        assert!(!shown.contains(['\u{1b}', '\u{7}', '\u{9b}']), "{shown}");
        assert!(shown.ends_with("(number) [2]: "), "{shown}");
    }
}
