//! The audit log of a daemon, as whoever watches over it reads it.

use serde_json::Value;

use crate::daemon::{Builder, TestDaemon};
use crate::wait::{PATIENCE, eventually};

impl Builder {
    /// Writes the audit log to its file.
    #[must_use]
    pub fn audited(self) -> Self {
        self.set("audit.destination", "file")
    }
}

impl TestDaemon {
    /// The records of the audit log's file.
    pub fn audit(&self) -> Vec<Value> {
        records(&self.data_dir().join("audit.log"))
    }

    /// The one record that matches.
    pub async fn audit_of(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let found = eventually(what, PATIENCE, async || {
            let mut found = self.audit();
            found.retain(|record| wanted(record));
            (!found.is_empty()).then_some(found)
        })
        .await;
        assert_eq!(found.len(), 1, "{found:#?}");
        found.into_iter().next().unwrap()
    }
}

/// The records of a file. A line that is being written is left out.
pub fn records(file: &std::path::Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let read = |line| serde_json::from_str(line).unwrap_or_else(|_| panic!("no JSON: {line}"));
    whole.lines().map(read).collect()
}
