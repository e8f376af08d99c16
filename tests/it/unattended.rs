//! What becomes of questions that nobody answers: how long they wait, and whether they wait at all.

use mcp_sidecar_tests::audience::{APPROVALS, FORMS, MODELS, told};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::{ElicitationState, QuestionPolicy, UnattendedPolicy};

use crate::questions::{WAYS, Way, asking, complete, form, result_of, start_call, with_forms};
use crate::sampling::{ANSWER, capital, sampling, with_models};

fn with_policy(spec: ServerSpec, policy: QuestionPolicy) -> ServerSpec {
    ServerSpec {
        question_policy: Some(policy),
        ..spec
    }
}

fn declining() -> QuestionPolicy {
    QuestionPolicy {
        unattended: UnattendedPolicy::Decline.into(),
        ..Default::default()
    }
}

#[tokio::test]
async fn behaviour_85_a_question_that_nobody_answers_is_cancelled_in_time() {
    // Each server has its own time, and each kind: what is not set is as configured.
    let builder = TestDaemon::builder().set("questions.expiry", "2s");
    for way in WAYS {
        one_and_two_at_once(builder.clone(), async |stage| {
            let (quick, slow) = (asking(way).await, asking(way).await);
            let policy = QuestionPolicy {
                elicitation_expiry: Some(millis(300)),
                sampling_expiry: Some(seconds(600)),
                ..Default::default()
            };
            let spec = with_forms(http_spec("Q", &quick.url()));
            stage.add("q", with_policy(spec, policy)).await;
            stage
                .add("s", with_forms(http_spec("S", &slow.url())))
                .await;
            let mut updates = stage.other().updates("").await;
            let slow_call = start_call(stage.app(), "s");
            let slow_one = updates.pending().await;
            let quick_call = start_call(stage.app(), "q");
            let quick_one = updates.pending().await;
            let life = |one: &v1::Elicitation| {
                let millis = |at: &prost_types::Timestamp| {
                    at.seconds * 1000 + i64::from(at.nanos) / 1_000_000
                };
                millis(one.expire_time.as_ref().unwrap())
                    - millis(one.create_time.as_ref().unwrap())
            };
            assert_eq!((life(&quick_one), life(&slow_one)), (300, 2000));
            let expired = ElicitationState::Expired;
            assert_eq!(updates.end_of(&quick_one.id).await, expired);
            assert_eq!(result_of(quick_call).await["action"], "cancel", "{way:?}");
            let still = stage.app().question(&slow_one.id).await.unwrap();
            assert_eq!(still.state(), ElicitationState::Pending);
            assert_eq!(updates.end_of(&slow_one.id).await, expired);
            assert_eq!(result_of(slow_call).await["action"], "cancel", "{way:?}");
            let late = stage
                .other()
                .accept(&quick_one.id, r#"{"name":"Ada"}"#)
                .await;
            ErrorFacts::expect(late, Code::FailedPrecondition, "ALREADY_RESOLVED");
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_85_what_no_model_answers_ends_in_its_own_time() {
    let builder = TestDaemon::builder()
        .set("questions.expiry", "1h")
        .set("questions.sampling_expiry", "1s");
    for way in [Way::Result, Way::CallStream] {
        one_and_two_at_once(builder.clone(), async |stage| {
            let fake = sampling(way, capital()).await;
            stage
                .add("s", with_models(http_spec("S", &fake.url())))
                .await;
            let mut updates = stage.other().updates("").await;
            for own in [false, true] {
                if own {
                    // A change holds for later questions, and disturbs nobody.
                    let policy = QuestionPolicy {
                        sampling_expiry: Some(millis(200)),
                        ..Default::default()
                    };
                    let spec = with_policy(http_spec("S", &fake.url()), policy);
                    let before = fake.seen_of("initialize").len();
                    let update =
                        stage
                            .other()
                            .update("s", spec, &["question_policy.sampling_expiry"]);
                    let shown = update.await.unwrap().spec.unwrap();
                    assert_eq!(shown.question_policy, Some(policy));
                    assert_eq!(fake.seen_of("initialize").len(), before);
                }
                let call = start_call(stage.app(), "s");
                let request = updates.sampling().await;
                let end = updates.end_of_sampling(&request.id).await;
                assert_eq!(end, ElicitationState::Expired);
                let outcome = within("the end of the call", call).await.unwrap();
                if matches!(way, Way::Result) {
                    ErrorFacts::expect(outcome, Code::FailedPrecondition, "INPUT_DECLINED");
                } else {
                    assert!(text_of(&outcome.unwrap()).contains("-1"));
                }
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_question_that_nobody_is_there_for_waits_unless_it_shall_not() {
    for way in WAYS {
        one_and_two(async |stage| {
            let fake = asking(way).await;
            let spec = with_forms(http_spec("S", &fake.url()));
            stage.add("s", spec.clone()).await;
            // By default it waits for whoever comes.
            let mut updates = stage.other().updates("").await;
            let call = start_call(stage.app(), "s");
            let question = updates.pending().await;
            let content = r#"{"name":"Ada"}"#;
            stage.other().accept(&question.id, content).await.unwrap();
            assert_eq!(result_of(call).await["action"], "accept");

            let update = with_policy(spec, declining());
            let update = stage
                .app()
                .update("s", update, &["question_policy.unattended"]);
            update.await.unwrap();
            let told = result_of(start_call(stage.app(), "s")).await;
            assert_eq!(told, json!({"action": "decline"}), "{way:?}");
            // People can see afterwards that they were asked, and cannot change it.
            let state = ElicitationState::Declined;
            let declined = updates.question_where("the question", |one| one.state() == state);
            let declined = declined.await;
            assert_eq!(declined.message, "Who are you?");
            assert_eq!(declined.create_time, declined.resolve_time);
            for app in &stage.apps {
                assert_eq!(app.questions_in(state).await, vec![declined.clone()]);
            }
            let late = stage.app().accept(&declined.id, content).await;
            ErrorFacts::expect(late, Code::FailedPrecondition, "ALREADY_RESOLVED");

            // Somebody who asks models is nobody who shows forms.
            let _models = stage.other().attach(MODELS).await;
            let told = result_of(start_call(stage.app(), "s")).await;
            assert_eq!(told["action"], "decline", "{way:?}");
            let mut forms = stage.other().attach(FORMS).await;
            let call = start_call(stage.app(), "s");
            let question = forms.pending().await;
            stage.other().accept(&question.id, content).await.unwrap();
            assert_eq!(result_of(call).await["action"], "accept", "{way:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn what_no_model_is_there_for_can_end_at_once() {
    let builder = TestDaemon::builder().set("questions.unattended", "decline");
    for way in [Way::Result, Way::CallStream] {
        one_and_two_with(builder.clone(), async |stage| {
            let fake = sampling(way, capital()).await;
            let spec = with_models(http_spec("S", &fake.url()));
            stage.add("s", spec.clone()).await;
            let mut updates = stage.other().updates("").await;
            let outcome = within("the end", start_call(stage.app(), "s"))
                .await
                .unwrap();
            if matches!(way, Way::Result) {
                ErrorFacts::expect(outcome, Code::FailedPrecondition, "INPUT_DECLINED");
            } else {
                assert!(text_of(&outcome.unwrap()).contains("User rejected sampling request"));
            }
            let state = ElicitationState::Declined;
            updates
                .sampling_where("the request", |one| one.state() == state)
                .await;
            // What is set for a server wins over the configuration.
            let hold = QuestionPolicy {
                unattended: UnattendedPolicy::Hold.into(),
                ..Default::default()
            };
            let update = stage
                .app()
                .update("s", with_policy(spec, hold), &["question_policy"]);
            update.await.unwrap();
            let call = start_call(stage.app(), "s");
            let request = updates.sampling().await;
            stage.other().sampled(&request.id, ANSWER).await.unwrap();
            assert_eq!(result_of(call).await["model"], "m-1");
        })
        .await;
    }
}

#[tokio::test]
async fn of_several_questions_only_those_that_nobody_is_there_for_end_at_once() {
    one_and_two(async |stage| {
        let fake = FakeMcp::modern().tool(tool("ask")).start().await;
        fake.reply("tools/call", |seen| {
            if let Some(answers) = seen.params().get("inputResponses") {
                return Reply::Json(complete(answers));
            }
            let person = json!({"method": "elicitation/create", "params": form("Who?")});
            let page = json!({"method": "elicitation/create", "params": {
                "mode": "url", "message": "Open", "url": "https://example.com/", "elicitationId": "e",
            }});
            let requests = json!({"person": person, "page": page});
            Reply::Json(json!({"resultType": "input_required", "inputRequests": requests}))
        });
        let mut spec = with_policy(http_spec("S", &fake.url()), declining());
        spec.client_capabilities = Some(v1::ClientCapabilities {
            elicitation_form: true,
            elicitation_url: true,
            ..Default::default()
        });
        stage.add("s", spec).await;
        let mut forms = stage.other().attach(FORMS).await;
        let call = start_call(stage.app(), "s");
        let question = forms.pending().await;
        assert_eq!(question.message, "Who?");
        stage.other().accept(&question.id, r#"{"name":"Ada"}"#).await.unwrap();
        let told = result_of(call).await;
        assert_eq!(told["person"]["action"], "accept");
        assert_eq!(told["page"], json!({"action": "decline"}));
    })
    .await;
}

#[tokio::test]
async fn a_url_that_a_legacy_server_wants_opened_and_nobody_can_ends_the_call() {
    one_and_two(async |stage| {
        let fake = FakeMcp::legacy().tool(tool("ask")).start().await;
        fake.reply("tools/call", |_| {
            let data = json!({"elicitations": [{
                "mode": "url", "elicitationId": "e-1", "message": "Connect your account",
                "url": "https://connect.example.com/e-1",
            }]});
            Reply::Error(-32042, "open it first", data)
        });
        let mut spec = with_policy(http_spec("S", &fake.url()), declining());
        spec.client_capabilities = Some(v1::ClientCapabilities {
            elicitation_url: true,
            ..Default::default()
        });
        stage.add("s", spec).await;
        let outcome = stage.app().call_tool("s", "ask", "{}").await;
        ErrorFacts::expect(outcome, Code::FailedPrecondition, "INPUT_DECLINED");
        assert_eq!(fake.seen_of("tools/call").len(), 1);
        let declined = stage.other().questions_in(ElicitationState::Declined).await;
        assert_eq!(declined[0].url, "https://connect.example.com/e-1");
    })
    .await;
}

#[tokio::test]
async fn a_policy_is_looked_at_before_it_is_stored() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(true).await;
    let spec = http_spec("S", &fake.url());
    let too_long = Some(seconds(720 * 3600 + 1));
    for (policy, field) in [
        (
            QuestionPolicy {
                elicitation_expiry: Some(millis(0)),
                ..Default::default()
            },
            "spec.question_policy.elicitation_expiry",
        ),
        (
            QuestionPolicy {
                sampling_expiry: too_long,
                ..Default::default()
            },
            "spec.question_policy.sampling_expiry",
        ),
        (
            QuestionPolicy {
                approval_expiry: too_long,
                ..Default::default()
            },
            "spec.question_policy.approval_expiry",
        ),
        (
            QuestionPolicy {
                unattended: 9,
                ..Default::default()
            },
            "spec.question_policy.unattended",
        ),
    ] {
        let refused = app.add("s", with_policy(spec.clone(), policy)).await;
        let facts = ErrorFacts::expect(refused, Code::InvalidArgument, "INVALID_FIELD");
        assert_eq!(facts.field, field);
    }
    let whole = QuestionPolicy {
        unattended: UnattendedPolicy::Decline.into(),
        elicitation_expiry: Some(seconds(1)),
        sampling_expiry: Some(seconds(2)),
        approval_expiry: Some(seconds(3)),
    };
    let added = app
        .add("s", with_policy(spec.clone(), whole))
        .await
        .unwrap();
    let shown = added.server.unwrap().spec.unwrap();
    assert_eq!(shown.question_policy, Some(whole));
    let cleared = app.update("s", spec, &["question_policy"]).await.unwrap();
    assert_eq!(cleared.spec.unwrap().question_policy, None);
}

#[tokio::test]
async fn a_call_that_nobody_is_there_to_approve_waits_unless_it_shall_not() {
    for modern in [true, false] {
        one_and_two(async |stage| {
            let fake = FakeMcp::echo(modern).await;
            let mut spec = http_spec("S", &fake.url());
            spec.approval = Some(v1::ApprovalPolicy {
                default_action: v1::ApprovalAction::Ask.into(),
                ..Default::default()
            });
            let quick = QuestionPolicy {
                approval_expiry: Some(millis(300)),
                ..Default::default()
            };
            stage.add("s", with_policy(spec.clone(), quick)).await;
            let mut updates = stage.other().updates("").await;
            let call = async || stage.app().call_tool("s", "echo", "{}").await;
            let (outcome, state) = tokio::join!(call(), async {
                let question = updates.pending().await;
                updates.end_of(&question.id).await
            });
            assert_eq!(state, ElicitationState::Expired);
            ErrorFacts::expect(outcome, Code::PermissionDenied, "CALL_NOT_APPROVED");

            let update = with_policy(spec, declining());
            let update = stage.app().update("s", update, &["question_policy"]);
            update.await.unwrap();
            // Somebody who shows forms need not show calls.
            let _forms = stage.other().attach(FORMS).await;
            ErrorFacts::expect(call().await, Code::PermissionDenied, "CALL_NOT_APPROVED");
            let declined = stage.app().questions_in(ElicitationState::Declined).await;
            assert_eq!(declined[0].tool_name, "echo");
            assert!(fake.seen_of("tools/call").is_empty());

            let mut approvals = stage.other().attach(APPROVALS).await;
            let (outcome, ()) = tokio::join!(call(), async {
                let question = approvals.pending().await;
                let accept = v1::ElicitationAction::Accept;
                let agreed = stage.other().respond(&question.id, accept, None);
                agreed.await.unwrap();
            });
            outcome.unwrap();
            // What calls need is no server's affair.
            assert!(told(&fake).get("approval").is_none());
        })
        .await;
    }
}
