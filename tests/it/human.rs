//! Questions that outlive what is around them (case B34). Elsewhere: `questions` has how they are asked and answered.

use mcp_sidecar_tests::fake::{SseWriter, stream};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::{ElicitationAction, ElicitationState};
use rustix::process::{Pid, Signal, kill_process};

use crate::questions::{Way, ask, asking, result_of, start_call, with_forms};

#[tokio::test]
async fn b34_a_human_may_take_longer_than_the_call_may() {
    for way in [Way::Result, Way::CallStream, Way::PushStream] {
        one_and_two(async |stage| {
            let fake = asking(way).await;
            stage
                .add("s", with_forms(http_spec("S", &fake.url())))
                .await;
            let mut updates = stage.other().updates("").await;
            let call = v1::ToolCall {
                timeout: Some(millis(600)),
                idle_timeout: Some(millis(600)),
                ..stage.app().call("s", "ask", "{}")
            };
            let app = stage.app().clone();
            let call = tokio::spawn(async move { app.call_with(call).await });
            let question = updates.pending().await;
            // The human's time is what this is about.
            tokio::time::sleep(Duration::from_millis(1200)).await;
            let content = r#"{"name":"Ada"}"#;
            stage.other().accept(&question.id, content).await.unwrap();
            assert_eq!(result_of(call).await["action"], "accept", "{way:?}");
            stage.app().calls_in_flight("s", 0).await;
        })
        .await;
    }
}

#[tokio::test]
async fn b34_the_first_message_of_a_server_may_be_a_question() {
    // It comes right behind `notifications/initialized`, when no app is there: it waits until one is.
    for number in 0..3 {
        one_and_two(async |stage| {
            let builder = FakeMcp::legacy().tool(tool("echo"));
            let fake = match number {
                0 => builder.start().await,
                1 => builder.http_sse().start().await,
                _ => builder.lines().start().await,
            };
            if number == 0 {
                fake.reply("GET", |_| {
                    stream(async |writer: SseWriter| {
                        writer.message(&ask("q-1")).await;
                        writer.closed().await;
                    })
                });
            } else {
                fake.reply("notifications/initialized", |_| {
                    Reply::Sse(vec![Step::Message(ask("q-1"))])
                });
            }
            let spec = match number {
                2 => fake.as_child("S").await,
                _ => http_spec("S", &fake.url()),
            };
            let guest = stage.daemon.clients().await;
            let request = v1::AddServerRequest {
                server_id: "s".to_owned(),
                spec: Some(with_forms(spec)),
                wait_timeout: Some(millis(0)),
                ..Default::default()
            };
            guest.add_with(request).await.unwrap();
            drop(guest);
            let mut updates = stage.other().updates("").await;
            let question = updates.pending().await;
            assert_eq!(question.call_id, "", "it belongs to no call");
            let content = r#"{"name":"Ada"}"#;
            stage.other().accept(&question.id, content).await.unwrap();
            let answer = fake.wait("the answer", |seen| seen.answers(&json!("q-1")));
            assert_eq!(answer.await.json["result"]["content"]["name"], "Ada");
            for app in &stage.apps {
                app.wait_for("s", ConnectionState::Ready).await;
                app.call_tool("s", "echo", "{}").await.unwrap();
            }
        })
        .await;
    }
}

#[tokio::test]
async fn b34_the_question_of_a_call_ends_with_the_app_that_made_it_and_no_other_does() {
    // The recipe wants another app to answer when the app that called is killed. A call belongs to its app and is
    // cancelled with it (case B35), and its question with the call; others see that at once. What can still be answered
    // by another app is a question that belongs to no call, as here with two calls under way.
    for way in [Way::Result, Way::CallStream] {
        one_and_two(async |stage| {
            let fake = asking(way).await;
            stage
                .add("s", with_forms(http_spec("S", &fake.url())))
                .await;
            let mut updates = stage.other().updates("").await;
            let guest = stage.daemon.clients().await;
            let call = start_call(&guest, "s");
            let question = updates.pending().await;
            call.abort();
            drop(guest);
            let end = updates.end_of(&question.id).await;
            assert_eq!(end, ElicitationState::Cancelled, "{way:?}");
            let late = stage
                .other()
                .accept(&question.id, r#"{"name":"Ada"}"#)
                .await;
            ErrorFacts::expect(late, Code::FailedPrecondition, "ALREADY_RESOLVED");
            stage.other().calls_in_flight("s", 0).await;
        })
        .await;
    }
    one_and_two(async |stage| {
        let fake = FakeMcp::legacy().tool(tool("ask")).start().await;
        let server = fake.clone();
        fake.on("tools/call", move |_| {
            let server = server.clone();
            std::future::ready(stream(async move |writer: SseWriter| {
                tokio::select! {
                    answer = server.wait("the answer", |seen| seen.answers(&json!("q-1"))) => {
                        let text = answer.json["result"].to_string();
                        let content = json!([{"type": "text", "text": text}]);
                        writer.result(json!({"content": content})).await;
                    }
                    () = writer.closed() => {}
                }
            }))
        });
        stage
            .add("s", with_forms(http_spec("S", &fake.url())))
            .await;
        let mut updates = stage.other().updates("").await;
        let guest = stage.daemon.clients().await;
        let doomed = start_call(&guest, "s");
        let kept = start_call(stage.app(), "s");
        stage.other().calls_in_flight("s", 2).await;
        fake.push(ask("q-1")).await;
        let question = updates.pending().await;
        doomed.abort();
        drop(guest);
        stage.other().calls_in_flight("s", 1).await;
        let content = r#"{"name":"Ada"}"#;
        stage.other().accept(&question.id, content).await.unwrap();
        assert_eq!(result_of(kept).await["content"]["name"], "Ada");
    })
    .await;
}

#[tokio::test]
async fn b34_a_server_that_is_killed_voids_its_question() {
    let builder = TestDaemon::builder().set("reconnect.liveness_interval", "300ms");
    // A server of the modern era holds nothing of a call that it has answered with a question: `outliving` has that.
    for way in [None, Some(Way::CallStream), Some(Way::PushStream)] {
        one_and_two_with(builder.clone(), async |stage| {
            let dir = tempfile::tempdir().unwrap();
            let pids = dir.path().join("pids");
            let mut fake = None;
            let spec = if let Some(way) = way {
                let server = asking(way).await;
                let spec = http_spec("S", &server.url());
                fake = Some(server);
                spec
            } else {
                let script = Script {
                    modern: false,
                    faults: vec![StdioFault::Register(pids.to_str().unwrap().to_owned())],
                };
                script.spec("s", dir.path()).await
            };
            stage.add("s", with_forms(spec)).await;
            let mut all = Vec::new();
            for app in &stage.apps {
                all.push(app.updates("").await);
            }
            let call = start_call(stage.app(), "s");
            let mut question = None;
            for updates in &mut all {
                question = Some(updates.pending().await);
            }
            let question = question.unwrap();
            if let Some(fake) = fake.take() {
                fake.stop().await;
            } else {
                let text = std::fs::read_to_string(&pids).unwrap();
                let pid = text.lines().next().unwrap().trim().parse().unwrap();
                kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
            }
            for updates in &mut all {
                let end = updates.end_of(&question.id).await;
                assert_eq!(end, ElicitationState::Void, "{way:?}");
            }
            let late = stage
                .other()
                .respond(&question.id, ElicitationAction::Decline, None)
                .await;
            ErrorFacts::expect(late, Code::FailedPrecondition, "ALREADY_RESOLVED");
            let ended = within("the end of the call", call).await.unwrap();
            assert_eq!(ended.unwrap_err().code(), Code::Unavailable, "{way:?}");
        })
        .await;
    }
}
