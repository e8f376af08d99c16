//! A fast MCP server, so that what is measured is the way to it: Streamable HTTP of both eras, or standard streams; and a bare
//! gRPC service that echoes. Each runs in a process of its own.

use std::convert::Infallible;
use std::io::{BufRead as _, Write as _};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::{Stream, StreamExt as _};
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use mcp_sidecar_tests::v1;
use mcp_sidecar_tests::v1::tool_service_server::{ToolService, ToolServiceServer};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::net::{TcpListener, UnixListener};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Status, Streaming};

const MODERN: &str = "2026-07-28";
const LEGACY: &str = "2025-11-25";

/// How the server is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Whether it is of both eras, or of the older one only.
    pub(crate) modern: bool,
    /// Answers are event streams.
    pub(crate) sse: bool,
    /// How many tools it has, the first of them `echo`.
    pub(crate) tools: usize,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    id: Option<&'a RawValue>,
    method: &'a str,
    #[serde(borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Call<'a> {
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
}

impl Manner {
    /// The answer to a message; `None` if it wants none.
    fn answer(&self, message: &[u8]) -> Option<String> {
        let message: Message<'_> = serde_json::from_slice(message).ok()?;
        let id = message.id?.get();
        let result = match message.method {
            "tools/call" => {
                let call = message
                    .params
                    .map(|params| serde_json::from_str(params.get()));
                let call: Option<Call<'_>> = call.and_then(Result::ok);
                let arguments = call.and_then(|call| call.arguments);
                let arguments = arguments.map_or("null", RawValue::get);
                let kind = if self.modern {
                    r#""resultType":"complete","#
                } else {
                    ""
                };
                format!(r#"{{{kind}"content":[],"structuredContent":{arguments}}}"#)
            }
            "tools/list" => self.list(),
            "server/discover" if self.modern => format!(
                r#"{{"resultType":"complete","supportedVersions":["{MODERN}"],"capabilities":{{"tools":{{}}}},"_meta":{{"io.modelcontextprotocol/serverInfo":{{"name":"fast","version":"1"}}}},"ttlMs":0,"cacheScope":"private"}}"#
            ),
            "initialize" => format!(
                r#"{{"protocolVersion":"{LEGACY}","capabilities":{{"tools":{{}}}},"serverInfo":{{"name":"fast","version":"1"}}}}"#
            ),
            "ping" => "{}".to_owned(),
            _ => {
                return Some(format!(
                    r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32601,"message":"Method not found"}}}}"#
                ));
            }
        };
        Some(format!(
            r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#
        ))
    }

    fn list(&self) -> String {
        let tools: Vec<_> = (0..self.tools)
            .map(|number| {
                let name = if number == 0 { "echo".to_owned() } else { format!("tool-{number:05}") };
                format!(
                    r#"{{"name":"{name}","description":"A tool whose description is about as long as that of most tools is.","inputSchema":{{"type":"object","properties":{{"text":{{"type":"string","description":"What to say"}},"times":{{"type":"integer","minimum":1}}}},"required":["text"]}}}}"#
                )
            })
            .collect();
        let kind = if self.modern {
            r#""resultType":"complete","ttlMs":0,"cacheScope":"private","#
        } else {
            ""
        };
        format!(r#"{{{kind}"tools":[{}]}}"#, tools.join(","))
    }

    async fn serve(self, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
        let plain = |status: StatusCode| {
            let mut response = Response::new(Full::default());
            *response.status_mut() = status;
            Ok(response)
        };
        if request.method() != Method::POST || request.uri().path().starts_with("/.well-known") {
            return plain(match *request.method() {
                Method::DELETE => StatusCode::OK,
                Method::GET if request.uri().path().starts_with("/mcp") => {
                    StatusCode::METHOD_NOT_ALLOWED
                }
                _ => StatusCode::NOT_FOUND,
            });
        }
        let Ok(body) = request.into_body().collect().await else {
            return plain(StatusCode::BAD_REQUEST);
        };
        let Some(answer) = self.answer(&body.to_bytes()) else {
            return plain(StatusCode::ACCEPTED);
        };
        let (kind, body) = if self.sse {
            (
                "text/event-stream",
                format!("event: message\ndata: {answer}\n\n"),
            )
        } else {
            ("application/json", answer)
        };
        let response = Response::builder().header("content-type", kind);
        Ok(response.body(Full::from(body)).unwrap())
    }
}

/// Serves Streamable HTTP at this port of the loopback address, on any path, until it is killed.
pub(crate) async fn http(manner: Manner, port: u16) {
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let service = service_fn(move |request| manner.serve(request));
        let mut server = http1::Builder::new();
        server.timer(TokioTimer::new());
        tokio::spawn(server.serve_connection(TokioIo::new(stream), service));
    }
}

/// Serves standard streams until its input ends.
pub(crate) fn stdio(manner: Manner) {
    let mut input = std::io::BufReader::with_capacity(64 * 1024, std::io::stdin().lock());
    let mut output = std::io::stdout().lock();
    let (mut line, mut answers) = (Vec::new(), Vec::new());
    loop {
        line.clear();
        if input.read_until(b'\n', &mut line).unwrap() == 0 {
            return;
        }
        if let Some(answer) = manner.answer(&line) {
            answers.extend_from_slice(answer.as_bytes());
            answers.push(b'\n');
        }
        // What came at once is answered at once.
        if !input.buffer().contains(&b'\n') {
            output.write_all(&answers).unwrap();
            output.flush().unwrap();
            answers.clear();
        }
    }
}

/// The gRPC service that does nothing but echo, with the messages of the contract.
struct Echo;

fn echo(call: Option<v1::ToolCall>) -> v1::ToolResult {
    v1::ToolResult {
        structured_content_json: call.and_then(|call| call.arguments_json),
        ..Default::default()
    }
}

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

#[tonic::async_trait]
impl ToolService for Echo {
    type CallToolStreamStream = Responses<v1::CallToolStreamResponse>;
    type CallToolsStream = Responses<v1::CallToolsResponse>;

    async fn list_tools(
        &self,
        _: tonic::Request<v1::ListToolsRequest>,
    ) -> Result<tonic::Response<v1::ListToolsResponse>, Status> {
        Ok(tonic::Response::new(v1::ListToolsResponse::default()))
    }

    async fn call_tool(
        &self,
        request: tonic::Request<v1::CallToolRequest>,
    ) -> Result<tonic::Response<v1::CallToolResponse>, Status> {
        Ok(tonic::Response::new(v1::CallToolResponse {
            result: Some(echo(request.into_inner().call)),
            call_id: String::new(),
        }))
    }

    async fn call_tool_stream(
        &self,
        _: tonic::Request<v1::CallToolStreamRequest>,
    ) -> Result<tonic::Response<Self::CallToolStreamStream>, Status> {
        Err(Status::unimplemented("it only echoes"))
    }

    async fn call_tools(
        &self,
        request: tonic::Request<Streaming<v1::CallToolsRequest>>,
    ) -> Result<tonic::Response<Self::CallToolsStream>, Status> {
        let responses = request.into_inner().map(|request| {
            let request = request?;
            let call = match request.action {
                Some(v1::call_tools_request::Action::Call(call)) => Some(call),
                _ => None,
            };
            Ok(v1::CallToolsResponse {
                number: request.number,
                outcome: Some(v1::call_tools_response::Outcome::Result(echo(call))),
                call_id: String::new(),
            })
        });
        Ok(tonic::Response::new(Box::pin(responses)))
    }
}

/// Serves the echo on a Unix socket until it is killed.
pub(crate) async fn grpc(socket: &Path) {
    let listener = UnixListener::bind(socket).unwrap();
    let service = ToolServiceServer::from_arc(Arc::new(Echo))
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX);
    tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming(UnixListenerStream::new(listener))
        .await
        .unwrap();
}
