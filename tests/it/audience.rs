//! What servers are told that they may ask for: what was set for them, else what apps say they can answer.

use mcp_sidecar_tests::audience::{FORMS, MODELS, URLS, told};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::{CanAnswer, ElicitationState};

use crate::questions::{Way, asking, result_of, start_call, with_forms};
use crate::sampling::{capital, sampling};

/// A server of this era with a tool, and without sessions: every connection has a handshake.
async fn server(modern: bool) -> FakeMcp {
    let builder = if modern {
        FakeMcp::modern()
    } else {
        FakeMcp::legacy().sessionless()
    };
    builder.tool(tool("echo")).start().await
}

/// Waits until a server is told this with a call.
async fn is_told(app: &Clients, fake: &FakeMcp, expected: Value) {
    eventually(
        &format!("the server to be told {expected}"),
        PATIENCE,
        async || {
            app.call_tool("s", "echo", "{}").await.unwrap();
            (told(fake) == expected).then_some(())
        },
    )
    .await;
}

#[tokio::test]
async fn behaviour_77_where_nobody_can_answer_nothing_is_advertised() {
    for modern in [true, false] {
        one_and_two(async |stage| {
            let fake = server(modern).await;
            // Whoever only watches answers nothing.
            let _watching = stage.other().updates("").await;
            stage.add_http(&fake.url()).await;
            assert_eq!(told(&fake), json!({}), "modern: {modern}");
            let shown = stage.other().get("s").await.unwrap().spec.unwrap();
            assert_eq!(shown.client_capabilities, None);
        })
        .await;
    }
    // Whoever asks all the same is refused, and nobody sees it.
    for way in [Way::Result, Way::CallStream] {
        one_and_two(async |stage| {
            let fake = asking(way).await;
            stage.add_http(&fake.url()).await;
            let outcome = within("the end", start_call(stage.app(), "s"))
                .await
                .unwrap();
            if matches!(way, Way::Result) {
                ErrorFacts::expect(outcome, Code::Unimplemented, "NOT_SUPPORTED");
            } else {
                assert_eq!(text_of(&outcome.unwrap()), "null");
                let refusal = fake
                    .wait("the refusal", |seen| seen.answers(&json!("q-1")))
                    .await;
                assert_eq!(refusal.json["error"]["code"], -32602);
            }
            assert!(stage.other().pending_questions(10).await.is_empty());
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_78_only_what_somebody_can_answer_is_advertised_and_else_refused() {
    for way in [Way::Result, Way::CallStream] {
        one_and_two(async |stage| {
            let fake = asking(way).await;
            let _urls = stage.other().attach(URLS).await;
            stage.add_http(&fake.url()).await;
            let outcome = within("the end", start_call(stage.app(), "s"))
                .await
                .unwrap();
            assert_eq!(told(&fake), json!({"elicitation": {"url": {}}}), "{way:?}");
            if matches!(way, Way::Result) {
                ErrorFacts::expect(outcome, Code::Unimplemented, "NOT_SUPPORTED");
            } else {
                let refusal = fake
                    .wait("the refusal", |seen| seen.answers(&json!("q-1")))
                    .await;
                assert_eq!(refusal.json["error"]["code"], -32602);
            }
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_79_what_is_set_for_a_server_wins_and_survives_a_restart() {
    for modern in [true, false] {
        one_and_two(async |mut stage| {
            let fake = server(modern).await;
            let everything = CanAnswer {
                elicitation_form: true,
                elicitation_url: true,
                ..MODELS
            };
            let attached = stage.other().attach(everything).await;
            let narrow = json!({"elicitation": {"form": {}}});
            stage
                .add("s", with_forms(http_spec("S", &fake.url())))
                .await;
            assert_eq!(told(&fake), narrow, "modern: {modern}");
            drop(attached);
            stage.daemon.kill9().await;
            stage.restart().await;
            let _attached = stage.other().attach(everything).await;
            stage.app().wait_for("s", ConnectionState::Ready).await;
            is_told(stage.app(), &fake, narrow).await;
            let shown = stage.other().get("s").await.unwrap().spec.unwrap();
            assert!(shown.client_capabilities.unwrap().elicitation_form);
            // Nothing at all is explicit, too.
            let nothing = ServerSpec {
                client_capabilities: Some(v1::ClientCapabilities::default()),
                ..http_spec("S", &fake.url())
            };
            let update = stage.app().update("s", nothing, &["client_capabilities"]);
            update.await.unwrap();
            stage.app().wait_for("s", ConnectionState::Ready).await;
            is_told(stage.app(), &fake, json!({})).await;
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_80_a_restart_before_any_app_is_back_changes_nothing() {
    for modern in [true, false] {
        for kill in [true, false] {
            one_and_two(async |mut stage| {
                let fake = server(modern).await;
                let all = json!({"elicitation": {"form": {}}, "sampling": {"tools": {}}});
                // One can show forms and one asks a model; which of them goes first does not matter.
                let forms = stage.app().attach(FORMS).await;
                let models = stage.other().attach(MODELS).await;
                stage.add_http(&fake.url()).await;
                assert_eq!(told(&fake), all, "modern: {modern}");
                drop((forms, models));
                if kill {
                    stage.daemon.kill9().await;
                }
                stage.restart().await;
                stage.app().wait_for("s", ConnectionState::Ready).await;
                is_told(stage.app(), &fake, all).await;
                // An app that is back counts for what it says now.
                let _forms = stage.app().attach(FORMS).await;
                if !modern {
                    stage.app().disconnect_server("s").await.unwrap();
                    stage.app().connect_server("s").await.unwrap();
                }
                is_told(stage.app(), &fake, json!({"elicitation": {"form": {}}})).await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn behaviour_80_a_session_goes_on_with_what_its_server_was_told() {
    let mut daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = asking(Way::CallStream).await;
    let attached = app.attach(FORMS).await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    drop(attached);
    daemon.restart().await;
    let app = daemon.clients().await;
    app.wait_for("s", ConnectionState::Ready).await;
    assert_eq!(fake.seen_of("initialize").len(), 1, "the session goes on");
    // Meanwhile only somebody else is there: the server may ask what it was told, and it waits for whoever comes.
    let mut updates = app.attach(URLS).await;
    let call = start_call(&app, "s");
    let question = updates.pending().await;
    app.accept(&question.id, r#"{"name":"Ada"}"#).await.unwrap();
    assert_eq!(result_of(call).await["content"]["name"], "Ada");
}

#[tokio::test]
async fn behaviour_81_a_sign_in_or_a_crash_before_the_handshake_changes_nothing() {
    let all = json!({"elicitation": {"form": {}}});
    protected(async |set| {
        let attached = set.app().attach(FORMS).await;
        set.add_protected().await;
        drop(attached);
        set.daemon.kill9().await;
        set.restart().await;
        let url = set.auth_url().await;
        set.browser.visit(&url).await;
        set.all_ready().await;
        assert_eq!(told(&set.mcp), json!({"elicitation": {"form": {}}}));
    })
    .await;
    for modern in [true, false] {
        one_and_two(async |mut stage| {
            let fake = server(modern).await;
            fake.crash().await;
            let attached = stage.app().attach(FORMS).await;
            let request = v1::AddServerRequest {
                server_id: "s".to_owned(),
                spec: Some(http_spec("S", &fake.url())),
                wait_timeout: Some(millis(0)),
                ..Default::default()
            };
            stage.app().add_with(request).await.unwrap();
            stage.app().wait_for("s", ConnectionState::Failed).await;
            stage.daemon.kill9().await;
            drop(attached);
            fake.revive().await;
            stage.restart().await;
            stage.app().connect_server("s").await.unwrap();
            stage.app().wait_for("s", ConnectionState::Ready).await;
            assert_eq!(told(&fake), all, "modern: {modern}");
        })
        .await;
    }
}

#[tokio::test]
async fn a_modern_server_is_told_with_the_next_request_and_a_legacy_one_with_the_next_connection() {
    for modern in [true, false] {
        one_and_two(async |stage| {
            let fake = server(modern).await;
            stage.add_http(&fake.url()).await;
            let forms = stage.app().attach(FORMS).await;
            let both = json!({"elicitation": {"form": {}, "url": {}}});
            let urls = stage.other().attach(URLS).await;
            let handshakes = fake.seen_of("initialize").len();
            stage.app().call_tool("s", "echo", "{}").await.unwrap();
            if modern {
                assert_eq!(told(&fake), both);
                drop(forms);
                is_told(stage.app(), &fake, json!({"elicitation": {"url": {}}})).await;
                drop(urls);
                // Nobody is there: what could be answered when one last came.
                is_told(stage.app(), &fake, both).await;
            } else {
                assert_eq!(told(&fake), json!({}));
                assert_eq!(
                    fake.seen_of("initialize").len(),
                    handshakes,
                    "nobody is disturbed"
                );
                stage.app().disconnect_server("s").await.unwrap();
                stage.app().connect_server("s").await.unwrap();
                assert_eq!(told(&fake), both);
            }
        })
        .await;
    }
}

#[tokio::test]
async fn what_a_server_was_told_with_a_call_holds_for_that_call() {
    one_and_two(async |stage| {
        let fake = FakeMcp::modern().tool(tool("ask")).start().await;
        let go = tokio_util::sync::CancellationToken::new();
        let going = go.clone();
        fake.on("tools/call", move |seen| {
            let going = going.clone();
            async move {
                going.cancelled().await;
                if let Some(answers) = seen.params().get("inputResponses") {
                    return Reply::Json(crate::questions::complete(&answers["who"]));
                }
                let params = crate::questions::form("Who are you?");
                let question = json!({"method": "elicitation/create", "params": params});
                Reply::Json(
                    json!({"resultType": "input_required", "inputRequests": {"who": question}}),
                )
            }
        });
        let forms = stage.app().attach(FORMS).await;
        stage.add_http(&fake.url()).await;
        let call = start_call(stage.app(), "s");
        fake.wait_method("tools/call").await;
        // Whoever could show forms leaves while the server works, and somebody else comes.
        drop(forms);
        let mut urls = stage.other().attach(URLS).await;
        eventually("the first app to be gone", PATIENCE, async || {
            let resource = stage.app().read("s", "x://y").await;
            resource.expect_err("there is none");
            (told(&fake) == json!({"elicitation": {"url": {}}})).then_some(())
        })
        .await;
        go.cancel();
        let question = urls.pending().await;
        stage
            .app()
            .accept(&question.id, r#"{"name":"Ada"}"#)
            .await
            .unwrap();
        assert_eq!(result_of(call).await["content"]["name"], "Ada");
    })
    .await;
}

#[tokio::test]
async fn an_app_answers_for_the_namespaces_that_it_follows_and_may_use() {
    let uid = rustix::process::getuid().as_raw();
    let rules = format!(r#"[{{ uid = {uid}, namespaces = ["default", "team-*"] }}]"#);
    let daemon = TestDaemon::builder().access(&rules).start().await;
    let app = daemon.clients().await;
    let (home, team) = (app.clone(), app.in_namespace("team-a"));
    let (at_home, at_team) = (server(true).await, server(true).await);
    home.add("s", http_spec("S", &at_home.url())).await.unwrap();
    team.add("s", http_spec("S", &at_team.url())).await.unwrap();
    let forms = json!({"elicitation": {"form": {}}});
    let one = app.attach_to(&["team-a"], FORMS).await;
    is_told(&team, &at_team, forms.clone()).await;
    is_told(&home, &at_home, json!({})).await;
    drop(one);
    let all = app.attach_to(&["*"], URLS).await;
    let urls = json!({"elicitation": {"url": {}}});
    is_told(&team, &at_team, urls.clone()).await;
    is_told(&home, &at_home, urls.clone()).await;
    // Also where nothing was registered before.
    let late = app.in_namespace("team-b");
    let at_late = server(true).await;
    late.add("s", http_spec("S", &at_late.url())).await.unwrap();
    is_told(&late, &at_late, urls.clone()).await;
    drop(all);
    is_told(&late, &at_late, urls).await;
}

#[tokio::test]
async fn what_can_be_answered_is_looked_at_before_it_is_believed() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let half = CanAnswer {
        sampling_tools: true,
        ..FORMS
    };
    let request = v1::StreamUpdatesRequest {
        can_answer: Some(half),
        ..Default::default()
    };
    let refused = app.updates_with(request).await.map(drop);
    let facts = ErrorFacts::expect(refused, Code::InvalidArgument, "INVALID_FIELD");
    assert_eq!(facts.field, "can_answer.sampling_tools");
    // A model is asked on behalf of an app that says it has one.
    let fake = sampling(Way::Result, capital()).await;
    let mut models = app.attach(MODELS).await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    let call = start_call(&app, "s");
    let request = models.sampling().await;
    assert_eq!(request.state(), ElicitationState::Pending);
    app.sampled(&request.id, crate::sampling::ANSWER)
        .await
        .unwrap();
    assert_eq!(result_of(call).await["model"], "m-1");
}
