//! The form of a question: what a requested schema asks for, and whether an answer fits.
//!
//! Pure: no I/O, no clock, no state. Never quotes a value of an answer (names of members it does), never changes an
//! answer, and never makes a question unanswerable because of a schema that it does not understand.
//!
//! The schemas are the restricted ones of MCP client/elicitation, revisions 2025-06-18 to 2026-07-28: a flat object of
//! texts, numbers, booleans and choices. How the rest is treated:
//!
//! - What is not understood is not enforced. A foreign keyword is ignored, and so is a known one with a malformed value
//!   (`"minLength": "3"`, an empty `enum`) or bounds that exclude each other. A property of another kind (an object, a
//!   list of free texts, `anyOf` with null) is a field of the kind [`Kind::Other`] that takes any value; so is a name
//!   that is required and has no property. A schema that is not an object schema at all, or one beyond [`MAX_SCHEMA`]
//!   or [`MAX_FIELDS`], has no fields and takes any object.
//! - Members that the schema does not name are accepted, because JSON Schema accepts them and the specification says no
//!   more than that the content matches the schema; `"additionalProperties": false` refuses them.
//! - A member that is there twice is refused: receivers disagree about which one counts.
//! - Defaults are offered, and never put into an answer. A default that its own schema does not allow is not offered.
//!   Patterns are not part of that: they are tried on answers only.

mod check;
mod format;
mod json;
mod pattern;

use std::collections::{HashMap, HashSet};

pub use crate::json::number::Decimal;

/// Longest schema that is read, in bytes.
pub const MAX_SCHEMA: usize = 128 * 1024;
/// Most fields of a form.
pub const MAX_FIELDS: usize = 256;

/// What a requested schema asks for.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Form {
    /// The fields in the order of the schema; after them what is required but not described.
    pub fields: Vec<Field>,
    /// Whether members beside the fields are refused.
    closed: bool,
}

/// One field of a form.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// Name of the member in the answer.
    pub name: String,
    /// Title for people; empty if the server gives none.
    pub title: String,
    /// Explanation for people; empty if the server gives none.
    pub description: String,
    /// Whether an answer needs it.
    pub required: bool,
    /// What it takes.
    pub kind: Kind,
}

/// What a field takes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A JSON string.
    Text(Text),
    /// A JSON number.
    Number(Number),
    /// A JSON number without a fraction; `1.0` is one (JSON Schema 2020-12 validation, section 6.1.1).
    Integer(Number),
    /// `true` or `false`.
    Boolean {
        /// The value to start with.
        default: Option<bool>,
    },
    /// Values from a list.
    Choice(Choice),
    /// Anything; the schema of the property, raw, was not understood.
    Other(String),
}

/// A text. Lengths are in Unicode code points; those beyond 32 bits are cut to the largest value.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Text {
    /// Fewest characters.
    pub min_length: Option<u32>,
    /// Most characters.
    pub max_length: Option<u32>,
    /// The format in the server's words, or empty. `email`, `uri`, `date` and `date-time` are enforced.
    pub format: String,
    /// Regular expression (ECMA-262) that must match somewhere, in the server's words, or empty. Enforced where
    /// it is understood.
    pub pattern: String,
    /// The text to start with.
    pub default: Option<String>,
}

/// A number, exactly as the server wrote it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Number {
    /// Smallest value.
    pub minimum: Option<Decimal>,
    /// Largest value.
    pub maximum: Option<Decimal>,
    /// The value to start with.
    pub default: Option<Decimal>,
}

/// One or several values from a list.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Choice {
    /// What there is to choose from; never empty.
    pub options: Vec<ChoiceOption>,
    /// Whether the answer is an array of values instead of one value.
    pub multiple: bool,
    /// Fewest values (multiple).
    pub min_items: Option<u32>,
    /// Most values (multiple).
    pub max_items: Option<u32>,
    /// Whether a value can be chosen only once (multiple).
    pub unique: bool,
    /// The values to start with; at most one unless `multiple`.
    pub defaults: Vec<String>,
}

/// Something to choose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChoiceOption {
    /// What goes into the answer.
    pub value: String,
    /// What to show; the value where the server gives no title.
    pub title: String,
}

/// What is wrong with one member of an answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Name of the member.
    pub name: String,
    /// Everything that is wrong with it, in words that follow its name, such as "must be at least 3".
    pub message: String,
}

/// Why an answer is not taken. Quotes the schema, and no value of the answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// It is not a JSON object, or the name of a member is not Unicode text.
    NotAnObject,
    /// These members are wrong; never empty. Fields in their order, then members that are no fields.
    Members(Vec<Problem>),
}

impl Form {
    /// Reads a schema. Always succeeds: see the module's rules for what is not understood.
    #[must_use]
    pub fn parse(schema: &str) -> Self {
        if schema.len() > MAX_SCHEMA {
            return Self::default();
        }
        read_form(schema).unwrap_or_default()
    }

    /// Whether an answer, as raw JSON, fits.
    ///
    /// # Errors
    /// Everything that is wrong with it, up to a bound.
    pub fn check(&self, answer: &str) -> Result<(), Refusal> {
        check::check(self, answer)
    }
}

fn read_form(schema: &str) -> Option<Form> {
    let keywords = Keywords::read(schema)?;
    // MCP wants `"type": "object"`; that it may be missing costs nothing.
    if keywords.0.contains_key("type") && keywords.text("type")? != "object" {
        return None;
    }
    let mut form = Form {
        fields: Vec::new(),
        closed: keywords.get("additionalProperties") == Some("false"),
    };
    let required = keywords.texts("required").unwrap_or_default();
    let required: HashSet<&str> = required.iter().map(String::as_str).collect();
    let mut known: HashMap<String, usize> = HashMap::new();
    for (name, property) in keywords.get("properties").and_then(json::members)? {
        let field = read_field(&name, property, required.contains(name.as_ref()));
        // The last one counts where a name repeats, as for most readers of JSON.
        if let Some(place) = known
            .get(name.as_ref())
            .and_then(|at| form.fields.get_mut(*at))
        {
            *place = field;
        } else {
            known.insert(name.into_owned(), form.fields.len());
            form.fields.push(field);
        }
    }
    let mut rest: Vec<&str> = required
        .into_iter()
        .filter(|name| !known.contains_key(*name))
        .collect();
    rest.sort_unstable();
    form.fields
        .extend(rest.into_iter().map(|name| read_field(name, "{}", true)));
    (form.fields.len() <= MAX_FIELDS).then_some(form)
}

fn read_field(name: &str, property: &str, required: bool) -> Field {
    let keywords = Keywords::read(property).unwrap_or_default();
    Field {
        name: name.to_owned(),
        title: keywords.text("title").unwrap_or_default(),
        description: keywords.text("description").unwrap_or_default(),
        required,
        kind: read_kind(&keywords).unwrap_or_else(|| Kind::Other(property.to_owned())),
    }
}

fn read_kind(keywords: &Keywords<'_>) -> Option<Kind> {
    if !keywords.0.contains_key("type") {
        // Only a list of values says what a property without a type takes.
        return read_options(keywords).map(|options| Kind::Choice(read_choice(keywords, options)));
    }
    let name = keywords.text("type")?;
    match name.as_str() {
        "string" => Some(match read_options(keywords) {
            Some(options) => Kind::Choice(read_choice(keywords, options)),
            None => Kind::Text(read_text(keywords)),
        }),
        // A list of numbers is no kind of the specification, and a number without its list would be something else.
        _ if keywords.0.contains_key("enum") => None,
        "number" => Some(Kind::Number(read_number(keywords, false))),
        "integer" => Some(Kind::Integer(read_number(keywords, true))),
        "boolean" => Some(Kind::Boolean {
            default: keywords.get("default").and_then(json::boolean),
        }),
        "array" => {
            let items = Keywords::read(keywords.get("items")?)?;
            if items.0.contains_key("type") && items.text("type")? != "string" {
                return None;
            }
            Some(Kind::Choice(read_choices(keywords, read_options(&items)?)))
        }
        _ => None,
    }
}

fn read_text(keywords: &Keywords<'_>) -> Text {
    let (min_length, max_length) = keywords.counts("minLength", "maxLength");
    let mut text = Text {
        min_length,
        max_length,
        format: keywords.text("format").unwrap_or_default(),
        pattern: keywords.text("pattern").unwrap_or_default(),
        default: None,
    };
    let default = keywords.text("default");
    text.default = default.filter(|default| check::text(&text, default).is_empty());
    text
}

fn read_number(keywords: &Keywords<'_>, integer: bool) -> Number {
    let bound = |name| keywords.get(name).and_then(Decimal::parse);
    let mut number = Number {
        minimum: bound("minimum"),
        maximum: bound("maximum"),
        default: None,
    };
    if let (Some(minimum), Some(maximum)) = (&number.minimum, &number.maximum)
        && minimum.compare(maximum).is_gt()
    {
        number = Number::default();
    }
    let default = bound("default");
    number.default = default.filter(|default| check::number(&number, integer, default).is_empty());
    number
}

fn read_choice(keywords: &Keywords<'_>, options: Vec<ChoiceOption>) -> Choice {
    let default = keywords.text("default");
    let default = default.filter(|default| options.iter().any(|one| one.value == *default));
    Choice {
        options,
        defaults: default.into_iter().collect(),
        ..Choice::default()
    }
}

fn read_choices(keywords: &Keywords<'_>, options: Vec<ChoiceOption>) -> Choice {
    let (min_items, max_items) = keywords.counts("minItems", "maxItems");
    let mut choice = Choice {
        options,
        multiple: true,
        min_items,
        max_items,
        unique: keywords.get("uniqueItems") == Some("true"),
        defaults: Vec::new(),
    };
    let defaults = keywords.texts("default").unwrap_or_default();
    if check::choices(&choice, &defaults).is_empty() {
        choice.defaults = defaults;
    }
    choice
}

/// The list of values in any of its spellings: `enum`, with the legacy `enumNames`, and constants with titles, which
/// revisions put into `oneOf` (one value) and `anyOf` (several). None if there is no usable list.
fn read_options(keywords: &Keywords<'_>) -> Option<Vec<ChoiceOption>> {
    let options = if let Some(values) = keywords.get("enum").and_then(json::elements) {
        let names = keywords
            .get("enumNames")
            .and_then(json::elements)
            .unwrap_or_default();
        let name = |at: usize| names.get(at).and_then(|name| json::text(name));
        // What is no string cannot be an answer.
        let values = values.into_iter().enumerate();
        values
            .filter_map(|(at, value)| Some(option(json::text(value)?, name(at))))
            .collect()
    } else {
        let list = keywords.get("oneOf").or_else(|| keywords.get("anyOf"))?;
        let mut options = Vec::new();
        for entry in json::elements(list)? {
            let entry = Keywords::read(entry)?;
            options.push(option(entry.text("const")?, entry.text("title")));
        }
        options
    };
    let mut seen = HashSet::new();
    let options: Vec<ChoiceOption> = options
        .into_iter()
        .filter(|option: &ChoiceOption| seen.insert(option.value.clone()))
        .collect();
    (!options.is_empty()).then_some(options)
}

fn option(value: String, title: Option<String>) -> ChoiceOption {
    let title = title.unwrap_or_else(|| value.clone());
    ChoiceOption { value, title }
}

/// The keywords of one schema, raw.
#[derive(Default)]
struct Keywords<'a>(HashMap<String, &'a str>);

impl<'a> Keywords<'a> {
    fn read(schema: &'a str) -> Option<Self> {
        let members = json::members(schema)?.into_iter();
        Some(Self(
            members
                .map(|(name, value)| (name.into_owned(), value))
                .collect(),
        ))
    }

    fn get(&self, name: &str) -> Option<&'a str> {
        self.0.get(name).copied()
    }

    fn text(&self, name: &str) -> Option<String> {
        json::text(self.get(name)?)
    }

    fn texts(&self, name: &str) -> Option<Vec<String>> {
        json::texts(self.get(name)?)
    }

    /// Two counts that belong together; neither if they exclude each other.
    fn counts(&self, least: &str, most: &str) -> (Option<u32>, Option<u32>) {
        let count = |name| Decimal::parse(self.get(name)?)?.count();
        match (count(least), count(most)) {
            (Some(least), Some(most)) if least > most => (None, None),
            counts => counts,
        }
    }
}

#[cfg(test)]
mod tests;
