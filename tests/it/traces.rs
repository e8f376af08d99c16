//! Traces that are pushed to a collector: an app's span, the daemon's below it, and the server told of the last one.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Bytes;
use axum::routing::post;
use mcp_sidecar_tests::prelude::*;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message as _;

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const APP: &str = "b7ad6b7169203331";
const SECRET: &str = "a-text-that-nobody-else-shall-read";

/// A collector that keeps what it is sent.
#[derive(Clone, Default)]
struct Collector {
    pushed: Arc<Mutex<Vec<Bytes>>>,
}

impl Collector {
    async fn start(&self) -> String {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
        let pushed = Arc::clone(&self.pushed);
        let take = post(move |body: Bytes| async move {
            pushed.lock().unwrap().push(body);
        });
        let router = Router::new().route("/v1/traces", take);
        tokio::spawn(async move { axum::serve(listener, router).await });
        url
    }

    fn spans(&self) -> Vec<Span> {
        let pushed = self.pushed.lock().unwrap();
        let decoded = pushed
            .iter()
            .map(|body| ExportTraceServiceRequest::decode(body.clone()).unwrap());
        let resources = decoded.flat_map(|request| request.resource_spans);
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    fn find(&self, name: &str) -> Span {
        let spans = self.spans();
        let found = spans.iter().find(|span| span.name == name);
        let names: Vec<_> = spans.iter().map(|span| &span.name).collect();
        found
            .unwrap_or_else(|| panic!("no span {name} in {names:?}"))
            .clone()
    }
}

fn hex(bytes: &[u8]) -> String {
    let mut text = String::new();
    for byte in bytes {
        write!(text, "{byte:02x}").unwrap();
    }
    text
}

fn fact(span: &Span, key: &str) -> String {
    let found = span.attributes.iter().find(|fact| fact.key == key);
    let value = found.and_then(|fact| fact.value.clone()?.value);
    match value {
        Some(AnyValue::StringValue(text)) => text,
        Some(AnyValue::IntValue(number)) => number.to_string(),
        other => panic!("{key} of {} is {other:?}", span.name),
    }
}

#[tokio::test]
async fn a_call_is_one_trace_from_the_app_to_the_server() {
    for modern in [true, false] {
        let collector = Collector::default();
        let mut daemon = TestDaemon::builder()
            .set("telemetry.otlp_endpoint", collector.start().await.as_str())
            .start()
            .await;
        let fake = FakeMcp::echo(modern).await;
        let app = daemon.clients().await;
        let server = app.add_ready(http_spec("S", &fake.url())).await;
        let arguments = json!({ "text": SECRET }).to_string();
        let mut request = tonic::Request::new(v1::CallToolRequest {
            call: Some(app.call(&server.id, "echo", &arguments)),
        });
        let traceparent = format!("00-{TRACE}-{APP}-01");
        let metadata = request.metadata_mut();
        metadata.insert("traceparent", traceparent.parse().unwrap());
        app.tools().call_tool(request).await.unwrap();
        let told = fake.wait_method("tools/call").await.params()["_meta"]["traceparent"].clone();

        fake.reply("tools/call", |_| Reply::Error(-32000, SECRET, Value::Null));
        app.call_tool(&server.id, "echo", "{}").await.unwrap_err();
        // What is left is pushed at the end.
        daemon.terminate().await;
        let rpc = collector.find("mcpsidecar.v1.ToolService/CallTool");
        assert_eq!(hex(&rpc.trace_id), TRACE);
        assert_eq!(hex(&rpc.parent_span_id), APP);
        assert_eq!(rpc.kind(), SpanKind::Server);
        assert_eq!(fact(&rpc, "rpc.method"), "CallTool");
        assert_eq!(fact(&rpc, "rpc.grpc.status_code"), "0");
        let call = collector.find("tools/call");
        assert_eq!(hex(&call.trace_id), TRACE);
        assert_eq!(call.parent_span_id, rpc.span_id);
        assert_eq!(call.kind(), SpanKind::Client);
        assert_eq!(fact(&call, "mcpsidecar.server"), server.id);
        assert_eq!(fact(&call, "gen_ai.tool.name"), "echo");
        assert_eq!(told, format!("00-{TRACE}-{}-01", hex(&call.span_id)));
        let spans = collector.spans();
        let mut calls = spans.iter().filter(|span| span.name == "tools/call");
        let failed = calls.find(|span| span.span_id != call.span_id).unwrap();
        assert_eq!(fact(failed, "error.type"), "UPSTREAM_ERROR");
        for pushed in collector.pushed.lock().unwrap().iter() {
            let found = pushed
                .windows(SECRET.len())
                .any(|text| text == SECRET.as_bytes());
            assert!(!found, "arguments and results are in no span");
        }
        assert!(spans.iter().all(|span| !span.name.starts_with("grpc.")));
    }
}

#[tokio::test]
async fn a_collector_that_is_away_costs_no_call_and_holds_up_no_stop() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/v1/traces", silent.local_addr().unwrap());
    let mut daemon = TestDaemon::builder()
        .set("telemetry.otlp_endpoint", url.as_str())
        .start()
        .await;
    let fake = FakeMcp::echo(true).await;
    let app = daemon.clients().await;
    let server = app.add_ready(http_spec("S", &fake.url())).await;
    for _ in 0..100 {
        app.call_tool(&server.id, "echo", "{}").await.unwrap();
    }
    assert!(daemon.terminate().await.success());
}

#[tokio::test]
async fn an_app_that_says_that_nothing_is_sampled_is_not_traced() {
    let collector = Collector::default();
    let mut daemon = TestDaemon::builder()
        .set("telemetry.otlp_endpoint", collector.start().await.as_str())
        .start()
        .await;
    let fake = FakeMcp::echo(true).await;
    let app = daemon.clients().await;
    let server = app.add_ready(http_spec("S", &fake.url())).await;
    let mut request = tonic::Request::new(v1::CallToolRequest {
        call: Some(app.call(&server.id, "echo", "{}")),
    });
    let metadata = request.metadata_mut();
    metadata.insert(
        "traceparent",
        format!("00-{TRACE}-{APP}-00").parse().unwrap(),
    );
    app.tools().call_tool(request).await.unwrap();
    daemon.terminate().await;
    let spans = collector.spans();
    assert!(spans.iter().any(|span| span.name.ends_with("/AddServer")));
    assert!(spans.iter().all(|span| hex(&span.trace_id) != TRACE));
}
