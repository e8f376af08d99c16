//! Which namespaces a rule or a token is about.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Namespace;

/// Namespaces that somebody may use: a name, or the start of one and a final `*`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamespacePattern {
    stem: String,
    open: bool,
}

impl NamespacePattern {
    /// Whether the pattern covers this namespace.
    #[must_use]
    pub fn matches(&self, namespace: &str) -> bool {
        if self.open {
            namespace.starts_with(&self.stem)
        } else {
            namespace == self.stem
        }
    }
}

impl Default for NamespacePattern {
    fn default() -> Self {
        Self {
            stem: Namespace::DEFAULT.to_owned(),
            open: false,
        }
    }
}

impl FromStr for NamespacePattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (stem, open) = match text.strip_suffix('*') {
            Some(stem) => (stem, true),
            None => (text, false),
        };
        let characters_ok = stem
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-'));
        if !characters_ok || stem.len() > 64 || (stem.is_empty() && !open) {
            return Err(format!(
                "`{text}` is no namespace pattern; write up to 64 letters, digits, `.`, `_` or `-`, and at most one `*` \
                 at the end, such as \"team-*\""
            ));
        }
        Ok(Self {
            stem: stem.to_owned(),
            open,
        })
    }
}

impl fmt::Display for NamespacePattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.stem)?;
        f.write_str(if self.open { "*" } else { "" })
    }
}

impl Serialize for NamespacePattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for NamespacePattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::NamespacePattern;

    #[test]
    fn namespace_patterns_have_one_star_at_the_end() {
        let pattern = |text: &str| text.parse::<NamespacePattern>().unwrap();
        assert!(pattern("team-*").matches("team-a"));
        assert!(!pattern("team-*").matches("teams"));
        assert!(pattern("*").matches("anything"));
        assert!(!pattern("a").matches("ab"));
        for bad in ["", "a*b", "**", "a/b"] {
            assert!(bad.parse::<NamespacePattern>().is_err(), "{bad}");
        }
    }
}
