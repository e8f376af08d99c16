//! Which of a server's tools apps may see and call: names and globs, matched on the tool's own name.
//!
//! A rule belongs to one server, so what it admits is always a pair of server and tool; no joined name is ever looked at.
//! Names are compared as they are: nothing is folded, trimmed or normalised.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Most patterns of one list.
const MAX_PATTERNS: usize = 1_000;
/// Longest pattern, in bytes.
const MAX_PATTERN: usize = 512;
/// Longest name that is matched, in bytes. Rules admit no longer one, so that matching has a bound.
const MAX_NAME: usize = 1_024;
/// Most bytes of all patterns of one list that hold `*` or `?`: those take time to match.
const MAX_WILD: usize = 32 * 1024;
/// Places of a pattern that are followed in one step.
const WORD: usize = u64::BITS as usize;

/// Which tools of a server may be seen and called.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ToolRules {
    /// Patterns of the tools that may be used; empty: all.
    pub allowed: Vec<String>,
    /// Patterns of the tools that may not be used, whatever `allowed` says.
    pub denied: Vec<String>,
}

impl ToolRules {
    /// Whether there is no rule at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.allowed.is_empty() && self.denied.is_empty()
    }

    /// Whether a tool of this name may be seen and called.
    #[must_use]
    pub fn admit(&self, name: &str) -> bool {
        if self.is_empty() {
            return true;
        }
        let any = |patterns: &[String]| patterns.iter().any(|pattern| matches(pattern, name));
        name.len() <= MAX_NAME
            && !any(&self.denied)
            && (self.allowed.is_empty() || any(&self.allowed))
    }

    /// Checks the patterns.
    ///
    /// # Errors
    /// `INVALID_FIELD` with the path of the first pattern that is not acceptable.
    pub fn check(&self) -> Result<()> {
        check_patterns("spec.allowed_tools", &self.allowed)?;
        check_patterns("spec.denied_tools", &self.denied)
    }
}

fn check_patterns(field: &'static str, patterns: &[String]) -> Result<()> {
    if patterns.len() > MAX_PATTERNS {
        return Err(Error::invalid(
            field,
            format!(
                "{} patterns are more than {MAX_PATTERNS}; `*` and `?` make one out of many",
                patterns.len()
            ),
        ));
    }
    for (index, pattern) in patterns.iter().enumerate() {
        check_pattern(&format!("{field}[{index}]"), pattern)?;
    }
    check_wildcards(field, patterns.iter().map(String::as_str))
}

/// Checks one pattern.
///
/// # Errors
/// `INVALID_FIELD` at `field`.
pub(super) fn check_pattern(field: &str, pattern: &str) -> Result<()> {
    let wrong = |what: String| Err(Error::invalid(field.to_owned(), what));
    if pattern.is_empty() {
        return wrong("the pattern is empty; write a tool's name, or `*` for all".to_owned());
    }
    if pattern.len() > MAX_PATTERN {
        return wrong(format!(
            "the pattern has {} bytes, more than {MAX_PATTERN}",
            pattern.len()
        ));
    }
    let mut rest = pattern;
    while let Some((token, tail)) = next(rest) {
        if token == Token::Bad {
            return wrong(format!(
                "in `{pattern}` a backslash stands before something else than `*`, `?` or `\\`; a backslash itself is \
                 written `\\\\`"
            ));
        }
        rest = tail;
    }
    Ok(())
}

/// Checks that the patterns with wildcards are not too large together.
///
/// # Errors
/// `INVALID_FIELD` at `field`.
pub(super) fn check_wildcards<'a>(
    field: &'static str,
    patterns: impl Iterator<Item = &'a str>,
) -> Result<()> {
    let wild = patterns.filter(|pattern| has_wildcards(pattern));
    let wild: usize = wild.map(str::len).sum();
    if wild > MAX_WILD {
        return Err(Error::invalid(
            field,
            format!(
                "the patterns with `*` and `?` have {wild} bytes together, more than {MAX_WILD}"
            ),
        ));
    }
    Ok(())
}

/// A step of a pattern.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token {
    /// This character.
    Char(char),
    /// Any one character.
    One,
    /// Any characters, also none.
    Many,
    /// A backslash before nothing that it could protect; matches nothing.
    Bad,
}

fn next(pattern: &str) -> Option<(Token, &str)> {
    let mut chars = pattern.chars();
    let token = match chars.next()? {
        '*' => Token::Many,
        '?' => Token::One,
        '\\' => match chars.next() {
            Some(protected @ ('*' | '?' | '\\')) => Token::Char(protected),
            _ => Token::Bad,
        },
        plain => Token::Char(plain),
    };
    Some((token, chars.as_str()))
}

/// Whether the whole name matches. The time grows with the sum of both lengths, times one for each 64 characters of the
/// pattern: all places of the pattern that the name may have reached are bits that move on together.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    if name.len() > MAX_NAME {
        return false;
    }
    if !has_wildcards(pattern) {
        return is_literally(pattern, name);
    }
    let mut tokens: Vec<_> = tokens(pattern).collect();
    tokens.dedup_by(|one, before| *one == Token::Many && *before == Token::Many);
    let words = tokens.len() / WORD + 1;
    let (mut many, mut one) = (vec![0; words], vec![0; words]);
    let mut chars = HashMap::<char, Vec<u64>>::new();
    for (place, token) in tokens.iter().enumerate() {
        let bits = match token {
            Token::Many => &mut many,
            Token::One => &mut one,
            Token::Char(wanted) => chars.entry(*wanted).or_insert_with(|| vec![0; words]),
            Token::Bad => continue,
        };
        if let Some(word) = bits.get_mut(place / WORD) {
            *word |= 1 << (place % WORD);
        }
    }
    let nowhere = vec![0; words];
    let mut reached = vec![0; words];
    if let Some(first) = reached.first_mut() {
        *first = 1;
    }
    skip(&mut reached, &many);
    for found in name.chars() {
        let fits = chars.get(&found).unwrap_or(&nowhere);
        let mut carry = 0;
        for (word, ((fits, one), many)) in reached.iter_mut().zip(fits.iter().zip(&one).zip(&many))
        {
            let passed = *word & (fits | one);
            let stays = *word & many;
            *word = (passed << 1) | carry | stays;
            carry = passed >> (WORD - 1);
        }
        skip(&mut reached, &many);
    }
    let end = tokens.len();
    reached
        .get(end / WORD)
        .is_some_and(|word| word >> (end % WORD) & 1 == 1)
}

/// Whoever stands before a `*` also stands behind it.
fn skip(reached: &mut [u64], many: &[u64]) {
    let mut carry = 0;
    for (word, many) in reached.iter_mut().zip(many) {
        let skipped = *word & many;
        *word |= (skipped << 1) | carry;
        carry = skipped >> (WORD - 1);
    }
}

fn tokens(pattern: &str) -> impl Iterator<Item = Token> {
    let mut rest = pattern;
    std::iter::from_fn(move || {
        let (token, tail) = next(rest)?;
        rest = tail;
        Some(token)
    })
}

fn has_wildcards(pattern: &str) -> bool {
    tokens(pattern).any(|token| matches!(token, Token::One | Token::Many))
}

fn is_literally(pattern: &str, name: &str) -> bool {
    let mut chars = name.chars();
    tokens(pattern).all(|token| {
        chars
            .next()
            .is_some_and(|found| token == Token::Char(found))
    }) && chars.next().is_none()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::{prop_assert_eq, proptest};

    use super::{MAX_NAME, ToolRules, matches};
    use crate::base::Clock;

    fn rules(allowed: &[&str], denied: &[&str]) -> ToolRules {
        let owned = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
        ToolRules {
            allowed: owned(allowed),
            denied: owned(denied),
        }
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, yes, no) in [
            ("echo", &["echo"][..], &["Echo", "echo2", "", "ech"][..]),
            ("a*", &["a", "ab", "a\u{301}"], &["b", "ba", "\u{430}"]),
            (
                "*_read",
                &["_read", "x_read", "_read_read"],
                &["read", "_reader"],
            ),
            (
                "a?c",
                &["abc", "a\u{e9}c", "a😀c"],
                &["ac", "abbc", "ae\u{301}c"],
            ),
            ("a*b*c", &["abc", "a__b__c", "abcbc"], &["acb", "abcd"]),
            ("*", &["", "anything"], &[]),
            (r"a\*b", &["a*b"], &["ab", "axb", r"a\*b"]),
            (r"\\\?", &[r"\?"], &["?", r"\x"]),
            ("\u{e9}", &["\u{e9}"], &["e\u{301}"]),
        ] {
            for name in yes {
                assert!(matches(pattern, name), "{pattern} {name}");
            }
            for name in no {
                assert!(!matches(pattern, name), "{pattern} {name}");
            }
        }
    }

    #[test]
    fn denial_wins_and_no_rule_admits_all() {
        assert!(rules(&[], &[]).admit("x"));
        assert!(rules(&["x", "y"], &["y"]).admit("x"));
        assert!(!rules(&["x", "y"], &["y"]).admit("y"));
        assert!(rules(&[], &["y*"]).admit("x"));
        assert!(!rules(&[], &["y*"]).admit("yes"));
        assert!(!rules(&[], &["*"]).admit("x"));
        let long = "x".repeat(MAX_NAME + 1);
        assert!(rules(&[], &[]).admit(&long));
        assert!(!rules(&["*"], &[]).admit(&long));
        assert!(!rules(&[], &["y"]).admit(&long));
    }

    #[test]
    fn patterns_are_checked() {
        assert!(rules(&["a*", r"\*\?\\"], &["?"]).check().is_ok());
        let field = |rules: ToolRules| rules.check().unwrap_err().field().unwrap().to_owned();
        assert_eq!(field(rules(&["a", ""], &[])), "spec.allowed_tools[1]");
        assert_eq!(field(rules(&[], &[r"a\"])), "spec.denied_tools[0]");
        assert_eq!(field(rules(&[r"\n"], &[])), "spec.allowed_tools[0]");
        let long = "x".repeat(513);
        assert_eq!(field(rules(&[&long], &[])), "spec.allowed_tools[0]");
        assert_eq!(field(rules(&[], &["x"; 1_001])), "spec.denied_tools");
    }

    #[test]
    fn matching_has_a_bound_whatever_the_patterns_are() {
        // What makes a matcher that goes back take the square of the length, and as much of it as is accepted.
        for filler in ["a", "?"] {
            let pattern = format!("*{}b", filler.repeat(510));
            let rules = rules(&[], &[pattern.as_str(); 64]);
            rules.check().unwrap();
            let begun = Clock.now();
            assert!(rules.admit(&"a".repeat(MAX_NAME)));
            // Ten milliseconds, for a build that is not optimised, on a machine with much else to do.
            let took = Clock.now().saturating_duration_since(begun);
            assert!(took < Duration::from_millis(500), "{took:?}");
        }
        let wild = format!("{}*", "x".repeat(511));
        assert!(rules(&[wild.as_str(); 65], &[]).check().is_err());
        let plain = "x".repeat(512);
        assert!(rules(&[plain.as_str(); 1_000], &[]).check().is_ok());
    }

    #[test]
    fn long_patterns_are_followed_across_words() {
        for length in [62, 63, 64, 65, 127, 128, 129, 400] {
            let text = "ab".repeat(length)[..length].to_owned();
            for pattern in [
                text.replace('b', "?"),
                format!("{text}*"),
                format!("*{text}"),
                format!("*{}*", text.replace("aba", "a*a")),
            ] {
                assert!(matches(&pattern, &text), "{pattern}");
                assert!(
                    !matches(&pattern, &format!("c{}", "b".repeat(length))),
                    "{pattern}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn matching_agrees_with_a_regular_expression(pattern in "[ab*?]{0,8}", name in "[ab]{0,10}") {
            let expression = pattern.replace('*', ".*").replace('?', ".");
            let expression = regex::Regex::new(&format!("^(?:{expression})$")).unwrap();
            prop_assert_eq!(matches(&pattern, &name), expression.is_match(&name));
        }
    }
}
