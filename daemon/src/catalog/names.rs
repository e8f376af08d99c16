//! Names for model APIs: derived from the pair (server id, tool name), never an identity of their own (design section 7).
//!
//! A model name depends on nothing but its pair, so it is the same after every restart and in every connect order.
//! Server ids hold no underscore, which makes the plain form unambiguous; every other form ends in a hash of the pair,
//! and a plain form never looks like that.

use crate::base::ServerId;
use crate::model::spec::short_hash;

/// Longest name that the common model APIs accept.
pub const MAX_MODEL_NAME: usize = 64;
/// Length of the hash at the end of a name that is not plain.
const HASH: usize = 10;

/// How a model name is put together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Style {
    /// `tool_<server>_<name>`.
    Tool,
    /// `mcp__<server>__<name>`.
    Mcp,
}

impl Style {
    /// Both styles; CallTool accepts either.
    pub const ALL: [Self; 2] = [Self::Tool, Self::Mcp];

    fn parts(self) -> (&'static str, &'static str) {
        match self {
            Self::Tool => ("tool_", "_"),
            Self::Mcp => ("mcp__", "__"),
        }
    }
}

/// The model name of a tool: at most [`MAX_MODEL_NAME`] characters of `[A-Za-z0-9_-]`.
#[must_use]
pub fn model_name(style: Style, server: &ServerId, tool: &str) -> String {
    let (prefix, separator) = style.parts();
    let safe: String = tool
        .chars()
        .map(|c| if is_safe(c) { c } else { '_' })
        .collect();
    let joined = format!("{prefix}{server}{separator}{safe}");
    if safe == tool && !tool.is_empty() && joined.len() <= MAX_MODEL_NAME && !looks_hashed(&joined)
    {
        return joined;
    }
    let mut head = joined;
    head.truncate(MAX_MODEL_NAME - HASH - 1);
    format!("{head}_{}", short_hash(&format!("{server}\u{0}{tool}")))
}

/// The server whose tool a plain model name means; `None` if only a search over all tools can tell.
#[must_use]
pub fn server_of(model_name: &str) -> Option<ServerId> {
    for style in Style::ALL {
        let (prefix, separator) = style.parts();
        if let Some(rest) = model_name.strip_prefix(prefix) {
            return rest
                .split_once(separator)
                .map(|(server, _)| ServerId::new(server));
        }
    }
    None
}

/// What a model name says about a tool of one server, without a look at its tools.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claim<'a> {
    /// It names no tool of this server.
    Other,
    /// It names this tool, in case there is one.
    Tool(&'a str),
    /// It ends in a hash: only the tools themselves can tell.
    Hashed,
}

/// Reads a model name as that of a tool of this server.
#[must_use]
pub fn claim<'a>(server: &ServerId, model_name: &'a str) -> Claim<'a> {
    for style in Style::ALL {
        let (prefix, separator) = style.parts();
        let head = format!("{prefix}{server}{separator}");
        match model_name.strip_prefix(&head) {
            Some(tool) if !looks_hashed(model_name) => return Claim::Tool(tool),
            Some(_) => return Claim::Hashed,
            None => {}
        }
        // The head itself may be too long for the name.
        let cut = model_name.get(..MAX_MODEL_NAME - HASH - 1);
        if looks_hashed(model_name) && cut.is_some_and(|cut| head.starts_with(cut)) {
            return Claim::Hashed;
        }
    }
    Claim::Other
}

fn is_safe(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '-')
}

fn looks_hashed(name: &str) -> bool {
    name.rsplit_once('_').is_some_and(|(_, tail)| {
        tail.len() == HASH
            && tail
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::{Claim, MAX_MODEL_NAME, Style, claim, model_name, server_of};
    use crate::base::ServerId;
    use crate::model::spec::normalize_id;

    fn name(server: &str, tool: &str) -> String {
        model_name(Style::Tool, &ServerId::new(server), tool)
    }

    #[test]
    fn plain_names_are_readable() {
        assert_eq!(name("github", "create_issue"), "tool_github_create_issue");
        let mcp = model_name(Style::Mcp, &ServerId::new("github"), "create_issue");
        assert_eq!(mcp, "mcp__github__create_issue");
        assert_eq!(server_of(&mcp), Some(ServerId::new("github")));
    }

    #[test]
    fn names_that_could_be_confused_are_told_apart() {
        let pairs = [
            ("a", "b_c"),
            ("a-b", "c"),
            ("a", "b.c"),
            ("a", "b c"),
            ("a", "b/c"),
            ("a", "b__c"),
            ("a", "_c"),
            ("a", ""),
            ("a", "é"),
            ("a", "e\u{301}"),
            ("a", "x_0123456789"),
        ];
        let mut seen = HashMap::new();
        for (server, tool) in pairs {
            let clash = seen.insert(name(server, tool), (server, tool));
            assert_eq!(clash, None, "{server} {tool}");
        }
        let long = "x".repeat(128);
        assert_ne!(name("a", &long), name("a", &format!("{long}y")));
    }

    proptest! {
        #[test]
        fn every_name_is_safe_and_finds_its_server(server in any::<String>(), tool in any::<String>()) {
            let server = normalize_id(&server);
            for style in Style::ALL {
                let name = model_name(style, &server, &tool);
                prop_assert!(name.len() <= MAX_MODEL_NAME);
                prop_assert!(name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-'));
                if server.as_str().len() < 40 {
                    prop_assert_eq!(server_of(&name), Some(server.clone()));
                }
                match claim(&server, &name) {
                    Claim::Tool(found) => prop_assert_eq!(found, &tool),
                    Claim::Hashed => {}
                    Claim::Other => prop_assert!(false, "{} names a tool of {}", name, server),
                }
                prop_assert_eq!(claim(&ServerId::new("zz"), &name) == Claim::Other, server.as_str() != "zz");
            }
        }
    }
}
