//! The end of calls before their result: cancellation, deadlines, silence.

use mcp_sidecar_tests::fake::stream;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::call_tool_stream_response::Event;

use crate::streams::{both_eras, calls};

/// Waits until the server knows that the call is over.
pub(crate) async fn cancelled_upstream(fake: &FakeMcp, modern: bool, call: &Seen) {
    if modern {
        fake.wait_dropped(call.index).await;
    } else {
        let id = &call.json["id"];
        fake.wait("the cancellation", |seen| {
            seen.method() == "notifications/cancelled" && seen.params()["requestId"] == *id
        })
        .await;
    }
}

/// The call with this number among its arguments, as the server got it.
async fn call_number(fake: &FakeMcp, number: usize) -> Seen {
    fake.wait("the call", |seen| seen.params()["arguments"]["n"] == number)
        .await
}

#[tokio::test]
async fn b35_an_app_that_goes_away_cancels_at_the_server() {
    both_eras(async |stage, fake, modern| {
        fake.on("tools/call", |_| {
            std::future::ready(stream(async |writer| writer.closed().await))
        });
        // Who gives up takes no call of another app along.
        let staying = stage.other().call_stream("s", "echo", r#"{"n":0}"#).await;
        let staying = staying.unwrap();
        let stays = call_number(fake, 0).await;

        let unary = tokio::spawn({
            let app = stage.app().clone();
            async move { app.call_tool("s", "echo", r#"{"n":1}"#).await }
        });
        let call = call_number(fake, 1).await;
        unary.abort();
        cancelled_upstream(fake, modern, &call).await;

        let events = stage.app().call_stream("s", "echo", r#"{"n":2}"#).await;
        let mut events = events.unwrap();
        assert!(matches!(
            events.next().await.unwrap(),
            Some(Event::Started(_))
        ));
        let second = call_number(fake, 2).await;
        drop(events);
        cancelled_upstream(fake, modern, &second).await;
        stage.app().calls_in_flight("s", 1).await;
        drop(staying);
        cancelled_upstream(fake, modern, &stays).await;

        // The next call is not disturbed.
        fake.reset("tools/call");
        for outcome in calls(stage).await {
            outcome.unwrap();
        }
    })
    .await;
}

#[tokio::test]
async fn b35_a_deadline_ends_the_call_here_and_there() {
    both_eras(async |stage, fake, modern| {
        fake.reply("tools/call", |_| Reply::Hang);
        let ended = stage.everyone(async |app, number| {
            let (one, two) = (2 * number, 2 * number + 1);
            let request = v1::CallToolRequest {
                call: Some(app.call("s", "echo", &format!(r#"{{"n":{one}}}"#))),
            };
            // On a connection of its own, where nobody else looks at the deadline.
            let bound = Duration::from_millis(300);
            let status = stage.daemon.call_within(request, bound).await;
            let facts = ErrorFacts::of(&status.unwrap_err());
            assert_eq!(facts.code, Code::DeadlineExceeded, "{facts:?}");
            let call = call_number(fake, one).await;
            cancelled_upstream(fake, modern, &call).await;

            // The call's own bound works the same and says whose it was.
            let mut bounded = app.call("s", "echo", &format!(r#"{{"n":{two}}}"#));
            bounded.timeout = Some(millis(200));
            let status = app.call_with(bounded).await.unwrap_err();
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
            let call = call_number(fake, two).await;
            cancelled_upstream(fake, modern, &call).await;
        });
        ended.await;
        stage.other().calls_in_flight("s", 0).await;
    })
    .await;
}

#[tokio::test]
async fn b14_progress_keeps_a_call_alive_and_silence_ends_it() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        fake.reply("tools/call", |seen| {
            let token = seen.params()["_meta"]["progressToken"].clone();
            let mut steps = Vec::new();
            for step in 1..=6 {
                steps.push(Step::Pause(Duration::from_millis(150)));
                steps.push(Step::Message(json!({
                    "jsonrpc": "2.0", "method": "notifications/progress",
                    "params": {"progressToken": token, "progress": step},
                })));
            }
            if seen.params()["arguments"]["end"] == true {
                steps.push(Step::Result(
                    json!({"resultType": "complete", "content": []}),
                ));
            }
            steps.push(Step::Hang);
            Reply::Sse(steps)
        });
        stage.add_http(&fake.url()).await;
        let bounded = |app: &Clients, arguments: &str| v1::ToolCall {
            idle_timeout: Some(millis(600)),
            ..app.call("s", "echo", arguments)
        };
        let calls = stage.everyone(async |app, _| {
            let lively = app.stream_with(bounded(&app, r#"{"end":true}"#)).await;
            let silent = app.stream_with(bounded(&app, r#"{"end":false}"#)).await;
            let (lively, silent) =
                tokio::join!(lively.unwrap().collect(), silent.unwrap().collect());
            assert!(matches!(lively.unwrap().last(), Some(Event::Result(_))));
            let status = silent.unwrap_err();
            assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
        });
        calls.await;
    })
    .await;
}

#[tokio::test]
async fn b41_an_app_that_cancels_a_lot_keeps_its_connection() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        fake.reply(
            "tools/call",
            |seen| match seen.params()["arguments"]["hang"].as_bool() {
                Some(true) => Reply::Hang,
                _ => Reply::Default,
            },
        );
        let server = stage.add_http(&fake.url()).await;
        // Streams and slow calls of the app that cancels and of the other one.
        let mut open = Vec::new();
        for app in [stage.app(), stage.other()] {
            let mut updates = app.updates("").await;
            updates.snapshot().await;
            let slow = app
                .call_stream(&server.id, "echo", r#"{"hang":true}"#)
                .await;
            let mut slow = slow.unwrap();
            assert!(matches!(
                slow.next().await.unwrap(),
                Some(Event::Started(_))
            ));
            open.push((updates, slow));
        }
        let app = stage.app();
        for _ in 0..10 {
            let burst = (0..500).map(|_| {
                let call = v1::CallToolRequest {
                    call: Some(app.call(&server.id, "echo", r#"{"hang":true}"#)),
                };
                let mut tools = app.tools();
                // Cancelled by dropping, some before and some after they reach the daemon.
                tokio::time::timeout(Duration::from_millis(20), async move {
                    tools.call_tool(call).await
                })
            });
            futures_util::future::join_all(burst).await;
        }
        stage.other().calls_in_flight(&server.id, 2).await;
        for app in &stage.apps {
            app.call_tool(&server.id, "echo", "{}").await.unwrap();
        }
        app.remove(&server.id).await.unwrap();
        for (mut updates, mut slow) in open {
            updates.deleted(&server.id).await;
            let end = slow
                .next()
                .await
                .expect_err("the server of the call is gone");
            assert_ne!(
                ErrorFacts::of(&end).reason,
                "",
                "the connection was lost: {end:?}"
            );
        }
    })
    .await;
}

#[tokio::test]
async fn b35_a_process_hears_of_a_cancelled_call() {
    for modern in [true, false] {
        one_and_two(async |stage| {
            let scripts = tempfile::tempdir().unwrap();
            let record = scripts.path().join("record");
            let script = Script {
                modern,
                faults: vec![StdioFault::Record(record.to_str().unwrap().to_owned())],
            };
            let server = stage.add("s", script.spec("s", scripts.path()).await).await;
            let heard = async |what: &str, wanted: &dyn Fn(&Value) -> bool| {
                // A process cannot tell the test that something arrived.
                eventually(what, PATIENCE, async || {
                    let text = std::fs::read_to_string(&record).ok()?;
                    let mut lines = text
                        .lines()
                        .map(|line| serde_json::from_str::<Value>(line).unwrap());
                    lines.find(|message| wanted(message))
                })
                .await
            };
            let mut open = Vec::new();
            for (number, app) in stage.apps.iter().enumerate() {
                let own = format!(r#"{{"n":{number}}}"#);
                let mut call = app.call_stream(&server.id, "hang", &own).await.unwrap();
                assert!(matches!(
                    call.next().await.unwrap(),
                    Some(Event::Started(_))
                ));
                let sent = heard("the call", &|message| {
                    message["params"]["arguments"]["n"] == number
                })
                .await;
                open.push((call, sent["id"].clone()));
            }
            // One after the other: each time exactly the one that was given up.
            let all = open.len();
            for (ended, (call, id)) in open.into_iter().enumerate() {
                drop(call);
                heard("the cancellation", &|message| {
                    message["method"] == "notifications/cancelled"
                        && message["params"]["requestId"] == id
                })
                .await;
                let left = all - ended - 1;
                stage.other().calls_in_flight(&server.id, left).await;
            }
            stage
                .everyone(async |app, _| app.call_tool("s", "echo", "{}").await.unwrap())
                .await;
            let text = std::fs::read_to_string(&record).unwrap();
            let cancelled = text.matches("notifications/cancelled").count();
            assert_eq!(cancelled, all, "{text}");
        })
        .await;
    }
}
