//! Tests of `challenge`.

use http::{HeaderMap, HeaderValue};
use proptest::prelude::*;

use super::{Challenge, Item, Reader};
use crate::model::auth::Scopes;

fn of(fields: &[&str]) -> Challenge {
    let mut headers = HeaderMap::new();
    for field in fields {
        headers.append(
            "www-authenticate",
            HeaderValue::from_bytes(field.as_bytes()).unwrap(),
        );
    }
    Challenge::of(&headers)
}

#[test]
fn challenges_are_read_in_every_form() {
    for (fields, metadata, scopes, error) in [
        (
            &[r#"Bearer resource_metadata="https://h/m""#][..],
            Some("https://h/m"),
            None,
            None,
        ),
        (&["Bearer"], None, None, None),
        (&[""], None, None, None),
        (
            &[r#"bearer ERROR="insufficient_scope", Scope="a b""#],
            None,
            Some("a b"),
            Some("insufficient_scope"),
        ),
        (
            &[r#"BEARER realm="x, Basic error=\"no\"", scope = "a""#],
            None,
            Some("a"),
            None,
        ),
        (
            &[r#"Basic realm="x", Bearer error=invalid_token"#],
            None,
            None,
            Some("invalid_token"),
        ),
        (
            &[r#"Basic realm="x", error="no", scope="no""#],
            None,
            None,
            None,
        ),
        (&["Negotiate abc==, Bearer scope=a"], None, Some("a"), None),
        (&["Negotiate abc, Bearer scope=a"], None, Some("a"), None),
        (
            &["Bearer scope=a, Basic realm=x, scope=b"],
            None,
            Some("a"),
            None,
        ),
        (
            &[
                "Basic realm=x",
                r#"DPoP error="use_dpop_nonce", algs="ES256""#,
            ],
            None,
            None,
            Some("use_dpop_nonce"),
        ),
        (
            &["Bearer error=\"first\"", "Bearer error=\"second\", scope=s"],
            None,
            Some("s"),
            Some("first"),
        ),
        (&[r#"Bearer ,, , error="e" ,"#], None, None, Some("e")),
        (
            &[r#"Bearer error="e"scope="a""#],
            None,
            Some("a"),
            Some("e"),
        ),
        (
            &[r#"Bearer realm="x" resource_metadata="https://h/m" scope="a b""#],
            Some("https://h/m"),
            Some("a b"),
            None,
        ),
        (
            &["Bearer resource_metadata=https://h/m?x=1, error=e"],
            Some("https://h/m?x=1"),
            None,
            Some("e"),
        ),
        (&[r#"Bearer error="a\"b\\c""#], None, None, Some(r#"a"b\c"#)),
        (&[r#"Bearer scope="a  b a""#], None, Some("a b"), None),
        (&[r#"Bearer scope="""#], None, None, None),
        (
            &[r#"Bearer error="e", scope="without end"#],
            None,
            None,
            Some("e"),
        ),
        (
            &[r#"Bearer error="e", =x, @@, scope=a"#],
            None,
            Some("a"),
            Some("e"),
        ),
        (
            &[r#"Bearer error="", resource_metadata="""#],
            None,
            None,
            None,
        ),
        (&[r#"error="e""#], None, None, None),
    ] {
        let expected = Challenge {
            resource_metadata: metadata.map(str::to_owned),
            scopes: scopes.map(Scopes::parse),
            error: error.map(str::to_owned),
            nonce: None,
        };
        assert_eq!(of(fields), expected, "{fields:?}");
    }
}

#[test]
fn what_cannot_be_is_left_out() {
    let scope = "s".repeat(300);
    let long = format!("Bearer scope=\"{scope} a\\\\b c\"");
    assert_eq!(of(&[&long]).scopes.unwrap().to_string(), "c");
    let url = format!("Bearer resource_metadata=https://h/{}", "x".repeat(5000));
    assert_eq!(of(&[&url]), Challenge::default());
    let many: Vec<String> = (0..500).map(|n| n.to_string()).collect();
    let many = format!("Bearer scope=\"{}\"", many.join(" "));
    assert_eq!(of(&[&many]).scopes.unwrap().iter().count(), 100);
}

#[test]
fn a_nonce_is_wanted_only_with_its_error() {
    let with = |error: &str, nonce: &'static str| {
        let mut headers = HeaderMap::new();
        let field = format!("DPoP error=\"{error}\"");
        headers.insert("www-authenticate", field.parse().unwrap());
        headers.insert("dpop-nonce", HeaderValue::from_static(nonce));
        Challenge::of(&headers)
    };
    let wanted = with("use_dpop_nonce", "abc-1");
    assert!(wanted.wants_nonce() && wanted.nonce.as_deref() == Some("abc-1"));
    assert!(!with("invalid_token", "abc-1").wants_nonce());
    assert!(!with("use_dpop_nonce", "a b").wants_nonce());
    assert!(!with("use_dpop_nonce", "").wants_nonce());
    assert!(with("insufficient_scope", "x").insufficient_scope());
}

/// A parameter value, quoted as it has to be.
fn quoted(value: &str) -> String {
    format!("\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\""))
}

proptest! {
    #[test]
    fn nothing_makes_it_fail(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        if let Ok(value) = HeaderValue::from_bytes(&bytes) {
            let mut headers = HeaderMap::new();
            headers.insert("www-authenticate", value);
            let _ = Challenge::of(&headers);
        }
    }

    #[test]
    fn it_ends_on_every_text(text in "[Ba =,\"\\\\é]{0,60}") {
        let mut reader = Reader(&text);
        let mut items = 0;
        while reader.next().is_some() {
            items += 1;
        }
        prop_assert!(items <= text.len());
    }

    #[test]
    fn what_is_written_is_read(
        challenges in proptest::collection::vec(
            ("[A-Za-z]{1,8}", proptest::collection::vec(("[a-z_]{1,8}", "[ -~é]{0,20}"), 1..4)),
            1..4,
        )
    ) {
        let mut text = Vec::new();
        let mut expected = Vec::new();
        for (scheme, parameters) in &challenges {
            expected.push(Item::Scheme(scheme));
            let written: Vec<String> = parameters
                .iter()
                .map(|(name, value)| format!("{name}={}", quoted(value)))
                .collect();
            expected.extend(parameters.iter().map(|(name, value)| Item::Parameter(name, value.clone())));
            text.push(format!("{scheme} {}", written.join(", ")));
        }
        let text = text.join(", ");
        let mut reader = Reader(&text);
        let mut found = Vec::new();
        while let Some(item) = reader.next() {
            found.push(item);
        }
        prop_assert_eq!(found, expected);
    }
}
