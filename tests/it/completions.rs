//! Servers that say when the user is done with what was opened for a question.

use mcp_sidecar_tests::fake::{SseWriter, stream};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::{Elicitation, ElicitationAction, ElicitationState};
use tokio::sync::mpsc;

use crate::questions::{Way, complete, result_of, start_call};

fn url(id: &str) -> Value {
    json!({
        "mode": "url", "elicitationId": id, "message": "Connect your account",
        "url": format!("https://connect.example.com/{id}"),
    })
}

fn done(params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "method": "notifications/elicitation/complete", "params": params})
}

/// A legacy server whose `ask` wants a URL opened under an id of its own, and what it is to say next on the same stream.
async fn opening(id: &'static str, way: Way) -> (FakeMcp, mpsc::UnboundedSender<Value>) {
    let fake = FakeMcp::legacy().tool(tool("ask")).start().await;
    let (say, saying) = mpsc::unbounded_channel::<Value>();
    let saying = std::sync::Arc::new(tokio::sync::Mutex::new(saying));
    let server = fake.clone();
    fake.on("tools/call", move |_| {
        let (server, saying) = (server.clone(), saying.clone());
        async move {
            stream(async move |writer: SseWriter| {
                let ask = json!({"jsonrpc": "2.0", "id": "q-1", "method": "elicitation/create", "params": url(id)});
                let tell = async |message: Value| match way {
                    Way::PushStream => server.push(message).await,
                    _ => writer.message(&message).await,
                };
                tell(ask).await;
                let mut saying = saying.lock().await;
                // Until it is told to end the call with a result.
                while let Some(message) = saying.recv().await {
                    if message["result"].is_null() {
                        tell(message).await;
                    } else {
                        return writer.result(complete(&message["result"])).await;
                    }
                }
            })
        }
    });
    (fake, say)
}

fn with_urls(mut spec: ServerSpec) -> ServerSpec {
    spec.client_capabilities = Some(v1::ClientCapabilities {
        elicitation_url: true,
        ..Default::default()
    });
    spec
}

/// Reads on until this question changes.
async fn next_of(updates: &mut Updates, id: &str) -> Elicitation {
    let of_it = |question: &Elicitation| question.id == id;
    updates
        .question_where("a change of the question", of_it)
        .await
}

async fn accept(app: &Clients, id: &str) -> Elicitation {
    let answered = app.respond(id, ElicitationAction::Accept, None).await;
    answered.unwrap()
}

#[tokio::test]
async fn behaviour_88_apps_see_when_the_user_is_done_with_what_was_opened() {
    for way in [Way::CallStream, Way::PushStream] {
        for answered_first in [false, true] {
            one_and_two(async |stage| {
                let (fake, say) = opening("e-1", way).await;
                stage.add("s", with_urls(http_spec("S", &fake.url()))).await;
                let mut updates = stage.other().updates("").await;
                let call = start_call(stage.app(), "s");
                let question = updates.pending().await;
                assert!(question.complete_time.is_none());
                let (before, after) = if answered_first {
                    accept(stage.other(), &question.id).await;
                    let ended = next_of(&mut updates, &question.id).await;
                    assert!(ended.complete_time.is_none());
                    (ElicitationState::Answered, ElicitationState::Answered)
                } else {
                    (ElicitationState::Pending, ElicitationState::Answered)
                };
                say.send(done(&json!({"elicitationId": "e-1"}))).unwrap();
                let known = next_of(&mut updates, &question.id).await;
                assert_eq!(known.state(), before, "{way:?}: it is no answer");
                assert!(known.complete_time.is_some());
                if !answered_first {
                    let answers = |seen: &Seen| seen.answers(&json!("q-1"));
                    assert!(!fake.seen().iter().any(answers));
                    let ended = accept(stage.other(), &question.id).await;
                    assert_eq!(ended.complete_time, known.complete_time);
                    next_of(&mut updates, &question.id).await;
                }
                fake.wait("the answer", |seen| seen.answers(&json!("q-1")))
                    .await;
                say.send(json!({"result": "connected"})).unwrap();
                assert_eq!(result_of(call).await, "connected");
                for app in &stage.apps {
                    let kept = app.question(&question.id).await.unwrap();
                    assert_eq!(kept.state(), after);
                    assert_eq!(kept.complete_time, known.complete_time);
                }
            })
            .await;
        }
    }
}

#[tokio::test]
async fn behaviour_88_ids_that_are_unknown_foreign_or_done_with_are_ignored() {
    for way in [Way::CallStream, Way::PushStream] {
        one_and_two(async |stage| {
            let (one, say_one) = opening("e-1", way).await;
            let (two, say_two) = opening("e-1", way).await;
            let (three, say_three) = opening("e-3", way).await;
            for (id, fake) in [("one", &one), ("two", &two), ("three", &three)] {
                stage.add(id, with_urls(http_spec(id, &fake.url()))).await;
            }
            let mut updates = stage.other().updates("").await;
            let mut asked = Vec::new();
            for id in ["one", "two", "three"] {
                drop(start_call(stage.app(), id));
                asked.push(updates.pending().await.id);
            }
            let completed = async |id: &str| {
                let question = stage.other().question(id).await.unwrap();
                question.complete_time
            };
            // Each server means its own question, whatever the others call theirs.
            say_three
                .send(done(&json!({"elicitationId": "e-1"})))
                .unwrap();
            say_three
                .send(done(&json!({"elicitationId": "e-3"})))
                .unwrap();
            next_of(&mut updates, &asked[2]).await;
            say_two
                .send(done(&json!({"elicitationId": "e-1"})))
                .unwrap();
            let known = next_of(&mut updates, &asked[1]).await;
            assert!(known.complete_time.is_some());
            assert!(completed(&asked[0]).await.is_none());

            // What nobody knows, what is malformed and what is done with changes nothing.
            for odd in [
                json!({"elicitationId": "e-9"}),
                json!({"elicitationId": 1}),
                json!({}),
                json!(["e-1"]),
            ] {
                say_one.send(done(&odd)).unwrap();
            }
            say_two
                .send(done(&json!({"elicitationId": "e-1"})))
                .unwrap();
            say_one
                .send(done(&json!({"elicitationId": "e-1"})))
                .unwrap();
            let known_one = next_of(&mut updates, &asked[0]).await;
            assert!(known_one.complete_time.is_some());
            assert_eq!(completed(&asked[1]).await, known.complete_time);

            // Each question has changed once by it, and keeps that whatever its end is.
            for id in &asked {
                let declined = stage.other().respond(id, ElicitationAction::Decline, None);
                let declined = declined.await.unwrap();
                assert!(declined.complete_time.is_some());
                let ended = next_of(&mut updates, id).await;
                assert_eq!(ended.state(), ElicitationState::Declined, "no other change");
            }
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_88_a_server_says_so_after_the_daemon_was_killed() {
    one_and_two(async |mut stage| {
        let fake = FakeMcp::legacy().tool(tool("ask")).start().await;
        fake.reply("tools/call", |_| {
            Reply::Error(
                -32042,
                "open it first",
                json!({"elicitations": [url("e-1")]}),
            )
        });
        stage.add("s", with_urls(http_spec("S", &fake.url()))).await;
        let mut updates = stage.other().updates("").await;
        let call = stage.app().detach("s", "ask", "{}").await;
        let question = updates.pending().await;
        let token = updates.token();
        stage.daemon.kill9().await;
        stage.restart().await;
        stage.other().wait_for("s", ConnectionState::Ready).await;
        let mut updates = stage.other().updates(&token).await;
        fake.push(done(&json!({"elicitationId": "e-1"}))).await;
        let known = next_of(&mut updates, &question.id).await;
        assert!(known.complete_time.is_some());
        assert_eq!(known.state(), ElicitationState::Pending);
        fake.reply("tools/call", |_| Reply::Json(complete(&json!("connected"))));
        let ended = accept(stage.other(), &question.id).await;
        assert_eq!(ended.complete_time, known.complete_time);
        let ended = stage.other().wait_call(&call).await;
        assert_eq!(ended.state(), v1::CallState::Completed);
    })
    .await;
}
