//! `key=value` on the command line as JSON, typed by a schema. Numbers stay as they were typed.

use std::fmt::Write as _;

use mcp_sidecar_client::proto::{FormField, form_field::Kind};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::exit::{Outcome, usage};

/// What a value is taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Type {
    /// Text, as it is.
    Text,
    /// JSON of one of these types, as far as they are known.
    Json(&'static str),
    /// A list whose items are texts; each `key=value` adds one.
    Texts,
    /// A list whose items are JSON.
    List,
}

/// Says what a key takes.
pub(crate) enum Types<'a> {
    /// A tool's schema.
    Schema(&'a Value),
    /// The fields of a form.
    Form(&'a [FormField]),
}

impl Types<'_> {
    fn of(&self, key: &str) -> Type {
        match self {
            Self::Schema(schema) => of_schema(schema, &schema["properties"][key]),
            Self::Form(fields) => {
                let field = fields.iter().find(|field| field.name == key);
                match field.and_then(|field| field.kind.as_ref()) {
                    Some(Kind::Number(_)) => Type::Json("number"),
                    Some(Kind::Integer(_)) => Type::Json("integer"),
                    Some(Kind::Boolean(_)) => Type::Json("boolean"),
                    Some(Kind::Choice(choice)) if choice.multiple => Type::Texts,
                    Some(Kind::OtherJson(schema)) => {
                        let schema = serde_json::from_str(schema).unwrap_or_default();
                        of_schema(&schema, &schema)
                    }
                    _ => Type::Text,
                }
            }
        }
    }
}

fn of_schema(root: &Value, property: &Value) -> Type {
    let property = match property["$ref"].as_str() {
        Some(reference) => {
            let place = reference.strip_prefix('#');
            place
                .and_then(|place| root.pointer(place))
                .unwrap_or(property)
        }
        None => property,
    };
    let types: Vec<&str> = match &property["type"] {
        Value::String(one) => vec![one],
        Value::Array(several) => several.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    };
    let has = |name| types.contains(&name);
    if types.is_empty() || has("string") {
        Type::Text
    } else if has("array") {
        match of_schema(root, &property["items"]) {
            Type::Text => Type::Texts,
            _ => Type::List,
        }
    } else if has("integer") {
        Type::Json("integer")
    } else if has("number") {
        Type::Json("number")
    } else if has("boolean") {
        Type::Json("boolean")
    } else if has("object") {
        Type::Json("object")
    } else {
        Type::Json("null")
    }
}

/// Makes a JSON object of `key=value`, typed by the schema, and `key:=JSON`, taken as it is.
pub(crate) fn object(pairs: &[String], types: &Types<'_>) -> Outcome<String> {
    let mut members: Vec<(String, Vec<String>, bool)> = Vec::new();
    for pair in pairs {
        let Some((key, value)) = pair.split_once('=') else {
            return usage(format!(
                "`{pair}` is no argument: give `key=value`, `key:=JSON`, or one JSON object"
            ));
        };
        let (key, kind) = match key.strip_suffix(':') {
            Some(key) => (key, Type::Json("")),
            None => (key, types.of(key)),
        };
        let (value, listed) = typed(key, value, kind)?;
        match members.iter_mut().find(|(known, ..)| known == key) {
            Some((_, values, true)) if listed => values.extend(value),
            Some(_) => return usage(format!("`{key}` is given twice")),
            None => members.push((key.to_owned(), value, listed)),
        }
    }
    let mut json = String::from("{");
    for (index, (key, values, listed)) in members.into_iter().enumerate() {
        let values = values.join(",");
        let comma = if index == 0 { "" } else { "," };
        let (open, close) = if listed { ("[", "]") } else { ("", "") };
        let _never = write!(json, "{comma}{}:{open}{values}{close}", Value::from(key));
    }
    json.push('}');
    Ok(json)
}

/// The JSON of a value, and whether it is made of items of a list.
fn typed(key: &str, value: &str, kind: Type) -> Outcome<(Vec<String>, bool)> {
    let text = || Value::from(value).to_string();
    match kind {
        Type::Text => Ok((vec![text()], false)),
        Type::Texts | Type::List if value.trim_start().starts_with('[') => {
            Ok((vec![checked(key, value, "array")?], false))
        }
        Type::Texts => Ok((vec![text()], true)),
        Type::List => Ok((vec![checked(key, value, "")?], true)),
        Type::Json(name) => Ok((vec![checked(key, value, name)?], false)),
    }
}

/// The text of a JSON value of this type, if it is one. What the value must be beyond that the server knows.
fn checked(key: &str, value: &str, name: &str) -> Outcome<String> {
    let fits = serde_json::from_str::<&RawValue>(value).is_ok_and(|raw| {
        let first = raw.get().chars().next();
        match name {
            "integer" | "number" => first.is_some_and(|it| it == '-' || it.is_ascii_digit()),
            "boolean" => matches!(raw.get(), "true" | "false"),
            "object" => first == Some('{'),
            "array" => first == Some('['),
            "null" => raw.get() == "null",
            _ => true,
        }
    });
    if fits {
        return Ok(value.trim().to_owned());
    }
    let wanted = match name {
        "integer" | "number" => "a number",
        "boolean" => "`true` or `false`",
        "object" => "a JSON object",
        "array" => "a JSON array",
        "null" => "`null`",
        _ => "JSON",
    };
    usage(format!("`{key}` must be {wanted}, not `{value}`"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object_of(pairs: &[&str]) -> Result<String, String> {
        let schema = json!({
            "properties": {
                "n": {"type": "integer"}, "x": {"type": ["number", "null"]},
                "s": {"type": "string"}, "either": {"type": ["integer", "string"]},
                "on": {"type": "boolean"}, "tags": {"type": "array", "items": {"type": "string"}},
                "ns": {"type": "array", "items": {"type": "integer"}}, "o": {"$ref": "#/$defs/o"},
            },
            "$defs": {"o": {"type": "object"}},
        });
        let pairs: Vec<String> = pairs.iter().map(|&pair| pair.to_owned()).collect();
        object(&pairs, &Types::Schema(&schema)).map_err(|failure| failure.to_string())
    }

    #[test]
    fn values_have_the_types_of_the_schema() {
        let pairs = [
            "n=12345678901234567890123",
            "x=1.10",
            "s=5",
            "either=5",
            "on=true",
        ];
        let json = r#"{"n":12345678901234567890123,"x":1.10,"s":"5","either":"5","on":true}"#;
        assert_eq!(object_of(&pairs).unwrap(), json);
        let pairs = [
            "tags=a",
            "tags=b=c",
            "ns=1",
            "ns=2",
            "o={\"k\":1}",
            "new=text",
            "raw:=null",
        ];
        let json = r#"{"tags":["a","b=c"],"ns":[1,2],"o":{"k":1},"new":"text","raw":null}"#;
        assert_eq!(object_of(&pairs).unwrap(), json);
        assert_eq!(
            object_of(&["tags=[\"a\"]", "n:=\"7\""]).unwrap(),
            r#"{"tags":["a"],"n":"7"}"#
        );
        assert_eq!(object_of(&[]).unwrap(), "{}");
    }

    #[test]
    fn what_does_not_fit_is_refused_with_what_would() {
        for (pair, words) in [
            ("n=many", "must be a number"),
            ("on=yes", "`true` or `false`"),
            ("o=[]", "a JSON object"),
            ("raw:=nope", "must be JSON"),
            ("word", "give `key=value`"),
        ] {
            let refused = object_of(&[pair]).unwrap_err();
            assert!(refused.contains(words), "{refused}");
        }
        assert!(object_of(&["s=1", "s=2"]).unwrap_err().contains("twice"));
    }
}
