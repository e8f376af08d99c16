//! Frames in, frames out: how one JSON-RPC exchange travels. Knows nothing of eras, calls or states.
//!
//! A transport never sends anything twice: whether a repetition is safe is decided above, from [`Loss::sent`].

pub mod http;
pub mod http_sse;
pub mod journal;
pub mod lines;
mod pending;
pub mod redact;
pub mod sse;
pub mod stdio;
pub mod unix;

use std::sync::Arc;

use bytes::Bytes;

use crate::error::{Error, Reason, RpcError};
use crate::mcp::era::Frame;
use crate::mcp::protocol::Message;
use crate::model::status::TransportKind;

/// Whether a lost request may have had an effect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    /// No: the server refused it before looking at it, or nothing of it left.
    No,
    /// It may have.
    Maybe,
}

/// Why an exchange has no answer.
#[derive(Clone, Debug)]
pub struct Loss {
    /// What happened.
    pub error: Error,
    /// Whether the request may have had an effect.
    pub sent: Sent,
    /// The HTTP refusal behind it, if that is what it was.
    pub refusal: Option<Refusal>,
    /// The way on which the answer was awaited ended or broke; nobody said anything wrong.
    pub cut_off: bool,
}

impl Loss {
    /// The request did not leave.
    #[must_use]
    pub fn not_sent(error: Error) -> Self {
        Self {
            error,
            sent: Sent::No,
            refusal: None,
            cut_off: false,
        }
    }

    /// The request left and nothing more is known.
    #[must_use]
    pub fn maybe_sent(error: Error) -> Self {
        Self {
            error,
            sent: Sent::Maybe,
            refusal: None,
            cut_off: false,
        }
    }

    /// The server refused the request for what authorizes it, and did not look at it.
    #[must_use]
    pub fn refused(error: Error, status: u16) -> Self {
        Self {
            refusal: Some(Refusal {
                status,
                rpc: None,
                session_gone: false,
                session_doubtful: false,
            }),
            ..Self::not_sent(error)
        }
    }

    /// Whether the link is of no use without a sign-in; one that wants more scopes for a single call is.
    #[must_use]
    pub fn wants_sign_in(&self) -> bool {
        let forbidden = self.refusal.as_ref().is_some_and(|it| it.status == 403);
        self.error.reason() == Reason::SignInRequired && !forbidden
    }

    /// The request left, and then the way ended on which the answer was awaited.
    #[must_use]
    pub fn cut_off(error: Error) -> Self {
        Self {
            cut_off: true,
            ..Self::maybe_sent(error)
        }
    }

    /// Whether the server refused the request because it no longer knows our session. The request had no effect.
    #[must_use]
    pub fn session_gone(&self) -> bool {
        self.sent == Sent::No
            && self
                .refusal
                .as_ref()
                .is_some_and(|refusal| refusal.session_gone)
    }
}

/// An HTTP answer that is no MCP answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The status code.
    pub status: u16,
    /// The JSON-RPC error in the body, if there is one.
    pub rpc: Option<RpcError>,
    /// The request carried a session id and the server no longer knows it.
    pub session_gone: bool,
    /// The same may be so: the request carried a session id, and it was refused with 400 before it was looked at.
    pub session_doubtful: bool,
}

/// A live way to a server.
#[derive(Clone, Debug)]
pub enum Transport {
    /// Streamable HTTP, on the network or on a Unix socket.
    Http(Arc<http::Http>),
    /// Legacy HTTP+SSE.
    HttpSse(Arc<http_sse::HttpSse>),
    /// A child process.
    Stdio(Arc<stdio::Stdio>),
    /// Lines of JSON on a Unix socket.
    UnixLines(Arc<unix::UnixLines>),
}

impl Transport {
    /// Which kind this is.
    #[must_use]
    pub fn kind(&self) -> TransportKind {
        match self {
            Self::Http(http) => http.kind(),
            Self::HttpSse(_) => TransportKind::Sse,
            Self::Stdio(_) => TransportKind::Stdio,
            Self::UnixLines(_) => TransportKind::UnixSocket,
        }
    }

    /// Sends a request and returns the exchange on which its answer arrives.
    ///
    /// Cancelling the future or dropping the exchange stops waiting; over HTTP it also closes the request's stream.
    ///
    /// # Errors
    /// [`Loss`] when the request could not be sent or was refused.
    pub async fn request(&self, frame: Frame) -> Result<Exchange, Loss> {
        match self {
            Self::Http(http) => http
                .request(frame)
                .await
                .map(|e| Exchange::Http(Box::new(e))),
            Self::HttpSse(sse) => sse.request(frame).map(|e| Exchange::HttpSse(Box::new(e))),
            Self::Stdio(stdio) => stdio.request(frame).await.map(Exchange::Shared),
            Self::UnixLines(unix) => unix.request(frame).await.map(Exchange::Shared),
        }
    }

    /// Sends a notification or a response.
    ///
    /// # Errors
    /// [`Loss`] when it could not be sent or was refused.
    pub async fn send(&self, body: Bytes, headers: &[(String, String)]) -> Result<(), Loss> {
        match self {
            Self::Http(http) => http.send(body, headers).await,
            Self::HttpSse(sse) => sse.send(body, headers).await,
            Self::Stdio(stdio) => stdio.send(body).await,
            Self::UnixLines(unix) => unix.send(body).await,
        }
    }

    /// Whether every request has an HTTP exchange of its own, as opposed to one channel for everything: then closing it
    /// says that nobody waits any longer, and headers can say what a call is about.
    #[must_use]
    pub fn is_streamable_http(&self) -> bool {
        matches!(self, Self::Http(_))
    }

    /// Whether the server's end is seen without asking: the system tells when a process on the same host is gone.
    #[must_use]
    pub fn sees_the_end(&self) -> bool {
        matches!(self, Self::Stdio(_) | Self::UnixLines(_))
    }

    /// Ends the transport: DELETEs the session, or stops the process and everything that it started. Bounded by the
    /// configured grace periods.
    pub async fn close(&self) {
        match self {
            Self::Http(http) => http.close().await,
            Self::HttpSse(sse) => sse.close(),
            Self::Stdio(stdio) => stdio.close().await,
            Self::UnixLines(unix) => unix.close(),
        }
    }

    /// Completes when no further message will come, with the reason. Never over Streamable HTTP, where every request has a
    /// stream of its own.
    pub async fn ended(&self) -> Error {
        match self {
            Self::Http(_) => std::future::pending().await,
            Self::HttpSse(sse) => sse.ended().await,
            Self::Stdio(stdio) => stdio.ended().await,
            Self::UnixLines(unix) => unix.ended().await,
        }
    }

    /// Lets a session outlive this transport. A process ends with it all the same.
    pub fn leave_session(&self) {
        match self {
            Self::Http(http) => http.leave_session(),
            Self::HttpSse(_) | Self::Stdio(_) | Self::UnixLines(_) => {}
        }
    }
}

/// One request under way. Messages arrive in order; the response is the last.
#[derive(Debug)]
pub enum Exchange {
    /// Over HTTP.
    Http(Box<http::HttpExchange>),
    /// Over legacy HTTP+SSE.
    HttpSse(Box<http_sse::SseExchange>),
    /// Over a child's standard streams.
    /// On a channel that carries everything.
    Shared(pending::SharedExchange),
}

impl Exchange {
    /// The next message that belongs to this request. Dropping the future gives the exchange up.
    ///
    /// # Errors
    /// [`Loss`] when the transport ends before the response.
    pub async fn next(&mut self) -> Result<Message, Loss> {
        match self {
            Self::Http(exchange) => exchange.next().await,
            Self::HttpSse(exchange) => exchange.next().await,
            Self::Shared(exchange) => exchange.next().await,
        }
    }
}
