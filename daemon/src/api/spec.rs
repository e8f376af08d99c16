//! Registrations from the contract to the domain: whole ones, and changes under a field mask.

use std::time::Duration;

use mcp_sidecar_proto::v1;
use v1::server_spec::Transport;

use super::{approval, authorization, input};
use crate::base::Secret;
use crate::error::{Error, Result};
use crate::model::rules::ToolRules;
use crate::model::spec::{
    Abilities, ClientCapabilities, ClientCertificate, HttpMode, HttpSpec, Isolation, NamedSecret,
    QuestionPolicy, RetryPolicy, Root, ServerSpec, StdioSpec, Timeouts, TransportSpec, Unattended,
    UnixProtocol, UnixSocketSpec, normalize_url,
};

/// A duration that is not negative.
///
/// # Errors
/// `INVALID_FIELD` at `field`.
pub(super) fn duration(
    value: Option<prost_types::Duration>,
    field: &'static str,
) -> Result<Option<Duration>> {
    value
        .map(|value| {
            Duration::try_from(value)
                .map_err(|_| Error::invalid(field, "the duration must not be negative"))
        })
        .transpose()
}

/// A whole registration.
///
/// # Errors
/// `INVALID_FIELD` for what cannot be expressed in the domain; the rest is checked by the registry.
pub(super) fn server_spec(spec: Option<v1::ServerSpec>) -> Result<ServerSpec> {
    let spec =
        spec.ok_or_else(|| Error::invalid("spec", "give the server's name and transport"))?;
    let transport = match spec.transport {
        Some(Transport::Http(http)) => TransportSpec::Http(http_spec(http)?),
        Some(Transport::Stdio(stdio)) => TransportSpec::Stdio(stdio_spec(stdio)),
        Some(Transport::UnixSocket(socket)) => TransportSpec::UnixSocket(socket_spec(socket)?),
        None => {
            return Err(Error::invalid(
                "spec.transport",
                "give `http`, `stdio` or `unix_socket`",
            ));
        }
    };
    Ok(ServerSpec {
        name: spec.name,
        transport,
        protocol_version: optional(spec.protocol_version),
        capabilities: capabilities(spec.client_capabilities),
        roots: roots(spec.roots),
        isolation: isolation(spec.isolation)?,
        log_level: input::log_level(spec.log_level, "spec.log_level")?,
        retry: retry(spec.retry)?,
        timeouts: timeouts(spec.timeouts)?,
        tools: ToolRules {
            allowed: spec.allowed_tools,
            denied: spec.denied_tools,
        },
        check_results: spec.check_results,
        approval: approval::policy(spec.approval)?,
        auth: authorization::spec(spec.authorization)?,
        questions: questions(spec.question_policy)?,
    })
}

/// Changes the fields that the mask names.
///
/// # Errors
/// `INVALID_FIELD` for an empty mask, an unknown path, or a value that cannot be expressed.
pub(super) fn apply_mask(
    current: &mut ServerSpec,
    spec: Option<v1::ServerSpec>,
    mask: Option<prost_types::FieldMask>,
) -> Result<()> {
    let paths = mask.unwrap_or_default().paths;
    if paths.is_empty() {
        return Err(Error::invalid(
            "update_mask",
            "name the fields of `spec` to change, for example `name` or `http.headers`, or `*`",
        ));
    }
    let new = spec.ok_or_else(|| Error::invalid("spec", "give the new values"))?;
    let old_secrets: Vec<_> = current.secrets().into_iter().cloned().collect();
    for path in &paths {
        apply_path(current, &new, path)?;
    }
    // An empty value means "the one that is stored", because values are never given out.
    for secret in current.secrets_mut() {
        if secret.value == Secret::default()
            && let Some(old) = old_secrets.iter().find(|old| old.name == secret.name)
        {
            secret.value = old.value.clone();
        }
    }
    Ok(())
}

fn apply_path(current: &mut ServerSpec, new: &v1::ServerSpec, path: &str) -> Result<()> {
    match path {
        "*" => *current = server_spec(Some(new.clone()))?,
        "name" => current.name.clone_from(&new.name),
        "protocol_version" => current.protocol_version = optional(new.protocol_version.clone()),
        "client_capabilities" => {
            current.capabilities = capabilities(new.client_capabilities.clone());
        }
        "question_policy" => current.questions = questions(new.question_policy)?,
        "question_policy.unattended" => {
            current.questions.unattended = questions(new.question_policy)?.unattended;
        }
        "question_policy.elicitation_expiry" => {
            current.questions.elicitation_expiry =
                questions(new.question_policy)?.elicitation_expiry;
        }
        "question_policy.sampling_expiry" => {
            current.questions.sampling_expiry = questions(new.question_policy)?.sampling_expiry;
        }
        "question_policy.approval_expiry" => {
            current.questions.approval_expiry = questions(new.question_policy)?.approval_expiry;
        }
        "roots" => current.roots = roots(new.roots.clone()),
        "isolation" => current.isolation = isolation(new.isolation)?,
        "authorization" => current.auth = authorization::spec(new.authorization.clone())?,
        "approval" => current.approval = approval::policy(new.approval.clone())?,
        "check_results" => current.check_results = new.check_results,
        "allowed_tools" => current.tools.allowed.clone_from(&new.allowed_tools),
        "denied_tools" => current.tools.denied.clone_from(&new.denied_tools),
        "log_level" => current.log_level = input::log_level(new.log_level, "spec.log_level")?,
        "retry" => current.retry = retry(new.retry)?,
        "timeouts" => current.timeouts = timeouts(new.timeouts)?,
        "timeouts.connect" => current.timeouts.connect = timeouts(new.timeouts)?.connect,
        "timeouts.call_idle" => current.timeouts.call_idle = timeouts(new.timeouts)?.call_idle,
        "timeouts.call" => current.timeouts.call = timeouts(new.timeouts)?.call,
        "retry.max_attempts" => current.retry.max_attempts = retry(new.retry)?.max_attempts,
        "retry.base_delay" => current.retry.base_delay = retry(new.retry)?.base_delay,
        "retry.max_delay" => current.retry.max_delay = retry(new.retry)?.max_delay,
        _ if path == "http" || path.starts_with("http.") => apply_http(current, new, path)?,
        _ if path == "stdio" || path.starts_with("stdio.") => apply_stdio(current, new, path)?,
        _ if path == "unix_socket" || path.starts_with("unix_socket.") => {
            apply_socket(current, new, path)?;
        }
        _ => return Err(unknown_path(path)),
    }
    Ok(())
}

fn apply_http(current: &mut ServerSpec, new: &v1::ServerSpec, path: &str) -> Result<()> {
    let Some(Transport::Http(new)) = &new.transport else {
        return Err(Error::invalid(
            "spec.http",
            format!("`{path}` is in the mask: give `http`"),
        ));
    };
    match (path, &mut current.transport) {
        ("http", transport) => *transport = TransportSpec::Http(http_spec(new.clone())?),
        ("http.url", TransportSpec::Http(http)) => {
            http.url = normalize_url(&new.url, "spec.http.url")?;
        }
        ("http.headers", TransportSpec::Http(http)) => http.headers = headers(new.headers.clone()),
        ("http.mode", TransportSpec::Http(http)) => http.mode = http_mode(new.mode)?,
        ("http.client_certificate", TransportSpec::Http(http)) => {
            http.certificate = certificate(new.client_certificate.clone());
        }
        ("http.url" | "http.headers" | "http.mode" | "http.client_certificate", _) => {
            return Err(other_transport(path));
        }
        _ => return Err(unknown_path(path)),
    }
    Ok(())
}

fn apply_stdio(current: &mut ServerSpec, new: &v1::ServerSpec, path: &str) -> Result<()> {
    let Some(Transport::Stdio(new)) = &new.transport else {
        return Err(Error::invalid(
            "spec.stdio",
            format!("`{path}` is in the mask: give `stdio`"),
        ));
    };
    let new = stdio_spec(new.clone());
    match (path, &mut current.transport) {
        ("stdio", transport) => *transport = TransportSpec::Stdio(new),
        ("stdio.command", TransportSpec::Stdio(stdio)) => stdio.command = new.command,
        ("stdio.args", TransportSpec::Stdio(stdio)) => stdio.args = new.args,
        ("stdio.env", TransportSpec::Stdio(stdio)) => stdio.env = new.env,
        ("stdio.cwd", TransportSpec::Stdio(stdio)) => stdio.cwd = new.cwd,
        ("stdio.command" | "stdio.args" | "stdio.env" | "stdio.cwd", _) => {
            return Err(other_transport(path));
        }
        _ => return Err(unknown_path(path)),
    }
    Ok(())
}

fn apply_socket(current: &mut ServerSpec, new: &v1::ServerSpec, path: &str) -> Result<()> {
    let Some(Transport::UnixSocket(new)) = &new.transport else {
        return Err(Error::invalid(
            "spec.unix_socket",
            format!("`{path}` is in the mask: give `unix_socket`"),
        ));
    };
    match (path, &mut current.transport) {
        ("unix_socket", transport) => {
            *transport = TransportSpec::UnixSocket(socket_spec(new.clone())?);
        }
        ("unix_socket.path", TransportSpec::UnixSocket(socket)) => {
            socket.path.clone_from(&new.path);
        }
        ("unix_socket.http_path", TransportSpec::UnixSocket(socket)) => {
            socket.http_path = http_path(new.http_path.clone(), socket.protocol);
        }
        ("unix_socket.headers", TransportSpec::UnixSocket(socket)) => {
            socket.headers = headers(new.headers.clone());
        }
        ("unix_socket.path" | "unix_socket.http_path" | "unix_socket.headers", _) => {
            return Err(other_transport(path));
        }
        _ => return Err(unknown_path(path)),
    }
    Ok(())
}

fn unknown_path(path: &str) -> Error {
    Error::invalid(
        "update_mask",
        format!("`{path}` is not a field of `spec` that can be changed"),
    )
}

fn other_transport(path: &str) -> Error {
    Error::invalid(
        "update_mask",
        format!("the server has another transport than `{path}`; change the transport as a whole"),
    )
}

fn http_spec(http: v1::HttpTransport) -> Result<HttpSpec> {
    Ok(HttpSpec {
        url: normalize_url(&http.url, "spec.http.url")?,
        headers: headers(http.headers),
        mode: http_mode(http.mode)?,
        certificate: certificate(http.client_certificate),
    })
}

fn certificate(certificate: Option<v1::ClientCertificate>) -> Option<ClientCertificate> {
    certificate.map(|certificate| ClientCertificate {
        chain: certificate.certificate_pem,
        private_key: named_secret(
            "client_certificate/private_key".to_owned(),
            certificate.private_key_pem,
        ),
    })
}

fn http_mode(mode: i32) -> Result<HttpMode> {
    match v1::HttpMode::try_from(mode) {
        Ok(v1::HttpMode::Unspecified | v1::HttpMode::Auto) => Ok(HttpMode::Auto),
        Ok(v1::HttpMode::StreamableHttp) => Ok(HttpMode::StreamableHttp),
        Ok(v1::HttpMode::Sse) => Ok(HttpMode::Sse),
        Err(_) => Err(Error::invalid(
            "spec.http.mode",
            format!("{mode} is not a mode that this daemon knows"),
        )),
    }
}

fn stdio_spec(stdio: v1::StdioTransport) -> StdioSpec {
    let env = stdio
        .env
        .into_iter()
        .map(|variable| named_secret(variable.name, variable.value));
    StdioSpec {
        command: stdio.command,
        args: stdio.args,
        env: env.collect(),
        cwd: optional(stdio.cwd),
    }
}

fn socket_spec(socket: v1::UnixSocketTransport) -> Result<UnixSocketSpec> {
    let protocol = match v1::UnixSocketProtocol::try_from(socket.protocol) {
        Ok(v1::UnixSocketProtocol::Unspecified | v1::UnixSocketProtocol::Http) => {
            UnixProtocol::Http
        }
        Ok(v1::UnixSocketProtocol::Ndjson) => UnixProtocol::Ndjson,
        Err(_) => {
            return Err(Error::invalid(
                "spec.unix_socket.protocol",
                format!(
                    "{} is not a protocol that this daemon knows",
                    socket.protocol
                ),
            ));
        }
    };
    Ok(UnixSocketSpec {
        path: socket.path,
        protocol,
        http_path: http_path(socket.http_path, protocol),
        headers: headers(socket.headers),
    })
}

fn http_path(path: String, protocol: UnixProtocol) -> String {
    if path.is_empty() && protocol == UnixProtocol::Http {
        String::from("/mcp")
    } else {
        path
    }
}

fn headers(headers: Vec<v1::Header>) -> Vec<NamedSecret> {
    headers
        .into_iter()
        .map(|header| named_secret(header.name, header.value))
        .collect()
}

pub(super) fn named_secret(name: String, value: String) -> NamedSecret {
    NamedSecret {
        name,
        value: Secret::new(value),
    }
}

pub(super) fn optional(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

fn capabilities(capabilities: Option<v1::ClientCapabilities>) -> Option<ClientCapabilities> {
    let capabilities = capabilities?;
    Some(ClientCapabilities {
        abilities: Abilities {
            elicitation_form: capabilities.elicitation_form,
            elicitation_url: capabilities.elicitation_url,
            sampling: capabilities.sampling,
            sampling_tools: capabilities.sampling_tools,
            sampling_context: capabilities.sampling_context,
            approval: false,
        },
        extensions: capabilities.extensions_json,
    })
}

fn questions(policy: Option<v1::QuestionPolicy>) -> Result<QuestionPolicy> {
    let policy = policy.unwrap_or_default();
    let unattended = policy.unattended;
    Ok(QuestionPolicy {
        unattended: match v1::UnattendedPolicy::try_from(unattended) {
            Ok(v1::UnattendedPolicy::Unspecified) => None,
            Ok(v1::UnattendedPolicy::Hold) => Some(Unattended::Hold),
            Ok(v1::UnattendedPolicy::Decline) => Some(Unattended::Decline),
            Err(_) => {
                return Err(Error::invalid(
                    "spec.question_policy.unattended",
                    format!("{unattended} is no value of UnattendedPolicy"),
                ));
            }
        },
        elicitation_expiry: duration(
            policy.elicitation_expiry,
            "spec.question_policy.elicitation_expiry",
        )?,
        sampling_expiry: duration(
            policy.sampling_expiry,
            "spec.question_policy.sampling_expiry",
        )?,
        approval_expiry: duration(
            policy.approval_expiry,
            "spec.question_policy.approval_expiry",
        )?,
    })
}

fn roots(roots: Vec<v1::Root>) -> Vec<Root> {
    roots
        .into_iter()
        .map(|root| Root {
            uri: root.uri,
            name: root.name,
        })
        .collect()
}

fn isolation(isolation: i32) -> Result<Isolation> {
    match v1::Isolation::try_from(isolation) {
        Ok(v1::Isolation::Unspecified | v1::Isolation::Shared) => Ok(Isolation::Shared),
        Ok(v1::Isolation::PerUser) => Ok(Isolation::PerUser),
        Ok(v1::Isolation::PerConnection) => Ok(Isolation::PerConnection),
        Err(_) => Err(Error::invalid(
            "spec.isolation",
            format!("{isolation} is no value of Isolation"),
        )),
    }
}

fn retry(policy: Option<v1::RetryPolicy>) -> Result<RetryPolicy> {
    let default = RetryPolicy::default();
    let Some(policy) = policy else {
        return Ok(default);
    };
    Ok(RetryPolicy {
        max_attempts: policy.max_attempts.unwrap_or(default.max_attempts),
        base_delay: duration(policy.base_delay, "spec.retry.base_delay")?
            .unwrap_or(default.base_delay),
        max_delay: duration(policy.max_delay, "spec.retry.max_delay")?.unwrap_or(default.max_delay),
    })
}

fn timeouts(timeouts: Option<v1::ServerTimeouts>) -> Result<Timeouts> {
    let timeouts = timeouts.unwrap_or_default();
    Ok(Timeouts {
        connect: duration(timeouts.connect, "spec.timeouts.connect")?,
        call_idle: duration(timeouts.call_idle, "spec.timeouts.call_idle")?,
        call: duration(timeouts.call, "spec.timeouts.call")?,
    })
}
