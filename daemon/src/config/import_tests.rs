//! Documents as the clients' manuals show them.

use std::collections::HashMap;

use serde_json::json;

use super::*;
use crate::base::Secret;
use crate::error::Reason;
use crate::model::spec::TransportSpec;

fn given(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
    let variables = variables.iter();
    variables
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
        .collect()
}

fn taken(document: &str, variables: &[(&str, &str)]) -> Vec<ServerConfig> {
    let entries = parse(document, &given(variables)).unwrap();
    let entries = entries.into_iter();
    entries
        .map(|entry| {
            entry
                .server
                .unwrap_or_else(|error| panic!("{}: {error}", entry.name))
        })
        .collect()
}

fn here(text: &str) -> SecretSource {
    SecretSource::Here(text.to_owned())
}

#[test]
fn claude_desktop() {
    let servers = taken(
        r#"{"mcpServers": {"filesystem": {"command": "npx",
            "args": ["-y", "@modelcontextprotocol/server-filesystem", "/Users/me/Desktop"],
            "env": {"BRAVE_API_KEY": "key", "DEBUG": 1, "UNSET": null}}}}"#,
        &[],
    );
    let [server] = &servers[..] else {
        panic!("{servers:?}")
    };
    assert_eq!(server.id, "filesystem");
    assert_eq!(server.command.as_deref(), Some("npx"));
    assert_eq!(server.args.len(), 3);
    assert_eq!(server.env["BRAVE_API_KEY"], here("key"));
    assert_eq!(server.env["DEBUG"], here("1"));
    assert_eq!(server.env.len(), 2);
    assert!(server.connect);
}

#[test]
fn claude_code() {
    let document = r#"{"mcpServers": {
        "api-server": {"type": "http", "url": "${API_BASE_URL:-https://api.example.com}/mcp",
            "headers": {"Authorization": "Bearer ${API_KEY}"}},
        "asana": {"type": "sse", "url": "https://mcp.asana.com/sse"},
        "local": {"type": "stdio", "command": "${HOME}/bin/x", "args": [], "env": {}}}}"#;
    let servers = taken(document, &[("API_KEY", "k}${HOME}"), ("HOME", "/h")]);
    assert_eq!(
        servers[0].url.as_deref(),
        Some("https://api.example.com/mcp")
    );
    assert_eq!(servers[0].transport, HttpMode::Auto);
    // What was put in is not looked through.
    assert_eq!(
        servers[0].headers["Authorization"],
        here("Bearer k}${HOME}")
    );
    assert_eq!(servers[1].transport, HttpMode::Sse);
    assert_eq!(servers[2].command.as_deref(), Some("/h/bin/x"));

    let entries = parse(document, &given(&[("API_KEY", "k")])).unwrap();
    assert!(entries[0].server.is_ok() && entries[1].server.is_ok());
    assert_eq!(entries[2].missing, ["HOME"]);
    let error = entries[2].server.as_ref().unwrap_err();
    assert_eq!(error.reason(), Reason::InvalidField);
    assert!(error.message().contains("HOME"), "{error}");
}

#[test]
fn cursor_windsurf_and_gemini() {
    let servers = taken(
        r#"{"mcpServers": {
            "cursor": {"url": "http://localhost:3000/sse", "headers": {"API_KEY": "${env:KEY}"}},
            "windsurf": {"serverUrl": "https://w.example/mcp", "disabled": true, "disabledTools": ["rm"]},
            "gemini": {"httpUrl": "https://g.example/mcp", "includeTools": ["a", "b"], "excludeTools": ["c"]}}}"#,
        &[("KEY", "v")],
    );
    let by_id: HashMap<_, _> = servers.iter().map(|one| (one.id.as_str(), one)).collect();
    assert_eq!(by_id["cursor"].headers["API_KEY"], here("v"));
    assert!(by_id["cursor"].connect && !by_id["windsurf"].connect);
    assert_eq!(
        by_id["windsurf"].url.as_deref(),
        Some("https://w.example/mcp")
    );
    assert_eq!(by_id["windsurf"].denied_tools, ["rm"]);
    assert_eq!(by_id["gemini"].allowed_tools, ["a", "b"]);
    assert_eq!(by_id["gemini"].denied_tools, ["c"]);
}

#[test]
fn vs_code_with_inputs() {
    let document = r#"{
        // Asked for once.
        "inputs": [{"type": "promptString", "id": "perplexity-key", "password": true},],
        "servers": {
            "Perplexity": {"type": "stdio", "command": "npx", "args": ["-y", "server-perplexity-ask"],
                "env": {"PERPLEXITY_API_KEY": "${input:perplexity-key}"}, "envFile": "${workspaceFolder}/.env"},
        },
    }"#;
    let entries = parse(document, &given(&[("perplexity-key", "k")])).unwrap();
    assert_eq!(entries[0].missing, ["workspaceFolder"]);
    let all = given(&[("perplexity-key", "k"), ("workspaceFolder", "/w")]);
    let entries = parse(document, &all).unwrap();
    let server = entries[0].server.as_ref().unwrap();
    assert_eq!(server.env["PERPLEXITY_API_KEY"], here("k"));
    assert_eq!(entries[0].ignored, ["envFile"]);
    let inside = format!(r#"{{"mcp": {document}}}"#);
    assert_eq!(parse(&inside, &all).unwrap().len(), 1);
}

#[test]
fn zed_in_both_forms() {
    let servers = taken(
        r#"{"context_servers": {
            "new": {"source": "custom", "command": "some-command", "args": ["arg"], "env": {"A": "b"}},
            "old": {"command": {"path": "/bin/x", "args": ["y"], "env": {}}, "settings": {}}}}"#,
        &[],
    );
    assert_eq!(servers[0].command.as_deref(), Some("some-command"));
    assert_eq!(servers[1].command.as_deref(), Some("/bin/x"));
    assert_eq!(servers[1].args, ["y"]);
}

#[test]
fn a_bad_entry_does_not_stop_the_others() {
    let document = json!({"mcpServers": {
        "a-text": "x",
        "b-type": {"type": "ws", "url": "https://x"},
        "c-mixed": {"type": "http", "command": "x"},
        "d-args": {"command": "x", "args": "y"},
        "e-file": {"command": "x", "env": {"A": {"file": "/etc/shadow"}}},
        "f-key": {"command": "x", "mcpSidecar": {"nothing": 1}},
        "g-good": {"command": "x"},
    }});
    let entries = parse(&document.to_string(), &BTreeMap::new()).unwrap();
    let good: Vec<_> = entries.iter().map(|entry| entry.server.is_ok()).collect();
    assert_eq!(good, [false, false, false, false, false, false, true]);
    for bad in [
        "",
        "[]",
        "{}",
        r#"{"mcpServers": []}"#,
        "{\"servers\": {}} x",
    ] {
        let error = parse(bad, &BTreeMap::new()).unwrap_err();
        assert_eq!(error.field(), Some("document_json"), "{bad}");
    }
}

#[test]
fn what_is_written_is_read_again() {
    let text = r#"
        id = "notes"
        name = "My notes"
        url = "https://notes.example/mcp"
        headers = { Authorization = "t", X = "y" }
        connect = false
        isolation = "per_user"
        timeouts = { call = "5m" }
        retry = { max_attempts = 5 }
        denied_tools = ["rm*"]
        questions = { unattended = "decline", sampling_expiry = "1h" }
        approval = { rules = [{ tool = "write", action = "ask" }], otherwise = "auto" }
        authorization = { method = "client_credentials", client_id = "c", client_secret = "s", scopes = ["a"] }
    "#;
    let original: ServerConfig = toml::from_str(text).unwrap();
    let mut open = |source: &SecretSource, _: &str| match source {
        SecretSource::Here(text) => Ok(Secret::new(text.clone())),
        SecretSource::In(_) => panic!("a place"),
    };
    let spec = original.to_spec(&mut open).unwrap();
    assert!(matches!(spec.transport, TransportSpec::Http(_)));
    let mut variables = Variables::default();
    let written = ServerConfig::of("notes", &spec, false, &mut |setting| {
        variables.stand_in("notes", setting)
    });
    let document = write(BTreeMap::from([("notes".to_owned(), written)])).unwrap();
    let variables = variables.into_all();
    let names: Vec<_> = variables.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(
        names,
        ["NOTES_AUTHORIZATION", "NOTES_X", "NOTES_CLIENT_SECRET"]
    );
    assert!(
        !document.contains("\"t\"") && !document.contains("\"s\""),
        "{document}"
    );
    let values = given(&[
        ("NOTES_AUTHORIZATION", "t"),
        ("NOTES_X", "y"),
        ("NOTES_CLIENT_SECRET", "s"),
    ]);
    let entries = parse(&document, &values).unwrap();
    let again = entries[0].server.as_ref().unwrap();
    assert_eq!(again.to_spec(&mut open).unwrap(), spec);
    assert!(!again.connect);
    assert_eq!(entries[0].ignored, [""; 0]);
}

#[test]
fn names_of_variables_are_taken_once() {
    let mut variables = Variables::default();
    assert_eq!(variables.stand_in("a", "env.B_C"), here("${A_B_C}"));
    assert_eq!(variables.stand_in("a-b", "env.C"), here("${A_B_C_2}"));
}
