//! Gets tokens, renews them and gives them back: what is said at the token endpoint (RFC 6749) and at the revocation
//! endpoint (RFC 7009).
//!
//! The grants of RFC 6749 are requests of the `oauth2` crate; those of the extensions (RFC 7523, RFC 8693) go beside it,
//! the same way. What the answer means is decided in one place for all: `answer`.

mod answer;
mod exchange;

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use oauth2::{
    AuthorizationCode, CsrfToken, PkceCodeChallenge, PkceCodeVerifier, RedirectUrl, RefreshToken,
    Scope,
};

use self::exchange::Exchange;
use super::jose::DpopKey;
use super::registration::client_of;
use super::web::Web;
use crate::base::Secret;
use crate::error::{Error, Reason, Result};
use crate::model::auth::{AuthServer, EnterpriseSpec, Scopes, Terms};

/// Bytes of randomness in a `state` parameter.
const STATE_BYTES: u32 = 32;
const JWT_BEARER: &str = "urn:ietf:params:oauth:grant-type:jwt-bearer";
const TOKEN_EXCHANGE: &str = "urn:ietf:params:oauth:grant-type:token-exchange";
const ID_JAG: &str = "urn:ietf:params:oauth:token-type:id-jag";
const ID_TOKEN: &str = "urn:ietf:params:oauth:token-type:id_token";

/// What an authorization server gave out.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tokens {
    /// The access token.
    pub access_token: Secret<String>,
    /// The refresh token; `None`: the one that was used stays good.
    pub refresh_token: Option<Secret<String>>,
    /// Whether the access token is bound to the key (token type `DPoP`).
    pub bound: bool,
    /// How long the access token is good for, if the authorization server said so.
    pub expires_in: Option<Duration>,
    /// The scopes that were granted; `None`: those that were asked for.
    pub scopes: Option<Scopes>,
    /// Who signed in: `sub` of an ID token that came along. Not verified, for display only.
    pub subject: Option<String>,
}

/// Why there are no tokens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The code, token or assertion is not good (any more).
    Grant(Error),
    /// The authorization server does not accept the client.
    Client(Error),
    /// It refuses for another reason, for good.
    Refused(Error),
    /// Nothing is said about the grant: it is kept.
    Unavailable(Error),
}

impl Failure {
    /// What went wrong.
    #[must_use]
    pub fn error(&self) -> &Error {
        match self {
            Self::Grant(error)
            | Self::Client(error)
            | Self::Refused(error)
            | Self::Unavailable(error) => error,
        }
    }

    /// What went wrong, to be kept.
    #[must_use]
    pub fn into_error(self) -> Error {
        match self {
            Self::Grant(error)
            | Self::Client(error)
            | Self::Refused(error)
            | Self::Unavailable(error) => error,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self.error(), f)
    }
}

impl std::error::Error for Failure {}

/// Redeems an authorization code (RFC 6749 section 4.1.3, RFC 7636 section 4.5).
///
/// # Errors
/// See [`Failure`]; a definite refusal is SIGN_IN_FAILED.
pub async fn redeem(
    web: &Web,
    terms: &Terms,
    code: &Secret<String>,
    verifier: &Secret<String>,
    redirect_uri: &str,
    dpop: Option<&DpopKey>,
) -> Result<Tokens, Failure> {
    let exchange = Exchange::of(web, terms, dpop, Reason::SignInFailed)?;
    exchange.hide([code, verifier]);
    let redirect_uri = RedirectUrl::new(redirect_uri.to_owned()).map_err(|_| {
        Failure::Refused(Error::internal("the redirect URI of the sign-in is no URL"))
    })?;
    let client = exchange.client()?;
    let mut request = client
        .exchange_code(AuthorizationCode::new(code.expose().clone()))
        .set_pkce_verifier(PkceCodeVerifier::new(verifier.expose().clone()))
        .set_redirect_uri(Cow::Owned(redirect_uri));
    if !terms.resource.is_empty() {
        request = request.add_extra_param("resource", &terms.resource);
    }
    let answer = request.request_async(&exchange).await;
    exchange.tokens(answer)
}

/// Renews tokens (RFC 6749 section 6), for the scopes that were granted.
///
/// # Errors
/// See [`Failure`]; a definite refusal is SIGN_IN_FAILED.
pub async fn refresh(
    web: &Web,
    terms: &Terms,
    token: &Secret<String>,
    dpop: Option<&DpopKey>,
) -> Result<Tokens, Failure> {
    let exchange = Exchange::of(web, terms, dpop, Reason::SignInFailed)?;
    exchange.hide([token]);
    let token = RefreshToken::new(token.expose().clone());
    let client = exchange.client()?;
    let mut request = client.exchange_refresh_token(&token);
    if !terms.resource.is_empty() {
        request = request.add_extra_param("resource", &terms.resource);
    }
    let answer = request.request_async(&exchange).await;
    exchange.tokens(answer)
}

/// Gets tokens for the daemon itself (RFC 6749 section 4.4).
///
/// # Errors
/// See [`Failure`]; a definite refusal is CREDENTIALS_REFUSED.
pub async fn client_credentials(
    web: &Web,
    terms: &Terms,
    dpop: Option<&DpopKey>,
) -> Result<Tokens, Failure> {
    let exchange = Exchange::of(web, terms, dpop, Reason::CredentialsRefused)?;
    let client = exchange.client()?;
    let mut request = client.exchange_client_credentials().add_scopes(
        terms
            .scopes
            .iter()
            .map(|scope| Scope::new(scope.to_owned())),
    );
    if !terms.resource.is_empty() {
        request = request.add_extra_param("resource", &terms.resource);
    }
    let answer = request.request_async(&exchange).await;
    exchange.tokens(answer)
}

/// Gets tokens for a user for whom an identity provider vouches: exchanges the ID token there for an assertion (ID-JAG),
/// and that for tokens (MCP extension `enterprise-managed-authorization`).
///
/// # Errors
/// See [`Failure`]; a definite refusal is CREDENTIALS_REFUSED.
pub async fn enterprise(
    web: &Web,
    terms: &Terms,
    spec: &EnterpriseSpec,
    dpop: Option<&DpopKey>,
) -> Result<Tokens, Failure> {
    // Nothing else of the identity provider is known; its issuer is only the audience of an assertion there.
    let provider = AuthServer {
        issuer: spec.idp_token_endpoint.clone(),
        token_endpoint: Some(spec.idp_token_endpoint.clone()),
        ..AuthServer::default()
    };
    let client = client_of(&spec.idp_client, &provider).map_err(Failure::Client)?;
    let at_provider = Terms {
        server: provider,
        client,
        resource: terms.resource.clone(),
        scopes: terms.scopes.clone(),
    };
    let id_token = &spec.id_token.value;
    let exchange = Exchange::of(web, &at_provider, None, Reason::CredentialsRefused)?;
    exchange.hide([id_token]);
    let scopes = terms.scopes.to_string();
    let answer = exchange
        .grant(&[
            ("grant_type", TOKEN_EXCHANGE),
            ("requested_token_type", ID_JAG),
            ("audience", &terms.server.issuer),
            ("resource", &terms.resource),
            ("scope", &scopes),
            ("subject_token", id_token.expose()),
            ("subject_token_type", ID_TOKEN),
        ])
        .await?;
    let assertion = exchange.issued(&answer, ID_JAG)?;
    jwt_bearer(web, terms, &assertion, dpop).await
}

/// Gets tokens for a workload for which its platform vouches (RFC 7523 section 2.1).
///
/// # Errors
/// See [`Failure`]; a definite refusal is CREDENTIALS_REFUSED.
pub async fn workload(
    web: &Web,
    terms: &Terms,
    assertion: &Secret<String>,
    dpop: Option<&DpopKey>,
) -> Result<Tokens, Failure> {
    jwt_bearer(web, terms, assertion, dpop).await
}

async fn jwt_bearer(
    web: &Web,
    terms: &Terms,
    assertion: &Secret<String>,
    dpop: Option<&DpopKey>,
) -> Result<Tokens, Failure> {
    let exchange = Exchange::of(web, terms, dpop, Reason::CredentialsRefused)?;
    exchange.hide([assertion]);
    let scopes = terms.scopes.to_string();
    let answer = exchange
        .grant(&[
            ("grant_type", JWT_BEARER),
            ("assertion", assertion.expose()),
            ("resource", &terms.resource),
            ("scope", &scopes),
        ])
        .await?;
    exchange.tokens(Ok(answer))
}

/// Gives a token back (RFC 7009); `hint` says which kind it is. False if the authorization server takes none, or not
/// this one.
///
/// # Errors
/// AUTHORIZATION_UNAVAILABLE if no answer came; DESTINATION_BLOCKED; CREDENTIALS_REFUSED if the client has no proof of
/// who it is.
pub async fn revoke(web: &Web, terms: &Terms, token: &Secret<String>, hint: &str) -> Result<bool> {
    let Some(endpoint) = &terms.server.revocation_endpoint else {
        return Ok(false);
    };
    let url = web.url("the revocation endpoint", endpoint)?;
    let exchange = Exchange::at(web, url, terms, None, Reason::CredentialsRefused);
    let form = [
        ("token", token.expose().as_str()),
        ("token_type_hint", hint),
    ];
    let reply = exchange.submit(&form).await.map_err(Failure::into_error)?;
    if reply.is_transient() {
        return Err(reply.unavailable(exchange.url()));
    }
    Ok(reply.status.is_success())
}

/// A code verifier and its challenge (RFC 7636, method S256).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pkce {
    /// The verifier, for the token request.
    pub verifier: Secret<String>,
    /// The challenge, for the authorization request.
    pub challenge: String,
}

/// A fresh code verifier.
#[must_use]
pub fn pkce() -> Pkce {
    let (challenge, verifier) = PkceCodeChallenge::new_random_sha256();
    Pkce {
        verifier: Secret::new(verifier.into_secret()),
        challenge: challenge.as_str().to_owned(),
    }
}

/// A fresh `state` parameter (RFC 6749 section 10.12).
#[must_use]
pub fn fresh_state() -> Secret<String> {
    Secret::new(CsrfToken::new_random_len(STATE_BYTES).into_secret())
}

#[cfg(test)]
#[path = "token/tests.rs"]
mod tests;
