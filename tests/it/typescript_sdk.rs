//! The TypeScript client as it is published: packed, installed into an empty project, and used there.

use std::path::{Path, PathBuf};

use mcp_sidecar_tests::asker::{asker, strange_token};
use mcp_sidecar_tests::peers::apps::{App, need_runtimes};
use mcp_sidecar_tests::peers::catalogue::demo_http;
use mcp_sidecar_tests::peers::packages::{compile_typescript, typescript_app};
use mcp_sidecar_tests::peers::programs::blocks;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::workspace_dir;
use tokio::process::Command;

/// Puts the programs of a story into a place of their own within the project, and compiles them there.
pub(crate) async fn compiled(programs: Vec<(String, String)>) -> (tempfile::TempDir, PathBuf) {
    tokio::task::spawn_blocking(move || {
        let app = typescript_app();
        let place = tempfile::tempdir_in(&app).unwrap();
        let model = workspace_dir().join("tests/apps/typescript/model.mts");
        std::fs::copy(model, place.path().join("model.mts")).unwrap();
        let mut files = Vec::new();
        for (name, code) in programs {
            let file = place.path().join(name);
            std::fs::write(&file, code).unwrap();
            files.push(file);
        }
        compile_typescript(&app, &files).unwrap_or_else(|cause| panic!("{cause}"));
        let path = place.path().to_owned();
        (place, path)
    })
    .await
    .unwrap()
}

fn node(daemon: &Path, program: &Path) -> Command {
    let mut command = Command::new("node");
    command.arg(program).env("MCP_SIDECAR_SOCKET", daemon);
    command
}

async fn printed(socket: &Path, program: &Path) -> String {
    let output = node(socket, program).kill_on_drop(true).output();
    let output = within("the end of the program", output).await.unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}:\n{said}", program.display());
    String::from_utf8(output.stdout).unwrap()
}

const RUNTIMES: [&str; 2] = ["node", "npm"];

#[tokio::test]
async fn the_readme_of_the_typescript_client_says_what_is_so() {
    need_runtimes("the README of the TypeScript client", &RUNTIMES);
    let readme = workspace_dir().join("client-sdk/typescript/README.md");
    let blocks = blocks(&readme, "ts");
    let named = blocks.into_iter().enumerate();
    let programs = named.map(|(number, code)| (format!("readme-{number}.mts"), code));
    let (_kept, place) = compiled(programs.collect()).await;
    let daemon = TestDaemon::start().await;
    let (demo, fake) = (demo_http(&[]).await, asker().await);
    let app = daemon.clients().await;
    app.add("demo-http", http_spec("Demo", &demo.url))
        .await
        .unwrap();
    app.add("asker", http_spec("Asker", &fake.url()))
        .await
        .unwrap();
    app.wait_for("asker", ConnectionState::Ready).await;

    let expected = [
        "asker ask\nasker hang\ndemo-http add\ndemo-http echo\ndemo-http job\ndemo-http slow\n{ sum: 5 }\n",
        "1 of 2\n2 of 2\n2 steps done\nCALL_STATE_COMPLETED toolResult\n",
        "INVALID_FIELD INVALID_ARGUMENT spec.http.url\n",
        "asker CONNECTION_STATE_READY\n",
        "Asker asks: Who are you?\n{\"action\":\"accept\",\"content\":{\"name\":\"Ada\"}}\n",
        "tool_demo-http_add\n{\"type\":\"tool_result\",\"tool_use_id\":\"toolu_1\",\"content\":[{\"type\":\"text\",\"text\":\
         \"{\\\"sum\\\":5}\"}],\"is_error\":false}\n",
    ];
    for (number, expected) in expected.iter().enumerate() {
        let program = place.join(format!("readme-{number}.mjs"));
        assert_eq!(printed(daemon.socket(), &program).await, *expected);
    }
    let answer = printed(daemon.socket(), &place.join("readme-6.mjs")).await;
    assert!(answer.starts_with("the tool says "), "{answer}");
    assert!(answer.contains(r#"{\"sum\":5}"#), "{answer}");
    assert!(!place.join("readme-7.mjs").exists(), "every block is run");
}

#[tokio::test]
async fn the_examples_of_the_typescript_client_run_from_its_package() {
    need_runtimes("the examples of the TypeScript client", &RUNTIMES);
    let app = tokio::task::spawn_blocking(typescript_app).await.unwrap();
    let examples = app.join("node_modules/mcp-sidecar-client/examples");
    let mut daemon = TestDaemon::start().await;
    let fake = asker().await;

    let mut watch = App::start(&mut node(daemon.socket(), &examples.join("watch.mjs")));
    watch.hears("up to date").await;
    let mut answer = App::start(&mut node(daemon.socket(), &examples.join("answer.mjs")));
    answer.hears("listening for questions").await;

    let clients = daemon.clients().await;
    let server = clients.add_ready(http_spec("Asker", &fake.url())).await;
    watch
        .hears(&format!("{}: CONNECTION_STATE_READY", server.id))
        .await;
    let (caller, id) = (clients.clone(), server.id.clone());
    let call = tokio::spawn(async move { caller.call_tool(&id, "ask", "{}").await });
    answer.hears("Asker asks: Who are you?").await;
    answer.tell("Grace").await;
    let result = within("the end of the call", call).await.unwrap().unwrap();
    assert_eq!(
        serde_json::from_str::<Value>(&text_of(&result)).unwrap(),
        json!({"action": "accept", "content": {"name": "Grace"}})
    );

    daemon.kill9().await;
    daemon.restart().await;
    daemon.clients().await.remove(&server.id).await.unwrap();
    watch.hears(&format!("{}: gone", server.id)).await;
}

/// Everything up to the updates.
async fn sdk_story(app: &mut App, fake: &FakeMcp) {
    let exact = r#"{"big":9223372036854775807,"small":7,"text":"123456789012345678901"}"#;
    let numbers = app.next().await;
    assert_eq!(numbers["raw"], exact);
    assert_eq!(numbers["long"], "98765432109876543210");
    assert_eq!(numbers["written"], true);
    assert_eq!(numbers["digits"]["big"], "9223372036854775807");
    assert_eq!(numbers["parsed"]["text"], "123456789012345678901");

    let errors = app.next().await;
    assert_eq!(errors["unknown"]["reason"], "SERVER_NOT_FOUND");
    assert_eq!(errors["unknown"]["codeName"], "NOT_FOUND");
    assert_eq!(errors["wrong"]["reason"], "INVALID_FIELD");
    assert_eq!(errors["wrong"]["fields"], json!(["call.arguments_json"]));
    assert_eq!(errors["late"]["reason"], "DEADLINE_EXCEEDED");
    assert_eq!(errors["nowhere"], true);

    assert_eq!(app.next().await["left"], true);
    let hanging = fake
        .wait("the call that hangs", |seen| seen.tool() == "hang")
        .await;
    fake.wait_dropped(hanging.index).await;
    app.tell("cancelled").await;
    assert_eq!(app.next().await["hanging"], true);
    let second = |seen: &Seen| seen.tool() == "hang" && seen.index > hanging.index;
    let hanging = fake.wait("the next call that hangs", second).await;
    app.tell("abort").await;
    assert_eq!(app.next().await["aborted"], "Error: enough");
    fake.wait_dropped(hanging.index).await;
    app.tell("cancelled again").await;

    let models = app.next().await;
    let shapes =
        json!({"responses": "object", "chat": true, "anthropic": ["a", "b"], "gemini": true});
    assert_eq!(models["shapes"], shapes);
    let [responses, chat, anthropic, gemini] = &models["answers"].as_array().unwrap()[..] else {
        panic!("{models}");
    };
    assert_eq!(responses["output"], r#"{"sum":9007199254740993}"#);
    assert_eq!(chat["content"], r#"{"sum":9007199254740993}"#);
    assert_eq!(chat["tool_call_id"], "c2");
    assert_eq!(anthropic["is_error"], true, "{anthropic}");
    assert!(
        anthropic.to_string().contains("TOOL_NOT_FOUND"),
        "{anthropic}"
    );
    assert_eq!(
        gemini["functionResponse"]["response"]["output"],
        r#"{"sum":3}"#
    );
    assert_eq!(models["call"]["argumentsJson"], r#"{"a":1}"#);

    let questions = app.next().await;
    let mut problems = questions["problems"].as_array().unwrap().clone();
    problems.sort_by_key(ToString::to_string);
    let expected = [
        "Error: nobody is at home",
        "INVALID_FIELD content_json.name",
    ];
    assert_eq!(problems, expected);
    assert_eq!(
        questions["pending"], 2,
        "what was not answered is still there"
    );
    for answer in app.next().await["asked"].as_array().unwrap() {
        let answer: Value = serde_json::from_str(answer.as_str().unwrap()).unwrap();
        assert_eq!(answer["content"]["name"], "Who are you?");
    }

    assert!(
        app.next().await["auth_url"]
            .as_str()
            .unwrap()
            .starts_with("http")
    );
    assert_eq!(app.next().await["sign_in"], "SIGN_IN_STATE_CANCELLED");
    let names = app.next().await["names"].to_string();
    assert!(names.contains("mcp__demo-http__add"), "{names}");
}

#[tokio::test]
async fn an_app_on_the_typescript_client_keeps_up_with_everything() {
    need_runtimes("the story of the TypeScript client", &RUNTIMES);
    let code = workspace_dir().join("tests/apps/typescript/story.mts");
    let code = std::fs::read_to_string(code).unwrap();
    let (_kept, place) = compiled(vec![("story.mts".to_owned(), code)]).await;
    let mut set = AuthStage::set(TestDaemon::builder(), 1, true).await;
    set.add_protected().await;
    let (demo, fake) = (demo_http(&[]).await, asker().await);
    let clients = set.app().clone();
    let spec = http_spec("Demo", &demo.url);
    clients.add("demo-http", spec).await.unwrap();
    let spec_of_asker = http_spec("Asker", &fake.url());
    clients.add("asker", spec_of_asker).await.unwrap();
    clients.wait_for("asker", ConnectionState::Ready).await;

    let mut command = node(set.daemon.socket(), &place.join("story.mjs"));
    let mut app = App::start(command.env("STRANGE_TOKEN", strange_token().await));
    sdk_story(&mut app, &fake).await;
    app.find("it follows", |line| line["following"] == true)
        .await;
    set.daemon.kill9().await;
    set.daemon.restart().await;
    let clients = set.daemon.clients().await;
    clients
        .add("later", http_spec("Later", &demo.url))
        .await
        .unwrap();
    clients.remove("later").await.unwrap();
    let seen = app
        .find("what it saw", |line| !line["seen"].is_null())
        .await;
    assert_eq!(seen["seen"][0], "demo-http", "{seen}");
    assert_eq!(seen["seen"][1], "snapshotEnd", "{seen}");
    let changes = |list: &Value| {
        let all = list.as_array().unwrap().iter();
        let all = all.map(|one| one.as_str().unwrap().to_owned());
        all.filter(|one| one != "bookmark").collect::<Vec<_>>()
    };
    assert_eq!(
        changes(&seen["seen"])[2..],
        changes(&seen["again"]),
        "the same changes in the same order"
    );
    assert!(!seen.to_string().contains("reset"), "{seen}");
    assert_eq!(app.next().await["strange"], "reset");
    app.ends().await;
}
