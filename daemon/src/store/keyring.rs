//! A key in the keyring of a desktop session, by way of the Secret Service (`org.freedesktop.secrets` 0.2 on the session's
//! bus).
//!
//! The key travels in clear over that bus, which only the user's own processes can reach, and they could ask the keyring for it
//! as well. Every look is short and bounded, on a thread of its own, and needs no runtime; nothing stays connected.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use futures_util::StreamExt;
use zbus::zvariant::{DynamicType, ObjectPath, OwnedObjectPath, OwnedValue, Type, Value};
use zbus::{Connection, Message, Proxy};
use zeroize::Zeroizing;

use super::key::{Key, failed, from_hex, to_hex};
use crate::error::{Error, Reason, Result};

const SERVICE: &str = "org.freedesktop.secrets";
const ROOT: &str = "/org/freedesktop/secrets";
const ROOT_INTERFACE: &str = "org.freedesktop.Secret.Service";
const COLLECTION: &str = "org.freedesktop.Secret.Collection";
const ITEM: &str = "org.freedesktop.Secret.Item";
const PROMPT: &str = "org.freedesktop.Secret.Prompt";
/// A path that stands for nothing.
const NOTHING: &str = "/";
/// How long everything together may take, a question to the user included.
const PATIENCE: Duration = Duration::from_secs(20);
/// Keys of a data directory that are looked at.
const MOST_KEYS: usize = 16;

/// What an item is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Purpose {
    Key,
    Probe,
}

/// The keys of a data directory in the keyring.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Keyring {
    directory: String,
}

impl Keyring {
    /// The keys of this directory.
    pub(super) fn new(directory: &Path) -> Self {
        let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
        Self {
            directory: directory.display().to_string(),
        }
    }

    /// Tells people where the key is.
    pub(super) fn place(&self) -> String {
        format!("mcp-sidecar, vault key of {}", self.directory)
    }

    /// Every key that is there; usually one. Tests beforehand whether the keyring keeps what it is given.
    pub(super) fn keys(&self) -> Result<Vec<Key>> {
        look(async |session| {
            session.test(self).await?;
            let items = session.items(self, Purpose::Key).await?;
            let keys = items.into_iter().map(|(_, text)| from_hex(&text));
            keys.map(|key| {
                key.ok_or_else(|| {
                    let item = self.place();
                    let message = format!("the item `{item}` of the keyring does not hold a key");
                    failed("no_key", message)
                })
            })
            .collect()
        })
    }

    /// Puts a key beside those that are there.
    pub(super) fn add(&self, key: &Key) -> Result<()> {
        let text = to_hex(key);
        look(async |session| {
            session.add(self, Purpose::Key, &text).await?;
            let items = session.items(self, Purpose::Key).await?;
            if items.iter().any(|(_, kept)| *kept == text) {
                return Ok(());
            }
            Err(not_kept())
        })
    }

    /// Deletes every key but this one.
    pub(super) fn keep_only(&self, key: &Key) -> Result<()> {
        let text = to_hex(key);
        look(async |session| {
            let items = session.items(self, Purpose::Key).await?;
            // Never the last one.
            if !items.iter().any(|(_, kept)| *kept == text) {
                return Err(not_kept());
            }
            for (path, other) in &items {
                if *other != text {
                    session.delete(path).await?;
                }
            }
            Ok(())
        })
    }

    fn attributes(&self, purpose: Purpose) -> HashMap<&str, &str> {
        let purpose = match purpose {
            Purpose::Key => "vault-key",
            Purpose::Probe => "probe",
        };
        HashMap::from([
            ("application", "mcp-sidecar"),
            ("purpose", purpose),
            ("data-dir", self.directory.as_str()),
        ])
    }
}

/// Talks to the Secret Service within the patience that there is.
fn look<T: Send>(work: impl AsyncFnOnce(&Session) -> Result<T> + Send) -> Result<T> {
    let looked = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .map_err(|cause| unusable(&cause))?;
            runtime.block_on(async {
                let all = async { work(&Session::open().await?).await };
                let late = |_| unusable(&format_args!("no answer within {PATIENCE:?}"));
                tokio::time::timeout(PATIENCE, all).await.map_err(late)?
            })
        });
        thread.join()
    });
    looked.unwrap_or_else(|_| Err(Error::internal("the keyring's thread panicked")))
}

/// What the Secret Service calls a secret.
#[derive(serde::Serialize, serde::Deserialize, Type)]
struct Wrapped {
    session: OwnedObjectPath,
    parameters: Vec<u8>,
    value: Vec<u8>,
    content_type: String,
}

/// A conversation with the Secret Service.
struct Session {
    bus: Connection,
    path: OwnedObjectPath,
    collection: OwnedObjectPath,
}

impl Session {
    async fn open() -> Result<Self> {
        let no_bus =
            |cause: zbus::Error| unusable(&format_args!("there is no session bus, {cause}"));
        let bus = zbus::connection::Builder::session().map_err(no_bus)?;
        let bus = bus.build().await.map_err(no_bus)?;
        let answer = call(
            &bus,
            ROOT,
            ROOT_INTERFACE,
            "OpenSession",
            &("plain", Value::from("")),
        )
        .await?;
        let (_, path): (OwnedValue, OwnedObjectPath) = read(&answer)?;
        let answer = call(&bus, ROOT, ROOT_INTERFACE, "ReadAlias", &("default",)).await?;
        let collection: OwnedObjectPath = read(&answer)?;
        if collection.as_str() == NOTHING {
            return Err(unusable(&"it has no default collection; make one"));
        }
        let session = Self {
            bus,
            path,
            collection,
        };
        session
            .unlock(std::slice::from_ref(&session.collection))
            .await?;
        Ok(session)
    }

    async fn unlock(&self, locked: &[OwnedObjectPath]) -> Result<()> {
        let answer = call(&self.bus, ROOT, ROOT_INTERFACE, "Unlock", &(locked,)).await?;
        let (_, prompt): (Vec<OwnedObjectPath>, OwnedObjectPath) = read(&answer)?;
        self.settle(&prompt).await
    }

    /// Lets the user be asked, if that is wanted.
    async fn settle(&self, prompt: &ObjectPath<'_>) -> Result<()> {
        if prompt.as_str() == NOTHING {
            return Ok(());
        }
        let proxy = Proxy::new(&self.bus, SERVICE, prompt, PROMPT).await;
        let proxy = proxy.map_err(|cause| unusable(&cause))?;
        let completed = proxy.receive_signal("Completed").await;
        let mut completed = completed.map_err(|cause| unusable(&cause))?;
        call(&self.bus, prompt.as_str(), PROMPT, "Prompt", &("",)).await?;
        let answer = completed.next().await;
        let answer = answer.ok_or_else(|| unusable(&"it went away"))?;
        let (dismissed, _): (bool, OwnedValue) = read(&answer)?;
        if dismissed {
            return Err(unusable(&"it is locked, and was not unlocked"));
        }
        Ok(())
    }

    /// The items for a purpose, with their contents.
    async fn items(
        &self,
        keyring: &Keyring,
        purpose: Purpose,
    ) -> Result<Vec<(OwnedObjectPath, Zeroizing<String>)>> {
        let wanted = (keyring.attributes(purpose),);
        let answer = call(&self.bus, ROOT, ROOT_INTERFACE, "SearchItems", &wanted).await?;
        let (mut found, locked): (Vec<OwnedObjectPath>, Vec<OwnedObjectPath>) = read(&answer)?;
        if !locked.is_empty() {
            self.unlock(&locked).await?;
            found.extend(locked);
        }
        found.truncate(MOST_KEYS);
        let mut items = Vec::new();
        for path in found {
            let answer = call(&self.bus, path.as_str(), ITEM, "GetSecret", &(&self.path,)).await?;
            let (wrapped,): (Wrapped,) = read(&answer)?;
            let text = String::from_utf8(wrapped.value);
            items.push((path, Zeroizing::new(text.unwrap_or_default())));
        }
        Ok(items)
    }

    async fn add(&self, keyring: &Keyring, purpose: Purpose, text: &str) -> Result<()> {
        let label = match purpose {
            Purpose::Key => keyring.place(),
            Purpose::Probe => "mcp-sidecar, a probe".to_owned(),
        };
        let attributes = keyring.attributes(purpose);
        let properties = HashMap::from([
            ("org.freedesktop.Secret.Item.Label", Value::from(label)),
            (
                "org.freedesktop.Secret.Item.Attributes",
                Value::from(attributes),
            ),
        ]);
        let wrapped = Wrapped {
            session: self.path.clone(),
            parameters: Vec::new(),
            value: text.as_bytes().to_vec(),
            content_type: "text/plain".to_owned(),
        };
        let body = (properties, wrapped, false);
        let place = self.collection.as_str();
        let answer = call(&self.bus, place, COLLECTION, "CreateItem", &body).await?;
        let (_, prompt): (OwnedObjectPath, OwnedObjectPath) = read(&answer)?;
        self.settle(&prompt).await
    }

    async fn delete(&self, item: &ObjectPath<'_>) -> Result<()> {
        let answer = call(&self.bus, item.as_str(), ITEM, "Delete", &()).await?;
        let prompt: OwnedObjectPath = read(&answer)?;
        self.settle(&prompt).await
    }

    /// Writes something, reads it back and deletes it.
    async fn test(&self, keyring: &Keyring) -> Result<()> {
        let probe = uuid::Uuid::new_v4().to_string();
        self.add(keyring, Purpose::Probe, &probe).await?;
        let items = self.items(keyring, Purpose::Probe).await?;
        let kept = items.iter().any(|(_, text)| **text == probe);
        // With those that a daemon has left that was killed.
        for (path, _) in &items {
            self.delete(path).await?;
        }
        let left = self.items(keyring, Purpose::Probe).await?;
        if kept && left.is_empty() {
            return Ok(());
        }
        Err(not_kept())
    }
}

async fn call<B: serde::Serialize + DynamicType>(
    bus: &Connection,
    path: &str,
    interface: &str,
    method: &str,
    body: &B,
) -> Result<Message> {
    let answer = bus.call_method(Some(SERVICE), path, Some(interface), method, body);
    answer.await.map_err(|cause| unusable(&cause))
}

fn read<T: serde::de::DeserializeOwned + Type>(answer: &Message) -> Result<T> {
    let body = answer.body();
    body.deserialize().map_err(|cause| unusable(&cause))
}

/// It may be there later: another attempt can help.
fn unusable(cause: &dyn std::fmt::Display) -> Error {
    Error::new(
        Reason::StoreFailed,
        format!(
            "`vault.backend` is `keyring`, and the keyring of the session cannot be used ({cause}): start the daemon in the \
             session of a user whose keyring is unlocked, or choose another backend, such as `key_file`"
        ),
    )
}

fn not_kept() -> Error {
    failed(
        "not_kept",
        "the keyring of the session does not keep what it is given: it accepts secrets, and does not return them; choose \
         another `vault.backend`, such as `key_file`"
            .to_owned(),
    )
}
