//! Authorizations that cannot be meant: refused when the server is added, with the field, and without the secrets in it.

use mcp_sidecar_tests::prelude::*;
use v1::authorization::Method;
use v1::workload_identity::AssertionSource;

const SECRET: &str = "correct-horse";

fn with(authorization: v1::Authorization) -> ServerSpec {
    ServerSpec {
        authorization: Some(authorization),
        ..http_spec("S", "https://example.com/mcp")
    }
}

fn by(method: Method) -> v1::Authorization {
    v1::Authorization {
        method: Some(method),
        ..Default::default()
    }
}

fn client() -> v1::OAuthClient {
    v1::OAuthClient {
        client_id: "sidecar".to_owned(),
        client_secret: SECRET.to_owned(),
        ..Default::default()
    }
}

fn code(code: v1::AuthorizationCode) -> v1::Authorization {
    by(Method::AuthorizationCode(code))
}

fn parameter(name: &str) -> v1::Authorization {
    code(v1::AuthorizationCode {
        parameters: [(name.to_owned(), "x".to_owned())].into(),
        ..Default::default()
    })
}

fn bearer(token: &str) -> v1::Authorization {
    let token = token.to_owned();
    by(Method::BearerToken(v1::BearerToken { token }))
}

/// Refused at this field of `spec`, with these words.
async fn refused(app: &Clients, spec: ServerSpec, field: &str, words: &str) {
    let added = app.add("", spec).await;
    let facts = ErrorFacts::expect(added, Code::InvalidArgument, "INVALID_FIELD");
    assert_eq!(facts.field, format!("spec.{field}"), "{facts:?}");
    assert!(facts.message.contains(words), "`{words}` in {facts:?}");
    assert!(!format!("{facts:?}").contains(SECRET), "{facts:?}");
}

#[tokio::test]
async fn what_a_way_needs_and_what_it_cannot_use() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let at = |field: &str| format!("authorization.{field}");

    let nobody = by(Method::ClientCredentials(v1::ClientCredentials::default()));
    refused(
        &app,
        with(nobody),
        &at("client_credentials.client"),
        "client",
    )
    .await;
    let unproven = v1::OAuthClient {
        client_secret: String::new(),
        ..client()
    };
    let unproven = by(Method::ClientCredentials(v1::ClientCredentials {
        client: Some(unproven),
    }));
    refused(
        &app,
        with(unproven),
        &at("client_credentials.client"),
        "client_secret",
    )
    .await;
    let empty = v1::OAuthClient {
        client_secret: String::new(),
        auth_method: v1::ClientAuthMethod::Basic.into(),
        ..client()
    };
    let empty = code(v1::AuthorizationCode {
        client: Some(empty),
        ..Default::default()
    });
    let field = at("authorization_code.client.client_secret");
    refused(&app, with(empty), &field, "required").await;
    let public = v1::OAuthClient {
        auth_method: v1::ClientAuthMethod::None.into(),
        ..client()
    };
    let public = code(v1::AuthorizationCode {
        client: Some(public),
        ..Default::default()
    });
    refused(&app, with(public), &field, "leave it out").await;
    let enterprise = |change: fn(&mut v1::EnterpriseManaged)| {
        let mut spec = v1::EnterpriseManaged {
            client: Some(client()),
            idp_token_endpoint: "https://idp.example/token".to_owned(),
            idp_client: Some(client()),
            id_token: "a.b.c".to_owned(),
        };
        change(&mut spec);
        with(by(Method::EnterpriseManaged(spec)))
    };
    for (change, field) in [
        (
            (|spec| spec.client = None) as fn(&mut v1::EnterpriseManaged),
            "client",
        ),
        (|spec| spec.idp_client = None, "idp_client"),
        (|spec| spec.id_token.clear(), "id_token"),
        (|spec| spec.idp_token_endpoint.clear(), "idp_token_endpoint"),
        (
            |spec| spec.idp_token_endpoint = "http://idp.example/".to_owned(),
            "idp_token_endpoint",
        ),
    ] {
        let field = at(&format!("enterprise_managed.{field}"));
        refused(&app, enterprise(change), &field, "").await;
    }
    let workload = |source| {
        with(by(Method::WorkloadIdentity(v1::WorkloadIdentity {
            client: None,
            assertion_source: source,
        })))
    };
    refused(
        &app,
        workload(None),
        &at("workload_identity.assertion"),
        "assertion_file",
    )
    .await;
    let relative = workload(Some(AssertionSource::AssertionFile("token".to_owned())));
    refused(
        &app,
        relative,
        &at("workload_identity.assertion_file"),
        "absolute",
    )
    .await;
    for token in ["", "Bearer correct-horse", "correct-horse\n"] {
        let field = at("bearer_token.token");
        refused(&app, with(bearer(token)), &field, "RFC 6750").await;
    }
    let scoped = v1::Authorization {
        scopes: vec!["a".to_owned()],
        ..bearer(SECRET)
    };
    refused(&app, with(scoped), &at("scopes"), "leave it out").await;
    assert!(app.list().await.is_empty(), "nothing is registered");
    assert!(!daemon.log().contains(SECRET));
}

#[tokio::test]
async fn what_would_change_the_protocol_or_leave_the_host() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let field = "authorization.authorization_code.parameters";
    for own in [
        "response_type",
        "client_id",
        "redirect_uri",
        "scope",
        "state",
        "code_challenge",
        "code_challenge_method",
        "resource",
        "request",
        "request_uri",
        "response_mode",
        "client_secret",
    ] {
        refused(&app, with(parameter(own)), field, own).await;
    }
    for uri in [
        "http://app.example/callback",
        "app://callback",
        "https://app.example/callback#part",
        "nonsense",
    ] {
        let spec = with(code(v1::AuthorizationCode {
            redirect_uri: uri.to_owned(),
            ..Default::default()
        }));
        refused(
            &app,
            spec,
            "authorization.authorization_code.redirect_uri",
            uri,
        )
        .await;
    }
    for scope in ["", "two words", "quo\"te", "back\\slash", "é"] {
        let spec = with(v1::Authorization {
            scopes: vec![scope.to_owned()],
            ..Default::default()
        });
        refused(&app, spec, "authorization.scopes", scope).await;
    }
    let issuer = with(v1::Authorization {
        issuer: "http://login.example".to_owned(),
        ..Default::default()
    });
    refused(&app, issuer, "authorization.issuer", "https:").await;
    assert!(app.list().await.is_empty(), "nothing is registered");
}

#[tokio::test]
async fn two_authorizations_at_once_and_one_where_there_is_no_http() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let mut twice = with(bearer("token"));
    if let Some(v1::server_spec::Transport::Http(http)) = &mut twice.transport {
        let (name, value) = ("authorization".to_owned(), format!("Basic {SECRET}"));
        http.headers.push(v1::Header { name, value });
    }
    refused(&app, twice, "authorization", "leave out one").await;
    let stdio = ServerSpec {
        authorization: Some(bearer("token")),
        ..stdio_spec("S", "true", &[])
    };
    refused(&app, stdio, "authorization", "http").await;

    // An acceptable one: its secret is not shown, and a change that makes it nonsense changes nothing.
    let fake = FakeMcp::echo(true).await;
    let spec = ServerSpec {
        authorization: Some(bearer(SECRET)),
        ..http_spec("S", &fake.url())
    };
    app.add("s", spec.clone()).await.unwrap();
    let update = v1::UpdateServerRequest {
        server_id: "s".to_owned(),
        spec: Some(ServerSpec {
            authorization: Some(parameter("state")),
            ..spec
        }),
        update_mask: Some(prost_types::FieldMask {
            paths: vec!["authorization".to_owned()],
        }),
        ..Default::default()
    };
    let refusal = app.servers().update_server(update).await;
    ErrorFacts::expect(refusal, Code::InvalidArgument, "INVALID_FIELD");
    let server = app.get("s").await.unwrap();
    let shown = server.spec.unwrap().authorization.unwrap();
    assert_eq!(shown.method, bearer("").method);
}

#[tokio::test]
async fn certificates_that_are_none() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let block = |label: &str| format!("-----BEGIN {label}-----\nMA==\n-----END {label}-----\n");
    let spec = |url: &str, certificate_pem: String, private_key_pem: String| {
        let mut spec = http_spec("S", url);
        if let Some(v1::server_spec::Transport::Http(http)) = &mut spec.transport {
            http.client_certificate = Some(v1::ClientCertificate {
                certificate_pem,
                private_key_pem,
            });
        }
        spec
    };
    let (chain, key) = (block("CERTIFICATE"), block("PRIVATE KEY"));
    let https = "https://example.com/";
    let field = "http.client_certificate";
    let plain = spec("http://127.0.0.1:9/", chain.clone(), key.clone());
    refused(&app, plain, field, "without TLS").await;
    let no_chain = spec(https, SECRET.to_owned(), key);
    refused(&app, no_chain, &format!("{field}.certificate_pem"), "PEM").await;
    let no_key = spec(https, chain, SECRET.to_owned());
    refused(&app, no_key, &format!("{field}.private_key_pem"), "PEM").await;
    assert!(app.list().await.is_empty(), "nothing is registered");
}
