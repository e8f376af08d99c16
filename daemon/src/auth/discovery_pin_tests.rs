//! Tests of `discovery`: issuers that the operator has pinned.

use super::*;

#[tokio::test]
async fn a_pin_picks_among_several() {
    let site = Site::with(|base| {
        vec![
            (
                PRM_MCP,
                json!({
                    "resource": format!("{base}/mcp"),
                    "authorization_servers": [format!("{base}/one"), format!("{base}/two")],
                }),
            ),
            (
                "/.well-known/oauth-authorization-server/one",
                server(&format!("{base}/one")),
            ),
            (
                "/.well-known/oauth-authorization-server/two",
                server(&format!("{base}/two")),
            ),
        ]
    })
    .await;
    let two = format!("{}/two", site.base);
    let found = find(&site, &Challenge::default(), &pinned(&two))
        .await
        .unwrap();
    assert_eq!(found.server.issuer, two);
    assert_eq!(
        site.targets(),
        [PRM_MCP, "/.well-known/oauth-authorization-server/two"]
    );
    assert_eq!(
        plainly(&site).await.unwrap().server.issuer,
        format!("{}/one", site.base)
    );
    let listed = issuers(
        &web(),
        &url(&format!("{}/mcp", site.base)),
        &Challenge::default(),
    )
    .await;
    assert_eq!(
        listed.unwrap().unwrap(),
        [format!("{}/one", site.base), two]
    );
}

#[tokio::test]
async fn a_server_cannot_speak_for_the_pinned_issuer() {
    let honest = Site::with(|base| vec![(AS, server(base))]).await;
    let issuer = honest.base.clone();
    let site = Site::start(move |base, request| match request.target.as_str() {
        PRM_MCP => answer(
            200,
            &json!({"resource": format!("{base}/mcp"), "authorization_servers": [base]}),
        ),
        // It claims to be the other one, with endpoints of its own.
        _ => answer(
            200,
            &json!({"issuer": issuer, "token_endpoint": format!("{base}/steal")}),
        ),
    })
    .await;
    let found = find(&site, &Challenge::default(), &pinned(&honest.base)).await;
    let token_endpoint = found.unwrap().server.token_endpoint.unwrap();
    assert_eq!(token_endpoint, format!("{}/token", honest.base));
    assert_eq!(site.targets(), [PRM_MCP]);
    // While it has trouble, nobody stands in for it.
    let down = Site::start(|_, _| message(503, "", "")).await;
    let error = find(&site, &Challenge::default(), &pinned(&down.base))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::AuthorizationUnavailable);
}

#[tokio::test]
async fn a_pin_stands_in_for_metadata_that_are_missing() {
    let elsewhere = Site::with(|base| {
        vec![(
            "/.well-known/openid-configuration/t",
            server(&format!("{base}/t")),
        )]
    })
    .await;
    let site = Site::with(|_| Vec::new()).await;
    let issuer = format!("{}/t", elsewhere.base);
    for challenge in [Challenge::default(), naming(format!("{}/gone", site.base))] {
        let found = find(&site, &challenge, &pinned(&issuer)).await.unwrap();
        assert_eq!(
            (found.server.issuer, found.resource),
            (issuer.clone(), format!("{}/mcp", site.base))
        );
    }
    let error = find(&site, &Challenge::default(), &pinned(&elsewhere.base))
        .await
        .unwrap_err();
    assert_eq!(error.reason(), Reason::CredentialsRefused);
    assert!(!site.targets().contains(&"/authorize".to_owned()));
}
