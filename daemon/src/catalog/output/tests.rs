//! What checks find, what they refuse to judge, and what they may cost.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::{CheckLimits, Checker, Findings, MAX_TEXT, MAX_VIOLATIONS, OutputSchema};
use crate::base::Clock;
use crate::mcp::protocol::RawJson;

const LIMITS: CheckLimits = CheckLimits {
    result_bytes: 1024 * 1024,
    schema_bytes: 64 * 1024,
    steps: 100_000,
    schemas: 2,
};

/// A schema that refers to itself, and a long list which breaks it at its end.
const LIST: &str = r##"{"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer"},
    "next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v"]}},"$ref":"#/$defs/n"}"##;

fn list(levels: usize) -> String {
    let open = r#"{"v":1,"next":"#.repeat(levels);
    format!("{open}{{}}{}", "}".repeat(levels))
}

fn schema(text: &str) -> Arc<OutputSchema> {
    Arc::new(OutputSchema::new(RawJson::parse(text.to_owned()).unwrap()))
}

fn check(schema_text: &str, structured: &str) -> Findings {
    Checker::new(LIMITS).check(&schema(schema_text), Some(structured))
}

#[track_caller]
fn valid(schema: &str, structured: &str) {
    assert_eq!(
        check(schema, structured),
        Findings::default(),
        "{schema} {structured}"
    );
}

/// The paths of the violations.
#[track_caller]
fn invalid(schema: &str, structured: &str) -> Vec<String> {
    let findings = check(schema, structured);
    assert_eq!(findings.not_checked, None, "{schema} {structured}");
    assert!(!findings.violations.is_empty(), "{schema} {structured}");
    findings
        .violations
        .into_iter()
        .map(|violation| violation.path)
        .collect()
}

#[track_caller]
fn not_checked(schema: &str, structured: &str) -> String {
    let findings = check(schema, structured);
    assert_eq!(findings.violations, [], "{schema}");
    findings
        .not_checked
        .unwrap_or_else(|| panic!("{schema} {structured} was checked"))
}

#[test]
fn violations_are_found_where_they_are() {
    let point = r#"{"type":"object","properties":{"x":{"type":"integer"},"y":{"type":"integer"}},"required":["x"]}"#;
    valid(point, r#"{"x":1,"y":2.0,"z":null}"#);
    assert_eq!(invalid(point, r#"{"x":"1","y":1.5}"#), ["/x", "/y"]);
    assert_eq!(invalid(point, "{}"), [""]);
    assert_eq!(invalid(point, "[]"), [""]);
    let list = r#"{"items":{"properties":{"a/b":{"minLength":2}}}}"#;
    assert_eq!(invalid(list, r#"[{"a/b":"é"},{"a/b":"éé"}]"#), ["/0/a~1b"]);
}

#[test]
fn falsy_values_are_values() {
    for falsy in ["0", "false", "\"\"", "[]", "null", "{}"] {
        valid("{}", falsy);
        valid("true", falsy);
        valid(&format!("{{\"const\":{falsy}}}"), falsy);
        assert_eq!(invalid("false", falsy), [""]);
        assert_eq!(invalid(r#"{"const":1}"#, falsy), [""]);
    }
    let missing = Checker::new(LIMITS).check(&schema("{}"), None);
    assert_eq!(missing.violations.len(), 1);
    assert!(missing.violations[0].message.contains("structuredContent"));
}

#[test]
fn dialects_are_told_apart_and_recursion_is_followed() {
    let tuple = |dialect: &str| {
        let dialect = format!("http://json-schema.org/{dialect}/schema#");
        json!({"$schema": dialect, "items": [{"type": "integer"}]}).to_string()
    };
    assert_eq!(invalid(&tuple("draft-07"), r#"["a"]"#), ["/0"]);
    let modern = r#"{"$schema":"https://json-schema.org/draft/2020-12/schema","prefixItems":[{"type":"integer"}]}"#;
    assert_eq!(invalid(modern, r#"["a"]"#), ["/0"]);
    not_checked(r#"{"$schema":"urn:x:unknown","type":"object"}"#, "{}");
    let tree = LIST;
    valid(tree, r#"{"v":1,"next":{"v":2,"next":null}}"#);
    assert!(!invalid(tree, r#"{"v":1,"next":{"v":"2","next":null}}"#).is_empty());
    assert_eq!(invalid(tree, &list(120)).len(), 1);
    assert!(not_checked(tree, &list(10_000)).contains("recursion"));
}

#[test]
fn unusable_schemas_are_told() {
    for (schema, why) in [
        (r#"{"type":"int"}"#, "unusable"),
        (r#"{"required":5}"#, "unusable"),
        ("5", "unusable"),
        (r#"{"pattern":"(?<=a)b"}"#, "unusable"),
        (r#"{"pattern":"(a{1000}){1000}"}"#, "unusable"),
        (
            r#"{"$ref":"https://example.com/schema.json"}"#,
            "nothing is fetched",
        ),
        (
            r#"{"items":{"$ref":"file:///etc/passwd"}}"#,
            "nothing is fetched",
        ),
        (r##"{"$ref":"#/$defs/nowhere"}"##, "does not hold"),
        (r##"{"$dynamicRef":"#meta"}"##, "$dynamicRef"),
        (
            r##"{"properties":{"x":{"$id":"urn:x","$ref":"#/$defs/a"}}}"##,
            "id",
        ),
        (
            r##"{"$defs":{"n":{"$ref":"#/$defs/n"}},"$ref":"#/$defs/n"}"##,
            "without end",
        ),
        (r##"{"allOf":[{"$ref":"#"}]}"##, "without end"),
        (r#"{"maximum":1e400}"#, "1e400"),
        (
            r#"{"const":123456789012345678901}"#,
            "123456789012345678901",
        ),
    ] {
        let told = not_checked(schema, "{}");
        assert!(told.contains(why), "{schema}: {told}");
        assert!(told.len() <= MAX_TEXT);
    }
    let many: Vec<Value> = (0..65).map(|n| json!({"pattern": n.to_string()})).collect();
    assert!(not_checked(&json!({"allOf": many}).to_string(), "1").contains("regular expressions"));
    let large = json!({"title": "x".repeat(LIMITS.schema_bytes)}).to_string();
    assert!(not_checked(&large, "1").contains("checks.schema_bytes"));
    // What looks like a keyword and is data or a name says nothing.
    valid(
        r#"{"default":{"$ref":"https://example.com/"},"properties":{"$ref":{"type":"string"},"id":{}},
            "examples":[{"$id":"x","id":"x"}]}"#,
        r#"{"$ref":"x","id":"y"}"#,
    );
}

#[test]
fn numbers_are_judged_as_they_are_or_not_at_all() {
    let integer = r#"{"type":"integer","minimum":9007199254740993}"#;
    valid(integer, "9007199254740993");
    assert_eq!(invalid(integer, "9007199254740992"), [""]);
    valid(
        r#"{"maximum":18446744073709551615}"#,
        "18446744073709551615",
    );
    valid(r#"{"const":0.30000000000000004}"#, "0.30000000000000004");
    assert_eq!(invalid(r#"{"const":0.3}"#, "0.30000000000000004"), [""]);
    for rounded in [
        "1e400",
        "-1e400",
        "1e-400",
        "18446744073709551616",
        "0.1000000000000000000001",
    ] {
        for schema in ["{}", r#"{"type":"integer"}"#, r#"{"type":"string"}"#] {
            assert!(not_checked(schema, rounded).contains(rounded));
            assert!(
                not_checked(schema, &format!("{{\"a\\\"1e9\":[\"\\\\\",{rounded} ]}}"))
                    .contains(rounded)
            );
        }
    }
    // What stands in a text is no number.
    valid("{}", r#"["1e400","\"1e400",{"1e400":"\\"}]"#);
}

#[test]
fn what_is_told_has_a_bound() {
    let long = "x".repeat(100_000);
    let findings = check(r#"{"type":"integer"}"#, &json!(long).to_string());
    assert!(findings.violations[0].message.len() <= MAX_TEXT);
    let many = json!(vec!["é"; 1_000]).to_string();
    let findings = check(r#"{"items":{"type":"integer"}}"#, &many);
    assert_eq!(
        (findings.violations.len(), findings.more),
        (MAX_VIOLATIONS, true)
    );
    let nested = json!({ long: 1 }).to_string();
    let findings = check(
        r#"{"additionalProperties":false,"patternProperties":{"y":{}}}"#,
        &nested,
    );
    assert!(
        findings
            .not_checked
            .is_some_and(|why| why.contains("checks.steps"))
    );
    let findings = check(r#"{"additionalProperties":{"type":"null"}}"#, &nested);
    assert!(findings.violations[0].path.len() <= MAX_TEXT);
    let large = format!("\"{}\"", "x".repeat(LIMITS.result_bytes));
    assert!(not_checked("{}", &large).contains("checks.result_bytes"));
}

/// Schemas and results that would cost a validator ever more are refused before they cost anything, and what is accepted
/// is done soon, on a stack of the size that workers have.
#[test]
fn no_check_costs_more_than_its_bound() {
    let doubling = |levels: usize, keyword: &str| {
        let mut definitions = serde_json::Map::new();
        for level in 0..levels {
            let next = json!({"$ref": format!("#/$defs/d{}", level + 1)});
            definitions.insert(format!("d{level}"), json!({keyword: [next, next]}));
        }
        definitions.insert(format!("d{levels}"), json!({"type": "integer"}));
        json!({"$defs": definitions, "$ref": "#/$defs/d0"}).to_string()
    };
    let branching = r##"{"$defs":{"n":{"properties":{"c":{"anyOf":[{"$ref":"#/$defs/n"},{"$ref":"#/$defs/n"}]}},
        "required":["c"]}},"$ref":"#/$defs/n"}"##;
    let chain = |levels: usize| format!("{}1{}", r#"{"c":"#.repeat(levels), "}".repeat(levels));
    let nested = |levels: usize, keyword: &str| {
        let open = format!("{{\"{keyword}\":[").repeat(levels);
        format!("{open}{{\"type\":\"null\"}}{}", "]}".repeat(levels))
    };
    let unevaluated = |levels: usize| {
        let open = r#"{"unevaluatedProperties":false,"allOf":["#.repeat(levels);
        format!("{open}{{}}{}", "]}".repeat(levels))
    };
    let evil = json!(format!("{}!", "a".repeat(20_000))).to_string();
    let links = |levels: usize| {
        let mut definitions = serde_json::Map::new();
        for level in 0..levels {
            let next = format!("#/$defs/d{}", level + 1);
            definitions.insert(format!("d{level}"), json!({"$ref": next}));
        }
        definitions.insert(format!("d{levels}"), json!({"type": "integer"}));
        json!({"$defs": definitions, "$ref": "#/$defs/d0"}).to_string()
    };
    let accepted = [
        (links(380), "\"x\"".to_owned()),
        (LIST.to_owned(), list(120)),
        (doubling(12, "anyOf"), "\"x\"".to_owned()),
        (doubling(12, "oneOf"), "\"x\"".to_owned()),
        (branching.to_owned(), chain(11)),
        (nested(60, "anyOf"), "1".to_owned()),
        (nested(60, "oneOf"), "1".to_owned()),
        (nested(60, "allOf"), "1".to_owned()),
        (unevaluated(10), r#"{"a":1}"#.to_owned()),
        (r#"{"pattern":"^(a+)+$"}"#.to_owned(), evil),
        (
            r#"{"items":{"anyOf":[{"type":"null"},{"type":"string","pattern":"(a|aa)+$"}]}}"#
                .to_owned(),
            json!(vec!["aaaaaaaa"; 1_000]).to_string(),
        ),
        (
            r#"{"uniqueItems":true}"#.to_owned(),
            json!((0..30_000).collect::<Vec<u32>>()).to_string(),
        ),
    ];
    let refused = [
        (doubling(40, "anyOf"), "1".to_owned()),
        (doubling(60, "allOf"), "1".to_owned()),
        (branching.to_owned(), chain(60)),
        (unevaluated(60), r#"{"a":1}"#.to_owned()),
        (
            r#"{"pattern":"a"}"#.to_owned(),
            json!("a".repeat(100_000)).to_string(),
        ),
    ];
    let worker = std::thread::Builder::new().stack_size(2 * 1024 * 1024);
    let worker = worker.spawn(move || {
        let accepted = accepted.into_iter().map(|case| (case, None));
        let refused = refused.into_iter().map(|case| (case, Some("checks.steps")));
        for ((schema, instance), why) in accepted.chain(refused) {
            let start = Clock.now();
            let told = check(&schema, &instance).not_checked;
            let short = &schema[..schema.len().min(80)];
            assert!(start.elapsed() < Duration::from_secs(10), "{short}");
            match (told, why) {
                (None, None) => {}
                (Some(told), Some(why)) => assert!(told.contains(why), "{short}: {told}"),
                (told, _) => panic!("{short}: {told:?}"),
            }
        }
    });
    worker.unwrap().join().unwrap();
}

#[test]
fn few_compiled_schemas_are_kept() {
    let checker = Checker::new(LIMITS);
    let schemas: Vec<_> = (0..4)
        .map(|n| schema(&format!("{{\"const\":{n}}}")))
        .collect();
    for _ in 0..3 {
        for (index, schema) in schemas.iter().enumerate() {
            assert_eq!(
                checker.check(schema, Some(&index.to_string())),
                Findings::default()
            );
            assert_eq!(checker.check(schema, Some("9")).violations.len(), 1);
            let compiled = schemas
                .iter()
                .filter(|schema| schema.slot().is_some())
                .count();
            assert!(compiled <= LIMITS.schemas, "{compiled}");
        }
    }
    drop(schemas);
    let one = schema("{}");
    assert_eq!(checker.check(&one, Some("1")), Findings::default());
    assert_eq!(checker.compiled.lock().unwrap().len(), 1);
}
