//! Finds the daemon's socket, or takes its address, and opens the channel.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::admin::{AdminClient, admin_socket};
use crate::client::Client;
use crate::connection::{Connection, Token};
use crate::error::{Error, Result};

/// The environment variable that names the socket.
pub const SOCKET_ENV: &str = "MCP_SIDECAR_SOCKET";

/// The environment variable that names the admin socket.
pub const ADMIN_SOCKET_ENV: &str = "MCP_SIDECAR_ADMIN_SOCKET";

/// The environment variable that names the daemon's address, such as `127.0.0.1:7443`, where its socket cannot be reached.
pub const ADDRESS_ENV: &str = "MCP_SIDECAR_ADDRESS";

/// The environment variable with the token for it.
pub const TOKEN_ENV: &str = "MCP_SIDECAR_TOKEN";

/// The environment variable that names a file with the token.
pub const TOKEN_FILE_ENV: &str = "MCP_SIDECAR_TOKEN_FILE";

const FIRST_DELAY: Duration = Duration::from_millis(20);
const MAX_DELAY: Duration = Duration::from_millis(500);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// A place that was tried, and its last error.
#[derive(Debug)]
#[non_exhaustive]
pub struct ConnectAttempt {
    /// The path; or the address.
    pub path: PathBuf,
    /// Why it does not work.
    pub error: io::Error,
}

/// Where the daemon's socket may be: `$MCP_SIDECAR_SOCKET` alone if it is set; else
/// `$XDG_RUNTIME_DIR/mcp-sidecar/app.sock` and `~/.local/state/mcp-sidecar/app.sock` (a daemon of this user, the latter
/// if it was started without `XDG_RUNTIME_DIR`), then `/run/mcp-sidecar/app.sock` (the host's).
#[must_use]
pub fn socket_candidates() -> Vec<PathBuf> {
    candidates(variable)
}

fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
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
    address: Option<String>,
    token: Option<Token>,
    namespace: String,
    connect_timeout: Duration,
    deadline: Option<Duration>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            socket: None,
            address: None,
            token: None,
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

    /// The daemon's address, such as `127.0.0.1:7443`, for a client that cannot reach the socket; it needs a
    /// [`token`](Self::token), and wins over a socket. Default: `$MCP_SIDECAR_ADDRESS`, unless a socket is given here or by
    /// `$MCP_SIDECAR_SOCKET`.
    pub fn address(mut self, address: impl Into<String>) -> Self {
        self.address = Some(address.into());
        self
    }

    /// The token for the address; a socket needs none. Default: `$MCP_SIDECAR_TOKEN`, else the file that
    /// `$MCP_SIDECAR_TOKEN_FILE` names.
    pub fn token(mut self, token: Token) -> Self {
        self.token = Some(token);
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
    /// [`Error::Connect`] names every place that was tried and what was wrong with it; [`Error::Setting`] an address or a
    /// token that cannot be used.
    pub async fn connect(self) -> Result<Client> {
        let (namespace, deadline) = (self.namespace.clone(), self.deadline);
        let connection = match place(&self, variable)? {
            Place::Address(address) => {
                let token = self.token.map_or_else(|| given_token(variable), Ok)?;
                let endpoint = endpoint(&address)?;
                find_address(&address, self.connect_timeout).await?;
                Connection::new(endpoint.connect_lazy(), Some(token))
            }
            Place::Sockets(paths) => {
                let path = find(paths, self.connect_timeout).await?;
                Connection::new(channel(path), None)
            }
        };
        Ok(Client::new(connection, namespace, deadline))
    }
}

/// Where the daemon is looked for.
#[derive(PartialEq, Debug)]
enum Place {
    Address(String),
    Sockets(Vec<PathBuf>),
}

/// What was given comes before the environment, and there a socket before an address: it needs no token.
fn place(given: &Builder, var: impl Fn(&str) -> Option<std::ffi::OsString>) -> Result<Place> {
    if let Some(address) = &given.address {
        return Ok(Place::Address(address.clone()));
    }
    if let Some(socket) = &given.socket {
        return Ok(Place::Sockets(vec![socket.clone()]));
    }
    match var(ADDRESS_ENV).filter(|_| var(SOCKET_ENV).is_none()) {
        Some(address) => match address.into_string() {
            Ok(address) => Ok(Place::Address(address)),
            Err(_) => Err(Error::Setting(format!("{ADDRESS_ENV} is not UTF-8"))),
        },
        None => Ok(Place::Sockets(candidates(var))),
    }
}

fn given_token(var: impl Fn(&str) -> Option<std::ffi::OsString>) -> Result<Token> {
    if let Some(token) = var(TOKEN_ENV) {
        return Token::new(token.to_str().unwrap_or_default());
    }
    let Some(file) = var(TOKEN_FILE_ENV) else {
        return Err(Error::Setting(format!(
            "over TCP the daemon wants a token: set {TOKEN_ENV} or {TOKEN_FILE_ENV}; `mcp-sidecar tokens create` makes one"
        )));
    };
    Token::from_file(PathBuf::from(file))
}

/// The endpoint at an address.
fn endpoint(address: &str) -> Result<Endpoint> {
    let with_port = address.rsplit_once(':');
    let with_port =
        with_port.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
    let endpoint = Endpoint::from_shared(format!("http://{address}")).ok();
    let endpoint = endpoint.filter(|_| with_port && !address.contains(['/', '@']));
    let endpoint = endpoint.ok_or_else(|| {
        Error::Setting(format!(
            "`{address}` is no address of a daemon; write host and port, such as `127.0.0.1:7443`"
        ))
    })?;
    Ok(tuned(endpoint))
}

/// Waits until somebody listens at the address.
async fn find_address(address: &str, timeout: Duration) -> Result<()> {
    let end = Instant::now() + timeout;
    let mut delay = FIRST_DELAY;
    loop {
        let bound = end.max(Instant::now() + FIRST_DELAY);
        let opened = tokio::time::timeout_at(bound, TcpStream::connect(address)).await;
        let opened = opened.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let Err(error) = opened else {
            return Ok(());
        };
        if Instant::now() + delay > end {
            let path = PathBuf::from(address);
            let tried = vec![ConnectAttempt { path, error }];
            return Err(Error::Connect { tried });
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(MAX_DELAY);
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
    let endpoint = tuned(Endpoint::from_static("http://localhost"));
    endpoint.connect_with_connector_lazy(service_fn(move |_: Uri| {
        let path = path.clone();
        async move { UnixStream::connect(path).await.map(TokioIo::new) }
    }))
}

fn tuned(endpoint: Endpoint) -> Endpoint {
    endpoint
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_connection_window_size(16 * 1024 * 1024)
        .initial_stream_window_size(4 * 1024 * 1024)
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

    #[test]
    fn what_is_given_comes_before_the_environment_and_a_socket_before_an_address() {
        let found = |given: &Builder, vars: &[(&str, &str)]| {
            let var = |name: &str| {
                let value = vars.iter().find(|(key, _)| *key == name);
                value.map(|(_, value)| std::ffi::OsString::from(value))
            };
            place(given, var).unwrap()
        };
        let sockets = |path: &str| Place::Sockets(vec![PathBuf::from(path)]);
        let address = |at: &str| Place::Address(at.to_owned());
        let (nothing, both) = (
            Builder::default(),
            [(ADDRESS_ENV, "127.0.0.1:1"), (SOCKET_ENV, "/x.sock")],
        );
        assert_eq!(found(&nothing, &both[..1]), address("127.0.0.1:1"));
        assert_eq!(found(&nothing, &both), sockets("/x.sock"));
        assert_eq!(found(&nothing, &[]), sockets("/run/mcp-sidecar/app.sock"));
        let given = Builder::default().socket("/y.sock");
        assert_eq!(found(&given, &both[..1]), sockets("/y.sock"));
        let given = given.address("localhost:2");
        assert_eq!(found(&given, &both), address("localhost:2"));
    }

    #[test]
    fn an_address_has_a_host_and_a_port() {
        for good in ["127.0.0.1:7443", "localhost:1", "[::1]:7443"] {
            assert!(endpoint(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "localhost",
            ":7443",
            "localhost:x",
            "a b:1",
            "u@localhost:1",
            "localhost:1/x",
        ] {
            let refused = endpoint(bad).unwrap_err().to_string();
            assert!(refused.contains(&format!("`{bad}`")), "{refused}");
        }
    }
}
