//! Tasks over every transport of both eras.

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::Isolation;

use crate::odd_tasks::{begin, end};
use crate::tasks::{ID, completed, created, goes_through, seen_count, working};

/// A legacy server whose tool runs as a task that is at work at first, and done then.
async fn legacy(builder: mcp_sidecar_tests::fake::Builder) -> FakeMcp {
    let mut job = tool("job");
    job["execution"] = json!({"taskSupport": "required"});
    let capability = json!({"cancel": {}, "requests": {"tools": {"call": {}}}});
    let fake = builder
        .tool(job)
        .capability("tasks", capability)
        .start()
        .await;
    let state =
        |status: &str| json!({"taskId": ID, "status": status, "ttl": null, "pollInterval": 100});
    fake.reply("tools/call", move |_| {
        Reply::Json(json!({"task": state("working")}))
    });
    goes_through(&fake, [state("working"), state("completed")]);
    fake.reply("tasks/result", |_| {
        Reply::Json(json!({"content": [{"type": "text", "text": "done"}]}))
    });
    fake
}

#[tokio::test]
async fn tasks_run_over_every_transport() {
    let modern = [
        FakeMcp::modern(),
        FakeMcp::modern().sse(),
        FakeMcp::modern().on_socket(),
        FakeMcp::modern().lines(),
    ];
    let old = [
        FakeMcp::legacy(),
        FakeMcp::legacy().sse(),
        FakeMcp::legacy().sessionless(),
        FakeMcp::legacy().http_sse(),
        FakeMcp::legacy().on_socket(),
        FakeMcp::legacy().lines(),
    ];
    let mut fakes = Vec::new();
    for builder in modern {
        let fake = builder.tool(tool("job")).start().await;
        fake.reply("tools/call", |_| Reply::Json(created(&working())));
        goes_through(&fake, [working(), completed()]);
        fakes.push((fake, 2));
    }
    for builder in old {
        fakes.push((legacy(builder).await, 2));
    }
    let specs = [
        http_spec("S", &fakes[0].0.url()),
        http_spec("S", &fakes[1].0.url()),
        socket_spec("S", &fakes[2].0.socket(), v1::UnixSocketProtocol::Http),
        socket_spec("S", &fakes[3].0.socket(), v1::UnixSocketProtocol::Ndjson),
        http_spec("S", &fakes[4].0.url()),
        http_spec("S", &fakes[5].0.url()),
        http_spec("S", &fakes[6].0.url()),
        http_spec("S", &fakes[7].0.url()),
        socket_spec("S", &fakes[8].0.socket(), v1::UnixSocketProtocol::Http),
        socket_spec("S", &fakes[9].0.socket(), v1::UnixSocketProtocol::Ndjson),
    ];
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    for (number, (spec, (fake, looks))) in specs.into_iter().zip(fakes).enumerate() {
        app.add("s", spec).await.unwrap();
        app.wait_for("s", ConnectionState::Ready).await;
        let result = end(begin(&app)).await;
        assert_eq!(text_of(&result.unwrap()), "done", "{number}");
        assert_eq!(fake.seen_of("tasks/get").len(), looks, "{number}");
        assert!(fake.seen_of("tasks/cancel").is_empty(), "{number}");
        // One that is given up, and one whose server is taken away.
        fake.reply("tasks/get", |seen| {
            let id = &seen.params()["taskId"];
            Reply::Json(json!({"taskId": id, "status": "working", "pollInterval": 100}))
        });
        let looks = looks + 1;
        let call = begin(&app);
        seen_count(&fake, "tasks/get", looks).await;
        call.abort();
        seen_count(&fake, "tasks/cancel", 1).await;
        let call = begin(&app);
        seen_count(&fake, "tasks/get", fake.seen_of("tasks/get").len() + 1).await;
        app.remove("s").await.unwrap();
        ErrorFacts::expect(end(call).await, Code::Unavailable, "OUTCOME_UNKNOWN");
        assert_eq!(fake.seen_of("tasks/cancel").len(), 2, "{number}");
    }
}

#[tokio::test]
async fn a_task_of_an_own_session_goes_on_in_the_next_one() {
    let fake = legacy(FakeMcp::legacy()).await;
    fake.reply("tasks/get", |_| {
        Reply::Json(json!({"taskId": ID, "status": "working", "pollInterval": 100}))
    });
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let mut spec = http_spec("S", &fake.url());
    spec.isolation = Isolation::PerConnection.into();
    app.add("s", spec).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let call = begin(&app);
    seen_count(&fake, "tasks/get", 2).await;
    fake.end_sessions();
    seen_count(&fake, "initialize", 3).await;
    fake.reply("tasks/get", |_| {
        Reply::Json(json!({"taskId": ID, "status": "completed"}))
    });
    assert_eq!(text_of(&end(call).await.unwrap()), "done");
    assert_eq!(fake.seen_of("tools/call").len(), 1);
}
