//! B19: grandchildren do not survive.

use std::path::Path;
use std::time::Instant;

use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::children;
use rustix::process::{Pid, Signal, kill_process};

use super::{END, Scene, lines, play, set_env, short};

#[tokio::test]
async fn b19_grandchildren_do_not_survive_removal_disconnection_or_reload() {
    play(short(), async |scene: Scene| {
        let (app, other) = (scene.app(), scene.other());
        let mut spec = scene.spec("family", scene.helpers()).await;
        let server = scene.stage.add("family", spec.clone()).await;
        scene.helpers_run(4).await;
        assert_eq!(scene.alive().len(), 5, "a server and four helpers");

        // Reload: changed settings replace the process.
        let before = scene.alive();
        set_env(&mut spec, "CHANGED", "yes");
        let reloaded = other.add("family", spec).await.unwrap();
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
        scene.all_echo(&server.id).await;
        other.remove(&server.id).await.unwrap();
        scene.is_gone("when RemoveServer returns, all is gone");
        scene.no_zombies().await;
    })
    .await;
}

#[tokio::test]
async fn b19_grandchildren_do_not_survive_a_wrapper_that_exits() {
    play(short(), async |scene: Scene| {
        let mut faults = scene.helpers();
        faults.push(StdioFault::ExitAtOnce(0));
        let spec = scene.spec("wrapper", faults).await;
        let added = scene.app().add("wrapper", spec).await.unwrap();
        assert_eq!(added.server.unwrap().state(), ConnectionState::Failed);
        scene.helpers_run(8).await;
        // Without anybody's help: they have no server any more.
        scene.all_gone().await;
        let server = scene.other().get("wrapper").await.unwrap();
        assert_eq!(server.state(), ConnectionState::Failed, "{server:#?}");
        scene.other().remove("wrapper").await.unwrap();
        scene.all_gone().await;
        scene.no_zombies().await;
    })
    .await;
}

#[tokio::test]
async fn b19_grandchildren_do_not_survive_a_leader_that_is_killed() {
    play(short(), async |scene: Scene| {
        let mut faults = scene.helpers();
        faults.push(StdioFault::Register(scene.path("leaders")));
        let server = scene.add("family", faults).await;
        scene.helpers_run(4).await;
        let before = scene.alive();
        let leader = std::fs::read_to_string(scene.path("leaders")).unwrap();
        let leader = Pid::from_raw(leader.trim().parse().unwrap()).unwrap();
        kill_process(leader, Signal::KILL).unwrap();
        // The next process is not started before the whole family of the one before it is gone.
        eventually("another leader", PATIENCE, async || {
            (lines(Path::new(&scene.path("leaders"))) == 2).then_some(())
        })
        .await;
        let now = scene.alive();
        assert!(
            now.iter().all(|pid| !before.contains(pid)),
            "{before:?} {now:?}"
        );
        for app in &scene.stage.apps {
            app.wait_for(&server.id, ConnectionState::Ready).await;
        }
        scene.all_echo(&server.id).await;
        scene.other().remove(&server.id).await.unwrap();
        scene.is_gone("when RemoveServer returns, all is gone");
        scene.no_zombies().await;
    })
    .await;
}

#[tokio::test]
async fn b19_grandchildren_do_not_survive_the_end_of_the_daemon() {
    play(short(), async |mut scene: Scene| {
        let server = scene.add("family", scene.helpers()).await;
        scene.helpers_run(4).await;
        scene.all_echo(&server.id).await;
        let status = scene.stage.daemon.terminate().await;
        assert!(status.success(), "{}", scene.daemon().log());
        scene.is_gone("when the daemon has ended, all is gone");
    })
    .await;
}

#[tokio::test]
async fn b19_nothing_survives_a_killed_daemon() {
    play(short(), async |mut scene: Scene| {
        // Each app has a server of its own.
        for (app, name) in [(scene.app(), "one"), (scene.other(), "two")] {
            app.add_ready(scene.spec(name, scene.helpers()).await).await;
        }
        let mut stubborn = scene.helpers();
        stubborn.push(StdioFault::Stubborn);
        scene.add("stubborn", stubborn).await;
        scene.helpers_run(12).await;
        assert_eq!(scene.alive().len(), 15);

        scene.stage.daemon.kill9().await;
        let killed = Instant::now();
        scene.all_gone().await;
        println!("all gone {:?} after kill -9", killed.elapsed());
    })
    .await;
}

#[tokio::test]
async fn b19_the_next_daemon_ends_what_daemon_and_guard_left_and_only_then_starts() {
    play(short(), async |mut scene: Scene| {
        let mut faults = scene.helpers();
        faults.push(StdioFault::LockFile(scene.path("lock")));
        faults.push(StdioFault::SlowEnd(100, scene.path("ends")));
        let server = scene.add("family", faults).await;
        scene.helpers_run(4).await;
        let before = scene.alive();

        // Both at once, as the kernel does it when memory runs out.
        let guard = Pid::from_raw(scene.guards()[0]).unwrap();
        kill_process(guard, Signal::STOP).unwrap();
        scene.stage.daemon.kill9().await;
        kill_process(guard, Signal::KILL).unwrap();
        assert!(
            !scene.alive().is_empty(),
            "something is left for the next daemon"
        );
        scene.stage.restart().await;
        // A second process at the same time would find the lock taken.
        for app in &scene.stage.apps {
            app.wait_for(&server.id, ConnectionState::Ready).await;
        }
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
        scene.all_echo(&server.id).await;
    })
    .await;
}

#[tokio::test]
async fn b19_a_guard_that_dies_is_replaced() {
    play(short(), async |mut scene: Scene| {
        // Whatever app adds a server: the guard is the daemon's.
        for (app, name) in [(scene.app(), "one"), (scene.other(), "two")] {
            app.add_ready(scene.spec(name, Vec::new()).await).await;
        }
        let first = scene.guards();
        assert_eq!(first.len(), 1, "one guard for the whole daemon");
        kill_process(Pid::from_raw(first[0]).unwrap(), Signal::KILL).unwrap();
        eventually("another guard", PATIENCE, async || {
            let now = scene.guards();
            (now.len() == 1 && now != first).then_some(())
        })
        .await;
        scene.stage.daemon.kill9().await;
        scene.all_gone().await;
    })
    .await;
}

impl Scene {
    /// The daemon's children that belong to no server.
    fn guards(&self) -> Vec<i32> {
        let alive = self.alive();
        let mut guards = children(self.daemon().pid(), false);
        guards.retain(|pid| !alive.contains(pid));
        guards
    }

    async fn no_zombies(&self) {
        eventually("no zombies", END, async || {
            self.zombies().is_empty().then_some(())
        })
        .await;
    }
}
