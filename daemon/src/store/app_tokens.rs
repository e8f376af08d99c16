//! Tokens of apps that come over TCP. A token itself is nowhere, only its SHA-256, from which nobody finds 256 random bits.

use std::sync::Arc;

use rusqlite::{Connection, params};

use super::{Store, json, log, unreadable};
use crate::base::{Bearer, Timestamp, TokenId};
use crate::error::Result;
use crate::model::token::{AppToken, Digest};

impl Store {
    /// Keeps a new token, and forgets others. Durable, and all of it or nothing.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`](crate::error::Reason::StoreFailed).
    pub async fn add_app_token(&self, token: AppToken, forget: Vec<TokenId>) -> Result<()> {
        let run = move |changes: &mut log::Changes<'_>| {
            for id in &forget {
                remove(changes.connection, id)?;
            }
            changes
                .connection
                .prepare_cached(
                    "INSERT INTO app_tokens (id, name, namespaces_json, sha256, created, expires)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                )?
                .execute(params![
                    token.bearer.id.as_str(),
                    token.bearer.name,
                    json(&token.bearer.namespaces)?,
                    token.digest.as_bytes(),
                    token.created.0,
                    token.expires.map(|expires| expires.0),
                ])?;
            Ok(())
        };
        self.durable(run).await
    }

    /// Forgets a token. Durable.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`](crate::error::Reason::StoreFailed).
    pub async fn remove_app_token(&self, id: TokenId) -> Result<()> {
        self.durable(move |changes| remove(changes.connection, &id))
            .await
    }

    /// All tokens, oldest first.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`](crate::error::Reason::StoreFailed).
    pub async fn app_tokens(&self) -> Result<Vec<AppToken>> {
        self.0.reads.read(all).await
    }
}

fn remove(connection: &Connection, id: &TokenId) -> Result<()> {
    connection
        .prepare_cached("DELETE FROM app_tokens WHERE id = ?1")?
        .execute([id.as_str()])?;
    Ok(())
}

fn all(connection: &Connection) -> Result<Vec<AppToken>> {
    let sql =
        "SELECT id, name, namespaces_json, sha256, created, expires FROM app_tokens ORDER BY id";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let id = TokenId::new(row.get::<_, String>(0)?);
        let broken = || unreadable("row of app token", &id);
        let namespaces = row.get_ref(2)?.as_str().unwrap_or_default();
        let namespaces = serde_json::from_str(namespaces).map_err(|_| broken())?;
        let digest = row.get_ref(3)?.as_blob().unwrap_or_default();
        let digest = Digest::from_bytes(digest).ok_or_else(broken)?;
        found.push(AppToken {
            bearer: Arc::new(Bearer {
                id,
                name: row.get(1)?,
                namespaces,
            }),
            digest,
            created: Timestamp(row.get(4)?),
            expires: row.get::<_, Option<i64>>(5)?.map(Timestamp),
        });
    }
    Ok(found)
}
