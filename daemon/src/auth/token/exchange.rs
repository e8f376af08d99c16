//! One request at a token endpoint: who asks, with which proofs, and what came of it.

use std::pin::Pin;
use std::sync::Mutex;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderName, HeaderValue};
use oauth2::basic::{
    BasicErrorResponse, BasicRevocationErrorResponse, BasicTokenIntrospectionResponse,
};
use oauth2::{
    AsyncHttpClient, AuthType, ClientId, ClientSecret, EndpointNotSet, EndpointSet, HttpRequest,
    HttpResponse, RequestTokenError, StandardRevocableToken, TokenUrl,
};
use url::Url;
use url::form_urlencoded::{Serializer, byte_serialize};

use super::answer::{Answer, Asked, verdict};
use super::{Failure, Tokens};
use crate::auth::challenge::nonce;
use crate::auth::jose::{DpopKey, client_assertion};
use crate::auth::said::said;
use crate::auth::web::{Reply, Web};
use crate::base::{Clock, Secret};
use crate::error::{Error, Reason, Result};
use crate::model::auth::{Client, ClientAuth, Terms};

const FORM: &str = "application/x-www-form-urlencoded";
const CLIENT_ASSERTION: &str = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer";
const DPOP: HeaderName = HeaderName::from_static("dpop");

/// A client of the `oauth2` crate with a token endpoint.
pub(super) type OauthClient = oauth2::Client<
    BasicErrorResponse,
    Answer,
    BasicTokenIntrospectionResponse,
    StandardRevocableToken,
    BasicRevocationErrorResponse,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointNotSet,
    EndpointSet,
>;

/// A request to be made at an endpoint; the HTTP client of the `oauth2` crate.
pub(super) struct Exchange<'a> {
    web: &'a Web,
    url: Url,
    issuer: &'a str,
    client: &'a Client,
    dpop: Option<&'a DpopKey>,
    /// What a definite refusal is.
    reason: Reason,
    /// What was sent and must not be shown.
    secrets: Mutex<Vec<Secret<String>>>,
}

impl<'a> Exchange<'a> {
    /// At the token endpoint.
    pub(super) fn of(
        web: &'a Web,
        terms: &'a Terms,
        dpop: Option<&'a DpopKey>,
        reason: Reason,
    ) -> Result<Self, Failure> {
        let Some(endpoint) = &terms.server.token_endpoint else {
            return Err(Failure::Refused(Error::new(
                Reason::CredentialsRefused,
                format!(
                    "the authorization server `{}` has no token endpoint; ask its operator",
                    said(&terms.server.issuer, &[])
                ),
            )));
        };
        let url = web.url("the token endpoint", endpoint).map_err(|error| {
            // The policy may change again; it says nothing about the grant.
            match error.reason() {
                Reason::DestinationBlocked => Failure::Unavailable(error),
                _ => Failure::Refused(error),
            }
        })?;
        Ok(Self::at(web, url, terms, dpop, reason))
    }

    /// At another endpoint of the authorization server.
    pub(super) fn at(
        web: &'a Web,
        url: Url,
        terms: &'a Terms,
        dpop: Option<&'a DpopKey>,
        reason: Reason,
    ) -> Self {
        let secrets = terms.client.secret.iter().cloned().collect();
        Self {
            web,
            url,
            issuer: &terms.server.issuer,
            client: &terms.client,
            dpop,
            reason,
            secrets: Mutex::new(secrets),
        }
    }

    /// Keeps these out of what is shown of the answer.
    pub(super) fn hide<'s>(&self, secrets: impl IntoIterator<Item = &'s Secret<String>>) {
        for secret in secrets {
            self.remember(secret.clone());
        }
    }

    /// Where it goes.
    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// A client of the `oauth2` crate that is who asks. A proof by private key is added on the way: each request has its
    /// own.
    pub(super) fn client(&self) -> Result<OauthClient, Failure> {
        let url = TokenUrl::from_url(self.url.clone());
        let client = oauth2::Client::new(ClientId::new(self.client.client_id.clone()))
            .set_token_uri(url)
            .set_auth_type(match self.client.auth {
                ClientAuth::Basic => AuthType::BasicAuth,
                _ => AuthType::RequestBody,
            });
        Ok(match self.secret()? {
            Some(secret) => client.set_client_secret(ClientSecret::new(secret.expose().clone())),
            None => client,
        })
    }

    /// Makes a request that the `oauth2` crate does not know. Empty parameters are left out.
    pub(super) async fn grant(&self, form: &[(&str, &str)]) -> Result<Answer, Failure> {
        let reply = self.submit(form).await?;
        let body = verdict(reply, &self.asked())?;
        serde_json::from_slice(&body).map_err(|_| self.unreadable())
    }

    /// Sends a form with the proof of who asks.
    pub(super) async fn submit(&self, form: &[(&str, &str)]) -> Result<Reply, Failure> {
        let (body, authorization) = self.form(form)?;
        self.send(body, authorization).await
    }

    /// A form with who asks, in it or beside it.
    fn form(&self, form: &[(&str, &str)]) -> Result<(String, Option<HeaderValue>), Failure> {
        let mut body = Serializer::new(String::new());
        body.extend_pairs(form.iter().filter(|(_, value)| !value.is_empty()));
        let id = &self.client.client_id;
        let secret = self.secret()?;
        let mut authorization = None;
        match (self.client.auth, secret) {
            (ClientAuth::Basic, Some(secret)) => authorization = Some(basic(id, secret)?),
            (_, secret) => {
                if !id.is_empty() {
                    body.append_pair("client_id", id);
                }
                if let Some(secret) = secret {
                    body.append_pair("client_secret", secret.expose());
                }
            }
        }
        Ok((body.finish(), authorization))
    }

    /// What the answer to a request of the crate comes to.
    pub(super) fn tokens(
        &self,
        answer: Result<Answer, RequestTokenError<Failure, BasicErrorResponse>>,
    ) -> Result<Tokens, Failure> {
        match answer {
            Ok(answer) => answer.tokens(&self.asked()),
            Err(RequestTokenError::Request(failure)) => Err(failure),
            Err(_) => Err(self.unreadable()),
        }
    }

    /// The token of this type in an answer to a token exchange (RFC 8693 section 2.2.1).
    pub(super) fn issued(&self, answer: &Answer, kind: &str) -> Result<Secret<String>, Failure> {
        answer.issued(&self.asked(), kind)
    }

    /// The secret that goes along, if one does.
    fn secret(&self) -> Result<Option<&Secret<String>>, Failure> {
        match (self.client.auth, &self.client.secret) {
            (ClientAuth::None | ClientAuth::PrivateKeyJwt, _) => Ok(None),
            (ClientAuth::Basic | ClientAuth::Post, Some(secret)) => Ok(Some(secret)),
            (ClientAuth::Basic | ClientAuth::Post, None) => Err(Failure::Client(Error::new(
                Reason::CredentialsRefused,
                format!(
                    "the client `{}` has no secret; set `client_secret`",
                    said(&self.client.client_id, &[])
                ),
            ))),
        }
    }

    /// Sends a body that says who asks, but for a proof by private key; once more, if the authorization server wants a
    /// nonce of its own (RFC 9449 section 8).
    async fn send(
        &self,
        body: String,
        authorization: Option<HeaderValue>,
    ) -> Result<Reply, Failure> {
        let reply = self.attempt(&body, authorization.clone(), None).await?;
        if self.dpop.is_none() {
            return Ok(reply);
        }
        let Some(nonce) = nonce(&reply.headers) else {
            return Ok(reply);
        };
        let object = reply.object().unwrap_or_default();
        if object.get("error").and_then(serde_json::Value::as_str) != Some("use_dpop_nonce") {
            return Ok(reply);
        }
        self.attempt(&body, authorization, Some(&nonce)).await
    }

    async fn attempt(
        &self,
        body: &str,
        authorization: Option<HeaderValue>,
        nonce: Option<&str>,
    ) -> Result<Reply, Failure> {
        let now = Clock.wall();
        let mut body = body.to_owned();
        if authorization.is_some() {
            // Some servers, those on the Python SDK among them, find the client by this before they look at the header.
            let mut form = Serializer::new(body);
            form.append_pair("client_id", &self.client.client_id);
            body = form.finish();
        }
        if self.client.auth == ClientAuth::PrivateKeyJwt {
            let assertion =
                client_assertion(self.client, self.issuer, now).map_err(Failure::Client)?;
            let mut form = Serializer::new(body);
            form.append_pair("client_assertion_type", CLIENT_ASSERTION);
            form.append_pair("client_assertion", assertion.expose());
            body = form.finish();
            self.remember(assertion);
        }
        let mut headers = Vec::new();
        if let Some(authorization) = authorization {
            if let Ok(text) = authorization.to_str() {
                self.remember(Secret::new(text.trim_start_matches("Basic ").to_owned()));
            }
            headers.push((AUTHORIZATION, authorization));
        }
        if let Some(key) = self.dpop {
            let proof = key.proof("POST", &self.url, None, nonce, now);
            let proof = proof.and_then(|proof| header(&proof));
            headers.push((DPOP, proof.map_err(Failure::Unavailable)?));
        }
        let reply = self.web.post(&self.url, FORM, headers, body.into_bytes());
        reply.await.map_err(Failure::Unavailable)
    }

    fn remember(&self, secret: Secret<String>) {
        // What one of its holders was doing does not matter to a list.
        let mut secrets = self
            .secrets
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        secrets.push(secret);
    }

    fn asked(&self) -> Asked<'_> {
        let secrets = self
            .secrets
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        Asked {
            url: &self.url,
            issuer: self.issuer,
            reason: self.reason,
            proven: self.dpop.is_some(),
            secrets: secrets.clone(),
        }
    }

    fn unreadable(&self) -> Failure {
        self.asked().unreadable()
    }
}

impl<'c> AsyncHttpClient<'c> for Exchange<'_> {
    type Error = Failure;
    type Future = Pin<Box<dyn Future<Output = Result<HttpResponse, Failure>> + Send + 'c>>;

    fn call(&'c self, request: HttpRequest) -> Self::Future {
        Box::pin(async move {
            let (parts, body) = request.into_parts();
            let authorization = parts.headers.get(AUTHORIZATION).cloned();
            // The crate writes forms, which are ASCII.
            let body = String::from_utf8(body)
                .map_err(|_| Failure::Refused(Error::internal("a form is no text")))?;
            let reply = self.send(body, authorization).await?;
            let body = verdict(reply, &self.asked())?;
            // The crate is told no more than that it is good, whatever type it was said to have.
            let mut response = HttpResponse::new(body);
            let json = HeaderValue::from_static("application/json");
            response.headers_mut().insert(CONTENT_TYPE, json);
            Ok(response)
        })
    }
}

/// The client's identifier and secret as a header: both encoded as in a form (RFC 6749 section 2.3.1).
fn basic(id: &str, secret: &Secret<String>) -> Result<HeaderValue, Failure> {
    let mut pair: String = byte_serialize(id.as_bytes()).collect();
    pair.push(':');
    pair.extend(byte_serialize(secret.expose().as_bytes()));
    header(&format!("Basic {}", STANDARD.encode(pair))).map_err(Failure::Unavailable)
}

fn header(text: &str) -> Result<HeaderValue> {
    HeaderValue::from_str(text).map_err(|_| Error::internal("a proof cannot be a header"))
}
