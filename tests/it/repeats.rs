//! Calls whose answers are cut off, and which of them the daemon makes once more where the operator allows it (case B14).
//! That nothing is repeated without that is in `streams` and `calls`.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Instant;

use http::Method;
use mcp_sidecar_tests::daemon::Builder;
use mcp_sidecar_tests::fake::{SseWriter, body, stream};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::HttpMode;
use mcp_sidecar_tests::v1::call_tool_stream_response::Event;

/// Tools with what they say of themselves, and whether that makes them safe to repeat.
fn tools() -> Vec<(&'static str, Value, bool)> {
    vec![
        ("reads", json!({"readOnlyHint": true}), true),
        ("sets", json!({"idempotentHint": true}), true),
        (
            "deletes",
            json!({"destructiveHint": true, "idempotentHint": true, "readOnlyHint": false}),
            true,
        ),
        ("silent", Value::Null, false),
        (
            "adds",
            json!({"destructiveHint": false, "openWorldHint": false}),
            false,
        ),
        (
            "writes",
            json!({"readOnlyHint": false, "idempotentHint": false}),
            false,
        ),
        (
            "vague",
            json!({"readOnlyHint": "true", "idempotentHint": 1}),
            false,
        ),
    ]
}

/// Makes one answer after the other.
type Answer = Box<dyn Fn() -> Reply + Send + Sync>;

fn declared(mut builder: mcp_sidecar_tests::fake::Builder) -> mcp_sidecar_tests::fake::Builder {
    for (name, annotations, _) in tools() {
        let mut tool = tool(name);
        if !annotations.is_null() {
            tool["annotations"] = annotations;
        }
        builder = builder.tool(tool);
    }
    builder
}

async fn fake(modern: bool) -> FakeMcp {
    let builder = if modern {
        FakeMcp::modern()
    } else {
        FakeMcp::legacy()
    };
    declared(builder).start().await
}

fn allowed() -> Builder {
    TestDaemon::builder().set("calls.repeat_safe", true)
}

fn done() -> Value {
    json!({"resultType": "complete", "content": [{"type": "text", "text": "done"}]})
}

fn progress(seen: &Seen) -> Value {
    let token = &seen.params()["_meta"]["progressToken"];
    json!({
        "jsonrpc": "2.0", "method": "notifications/progress",
        "params": {"progressToken": token, "progress": 1},
    })
}

/// How answers are cut off.
#[derive(Clone, Copy, Debug)]
enum Cut {
    Closed,
    Reset,
    NoHeaders,
    HalfOfJson,
}

const CUTS: [Cut; 4] = [Cut::Closed, Cut::Reset, Cut::NoHeaders, Cut::HalfOfJson];

impl Cut {
    fn reply(self, seen: &Seen) -> Reply {
        match self {
            Self::Closed => Reply::Sse(vec![Step::Message(progress(seen))]),
            Self::Reset => Reply::Sse(vec![Step::Message(progress(seen)), Step::Reset]),
            Self::NoHeaders => Reply::Reset,
            Self::HalfOfJson => body(
                200,
                &[("content-type", "application/json")],
                async |writer: SseWriter| {
                    writer.bytes(r#"{"jsonrpc":"2.0","#.to_owned()).await;
                    writer.reset().await;
                },
            ),
        }
    }
}

/// Cuts off the first `count` answers to calls with the same arguments.
fn cut_off(fake: &FakeMcp, cut: Cut, count: usize) {
    let counts = Mutex::new(HashMap::<String, usize>::new());
    fake.reply("tools/call", move |seen| {
        let mut counts = counts.lock().unwrap();
        let so_far = counts.entry(seen.arguments()).or_default();
        *so_far += 1;
        if *so_far <= count {
            cut.reply(seen)
        } else {
            Reply::Json(done())
        }
    });
}

/// The requests of a call, by its arguments; none has the id of another.
fn requests(fake: &FakeMcp, arguments: &str) -> usize {
    let mut all = fake.seen_of("tools/call");
    all.retain(|seen| seen.arguments() == arguments);
    let ids: HashSet<String> = all.iter().map(|seen| seen.json["id"].to_string()).collect();
    assert_eq!(ids.len(), all.len(), "every request has an id of its own");
    all.len()
}

/// Every app calls every tool; the story says how often each call is to arrive and whether it is answered.
async fn all_tools(
    stage: &Stage,
    fake: &FakeMcp,
    what: &str,
    expected: impl Fn(bool) -> (usize, bool),
) {
    for (tool, _, safe) in tools() {
        let (sent, answered) = expected(safe);
        let outcomes = stage.everyone(async |app, number| {
            let mark = json!({"what": what, "tool": tool, "app": number}).to_string();
            (app.call_tool("s", tool, &mark).await, mark)
        });
        for (outcome, mark) in within("the end of the calls", outcomes).await {
            match outcome {
                Ok(result) if answered => assert_eq!(text_of(&result), "done", "{mark}"),
                Err(status) if !answered => {
                    let facts = ErrorFacts::of(&status);
                    let told = (facts.code, facts.reason.as_str());
                    assert_eq!(
                        told,
                        (Code::Unavailable, "OUTCOME_UNKNOWN"),
                        "{mark} {facts:?}"
                    );
                    assert_eq!(facts.metadata["server_id"], "s");
                }
                other => panic!("{mark}: {other:?}"),
            }
            assert_eq!(requests(fake, &mark), sent, "{mark}");
        }
    }
}

#[tokio::test]
async fn b14_a_call_that_declares_itself_safe_is_made_once_more() {
    for modern in [true, false] {
        one_and_two_with(allowed(), async |stage| {
            let fake = fake(modern).await;
            stage.add_http(&fake.url()).await;
            for cut in CUTS {
                cut_off(&fake, cut, 1);
                let once = |safe| if safe { (2, true) } else { (1, false) };
                all_tools(&stage, &fake, &format!("{cut:?} once"), once).await;
                // Once, not as long as it takes.
                cut_off(&fake, cut, usize::MAX);
                let always = |safe| if safe { (2, false) } else { (1, false) };
                all_tools(&stage, &fake, &format!("{cut:?} always"), always).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn b14_without_permission_nothing_is_made_again() {
    for modern in [true, false] {
        one_and_two(async |stage| {
            let fake = fake(modern).await;
            stage.add_http(&fake.url()).await;
            for cut in CUTS {
                cut_off(&fake, cut, 1);
                all_tools(&stage, &fake, &format!("{cut:?}"), |_| (1, false)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn b14_a_repeated_call_is_one_call_to_its_app() {
    one_and_two_with(allowed(), async |stage| {
        let fake = fake(true).await;
        stage.add_http(&fake.url()).await;
        // What came just before a reset may be lost with it.
        cut_off(&fake, Cut::Closed, 1);
        let all = stage.everyone(async |app, number| {
            let events = app
                .call_stream("s", "reads", &format!("{{\"app\":{number}}}"))
                .await
                .unwrap();
            events.collect().await.unwrap()
        });
        for events in all.await {
            match &events[..] {
                [Event::Started(_), Event::Progress(_), Event::Result(result)] => {
                    assert_eq!(text_of(result), "done");
                }
                other => panic!("unexpected events: {other:?}"),
            }
        }
    })
    .await;
}

#[tokio::test]
async fn b14_what_was_no_cut_is_not_made_again() {
    one_and_two_with(allowed(), async |stage| {
        let fake = fake(true).await;
        stage.add_http(&fake.url()).await;
        let garbled = |text: &'static str| {
            Reply::Raw(
                200,
                vec![("content-type", "application/json".into())],
                text.into(),
            )
        };
        let answers: [(&str, &str, Answer); 6] = [
            ("silence", "UPSTREAM_TIMEOUT", Box::new(|| Reply::Hang)),
            (
                "a silent stream",
                "UPSTREAM_TIMEOUT",
                Box::new(|| Reply::Sse(vec![Step::Hang])),
            ),
            (
                "a gateway",
                "OUTCOME_UNKNOWN",
                Box::new(|| Reply::Raw(502, Vec::new(), "bad".into())),
            ),
            (
                "no MCP",
                "OUTCOME_UNKNOWN",
                Box::new(move || garbled("{\"jsonrpc\":")),
            ),
            (
                "no result",
                "OUTCOME_UNKNOWN",
                Box::new(move || garbled("[]")),
            ),
            (
                "an error",
                "UPSTREAM_ERROR",
                Box::new(|| Reply::Error(-32603, "no", Value::Null)),
            ),
        ];
        for (what, reason, answer) in answers {
            fake.reply("tools/call", move |_| answer());
            let outcomes = stage.everyone(async |app, number| {
                let mark = json!({"what": what, "app": number}).to_string();
                let mut call = app.call("s", "reads", &mark);
                call.idle_timeout = Some(millis(300));
                (app.call_with(call).await, mark)
            });
            for (outcome, mark) in outcomes.await {
                let facts = ErrorFacts::of(&outcome.expect_err(what));
                assert_eq!(facts.reason, reason, "{mark}: {facts:?}");
                assert_eq!(requests(&fake, &mark), 1, "{mark}");
            }
        }
        // Whoever gives up is not called for again.
        fake.reply("tools/call", |_| Reply::Sse(vec![Step::Hang]));
        let before = fake.seen_of("tools/call").len();
        let call = stage.app().call_stream("s", "reads", "{}").await.unwrap();
        let mark = |seen: &Seen| seen.index >= before && seen.arguments() == "{}";
        let sent = fake.wait("the call", mark).await;
        drop(call);
        fake.wait_dropped(sent.index).await;
        fake.reset("tools/call");
        let later = stage.other().call_tool("s", "silent", r#"{"later":1}"#);
        later.await.unwrap();
        assert_eq!(requests(&fake, "{}"), 1);
    })
    .await;
}

#[tokio::test]
async fn b14_a_call_does_not_follow_its_server_elsewhere() {
    for sse in [false, true] {
        one_and_two_with(allowed(), async |stage| {
            let place = async || {
                let builder = FakeMcp::legacy();
                let builder = if sse { builder.http_sse() } else { builder };
                declared(builder).start().await
            };
            let (here, elsewhere) = (place().await, place().await);
            let mode = if sse {
                HttpMode::Sse
            } else {
                HttpMode::StreamableHttp
            };
            stage.add("s", http_spec_as("S", &here.url(), mode)).await;
            here.reply("tools/call", |_| Reply::Hang);
            let calls = stage.everyone(async |app, _| app.call_tool("s", "reads", "{}").await);
            let moved = async {
                let arrived = eventually("the calls", PATIENCE, async || {
                    (here.seen_of("tools/call").len() == stage.apps.len()).then_some(())
                });
                arrived.await;
                let spec = http_spec_as("S", &elsewhere.url(), mode);
                stage
                    .other()
                    .update("s", spec, &["http.url"])
                    .await
                    .unwrap();
            };
            let (outcomes, ()) = tokio::join!(within("the end of the calls", calls), moved);
            for outcome in outcomes {
                ErrorFacts::expect(outcome, Code::Unavailable, "OUTCOME_UNKNOWN");
            }
            stage.other().wait_for("s", ConnectionState::Ready).await;
            assert!(elsewhere.seen_of("tools/call").is_empty());
        })
        .await;
    }
}

#[tokio::test]
async fn b14_all_attempts_share_one_clock() {
    one_and_two_at_once(allowed(), async |stage| {
        let fake = fake(true).await;
        stage.add_http(&fake.url()).await;
        let limit = Duration::from_secs(4);
        let counts = Mutex::new(std::collections::HashMap::<String, usize>::new());
        fake.reply("tools/call", move |seen| {
            let mut counts = counts.lock().unwrap();
            let count = counts.entry(seen.arguments()).or_default();
            *count += 1;
            match *count {
                1 => Reply::Sse(vec![
                    Step::Message(progress(seen)),
                    Step::Pause(limit * 3 / 4),
                    Step::Reset,
                ]),
                _ => Reply::Sse(vec![Step::Hang]),
            }
        });
        let calls = stage.everyone(async |app, number| {
            let own = format!("{{\"app\":{number}}}");
            let mut call = app.call("s", "reads", &own);
            call.timeout = Some(limit.try_into().unwrap());
            let start = Instant::now();
            let outcome = app.call_with(call).await;
            ErrorFacts::expect(outcome, Code::DeadlineExceeded, "UPSTREAM_TIMEOUT");
            assert_eq!(requests(&fake, &own), 2);
            let took = start.elapsed();
            assert!(
                took < limit * 6 / 4,
                "two clocks would take {:?}: {took:?}",
                limit * 7 / 4
            );
        });
        calls.await;
    })
    .await;
}

#[tokio::test]
async fn b14_a_legacy_stream_is_resumed_before_its_call_is_repeated() {
    one_and_two_with(allowed(), async |stage| {
        let fake = fake(false).await;
        stage.add_http(&fake.url()).await;
        for resumable in [true, false] {
            let counts = Mutex::new(HashMap::<String, usize>::new());
            fake.reply("tools/call", move |seen| {
                let mut counts = counts.lock().unwrap();
                let so_far = counts.entry(seen.arguments()).or_default();
                *so_far += 1;
                if *so_far > 1 {
                    return Reply::Json(done());
                }
                let event = format!("id: {}-1\nretry: 1\ndata:\n\n", seen.json["id"]);
                Reply::Sse(vec![Step::Bytes(event.into())])
            });
            fake.reply("GET", move |seen| {
                let event = seen.header("last-event-id");
                match event.split_once('-') {
                    None => Reply::Default,
                    Some(_) if !resumable => Reply::Raw(405, Vec::new(), "no".into()),
                    Some((id, _)) => {
                        let id: u64 = id.parse().unwrap();
                        Reply::Sse(vec![Step::Message(
                            json!({"jsonrpc": "2.0", "id": id, "result": done()}),
                        )])
                    }
                }
            });
            let resumed = |fake: &FakeMcp| {
                let all = fake.seen_http(&Method::GET).into_iter();
                all.filter(|seen| seen.header("last-event-id").contains('-'))
                    .count()
            };
            let before = resumed(&fake);
            let outcomes = stage.everyone(async |app, number| {
                let mark = json!({"resumable": resumable, "app": number}).to_string();
                (app.call_tool("s", "reads", &mark).await, mark)
            });
            for (outcome, mark) in outcomes.await {
                assert_eq!(text_of(&outcome.unwrap()), "done");
                assert_eq!(
                    requests(&fake, &mark),
                    if resumable { 1 } else { 2 },
                    "{mark}"
                );
            }
            assert_eq!(resumed(&fake) - before, stage.apps.len());
        }
    })
    .await;
}

#[tokio::test]
async fn b14_a_repetition_that_cannot_be_sent_leaves_the_outcome_unknown() {
    for modern in [true, false] {
        one_and_two_with(allowed(), async |stage| {
            let fake = fake(modern).await;
            stage.add_http(&fake.url()).await;
            fake.reply("tools/call", |_| Reply::Hang);
            let calls = stage.everyone(async |app, _| app.call_tool("s", "reads", "{}").await);
            let end = async {
                let arrived = eventually("the calls", PATIENCE, async || {
                    (fake.seen_of("tools/call").len() == stage.apps.len()).then_some(())
                });
                arrived.await;
                fake.clone().stop().await;
            };
            let (outcomes, ()) = tokio::join!(within("the end of the calls", calls), end);
            for outcome in outcomes {
                ErrorFacts::expect(outcome, Code::Unavailable, "OUTCOME_UNKNOWN");
            }
        })
        .await;
    }
}

#[tokio::test]
async fn b14_a_server_that_lost_stream_and_session_answers_on_a_new_one() {
    one_and_two_with(allowed(), async |stage| {
        let fake = fake(false).await;
        stage.add_http(&fake.url()).await;
        let sessions = fake.clone();
        let cut = Mutex::new(HashSet::<String>::new());
        fake.reply("tools/call", move |seen| {
            if !cut.lock().unwrap().insert(seen.arguments()) {
                return Reply::Json(done());
            }
            sessions.end_sessions();
            Reply::Sse(vec![Step::Reset])
        });
        // One after the other: each of them loses the session.
        for (number, app) in stage.apps.iter().enumerate() {
            let mark = format!("{{\"app\":{number}}}");
            let result = app.call_tool("s", "sets", &mark).await.unwrap();
            assert_eq!(text_of(&result), "done");
            app.wait_for("s", ConnectionState::Ready).await;
        }
    })
    .await;
}

#[tokio::test]
async fn b14_a_call_that_asked_somebody_is_not_made_again() {
    for modern in [true, false] {
        one_and_two_with(allowed(), async |stage| {
            let fake = fake(modern).await;
            let mut spec = http_spec("S", &fake.url());
            spec.client_capabilities = Some(v1::ClientCapabilities {
                elicitation_form: true,
                ..Default::default()
            });
            stage.add("s", spec).await;
            let form = || {
                let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
                json!({"mode": "form", "message": "Who are you?", "requestedSchema": schema})
            };
            let server = fake.clone();
            fake.on("tools/call", move |seen| {
                let server = server.clone();
                async move {
                    if !modern {
                        return stream(async move |writer: SseWriter| {
                            let id = json!("q-1");
                            let method = "elicitation/create";
                            let ask = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": form()});
                            writer.message(&ask).await;
                            server.wait("the answer", |seen| seen.answers(&id)).await;
                            writer.reset().await;
                        });
                    }
                    if seen.params().get("inputResponses").is_some() {
                        return Reply::Sse(vec![Step::Reset]);
                    }
                    Reply::Json(json!({
                        "resultType": "input_required", "requestState": "s",
                        "inputRequests": {"who": {"method": "elicitation/create", "params": form()}},
                    }))
                }
            });
            let mut updates = stage.other().updates("").await;
            let call = stage.app().call_tool("s", "reads", "{}");
            let answer = async {
                let question = updates.pending().await;
                stage.other().accept(&question.id, r#"{"name":"Ada"}"#).await.unwrap();
            };
            let (outcome, ()) = tokio::join!(within("the end of the call", call), answer);
            ErrorFacts::expect(outcome, Code::Unavailable, "OUTCOME_UNKNOWN");
            let sent = if modern { 2 } else { 1 };
            assert_eq!(requests(&fake, "{}"), sent, "the rounds of one attempt");
        })
        .await;
    }
}

#[tokio::test]
async fn b14_over_shared_channels_only_a_lost_stream_is_followed_by_a_repetition() {
    one_and_two_with(allowed(), async |stage| {
        // HTTP+SSE: the session goes with its stream, and the call is made again in the next one.
        let sse = declared(FakeMcp::legacy().http_sse()).start().await;
        let spec = http_spec_as("SSE", &sse.url(), HttpMode::Sse);
        stage.add("s", spec).await;
        let cut = Mutex::new(HashSet::<String>::new());
        sse.reply("tools/call", move |seen| {
            if cut.lock().unwrap().insert(seen.arguments()) {
                Reply::Reset
            } else {
                Reply::Json(done())
            }
        });
        for (number, app) in stage.apps.iter().enumerate() {
            let mark = format!("{{\"app\":{number}}}");
            let result = within("the result", app.call_tool("s", "reads", &mark))
                .await
                .unwrap();
            assert_eq!(text_of(&result), "done");
            assert_eq!(requests(&sse, &mark), 2);
        }
        // A process that ended in a call is not given it again.
        let child = declared(FakeMcp::modern().lines()).start().await;
        stage.add("child", child.as_child("child").await).await;
        child.reply("tools/call", |_| Reply::Sse(vec![Step::Reset]));
        for (number, app) in stage.apps.iter().enumerate() {
            let mark = format!("{{\"app\":{number}}}");
            let outcome = within("the end", app.call_tool("child", "reads", &mark)).await;
            ErrorFacts::expect(outcome, Code::Unavailable, "OUTCOME_UNKNOWN");
            app.wait_for("child", ConnectionState::Ready).await;
            assert_eq!(requests(&child, &mark), 1);
        }
    })
    .await;
}
