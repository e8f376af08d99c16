//! Ways to the fast server: the floors, clients that go there directly, and the daemon.

use std::path::Path as FsPath;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client as Http;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use mcp_sidecar_client::Client;
use mcp_sidecar_tests::peers::{CommandLine, HttpPeer};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::process::Group;
use mcp_sidecar_tests::v1::tool_service_client::ToolServiceClient;
use rmcp::ServiceExt as _;
use rmcp::model::CallToolRequestParams;
use rmcp::transport::StreamableHttpClientTransport;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::Command;
use tokio::sync::{Mutex, mpsc, oneshot};

use crate::load::Path;
use crate::server::Manner;

/// Largest message, in bytes.
const LARGEST: usize = 64 << 20;

fn this_program() -> String {
    let program = std::env::current_exe().unwrap();
    program.to_str().unwrap().to_owned()
}

fn serve(kind: &str, manner: Manner) -> CommandLine {
    let tools = manner.tools.to_string();
    let mut args = vec!["serve", kind, "--tools", &tools];
    if !manner.modern {
        args.push("--legacy");
    }
    if manner.sse {
        args.push("--sse");
    }
    CommandLine::new(this_program(), &args)
}

/// The fast server over HTTP.
pub(crate) async fn http_server(manner: Manner) -> HttpPeer {
    HttpPeer::start("/mcp", |port| {
        let mut line = serve("http", manner);
        line.args.extend(["--port".to_owned(), port.to_string()]);
        line
    })
    .await
}

/// How the fast server is started as a child.
pub(crate) fn stdio_server(manner: Manner) -> CommandLine {
    serve("stdio", manner)
}

/// A gRPC service that echoes, and a connection to it.
pub(crate) struct Floor {
    channel: tonic::transport::Channel,
    _process: Group,
    _dir: tempfile::TempDir,
}

impl Floor {
    /// Starts it.
    pub(crate) async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("echo.sock");
        let mut command = Command::new(this_program());
        command.args(["serve", "grpc", "--socket"]).arg(&socket);
        let process = Group::spawn(command.stdin(Stdio::null())).unwrap();
        eventually("the echo service listens", PATIENCE, async || {
            tokio::net::UnixStream::connect(&socket).await.ok()
        })
        .await;
        Self {
            channel: channel(&socket).await,
            _process: process,
            _dir: dir,
        }
    }

    /// One RPC per call.
    pub(crate) fn unary(&self, arguments: &str) -> Path {
        let client = ToolServiceClient::new(self.channel.clone())
            .max_decoding_message_size(LARGEST)
            .max_encoding_message_size(LARGEST);
        let call = mcp_sidecar_client::tool_call("s", "echo", arguments.to_owned());
        Path::new("bare gRPC echo", move || {
            let (mut client, call) = (client.clone(), call.clone());
            async move {
                let request = v1::CallToolRequest { call: Some(call) };
                client.call_tool(request).await.unwrap();
            }
        })
    }
}

async fn channel(socket: &FsPath) -> tonic::transport::Channel {
    let uri = format!("unix://{}", socket.display());
    let endpoint = tonic::transport::Endpoint::from_shared(uri).unwrap();
    endpoint.connect().await.unwrap()
}

/// The request that everybody sends in the end, for who sends it by hand.
fn request(manner: Manner, arguments: &str) -> String {
    let meta = if manner.modern {
        r#","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"bench","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}"#
    } else {
        ""
    };
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"echo","arguments":{arguments}{meta}}}}}"#
    )
}

/// A bare POST.
pub(crate) fn bare_http(url: &str, manner: Manner, arguments: &str) -> Path {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: Http<_, Full<Bytes>> = Http::builder(TokioExecutor::new())
        .pool_timer(TokioTimer::new())
        .pool_max_idle_per_host(1024)
        .build(connector);
    let body = Bytes::from(request(manner, arguments));
    let url: http::Uri = url.parse().unwrap();
    Path::new("bare HTTP POST", move || {
        let request = http::Request::post(url.clone())
            .header("content-type", "application/json")
            .header("accept", "application/json, text/event-stream")
            .header(
                "mcp-protocol-version",
                if manner.modern {
                    "2026-07-28"
                } else {
                    "2025-11-25"
                },
            )
            .body(Full::new(body.clone()))
            .unwrap();
        let client = client.clone();
        async move {
            let response = client.request(request).await.unwrap();
            assert!(response.status().is_success());
            response.into_body().collect().await.unwrap();
        }
    })
}

/// The official Rust SDK's client over HTTP.
pub(crate) async fn rmcp(url: &str, arguments: &str) -> Path {
    let transport = StreamableHttpClientTransport::from_uri(url);
    let service = Arc::new(().serve(transport).await.unwrap());
    let arguments: Value = serde_json::from_str(arguments).unwrap();
    let mut call = CallToolRequestParams::new("echo");
    call.arguments = arguments.as_object().cloned();
    Path::new("rmcp directly", move || {
        let (service, call) = (Arc::clone(&service), call.clone());
        async move {
            service.call_tool(call).await.unwrap();
        }
    })
}

/// A child, as bare as can be: lines there and back, in the order in which they come.
pub(crate) struct Pipe {
    requests: mpsc::Sender<(Bytes, oneshot::Sender<()>)>,
    _process: Group,
}

impl Pipe {
    /// Starts it.
    pub(crate) fn start(manner: Manner) -> Self {
        let line = stdio_server(manner);
        let mut command = Command::new(&line.program);
        command
            .args(&line.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = Group::spawn(&mut command).unwrap();
        let (mut input, output) = (
            process.take_stdin().unwrap(),
            process.take_stdout().unwrap(),
        );
        let (requests, mut queue) = mpsc::channel::<(Bytes, oneshot::Sender<()>)>(1024);
        let waiting = Arc::new(Mutex::new(std::collections::VecDeque::new()));
        let answers = Arc::clone(&waiting);
        tokio::spawn(async move {
            let mut batch = Vec::new();
            while let Some((line, done)) = queue.recv().await {
                batch.clear();
                batch.extend_from_slice(&line);
                let mut waiting = waiting.lock().await;
                waiting.push_back(done);
                while let Ok((line, done)) = queue.try_recv() {
                    batch.extend_from_slice(&line);
                    waiting.push_back(done);
                }
                drop(waiting);
                input.write_all(&batch).await.unwrap();
            }
        });
        tokio::spawn(async move {
            let mut output = BufReader::with_capacity(256 * 1024, output);
            let mut line = Vec::new();
            while output.read_until(b'\n', &mut line).await.unwrap() > 0 {
                line.clear();
                let done = answers.lock().await.pop_front().unwrap();
                let _ = oneshot::Sender::send(done, ());
            }
        });
        Self {
            requests,
            _process: process,
        }
    }

    /// A line and its answer.
    pub(crate) fn path(&self, manner: Manner, arguments: &str) -> Path {
        let line = Bytes::from(format!("{}\n", request(manner, arguments)));
        let requests = self.requests.clone();
        Path::new("bare pipe", move || {
            let (requests, line) = (requests.clone(), line.clone());
            async move {
                let (done, answered) = oneshot::channel();
                requests.send((line, done)).await.unwrap();
                answered.await.unwrap();
            }
        })
    }
}

/// A daemon as it comes, and an app on it.
pub(crate) struct Sidecar {
    /// The daemon.
    pub(crate) daemon: TestDaemon,
    /// An app.
    pub(crate) client: Client,
}

impl Sidecar {
    /// Starts it, with the defaults of the daemon.
    pub(crate) async fn start() -> Self {
        Self::start_with(TestDaemon::builder()).await
    }

    /// Starts it with settings.
    pub(crate) async fn start_with(builder: mcp_sidecar_tests::daemon::Builder) -> Self {
        let daemon = builder.start().await;
        let client = Client::builder()
            .socket(daemon.socket())
            .connect()
            .await
            .unwrap();
        let client = client.with_deadline(Duration::from_mins(1));
        Self { daemon, client }
    }

    /// Adds a server over HTTP.
    pub(crate) async fn add_http(&self, id: &str, url: &str) {
        self.add(id, http_spec(id, url)).await;
    }

    /// Adds a server as a child.
    pub(crate) async fn add_stdio(&self, id: &str, line: &CommandLine) {
        self.add(id, line.spec(id)).await;
    }

    async fn add(&self, id: &str, spec: ServerSpec) {
        let app = self.daemon.clients().await;
        app.add(id, spec).await.unwrap();
        app.wait_for(id, ConnectionState::Ready).await;
    }

    /// One RPC per call.
    pub(crate) fn unary(&self, server: &str, arguments: &str) -> Path {
        let client = self.client.clone();
        let call = mcp_sidecar_client::tool_call(server, "echo", arguments.to_owned());
        Path::new("CallTool", move || {
            let (client, call) = (client.clone(), call.clone());
            async move {
                client.call_tool(call).await.unwrap();
            }
        })
        .of(self.daemon.pid())
    }

    /// One stream for all calls.
    pub(crate) fn streamed(&self, server: &str, arguments: &str) -> Path {
        let calls = self.client.tool_calls();
        let call = mcp_sidecar_client::tool_call(server, "echo", arguments.to_owned());
        Path::new("CallTools", move || {
            let (calls, call) = (calls.clone(), call.clone());
            async move {
                calls.call(call).await.unwrap();
            }
        })
        .of(self.daemon.pid())
    }
}

/// Arguments of about this size, in bytes.
pub(crate) fn arguments(bytes: usize) -> String {
    format!(r#"{{"text":"{}"}}"#, "x".repeat(bytes.saturating_sub(11)))
}
