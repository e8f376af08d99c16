//! Calls that are not their caller's alone: detached ones, and those that several apps name and wait for.

use mcp_sidecar_tests::calls::reason_of;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::CallState;

use crate::outliving::{said, slow};

#[tokio::test]
async fn a_detached_call_goes_on_without_its_app_and_any_app_gets_its_result() {
    for modern in [true, false] {
        one_and_two(async |stage| {
            let (fake, go) = slow(modern).await;
            stage.add_http(&fake.url()).await;
            let mut updates = stage.other().updates("").await;
            updates.snapshot().await;
            let guest = stage.daemon.clients().await;
            let id = guest.detach("s", "slow", "{}").await;
            drop(guest);
            let running = updates.call_where(&id, CallState::Running).await;
            assert!(running.detached && running.outcome.is_none());
            assert_eq!(
                (running.server_id.as_str(), running.tool_name.as_str()),
                ("s", "slow")
            );
            fake.wait_method("tools/call").await;
            let listed = stage.other().list_calls().await;
            assert_eq!(listed.len(), 1);
            assert_eq!(listed[0].id, id);
            assert!(stage.other().get_call(&id).await.unwrap().outcome.is_none());

            go.cancel();
            let ended = updates.call_where(&id, CallState::Completed).await;
            assert!(ended.end_time.is_some() && ended.expire_time.is_some());
            for app in &stage.apps {
                assert_eq!(said(&app.wait_call(&id).await), "done");
                assert_eq!(said(&app.get_call(&id).await.unwrap()), "done");
            }
            assert!(stage.other().list_calls().await.is_empty());
            let late = stage.other().cancel_call(&id).await;
            ErrorFacts::expect(late, Code::FailedPrecondition, "ALREADY_RESOLVED");
            assert_eq!(fake.seen_of("tools/call").len(), 1);
        })
        .await;
    }
}

#[tokio::test]
async fn a_call_with_a_request_id_is_made_once_however_often_it_is_asked_for() {
    one_and_two(async |stage| {
        let (fake, go) = slow(true).await;
        stage.add_http(&fake.url()).await;
        let named = |arguments: &str| v1::ToolCall {
            request_id: "order-17".to_owned(),
            ..stage.app().call("s", "slow", arguments)
        };
        let first = {
            let (app, call) = (stage.app().clone(), named("{}"));
            tokio::spawn(async move { app.call_with(call).await })
        };
        fake.wait_method("tools/call").await;
        let again = {
            let (app, call) = (stage.other().clone(), named("{}"));
            tokio::spawn(async move { app.call_with(call).await })
        };
        let other = stage.other().call_with(named(r#"{"n":1}"#)).await;
        let facts = ErrorFacts::expect(other, Code::InvalidArgument, "INVALID_FIELD");
        assert!(!facts.metadata["call_id"].is_empty());
        go.cancel();
        for call in [first, again] {
            let result = within("the result", call).await.unwrap().unwrap();
            assert_eq!(text_of(&result), "\"done\"");
        }
        let later = stage.other().call_with(named("{}")).await.unwrap();
        assert_eq!(text_of(&later), "\"done\"");
        let by_name = v1::GetCallRequest {
            namespace: stage.other().namespace(),
            request_id: "order-17".to_owned(),
            ..Default::default()
        };
        let found = stage.other().calls().get_call(by_name).await.unwrap();
        let found = found.into_inner().call.unwrap();
        assert_eq!(found.request_id, "order-17");
        assert_eq!(said(&found), "done");
        assert_eq!(fake.seen_of("tools/call").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn a_call_that_others_wait_for_goes_on_when_one_of_them_leaves() {
    one_and_two(async |stage| {
        let (fake, go) = slow(true).await;
        stage.add_http(&fake.url()).await;
        let named = || v1::ToolCall {
            request_id: "shared".to_owned(),
            ..stage.app().call("s", "slow", "{}")
        };
        let (guest, call) = (stage.daemon.clients().await, named());
        let leaving = tokio::spawn(async move { guest.call_with(call).await });
        fake.wait_method("tools/call").await;
        let mut staying = stage.other().stream_with(named()).await.unwrap();
        let Some(v1::call_tool_stream_response::Event::Started(started)) =
            staying.next().await.unwrap()
        else {
            panic!("a call starts first");
        };
        leaving.abort();
        let _left = leaving.await;
        go.cancel();
        let events = within("the end", staying.collect()).await.unwrap();
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!(
            said(&stage.other().wait_call(&started.call_id).await),
            "done"
        );

        // The last one who leaves takes the call along.
        let (fake, _go) = slow(true).await;
        stage.add("t", http_spec("T", &fake.url())).await;
        let call = v1::ToolCall {
            request_id: "alone".to_owned(),
            ..stage.app().call("t", "slow", "{}")
        };
        let guest = stage.daemon.clients().await;
        let leaving = tokio::spawn(async move { guest.call_with(call).await });
        fake.wait_method("tools/call").await;
        let listed = stage.other().list_calls().await;
        assert_eq!(listed.len(), 1);
        leaving.abort();
        let ended = stage.other().wait_call(&listed[0].id).await;
        assert_eq!(ended.state(), CallState::Cancelled);
        assert_eq!(reason_of(&ended), "CANCELLED");
        let seen = fake.seen();
        let index = seen.iter().position(|seen| seen.method() == "tools/call");
        fake.wait_dropped(index.unwrap()).await;
    })
    .await;
}
