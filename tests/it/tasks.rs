//! Calls that a server runs as tasks: waited for to their end, with their questions, through losses.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use mcp_sidecar_tests::peers::catalogue;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::ElicitationState;
use mcp_sidecar_tests::v1::call_tool_stream_response::Event;

use crate::calls::app_with;
use crate::questions::with_forms;

pub(crate) const ID: &str = "task 1/é";
const RESULT: &str = r#"{"resultType":"complete","content":[{"type":"text","text":"done"}],"structuredContent":{"n":9007199254740993,"x":1.10},"_meta":{"com.example/k":1.0}}"#;

/// A task in a state, as `tasks/get` shows it.
pub(crate) fn task(status: &str, more: &Value) -> Value {
    let mut task = json!({
        "resultType": "complete", "taskId": ID, "status": status, "ttlMs": 60000, "pollIntervalMs": 100,
        "createdAt": "2026-11-30T10:00:00Z", "lastUpdatedAt": "2026-11-30T10:00:00Z",
    });
    let more = more.as_object().cloned().unwrap_or_default();
    task.as_object_mut().unwrap().extend(more);
    task
}

pub(crate) fn working() -> Value {
    task("working", &Value::Null)
}

pub(crate) fn completed() -> Value {
    let done = json!({"content": [{"type": "text", "text": "done"}]});
    task("completed", &json!({"result": done}))
}

pub(crate) fn asking(keys: &[&str]) -> Value {
    let requests = keys.iter().map(|key| (key.to_string(), question(key)));
    let requests: serde_json::Map<_, _> = requests.collect();
    task("input_required", &json!({"inputRequests": requests}))
}

pub(crate) fn question(message: &str) -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    let params = json!({"mode": "form", "message": message, "requestedSchema": schema});
    json!({"method": "elicitation/create", "params": params})
}

/// A modern server whose tool runs as a task that goes through these states; the last one stays.
pub(crate) async fn job(states: impl IntoIterator<Item = Value>) -> FakeMcp {
    let fake = FakeMcp::modern().tool(tool("job")).start().await;
    fake.reply("tools/call", |_| Reply::Json(created(&working())));
    goes_through(&fake, states);
    fake
}

pub(crate) fn created(seed: &Value) -> Value {
    let mut seed = seed.clone();
    seed["resultType"] = json!("task");
    seed
}

pub(crate) fn goes_through(fake: &FakeMcp, states: impl IntoIterator<Item = Value>) {
    let states = Mutex::new(states.into_iter().collect::<VecDeque<_>>());
    fake.reply("tasks/get", move |_| {
        let mut states = states.lock().unwrap();
        let state = states[0].clone();
        if states.len() > 1 {
            states.pop_front();
        }
        Reply::Json(state)
    });
    for method in ["tasks/update", "tasks/cancel"] {
        fake.reply(method, |_| Reply::Json(json!({"resultType": "complete"})));
    }
}

/// The same on which a test changes the state by hand.
#[derive(Clone)]
pub(crate) struct ByHand(Arc<Mutex<Value>>);

impl ByHand {
    pub(crate) async fn start(state: Value) -> (FakeMcp, Self) {
        let fake = job([working()]).await;
        let hand = Self(Arc::new(Mutex::new(state)));
        let shown = hand.clone();
        fake.reply("tasks/get", move |_| {
            Reply::Json(shown.0.lock().unwrap().clone())
        });
        (fake, hand)
    }

    pub(crate) fn set(&self, state: Value) {
        *self.0.lock().unwrap() = state;
    }
}

pub(crate) async fn seen_count(fake: &FakeMcp, method: &str, count: usize) {
    eventually("the requests", PATIENCE, async || {
        (fake.seen_of(method).len() >= count).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_task_is_waited_for_and_its_result_is_that_of_the_call() {
    let fake = job([working()]).await;
    let done = format!(
        r#"{{"resultType":"complete","taskId":"{ID}","status":"completed","ttlMs":null,"createdAt":"x","lastUpdatedAt":"x","result":{RESULT}}}"#
    );
    let looks = Mutex::new(0);
    fake.reply("tasks/get", move |_| {
        let mut looks = looks.lock().unwrap();
        *looks += 1;
        match *looks {
            1 | 2 => Reply::Json(task("working", &json!({"statusMessage": "half way"}))),
            _ => Reply::Text(done.clone()),
        }
    });
    let (_daemon, app) = app_with(&fake).await;

    let result = app.call_tool("s", "job", "{}").await.unwrap();
    assert_eq!(text_of(&result), "done");
    assert_eq!(
        result.structured_content_json.as_deref(),
        Some(r#"{"n":9007199254740993,"x":1.10}"#)
    );
    assert_eq!(result.meta_json, r#"{"com.example/k":1.0}"#);

    let call = &fake.seen_of("tools/call")[0];
    let capabilities = &call.params()["_meta"]["io.modelcontextprotocol/clientCapabilities"];
    assert_eq!(
        capabilities["extensions"]["io.modelcontextprotocol/tasks"],
        json!({})
    );
    let looks = fake.seen_of("tasks/get");
    assert_eq!(looks.len(), 3);
    for look in &looks {
        assert_eq!(look.params()["taskId"], ID);
        assert_eq!(look.header("mcp-method"), "tasks/get");
        assert!(look.header("mcp-name").starts_with("=?base64?"), "{look:?}");
    }
    // Nothing is cancelled that has ended.
    assert!(fake.seen_of("tasks/cancel").is_empty());
}

#[tokio::test]
async fn an_app_sees_how_a_task_is_doing() {
    let fake = job([
        task("working", &json!({"statusMessage": "half way"})),
        task("working", &json!({"statusMessage": "half way"})),
        completed(),
    ])
    .await;
    let (_daemon, app) = app_with(&fake).await;
    let events = app.call_stream("s", "job", "{}").await.unwrap();
    let events = events.collect().await.unwrap();
    let told = events.iter().filter_map(|event| match event {
        Event::Task(task) => Some((task.status.as_str(), task.message.as_str())),
        _ => None,
    });
    assert_eq!(
        told.collect::<Vec<_>>(),
        [("working", ""), ("working", "half way"), ("completed", "")]
    );
    assert!(
        matches!(events.last(), Some(Event::Result(_))),
        "{events:?}"
    );
}

#[tokio::test]
async fn a_task_asks_through_the_queue_and_each_question_once() {
    one_and_two(async |stage| {
        let (fake, hand) = ByHand::start(asking(&["first", "second"])).await;
        stage
            .add("s", with_forms(http_spec("S", &fake.url())))
            .await;
        let mut updates = stage.other().updates("").await;
        updates.snapshot().await;
        let call = {
            let app = stage.app().clone();
            tokio::spawn(async move { app.call_tool("s", "job", "{}").await })
        };
        let (one, two) = (updates.pending().await, updates.pending().await);
        let (first, second) = if one.message == "first" {
            (one, two)
        } else {
            (two, one)
        };
        assert_eq!(
            (first.message.as_str(), second.message.as_str()),
            ("first", "second")
        );
        assert_eq!(first.call_id, second.call_id);
        assert!(!first.call_id.is_empty());
        // The server shows both again and again: nobody is asked twice.
        let looks = fake.seen_of("tasks/get").len();
        seen_count(&fake, "tasks/get", looks + 2).await;

        let answer = r#"{"name":"Ada","n":9007199254740993}"#;
        stage.other().accept(&first.id, answer).await.unwrap();
        let update = fake.wait_method("tasks/update").await;
        assert_eq!(update.params()["taskId"], ID);
        let responses = update.params()["inputResponses"].as_object().unwrap();
        assert_eq!(responses.len(), 1, "{responses:?}");
        assert!(update.text().contains(answer), "{}", update.text());
        // It is not answered twice either, while the server has not taken note.
        let looks = fake.seen_of("tasks/get").len();
        seen_count(&fake, "tasks/get", looks + 2).await;
        assert_eq!(fake.seen_of("tasks/update").len(), 1);

        // What the server no longer wants to know is withdrawn.
        hand.set(working());
        assert_eq!(
            updates.end_of(&second.id).await,
            ElicitationState::Cancelled
        );
        let late = stage.other().accept(&second.id, answer).await;
        ErrorFacts::expect(late, Code::FailedPrecondition, "ALREADY_RESOLVED");
        hand.set(completed());
        let result = within("the call", call).await.unwrap().unwrap();
        assert_eq!(text_of(&result), "done");
        let listed = stage.app().elicitations();
        let listed = listed
            .clone()
            .list_elicitations(v1::ListElicitationsRequest::default())
            .await;
        assert_eq!(listed.unwrap().into_inner().elicitations.len(), 0);
    })
    .await;
}

#[tokio::test]
async fn the_end_of_a_task_is_the_end_of_the_call() {
    let failed =
        json!({"code": -32050, "message": "no paper", "data": {"tray": 9_007_199_254_740_993_u64}});
    let fake = job([task("failed", &json!({"error": failed}))]).await;
    let (_daemon, app) = app_with(&fake).await;
    let facts = ErrorFacts::expect(
        app.call_tool("s", "job", "{}").await,
        Code::Unknown,
        "UPSTREAM_ERROR",
    );
    assert_eq!(facts.metadata["jsonrpc_code"], "-32050");
    assert_eq!(facts.metadata["data_json"], r#"{"tray":9007199254740993}"#);

    let tool_error = json!({"content": [{"type": "text", "text": "bad"}], "isError": true});
    goes_through(&fake, [task("completed", &json!({"result": tool_error}))]);
    assert!(app.call_tool("s", "job", "{}").await.unwrap().is_error);

    goes_through(
        &fake,
        [task(
            "cancelled",
            &json!({"statusMessage": "by the operator"}),
        )],
    );
    let facts = ErrorFacts::expect(
        app.call_tool("s", "job", "{}").await,
        Code::Unknown,
        "UPSTREAM_ERROR",
    );
    assert!(facts.message.contains("by the operator"), "{facts:?}");
    assert!(fake.seen_of("tasks/cancel").is_empty());

    // What became of a task that is not known any more, or makes no sense, nobody can tell.
    fake.reply("tasks/get", |_| {
        Reply::Error(-32602, "no such task", Value::Null)
    });
    let facts = ErrorFacts::expect(
        app.call_tool("s", "job", "{}").await,
        Code::Unavailable,
        "OUTCOME_UNKNOWN",
    );
    assert!(facts.message.contains("no such task"), "{facts:?}");
    for odd in [
        json!({"resultType": "complete"}),
        task("sleeping", &Value::Null),
        task("completed", &Value::Null),
        task("working", &json!({"taskId": "another"})),
    ] {
        goes_through(&fake, [odd.clone()]);
        let outcome = app.call_tool("s", "job", "{}").await;
        ErrorFacts::expect(outcome, Code::Unavailable, "OUTCOME_UNKNOWN");
    }
    // A seed that has ended is looked at like any other, and one without a handle is none.
    goes_through(&fake, [completed()]);
    fake.reply("tools/call", |_| {
        Reply::Json(created(&task("completed", &Value::Null)))
    });
    assert_eq!(
        text_of(&app.call_tool("s", "job", "{}").await.unwrap()),
        "done"
    );
    fake.reply("tools/call", |_| {
        Reply::Json(json!({"resultType": "task", "status": "working"}))
    });
    ErrorFacts::expect(
        app.call_tool("s", "job", "{}").await,
        Code::Unknown,
        "UPSTREAM_PROTOCOL",
    );
}

#[tokio::test]
async fn b35_who_gives_up_cancels_the_task() {
    one_and_two(async |stage| {
        let fake = job([working()]).await;
        stage.add_http(&fake.url()).await;
        let given_up = {
            let app = stage.app().clone();
            tokio::spawn(async move { app.call_tool("s", "job", "{}").await })
        };
        fake.wait_method("tasks/get").await;
        given_up.abort();
        let cancel = fake.wait_method("tasks/cancel").await;
        assert_eq!(cancel.params()["taskId"], ID);

        let bounded = v1::ToolCall {
            timeout: Some(millis(400)),
            ..stage.other().call("s", "job", "{}")
        };
        let outcome = stage.other().call_with(bounded).await;
        ErrorFacts::expect(outcome, Code::DeadlineExceeded, "UPSTREAM_TIMEOUT");
        seen_count(&fake, "tasks/cancel", 2).await;
        // The call itself was answered long ago.
        assert!(fake.seen_of("notifications/cancelled").is_empty());
    })
    .await;
}

#[tokio::test]
async fn a_pause_that_the_server_wants_is_no_silence() {
    let slow = |status: &str, more: &Value| {
        let mut slow = task(status, more);
        slow["pollIntervalMs"] = json!(700);
        slow
    };
    let fake = job([slow("working", &Value::Null), completed()]).await;
    let seed = slow("working", &Value::Null);
    fake.reply("tools/call", move |_| Reply::Json(created(&seed)));
    let (_daemon, app) = app_with(&fake).await;
    let call = || v1::ToolCall {
        idle_timeout: Some(millis(400)),
        ..app.call("s", "job", "{}")
    };
    assert_eq!(text_of(&app.call_with(call()).await.unwrap()), "done");
    // Silence behind it is.
    fake.reply("tasks/get", |_| Reply::Hang);
    ErrorFacts::expect(
        app.call_with(call()).await,
        Code::DeadlineExceeded,
        "UPSTREAM_TIMEOUT",
    );
    fake.wait_method("tasks/cancel").await;
}

#[tokio::test]
async fn a_lost_answer_about_a_task_loses_nothing() {
    let (fake, hand) = ByHand::start(asking(&["name"])).await;
    let looks = Arc::new(Mutex::new(0));
    let shown = hand.clone();
    fake.reply("tasks/get", move |_| {
        let mut looks = looks.lock().unwrap();
        *looks += 1;
        match *looks % 3 {
            1 => Reply::Reset,
            2 => Reply::Error(-32603, "a moment, please", Value::Null),
            _ => Reply::Json(shown.0.lock().unwrap().clone()),
        }
    });
    let updates_seen = Mutex::new(0);
    let after = hand.clone();
    fake.reply("tasks/update", move |_| {
        let mut seen = updates_seen.lock().unwrap();
        *seen += 1;
        if *seen == 1 {
            return Reply::Reset;
        }
        after.set(completed());
        Reply::Json(json!({"resultType": "complete"}))
    });
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
        tokio::spawn(async move { app.call_tool("s", "job", "{}").await })
    };
    let question = updates.pending().await;
    app.accept(&question.id, r#"{"name":"Ada"}"#).await.unwrap();
    let result = within("the call", call).await.unwrap().unwrap();
    assert_eq!(text_of(&result), "done");
    // The answer that was lost was given once more, and nobody was asked again.
    let answers = fake.seen_of("tasks/update");
    assert_eq!(answers.len(), 2);
    assert_eq!(
        answers[0].params()["inputResponses"],
        answers[1].params()["inputResponses"]
    );
    assert_eq!(fake.seen_of("tools/call").len(), 1);
}

#[tokio::test]
async fn a_task_outlives_its_server_for_a_while() {
    one_and_two_with(
        TestDaemon::builder().set("reconnect.liveness_interval", "200ms"),
        async |stage| {
            let fake = job([working()]).await;
            let addr = fake.addr();
            let mut spec = http_spec("S", &fake.url());
            spec.retry = Some(v1::RetryPolicy {
                max_attempts: Some(10),
                base_delay: Some(millis(50)),
                max_delay: Some(millis(100)),
            });
            stage.add("s", spec).await;
            let calls = stage
                .apps
                .iter()
                .cloned()
                .map(|app| tokio::spawn(async move { app.call_tool("s", "job", "{}").await }));
            let calls: Vec<_> = calls.collect();
            seen_count(&fake, "tasks/get", 2 * calls.len()).await;
            fake.stop().await;
            stage.app().wait_for("s", ConnectionState::Connecting).await;

            let fake = FakeMcp::modern().tool(tool("job")).at(addr).start().await;
            goes_through(&fake, [working(), completed()]);
            for call in calls {
                let result = within("the call", call).await.unwrap().unwrap();
                assert_eq!(text_of(&result), "done");
            }
            assert!(fake.seen_of("tools/call").is_empty());
            assert!(fake.seen_of("tasks/cancel").is_empty());
        },
    )
    .await;
}

#[tokio::test]
async fn a_task_ends_with_its_server() {
    let fake = job([working()]).await;
    let (_daemon, app) = app_with(&fake).await;
    let call = {
        let app = app.clone();
        tokio::spawn(async move { app.call_tool("s", "job", "{}").await })
    };
    fake.wait_method("tasks/get").await;
    app.remove("s").await.unwrap();
    let outcome = within("the call", call).await.unwrap();
    ErrorFacts::expect(outcome, Code::Unavailable, "OUTCOME_UNKNOWN");
}

#[tokio::test]
async fn real_servers_run_tasks_over_every_transport() {
    let demo = catalogue::demo_http(&[]).await;
    let specs = [
        ("http", http_spec("Demo", &demo.url)),
        ("stdio", catalogue::demo_stdio(&[]).await.spec("demo")),
    ];
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let mut updates = app.updates("").await;
    updates.snapshot().await;
    for (id, spec) in specs {
        app.add(id, with_forms(spec)).await.unwrap();
        app.wait_for(id, ConnectionState::Ready).await;
        let call = {
            let app = app.clone();
            tokio::spawn(async move { app.call_tool(id, "job", r#"{"steps":3,"ask":true}"#).await })
        };
        let question = updates.pending().await;
        assert_eq!(question.message, "Who wants to know?");
        app.accept(&question.id, r#"{"name":"Ada"}"#).await.unwrap();
        let result = within("the call", call).await.unwrap().unwrap();
        let text = text_of(&result);
        assert!(
            text.contains("3 steps done") && text.contains("Ada"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn the_everything_server_researches_as_a_task() {
    let line = catalogue::everything_stdio().await;
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    app.add("s", with_forms(line.spec("everything")))
        .await
        .unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let mut updates = app.updates("").await;
    updates.snapshot().await;
    let call = {
        let app = app.clone();
        let arguments = r#"{"topic":"python","ambiguous":true}"#;
        tokio::spawn(async move {
            let events = app
                .call_stream("s", "simulate-research-query", arguments)
                .await?;
            events.collect().await
        })
    };
    let question = updates.pending().await;
    let field = &question.fields[0];
    assert_eq!(field.name, "interpretation");
    let schema: Value = serde_json::from_str(&question.requested_schema_json).unwrap();
    let choice = &schema["properties"]["interpretation"]["oneOf"][0]["const"];
    let answer = json!({"interpretation": choice}).to_string();
    app.accept(&question.id, &answer).await.unwrap();
    let events = within("the call", call).await.unwrap().unwrap();
    let Some(Event::Result(result)) = events.last() else {
        panic!("{events:?}");
    };
    assert!(text_of(result).contains("Research Report"), "{result:?}");
    let statuses = events.iter().filter_map(|event| match event {
        Event::Task(task) => Some(task.status.as_str()),
        _ => None,
    });
    let statuses: Vec<_> = statuses.collect();
    assert!(
        statuses.contains(&"working") && statuses.contains(&"input_required"),
        "{statuses:?}"
    );
}
