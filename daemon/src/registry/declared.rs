//! Servers in the configuration: the registrations are brought to what the operator wrote, and apps cannot change them.
//!
//! What an app registered is never touched. Everything is checked before anything is changed.

use std::collections::{BTreeMap, BTreeSet};

use super::refusal::{id_taken, too_many};
use super::{Registry, Server, is_same};
use crate::base::{Clock, ServerKey};
use crate::error::{Error, Reason, Result};
use crate::mcp::connection::Ack;
use crate::model::spec::ServerSpec;
use crate::model::status::{ConnectionState, ServerRecord, ServerStatus};
use crate::store::Store;

/// A server in the configuration.
#[derive(Clone, PartialEq, Debug)]
pub struct Declared {
    /// Its full name.
    pub key: ServerKey,
    /// Its settings, with secrets.
    pub spec: ServerSpec,
    /// Whether it is connected when it is registered.
    pub connect: bool,
}

impl Declared {
    /// Whether the other is the same server, whatever its id.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.key.namespace == other.key.namespace && is_same(&self.spec, &other.spec)
    }
}

/// What became of a server in the configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It is new.
    Created,
    /// Its settings differ from what they were.
    Updated,
    /// It is no longer there.
    Removed,
}

/// Brings what was stored to what the configuration says, before anything is connected: a server that left the
/// configuration while no daemon ran is not dialled once more. What cannot be registered is left out, and said: a server of an
/// app must not keep the daemon from starting.
///
/// # Errors
/// STORE_FAILED.
pub async fn settle(
    records: Vec<ServerRecord>,
    declared: Vec<Declared>,
    store: &Store,
    limit: usize,
) -> Result<Vec<ServerRecord>> {
    let wanted: BTreeSet<_> = declared.iter().map(|one| one.key.clone()).collect();
    let mut settled = Vec::new();
    for record in records {
        if record.declared && !wanted.contains(&record.key) {
            store.remove_server(record.key.clone()).await?;
            tracing::info!(server = %record.key, "removed: it is no longer in the configuration");
        } else {
            settled.push(record);
        }
    }
    for one in declared {
        if let Some(refused) = refusal(&one, settled.iter()) {
            tracing::error!(server = %one.key, error = %refused, "a server in the configuration is not registered");
            continue;
        }
        let known = settled.iter_mut().find(|record| record.key == one.key);
        let is_known = known.is_some();
        let mut fresh = new_record(&one);
        let record = match known {
            Some(record) if record.spec == one.spec => continue,
            Some(record) => {
                change(record, one.spec);
                record
            }
            None => &mut fresh,
        };
        let status = ServerStatus {
            state: if record.connect {
                ConnectionState::Connecting
            } else {
                ConnectionState::Disconnected
            },
            since: Clock.wall(),
            ..ServerStatus::default()
        };
        store.put_server(record.clone(), status).await?;
        if !is_known {
            settled.push(fresh);
        }
    }
    if settled.len() > limit {
        tracing::warn!(
            servers = settled.len(),
            limit,
            "more servers are registered than `limits.servers`"
        );
    }
    Ok(settled)
}

fn change(record: &mut ServerRecord, spec: ServerSpec) {
    record.spec = spec;
    record.generation += 1;
    record.updated = Clock.wall();
    // It was agreed under other settings.
    record.session = None;
}

fn new_record(one: &Declared) -> ServerRecord {
    let now = Clock.wall();
    ServerRecord {
        key: one.key.clone(),
        generated_id: false,
        declared: true,
        spec: one.spec.clone(),
        connect: one.connect,
        generation: 1,
        created: now,
        updated: now,
        verdict: None,
        session: None,
    }
}

/// Why a server cannot be registered beside these.
fn refusal<'a>(
    one: &Declared,
    mut others: impl Iterator<Item = &'a ServerRecord>,
) -> Option<Error> {
    let of_app = others.find(|other| {
        other.key.namespace == one.key.namespace
            && !other.declared
            && (other.key.id == one.key.id || is_same(&other.spec, &one.spec))
    })?;
    let id = &of_app.key.id;
    let remedy = "an app registered that; remove it there, or give the one in the configuration another id or name";
    let taken = id_taken(id, of_app, &one.spec);
    Some(Error::new(taken.reason(), format!("{taken}: {remedy}")).with("server_id", id.as_str()))
}

impl Registry {
    /// Brings the registrations to what the configuration says now. An unchanged server keeps its connection and its process,
    /// as one whose changed settings need no other connection does. Completed once begun.
    ///
    /// # Errors
    /// `INVALID_FIELD`, `DESTINATION_BLOCKED`, `SERVER_ID_TAKEN`, `TOO_MANY`, with the server; nothing is changed then. STORE_FAILED,
    /// which may come in the middle.
    pub async fn declare(
        &self,
        declared: Vec<Declared>,
        validate_only: bool,
    ) -> Result<Vec<(ServerKey, Change)>> {
        let registry = self.clone();
        self.complete(async move { registry.declare_now(declared, validate_only).await })
            .await
    }

    async fn declare_now(
        &self,
        declared: Vec<Declared>,
        validate_only: bool,
    ) -> Result<Vec<(ServerKey, Change)>> {
        for one in &declared {
            let named = |error: Error| {
                let text = format!("server `{}` of the configuration: {error}", one.key);
                Error::new(error.reason(), text)
            };
            self.check(&one.spec).map_err(named)?;
        }
        let changes = self.0.changes.lock().await;
        let known: BTreeMap<_, _> = self
            .all()
            .into_iter()
            .map(|server| (server.record.key.clone(), server))
            .collect();
        let wanted: BTreeSet<_> = declared.iter().map(|one| &one.key).collect();
        let gone: Vec<_> = known
            .values()
            .filter(|server| server.record.declared && !wanted.contains(&server.record.key))
            .cloned()
            .collect();
        for one in &declared {
            let others = known.values().map(|server| &*server.record);
            if let Some(refused) = refusal(one, others) {
                return Err(refused);
            }
        }
        let new = declared.iter().filter(|one| !known.contains_key(&one.key));
        let count = known.len() - gone.len() + new.count();
        if count > self.0.limit {
            return Err(too_many(count));
        }

        let mut done = Vec::new();
        let mut acks: Vec<Ack> = Vec::new();
        for server in &gone {
            done.push((server.record.key.clone(), Change::Removed));
            if !validate_only {
                self.forget_for_good(server).await?;
            }
        }
        for one in declared {
            let change_made = match known.get(&one.key) {
                Some(server) if server.record.spec == one.spec => continue,
                Some(_) => Change::Updated,
                None => Change::Created,
            };
            done.push((one.key.clone(), change_made));
            if validate_only {
                continue;
            }
            match known.get(&one.key) {
                Some(server) => {
                    let mut record = ServerRecord::clone(&server.record);
                    change(&mut record, one.spec);
                    acks.push(self.replace(server, record).await?.1);
                }
                None => {
                    self.register(new_record(&one)).await?;
                }
            }
        }
        drop(changes);
        if !validate_only {
            futures_util::future::join_all(gone.iter().map(|server| server.handle.stop())).await;
        }
        for ack in acks {
            ack.done().await;
        }
        Ok(done)
    }
}

/// Whether apps may change this registration.
///
/// # Errors
/// `CALLER_NOT_ALLOWED` for one that is in the configuration.
pub(super) fn check_changeable(server: &Server) -> Result<()> {
    if !server.record.declared {
        return Ok(());
    }
    let id = &server.record.key.id;
    Err(Error::new(
        Reason::CallerNotAllowed,
        format!(
            "server `{id}` is in the configuration of the daemon: the operator changes it there, under [[servers]], and reloads"
        ),
    )
    .with("server_id", id.as_str())
    .with("declared", "configuration"))
}
