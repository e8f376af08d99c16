//! Whether secrets can be kept: something is sealed, written, read back over the other connection, opened, and deleted.
//!
//! A start that cannot do so ends, and no sign-in begins, rather than that tokens are lost at the end of one.

use rusqlite::Connection;

use super::seal::Sealer;
use super::{Store, key, meta, meta_put};
use crate::base::{Clock, Timestamp};
use crate::error::Result;

/// Key in `meta`: what a probe's key begins with; then comes the time.
const PROBE: &str = "probe/";
/// Who has not come back for a probe by then has given up.
const OLD: i64 = 3_600_000;

/// Something that is worth nothing.
#[derive(Clone, Debug)]
pub(super) struct Probe(String);

impl Probe {
    /// One that no other probe is taken for.
    pub(super) fn generate() -> Self {
        let Timestamp(now) = Clock.wall();
        Self(format!("{}/{}", begun(now), uuid::Uuid::new_v4()))
    }

    /// Seals it.
    pub(super) fn seal(&self, sealer: &Sealer) -> Result<Vec<u8>> {
        sealer.seal_probe(&self.0)
    }

    /// Writes what was sealed.
    pub(super) fn put(&self, connection: &Connection, blob: &[u8]) -> Result<()> {
        let Timestamp(now) = Clock.wall();
        connection
            .prepare_cached("DELETE FROM meta WHERE key >= ?1 AND key < ?2")?
            .execute([PROBE, &begun(now.saturating_sub(OLD))])?;
        meta_put(connection, &self.0, blob)
    }

    /// Reads it back.
    pub(super) fn find(&self, connection: &Connection) -> Result<Option<Vec<u8>>> {
        meta(connection, &self.0)
    }

    /// Opens what was read back.
    ///
    /// # Errors
    /// `STORE_FAILED` if nothing was, or something else.
    pub(super) fn judge(&self, sealer: &Sealer, found: Option<&[u8]>) -> Result<()> {
        let trouble = match found {
            Some(blob) if sealer.is_probe(&self.0, blob) => return Ok(()),
            Some(_) => "is not as it was written",
            None => "is not there",
        };
        Err(key::failed(
            "not_kept",
            format!(
                "the database does not keep what is written: a sealed probe {trouble} when it is read back; see the file \
                 system of the data directory, or choose another one with `data_dir`"
            ),
        ))
    }

    /// Deletes it.
    pub(super) fn forget(&self, connection: &Connection) -> Result<()> {
        connection
            .prepare_cached("DELETE FROM meta WHERE key = ?1")?
            .execute([&self.0])?;
        Ok(())
    }
}

impl Store {
    /// Seals something, writes it, reads it back and deletes it, all durably: whether secrets can be kept now. Call it
    /// before something is begun that would be lost otherwise.
    ///
    /// # Errors
    /// `STORE_FAILED`.
    pub async fn check_vault(&self) -> Result<()> {
        let sealer = &self.0.sealer;
        let probe = Probe::generate();
        let sealed = probe.seal(sealer)?;
        let (put, find, forget) = (probe.clone(), probe.clone(), probe.clone());
        self.durable(move |changes| put.put(changes.connection, &sealed))
            .await?;
        let found = self.0.reads.read(move |reader| find.find(reader)).await;
        let kept = found.and_then(|found| probe.judge(sealer, found.as_deref()));
        let forgotten = self.durable(move |changes| forget.forget(changes.connection));
        kept.and(forgotten.await)
    }
}

fn begun(time: i64) -> String {
    format!("{PROBE}{time:020}")
}

/// Deletes what a daemon that was killed has left.
pub(super) fn forget_all(connection: &Connection) -> Result<()> {
    connection.execute(
        "DELETE FROM meta WHERE substr(key, 1, length(?1)) = ?1",
        [PROBE],
    )?;
    Ok(())
}
