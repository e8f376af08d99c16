//! B20: the order of the end.

use std::path::Path;
use std::time::Instant;

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::disconnect_server_request::Target;

use super::{END, Scene, echo, lines, play, set_env, short};

#[tokio::test]
async fn b20_input_ends_first_and_work_is_finished() {
    let builder = TestDaemon::builder().set("timeouts.close", "5s");
    play(builder, async |scene: Scene| {
        let end = StdioFault::SlowEnd(700, scene.path("end"));
        let server = scene.add("flush", vec![end]).await;
        let mut updates = scene.other().updates("").await;
        updates.snapshot().await;
        let begin = Instant::now();
        scene.app().remove(&server.id).await.unwrap();
        assert_eq!(
            std::fs::read_to_string(scene.path("end")).unwrap(),
            "complete\n"
        );
        assert!(
            begin.elapsed() < Duration::from_secs(4),
            "no step is waited for in vain"
        );
        scene.is_gone("when the RPC returns");
        updates.deleted(&server.id).await;
    })
    .await;
}

#[tokio::test]
async fn b20_what_ignores_the_end_of_its_input_is_asked_to_end() {
    let builder = TestDaemon::builder().set("timeouts.close", "2s");
    play(builder, async |scene: Scene| {
        let faults = vec![StdioFault::IgnoresEnd(scene.path("asked"))];
        let server = scene.add("s", faults).await;
        let begin = Instant::now();
        scene.other().disconnect_server(&server.id).await.unwrap();
        let took = begin.elapsed();
        // The end of its input, two seconds, SIGTERM; and no two seconds that lead to SIGKILL.
        assert!(took >= Duration::from_secs(2), "{took:?}");
        assert!(took < Duration::from_secs(4), "{took:?}");
        let asked = std::fs::read_to_string(scene.path("asked")).unwrap();
        assert_eq!(asked, "asked to end\n");
        scene.is_gone("when the RPC returns");
        assert!(scene.zombies().is_empty());
    })
    .await;
}

#[tokio::test]
async fn b20_a_process_that_ignores_everything_is_killed_and_reaped() {
    play(short(), async |scene: Scene| {
        let server = scene.add("s", vec![StdioFault::Stubborn]).await;
        let hanging = tokio::spawn({
            let (other, id) = (scene.other().clone(), server.id.clone());
            async move { other.call_tool(&id, "hang", "{}").await }
        });
        scene.app().calls_in_flight(&server.id, 1).await;
        scene.all_echo(&server.id).await;
        let begin = Instant::now();
        scene.app().remove(&server.id).await.unwrap();
        assert!(begin.elapsed() < END);
        scene.is_gone("killed");
        assert!(scene.zombies().is_empty());
        within("the end of the call", hanging)
            .await
            .unwrap()
            .unwrap_err();
    })
    .await;
}

#[tokio::test]
async fn b20_a_process_that_closes_its_output_and_stays_is_replaced() {
    play(short(), async |scene: Scene| {
        let faults = vec![
            StdioFault::CloseOutput,
            StdioFault::Register(scene.path("pids")),
        ];
        let server = scene.add("s", faults).await;
        let first = scene.alive();
        echo(scene.app(), &server.id).await;
        eventually("another process", PATIENCE, async || {
            let server = scene.other().get(&server.id).await.unwrap();
            let alive = scene.alive();
            let replaced = alive.len() == 1 && alive != first;
            (replaced && server.state() == ConnectionState::Ready).then_some(())
        })
        .await;
        echo(scene.other(), &server.id).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b20_fifty_servers_end_in_the_time_of_one() {
    let builder = TestDaemon::builder()
        .set("timeouts.close", "1s")
        .set("timeouts.connect", "30s");
    play(builder, async |mut scene: Scene| {
        let spec = scene.spec("s", vec![StdioFault::Stubborn]).await;
        let apps = &scene.stage.apps;
        let adding = (0..50).map(|n| {
            let (app, mut spec) = (&apps[n % apps.len()], spec.clone());
            spec.name = format!("s-{n}");
            set_env(&mut spec, "NUMBER", &n.to_string());
            async move { app.add(&format!("s-{n}"), spec).await.unwrap() }
        });
        let added = futures_util::future::join_all(adding).await;
        let ids = added.into_iter().map(|added| added.server.unwrap().id);
        let ids: Vec<_> = ids.collect();
        let all_ready = async |app: &Clients| {
            for id in &ids {
                app.wait_for(id, ConnectionState::Ready).await;
            }
        };
        all_ready(scene.other()).await;
        assert_eq!(scene.alive().len(), 50);

        // All at once, by an RPC.
        let begin = Instant::now();
        let disconnect = v1::DisconnectServerRequest {
            namespace: scene.other().namespace(),
            target: Some(Target::AllServers(true)),
        };
        let mut servers = scene.other().servers();
        servers.disconnect_server(disconnect).await.unwrap();
        let took = begin.elapsed();
        println!("DisconnectServer of 50 stubborn servers, three steps of 1s: {took:?}");
        in_the_time_of_one(took);
        scene.is_gone("when the RPC returns");
        assert!(scene.zombies().is_empty(), "{:?}", scene.zombies());

        // And with the daemon.
        let app = scene.app();
        let connecting = ids.iter().map(|id| app.connect_server(id));
        for connected in futures_util::future::join_all(connecting).await {
            connected.unwrap();
        }
        all_ready(app).await;
        assert_eq!(scene.alive().len(), 50);
        let begin = Instant::now();
        let status = scene.stage.daemon.terminate().await;
        let took = begin.elapsed();
        println!("end of a daemon with 50 stubborn servers, three steps of 1s: {took:?}");
        in_the_time_of_one(took);
        assert!(status.success());
        scene.is_gone("when the daemon has ended");
    })
    .await;
}

/// The worst case of one server is three steps of a second; fifty may take about as long.
#[track_caller]
fn in_the_time_of_one(took: Duration) {
    assert!(took < Duration::from_secs(7), "{took:?}");
}

#[tokio::test]
async fn b20_a_failure_is_seen_before_the_process_has_ended() {
    let builder = TestDaemon::builder()
        .set("timeouts.close", "4s")
        .set("timeouts.connect", "1s")
        .set("timeouts.probe", "500ms");
    play(builder, async |scene: Scene| {
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
        let added = scene.app().add_with(request).await.unwrap();
        let server = added.server.unwrap();
        let seen = scene.stage.everyone(async |app, _| {
            let failed = app.wait_for(&server.id, ConnectionState::Failed).await;
            assert_eq!(failed.failure().0, "UPSTREAM_TIMEOUT");
        });
        seen.await;
        let first = scene.alive();
        assert_eq!(first.len(), 1, "the process is still being ended");
        let calls = scene.stage.everyone(async |app, _| {
            let call = app.call_tool(&server.id, "echo", "{}").await;
            let facts = ErrorFacts::expect(call, Code::Unavailable, "UPSTREAM_UNREACHABLE");
            assert!(facts.retry.is_some());
        });
        calls.await;

        // The next one starts when the first is gone, and not before: there is never more than one.
        eventually("the second process", PATIENCE, async || {
            let alive = scene.alive();
            assert!(alive.len() <= 1, "{alive:?}");
            (lines(Path::new(&scene.path("pids"))) == 2).then_some(())
        })
        .await;
        assert!(!scene.alive().contains(&first[0]));
        scene.other().remove(&server.id).await.unwrap();
        scene.is_gone("when the RPC returns");
    })
    .await;
}
