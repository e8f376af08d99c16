//! Documents in which other MCP clients keep their servers, read and written: `mcpServers` (Claude Desktop, Claude Code, Cursor,
//! Windsurf, Gemini), `servers` (VS Code), `context_servers` (Zed). Pure: text goes in, servers come out.
//!
//! Puts in no variable that was not given, and opens nothing: a document comes from an app.

mod jsonc;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use super::servers::{SecretSource, ServerConfig};
use crate::error::{Error, Result};
use crate::model::spec::HttpMode;

/// Longest document, in bytes.
const MAX_DOCUMENT: usize = 1024 * 1024;
/// Most servers of a document.
const MAX_SERVERS: usize = 1_000;
/// Longest value of a variable put in, and of what comes of a text, in bytes.
const MAX_TEXT: usize = 256 * 1024;
/// The member with the settings that other clients have no key for.
const OWN: &str = "mcpSidecar";
/// Where clients keep their servers.
const SECTIONS: &[&str] = &["mcpServers", "servers", "context_servers"];

/// A server in a document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// Its name there.
    pub name: String,
    /// What it says, or why that cannot be taken.
    pub server: Result<ServerConfig>,
    /// Variables that have no value; then `server` is an error.
    pub missing: Vec<String>,
    /// Keys that mean nothing here.
    pub ignored: Vec<String>,
}

/// The servers of a document, with the variables put in.
///
/// # Errors
/// `INVALID_FIELD` `document_json` for what is no such document.
pub fn parse(document: &str, variables: &BTreeMap<String, String>) -> Result<Vec<Entry>> {
    let wrong = |text: String| Error::invalid("document_json", text);
    if document.len() > MAX_DOCUMENT {
        let length = document.len();
        return Err(wrong(format!(
            "the document is {length} bytes long; at most {MAX_DOCUMENT} are taken"
        )));
    }
    let root: Value = serde_json::from_str(&jsonc::plain(document))
        .map_err(|cause| wrong(format!("the document is no JSON: {cause}")))?;
    let root = root
        .as_object()
        .ok_or_else(|| wrong("the document is no JSON object".to_owned()))?;
    // VS Code has the same section inside `mcp` of its settings.
    let inner = root.get("mcp").and_then(Value::as_object);
    let mut found = false;
    let mut entries = Vec::new();
    for place in [Some(root), inner].into_iter().flatten() {
        for section in SECTIONS {
            let Some(servers) = place.get(*section) else {
                continue;
            };
            let servers = servers
                .as_object()
                .ok_or_else(|| wrong(format!("`{section}` is no JSON object of servers")))?;
            found = true;
            for (name, entry) in servers {
                entries.push(read(name, entry, variables));
            }
        }
    }
    if !found {
        return Err(wrong(format!(
            "the document has no servers: none of {SECTIONS:?} is in it"
        )));
    }
    if entries.len() > MAX_SERVERS {
        let count = entries.len();
        return Err(wrong(format!(
            "the document has {count} servers; at most {MAX_SERVERS} are taken"
        )));
    }
    Ok(entries)
}

fn read(name: &str, entry: &Value, variables: &BTreeMap<String, String>) -> Entry {
    let mut missing = BTreeSet::new();
    let mut ignored = Vec::new();
    let server = match filled(entry, variables, &mut missing) {
        _ if !missing.is_empty() => Err(Error::invalid(
            "variables",
            format!("give values for {missing:?}"),
        )),
        Ok(Value::Object(entry)) => server(name, entry, &mut ignored),
        Ok(_) => Err(Error::invalid(
            name.to_owned(),
            "the entry is no JSON object",
        )),
        Err(error) => Err(error),
    };
    Entry {
        name: name.to_owned(),
        server,
        missing: missing.into_iter().collect(),
        ignored,
    }
}

/// The settings of an entry whose variables are put in.
fn server(
    name: &str,
    mut entry: Map<String, Value>,
    ignored: &mut Vec<String>,
) -> Result<ServerConfig> {
    let mut own = match entry.remove(OWN) {
        None => Map::new(),
        Some(Value::Object(own)) => own,
        Some(_) => return Err(Error::invalid(OWN, format!("`{OWN}` is no JSON object"))),
    };
    // Zed once had program, arguments and environment in one.
    if let Some(Value::Object(mut command)) = entry.get("command").cloned() {
        entry.remove("command");
        if let Some(path) = command.remove("path") {
            command.insert("command".to_owned(), path);
        }
        entry.extend(command);
    }
    let kind = entry.remove("type");
    let mut put = |key: &str, value: Value| own.insert(key.to_owned(), value);
    put("id", Value::from(name));
    for (key, value) in entry {
        match key.as_str() {
            "command" | "cwd" | "args" => {
                put(&key, value);
            }
            // Windsurf, and Gemini for what is not HTTP+SSE.
            "url" | "serverUrl" | "httpUrl" => {
                put("url", value);
            }
            "env" | "headers" => {
                put(&key, texts(&key, value)?);
            }
            "includeTools" => {
                put("allowed_tools", value);
            }
            "excludeTools" | "disabledTools" => {
                put("denied_tools", value);
            }
            "disabled" if value.is_boolean() => {
                put("connect", Value::from(value == Value::Bool(false)));
            }
            "enabled" if value.is_boolean() => {
                put("connect", value);
            }
            _ => ignored.push(key),
        }
    }
    let url = own.contains_key("url");
    match kind.as_ref().map(|kind| kind.as_str().unwrap_or_default()) {
        None => {}
        Some("stdio" | "local" | "command") if !url => {}
        Some("http" | "remote") if url => {}
        Some("streamable-http" | "streamable_http" | "streamableHttp") if url => {
            own.insert("transport".to_owned(), Value::from("streamable_http"));
        }
        Some("sse") if url => {
            own.insert("transport".to_owned(), Value::from("sse"));
        }
        Some(_) => {
            let kind = kind.unwrap_or_default();
            return Err(Error::invalid(
                "type",
                format!(
                    "type {kind} does not fit; known are \"stdio\" with a `command`, \"http\", \"streamable-http\" and \"sse\" with a `url`"
                ),
            ));
        }
    }
    serde_json::from_value(Value::Object(own)).map_err(|cause| {
        Error::invalid(
            name.to_owned(),
            format!("the entry cannot be read: {cause}"),
        )
    })
}

/// Values of headers and variables, as texts. What is null is as if it were not there.
fn texts(key: &str, value: Value) -> Result<Value> {
    let Value::Object(map) = value else {
        return Err(Error::invalid(
            key.to_owned(),
            format!("`{key}` is no JSON object"),
        ));
    };
    let mut texts = Map::new();
    for (name, value) in map {
        let text = match value {
            Value::Null => continue,
            Value::String(text) => text,
            Value::Bool(_) | Value::Number(_) => value.to_string(),
            // A file that is named would be opened with the rights of the daemon.
            Value::Array(_) | Value::Object(_) => {
                let field = format!("{key}.{name}");
                return Err(Error::invalid(field, format!("`{key}.{name}` is no text")));
            }
        };
        texts.insert(name, Value::from(text));
    }
    Ok(Value::Object(texts))
}

/// The same with every text filled in.
fn filled(
    value: &Value,
    variables: &BTreeMap<String, String>,
    missing: &mut BTreeSet<String>,
) -> Result<Value> {
    Ok(match value {
        Value::String(text) => Value::from(fill(text, variables, missing)?),
        Value::Array(items) => {
            let items = items.iter().map(|item| filled(item, variables, missing));
            Value::Array(items.collect::<Result<_>>()?)
        }
        Value::Object(members) => {
            let members = members.iter();
            let members =
                members.map(|(key, value)| Ok((key.clone(), filled(value, variables, missing)?)));
            Value::Object(members.collect::<Result<_>>()?)
        }
        other => other.clone(),
    })
}

/// Puts in the variables of a text. What is put in is not looked through again.
fn fill(
    text: &str,
    variables: &BTreeMap<String, String>,
    missing: &mut BTreeSet<String>,
) -> Result<String> {
    let mut filled = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("${") {
        let Some((inside, after)) = after.split_once('}') else {
            break;
        };
        filled.push_str(before);
        let (name, default) = match inside.split_once(":-") {
            Some((name, default)) => (name, Some(default)),
            None => (inside, None),
        };
        let name = name
            .strip_prefix("env:")
            .or_else(|| name.strip_prefix("input:"))
            .unwrap_or(name);
        match variables.get(name).map(String::as_str).or(default) {
            Some(value) => filled.push_str(value),
            None => {
                missing.insert(name.to_owned());
            }
        }
        if filled.len() > MAX_TEXT {
            return Err(Error::invalid(
                "variables",
                format!("what comes of a text is longer than {MAX_TEXT} bytes"),
            ));
        }
        rest = after;
    }
    filled.push_str(rest);
    Ok(filled)
}

/// A variable of a document that was written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// The id of the server.
    pub server: String,
    /// The secret that it stands for.
    pub setting: String,
}

/// Makes up names of variables, each once.
#[derive(Debug, Default)]
pub struct Variables {
    all: Vec<Variable>,
    taken: BTreeSet<String>,
}

impl Variables {
    /// What is written in place of a secret.
    pub fn stand_in(&mut self, server: &str, setting: &str) -> SecretSource {
        let key = setting.split_once('.').map_or(setting, |(_, key)| key);
        let plain = |c: char| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_uppercase()
            } else {
                '_'
            }
        };
        let stem: String = format!("{server}_{key}").chars().map(plain).collect();
        let mut name = stem.clone();
        let mut count = 1;
        while !self.taken.insert(name.clone()) {
            count += 1;
            name = format!("{stem}_{count}");
        }
        let written = SecretSource::Here(format!("${{{name}}}"));
        self.all.push(Variable {
            name,
            server: server.to_owned(),
            setting: setting.to_owned(),
        });
        written
    }

    /// All of them, in the order in which they were made.
    #[must_use]
    pub fn into_all(self) -> Vec<Variable> {
        self.all
    }
}

/// The document with these servers, by their ids.
///
/// # Errors
/// INTERNAL if it cannot be written.
pub fn write(servers: BTreeMap<String, ServerConfig>) -> Result<String> {
    let failed = |cause: serde_json::Error| {
        Error::internal(format!("the document cannot be written: {cause}"))
    };
    let mut section = Map::new();
    for (id, server) in servers {
        let kind = match (&server.url, &server.command, server.transport) {
            (Some(_), _, HttpMode::Auto) => Some("http"),
            (Some(_), _, HttpMode::StreamableHttp) => Some("streamable-http"),
            (Some(_), _, HttpMode::Sse) => Some("sse"),
            (None, Some(_), _) => Some("stdio"),
            (None, None, _) => None,
        };
        let disabled = !server.connect;
        let Value::Object(mut own) = serde_json::to_value(server).map_err(failed)? else {
            continue;
        };
        for key in ["id", "namespace", "connect", "transport"] {
            own.remove(key);
        }
        let mut entry = Map::new();
        if let Some(kind) = kind {
            entry.insert("type".to_owned(), Value::from(kind));
        }
        let common = if kind.is_some() {
            &["command", "args", "env", "cwd", "url", "headers"][..]
        } else {
            &["headers"]
        };
        for key in common {
            if let Some(value) = own.remove(*key) {
                entry.insert((*key).to_owned(), value);
            }
        }
        if disabled {
            entry.insert("disabled".to_owned(), Value::Bool(true));
        }
        if !own.is_empty() {
            entry.insert(OWN.to_owned(), Value::Object(own));
        }
        section.insert(id, Value::Object(entry));
    }
    let document = serde_json::json!({ "mcpServers": section });
    serde_json::to_string_pretty(&document).map_err(failed)
}

#[cfg(test)]
#[path = "import_tests.rs"]
mod tests;
