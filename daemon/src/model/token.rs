//! Tokens of apps that come over TCP, as they are known: never the tokens themselves.

use std::fmt;
use std::sync::Arc;

use crate::base::{Bearer, Timestamp};

/// The SHA-256 of a token.
#[derive(Clone)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Of this token.
    #[must_use]
    pub fn of(token: &[u8]) -> Self {
        let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, token);
        let mut bytes = [0; 32];
        bytes.copy_from_slice(digest.as_ref());
        Self(bytes)
    }

    /// As it was stored; `None` if it is none.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(Self)
    }

    /// As it is stored.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether it is of the same token; takes the same time whether or not.
    #[must_use]
    pub fn matches(&self, other: &Self) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A token, as it is known.
#[derive(Clone, Debug)]
pub struct AppToken {
    /// What it says of whoever bears it.
    pub bearer: Arc<Bearer>,
    /// By what it is recognised.
    pub digest: Digest,
    /// When it was made.
    pub created: Timestamp,
    /// When it ceases to be valid; `None`: never.
    pub expires: Option<Timestamp>,
}

impl AppToken {
    /// Whether it has ceased to be valid by this time.
    #[must_use]
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }
}
