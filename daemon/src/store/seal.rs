//! Encryption at rest: AES-256-GCM under one key, each blob bound to its purpose and its server.
//!
//! Never logs, never writes plain text anywhere, and never replaces or deletes a key or a blob that it cannot open.
//!
//! A blob is `version (1 byte) | nonce (12) | cipher text | tag (16)`. The nonce is random, which is safe for 2^32
//! blobs under one key. The associated data is purpose, namespace and server id, so that a blob which is copied to
//! another row does not open there.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use zeroize::Zeroizing;

use crate::base::{Secret, ServerKey};
use crate::error::{Error, Result};
use crate::model::spec::NamedSecret;
use crate::model::status::Session;

/// Length of the key in bytes.
pub(super) const KEY_LEN: usize = 32;
/// The first byte of every blob.
const VERSION: u8 = 1;
/// What the values of headers and environment variables are sealed for.
pub(super) const SERVER_SECRETS: &str = "server-secrets";
/// What a session of a server is sealed for.
pub(super) const SESSION: &str = "session";
/// What the key check is sealed for.
const KEY_CHECK: &str = "key-check";
/// What is sealed to see whether it can be kept.
const PROBE: &str = "probe";

/// Seals and opens. Holds the key; `Debug` shows nothing, and the memory is wiped on drop.
pub(super) struct Sealer {
    key: RandomizedNonceKey,
}

impl Sealer {
    /// Seals and opens with this key.
    pub(super) fn new(key: &[u8; KEY_LEN]) -> Result<Self> {
        RandomizedNonceKey::new(&AES_256_GCM, key)
            .map(|key| Self { key })
            .map_err(|_| Error::internal("the AEAD refused its key"))
    }

    /// A blob by which a later start recognises the key.
    pub(super) fn key_check(&self) -> Result<Vec<u8>> {
        self.seal(&associated(KEY_CHECK, &[]), &[])
    }

    /// Whether the key made this key check.
    pub(super) fn accepts(&self, check: &[u8]) -> bool {
        self.open(&associated(KEY_CHECK, &[]), check).is_some()
    }

    /// Seals the values for this server, in order. `None` if there are none.
    pub(super) fn seal_secrets(
        &self,
        server: &ServerKey,
        secrets: &[&NamedSecret],
    ) -> Result<Option<Vec<u8>>> {
        if secrets.is_empty() {
            return Ok(None);
        }
        let values: Vec<&str> = secrets
            .iter()
            .map(|secret| secret.value.expose().as_str())
            .collect();
        self.seal(&server_data(SERVER_SECRETS, server), &join(&values)?)
            .map(Some)
    }

    /// Seals the session of this server.
    pub(super) fn seal_session(&self, server: &ServerKey, session: &Session) -> Result<Vec<u8>> {
        let Session {
            id,
            version,
            hello,
            told,
        } = session;
        let told = super::json(told)?;
        self.seal(
            &server_data(SESSION, server),
            &join(&[id.expose(), version, hello, &told])?,
        )
    }

    /// The session that was sealed for this server; `None` if it does not open.
    pub(super) fn open_session(&self, server: &ServerKey, blob: &[u8]) -> Option<Session> {
        let plain = self.open(&server_data(SESSION, server), blob)?;
        let mut values = split(&plain)?.into_iter();
        let (id, version, hello) = (values.next()?, values.next()?, values.next()?);
        // Sessions of earlier versions of the daemon say no more.
        let told = values.next();
        Some(Session {
            id,
            version: version.expose().clone(),
            hello: hello.expose().clone(),
            told: told.and_then(|told| serde_json::from_str(told.expose()).ok().flatten()),
        })
    }

    /// Fills in the values that were sealed for this server. Returns false, and leaves every value empty, if the blob
    /// was sealed for another server, by another key, or for other secrets than these.
    pub(super) fn open_secrets(
        &self,
        server: &ServerKey,
        blob: Option<&[u8]>,
        secrets: &mut [&mut NamedSecret],
    ) -> bool {
        let Some(blob) = blob else {
            return secrets.is_empty();
        };
        let Some(plain) = self.open(&server_data(SERVER_SECRETS, server), blob) else {
            return false;
        };
        let Some(values) = split(&plain).filter(|values| values.len() == secrets.len()) else {
            return false;
        };
        for (secret, value) in secrets.iter_mut().zip(values) {
            secret.value = value;
        }
        true
    }

    /// Seals values that may be absent for a row of this server; `name` tells it from the server's other rows.
    pub(super) fn seal_parts(
        &self,
        purpose: &str,
        server: &ServerKey,
        name: &str,
        parts: &[Option<&Secret<String>>],
    ) -> Result<Vec<u8>> {
        let fields = parts.iter().flat_map(|part| match part {
            Some(value) => ["1", value.expose().as_str()],
            None => ["0", ""],
        });
        let plain = join(&fields.collect::<Vec<_>>())?;
        self.seal(&row_data(purpose, server, name), &plain)
    }

    /// The values that were sealed for this row; `None` if they do not open, or are not that many.
    pub(super) fn open_parts<const N: usize>(
        &self,
        purpose: &str,
        server: &ServerKey,
        name: &str,
        blob: &[u8],
    ) -> Option<[Option<Secret<String>>; N]> {
        let plain = self.open(&row_data(purpose, server, name), blob)?;
        let mut fields = split(&plain)?.into_iter();
        let mut parts = Vec::with_capacity(N);
        while let (Some(present), Some(value)) = (fields.next(), fields.next()) {
            parts.push((present.expose() == "1").then_some(value));
        }
        parts.try_into().ok()
    }

    /// Seals a text for a row that these values name.
    pub(super) fn seal_text(&self, purpose: &str, row: &[&str], text: &str) -> Result<Vec<u8>> {
        self.seal(&associated(purpose, row), text.as_bytes())
    }

    /// The text that was sealed for this row; `None` if it does not open.
    pub(super) fn open_text(&self, purpose: &str, row: &[&str], blob: &[u8]) -> Option<String> {
        let plain = self.open(&associated(purpose, row), blob)?;
        std::str::from_utf8(&plain).ok().map(str::to_owned)
    }

    /// The same for another key: opened with this one, sealed with the other. `None` if it does not open.
    pub(super) fn reseal(
        &self,
        other: &Self,
        purpose: &str,
        parts: &[&str],
        blob: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        let data = associated(purpose, parts);
        let plain = self.open(&data, blob);
        plain.map(|plain| other.seal(&data, &plain)).transpose()
    }

    /// Seals something that is thrown away.
    pub(super) fn seal_probe(&self, probe: &str) -> Result<Vec<u8>> {
        self.seal(&associated(PROBE, &[probe]), probe.as_bytes())
    }

    /// Whether this is that probe.
    pub(super) fn is_probe(&self, probe: &str, blob: &[u8]) -> bool {
        let plain = self.open(&associated(PROBE, &[probe]), blob);
        plain.is_some_and(|plain| *plain == probe.as_bytes())
    }

    fn seal(&self, associated: &[u8], plain: &[u8]) -> Result<Vec<u8>> {
        let mut body = Zeroizing::new(Vec::with_capacity(plain.len() + AES_256_GCM.tag_len()));
        body.extend_from_slice(plain);
        let nonce = self
            .key
            .seal_in_place_append_tag(Aad::from(associated), &mut *body)
            .map_err(|_| Error::internal("sealing failed"))?;
        let mut blob = Vec::with_capacity(1 + NONCE_LEN + body.len());
        blob.push(VERSION);
        blob.extend_from_slice(nonce.as_ref());
        blob.extend_from_slice(&body);
        Ok(blob)
    }

    fn open(&self, associated: &[u8], blob: &[u8]) -> Option<Zeroizing<Vec<u8>>> {
        let (&VERSION, rest) = blob.split_first()? else {
            return None;
        };
        let (nonce, body) = rest.split_at_checked(NONCE_LEN)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let mut body = Zeroizing::new(body.to_vec());
        let plain = self
            .key
            .open_in_place(nonce, Aad::from(associated), &mut body)
            .ok()?
            .len();
        body.truncate(plain);
        Some(body)
    }
}

/// Joins values to `length | bytes` fields.
fn join(values: &[&str]) -> Result<Zeroizing<Vec<u8>>> {
    let size = values.iter().map(|value| size_of::<u32>() + value.len());
    // Exactly large enough: a reallocation would leave a copy behind that nobody wipes.
    let mut plain = Zeroizing::new(Vec::with_capacity(size.sum()));
    for value in values {
        let length = u32::try_from(value.len())
            .map_err(|_| Error::invalid("transport", "a secret value is too long"))?;
        plain.extend_from_slice(&length.to_be_bytes());
        plain.extend_from_slice(value.as_bytes());
    }
    Ok(plain)
}

/// Cuts `length | bytes` fields apart; `None` if the text does not end with a field or a value is not UTF-8.
fn split(plain: &[u8]) -> Option<Vec<Secret<String>>> {
    let mut values = Vec::new();
    let mut rest = plain;
    while !rest.is_empty() {
        let (length, tail) = rest.split_first_chunk::<4>()?;
        let length = usize::try_from(u32::from_be_bytes(*length)).ok()?;
        let (value, tail) = tail.split_at_checked(length)?;
        values.push(Secret::new(std::str::from_utf8(value).ok()?.to_owned()));
        rest = tail;
    }
    Some(values)
}

fn row_data(purpose: &str, server: &ServerKey, name: &str) -> Vec<u8> {
    let mut parts = vec![server.namespace.as_str(), server.id.as_str()];
    parts.extend((!name.is_empty()).then_some(name));
    associated(purpose, &parts)
}

fn server_data(purpose: &str, server: &ServerKey) -> Vec<u8> {
    associated(purpose, &[server.namespace.as_str(), server.id.as_str()])
}

/// The associated data: each part with its length, so that no two lists of parts look the same.
fn associated(purpose: &str, parts: &[&str]) -> Vec<u8> {
    let mut data = Vec::new();
    for part in std::iter::once(&purpose).chain(parts) {
        data.extend_from_slice(&(part.len() as u64).to_be_bytes());
        data.extend_from_slice(part.as_bytes());
    }
    data
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop, proptest};

    use super::*;
    use crate::base::{Namespace, ServerId};

    fn server(namespace: &str, id: &str) -> ServerKey {
        ServerKey::new(Namespace::new(namespace), ServerId::new(id))
    }

    fn secrets(values: &[String]) -> Vec<NamedSecret> {
        let named = |value: &String| NamedSecret {
            name: "x".to_owned(),
            value: Secret::new(value.clone()),
        };
        values.iter().map(named).collect()
    }

    fn refs(secrets: &[NamedSecret]) -> Vec<&NamedSecret> {
        secrets.iter().collect()
    }

    fn muts(secrets: &mut [NamedSecret]) -> Vec<&mut NamedSecret> {
        secrets.iter_mut().collect()
    }

    #[test]
    fn a_session_says_what_its_server_was_told_if_that_was_kept() {
        let sealer = Sealer::new(&[7; KEY_LEN]).unwrap();
        let home = server("a", "b");
        let told = Some(crate::model::spec::Abilities {
            elicitation_url: true,
            ..crate::model::spec::Abilities::NOTHING
        });
        let session = Session {
            id: Secret::new("id".to_owned()),
            version: "2025-11-25".to_owned(),
            hello: "{}".to_owned(),
            told,
        };
        let blob = sealer.seal_session(&home, &session).unwrap();
        assert_eq!(sealer.open_session(&home, &blob), Some(session.clone()));
        // As daemons before this one sealed it.
        let plain = join(&["id", "2025-11-25", "{}"]).unwrap();
        let blob = sealer.seal(&server_data(SESSION, &home), &plain).unwrap();
        let earlier = Session {
            told: None,
            ..session
        };
        assert_eq!(sealer.open_session(&home, &blob), Some(earlier));
    }

    #[test]
    fn a_blob_opens_only_where_it_was_sealed() {
        let sealer = Sealer::new(&[7; KEY_LEN]).unwrap();
        let values = secrets(&["hunter2".to_owned(), String::new()]);
        let home = server("a", "bc");
        let blob = sealer.seal_secrets(&home, &refs(&values)).unwrap().unwrap();
        let mut opened = secrets(&[String::new(), String::new()]);
        assert!(sealer.open_secrets(&home, Some(&blob), &mut muts(&mut opened)));
        assert_eq!(opened, values);
        for away in [server("ab", "c"), server("a", "b"), server("b", "bc")] {
            let mut kept = secrets(&[String::new(), String::new()]);
            assert!(!sealer.open_secrets(&away, Some(&blob), &mut muts(&mut kept)));
            assert!(kept.iter().all(|secret| secret.value.expose().is_empty()));
        }
        let other = Sealer::new(&[8; KEY_LEN]).unwrap();
        assert!(!other.open_secrets(&home, Some(&blob), &mut muts(&mut opened)));
        assert!(!sealer.open_secrets(
            &home,
            Some(&blob),
            &mut muts(&mut secrets(&["one".to_owned()]))
        ));
        assert!(!sealer.open_secrets(&home, None, &mut muts(&mut opened)));
        assert!(sealer.open_secrets(&home, None, &mut []));
    }

    proptest! {
        #[test]
        fn sealing_round_trips_and_foreign_bytes_never_open(
            values in prop::collection::vec(any::<String>(), 1..5),
            noise in prop::collection::vec(any::<u8>(), 0..80),
            at in any::<prop::sample::Index>(),
        ) {
            let sealer = Sealer::new(&[7; KEY_LEN]).unwrap();
            let home = server("default", "github");
            let sealed = secrets(&values);
            let mut blob = sealer.seal_secrets(&home, &refs(&sealed)).unwrap().unwrap();
            let mut opened = secrets(&vec![String::new(); values.len()]);
            assert!(sealer.open_secrets(&home, Some(&blob), &mut muts(&mut opened)));
            assert_eq!(&opened, &sealed);
            assert!(!sealer.open_secrets(&home, Some(&noise), &mut muts(&mut opened)));
            let at = at.index(blob.len());
            blob[at] ^= 1;
            assert!(!sealer.open_secrets(&home, Some(&blob), &mut muts(&mut opened)));
        }
    }
}
