//! Which request values are mirrored into HTTP headers, and how they are written there
//! (MCP 2026-07-28 basic/transports/streamable-http, "Request Metadata"). Pure; knows no HTTP library.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::mcp::protocol::RawJson;

/// Header that carries the protocol version.
pub const PROTOCOL_VERSION: &str = "mcp-protocol-version";
/// Header that carries the JSON-RPC method.
pub const METHOD: &str = "mcp-method";
/// Header that carries the tool, prompt or resource a request is about.
pub const NAME: &str = "mcp-name";
/// Header that carries the session of a legacy server.
pub const SESSION: &str = "mcp-session-id";
/// Prefix of headers that mirror tool arguments.
const PARAM_PREFIX: &str = "mcp-param-";

/// Largest integer that every JSON implementation holds exactly.
const MAX_SAFE_INTEGER: f64 = 9_007_199_254_740_991.0;
/// Most members of a schema that are looked at.
const MAX_NODES: usize = 10_000;
/// Deepest nesting that is searched for annotations.
const MAX_DEPTH: usize = 32;

/// One argument of a tool that is mirrored into a header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParamHeader {
    /// Path of `properties` keys to the argument.
    path: Vec<String>,
    /// The full header name, lower case.
    header: String,
}

/// Finds the `x-mcp-header` annotations of an input schema.
///
/// # Errors
/// Says which rule an annotation breaks; such a tool must not be offered over HTTP.
pub fn find_param_headers(schema: &RawJson) -> Result<Vec<ParamHeader>, String> {
    // Most schemas have no annotation: look before parsing.
    if !schema.as_str().contains("x-mcp-header") {
        return Ok(Vec::new());
    }
    let mut search = Search {
        found: Vec::new(),
        left: MAX_NODES,
    };
    search.schema(schema, &mut Vec::new(), true)?;
    let found = search.found;
    for (index, one) in found.iter().enumerate() {
        if found
            .iter()
            .skip(index + 1)
            .any(|other| other.header == one.header)
        {
            return Err(format!(
                "two parameters are mirrored into the header `{}`",
                one.header
            ));
        }
    }
    Ok(found)
}

/// What the value of a JSON Schema keyword is made of (JSON Schema 2020-12 core and validation, and the drafts before).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Holds {
    /// A schema, or an array of schemas.
    Schemas,
    /// An object whose members are schemas.
    Map,
    /// Data, in which nothing is an annotation.
    Data,
}

fn holds(keyword: &str) -> Holds {
    match keyword {
        "$defs" | "definitions" | "patternProperties" | "dependentSchemas" | "dependencies" => {
            Holds::Map
        }
        "items"
        | "prefixItems"
        | "additionalItems"
        | "unevaluatedItems"
        | "contains"
        | "allOf"
        | "anyOf"
        | "oneOf"
        | "not"
        | "if"
        | "then"
        | "else"
        | "additionalProperties"
        | "unevaluatedProperties"
        | "propertyNames"
        | "contentSchema" => Holds::Schemas,
        _ => Holds::Data,
    }
}

/// A search through a schema. Every value is looked at once, and only so many of them.
struct Search {
    found: Vec<ParamHeader>,
    left: usize,
}

impl Search {
    /// Visits a schema. `reachable` tells whether it lies on a chain of `properties` keys from the root.
    fn schema(
        &mut self,
        schema: &RawJson,
        path: &mut Vec<String>,
        reachable: bool,
    ) -> Result<(), String> {
        if path.len() > MAX_DEPTH {
            return Err(format!(
                "its schema is nested more than {MAX_DEPTH} levels deep"
            ));
        }
        let members = schema.members().unwrap_or_default();
        self.left = self
            .left
            .checked_sub(members.len() + 1)
            .ok_or_else(|| format!("its schema has more than {MAX_NODES} members"))?;
        for (keyword, value) in &members {
            if keyword == "x-mcp-header" {
                self.found.push(annotation(value, schema, path, reachable)?);
                continue;
            }
            // Only parts that hold an annotation somewhere are worth a visit.
            if !value.as_str().contains("x-mcp-header") {
                continue;
            }
            if keyword == "properties" {
                self.map(value, path, reachable)?;
                continue;
            }
            path.push(keyword.clone());
            match holds(keyword) {
                Holds::Map => self.map(value, path, false)?,
                Holds::Schemas => {
                    for one in value.elements().unwrap_or_else(|| vec![value.clone()]) {
                        self.schema(&one, path, false)?;
                    }
                }
                Holds::Data => {}
            }
            path.pop();
        }
        Ok(())
    }

    fn map(
        &mut self,
        map: &RawJson,
        path: &mut Vec<String>,
        reachable: bool,
    ) -> Result<(), String> {
        for (name, schema) in map.members().unwrap_or_default() {
            path.push(name);
            self.schema(&schema, path, reachable)?;
            path.pop();
        }
        Ok(())
    }
}

fn annotation(
    value: &RawJson,
    schema: &RawJson,
    path: &[String],
    reachable: bool,
) -> Result<ParamHeader, String> {
    let place = path.join(".");
    let Some(name) = value.read::<String>() else {
        return Err(format!("`x-mcp-header` of `{place}` is not a string"));
    };
    if !reachable || path.is_empty() {
        return Err(format!(
            "`x-mcp-header` at `{place}` is not on a parameter that `properties` alone lead to"
        ));
    }
    if name.is_empty() || !name.bytes().all(is_token_byte) {
        return Err(format!(
            "`x-mcp-header` of `{place}` is not a header name: `{name}`"
        ));
    }
    let kind = schema.get("type").and_then(|kind| kind.read::<String>());
    if !matches!(kind.as_deref(), Some("string" | "integer" | "boolean")) {
        return Err(format!(
            "`x-mcp-header` of `{place}`: its type is not string, integer or boolean"
        ));
    }
    let header = format!("{PARAM_PREFIX}{}", name.to_ascii_lowercase());
    Ok(ParamHeader {
        path: path.to_vec(),
        header,
    })
}

/// RFC 9110 section 5.6.2, `tchar`.
fn is_token_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The headers for the arguments of one call. A missing or null argument has none, nor has a value that is not of a
/// primitive type: the server will refuse the call by its schema.
#[must_use]
pub fn param_headers(annotations: &[ParamHeader], arguments: &RawJson) -> Vec<(String, String)> {
    let mut headers = Vec::new();
    for annotation in annotations {
        let mut value = Some(arguments.clone());
        for key in &annotation.path {
            value = value.and_then(|object| object.get(key));
        }
        let text = value.and_then(|value| match value.as_str().trim() {
            "null" => None,
            text if text.starts_with('"') => value.read::<String>(),
            text if text.starts_with(['{', '[']) => None,
            text => Some(decimal(text)),
        });
        if let Some(text) = text {
            headers.push((annotation.header.clone(), encode_value(&text)));
        }
    }
    headers
}

/// An integer in decimal digits, however it was written (`1e2`); other texts (`true`) stay.
fn decimal(text: &str) -> String {
    if text.bytes().any(|byte| matches!(byte, b'.' | b'e' | b'E'))
        && let Ok(value) = text.parse::<f64>()
        && value.fract() == 0.0
        && value.abs() <= MAX_SAFE_INTEGER
    {
        return format!("{value:.0}");
    }
    text.to_owned()
}

/// Writes a value so that it is safe in a header ("Value Encoding").
#[must_use]
pub fn encode_value(value: &str) -> String {
    let plain = value
        .bytes()
        .all(|byte| matches!(byte, b'\t' | b' '..=b'~'));
    let padded = value.starts_with([' ', '\t']) || value.ends_with([' ', '\t']);
    let sentinel = value.starts_with("=?base64?") && value.ends_with("?=");
    if plain && !padded && !sentinel {
        value.to_owned()
    } else {
        format!("=?base64?{}?=", STANDARD.encode(value))
    }
}

#[cfg(test)]
mod tests {
    use base64::Engine as _;
    use base64::engine::general_purpose::STANDARD;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::{encode_value, find_param_headers, param_headers};
    use crate::mcp::protocol::RawJson;

    fn raw(json: &str) -> RawJson {
        RawJson::parse(json.to_owned()).unwrap()
    }

    #[test]
    fn the_examples_of_the_specification() {
        for (value, expected) in [
            ("us-west1", "us-west1"),
            ("Hello, 世界", "=?base64?SGVsbG8sIOS4lueVjA==?="),
            (" padded ", "=?base64?IHBhZGRlZCA=?="),
            ("line1\nline2", "=?base64?bGluZTEKbGluZTI=?="),
            ("=?base64?literal?=", "=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?="),
            ("", ""),
        ] {
            assert_eq!(encode_value(value), expected);
        }
    }

    #[test]
    fn values_are_read_at_their_exact_path() {
        let schema = raw(
            r#"{"properties":{"a":{"type":"object","properties":{"b":{"type":"integer","x-mcp-header":"B"}}},
                "c":{"type":"string","x-mcp-header":"C"},"d":{"type":"boolean","x-mcp-header":"D"}}}"#,
        );
        let annotations = find_param_headers(&schema).unwrap();
        let headers = param_headers(
            &annotations,
            &raw(r#"{"a":{"b":42},"c":null,"d":false,"b":1}"#),
        );
        let expected = [("mcp-param-b", "42"), ("mcp-param-d", "false")];
        assert_eq!(
            headers,
            expected.map(|(name, value)| (name.to_owned(), value.to_owned()))
        );
    }

    #[test]
    fn bad_annotations_are_found_wherever_they_are() {
        let property = |inner: &str| format!(r#"{{"properties":{{"p":{{{inner}}}}}}}"#);
        for bad in [
            property(r#""type":"string","x-mcp-header":"""#),
            property(r#""type":"string","x-mcp-header":"a b""#),
            property(r#""type":"string","x-mcp-header":"a:b""#),
            property(r#""type":"string","x-mcp-header":"a\n""#),
            property(r#""type":"string","x-mcp-header":"é""#),
            property(r#""type":"string","x-mcp-header":3"#),
            property(r#""type":"number","x-mcp-header":"N""#),
            property(r#""type":["string"],"x-mcp-header":"N""#),
            property(r#""x-mcp-header":"N""#),
            property(r#""type":"array","items":{"type":"string","x-mcp-header":"N"}"#),
            r#"{"anyOf":[{"properties":{"p":{"type":"string","x-mcp-header":"N"}}}]}"#.to_owned(),
            r#"{"$defs":{"x":{"type":"string","x-mcp-header":"N"}}}"#.to_owned(),
            r#"{"type":"string","x-mcp-header":"Root"}"#.to_owned(),
            r#"{"properties":{"p":{"type":"string","x-mcp-header":"N"},"q":{"type":"string","x-mcp-header":"n"}}}"#
                .to_owned(),
        ] {
            assert!(find_param_headers(&raw(&bad)).is_err(), "{bad}");
        }
        for fine in [
            property(r#""type":"string","default":{"x-mcp-header":"not a schema"}"#),
            r#"{"items":{"default":{"x-mcp-header":"v"}}}"#.to_owned(),
            r#"{"$defs":{"x-mcp-header":{"type":"string"}}}"#.to_owned(),
            r#"{"properties":{"x-mcp-header":{"type":"string"}}}"#.to_owned(),
        ] {
            assert_eq!(find_param_headers(&raw(&fine)), Ok(Vec::new()), "{fine}");
        }
    }

    #[test]
    fn a_schema_made_to_be_slow_is_refused_at_once() {
        let deep = format!(
            "{}{}{}",
            r#"{"not":"#.repeat(40),
            r#"{"description":"x-mcp-header"}"#,
            "}".repeat(40)
        );
        assert!(find_param_headers(&raw(&deep)).is_err());
        let wide = format!(
            r#"{{"properties":{{{}"x":{{"type":"string","x-mcp-header":"X"}}}}}}"#,
            r#""p":{"x":"x-mcp-header"},"#.repeat(20_000)
        );
        assert!(find_param_headers(&raw(&wide)).is_err());
    }

    /// What the receiver of a header makes of its value.
    fn decode(value: &str) -> String {
        let inner = value
            .strip_prefix("=?base64?")
            .and_then(|rest| rest.strip_suffix("?="));
        match inner {
            Some(text) => String::from_utf8(STANDARD.decode(text).unwrap()).unwrap(),
            None => value.to_owned(),
        }
    }

    proptest! {
        #[test]
        fn any_value_fits_into_a_header_and_comes_back(value in any::<String>()) {
            let written = encode_value(&value);
            let header = http::HeaderValue::try_from(&written);
            // A receiver removes space around a value: there must be none that counts.
            prop_assert_eq!(written.trim_matches([' ', '\t']), &written);
            prop_assert!(header.is_ok_and(|header| header.to_str().is_ok()), "{:?}", written);
            prop_assert_eq!(decode(&written), value);
        }

        #[test]
        fn no_arguments_and_no_schema_make_it_panic(
            text in "[\\[\\]{}:,\"a0-9.eE+-]{0,40}|\\PC{0,40}",
            value in any::<f64>(),
        ) {
            let schema = raw(r#"{"properties":{"a":{"type":"string","x-mcp-header":"A"}}}"#);
            let found = find_param_headers(&schema).unwrap();
            let quoted = serde_json::to_string(&text).unwrap();
            for json in [format!("{{\"a\":{quoted}}}"), format!("{{\"a\":{value:e}}}"), text] {
                let Ok(arguments) = RawJson::parse(json) else { continue };
                for (name, value) in param_headers(&found, &arguments) {
                    prop_assert_eq!(name, "mcp-param-a");
                    prop_assert!(http::HeaderValue::try_from(value).is_ok());
                }
                let _ = find_param_headers(&arguments);
            }
        }
    }
}
