//! B22, B23: what is written that is no message, and sizes. The log: what is kept of standard error.

use std::time::Instant;

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::resident;

use super::{Scene, echo, set_env};

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
