//! The Go client in a module that has nothing else.

use std::path::{Path, PathBuf};

use mcp_sidecar_tests::asker::{asker, strange_token};
use mcp_sidecar_tests::peers::apps::{App, need_runtimes};
use mcp_sidecar_tests::peers::catalogue::demo_http;
use mcp_sidecar_tests::peers::packages::go_programs;
use mcp_sidecar_tests::peers::programs::blocks;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::workspace_dir;
use tokio::process::Command;

async fn built(name: &'static str, programs: Vec<(String, String)>) -> Vec<PathBuf> {
    let building = tokio::task::spawn_blocking(move || go_programs(name, &programs));
    building.await.unwrap()
}

fn program(daemon: &Path, program: &Path) -> Command {
    let mut command = Command::new(program);
    command.env("MCP_SIDECAR_SOCKET", daemon);
    command
}

/// A daemon with the servers that the programs use.
async fn stage() -> (TestDaemon, mcp_sidecar_tests::peers::HttpPeer, FakeMcp) {
    let daemon = TestDaemon::start().await;
    let (demo, fake) = (demo_http(&[]).await, asker().await);
    let app = daemon.clients().await;
    let spec = http_spec("Demo", &demo.url);
    app.add("demo-http", spec).await.unwrap();
    let spec = http_spec("Asker", &fake.url());
    app.add("asker", spec).await.unwrap();
    app.wait_for("asker", ConnectionState::Ready).await;
    (daemon, demo, fake)
}

#[tokio::test]
async fn the_readme_of_the_go_client_says_what_is_so() {
    need_runtimes("the README of the Go client", &["go"]);
    let readme = workspace_dir().join("client-sdk/go/README.md");
    let blocks = blocks(&readme, "go").into_iter().enumerate();
    let programs = blocks.map(|(number, code)| (format!("readme{number}"), code));
    let programs = built("readme", programs.collect()).await;
    let (daemon, _demo, _fake) = stage().await;
    let expected = [
        "asker ask\nasker hang\ndemo-http add\ndemo-http echo\ndemo-http job\ndemo-http slow\n{\"sum\":5}\n",
        "1 of 2\n2 of 2\n2 steps done\nINVALID_FIELD InvalidArgument spec.http.url\n",
        "asker CONNECTION_STATE_READY\n",
        "Asker asks: Who are you?\n{\"action\":\"accept\",\"content\":{\"name\":\"Ada\"}}\n",
    ];
    assert_eq!(programs.len(), expected.len() + 1, "every block is run");
    let mut printed = Vec::new();
    for path in &programs {
        let output = program(daemon.socket(), path).kill_on_drop(true).output();
        let output = within("the end of the program", output).await.unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}:\n{said}", path.display());
        printed.push(String::from_utf8(output.stdout).unwrap());
    }
    assert_eq!(printed[..expected.len()], expected);
    let (tools, answer) = printed[4].split_once('\n').unwrap();
    let tools: Value = serde_json::from_str(tools).unwrap();
    assert_eq!(tools[0]["name"], "tool_demo-http_echo");
    assert_eq!(tools[0]["input_schema"]["type"], "object");
    let answer: Value = serde_json::from_str(answer).unwrap();
    let content = json!([{"type": "text", "text": "{\"sum\":5}"}]);
    let expected = json!({"type": "tool_result", "tool_use_id": "toolu_1", "content": content, "is_error": false});
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn an_app_on_the_go_client_keeps_up_with_everything() {
    need_runtimes("the story of the Go client", &["go"]);
    let code = workspace_dir().join("tests/apps/go/story.go");
    let code = std::fs::read_to_string(code).unwrap();
    let programs = built("story", vec![("story".to_owned(), code)]).await;
    let (mut daemon, demo, fake) = stage().await;
    let mut command = program(daemon.socket(), &programs[0]);
    let mut app = App::start(command.env("STRANGE_TOKEN", strange_token().await));

    let numbers = app.next().await;
    assert_eq!(numbers["raw"], r#"{"big":9223372036854775807,"small":7}"#);
    assert_eq!(numbers["decoded"]["big"], 9_223_372_036_854_775_807_u64);
    let errors = app.next().await;
    let expected = json!({
        "unknown": {"reason": "SERVER_NOT_FOUND", "code": "NotFound", "fields": []},
        "wrong": {"reason": "INVALID_FIELD", "code": "InvalidArgument", "fields": ["call.arguments_json"]},
        "late": {"reason": "DEADLINE_EXCEEDED", "code": "DeadlineExceeded", "fields": []},
        "elsewhere": {"reason": "NAMESPACE_NOT_FOUND", "code": "NotFound", "fields": []},
        "nowhere": true,
    });
    assert_eq!(errors, expected);

    assert_eq!(app.next().await["started"], true);
    let hanging = fake.wait("the call that hangs", |seen| seen.tool() == "hang");
    let hanging = hanging.await.index;
    app.tell("leave").await;
    assert_eq!(app.next().await["left"], true);
    fake.wait_dropped(hanging).await;
    app.tell("cancelled").await;

    let questions = app.next().await;
    let mut problems = questions["problems"].as_array().unwrap().clone();
    problems.sort_by_key(ToString::to_string);
    let refused = problems[0].as_str().unwrap();
    assert!(
        refused.starts_with("INVALID_FIELD in `content_json.name`"),
        "{refused}"
    );
    assert_eq!(problems[1], "nobody is at home");
    assert_eq!(
        questions["pending"], 2,
        "what was not answered is still there"
    );
    for answer in app.next().await["asked"].as_array().unwrap() {
        let answer: Value = serde_json::from_str(answer.as_str().unwrap()).unwrap();
        assert_eq!(answer["content"]["name"], "Who are you?");
    }
    let ended = json!({"state": "CALL_STATE_COMPLETED", "text": "1 steps done"});
    assert_eq!(app.next().await, ended);

    app.find("it follows", |line| line["following"] == true)
        .await;
    daemon.kill9().await;
    daemon.restart().await;
    let clients = daemon.clients().await;
    let later = http_spec("Later", &demo.url);
    clients.add("later", later).await.unwrap();
    clients.remove("later").await.unwrap();
    let seen = app.next().await;
    assert_eq!(seen["seen"][0], "demo-http", "{seen}");
    assert_eq!(seen["seen"][1], "snapshotEnd", "{seen}");
    let changes = seen["seen"].as_array().unwrap();
    assert_eq!(
        changes[2..],
        seen["again"].as_array().unwrap()[..],
        "the same changes in the same order"
    );
    assert!(!seen.to_string().contains("reset"), "{seen}");
    assert_eq!(app.next().await["strange"], "token expired");
    app.ends().await;
}
