//! JSON-RPC envelopes over raw JSON, and the names that MCP gives to methods. No I/O, no version differences.
//!
//! A message is taken apart only as far as the daemon itself must read it; `params`, `result` and `data` stay the
//! bytes that arrived, so that whatever a server says reaches the app complete (promise 2).

use std::fmt;

use bytes::Bytes;
use serde::de::IgnoredAny;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::value::RawValue;

use crate::error::RpcError;
use crate::json::{Elements, Members};

/// MCP method names that the daemon sends or understands.
pub mod method {
    /// Modern discovery (MCP 2026-07-28 server/discover).
    pub const DISCOVER: &str = "server/discover";
    /// Modern notification stream (MCP 2026-07-28 basic/patterns/subscriptions).
    pub const LISTEN: &str = "subscriptions/listen";
    /// Legacy handshake (MCP 2025-11-25 basic/lifecycle).
    pub const INITIALIZE: &str = "initialize";
    /// End of the legacy handshake.
    pub const INITIALIZED: &str = "notifications/initialized";
    /// Legacy sign of life, both ways.
    pub const PING: &str = "ping";
    /// Lists tools.
    pub const TOOLS_LIST: &str = "tools/list";
    /// Calls a tool.
    pub const TOOLS_CALL: &str = "tools/call";
    /// Lists resources.
    pub const RESOURCES_LIST: &str = "resources/list";
    /// Lists resource templates.
    pub const TEMPLATES_LIST: &str = "resources/templates/list";
    /// Reads a resource.
    pub const RESOURCES_READ: &str = "resources/read";
    /// Lists prompts.
    pub const PROMPTS_LIST: &str = "prompts/list";
    /// Fills a prompt.
    pub const PROMPTS_GET: &str = "prompts/get";
    /// Completes an argument.
    pub const COMPLETE: &str = "completion/complete";
    /// Legacy: sets the level of log messages of the whole session.
    pub const SET_LEVEL: &str = "logging/setLevel";
    /// Asks how far a task is.
    pub const TASKS_GET: &str = "tasks/get";
    /// Asks for the outcome of a task; 2025-11-25 only.
    pub const TASKS_RESULT: &str = "tasks/result";
    /// Answers what a task asks.
    pub const TASKS_UPDATE: &str = "tasks/update";
    /// Wants a task to be cancelled.
    pub const TASKS_CANCEL: &str = "tasks/cancel";
    /// Asks the user.
    pub const ELICIT: &str = "elicitation/create";
    /// What the user opened for a question is done with.
    pub const ELICITATION_COMPLETE: &str = "notifications/elicitation/complete";
    /// Asks for an answer of a language model.
    pub const CREATE_MESSAGE: &str = "sampling/createMessage";
    /// Asks for the client's roots.
    pub const ROOTS_LIST: &str = "roots/list";
    /// Ends a request.
    pub const CANCELLED: &str = "notifications/cancelled";
    /// Progress of a request.
    pub const PROGRESS: &str = "notifications/progress";
    /// A log message.
    pub const LOG: &str = "notifications/message";
    /// The tools have changed.
    pub const TOOLS_CHANGED: &str = "notifications/tools/list_changed";
    /// The resources have changed.
    pub const RESOURCES_CHANGED: &str = "notifications/resources/list_changed";
    /// The prompts have changed.
    pub const PROMPTS_CHANGED: &str = "notifications/prompts/list_changed";
    /// Legacy: asks for updates of a resource.
    pub const SUBSCRIBE: &str = "resources/subscribe";
    /// Legacy: ends that.
    pub const UNSUBSCRIBE: &str = "resources/unsubscribe";
    /// A resource was updated.
    pub const RESOURCE_UPDATED: &str = "notifications/resources/updated";
    /// A modern notification stream is open.
    pub const ACKNOWLEDGED: &str = "notifications/subscriptions/acknowledged";
}

/// JSON-RPC error codes with a meaning to the daemon.
pub mod code {
    /// MCP 2025-11-25: URLs have to be opened first; `data.elicitations` names them.
    pub const URL_ELICITATION_REQUIRED: i64 = -32042;
    /// Modern: headers and body disagree.
    pub const HEADER_MISMATCH: i64 = -32020;
    /// Modern: the request lacks a client capability.
    pub const MISSING_CAPABILITY: i64 = -32021;
    /// Modern: the version is not supported; `data.supported` names those that are.
    pub const UNSUPPORTED_VERSION: i64 = -32022;
    /// No such method.
    pub const METHOD_NOT_FOUND: i64 = -32601;
    /// Bad parameters.
    pub const INVALID_PARAMS: i64 = -32602;
    /// A fault at our side.
    pub const INTERNAL: i64 = -32603;
    /// A person does not want what was asked for (MCP client/sampling).
    pub const USER_REJECTED: i64 = -1;
}

/// Key of `_meta` under which a notification names the subscription it belongs to.
pub const META_SUBSCRIPTION: &str = "io.modelcontextprotocol/subscriptionId";

/// Key of `_meta` under which a request asks for progress.
pub const META_PROGRESS_TOKEN: &str = "progressToken";

/// Whether an app may not set this key of `_meta` itself: the protocol owns it (MCP 2026-07-28 basic, `_meta`).
#[must_use]
pub fn is_reserved_meta_key(key: &str) -> bool {
    let Some((prefix, _)) = key.split_once('/') else {
        return key == META_PROGRESS_TOKEN;
    };
    let second = prefix.split('.').nth(1);
    matches!(second, Some("modelcontextprotocol" | "mcp"))
}

/// Text that is known to be one complete JSON value. Cloning is cheap; nothing is ever re-encoded.
#[derive(Clone, PartialEq, Eq)]
pub struct RawJson(Bytes);

/// As a string that holds the text.
impl Serialize for RawJson {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for RawJson {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(text).map_err(serde::de::Error::custom)
    }
}

impl RawJson {
    /// The text `{}`.
    pub const EMPTY_OBJECT: Self = Self(Bytes::from_static(b"{}"));

    /// Checks text and takes it over.
    ///
    /// # Errors
    /// Says where the text stops being JSON.
    pub fn parse(text: String) -> Result<Self, serde_json::Error> {
        serde_json::from_str::<IgnoredAny>(&text)?;
        Ok(Self(Bytes::from(text)))
    }

    /// Encodes a value of ours.
    #[must_use]
    pub fn encode<T: serde::Serialize + ?Sized>(value: &T) -> Self {
        // The daemon's own values are strings, numbers and flat structs: encoding them cannot fail.
        Self(serde_json::to_vec(value).map_or_else(|_| Bytes::from_static(b"null"), Bytes::from))
    }

    /// An object whose members are texts.
    #[must_use]
    pub fn object(members: &[(&str, &str)]) -> Self {
        let mut object = ObjectWriter::new();
        for (name, value) in members {
            object.string(name, value);
        }
        object.finish()
    }

    /// A part of `whole`, which must have been parsed from it; shares its memory.
    fn within(whole: &Bytes, part: &RawValue) -> Self {
        Self(whole.slice_ref(part.get().as_bytes()))
    }

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        // Checked when the value was made; a slice of UTF-8 at JSON token borders is UTF-8.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// Whether this is an object.
    #[must_use]
    pub fn is_object(&self) -> bool {
        self.0.first() == Some(&b'{')
    }

    /// The members of an object in order, each sharing this value's memory; `None` if this is not an object, or one of more
    /// than [`MAX_PARTS`](crate::json::MAX_PARTS) members.
    #[must_use]
    pub fn members(&self) -> Option<Vec<(String, RawJson)>> {
        let members: Members<'_> = serde_json::from_slice(&self.0).ok()?;
        let owned = members.0.into_iter();
        Some(
            owned
                .map(|(name, value)| (name.into_owned(), Self::within(&self.0, value)))
                .collect(),
        )
    }

    /// The elements of an array in order; `None` if this is not an array, or one of more than
    /// [`MAX_PARTS`](crate::json::MAX_PARTS) elements.
    #[must_use]
    pub fn elements(&self) -> Option<Vec<RawJson>> {
        let elements: Elements<'_> = serde_json::from_slice(&self.0).ok()?;
        Some(
            elements
                .0
                .into_iter()
                .map(|value| Self::within(&self.0, value))
                .collect(),
        )
    }

    /// One member of an object; the last one where a name repeats.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<RawJson> {
        let members: Members<'_> = serde_json::from_slice(&self.0).ok()?;
        let found = members.0.into_iter().rev().find(|(key, _)| key == name)?;
        Some(Self::within(&self.0, found.1))
    }

    /// Reads the value as a Rust type.
    #[must_use]
    pub fn read<T: for<'a> Deserialize<'a>>(&self) -> Option<T> {
        serde_json::from_slice(&self.0).ok()
    }
}

impl fmt::Debug for RawJson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Content may be private: show its size, not the text.
        write!(f, "<{} bytes of JSON>", self.0.len())
    }
}

/// One JSON-RPC message from a server.
#[derive(Clone, Debug)]
pub enum Message {
    /// The answer to one of our requests.
    Response {
        /// Our id, where the answer carries one that we could have sent.
        id: Option<u64>,
        /// The result, or the error.
        outcome: Result<RawJson, RpcError>,
    },
    /// The server asks something (legacy era).
    Request {
        /// The server's id, echoed as it came.
        id: RawJson,
        /// What it wants.
        method: String,
        /// With which parameters.
        params: Option<RawJson>,
    },
    /// The server tells something.
    Notification {
        /// What.
        method: String,
        /// With which parameters.
        params: Option<RawJson>,
    },
}

/// Why bytes are not a JSON-RPC message.
#[derive(Debug, thiserror::Error)]
pub enum ParseError {
    /// Not JSON at all.
    #[error("not JSON: {0}")]
    NotJson(#[source] serde_json::Error),
    /// JSON, but no message.
    #[error("JSON without `method`, `result` or `error`")]
    NotAMessage,
}

/// Takes the envelope of one message apart.
///
/// # Errors
/// When the bytes are not one JSON object with the members of a message.
pub fn parse(bytes: &Bytes) -> Result<Message, ParseError> {
    let members: Members<'_> = serde_json::from_slice(bytes).map_err(ParseError::NotJson)?;
    let (mut id, mut method, mut params, mut result, mut error) = (None, None, None, None, None);
    for (name, value) in members.0 {
        match name.as_ref() {
            "id" => id = Some(value),
            "method" => method = serde_json::from_str::<String>(value.get()).ok(),
            "params" => params = Some(value),
            "result" => result = Some(value),
            "error" => error = Some(value),
            _ => {}
        }
    }
    let raw = |value: &RawValue| RawJson::within(bytes, value);
    let own_id = |id: Option<&RawValue>| id.and_then(|id| serde_json::from_str(id.get()).ok());
    match (method, error, result) {
        (Some(method), _, _) => {
            let params = params.map(raw);
            Ok(match id.filter(|id| id.get() != "null") {
                Some(id) => Message::Request {
                    id: raw(id),
                    method,
                    params,
                },
                None => Message::Notification { method, params },
            })
        }
        (None, Some(error), _) if error.get() != "null" => Ok(Message::Response {
            id: own_id(id),
            outcome: Err(rpc_error(&raw(error))),
        }),
        (None, _, Some(result)) => Ok(Message::Response {
            id: own_id(id),
            outcome: Ok(raw(result)),
        }),
        (None, _, None) => Err(ParseError::NotAMessage),
    }
}

/// Takes a body apart that may be one message or a batch of them (MCP 2025-03-26 basic, batching). Elements of a batch
/// that are no messages are left out, and so is a byte order mark.
///
/// # Errors
/// As [`parse`], when there is no message at all.
pub fn parse_all(bytes: &Bytes) -> Result<Vec<Message>, ParseError> {
    let bytes = &match bytes.strip_prefix("\u{feff}".as_bytes()) {
        Some(text) => bytes.slice_ref(text),
        None => bytes.clone(),
    };
    if bytes.iter().find(|byte| !byte.is_ascii_whitespace()) != Some(&b'[') {
        return parse(bytes).map(|message| vec![message]);
    }
    let elements: Elements<'_> = serde_json::from_slice(bytes).map_err(ParseError::NotJson)?;
    let parsed = elements
        .0
        .into_iter()
        .map(|one| parse(&bytes.slice_ref(one.get().as_bytes())));
    let messages: Vec<Message> = parsed.filter_map(Result::ok).collect();
    if messages.is_empty() {
        Err(ParseError::NotAMessage)
    } else {
        Ok(messages)
    }
}

/// Reads an error object; what is missing or of another type is made up.
#[must_use]
pub fn rpc_error(error: &RawJson) -> RpcError {
    let code = error
        .get("code")
        .and_then(|code| code.read())
        .unwrap_or(code::INTERNAL);
    let message = error
        .get("message")
        .and_then(|message| message.read())
        .unwrap_or_default();
    let data = error.get("data").map(|data| data.as_str().to_owned());
    RpcError {
        code,
        message,
        data,
    }
}

/// Writes a JSON object member by member; values are taken as they are.
#[derive(Debug)]
pub struct ObjectWriter {
    text: String,
}

impl Default for ObjectWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl ObjectWriter {
    /// An object without members.
    #[must_use]
    pub fn new() -> Self {
        Self {
            text: String::from("{"),
        }
    }

    /// Whether nothing was added.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.text.len() == 1
    }

    /// Adds a member whose value is raw JSON.
    pub fn raw(&mut self, name: &str, value: &str) -> &mut Self {
        if !self.is_empty() {
            self.text.push(',');
        }
        self.text.push_str(RawJson::encode(name).as_str());
        self.text.push(':');
        self.text.push_str(value);
        self
    }

    /// Adds a member whose value is a string.
    pub fn string(&mut self, name: &str, value: &str) -> &mut Self {
        self.raw(name, RawJson::encode(value).as_str())
    }

    /// The finished object.
    #[must_use]
    pub fn finish(mut self) -> RawJson {
        self.text.push('}');
        RawJson(Bytes::from(self.text))
    }
}

/// Encodes a request.
#[must_use]
pub fn encode_request(id: u64, method: &str, params: &RawJson) -> Bytes {
    let mut object = ObjectWriter::new();
    object
        .string("jsonrpc", "2.0")
        .raw("id", &id.to_string())
        .string("method", method);
    object.raw("params", params.as_str());
    object.finish().0
}

/// Encodes a notification.
#[must_use]
pub fn encode_notification(method: &str, params: Option<&RawJson>) -> Bytes {
    let mut object = ObjectWriter::new();
    object.string("jsonrpc", "2.0").string("method", method);
    if let Some(params) = params {
        object.raw("params", params.as_str());
    }
    object.finish().0
}

/// Encodes our answer to a server's request (legacy era).
#[must_use]
pub fn encode_response(id: &RawJson, outcome: &Result<RawJson, RpcError>) -> Bytes {
    let mut object = ObjectWriter::new();
    object.string("jsonrpc", "2.0").raw("id", id.as_str());
    match outcome {
        Ok(result) => object.raw("result", result.as_str()),
        Err(error) => {
            let mut inner = ObjectWriter::new();
            inner
                .raw("code", &error.code.to_string())
                .string("message", &error.message);
            if let Some(data) = &error.data {
                inner.raw("data", data);
            }
            object.raw("error", inner.finish().as_str())
        }
    };
    object.finish().0
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    use super::{
        Message, RawJson, encode_notification, encode_request, encode_response,
        is_reserved_meta_key, parse, parse_all,
    };

    fn text(json: &str) -> Bytes {
        Bytes::from(json.to_owned())
    }

    #[test]
    fn a_result_keeps_every_byte() {
        let result = r#"{ "n": 18446744073709551615, "d":1.10, "s":"\ud800", "n":1e400 }"#;
        let message = parse(&text(&format!(
            r#"{{"jsonrpc":"2.0","id":7,"result":{result}}}"#
        )));
        let Ok(Message::Response {
            id: Some(7),
            outcome: Ok(raw),
        }) = message
        else {
            panic!("{message:?}")
        };
        assert_eq!(raw.as_str(), result);
    }

    #[test]
    fn answers_with_foreign_ids_are_still_answers() {
        for id in ["null", "\"server-error\"", "-1", "1.5"] {
            let json = format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{{"code":-32600}}}}"#);
            let message = parse(&text(&json));
            assert!(
                matches!(
                    message,
                    Ok(Message::Response {
                        id: None,
                        outcome: Err(_)
                    })
                ),
                "{id}"
            );
        }
    }

    #[test]
    fn null_results_batches_and_garbage() {
        assert!(matches!(
            parse(&text(r#"{"id":1,"result":null}"#)),
            Ok(Message::Response { outcome: Ok(_), .. })
        ));
        let batch = parse_all(&text(r#" [{"method":"a"},{"id":"x","method":"b"}]"#));
        assert_eq!(batch.map(|batch| batch.len()).ok(), Some(2));
        for garbage in ["", "null", "[]x", "{}", "hello", "{\"id\":1}"] {
            assert!(parse(&text(garbage)).is_err(), "{garbage}");
        }
    }

    #[test]
    fn requests_are_plain_json_rpc() {
        let body = encode_request(3, "tools/list", &RawJson::EMPTY_OBJECT);
        assert_eq!(
            body,
            r#"{"jsonrpc":"2.0","id":3,"method":"tools/list","params":{}}"#
        );
    }

    #[test]
    fn apps_cannot_forge_what_the_protocol_owns() {
        for key in [
            "progressToken",
            "io.modelcontextprotocol/protocolVersion",
            "dev.mcp/x",
            "com.mcp.tools/",
        ] {
            assert!(is_reserved_meta_key(key), "{key}");
        }
        for key in ["traceparent", "com.example/x", "com.example.mcp/x", "x"] {
            assert!(!is_reserved_meta_key(key), "{key}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(bytes in any::<Vec<u8>>()) {
            let _ = parse_all(&Bytes::from(bytes));
        }

        #[test]
        fn a_message_that_was_damaged_does_not_make_the_parser_panic(
            id in any::<u64>(), method in any::<String>(), at in any::<usize>(), byte in any::<u8>(), end in any::<usize>(),
        ) {
            let mut bytes = encode_request(id, &method, &RawJson::encode(&method)).to_vec();
            let (at, end) = (at % bytes.len(), end % (bytes.len() + 1));
            bytes[at] = byte;
            let _ = parse_all(&Bytes::from(bytes.clone()));
            bytes.truncate(end);
            let _ = parse_all(&Bytes::from(bytes));
        }

        #[test]
        fn what_is_written_is_read_as_it_was(id in any::<u64>(), name in any::<String>(), value in any::<String>()) {
            let params = RawJson::encode(&std::collections::BTreeMap::from([(&name, &value)]));
            let request = parse(&encode_request(id, &name, &params));
            let Ok(Message::Request { id: raw, method, params: Some(read) }) = request else {
                panic!("no request: {request:?}");
            };
            prop_assert_eq!((raw.as_str(), &method, read.as_str()), (&*id.to_string(), &name, params.as_str()));
            let notification = parse(&encode_notification(&name, Some(&params)));
            let Ok(Message::Notification { method, params: Some(read) }) = notification else {
                panic!("no notification: {notification:?}");
            };
            prop_assert_eq!((&method, read.as_str()), (&name, params.as_str()));
            let response = parse(&encode_response(&raw, &Ok(params.clone())));
            let Ok(Message::Response { id: Some(back), outcome: Ok(read) }) = response else {
                panic!("no response: {response:?}");
            };
            prop_assert_eq!((back, read.as_str()), (id, params.as_str()));
            // One line, whatever is in it: that is how it is framed on a shared channel.
            prop_assert!(!encode_request(id, &name, &params).contains(&b'\n'));
        }
    }
}
