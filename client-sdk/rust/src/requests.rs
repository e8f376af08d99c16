//! Short ways to make the requests that are made most. Every field can be set afterwards.

use serde_json::Value;

use crate::proto::{
    AddServerRequest, HttpTransport, ServerSpec, StdioTransport, ToolCall, server_spec,
};

/// Asks for a server at a URL (Streamable HTTP).
///
/// ```
/// use mcp_sidecar_client::http_server;
///
/// let mut request = http_server("Weather", "https://mcp.example.com/mcp");
/// request.server_id = "weather".to_owned();
/// ```
#[must_use]
pub fn http_server(name: impl Into<String>, url: impl Into<String>) -> AddServerRequest {
    add_request(
        name.into(),
        server_spec::Transport::Http(HttpTransport {
            url: url.into(),
            ..Default::default()
        }),
    )
}

/// Asks for a server that the daemon starts as a child process. No shell is involved.
///
/// ```
/// use mcp_sidecar_client::stdio_server;
///
/// let request = stdio_server("Files", "mcp-server-files", ["/srv/data"]);
/// ```
#[must_use]
pub fn stdio_server<A>(
    name: impl Into<String>,
    command: impl Into<String>,
    args: A,
) -> AddServerRequest
where
    A: IntoIterator,
    A::Item: Into<String>,
{
    add_request(
        name.into(),
        server_spec::Transport::Stdio(StdioTransport {
            command: command.into(),
            args: args.into_iter().map(Into::into).collect(),
            ..Default::default()
        }),
    )
}

fn add_request(name: String, transport: server_spec::Transport) -> AddServerRequest {
    AddServerRequest {
        spec: Some(ServerSpec {
            name,
            transport: Some(transport),
            ..Default::default()
        }),
        ..Default::default()
    }
}

/// A call of a tool by its identity: server id and name at the server.
///
/// ```
/// use mcp_sidecar_client::tool_call;
/// use serde_json::json;
///
/// let call = tool_call("demo", "add", json!({ "a": 2, "b": 3 }));
/// // JSON text is sent exactly as it is: nothing is lost from numbers that do not fit into a double.
/// let exact = tool_call("demo", "add", r#"{"a": 12345678901234567890123, "b": 1.10}"#);
/// ```
#[must_use]
pub fn tool_call(
    server_id: impl Into<String>,
    tool_name: impl Into<String>,
    arguments: impl Into<Arguments>,
) -> ToolCall {
    ToolCall {
        server_id: server_id.into(),
        tool_name: tool_name.into(),
        arguments_json: arguments.into().0,
        ..Default::default()
    }
}

/// A call of a tool by its model name, as a model returned it.
#[must_use]
pub fn model_tool_call(model_name: impl Into<String>, arguments: impl Into<Arguments>) -> ToolCall {
    ToolCall {
        model_name: model_name.into(),
        arguments_json: arguments.into().0,
        ..Default::default()
    }
}

/// Arguments of a tool or the answer to a form: JSON text, a [`Value`], or `()` for none.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Arguments(Option<String>);

impl Arguments {
    pub(crate) fn into_json(self) -> Option<String> {
        self.0
    }
}

impl From<()> for Arguments {
    fn from((): ()) -> Self {
        Self(None)
    }
}

impl From<Value> for Arguments {
    fn from(value: Value) -> Self {
        Self(Some(value.to_string()))
    }
}

impl From<String> for Arguments {
    fn from(json: String) -> Self {
        Self(Some(json))
    }
}

impl From<&str> for Arguments {
    fn from(json: &str) -> Self {
        Self(Some(json.to_owned()))
    }
}
