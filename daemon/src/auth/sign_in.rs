//! Sign-ins: begun, handed to a user, ended
//! (MCP 2026-07-28 basic/authorization, "Authorization Flow Steps"; RFC 6749 section 4.1, RFC 7636, RFC 9207).
//!
//! What comes back is believed only after it has named a pending sign-in by its `state` and, where the authorization server
//! says so, itself by its `iss`. Everything else changes nothing.

use std::time::Duration;
use url::Url;

use super::account::{Account, State};
use super::joint::{Joint, joint};
use super::jose::DpopKey;
use super::refusal::not_granted;
use super::registration::{self, Choice, Wanted};
use super::token;
use super::{discovery, renewal};
use crate::base::{Clock, Secret, SignInId};
use crate::error::{Error, Reason, Result};
use crate::model::auth::{
    AuthMethod, AuthServer, Client, CodeSpec, Scopes, SignIn, SignInState, Terms,
};

/// The outcome of beginning a sign-in; `None`: the settings have changed meanwhile.
pub(super) type Begun = Result<Option<SignIn>>;

/// What an authorization server must list for refresh tokens to be asked for (OpenID Connect Core section 11).
const OFFLINE_ACCESS: &str = "offline_access";
/// A pending sign-in with less than this left is not offered to anybody any more.
const ENOUGH: Duration = Duration::from_secs(15);
/// Ended sign-ins of one server that are remembered.
const MAX_ENDED: usize = 50;
/// How often the settings may change while a sign-in begins.
const MOST_BEGINNINGS: u32 = 3;

impl Account {
    /// The pending sign-in if it asks for these scopes, else a new one. `step_up`: the server wants more than was granted.
    ///
    /// # Errors
    /// Why none can begin.
    pub(super) async fn begin_if_needed(&self, scopes: Scopes, step_up: bool) -> Result<SignIn> {
        for _ in 0..MOST_BEGINNINGS {
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
                match &state.beginning {
                    Some(running) => running.clone(),
                    None => self.begin_for_all(&mut state, scopes.clone(), step_up),
                }
            };
            if let Some(sign_in) = running.await? {
                return Ok(sign_in);
            }
        }
        Err(changed())
    }

    /// Begins a sign-in that everybody waits for who needs one.
    fn begin_for_all(&self, state: &mut State, scopes: Scopes, step_up: bool) -> Joint<Begun> {
        let (account, epoch) = (self.clone(), state.epoch);
        let work = async move { account.begin(epoch, scopes, step_up).await };
        let account = self.clone();
        let over = move || {
            let mut state = account.state();
            if state.epoch == epoch {
                state.beginning = None;
            }
        };
        let running = joint(&self.0.services.tasks, work, over, Err);
        state.beginning = Some(running.clone());
        running
    }

    /// Begins a sign-in in a task of its own, whatever is pending.
    ///
    /// # Errors
    /// Why it cannot begin.
    pub async fn start(&self, scopes: Scopes) -> Result<SignIn> {
        let account = self.clone();
        let begun = self.0.services.tasks.spawn(async move {
            for _ in 0..MOST_BEGINNINGS {
                let epoch = account.state().epoch;
                if let Some(sign_in) = account.begin(epoch, scopes.clone(), false).await? {
                    return Ok(sign_in);
                }
            }
            Err(changed())
        });
        begun
            .await
            .unwrap_or_else(|_| Err(Error::internal("beginning a sign-in has ended early")))
    }

    /// Begins a sign-in under the settings of this epoch; `None` if others hold when it has begun.
    async fn begin(&self, epoch: u64, more: Scopes, step_up: bool) -> Begun {
        let begun = self.begin_in(epoch, more, step_up).await;
        match begun {
            Err(error) if self.state().epoch != epoch => {
                tracing::debug!(%error, "a sign-in could not begin under settings that are gone");
                Ok(None)
            }
            begun => begun,
        }
    }

    async fn begin_in(&self, epoch: u64, more: Scopes, step_up: bool) -> Begun {
        let services = &self.0.services;
        if self.state().removed {
            return Err(changed());
        }
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
        self.check_agreed(&server)?;

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
        if (step_up && before.covers(&scopes)) || scopes.are_too_many() {
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
            (state.epoch == epoch).then(|| {
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

    pub(super) async fn expire(&self, id: &SignInId) -> Result<()> {
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
    pub(super) fn step(
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
}

impl State {
    /// Generation of the grant that is stored.
    pub(super) fn stored(&self) -> Option<u64> {
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

fn changed() -> Error {
    Error::new(
        Reason::Superseded,
        "the server was changed or removed while a sign-in began; begin another one",
    )
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
