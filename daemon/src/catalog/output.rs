//! Checks structured results against the output schemas of tools, where a registration wants it. The only place that
//! knows the validator.
//!
//! A check finds something out and changes nothing. What cannot be judged for certain is told as not checked: schemas that
//! are unusable, references that lead outside (nothing is ever fetched), numbers that would be rounded, and whatever would
//! cost too much. The cost is known before anything is done: schemas come from servers, and no time limit can end a
//! validation that has begun.

mod work;

use std::collections::VecDeque;
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;

use self::work::Work;
use crate::json::number::Decimal;
use crate::mcp::protocol::RawJson;

/// Most violations that are named.
const MAX_VIOLATIONS: usize = 20;
/// Longest text of a violation, in bytes; longest path too.
const MAX_TEXT: usize = 500;
/// Largest regular expression of a schema, in bytes of its program, and how many of them a schema may have.
const MAX_PATTERN: usize = 256 * 1024;
const MAX_PATTERNS: usize = 64;

/// Bounds on checks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CheckLimits {
    /// Largest structured result, in bytes.
    pub result_bytes: usize,
    /// Largest schema, in bytes.
    pub schema_bytes: usize,
    /// Most steps of one check.
    pub steps: u64,
    /// Most compiled schemas that are kept.
    pub schemas: usize,
}

/// Checks results. Shared by all servers.
#[derive(Debug)]
pub struct Checker {
    limits: CheckLimits,
    /// The schemas that are compiled, oldest first.
    compiled: Mutex<VecDeque<Weak<OutputSchema>>>,
}

/// The output schema of one tool, in one version of its list. Compiled when it is first needed.
#[derive(Debug)]
pub struct OutputSchema {
    raw: RawJson,
    compiled: Mutex<Option<Compiled>>,
}

/// A compiled schema, or why it is unusable.
type Compiled = Result<Arc<Schema>, Arc<str>>;

#[derive(Debug)]
struct Schema {
    source: Value,
    validator: Validator,
}

/// What a check found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Findings {
    /// What is wrong.
    pub violations: Vec<Violation>,
    /// Whether more is wrong than is named.
    pub more: bool,
    /// Why nothing can be said.
    pub not_checked: Option<String>,
}

/// Something that the schema does not allow.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// Where: a JSON Pointer into the structured result.
    pub path: String,
    /// What is wrong there.
    pub message: String,
}

impl OutputSchema {
    /// A schema as a server sent it.
    #[must_use]
    pub fn new(raw: RawJson) -> Self {
        Self {
            raw,
            compiled: Mutex::default(),
        }
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.raw.as_str()
    }

    fn slot(&self) -> std::sync::MutexGuard<'_, Option<Compiled>> {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Checker {
    /// A checker with these bounds.
    #[must_use]
    pub fn new(limits: CheckLimits) -> Self {
        Self {
            limits,
            compiled: Mutex::default(),
        }
    }

    /// Checks a structured result, `None` if there is none. Takes time of the processor, in proportion to the bounds.
    #[must_use]
    pub fn check(&self, schema: &Arc<OutputSchema>, structured: Option<&str>) -> Findings {
        let Some(text) = structured else {
            let message = "the tool has an output schema, and the result has no structuredContent";
            return Findings {
                violations: vec![Violation {
                    path: String::new(),
                    message: message.to_owned(),
                }],
                ..Findings::default()
            };
        };
        self.judge(schema, text).unwrap_or_else(|why| Findings {
            not_checked: Some(cut(format_args!("{why}"))),
            ..Findings::default()
        })
    }

    fn judge(&self, schema: &Arc<OutputSchema>, text: &str) -> Result<Findings, String> {
        let schema = self.compiled(schema)?;
        let what = "the structured result";
        let instance = read(text, what, self.limits.result_bytes, "checks.result_bytes")?;
        let work = Work::new(&schema.source, self.limits.steps);
        work.measure(&instance)
            .map_err(|why| format!("{what} is not checked: {why}"))?;
        let mut errors = schema.validator.iter_errors(&instance);
        let named = errors.by_ref().take(MAX_VIOLATIONS);
        let violations = named.map(|error| violation(&error)).collect();
        Ok(Findings {
            violations,
            more: errors.next().is_some(),
            not_checked: None,
        })
    }

    fn compiled(&self, schema: &Arc<OutputSchema>) -> Result<Arc<Schema>, String> {
        let mut slot = schema.slot();
        if let Some(compiled) = &*slot {
            return compiled.clone().map_err(|why| why.to_string());
        }
        let compiled = self.compile(&schema.raw);
        let compiled = compiled.map(Arc::new).map_err(Arc::from);
        *slot = Some(compiled.clone());
        drop(slot);
        self.keep(schema);
        compiled.map_err(|why: Arc<str>| why.to_string())
    }

    fn compile(&self, raw: &RawJson) -> Result<Schema, String> {
        let what = "the output schema";
        let limit = self.limits.schema_bytes;
        let source = read(raw.as_str(), what, limit, "checks.schema_bytes")?;
        work::check_schema(&source, MAX_PATTERNS).map_err(|why| format!("{what} {why}"))?;
        // Without `$schema` it is of 2020-12, as MCP wants it (2026-07-28 basic, "JSON Schema Usage").
        let validator = jsonschema::options()
            .offline()
            .should_validate_formats(false)
            .with_pattern_options(PatternOptions::regex().size_limit(MAX_PATTERN))
            .build(&source);
        match validator {
            Ok(validator) => Ok(Schema { source, validator }),
            Err(error) => Err(cut(format_args!("{what} is unusable: {error}"))),
        }
    }

    /// Remembers that a schema is compiled, and lets go of the oldest one if there are too many.
    fn keep(&self, schema: &Arc<OutputSchema>) {
        let mut kept = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|one| one.strong_count() > 0);
        kept.push_back(Arc::downgrade(schema));
        let oldest = if kept.len() > self.limits.schemas {
            kept.pop_front()
        } else {
            None
        };
        drop(kept);
        if let Some(oldest) = oldest.and_then(|oldest| oldest.upgrade()) {
            oldest.slot().take();
        }
    }
}

/// Reads JSON that is not too large, and whose numbers are all held as they are.
fn read(text: &str, what: &str, limit: usize, key: &str) -> Result<Value, String> {
    if text.len() > limit {
        let size = text.len();
        return Err(format!(
            "{what} is not checked: it has {size} bytes, more than {key} allows"
        ));
    }
    let rounded =
        numbers(text).find(|number| !Decimal::parse(number).is_some_and(|it| it.is_held()));
    if let Some(number) = rounded {
        let number = cut(format_args!("{number}"));
        return Err(format!(
            "{what} is not checked: it holds the number {number}, which would be rounded"
        ));
    }
    serde_json::from_str(text).map_err(|cause| format!("{what} is not checked: {cause}"))
}

/// The numbers of a JSON text.
fn numbers(json: &str) -> impl Iterator<Item = &str> {
    let mut rest = json;
    std::iter::from_fn(move || {
        loop {
            let start = rest.find(|c: char| c == '"' || c == '-' || c.is_ascii_digit())?;
            rest = rest.get(start..)?;
            if let Some(text) = rest.strip_prefix('"') {
                let mut escaped = false;
                let end = text.find(|c| {
                    let ends = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                })?;
                rest = text.get(end + 1..)?;
                continue;
            }
            let end = rest.find(|c: char| !matches!(c, '-' | '+' | '.' | 'e' | 'E' | '0'..='9'));
            let (number, tail) = rest.split_at(end.unwrap_or(rest.len()));
            rest = tail;
            return Some(number);
        }
    })
}

fn violation(error: &ValidationError<'_>) -> Violation {
    Violation {
        path: cut(format_args!("{}", error.instance_path())),
        message: cut(format_args!("{error}")),
    }
}

/// At most [`MAX_TEXT`] bytes of a text; what is beyond is not even written.
fn cut(text: fmt::Arguments<'_>) -> String {
    struct Room(String);
    impl Write for Room {
        fn write_str(&mut self, text: &str) -> fmt::Result {
            let left = MAX_TEXT - self.0.len();
            if text.len() <= left {
                self.0.push_str(text);
                return Ok(());
            }
            let end = text.floor_char_boundary(left);
            self.0.push_str(text.get(..end).unwrap_or_default());
            Err(fmt::Error)
        }
    }
    let mut room = Room(String::new());
    if room.write_fmt(text).is_err() {
        let end = room.0.floor_char_boundary(MAX_TEXT - 3);
        room.0.truncate(end);
        room.0.push_str("...");
    }
    room.0
}

#[cfg(test)]
mod tests;
