//! Every real peer is added, listed, called and followed in the same way.

use std::collections::HashMap;

use mcp_sidecar_tests::peers::{CommandLine, HttpPeer, catalogue};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::call_tool_stream_response::Event;

/// How a peer is reached; keeps it running.
enum Target {
    Stdio(CommandLine),
    Http(HttpPeer),
}

impl From<CommandLine> for Target {
    fn from(line: CommandLine) -> Self {
        Self::Stdio(line)
    }
}

impl From<HttpPeer> for Target {
    fn from(peer: HttpPeer) -> Self {
        Self::Http(peer)
    }
}

impl Target {
    fn spec(&self) -> ServerSpec {
        match self {
            Self::Stdio(line) => line.spec("peer"),
            Self::Http(peer) => http_spec("peer", &peer.url),
        }
    }
}

/// Name, arguments, and a part of the text that comes back.
type Prompt = (
    &'static str,
    &'static [(&'static str, &'static str)],
    &'static str,
);

/// What is expected of a peer.
struct Expected {
    modern: bool,
    /// Its name for itself.
    name: &'static str,
    /// Tool, arguments, and a part of the text that comes back.
    call: (&'static str, String, &'static str),
    /// A resource that is listed, and a part of its text.
    resource: Option<(&'static str, &'static str)>,
    /// A prompt that is listed, its arguments, and a part of its text.
    prompt: Option<Prompt>,
    /// A tool that reports progress, and its arguments.
    progress: Option<(&'static str, &'static str)>,
    /// A tool after which the server announces a change.
    change: Option<&'static str>,
}

impl Expected {
    fn new(modern: bool, name: &'static str, tool: &'static str, arguments: String) -> Self {
        Self {
            modern,
            name,
            call: (tool, arguments, ""),
            resource: None,
            prompt: None,
            progress: None,
            change: None,
        }
    }

    fn text(mut self, text: &'static str) -> Self {
        self.call.2 = text;
        self
    }

    fn resource(mut self, uri: &'static str, text: &'static str) -> Self {
        self.resource = Some((uri, text));
        self
    }
}

async fn story(target: impl Into<Target>, expected: Expected) {
    let target = target.into();
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let server = app.add_ready(target.spec()).await;

    let status = server.facts();
    let (era, version) = if expected.modern {
        (Era::Modern, "2026-07-28")
    } else {
        (Era::Legacy, "2025-11-25")
    };
    assert_eq!(status.era(), era);
    assert_eq!(status.protocol_version, version);
    let transport = match &target {
        Target::Stdio(_) => v1::TransportKind::Stdio,
        Target::Http(peer) if peer.url.ends_with("/sse") => v1::TransportKind::Sse,
        Target::Http(_) => v1::TransportKind::StreamableHttp,
    };
    assert_eq!(status.transport(), transport);
    let info = status.server_info.as_ref().expect("the peer names itself");
    assert_eq!(info.name, expected.name);
    assert!(serde_json::from_str::<Value>(&status.capabilities_json).unwrap()["tools"].is_object());

    tools(&app, &server, &expected).await;
    if let Some((uri, text)) = expected.resource {
        let listed = app.list_resources(&server.id).await;
        assert!(
            listed.iter().any(|resource| resource.uri == uri),
            "{listed:?}"
        );
        let contents = app.read(&server.id, uri).await.unwrap().contents;
        let body = contents[0].body.clone().expect("the resource has a body");
        assert!(
            matches!(&body, v1::resource_contents::Body::Text(body) if body.contains(text)),
            "{body:?}"
        );
    }
    if let Some((name, arguments, text)) = expected.prompt {
        let listed = app.list_prompts(&server.id).await;
        assert!(
            listed.iter().any(|prompt| prompt.name == name),
            "{listed:?}"
        );
        let arguments: HashMap<_, _> = arguments
            .iter()
            .map(|&(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        let filled = app.prompt(&server.id, name, arguments).await.unwrap();
        assert!(
            format!("{:?}", filled.messages).contains(text),
            "{filled:?}"
        );
    }
    if let Some((tool, arguments)) = expected.progress {
        progress(&app, &server, tool, arguments).await;
    }
    if let Some(tool) = expected.change {
        change(&app, &server, tool).await;
    }
    app.remove(&server.id).await.unwrap();
    ErrorFacts::expect(
        app.get(&server.id).await,
        Code::NotFound,
        "SERVER_NOT_FOUND",
    );
}

async fn tools(app: &Clients, server: &Server, expected: &Expected) {
    let tools = app.list_tools().await;
    assert_eq!(tools.len(), server.tool_count() as usize);
    let (name, arguments, text) = &expected.call;
    let tool = tools.iter().find(|tool| tool.name == *name);
    let tool = tool.unwrap_or_else(|| panic!("`{name}` is not among {tools:#?}"));
    assert_eq!(tool.server_id, server.id);
    assert!(
        serde_json::from_str::<Value>(&tool.input_schema_json)
            .unwrap()
            .is_object()
    );

    let result = app.call_tool(&server.id, name, arguments).await.unwrap();
    assert!(!result.is_error, "{result:?}");
    assert!(text_of(&result).contains(text), "{result:?}");
    let by_model_name = v1::ToolCall {
        model_name: tool.model_name.clone(),
        ..app.call("", "", arguments)
    };
    let again = app.call_with(by_model_name).await.unwrap();
    assert_eq!(again.is_error, result.is_error, "{again:?}");
}

async fn progress(app: &Clients, server: &Server, tool: &str, arguments: &str) {
    let events = app.call_stream(&server.id, tool, arguments).await.unwrap();
    let events = events.collect().await.unwrap();
    assert!(
        matches!(events.first(), Some(Event::Started(_))),
        "{events:?}"
    );
    assert!(
        matches!(events.last(), Some(Event::Result(_))),
        "{events:?}"
    );
    let steps: Vec<f64> = events
        .iter()
        .filter_map(|event| match event {
            Event::Progress(progress) => Some(progress.progress),
            _ => None,
        })
        .collect();
    assert!(!steps.is_empty(), "no progress in {events:?}");
    assert!(steps.is_sorted(), "{steps:?}");
}

async fn change(app: &Clients, server: &Server, tool: &str) {
    let mut updates = app.updates("").await;
    // The stream of notifications may open after READY.
    let open = |server: &Server| server.facts().push() == v1::PushState::Open;
    let before = updates
        .server_where("an open stream of notifications", open)
        .await;
    let fetched = |server: &Server| {
        let tools = server.facts().tools.clone();
        tools.and_then(|list| list.fetch_time)
    };
    // Nothing has really changed, so there is no update to follow: only that the list was read again can be seen.
    app.call_tool(&server.id, tool, "{}").await.unwrap();
    eventually("the lists are read again", PATIENCE, async || {
        let now = app.get(&server.id).await.unwrap();
        (fetched(&now) != fetched(&before)).then_some(())
    })
    .await;
}

macro_rules! peers {
    ($($test:ident: $target:expr, $expected:expr;)*) => {$(
        #[tokio::test]
        async fn $test() {
            story($target.await, $expected).await;
        }
    )*};
}

const HELLO: &[(&str, &str)] = &[("name", "Ada")];

fn everything() -> Expected {
    let arguments = r#"{"a":2,"b":3}"#.to_owned();
    Expected {
        prompt: Some(("args-prompt", &[("city", "Paris")], "Paris")),
        progress: Some((
            "trigger-long-running-operation",
            r#"{"duration":0.3,"steps":3}"#,
        )),
        ..Expected::new(false, "mcp-servers/everything", "get-sum", arguments)
            .text("The sum of 2 and 3 is 5.")
            .resource("demo://resource/static/document/features.md", "")
    }
}

fn add(modern: bool, name: &'static str) -> Expected {
    let expected = Expected::new(modern, name, "add", r#"{"a":1,"b":2}"#.to_owned());
    expected.text("3").resource("note://1", "n")
}

fn py1() -> Expected {
    Expected {
        progress: Some(("prog", "{}")),
        ..add(false, "py1-peer")
    }
}

fn py2(change: Option<&'static str>) -> Expected {
    Expected {
        prompt: Some(("hello", HELLO, "Say hello to Ada")),
        progress: Some(("slow", r#"{"steps":3}"#)),
        change,
        ..add(true, "py2-peer")
    }
}

fn fastmcp() -> Expected {
    Expected {
        prompt: Some(("hello", HELLO, "hi Ada")),
        progress: Some(("slow", r#"{"steps":3}"#)),
        ..add(true, "fm-peer")
    }
}

fn ts2() -> Expected {
    Expected {
        prompt: Some(("hello", HELLO, "hi Ada")),
        progress: Some(("prog", r#"{"n":3}"#)),
        ..add(true, "ts2-peer")
    }
}

fn demo(modern: bool) -> Expected {
    let expected = Expected::new(modern, "demo-server", "add", r#"{"a":1,"b":2}"#.to_owned());
    Expected {
        prompt: Some(("greet", HELLO, "Greet Ada")),
        progress: Some(("slow", r#"{"steps":2}"#)),
        ..expected
            .text(r#"{"sum":3}"#)
            .resource("demo://readme", "The demo server")
    }
}

peers! {
    demo_stdio: catalogue::demo_stdio(&[]), demo(true);
    demo_stdio_legacy: catalogue::demo_stdio(&["--legacy-only"]), demo(false);
    demo_http: catalogue::demo_http(&[]), demo(true);
    demo_http_modern: catalogue::demo_http(&["--modern-only"]), demo(true);
    demo_http_legacy: catalogue::demo_http(&["--legacy-only"]), demo(false);
    everything_stdio: catalogue::everything_stdio(), everything();
    everything_http: catalogue::everything_http(), everything();
    py1_stdio: catalogue::py1_stdio(), py1();
    py1_http: catalogue::py1_http("http"), py1();
    py1_http_json: catalogue::py1_http("http-json"), add(false, "py1-peer");
    py2_stdio: catalogue::py2_stdio(), py2(Some("bump"));
    py2_http: catalogue::py2_http("http"), py2(Some("bump"));
    py2_http_stateless: catalogue::py2_http("http-stateless"), py2(None);
    fastmcp_stdio: catalogue::fastmcp_stdio(), fastmcp();
    fastmcp_http: catalogue::fastmcp_http(), fastmcp();
    everything_sse: catalogue::everything_sse(), everything();
    py1_sse: catalogue::py1_http("sse"), py1();
    py2_sse: catalogue::py2_http("sse"), Expected { modern: false, ..py2(None) };
    fastmcp_sse: catalogue::fastmcp_sse(), Expected { modern: false, ..fastmcp() };
    time: catalogue::time(), Expected::new(
        true,
        "mcp-time",
        "convert_time",
        r#"{"source_timezone":"UTC","time":"12:00","target_timezone":"Asia/Tokyo"}"#.to_owned(),
    ).text("T21:00:00+09:00");
    ts2_stdio: catalogue::ts2_stdio(), ts2();
    ts2_http: catalogue::ts2_http("http"), ts2();
    ts2_modern_only: catalogue::ts2_http("modern-only"), ts2();
    sequential_thinking: catalogue::sequential_thinking(), Expected::new(
        false,
        "sequential-thinking-server",
        "sequentialthinking",
        r#"{"thought":"a","nextThoughtNeeded":false,"thoughtNumber":1,"totalThoughts":1}"#.to_owned(),
    ).text("totalThoughts");
}

#[tokio::test]
async fn filesystem() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.txt");
    std::fs::write(&file, "hello file").unwrap();
    let arguments = json!({"path": file}).to_string();
    let expected = Expected::new(
        false,
        "secure-filesystem-server",
        "read_text_file",
        arguments,
    );
    let dir = dir.path().to_str().unwrap();
    story(
        catalogue::filesystem(dir).await,
        expected.text("hello file"),
    )
    .await;
}

#[tokio::test]
async fn memory() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("memory.json");
    let entity = json!({"name": "Ada", "entityType": "person", "observations": ["wrote"]});
    let arguments = json!({"entities": [entity]}).to_string();
    let expected = Expected::new(false, "memory-server", "create_entities", arguments);
    let expected = expected.resource("memory://knowledge-graph", "Ada");
    // The story calls twice; the second time the entity is there already.
    story(catalogue::memory(file.to_str().unwrap()).await, expected).await;
}

#[tokio::test]
async fn git() {
    let dir = tempfile::tempdir().unwrap();
    let git = |args: &[&str]| {
        let identity = ["-c", "user.name=Ada", "-c", "user.email=ada@example.test"];
        let mut command = std::process::Command::new("git");
        command.args(identity).args(args).current_dir(dir.path());
        assert!(command.status().unwrap().success(), "git {args:?}");
    };
    git(&["init", "--quiet"]);
    git(&[
        "commit",
        "--quiet",
        "--allow-empty",
        "--message",
        "the first commit",
    ]);
    let path = dir.path().to_str().unwrap();
    let arguments = json!({"repo_path": path}).to_string();
    let expected = Expected::new(true, "mcp-git", "git_log", arguments);
    story(
        catalogue::git(path).await,
        expected.text("the first commit"),
    )
    .await;
}
