//! Servers, resources, prompts and updates from the command line, and how the program ends.

use mcp_sidecar_tests::cli::{Invocation, finish};
use mcp_sidecar_tests::prelude::*;
use tokio::io::{AsyncBufReadExt as _, BufReader};

/// A server with a tool, a resource, a template and a prompt.
async fn rich() -> FakeMcp {
    let add = json!({
        "name": "add", "title": "Add", "description": "Adds two numbers.\nMore of it.",
        "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}},
        "annotations": {"readOnlyHint": true},
    });
    let fake = FakeMcp::modern()
        .tool(add)
        .entry(
            "resources",
            json!({"uri": "file:///a", "name": "a", "mimeType": "text/plain"}),
        )
        .entry(
            "resourceTemplates",
            json!({"uriTemplate": "file:///{x}", "name": "x"}),
        )
        .entry(
            "prompts",
            json!({"name": "greet", "arguments": [{"name": "who", "required": true}]}),
        )
        .follows()
        .start()
        .await;
    fake.reply("resources/read", |_| {
        let contents = json!([{"uri": "file:///a", "text": "the text\n"}]);
        Reply::Json(json!({"resultType": "complete", "contents": contents}))
    });
    fake.reply("prompts/get", |seen| {
        let text = format!(
            "Hello {}",
            seen.params()["arguments"]["who"].as_str().unwrap()
        );
        let message = json!({"role": "user", "content": {"type": "text", "text": text}});
        Reply::Json(json!({"resultType": "complete", "messages": [message]}))
    });
    fake
}

#[tokio::test]
async fn a_server_is_added_shown_changed_and_removed() {
    let (daemon, fake) = (TestDaemon::start().await, rich().await);
    let nothing = daemon.cli(&["servers", "list"]).await.ends_with(0);
    assert_eq!(nothing.stdout, "");
    assert!(nothing.stderr.contains("servers add"), "{nothing:?}");

    let url = fake.url();
    let added = daemon
        .cli(&["servers", "add", &url, "--id", "rich"])
        .await
        .ok();
    assert_eq!(added, "rich: added, ready (1 tool)\n");
    let again = daemon
        .cli(&["servers", "add", &url, "--id", "rich", "-o", "json"])
        .await
        .json();
    assert_eq!(again["outcome"], "ADD_OUTCOME_EXISTING");
    assert_eq!(again["server"]["status"]["state"], "CONNECTION_STATE_READY");

    let list = daemon.cli(&["servers", "ls"]).await.ok();
    let mut lines = list.lines();
    assert!(lines.next().unwrap().starts_with("ID"), "{list}");
    let row: Vec<&str> = lines.next().unwrap().split_whitespace().collect();
    assert_eq!(row, ["rich", "ready", "1", &url]);
    let shown = daemon.cli(&["servers", "show", "rich"]).await.ok();
    assert!(
        shown.contains("2026-07-28") && shown.contains("a fake"),
        "{shown}"
    );

    let denied = [
        "servers",
        "update",
        "rich",
        "--name",
        "Rich",
        "--deny-tool",
        "a*",
        "-o",
        "json",
    ];
    let changed = daemon.cli(&denied).await.json();
    assert_eq!(changed["spec"]["name"], "Rich");
    assert_eq!(changed["spec"]["deniedTools"], json!(["a*"]));
    assert_eq!(daemon.cli(&["tools", "list"]).await.ok(), "");
    daemon
        .cli(&["servers", "update", "rich", "--deny-tool", ""])
        .await
        .ok();
    assert!(
        daemon
            .cli(&["tools", "list"])
            .await
            .ok()
            .contains("rich/add")
    );

    let gone = daemon.cli(&["servers", "disconnect", "rich"]).await.ok();
    assert!(gone.contains("disconnected"), "{gone}");
    assert!(
        daemon
            .cli(&["servers", "connect", "rich"])
            .await
            .ok()
            .contains("ready")
    );
    assert!(
        daemon
            .cli(&["servers", "refresh", "rich"])
            .await
            .ok()
            .contains("ready")
    );
    let waited = daemon.cli(&["servers", "wait", "-o", "json"]).await.json();
    assert_eq!(waited["settled"], true);
    daemon.cli(&["servers", "remove", "rich"]).await.ok();
    daemon
        .cli(&["servers", "show", "rich"])
        .await
        .fails(1, "SERVER_NOT_FOUND");
}

#[tokio::test]
async fn secrets_come_from_files_from_standard_input_and_from_the_environment() {
    let (daemon, fake) = (TestDaemon::start().await, rich().await);
    let (url, dir) = (fake.url(), tempfile::tempdir().unwrap());
    let headers = dir.path().join("headers");
    std::fs::write(&headers, "# mine\nX-Key: hush-1\n").unwrap();
    let add = [
        "servers",
        "add",
        &url,
        "--id",
        "s",
        "--header-file",
        headers.to_str().unwrap(),
    ];
    let mut said = daemon.cli(&[&add[..], &["-vv"]].concat()).await.ok();
    assert_eq!(
        fake.wait_method("server/discover").await.header("x-key"),
        "hush-1"
    );

    let update = Invocation::new(&["servers", "update", "s", "--header-file", "-", "-o", "yaml"]);
    let ran = update.stdin("X-Key: hush-2\n").run(daemon.socket()).await;
    said += &ran.ok();
    fake.wait("the new header", |seen| seen.header("x-key") == "hush-2")
        .await;

    let record = dir.path().join("env");
    let script = format!("env > {}; exit 7", record.display());
    let file = dir.path().join("dotenv");
    std::fs::write(&file, "FROM_FILE='hush-3'\n").unwrap();
    let file = file.to_str().unwrap();
    let command = [
        "servers",
        "add",
        "--id",
        "c",
        "--env",
        "MINE",
        "--env-file",
        file,
        "--wait",
        "0s",
    ];
    let command = [&command[..], &["--", "sh", "-c", &script]].concat();
    let ran = Invocation::new(&command)
        .env("MINE", "hush-4")
        .run(daemon.socket())
        .await;
    said = format!("{said}{ran:?}");
    let environment = eventually("the environment", PATIENCE, async || {
        let text = std::fs::read_to_string(&record).ok()?;
        text.contains("hush-4").then_some(text)
    });
    assert!(environment.await.contains("FROM_FILE=hush-3\n"));
    for command in [["servers", "show", "s"], ["servers", "show", "c"]] {
        said += &daemon.cli(&command).await.ok();
    }
    assert!(!said.contains("hush"), "{said}");
    let refused = daemon
        .cli(&["servers", "add", "--env", "A=hush", "--", "true"])
        .await;
    let refused = refused.fails(2, "others can see the command line");
    assert!(!refused.stderr.contains("hush"), "{refused:?}");
}

#[tokio::test]
async fn a_file_of_another_client_is_imported_and_exported_without_its_secrets() {
    let (daemon, fake) = (TestDaemon::start().await, rich().await);
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("mcp.json");
    let entry = json!({"url": fake.url(), "headers": {"X-Key": "${KEY}"}});
    let bad = json!({"url": "ftp://nowhere"});
    let document = json!({"mcpServers": {"rich": entry, "bad": bad}});
    std::fs::write(&file, document.to_string()).unwrap();
    let import = ["servers", "import", file.to_str().unwrap(), "--var", "KEY"];
    let import = Invocation::new(&import).env("KEY", "hush-5");
    let ran = import.run(daemon.socket()).await;
    let ran = ran.fails(1, "1 entries were refused");
    assert!(ran.stdout.contains("created") && ran.stdout.contains("INVALID_FIELD"));
    assert!(!format!("{ran:?}").contains("hush"), "{ran:?}");
    fake.wait("the key", |seen| seen.header("x-key") == "hush-5")
        .await;
    let exported = daemon.cli(&["servers", "export"]).await.ends_with(0);
    let document: Value = serde_json::from_str(&exported.stdout).unwrap();
    assert!(document["mcpServers"].is_object(), "{document}");
    assert!(!format!("{exported:?}").contains("hush"), "{exported:?}");
}

#[tokio::test]
async fn the_exit_code_says_what_was_wrong() {
    let (daemon, fake) = (TestDaemon::start().await, rich().await);
    daemon
        .cli(&["servers", "add", "http://127.0.0.1:1/mcp"])
        .await
        .fails(1, "is not connected");
    daemon
        .cli(&["servers", "show", "nobody"])
        .await
        .fails(1, "SERVER_NOT_FOUND");
    daemon.cli(&["no-such-command"]).await.fails(2, "Usage");
    daemon
        .cli(&["servers", "add", "--header-file", "/no/such", &fake.url()])
        .await
        .fails(2, "/no/such");
    let nowhere = daemon.data_dir().join("nobody.sock");
    let ran = Invocation::new(&["servers", "list"]).run(&nowhere).await;
    ran.fails(3, "no mcp-sidecar daemon answers");
}

#[tokio::test]
async fn resources_and_prompts_are_listed_read_and_followed() {
    let (daemon, fake) = (TestDaemon::start().await, rich().await);
    daemon
        .cli(&["servers", "add", &fake.url(), "--id", "rich"])
        .await
        .ok();
    assert!(
        daemon
            .cli(&["resources", "list"])
            .await
            .ok()
            .contains("file:///a")
    );
    assert!(
        daemon
            .cli(&["resources", "templates", "rich"])
            .await
            .ok()
            .contains("file:///{x}")
    );
    assert_eq!(daemon.cli(&["resources", "list", "other"]).await.ok(), "");
    let text = daemon
        .cli(&["resources", "read", "rich", "file:///a"])
        .await
        .ok();
    assert_eq!(text, "the text\n");
    let listed = daemon.cli(&["prompts", "list"]).await.ok();
    assert!(
        listed.contains("greet") && listed.contains("who"),
        "{listed}"
    );
    let filled = daemon
        .cli(&["prompts", "get", "rich", "greet", "who=Ada"])
        .await
        .ok();
    assert_eq!(filled, "user: Hello Ada\n");

    let watch = ["resources", "watch", "rich", "file:///a", "-o", "json"];
    let mut child = Invocation::new(&watch).start(daemon.socket()).await;
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut next = async || within("a line", lines.next_line()).await.unwrap().unwrap();
    assert_eq!(next().await, r#"{"subscribed":{}}"#);
    fake.push(json!({
        "jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": "file:///a"},
    }))
    .await;
    assert_eq!(next().await, r#"{"updated":{"uri":"file:///a"}}"#);
}

#[tokio::test]
async fn json_and_yaml_are_the_contracts_mapping_and_json_text_stays_text() {
    let daemon = TestDaemon::start().await;
    let schema = r#"{"type":"object","big":12345678901234567890123,"x":1.10}"#;
    let fake = FakeMcp::modern().start().await;
    fake.reply("tools/list", move |_| {
        let tool = format!(r#"{{"name":"exact","inputSchema":{schema}}}"#);
        Reply::Text(format!(
            r#"{{"resultType":"complete","tools":[{tool}],"ttlMs":0,"cacheScope":"private"}}"#
        ))
    });
    daemon
        .cli(&["servers", "add", &fake.url(), "--id", "s"])
        .await
        .ok();
    let listed = daemon.cli(&["tools", "list", "-o", "json"]).await.json();
    assert_eq!(listed["tools"][0]["serverId"], "s");
    assert_eq!(listed["tools"][0]["modelName"], "tool_s_exact");
    assert_eq!(listed["tools"][0]["inputSchemaJson"], schema);
    let described = daemon
        .cli(&["tools", "describe", "exact", "-o", "yaml"])
        .await
        .ok();
    assert!(
        described.lines().any(|line| line == "serverId: s"),
        "{described}"
    );
    assert!(described.contains("12345678901234567890123"), "{described}");
}

#[tokio::test]
async fn updates_are_followed_line_by_line_and_over_a_restart() {
    let (mut daemon, fake) = (TestDaemon::start().await, rich().await);
    daemon
        .cli(&["servers", "add", &fake.url(), "--id", "rich"])
        .await
        .ok();
    let once = daemon
        .cli(&["watch", "--once", "--kind", "servers"])
        .await
        .ok();
    assert!(
        once.contains("server") && once.contains("rich ready"),
        "{once}"
    );

    let watch = Invocation::new(&["watch", "-o", "json"]);
    let mut child = watch.start(daemon.socket()).await;
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut until = async |what: &str, wanted: fn(&Value) -> bool| loop {
        let line = within(what, lines.next_line()).await.unwrap().unwrap();
        let update: Value = serde_json::from_str(&line).unwrap();
        if wanted(&update) {
            return update["resumeToken"]
                .as_str()
                .unwrap_or_default()
                .to_owned();
        }
    };
    let token = until("the snapshot", |update| !update["snapshotEnd"].is_null()).await;
    daemon.restart().await;
    daemon.cli(&["servers", "remove", "rich"]).await.ok();
    until("the removal", |update| update["delete"]["id"] == "rich").await;
    drop(child);

    let mut child = Invocation::new(&["watch", "-o", "json", "--from", &token])
        .start(daemon.socket())
        .await;
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let first = within("what was missed", lines.next_line())
        .await
        .unwrap()
        .unwrap();
    let first: Value = serde_json::from_str(&first).unwrap();
    assert!(
        first["snapshotEnd"].is_null() && first["revision"].is_string(),
        "{first}"
    );
}

#[tokio::test]
async fn the_log_of_a_server_is_shown() {
    let daemon = TestDaemon::start().await;
    let scripts = tempfile::tempdir().unwrap();
    let mut script = Script::healthy(true);
    script
        .faults
        .push(StdioFault::Say("a \u{1b}[31mred\u{1b}[0m word".to_owned()));
    let spec = script.spec("child", scripts.path()).await;
    let server = daemon.clients().await.add_ready(spec).await;
    let log = daemon.cli(&["servers", "log", &server.id]).await.ok();
    assert!(log.contains("#1 a \\u{1b}[31mred"), "{log}");
}

#[tokio::test]
async fn a_reader_that_leaves_ends_it_quietly() {
    let (daemon, fake) = (TestDaemon::start().await, rich().await);
    let mut child = Invocation::new(&["watch"]).start(daemon.socket()).await;
    drop(child.stdout.take());
    daemon.cli(&["servers", "add", &fake.url()]).await.ok();
    let ran = finish(child).await.ends_with(0);
    assert_eq!(
        ran.stderr
            .replace("that is everything; changes follow\n", ""),
        ""
    );
}

#[tokio::test]
async fn every_shell_gets_a_completion_script() {
    let daemon = TestDaemon::start().await;
    for shell in ["bash", "zsh", "fish"] {
        let script = daemon.cli(&["completions", shell]).await.ok();
        assert!(
            script.contains("mcp-sidecar") && script.contains("sign-in"),
            "{shell}"
        );
    }
}
