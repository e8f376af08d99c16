//! What can be said of servers in the configuration without opening what they name.

use std::collections::BTreeMap;

use super::{Config, Problem};
use crate::base::Secret;
use crate::config::servers::{SecretSource, ServerConfig};
use crate::model::spec::normalize_id;
use crate::model::validate::check_namespace;

/// Most servers in the configuration.
const MAX_SERVERS: usize = 1_000;
/// Headers whose values are secrets.
const SECRET_HEADERS: &[&str] = &[
    "authorization",
    "proxy-authorization",
    "cookie",
    "x-api-key",
];

pub(super) fn problems(config: &Config, found: &mut Vec<Problem>) {
    let servers = &config.servers;
    if servers.len() > MAX_SERVERS {
        found.push(Problem {
            key: "servers".to_owned(),
            text: format!(
                "has {} entries; at most {MAX_SERVERS} are taken",
                servers.len()
            ),
        });
        return;
    }
    let mut places = BTreeMap::new();
    for (index, server) in servers.iter().enumerate() {
        let mut wrong = |key: &str, text: String| {
            found.push(Problem {
                key: format!("servers.{index}.{key}"),
                text,
            });
        };
        if normalize_id(&server.id).as_str() != server.id {
            let form = normalize_id(&server.id);
            wrong("id", format!("is `{}`; write it as `{form}`", server.id));
        }
        if let Err(error) = check_namespace(server.namespace().as_str()) {
            wrong("namespace", format!("is wrong: {error}"));
        }
        let place = (server.namespace(), server.id.as_str());
        if let Some(first) = places.insert(place, index) {
            wrong(
                "id",
                format!(
                    "is `{}`, as that of `servers.{first}`; ids differ in a namespace",
                    server.id
                ),
            );
        }
        for (name, source) in &server.headers {
            let secret = SECRET_HEADERS
                .iter()
                .any(|known| name.eq_ignore_ascii_case(known));
            if secret && matches!(source, SecretSource::Here(_)) {
                wrong(
                    &format!("headers.{name}"),
                    "is a secret; put it into a file of the daemon's user and write { file = \"/path\" } or { credential = \"name\" }, with prefix = \"Bearer \" if it needs one".to_owned(),
                );
            }
        }
        if server.command.is_some() && !config.stdio.enabled {
            wrong(
                "command",
                "is set, and `stdio.enabled` is false; change one of them".to_owned(),
            );
        }
        sources(server, &mut wrong);
    }
}

/// Whether everything can be expressed, and every source names one place.
fn sources(server: &ServerConfig, wrong: &mut dyn FnMut(&str, String)) {
    let mut stray = Vec::new();
    let spec = server.to_spec(&mut |source, setting| {
        if let SecretSource::In(place) = source {
            let text = match (&place.file, &place.credential) {
                (Some(file), None) if file.is_absolute() => None,
                (Some(file), None) => Some(format!(
                    "names the file `{}`; write its path from the root",
                    file.display()
                )),
                (None, Some(name)) if !name.is_empty() && !name.contains('/') && name != ".." => {
                    None
                }
                (None, Some(name)) => {
                    Some(format!("names the credential `{name}`, which is no name"))
                }
                _ => Some("names no place, or two; write either file or credential".to_owned()),
            };
            if let Some(text) = text {
                stray.push((setting.to_owned(), text));
            }
        }
        Ok(Secret::default())
    });
    for (key, text) in stray {
        wrong(&key, text);
    }
    if let Err(error) = spec {
        let key = error.field().unwrap_or("url").to_owned();
        wrong(&key, format!("is wrong: {error}"));
    }
}
