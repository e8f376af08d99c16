//! Signatures: proofs of possession (DPoP, RFC 9449) and assertions of a client (`private_key_jwt`, RFC 7523 section 2.2).

use std::fmt;

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use jsonwebtoken::jwk::{CommonParameters, Jwk};
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde::Serialize;
use url::Url;

use crate::base::{Secret, Timestamp};
use crate::error::{Error, Reason, Result};
use crate::model::auth::Client;

/// How long an assertion of a client is good for: long enough for clocks that differ, too short to be of use elsewhere.
const ASSERTION_SECONDS: i64 = 300;

/// The key that tokens are bound to: ES256.
#[derive(Clone)]
pub struct DpopKey {
    pem: Secret<String>,
    key: EncodingKey,
    public: Jwk,
}

impl fmt::Debug for DpopKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DpopKey(***)")
    }
}

/// What a proof claims (RFC 9449 section 4.2, and the DPoP profile of MCP).
#[derive(Serialize)]
struct Claims<'a> {
    jti: String,
    htm: &'a str,
    htu: String,
    iat: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    ath: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    nonce: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content_digest: Option<String>,
}

impl DpopKey {
    /// A new key.
    ///
    /// # Errors
    /// INTERNAL if the system has no randomness.
    pub fn generate() -> Result<Self> {
        let made =
            EcdsaKeyPair::generate_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, &SystemRandom::new());
        let Ok(document) = made else {
            return Err(Error::internal("no key can be made for DPoP"));
        };
        let encoded = Secret::new(STANDARD.encode(document.as_ref()));
        let mut pem = String::from("-----BEGIN PRIVATE KEY-----\n");
        for line in encoded.expose().as_bytes().chunks(64) {
            pem.push_str(&String::from_utf8_lossy(line));
            pem.push('\n');
        }
        pem.push_str("-----END PRIVATE KEY-----\n");
        Self::from_pem(&Secret::new(pem))
    }

    /// A key that was kept.
    ///
    /// # Errors
    /// INTERNAL if it is none.
    pub fn from_pem(pem: &Secret<String>) -> Result<Self> {
        let none = |_| Error::internal("the stored key for DPoP is no P-256 key in PKCS #8 form");
        let key = EncodingKey::from_ec_pem(pem.expose().as_bytes()).map_err(none)?;
        let mut public = Jwk::from_encoding_key(&key, Algorithm::ES256).map_err(none)?;
        public.common = CommonParameters::default();
        Ok(Self {
            pem: pem.clone(),
            key,
            public,
        })
    }

    /// The private key, PKCS #8 in PEM form.
    #[must_use]
    pub fn to_pem(&self) -> Secret<String> {
        self.pem.clone()
    }

    /// A proof for one request, good for no other.
    ///
    /// # Errors
    /// INTERNAL if it cannot be signed.
    pub fn proof(
        &self,
        method: &str,
        url: &Url,
        token: Option<&Secret<String>>,
        nonce: Option<&str>,
        now: Timestamp,
    ) -> Result<String> {
        self.sign(method, url, token, nonce, None, now)
    }

    /// A proof for one request to an MCP server: it holds for this body too, as the DPoP profile of MCP wants.
    ///
    /// # Errors
    /// INTERNAL if it cannot be signed.
    pub fn proof_of_body(
        &self,
        method: &str,
        url: &Url,
        token: &Secret<String>,
        nonce: Option<&str>,
        body: &[u8],
        now: Timestamp,
    ) -> Result<String> {
        self.sign(method, url, Some(token), nonce, Some(body), now)
    }

    fn sign(
        &self,
        method: &str,
        url: &Url,
        token: Option<&Secret<String>>,
        nonce: Option<&str>,
        body: Option<&[u8]>,
        now: Timestamp,
    ) -> Result<String> {
        let mut target = url.clone();
        target.set_query(None);
        target.set_fragment(None);
        let claims = Claims {
            jti: uuid::Uuid::new_v4().to_string(),
            htm: method,
            htu: target.into(),
            iat: now.0.div_euclid(1000),
            ath: token
                .map(|token| URL_SAFE_NO_PAD.encode(digest(&SHA256, token.expose().as_bytes()))),
            nonce,
            content_digest: body
                .map(|body| format!("sha-256=:{}:", STANDARD.encode(digest(&SHA256, body)))),
        };
        let mut header = Header::new(Algorithm::ES256);
        header.typ = Some("dpop+jwt".to_owned());
        header.jwk = Some(self.public.clone());
        encode(&header, &claims, &self.key)
            .map_err(|_| Error::internal("a proof for DPoP cannot be signed"))
    }
}

/// Proves who a client is by its private key; `audience` is the issuer of the authorization server.
///
/// # Errors
/// CREDENTIALS_REFUSED if the key is none, or does not fit the algorithm.
pub fn client_assertion(client: &Client, audience: &str, now: Timestamp) -> Result<Secret<String>> {
    #[derive(Serialize)]
    struct Claims<'a> {
        iss: &'a str,
        sub: &'a str,
        aud: &'a str,
        jti: String,
        iat: i64,
        exp: i64,
    }
    let Some(pem) = &client.private_key else {
        return Err(refused(
            "`private_key_jwt` needs a private key; set `private_key_pem`",
        ));
    };
    let wanted = client.algorithm.as_deref().map(algorithm).transpose()?;
    let iat = now.0.div_euclid(1000);
    let claims = Claims {
        iss: &client.client_id,
        sub: &client.client_id,
        aud: audience,
        jti: uuid::Uuid::new_v4().to_string(),
        iat,
        exp: iat + ASSERTION_SECONDS,
    };
    let keys = keys(pem);
    if keys.is_empty() {
        return Err(refused(
            "the private key is none in PKCS #8 PEM form that is not encrypted (RSA, EC or Ed25519); convert it with `openssl pkcs8 -topk8 -nocrypt`",
        ));
    }
    for (key, algorithms) in &keys {
        for algorithm in *algorithms {
            if wanted.is_some_and(|wanted| wanted != *algorithm) {
                continue;
            }
            // The curve of a key shows when it signs.
            if let Ok(signed) = encode(&Header::new(*algorithm), &claims, key) {
                return Ok(Secret::new(signed));
            }
        }
    }
    Err(match &client.algorithm {
        Some(name) => refused(&format!(
            "the private key does not sign with `{name}`; leave `signing_algorithm` empty to go by the key"
        )),
        None => refused("the private key signs with none of ES256, ES384, RS256, PS256, EdDSA"),
    })
}

fn refused(message: &str) -> Error {
    Error::new(Reason::CredentialsRefused, message)
}

fn algorithm(name: &str) -> Result<Algorithm> {
    match name {
        "ES256" => Ok(Algorithm::ES256),
        "ES384" => Ok(Algorithm::ES384),
        "RS256" => Ok(Algorithm::RS256),
        "PS256" => Ok(Algorithm::PS256),
        "EdDSA" => Ok(Algorithm::EdDSA),
        _ => Err(refused(&format!(
            "`{name}` is no known signature algorithm; use ES256, ES384, RS256, PS256 or EdDSA"
        ))),
    }
}

/// What the key may be, with the algorithms that it may sign with, the usual one first.
fn keys(pem: &Secret<String>) -> Vec<(EncodingKey, &'static [Algorithm])> {
    let pem = pem.expose().as_bytes();
    let ec: &[Algorithm] = &[Algorithm::ES256, Algorithm::ES384];
    let rsa: &[Algorithm] = &[Algorithm::RS256, Algorithm::PS256];
    let ed: &[Algorithm] = &[Algorithm::EdDSA];
    let all = [
        (EncodingKey::from_ec_pem(pem), ec),
        (EncodingKey::from_rsa_pem(pem), rsa),
        (EncodingKey::from_ed_pem(pem), ed),
    ];
    let good = all
        .into_iter()
        .filter_map(|(key, may)| Some((key.ok()?, may)));
    good.collect()
}

#[cfg(test)]
#[path = "jose_tests.rs"]
mod tests;
