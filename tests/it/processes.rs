//! Servers that are processes: nothing of them survives, nothing that they write does harm.

mod cgroups;
mod ends;
mod families;
mod output;
mod starts;

use std::path::Path;

use mcp_sidecar_tests::daemon::Builder;
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::{children, with_variable};
use tempfile::TempDir;

/// Each step of ending a process; short, so that three of them are.
const GRACE: &str = "300ms";
/// All steps together, and then some for a busy machine.
const END: Duration = Duration::from_secs(10);

/// A daemon with its apps, scripts of its servers, and a text that all their processes carry in their environment.
struct Scene {
    stage: Stage,
    scripts: TempDir,
    mark: String,
}

/// A daemon that waits only [`GRACE`] for each step.
fn short() -> Builder {
    TestDaemon::builder().set("timeouts.close", GRACE)
}

/// The story with one app and with two, at the same time: processes are mostly waited for.
async fn play(builder: Builder, story: impl AsyncFn(Scene)) {
    one_and_two_at_once(builder, async |stage| story(Scene::on(stage)).await).await;
}

impl Scene {
    fn on(stage: Stage) -> Self {
        let scripts = tempfile::tempdir().unwrap();
        let mark = format!("scene-{}", scripts.path().display());
        Self {
            stage,
            scripts,
            mark,
        }
    }

    fn app(&self) -> &Clients {
        self.stage.app()
    }

    fn other(&self) -> &Clients {
        self.stage.other()
    }

    fn daemon(&self) -> &TestDaemon {
        &self.stage.daemon
    }

    /// The first app adds a server, and every app sees it READY.
    async fn add(&self, name: &str, faults: Vec<StdioFault>) -> Server {
        self.stage.add(name, self.spec(name, faults).await).await
    }

    /// Every app calls `echo` at the same time and gets its own answer.
    async fn all_echo(&self, id: &str) {
        let calls = self.stage.everyone(async |app, number| {
            let own = format!("{{\"app\":{number}}}");
            let result = app.call_tool(id, "echo", &own).await.expect("an answer");
            assert_eq!(text_of(&result), own);
        });
        within("the answers", calls).await;
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
                ..Helper::default()
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
        children(self.daemon().pid(), true)
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
