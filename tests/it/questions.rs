//! Questions that servers ask in the middle of a call.

use mcp_sidecar_tests::fake::{SseWriter, stream};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::call_tool_stream_response::Event;
use mcp_sidecar_tests::v1::{ElicitationAction, ElicitationState};
use tokio::task::JoinHandle;
use tonic_types::StatusExt as _;

/// Where a server's question comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Way {
    /// As a result, answered by another call (modern).
    Result,
    /// On the stream that answers the call (legacy).
    CallStream,
    /// On the stream of notifications (legacy).
    PushStream,
}

pub(crate) const WAYS: [Way; 3] = [Way::Result, Way::CallStream, Way::PushStream];

pub(crate) fn form(message: &str) -> Value {
    json!({
        "mode": "form", "message": message,
        "requestedSchema": {
            "type": "object", "required": ["name"],
            "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
        },
    })
}

pub(crate) fn ask(id: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": form("Who are you?")})
}

pub(crate) fn complete(text: &Value) -> Value {
    json!({"resultType": "complete", "content": [{"type": "text", "text": text.to_string()}]})
}

/// A server whose `ask` answers with what it was told. Its questions on streams have the ids `q-1`, `q-2` and so on.
pub(crate) async fn asking(way: Way) -> FakeMcp {
    let builder = if matches!(way, Way::Result) {
        FakeMcp::modern()
    } else {
        FakeMcp::legacy()
    };
    let fake = builder.tool(tool("ask")).start().await;
    let server = fake.clone();
    let calls = std::sync::atomic::AtomicUsize::new(0);
    fake.on("tools/call", move |seen| {
        let server = server.clone();
        let number = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        async move {
            let id = format!("q-{number}");
            match way {
                Way::Result => match seen.params()["inputResponses"]["who"].clone() {
                    Value::Null => {
                        let question =
                            json!({"method": "elicitation/create", "params": form("Who are you?")});
                        Reply::Json(json!({
                            "resultType": "input_required", "requestState": "st/ate+1==",
                            "inputRequests": {"who": question},
                        }))
                    }
                    answer => Reply::Json(complete(&answer)),
                },
                Way::CallStream => stream(async move |writer: SseWriter| {
                    writer.message(&ask(&id)).await;
                    finish(&server, &writer, &id).await;
                }),
                Way::PushStream => stream(async move |writer: SseWriter| {
                    server.push(ask(&id)).await;
                    finish(&server, &writer, &id).await;
                }),
            }
        }
    });
    fake
}

async fn finish(server: &FakeMcp, writer: &SseWriter, id: &str) {
    let id = json!(id);
    tokio::select! {
        answer = server.wait("the answer", |seen| seen.answers(&id)) => {
            writer.result(complete(&answer.json["result"])).await;
        }
        () = writer.closed() => {}
    }
}

pub(crate) fn with_forms(mut spec: ServerSpec) -> ServerSpec {
    spec.client_capabilities = Some(v1::ClientCapabilities {
        elicitation_form: true,
        ..Default::default()
    });
    spec
}

pub(crate) async fn add(app: &Clients, fake: &FakeMcp) {
    app.add("s", with_forms(http_spec("The Asker", &fake.url())))
        .await
        .unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
}

pub(crate) type Call = JoinHandle<Result<v1::ToolResult, tonic::Status>>;

pub(crate) fn start_call(app: &Clients, server: &str) -> Call {
    let (app, server) = (app.clone(), server.to_owned());
    tokio::spawn(async move { app.call_tool(&server, "ask", "{}").await })
}

pub(crate) async fn result_of(call: Call) -> Value {
    let result = within("the end of the call", call).await.unwrap().unwrap();
    serde_json::from_str(&text_of(&result)).unwrap()
}

#[tokio::test]
async fn b34_another_app_sees_the_question_and_answers_it() {
    for way in WAYS {
        one_and_two(async |stage| {
            let (caller, human) = (stage.app(), stage.other());
            let fake = asking(way).await;
            add(caller, &fake).await;
            let mut updates = human.updates("").await;
            updates.snapshot().await;

            let mut call = caller.call_stream("s", "ask", "{}").await.unwrap();
            let Some(Event::Started(start)) = call.next().await.unwrap() else {
                panic!("a call starts first");
            };
            let question = updates.pending().await;
            assert_eq!(question.server_id, "s");
            assert_eq!(question.server_name, "The Asker");
            assert_eq!(question.mode(), v1::ElicitationMode::Form);
            assert_eq!(question.message, "Who are you?");
            assert!(question.create_time.is_some() && question.expire_time.is_some());
            let schema: Value = serde_json::from_str(&question.requested_schema_json).unwrap();
            assert_eq!(schema, form("")["requestedSchema"]);
            let fields = question.fields.iter();
            let fields: Vec<_> = fields
                .map(|field| (field.name.as_str(), field.required))
                .collect();
            assert_eq!(fields, [("age", false), ("name", true)]);
            assert!(question.url_host.is_empty() && question.url_warnings.is_empty());
            if !matches!(way, Way::PushStream) {
                assert_eq!(question.call_id, start.call_id, "{way:?}");
                match call.next().await.unwrap() {
                    Some(Event::InputRequired(input)) => {
                        assert_eq!(input.elicitation_ids, [question.id.as_str()]);
                    }
                    other => panic!("{way:?}: unexpected event {other:?}"),
                }
            }
            let content = r#"{"name":"Ada","age":9007199254740993}"#;
            let answered = human.accept(&question.id, content).await.unwrap();
            assert_eq!(answered.state(), ElicitationState::Answered);
            assert_eq!(
                updates.end_of(&question.id).await,
                ElicitationState::Answered
            );

            let events = call.collect().await.unwrap();
            let Some(Event::Result(result)) = events.last() else {
                panic!("{way:?}: unexpected end {events:?}");
            };
            assert!(text_of(result).contains("9007199254740993"), "{result:?}");
            let told: Value = serde_json::from_str(&text_of(result)).unwrap();
            assert_eq!(
                (&told["action"], &told["content"]["name"]),
                (&json!("accept"), &json!("Ada"))
            );
            if matches!(way, Way::Result) {
                let calls = fake.seen_of("tools/call");
                assert_eq!(calls.len(), 2);
                assert_eq!(calls[1].params()["requestState"], "st/ate+1==");
                assert_ne!(calls[0].json["id"], calls[1].json["id"]);
            }
        })
        .await;
    }
}

#[tokio::test]
async fn a_process_asks_in_both_eras() {
    for modern in [true, false] {
        let daemon = TestDaemon::start().await;
        let app = daemon.clients().await;
        let scripts = tempfile::tempdir().unwrap();
        let spec = Script::healthy(modern).spec("stdio", scripts.path()).await;
        let server = app.add_ready(with_forms(spec)).await;
        let mut updates = app.updates("").await;
        let call = start_call(&app, &server.id);
        let question = updates.pending().await;
        app.accept(&question.id, r#"{"name":"Ada"}"#).await.unwrap();
        assert_eq!(result_of(call).await["content"]["name"], "Ada");
    }
}

#[tokio::test]
async fn b34_a_question_is_answered_once() {
    for way in WAYS {
        one_and_two(async |stage| {
            let fake = asking(way).await;
            add(stage.app(), &fake).await;
            let mut updates = stage.other().updates("").await;
            let call = start_call(stage.app(), "s");
            let question = updates.pending().await;
            let race = futures_util::future::join_all((0..8).map(|n| {
                let app = &stage.apps[n % stage.apps.len()];
                let content = format!(r#"{{"name":"app {n}"}}"#);
                let id = &question.id;
                async move { (n, app.accept(id, &content).await) }
            }));
            let (won, lost): (Vec<_>, Vec<_>) = race
                .await
                .into_iter()
                .partition(|(_, answer)| answer.is_ok());
            assert_eq!(won.len(), 1);
            for (_, refused) in lost {
                ErrorFacts::expect(refused, Code::FailedPrecondition, "ALREADY_RESOLVED");
            }
            // The call got the answer that was told to have been the first.
            let told = result_of(call).await;
            assert_eq!(told["content"]["name"], format!("app {}", won[0].0));
            let again = stage.everyone(async |app, _| {
                app.respond(&question.id, ElicitationAction::Decline, None)
                    .await
            });
            for outcome in again.await {
                ErrorFacts::expect(outcome, Code::FailedPrecondition, "ALREADY_RESOLVED");
            }
        })
        .await;
    }
}

#[tokio::test]
async fn b34_behaviour_86_an_answer_that_cannot_be_used_is_refused_and_the_question_stays() {
    one_and_two(async |stage| {
        let fake = asking(Way::Result).await;
        add(stage.app(), &fake).await;
        let mut updates = stage.other().updates("").await;
        let call = start_call(stage.app(), "s");
        let question = updates.pending().await;
        let refusals = stage.everyone(async |app, _| refused_answers(&app, &question.id).await);
        refusals.await;
        for app in &stage.apps {
            let still = app.question(&question.id).await.unwrap();
            assert_eq!(still.state(), ElicitationState::Pending);
            let request = v1::ListElicitationsRequest::default();
            let listed = app.elicitations().list_elicitations(request).await;
            assert_eq!(listed.unwrap().into_inner().elicitations[0].id, question.id);
        }
        let content = r#"{"name":"Ada"}"#;
        stage.other().accept(&question.id, content).await.unwrap();
        result_of(call).await;
    })
    .await;
}

/// Answers that an app tries in vain.
async fn refused_answers(app: &Clients, id: &str) {
    let bad = [
        "{",
        "[]",
        "null",
        "{}",
        r#"{"name":5}"#,
        r#"{"name":"Ada","age":-1}"#,
        r#"{"name":"Ada","age":1.5}"#,
    ];
    for content in bad {
        let outcome = app.accept(id, content).await;
        let facts = ErrorFacts::expect(outcome, Code::InvalidArgument, "INVALID_FIELD");
        assert!(
            facts.field.starts_with("content_json"),
            "{content}: {facts:?}"
        );
    }
    let several = app.accept(id, r#"{"age":"secret"}"#).await.unwrap_err();
    assert!(!several.message().contains("secret"), "{several}");
    let details = several.get_error_details();
    let violations = details.bad_request().unwrap().field_violations.iter();
    let told: Vec<_> = violations
        .map(|one| (one.field.as_str(), one.description.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            ("content_json.age", "must be a whole number"),
            ("content_json.name", "is required"),
        ]
    );
    let without = app.respond(id, ElicitationAction::Accept, None).await;
    let facts = ErrorFacts::expect(without, Code::InvalidArgument, "INVALID_FIELD");
    assert_eq!(facts.field, "content_json");
    let with = app
        .respond(id, ElicitationAction::Decline, Some("{}"))
        .await;
    ErrorFacts::expect(with, Code::InvalidArgument, "INVALID_FIELD");
    let unset = app.respond(id, ElicitationAction::Unspecified, None).await;
    let facts = ErrorFacts::expect(unset, Code::InvalidArgument, "INVALID_FIELD");
    assert_eq!(facts.field, "action");
    let unknown = app.accept("nothing", "{}").await;
    ErrorFacts::expect(unknown, Code::NotFound, "ELICITATION_NOT_FOUND");
}

#[tokio::test]
async fn a_question_can_be_declined_or_cancelled() {
    for way in WAYS {
        for (action, state, word) in [
            (
                ElicitationAction::Decline,
                ElicitationState::Declined,
                "decline",
            ),
            (
                ElicitationAction::Cancel,
                ElicitationState::Cancelled,
                "cancel",
            ),
        ] {
            let daemon = TestDaemon::start().await;
            let app = daemon.clients().await;
            let fake = asking(way).await;
            add(&app, &fake).await;
            let mut updates = app.updates("").await;
            let call = start_call(&app, "s");
            let question = updates.pending().await;
            let ended = app.respond(&question.id, action, None).await.unwrap();
            assert_eq!(ended.state(), state);
            let told = result_of(call).await;
            assert_eq!(told["action"], word);
            assert!(told.get("content").is_none(), "{told}");
        }
    }
}

#[tokio::test]
async fn b34_a_cancelled_call_takes_its_question_along() {
    for way in [Way::Result, Way::CallStream] {
        one_and_two(async |stage| {
            let fake = asking(way).await;
            add(stage.app(), &fake).await;
            let mut updates = stage.other().updates("").await;
            let call = start_call(stage.app(), "s");
            let question = updates.pending().await;
            call.abort();
            assert_eq!(
                updates.end_of(&question.id).await,
                ElicitationState::Cancelled,
                "{way:?}"
            );
            let late =
                stage.everyone(async |app, _| app.accept(&question.id, r#"{"name":"Ada"}"#).await);
            for outcome in late.await {
                ErrorFacts::expect(outcome, Code::FailedPrecondition, "ALREADY_RESOLVED");
            }
        })
        .await;
    }
}

#[tokio::test]
async fn several_rounds_carry_only_the_latest_state_and_answers() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::modern().tool(tool("ask")).start().await;
    fake.reply("tools/call", |seen| {
        let (state, responses) = (
            &seen.params()["requestState"],
            &seen.params()["inputResponses"],
        );
        let question = |key: &str, state: &str| {
            let ask = json!({"method": "elicitation/create", "params": form(key)});
            Reply::Json(json!({
                "resultType": "input_required", "requestState": state, "inputRequests": {key: ask},
            }))
        };
        match state.as_str() {
            None => question("first", "one"),
            Some("one") => question("second", "two"),
            _ => Reply::Json(complete(&json!({"state": state, "responses": responses}))),
        }
    });
    add(&app, &fake).await;
    let mut updates = app.updates("").await;
    let call = start_call(&app, "s");
    for (message, name) in [("first", "Ada"), ("second", "Bob")] {
        let question = updates.pending().await;
        assert_eq!(question.message, message);
        app.accept(&question.id, &json!({"name": name}).to_string())
            .await
            .unwrap();
    }
    let told = result_of(call).await;
    assert_eq!(told["state"], "two");
    assert_eq!(told["responses"]["second"]["content"]["name"], "Bob");
    assert!(told["responses"].get("first").is_none(), "{told}");
}

#[tokio::test]
async fn b34_a_question_without_an_answer_expires() {
    let builder = TestDaemon::builder().set("questions.expiry", "1s");
    one_and_two_at_once(builder, async |stage| {
        let fake = asking(Way::Result).await;
        add(stage.app(), &fake).await;
        let mut updates = stage.other().updates("").await;
        let call = start_call(stage.app(), "s");
        let question = updates.pending().await;
        assert_eq!(
            updates.end_of(&question.id).await,
            ElicitationState::Expired
        );
        assert_eq!(result_of(call).await["action"], "cancel");
        let late = stage
            .other()
            .accept(&question.id, r#"{"name":"Ada"}"#)
            .await;
        ErrorFacts::expect(late, Code::FailedPrecondition, "ALREADY_RESOLVED");
    })
    .await;
}

#[tokio::test]
async fn a_question_too_many_says_so_and_not_that_it_is_forbidden() {
    let daemon = TestDaemon::builder()
        .set("questions.max_pending_per_server", 1)
        .start()
        .await;
    let app = daemon.clients().await;
    let fake = asking(Way::Result).await;
    add(&app, &fake).await;
    let mut updates = app.updates("").await;
    let first = start_call(&app, "s");
    let question = updates.pending().await;
    let second = app.call_tool("s", "ask", "{}").await;
    ErrorFacts::expect(second, Code::ResourceExhausted, "TOO_MANY");
    app.accept(&question.id, r#"{"name":"Ada"}"#).await.unwrap();
    assert_eq!(result_of(first).await["action"], "accept");
}

#[tokio::test]
async fn b34_a_lost_server_voids_its_question() {
    one_and_two(async |stage| {
        let fake = asking(Way::CallStream).await;
        add(stage.app(), &fake).await;
        let mut updates = stage.other().updates("").await;
        let call = start_call(stage.app(), "s");
        let question = updates.pending().await;
        stage.other().remove("s").await.unwrap();
        assert_eq!(updates.end_of(&question.id).await, ElicitationState::Void);
        // The server may have heard of the cancellation and finished before its connection ended.
        if let Ok(result) = within("the end of the call", call).await.unwrap() {
            assert!(text_of(&result).contains("cancel"), "{result:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn no_question_is_lost_over_a_restart() {
    let mut daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = asking(Way::CallStream).await;
    add(&app, &fake).await;
    let mut updates = app.updates("").await;
    let _call = start_call(&app, "s");
    let question = updates.pending().await;
    let token = updates.token();
    daemon.kill9().await;
    daemon.restart().await;
    let app = daemon.clients().await;
    let mut updates = app.updates(&token).await;
    assert_eq!(updates.end_of(&question.id).await, ElicitationState::Void);
    let late = app.accept(&question.id, r#"{"name":"Ada"}"#).await;
    ErrorFacts::expect(late, Code::FailedPrecondition, "ALREADY_RESOLVED");
}

#[tokio::test]
async fn a_capability_that_is_not_set_is_not_advertised() {
    for modern in [true, false] {
        let daemon = TestDaemon::start().await;
        let app = daemon.clients().await;
        let fake = FakeMcp::echo(modern).await;
        app.add_http("plain", &fake.url()).await;
        app.add_ready(with_forms(http_spec("forms", &fake.url())))
            .await;
        let method = if modern {
            "server/discover"
        } else {
            "initialize"
        };
        let advertised: Vec<Value> = fake
            .seen_of(method)
            .iter()
            .map(|seen| {
                let params = seen.params();
                let capabilities = if modern {
                    &params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
                } else {
                    &params["capabilities"]
                };
                capabilities["elicitation"].clone()
            })
            .collect();
        assert_eq!(advertised.len(), 2);
        assert!(advertised[0].is_null(), "{advertised:?}");
        assert!(advertised[1]["form"].is_object(), "{advertised:?}");
        assert!(advertised[1].get("url").is_none(), "{advertised:?}");
    }
}

#[tokio::test]
async fn a_url_is_shown_and_never_fetched() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let (fake, page) = (
        FakeMcp::modern().tool(tool("ask")).start().await,
        FakeMcp::echo(true).await,
    );
    let url = page.url();
    fake.reply("tools/call", move |seen| match &seen.params()["inputResponses"]["pay"] {
        Value::Null => {
            let params = json!({"mode": "url", "message": "Please pay", "url": url, "elicitationId": "e-1"});
            let question = json!({"method": "elicitation/create", "params": params});
            Reply::Json(json!({"resultType": "input_required", "inputRequests": {"pay": question}}))
        }
        answer => Reply::Json(complete(answer)),
    });
    let spec = ServerSpec {
        client_capabilities: Some(v1::ClientCapabilities {
            elicitation_url: true,
            ..Default::default()
        }),
        ..http_spec("S", &fake.url())
    };
    app.add("s", spec).await.unwrap();
    let mut updates = app.updates("").await;
    let call = start_call(&app, "s");
    let question = updates.pending().await;
    assert_eq!(question.mode(), v1::ElicitationMode::Url);
    assert_eq!(
        (question.message.as_str(), question.url),
        ("Please pay", page.url())
    );
    assert_eq!(question.url_host, "127.0.0.1");
    assert_eq!(question.url_warnings, ["NOT_HTTPS", "IP_ADDRESS"]);
    assert!(question.fields.is_empty());
    let with_content = app.accept(&question.id, "{}").await;
    let facts = ErrorFacts::expect(with_content, Code::InvalidArgument, "INVALID_FIELD");
    assert_eq!(facts.field, "content_json");
    app.respond(&question.id, ElicitationAction::Accept, None)
        .await
        .unwrap();
    let told = result_of(call).await;
    assert_eq!(told["action"], "accept");
    assert!(told.get("content").is_none(), "{told}");
    assert!(page.seen().is_empty(), "the daemon does not open URLs");
}
