//! Every form of the restricted schema, what is around it, and what no input may do.

use proptest::prelude::{Just, Strategy, any, prop, prop_oneof, proptest};
use serde_json::{Value, json};

use super::*;

fn schema(property: &Value) -> String {
    json!({"type": "object", "properties": {"x": property}}).to_string()
}

fn kind(property: &Value) -> Kind {
    Form::parse(&schema(property)).fields.remove(0).kind
}

/// What is said about `{"x": value}`; empty if it is taken.
fn said(schema: &str, value: &str) -> String {
    match Form::parse(schema).check(&format!("{{\"x\": {value}}}")) {
        Ok(()) => String::new(),
        Err(Refusal::Members(problems)) => {
            assert_eq!(problems.len(), 1);
            assert_eq!(problems[0].name, "x");
            problems[0].message.clone()
        }
        Err(other) => format!("{other:?}"),
    }
}

fn check(property: &Value, good: &[&str], bad: &[(&str, &str)]) {
    let schema = schema(property);
    for value in good {
        assert_eq!(said(&schema, value), "", "{schema}: {value}");
    }
    for (value, message) in bad {
        assert_eq!(said(&schema, value), *message, "{schema}: {value}");
    }
}

fn options(values: &[(&str, &str)]) -> Vec<ChoiceOption> {
    let one =
        |(value, title): &(&str, &str)| option((*value).to_owned(), Some((*title).to_owned()));
    values.iter().map(one).collect()
}

#[test]
fn a_form_is_read_in_order() {
    let form = Form::parse(
        r#"{"$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "required": ["b", "ghost"],
            "properties": {
                "z": {"type": "string", "title": "Zed", "description": "The last", "minLength": 1, "maxLength": 3.0,
                      "format": "email", "pattern": "^.", "default": "a@b"},
                "b": {"type": "integer", "minimum": -1, "maximum": 18446744073709551616, "default": 18446744073709551615},
                "a": {"type": "number", "minimum": 0.10, "default": 1.50},
                "t": {"type": "boolean", "default": false},
                "o": {"type": "object", "n": 1.10}
            }}"#,
    );
    let names: Vec<_> = form
        .fields
        .iter()
        .map(|field| field.name.as_str())
        .collect();
    assert_eq!(names, ["z", "b", "a", "t", "o", "ghost"]);
    let required: Vec<_> = form.fields.iter().map(|field| field.required).collect();
    assert_eq!(required, [false, true, false, false, false, true]);
    assert_eq!(
        (
            form.fields[0].title.as_str(),
            form.fields[0].description.as_str()
        ),
        ("Zed", "The last")
    );
    let Kind::Text(text) = &form.fields[0].kind else {
        panic!("{form:?}");
    };
    assert_eq!((text.min_length, text.max_length), (Some(1), Some(3)));
    assert_eq!(
        (text.format.as_str(), text.pattern.as_str()),
        ("email", "^.")
    );
    assert_eq!(text.default.as_deref(), Some("a@b"));
    let Kind::Integer(integer) = &form.fields[1].kind else {
        panic!("{form:?}");
    };
    let text_of = |number: &Option<Decimal>| number.as_ref().unwrap().as_str().to_owned();
    assert_eq!(text_of(&integer.maximum), "18446744073709551616");
    assert_eq!(text_of(&integer.default), "18446744073709551615");
    let Kind::Number(number) = &form.fields[2].kind else {
        panic!("{form:?}");
    };
    assert_eq!(
        (text_of(&number.minimum), text_of(&number.default)),
        ("0.10".to_owned(), "1.50".to_owned())
    );
    assert_eq!(
        form.fields[3].kind,
        Kind::Boolean {
            default: Some(false)
        }
    );
    assert_eq!(
        form.fields[4].kind,
        Kind::Other(r#"{"type": "object", "n": 1.10}"#.to_owned())
    );
    assert_eq!(form.fields[5].kind, Kind::Other("{}".to_owned()));
}

#[test]
fn texts() {
    check(
        &json!({"type": "string"}),
        &["\"\"", "\"ä\\n\""],
        &[
            ("5", "must be a text"),
            ("null", "must be a text"),
            ("[\"a\"]", "must be a text"),
            (r#""\ud800""#, "must be Unicode text"),
        ],
    );
    // Code points, not bytes and not UTF-16 units.
    check(
        &json!({"type": "string", "minLength": 2, "maxLength": 3}),
        &["\"ää\"", "\"😀😀😀\"", r#""\ud83d\ude00x""#],
        &[
            ("\"a\"", "must have at least 2 characters"),
            ("\"😀\"", "must have at least 2 characters"),
            ("\"abcd\"", "must have at most 3 characters"),
        ],
    );
    check(
        &json!({"type": "string", "minLength": 1}),
        &["\"a\""],
        &[("\"\"", "must have at least 1 character")],
    );
    check(
        &json!({"type": "string", "pattern": "^[A-Za-z]+$"}),
        &["\"Ada\""],
        &[("\"Ada1\"", "must match the pattern `^[A-Za-z]+$`")],
    );
    check(
        &json!({"type": "string", "format": "email"}),
        &["\"a@b.example\""],
        &[("\"a\"", "must be an email address")],
    );
    check(
        &json!({"type": "string", "format": "uri"}),
        &["\"urn:a:b\""],
        &[("\"a\"", "must be a URI such as https://example.com/")],
    );
    check(
        &json!({"type": "string", "format": "date"}),
        &["\"2024-02-29\""],
        &[("\"2026-02-29\"", "must be a date such as 2026-07-28")],
    );
    check(
        &json!({"type": "string", "format": "date-time"}),
        &["\"2026-07-28T09:30:00+02:00\""],
        &[(
            "\"2026-07-28\"",
            "must be a date and time such as 2026-07-28T09:30:00Z",
        )],
    );
    check(
        &json!({"type": "string", "format": "email", "minLength": 9, "pattern": "@"}),
        &[],
        &[(
            "\"a\"",
            "must have at least 9 characters; must be an email address; must match the pattern `@`",
        )],
    );
}

#[test]
fn numbers() {
    check(
        &json!({"type": "number", "minimum": 0, "maximum": 1.5}),
        &["0", "-0.0", "1.50", "1e0", "0.1"],
        &[
            ("-1e-9", "must be at least 0"),
            ("1.5000000000000000000001", "must be at most 1.5"),
            ("1e400", "must be at most 1.5"),
            ("\"1\"", "must be a number"),
            ("true", "must be a number"),
            ("null", "must be a number"),
        ],
    );
    check(
        &json!({"type": "integer"}),
        &["1", "1.0", "-20e1", "123456789012345678901234567890"],
        &[
            ("1.5", "must be a whole number"),
            ("\"1\"", "must be a whole number"),
        ],
    );
    let exact = r#"{"properties": {"x": {"type": "integer", "minimum": 9007199254740993, "maximum": 18446744073709551615}}}"#;
    assert_eq!(said(exact, "9007199254740993"), "");
    assert_eq!(
        said(exact, "9007199254740992"),
        "must be at least 9007199254740993"
    );
    assert_eq!(
        said(exact, "18446744073709551616"),
        "must be at most 18446744073709551615"
    );
    assert_eq!(
        said(exact, "1.5"),
        "must be a whole number; must be at least 9007199254740993"
    );
}

#[test]
fn booleans() {
    check(
        &json!({"type": "boolean"}),
        &["true", "false"],
        &[
            ("0", "must be true or false"),
            ("\"true\"", "must be true or false"),
            ("null", "must be true or false"),
        ],
    );
}

#[test]
fn choices_of_one() {
    let plain = json!({"type": "string", "enum": ["r", "g"], "default": "g"});
    let legacy = json!({"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"], "default": "g"});
    let entries = json!([{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]);
    let titled = json!({"type": "string", "oneOf": entries, "default": "g"});
    let foreign = json!({"type": "string", "anyOf": entries, "default": "g"});
    let untyped = json!({"oneOf": entries, "default": "g"});
    for (property, expected) in [
        (&plain, options(&[("r", "r"), ("g", "g")])),
        (&legacy, options(&[("r", "Red"), ("g", "Green")])),
        (&titled, options(&[("r", "Red"), ("g", "Green")])),
        (&foreign, options(&[("r", "Red"), ("g", "Green")])),
        (&untyped, options(&[("r", "Red"), ("g", "Green")])),
    ] {
        let Kind::Choice(choice) = kind(property) else {
            panic!("{property}");
        };
        assert_eq!(choice.options, expected);
        assert_eq!(choice.defaults, ["g"]);
        assert!(!choice.multiple);
        check(
            property,
            &["\"r\"", "\"g\""],
            &[
                ("\"b\"", "must be one of `r`, `g`"),
                ("\"Red\"", "must be one of `r`, `g`"),
                ("[\"r\"]", "must be one of `r`, `g`"),
                ("1", "must be one of `r`, `g`"),
            ],
        );
    }
    let short = json!({"type": "string", "enum": ["r", "g"], "enumNames": ["Red"]});
    assert!(
        matches!(kind(&short), Kind::Choice(choice) if choice.options == options(&[("r", "Red"), ("g", "g")]))
    );
    let many: Vec<_> = (0..20).map(|n| n.to_string()).collect();
    let expected = "must be one of `0`, `1`, `2`, `3`, `4`, `5`, `6`, `7` and 12 more";
    check(
        &json!({"type": "string", "enum": many}),
        &["\"19\""],
        &[("\"20\"", expected)],
    );
}

#[test]
fn choices_of_several() {
    let entries = json!([{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}, {"const": "b", "title": "Blue"}]);
    let with = |items: Value| json!({"type": "array", "minItems": 1, "maxItems": 2, "uniqueItems": true, "items": items, "default": ["b", "r"]});
    let titled = options(&[("r", "Red"), ("g", "Green"), ("b", "Blue")]);
    for (items, expected) in [
        (
            json!({"type": "string", "enum": ["r", "g", "b"]}),
            options(&[("r", "r"), ("g", "g"), ("b", "b")]),
        ),
        (json!({"anyOf": entries}), titled.clone()),
        (json!({"type": "string", "oneOf": entries}), titled),
    ] {
        let property = with(items);
        let Kind::Choice(choice) = kind(&property) else {
            panic!("{property}");
        };
        assert_eq!(choice.options, expected);
        assert_eq!(choice.defaults, ["b", "r"]);
        assert_eq!((choice.min_items, choice.max_items), (Some(1), Some(2)));
        assert!(choice.multiple && choice.unique);
        check(
            &property,
            &["[\"r\"]", "[\"b\", \"g\"]"],
            &[
                ("[]", "must have at least 1 value"),
                ("[\"r\", \"g\", \"b\"]", "must have at most 2 values"),
                ("[\"r\", \"r\"]", "must not repeat a value"),
                ("[\"x\"]", "must hold only `r`, `g`, `b`"),
                ("[1]", "must be a list of texts"),
                ("\"r\"", "must be a list of texts"),
            ],
        );
    }
    let repeatable = json!({"type": "array", "items": {"type": "string", "enum": ["r"]}});
    check(&repeatable, &["[\"r\", \"r\"]", "[]"], &[]);
}

#[test]
fn what_is_not_understood_takes_anything() {
    for property in [
        json!({"type": "object", "properties": {}}),
        json!({"type": ["string", "null"]}),
        json!({"type": "null"}),
        json!({"type": 5}),
        json!({"type": "array", "items": {"type": "string"}}),
        json!({"type": "array", "items": {"type": "integer", "enum": [1]}}),
        json!({"type": "array"}),
        json!({"type": "integer", "enum": [1, 2]}),
        json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
        json!({"$ref": "#/$defs/x"}),
        json!({"enum": []}),
        json!({}),
        json!(true),
        json!(null),
        json!([1]),
    ] {
        assert_eq!(kind(&property), Kind::Other(property.to_string()));
        check(&property, &["1.5", "null", "{\"a\": [{}]}", "\"\""], &[]);
    }
}

#[test]
fn malformed_and_foreign_keywords_are_ignored() {
    check(
        &json!({"type": "string", "minLength": "3", "maxLength": -1, "format": 7, "pattern": "(?=x)", "default": 5,
            "enum": [], "oneOf": [{"format": "email"}], "contentEncoding": "base64", "title": []}),
        &["\"\"", "\"anything\""],
        &[("1", "must be a text")],
    );
    check(
        &json!({"type": "string", "minLength": 1.5, "maxLength": null}),
        &["\"\""],
        &[],
    );
    check(
        &json!({"type": "string", "minLength": 5, "maxLength": 3}),
        &["\"\"", "\"four\""],
        &[],
    );
    check(
        &json!({"type": "number", "minimum": "3", "maximum": true, "multipleOf": 2}),
        &["1"],
        &[],
    );
    check(
        &json!({"type": "number", "minimum": 5, "maximum": 3}),
        &["4", "9"],
        &[],
    );
    check(
        &json!({"type": "boolean", "default": "yes", "const": true}),
        &["false"],
        &[],
    );
    check(
        &json!({"type": "array", "items": {"enum": ["a", 1, null]}, "minItems": 2, "maxItems": 1, "uniqueItems": "yes"}),
        &["[]", "[\"a\", \"a\"]"],
        &[("[\"1\"]", "must hold only `a`")],
    );
}

#[test]
fn defaults_that_do_not_fit_are_not_offered() {
    for property in [
        json!({"type": "string", "default": 5}),
        json!({"type": "string", "maxLength": 1, "default": "ab"}),
        json!({"type": "string", "format": "date", "default": "today"}),
        json!({"type": "number", "default": "1"}),
        json!({"type": "number", "maximum": 1, "default": 2}),
        json!({"type": "integer", "default": 1.5}),
        json!({"type": "boolean", "default": 0}),
        json!({"type": "string", "enum": ["a"], "default": "b"}),
        json!({"type": "array", "items": {"enum": ["a"]}, "default": ["b"]}),
        json!({"type": "array", "items": {"enum": ["a"]}, "default": "a"}),
        json!({"type": "array", "items": {"enum": ["a"]}, "maxItems": 0, "default": ["a"]}),
    ] {
        assert_eq!(start_value(&kind(&property)), None, "{property}");
    }
}

#[test]
fn schemas_that_are_no_forms_take_any_object() {
    let fields = |count: usize| {
        let properties: serde_json::Map<_, _> = (0..count)
            .map(|n| (n.to_string(), json!({"type": "string"})))
            .collect();
        json!({"type": "object", "properties": properties}).to_string()
    };
    let large = json!({"type": "object", "properties": {"x": {"type": "string", "title": "t".repeat(MAX_SCHEMA)}}});
    for schema in [
        "",
        "{",
        "[]",
        "null",
        "true",
        "5",
        "{}",
        r#"{"type": "object"}"#,
        r#"{"type": "array", "items": {}}"#,
        r#"{"type": ["object"], "properties": {"x": {"type": "string"}}}"#,
        r#"{"type": "object", "properties": []}"#,
        &fields(MAX_FIELDS + 1),
        &large.to_string(),
    ] {
        let form = Form::parse(schema);
        assert!(form.fields.is_empty());
        assert_eq!(form.check(r#"{"x": 1, "0": 2}"#), Ok(()));
        for no_object in [
            "",
            "{",
            "[]",
            "5",
            "null",
            "\"{}\"",
            "{} {}",
            "{\"a\":}",
            r#"{"\ud800": 1}"#,
        ] {
            assert_eq!(
                form.check(no_object),
                Err(Refusal::NotAnObject),
                "{no_object}"
            );
        }
    }
    assert_eq!(Form::parse(&fields(MAX_FIELDS)).fields.len(), MAX_FIELDS);
}

#[test]
fn members_beside_the_fields() {
    let open = schema(&json!({"type": "string"}));
    assert_eq!(
        Form::parse(&open).check(r#"{"y": {"z": 1}, "x": ""}"#),
        Ok(())
    );
    let closed = json!({
        "type": "object", "additionalProperties": false, "required": ["ghost"],
        "properties": {"x": {"type": "string"}},
    });
    let closed = Form::parse(&closed.to_string());
    assert_eq!(closed.check(r#"{"ghost": null}"#), Ok(()));
    let problem = |name: &str, message: &str| Problem {
        name: name.to_owned(),
        message: message.to_owned(),
    };
    assert_eq!(
        closed.check(r#"{"b": 1, "x": 2, "a": 3, "b": 4}"#),
        Err(Refusal::Members(vec![
            problem("x", "must be a text"),
            problem("ghost", "is required"),
            problem("b", "is not a field of the form"),
            problem("a", "is not a field of the form"),
        ]))
    );
    assert_eq!(
        Form::parse(&open).check(r#"{"x": "", "y": 1, "\u0078": "", "y": 2}"#),
        Err(Refusal::Members(vec![
            problem("x", "is given more than once"),
            problem("y", "is given more than once"),
        ]))
    );
    let repeated =
        Form::parse(r#"{"properties": {"x": {"type": "string"}, "x": {"type": "boolean"}}}"#);
    assert_eq!(repeated.fields.len(), 1);
    assert_eq!(repeated.check(r#"{"x": true}"#), Ok(()));
    let many: serde_json::Map<_, _> = (0..10_000).map(|n| (n.to_string(), json!(n))).collect();
    let Err(Refusal::Members(problems)) = closed.check(&Value::from(many).to_string()) else {
        panic!("closed");
    };
    assert_eq!(problems.len(), 256);
}

#[test]
fn messages_quote_the_schema_in_short() {
    let long = "ä".repeat(100);
    let schema = schema(&json!({"type": "string", "enum": [long]}));
    assert_eq!(
        said(&schema, "\"secret\""),
        format!("must be one of `{}...`", "ä".repeat(40))
    );
}

/// The value that a form would start with.
fn start_value(kind: &Kind) -> Option<String> {
    let encode = |value: Value| Some(value.to_string());
    match kind {
        Kind::Text(text) => encode(json!(text.default.as_ref()?)),
        Kind::Number(number) | Kind::Integer(number) => {
            Some(number.default.as_ref()?.as_str().to_owned())
        }
        Kind::Boolean { default } => encode(json!((*default)?)),
        Kind::Choice(choice) if choice.defaults.is_empty() => None,
        Kind::Choice(choice) if choice.multiple => encode(json!(choice.defaults)),
        Kind::Choice(choice) => encode(json!(choice.defaults[0])),
        Kind::Other(_) => None,
    }
}

/// Values that keywords have, right and wrong ones.
fn keyword_value() -> impl Strategy<Value = Value> {
    prop_oneof![
        (-3_i64..6).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        "[a-c]{0,4}".prop_map(Value::from),
        prop_oneof![Just("a@b"), Just("2026-07-28"), Just("urn:x")].prop_map(Value::from),
        prop::collection::vec("[a-c]{0,2}", 0..4).prop_map(Value::from),
        Just(json!([{"const": "a", "title": "A"}, {"const": "b"}])),
        Just(json!({"type": "string", "enum": ["a", "b"]})),
        Just(json!({"anyOf": [{"const": "a", "title": "A"}, {"const": "b"}]})),
        Just(Value::Null),
    ]
}

fn property() -> impl Strategy<Value = Value> {
    let keyword = prop_oneof![
        Just("title"),
        Just("minLength"),
        Just("maxLength"),
        Just("minimum"),
        Just("maximum"),
        Just("default"),
        Just("enum"),
        Just("enumNames"),
        Just("oneOf"),
        Just("anyOf"),
        Just("items"),
        Just("minItems"),
        Just("maxItems"),
        Just("uniqueItems"),
        Just("default"),
    ];
    let kind = prop_oneof![
        Just("string"),
        Just("number"),
        Just("integer"),
        Just("boolean"),
        Just("array"),
        Just("object"),
    ];
    let format = prop_oneof![
        Just("email"),
        Just("uri"),
        Just("date"),
        Just("date-time"),
        Just("other")
    ];
    let keywords = prop::collection::vec((keyword, keyword_value()), 0..8);
    (kind, prop::option::of(format), keywords).prop_map(|(kind, format, keywords)| {
        let mut property = json!({"type": kind});
        if let Some(format) = format {
            property["format"] = format.into();
        }
        for (name, value) in keywords {
            property[name] = value;
        }
        property
    })
}

proptest! {
    #[test]
    fn no_input_panics(schema in ".*", answer in ".*") {
        let _ = Form::parse(&schema).check(&answer);
    }

    #[test]
    fn no_json_panics(property in property(), value in keyword_value(), pattern in ".{0,20}") {
        let mut property = property;
        property["pattern"] = pattern.into();
        let form = Form::parse(&json!({"properties": {"x": property}, "required": ["x", "y"]}).to_string());
        let _ = form.check(&json!({"x": value, "y": value}).to_string());
    }

    #[test]
    fn an_answer_of_defaults_passes(properties in prop::collection::vec(property(), 0..6)) {
        let properties: serde_json::Map<_, _> =
            properties.into_iter().enumerate().map(|(n, property)| (format!("p{n}"), property)).collect();
        let schema = json!({"type": "object", "properties": properties, "additionalProperties": false});
        let form = Form::parse(&schema.to_string());
        let members: Vec<_> = form
            .fields
            .iter()
            .filter_map(|field| Some(format!("{:?}: {}", field.name, start_value(&field.kind)?)))
            .collect();
        let answer = format!("{{{}}}", members.join(", "));
        assert_eq!(form.check(&answer), Ok(()), "{schema} {answer}");
    }
}
