//! What a call asks of its server: the request for it, made anew for every link that it is made on.

use serde::{Deserialize, Serialize};

use super::{not_allowed, offered};
use crate::catalog::Catalog;
use crate::catalog::entry::Tool;
use crate::error::{Error, Reason, Result};
use crate::mcp::era::Request;
use crate::mcp::headers::param_headers;
use crate::mcp::link::Link;
use crate::mcp::protocol::{RawJson, method};
use crate::model::call::Subject;
use crate::registry::Server;

/// What is asked, in full.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Operation {
    /// `tools/call`.
    Tool {
        name: String,
        arguments: Option<RawJson>,
    },
    /// `resources/read`.
    Resource { uri: String },
    /// `prompts/get`.
    Prompt { name: String, arguments: RawJson },
}

impl Operation {
    /// What is shown of it.
    pub(super) fn subject(&self) -> Subject {
        match self {
            Self::Tool { name, .. } => Subject::Tool(name.clone()),
            Self::Resource { uri } => Subject::Resource(uri.clone()),
            Self::Prompt { name, .. } => Subject::Prompt(name.clone()),
        }
    }

    /// Its arguments, as they were given.
    pub(super) fn arguments(&self) -> Option<String> {
        let arguments = match self {
            Self::Tool { arguments, .. } => arguments.as_ref()?,
            Self::Resource { .. } => return None,
            Self::Prompt { arguments, .. } => arguments,
        };
        Some(arguments.as_str().to_owned())
    }

    /// Whether it may be carried out twice, as far as its server says.
    pub(super) fn is_harmless(&self, catalog: &Catalog) -> bool {
        let Self::Tool { name, .. } = self else {
            return false;
        };
        let hints = catalog.tool(name).map(|tool| tool.hints);
        hints.is_some_and(|hints| hints.read_only == Some(true) || hints.idempotent == Some(true))
    }

    /// The request for it.
    ///
    /// # Errors
    /// `TOOL_NOT_FOUND`, `TOOL_NOT_ALLOWED`, `NOT_SUPPORTED`.
    pub(super) fn request(
        &self,
        server: &Server,
        link: &Link,
        catalog: &Catalog,
    ) -> Result<Request> {
        match self {
            Self::Tool { name, arguments } => {
                let tool = known(server, name, catalog)?;
                let mut request =
                    Request::new(method::TOOLS_CALL).param("name", RawJson::encode(name));
                if let Some(arguments) = arguments {
                    request = request.param("arguments", arguments.clone());
                    let over_http = link.over_streamable_http();
                    if let Some(tool) = tool.filter(|_| over_http) {
                        request.param_headers = param_headers(&tool.param_headers, arguments);
                    }
                }
                request.as_task =
                    tool.is_some_and(|tool| tool.only_as_task) && link.peer.runs_tasks();
                request.name = Some(name.clone());
                request.progress = true;
                Ok(request)
            }
            Self::Resource { uri } => {
                offered(server, link, "resources")?;
                let mut request =
                    Request::new(method::RESOURCES_READ).param("uri", RawJson::encode(uri));
                request.name = Some(uri.clone());
                Ok(request)
            }
            Self::Prompt { name, arguments } => {
                offered(server, link, "prompts")?;
                let mut request = Request::new(method::PROMPTS_GET)
                    .param("name", RawJson::encode(name))
                    .param("arguments", arguments.clone());
                request.name = Some(name.clone());
                Ok(request)
            }
        }
    }
}

/// The tool's definition. A tool that is not in an incomplete list may exist all the same: the server decides.
fn known<'a>(server: &Server, name: &str, catalog: &'a Catalog) -> Result<Option<&'a Tool>> {
    let id = &server.record.key.id;
    // They may have changed while the call waited for its server.
    if !catalog.rules().admit(name) {
        return Err(not_allowed(server, "tool_name", name));
    }
    if let Some(tool) = catalog.tool(name) {
        return Ok(Some(tool));
    }
    if let Some(bad) = catalog.withheld.iter().find(|bad| bad.name == name) {
        return Err(Error::new(
            Reason::NotSupported,
            format!("tool `{name}` of server `{id}` is withheld: {}", bad.reason),
        ));
    }
    if catalog.tools.status.incomplete_reason.is_some() {
        return Ok(None);
    }
    Err(Error::new(
        Reason::ToolNotFound,
        format!("server `{id}` offers no tool `{name}`; ListTools shows the names"),
    )
    .with("server_id", id.as_str())
    .with("tool_name", name))
}
