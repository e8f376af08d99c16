//! Servers that are processes: nothing of them survives, nothing that they write does harm.

use std::path::Path;
use std::time::Instant;

use mcp_sidecar_tests::daemon::Builder;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::{children, resident, with_variable};
use tempfile::TempDir;

/// Each step of ending a process; short, so that three of them are.
const GRACE: &str = "300ms";
/// All steps together, and then some for a busy machine.
const END: Duration = Duration::from_secs(10);

/// A daemon, scripts of its servers, and a text that all their processes carry in their environment.
struct Scene {
    daemon: TestDaemon,
    scripts: TempDir,
    mark: String,
}

impl Scene {
    async fn new() -> Self {
        Self::with(TestDaemon::builder().set("timeouts.close", GRACE)).await
    }

    async fn with(builder: Builder) -> Self {
        let scripts = tempfile::tempdir().unwrap();
        let mark = format!("scene-{}", scripts.path().display());
        Self {
            daemon: builder.start().await,
            scripts,
            mark,
        }
    }

    fn path(&self, name: &str) -> String {
        self.scripts.path().join(name).to_str().unwrap().to_owned()
    }

    /// A server that carries the mark.
    async fn spec(&self, name: &str, faults: Vec<StdioFault>) -> ServerSpec {
        let script = Script {
            modern: false,
            faults,
        };
        let mut spec = script.spec(name, self.scripts.path()).await;
        set_env(&mut spec, "MARK", &self.mark);
        spec
    }

    /// Helpers of every kind, whose ids are in the file `helpers`.
    fn helpers(&self) -> Vec<StdioFault> {
        let kinds = [(false, false), (false, true), (true, false), (true, true)];
        let helper = |(detached, stubborn)| {
            StdioFault::Helper(Helper {
                detached,
                stubborn,
                holds_streams: detached,
                pids: self.path("helpers"),
            })
        };
        kinds.into_iter().map(helper).collect()
    }

    /// Waits until so many helpers were started in all.
    async fn helpers_run(&self, count: usize) {
        eventually("the helpers", PATIENCE, async || {
            (lines(Path::new(&self.path("helpers"))) >= count).then_some(())
        })
        .await;
    }

    fn alive(&self) -> Vec<i32> {
        with_variable(&self.mark)
    }

    async fn all_gone(&self) {
        eventually("the end of every process", END, async || {
            self.alive().is_empty().then_some(())
        })
        .await;
    }

    fn is_gone(&self, when: &str) {
        let alive = self.alive();
        assert!(alive.is_empty(), "{when}: {alive:?} are left");
    }

    fn zombies(&self) -> Vec<i32> {
        children(self.daemon.pid(), true)
    }
}

fn set_env(spec: &mut ServerSpec, name: &str, value: &str) {
    let Some(v1::server_spec::Transport::Stdio(stdio)) = &mut spec.transport else {
        panic!("a server that is a process");
    };
    stdio.env.retain(|variable| variable.name != name);
    stdio.env.push(v1::EnvVar {
        name: name.to_owned(),
        value: value.to_owned(),
    });
}

fn lines(file: &Path) -> usize {
    std::fs::read_to_string(file)
        .unwrap_or_default()
        .lines()
        .count()
}

async fn echo(app: &Clients, id: &str) -> String {
    let result = app.call_tool(id, "echo", r#"{"n":1}"#).await;
    text_of(&result.expect("an answer"))
}

// --- B19: grandchildren ---

#[tokio::test]
async fn b19_grandchildren_do_not_survive_removal_disconnection_or_reload() {
    let scene = Scene::new().await;
    let (app, other) = (scene.daemon.clients().await, scene.daemon.clients().await);
    let mut spec = scene.spec("family", scene.helpers()).await;
    let server = app.add_ready(spec.clone()).await;
    scene.helpers_run(4).await;
    assert_eq!(scene.alive().len(), 5, "a server and four helpers");

    // Reload: changed settings replace the process.
    let before = scene.alive();
    set_env(&mut spec, "CHANGED", "yes");
    let reloaded = other.add("", spec).await.unwrap();
    assert_eq!(reloaded.outcome(), AddOutcome::Updated);
    app.wait_for(&server.id, ConnectionState::Ready).await;
    scene.helpers_run(8).await;
    let now = scene.alive();
    assert_eq!(now.len(), 5, "{before:?} {now:?}");
    assert!(now.iter().all(|pid| !before.contains(pid)));

    app.disconnect_server(&server.id).await.unwrap();
    scene.is_gone("when DisconnectServer returns, all is gone");

    other.connect_server(&server.id).await.unwrap();
    scene.helpers_run(12).await;
    assert_eq!(echo(&app, &server.id).await, r#"{"n":1}"#);
    other.remove(&server.id).await.unwrap();
    scene.is_gone("when RemoveServer returns, all is gone");
    eventually("no zombies", END, async || {
        scene.zombies().is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn b19_grandchildren_do_not_survive_a_wrapper_that_exits() {
    let scene = Scene::new().await;
    let app = scene.daemon.clients().await;
    let mut faults = scene.helpers();
    faults.push(StdioFault::ExitAtOnce(0));
    let spec = scene.spec("wrapper", faults).await;
    let server = app.add("", spec).await.unwrap().server.unwrap();
    assert_eq!(server.state(), ConnectionState::Failed, "{server:#?}");
    scene.helpers_run(8).await;
    // Without anybody's help: they have no server any more.
    scene.all_gone().await;
    app.remove(&server.id).await.unwrap();
    scene.all_gone().await;
    eventually("no zombies", END, async || {
        scene.zombies().is_empty().then_some(())
    })
    .await;
}

#[tokio::test]
async fn b19_grandchildren_do_not_survive_the_end_of_the_daemon() {
    let mut scene = Scene::new().await;
    let app = scene.daemon.clients().await;
    let spec = scene.spec("family", scene.helpers()).await;
    app.add_ready(spec).await;
    scene.helpers_run(4).await;
    let status = scene.daemon.terminate().await;
    assert!(status.success(), "{}", scene.daemon.log());
    scene.is_gone("when the daemon has ended, all is gone");
}

#[tokio::test]
async fn b19_nothing_survives_a_killed_daemon() {
    let mut scene = Scene::new().await;
    let app = scene.daemon.clients().await;
    for name in ["one", "two"] {
        let spec = scene.spec(name, scene.helpers()).await;
        app.add_ready(spec).await;
    }
    let mut stubborn = scene.helpers();
    stubborn.push(StdioFault::Stubborn);
    let spec = scene.spec("stubborn", stubborn).await;
    app.add_ready(spec).await;
    scene.helpers_run(12).await;
    assert_eq!(scene.alive().len(), 15);

    scene.daemon.kill9().await;
    let killed = Instant::now();
    scene.all_gone().await;
    println!("all gone {:?} after kill -9", killed.elapsed());
}

#[tokio::test]
async fn b19_the_next_daemon_ends_what_daemon_and_guard_left_and_only_then_starts() {
    let mut scene = Scene::new().await;
    let app = scene.daemon.clients().await;
    let mut faults = scene.helpers();
    faults.push(StdioFault::LockFile(scene.path("lock")));
    faults.push(StdioFault::SlowEnd(100, scene.path("ends")));
    let server = app.add_ready(scene.spec("family", faults).await).await;
    scene.helpers_run(4).await;
    let before = scene.alive();

    // Both at once, as the kernel does it when memory runs out.
    let (alive, daemon) = (scene.alive(), scene.daemon.pid());
    let guards = children(daemon, false);
    for guard in guards.iter().filter(|pid| !alive.contains(pid)) {
        let cmdline = std::fs::read_to_string(format!("/proc/{guard}/cmdline")).unwrap_or_default();
        if cmdline.contains("__guard") {
            let pid = rustix::process::Pid::from_raw(*guard).unwrap();
            rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
            scene.daemon.kill9().await;
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
            break;
        }
    }
    assert!(
        !scene.alive().is_empty(),
        "something is left for the next daemon"
    );
    scene.daemon.restart().await;
    let app = scene.daemon.clients().await;
    // A second process at the same time would find the lock taken.
    app.wait_for(&server.id, ConnectionState::Ready).await;
    let now = scene.alive();
    assert!(
        now.iter().all(|pid| !before.contains(pid)),
        "{before:?} {now:?}"
    );
    assert_eq!(
        lines(Path::new(&scene.path("ends"))),
        1,
        "the first could end in order"
    );
}

#[tokio::test]
async fn b19_a_guard_that_dies_is_replaced() {
    let mut scene = Scene::new().await;
    let app = scene.daemon.clients().await;
    let spec = scene.spec("plain", Vec::new()).await;
    app.add_ready(spec).await;
    let guards = |scene: &Scene| {
        let alive = scene.alive();
        let mut guards = children(scene.daemon.pid(), false);
        guards.retain(|pid| !alive.contains(pid));
        guards
    };
    let first = guards(&scene);
    assert_eq!(first.len(), 1, "one guard for the whole daemon");
    let pid = rustix::process::Pid::from_raw(first[0]).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually("another guard", PATIENCE, async || {
        let now = guards(&scene);
        (now.len() == 1 && now != first).then_some(())
    })
    .await;
    scene.daemon.kill9().await;
    scene.all_gone().await;
}

// --- B20: the order of the end ---

#[tokio::test]
async fn b20_input_ends_first_and_work_is_finished() {
    let scene = Scene::with(TestDaemon::builder().set("timeouts.close", "5s")).await;
    let app = scene.daemon.clients().await;
    let end = StdioFault::SlowEnd(700, scene.path("end"));
    let server = app.add_ready(scene.spec("flush", vec![end]).await).await;
    let begin = Instant::now();
    app.remove(&server.id).await.unwrap();
    assert_eq!(
        std::fs::read_to_string(scene.path("end")).unwrap(),
        "complete\n"
    );
    assert!(
        begin.elapsed() < Duration::from_secs(4),
        "no step is waited for in vain"
    );
    scene.is_gone("when the RPC returns");
}

#[tokio::test]
async fn b20_a_process_that_ignores_everything_is_killed_and_reaped() {
    let scene = Scene::new().await;
    let (app, other) = (scene.daemon.clients().await, scene.daemon.clients().await);
    let server = app
        .add_ready(scene.spec("s", vec![StdioFault::Stubborn]).await)
        .await;
    let hanging = tokio::spawn({
        let (other, id) = (other.clone(), server.id.clone());
        async move { other.call_tool(&id, "hang", "{}").await }
    });
    echo(&other, &server.id).await;
    let begin = Instant::now();
    app.remove(&server.id).await.unwrap();
    assert!(begin.elapsed() < END);
    scene.is_gone("killed");
    assert!(scene.zombies().is_empty());
    within("the end of the call", hanging)
        .await
        .unwrap()
        .unwrap_err();
}

#[tokio::test]
async fn b20_a_process_that_closes_its_output_and_stays_is_replaced() {
    let scene = Scene::new().await;
    let app = scene.daemon.clients().await;
    let faults = vec![
        StdioFault::CloseOutput,
        StdioFault::Register(scene.path("pids")),
    ];
    let server = app.add_ready(scene.spec("s", faults).await).await;
    let first = scene.alive();
    echo(&app, &server.id).await;
    eventually("another process", PATIENCE, async || {
        let server = app.get(&server.id).await.unwrap();
        let alive = scene.alive();
        let replaced = alive.len() == 1 && alive != first;
        (replaced && server.state() == ConnectionState::Ready).then_some(())
    })
    .await;
    echo(&app, &server.id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b20_fifty_servers_end_in_the_time_of_one() {
    let builder = TestDaemon::builder()
        .set("timeouts.close", "1s")
        .set("timeouts.connect", "30s");
    let mut scene = Scene::with(builder).await;
    let app = scene.daemon.clients().await;
    let spec = scene.spec("s", vec![StdioFault::Stubborn]).await;
    let adding = (0..50).map(|n| {
        let (app, mut spec) = (app.clone(), spec.clone());
        spec.name = format!("s-{n}");
        set_env(&mut spec, "NUMBER", &n.to_string());
        async move { app.add(&format!("s-{n}"), spec).await.unwrap() }
    });
    for added in futures_util::future::join_all(adding).await {
        let server = added.server.unwrap();
        app.wait_for(&server.id, ConnectionState::Ready).await;
    }
    assert_eq!(scene.alive().len(), 50);
    let begin = Instant::now();
    let status = scene.daemon.terminate().await;
    let took = begin.elapsed();
    println!("50 stubborn servers, three steps of 1s: {took:?}");
    assert!(status.success());
    assert!(took < Duration::from_secs(7), "{took:?}");
    scene.is_gone("when the RPC returns");
}

#[tokio::test]
async fn b20_a_failure_is_seen_before_the_process_has_ended() {
    let builder = TestDaemon::builder()
        .set("timeouts.close", "4s")
        .set("timeouts.connect", "1s")
        .set("timeouts.probe", "500ms");
    let scene = Scene::with(builder).await;
    let app = scene.daemon.clients().await;
    let faults = vec![
        StdioFault::Register(scene.path("pids")),
        StdioFault::Stubborn,
        StdioFault::Deaf,
    ];
    let mut spec = scene.spec("silent", faults).await;
    spec.retry = Some(v1::RetryPolicy {
        max_attempts: Some(1),
        base_delay: Some(millis(1)),
        max_delay: Some(millis(1)),
    });
    let request = v1::AddServerRequest {
        spec: Some(spec),
        wait_timeout: Some(millis(0)),
        ..Default::default()
    };
    let server = app.add_with(request).await.unwrap().server.unwrap();
    let failed = app.wait_for(&server.id, ConnectionState::Failed).await;
    assert_eq!(failed.failure().0, "UPSTREAM_TIMEOUT");
    let first = scene.alive();
    assert_eq!(first.len(), 1, "the process is still being ended");
    let call = app.call_tool(&server.id, "echo", "{}").await;
    let facts = ErrorFacts::expect(call, Code::Unavailable, "UPSTREAM_UNREACHABLE");
    assert!(facts.retry.is_some());

    // The next one starts when the first is gone, and not before: there is never more than one.
    eventually("the second process", PATIENCE, async || {
        let alive = scene.alive();
        assert!(alive.len() <= 1, "{alive:?}");
        (lines(Path::new(&scene.path("pids"))) == 2).then_some(())
    })
    .await;
    assert!(!scene.alive().contains(&first[0]));
    app.remove(&server.id).await.unwrap();
    scene.is_gone("when the RPC returns");
}

// --- B22: what is written that is no message ---

#[tokio::test]
async fn b22_valid_answers_between_garbage_arrive() {
    let scene = Scene::new().await;
    let (app, other) = (scene.daemon.clients().await, scene.daemon.clients().await);
    let after = |bytes: &[u8]| Form::After(bytes.to_vec());
    let forms = [
        ("banner", after(b"\x1b[1mWelcome\x1b[0m\nlistening on stdio\n")),
        ("nul", after(b"\0\0\0\n{\0}\n")),
        ("not-utf8", after(b"\xff\xfe\xfd\n\"\xff\"\n")),
        ("null", after(b"null\ntrue\n17\n\"text\"\n")),
        ("array", after(b"[]\n[null]\n[1,[2]]\n")),
        ("half", after(b"{\"jsonrpc\":\"2.0\",\"id\":\n")),
        ("deep", after(format!("{}\n", "[".repeat(100_000)).as_bytes())),
        ("blank", after(b"\n\r\n   \n\t\r\n")),
        ("foreign", after(b"{\"jsonrpc\":\"2.0\",\"id\":null,\"result\":{}}\n{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"result\":{}}\n")),
        ("byte-by-byte", Form::ByteByByte),
        ("crlf", Form::Crlf),
        ("bom", Form::Bom),
        ("batch", Form::Batch),
    ];
    for (name, form) in forms {
        let faults = vec![StdioFault::Answer(form)];
        let server = app.add_ready(scene.spec(name, faults).await).await;
        for app in [&app, &other, &app] {
            let answer = within(name, app.call_tool(&server.id, "echo", r#"{"n":1}"#)).await;
            assert_eq!(text_of(&answer.expect(name)), r#"{"n":1}"#, "{name}");
        }
        assert_eq!(
            app.get(&server.id).await.unwrap().state(),
            ConnectionState::Ready,
            "{name}"
        );
    }
}

#[tokio::test]
async fn b22_an_answer_that_is_not_utf8_fails_its_call_at_once_and_no_other() {
    let scene = Scene::new().await;
    let (app, other) = (scene.daemon.clients().await, scene.daemon.clients().await);
    let faults = vec![StdioFault::Answer(Form::BadUtf8)];
    let server = app.add_ready(scene.spec("s", faults).await).await;
    let hanging = other.call_stream(&server.id, "hang", "{}").await.unwrap();
    let begin = Instant::now();
    let call = app.call_tool(&server.id, "echo", "{}").await;
    let status = call.expect_err("not an answer");
    assert!(begin.elapsed() < Duration::from_secs(5), "{status:?}");
    // It was sent, and may have taken effect.
    let facts = ErrorFacts::expect(Err::<(), _>(status), Code::Unavailable, "OUTCOME_UNKNOWN");
    assert!(facts.message.contains("JSON"), "{facts:?}");
    assert_eq!(
        app.get(&server.id).await.unwrap().state(),
        ConnectionState::Ready
    );
    app.remove(&server.id).await.unwrap();
    within("the end of the other call", hanging.collect())
        .await
        .unwrap_err();
}

#[tokio::test]
async fn b22_the_last_line_needs_no_end() {
    let scene = Scene::new().await;
    let app = scene.daemon.clients().await;
    let faults = vec![StdioFault::Answer(Form::LastWords)];
    let server = app.add_ready(scene.spec("s", faults).await).await;
    assert_eq!(echo(&app, &server.id).await, r#"{"n":1}"#);
}

// --- B23: sizes ---

#[tokio::test]
async fn b23_an_endless_line_fails_its_call_and_is_not_kept() {
    let limit: u32 = 4 << 20;
    let scene = Scene::with(TestDaemon::builder().set("limits.message_bytes", limit)).await;
    let (app, other) = (scene.daemon.clients().await, scene.daemon.clients().await);
    let faults = vec![StdioFault::Answer(Form::Endless(200))];
    let server = app.add_ready(scene.spec("s", faults).await).await;
    let (before, _) = resident(scene.daemon.pid());
    let call = app.call_tool(&server.id, "echo", "{}").await;
    ErrorFacts::expect(call, Code::ResourceExhausted, "MESSAGE_TOO_LARGE");
    // In step again behind the line.
    assert_eq!(echo(&other, &server.id).await, r#"{"n":1}"#);
    let (_, most) = resident(scene.daemon.pid());
    let grown = most.saturating_sub(before);
    println!(
        "200 MB without a line end: {} KiB more at most, limit {} KiB",
        grown >> 10,
        limit >> 10
    );
    assert!(grown < 4 * u64::from(limit), "{grown} bytes");
}

#[tokio::test]
async fn b23_a_legal_result_of_20_mib_arrives() {
    let scene = Scene::new().await;
    let app = scene.daemon.clients().await;
    let size = 20 << 20;
    let faults = vec![StdioFault::Answer(Form::Big(size))];
    let server = app.add_ready(scene.spec("s", faults).await).await;
    let result = app.call_tool(&server.id, "echo", "{}").await.unwrap();
    assert_eq!(text_of(&result).len(), size);
}

#[tokio::test]
async fn b23_five_thousand_tools_are_listed_in_time() {
    let scene = Scene::new().await;
    let app = scene.daemon.clients().await;
    let faults = vec![StdioFault::ManyTools(5000, 2048)];
    let begin = Instant::now();
    let server = app.add_ready(scene.spec("s", faults).await).await;
    let ready = begin.elapsed();
    assert_eq!(server.tool_count(), 5003);
    let begin = Instant::now();
    let tools = app.list_tools().await;
    let listed = begin.elapsed();
    println!("5,000 tools of 2 KB: ready after {ready:?}, listed in {listed:?}");
    assert_eq!(tools.len(), 5003);
    assert!(
        tools
            .iter()
            .filter(|tool| tool.name.starts_with("tool-"))
            .all(|tool| tool.input_schema_json.len() > 2048)
    );
    assert!(ready < Duration::from_secs(20) && listed < Duration::from_secs(10));
}

// --- B25: starts ---

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b25_a_hundred_first_calls_start_one_process() {
    let scene = Scene::new().await;
    let apps = [scene.daemon.clients().await, scene.daemon.clients().await];
    let faults = vec![
        StdioFault::Register(scene.path("pids")),
        StdioFault::SlowStart(2000),
    ];
    let request = v1::AddServerRequest {
        spec: Some(scene.spec("slow", faults).await),
        wait_timeout: Some(millis(0)),
        ..Default::default()
    };
    let server = apps[0].add_with(request).await.unwrap().server.unwrap();
    let calls = (0..100).map(|n| echo(&apps[n % 2], &server.id));
    let answers = within("100 answers", futures_util::future::join_all(calls)).await;
    assert!(answers.iter().all(|answer| answer == r#"{"n":1}"#));
    assert_eq!(lines(Path::new(&scene.path("pids"))), 1, "one process");
}

#[tokio::test]
async fn b25_a_process_that_exits_at_once_is_started_rarely_and_calls_fail_fast() {
    let scene = Scene::new().await;
    let (app, other) = (scene.daemon.clients().await, scene.daemon.clients().await);
    let pids = scene.path("pids");
    let faults = vec![
        StdioFault::Register(pids.clone()),
        StdioFault::Say("no licence".to_owned()),
        StdioFault::ExitAtOnce(7),
    ];
    let server = app
        .add("", scene.spec("s", faults).await)
        .await
        .unwrap()
        .server
        .unwrap();
    assert_eq!(server.state(), ConnectionState::Failed, "{server:#?}");
    let (reason, message) = server.failure();
    assert_eq!(reason, "UPSTREAM_UNREACHABLE");
    assert!(message.contains("exit status: 7"), "{message}");
    assert!(server.facts().stderr_tail.contains("no licence"));
    assert!(lines(Path::new(&pids)) <= 2);

    // Calls do not start anything, and say when to come back. The bound on starts within a minute is a test of the machine.
    let begin = Instant::now();
    for app in [&app, &other].into_iter().cycle().take(50) {
        let call = app.call_tool(&server.id, "echo", "{}").await;
        let facts = ErrorFacts::expect(call, Code::Unavailable, "UPSTREAM_UNREACHABLE");
        let retry = facts.retry.expect("when to try again");
        assert!(
            retry <= Duration::from_secs(5) && facts.message.contains("exit status: 7"),
            "{facts:?}"
        );
    }
    assert!(
        begin.elapsed() < Duration::from_secs(2),
        "{:?}",
        begin.elapsed()
    );
    assert!(lines(Path::new(&pids)) <= 3);

    // Somebody who knows better: at once, and thoroughly.
    let before = lines(Path::new(&pids));
    let again = other.connect_server(&server.id).await.unwrap();
    assert_eq!(again.state(), ConnectionState::Failed);
    assert_eq!(again.facts().failed_attempts, 1, "the count starts anew");
    assert_eq!(lines(Path::new(&pids)), before + 2);
}

// --- The log ---

#[tokio::test]
async fn the_last_lines_of_standard_error_are_kept_over_restarts_and_by_rpc() {
    let scene = Scene::with(TestDaemon::builder().set("limits.stderr_tail_bytes", 8192_u32)).await;
    let (app, other) = (scene.daemon.clients().await, scene.daemon.clients().await);
    let faults = vec![
        StdioFault::Say("starting \u{20ac}".to_owned()),
        StdioFault::CrashOnCall,
    ];
    let server = app.add_ready(scene.spec("s", faults).await).await;
    let log = other.log(&server.id).await.unwrap();
    assert_eq!(log.len(), 1, "{log:?}");
    assert_eq!(
        (log[0].text.as_str(), log[0].start),
        ("starting \u{20ac}", 1)
    );
    let age = std::time::SystemTime::now()
        .duration_since(log[0].time.unwrap().try_into().unwrap())
        .unwrap();
    assert!(age < Duration::from_mins(1));
    app.call_tool(&server.id, "echo", "{}").await.unwrap_err();
    eventually("the second start in the log", PATIENCE, async || {
        let log = app.log(&server.id).await.unwrap();
        let starts: Vec<_> = log.iter().map(|line| line.start).collect();
        (starts == [1, 2]).then_some(())
    })
    .await;
    app.disconnect_server(&server.id).await.unwrap();
    assert_eq!(
        app.log(&server.id).await.unwrap().len(),
        2,
        "in every state"
    );

    let talk = StdioFault::Say("my token is s3cret-value!".to_owned());
    let mut talk = scene.spec("talk", vec![talk]).await;
    set_env(&mut talk, "TOKEN", "s3cret-value");
    let talk = app.add_ready(talk).await;
    let log = app.log(&talk.id).await.unwrap();
    assert_eq!(log[0].text, "my token is ***!");

    let flood = vec![StdioFault::StderrFlood(1024)];
    let flood = app.add_ready(scene.spec("flood", flood).await).await;
    let log = app.log(&flood.id).await.unwrap();
    let bytes: usize = log.iter().map(|line| line.text.len()).sum();
    assert!(
        bytes <= 8192 && log.len() > 3,
        "{bytes} bytes in {} lines",
        log.len()
    );
    assert_eq!(log.last().unwrap().text, "the flood is over");

    let fake = FakeMcp::echo(true).await;
    let http = app.add_http("http", &fake.url()).await;
    assert!(app.log(&http.id).await.unwrap().is_empty());
    ErrorFacts::expect(app.log("nobody").await, Code::NotFound, "SERVER_NOT_FOUND");
    let stranger = scene.daemon.clients_in("elsewhere").await;
    stranger.log(&server.id).await.unwrap_err();
}
