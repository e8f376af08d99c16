//! A call that is made by one process, answered by another and had by a third, in three languages; the daemon is killed in
//! between.

use mcp_sidecar_tests::peers::apps::{App, follower, have_runtimes, start_call, wait_for};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::CallState;

use crate::questions::{Way, asking, with_forms};

fn is(line: &Value, kind: &str, id: &str, state: &str) -> bool {
    line[kind] == id && line["state"].as_str().is_some_and(|is| is.ends_with(state))
}

/// How it went on after the daemon was killed and started again.
struct After {
    daemon: TestDaemon,
    fake: FakeMcp,
    node: App,
    call: String,
    question: v1::Elicitation,
}

/// An app in Python starts a call and exits, its question is asked, and the daemon dies and comes back. An app in Node has
/// followed all the time, or it has left before the question and comes back after the daemon; then it wants to answer.
async fn until_the_answer(way: Way, away: bool) -> Option<After> {
    if !have_runtimes("the story of three processes", &["python3", "node", "npm"]) {
        return None;
    }
    let mut daemon = TestDaemon::start().await;
    let fake = asking(way).await;
    let app = daemon.clients().await;
    let server = app.add_ready(with_forms(http_spec("S", &fake.url()))).await;

    let mut node = follower(daemon.socket()).await;
    if away {
        node.tell("leave").await;
        node.find("it has left", |line| line["left"] == true).await;
    }
    let mut updates = app.updates("").await;
    let call = start_call(daemon.socket(), &server.id, "ask").await;
    let question = updates.pending().await;
    assert_eq!(question.call_id, call);
    updates.call_where(&call, CallState::InputRequired).await;
    if !away {
        let asked = |line: &Value| is(line, "question", &question.id, "_PENDING");
        node.find("the question", asked).await;
        node.find("the call waits", |line| {
            is(line, "call", &call, "_INPUT_REQUIRED")
        })
        .await;
    }
    daemon.kill9().await;
    if !away {
        node.find("its stream is lost", |line| line["lost"].is_string())
            .await;
    }
    daemon.restart().await;
    if !away {
        let back = |line: &Value| line["resumed"] == true;
        node.find("its stream goes on", back).await;
    }
    node.tell("answer").await;
    Some(After {
        daemon,
        fake,
        node,
        call,
        question,
    })
}

#[tokio::test]
async fn one_process_starts_a_call_another_answers_its_question_and_a_third_has_the_result() {
    for away in [true, false] {
        let Some(after) = until_the_answer(Way::Result, away).await else {
            return;
        };
        let (mut node, question) = (after.node, &after.question);
        if away {
            let asked = node
                .find("the question, on the stream that goes on", |line| {
                    is(line, "question", &question.id, "_PENDING")
                })
                .await;
            assert_eq!(asked["message"], "Who are you?");
        }
        let taken = |line: &Value| is(line, "answered", &question.id, "_ANSWERED");
        node.find("its answer counts", taken).await;
        let done = |line: &Value| is(line, "call", &after.call, "_COMPLETED");
        node.find("the call's end", done).await;
        let (state, text) = wait_for(after.daemon.socket(), &after.call).await;
        assert_eq!(state, "CALL_STATE_COMPLETED");
        let told: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            told,
            json!({"action": "accept", "content": {"name": "Ada"}})
        );
        let rounds = after.fake.seen_of("tools/call");
        assert_eq!(rounds.len(), 2, "each round was made once");
        assert_eq!(rounds[1].params()["requestState"], "st/ate+1==");
    }
}

#[tokio::test]
async fn three_processes_see_that_a_legacy_question_is_void_and_the_outcome_unknown() {
    for (way, away) in [(Way::CallStream, true), (Way::PushStream, false)] {
        let Some(after) = until_the_answer(way, away).await else {
            return;
        };
        let (mut node, question) = (after.node, &after.question);
        // The answer is refused; what became of the question and the call comes on the stream, before or after that.
        let mut wanted = vec!["void", "failed", "refused"];
        while !wanted.is_empty() {
            let seen = |line: &Value| {
                if is(line, "question", &question.id, "_VOID") {
                    "void"
                } else if is(line, "call", &after.call, "_FAILED") {
                    "failed"
                } else if line["refused"] == *question.id {
                    "refused"
                } else {
                    ""
                }
            };
            let line = node
                .find(&format!("{wanted:?}"), |line| !seen(line).is_empty())
                .await;
            if seen(&line) == "refused" {
                assert_eq!(line["code"], "FAILED_PRECONDITION", "{line}");
            }
            wanted.retain(|left| *left != seen(&line));
        }
        let (state, reason) = wait_for(after.daemon.socket(), &after.call).await;
        assert_eq!(
            (state.as_str(), reason.as_str()),
            ("CALL_STATE_FAILED", "OUTCOME_UNKNOWN")
        );
        assert_eq!(
            after.fake.seen_of("tools/call").len(),
            1,
            "it is not made again"
        );
    }
}
