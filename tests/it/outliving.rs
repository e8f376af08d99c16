//! Calls that outlive their caller, and the daemon: detached, named, at rest while people are asked, taken up again.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use mcp_sidecar_tests::calls::{reason_of, result_of};
use mcp_sidecar_tests::fake::{SseWriter, stream};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::{CallState, ElicitationAction, ElicitationState};

use crate::questions::{Way, asking, complete, form, start_call, with_forms};

const ADA: &str = r#"{"name":"Ada"}"#;

pub(crate) fn said(call: &v1::Call) -> Value {
    serde_json::from_str(&text_of(result_of(call))).unwrap()
}

/// A server of either era whose `slow` answers when it is told to.
pub(crate) async fn slow(modern: bool) -> (FakeMcp, tokio_util::sync::CancellationToken) {
    let builder = if modern {
        FakeMcp::modern()
    } else {
        FakeMcp::legacy()
    };
    let fake = builder.tool(tool("slow")).start().await;
    let go = tokio_util::sync::CancellationToken::new();
    let going = go.clone();
    fake.on("tools/call", move |_| {
        let going = going.clone();
        async move {
            stream(async move |writer: SseWriter| {
                tokio::select! {
                    () = going.cancelled() => writer.result(complete(&json!("done"))).await,
                    () = writer.closed() => {}
                }
            })
        }
    });
    (fake, go)
}

#[tokio::test]
async fn a_question_survives_the_daemon_and_whoever_answers_sets_the_call_going() {
    one_and_two(async |mut stage| {
        let fake = asking(Way::Result).await;
        stage
            .add("s", with_forms(http_spec("S", &fake.url())))
            .await;
        let mut updates = stage.other().updates("").await;
        updates.snapshot().await;
        let guest = stage.daemon.clients().await;
        let id = guest
            .detach("s", "ask", r#"{"n":12345678901234567890}"#)
            .await;
        drop(guest);
        let question = updates.pending().await;
        assert_eq!(question.call_id, id);
        updates.call_where(&id, CallState::InputRequired).await;
        let token = updates.token();

        stage.daemon.kill9().await;
        stage.restart().await;
        let mut updates = stage.other().updates(&token).await;
        let app = stage.other();
        let still = app.question(&question.id).await.unwrap();
        assert_eq!(still.state(), ElicitationState::Pending);
        assert_eq!(
            app.get_call(&id).await.unwrap().state(),
            CallState::InputRequired
        );
        assert_eq!(app.list_calls().await.len(), 1);
        app.accept(&question.id, ADA).await.unwrap();
        assert_eq!(
            updates.end_of(&question.id).await,
            ElicitationState::Answered
        );
        updates.call_where(&id, CallState::Completed).await;
        let ended = app.wait_call(&id).await;
        assert_eq!(said(&ended)["content"]["name"], "Ada");

        let seen = fake.seen_of("tools/call");
        assert_eq!(seen.len(), 2, "each round was made once");
        let (first, last) = (seen[0].params(), seen[1].params());
        assert_eq!(last["requestState"], "st/ate+1==");
        assert!(first.get("requestState").is_none());
        assert_eq!(seen[1].arguments(), r#"{"n":12345678901234567890}"#);
        assert_ne!(seen[0].json["id"], seen[1].json["id"]);

        // What came of it survives too.
        stage.daemon.kill9().await;
        stage.restart().await;
        assert_eq!(
            stage.other().get_call(&id).await.unwrap().outcome,
            ended.outcome
        );
    })
    .await;
}

#[tokio::test]
async fn behaviour_82_two_questions_are_asked_at_once_and_no_answer_is_asked_for_again() {
    one_and_two(async |mut stage| {
        let fake = FakeMcp::modern().tool(tool("ask")).start().await;
        fake.reply("tools/call", |seen| {
            let answers = &seen.params()["inputResponses"];
            if answers.is_null() {
                let one =
                    |text: &str| json!({"method": "elicitation/create", "params": form(text)});
                return Reply::Json(json!({
                    "resultType": "input_required", "requestState": "s",
                    "inputRequests": {"a": one("First?"), "b": one("Second?")},
                }));
            }
            Reply::Json(complete(answers))
        });
        stage
            .add("s", with_forms(http_spec("S", &fake.url())))
            .await;
        let mut updates = stage.other().updates("").await;
        let id = stage.app().detach("s", "ask", "{}").await;
        let (one, two) = (updates.pending().await, updates.pending().await);
        stage.other().accept(&one.id, ADA).await.unwrap();
        let database = stage.daemon.data_dir().join("sidecar.db-wal");
        let text = std::fs::read(database).unwrap();
        assert!(
            !String::from_utf8_lossy(&text).contains(ADA),
            "an answer is sealed while it waits"
        );
        stage.daemon.kill9().await;
        stage.restart().await;
        let app = stage.other();
        assert_eq!(
            app.question(&one.id).await.unwrap().state(),
            ElicitationState::Answered
        );
        assert_eq!(
            fake.seen_of("tools/call").len(),
            1,
            "it waits for the second answer"
        );
        app.respond(&two.id, ElicitationAction::Decline, None)
            .await
            .unwrap();
        let told = said(&app.wait_call(&id).await);
        assert_eq!(told["a"]["content"]["name"], "Ada");
        assert_eq!(told["b"], json!({"action": "decline"}));
    })
    .await;
}

#[tokio::test]
async fn what_was_under_way_when_the_daemon_died_has_an_unknown_outcome() {
    for modern in [true, false] {
        one_and_two(async |mut stage| {
            let (fake, _go) = slow(modern).await;
            stage.add_http(&fake.url()).await;
            let id = stage.app().detach("s", "slow", "{}").await;
            fake.wait_method("tools/call").await;
            stage.daemon.kill9().await;
            stage.restart().await;
            let ended = stage.other().wait_call(&id).await;
            assert_eq!(ended.state(), CallState::Failed);
            assert_eq!(reason_of(&ended), "OUTCOME_UNKNOWN");
            assert_eq!(fake.seen_of("tools/call").len(), 1, "it is not made again");
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_89_a_legacy_call_loses_its_question_with_the_daemon_and_says_so() {
    for way in [Way::CallStream, Way::PushStream] {
        one_and_two(async |mut stage| {
            let fake = asking(way).await;
            stage
                .add("s", with_forms(http_spec("S", &fake.url())))
                .await;
            let mut updates = stage.other().updates("").await;
            let id = stage.app().detach("s", "ask", "{}").await;
            let question = updates.pending().await;
            updates.call_where(&id, CallState::InputRequired).await;
            if matches!(way, Way::CallStream) {
                // A call that nothing is kept of waits as visibly.
                let _plain = start_call(stage.app(), "s");
                let other = updates.pending().await;
                for id in [&id, &other.call_id] {
                    let call = stage.other().get_call(id).await.unwrap();
                    assert_eq!(call.state(), CallState::InputRequired);
                }
                assert_eq!(stage.other().list_calls().await.len(), 2);
            }
            let token = updates.token();
            stage.daemon.kill9().await;
            stage.restart().await;
            let mut updates = stage.other().updates(&token).await;
            assert_eq!(
                updates.end_of(&question.id).await,
                ElicitationState::Void,
                "{way:?}"
            );
            updates.call_where(&id, CallState::Failed).await;
            assert_eq!(
                reason_of(&stage.other().wait_call(&id).await),
                "OUTCOME_UNKNOWN"
            );
        })
        .await;
    }
}

#[tokio::test]
async fn a_question_of_a_modern_call_outlives_its_server() {
    one_and_two(async |stage| {
        let fake = asking(Way::Result).await;
        stage
            .add("s", with_forms(http_spec("S", &fake.url())))
            .await;
        let mut updates = stage.other().updates("").await;
        let call = start_call(stage.app(), "s");
        let question = updates.pending().await;
        fake.crash().await;
        assert_eq!(
            stage.other().question(&question.id).await.unwrap().state(),
            ElicitationState::Pending
        );
        fake.revive().await;
        stage.other().accept(&question.id, ADA).await.unwrap();
        let result = within("the result", call).await.unwrap().unwrap();
        assert!(text_of(&result).contains("Ada"));
    })
    .await;
}

#[tokio::test]
async fn behaviour_83_a_cancelled_call_tells_its_server_and_ends_its_questions() {
    for way in [Way::Result, Way::CallStream, Way::PushStream] {
        for detached in [true, false] {
            one_and_two(async |stage| {
                let fake = asking(way).await;
                stage
                    .add("s", with_forms(http_spec("S", &fake.url())))
                    .await;
                let mut updates = stage.other().updates("").await;
                let waiting = (!detached).then(|| start_call(stage.app(), "s"));
                if detached {
                    stage.app().detach("s", "ask", "{}").await;
                }
                let question = updates.pending().await;
                let id = question.call_id.clone();
                stage.other().cancel_call(&id).await.unwrap();
                assert_eq!(
                    updates.end_of(&question.id).await,
                    ElicitationState::Cancelled
                );
                let late = stage.other().accept(&question.id, ADA).await;
                ErrorFacts::expect(late, Code::FailedPrecondition, "ALREADY_RESOLVED");
                if let Some(waiting) = waiting {
                    let ended = within("the end", waiting).await.unwrap();
                    ErrorFacts::expect(ended, Code::Cancelled, "CANCELLED");
                } else {
                    assert_eq!(reason_of(&stage.other().wait_call(&id).await), "CANCELLED");
                }
                if !matches!(way, Way::Result) {
                    fake.wait_method("notifications/cancelled").await;
                }
                let again = stage.other().cancel_call(&id).await;
                assert!(again.is_err());
                stage.other().calls_in_flight("s", 0).await;
                stage.daemon.comes_to_rest().await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn a_call_that_waits_outlives_a_planned_stop_of_the_daemon() {
    one_and_two(async |mut stage| {
        let fake = asking(Way::Result).await;
        stage
            .add("s", with_forms(http_spec("S", &fake.url())))
            .await;
        let mut updates = stage.other().updates("").await;
        let call = start_call(stage.app(), "s");
        let question = updates.pending().await;
        stage.daemon.terminate().await;
        let told = within("the end", call).await.unwrap();
        let facts = ErrorFacts::expect(told, Code::Unavailable, "DRAINING");
        let id = facts.metadata["call_id"].clone();
        assert_eq!(id, question.call_id);
        stage.restart().await;
        stage.other().accept(&question.id, ADA).await.unwrap();
        assert_eq!(
            said(&stage.other().wait_call(&id).await)["content"]["name"],
            "Ada"
        );
    })
    .await;
}

#[tokio::test]
async fn the_removal_of_a_server_ends_its_calls_and_questions() {
    one_and_two(async |stage| {
        let fake = asking(Way::Result).await;
        stage
            .add("s", with_forms(http_spec("S", &fake.url())))
            .await;
        let mut updates = stage.other().updates("").await;
        let id = stage.app().detach("s", "ask", "{}").await;
        let question = updates.pending().await;
        stage.app().remove("s").await.unwrap();
        assert_eq!(updates.end_of(&question.id).await, ElicitationState::Void);
        let ended = stage.other().wait_call(&id).await;
        assert_eq!(reason_of(&ended), "SERVER_NOT_FOUND");
        let late = stage.other().accept(&question.id, ADA).await;
        ErrorFacts::expect(late, Code::FailedPrecondition, "ALREADY_RESOLVED");
    })
    .await;
}

#[tokio::test]
async fn behaviour_90_a_call_that_waits_goes_with_its_server_to_another_id() {
    one_and_two(async |stage| {
        let fake = asking(Way::Result).await;
        let spec = with_forms(http_spec("S", &fake.url()));
        let server = stage.app().add_ready(spec.clone()).await;
        let mut updates = stage.other().updates("").await;
        let id = stage.app().detach(&server.id, "ask", "{}").await;
        let question = updates.pending().await;
        assert_eq!(question.server_id, server.id);
        let moved = stage.app().add("stable", spec).await.unwrap();
        assert_eq!(moved.outcome(), v1::AddOutcome::Migrated);
        let moved = updates
            .question_where("the question at the new id", |it| it.server_id == "stable")
            .await;
        assert_eq!(moved.id, question.id);
        let call = stage.other().get_call(&id).await.unwrap();
        assert_eq!(
            (call.server_id.as_str(), call.state()),
            ("stable", CallState::InputRequired)
        );
        stage.other().accept(&question.id, ADA).await.unwrap();
        assert_eq!(
            said(&stage.other().wait_call(&id).await)["content"]["name"],
            "Ada"
        );
        let later = stage.app().detach("stable", "ask", "{}").await;
        let question = updates.pending().await;
        assert_eq!(
            (question.call_id, question.server_id.as_str()),
            (later, "stable")
        );
    })
    .await;
}

#[tokio::test]
async fn what_people_answer_is_in_no_log_and_not_readable_on_disk() {
    const ANSWER: &str = r#"{"name":"correct-horse-battery-staple"}"#;
    const ARGUMENT: &str = r#"{"pin":"four-seven-one-one-zero"}"#;
    for way in [Way::Result, Way::CallStream] {
        one_and_two_with(
            TestDaemon::builder().set("log.filter", "trace"),
            async |mut stage| {
                let fake = asking(way).await;
                stage
                    .add("s", with_forms(http_spec("S", &fake.url())))
                    .await;
                let mut updates = stage.other().updates("").await;
                let id = stage.app().detach("s", "ask", ARGUMENT).await;
                let question = updates.pending().await;
                stage.other().accept(&question.id, ANSWER).await.unwrap();
                let told = said(&stage.other().wait_call(&id).await);
                assert_eq!(told["content"]["name"], "correct-horse-battery-staple");
                stage.daemon.terminate().await;
                let mut everything = stage.daemon.log().into_bytes();
                for file in std::fs::read_dir(stage.daemon.data_dir()).unwrap() {
                    let path = file.unwrap().path();
                    if path.is_file() {
                        everything.extend(std::fs::read(path).unwrap());
                    }
                }
                let everything = String::from_utf8_lossy(&everything);
                assert!(everything.contains(&id), "there is something to be found");
                for secret in ["correct-horse-battery-staple", "four-seven-one-one-zero"] {
                    assert!(!everything.contains(secret), "{way:?}: {secret}");
                }
            },
        )
        .await;
    }
}

#[tokio::test]
async fn nothing_of_a_call_is_seen_from_another_namespace() {
    one_and_two(async |stage| {
        let fake = asking(Way::Result).await;
        stage
            .add("s", with_forms(http_spec("S", &fake.url())))
            .await;
        let mut updates = stage.other().updates("").await;
        let id = stage.app().detach("s", "ask", "{}").await;
        updates.pending().await;
        let stranger = stage.daemon.clients_in("elsewhere").await;
        let got = stranger.get_call(&id).await;
        ErrorFacts::expect(got, Code::NotFound, "CALL_NOT_FOUND");
        let cancelled = stranger.cancel_call(&id).await;
        ErrorFacts::expect(cancelled, Code::NotFound, "CALL_NOT_FOUND");
        assert!(stranger.list_calls().await.is_empty());
        let still = stage.app().get_call(&id).await.unwrap();
        assert_eq!(still.state(), CallState::InputRequired);
    })
    .await;
}

#[tokio::test]
async fn a_server_that_does_not_look_at_the_answers_is_given_up() {
    one_and_two(async |stage| {
        let fake = FakeMcp::modern().tool(tool("ask")).start().await;
        fake.reply("tools/call", |_| {
            let question = json!({"method": "elicitation/create", "params": form("Again?")});
            Reply::Json(json!({
                "resultType": "input_required", "requestState": "same",
                "inputRequests": {"who": question},
            }))
        });
        stage
            .add("s", with_forms(http_spec("S", &fake.url())))
            .await;
        let mut updates = stage.other().updates("").await;
        let id = stage.app().detach("s", "ask", "{}").await;
        for _ in 0..5 {
            let question = updates.pending().await;
            stage.other().accept(&question.id, ADA).await.unwrap();
        }
        let ended = stage.other().wait_call(&id).await;
        assert_eq!(reason_of(&ended), "UPSTREAM_PROTOCOL");
        assert_eq!(fake.seen_of("tools/call").len(), 6);
    })
    .await;
}

#[tokio::test]
async fn a_legacy_server_that_wants_a_url_opened_is_asked_again_once_it_is() {
    one_and_two(async |mut stage| {
        let fake = FakeMcp::legacy().tool(tool("ask")).start().await;
        let asked = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&asked);
        fake.on("tools/call", move |_| {
            let number = count.fetch_add(1, Ordering::SeqCst);
            async move {
                // Twice: it takes a while until what was opened is done with.
                if number < 2 {
                    let data = json!({"elicitations": [{
                        "mode": "url", "elicitationId": "e-1", "message": "Connect your account",
                        "url": "https://connect.example.com/e-1",
                    }]});
                    return Reply::Error(-32042, "open it first", data);
                }
                Reply::Json(complete(&json!("connected")))
            }
        });
        let mut spec = http_spec("S", &fake.url());
        spec.client_capabilities = Some(v1::ClientCapabilities {
            elicitation_url: true,
            ..Default::default()
        });
        stage.add("s", spec).await;
        let mut updates = stage.other().updates("").await;
        let id = stage.app().detach("s", "ask", "{}").await;
        let question = updates.pending().await;
        assert_eq!(question.url, "https://connect.example.com/e-1");
        assert_eq!(question.call_id, id);
        // Nothing is under way, so this one survives too.
        stage.daemon.kill9().await;
        stage.restart().await;
        let answered = stage
            .other()
            .respond(&question.id, ElicitationAction::Accept, None)
            .await;
        answered.unwrap();
        assert_eq!(said(&stage.other().wait_call(&id).await), "connected");
        assert_eq!(asked.load(Ordering::SeqCst), 3);

        // Whoever does not want to open it ends the call: the server cannot be told.
        asked.store(0, Ordering::SeqCst);
        let mut updates = stage.other().updates("").await;
        updates.snapshot().await;
        let call = start_call(stage.app(), "s");
        let question = updates.pending().await;
        let declined = stage
            .other()
            .respond(&question.id, ElicitationAction::Decline, None)
            .await;
        declined.unwrap();
        let ended = within("the end", call).await.unwrap();
        ErrorFacts::expect(ended, Code::FailedPrecondition, "INPUT_DECLINED");
    })
    .await;
}

#[tokio::test]
async fn resources_and_prompts_may_ask_too_and_wait_over_a_restart() {
    one_and_two(async |mut stage| {
        let fake = FakeMcp::modern()
            .capability("resources", json!({}))
            .capability("prompts", json!({}))
            .start()
            .await;
        let ask = || {
            let question = json!({"method": "elicitation/create", "params": form("Who?")});
            Reply::Json(json!({
                "resultType": "input_required", "requestState": "r", "inputRequests": {"q": question},
            }))
        };
        fake.reply("resources/read", move |seen| match &seen.params()["inputResponses"] {
            Value::Null => ask(),
            answers => Reply::Json(json!({
                "resultType": "complete",
                "contents": [{"uri": "test://a", "text": answers.to_string()}],
            })),
        });
        fake.reply("prompts/get", move |seen| match &seen.params()["inputResponses"] {
            Value::Null => ask(),
            answers => Reply::Json(json!({
                "resultType": "complete",
                "messages": [{"role": "user", "content": {"type": "text", "text": answers.to_string()}}],
            })),
        });
        stage
            .add("s", with_forms(http_spec("S", &fake.url())))
            .await;
        let mut updates = stage.other().updates("").await;
        let app = stage.app().clone();
        let reading = tokio::spawn(async move { app.read("s", "test://a").await });
        let read = updates.pending().await;
        let app = stage.app().clone();
        let filling = tokio::spawn(async move { app.prompt("s", "p", std::collections::HashMap::new()).await });
        let filled = updates.pending().await;
        stage.daemon.kill9().await;
        assert!(reading.await.unwrap().is_err() && filling.await.unwrap().is_err());
        stage.restart().await;
        for question in [&read, &filled] {
            stage.other().accept(&question.id, ADA).await.unwrap();
        }
        let read = stage.other().wait_call(&read.call_id).await;
        assert_eq!(read.resource_uri, "test://a");
        let Some(v1::call::Outcome::ResourceResult(result)) = &read.outcome else {
            panic!("{read:?}");
        };
        assert!(format!("{result:?}").contains("Ada"));
        let filled = stage.other().wait_call(&filled.call_id).await;
        assert_eq!(filled.prompt_name, "p");
        let Some(v1::call::Outcome::PromptResult(result)) = &filled.outcome else {
            panic!("{filled:?}");
        };
        assert!(format!("{result:?}").contains("Ada"));
    })
    .await;
}
