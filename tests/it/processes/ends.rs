//! B20: the order of the end.

use std::path::Path;
use std::time::Instant;

use mcp_sidecar_tests::prelude::*;

use super::{END, Scene, echo, lines, set_env};

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
