//! Many calls over one stream: answered as they end, each by itself; the stream outlives every call of it.

use mcp_sidecar_client::{Client, Error, Reason};
use mcp_sidecar_tests::call_stream::Answered;
use mcp_sidecar_tests::daemon::Builder;
use mcp_sidecar_tests::fake::stream;
use mcp_sidecar_tests::prelude::*;
use tokio_util::sync::CancellationToken;

use crate::calls::app_with;
use crate::streams::both_eras;

/// A call that the server can tell from others.
fn numbered(app: &Clients, number: u64) -> v1::ToolCall {
    app.call("s", "echo", &format!(r#"{{"n":{number}}}"#))
}

/// The call with this number, as the server got it.
async fn arrived(fake: &FakeMcp, number: u64) -> Seen {
    let wanted = |seen: &Seen| seen.params()["arguments"]["n"] == number;
    fake.wait("the call", wanted).await
}

async fn started(daemon: Builder, fake: &FakeMcp) -> (TestDaemon, Clients) {
    let daemon = daemon.start().await;
    let app = daemon.clients().await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    (daemon, app)
}

/// A server that echoes the arguments, those with `hold` when it may.
async fn holding(modern: bool) -> (FakeMcp, CancellationToken) {
    let (fake, go) = (FakeMcp::echo(modern).await, CancellationToken::new());
    let released = go.clone();
    fake.on("tools/call", move |seen| {
        let (released, arguments) = (released.clone(), seen.arguments());
        async move {
            if arguments.contains("hold") {
                released.cancelled().await;
            }
            Reply::Json(json!({
                "resultType": "complete", "content": [{"type": "text", "text": arguments}],
            }))
        }
    });
    (fake, go)
}

#[tokio::test]
async fn calls_of_one_stream_are_under_way_together_and_answered_as_they_end() {
    for modern in [true, false] {
        let (fake, go) = holding(modern).await;
        let (_daemon, app) = app_with(&fake).await;
        let mut calls = app.open_calls().await;
        calls.call(7, app.call("s", "echo", r#"{"hold":1}"#));
        calls.call(0, app.call("s", "echo", r#"{"big":9007199254740993}"#));
        let first = calls.next().await;
        assert_eq!(first.number(), 0);
        assert_eq!(text_of(first.result()), r#"{"big":9007199254740993}"#);
        assert!(!first.0.call_id.is_empty());

        // What fails is told as the status of CallTool would tell it, and the stream goes on.
        calls.call(u64::MAX, app.call("s", "nothing", "{}"));
        let failed = calls.next().await;
        assert_eq!(
            (failed.number(), failed.reason()),
            (u64::MAX, "TOOL_NOT_FOUND")
        );
        assert_eq!(failed.error().code, i32::from(Code::NotFound));
        calls.call(1, app.call("s", "echo", "[]"));
        let wrong = calls.next().await;
        assert_eq!(wrong.reason(), "INVALID_FIELD");
        assert_eq!(
            wrong.error().field_violations[0].field,
            "call.arguments_json"
        );
        assert!(wrong.0.call_id.is_empty());
        calls.send(v1::CallToolsRequest {
            number: 2,
            ..Default::default()
        });
        let empty = calls.next().await;
        assert_eq!(
            (
                empty.number(),
                empty.error().field_violations[0].field.as_str()
            ),
            (2, "action")
        );

        go.cancel();
        let held = calls.next().await;
        assert_eq!(
            (held.number(), text_of(held.result())),
            (7, r#"{"hold":1}"#.to_owned())
        );
        // The number is free again.
        calls.call(7, numbered(&app, 1));
        assert_eq!(calls.next().await.number(), 7);
        assert!(calls.close().rest().await.is_empty());
    }
}

#[tokio::test]
async fn the_calls_of_an_app_that_asks_for_nothing_more_are_finished() {
    let (fake, go) = holding(true).await;
    let (_daemon, app) = app_with(&fake).await;
    let calls = app.open_calls().await;
    for number in 0..3 {
        calls.call(number, app.call("s", "echo", r#"{"hold":1}"#));
    }
    let closing = calls.close();
    app.calls_in_flight("s", 3).await;
    go.cancel();
    let mut numbers: Vec<_> = closing.rest().await.iter().map(Answered::number).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, [0, 1, 2]);
}

#[tokio::test]
async fn one_call_of_a_stream_is_cancelled_here_and_there() {
    both_eras(async |stage, fake, modern| {
        fake.on("tools/call", |_| {
            std::future::ready(stream(async |writer| writer.closed().await))
        });
        let app = stage.app();
        let mut calls = app.open_calls().await;
        calls.call(1, numbered(app, 1));
        calls.call(2, numbered(app, 2));
        let (first, second) = (arrived(fake, 1).await, arrived(fake, 2).await);
        calls.cancel(1);
        // Nothing has that number; it is no error.
        calls.cancel(99);
        crate::cancel::cancelled_upstream(fake, modern, &first).await;
        let cancelled = calls.next().await;
        assert_eq!((cancelled.number(), cancelled.reason()), (1, "CANCELLED"));
        assert_eq!(cancelled.error().code, i32::from(Code::Cancelled));
        assert!(!cancelled.0.call_id.is_empty());
        app.calls_in_flight("s", 1).await;

        // The deadline of one call ends that one.
        calls.send(v1::CallToolsRequest {
            number: 1,
            action: Some(v1::call_tools_request::Action::Call(numbered(app, 3))),
            deadline: Some(millis(200)),
        });
        let late = calls.next().await;
        assert_eq!((late.number(), late.reason()), (1, "DEADLINE_EXCEEDED"));
        let third = arrived(fake, 3).await;
        crate::cancel::cancelled_upstream(fake, modern, &third).await;

        // An app that goes away takes all its calls along.
        drop(calls);
        crate::cancel::cancelled_upstream(fake, modern, &second).await;
        stage.other().calls_in_flight("s", 0).await;
    })
    .await;
}

#[tokio::test]
async fn a_stream_has_a_deadline_and_a_call_of_it_no_other_than_a_sound_one() {
    let (fake, _go) = holding(true).await;
    let (daemon, app) = app_with(&fake).await;
    let guest = daemon.clients().await;
    let short = |request: &mut tonic::Request<_>| request.set_timeout(Duration::from_millis(400));
    let mut calls = guest.open_calls_with(short).await.unwrap();
    for (number, deadline) in [(1, seconds(0)), (2, seconds(25 * 3600))] {
        calls.send(v1::CallToolsRequest {
            number,
            action: Some(v1::call_tools_request::Action::Call(numbered(&app, 1))),
            deadline: Some(deadline),
        });
        let wrong = calls.next().await;
        assert_eq!(wrong.error().field_violations[0].field, "deadline");
    }
    assert!(fake.seen_of("tools/call").is_empty());
    calls.call(3, app.call("s", "echo", r#"{"hold":1}"#));
    // Whichever end notices first.
    let ended = calls.failure().await;
    assert!(
        [Code::DeadlineExceeded, Code::Cancelled].contains(&ended.code()),
        "{ended:?}"
    );
    app.calls_in_flight("s", 0).await;
}

#[tokio::test]
async fn a_number_in_use_ends_the_stream_and_nothing_else() {
    let (fake, _go) = holding(true).await;
    let (_daemon, app) = app_with(&fake).await;
    let mut calls = app.open_calls().await;
    calls.call(1, app.call("s", "echo", r#"{"hold":1}"#));
    calls.call(1, numbered(&app, 2));
    let facts = ErrorFacts::of(&calls.failure().await);
    assert_eq!(
        (facts.code, facts.reason.as_str()),
        (Code::InvalidArgument, "INVALID_FIELD")
    );
    assert_eq!(facts.field, "number");
    app.calls_in_flight("s", 0).await;
    app.call_with(numbered(&app, 3)).await.unwrap();
}

#[tokio::test]
async fn a_stream_has_a_bound_and_an_app_that_reads_has_room_again() {
    let (fake, go) = holding(true).await;
    let bound = TestDaemon::builder().set("limits.calls_per_stream", 2);
    let (_daemon, app) = started(bound, &fake).await;
    let held = || app.call("s", "echo", r#"{"hold":1}"#);
    let mut calls = app.open_calls().await;
    calls.call(1, held());
    calls.call(2, held());
    // However many it asks for.
    for number in 3..300 {
        calls.call(number, held());
    }
    for number in 3..300 {
        let refused = calls.next().await;
        assert_eq!(
            (refused.number(), refused.reason()),
            (number, "TOO_MANY_CALLS")
        );
        assert_eq!(refused.error().code, i32::from(Code::ResourceExhausted));
    }
    app.calls_in_flight("s", 2).await;
    // Another stream has a bound of its own.
    let mut other = app.open_calls().await;
    other.call(1, numbered(&app, 1));
    other.next().await.result();
    go.cancel();
    for _ in 1..=2 {
        calls.next().await.result();
    }
    calls.call(3, held());
    calls.next().await.result();
}

#[tokio::test]
async fn an_app_that_does_not_read_holds_up_nobody_and_loses_nothing() {
    const EACH: usize = 200;
    let fake = FakeMcp::echo(true).await;
    let text = "x".repeat(64 * 1024);
    let reply = json!({"resultType": "complete", "content": [{"type": "text", "text": text}]});
    fake.reply("tools/call", move |_| Reply::Json(reply.clone()));
    let (daemon, app) = app_with(&fake).await;
    let guest = daemon.clients().await;
    let mut lazy = guest.open_calls().await;
    for number in 0..EACH as u64 {
        lazy.call(number, numbered(&app, number));
    }
    // More than windows and queues hold: some of them wait for the app.
    app.calls_in_flight("s", 0).await;
    app.call_with(numbered(&app, 1)).await.unwrap();
    let mut numbers = Vec::new();
    for _ in 0..EACH {
        let answered = lazy.next().await;
        assert_eq!(text_of(answered.result()).len(), 64 * 1024);
        numbers.push(answered.number());
    }
    numbers.sort_unstable();
    assert_eq!(numbers, (0..EACH as u64).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_stream_takes_any_number_of_requests_and_no_half_sent_ones() {
    let fake = FakeMcp::echo(true).await;
    let small = TestDaemon::builder()
        .set("limits.message_bytes", 64 * 1024)
        .set("limits.grpc_message_bytes", 64 * 1024);
    let (_daemon, app) = started(small, &fake).await;
    let mut calls = app.open_calls().await;
    let arguments = json!({"text": "x".repeat(40 * 1024)}).to_string();
    // Ten times what a connection may have unfinished.
    for number in 0..64 {
        calls.call(number, app.call("s", "echo", &arguments));
        calls.next().await.result();
    }
    let large = json!({"text": "x".repeat(70 * 1024)}).to_string();
    calls.call(1, app.call("s", "echo", &large));
    let facts = ErrorFacts::of(&calls.failure().await);
    assert_eq!(
        (facts.code, facts.reason.as_str()),
        (Code::ResourceExhausted, "MESSAGE_TOO_LARGE")
    );
    assert!(facts.message.contains("limits.grpc_message_bytes"));
    app.call_with(numbered(&app, 1)).await.unwrap();
}

#[tokio::test]
async fn calls_that_are_not_the_streams_alone_outlive_it() {
    let (fake, go) = holding(true).await;
    let (daemon, app) = app_with(&fake).await;
    let guest = daemon.clients().await;
    let mut calls = guest.open_calls().await;
    let held = || app.call("s", "echo", r#"{"hold":1}"#);
    calls.call(
        1,
        v1::ToolCall {
            detach: true,
            ..held()
        },
    );
    let detached = calls.next().await.0;
    assert!(detached.outcome.is_none() && !detached.call_id.is_empty());
    // Asked for twice under one name, by way of the stream and of a request, it is made once.
    let named = || v1::ToolCall {
        request_id: "order-9".to_owned(),
        ..held()
    };
    calls.call(2, named());
    calls.call(3, named());
    app.calls_in_flight("s", 2).await;
    let joined = tokio::spawn({
        let (app, call) = (app.clone(), named());
        async move { app.call_with(call).await }
    });
    calls.cancel(3);
    let left = calls.next().await;
    assert_eq!((left.number(), left.reason()), (3, "CANCELLED"));
    go.cancel();
    let answered = calls.next().await;
    assert_eq!(
        (answered.number(), text_of(answered.result())),
        (2, r#"{"hold":1}"#.to_owned())
    );
    within("the one that joined", joined)
        .await
        .unwrap()
        .unwrap();
    drop((calls, guest));
    let ended = app.wait_call(&detached.call_id).await;
    assert_eq!(ended.state(), v1::CallState::Completed);
    assert_eq!(fake.seen_of("tools/call").len(), 2);
}

#[tokio::test]
async fn a_daemon_that_stops_finishes_what_it_has_begun_and_says_so() {
    let (fake, go) = holding(true).await;
    let (mut daemon, app) = app_with(&fake).await;
    let mut calls = app.open_calls().await;
    calls.call(1, app.call("s", "echo", r#"{"hold":1}"#));
    fake.wait_method("tools/call").await;
    let socket = daemon.socket().to_owned();
    let stopping = async {
        let status = daemon.terminate().await;
        assert!(status.success());
    };
    let story = async {
        eventually("the daemon begins to stop", PATIENCE, async || {
            (!Clients::is_serving(&socket).await).then_some(())
        })
        .await;
        go.cancel();
        assert_eq!(text_of(calls.next().await.result()), r#"{"hold":1}"#);
        let facts = ErrorFacts::of(&calls.failure().await);
        assert_eq!(
            (facts.code, facts.reason.as_str()),
            (Code::Unavailable, "DRAINING")
        );
    };
    tokio::join!(stopping, story);
}

#[tokio::test]
async fn each_call_of_a_stream_is_audited_and_allowed_by_itself() {
    let fake = FakeMcp::echo(true).await;
    let (daemon, app) = started(TestDaemon::builder().audited(), &fake).await;
    let mut calls = app.open_calls().await;
    calls.call(1, numbered(&app, 1));
    calls.next().await.result();
    calls.call(2, app.call("s", "nothing", "{}"));
    assert_eq!(calls.next().await.reason(), "TOOL_NOT_FOUND");
    let elsewhere = v1::ToolCall {
        namespace: "no such name".to_owned(),
        ..numbered(&app, 3)
    };
    calls.call(3, elsewhere);
    assert_eq!(calls.next().await.reason(), "INVALID_FIELD");
    assert!(calls.close().rest().await.is_empty());
    app.remove("s").await.unwrap();
    let removed = |record: &Value| record["event"] == "remove_server";
    daemon.audit_of("the removal", removed).await;
    let told: Vec<_> = daemon
        .audit()
        .iter()
        .filter(|record| record["event"] == "tool_call")
        .map(|record| (record["outcome"].clone(), record["tool"].clone()))
        .collect();
    assert_eq!(
        told,
        [
            (json!("ok"), json!("echo")),
            (json!("TOOL_NOT_FOUND"), json!("nothing")),
            (json!("INVALID_FIELD"), Value::Null),
        ]
    );
}

async fn client(daemon: &TestDaemon) -> Client {
    let connecting = Client::builder().socket(daemon.socket()).connect();
    connecting.await.unwrap()
}

#[tokio::test]
async fn the_rust_client_makes_many_calls_over_one_stream() {
    both_eras(async |stage, fake, modern| {
        let client = client(&stage.daemon).await;
        let calls = client.tool_calls();
        let all = (0..100).map(async |n: u64| {
            let arguments = json!({"n": n});
            let made = calls.call(mcp_sidecar_client::tool_call("s", "echo", arguments));
            made.await.unwrap()
        });
        let all = within("all results", futures_util::future::join_all(all)).await;
        assert_eq!(all.len(), 100);
        assert!(
            all.iter()
                .all(|made| made.result.is_some() && !made.call_id.is_empty())
        );

        let unknown = mcp_sidecar_client::tool_call("s", "nothing", json!({}));
        let error = calls.call(unknown).await.unwrap_err();
        assert_eq!(error.reason(), Some(&Reason::TOOL_NOT_FOUND), "{error}");

        // A future that is dropped cancels its call, and no other.
        fake.on("tools/call", |_| {
            std::future::ready(stream(async |writer| writer.closed().await))
        });
        let held = async |n: u64| {
            let (calls, call) = (calls.clone(), numbered(stage.app(), n));
            let call = tokio::spawn(async move { calls.call(call).await });
            let seen = arrived(fake, n).await;
            (call, seen)
        };
        let ((first, seen), (second, other)) = (held(1001).await, held(1002).await);
        first.abort();
        crate::cancel::cancelled_upstream(fake, modern, &seen).await;
        stage.app().calls_in_flight("s", 1).await;

        let bounded = client.with_deadline(Duration::from_millis(300));
        let late = bounded.tool_calls().call(numbered(stage.app(), 1003)).await;
        assert_eq!(late.unwrap_err().reason(), Some(&Reason::DEADLINE_EXCEEDED));
        let third = arrived(fake, 1003).await;
        crate::cancel::cancelled_upstream(fake, modern, &third).await;

        // The last clone takes the stream along.
        drop(calls);
        second.abort();
        crate::cancel::cancelled_upstream(fake, modern, &other).await;
        stage.app().calls_in_flight("s", 0).await;
    })
    .await;
}

#[tokio::test]
async fn the_rust_client_opens_its_stream_again_and_never_repeats_a_call() {
    let (fake, _go) = holding(true).await;
    let (mut daemon, app) = app_with(&fake).await;
    let calls = client(&daemon).await.tool_calls();
    calls.call(numbered(&app, 1)).await.unwrap();
    let lost = tokio::spawn({
        let (calls, call) = (calls.clone(), app.call("s", "echo", r#"{"hold":1}"#));
        async move { calls.call(call).await }
    });
    fake.wait("the call", |seen| seen.arguments().contains("hold"))
        .await;
    daemon.kill9().await;
    let error = within("the end of the call", lost)
        .await
        .unwrap()
        .unwrap_err();
    assert!(
        matches!(error, Error::Transport { sent: true, .. }) && !error.is_retryable(),
        "{error:?}"
    );
    let error = calls.call(numbered(&app, 2)).await.unwrap_err();
    assert!(
        matches!(error, Error::Transport { sent: false, .. }) && error.is_retryable(),
        "{error:?}"
    );
    daemon.restart().await;
    let app = daemon.clients().await;
    app.wait_for("s", ConnectionState::Ready).await;
    calls.call(numbered(&app, 3)).await.unwrap();
    let held = fake.seen_of("tools/call");
    let held = held.iter().filter(|seen| seen.arguments().contains("hold"));
    assert_eq!(held.count(), 1);
}
