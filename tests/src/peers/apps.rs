//! Apps in other languages: their runtimes, and how each is started. Their sources are in `tests/apps`.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use super::install::installed;
use crate::process::{Group, not_tested, workspace_dir};
use crate::wait::within;

/// Why one of these programs cannot be started, if one cannot.
fn missing(runtimes: &[&str]) -> Option<String> {
    runtimes.iter().find_map(|name| {
        let mut command = std::process::Command::new(name);
        let version = if *name == "go" {
            "version"
        } else {
            "--version"
        };
        let quiet = command.arg(version).stdout(Stdio::null());
        match quiet.stderr(Stdio::null()).status() {
            Ok(status) if status.success() => None,
            Ok(status) => Some(format!("`{name} {version}` ended with {status}")),
            Err(cause) => Some(format!("`{name}` cannot be started: {cause}")),
        }
    })
}

/// Whether these programs can be started. If one cannot, the story is left out; where everything has to be tested
/// (`CI=true`) it fails.
pub fn have_runtimes(story: &str, runtimes: &[&str]) -> bool {
    let Some(why) = missing(runtimes) else {
        return true;
    };
    let complete = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(!complete, "{story} has to be tested here, but {why}");
    not_tested(&format!("{story}, because {why}"));
    false
}

/// Fails if one of these programs cannot be started, and says which.
pub fn need_runtimes(story: &str, runtimes: &[&str]) {
    if let Some(why) = missing(runtimes) {
        panic!("{story} cannot be told, because {why}");
    }
}

fn source(file: &str) -> PathBuf {
    workspace_dir().join("tests/apps").join(file)
}

fn protos() -> PathBuf {
    workspace_dir().join("proto")
}

/// Runs an app to its end and returns what it printed.
pub(crate) async fn run(command: &mut Command) -> String {
    let command = command.stdin(Stdio::null()).kill_on_drop(true);
    let output = within("the end of the app", command.output()).await;
    let output = output.unwrap_or_else(|cause| panic!("cannot start {command:?}: {cause}"));
    let said = String::from_utf8_lossy(&output.stderr);
    let status = output.status;
    assert!(status.success(), "{command:?} ended with {status}:\n{said}");
    let text = String::from_utf8(output.stdout).expect("an app prints UTF-8");
    text.trim_end().to_owned()
}

/// An app in Python makes a detached call and exits; the call's id.
pub async fn start_call(socket: &Path, server: &str, tool: &str) -> String {
    let python = installed("pyapp").await.join("bin/python");
    let stubs = tempfile::tempdir().expect("make a directory");
    let mut command = Command::new(python);
    command
        .arg(source("starter.py"))
        .args([socket, &protos(), stubs.path()])
        .args([server, tool]);
    run(&mut command).await
}

/// An app on the client SDK waits for a call: the call's state, and its text or the reason why it has none.
pub async fn wait_for(socket: &Path, call: &str) -> (String, String) {
    let program = crate::daemon::programs().await.join("waiter");
    let said = run(Command::new(program).arg(socket).arg(call)).await;
    let (state, outcome) = said.split_once('\n').expect("a state and an outcome");
    (state.to_owned(), outcome.to_owned())
}

/// An app in Node that follows updates and answers questions when it is told to; it follows from a snapshot on.
pub async fn follower(socket: &Path) -> App {
    let set = installed("nodeapp").await;
    let mut command = Command::new("node");
    command
        .arg(super::catalogue::placed(&set, &source("follower.mjs")))
        .args([socket, &protos()]);
    let mut app = App::start(&mut command);
    app.find("a snapshot", |line| line["following"] == true)
        .await;
    app
}

/// An app that says what it sees, a JSON object a line, and is told what to do in the same way.
pub struct App {
    process: Group,
    input: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl App {
    /// Starts it.
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let process = Group::spawn(command);
        let mut process = process.unwrap_or_else(|cause| panic!("start {command:?}: {cause}"));
        let input = process.take_stdin().expect("its input");
        let output = process.take_stdout().expect("its output");
        let said = BufReader::new(output).lines();
        Self {
            process,
            input,
            said,
        }
    }

    /// Waits for its end, which is a good one.
    pub async fn ends(mut self) {
        let status = self.process.wait(crate::wait::PATIENCE).await;
        let status = status.expect("the app ends");
        assert!(status.success(), "the app ended with {status}");
    }

    /// The next thing that it says.
    pub async fn next(&mut self) -> serde_json::Value {
        self.find("anything", |_| true).await
    }

    /// Process id.
    pub fn pid(&self) -> i32 {
        self.process.pid()
    }

    /// Tells it something.
    pub async fn tell(&mut self, word: &str) {
        let line = format!("{word}\n");
        let told = self.input.write_all(line.as_bytes()).await;
        told.expect("the app listens");
    }

    /// Reads on until a line holds this text, for an app that speaks to people; everything that it said.
    pub async fn hears(&mut self, text: &str) -> Vec<String> {
        let mut heard = Vec::new();
        let search = async {
            loop {
                let line = self.said.next_line().await.expect("read what the app says");
                let line = line.unwrap_or_else(|| panic!("the app ended after {heard:#?}"));
                let found = line.contains(text);
                heard.push(line);
                if found {
                    return;
                }
            }
        };
        within(&format!("the app to say: {text}"), search).await;
        heard
    }

    /// Reads on until it says something that is looked for.
    pub async fn find(
        &mut self,
        what: &str,
        wanted: impl Fn(&serde_json::Value) -> bool,
    ) -> serde_json::Value {
        let mut heard = Vec::new();
        let search = async {
            loop {
                let line = self.said.next_line().await.expect("read what the app says");
                let line = line.unwrap_or_else(|| panic!("the app ended after {heard:#?}"));
                let line: serde_json::Value = serde_json::from_str(&line).expect("JSON");
                if wanted(&line) {
                    return line;
                }
                heard.push(line);
            }
        };
        within(&format!("the app to say: {what}"), search).await
    }
}
