//! `cargo quickstart`: the daemon's main job from nothing to a result, on this machine, in one command.
//!
//! Builds the programs, starts a daemon on a temporary directory, adds one real MCP server over stdio and one over
//! Streamable HTTP, and uses them as an app would: only through `mcp-sidecar-client`. Everything it starts is ended
//! before it ends, whatever happens, unless `--keep` asks for the opposite.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a program for people: what it prints is its purpose"
)]

use std::collections::HashMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use mcp_sidecar_client::proto::{ConnectionState, Server, ToolResult, content_block};
use mcp_sidecar_client::{
    CallEvent, Client, UpdateEvent, Updates, http_server, stdio_server, tool_call,
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

const USAGE: &str = "usage: cargo quickstart [--keep]

  --keep  leave the daemon and the demo server running, and say how to reach and to stop them";

/// Everything after the build.
const STORY_TIMEOUT: Duration = Duration::from_secs(50);
const START_TIMEOUT: Duration = Duration::from_secs(15);
/// Longer than the daemon's own drain (20 s).
const STOP_TIMEOUT: Duration = Duration::from_secs(25);
/// From an answer to the update that says the same.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(10);
const LOG_TAIL_LINES: usize = 30;

#[tokio::main]
async fn main() -> ExitCode {
    let mut keep = false;
    for arg in std::env::args().skip(1) {
        match arg.as_str() {
            "--keep" => keep = true,
            "-h" | "--help" => {
                println!("{USAGE}");
                return ExitCode::SUCCESS;
            }
            other => {
                eprintln!("unknown argument `{other}`\n{USAGE}");
                return ExitCode::from(2);
            }
        }
    }
    match run(keep).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nquickstart failed: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(keep: bool) -> Result<()> {
    section("Build");
    let programs = build().await?;

    let dir = tempfile::Builder::new()
        .prefix("mcp-sidecar-")
        .tempdir()
        .context("cannot make a temporary directory")?;
    let mut stage = Stage {
        socket: dir.path().join("app.sock"),
        log: dir.path().join("daemon.log"),
        programs,
        dir,
        daemon: None,
        demo: None,
    };
    let story = tokio::select! {
        story = tokio::time::timeout(STORY_TIMEOUT, stage.story(keep)) => story.unwrap_or_else(|_| {
            bail!("not done after {} s", STORY_TIMEOUT.as_secs())
        }),
        stopped = told_to_stop() => stopped.and_then(|()| bail!("interrupted")),
    };
    match story {
        Ok(()) if keep => {
            stage.leave();
            Ok(())
        }
        Ok(()) => {
            section("End");
            stage.stop().await?;
            println!("  daemon and demo server ended, temporary directory removed");
            Ok(())
        }
        Err(error) => {
            eprintln!("{}", stage.log_tail());
            if let Err(error) = stage.stop().await {
                eprintln!("while cleaning up: {error:#}");
            }
            Err(error)
        }
    }
}

/// Ends at SIGINT, SIGTERM or SIGHUP.
async fn told_to_stop() -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut hangup = signal(SignalKind::hangup())?;
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
        _ = hangup.recv() => {}
    }
    Ok(())
}

/// The built programs.
struct Programs {
    daemon: PathBuf,
    demo: PathBuf,
}

async fn build() -> Result<Programs> {
    let own = std::env::current_exe().context("cannot find this program")?;
    let dir = own.parent().context("this program has no directory")?;
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .context("the workspace has no directory")?;
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command
        .current_dir(workspace)
        .args(["build", "--workspace", "--bins"]);
    if dir.ends_with("release") {
        command.arg("--release");
    }
    println!("  cargo build --workspace --bins");
    let status = command.status().await.context("cannot run cargo")?;
    if !status.success() {
        bail!("the build failed ({status})");
    }
    let programs = Programs {
        daemon: dir.join("mcp-sidecard"),
        demo: dir.join("demo-server"),
    };
    for program in [&programs.daemon, &programs.demo] {
        if !program.is_file() {
            bail!(
                "the build did not make `{}`: start this with `cargo quickstart`",
                program.display()
            );
        }
    }
    Ok(programs)
}

/// The daemon, the demo server and their directory. Dropping it kills what still runs.
struct Stage {
    programs: Programs,
    socket: PathBuf,
    log: PathBuf,
    daemon: Option<Process>,
    demo: Option<Process>,
    /// Removed last.
    dir: tempfile::TempDir,
}

impl Stage {
    async fn story(&mut self, keep: bool) -> Result<()> {
        section("Daemon");
        let client = self.start_daemon().await?;
        println!("  listening on {}", self.socket.display());
        let mut watch = Watch::start(client.updates());

        section("Add two MCP servers (lines with > are updates, as they happen)");
        let url = self.start_demo_server().await?;
        let demo = self.programs.demo.display().to_string();
        let mut stdio = stdio_server("Demo over stdio", demo, ["stdio"]);
        "demo-stdio".clone_into(&mut stdio.server_id);
        let mut http = http_server("Demo over HTTP", url);
        "demo-http".clone_into(&mut http.server_id);
        for request in [stdio, http] {
            let name = request.server_id.clone();
            let added = client
                .add_server(request)
                .await
                .with_context(|| format!("cannot add `{name}`"))?;
            let summary = ready(&added.server.unwrap_or_default())?;
            watch.until(&name, Some(ConnectionState::Ready)).await?;
            println!("  {summary}");
        }

        section("Their tools");
        let tools = client.list_tools().await.context("cannot list the tools")?;
        for tool in &tools.items {
            println!(
                "  {:<11} {:<6} {:<22} {}",
                tool.server_id, tool.name, tool.model_name, tool.description
            );
        }
        if let Some(issue) = tools.issues.first() {
            bail!(
                "the tools of `{}` are missing: {}",
                issue.server_id,
                issue.message
            );
        }
        for server in ["demo-stdio", "demo-http"] {
            if !tools
                .items
                .iter()
                .any(|tool| tool.server_id == server && tool.name == "slow")
            {
                bail!("the tool `slow` of `{server}` is not listed");
            }
        }

        for server in ["demo-stdio", "demo-http"] {
            section(&format!("Call `slow` of `{server}` and watch it"));
            call_with_progress(&client, server).await?;
        }

        section("Call `add` of `demo-http`");
        let arguments = json!({ "a": 2, "b": 3 });
        let call = tool_call("demo-http", "add", arguments.clone());
        let answer = client.call_tool(call).await.context("the call failed")?;
        println!(
            "  result: {}",
            result_text(&answer.result.unwrap_or_default())?
        );
        println!("  the same call from a shell:\n");
        let request = json!({ "call": {
            "server_id": "demo-http",
            "tool_name": "add",
            "arguments_json": arguments.to_string(),
        }});
        println!("{}", self.grpcurl(&request.to_string()));

        if !keep {
            section("Remove a server");
            client
                .remove_server("demo-stdio")
                .await
                .context("cannot remove `demo-stdio`")?;
            watch.until("demo-stdio", None).await?;
        }
        Ok(())
    }

    async fn start_daemon(&mut self) -> Result<Client> {
        let config = self.dir.path().join("config.toml");
        let text = format!(
            "data_dir = {}\n\n[socket]\npath = {}\n\n[log]\nfilter = \"info\"\n",
            toml_string(&self.dir.path().join("data"))?,
            toml_string(&self.socket)?
        );
        std::fs::write(&config, text).context("cannot write the daemon's configuration")?;
        let log = std::fs::File::create(&self.log).context("cannot create the daemon's log")?;
        let mut command = Command::new(&self.programs.daemon);
        command
            .arg("--config")
            .arg(&config)
            .stdout(log.try_clone().context("cannot share the daemon's log")?)
            .stderr(log);
        // Neither this shell's settings nor a service manager's are meant for this daemon.
        for (name, _) in std::env::vars_os() {
            let text = name.to_string_lossy();
            if text.starts_with("MCP_SIDECARD_") || text.starts_with("LISTEN_") {
                command.env_remove(&name);
            }
        }
        command.env_remove("NOTIFY_SOCKET").env_remove("LISTEN_PID");
        let daemon = self.daemon.insert(Process::start("the daemon", command)?);
        println!("  started, pid {}", daemon.pid.as_raw_nonzero());

        let connecting = Client::builder()
            .socket(&self.socket)
            .connect_timeout(START_TIMEOUT)
            .deadline(Duration::from_secs(30))
            .connect();
        tokio::select! {
            client = connecting => Ok(client?),
            status = daemon.child.wait() => {
                bail!("the daemon ended at once ({})", status.context("cannot wait for it")?)
            }
        }
    }

    /// Returns the endpoint's URL.
    async fn start_demo_server(&mut self) -> Result<String> {
        let mut command = Command::new(&self.programs.demo);
        let log = std::fs::File::create(self.dir.path().join("demo-server.log"))
            .context("cannot create the demo server's log")?;
        command.arg("http").stdout(Stdio::piped()).stderr(log);
        let demo = self
            .demo
            .insert(Process::start("the demo server", command)?);
        let stdout = demo.child.stdout.take().context("no standard output")?;
        let mut line = String::new();
        tokio::time::timeout(START_TIMEOUT, BufReader::new(stdout).read_line(&mut line))
            .await
            .context("the demo server does not start")?
            .context("cannot read what the demo server says")?;
        let url = line.trim().strip_prefix("listening on ");
        Ok(url
            .with_context(|| format!("the demo server did not say where it listens: `{line}`"))?
            .to_owned())
    }

    fn grpcurl(&self, request: &str) -> String {
        format!(
            "  grpcurl -plaintext -unix -authority localhost \\\n    -d {} \\\n    {} mcpsidecar.v1.ToolService/CallTool",
            shell_quoted(request),
            shell_quoted(&self.socket.display().to_string()),
        )
    }

    fn log_tail(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        if lines.is_empty() {
            return "\nThe daemon wrote no log.".to_owned();
        }
        let tail = lines.get(lines.len().saturating_sub(LOG_TAIL_LINES)..);
        let mut out = "\nThe end of the daemon's log:".to_owned();
        for line in tail.unwrap_or_default() {
            let _ = write!(out, "\n  {line}");
        }
        out
    }

    /// Ends everything and removes the directory.
    async fn stop(mut self) -> Result<()> {
        // The daemon first: its servers end as they do in real life.
        let daemon = match self.daemon.take() {
            Some(daemon) => daemon.stop().await,
            None => Ok(()),
        };
        let demo = match self.demo.take() {
            Some(demo) => demo.stop().await,
            None => Ok(()),
        };
        self.dir
            .close()
            .context("cannot remove the temporary directory")?;
        daemon.and(demo)
    }

    /// Lets everything run and says how to go on.
    fn leave(mut self) {
        let pids: Vec<String> = [self.daemon.take(), self.demo.take()]
            .into_iter()
            .flatten()
            .map(|process| process.leave().to_string())
            .collect();
        let socket = shell_quoted(&self.socket.display().to_string());
        section("Left running");
        println!("  socket  {}", self.socket.display());
        println!("  log     {}", self.log.display());
        println!("\n  Reach it:");
        println!("    export MCP_SIDECAR_SOCKET={socket}");
        println!("    cargo run -p mcp-sidecar-client --example watch");
        println!("    grpcurl -plaintext -unix -authority localhost {socket} list");
        println!("\n  Stop it:");
        println!("    kill {}", pids.join(" "));
        let dir = self.dir.keep();
        println!("    rm -r {}", shell_quoted(&dir.display().to_string()));
    }
}

/// A child in a process group of its own, so that a Ctrl-C in the terminal reaches only this program, which then
/// ends the child in order. Dropping it kills the group.
struct Process {
    name: &'static str,
    child: Child,
    pid: Pid,
    armed: bool,
}

impl Process {
    fn start(name: &'static str, mut command: Command) -> Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
            .with_context(|| format!("{name} has no process id"))?;
        Ok(Self {
            name,
            child,
            pid,
            armed: true,
        })
    }

    async fn stop(mut self) -> Result<()> {
        if let Ok(Some(status)) = self.child.try_wait() {
            bail!("{} had ended before it was told to ({status})", self.name);
        }
        let _ = kill_process(self.pid, Signal::TERM);
        match tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => bail!("{} did not end cleanly ({status})", self.name),
            Ok(Err(error)) => Err(error).with_context(|| format!("cannot wait for {}", self.name)),
            Err(_) => bail!(
                "{} did not end within {} s and was killed",
                self.name,
                STOP_TIMEOUT.as_secs()
            ),
        }
    }

    /// Lets it run; returns its process id.
    fn leave(mut self) -> i32 {
        self.armed = false;
        self.pid.as_raw_nonzero().get()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process that was waited for has no group to kill any more, and its id may be another's.
        if self.armed && self.child.id().is_some() {
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
    }
}

/// The server in one line; fails unless it can be used.
fn ready(server: &Server) -> Result<String> {
    let status = server.status.clone().unwrap_or_default();
    if status.state() == ConnectionState::Ready {
        return Ok(format!(
            "{:<11} ready, MCP {}, {} tools",
            server.id,
            status.protocol_version,
            status.tools.map_or(0, |list| list.count)
        ));
    }
    let failure = status.last_failure.clone().unwrap_or_default();
    bail!(
        "`{}` is {} and not ready: {} {}\n{}",
        server.id,
        state_name(status.state()),
        failure.reason,
        failure.message,
        status.stderr_tail
    )
}

async fn call_with_progress(client: &Client, server: &str) -> Result<()> {
    let call = tool_call(server, "slow", json!({ "steps": 4 }));
    let mut events = client
        .call_tool_stream(call)
        .await
        .context("the call failed")?;
    let mut progress_seen = false;
    while let Some(event) = events.next().await {
        match event.context("the call failed")? {
            CallEvent::Started(started) => println!("  call {}", started.call_id),
            CallEvent::Progress(progress) => {
                progress_seen = true;
                let total = progress.total.unwrap_or(progress.progress);
                println!("  {} of {total}: {}", progress.progress, progress.message);
            }
            CallEvent::Log(log) => println!("  log: {}", log.data_json),
            CallEvent::InputRequired(_) => bail!("the demo server asks nothing, yet it did"),
            CallEvent::Result(result) => println!("  result: {}", result_text(&result)?),
        }
    }
    if !progress_seen {
        bail!("`slow` of `{server}` reported no progress");
    }
    Ok(())
}

/// The result in one line; fails if the tool reports an error.
fn result_text(result: &ToolResult) -> Result<String> {
    let texts: Vec<&str> = result
        .content
        .iter()
        .filter_map(|content| match &content.block {
            Some(content_block::Block::Text(text)) => Some(text.text.as_str()),
            _ => None,
        })
        .collect();
    let text = texts.join(" ");
    if result.is_error {
        bail!("the tool reports an error: {text}");
    }
    Ok(result.structured_content_json.clone().unwrap_or(text))
}

/// What the update stream has said about a server: its id, and its state or `None` if it is gone.
type Seen = (String, Option<ConnectionState>);

/// Prints updates in the background until it is dropped.
struct Watch {
    seen: mpsc::Receiver<Seen>,
    known: HashMap<String, Option<ConnectionState>>,
    task: JoinSet<Result<()>>,
}

impl Watch {
    fn start(updates: Updates) -> Self {
        let (sender, seen) = mpsc::channel(1024);
        let mut task = JoinSet::new();
        task.spawn(print_updates(updates, sender));
        Self {
            seen,
            known: HashMap::new(),
            task,
        }
    }

    /// Waits until the stream has said this.
    async fn until(&mut self, id: &str, state: Option<ConnectionState>) -> Result<()> {
        let waiting = async {
            while self.known.get(id) != Some(&state) {
                let Some((id, state)) = self.seen.recv().await else {
                    return match self.task.join_next().await {
                        Some(Ok(Err(error))) => Err(error).context("the update stream failed"),
                        _ => bail!("the update stream ended"),
                    };
                };
                self.known.insert(id, state);
            }
            Ok(())
        };
        tokio::time::timeout(UPDATE_TIMEOUT, waiting)
            .await
            .with_context(|| format!("the expected update about `{id}` does not come"))?
    }
}

/// Prints each change of a server's state, for as long as the stream lasts.
async fn print_updates(mut updates: Updates, seen: mpsc::Sender<Seen>) -> Result<()> {
    let mut known: HashMap<String, ConnectionState> = HashMap::new();
    while let Some(update) = updates.next().await {
        let update = update?;
        match update.event {
            UpdateEvent::Server(server) => {
                let state = server.status.unwrap_or_default().state();
                let before = known.insert(server.id.clone(), state);
                if before != Some(state) {
                    println!(
                        "  > {:<11} {} (revision {})",
                        server.id,
                        state_name(state),
                        update.revision
                    );
                }
                seen.send((server.id, Some(state))).await?;
            }
            UpdateEvent::Deleted { id, .. } => {
                known.remove(&id);
                println!("  > {id:<11} removed (revision {})", update.revision);
                seen.send((id, None)).await?;
            }
            UpdateEvent::Reset(_) => known.clear(),
            _ => {}
        }
    }
    Ok(())
}

fn state_name(state: ConnectionState) -> String {
    state
        .as_str_name()
        .trim_start_matches("CONNECTION_STATE_")
        .to_lowercase()
}

fn section(title: &str) {
    println!("\n{title}");
}

/// A TOML basic string. JSON's escapes are a subset of TOML's.
fn toml_string(path: &Path) -> Result<String> {
    let text = path
        .to_str()
        .with_context(|| format!("`{}` is not UTF-8", path.display()))?;
    Ok(serde_json::Value::from(text).to_string())
}

/// One word for a POSIX shell.
fn shell_quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}
