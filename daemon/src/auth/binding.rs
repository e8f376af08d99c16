//! Clients that were agreed beforehand belong to one authorization server
//! (MCP 2026-07-28 basic/authorization/client-registration, "Authorization Server Binding").
//!
//! Which one it is says the registration of the MCP server (`authorization.issuer`), else the one that first gave tokens: from
//! then on, the MCP server cannot have the client shown to another.

use super::account::Account;
use super::said::said;
use crate::base::Clock;
use crate::error::{Error, Reason, Result};
use crate::model::auth::{AuthServer, Client, Registration};

impl Account {
    /// Whether what was agreed beforehand may be shown to this authorization server.
    ///
    /// # Errors
    /// `CREDENTIALS_REFUSED`, saying what to configure if it is meant.
    pub(super) fn check_agreed(&self, server: &AuthServer) -> Result<()> {
        let state = self.state();
        let Some(client_id) = state.spec.agreed_client() else {
            return Ok(());
        };
        if state.spec.issuer.is_some() {
            return Ok(());
        }
        let mut known = state.registrations.values();
        let known = known.find(|known| known.is_agreed() && known.client.client_id == client_id);
        match known {
            Some(known) if known.client.issuer != server.issuer => Err(Error::new(
                Reason::CredentialsRefused,
                format!(
                    "the server names the authorization server `{}` now, and what is configured was used at `{}`: it is not shown \
                     to another; if that one is meant, UpdateServer with `authorization.issuer` set to it and with a client that \
                     it knows",
                    said(&server.issuer, &[]),
                    said(&known.client.issuer, &[])
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Remembers where a client that was agreed beforehand belongs: it was accepted there.
    pub(super) async fn note_agreed(&self, client: &Client) {
        let registration = Registration::agreed(client, Clock.wall());
        let (key, epoch) = {
            let state = self.state();
            let known = state.registrations.get(&client.issuer);
            let known = known.is_some_and(|known| {
                known.is_agreed() && known.client.client_id == client.client_id
            });
            if state.spec.agreed_client() != Some(client.client_id.as_str()) || known {
                return;
            }
            (state.key.clone(), state.epoch)
        };
        let stored = self
            .0
            .services
            .store
            .put_registration(key, registration.clone());
        if let Err(error) = stored.await {
            // It is noted with the next tokens.
            tracing::warn!(%error, "where a client belongs could not be stored");
            return;
        }
        let mut state = self.state();
        if state.epoch == epoch {
            let issuer = client.issuer.clone();
            state.registrations.insert(issuer, registration);
        }
    }
}
