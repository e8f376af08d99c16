//! Sign-ins: begun, handed to a user, completed by the redirect that comes back, exactly once
//! (MCP 2026-07-28 basic/authorization, "Authorization Flow Steps"; RFC 6749 section 4.1, RFC 7636, RFC 9207).
//!
//! What comes back is believed only after it has named a pending sign-in by its `state` and, where the authorization server
//! says so, itself by its `iss`. Everything else changes nothing.

use futures_util::FutureExt;
use std::time::Duration;
use tokio::sync::oneshot;
use url::Url;

use super::account::{Account, Held};
use super::jose::DpopKey;
use super::redirect::{Answer, Redirect};
use super::refusal::not_granted;
use super::registration::{self, Choice, Wanted};
use super::said::said;
use super::token::{self, Failure};
use super::{discovery, renewal};
use crate::base::{Clock, Secret, SignInId};
use crate::error::{Error, Reason, Result};
use crate::model::auth::{
    AuthMethod, AuthServer, Client, CodeSpec, Grant, Scopes, SignIn, SignInState, Terms,
};

/// The outcome of beginning a sign-in.
pub(super) type Begun = Result<SignIn>;

/// What an authorization server must list for refresh tokens to be asked for (OpenID Connect Core section 11).
const OFFLINE_ACCESS: &str = "offline_access";
/// A pending sign-in with less than this left is not offered to anybody any more.
const ENOUGH: Duration = Duration::from_secs(15);
/// Ended sign-ins of one server that are remembered.
const MAX_ENDED: usize = 50;
/// How often the settings may change while a sign-in begins.
const MOST_BEGINNINGS: u32 = 3;
/// How often a code is redeemed while the token endpoint cannot be reached, and the pause before.
const REDEEM: (u32, Duration) = (3, Duration::from_millis(500));

impl Account {
    /// The pending sign-in if it asks for these scopes, else a new one. `step_up`: the server wants more than was granted.
    ///
    /// # Errors
    /// Why none can begin.
    pub(super) async fn begin_if_needed(&self, scopes: Scopes, step_up: bool) -> Begun {
        let running = {
            let mut state = self.state();
            let enough = Clock
                .wall()
                .plus(ENOUGH.min(self.0.services.settings.sign_in_expiry / 4));
            let pending = state.sign_ins.iter().rev().find(|sign_in| {
                sign_in.state == SignInState::Pending
                    && sign_in.expires > enough
                    && sign_in.terms.scopes.covers(&scopes)
            });
            if let Some(pending) = pending {
                return Ok(pending.clone());
            }
            if let Some(running) = &state.beginning {
                running.clone()
            } else {
                let (done, outcome) = oneshot::channel();
                let (account, scopes) = (self.clone(), scopes.clone());
                let era = state.era;
                self.0.services.tasks.spawn(async move {
                    let outcome = account.begin(scopes, step_up).await;
                    {
                        let mut state = account.state();
                        if state.era == era {
                            state.beginning = None;
                        }
                    }
                    // Nobody may be waiting any more.
                    let _ = done.send(outcome);
                });
                let running = outcome
                    .map(|outcome| {
                        outcome.unwrap_or_else(|_| Err(Error::internal("a sign-in has ended")))
                    })
                    .boxed()
                    .shared();
                state.beginning = Some(running.clone());
                running
            }
        };
        running.await
    }

    /// Begins a sign-in in a task of its own, whatever is pending.
    ///
    /// # Errors
    /// Why it cannot begin.
    pub async fn start(&self, scopes: Scopes) -> Result<SignIn> {
        let (done, outcome) = oneshot::channel();
        let account = self.clone();
        self.0.services.tasks.spawn(async move {
            let _ = done.send(account.begin(scopes, false).await);
        });
        outcome
            .await
            .unwrap_or_else(|_| Err(Error::new(Reason::Draining, "the daemon is stopping")))
    }

    /// Begins a sign-in under the settings that hold when it is handed out.
    async fn begin(&self, more: Scopes, step_up: bool) -> Begun {
        for _ in 0..MOST_BEGINNINGS {
            let era = {
                let state = self.state();
                if state.removed {
                    break;
                }
                state.era
            };
            match self.begin_in(era, more.clone(), step_up).await {
                Ok(Some(sign_in)) => return Ok(sign_in),
                Err(error) if self.state().era == era => return Err(error),
                Ok(None) | Err(_) => tracing::debug!("a sign-in is begun under other settings"),
            }
        }
        Err(Error::new(
            Reason::Superseded,
            "the server was changed or removed while a sign-in began; begin another one",
        ))
    }

    /// The same, in this era. `None` if that is over.
    async fn begin_in(&self, era: u64, more: Scopes, step_up: bool) -> Result<Option<SignIn>> {
        let services = &self.0.services;
        let (key, url, spec, web, challenge, asked) = {
            let state = self.state();
            let held = state.grant.as_ref().map(|held| held.grant.terms.clone());
            // What was granted before is asked for again: others still need it.
            let before = held.or_else(|| {
                let done = state.sign_ins.iter().rev();
                let mut done = done.filter(|done| done.state == SignInState::Succeeded);
                done.next().map(|done| done.terms.clone())
            });
            (
                state.key.clone(),
                state.url.clone(),
                state.spec.clone(),
                state.web.clone()?,
                state.challenge.clone(),
                before,
            )
        };
        let (Some(url), AuthMethod::AuthorizationCode(code)) = (url, &spec.method) else {
            return Err(Error::new(
                Reason::CredentialsRefused,
                format!("server `{}` is not one that users sign in at", key.id),
            ));
        };
        // What comes of it must be kept: better to know now than when the user has been there (case B40).
        services.store.check_vault().await?;
        let found = discovery::discover(&web, &url, &challenge, &spec).await?;
        let server = found.server;
        check(&server, code)?;

        let needed = challenge.scopes.clone().unwrap_or_default().union(&more);
        let first = if !spec.scopes.is_empty() {
            spec.scopes.clone()
        } else if needed.is_empty() {
            found.scopes.unwrap_or_default()
        } else {
            Scopes::default()
        };
        let asked = asked.filter(|asked| asked.server.issuer == server.issuer);
        let before = asked.map(|asked| asked.scopes).unwrap_or_default();
        let mut scopes = before.union(&first).union(&needed);
        let lists = server.scopes_supported.as_ref();
        if !scopes.is_empty() && lists.is_some_and(|lists| lists.has(OFFLINE_ACCESS)) {
            scopes = scopes.union(&Scopes::parse(OFFLINE_ACCESS));
        }
        if step_up && before.covers(&scopes) {
            return Err(not_granted(&needed));
        }

        let lease = match &code.redirect_uri {
            Some(uri) => services.callback.lease_again(uri).await,
            None => services.callback.lease().await?,
        };
        let redirect_uri = code
            .redirect_uri
            .clone()
            .unwrap_or_else(|| lease.redirect_uri().to_owned());
        let client = self
            .client(&web, &server, code, &redirect_uri, &scopes)
            .await?;

        let terms = Terms {
            server,
            client,
            resource: found.resource,
            scopes,
        };
        let bound = renewal::dpop_key(None, &spec, &terms, found.dpop_required);
        let bound = bound.map_err(|_| Error::internal("a key for DPoP cannot be made"))?;
        let (pkce, nonce) = (token::pkce(), token::fresh_state());
        let created = Clock.wall();
        let mut sign_in = SignIn {
            id: SignInId::generate(),
            key,
            state: SignInState::Pending,
            auth_url: auth_url(&terms, code, &redirect_uri, &nonce, &pkce.challenge)?,
            terms,
            redirect_uri,
            created,
            expires: created.plus(services.settings.sign_in_expiry),
            failure: None,
            nonce,
            verifier: pkce.verifier,
            dpop_key: bound.as_ref().map(DpopKey::to_pem),
        };
        services.store.put_sign_in(sign_in.clone()).await?;
        let too_many = {
            let mut state = self.state();
            (state.era == era).then(|| {
                // It may have another id by now.
                sign_in.key = state.key.clone();
                state.leases.insert(sign_in.id.clone(), lease);
                state.remember(sign_in.clone());
                self.publish(&state);
                let pending = state.sign_ins.iter();
                let pending = pending.filter(|other| other.state == SignInState::Pending);
                let pending: Vec<_> = pending.map(|other| other.id.clone()).collect();
                let most = services.settings.pending_per_server;
                pending[..pending.len().saturating_sub(most)].to_vec()
            })
        };
        let Some(too_many) = too_many else {
            sign_in.state = SignInState::Cancelled;
            sign_in.expires = Clock.wall();
            services.store.end_sign_in(sign_in).await?;
            return Ok(None);
        };
        for id in too_many {
            self.end_sign_in(&id, SignInState::Superseded, None).await?;
        }
        self.expire_in_time(&sign_in);
        tracing::info!(server = %sign_in.key, sign_in_id = %sign_in.id, issuer = %sign_in.terms.server.issuer, "a sign-in has begun");
        Ok(Some(sign_in))
    }

    /// The client to sign in as: registered now if it has to be.
    async fn client(
        &self,
        web: &super::web::Web,
        server: &AuthServer,
        code: &CodeSpec,
        redirect_uri: &str,
        scopes: &Scopes,
    ) -> Result<Client> {
        let services = &self.0.services;
        let known = self.state().registrations.get(&server.issuer).cloned();
        let uris = [redirect_uri.to_owned()];
        let wanted = Wanted {
            server,
            code,
            metadata_url: services.settings.client_metadata_url.as_deref(),
            client_name: code
                .client_name
                .as_deref()
                .unwrap_or(&services.settings.client_name),
            redirect_uris: &uris,
            scopes,
            now: Clock.wall(),
        };
        match registration::choose(web, wanted, known.as_ref()).await? {
            Choice::Given(client) | Choice::Known(client) => Ok(client),
            Choice::New(registration) => {
                let key = self.state().key.clone();
                let stored = services.store.put_registration(key, registration.clone());
                stored.await?;
                let client = registration.client.clone();
                let issuer = client.issuer.clone();
                self.state().registrations.insert(issuer, registration);
                Ok(client)
            }
        }
    }

    /// Ends a sign-in when its time is over.
    pub(super) fn expire_in_time(&self, sign_in: &SignIn) {
        let (account, id) = (self.clone(), sign_in.id.clone());
        let left = sign_in.expires.0 - Clock.wall().0;
        let left = Duration::from_millis(u64::try_from(left).unwrap_or(0));
        let stopping = self.0.services.stopping.clone();
        self.0.services.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(left) => {}
                () = stopping.cancelled() => return,
            }
            if let Err(error) = account.expire(&id).await {
                tracing::warn!(%error, "the end of a sign-in could not be stored");
            }
        });
    }

    async fn expire(&self, id: &SignInId) -> Result<()> {
        let Some(sign_in) = self.end_sign_in(id, SignInState::Expired, None).await? else {
            return Ok(());
        };
        // The authorization server may have shown an error page instead of coming back, because it has forgotten its
        // client: register anew, but not each time that nobody comes.
        let doubt = !std::mem::replace(&mut self.state().doubted, true);
        if doubt {
            self.forget_client(&sign_in.terms.client).await?;
        }
        Ok(())
    }

    /// Ends a pending sign-in. `None` if it was not pending.
    pub(super) async fn end_sign_in(
        &self,
        id: &SignInId,
        end: SignInState,
        failure: Option<String>,
    ) -> Result<Option<SignIn>> {
        let Some(sign_in) = self.step(id, SignInState::Pending, end, failure) else {
            return Ok(None);
        };
        let store = &self.0.services.store;
        store
            .step_sign_in(sign_in.clone(), SignInState::Pending)
            .await?;
        Ok(Some(sign_in))
    }

    /// Ends a sign-in, also while its code is being redeemed: what comes of that is not used.
    pub(super) async fn break_off(&self, id: &SignInId) -> Result<()> {
        let (pending, redeeming) = (SignInState::Pending, SignInState::Redeeming);
        let cancelled = SignInState::Cancelled;
        let ended = self.step(id, pending, cancelled, None);
        let ended = ended.or_else(|| self.step(id, redeeming, cancelled, None));
        match ended {
            Some(ended) => self.0.services.store.end_sign_in(ended).await,
            None => Ok(()),
        }
    }

    /// Takes a sign-in from one state to another, in memory: of several that try, one succeeds.
    fn step(
        &self,
        id: &SignInId,
        from: SignInState,
        to: SignInState,
        failure: Option<String>,
    ) -> Option<SignIn> {
        let mut state = self.state();
        let sign_in = state.sign_ins.iter_mut().find(|known| known.id == *id)?;
        if sign_in.state != from {
            return None;
        }
        sign_in.state = to;
        if to.is_over() {
            sign_in.expires = Clock.wall();
            sign_in.failure = failure;
        }
        let stepped = sign_in.clone();
        if to.is_over() {
            sign_in.wipe();
            state.leases.remove(id);
        }
        self.publish(&state);
        Some(stepped)
    }

    /// Takes what came back with a redirect to one of the account's sign-ins.
    ///
    /// # Errors
    /// `INVALID_FIELD` for what does not fit and changes nothing; `ALREADY_RESOLVED`; `SIGN_IN_FAILED`.
    pub(super) async fn redirected(&self, id: &SignInId, redirect: &Redirect) -> Result<SignIn> {
        let (sign_in, known_at) = {
            let state = self.state();
            let found = state.sign_ins.iter().find(|known| known.id == *id);
            let found = found.ok_or_else(|| super::sign_in_not_found(id))?;
            (found.clone(), Clock.wall())
        };
        if sign_in.state == SignInState::Pending && sign_in.expires <= known_at {
            self.expire(id).await?;
            return Err(super::already_over(&sign_in, SignInState::Expired));
        }
        if sign_in.state != SignInState::Pending {
            return Err(super::already_over(&sign_in, sign_in.state));
        }
        let answer = redirect.answer(&sign_in)?;
        match answer {
            Answer::Refused { error, description } => {
                let text = said(&description, &[]);
                let failure = if text.is_empty() {
                    format!("the authorization server refused: {}", said(&error, &[]))
                } else {
                    format!(
                        "the authorization server refused: {} ({text})",
                        said(&error, &[])
                    )
                };
                if matches!(error.as_str(), "invalid_client" | "unauthorized_client") {
                    self.forget_client(&sign_in.terms.client).await?;
                }
                let ended = self.end_sign_in(id, SignInState::Failed, Some(failure.clone()));
                match ended.await? {
                    Some(_) => Err(failed(&sign_in, failure)),
                    None => Err(super::already_over(&sign_in, self.state_of(id))),
                }
            }
            Answer::Code(code) => {
                let stepped = self.step(id, SignInState::Pending, SignInState::Redeeming, None);
                let Some(sign_in) = stepped else {
                    return Err(super::already_over(&sign_in, self.state_of(id)));
                };
                let (done, outcome) = oneshot::channel();
                let account = self.clone();
                self.0.services.work.spawn(async move {
                    let _ = done.send(account.redeem(sign_in, code).await);
                });
                outcome
                    .await
                    .unwrap_or_else(|_| Err(Error::new(Reason::Draining, "the daemon is stopping")))
            }
        }
    }

    fn state_of(&self, id: &SignInId) -> SignInState {
        let state = self.state();
        let found = state.sign_ins.iter().find(|known| known.id == *id);
        found.map_or(SignInState::Cancelled, |found| found.state)
    }

    /// Turns a code into a grant. The `state` is used up from here on, whatever comes.
    async fn redeem(&self, sign_in: SignIn, code: Secret<String>) -> Result<SignIn> {
        let id = sign_in.id.clone();
        let outcome = self.redeem_now(sign_in, code).await;
        if let Err(error) = &outcome {
            // Whatever went wrong: nothing comes of it any more, and nobody is to wait for it.
            self.fail(&id, error.message().to_owned()).await;
        }
        outcome
    }

    async fn redeem_now(&self, sign_in: SignIn, code: Secret<String>) -> Result<SignIn> {
        let store = &self.0.services.store;
        if !store
            .step_sign_in(sign_in.clone(), SignInState::Pending)
            .await?
        {
            return Err(super::already_over(&sign_in, SignInState::Cancelled));
        }
        let web = self.state().web.clone()?;
        let key = sign_in
            .dpop_key
            .as_ref()
            .map(DpopKey::from_pem)
            .transpose()?;
        let mut tried = 0;
        let outcome = loop {
            tried += 1;
            let asked = token::redeem(
                &web,
                &sign_in.terms,
                &code,
                &sign_in.verifier,
                &sign_in.redirect_uri,
                key.as_ref(),
            );
            match asked.await {
                // Whether the code was taken is not known: asking again with it harms nobody but ourselves.
                Err(Failure::Unavailable(error)) if tried < REDEEM.0 => {
                    tracing::debug!(%error, "a code could not be redeemed yet");
                    let pause = error.retry_delay().unwrap_or(REDEEM.1 * tried);
                    tokio::time::sleep(pause.min(REDEEM.1 * 8)).await;
                }
                outcome => break outcome,
            }
        };
        let tokens = match outcome {
            Ok(tokens) => tokens,
            Err(failure) => {
                if matches!(failure, Failure::Client(_)) {
                    self.forget_client(&sign_in.terms.client).await?;
                }
                let error = failure.into_error();
                return Err(failed(&sign_in, error.message().to_owned()));
            }
        };
        let spec = self.state().spec.clone();
        if let Err(error) = renewal::check_binding(&spec, &sign_in.terms, &tokens) {
            return Err(failed(&sign_in, error.message().to_owned()));
        }
        let grant = self.grant_of(tokens, sign_in.terms.clone(), key.as_ref(), None);
        self.finish(sign_in, grant).await
    }

    async fn fail(&self, id: &SignInId, failure: String) {
        let failed = SignInState::Failed;
        let failed = self.step(id, SignInState::Redeeming, failed, Some(failure));
        let Some(failed) = failed else {
            return;
        };
        if let Err(error) = self.0.services.store.end_sign_in(failed).await {
            tracing::warn!(%error, "the end of a sign-in could not be stored");
        }
    }

    /// Stores the grant and the end of the sign-in, and of all others that were pending, in one transaction. A sign-in that has
    /// ended meanwhile brings nothing.
    async fn finish(&self, mut sign_in: SignIn, grant: Grant) -> Result<SignIn> {
        let held = Held::new(grant.clone());
        let held = held.map_err(|error| failed(&sign_in, error.message().to_owned()))?;
        let held = std::sync::Arc::new(held);
        sign_in.state = SignInState::Succeeded;
        sign_in.expires = Clock.wall();
        loop {
            let (over, others) = {
                let state = self.state();
                sign_in.key = state.key.clone();
                let over = state.stored();
                let pending = state.sign_ins.iter();
                let pending = pending.filter(|other| other.state == SignInState::Pending);
                let superseded = pending.map(|other| SignIn {
                    state: SignInState::Superseded,
                    expires: sign_in.expires,
                    ..other.clone()
                });
                (over, superseded.collect::<Vec<_>>())
            };
            let store = &self.0.services.store;
            let finished =
                store.finish_sign_in(sign_in.clone(), grant.clone(), over, others.clone());
            if finished.await? {
                if self.adopt_signed_in(&sign_in, held, &others) {
                    tracing::info!(server = %sign_in.key, sign_in_id = %sign_in.id, "signed in");
                    return Ok(sign_in);
                }
                self.discard(grant).await;
                return Err(super::already_over(&sign_in, SignInState::Cancelled));
            }
            let unchanged = {
                let state = self.state();
                state.stored() == over
            };
            if unchanged {
                // Somebody has signed out, the settings have changed, or the server was removed.
                self.discard(grant).await;
                return Err(super::already_over(&sign_in, SignInState::Cancelled));
            }
        }
    }

    /// Uses the grant of a sign-in, which is stored. False if the sign-in has ended meanwhile.
    fn adopt_signed_in(
        &self,
        sign_in: &SignIn,
        held: std::sync::Arc<Held>,
        others: &[SignIn],
    ) -> bool {
        let mut state = self.state();
        let mut known = state.sign_ins.iter();
        let lives =
            known.any(|known| known.id == sign_in.id && known.state == SignInState::Redeeming);
        if !lives {
            return false;
        }
        state.grant = Some(held);
        state.signed_in += 1;
        (state.unstored, state.unreadable) = (None, None);
        (state.trouble, state.failures, state.doubted) = (None, 0, false);
        for ended in others.iter().chain([sign_in]) {
            state.leases.remove(&ended.id);
            let known = state.sign_ins.iter_mut().find(|known| known.id == ended.id);
            if let Some(known) = known {
                known.clone_from(ended);
                known.wipe();
            }
        }
        self.publish(&state);
        true
    }
}

impl super::account::State {
    /// Generation of the grant that is stored.
    fn stored(&self) -> Option<u64> {
        let held = self.grant.as_ref().map(|held| held.grant.generation);
        held.or(self.unreadable)
    }

    /// Adds a sign-in; of those that have ended, old ones are forgotten.
    pub(super) fn remember(&mut self, sign_in: SignIn) {
        self.sign_ins.push(sign_in);
        let ended = self.sign_ins.iter().filter(|known| known.state.is_over());
        if ended.count() > MAX_ENDED
            && let Some(oldest) = self.sign_ins.iter().position(|known| known.state.is_over())
        {
            self.sign_ins.remove(oldest);
        }
    }
}

/// Whether users can be sent to this authorization server.
fn check(server: &AuthServer, code: &CodeSpec) -> Result<()> {
    let refused = |what: &str| {
        Error::new(
            Reason::CredentialsRefused,
            format!("the authorization server {} {what}", server.issuer),
        )
    };
    if server.authorization_endpoint.is_none() || server.token_endpoint.is_none() {
        return Err(refused("names no endpoints at which users sign in"));
    }
    if !code.assume_pkce && !discovery::supports_pkce(server) {
        return Err(refused(
            "does not say that it supports PKCE with S256 (`code_challenge_methods_supported`); if it does, set \
             `authorization.authorization_code.assume_pkce`",
        ));
    }
    Ok(())
}

/// The URL of the authorization request (RFC 6749 section 4.1.1).
fn auth_url(
    terms: &Terms,
    code: &CodeSpec,
    redirect_uri: &str,
    state: &Secret<String>,
    challenge: &str,
) -> Result<String> {
    let endpoint = terms.server.authorization_endpoint.as_deref();
    let mut url = Url::parse(endpoint.unwrap_or_default())
        .map_err(|_| Error::internal("an authorization endpoint is no URL"))?;
    {
        let mut query = url.query_pairs_mut();
        for (name, value) in &code.parameters {
            query.append_pair(name, value);
        }
        query
            .append_pair("response_type", "code")
            .append_pair("client_id", &terms.client.client_id)
            .append_pair("redirect_uri", redirect_uri)
            .append_pair("state", state.expose())
            .append_pair("code_challenge", challenge)
            .append_pair("code_challenge_method", "S256");
        if !terms.resource.is_empty() {
            query.append_pair("resource", &terms.resource);
        }
        if !terms.scopes.is_empty() {
            query.append_pair("scope", &terms.scopes.to_string());
        }
        // OpenID Connect gives refresh tokens for that only to those whom users were asked about (Core section 11).
        if terms.scopes.has(OFFLINE_ACCESS) && !code.parameters.contains_key("prompt") {
            query.append_pair("prompt", "consent");
        }
    }
    Ok(url.into())
}

pub(super) fn failed(sign_in: &SignIn, what: String) -> Error {
    Error::new(Reason::SignInFailed, what)
        .with("sign_in_id", sign_in.id.as_str())
        .with("server_id", sign_in.key.id.as_str())
}
