//! `AuthService`: sign-ins, and what the daemon is authorized to do.

use mcp_sidecar_proto::v1;
use tonic::{Request, Response, Status};
use v1::auth_service_server::AuthService;

use super::context::RequestContext;
use super::{Shared, convert, input};
use crate::auth::AuthStatus;
use crate::base::{Deadline, ServerKey, SignInId};
use crate::error::{Error, Result};
use crate::model::auth::{SignIn, SignInState};

/// The service.
#[derive(Clone, Debug)]
pub struct Auths(pub Shared);

fn sign_in_id(id: &str) -> Result<SignInId> {
    if id.is_empty() {
        return Err(Error::invalid(
            "sign_in_id",
            "name a sign-in; StartSignIn and SIGN_IN_REQUIRED give its id",
        ));
    }
    Ok(SignInId::new(id))
}

fn sign_in(sign_in: SignIn) -> v1::SignIn {
    let pending = sign_in.state == SignInState::Pending;
    v1::SignIn {
        id: sign_in.id.to_string(),
        namespace: sign_in.key.namespace.to_string(),
        server_id: sign_in.key.id.to_string(),
        state: match sign_in.state {
            SignInState::Pending => v1::SignInState::Pending,
            SignInState::Redeeming => v1::SignInState::Redeeming,
            SignInState::Succeeded => v1::SignInState::Succeeded,
            SignInState::Failed => v1::SignInState::Failed,
            SignInState::Cancelled => v1::SignInState::Cancelled,
            SignInState::Expired => v1::SignInState::Expired,
            SignInState::Superseded => v1::SignInState::Superseded,
        }
        .into(),
        auth_url: if pending {
            sign_in.auth_url
        } else {
            String::new()
        },
        issuer: sign_in.terms.server.issuer,
        scopes: sign_in.terms.scopes.to_vec(),
        redirect_uri: sign_in.redirect_uri,
        create_time: Some(convert::timestamp(sign_in.created)),
        expire_time: Some(convert::timestamp(sign_in.expires)),
        failure: sign_in.failure.unwrap_or_default(),
    }
}

fn status(status: AuthStatus) -> v1::AuthStatus {
    let pending = status.pending.into_iter().map(sign_in).collect();
    let last_failure = status.last_failure.unwrap_or_default();
    let Some(grant) = status.grant else {
        return v1::AuthStatus {
            pending,
            last_failure,
            ..v1::AuthStatus::default()
        };
    };
    v1::AuthStatus {
        signed_in: true,
        issuer: grant.terms.server.issuer,
        client_id: grant.terms.client.client_id,
        scopes: grant.scopes.to_vec(),
        expire_time: grant.expires.map(convert::timestamp),
        renewable: status.renewable,
        subject: grant.subject.unwrap_or_default(),
        token_type: if grant.bound { "DPoP" } else { "Bearer" }.to_owned(),
        renew_time: Some(convert::timestamp(grant.renewed)),
        last_failure,
        pending,
    }
}

impl Auths {
    /// Has the server's status show what has become of a sign-in before an app is told.
    async fn show(&self, key: &ServerKey) {
        if let Ok(server) = self.0.registry.get(&key.namespace, key.id.as_str()) {
            server.handle.look_at_account().await.done().await;
        }
    }
}

#[tonic::async_trait]
impl AuthService for Auths {
    async fn start_sign_in(
        &self,
        request: Request<v1::StartSignInRequest>,
    ) -> Result<Response<v1::StartSignInResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        context.note(|trail| trail.server(&request.server_id));
        let server = self.0.registry.get(&namespace, &request.server_id)?;
        let scopes = input::scopes(request.scopes, "scopes")?;
        let starting = self.0.auth.start_sign_in(&server.record.key, scopes);
        let begun = context.within(starting).await?;
        self.show(&begun.key).await;
        let sign_in = Some(sign_in(begun));
        Ok(Response::new(v1::StartSignInResponse { sign_in }))
    }

    async fn get_sign_in(
        &self,
        request: Request<v1::GetSignInRequest>,
    ) -> Result<Response<v1::GetSignInResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        let id = sign_in_id(&request.sign_in_id)?;
        let wait = super::spec::duration(request.wait_timeout, "wait_timeout")?;
        let wait = wait.filter(|wait| !wait.is_zero()).map(|wait| {
            let bound = Deadline::after(wait.min(self.0.wait_max));
            bound.min(context.deadline)
        });
        let found = self.0.auth.sign_in(&namespace, &id, wait).await?;
        let sign_in = Some(sign_in(found));
        Ok(Response::new(v1::GetSignInResponse { sign_in }))
    }

    async fn complete_sign_in(
        &self,
        request: Request<v1::CompleteSignInRequest>,
    ) -> Result<Response<v1::CompleteSignInResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        let id = (!request.sign_in_id.is_empty()).then(|| SignInId::new(request.sign_in_id));
        let url = &request.redirect_url;
        let completing = self.0.auth.complete(&namespace, url, id.as_ref());
        let completed = context.within(completing).await?;
        context.note(|trail| trail.server(completed.key.id.as_str()));
        self.show(&completed.key).await;
        let sign_in = Some(sign_in(completed));
        Ok(Response::new(v1::CompleteSignInResponse { sign_in }))
    }

    async fn cancel_sign_in(
        &self,
        request: Request<v1::CancelSignInRequest>,
    ) -> Result<Response<v1::CancelSignInResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        let id = sign_in_id(&request.sign_in_id)?;
        let cancelled = self.0.auth.cancel(&namespace, &id).await?;
        context.note(|trail| trail.server(cancelled.key.id.as_str()));
        self.show(&cancelled.key).await;
        let sign_in = Some(sign_in(cancelled));
        Ok(Response::new(v1::CancelSignInResponse { sign_in }))
    }

    async fn sign_out(
        &self,
        request: Request<v1::SignOutRequest>,
    ) -> Result<Response<v1::SignOutResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        context.note(|trail| trail.server(&request.server_id));
        let server = self.0.registry.get(&namespace, &request.server_id)?;
        let (was_signed_in, revoked) = self.0.auth.sign_out(&server.record.key).await?;
        self.show(&server.record.key).await;
        Ok(Response::new(v1::SignOutResponse {
            was_signed_in,
            revoked,
        }))
    }

    async fn get_auth_status(
        &self,
        request: Request<v1::GetAuthStatusRequest>,
    ) -> Result<Response<v1::GetAuthStatusResponse>, Status> {
        let context = RequestContext::of(&request)?;
        let request = request.into_inner();
        let namespace = self.0.namespace(&context, &request.namespace)?;
        let server = self.0.registry.get(&namespace, &request.server_id)?;
        let found = self.0.auth.status(&server.record.key)?;
        let status = Some(status(found));
        Ok(Response::new(v1::GetAuthStatusResponse { status }))
    }
}
