//! Requests for answers of language models beside other questions, in other namespaces, through changes; and servers of others
//! that make them. Elsewhere: `sampling` has how they are asked and answered.

use mcp_sidecar_tests::peers::catalogue;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::sampling_content::Block;
use mcp_sidecar_tests::v1::{ElicitationState, UpdateKind};

use crate::questions::{Way, complete, form, result_of, start_call};
use crate::sampling::{ANSWER, capital, sampling, with_all_of_sampling, with_models};
use crate::tasks::{ByHand, completed, task};

/// A modern server whose `ask` wants three people and three models to be asked, by turns.
async fn both() -> FakeMcp {
    let fake = FakeMcp::modern().tool(tool("ask")).start().await;
    fake.reply("tools/call", |seen| {
        if let Some(answers) = seen.params().get("inputResponses") {
            return Reply::Json(complete(answers));
        }
        let requests = (0..3).flat_map(|n| {
            let person = json!({"method": "elicitation/create", "params": form("Who?")});
            let model = json!({"method": "sampling/createMessage", "params": capital()});
            [(format!("p{n}"), person), (format!("m{n}"), model)]
        });
        let requests: serde_json::Map<_, _> = requests.collect();
        Reply::Json(json!({"resultType": "input_required", "inputRequests": requests}))
    });
    fake
}

#[tokio::test]
async fn people_and_models_are_asked_apart() {
    one_and_two(async |stage| {
        let fake = both().await;
        stage
            .add("s", with_all_of_sampling(http_spec("S", &fake.url())))
            .await;
        let of_kind = |kind: UpdateKind| v1::StreamUpdatesRequest {
            kinds: vec![kind.into()],
            ..Default::default()
        };
        let app = stage.other();
        let mut people = app
            .updates_with(of_kind(UpdateKind::Elicitation))
            .await
            .unwrap();
        let mut models = app
            .updates_with(of_kind(UpdateKind::Sampling))
            .await
            .unwrap();
        let call = start_call(stage.app(), "s");
        let (mut questions, mut requests) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            questions.push(people.pending().await.id);
            requests.push(models.sampling().await.id);
        }
        // Pages are full although what belongs to the other service lies between.
        for app in &stage.apps {
            for size in [1, 2, 3] {
                let listed = app.pending_questions(size).await;
                assert_eq!(listed.len(), 3);
                assert!(listed.iter().all(|one| questions.contains(&one.id)));
                let listed = app.sampling_requests(size).await;
                assert_eq!(listed.len(), 3);
                assert!(listed.iter().all(|one| requests.contains(&one.id)));
            }
        }
        // Neither service knows what belongs to the other.
        let foreign = app.question(&requests[0]).await;
        ErrorFacts::expect(foreign, Code::NotFound, "ELICITATION_NOT_FOUND");
        let foreign = app.accept(&requests[0], "{}").await;
        ErrorFacts::expect(foreign, Code::NotFound, "ELICITATION_NOT_FOUND");
        let foreign = app.sampling_request(&questions[0]).await;
        ErrorFacts::expect(foreign, Code::NotFound, "SAMPLING_REQUEST_NOT_FOUND");
        let foreign = app.reject_sampling(&questions[0]).await;
        ErrorFacts::expect(foreign, Code::NotFound, "SAMPLING_REQUEST_NOT_FOUND");
        // A snapshot holds each as what it is.
        let held = app
            .updates_with(of_kind(UpdateKind::Sampling))
            .await
            .unwrap()
            .snapshot()
            .await;
        assert_eq!(held.len(), 3);
        assert!(
            held.iter()
                .all(|one| matches!(one, v1::upsert::Resource::SamplingRequest(_)))
        );
        for id in &questions {
            app.accept(id, r#"{"name":"Ada"}"#).await.unwrap();
        }
        for id in &requests {
            app.sampled(id, ANSWER).await.unwrap();
        }
        let told = result_of(call).await;
        for n in 0..3 {
            assert_eq!(told[format!("p{n}")]["content"]["name"], "Ada");
            assert_eq!(told[format!("m{n}")]["model"], "m-1");
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_with_a_new_id_takes_its_requests_along() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = sampling(Way::CallStream, capital()).await;
    let spec = with_models(http_spec("S", &fake.url()));
    let old = app.add_ready(spec.clone()).await.id;
    let mut updates = app.updates("").await;
    let call = start_call(&app, &old);
    let request = updates.sampling().await;
    app.add("s", spec).await.unwrap();
    let gone = updates.deleted(&request.id).await;
    assert_eq!(gone.kind(), UpdateKind::Sampling);
    let moved = updates.sampling().await;
    assert_eq!(
        (moved.id.as_str(), moved.server_id.as_str()),
        (request.id.as_str(), "s")
    );
    app.sampled(&request.id, ANSWER).await.unwrap();
    assert_eq!(result_of(call).await["model"], "m-1");
}

#[tokio::test]
async fn b38_a_request_is_out_of_reach_for_another_namespace() {
    for way in [Way::Result, Way::CallStream] {
        one_and_two(async |stage| {
            let fake = sampling(way, capital()).await;
            let spec = with_models(http_spec("S", &fake.url()));
            stage.add("s", spec.clone()).await;
            let stranger = stage.daemon.clients_in("elsewhere").await;
            stranger.add("s", spec).await.unwrap();
            stranger.wait_for("s", ConnectionState::Ready).await;
            let mut foreign = stranger.updates("").await;
            foreign.snapshot().await;
            let mut own = stage.other().updates("").await;
            let call = start_call(stage.app(), "s");
            let request = own.sampling().await;
            let id = &request.id;
            let unknown = |outcome: Result<_, _>| {
                ErrorFacts::expect(outcome, Code::NotFound, "SAMPLING_REQUEST_NOT_FOUND");
            };
            unknown(stranger.sampling_request(id).await);
            unknown(stranger.sampled(id, ANSWER).await);
            unknown(stranger.reject_sampling(id).await);
            assert!(stranger.sampling_requests(10).await.is_empty());
            stranger.remove("s").await.unwrap();
            loop {
                let seen = format!("{:?}", foreign.next().await);
                assert!(!seen.contains(id.as_str()), "{seen}");
                if seen.contains("Delete") {
                    break;
                }
            }
            stage.other().sampled(id, ANSWER).await.unwrap();
            assert_eq!(result_of(call).await["model"], "m-1");
        })
        .await;
    }
}

#[tokio::test]
async fn a_request_of_a_legacy_server_is_void_after_a_restart() {
    let mut daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = sampling(Way::CallStream, capital()).await;
    app.add("s", with_models(http_spec("S", &fake.url())))
        .await
        .unwrap();
    let mut updates = app.updates("").await;
    let _call = start_call(&app, "s");
    let request = updates.sampling().await;
    let token = updates.token();
    daemon.kill9().await;
    daemon.restart().await;
    let app = daemon.clients().await;
    let mut updates = app.updates(&token).await;
    assert_eq!(
        updates.end_of_sampling(&request.id).await,
        ElicitationState::Void
    );
    let late = app.sampled(&request.id, ANSWER).await;
    ErrorFacts::expect(late, Code::FailedPrecondition, "ALREADY_RESOLVED");
}

#[tokio::test]
async fn a_conversation_has_a_bound_of_its_own() {
    let builder = TestDaemon::builder()
        .set("questions.max_bytes", 8_192)
        .set("questions.max_sampling_bytes", 65_536);
    let daemon = builder.start().await;
    let app = daemon.clients().await;
    for (bytes, fits) in [(32_768, true), (131_072, false)] {
        let mut params = capital();
        params["systemPrompt"] = json!("x".repeat(bytes));
        let fake = sampling(Way::Result, params).await;
        let id = format!("s{bytes}");
        app.add(&id, with_models(http_spec(&id, &fake.url())))
            .await
            .unwrap();
        let mut updates = app.updates("").await;
        let call = start_call(&app, &id);
        if fits {
            let request = updates.sampling().await;
            app.sampled(&request.id, ANSWER).await.unwrap();
            result_of(call).await;
        } else {
            let outcome = within("the end of the call", call).await.unwrap();
            let facts = ErrorFacts::expect(outcome, Code::ResourceExhausted, "MESSAGE_TOO_LARGE");
            assert!(
                facts.message.contains("questions.max_sampling_bytes"),
                "{facts:?}"
            );
        }
    }
}

/// A server of somebody else asks a model with this tool.
async fn a_peer_asks(spec: ServerSpec, tool: &'static str, arguments: &'static str, asked: &str) {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let server = app.add_ready(with_models(spec)).await.id;
    let mut updates = app.updates("").await;
    let call = || {
        let (app, server) = (app.clone(), server.clone());
        tokio::spawn(async move { app.call_tool(&server, tool, arguments).await })
    };
    let answered = call();
    let request = updates.sampling().await;
    let Some(Block::Text(text)) = &request.messages[0].content[0].block else {
        panic!("{request:?}");
    };
    assert!(text.text.contains(asked), "{request:?}");
    assert_eq!(request.messages[0].role, "user");
    assert_eq!(request.max_tokens, 10);
    app.sampled(&request.id, ANSWER).await.unwrap();
    let result = within("the result", answered).await.unwrap().unwrap();
    assert!(!result.is_error, "{result:?}");
    assert!(text_of(&result).contains("Paris"), "{result:?}");

    let rejected = call();
    let request = updates.sampling().await;
    app.reject_sampling(&request.id).await.unwrap();
    let outcome = within("the end of the call", rejected).await.unwrap();
    // What a legacy server makes of the error is its own affair.
    match app.get(&server).await.unwrap().facts().era() {
        Era::Modern => {
            ErrorFacts::expect(outcome, Code::FailedPrecondition, "INPUT_DECLINED");
        }
        _ => assert!(outcome.map_or(true, |result| result.is_error)),
    }
}

const EVERYTHING: (&str, &str) = (
    "trigger-sampling-request",
    r#"{"prompt":"hello","maxTokens":10}"#,
);

#[tokio::test]
async fn the_reference_server_asks_a_model_over_stdio() {
    let spec = catalogue::everything_stdio().await.spec("peer");
    a_peer_asks(spec, EVERYTHING.0, EVERYTHING.1, "hello").await;
}

#[tokio::test]
async fn the_reference_server_asks_a_model_over_http() {
    let peer = catalogue::everything_http().await;
    let spec = http_spec("peer", &peer.url);
    a_peer_asks(spec, EVERYTHING.0, EVERYTHING.1, "hello").await;
}

#[tokio::test]
async fn a_python_server_asks_a_model_in_both_eras() {
    let peer = catalogue::py2_http("http").await;
    for version in ["", "2025-11-25"] {
        let spec = ServerSpec {
            protocol_version: version.to_owned(),
            ..http_spec("peer", &peer.url)
        };
        a_peer_asks(spec, "era_sample", "{}", "hi").await;
    }
}

#[tokio::test]
async fn a_task_asks_a_model_too() {
    for accept in [true, false] {
        let asked = json!({"model": {"method": "sampling/createMessage", "params": capital()}});
        let asking = task("input_required", &json!({"inputRequests": asked}));
        let (fake, hand) = ByHand::start(asking).await;
        let daemon = TestDaemon::start().await;
        let app = daemon.clients().await;
        app.add("s", with_models(http_spec("S", &fake.url())))
            .await
            .unwrap();
        let mut updates = app.updates("").await;
        let caller = app.clone();
        let call = tokio::spawn(async move { caller.call_tool("s", "job", "{}").await });
        let request = updates.sampling().await;
        if accept {
            app.sampled(&request.id, ANSWER).await.unwrap();
            let update = fake.wait_method("tasks/update").await;
            assert!(update.text().contains(ANSWER));
            hand.set(completed());
            let result = within("the result", call).await.unwrap().unwrap();
            assert_eq!(text_of(&result), "done");
        } else {
            app.reject_sampling(&request.id).await.unwrap();
            let outcome = within("the end of the call", call).await.unwrap();
            ErrorFacts::expect(outcome, Code::FailedPrecondition, "INPUT_DECLINED");
            fake.wait_method("tasks/cancel").await;
        }
    }
}
