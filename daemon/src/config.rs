//! What the operator can set: every key with its unit, default and bounds, and the validated result.
//!
//! Says what the values are; [`load`] says where they come from. Never reads the store, never opens a socket, and holds
//! no secret: keys are files that are named here and read elsewhere.

pub mod duration;
pub mod import;
pub mod load;
pub mod rules;
pub mod servers;
mod validate;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::model::call::KeepCalls;
pub use crate::model::spec::Unattended;
pub use crate::model::vault::KeyBackend;
pub use load::{ConfigError, Environment, Sources};
pub use rules::{AccessRule, HostRule, SocketMode};
pub use servers::ServerConfig;

/// The configuration of the daemon. Made by [`Config::load`]; `Config::default()` is for tests.
///
/// Durations are written with a unit (`500ms`, `30s`, `10m`, `1h30m`), sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    /// Where the daemon keeps its state; absolute. Default: `$STATE_DIRECTORY`, else `/var/lib/mcp-sidecar` as root and
    /// `$XDG_STATE_HOME/mcp-sidecar` or `~/.local/state/mcp-sidecar` otherwise.
    pub data_dir: PathBuf,
    /// Who may use which namespaces. Default: empty, everyone who can open the socket may use every namespace. With at
    /// least one rule, what no rule permits is denied.
    pub access: Vec<AccessRule>,
    /// Servers that the operator registers: at start and at every reload the registrations are brought to what is here. At
    /// most 1,000. Default: none.
    pub servers: Vec<ServerConfig>,
    /// The application socket.
    pub socket: SocketConfig,
    /// The admin socket.
    pub admin: AdminConfig,
    /// The listener over TCP, for apps with tokens.
    pub tcp: TcpConfig,
    /// Log output.
    pub log: LogConfig,
    /// Bounds on waiting.
    pub timeouts: TimeoutConfig,
    /// Bounds on sizes and counts.
    pub limits: LimitConfig,
    /// What may be done about calls that went wrong.
    pub calls: CallConfig,
    /// Bounds on checks of results.
    pub checks: CheckConfig,
    /// Which addresses may be connected to.
    pub policy: PolicyConfig,
    /// The update log.
    pub updates: UpdateConfig,
    /// Reconnection and freshness.
    pub reconnect: ReconnectConfig,
    /// Questions of servers.
    pub questions: QuestionConfig,
    /// Sign-ins and tokens.
    pub auth: AuthConfig,
    /// Encryption at rest.
    pub vault: VaultConfig,
    /// Servers that are child processes.
    pub stdio: StdioConfig,
    /// The audit log.
    pub audit: AuditConfig,
    /// Figures for Prometheus.
    pub metrics: MetricsConfig,
    /// Traces for a collector.
    pub telemetry: TelemetryConfig,
}

/// Section `telemetry`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct TelemetryConfig {
    /// The collector that traces are pushed to over OTLP (protobuf over HTTP): the whole URL, usually with the path
    /// `/v1/traces`. Default: none, and nothing is traced.
    pub otlp_endpoint: Option<url::Url>,
    /// How many of the traces that begin here are pushed; those that an app began are as the app says. Default 1; 0 to 1.
    pub sample_ratio: f64,
}

// A ratio that is no number does not pass the checks.
impl Eq for TelemetryConfig {}

impl Default for TelemetryConfig {
    fn default() -> Self {
        Self {
            otlp_endpoint: None,
            sample_ratio: 1.0,
        }
    }
}

/// Section `socket`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct SocketConfig {
    /// Path of the application socket; absolute, at most 107 bytes. Default: `app.sock` in `$RUNTIME_DIRECTORY`, else
    /// in `/run/mcp-sidecar` as root and `$XDG_RUNTIME_DIR/mcp-sidecar` otherwise, else in `data_dir`. Not used when
    /// the service manager passes a socket.
    pub path: PathBuf,
    /// Permissions of the socket as an octal string. Default `"0660"`; at most `"0777"`.
    pub mode: SocketMode,
}

/// Section `admin`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct AdminConfig {
    /// Path of the admin socket; absolute, at most 107 bytes. Default: `admin.sock` beside the application socket, or if
    /// that is not called `app.sock`, its name behind `admin-`. Not used when the service manager passes a socket of the
    /// name `admin`.
    pub path: PathBuf,
    /// Permissions of the socket as an octal string. Default `"0600"`; at most `"0777"`. Whatever they are, AdminService
    /// answers the daemon's own user and root only.
    pub mode: SocketMode,
}

impl Default for AdminConfig {
    fn default() -> Self {
        Self {
            path: PathBuf::new(),
            mode: SocketMode(0o600),
        }
    }
}

/// Section `tcp`: for apps that cannot reach the socket. Every request needs a token, which AdminService makes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TcpConfig {
    /// The address, a loopback one, such as `127.0.0.1:7443`; port 0 is any, and the log says which. Default: none, nobody
    /// listens.
    pub listen: Option<SocketAddr>,
}

/// Section `log`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct LogConfig {
    /// What is logged, as directives of `tracing_subscriber::EnvFilter`. Default `"info"`.
    pub filter: String,
    /// Form of the lines on standard error. Default `"text"`.
    pub format: LogFormat,
}

/// Form of log lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}

/// Section `timeouts`. Servers may set their own `connect`, `call_idle` and `call`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct TimeoutConfig {
    /// Opening a transport, finding the era and the handshake. Default 20s; 100ms to 10m.
    #[serde(with = "duration")]
    pub connect: Duration,
    /// One probe while the era is being found. Default 5s; 100ms to `connect`.
    #[serde(with = "duration")]
    pub probe: Duration,
    /// A call without any sign of life from the server. Default 30s; 100ms to 24h.
    #[serde(with = "duration")]
    pub call_idle: Duration,
    /// A call as a whole, without the time that is spent waiting for a human. Default 10m; 100ms to 24h.
    #[serde(with = "duration")]
    pub call: Duration,
    /// How often a server is asked about a call that it runs as a task, where it does not say itself. Default 1s; 100ms to
    /// 10m, which also bounds what servers say.
    #[serde(with = "duration")]
    pub task_poll: Duration,
    /// Longest wait of one waiting RPC, whatever it asks for. Default 10m; 100ms to 24h.
    #[serde(with = "duration")]
    pub wait_max: Duration,
    /// How long a session of a single app with a server is kept that nobody uses. Default 1h; 1s to 24h.
    #[serde(with = "duration")]
    pub session_idle: Duration,
    /// Grace per step when a server is stopped (close, terminate, kill). Default 5s; 10ms to 5m.
    #[serde(with = "duration")]
    pub close: Duration,
    /// How long running RPCs may go on when the daemon stops. Default 20s; 0s to 10m.
    #[serde(with = "duration")]
    pub drain: Duration,
}

/// Section `limits`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct LimitConfig {
    /// One message from a server, in bytes after decompression. Default 64 MiB; 64 KiB to 1 GiB.
    pub message_bytes: usize,
    /// One gRPC message, in bytes. Default 72 MiB; 64 KiB to 1 GiB, and not less than `message_bytes`.
    pub grpc_message_bytes: usize,
    /// Pages that are read of one list. Default 200; 1 to 10,000.
    pub list_pages: usize,
    /// Entries that are kept of one list. Default 10,000; 1 to 1,000,000.
    pub list_items: usize,
    /// Calls that run at the same time per server. Default 512; 1 to 65,536.
    pub calls_per_server: usize,
    /// Calls that are under way or wait for answers, of all servers together; with more than that none is detached, named or
    /// laid to rest. Default 50,000; 100 to 1,000,000.
    pub calls: usize,
    /// Calls that are under way on one stream of `CallTools`. Default 4,096; 1 to 65,536.
    pub calls_per_stream: usize,
    /// Sessions of single apps with one server, where its registration isolates apps. Default 64; 1 to 4,096.
    pub sessions_per_server: usize,
    /// Registered servers, over all namespaces. Default 2,000; 1 to 100,000.
    pub servers: usize,
    /// Rounds of questions (`input_required`) in one call. Default 10; 1 to 1,000.
    pub rounds: usize,
    /// Update streams that are open at the same time. Default 1,024; 1 to 65,536.
    pub subscribers: usize,
    /// What is kept of a child process's standard error, and of lines on its standard output that are no messages, in
    /// bytes. Default 4,096; 0 to 1 MiB.
    pub stderr_tail_bytes: usize,
    /// Connections of apps that are open at the same time. Default 1,024; 1 to 65,536.
    pub connections: usize,
    /// How many of them one user (by the kernel's word, or the bearer of one token) may have. Default, and what 0 stands for: three quarters of
    /// `connections`; 1 to `connections`.
    pub connections_per_user: usize,
    /// Tokens for apps that come over TCP. Default 100; 1 to 1,000.
    pub app_tokens: usize,
}

/// Section `calls`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct CallConfig {
    /// Whether a tool call whose answer was cut off is sent once more, if the server declares the tool read-only
    /// (`readOnlyHint`) or idempotent (`idempotentHint`). Default false: the app decides, told by `OUTCOME_UNKNOWN`.
    pub repeat_safe: bool,
    /// How long the outcome of a call that is kept (detached, with a request id, or one that waited for answers without
    /// anything under way) can be had after its end. Default 1h; 1s to 8760h.
    #[serde(with = "duration")]
    pub keep: Duration,
    /// Of how many such calls outcomes are kept, the latest. Default 10,000; 1 to 1,000,000.
    pub keep_count: usize,
    /// How many bytes of them are kept, about. Default 256 MiB; 1 MiB to 64 GiB.
    pub keep_bytes: u64,
}

impl Default for CallConfig {
    fn default() -> Self {
        let KeepCalls { age, count, bytes } = KeepCalls::default();
        Self {
            repeat_safe: false,
            keep: age,
            keep_count: count,
            keep_bytes: bytes,
        }
    }
}

/// Section `checks`: what a check of a structured result against an output schema may cost. A result beyond a bound is
/// passed on unchecked.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct CheckConfig {
    /// Largest structured result that is checked, in bytes. Default 1 MiB; 1 KiB to 64 MiB.
    pub result_bytes: usize,
    /// Largest output schema that is used, in bytes. Default 64 KiB; 1 KiB to 1 MiB.
    pub schema_bytes: usize,
    /// Most steps of one check: a step looks at one part of a result with one part of a schema. Default 100,000; 1,000
    /// to 10,000,000.
    pub steps: u64,
    /// Compiled schemas that are kept. Default 256; 1 to 10,000.
    pub schemas: usize,
}

/// Section `policy`. `block` wins over everything; then `allow` and the two switches; then the built-in ranges.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct PolicyConfig {
    /// Whether 127.0.0.0/8 and ::1 may be connected to. Default true.
    pub allow_loopback: bool,
    /// Whether private networks may be connected to: 10/8, 172.16/12, 192.168/16, 100.64/10, fc00::/7. Default false.
    /// Link-local addresses stay blocked.
    pub allow_private: bool,
    /// Whether Unix sockets of this host may be connected to, with the daemon's rights. Default true.
    pub allow_unix_sockets: bool,
    /// Exceptions from the built-in ranges: addresses, CIDR networks, host names or `*.` and a domain. At most 1,000.
    /// A host name lets that name resolve to any address outside `block`.
    pub allow: Vec<HostRule>,
    /// What is never connected to, in the same forms. At most 1,000.
    pub block: Vec<HostRule>,
}

/// Section `updates`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct UpdateConfig {
    /// Changes that are kept for resumption. Default 100,000; 1,000 to 10,000,000.
    pub keep_count: u64,
    /// How long changes are kept for resumption. Default 24h; 1m to 8760h.
    #[serde(with = "duration")]
    pub keep_age: Duration,
    /// Interval of bookmarks on an idle update stream. Default 15s; 100ms to 1h.
    #[serde(with = "duration")]
    pub bookmark_interval: Duration,
}

/// Section `reconnect`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct ReconnectConfig {
    /// Longest delay between two attempts in the background. Default 5m; 1s to 24h.
    #[serde(with = "duration")]
    pub max_delay: Duration,
    /// How often an idle connection is checked. Default 30s; 100ms to 1h.
    #[serde(with = "duration")]
    pub liveness_interval: Duration,
    /// How often the other end of a connection on which nothing happens, such as an open stream of notifications, is
    /// probed with TCP keep-alive, and over HTTP/2 with a ping. After three TCP probes, or one ping, without an answer
    /// the connection is given up. Default 30s; 1s to 1h.
    #[serde(with = "duration")]
    pub keepalive_interval: Duration,
    /// How often lists are read again when the server pushes no changes, or later, if it vouches for them for longer
    /// (`ttlMs`). Default 5m; 1s to 24h.
    #[serde(with = "duration")]
    pub list_refresh_interval: Duration,
}

/// Section `questions`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct QuestionConfig {
    /// How long a question to people stays open. Default 1h; 1s to 720h. Servers may set their own, as of the two below.
    #[serde(with = "duration")]
    pub expiry: Duration,
    /// How long a request for an answer of a language model stays open. Default, and what 0s stands for: `expiry`; 1s to 720h.
    #[serde(with = "duration")]
    pub sampling_expiry: Duration,
    /// How long a call waits for an approval. Default, and what 0s stands for: `expiry`; 1s to 720h.
    #[serde(with = "duration")]
    pub approval_expiry: Duration,
    /// What becomes of questions that come while no app is there that says it can answer them. Default `"hold"`: they wait;
    /// `"decline"`: they end at once as declined. Servers may set their own.
    pub unattended: Unattended,
    /// Open questions per server. Default 1,000; 1 to 100,000.
    pub max_pending_per_server: usize,
    /// One question to people with everything in it, in bytes. Default 256 KiB; 4 KiB to 16 MiB.
    pub max_bytes: usize,
    /// One request for an answer of a language model, which may hold a whole conversation, in bytes. Default, and what 0 stands
    /// for: 1 MiB, or `max_bytes` if that is more, but not more than `max_pending_bytes`; 4 KiB to 16 MiB.
    pub max_sampling_bytes: usize,
    /// Open questions of all servers together, in bytes: what a subscriber's snapshot can hold of them. Default 64 MiB;
    /// the larger of the two above to 1 GiB.
    pub max_pending_bytes: usize,
}

/// Section `auth`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct AuthConfig {
    /// Where browsers come back to after a sign-in: a loopback host, `127.0.0.1` (default), `[::1]` or `localhost`, which
    /// listens on both families. There is a listener only while a sign-in is pending.
    pub callback_host: String,
    /// Its port. Default 33433. If it is taken, another one is used for that sign-in; 0: any. A fixed one saves registering
    /// anew, and is needed with `callback_url`.
    pub callback_port: u16,
    /// Its path, the same for all servers: letters, digits and `/-._~`. Default `/oauth/callback`.
    pub callback_path: String,
    /// The `https:` URL of the callback where a proxy in front of this host passes it on to the listener; sent to
    /// authorization servers in place of the listener's own. Default: none.
    pub callback_url: Option<String>,
    /// Where the browser goes when a sign-in has succeeded, in place of the built-in page; an `https:` or `http:` URL.
    /// Default: none.
    pub success_redirect: Option<String>,
    /// Where the browser goes when a sign-in has failed, with `error` added to the query, in place of the built-in page; an
    /// `https:` or `http:` URL. Default: none.
    pub error_redirect: Option<String>,
    /// The `https:` URL of the daemon's client metadata document, hosted elsewhere; it is then the client identifier at
    /// authorization servers that read such. Default: none.
    pub client_metadata_url: Option<String>,
    /// The name to register under. Default `mcp-sidecar`; 1 to 128 characters.
    pub client_name: String,
    /// How long a user may take to sign in. Default 10m; 1s to 24h.
    #[serde(with = "duration")]
    pub sign_in_expiry: Duration,
    /// Sign-ins of one server that may be pending at a time. Default 5; 1 to 100.
    pub pending_per_server: usize,
    /// How long before its end an access token is renewed. Default 1m; 0s to 1h, and never more than half of its life.
    #[serde(with = "duration")]
    pub renew_before: Duration,
    /// One request to an authorization server. Default 10s; 100ms to 5m.
    #[serde(with = "duration")]
    pub request_timeout: Duration,
    /// Largest answer of an authorization server, and of metadata, in bytes. Default 256 KiB; 4 KiB to 4 MiB.
    pub response_bytes: usize,
    /// Directories below which assertions of workloads may be read; absolute. At most 100. Default: none.
    pub assertion_dirs: Vec<PathBuf>,
}

/// Section `vault`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct VaultConfig {
    /// Where the key is that encrypts secrets at rest. `"credential"`: the credential `vault-key` that the service manager
    /// passes (`LoadCredentialEncrypted=`). `"key_file"`: a file, made if nothing is encrypted yet. `"keyring"`: the keyring of
    /// the session in which the daemon runs (Secret Service). Default `"auto"`: the credential if one is passed, else the file.
    pub backend: KeyBackend,
    /// The file; absolute. Not with the backends `"credential"` and `"keyring"`. Default: none, a key is made in `data_dir`.
    pub key_file: Option<PathBuf>,
}

/// Section `stdio`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct StdioConfig {
    /// Whether apps may register servers that are child processes of the daemon. Default true.
    pub enabled: bool,
    /// Environment variables of the daemon that child processes get. At most 256. Never add what holds a secret.
    pub pass_env: Vec<String>,
}

/// Section `audit`: who did what, with which outcome.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct AuditConfig {
    /// Where it is written. Default `"off"`.
    pub destination: AuditDestination,
    /// The file; absolute. Made with mode 0600. Default: `audit.log` in `$LOGS_DIRECTORY`, else in `data_dir`.
    pub file: PathBuf,
    /// Whether the arguments of calls are written, which may hold what is secret. Default false.
    pub arguments: bool,
    /// How much of the arguments of one call is written, in bytes. Default 4,096; 0 to 1 MiB.
    pub arguments_bytes: usize,
    /// What happens when it cannot be written as fast as it grows. Default `"block"`.
    pub when_full: WhenFull,
    /// Records that may wait to be written. Default 10,000; 10 to 1,000,000.
    pub queue: usize,
    /// How long an RPC that is to be audited waits for room in the queue before it is refused. Default 5s; 0s to 10m.
    #[serde(with = "duration")]
    pub wait: Duration,
}

/// Section `metrics`: figures for Prometheus, over HTTP at `/metrics`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct MetricsConfig {
    /// The address, such as `127.0.0.1:9464`; port 0 is any, and the log says which. Default: none, nothing is counted or
    /// served.
    pub listen: Option<SocketAddr>,
    /// Whether the address may be another than a loopback one. There is no authentication. Default false.
    pub allow_remote: bool,
    /// Names by which this host may be asked, beside addresses and `localhost`; a request that names another host is refused.
    /// At most 100. Default: none.
    pub hosts: Vec<String>,
}

/// Where the audit log is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuditDestination {
    /// Nowhere.
    #[default]
    Off,
    /// To a file, one JSON object per line.
    File,
    /// To the daemon's log, as lines of the target `audit`.
    Journal,
}

/// What happens when records cannot be written as fast as they come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhenFull {
    /// What would be audited does not begin.
    #[default]
    Block,
    /// Records are lost, and counted.
    Drop,
}

impl Default for AuditConfig {
    fn default() -> Self {
        Self {
            destination: AuditDestination::Off,
            file: PathBuf::new(),
            arguments: false,
            arguments_bytes: 4_096,
            when_full: WhenFull::Block,
            queue: 10_000,
            wait: Duration::from_secs(5),
        }
    }
}

impl Default for LogConfig {
    fn default() -> Self {
        Self {
            filter: "info".to_owned(),
            format: LogFormat::Text,
        }
    }
}

impl Default for TimeoutConfig {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(20),
            probe: Duration::from_secs(5),
            call_idle: Duration::from_secs(30),
            call: Duration::from_mins(10),
            task_poll: Duration::from_secs(1),
            wait_max: Duration::from_mins(10),
            session_idle: Duration::from_hours(1),
            close: Duration::from_secs(5),
            drain: Duration::from_secs(20),
        }
    }
}

impl Default for LimitConfig {
    fn default() -> Self {
        Self {
            message_bytes: 64 * 1024 * 1024,
            grpc_message_bytes: 72 * 1024 * 1024,
            list_pages: 200,
            list_items: 10_000,
            calls_per_server: 512,
            calls: 50_000,
            calls_per_stream: 4_096,
            sessions_per_server: 64,
            servers: 2_000,
            rounds: 10,
            subscribers: 1_024,
            stderr_tail_bytes: 4_096,
            connections: 1_024,
            connections_per_user: 0,
            app_tokens: 100,
        }
    }
}

impl Default for CheckConfig {
    fn default() -> Self {
        Self {
            result_bytes: 1024 * 1024,
            schema_bytes: 64 * 1024,
            steps: 100_000,
            schemas: 256,
        }
    }
}

impl Default for PolicyConfig {
    fn default() -> Self {
        Self {
            allow_loopback: true,
            allow_unix_sockets: true,
            allow_private: false,
            allow: Vec::new(),
            block: Vec::new(),
        }
    }
}

impl Default for UpdateConfig {
    fn default() -> Self {
        Self {
            keep_count: 100_000,
            keep_age: Duration::from_hours(24),
            bookmark_interval: Duration::from_secs(15),
        }
    }
}

impl Default for ReconnectConfig {
    fn default() -> Self {
        Self {
            max_delay: Duration::from_mins(5),
            liveness_interval: Duration::from_secs(30),
            keepalive_interval: Duration::from_secs(30),
            list_refresh_interval: Duration::from_mins(5),
        }
    }
}

impl Default for QuestionConfig {
    fn default() -> Self {
        Self {
            expiry: Duration::from_hours(1),
            sampling_expiry: Duration::ZERO,
            approval_expiry: Duration::ZERO,
            unattended: Unattended::Hold,
            max_pending_per_server: 1_000,
            max_bytes: 256 * 1024,
            max_sampling_bytes: 0,
            max_pending_bytes: 64 * 1024 * 1024,
        }
    }
}

impl Default for AuthConfig {
    fn default() -> Self {
        Self {
            callback_host: "127.0.0.1".to_owned(),
            callback_port: 33_433,
            callback_path: "/oauth/callback".to_owned(),
            callback_url: None,
            success_redirect: None,
            error_redirect: None,
            client_metadata_url: None,
            client_name: "mcp-sidecar".to_owned(),
            sign_in_expiry: Duration::from_mins(10),
            pending_per_server: 5,
            renew_before: Duration::from_mins(1),
            request_timeout: Duration::from_secs(10),
            response_bytes: 256 * 1024,
            assertion_dirs: Vec::new(),
        }
    }
}

impl Default for StdioConfig {
    fn default() -> Self {
        let names = [
            "PATH",
            "HOME",
            "USER",
            "LOGNAME",
            "LANG",
            "LC_ALL",
            "TZ",
            "TMPDIR",
            "SHELL",
            "XDG_RUNTIME_DIR",
            "XDG_CACHE_HOME",
            "XDG_CONFIG_HOME",
            "XDG_DATA_HOME",
        ];
        Self {
            enabled: true,
            pass_env: names.map(str::to_owned).to_vec(),
        }
    }
}

impl Config {
    /// The configuration as a TOML file that would give the same one. It holds no secret.
    ///
    /// # Errors
    /// INTERNAL if it cannot be written as TOML, for example because of a path that is not UTF-8.
    pub fn to_toml(&self) -> crate::error::Result<String> {
        toml::to_string(self).map_err(|cause| {
            crate::error::Error::internal(format!(
                "the configuration cannot be shown as TOML: {cause}"
            ))
        })
    }
}
