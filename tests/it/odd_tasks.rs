//! Tasks of servers that are odd, hostile, moved or taken away: nothing is begun twice, told to the wrong server or left
//! behind.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use mcp_sidecar_tests::fake::{SseWriter, stream};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::{ElicitationState, Isolation};
use tokio::task::JoinHandle;
use tonic::Status;

use crate::calls::app_with;
use crate::legacy_tasks::legacy_job;
use crate::questions::with_forms;
use crate::tasks::{
    ByHand, ID, asking, completed, created, goes_through, job, question, seen_count, task, working,
};

pub(crate) type Call = JoinHandle<Result<v1::ToolResult, Status>>;

/// A call of the tool `job` at the server `s`.
pub(crate) fn begin(app: &Clients) -> Call {
    let app = app.clone();
    tokio::spawn(async move { app.call_tool("s", "job", "{}").await })
}

/// A server whose tool runs as a task for ever, each call as one of its own.
async fn endless() -> FakeMcp {
    let fake = job([working()]).await;
    let count = Mutex::new(0);
    fake.reply("tools/call", move |_| {
        let mut count = count.lock().unwrap();
        *count += 1;
        let mut seed = created(&working());
        seed["taskId"] = json!(format!("{ID} {count}"));
        Reply::Json(seed)
    });
    fake.reply("tasks/get", |seen| {
        let mut state = working();
        state["taskId"] = seen.params()["taskId"].clone();
        Reply::Json(state)
    });
    fake
}

/// Waits until that many tasks were looked at.
async fn tasks_run(fake: &FakeMcp, count: usize) {
    eventually("the tasks", PATIENCE, async || {
        (about(fake, "tasks/get").len() == count).then_some(())
    })
    .await;
}

/// Waits until that many tasks were cancelled.
async fn tasks_cancelled(fake: &FakeMcp, count: usize) {
    eventually("the cancellations", PATIENCE, async || {
        (about(fake, "tasks/cancel").len() == count).then_some(())
    })
    .await;
}

/// The tasks that requests of a method were about.
fn about(fake: &FakeMcp, method: &str) -> BTreeSet<String> {
    let requests = fake.seen_of(method).into_iter();
    requests
        .map(|seen| seen.params()["taskId"].to_string())
        .collect()
}

pub(crate) async fn end(call: Call) -> Result<v1::ToolResult, Status> {
    within("the end of the call", call).await.unwrap()
}

#[tokio::test]
async fn a_task_is_not_begun_again_when_its_session_is_gone() {
    // The session is gone when the outcome is asked for. The next one knows the task, or does not.
    for known in [true, false] {
        let fake = legacy_job().await;
        let server = fake.clone();
        let asked = Mutex::new(0);
        fake.reply("tasks/result", move |_| {
            let mut asked = asked.lock().unwrap();
            *asked += 1;
            if *asked == 1 {
                server.end_sessions();
                if !known {
                    server.reply("tasks/get", |_| {
                        Reply::Error(-32602, "no such task", Value::Null)
                    });
                }
                return Reply::Raw(404, Vec::new(), "".into());
            }
            Reply::Json(json!({"content": [{"type": "text", "text": "done"}]}))
        });
        let (_daemon, app) = app_with(&fake).await;
        let outcome = app.call_tool("s", "job", "{}").await;
        assert_eq!(fake.seen_of("tools/call").len(), 1, "known: {known}");
        if known {
            assert_eq!(text_of(&outcome.unwrap()), "done");
        } else {
            ErrorFacts::expect(outcome, Code::Unavailable, "OUTCOME_UNKNOWN");
        }
    }
}

/// How a server is taken away from its task.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    Removed,
    Disconnected,
    Moved,
}

#[tokio::test]
async fn a_task_is_cancelled_where_it_runs_when_its_server_is_taken_away() {
    for way in [Way::Removed, Way::Disconnected, Way::Moved] {
        one_and_two(async |stage| {
            let (here, elsewhere) = (endless().await, job([completed()]).await);
            stage.add_http(&here.url()).await;
            let calls: Vec<_> = stage.apps.iter().map(begin).collect();
            tasks_run(&here, calls.len()).await;
            let app = stage.other();
            match way {
                Way::Removed => app.remove("s").await.unwrap(),
                Way::Disconnected => app.disconnect_server("s").await.unwrap(),
                Way::Moved => {
                    let spec = http_spec("S", &elsewhere.url());
                    app.update("s", spec, &["http.url"]).await.unwrap();
                }
            }
            let told = calls.len();
            for call in calls {
                ErrorFacts::expect(end(call).await, Code::Unavailable, "OUTCOME_UNKNOWN");
            }
            tasks_cancelled(&here, told).await;
            if way == Way::Moved {
                app.wait_for("s", ConnectionState::Ready).await;
            }
            // A handle may be all that protects a task.
            let seen = elsewhere.seen();
            assert!(seen.iter().all(|seen| !seen.text().contains(ID)), "{way:?}");
        })
        .await;
    }
}

#[tokio::test]
async fn a_task_does_not_follow_its_server_elsewhere() {
    // It was lost first, and moved while it was away.
    let (here, elsewhere) = (job([working()]).await, job([completed()]).await);
    let daemon = TestDaemon::builder()
        .set("reconnect.liveness_interval", "200ms")
        .start()
        .await;
    let app = daemon.clients().await;
    let mut spec = http_spec("S", &here.url());
    spec.retry = Some(v1::RetryPolicy {
        max_attempts: Some(50),
        base_delay: Some(millis(2000)),
        max_delay: Some(millis(2000)),
    });
    app.add("s", spec).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let call = begin(&app);
    seen_count(&here, "tasks/get", 2).await;
    here.stop().await;
    app.wait_for("s", ConnectionState::Connecting).await;
    app.update("s", http_spec("S", &elsewhere.url()), &["http.url"])
        .await
        .unwrap();
    ErrorFacts::expect(end(call).await, Code::Unavailable, "OUTCOME_UNKNOWN");
    app.wait_for("s", ConnectionState::Ready).await;
    assert!(elsewhere.seen_of("tasks/get").is_empty());
}

#[tokio::test]
async fn an_app_that_goes_away_leaves_no_task_behind() {
    for isolation in [Isolation::Shared, Isolation::PerConnection] {
        let fake = endless().await;
        let daemon = TestDaemon::start().await;
        let app = daemon.clients().await;
        let mut spec = http_spec("S", &fake.url());
        spec.isolation = isolation.into();
        app.add("s", spec).await.unwrap();
        app.wait_for("s", ConnectionState::Ready).await;
        let guest = daemon.clients().await;
        let calls: Vec<_> = (0..20).map(|_| begin(&guest)).collect();
        tasks_run(&fake, 20).await;
        for call in calls {
            call.abort();
        }
        drop(guest);
        tasks_cancelled(&fake, 20).await;
    }
}

#[tokio::test]
async fn a_daemon_that_stops_cancels_its_tasks() {
    let fake = endless().await;
    let mut daemon = TestDaemon::builder()
        .set("timeouts.drain", "300ms")
        .start()
        .await;
    let app = daemon.clients().await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let calls: Vec<_> = (0..5).map(|_| begin(&app)).collect();
    tasks_run(&fake, 5).await;
    assert!(daemon.terminate().await.success());
    for call in calls {
        end(call).await.unwrap_err();
    }
    assert_eq!(about(&fake, "tasks/cancel").len(), 5);
}

#[tokio::test]
async fn a_server_that_takes_no_cancellation_delays_nobody_for_long() {
    let fake = job([working()]).await;
    fake.reply("tasks/cancel", |_| Reply::Hang);
    let daemon = TestDaemon::builder()
        .set("timeouts.close", "300ms")
        .start()
        .await;
    let app = daemon.clients().await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let call = begin(&app);
    fake.wait_method("tasks/get").await;
    let begun = Instant::now();
    app.remove("s").await.unwrap();
    assert!(
        begun.elapsed() < Duration::from_secs(3),
        "{:?}",
        begun.elapsed()
    );
    ErrorFacts::expect(end(call).await, Code::Unavailable, "OUTCOME_UNKNOWN");
}

#[tokio::test]
async fn a_question_that_comes_back_unanswered_is_asked_again() {
    // The states of a task may be told by several machines, one of which lags behind.
    one_and_two(async |stage| {
        let (fake, hand) = ByHand::start(asking(&["name"])).await;
        stage
            .add("s", with_forms(http_spec("S", &fake.url())))
            .await;
        let mut updates = stage.other().updates("").await;
        updates.snapshot().await;
        let call = begin(stage.app());
        let first = updates.pending().await;
        hand.set(working());
        assert_eq!(updates.end_of(&first.id).await, ElicitationState::Cancelled);
        hand.set(asking(&["name"]));
        let again = updates.pending().await;
        assert_eq!(again.call_id, first.call_id);
        stage
            .other()
            .accept(&again.id, r#"{"name":"Ada"}"#)
            .await
            .unwrap();
        fake.wait_method("tasks/update").await;
        // Once the server has the answer, nobody is asked again, whatever it shows.
        hand.set(working());
        let looks = fake.seen_of("tasks/get").len();
        seen_count(&fake, "tasks/get", looks + 2).await;
        hand.set(asking(&["name"]));
        let looks = fake.seen_of("tasks/get").len();
        seen_count(&fake, "tasks/get", looks + 3).await;
        hand.set(completed());
        assert_eq!(text_of(&end(call).await.unwrap()), "done");
        assert_eq!(fake.seen_of("tasks/update").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn questions_that_come_and_go_are_bounded() {
    let daemon = TestDaemon::builder().set("limits.rounds", 3).start().await;
    let app = daemon.clients().await;
    let fake = job([working()]).await;
    let looks = Mutex::new(0);
    fake.reply("tasks/get", move |_| {
        let mut looks = looks.lock().unwrap();
        *looks += 1;
        Reply::Json(if *looks % 2 == 0 {
            asking(&["name"])
        } else {
            working()
        })
    });
    app.add("s", with_forms(http_spec("S", &fake.url())))
        .await
        .unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let facts = ErrorFacts::expect(end(begin(&app)).await, Code::Unknown, "UPSTREAM_PROTOCOL");
    assert!(facts.message.contains("limits.rounds"), "{facts:?}");
    fake.wait_method("tasks/cancel").await;
}

#[tokio::test]
async fn a_flood_of_requests_for_input_costs_little() {
    // In a task, and in a round of an ordinary call.
    let requests = (0..50_000).map(|key| (key.to_string(), json!({"method": "roots/list"})));
    let requests = Value::Object(requests.collect());
    let flood = task("input_required", &json!({"inputRequests": requests})).to_string();
    let round = json!({"resultType": "input_required", "inputRequests": requests}).to_string();
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = job([working()]).await;
    fake.reply("tasks/get", move |_| Reply::Text(flood.clone()));
    let mut spec = http_spec("S", &fake.url());
    spec.roots = vec![v1::Root {
        uri: "file:///r".to_owned(),
        ..Default::default()
    }];
    app.add("s", spec).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let facts = ErrorFacts::expect(end(begin(&app)).await, Code::Unavailable, "OUTCOME_UNKNOWN");
    assert!(facts.message.contains("50000"), "{facts:?}");
    fake.wait_method("tasks/cancel").await;
    fake.reply("tools/call", move |_| Reply::Text(round.clone()));
    let facts = ErrorFacts::expect(end(begin(&app)).await, Code::Unknown, "UPSTREAM_PROTOCOL");
    assert!(facts.message.contains("50000"), "{facts:?}");
}

#[tokio::test]
async fn an_answer_to_a_task_names_its_task() {
    // MCP 2025-11-25 basic/utilities/tasks, "Associating Task-Related Messages".
    let fake = legacy_job().await;
    let related = json!({"io.modelcontextprotocol/related-task": {"taskId": ID}, "x": 1});
    let server = fake.clone();
    let meta = related.clone();
    fake.on("tasks/result", move |_| {
        let (server, meta) = (server.clone(), meta.clone());
        async move {
            stream(async move |writer: SseWriter| {
                for method in ["roots/list", "elicitation/create"] {
                    let mut ask = question("name");
                    ask["method"] = json!(method);
                    ask["jsonrpc"] = json!("2.0");
                    ask["id"] = json!(method);
                    ask["params"]["_meta"] = meta.clone();
                    writer.message(&ask).await;
                    let id = json!(method);
                    server.wait("the answer", |seen| seen.answers(&id)).await;
                }
                writer
                    .result(json!({"content": [{"type": "text", "text": "done"}]}))
                    .await;
            })
        }
    });
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let mut spec = with_forms(http_spec("S", &fake.url()));
    spec.roots = vec![v1::Root {
        uri: "file:///r".to_owned(),
        ..Default::default()
    }];
    app.add("s", spec).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let mut updates = app.updates("").await;
    updates.snapshot().await;
    let call = begin(&app);
    let question = updates.pending().await;
    app.accept(&question.id, r#"{"name":"Ada"}"#).await.unwrap();
    assert_eq!(text_of(&end(call).await.unwrap()), "done");
    for method in ["roots/list", "elicitation/create"] {
        let id = json!(method);
        let answer = fake.wait("the answer", |seen| seen.answers(&id)).await;
        let meta = &answer.json["result"]["_meta"];
        assert_eq!(
            *meta,
            json!({"io.modelcontextprotocol/related-task": {"taskId": ID}}),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn odd_handles_and_pauses_are_taken_as_they_are() {
    let fake = job([completed()]).await;
    let (_daemon, app) = app_with(&fake).await;
    let ids = [
        String::new(),
        "\u{0}\r\nX-Evil: 1\u{7f}".to_owned(),
        "=?base64?QQ==?=".to_owned(),
        "🦀".repeat(100),
        " lead and trail ".to_owned(),
        "x".repeat(8_000),
    ];
    for id in ids {
        for pause in [json!(0), json!(-5), json!(1e300), json!("soon"), json!(0.5)] {
            let seed = json!({"resultType": "task", "taskId": id, "status": "working", "pollIntervalMs": 1});
            fake.reply("tools/call", move |_| Reply::Json(seed.clone()));
            let mut state = completed();
            state["taskId"] = json!(id);
            let mut first = working();
            first["taskId"] = json!(id);
            first["pollIntervalMs"] = pause.clone();
            let short = pause
                .as_f64()
                .is_some_and(|pause| (0.0..1.0).contains(&pause));
            goes_through(
                &fake,
                if short {
                    vec![first, state]
                } else {
                    vec![state]
                },
            );
            let seen = fake.seen().len();
            assert_eq!(
                text_of(&end(begin(&app)).await.unwrap()),
                "done",
                "{pause} {id:?}"
            );
            for look in fake.seen().iter().skip(seen) {
                assert!(look.headers.get("x-evil").is_none());
                if look.method() == "tasks/get" {
                    assert_eq!(look.params()["taskId"], id);
                }
            }
        }
    }
}

#[tokio::test]
async fn a_handle_beyond_all_measure_is_none() {
    let fake = job([completed()]).await;
    let (_daemon, app) = app_with(&fake).await;
    let seed = created(&task("working", &json!({"taskId": "x".repeat(1 << 20)})));
    fake.reply("tools/call", move |_| Reply::Json(seed.clone()));
    let facts = ErrorFacts::expect(end(begin(&app)).await, Code::Unknown, "UPSTREAM_PROTOCOL");
    assert!(facts.message.len() < 1_000, "{}", facts.message.len());
}

#[tokio::test]
async fn an_outcome_that_is_too_large_is_told_as_such() {
    let daemon = TestDaemon::builder()
        .set("limits.message_bytes", 100_000)
        .start()
        .await;
    let app = daemon.clients().await;
    let text = "x".repeat(200_000);
    let done = json!({"content": [{"type": "text", "text": text}]});
    let fake = job([task("completed", &json!({"result": done}))]).await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let call = end(begin(&app)).await;
    fake.reply("tools/call", move |_| Reply::Json(done.clone()));
    let plain = end(begin(&app)).await;
    assert_eq!(
        ErrorFacts::of(&call.unwrap_err()).reason,
        ErrorFacts::of(&plain.unwrap_err()).reason
    );
}

#[tokio::test]
async fn a_state_that_calls_itself_a_task_is_a_state() {
    // As in the examples of SEP-2663.
    let fake = job([created(&working()), created(&completed())]).await;
    let (_daemon, app) = app_with(&fake).await;
    assert_eq!(text_of(&end(begin(&app)).await.unwrap()), "done");
}

#[tokio::test]
async fn who_is_asked_too_often_says_so_and_is_asked_again() {
    for status in [429, 503] {
        let fake = job([working()]).await;
        let looks = Arc::new(Mutex::new(0));
        fake.reply("tasks/get", move |_| {
            let mut looks = looks.lock().unwrap();
            *looks += 1;
            match *looks {
                1 | 2 => Reply::Raw(status, vec![], "slow down".into()),
                _ => Reply::Json(completed()),
            }
        });
        let (_daemon, app) = app_with(&fake).await;
        assert_eq!(text_of(&end(begin(&app)).await.unwrap()), "done");
    }
}
