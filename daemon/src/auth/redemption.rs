//! What browsers bring back is redeemed for tokens: once, and for nothing if the sign-in has ended meanwhile
//! (RFC 6749 section 4.1.3, RFC 7636, RFC 9207).

use std::sync::Arc;
use std::time::Duration;

use super::account::Account;
use super::jose::DpopKey;
use super::pass::Held;
use super::redirect::{Answer, Redirect};
use super::renewal;
use super::said::said;
use super::token::{self, Failure};
use crate::base::{Clock, Secret, SignInId};
use crate::error::{Error, Reason, Result};
use crate::model::auth::{Grant, SignIn, SignInState};

/// How often a code is redeemed while the token endpoint cannot be reached, and the pause before.
const REDEEM: (u32, Duration) = (3, Duration::from_millis(500));

impl Account {
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
                let account = self.clone();
                let work = &self.0.services.work;
                let redeemed = work.spawn(async move { account.redeem(sign_in, code).await });
                redeemed.await.unwrap_or_else(|_| Err(ended_early()))
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
        let account = self.clone();
        let work = &self.0.services.work;
        let outcome = work.spawn(async move { account.redeem_now(sign_in, code).await });
        let outcome = outcome.await.unwrap_or_else(|_| Err(ended_early()));
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
        let held = Arc::new(held);
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
                    self.note_agreed(&grant.terms.client).await;
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
    fn adopt_signed_in(&self, sign_in: &SignIn, held: Arc<Held>, others: &[SignIn]) -> bool {
        let mut state = self.state();
        let mut known = state.sign_ins.iter();
        let lives =
            known.any(|known| known.id == sign_in.id && known.state == SignInState::Redeeming);
        if !lives {
            return false;
        }
        state.hold(held);
        state.signed_in += 1;
        state.doubted = false;
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

fn ended_early() -> Error {
    Error::internal("redeeming a code has ended early")
}

fn failed(sign_in: &SignIn, what: String) -> Error {
    Error::new(Reason::SignInFailed, what)
        .with("sign_in_id", sign_in.id.as_str())
        .with("server_id", sign_in.key.id.as_str())
}
