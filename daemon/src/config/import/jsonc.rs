//! JSON with comments and trailing commas, as editors keep their settings, to JSON.

/// The same document without comments and trailing commas; what is no such document comes out as something that is no JSON
/// either. Texts stay as they are, and so do the numbers of lines and columns.
pub(super) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut comma = None;
    let mut chars = text.trim_start_matches('\u{feff}').chars().peekable();
    while let Some(c) = chars.next() {
        match (c, chars.peek()) {
            ('"', _) => {
                comma = None;
                plain.push(c);
                while let Some(c) = chars.next() {
                    plain.push(c);
                    match c {
                        '"' => break,
                        '\\' => plain.extend(chars.next()),
                        _ => {}
                    }
                }
            }
            ('/', Some('/')) => while chars.next_if(|c| *c != '\n').is_some() {},
            ('/', Some('*')) => {
                chars.next();
                let mut last = ' ';
                for c in chars.by_ref() {
                    if c == '\n' {
                        plain.push(c);
                    }
                    if last == '*' && c == '/' {
                        break;
                    }
                    last = c;
                }
            }
            (',', _) => {
                comma = Some(plain.len());
                plain.push(c);
            }
            ('}' | ']', _) => {
                if let Some(place) = comma.take() {
                    plain.replace_range(place..=place, " ");
                }
                plain.push(c);
            }
            _ => {
                if !c.is_whitespace() {
                    comma = None;
                }
                plain.push(c);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};
    use serde_json::{Value, json};

    use super::plain;

    fn read(text: &str) -> Option<Value> {
        serde_json::from_str(&plain(text)).ok()
    }

    #[test]
    fn comments_and_trailing_commas_are_left_out() {
        let text =
            "\u{feff}// a\n{ /* b, } */ \"a\": [1, 2, ], // c\n \"u\": \"http://x/*,}\\\"//\", }";
        assert_eq!(
            read(text),
            Some(json!({"a": [1, 2], "u": "http://x/*,}\"//"}))
        );
        for bad in ["{,}}", "[1,,]", "{\"a\": 1 /* ", "[1 2]", "\"", "{\"a\\"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn json_stays_what_it_is(text in any::<String>(), key in any::<String>()) {
            let value = json!({ key: [text, 1, null] });
            prop_assert_eq!(read(&value.to_string()), Some(value));
        }

        #[test]
        fn nothing_panics(text in any::<String>()) {
            plain(&text);
        }
    }
}
