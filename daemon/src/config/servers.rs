//! A server as an operator writes it, in `[[servers]]` of the configuration and in the documents of ImportServers: settings with
//! plain names, and secrets that are named by where they are.
//!
//! From here to a registration and back. Reads no file: whoever has the right to opens what is named.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::{Deserialize, Deserializer, Serialize, de};

use super::duration;
use crate::base::{Namespace, Secret};
use crate::error::{Error, Result};
use crate::model::approval::Approval;
use crate::model::auth::{AuthMethod, AuthSpec, ClientSpec, CodeSpec, DpopMode, Scopes};
use crate::model::rules::ToolRules;
use crate::model::spec::{
    ClientCapabilities, HttpMode, HttpSpec, Isolation, LogLevel, NamedSecret, QuestionPolicy,
    RetryPolicy, Root, ServerSpec, StdioSpec, Timeouts, TransportSpec, Unattended, UnixProtocol,
    UnixSocketSpec, normalize_url,
};

/// A server in the configuration. Exactly one of `url`, `command` and `unix_socket` is given.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerConfig {
    /// The namespace. Default `default`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Its id, in its final form: lower-case letters, digits and single hyphens.
    pub id: String,
    /// Name for people. Default: the id.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The URL of a server over HTTP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Which HTTP transport it speaks: `"auto"` (default), `"streamable_http"` or `"sse"`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub transport: HttpMode,
    /// Headers of every request.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, SecretSource>,
    /// The program of a server that is a child process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// Its arguments.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub args: Vec<String>,
    /// Its environment.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, SecretSource>,
    /// Its working directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// The path of a server on a Unix socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unix_socket: Option<String>,
    /// What is spoken on it: `"http"` (default) or `"ndjson"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<UnixProtocol>,
    /// The path of the endpoint behind it. Default `/mcp`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_path: Option<String>,
    /// Whether it is connected when it is registered. Default true.
    #[serde(default = "yes", skip_serializing_if = "is_yes")]
    pub connect: bool,
    /// Pinned protocol version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol_version: Option<String>,
    /// What it may ask for. Default: what somebody can answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<ClientCapabilities>,
    /// Directories it may ask for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub roots: Vec<Root>,
    /// Which apps share a session: `"shared"` (default), `"per_user"` or `"per_connection"`.
    #[serde(default, skip_serializing_if = "is_default")]
    pub isolation: Isolation,
    /// Level from which log messages are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_level: Option<LogLevel>,
    /// Whether structured results are checked. Default false.
    #[serde(default, skip_serializing_if = "is_default")]
    pub check_results: bool,
    /// Patterns of the tools that may be used. Default: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub allowed_tools: Vec<String>,
    /// Patterns of the tools that may not be used.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub denied_tools: Vec<String>,
    /// How a failed connection is tried again.
    #[serde(default, skip_serializing_if = "is_default")]
    pub retry: RetryConfig,
    /// Bounds on waiting.
    #[serde(default, skip_serializing_if = "is_default")]
    pub timeouts: ServerTimeoutConfig,
    /// What becomes of its questions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub questions: ServerQuestionConfig,
    /// Which calls need somebody's consent.
    #[serde(default, skip_serializing_if = "is_default")]
    pub approval: Approval,
    /// How the daemon gets authorized.
    #[serde(default, skip_serializing_if = "is_default")]
    pub authorization: AuthorizationConfig,
}

/// How a failed connection of a server is tried again.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RetryConfig {
    /// Quick attempts per connect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// Upper bound of the first delay.
    #[serde(with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub base_delay: Option<Duration>,
    /// Upper bound of every delay between quick attempts.
    #[serde(with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub max_delay: Option<Duration>,
}

/// Bounds on waiting for a server. Default: those of section `timeouts`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerTimeoutConfig {
    /// Opening the transport, finding the era and the handshake.
    #[serde(with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub connect: Option<Duration>,
    /// Silence during a call.
    #[serde(with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub call_idle: Option<Duration>,
    /// A call as a whole.
    #[serde(with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub call: Option<Duration>,
}

/// What becomes of the questions of a server. Default: as section `questions` says.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ServerQuestionConfig {
    /// Those that come while nobody is there who can answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unattended: Option<Unattended>,
    /// How long those to people stay open.
    #[serde(with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub elicitation_expiry: Option<Duration>,
    /// How long those for a language model stay open.
    #[serde(with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub sampling_expiry: Option<Duration>,
    /// How long a call waits for an approval.
    #[serde(with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub approval_expiry: Option<Duration>,
}

/// The ways to get authorized that can be written down.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthorizationMethod {
    /// A user signs in.
    #[default]
    User,
    /// The daemon signs in as itself, with `client_id` and `client_secret` or `private_key`.
    ClientCredentials,
    /// A token that somebody else looks after, in `token`.
    Bearer,
    /// None.
    None,
}

/// How the daemon gets authorized at a server.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuthorizationConfig {
    /// The way. Default `"user"`.
    pub method: AuthorizationMethod,
    /// The client to be, where that was agreed beforehand.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub client_id: String,
    /// Its secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_secret: Option<SecretSource>,
    /// Its private key, in PEM form.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key: Option<SecretSource>,
    /// The token of method `"bearer"`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub token: Option<SecretSource>,
    /// Scopes to ask for instead of those that the server names.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// The issuer that the authorization server must have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
}

/// Where a value is that may be secret.
#[derive(Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum SecretSource {
    /// Here; then it is no secret.
    Here(String),
    /// Elsewhere.
    In(SecretPlace),
}

/// A file, or a credential of the service manager, with a secret in it. A line end after it does not belong to it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SecretPlace {
    /// The file; absolute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<PathBuf>,
    /// The credential (`LoadCredential=` in the unit).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
    /// What is put before it, for example `"Bearer "`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub prefix: String,
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // What others have written into their documents is not ours to show.
            Self::Here(_) => f.write_str("Here(***)"),
            Self::In(place) => f.debug_tuple("In").field(place).finish(),
        }
    }
}

impl<'de> Deserialize<'de> for SecretSource {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl<'de> de::Visitor<'de> for Visitor {
            type Value = SecretSource;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("text, { file = \"...\" } or { credential = \"...\" }")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<SecretSource, E> {
                Ok(SecretSource::Here(text.to_owned()))
            }

            fn visit_map<A: de::MapAccess<'de>>(self, map: A) -> Result<SecretSource, A::Error> {
                SecretPlace::deserialize(MapAccessDeserializer::new(map)).map(SecretSource::In)
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

fn yes() -> bool {
    true
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde wants a reference")]
fn is_yes(value: &bool) -> bool {
    *value
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Opens what a source names; the second argument says what it is for.
pub type Open<'a> = &'a mut dyn FnMut(&SecretSource, &str) -> Result<Secret<String>>;

impl ServerConfig {
    /// The namespace that it is in.
    #[must_use]
    pub fn namespace(&self) -> Namespace {
        if self.namespace.is_empty() {
            Namespace::default()
        } else {
            Namespace::new(self.namespace.as_str())
        }
    }

    /// The registration. What it says is checked by the registry.
    ///
    /// # Errors
    /// `INVALID_FIELD` with the key for what cannot be expressed, and the errors of `open`.
    pub fn to_spec(&self, open: Open<'_>) -> Result<ServerSpec> {
        Ok(ServerSpec {
            name: self.name.clone().unwrap_or_else(|| self.id.clone()),
            transport: self.transport_spec(open)?,
            protocol_version: self.protocol_version.clone(),
            capabilities: self.capabilities.clone(),
            roots: self.roots.clone(),
            isolation: self.isolation,
            log_level: self.log_level,
            retry: self.retry_policy(),
            timeouts: Timeouts {
                connect: self.timeouts.connect,
                call_idle: self.timeouts.call_idle,
                call: self.timeouts.call,
            },
            tools: ToolRules {
                allowed: self.allowed_tools.clone(),
                denied: self.denied_tools.clone(),
            },
            check_results: self.check_results,
            approval: self.approval.clone(),
            auth: self.authorization.to_spec(open)?,
            questions: QuestionPolicy {
                unattended: self.questions.unattended,
                elicitation_expiry: self.questions.elicitation_expiry,
                sampling_expiry: self.questions.sampling_expiry,
                approval_expiry: self.questions.approval_expiry,
            },
        })
    }

    fn transport_spec(&self, open: Open<'_>) -> Result<TransportSpec> {
        let none = "give exactly one of `url`, `command` and `unix_socket`";
        let stray = |key: &str, of: &str| {
            Error::invalid(
                key.to_owned(),
                format!("`{key}` belongs to servers with `{of}`"),
            )
        };
        let http_only = |key: &str| stray(key, "url");
        if self.command.is_none() {
            for (key, given) in [
                ("args", !self.args.is_empty()),
                ("env", !self.env.is_empty()),
                ("cwd", self.cwd.is_some()),
            ] {
                if given {
                    return Err(stray(key, "command"));
                }
            }
        }
        if self.unix_socket.is_none() {
            for (key, given) in [
                ("protocol", self.protocol.is_some()),
                ("http_path", self.http_path.is_some()),
            ] {
                if given {
                    return Err(stray(key, "unix_socket"));
                }
            }
        }
        if self.url.is_none() && self.transport != HttpMode::Auto {
            return Err(http_only("transport"));
        }
        match (&self.url, &self.command, &self.unix_socket) {
            (Some(url), None, None) => Ok(TransportSpec::Http(HttpSpec {
                url: normalize_url(url, "url")?,
                headers: named(&self.headers, "headers", open)?,
                mode: self.transport,
                certificate: None,
            })),
            (None, Some(command), None) => {
                if !self.headers.is_empty() {
                    return Err(http_only("headers"));
                }
                Ok(TransportSpec::Stdio(StdioSpec {
                    command: command.clone(),
                    args: self.args.clone(),
                    env: named(&self.env, "env", open)?,
                    cwd: self.cwd.clone(),
                }))
            }
            (None, None, Some(path)) => {
                let protocol = self.protocol.unwrap_or(UnixProtocol::Http);
                let usual = match protocol {
                    UnixProtocol::Http => "/mcp",
                    UnixProtocol::Ndjson => "",
                };
                Ok(TransportSpec::UnixSocket(UnixSocketSpec {
                    path: path.clone(),
                    protocol,
                    http_path: self.http_path.clone().unwrap_or_else(|| usual.to_owned()),
                    headers: named(&self.headers, "headers", open)?,
                }))
            }
            _ => Err(Error::invalid("url", none)),
        }
    }

    fn retry_policy(&self) -> RetryPolicy {
        let usual = RetryPolicy::default();
        RetryPolicy {
            max_attempts: self.retry.max_attempts.unwrap_or(usual.max_attempts),
            base_delay: self.retry.base_delay.unwrap_or(usual.base_delay),
            max_delay: self.retry.max_delay.unwrap_or(usual.max_delay),
        }
    }

    /// A registration as it would be written; `secret` says what is written in place of the secret of a setting. What cannot
    /// be written is left out: [`ServerConfig::to_spec`] then gives something else.
    pub fn of(
        id: &str,
        spec: &ServerSpec,
        connect: bool,
        secret: &mut dyn FnMut(&str) -> SecretSource,
    ) -> Self {
        let usual = RetryPolicy::default();
        let mut named = |list: &[NamedSecret], kind: &str| {
            let entries = list.iter();
            let entries =
                entries.map(|one| (one.name.clone(), secret(&format!("{kind}.{}", one.name))));
            entries.collect::<BTreeMap<_, _>>()
        };
        let mut config = Self {
            id: id.to_owned(),
            name: (spec.name != id).then(|| spec.name.clone()),
            connect,
            protocol_version: spec.protocol_version.clone(),
            capabilities: spec.capabilities.clone(),
            roots: spec.roots.clone(),
            isolation: spec.isolation,
            log_level: spec.log_level,
            check_results: spec.check_results,
            allowed_tools: spec.tools.allowed.clone(),
            denied_tools: spec.tools.denied.clone(),
            retry: RetryConfig {
                max_attempts: Some(spec.retry.max_attempts)
                    .filter(|attempts| *attempts != usual.max_attempts),
                base_delay: Some(spec.retry.base_delay).filter(|delay| *delay != usual.base_delay),
                max_delay: Some(spec.retry.max_delay).filter(|delay| *delay != usual.max_delay),
            },
            timeouts: ServerTimeoutConfig {
                connect: spec.timeouts.connect,
                call_idle: spec.timeouts.call_idle,
                call: spec.timeouts.call,
            },
            questions: ServerQuestionConfig {
                unattended: spec.questions.unattended,
                elicitation_expiry: spec.questions.elicitation_expiry,
                sampling_expiry: spec.questions.sampling_expiry,
                approval_expiry: spec.questions.approval_expiry,
            },
            approval: spec.approval.clone(),
            ..Self::default()
        };
        match &spec.transport {
            TransportSpec::Http(http) => {
                config.url = Some(http.url.to_string());
                config.transport = http.mode;
                config.headers = named(&http.headers, "headers");
            }
            TransportSpec::Stdio(stdio) => {
                config.command = Some(stdio.command.clone());
                config.args.clone_from(&stdio.args);
                config.env = named(&stdio.env, "env");
                config.cwd.clone_from(&stdio.cwd);
            }
            TransportSpec::UnixSocket(socket) => {
                config.unix_socket = Some(socket.path.clone());
                config.protocol = Some(socket.protocol);
                config.http_path = Some(socket.http_path.clone());
                config.headers = named(&socket.headers, "headers");
            }
        }
        config.authorization = AuthorizationConfig::of(&spec.auth, secret);
        config
    }
}

fn named(
    sources: &BTreeMap<String, SecretSource>,
    kind: &str,
    open: Open<'_>,
) -> Result<Vec<NamedSecret>> {
    let sources = sources.iter();
    let opened = sources.map(|(name, source)| {
        Ok(NamedSecret {
            name: name.clone(),
            value: open(source, &format!("{kind}.{name}"))?,
        })
    });
    opened.collect()
}

impl AuthorizationConfig {
    fn to_spec(&self, open: Open<'_>) -> Result<AuthSpec> {
        // No header and no variable has such a name.
        let mut secret = |source: &Option<SecretSource>, key: &str, name: &str| {
            let source = source.as_ref();
            let opened: Option<Result<_>> = source.map(|source| {
                Ok(NamedSecret {
                    name: format!("authorization/{name}"),
                    value: open(source, &format!("authorization.{key}"))?,
                })
            });
            opened.transpose()
        };
        let client = ClientSpec {
            client_id: self.client_id.clone(),
            secret: secret(&self.client_secret, "client_secret", "client/client_secret")?,
            private_key: secret(&self.private_key, "private_key", "client/private_key")?,
            algorithm: None,
            auth: None,
        };
        let token = secret(&self.token, "token", "token")?;
        let has_client = client != ClientSpec::default();
        let stray = |key: &'static str| {
            let text = format!("`{key}` is of no use with this `authorization.method`");
            Error::invalid(format!("authorization.{key}"), text)
        };
        let method = match (self.method, token) {
            (AuthorizationMethod::Bearer, Some(token)) => {
                if has_client {
                    return Err(stray("client_id"));
                }
                AuthMethod::Bearer(token)
            }
            (AuthorizationMethod::Bearer, None) => {
                return Err(Error::invalid("authorization.token", "give the token"));
            }
            (_, Some(_)) => return Err(stray("token")),
            (AuthorizationMethod::User, None) => AuthMethod::AuthorizationCode(CodeSpec {
                client: has_client.then_some(client),
                ..CodeSpec::default()
            }),
            (AuthorizationMethod::ClientCredentials, None) => AuthMethod::ClientCredentials(client),
            (AuthorizationMethod::None, None) if has_client => return Err(stray("client_id")),
            (AuthorizationMethod::None, None) => AuthMethod::None,
        };
        Ok(AuthSpec {
            method,
            scopes: self.scopes.iter().cloned().collect::<Scopes>(),
            issuer: self.issuer.clone(),
            dpop: DpopMode::Auto,
        })
    }

    fn of(spec: &AuthSpec, secret: &mut dyn FnMut(&str) -> SecretSource) -> Self {
        let mut config = Self {
            scopes: spec.scopes.to_vec(),
            issuer: spec.issuer.clone(),
            ..Self::default()
        };
        let client = match &spec.method {
            AuthMethod::AuthorizationCode(code) => code.client.as_ref(),
            AuthMethod::ClientCredentials(client) => {
                config.method = AuthorizationMethod::ClientCredentials;
                Some(client)
            }
            AuthMethod::Bearer(_) => {
                config.method = AuthorizationMethod::Bearer;
                config.token = Some(secret("authorization.token"));
                None
            }
            AuthMethod::None => {
                config.method = AuthorizationMethod::None;
                None
            }
            // These have no form here.
            AuthMethod::EnterpriseManaged(_) | AuthMethod::WorkloadIdentity(_) => None,
        };
        if let Some(client) = client {
            config.client_id.clone_from(&client.client_id);
            let given = client.secret.as_ref();
            config.client_secret = given.map(|_| secret("authorization.client_secret"));
            let given = client.private_key.as_ref();
            config.private_key = given.map(|_| secret("authorization.private_key"));
        }
        config
    }
}
