//! The registered servers and their connections: adds, changes, removes, finds.
//!
//! A change is committed before it is acted upon. Changes are made one at a time; reading never waits for them.

mod admission;
mod refusal;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_util::task::TaskTracker;

use self::refusal::{
    check_etag, has_other_id, id_taken, namespace_not_found, server_not_found, too_many,
};
use crate::base::{Clock, Namespace, ServerId, ServerKey};
use crate::error::{Error, Result};
use crate::mcp::connection::{Ack, Handle, Live, not_usable};
use crate::mcp::open::Dialer;
use crate::model::spec::{ServerSpec, normalize_id};
use crate::model::status::{ConnectionState, ServerRecord, ServerStatus, ServerView};
use crate::store::Store;

/// What AddServer did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A new server.
    Created,
    /// The same server, unchanged.
    Existing,
    /// The same server with other settings, which now hold.
    Updated,
    /// The same server, which had a generated id and now has the given one.
    Migrated,
}

/// A registered server with its connection.
#[derive(Clone, Debug)]
pub struct Server {
    /// The registration.
    pub record: Arc<ServerRecord>,
    /// The connection.
    pub handle: Handle,
}

impl Server {
    /// What apps see of it now.
    #[must_use]
    pub fn view(&self) -> ServerView {
        let live = self.handle.live();
        let mut status = ServerStatus::clone(&live.status);
        status.stderr_tail = self.handle.journal().tail();
        status.calls_in_flight = live.link.map_or(0, |link| link.calls_in_flight());
        self.record.view(status)
    }

    /// Why it takes no calls now.
    #[must_use]
    pub fn why_not_usable(&self) -> Error {
        not_usable(&self.record.key, &self.handle.live())
    }

    /// What is known of it now.
    #[must_use]
    pub fn live(&self) -> Live {
        self.handle.live()
    }
}

/// A server to be registered.
#[derive(Clone, Debug)]
pub struct NewServer {
    /// The namespace.
    pub namespace: Namespace,
    /// The wanted id, as given; `None` to have one generated.
    pub wanted_id: Option<String>,
    /// The settings.
    pub spec: ServerSpec,
    /// Do not connect.
    pub register_only: bool,
}

type Servers = HashMap<Namespace, BTreeMap<ServerId, Server>>;

/// All servers. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Registry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    dialer: Dialer,
    tasks: TaskTracker,
    limit: usize,
    servers: RwLock<Servers>,
    /// Whoever changes registrations holds this, so that what was checked still holds when it is committed.
    changes: tokio::sync::Mutex<()>,
}

impl Registry {
    /// Brings the stored servers back; those that shall be connected start to connect in the background.
    #[must_use]
    pub fn start(records: Vec<ServerRecord>, store: Store, dialer: Dialer, limit: usize) -> Self {
        let tasks = TaskTracker::new();
        let inner = Inner {
            store,
            dialer,
            tasks,
            limit,
            servers: RwLock::default(),
            changes: tokio::sync::Mutex::default(),
        };
        let registry = Self(Arc::new(inner));
        for record in records {
            registry.run(record);
        }
        registry
    }

    /// How many servers are registered, over all namespaces.
    #[must_use]
    pub fn count(&self) -> usize {
        let servers = self
            .0
            .servers
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        servers.values().map(BTreeMap::len).sum()
    }

    /// Every server, over all namespaces.
    #[must_use]
    pub fn all(&self) -> Vec<Server> {
        let servers = self
            .0
            .servers
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let all = servers.values().flat_map(BTreeMap::values);
        all.cloned().collect()
    }

    /// Ends every connection, all at the same time, and leaves sessions for the next start; returns when everything of
    /// them is gone.
    pub async fn stop(&self) {
        let _changes = self.0.changes.lock().await;
        let all: Vec<_> = {
            let mut servers = self
                .0
                .servers
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::take(&mut *servers)
                .into_values()
                .flat_map(BTreeMap::into_values)
                .collect()
        };
        futures_util::future::join_all(all.iter().map(|server| server.handle.suspend())).await;
        self.0.tasks.close();
        self.0.tasks.wait().await;
    }

    fn run(&self, record: ServerRecord) -> Server {
        let inner = &self.0;
        let handle = Handle::spawn(
            record.clone(),
            inner.dialer.clone(),
            inner.store.clone(),
            &inner.tasks,
        );
        let server = Server {
            record: Arc::new(record),
            handle,
        };
        self.insert(server.clone());
        server
    }

    fn insert(&self, server: Server) {
        let key = server.record.key.clone();
        let mut servers = self
            .0
            .servers
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        servers
            .entry(key.namespace)
            .or_default()
            .insert(key.id, server);
    }

    fn forget(&self, key: &ServerKey) {
        let mut servers = self
            .0
            .servers
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(of_namespace) = servers.get_mut(&key.namespace) {
            of_namespace.remove(&key.id);
            if of_namespace.is_empty() {
                servers.remove(&key.namespace);
            }
        }
    }

    /// One server.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND` or `SERVER_NOT_FOUND`.
    pub fn get(&self, namespace: &Namespace, id: &str) -> Result<Server> {
        if id.is_empty() {
            return Err(Error::invalid(
                "server_id",
                "name a server; ListServers shows the ids",
            ));
        }
        let servers = self
            .0
            .servers
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let of_namespace = servers.get(namespace);
        if of_namespace.is_none() && namespace.as_str() != Namespace::DEFAULT {
            return Err(namespace_not_found(namespace));
        }
        // Ids are accepted as they were given, too.
        let found = of_namespace.and_then(|all| {
            all.get(&ServerId::new(id))
                .or_else(|| all.get(&normalize_id(id)))
        });
        found
            .cloned()
            .ok_or_else(|| server_not_found(namespace, id))
    }

    /// The same server as it is registered now: meanwhile another app may have changed its settings or its id. One that
    /// was removed stays as it was.
    #[must_use]
    pub fn again(&self, server: &Server) -> Server {
        let key = &server.record.key;
        let servers = self
            .0
            .servers
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let now = servers.get(&key.namespace).and_then(|all| {
            let same = |other: &&Server| other.handle.is_same(&server.handle);
            let unmoved = all.get(&key.id).filter(same);
            unmoved.or_else(|| all.values().find(same))
        });
        now.unwrap_or(server).clone()
    }

    /// The servers of a namespace in order of their ids; only the named ones if any are named.
    ///
    /// # Errors
    /// `NAMESPACE_NOT_FOUND` for a namespace in which nothing is registered, unless it is the default one;
    /// `SERVER_NOT_FOUND` for a named server that is not registered.
    pub fn list(&self, namespace: &Namespace, ids: &[String]) -> Result<Vec<Server>> {
        if !ids.is_empty() {
            let mut named = BTreeMap::new();
            for id in ids {
                let server = self.get(namespace, id)?;
                named.insert(server.record.key.id.clone(), server);
            }
            return Ok(named.into_values().collect());
        }
        let servers = self
            .0
            .servers
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        match servers.get(namespace) {
            Some(all) => Ok(all.values().cloned().collect()),
            None if namespace.as_str() == Namespace::DEFAULT => Ok(Vec::new()),
            None => Err(namespace_not_found(namespace)),
        }
    }

    /// Makes a change in a task of its own: a caller that goes away must not leave it half made.
    async fn complete<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let change = self.0.tasks.spawn(change);
        change
            .await
            .unwrap_or_else(|cause| Err(Error::internal(format!("a change failed: {cause}"))))
    }

    /// Registers a server, or finds the one that it is already (rows A2, A3, A5). Once begun it is completed, even if
    /// the future is dropped; so are the other changes.
    ///
    /// # Errors
    /// `INVALID_FIELD`, `DESTINATION_BLOCKED`, `SERVER_ID_TAKEN`, `TOO_MANY`; nothing is registered then.
    pub async fn add(&self, new: NewServer) -> Result<(Server, Outcome)> {
        let registry = self.clone();
        self.complete(async move { registry.add_now(new).await })
            .await
    }

    async fn add_now(&self, new: NewServer) -> Result<(Server, Outcome)> {
        self.check(&new.spec)?;
        let changes = self.0.changes.lock().await;
        let wanted = new.wanted_id.as_deref().map(normalize_id);
        let (known, same) = self.look_up(&new.namespace, wanted.as_ref(), &new.spec);
        if let (Some(wanted), Some(other)) = (&wanted, &known)
            && !is_same(&other.record.spec, &new.spec)
        {
            return Err(id_taken(wanted, &other.record, &new.spec));
        }
        let (server, outcome, ack) = match (known.or(same), wanted) {
            (Some(server), Some(wanted)) if server.record.key.id != wanted => {
                if !server.record.generated_id {
                    return Err(has_other_id(&server.record, &wanted));
                }
                self.migrate(&server, wanted, new.spec).await?
            }
            (Some(server), _) => self.add_again(server, new.spec, new.register_only).await?,
            (None, wanted) => {
                let generated = wanted.is_none();
                let id = wanted.unwrap_or_else(|| self.generate_id(&new.namespace, &new.spec));
                let connect = !new.register_only;
                self.create(new.namespace, id, generated, new.spec, connect)
                    .await?
            }
        };
        drop(changes);
        if let Some(ack) = ack {
            ack.done().await;
        }
        Ok((server, outcome))
    }

    /// The server under the wanted id, and the server with the same name and target.
    fn look_up(
        &self,
        namespace: &Namespace,
        wanted: Option<&ServerId>,
        spec: &ServerSpec,
    ) -> (Option<Server>, Option<Server>) {
        let servers = self
            .0
            .servers
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let Some(all) = servers.get(namespace) else {
            return (None, None);
        };
        let by_id = wanted.and_then(|wanted| all.get(wanted)).cloned();
        let same = all
            .values()
            .find(|server| is_same(&server.record.spec, spec))
            .cloned();
        (by_id, same)
    }

    async fn create(
        &self,
        namespace: Namespace,
        id: ServerId,
        generated_id: bool,
        spec: ServerSpec,
        connect: bool,
    ) -> Result<(Server, Outcome, Option<Ack>)> {
        let count = self.count();
        if count >= self.0.limit {
            return Err(too_many(count));
        }
        let now = Clock.wall();
        let record = ServerRecord {
            key: ServerKey::new(namespace, id),
            generated_id,
            spec,
            connect,
            generation: 1,
            created: now,
            updated: now,
            verdict: None,
            session: None,
        };
        let state = if connect {
            ConnectionState::Connecting
        } else {
            ConnectionState::Disconnected
        };
        let status = ServerStatus {
            state,
            since: now,
            ..ServerStatus::default()
        };
        self.0.store.put_server(record.clone(), status).await?;
        Ok((self.run(record), Outcome::Created, None))
    }

    /// The same server is added again: settings that differ take effect, a failed connection is tried again.
    async fn add_again(
        &self,
        server: Server,
        spec: ServerSpec,
        register_only: bool,
    ) -> Result<(Server, Outcome, Option<Ack>)> {
        let mut record = ServerRecord::clone(&server.record);
        let outcome = if record.spec == spec {
            Outcome::Existing
        } else {
            Outcome::Updated
        };
        let connect = record.connect || !register_only;
        if outcome == Outcome::Existing && connect == record.connect {
            let idle = connect && server.live().status.state != ConnectionState::Ready;
            let ack = if idle {
                Some(server.handle.connect().await)
            } else {
                None
            };
            return Ok((server, outcome, ack));
        }
        record.connect = connect;
        if outcome == Outcome::Updated {
            record.spec = spec;
            record.generation += 1;
            record.updated = Clock.wall();
        }
        let (server, ack) = self.replace(&server, record).await?;
        Ok((server, outcome, Some(ack)))
    }

    async fn migrate(
        &self,
        server: &Server,
        id: ServerId,
        spec: ServerSpec,
    ) -> Result<(Server, Outcome, Option<Ack>)> {
        let old = server.record.key.clone();
        let mut record = ServerRecord::clone(&server.record);
        record.key.id = id;
        record.generated_id = false;
        if record.spec != spec {
            record.spec = spec;
            record.generation += 1;
            record.updated = Clock.wall();
        }
        let status = ServerStatus::clone(&server.live().status);
        self.0
            .store
            .rename_server(old.clone(), record.clone(), status)
            .await?;
        self.0.dialer.auth.rename(&old, &record.key);
        // Carried out before whatever follows on the same handle; nobody waits for it here.
        let handle = server.handle.rename(record.key.clone()).await;
        let migrated = Server {
            record: Arc::new(record),
            handle,
        };
        self.forget(&old);
        self.insert(migrated.clone());
        let ack = migrated
            .handle
            .apply(ServerRecord::clone(&migrated.record))
            .await;
        Ok((migrated, Outcome::Migrated, Some(ack)))
    }

    /// Commits a changed registration and puts it into force.
    async fn replace(&self, server: &Server, record: ServerRecord) -> Result<(Server, Ack)> {
        let status = ServerStatus::clone(&server.live().status);
        self.0.store.put_server(record.clone(), status).await?;
        let server = Server {
            record: Arc::new(record),
            handle: server.handle.clone(),
        };
        self.insert(server.clone());
        let ack = server
            .handle
            .apply(ServerRecord::clone(&server.record))
            .await;
        Ok((server, ack))
    }

    /// Changes a registration with `change`, if it is still the one with this etag (empty: any).
    ///
    /// # Errors
    /// `ETAG_MISMATCH`, what `change` returns, and as [`Registry::add`].
    pub async fn update(
        &self,
        namespace: Namespace,
        id: String,
        etag: String,
        change: impl FnOnce(&mut ServerSpec) -> Result<()> + Send + 'static,
    ) -> Result<Server> {
        let registry = self.clone();
        self.complete(async move { registry.update_now(&namespace, &id, &etag, change).await })
            .await
    }

    async fn update_now(
        &self,
        namespace: &Namespace,
        id: &str,
        etag: &str,
        change: impl FnOnce(&mut ServerSpec) -> Result<()>,
    ) -> Result<Server> {
        let changes = self.0.changes.lock().await;
        let server = self.get(namespace, id)?;
        check_etag(&server.record, etag)?;
        let mut record = ServerRecord::clone(&server.record);
        change(&mut record.spec)?;
        self.check(&record.spec)?;
        if record.spec == server.record.spec {
            return Ok(server);
        }
        let twin = self.look_up(namespace, None, &record.spec).1;
        if let Some(twin) = twin.filter(|twin| twin.record.key != record.key) {
            return Err(id_taken(&twin.record.key.id, &twin.record, &record.spec));
        }
        record.generation += 1;
        record.updated = Clock.wall();
        let (server, ack) = self.replace(&server, record).await?;
        drop(changes);
        ack.done().await;
        Ok(server)
    }

    /// Removes a server with everything that belongs to it.
    ///
    /// # Errors
    /// `SERVER_NOT_FOUND`, `ETAG_MISMATCH`.
    pub async fn remove(&self, namespace: Namespace, id: String, etag: String) -> Result<()> {
        let registry = self.clone();
        self.complete(async move { registry.remove_now(&namespace, &id, &etag).await })
            .await
    }

    async fn remove_now(&self, namespace: &Namespace, id: &str, etag: &str) -> Result<()> {
        let changes = self.0.changes.lock().await;
        let server = self.get(namespace, id)?;
        check_etag(&server.record, etag)?;
        // First the promise, then the deed: a daemon that dies in between does not bring the server back.
        self.0
            .store
            .remove_server(server.record.key.clone())
            .await?;
        self.forget(&server.record.key);
        self.0.dialer.auth.remove(&server.record.key);
        drop(changes);
        server.handle.stop().await;
        Ok(())
    }

    /// Connects a server, and remembers that it shall be connected.
    ///
    /// # Errors
    /// `SERVER_NOT_FOUND`.
    pub async fn connect(&self, namespace: &Namespace, id: &str) -> Result<Server> {
        self.want(namespace, id, true).await
    }

    /// Ends a connection, and remembers that it shall stay so. Returns when it is closed.
    ///
    /// # Errors
    /// `SERVER_NOT_FOUND`.
    pub async fn disconnect(&self, namespace: &Namespace, id: &str) -> Result<Server> {
        self.want(namespace, id, false).await
    }

    async fn want(&self, namespace: &Namespace, id: &str, connect: bool) -> Result<Server> {
        let (registry, namespace, id) = (self.clone(), namespace.clone(), id.to_owned());
        self.complete(async move { registry.want_now(&namespace, &id, connect).await })
            .await
    }

    async fn want_now(&self, namespace: &Namespace, id: &str, connect: bool) -> Result<Server> {
        let changes = self.0.changes.lock().await;
        let mut server = self.get(namespace, id)?;
        let ack = if server.record.connect == connect {
            if connect {
                server.handle.connect().await
            } else {
                server.handle.disconnect().await
            }
        } else {
            let mut record = ServerRecord::clone(&server.record);
            record.connect = connect;
            let (changed, ack) = self.replace(&server, record).await?;
            server = changed;
            ack
        };
        drop(changes);
        ack.done().await;
        Ok(server)
    }
}

fn is_same(one: &ServerSpec, other: &ServerSpec) -> bool {
    one.name == other.name && one.target() == other.target()
}
