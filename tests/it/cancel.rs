//! The end of calls before their result: cancellation, deadlines, silence.

use mcp_sidecar_tests::fake::stream;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::call_tool_stream_response::Event;

use crate::calls::app_with;

/// Waits until the server knows that the call is over.
async fn cancelled_upstream(fake: &FakeMcp, modern: bool, call: &Seen) {
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

#[tokio::test]
async fn an_app_that_goes_away_cancels_at_the_server() {
    for modern in [true, false] {
        let fake = FakeMcp::echo(modern).await;
        fake.on("tools/call", |_| {
            std::future::ready(stream(async |writer| writer.closed().await))
        });
        let (_daemon, app) = app_with(&fake).await;

        let unary = tokio::spawn({
            let app = app.clone();
            async move { app.call_tool("s", "echo", r#"{"n":1}"#).await }
        });
        let call = fake.wait_method("tools/call").await;
        unary.abort();
        cancelled_upstream(&fake, modern, &call).await;

        let mut events = app.call_stream("s", "echo", r#"{"n":2}"#).await.unwrap();
        assert!(matches!(
            events.next().await.unwrap(),
            Some(Event::Started(_))
        ));
        let second = fake
            .wait("the second call", |seen| {
                seen.params()["arguments"]["n"] == 2
            })
            .await;
        drop(events);
        cancelled_upstream(&fake, modern, &second).await;

        // The next call is not disturbed.
        fake.reset("tools/call");
        app.call_tool("s", "echo", "{}").await.unwrap();
    }
}

#[tokio::test]
async fn a_deadline_ends_the_call_here_and_there() {
    for modern in [true, false] {
        let fake = FakeMcp::echo(modern).await;
        fake.reply("tools/call", |_| Reply::Hang);
        let (daemon, app) = app_with(&fake).await;
        let request = v1::CallToolRequest {
            call: Some(app.call("s", "echo", r#"{"n":1}"#)),
        };
        let status = daemon
            .call_within(request, Duration::from_millis(300))
            .await;
        let facts = ErrorFacts::of(&status.unwrap_err());
        assert_eq!(facts.code, Code::DeadlineExceeded, "{facts:?}");
        let call = fake.wait_method("tools/call").await;
        cancelled_upstream(&fake, modern, &call).await;

        // The call's own bound works the same and says whose it was.
        let mut bounded = app.call("s", "echo", r#"{"n":2}"#);
        bounded.timeout = Some(millis(200));
        let status = app.call_with(bounded).await.unwrap_err();
        assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
        let second = fake
            .wait("the second call", |seen| {
                seen.params()["arguments"]["n"] == 2
            })
            .await;
        cancelled_upstream(&fake, modern, &second).await;
    }
}

#[tokio::test]
async fn progress_keeps_a_call_alive_and_silence_ends_it() {
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
    let (_daemon, app) = app_with(&fake).await;
    let bounded = |arguments: &str| v1::ToolCall {
        idle_timeout: Some(millis(600)),
        ..app.call("s", "echo", arguments)
    };
    let lively = app.stream_with(bounded(r#"{"end":true}"#)).await.unwrap();
    assert!(matches!(
        lively.collect().await.unwrap().last(),
        Some(Event::Result(_))
    ));
    let silent = app.stream_with(bounded(r#"{"end":false}"#)).await.unwrap();
    let status = silent.collect().await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
}

#[tokio::test]
async fn an_app_that_cancels_a_lot_keeps_its_connection() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(true).await;
    fake.reply(
        "tools/call",
        |seen| match seen.params()["arguments"]["hang"].as_bool() {
            Some(true) => Reply::Hang,
            _ => Reply::Default,
        },
    );
    let server = app.add_http("S", &fake.url()).await;
    let mut updates = app.updates("").await;
    updates.snapshot().await;
    let mut slow = app
        .call_stream(&server.id, "echo", r#"{"hang":true}"#)
        .await
        .unwrap();
    assert!(matches!(
        slow.next().await.unwrap(),
        Some(Event::Started(_))
    ));
    for _ in 0..10 {
        let burst = (0..200).map(|_| {
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
    app.call_tool(&server.id, "echo", "{}").await.unwrap();
    app.remove(&server.id).await.unwrap();
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

#[tokio::test]
async fn a_process_hears_of_a_cancelled_call() {
    for modern in [true, false] {
        let daemon = TestDaemon::start().await;
        let app = daemon.clients().await;
        let scripts = tempfile::tempdir().unwrap();
        let record = scripts.path().join("record");
        let script = Script {
            modern,
            faults: vec![StdioFault::Record(record.to_str().unwrap().to_owned())],
        };
        let server = app.add_ready(script.spec("s", scripts.path()).await).await;
        let heard = async |method: &str| {
            // A process cannot tell the test that something arrived.
            eventually(method, PATIENCE, async || {
                let text = std::fs::read_to_string(&record).ok()?;
                let mut lines = text
                    .lines()
                    .map(|line| serde_json::from_str::<Value>(line).unwrap());
                lines.find(|message| message["method"] == method)
            })
            .await
        };
        let mut call = app.call_stream(&server.id, "hang", "{}").await.unwrap();
        assert!(matches!(
            call.next().await.unwrap(),
            Some(Event::Started(_))
        ));
        let sent = heard("tools/call").await;
        drop(call);
        let cancelled = heard("notifications/cancelled").await;
        assert_eq!(cancelled["params"]["requestId"], sent["id"]);
        app.call_tool(&server.id, "echo", "{}").await.unwrap();
    }
}
