//! Which callers may use which namespaces.
//!
//! Rules of the configuration say it of users of the host. A token says it of whoever bears it, and no rule is about that.
//! Decided before anything is looked up, so that a refusal tells nothing about what exists.

use std::sync::{Arc, PoisonError, RwLock};

use crate::base::{Caller, Namespace, NamespacePattern};
use crate::config::AccessRule;
use crate::error::{Error, Reason, Result};
use crate::model::validate::check_namespace;

/// Which callers may use which namespaces. Cheap to clone; clones see the same rules, also when others take their place.
#[derive(Clone, Debug)]
pub struct Access(Arc<RwLock<Arc<[AccessRule]>>>);

impl Access {
    /// Access by these rules. Without rules every caller may use every namespace; otherwise what no rule permits is
    /// denied, for root too.
    #[must_use]
    pub fn new(rules: &[AccessRule]) -> Self {
        Self(Arc::new(RwLock::new(rules.into())))
    }

    /// Puts these rules into the place of the others. What has begun under the old ones goes on, but for update streams: they
    /// ask before every update.
    pub fn replace(&self, rules: &[AccessRule]) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = rules.into();
    }

    /// The namespace that a request names; `default` if it names none. The first thing every RPC asks.
    ///
    /// # Errors
    /// INVALID_FIELD `namespace` for anything but 1 to 64 characters of `[A-Za-z0-9._-]`; CALLER_NOT_ALLOWED if no
    /// rule lets the caller use it.
    pub fn namespace(&self, caller: &Caller, requested: &str) -> Result<Namespace> {
        let namespace = if requested.is_empty() {
            Namespace::default()
        } else {
            check_namespace(requested)?;
            Namespace::new(requested)
        };
        if self.allows(caller, &namespace) {
            return Ok(namespace);
        }
        Err(refusal(caller, &namespace))
    }

    /// Whether a rule, or the absence of rules, lets the process use the namespace, or the token is for it.
    #[must_use]
    pub fn allows(&self, caller: &Caller, namespace: &Namespace) -> bool {
        let process = match caller {
            Caller::Process(process) => process,
            Caller::Token(bearer) => return covered(&bearer.namespaces, namespace),
        };
        let rules = Arc::clone(&self.0.read().unwrap_or_else(PoisonError::into_inner));
        rules.is_empty()
            || rules.iter().any(|rule| {
                rule.uid.is_none_or(|uid| uid == process.uid)
                    && rule.gid.is_none_or(|gid| gid == process.gid)
                    && covered(&rule.namespaces, namespace)
            })
    }
}

fn covered(patterns: &[NamespacePattern], namespace: &Namespace) -> bool {
    let mut patterns = patterns.iter();
    patterns.any(|pattern| pattern.matches(namespace.as_str()))
}

fn refusal(caller: &Caller, namespace: &Namespace) -> Error {
    let error = match caller {
        Caller::Process(process) => Error::new(
            Reason::CallerNotAllowed,
            format!(
                "user {} (group {}) may not use namespace `{namespace}`; the operator grants it in `access`",
                process.uid, process.gid
            ),
        )
        .with("uid", process.uid.to_string()),
        Caller::Token(bearer) => Error::new(
            Reason::CallerNotAllowed,
            format!(
                "the token `{}` is not for namespace `{namespace}`; the operator makes one that is (CreateAppToken)",
                bearer.name
            ),
        )
        .with("token_id", bearer.id.as_str()),
    };
    error.with("namespace", namespace.as_str())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Access;
    use crate::base::{Bearer, Caller, Process, TokenId};
    use crate::config::AccessRule;
    use crate::error::Reason;

    fn caller(uid: u32, gid: u32) -> Caller {
        Caller::Process(Process {
            uid,
            gid,
            pid: None,
        })
    }

    fn rule(uid: Option<u32>, gid: Option<u32>, namespaces: &[&str]) -> AccessRule {
        AccessRule {
            uid,
            gid,
            namespaces: namespaces
                .iter()
                .map(|pattern| pattern.parse().unwrap())
                .collect(),
        }
    }

    #[test]
    fn without_rules_every_valid_namespace_may_be_used() {
        let access = Access::new(&[]);
        let use_it = |namespace: &str| access.namespace(&caller(1, 1), namespace);
        assert_eq!(use_it("").unwrap().as_str(), "default");
        assert_eq!(use_it("Team-a.b_c").unwrap().as_str(), "Team-a.b_c");
        for bad in ["a/b", " ", "ä", "a\0", &"a".repeat(65)] {
            let error = use_it(bad).unwrap_err();
            assert_eq!(error.reason(), Reason::InvalidField);
            assert_eq!(error.field(), Some("namespace"));
        }
    }

    #[test]
    fn other_rules_hold_for_every_clone() {
        let access = Access::new(&[]);
        let clone = access.clone();
        access.replace(&[rule(Some(1), None, &["*"])]);
        assert!(clone.namespace(&caller(1, 1), "a").is_ok());
        assert!(clone.namespace(&caller(2, 1), "a").is_err());
    }

    #[test]
    fn with_rules_the_rest_is_denied() {
        let access = Access::new(&[
            rule(Some(1000), None, &["a", "team-*"]),
            rule(None, Some(50), &["shared"]),
            rule(Some(2), Some(3), &["*"]),
        ]);
        let allowed = |uid, gid, namespace: &str| access.namespace(&caller(uid, gid), namespace);
        assert!(allowed(1000, 1, "a").is_ok() && allowed(1000, 1, "team-x").is_ok());
        assert!(allowed(7, 50, "shared").is_ok() && allowed(2, 3, "anything").is_ok());
        for (uid, gid, namespace) in [
            (1000, 1, "b"),
            (1001, 1, "a"),
            (2, 4, "a"),
            (0, 0, "a"),
            (1000, 1, ""),
        ] {
            let error = allowed(uid, gid, namespace).unwrap_err();
            assert_eq!(error.reason(), Reason::CallerNotAllowed);
        }
    }

    #[test]
    fn a_token_says_itself_what_it_is_for() {
        let bearer = Bearer {
            id: TokenId::new("t"),
            name: "build".to_owned(),
            namespaces: vec!["a".parse().unwrap(), "team-*".parse().unwrap()],
        };
        let caller = Caller::Token(Arc::new(bearer));
        // With a rule for everybody, and with none for anybody.
        for rules in [vec![rule(None, None, &["*"])], Vec::new()] {
            let access = Access::new(&rules);
            assert!(access.namespace(&caller, "a").is_ok());
            assert!(access.namespace(&caller, "team-x").is_ok());
            for namespace in ["", "b", "A"] {
                let error = access.namespace(&caller, namespace).unwrap_err();
                assert_eq!(error.reason(), Reason::CallerNotAllowed);
                assert!(error.facts().contains(&("token_id".into(), "t".to_owned())));
            }
        }
    }
}
