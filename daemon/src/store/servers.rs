//! Rows of registered servers.
//!
//! Never puts a secret into anything but the sealed column.

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::auth;
use super::calls;
use super::log::Changes;
use super::questions;
use super::seal::Sealer;
use super::{count, json, unreadable};
use crate::base::{Namespace, Revision, ServerId, ServerKey, Timestamp};
use crate::error::{Error, Reason, Result};
use crate::model::call::KeepCalls;
use crate::model::spec::ServerSpec;
use crate::model::status::{
    ConnectionState, Failure, ServerRecord, ServerStatus, ServerView, Session, Verdict,
};
use crate::model::update::{Body, Filter, Kind};

const COLUMNS: &str = "namespace, id, generated_id, spec_json, connect, generation, created, updated, verdict_json, \
                       status_json, sealed, declared";

/// A row. The record's secrets are empty until they are opened.
struct Stored {
    record: ServerRecord,
    status: ServerStatus,
    sealed: Option<Vec<u8>>,
}

impl Stored {
    fn read(row: &Row<'_>) -> Result<Self> {
        let namespace = Namespace::new(row.get::<_, String>(0)?);
        let key = ServerKey::new(namespace, ServerId::new(row.get::<_, String>(1)?));
        let broken = || unreadable("row of server", &key);
        let parsed = |index| row.get_ref(index).ok()?.as_str().ok();
        let verdict: Option<String> = row.get(8)?;
        let verdict = verdict
            .map(|text| serde_json::from_str::<Verdict>(&text).map_err(|_| broken()))
            .transpose()?;
        let spec = parsed(3).and_then(|text| serde_json::from_str(text).ok());
        let status = parsed(9).and_then(|text| serde_json::from_str(text).ok());
        Ok(Self {
            record: ServerRecord {
                generated_id: row.get(2)?,
                spec: spec.ok_or_else(broken)?,
                connect: row.get(4)?,
                generation: u64::try_from(row.get::<_, i64>(5)?).map_err(|_| broken())?,
                created: Timestamp(row.get(6)?),
                updated: Timestamp(row.get(7)?),
                verdict,
                session: None,
                declared: row.get(11)?,
                key: key.clone(),
            },
            status: status.ok_or_else(broken)?,
            sealed: row.get(10)?,
        })
    }
}

/// Inserts or replaces a server. A session that was agreed under other settings is forgotten.
pub(super) fn put(
    changes: &mut Changes<'_>,
    record: &ServerRecord,
    status: ServerStatus,
    sealed: Option<&[u8]>,
) -> Result<Revision> {
    let connection = changes.connection;
    if let Some(before) = one(connection, &record.key)?
        && authorizes_otherwise(&before.record.spec, &record.spec)
    {
        auth::forget_granted(connection, &record.key)?;
    }
    connection
        .prepare_cached(
            "INSERT INTO namespaces (name, created) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
        )?
        .execute(params![record.key.namespace.as_str(), changes.now.0])?;
    let generation = i64::try_from(record.generation)
        .map_err(|_| Error::internal("the generation of a server is too large"))?;
    connection
        .prepare_cached(
            "DELETE FROM sessions WHERE namespace = ?1 AND server_id = ?2
             AND NOT EXISTS (SELECT 1 FROM servers WHERE namespace = ?1 AND id = ?2 AND generation = ?3)",
        )?
        .execute(params![
            record.key.namespace.as_str(),
            record.key.id.as_str(),
            generation
        ])?;
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO servers (namespace, id, generated_id, name, target, spec_json, sealed, connect,
                 generation, created, updated, status_json, verdict_json, declared)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        )?
        .execute(params![
            record.key.namespace.as_str(),
            record.key.id.as_str(),
            record.generated_id,
            record.spec.name,
            record.spec.target(),
            json(&record.spec)?,
            sealed,
            record.connect,
            generation,
            record.created.0,
            record.updated.0,
            json(&status)?,
            record.verdict.as_ref().map(json).transpose()?,
            record.declared,
        ])?;
    changes.server(record.view(status))
}

/// Whether what was granted under the old settings is of no use, or of harm, under the new ones: it must not reach another
/// server. The old ones have no secrets.
fn authorizes_otherwise(old: &ServerSpec, new: &ServerSpec) -> bool {
    let new = new.without_secrets();
    old.auth != new.auth || old.target() != new.target()
}

/// Replaces a server by one with another id; its questions, grants and sign-ins go with it.
pub(super) fn rename(
    changes: &mut Changes<'_>,
    old: &ServerKey,
    record: &ServerRecord,
    status: ServerStatus,
    sealed: Option<&[u8]>,
    sealer: &Sealer,
) -> Result<Revision> {
    if *old == record.key {
        return put(changes, record, status, sealed);
    }
    if old.namespace != record.key.namespace {
        return Err(Error::internal("a server cannot move to another namespace"));
    }
    if exists(changes.connection, &record.key)? {
        return Err(Error::new(
            Reason::ServerIdTaken,
            format!(
                "the id of `{}` already belongs to another server",
                record.key
            ),
        ));
    }
    if let Some(before) = one(changes.connection, old)?
        && authorizes_otherwise(&before.record.spec, &record.spec)
    {
        auth::forget_granted(changes.connection, old)?;
    }
    let authorizations = auth::take_all(changes.connection, sealer, old)?;
    delete(changes, old)?;
    put(changes, record, status, sealed)?;
    auth::give_all(changes, sealer, authorizations, &record.key)?;
    questions::move_all(changes, old, &record.key)?;
    calls::move_all(changes, old, &record.key)?;
    super::log::head(changes.connection)
}

/// Removes a server; the calls to it and its pending questions end first.
pub(super) fn remove(
    changes: &mut Changes<'_>,
    sealer: &Sealer,
    key: &ServerKey,
    keep: KeepCalls,
) -> Result<Revision> {
    calls::end_of_server(changes, sealer, key, keep)?;
    questions::void(changes, Some(key))?;
    delete(changes, key)
}

fn delete(changes: &mut Changes<'_>, key: &ServerKey) -> Result<Revision> {
    let deleted = changes
        .connection
        .prepare_cached("DELETE FROM servers WHERE namespace = ?1 AND id = ?2")?
        .execute([key.namespace.as_str(), key.id.as_str()])?;
    if deleted == 0 {
        return Err(Error::new(
            Reason::ServerNotFound,
            format!("there is no server `{key}`"),
        ));
    }
    forget_session(changes.connection, key)?;
    auth::delete_all(changes.connection, key)?;
    changes.deleted(&key.namespace, &key.id, Kind::Server, key.id.as_str())
}

/// Whether a server is registered.
pub(super) fn exists(connection: &Connection, key: &ServerKey) -> Result<bool> {
    Ok(connection
        .prepare_cached("SELECT 1 FROM servers WHERE namespace = ?1 AND id = ?2")?
        .exists([key.namespace.as_str(), key.id.as_str()])?)
}

/// Replaces the status, and the verdict if one is given. `None` if the server is not registered.
pub(super) fn set_status(
    changes: &mut Changes<'_>,
    key: &ServerKey,
    status: ServerStatus,
    verdict: Option<&Verdict>,
) -> Result<Option<Revision>> {
    let Some(stored) = one(changes.connection, key)? else {
        return Ok(None);
    };
    changes
        .connection
        .prepare_cached(
            "UPDATE servers SET status_json = ?3, verdict_json = coalesce(?4, verdict_json)
             WHERE namespace = ?1 AND id = ?2",
        )?
        .execute(params![
            key.namespace.as_str(),
            key.id.as_str(),
            json(&status)?,
            verdict.map(json).transpose()?
        ])?;
    changes.server(stored.record.view(status)).map(Some)
}

/// Keeps the sealed session of a server that is registered.
pub(super) fn keep_session(connection: &Connection, key: &ServerKey, sealed: &[u8]) -> Result<()> {
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO sessions (namespace, server_id, sealed)
             SELECT namespace, id, ?3 FROM servers WHERE namespace = ?1 AND id = ?2",
        )?
        .execute(params![key.namespace.as_str(), key.id.as_str(), sealed])?;
    Ok(())
}

/// Forgets the session of a server, if there is one.
pub(super) fn forget_session(connection: &Connection, key: &ServerKey) -> Result<()> {
    connection
        .prepare_cached("DELETE FROM sessions WHERE namespace = ?1 AND server_id = ?2")?
        .execute([key.namespace.as_str(), key.id.as_str()])?;
    Ok(())
}

/// The session of a server. One that does not open is as good as none: the server gives a new one.
fn session(connection: &Connection, key: &ServerKey, sealer: &Sealer) -> Result<Option<Session>> {
    let sealed: Option<Vec<u8>> = connection
        .prepare_cached("SELECT sealed FROM sessions WHERE namespace = ?1 AND server_id = ?2")?
        .query_row([key.namespace.as_str(), key.id.as_str()], |row| row.get(0))
        .optional()?;
    Ok(sealed.and_then(|sealed| sealer.open_session(key, &sealed)))
}

fn one(connection: &Connection, key: &ServerKey) -> Result<Option<Stored>> {
    let sql = format!("SELECT {COLUMNS} FROM servers WHERE namespace = ?1 AND id = ?2");
    connection
        .prepare_cached(&sql)?
        .query_row([key.namespace.as_str(), key.id.as_str()], |row| {
            Ok(Stored::read(row))
        })
        .optional()?
        .transpose()
}

/// Loads every server for a new run of the daemon: opens the secrets and sets the status back to its beginning.
///
/// A server whose secrets do not open is loaded without them, with `connect` off and the failure in its status; its row
/// keeps what it has.
pub(super) fn start_over(changes: &mut Changes<'_>, sealer: &Sealer) -> Result<Vec<ServerRecord>> {
    let connection = changes.connection;
    let mut statement = connection.prepare(&format!(
        "SELECT {COLUMNS} FROM servers ORDER BY namespace, id"
    ))?;
    let mut rows = statement.query([])?;
    let mut stored = Vec::new();
    while let Some(row) = rows.next()? {
        stored.push(Stored::read(row)?);
    }
    let mut records = Vec::with_capacity(stored.len());
    for Stored {
        mut record, sealed, ..
    } in stored
    {
        let opened = sealer.open_secrets(
            &record.key,
            sealed.as_deref(),
            &mut record.spec.secrets_mut(),
        );
        record.connect &= opened;
        record.session = session(connection, &record.key, sealer)?;
        let status = ServerStatus {
            state: if record.connect {
                ConnectionState::Connecting
            } else {
                ConnectionState::Disconnected
            },
            since: changes.now,
            last_failure: (!opened).then(|| sealed_elsewhere(&record.key, changes.now)),
            ..ServerStatus::default()
        };
        connection
            .prepare_cached("UPDATE servers SET status_json = ?3 WHERE namespace = ?1 AND id = ?2")?
            .execute(params![
                record.key.namespace.as_str(),
                record.key.id.as_str(),
                json(&status)?
            ])?;
        changes.server(record.view(status))?;
        records.push(record);
    }
    Ok(records)
}

fn sealed_elsewhere(key: &ServerKey, now: Timestamp) -> Failure {
    tracing::error!(server = %key, "the stored secrets of a server do not open; it stays disconnected");
    Failure {
        reason: Reason::StoreFailed.as_str().to_owned(),
        message: "the stored secrets of this server do not open: set them again with UpdateServer"
            .to_owned(),
        at: now,
    }
}

/// Appends every wanted server.
pub(super) fn snapshot(
    connection: &Connection,
    filter: &Filter,
    into: &mut Vec<Body>,
) -> Result<()> {
    let mut statement = connection.prepare_cached(&format!(
        "SELECT {COLUMNS} FROM servers ORDER BY namespace, id"
    ))?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let namespace = Namespace::new(row.get_ref(0)?.as_str().unwrap_or_default());
        let id = ServerId::new(row.get_ref(1)?.as_str().unwrap_or_default());
        if filter.admits(&namespace, &id, Kind::Server) {
            let stored = Stored::read(row)?;
            let view: ServerView = stored.record.view(stored.status);
            into.push(Body::Server(Box::new(view)));
        }
    }
    Ok(())
}

/// Up to `limit` namespaces in which a server was ever registered, behind `after`, in order.
pub(super) fn namespaces(
    connection: &Connection,
    after: Option<&Namespace>,
    limit: usize,
) -> Result<Vec<Namespace>> {
    let mut statement = connection
        .prepare_cached("SELECT name FROM namespaces WHERE name > ?1 ORDER BY name LIMIT ?2")?;
    let after = after.map_or("", Namespace::as_str);
    let names = statement.query_map(params![after, count(limit)], |row| row.get::<_, String>(0))?;
    Ok(names
        .map(|name| name.map(Namespace::new))
        .collect::<Result<_, _>>()?)
}

/// Whether a server was ever registered in the namespace.
pub(super) fn namespace_exists(connection: &Connection, namespace: &Namespace) -> Result<bool> {
    Ok(connection
        .prepare_cached("SELECT 1 FROM namespaces WHERE name = ?1")?
        .exists([namespace.as_str()])?)
}
