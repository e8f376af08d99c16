//! What the daemon holds of authorization at one server: its grant, its clients, its sign-ins. Every request asks it for
//! credentials, and every refusal is brought to it.
//!
//! A grant is renewed once for any number of callers, is on disk before it is used, and ends only if its authorization
//! server says so. What is under way runs in tasks of its own: a caller that gives up stops nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderValue};
use tokio::sync::watch;
use url::Url;

use super::challenge::{self, Challenge};
use super::joint::Joint;
use super::pass::{Held, Pass, Tries, Verdict, credential};
use super::refusal::{nobody_may, not_granted, sign_in_required, token_refused};
use super::renewal::{Renewed, Trouble};
use super::shown::Shown;
use super::sign_in::Begun;
use super::web::Web;
use super::{Services, callback::Lease};
use crate::base::{Clock, ServerKey, SignInId, Timestamp};
use crate::error::{Error, Reason, Result};
use crate::model::auth::{
    AuthMethod, AuthSpec, Grant, Registration, Scopes, SignIn, SignInState, same_origin,
};
use crate::model::spec::{HttpSpec, ServerSpec, TransportSpec};
use crate::policy::printable;

/// An access token with less than this left is as good as expired: it could expire on its way.
const LAST_MOMENT: Duration = Duration::from_secs(5);

/// The account of the daemon at one server. Cheap to clone.
#[derive(Clone)]
pub struct Account(pub(super) Arc<Inner>);

impl std::fmt::Debug for Account {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Account").finish_non_exhaustive()
    }
}

pub(super) struct Inner {
    pub(super) services: Arc<Services>,
    state: Mutex<State>,
    view: watch::Sender<View>,
}

/// What others may know of an account.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// Generation of the grant, if there is one.
    pub grant: Option<u64>,
    /// The newest sign-in that is pending.
    pub pending: Option<Pending>,
    /// Whether a user has been at the authorization server, and what came back is being redeemed.
    pub redeeming: bool,
    /// Counts sign-ins that have succeeded while the daemon runs.
    pub signed_in: u64,
    /// Counts what has ended without something in its place: sign-outs, changed settings.
    pub endings: u64,
}

impl View {
    /// Whether nothing but a user can bring the server back.
    #[must_use]
    pub fn waits_for_user(&self) -> bool {
        self.grant.is_none() && self.is_under_way()
    }

    /// Whether a sign-in may yet succeed.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.pending.is_some() || self.redeeming
    }
}

/// A sign-in that waits for its user.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pending {
    /// Its id.
    pub id: SignInId,
    /// Where the user goes on.
    pub auth_url: String,
    /// The scopes that are asked for.
    pub scopes: Scopes,
    /// When it expires.
    pub expires: Timestamp,
}

pub(super) struct State {
    pub(super) key: ServerKey,
    /// The server's endpoint; see [`url_of`].
    pub(super) url: Option<Url>,
    pub(super) spec: AuthSpec,
    /// Its own client of HTTP, if it proves itself with a certificate; else the common one.
    pub(super) web: Result<Web>,
    /// The header of a token that somebody else looks after.
    pub(super) fixed: Option<Result<HeaderValue>>,
    pub(super) grant: Option<Arc<Held>>,
    /// Generation of a grant that is stored and does not open; the next one takes its place.
    pub(super) unreadable: Option<u64>,
    /// Tokens that could not be stored yet. They are not used before they are.
    pub(super) unstored: Option<Grant>,
    pub(super) renewing: Option<Joint<Renewed>>,
    pub(super) beginning: Option<Joint<Begun>>,
    /// After a failed renewal: what failed, and when it may be tried again.
    pub(super) trouble: Option<(Error, Instant)>,
    pub(super) failures: u32,
    /// Grants are counted from here on.
    pub(super) generation: u64,
    /// By issuer.
    pub(super) registrations: HashMap<String, Registration>,
    /// A registration is thrown away after a sign-in that brought nothing, once.
    pub(super) doubted: bool,
    /// Pending ones and those that have ended lately, oldest first.
    pub(super) sign_ins: Vec<SignIn>,
    /// Listeners that pending sign-ins need.
    pub(super) leases: HashMap<SignInId, Lease>,
    /// What the server said last about how it wants to be authorized at.
    pub(super) challenge: Challenge,
    /// The nonce that the server wants in DPoP proofs.
    nonce: Option<String>,
    /// What the server might repeat.
    pub(super) shown: Shown,
    pub(super) signed_in: u64,
    pub(super) endings: u64,
    /// Counts what makes worthless what is on its way: changed settings, sign-outs, the removal.
    pub(super) epoch: u64,
    pub(super) removed: bool,
}

impl Account {
    pub(super) fn new(services: Arc<Services>, key: ServerKey, spec: &ServerSpec) -> Self {
        let http = http_of(spec);
        let mut state = State {
            key,
            url: url_of(spec),
            spec: spec.auth.clone(),
            web: services.web_for(http),
            fixed: None,
            grant: None,
            unreadable: None,
            unstored: None,
            renewing: None,
            beginning: None,
            trouble: None,
            failures: 0,
            generation: 0,
            registrations: HashMap::new(),
            doubted: false,
            sign_ins: Vec::new(),
            leases: HashMap::new(),
            challenge: Challenge::default(),
            nonce: None,
            shown: Shown::default(),
            signed_in: 0,
            endings: 0,
            epoch: 0,
            removed: false,
        };
        state.fix();
        Self(Arc::new(Inner {
            services,
            state: Mutex::new(state),
            view: watch::Sender::new(View::default()),
        }))
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client of HTTP for the server and its authorization servers, which proves itself with the server's certificate if
    /// there is one.
    ///
    /// # Errors
    /// `INVALID_FIELD` for a certificate that cannot be used.
    pub fn http_client(&self) -> Result<reqwest::Client> {
        let state = self.state();
        let web = state.web.as_ref().map_err(Clone::clone)?;
        Ok(web.client().clone())
    }

    /// What others may know of it, now and from now on.
    #[must_use]
    pub fn watch(&self) -> watch::Receiver<View> {
        self.0.view.subscribe()
    }

    /// Shows what has changed. Called after every change of what is shown.
    pub(super) fn publish(&self, state: &State) {
        let now = Clock.wall();
        let pending = state
            .sign_ins
            .iter()
            .rev()
            .find(|sign_in| sign_in.state == SignInState::Pending && sign_in.expires > now);
        let mut sign_ins = state.sign_ins.iter();
        let redeeming = sign_ins.any(|sign_in| sign_in.state == SignInState::Redeeming);
        let view = View {
            redeeming,
            grant: state.grant.as_ref().map(|held| held.grant.generation),
            pending: pending.map(|sign_in| Pending {
                id: sign_in.id.clone(),
                auth_url: sign_in.auth_url.clone(),
                scopes: sign_in.terms.scopes.clone(),
                expires: sign_in.expires,
            }),
            signed_in: state.signed_in,
            endings: state.endings,
        };
        self.0.view.send_if_modified(|shown| {
            let changed = *shown != view;
            *shown = view;
            changed
        });
    }

    /// Credentials for a request to the server with this body. A grant that is about to expire is renewed first, or beside
    /// it if there is time.
    ///
    /// # Errors
    /// `AUTHORIZATION_UNAVAILABLE` if the grant has expired and cannot be renewed now.
    pub async fn authorize(&self, method: &str, url: &Url, body: Option<&[u8]>) -> Result<Pass> {
        let held = {
            let state = self.state();
            if let Some(fixed) = &state.fixed {
                return Ok(Pass::fixed(fixed.clone()?));
            }
            match &state.grant {
                // What was granted for one server is shown to no other, whatever the settings say by now.
                Some(held)
                    if state.url.as_ref().is_some_and(|own| same_origin(own, url))
                        && held.grant.is_for(url) =>
                {
                    Arc::clone(held)
                }
                // The server says with 401 how it wants to be authorized at.
                _ => return Ok(Pass::default()),
            }
        };
        let generation = Some(held.grant.generation);
        let held = match self.urgency(&held.grant) {
            Urgency::None => held,
            Urgency::Soon => {
                self.renew_beside(held.grant.generation);
                held
            }
            Urgency::Now => match self.renew(generation, Scopes::default(), None).await {
                Ok(renewed) => renewed,
                // It may just do once more.
                Err(Trouble::Unavailable(_)) if !has_expired(&held.grant) => held,
                Err(Trouble::Unavailable(error)) => return Err(error),
                // Its end is dealt with when the server refuses what is left of it.
                Err(Trouble::Ended(_)) => return Ok(Pass::default()),
            },
        };
        let nonce = held.key.as_ref().and_then(|_| self.state().nonce.clone());
        held.pass(method, url, body, nonce.as_deref())
    }

    /// Takes note of an answer to a request with these credentials: servers change their nonces with any of them
    /// (RFC 9449 section 8.2).
    pub fn answered(&self, headers: &HeaderMap) {
        if let Some(nonce) = challenge::nonce(headers) {
            self.state().nonce = Some(nonce);
        }
    }

    /// Judges a request that was refused with 401 or 403, and does what can be done: renews the grant, or begins a sign-in.
    pub async fn refused(
        &self,
        pass: &Pass,
        tries: &mut Tries,
        status: u16,
        headers: &HeaderMap,
    ) -> Verdict {
        let verdict = self.judged(pass, tries, status, headers).await;
        if matches!(verdict, Verdict::Again) {
            tries.count += 1;
        }
        verdict
    }

    async fn judged(
        &self,
        pass: &Pass,
        tries: &mut Tries,
        status: u16,
        headers: &HeaderMap,
    ) -> Verdict {
        let challenge = Challenge::of(headers);
        if status == 401 || challenge.insufficient_scope() {
            // A user may just have been at the authorization server: what comes of that decides.
            self.settled().await;
        }
        let held = {
            let mut state = self.state();
            match &state.spec.method {
                AuthMethod::None if status == 401 => {
                    return Verdict::Failed(nobody_may(state.url.as_ref()));
                }
                AuthMethod::None => return Verdict::NotOurs,
                AuthMethod::Bearer(_) => return Verdict::Failed(token_refused(status)),
                _ if state.url.is_none() => return Verdict::NotOurs,
                _ => {}
            }
            if challenge.nonce.is_some() {
                state.nonce.clone_from(&challenge.nonce);
            }
            if status == 401 || challenge.insufficient_scope() {
                state.challenge = challenge.clone();
            }
            state.grant.clone()
        };
        if tries.are_left() && challenge.wants_nonce() {
            return Verdict::Again;
        }
        match status {
            401 => self.after_401(pass, tries, held, challenge).await,
            403 if challenge.insufficient_scope() => {
                self.after_403(pass, tries, held, challenge).await
            }
            _ => Verdict::NotOurs,
        }
    }

    /// Waits until nothing is being redeemed. Bounded by what a code may cost.
    async fn settled(&self) {
        let mut view = self.watch();
        // It ends with the account.
        let _ = view.wait_for(|view| !view.redeeming).await;
    }

    async fn after_401(
        &self,
        pass: &Pass,
        tries: &mut Tries,
        held: Option<Arc<Held>>,
        challenge: Challenge,
    ) -> Verdict {
        let interactive = self.state().spec.is_interactive();
        let Some(held) = held else {
            if interactive {
                return Verdict::Failed(self.sign_in_required(&challenge, false).await);
            }
            tries.renewed = true;
            let first = self.renew(None, Scopes::default(), Some(&challenge));
            return after_renewal(first.await);
        };
        let generation = held.grant.generation;
        if pass.generation != Some(generation) && tries.are_left() {
            // Renewed by somebody else meanwhile.
            return Verdict::Again;
        }
        // What was renewed for this very request and is refused as well would be refused again.
        let renewed = std::mem::replace(&mut tries.renewed, true);
        if !renewed && tries.are_left() && self.is_renewable(&held.grant) {
            let renewing = self.renew(Some(generation), Scopes::default(), Some(&challenge));
            match renewing.await {
                Err(Trouble::Ended(error)) if interactive => {
                    tracing::info!(%error, "the grant has ended");
                }
                outcome => return after_renewal(outcome),
            }
        } else if self.has_moved(&held.grant, &challenge).await
            && let Err(error) = self.forget(generation).await
        {
            return Verdict::Failed(error);
        }
        if interactive {
            // The grant is kept unless it has ended: the server may be wrong about it, for a while.
            Verdict::Failed(self.sign_in_required(&challenge, false).await)
        } else {
            Verdict::Failed(Error::new(
                Reason::CredentialsRefused,
                format!(
                    "the server refuses the token that {} has just given",
                    held.grant.terms.server.issuer
                ),
            ))
        }
    }

    /// A token that is good, but not for this (MCP 2026-07-28 basic/authorization, "Scope Challenge Handling").
    async fn after_403(
        &self,
        pass: &Pass,
        tries: &Tries,
        held: Option<Arc<Held>>,
        challenge: Challenge,
    ) -> Verdict {
        let wanted = challenge.scopes.clone().unwrap_or_default();
        if let Some(held) = &held
            && pass.generation != Some(held.grant.generation)
            && tries.are_left()
        {
            // Others were granted meanwhile.
            return Verdict::Again;
        }
        if let Some(held) = &held
            && !wanted.is_empty()
            && (held.grant.terms.scopes.covers(&wanted)
                || held.grant.terms.scopes.union(&wanted).are_too_many())
        {
            // Asking for the same again would bring the same again, and there is an end to asking for more.
            return Verdict::Failed(not_granted(&wanted));
        }
        if self.state().spec.is_interactive() {
            return Verdict::Failed(self.sign_in_required(&challenge, held.is_some()).await);
        }
        if !tries.are_left() {
            return Verdict::Failed(not_granted(&wanted));
        }
        let over = held.map(|held| held.grant.generation);
        after_renewal(self.renew(over, wanted, None).await)
    }

    /// The error for whoever wants something of a server that waits for a user; a sign-in is begun if none is pending. `None`
    /// if no user can be of help.
    pub async fn ask_to_sign_in(&self) -> Option<Error> {
        let challenge = {
            let state = self.state();
            if state.url.is_none() || !state.spec.is_interactive() {
                return None;
            }
            state.challenge.clone()
        };
        Some(self.sign_in_required(&challenge, false).await)
    }

    /// Begins a sign-in, or goes on with the pending one: the error for whoever wanted something of the server.
    async fn sign_in_required(&self, challenge: &Challenge, step_up: bool) -> Error {
        let shown = self.state().url.as_ref().map(printable).unwrap_or_default();
        let scopes = challenge.scopes.clone().unwrap_or_default();
        match self.begin_if_needed(scopes, step_up).await {
            Ok(sign_in) => sign_in_required(&shown, &sign_in),
            // What passes, and what a sign-in would not change.
            Err(error)
                if matches!(
                    error.reason(),
                    Reason::AuthorizationUnavailable
                        | Reason::ScopeNotGranted
                        | Reason::StoreFailed
                ) =>
            {
                error
            }
            Err(error) => Error::new(
                Reason::SignInRequired,
                format!("{shown} wants authorization, and no sign-in can begin: {error}"),
            )
            .with("cause", error.reason().as_str()),
        }
    }
}

impl State {
    /// Makes the header of a token that somebody else looks after ready, if that is what the settings say.
    pub(super) fn fix(&mut self) {
        self.fixed = match &self.spec.method {
            AuthMethod::Bearer(token) => {
                self.shown.note(&token.value);
                Some(credential("Bearer", &token.value))
            }
            _ => None,
        };
    }

    /// Uses a grant that is stored.
    pub(super) fn hold(&mut self, held: Arc<Held>) {
        self.shown.note(&held.grant.access_token);
        self.grant = Some(held);
        (self.unreadable, self.unstored) = (None, None);
        (self.trouble, self.failures) = (None, 0);
    }

    /// Lets the grant go.
    pub(super) fn release(&mut self) -> Option<Arc<Held>> {
        (self.trouble, self.failures) = (None, 0);
        self.grant.take()
    }
}

enum Urgency {
    None,
    Soon,
    Now,
}

impl Account {
    fn urgency(&self, grant: &Grant) -> Urgency {
        let Some(expires) = grant.expires else {
            return Urgency::None;
        };
        let now = Clock.wall();
        if now < grant.renewed {
            // The wall clock was set back: what the authorization server said in seconds is no longer known.
            return Urgency::None;
        }
        let left = millis(expires.0 - now.0);
        let life = millis(expires.0 - grant.renewed.0);
        if !self.is_renewable(grant) {
            return Urgency::None;
        }
        if left <= LAST_MOMENT.min(life / 10) {
            Urgency::Now
        } else if left <= self.0.services.settings.renew_before.min(life / 2) {
            Urgency::Soon
        } else {
            Urgency::None
        }
    }

    /// Whether a token can be had without a user.
    pub(super) fn is_renewable(&self, grant: &Grant) -> bool {
        grant.refresh_token.is_some() || !self.state().spec.is_interactive()
    }
}

fn has_expired(grant: &Grant) -> bool {
    grant.expires.is_some_and(|expires| expires <= Clock.wall())
}

fn millis(count: i64) -> Duration {
    Duration::from_millis(u64::try_from(count).unwrap_or(0))
}

/// Where a server is at which the daemon may get authorized; `None` if it is not reached over HTTP on the network, or a
/// registered header is all that authorizes.
pub(super) fn url_of(spec: &ServerSpec) -> Option<Url> {
    let http = http_of(spec)?;
    let mut headers = http.headers.iter();
    let own = headers.any(|header| header.name.eq_ignore_ascii_case(AUTHORIZATION.as_str()));
    (!own).then(|| http.url.clone())
}

/// The HTTP transport of a registration.
pub(super) fn http_of(spec: &ServerSpec) -> Option<&HttpSpec> {
    match &spec.transport {
        TransportSpec::Http(http) => Some(http),
        TransportSpec::Stdio(_) | TransportSpec::UnixSocket(_) => None,
    }
}

fn after_renewal(outcome: Renewed) -> Verdict {
    match outcome {
        Ok(_) => Verdict::Again,
        Err(Trouble::Unavailable(error) | Trouble::Ended(error)) => Verdict::Failed(error),
    }
}
