//! Which of a server's tools apps may see and call: names and globs, matched on the tool's own name.
//!
//! A rule belongs to one server, so what it admits is always a pair of server and tool; no joined name is ever looked at.
//! Names are compared as they are: nothing is folded, trimmed or normalised.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Most patterns of one list.
const MAX_PATTERNS: usize = 1_000;
/// Longest pattern, in bytes.
const MAX_PATTERN: usize = 512;
/// Longest name that is matched, in bytes. Rules admit no longer one, so that matching has a bound.
const MAX_NAME: usize = 1_024;

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
        let wrong = |what: String| Err(Error::invalid(format!("{field}[{index}]"), what));
        if pattern.is_empty() {
            return wrong("the pattern is empty; write a tool's name, or `*` for all".to_owned());
        }
        if pattern.len() > MAX_PATTERN {
            return wrong(format!(
                "the pattern has {} bytes, more than {MAX_PATTERN}",
                pattern.len()
            ));
        }
        let mut rest = pattern.as_str();
        while let Some((token, tail)) = next(rest) {
            if token == Token::Bad {
                return wrong(format!(
                    "in `{pattern}` a backslash stands before something else than `*`, `?` or `\\`; a backslash itself \
                     is written `\\\\`"
                ));
            }
            rest = tail;
        }
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

/// Whether the whole name matches. At most pattern times name steps: only the last `*` is ever gone back to.
fn matches(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern, name);
    // Behind the last `*`: the pattern, and the name that it has not swallowed yet.
    let mut again: Option<(&str, &str)> = None;
    loop {
        let step = next(pattern);
        let mut chars = name.chars();
        let fits = match (step, chars.next()) {
            (None, None) => return true,
            (Some((Token::Many, rest)), _) => {
                again = Some((rest, name));
                pattern = rest;
                continue;
            }
            (Some((Token::One, rest)), Some(_)) => Some(rest),
            (Some((Token::Char(wanted), rest)), Some(found)) if wanted == found => Some(rest),
            _ => None,
        };
        if let Some(rest) = fits {
            (pattern, name) = (rest, chars.as_str());
            continue;
        }
        let Some((behind, swallowed)) = again else {
            return false;
        };
        let mut swallowed = swallowed.chars();
        if swallowed.next().is_none() {
            return false;
        }
        again = Some((behind, swallowed.as_str()));
        (pattern, name) = (behind, swallowed.as_str());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert_eq, proptest};

    use super::{MAX_NAME, ToolRules, matches};

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

    proptest! {
        #[test]
        fn matching_agrees_with_a_regular_expression(pattern in "[ab*?]{0,8}", name in "[ab]{0,10}") {
            let expression = pattern.replace('*', ".*").replace('?', ".");
            let expression = regex::Regex::new(&format!("^(?:{expression})$")).unwrap();
            prop_assert_eq!(matches(&pattern, &name), expression.is_match(&name));
        }
    }
}
