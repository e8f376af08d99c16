//! What HTTP libraries do not let a server send: a proxy in front of a fake that answers some requests itself, byte by
//! byte.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::FakeMcp;
use crate::json::lenient;

type Script =
    Arc<dyn Fn(ProxyRequest, TcpStream) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

/// A request that a script answers.
pub struct ProxyRequest {
    /// The JSON-RPC id, as text.
    pub id: String,
    /// The JSON-RPC method, or else the HTTP method.
    pub method: String,
    /// Everything as it came.
    bytes: Vec<u8>,
    /// How much of it is the head.
    head: usize,
}

impl ProxyRequest {
    /// A JSON-RPC answer with this result.
    pub fn answer(&self, result: &str) -> String {
        format!(r#"{{"jsonrpc":"2.0","id":{},"result":{result}}}"#, self.id)
    }

    /// Reads the next request of a connection, or its end. Nothing may be sent behind it before it is answered.
    pub async fn read(stream: &mut TcpStream) -> std::io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        let head = loop {
            if let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") {
                break end + 4;
            }
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(None);
            }
        };
        let text = String::from_utf8_lossy(&bytes[..head]).into_owned();
        let length = text.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            let is_length = name.eq_ignore_ascii_case("content-length");
            is_length.then(|| value.trim().parse::<usize>().ok())?
        });
        let length = length.unwrap_or(0);
        while bytes.len() < head + length {
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(None);
            }
        }
        let message = lenient(std::str::from_utf8(&bytes[head..]).unwrap_or_default());
        let method = message["method"].as_str().map(str::to_owned);
        let method =
            method.unwrap_or_else(|| text.split(' ').next().unwrap_or_default().to_owned());
        let id = message["id"].to_string();
        Ok(Some(Self {
            id,
            method,
            bytes,
            head,
        }))
    }
}

/// A proxy in front of a fake.
pub struct Proxy {
    addr: SocketAddr,
    scripts: Arc<Mutex<HashMap<String, Script>>>,
    server: tokio::task::JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.server.abort();
    }
}

impl Proxy {
    /// Starts a proxy on a free port of the loopback interface.
    pub async fn before(fake: &FakeMcp) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind a port");
        let addr = listener.local_addr().expect("the bound address");
        let scripts: Arc<Mutex<HashMap<String, Script>>> = Arc::default();
        let (known, behind) = (Arc::clone(&scripts), fake.addr());
        let server = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let known = Arc::clone(&known);
                connections.spawn(async move {
                    // An error here is a connection that one of the two sides dropped.
                    let _dropped = carry(stream, behind, &known).await;
                });
            }
        });
        Self {
            addr,
            scripts,
            server,
        }
    }

    /// Its URL.
    pub fn url(&self) -> String {
        format!("http://{}/mcp", self.addr)
    }

    /// Answers a JSON-RPC method, or GET and DELETE, with whatever the script writes; then the connection is closed.
    pub fn on<F, Fut>(&self, method: &str, script: F)
    where
        F: Fn(ProxyRequest, TcpStream) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let script: Script = Arc::new(move |request, stream| Box::pin(script(request, stream)));
        self.scripts
            .lock()
            .unwrap()
            .insert(method.to_owned(), script);
    }

    /// Like [`Proxy::on`] for a fixed answer.
    pub fn reply(
        &self,
        method: &str,
        bytes: impl Fn(&ProxyRequest) -> Vec<u8> + Send + Sync + 'static,
    ) {
        self.on(method, move |request, mut stream| {
            let bytes = bytes(&request);
            async move {
                let _gone = stream.write_all(&bytes).await;
            }
        });
    }

    /// Goes back to the fake's answer.
    pub fn reset(&self, method: &str) {
        self.scripts.lock().unwrap().remove(method);
    }
}

/// Serves one request of a connection.
async fn carry(
    mut stream: TcpStream,
    behind: SocketAddr,
    scripts: &Mutex<HashMap<String, Script>>,
) -> std::io::Result<()> {
    let Some(request) = ProxyRequest::read(&mut stream).await? else {
        return Ok(());
    };
    let script = scripts.lock().unwrap().get(&request.method).cloned();
    if let Some(script) = script {
        script(request, stream).await;
        return Ok(());
    }
    let (bytes, head) = (request.bytes, request.head);
    // One request per connection, so that none is missed.
    let mut upstream = TcpStream::connect(behind).await?;
    upstream.write_all(&bytes[..head - 2]).await?;
    upstream.write_all(b"connection: close\r\n\r\n").await?;
    upstream.write_all(&bytes[head..]).await?;
    tokio::io::copy_bidirectional(&mut stream, &mut upstream).await?;
    Ok(())
}
