//! Approval of calls, between the contract and the model.

use mcp_sidecar_proto::v1;

use crate::error::{Error, Result};
use crate::mcp::protocol::RawJson;
use crate::model::approval::{Action, Approval, Rule, Trait};

/// The policy of a registration.
///
/// # Errors
/// `INVALID_FIELD` for values that are none.
pub(super) fn policy(policy: Option<v1::ApprovalPolicy>) -> Result<Approval> {
    let policy = policy.unwrap_or_default();
    let rule = |(index, rule): (usize, &v1::ApprovalRule)| {
        let field = |name: &str| format!("spec.approval.rules[{index}].{name}");
        let unknown = |_| Error::invalid(field("hint"), format!("{} is not a hint", rule.hint));
        let hint = match v1::ToolHint::try_from(rule.hint).map_err(unknown)? {
            v1::ToolHint::Unspecified => None,
            v1::ToolHint::ReadOnly => Some(Trait::ReadOnly),
            v1::ToolHint::Destructive => Some(Trait::Destructive),
            v1::ToolHint::Idempotent => Some(Trait::Idempotent),
            v1::ToolHint::OpenWorld => Some(Trait::OpenWorld),
        };
        Ok(Rule {
            tool: rule.tool.clone(),
            hint,
            action: action(rule.action)
                .ok_or_else(|| Error::invalid(field("action"), "say AUTO, ASK or DENY"))?,
        })
    };
    let otherwise = match policy.default_action {
        0 => Action::Auto,
        other => action(other).ok_or_else(|| {
            Error::invalid("spec.approval.default_action", "say AUTO, ASK or DENY")
        })?,
    };
    Ok(Approval {
        rules: policy
            .rules
            .iter()
            .enumerate()
            .map(rule)
            .collect::<Result<_>>()?,
        otherwise,
        trust_annotations: policy.trust_annotations,
    })
}

fn action(action: i32) -> Option<Action> {
    match v1::ApprovalAction::try_from(action).ok()? {
        v1::ApprovalAction::Unspecified => None,
        v1::ApprovalAction::Auto => Some(Action::Auto),
        v1::ApprovalAction::Ask => Some(Action::Ask),
        v1::ApprovalAction::Deny => Some(Action::Deny),
    }
}

/// A policy as apps see it; none, if everything is made.
pub(super) fn shown(approval: Approval) -> Option<v1::ApprovalPolicy> {
    if approval == Approval::default() {
        return None;
    }
    let action = |action: Action| {
        let action = match action {
            Action::Auto => v1::ApprovalAction::Auto,
            Action::Ask => v1::ApprovalAction::Ask,
            Action::Deny => v1::ApprovalAction::Deny,
        };
        action.into()
    };
    let rules = approval.rules.into_iter().map(|rule| {
        let hint = match rule.hint {
            None => v1::ToolHint::Unspecified,
            Some(Trait::ReadOnly) => v1::ToolHint::ReadOnly,
            Some(Trait::Destructive) => v1::ToolHint::Destructive,
            Some(Trait::Idempotent) => v1::ToolHint::Idempotent,
            Some(Trait::OpenWorld) => v1::ToolHint::OpenWorld,
        };
        v1::ApprovalRule {
            tool: rule.tool,
            hint: hint.into(),
            action: action(rule.action),
        }
    });
    Some(v1::ApprovalPolicy {
        rules: rules.collect(),
        default_action: action(approval.otherwise),
        trust_annotations: approval.trust_annotations,
    })
}

/// The tool and the arguments of a call that waits for consent, from the request of its question.
pub(super) fn asked(request: &str) -> (String, String) {
    let request = RawJson::parse(request.to_owned()).ok();
    let part = |name: &str| request.as_ref().and_then(|request| request.get(name));
    let name = part("name").and_then(|name| name.read::<String>());
    let arguments = part("arguments").map(|arguments| arguments.as_str().to_owned());
    (name.unwrap_or_default(), arguments.unwrap_or_default())
}
