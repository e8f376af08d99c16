//! The servers: of every kind, era and revision, with everything that the weather needs to spoil them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mcp_sidecar_tests::clients::{http_spec_as, millis, seconds, socket_spec};
use mcp_sidecar_tests::fake::{SseWriter, stream};
use mcp_sidecar_tests::fake_stdio::{Form, Helper, Script, StdioFault};
use mcp_sidecar_tests::prelude::*;
use tokio::sync::{oneshot, watch};

use crate::ledger::Ledger;

/// How many servers there are.
pub(crate) const SERVERS: usize = 50;
/// The resource that every fake offers.
pub(crate) const RESOURCE: &str = "note://1";
/// Longest time that a fake waits for anything.
const BOUND: Duration = Duration::from_secs(20);

/// How a server is reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Way {
    /// A child process that relays to a fake of ours.
    Child,
    /// A child process with a script of its own.
    Program,
    /// Streamable HTTP, answers as JSON.
    Json,
    /// Streamable HTTP, answers as event streams.
    Sse,
    /// HTTP+SSE of old.
    HttpSse,
    /// Streamable HTTP on a Unix socket.
    SocketHttp,
    /// Lines of JSON on a Unix socket.
    SocketLines,
}

const WAYS: [Way; 7] = [
    Way::Child,
    Way::Json,
    Way::Sse,
    Way::SocketLines,
    Way::HttpSse,
    Way::SocketHttp,
    Way::Program,
];
/// Revisions of the legacy era; the first had no Streamable HTTP.
const LEGACY: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// A server.
pub(crate) struct Server {
    /// Its id.
    pub(crate) id: String,
    /// How it is reached.
    pub(crate) way: Way,
    /// Its revision.
    pub(crate) version: &'static str,
    /// Its registration.
    pub(crate) spec: ServerSpec,
    /// The fake behind it, unless it is a program.
    pub(crate) fake: Option<FakeMcp>,
    /// How it feels.
    pub(crate) mood: Arc<Mood>,
    /// A text in the command line of its processes.
    pub(crate) command: Option<String>,
    /// Where a program writes down what it reads.
    pub(crate) record: Option<PathBuf>,
}

/// How a fake feels: set by the weather, minded by every answer.
pub(crate) struct Mood {
    /// Answers nothing while it is true.
    pub(crate) stalled: watch::Sender<bool>,
    /// Milliseconds before every answer.
    pub(crate) delay: AtomicU64,
    /// Answers with what is no answer.
    pub(crate) broken: AtomicBool,
    /// Counts everything, for names that are new and answers that differ.
    count: AtomicU64,
    /// Questions that wait for their answers, by the ids of their requests.
    asked: Mutex<HashMap<String, oneshot::Sender<Value>>>,
}

impl Mood {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            stalled: watch::Sender::new(false),
            delay: AtomicU64::new(0),
            broken: AtomicBool::new(false),
            count: AtomicU64::new(0),
            asked: Mutex::default(),
        })
    }

    /// A number that it has not given yet.
    pub(crate) fn fresh(&self) -> u64 {
        self.count.fetch_add(1, Ordering::Relaxed)
    }
}

/// What a tool shall do, as its arguments say.
pub(crate) const ACTS: &[&str] = &[
    "echo", "echo", "echo", "echo", "echo", "echo", "echo", "echo", "big", "big", "big", "slow",
    "slow", "flood", "flood", "ask", "error", "failed", "broken", "reset", "hang",
];

/// Starts the servers. Programs keep their files in `dir`.
pub(crate) async fn start(ledger: &Ledger, dir: &Path) -> Vec<Server> {
    let mut servers = Vec::new();
    for number in 0..SERVERS {
        let way = WAYS[number % WAYS.len()];
        let round = number / WAYS.len();
        let modern = way != Way::HttpSse && round.is_multiple_of(2);
        let streamable = matches!(way, Way::Json | Way::Sse | Way::SocketHttp);
        let revisions = if streamable {
            &LEGACY[..3]
        } else {
            &LEGACY[..]
        };
        let legacy = revisions[(round / 2) % revisions.len()];
        servers.push(start_one(number, way, modern, legacy, ledger, dir).await);
    }
    servers
}

async fn start_one(
    number: usize,
    way: Way,
    modern: bool,
    legacy: &'static str,
    ledger: &Ledger,
    dir: &Path,
) -> Server {
    let id = format!("s{number:02}");
    let mood = Mood::new();
    let (mut command, mut record, mut fake) = (None, None, None);
    let mut spec = if way == Way::Program {
        let file = dir.join(format!("{id}.record"));
        let script = script(number, modern, dir, &file);
        command = Some(format!("{}/{id}.json", dir.display()));
        record = Some(file);
        script.spec(&id, dir).await
    } else {
        let started = start_fake(way, modern, legacy, &mood, ledger).await;
        let spec = match way {
            Way::Child => {
                command = started.socket().to_str().map(str::to_owned);
                started.as_child(&id).await
            }
            Way::HttpSse => http_spec_as(&id, &started.url(), v1::HttpMode::Auto),
            Way::SocketHttp | Way::SocketLines => {
                let protocol = if way == Way::SocketHttp {
                    v1::UnixSocketProtocol::Http
                } else {
                    v1::UnixSocketProtocol::Ndjson
                };
                socket_spec(&id, &started.socket(), protocol)
            }
            Way::Json | Way::Sse | Way::Program => http_spec(&id, &started.url()),
        };
        fake = Some(started);
        spec
    };
    spec.client_capabilities = Some(v1::ClientCapabilities {
        elicitation_form: true,
        ..Default::default()
    });
    spec.timeouts = Some(v1::ServerTimeouts {
        connect: Some(seconds(4)),
        call_idle: Some(seconds(3)),
        call: Some(seconds(15)),
    });
    spec.retry = Some(v1::RetryPolicy {
        base_delay: Some(millis(100)),
        max_delay: Some(seconds(1)),
        ..Default::default()
    });
    Server {
        id,
        way,
        version: match (way, modern) {
            (_, true) => mcp_sidecar_tests::fake::MODERN,
            (Way::Program, false) => LEGACY[0],
            (_, false) => legacy,
        },
        spec,
        fake,
        mood,
        command,
        record,
    }
}

fn script(number: usize, modern: bool, dir: &Path, record: &Path) -> Script {
    let helper = |detached, holds_streams| {
        StdioFault::Helper(Helper {
            detached,
            holds_streams,
            stubborn: false,
            pids: dir.join(format!("s{number:02}.pids")).display().to_string(),
            hidden: false,
        })
    };
    let mut script = Script::healthy(modern);
    script.faults = match (number / WAYS.len()) % 7 {
        0 => vec![helper(true, false)],
        1 => vec![StdioFault::ChatterOnCall(20)],
        2 => vec![StdioFault::Answer(Form::ByteByByte)],
        3 => vec![StdioFault::Stubborn],
        4 => vec![StdioFault::StderrFlood(64)],
        5 => vec![StdioFault::Garbage(vec!["not JSON".to_owned()])],
        _ => vec![helper(false, true)],
    };
    script
        .faults
        .push(StdioFault::Record(record.display().to_string()));
    script
}

async fn start_fake(
    way: Way,
    modern: bool,
    version: &'static str,
    mood: &Arc<Mood>,
    ledger: &Ledger,
) -> FakeMcp {
    let mut builder = if modern {
        FakeMcp::modern()
    } else {
        FakeMcp::legacy().version(version)
    };
    builder = match way {
        Way::Child | Way::SocketLines => builder.lines(),
        Way::Sse => builder.sse(),
        Way::HttpSse => builder.http_sse(),
        Way::SocketHttp => builder.on_socket(),
        Way::Json | Way::Program => builder,
    };
    let note = json!({"uri": RESOURCE, "name": "note"});
    let builder = builder.tool(tool("work")).entry("resources", note);
    let fake = builder.forgetful().follows().start().await;
    let (mood, ledger) = (Arc::clone(mood), ledger.clone());
    fake.on("*", move |seen| {
        let (mood, ledger) = (Arc::clone(&mood), ledger.clone());
        async move { answer(&mood, &ledger, modern, seen).await }
    });
    fake
}

async fn answer(mood: &Arc<Mood>, ledger: &Ledger, modern: bool, seen: Seen) -> Reply {
    let method = seen.method();
    if method.is_empty() {
        let id = seen.json["id"].as_str().unwrap_or_default();
        let waiter = mood.asked.lock().unwrap().remove(id);
        if let Some(waiter) = waiter {
            // Whoever asked may be gone with its call.
            let _gone = waiter.send(seen.json["result"].clone());
        }
        return Reply::Default;
    }
    if method.starts_with("notifications/") {
        return Reply::Default;
    }
    let arguments = &seen.params()["arguments"];
    let id = arguments["id"].as_u64().unwrap_or_default();
    let calls = method == "tools/call";
    if calls && seen.params()["inputResponses"].is_null() {
        ledger.executed(id);
    }
    let mut stalled = mood.stalled.subscribe();
    let calm = async { stalled.wait_for(|stalled| !stalled).await.is_ok() };
    let _bound = tokio::time::timeout(BOUND, calm).await;
    tokio::time::sleep(Duration::from_millis(mood.delay.load(Ordering::Relaxed))).await;
    if mood.broken.load(Ordering::Relaxed) {
        return broken(mood.fresh());
    }
    if calls {
        work(mood, modern, id, &seen)
    } else {
        Reply::Default
    }
}

/// What is no answer.
fn broken(which: u64) -> Reply {
    let html = || vec![("content-type", "text/html".to_owned())];
    match which % 5 {
        0 => Reply::Raw(500, Vec::new(), "down".into()),
        1 => Reply::Raw(200, html(), "<html>".into()),
        2 => Reply::Error(-32603, "broken", Value::Null),
        3 => Reply::Text("{".to_owned()),
        _ => Reply::Reset,
    }
}

fn complete(text: &str) -> Value {
    json!({"resultType": "complete", "content": [{"type": "text", "text": text}]})
}

/// The text that a call with these arguments shall give.
pub(crate) fn expected(act: &str, arguments: &str) -> String {
    let size = serde_json::from_str::<Value>(arguments).unwrap()["size"].as_u64();
    let size = usize::try_from(size.unwrap_or(0)).unwrap();
    match act {
        "big" => format!("{arguments}{}", "0123456789abcdef".repeat(size / 16)),
        _ => arguments.to_owned(),
    }
}

fn work(mood: &Arc<Mood>, modern: bool, id: u64, seen: &Seen) -> Reply {
    let arguments = seen.arguments();
    let params = seen.params();
    let act = params["arguments"]["act"].as_str().unwrap_or_default();
    let token = params["_meta"]["progressToken"].clone();
    match act {
        "error" => Reply::Error(-32001, "no", json!({"id": id})),
        "failed" => {
            let mut result = complete(&arguments);
            result["isError"] = json!(true);
            Reply::Json(result)
        }
        "broken" => broken(mood.fresh()),
        "reset" => Reply::Reset,
        "hang" => Reply::Hang,
        "slow" => stream(async move |writer: SseWriter| {
            for step in 1..=5 {
                progress(&writer, &token, step).await;
                tokio::time::sleep(Duration::from_millis(60)).await;
            }
            writer.result(complete(&arguments)).await;
        }),
        "flood" => stream(async move |writer: SseWriter| {
            let log = json!({"level": "info", "data": "x".repeat(200)});
            let log = json!({"jsonrpc": "2.0", "method": "notifications/message", "params": log});
            for step in 1..=200 {
                progress(&writer, &token, step).await;
                writer.message(&log).await;
            }
            writer.result(complete(&arguments)).await;
        }),
        "ask" if modern => {
            let given = params["inputResponses"]["who"].clone();
            if !given.is_null() {
                return Reply::Json(complete(&json!({"id": id, "given": given}).to_string()));
            }
            let ask = json!({"method": "elicitation/create", "params": form(id)});
            Reply::Json(json!({
                "resultType": "input_required", "requestState": "state",
                "inputRequests": {"who": ask},
            }))
        }
        "ask" => ask_by_push(mood, id),
        act => Reply::Json(complete(&expected(act, &arguments))),
    }
}

async fn progress(writer: &SseWriter, token: &Value, step: u64) {
    if token.is_null() {
        return;
    }
    let params = json!({"progressToken": token, "progress": step, "message": "on the way"});
    let message = json!({"jsonrpc": "2.0", "method": "notifications/progress", "params": params});
    writer.message(&message).await;
}

/// The question of a call; its message ends in the number of the call.
fn form(id: u64) -> Value {
    json!({
        "mode": "form", "message": format!("Who asks for {id}"),
        "requestedSchema": {
            "type": "object", "required": ["name"], "properties": {"name": {"type": "string"}},
        },
    })
}

fn ask_by_push(mood: &Arc<Mood>, id: u64) -> Reply {
    let mood = Arc::clone(mood);
    stream(async move |writer: SseWriter| {
        let request = format!("q-{}", mood.fresh());
        let (sender, given) = oneshot::channel();
        mood.asked.lock().unwrap().insert(request.clone(), sender);
        let method = "elicitation/create";
        let ask = json!({"jsonrpc": "2.0", "id": request, "method": method, "params": form(id)});
        writer.message(&ask).await;
        tokio::select! {
            Ok(given) = given => {
                let text = json!({"id": id, "given": given}).to_string();
                writer.result(complete(&text)).await;
            }
            () = writer.closed() => {}
            () = tokio::time::sleep(BOUND) => {}
        }
        mood.asked.lock().unwrap().remove(&request);
    })
}
