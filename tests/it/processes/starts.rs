//! B25: starts.

use std::path::Path;
use std::time::Instant;

use mcp_sidecar_tests::prelude::*;

use super::{Scene, echo, lines};

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
