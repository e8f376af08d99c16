//! Custom headers: who gets them, in which form, and for how long.

use http::Method;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::UnixSocketProtocol;

fn set(spec: &mut ServerSpec, headers: &[(&str, &str)]) {
    let headers = headers.iter().map(|(name, value)| v1::Header {
        name: (*name).to_owned(),
        value: (*value).to_owned(),
    });
    match spec.transport.as_mut().expect("a transport") {
        v1::server_spec::Transport::Http(http) => http.headers = headers.collect(),
        v1::server_spec::Transport::UnixSocket(socket) => socket.headers = headers.collect(),
        v1::server_spec::Transport::Stdio(_) => panic!("a process has no headers"),
    }
}

/// A server of each kind that is sent headers, with its settings.
async fn kinds() -> Vec<(String, FakeMcp, ServerSpec)> {
    let builders = [
        FakeMcp::modern(),
        FakeMcp::legacy(),
        FakeMcp::legacy().http_sse(),
        FakeMcp::modern().on_socket(),
    ];
    let mut kinds = Vec::new();
    for (number, builder) in builders.into_iter().enumerate() {
        let fake = builder.tool(tool("echo")).start().await;
        let name = format!("s-{number}");
        let spec = if number == 3 {
            socket_spec(&name, &fake.socket(), UnixSocketProtocol::Http)
        } else {
            http_spec(&name, &fake.url())
        };
        kinds.push((name, fake, spec));
    }
    kinds
}

/// Calls, hears a notification and leaves, so that every kind of request was sent; then checks each of them.
async fn every_request(
    stage: &Stage,
    kinds: &[(String, FakeMcp, ServerSpec)],
    check: impl Fn(&Seen),
) {
    for (name, fake, _) in kinds {
        for app in &stage.apps {
            app.call_tool(name, "echo", "{}").await.unwrap();
        }
        fake.notify("notifications/tools/list_changed").await;
        stage.other().disconnect_server(name).await.unwrap();
        let seen = fake.seen();
        for method in [Method::POST, Method::GET, Method::DELETE] {
            let expected = match method {
                Method::GET => name == "s-1" || name == "s-2",
                Method::DELETE => name == "s-1",
                _ => true,
            };
            let found = seen.iter().any(|seen| seen.http == method);
            assert_eq!(found, expected, "{name}: {method}");
        }
        seen.iter().for_each(&check);
    }
}

#[tokio::test]
async fn behaviour_34_there_is_one_authorization_header_however_it_is_spelt() {
    let spellings: [&[(&str, &str)]; 4] = [
        &[("authorization", "Bearer of-mine")],
        &[("AUTHORIZATION", "Bearer of-mine")],
        &[("aUtHoRiZaTiOn", "Bearer of-mine")],
        // Of two the last counts.
        &[
            ("Authorization", "Basic before"),
            ("authorization", "Bearer of-mine"),
        ],
    ];
    one_and_two(async |mut stage| {
        let mut kinds = kinds().await;
        for spelling in spellings {
            for (name, _, spec) in &mut kinds {
                set(spec, spelling);
                stage.add(name, spec.clone()).await;
            }
            stage.restart().await;
            for (name, fake, _) in &kinds {
                stage.other().wait_for(name, ConnectionState::Ready).await;
                fake.wait("a request", |_| true).await;
            }
            every_request(&stage, &kinds, |seen| {
                let values: Vec<_> = seen.headers.get_all("authorization").iter().collect();
                assert_eq!(values, ["Bearer of-mine"], "{seen:?}");
            })
            .await;
            for (name, ..) in &kinds {
                stage.other().remove(name).await.unwrap();
            }
            kinds = self::kinds().await;
        }
    })
    .await;
}

#[tokio::test]
async fn behaviour_36_headers_of_every_form_survive_a_restart() {
    let long = "v".repeat(8 * 1024);
    let forms: Vec<(&str, &str)> = vec![
        ("X-Key", "kept-secret"),
        ("x-lower", "kept-secret b;c=\"d\", e\tf"),
        ("X-UPPER", "kept-secret=="),
        ("!#$%&'*+-.^_`|~09aZ", "kept-secret"),
        ("X-Twice", "kept-secret one"),
        ("x-tWICE", "kept-secret two"),
        ("X-Words", "kept-secret grüße €"),
        ("X-Long", &long),
        ("Cookie", "kept-secret=1; b=2"),
        ("Authorization", "Bearer kept-secret"),
    ];
    one_and_two(async |mut stage| {
        let mut kinds = kinds().await;
        for (name, _, spec) in &mut kinds {
            set(spec, &forms);
            stage.add(name, spec.clone()).await;
        }
        for kill in [false, true] {
            if kill {
                stage.daemon.kill9().await;
            }
            stage.restart().await;
            for (name, ..) in &kinds {
                stage.other().wait_for(name, ConnectionState::Ready).await;
            }
        }
        every_request(&stage, &kinds, |seen| {
            for (name, _) in &forms {
                let found: Vec<_> = seen.headers.get_all(*name).iter().collect();
                let same = |other: &&(&str, &str)| other.0.eq_ignore_ascii_case(name);
                let wanted: Vec<_> = forms.iter().filter(same).map(|(_, it)| *it).collect();
                let found: Vec<_> = found.iter().map(|it| it.as_bytes()).collect();
                let wanted: Vec<_> = wanted.iter().map(|it| it.as_bytes()).collect();
                assert_eq!(found, wanted, "{name}: {seen:?}");
            }
        })
        .await;
        // Nobody is shown a value, and nothing of them is in a log or lies about in clear.
        let shown = format!("{:?}", stage.other().list().await);
        assert!(!shown.contains("kept-secret"), "{shown}");
        assert!(!stage.daemon.log().contains("kept-secret"));
        for entry in std::fs::read_dir(stage.daemon.data_dir()).unwrap() {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap_or_default();
            let clear = bytes.windows(11).any(|part| part == b"kept-secret");
            assert!(!clear, "{}", path.display());
        }
    })
    .await;
}
