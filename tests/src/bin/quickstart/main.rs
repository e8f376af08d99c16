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

mod process;
mod watch;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use mcp_sidecar_client::proto::{ConnectionState, Server, ToolResult, content_block};
use mcp_sidecar_client::{CallEvent, Client, http_server, stdio_server, tool_call};
use serde_json::json;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};

use crate::process::Process;
use crate::watch::{Watch, state_name};

const USAGE: &str = "usage: cargo quickstart [--keep]

  --keep  leave the daemon and the demo server running, and say how to reach and to stop them";

/// Everything after the build.
const STORY_TIMEOUT: Duration = Duration::from_secs(50);
const START_TIMEOUT: Duration = Duration::from_secs(15);
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
    // Without `--package`, as in the alias: then both share what they build.
    let arguments = ["build", "--bin", "mcp-sidecard", "--bin", "demo-server"];
    command.current_dir(workspace).args(arguments);
    if dir.ends_with("release") {
        command.arg("--release");
    }
    println!("  cargo {}", arguments.join(" "));
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
        let until = if keep {
            ""
        } else {
            ", while the daemon runs (`--keep`)"
        };
        println!("  the same call from a shell{until}:\n");
        let request = json!({ "call": {
            "server_id": "demo-http",
            "tool_name": "add",
            "arguments_json": arguments.to_string(),
        }});
        println!(
            "  grpcurl -plaintext -d {} \\\n    {} mcpsidecar.v1.ToolService/CallTool",
            shell_quoted(&request.to_string()),
            self.target(),
        );

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
            let foreign = ["MCP_SIDECARD_", "LISTEN_", "NOTIFY_SOCKET"];
            if foreign.iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        let daemon = self.daemon.insert(Process::start("the daemon", command)?);
        println!("  started, pid {}", daemon.id());

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

    /// The socket as grpcurl wants it.
    fn target(&self) -> String {
        shell_quoted(&format!("unix://{}", self.socket.display()))
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
        let daemon = pids.first().map_or("", String::as_str);
        let socket = shell_quoted(&self.socket.display().to_string());
        section("Left running");
        println!("  socket  {}", self.socket.display());
        println!("  log     {}", self.log.display());
        println!("\n  Reach it:");
        println!("    export MCP_SIDECAR_SOCKET={socket}");
        println!("    cargo run --example watch");
        println!("    grpcurl -plaintext {} list", self.target());
        println!("\n  Stop it:");
        println!("    kill {}", pids.join(" "));
        println!("    tail --pid={daemon} -f /dev/null   # until the daemon has ended");
        let dir = self.dir.keep();
        println!("    rm -r {}", shell_quoted(&dir.display().to_string()));
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
            CallEvent::Task(task) => println!("  task {}: {}", task.status, task.message),
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
