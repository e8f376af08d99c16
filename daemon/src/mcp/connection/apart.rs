//! Links of their own for single users or single connections of apps, where a registration wants that they share no
//! session with the server.
//!
//! They live beside the server's own link, which keeps reading lists and watching the server, and end with it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::actor::fault_of;
use crate::auth::Account;
use crate::base::{AppConnection, Clock, Deadline, ServerKey, User, jitter};
use crate::error::{Error, Reason, Result};
use crate::mcp::link::{Link, closed_error};
use crate::mcp::open::{Approach, Attempt, Dialer, Known, OpenFailed};
use crate::mcp::state::Spacing;
use crate::mcp::subscriptions::Subscriptions;
use crate::mcp::transport::journal::Journal;
use crate::model::spec::{Isolation, QuestionPolicy, ServerSpec};
use crate::model::status::Verdict;

/// Whose link it is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Owner {
    User(User),
    Connection(u64),
}

/// A link that is being opened, is open, or could not be opened.
type Slot = watch::Receiver<Option<Result<Arc<Link>>>>;

/// A server to which links cannot be opened is left alone for a while, so that calls do not start one process after the
/// other.
#[derive(Debug)]
struct Held {
    failures: u32,
    until: Instant,
    error: Error,
}

/// The links of single users or connections. Cheap to clone; ends with [`Apart::close`].
#[derive(Clone, Debug)]
pub(super) struct Apart {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    dialer: Dialer,
    spec: ServerSpec,
    verdict: Option<Verdict>,
    journal: Journal,
    account: Account,
    /// The server's own link, and whether there was a grant when it was opened.
    own: Arc<Link>,
    granted: bool,
    key: Mutex<ServerKey>,
    slots: Mutex<HashMap<Owner, Slot>>,
    /// Why none is opened for now.
    held: Mutex<Option<Held>>,
    closed: CancellationToken,
    tasks: TaskTracker,
}

impl Apart {
    /// For a server with this registration, of which this is known; `None` if everybody shares the server's own link.
    pub(super) fn new(
        dialer: &Dialer,
        (key, spec): (&ServerKey, &ServerSpec),
        verdict: Option<&Verdict>,
        journal: &Journal,
        account: &Account,
        own: &Arc<Link>,
    ) -> Option<Self> {
        (spec.isolation != Isolation::Shared).then(|| Self {
            inner: Arc::new(Inner {
                dialer: dialer.clone(),
                spec: spec.clone(),
                verdict: verdict.cloned(),
                journal: journal.clone(),
                account: account.clone(),
                own: Arc::clone(own),
                granted: account.watch().borrow().grant.is_some(),
                key: Mutex::new(key.clone()),
                slots: Mutex::default(),
                held: Mutex::default(),
                closed: CancellationToken::new(),
                tasks: TaskTracker::new(),
            }),
        })
    }

    /// The server has a new id.
    pub(super) fn rename(&self, key: &ServerKey) {
        let mut current = self.inner.key();
        key.clone_into(&mut current);
        for slot in self.inner.slots().values() {
            if let Some(Ok(link)) = &*slot.borrow() {
                link.rename(key.clone());
            }
        }
    }

    /// What becomes of the server's questions has changed, on links that are open.
    pub(super) fn set_question_policy(&self, policy: QuestionPolicy) {
        for slot in self.inner.slots().values() {
            if let Some(Ok(link)) = &*slot.borrow() {
                link.set_question_policy(policy);
            }
        }
    }

    /// Whether the grant has ended under which all links were opened.
    pub(super) fn is_spent(&self) -> bool {
        self.inner.granted && self.inner.account.watch().borrow().grant.is_none()
    }

    /// The server was lost, for all its links.
    pub(super) fn lost(&self, error: &Error) {
        for slot in self.inner.slots().values() {
            if let Some(Ok(link)) = &*slot.borrow() {
                link.report_lost(error.clone());
            }
        }
    }

    /// Ends all links; returns when everything of them is gone. Bounded by the grace periods of closing a link.
    pub(super) async fn close(&self) {
        self.inner.closed.cancel();
        self.inner.tasks.close();
        self.inner.tasks.wait().await;
    }

    /// The link for this app, which is opened if there is none. Whoever asks for the same one meanwhile shares it.
    ///
    /// # Errors
    /// Why it cannot be opened; `TOO_MANY` at the limit; `DEADLINE_EXCEEDED`.
    pub(super) async fn link(&self, app: &AppConnection, deadline: Deadline) -> Result<Arc<Link>> {
        let mut again = true;
        loop {
            let mut slot = self.inner.slot(app)?;
            let opened = tokio::select! {
                opened = slot.wait_for(Option::is_some) => match opened {
                    Ok(opened) => opened.clone(),
                    Err(_) => None,
                },
                () = deadline.elapsed() => {
                    return Err(Error::new(Reason::DeadlineExceeded, "the session of the app is still being opened"));
                }
            };
            match opened {
                // Lost as soon as it was opened: another one may last, and a third is not tried.
                Some(Ok(link)) if link.is_lost() && std::mem::take(&mut again) => {}
                Some(Ok(link)) if link.is_lost() => return Err(closed_error()),
                Some(outcome) => return outcome,
                None => return Err(closed_error()),
            }
        }
    }
}

impl Inner {
    fn slots(&self) -> MutexGuard<'_, HashMap<Owner, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn key(&self) -> MutexGuard<'_, ServerKey> {
        self.key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The slot of an app, with a link that is not known to be lost.
    fn slot(self: &Arc<Self>, app: &AppConnection) -> Result<Slot> {
        if self.closed.is_cancelled() {
            return Err(closed_error());
        }
        let owner = match self.spec.isolation {
            Isolation::PerConnection => Owner::Connection(app.id()),
            Isolation::Shared | Isolation::PerUser => Owner::User(app.user().clone()),
        };
        let mut slots = self.slots();
        if let Some(slot) = slots.get(&owner) {
            match &*slot.borrow() {
                None => return Ok(slot.clone()),
                Some(Ok(link)) if !link.is_lost() => {
                    // Whoever has just got it may count on it for a while.
                    link.touch();
                    return Ok(slot.clone());
                }
                Some(_) => {}
            }
        }
        self.may_open()?;
        if !slots.contains_key(&owner) && slots.len() >= self.dialer.settings.sessions_per_server {
            return Err(Error::new(
                Reason::TooMany,
                format!(
                    "the server has {} sessions of single apps (limits.sessions_per_server)",
                    slots.len()
                ),
            ));
        }
        let (opened, slot) = watch::channel(None);
        let over = match owner {
            Owner::Connection(_) => app.ended().clone(),
            Owner::User(_) => CancellationToken::new(),
        };
        slots.insert(owner.clone(), slot.clone());
        self.tasks.spawn(Arc::clone(self).keep(owner, opened, over));
        Ok(slot)
    }

    /// Opens a link and closes it when it is lost, when its time is over, or when nobody has used it for long.
    async fn keep(
        self: Arc<Self>,
        owner: Owner,
        slot: watch::Sender<Option<Result<Arc<Link>>>>,
        over: CancellationToken,
    ) {
        let link = match self.open(&over).await {
            Ok(link) => {
                self.held().take();
                link
            }
            Err(OpenFailed { error, remains }) => {
                if !over.is_cancelled() && !self.closed.is_cancelled() {
                    self.hold(&error);
                }
                self.shared_fate(&error);
                self.forget(&owner, &slot);
                slot.send_replace(Some(Err(error)));
                if let Some(remains) = remains {
                    remains.close().await;
                }
                return;
            }
        };
        {
            // It may have got a new id while it was dialled: nobody changes that between the look and the use.
            let key = self.key();
            slot.send_replace(Some(Ok(Arc::clone(&link))));
            link.rename(key.clone());
        }
        link.set_question_policy(self.own.question_policy());
        let idle = self.dialer.settings.session_idle;
        loop {
            tokio::select! {
                () = self.closed.cancelled() => break,
                () = over.cancelled() => break,
                error = link.lost() => {
                    self.shared_fate(&error);
                    break;
                }
                () = tokio::time::sleep(idle / 4) => {}
            }
            // Under the lock, so that nobody gets it between the look and the end.
            let mut slots = self.slots();
            if link.is_idle() && link.is_quiet(idle) {
                slots.remove(&owner);
                break;
            }
        }
        self.forget(&owner, &slot);
        link.close().await;
    }

    /// Whoever meets it first: a server that wants a user to sign in wants that for all its links.
    fn shared_fate(&self, error: &Error) {
        if error.reason() == Reason::SignInRequired {
            self.own.report_lost(error.clone());
        }
    }

    async fn open(&self, over: &CancellationToken) -> Result<Arc<Link>, OpenFailed> {
        let cancel = self.closed.child_token();
        let key = self.key().clone();
        let attempt = Attempt {
            known: Known {
                verdict: self.verdict.clone(),
                session: None,
            },
            approach: Approach::default(),
            journal: self.journal.clone(),
            subscriptions: Subscriptions::default(),
            account: self.account.clone(),
            cancel: cancel.clone(),
        };
        let opening = self.dialer.open(&key, &self.spec, attempt);
        tokio::pin!(opening);
        let opened = tokio::select! {
            opened = &mut opening => opened,
            () = over.cancelled() => {
                cancel.cancel();
                opening.await
            }
        };
        opened.map(|opened| opened.link)
    }

    fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a link may be opened now.
    fn may_open(&self) -> Result<()> {
        let held = self.held();
        let now = Clock.now();
        match held.as_ref().filter(|held| held.until > now) {
            None => Ok(()),
            Some(held) => Err(held
                .error
                .clone()
                .retry_after(held.until.saturating_duration_since(now))),
        }
    }

    /// Opens none for a while, as long as the server's own link would wait.
    fn hold(&self, error: &Error) {
        let mut held = self.held();
        let failures = held.as_ref().map_or(0, |held| held.failures);
        let failures = failures.saturating_add(1);
        let spacing = Spacing {
            retry: self.spec.retry,
            max_background: self.dialer.settings.reconnect_max,
            jitter: jitter(),
        };
        let delay = spacing.delay(failures, fault_of(error));
        let now = Clock.now();
        *held = Some(Held {
            failures,
            until: now.checked_add(delay).unwrap_or(now),
            error: error.clone(),
        });
    }

    /// Takes a link out of reach, unless another one has its place already.
    fn forget(&self, owner: &Owner, slot: &watch::Sender<Option<Result<Arc<Link>>>>) {
        let mut slots = self.slots();
        if slots
            .get(owner)
            .is_some_and(|there| there.same_channel(&slot.subscribe()))
        {
            slots.remove(owner);
        }
    }
}
