//! How things look to people.

use anstyle::Style;
use mcp_sidecar_client::proto::{
    CallState, ConnectionState, ContentBlock, ElicitationState, LogLevel, ResourceContents, Server,
    ServerSpec, TransportKind, content_block, resource_contents, server_spec,
};
use prost_types::Timestamp;

use crate::out::{BAD, DIM, GOOD, WARNING};
use crate::plain::{one_line, plain};

/// A time in UTC, to the second; empty if there is none.
pub(crate) fn time(time: Option<&Timestamp>) -> String {
    time.map_or_else(String::new, |time| {
        let whole = Timestamp { nanos: 0, ..*time };
        whole.to_string()
    })
}

/// The word of an enum without its prefix, in lower case: `CONNECTION_STATE_READY` is `ready`.
pub(crate) fn word(name: &str, prefix: &str) -> String {
    let word = name.strip_prefix(prefix).unwrap_or(name);
    word.to_lowercase().replace('_', " ")
}

pub(crate) fn state(state: ConnectionState) -> (Style, String) {
    let style = match state {
        ConnectionState::Ready => GOOD,
        ConnectionState::Failed => BAD,
        ConnectionState::Authenticating => WARNING,
        _ => DIM,
    };
    (style, word(state.as_str_name(), "CONNECTION_STATE_"))
}

pub(crate) fn call_state(state: CallState) -> (Style, String) {
    let style = match state {
        CallState::Completed => GOOD,
        CallState::Failed => BAD,
        CallState::InputRequired => WARNING,
        _ => DIM,
    };
    (style, word(state.as_str_name(), "CALL_STATE_"))
}

pub(crate) fn question_state(state: ElicitationState) -> (Style, String) {
    let style = match state {
        ElicitationState::Pending => WARNING,
        ElicitationState::Answered => GOOD,
        _ => DIM,
    };
    (style, word(state.as_str_name(), "ELICITATION_STATE_"))
}

pub(crate) fn level(level: LogLevel) -> (Style, String) {
    let style = match level {
        LogLevel::Debug | LogLevel::Unspecified => DIM,
        LogLevel::Info | LogLevel::Notice => Style::new(),
        LogLevel::Warning => WARNING,
        _ => BAD,
    };
    (style, word(level.as_str_name(), "LOG_LEVEL_"))
}

/// Where a server is.
pub(crate) fn target(spec: &ServerSpec) -> String {
    match &spec.transport {
        Some(server_spec::Transport::Http(http)) => http.url.clone(),
        Some(server_spec::Transport::Stdio(stdio)) => {
            let words = std::iter::once(&stdio.command).chain(&stdio.args);
            words.map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
        }
        Some(server_spec::Transport::UnixSocket(socket)) => format!("unix:{}", socket.path),
        None => String::new(),
    }
}

/// A word as a shell would take it.
fn quoted(word: &str) -> String {
    let bare = |letter: char| letter.is_alphanumeric() || "-_./:=@%+,".contains(letter);
    if !word.is_empty() && word.chars().all(bare) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

pub(crate) fn transport(kind: TransportKind) -> String {
    match kind {
        TransportKind::Unspecified => String::new(),
        kind => word(kind.as_str_name(), "TRANSPORT_KIND_"),
    }
}

/// Why a server is not ready, in one sentence; empty if it is.
pub(crate) fn trouble(server: &Server) -> String {
    let Some(status) = &server.status else {
        return String::new();
    };
    match status.state() {
        ConnectionState::Ready => String::new(),
        ConnectionState::Authenticating => {
            format!("a user has to sign in: `mcp-sidecar sign-in {}`", server.id)
        }
        _ => status
            .last_failure
            .as_ref()
            .map_or_else(String::new, |failure| {
                format!("{}: {}", failure.reason, failure.message)
            }),
    }
}

/// What a tool or a prompt says, for people. What is no text is named. The text is harmless.
pub(crate) fn block(block: &ContentBlock) -> String {
    use content_block::Block;
    match &block.block {
        Some(Block::Text(text)) => plain(&text.text).into_owned(),
        Some(Block::Image(image)) => bytes("image", &image.mime_type, image.data.len()),
        Some(Block::Audio(audio)) => bytes("audio", &audio.mime_type, audio.data.len()),
        Some(Block::ResourceLink(link)) => {
            let name = match &*link.title {
                "" => &link.name,
                title => title,
            };
            format!("[resource {} {}]", one_line(&link.uri), one_line(name))
        }
        Some(Block::Resource(embedded)) => embedded
            .resource
            .as_ref()
            .map_or_else(String::new, contents),
        Some(Block::RawJson(json)) => plain(json).into_owned(),
        None => String::new(),
    }
}

/// What a resource holds, for people. The text is harmless.
pub(crate) fn contents(contents: &ResourceContents) -> String {
    match &contents.body {
        Some(resource_contents::Body::Text(text)) => plain(text).into_owned(),
        Some(resource_contents::Body::Blob(blob)) => {
            bytes(&contents.uri, &contents.mime_type, blob.len())
        }
        None => plain(&contents.extra_json).into_owned(),
    }
}

fn bytes(what: &str, kind: &str, count: usize) -> String {
    format!("[{}, {}, {count} bytes]", one_line(what), one_line(kind))
}
