//! The built binary as an operator and a service manager see it: exit codes, messages, signals, sockets.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// A wait that only a failed test ever needs in full.
const PATIENCE: Duration = Duration::from_mins(1);
const BINARY: &str = env!("CARGO_BIN_EXE_mcp-sidecard");

/// A command that sees nothing of the surroundings but `home`.
fn command(program: &str, home: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("HOME", home)
        .env("STATE_DIRECTORY", home.join("state"))
        .env("PATH", "/usr/bin:/bin");
    command
}

fn run(home: &TempDir, arguments: &[&str]) -> Output {
    let mut command = command(BINARY, home.path());
    command.args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn a_bad_configuration_ends_with_64_and_one_message() {
    let home = tempfile::tempdir().unwrap();
    let output = run(
        &home,
        &[
            "check-config",
            "--set",
            "log.filtr=x",
            "--set",
            "limits.rounds=0",
            "--set",
            "limits.connections_per_user=2000",
        ],
    );
    assert_eq!(output.status.code(), Some(64));
    assert_eq!(text(&output.stdout), "");
    let message = text(&output.stderr);
    assert!(message.contains("did you mean `log.filter`?"), "{message}");
    assert!(message.contains("`limits.rounds` is 0"), "{message}");
    let share = "`limits.connections_per_user` is 2000; it must be between 1 and 1024";
    assert!(message.contains(share), "{message}");
    assert_eq!(run(&home, &["--no-such-flag"]).status.code(), Some(64));
}

#[test]
fn the_configuration_can_be_checked_and_printed() {
    let home = tempfile::tempdir().unwrap();
    let socket = home.path().join("s");
    let socket = socket.to_str().unwrap();
    let checked = run(&home, &["check-config", "--socket", socket]);
    assert_eq!(checked.status.code(), Some(0), "{}", text(&checked.stderr));

    let printed = run(&home, &["--print-config", "--socket", socket]);
    assert_eq!(printed.status.code(), Some(0), "{}", text(&printed.stderr));
    let file = home.path().join("printed.toml");
    std::fs::write(&file, &printed.stdout).unwrap();
    let again = run(
        &home,
        &["--print-config", "--config", file.to_str().unwrap()],
    );
    assert_eq!(text(&again.stdout), text(&printed.stdout));
    assert!(text(&again.stdout).contains("keep_age = \"1day\""));
    assert!(text(&again.stdout).contains("connections_per_user = 768"));
}

#[test]
fn a_failed_start_ends_with_1() {
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join("s");
    std::fs::write(&path, "not a socket").unwrap();
    let output = run(&home, &["--socket", path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("not a socket"),
        "{}",
        text(&output.stderr)
    );
}

/// Plays the service manager: a notification socket, and a child that is killed if the test fails.
struct Manager {
    home: TempDir,
    notifications: UnixDatagram,
    child: Option<Child>,
}

impl Manager {
    fn new() -> Self {
        let home = tempfile::tempdir().unwrap();
        let notifications = UnixDatagram::bind(home.path().join("notify")).unwrap();
        notifications.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            home,
            notifications,
            child: None,
        }
    }

    fn start(&mut self, mut command: Command) {
        command
            .env("NOTIFY_SOCKET", self.home.path().join("notify"))
            .stderr(Stdio::piped());
        self.child = Some(command.spawn().unwrap());
    }

    /// Reads notifications until one says `wanted`.
    fn wait_for(&self, wanted: &str) {
        let mut buffer = [0; 512];
        loop {
            let length = match self.notifications.recv(&mut buffer) {
                Err(cause) if cause.kind() == ErrorKind::Interrupted => continue,
                received => received.unwrap(),
            };
            if text(&buffer[..length]).lines().any(|line| line == wanted) {
                return;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        let id = self.child.as_ref().unwrap().id();
        let pid = Pid::from_raw(i32::try_from(id).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Waits for the end; returns the exit code and the log.
    fn end(&mut self) -> (Option<i32>, String) {
        let mut child = self.child.take().unwrap();
        let mut log = String::new();
        child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut log)
            .unwrap();
        (child.wait().unwrap().code(), log)
    }
}

impl Drop for Manager {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn the_service_manager_is_told_and_the_socket_is_removed() {
    let mut manager = Manager::new();
    let socket = manager.home.path().join("run/app.sock");
    let mut daemon = command(BINARY, manager.home.path());
    daemon
        .arg("--socket")
        .arg(&socket)
        .args(["--set", "log.format=json"])
        .env("WATCHDOG_USEC", "20000");
    manager.start(daemon);
    manager.wait_for("READY=1");
    UnixStream::connect(&socket).unwrap();
    manager.wait_for("WATCHDOG=1");
    manager.terminate();
    manager.wait_for("STOPPING=1");
    let (code, log) = manager.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(!socket.exists());
    let first: serde_json::Value = serde_json::from_str(log.lines().next().unwrap()).unwrap();
    assert_eq!(first["level"], "INFO");
}

#[test]
fn a_passed_socket_is_used_and_left_alone() {
    let mut manager = Manager::new();
    let passed = manager.home.path().join("passed");
    let listener: OwnedFd = UnixListener::bind(&passed).unwrap().into();
    // The shell puts the listener where the service manager does: descriptor 3, with LISTEN_PID of the daemon.
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" --socket \"$1\"";
    let mut shell = command("sh", manager.home.path());
    shell
        .args(["-c", script, BINARY])
        .arg(manager.home.path().join("unused"))
        .stdin(Stdio::from(listener));
    manager.start(shell);
    manager.wait_for("READY=1");
    UnixStream::connect(&passed).unwrap();
    assert!(!manager.home.path().join("unused").exists());
    manager.terminate();
    let (code, log) = manager.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(passed.exists());
}

#[test]
fn sockets_are_told_apart_by_their_names() {
    let mut manager = Manager::new();
    let [admin, app] = ["passed-admin", "passed-app"].map(|name| manager.home.path().join(name));
    let [first, second]: [OwnedFd; 2] =
        [&admin, &app].map(|path| UnixListener::bind(path).unwrap().into());
    let script = "exec 3<&0 4<&1 </dev/null >/dev/null; LISTEN_FDS=2 LISTEN_FDNAMES=admin:app LISTEN_PID=$$ exec \"$0\"";
    let mut shell = command("sh", manager.home.path());
    shell
        .args(["-c", script, BINARY])
        .stdin(Stdio::from(first))
        .stdout(Stdio::from(second));
    manager.start(shell);
    manager.wait_for("READY=1");
    for path in [&admin, &app] {
        UnixStream::connect(path).unwrap();
    }
    manager.terminate();
    let (code, log) = manager.end();
    assert_eq!(code, Some(0), "{log}");
    let ready = log.lines().find(|line| line.contains("ready")).unwrap();
    assert!(
        ready.contains(&format!("socket={}", app.display())),
        "{ready}"
    );
    assert!(
        ready.contains(&format!("admin={}", admin.display())),
        "{ready}"
    );
}

#[test]
fn the_service_manager_is_told_of_a_reload() {
    let mut manager = Manager::new();
    let mut daemon = command(BINARY, manager.home.path());
    let config = manager.home.path().join("config.toml");
    std::fs::write(&config, "log.filter = \"info\"\n").unwrap();
    daemon.arg("--config").arg(&config);
    manager.start(daemon);
    manager.wait_for("READY=1");
    let mut expected = Vec::new();
    for (text, said) in [
        ("log.filter = \"debug\"\n", "applied=\"log.filter\""),
        ("log.filtr = \"warn\"\n", "did you mean `log.filter`?"),
    ] {
        std::fs::write(&config, text).unwrap();
        manager.signal(Signal::HUP);
        manager.wait_for("RELOADING=1");
        manager.wait_for("READY=1");
        expected.push(said);
    }
    manager.terminate();
    let (code, log) = manager.end();
    assert_eq!(code, Some(0), "{log}");
    for said in expected {
        assert!(log.contains(said), "{said}\n{log}");
    }
}

#[test]
fn settings_of_the_allocator_that_get_lost_are_no_reason_to_start_for_ever() {
    let mut manager = Manager::new();
    // As the dynamic linker leaves it for a program with capabilities: the settings are gone, what was done is not.
    let script = "MCP_SIDECAR_ALLOCATOR=$$ exec \"$0\"";
    let mut shell = command("sh", manager.home.path());
    shell.args(["-c", script, BINARY]);
    manager.start(shell);
    manager.wait_for("READY=1");
    manager.terminate();
    let (code, log) = manager.end();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("the allocator keeps its defaults"), "{log}");
}
