//! The two protocol eras: every difference between versions, as pure encoding and decoding.
//!
//! Nothing outside this file asks which era a server speaks, except to open a connection (`open`) and to listen for
//! notifications (`push`), where the eras have different procedures.

use bytes::Bytes;

use crate::error::{Error, Reason, Result};
use crate::mcp::headers;
use crate::mcp::protocol::{self, META_PROGRESS_TOKEN, ObjectWriter, RawJson, method};
use crate::model::spec::ServerSpec;
use crate::model::status::Era;

/// The newest modern version.
pub const NEWEST_MODERN: &str = "2026-07-28";
/// The newest legacy version.
pub const NEWEST_LEGACY: &str = "2025-11-25";
/// Modern versions that the daemon speaks, newest first.
pub const MODERN_VERSIONS: &[&str] = &[NEWEST_MODERN];
/// Legacy versions that the daemon speaks, newest first.
pub const LEGACY_VERSIONS: &[&str] = &[NEWEST_LEGACY, "2025-06-18", "2025-03-26", "2024-11-05"];

const META_VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const META_CLIENT: &str = "io.modelcontextprotocol/clientInfo";
const META_CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const META_LOG_LEVEL: &str = "io.modelcontextprotocol/logLevel";
/// Key of a result's `_meta` under which modern servers name themselves.
pub const META_SERVER: &str = "io.modelcontextprotocol/serverInfo";

/// The era that a version belongs to; `None` for a version that the daemon does not speak.
#[must_use]
pub fn era_of(version: &str) -> Option<Era> {
    if MODERN_VERSIONS.contains(&version) {
        Some(Era::Modern)
    } else if LEGACY_VERSIONS.contains(&version) {
        Some(Era::Legacy)
    } else {
        None
    }
}

/// A request, before it is known how the server wants to hear it.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// The JSON-RPC method.
    pub method: &'static str,
    /// Members of `params`, without `_meta`.
    pub params: Vec<(&'static str, RawJson)>,
    /// Tool, prompt or URI that it is about, mirrored into a header.
    pub name: Option<String>,
    /// Mirrored arguments (`x-mcp-header`).
    pub param_headers: Vec<(String, String)>,
    /// Members that the app adds to `_meta`; free of reserved keys.
    pub meta: Vec<(String, RawJson)>,
    /// Whether progress is wanted.
    pub progress: bool,
    /// Level from which log messages are wanted, in the specification's spelling.
    pub log_level: Option<&'static str>,
}

impl Request {
    /// A request without parameters.
    #[must_use]
    pub fn new(method: &'static str) -> Self {
        Self {
            method,
            ..Self::default()
        }
    }

    /// Adds a parameter.
    #[must_use]
    pub fn param(mut self, name: &'static str, value: RawJson) -> Self {
        self.params.push((name, value));
        self
    }
}

/// A request as it goes out.
#[derive(Clone, Debug)]
pub struct Frame {
    /// Its JSON-RPC id.
    pub id: u64,
    /// The message.
    pub body: Bytes,
    /// Headers of this request, for transports that have headers.
    pub headers: Vec<(String, String)>,
}

/// How to talk to one server: the version, and who we say we are.
#[derive(Clone, Debug)]
pub struct Dialect {
    era: Era,
    version: String,
    capabilities: RawJson,
}

impl Dialect {
    /// The dialect of a version, for a server with this registration.
    #[must_use]
    pub fn new(era: Era, version: &str, spec: &ServerSpec) -> Self {
        Self {
            era,
            version: version.to_owned(),
            capabilities: client_capabilities(spec, era),
        }
    }

    /// The era.
    #[must_use]
    pub fn era(&self) -> Era {
        self.era
    }

    /// The version.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Encodes a request under an id that is not in use.
    #[must_use]
    pub fn encode(&self, request: &Request, id: u64) -> Frame {
        let mut meta = ObjectWriter::new();
        for (key, value) in &request.meta {
            meta.raw(key, value.as_str());
        }
        if request.progress {
            meta.raw(META_PROGRESS_TOKEN, &id.to_string());
        }
        if self.era == Era::Modern {
            meta.string(META_VERSION, &self.version)
                .raw(META_CLIENT, client_info().as_str())
                .raw(META_CAPABILITIES, self.capabilities.as_str());
            if let Some(level) = request.log_level {
                meta.string(META_LOG_LEVEL, level);
            }
        }
        let mut params = ObjectWriter::new();
        for (name, value) in &request.params {
            params.raw(name, value.as_str());
        }
        if !meta.is_empty() {
            params.raw("_meta", meta.finish().as_str());
        }
        let body = protocol::encode_request(id, request.method, &params.finish());
        Frame {
            id,
            body,
            headers: self.headers(request),
        }
    }

    /// Encodes the legacy handshake.
    #[must_use]
    pub fn encode_initialize(&self, id: u64) -> Frame {
        let request = Request::new(method::INITIALIZE)
            .param("protocolVersion", RawJson::encode(&self.version))
            .param("capabilities", self.capabilities.clone())
            .param("clientInfo", client_info());
        // The version is only agreed by the answer: no version header yet.
        let mut frame = self.encode(&request, id);
        frame.headers.clear();
        frame
    }

    /// Headers of a message that is not a request.
    #[must_use]
    pub fn message_headers(&self, method: &str) -> Vec<(String, String)> {
        let mut headers = vec![(headers::PROTOCOL_VERSION.to_owned(), self.version.clone())];
        if self.era == Era::Modern {
            headers.push((headers::METHOD.to_owned(), method.to_owned()));
        }
        headers
    }

    fn headers(&self, request: &Request) -> Vec<(String, String)> {
        let mut headers = self.message_headers(request.method);
        if self.era == Era::Modern {
            if let Some(name) = &request.name {
                headers.push((headers::NAME.to_owned(), headers::encode_value(name)));
            }
            headers.extend(request.param_headers.iter().cloned());
        }
        headers
    }

    /// Sorts a result by what it means for the call (MCP 2026-07-28 basic, `resultType`).
    ///
    /// # Errors
    /// `UPSTREAM_PROTOCOL` for a result type that was not negotiated or is malformed.
    pub fn decode(&self, result: RawJson) -> Result<Outcome> {
        if self.era == Era::Legacy {
            return Ok(Outcome::Complete(result));
        }
        match result.get("resultType").map(|kind| kind.read::<String>()) {
            None => Ok(Outcome::Complete(result)),
            Some(Some(kind)) if kind == "complete" => Ok(Outcome::Complete(result)),
            Some(Some(kind)) if kind == "input_required" => input_required(&result),
            Some(kind) => Err(Error::new(
                Reason::UpstreamProtocol,
                format!(
                    "the server answered with the unknown result type `{}`",
                    kind.unwrap_or_default()
                ),
            )),
        }
    }
}

/// What a result means.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The request is done.
    Complete(RawJson),
    /// The server needs something first.
    InputRequired(InputRequired),
}

/// What a server needs before a call can finish (MCP 2026-07-28 basic/patterns/mrtr).
#[derive(Clone, Debug, Default)]
pub struct InputRequired {
    /// What it asks, by its own keys.
    pub requests: Vec<InputRequest>,
    /// State to hand back byte for byte.
    pub state: Option<RawJson>,
}

/// One thing that a server asks.
#[derive(Clone, Debug)]
pub struct InputRequest {
    /// The server's key.
    pub key: String,
    /// The method, for example `elicitation/create`.
    pub method: String,
    /// The parameters.
    pub params: RawJson,
}

fn input_required(result: &RawJson) -> Result<Outcome> {
    let malformed = |what: &str| {
        Error::new(
            Reason::UpstreamProtocol,
            format!("the server's `input_required` result {what}"),
        )
    };
    let member = |name: &str| result.get(name).filter(|value| value.as_str() != "null");
    let state = member("requestState");
    let Some(requests) = member("inputRequests") else {
        if state.is_none() {
            return Err(malformed("has neither `inputRequests` nor `requestState`"));
        }
        return Ok(Outcome::InputRequired(InputRequired {
            requests: Vec::new(),
            state,
        }));
    };
    let members = requests
        .members()
        .ok_or_else(|| malformed("has `inputRequests` that are no object"))?;
    let mut list = Vec::with_capacity(members.len());
    for (key, request) in members {
        let method = request
            .get("method")
            .and_then(|method| method.read::<String>());
        let method = method.ok_or_else(|| malformed("has a request without a method"))?;
        let params = request.get("params").unwrap_or(RawJson::EMPTY_OBJECT);
        list.push(InputRequest {
            key,
            method,
            params,
        });
    }
    Ok(Outcome::InputRequired(InputRequired {
        requests: list,
        state,
    }))
}

fn client_info() -> RawJson {
    let mut info = ObjectWriter::new();
    info.string("name", "mcp-sidecar")
        .string("version", env!("CARGO_PKG_VERSION"));
    info.finish()
}

/// What we tell a server that it may ask for: only what somebody can answer.
fn client_capabilities(spec: &ServerSpec, era: Era) -> RawJson {
    let wanted = &spec.capabilities;
    let mut capabilities = ObjectWriter::new();
    if wanted.elicitation_form || wanted.elicitation_url {
        let mut modes = ObjectWriter::new();
        if wanted.elicitation_form {
            modes.raw("form", "{}");
        }
        if wanted.elicitation_url {
            modes.raw("url", "{}");
        }
        capabilities.raw("elicitation", modes.finish().as_str());
    }
    if !spec.roots.is_empty() {
        capabilities.raw(
            "roots",
            if era == Era::Modern {
                "{}"
            } else {
                r#"{"listChanged":false}"#
            },
        );
    }
    if !wanted.extensions.is_empty() {
        capabilities.raw("extensions", &wanted.extensions);
    }
    capabilities.finish()
}

#[cfg(test)]
mod tests {
    use super::{Dialect, Outcome, Request};
    use crate::mcp::protocol::RawJson;
    use crate::model::rules::ToolRules;
    use crate::model::spec::{
        ClientCapabilities, RetryPolicy, ServerSpec, StdioSpec, Timeouts, TransportSpec,
    };
    use crate::model::status::Era;

    fn spec() -> ServerSpec {
        let stdio = StdioSpec {
            command: "x".to_owned(),
            args: vec![],
            env: vec![],
            cwd: None,
        };
        ServerSpec {
            name: "x".to_owned(),
            transport: TransportSpec::Stdio(stdio),
            protocol_version: None,
            capabilities: ClientCapabilities::default(),
            roots: vec![],
            retry: RetryPolicy::default(),
            timeouts: Timeouts::default(),
            tools: ToolRules::default(),
            check_results: false,
        }
    }

    fn raw(json: &str) -> RawJson {
        RawJson::parse(json.to_owned()).unwrap()
    }

    #[test]
    fn the_modern_era_says_everything_in_every_request() {
        let dialect = Dialect::new(Era::Modern, "2026-07-28", &spec());
        let mut request = Request::new("tools/call").param("name", raw("\"t\""));
        request.name = Some("t".to_owned());
        request.progress = true;
        request.meta = vec![("com.example/k".to_owned(), raw("1.10"))];
        let frame = dialect.encode(&request, 5);
        let body = String::from_utf8(frame.body.to_vec()).unwrap();
        let expected = concat!(
            r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"t","_meta":{"com.example/k":1.10,"#,
            r#""progressToken":5,"io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
            r#""io.modelcontextprotocol/clientInfo":{"name":"mcp-sidecar","version":""#,
            env!("CARGO_PKG_VERSION"),
            r#""},"io.modelcontextprotocol/clientCapabilities":{}}}}"#
        );
        assert_eq!(body, expected);
        let headers: Vec<_> = frame
            .headers
            .iter()
            .map(|(n, v)| format!("{n}: {v}"))
            .collect();
        assert_eq!(
            headers,
            [
                "mcp-protocol-version: 2026-07-28",
                "mcp-method: tools/call",
                "mcp-name: t"
            ]
        );
    }

    #[test]
    fn the_legacy_era_says_nothing_it_need_not() {
        let dialect = Dialect::new(Era::Legacy, "2025-06-18", &spec());
        let frame = dialect.encode(&Request::new("tools/list"), 1);
        assert_eq!(
            frame.body,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#
        );
        assert_eq!(frame.headers.len(), 1);
    }

    #[test]
    fn results_are_sorted_by_their_type() {
        let modern = Dialect::new(Era::Modern, "2026-07-28", &spec());
        assert!(matches!(modern.decode(raw("{}")), Ok(Outcome::Complete(_))));
        assert!(modern.decode(raw(r#"{"resultType":"task"}"#)).is_err());
        assert!(
            modern
                .decode(raw(r#"{"resultType":"input_required"}"#))
                .is_err()
        );
        let asked = modern.decode(raw(
            r#"{"resultType":"input_required","requestState":" s ","inputRequests":{"k":{"method":"roots/list"}}}"#,
        ));
        let Ok(Outcome::InputRequired(asked)) = asked else {
            panic!("{asked:?}")
        };
        assert_eq!(asked.state.unwrap().as_str(), "\" s \"");
        assert_eq!(asked.requests[0].method, "roots/list");
        let legacy = Dialect::new(Era::Legacy, "2025-11-25", &spec());
        assert!(matches!(
            legacy.decode(raw(r#"{"resultType":"odd"}"#)),
            Ok(Outcome::Complete(_))
        ));
    }
}
