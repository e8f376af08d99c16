//! B22, B23: what is written that is no message, and sizes. The log: what is kept of standard error.

use std::path::Path;
use std::time::Instant;

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::resident;

use super::{Scene, echo, lines, play, set_env, short};

// --- B22: what is written that is no message ---

/// Everything that a server was told, line by line.
fn told(scene: &Scene, name: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(scene.path(name)).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[tokio::test]
async fn b22_valid_answers_between_garbage_arrive() {
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
        ("foreign-not-utf8", after(b"{\"jsonrpc\":\"2.0\",\"id\":\"x\",\"result\":\"\xff\"}\n")),
        ("two-in-one-write", after(b"{\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{\"level\":\"info\",\"data\":1}}\n")),
        ("byte-by-byte", Form::ByteByByte),
        ("crlf", Form::Crlf),
        ("bom", Form::Bom),
        ("batch", Form::Batch),
    ];
    play(short(), async |scene: Scene| {
        for (name, form) in forms.clone() {
            let record = format!("{name}.told");
            let faults = vec![
                StdioFault::Answer(form),
                StdioFault::Record(scene.path(&record)),
            ];
            let server = scene.add(name, faults).await;
            for _ in 0..2 {
                scene.all_echo(&server.id).await;
            }
            let seen = scene.other().get(&server.id).await.unwrap();
            assert_eq!(seen.state(), ConnectionState::Ready, "{name}");
            // Nobody answers what is no message, neither with an error nor otherwise.
            let told = told(&scene, &record);
            let spoken = told.iter().all(|message| !message["method"].is_null());
            assert!(spoken, "{name}: {told:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn b22_an_answer_that_is_not_utf8_fails_its_call_at_once_and_no_other() {
    play(short(), async |scene: Scene| {
        let (app, other) = (scene.app(), scene.other());
        let faults = vec![StdioFault::Answer(Form::BadUtf8)];
        let server = scene.add("s", faults).await;
        let hanging = other.call_stream(&server.id, "hang", "{}").await.unwrap();
        let begin = Instant::now();
        let calls = scene
            .stage
            .everyone(async |app, _| app.call_tool(&server.id, "echo", "{}").await);
        for call in calls.await {
            // It was sent, and may have taken effect.
            let facts = ErrorFacts::expect(call, Code::Unavailable, "OUTCOME_UNKNOWN");
            assert!(facts.message.contains("JSON"), "{facts:?}");
        }
        let took = begin.elapsed();
        assert!(took < Duration::from_secs(5), "{took:?}");
        let seen = app.get(&server.id).await.unwrap();
        assert_eq!(seen.state(), ConnectionState::Ready);
        app.calls_in_flight(&server.id, 1).await;
        app.remove(&server.id).await.unwrap();
        within("the end of the other call", hanging.collect())
            .await
            .unwrap_err();
    })
    .await;
}

#[tokio::test]
async fn b22_the_last_line_needs_no_end() {
    play(short(), async |scene: Scene| {
        let faults = vec![
            StdioFault::Answer(Form::LastWords),
            StdioFault::Register(scene.path("pids")),
        ];
        let server = scene.add("s", faults).await;
        for (number, app) in scene.stage.apps.iter().enumerate() {
            // Each answer is the last that its process gives: the next app has another one.
            eventually("the process of this call", PATIENCE, async || {
                let started = lines(Path::new(&scene.path("pids")));
                let server = app.get(&server.id).await.unwrap();
                (started == number + 1 && server.state() == ConnectionState::Ready).then_some(())
            })
            .await;
            assert_eq!(echo(app, &server.id).await, r#"{"n":1}"#);
        }
    })
    .await;
}

#[tokio::test]
async fn b22_the_first_lines_that_are_no_message_are_kept_in_the_log() {
    play(short(), async |scene: Scene| {
        let garbage = [
            "npm warn old lockfile",
            "{\"id\":\"x\",",
            "my token is s3cret-value!",
        ];
        let garbage = garbage.map(str::to_owned).to_vec();
        let mut spec = scene
            .spec(
                "s",
                vec![
                    StdioFault::Say("on standard error".to_owned()),
                    StdioFault::Garbage(garbage),
                ],
            )
            .await;
        set_env(&mut spec, "TOKEN", "s3cret-value");
        let server = scene.stage.add("s", spec).await;
        for _ in 0..3 {
            scene.all_echo(&server.id).await;
        }
        let seen = scene.stage.everyone(async |app, _| {
            let log = app.log(&server.id).await.unwrap();
            let (output, errors): (Vec<_>, Vec<_>) =
                log.into_iter().partition(|line| line.standard_output);
            let texts: Vec<_> = output.iter().map(|line| line.text.as_str()).collect();
            let (warning, token) = ("npm warn old lockfile", "my token is ***!");
            assert_eq!(texts, [warning, token, warning, token]);
            assert!(
                output
                    .iter()
                    .all(|line| line.start == 1 && line.time.is_some())
            );
            assert_eq!(errors.len(), 1, "{errors:?}");
            let server = app.get(&server.id).await.unwrap();
            assert_eq!(server.facts().stderr_tail, "on standard error\n");
        });
        seen.await;
    })
    .await;
}

#[tokio::test]
async fn b22_a_process_is_told_to_speak_utf8() {
    let builder = short()
        .env("LANG", "C")
        .env("LC_ALL", "POSIX")
        .env("TZ", "UTC");
    play(builder, async |scene: Scene| {
        let faults = vec![StdioFault::Register(scene.path("pids"))];
        let server = scene.add("s", faults).await;
        let pid = std::fs::read_to_string(scene.path("pids")).unwrap();
        let environment = std::fs::read(format!("/proc/{}/environ", pid.trim())).unwrap();
        let variables = environment.split(|byte| *byte == 0);
        let variables: Vec<_> = variables.map(String::from_utf8_lossy).collect();
        for wanted in ["LC_ALL=C.UTF-8", "TZ=UTC"] {
            assert!(
                variables.iter().any(|one| one == wanted),
                "{wanted} in {variables:?}"
            );
        }
        let text = r#"{"e":"é€😀"}"#;
        let answers = scene
            .stage
            .everyone(async |app, _| app.call_tool(&server.id, "echo", text).await);
        for answer in answers.await {
            assert_eq!(text_of(&answer.unwrap()), text);
        }
    })
    .await;
}

// --- B23: sizes ---

#[tokio::test]
async fn b23_an_endless_line_fails_its_call_and_is_not_kept() {
    let limit: u32 = 4 << 20;
    let builder = short().set("limits.message_bytes", limit);
    play(builder, async |scene: Scene| {
        let faults = vec![StdioFault::Answer(Form::Endless(200))];
        let server = scene.add("s", faults).await;
        let waiting = scene.other().call_stream(&server.id, "hang", "{}").await;
        let (before, _) = resident(scene.daemon().pid());
        let call = scene.app().call_tool(&server.id, "echo", "{}").await;
        ErrorFacts::expect(call, Code::ResourceExhausted, "MESSAGE_TOO_LARGE");
        // In step again behind the line; who waited for something else still does.
        scene.all_echo(&server.id).await;
        scene.other().calls_in_flight(&server.id, 1).await;
        drop(waiting);
        let (_, most) = resident(scene.daemon().pid());
        let grown = most.saturating_sub(before);
        println!(
            "200 MB without a line end: {} KiB more at most, limit {} KiB",
            grown >> 10,
            limit >> 10
        );
        assert!(grown < 4 * u64::from(limit), "{grown} bytes");
    })
    .await;
}

#[tokio::test]
async fn b23_a_legal_result_of_20_mib_arrives() {
    play(short(), async |scene: Scene| {
        let size = 20 << 20;
        let faults = vec![StdioFault::Answer(Form::Big(size))];
        let server = scene.add("s", faults).await;
        let results = scene
            .stage
            .everyone(async |app, _| app.call_tool(&server.id, "echo", "{}").await.unwrap());
        for result in results.await {
            assert_eq!(text_of(&result).len(), size);
        }
    })
    .await;
}

#[tokio::test]
async fn b23_five_thousand_tools_are_listed_in_time() {
    // One after the other: this is about time.
    one_and_two_with(short(), async |stage| {
        let scene = Scene::on(stage);
        let faults = vec![StdioFault::ManyTools(5000, 2048)];
        let begin = Instant::now();
        let server = scene.add("s", faults).await;
        let ready = begin.elapsed();
        assert_eq!(server.tool_count(), 5003);
        let begin = Instant::now();
        let lists = scene.stage.everyone(async |app, _| app.list_tools().await);
        let lists = lists.await;
        let listed = begin.elapsed();
        println!("5,000 tools of 2 KB: ready after {ready:?}, listed in {listed:?}");
        for tools in lists {
            assert_eq!(tools.len(), 5003);
            let mut many = tools.iter().filter(|tool| tool.name.starts_with("tool-"));
            assert!(many.all(|tool| tool.input_schema_json.len() > 2048));
        }
        assert!(ready < Duration::from_secs(20) && listed < Duration::from_secs(10));
        // Pages are as small as one wants them.
        let request = v1::ListToolsRequest {
            page_size: 7,
            ..Default::default()
        };
        let page = scene.other().tools().list_tools(request).await;
        let page = page.unwrap().into_inner();
        assert_eq!(page.tools.len(), 7);
        assert_ne!(page.next_page_token, "");
    })
    .await;
}

// --- The log ---

#[tokio::test]
async fn the_last_lines_of_standard_error_are_kept_over_restarts_and_by_rpc() {
    let builder = TestDaemon::builder().set("limits.stderr_tail_bytes", 8192_u32);
    let scene = Scene::on(Stage::set(builder, 2).await);
    let (app, other) = (scene.app(), scene.other());
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
    let stranger = scene.daemon().clients_in("elsewhere").await;
    stranger.log(&server.id).await.unwrap_err();
}
