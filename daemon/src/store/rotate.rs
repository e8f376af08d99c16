//! Another key in place of the one in use: everything sealed is sealed anew, in one transaction, while no daemon runs.
//!
//! Every instant is safe. The new key is on disk before anything is sealed with it; the commit decides by which key the
//! database goes, and with it goes the key check; only then the new key takes the place of the old one. A start that finds
//! a database which goes by the staged key finishes what was cut short ([`KeySource::unlock`]).
//!
//! What does not open is left as it is: it never opened for the daemon either.

use std::path::PathBuf;

use rusqlite::{Connection, params_from_iter};

use super::auth;
use super::calls;
use super::key::{self, Key, KeySource};
use super::lock::{self, DirLock};
use super::questions;
use super::seal::{self, Sealer};
use super::{Access, DATABASE, KEY_CHECK, StoreConfig, connect, meta, meta_put, migrate};
use crate::error::{Error, Result};

/// A column `sealed`: the table, what it is sealed for, the columns whose values it is bound to, in order, and whether a
/// start without it would lose something.
struct Sealed {
    table: &'static str,
    purpose: &'static str,
    bound_to: &'static [&'static str],
    needed: bool,
}

/// Every such column. What is not here is lost in a rotation.
const SEALED: &[Sealed] = &[
    Sealed {
        table: "servers",
        purpose: seal::SERVER_SECRETS,
        bound_to: &["namespace", "id"],
        needed: true,
    },
    // A session that is lost costs a handshake.
    Sealed {
        table: "sessions",
        purpose: seal::SESSION,
        bound_to: &["namespace", "server_id"],
        needed: false,
    },
    Sealed {
        table: "grants",
        purpose: auth::GRANT,
        bound_to: &["namespace", "server_id"],
        needed: true,
    },
    Sealed {
        table: "registrations",
        purpose: auth::REGISTRATION,
        bound_to: &["namespace", "server_id", "issuer"],
        needed: true,
    },
    Sealed {
        table: "sign_ins",
        purpose: auth::SIGN_IN,
        bound_to: &["namespace", "server_id", "id"],
        needed: true,
    },
    Sealed {
        table: "calls",
        purpose: calls::CALL,
        bound_to: &["namespace", "id"],
        needed: true,
    },
    Sealed {
        table: "elicitations",
        purpose: questions::ANSWER,
        bound_to: &["namespace", "id"],
        needed: true,
    },
];

/// Keys for a rotation that are not where the configuration says.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Keys {
    /// A file with the key in use. With it, both keys are looked after by whoever gives them: nothing but the database is
    /// changed.
    pub old: Option<PathBuf>,
    /// A file with the new key. Default: one is made.
    pub new: Option<PathBuf>,
}

/// What a rotation has done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rotated {
    /// How many entries were sealed anew.
    pub resealed: usize,
    /// How many did not open before, and were left as they are.
    pub left: usize,
    /// Where the new key is.
    pub key: String,
    /// Whether the daemon finds it there; otherwise it has to be passed as the credential from now on.
    pub in_place: bool,
    /// Why remains of what the old key sealed could not be wiped from the files; they go with later writes.
    pub remains: Option<Error>,
}

/// How far a rotation is. What holds at one of these holds until the next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// The new key is on disk, beside the old one.
    Staged,
    /// Everything is sealed anew in a transaction that is open.
    Resealed,
    /// It is committed.
    Committed,
    /// The new key is in the place of the old one.
    Promoted,
}

/// Seals everything with another key. No daemon may run on the directory. Blocks.
///
/// # Errors
/// `STORE_FAILED`, with the remedy in the message; what was there before is then still there, and so is its key.
pub fn rotate_key(config: &StoreConfig, keys: &Keys) -> Result<Rotated> {
    rotate(config, keys, &mut |_| {})
}

pub(super) fn rotate(
    config: &StoreConfig,
    keys: &Keys,
    at: &mut dyn FnMut(Step),
) -> Result<Rotated> {
    let dir = &config.data_dir;
    let path = dir.join(DATABASE);
    if !path.exists() {
        return Err(key::failed(
            "missing",
            format!(
                "there is no database in `{}`: name the daemon's directory with `--data-dir` or `data_dir`",
                dir.display()
            ),
        ));
    }
    lock::prepare_dir(dir)?;
    let _lock = DirLock::acquire(dir)?;
    let mut connection = connect(&path, Access::Write)?;
    migrate::run(&mut connection)?;
    let check = meta(&connection, KEY_CHECK)?;
    let check = check.as_deref();

    let old = match &keys.old {
        Some(file) => Place::Given(file.clone()),
        None => Place::Configured(KeySource::find(config)?),
    };
    let sealer = old.unlock(check, any_sealed(&connection)?)?;
    let new = match &keys.new {
        Some(file) => key::given(file)?,
        None if old.is_ours() => key::generate()?,
        None => {
            return Err(key::failed(
                "missing",
                "the key is not the daemon's to change: name a file with the new one (`--new-key`); `head -c 32 \
                 /dev/urandom` makes one"
                    .to_owned(),
            ));
        }
    };
    let successor = Sealer::new(&new)?;
    if check.is_some_and(|check| successor.accepts(check)) {
        return Err(key::failed(
            "same_key",
            "the new key is the one in use; nothing was changed".to_owned(),
        ));
    }

    old.stage(&new)?;
    at(Step::Staged);
    // What is overwritten is wiped, not only given up.
    connection.execute_batch("PRAGMA secure_delete = ON; PRAGMA synchronous = FULL")?;
    let transaction = connection.transaction()?;
    let mut done = (0, 0);
    for sealed in SEALED {
        let (resealed, left) = sealed.reseal(&transaction, &sealer, &successor)?;
        done = (done.0 + resealed, done.1 + left);
    }
    meta_put(&transaction, KEY_CHECK, &successor.key_check()?)?;
    at(Step::Resealed);
    transaction.commit()?;
    at(Step::Committed);
    let (in_place, key) = old.promote(&new, keys)?;
    at(Step::Promoted);
    Ok(Rotated {
        resealed: done.0,
        left: done.1,
        key,
        in_place,
        remains: wipe(&connection).err(),
    })
}

/// Whether anything sealed is stored that must not be lost.
pub(super) fn any_sealed(connection: &Connection) -> Result<bool> {
    for sealed in SEALED.iter().filter(|sealed| sealed.needed) {
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM {} WHERE sealed IS NOT NULL)",
            sealed.table
        );
        if connection.query_row(&sql, [], |row| row.get(0))? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Takes what the old key sealed out of free pages and the journal.
fn wipe(connection: &Connection) -> Result<()> {
    connection.execute_batch("VACUUM")?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
    Ok(())
}

impl Sealed {
    /// Seals every entry anew. Returns how many, and how many do not open.
    fn reseal(
        &self,
        connection: &Connection,
        old: &Sealer,
        new: &Sealer,
    ) -> Result<(usize, usize)> {
        let Self {
            table,
            purpose,
            bound_to,
            ..
        } = self;
        let columns = bound_to.join(", ");
        let select = format!("SELECT {columns}, sealed FROM {table} WHERE sealed IS NOT NULL");
        let matching: Vec<String> = (2..)
            .zip(*bound_to)
            .map(|(n, column)| format!("{column} = ?{n}"))
            .collect();
        let update = format!(
            "UPDATE {table} SET sealed = ?1 WHERE {}",
            matching.join(" AND ")
        );

        let mut statement = connection.prepare(&select)?;
        let rows = statement.query_map([], |row| {
            let parts: Vec<String> = (0..bound_to.len())
                .map(|n| row.get(n))
                .collect::<Result<_, _>>()?;
            let blob: Vec<u8> = row.get(bound_to.len())?;
            Ok((parts, blob))
        })?;
        // Read before anything is written: a table must not change while it is walked.
        let rows: Vec<(Vec<String>, Vec<u8>)> = rows.collect::<Result<_, _>>()?;
        let mut update = connection.prepare(&update)?;
        let mut left = 0;
        let all = rows.len();
        for (parts, blob) in rows {
            let bound: Vec<&str> = parts.iter().map(String::as_str).collect();
            let Some(resealed) = old.reseal(new, purpose, &bound, &blob)? else {
                left += 1;
                continue;
            };
            let mut values = vec![rusqlite::types::Value::Blob(resealed)];
            values.extend(parts.into_iter().map(rusqlite::types::Value::Text));
            update.execute(params_from_iter(values))?;
        }
        Ok((all - left, left))
    }
}

/// Where the key in use is.
enum Place {
    Configured(KeySource),
    Given(PathBuf),
}

impl Place {
    fn unlock(&self, check: Option<&[u8]>, in_use: bool) -> Result<Sealer> {
        match self {
            Self::Configured(source) => source.unlock(check, in_use),
            Self::Given(path) => {
                let sealer = Sealer::new(&*key::given(path)?)?;
                if in_use && !check.is_some_and(|check| sealer.accepts(check)) {
                    return Err(key::failed(
                        "wrong_key",
                        format!(
                            "the key in `{}` is not the one that sealed the secrets in the database; nothing was changed",
                            path.display()
                        ),
                    ));
                }
                Ok(sealer)
            }
        }
    }

    /// Whether the new key goes where the old one was.
    fn is_ours(&self) -> bool {
        match self {
            Self::Configured(source) => source.is_ours(),
            Self::Given(_) => false,
        }
    }

    fn stage(&self, key: &Key) -> Result<()> {
        match self {
            Self::Configured(source) if source.is_ours() => source.stage(key),
            Self::Configured(_) | Self::Given(_) => Ok(()),
        }
    }

    /// Whether the new key is in place, and where it is.
    fn promote(&self, key: &Key, keys: &Keys) -> Result<(bool, String)> {
        match self {
            Self::Configured(source) if source.is_ours() => {
                source.promote(key)?;
                Ok((true, source.place()))
            }
            Self::Configured(_) | Self::Given(_) => {
                let given = keys.new.as_deref().map(|path| path.display().to_string());
                Ok((false, given.unwrap_or_default()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_table_with_something_sealed_is_listed() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate::run(&mut connection).unwrap();
        let sql = "SELECT t.name FROM sqlite_master t, pragma_table_info(t.name) c
                   WHERE t.type = 'table' AND c.name = 'sealed' ORDER BY 1";
        let mut statement = connection.prepare(sql).unwrap();
        let tables = statement.query_map([], |row| row.get(0)).unwrap();
        let tables: Vec<String> = tables.collect::<Result<_, _>>().unwrap();
        let mut listed: Vec<_> = SEALED.iter().map(|sealed| sealed.table).collect();
        listed.sort_unstable();
        assert_eq!(tables, listed);
    }
}
