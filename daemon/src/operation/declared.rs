//! From the servers in the configuration to registrations: opens the files and credentials that they name for their secrets.
//!
//! Blocks; says of everything that is wrong which server it is.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::base::{Secret, ServerId, ServerKey};
use crate::config::Config;
use crate::config::servers::{SecretPlace, SecretSource, ServerConfig};
use crate::error::{Error, Reason, Result};
use crate::registry::check_settings;
use crate::registry::declared::Declared;

/// Longest secret in a file, in bytes.
const MAX_SECRET: u64 = 64 * 1024;

/// The registrations that the configuration wants. `credentials` is the directory of the service manager's credentials.
///
/// # Errors
/// `INVALID_FIELD` with everything that is wrong, each with the server, its key and a remedy.
pub fn read(config: &Config, credentials: Option<&Path>) -> Result<Vec<Declared>> {
    let mut declared = Vec::new();
    let mut problems = String::new();
    for (index, server) in config.servers.iter().enumerate() {
        let read = one(server, credentials).and_then(|one| {
            let twin = declared.iter().find(|other: &&Declared| other.is_same(&one));
            twin.map_or(Ok(one), |twin| {
                let text = format!("it is the same as `{}`, by name and target; leave out one, or give it another name", twin.key.id);
                Err(Error::invalid("name", text))
            })
        });
        match read {
            Ok(one) => declared.push(one),
            Err(error) => {
                let id = &server.id;
                let _ = write!(
                    problems,
                    "
  - `servers.{index}` (`{id}`): {error}"
                );
            }
        }
    }
    if problems.is_empty() {
        return Ok(declared);
    }
    let text = format!("the configuration is not acceptable:{problems}");
    Err(Error::new(Reason::InvalidField, text).with("config", "servers"))
}

fn one(server: &ServerConfig, credentials: Option<&Path>) -> Result<Declared> {
    let spec = server.to_spec(&mut |source, setting| open(source, setting, credentials))?;
    check_settings(&spec)?;
    Ok(Declared {
        key: ServerKey::new(server.namespace(), ServerId::new(server.id.as_str())),
        spec,
        connect: server.connect,
    })
}

fn open(
    source: &SecretSource,
    setting: &str,
    credentials: Option<&Path>,
) -> Result<Secret<String>> {
    let place = match source {
        SecretSource::Here(text) => return Ok(Secret::new(text.clone())),
        SecretSource::In(place) => place,
    };
    let wrong = |text: String| Error::invalid(setting.to_owned(), format!("`{setting}`: {text}"));
    let path = path_of(place, credentials).map_err(wrong)?;
    let shown = path.display();
    let wrong = |cause: &dyn std::fmt::Display| {
        wrong(format!(
            "the secret in `{shown}` cannot be read ({cause}); put it there, readable for the daemon's user"
        ))
    };
    let mut text = place.prefix.clone();
    let file = File::open(&path).map_err(|cause| wrong(&cause))?;
    let read = file.take(MAX_SECRET + 1).read_to_string(&mut text);
    let read = read.map_err(|cause| wrong(&cause))?;
    if u64::try_from(read).unwrap_or(u64::MAX) > MAX_SECRET {
        return Err(wrong(&format_args!("it is longer than {MAX_SECRET} bytes")));
    }
    text.truncate(text.trim_end_matches(['\r', '\n']).len());
    if text.len() <= place.prefix.len() {
        return Err(wrong(&"it is empty"));
    }
    Ok(Secret::new(text))
}

fn path_of(place: &SecretPlace, credentials: Option<&Path>) -> Result<PathBuf, String> {
    match (&place.file, &place.credential, credentials) {
        (Some(file), _, _) => Ok(file.clone()),
        (None, Some(name), Some(directory)) => Ok(directory.join(name)),
        (None, Some(name), None) => Err(format!(
            "the service manager passes no credentials; add `LoadCredential={name}:PATH` to the unit, or name a file"
        )),
        (None, None, _) => Err("names no place".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(file: Option<&Path>, credential: Option<&str>, prefix: &str) -> SecretSource {
        SecretSource::In(SecretPlace {
            file: file.map(Path::to_owned),
            credential: credential.map(str::to_owned),
            prefix: prefix.to_owned(),
        })
    }

    #[test]
    fn secrets_are_opened_where_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "s3cret\n").unwrap();
        let by_file = open(&source(Some(&file), None, "Bearer "), "headers.X", None).unwrap();
        assert_eq!(by_file, Secret::new("Bearer s3cret".to_owned()));
        let credential = source(None, Some("token"), "");
        let given = open(&credential, "env.T", Some(dir.path())).unwrap();
        assert_eq!(given, Secret::new("s3cret".to_owned()));

        let error = open(&credential, "env.T", None).unwrap_err();
        assert!(error.message().contains("LoadCredential=token"), "{error}");
        std::fs::write(&file, "\n").unwrap();
        let error = open(&source(Some(&file), None, "Bearer "), "env.T", None).unwrap_err();
        assert!(error.message().contains("it is empty"), "{error}");
        std::fs::write(&file, "x".repeat(64 * 1024 + 1)).unwrap();
        let error = open(&source(Some(&file), None, ""), "env.T", None).unwrap_err();
        assert!(error.message().contains("longer than"), "{error}");
        std::fs::remove_file(&file).unwrap();
        let error = open(&source(Some(&file), None, ""), "env.T", None).unwrap_err();
        assert!(error.message().contains("`env.T`") && error.message().contains("token"));
    }
}
