//! A question's form and URL, from the domain to the contract. No I/O, no decisions.

use mcp_sidecar_proto::v1;
use v1::form_field::Kind as ProtoKind;

use crate::inputs::destination::Destination;
use crate::inputs::form::{Choice, Decimal, Field, Form, Kind, Number, Text};

/// The fields that a schema asks for.
pub(super) fn fields(schema: &str) -> Vec<v1::FormField> {
    let form = Form::parse(schema);
    form.fields.into_iter().map(field).collect()
}

/// The host of a URL, and the codes of what may be wrong with it.
pub(super) fn url(url: &str) -> (String, Vec<String>) {
    let destination = Destination::of(url);
    let warnings = destination.warnings.into_iter();
    let codes = warnings.map(|warning| warning.as_str().to_owned());
    (destination.host, codes.collect())
}

fn field(field: Field) -> v1::FormField {
    let kind = match field.kind {
        Kind::Text(expected) => ProtoKind::Text(text(expected)),
        Kind::Number(expected) => ProtoKind::Number(number(expected)),
        Kind::Integer(expected) => ProtoKind::Integer(number(expected)),
        Kind::Boolean { default } => ProtoKind::Boolean(v1::BooleanField {
            default_value: default,
        }),
        Kind::Choice(expected) => ProtoKind::Choice(choice(expected)),
        Kind::Other(schema) => ProtoKind::OtherJson(schema),
    };
    v1::FormField {
        name: field.name,
        title: field.title,
        description: field.description,
        required: field.required,
        kind: Some(kind),
    }
}

fn text(text: Text) -> v1::TextField {
    v1::TextField {
        min_length: text.min_length,
        max_length: text.max_length,
        format: text.format,
        pattern: text.pattern,
        default_value: text.default,
    }
}

fn number(number: Number) -> v1::NumberField {
    let text =
        |value: Option<Decimal>| value.map_or_else(String::new, |value| value.as_str().to_owned());
    v1::NumberField {
        minimum: text(number.minimum),
        maximum: text(number.maximum),
        default_value: text(number.default),
    }
}

fn choice(choice: Choice) -> v1::ChoiceField {
    let options = choice.options.into_iter();
    v1::ChoiceField {
        options: options
            .map(|option| v1::ChoiceOption {
                value: option.value,
                title: option.title,
            })
            .collect(),
        multiple: choice.multiple,
        min_items: choice.min_items,
        max_items: choice.max_items,
        unique_items: choice.unique,
        default_values: choice.defaults,
    }
}

#[cfg(test)]
mod tests {
    use super::{ProtoKind, fields, url, v1};

    #[test]
    fn every_kind_arrives_whole() {
        let fields = fields(
            r#"{"type": "object", "required": ["t"], "properties": {
                "t": {"type": "string", "title": "T", "description": "D", "minLength": 0, "maxLength": 9,
                      "format": "email", "pattern": "@", "default": "a@b"},
                "n": {"type": "number", "minimum": 0.10, "maximum": 1e3, "default": 2},
                "i": {"type": "integer", "minimum": 18446744073709551615},
                "b": {"type": "boolean", "default": false},
                "c": {"type": "array", "items": {"anyOf": [{"const": "r", "title": "Red"}, {"const": "g"}]},
                      "minItems": 1, "maxItems": 2, "uniqueItems": true, "default": ["g"]},
                "o": {"type": "object", "x": 1.10}}}"#,
        );
        let field = |name: &str, kind| v1::FormField {
            name: name.to_owned(),
            kind: Some(kind),
            ..v1::FormField::default()
        };
        let number = |minimum: &str, maximum: &str, default: &str| v1::NumberField {
            minimum: minimum.to_owned(),
            maximum: maximum.to_owned(),
            default_value: default.to_owned(),
        };
        let option = |value: &str, title: &str| v1::ChoiceOption {
            value: value.to_owned(),
            title: title.to_owned(),
        };
        let text = v1::TextField {
            min_length: Some(0),
            max_length: Some(9),
            format: "email".to_owned(),
            pattern: "@".to_owned(),
            default_value: Some("a@b".to_owned()),
        };
        let choice = v1::ChoiceField {
            options: vec![option("r", "Red"), option("g", "g")],
            multiple: true,
            min_items: Some(1),
            max_items: Some(2),
            unique_items: true,
            default_values: vec!["g".to_owned()],
        };
        let boolean = v1::BooleanField {
            default_value: Some(false),
        };
        assert_eq!(
            fields,
            [
                v1::FormField {
                    title: "T".to_owned(),
                    description: "D".to_owned(),
                    required: true,
                    ..field("t", ProtoKind::Text(text))
                },
                field("n", ProtoKind::Number(number("0.10", "1e3", "2"))),
                field(
                    "i",
                    ProtoKind::Integer(number("18446744073709551615", "", ""))
                ),
                field("b", ProtoKind::Boolean(boolean)),
                field("c", ProtoKind::Choice(choice)),
                field(
                    "o",
                    ProtoKind::OtherJson(r#"{"type": "object", "x": 1.10}"#.to_owned())
                ),
            ]
        );
    }

    #[test]
    fn a_url_has_a_host_and_codes() {
        let (host, warnings) = url("http://user@127.0.0.1/");
        assert_eq!(host, "127.0.0.1");
        assert_eq!(warnings, ["NOT_HTTPS", "USER_INFO", "IP_ADDRESS"]);
    }
}
