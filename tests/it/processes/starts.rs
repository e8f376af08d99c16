//! B25: starts.

use std::path::Path;
use std::time::Instant;

use mcp_sidecar_tests::prelude::*;

use super::{Scene, echo, lines, play, short};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b25_a_hundred_first_calls_start_one_process() {
    play(short(), async |scene: Scene| {
        let faults = vec![
            StdioFault::Register(scene.path("pids")),
            StdioFault::SlowStart(2000),
        ];
        let request = v1::AddServerRequest {
            spec: Some(scene.spec("slow", faults).await),
            wait_timeout: Some(millis(0)),
            ..Default::default()
        };
        let added = scene.app().add_with(request).await.unwrap();
        let server = added.server.unwrap();
        let apps = &scene.stage.apps;
        let calls = (0..100).map(|n| echo(&apps[n % apps.len()], &server.id));
        let answers = within("100 answers", futures_util::future::join_all(calls)).await;
        assert!(answers.iter().all(|answer| answer == r#"{"n":1}"#));
        assert_eq!(lines(Path::new(&scene.path("pids"))), 1, "one process");
    })
    .await;
}

#[tokio::test]
async fn b25_a_process_that_exits_at_once_is_started_rarely_and_calls_fail_fast() {
    play(short(), async |scene: Scene| {
        let pids = scene.path("pids");
        let faults = vec![
            StdioFault::Register(pids.clone()),
            StdioFault::Say("no licence".to_owned()),
            StdioFault::ExitAtOnce(7),
        ];
        let spec = scene.spec("s", faults).await;
        let added = scene.app().add("", spec).await.unwrap();
        let id = added.server.unwrap().id;
        // Every app sees the state and its cause.
        for app in &scene.stage.apps {
            let server = app.get(&id).await.unwrap();
            assert_eq!(server.state(), ConnectionState::Failed, "{server:#?}");
            let (reason, message) = server.failure();
            assert_eq!(reason, "UPSTREAM_UNREACHABLE");
            assert!(message.contains("exit status: 7"), "{message}");
            assert!(server.facts().stderr_tail.contains("no licence"));
            assert!(server.facts().next_retry_time.is_some(), "{server:#?}");
        }
        assert!(lines(Path::new(&pids)) <= 2);

        // Calls do not start anything, and say when to come back. The bound on starts within a minute is a test of the machine.
        let begin = Instant::now();
        scene
            .stage
            .everyone(async |app, _| {
                for _ in 0..25 {
                    let call = app.call_tool(&id, "echo", "{}").await;
                    let facts = ErrorFacts::expect(call, Code::Unavailable, "UPSTREAM_UNREACHABLE");
                    let retry = facts.retry.expect("when to try again");
                    assert!(
                        retry <= Duration::from_secs(5) && facts.message.contains("exit status: 7"),
                        "{facts:?}"
                    );
                }
            })
            .await;
        assert!(
            begin.elapsed() < Duration::from_secs(2),
            "{:?}",
            begin.elapsed()
        );
        assert!(lines(Path::new(&pids)) <= 3);

        // Somebody who knows better: at once, and thoroughly.
        let before = lines(Path::new(&pids));
        let again = scene.other().connect_server(&id).await.unwrap();
        assert_eq!(again.state(), ConnectionState::Failed);
        assert_eq!(again.facts().failed_attempts, 1, "the count starts anew");
        assert_eq!(lines(Path::new(&pids)), before + 2);
    })
    .await;
}
