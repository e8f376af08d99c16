//! The program `mcp-sidecar`, run to its end or at a terminal.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use pty_process::{OwnedWritePty, Size};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::daemon::{TestDaemon, programs};
use crate::wait::within;

/// How the program ended, and what it wrote.
#[derive(Clone, Debug)]
pub struct Ran {
    /// Its exit code.
    pub code: i32,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

#[allow(
    clippy::return_self_not_must_use,
    reason = "an expectation is complete without a look at the rest"
)]
impl Ran {
    /// Expects success; returns standard output.
    #[track_caller]
    pub fn ok(self) -> String {
        self.ends_with(0).stdout
    }

    /// Expects success and JSON.
    #[track_caller]
    pub fn json(self) -> Value {
        let text = self.ok();
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error} in {text}"))
    }

    /// Expects an exit code.
    #[track_caller]
    pub fn ends_with(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self:#?}");
        self
    }

    /// Expects an exit code, and words on standard error.
    #[track_caller]
    pub fn fails(self, code: i32, words: &str) -> Self {
        let ran = self.ends_with(code);
        assert!(ran.stderr.contains(words), "`{words}` in {ran:#?}");
        ran
    }
}

/// How the program is run.
#[derive(Clone, Default)]
pub struct Invocation {
    arguments: Vec<String>,
    stdin: Option<String>,
    env: Vec<(String, String)>,
    elsewhere: bool,
}

impl Invocation {
    /// With these arguments, without anything at standard input.
    pub fn new(arguments: &[&str]) -> Self {
        Self {
            arguments: arguments.iter().map(|&one| one.to_owned()).collect(),
            ..Self::default()
        }
    }

    /// With this text at standard input.
    #[must_use]
    pub fn stdin(mut self, text: &str) -> Self {
        self.stdin = Some(text.to_owned());
        self
    }

    /// With this variable in its environment.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Without the variable that names the socket.
    #[must_use]
    pub fn elsewhere(mut self) -> Self {
        self.elsewhere = true;
        self
    }

    fn variables(&self, socket: &Path) -> Vec<(String, String)> {
        let socket = socket.to_str().expect("a path is UTF-8");
        let path = std::env::var("PATH").expect("a PATH");
        let mut all = vec![("PATH".to_owned(), path)];
        if !self.elsewhere {
            all.push(("MCP_SIDECAR_SOCKET".to_owned(), socket.to_owned()));
        }
        all.extend(self.env.clone());
        all
    }

    /// Starts it with pipes at its standard streams.
    pub async fn start(&self, socket: &Path) -> Child {
        let stdin = match self.stdin {
            Some(_) => Stdio::piped(),
            None => Stdio::null(),
        };
        let mut child = Command::new(programs().await.join("mcp-sidecar"))
            .args(&self.arguments)
            .env_clear()
            .envs(self.variables(socket))
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("start mcp-sidecar");
        if let (Some(text), Some(mut stdin)) = (&self.stdin, child.stdin.take()) {
            // Whoever does not read it ends the pipe.
            let _gone = stdin.write_all(text.as_bytes()).await;
        }
        child
    }

    /// Runs it to its end against a socket.
    pub async fn run(&self, socket: &Path) -> Ran {
        finish(self.start(socket).await).await
    }

    /// Starts it at a terminal of so many columns.
    pub async fn at_terminal(&self, socket: &Path, columns: u16) -> Terminal {
        let (pty, inner) = pty_process::open().expect("open a terminal");
        pty.resize(Size::new(40, columns))
            .expect("size the terminal");
        let child = pty_process::Command::new(programs().await.join("mcp-sidecar"))
            .args(&self.arguments)
            .env_clear()
            .env("TERM", "xterm-256color")
            .envs(self.variables(socket))
            .kill_on_drop(true)
            .spawn(inner)
            .expect("start mcp-sidecar");
        let (mut reading, keyboard) = pty.into_split();
        let screen = Arc::new(watch::Sender::new(String::new()));
        let written = Arc::clone(&screen);
        let reader = tokio::spawn(async move {
            let mut bytes = [0; 4096];
            // The terminal is gone (EIO) once nobody has it open any more.
            while let Ok(count @ 1..) = reading.read(&mut bytes).await {
                let text = String::from_utf8_lossy(&bytes[..count]).into_owned();
                written.send_modify(|screen| screen.push_str(&text));
            }
        });
        Terminal {
            child,
            keyboard,
            screen,
            reader,
            seen: 0,
        }
    }
}

/// Waits for the end of a program with pipes.
pub async fn finish(child: Child) -> Ran {
    let output = within("mcp-sidecar to end", child.wait_with_output());
    let output = output.await.expect("wait for mcp-sidecar");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("its output is UTF-8");
    Ran {
        code: output.status.code().expect("it ends by itself"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// The program at a terminal.
pub struct Terminal {
    child: Child,
    keyboard: OwnedWritePty,
    screen: Arc<watch::Sender<String>>,
    reader: tokio::task::JoinHandle<()>,
    /// How much of the output earlier expectations have used up.
    seen: usize,
}

impl Terminal {
    /// Waits until this text is written behind what was expected before.
    pub async fn expect(&mut self, text: &str) {
        let mut screen = self.screen.subscribe();
        let from = self.seen;
        let found = screen.wait_for(|screen| screen[from..].contains(text));
        let found = tokio::time::timeout(crate::wait::PATIENCE, found).await;
        let Ok(screen) = found else {
            panic!("`{text}` is not in {:?}", &self.written()[from..]);
        };
        let place = screen.expect("the terminal is read")[from..].find(text);
        let place = place.expect("it was found");
        self.seen += place + text.len();
    }

    /// Types a line.
    pub async fn type_line(&mut self, line: &str) {
        self.press(&format!("{line}\n")).await;
    }

    /// Presses keys; Ctrl-C is `\u{3}`.
    pub async fn press(&mut self, keys: &str) {
        let typed = self.keyboard.write_all(keys.as_bytes()).await;
        typed.expect("type at the terminal");
    }

    /// Everything that was written so far, with what was typed.
    pub fn written(&self) -> String {
        self.screen.borrow().clone()
    }

    /// Waits for the end: the exit code, and everything that was written.
    pub async fn end(mut self) -> (i32, String) {
        let status = within("mcp-sidecar to end", self.child.wait()).await;
        let code = status.expect("wait for mcp-sidecar").code();
        within("the end of the output", &mut self.reader)
            .await
            .expect("read the terminal");
        let written = self.written();
        (
            code.unwrap_or_else(|| panic!("it was killed: {written}")),
            written,
        )
    }
}

impl TestDaemon {
    /// Runs `mcp-sidecar` against this daemon.
    pub async fn cli(&self, arguments: &[&str]) -> Ran {
        Invocation::new(arguments).run(self.socket()).await
    }

    /// The same at a terminal of 100 columns.
    pub async fn cli_terminal(&self, arguments: &[&str]) -> Terminal {
        let invocation = Invocation::new(arguments);
        invocation.at_terminal(self.socket(), 100).await
    }
}
