//! The key that seals: where it is, whether it is safe there, and how another one takes its place.
//!
//! A key is on disk, with its name, before anything is sealed with it. Never changes the mode or owner of what exists, and
//! gives up no key before the database says which one it goes by.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zeroize::Zeroizing;

use super::StoreConfig;
use super::keyring::Keyring;
use super::lock::{file_failed, sync_dir};
use super::seal::{KEY_LEN, Sealer};
use crate::error::{Error, Reason, Result};
use crate::model::vault::KeyBackend;

/// Name of the credential that systemd passes, see `LoadCredentialEncrypted=`.
const CREDENTIAL: &str = "vault-key";
/// Name of the key file in the data directory.
const KEY_FILE: &str = "vault.key";
/// What the name of a key that is to come has at its end.
const STAGED: &str = ".new";

/// A key. Wiped on drop.
pub(super) type Key = Zeroizing<[u8; KEY_LEN]>;

/// Where the key of a store is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum KeySource {
    /// A credential that the service manager provides; never made by the daemon.
    Credential(PathBuf),
    /// A file that the daemon makes if nothing was sealed yet.
    File(PathBuf),
    /// An item in the keyring of the session, made likewise.
    Keyring(Keyring),
}

impl KeySource {
    /// Where the configuration says.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`] if that is a credential and there is none.
    pub(super) fn find(config: &StoreConfig) -> Result<Self> {
        let credential = config.credentials_dir.as_ref();
        let credential = credential.map(|dir| dir.join(CREDENTIAL));
        let credential = credential.filter(|path| path.exists());
        let file = || {
            let configured = config.key_file.clone();
            Self::File(configured.unwrap_or_else(|| config.data_dir.join(KEY_FILE)))
        };
        match (config.key_backend, credential) {
            (KeyBackend::KeyFile, _) | (KeyBackend::Auto, None) => Ok(file()),
            (KeyBackend::Auto | KeyBackend::Credential, Some(path)) => Ok(Self::Credential(path)),
            (KeyBackend::Keyring, _) => Ok(Self::Keyring(Keyring::new(&config.data_dir))),
            (KeyBackend::Credential, None) => Err(failed(
                "missing",
                format!(
                    "`vault.backend` is `credential`, and the service manager passes no credential `{CREDENTIAL}`: add \
                     `LoadCredentialEncrypted={CREDENTIAL}:FILE` to the unit, or choose another backend"
                ),
            )),
        }
    }

    /// Where it is, for people.
    pub(super) fn place(&self) -> String {
        match self {
            Self::Credential(path) | Self::File(path) => path.display().to_string(),
            Self::Keyring(keyring) => keyring.place(),
        }
    }

    /// Whether the daemon itself may put a key there.
    pub(super) fn is_ours(&self) -> bool {
        matches!(self, Self::File(_) | Self::Keyring(_))
    }

    /// Finds the key with which the database is sealed. `check` is the stored key check if there is one; `in_use` says
    /// whether anything sealed is stored that must not be lost.
    ///
    /// With nothing sealed an absent key file is made (0600, synced before its first use) and another key is accepted. A
    /// rotation that was cut short behind its commit is finished.
    ///
    /// # Errors
    /// [`Reason::StoreFailed`] if the key is unreadable, none, or open to others; and, when something sealed is stored, if
    /// it is absent or another one than the one that sealed.
    pub(super) fn unlock(&self, check: Option<&[u8]>, in_use: bool) -> Result<Sealer> {
        let known = |sealer: &Sealer| check.is_some_and(|check| sealer.accepts(check));
        let current = self.current()?;
        let found = !current.is_empty();
        let mut first = None;
        for key in current {
            let sealer = Sealer::new(&key)?;
            if known(&sealer) {
                return Ok(sealer);
            }
            first = first.or(Some(sealer));
        }
        let place = self.place();
        if !in_use {
            return first.map_or_else(|| Sealer::new(&*self.create()?), Ok);
        }
        if let Some(key) = self.staged()? {
            let sealer = Sealer::new(&key)?;
            if known(&sealer) {
                self.promote(&key)?;
                tracing::info!(%place, "a rotation of the key that was cut short is finished");
                return Ok(sealer);
            }
        }
        if found {
            return Err(failed(
                "wrong_key",
                format!(
                    "the key in `{place}` is not the one that sealed the secrets in the database: put the right key back; \
                     nothing was changed"
                ),
            ));
        }
        Err(failed(
            "missing",
            format!(
                "the key `{place}` is missing, and the database holds secrets that only it can open: put the key back; \
                 nothing was changed"
            ),
        ))
    }

    /// The keys that may be the one in use. In a keyring, one that is to come is among them.
    fn current(&self) -> Result<Vec<Key>> {
        let key = match self {
            Self::Credential(path) => read(path, Guard::Credential)?,
            Self::File(path) => read(path, Guard::File)?,
            Self::Keyring(keyring) => return keyring.keys(),
        };
        Ok(key.into_iter().collect())
    }

    fn staged(&self) -> Result<Option<Key>> {
        match self {
            Self::Credential(_) | Self::Keyring(_) => Ok(None),
            Self::File(path) => read(&staged_path(path), Guard::File),
        }
    }

    /// Makes the first key.
    fn create(&self) -> Result<Key> {
        let key = generate()?;
        self.stage(&key)?;
        if let Self::File(path) = self {
            // Whole or not at all; and never in place of one that came meanwhile.
            let staged = staged_path(path);
            std::fs::hard_link(&staged, path)
                .map_err(|cause| file_failed("create", path, &cause))?;
            std::fs::remove_file(&staged)
                .map_err(|cause| file_failed("remove", &staged, &cause))?;
            sync_parent(path)?;
        }
        let place = self.place();
        if !self.current()?.contains(&key) {
            return Err(failed(
                "not_kept",
                format!(
                    "a key was written to `{place}` and cannot be read back: see the file system, or choose another place \
                     with `vault.key_file`"
                ),
            ));
        }
        tracing::info!(%place, "a new key for sealing secrets was created: back it up");
        Ok(key)
    }

    /// Puts the key that is to come beside the one in use. Kept when it returns.
    pub(super) fn stage(&self, key: &Key) -> Result<()> {
        let path = match self {
            Self::Credential(path) => return Err(not_ours(path)),
            Self::File(path) => path,
            Self::Keyring(keyring) => return keyring.add(key),
        };
        let staged = staged_path(path);
        // One that was not used: the key in use has just opened the database.
        match std::fs::remove_file(&staged) {
            Err(cause) if cause.kind() != ErrorKind::NotFound => {
                return Err(file_failed("remove", &staged, &cause));
            }
            _ => {}
        }
        write_new(&staged, key)?;
        sync_parent(&staged)
    }

    /// Puts the key that was to come in place of the one that was in use.
    pub(super) fn promote(&self, key: &Key) -> Result<()> {
        let path = match self {
            Self::Credential(path) => return Err(not_ours(path)),
            Self::File(path) => path,
            Self::Keyring(keyring) => return keyring.keep_only(key),
        };
        let staged = staged_path(path);
        std::fs::rename(&staged, path).map_err(|cause| file_failed("rename", &staged, &cause))?;
        sync_parent(path)
    }
}

/// The key in a file that somebody else looks after.
pub(super) fn given(path: &Path) -> Result<Key> {
    read(path, Guard::File)?.ok_or_else(|| {
        let shown = path.display();
        failed("missing", format!("there is no key file `{shown}`"))
    })
}

/// A random key.
pub(super) fn generate() -> Result<Key> {
    let mut key = Zeroizing::new([0; KEY_LEN]);
    aws_lc_rs::rand::fill(&mut *key).map_err(|_| Error::internal("no random numbers"))?;
    Ok(key)
}

/// An error of the vault. The fact `vault` tells programs that trying again does not help.
pub(super) fn failed(what: &'static str, message: String) -> Error {
    Error::new(Reason::StoreFailed, message).with("vault", what)
}

fn not_ours(path: &Path) -> Error {
    failed(
        "not_ours",
        format!(
            "the key in `{}` is passed by the service manager, and only changed there",
            path.display()
        ),
    )
}

/// Who has to keep others away from a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Guard {
    /// systemd: may belong to root, and may show a group mode, which is the mask of its access list.
    Credential,
    /// The file's own mode.
    File,
}

/// Reads 32 bytes, or 64 hexadecimal digits with or without a line end; `None` if there is no such file.
fn read(path: &Path, guard: Guard) -> Result<Option<Key>> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(cause) if cause.kind() == ErrorKind::NotFound => return Ok(None),
        Err(cause) => return Err(file_failed("open", path, &cause).with("vault", "unreadable")),
    };
    check_access(path, guard, &file)?;
    let mut text = Zeroizing::new(Vec::with_capacity(256));
    Read::take(&mut file, 256)
        .read_to_end(&mut text)
        .map_err(|cause| file_failed("read", path, &cause))?;
    let key = match <[u8; KEY_LEN]>::try_from(text.as_slice()) {
        Ok(bytes) => Some(Zeroizing::new(bytes)),
        Err(_) => std::str::from_utf8(&text).ok().and_then(from_hex),
    };
    let key = key.ok_or_else(|| {
        failed(
            "no_key",
            format!(
                "`{}` does not hold a key: it must be 32 bytes, or 64 hexadecimal digits",
                path.display()
            ),
        )
    })?;
    Ok(Some(key))
}

/// A key in hexadecimal digits, with or without a line end.
pub(super) fn from_hex(text: &str) -> Option<Key> {
    let digits = text.trim_ascii().as_bytes();
    if digits.len() != 2 * KEY_LEN {
        return None;
    }
    let mut key = Zeroizing::new([0; KEY_LEN]);
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        let high = pair.first().copied().and_then(hex_digit)?;
        let low = pair.last().copied().and_then(hex_digit)?;
        *byte = (high << 4) | low;
    }
    Some(key)
}

/// A key as hexadecimal digits.
pub(super) fn to_hex(key: &Key) -> Zeroizing<String> {
    // Exactly large enough: a reallocation would leave a copy behind that nobody wipes.
    let mut text = Zeroizing::new(String::with_capacity(2 * KEY_LEN));
    for byte in key.iter() {
        for digit in [byte >> 4, byte & 0xf] {
            text.extend(char::from_digit(u32::from(digit), 16));
        }
    }
    text
}

fn hex_digit(digit: u8) -> Option<u8> {
    let value = char::from(digit).to_digit(16)?;
    u8::try_from(value).ok()
}

/// Refuses a key that others could read.
fn check_access(path: &Path, guard: Guard, file: &File) -> Result<()> {
    let found = file
        .metadata()
        .map_err(|cause| file_failed("inspect", path, &cause))?;
    let own = rustix::process::geteuid().as_raw();
    let shown = path.display();
    let unsafe_key = |message: String| Err(failed("unsafe", message));
    if !found.is_file() {
        return unsafe_key(format!("the key file `{shown}` is not a file"));
    }
    if found.uid() != own && found.uid() != 0 {
        return unsafe_key(format!(
            "the key file `{shown}` belongs to uid {}, and the daemon runs as uid {own}: run `chown {own} {shown}`",
            found.uid()
        ));
    }
    let mode = found.mode() & 0o777;
    let foreign = match guard {
        Guard::Credential => 0o027,
        Guard::File => 0o077,
    };
    if mode & foreign != 0 {
        return unsafe_key(format!(
            "the key file `{shown}` has mode {mode:04o}, so others may read or change it: run `chmod 600 {shown}`"
        ));
    }
    Ok(())
}

/// Writes a key to a file that must not exist. Its content is on disk when it returns.
fn write_new(path: &Path, key: &Key) -> Result<()> {
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| {
            file.write_all(&**key)?;
            file.sync_all()
        });
    written.map_err(|cause| file_failed("create", path, &cause))
}

fn staged_path(path: &Path) -> PathBuf {
    beside(path, STAGED)
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

fn sync_parent(path: &Path) -> Result<()> {
    match path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        Some(dir) => sync_dir(dir),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn config(root: &Path) -> StoreConfig {
        StoreConfig {
            credentials_dir: Some(root.join("credentials")),
            ..StoreConfig::new(root)
        }
    }

    fn put(path: &Path, text: &[u8], mode: u32) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }

    fn file(root: &Path) -> (KeySource, PathBuf) {
        let path = root.join(KEY_FILE);
        (KeySource::File(path.clone()), path)
    }

    fn check_of(byte: u8) -> Vec<u8> {
        Sealer::new(&[byte; KEY_LEN]).unwrap().key_check().unwrap()
    }

    #[test]
    fn the_credential_comes_first_and_may_be_hexadecimal() {
        let root = tempfile::tempdir().unwrap();
        let find = |key_backend| {
            KeySource::find(&StoreConfig {
                key_backend,
                ..config(root.path())
            })
        };
        let file = KeySource::File(root.path().join(KEY_FILE));
        assert_eq!(find(KeyBackend::Auto).unwrap(), file);
        let missing = find(KeyBackend::Credential).unwrap_err();
        assert!(
            missing.message().contains("LoadCredentialEncrypted="),
            "{missing}"
        );
        let path = root.path().join("credentials").join(CREDENTIAL);
        put(
            &path,
            format!("{}\n", "0a".repeat(KEY_LEN)).as_bytes(),
            0o440,
        );
        let credential = KeySource::Credential(path);
        assert_eq!(find(KeyBackend::Auto).unwrap(), credential);
        assert_eq!(find(KeyBackend::Credential).unwrap(), credential);
        assert_eq!(find(KeyBackend::KeyFile).unwrap(), file);
        credential.unlock(Some(&check_of(10)), true).unwrap();
        assert!(credential.stage(&generate().unwrap()).is_err());
    }

    #[test]
    fn a_key_that_others_may_read_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let (source, path) = file(root.path());
        source.unlock(None, false).unwrap();
        let mode = std::fs::metadata(&path).unwrap().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let names: Vec<_> = std::fs::read_dir(root.path()).unwrap().collect();
        assert_eq!(names.len(), 1, "{names:?}");
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o640)).unwrap();
        let refused = source.unlock(None, false).err().unwrap();
        assert!(refused.message().contains("chmod 600"), "{refused}");
    }

    #[test]
    fn what_is_no_key_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let (source, path) = file(root.path());
        for text in ["", "short", &"g".repeat(64), &"a".repeat(65)] {
            put(&path, text.as_bytes(), 0o600);
            assert!(source.unlock(None, false).is_err(), "{text}");
            assert_eq!(std::fs::read(&path).unwrap(), text.as_bytes());
        }
    }

    #[test]
    fn a_key_that_came_meanwhile_is_not_replaced() {
        let root = tempfile::tempdir().unwrap();
        let (source, path) = file(root.path());
        put(&path, &[7; KEY_LEN], 0o600);
        assert!(source.create().is_err());
        assert_eq!(std::fs::read(&path).unwrap(), [7; KEY_LEN]);
    }

    #[test]
    fn a_key_that_is_to_come_counts_only_if_the_database_goes_by_it() {
        let root = tempfile::tempdir().unwrap();
        let (source, path) = file(root.path());
        let staged = staged_path(&path);
        put(&path, &[1; KEY_LEN], 0o600);
        put(&staged, &[2; KEY_LEN], 0o600);
        source.unlock(Some(&check_of(1)), true).unwrap();
        assert!(staged.exists());
        let wrong = source.unlock(Some(&check_of(3)), true).err().unwrap();
        assert!(wrong.message().contains("not the one"), "{wrong}");
        assert!(staged.exists());
        source.unlock(Some(&check_of(2)), true).unwrap();
        assert!(!staged.exists());
        assert_eq!(std::fs::read(&path).unwrap(), [2; KEY_LEN]);
    }
}
