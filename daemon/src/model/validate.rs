//! What a registration must satisfy before it is stored. Names the field, the value and the remedy; never a secret.

mod auth;

use std::borrow::Cow;
use std::time::Duration;

use url::Url;

use crate::error::{Error, Result};
use crate::model::spec::{
    ClientCapabilities, HttpSpec, NamedSecret, QuestionPolicy, ServerSpec, StdioSpec, Timeouts,
    TransportSpec, UnixProtocol, UnixSocketSpec,
};

/// Longest name, in characters.
const MAX_NAME: usize = 128;
/// Longest URL, in bytes.
const MAX_URL: usize = 8 * 1024;
/// Longest text of any other field, in bytes.
const MAX_TEXT: usize = 32 * 1024;
/// Most headers, variables, arguments or roots.
const MAX_LIST: usize = 256;
/// Longest path of a socket that the system takes, in bytes.
const MAX_SOCKET_PATH: usize = 107;
/// Longest time in which a question can be answered.
const MAX_EXPIRY: Duration = Duration::from_hours(720);
/// Headers that the protocol or HTTP itself owns.
const OWN_HEADERS: &[&str] = &[
    "accept",
    "connection",
    "content-length",
    "content-type",
    "host",
    "last-event-id",
    "mcp-method",
    "mcp-name",
    "mcp-protocol-version",
    "mcp-session-id",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Checks a registration.
///
/// # Errors
/// `INVALID_FIELD` with the path of the first field that is not acceptable.
pub fn check_spec(spec: &ServerSpec, known_versions: &[&str]) -> Result<()> {
    let length = spec.name.chars().count();
    if length == 0 || length > MAX_NAME || spec.name.chars().any(char::is_control) {
        return Err(Error::invalid(
            "spec.name",
            format!("the name must be 1 to {MAX_NAME} characters without control characters"),
        ));
    }
    match &spec.transport {
        TransportSpec::Http(http) => check_http(http)?,
        TransportSpec::Stdio(stdio) => check_stdio(stdio)?,
        TransportSpec::UnixSocket(socket) => check_socket(socket)?,
    }
    if let Some(pin) = &spec.protocol_version
        && !known_versions.contains(&pin.as_str())
    {
        return Err(Error::invalid(
            "spec.protocol_version",
            format!(
                "`{pin}` is not a version that the daemon speaks; it speaks {known_versions:?}"
            ),
        ));
    }
    if let Some(capabilities) = &spec.capabilities {
        check_capabilities(capabilities)?;
    }
    check_count("spec.roots", spec.roots.len())?;
    for root in &spec.roots {
        let short = root.uri.len() <= MAX_URL && root.name.chars().count() <= MAX_NAME;
        let is_file = short && root.uri.starts_with("file://") && Url::parse(&root.uri).is_ok();
        if !is_file {
            return Err(Error::invalid(
                "spec.roots.uri",
                format!("`{}` is not a `file:` URI", root.uri),
            ));
        }
    }
    auth::check_auth(spec)?;
    spec.tools.check()?;
    spec.approval.check()?;
    check_retry(spec)?;
    check_questions(&spec.questions)?;
    check_timeouts(&spec.timeouts)
}

/// Longest namespace, in bytes.
const MAX_NAMESPACE: usize = 64;

/// Whether this names a namespace: 1 to 64 characters of `[A-Za-z0-9._-]`.
///
/// # Errors
/// `INVALID_FIELD` `namespace`.
pub fn check_namespace(namespace: &str) -> Result<()> {
    let wrong = namespace
        .chars()
        .find(|c| !c.is_ascii_alphanumeric() && !matches!(c, '.' | '_' | '-'));
    if let Some(wrong) = wrong {
        return Err(Error::invalid(
            "namespace",
            format!(
                "namespace {:?} holds {wrong:?}; use letters, digits, `.`, `_` and `-`",
                namespace.chars().take(MAX_NAMESPACE).collect::<String>()
            ),
        ));
    }
    if namespace.len() > MAX_NAMESPACE {
        let length = namespace.len();
        return Err(Error::invalid(
            "namespace",
            format!("a namespace has at most {MAX_NAMESPACE} characters, this one has {length}"),
        ));
    }
    Ok(())
}

fn check_capabilities(capabilities: &ClientCapabilities) -> Result<()> {
    if let Some(part) = capabilities.abilities.stray_part() {
        return Err(Error::invalid(
            format!("spec.client_capabilities.{part}"),
            "it is a part of `sampling`, which is not set",
        ));
    }
    let extensions = &capabilities.extensions;
    if extensions.len() > MAX_TEXT {
        return Err(Error::invalid(
            "spec.client_capabilities.extensions_json",
            format!("it is longer than {MAX_TEXT} bytes"),
        ));
    }
    if !extensions.is_empty()
        && serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(extensions).is_err()
    {
        return Err(Error::invalid(
            "spec.client_capabilities.extensions_json",
            "it must be a JSON object from extension identifier to settings",
        ));
    }
    Ok(())
}

fn check_questions(policy: &QuestionPolicy) -> Result<()> {
    for (field, value) in [
        (
            "spec.question_policy.elicitation_expiry",
            policy.elicitation_expiry,
        ),
        (
            "spec.question_policy.sampling_expiry",
            policy.sampling_expiry,
        ),
        (
            "spec.question_policy.approval_expiry",
            policy.approval_expiry,
        ),
    ] {
        if let Some(value) = value {
            check_duration(field, value, MAX_EXPIRY)?;
        }
    }
    Ok(())
}

fn check_http(http: &HttpSpec) -> Result<()> {
    if http.url.as_str().len() > MAX_URL {
        return Err(Error::invalid(
            "spec.http.url",
            format!("it is longer than {MAX_URL} bytes"),
        ));
    }
    check_headers("spec.http.headers", &http.headers)?;
    match &http.certificate {
        Some(certificate) => auth::check_certificate(http, certificate),
        None => Ok(()),
    }
}

fn check_headers(field: &'static str, headers: &[NamedSecret]) -> Result<()> {
    check_count(field, headers.len())?;
    for header in headers {
        check_value(format!("{field}.value"), header)?;
        let name = header.name.to_ascii_lowercase();
        if http::HeaderName::try_from(name.as_str()).is_err() {
            return Err(Error::invalid(
                format!("{field}.name"),
                format!("`{}` is not a header name", header.name),
            ));
        }
        if OWN_HEADERS.contains(&name.as_str()) || name.starts_with("mcp-param-") {
            return Err(Error::invalid(
                format!("{field}.name"),
                format!(
                    "`{}` is set by the daemon itself; leave it out",
                    header.name
                ),
            ));
        }
    }
    Ok(())
}

fn check_stdio(stdio: &StdioSpec) -> Result<()> {
    let clean = |text: &str| !text.contains('\0') && text.len() <= MAX_TEXT;
    if stdio.command.is_empty() || !clean(&stdio.command) {
        return Err(Error::invalid(
            "spec.stdio.command",
            "the command must be a program's name or path",
        ));
    }
    if stdio.command.contains('/') && !stdio.command.starts_with('/') {
        return Err(Error::invalid(
            "spec.stdio.command",
            format!(
                "`{}` is a relative path; give an absolute one, or a bare name",
                stdio.command
            ),
        ));
    }
    check_count("spec.stdio.args", stdio.args.len())?;
    if !stdio.args.iter().all(|arg| clean(arg)) {
        return Err(Error::invalid(
            "spec.stdio.args",
            "an argument is too long or holds a NUL character",
        ));
    }
    check_count("spec.stdio.env", stdio.env.len())?;
    for variable in &stdio.env {
        check_value("spec.stdio.env.value", variable)?;
        let name = &variable.name;
        if name.is_empty() || name.contains(['=', '\0']) || name.len() > MAX_TEXT {
            return Err(Error::invalid(
                "spec.stdio.env.name",
                format!("`{name}` cannot be the name of an environment variable"),
            ));
        }
    }
    match &stdio.cwd {
        Some(cwd) if !cwd.starts_with('/') || !clean(cwd) => Err(Error::invalid(
            "spec.stdio.cwd",
            format!("`{cwd}` must be an absolute path"),
        )),
        _ => Ok(()),
    }
}

fn check_socket(socket: &UnixSocketSpec) -> Result<()> {
    let path = &socket.path;
    if !path.starts_with('/') || path.contains('\0') || path.len() > MAX_SOCKET_PATH {
        return Err(Error::invalid(
            "spec.unix_socket.path",
            format!("`{path}` is not an absolute path of at most {MAX_SOCKET_PATH} bytes"),
        ));
    }
    match socket.protocol {
        UnixProtocol::Http if socket.http_path.len() > MAX_URL => Err(Error::invalid(
            "spec.unix_socket.http_path",
            format!("it is longer than {MAX_URL} bytes"),
        )),
        UnixProtocol::Http => {
            socket.http_url()?;
            check_headers("spec.unix_socket.headers", &socket.headers)
        }
        UnixProtocol::Ndjson if !socket.http_path.is_empty() => Err(Error::invalid(
            "spec.unix_socket.http_path",
            "there is no HTTP on this socket; leave it out",
        )),
        UnixProtocol::Ndjson if !socket.headers.is_empty() => Err(Error::invalid(
            "spec.unix_socket.headers",
            "there is no HTTP on this socket; leave them out",
        )),
        UnixProtocol::Ndjson => Ok(()),
    }
}

fn check_value(field: impl Into<Cow<'static, str>>, secret: &NamedSecret) -> Result<()> {
    if secret.value.len() > MAX_TEXT || secret.value.has_nul() {
        return Err(Error::invalid(
            field,
            format!(
                "the value of `{}` is longer than {MAX_TEXT} bytes or holds a NUL character",
                secret.name
            ),
        ));
    }
    Ok(())
}

fn check_count(field: &'static str, count: usize) -> Result<()> {
    if count > MAX_LIST {
        return Err(Error::invalid(
            field,
            format!("{count} entries are more than {MAX_LIST}"),
        ));
    }
    Ok(())
}

fn check_retry(spec: &ServerSpec) -> Result<()> {
    let retry = &spec.retry;
    if !(1..=100).contains(&retry.max_attempts) {
        return Err(Error::invalid(
            "spec.retry.max_attempts",
            format!("{} is not within 1 to 100", retry.max_attempts),
        ));
    }
    check_duration(
        "spec.retry.base_delay",
        retry.base_delay,
        Duration::from_hours(1),
    )?;
    check_duration(
        "spec.retry.max_delay",
        retry.max_delay,
        Duration::from_hours(1),
    )?;
    if retry.max_delay < retry.base_delay {
        return Err(Error::invalid(
            "spec.retry.max_delay",
            format!(
                "{:?} is less than base_delay, {:?}",
                retry.max_delay, retry.base_delay
            ),
        ));
    }
    Ok(())
}

fn check_timeouts(timeouts: &Timeouts) -> Result<()> {
    for (field, value) in [
        ("spec.timeouts.connect", timeouts.connect),
        ("spec.timeouts.call_idle", timeouts.call_idle),
        ("spec.timeouts.call", timeouts.call),
    ] {
        if let Some(value) = value {
            check_duration(field, value, Duration::from_hours(24))?;
        }
    }
    Ok(())
}

fn check_duration(field: &'static str, value: Duration, most: Duration) -> Result<()> {
    if value < Duration::from_millis(1) || value > most {
        return Err(Error::invalid(
            field,
            format!("{value:?} is not within 1ms to {most:?}"),
        ));
    }
    Ok(())
}
