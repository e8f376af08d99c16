//! Child processes that leave nothing behind.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, Command};

/// A child process in its own process group. Dropping it kills the whole group.
pub struct Group {
    child: Child,
    pid: Pid,
}

impl Group {
    /// Starts the command as the leader of a new process group.
    pub fn spawn(command: &mut Command) -> std::io::Result<Self> {
        let child = command.process_group(0).spawn()?;
        let pid = child
            .id()
            .and_then(|id| Pid::from_raw(id.try_into().ok()?))
            .ok_or_else(|| std::io::Error::other("the child has no process id"))?;
        Ok(Self { child, pid })
    }

    /// Process id of the leader.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Sends a signal to the leader only.
    pub fn signal(&self, signal: Signal) {
        // The process may be gone already, which is what most signals are for.
        let _gone = kill_process(self.pid, signal);
    }

    /// Waits for the leader's end; `None` if it is still running after `bound`.
    pub async fn wait(&mut self, bound: Duration) -> Option<ExitStatus> {
        let ended = tokio::time::timeout(bound, self.child.wait()).await;
        ended.ok().map(|status| status.expect("wait for a child"))
    }

    /// The exit status, if the leader has ended.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().expect("look after a child")
    }

    /// The child's standard input, once.
    pub fn take_stdin(&mut self) -> Option<tokio::process::ChildStdin> {
        self.child.stdin.take()
    }

    /// The child's standard output, once.
    pub fn take_stdout(&mut self) -> Option<tokio::process::ChildStdout> {
        self.child.stdout.take()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _gone = kill_process_group(self.pid, Signal::KILL);
        let _reaped = self.child.try_wait();
    }
}

/// Says that a part of a story is left out on this machine. Not with a macro, whose output is shown only when a test fails.
pub fn not_tested(what: &str) {
    let _unheard = writeln!(std::io::stderr(), "NOT TESTED: {what}");
}

/// Processes that were started with this text in an environment variable, without those that have ended.
pub fn with_variable(text: &str) -> Vec<i32> {
    processes(|pid| environment(pid).iter().any(|one| one.contains(text)))
}

/// The variables with which a process was started, as `NAME=value`; none if it has ended.
pub fn environment(pid: i32) -> Vec<String> {
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let variables = environment.split(|byte| *byte == 0);
    variables
        .filter(|variable| !variable.is_empty())
        .map(|variable| String::from_utf8_lossy(variable).into_owned())
        .collect()
}

/// Children of a process; with `ended`, only those that have ended and that nobody has waited for.
pub fn children(parent: i32, ended: bool) -> Vec<i32> {
    processes(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let Some((_, fields)) = stat.rsplit_once(") ") else {
            return false;
        };
        let mut fields = fields.split(' ');
        let is_ended = fields.next() == Some("Z");
        fields.next() == Some(&parent.to_string()) && is_ended == ended
    })
}

/// Resident memory of a process in bytes: now, and at most so far.
pub fn resident(pid: i32) -> (u64, u64) {
    let status = status(pid);
    (bytes_of(&status, "VmRSS:"), bytes_of(&status, "VmHWM:"))
}

/// Resident memory of a process in bytes without the pages of files, such as the program's own.
pub fn anonymous(pid: i32) -> u64 {
    bytes_of(&status(pid), "RssAnon:")
}

fn status(pid: i32) -> String {
    std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a running process")
}

fn bytes_of(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_ascii_whitespace().next());
    let kilobytes = number.and_then(|number| number.parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}

fn processes(wanted: impl Fn(i32) -> bool) -> Vec<i32> {
    let entries = std::fs::read_dir("/proc").expect("a process table");
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| wanted(*pid)).collect()
}

/// Directory of the profile this program was built with, for example `target/debug`.
pub fn profile_dir() -> PathBuf {
    let exe = std::env::current_exe().expect("path of the running program");
    let dir = exe.parent().expect("a program lies in a directory");
    let dir = if dir.ends_with("deps") {
        dir.parent()
            .expect("`deps` lies in the profile's directory")
    } else {
        dir
    };
    dir.to_path_buf()
}

/// Cargo's target directory.
pub fn target_dir() -> PathBuf {
    let profile = profile_dir();
    let target = profile.parent().expect("the profile's parent directory");
    target.to_path_buf()
}

/// Root of the workspace.
pub fn workspace_dir() -> PathBuf {
    let tests = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    tests
        .parent()
        .expect("`tests` lies in the workspace")
        .to_path_buf()
}
