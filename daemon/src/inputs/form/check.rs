//! Compares an answer with a form.
//!
//! Never quotes a value of the answer: what is said about it goes into errors, and errors into logs.

use std::collections::{HashMap, HashSet};

use super::pattern::Patterns;
use super::{Choice, Field, Form, Kind, Number, Problem, Refusal, Text, format, json};
use crate::json::number::Decimal;

/// Most members that are reported.
const MAX_PROBLEMS: usize = 256;
/// Most options that a message lists, and the longest of them in characters.
const LISTED: (usize, usize) = (8, 40);

/// See [`Form::check`].
pub(super) fn check(form: &Form, answer: &str) -> Result<(), Refusal> {
    let members = json::members(answer).ok_or(Refusal::NotAnObject)?;
    let mut given = HashMap::new();
    let mut repeated = HashSet::new();
    for (name, value) in &members {
        if given.insert(name.as_ref(), *value).is_some() {
            repeated.insert(name.as_ref());
        }
    }
    let mut problems = Vec::new();
    let mut report = |name: &str, messages: Vec<String>| {
        if !messages.is_empty() && problems.len() < MAX_PROBLEMS {
            problems.push(Problem {
                name: name.to_owned(),
                message: messages.join("; "),
            });
        }
    };
    let mut patterns = Patterns::default();
    for field in &form.fields {
        let name = field.name.as_str();
        let messages = match given.remove(name) {
            None if field.required => vec!["is required".to_owned()],
            None => Vec::new(),
            Some(_) if repeated.contains(name) => twice(),
            Some(value) => member(field, value, &mut patterns),
        };
        report(name, messages);
    }
    // In the order of the answer, and each name once.
    for (name, _) in &members {
        let name = name.as_ref();
        if given.remove(name).is_none() {
            continue;
        }
        if form.closed {
            report(name, vec!["is not a field of the form".to_owned()]);
        } else if repeated.contains(name) {
            report(name, twice());
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    Err(Refusal::Members(problems))
}

fn twice() -> Vec<String> {
    vec!["is given more than once".to_owned()]
}

fn member(field: &Field, value: &str, patterns: &mut Patterns) -> Vec<String> {
    let wanted = |what: &str| vec![format!("must be {what}")];
    match &field.kind {
        Kind::Text(expected) => match json::text(value) {
            Some(given) => {
                let mut messages = text(expected, &given);
                if patterns.refuse(&expected.pattern, &given) {
                    let pattern = shorten(&expected.pattern);
                    messages.push(format!("must match the pattern `{pattern}`"));
                }
                messages
            }
            None if value.starts_with('"') => wanted("Unicode text"),
            None => wanted("a text"),
        },
        Kind::Number(expected) => match Decimal::parse(value) {
            Some(given) => number(expected, false, &given),
            None => wanted("a number"),
        },
        Kind::Integer(expected) => match Decimal::parse(value) {
            Some(given) => number(expected, true, &given),
            None => wanted("a whole number"),
        },
        Kind::Boolean { .. } => match json::boolean(value) {
            Some(_) => Vec::new(),
            None => wanted("true or false"),
        },
        Kind::Choice(expected) if expected.multiple => match json::texts(value) {
            Some(given) => choices(expected, &given),
            None => wanted("a list of texts"),
        },
        Kind::Choice(expected) => {
            let given = json::text(value);
            let known = |given| expected.options.iter().any(|option| option.value == given);
            if given.is_some_and(known) {
                return Vec::new();
            }
            wanted(&format!("one of {}", options(expected)))
        }
        Kind::Other(_) => Vec::new(),
    }
}

/// What is wrong with a text, except for its pattern.
pub(super) fn text(expected: &Text, given: &str) -> Vec<String> {
    let mut messages = Vec::new();
    // JSON Schema counts code points (2020-12 validation, section 6.3).
    let length = given.chars().count();
    if let Some(least) = expected.min_length.filter(|least| length < size(*least)) {
        messages.push(format!("must have at least {}", count(least, "character")));
    }
    if let Some(most) = expected.max_length.filter(|most| length > size(*most)) {
        messages.push(format!("must have at most {}", count(most, "character")));
    }
    messages.extend(format::refuse(&expected.format, given).map(str::to_owned));
    messages
}

/// What is wrong with a number.
pub(super) fn number(expected: &Number, integer: bool, given: &Decimal) -> Vec<String> {
    let mut messages = Vec::new();
    if integer && !given.is_integer() {
        messages.push("must be a whole number".to_owned());
    }
    if let Some(minimum) = &expected.minimum
        && given.compare(minimum).is_lt()
    {
        messages.push(format!("must be at least {}", shorten(minimum.as_str())));
    }
    if let Some(maximum) = &expected.maximum
        && given.compare(maximum).is_gt()
    {
        messages.push(format!("must be at most {}", shorten(maximum.as_str())));
    }
    messages
}

/// What is wrong with a list of values.
pub(super) fn choices(expected: &Choice, given: &[String]) -> Vec<String> {
    let mut messages = Vec::new();
    let known: HashSet<&str> = expected
        .options
        .iter()
        .map(|option| option.value.as_str())
        .collect();
    if !given.iter().all(|value| known.contains(value.as_str())) {
        messages.push(format!("must hold only {}", options(expected)));
    }
    if let Some(least) = expected
        .min_items
        .filter(|least| given.len() < size(*least))
    {
        messages.push(format!("must have at least {}", count(least, "value")));
    }
    if let Some(most) = expected.max_items.filter(|most| given.len() > size(*most)) {
        messages.push(format!("must have at most {}", count(most, "value")));
    }
    let distinct: HashSet<&String> = given.iter().collect();
    if expected.unique && distinct.len() < given.len() {
        messages.push("must not repeat a value".to_owned());
    }
    messages
}

fn size(count: u32) -> usize {
    usize::try_from(count).unwrap_or(usize::MAX)
}

fn count(count: u32, what: &str) -> String {
    match count {
        1 => format!("1 {what}"),
        _ => format!("{count} {what}s"),
    }
}

fn options(choice: &Choice) -> String {
    let listed = choice.options.iter().take(LISTED.0);
    let listed: Vec<_> = listed
        .map(|option| format!("`{}`", shorten(&option.value)))
        .collect();
    let rest = choice.options.len() - listed.len();
    let more = if rest > 0 {
        format!(" and {rest} more")
    } else {
        String::new()
    };
    format!("{}{more}", listed.join(", "))
}

/// A text of the server, short enough for a message.
fn shorten(text: &str) -> String {
    match text.char_indices().nth(LISTED.1) {
        Some((end, _)) => format!("{}...", text.get(..end).unwrap_or_default()),
        None => text.to_owned(),
    }
}
