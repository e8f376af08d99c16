//! What is on its way to get tokens while somebody changes the server, signs out, or removes it: nothing of it comes back, and
//! no token goes where it does not belong.

use mcp_sidecar_tests::fake_auth::{KnownClient, Page, jose, planted};
use mcp_sidecar_tests::prelude::*;
use tokio::task::JoinHandle;

/// A browser that waits for its page.
fn visit(set: &AuthStage, url: &str) -> JoinHandle<Option<Page>> {
    let (browser, url) = (set.browser.clone(), url.to_owned());
    tokio::spawn(async move { browser.try_get(&url).await })
}

/// Another server, and who stands before it.
async fn elsewhere(set: &AuthStage) -> (FakeMcp, Guard) {
    let other = FakeMcp::echo(true).await;
    let guard = Guard::before(&other, &set.auth);
    (other, guard)
}

/// The server is that one from now on.
async fn moves_to(set: &AuthStage, other: &FakeMcp) {
    let spec = http_spec("S", &other.url());
    set.other().update("s", spec, &["http"]).await.unwrap();
}

async fn nobody_is_signed_in(set: &AuthStage) {
    for app in &set.apps {
        let status = app.auth_status("s").await.unwrap();
        assert!(!status.signed_in, "{status:?}");
    }
}

/// No token is good for anything any more.
async fn all_revoked(set: &AuthStage) {
    eventually("the end of all tokens", PATIENCE, async || {
        set.auth.live_tokens().is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_code_that_is_redeemed_while_the_server_moves_brings_no_token() {
    protected(async |set| {
        let (other, guard) = elsewhere(set).await;
        let url = set.add_protected().await;
        let redirect = set.browser.decide(&url).await;
        let gate = set.auth.hold(Endpoint::Token);
        let page = visit(set, &redirect);
        gate.arrived(1).await;
        moves_to(set, &other).await;
        let fresh = set.auth_url().await;
        assert_ne!(fresh, url);
        gate.open();
        let page = within("the page", page).await.unwrap().unwrap();
        assert_eq!(page.status, 400, "{page:?}");
        nobody_is_signed_in(set).await;
        set.restart().await;
        nobody_is_signed_in(set).await;
        let fresh = set.auth_url().await;
        assert_eq!(set.browser.visit(&fresh).await.status, 200);
        set.all_ready().await;
        set.all_can_call().await;
        // One token only was ever shown there, and it was one for there.
        assert_eq!(guard.tokens().len(), 1);
        guard.assert_clean();
    })
    .await;
}

#[tokio::test]
async fn who_signs_out_while_a_code_is_redeemed_is_signed_out() {
    protected(async |set| {
        let url = set.add_protected().await;
        let redirect = set.browser.decide(&url).await;
        let gate = set.auth.hold(Endpoint::Token);
        let page = visit(set, &redirect);
        gate.arrived(1).await;
        set.other().sign_out("s").await.unwrap();
        gate.open();
        let page = within("the page", page).await.unwrap().unwrap();
        assert_eq!(page.status, 400, "{page:?}");
        nobody_is_signed_in(set).await;
        all_revoked(set).await;
        set.restart().await;
        nobody_is_signed_in(set).await;
    })
    .await;
}

#[tokio::test]
async fn who_signs_out_while_tokens_are_renewed_is_signed_out() {
    protected(async |set| {
        set.sign_in().await;
        set.auth.expire_tokens();
        let gate = set.auth.hold(Endpoint::Token);
        let call = {
            let app = set.app().clone();
            tokio::spawn(async move { app.call_tool("s", "echo", "{}").await })
        };
        gate.arrived(1).await;
        // Tokens that are renewed need not be known to those who revoke what they came from.
        set.auth
            .next(Endpoint::Revoke, Reply::Raw(200, Vec::new(), "".into()));
        let out = set.other().sign_out("s").await.unwrap();
        assert!(out.was_signed_in, "{out:?}");
        gate.open();
        within("the call", call).await.unwrap().unwrap_err();
        nobody_is_signed_in(set).await;
        all_revoked(set).await;
        set.restart().await;
        nobody_is_signed_in(set).await;
        let url = set.auth_url().await;
        assert_eq!(set.browser.visit(&url).await.status, 200);
        set.all_ready().await;
    })
    .await;
}

#[tokio::test]
async fn a_token_of_the_daemons_own_that_comes_when_the_server_has_moved_is_not_used() {
    protected(async |set| {
        let (other, guard) = elsewhere(set).await;
        let known = KnownClient {
            id: "a-service".to_owned(),
            auth: "client_secret_basic",
            secret: Some(planted::plant(jose::random("secret"))),
            key: None,
            redirect_uris: Vec::new(),
            scope: None,
        };
        set.auth.add_client(known.clone());
        let client = v1::OAuthClient {
            client_id: known.id.clone(),
            client_secret: known.secret.clone().unwrap(),
            ..Default::default()
        };
        let method = v1::authorization::Method::ClientCredentials(v1::ClientCredentials {
            client: Some(client),
        });
        let mut authorization = v1::Authorization {
            method: Some(method),
            ..Default::default()
        };
        authorization.issuer = set.auth.issuer();
        let gate = set.auth.hold(Endpoint::Token);
        let spec = set.spec_with(authorization);
        set.app().add("s", spec).await.unwrap();
        gate.arrived(1).await;
        moves_to(set, &other).await;
        gate.open();
        set.all_ready().await;
        set.all_can_call().await;
        assert_eq!(guard.tokens().len(), 1);
        guard.assert_clean();
        set.restart().await;
        set.all_ready().await;
        set.all_can_call().await;
        assert_eq!(guard.tokens().len(), 1);
        guard.assert_clean();
    })
    .await;
}

#[tokio::test]
async fn a_sign_in_that_begins_while_the_server_moves_is_one_at_the_new_place() {
    protected(async |set| {
        let (other, guard) = elsewhere(set).await;
        let gate = set.auth.hold(Endpoint::Register);
        set.app().add("s", set.spec()).await.unwrap();
        gate.arrived(1).await;
        moves_to(set, &other).await;
        gate.open();
        let url = set.auth_url().await;
        let place = url::Url::parse(&url).unwrap();
        let resource = place.query_pairs().find(|(name, _)| name == "resource");
        assert_eq!(resource.unwrap().1, other.url());
        let pending = set.other().auth_status("s").await.unwrap().pending;
        assert_eq!(pending.len(), 1, "{pending:?}");
        assert_eq!(set.browser.visit(&url).await.status, 200);
        set.all_ready().await;
        set.all_can_call().await;
        guard.assert_clean();
    })
    .await;
}

#[tokio::test]
async fn a_sign_in_that_begins_while_the_server_is_removed_leaves_no_listener() {
    protected(async |set| {
        let gate = set.auth.hold(Endpoint::Register);
        set.app().add("s", set.spec()).await.unwrap();
        gate.arrived(1).await;
        set.other().remove("s").await.unwrap();
        gate.open();
        let callback = format!("http://127.0.0.1:{}/oauth/callback", set.callback_port());
        eventually("the end of the listener", PATIENCE, async || {
            set.browser.try_get(&callback).await.is_none().then_some(())
        })
        .await;
        // The next one of the same name is another server.
        let url = set.add_protected().await;
        assert_eq!(set.browser.visit(&url).await.status, 200);
        set.all_ready().await;
        set.all_can_call().await;
    })
    .await;
}

#[tokio::test]
async fn a_code_whose_tokens_cannot_be_stored_keeps_nobody_waiting() {
    let set = AuthStage::set(watched().limitable(), 2, true).await;
    let url = set.add_protected().await;
    let redirect = set.browser.decide(&url).await;
    let gate = set.auth.hold(Endpoint::Token);
    let page = visit(&set, &redirect);
    gate.arrived(1).await;
    set.daemon.limit_files(Some(1));
    gate.open();
    let page = within("the page", page).await.unwrap().unwrap();
    assert_eq!(page.status, 400, "{page:?}");
    set.daemon.limit_files(None);
    // There is another place to sign in at once.
    let begun = set.other().start_sign_in("s").await.unwrap();
    assert_eq!(set.browser.visit(&begun.auth_url).await.status, 200);
    set.all_ready().await;
    set.all_can_call().await;
    let status = set.other().auth_status("s").await.unwrap();
    assert!(status.pending.is_empty(), "{status:?}");
    set.finish().await;
}
