//! The life of an account: taken over from an earlier run, changed, signed out of, removed.

use std::sync::Arc;

use super::account::{self, Account, Held};
use super::challenge::Challenge;
use super::{AuthStatus, token};
use crate::base::ServerKey;
use crate::error::Result;
use crate::model::auth::{Grant, SignIn, SignInState};
use crate::model::spec::ServerSpec;
use crate::store::Authorizations;

impl Account {
    /// Takes over what an earlier run of the daemon has stored.
    pub(super) fn restore(&self, stored: Authorizations) {
        let pending: Vec<SignIn> = {
            let mut state = self.state();
            for (_, grant) in stored.grants {
                state.generation = grant.generation;
                match Held::new(grant) {
                    Ok(held) => state.grant = Some(Arc::new(held)),
                    Err(error) => {
                        tracing::error!(server = %state.key, %error, "stored tokens cannot be used");
                    }
                }
            }
            for (_, generation) in stored.unreadable_grants {
                state.generation = generation;
                state.unreadable = Some(generation);
            }
            for (_, registration) in stored.registrations {
                let issuer = registration.client.issuer.clone();
                state.registrations.insert(issuer, registration);
            }
            state.sign_ins = stored.sign_ins;
            state.sign_ins.sort_by(|a, b| a.id.cmp(&b.id));
            self.publish(&state);
            let pending = state.sign_ins.iter();
            let pending = pending.filter(|sign_in| sign_in.state == SignInState::Pending);
            pending.cloned().collect()
        };
        for sign_in in pending {
            self.expire_in_time(&sign_in);
            let account = self.clone();
            self.0.services.tasks.spawn(async move {
                let lease = account
                    .0
                    .services
                    .callback
                    .lease_again(&sign_in.redirect_uri)
                    .await;
                let mut state = account.state();
                let known = state.sign_ins.iter().find(|known| known.id == sign_in.id);
                if known.is_some_and(|known| known.state == SignInState::Pending) {
                    state.leases.insert(sign_in.id, lease);
                }
            });
        }
    }

    pub(super) fn rename(&self, key: &ServerKey) {
        let mut state = self.state();
        state.key = key.clone();
        for sign_in in &mut state.sign_ins {
            sign_in.key = key.clone();
        }
        self.publish(&state);
    }

    pub(super) fn find(&self, wanted: impl Fn(&SignIn) -> bool) -> Option<SignIn> {
        let state = self.state();
        state.sign_ins.iter().find(|known| wanted(known)).cloned()
    }

    /// Takes over changed settings. What was granted under others is forgotten, and what is pending ends.
    ///
    /// # Errors
    /// `STORE_FAILED`.
    pub async fn apply(&self, spec: &ServerSpec) -> Result<()> {
        let http = account::http_of(spec);
        let url = account::url_of(spec);
        let web = self.0.services.web_for(http);
        let changed = {
            let mut state = self.state();
            let changed = state.spec != spec.auth || state.url != url;
            state.spec = spec.auth.clone();
            state.url = url;
            state.web = web;
            if changed {
                state.challenge = Challenge::default();
                state.trouble = None;
            }
            changed
        };
        if changed {
            self.let_go().await?;
        }
        Ok(())
    }

    /// Forgets the grant and ends what is pending. Returns the grant.
    pub(super) async fn let_go(&self) -> Result<Option<Grant>> {
        let (grant, pending) = {
            let state = self.state();
            let grant = state.grant.as_ref().map(|held| held.grant.clone());
            let pending = state.sign_ins.iter();
            let pending = pending.filter(|sign_in| sign_in.state == SignInState::Pending);
            let pending: Vec<_> = pending.map(|sign_in| sign_in.id.clone()).collect();
            (grant, pending)
        };
        for id in pending {
            self.end_sign_in(&id, SignInState::Cancelled, None).await?;
        }
        if let Some(grant) = &grant {
            self.forget(grant.generation).await?;
            let mut state = self.state();
            state.unstored = None;
            state.endings += 1;
            self.publish(&state);
        }
        Ok(grant)
    }

    pub(super) async fn sign_out(&self) -> Result<(bool, bool)> {
        let Some(grant) = self.let_go().await? else {
            return Ok((false, false));
        };
        tracing::info!(server = %self.state().key, "signed out");
        Ok((true, self.revoke(&grant).await))
    }

    /// Asks the authorization server to revoke the tokens of a grant that is no longer held.
    pub(super) async fn revoke(&self, grant: &Grant) -> bool {
        let Ok(web) = self.state().web.clone() else {
            return false;
        };
        let mut confirmed = true;
        // The refresh token first: others come from it.
        let refresh = grant.refresh_token.as_ref();
        let refresh = refresh.map(|token| (token, "refresh_token"));
        for (token, hint) in refresh
            .into_iter()
            .chain([(&grant.access_token, "access_token")])
        {
            match token::revoke(&web, &grant.terms, token, hint).await {
                Ok(done) => confirmed &= done,
                Err(error) => {
                    tracing::info!(%error, "tokens could not be revoked");
                    return false;
                }
            }
        }
        confirmed
    }

    pub(super) fn remove(&self) {
        let grant = {
            let mut state = self.state();
            state.removed = true;
            state.leases.clear();
            state.sign_ins.clear();
            state.registrations.clear();
            let grant = state.grant.take();
            self.publish(&state);
            grant
        };
        if let Some(held) = grant {
            let account = self.clone();
            self.0.services.tasks.spawn(async move {
                account.revoke(&held.grant).await;
            });
        }
    }

    pub(super) fn status(&self) -> AuthStatus {
        let mut grant = self.state().grant.as_ref().map(|held| held.grant.clone());
        let renewable = grant.as_ref().is_some_and(|grant| self.is_renewable(grant));
        let state = self.state();
        let pending = state.sign_ins.iter();
        let pending = pending.filter(|sign_in| sign_in.state == SignInState::Pending);
        if let Some(grant) = &mut grant {
            grant.wipe();
        }
        AuthStatus {
            renewable,
            last_failure: state
                .trouble
                .as_ref()
                .map(|(error, _)| error.message().to_owned()),
            pending: pending.cloned().collect(),
            grant,
        }
    }
}
