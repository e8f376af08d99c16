//! Servers and apps that mean harm, or do it by accident: everyone else goes on as if they were not there.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use bytes::Bytes;
use mcp_sidecar_tests::fake::stream;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::upsert::Resource;

/// The result of a call with one text.
fn said(text: &str) -> Value {
    json!({"content": [{"type": "text", "text": text}]})
}

/// Number of file descriptors that the daemon has open.
fn descriptors(daemon: &TestDaemon) -> usize {
    let open = std::fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    open.count()
}

/// Ids of the servers that the daemon has on disk, from the update stream's snapshot.
async fn stored(app: &Clients) -> BTreeSet<String> {
    let held = app.updates("").await.snapshot().await;
    let ids = held.into_iter().filter_map(|held| match held {
        Resource::Server(server) => Some(server.id),
        Resource::Elicitation(_) | Resource::SamplingRequest(_) | Resource::Call(_) => None,
    });
    ids.collect()
}

/// Ids of the servers that the daemon works with.
async fn listed(app: &Clients) -> BTreeSet<String> {
    let servers = app.list().await.into_iter();
    servers.map(|server| server.id).collect()
}

/// A legacy server that asks for a sign of life, `count` times, and never takes the answers.
async fn deaf(app: &Clients, id: &str, count: usize) -> FakeMcp {
    let fake = FakeMcp::echo(false).await;
    // Answers of the client are POSTs without a method.
    fake.reply("POST", |_| Reply::Hang);
    fake.on("GET", move |_| {
        std::future::ready(stream(async move |writer| {
            for number in 0..count {
                let ping = json!({"jsonrpc": "2.0", "id": number, "method": "ping"});
                writer.message(&ping).await;
            }
            writer.closed().await;
        }))
    });
    let added = app.add(id, http_spec(id, &fake.url())).await.unwrap();
    assert_eq!(added.server.unwrap().state(), ConnectionState::Ready);
    fake.wait("an answer", |seen| {
        seen.http == http::Method::POST && seen.method().is_empty()
    })
    .await;
    fake
}

#[tokio::test]
async fn a_server_that_never_takes_an_answer_can_be_removed() {
    let daemon = TestDaemon::builder()
        .set("timeouts.close", "200ms")
        .start()
        .await;
    let app = daemon.clients().await;
    let _fake = deaf(&app, "deaf", 1).await;
    let removal = tokio::time::timeout(Duration::from_secs(10), app.remove("deaf")).await;
    removal.expect("RemoveServer ends").unwrap();
}

#[tokio::test]
async fn a_server_that_never_takes_an_answer_does_not_hold_up_the_end() {
    let mut daemon = TestDaemon::builder()
        .set("timeouts.close", "200ms")
        .start()
        .await;
    let app = daemon.clients().await;
    let _fake = deaf(&app, "deaf", 1).await;
    let status = daemon.terminate().await;
    assert!(status.success(), "{status}: {}", daemon.log());
}

#[tokio::test]
async fn a_flood_of_requests_does_not_use_up_the_descriptors() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = deaf(&app, "deaf", 3_000).await;
    // Time for the flood to arrive: what must not happen cannot be awaited.
    let start = Instant::now();
    let mut most = 0;
    while start.elapsed() < Duration::from_secs(5) && most < 1_000 {
        most = most.max(descriptors(&daemon));
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let asked = fake.seen().len();
    assert!(most < 700, "{most} descriptors, {asked} requests arrived");
}

#[tokio::test]
async fn a_server_that_is_slow_to_close_does_not_hold_up_other_namespaces() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let other = daemon.clients_in("other").await;
    let slow = FakeMcp::echo(false).await;
    slow.reply("DELETE", |_| Reply::Hang);
    let healthy = FakeMcp::echo(true).await;
    let generated = app.add_http("Slow", &slow.url()).await.id;

    // The connection is being closed, up to `timeouts.close`; meanwhile the server gets the id that the app wants.
    let request = v1::DisconnectServerRequest {
        namespace: app.namespace(),
        target: Some(v1::disconnect_server_request::Target::ServerId(generated)),
    };
    let mut servers = app.servers();
    let closing = tokio::spawn(async move { servers.disconnect_server(request).await });
    slow.wait("the end of the session", |seen| {
        seen.http == http::Method::DELETE
    })
    .await;
    let spec = http_spec("Slow", &slow.url());
    let (migrating, spec) = (app.clone(), spec);
    let migration = tokio::spawn(async move { migrating.add("slow", spec).await });
    // On disk the server has its new id: the migration is under way.
    let mut updates = app.updates("").await;
    updates
        .server_where("the new id", |server| server.id == "slow")
        .await;

    let start = Instant::now();
    other
        .add("", http_spec("Healthy", &healthy.url()))
        .await
        .unwrap();
    let took = start.elapsed();
    assert!(
        took < Duration::from_secs(2),
        "AddServer in another namespace took {took:?}"
    );
    migration.await.unwrap().unwrap();
    closing.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_app_that_gives_up_while_an_id_changes_leaves_no_ghost() {
    let daemon = TestDaemon::builder()
        .set("timeouts.close", "1s")
        .start()
        .await;
    let app = daemon.clients().await;
    let slow = FakeMcp::echo(false).await;
    slow.reply("DELETE", |_| Reply::Hang);
    let generated = app.add_http("Slow", &slow.url()).await.id;
    let request = v1::DisconnectServerRequest {
        namespace: app.namespace(),
        target: Some(v1::disconnect_server_request::Target::ServerId(generated)),
    };
    let mut servers = app.servers();
    let closing = tokio::spawn(async move { servers.disconnect_server(request).await });
    slow.wait("the end of the session", |seen| {
        seen.http == http::Method::DELETE
    })
    .await;
    let (impatient, spec) = (app.clone(), http_spec("Slow", &slow.url()));
    let migration = tokio::spawn(async move { impatient.add("slow", spec).await });
    let mut updates = app.updates("").await;
    updates
        .server_where("the new id", |server| server.id == "slow")
        .await;
    migration.abort();
    let _cancelled = migration.await;
    closing.await.unwrap().unwrap();

    assert_eq!(listed(&app).await, stored(&app).await, "memory and disk");
    app.remove("slow")
        .await
        .expect("what is on disk can be removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn apps_that_give_up_leave_no_ghosts() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let mut pause = 0_u64;
    for batch in 0..20 {
        let adding = (0..20).map(|number| {
            let (app, id) = (app.clone(), format!("s-{batch}-{number}"));
            let request = v1::AddServerRequest {
                server_id: id.clone(),
                spec: Some(http_spec(&id, &format!("http://127.0.0.1:9/{id}"))),
                register_only: true,
                ..Default::default()
            };
            pause = (pause + 7) % 31;
            let patience = Duration::from_millis(pause);
            async move {
                // Giving up resets the RPC at whatever it is doing; so does a removal.
                let _any = tokio::time::timeout(patience, app.add_with(request)).await;
                let _any = tokio::time::timeout(patience / 2, app.remove(&id)).await;
            }
        });
        futures_util::future::join_all(adding).await;
    }
    // What was given up may still be on its way to the disk.
    let ghosts = std::cell::RefCell::new(Vec::new());
    let agree = eventually("ids on disk and in memory agree", PATIENCE, async || {
        let (listed, stored) = (listed(&app).await, stored(&app).await);
        *ghosts.borrow_mut() = listed.symmetric_difference(&stored).cloned().collect();
        ghosts.borrow().is_empty().then_some(())
    });
    let agreed = tokio::time::timeout(PATIENCE / 2, agree).await;
    let ghosts = ghosts.borrow();
    assert!(
        agreed.is_ok(),
        "on disk or in memory, but not both: {ghosts:?}"
    );
}

#[tokio::test]
async fn a_change_that_follows_a_burst_of_log_messages_is_seen() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let scripts = tempfile::tempdir().unwrap();
    let spec = Script::faulty(StdioFault::ChatterOnCall(1_000))
        .spec("chatty", scripts.path())
        .await;
    let id = app.add_ready(spec).await.id;
    let mut updates = app.updates("").await;
    for round in 1..=3 {
        app.call_tool(&id, "echo", "{}").await.unwrap();
        updates
            .server_where(&format!("the tool of call {round} in the list"), |server| {
                server.tool_count() == 3 + round
            })
            .await;
    }
}

#[tokio::test]
async fn what_a_removed_server_leaves_running_costs_no_descriptors() {
    let daemon = TestDaemon::builder()
        .set("timeouts.close", "100ms")
        .start()
        .await;
    let app = daemon.clients().await;
    let scripts = tempfile::tempdir().unwrap();
    let healthy = Script::healthy(false).spec("s", scripts.path()).await;
    let Some(v1::server_spec::Transport::Stdio(healthy)) = healthy.transport else {
        unreachable!("a script is a child process");
    };
    // A grandchild in a session of its own keeps the pipes open; it ends by itself.
    let line = format!(
        "setsid sleep 30 & exec '{}' '{}'",
        healthy.command, healthy.args[0]
    );
    let arguments = ["-c".to_owned(), line];
    let rounds = 5;
    let before = descriptors(&daemon);
    for _ in 0..rounds {
        let id = app.add_stdio("Leaver", "/bin/sh", &arguments).await.id;
        app.remove(&id).await.unwrap();
    }
    let after = descriptors(&daemon);
    assert!(
        after < before + rounds,
        "{before} descriptors before, {after} after {rounds} servers came and went"
    );
}

#[tokio::test]
async fn a_stream_that_ends_at_once_is_not_opened_in_a_loop() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(false).await;
    fake.reply("GET", |_| {
        Reply::Sse(vec![Step::Bytes("retry: 0\n\n".into())])
    });
    app.add_http("Restless", &fake.url()).await;
    // A rate is what this is about.
    let before = fake.seen().len();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let requests = fake.seen().len() - before;
    assert!(requests < 60, "{requests} requests within 3 seconds");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_decompresses_without_end_is_cut_off() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let healthy = FakeMcp::echo(true).await;
    let well = app.add_http("Healthy", &healthy.url()).await.id;
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let comments = ":\n".repeat(1 << 20);
    for _ in 0..500 {
        bomb.write_all(comments.as_bytes()).unwrap();
    }
    let bomb = Bytes::from(bomb.finish().unwrap());
    assert!(bomb.len() < 4 << 20, "{} bytes", bomb.len());
    let fake = FakeMcp::echo(true).await;
    fake.reply("tools/call", move |_| {
        let headers = [
            ("content-type", "text/event-stream"),
            ("content-encoding", "gzip"),
        ];
        let headers = headers.map(|(name, value)| (name, value.to_owned()));
        Reply::Raw(200, headers.to_vec(), bomb.clone())
    });
    let id = app.add_http("Bomber", &fake.url()).await.id;

    let calls: Vec<_> = (0..4)
        .map(|_| {
            let app = app.clone();
            let mut call = app.call(&id, "echo", "{}");
            call.timeout = Some(seconds(2));
            tokio::spawn(async move { app.call_with(call).await })
        })
        .collect();
    fake.wait("all four calls", |seen| seen.method() == "tools/call")
        .await;
    let start = Instant::now();
    let fresh = daemon.clients().await;
    let answer = tokio::time::timeout(Duration::from_secs(5), fresh.call_tool(&well, "echo", "{}"));
    answer
        .await
        .expect("a call of another server is answered")
        .unwrap();
    for call in calls {
        let outcome = tokio::time::timeout(Duration::from_secs(10), call).await;
        let outcome = outcome.expect("a call with a timeout of 2 s ends");
        assert!(outcome.unwrap().is_err());
    }
    let took = start.elapsed();
    assert!(took < Duration::from_secs(10), "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_of_countless_blocks_stops_nobody() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let healthy = FakeMcp::echo(true).await;
    let well = app.add_http("Healthy", &healthy.url()).await.id;
    let fake = FakeMcp::echo(true).await;
    let blocks = vec!["{}"; 5 << 20].join(",");
    let result = format!(r#"{{"resultType":"complete","content":[{blocks}]}}"#);
    fake.reply("tools/call", move |_| Reply::Text(result.clone()));
    let id = app.add_http("Mason", &fake.url()).await.id;
    let calls: Vec<_> = (0..2)
        .map(|_| {
            let (app, id) = (app.clone(), id.clone());
            tokio::spawn(async move { app.call_tool(&id, "echo", "{}").await })
        })
        .collect();
    fake.wait_method("tools/call").await;
    // The answers are on their way; while they are taken apart everyone else is served.
    let fresh = daemon.clients().await;
    for _ in 0..20 {
        let answer = fresh.call_tool(&well, "echo", "{}");
        within("the call of another server", answer).await.unwrap();
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    for call in calls {
        call.abort();
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid())).unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let peak = peak.unwrap().trim().trim_end_matches(" kB");
    let peak = peak.parse::<usize>().unwrap() / 1024;
    assert!(peak < 500, "two answers of 15 MiB took {peak} MiB");
}

#[tokio::test]
async fn long_texts_of_servers_do_not_break_answers_about_all() {
    let mebibyte: u32 = 1 << 20;
    let daemon = TestDaemon::builder()
        .set("limits.message_bytes", mebibyte)
        .set("limits.grpc_message_bytes", mebibyte)
        .start()
        .await;
    let app = daemon.clients().await;
    let healthy = FakeMcp::echo(true).await;
    app.add_http("Healthy", &healthy.url()).await;
    let mut fakes = Vec::new();
    for number in 0..3 {
        let fake = FakeMcp::echo(false).await;
        fake.reply("initialize", |_| {
            Reply::Json(json!({
                "protocolVersion": "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "talker", "version": "1"},
                "instructions": "i".repeat(600 << 10),
            }))
        });
        app.add_http(&format!("Talker {number}"), &fake.url()).await;
        fakes.push(fake);
    }
    let request = v1::WaitForServersRequest {
        namespace: app.namespace(),
        timeout: Some(seconds(5)),
        ..Default::default()
    };
    let waited = app.servers().wait_for_servers(request).await.unwrap();
    assert_eq!(waited.into_inner().servers.len(), 4);
}

#[tokio::test]
async fn an_app_that_follows_a_quiet_namespace_gets_bookmarks_while_others_are_busy() {
    let daemon = TestDaemon::builder()
        .set("updates.bookmark_interval", "1s")
        .start()
        .await;
    let quiet = daemon.clients_in("quiet").await;
    let busy = daemon.clients_in("busy").await;
    let url = "http://127.0.0.1:9/";
    let register = |name: &str| v1::AddServerRequest {
        spec: Some(http_spec(name, url)),
        register_only: true,
        ..Default::default()
    };
    quiet.add_with(register("Quiet")).await.unwrap();
    let mut updates = quiet.updates("").await;
    updates.snapshot().await;
    let working = tokio::spawn(async move {
        for number in 0.. {
            let added = busy.add_with(register(&format!("S {number}"))).await;
            let id = added.unwrap().server.unwrap().id;
            busy.remove(&id).await.unwrap();
        }
    });
    // Without it the resume token grows old, although its owner is there all the time.
    let bookmark = tokio::time::timeout(Duration::from_secs(10), updates.next()).await;
    working.abort();
    bookmark.expect("a bookmark within 10 s");
}

#[tokio::test]
async fn a_call_is_not_turned_into_a_get_by_a_redirect() {
    for status in [301, 302, 303] {
        let daemon = TestDaemon::start().await;
        let app = daemon.clients().await;
        let fake = FakeMcp::echo(false).await;
        let id = app.add_http("Elsewhere", &fake.url()).await.id;
        let before = fake.seen().len();
        fake.reply("tools/call", move |_| {
            let location = ("location", "/mcp".to_owned());
            Reply::Raw(status, vec![location], Bytes::new())
        });
        let mut call = app.call(&id, "echo", "{}");
        call.timeout = Some(seconds(5));
        let start = Instant::now();
        app.call_with(call).await.unwrap_err();
        let took = start.elapsed();
        let seen = fake.seen().split_off(before);
        let gets = seen.iter().filter(|seen| seen.http == http::Method::GET);
        assert_eq!(gets.count(), 0, "{status}: the call went on as a GET");
        assert!(took < Duration::from_secs(3), "{status}: {took:?}");
    }
}

#[tokio::test]
async fn an_answer_with_the_id_of_another_request_is_not_taken() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    for modern in [true, false] {
        let fake = FakeMcp::echo(modern).await;
        let id = app.add_http("Mixed up", &fake.url()).await.id;
        fake.reply("tools/call", |seen| {
            let other = seen.json["id"].as_u64().unwrap() + 1_000;
            let mut foreign = said("of another request");
            let mut own = said("of this request");
            for result in [&mut foreign, &mut own] {
                result["resultType"] = json!("complete");
            }
            Reply::Sse(vec![
                Step::Message(json!({"jsonrpc": "2.0", "id": other, "result": foreign})),
                Step::Result(own),
            ])
        });
        let result = app.call_tool(&id, "echo", "{}").await.unwrap();
        assert_eq!(text_of(&result), "of this request", "modern: {modern}");
        app.remove(&id).await.unwrap();
    }
}

#[tokio::test]
async fn a_call_whose_answer_cannot_be_read_has_an_unknown_outcome() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(true).await;
    let id = app.add_http("Garbled", &fake.url()).await.id;
    let answers: [(&str, u16, &str, &'static [u8]); 4] = [
        ("half", 200, "application/json", b"{\"jsonrpc\":"),
        ("nothing", 200, "application/json", b""),
        ("html", 200, "text/html", b"<html>done</html>"),
        ("accepted", 202, "text/plain", b""),
    ];
    for (name, status, kind, body) in answers {
        fake.reply("tools/call", move |_| {
            let kind = ("content-type", kind.to_owned());
            Reply::Raw(status, vec![kind], Bytes::from_static(body))
        });
        let outcome = app.call_tool(&id, "echo", "{}").await;
        let status = outcome.expect_err(name);
        assert_eq!(
            ErrorFacts::of(&status).reason,
            "OUTCOME_UNKNOWN",
            "{name}: the call was sent and may have taken effect: {status:?}"
        );
    }
}

#[tokio::test]
async fn a_child_that_ends_within_its_answer_leaves_an_unknown_outcome() {
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let script = r#"while read -r line; do
        id=$(printf '%s' "$line" | sed -n 's/.*"id":\([0-9]*\).*/\1/p')
        case "$line" in
            *'"initialize"'*) r='{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"x","version":"1"}}' ;;
            *'"tools/list"'*) r='{"tools":[{"name":"echo","inputSchema":{"type":"object"}}]}' ;;
            *'"tools/call"'*) printf '{"jsonrpc":"2.0","id":%s,"resu' "$id"; exit 0 ;;
            *'"id"'*) printf '{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no"}}\n' "$id"; continue ;;
            *) continue ;;
        esac
        printf '{"jsonrpc":"2.0","id":%s,"result":%s}\n' "$id" "$r"
    done"#;
    let arguments = ["-c".to_owned(), script.to_owned()];
    let id = app.add_stdio("Half", "/bin/sh", &arguments).await.id;
    let outcome = app.call_tool(&id, "echo", "{}").await;
    let facts = ErrorFacts::of(&outcome.unwrap_err());
    assert_eq!(facts.reason, "OUTCOME_UNKNOWN", "{facts:?}");
}

#[tokio::test]
async fn a_secret_that_the_server_repeats_is_not_shown() {
    const SECRET: &str = "tr0ub4dor-and-3";
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let fake = FakeMcp::echo(true).await;
    let calls = Arc::new(AtomicUsize::new(0));
    let sent = Arc::new(Mutex::new(String::new()));
    let (count, key) = (Arc::clone(&calls), Arc::clone(&sent));
    fake.reply("*", move |seen| {
        count.fetch_add(1, Ordering::Relaxed);
        let given = seen.header("x-api-key").to_owned();
        given.clone_into(&mut key.lock().unwrap());
        let body = format!("the key {given} is not valid");
        Reply::Raw(403, Vec::new(), body.into())
    });
    let mut spec = http_spec("Parrot", &fake.url());
    if let Some(v1::server_spec::Transport::Http(http)) = &mut spec.transport {
        http.headers = vec![v1::Header {
            name: "X-Api-Key".to_owned(),
            value: SECRET.to_owned(),
        }];
    }
    let server = app.add("parrot", spec).await.unwrap().server.unwrap();
    assert_eq!(*sent.lock().unwrap(), SECRET, "the server has the secret");
    let shown = format!("{server:?}");
    assert!(!shown.contains(SECRET), "AddServer: {shown}");
    assert!(!daemon.log().contains(SECRET), "the log");
    for file in std::fs::read_dir(daemon.data_dir()).unwrap() {
        let path = file.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let found = bytes
            .windows(SECRET.len())
            .any(|part| part == SECRET.as_bytes());
        assert!(!found, "{}", path.display());
    }
}
