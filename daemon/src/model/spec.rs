//! A server's registration: how it is reached and used, and the rules for ids, names and URLs.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use url::Url;

use crate::base::{Secret, ServerId};
use crate::error::{Error, Result};
use crate::model::approval::Approval;
use crate::model::auth::AuthSpec;
pub use crate::model::question::{Abilities, QuestionPolicy, Unattended};
use crate::model::rules::ToolRules;

/// How a server is reached and used.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ServerSpec {
    /// Name for people.
    pub name: String,
    /// How it is reached.
    pub transport: TransportSpec,
    /// Pinned protocol version.
    #[serde(default)]
    pub protocol_version: Option<String>,
    /// What the server may ask for; `None`: what somebody can answer.
    #[serde(default)]
    pub capabilities: Option<ClientCapabilities>,
    /// Directories the server may ask for.
    #[serde(default)]
    pub roots: Vec<Root>,
    /// Which apps share a session with the server.
    #[serde(default)]
    pub isolation: Isolation,
    /// Level from which log messages are wanted where a call does not say.
    #[serde(default)]
    pub log_level: Option<LogLevel>,
    /// How a failed connection is tried again.
    #[serde(default)]
    pub retry: RetryPolicy,
    /// Bounds on waiting.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Which of its tools may be seen and called.
    #[serde(default)]
    pub tools: ToolRules,
    /// Whether structured results are checked against the output schemas of its tools.
    #[serde(default)]
    pub check_results: bool,
    /// Which calls of its tools need somebody's consent.
    #[serde(default)]
    pub approval: Approval,
    /// How the daemon gets authorized.
    #[serde(default)]
    pub auth: AuthSpec,
    /// What becomes of its questions.
    #[serde(default)]
    pub questions: QuestionPolicy,
}

/// Which apps share a session with a server.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// All.
    #[default]
    Shared,
    /// Those of one local user.
    PerUser,
    /// None: every connection of an app has its own.
    PerConnection,
}

/// Severity of a log message (RFC 5424), the least severe first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LogLevel {
    /// Detailed information for debugging.
    Debug,
    /// General information.
    Info,
    /// Normal but significant.
    Notice,
    /// A warning.
    Warning,
    /// An error.
    Error,
    /// A critical condition.
    Critical,
    /// Action must be taken at once.
    Alert,
    /// The system is unusable.
    Emergency,
}

impl LogLevel {
    /// All, the least severe first.
    pub const ALL: [Self; 8] = [
        Self::Debug,
        Self::Info,
        Self::Notice,
        Self::Warning,
        Self::Error,
        Self::Critical,
        Self::Alert,
        Self::Emergency,
    ];

    /// The specification's word for it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Notice => "notice",
            Self::Warning => "warning",
            Self::Error => "error",
            Self::Critical => "critical",
            Self::Alert => "alert",
            Self::Emergency => "emergency",
        }
    }

    /// The level of this word; `None` if it is none.
    #[must_use]
    pub fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == word)
    }
}

/// How a server is reached.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransportSpec {
    /// At a URL.
    Http(HttpSpec),
    /// As a child process.
    Stdio(StdioSpec),
    /// On a Unix socket.
    UnixSocket(UnixSocketSpec),
}

/// A server at a URL.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct HttpSpec {
    /// The endpoint, normalised by [`normalize_url`].
    pub url: Url,
    /// Headers for this origin only.
    #[serde(default)]
    pub headers: Vec<NamedSecret>,
    /// Which HTTP transport the server speaks.
    #[serde(default)]
    pub mode: HttpMode,
    /// With what the daemon proves itself in TLS.
    #[serde(default)]
    pub certificate: Option<ClientCertificate>,
}

/// A certificate of the daemon (mutual TLS).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClientCertificate {
    /// The certificate and its chain, in PEM form, leaf first.
    pub chain: String,
    /// Its private key, in PEM form.
    pub private_key: NamedSecret,
}

/// Which HTTP transport a server speaks (row A6).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HttpMode {
    /// Streamable HTTP, and HTTP+SSE where the server has nothing else.
    #[default]
    Auto,
    /// Streamable HTTP.
    StreamableHttp,
    /// HTTP+SSE, as of MCP 2024-11-05.
    Sse,
}

/// A server that is a child process.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StdioSpec {
    /// The program.
    pub command: String,
    /// Its arguments.
    #[serde(default)]
    pub args: Vec<String>,
    /// Its environment.
    #[serde(default)]
    pub env: Vec<NamedSecret>,
    /// Its working directory.
    #[serde(default)]
    pub cwd: Option<String>,
}

/// A server on a Unix socket.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct UnixSocketSpec {
    /// The path of the socket.
    pub path: String,
    /// What is spoken on it.
    pub protocol: UnixProtocol,
    /// Path and query of the endpoint; empty where no HTTP is spoken.
    #[serde(default)]
    pub http_path: String,
    /// Headers of every request.
    #[serde(default)]
    pub headers: Vec<NamedSecret>,
}

/// What is spoken on a Unix socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnixProtocol {
    /// Streamable HTTP.
    Http,
    /// JSON-RPC messages, one to a line.
    Ndjson,
}

impl UnixSocketSpec {
    /// The URL that requests name; the host in it means nothing.
    ///
    /// # Errors
    /// `INVALID_FIELD` for anything but an absolute path with an optional query.
    pub fn http_url(&self) -> Result<Url> {
        let field = "spec.unix_socket.http_path";
        let path = &self.http_path;
        let url = Url::parse("http://localhost").and_then(|base| base.join(path));
        match url {
            Ok(url)
                if path.starts_with('/')
                    && url.fragment().is_none()
                    && url.host_str() == Some("localhost") =>
            {
                Ok(url)
            }
            _ => Err(Error::invalid(
                field,
                format!("`{path}` is not an absolute path"),
            )),
        }
    }
}

/// A header or environment variable. Only the name serialises; values are stored sealed, apart from the spec.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NamedSecret {
    /// The name.
    pub name: String,
    /// The value.
    #[serde(skip)]
    pub value: Secret<String>,
}

/// What the server may ask for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct ClientCapabilities {
    /// Answers of people and models.
    #[serde(flatten)]
    pub abilities: Abilities,
    /// Further `extensions`, a raw JSON object; empty if none.
    pub extensions: String,
}

/// A directory the server may work with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Root {
    /// `file:` URI.
    pub uri: String,
    /// Name for people; may be empty.
    pub name: String,
}

/// How a failed connection is tried again (row A17).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct RetryPolicy {
    /// Quick attempts per connect.
    pub max_attempts: u32,
    /// Upper bound of the first delay.
    pub base_delay: Duration,
    /// Upper bound of every delay between quick attempts.
    pub max_delay: Duration,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: 3,
            base_delay: Duration::from_millis(500),
            max_delay: Duration::from_secs(5),
        }
    }
}

/// Bounds on waiting; `None` means the configured default.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Timeouts {
    /// Opening the transport, finding the era and the handshake.
    pub connect: Option<Duration>,
    /// Silence of the server during a call.
    pub call_idle: Option<Duration>,
    /// A call as a whole.
    pub call: Option<Duration>,
}

impl ServerSpec {
    /// Puts its headers or environment variables into the order that they have in the other, if they are the same: orders that
    /// mean nothing shall not make a difference.
    pub fn order_like(&mut self, other: &Self) {
        let (own, model) = match (&mut self.transport, &other.transport) {
            (TransportSpec::Http(own), TransportSpec::Http(model)) => {
                (&mut own.headers, &model.headers)
            }
            (TransportSpec::Stdio(own), TransportSpec::Stdio(model)) => (&mut own.env, &model.env),
            (TransportSpec::UnixSocket(own), TransportSpec::UnixSocket(model)) => {
                (&mut own.headers, &model.headers)
            }
            _ => return,
        };
        let place = |one: &NamedSecret| model.iter().position(|other| other.name == one.name);
        own.sort_by_key(|one| place(one).unwrap_or(usize::MAX));
    }

    /// A copy whose secret values are empty.
    #[must_use]
    pub fn without_secrets(&self) -> Self {
        let mut spec = self.clone();
        for secret in spec.secrets_mut() {
            secret.value = Secret::default();
        }
        spec
    }

    /// Everything secret in it, in order: headers or environment variables, then keys, then what authorizes. New kinds
    /// go to the end: stored values are found by their place.
    #[must_use]
    pub fn secrets(&self) -> Vec<&NamedSecret> {
        let (named, key) = match &self.transport {
            TransportSpec::Http(http) => (&http.headers, http.certificate.as_ref()),
            TransportSpec::Stdio(stdio) => (&stdio.env, None),
            TransportSpec::UnixSocket(socket) => (&socket.headers, None),
        };
        let key = key.map(|certificate| &certificate.private_key);
        let all = named.iter().chain(key);
        all.chain(self.auth.secrets()).collect()
    }

    /// Everything secret in it, in the same order, to fill in values.
    #[must_use]
    pub fn secrets_mut(&mut self) -> Vec<&mut NamedSecret> {
        let (named, key) = match &mut self.transport {
            TransportSpec::Http(http) => (&mut http.headers, http.certificate.as_mut()),
            TransportSpec::Stdio(stdio) => (&mut stdio.env, None),
            TransportSpec::UnixSocket(socket) => (&mut socket.headers, None),
        };
        let key = key.map(|certificate| &mut certificate.private_key);
        let all = named.iter_mut().chain(key);
        all.chain(self.auth.secrets_mut()).collect()
    }

    /// What makes two registrations the same server beside the name: the URL, the command line, or the
    /// socket (row A3).
    #[must_use]
    pub fn target(&self) -> String {
        match &self.transport {
            TransportSpec::Http(http) => http.url.to_string(),
            TransportSpec::Stdio(stdio) => {
                let mut words = vec![stdio.command.as_str()];
                words.extend(stdio.args.iter().map(String::as_str));
                format!("stdio:{}", words.join("\u{1f}"))
            }
            TransportSpec::UnixSocket(socket) => match socket.protocol {
                UnixProtocol::Http => format!("unix:{}\u{1f}{}", socket.path, socket.http_path),
                UnixProtocol::Ndjson => format!("unix:{}", socket.path),
            },
        }
    }

    /// How an HTTP transport is chosen; `None` for other transports.
    #[must_use]
    pub fn http_mode(&self) -> Option<HttpMode> {
        match &self.transport {
            TransportSpec::Http(http) => Some(http.mode),
            TransportSpec::Stdio(_) | TransportSpec::UnixSocket(_) => None,
        }
    }

    /// Identifies what era detection probes: target, pin and a chosen transport. A kept verdict with another fingerprint is
    /// void.
    #[must_use]
    pub fn target_fingerprint(&self) -> String {
        let mode = match self.http_mode() {
            None | Some(HttpMode::Auto) => "",
            Some(HttpMode::StreamableHttp) => "\u{1e}streamable",
            Some(HttpMode::Sse) => "\u{1e}sse",
        };
        format!(
            "{}\u{1e}{}{mode}",
            self.target(),
            self.protocol_version.as_deref().unwrap_or("")
        )
    }
}

/// Longest server id.
pub const MAX_ID: usize = 64;

/// Normalises a wanted server id (design section 7): lower case, runs of other characters to one `-`, trimmed, starting
/// with a letter, at most 64 characters. Idempotent and never empty: an id with nothing usable becomes a hash of itself.
#[must_use]
pub fn normalize_id(wanted: &str) -> ServerId {
    let mut id = String::with_capacity(wanted.len().min(MAX_ID));
    for c in wanted.chars().flat_map(char::to_lowercase) {
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            id.push(c);
        } else if !id.is_empty() && !id.ends_with('-') {
            id.push('-');
        }
    }
    let usable = id.trim_matches('-');
    if usable.is_empty() {
        return ServerId::new(format!("s-{}", short_hash(wanted)));
    }
    let mut id = if usable.starts_with(|c: char| c.is_ascii_digit()) {
        format!("s-{usable}")
    } else {
        usable.to_owned()
    };
    if id.len() > MAX_ID {
        let suffix = short_hash(&id);
        id.truncate(MAX_ID - suffix.len() - 1);
        id = format!("{}-{suffix}", id.trim_end_matches('-'));
    }
    ServerId::new(id)
}

/// Ten hexadecimal digits that identify a text: stable over restarts and machines.
#[must_use]
pub fn short_hash(text: &str) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    let head = digest
        .as_ref()
        .iter()
        .take(5)
        .fold(0_u64, |head, byte| (head << 8) | u64::from(*byte));
    format!("{head:010x}")
}

/// Checks and normalises the URL of an MCP endpoint (row A4, behaviour 46). Host case, punycode, default port, `..` and
/// the empty path are normalised by the URL standard; path case, query and trailing slash stay.
///
/// # Errors
/// INVALID_FIELD for anything but an absolute `http:` or `https:` URL without user info; a fragment is refused too,
/// because it would never be sent.
pub fn normalize_url(text: &str, field: &'static str) -> Result<Url> {
    let url = Url::parse(text)
        .map_err(|cause| Error::invalid(field, format!("`{text}` is not a URL: {cause}")))?;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Error::invalid(
            field,
            format!(
                "the scheme of `{text}` must be `https` or `http`, not `{}`",
                url.scheme()
            ),
        ));
    }
    if url.host_str().is_none_or(str::is_empty) {
        return Err(Error::invalid(field, format!("`{text}` names no host")));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Error::invalid(
            field,
            "the URL must not hold a user name or password; send credentials as a header",
        ));
    }
    if url.fragment().is_some() {
        return Err(Error::invalid(
            field,
            format!("`{url}` must not have a fragment"),
        ));
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, proptest};

    use super::{MAX_ID, normalize_id, normalize_url};

    fn check(wanted: &str, expected: &str) {
        assert_eq!(normalize_id(wanted).as_str(), expected);
    }

    #[test]
    fn ids_are_readable_where_possible() {
        check("GitHub MCP!", "github-mcp");
        check("--a__b--", "a-b");
        check("7zip", "s-7zip");
        assert_ne!(normalize_id("!!!"), normalize_id("???"));
    }

    #[test]
    fn urls_that_mean_the_same_are_the_same() {
        let url = |text: &str| normalize_url(text, "url").map(|url| url.to_string());
        assert_eq!(url("HTTPS://EXAMPLE.com:443"), url("https://example.com/"));
        assert_eq!(
            url("https://example.com/a/../B?x=1"),
            url("https://example.com/B?x=1")
        );
        assert_ne!(url("https://example.com/b/"), url("https://example.com/b"));
        assert_eq!(
            url("https://bücher.example/"),
            url("https://xn--bcher-kva.example")
        );
        for bad in [
            "file:///etc/passwd",
            "nonsense",
            "https://u:p@h/",
            "http://",
            "https://h/#f",
        ] {
            assert!(url(bad).is_err(), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn normalising_an_id_twice_changes_nothing(text in any::<String>()) {
            let once = normalize_id(&text);
            assert_eq!(normalize_id(once.as_str()), once);
            assert!(!once.as_str().is_empty() && once.as_str().len() <= MAX_ID);
            assert!(once.as_str().starts_with(|c: char| c.is_ascii_lowercase()));
        }
    }
}
