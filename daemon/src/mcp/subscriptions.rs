//! Resources that apps follow at one server: counted over apps, kept over connections.
//!
//! The table outlives links. While a link is up, [`keep`] makes the server's subscriptions what the table wants: one request
//! per URI in the legacy era (MCP 2025-11-25 server/resources, "Subscriptions"), one listening stream for all of them in the
//! modern one (MCP 2026-07-28 basic/patterns/subscriptions). After a gap everything counts as updated.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::error::{Error, Reason, Result};
use crate::mcp::era::Request;
use crate::mcp::link::Link;
use crate::mcp::protocol::{Message, ObjectWriter, RawJson, method};
use crate::mcp::transport::Loss;
use crate::model::status::Era;

/// Pause before a listening stream that broke is opened again.
const PAUSE: Duration = Duration::from_secs(1);

/// How a followed resource stands.
#[derive(Clone, Debug, Default)]
struct Standing {
    phase: Phase,
    /// Counts updates; grows.
    updates: u64,
}

#[derive(Clone, Debug, Default)]
enum Phase {
    /// The server was not asked yet, or did not answer yet.
    #[default]
    Pending,
    /// The server announces updates.
    Active,
    /// The server does not.
    Refused(Error),
}

/// The table of one server. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Subscriptions(Arc<Table>);

#[derive(Debug)]
struct Table {
    entries: Mutex<HashMap<String, Entry>>,
    /// Changes with the set of URIs.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Entry {
    followers: usize,
    standing: watch::Sender<Standing>,
}

impl Default for Subscriptions {
    fn default() -> Self {
        Self(Arc::new(Table {
            entries: Mutex::default(),
            changes: watch::Sender::new(0),
        }))
    }
}

/// What a follower is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Told {
    /// From now on the server announces updates.
    Subscribed,
    /// The resource was updated, once or more often, or may have been while nobody was listening.
    Updated,
}

/// One app that follows one resource. Dropping it ends that; with the last follower the server is told.
#[derive(Debug)]
pub struct Follower {
    table: Subscriptions,
    uri: String,
    standing: watch::Receiver<Standing>,
    told: Option<u64>,
}

impl Subscriptions {
    /// Follows a resource.
    #[must_use]
    pub fn follow(&self, uri: &str) -> Follower {
        let mut entries = self
            .0
            .entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let entry = entries.entry(uri.to_owned()).or_default();
        entry.followers += 1;
        let (standing, first) = (entry.standing.subscribe(), entry.followers == 1);
        drop(entries);
        if first {
            self.0.changes.send_modify(|changes| *changes += 1);
        }
        Follower {
            table: self.clone(),
            uri: uri.to_owned(),
            standing,
            told: None,
        }
    }

    /// The server says that a resource was updated; it may be a part of one that is followed.
    pub fn updated(&self, uri: &str) {
        let entries = self
            .0
            .entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (followed, entry) in entries.iter() {
            let part = uri.strip_prefix(followed.as_str());
            if part.is_some_and(|part| {
                part.is_empty() || followed.ends_with('/') || part.starts_with(['/', '?', '#'])
            }) {
                entry.standing.send_modify(|standing| standing.updates += 1);
            }
        }
    }

    fn wanted(&self) -> BTreeSet<String> {
        let entries = self
            .0
            .entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        entries.keys().cloned().collect()
    }

    /// The server announces updates of this resource; if it did before, there was a gap.
    fn active(&self, uri: &str) {
        self.stand(uri, |standing| {
            if matches!(standing.phase, Phase::Active) {
                standing.updates += 1;
            }
            standing.phase = Phase::Active;
        });
    }

    fn refused(&self, uri: &str, error: Error) {
        self.stand(uri, |standing| standing.phase = Phase::Refused(error));
    }

    fn refused_all(&self, uris: &BTreeSet<String>, error: &Error) {
        for uri in uris {
            self.refused(uri, error.clone());
        }
    }

    fn stand(&self, uri: &str, change: impl FnOnce(&mut Standing)) {
        let entries = self
            .0
            .entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = entries.get(uri) {
            entry.standing.send_modify(change);
        }
    }
}

impl Follower {
    /// The next thing that the app is told: first that it is subscribed, then updates. Updates that come faster than they
    /// are taken are told once. Cancel-safe.
    ///
    /// # Errors
    /// Why the server does not announce updates of this resource.
    pub async fn next(&mut self) -> Result<Told> {
        loop {
            let now = self.standing.borrow_and_update().clone();
            match (now.phase, self.told) {
                (Phase::Refused(error), _) => return Err(error),
                (Phase::Active, None) => {
                    self.told = Some(now.updates);
                    return Ok(Told::Subscribed);
                }
                (_, Some(told)) if now.updates > told => {
                    self.told = Some(now.updates);
                    return Ok(Told::Updated);
                }
                _ => {}
            }
            if self.standing.changed().await.is_err() {
                return Err(Error::internal("a followed resource lost its entry"));
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let mut entries = self
            .table
            .0
            .entries
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(entry) = entries.get_mut(&self.uri) else {
            return;
        };
        entry.followers = entry.followers.saturating_sub(1);
        if entry.followers == 0 {
            entries.remove(&self.uri);
            drop(entries);
            self.table.0.changes.send_modify(|changes| *changes += 1);
        }
    }
}

/// Makes the server's subscriptions what the table wants, for as long as the link lives.
pub async fn keep(link: Arc<Link>, table: Subscriptions) {
    tokio::select! {
        () = link.closed.cancelled() => {}
        () = async {
            match link.dialect.era() {
                Era::Legacy => legacy(&link, &table).await,
                Era::Modern => modern(&link, &table).await,
            }
        } => {}
    }
}

async fn legacy(link: &Arc<Link>, table: &Subscriptions) {
    let mut changes = table.0.changes.subscribe();
    // What the server was asked for, and whether it agreed.
    let mut asked: BTreeMap<String, bool> = BTreeMap::new();
    loop {
        changes.borrow_and_update();
        let wanted = table.wanted();
        for uri in &wanted {
            if asked.contains_key(uri) {
                continue;
            }
            let request = Request::new(method::SUBSCRIBE).param("uri", RawJson::encode(uri));
            let outcome = link.request(&request).await;
            asked.insert(uri.clone(), outcome.is_ok());
            match outcome {
                Ok(_) => table.active(uri),
                Err(error) => table.refused(uri, error),
            }
        }
        let gone: Vec<_> = asked
            .keys()
            .filter(|uri| !wanted.contains(*uri))
            .cloned()
            .collect();
        for uri in gone {
            if asked.remove(&uri) == Some(true) {
                let request = Request::new(method::UNSUBSCRIBE).param("uri", RawJson::encode(&uri));
                if let Err(error) = link.request(&request).await {
                    tracing::debug!(%error, "the server did not take the end of a subscription");
                }
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

async fn modern(link: &Arc<Link>, table: &Subscriptions) {
    let mut changes = table.0.changes.subscribe();
    loop {
        changes.borrow_and_update();
        let wanted = table.wanted();
        if wanted.is_empty() {
            if changes.changed().await.is_err() {
                return;
            }
            continue;
        }
        tokio::select! {
            loss = listen(link, table, &wanted) => {
                tracing::debug!(error = %loss.error, "the stream of resource updates ended");
                tokio::time::sleep(PAUSE).await;
            }
            // Another set of resources needs another stream; dropping this one ends it.
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
            }
        }
    }
}

/// One listening stream, until it ends.
async fn listen(link: &Arc<Link>, table: &Subscriptions, wanted: &BTreeSet<String>) -> Loss {
    let mut filter = ObjectWriter::new();
    filter.raw("resourceSubscriptions", RawJson::encode(wanted).as_str());
    let request = Request::new(method::LISTEN).param("notifications", filter.finish());
    let frame = link.encode(&request);
    let mut exchange = match link.transport.request(frame).await {
        Ok(exchange) => exchange,
        Err(loss) => {
            if loss
                .refusal
                .as_ref()
                .is_some_and(|refusal| (400..500).contains(&refusal.status))
            {
                table.refused_all(wanted, &loss.error);
            }
            return loss;
        }
    };
    loop {
        match exchange.next().await {
            Ok(Message::Notification { method, params }) if method == method::ACKNOWLEDGED => {
                let accepted = params.and_then(|params| params.get("notifications"));
                let accepted = accepted.and_then(|accepted| accepted.get("resourceSubscriptions"));
                let accepted: BTreeSet<String> = accepted
                    .and_then(|accepted| accepted.read())
                    .unwrap_or_default();
                for uri in wanted {
                    if accepted.contains(uri) {
                        table.active(uri);
                    } else {
                        table.refused(uri, not_announced(uri));
                    }
                }
            }
            Ok(Message::Response { outcome, .. }) => {
                if let Err(rpc) = outcome {
                    let error = Error::upstream(rpc);
                    table.refused_all(wanted, &error);
                }
                return Loss::maybe_sent(Error::new(
                    Reason::OutcomeUnknown,
                    "the server ended the stream",
                ));
            }
            Ok(message) => link.receive(message, None),
            Err(loss) => return loss,
        }
    }
}

fn not_announced(uri: &str) -> Error {
    Error::new(
        Reason::NotSupported,
        format!("the server does not announce updates of `{uri}`"),
    )
}

#[cfg(test)]
mod tests {
    use super::{Subscriptions, Told};
    use crate::error::Error;

    #[tokio::test]
    async fn followers_are_counted_and_told_once() {
        let table = Subscriptions::default();
        let (mut one, two) = (table.follow("a://x"), table.follow("a://x"));
        assert_eq!(table.wanted().len(), 1);
        table.active("a://x");
        assert_eq!(one.next().await, Ok(Told::Subscribed));
        table.updated("a://x");
        table.updated("a://x/part");
        table.updated("a://xyz");
        assert_eq!(one.next().await, Ok(Told::Updated));
        table.active("a://x"); // a gap
        assert_eq!(one.next().await, Ok(Told::Updated));
        drop(two);
        assert_eq!(table.wanted().len(), 1);
        table.refused("a://x", Error::internal("x"));
        assert!(one.next().await.is_err());
        drop(one);
        assert!(table.wanted().is_empty());
    }
}
