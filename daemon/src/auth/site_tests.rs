//! A tiny HTTP server for the tests of `auth`: it answers by a function and keeps what it was asked.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::TaskTracker;

use super::web::Web;
use crate::config::PolicyConfig;
use crate::policy::{ClientOptions, Policy};

/// The bound on an answer in these tests.
pub(super) const LIMIT: usize = 64 * 1024;

/// A request.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) method: String,
    /// Path and query.
    pub(super) target: String,
    pub(super) head: String,
    pub(super) body: String,
}

impl Seen {
    /// A header, by its lower-case name.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }

    /// A field of a form.
    pub(super) fn field(&self, name: &str) -> Option<String> {
        let mut fields = url::form_urlencoded::parse(self.body.as_bytes());
        let found = fields.find(|(key, _)| key == name);
        found.map(|(_, value)| value.into_owned())
    }
}

/// The server.
pub(super) struct Site {
    /// For example `http://127.0.0.1:4711`.
    pub(super) base: String,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Site {
    /// A server whose answer to a request is `answer(base, request)`, a whole HTTP message.
    pub(super) async fn start(
        answer: impl Fn(&str, &Seen) -> String + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let seen = Arc::<Mutex<Vec<Seen>>>::default();
        let site = Self {
            base: base.clone(),
            seen: Arc::clone(&seen),
        };
        TaskTracker::new().spawn(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let request = read(&mut stream).await;
                let message = answer(&base, &request);
                seen.lock().unwrap().push(request);
                // The client may have seen enough.
                let _ = stream.write_all(message.as_bytes()).await;
            }
        });
        site
    }

    /// A server with these documents; everything else is not found.
    pub(super) async fn with(
        documents: impl Fn(&str) -> Vec<(&'static str, Value)> + Send + Sync + 'static,
    ) -> Self {
        Self::start(move |base, request| {
            let documents = documents(base);
            let mut found = documents.iter().filter(|(path, _)| *path == request.target);
            match found.next() {
                Some((_, document)) => json(200, document),
                None => message(404, "", "nothing"),
            }
        })
        .await
    }

    /// What was asked so far.
    pub(super) fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// The targets that were asked for so far.
    pub(super) fn targets(&self) -> Vec<String> {
        self.seen().into_iter().map(|seen| seen.target).collect()
    }
}

async fn read(stream: &mut TcpStream) -> Seen {
    let mut bytes = Vec::new();
    let end = loop {
        if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
            break end;
        }
        assert!(
            stream.read_buf(&mut bytes).await.unwrap() > 0,
            "half a request"
        );
    };
    let head = String::from_utf8(bytes[..end].to_vec()).unwrap();
    let mut words = head.lines().next().unwrap().split(' ');
    let mut seen = Seen {
        method: words.next().unwrap().to_owned(),
        target: words.next().unwrap().to_owned(),
        head: head.clone(),
        body: String::new(),
    };
    let length: usize = seen
        .header("content-length")
        .map_or(0, |n| n.parse().unwrap());
    while bytes.len() < end + 4 + length {
        assert!(
            stream.read_buf(&mut bytes).await.unwrap() > 0,
            "half a body"
        );
    }
    seen.body = String::from_utf8(bytes[end + 4..].to_vec()).unwrap();
    seen
}

/// A whole answer; `headers` are lines that end with CRLF.
pub(super) fn message(status: u16, headers: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "HTTP/1.1 {status} x\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

/// A whole answer that is JSON.
pub(super) fn json(status: u16, document: &Value) -> String {
    let headers = "content-type: application/json\r\n";
    message(status, headers, &document.to_string())
}

/// A way to such servers; the same one for all of a test, which has a thread of its own.
pub(super) fn web() -> Web {
    thread_local! {
        static WEB: Web = {
            let policy = Policy::new(&PolicyConfig::default());
            let options = ClientOptions {
                connect_timeout: Duration::from_secs(5),
                keepalive: Duration::from_secs(30),
            };
            let client = policy.http_client(options).unwrap();
            Web::new(client, policy, Duration::from_secs(5), LIMIT)
        };
    }
    WEB.with(Web::clone)
}
