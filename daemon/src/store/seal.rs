//! Encryption at rest: AES-256-GCM under one key, each blob bound to its purpose and its server.
//!
//! Never logs, never writes plain text anywhere, and never replaces or deletes a key or a blob that it cannot open.
//!
//! A blob is `version (1 byte) | nonce (12) | cipher text | tag (16)`. The nonce is random, which is safe for 2^32
//! blobs under one key. The associated data is purpose, namespace and server id, so that a blob which is copied to
//! another row does not open there.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use zeroize::Zeroizing;

use super::lock::{file_failed, sync_dir};
use crate::base::{Secret, ServerKey};
use crate::error::{Error, Reason, Result};
use crate::model::spec::NamedSecret;
use crate::model::status::Session;

/// Length of the key in bytes.
const KEY_LEN: usize = 32;
/// The first byte of every blob.
const VERSION: u8 = 1;
/// Name of the credential that systemd passes, see `LoadCredentialEncrypted=`.
const CREDENTIAL: &str = "vault-key";
/// Name of the key file in the data directory.
const KEY_FILE: &str = "vault.key";
/// What the values of headers and environment variables are sealed for.
const SERVER_SECRETS: &str = "server-secrets";
/// What a session of a server is sealed for.
const SESSION: &str = "session";
/// What the key check is sealed for.
const KEY_CHECK: &str = "key-check";

/// Seals and opens. Holds the key; `Debug` shows nothing, and the memory is wiped on drop.
pub(super) struct Sealer {
    key: RandomizedNonceKey,
}

/// Where the key of a store is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum KeySource {
    /// A credential that the service manager provides; never created by the daemon.
    Credential(PathBuf),
    /// A file that the daemon creates if nothing was sealed yet.
    File(PathBuf),
}

impl KeySource {
    /// The credential if it exists, else the configured file, else `vault.key` in the data directory.
    pub(super) fn find(
        credentials_dir: Option<&Path>,
        key_file: Option<&Path>,
        data_dir: &Path,
    ) -> Self {
        let credential = credentials_dir.map(|dir| dir.join(CREDENTIAL));
        match credential.filter(|path| path.exists()) {
            Some(path) => Self::Credential(path),
            None => Self::File(key_file.map_or_else(|| data_dir.join(KEY_FILE), Path::to_path_buf)),
        }
    }

    fn path(&self) -> &Path {
        match self {
            Self::Credential(path) | Self::File(path) => path,
        }
    }
}

impl Sealer {
    /// Loads the key. `check` is the stored key check if there is one; `in_use` says whether anything sealed is stored.
    ///
    /// With nothing sealed an absent key file is created (0600, synced before its first use) and another key is
    /// accepted.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`] if the file is unreadable, not a key, or open to others; and, when something sealed is
    /// stored, if it is absent or holds another key than the one that sealed.
    pub(super) fn load(source: &KeySource, check: Option<&[u8]>, in_use: bool) -> Result<Self> {
        let path = source.path();
        let key = match File::open(path) {
            Ok(file) => read_key(source, file)?,
            Err(cause) if cause.kind() == ErrorKind::NotFound && !in_use => create_key(path)?,
            Err(cause) if cause.kind() == ErrorKind::NotFound => {
                return Err(failed(format!(
                    "the key file `{}` is missing, and the database holds secrets that only it can open: put the key \
                     back; nothing was changed",
                    path.display()
                )));
            }
            Err(cause) => return Err(file_failed("open", path, &cause)),
        };
        let sealer = Self::new(&key)?;
        if in_use && !check.is_some_and(|check| sealer.accepts(check)) {
            return Err(failed(format!(
                "the key in `{}` is not the one that sealed the secrets in the database: put the right key back; \
                 nothing was changed",
                path.display()
            )));
        }
        Ok(sealer)
    }

    fn new(key: &[u8; KEY_LEN]) -> Result<Self> {
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
        let Session { id, version, hello } = session;
        self.seal(
            &server_data(SESSION, server),
            &join(&[id.expose(), version, hello])?,
        )
    }

    /// The session that was sealed for this server; `None` if it does not open.
    pub(super) fn open_session(&self, server: &ServerKey, blob: &[u8]) -> Option<Session> {
        let plain = self.open(&server_data(SESSION, server), blob)?;
        let values: [Secret<String>; 3] = split(&plain)?.try_into().ok()?;
        let [id, version, hello] = values;
        Some(Session {
            id,
            version: version.expose().clone(),
            hello: hello.expose().clone(),
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
    let server = [server.namespace.as_str(), server.id.as_str()];
    associated(purpose, &[server[0], server[1], name])
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

/// Reads 32 bytes, or 64 hexadecimal digits with or without a line end.
fn read_key(source: &KeySource, mut file: File) -> Result<Zeroizing<[u8; KEY_LEN]>> {
    let path = source.path();
    check_access(source, &file)?;
    let mut text = Zeroizing::new(Vec::with_capacity(256));
    Read::take(&mut file, 256)
        .read_to_end(&mut text)
        .map_err(|cause| file_failed("read", path, &cause))?;
    let mut key = Zeroizing::new([0; KEY_LEN]);
    if text.len() == KEY_LEN {
        key.copy_from_slice(&text);
        return Ok(key);
    }
    let digits = text.trim_ascii();
    let bad = || {
        failed(format!(
            "`{}` does not hold a key: it must be 32 bytes, or 64 hexadecimal digits",
            path.display()
        ))
    };
    if digits.len() != 2 * KEY_LEN {
        return Err(bad());
    }
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        let high = pair.first().copied().and_then(hex_digit).ok_or_else(bad)?;
        let low = pair.last().copied().and_then(hex_digit).ok_or_else(bad)?;
        *byte = (high << 4) | low;
    }
    Ok(key)
}

fn hex_digit(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

/// Refuses a key that others could read. A credential of systemd may belong to root and may show a group mode, which is
/// the mask of its access list.
fn check_access(source: &KeySource, file: &File) -> Result<()> {
    let path = source.path();
    let found = file
        .metadata()
        .map_err(|cause| file_failed("inspect", path, &cause))?;
    let own = rustix::process::geteuid().as_raw();
    let shown = path.display();
    if !found.is_file() {
        return Err(failed(format!("the key file `{shown}` is not a file")));
    }
    if found.uid() != own && found.uid() != 0 {
        return Err(failed(format!(
            "the key file `{shown}` belongs to uid {}, and the daemon runs as uid {own}: run `chown {own} {shown}`",
            found.uid()
        )));
    }
    let mode = found.mode() & 0o777;
    let foreign = match source {
        KeySource::Credential(_) => 0o027,
        KeySource::File(_) => 0o077,
    };
    if mode & foreign != 0 {
        return Err(failed(format!(
            "the key file `{shown}` has mode {mode:04o}, so others may read or change it: run `chmod 600 {shown}`"
        )));
    }
    Ok(())
}

/// Makes a random key. On disk, with its name, before it returns.
fn create_key(path: &Path) -> Result<Zeroizing<[u8; KEY_LEN]>> {
    let mut key = Zeroizing::new([0; KEY_LEN]);
    aws_lc_rs::rand::fill(&mut *key).map_err(|_| Error::internal("no random numbers"))?;
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| {
            file.write_all(&*key)?;
            file.sync_all()
        });
    written.map_err(|cause| file_failed("create", path, &cause))?;
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        sync_dir(dir)?;
    }
    tracing::info!(path = %path.display(), "a new key for sealing secrets was created: back it up");
    Ok(key)
}

fn failed(message: String) -> Error {
    Error::new(Reason::StoreFailed, message)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

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

    #[test]
    fn the_credential_comes_first_and_may_be_hexadecimal() {
        let root = tempfile::tempdir().unwrap();
        let find = || KeySource::find(Some(root.path()), None, root.path());
        assert_eq!(find(), KeySource::File(root.path().join(KEY_FILE)));
        let path = root.path().join(CREDENTIAL);
        std::fs::write(&path, format!("{}\n", "0a".repeat(KEY_LEN))).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o440)).unwrap();
        assert_eq!(find(), KeySource::Credential(path));
        let check = Sealer::new(&[10; KEY_LEN]).unwrap().key_check().unwrap();
        Sealer::load(&find(), Some(&check), true).unwrap();
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let source = KeySource::File(root.path().join(KEY_FILE));
        Sealer::load(&source, None, false).unwrap();
        let mode = std::fs::metadata(source.path()).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o600);
        std::fs::set_permissions(source.path(), PermissionsExt::from_mode(0o640)).unwrap();
        let refused = Sealer::load(&source, None, false).err().unwrap();
        assert!(refused.message().contains("chmod 600"), "{refused}");
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let source = KeySource::File(root.path().join(KEY_FILE));
        for text in ["", "short", &"g".repeat(64), &"a".repeat(65)] {
            let mut file = super::super::lock::private_file(source.path()).unwrap();
            file.set_len(0).unwrap();
            file.write_all(text.as_bytes()).unwrap();
            assert!(Sealer::load(&source, None, false).is_err(), "{text}");
        }
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
