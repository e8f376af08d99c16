//! What goes along with one request, and what came of it.

use http::HeaderMap;
use http::header::{AUTHORIZATION, HeaderName, HeaderValue};
use url::Url;

use super::jose::DpopKey;
use crate::base::{Clock, Secret};
use crate::error::{Error, Reason, Result};
use crate::model::auth::Grant;

/// Header of DPoP proofs (RFC 9449 section 4.1).
const DPOP: HeaderName = HeaderName::from_static("dpop");
/// How often one request is sent again with other credentials.
const MOST_TRIES: u32 = 3;

/// A grant in use.
pub(super) struct Held {
    pub(super) grant: Grant,
    /// What the access token is bound to.
    pub(super) key: Option<DpopKey>,
    header: HeaderValue,
}

impl Held {
    /// A grant that requests can use.
    ///
    /// # Errors
    /// `SIGN_IN_FAILED` for a token that no header can hold; INTERNAL for a key that is none.
    pub(super) fn new(grant: Grant) -> Result<Self> {
        let key = match &grant.dpop_key {
            Some(pem) if grant.bound => Some(DpopKey::from_pem(pem)?),
            _ => None,
        };
        let scheme = if grant.bound { "DPoP" } else { "Bearer" };
        let header = credential(scheme, &grant.access_token)?;
        Ok(Self { grant, key, header })
    }

    /// The credentials of a request with this body.
    ///
    /// # Errors
    /// INTERNAL if it cannot be signed.
    pub(super) fn pass(
        &self,
        method: &str,
        url: &Url,
        body: Option<&[u8]>,
        nonce: Option<&str>,
    ) -> Result<Pass> {
        let mut pass = Pass::fixed(self.header.clone());
        pass.generation = Some(self.grant.generation);
        if let Some(key) = &self.key {
            let (token, now) = (&self.grant.access_token, Clock.wall());
            let proof = match body {
                Some(body) => key.proof_of_body(method, url, token, nonce, body, now)?,
                None => key.proof(method, url, Some(token), nonce, now)?,
            };
            let mut proof = HeaderValue::try_from(proof)
                .map_err(|_| Error::internal("a DPoP proof is no header value"))?;
            proof.set_sensitive(true);
            pass.headers.insert(DPOP, proof);
        }
        Ok(pass)
    }
}

/// The value of an Authorization header.
///
/// # Errors
/// `SIGN_IN_FAILED` for a token that no header can hold.
pub(super) fn credential(scheme: &str, token: &Secret<String>) -> Result<HeaderValue> {
    let text = Secret::new(format!("{scheme} {}", token.expose()));
    let mut value = HeaderValue::try_from(text.expose().as_str()).map_err(|_| {
        Error::new(
            Reason::SignInFailed,
            "the access token has characters that HTTP does not allow",
        )
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// The credentials of one request.
#[derive(Debug, Default)]
pub struct Pass {
    /// Headers to send, one Authorization header at most.
    pub headers: HeaderMap,
    /// The grant they come from.
    pub(super) generation: Option<u64>,
}

impl Pass {
    /// Only this Authorization header.
    pub(super) fn fixed(header: HeaderValue) -> Self {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, header);
        Self {
            headers,
            generation: None,
        }
    }
}

/// What one request has been through.
#[derive(Debug, Default)]
pub struct Tries {
    /// How often it was sent again.
    pub(super) count: u32,
    /// Tokens were renewed because it was refused.
    pub(super) renewed: bool,
}

impl Tries {
    pub(super) fn are_left(&self) -> bool {
        self.count < MOST_TRIES
    }
}

/// What is to be done about a refused request.
#[derive(Debug)]
pub enum Verdict {
    /// Send it again: the credentials are others now.
    Again,
    /// This is why it has no answer.
    Failed(Error),
    /// The refusal is not about what the daemon holds.
    NotOurs,
}
