//! The RPCs of AdminService about tokens of apps. The one place that shows a token, once.

use mcp_sidecar_proto::v1;
use tonic::{Request, Response};

use super::context::RequestContext;
use super::{convert, spec};
use crate::error::{Error, Result};
use crate::model::token::AppToken;
use crate::tokens::Tokens;

/// What is known of a token.
pub(super) fn shown(token: &AppToken) -> v1::AppToken {
    let namespaces = token.bearer.namespaces.iter();
    v1::AppToken {
        token_id: token.bearer.id.to_string(),
        name: token.bearer.name.clone(),
        namespaces: namespaces.map(ToString::to_string).collect(),
        create_time: Some(convert::timestamp(token.created)),
        expire_time: token.expires.map(convert::timestamp),
    }
}

/// CreateAppToken.
///
/// # Errors
/// INVALID_FIELD, TOO_MANY, STORE_FAILED.
pub(super) async fn create(
    tokens: &Tokens,
    request: Request<v1::CreateAppTokenRequest>,
) -> Result<Response<v1::CreateAppTokenResponse>> {
    let context = RequestContext::of(&request)?;
    let request = request.into_inner();
    let lifetime = spec::duration(request.lifetime, "lifetime")?;
    let mut namespaces = Vec::with_capacity(request.namespaces.len());
    for (index, text) in request.namespaces.iter().enumerate() {
        let parsed = text.parse();
        let field = || format!("namespaces.{index}");
        namespaces.push(parsed.map_err(|why: String| Error::invalid(field(), why))?);
    }
    let (token, secret) = tokens.create(request.name, namespaces, lifetime).await?;
    context.note(|trail| trail.app_token(token.bearer.id.as_str()));
    Ok(Response::new(v1::CreateAppTokenResponse {
        secret: secret.expose().clone(),
        token: Some(shown(&token)),
    }))
}

/// RevokeAppToken.
///
/// # Errors
/// `APP_TOKEN_NOT_FOUND`, STORE_FAILED.
pub(super) async fn revoke(
    tokens: &Tokens,
    request: Request<v1::RevokeAppTokenRequest>,
) -> Result<Response<v1::RevokeAppTokenResponse>> {
    let context = RequestContext::of(&request)?;
    let id = request.into_inner().token_id;
    context.note(|trail| trail.app_token(&id));
    let token = tokens.revoke(&id).await?;
    Ok(Response::new(v1::RevokeAppTokenResponse {
        token: Some(shown(&token)),
    }))
}
