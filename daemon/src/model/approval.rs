//! Which calls of tools need somebody's consent: a policy of the registration, and what it says of one call.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::model::rules;

/// Most rules of one policy.
const MAX_RULES: usize = 100;

/// What happens to a call.
/// Ordered by how strict it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// It is made.
    #[default]
    Auto,
    /// Somebody is asked first.
    Ask,
    /// It is not made.
    Deny,
}

/// Hints about a tool's behaviour (MCP schema `ToolAnnotations`); `None` means "not said".
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Hints {
    /// `readOnlyHint`.
    pub read_only: Option<bool>,
    /// `destructiveHint`.
    pub destructive: Option<bool>,
    /// `idempotentHint`.
    pub idempotent: Option<bool>,
    /// `openWorldHint`.
    pub open_world: Option<bool>,
}

/// What a tool is said to do. What is not said counts as the specification wants it: it changes things, may destroy them, is
/// not idempotent, and deals with the outside world.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trait {
    /// It changes nothing.
    ReadOnly,
    /// It may destroy something.
    Destructive,
    /// A repeated call has no further effect.
    Idempotent,
    /// It deals with the outside world.
    OpenWorld,
}

impl Hints {
    fn has(self, wanted: Trait) -> bool {
        let read_only = self.read_only.unwrap_or(false);
        match wanted {
            Trait::ReadOnly => read_only,
            // Both are meaningful only for what is not read-only.
            Trait::Destructive => !read_only && self.destructive.unwrap_or(true),
            Trait::Idempotent => read_only || self.idempotent.unwrap_or(false),
            Trait::OpenWorld => self.open_world.unwrap_or(true),
        }
    }
}

/// A rule of a policy. Everything that is given must hold.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Rule {
    /// A pattern of the tool's name; empty: any.
    pub tool: String,
    /// What the tool is said to do.
    pub hint: Option<Trait>,
    /// What happens to its calls.
    pub action: Action,
}

/// The policy of a registration. Without rules everything is made.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Approval {
    /// The first rule that matches decides.
    pub rules: Vec<Rule>,
    /// What holds where none does.
    pub otherwise: Action,
    /// Whether rules may go by what the server says about its tools.
    pub trust_annotations: bool,
}

impl Approval {
    /// What happens to a call of this tool, which says this about itself. Of a tool that is not known any condition may hold,
    /// and the strictest of what may follow is what happens.
    #[must_use]
    pub fn decide(&self, name: &str, hints: Option<Hints>) -> Action {
        let mut strictest = Action::Auto;
        for rule in &self.rules {
            if !rule.tool.is_empty() && !rules::matches(&rule.tool, name) {
                continue;
            }
            match (rule.hint, hints) {
                (Some(wanted), Some(hints)) if !hints.has(wanted) => {}
                (Some(_), None) => strictest = strictest.max(rule.action),
                _ => return strictest.max(rule.action),
            }
        }
        strictest.max(self.otherwise)
    }

    /// Whether anything hangs on what servers say about their tools.
    #[must_use]
    pub fn needs_hints(&self) -> bool {
        self.rules.iter().any(|rule| rule.hint.is_some())
    }

    /// Checks the rules.
    ///
    /// # Errors
    /// `INVALID_FIELD` with the path of the first rule that is not acceptable.
    pub fn check(&self) -> Result<()> {
        if self.rules.len() > MAX_RULES {
            return Err(Error::invalid(
                "spec.approval.rules",
                format!("{} rules are more than {MAX_RULES}", self.rules.len()),
            ));
        }
        for (index, rule) in self.rules.iter().enumerate() {
            if !rule.tool.is_empty() {
                let field = format!("spec.approval.rules[{index}].tool");
                rules::check_pattern(&field, &rule.tool)?;
            }
            if rule.hint.is_some() && !self.trust_annotations {
                return Err(Error::invalid(
                    format!("spec.approval.rules[{index}].hint"),
                    "the rule goes by what the server says about its own tools: set `trust_annotations` if it can be \
                     believed, or name the tools",
                ));
            }
        }
        let patterns = self.rules.iter().map(|rule| rule.tool.as_str());
        rules::check_wildcards("spec.approval.rules", patterns)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_oneof, proptest};

    use super::{Action, Approval, Hints, Rule, Trait};

    fn rule(tool: &str, hint: Option<Trait>, action: Action) -> Rule {
        Rule {
            tool: tool.to_owned(),
            hint,
            action,
        }
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy = Approval {
            rules: vec![
                rule("drop_*", None, Action::Deny),
                rule("get_*", None, Action::Auto),
                rule("", Some(Trait::ReadOnly), Action::Auto),
                rule("send", None, Action::Auto),
                rule("", Some(Trait::Destructive), Action::Ask),
            ],
            otherwise: Action::Auto,
            trust_annotations: true,
        };
        policy.check().unwrap();
        let silent = Hints::default();
        let read_only = Hints {
            read_only: Some(true),
            ..silent
        };
        let additive = Hints {
            destructive: Some(false),
            ..silent
        };
        for (name, hints, expected) in [
            ("drop_table", read_only, Action::Deny),
            ("get_x", silent, Action::Auto),
            ("list", read_only, Action::Auto),
            ("send", silent, Action::Auto),
            ("write", silent, Action::Ask),
            ("write", additive, Action::Auto),
        ] {
            let decided = policy.decide(name, Some(hints));
            assert_eq!(decided, expected, "{name} {hints:?}");
        }
        assert_eq!(Approval::default().decide("x", None), Action::Auto);
    }

    #[test]
    fn of_a_tool_that_is_not_known_the_worst_is_believed() {
        let mut policy = Approval {
            rules: vec![
                rule("get", None, Action::Auto),
                rule("", Some(Trait::Idempotent), Action::Deny),
                rule("", Some(Trait::ReadOnly), Action::Auto),
            ],
            otherwise: Action::Ask,
            trust_annotations: true,
        };
        assert_eq!(policy.decide("get", None), Action::Auto);
        assert_eq!(policy.decide("x", None), Action::Deny);
        policy.rules.remove(1);
        assert_eq!(policy.decide("x", None), Action::Ask);
    }

    fn any_hints() -> impl Strategy<Value = Hints> {
        let said = || any::<Option<bool>>();
        (said(), said(), said(), said()).prop_map(
            |(read_only, destructive, idempotent, open_world)| Hints {
                read_only,
                destructive,
                idempotent,
                open_world,
            },
        )
    }

    fn any_rule() -> impl Strategy<Value = Rule> {
        let tool = prop_oneof![Just(""), Just("a"), Just("a*"), Just("b")];
        let hint = prop_oneof![
            Just(None),
            Just(Some(Trait::ReadOnly)),
            Just(Some(Trait::Destructive)),
            Just(Some(Trait::Idempotent)),
            Just(Some(Trait::OpenWorld)),
        ];
        (tool, hint, any_action()).prop_map(|(tool, hint, action)| rule(tool, hint, action))
    }

    fn any_action() -> impl Strategy<Value = Action> {
        prop_oneof![Just(Action::Auto), Just(Action::Ask), Just(Action::Deny)]
    }

    proptest! {
        #[test]
        fn nothing_that_a_tool_may_say_is_stricter_than_not_knowing_it(
            rules in prop::collection::vec(any_rule(), 0..6),
            otherwise in any_action(),
            hints in any_hints(),
            name in prop_oneof![Just("a"), Just("ab"), Just("b")],
        ) {
            let policy = Approval { rules, otherwise, trust_annotations: true };
            prop_assert!(policy.decide(name, Some(hints)) <= policy.decide(name, None));
        }
    }

    #[test]
    fn what_is_not_said_is_the_worst() {
        let silent = Hints::default();
        assert!(silent.has(Trait::Destructive) && silent.has(Trait::OpenWorld));
        assert!(!silent.has(Trait::ReadOnly) && !silent.has(Trait::Idempotent));
        let both = Hints {
            read_only: Some(true),
            destructive: Some(true),
            ..silent
        };
        assert!(
            !both.has(Trait::Destructive),
            "what changes nothing destroys nothing"
        );
    }

    #[test]
    fn what_the_server_says_counts_only_if_it_is_trusted() {
        let mut policy = Approval {
            rules: vec![
                rule("x", None, Action::Ask),
                rule("", Some(Trait::ReadOnly), Action::Auto),
            ],
            ..Approval::default()
        };
        let refused = policy.check().unwrap_err();
        assert_eq!(refused.field(), Some("spec.approval.rules[1].hint"));
        policy.trust_annotations = true;
        policy.check().unwrap();
        policy.rules[0].tool = r"a\".to_owned();
        let refused = policy.check().unwrap_err();
        assert_eq!(refused.field(), Some("spec.approval.rules[0].tool"));
    }
}
