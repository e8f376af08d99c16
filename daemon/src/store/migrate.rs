//! Numbered, forward-only schema migrations.
//!
//! Never edits a released step, never uses live types in one, and never touches a database that is newer than this
//! binary. To change the schema: add `migrations/NNNN_what.sql`, append it to [`STEPS`], add a test that migrates a
//! database of the version before.

use rusqlite::Connection;

use crate::error::{Error, Reason, Result};

/// Step `n` (counted from 1) takes a database from version `n - 1` to version `n`.
const STEPS: &[&str] = &[
    include_str!("migrations/0001_initial.sql"),
    include_str!("migrations/0002_sessions.sql"),
    include_str!("migrations/0003_authorization.sql"),
    include_str!("migrations/0004_calls.sql"),
    include_str!("migrations/0005_audiences.sql"),
    include_str!("migrations/0006_completions.sql"),
    include_str!("migrations/0007_origins.sql"),
    include_str!("migrations/0008_declared.sql"),
    include_str!("migrations/0009_app_tokens.sql"),
];

/// Brings the database to the current schema, each step in its own transaction. Returns the version it had.
///
/// # Errors
/// [`Reason::StoreFailed`] for a database of a newer version, which is left as it is, and when a step fails, which
/// leaves the version before it.
pub(super) fn run(connection: &mut Connection) -> Result<usize> {
    let found: i64 = connection.query_row("PRAGMA user_version", [], |row| row.get(0))?;
    let known = STEPS.len();
    let version = usize::try_from(found).unwrap_or(usize::MAX);
    if version > known {
        return Err(Error::new(
            Reason::StoreFailed,
            format!(
                "the database has schema version {found} and this daemon knows versions up to {known}: run the daemon \
                 version that wrote it, or a newer one; nothing was changed"
            ),
        ));
    }
    for (step, sql) in STEPS.iter().enumerate().skip(version) {
        let transaction = connection.transaction()?;
        transaction.execute_batch(sql)?;
        transaction.execute_batch(&format!("PRAGMA user_version = {}", step + 1))?;
        transaction.commit()?;
        tracing::info!(version = step + 1, "the database schema was migrated");
    }
    Ok(version)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn schema(connection: &Connection) -> String {
        let mut statement = connection
            .prepare(
                "SELECT type || ' ' || name FROM sqlite_master WHERE sql IS NOT NULL ORDER BY 1",
            )
            .unwrap();
        let names = statement.query_map([], |row| row.get(0)).unwrap();
        names
            .collect::<Result<Vec<String>, _>>()
            .unwrap()
            .join("\n")
    }

    #[test]
    fn an_empty_database_gets_the_whole_schema_once() {
        let mut connection = Connection::open_in_memory().unwrap();
        assert_eq!(run(&mut connection).unwrap(), 0);
        insta::assert_snapshot!(schema(&connection), @r"
        index calls_by_request
        index calls_by_state
        index calls_ended
        index calls_under_way
        index elicitations_by_state
        index elicitations_bytes
        index elicitations_ended
        index elicitations_of_calls
        index elicitations_pending
        index elicitations_uncompleted
        index sign_ins_by_server
        table app_tokens
        table audiences
        table calls
        table elicitations
        table grants
        table meta
        table namespaces
        table registrations
        table servers
        table sessions
        table sign_ins
        table sqlite_sequence
        table updates
        ");
        assert_eq!(run(&mut connection).unwrap(), STEPS.len());
    }

    #[test]
    fn a_database_of_the_first_version_keeps_its_servers() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(STEPS[0]).unwrap();
        connection
            .execute_batch(
                "PRAGMA user_version = 1;
                 INSERT INTO servers VALUES ('n', 'a', 0, 'A', 't', '{}', NULL, 1, 1, 1, 1, '{}', NULL);",
            )
            .unwrap();
        assert_eq!(run(&mut connection).unwrap(), 1);
        let count = |table: &str| -> i64 {
            let sql = format!("SELECT count(*) FROM {table}");
            connection.query_row(&sql, [], |row| row.get(0)).unwrap()
        };
        assert_eq!((count("servers"), count("sessions")), (1, 0));
    }

    #[test]
    fn a_database_from_before_tokens_of_apps_has_none() {
        let mut connection = Connection::open_in_memory().unwrap();
        for step in &STEPS[..8] {
            connection.execute_batch(step).unwrap();
        }
        connection.execute_batch("PRAGMA user_version = 8").unwrap();
        assert_eq!(run(&mut connection).unwrap(), 8);
        let sql = "SELECT count(*) FROM app_tokens";
        let count: i64 = connection.query_row(sql, [], |row| row.get(0)).unwrap();
        assert_eq!(count, 0);
    }

    #[test]
    fn a_newer_database_is_refused_and_left_alone() {
        let mut connection = Connection::open_in_memory().unwrap();
        connection
            .execute_batch("PRAGMA user_version = 999")
            .unwrap();
        let refused = run(&mut connection).unwrap_err();
        assert_eq!(refused.reason(), Reason::StoreFailed);
        assert!(refused.message().contains("999"), "{refused}");
        assert_eq!(schema(&connection), "");
    }
}
