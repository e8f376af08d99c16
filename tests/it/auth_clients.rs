//! Who the daemon is at an authorization server: registered, configured, forgotten, and where its users come back to (cases
//! B08, B10 and B11, behaviour 64).

use mcp_sidecar_tests::fake_auth::{KnownClient, Redirects};
use mcp_sidecar_tests::prelude::*;
use url::Url;

/// What the URL of a sign-in says.
fn parameter(auth_url: &str, name: &str) -> String {
    let url = Url::parse(auth_url).expect("a URL");
    let found = url.query_pairs().find(|(known, _)| known == name);
    found
        .map(|(_, value)| value.into_owned())
        .unwrap_or_default()
}

fn redirect_uri(auth_url: &str) -> Url {
    Url::parse(&parameter(auth_url, "redirect_uri")).expect("a redirect URI")
}

/// A client that was agreed beforehand.
fn agreed(auth: &'static str, redirect_uri: &str) -> KnownClient {
    KnownClient {
        id: "agreed-beforehand".to_owned(),
        auth,
        secret: (auth != "none").then(|| "the secret of this client: +/=&%:".to_owned()),
        key: None,
        redirect_uris: vec![redirect_uri.to_owned()],
        scope: None,
    }
}

/// The settings that make the daemon that client.
fn as_client(known: &KnownClient, redirect_uri: &str) -> v1::Authorization {
    by_user(v1::AuthorizationCode {
        client: Some(v1::OAuthClient {
            client_id: known.id.clone(),
            client_secret: known.secret.clone().unwrap_or_default(),
            ..Default::default()
        }),
        redirect_uri: redirect_uri.to_owned(),
        ..Default::default()
    })
}

#[tokio::test]
async fn b08_a_client_that_was_forgotten_is_registered_anew_after_one_sign_in_that_nobody_ended() {
    let quick = watched().set("auth.sign_in_expiry", "1500ms");
    protected_with(quick, async |set| {
        let first = set.add_protected().await;
        set.auth.forget_clients();
        // The browser ends at a page of the authorization server; the daemon hears nothing.
        assert_eq!(set.browser.visit(&first).await.status, 400);
        let pending = set.other().auth_status("s").await.unwrap().pending;
        let ended = set
            .other()
            .sign_in_within(&pending[0].id, PATIENCE)
            .await
            .unwrap();
        assert_eq!(ended.state(), v1::SignInState::Expired);
        assert_eq!(set.auth.count(Endpoint::Register), 1);
        let second = set.other().start_sign_in("s").await.unwrap();
        assert_eq!(set.browser.visit(&second.auth_url).await.status, 200);
        set.all_ready().await;
        set.all_can_call().await;
        assert_eq!(set.auth.count(Endpoint::Register), 2);
    })
    .await;
}

#[tokio::test]
async fn b08_sign_ins_that_nobody_ends_register_no_client_each() {
    let quick = watched().set("auth.sign_in_expiry", "1s");
    protected_with(quick, async |set| {
        set.add_protected().await;
        for _ in 0..4 {
            let sign_in = set.other().start_sign_in("s").await.unwrap();
            let ended = set
                .app()
                .sign_in_within(&sign_in.id, PATIENCE)
                .await
                .unwrap();
            assert_eq!(ended.state(), v1::SignInState::Expired);
        }
        // The first that brought nothing casts doubt on the client; the others do not.
        assert_eq!(set.auth.count(Endpoint::Register), 2);
    })
    .await;
}

#[tokio::test]
async fn b08_twenty_sign_ins_take_one_registration() {
    protected(async |set| {
        set.sign_in().await;
        for round in 0..19 {
            let app = &set.apps[round % set.apps.len()];
            let out = app.sign_out("s").await.unwrap();
            assert!(out.was_signed_in && out.revoked, "{out:?}");
            let url = set.auth_url().await;
            assert_eq!(set.browser.visit(&url).await.status, 200);
            set.all_ready().await;
        }
        set.all_can_call().await;
        assert_eq!(set.auth.count(Endpoint::Authorize), 20);
        assert_eq!(set.auth.count(Endpoint::Register), 1);
    })
    .await;
}

#[tokio::test]
async fn b08_a_restart_takes_no_registration() {
    protected(async |set| {
        set.sign_in().await;
        set.restart().await;
        set.all_ready().await;
        set.app().sign_out("s").await.unwrap();
        set.restart().await;
        let url = set.auth_url().await;
        assert_eq!(set.browser.visit(&url).await.status, 200);
        set.all_ready().await;
        assert_eq!(set.auth.count(Endpoint::Register), 1);
    })
    .await;
}

#[tokio::test]
async fn b08_a_callback_port_that_is_taken_costs_a_registration_and_nothing_else() {
    for (redirects, registrations) in [(Redirects::Exact, 3), (Redirects::AnyPort, 3)] {
        protected(async |set| {
            set.auth.shape(|shape| shape.redirects = redirects);
            let usual = set.callback_port();
            set.sign_in().await;
            let there = std::net::TcpListener::bind(("127.0.0.1", usual)).unwrap();
            set.app().sign_out("s").await.unwrap();
            let url = set.auth_url().await;
            assert_ne!(redirect_uri(&url).port(), Some(usual));
            assert_eq!(set.browser.visit(&url).await.status, 200);
            set.all_ready().await;
            drop(there);
            set.app().sign_out("s").await.unwrap();
            let url = set.auth_url().await;
            assert_eq!(redirect_uri(&url).port(), Some(usual));
            assert_eq!(set.browser.visit(&url).await.status, 200);
            set.all_ready().await;
            set.all_can_call().await;
            let count = set.auth.count(Endpoint::Register);
            assert!(count <= registrations, "{count} registrations");
        })
        .await;
    }
}

#[tokio::test]
async fn b08_redirect_uris_that_the_authorization_server_makes_up_are_not_used() {
    protected(async |set| {
        let auth = set.auth.clone();
        set.auth.on(Endpoint::Register, move |asked| {
            let client = KnownClient {
                id: "made-up".to_owned(),
                redirect_uris: vec![asked.json["redirect_uris"][0].as_str().unwrap().to_owned()],
                ..agreed("none", "")
            };
            auth.add_client(client);
            let answer = json!({
                "client_id": "made-up", "token_endpoint_auth_method": "none",
                "redirect_uris": ["https://evil.example/callback"],
            });
            std::future::ready(Some(Reply::Raw(201, Vec::new(), answer.to_string().into())))
        });
        let url = set.add_protected().await;
        assert_eq!(redirect_uri(&url).host_str(), Some("127.0.0.1"));
        set.browser.visit(&url).await;
        set.all_ready().await;
    })
    .await;
}

#[tokio::test]
async fn b08_a_client_that_the_token_endpoint_does_not_know_is_registered_anew() {
    protected(async |set| {
        let url = set.add_protected().await;
        // It is forgotten between the code and its redemption.
        let redirect = set.browser.decide(&url).await;
        set.auth.forget_clients();
        let page = set.browser.visit(&redirect).await;
        assert_eq!(page.status, 400);
        assert!(page.text.contains("invalid_client"), "{}", page.text);
        let sign_in = set.other().start_sign_in("s").await.unwrap();
        assert_eq!(set.browser.visit(&sign_in.auth_url).await.status, 200);
        set.all_ready().await;
        assert_eq!(set.auth.count(Endpoint::Register), 2);
    })
    .await;
}

#[tokio::test]
async fn b08_a_client_that_the_authorization_endpoint_does_not_permit_is_registered_anew() {
    for code in ["unauthorized_client", "invalid_client", "access_denied"] {
        protected(async |set| {
            let url = set.add_protected().await;
            set.auth.decide(Decision::Refuse(code, "not this one"));
            let page = set.browser.visit(&url).await;
            assert!(page.text.contains("not this one"), "{}", page.text);
            let sign_in = set.other().start_sign_in("s").await.unwrap();
            assert_eq!(set.browser.visit(&sign_in.auth_url).await.status, 200);
            set.all_ready().await;
            // What the user says is none of the client's business.
            let registrations = if code == "access_denied" { 1 } else { 2 };
            assert_eq!(set.auth.count(Endpoint::Register), registrations);
        })
        .await;
    }
}

/// The local addresses at which a process listens.
fn listens_at(pid: i32) -> Vec<std::net::SocketAddr> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let sockets: Vec<String> = links
        .filter_map(|link| std::fs::read_link(link.ok()?.path()).ok())
        .filter_map(|target| {
            let inode = target.to_str()?.strip_prefix("socket:[")?;
            Some(inode.trim_end_matches(']').to_owned())
        })
        .collect();
    let mut found = Vec::new();
    for table in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for line in text.lines().skip(1) {
            let fields: Vec<_> = line.split_whitespace().collect();
            let listens = fields[3] == "0A";
            if listens && sockets.iter().any(|inode| inode == fields[9]) {
                found.push(address(fields[1]));
            }
        }
    }
    found
}

/// `0100007F:1F90` and the like: words in the order of this host.
fn address(text: &str) -> std::net::SocketAddr {
    let (ip, port) = text.split_once(':').unwrap();
    let words = ip.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).unwrap();
        u32::from_str_radix(word, 16).unwrap().to_ne_bytes()
    });
    let bytes: Vec<u8> = words.flatten().collect();
    let ip = match <[u8; 4]>::try_from(&bytes[..]) {
        Ok(v4) => std::net::IpAddr::from(v4),
        Err(_) => std::net::IpAddr::from(<[u8; 16]>::try_from(&bytes[..]).unwrap()),
    };
    (ip, u16::from_str_radix(port, 16).unwrap()).into()
}

#[tokio::test]
async fn b10_the_callback_listens_on_the_families_of_its_name_and_nowhere_else() {
    let hosts = [
        ("127.0.0.1", &["127.0.0.1"][..]),
        ("[::1]", &["[::1]"]),
        ("localhost", &["127.0.0.1", "[::1]"]),
    ];
    for (host, addresses) in hosts {
        protected_with(watched().set("auth.callback_host", host), async |set| {
            assert!(listens_at(set.daemon.pid()).is_empty(), "nobody signs in");
            let url = set.add_protected().await;
            let back = redirect_uri(&url);
            assert_eq!(back.host_str(), Some(host));
            let port = set.callback_port();
            assert_eq!(back.port(), Some(port));
            for address in addresses {
                let place = format!("http://{address}:{port}/oauth/callback");
                let page = set.browser.get(&place).await;
                assert_eq!(page.status, 400, "{page:?}");
            }
            let listening = listens_at(set.daemon.pid());
            assert_eq!(listening.len(), addresses.len(), "{listening:?}");
            for address in listening {
                assert!(
                    address.ip().is_loopback() && address.port() == port,
                    "{address}"
                );
            }
            set.browser.visit(&url).await;
            set.all_ready().await;
            eventually("the listener to be gone", PATIENCE, async || {
                listens_at(set.daemon.pid()).is_empty().then_some(())
            })
            .await;
        })
        .await;
    }
}

#[tokio::test]
async fn b10_the_redirect_uri_of_a_client_is_sent_as_it_was_registered() {
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        protected(async |set| {
            let uri = format!("http://{host}:{}/oauth/callback", set.callback_port());
            let known = agreed("client_secret_basic", &uri);
            set.auth.add_client(known.clone());
            set.sign_in_as(set.spec_with(as_client(&known, &uri))).await;
            set.all_can_call().await;
            assert_eq!(
                set.auth.last(Endpoint::Authorize).param("redirect_uri"),
                uri
            );
            assert_eq!(set.auth.last(Endpoint::Token).param("redirect_uri"), uri);
            assert_eq!(set.auth.count(Endpoint::Register), 0);
        })
        .await;
    }
}

#[tokio::test]
async fn b10_a_server_of_one_family_is_found_by_the_name_of_both() {
    for (at, builder) in [
        ("[::1]", FakeMcp::modern()),
        ("127.0.0.1", FakeMcp::modern()),
    ] {
        let addr = format!("{at}:0").parse().unwrap();
        let mcp = builder.at(addr).tool(tool("echo")).start().await;
        let auth = FakeAuth::start().await;
        let origin = format!("http://localhost:{}", mcp.addr().port());
        let guard = Guard::at(&origin, &mcp, &auth);
        one_and_two_with(watched(), async |stage| {
            let spec = http_spec("S", &format!("{origin}/mcp"));
            stage.app().add("s", spec).await.unwrap();
            let url = stage.other().wait_authenticating("s").await;
            assert_eq!(Browser::new().visit(&url).await.status, 200);
            stage.other().wait_for("s", ConnectionState::Ready).await;
            stage.other().call_tool("s", "echo", "{}").await.unwrap();
            stage.daemon.assert_no_leaks();
        })
        .await;
        guard.assert_clean();
        auth.assert_clean();
    }
}

#[tokio::test]
async fn b11_where_nobody_can_register_the_message_says_what_to_configure() {
    protected(async |set| {
        set.auth.shape(|shape| shape.registers = false);
        set.app().add("s", set.spec()).await.unwrap();
        let outcome = set.other().start_sign_in("s").await;
        let facts = ErrorFacts::expect(outcome, Code::FailedPrecondition, "CREDENTIALS_REFUSED");
        assert!(
            facts.message.contains("authorization_code.client"),
            "{facts:?}"
        );
        let server = set.other().get("s").await.unwrap();
        assert_eq!(server.facts().auth_url, "");
        let (_, message) = server.failure();
        assert!(message.contains("authorization_code.client"), "{message}");
        // Which is enough.
        let uri = format!("http://127.0.0.1:{}/oauth/callback", set.callback_port());
        let known = agreed("none", &uri);
        set.auth.add_client(known.clone());
        let spec = set.spec_with(as_client(&known, ""));
        set.other()
            .update("s", spec, &["authorization"])
            .await
            .unwrap();
        set.browser.visit(&set.auth_url().await).await;
        set.all_ready().await;
        set.all_can_call().await;
        assert_eq!(set.auth.count(Endpoint::Register), 0);
    })
    .await;
}

#[tokio::test]
async fn b11_a_configured_client_comes_before_documents_and_registrations() {
    for way in ["none", "client_secret_basic", "client_secret_post"] {
        let document = "https://app.example/client.json";
        let builder = watched().set("auth.client_metadata_url", document);
        protected_with(builder, async |set| {
            set.auth.shape(|shape| shape.reads_client_documents = true);
            set.auth
                .metadata("token_endpoint_auth_methods_supported", json!([way]));
            let uri = format!("http://127.0.0.1:{}/oauth/callback", set.callback_port());
            let known = agreed(way, &uri);
            set.auth.add_client(known.clone());
            set.sign_in_as(set.spec_with(as_client(&known, ""))).await;
            set.auth.expire_tokens();
            set.all_can_call().await;
            assert_eq!(
                set.auth.last(Endpoint::Authorize).param("client_id"),
                known.id
            );
            // Without it, the document.
            set.other()
                .update("s", set.spec(), &["authorization"])
                .await
                .unwrap();
            set.browser.visit(&set.auth_url().await).await;
            set.all_ready().await;
            assert_eq!(
                set.auth.last(Endpoint::Authorize).param("client_id"),
                document
            );
            assert_eq!(set.auth.count(Endpoint::Register), 0);
        })
        .await;
    }
}

#[tokio::test]
async fn b11_a_client_is_registered_for_the_scopes_that_it_asks_for() {
    protected(async |set| {
        // Who registers without scopes gets these.
        set.auth.shape(|shape| {
            shape.default_scope = Some("basic");
            shape.scopes = Some("basic a b admin");
        });
        set.guard
            .rules(|rules| rules.scopes_supported = Some("a b"));
        set.sign_in().await;
        set.all_can_call().await;
        assert_eq!(set.auth.last(Endpoint::Register).json["scope"], "a b");
        // Not all that the authorization server knows.
        assert_eq!(set.auth.last(Endpoint::Authorize).scopes(), ["a", "b"]);
    })
    .await;
}

#[tokio::test]
async fn b11_a_registered_client_proves_itself_as_it_was_told() {
    let ways = [
        ("client_secret_basic", true),
        // Without a word it is Basic, if there is a secret.
        ("client_secret_basic", false),
        ("client_secret_post", true),
        ("none", true),
        ("none", false),
    ];
    for (way, said) in ways {
        protected(async |set| {
            set.auth.shape(|shape| {
                shape.client_auth = way;
                shape.says_client_auth = said;
            });
            set.sign_in().await;
            set.auth.expire_tokens();
            set.all_can_call().await;
            // So it does when it signs out, after a restart.
            set.restart().await;
            set.all_ready().await;
            let out = set.other().sign_out("s").await.unwrap();
            assert!(out.was_signed_in && out.revoked, "{out:?}");
            assert_eq!(set.auth.count(Endpoint::Register), 1);
            assert_eq!(
                set.auth.last(Endpoint::Register).json["application_type"],
                "native"
            );
        })
        .await;
    }
}

#[tokio::test]
async fn b11_without_a_word_about_pkce_nobody_signs_in_unless_it_is_said_to_be_there() {
    for methods in [Value::Null, json!(["plain"]), json!([])] {
        protected(async |set| {
            set.auth
                .metadata("code_challenge_methods_supported", methods.clone());
            set.app().add("s", set.spec()).await.unwrap();
            let outcome = set.other().start_sign_in("s").await;
            let facts =
                ErrorFacts::expect(outcome, Code::FailedPrecondition, "CREDENTIALS_REFUSED");
            assert!(facts.message.contains("PKCE"), "{facts:?}");
            assert!(facts.message.contains("assume_pkce"), "{facts:?}");
            assert_eq!(set.auth.count(Endpoint::Authorize), 0);
            let code = v1::AuthorizationCode {
                assume_pkce: true,
                ..Default::default()
            };
            let spec = set.spec_with(by_user(code));
            set.other()
                .update("s", spec, &["authorization"])
                .await
                .unwrap();
            set.browser.visit(&set.auth_url().await).await;
            set.all_ready().await;
            // It is used all the same.
            assert_eq!(
                set.auth
                    .last(Endpoint::Authorize)
                    .param("code_challenge_method"),
                "S256"
            );
        })
        .await;
    }
}

#[tokio::test]
async fn behaviour_64_the_callback_path_is_whatever_it_is_set_to() {
    for path in ["/done", "/a/b-c_d.e~f", "/"] {
        protected_with(watched().set("auth.callback_path", path), async |set| {
            let url = set.add_protected().await;
            assert_eq!(redirect_uri(&url).path(), path);
            assert_eq!(set.browser.visit(&url).await.status, 200);
            set.all_ready().await;
            set.all_can_call().await;
        })
        .await;
    }
}

#[tokio::test]
async fn a_proxy_before_the_callback_is_where_browsers_are_sent_to() {
    let public = "https://sidecar.example/oauth/callback";
    protected_with(watched().set("auth.callback_url", public), async |set| {
        let url = set.add_protected().await;
        assert_eq!(redirect_uri(&url).as_str(), public);
        let redirect = set.browser.decide(&url).await;
        assert!(redirect.starts_with(public), "{redirect}");
        // The proxy passes it on.
        let local = format!("http://127.0.0.1:{}/oauth/callback", set.callback_port());
        let page = set.browser.get(&redirect.replace(public, &local)).await;
        assert_eq!(page.status, 200, "{page:?}");
        set.all_ready().await;
        set.all_can_call().await;
        assert_eq!(
            set.auth.last(Endpoint::Register).json["application_type"],
            "web"
        );
    })
    .await;
}

#[tokio::test]
async fn an_app_that_receives_the_redirect_itself_hands_it_over() {
    protected(async |set| {
        let uri = "https://app.example/callback?tenant=1";
        let code = v1::AuthorizationCode {
            redirect_uri: uri.to_owned(),
            ..Default::default()
        };
        let url = set.add_protected_as(set.spec_with(by_user(code))).await;
        let redirect = set.browser.decide(&url).await;
        assert!(redirect.starts_with(uri), "{redirect}");
        let done = set.other().complete_sign_in(&redirect).await.unwrap();
        assert_eq!(done.state(), v1::SignInState::Succeeded);
        set.all_ready().await;
        set.all_can_call().await;
    })
    .await;
}
