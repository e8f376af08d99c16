//! One acceptable registration per way, and what each refuses when one thing in it is changed.

use std::collections::BTreeMap;

use super::super::check_spec;
use super::*;
use crate::base::Secret;
use crate::model::rules::ToolRules;
use crate::model::spec::QuestionPolicy;
use crate::model::spec::{HttpMode, Isolation, RetryPolicy, StdioSpec, Timeouts};

const KEY: &str = "-----BEGIN PRIVATE KEY-----\nMA==\n-----END PRIVATE KEY-----\n";
const CERTIFICATE: &str = "-----BEGIN CERTIFICATE-----\nMA==\n-----END CERTIFICATE-----\n";

fn secret(value: &str) -> NamedSecret {
    NamedSecret {
        name: "authorization/x".to_owned(),
        value: Secret::new(value.to_owned()),
    }
}

fn client() -> ClientSpec {
    ClientSpec {
        client_id: "sidecar".to_owned(),
        secret: Some(secret("hunter2")),
        ..ClientSpec::default()
    }
}

fn keyed() -> ClientSpec {
    ClientSpec {
        secret: None,
        private_key: Some(secret(KEY)),
        algorithm: Some("ES256".to_owned()),
        auth: Some(ClientAuth::PrivateKeyJwt),
        ..client()
    }
}

fn server(auth: AuthSpec) -> ServerSpec {
    ServerSpec {
        name: "S".to_owned(),
        transport: TransportSpec::Http(HttpSpec {
            url: "https://example.com/mcp".parse().unwrap(),
            headers: Vec::new(),
            mode: HttpMode::Auto,
            certificate: None,
        }),
        protocol_version: None,
        capabilities: None,
        questions: QuestionPolicy::default(),
        roots: Vec::new(),
        isolation: Isolation::Shared,
        log_level: None,
        retry: RetryPolicy::default(),
        timeouts: Timeouts::default(),
        tools: ToolRules::default(),
        approval: crate::model::approval::Approval::default(),
        check_results: false,
        auth,
    }
}

fn by(method: AuthMethod) -> AuthSpec {
    AuthSpec {
        method,
        ..AuthSpec::default()
    }
}

fn code(change: impl FnOnce(&mut CodeSpec)) -> AuthSpec {
    let mut spec = CodeSpec::default();
    change(&mut spec);
    by(AuthMethod::AuthorizationCode(spec))
}

fn credentials(change: impl FnOnce(&mut ClientSpec)) -> AuthSpec {
    let mut spec = client();
    change(&mut spec);
    by(AuthMethod::ClientCredentials(spec))
}

fn enterprise(change: impl FnOnce(&mut EnterpriseSpec)) -> AuthSpec {
    let mut spec = EnterpriseSpec {
        client: client(),
        idp_token_endpoint: "https://idp.example/token".to_owned(),
        idp_client: client(),
        id_token: secret("a.b.c"),
    };
    change(&mut spec);
    by(AuthMethod::EnterpriseManaged(spec))
}

fn workload(change: impl FnOnce(&mut WorkloadSpec)) -> AuthSpec {
    let mut spec = WorkloadSpec {
        client: None,
        assertion: Assertion::Given(secret("a.b.c")),
    };
    change(&mut spec);
    by(AuthMethod::WorkloadIdentity(spec))
}

fn bearer(token: &str) -> AuthSpec {
    by(AuthMethod::Bearer(secret(token)))
}

fn scopes(scopes: &[&str]) -> Scopes {
    scopes.iter().map(|&scope| scope.to_owned()).collect()
}

fn accepts(auth: AuthSpec) {
    let shown = format!("{auth:?}");
    check_spec(&server(auth), &[]).unwrap_or_else(|refused| panic!("{refused}: {shown}"));
}

/// Refused at this field (below `spec.authorization`), with these words, and without the secrets.
fn refuses(auth: AuthSpec, field: &str, words: &str) {
    let refused = check_spec(&server(auth), &[]).unwrap_err();
    let expected = format!("spec.authorization{field}");
    assert_eq!(refused.field(), Some(expected.as_str()), "{refused}");
    let message = refused.message();
    assert!(message.contains(words), "`{words}` in {message}");
    assert!(!message.contains("hunter2"), "{message}");
}

#[test]
fn every_way_has_an_acceptable_form() {
    accepts(AuthSpec::default());
    accepts(code(|code| {
        code.client = Some(keyed());
        code.client_name = Some("Mail".to_owned());
        code.redirect_uri = Some("http://127.0.0.1:33433/oauth/callback".to_owned());
        code.parameters = BTreeMap::from([("audience".to_owned(), "https://api".to_owned())]);
    }));
    accepts(credentials(|_| {}));
    accepts(by(AuthMethod::ClientCredentials(keyed())));
    accepts(enterprise(|_| {}));
    accepts(enterprise(|spec| {
        spec.idp_token_endpoint = "http://[::1]:9/token".to_owned();
    }));
    accepts(workload(|_| {}));
    accepts(workload(|spec| {
        spec.client = Some(ClientSpec::default());
        spec.assertion = Assertion::File("/run/identity/token".to_owned());
    }));
    accepts(bearer("mF_9.B5f-4.1JqM~+/=="));
    accepts(by(AuthMethod::None));
    accepts(AuthSpec {
        scopes: scopes(&["files:read", "https://api.example/x", "[]!"]),
        issuer: Some("https://login.example/tenant".to_owned()),
        dpop: DpopMode::Required,
        ..AuthSpec::default()
    });
}

#[test]
fn only_a_server_at_a_url_is_authorized_at_and_only_in_one_way() {
    let mut stdio = server(bearer("t"));
    stdio.transport = TransportSpec::Stdio(StdioSpec {
        command: "true".to_owned(),
        args: Vec::new(),
        env: Vec::new(),
        cwd: None,
    });
    let refused = check_spec(&stdio, &[]).unwrap_err();
    assert_eq!(refused.field(), Some("spec.authorization"));
    stdio.auth = AuthSpec::default();
    check_spec(&stdio, &[]).unwrap();

    let mut headed = server(by(AuthMethod::None));
    if let TransportSpec::Http(http) = &mut headed.transport {
        let name = "aUTHORIZATION".to_owned();
        let header = NamedSecret {
            name,
            ..secret("Basic hunter2")
        };
        http.headers.push(header);
    }
    let refused = check_spec(&headed, &[]).unwrap_err();
    assert_eq!(refused.field(), Some("spec.authorization"));
    assert!(refused.message().contains("leave out one"), "{refused}");
    headed.auth = AuthSpec::default();
    check_spec(&headed, &[]).unwrap();
}

#[test]
fn scopes_are_tokens() {
    for bad in [
        "",
        "a b",
        "a\"b",
        "a\\b",
        "é",
        "a\tb",
        "\u{7f}",
        &"s".repeat(513),
    ] {
        let auth = AuthSpec {
            scopes: scopes(&["ok", bad]),
            ..AuthSpec::default()
        };
        refuses(auth, ".scopes", bad);
    }
    let many: Vec<String> = (0..101).map(|n| n.to_string()).collect();
    let auth = AuthSpec {
        scopes: many.into_iter().collect(),
        ..AuthSpec::default()
    };
    refuses(auth, ".scopes", "101");
}

#[test]
fn addresses_are_https_or_on_this_host() {
    let long = format!("https://h/{}", "x".repeat(9_000));
    for (bad, words) in [
        ("nonsense", "not a URL"),
        ("http://login.example/", "https:"),
        ("http://10.0.0.1/", "https:"),
        ("http://localhost.example/", "https:"),
        ("ftp://login.example/", "https:"),
        ("javascript:alert(1)", "https:"),
        ("https://hunter2@login.example/", "user name"),
        ("https://login.example/#x", "fragment"),
        (long.as_str(), "8192"),
    ] {
        let issuer = AuthSpec {
            issuer: Some(bad.to_owned()),
            ..AuthSpec::default()
        };
        refuses(issuer, ".issuer", words);
        let uri = code(|code| code.redirect_uri = Some(bad.to_owned()));
        refuses(uri, ".authorization_code.redirect_uri", words);
        let endpoint = enterprise(|spec| spec.idp_token_endpoint = bad.to_owned());
        refuses(endpoint, ".enterprise_managed.idp_token_endpoint", words);
    }
    let issuer = AuthSpec {
        issuer: Some("https://login.example/?x".to_owned()),
        ..AuthSpec::default()
    };
    refuses(issuer, ".issuer", "query");
}

#[test]
fn parameters_leave_the_protocol_alone() {
    let with = |name: &str, value: &str| {
        code(|code| {
            code.parameters.insert(name.to_owned(), value.to_owned());
        })
    };
    let field = ".authorization_code.parameters";
    for own in OWN_PARAMETERS {
        refuses(with(own, "x"), field, own);
    }
    for odd in ["", "a b", "a=b", "a&b", "é", &"n".repeat(65)] {
        refuses(with(odd, "x"), field, odd);
    }
    refuses(with("prompt", "a\nb"), field, "`prompt`");
    refuses(with("prompt", &"x".repeat(2_049)), field, "2048");
    accepts(with("prompt", "conse&nt=é"));
    let many = code(|code| {
        code.parameters = (0..21).map(|n| (format!("p{n}"), String::new())).collect();
    });
    refuses(many, field, "21");
    let name = code(|code| code.client_name = Some("n".repeat(129)));
    refuses(name, ".authorization_code.client_name", "128");
}

#[test]
fn a_client_is_proven_as_it_says() {
    let at = ".client_credentials.client";
    let field = |name: &str| format!("{at}.{name}");
    let id = |id: &str| credentials(|client| client.client_id = id.to_owned());
    refuses(id(""), &field("client_id"), "client identifier");
    refuses(id("a\nb"), &field("client_id"), "client identifier");
    refuses(id(&"i".repeat(2_049)), &field("client_id"), "2048");
    refuses(
        credentials(|client| client.secret = None),
        at,
        "client_secret",
    );
    let public = credentials(|client| {
        client.secret = None;
        client.auth = Some(ClientAuth::None);
    });
    refuses(public, at, "client_secret");
    let public = credentials(|client| client.auth = Some(ClientAuth::None));
    refuses(public, &field("client_secret"), "leave it out");
    for auth in [ClientAuth::Basic, ClientAuth::Post] {
        accepts(credentials(|client| client.auth = Some(auth)));
        let empty = credentials(|client| {
            client.auth = Some(auth);
            client.secret = Some(secret(""));
        });
        refuses(empty, &field("client_secret"), "required");
        let both = credentials(|client| {
            client.auth = Some(auth);
            client.private_key = Some(secret(KEY));
        });
        refuses(both, &field("private_key_pem"), "leave it out");
    }
    let both = credentials(|client| client.private_key = Some(secret(KEY)));
    refuses(both, &field("private_key_pem"), "leave it out");
    refuses(
        credentials(|client| client.auth = Some(ClientAuth::PrivateKeyJwt)),
        &field("client_secret"),
        "leave it out",
    );
    let keyed = |change: fn(&mut ClientSpec)| {
        let mut client = keyed();
        change(&mut client);
        by(AuthMethod::ClientCredentials(client))
    };
    let none = keyed(|client| client.private_key = Some(secret("")));
    refuses(none, &field("private_key_pem"), "required");
    for form in [
        "hunter2",
        "-----BEGIN RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----",
    ] {
        let mut client = super::tests::keyed();
        client.private_key = Some(secret(form));
        let auth = by(AuthMethod::ClientCredentials(client));
        refuses(auth, &field("private_key_pem"), "PKCS #8");
    }
    let odd = keyed(|client| client.algorithm = Some("HS256".to_owned()));
    refuses(odd, &field("signing_algorithm"), "HS256");
    let idle = credentials(|client| client.algorithm = Some("ES256".to_owned()));
    refuses(idle, &field("signing_algorithm"), "private key");
    let odd = credentials(|client| client.secret = Some(secret("hunter2\n")));
    refuses(odd, &field("client_secret"), "printable");
    let long = credentials(|client| client.secret = Some(secret(&"hunter2".repeat(9_000))));
    refuses(long, &field("client_secret"), "32768");
    // The same rules wherever a client is named.
    let client = ClientSpec::default;
    refuses(
        code(|code| code.client = Some(client())),
        ".authorization_code.client.client_id",
        "client identifier",
    );
    refuses(
        enterprise(|spec| spec.client = client()),
        ".enterprise_managed.client.client_id",
        "client identifier",
    );
    refuses(
        enterprise(|spec| spec.idp_client = client()),
        ".enterprise_managed.idp_client.client_id",
        "client identifier",
    );
}

#[test]
fn tokens_are_tokens() {
    for bad in [
        "",
        "=",
        "Bearer hunter2",
        "hunter2\n",
        "é",
        "hunter2=x",
        "a\0",
    ] {
        refuses(bearer(bad), ".bearer_token.token", "");
        let id_token = enterprise(|spec| spec.id_token = secret(bad));
        refuses(id_token, ".enterprise_managed.id_token", "");
        let assertion = workload(|spec| spec.assertion = Assertion::Given(secret(bad)));
        refuses(assertion, ".workload_identity.assertion", "");
    }
    for bad in ["", "token", "./token", "/run/../etc/shadow", "/a\0"] {
        let file = workload(|spec| spec.assertion = Assertion::File(bad.to_owned()));
        refuses(file, ".workload_identity.assertion_file", bad);
    }
    for method in [AuthMethod::None, AuthMethod::Bearer(secret("t"))] {
        let scoped = AuthSpec {
            scopes: scopes(&["a"]),
            ..by(method.clone())
        };
        refuses(scoped, ".scopes", "leave it out");
        let issued = AuthSpec {
            issuer: Some("https://login.example".to_owned()),
            ..by(method.clone())
        };
        refuses(issued, ".issuer", "leave it out");
        let bound = AuthSpec {
            dpop: DpopMode::Required,
            ..by(method)
        };
        refuses(bound, ".dpop", "leave it out");
    }
}

#[test]
fn a_certificate_has_a_chain_a_key_and_tls() {
    let check = |url: &str, chain: &str, key: &str| {
        let mut spec = server(AuthSpec::default());
        if let TransportSpec::Http(http) = &mut spec.transport {
            http.url = url.parse().unwrap();
            http.certificate = Some(ClientCertificate {
                chain: chain.to_owned(),
                private_key: secret(key),
            });
        }
        check_spec(&spec, &[]).map_err(|refused| refused.field().unwrap().to_owned())
    };
    let url = "https://example.com/";
    check(url, &CERTIFICATE.repeat(2), KEY).unwrap();
    check(url, CERTIFICATE, &KEY.replace("PRIV", "EC PRIV")).unwrap();
    let field = |name: &str| Err(format!("spec.http.client_certificate{name}"));
    assert_eq!(check("http://example.com/", CERTIFICATE, KEY), field(""));
    for chain in [
        "",
        "MA==",
        KEY,
        "-----BEGIN CERTIFICATE-----",
        &CERTIFICATE.repeat(1_000),
    ] {
        assert_eq!(check(url, chain, KEY), field(".certificate_pem"));
    }
    for key in [
        "",
        CERTIFICATE,
        &KEY.replace("PRIV", "ENCRYPTED PRIV"),
        &KEY.repeat(1_000),
    ] {
        assert_eq!(check(url, CERTIFICATE, key), field(".private_key_pem"));
    }
}
