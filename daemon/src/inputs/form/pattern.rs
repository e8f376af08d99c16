//! The `pattern` keyword: ECMA-262 expressions on an engine whose time is linear in the text.
//!
//! Never enforces a pattern that means something else here than at the server: what cannot be carried over faithfully
//! (look-around, back references, odd character classes) is not enforced, and neither is what costs too much. Whoever
//! asks chooses the pattern, so everything is bounded.

use std::iter::Peekable;
use std::str::Chars;

use regex::{Regex, RegexBuilder};

/// Longest pattern, in bytes.
const MAX_PATTERN: usize = 1024;
/// Longest text that is matched, in bytes.
const MAX_TEXT: usize = 4096;
/// Most memory of a compiled pattern, in bytes.
const MAX_COMPILED: usize = 512 * 1024;
/// Most patterns of one form.
const MAX_PATTERNS: u32 = 32;

/// Matches the patterns of one form.
#[derive(Default)]
pub(super) struct Patterns {
    used: u32,
}

impl Patterns {
    /// Whether the text violates the pattern. An empty pattern is none.
    pub(super) fn refuse(&mut self, pattern: &str, text: &str) -> bool {
        if pattern.is_empty() || text.len() > MAX_TEXT || self.used >= MAX_PATTERNS {
            return false;
        }
        self.used += 1;
        compile(pattern).is_some_and(|pattern| !pattern.is_match(text))
    }
}

fn compile(pattern: &str) -> Option<Regex> {
    if pattern.len() > MAX_PATTERN {
        return None;
    }
    let translated = translate(pattern)?;
    RegexBuilder::new(&translated)
        .size_limit(MAX_COMPILED)
        .build()
        .ok()
}

/// Rewrites what ECMA-262 and the engine spell alike and read differently; none where that is not possible.
fn translate(pattern: &str) -> Option<String> {
    let mut out = String::with_capacity(pattern.len());
    let mut rest = pattern.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\\' => out.push_str(&escape(rest.next()?, false)),
            '[' => class(&mut rest, &mut out)?,
            // Line ends beside \n are no characters for a dot.
            '.' => out.push_str(r"[^\n\r\u{2028}\u{2029}]"),
            // A repetition without a lower bound to the engine, and plain text to ECMA-262.
            '{' if rest.peek() == Some(&',') => return None,
            c => out.push(c),
        }
    }
    Some(out)
}

/// A character class, from behind its `[`.
fn class(rest: &mut Peekable<Chars<'_>>, out: &mut String) -> Option<()> {
    out.push('[');
    if rest.next_if_eq(&'^').is_some() {
        out.push('^');
    }
    // Empty classes are a speciality of ECMA-262.
    if rest.peek() == Some(&']') {
        return None;
    }
    let mut first = true;
    loop {
        match rest.next()? {
            ']' => break,
            '\\' => out.push_str(&escape(rest.next()?, true)),
            // A range that ends in a class would become another range.
            '-' if !first && rest.peek() == Some(&'\\') => return None,
            // Here the engine knows nested classes and set operations, and ECMA-262 does not.
            c @ ('[' | '&' | '~') => out.extend(['\\', c]),
            '-' if rest.peek() == Some(&'-') => return None,
            c => out.push(c),
        }
        first = false;
    }
    out.push(']');
    Some(())
}

/// An escape sequence; `c` is what follows the backslash.
fn escape(c: char, in_class: bool) -> String {
    let class = match c {
        // ASCII only, and the engine would take all of Unicode.
        'd' => "[0-9]",
        'D' => "[^0-9]",
        'w' => "[0-9A-Za-z_]",
        'W' => "[^0-9A-Za-z_]",
        's' => r"[\s\u{FEFF}]",
        'S' => r"[^\s\u{FEFF}]",
        'b' if in_class => r"\x08",
        'b' => r"(?-u:\b)",
        'B' => r"(?-u:\B)",
        '<' | '>' => return c.to_string(),
        c => return format!("\\{c}"),
    };
    class.to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::proptest;

    use super::{MAX_PATTERNS, MAX_TEXT, Patterns};

    fn refuse(pattern: &str, text: &str) -> bool {
        Patterns::default().refuse(pattern, text)
    }

    #[test]
    fn patterns_mean_what_the_server_means() {
        for (pattern, good, bad) in [
            ("^[A-Za-z]+$", "Ada", "Ada1"),
            ("b", "abc", "ac"),
            (r"^\d{3}-\d{4}$", "555-1234", "٥٥٥-1234"),
            (r"^\w+$", "a_1", "ä"),
            (r"^[\w.-]+$", "a.b-c", "a b"),
            (r"^[^\d]$", "x", "1"),
            (r"^[-\d]$", "-", "x"),
            (r"^[\d-x]$", "-", "y"),
            ("^[[]$", "[", "]"),
            ("^[a&&b]$", "&", "c"),
            (r"^\/a\/$", "/a/", "a"),
            ("^.$", "x", "\r"),
            (r"^\u0041$", "A", "u0041"),
            (r"^\p{Lu}$", "Ä", "ä"),
            ("^(?<year>[0-9]{4})$", "2026", "26"),
            (r"\bcat\b", "a cat", "concat"),
            ("^(red|green)$", "red", "blue"),
            (r"^\<b\>$", "<b>", "b"),
            ("^a$", "a", "a\n"),
        ] {
            assert!(!refuse(pattern, good), "{pattern}: {good}");
            assert!(refuse(pattern, bad), "{pattern}: {bad}");
        }
    }

    #[test]
    fn what_cannot_be_carried_over_is_not_enforced() {
        for pattern in [
            "(?=a)a", "(?!a)", "(a)\\1", "[]", "[^]", "[a--b]", r"[!-\d]", "^a{,3}$", "(", "[a",
            "a\\", "\\k<x>", "*",
        ] {
            assert!(!refuse(pattern, "z"), "{pattern}");
        }
    }

    #[test]
    fn what_costs_too_much_is_not_enforced() {
        assert!(!refuse("(a{1000}){1000}", "z"));
        assert!(!refuse(&"a".repeat(2000), "z"));
        assert!(!refuse("^a+$", &"z".repeat(MAX_TEXT + 1)));
        let mut patterns = Patterns::default();
        let refused = (0..100).filter(|_| patterns.refuse("a", "z")).count();
        assert_eq!(u32::try_from(refused).unwrap(), MAX_PATTERNS);
    }

    proptest! {
        #[test]
        fn no_pattern_panics(pattern in ".*|[\\[\\]\\\\^$().*+?{},a-c&~<>0-9dDwWsSbB|-]{0,30}", text in ".*") {
            refuse(&pattern, &text);
        }
    }
}
