//! Rows of grants, registered clients and sign-ins. Everything secret in them is sealed for its row.
//!
//! They belong to a server: they go with it when it gets another id, and are deleted with it.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};

use super::log::Changes;
use super::seal::Sealer;
use super::{Store, json, unreadable};
use crate::base::{Namespace, Secret, ServerId, ServerKey, SignInId, Timestamp};
use crate::error::{Error, Reason, Result};
use crate::model::auth::{Client, Grant, Registration, SignIn, SignInState};

/// What grants are sealed for.
pub(super) const GRANT: &str = "grant";
/// What registered clients are sealed for.
pub(super) const REGISTRATION: &str = "registration";
/// What sign-ins are sealed for.
pub(super) const SIGN_IN: &str = "sign-in";

/// How long a sign-in is known after its end, in milliseconds.
const KEEP_ENDED: i64 = 60 * 60 * 1000;

/// Everything that is stored of authorization.
#[derive(Debug, Default)]
pub struct Authorizations {
    /// The tokens, by server.
    pub grants: Vec<(ServerKey, Grant)>,
    /// The registered clients, by server.
    pub registrations: Vec<(ServerKey, Registration)>,
    /// Sign-ins, pending and ended.
    pub sign_ins: Vec<SignIn>,
    /// Grants that do not open, by server, with their generations.
    pub unreadable_grants: Vec<(ServerKey, u64)>,
    /// What does not open: it was sealed by another key, or its row was tampered with. Nothing of it is deleted.
    pub unreadable: Vec<ServerKey>,
}

impl Store {
    /// Everything that is stored of authorization. For the start.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn authorizations(&self) -> Result<Authorizations> {
        let sealer = Arc::clone(&self.0.sealer);
        let run = move |connection: &Connection| load(connection, &sealer, None);
        self.0.reads.read(run).await
    }

    /// Stores a grant over the one of generation `over` (`None`: over none). Durable. False, and no change, if another one
    /// is stored, or the server is not registered.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn put_grant(&self, key: ServerKey, grant: Grant, over: Option<u64>) -> Result<bool> {
        let sealer = Arc::clone(&self.0.sealer);
        self.durable(move |changes| put_grant(changes.connection, &sealer, &key, &grant, over))
            .await
    }

    /// Forgets a grant, if it is still of this generation, and tells whether it was. Durable.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn forget_grant(&self, key: ServerKey, generation: u64) -> Result<bool> {
        self.durable(move |changes| forget_grant(changes.connection, &key, generation))
            .await
    }

    /// Forgets the grant of a server, whatever its generation. Durable.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn forget_any_grant(&self, key: ServerKey) -> Result<()> {
        self.durable(move |changes| delete(changes.connection, &key, &["grants"]))
            .await
    }

    /// Stores a client that was registered for a server, in place of the one at the same issuer. Durable.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn put_registration(&self, key: ServerKey, registration: Registration) -> Result<()> {
        let sealer = Arc::clone(&self.0.sealer);
        self.durable(move |changes| {
            put_registration(changes.connection, &sealer, &key, &registration)
        })
        .await
    }

    /// Forgets the client that was registered for a server at this issuer. Durable.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn forget_registration(&self, key: ServerKey, issuer: String) -> Result<()> {
        self.durable(move |changes| forget_registration(changes.connection, &key, &issuer))
            .await
    }

    /// Stores a new sign-in. Durable.
    ///
    /// # Errors
    /// [`Reason::ServerNotFound`] if its server is not registered, [`Reason::StoreFailed`].
    pub async fn put_sign_in(&self, sign_in: SignIn) -> Result<()> {
        let sealer = Arc::clone(&self.0.sealer);
        self.durable(move |changes| put_sign_in(changes, &sealer, &sign_in))
            .await
    }

    /// Takes a sign-in from the state `from` to what `sign_in` says, and wipes its secrets from the disk. Durable. False,
    /// and no change, if it is in another state.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn step_sign_in(&self, sign_in: SignIn, from: SignInState) -> Result<bool> {
        self.durable(move |changes| step_sign_in(changes.connection, &sign_in, from))
            .await
    }

    /// Ends a sign-in that has not ended, as `sign_in` says, and wipes its secrets from the disk. Durable.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn end_sign_in(&self, sign_in: SignIn) -> Result<()> {
        self.durable(move |changes| {
            for from in [SignInState::Pending, SignInState::Redeeming] {
                step_sign_in(changes.connection, &sign_in, from)?;
            }
            Ok(())
        })
        .await
    }

    /// Stores the grant of a sign-in over the one of generation `over`, and that the sign-in has succeeded, and ends
    /// `others`: all of it, durably, or nothing. The grant is that of the server which the sign-in belongs to now. False, and
    /// no change, if another grant is stored, or the sign-in has ended: also because the settings of its server were changed
    /// or the server was removed.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn finish_sign_in(
        &self,
        sign_in: SignIn,
        grant: Grant,
        over: Option<u64>,
        others: Vec<SignIn>,
    ) -> Result<bool> {
        let sealer = Arc::clone(&self.0.sealer);
        self.durable(move |changes| {
            let connection = changes.connection;
            let Some(key) = redeeming(connection, &sign_in.id)? else {
                return Ok(false);
            };
            if !put_grant(connection, &sealer, &key, &grant, over)? {
                return Ok(false);
            }
            step_sign_in(connection, &sign_in, SignInState::Redeeming)?;
            for other in &others {
                step_sign_in(connection, other, SignInState::Pending)?;
            }
            Ok(true)
        })
        .await
    }
}

type Sealed<'a> = Vec<Option<&'a Secret<String>>>;

fn of_client(client: &Client) -> [Option<&Secret<String>>; 2] {
    [client.secret.as_ref(), client.private_key.as_ref()]
}

fn grant_secrets(grant: &Grant) -> Sealed<'_> {
    let own = [
        Some(&grant.access_token),
        grant.refresh_token.as_ref(),
        grant.dpop_key.as_ref(),
    ];
    own.into_iter()
        .chain(of_client(&grant.terms.client))
        .collect()
}

fn sign_in_secrets(sign_in: &SignIn) -> Sealed<'_> {
    let own = [
        Some(&sign_in.nonce),
        Some(&sign_in.verifier),
        sign_in.dpop_key.as_ref(),
    ];
    own.into_iter()
        .chain(of_client(&sign_in.terms.client))
        .collect()
}

/// Stores the grant of a registered server, if the one that is stored is of generation `over` (`None`: there is none).
/// False, and no change, otherwise.
pub(super) fn put_grant(
    connection: &Connection,
    sealer: &Sealer,
    key: &ServerKey,
    grant: &Grant,
    over: Option<u64>,
) -> Result<bool> {
    let known: Option<i64> = connection
        .prepare_cached("SELECT generation FROM grants WHERE namespace = ?1 AND server_id = ?2")?
        .query_row([key.namespace.as_str(), key.id.as_str()], |row| row.get(0))
        .optional()?;
    if known != over.map(number).transpose()? {
        return Ok(false);
    }
    let sealed = sealer.seal_parts(GRANT, key, "", &grant_secrets(grant))?;
    let stored = connection
        .prepare_cached(
            "INSERT OR REPLACE INTO grants (namespace, server_id, generation, facts_json, sealed)
             SELECT namespace, id, ?3, ?4, ?5 FROM servers WHERE namespace = ?1 AND id = ?2",
        )?
        .execute(params![
            key.namespace.as_str(),
            key.id.as_str(),
            number(grant.generation)?,
            json(grant)?,
            sealed
        ])?;
    Ok(stored == 1)
}

/// Forgets a grant, if it is still of this generation.
pub(super) fn forget_grant(
    connection: &Connection,
    key: &ServerKey,
    generation: u64,
) -> Result<bool> {
    let forgotten = connection
        .prepare_cached(
            "DELETE FROM grants WHERE namespace = ?1 AND server_id = ?2 AND generation = ?3",
        )?
        .execute(params![
            key.namespace.as_str(),
            key.id.as_str(),
            number(generation)?
        ])?;
    Ok(forgotten == 1)
}

/// Whose sign-in it is, if its code is being redeemed.
fn redeeming(connection: &Connection, id: &SignInId) -> Result<Option<ServerKey>> {
    let found = connection
        .prepare_cached(
            "SELECT namespace, server_id FROM sign_ins WHERE id = ?1 AND state = 'redeeming'",
        )?
        .query_row([id.as_str()], |row| {
            Ok(ServerKey::new(
                Namespace::new(row.get::<_, String>(0)?),
                ServerId::new(row.get::<_, String>(1)?),
            ))
        })
        .optional()?;
    Ok(found)
}

/// Stores a registered client of a registered server in place of the one at the same issuer.
pub(super) fn put_registration(
    connection: &Connection,
    sealer: &Sealer,
    key: &ServerKey,
    registration: &Registration,
) -> Result<()> {
    let issuer = &registration.client.issuer;
    let secrets = of_client(&registration.client);
    let sealed = sealer.seal_parts(REGISTRATION, key, issuer, &secrets)?;
    connection
        .prepare_cached(
            "INSERT OR REPLACE INTO registrations (namespace, server_id, issuer, facts_json, sealed)
             SELECT namespace, id, ?3, ?4, ?5 FROM servers WHERE namespace = ?1 AND id = ?2",
        )?
        .execute(params![
            key.namespace.as_str(),
            key.id.as_str(),
            issuer,
            json(registration)?,
            sealed
        ])?;
    Ok(())
}

/// Forgets the client that is registered at this issuer under this id.
pub(super) fn forget_registration(
    connection: &Connection,
    key: &ServerKey,
    issuer: &str,
) -> Result<()> {
    connection
        .prepare_cached(
            "DELETE FROM registrations WHERE namespace = ?1 AND server_id = ?2 AND issuer = ?3",
        )?
        .execute([key.namespace.as_str(), key.id.as_str(), issuer])?;
    Ok(())
}

/// Stores a sign-in of a registered server, and forgets old ones.
pub(super) fn put_sign_in(changes: &Changes<'_>, sealer: &Sealer, sign_in: &SignIn) -> Result<()> {
    let connection = changes.connection;
    prune(connection, changes.now)?;
    let id = sign_in.id.as_str();
    let sealed = sealer.seal_parts(SIGN_IN, &sign_in.key, id, &sign_in_secrets(sign_in))?;
    let stored = connection
        .prepare_cached(
            "INSERT INTO sign_ins (namespace, server_id, id, state, expires, facts_json, sealed)
             SELECT namespace, id, ?3, ?4, ?5, ?6, ?7 FROM servers WHERE namespace = ?1 AND id = ?2",
        )?
        .execute(params![
            sign_in.key.namespace.as_str(),
            sign_in.key.id.as_str(),
            id,
            sign_in.state.as_str(),
            sign_in.expires.0,
            json(sign_in)?,
            sealed
        ])?;
    if stored == 0 {
        return Err(Error::new(
            Reason::ServerNotFound,
            format!("there is no server `{}`", sign_in.key),
        ));
    }
    Ok(())
}

fn prune(connection: &Connection, now: Timestamp) -> Result<()> {
    connection
        .prepare_cached(
            "DELETE FROM sign_ins WHERE state NOT IN ('pending', 'redeeming') AND expires < ?1",
        )?
        .execute([now.0 - KEEP_ENDED])?;
    Ok(())
}

/// Takes a sign-in from one of these states to what `sign_in` says, with what it says now. False, and no change, if it is in
/// another state.
pub(super) fn step_sign_in(
    connection: &Connection,
    sign_in: &SignIn,
    from: SignInState,
) -> Result<bool> {
    // What is over needs no secrets any more. While the code is redeemed they are still in memory, and of no use later.
    let changed = connection
        .prepare_cached(
            "UPDATE sign_ins SET state = ?3, expires = ?4, facts_json = ?5, sealed = NULL
             WHERE id = ?1 AND state = ?2",
        )?
        .execute(params![
            sign_in.id.as_str(),
            from.as_str(),
            sign_in.state.as_str(),
            sign_in.expires.0,
            json(sign_in)?
        ])?;
    Ok(changed == 1)
}

/// Forgets what was granted for a server, and its sign-ins.
pub(super) fn forget_granted(connection: &Connection, key: &ServerKey) -> Result<()> {
    delete(connection, key, &["grants", "sign_ins"])
}

/// Deletes everything of a server.
pub(super) fn delete_all(connection: &Connection, key: &ServerKey) -> Result<()> {
    delete(connection, key, &["grants", "registrations", "sign_ins"])
}

fn delete(connection: &Connection, key: &ServerKey, tables: &[&str]) -> Result<()> {
    for table in tables {
        let sql = format!("DELETE FROM {table} WHERE namespace = ?1 AND server_id = ?2");
        connection
            .prepare_cached(&sql)?
            .execute([key.namespace.as_str(), key.id.as_str()])?;
    }
    Ok(())
}

/// Takes everything that is stored of one server; to be stored again under its new id.
pub(super) fn take_all(
    connection: &Connection,
    sealer: &Sealer,
    key: &ServerKey,
) -> Result<Authorizations> {
    let all = load(connection, sealer, Some(key))?;
    delete_all(connection, key)?;
    Ok(all)
}

/// Stores what was taken, for a server with another id.
pub(super) fn give_all(
    changes: &Changes<'_>,
    sealer: &Sealer,
    all: Authorizations,
    key: &ServerKey,
) -> Result<()> {
    for (_, grant) in &all.grants {
        put_grant(changes.connection, sealer, key, grant, None)?;
    }
    for (_, registration) in &all.registrations {
        put_registration(changes.connection, sealer, key, registration)?;
    }
    for mut sign_in in all.sign_ins {
        sign_in.key = key.clone();
        put_sign_in(changes, sealer, &sign_in)?;
    }
    Ok(())
}

/// For a new run of the daemon: a code that was being redeemed when it ended is lost.
pub(super) fn start_over(changes: &Changes<'_>) -> Result<()> {
    let connection = changes.connection;
    prune(connection, changes.now)?;
    let mut statement = connection.prepare(
        "SELECT facts_json FROM sign_ins WHERE state = 'redeeming'
         OR (state = 'pending' AND expires <= ?1)",
    )?;
    let mut rows = statement.query([changes.now.0])?;
    let mut over = Vec::new();
    while let Some(row) = rows.next()? {
        over.extend(
            serde_json::from_str::<SignIn>(row.get_ref(0)?.as_str().unwrap_or_default()).ok(),
        );
    }
    for mut sign_in in over {
        let from = sign_in.state;
        if from == SignInState::Redeeming {
            sign_in.state = SignInState::Failed;
            sign_in.expires = changes.now;
            sign_in.failure = Some(
                "the daemon ended while the code was being redeemed; begin another sign-in"
                    .to_owned(),
            );
        } else {
            sign_in.state = SignInState::Expired;
        }
        step_sign_in(connection, &sign_in, from)?;
    }
    Ok(())
}

/// Reads what is stored: of all servers, or of one.
pub(super) fn load(
    connection: &Connection,
    sealer: &Sealer,
    of: Option<&ServerKey>,
) -> Result<Authorizations> {
    let mut all = Authorizations::default();
    let unreadable = each(connection, "grants", "''", of, |key, _, facts, sealed| {
        let mut grant: Grant = facts.parse(key)?;
        let parts = sealed.and_then(|blob| sealer.open_parts(GRANT, key, "", blob));
        let Some([access, refresh, dpop, secret, private_key]) = parts else {
            let generation = grant.generation;
            all.unreadable_grants.push((key.clone(), generation));
            return Ok(false);
        };
        grant.access_token = access.unwrap_or_default();
        (grant.refresh_token, grant.dpop_key) = (refresh, dpop);
        let client = &mut grant.terms.client;
        (client.secret, client.private_key) = (secret, private_key);
        all.grants.push((key.clone(), grant));
        Ok(true)
    })?;
    all.unreadable.extend(unreadable);
    let unreadable = each(
        connection,
        "registrations",
        "issuer",
        of,
        |key, issuer, facts, sealed| {
            let mut registration: Registration = facts.parse(key)?;
            let parts = sealed.and_then(|blob| sealer.open_parts(REGISTRATION, key, issuer, blob));
            let Some([secret, private_key]) = parts else {
                return Ok(false);
            };
            let client = &mut registration.client;
            (client.secret, client.private_key) = (secret, private_key);
            all.registrations.push((key.clone(), registration));
            Ok(true)
        },
    )?;
    all.unreadable.extend(unreadable);
    let unreadable = each(
        connection,
        "sign_ins",
        "id",
        of,
        |key, id, facts, sealed| {
            let mut sign_in: SignIn = facts.parse(key)?;
            sign_in.id = SignInId::new(id);
            if let Some(blob) = sealed {
                let parts = sealer.open_parts(SIGN_IN, key, id, blob);
                let Some([nonce, verifier, dpop, secret, private_key]) = parts else {
                    return Ok(false);
                };
                sign_in.nonce = nonce.unwrap_or_default();
                sign_in.verifier = verifier.unwrap_or_default();
                sign_in.dpop_key = dpop;
                let client = &mut sign_in.terms.client;
                (client.secret, client.private_key) = (secret, private_key);
            }
            all.sign_ins.push(sign_in);
            Ok(true)
        },
    )?;
    all.unreadable.extend(unreadable);
    Ok(all)
}

/// The column with what is not secret.
struct Facts<'a>(&'a str);

impl Facts<'_> {
    fn parse<T: serde::de::DeserializeOwned>(&self, key: &ServerKey) -> Result<T> {
        serde_json::from_str(self.0).map_err(|_| unreadable("authorization of server", key))
    }
}

/// Reads the rows of a table: key, `name`, facts and what is sealed. Returns the servers of those that `read` cannot open.
fn each(
    connection: &Connection,
    table: &str,
    name: &str,
    of: Option<&ServerKey>,
    mut read: impl FnMut(&ServerKey, &str, Facts<'_>, Option<&[u8]>) -> Result<bool>,
) -> Result<Vec<ServerKey>> {
    let mut statement = connection.prepare(&format!(
        "SELECT namespace, server_id, {name}, facts_json, sealed FROM {table}
         WHERE ?1 IS NULL OR (namespace = ?1 AND server_id = ?2) ORDER BY namespace, server_id"
    ))?;
    let mut rows = statement.query(params![
        of.map(|key| key.namespace.as_str()),
        of.map(|key| key.id.as_str())
    ])?;
    let mut unreadable = Vec::new();
    while let Some(row) = rows.next()? {
        let key = ServerKey::new(
            Namespace::new(row.get::<_, String>(0)?),
            ServerId::new(row.get::<_, String>(1)?),
        );
        let name: String = row.get(2)?;
        let facts: String = row.get(3)?;
        let sealed: Option<Vec<u8>> = row.get(4)?;
        if !read(&key, &name, Facts(&facts), sealed.as_deref())? {
            unreadable.push(key);
        }
    }
    Ok(unreadable)
}

fn number(generation: u64) -> Result<i64> {
    i64::try_from(generation).map_err(|_| Error::internal("the generation of a grant is too large"))
}
