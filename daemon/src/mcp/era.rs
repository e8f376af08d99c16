//! The two protocol eras: every difference between versions, as pure encoding and decoding.
//!
//! Nothing outside this file asks which era a server speaks, except to open a connection (`open`) and to listen for
//! notifications (`push`), where the eras have different procedures.

mod task;

use bytes::Bytes;

pub use task::{Task, TaskProgress};

use crate::error::{Error, Reason, Result, RpcError};
use crate::mcp::headers;
use crate::mcp::protocol::{self, META_PROGRESS_TOKEN, ObjectWriter, RawJson, code, method};
use crate::model::spec::{Abilities, LogLevel, ServerSpec};
use crate::model::status::Era;

/// The newest modern version.
pub const NEWEST_MODERN: &str = "2026-07-28";
/// The newest legacy version.
pub const NEWEST_LEGACY: &str = "2025-11-25";
/// Modern versions that the daemon speaks, newest first.
pub const MODERN_VERSIONS: &[&str] = &[NEWEST_MODERN];
/// Legacy versions that the daemon speaks, newest first.
pub const LEGACY_VERSIONS: &[&str] = &[NEWEST_LEGACY, "2025-06-18", "2025-03-26", "2024-11-05"];

/// Most requests for input that a server may make at once: each one costs some kilobytes until it is answered.
const MAX_REQUESTS: usize = 1_000;

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
    /// Level from which log messages are wanted.
    pub log_level: Option<LogLevel>,
    /// Whether it can only be made as a task. Modern servers decide by themselves.
    pub as_task: bool,
    /// What the server wanted when the request was made before.
    pub replies: Replies,
}

/// What a server needed before a call can finish, for the request that makes the call again.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Replies {
    /// The answers, by the server's keys.
    pub answers: Option<RawJson>,
    /// State to hand back byte for byte.
    pub state: Option<RawJson>,
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
    has_roots: bool,
    /// Raw, as the registration has them; empty if none.
    extensions: String,
}

impl Dialect {
    /// The dialect of a version, for a server with this registration.
    #[must_use]
    pub fn new(era: Era, version: &str, spec: &ServerSpec) -> Self {
        Self {
            era,
            version: version.to_owned(),
            has_roots: !spec.roots.is_empty(),
            extensions: spec
                .capabilities
                .as_ref()
                .map(|capabilities| capabilities.extensions.clone())
                .unwrap_or_default(),
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

    /// Encodes a request under an id that is not in use. A modern server is told what it may ask for.
    #[must_use]
    pub fn encode(&self, request: &Request, id: u64, able: Abilities) -> Frame {
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
                .raw(META_CAPABILITIES, self.capabilities(able).as_str());
            if let Some(level) = request.log_level {
                meta.string(META_LOG_LEVEL, level.as_str());
            }
        }
        let mut params = ObjectWriter::new();
        for (name, value) in &request.params {
            params.raw(name, value.as_str());
        }
        if let Some(answers) = &request.replies.answers {
            params.raw("inputResponses", answers.as_str());
        }
        if let Some(state) = &request.replies.state {
            params.raw("requestState", state.as_str());
        }
        if request.as_task && self.era == Era::Legacy {
            params.raw("task", "{}");
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

    /// Encodes the legacy handshake, which tells the server what it may ask for.
    #[must_use]
    pub fn encode_initialize(&self, id: u64, able: Abilities) -> Frame {
        let request = Request::new(method::INITIALIZE)
            .param("protocolVersion", RawJson::encode(&self.version))
            .param("capabilities", self.capabilities(able))
            .param("clientInfo", client_info());
        // The version is only agreed by the answer: no version header yet.
        let mut frame = self.encode(&request, id, able);
        frame.headers.clear();
        frame
    }

    /// What we tell a server that it may ask for: only what somebody can answer.
    fn capabilities(&self, able: Abilities) -> RawJson {
        let mut capabilities = ObjectWriter::new();
        if able.elicitation_form || able.elicitation_url {
            let mut modes = ObjectWriter::new();
            if able.elicitation_form {
                modes.raw("form", "{}");
            }
            if able.elicitation_url {
                modes.raw("url", "{}");
            }
            capabilities.raw("elicitation", modes.finish().as_str());
        }
        if able.sampling {
            let mut parts = ObjectWriter::new();
            if able.sampling_tools {
                parts.raw("tools", "{}");
            }
            if able.sampling_context {
                parts.raw("context", "{}");
            }
            capabilities.raw("sampling", parts.finish().as_str());
        }
        if self.has_roots {
            let roots = match self.era {
                Era::Modern => "{}",
                Era::Legacy => r#"{"listChanged":false}"#,
            };
            capabilities.raw("roots", roots);
        }
        let extensions = client_extensions(&self.extensions, self.era);
        if !extensions.is_empty() {
            capabilities.raw("extensions", extensions.finish().as_str());
        }
        capabilities.finish()
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

    /// Sorts the result of a request by what it means (MCP 2026-07-28 basic, `resultType`; 2025-11-25
    /// basic/utilities/tasks).
    ///
    /// # Errors
    /// `UPSTREAM_PROTOCOL` for a result type that was not negotiated or is malformed.
    pub fn decode(&self, request: &Request, result: RawJson) -> Result<Outcome> {
        if self.era == Era::Legacy {
            return match result.get("task").filter(|_| request.as_task) {
                Some(task) => Ok(Outcome::Task(self.read_new_task(&task)?)),
                None => Ok(Outcome::Complete(result)),
            };
        }
        let kind = result.get("resultType").map(|kind| kind.read::<String>());
        match kind.as_ref().map(Option::as_deref) {
            None | Some(Some("complete")) => Ok(Outcome::Complete(result)),
            // So the examples of SEP-2663 call the state of a task, against its text.
            Some(Some("task")) if request.method == method::TASKS_GET => {
                Ok(Outcome::Complete(result))
            }
            Some(Some("input_required")) => input_required(&result),
            Some(Some("task")) if request.method == method::TOOLS_CALL => {
                Ok(Outcome::Task(self.read_new_task(&result)?))
            }
            Some(kind) => Err(malformed(
                "answer",
                &format!("has the unknown result type `{}`", kind.unwrap_or_default()),
            )),
        }
    }
}

impl Dialect {
    /// What an error asks for that names URLs to be opened first (MCP 2025-11-25 client/elicitation, "URL Elicitation
    /// Required Error"); `None` for any other error, or one that names none.
    #[must_use]
    pub fn elicitations_required(&self, rpc: &RpcError) -> Option<InputRequired> {
        if self.era != Era::Legacy || rpc.code != code::URL_ELICITATION_REQUIRED {
            return None;
        }
        let data = RawJson::parse(rpc.data.clone()?).ok()?;
        let all = data.get("elicitations")?.elements()?;
        if all.is_empty() || all.len() > MAX_REQUESTS {
            return None;
        }
        let read = |params: RawJson| {
            let text = |name: &str| params.get(name)?.read::<String>();
            let key = text("elicitationId")?;
            (text("mode")? == "url").then(|| InputRequest {
                key,
                method: method::ELICIT.to_owned(),
                params,
            })
        };
        Some(InputRequired {
            requests: all.into_iter().map(read).collect::<Option<_>>()?,
            state: None,
            by_error: true,
            told: Abilities::NOTHING,
        })
    }
}

/// What a result means.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// The request is done.
    Complete(RawJson),
    /// The server needs something first.
    InputRequired(InputRequired),
    /// The server works on it, and has to be asked for the outcome.
    Task(Task),
}

/// What a server needs before a call can finish (MCP 2026-07-28 basic/patterns/mrtr).
#[derive(Clone, Debug, Default)]
pub struct InputRequired {
    /// What it asks, by its own keys.
    pub requests: Vec<InputRequest>,
    /// State to hand back byte for byte.
    pub state: Option<RawJson>,
    /// The server has refused the call until this is done, and wants no answers.
    pub by_error: bool,
    /// What the server was told that it may ask for.
    pub told: Abilities,
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
    let member = |name: &str| result.get(name).filter(|value| value.as_str() != "null");
    let state = member("requestState");
    let requests = match member("inputRequests") {
        Some(requests) => input_requests(&requests)?,
        None if state.is_some() => Vec::new(),
        None => {
            return Err(malformed(
                "`input_required` result",
                "has neither `inputRequests` nor `requestState`",
            ));
        }
    };
    Ok(Outcome::InputRequired(InputRequired {
        requests,
        state,
        by_error: false,
        told: Abilities::NOTHING,
    }))
}

/// Reads what a server asks, by its keys.
fn input_requests(requests: &RawJson) -> Result<Vec<InputRequest>> {
    let members = requests
        .members()
        .ok_or_else(|| malformed("`inputRequests`", "are no object"))?;
    if members.len() > MAX_REQUESTS {
        let fault = format!("are {} at once, of at most {MAX_REQUESTS}", members.len());
        return Err(malformed("`inputRequests`", &fault));
    }
    let read = |(key, request): (String, RawJson)| {
        let method = request
            .get("method")
            .and_then(|method| method.read::<String>())
            .ok_or_else(|| malformed("`inputRequests`", "have a request without a method"))?;
        let params = request.get("params").unwrap_or(RawJson::EMPTY_OBJECT);
        Ok(InputRequest {
            key,
            method,
            params,
        })
    };
    members.into_iter().map(read).collect()
}

fn malformed(what: &str, fault: &str) -> Error {
    Error::new(
        Reason::UpstreamProtocol,
        format!("the server's {what} {fault}"),
    )
}

fn client_info() -> RawJson {
    let mut info = ObjectWriter::new();
    info.string("name", "mcp-sidecar")
        .string("version", env!("CARGO_PKG_VERSION"));
    info.finish()
}

/// Those that the app asked for, and those that the daemon itself understands.
fn client_extensions(wanted: &str, era: Era) -> ObjectWriter {
    let wanted = RawJson::parse(wanted.to_owned()).ok();
    let wanted = wanted
        .and_then(|wanted| wanted.members())
        .unwrap_or_default();
    let mut extensions = ObjectWriter::new();
    for (name, value) in &wanted {
        extensions.raw(name, value.as_str());
    }
    if era == Era::Modern && wanted.iter().all(|(name, _)| name != task::EXTENSION) {
        extensions.raw(task::EXTENSION, "{}");
    }
    extensions
}

#[cfg(test)]
mod tests {
    use super::{Dialect, Outcome, Request};
    use crate::mcp::protocol::RawJson;
    use crate::model::rules::ToolRules;
    use crate::model::spec::{
        Abilities, ClientCapabilities, QuestionPolicy, RetryPolicy, ServerSpec, StdioSpec,
        Timeouts, TransportSpec,
    };
    use crate::model::status::Era;

    pub(super) fn spec() -> ServerSpec {
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
            capabilities: None,
            questions: QuestionPolicy::default(),
            roots: vec![],
            isolation: crate::model::spec::Isolation::default(),
            log_level: None,
            retry: RetryPolicy::default(),
            timeouts: Timeouts::default(),
            tools: ToolRules::default(),
            approval: crate::model::approval::Approval::default(),
            check_results: false,
            auth: crate::model::auth::AuthSpec::default(),
        }
    }

    pub(super) fn raw(json: &str) -> RawJson {
        RawJson::parse(json.to_owned()).unwrap()
    }

    #[test]
    fn the_modern_era_says_everything_in_every_request() {
        let dialect = Dialect::new(Era::Modern, "2026-07-28", &spec());
        let mut request = Request::new("tools/call").param("name", raw("\"t\""));
        request.name = Some("t".to_owned());
        request.progress = true;
        request.meta = vec![("com.example/k".to_owned(), raw("1.10"))];
        let frame = dialect.encode(&request, 5, Abilities::NOTHING);
        let body = String::from_utf8(frame.body.to_vec()).unwrap();
        let expected = concat!(
            r#"{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"t","_meta":{"com.example/k":1.10,"#,
            r#""progressToken":5,"io.modelcontextprotocol/protocolVersion":"2026-07-28","#,
            r#""io.modelcontextprotocol/clientInfo":{"name":"mcp-sidecar","version":""#,
            env!("CARGO_PKG_VERSION"),
            r#""},"io.modelcontextprotocol/clientCapabilities":{"extensions":{"io.modelcontextprotocol/tasks":{}}}}}}"#
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
        let frame = dialect.encode(&Request::new("tools/list"), 1, Abilities::NOTHING);
        assert_eq!(
            frame.body,
            r#"{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}"#
        );
        assert_eq!(frame.headers.len(), 1);
    }

    #[test]
    fn results_are_sorted_by_their_type() {
        let modern = Dialect::new(Era::Modern, "2026-07-28", &spec());
        let call = Request::new("tools/call");
        let sort = |result: &str| modern.decode(&call, raw(result));
        assert!(matches!(sort("{}"), Ok(Outcome::Complete(_))));
        assert!(sort(r#"{"resultType":"odd"}"#).is_err());
        assert!(sort(r#"{"resultType":7}"#).is_err());
        assert!(sort(r#"{"resultType":"input_required"}"#).is_err());
        let asked = sort(
            r#"{"resultType":"input_required","requestState":" s ","inputRequests":{"k":{"method":"roots/list"}}}"#,
        );
        let Ok(Outcome::InputRequired(asked)) = asked else {
            panic!("{asked:?}")
        };
        assert_eq!(asked.state.unwrap().as_str(), "\" s \"");
        assert_eq!(asked.requests[0].method, "roots/list");
        let legacy = Dialect::new(Era::Legacy, "2025-11-25", &spec());
        assert!(matches!(
            legacy.decode(&call, raw(r#"{"resultType":"odd"}"#)),
            Ok(Outcome::Complete(_))
        ));
    }

    #[test]
    fn a_task_is_one_where_it_may_be() {
        let modern = Dialect::new(Era::Modern, "2026-07-28", &spec());
        let task = r#"{"resultType":"task","taskId":"t","status":"working"}"#;
        let mut call = Request::new("tools/call");
        assert!(matches!(
            modern.decode(&call, raw(task)),
            Ok(Outcome::Task(_))
        ));
        assert!(
            modern
                .decode(&Request::new("prompts/get"), raw(task))
                .is_err()
        );
        // A legacy server makes one only if it was asked to.
        let legacy = Dialect::new(Era::Legacy, "2025-11-25", &spec());
        let task = r#"{"task":{"taskId":"t","status":"working"}}"#;
        assert!(matches!(
            legacy.decode(&call, raw(task)),
            Ok(Outcome::Complete(_))
        ));
        call.as_task = true;
        assert!(matches!(
            legacy.decode(&call, raw(task)),
            Ok(Outcome::Task(_))
        ));
        let body =
            String::from_utf8(legacy.encode(&call, 1, Abilities::NOTHING).body.to_vec()).unwrap();
        assert!(body.contains(r#""params":{"task":{}}"#), "{body}");
    }

    #[test]
    fn an_app_may_say_more_about_an_extension_than_the_daemon() {
        let mut spec = spec();
        let extensions = r#"{"io.modelcontextprotocol/tasks":{"x":1},"com.example/y":{}}"#;
        spec.capabilities = Some(ClientCapabilities {
            extensions: extensions.to_owned(),
            ..ClientCapabilities::default()
        });
        let modern = Dialect::new(Era::Modern, "2026-07-28", &spec);
        let said = format!(r#"{{"extensions":{extensions}}}"#);
        assert_eq!(modern.capabilities(Abilities::NOTHING).as_str(), said);
    }
}
