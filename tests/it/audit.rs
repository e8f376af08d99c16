//! The audit log: who did what on which server, with which outcome; one record each, and nothing that is nobody's business.

use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt as _;

use mcp_sidecar_tests::audit::records;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::{ApprovalAction, ApprovalPolicy, ElicitationAction};

use crate::questions::{Way, asking, complete, start_call, with_forms};

const SECRET: &str = "planted-argument-9c1f";

fn is(event: &'static str) -> impl Fn(&Value) -> bool {
    move |record| record["event"] == event
}

/// The record says that this process did it, as itself.
#[track_caller]
fn assert_by_this_process(record: &Value) {
    let program = std::env::current_exe().unwrap();
    assert_eq!(
        record["uid"],
        rustix::process::getuid().as_raw(),
        "{record:#}"
    );
    assert_eq!(record["gid"], rustix::process::getgid().as_raw());
    assert_eq!(record["pid"], std::process::id());
    assert_eq!(record["program"], program.to_str().unwrap());
    assert!(record["rpc_id"].as_str().is_some_and(|id| !id.is_empty()));
    assert!(record["duration_ms"].is_u64());
    let time = record["time"].as_str().unwrap();
    assert!(time.starts_with("20") && time.ends_with('Z'), "{time}");
}

#[tokio::test]
async fn every_call_is_written_once_with_who_made_it_and_how_it_ended() {
    one_and_two_with(TestDaemon::builder().audited(), async |stage| {
        let fake = FakeMcp::modern()
            .tool(tool("echo"))
            .entry("resources", json!({"uri": "file:///a", "name": "a"}))
            .entry("prompts", json!({"name": "greet"}))
            .start()
            .await;
        fake.reply("resources/read", |_| {
            Reply::Json(json!({"resultType": "complete", "contents": []}))
        });
        fake.reply("prompts/get", |_| {
            Reply::Json(json!({"resultType": "complete", "messages": []}))
        });
        stage.add_http(&fake.url()).await;
        let app = stage.other();
        let arguments = json!({"text": SECRET}).to_string();
        app.call_tool("s", "echo", &arguments).await.unwrap();
        fake.reply("tools/call", |_| {
            Reply::Json(json!({"resultType": "complete", "isError": true, "content": []}))
        });
        assert!(
            app.call_tool("s", "echo", &arguments)
                .await
                .unwrap()
                .is_error
        );
        fake.reply("tools/call", |_| {
            Reply::Error(-32000, "it broke", Value::Null)
        });
        app.call_tool("s", "echo", &arguments).await.unwrap_err();
        app.call_tool("nowhere", "echo", &arguments)
            .await
            .unwrap_err();
        app.read("s", "file:///a").await.unwrap();
        app.prompt("s", "greet", HashMap::new()).await.unwrap();
        app.list_tools().await;
        app.in_namespace("elsewhere").get("s").await.unwrap_err();
        app.remove("s").await.unwrap();

        let removed = stage.daemon.audit_of("the removal", is("remove_server"));
        assert_eq!(removed.await["server"], "s");
        let all = stage.daemon.audit();
        let told: Vec<_> = all
            .iter()
            .map(|record| {
                let text = |name: &str| record[name].as_str().unwrap_or("-").to_owned();
                let subject = ["tool", "resource", "prompt"].map(text).join(" ");
                [text("event"), text("server"), subject, text("outcome")].join(" ")
            })
            .collect();
        assert_eq!(
            told,
            [
                "add_server s - - - ok",
                "tool_call s echo - - ok",
                "tool_call s echo - - tool_error",
                "tool_call s echo - - UPSTREAM_ERROR",
                "tool_call nowhere echo - - SERVER_NOT_FOUND",
                "resource_read s - file:///a - ok",
                "prompt_get s - - greet ok",
                "remove_server s - - - ok",
            ]
        );
        for record in &all {
            assert_by_this_process(record);
            assert_eq!(record["namespace"], "default");
        }
        assert!(all[1]["call_id"].is_string() && all[4]["call_id"].is_null());
        let file = stage.daemon.data_dir().join("audit.log");
        let mode = std::fs::metadata(&file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains(SECRET), "{text}");
    })
    .await;
}

#[tokio::test]
async fn a_call_that_outlives_its_caller_is_written_once_at_its_end_with_who_began_it() {
    let mut stage = Stage::set(TestDaemon::builder().audited(), 1).await;
    let fake = asking(Way::Result).await;
    stage
        .add("s", with_forms(http_spec("S", &fake.url())))
        .await;
    let mut updates = stage.app().updates("").await;
    let guest = stage.daemon.clients().await;
    let id = guest.detach("s", "ask", "{}").await;
    drop(guest);
    let question = updates.pending().await;
    // It rests over the end of the daemon; nothing is told of it before its own end.
    stage.restart().await;
    assert!(
        stage
            .daemon
            .audit()
            .iter()
            .all(|record| record["event"] == "add_server")
    );
    let answer = json!({"name": SECRET}).to_string();
    stage.app().accept(&question.id, &answer).await.unwrap();
    stage.app().wait_call(&id).await;

    let call = stage
        .daemon
        .audit_of("the end of the call", is("tool_call"))
        .await;
    assert_eq!(
        (&call["call_id"], &call["outcome"]),
        (&json!(id), &json!("ok"))
    );
    assert_by_this_process(&call);
    let answered = stage
        .daemon
        .audit_of("the answer", is("respond_elicitation"))
        .await;
    assert_by_this_process(&answered);
    assert_eq!(
        ["question_id", "mode", "action", "call_id", "server"].map(|name| answered[name].clone()),
        [&question.id, "form", "accept", &id, "s"].map(|text| json!(text))
    );
    assert!(!format!("{:?}", stage.daemon.audit()).contains(SECRET));
}

#[tokio::test]
async fn calls_that_end_otherwise_say_how() {
    let mut stage = Stage::set(TestDaemon::builder().audited(), 1).await;
    let fake = FakeMcp::echo(true).await;
    fake.reply("tools/call", |_| Reply::Hang);
    stage.add_http(&fake.url()).await;
    let app = stage.app().clone();
    // Its caller leaves.
    let leaving = tokio::spawn(async move { app.call_tool("s", "echo", "{}").await });
    fake.wait_method("tools/call").await;
    leaving.abort();
    let outcome = |outcome: &'static str| {
        move |record: &Value| record["event"] == "tool_call" && record["outcome"] == outcome
    };
    let left = stage
        .daemon
        .audit_of("the caller's leaving", outcome("CANCELLED"))
        .await;
    // Its time is over.
    let call = stage.app().call("s", "echo", "{}");
    let late = v1::CallToolRequest { call: Some(call) };
    let late = stage.daemon.call_within(late, Duration::from_millis(200));
    late.await.unwrap_err();
    stage
        .daemon
        .audit_of("the deadline", outcome("DEADLINE_EXCEEDED"))
        .await;
    // A second RPC asks for the same call; it is told as what it is.
    let named = v1::ToolCall {
        request_id: "order-17".to_owned(),
        detach: true,
        ..stage.app().call("s", "echo", "{}")
    };
    let request = v1::CallToolRequest { call: Some(named) };
    let first = stage
        .app()
        .tools()
        .call_tool(request.clone())
        .await
        .unwrap();
    let again = stage.app().tools().call_tool(request).await.unwrap();
    let id = first.into_inner().call_id;
    assert_eq!(again.into_inner().call_id, id);
    let joined = |record: &Value| record["joined"] == true;
    let joined = stage.daemon.audit_of("the second RPC", joined).await;
    assert_eq!(
        (&joined["call_id"], &joined["outcome"]),
        (&json!(id), &json!("ok"))
    );
    // The daemon dies in the middle of it.
    eventually("the call at its server", PATIENCE, async || {
        (fake.seen_of("tools/call").len() == 3).then_some(())
    })
    .await;
    stage.daemon.kill9().await;
    stage.restart().await;
    let lost = stage
        .daemon
        .audit_of("the end of the daemon", outcome("OUTCOME_UNKNOWN"))
        .await;
    assert_eq!(
        (&lost["call_id"], &lost["request_id"]),
        (&json!(id), &json!("order-17"))
    );
    for record in [&left, &lost] {
        assert_by_this_process(record);
    }
}

#[tokio::test]
async fn whoever_approved_a_call_or_did_not_is_known() {
    one_and_two_with(TestDaemon::builder().audited(), async |stage| {
        let fake = FakeMcp::echo(true).await;
        let mut spec = http_spec("S", &fake.url());
        spec.approval = Some(ApprovalPolicy {
            default_action: ApprovalAction::Ask.into(),
            ..Default::default()
        });
        stage.add("s", spec).await;
        let mut updates = stage.other().updates("").await;
        updates.snapshot().await;
        for (action, name, outcome) in [
            (ElicitationAction::Accept, "accept", "ok"),
            (ElicitationAction::Decline, "decline", "CALL_NOT_APPROVED"),
        ] {
            let id = stage.app().detach("s", "echo", "{}").await;
            let question = updates.pending().await;
            let answer = stage.other().respond(&question.id, action, None);
            answer.await.unwrap();
            let answered = |record: &Value| record["question_id"] == question.id.as_str();
            let answered = stage.daemon.audit_of("the approval", answered).await;
            assert_eq!(
                (&answered["mode"], &answered["action"]),
                (&json!("approval"), &json!(name))
            );
            assert_eq!(answered["call_id"], id.as_str());
            assert_by_this_process(&answered);
            let ended =
                |record: &Value| record["event"] == "tool_call" && record["call_id"] == id.as_str();
            assert_eq!(
                stage.daemon.audit_of("the call", ended).await["outcome"],
                outcome
            );
        }
    })
    .await;
}

#[tokio::test]
async fn sign_ins_and_sign_outs_are_written_whoever_completes_them() {
    protected_with(watched().audited(), async |set| {
        let url = set.add_protected().await;
        set.browser.visit(&url).await;
        set.all_ready().await;
        let by_browser = set
            .daemon
            .audit_of("the browser", is("browser_sign_in"))
            .await;
        assert_eq!(
            (
                &by_browser["server"],
                &by_browser["outcome"],
                &by_browser["uid"]
            ),
            (&json!("s"), &json!("ok"), &Value::Null)
        );
        set.app().sign_out("s").await.unwrap();
        let signed_out = set.daemon.audit_of("the sign-out", is("sign_out")).await;
        assert_eq!(signed_out["server"], "s");
        assert_by_this_process(&signed_out);
        set.app().start_sign_in("s").await.unwrap();
        let begun = set
            .daemon
            .audit_of("the sign-in", is("start_sign_in"))
            .await;
        assert_eq!(begun["server"], "s");
    })
    .await;
}

#[tokio::test]
async fn arguments_are_written_only_where_the_operator_wants_them_and_only_so_many() {
    let builder = TestDaemon::builder().audited().set("audit.arguments", true);
    let stage = Stage::set(builder.set("audit.arguments_bytes", 20), 1).await;
    let fake = FakeMcp::echo(true).await;
    stage.add_http(&fake.url()).await;
    stage
        .app()
        .call_tool("s", "echo", r#"{"n":1}"#)
        .await
        .unwrap();
    let long = json!({"n": "1".repeat(100)}).to_string();
    stage.app().detach("s", "echo", &long).await;
    let shown = |text: &'static str| move |record: &Value| record["arguments"] == text;
    let short = stage
        .daemon
        .audit_of("the short ones", shown(r#"{"n":1}"#))
        .await;
    assert!(short["arguments_bytes"].is_null());
    let cut = stage
        .daemon
        .audit_of("the long ones", shown(r#"{"n":"11111111111111"#));
    assert_eq!(cut.await["arguments_bytes"], long.len());
}

#[tokio::test]
async fn after_a_rotation_the_daemon_writes_to_the_new_file() {
    let stage = Stage::set(TestDaemon::builder().audited(), 1).await;
    let fake = FakeMcp::echo(true).await;
    stage.add_http(&fake.url()).await;
    stage.daemon.audit_of("the server", is("add_server")).await;
    let file = stage.daemon.data_dir().join("audit.log");
    let rotated = stage.daemon.data_dir().join("audit.log.1");
    std::fs::rename(&file, &rotated).unwrap();
    stage.daemon.hang_up();
    stage
        .daemon
        .log_holds("the audit log was opened anew")
        .await;
    stage.app().call_tool("s", "echo", "{}").await.unwrap();
    stage.daemon.audit_of("the call", is("tool_call")).await;
    let old = records(&rotated);
    assert!(old.len() == 1 && old[0]["event"] == "add_server", "{old:?}");
}

#[tokio::test]
async fn records_can_be_lines_of_the_daemons_log() {
    let builder = TestDaemon::builder()
        .set("audit.destination", "journal")
        .set("log.format", "json");
    let stage = Stage::set(builder, 1).await;
    let fake = FakeMcp::echo(true).await;
    stage.add_http(&fake.url()).await;
    stage.app().call_tool("s", "echo", "{}").await.unwrap();
    let line = eventually("the record in the log", PATIENCE, async || {
        let log = stage.daemon.log();
        let lines = log
            .lines()
            .filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let mut lines = lines.filter(|line| line["target"] == "audit");
        lines.find(|line| line["event"] == "tool_call")
    })
    .await;
    assert_eq!(
        (&line["tool"], &line["outcome"]),
        (&json!("echo"), &json!("ok"))
    );
    assert_by_this_process(&line);

    let swallowed = TestDaemon::builder().set("audit.destination", "journal");
    let (status, log) = swallowed.set("log.filter", "error").start_and_fail().await;
    assert!(
        !status.success() && log.contains("add `audit=info`"),
        "{log}"
    );
}

#[tokio::test]
async fn nothing_begins_that_cannot_be_audited_unless_the_operator_prefers_that() {
    // A device on which there is never room.
    let full = |when_full: &str| {
        TestDaemon::builder()
            .audited()
            .set("audit.file", "/dev/full")
            .set("audit.queue", 10)
            .set("audit.wait", "100ms")
            .set("audit.when_full", when_full)
    };
    let fake = FakeMcp::echo(true).await;
    fake.reply("tools/call", |_| Reply::Json(complete(&json!("done"))));

    let stage = Stage::set(full("block"), 1).await;
    stage.add_http(&fake.url()).await;
    let refused = eventually("a call that is not made", PATIENCE, async || {
        stage.app().call_tool("s", "echo", "{}").await.err()
    })
    .await;
    ErrorFacts::expect(Err::<(), _>(refused), Code::ResourceExhausted, "TOO_MANY");
    let made = fake.seen_of("tools/call").len();
    stage.app().call_tool("s", "echo", "{}").await.unwrap_err();
    assert_eq!(
        fake.seen_of("tools/call").len(),
        made,
        "the server knows nothing of it"
    );
    // What only reads is not held up.
    assert_eq!(stage.app().list_tools().await.len(), 1);
    stage
        .daemon
        .log_holds("the audit log cannot be written")
        .await;

    let stage = Stage::set(full("drop"), 1).await;
    stage.add_http(&fake.url()).await;
    for _ in 0..30 {
        stage.app().call_tool("s", "echo", "{}").await.unwrap();
    }
    let mut daemon = stage.daemon;
    daemon.terminate().await;
    assert!(
        daemon.log().contains("audit records were lost"),
        "{}",
        daemon.log()
    );
}

#[tokio::test]
async fn a_file_that_is_a_link_is_not_written_through() {
    let home = tempfile::tempdir().unwrap();
    let (target, link) = (home.path().join("target"), home.path().join("link"));
    std::os::unix::fs::symlink(&target, &link).unwrap();
    let builder = TestDaemon::builder().audited();
    let builder = builder.set("audit.file", link.to_str().unwrap());
    let (status, log) = builder.start_and_fail().await;
    assert!(!status.success() && log.contains("audit.file"), "{log}");
    assert!(!target.exists());
}

#[tokio::test]
async fn no_audit_log_is_written_by_default() {
    let stage = Stage::set(TestDaemon::builder(), 1).await;
    let fake = FakeMcp::echo(true).await;
    stage.add_http(&fake.url()).await;
    start_call(stage.app(), "s").await.unwrap().unwrap_err();
    assert!(!stage.daemon.data_dir().join("audit.log").exists());
}
