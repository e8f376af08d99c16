//! Streams that end before the answer, and how they are resumed.

use std::time::Instant;

use http::Method;
use mcp_sidecar_tests::fake::stream;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::call_tool_stream_response::Event;

/// An answer that does not come is reported within this time.
const AT_ONCE: Duration = Duration::from_secs(1);
/// The result of a call, in both eras.
pub(crate) const DONE: &str =
    r#"{"resultType":"complete","content":[{"type":"text","text":"dé€😀"}]}"#;

pub(crate) fn answer(seen: &Seen) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":{},"result":{DONE}}}"#,
        seen.json["id"]
    )
}

fn progress(seen: &Seen, step: u32) -> Value {
    let token = &seen.params()["_meta"]["progressToken"];
    json!({
        "jsonrpc": "2.0", "method": "notifications/progress",
        "params": {"progressToken": token, "progress": step},
    })
}

/// Every app calls at the same time.
pub(crate) async fn calls(stage: &Stage) -> Vec<Result<v1::ToolResult, tonic::Status>> {
    let call = async |app: Clients, _| app.call_tool("s", "echo", "{}").await;
    within("the end of the calls", stage.everyone(call)).await
}

pub(crate) async fn all_done(stage: &Stage, what: &str) {
    for outcome in calls(stage).await {
        let result = outcome.unwrap_or_else(|status| panic!("{what}: {status:?}"));
        assert_eq!(text_of(&result), "dé€😀", "{what}");
    }
}

/// Every app calls, gets no answer, and hears of it at once.
pub(crate) async fn all_unknown(stage: &Stage, what: &str) {
    let start = Instant::now();
    for outcome in calls(stage).await {
        let facts = ErrorFacts::of(&outcome.expect_err(what));
        assert_eq!(facts.reason, "OUTCOME_UNKNOWN", "{what}: {facts:?}");
        assert_eq!(facts.code, Code::Unavailable, "{what}: {facts:?}");
    }
    assert!(start.elapsed() < AT_ONCE, "{what}: {:?}", start.elapsed());
}

/// The story in both eras, with one and with two apps, and a server `s` that offers `echo`.
pub(crate) async fn both_eras(story: impl AsyncFn(&Stage, &FakeMcp, bool)) {
    for modern in [true, false] {
        one_and_two(async |stage| {
            let fake = FakeMcp::echo(modern).await;
            stage.add_http(&fake.url()).await;
            story(&stage, &fake, modern).await;
        })
        .await;
    }
}

#[tokio::test]
async fn b14_a_stream_that_ends_without_an_answer_ends_the_call() {
    // Also for tools that say that they are idempotent, unless the operator allows more: see `repeats`.
    both_eras(async |stage, fake, _| {
        for reset in [false, true] {
            let before = fake.seen_of("tools/call").len();
            fake.reply("tools/call", move |seen| {
                let mut steps = vec![Step::Message(progress(seen, 1))];
                steps.extend(reset.then_some(Step::Reset));
                Reply::Sse(steps)
            });
            all_unknown(stage, if reset { "reset" } else { "closed" }).await;
            let sent = fake.seen_of("tools/call").len() - before;
            assert_eq!(sent, stage.apps.len(), "nothing is sent twice");
        }
        fake.reply("tools/call", |seen| {
            Reply::Sse(vec![Step::Message(progress(seen, 1)), Step::Hang])
        });
        let stalled = stage.everyone(async |app, _| {
            let mut call = app.call("s", "echo", "{}");
            call.idle_timeout = Some(millis(200));
            app.call_with(call).await
        });
        for outcome in stalled.await {
            ErrorFacts::expect(outcome, Code::DeadlineExceeded, "UPSTREAM_TIMEOUT");
        }
    })
    .await;
}

/// Resumes calls at a legacy server: `resume` answers GET requests behind an event, by the place of the request in
/// their order, with what to send before the result.
fn resumable(
    fake: &FakeMcp,
    first: &'static str,
    resume: impl Fn(usize) -> Reply + Send + Sync + 'static,
) {
    fake.reply("tools/call", move |seen| {
        let event = first.replace("CALL", &seen.json["id"].to_string());
        Reply::Sse(vec![Step::Bytes(event.into())])
    });
    let counts = std::sync::Mutex::new(std::collections::HashMap::<String, usize>::new());
    fake.reply("GET", move |seen| {
        let event = seen.header("last-event-id").to_owned();
        let Some((id, _)) = event.split_once('-') else {
            return Reply::Default;
        };
        let mut counts = counts.lock().unwrap();
        let count = counts.entry(id.to_owned()).or_default();
        *count += 1;
        match resume(*count) {
            Reply::Json(_) => {
                let result = format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{DONE}}}"#);
                Reply::Sse(vec![Step::Bytes(format!("data: {result}\n\n").into())])
            }
            Reply::Sse(steps) => Reply::Sse(
                steps
                    .into_iter()
                    .map(|step| match step {
                        Step::Bytes(bytes) => {
                            let text = String::from_utf8(bytes.to_vec()).unwrap();
                            Step::Bytes(text.replace("CALL", id).into())
                        }
                        other => other,
                    })
                    .collect(),
            ),
            other => other,
        }
    });
}

/// The events behind which streams were resumed, without the calls they belong to.
fn resumed_behind(fake: &FakeMcp) -> Vec<String> {
    let all = fake.seen_http(&Method::GET);
    let events = all.iter().filter_map(|seen| {
        let (_, event) = seen.header("last-event-id").split_once('-')?;
        Some(event.to_owned())
    });
    events.collect()
}

#[tokio::test]
async fn b14_a_legacy_stream_is_resumed_behind_its_last_event() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(false).await;
        stage.add_http(&fake.url()).await;
        let bytes = |text: &'static str| Step::Bytes(text.into());
        // The event that breaks off does not count; what it held comes again.
        resumable(&fake, "id: CALL-1\nretry: 10\ndata:\n\n", move |count| match count {
            1 => Reply::Sse(vec![bytes(
                "id: CALL-2\ndata: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/progress\",\"params\":{\"progressToken\":CALL,\"progress\":1}}\n\nid: CALL-3\ndata: {",
            )]),
            2 => Reply::Sse(vec![Step::Reset]),
            3 => Reply::Raw(503, Vec::new(), "later".into()),
            _ => Reply::Json(Value::Null),
        });
        let all = stage.everyone(async |app, _| {
            let events = app.call_stream("s", "echo", "{}").await.unwrap();
            events.collect().await.unwrap()
        });
        for events in all.await {
            let progress = events.iter().filter(|event| matches!(event, Event::Progress(_)));
            assert_eq!(progress.count(), 1, "{events:?}");
            assert!(matches!(events.last(), Some(Event::Result(_))), "{events:?}");
        }
        let behind = resumed_behind(&fake);
        for (event, count) in [("1", 1), ("2", 3)] {
            let found = behind.iter().filter(|one| *one == event).count();
            assert_eq!(found, count * stage.apps.len(), "{behind:?}");
        }
        assert_eq!(behind.len(), 4 * stage.apps.len(), "{behind:?}");
        assert_eq!(fake.seen_of("tools/call").len(), stage.apps.len());
    })
    .await;
}

#[tokio::test]
async fn b14_resuming_in_vain_has_an_end() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(false).await;
        stage.add_http(&fake.url()).await;
        let first = "id: CALL-1\nretry: 1\ndata:\n\n";
        resumable(&fake, first, |_| Reply::Sse(Vec::new()));
        all_unknown(&stage, "nothing comes").await;
        let tried = resumed_behind(&fake).len();
        assert!((2..=10).contains(&(tried / stage.apps.len())), "{tried}");
        for status in [400, 405] {
            resumable(&fake, first, move |_| {
                Reply::Raw(status, Vec::new(), "no".into())
            });
            let before = resumed_behind(&fake).len();
            all_unknown(&stage, "refused").await;
            assert_eq!(resumed_behind(&fake).len() - before, stage.apps.len());
        }
        // An id with a NUL in it is none: the one before it stays.
        resumable(
            &fake,
            "id: CALL-1\nretry: 1\ndata:\n\nid: CALL-2\0\ndata:\n\n",
            |_| Reply::Json(Value::Null),
        );
        let before = resumed_behind(&fake);
        all_done(&stage, "an id with a NUL").await;
        let since = resumed_behind(&fake).split_off(before.len());
        assert_eq!(since, vec!["1"; stage.apps.len()]);
        // An empty id takes the last one back: there is nothing to resume behind.
        resumable(&fake, "id: CALL-1\ndata:\n\nid:\ndata:\n\n", |_| {
            Reply::Json(Value::Null)
        });
        let before = resumed_behind(&fake).len();
        all_unknown(&stage, "the id was taken back").await;
        assert_eq!(resumed_behind(&fake).len(), before);
    })
    .await;
}

#[tokio::test]
async fn b14_a_modern_stream_is_not_resumed() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(true).await;
        stage.add_http(&fake.url()).await;
        resumable(&fake, "id: CALL-1\nretry: 1\ndata:\n\n", |_| {
            Reply::Json(Value::Null)
        });
        all_unknown(&stage, "modern").await;
        assert!(fake.seen_http(&Method::GET).is_empty());
    })
    .await;
}

#[tokio::test]
async fn b14_a_server_says_how_long_to_wait_before_resuming() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(false).await;
        stage.add_http(&fake.url()).await;
        resumable(&fake, "id: CALL-1\nretry: 300\ndata:\n\n", |_| {
            Reply::Json(Value::Null)
        });
        let start = Instant::now();
        all_done(&stage, "resumed").await;
        assert!(start.elapsed() >= Duration::from_millis(300));
    })
    .await;
}

#[tokio::test]
async fn b14_the_stream_of_notifications_is_resumed_behind_its_last_event() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(false).await;
        fake.reply("GET", |seen| match seen.header("last-event-id") {
            "" => Reply::Sse(vec![Step::Bytes("id: n-1\nretry: 1\ndata:\n\n".into())]),
            _ => stream(async |writer| {
                let changed = "notifications/tools/list_changed";
                writer
                    .message(&json!({"jsonrpc": "2.0", "method": changed}))
                    .await;
                writer.closed().await;
            }),
        });
        stage.add_http(&fake.url()).await;
        fake.set_list("tools", vec![tool("echo"), tool("missed")]);
        // Only the resumed stream tells of the new tool.
        stage
            .everyone(async |app, _| {
                let mut updates = app.updates("").await;
                updates
                    .server_where("two tools", |server| server.tool_count() == 2)
                    .await;
            })
            .await;
        let opened = fake.seen_http(&Method::GET);
        assert_eq!(opened[1].header("last-event-id"), "n-1");
    })
    .await;
}
