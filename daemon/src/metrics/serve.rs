//! The listener for whoever scrapes: HTTP/1.1, one page. Everything is bounded: connections, heads, and the time of each.
//!
//! What names another host is refused, so that a web page whose own name was made to point here cannot read it.

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, HOST};
use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Figures, Metrics};
use crate::config::MetricsConfig;
use crate::error::{Error, Result};

/// Connections at a time; further ones wait in the kernel.
const CONNECTIONS: usize = 16;
/// Size of a request's head, in bytes.
const HEAD: usize = 16 * 1024;
/// How long a request's head may take to arrive.
const HEAD_TIME: Duration = Duration::from_secs(10);
/// How long a connection may last; scrapers open another one.
const CONNECTION_TIME: Duration = Duration::from_mins(10);
/// Pause after a failed accept, for example when the process has no file descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Tells how things stand.
pub type Look = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Figures> + Send>> + Send + Sync>;

/// A listener that does not serve yet.
#[derive(Debug)]
pub struct Bound {
    listener: TcpListener,
    address: SocketAddr,
    hosts: Vec<String>,
}

impl Bound {
    /// Listens as configured; `None` if that is nowhere.
    ///
    /// # Errors
    /// INTERNAL if the address cannot be listened on.
    pub async fn open(config: &MetricsConfig) -> Result<Option<Self>> {
        let Some(wanted) = config.listen else {
            return Ok(None);
        };
        let failed = |cause: std::io::Error| {
            Error::internal(format!(
                "metrics cannot be served at {wanted}: {cause}; `metrics.listen` names another address"
            ))
        };
        let listener = TcpListener::bind(wanted).await.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Some(Self {
            listener,
            address,
            hosts: config.hosts.clone(),
        }))
    }
}

/// Serves until `stop` is cancelled.
pub async fn serve(
    bound: Bound,
    metrics: Metrics,
    look: Look,
    stop: CancellationToken,
    tasks: TaskTracker,
) {
    let Bound {
        listener,
        address,
        hosts,
    } = bound;
    tracing::info!(%address, "metrics are served");
    let desk = Arc::new(Desk {
        metrics,
        look,
        hosts,
    });
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    loop {
        let next = async {
            let place = Arc::clone(&places).acquire_owned().await;
            (listener.accept().await, place)
        };
        let (accepted, place) = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            next = next => next,
        };
        match accepted {
            Ok((stream, _)) => {
                let (desk, stop) = (Arc::clone(&desk), stop.clone());
                tasks.spawn(async move {
                    let _place = place;
                    tokio::select! {
                        () = stop.cancelled() => {}
                        () = converse(stream, desk) => {}
                    }
                });
            }
            Err(cause) => {
                tracing::warn!(%cause, "accept failed");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn converse(stream: TcpStream, desk: Arc<Desk>) {
    let service = service_fn(move |request| {
        let desk = Arc::clone(&desk);
        async move { Ok::<_, Infallible>(desk.answer(&request).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIME)
        .max_buf_size(HEAD)
        .serve_connection(TokioIo::new(stream), service);
    if let Ok(Err(cause)) = tokio::time::timeout(CONNECTION_TIME, connection).await {
        tracing::debug!(%cause, "a connection for metrics ended with an error");
    }
}

struct Desk {
    metrics: Metrics,
    look: Look,
    hosts: Vec<String>,
}

impl Desk {
    async fn answer(&self, request: &Request<Incoming>) -> Response<Full<Bytes>> {
        let host = request.headers().get(HOST);
        if !host.is_some_and(|host| is_meant(host, &self.hosts)) {
            let text =
                "this request is for another host; `metrics.hosts` lists the names of this one\n";
            return plain(StatusCode::MISDIRECTED_REQUEST, text.to_owned());
        }
        if request.uri().path() != "/metrics" {
            return plain(StatusCode::NOT_FOUND, "look at /metrics\n".to_owned());
        }
        if request.method() != Method::GET {
            let mut refusal = plain(StatusCode::METHOD_NOT_ALLOWED, String::new());
            let get = HeaderValue::from_static("GET");
            refusal.headers_mut().insert(ALLOW, get);
            return refusal;
        }
        match self.metrics.page((self.look)().await) {
            Ok((text, kind)) => {
                let mut page = plain(StatusCode::OK, text);
                let kind = HeaderValue::from_static(kind);
                page.headers_mut().insert(CONTENT_TYPE, kind);
                page
            }
            Err(cause) => plain(StatusCode::INTERNAL_SERVER_ERROR, cause.to_string()),
        }
    }
}

fn plain(status: StatusCode, text: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response
}

/// Whether a host is this one: an address, which nobody can make another name point to, `localhost`, or a name that the
/// operator has listed.
fn is_meant(host: &HeaderValue, hosts: &[String]) -> bool {
    let Some(authority) = host
        .to_str()
        .ok()
        .and_then(|host| host.parse::<Authority>().ok())
    else {
        return false;
    };
    let host = authority.host();
    let address = host.trim_start_matches('[').trim_end_matches(']');
    address.parse::<IpAddr>().is_ok()
        || host.eq_ignore_ascii_case("localhost")
        || hosts.iter().any(|known| known.eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::is_meant;

    #[test]
    fn a_name_that_somebody_made_point_here_is_another_host() {
        let hosts = ["sidecar.example".to_owned()];
        for (host, meant) in [
            ("127.0.0.1:9464", true),
            ("[::1]:9464", true),
            ("LOCALHOST", true),
            ("sidecar.example:80", true),
            ("evil.example", false),
            ("127.0.0.1.evil.example", false),
            ("localhost.evil.example:9464", false),
            ("", false),
        ] {
            assert_eq!(
                is_meant(&HeaderValue::from_static(host), &hosts),
                meant,
                "{host}"
            );
        }
    }
}
