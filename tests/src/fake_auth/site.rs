//! A web site of one handler.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;

use crate::fake::{Dropped, Reply};

/// A request as it arrived.
#[derive(Clone, Debug)]
pub(super) struct Arrived {
    pub(super) http: Method,
    pub(super) path: String,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// The tasks of a site; they end with it.
pub(super) struct Site {
    pub(super) addr: SocketAddr,
    task: JoinHandle<()>,
}

impl Drop for Site {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Site {
    pub(super) async fn open<F, Fut>(
        addr: SocketAddr,
        tls: Option<TlsAcceptor>,
        handler: impl FnOnce(SocketAddr) -> F,
    ) -> Self
    where
        F: Fn(Arrived) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Reply> + Send + 'static,
    {
        let listener = TcpListener::bind(addr).await.expect("bind a port");
        let addr = listener.local_addr().expect("the bound address");
        let handler = Arc::new(handler(addr));
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let Ok((stream, _)) = listener.accept().await else {
                    continue;
                };
                let (handler, tls) = (Arc::clone(&handler), tls.clone());
                connections.spawn(async move {
                    match tls {
                        None => serve(stream, handler).await,
                        Some(tls) => {
                            if let Ok(stream) = tls.accept(stream).await {
                                serve(stream, handler).await;
                            }
                        }
                    }
                });
            }
        });
        Self { addr, task }
    }
}

async fn serve<S, F, Fut>(stream: S, handler: Arc<F>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    F: Fn(Arrived) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Reply> + Send + 'static,
{
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let handler = Arc::clone(&handler);
        async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_err(|_| Dropped)?.to_bytes();
            let arrived = Arrived {
                http: head.method,
                path: head.uri.to_string(),
                headers: head.headers,
                body,
            };
            respond(handler(arrived).await).await
        }
    });
    let connection = hyper::server::conn::http1::Builder::new();
    // An error here is a connection that one of the two sides dropped.
    let _dropped = connection
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn respond(reply: Reply) -> Result<Response<Full<Bytes>>, Dropped> {
    let (status, headers, body) = match reply {
        Reply::Raw(status, headers, body) => (status, headers, body),
        Reply::Json(value) => {
            let kind = ("content-type", "application/json".to_owned());
            (200, vec![kind], value.to_string().into())
        }
        Reply::Hang => std::future::pending().await,
        Reply::Reset => return Err(Dropped),
        _ => panic!("a site answers with `Raw`, `Json`, `Hang` or `Reset`"),
    };
    let mut response = Response::builder().status(status);
    for (name, value) in headers {
        response = response.header(name, value);
    }
    Ok(response.body(Full::new(body)).expect("an answer"))
}
