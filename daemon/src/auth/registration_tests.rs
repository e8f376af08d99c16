//! Tests of `registration`.

use serde_json::{Value, json};

use super::super::site::{Seen, Site, json as answer, message, web};
use super::*;
use crate::model::spec::NamedSecret;

const NOW: Timestamp = Timestamp(1_700_000_000_000);
const HOME: &str = "http://127.0.0.1:33433/oauth/callback";

fn named(value: &str) -> NamedSecret {
    NamedSecret {
        name: String::new(),
        value: Secret::new(value.to_owned()),
    }
}

fn server(site: &Site, methods: Option<&[&str]>) -> AuthServer {
    AuthServer {
        issuer: site.base.clone(),
        registration_endpoint: Some(format!("{}/register", site.base)),
        token_endpoint_auth_methods_supported: methods
            .map(|methods| methods.iter().map(|method| (*method).to_owned()).collect()),
        ..AuthServer::default()
    }
}

struct Ask {
    code: CodeSpec,
    metadata_url: Option<&'static str>,
    redirect_uris: Vec<String>,
    scopes: Scopes,
}

impl Default for Ask {
    fn default() -> Self {
        Self {
            code: CodeSpec::default(),
            metadata_url: None,
            redirect_uris: vec![HOME.to_owned()],
            scopes: Scopes::parse("a b"),
        }
    }
}

impl Ask {
    async fn choose(&self, server: &AuthServer, known: Option<&Registration>) -> Result<Choice> {
        let wanted = Wanted {
            server,
            code: &self.code,
            metadata_url: self.metadata_url,
            client_name: "the daemon",
            redirect_uris: &self.redirect_uris,
            scopes: &self.scopes,
            now: NOW,
        };
        choose(&web(), wanted, known).await
    }

    async fn register(&self, server: &AuthServer) -> Registration {
        match self.choose(server, None).await.unwrap() {
            Choice::New(registration) => registration,
            other => panic!("{other:?}"),
        }
    }
}

fn body(seen: &Seen) -> Value {
    serde_json::from_str(&seen.body).unwrap()
}

#[tokio::test]
async fn the_order_is_configured_document_known_registered() {
    let site = Site::start(|_, _| answer(201, &json!({"client_id": "new"}))).await;
    let plain = server(&site, Some(&["none"]));
    let with_documents = AuthServer {
        client_id_metadata_document_supported: true,
        ..plain.clone()
    };
    let known = Ask::default().register(&plain).await;
    assert_eq!(site.targets().len(), 1);

    let configured = Ask {
        code: CodeSpec {
            client: Some(ClientSpec {
                client_id: "configured".to_owned(),
                ..ClientSpec::default()
            }),
            ..CodeSpec::default()
        },
        metadata_url: Some("https://me.example/client.json"),
        ..Ask::default()
    };
    let given = |choice: Choice| match choice {
        Choice::Given(client) => client,
        other => panic!("{other:?}"),
    };
    let client = given(
        configured
            .choose(&with_documents, Some(&known))
            .await
            .unwrap(),
    );
    assert_eq!(
        (client.client_id.as_str(), client.issuer),
        ("configured", site.base.clone())
    );

    let document = Ask {
        metadata_url: Some("https://me.example/client.json"),
        ..Ask::default()
    };
    let client = given(
        document
            .choose(&with_documents, Some(&known))
            .await
            .unwrap(),
    );
    assert_eq!(
        (client.client_id.as_str(), client.auth),
        ("https://me.example/client.json", ClientAuth::None)
    );

    let choice = document.choose(&plain, Some(&known)).await.unwrap();
    assert_eq!(choice, Choice::Known(known.client.clone()));
    assert_eq!(site.targets().len(), 1, "nothing was registered for these");

    let elsewhere = Registration {
        client: Client {
            issuer: "https://other.example".to_owned(),
            ..known.client.clone()
        },
        ..known.clone()
    };
    let moved = Registration {
        redirect_uris: vec![HOME.replace("33433", "1")],
        ..known.clone()
    };
    let expired = Registration {
        secret_expires: Some(NOW),
        ..known.clone()
    };
    let narrow = Registration {
        scopes: Scopes::parse("a"),
        ..known.clone()
    };
    for useless in [elsewhere, moved, expired, narrow] {
        let choice = document.choose(&plain, Some(&useless)).await.unwrap();
        assert!(matches!(choice, Choice::New(_)), "{useless:?}");
    }
    let more = Registration {
        redirect_uris: vec!["x".to_owned(), HOME.to_owned()],
        ..known
    };
    assert!(matches!(
        document.choose(&plain, Some(&more)).await.unwrap(),
        Choice::Known(_)
    ));
}

#[tokio::test]
async fn what_is_registered_is_what_is_needed() {
    let site = Site::start(|_, _| answer(201, &json!({"client_id": "c"}))).await;
    let registration = Ask::default()
        .register(&server(&site, Some(&["client_secret_post", "none"])))
        .await;
    assert_eq!(registration.redirect_uris, [HOME]);
    assert_eq!(registration.created, NOW);
    let seen = site.seen().remove(0);
    assert_eq!(
        (seen.method.as_str(), seen.target.as_str()),
        ("POST", "/register")
    );
    assert_eq!(seen.header("content-type"), Some("application/json"));
    assert_eq!(
        body(&seen),
        json!({
            "client_name": "the daemon",
            "redirect_uris": [HOME],
            "grant_types": ["authorization_code", "refresh_token"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
            "application_type": "native",
            "scope": "a b",
        })
    );
    let web_app = Ask {
        redirect_uris: vec!["https://sidecar.example/oauth/callback".to_owned()],
        scopes: Scopes::default(),
        ..Ask::default()
    };
    web_app.register(&server(&site, None)).await;
    let sent = body(&site.seen()[1]);
    assert_eq!(sent["application_type"], "web");
    assert_eq!(sent["token_endpoint_auth_method"], "client_secret_basic");
    assert_eq!(sent.get("scope"), None);
    Ask::default()
        .register(&server(&site, Some(&["client_secret_post"])))
        .await;
    assert_eq!(
        body(&site.seen()[2])["token_endpoint_auth_method"],
        "client_secret_post"
    );
}

#[tokio::test]
async fn the_answer_decides_how_the_client_proves_itself() {
    for (supported, said, secret, expected) in [
        (&["none"][..], Some("none"), None, Some(ClientAuth::None)),
        (&["none"], Some("none"), Some("s"), Some(ClientAuth::None)),
        (&["none"], None, None, Some(ClientAuth::None)),
        (&["none"], None, Some("s"), Some(ClientAuth::Basic)),
        (
            &["client_secret_post"],
            None,
            Some("s"),
            Some(ClientAuth::Post),
        ),
        (
            &["none"],
            Some("client_secret_basic"),
            Some("s"),
            Some(ClientAuth::Basic),
        ),
        (
            &["none"],
            Some("client_secret_post"),
            Some("s"),
            Some(ClientAuth::Post),
        ),
        (
            &["none"],
            Some("client_secret_basic"),
            None,
            Some(ClientAuth::None),
        ),
        (&["none"], Some("private_key_jwt"), None, None),
        (&["none"], Some("tls_client_auth"), Some("s"), None),
    ] {
        let site = Site::start(move |_, _| {
            let mut document = json!({
                "client_id": "c",
                "redirect_uris": ["https://evil.example/callback"],
                "client_secret_expires_at": 1_800_000_000,
            });
            if let Some(said) = said {
                document["token_endpoint_auth_method"] = json!(said);
            }
            if let Some(secret) = secret {
                document["client_secret"] = json!(secret);
            }
            answer(200, &document)
        })
        .await;
        let choice = Ask::default()
            .choose(&server(&site, Some(supported)), None)
            .await;
        let Some(expected) = expected else {
            assert_eq!(choice.unwrap_err().reason(), Reason::CredentialsRefused);
            continue;
        };
        let Ok(Choice::New(registration)) = choice else {
            panic!("{choice:?}");
        };
        assert_eq!(registration.client.auth, expected, "{said:?} {secret:?}");
        assert_eq!(registration.redirect_uris, [HOME], "only ours");
        let has_secret = expected != ClientAuth::None;
        assert_eq!(registration.client.secret.is_some(), has_secret);
        let expires = has_secret.then_some(Timestamp(1_800_000_000_000));
        assert_eq!(registration.secret_expires, expires);
    }
}

#[tokio::test]
async fn an_id_has_to_be_one() {
    let huge = "x".repeat(5000);
    for bad in [
        json!({}),
        json!({"client_id": ""}),
        json!({"client_id": 7}),
        json!({"client_id": huge}),
        json!({"client_id": "a\nb"}),
        json!({"client_id": "a", "client_secret": huge}),
    ] {
        let text = bad.to_string();
        let site = Site::start(move |_, _| answer(201, &bad)).await;
        let error = Ask::default()
            .choose(&server(&site, None), None)
            .await
            .unwrap_err();
        assert_eq!(error.reason(), Reason::CredentialsRefused, "{text}");
        assert!(
            error.message().contains("authorization_code.client") && error.message().len() < 500
        );
    }
}

#[tokio::test]
async fn a_refusal_for_the_redirects_is_met_with_the_other_type_once() {
    for (refusal, attempts) in [
        (json!({"error": "invalid_redirect_uri"}), 2),
        (
            json!({"error": "invalid_client_metadata", "error_description": "Redirect must be https"}),
            2,
        ),
        (
            json!({"error": "invalid_client_metadata", "error_description": "bad scope\u{7}"}),
            1,
        ),
        (json!({"error": "access_denied"}), 1),
    ] {
        let text = refusal.clone();
        let site = Site::start(move |_, _| answer(400, &text)).await;
        let error = Ask::default()
            .choose(&server(&site, None), None)
            .await
            .unwrap_err();
        assert_eq!(error.reason(), Reason::CredentialsRefused);
        assert!(
            error.message().contains(refusal["error"].as_str().unwrap()),
            "{error}"
        );
        assert!(!error.message().contains('\u{7}'));
        let types: Vec<Value> = site
            .seen()
            .iter()
            .map(|seen| body(seen)["application_type"].clone())
            .collect();
        assert_eq!(types, ["native", "web"][..attempts]);
    }
    let picky = Site::start(|_, request| {
        if request.body.contains("\"web\"") {
            answer(201, &json!({"client_id": "c"}))
        } else {
            answer(400, &json!({"error": "invalid_redirect_uri"}))
        }
    })
    .await;
    Ask::default().register(&server(&picky, None)).await;
}

#[tokio::test]
async fn trouble_condemns_nothing_and_no_way_says_what_to_do() {
    for trouble in [
        message(500, "", ""),
        message(429, "retry-after: 3\r\n", ""),
        message(200, "", "<html>"),
        String::new(),
    ] {
        let site = Site::start(move |_, _| trouble.clone()).await;
        let error = Ask::default()
            .choose(&server(&site, None), None)
            .await
            .unwrap_err();
        assert_eq!(error.reason(), Reason::AuthorizationUnavailable, "{error}");
    }
    for status in [401, 403, 404] {
        let site = Site::start(move |_, _| message(status, "", "no")).await;
        let error = Ask::default()
            .choose(&server(&site, None), None)
            .await
            .unwrap_err();
        assert_eq!(error.reason(), Reason::CredentialsRefused);
        assert!(error.message().contains(&status.to_string()), "{error}");
    }
    let none = AuthServer {
        issuer: "https://as.example".to_owned(),
        ..AuthServer::default()
    };
    let error = Ask::default().choose(&none, None).await.unwrap_err();
    assert_eq!(error.reason(), Reason::CredentialsRefused);
    assert!(
        error
            .message()
            .contains("authorization.authorization_code.client"),
        "{error}"
    );
}

#[test]
fn a_configured_client_proves_itself_as_it_can() {
    let key = ClientAuth::PrivateKeyJwt;
    for (auth, secret, has_key, supported, expected) in [
        (None, false, false, None, Some(ClientAuth::None)),
        (None, true, false, None, Some(ClientAuth::Basic)),
        (
            None,
            true,
            false,
            Some(&["client_secret_post"][..]),
            Some(ClientAuth::Post),
        ),
        (
            None,
            true,
            false,
            Some(&["client_secret_post", "client_secret_basic"]),
            Some(ClientAuth::Basic),
        ),
        (
            None,
            true,
            false,
            Some(&["private_key_jwt"]),
            Some(ClientAuth::Basic),
        ),
        (None, false, true, None, Some(key)),
        (
            None,
            true,
            true,
            Some(&["private_key_jwt", "client_secret_basic"]),
            Some(key),
        ),
        (
            None,
            true,
            true,
            Some(&["client_secret_post"]),
            Some(ClientAuth::Post),
        ),
        (
            Some(ClientAuth::Post),
            true,
            false,
            Some(&["client_secret_basic"]),
            Some(ClientAuth::Post),
        ),
        (
            Some(ClientAuth::None),
            true,
            true,
            None,
            Some(ClientAuth::None),
        ),
        (Some(ClientAuth::Basic), false, true, None, None),
        (Some(key), true, false, None, None),
    ] {
        let spec = ClientSpec {
            client_id: "me".to_owned(),
            secret: secret.then(|| named("the secret")),
            private_key: has_key.then(|| named("the key")),
            algorithm: None,
            auth,
        };
        let server = AuthServer {
            issuer: "https://as.example".to_owned(),
            token_endpoint_auth_methods_supported: supported
                .map(|methods| methods.iter().map(|method| (*method).to_owned()).collect()),
            ..AuthServer::default()
        };
        let client = client_of(&spec, &server);
        assert_eq!(
            client.as_ref().ok().map(|client| client.auth),
            expected,
            "{spec:?}"
        );
        match client {
            Ok(client) => {
                let takes = matches!(client.auth, ClientAuth::Basic | ClientAuth::Post);
                assert_eq!(client.secret.is_some(), takes);
                assert_eq!(client.private_key.is_some(), client.auth == key);
            }
            Err(error) => assert_eq!(error.reason(), Reason::CredentialsRefused),
        }
    }
}
