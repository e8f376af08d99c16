//! A systemd of a test's own, the real one, as the first process of namespaces of its own.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use tokio::process::Command;

use crate::cgroup::{TestCgroup, command_in};
use crate::process::{Group, children, not_tested, workspace_dir};
use crate::wait::{eventually, within};

/// Time it has to come up, and any one command has.
const BOUND: Duration = Duration::from_mins(1);

/// What has to be there.
const PROGRAMS: [&str; 4] = [
    "/lib/systemd/systemd",
    "/usr/bin/systemctl",
    "/usr/bin/unshare",
    "/usr/bin/nsenter",
];

/// A running systemd. It sees the machine's files, and what is written to /etc, /usr and /var is gone with it; of the
/// machine's units it knows none. It shares the machine's network. Dropping it ends everything that runs in it.
pub struct OwnSystemd {
    // In this order: its processes end before their cgroup is removed.
    _unshared: Group,
    _cgroup: TestCgroup,
    shared: tempfile::TempDir,
    pid: i32,
}

impl OwnSystemd {
    /// Starts one. `None`, and a loud word, where there is none or nobody lets us.
    pub async fn start() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            not_tested("the units under systemd, because only root can start one");
            return None;
        }
        if let Some(missing) = PROGRAMS.iter().find(|path| !Path::new(path).exists()) {
            not_tested(&format!(
                "the units under systemd, because there is no {missing}"
            ));
            return None;
        }
        let cgroup = TestCgroup::make()?;
        let shared = tempfile::tempdir().expect("a directory");
        let mut command = command_in(cgroup.path(), Path::new("unshare"));
        command
            .args([
                "--kill-child",
                "--mount",
                "--pid",
                "--fork",
                "--cgroup",
                "--uts",
                "--ipc",
            ])
            .args(["--mount-proc", "sh"])
            .arg(workspace_dir().join("tests/src/own_systemd.sh"))
            .arg(shared.path())
            .stdin(Stdio::null())
            .stdout(std::fs::File::create(shared.path().join("systemd.log")).expect("a log"))
            .stderr(std::fs::File::create(shared.path().join("errors.log")).expect("a log"));
        let unshared = Group::spawn(&mut command).expect("start unshare");
        let child = eventually("the first process of the namespaces", BOUND, async || {
            children(unshared.pid(), false).first().copied()
        });
        let systemd = Self {
            pid: child.await,
            _unshared: unshared,
            _cgroup: cgroup,
            shared,
        };
        let log = systemd.shared.path().join("errors.log");
        eventually("systemd to run", BOUND, async || {
            let said = std::fs::read_to_string(&log).unwrap_or_default();
            assert!(
                !said.contains("mount:"),
                "the namespaces cannot be made: {said}"
            );
            let state = systemd.run("systemctl", &["is-system-running"]).await;
            let state = String::from_utf8_lossy(&state.stdout).trim().to_owned();
            matches!(state.as_str(), "running" | "degraded").then_some(())
        })
        .await;
        Some(systemd)
    }

    /// A path as the machine sees it. Only root can use it.
    pub fn outside(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid))
    }

    /// A directory that is shown at /srv.
    pub fn shared(&self) -> &Path {
        self.shared.path()
    }

    /// Runs a command inside to its end.
    pub async fn run(&self, program: &str, arguments: &[&str]) -> Output {
        let mut command = Command::new("nsenter");
        command
            .args(["--mount", "--pid", "--cgroup", "--uts", "--ipc", "--target"])
            .arg(self.pid.to_string())
            .arg(program)
            .args(arguments)
            // Those of the tests mean nothing inside.
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = within(program, command.output()).await;
        output.expect("start a command in the namespaces")
    }

    /// The same, which has to succeed; what it wrote.
    #[track_caller]
    pub fn done<'a>(
        &'a self,
        program: &'a str,
        arguments: &'a [&'a str],
    ) -> impl Future<Output = String> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let output = self.run(program, arguments).await;
            let (said, errors) = (
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
            );
            assert!(
                output.status.success(),
                "{caller}: `{program} {}` ended with {}:\n{said}{errors}\n{}",
                arguments.join(" "),
                output.status,
                self.log()
            );
            said.into_owned()
        }
    }

    /// A property of a unit.
    pub async fn property(&self, unit: &str, name: &str) -> String {
        let show = ["show", "--value", "--property", name, unit];
        self.done("systemctl", &show).await.trim().to_owned()
    }

    /// Waits until a property of a unit has this value.
    pub async fn until(&self, unit: &str, name: &str, value: &str) {
        let reached = eventually(unit, Duration::MAX, async || {
            (self.property(unit, name).await == value).then_some(())
        });
        if tokio::time::timeout(BOUND, reached).await.is_err() {
            let status = self.run("systemctl", &["status", "--no-pager", unit]).await;
            let status = String::from_utf8_lossy(&status.stdout).into_owned();
            panic!(
                "waited {BOUND:?} in vain for {name}={value}:\n{status}\n{}",
                self.log()
            );
        }
    }

    /// Writes a file inside, with its directories.
    pub fn write(&self, path: &str, text: &str) {
        let path = self.outside(path);
        std::fs::create_dir_all(path.parent().expect("a file is in a directory"))
            .expect("a directory");
        std::fs::write(path, text).expect("a file");
    }

    /// Everything that systemd has written, and that its services have where they write to it.
    pub fn log(&self) -> String {
        ["systemd.log", "errors.log", "daemon.log"]
            .iter()
            .map(|name| std::fs::read_to_string(self.shared.path().join(name)).unwrap_or_default())
            .collect()
    }
}
