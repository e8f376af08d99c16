//! Calls that wait for a sign-in in place of ending with where it is.

use futures_util::future::join_all;
use mcp_sidecar_tests::prelude::*;

/// A call that waits.
fn patient(app: &Clients, tool: &str) -> v1::ToolCall {
    v1::ToolCall {
        wait_for_sign_in: true,
        ..app.call("s", tool, "{}")
    }
}

type Waiting = tokio::task::JoinHandle<Result<v1::ToolResult, tonic::Status>>;

/// So many calls that wait, shared out among the apps.
fn waiting(set: &AuthStage, tool: &'static str, count: usize) -> Vec<Waiting> {
    let calls = (0..count).map(|number| {
        let app = set.apps[number % set.apps.len()].clone();
        tokio::spawn(async move { app.call_with(patient(&app, tool)).await })
    });
    calls.collect()
}

async fn all_done(calls: Vec<Waiting>) {
    for result in within("the calls", join_all(calls)).await {
        result.unwrap().unwrap();
    }
}

#[tokio::test]
async fn calls_wait_for_the_first_sign_in() {
    protected(async |set| {
        let url = set.add_protected().await;
        let calls = waiting(set, "echo", 20);
        // Who does not want to wait hears at once where it is.
        let outcome = set.other().call_tool("s", "echo", "{}").await;
        ErrorFacts::expect(outcome, Code::FailedPrecondition, "SIGN_IN_REQUIRED");
        assert!(calls.iter().all(|call| !call.is_finished()));
        set.browser.visit(&url).await;
        all_done(calls).await;
        set.all_ready().await;
        assert_eq!(set.auth.count(Endpoint::Token), 1);
    })
    .await;
}

#[tokio::test]
async fn calls_wait_when_a_grant_has_ended_and_when_more_is_wanted() {
    protected(async |set| {
        set.guard.rules(|rules| {
            rules.scope = Some("a");
            rules.needs.insert("t1", "b");
        });
        set.sign_in().await;
        // More scopes: the server stays READY.
        let calls = waiting(set, "t1", 6);
        let url = set
            .other()
            .wait_for_auth_url("s")
            .await
            .facts()
            .auth_url
            .clone();
        set.all_can_call().await;
        set.browser.visit(&url).await;
        all_done(calls).await;
        set.all_ready().await;
        // Nothing is left.
        set.auth.revoke_everything();
        let calls = waiting(set, "t1", 6);
        let url = set.auth_url().await;
        set.browser.visit(&url).await;
        all_done(calls).await;
        set.all_ready().await;
        assert_eq!(set.auth.count(Endpoint::Authorize), 3);
        // Each was looked at once by the server, and only when it could be.
        let run = set.mcp.seen_of("tools/call").into_iter();
        let live = set.auth.live_tokens();
        let run = run.filter(|seen| {
            live.iter()
                .any(|token| seen.header("authorization").contains(token))
        });
        assert_eq!(run.count(), 6);
    })
    .await;
}

#[tokio::test]
async fn a_call_waits_up_to_its_deadline_and_says_then_where_the_sign_in_is() {
    protected(async |set| {
        let url = set.add_protected().await;
        let request = v1::CallToolRequest {
            call: Some(patient(set.app(), "echo")),
        };
        let deadline = Duration::from_secs(1);
        let outcome = set.daemon.call_within(request, deadline).await;
        let facts = ErrorFacts::of(&outcome.unwrap_err());
        let reasons = ["SIGN_IN_REQUIRED", "DEADLINE_EXCEEDED"];
        assert!(reasons.contains(&facts.reason.as_str()), "{facts:?}");
        assert_eq!(facts.metadata.get("auth_url"), Some(&url), "{facts:?}");
        // The sign-in is none the worse.
        set.browser.visit(&url).await;
        set.all_ready().await;
    })
    .await;
}

#[tokio::test]
async fn the_time_that_a_user_takes_is_not_the_servers() {
    let quick = watched()
        .set("timeouts.call", "1s")
        .set("timeouts.call_idle", "1s");
    protected_with(quick, async |set| {
        let url = set.add_protected().await;
        let calls = waiting(set, "echo", 2);
        // Longer than any call may take.
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert!(calls.iter().all(|call| !call.is_finished()));
        set.browser.visit(&url).await;
        all_done(calls).await;
    })
    .await;
}

#[tokio::test]
async fn whoever_waits_is_told_that_nobody_will_sign_in() {
    protected(async |set| {
        set.add_protected().await;
        let calls = waiting(set, "echo", 4);
        let id = set.other().auth_status("s").await.unwrap().pending[0]
            .id
            .clone();
        set.calls_wait(4).await;
        set.other().cancel_sign_in(&id).await.unwrap();
        for call in calls {
            let outcome = within("the end of the call", call).await.unwrap();
            ErrorFacts::expect(outcome, Code::FailedPrecondition, "SIGN_IN_REQUIRED");
        }
    })
    .await;
}

#[tokio::test]
async fn who_gives_up_waiting_stops_nobody_else() {
    protected(async |set| {
        let url = set.add_protected().await;
        let (gone, kept) = (waiting(set, "echo", 5), waiting(set, "echo", 5));
        set.calls_wait(10).await;
        for call in gone {
            call.abort();
        }
        set.browser.visit(&url).await;
        all_done(kept).await;
        set.all_ready().await;
    })
    .await;
}

#[tokio::test]
async fn prompts_and_resources_wait_as_well() {
    protected(async |set| {
        set.mcp.set_list("prompts", vec![json!({"name": "p"})]);
        set.mcp.reply("prompts/get", |_| {
            Reply::Json(json!({"messages": [], "resultType": "complete"}))
        });
        set.mcp.reply("resources/read", |_| {
            Reply::Json(json!({"contents": [], "resultType": "complete"}))
        });
        let url = set.add_protected().await;
        let app = set.other().clone();
        let waits = tokio::spawn(async move {
            let prompt = v1::GetPromptRequest {
                namespace: app.namespace(),
                server_id: "s".to_owned(),
                name: "p".to_owned(),
                wait_for_sign_in: true,
                ..Default::default()
            };
            let resource = v1::ReadResourceRequest {
                namespace: app.namespace(),
                server_id: "s".to_owned(),
                uri: "note://1".to_owned(),
                wait_for_sign_in: true,
                ..Default::default()
            };
            let (mut prompts, mut resources) = (app.prompts(), app.resources());
            tokio::join!(
                prompts.get_prompt(prompt),
                resources.read_resource(resource)
            )
        });
        set.browser.visit(&url).await;
        let (prompt, resource) = within("the answers", waits).await.unwrap();
        prompt.unwrap();
        resource.unwrap();
    })
    .await;
}
