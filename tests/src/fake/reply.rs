//! What a fake answers, and how a test writes it.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tokio::sync::mpsc;

pub(super) type Pending<T> = Pin<Box<dyn Future<Output = T> + Send>>;
/// Writes a body.
pub type Write = Box<dyn FnOnce(SseWriter) -> Pending<()> + Send>;

/// What the server does with a request.
pub enum Reply {
    /// The default for the method.
    Default,
    /// A JSON-RPC result.
    Json(Value),
    /// A JSON-RPC result as text, sent byte for byte.
    Text(String),
    /// A JSON-RPC error: code, message and, unless null, data.
    Error(i64, &'static str, Value),
    /// Any HTTP answer.
    Raw(u16, Vec<(&'static str, String)>, Bytes),
    /// An event stream, step by step; it is closed after the last one.
    Sse(Vec<Step>),
    /// An event stream that a task writes; see [`stream`].
    Stream(Write),
    /// Any HTTP answer whose body a task writes; see [`body`].
    Body(u16, Vec<(&'static str, String)>, Write),
    /// No answer ever.
    Hang,
    /// The TCP connection is dropped.
    Reset,
}

/// A step of a scripted event stream.
pub enum Step {
    /// An event that holds this message.
    Message(Value),
    /// The JSON-RPC result of the request.
    Result(Value),
    /// Anything at all, byte for byte.
    Bytes(Bytes),
    /// The connection is dropped.
    Reset,
    /// A pause.
    Pause(Duration),
    /// Nothing more, without closing.
    Hang,
}

/// Makes [`Reply::Stream`] from an async closure.
pub fn stream<F, Fut>(write: F) -> Reply
where
    F: FnOnce(SseWriter) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    Reply::Stream(Box::new(|writer| Box::pin(write(writer))))
}

/// Makes [`Reply::Body`] from an async closure.
pub fn body<F, Fut>(status: u16, headers: &[(&'static str, &str)], write: F) -> Reply
where
    F: FnOnce(SseWriter) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + Send + 'static,
{
    let headers = headers
        .iter()
        .map(|(name, value)| (*name, (*value).to_owned()));
    Reply::Body(
        status,
        headers.collect(),
        Box::new(|writer| Box::pin(write(writer))),
    )
}

/// The sending end of an event stream, or of a channel that many requests share.
#[derive(Clone)]
pub struct SseWriter {
    pub(super) id: Value,
    pub(super) sender: mpsc::Sender<Result<Bytes, Dropped>>,
    pub(super) wire: Wire,
}

impl SseWriter {
    /// Sends a message, framed as the wire wants it.
    pub async fn message(&self, message: &Value) {
        self.bytes(self.wire.frame(&message.to_string())).await;
    }

    /// Sends the result of the request.
    pub async fn result(&self, result: Value) {
        let answer = json!({"jsonrpc": "2.0", "id": self.id, "result": result});
        self.message(&answer).await;
    }

    /// Sends any bytes.
    pub async fn bytes(&self, bytes: impl Into<Bytes>) {
        // A reader that is gone is what some tests are about.
        let _gone = self.sender.send(Ok(bytes.into())).await;
    }

    /// Sends the same again and again until the reader is gone.
    pub async fn flood(&self, bytes: Bytes) {
        while self.sender.send(Ok(bytes.clone())).await.is_ok() {}
    }

    /// Drops the connection.
    pub async fn reset(&self) {
        let _gone = self.sender.send(Err(Dropped)).await;
    }

    /// Waits until the reader is gone.
    pub async fn closed(&self) {
        self.sender.closed().await;
    }
}

/// How messages travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wire {
    /// Streamable HTTP.
    Streamable,
    /// HTTP+SSE.
    Sse,
    /// Lines of JSON.
    Lines,
}

impl Wire {
    pub(super) fn frame(self, message: &str) -> String {
        match self {
            Self::Streamable | Self::Sse => format!("event: message\ndata: {message}\n\n"),
            Self::Lines => format!("{message}\n"),
        }
    }
}

pub(super) fn play(steps: Vec<Step>) -> Write {
    Box::new(|writer| {
        Box::pin(async move {
            for step in steps {
                match step {
                    Step::Message(message) => writer.message(&message).await,
                    Step::Result(result) => writer.result(result).await,
                    Step::Bytes(bytes) => writer.bytes(bytes).await,
                    Step::Reset => writer.reset().await,
                    Step::Pause(pause) => tokio::time::sleep(pause).await,
                    Step::Hang => writer.closed().await,
                }
            }
        })
    })
}

/// The error that makes hyper drop a connection.
#[derive(Debug)]
pub struct Dropped;

impl std::fmt::Display for Dropped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("dropped on purpose")
    }
}

impl std::error::Error for Dropped {}
