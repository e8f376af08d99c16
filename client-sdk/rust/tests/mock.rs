//! The client against a scripted daemon on a temporary Unix socket.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking, its helpers too"
)]

use std::collections::{HashMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures_util::StreamExt as _;
use mcp_sidecar_client::proto::tool_service_server::{ToolService, ToolServiceServer};
use mcp_sidecar_client::proto::update_service_server::{UpdateService, UpdateServiceServer};
use mcp_sidecar_client::proto::{
    Bookmark, CallStarted, CallToolRequest, CallToolResponse, CallToolStreamRequest,
    CallToolStreamResponse, CallToolsRequest, CallToolsResponse, ContentBlock, ListToolsRequest,
    ListToolsResponse, Server, SnapshotEnd, StreamUpdatesRequest, StreamUpdatesResponse,
    TextContent, Tool, ToolResult, Upsert, call_tool_stream_response, content_block,
    stream_updates_response as update, upsert,
};
use mcp_sidecar_client::{
    CallEvent, Client, Error, Reason, ResetCause, UpdateEvent, Updates, tool_call,
};
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// What one StreamUpdates request is answered with.
enum Answer {
    /// These responses, then the end of the stream.
    Then(Vec<StreamUpdatesResponse>),
    /// These responses, then silence.
    Hold(Vec<StreamUpdatesResponse>),
    Refuse(Status),
}

#[derive(Default)]
struct Script {
    answers: Mutex<VecDeque<Answer>>,
    requests: Mutex<Vec<StreamUpdatesRequest>>,
    timeouts: Mutex<Vec<Option<String>>>,
}

#[derive(Clone)]
struct Mock(Arc<Script>);

type Stream<T> = futures_util::stream::BoxStream<'static, Result<T, Status>>;

#[tonic::async_trait]
impl UpdateService for Mock {
    type StreamUpdatesStream = Stream<StreamUpdatesResponse>;

    async fn stream_updates(
        &self,
        request: Request<StreamUpdatesRequest>,
    ) -> Result<Response<Self::StreamUpdatesStream>, Status> {
        let request = request.into_inner();
        self.0.requests.lock().unwrap().push(request);
        let answer = self.0.answers.lock().unwrap().pop_front();
        match answer {
            Some(Answer::Then(items)) => Ok(Response::new(
                tokio_stream::iter(items.into_iter().map(Ok)).boxed(),
            )),
            Some(Answer::Hold(items)) => Ok(Response::new(
                tokio_stream::iter(items.into_iter().map(Ok))
                    .chain(futures_util::stream::pending())
                    .boxed(),
            )),
            Some(Answer::Refuse(status)) => Err(status),
            None => Ok(Response::new(futures_util::stream::pending().boxed())),
        }
    }
}

#[tonic::async_trait]
impl ToolService for Mock {
    type CallToolStreamStream = Stream<CallToolStreamResponse>;

    async fn list_tools(
        &self,
        request: Request<ListToolsRequest>,
    ) -> Result<Response<ListToolsResponse>, Status> {
        let request = request.into_inner();
        assert_eq!(request.namespace, "apps");
        let page = request.page_token.parse::<u32>().unwrap_or(0);
        Ok(Response::new(ListToolsResponse {
            tools: vec![Tool {
                name: format!("tool-{page}"),
                ..Default::default()
            }],
            next_page_token: if page < 2 {
                (page + 1).to_string()
            } else {
                String::new()
            },
            issues: Vec::new(),
        }))
    }

    async fn call_tool(
        &self,
        request: Request<CallToolRequest>,
    ) -> Result<Response<CallToolResponse>, Status> {
        let timeout = request.metadata().get("grpc-timeout");
        let timeout = timeout.map(|value| value.to_str().unwrap().to_owned());
        self.0.timeouts.lock().unwrap().push(timeout);
        let call = request.into_inner().call.unwrap();
        match call.tool_name.as_str() {
            "big" => Ok(Response::new(CallToolResponse {
                result: Some(ToolResult {
                    content: vec![ContentBlock {
                        block: Some(content_block::Block::Text(TextContent {
                            text: "x".repeat(8 * 1024 * 1024),
                            extra_json: String::new(),
                        })),
                    }],
                    ..Default::default()
                }),
                call_id: "1".to_owned(),
            })),
            "hang" => futures_util::future::pending().await,
            name => {
                let mut details = ErrorDetails::with_error_info(
                    "TOOL_NOT_FOUND",
                    "mcpsidecar",
                    HashMap::from([("tool".to_owned(), name.to_owned())]),
                );
                details.add_bad_request_violation("call.tool_name", "unknown");
                Err(Status::with_error_details(
                    Code::NotFound,
                    "no such tool",
                    details,
                ))
            }
        }
    }

    async fn call_tool_stream(
        &self,
        request: Request<CallToolStreamRequest>,
    ) -> Result<Response<Self::CallToolStreamStream>, Status> {
        let call = request.into_inner().call.unwrap();
        let mut events = vec![
            Some(call_tool_stream_response::Event::Started(CallStarted {
                call_id: "1".to_owned(),
            })),
            None,
        ];
        if call.tool_name == "add" {
            let result = ToolResult {
                structured_content_json: call.arguments_json,
                ..Default::default()
            };
            events.push(Some(call_tool_stream_response::Event::Result(result)));
        }
        let events = events
            .into_iter()
            .map(|event| Ok(CallToolStreamResponse { event }));
        Ok(Response::new(tokio_stream::iter(events).boxed()))
    }

    type CallToolsStream = Stream<CallToolsResponse>;

    async fn call_tools(
        &self,
        _: Request<tonic::Streaming<CallToolsRequest>>,
    ) -> Result<Response<Self::CallToolsStream>, Status> {
        Err(Status::unimplemented("the stories call the daemon itself"))
    }
}

struct Daemon {
    script: Arc<Script>,
    stop: CancellationToken,
    dir: tempfile::TempDir,
}

impl Daemon {
    fn start(answers: impl IntoIterator<Item = Answer>) -> Self {
        let daemon = Self {
            script: Arc::default(),
            stop: CancellationToken::new(),
            dir: tempfile::tempdir().unwrap(),
        };
        daemon.script.answers.lock().unwrap().extend(answers);
        serve(&daemon.socket(), &daemon.script, daemon.stop.clone());
        daemon
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("app.sock")
    }

    /// Ends every connection as a killed daemon does, and serves again.
    async fn restart(&mut self) {
        std::mem::take(&mut self.stop).cancel();
        std::fs::remove_file(self.socket()).unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await;
        serve(&self.socket(), &self.script, self.stop.clone());
    }

    async fn client(&self) -> Client {
        Client::builder()
            .socket(self.socket())
            .namespace("apps")
            .connect()
            .await
            .unwrap()
    }

    fn tokens(&self) -> Vec<String> {
        let requests = self.script.requests.lock().unwrap();
        requests.iter().map(|r| r.resume_token.clone()).collect()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// Serves on a runtime of its own: dropping it ends the connections too, which a graceful stop would not.
fn serve(path: &Path, script: &Arc<Script>, stop: CancellationToken) {
    let listener = std::os::unix::net::UnixListener::bind(path).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mock = Mock(Arc::clone(script));
    let router = tonic::transport::Server::builder()
        .add_service(UpdateServiceServer::new(mock.clone()))
        .add_service(ToolServiceServer::new(mock).max_encoding_message_size(64 * 1024 * 1024));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    std::thread::spawn(move || {
        runtime.block_on(async move {
            let listener = UnixListener::from_std(listener).unwrap();
            let serving = router.serve_with_incoming(UnixListenerStream::new(listener));
            tokio::select! {
                () = stop.cancelled() => {}
                result = serving => result.unwrap(),
            }
        });
    });
}

fn server(id: &str, token: &str) -> StreamUpdatesResponse {
    let server = Server {
        id: id.to_owned(),
        ..Default::default()
    };
    event(
        update::Event::Upsert(Upsert {
            resource: Some(upsert::Resource::Server(server)),
        }),
        token,
    )
}

fn event(event: update::Event, token: &str) -> StreamUpdatesResponse {
    StreamUpdatesResponse {
        event: Some(event),
        resume_token: token.to_owned(),
        ..Default::default()
    }
}

fn snapshot_end(token: &str) -> StreamUpdatesResponse {
    event(update::Event::SnapshotEnd(SnapshotEnd {}), token)
}

fn refused(code: Code, reason: &str) -> Answer {
    let details = ErrorDetails::with_error_info(reason, "mcpsidecar", HashMap::new());
    Answer::Refuse(Status::with_error_details(code, "refused", details))
}

/// The next events in short form.
async fn read(updates: &mut Updates, count: usize) -> Vec<String> {
    let mut seen = Vec::new();
    for _ in 0..count {
        let next = tokio::time::timeout(Duration::from_secs(10), updates.next());
        seen.push(match next.await.expect("an update in time") {
            None => "end".to_owned(),
            Some(Err(error)) => format!("error {}", error.reason().unwrap()),
            Some(Ok(update)) => match update.event {
                UpdateEvent::Server(server) => server.id,
                UpdateEvent::SnapshotEnd => "snapshot end".to_owned(),
                UpdateEvent::Bookmark => "bookmark".to_owned(),
                UpdateEvent::Reset(ResetCause::TokenExpired) => "reset: expired".to_owned(),
                UpdateEvent::Reset(ResetCause::SnapshotInterrupted) => {
                    "reset: interrupted".to_owned()
                }
                other => format!("{other:?}"),
            },
        });
    }
    seen
}

#[tokio::test]
async fn updates_resume_behind_the_last_one() {
    let daemon = Daemon::start([
        Answer::Then(vec![server("a", ""), snapshot_end("t1"), server("b", "t2")]),
        refused(Code::Unavailable, "DRAINING"),
        Answer::Hold(vec![
            server("c", "t3"),
            event(update::Event::Bookmark(Bookmark {}), "t4"),
        ]),
    ]);
    let mut updates = daemon.client().await.updates();
    assert_eq!(
        read(&mut updates, 5).await,
        ["a", "snapshot end", "b", "c", "bookmark"]
    );
    assert_eq!(daemon.tokens(), ["", "t2", "t2"]);
    assert_eq!(
        daemon.script.requests.lock().unwrap()[0].namespaces,
        ["apps"]
    );
}

#[tokio::test]
async fn updates_survive_a_restart_of_the_daemon() {
    let mut daemon = Daemon::start([
        Answer::Hold(vec![snapshot_end("t1")]),
        Answer::Hold(vec![server("b", "t2")]),
    ]);
    let mut updates = daemon.client().await.updates();
    assert_eq!(read(&mut updates, 1).await, ["snapshot end"]);
    daemon.restart().await;
    assert_eq!(read(&mut updates, 1).await, ["b"]);
    assert_eq!(daemon.tokens(), ["", "t1"]);
}

#[tokio::test]
async fn an_expired_token_starts_over_and_says_so() {
    let daemon = Daemon::start([
        Answer::Then(vec![snapshot_end("t1")]),
        refused(Code::OutOfRange, "RESUME_TOKEN_EXPIRED"),
        Answer::Hold(vec![server("a", ""), snapshot_end("t9")]),
    ]);
    let mut updates = daemon.client().await.updates();
    assert_eq!(
        read(&mut updates, 4).await,
        ["snapshot end", "reset: expired", "a", "snapshot end"]
    );
    assert_eq!(daemon.tokens(), ["", "t1", ""]);
}

#[tokio::test]
async fn an_interrupted_snapshot_starts_over_and_says_so() {
    let daemon = Daemon::start([
        Answer::Then(vec![server("a", "")]),
        Answer::Hold(vec![server("a", ""), snapshot_end("t1")]),
    ]);
    let mut updates = daemon.client().await.updates();
    assert_eq!(
        read(&mut updates, 4).await,
        ["a", "reset: interrupted", "a", "snapshot end"]
    );
}

#[tokio::test]
async fn a_request_that_can_never_succeed_ends_the_stream() {
    let daemon = Daemon::start([refused(Code::PermissionDenied, "CALLER_NOT_ALLOWED")]);
    let mut updates = daemon.client().await.updates();
    assert_eq!(
        read(&mut updates, 2).await,
        ["error CALLER_NOT_ALLOWED", "end"]
    );
}

#[tokio::test]
async fn errors_carry_the_details() {
    let daemon = Daemon::start([]);
    let call = tool_call("s", "nope", ());
    let error = daemon.client().await.call_tool(call).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "TOOL_NOT_FOUND in `call.tool_name`: no such tool"
    );
    assert_eq!(error.reason(), Some(&Reason::TOOL_NOT_FOUND));
    assert!(matches!(error, Error::Status { metadata, .. } if metadata["tool"] == "nope"));
}

#[tokio::test]
async fn a_deadline_is_sent_and_kept() {
    let daemon = Daemon::start([]);
    let client = daemon.client().await;
    let hurried = client.with_deadline(Duration::from_millis(80));
    let error = hurried.call_tool(tool_call("s", "hang", ())).await;
    let error = error.unwrap_err();
    assert_eq!(error.reason(), Some(&Reason::DEADLINE_EXCEEDED), "{error}");
    client.call_tool(tool_call("s", "x", ())).await.unwrap_err();
    let timeouts = daemon.script.timeouts.lock().unwrap().clone();
    assert!(timeouts[0].is_some());
    assert_eq!(timeouts[1], None);
}

#[tokio::test]
async fn pages_are_joined_and_large_messages_pass() {
    let daemon = Daemon::start([]);
    let client = daemon.client().await;
    let tools = client.list_tools().await.unwrap().items;
    let names: Vec<_> = tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!(names, ["tool-0", "tool-1", "tool-2"]);
    client.call_tool(tool_call("s", "big", ())).await.unwrap();
}

#[tokio::test]
async fn a_call_stream_ends_with_the_result_or_an_error() {
    let daemon = Daemon::start([]);
    let client = daemon.client().await;
    let call = tool_call("s", "add", r#"{"a":12345678901234567890123}"#);
    let mut stream = client.call_tool_stream(call).await.unwrap();
    let first = stream.next().await;
    assert!(matches!(first, Some(Ok(CallEvent::Started(_)))));
    let Some(Ok(CallEvent::Result(result))) = stream.next().await else {
        panic!("no result");
    };
    assert_eq!(
        result.structured_content_json.as_deref(),
        Some(r#"{"a":12345678901234567890123}"#)
    );
    assert!(stream.next().await.is_none());

    let call = tool_call("s", "cut", ());
    let mut stream = client.call_tool_stream(call).await.unwrap();
    stream.next().await.unwrap().unwrap();
    let last = stream.next().await;
    assert!(matches!(last, Some(Err(Error::Contract(_)))), "{last:?}");
    assert!(stream.next().await.is_none());
}

#[tokio::test]
async fn connect_waits_for_the_daemon_and_names_what_it_tried() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("late.sock");
    let error = Client::builder()
        .socket(&path)
        .connect_timeout(Duration::from_millis(100))
        .connect()
        .await
        .unwrap_err();
    let text = error.to_string();
    assert!(text.contains("late.sock"), "{text}");
    assert!(text.contains("No such file"), "{text}");
    assert!(error.is_retryable());

    let connecting = Client::builder().socket(&path).connect();
    let script = Arc::default();
    let stop = CancellationToken::new();
    let starting = async {
        tokio::time::sleep(Duration::from_millis(150)).await;
        serve(&path, &script, stop.clone());
    };
    let (client, ()) = tokio::join!(connecting, starting);
    client.unwrap();
    stop.cancel();
}

#[tokio::test]
async fn a_daemon_that_is_gone_is_told_from_one_that_was_lost() {
    let daemon = Daemon::start([]);
    let client = daemon.client().await;
    let call = client.call_tool(tool_call("s", "hang", ()));
    let stop = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        daemon.stop.cancel();
        std::fs::remove_file(daemon.socket()).unwrap();
    };
    let (answer, ()) = tokio::join!(call, stop);
    let error = answer.unwrap_err();
    assert!(
        matches!(error, Error::Transport { sent: true, .. }),
        "{error:?}"
    );
    assert!(!error.is_retryable());

    let error = client.call_tool(tool_call("s", "x", ())).await.unwrap_err();
    assert!(
        matches!(error, Error::Transport { sent: false, .. }),
        "{error:?}"
    );
    assert!(error.is_retryable());
}
