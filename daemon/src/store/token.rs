//! Resume tokens: a position in the update log of one database, opaque to apps.
//!
//! Never holds anything but a position; whoever makes one up gains nothing. Layout, before base64url without padding:
//! `version (1) | log id (16) | revision (8, big endian) | check (4)`. The check tells a mangled token from one of
//! another database.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::base::Revision;
use crate::error::{Error, Reason, Result};

const VERSION: u8 = 1;
const CHECKED: usize = 1 + 16 + 8;

/// Names one history of revisions; another id means that the same revision may be another change.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LogId([u8; 16]);

impl LogId {
    /// A random one.
    pub(super) fn generate() -> Self {
        Self(uuid::Uuid::new_v4().into_bytes())
    }

    /// From what [`LogId::as_bytes`] gave.
    pub(super) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().map(Self).ok()
    }

    /// For the store.
    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// Makes a token.
pub(super) fn encode(log: LogId, revision: Revision) -> String {
    let mut token = Vec::with_capacity(CHECKED + 4);
    token.push(VERSION);
    token.extend_from_slice(&log.0);
    token.extend_from_slice(&revision.0.to_be_bytes());
    let check = check(&token);
    token.extend_from_slice(&check);
    URL_SAFE_NO_PAD.encode(token)
}

/// Reads a token.
///
/// # Errors
/// INVALID_FIELD for anything that this daemon never made; [`Reason::ResumeTokenExpired`] for a token of another log.
pub(super) fn decode(log: LogId, text: &str) -> Result<Revision> {
    let (found, revision) = parts(text).ok_or_else(|| {
        Error::invalid(
            "resume_token",
            "this is not a resume token: pass one exactly as it was received, or none",
        )
    })?;
    if found != log {
        return Err(Error::new(
            Reason::ResumeTokenExpired,
            "the resume token belongs to another update log (the database was replaced, or the machine stopped \
             without warning): start again without one",
        ));
    }
    Ok(revision)
}

fn parts(text: &str) -> Option<(LogId, Revision)> {
    let token = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (checked, found) = token.split_at_checked(CHECKED)?;
    if found != check(checked) {
        return None;
    }
    let (version, rest) = checked.split_first()?;
    let (log, revision) = rest.split_at_checked(16)?;
    let revision = u64::from_be_bytes(revision.try_into().ok()?);
    (*version == VERSION).then_some((LogId::from_bytes(log)?, Revision(revision)))
}

fn check(bytes: &[u8]) -> [u8; 4] {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    let mut check = [0; 4];
    for (to, from) in check.iter_mut().zip(digest.as_ref()) {
        *to = *from;
    }
    check
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::*;

    #[test]
    fn a_token_of_another_log_is_expired() {
        let token = encode(LogId::generate(), Revision(7));
        let refused = decode(LogId::generate(), &token).unwrap_err();
        assert_eq!(refused.reason(), Reason::ResumeTokenExpired);
    }

    proptest! {
        #[test]
        fn tokens_round_trip(log in any::<[u8; 16]>(), revision in any::<u64>()) {
            let log = LogId(log);
            assert_eq!(decode(log, &encode(log, Revision(revision))), Ok(Revision(revision)));
        }

        #[test]
        fn any_other_text_is_an_invalid_field(text in any::<String>(), bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let log = LogId::generate();
            for text in [text, URL_SAFE_NO_PAD.encode(bytes)] {
                let refused = decode(log, &text).unwrap_err();
                assert_eq!(refused.reason(), Reason::InvalidField);
                assert_eq!(refused.field(), Some("resume_token"));
            }
        }

        #[test]
        fn a_mangled_token_is_an_invalid_field(revision in any::<u64>(), at in 0_usize..39, to in "[A-Za-z0-9_-]") {
            let log = LogId::generate();
            let token = encode(log, Revision(revision));
            let mut mangled = token.clone();
            mangled.replace_range(at..=at, &to);
            if mangled != token {
                assert_eq!(decode(log, &mangled).unwrap_err().reason(), Reason::InvalidField);
            }
        }
    }
}
