//! Who can be asked: what apps that follow a namespace say they can answer, and what they said last.
//!
//! Never tells a server more than somebody has declared, and never forgets, over a restart, what was declared last: a server that
//! is dialled before any app is back is told the same as before.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::base::Namespace;
use crate::error::Result;
use crate::model::question::Mode;
use crate::model::spec::Abilities;
use crate::store::Store;

/// Namespaces that are read at once.
const PAGE: usize = 1000;

/// The audience of all namespaces. Cheap to clone.
#[derive(Clone)]
pub struct Audience(Arc<Inner>);

impl fmt::Debug for Audience {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Audience").finish_non_exhaustive()
    }
}

struct Inner {
    store: Store,
    /// Never locked across an await.
    state: Mutex<State>,
    /// One write at a time, so that what is on disk is never older than what was written before.
    writing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    attached: HashMap<u64, Attached>,
    next: u64,
    /// What was declared in a namespace when somebody last came.
    last: HashMap<Namespace, Abilities>,
}

struct Attached {
    scope: Scope,
    abilities: Abilities,
}

/// The namespaces that an app follows.
#[derive(Clone)]
pub enum Scope {
    /// These.
    These(Vec<Namespace>),
    /// All that it may use.
    Permitted(Arc<dyn Fn(&Namespace) -> bool + Send + Sync>),
}

impl Scope {
    fn holds(&self, namespace: &Namespace) -> bool {
        match self {
            Self::These(these) => these.contains(namespace),
            Self::Permitted(permitted) => permitted(namespace),
        }
    }
}

impl fmt::Debug for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::These(these) => f.debug_tuple("These").field(these).finish(),
            Self::Permitted(_) => f.write_str("Permitted(..)"),
        }
    }
}

/// An app that can be asked. It is gone when this is dropped.
#[derive(Debug)]
pub struct Attachment {
    audience: Audience,
    number: u64,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.audience.state().attached.remove(&self.number);
    }
}

impl State {
    /// What those who are attached can answer together; `None` if nobody is.
    fn present(&self, namespace: &Namespace) -> Option<Abilities> {
        let mut here = self.attached.values();
        let here = here.by_ref().filter(|one| one.scope.holds(namespace));
        here.map(|one| one.abilities).reduce(Abilities::union)
    }
}

impl Audience {
    /// An audience of nobody, which remembers nothing yet.
    #[must_use]
    pub fn new(store: Store) -> Self {
        Self(Arc::new(Inner {
            store,
            state: Mutex::default(),
            writing: tokio::sync::Mutex::default(),
        }))
    }

    /// Remembers what was declared before the daemon started. To be called before anything is dialled.
    ///
    /// # Errors
    /// [`StoreFailed`](crate::error::Reason::StoreFailed).
    pub async fn recall(&self) -> Result<()> {
        let known = self.0.store.abilities().await?;
        self.state().last.extend(known);
        Ok(())
    }

    /// Somebody follows these namespaces and can answer that much. It is on disk when this returns.
    ///
    /// # Errors
    /// [`StoreFailed`](crate::error::Reason::StoreFailed); then nobody is attached.
    pub async fn attach(&self, scope: Scope, abilities: Abilities) -> Result<Attachment> {
        let number = {
            let mut state = self.state();
            let number = state.next;
            state.next += 1;
            let scope = scope.clone();
            state.attached.insert(number, Attached { scope, abilities });
            number
        };
        let attachment = Attachment {
            audience: self.clone(),
            number,
        };
        // Whatever a namespace is called in which no server was ever registered, it is not remembered: there is no end to names.
        let mut known = Vec::new();
        match scope {
            Scope::These(these) => {
                for namespace in these {
                    if self.0.store.namespace_exists(namespace.clone()).await? {
                        known.push(namespace);
                    }
                }
            }
            Scope::Permitted(permitted) => {
                let mut after = None;
                loop {
                    let page = self.0.store.namespaces(after, PAGE).await?;
                    let full = page.len() == PAGE;
                    after = page.last().cloned();
                    known.extend(page.into_iter().filter(|namespace| permitted(namespace)));
                    if !full {
                        break;
                    }
                }
            }
        }
        self.note(known).await?;
        Ok(attachment)
    }

    /// What can be answered in a namespace, for whoever is about to tell a server for the first time: it is on disk when this
    /// returns.
    pub async fn settled(&self, namespace: &Namespace) -> Abilities {
        let unknown = !self.state().last.contains_key(namespace);
        if unknown && let Err(failure) = self.note(vec![namespace.clone()]).await {
            tracing::warn!(%failure, %namespace, "what apps can answer could not be stored; it is not known after a restart");
        }
        self.abilities(namespace)
    }

    /// What can be answered in a namespace: by those who are attached, else what was declared last.
    #[must_use]
    pub fn abilities(&self, namespace: &Namespace) -> Abilities {
        let state = self.state();
        let last = || state.last.get(namespace).copied().unwrap_or_default();
        state.present(namespace).unwrap_or_else(last)
    }

    /// Whether somebody is attached now who can answer questions of this mode.
    #[must_use]
    pub fn attends(&self, namespace: &Namespace, mode: Mode) -> bool {
        let present = self.state().present(namespace);
        present.is_some_and(|abilities| abilities.answer(mode))
    }

    /// Remembers what is declared in these namespaces now.
    async fn note(&self, namespaces: Vec<Namespace>) -> Result<()> {
        let _writing = self.0.writing.lock().await;
        let news: Vec<_> = {
            let state = self.state();
            let now = namespaces.into_iter().filter_map(|namespace| {
                let abilities = state.present(&namespace)?;
                let same = state.last.get(&namespace) == Some(&abilities);
                (!same).then_some((namespace, abilities))
            });
            now.collect()
        };
        if news.is_empty() {
            return Ok(());
        }
        self.0.store.set_abilities(news.clone()).await?;
        self.state().last.extend(news);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;
    use crate::store::StoreConfig;

    const FORMS: Abilities = Abilities {
        elicitation_form: true,
        ..Abilities::NOTHING
    };
    const URLS: Abilities = Abilities {
        elicitation_url: true,
        ..Abilities::NOTHING
    };

    fn store(root: &TempDir) -> Store {
        Store::open(StoreConfig::new(root.path().join("data")))
            .unwrap()
            .0
    }

    fn here() -> Scope {
        Scope::These(vec![Namespace::default()])
    }

    #[tokio::test]
    async fn who_is_there_counts_and_else_what_was_said_last() {
        let root = TempDir::new().unwrap();
        let store = store(&root);
        let audience = Audience::new(store.clone());
        let home = Namespace::default();
        let other = Namespace::new("other");
        assert_eq!(audience.abilities(&home), Abilities::NOTHING);
        let forms = audience.attach(here(), FORMS).await.unwrap();
        let everywhere = Scope::Permitted(Arc::new(|namespace| namespace.as_str() != "closed"));
        let urls = audience.attach(everywhere, URLS).await.unwrap();
        assert_eq!(audience.abilities(&home), FORMS.union(URLS));
        assert_eq!(audience.abilities(&other), URLS);
        assert_eq!(
            audience.abilities(&Namespace::new("closed")),
            Abilities::NOTHING
        );
        assert!(audience.attends(&home, Mode::Form) && !audience.attends(&other, Mode::Form));
        assert_eq!(audience.settled(&home).await, FORMS.union(URLS));
        drop(urls);
        assert_eq!(audience.abilities(&home), FORMS);
        drop(forms);
        // Nobody is there: the same as when somebody last came, however they went.
        assert_eq!(audience.abilities(&home), FORMS.union(URLS));
        assert!(!audience.attends(&home, Mode::Form));

        let again = Audience::new(store);
        again.recall().await.unwrap();
        assert_eq!(again.abilities(&home), FORMS.union(URLS));
        assert_eq!(again.abilities(&other), Abilities::NOTHING);
    }
}
