//! The listener over TCP, for apps that cannot reach the socket: who has a token comes in, as whom the token says, and into the
//! namespaces that it names.

mod sdks;

use hyper_util::rt::{TokioExecutor, TokioIo};
use mcp_sidecar_tests::daemon::programs;
use mcp_sidecar_tests::fake::showcase;
use mcp_sidecar_tests::fake_auth::planted::plant;
use mcp_sidecar_tests::peers::install::installed;
use mcp_sidecar_tests::peers::programs::{blocks, need, run};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::workspace_dir;
use mcp_sidecar_tests::v1::Isolation;
use mcp_sidecar_tests::v1::server_service_client::ServerServiceClient;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::process::Command;
use tonic::Status;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::ServerReflectionRequest;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;

use crate::interop::python_stubs;

/// Whether an app is served: what it lists, or why not.
async fn lists(app: &Clients) -> Result<(), Status> {
    let request = v1::ListServersRequest {
        namespace: app.namespace(),
        ..Default::default()
    };
    match app.servers().list_servers(request).await {
        // It may use a namespace in which there is nothing yet.
        Err(status) if status.code() == Code::NotFound => Ok(()),
        other => other.map(drop),
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(outcome: Result<T, Status>) -> ErrorFacts {
    ErrorFacts::expect(outcome, Code::Unauthenticated, "APP_TOKEN_REQUIRED")
}

/// Ports at which a process listens, in hexadecimal, as the kernel tells them.
fn listening(pid: i32) -> Vec<String> {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = fds.flatten().filter_map(|fd| fd.path().read_link().ok());
    let own: Vec<_> = links
        .map(|link| link.to_string_lossy().into_owned())
        .collect();
    let mut ports = Vec::new();
    for table in ["tcp", "tcp6"] {
        let text = std::fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap();
        for line in text.lines().skip(1) {
            let fields: Vec<_> = line.split_whitespace().collect();
            let (address, state, inode) = (fields[1], fields[3], fields[9]);
            if state == "0A" && own.contains(&format!("socket:[{inode}]")) {
                ports.push(address.rsplit_once(':').unwrap().1.to_owned());
            }
        }
    }
    ports
}

#[tokio::test]
async fn nobody_listens_on_tcp_unless_the_operator_wants_it() {
    let daemon = TestDaemon::start().await;
    let operator = daemon.operator().await;
    assert_eq!(operator.status().await.tcp_address, "");
    assert_eq!(listening(daemon.pid()), Vec::<String>::new());
    // Tokens can be made beforehand.
    operator.token("early", &[]).await;

    let daemon = by_tcp().start().await;
    let address = daemon.tcp_address().await;
    let port: u16 = address.strip_prefix("127.0.0.1:").unwrap().parse().unwrap();
    assert_eq!(listening(daemon.pid()), [format!("{port:04X}")]);
    daemon.log_holds(&format!("tcp={address}")).await;
}

#[tokio::test]
async fn only_a_loopback_address_is_listened_on() {
    for address in [
        "0.0.0.0:7443",
        "192.0.2.1:7443",
        "[::]:7443",
        "[2001:db8::1]:0",
    ] {
        let (status, log) = TestDaemon::builder()
            .set("tcp.listen", address)
            .start_and_fail()
            .await;
        assert!(!status.success());
        let said = format!("`tcp.listen` is {address}, which others can reach");
        assert!(log.contains(&said), "{log}");
    }
    // One that is taken is named, with the key.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let builder = TestDaemon::builder().set("tcp.listen", address.as_str());
    let (status, log) = builder.start_and_fail().await;
    assert!(!status.success());
    assert!(
        log.contains(&address) && log.contains("`tcp.listen`"),
        "{log}"
    );
}

#[tokio::test]
async fn plain_stubs_and_a_token_are_enough() {
    need(
        "the story of an app with a token",
        &[("python3", "--version")],
    );
    let daemon = by_tcp().start().await;
    let fake = showcase().await;
    let app = daemon.clients().await;
    app.add("demo", http_spec("Demo", &fake.url()))
        .await
        .unwrap();
    app.wait_for("demo", ConnectionState::Ready).await;
    let (token, _) = daemon.operator().await.token("python", &[]).await;
    let stubs = tempfile::tempdir().unwrap();
    python_stubs(stubs.path()).await;
    let mut command = Command::new(installed("pyinterop").await.join("bin/python"));
    command
        .arg(workspace_dir().join("tests/interop/python/tcp_story.py"))
        .arg(daemon.tcp_address().await)
        .env("PYTHONPATH", stubs.path());
    let (success, said, errors) = run(&mut command, &token, PATIENCE).await;
    assert!(success, "{errors}");
    assert_eq!(
        said,
        "sum {\"sum\":5}\n\
         refused UNAUTHENTICATED APP_TOKEN_REQUIRED\n\
         refused UNAUTHENTICATED APP_TOKEN_REQUIRED\n"
    );
}

#[tokio::test]
async fn nothing_is_served_without_a_valid_token() {
    let daemon = by_tcp()
        .audited()
        .set("metrics.listen", "127.0.0.1:0")
        .start()
        .await;
    let operator = daemon.operator().await;
    let (token, id) = operator.token("good", &[]).await;
    assert!(lists(&daemon.guest(&token).await).await.is_ok());

    let stranger = daemon.over_tcp().await;
    let longer = format!("{token}x");
    let with_space = format!("Bearer  {token}");
    for value in [
        None,
        Some("Bearer mcps_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"),
        Some(&format!("Bearer {}", &token[..token.len() - 1])),
        Some(&format!("Bearer {longer}")),
        Some(&with_space),
        Some(&format!("Basic {token}")),
        Some(&token),
        Some(&format!("Bearer {id}")),
        Some("Bearer "),
    ] {
        let app = match value {
            None => stranger.clone(),
            Some(value) => stranger.clone().authorized(value),
        };
        let facts = refused(lists(&app).await);
        assert!(!facts.message.contains(&token), "{facts:?}");
        refused(app.try_updates("").await.map(drop));
        refused(app.remove("s").await);
        refused(app.status_of_health().await);
        refused(app.reflected().await);
        // What there is not is not told apart from what there is.
        refused(app.admin().get_status(v1::GetStatusRequest {}).await);
    }
    let twice = twice_authorized(&stranger, &token).await;
    assert!(refused(twice).message.contains("several tokens"));

    // With it there is everything that apps have on the socket, and nothing of the operator's.
    let app = daemon.guest(&token).await;
    app.status_of_health().await.unwrap();
    app.reflected().await.unwrap();
    let error = app.admin().get_status(v1::GetStatusRequest {}).await;
    assert_eq!(error.unwrap_err().code(), Code::Unimplemented);

    // Refusals are counted, and told in the log once for all of them; there is nobody to be audited.
    daemon.log_holds("requests over TCP were refused").await;
    assert_eq!(daemon.log().matches("over TCP were refused").count(), 1);
    let page = reqwest::get(format!(
        "http://{}/metrics",
        crate::metrics::address(&daemon)
    ));
    let page = within("the page", page)
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    let refused = page.lines().find(|line| {
        line.contains("ServerService/ListServers") && line.contains("UNAUTHENTICATED")
    });
    assert!(refused.is_some(), "{page}");
    app.remove("s").await.unwrap_err();
    let last = daemon.audit_of("the last one", |it| it["event"] == "remove_server");
    assert_eq!(last.await["token_name"], "good");
    let events: Vec<_> = daemon
        .audit()
        .iter()
        .map(|it| it["event"].clone())
        .collect();
    assert_eq!(events, ["create_app_token", "remove_server"]);
}

trait Infrastructure {
    async fn status_of_health(&self) -> Result<i32, Status>;
    async fn reflected(&self) -> Result<(), Status>;
}

impl Infrastructure for Clients {
    async fn status_of_health(&self) -> Result<i32, Status> {
        let mut health = HealthClient::new(self.tapped_channel());
        let answer = health.check(HealthCheckRequest::default()).await?;
        Ok(answer.into_inner().status)
    }

    async fn reflected(&self) -> Result<(), Status> {
        let mut reflection = ServerReflectionClient::new(self.tapped_channel());
        let request = ServerReflectionRequest {
            host: String::new(),
            message_request: Some(MessageRequest::ListServices(String::new())),
        };
        let requests = futures_util::stream::iter([request]);
        let answers = reflection.server_reflection_info(requests).await?;
        answers.into_inner().message().await.map(drop)
    }
}

/// A request with the same token twice.
async fn twice_authorized(stranger: &Clients, token: &str) -> Result<(), Status> {
    let mut request = tonic::Request::new(v1::ListServersRequest::default());
    for _ in 0..2 {
        let value = format!("Bearer {token}").parse().unwrap();
        request.metadata_mut().append("authorization", value);
    }
    let answer = stranger.servers().list_servers(request).await;
    answer.map(drop)
}

#[tokio::test]
async fn a_token_that_has_expired_is_of_no_use_and_what_is_under_way_with_it_ends() {
    let daemon = by_tcp().start().await;
    let operator = daemon.operator().await;
    let made = operator.create_token("short", &[], Some(seconds(2))).await;
    let made = made.unwrap();
    let known = made.token.unwrap();
    let (from, to) = (known.create_time.unwrap(), known.expire_time.unwrap());
    assert_eq!((to.seconds - from.seconds, to.nanos), (2, from.nanos));
    let app = daemon.guest(&made.secret).await;
    let mut updates = app.updates("").await;
    updates.snapshot().await;
    let end = loop {
        match updates.try_next().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("the stream ends with a status"),
            Err(status) => break status,
        }
    };
    refused(Err::<(), _>(end));
    let again = daemon.guest(&made.secret).await;
    let facts = refused(lists(&again).await);
    assert!(facts.message.contains("`short` has expired"), "{facts:?}");
    assert_eq!(facts.metadata["token_id"], known.token_id);

    // It is listed until another one is made.
    assert_eq!(operator.app_tokens().await.len(), 1);
    let (_, next) = operator.token("next", &[]).await;
    let left = operator.app_tokens().await;
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].token_id, next);
}

#[tokio::test]
async fn a_revoked_token_ends_what_is_under_way_with_it_and_nothing_else() {
    let daemon = by_tcp().start().await;
    let fake = FakeMcp::modern().tool(tool("slow")).start().await;
    fake.reply("tools/call", |_| Reply::Hang);
    let app = daemon.clients().await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let operator = daemon.operator().await;
    let (lost, id) = operator.token("lost", &[]).await;
    let (kept, _) = operator.token("kept", &[]).await;
    // Two apps share one connection, as channels of one process do in some libraries, and each has its token.
    let shared = daemon.over_tcp().await;
    let (guest, other) = (shared.clone().bearing(&lost), shared.bearing(&kept));
    let (mut gone, mut stays) = (guest.updates("").await, other.updates("").await);
    gone.snapshot().await;
    stays.snapshot().await;
    let calling = tokio::spawn({
        let guest = guest.clone();
        async move { guest.call_tool("s", "slow", "{}").await }
    });
    let streaming = tokio::spawn({
        let guest = guest.clone();
        async move { guest.call_stream("s", "slow", "{}").await?.collect().await }
    });
    eventually("the calls at the server", PATIENCE, async || {
        (fake.seen_of("tools/call").len() == 2).then_some(())
    })
    .await;

    let was = operator.revoke_token(&id).await.unwrap();
    assert_eq!(
        (was.token_id.as_str(), was.name.as_str()),
        (id.as_str(), "lost")
    );
    refused(gone.try_next().await);
    refused(within("the call", calling).await.unwrap());
    refused(within("the stream", streaming).await.unwrap());
    // The server is told that nobody waits any more.
    for seen in fake.seen_of("tools/call") {
        fake.wait_dropped(seen.index).await;
    }
    refused(lists(&guest).await);
    ErrorFacts::expect(
        operator.revoke_token(&id).await,
        Code::NotFound,
        "APP_TOKEN_NOT_FOUND",
    );
    // The other one did not notice.
    app.add("t", http_spec("T", &fake.url())).await.unwrap();
    stays
        .server_where("the new server", |it| it.id == "t")
        .await;
    assert!(lists(&other).await.is_ok());
}

#[tokio::test]
async fn a_connection_is_closed_when_nobody_on_it_has_a_valid_token() {
    let daemon = by_tcp().start().await;
    let operator = daemon.operator().await;
    let (token, id) = operator.token("lost", &[]).await;
    let address = daemon.tcp_address().await;
    let stream = TcpStream::connect(&address).await.unwrap();
    let io = TokioIo::new(stream);
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
    let (sender, connection) = handshake.await.unwrap();
    let connection = tokio::spawn(connection);
    let service = tower::service_fn(move |request| sender.clone().send_request(request));
    let origin = format!("http://{address}").parse().unwrap();
    let mut servers = ServerServiceClient::with_origin(service, origin);
    let mut request = tonic::Request::new(v1::ListServersRequest::default());
    let value = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    servers.list_servers(request).await.unwrap();
    operator.revoke_token(&id).await.unwrap();
    let closed = within("the end of the connection", connection).await;
    closed.unwrap().unwrap();
}

#[tokio::test]
async fn a_token_opens_its_namespaces_and_tells_nothing_of_others() {
    let daemon = by_tcp()
        .access("[{ uid = 4000000, namespaces = [\"nothing\"] }]")
        .start()
        .await;
    let fake = FakeMcp::modern().tool(tool("echo")).start().await;
    let operator = daemon.operator().await;
    let (token, _) = operator.token("everything", &["*"]).await;
    let all = daemon.guest(&token).await;
    for namespace in ["default", "team-a", "other"] {
        let app = all.in_namespace(namespace);
        app.add("s", http_spec("S", &fake.url())).await.unwrap();
        app.wait_for("s", ConnectionState::Ready).await;
    }
    let (token, id) = operator.token("crew", &["team-*", "lab"]).await;
    let app = daemon.guest(&token).await;
    for namespace in ["team-a", "team-", "team-b", "lab"] {
        lists(&app.in_namespace(namespace)).await.unwrap();
    }
    let known = app
        .in_namespace("team-a")
        .call_tool("s", "echo", "{}")
        .await;
    known.unwrap();
    // The same whether it exists or not, for whatever is asked.
    let mut said = Vec::new();
    for namespace in ["other", "nowhere", "default", "laboratory", "team"] {
        let app = app.in_namespace(namespace);
        for outcome in [
            lists(&app).await,
            app.get("s").await.map(drop),
            app.call_tool("s", "echo", "{}").await.map(drop),
            app.try_updates("").await.map(drop),
            app.add("x", http_spec("X", &fake.url())).await.map(drop),
        ] {
            let facts = ErrorFacts::expect(outcome, Code::PermissionDenied, "CALLER_NOT_ALLOWED");
            assert_eq!(facts.metadata["token_id"], id);
            assert_eq!(facts.metadata["namespace"], namespace);
            assert!(!facts.metadata.contains_key("uid"), "{facts:?}");
            said.push(facts.message.replace(namespace, "N"));
        }
    }
    said.dedup();
    assert_eq!(said.len(), 1, "{said:#?}");
    // Who follows everything follows what it may see.
    let request = v1::StreamUpdatesRequest {
        namespaces: vec!["*".to_owned()],
        ..Default::default()
    };
    let mut updates = app.updates_with(request).await.unwrap();
    let snapshot = updates.snapshot().await;
    let seen: Vec<_> = snapshot
        .iter()
        .map(|resource| match resource {
            v1::upsert::Resource::Server(server) => server.namespace.as_str(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(seen, ["team-a"]);
    // Whoever gets none named has the default one.
    let (token, _) = operator.token("plain", &[]).await;
    let plain = daemon.guest(&token).await;
    plain.get("s").await.unwrap();
    assert!(lists(&plain.in_namespace("other")).await.is_err());
}

#[tokio::test]
async fn what_names_another_host_is_refused_whatever_it_brings() {
    let daemon = by_tcp().start().await;
    let (token, _) = daemon.operator().await.token("t", &[]).await;
    let address = daemon.tcp_address().await;
    let (_, port) = address.rsplit_once(':').unwrap();
    let named = async |authority: String| {
        let target = address.clone();
        let connector = tower::service_fn(move |_: http::Uri| {
            let target = target.clone();
            async move {
                let stream = TcpStream::connect(target).await?;
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        let endpoint = Endpoint::from_shared(format!("http://{authority}")).unwrap();
        let channel = endpoint.connect_with_connector(connector).await.unwrap();
        lists(&Clients::over(channel).bearing(&token)).await
    };
    for host in ["127.0.0.1", "localhost", "LocalHost", "[::1]", "127.1.2.3"] {
        named(format!("{host}:{port}")).await.unwrap();
    }
    for authority in [
        format!("evil.example:{port}"),
        format!("localhost.evil.example:{port}"),
        format!("192.0.2.1:{port}"),
        "localhost".to_owned(),
        "localhost:1".to_owned(),
    ] {
        let refused = named(authority.clone()).await;
        let facts = ErrorFacts::expect(refused, Code::InvalidArgument, "INVALID_FIELD");
        assert_eq!(facts.field, ":authority", "{authority}");
    }

    // No browser speaks HTTP/2 without TLS, and nothing else is spoken.
    let mut browser = TcpStream::connect(&address).await.unwrap();
    let request = format!(
        "POST /mcpsidecar.v1.ServerService/ListServers HTTP/1.1\r\nHost: {address}\r\n\
         Authorization: Bearer {token}\r\nContent-Type: application/grpc\r\nContent-Length: 5\r\n\r\n\0\0\0\0\0"
    );
    browser.write_all(request.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    within(
        "the end of the connection",
        browser.read_to_end(&mut answer),
    )
    .await
    .ok();
    let text = String::from_utf8_lossy(&answer);
    assert!(!text.contains("HTTP/1"), "{text}");
}

#[tokio::test]
async fn whoever_bears_a_token_is_named_by_it() {
    let daemon = by_tcp().audited().start().await;
    let fake = FakeMcp::modern().tool(tool("echo")).start().await;
    let operator = daemon.operator().await;
    let (token, id) = operator.token("build", &[]).await;
    let app = daemon.guest(&token).await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    app.call_tool("s", "echo", "{}").await.unwrap();
    let call = app.detach("s", "echo", "{}").await;
    app.wait_call(&call).await;
    let _updates = app.updates("").await;

    let apps = operator.apps().await;
    let guests: Vec<_> = apps
        .iter()
        .filter(|app| app.socket() == v1::AppSocket::Tcp)
        .collect();
    assert_eq!(guests.len(), 1, "{apps:#?}");
    let guest = guests[0];
    assert_eq!((&*guest.token_id, &*guest.token_name), (&*id, "build"));
    assert_eq!((guest.pid, guest.rpcs_under_way), (0, 1));
    assert_eq!((&*guest.program, guest.follows.len()), ("", 1));
    assert!(apps.iter().filter(|app| app.token_id.is_empty()).count() == 1);

    operator.revoke_token(&id).await.unwrap();
    let revoked = daemon
        .audit_of("the end of it", |it| it["event"] == "revoke_app_token")
        .await;
    let made = daemon
        .audit_of("its making", |it| it["event"] == "create_app_token")
        .await;
    for record in [&made, &revoked] {
        assert_eq!(record["app_token"], id);
        assert_eq!(record["uid"], rustix::process::getuid().as_raw());
        assert_eq!(record["token_id"], Value::Null);
    }
    let all = daemon.audit();
    let of_guest: Vec<_> = all
        .iter()
        .filter(|record| record["token_id"] == id)
        .collect();
    let events: Vec<_> = of_guest.iter().map(|it| &it["event"]).collect();
    assert_eq!(events, ["add_server", "tool_call", "tool_call"]);
    for record in of_guest {
        assert_eq!(record["token_name"], "build");
        assert!(record["rpc_id"].is_string());
        for unknown in ["uid", "gid", "pid", "program"] {
            assert_eq!(record[unknown], Value::Null, "{record:#}");
        }
    }
}

#[tokio::test]
async fn a_token_is_a_user_of_its_own() {
    let daemon = by_tcp().set("limits.connections_per_user", 2).start().await;
    let fake = FakeMcp::legacy().tool(tool("who")).start().await;
    fake.reply("tools/call", |seen| {
        let session = seen.header("mcp-session-id").to_owned();
        Reply::Json(json!({"content": [{"type": "text", "text": session}]}))
    });
    let local = daemon.clients().await;
    let mut spec = http_spec("S", &fake.url());
    spec.isolation = Isolation::PerUser.into();
    local.add("s", spec).await.unwrap();
    local.wait_for("s", ConnectionState::Ready).await;
    let operator = daemon.operator().await;
    let (one, _) = operator.token("one", &[]).await;
    let (two, _) = operator.token("two", &[]).await;
    let session = async |app: &Clients| text_of(&app.call_tool("s", "who", "{}").await.unwrap());
    let first = daemon.guest(&one).await;
    let sessions = [
        session(&local).await,
        session(&first).await,
        session(&daemon.guest(&two).await).await,
    ];
    let distinct: std::collections::BTreeSet<_> = sessions.iter().collect();
    assert_eq!(distinct.len(), 3, "{sessions:?}");
    // Another connection of the same token goes on where the first one is.
    let again = daemon.guest(&one).await;
    assert_eq!(session(&again).await, sessions[1]);
    // That makes two connections. A third has to wait; those of other tokens are no matter.
    let third = daemon.guest(&one).await;
    ErrorFacts::expect(lists(&third).await, Code::ResourceExhausted, "TOO_MANY");
    assert!(lists(&daemon.guest(&two).await).await.is_ok());
    drop(again);
    eventually("a place for the third", PATIENCE, async || {
        lists(&third).await.ok()
    })
    .await;
}

#[tokio::test]
async fn tokens_have_bounds_and_only_the_operator_makes_them() {
    let daemon = by_tcp().set("limits.app_tokens", 2).start().await;
    let operator = daemon.operator().await;
    for (name, namespaces, lifetime, field) in [
        ("", &[][..], None, "name"),
        ("two words", &[], None, "name"),
        ("n", &["ok", "not/ok"], None, "namespaces.1"),
        ("n", &[], Some(seconds(0)), "lifetime"),
        ("n", &[], Some(seconds(400_000_000)), "lifetime"),
    ] {
        let refused = operator.create_token(name, namespaces, lifetime).await;
        let facts = ErrorFacts::expect(refused, Code::InvalidArgument, "INVALID_FIELD");
        assert_eq!(facts.field, field);
    }
    let (_, first) = operator.token("same", &["a", "b-*"]).await;
    let (second, _) = operator.token("same", &[]).await;
    let refused = operator.create_token("third", &[], None).await;
    ErrorFacts::expect(refused, Code::ResourceExhausted, "TOO_MANY");
    let known = operator.app_tokens().await;
    assert_eq!(known.len(), 2);
    assert_eq!(known[0].token_id, first);
    assert_eq!(known[0].namespaces, ["a", "b-*"]);
    assert_eq!(known[1].namespaces, ["default"]);
    assert!(
        known
            .iter()
            .all(|it| it.name == "same" && it.expire_time.is_none())
    );
    operator.revoke_token(&first).await.unwrap();
    operator.token("third", &[]).await;

    // Neither on the socket for apps nor over TCP is there such a service.
    for app in [daemon.clients().await, daemon.guest(&second).await] {
        let refused = app.create_token("mine", &["*"], None).await;
        assert_eq!(refused.unwrap_err().code(), Code::Unimplemented);
    }
}

#[tokio::test]
async fn a_token_lasts_over_restarts_and_is_nowhere_to_be_read() {
    let mut daemon = by_tcp()
        .audited()
        .set("audit.arguments", true)
        .watched()
        .start()
        .await;
    let fake = FakeMcp::modern().tool(tool("echo")).start().await;
    // The one answer that shows it is not recorded.
    let operator = Clients::connect(&daemon.admin_socket()).await;
    let (token, id) = operator.token("lasting", &[]).await;
    let (gone, other) = operator.token("gone", &[]).await;
    for token in [&token, &gone] {
        assert!(token.starts_with("mcps_") && token.len() == 48, "{token}");
        plant(token.clone());
        plant(&token["mcps_".len()..]);
    }
    operator.revoke_token(&other).await.unwrap();
    let app = daemon.guest(&token).await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    app.call_tool("s", "echo", "{}").await.unwrap();
    refused(lists(&daemon.guest(&gone).await).await);

    daemon.kill9().await;
    daemon.restart().await;
    let operator = daemon.operator().await;
    let known = operator.app_tokens().await;
    assert_eq!(known.len(), 1);
    assert_eq!((&*known[0].token_id, &*known[0].name), (&*id, "lasting"));
    let app = daemon.guest(&token).await;
    app.wait_for("s", ConnectionState::Ready).await;
    app.call_tool("s", "echo", "{}").await.unwrap();
    refused(lists(&daemon.guest(&gone).await).await);
    operator.apps().await;
    // Servers are told nothing of it either.
    for seen in fake.seen() {
        assert!(!format!("{seen:?}").contains(&token[5..]), "{seen:?}");
    }
    daemon.assert_no_leaks();
    daemon.terminate().await;
    daemon.assert_no_leaks();
}

#[tokio::test]
async fn a_token_means_nothing_on_the_socket() {
    let daemon = by_tcp()
        .access("[{ uid = 4000000, namespaces = [\"nothing\"] }]")
        .start()
        .await;
    let (token, _) = daemon.operator().await.token("everything", &["*"]).await;
    // There the kernel names the caller, and the rules go by that.
    let app = daemon.clients().await.bearing(&token);
    ErrorFacts::expect(
        lists(&app).await,
        Code::PermissionDenied,
        "CALLER_NOT_ALLOWED",
    );
    let daemon = by_tcp().start().await;
    let app = daemon.clients().await.bearing("mcps_nonsense");
    assert!(lists(&app).await.is_ok());
}

#[tokio::test]
async fn what_the_readme_says_of_it_is_so() {
    need("the README's way over TCP", &[("go", "version")]);
    let readme = std::fs::read_to_string(workspace_dir().join("README.md")).unwrap();
    let (_, section) = readme
        .split_once("\n## If a client cannot reach the socket\n")
        .unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    let place = tempfile::tempdir().unwrap();
    let page = place.path().join("section.md");
    std::fs::write(&page, section).unwrap();
    let [config, commands] = ["toml", "sh"].map(|language| blocks(&page, language));
    let written = "127.0.0.1:7443";
    assert_eq!(config, [format!("[tcp]\nlisten = \"{written}\"\n")]);

    let daemon = by_tcp().start().await;
    let fake = FakeMcp::modern().tool(tool("of-the-readme")).start().await;
    let app = daemon.clients().await;
    app.add("s", http_spec("S", &fake.url())).await.unwrap();
    app.wait_for("s", ConnectionState::Ready).await;
    let commands = commands
        .concat()
        .replace(written, &daemon.tcp_address().await);
    let mut path = programs().await.as_os_str().to_owned();
    path.push(":");
    path.push(installed("grpcurl").await);
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap());
    let mut shell = Command::new("sh");
    shell
        .args(["-euc", &commands])
        .current_dir(place.path())
        .env("PATH", path)
        .env("MCP_SIDECAR_SOCKET", daemon.socket());
    let (success, said, errors) = run(&mut shell, "", PATIENCE).await;
    assert!(success, "{errors}");
    // By grpcurl and by the command line.
    assert!(said.matches("of-the-readme").count() >= 2, "{said}");
    assert_eq!(daemon.operator().await.app_tokens().await, []);
    let token = std::fs::read_to_string(place.path().join("token")).unwrap();
    refused(lists(&daemon.guest(token.trim_end()).await).await);
}

#[tokio::test]
async fn connections_without_a_token_take_no_place_on_the_sockets() {
    let daemon = by_tcp().set("limits.connections", 4).start().await;
    let (token, _) = daemon.operator().await.token("t", &[]).await;
    let address = daemon.tcp_address().await;
    let mut silent = Vec::new();
    for _ in 0..4 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    // Accepted in order, so this one finds all places taken.
    let mut late = TcpStream::connect(&address).await.unwrap();
    let closed = within("the end of the fifth", late.read(&mut [0])).await;
    assert!(!matches!(closed, Ok(1..)), "{closed:?}");
    daemon.log_holds("`limits.connections` are open").await;
    lists(&daemon.clients().await).await.unwrap();
    daemon.operator().await.status().await;
    drop(silent);
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let guest = Clients::over(endpoint.connect_lazy()).bearing(&token);
    eventually("a place", PATIENCE, async || lists(&guest).await.ok()).await;
}
