//! The basic operations over every transport and every revision that it exists in: one story, generated tests.

use mcp_sidecar_tests::fake::{SseWriter, stream};
use mcp_sidecar_tests::prelude::*;
use mcp_sidecar_tests::v1::call_tool_stream_response::Event;
use mcp_sidecar_tests::v1::{HttpMode, TransportKind, UnixSocketProtocol};

/// A way to a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Stdio,
    HttpJson,
    HttpSse,
    LegacySse,
    SocketHttp,
    SocketLines,
}

impl Way {
    fn kind(self) -> TransportKind {
        match self {
            Self::Stdio => TransportKind::Stdio,
            Self::HttpJson | Self::HttpSse => TransportKind::StreamableHttp,
            Self::LegacySse => TransportKind::Sse,
            Self::SocketHttp | Self::SocketLines => TransportKind::UnixSocket,
        }
    }

    /// Whether every request has an HTTP exchange of its own.
    fn is_streamable(self) -> bool {
        matches!(self, Self::HttpJson | Self::HttpSse | Self::SocketHttp)
    }

    async fn fake(self, version: &'static str) -> FakeMcp {
        let modern = version == "2026-07-28";
        let builder = if modern {
            FakeMcp::modern()
        } else {
            FakeMcp::legacy()
        };
        let builder = match self {
            Self::Stdio | Self::SocketLines => builder.lines(),
            Self::HttpJson => builder,
            Self::HttpSse => builder.sse(),
            Self::LegacySse => builder.http_sse(),
            Self::SocketHttp => builder.sse().on_socket(),
        };
        let tools = ["echo", "fail", "work", "hang", "ask"];
        let builder = tools.iter().fold(builder, |all, name| all.tool(tool(name)));
        builder.version(version).start().await
    }

    async fn spec(self, fake: &FakeMcp) -> ServerSpec {
        match self {
            Self::Stdio => fake.as_child("peer").await,
            Self::HttpJson | Self::HttpSse => http_spec("peer", &fake.url()),
            Self::LegacySse => http_spec_as("peer", &fake.url(), HttpMode::Sse),
            Self::SocketHttp => socket_spec("peer", &fake.socket(), UnixSocketProtocol::Http),
            Self::SocketLines => socket_spec("peer", &fake.socket(), UnixSocketProtocol::Ndjson),
        }
    }
}

/// One cell of the matrix.
#[derive(Clone)]
struct Cell {
    way: Way,
    version: &'static str,
    modern: bool,
    fake: FakeMcp,
}

impl Cell {
    async fn new(way: Way, version: &'static str) -> Self {
        let fake = way.fake(version).await;
        let cell = Self {
            way,
            version,
            modern: version == "2026-07-28",
            fake,
        };
        let server = cell.clone();
        cell.fake.on("tools/call", move |seen| {
            let server = server.clone();
            async move { server.call(seen) }
        });
        cell
    }

    /// A server that answers with JSON says everything else beside its answers, where it can.
    fn says_beside(&self) -> bool {
        self.way == Way::HttpJson
    }

    /// Whether something can be said during a call.
    fn can_say(&self) -> bool {
        !(self.modern && self.says_beside())
    }

    /// Whether the revision has elicitation.
    fn can_ask(&self) -> bool {
        self.version >= "2025-06-18"
    }

    fn complete(&self, text: &str) -> Value {
        let mut result = json!({"content": [{"type": "text", "text": text}]});
        if self.modern {
            result["resultType"] = json!("complete");
        }
        result
    }

    async fn say(&self, writer: &SseWriter, message: Value) {
        if self.says_beside() {
            self.fake.push(message).await;
        } else {
            writer.message(&message).await;
        }
    }

    fn call(self, seen: Seen) -> Reply {
        match seen.tool() {
            "fail" => Reply::Error(-32602, "not like this", json!({"hint": [1.0, "\u{e9}"]})),
            "hang" => Reply::Hang,
            "work" if self.can_say() => stream(async move |writer: SseWriter| {
                let token = &seen.params()["_meta"]["progressToken"];
                for step in 1..=3 {
                    let params = json!({"progressToken": token, "progress": step, "total": 3});
                    let method = "notifications/progress";
                    let message = json!({"jsonrpc": "2.0", "method": method, "params": params});
                    self.say(&writer, message).await;
                }
                writer.result(self.complete("done")).await;
            }),
            "work" => Reply::Json(self.complete("done")),
            "ask" if self.modern => match &seen.params()["inputResponses"]["who"] {
                Value::Null => Reply::Json(json!({
                    "resultType": "input_required", "requestState": "s",
                    "inputRequests": {"who": {"method": "elicitation/create", "params": form()}},
                })),
                answer => Reply::Json(self.complete(&answer.to_string())),
            },
            "ask" => stream(async move |writer: SseWriter| {
                let id = json!("q-1");
                let method = "elicitation/create";
                let ask = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": form()});
                self.say(&writer, ask).await;
                let answer = self.fake.wait("the answer", |seen| seen.answers(&id)).await;
                let answer = answer.json["result"].to_string();
                writer.result(self.complete(&answer)).await;
            }),
            _ => Reply::Default,
        }
    }
}

fn form() -> Value {
    let schema = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    json!({"mode": "form", "message": "Who are you?", "requestedSchema": schema})
}

async fn story(way: Way, version: &'static str) {
    let cell = Cell::new(way, version).await;
    let daemon = TestDaemon::start().await;
    let app = daemon.clients().await;
    let mut updates = app.updates("").await;
    let mut spec = way.spec(&cell.fake).await;
    spec.client_capabilities = Some(v1::ClientCapabilities {
        elicitation_form: true,
        ..Default::default()
    });

    // Connect and list.
    let server = app.add_ready(spec).await;
    let id = server.id.as_str();
    let status = server.facts();
    let era = if cell.modern {
        Era::Modern
    } else {
        Era::Legacy
    };
    assert_eq!(status.era(), era);
    assert_eq!(status.protocol_version, version);
    assert_eq!(status.transport(), way.kind());
    assert_eq!(app.list_tools().await.len(), 5);

    // Call: arguments arrive and results come back byte for byte.
    let arguments = r#"{"n":1.0,"text":"\u00e9 \n","deep":[{"x":null}]}"#;
    let result = app.call_tool(id, "echo", arguments).await.unwrap();
    assert_eq!(text_of(&result), arguments);

    // Error.
    let refused = app.call_tool(id, "fail", "{}").await.unwrap_err();
    let facts = ErrorFacts::of(&refused);
    assert_eq!(facts.reason, "UPSTREAM_ERROR", "{facts:?}");
    assert!(facts.message.contains("not like this"), "{facts:?}");

    progress(&cell, &app, id).await;
    cancel(&cell, &app, id).await;
    if cell.can_ask() {
        let call = tokio::spawn({
            let (app, id) = (app.clone(), server.id.clone());
            async move { app.call_tool(&id, "ask", "{}").await }
        });
        let question = updates.pending().await;
        assert_eq!(
            (question.server_id.as_str(), question.message.as_str()),
            (id, "Who are you?")
        );
        app.accept(&question.id, r#"{"name":"Ada"}"#).await.unwrap();
        let result = within("the result", call).await.unwrap().unwrap();
        let answer: Value = serde_json::from_str(&text_of(&result)).unwrap();
        assert_eq!(
            answer,
            json!({"action": "accept", "content": {"name": "Ada"}})
        );
    }

    // A change of the list is announced, and read.
    cell.fake.set_list("tools", vec![tool("echo")]);
    cell.fake.notify("notifications/tools/list_changed").await;
    updates
        .server_where("the shorter list", |server| server.tool_count() == 1)
        .await;
    app.call_tool(id, "echo", "{}").await.unwrap();

    app.remove(id).await.unwrap();
    assert_eq!(app.list().await.len(), 0);
}

async fn progress(cell: &Cell, app: &Clients, id: &str) {
    let events = app.call_stream(id, "work", "{}").await.unwrap();
    let events = events.collect().await.unwrap();
    let Some(Event::Result(_)) = events.last() else {
        panic!("no result in {events:?}");
    };
    let steps = events.iter().filter_map(|event| match event {
        Event::Progress(progress) => Some(progress.progress),
        _ => None,
    });
    let steps: Vec<f64> = steps.collect();
    // On a stream of its own, progress may come after the result.
    if cell.says_beside() {
        assert!(steps.is_sorted(), "{events:?}");
    } else {
        assert_eq!(steps, [1.0, 2.0, 3.0], "{events:?}");
    }
}

async fn cancel(cell: &Cell, app: &Clients, id: &str) {
    let mut call = app.call_stream(id, "hang", "{}").await.unwrap();
    assert!(matches!(
        call.next().await.unwrap(),
        Some(Event::Started(_))
    ));
    let sent = cell
        .fake
        .wait("the call", |seen| seen.tool() == "hang")
        .await;
    drop(call);
    if cell.modern && cell.way.is_streamable() {
        cell.fake.wait_dropped(sent.index).await;
    } else {
        let cancelled = cell.fake.wait("the cancellation", |seen| {
            seen.method() == "notifications/cancelled"
                && seen.params()["requestId"] == sent.json["id"]
        });
        cancelled.await;
    }
    app.call_tool(id, "echo", "{}").await.unwrap();
}

/// One test for each way and each revision.
macro_rules! matrix {
    ($($way:ident $name:ident: $($version:literal $test:ident),+;)*) => {$(
        mod $name {
            use super::{Way, story};

            $(#[tokio::test]
            async fn $test() {
                story(Way::$way, $version).await;
            })+
        }
    )*};
}

matrix! {
    Stdio stdio: "2024-11-05" v2024_11_05, "2025-03-26" v2025_03_26, "2025-06-18" v2025_06_18,
        "2025-11-25" v2025_11_25, "2026-07-28" v2026_07_28;
    HttpJson http_json: "2025-03-26" v2025_03_26, "2025-06-18" v2025_06_18, "2025-11-25" v2025_11_25,
        "2026-07-28" v2026_07_28;
    HttpSse http_sse: "2025-03-26" v2025_03_26, "2025-06-18" v2025_06_18, "2025-11-25" v2025_11_25,
        "2026-07-28" v2026_07_28;
    LegacySse legacy_sse: "2024-11-05" v2024_11_05, "2025-03-26" v2025_03_26, "2025-06-18" v2025_06_18,
        "2025-11-25" v2025_11_25;
    SocketHttp socket_http: "2025-03-26" v2025_03_26, "2025-06-18" v2025_06_18, "2025-11-25" v2025_11_25,
        "2026-07-28" v2026_07_28;
    SocketLines socket_lines: "2024-11-05" v2024_11_05, "2025-03-26" v2025_03_26, "2025-06-18" v2025_06_18,
        "2025-11-25" v2025_11_25, "2026-07-28" v2026_07_28;
}
