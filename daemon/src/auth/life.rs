//! The life of an account: taken over from an earlier run, changed, signed out of, removed.

use std::sync::Arc;

use super::account::{self, Account, State};
use super::challenge::Challenge;
use super::pass::Held;
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
                let generation = grant.generation;
                state.generation = generation;
                // Whoever may not see them: a daemon that ended at the wrong moment left them behind.
                let fits = state.url.as_ref().is_none_or(|url| grant.is_for(url));
                match Held::new(grant) {
                    Ok(held) if fits => state.hold(Arc::new(held)),
                    Ok(_) => {
                        tracing::error!(server = %state.key, "stored tokens are those of another server");
                        state.unreadable = Some(generation);
                    }
                    Err(error) => {
                        tracing::error!(server = %state.key, %error, "stored tokens cannot be used");
                        state.unreadable = Some(generation);
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
            state.fix();
            if changed {
                state.challenge = Challenge::default();
                state.registrations.retain(|_, known| !known.is_agreed());
                // In the same instant: the tokens are not for where the server is now.
                self.drop_grant(&mut state);
            }
            changed
        };
        if changed {
            self.let_go().await?;
        }
        Ok(())
    }

    /// Forgets the grant, ends sign-ins, and makes worthless whatever is on its way. Returns the grant.
    pub(super) async fn let_go(&self) -> Result<Option<Grant>> {
        let open = {
            let mut state = self.state();
            state.begin_epoch();
            let open = state.sign_ins.iter();
            let open = open.filter(|sign_in| !sign_in.state.is_over());
            open.map(|sign_in| sign_in.id.clone()).collect::<Vec<_>>()
        };
        for id in open {
            self.break_off(&id).await?;
        }
        let key = self.state().key.clone();
        // Whatever generation it has by now.
        self.0.services.store.forget_any_grant(key).await?;
        let mut state = self.state();
        state.unreadable = None;
        let held = self.drop_grant(&mut state);
        Ok(held.map(|held| held.grant.clone()))
    }

    /// Lets the grant go, in memory.
    fn drop_grant(&self, state: &mut State) -> Option<Arc<Held>> {
        let held = state.release();
        if held.is_some() {
            state.endings += 1;
        }
        self.publish(state);
        held
    }

    /// Has tokens forgotten that came too late: the settings have changed, or somebody has signed out.
    pub(super) async fn discard(&self, grant: Grant) {
        let key = self.state().key.clone();
        let generation = grant.generation;
        let forgotten = self.0.services.store.forget_grant(key, generation).await;
        if let Err(error) = forgotten {
            tracing::error!(%error, "tokens that came too late could not be forgotten");
        }
        let account = self.clone();
        self.0.services.tasks.spawn(async move {
            account.revoke(&grant).await;
        });
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
            state.begin_epoch();
            state.leases.clear();
            state.sign_ins.clear();
            state.registrations.clear();
            let grant = state.release();
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

impl State {
    /// What is on its way is worth nothing from now on, and nobody new waits for it.
    fn begin_epoch(&mut self) {
        self.epoch += 1;
        (self.unstored, self.renewing, self.beginning) = (None, None, None);
    }
}
