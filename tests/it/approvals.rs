//! Calls that need somebody's consent (row C11): what the registration says, and what becomes of a call that waits for it.

use mcp_sidecar_tests::calls::{reason_of, result_of};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::{
    ApprovalAction, ApprovalPolicy, ApprovalRule, CallState, ElicitationAction, ElicitationMode,
    ElicitationState, ToolHint,
};

fn rule(tool: &str, hint: ToolHint, action: ApprovalAction) -> ApprovalRule {
    ApprovalRule {
        tool: tool.to_owned(),
        hint: hint.into(),
        action: action.into(),
    }
}

fn with_policy(mut spec: ServerSpec, rules: Vec<ApprovalRule>, trusted: bool) -> ServerSpec {
    spec.approval = Some(ApprovalPolicy {
        rules,
        default_action: ApprovalAction::Auto.into(),
        trust_annotations: trusted,
    });
    spec
}

fn asking_for(tool: &str) -> Vec<ApprovalRule> {
    vec![rule(tool, ToolHint::Unspecified, ApprovalAction::Ask)]
}

const ARGUMENTS: &str = r#"{"to": "ada@example.com", "n": 12345678901234567890, "x": 1.10}"#;

#[tokio::test]
async fn c11_a_call_is_shown_and_made_once_somebody_agrees() {
    for modern in [true, false] {
        for stdio in [true, false] {
            one_and_two(async |stage| {
                let builder = if modern {
                    FakeMcp::modern()
                } else {
                    FakeMcp::legacy()
                };
                let builder = builder.tool(tool("echo"));
                let builder = if stdio { builder.lines() } else { builder };
                let fake = builder.start().await;
                let spec = if stdio {
                    fake.as_child("The Mailer").await
                } else {
                    http_spec("The Mailer", &fake.url())
                };
                stage
                    .add("s", with_policy(spec, asking_for("echo"), false))
                    .await;
                let mut updates = stage.other().updates("").await;
                let app = stage.app().clone();
                let call = tokio::spawn(async move { app.call_tool("s", "echo", ARGUMENTS).await });
                let question = updates.pending().await;
                assert_eq!(question.mode(), ElicitationMode::Approval);
                assert_eq!(question.server_name, "The Mailer");
                assert_eq!(
                    (
                        question.tool_name.as_str(),
                        question.arguments_json.as_str()
                    ),
                    ("echo", ARGUMENTS)
                );
                assert_eq!(
                    question.message,
                    "May the tool `echo` of `The Mailer` be called?"
                );
                assert!(
                    fake.seen_of("tools/call").is_empty(),
                    "the server knows nothing of it yet"
                );
                let with_content = stage.other().accept(&question.id, "{}").await;
                ErrorFacts::expect(with_content, Code::InvalidArgument, "INVALID_FIELD");
                let agreed = stage
                    .other()
                    .respond(&question.id, ElicitationAction::Accept, None);
                agreed.await.unwrap();
                within("the result", call).await.unwrap().unwrap();
                let seen = fake.seen_of("tools/call");
                assert_eq!(seen.len(), 1);
                assert_eq!(seen[0].arguments(), ARGUMENTS);
                let again = stage
                    .other()
                    .respond(&question.id, ElicitationAction::Decline, None)
                    .await;
                ErrorFacts::expect(again, Code::FailedPrecondition, "ALREADY_RESOLVED");
            })
            .await;
        }
    }
}

#[tokio::test]
async fn c11_without_consent_a_call_is_not_made() {
    one_and_two_with(
        TestDaemon::builder().set("questions.approval_expiry", "1s"),
        async |stage| {
            let fake = FakeMcp::echo(true).await;
            let spec = with_policy(http_spec("S", &fake.url()), asking_for("echo"), false);
            stage.add("s", spec).await;
            for action in [
                Some(ElicitationAction::Decline),
                Some(ElicitationAction::Cancel),
                None,
            ] {
                let mut updates = stage.other().updates("").await;
                updates.snapshot().await;
                let id = stage.app().detach("s", "echo", "{}").await;
                let question = updates.pending().await;
                assert_eq!(question.call_id, id);
                if let Some(action) = action {
                    stage
                        .other()
                        .respond(&question.id, action, None)
                        .await
                        .unwrap();
                } else {
                    assert_eq!(
                        updates.end_of(&question.id).await,
                        ElicitationState::Expired
                    );
                }
                let ended = stage.other().wait_call(&id).await;
                assert_eq!(reason_of(&ended), "CALL_NOT_APPROVED");
            }
            assert!(fake.seen_of("tools/call").is_empty());
        },
    )
    .await;
}

#[tokio::test]
async fn c11_consent_may_come_after_the_daemon_was_killed() {
    for modern in [true, false] {
        one_and_two(async |mut stage| {
            let fake = FakeMcp::echo(modern).await;
            let spec = with_policy(http_spec("S", &fake.url()), asking_for("e*"), false);
            stage.add("s", spec).await;
            let mut updates = stage.other().updates("").await;
            let id = stage.app().detach("s", "echo", ARGUMENTS).await;
            let question = updates.pending().await;
            stage.daemon.kill9().await;
            stage.restart().await;
            let waiting = stage.other().get_call(&id).await.unwrap();
            assert_eq!(waiting.state(), CallState::InputRequired);
            let stranger = stage.daemon.clients_in("elsewhere").await;
            let hidden = stranger
                .respond(&question.id, ElicitationAction::Accept, None)
                .await;
            ErrorFacts::expect(hidden, Code::NotFound, "ELICITATION_NOT_FOUND");
            stage
                .other()
                .respond(&question.id, ElicitationAction::Accept, None)
                .await
                .unwrap();
            result_of(&stage.other().wait_call(&id).await);
            assert_eq!(fake.seen_of("tools/call")[0].arguments(), ARGUMENTS);
        })
        .await;
    }
}

#[tokio::test]
async fn c11_rules_decide_in_order_and_by_what_a_trusted_server_says_of_its_tools() {
    one_and_two(async |stage| {
        let said = |name: &str, hints: Value| {
            let mut tool = tool(name);
            tool["annotations"] = hints;
            tool
        };
        let fake = FakeMcp::modern()
            .tool(said("look", json!({"readOnlyHint": true})))
            .tool(said("append", json!({"destructiveHint": false})))
            .tool(said("erase", json!({"destructiveHint": true})))
            .tool(tool("silent"))
            .tool(tool("drop_all"))
            .start()
            .await;
        let rules = vec![
            rule("drop_*", ToolHint::Unspecified, ApprovalAction::Deny),
            rule("", ToolHint::ReadOnly, ApprovalAction::Auto),
            rule("", ToolHint::Destructive, ApprovalAction::Ask),
        ];
        let distrusted = with_policy(http_spec("S", &fake.url()), rules.clone(), false);
        let refused = stage.app().add("s", distrusted).await;
        let facts = ErrorFacts::expect(refused, Code::InvalidArgument, "INVALID_FIELD");
        assert_eq!(facts.field, "spec.approval.rules[1].hint");

        let spec = with_policy(http_spec("S", &fake.url()), rules, true);
        let server = stage.add("s", spec.clone()).await;
        assert_eq!(server.spec.unwrap().approval, spec.approval);
        for made in ["look", "append"] {
            stage.other().call_tool("s", made, "{}").await.unwrap();
        }
        let denied = stage.other().call_tool("s", "drop_all", "{}").await;
        let facts = ErrorFacts::expect(denied, Code::PermissionDenied, "CALL_NOT_APPROVED");
        assert_eq!(facts.metadata["policy"], "deny");
        for asked in ["erase", "silent"] {
            let id = stage.other().detach("s", asked, "{}").await;
            let waiting = stage.other().get_call(&id).await.unwrap();
            assert_eq!(waiting.state(), CallState::InputRequired, "{asked}");
            stage.other().cancel_call(&id).await.unwrap();
        }
        assert_eq!(fake.seen_of("tools/call").len(), 2);

        // Changed rules hold for the next call, and nothing is reconnected.
        let open = v1::ServerSpec::default();
        stage.app().update("s", open, &["approval"]).await.unwrap();
        stage.other().call_tool("s", "erase", "{}").await.unwrap();
        assert_eq!(fake.seen_of("server/discover").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn c11_what_was_made_is_told_again_whatever_the_rules_say_by_now() {
    one_and_two(async |stage| {
        let fake = FakeMcp::modern().tool(tool("echo")).start().await;
        let spec = http_spec("S", &fake.url());
        stage.add("s", spec.clone()).await;
        let named = |request_id: &str| v1::ToolCall {
            request_id: request_id.to_owned(),
            ..stage.app().call("s", "echo", "{}")
        };
        let first = stage.app().call_with(named("order-17")).await.unwrap();
        let deny = vec![rule("*", ToolHint::Unspecified, ApprovalAction::Deny)];
        let denying = with_policy(spec, deny, false);
        let updated = stage.app().update("s", denying, &["approval"]).await;
        updated.unwrap();
        let again = stage.other().call_with(named("order-17")).await.unwrap();
        assert_eq!(text_of(&again), text_of(&first));
        let denied = stage.other().call_with(named("order-18")).await;
        ErrorFacts::expect(denied, Code::PermissionDenied, "CALL_NOT_APPROVED");
        assert_eq!(fake.seen_of("tools/call").len(), 1);
    })
    .await;
}
