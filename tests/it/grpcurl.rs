//! The real grpcurl: what it lists and describes, and what the README says that one can do with it, line by line.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Duration;

use mcp_sidecar_tests::fake::showcase;
use mcp_sidecar_tests::peers::install::installed;
use mcp_sidecar_tests::peers::programs::{Talker, need, run};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::workspace_dir;
use tokio::process::Command;

/// A shell in which grpcurl is found and `MCP_SIDECAR_SOCKET` is set.
struct Shell {
    path: std::ffi::OsString,
    socket: PathBuf,
}

impl Shell {
    async fn of(daemon: &TestDaemon) -> Self {
        need("the stories with grpcurl", &[("go", "version")]);
        let mut path = installed("grpcurl").await.into_os_string();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        Self {
            path,
            socket: daemon.socket().to_owned(),
        }
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new("bash");
        command
            .args([
                "-c",
                &format!("S=\"unix://$MCP_SIDECAR_SOCKET\"\nexec {line}"),
            ])
            .env("PATH", &self.path)
            .env("MCP_SIDECAR_SOCKET", &self.socket);
        command
    }

    /// Runs a line to its end.
    async fn ends(&self, line: &str) -> (bool, String, String) {
        run(&mut self.command(line), "", PATIENCE).await
    }

    /// Runs a line that has to succeed.
    async fn says(&self, line: &str) -> String {
        let (success, said, errors) = self.ends(line).await;
        assert!(success, "{line}\n{said}\n{errors}");
        said
    }

    /// Runs a line that goes on.
    fn goes_on(&self, line: &str) -> Talker {
        Talker::start(&mut self.command(line))
    }
}

#[tokio::test]
async fn grpcurl_lists_describes_calls_streams_and_shows_the_details_of_errors() {
    let daemon = TestDaemon::start().await;
    let fake = showcase().await;
    let app = daemon.clients().await;
    app.add("demo", http_spec("Demo", &fake.url()))
        .await
        .unwrap();
    app.wait_for("demo", ConnectionState::Ready).await;
    let shell = Shell::of(&daemon).await;

    let services = shell.says("grpcurl -plaintext \"$S\" list").await;
    for service in [
        "mcpsidecar.v1.ToolService",
        "mcpsidecar.v1.UpdateService",
        "grpc.health.v1.Health",
    ] {
        assert!(services.lines().any(|line| line == service), "{services}");
    }
    let described = shell
        .says("grpcurl -plaintext \"$S\" describe mcpsidecar.v1.ToolService")
        .await;
    assert!(
        described.contains("// Lists tools from the catalog"),
        "{described}"
    );
    let described = shell
        .says("grpcurl -plaintext \"$S\" describe mcpsidecar.v1.ServerSpec.name")
        .await;
    assert!(described.contains("// Name for people"), "{described}");

    let call = |tool: &str, method: &str| {
        format!(
            "grpcurl -plaintext -d '{{\"call\": {{\"server_id\": \"demo\", \"tool_name\": \"{tool}\", \"arguments_json\": \
             \"{{\\\"a\\\": 2, \\\"b\\\": 3}}\"}}}}' \"$S\" mcpsidecar.v1.ToolService/{method}"
        )
    };
    let answer: Value = serde_json::from_str(&shell.says(&call("add", "CallTool")).await).unwrap();
    assert_eq!(answer["result"]["structuredContentJson"], "{\"sum\":5}");
    let stream = shell.says(&call("slow", "CallToolStream")).await;
    let events = serde_json::Deserializer::from_str(&stream).into_iter::<Value>();
    let kinds: Vec<String> = events
        .map(|event| {
            event
                .unwrap()
                .as_object()
                .unwrap()
                .keys()
                .next()
                .unwrap()
                .clone()
        })
        .collect();
    assert_eq!(
        kinds,
        ["started", "progress", "progress", "progress", "result"]
    );

    let wrong = "grpcurl -plaintext -d '{\"spec\": {\"name\": \"x\", \"http\": {\"url\": \"ftp://x\"}}}' \"$S\" \
                 mcpsidecar.v1.ServerService/AddServer";
    let (success, _, errors) = shell.ends(wrong).await;
    assert!(!success);
    for part in [
        "Code: InvalidArgument",
        "INVALID_FIELD",
        "google.rpc.BadRequest",
        "spec.http.url",
    ] {
        assert!(errors.contains(part), "`{part}` is not in:\n{errors}");
    }
}

/// The commands in the shell blocks of a section of the README, without comments, each with its continued lines.
fn commands(section: &str) -> Vec<String> {
    let readme = std::fs::read_to_string(workspace_dir().join("README.md")).expect("the README");
    let text = readme.split("\n## ").find(|part| part.starts_with(section));
    let text = text.unwrap_or_else(|| panic!("the README has no section `{section}`"));
    let mut commands = Vec::new();
    let (mut inside, mut command) = (false, String::new());
    for line in text.lines() {
        if line.starts_with("```") {
            inside = line == "```sh";
            continue;
        }
        if !inside || (command.is_empty() && (line.is_empty() || line.starts_with('#'))) {
            continue;
        }
        command.push_str(line);
        if command.ends_with('\\') || command.matches('\'').count() % 2 == 1 {
            command.push('\n');
        } else {
            commands.push(std::mem::take(&mut command));
        }
    }
    assert!(
        command.is_empty(),
        "the README has half a command: {command}"
    );
    commands
}

fn id_in(text: &str, member: &str) -> String {
    let at = text
        .find(&format!("\"{member}\": \""))
        .unwrap_or_else(|| panic!("no `{member}` in:\n{text}"));
    let value = &text[at + member.len() + 5..];
    value[..value.find('"').unwrap()].to_owned()
}

/// A daemon for which `npx` runs what is installed already.
async fn with_npx() -> (TestDaemon, tempfile::TempDir) {
    need(
        "the stories of the README",
        &[("node", "--version"), ("npm", "--version")],
    );
    let stand_in = tempfile::tempdir().unwrap();
    let program = stand_in.path().join("npx");
    let everything = installed("npm")
        .await
        .join("node_modules/.bin/mcp-server-everything");
    let script = format!(
        "#!/bin/sh\n[ \"$*\" = '-y @modelcontextprotocol/server-everything' ] || exit 9\nexec {} stdio\n",
        everything.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!(
        "{}:{}",
        stand_in.path().display(),
        std::env::var("PATH").unwrap_or_default()
    );
    (
        TestDaemon::builder().env("PATH", &path).start().await,
        stand_in,
    )
}

#[tokio::test]
async fn the_readme_is_right_about_grpcurl() {
    let (daemon, _stand_in) = with_npx().await;
    let shell = Shell::of(&daemon).await;
    let mut lines = commands("Talking to it with grpcurl").into_iter();
    let install = lines.next().unwrap();
    assert!(
        install.starts_with("go install github.com/fullstorydev/grpcurl/cmd/grpcurl@"),
        "{install}"
    );
    assert_eq!(
        lines.next().as_deref(),
        Some("S=\"unix://$MCP_SIDECAR_SOCKET\"")
    );

    let mut asking = None;
    let mut question = String::new();
    let mut done = Vec::new();
    for line in lines {
        let method = line
            .rsplit(['/', ' '])
            .next()
            .unwrap_or_default()
            .to_owned();
        if let Some(line) = line.strip_suffix(" &") {
            let mut call = shell.goes_on(line);
            call.until("the call waits", |said| said.contains("elicitationIds"))
                .await;
            asking = Some(call);
        } else if line.ends_with("StreamUpdates") {
            shell
                .goes_on(&line)
                .until("the state of everything", |said| {
                    said.contains("snapshotEnd")
                })
                .await;
        } else {
            let said = shell
                .says(&line.replace("\"...\"", &format!("\"{question}\"")))
                .await;
            match method.as_str() {
                "ListElicitations" => question = id_in(&said, "id"),
                "AddServer" if line.contains("npx") => {
                    assert!(said.contains("CONNECTION_STATE_READY"), "{said}");
                }
                "AddServer" => assert!(!said.contains("\"secret\""), "{said}"),
                "CallTool" => assert!(said.contains("Echo: hello"), "{said}"),
                "RespondElicitation" => {
                    assert!(said.contains("ELICITATION_STATE_ANSWERED"), "{said}");
                }
                _ => assert!(!said.is_empty(), "{line}"),
            }
        }
        done.push(method);
    }
    let mut call = asking.expect("the README has a call that asks");
    call.until("the result of the call", |said| said.contains("\"result\""))
        .await;
    for method in [
        "ListTools",
        "CallTool",
        "RespondElicitation",
        "StreamUpdates",
    ] {
        assert!(done.iter().any(|name| name == method), "{done:?}");
    }
}

#[tokio::test]
async fn the_readme_is_right_about_calls_that_outlive_their_caller() {
    let (daemon, _stand_in) = with_npx().await;
    let shell = Shell::of(&daemon).await;
    let add = commands("Talking to it with grpcurl");
    let add = add
        .iter()
        .find(|line| line.contains("npx"))
        .expect("the README adds a server");
    shell.says(add).await;

    let mut call = String::new();
    let mut waiting = None;
    for line in commands("Calls that outlive their caller") {
        let line = line.replace("\"...\"", &format!("\"{call}\""));
        if line.ends_with("WaitCall") {
            // The call ends with the next line.
            waiting = Some(shell.goes_on(&line));
            continue;
        }
        let said = shell.says(&line).await;
        if line.contains("\"detach\": true") {
            call = id_in(&said, "callId");
        } else if line.ends_with("ListCalls") {
            assert!(said.contains(&call), "{said}");
        }
    }
    let mut waiting = waiting.expect("the README waits for a call");
    waiting
        .until("the end of the call", |said| {
            said.contains("CALL_STATE_CANCELLED")
        })
        .await;
}

#[tokio::test]
async fn the_readme_is_right_about_signing_in() {
    let daemon = TestDaemon::start().await;
    let shell = Shell::of(&daemon).await;
    let lines = commands("Signing in at protected servers");
    assert!(lines.len() >= 4, "{lines:?}");
    for line in lines {
        // There is no such server here; that the daemon says so shows that it was asked.
        let asked = tokio::time::timeout(Duration::from_secs(20), shell.ends(&line)).await;
        let (success, said, errors) = asked.expect("an answer");
        let refused = [
            "SERVER_NOT_FOUND",
            "NAMESPACE_NOT_FOUND",
            "SIGN_IN_NOT_FOUND",
            "INVALID_FIELD",
        ];
        let of_the_daemon = refused.iter().any(|reason| errors.contains(reason));
        assert!(!success && of_the_daemon, "{line}\n{said}\n{errors}");
    }
}
