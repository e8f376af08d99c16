//! New tokens without a user: refreshed, or asked for again as the client itself.
//!
//! One renewal runs at a time, and everybody who needs it waits for that one. Its tokens are on disk before they are used.

use std::sync::Arc;
use std::time::Duration;

use super::account::{Account, State};
use super::challenge::Challenge;
use super::joint::joint;
use super::jose::DpopKey;
use super::pass::Held;
use super::token::{self, Failure, Tokens};
use super::web::Web;
use super::{discovery, registration, workload};
use crate::base::{Clock, Secret, jitter};
use crate::error::{Error, Reason};
use crate::model::auth::{AuthMethod, AuthSpec, Client, DpopMode, Grant, Scopes, Terms};

/// First and longest pause after a renewal that failed for a reason that passes.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));
/// Longest pause that an authorization server may impose.
const MAX_RETRY_AFTER: Duration = Duration::from_mins(10);

/// Longest life of an access token that is believed; longer ones could not be shown, either.
const LONGEST_LIFE: Duration = Duration::from_hours(24 * 366 * 100);

/// Why there are no new tokens.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    /// It passes by itself; what is held is kept.
    Unavailable(Error),
    /// What is held is worth nothing any more.
    Ended(Error),
}

/// The outcome of a renewal.
pub(super) type Renewed = Result<Arc<Held>, Trouble>;

impl Account {
    /// New tokens in place of the grant of generation `over`, with more scopes if that is possible. If that grant was
    /// replaced meanwhile: the one that did. `refused`: what the server said when it refused that grant. Dropping the
    /// future stops nothing.
    pub(super) async fn renew(
        &self,
        over: Option<u64>,
        more: Scopes,
        refused: Option<&Challenge>,
    ) -> Renewed {
        let running = {
            let mut state = self.state();
            if let Some(held) = &state.grant
                && Some(held.grant.generation) != over
            {
                return Ok(Arc::clone(held));
            }
            match (&state.renewing, &state.trouble) {
                (Some(running), _) => running.clone(),
                (None, Some((error, until))) if *until > Clock.now() => {
                    let rest = until.saturating_duration_since(Clock.now());
                    return Err(Trouble::Unavailable(error.clone().retry_after(rest)));
                }
                (None, _) => {
                    let (account, refused) = (self.clone(), refused.cloned());
                    let epoch = state.epoch;
                    let work = async move { account.renew_now(over, more, refused, epoch).await };
                    let account = self.clone();
                    let over = move || {
                        let mut state = account.state();
                        if state.epoch == epoch {
                            state.renewing = None;
                        }
                    };
                    let broken = |error| Err(Trouble::Unavailable(error));
                    let running = joint(&self.0.services.work, work, over, broken);
                    state.renewing = Some(running.clone());
                    running
                }
            }
        };
        running.await
    }

    /// Renews in the background.
    pub(super) fn renew_beside(&self, over: u64) {
        {
            let state = self.state();
            let troubled = state
                .trouble
                .as_ref()
                .is_some_and(|(_, until)| *until > Clock.now());
            if state.renewing.is_some() || troubled {
                return;
            }
        }
        let account = self.clone();
        self.0.services.tasks.spawn(async move {
            let renewing = account.renew(Some(over), Scopes::default(), None);
            if let Err(trouble) = renewing.await {
                tracing::debug!(?trouble, "a grant was not renewed ahead of time");
            }
        });
    }

    async fn renew_now(
        &self,
        over: Option<u64>,
        more: Scopes,
        refused: Option<Challenge>,
        epoch: u64,
    ) -> Renewed {
        let (unstored, held, spec, web) = {
            let mut state = self.state();
            if state.epoch != epoch {
                return Err(superseded(&state));
            }
            (
                state.unstored.take(),
                state.grant.clone(),
                state.spec.clone(),
                state.web.clone(),
            )
        };
        if let Some(grant) = unstored {
            return self.keep(grant, over, epoch).await;
        }
        let web = web.map_err(Trouble::Ended)?;
        let before = held.as_ref().map(|held| &held.grant);
        let interactive = spec.is_interactive();
        if let (Some(grant), Some(challenge)) = (before, &refused)
            && self.has_moved(grant, challenge).await
        {
            let moved = Error::new(
                Reason::SignInRequired,
                format!(
                    "the server names other authorization servers than {} now",
                    grant.terms.server.issuer
                ),
            );
            return self.end(over, moved).await;
        }
        let outcome = async {
            let (mut terms, demanded) = match before {
                Some(grant) => (grant.terms.clone(), false),
                None => self.terms(&web, &spec).await?,
            };
            if !interactive {
                terms.scopes = terms.scopes.union(&more);
            }
            let key = dpop_key(before, &spec, &terms, demanded)?;
            let tokens = obtain(&web, &spec, &terms, before, key.as_ref(), self).await?;
            Ok((terms, key, tokens))
        };
        match outcome.await {
            Ok((terms, key, tokens)) => {
                let grant = self.grant_of(tokens, terms, key.as_ref(), before);
                self.keep(grant, over, epoch).await
            }
            _ if self.state().epoch != epoch => Err(superseded(&self.state())),
            Err(Failure::Unavailable(error)) => Err(self.troubled(error)),
            // A definite error that says nothing about the grant: it is kept, and tried again, slowly.
            Err(Failure::Refused(error)) if interactive => Err(self.troubled(error)),
            Err(Failure::Grant(error) | Failure::Refused(error)) => self.end(over, error).await,
            Err(Failure::Client(error)) => {
                if let Some(grant) = before
                    && let Err(error) = self.forget_client(&grant.terms.client).await
                {
                    return Err(Trouble::Unavailable(error));
                }
                self.end(over, error).await
            }
        }
    }

    /// A grant made of new tokens.
    pub(super) fn grant_of(
        &self,
        tokens: Tokens,
        terms: Terms,
        key: Option<&DpopKey>,
        before: Option<&Grant>,
    ) -> Grant {
        let now = Clock.wall();
        let generation = {
            let mut state = self.state();
            let since_epoch = u64::try_from(now.0).unwrap_or(0);
            state.generation = since_epoch.max(state.generation + 1);
            state.generation
        };
        let kept = before.and_then(|grant| grant.refresh_token.clone());
        let granted = before.map(|grant| grant.scopes.clone());
        Grant {
            generation,
            scopes: tokens
                .scopes
                .or(granted)
                .unwrap_or_else(|| terms.scopes.clone()),
            bound: tokens.bound,
            expires: tokens
                .expires_in
                .map(|life| now.plus(life.min(LONGEST_LIFE))),
            subject: tokens
                .subject
                .or_else(|| before.and_then(|grant| grant.subject.clone())),
            renewed: now,
            access_token: tokens.access_token,
            refresh_token: tokens.refresh_token.or(kept),
            dpop_key: key.map(DpopKey::to_pem),
            terms,
        }
    }

    /// Stores a grant, then uses it, unless its epoch is over.
    async fn keep(&self, grant: Grant, over: Option<u64>, epoch: u64) -> Renewed {
        let held = match Held::new(grant.clone()) {
            Ok(held) => Arc::new(held),
            Err(error) => return self.end(over, error).await,
        };
        let (current, key, over_stored) = {
            let state = self.state();
            let over_stored = over.or(state.unreadable);
            (state.epoch == epoch, state.key.clone(), over_stored)
        };
        if !current {
            self.discard(grant).await;
            return Err(superseded(&self.state()));
        }
        let stored = self
            .0
            .services
            .store
            .put_grant(key, grant.clone(), over_stored);
        match stored.await {
            Ok(true) if self.adopt(&held, epoch) => {
                self.note_agreed(&held.grant.terms.client).await;
                Ok(held)
            }
            Ok(true) => {
                self.discard(grant).await;
                Err(superseded(&self.state()))
            }
            Ok(false) => {
                let trouble = {
                    let mut state = self.state();
                    match &state.grant {
                        // A sign-in was faster.
                        Some(held) if Some(held.grant.generation) != over => {
                            return Ok(Arc::clone(held));
                        }
                        None if over.is_some() => return Err(superseded(&state)),
                        _ => {}
                    }
                    if state.epoch != epoch {
                        return Err(superseded(&state));
                    }
                    // The server has another id in the store already, and is about to have it here: these tokens are all
                    // there is.
                    state.unstored = Some(grant);
                    changed_meanwhile()
                };
                Err(self.troubled(trouble))
            }
            Err(error) => {
                {
                    let mut state = self.state();
                    if state.epoch != epoch {
                        return Err(superseded(&state));
                    }
                    // The old ones may be used up: these are all there is.
                    state.unstored = Some(grant);
                }
                Err(self.troubled(error))
            }
        }
    }

    /// Uses a grant that is stored. False if its epoch is over.
    fn adopt(&self, held: &Arc<Held>, epoch: u64) -> bool {
        let mut state = self.state();
        if state.epoch != epoch {
            return false;
        }
        state.hold(Arc::clone(held));
        tracing::info!(
            server = %state.key,
            expires = ?held.grant.expires,
            "tokens were renewed"
        );
        self.publish(&state);
        true
    }

    fn troubled(&self, error: Error) -> Trouble {
        let mut state = self.state();
        let pause = error.retry_delay().map_or_else(
            || {
                let bound = PAUSE
                    .0
                    .saturating_mul(1 << state.failures.min(8))
                    .min(PAUSE.1);
                bound.mul_f64(0.5 + jitter() / 2.0)
            },
            |wanted| wanted.min(MAX_RETRY_AFTER),
        );
        state.failures = state.failures.saturating_add(1);
        tracing::warn!(server = %state.key, %error, ?pause, "tokens could not be renewed");
        let error = error.retry_after(pause);
        state.trouble = Clock
            .now()
            .checked_add(pause)
            .map(|until| (error.clone(), until));
        Trouble::Unavailable(error)
    }

    async fn end(&self, over: Option<u64>, error: Error) -> Renewed {
        tracing::info!(server = %self.state().key, %error, "the authorization server refuses to renew");
        if let Some(generation) = over
            && let Err(error) = self.forget(generation).await
        {
            return Err(Trouble::Unavailable(error));
        }
        if let Some(held) = &self.state().grant {
            // A sign-in was faster.
            return Ok(Arc::clone(held));
        }
        let error = if self.state().spec.is_interactive() {
            error
        } else {
            Error::new(Reason::CredentialsRefused, error.message())
        };
        Err(Trouble::Ended(error))
    }

    /// Forgets a grant, if it is still of this generation.
    pub(super) async fn forget(&self, generation: u64) -> crate::error::Result<()> {
        let key = self.state().key.clone();
        self.0.services.store.forget_grant(key, generation).await?;
        let mut state = self.state();
        if state
            .grant
            .as_ref()
            .is_some_and(|held| held.grant.generation == generation)
        {
            state.release();
            self.publish(&state);
        }
        Ok(())
    }

    /// Forgets a dynamically registered client: its authorization server no longer knows it.
    pub(super) async fn forget_client(&self, client: &Client) -> crate::error::Result<()> {
        let (key, known) = {
            let mut state = self.state();
            let known = state
                .registrations
                .get(&client.issuer)
                .is_some_and(|known| known.client.client_id == client.client_id);
            if known {
                state.registrations.remove(&client.issuer);
            }
            (state.key.clone(), known)
        };
        if known {
            let issuer = client.issuer.clone();
            self.0
                .services
                .store
                .forget_registration(key, issuer)
                .await?;
        }
        Ok(())
    }

    /// Whether the server names other authorization servers now (MCP 2026-07-28 basic/authorization/client-registration,
    /// "Authorization Server Binding"). Nothing is concluded from metadata that cannot be read.
    pub(super) async fn has_moved(&self, grant: &Grant, challenge: &Challenge) -> bool {
        let (url, web, pinned) = {
            let state = self.state();
            let pinned = state.spec.issuer.is_some();
            (state.url.clone(), state.web.clone(), pinned)
        };
        let (Some(url), Ok(web), false) = (url, web, pinned) else {
            return false;
        };
        match discovery::issuers(&web, &url, challenge).await {
            Ok(Some(issuers)) => !issuers.contains(&grant.terms.server.issuer),
            Ok(None) | Err(_) => false,
        }
    }

    /// Under which terms a token without a user is to be had, and whether the server wants it to be bound.
    async fn terms(&self, web: &Web, spec: &AuthSpec) -> Result<(Terms, bool), Failure> {
        let (url, challenge) = {
            let state = self.state();
            (state.url.clone(), state.challenge.clone())
        };
        let Some(url) = url else {
            return Err(Failure::Refused(Error::internal("the server has no URL")));
        };
        let found = discovery::discover(web, &url, &challenge, spec);
        let found = found.await.map_err(of_error)?;
        let client = match &spec.method {
            AuthMethod::ClientCredentials(client) => Some(client),
            AuthMethod::EnterpriseManaged(enterprise) => Some(&enterprise.client),
            AuthMethod::WorkloadIdentity(workload) => workload.client.as_ref(),
            AuthMethod::AuthorizationCode(_) | AuthMethod::Bearer(_) | AuthMethod::None => None,
        };
        self.check_agreed(&found.server).map_err(Failure::Refused)?;
        let client = client.cloned().unwrap_or_default();
        let client = registration::client_of(&client, &found.server).map_err(of_error)?;
        let scopes = if spec.scopes.is_empty() {
            challenge.scopes.or(found.scopes).unwrap_or_default()
        } else {
            spec.scopes.clone()
        };
        let terms = Terms {
            server: found.server,
            client,
            resource: found.resource,
            scopes,
        };
        Ok((terms, found.dpop_required))
    }
}

/// The settings have changed while tokens were on their way, or somebody has signed out.
fn superseded(state: &State) -> Trouble {
    if state.spec.is_interactive() {
        Trouble::Ended(Error::new(
            Reason::Superseded,
            "the tokens of the server were forgotten meanwhile",
        ))
    } else {
        Trouble::Unavailable(changed_meanwhile())
    }
}

fn changed_meanwhile() -> Error {
    Error::new(
        Reason::AuthorizationUnavailable,
        "the server was changed while it was asked for tokens; they are asked for again",
    )
}

fn of_error(error: Error) -> Failure {
    match error.reason() {
        Reason::AuthorizationUnavailable => Failure::Unavailable(error),
        _ => Failure::Refused(error),
    }
}

/// The key that tokens are to be bound to, if they are. `demanded`: the server takes no others.
pub(super) fn dpop_key(
    before: Option<&Grant>,
    spec: &AuthSpec,
    terms: &Terms,
    demanded: bool,
) -> Result<Option<DpopKey>, Failure> {
    if let Some(pem) = before.and_then(|grant| grant.dpop_key.as_ref()) {
        return DpopKey::from_pem(pem).map(Some).map_err(Failure::Refused);
    }
    let offered = terms.server.dpop_signing_alg_values_supported.as_ref();
    let offered = offered.is_some_and(|all| all.iter().any(|name| name == "ES256"));
    let wanted = match spec.dpop {
        DpopMode::Off => false,
        DpopMode::Required => true,
        // A grant that is not bound stays so.
        DpopMode::Auto => (offered || demanded) && before.is_none(),
    };
    if !wanted {
        return Ok(None);
    }
    DpopKey::generate().map(Some).map_err(Failure::Refused)
}

async fn obtain(
    web: &Web,
    spec: &AuthSpec,
    terms: &Terms,
    before: Option<&Grant>,
    key: Option<&DpopKey>,
    account: &Account,
) -> Result<Tokens, Failure> {
    let tokens = match &spec.method {
        AuthMethod::AuthorizationCode(_) => {
            let refresh = before.and_then(|grant| grant.refresh_token.as_ref());
            let Some(refresh) = refresh else {
                return Err(Failure::Grant(Error::new(
                    Reason::SignInRequired,
                    "the authorization server gave no refresh token",
                )));
            };
            token::refresh(web, terms, refresh, key).await?
        }
        AuthMethod::ClientCredentials(_) => token::client_credentials(web, terms, key).await?,
        AuthMethod::EnterpriseManaged(spec) => token::enterprise(web, terms, spec, key).await?,
        AuthMethod::WorkloadIdentity(spec) => {
            let dirs = &account.0.services.settings.assertion_dirs;
            let assertion: Secret<String> = workload::assertion(&spec.assertion, dirs)
                .await
                .map_err(Failure::Refused)?;
            token::workload(web, terms, &assertion, key).await?
        }
        AuthMethod::Bearer(_) | AuthMethod::None => {
            return Err(Failure::Refused(Error::internal("no tokens are asked for")));
        }
    };
    check_binding(spec, terms, &tokens).map_err(Failure::Refused)?;
    Ok(tokens)
}

/// Whether tokens are bound that have to be.
pub(super) fn check_binding(
    spec: &AuthSpec,
    terms: &Terms,
    tokens: &Tokens,
) -> crate::error::Result<()> {
    if spec.dpop != DpopMode::Required || tokens.bound {
        return Ok(());
    }
    Err(Error::new(
        Reason::CredentialsRefused,
        format!(
            "{} gave a token that is not bound to the daemon's key (authorization.dpop)",
            terms.server.issuer
        ),
    ))
}
