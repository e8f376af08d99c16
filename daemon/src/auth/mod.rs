//! Authorization at MCP servers over HTTP: finds the authorization server, becomes its client, lets users sign in, keeps
//! tokens fresh (MCP 2026-07-28 basic/authorization, 2025-11-25 and 2025-03-26 basic/authorization).
//!
//! `account` is what the daemon holds at one server; `renewal`, `sign_in` and `redemption` change it. `callback` is where browsers come
//! back to, `redirect` judges what they bring. `challenge`, `discovery`, `registration`, `token`, `jose` and `workload` are
//! what is said to and by servers; `web` is the only way to them. Never shows a secret, never sends one anywhere but to
//! whom it belongs, and never lets anything that is not verified change what is stored.

pub mod account;
mod binding;
pub mod callback;
pub mod challenge;
pub mod discovery;
mod identity;
mod joint;
pub mod jose;
mod life;
mod pass;
mod redemption;
mod redirect;
mod refusal;
pub mod registration;
mod renewal;
mod said;
mod shown;
mod sign_in;
pub mod token;
pub mod web;
mod workload;

#[cfg(test)]
#[path = "site_tests.rs"]
mod site;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

pub use account::{Account, Pending, View};
pub use pass::{Pass, Tries, Verdict};

use callback::{Callback, Landing, Visit};
use identity::identity;
use redirect::Redirect;
use web::Web;

use crate::audit::{self, Audit};
use crate::base::{Deadline, Namespace, ServerKey, SignInId};
use crate::error::{Error, Reason, Result};
use crate::model::auth::{Grant, Scopes, SignIn, SignInState};
use crate::model::spec::{HttpSpec, ServerSpec};
use crate::policy::{ClientOptions, Policy};
use crate::store::{Authorizations, Store};

/// Bounds and defaults; see section `auth` of the configuration.
#[derive(Clone, Debug)]
pub struct AuthSettings {
    /// How long before its end an access token is renewed.
    pub renew_before: Duration,
    /// How long a user may take to sign in.
    pub sign_in_expiry: Duration,
    /// Sign-ins of one server that may be pending at a time.
    pub pending_per_server: usize,
    /// The daemon's client metadata document.
    pub client_metadata_url: Option<String>,
    /// The name to register under.
    pub client_name: String,
    /// Directories below which assertions may be read.
    pub assertion_dirs: Vec<PathBuf>,
}

/// What accounts work with.
pub(crate) struct Services {
    pub(crate) settings: AuthSettings,
    pub(crate) store: Store,
    pub(crate) callback: Callback,
    /// What may end with the daemon at any time.
    pub(crate) tasks: TaskTracker,
    /// What must not: tokens are on their way, and those before them are used up.
    pub(crate) work: TaskTracker,
    pub(crate) stopping: CancellationToken,
    web: Web,
    policy: Policy,
    options: ClientOptions,
}

impl Services {
    /// The way to authorization servers for this server: with its certificate, if it has one.
    fn web_for(&self, http: Option<&HttpSpec>) -> Result<Web> {
        match http.and_then(|http| http.certificate.as_ref()) {
            None => Ok(self.web.clone()),
            Some(certificate) => {
                let identity = identity(certificate)?;
                let client = self.policy.identified_client(self.options, identity)?;
                Ok(self.web.with_client(client))
            }
        }
    }
}

/// What [`Auth::start`] needs.
#[derive(Debug)]
pub struct AuthParts {
    /// Bounds and defaults.
    pub settings: AuthSettings,
    /// Where everything is kept.
    pub store: Store,
    /// Where browsers come back to.
    pub callback: Callback,
    /// Who has come back.
    pub visits: mpsc::Receiver<Visit>,
    /// The way to authorization servers.
    pub web: Web,
    /// Where connections may go.
    pub policy: Policy,
    /// How HTTP clients with a certificate of their own are made.
    pub options: ClientOptions,
    /// Where sign-ins that a browser completes are written down.
    pub audit: Audit,
    /// Owner of what runs in the background.
    pub tasks: TaskTracker,
    /// Cancelled when the daemon begins to stop.
    pub stopping: CancellationToken,
}

/// Authorization at all servers. Cheap to clone.
#[derive(Clone)]
pub struct Auth(Arc<Inner>);

impl std::fmt::Debug for Auth {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Auth").finish_non_exhaustive()
    }
}

struct Inner {
    services: Arc<Services>,
    accounts: Mutex<HashMap<ServerKey, Account>>,
    /// What was stored of servers that have no account yet.
    stored: Mutex<HashMap<ServerKey, Authorizations>>,
    audit: Audit,
}

/// What the daemon is authorized to do at a server; no secret.
#[derive(Clone, Debug, Default)]
pub struct AuthStatus {
    /// The grant, without its tokens.
    pub grant: Option<Grant>,
    /// Whether it can be renewed without a user.
    pub renewable: bool,
    /// Why the last renewal failed.
    pub last_failure: Option<String>,
    /// The sign-ins that are pending.
    pub pending: Vec<SignIn>,
}

impl Auth {
    /// Reads what is stored, and begins to receive browsers that come back.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`].
    pub async fn start(parts: AuthParts) -> Result<Self> {
        let all = parts.store.authorizations().await?;
        for key in &all.unreadable {
            tracing::error!(server = %key, "stored tokens or sign-ins of a server do not open; they are left as they are");
        }
        let mut stored: HashMap<ServerKey, Authorizations> = HashMap::new();
        for (key, grant) in all.grants {
            let entry = stored.entry(key.clone()).or_default();
            entry.grants.push((key, grant));
        }
        for (key, generation) in all.unreadable_grants {
            let entry = stored.entry(key.clone()).or_default();
            entry.unreadable_grants.push((key, generation));
        }
        for (key, registration) in all.registrations {
            let entry = stored.entry(key.clone()).or_default();
            entry.registrations.push((key, registration));
        }
        for sign_in in all.sign_ins {
            let entry = stored.entry(sign_in.key.clone()).or_default();
            entry.sign_ins.push(sign_in);
        }
        let auth = Self(Arc::new(Inner {
            services: Arc::new(Services {
                settings: parts.settings,
                store: parts.store,
                callback: parts.callback,
                tasks: parts.tasks.clone(),
                work: TaskTracker::new(),
                stopping: parts.stopping,
                web: parts.web,
                policy: parts.policy,
                options: parts.options,
            }),
            accounts: Mutex::default(),
            stored: Mutex::new(stored),
            audit: parts.audit,
        }));
        parts.tasks.spawn(auth.clone().receive(parts.visits));
        Ok(auth)
    }

    fn accounts(&self) -> MutexGuard<'_, HashMap<ServerKey, Account>> {
        self.0
            .accounts
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until tokens that are on their way are stored, at most for `bound`. Call it when no request is made any more,
    /// and before the store is closed.
    pub async fn close(&self, bound: Duration) {
        let work = &self.0.services.work;
        work.close();
        if tokio::time::timeout(bound, work.wait()).await.is_err() {
            tracing::warn!(
                "tokens that an authorization server was asked for are not waited for any longer"
            );
        }
    }

    /// The account at a registered server, made if there is none yet.
    #[must_use]
    pub fn account(&self, key: &ServerKey, spec: &ServerSpec) -> Account {
        let mut accounts = self.accounts();
        if let Some(account) = accounts.get(key) {
            return account.clone();
        }
        let account = Account::new(Arc::clone(&self.0.services), key.clone(), spec);
        let stored = {
            let mut stored = self.0.stored.lock().unwrap_or_else(PoisonError::into_inner);
            stored.remove(key)
        };
        if let Some(stored) = stored {
            account.restore(stored);
        }
        accounts.insert(key.clone(), account.clone());
        account
    }

    /// The server has a new id.
    pub fn rename(&self, old: &ServerKey, new: &ServerKey) {
        let mut accounts = self.accounts();
        if let Some(account) = accounts.remove(old) {
            account.rename(new);
            accounts.insert(new.clone(), account);
        }
    }

    /// The server is no longer registered: everything of it is forgotten, and its tokens are revoked in the background.
    pub fn remove(&self, key: &ServerKey) {
        let account = self.accounts().remove(key);
        if let Some(account) = account {
            account.remove();
        }
    }

    fn of(&self, key: &ServerKey) -> Result<Account> {
        let account = self.accounts().get(key).cloned();
        account.ok_or_else(|| {
            Error::new(
                Reason::ServerNotFound,
                format!("server `{}` is not registered", key.id),
            )
        })
    }

    fn all(&self) -> Vec<Account> {
        self.accounts().values().cloned().collect()
    }

    /// Begins a sign-in at a server, whatever is pending.
    ///
    /// # Errors
    /// Why none can begin.
    pub async fn start_sign_in(&self, key: &ServerKey, scopes: Scopes) -> Result<SignIn> {
        self.of(key)?.start(scopes).await
    }

    fn find(&self, namespace: &Namespace, id: &SignInId) -> Result<(Account, SignIn)> {
        let found = self.all().into_iter().find_map(|account| {
            let sign_in = account.find(|sign_in| sign_in.id == *id)?;
            Some((account, sign_in))
        });
        found
            .filter(|(_, sign_in)| sign_in.key.namespace == *namespace)
            .ok_or_else(|| sign_in_not_found(id))
    }

    /// A sign-in; as soon as it is over, if that is before the deadline.
    ///
    /// # Errors
    /// `SIGN_IN_NOT_FOUND`.
    pub async fn sign_in(
        &self,
        namespace: &Namespace,
        id: &SignInId,
        wait: Option<Deadline>,
    ) -> Result<SignIn> {
        let (account, _) = self.find(namespace, id)?;
        let mut view = account.watch();
        loop {
            view.borrow_and_update();
            let (_, sign_in) = self.find(namespace, id)?;
            let Some(deadline) = wait.filter(|_| !sign_in.state.is_over()) else {
                return Ok(sign_in);
            };
            tokio::select! {
                _ = view.changed() => {}
                () = deadline.elapsed() => return Ok(sign_in),
                () = self.0.services.stopping.cancelled() => return Ok(sign_in),
            }
        }
    }

    /// Completes a sign-in with the URL that the browser was redirected to.
    ///
    /// # Errors
    /// `INVALID_FIELD` for what does not fit and changes nothing; `SIGN_IN_NOT_FOUND`, `ALREADY_RESOLVED`,
    /// `SIGN_IN_FAILED`.
    pub async fn complete(
        &self,
        namespace: &Namespace,
        url: &str,
        id: Option<&SignInId>,
    ) -> Result<SignIn> {
        let redirect = Redirect::parse(url)?;
        let (account, sign_in) = self.about(&redirect).ok_or_else(redirect::unknown)?;
        // Whether it exists elsewhere is nobody's business here.
        if sign_in.key.namespace != *namespace {
            return Err(redirect::unknown());
        }
        if id.is_some_and(|id| *id != sign_in.id) {
            return Err(Error::invalid(
                "redirect_url",
                "it belongs to another sign-in than `sign_in_id` names",
            ));
        }
        account.redirected(&sign_in.id, &redirect).await
    }

    fn about(&self, redirect: &Redirect) -> Option<(Account, SignIn)> {
        self.all().into_iter().find_map(|account| {
            let sign_in = account.find(|sign_in| redirect.is_about(sign_in))?;
            Some((account, sign_in))
        })
    }

    /// Ends a pending sign-in.
    ///
    /// # Errors
    /// `SIGN_IN_NOT_FOUND`, `ALREADY_RESOLVED`.
    pub async fn cancel(&self, namespace: &Namespace, id: &SignInId) -> Result<SignIn> {
        let (account, sign_in) = self.find(namespace, id)?;
        let ended = account
            .end_sign_in(id, SignInState::Cancelled, None)
            .await?;
        ended.ok_or_else(|| already_over(&sign_in, sign_in.state))
    }

    /// Forgets the tokens of a server and ends its pending sign-ins, then has the tokens revoked. Tells whether there were
    /// any, and whether the authorization server confirmed their revocation.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`]; then they are still held.
    pub async fn sign_out(&self, key: &ServerKey) -> Result<(bool, bool)> {
        self.of(key)?.sign_out().await
    }

    /// What the daemon is authorized to do at a server.
    ///
    /// # Errors
    /// `SERVER_NOT_FOUND`.
    pub fn status(&self, key: &ServerKey) -> Result<AuthStatus> {
        Ok(self.of(key)?.status())
    }

    async fn receive(self, mut visits: mpsc::Receiver<Visit>) {
        let stopping = self.0.services.stopping.clone();
        loop {
            let visit = tokio::select! {
                visit = visits.recv() => visit,
                () = stopping.cancelled() => return,
            };
            let Some(Visit { url, reply }) = visit else {
                return;
            };
            let auth = self.clone();
            self.0.services.tasks.spawn(async move {
                // The browser may be gone.
                let _ = reply.send(auth.visited(&url).await);
            });
        }
    }

    async fn visited(&self, url: &str) -> Landing {
        let Ok(redirect) = Redirect::parse(url) else {
            return Landing::Unknown;
        };
        let Some((account, sign_in)) = self.about(&redirect) else {
            return Landing::Unknown;
        };
        let server = sign_in.key.id.to_string();
        let ended = account.redirected(&sign_in.id, &redirect).await;
        let outcome = match &ended {
            Ok(_) => audit::OK,
            Err(error) => error.reason().as_str(),
        };
        self.0.audit.browser(&sign_in.key, sign_in.created, outcome);
        match ended {
            Ok(_) => Landing::SignedIn { server },
            // Whoever comes twice, or second, has what he wanted.
            Err(error)
                if error.reason() == Reason::AlreadyResolved
                    && account.watch().borrow().grant.is_some() =>
            {
                Landing::Already { server }
            }
            Err(error) => Landing::Failed {
                message: error.message().to_owned(),
            },
        }
    }
}

fn sign_in_not_found(id: &SignInId) -> Error {
    Error::new(
        Reason::SignInNotFound,
        format!("there is no sign-in `{id}`, or it ended long ago"),
    )
    .with("sign_in_id", id.as_str())
}

fn already_over(sign_in: &SignIn, state: SignInState) -> Error {
    let how = match state {
        SignInState::Pending | SignInState::Redeeming => "is being completed already",
        SignInState::Succeeded => "has succeeded already",
        SignInState::Failed => "has failed; begin another one",
        SignInState::Cancelled => "was cancelled; begin another one",
        SignInState::Expired => "has expired; begin another one",
        SignInState::Superseded => "was superseded by another one",
    };
    Error::new(Reason::AlreadyResolved, format!("the sign-in {how}"))
        .with("sign_in_id", sign_in.id.as_str())
        .with("state", state.as_str())
}
