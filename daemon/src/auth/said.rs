//! Texts of authorization servers, made fit to be shown: short, without control characters, without the secrets that
//! were sent.

/// The longest text that is shown.
const LONGEST: usize = 300;
/// Shorter values are not looked for: they occur by chance, and protect nothing.
const SHORTEST: usize = 6;

/// The text as it may be shown; `secrets` become stars.
pub(super) fn said(text: &str, secrets: &[&str]) -> String {
    let mut secrets: Vec<String> = secrets
        .iter()
        .filter(|secret| secret.len() >= SHORTEST)
        .flat_map(|secret| {
            let encoded = url::form_urlencoded::byte_serialize(secret.as_bytes()).collect();
            [(*secret).to_owned(), encoded]
        })
        .collect();
    // One may be a part of another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    let mut text = text.to_owned();
    for secret in &secrets {
        if text.contains(secret) {
            text = text.replace(secret, "***");
        }
    }
    let mut shown = String::new();
    for c in text.chars() {
        if shown.len() + c.len_utf8() > LONGEST {
            shown.push_str("...");
            break;
        }
        shown.push(if c.is_control() || is_invisible(c) {
            ' '
        } else {
            c
        });
    }
    shown.trim().to_owned()
}

/// Characters that change how a text looks without being seen: directions, joiners, separators.
fn is_invisible(c: char) -> bool {
    matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::said;

    #[test]
    fn what_was_sent_is_not_repeated() {
        let text = said(
            "code s3cret/+code and s3cret%2F%2Bcode\nare bad",
            &["s3cret/+code"],
        );
        assert_eq!(text, "code *** and *** are bad");
        assert_eq!(said("abcdefgh", &["abcdef", "abcdefgh"]), "***");
        assert_eq!(said("a is short", &["a"]), "a is short");
    }

    proptest! {
        #[test]
        fn it_is_short_clean_and_without_secrets(text in ".{0,600}", at in 0_usize..20) {
            let secret = "Zx9-secret";
            let mut text: Vec<char> = text.chars().collect();
            let at = at.min(text.len());
            text.splice(at..at, secret.chars());
            let shown = said(&text.into_iter().collect::<String>(), &[secret]);
            prop_assert!(shown.len() <= 303 && !shown.contains(secret));
            prop_assert!(!shown.chars().any(char::is_control));
        }
    }
}
