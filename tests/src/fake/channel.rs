//! Channels that many requests share: the stream of HTTP+SSE, and lines of JSON.

use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::{HeaderMap, Method};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::{Inner, Reply, Seen, SseWriter, Wire, decide, next_push, note, play, stream};
use crate::json::lenient;

/// Path of the stream of HTTP+SSE.
pub(super) const STREAM: &str = "/sse";

/// An open session of HTTP+SSE; dropping it ends the stream.
pub(super) struct Channel {
    writer: SseWriter,
    _open: watch::Sender<()>,
}

/// An HTTP request to a server of HTTP+SSE. A test can refuse what is POSTed with a hook for `ack`.
pub(super) async fn answer(inner: &Arc<Inner>, seen: &Seen) -> Reply {
    let status = |status| Reply::Raw(status, Vec::new(), Bytes::new());
    if seen.http != Method::POST {
        let hook = {
            let hooks = inner.hooks.lock().unwrap();
            hooks.get("GET").or_else(|| hooks.get("*")).cloned()
        };
        return match hook {
            Some(hook) => match hook(seen.clone()).await {
                Reply::Default => open(inner, seen),
                reply => reply,
            },
            None => open(inner, seen),
        };
    }
    if seen.path == STREAM {
        return status(405);
    }
    let ack = inner.hooks.lock().unwrap().get("ack").cloned();
    if let Some(ack) = ack
        && let refusal @ Reply::Raw(..) = ack(seen.clone()).await
    {
        return refusal;
    }
    let writer = {
        let channels = inner.channels.lock().unwrap();
        channels
            .get(&seen.path)
            .map(|channel| channel.writer.clone())
    };
    let Some(writer) = writer else {
        return status(404);
    };
    let (inner, seen) = (Arc::clone(inner), seen.clone());
    tokio::spawn(async move { take(&inner, &seen, &writer).await });
    status(202)
}

/// The stream of a new session. Every other one names its URL absolutely.
fn open(inner: &Arc<Inner>, seen: &Seen) -> Reply {
    let inner = Arc::clone(inner);
    let origin = format!("http://{}", seen.header("host"));
    stream(async move |mut writer| {
        writer.wire = Wire::Sse;
        let number = inner.session_count.fetch_add(1, Ordering::Relaxed) + 1;
        let url = format!("/messages?session={number}");
        let prefix = if number.is_multiple_of(2) {
            &*origin
        } else {
            ""
        };
        writer
            .bytes(format!("event: endpoint\ndata: {prefix}{url}\n\n"))
            .await;
        let (open, mut ended) = watch::channel(());
        let channel = Channel {
            writer: writer.clone(),
            _open: open,
        };
        inner.channels.lock().unwrap().insert(url.clone(), channel);
        tokio::select! {
            () = push(&inner, &writer) => {}
            _ = ended.changed() => {}
        }
        inner.channels.lock().unwrap().remove(&url);
    })
}

/// Lets a test push messages for as long as the channel is open.
async fn push(inner: &Inner, writer: &SseWriter) {
    let mut pushes = inner.pushes.subscribe();
    inner.listeners.send_modify(|open| *open += 1);
    let _closed = Listening(inner);
    loop {
        tokio::select! {
            () = writer.closed() => return,
            message = next_push(&mut pushes) => writer.message(&message).await,
        }
    }
}

/// Counts a listener until it is dropped.
struct Listening<'a>(&'a Inner);

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.listeners.send_modify(|open| *open -= 1);
    }
}

/// One connection with lines of JSON.
pub(super) async fn serve_lines(stream: UnixStream, inner: Arc<Inner>) {
    let (input, mut output) = stream.into_split();
    let (sender, mut to_write) = mpsc::channel(16);
    let writer = SseWriter {
        id: Value::Null,
        sender,
        wire: Wire::Lines,
    };
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        while let Some(Ok(bytes)) = to_write.recv().await {
            if output.write_all(&bytes).await.is_err() {
                return;
            }
        }
    });
    if !inner.traits.modern {
        let (inner, writer) = (Arc::clone(&inner), writer.clone());
        tasks.spawn(async move { push(&inner, &writer).await });
    }
    let mut lines = BufReader::new(input).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let mut seen = Seen {
            index: 0,
            http: Method::POST,
            path: String::new(),
            headers: HeaderMap::new(),
            json: lenient(&line),
            body: line.into(),
        };
        note(&inner, &mut seen);
        let (inner, writer) = (Arc::clone(&inner), writer.clone());
        tasks.spawn(async move { take(&inner, &seen, &writer).await });
    }
    // Dropping the tasks closes the connection.
}

/// Answers a message on its channel.
async fn take(inner: &Arc<Inner>, seen: &Seen, channel: &SseWriter) {
    let id = seen.json["id"].clone();
    let writer = SseWriter {
        id: id.clone(),
        ..channel.clone()
    };
    let text = match decide(inner, seen).await {
        Reply::Default => unreachable!("the default was taken"),
        Reply::Json(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string(),
        Reply::Text(result) => format!(r#"{{"jsonrpc":"2.0","id":{id},"result":{result}}}"#),
        Reply::Error(code, message, data) => {
            let mut error = json!({"code": code, "message": message});
            if !data.is_null() {
                error["data"] = data;
            }
            json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string()
        }
        Reply::Sse(steps) => return play(steps)(writer).await,
        Reply::Stream(write) => return write(writer).await,
        Reply::Reset => {
            let mut channels = inner.channels.lock().unwrap();
            if let Entry::Occupied(session) = channels.entry(seen.path.clone()) {
                session.remove();
            }
            return;
        }
        // Where there is no answer of its own, there is nothing to say.
        Reply::Raw(..) | Reply::Body(..) | Reply::Hang => return,
    };
    writer.bytes(writer.wire.frame(&text)).await;
}
