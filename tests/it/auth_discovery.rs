//! How the authorization server of a server is found, and when it is not believed (cases B05 and B07, behaviours 65, 67 and
//! 68).

use mcp_sidecar_tests::fake_auth::{Metadata, WellKnown};
use mcp_sidecar_tests::prelude::*;

/// Signs in, calls, and renews: whatever is sent each time, the authorization server compares.
async fn signs_in_and_renews(set: &AuthStage, spec: ServerSpec) {
    set.sign_in_as(spec).await;
    set.all_can_call().await;
    set.auth.expire_tokens();
    set.all_can_call().await;
    assert_eq!(set.auth.grants("refresh_token"), 1);
}

/// The server is registered, and no app is ever sent to a place to sign in: a message with these words says why.
async fn nobody_can_sign_in(set: &AuthStage, spec: ServerSpec, words: &[&str]) {
    set.app().add("s", spec).await.expect("AddServer");
    for app in &set.apps {
        let mut updates = app.updates("").await;
        let server = updates.server_where("a verdict", |server| {
            let state = server.state();
            state == ConnectionState::Failed || state == ConnectionState::Authenticating
        });
        let server = server.await;
        assert_eq!(server.facts().auth_url, "");
        let (_, message) = server.failure();
        for word in words {
            assert!(message.contains(word), "`{word}` in `{message}`");
        }
        let outcome = app.call_tool("s", "echo", "{}").await;
        let facts = ErrorFacts::of(&outcome.unwrap_err());
        assert_eq!(facts.metadata.get("auth_url"), None, "{facts:?}");
        for word in words {
            assert!(facts.message.contains(word), "`{word}` in {facts:?}");
        }
        let outcome = app.start_sign_in("s").await;
        let facts = ErrorFacts::of(&outcome.unwrap_err());
        for word in words {
            assert!(facts.message.contains(word), "`{word}` in {facts:?}");
        }
    }
    assert_eq!(set.auth.count(Endpoint::Authorize), 0);
    assert_eq!(set.auth.count(Endpoint::Token), 0);
    assert_eq!(set.auth.count(Endpoint::Register), 0);
}

#[tokio::test]
async fn b05_a_bare_origin_is_a_resource_as_it_is_written() {
    protected(async |set| {
        let origin = set.mcp.origin();
        set.guard.rename(&origin);
        let spec = set.spec();
        signs_in_and_renews(set, spec).await;
        for endpoint in [Endpoint::Authorize, Endpoint::Token] {
            for asked in set.auth.asked(endpoint) {
                assert_eq!(asked.param("resource"), origin, "{asked:?}");
            }
        }
    })
    .await;
}

#[tokio::test]
async fn b05_a_slash_more_or_less_is_no_other_resource() {
    for (configured, named) in [
        ("/mcp/", "/mcp"),
        ("/mcp", "/mcp/"),
        ("/mcp", "/"),
        ("/mcp", ""),
    ] {
        protected(async |set| {
            let origin = set.mcp.origin();
            let resource = format!("{origin}{named}");
            set.guard.rename(&resource);
            let spec = http_spec("S", &format!("{origin}{configured}"));
            signs_in_and_renews(set, spec).await;
            let request = set.auth.last(Endpoint::Authorize);
            assert_eq!(request.param("resource"), resource);
        })
        .await;
    }
}

#[tokio::test]
async fn b05_of_two_documents_on_one_host_the_one_of_the_path_is_right() {
    for named in [true, false] {
        protected(async |set| {
            let evil = json!({
                "resource": set.mcp.origin(), "authorization_servers": ["http://127.0.0.1:9"],
            });
            set.guard.rules(|rules| {
                rules.named = named;
                let root = "/.well-known/oauth-protected-resource".to_owned();
                rules.documents.insert(root.clone(), evil.clone());
            });
            let spec = set.spec();
            signs_in_and_renews(set, spec).await;
            let seen = set.mcp.seen();
            let root = "/.well-known/oauth-protected-resource";
            assert!(
                !seen.iter().any(|seen| seen.path == root),
                "the root is asked for nothing"
            );
        })
        .await;
    }
}

#[tokio::test]
async fn b05_a_document_at_the_root_is_the_last_resort() {
    for metadata in [Metadata::Root, Metadata::At("/elsewhere/metadata")] {
        protected(async |set| {
            set.guard.rules(|rules| {
                rules.metadata = metadata;
                // One at another place cannot be found otherwise.
                rules.named = metadata != Metadata::Root;
            });
            let spec = set.spec();
            signs_in_and_renews(set, spec).await;
            let looked = set.mcp.seen().into_iter();
            let looked: Vec<_> = looked
                .map(|seen| seen.path)
                .filter(|path| path != "/mcp")
                .take(2)
                .collect();
            let wanted = match metadata {
                Metadata::Root => vec![
                    "/.well-known/oauth-protected-resource/mcp",
                    "/.well-known/oauth-protected-resource",
                ],
                _ => vec!["/elsewhere/metadata"],
            };
            assert_eq!(looked[..wanted.len()], wanted);
        })
        .await;
    }
}

#[tokio::test]
async fn b05_metadata_of_another_resource_are_not_believed() {
    let others = [
        "https://evil.example/mcp".to_owned(),
        "http://127.0.0.1:9/mcp".to_owned(),
        "{origin}/m".to_owned(),
        "{origin}/mcp/deeper".to_owned(),
        "{origin}.evil.example/mcp".to_owned(),
        "{origin}/mcp?tenant=other".to_owned(),
        "{origin}/mcp#fragment".to_owned(),
    ];
    for other in others {
        protected(async |set| {
            let other = other.replace("{origin}", &set.mcp.origin());
            set.guard
                .rules(|rules| other.clone_into(&mut rules.resource));
            nobody_can_sign_in(set, set.spec(), &[&other]).await;
            assert_eq!(set.auth.count(Endpoint::Metadata), 0);
        })
        .await;
    }
}

#[tokio::test]
async fn b07_issuers_that_differ_by_a_slash_differ() {
    protected(async |set| {
        let (named, right) = (format!("{}/", set.auth.issuer()), set.auth.issuer());
        set.guard.rules(|rules| {
            rules
                .document
                .insert("authorization_servers".to_owned(), json!([named]));
        });
        nobody_can_sign_in(
            set,
            set.spec(),
            &[&format!("`{named}`"), &format!("`{right}`")],
        )
        .await;
        // An operator who knows better says so.
        let spec = set.spec_with(v1::Authorization {
            issuer: right,
            ..Default::default()
        });
        set.other()
            .update("s", spec, &["authorization"])
            .await
            .unwrap();
        set.browser.visit(&set.auth_url().await).await;
        set.all_ready().await;
        set.all_can_call().await;
    })
    .await;
}

#[tokio::test]
async fn b07_a_slash_at_the_end_of_an_issuer_is_kept() {
    for count in 1..=2 {
        let auth = FakeAuth::at("/").await;
        let set = AuthStage::set_with(watched(), count, true, auth).await;
        let spec = set.spec();
        signs_in_and_renews(&set, spec).await;
        let status = set.other().auth_status("s").await.unwrap();
        assert_eq!(status.issuer, set.auth.issuer());
        assert!(status.issuer.ends_with('/'));
        set.finish().await;
    }
}

#[tokio::test]
async fn b07_an_issuer_on_another_host_needs_the_word_of_the_operator() {
    protected(async |set| {
        let elsewhere = "https://login.example/tenant";
        set.auth.metadata("issuer", json!(elsewhere));
        let named = format!("`{}`", set.auth.issuer());
        nobody_can_sign_in(set, set.spec(), &[&format!("`{elsewhere}`"), &named]).await;
        let pinned = |issuer: &str| {
            set.spec_with(v1::Authorization {
                issuer: issuer.to_owned(),
                ..Default::default()
            })
        };
        // The wrong word helps nobody.
        let wrong = pinned("https://login.example/tenant/");
        set.other()
            .update("s", wrong, &["authorization"])
            .await
            .unwrap();
        let outcome = set.other().start_sign_in("s").await;
        ErrorFacts::expect(outcome, Code::FailedPrecondition, "CREDENTIALS_REFUSED");
        set.other()
            .update("s", pinned(elsewhere), &["authorization"])
            .await
            .unwrap();
        set.browser.visit(&set.auth_url().await).await;
        set.all_ready().await;
        assert_eq!(
            set.other().auth_status("s").await.unwrap().issuer,
            elsewhere
        );
        set.all_can_call().await;
    })
    .await;
}

/// A redirect that does not say who it comes from, or says something else, is not believed: no code is redeemed, and the
/// genuine one is still welcome.
async fn is_not_believed(set: &AuthStage, decision: Decision) {
    let url = set.add_protected().await;
    set.auth.decide(decision.clone());
    let page = set.browser.visit(&url).await;
    assert_eq!(page.status, 400, "{page:?}");
    assert!(page.text.contains("iss"), "{}", page.text);
    set.auth.decide(decision);
    let redirect = set.browser.decide(&url).await;
    let outcome = set.other().complete_sign_in(&redirect).await;
    let facts = ErrorFacts::expect(outcome, Code::InvalidArgument, "INVALID_FIELD");
    assert_eq!(facts.field, "redirect_url");
    assert_eq!(set.auth.count(Endpoint::Token), 0);
    assert_eq!(set.auth_url().await, url, "the sign-in waits on");
    assert_eq!(set.browser.visit(&url).await.status, 200);
    set.all_ready().await;
    set.all_can_call().await;
}

#[tokio::test]
async fn b07_a_redirect_of_another_issuer_is_not_believed() {
    for said in [true, false] {
        for spelling in ["https://evil.example", "{issuer}/", ""] {
            protected(async |set| {
                set.auth.shape(|shape| shape.says_issuer = said);
                let issuer = spelling.replace("{issuer}", &set.auth.issuer());
                // Nothing is what is usual where nothing is announced.
                let decision = if issuer.is_empty() {
                    Decision::Issuer(" ".to_owned())
                } else {
                    Decision::Issuer(issuer)
                };
                is_not_believed(set, decision).await;
            })
            .await;
        }
    }
}

#[tokio::test]
async fn b07_an_issuer_that_is_announced_must_be_said() {
    protected(async |set| is_not_believed(set, Decision::NoIssuer).await).await;
    // Where it is not announced, it may be missing.
    protected(async |set| {
        set.auth.shape(|shape| shape.says_issuer = false);
        set.sign_in().await;
    })
    .await;
}

#[tokio::test]
async fn metadata_of_authorization_servers_are_found_in_every_form() {
    let forms = [
        ("", WellKnown::OAuth),
        ("", WellKnown::OpenIdBehind),
        ("/tenant", WellKnown::OAuth),
        ("/tenant", WellKnown::OpenIdBefore),
        ("/tenant", WellKnown::OpenIdBehind),
    ];
    for (path, form) in forms {
        for count in 1..=2 {
            let auth = FakeAuth::at(path).await;
            auth.shape(|shape| shape.well_known = vec![form]);
            let set = AuthStage::set_with(watched(), count, true, auth).await;
            set.sign_in().await;
            let looked = set.auth.asked(Endpoint::Metadata);
            let looked: Vec<_> = looked.iter().map(|asked| asked.path.as_str()).collect();
            let order = [
                format!("/.well-known/oauth-authorization-server{path}"),
                format!("/.well-known/openid-configuration{path}"),
                format!("{path}/.well-known/openid-configuration"),
            ];
            assert_eq!(
                looked[..],
                order[..looked.len()],
                "in the order of the specification"
            );
            set.finish().await;
        }
    }
}

#[tokio::test]
async fn behaviour_65_a_code_is_redeemed_where_the_metadata_say() {
    for count in 1..=2 {
        // Neither the metadata of the resource nor the authorization server are where one would guess.
        let auth = FakeAuth::at("/tenant/of/many").await;
        let set = AuthStage::set_with(watched(), count, true, auth).await;
        set.guard
            .rules(|rules| rules.metadata = Metadata::At("/elsewhere"));
        set.sign_in().await;
        set.all_can_call().await;
        assert_eq!(set.auth.last(Endpoint::Token).path, "/tenant/of/many/token");
        assert_eq!(set.auth.count(Endpoint::Elsewhere), 0);
        set.finish().await;
    }
}

#[tokio::test]
async fn behaviour_67_a_server_that_moves_to_another_authorization_server_is_followed() {
    protected(async |set| {
        set.sign_in().await;
        let new = FakeAuth::start().await;
        set.also(&new);
        set.guard.trust_only(&[&new]);
        let old = set.auth.all_asked().len();
        let outcome = set.app().call_tool("s", "echo", "{}").await;
        let facts = ErrorFacts::expect(outcome, Code::FailedPrecondition, "SIGN_IN_REQUIRED");
        let url = &facts.metadata["auth_url"];
        assert!(url.starts_with(new.origin()), "{url}");
        set.browser.visit(url).await;
        set.all_ready().await;
        set.all_can_call().await;
        // What belongs to one of them the other never sees.
        assert_eq!(set.auth.all_asked().len(), old);
        assert_eq!(new.count(Endpoint::Register), 1);
        let theirs = set.auth.clients();
        for asked in new.all_asked() {
            for client in &theirs {
                assert_ne!(asked.param("client_id"), client.id);
            }
        }
        // The token that the guard did not know any more was one of the old server.
        let faults = set.guard.take_faults();
        assert!(
            faults
                .iter()
                .all(|fault| fault.contains("from somewhere else")),
            "{faults:?}"
        );
        let status = set.other().auth_status("s").await.unwrap();
        assert_eq!(status.issuer, new.issuer());
    })
    .await;
}

#[tokio::test]
async fn behaviour_68_what_is_no_place_to_sign_in_is_handed_to_nobody() {
    let places = [
        "javascript:alert(1)",
        "data:text/html,hello",
        "file:///etc/passwd",
        "ftp://127.0.0.1/authorize",
        "/authorize",
        "authorize",
        "",
        "http://authorization.example/authorize",
        "https://user:password@authorization.example/authorize",
    ];
    for place in places {
        protected(async |set| {
            set.auth.metadata("authorization_endpoint", json!(place));
            // The address policy knows schemes by itself.
            let word = if place.starts_with("ftp") {
                "scheme `ftp`"
            } else {
                "authorization"
            };
            nobody_can_sign_in(set, set.spec(), &[word]).await;
        })
        .await;
    }
}

#[tokio::test]
async fn where_nothing_is_said_the_rules_of_2025_03_26_hold() {
    for with_metadata in [true, false] {
        for count in 1..=2 {
            let mut set = AuthStage::set(watched(), count, false).await;
            // One site is both: the server is reached through its authorization server's origin.
            let url = front(&mut set, with_metadata);
            set.sign_in_as(http_spec("S", &url)).await;
            set.all_can_call().await;
            set.auth.expire_tokens();
            set.all_can_call().await;
            set.finish().await;
        }
    }
}

/// Lets the authorization server pass on what is for `/mcp`, without any metadata of the resource; returns the URL there.
fn front(set: &mut AuthStage, with_metadata: bool) -> String {
    let url = format!("{}/mcp", set.auth.origin());
    set.guard.rules(|rules| rules.metadata = Metadata::Nowhere);
    set.guard.rename(&url);
    set.auth.shape(|shape| {
        if !with_metadata {
            shape.well_known = Vec::new();
            shape.says_issuer = false;
        }
    });
    let (behind, http) = (set.mcp.url(), reqwest::Client::new());
    set.auth.on(Endpoint::Elsewhere, move |asked| {
        let (behind, http) = (behind.clone(), http.clone());
        async move {
            if asked.path != "/mcp" {
                return None;
            }
            let mut headers = asked.headers.clone();
            headers.remove("host");
            let request = http
                .request(asked.http, behind)
                .headers(headers)
                .body(asked.body);
            let answer = request.send().await.ok()?;
            let names = ["content-type", "www-authenticate", "mcp-session-id"];
            let kept = names.into_iter().filter_map(|name| {
                let value = answer.headers().get(name)?.to_str().ok()?;
                Some((name, value.to_owned()))
            });
            let (status, kept) = (answer.status().as_u16(), kept.collect());
            Some(Reply::Raw(status, kept, answer.bytes().await.ok()?))
        }
    });
    url
}
