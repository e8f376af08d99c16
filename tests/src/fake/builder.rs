//! What a fake shall be before it starts.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::sync::{broadcast, watch};

use super::place::Place;
use super::reply::Wire;
use super::{FakeMcp, Inner, LEGACY, MODERN, Traits};

/// Settings of a fake server.
pub struct Builder {
    inner: Inner,
    addr: SocketAddr,
    on_socket: bool,
}

impl Builder {
    pub(super) fn new(modern: bool) -> Self {
        let inner = Inner {
            traits: Traits {
                modern,
                sse: false,
                sessions: !modern,
                offer_stream: true,
                wire: Wire::Streamable,
                version: if modern { MODERN } else { LEGACY },
                forgetful: false,
                follows: false,
                tls: false,
                mutual_tls: false,
            },
            hooks: Mutex::default(),
            guard: Mutex::default(),
            lists: Mutex::default(),
            more_capabilities: serde_json::Map::new(),
            seen: watch::Sender::default(),
            arrived: AtomicUsize::new(0),
            dropped: watch::Sender::default(),
            pushes: broadcast::Sender::new(64),
            listeners: watch::Sender::default(),
            session_count: AtomicU64::new(0),
            channels: Mutex::default(),
            sessions: Mutex::default(),
            sent_away: watch::Sender::default(),
            unknown_session: Mutex::new((404, String::new())),
        };
        Self {
            inner,
            on_socket: false,
            addr: SocketAddr::from(([127, 0, 0, 1], 0)),
        }
    }

    /// Answers with event streams in place of JSON.
    #[must_use]
    pub fn sse(mut self) -> Self {
        self.inner.traits.sse = true;
        self
    }

    /// Speaks another version of its era.
    #[must_use]
    pub fn version(mut self, version: &'static str) -> Self {
        self.inner.traits.version = version;
        self
    }

    /// Speaks HTTP+SSE (legacy).
    #[must_use]
    pub fn http_sse(mut self) -> Self {
        self.inner.traits.wire = Wire::Sse;
        self
    }

    /// Offers more than lists.
    #[must_use]
    pub fn capability(mut self, name: &str, value: Value) -> Self {
        self.inner.more_capabilities.insert(name.to_owned(), value);
        self
    }

    /// Speaks HTTP/2 over TLS; see [`tls`](super::tls).
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.inner.traits.tls = true;
        self
    }

    /// Speaks TLS and wants certificates of its clients; see [`tls`](super::tls).
    #[must_use]
    pub fn mutual_tls(mut self) -> Self {
        self.inner.traits.mutual_tls = true;
        self
    }

    /// Listens on a Unix socket.
    #[must_use]
    pub fn on_socket(mut self) -> Self {
        self.on_socket = true;
        self
    }

    /// Speaks lines of JSON, on a Unix socket.
    #[must_use]
    pub fn lines(mut self) -> Self {
        self.inner.traits.wire = Wire::Lines;
        self.on_socket()
    }

    /// Keeps nothing of what arrives, for a life that is longer than a test's.
    #[must_use]
    pub fn forgetful(mut self) -> Self {
        self.inner.traits.forgetful = true;
        self
    }

    /// Lets its resources be followed.
    #[must_use]
    pub fn follows(mut self) -> Self {
        self.inner.traits.follows = true;
        self
    }

    /// Gives no session ids (legacy).
    #[must_use]
    pub fn sessionless(mut self) -> Self {
        self.inner.traits.sessions = false;
        self
    }

    /// Offers no stream of notifications.
    #[must_use]
    pub fn without_push(mut self) -> Self {
        self.inner.traits.offer_stream = false;
        self
    }

    /// Listens at the address of an earlier fake.
    #[must_use]
    pub fn at(mut self, addr: SocketAddr) -> Self {
        self.addr = addr;
        self
    }

    /// Offers a tool; see [`tool`](super::tool()).
    #[must_use]
    pub fn tool(self, tool: Value) -> Self {
        self.entry("tools", tool)
    }

    /// Offers an entry of `tools`, `resources`, `resourceTemplates` or `prompts`.
    #[must_use]
    pub fn entry(mut self, list: &'static str, entry: Value) -> Self {
        let lists = self.inner.lists.get_mut().unwrap();
        lists.entry(list).or_default().push(entry);
        self
    }

    /// Starts the server on a free port of the loopback interface, or on a socket of its own.
    pub async fn start(self) -> FakeMcp {
        let inner = Arc::new(self.inner);
        let place = if self.on_socket {
            Place::Unix(tempfile::tempdir().expect("make a directory"))
        } else {
            Place::Tcp(self.addr)
        };
        let (place, server) = place.open(&inner).await;
        FakeMcp {
            inner,
            place: Arc::new(place),
            server: Arc::new(tokio::sync::Mutex::new(server)),
        }
    }
}
