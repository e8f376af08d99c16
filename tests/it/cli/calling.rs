//! Calls of tools from the command line.

use mcp_sidecar_tests::cli::{Invocation, finish};
use mcp_sidecar_tests::fake::{SseWriter, stream};
use mcp_sidecar_tests::prelude::*;

/// A server whose `add` takes typed arguments, and whose `fail` reports an error.
async fn calculator() -> FakeMcp {
    let schema = json!({"type": "object", "properties": {
        "n": {"type": "integer"}, "word": {"type": "string"},
        "list": {"type": "array", "items": {"type": "string"}},
    }});
    let add = json!({"name": "add", "inputSchema": schema});
    let fake = FakeMcp::modern()
        .tool(add)
        .tool(tool("fail"))
        .tool(tool("echo"));
    let fake = fake.start().await;
    fake.reply("tools/call", |seen| match seen.tool() {
        "fail" => Reply::Json(json!({
            "resultType": "complete", "isError": true,
            "content": [{"type": "text", "text": "it broke"}],
        })),
        _ => Reply::Default,
    });
    fake
}

async fn ready() -> (TestDaemon, FakeMcp) {
    let (daemon, fake) = (TestDaemon::start().await, calculator().await);
    daemon
        .cli(&["servers", "add", &fake.url(), "--id", "calc"])
        .await
        .ok();
    (daemon, fake)
}

#[tokio::test]
async fn arguments_are_json_or_key_and_value_typed_by_the_schema() {
    let (daemon, fake) = ready().await;
    let call = async |arguments: &[&str]| {
        let said = daemon
            .cli(&[&["tools", "call"], arguments].concat())
            .await
            .ok();
        let calls = fake.seen_of("tools/call");
        (calls.last().unwrap().arguments(), said)
    };
    let typed = r#"{"n":12345678901234567890123,"word":"7","list":["a","b"]}"#;
    let given = [
        "calc/add",
        "n=12345678901234567890123",
        "word=7",
        "list=a",
        "list=b",
    ];
    assert_eq!(call(&given).await, (typed.to_owned(), format!("{typed}\n")));
    // By its name alone, by its model name, with raw JSON.
    let json = r#"{"n": 1.10}"#;
    for name in ["add", "tool_calc_add", "mcp__calc__add"] {
        assert_eq!(call(&[name, json]).await.0, json, "{name}");
    }
    assert_eq!(
        call(&["add", "word:={\"a\":1}"]).await.0,
        r#"{"word":{"a":1}}"#
    );
    let stdin = Invocation::new(&["tools", "call", "add", "-"]).stdin("{\"n\": 2}");
    assert_eq!(stdin.run(daemon.socket()).await.ok(), "{\"n\": 2}\n");
    let refused = daemon.cli(&["tools", "call", "add", "n=two"]).await;
    refused.fails(2, "`n` must be a number");
    daemon
        .cli(&["tools", "call", "add", "[1]"])
        .await
        .fails(2, "key=value");
}

#[tokio::test]
async fn a_tool_that_reports_an_error_and_a_tool_that_is_unknown_end_differently() {
    let (daemon, _fake) = ready().await;
    let failed = daemon.cli(&["tools", "call", "fail"]).await;
    assert_eq!(
        failed.fails(4, "the tool reports an error").stdout,
        "it broke\n"
    );
    let failed = daemon
        .cli(&["tools", "call", "fail", "-o", "json"])
        .await
        .ends_with(4);
    let answer: Value = serde_json::from_str(&failed.stdout).unwrap();
    assert_eq!(answer["result"]["isError"], true);
    daemon
        .cli(&["tools", "call", "calc/nothing"])
        .await
        .fails(1, "TOOL_NOT_FOUND");
    daemon
        .cli(&["tools", "call", "nothing"])
        .await
        .fails(1, "TOOL_NOT_FOUND");
}

#[tokio::test]
async fn a_name_that_several_servers_have_is_refused_with_all_of_them() {
    let (daemon, fake) = ready().await;
    daemon
        .cli(&[
            "servers",
            "add",
            &fake.url(),
            "--id",
            "other",
            "--name",
            "Other",
        ])
        .await
        .ok();
    let refused = daemon.cli(&["tools", "call", "add"]).await;
    refused.fails(2, "`calc/add`, `other/add`");
}

#[tokio::test]
async fn a_detached_call_is_waited_for_later_and_a_request_id_makes_it_once() {
    let (daemon, fake) = ready().await;
    let detach = ["tools", "call", "echo", "n:=1", "--detach"];
    let id = daemon.cli(&detach).await.ok();
    assert_eq!(
        daemon.cli(&["calls", "wait", id.trim()]).await.ok(),
        "{\"n\":1}\n"
    );
    let shown = daemon
        .cli(&["calls", "show", id.trim(), "-o", "json"])
        .await
        .json();
    assert_eq!(shown["state"], "CALL_STATE_COMPLETED");
    assert!(
        daemon
            .cli(&["calls", "list", "--all"])
            .await
            .ok()
            .contains("completed")
    );
    assert_eq!(daemon.cli(&["calls", "list"]).await.ok(), "");

    let named = [
        "tools",
        "call",
        "echo",
        "--request-id",
        "once",
        "-o",
        "json",
    ];
    let first = daemon.cli(&named).await.json();
    assert_eq!(daemon.cli(&named).await.json()["callId"], first["callId"]);
    assert_eq!(fake.seen_of("tools/call").len(), 2);
    let found = daemon
        .cli(&["calls", "show", "--request-id", "once", "-o", "json"])
        .await
        .json();
    assert_eq!(found["id"], first["callId"]);
}

/// Progress, a log message, and no end.
fn long(seen: &Seen) -> Reply {
    let token = seen.params()["_meta"]["progressToken"].clone();
    let progress = json!({
        "jsonrpc": "2.0", "method": "notifications/progress",
        "params": {"progressToken": token, "progress": 1, "total": 4, "message": "baking"},
    });
    let log = json!({
        "jsonrpc": "2.0", "method": "notifications/message",
        "params": {"level": "warning", "logger": "oven", "data": "hot\u{1b}[1m"},
    });
    stream(async move |writer: SseWriter| {
        writer.message(&progress).await;
        writer.message(&log).await;
        writer.closed().await;
    })
}

#[tokio::test]
async fn ctrl_c_cancels_the_call_at_the_server() {
    let (daemon, fake) = ready().await;
    fake.reply("tools/call", long);
    let call = ["tools", "call", "echo", "--log-level", "debug"];
    let mut terminal = daemon.cli_terminal(&call).await;
    terminal.expect("oven").await;
    terminal.expect("hot\\u{1b}[1m").await;
    terminal.expect("25%").await;
    terminal.expect("baking").await;
    let call = fake.wait_method("tools/call").await;
    terminal.press("\u{3}").await;
    let (code, _) = terminal.end().await;
    assert_eq!(code, 130);
    fake.wait_dropped(call.index).await;
    daemon.comes_to_rest().await;
}

#[tokio::test]
async fn a_call_that_is_cancelled_or_takes_too_long_is_refused() {
    let (daemon, fake) = ready().await;
    fake.reply("tools/call", |_| Reply::Hang);
    let late = daemon
        .cli(&["tools", "call", "echo", "--timeout", "300ms"])
        .await;
    late.fails(1, "DEADLINE_EXCEEDED");
    let child = Invocation::new(&["tools", "call", "echo"])
        .start(daemon.socket())
        .await;
    let id = eventually("the call", PATIENCE, async || {
        let calls = daemon.cli(&["calls", "list", "-o", "json"]).await.json();
        calls["calls"][0]["id"].as_str().map(str::to_owned)
    });
    daemon.cli(&["calls", "cancel", &id.await]).await.ok();
    finish(child).await.fails(1, "CANCELLED");
}

#[tokio::test]
async fn events_are_lines_and_progress_is_no_part_of_the_result() {
    let (daemon, fake) = ready().await;
    fake.reply("tools/call", |seen| {
        let token = seen.params()["_meta"]["progressToken"].clone();
        let progress = json!({
            "jsonrpc": "2.0", "method": "notifications/progress",
            "params": {"progressToken": token, "progress": 1},
        });
        let result = json!({"resultType": "complete", "content": []});
        Reply::Sse(vec![Step::Message(progress), Step::Result(result)])
    });
    let events = daemon
        .cli(&["tools", "call", "echo", "--events"])
        .await
        .ok();
    let lines = events
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap());
    let kinds: Vec<String> = lines
        .map(|event| event.as_object().unwrap().keys().next().unwrap().clone())
        .collect();
    assert_eq!(kinds, ["started", "progress", "result"]);
    let plain = daemon.cli(&["tools", "call", "echo"]).await.ends_with(0);
    assert_eq!((plain.stdout, plain.stderr), (String::new(), String::new()));
}
