//! Traces: one span for every RPC of an app, and below it one for every request to a server, pushed to a collector over OTLP
//! (protobuf over HTTP). Off unless a collector is configured; then everything here costs next to nothing.
//!
//! A span has names, ids, codes and times. Never arguments, results, URLs or anything else that a server or an app chose freely,
//! beside the names of servers and tools.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use opentelemetry::global::{self, BoxedSpan};
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry::trace::{
    Span as _, SpanBuilder, SpanKind, Status, TraceContextExt, Tracer as _,
};
use opentelemetry::{Context, KeyValue};
use opentelemetry_http::{HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{Sampler, SdkTracerProvider};
use tokio::runtime::Handle;

use crate::config::TelemetryConfig;
use crate::error::{Error, Reason, Result};

/// Time that one push may take.
const PUSH: Duration = Duration::from_secs(10);
/// Largest answer of a collector that is read, in bytes.
const ANSWER: usize = 64 << 10;
const SCOPE: &str = "mcp-sidecard";
/// Whether anything is pushed: without that, a call makes no span and reads no header.
static ON: AtomicBool = AtomicBool::new(false);

/// What pushes the spans. Kept by whoever ends it.
#[derive(Debug)]
pub struct Traces(Option<SdkTracerProvider>);

impl Traces {
    /// Begins to push, if a collector is configured. Call it once per process, within a runtime, with a client for addresses
    /// that the policy permits.
    ///
    /// # Errors
    /// INTERNAL if the exporter cannot be built.
    pub fn start(config: &TelemetryConfig, client: reqwest::Client) -> Result<Self> {
        let Some(endpoint) = &config.otlp_endpoint else {
            return Ok(Self(None));
        };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Pusher {
                client,
                runtime: Handle::current(),
            })
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint.as_str())
            .with_timeout(PUSH)
            .build()
            .map_err(|cause| Error::internal(format!("traces cannot be pushed: {cause}")))?;
        let ratio = Sampler::TraceIdRatioBased(config.sample_ratio);
        let provider = SdkTracerProvider::builder()
            .with_batch_exporter(exporter)
            .with_sampler(Sampler::ParentBased(Box::new(ratio)))
            .with_resource(
                Resource::builder_empty()
                    .with_service_name(SCOPE)
                    .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
                    .build(),
            )
            .build();
        global::set_tracer_provider(provider.clone());
        ON.store(true, Ordering::Relaxed);
        Ok(Self(Some(provider)))
    }

    /// Pushes what is left and ends; gives up after this time.
    pub async fn close(self, grace: Duration) {
        let Some(provider) = self.0 else { return };
        let closed = tokio::task::spawn_blocking(move || provider.shutdown_with_timeout(grace));
        match tokio::time::timeout(grace, closed).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(cause))) => tracing::warn!(%cause, "the last traces could not be pushed"),
            _ => tracing::warn!("the last traces could not be pushed in time"),
        }
    }
}

/// Something under way that is told to the collector when it ends. Dropping it ends it as given up.
pub struct Traced {
    span: Option<BoxedSpan>,
}

impl fmt::Debug for Traced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traced").finish_non_exhaustive()
    }
}

impl Traced {
    /// An RPC of an app at this path (`/package.Service/Method`), below the app's own span if it names one.
    #[must_use]
    pub fn rpc(path: &str, parent: Option<&str>, request_id: &str) -> Self {
        let path = path.trim_start_matches('/');
        let (service, method) = path.split_once('/').unwrap_or((path, ""));
        Self::begin(path, SpanKind::Server, parent, || {
            vec![
                KeyValue::new("rpc.system", "grpc"),
                KeyValue::new("rpc.service", service.to_owned()),
                KeyValue::new("rpc.method", method.to_owned()),
                KeyValue::new("mcpsidecar.request_id", request_id.to_owned()),
            ]
        })
    }

    /// A request to a server, below what it is made for.
    #[must_use]
    pub fn request(
        method: &'static str,
        server: &str,
        tool: Option<&str>,
        parent: Option<&str>,
    ) -> Self {
        Self::begin(method, SpanKind::Client, parent, || {
            let mut facts = vec![
                KeyValue::new("mcp.method.name", method),
                KeyValue::new("mcpsidecar.server", server.to_owned()),
            ];
            facts.extend(tool.map(|tool| KeyValue::new("gen_ai.tool.name", tool.to_owned())));
            facts
        })
    }

    fn begin(
        name: &str,
        kind: SpanKind,
        parent: Option<&str>,
        facts: impl FnOnce() -> Vec<KeyValue>,
    ) -> Self {
        if !ON.load(Ordering::Relaxed) {
            return Self { span: None };
        }
        let tracer = global::tracer(SCOPE);
        let parent = match parent {
            Some(parent) => {
                TraceContextPropagator::new().extract_with_context(&Context::new(), &Parent(parent))
            }
            None => Context::new(),
        };
        let builder = SpanBuilder::from_name(name.to_owned()).with_kind(kind);
        let mut span = tracer.build_with_context(builder, &parent);
        let span = span.span_context().is_valid().then(|| {
            if span.is_recording() {
                span.set_attributes(facts());
            }
            span
        });
        Self { span }
    }

    /// The header `traceparent` for what is done below it; `None` while traces are off.
    #[must_use]
    pub fn traceparent(&self) -> Option<String> {
        let context = self.span.as_ref()?.span_context().clone();
        let mut header = Header(None);
        let context = Context::new().with_remote_span_context(context);
        TraceContextPropagator::new().inject_context(&context, &mut header);
        header.0
    }

    /// It has ended with this gRPC status.
    pub fn status(mut self, code: i32) {
        self.end(|span| {
            span.set_attribute(KeyValue::new("rpc.grpc.status_code", i64::from(code)));
            if code != 0 {
                span.set_status(Status::error(""));
            }
        });
    }

    /// It has ended well, or with this reason.
    pub fn outcome(mut self, failed: Option<Reason>) {
        self.end(|span| {
            if let Some(reason) = failed {
                span.set_attribute(KeyValue::new("error.type", reason.as_str()));
                span.set_status(Status::error(""));
            }
        });
    }

    fn end(&mut self, facts: impl FnOnce(&mut BoxedSpan)) {
        if let Some(mut span) = self.span.take() {
            facts(&mut span);
            span.end();
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        self.end(|span| {
            span.set_attribute(KeyValue::new("error.type", "cancelled"));
            span.set_status(Status::error(""));
        });
    }
}

struct Parent<'a>(&'a str);

impl Extractor for Parent<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        (key == "traceparent").then_some(self.0)
    }

    fn keys(&self) -> Vec<&str> {
        vec!["traceparent"]
    }
}

struct Header(Option<String>);

impl Injector for Header {
    fn set(&mut self, key: &str, value: String) {
        if key == "traceparent" {
            self.0 = Some(value);
        }
    }
}

/// Sends what the exporter gives it, on the daemon's runtime: the exporter has a thread of its own.
struct Pusher {
    client: reqwest::Client,
    runtime: Handle,
}

impl fmt::Debug for Pusher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pusher").finish_non_exhaustive()
    }
}

#[async_trait::async_trait]
impl HttpClient for Pusher {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        let sent = self.runtime.spawn(async move {
            let mut request = reqwest::Request::try_from(request)?;
            *request.timeout_mut() = Some(PUSH);
            let mut response = client.execute(request).await?;
            let mut body = Vec::new();
            while let Some(chunk) = response.chunk().await? {
                if body.len() + chunk.len() > ANSWER {
                    break;
                }
                body.extend_from_slice(&chunk);
            }
            let answer = Response::builder().status(response.status());
            Ok::<_, HttpError>(answer.body(Bytes::from(body))?)
        });
        sent.await?
    }
}
