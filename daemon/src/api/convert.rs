//! Domain to contract: servers, questions, lists. No I/O, no decisions.

use mcp_sidecar_proto::v1;
use prost_types::Timestamp as ProtoTimestamp;

use super::{approval, authorization, form};
use crate::base::ServerId;
use crate::base::Timestamp;
use crate::catalog::entry::{Prompt, PromptArgument, Resource, ResourceTemplate, Tool};
use crate::catalog::names::{Style, model_name};
use crate::model::call::{Call, CallState, Subject};
use crate::model::question::{Mode, Question, QuestionState};
use crate::model::spec::{
    HttpMode, Isolation, LogLevel, NamedSecret, QuestionPolicy, ServerSpec, TransportSpec,
    Unattended, UnixProtocol,
};
use crate::model::status::{
    CacheScope, ConnectionState, Era, Failure, Implementation, ListStatus, LogLine, Push,
    ServerStatus, ServerView, TransportKind,
};

/// A point in time.
pub(super) fn timestamp(at: Timestamp) -> ProtoTimestamp {
    let nanos = at.0.rem_euclid(1000) * 1_000_000;
    ProtoTimestamp {
        seconds: at.0.div_euclid(1000),
        nanos: i32::try_from(nanos).unwrap_or(0),
    }
}

/// A length of time.
pub(super) fn duration(value: std::time::Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(value.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(value.subsec_nanos()).unwrap_or(0),
    }
}

/// A server, without its secrets.
pub(super) fn server(view: ServerView) -> v1::Server {
    v1::Server {
        namespace: view.key.namespace.to_string(),
        id: view.key.id.to_string(),
        spec: Some(spec(view.spec)),
        status: Some(status(view.status)),
        etag: view.etag,
        create_time: Some(timestamp(view.created)),
        update_time: Some(timestamp(view.updated)),
        from_configuration: view.declared,
    }
}

fn spec(spec: ServerSpec) -> v1::ServerSpec {
    let transport = match spec.transport {
        TransportSpec::Http(http) => v1::server_spec::Transport::Http(v1::HttpTransport {
            url: http.url.into(),
            mode: match http.mode {
                HttpMode::Auto => v1::HttpMode::Auto,
                HttpMode::StreamableHttp => v1::HttpMode::StreamableHttp,
                HttpMode::Sse => v1::HttpMode::Sse,
            }
            .into(),
            headers: header_names(http.headers),
            client_certificate: http.certificate.map(|certificate| v1::ClientCertificate {
                certificate_pem: certificate.chain,
                private_key_pem: String::new(),
            }),
        }),
        TransportSpec::Stdio(stdio) => v1::server_spec::Transport::Stdio(v1::StdioTransport {
            command: stdio.command,
            args: stdio.args,
            env: stdio
                .env
                .into_iter()
                .map(|variable| v1::EnvVar {
                    name: variable.name,
                    value: String::new(),
                })
                .collect(),
            cwd: stdio.cwd.unwrap_or_default(),
        }),
        TransportSpec::UnixSocket(socket) => {
            v1::server_spec::Transport::UnixSocket(v1::UnixSocketTransport {
                path: socket.path,
                protocol: match socket.protocol {
                    UnixProtocol::Http => v1::UnixSocketProtocol::Http,
                    UnixProtocol::Ndjson => v1::UnixSocketProtocol::Ndjson,
                }
                .into(),
                http_path: socket.http_path,
                headers: header_names(socket.headers),
            })
        }
    };
    v1::ServerSpec {
        authorization: authorization::shown(spec.auth),
        name: spec.name,
        transport: Some(transport),
        protocol_version: spec.protocol_version.unwrap_or_default(),
        client_capabilities: spec
            .capabilities
            .map(|capabilities| v1::ClientCapabilities {
                elicitation_form: capabilities.abilities.elicitation_form,
                elicitation_url: capabilities.abilities.elicitation_url,
                sampling: capabilities.abilities.sampling,
                sampling_tools: capabilities.abilities.sampling_tools,
                sampling_context: capabilities.abilities.sampling_context,
                extensions_json: capabilities.extensions,
            }),
        question_policy: question_policy(spec.questions),
        roots: spec
            .roots
            .into_iter()
            .map(|root| v1::Root {
                uri: root.uri,
                name: root.name,
            })
            .collect(),
        isolation: match spec.isolation {
            Isolation::Shared => v1::Isolation::Shared,
            Isolation::PerUser => v1::Isolation::PerUser,
            Isolation::PerConnection => v1::Isolation::PerConnection,
        }
        .into(),
        log_level: spec
            .log_level
            .map_or(v1::LogLevel::Unspecified, log_level)
            .into(),
        retry: Some(v1::RetryPolicy {
            max_attempts: Some(spec.retry.max_attempts),
            base_delay: Some(duration(spec.retry.base_delay)),
            max_delay: Some(duration(spec.retry.max_delay)),
        }),
        timeouts: Some(v1::ServerTimeouts {
            connect: spec.timeouts.connect.map(duration),
            call_idle: spec.timeouts.call_idle.map(duration),
            call: spec.timeouts.call.map(duration),
        }),
        allowed_tools: spec.tools.allowed,
        denied_tools: spec.tools.denied,
        check_results: spec.check_results,
        approval: approval::shown(spec.approval),
    }
}

/// What becomes of questions; `None` if all is as configured.
fn question_policy(policy: QuestionPolicy) -> Option<v1::QuestionPolicy> {
    (policy != QuestionPolicy::default()).then(|| v1::QuestionPolicy {
        unattended: match policy.unattended {
            None => v1::UnattendedPolicy::Unspecified,
            Some(Unattended::Hold) => v1::UnattendedPolicy::Hold,
            Some(Unattended::Decline) => v1::UnattendedPolicy::Decline,
        }
        .into(),
        elicitation_expiry: policy.elicitation_expiry.map(duration),
        sampling_expiry: policy.sampling_expiry.map(duration),
        approval_expiry: policy.approval_expiry.map(duration),
    })
}

/// Headers without their values.
fn header_names(headers: Vec<NamedSecret>) -> Vec<v1::Header> {
    headers
        .into_iter()
        .map(|header| v1::Header {
            name: header.name,
            value: String::new(),
        })
        .collect()
}

fn status(status: ServerStatus) -> v1::ServerStatus {
    v1::ServerStatus {
        state: connection_state(status.state).into(),
        state_time: Some(timestamp(status.since)),
        era: match status.era {
            None => v1::Era::Unspecified,
            Some(Era::Modern) => v1::Era::Modern,
            Some(Era::Legacy) => v1::Era::Legacy,
        }
        .into(),
        protocol_version: status.protocol_version,
        transport: match status.transport {
            None => v1::TransportKind::Unspecified,
            Some(TransportKind::StreamableHttp) => v1::TransportKind::StreamableHttp,
            Some(TransportKind::Stdio) => v1::TransportKind::Stdio,
            Some(TransportKind::Sse) => v1::TransportKind::Sse,
            Some(TransportKind::UnixSocket) => v1::TransportKind::UnixSocket,
        }
        .into(),
        server_info: status.server_info.map(implementation),
        instructions: status.instructions,
        capabilities_json: status.capabilities,
        tools: Some(list_status(status.tools)),
        resources: Some(list_status(status.resources)),
        resource_templates: Some(list_status(status.resource_templates)),
        prompts: Some(list_status(status.prompts)),
        withheld_tools: status
            .withheld
            .into_iter()
            .map(|tool| v1::WithheldTool {
                name: tool.name,
                reason: tool.reason,
            })
            .collect(),
        last_failure: status.last_failure.map(failure),
        next_retry_time: status.next_retry.map(timestamp),
        failed_attempts: status.failed_attempts,
        auth_url: status.auth_url.unwrap_or_default(),
        push: match status.push {
            Push::Unknown => v1::PushState::Unspecified,
            Push::None => v1::PushState::None,
            Push::Open => v1::PushState::Open,
            Push::Lost => v1::PushState::Lost,
        }
        .into(),
        stderr_tail: status.stderr_tail,
        tools_not_allowed: status.not_allowed,
        calls_in_flight: status.calls_in_flight,
    }
}

/// A line of a server's standard error.
pub(super) fn log_line(line: LogLine) -> v1::ServerLogLine {
    v1::ServerLogLine {
        time: Some(timestamp(line.at)),
        text: line.text,
        start: line.start,
        standard_output: line.output,
    }
}

/// A connection state.
pub(super) fn connection_state(state: ConnectionState) -> v1::ConnectionState {
    match state {
        ConnectionState::Connecting => v1::ConnectionState::Connecting,
        ConnectionState::Authenticating => v1::ConnectionState::Authenticating,
        ConnectionState::Connected => v1::ConnectionState::Connected,
        ConnectionState::Discovering => v1::ConnectionState::Discovering,
        ConnectionState::Ready => v1::ConnectionState::Ready,
        ConnectionState::Failed => v1::ConnectionState::Failed,
        ConnectionState::Disconnected => v1::ConnectionState::Disconnected,
    }
}

fn implementation(info: Implementation) -> v1::Implementation {
    v1::Implementation {
        name: info.name,
        title: info.title,
        version: info.version,
        extra_json: info.extra,
    }
}

fn list_status(list: ListStatus) -> v1::ListStatus {
    v1::ListStatus {
        count: list.count,
        digest: list.digest,
        incomplete_reason: list.incomplete_reason.unwrap_or_default(),
        fetch_time: list.fetched.map(timestamp),
        ttl: list.ttl.map(duration),
        cache_scope: cache_scope(list.cache_scope).into(),
    }
}

/// A level as apps see it.
pub(super) fn log_level(level: LogLevel) -> v1::LogLevel {
    match level {
        LogLevel::Debug => v1::LogLevel::Debug,
        LogLevel::Info => v1::LogLevel::Info,
        LogLevel::Notice => v1::LogLevel::Notice,
        LogLevel::Warning => v1::LogLevel::Warning,
        LogLevel::Error => v1::LogLevel::Error,
        LogLevel::Critical => v1::LogLevel::Critical,
        LogLevel::Alert => v1::LogLevel::Alert,
        LogLevel::Emergency => v1::LogLevel::Emergency,
    }
}

fn cache_scope(scope: Option<CacheScope>) -> v1::CacheScope {
    match scope {
        None => v1::CacheScope::Unspecified,
        Some(CacheScope::Public) => v1::CacheScope::Public,
        Some(CacheScope::Private) => v1::CacheScope::Private,
    }
}

fn failure(failure: Failure) -> v1::Failure {
    v1::Failure {
        reason: failure.reason,
        message: failure.message,
        time: Some(timestamp(failure.at)),
    }
}

/// A question.
pub(super) fn elicitation(question: Question) -> v1::Elicitation {
    let schema = question.requested_schema.as_deref();
    let fields = schema.map(form::fields).unwrap_or_default();
    let url = question.url.as_deref();
    let (url_host, url_warnings) = url.map(form::url).unwrap_or_default();
    let (tool_name, arguments_json) = match question.mode {
        Mode::Approval => approval::asked(&question.request),
        _ => Default::default(),
    };
    v1::Elicitation {
        namespace: question.server.namespace.to_string(),
        id: question.id.to_string(),
        server_id: question.server.id.to_string(),
        server_name: question.server_name,
        call_id: question
            .call_id
            .map(|id| id.to_string())
            .unwrap_or_default(),
        mode: match question.mode {
            Mode::Form => v1::ElicitationMode::Form,
            Mode::Url => v1::ElicitationMode::Url,
            Mode::Approval => v1::ElicitationMode::Approval,
            Mode::Sampling => v1::ElicitationMode::Unspecified,
        }
        .into(),
        message: question.message,
        requested_schema_json: question.requested_schema.unwrap_or_default(),
        url: question.url.unwrap_or_default(),
        state: question_state(question.state).into(),
        create_time: Some(timestamp(question.created)),
        expire_time: Some(timestamp(question.expires)),
        resolve_time: question.resolved.map(timestamp),
        request_json: question.request,
        fields,
        url_host,
        url_warnings,
        complete_time: question.completed.map(timestamp),
        tool_name,
        arguments_json,
    }
}

/// A call, without what came of it.
pub(super) fn call(call: Call) -> v1::Call {
    let state = match call.state {
        CallState::Running => v1::CallState::Running,
        CallState::InputRequired => v1::CallState::InputRequired,
        CallState::Completed => v1::CallState::Completed,
        CallState::Failed => v1::CallState::Failed,
        CallState::Cancelled => v1::CallState::Cancelled,
    };
    let mut shown = v1::Call {
        namespace: call.server.namespace.to_string(),
        id: call.id.to_string(),
        server_id: call.server.id.to_string(),
        state: state.into(),
        request_id: call.request_id.unwrap_or_default(),
        detached: call.detached,
        create_time: Some(timestamp(call.created)),
        end_time: call.ended.map(timestamp),
        expire_time: call.expires.map(timestamp),
        ..v1::Call::default()
    };
    match call.subject {
        Subject::Tool(name) => shown.tool_name = name,
        Subject::Resource(uri) => shown.resource_uri = uri,
        Subject::Prompt(name) => shown.prompt_name = name,
    }
    shown
}

/// What has become of a question.
pub(super) fn question_state(state: QuestionState) -> v1::ElicitationState {
    match state {
        QuestionState::Pending => v1::ElicitationState::Pending,
        QuestionState::Answered => v1::ElicitationState::Answered,
        QuestionState::Declined => v1::ElicitationState::Declined,
        QuestionState::Cancelled => v1::ElicitationState::Cancelled,
        QuestionState::Expired => v1::ElicitationState::Expired,
        QuestionState::Void => v1::ElicitationState::Void,
    }
}

/// A tool, under a model name in the wanted style.
pub(super) fn tool(server: &ServerId, style: Style, tool: &Tool) -> v1::Tool {
    v1::Tool {
        server_id: server.to_string(),
        name: tool.name.clone(),
        model_name: model_name(style, server, &tool.name),
        title: tool.title.clone(),
        description: tool.description.clone(),
        input_schema_json: tool.input_schema.as_str().to_owned(),
        output_schema_json: tool
            .output_schema
            .as_ref()
            .map(|schema| schema.as_str().to_owned())
            .unwrap_or_default(),
        annotations: Some(v1::ToolAnnotations {
            read_only_hint: tool.hints.read_only,
            destructive_hint: tool.hints.destructive,
            idempotent_hint: tool.hints.idempotent,
            open_world_hint: tool.hints.open_world,
        }),
        extra_json: tool.extra.clone(),
    }
}

/// A resource.
pub(super) fn resource(server: &ServerId, resource: &Resource) -> v1::Resource {
    v1::Resource {
        server_id: server.to_string(),
        uri: resource.uri.clone(),
        name: resource.name.clone(),
        title: resource.title.clone(),
        description: resource.description.clone(),
        mime_type: resource.mime_type.clone(),
        size: resource.size,
        extra_json: resource.extra.clone(),
    }
}

/// A resource template.
pub(super) fn resource_template(
    server: &ServerId,
    template: &ResourceTemplate,
) -> v1::ResourceTemplate {
    v1::ResourceTemplate {
        server_id: server.to_string(),
        uri_template: template.uri_template.clone(),
        name: template.name.clone(),
        title: template.title.clone(),
        description: template.description.clone(),
        mime_type: template.mime_type.clone(),
        extra_json: template.extra.clone(),
    }
}

/// A prompt.
pub(super) fn prompt(server: &ServerId, prompt: &Prompt) -> v1::Prompt {
    let argument = |argument: &PromptArgument| v1::PromptArgument {
        name: argument.name.clone(),
        title: argument.title.clone(),
        description: argument.description.clone(),
        required: argument.required,
        extra_json: argument.extra.clone(),
    };
    v1::Prompt {
        server_id: server.to_string(),
        name: prompt.name.clone(),
        title: prompt.title.clone(),
        description: prompt.description.clone(),
        arguments: prompt.arguments.iter().map(argument).collect(),
        extra_json: prompt.extra.clone(),
    }
}
