//! The tasks of MCP 2025-11-25: asked for, and their outcome fetched.

use std::sync::Mutex;

use mcp_sidecar_tests::fake::{SseWriter, stream};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::ElicitationState;

use crate::questions::with_forms;
use crate::tasks::{ID, question};

/// A 2025-11-25 server whose tool runs only as a task and asks for a name on the way to its result.
pub(crate) async fn legacy_job() -> FakeMcp {
    let mut only_as_task = tool("job");
    only_as_task["execution"] = json!({"taskSupport": "required"});
    let mut both = tool("both");
    both["execution"] = json!({"taskSupport": "optional"});
    let fake = FakeMcp::legacy()
        .tool(only_as_task)
        .tool(both)
        .capability(
            "tasks",
            json!({"cancel": {}, "requests": {"tools": {"call": {}}}}),
        )
        .start()
        .await;
    let state =
        |status: &str| json!({"taskId": ID, "status": status, "ttl": null, "pollInterval": 100});
    fake.reply("tools/call", move |seen| match &seen.params()["task"] {
        Value::Object(_) => Reply::Json(json!({"task": state("working")})),
        _ => Reply::Default,
    });
    let looks = Mutex::new(0);
    fake.reply("tasks/get", move |_| {
        let mut looks = looks.lock().unwrap();
        *looks += 1;
        Reply::Json(state(if *looks < 3 {
            "working"
        } else {
            "input_required"
        }))
    });
    let server = fake.clone();
    fake.on("tasks/result", move |seen| {
        let (server, id) = (server.clone(), json!(format!("q {}", seen.json["id"])));
        async move {
            stream(async move |writer: SseWriter| {
                let mut ask = question("name");
                ask["jsonrpc"] = json!("2.0");
                ask["id"] = id.clone();
                writer.message(&ask).await;
                tokio::select! {
                    answer = server.wait("the answer", |seen| seen.answers(&id)) => {
                        let text = answer.json["result"].to_string();
                        writer.result(json!({"content": [{"type": "text", "text": text}]})).await;
                    }
                    () = writer.closed() => {}
                }
            })
        }
    });
    fake.reply("tasks/cancel", move |_| Reply::Json(state("cancelled")));
    fake
}

#[tokio::test]
async fn a_legacy_tool_that_wants_to_be_a_task_is_called_as_one() {
    let fake = legacy_job().await;
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    app.add("s", with_forms(http_spec("S", &fake.url())))
        .await
        .unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let mut updates = app.updates("").await;
    updates.snapshot().await;

    let call = {
        let app = app.clone();
        let bounded = v1::ToolCall {
            idle_timeout: Some(millis(500)),
            ..app.call("s", "job", "{}")
        };
        tokio::spawn(async move { app.call_with(bounded).await })
    };
    let question = updates.pending().await;
    assert_eq!(question.message, "name");
    app.accept(&question.id, r#"{"name":"Ada"}"#).await.unwrap();
    let result = within("the call", call).await.unwrap().unwrap();
    assert!(text_of(&result).contains("Ada"), "{result:?}");
    assert_eq!(fake.seen_of("tools/call")[0].params()["task"], json!({}));
    assert_eq!(fake.seen_of("tasks/result").len(), 1);
    assert!(fake.seen_of("tasks/cancel").is_empty());

    // A tool that need not be a task is none.
    app.call_tool("s", "both", "{}").await.unwrap();
    assert!(fake.seen_of("tools/call")[1].params().get("task").is_none());

    // Giving up is told to the task.
    let call = {
        let app = app.clone();
        tokio::spawn(async move { app.call_tool("s", "job", "{}").await })
    };
    let question = updates.pending().await;
    call.abort();
    fake.wait_method("tasks/cancel").await;
    assert_eq!(
        updates.end_of(&question.id).await,
        ElicitationState::Cancelled
    );
}
