//! B19 where the daemon may make cgroups: not even what hides and leaves survives, and no cgroup is left.

use std::path::Path;

use mcp_sidecar_tests::cgroup::members;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::children;
use rustix::process::{Pid, Signal, kill_process};

use super::{END, Scene, short};

/// A daemon in a cgroup of its own. Everything that it starts stays below: nothing else can hide less.
struct Delegated {
    scene: Scene,
    cgroup: TestCgroup,
}

/// The story with one app and with two, at the same time; not at all where no cgroup can be made, which is said.
async fn delegated(story: impl AsyncFn(Delegated)) {
    let play = async |count| {
        if let Some(stage) = Delegated::set(count).await {
            story(stage).await;
        }
    };
    tokio::join!(Box::pin(play(1)), Box::pin(play(2)));
}

impl Delegated {
    async fn set(apps: usize) -> Option<Self> {
        let cgroup = TestCgroup::make()?;
        let builder = short().cgroup(cgroup.path());
        let scene = Scene::on(Stage::set(builder, apps).await);
        // It tries one when it starts.
        scene.stage.daemon.log_holds("a cgroup of its own").await;
        Some(Self { scene, cgroup })
    }

    /// Helpers that leave group and session, lose their parent and have no environment.
    fn hidden(&self) -> Vec<StdioFault> {
        let helper = |stubborn| {
            StdioFault::Helper(Helper {
                detached: true,
                hidden: true,
                stubborn,
                holds_streams: false,
                pids: self.scene.path("helpers"),
            })
        };
        [false, true].map(helper).to_vec()
    }

    /// Adds a server with the helpers of [`Self::hidden`] and looks at its cgroup.
    async fn add(&self, app: &Clients, name: &str) -> Server {
        let (cgroups, helpers) = (self.cgroup.below().len(), self.started());
        let spec = self.scene.spec(name, self.hidden()).await;
        let server = app.add_ready(spec).await;
        assert_eq!(self.started(), helpers + 2);
        let below = self.cgroup.below();
        assert_eq!(below.len(), cgroups + 1, "a cgroup per server: {below:?}");
        server
    }

    fn started(&self) -> usize {
        super::lines(Path::new(&self.scene.path("helpers")))
    }

    /// Everything but the daemon and its guard, wherever it is.
    fn others(&self) -> Vec<i32> {
        let daemon = self.scene.stage.daemon.pid();
        let mut all = members(self.cgroup.path());
        all.retain(|pid| *pid != daemon && !is_guard(*pid));
        for cgroup in self.cgroup.below() {
            all.extend(members(&cgroup));
        }
        all
    }

    fn nothing_is_left(&self, when: &str) {
        let (others, below) = (self.others(), self.cgroup.below());
        assert!(others.is_empty(), "{when}: {others:?} are left");
        assert!(below.is_empty(), "{when}: {below:?} are left");
        let daemon = self.scene.stage.daemon.pid();
        let home = members(self.cgroup.path());
        assert!(home.contains(&daemon), "{when}: the daemon is at home");
    }

    /// Waits until daemon and guard are gone as well, which removes every cgroup.
    async fn all_is_gone(&self) {
        eventually("the end of everything", END, async || {
            let gone = members(self.cgroup.path()).is_empty() && self.cgroup.below().is_empty();
            gone.then_some(())
        })
        .await;
    }
}

fn is_guard(pid: i32) -> bool {
    let cmdline = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    cmdline.contains("__guard")
}

#[tokio::test]
async fn b19_what_hides_does_not_survive_removal_or_disconnection() {
    delegated(async |stage| {
        let (app, other) = (stage.scene.app(), stage.scene.other());
        let first = stage.add(app, "first").await;
        let second = stage.add(other, "second").await;
        assert_eq!(stage.others().len(), 6, "two servers with two helpers each");

        app.remove(&first.id).await.unwrap();
        assert_eq!(stage.others().len(), 3, "the other server is not touched");
        assert_eq!(stage.cgroup.below().len(), 1);
        stage.scene.all_echo(&second.id).await;

        app.disconnect_server(&second.id).await.unwrap();
        stage.nothing_is_left("when DisconnectServer returns");

        other.connect_server(&second.id).await.unwrap();
        assert_eq!(stage.others().len(), 3);
        other.remove(&second.id).await.unwrap();
        stage.nothing_is_left("when RemoveServer returns");
    })
    .await;
}

#[tokio::test]
async fn b19_what_forks_without_end_is_killed_in_one_stroke() {
    delegated(async |stage| {
        let app = stage.scene.other();
        let faults = vec![StdioFault::Restless];
        let spec = stage.scene.spec("restless", faults).await;
        let server = app.add_ready(spec).await;
        app.remove(&server.id).await.unwrap();
        stage.nothing_is_left("when RemoveServer returns");
    })
    .await;
}

#[tokio::test]
async fn b19_what_hides_does_not_survive_the_daemon() {
    delegated(async |mut stage| {
        let app = stage.scene.other();
        stage.add(app, "family").await;
        let status = stage.scene.stage.daemon.terminate().await;
        assert!(status.success(), "{}", stage.scene.stage.daemon.log());
        let (left, below) = (members(stage.cgroup.path()), stage.cgroup.below());
        assert!(left.is_empty() && below.is_empty(), "{left:?} {below:?}");
    })
    .await;
}

#[tokio::test]
async fn b19_what_hides_does_not_survive_a_killed_daemon() {
    delegated(async |mut stage| {
        let app = stage.scene.other();
        for name in ["one", "two"] {
            stage.add(app, name).await;
        }
        let restless = stage
            .scene
            .spec("restless", vec![StdioFault::Restless])
            .await;
        app.add_ready(restless).await;
        stage.scene.stage.daemon.kill9().await;
        stage.all_is_gone().await;
    })
    .await;
}

#[tokio::test]
async fn b19_the_next_daemon_ends_what_hides_if_the_guard_is_gone_too() {
    delegated(async |mut stage| {
        let app = stage.scene.other();
        let server = stage.add(app, "family").await;
        let before = stage.others();
        assert_eq!(before.len(), 3);

        let daemon = stage.scene.stage.daemon.pid();
        let guards = children(daemon, false);
        let guard = guards.into_iter().find(|pid| is_guard(*pid)).unwrap();
        let guard = Pid::from_raw(guard).unwrap();
        // Both at once, as the kernel does it when memory runs out.
        kill_process(guard, Signal::STOP).unwrap();
        stage.scene.stage.daemon.kill9().await;
        kill_process(guard, Signal::KILL).unwrap();
        assert_eq!(stage.cgroup.below().len(), 1, "something is left");

        stage.scene.stage.restart().await;
        let app = stage.scene.other();
        app.wait_for(&server.id, ConnectionState::Ready).await;
        let now = stage.others();
        assert_eq!(now.len(), 3, "{before:?} {now:?}");
        assert!(now.iter().all(|pid| !before.contains(pid)));
        assert_eq!(stage.cgroup.below().len(), 1);
        app.remove(&server.id).await.unwrap();
        stage.nothing_is_left("when RemoveServer returns");
    })
    .await;
}

#[tokio::test]
async fn b19_a_program_that_cannot_be_started_leaves_no_cgroup() {
    delegated(async |stage| {
        let app = stage.scene.other();
        let spec = stdio_spec("absent", "/no/such/program", &[]);
        let server = app.add("", spec).await.unwrap().server.unwrap();
        let (reason, message) = server.failure();
        assert_eq!(reason, "UPSTREAM_UNREACHABLE");
        assert!(message.contains("/no/such/program"), "{message}");
        stage.nothing_is_left("nothing was started");
    })
    .await;
}

/// Servers that make cgroups themselves, as those do that run containers.
#[tokio::test]
async fn b19_what_moves_into_a_cgroup_below_belongs_to_its_server() {
    delegated(async |stage| {
        let app = stage.scene.other();
        let server = stage.add(app, "family").await;
        let own = stage.cgroup.below().remove(0);
        let inner = own.join("inner").join("most");
        std::fs::create_dir_all(&inner).unwrap();
        for pid in members(&own) {
            std::fs::write(inner.join("cgroup.procs"), pid.to_string()).unwrap();
        }
        assert_eq!(members(&inner).len(), 3);
        app.remove(&server.id).await.unwrap();
        stage.nothing_is_left("when RemoveServer returns");
    })
    .await;
}

#[tokio::test]
async fn b19_without_cgroups_everything_else_holds_and_is_said_once() {
    for apps in 1..=2 {
        // The daemon's own cgroup: one that may have no others below it.
        let Some(cgroup) = TestCgroup::make() else {
            return;
        };
        std::fs::write(cgroup.path().join("cgroup.max.descendants"), "0").unwrap();
        let scene = Scene::on(Stage::set(short().cgroup(cgroup.path()), apps).await);
        let server = scene.add("s", scene.helpers()).await;
        assert_eq!(cgroup.below().len(), 0);
        scene.other().remove(&server.id).await.unwrap();
        scene.is_gone("when RemoveServer returns");
        let log = scene.daemon().log();
        let said: Vec<_> = log
            .lines()
            .filter(|line| line.contains("no cgroups of their own"))
            .collect();
        assert_eq!(said.len(), 1, "{log}");
        assert!(said[0].contains(" INFO "), "{said:?}");
    }
}
