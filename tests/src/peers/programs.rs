//! Programs in other languages: run to their end, or followed line by line while they run.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{ChildStdin, ChildStdout, Command};

use crate::process::Group;
use crate::wait::within;

/// Fails unless these programs can be started, and says which one cannot.
pub fn need(story: &str, programs: &[(&str, &str)]) {
    for (program, flag) in programs {
        let mut command = std::process::Command::new(program);
        let quiet = command
            .arg(flag)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        match quiet.status() {
            Ok(status) if status.success() => {}
            other => panic!("{story} needs `{program}`, but `{program} {flag}` gives {other:?}"),
        }
    }
}

/// A fenced block of a page.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// The heading above it, of whatever level.
    pub heading: String,
    /// What is written behind its fence.
    pub language: String,
    /// Its lines.
    pub text: String,
}

/// All fenced blocks of a Markdown file, in order.
pub fn fenced(file: &Path) -> Vec<Block> {
    let text =
        std::fs::read_to_string(file).unwrap_or_else(|cause| panic!("{}: {cause}", file.display()));
    let (mut blocks, mut heading) = (Vec::new(), String::new());
    let mut open: Option<Block> = None;
    for line in text.lines() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(language), None) => {
                open = Some(Block {
                    heading: heading.clone(),
                    language: language.to_owned(),
                    text: String::new(),
                });
            }
            (None, Some(block)) => {
                block.text.push_str(line);
                block.text.push('\n');
            }
            (None, None) if line.starts_with('#') => {
                line.trim_start_matches('#').trim().clone_into(&mut heading);
            }
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "{}: a block does not end", file.display());
    blocks
}

/// The fenced blocks of a language in a Markdown file, in order.
pub fn blocks(file: &Path, language: &str) -> Vec<String> {
    let blocks = fenced(file).into_iter();
    let blocks = blocks.filter(|block| block.language == language);
    blocks.map(|block| block.text).collect()
}

/// Runs a program with this input to its end, within a bound: whether it succeeded, and what it wrote to its standard
/// output and error.
pub async fn run(command: &mut Command, input: &str, bound: Duration) -> (bool, String, String) {
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|cause| panic!("cannot start {command:?}: {cause}"));
    let mut stdin = child.stdin.take().expect("its input");
    // A program that does not read its input may have ended already.
    let _gone = stdin.write_all(input.as_bytes()).await;
    drop(stdin);
    let output = tokio::time::timeout(bound, child.wait_with_output()).await;
    let output = output.unwrap_or_else(|_| panic!("{command:?} has not ended after {bound:?}"));
    let output = output.expect("wait for a program");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (
        output.status.success(),
        text(output.stdout),
        text(output.stderr),
    )
}

/// Runs a program that has to succeed: what it wrote to its standard output.
pub async fn succeed(command: &mut Command) -> String {
    let (success, said, errors) = run(command, "", Duration::from_secs(90)).await;
    assert!(success, "{command:?} failed; it said:\n{said}\n{errors}");
    said
}

/// A program that says what it sees, a line each.
pub struct Talker {
    _process: Group,
    input: ChildStdin,
    said: Lines<BufReader<ChildStdout>>,
}

impl Talker {
    /// Starts it.
    pub fn start(command: &mut Command) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Group::spawn(command)
            .unwrap_or_else(|cause| panic!("cannot start {command:?}: {cause}"));
        let input = process.take_stdin().expect("its input");
        let output = process.take_stdout().expect("its output");
        Self {
            _process: process,
            input,
            said: BufReader::new(output).lines(),
        }
    }

    /// Tells it a line.
    pub async fn tell(&mut self, line: &str) {
        let told = self.input.write_all(format!("{line}\n").as_bytes()).await;
        told.expect("the program listens");
    }

    /// Reads on until it says a line that is looked for; returns all lines up to it.
    pub async fn until(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> Vec<String> {
        let mut heard = Vec::new();
        let search = async {
            loop {
                let line = self
                    .said
                    .next_line()
                    .await
                    .expect("read what the program says");
                let line = line.unwrap_or_else(|| panic!("the program ended after {heard:#?}"));
                heard.push(line);
                if wanted(&heard[heard.len() - 1]) {
                    return;
                }
            }
        };
        within(&format!("the program to say: {what}"), search).await;
        heard
    }
}
