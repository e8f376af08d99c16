//! Finds the daemon's socket and opens the channel.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::admin::{AdminClient, admin_socket};
use crate::client::Client;
use crate::error::{Error, Result};

/// The environment variable that names the socket.
pub const SOCKET_ENV: &str = "MCP_SIDECAR_SOCKET";

/// The environment variable that names the admin socket.
pub const ADMIN_SOCKET_ENV: &str = "MCP_SIDECAR_ADMIN_SOCKET";

const FIRST_DELAY: Duration = Duration::from_millis(20);
const MAX_DELAY: Duration = Duration::from_millis(500);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// A path that was tried, and its last error.
#[derive(Debug)]
#[non_exhaustive]
pub struct ConnectAttempt {
    /// The path.
    pub path: PathBuf,
    /// Why it does not work.
    pub error: io::Error,
}

/// Where the daemon's socket may be: `$MCP_SIDECAR_SOCKET` alone if it is set; else
/// `$XDG_RUNTIME_DIR/mcp-sidecar/app.sock` and `~/.local/state/mcp-sidecar/app.sock` (a daemon of this user, the latter
/// if it was started without `XDG_RUNTIME_DIR`), then `/run/mcp-sidecar/app.sock` (the host's).
#[must_use]
pub fn socket_candidates() -> Vec<PathBuf> {
    candidates(|name| std::env::var_os(name).filter(|value| !value.is_empty()))
}

fn candidates(var: impl Fn(&str) -> Option<std::ffi::OsString>) -> Vec<PathBuf> {
    if let Some(path) = var(SOCKET_ENV) {
        return vec![PathBuf::from(path)];
    }
    let state = || Some(Path::new(&var("HOME")?).join(".local/state"));
    let state = var("XDG_STATE_HOME").map_or_else(state, |dir| Some(dir.into()));
    let runtime = var("XDG_RUNTIME_DIR").map(PathBuf::from);
    [runtime, state, Some(PathBuf::from("/run"))]
        .into_iter()
        .flatten()
        .map(|directory| directory.join("mcp-sidecar/app.sock"))
        .collect()
}

/// Settings of a [`Client`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until `connect`"]
pub struct Builder {
    socket: Option<PathBuf>,
    namespace: String,
    connect_timeout: Duration,
    deadline: Option<Duration>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            socket: None,
            namespace: String::new(),
            connect_timeout: Duration::from_secs(5),
            deadline: None,
        }
    }
}

impl Builder {
    /// The daemon's socket. Default: found, see [`socket_candidates`].
    pub fn socket(mut self, path: impl Into<PathBuf>) -> Self {
        self.socket = Some(path.into());
        self
    }

    /// The namespace of every request that names none. Default: the daemon's `default`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// How long [`Builder::connect`] goes on trying, with a back-off of at most half a second. Default: 5 s. Zero:
    /// each path is tried once.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The deadline of every request, updates excepted; [`Client::with_deadline`] sets another one. Default: none,
    /// so that only the daemon's own timeouts apply.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Connects. Later losses of the connection are repaired by the next request.
    ///
    /// # Errors
    ///
    /// [`Error::Connect`] names every path that was tried and what was wrong with it.
    pub async fn connect(self) -> Result<Client> {
        let paths = self
            .socket
            .map_or_else(socket_candidates, |path| vec![path]);
        let path = find(paths, self.connect_timeout).await?;
        Ok(Client::new(channel(path), self.namespace, self.deadline))
    }
}

impl Builder {
    /// Connects to the daemon's admin socket: `path` if one is given, else `$MCP_SIDECAR_ADMIN_SOCKET`, else the one that
    /// belongs to the socket for apps ([`admin_socket`]). The namespace has no meaning there.
    ///
    /// # Errors
    ///
    /// See [`Builder::connect`].
    pub async fn connect_admin(self, path: Option<PathBuf>) -> Result<AdminClient> {
        let named = std::env::var_os(ADMIN_SOCKET_ENV).filter(|path| !path.is_empty());
        let paths = match (path.or(named.map(PathBuf::from)), self.socket) {
            (Some(path), _) => vec![path],
            (None, Some(socket)) => vec![admin_socket(&socket)],
            (None, None) => socket_candidates()
                .iter()
                .map(|socket| admin_socket(socket))
                .collect(),
        };
        let path = find(paths, self.connect_timeout).await?;
        Ok(AdminClient::new(channel(path), self.deadline))
    }
}

/// The first path behind which somebody listens.
async fn find(paths: Vec<PathBuf>, timeout: Duration) -> Result<PathBuf> {
    let end = Instant::now() + timeout;
    let mut delay = FIRST_DELAY;
    loop {
        let mut tried = Vec::with_capacity(paths.len());
        for path in &paths {
            match open(path, end).await {
                Ok(_) => return Ok(path.clone()),
                Err(error) => tried.push(ConnectAttempt {
                    path: path.clone(),
                    error,
                }),
            }
        }
        let hopeless = tried
            .iter()
            .all(|attempt| attempt.error.kind() == io::ErrorKind::PermissionDenied);
        if hopeless || Instant::now() + delay > end {
            return Err(Error::Connect { tried });
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(MAX_DELAY);
    }
}

/// A listener whose backlog is full makes `connect` wait, so the wait has an end.
async fn open(path: &Path, end: Instant) -> io::Result<UnixStream> {
    let end = end.max(Instant::now() + FIRST_DELAY);
    tokio::time::timeout_at(end, UnixStream::connect(path))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

/// A channel that opens the socket whenever it has no connection.
fn channel(path: PathBuf) -> Channel {
    // The authority is never resolved; `localhost` is what every server accepts.
    Endpoint::from_static("http://localhost")
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_connection_window_size(16 * 1024 * 1024)
        .initial_stream_window_size(4 * 1024 * 1024)
        .connect_with_connector_lazy(service_fn(move |_: Uri| {
            let path = path.clone();
            async move { UnixStream::connect(path).await.map(TokioIo::new) }
        }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(vars: &[(&str, &str)]) -> Vec<String> {
        let found = candidates(|name| {
            let value = vars.iter().find(|(key, _)| *key == name);
            value.map(|(_, value)| std::ffi::OsString::from(value))
        });
        found
            .iter()
            .map(|path| path.display().to_string())
            .collect()
    }

    #[test]
    fn the_environment_wins_then_the_user_then_the_host() {
        assert_eq!(
            with(&[("XDG_RUNTIME_DIR", "/run/user/7")]),
            [
                "/run/user/7/mcp-sidecar/app.sock",
                "/run/mcp-sidecar/app.sock"
            ]
        );
        assert_eq!(with(&[]), ["/run/mcp-sidecar/app.sock"]);
        assert_eq!(
            with(&[("HOME", "/home/ann")]),
            [
                "/home/ann/.local/state/mcp-sidecar/app.sock",
                "/run/mcp-sidecar/app.sock"
            ]
        );
        assert_eq!(
            with(&[("HOME", "/home/ann"), ("XDG_STATE_HOME", "/state")]),
            ["/state/mcp-sidecar/app.sock", "/run/mcp-sidecar/app.sock"]
        );
        assert_eq!(
            with(&[(SOCKET_ENV, "/x.sock"), ("XDG_RUNTIME_DIR", "/run/user/7")]),
            ["/x.sock"]
        );
    }
}
