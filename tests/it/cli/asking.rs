//! Questions at the terminal and from options.

use mcp_sidecar_tests::cli::{Invocation, finish};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::{ApprovalAction, ApprovalPolicy};

use crate::questions::{Way, asking, complete};
use crate::sampling::{ANSWER, capital, sampling};

/// Registers a server as anybody would: what it may ask follows from who is there.
async fn added(daemon: &TestDaemon, fake: &FakeMcp) {
    let url = fake.url();
    daemon
        .cli(&["servers", "add", &url, "--id", "s", "--name", "The Asker"])
        .await
        .ok();
}

/// A server that asks with this form, and answers with what it was told.
async fn with_form(params: Value) -> FakeMcp {
    let fake = FakeMcp::modern().tool(tool("ask")).start().await;
    fake.reply(
        "tools/call",
        move |seen| match seen.params()["inputResponses"]["who"].clone() {
            Value::Null => Reply::Json(json!({
                "resultType": "input_required", "requestState": "s",
                "inputRequests": {"who": {"method": "elicitation/create", "params": params}},
            })),
            answer => Reply::Json(complete(&answer)),
        },
    );
    fake
}

fn order() -> Value {
    json!({"mode": "form", "message": "Your order?", "requestedSchema": {
        "type": "object", "required": ["name", "count"],
        "properties": {
            "name": {"type": "string", "title": "Name", "description": "As on the card."},
            "count": {"type": "integer", "minimum": 1, "maximum": 9, "default": 2},
            "size": {"type": "string", "enum": ["s", "m", "l"], "default": "m"},
            "gift": {"type": "boolean"},
            "note": {"type": "string"},
        },
    }})
}

#[tokio::test]
async fn a_form_is_filled_field_by_field_while_its_call_waits() {
    let daemon = TestDaemon::start().await;
    let fake = with_form(order()).await;
    added(&daemon, &fake).await;
    let mut terminal = daemon.cli_terminal(&["tools", "call", "s/ask"]).await;
    terminal.expect("The Asker (s)").await;
    terminal.expect("asks: Your order?").await;
    terminal.expect("Answer?").await;
    terminal.type_line("").await;
    // The order of the fields is the daemon's business: each prompt names its field.
    for (prompt, line) in prompts(&daemon).await {
        terminal.expect(prompt).await;
        terminal.type_line(line).await;
        if prompt == "count" {
            terminal.expect("this is no number").await;
            terminal.expect("count").await;
            terminal.type_line("40").await;
        }
    }
    // What the daemon finds wrong is asked again, and nothing else.
    terminal.expect("error:").await;
    terminal.expect("count").await;
    terminal.expect("count").await;
    terminal.expect("[2]").await;
    terminal.type_line("").await;
    let (code, written) = terminal.end().await;
    assert_eq!(code, 0, "{written}");
    let told = fake.seen_of("tools/call").last().unwrap().params()["inputResponses"]["who"].clone();
    let content = json!({"name": "Ada", "count": 2, "size": "l", "gift": true});
    assert_eq!(
        told,
        json!({"action": "accept", "content": content}),
        "{written}"
    );
}

/// What is typed at which field, in the order in which the daemon has them.
async fn prompts(daemon: &TestDaemon) -> Vec<(&'static str, &'static str)> {
    let lines = [
        ("name", "Name", "Ada"),
        ("count", "count", "many"),
        ("size", "size", "3"),
        ("gift", "gift", "y"),
        ("note", "note", ""),
    ];
    let shown = daemon
        .cli(&["questions", "list", "-o", "json"])
        .await
        .json();
    let fields = shown["elicitations"][0]["fields"]
        .as_array()
        .unwrap()
        .clone();
    let fields = fields.iter().map(|field| {
        let line = lines.iter().find(|line| field["name"] == line.0).unwrap();
        (line.1, line.2)
    });
    fields.collect()
}

#[tokio::test]
async fn a_question_that_another_app_answers_is_given_up_at_the_terminal() {
    for way in [Way::Result, Way::CallStream] {
        let daemon = TestDaemon::start().await;
        let fake = asking(way).await;
        // A legacy server is told at its handshake what can be answered; this one was told so.
        crate::questions::add(&daemon.clients().await, &fake).await;
        let mut terminal = daemon.cli_terminal(&["tools", "call", "s/ask"]).await;
        terminal.expect("Answer?").await;
        let list = daemon
            .cli(&["questions", "list", "-o", "json"])
            .await
            .json();
        let id = list["elicitations"][0]["id"].as_str().unwrap().to_owned();
        let answered = daemon
            .cli(&["questions", "answer", &id, "--accept", "name=Bob"])
            .await;
        assert!(answered.ok().contains("answered"));
        terminal.expect("ended elsewhere").await;
        let (code, written) = terminal.end().await;
        assert!(code == 0 && written.contains("Bob"), "{way:?}: {written}");
    }
}

#[tokio::test]
async fn somebody_declines_cancels_or_leaves_at_the_terminal() {
    for (keys, action) in [("d\n", "decline"), ("c\n", "cancel"), ("\u{4}", "cancel")] {
        let daemon = TestDaemon::start().await;
        let fake = with_form(order()).await;
        added(&daemon, &fake).await;
        let mut terminal = daemon.cli_terminal(&["tools", "call", "s/ask"]).await;
        terminal.expect("Answer?").await;
        terminal.press(keys).await;
        let (code, written) = terminal.end().await;
        assert!(code == 0 && written.contains(action), "{keys:?}: {written}");
    }
    let daemon = TestDaemon::start().await;
    let fake = with_form(order()).await;
    added(&daemon, &fake).await;
    let mut terminal = daemon.cli_terminal(&["tools", "call", "s/ask"]).await;
    terminal.expect("Answer?").await;
    terminal.press("\u{3}").await;
    assert_eq!(terminal.end().await.0, 130);
    daemon.comes_to_rest().await;
}

#[tokio::test]
async fn a_page_is_shown_with_its_host_before_anybody_agrees() {
    let daemon = TestDaemon::start().await;
    let url = "http://user@xn--80ak6aa92e.com/pay?x=1";
    let params = json!({"mode": "url", "message": "Pay here", "url": url, "elicitationId": "e"});
    let fake = with_form(params).await;
    added(&daemon, &fake).await;
    let mut terminal = daemon.cli_terminal(&["tools", "call", "s/ask"]).await;
    terminal.expect("asks you to open a page: Pay here").await;
    terminal.expect(url).await;
    terminal.expect("which leads to").await;
    terminal.expect("xn--80ak6aa92e.com").await;
    terminal.expect("beware:").await;
    // Without a desktop it is not opened, and the question stays.
    terminal.type_line("o").await;
    terminal.expect("no browser was opened").await;
    terminal.expect("[c]ancel: ").await;
    terminal.type_line("y").await;
    let (code, written) = terminal.end().await;
    assert!(code == 0 && written.contains("accept"), "{written}");
}

#[tokio::test]
async fn a_call_that_needs_an_approval_is_shown_with_its_arguments() {
    let daemon = TestDaemon::start().await;
    let fake = FakeMcp::echo(true).await;
    let mut spec = http_spec("S", &fake.url());
    spec.approval = Some(ApprovalPolicy {
        default_action: ApprovalAction::Ask.into(),
        ..Default::default()
    });
    daemon.clients().await.add("s", spec).await.unwrap();
    for (line, code) in [("n", 1), ("y", 0)] {
        let mut terminal = daemon
            .cli_terminal(&["tools", "call", "s/echo", "n:=1.10"])
            .await;
        terminal.expect("May this call be made?").await;
        terminal.expect(r#"{"n":1.10}"#).await;
        terminal.expect("[c]ancel: ").await;
        terminal.type_line(line).await;
        let (ended, written) = terminal.end().await;
        assert_eq!(ended, code, "{written}");
    }
    assert_eq!(fake.seen_of("tools/call").len(), 1);
}

#[tokio::test]
async fn without_a_terminal_a_call_waits_for_somebody_or_ends() {
    let daemon = TestDaemon::start().await;
    let fake = asking(Way::Result).await;
    let app = daemon.clients().await;
    crate::questions::add(&app, &fake).await;
    let mut updates = app.updates("").await;
    let ended = daemon.cli(&["tools", "call", "s/ask", "--no-input"]).await;
    ended.fails(5, "needs an answer");
    let given_up = updates.pending().await;
    assert_eq!(
        updates.end_of(&given_up.id).await,
        v1::ElicitationState::Cancelled
    );

    let child = Invocation::new(&["tools", "call", "s/ask"])
        .start(daemon.socket())
        .await;
    let question = updates.pending().await;
    let listed = daemon.cli(&["questions", "list"]).await.ok();
    assert!(
        listed.contains(&question.id) && listed.contains("Who are you?"),
        "{listed}"
    );
    let shown = daemon.cli(&["questions", "show", &question.id]).await.ok();
    assert!(shown.contains("at least 0"), "{shown}");
    daemon
        .cli(&["questions", "answer", &question.id])
        .await
        .fails(2, "no terminal");
    let wrong = [
        "questions",
        "answer",
        &question.id,
        "--accept",
        "name=Ada",
        "age=-1",
    ];
    daemon.cli(&wrong).await.fails(1, "age");
    let right = [
        "questions",
        "answer",
        &question.id,
        "--accept",
        "name=Ada",
        "age=9007199254740993",
    ];
    daemon.cli(&right).await.ok();
    let late = ["questions", "answer", &question.id, "--decline"];
    daemon.cli(&late).await.fails(1, "ALREADY_RESOLVED");
    let ran = finish(child).await;
    assert!(ran.stderr.contains(&question.id), "{ran:?}");
    assert!(ran.ok().contains("9007199254740993"));
    daemon
        .cli(&["questions", "show", "nothing"])
        .await
        .fails(1, "ELICITATION_NOT_FOUND");
}

#[tokio::test]
async fn a_question_is_answered_at_another_terminal() {
    let daemon = TestDaemon::start().await;
    let fake = asking(Way::Result).await;
    let app = daemon.clients().await;
    crate::questions::add(&app, &fake).await;
    let mut updates = app.updates("").await;
    let child = Invocation::new(&["tools", "call", "s/ask"])
        .start(daemon.socket())
        .await;
    let question = updates.pending().await;
    let mut terminal = daemon
        .cli_terminal(&["questions", "answer", &question.id])
        .await;
    terminal.expect("Answer?").await;
    terminal.type_line("y").await;
    terminal.expect("age").await;
    terminal.type_line("36").await;
    terminal.expect("name").await;
    terminal.type_line("Ada").await;
    assert_eq!(terminal.end().await.0, 0);
    let told: Value = serde_json::from_str(&finish(child).await.ok()).unwrap();
    assert_eq!(told["content"], json!({"name": "Ada", "age": 36}));
}

#[tokio::test]
async fn a_model_is_asked_by_somebody_else_and_its_answer_given_as_it_is() {
    let daemon = TestDaemon::start().await;
    let fake = sampling(Way::Result, capital()).await;
    let app = daemon.clients().await;
    let spec = crate::sampling::with_models(http_spec("S", &fake.url()));
    app.add("s", spec).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let ask = async || {
        let child = Invocation::new(&["tools", "call", "s/ask"])
            .start(daemon.socket())
            .await;
        let id = eventually("the request", PATIENCE, async || {
            let list = daemon
                .cli(&["questions", "list", "-o", "json"])
                .await
                .json();
            list["samplingRequests"][0]["id"]
                .as_str()
                .map(str::to_owned)
        });
        (child, id.await)
    };
    let (child, id) = ask().await;
    let shown = daemon.cli(&["questions", "show", &id]).await.ok();
    assert!(
        shown.contains("user: What is the capital of France?"),
        "{shown}"
    );
    daemon
        .cli(&["questions", "answer", &id])
        .await
        .fails(2, "--result-json");
    let answer = Invocation::new(&["questions", "answer", &id, "--result-json", "-"]);
    answer.stdin(ANSWER).run(daemon.socket()).await.ok();
    assert!(finish(child).await.ok().contains("Paris"));
    let (child, id) = ask().await;
    daemon
        .cli(&["questions", "answer", &id, "--reject"])
        .await
        .ok();
    finish(child).await.fails(1, "INPUT_DECLINED");
}
