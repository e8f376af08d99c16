//! Signing in at authorization servers of other makers, once through their real pages in a real browser.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mcp_sidecar_tests::fake_auth::planted;
use mcp_sidecar_tests::peers::chromium::Chromium;
use mcp_sidecar_tests::peers::{HttpPeer, catalogue};
use mcp_sidecar_tests::prelude::*;

/// A user signs in, every app calls, over a restart, and it ends with a sign-out.
async fn signs_in_calls_and_signs_out(peer: &HttpPeer, pin: &str, call: (&str, &str, &str)) {
    one_and_two_with(watched(), async |mut stage| {
        let spec = ServerSpec {
            protocol_version: pin.to_owned(),
            ..http_spec("peer", &peer.url)
        };
        stage.app().add("peer", spec).await.unwrap();
        let url = stage.other().wait_authenticating("peer").await;
        let page = Browser::new().visit(&url).await;
        assert_eq!(page.status, 200, "{page:?}");
        let (tool, arguments, wanted) = call;
        for restarted in [false, true] {
            for app in &stage.apps {
                app.wait_for("peer", ConnectionState::Ready).await;
                let result = app.call_tool("peer", tool, arguments).await.unwrap();
                assert!(text_of(&result).contains(wanted), "{result:?}");
            }
            let status = stage.other().auth_status("peer").await.unwrap();
            assert!(status.signed_in, "{status:?}");
            if !restarted {
                stage.restart().await;
            }
        }
        let out = stage.other().sign_out("peer").await.unwrap();
        assert!(out.was_signed_in, "{out:?}");
        stage.app().wait_authenticating("peer").await;
    })
    .await;
}

#[tokio::test]
async fn the_example_of_the_typescript_sdk() {
    let peer = catalogue::ts1_oauth().await;
    let call = ("greet", r#"{"name":"Ann"}"#, "Ann");
    signs_in_calls_and_signs_out(&peer, "", call).await;
}

#[tokio::test]
async fn fastmcp_in_both_eras() {
    let peer = catalogue::fastmcp_oauth().await;
    for pin in ["2026-07-28", "2025-11-25", ""] {
        signs_in_calls_and_signs_out(&peer, pin, ("add", r#"{"a":2,"b":3}"#, "5")).await;
    }
}

/// A server whose tokens are looked up at the provider.
fn resource_of_provider(mcp: &FakeMcp, provider: &HttpPeer) {
    let issuer = Arc::new(provider.url.clone());
    let (url, origin) = (mcp.url(), mcp.origin());
    let http = reqwest::Client::new();
    mcp.on("*", move |seen| {
        let (issuer, url, origin, http) = (Arc::clone(&issuer), url.clone(), origin.clone(), http.clone());
        async move {
            let place = "/.well-known/oauth-protected-resource/mcp";
            if seen.path == place {
                let document = json!({
                    "resource": url, "authorization_servers": [*issuer], "scopes_supported": ["tools"],
                });
                let kind = ("content-type", "application/json".to_owned());
                return Reply::Raw(200, vec![kind], document.to_string().into());
            }
            let token = seen.header("authorization").split_once(' ').map(|(_, token)| token);
            let answer = match token {
                None => Value::Null,
                Some(token) => look_up(&http, &issuer, token).await,
            };
            if answer["active"] == true && answer["aud"] == url && answer["scope"] == "tools" {
                return Reply::Default;
            }
            let challenge = format!("Bearer resource_metadata=\"{origin}{place}\"");
            Reply::Raw(401, vec![("www-authenticate", challenge)], "".into())
        }
    });
}

/// Introspection (RFC 7662).
async fn look_up(http: &reqwest::Client, issuer: &str, token: &str) -> Value {
    planted::plant_if_long(token);
    let credentials = STANDARD.encode("the-resource:the-secret-of-the-resource");
    let answer = http
        .post(format!("{issuer}/token/introspection"))
        .header("authorization", format!("Basic {credentials}"))
        .header("content-type", "application/x-www-form-urlencoded")
        .body(format!("token={token}"))
        .send()
        .await;
    answer
        .expect("the provider answers")
        .json()
        .await
        .expect("an object")
}

#[tokio::test]
async fn an_openid_provider_through_its_pages_in_a_real_browser() {
    let chromium = Chromium::get().await;
    let shots = tempfile::tempdir().unwrap();
    for dpop in [false, true] {
        let mcp = FakeMcp::echo(true).await;
        let provider = catalogue::oidc_provider(&mcp.url(), dpop).await;
        resource_of_provider(&mcp, &provider);
        one_and_two_with(watched(), async |mut stage| {
            stage
                .app()
                .add("s", http_spec("S", &mcp.url()))
                .await
                .unwrap();
            let url = stage.other().wait_authenticating("s").await;
            let shot = shots.path().join("end.png");
            let seen = chromium.sign_in(&url, &shot).await;
            assert_eq!(seen["title"], "Signed in", "{seen:#}");
            assert_eq!(seen["errors"], json!([]), "{seen:#}");
            // A page to sign in at, one to agree at, and ours.
            assert_eq!(seen["pages"].as_array().unwrap().len(), 3, "{seen:#}");
            assert!(std::fs::metadata(&shot).unwrap().len() > 1000);
            for app in &stage.apps {
                app.wait_for("s", ConnectionState::Ready).await;
                app.call_tool("s", "echo", "{}").await.unwrap();
            }
            let status = stage.other().auth_status("s").await.unwrap();
            let wanted = if dpop { "DPoP" } else { "Bearer" };
            assert_eq!(status.token_type, wanted);
            assert!(status.renewable, "{status:?}");
            assert_eq!(status.issuer, provider.url);
            // Tokens live for seconds, and each refresh token can be used once.
            for restarted in [false, true] {
                for _ in 0..2 {
                    let last = stage.other().auth_status("s").await.unwrap().renew_time;
                    eventually("a renewal", PATIENCE, async || {
                        for app in &stage.apps {
                            app.call_tool("s", "echo", "{}").await.unwrap();
                        }
                        let status = stage.app().auth_status("s").await.unwrap();
                        (status.renew_time != last).then_some(())
                    })
                    .await;
                }
                if !restarted {
                    stage.restart().await;
                    stage.other().wait_for("s", ConnectionState::Ready).await;
                }
            }
            let out = stage.other().sign_out("s").await.unwrap();
            assert!(out.was_signed_in && out.revoked, "{out:?}");
            stage.app().wait_authenticating("s").await;
            stage.daemon.assert_no_leaks();
        })
        .await;
    }
}

#[tokio::test]
async fn the_pages_at_the_end_in_a_real_browser() {
    let chromium = Chromium::get().await;
    let shots = tempfile::tempdir().unwrap();
    protected(async |set| {
        let url = set.add_protected().await;
        let other = set.other().start_sign_in("s").await.unwrap();
        set.auth
            .decide(Decision::Refuse("access_denied", "<b>no</b> \u{1f980}"));
        let shot = shots.path().join("failed.png");
        let seen = chromium.sign_in(&url, &shot).await;
        assert_eq!(seen["title"], "The sign-in failed", "{seen:#}");
        assert!(
            seen["text"].as_str().unwrap().contains("<b>no</b>"),
            "{seen:#}"
        );
        assert_eq!(seen["errors"], json!([]), "{seen:#}");
        // A page that opened it hears how it went, and the window closes itself.
        let shot = shots.path().join("done.png");
        let seen = chromium.opened(&other.auth_url, &shot).await;
        assert_eq!(seen["title"], "Signed in", "{seen:#}");
        let told = json!({"type": "mcp-sidecar:sign-in", "ok": true, "server": "s"});
        assert_eq!(seen["told"], told, "{seen:#}");
        assert_eq!(seen["closed"], true, "{seen:#}");
        assert_eq!(seen["errors"], json!([]), "{seen:#}");
        // Nothing is fetched from anywhere else.
        for request in seen["requests"].as_array().unwrap() {
            let request = request.as_str().unwrap();
            let known =
                request.starts_with(set.auth.origin()) || request.contains("/oauth/callback");
            assert!(known, "{request}");
        }
        if let Some(keep) = std::env::var_os("KEEP_SCREENSHOTS") {
            for name in ["failed.png", "done.png"] {
                std::fs::copy(
                    shots.path().join(name),
                    std::path::Path::new(&keep).join(name),
                )
                .unwrap();
            }
        }
        set.all_ready().await;
    })
    .await;
}
