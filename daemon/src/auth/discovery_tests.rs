//! Tests of `discovery`.

#[path = "discovery_pin_tests.rs"]
mod pins;

use proptest::prelude::*;
use serde_json::{Value, json};
use url::Url;

use super::super::site::{LIMIT, Site, json as answer, message, web};
use super::{Discovered, canonical, discover, issuers, supports_pkce, well_known};
use crate::auth::challenge::Challenge;
use crate::error::{Error, Reason};
use crate::model::auth::{AuthServer, AuthSpec, Scopes};

const PRM: &str = "/.well-known/oauth-protected-resource";
const PRM_MCP: &str = "/.well-known/oauth-protected-resource/mcp";
const AS: &str = "/.well-known/oauth-authorization-server";
const OIDC: &str = "/.well-known/openid-configuration";

fn url(text: &str) -> Url {
    Url::parse(text).unwrap()
}

/// The metadata of an authorization server.
fn server(issuer: &str) -> Value {
    json!({
        "issuer": issuer,
        "authorization_endpoint": format!("{issuer}/authorize"),
        "token_endpoint": format!("{issuer}/token"),
        "code_challenge_methods_supported": ["plain", "S256"],
    })
}

fn naming(metadata: String) -> Challenge {
    Challenge {
        resource_metadata: Some(metadata),
        ..Challenge::default()
    }
}

fn pinned(issuer: &str) -> AuthSpec {
    AuthSpec {
        issuer: Some(issuer.to_owned()),
        ..AuthSpec::default()
    }
}

async fn find(site: &Site, challenge: &Challenge, spec: &AuthSpec) -> Result<Discovered, Error> {
    discover(&web(), &url(&format!("{}/mcp", site.base)), challenge, spec).await
}

async fn plainly(site: &Site) -> Result<Discovered, Error> {
    find(site, &Challenge::default(), &AuthSpec::default()).await
}

#[test]
fn places_are_tried_in_the_order_of_the_specification() {
    let list = |text: &str, name: &str, and_root| {
        let places = well_known(&url(text), name, and_root);
        places.into_iter().map(String::from).collect::<Vec<_>>()
    };
    let prm = "oauth-protected-resource";
    assert_eq!(
        list("https://h/public/mcp", prm, true),
        [
            "https://h/.well-known/oauth-protected-resource/public/mcp",
            "https://h/.well-known/oauth-protected-resource"
        ]
    );
    assert_eq!(
        list("https://h:8443/", prm, true),
        ["https://h:8443/.well-known/oauth-protected-resource"]
    );
    assert_eq!(
        list("https://h/mcp/", prm, true)[0],
        "https://h/.well-known/oauth-protected-resource/mcp/"
    );
    assert_eq!(
        list("https://h/r?k=v", prm, true)[0],
        "https://h/.well-known/oauth-protected-resource/r?k=v"
    );
    let server = "oauth-authorization-server";
    assert_eq!(
        list("https://as", server, false),
        ["https://as/.well-known/oauth-authorization-server"]
    );
    for tenant in ["https://as/tenant1", "https://as/tenant1/"] {
        assert_eq!(
            list(tenant, server, false),
            ["https://as/.well-known/oauth-authorization-server/tenant1"]
        );
    }
}

#[test]
fn a_server_without_metadata_is_named_by_its_address() {
    for (server, name) in [
        ("https://H.example:443/", "https://h.example"),
        ("https://h.example/mcp", "https://h.example/mcp"),
        ("https://h.example/mcp/", "https://h.example/mcp/"),
        (
            "https://h.example/mcp?key=secret#f",
            "https://h.example/mcp",
        ),
        ("https://h.example/?key=secret", "https://h.example"),
        ("http://[::1]:8080/", "http://[::1]:8080"),
    ] {
        assert_eq!(canonical(&url(server)), name);
    }
}

#[tokio::test]
async fn metadata_that_the_challenge_names_are_the_only_ones_asked_for() {
    let site = Site::with(|base| {
        vec![
            (
                "/custom/metadata.json",
                json!({
                    "resource": base,
                    "authorization_servers": [format!("{base}/tenant1"), "https://other.example"],
                    "scopes_supported": ["a", "b"],
                    "dpop_bound_access_tokens_required": true,
                }),
            ),
            (
                "/tenant1/.well-known/openid-configuration",
                server(&format!("{base}/tenant1")),
            ),
        ]
    })
    .await;
    let challenge = naming(format!("{}/custom/metadata.json", site.base));
    let found = find(&site, &challenge, &AuthSpec::default()).await.unwrap();
    assert_eq!(found.resource, site.base, "byte for byte, without a slash");
    assert_eq!(found.server.issuer, format!("{}/tenant1", site.base));
    assert_eq!(found.scopes, Some(Scopes::parse("a b")));
    assert!(found.dpop_required && supports_pkce(&found.server));
    assert_eq!(
        site.targets(),
        [
            "/custom/metadata.json",
            "/.well-known/oauth-authorization-server/tenant1",
            "/.well-known/openid-configuration/tenant1",
            "/tenant1/.well-known/openid-configuration"
        ]
    );
    let scoped = Challenge {
        scopes: Some(Scopes::parse("c")),
        ..challenge
    };
    let found = find(&site, &scoped, &AuthSpec::default()).await.unwrap();
    assert_eq!(found.scopes, Some(Scopes::parse("c")));
}

#[tokio::test]
async fn metadata_at_the_path_are_preferred_to_those_of_the_root() {
    let site = Site::with(|base| {
        vec![
            (PRM_MCP, json!({"resource": format!("{base}/mcp"), "authorization_servers": [base]})),
            (PRM, json!({"resource": "https://wrong.example", "authorization_servers": ["https://wrong.example"]})),
            (OIDC, server(base)),
        ]
    })
    .await;
    let found = plainly(&site).await.unwrap();
    assert_eq!(found.resource, format!("{}/mcp", site.base));
    assert_eq!(found.scopes, None);
    assert_eq!(site.targets(), [PRM_MCP, AS, OIDC]);
    assert!(
        site.seen().iter().all(|seen| {
            seen.method == "GET" && seen.header("accept") == Some("application/json")
        })
    );
}

#[tokio::test]
async fn pages_redirects_and_refusals_are_no_metadata() {
    let site = Site::start(|base, request| match request.target.as_str() {
        PRM_MCP => message(
            200,
            "content-type: text/html\r\n",
            "<html>everything is here</html>",
        ),
        PRM => answer(
            200,
            &json!({"resource": base, "authorization_servers": [format!("{base}/t")]}),
        ),
        "/.well-known/oauth-authorization-server/t" => message(302, "location: /login\r\n", ""),
        "/.well-known/openid-configuration/t" => message(200, "", &"x".repeat(LIMIT + 1)),
        "/t/.well-known/openid-configuration" => answer(200, &server(&format!("{base}/t"))),
        _ => message(401, "", ""),
    })
    .await;
    let found = plainly(&site).await.unwrap();
    assert_eq!(found.server.issuer, format!("{}/t", site.base));
}

#[tokio::test]
async fn trouble_is_not_absence() {
    for trouble in [
        message(500, "", ""),
        message(429, "retry-after: 7\r\n", ""),
        message(503, "", "{}"),
        String::new(),
    ] {
        for at in [PRM_MCP, PRM, AS] {
            let text = trouble.clone();
            let site = Site::start(move |_, request| {
                if request.target == at {
                    return text.clone();
                }
                message(404, "", "")
            })
            .await;
            let error = plainly(&site).await.unwrap_err();
            assert_eq!(
                error.reason(),
                Reason::AuthorizationUnavailable,
                "{at}: {error}"
            );
            let seconds = error.retry_delay().map(|delay| delay.as_secs());
            assert_eq!(seconds, trouble.contains("429").then_some(7));
            assert_eq!(
                site.targets().last().unwrap(),
                at,
                "nothing is asked after it"
            );
        }
    }
}

#[tokio::test]
async fn metadata_of_another_resource_are_refused() {
    for resource in [
        "https://evil.example.com/mcp",
        "http://localhost:1/mcp",
        "BASE/mcp/other",
        "BASE/mc",
        "mcp",
    ] {
        let site = Site::with(move |base| {
            let resource = resource.replace("BASE", base);
            vec![
                (
                    PRM_MCP,
                    json!({"resource": resource, "authorization_servers": [base]}),
                ),
                (AS, server(base)),
            ]
        })
        .await;
        let error = plainly(&site).await.unwrap_err();
        assert_eq!(error.reason(), Reason::SignInFailed, "{error}");
        for part in [
            "resource",
            &resource.replace("BASE", &site.base),
            &format!("{}/mcp", site.base),
        ] {
            assert!(error.message().contains(part), "{error}");
        }
        assert_eq!(
            site.targets(),
            [PRM_MCP],
            "no authorization server is asked"
        );
    }
}

#[tokio::test]
async fn metadata_may_be_at_another_origin_if_they_are_the_servers() {
    let site = Site::with(|base| vec![(AS, server(base))]).await;
    let base = site.base.clone();
    let other = Site::with(move |_| {
        vec![
            (
                "/good",
                json!({"resource": format!("{base}/mcp"), "authorization_servers": [base]}),
            ),
            (
                "/bad",
                json!({"resource": "https://evil.example", "authorization_servers": [base]}),
            ),
        ]
    })
    .await;
    let found = find(
        &site,
        &naming(format!("{}/good", other.base)),
        &AuthSpec::default(),
    )
    .await;
    assert_eq!(found.unwrap().server.issuer, site.base);
    let error = find(
        &site,
        &naming(format!("{}/bad", other.base)),
        &AuthSpec::default(),
    )
    .await;
    assert_eq!(error.unwrap_err().reason(), Reason::SignInFailed);
    for (blocked, reason) in [
        ("https://169.254.169.254/m", Reason::DestinationBlocked),
        ("http://h.example/m", Reason::DestinationBlocked),
        ("/relative", Reason::CredentialsRefused),
        (&format!("{}/gone", other.base), Reason::CredentialsRefused),
    ] {
        let error = find(&site, &naming(blocked.to_owned()), &AuthSpec::default())
            .await
            .unwrap_err();
        assert_eq!(error.reason(), reason, "{blocked}: {error}");
    }
    assert_eq!(site.targets(), [AS]);
}

#[tokio::test]
async fn the_issuer_is_compared_character_by_character() {
    for (listed, says) in [
        ("BASE", "BASE/"),
        ("BASE/", "BASE"),
        ("BASE", "https://honest.example"),
        ("BASE/t", "BASE/T"),
    ] {
        let site = Site::start(move |base, request| match request.target.as_str() {
            PRM => answer(200, &json!({"resource": base, "authorization_servers": [listed.replace("BASE", base)]})),
            PRM_MCP => message(404, "", ""),
            _ => answer(200, &json!({"issuer": says.replace("BASE", base), "token_endpoint": format!("{base}/token")})),
        })
        .await;
        let (listed, says) = (
            listed.replace("BASE", &site.base),
            says.replace("BASE", &site.base),
        );
        let error = plainly(&site).await.unwrap_err();
        assert_eq!(error.reason(), Reason::CredentialsRefused);
        for part in [
            &format!("`{listed}`"),
            &format!("`{says}`"),
            "authorization.issuer",
        ] {
            assert!(error.message().contains(part), "{error}");
        }
        // Pinned, a difference is meant.
        let found = find(&site, &Challenge::default(), &pinned(&says))
            .await
            .unwrap();
        assert_eq!(found.server.issuer, says);
        let error = find(
            &site,
            &Challenge::default(),
            &pinned("https://third.example"),
        )
        .await
        .unwrap_err();
        assert!(
            error.message().contains("https://third.example") && error.message().contains(&says),
            "{error}"
        );
    }
}

#[tokio::test]
async fn a_listed_server_without_metadata_is_an_error() {
    let site = Site::with(|base| {
        vec![(
            PRM_MCP,
            json!({"resource": format!("{base}/mcp"), "authorization_servers": [base]}),
        )]
    })
    .await;
    let error = plainly(&site).await.unwrap_err();
    assert_eq!(error.reason(), Reason::CredentialsRefused);
    assert_eq!(site.targets(), [PRM_MCP, AS, OIDC]);
}

#[tokio::test]
async fn without_any_metadata_the_rules_of_2025_03_26_hold() {
    let site = Site::with(|_| Vec::new()).await;
    let found = plainly(&site).await.unwrap();
    let base = &site.base;
    assert_eq!(found.resource, format!("{base}/mcp"));
    assert_eq!(
        found.server,
        AuthServer {
            issuer: base.clone(),
            authorization_endpoint: Some(format!("{base}/authorize")),
            token_endpoint: Some(format!("{base}/token")),
            registration_endpoint: Some(format!("{base}/register")),
            code_challenge_methods_supported: Some(vec!["S256".to_owned()]),
            ..AuthServer::default()
        }
    );
    assert_eq!(site.targets(), [PRM_MCP, PRM, AS]);
    let none = issuers(&web(), &url(&format!("{base}/mcp")), &Challenge::default()).await;
    assert_eq!(none.unwrap(), None);
}

#[tokio::test]
async fn metadata_at_the_root_of_an_old_server_are_used() {
    for (issuer, good) in [
        ("BASE", true),
        ("BASE/", true),
        ("https://other.example", false),
    ] {
        let site = Site::with(move |base| {
            vec![(
                AS,
                json!({
                    "issuer": issuer.replace("BASE", base),
                    "authorization_endpoint": format!("{base}/oauth/authorize"),
                    "token_endpoint": format!("{base}/oauth/token"),
                }),
            )]
        })
        .await;
        let found = plainly(&site).await;
        assert_eq!(found.is_ok(), good, "{issuer}");
        if let Ok(found) = found {
            assert_eq!(
                found.server.token_endpoint,
                Some(format!("{}/oauth/token", site.base))
            );
            assert_eq!(found.server.registration_endpoint, None);
        }
        let issuer = issuer.replace("BASE", &site.base);
        // Pinned, any of them is meant.
        let found = find(&site, &Challenge::default(), &pinned(&issuer)).await;
        assert_eq!(found.unwrap().server.issuer, issuer);
    }
}

#[tokio::test]
async fn endpoints_are_encrypted_absolute_and_allowed() {
    for (name, bad, reason) in [
        (
            "authorization_endpoint",
            "javascript:alert(1)",
            Reason::CredentialsRefused,
        ),
        (
            "authorization_endpoint",
            "http://as.example/authorize",
            Reason::DestinationBlocked,
        ),
        (
            "authorization_endpoint",
            "/authorize",
            Reason::CredentialsRefused,
        ),
        (
            "token_endpoint",
            "https://169.254.169.254/token",
            Reason::DestinationBlocked,
        ),
        (
            "token_endpoint",
            "ftp://as.example/token",
            Reason::DestinationBlocked,
        ),
        (
            "registration_endpoint",
            "https://user:pw@as.example/register",
            Reason::DestinationBlocked,
        ),
        (
            "revocation_endpoint",
            "not a url",
            Reason::CredentialsRefused,
        ),
    ] {
        let site = Site::with(move |base| {
            let mut server = server(base);
            server[name] = json!(bad);
            vec![
                (
                    PRM,
                    json!({"resource": base, "authorization_servers": [base]}),
                ),
                (AS, server),
            ]
        })
        .await;
        let error = plainly(&site).await.unwrap_err();
        assert_eq!(error.reason(), reason, "{name} {bad}: {error}");
    }
    let site = Site::with(|base| {
        vec![
            (
                PRM,
                json!({"resource": base, "authorization_servers": [base]}),
            ),
            (AS, json!({"issuer": base})),
        ]
    })
    .await;
    assert!(
        plainly(&site)
            .await
            .unwrap_err()
            .message()
            .contains("token endpoint")
    );
}

#[tokio::test]
async fn an_issuer_has_neither_query_nor_user() {
    for issuer in [
        "BASE/?a=b",
        "BASE/#x",
        "http://as.example",
        "https://me@as.example",
        "urn:as",
    ] {
        let site = Site::with(move |base| {
            vec![(
                PRM,
                json!({"resource": base, "authorization_servers": [issuer.replace("BASE", base)]}),
            )]
        })
        .await;
        assert!(plainly(&site).await.is_err(), "{issuer}");
        assert_eq!(site.targets(), [PRM_MCP, PRM], "{issuer} is not asked");
    }
}

proptest! {
    #[test]
    fn places_stay_at_their_origin(path in "(/[a-zA-Z0-9.%_-]{0,6}){0,4}", and_root in any::<bool>()) {
        let identifier = url(&format!("https://h.example:8443{path}"));
        for place in well_known(&identifier, "oauth-authorization-server", and_root) {
            prop_assert_eq!(place.origin(), identifier.origin());
            prop_assert!(place.path().starts_with("/.well-known/oauth-authorization-server"));
        }
    }
}
