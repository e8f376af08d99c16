//! What apps declared last that they can answer, by namespace.

use rusqlite::Connection;

use super::{Store, json, log, unreadable};
use crate::base::Namespace;
use crate::error::Result;
use crate::model::spec::Abilities;

impl Store {
    /// Remembers what was declared last. Durable.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`](crate::error::Reason::StoreFailed).
    pub async fn set_abilities(&self, news: Vec<(Namespace, Abilities)>) -> Result<()> {
        let run = move |changes: &mut log::Changes<'_>| {
            let mut statement = changes.connection.prepare_cached(
                "INSERT OR REPLACE INTO audiences (namespace, abilities_json) VALUES (?1, ?2)",
            )?;
            for (namespace, abilities) in &news {
                statement.execute([namespace.as_str(), &json(abilities)?])?;
            }
            Ok(())
        };
        self.durable(run).await
    }

    /// What was declared last, in all namespaces.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`](crate::error::Reason::StoreFailed).
    pub async fn abilities(&self) -> Result<Vec<(Namespace, Abilities)>> {
        self.0.reads.read(all).await
    }
}

fn all(connection: &Connection) -> Result<Vec<(Namespace, Abilities)>> {
    let sql = "SELECT namespace, abilities_json FROM audiences";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let namespace = Namespace::new(row.get::<_, String>(0)?);
        let abilities = serde_json::from_str(row.get_ref(1)?.as_str().unwrap_or_default())
            .map_err(|_| unreadable("abilities of namespace", &namespace))?;
        found.push((namespace, abilities));
    }
    Ok(found)
}
