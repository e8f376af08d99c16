//! ImportServers and ExportServers: documents of other clients to registrations and back.

use std::collections::BTreeMap;

use mcp_sidecar_proto::v1;

use crate::base::{Namespace, Secret};
use crate::config::import::{Entry, Variables, parse, write};
use crate::config::servers::{SecretSource, ServerConfig};
use crate::error::{Error, Result};
use crate::registry::{NewServer, Outcome, Registry, Server};

/// Registers every server of a document, each on its own.
///
/// # Errors
/// `INVALID_FIELD` if the document as a whole cannot be read.
pub(super) async fn import(
    registry: &Registry,
    namespace: &Namespace,
    request: v1::ImportServersRequest,
) -> Result<Vec<v1::ImportedServer>> {
    let mut imported = Vec::new();
    let variables = request.variables.into_iter().collect();
    for entry in parse(&request.document_json, &variables)? {
        imported.push(import_one(registry, namespace, entry, request.validate_only).await);
    }
    Ok(imported)
}

async fn import_one(
    registry: &Registry,
    namespace: &Namespace,
    entry: Entry,
    validate_only: bool,
) -> v1::ImportedServer {
    let mut imported = v1::ImportedServer {
        name: entry.name,
        missing_variables: entry.missing,
        ignored_keys: entry.ignored,
        ..Default::default()
    };
    let outcome = match entry.server {
        Ok(server) => register(registry, namespace, &server, validate_only).await,
        Err(error) => Err(error),
    };
    match outcome {
        Ok((id, outcome)) => {
            imported.server_id = id;
            imported.outcome = outcome.into();
        }
        Err(error) => {
            imported.outcome = v1::ImportOutcome::Refused.into();
            imported.refusal = Some(v1::ImportRefusal {
                reason: error.reason().as_str().to_owned(),
                message: error.message().to_owned(),
                field: error.field().unwrap_or_default().to_owned(),
            });
        }
    }
    imported
}

async fn register(
    registry: &Registry,
    namespace: &Namespace,
    server: &ServerConfig,
    validate_only: bool,
) -> Result<(String, v1::ImportOutcome)> {
    let mut spec = server.to_spec(&mut given)?;
    if let Ok(known) = registry.get(namespace, &server.id) {
        spec.order_like(&known.record.spec);
    }
    let new = NewServer {
        namespace: namespace.clone(),
        wanted_id: Some(server.id.clone()),
        spec,
        register_only: !server.connect,
    };
    let (server, outcome) = if validate_only {
        registry.judge(&new)?
    } else {
        let (server, outcome) = Box::pin(registry.add(new.clone())).await?;
        (Some(server), outcome)
    };
    // One that is connected already stays so.
    let connected = server.as_ref().is_some_and(|server| server.record.connect);
    let outcome = match outcome {
        _ if new.register_only && !connected => v1::ImportOutcome::Disabled,
        Outcome::Created => v1::ImportOutcome::Created,
        Outcome::Updated | Outcome::Migrated => v1::ImportOutcome::Updated,
        Outcome::Existing => v1::ImportOutcome::Existing,
    };
    let id = server.map_or_else(String::new, |server| server.record.key.id.to_string());
    Ok((id, outcome))
}

/// A secret in a document of an app: what is there, and nothing that would have to be opened with the rights of the daemon.
fn given(source: &SecretSource, setting: &str) -> Result<Secret<String>> {
    match source {
        SecretSource::Here(text) => Ok(Secret::new(text.clone())),
        SecretSource::In(_) => Err(Error::invalid(
            setting.to_owned(),
            format!(
                "`{setting}` names a file or a credential; only the configuration of the daemon can"
            ),
        )),
    }
}

/// The servers as a document without secrets.
///
/// # Errors
/// INTERNAL if it cannot be written.
pub(super) fn export(servers: &[Server]) -> Result<v1::ExportServersResponse> {
    let mut variables = Variables::default();
    let mut written = BTreeMap::new();
    let mut incomplete = Vec::new();
    for server in servers {
        let record = &server.record;
        let id = record.key.id.as_str();
        let plain = ServerConfig::of(id, &record.spec, record.connect, &mut |_| {
            SecretSource::Here(String::new())
        });
        let again = plain.to_spec(&mut |_, _| Ok(Secret::default()));
        let mut spec = record.spec.without_secrets();
        if let Ok(again) = &again {
            spec.order_like(again);
        }
        if again.as_ref() != Ok(&spec) || has_variables(&plain) {
            incomplete.push(id.to_owned());
        }
        let one = ServerConfig::of(id, &record.spec, record.connect, &mut |setting| {
            variables.stand_in(id, setting)
        });
        written.insert(id.to_owned(), one);
    }
    let variables = variables.into_all().into_iter();
    Ok(v1::ExportServersResponse {
        document_json: write(written)?,
        variables: variables
            .map(|variable| v1::ExportVariable {
                name: variable.name,
                server_id: variable.server,
                setting: variable.setting,
            })
            .collect(),
        incomplete_server_ids: incomplete,
    })
}

/// Whether a text of it would be taken for one with a variable.
fn has_variables(server: &ServerConfig) -> bool {
    serde_json::to_string(server).is_ok_and(|text| text.contains("${"))
}
