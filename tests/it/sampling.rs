//! What servers want to be asked of a language model in the middle of a call.

use mcp_sidecar_tests::fake::{SseWriter, stream};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::sampling_content::Block;
use mcp_sidecar_tests::v1::{ElicitationState, IncludeContext, SamplingToolChoice};
use tonic_types::StatusExt as _;

use crate::questions::{WAYS, Way, complete, result_of, start_call};

/// An answer that no decoder may touch.
pub(crate) const ANSWER: &str = r#"{"role":"assistant","content":{"type":"text","text":"Paris","x":1.10},"model":"m-1","stopReason":"endTurn","n":9007199254740993}"#;

/// What a server asks.
pub(crate) fn capital() -> Value {
    json!({
        "messages": [{"role": "user", "content": {"type": "text", "text": "What is the capital of France?"}}],
        "maxTokens": 100,
    })
}

/// The same with everything that the specification knows.
fn rich() -> Value {
    json!({
        "messages": [
            {"role": "user", "content": {"type": "text", "text": "Weather in Paris?"}},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "1", "name": "get_weather", "input": {"city": "Paris"}},
            ]},
            {"role": "user", "content": [
                {"type": "tool_result", "toolUseId": "1", "content": [{"type": "text", "text": "18 degrees"}]},
            ]},
        ],
        "modelPreferences": {"hints": [{"name": "small"}], "speedPriority": 0.5},
        "systemPrompt": "Be brief.", "includeContext": "thisServer", "temperature": 0.1, "maxTokens": 1000,
        "stopSequences": ["END"], "metadata": {"k": 1},
        "tools": [{"name": "get_weather", "description": "Weather", "inputSchema": {"type": "object"}}],
        "toolChoice": {"mode": "auto"},
    })
}

/// A server whose `ask` wants a model to be asked, and answers with what it was told.
pub(crate) async fn sampling(way: Way, params: Value) -> FakeMcp {
    let builder = if matches!(way, Way::Result) {
        FakeMcp::modern()
    } else {
        FakeMcp::legacy()
    };
    let fake = builder.tool(tool("ask")).start().await;
    let server = fake.clone();
    let calls = std::sync::atomic::AtomicUsize::new(0);
    fake.on("tools/call", move |seen| {
        let (server, params) = (server.clone(), params.clone());
        let number = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed) + 1;
        async move {
            let id = json!(format!("s-{number}"));
            let pushed = json!({
                "jsonrpc": "2.0", "id": id, "method": "sampling/createMessage", "params": params,
            });
            match way {
                Way::Result => match seen.params()["inputResponses"]["model"].clone() {
                    Value::Null => {
                        let asked = json!({"method": "sampling/createMessage", "params": params});
                        Reply::Json(json!({
                            "resultType": "input_required", "requestState": "st/ate+1==",
                            "inputRequests": {"model": asked},
                        }))
                    }
                    answer => Reply::Json(complete(&answer)),
                },
                Way::CallStream => stream(async move |writer: SseWriter| {
                    writer.message(&pushed).await;
                    finish(&server, &writer, &id).await;
                }),
                Way::PushStream => stream(async move |writer: SseWriter| {
                    server.push(pushed).await;
                    finish(&server, &writer, &id).await;
                }),
            }
        }
    });
    fake
}

/// Answers a call with what came of the request: a result, or an error.
async fn finish(server: &FakeMcp, writer: &SseWriter, id: &Value) {
    tokio::select! {
        answer = server.wait("the answer", |seen| seen.answers(id)) => {
            let told = match &answer.json["result"] {
                Value::Null => &answer.json["error"],
                result => result,
            };
            writer.result(complete(told)).await;
        }
        () = writer.closed() => {}
    }
}

pub(crate) fn with_models(mut spec: ServerSpec) -> ServerSpec {
    spec.client_capabilities = Some(v1::ClientCapabilities {
        sampling: true,
        ..Default::default()
    });
    spec
}

pub(crate) fn with_all_of_sampling(mut spec: ServerSpec) -> ServerSpec {
    spec.client_capabilities = Some(v1::ClientCapabilities {
        elicitation_form: true,
        sampling: true,
        sampling_tools: true,
        sampling_context: true,
        ..Default::default()
    });
    spec
}

#[tokio::test]
async fn another_app_asks_its_model_and_the_answer_arrives_as_it_is() {
    for way in WAYS {
        one_and_two(async |stage| {
            let fake = sampling(way, capital()).await;
            stage
                .add("s", with_models(http_spec("The Thinker", &fake.url())))
                .await;
            let mut updates = stage.other().updates("").await;
            updates.snapshot().await;
            let call = start_call(stage.app(), "s");
            let request = updates.sampling().await;
            assert_eq!(request.server_id, "s");
            assert_eq!(request.server_name, "The Thinker");
            assert_eq!(request.summary, "What is the capital of France?");
            assert!(request.create_time.is_some() && request.expire_time.is_some());
            if !matches!(way, Way::PushStream) {
                assert!(!request.call_id.is_empty(), "{way:?}");
            }
            let raw: Value = serde_json::from_str(&request.request_json).unwrap();
            assert_eq!(raw, capital());
            for app in &stage.apps {
                assert_eq!(app.sampling_request(&request.id).await.unwrap(), request);
                assert_eq!(app.sampling_requests(10).await, vec![request.clone()]);
            }
            let ended = stage.other().sampled(&request.id, ANSWER).await.unwrap();
            assert_eq!(ended.state(), ElicitationState::Answered);
            assert_eq!(
                updates.end_of_sampling(&request.id).await,
                ElicitationState::Answered
            );
            let told = result_of(call).await;
            assert_eq!(told["model"], "m-1");
            assert!(
                fake.seen().iter().any(|seen| seen.text().contains(ANSWER)),
                "{way:?}"
            );
            let again = stage.app().sampled(&request.id, ANSWER).await;
            let facts = ErrorFacts::expect(again, Code::FailedPrecondition, "ALREADY_RESOLVED");
            assert_eq!(facts.metadata["sampling_request_id"], request.id);
            // It is between the server and the app: neither side of it is in the log.
            let log = stage.daemon.log();
            assert!(!log.contains("capital of France") && !log.contains("9007199254740993"));
        })
        .await;
    }
}

#[tokio::test]
async fn an_app_needs_no_json_to_ask_a_model() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = sampling(Way::CallStream, rich()).await;
    app.add("s", with_all_of_sampling(http_spec("S", &fake.url())))
        .await
        .unwrap();
    let mut updates = app.updates("").await;
    let call = start_call(&app, "s");
    let request = updates.sampling().await;
    assert_eq!(
        (request.system_prompt.as_str(), request.max_tokens),
        ("Be brief.", 1000)
    );
    assert_eq!(request.temperature, Some(0.1));
    assert_eq!(request.stop_sequences, ["END"]);
    assert_eq!(request.include_context(), IncludeContext::ThisServer);
    assert_eq!(request.metadata_json, r#"{"k":1}"#);
    let preferences = request.model_preferences.as_ref().unwrap();
    assert_eq!(preferences.hints[0].name, "small");
    assert_eq!(
        (preferences.speed_priority, preferences.cost_priority),
        (Some(0.5), None)
    );
    assert_eq!(request.tools[0].name, "get_weather");
    assert_eq!(request.tools[0].input_schema_json, r#"{"type":"object"}"#);
    assert_eq!(request.tool_choice(), SamplingToolChoice::Auto);
    let said = request.messages.iter().map(|message| {
        let block = message.content[0].block.as_ref().unwrap();
        let what = match block {
            Block::Text(text) => text.text.clone(),
            Block::ToolUse(one) => format!("{} {} {}", one.id, one.name, one.input_json),
            Block::ToolResult(one) => format!("{} {:?}", one.tool_use_id, one.content.len()),
            other => panic!("{other:?}"),
        };
        format!("{}: {what}", message.role)
    });
    assert_eq!(
        said.collect::<Vec<_>>(),
        [
            "user: Weather in Paris?",
            r#"assistant: 1 get_weather {"city":"Paris"}"#,
            "user: 1 1"
        ]
    );
    let uses = json!({
        "role": "assistant", "model": "m", "stopReason": "toolUse",
        "content": [{"type": "tool_use", "id": "2", "name": "get_weather", "input": {"city": "Bern"}}],
    });
    app.sampled(&request.id, &uses.to_string()).await.unwrap();
    assert_eq!(result_of(call).await, uses);
}

#[tokio::test]
async fn an_answer_that_no_model_gives_is_refused_and_the_request_stays() {
    one_and_two(async |stage| {
        let fake = sampling(Way::Result, capital()).await;
        stage
            .add("s", with_models(http_spec("S", &fake.url())))
            .await;
        let mut updates = stage.other().updates("").await;
        let call = start_call(stage.app(), "s");
        let request = updates.sampling().await;
        for app in &stage.apps {
            refused_answers(app, &request.id).await;
            let still = app.sampling_request(&request.id).await.unwrap();
            assert_eq!(still.state(), ElicitationState::Pending);
        }
        stage.other().sampled(&request.id, ANSWER).await.unwrap();
        assert_eq!(result_of(call).await["model"], "m-1");
    })
    .await;
}

async fn refused_answers(app: &Clients, id: &str) {
    for bad in [
        "",
        "{",
        "null",
        "[]",
        "{}",
        r#"{"role":"assistant","model":"m","content":"text"}"#,
    ] {
        let facts = ErrorFacts::expect(
            app.sampled(id, bad).await,
            Code::InvalidArgument,
            "INVALID_FIELD",
        );
        assert!(facts.field.starts_with("result_json"), "{bad}: {facts:?}");
    }
    let blocks = json!({
        "role": "secret", "content": [{"type": "text"}, {"type": "tool_use", "id": "1", "name": "x", "input": {}}],
    });
    let several = app.sampled(id, &blocks.to_string()).await.unwrap_err();
    assert!(!several.message().contains("secret"), "{several}");
    let details = several.get_error_details();
    let violations = details.bad_request().unwrap().field_violations.iter();
    let told: Vec<_> = violations
        .map(|one| (one.field.as_str(), one.description.as_str()))
        .collect();
    assert_eq!(
        told,
        [
            ("result_json.role", "must be `assistant` or `user`"),
            ("result_json.model", "is required"),
            ("result_json.content[0].text", "is required"),
            (
                "result_json.content[1].type",
                "must not be `tool_use`: the server offers no tools"
            ),
        ]
    );
    let nothing = app.respond_sampling(id, None).await;
    let facts = ErrorFacts::expect(nothing, Code::InvalidArgument, "INVALID_FIELD");
    assert_eq!(facts.field, "action");
    for unknown in ["nothing", ""] {
        let outcome = app.sampled(unknown, ANSWER).await.unwrap_err();
        let expected = match unknown {
            "" => "INVALID_FIELD",
            _ => "SAMPLING_REQUEST_NOT_FOUND",
        };
        assert_eq!(ErrorFacts::of(&outcome).reason, expected);
    }
}

#[tokio::test]
async fn a_request_can_be_rejected() {
    for way in WAYS {
        one_and_two(async |stage| {
            let fake = sampling(way, capital()).await;
            stage
                .add("s", with_models(http_spec("S", &fake.url())))
                .await;
            let mut updates = stage.other().updates("").await;
            let call = start_call(stage.app(), "s");
            let request = updates.sampling().await;
            let ended = stage.other().reject_sampling(&request.id).await.unwrap();
            assert_eq!(ended.state(), ElicitationState::Declined);
            if matches!(way, Way::Result) {
                // There is no answer that says so (MCP 2026-07-28 client/sampling): the server is not asked again.
                let outcome = within("the end of the call", call).await.unwrap();
                ErrorFacts::expect(outcome, Code::FailedPrecondition, "INPUT_DECLINED");
                assert_eq!(fake.seen_of("tools/call").len(), 1);
            } else {
                let told = result_of(call).await;
                assert_eq!(told["code"], -1, "{way:?}");
                assert_eq!(told["message"], "User rejected sampling request");
            }
            stage.app().calls_in_flight("s", 0).await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_request_that_nobody_answers_expires() {
    let builder = TestDaemon::builder().set("questions.sampling_expiry", "1s");
    for way in [Way::Result, Way::CallStream] {
        one_and_two_at_once(builder.clone(), async |stage| {
            let fake = sampling(way, capital()).await;
            stage
                .add("s", with_models(http_spec("S", &fake.url())))
                .await;
            let mut updates = stage.other().updates("").await;
            let call = start_call(stage.app(), "s");
            let request = updates.sampling().await;
            assert_eq!(
                updates.end_of_sampling(&request.id).await,
                ElicitationState::Expired
            );
            if matches!(way, Way::Result) {
                let outcome = within("the end of the call", call).await.unwrap();
                ErrorFacts::expect(outcome, Code::FailedPrecondition, "INPUT_DECLINED");
            } else {
                assert_eq!(result_of(call).await["code"], -1);
            }
            let late = stage.other().sampled(&request.id, ANSWER).await;
            ErrorFacts::expect(late, Code::FailedPrecondition, "ALREADY_RESOLVED");
        })
        .await;
    }
}

#[tokio::test]
async fn a_cancelled_call_takes_its_request_along() {
    for way in [Way::Result, Way::CallStream] {
        one_and_two(async |stage| {
            let fake = sampling(way, capital()).await;
            stage
                .add("s", with_models(http_spec("S", &fake.url())))
                .await;
            let mut updates = stage.other().updates("").await;
            let call = start_call(stage.app(), "s");
            let request = updates.sampling().await;
            call.abort();
            assert_eq!(
                updates.end_of_sampling(&request.id).await,
                ElicitationState::Cancelled,
                "{way:?}"
            );
            let late = stage.other().sampled(&request.id, ANSWER).await;
            ErrorFacts::expect(late, Code::FailedPrecondition, "ALREADY_RESOLVED");
        })
        .await;
    }
}

#[tokio::test]
async fn only_what_is_advertised_may_be_asked() {
    let with = |name: &str, value: Value| {
        let mut params = capital();
        params[name] = value;
        params
    };
    let forms = crate::questions::with_forms as fn(ServerSpec) -> ServerSpec;
    let models = with_models as fn(ServerSpec) -> ServerSpec;
    for (spec, params, code) in [
        (forms, capital(), -32601),
        (models, with("tools", json!([])), -32602),
        (models, with("toolChoice", json!({"mode": "auto"})), -32602),
        (models, with("includeContext", json!("allServers")), -32602),
        (models, with("maxTokens", Value::Null), -32602),
    ] {
        for way in [Way::Result, Way::CallStream] {
            let daemon = TestDaemon::start().await;
            let app = daemon.clients().await;
            let fake = sampling(way, params.clone()).await;
            app.add("s", spec(http_spec("S", &fake.url())))
                .await
                .unwrap();
            let outcome = within("the end of the call", start_call(&app, "s"))
                .await
                .unwrap();
            if matches!(way, Way::Result) {
                ErrorFacts::expect(outcome, Code::Unimplemented, "NOT_SUPPORTED");
            } else {
                let told: Value = serde_json::from_str(&text_of(&outcome.unwrap())).unwrap();
                assert_eq!(told["code"], code, "{params}");
            }
            assert!(app.sampling_requests(10).await.is_empty());
        }
    }
}

#[tokio::test]
async fn sampling_is_advertised_as_it_is_set() {
    for modern in [true, false] {
        let daemon = TestDaemon::start().await;
        let app = daemon.clients().await;
        let fake = FakeMcp::echo(modern).await;
        for (name, tools, context) in [("a", false, false), ("b", true, false), ("c", true, true)] {
            let mut spec = http_spec(name, &fake.url());
            spec.client_capabilities = Some(v1::ClientCapabilities {
                sampling: true,
                sampling_tools: tools,
                sampling_context: context,
                ..Default::default()
            });
            app.add_ready(spec.clone()).await;
            let shown = app.list().await.pop().unwrap().spec.unwrap();
            assert_eq!(shown.client_capabilities, spec.client_capabilities);
        }
        let method = if modern {
            "server/discover"
        } else {
            "initialize"
        };
        let advertised = fake.seen_of(method);
        let advertised = advertised.iter().map(|seen| {
            let params = seen.params();
            let capabilities = if modern {
                &params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
            } else {
                &params["capabilities"]
            };
            assert!(capabilities.get("elicitation").is_none());
            capabilities["sampling"].clone()
        });
        assert_eq!(
            advertised.collect::<Vec<_>>(),
            [
                json!({}),
                json!({"tools": {}}),
                json!({"tools": {}, "context": {}})
            ]
        );
        let mut part = http_spec("d", &fake.url());
        part.client_capabilities = Some(v1::ClientCapabilities {
            sampling_tools: true,
            ..Default::default()
        });
        let refused = app.add("", part).await;
        let facts = ErrorFacts::expect(refused, Code::InvalidArgument, "INVALID_FIELD");
        assert_eq!(facts.field, "spec.client_capabilities.sampling_tools");
    }
}
