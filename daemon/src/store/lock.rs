//! The data directory: private to the daemon's user, and used by one daemon at a time.
//!
//! Never changes the mode or owner of something that exists, and never deletes the lock file: a deleted lock file could
//! be held by one daemon while another locks its successor.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::error::{Error, Reason, Result};

/// Name of the lock file in the data directory.
const LOCK_FILE: &str = "lock";

/// Exclusive use of a data directory. Released on drop, and by the kernel when the process ends in any way.
#[derive(Debug)]
pub(super) struct DirLock {
    _file: File,
}

impl DirLock {
    /// Locks the directory without waiting and leaves this process's id in the lock file.
    pub(super) fn acquire(dir: &Path) -> Result<Self> {
        let path = dir.join(LOCK_FILE);
        let mut file = private_file(&path).map_err(|cause| file_failed("open", &path, &cause))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(held(dir, &mut file)),
            Err(TryLockError::Error(cause)) => return Err(file_failed("lock", &path, &cause)),
        }
        note_holder(&mut file).map_err(|cause| file_failed("write", &path, &cause))?;
        Ok(Self { _file: file })
    }
}

fn note_holder(file: &mut File) -> io::Result<()> {
    file.set_len(0)?;
    file.rewind()?;
    writeln!(file, "{}", std::process::id())
}

fn held(dir: &Path, file: &mut File) -> Error {
    let mut holder = String::new();
    let known = file.take(32).read_to_string(&mut holder).is_ok();
    let message = match holder.trim().parse::<u32>() {
        Ok(pid) if known => format!(
            "the data directory `{}` is in use by the daemon with process id {pid}: stop that one, or give this one \
             another directory",
            dir.display()
        ),
        _ => format!(
            "the data directory `{}` is in use by another daemon: stop that one, or give this one another directory",
            dir.display()
        ),
    };
    Error::new(Reason::StoreFailed, message)
}

/// Creates the directory with mode 0700 if it is absent, and refuses one that others can read or that is not ours.
pub(super) fn prepare_dir(dir: &Path) -> Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|cause| file_failed("create", dir, &cause))?;
    let found = std::fs::metadata(dir).map_err(|cause| file_failed("inspect", dir, &cause))?;
    let own = rustix::process::geteuid().as_raw();
    let shown = dir.display();
    if found.uid() != own {
        return Err(unsafe_dir(format!(
            "the data directory `{shown}` belongs to uid {}, and the daemon runs as uid {own}: run `chown {own} \
             {shown}`, or choose another directory",
            found.uid()
        )));
    }
    let mode = found.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(unsafe_dir(format!(
            "the data directory `{shown}` has mode {mode:04o}, so others can reach into it: run `chmod 700 {shown}`"
        )));
    }
    Ok(())
}

fn unsafe_dir(message: String) -> Error {
    Error::new(Reason::StoreFailed, message).with("vault", "unsafe")
}

/// Opens a file for reading and writing; creates it with mode 0600 if it is absent.
pub(super) fn private_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
}

/// Makes the names in a directory durable.
pub(super) fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|handle| handle.sync_all())
        .map_err(|cause| file_failed("sync", dir, &cause))
}

/// The error for a file operation that failed.
pub(super) fn file_failed(verb: &str, path: &Path, cause: &io::Error) -> Error {
    Error::new(
        Reason::StoreFailed,
        format!("cannot {verb} `{}`: {cause}", path.display()),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_new_directory_is_private() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("a/b");
        prepare_dir(&dir).unwrap();
        assert_eq!(std::fs::metadata(&dir).unwrap().mode() & 0o777, 0o700);
        prepare_dir(&dir).unwrap();
    }

    #[test]
    fn an_open_directory_is_refused_with_the_remedy() {
        let root = tempfile::tempdir().unwrap();
        std::fs::set_permissions(root.path(), PermissionsExt::from_mode(0o750)).unwrap();
        let refused = prepare_dir(root.path()).unwrap_err();
        assert_eq!(refused.reason(), Reason::StoreFailed);
        assert!(refused.message().contains("chmod 700"), "{refused}");
    }

    #[test]
    fn the_second_lock_names_the_holder() {
        let root = tempfile::tempdir().unwrap();
        let first = DirLock::acquire(root.path()).unwrap();
        let refused = DirLock::acquire(root.path()).unwrap_err();
        let pid = std::process::id().to_string();
        assert!(refused.message().contains(&pid), "{refused}");
        let dir = root.path().display().to_string();
        assert!(refused.message().contains(&dir), "{refused}");
        drop(first);
        DirLock::acquire(root.path()).unwrap();
    }
}
