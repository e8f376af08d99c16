//! One server, one app or one call never spoils another (cases B35, B37, B38, behaviour 33). Elsewhere:
//! `updates::b37_a_reader_that_stops_reading_delays_nobody`,
//! `calls::b38_simultaneous_calls_get_their_own_answers`, `cancel`.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use mcp_sidecar_tests::fake::{SseWriter, stream};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::{Group, not_tested};
use mcp_sidecar_tests::stranger::{NOBODY, OpenHouse};
use mcp_sidecar_tests::v1::call_tool_stream_response::Event;
use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio_util::sync::CancellationToken;

/// Calls of one story; as many as may run at a time.
const CALLS: usize = 100;

fn done(text: &str) -> Value {
    json!({"resultType": "complete", "content": [{"type": "text", "text": text}]})
}

/// How a call is given up.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Way {
    /// The app drops the call.
    Drop,
    /// The call's own time is over.
    Timeout,
    /// The app's connection goes away.
    Gone,
}

#[tokio::test]
async fn b35_exactly_the_calls_that_are_given_up_are_cancelled() {
    let builder = TestDaemon::builder().set("limits.calls_per_server", CALLS as u64);
    for modern in [true, false] {
        one_and_two_with(builder.clone(), async |stage| {
            let fake = FakeMcp::echo(modern).await;
            let release = CancellationToken::new();
            let released = release.clone();
            fake.on("tools/call", move |_| {
                let released = released.clone();
                std::future::ready(stream(async move |writer: SseWriter| {
                    tokio::select! {
                        () = released.cancelled() => writer.result(done("ok")).await,
                        () = writer.closed() => {}
                    }
                }))
            });
            stage.add_http(&fake.url()).await;
            // A guest whose connection goes away with all its calls.
            let guest = stage.daemon.clients().await;
            let (mut kept, mut lost) = (Vec::new(), Vec::new());
            for number in 0..CALLS {
                let way = [
                    None,
                    Some(Way::Drop),
                    None,
                    Some(Way::Timeout),
                    None,
                    Some(Way::Gone),
                ][number % 6];
                let app = match way {
                    Some(Way::Gone) => guest.clone(),
                    _ => stage.apps[number % stage.apps.len()].clone(),
                };
                let mut call = app.call("s", "echo", &format!("{{\"n\":{number}}}"));
                call.timeout = (way == Some(Way::Timeout)).then(|| millis(1000));
                let task = tokio::spawn(async move { app.call_with(call).await });
                match way {
                    None => kept.push(task),
                    Some(way) => lost.push((number, way, task)),
                }
            }
            eventually("all calls", PATIENCE, async || {
                (fake.seen_of("tools/call").len() == CALLS).then_some(())
            })
            .await;
            stage.other().calls_in_flight("s", CALLS).await;
            drop(guest);
            let wanted: BTreeSet<usize> = lost.iter().map(|(number, ..)| *number).collect();
            for (number, way, task) in lost {
                if way == Way::Timeout {
                    let outcome = task.await.unwrap();
                    assert_eq!(
                        outcome.unwrap_err().code(),
                        Code::DeadlineExceeded,
                        "{number}"
                    );
                } else {
                    task.abort();
                }
            }
            let calls = fake.seen_of("tools/call");
            let number = |seen: &Seen| {
                let number = seen.params()["arguments"]["n"].as_u64();
                usize::try_from(number.unwrap()).unwrap()
            };
            for seen in calls.iter().filter(|seen| wanted.contains(&number(seen))) {
                if modern {
                    fake.wait_dropped(seen.index).await;
                } else {
                    fake.wait("the cancellation", |other| {
                        other.method() == "notifications/cancelled"
                            && other.params()["requestId"] == seen.json["id"]
                    })
                    .await;
                }
            }
            // The others end with their results, and the server heard of nothing else.
            release.cancel();
            for task in kept {
                let result = within("the result", task).await.unwrap().unwrap();
                assert_eq!(text_of(&result), "ok");
            }
            let cancelled = fake.seen_of("notifications/cancelled");
            assert_eq!(cancelled.len(), if modern { 0 } else { wanted.len() });
            // Nothing is left of any of them: as many run again at the same time.
            stage.other().calls_in_flight("s", 0).await;
            let again = (0..CALLS).map(|_| stage.other().call_tool("s", "echo", "{}"));
            for outcome in futures_util::future::join_all(again).await {
                outcome.unwrap();
            }
        })
        .await;
    }
}

#[tokio::test]
async fn b35_an_answer_after_the_cancellation_confuses_nobody() {
    for modern in [true, false] {
        one_and_two(async |stage| {
            let dir = tempfile::tempdir().unwrap();
            let script = Script {
                modern,
                faults: vec![StdioFault::AnswerCancelled],
            };
            stage.add("s", script.spec("s", dir.path()).await).await;
            let calls = stage.everyone(async |app, number| {
                for round in 0..20 {
                    let mut hanging = app.call_stream("s", "hang", "{}").await.unwrap();
                    assert!(matches!(
                        hanging.next().await.unwrap(),
                        Some(Event::Started(_))
                    ));
                    drop(hanging);
                    let arguments = format!("{{\"app\":{number},\"round\":{round}}}");
                    let result = app.call_tool("s", "echo", &arguments).await.unwrap();
                    assert_eq!(text_of(&result), arguments);
                }
            });
            calls.await;
            stage.other().calls_in_flight("s", 0).await;
        })
        .await;
    }
}

#[tokio::test]
async fn b35_a_cancellation_may_race_with_the_answer() {
    let builder = TestDaemon::builder().set("limits.calls_per_server", 50_u64);
    for modern in [true, false] {
        one_and_two_with(builder.clone(), async |stage| {
            let fake = FakeMcp::echo(modern).await;
            stage.add_http(&fake.url()).await;
            let calls = stage.everyone(async |app, number| {
                for round in 0..1000_u64 {
                    let arguments = format!("{{\"app\":{number},\"round\":{round}}}");
                    let call = app.call_tool("s", "echo", &arguments);
                    // Before, while and after the answer comes.
                    let patience = Duration::from_micros(round * 5);
                    if let Ok(outcome) = tokio::time::timeout(patience, call).await {
                        assert_eq!(text_of(&outcome.unwrap()), arguments);
                    }
                }
            });
            calls.await;
            stage.app().calls_in_flight("s", 0).await;
            eventually("room for as many calls as may run", PATIENCE, async || {
                let again = (0..50).map(|_| stage.app().call_tool("s", "echo", "{}"));
                let outcomes = futures_util::future::join_all(again).await;
                outcomes.iter().all(Result::is_ok).then_some(())
            })
            .await;
        })
        .await;
    }
}

#[tokio::test]
async fn b35_a_handshake_is_never_cancelled() {
    one_and_two(async |stage| {
        let fake = FakeMcp::echo(false).await;
        fake.reply("initialize", |_| Reply::Hang);
        let added = stage.everyone(async |app, _| {
            let request = v1::AddServerRequest {
                server_id: "s".to_owned(),
                spec: Some(http_spec("S", &fake.url())),
                wait_timeout: Some(millis(0)),
                ..Default::default()
            };
            app.add_with(request).await.unwrap();
        });
        added.await;
        fake.wait_method("initialize").await;
        stage.other().remove("s").await.unwrap();
        assert!(fake.seen_of("notifications/cancelled").is_empty());
        assert_eq!(fake.seen_of("initialize").len(), 1);
    })
    .await;
}

#[tokio::test]
async fn b37_dead_servers_spoil_nothing_for_the_others() {
    one_and_two(async |mut stage| {
        let dir = tempfile::tempdir().unwrap();
        let mut fakes = Vec::new();
        for number in 0..4 {
            let fake = FakeMcp::echo(number % 2 == 0).await;
            stage
                .add(
                    &format!("well-{number}"),
                    http_spec(&format!("W{number}"), &fake.url()),
                )
                .await;
            fakes.push(fake);
        }
        for modern in [true, false] {
            let name = if modern { "well-4" } else { "well-5" };
            let spec = Script::healthy(modern).spec(name, dir.path()).await;
            stage.add(name, spec).await;
        }
        let refusing = FakeMcp::echo(true).await;
        let refused = refusing.url();
        drop(refusing);
        // Nobody ever accepts.
        let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent_url = format!("http://{}/mcp", silent.local_addr().unwrap());
        let exits = Script::faulty(StdioFault::ExitAtOnce(1))
            .spec("exits", dir.path())
            .await;
        let dead = [
            ("refuses", http_spec("Refuses", &refused)),
            ("silent", http_spec("Silent", &silent_url)),
            ("exits", exits),
            (
                "broken",
                mcp_sidecar_tests::clients::stdio_spec("Broken", "/nowhere/at/all", &[]),
            ),
        ];
        for (id, spec) in dead.clone() {
            let request = v1::AddServerRequest {
                server_id: id.to_owned(),
                spec: Some(spec),
                wait_timeout: Some(millis(0)),
                ..Default::default()
            };
            stage.other().add_with(request).await.unwrap();
        }
        // Neither a start nor a listing waits for any of them: the silent one alone would take 20 seconds.
        let start = Instant::now();
        stage.restart().await;
        assert!(
            start.elapsed() < Duration::from_secs(10),
            "{:?}",
            start.elapsed()
        );
        for number in 0..6 {
            let id = format!("well-{number}");
            stage.other().wait_for(&id, ConnectionState::Ready).await;
        }
        stage
            .everyone(async |app, _| {
                let mut request = tonic::Request::new(v1::ListToolsRequest {
                    namespace: app.namespace(),
                    ..Default::default()
                });
                request.set_timeout(Duration::from_secs(2));
                let listed = app.tools().list_tools(request).await.unwrap().into_inner();
                let servers: BTreeSet<_> = listed
                    .tools
                    .iter()
                    .map(|tool| tool.server_id.clone())
                    .collect();
                assert_eq!(servers.len(), 6, "{servers:?}");
                let issues: BTreeSet<_> = listed
                    .issues
                    .iter()
                    .map(|issue| issue.server_id.as_str())
                    .collect();
                let wanted: BTreeSet<_> = dead.iter().map(|(id, _)| *id).collect();
                assert_eq!(issues, wanted);
                assert!(
                    listed.issues.iter().all(|issue| !issue.message.is_empty()),
                    "{:?}",
                    listed.issues
                );
                let calls = (0..6).map(async |number| {
                    app.call_tool(&format!("well-{number}"), "echo", "{}").await
                });
                for outcome in futures_util::future::join_all(calls).await {
                    outcome.unwrap();
                }
            })
            .await;
        // Removing what never answered does not wait for it either.
        let start = Instant::now();
        stage.other().remove("silent").await.unwrap();
        assert!(start.elapsed() < Duration::from_secs(5));
    })
    .await;
}

#[tokio::test]
async fn b37_a_server_that_is_full_refuses_only_its_own_calls() {
    let builder = TestDaemon::builder().set("limits.calls_per_server", 4_u64);
    one_and_two_with(builder, async |stage| {
        let (full, well) = (FakeMcp::echo(true).await, FakeMcp::echo(true).await);
        full.reply("tools/call", |_| Reply::Hang);
        stage.add_http(&full.url()).await;
        stage.add("well", http_spec("Well", &well.url())).await;
        let mut updates = stage.other().updates("").await;
        updates.snapshot().await;
        let app = stage.app().clone();
        let hanging = tokio::spawn(async move {
            let calls = (0..4).map(|_| app.call_tool("s", "echo", "{}"));
            futures_util::future::join_all(calls).await
        });
        eventually("four calls", PATIENCE, async || {
            (full.seen_of("tools/call").len() == 4).then_some(())
        })
        .await;
        stage
            .everyone(async |app, _| {
                let refused = app.call_tool("s", "echo", "{}").await;
                let facts = ErrorFacts::expect(refused, Code::ResourceExhausted, "TOO_MANY_CALLS");
                assert!(facts.retry.is_some(), "{facts:?}");
                app.call_tool("well", "echo", "{}").await.unwrap();
            })
            .await;
        // Events of the other server go on.
        well.set_list("tools", vec![tool("echo"), tool("new")]);
        well.notify("notifications/tools/list_changed").await;
        updates
            .server_where("two tools", |server| {
                server.id == "well" && server.tool_count() == 2
            })
            .await;
        hanging.abort();
        stage.other().calls_in_flight("s", 0).await;
        stage.other().calls_in_flight("well", 0).await;
    })
    .await;
}

#[tokio::test]
async fn b38_progress_and_results_go_to_the_call_they_belong_to() {
    for modern in [true, false] {
        one_and_two(async |stage| {
            let fake = FakeMcp::echo(modern).await;
            fake.reply("tools/call", |seen| {
                let token = seen.params()["_meta"]["progressToken"].clone();
                let own = seen.arguments();
                let progress = |token: &Value| {
                    Step::Message(json!({
                        "jsonrpc": "2.0", "method": "notifications/progress",
                        "params": {"progressToken": token, "progress": 1, "message": own},
                    }))
                };
                Reply::Sse(vec![progress(&token), Step::Result(done(&own))])
            });
            stage.add_http(&fake.url()).await;
            let calls = stage.everyone(async |app, number| {
                let calls = (0..250).map(async |round| {
                    let own = format!("{{\"app\":{number},\"round\":{round}}}");
                    let events = app.call_stream("s", "echo", &own).await.unwrap();
                    for event in events.collect().await.unwrap() {
                        match event {
                            Event::Progress(progress) => assert_eq!(progress.message, own),
                            Event::Result(result) => assert_eq!(text_of(&result), own),
                            _ => {}
                        }
                    }
                });
                futures_util::future::join_all(calls).await;
            });
            calls.await;
            let mut ids = BTreeSet::new();
            for seen in fake.seen_of("tools/call") {
                assert!(
                    ids.insert(seen.json["id"].to_string()),
                    "ids are never used twice"
                );
            }
        })
        .await;
    }
}

#[tokio::test]
async fn b38_what_belongs_to_one_namespace_is_out_of_reach_for_another() {
    one_and_two(async |stage| {
        let fake = FakeMcp::legacy().tool(tool("echo")).start().await;
        fake.on("tools/call", |_| {
            std::future::ready(stream(async |writer: SseWriter| {
                let params = json!({
                    "mode": "form", "message": "?",
                    "requestedSchema": {"type": "object", "properties": {}},
                });
                writer
                    .message(&json!({"jsonrpc": "2.0", "id": "q", "method": "elicitation/create", "params": params}))
                    .await;
                writer.closed().await;
            }))
        });
        let mut spec = http_spec("S", &fake.url());
        spec.client_capabilities = Some(v1::ClientCapabilities {
            elicitation_form: true,
            ..Default::default()
        });
        let stranger = stage.daemon.clients_in("elsewhere").await;
        stage.add("s", spec.clone()).await;
        stranger.add("s", spec).await.unwrap();
        stranger.wait_for("s", ConnectionState::Ready).await;
        // The same server twice, and nothing is shared: each has a session of its own.
        assert_eq!(fake.sessions().len(), 2);
        let mut foreign = stranger.updates("").await;
        foreign.snapshot().await;
        let mut own = stage.other().updates("").await;
        let call = stage.app().call_stream("s", "echo", "{}").await.unwrap();
        let question = own.pending().await;
        ErrorFacts::expect(stranger.question(&question.id).await, Code::NotFound, "ELICITATION_NOT_FOUND");
        let answered = stranger.accept(&question.id, "{}").await;
        ErrorFacts::expect(answered, Code::NotFound, "ELICITATION_NOT_FOUND");
        let request = v1::ListElicitationsRequest {
            namespace: stranger.namespace(),
            ..Default::default()
        };
        let listed = stranger.elicitations().list_elicitations(request).await.unwrap();
        assert!(listed.into_inner().elicitations.is_empty());
        // It still waits, and nothing of it was seen in the other namespace up to the end of the server there.
        let still = stage.other().question(&question.id).await.unwrap();
        assert_eq!(still.state(), v1::ElicitationState::Pending);
        stranger.remove("s").await.unwrap();
        loop {
            let response = foreign.next().await;
            let seen = format!("{response:?}");
            assert!(!seen.contains(&question.id), "{seen}");
            if seen.contains("Delete") {
                break;
            }
        }
        drop(call);
    })
    .await;
}

#[tokio::test]
async fn behaviour_33_a_process_that_dies_is_seen_and_comes_back() {
    for modern in [true, false] {
        one_and_two(async |stage| {
            let dir = tempfile::tempdir().unwrap();
            let pids = dir.path().join("pids");
            let script = Script {
                modern,
                faults: vec![StdioFault::Register(pids.to_str().unwrap().to_owned())],
            };
            stage.add("s", script.spec("s", dir.path()).await).await;
            let mut streams = Vec::new();
            for app in &stage.apps {
                let mut updates = app.updates("").await;
                updates.snapshot().await;
                streams.push(updates);
            }
            let text = std::fs::read_to_string(&pids).unwrap();
            let pid = Pid::from_raw(text.trim().parse().unwrap()).unwrap();
            let start = Instant::now();
            kill_process(pid, Signal::KILL).unwrap();
            for updates in &mut streams {
                let left = updates
                    .server_where("the loss", |server| {
                        server.state() != ConnectionState::Ready
                    })
                    .await;
                assert_ne!(left.failure().1, "", "{left:?}");
                assert!(
                    start.elapsed() < Duration::from_secs(2),
                    "{:?}",
                    start.elapsed()
                );
                updates
                    .server_where("the return", |server| {
                        server.state() == ConnectionState::Ready
                    })
                    .await;
            }
            stage
                .everyone(async |app, _| app.call_tool("s", "echo", "{}").await.unwrap())
                .await;
            assert_eq!(std::fs::read_to_string(&pids).unwrap().lines().count(), 2);
        })
        .await;
    }
}

// --- Users ---

/// Connections of another user: how many were let in, of how many.
struct Guest {
    group: Group,
    let_in: usize,
}

impl Guest {
    async fn connect(program: &Path, socket: &Path, count: usize) -> Self {
        let mut command = tokio::process::Command::new(program);
        command
            .arg(socket)
            .arg(count.to_string())
            .uid(NOBODY)
            .gid(NOBODY)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut group = Group::spawn(&mut command).expect("start the guest");
        let mut lines = BufReader::new(group.take_stdout().unwrap()).lines();
        let mut let_in = 0;
        for _ in 0..count {
            let line = within("the guest's word", lines.next_line()).await;
            let_in += usize::from(line.unwrap().expect("a line") == "in");
        }
        Self { group, let_in }
    }

    async fn leave(mut self) {
        drop(self.group.take_stdin());
        self.group.wait(PATIENCE).await.expect("the guest ends");
    }
}

#[tokio::test]
async fn a_user_who_opens_connections_without_end_locks_out_nobody_else() {
    if !rustix::process::geteuid().is_root() {
        return not_tested("connections of another user, because only root can be one");
    }
    let builder = TestDaemon::builder()
        .set("limits.connections", 8)
        .set("limits.connections_per_user", 3);
    let house = OpenHouse::start(builder).await;
    let (daemon, program) = (&house.daemon, house.program("guest").await);

    let guest = Guest::connect(&program, daemon.socket(), 20).await;
    assert_eq!(guest.let_in, 3, "{}", daemon.log());
    let app = daemon.clients().await;
    assert!(app.list().await.is_empty());
    let said = |log: &str| {
        let lines = log.lines();
        let lines = lines.filter(|line| line.contains("`limits.connections_per_user`"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let lines = said(&daemon.log());
    assert_eq!(lines.len(), 1, "once per shortage: {lines:?}");
    assert!(lines[0].contains("uid=65534"), "{lines:?}");

    guest.leave().await;
    eventually("room for the user again", PATIENCE, async || {
        let guest = Guest::connect(&program, daemon.socket(), 3).await;
        let let_in = guest.let_in;
        guest.leave().await;
        (let_in == 3).then_some(())
    })
    .await;
    assert!(app.list().await.is_empty(), "the first connection goes on");
}
