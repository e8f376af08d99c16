//! B19: grandchildren do not survive.

use std::path::Path;
use std::time::Instant;

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::children;

use super::{END, Scene, echo, lines, set_env};

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
