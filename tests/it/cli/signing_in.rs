//! Sign-ins from the command line.

use mcp_sidecar_tests::cli::{Invocation, finish};
use mcp_sidecar_tests::prelude::*;
use tokio::io::AsyncBufReadExt as _;

async fn stage() -> AuthStage {
    let set = AuthStage::set(watched(), 1, true).await;
    let url = set.mcp.url();
    let added = set
        .daemon
        .cli(&["servers", "add", &url, "--id", "s", "--name", "S"])
        .await;
    assert!(added.ok().contains("mcp-sidecar sign-in s"));
    set
}

/// The URL that the program prints.
async fn printed(child: &mut tokio::process::Child) -> String {
    let mut stderr = tokio::io::BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    within("the URL", stderr.read_line(&mut line))
        .await
        .unwrap();
    // Whoever waits for the end gets the rest.
    tokio::spawn(async move { tokio::io::copy(&mut stderr, &mut tokio::io::sink()).await });
    line.trim().strip_prefix("Sign in at ").unwrap().to_owned()
}

#[tokio::test]
async fn a_user_signs_in_with_a_browser_and_out_again() {
    let set = stage().await;
    let status = set.daemon.cli(&["auth", "s"]).await.ok();
    assert!(
        status.contains("no") && status.contains("Pending:"),
        "{status}"
    );
    let mut child = Invocation::new(&["sign-in", "s"])
        .start(set.daemon.socket())
        .await;
    let url = printed(&mut child).await;
    assert_eq!(set.browser.visit(&url).await.status, 200);
    assert_eq!(finish(child).await.ok(), "s: signed in\n");
    set.all_ready().await;
    let status = set.daemon.cli(&["auth", "s", "-o", "json"]).await.json();
    assert_eq!(
        (&status["signedIn"], &status["tokenType"]),
        (&json!(true), &json!("Bearer"))
    );
    let out = set.daemon.cli(&["sign-out", "s"]).await.ok();
    assert!(out.starts_with("s: signed out"), "{out}");
    assert!(
        set.daemon
            .cli(&["sign-out", "s"])
            .await
            .ok()
            .contains("nobody was signed in")
    );
    set.finish().await;
}

#[tokio::test]
async fn without_a_browser_the_redirected_url_is_pasted() {
    let set = stage().await;
    let headless = ["sign-in", "s", "--headless"];
    let mut terminal = set.daemon.cli_terminal(&headless).await;
    terminal.expect("paste the URL").await;
    let written = terminal.written();
    let url = written.split("Sign in at ").nth(1).unwrap();
    let url = url.split_whitespace().next().unwrap().to_owned();
    terminal.type_line("https://example.com/nothing").await;
    terminal.expect("error:").await;
    terminal.expect("paste the URL").await;
    let redirect = set.browser.decide(&url).await;
    terminal.type_line(&redirect).await;
    let (code, written) = terminal.end().await;
    assert!(code == 0 && written.contains("signed in"), "{written}");
    set.all_ready().await;
    set.finish().await;
}

#[tokio::test]
async fn a_sign_in_that_is_cancelled_or_not_possible_is_a_failure() {
    let set = stage().await;
    let mut child = Invocation::new(&["sign-in", "s"])
        .start(set.daemon.socket())
        .await;
    printed(&mut child).await;
    for pending in set.app().auth_status("s").await.unwrap().pending {
        set.app().cancel_sign_in(&pending.id).await.unwrap();
    }
    finish(child).await.ends_with(1);
    let begun = set
        .daemon
        .cli(&["sign-in", "s", "--no-wait", "-o", "json"])
        .await
        .json();
    assert_eq!(begun["state"], "SIGN_IN_STATE_PENDING");
    set.daemon
        .cli(&["sign-in", "nobody"])
        .await
        .fails(1, "SERVER_NOT_FOUND");
    set.finish().await;
}
