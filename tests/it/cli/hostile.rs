//! What servers say does nothing to the terminal that shows it.

use mcp_sidecar_tests::cli::Invocation;
use mcp_sidecar_tests::prelude::*;

use crate::questions::complete;

/// Sets the title, hides the text, turns the direction of writing, and moves the cursor in two ways.
const EVIL: &str = "x\u{1b}]0;owned\u{7}\u{1b}[8m\u{202e}\u{9b}2J\rover\u{8}";

/// What would be obeyed; colours of the program's own begin with ESC and end with `m`.
fn obeyed(written: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut rest = written;
    while let Some(place) = rest.find(|letter: char| {
        let harmless = matches!(letter, '\n' | '\r' | '\t');
        (letter.is_control() && !harmless) || letter == '\u{202e}'
    }) {
        let (_, active) = rest.split_at(place);
        let own = active.strip_prefix("\u{1b}[").and_then(|tail| {
            let end = tail.find(|letter: char| letter.is_ascii_alphabetic())?;
            let (parameters, tail) = tail.split_at(end);
            // Colours and weights, and what a progress bar does to its own line.
            let known =
                (tail.starts_with('m') && parameters != "8") || tail.starts_with(['K', 'A']);
            known.then(|| &tail[1..])
        });
        rest = own.unwrap_or_else(|| {
            found.push(active.chars().take(8).collect());
            &active[active.chars().next().map_or(1, char::len_utf8)..]
        });
    }
    found
}

async fn evil() -> FakeMcp {
    let bad = json!({
        "name": "bad", "title": EVIL, "description": EVIL, "inputSchema": {"type": "object", "title": EVIL},
    });
    let fake = FakeMcp::modern()
        .tool(bad)
        .entry(
            "resources",
            json!({"uri": "file:///a", "name": EVIL, "title": EVIL}),
        )
        .entry("prompts", json!({"name": "p", "description": EVIL}))
        .start()
        .await;
    fake.reply("server/discover", |_| {
        let capabilities = json!({"tools": {}, "resources": {}, "prompts": {}});
        Reply::Json(json!({
            "resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": capabilities,
            "instructions": EVIL, "ttlMs": 0, "cacheScope": "private",
            "_meta": {"io.modelcontextprotocol/serverInfo": {"name": EVIL, "version": EVIL}},
        }))
    });
    fake.reply("resources/read", |_| {
        let contents = json!([{"uri": "file:///a", "text": EVIL}]);
        Reply::Json(json!({"resultType": "complete", "contents": contents}))
    });
    fake.reply("tools/call", |seen| match seen.params()["inputResponses"]["who"].clone() {
        Value::Null => {
            let field = json!({"type": "string", "title": EVIL, "description": EVIL, "enum": [EVIL, "ok"]});
            let form = json!({"type": "object", "properties": {"f": field}, "required": ["f"]});
            let params = json!({"mode": "form", "message": EVIL, "requestedSchema": form});
            Reply::Json(json!({
                "resultType": "input_required", "requestState": "s",
                "inputRequests": {"who": {"method": "elicitation/create", "params": params}},
            }))
        }
        _ => Reply::Json(complete(&json!(EVIL))),
    });
    fake
}

#[tokio::test]
async fn nothing_that_a_server_says_is_obeyed_by_the_terminal() {
    let (daemon, fake) = (TestDaemon::start().await, evil().await);
    let name = "S\u{1b}[8m\u{9b}1m";
    let mut spec = http_spec("S", &fake.url());
    spec.name = name.to_owned();
    // A name like that may be refused; the registration is not what this is about.
    let added = daemon.clients().await.add("s", spec).await;
    if added.is_err() {
        daemon
            .cli(&["servers", "add", &fake.url(), "--id", "s"])
            .await
            .ok();
    }
    for command in [
        &["servers", "list"][..],
        &["servers", "show", "s"],
        &["tools", "list"],
        &["tools", "describe", "s/bad"],
        &["tools", "describe", "s/bad", "-o", "json"],
        &["tools", "describe", "s/bad", "-o", "yaml"],
        &["resources", "list"],
        &["resources", "read", "s", "file:///a"],
        &["prompts", "list", "-o", "json"],
        &["watch", "--once"],
    ] {
        let (code, written) = daemon.cli_terminal(command).await.end().await;
        assert_eq!(code, 0, "{command:?}: {written}");
        let obeyed = obeyed(&written);
        let yaml = command.contains(&"yaml");
        // YAML may hold marks of direction, which move nothing and start nothing.
        let obeyed: Vec<_> = obeyed
            .iter()
            .filter(|one| !yaml || !one.starts_with('\u{202e}'))
            .collect();
        assert!(obeyed.is_empty(), "{command:?}: {obeyed:?} in {written:?}");
    }
    let mut terminal = daemon.cli_terminal(&["tools", "call", "s/bad"]).await;
    terminal.expect("asks: x\\u{1b}]0;owned\\u{7}").await;
    terminal.expect("Answer?").await;
    terminal.type_line("y").await;
    terminal.expect("2) ok").await;
    terminal.type_line("1").await;
    let (code, written) = terminal.end().await;
    assert_eq!(code, 0, "{written}");
    assert_eq!(obeyed(&written), [""; 0], "{written:?}");
    // JSON shows the same, and a program reads what the server said.
    let described = daemon
        .cli(&["tools", "describe", "s/bad", "-o", "json"])
        .await
        .json();
    assert_eq!(described["description"], EVIL);
}

#[tokio::test]
async fn colours_are_for_terminals_and_tables_as_wide_as_they_are() {
    let daemon = TestDaemon::start().await;
    let long = "words ".repeat(60);
    let wide = json!({"name": "wide", "description": long, "inputSchema": {"type": "object"}});
    let fake = FakeMcp::modern().tool(wide).start().await;
    daemon
        .cli(&["servers", "add", &fake.url(), "--id", "s"])
        .await
        .ok();
    let escape = '\u{1b}';
    let list = Invocation::new(&["servers", "list"]);
    let (_, written) = list.at_terminal(daemon.socket(), 100).await.end().await;
    assert!(written.contains(escape), "{written:?}");
    assert!(!list.run(daemon.socket()).await.ok().contains(escape));
    for invocation in [
        list.clone().env("NO_COLOR", "1"),
        Invocation::new(&["servers", "list", "--no-color"]),
    ] {
        let (_, written) = invocation
            .at_terminal(daemon.socket(), 100)
            .await
            .end()
            .await;
        assert!(!written.contains(escape), "{written:?}");
    }
    let tools = Invocation::new(&["tools", "list", "--no-color"]);
    let (_, written) = tools.at_terminal(daemon.socket(), 60).await.end().await;
    let widest = written
        .lines()
        .map(|line| line.trim_end().chars().count())
        .max()
        .unwrap();
    assert!(widest <= 60 && written.lines().count() > 4, "{written}");
    let whole = tools.run(daemon.socket()).await.ok();
    assert_eq!(whole.lines().count(), 2, "{whole}");
}
