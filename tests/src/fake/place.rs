//! Where a fake listens, and the loops that accept.

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};

use super::linger::Lingering;
use super::{Dropped, Inner, Wire, answer, channel, tls};
use crate::wait::{PATIENCE, eventually};

/// Name of a socket in its directory.
pub(super) const SOCKET: &str = "mcp.sock";

/// Where it listens.
pub(super) enum Place {
    Tcp(SocketAddr),
    /// The socket is in a directory that goes with the server.
    Unix(tempfile::TempDir),
}

impl Place {
    /// Begins to listen here; where any port will do, the place that is returned has the one that was found.
    pub(super) async fn open(self, inner: &Arc<Inner>) -> (Self, ServerTask) {
        let inner = Arc::clone(inner);
        match self {
            Self::Unix(dir) => {
                let task = listen_in(&dir, inner);
                (Self::Unix(dir), task)
            }
            Self::Tcp(addr) => {
                let (addr, task) = listen_at(addr, inner).await;
                (Self::Tcp(addr), task)
            }
        }
    }
}

pub(super) async fn listen_at(addr: SocketAddr, inner: Arc<Inner>) -> (SocketAddr, ServerTask) {
    // An earlier fake at the same address may still be on its way out.
    let listener = eventually("the port", PATIENCE, async || {
        TcpListener::bind(addr).await.ok()
    });
    let listener = listener.await;
    let addr = listener.local_addr().expect("the bound address");
    (addr, ServerTask(tokio::spawn(serve(listener, inner))))
}

pub(super) fn listen_in(dir: &tempfile::TempDir, inner: Arc<Inner>) -> ServerTask {
    let path = dir.path().join(SOCKET);
    // That of an earlier life.
    let _none = std::fs::remove_file(&path);
    let listener = UnixListener::bind(path).expect("bind a socket");
    ServerTask(tokio::spawn(serve_socket(listener, inner)))
}

pub(super) struct ServerTask(tokio::task::JoinHandle<()>);

impl ServerTask {
    /// Ends the server and everything that is open, and waits until its place is free.
    pub(super) async fn end(&mut self) {
        self.0.abort();
        eventually("the end of the fake", PATIENCE, async || {
            self.0.is_finished().then_some(())
        })
        .await;
    }
}

impl Drop for ServerTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn serve(listener: TcpListener, inner: Arc<Inner>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let inner = Arc::clone(&inner);
        if inner.traits.tls {
            connections.spawn(serve_tls(stream, inner));
        } else if inner.traits.mutual_tls {
            connections.spawn(async move {
                if let Ok(stream) = tls::mutual().accept(stream).await {
                    serve_http(stream, inner).await;
                }
            });
        } else {
            connections.spawn(serve_http(stream, inner));
        }
    }
}

async fn serve_tls(stream: TcpStream, inner: Arc<Inner>) {
    let (stream, linger) = Lingering::new(stream);
    let Ok(stream) = tls::acceptor().accept(stream).await else {
        return;
    };
    let mut sent_away = inner.sent_away.subscribe();
    let service = hyper::service::service_fn(move |request| {
        let inner = Arc::clone(&inner);
        async move { answer(&inner, request).await.ok_or(Dropped) }
    });
    let executor = hyper_util::rt::TokioExecutor::new();
    let connection = hyper::server::conn::http2::Builder::new(executor)
        .max_concurrent_streams(10_000)
        // A server that defends itself against many resets ends the connection, and there is nothing a client can do.
        .max_pending_accept_reset_streams(10_000)
        .max_local_error_reset_streams(None)
        .serve_connection(hyper_util::rt::TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        _ended = &mut connection => return,
        Ok(()) = sent_away.changed() => {
            linger.store(true, std::sync::atomic::Ordering::SeqCst);
            connection.as_mut().graceful_shutdown();
        }
    }
    let _dropped = connection.await;
}

async fn serve_socket(listener: UnixListener, inner: Arc<Inner>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            continue;
        };
        let inner = Arc::clone(&inner);
        if inner.traits.wire == Wire::Lines {
            connections.spawn(channel::serve_lines(stream, inner));
        } else {
            connections.spawn(serve_http(stream, inner));
        }
    }
}

async fn serve_http<S>(stream: S, inner: Arc<Inner>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = hyper::service::service_fn(move |request| {
        let inner = Arc::clone(&inner);
        async move { answer(&inner, request).await.ok_or(Dropped) }
    });
    let io = hyper_util::rt::TokioIo::new(stream);
    let connection = hyper::server::conn::http1::Builder::new().serve_connection(io, service);
    // An error here is a connection that one of the two sides dropped.
    let _dropped = connection.await;
}
