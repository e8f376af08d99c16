//! A fake of a desktop's keyring: a session bus with nothing but a Secret Service on it.

#![allow(
    clippy::unused_self,
    clippy::used_underscore_binding,
    clippy::needless_pass_by_value,
    reason = "the forms that D-Bus methods have"
)]

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::task::JoinHandle;
use zbus::zvariant::{ObjectPath, OwnedObjectPath, OwnedValue, Value};
use zbus::{Connection, Message, ObjectServer, fdo, interface};

const ROOT: &str = "/org/freedesktop/secrets";
const COLLECTION: &str = "/org/freedesktop/secrets/collection/login";
const PROMPT: &str = "/org/freedesktop/secrets/prompt/one";
const NOTHING: &str = "/";
const OWNER: &str = ":1.1";

/// What the keyring does wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum KeyringFault {
    /// Nothing.
    #[default]
    None,
    /// It accepts what it is given, and returns nothing.
    Forgets,
    /// It is locked, and the user does not want to unlock it.
    Locked,
}

/// A secret as it is passed: session, parameters, value, type.
type Wrapped = (OwnedObjectPath, Vec<u8>, Vec<u8>, String);

#[derive(Default)]
struct State {
    fault: KeyringFault,
    items: BTreeMap<u32, Item>,
    next: u32,
}

#[derive(Clone)]
struct Item {
    attributes: HashMap<String, String>,
    value: Vec<u8>,
}

type Shared = Arc<Mutex<State>>;

/// A keyring that runs until it is dropped.
pub struct FakeKeyring {
    dir: TempDir,
    state: Shared,
    task: JoinHandle<()>,
}

impl FakeKeyring {
    /// Starts it.
    pub fn start() -> Self {
        let dir = tempfile::tempdir().expect("a directory for the bus");
        let listener = UnixListener::bind(dir.path().join("bus")).expect("a session bus");
        let state = Shared::default();
        let served = Arc::clone(&state);
        let task = tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((stream, _)) = listener.accept().await {
                // Each answers on its own; one that went away is no matter.
                if let Ok(connection) = serve(stream, Arc::clone(&served)).await {
                    open.push(connection);
                }
            }
        });
        Self { dir, state, task }
    }

    /// The address of the bus, for `DBUS_SESSION_BUS_ADDRESS`.
    pub fn address(&self) -> String {
        format!("unix:path={}", self.path().display())
    }

    fn path(&self) -> std::path::PathBuf {
        Path::join(self.dir.path(), "bus")
    }

    /// From now on this is wrong.
    pub fn fault(&self, fault: KeyringFault) {
        self.state.lock().unwrap().fault = fault;
    }

    /// What is kept for a purpose.
    pub fn kept(&self, purpose: &str) -> Vec<Vec<u8>> {
        let state = self.state.lock().unwrap();
        let wanted = |item: &&Item| item.attributes.get("purpose").is_some_and(|p| p == purpose);
        let items = state.items.values().filter(wanted);
        items.map(|item| item.value.clone()).collect()
    }

    /// Puts another value into everything that is kept for a purpose; returns the ones of before.
    pub fn replace(&self, purpose: &str, value: &[u8]) {
        let mut state = self.state.lock().unwrap();
        for item in state.items.values_mut() {
            if item.attributes.get("purpose").is_some_and(|p| p == purpose) {
                item.value = value.to_vec();
            }
        }
    }
}

impl Drop for FakeKeyring {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(stream: tokio::net::UnixStream, state: Shared) -> zbus::Result<Connection> {
    let items: Vec<u32> = state.lock().unwrap().items.keys().copied().collect();
    let mut builder = zbus::connection::Builder::unix_stream(stream)
        .server(zbus::Guid::generate())?
        .p2p()
        .serve_at("/org/freedesktop/DBus", Bus)?
        .serve_at(ROOT, Service(Arc::clone(&state)))?
        .serve_at(COLLECTION, Collection(Arc::clone(&state)))?
        .serve_at(PROMPT, Prompt)?;
    for id in items {
        let handle = Handle(Arc::clone(&state), id);
        builder = builder.serve_at(item_path(id), handle)?;
    }
    builder.build().await
}

fn item_path(id: u32) -> OwnedObjectPath {
    path(&format!("{COLLECTION}/{id}"))
}

fn path(text: &str) -> OwnedObjectPath {
    ObjectPath::try_from(text.to_owned())
        .expect("a path")
        .into()
}

/// The bus itself, as far as a client asks it anything.
struct Bus;

#[interface(name = "org.freedesktop.DBus")]
impl Bus {
    fn hello(&self) -> &'static str {
        ":1.7"
    }

    fn add_match(&self, _rule: &str) {}

    fn remove_match(&self, _rule: &str) {}

    fn get_name_owner(&self, _name: &str) -> &'static str {
        OWNER
    }
}

struct Service(Shared);

#[interface(name = "org.freedesktop.Secret.Service")]
impl Service {
    fn open_session(
        &self,
        algorithm: &str,
        _input: Value<'_>,
    ) -> fdo::Result<(OwnedValue, OwnedObjectPath)> {
        if algorithm != "plain" {
            return Err(fdo::Error::NotSupported(algorithm.to_owned()));
        }
        let output = OwnedValue::try_from(Value::from("")).expect("a value");
        Ok((output, path("/org/freedesktop/secrets/session/one")))
    }

    fn read_alias(&self, name: &str) -> OwnedObjectPath {
        path(if name == "default" {
            COLLECTION
        } else {
            NOTHING
        })
    }

    fn unlock(&self, objects: Vec<OwnedObjectPath>) -> (Vec<OwnedObjectPath>, OwnedObjectPath) {
        match self.0.lock().unwrap().fault {
            KeyringFault::Locked => (Vec::new(), path(PROMPT)),
            _ => (objects, path(NOTHING)),
        }
    }

    fn search_items(
        &self,
        attributes: HashMap<String, String>,
    ) -> (Vec<OwnedObjectPath>, Vec<OwnedObjectPath>) {
        let state = self.0.lock().unwrap();
        let has = |item: &Item| {
            attributes
                .iter()
                .all(|(name, value)| item.attributes.get(name) == Some(value))
        };
        let found = state.items.iter().filter(|(_, item)| has(item));
        (found.map(|(id, _)| item_path(*id)).collect(), Vec::new())
    }
}

struct Collection(Shared);

#[interface(name = "org.freedesktop.Secret.Collection")]
impl Collection {
    async fn create_item(
        &self,
        properties: HashMap<String, OwnedValue>,
        secret: Wrapped,
        _replace: bool,
        #[zbus(object_server)] server: &ObjectServer,
    ) -> fdo::Result<(OwnedObjectPath, OwnedObjectPath)> {
        let attributes = properties
            .get("org.freedesktop.Secret.Item.Attributes")
            .and_then(|value| HashMap::try_from(value.clone()).ok())
            .ok_or_else(|| fdo::Error::InvalidArgs("no attributes".to_owned()))?;
        let (_, _, value, _) = secret;
        let id = {
            let mut state = self.0.lock().unwrap();
            state.next += 1;
            let id = state.next;
            if state.fault != KeyringFault::Forgets {
                state.items.insert(id, Item { attributes, value });
            }
            id
        };
        server
            .at(item_path(id), Handle(Arc::clone(&self.0), id))
            .await?;
        Ok((item_path(id), path(NOTHING)))
    }
}

/// One item.
struct Handle(Shared, u32);

#[interface(name = "org.freedesktop.Secret.Item")]
impl Handle {
    fn get_secret(&self, session: OwnedObjectPath) -> fdo::Result<(Wrapped,)> {
        let state = self.0.lock().unwrap();
        let item = state.items.get(&self.1);
        let item = item.ok_or_else(|| fdo::Error::UnknownObject("no such item".to_owned()))?;
        Ok(((
            session,
            Vec::new(),
            item.value.clone(),
            "text/plain".to_owned(),
        ),))
    }

    fn delete(&self) -> OwnedObjectPath {
        self.0.lock().unwrap().items.remove(&self.1);
        path(NOTHING)
    }
}

/// A question to the user, who says no.
struct Prompt;

#[interface(name = "org.freedesktop.Secret.Prompt")]
impl Prompt {
    async fn prompt(
        &self,
        _window: &str,
        #[zbus(connection)] connection: &Connection,
    ) -> fdo::Result<()> {
        // By hand, because a client looks at whom a signal comes from, which else only a bus says.
        let signal = Message::signal(PROMPT, "org.freedesktop.Secret.Prompt", "Completed")?;
        let signal = signal.sender(OWNER)?.build(&(true, Value::from("")))?;
        connection.send(&signal).await?;
        Ok(())
    }
}
