//! What can go wrong, as the daemon's parts report it to each other and, through `api::status`, to apps.
//!
//! Knows no tonic and no protobuf. A message says what is wrong, with which value, and what to do; it never holds a
//! secret. Reasons are part of the contract: they are added, never renamed.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Result of most operations of the daemon.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The reason code of an [`Error`]; apps see it as `google.rpc.ErrorInfo.reason` in `UPPER_SNAKE` form.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// A field, URL, JSON text or argument is not acceptable.
    InvalidField,
    /// The caller may not use this namespace.
    CallerNotAllowed,
    /// The request came over TCP without a valid token.
    AppTokenRequired,
    /// The registration of the server keeps this tool from apps.
    ToolNotAllowed,
    /// The address policy refuses a destination.
    DestinationBlocked,
    /// No server was ever registered in this namespace.
    NamespaceNotFound,
    /// No such server in the namespace.
    ServerNotFound,
    /// The server has no such tool, or offers none under this name.
    ToolNotFound,
    /// The settings of the server let nobody make this call, or whoever was asked did not agree to it.
    CallNotApproved,
    /// No such question, or its end is long past.
    ElicitationNotFound,
    /// No such call, it was not kept, or its end is long past.
    CallNotFound,
    /// No such request for an answer of a model, or its end is long past.
    SamplingRequestNotFound,
    /// No such token of an app.
    AppTokenNotFound,
    /// The wanted id belongs to another server.
    ServerIdTaken,
    /// The MCP server wants the user to sign in.
    SignInRequired,
    /// No such sign-in, or its end is long past.
    SignInNotFound,
    /// The authorization server refused a sign-in, or its answer was not acceptable.
    SignInFailed,
    /// An authorization server refuses what the daemon was given to get authorized without a user; or there is no way to
    /// become its client.
    CredentialsRefused,
    /// A sign-in granted less than the server wants.
    ScopeNotGranted,
    /// The authorization server cannot be reached now, or not be understood; what was granted is kept.
    AuthorizationUnavailable,
    /// The server is disconnected on purpose.
    NotConnected,
    /// The server does not offer what was asked for.
    NotSupported,
    /// The server asked for something that nobody gave, and that cannot be said to it.
    InputDeclined,
    /// The question, call or sign-in has ended already.
    AlreadyResolved,
    /// The server was removed, or its connection replaced, while the operation ran.
    Superseded,
    /// The server cannot be reached now.
    UpstreamUnreachable,
    /// The peer does not speak MCP as far as can be told.
    NotAnMcpServer,
    /// The peer broke the protocol.
    UpstreamProtocol,
    /// The request was sent and no answer came back.
    OutcomeUnknown,
    /// The server did not answer in the time that was given to it.
    UpstreamTimeout,
    /// The deadline of the RPC is over.
    DeadlineExceeded,
    /// The caller went away or cancelled.
    Cancelled,
    /// The daemon is stopping.
    Draining,
    /// The etag is not the current one.
    EtagMismatch,
    /// Too many calls are running.
    TooManyCalls,
    /// Too many servers, questions or subscribers exist.
    TooMany,
    /// A message is larger than the limit.
    MessageTooLarge,
    /// The resume token's position is no longer kept.
    ResumeTokenExpired,
    /// The server answered with a JSON-RPC error.
    UpstreamError,
    /// The store failed: disk full, read-only, corrupt.
    StoreFailed,
    /// A fault of the daemon itself.
    Internal,
}

impl Reason {
    /// Every reason, for the table test of `api::status`.
    pub const ALL: &'static [Self] = &[
        Self::InvalidField,
        Self::CallerNotAllowed,
        Self::AppTokenRequired,
        Self::ToolNotAllowed,
        Self::DestinationBlocked,
        Self::NamespaceNotFound,
        Self::ServerNotFound,
        Self::ToolNotFound,
        Self::CallNotApproved,
        Self::ElicitationNotFound,
        Self::CallNotFound,
        Self::SamplingRequestNotFound,
        Self::AppTokenNotFound,
        Self::ServerIdTaken,
        Self::SignInRequired,
        Self::SignInNotFound,
        Self::SignInFailed,
        Self::CredentialsRefused,
        Self::ScopeNotGranted,
        Self::AuthorizationUnavailable,
        Self::NotConnected,
        Self::NotSupported,
        Self::InputDeclined,
        Self::AlreadyResolved,
        Self::Superseded,
        Self::UpstreamUnreachable,
        Self::NotAnMcpServer,
        Self::UpstreamProtocol,
        Self::OutcomeUnknown,
        Self::UpstreamTimeout,
        Self::DeadlineExceeded,
        Self::Cancelled,
        Self::Draining,
        Self::EtagMismatch,
        Self::TooManyCalls,
        Self::TooMany,
        Self::MessageTooLarge,
        Self::ResumeTokenExpired,
        Self::UpstreamError,
        Self::StoreFailed,
        Self::Internal,
    ];

    /// The code as apps see it.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidField => "INVALID_FIELD",
            Self::CallerNotAllowed => "CALLER_NOT_ALLOWED",
            Self::AppTokenRequired => "APP_TOKEN_REQUIRED",
            Self::ToolNotAllowed => "TOOL_NOT_ALLOWED",
            Self::DestinationBlocked => "DESTINATION_BLOCKED",
            Self::NamespaceNotFound => "NAMESPACE_NOT_FOUND",
            Self::ServerNotFound => "SERVER_NOT_FOUND",
            Self::ToolNotFound => "TOOL_NOT_FOUND",
            Self::CallNotApproved => "CALL_NOT_APPROVED",
            Self::ElicitationNotFound => "ELICITATION_NOT_FOUND",
            Self::CallNotFound => "CALL_NOT_FOUND",
            Self::SamplingRequestNotFound => "SAMPLING_REQUEST_NOT_FOUND",
            Self::AppTokenNotFound => "APP_TOKEN_NOT_FOUND",
            Self::ServerIdTaken => "SERVER_ID_TAKEN",
            Self::SignInRequired => "SIGN_IN_REQUIRED",
            Self::SignInNotFound => "SIGN_IN_NOT_FOUND",
            Self::SignInFailed => "SIGN_IN_FAILED",
            Self::CredentialsRefused => "CREDENTIALS_REFUSED",
            Self::ScopeNotGranted => "SCOPE_NOT_GRANTED",
            Self::AuthorizationUnavailable => "AUTHORIZATION_UNAVAILABLE",
            Self::NotConnected => "NOT_CONNECTED",
            Self::NotSupported => "NOT_SUPPORTED",
            Self::InputDeclined => "INPUT_DECLINED",
            Self::AlreadyResolved => "ALREADY_RESOLVED",
            Self::Superseded => "SUPERSEDED",
            Self::UpstreamUnreachable => "UPSTREAM_UNREACHABLE",
            Self::NotAnMcpServer => "NOT_AN_MCP_SERVER",
            Self::UpstreamProtocol => "UPSTREAM_PROTOCOL",
            Self::OutcomeUnknown => "OUTCOME_UNKNOWN",
            Self::UpstreamTimeout => "UPSTREAM_TIMEOUT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::Cancelled => "CANCELLED",
            Self::Draining => "DRAINING",
            Self::EtagMismatch => "ETAG_MISMATCH",
            Self::TooManyCalls => "TOO_MANY_CALLS",
            Self::TooMany => "TOO_MANY",
            Self::MessageTooLarge => "MESSAGE_TOO_LARGE",
            Self::ResumeTokenExpired => "RESUME_TOKEN_EXPIRED",
            Self::UpstreamError => "UPSTREAM_ERROR",
            Self::StoreFailed => "STORE_FAILED",
            Self::Internal => "INTERNAL",
        }
    }
}

impl Serialize for Reason {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Reason {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let code = String::deserialize(deserializer)?;
        let mut all = Self::ALL.iter();
        // One that another version of the daemon had.
        Ok(*all
            .find(|reason| reason.as_str() == code)
            .unwrap_or(&Self::Internal))
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A JSON-RPC error object as the MCP server sent it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RpcError {
    /// The code, for example -32602.
    pub code: i64,
    /// The server's message.
    pub message: String,
    /// The `data` member as raw JSON, if any.
    pub data: Option<String>,
}

/// One field of a request that is not acceptable.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Violation {
    /// Its path in the request message.
    pub field: Cow<'static, str>,
    /// What is wrong with it, for people. Never a secret.
    pub message: String,
}

impl Violation {
    /// Says what is wrong with a field.
    pub fn new(field: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            message: message.into(),
        }
    }
}

/// What went wrong. Cheap to move; clone it to hand the same failure to several waiters.
///
/// Serialises for the outcome of a call that is kept.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Error(Box<Inner>);

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
struct Inner {
    reason: Reason,
    message: String,
    violations: Vec<Violation>,
    facts: Vec<(Cow<'static, str>, String)>,
    retry_after: Option<Duration>,
    rpc: Option<RpcError>,
}

impl Error {
    /// An error with a message for people.
    pub fn new(reason: Reason, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            reason,
            message: message.into(),
            violations: Vec::new(),
            facts: Vec::new(),
            retry_after: None,
            rpc: None,
        }))
    }

    /// A field of the request is not acceptable. `field` is its path in the request message.
    pub fn invalid(field: impl Into<Cow<'static, str>>, message: impl Into<String>) -> Self {
        let message = message.into();
        let violation = Violation::new(field, message.as_str());
        Self::invalid_fields(message, vec![violation])
    }

    /// Several fields of the request are not acceptable: a message for all of them, and one for each, in the order of
    /// their importance (what does not fit into a status is left out from the end).
    pub fn invalid_fields(message: impl Into<String>, violations: Vec<Violation>) -> Self {
        let mut error = Self::new(Reason::InvalidField, message);
        error.0.violations = violations;
        error
    }

    /// A fault of the daemon itself.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(Reason::Internal, message)
    }

    /// The server answered with a JSON-RPC error.
    #[must_use]
    pub fn upstream(rpc: RpcError) -> Self {
        let message = format!(
            "the server answered with error {}: {}",
            rpc.code, rpc.message
        );
        let mut error = Self::new(Reason::UpstreamError, message);
        error.0.rpc = Some(rpc);
        error
    }

    /// Adds a fact for programs; keys are `lower_snake`. Never a secret.
    #[must_use]
    pub fn with(mut self, key: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Self {
        self.0.facts.push((key.into(), value.into()));
        self
    }

    /// Says when another attempt makes sense.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.0.retry_after = Some(delay);
        self
    }

    /// The same error with every text that may come from outside passed through `change`.
    #[must_use]
    pub fn map_texts(mut self, change: impl Fn(&str) -> String) -> Self {
        self.0.message = change(&self.0.message);
        for (_, value) in &mut self.0.facts {
            *value = change(value);
        }
        if let Some(rpc) = &mut self.0.rpc {
            rpc.message = change(&rpc.message);
            rpc.data = rpc.data.take().map(|data| change(&data));
        }
        self
    }

    /// The reason code.
    #[must_use]
    pub fn reason(&self) -> Reason {
        self.0.reason
    }

    /// The message for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Path of the offending request field; of the first one, if there are several.
    #[must_use]
    pub fn field(&self) -> Option<&str> {
        let first = self.0.violations.first();
        first.map(|violation| violation.field.as_ref())
    }

    /// All offending request fields.
    #[must_use]
    pub fn violations(&self) -> &[Violation] {
        &self.0.violations
    }

    /// Facts for programs.
    #[must_use]
    pub fn facts(&self) -> &[(Cow<'static, str>, String)] {
        &self.0.facts
    }

    /// The HTTP status behind it: the fact `http_status`.
    #[must_use]
    pub fn http_status(&self) -> Option<u16> {
        let mut facts = self.0.facts.iter();
        let (_, status) = facts.find(|(key, _)| *key == "http_status")?;
        status.parse().ok()
    }

    /// When another attempt makes sense.
    #[must_use]
    pub fn retry_delay(&self) -> Option<Duration> {
        self.0.retry_after
    }

    /// The JSON-RPC error behind [`Reason::UpstreamError`].
    #[must_use]
    pub fn rpc(&self) -> Option<&RpcError> {
        self.0.rpc.as_ref()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.message)
    }
}

impl std::error::Error for Error {}
