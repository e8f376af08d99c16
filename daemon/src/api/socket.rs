//! The listening sockets, of apps and for the operator: passed by the service manager, or made here.
//!
//! A path is taken over only from a dead socket of ours; whatever else is there is left alone. The final path never
//! exists with a wrong mode, and never before the daemon listens.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener as StdListener, UnixStream as StdStream};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, fchmod, flock};
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with,
};
use tokio::net::UnixListener;

use crate::error::{Error, Result};

/// Longest path of a Unix socket on Linux, without the final NUL.
const MAX_PATH: usize = 107;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1_024;

/// A listening socket, and what is needed to leave no trace of it.
#[derive(Debug)]
pub struct Bound {
    /// The listener, ready for [`serve()`](super::serve()).
    pub listener: UnixListener,
    /// Removes the socket file.
    pub file: SocketFile,
}

impl Bound {
    /// Where the socket is, as far as it is known.
    #[must_use]
    pub fn path(&self) -> Option<PathBuf> {
        let own = self.file.path().map(Path::to_owned);
        own.or_else(|| {
            let address = self.listener.local_addr().ok()?;
            address.as_pathname().map(Path::to_owned)
        })
    }
}

/// The file of a socket. Dropping it leaves the file: a dead socket is replaced at the next start.
#[derive(Debug)]
pub struct SocketFile(Option<Owned>);

#[derive(Debug)]
struct Owned {
    path: PathBuf,
    /// Device and inode: what makes the file ours.
    identity: (u64, u64),
    /// Held as long as the daemon lives; see [`lock`].
    _lock: File,
}

impl SocketFile {
    /// Where the socket is; `None` if the service manager owns it.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.0.as_ref().map(|owned| owned.path.as_path())
    }

    /// Removes the file on a clean exit, if it is still ours. A socket that the service manager passed is left alone.
    pub fn remove(self) {
        let Some(owned) = self.0 else { return };
        if identity(&owned.path).is_ok_and(|identity| identity == owned.identity)
            && let Err(cause) = std::fs::remove_file(&owned.path)
        {
            tracing::warn!(path = %owned.path.display(), %cause, "the socket cannot be removed");
        }
    }
}

/// The name under which the service manager passes the admin socket (`FileDescriptorName=`).
const ADMIN: &str = "admin";

/// What the service manager passed (`LISTEN_FDS`).
#[derive(Debug, Default)]
pub struct Passed {
    app: Option<UnixListener>,
    admin: Option<UnixListener>,
}

impl Passed {
    /// Takes the sockets that were passed to this process: the one named `admin`, and the first of the others, which is for
    /// apps whatever it is called. Must be called once, inside a tokio runtime with I/O.
    ///
    /// # Errors
    /// INTERNAL if one of them is no listening Unix socket.
    pub fn take() -> Result<Self> {
        let mut fds = listenfd::ListenFd::from_env();
        let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
        let names: Vec<&str> = names.split(':').collect();
        let failed = |cause: io::Error| {
            Error::internal(format!(
                "the socket that the service manager passed cannot be used: {cause}; use `ListenStream=` with a path"
            ))
        };
        let mut passed = Self::default();
        for index in 0..fds.len() {
            let place = if names.get(index) == Some(&ADMIN) {
                &mut passed.admin
            } else {
                &mut passed.app
            };
            if place.is_some() {
                tracing::warn!(
                    index,
                    "a socket of the service manager is one too many, and not used"
                );
                continue;
            }
            let listener = fds.take_unix_listener(index).map_err(failed)?;
            *place = listener.map(listener_of).transpose().map_err(failed)?;
        }
        Ok(passed)
    }

    /// The socket for apps: what was passed, else one bound to this path with these permissions.
    ///
    /// # Errors
    /// INTERNAL with the path and a remedy: another daemon answers there, something that is not a socket is there, the
    /// directory cannot be written, the path is too long.
    pub fn app(&mut self, path: &Path, mode: u32) -> Result<Bound> {
        open(self.app.take(), path, mode)
    }

    /// The admin socket, in the same way.
    ///
    /// # Errors
    /// As [`Passed::app`].
    pub fn admin(&mut self, path: &Path, mode: u32) -> Result<Bound> {
        open(self.admin.take(), path, mode)
    }
}

fn open(passed: Option<UnixListener>, path: &Path, mode: u32) -> Result<Bound> {
    match passed {
        Some(listener) => Ok(Bound {
            listener,
            file: SocketFile(None),
        }),
        None => bind_at(path, mode),
    }
}

fn listener_of(listener: StdListener) -> io::Result<UnixListener> {
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// Binds `path` with permissions `mode`. The missing parent directories are made with mode 0700. The socket is bound
/// under a temporary name next to the path and renamed when it listens, so that clients find the old socket, nothing,
/// or a working one. A lock file beside it (`.lock`, kept) makes two starting daemons take turns.
///
/// # Errors
/// As [`Passed::app`].
pub fn bind_at(path: &Path, mode: u32) -> Result<Bound> {
    let (directory, name) = match (path.parent(), path.file_name()) {
        (Some(directory), Some(name)) if path.is_absolute() => (directory, name),
        _ => return Err(refusal(path, "it must be an absolute path of a file")),
    };
    let temporary = directory.join(format!(".{:x}", std::process::id()));
    let longest = path.as_os_str().len().max(temporary.as_os_str().len());
    if longest > MAX_PATH {
        return Err(refusal(
            path,
            &format!(
                "it needs {longest} bytes, a Unix socket's path has at most {MAX_PATH}; choose a shorter one"
            ),
        ));
    }
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(directory)
        .map_err(|cause| refusal(path, &format!("its directory cannot be made: {cause}")))?;
    let mut lock_name = name.to_owned();
    lock_name.push(".lock");
    let lock = lock(&directory.join(lock_name)).map_err(|why| refusal(path, &why))?;
    check_free(path).map_err(|why| refusal(path, &why))?;

    let made = listen_at(&temporary, mode).and_then(|listener| {
        let identity = identity(&temporary)?;
        std::fs::rename(&temporary, path)?;
        Ok((listener_of(listener)?, identity))
    });
    match made {
        Ok((listener, identity)) => Ok(Bound {
            listener,
            file: SocketFile(Some(Owned {
                path: path.to_owned(),
                identity,
                _lock: lock,
            })),
        }),
        Err(cause) => {
            let _ = std::fs::remove_file(&temporary);
            Err(refusal(path, &cause.to_string()))
        }
    }
}

fn refusal(path: &Path, why: &str) -> Error {
    Error::internal(format!(
        "the socket `{}` cannot be used: {why}",
        path.display()
    ))
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let metadata = std::fs::symlink_metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

/// Takes the lock that the daemon on this path holds while it lives.
fn lock(path: &Path) -> Result<File, String> {
    let no_follow = rustix::fs::OFlags::NOFOLLOW.bits();
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(i32::try_from(no_follow).unwrap_or_default())
        .open(path)
        .map_err(|cause| {
            format!(
                "its lock file `{}` cannot be opened: {cause}",
                path.display()
            )
        })?;
    flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|cause| {
        if cause == rustix::io::Errno::WOULDBLOCK {
            "another mcp-sidecar runs on it; stop that one, or set another path".to_owned()
        } else {
            format!(
                "its lock file `{}` cannot be locked: {cause}",
                path.display()
            )
        }
    })?;
    Ok(file)
}

/// Whether the path may be taken: nothing is there, or a socket that nobody listens on.
fn check_free(path: &Path) -> Result<(), String> {
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(format!("it cannot be looked at: {cause}")),
    };
    if !metadata.file_type().is_socket() {
        return Err(
            "something that is not a socket is there; move it away, or set another path".to_owned(),
        );
    }
    match StdStream::connect(path) {
        Ok(_) => Err("a process answers on it; stop it, or set another path".to_owned()),
        Err(cause)
            if matches!(
                cause.kind(),
                io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound
            ) =>
        {
            Ok(())
        }
        Err(cause) => Err(format!(
            "whether a process listens on it cannot be told: {cause}"
        )),
    }
}

/// Listens at a path whose file has the mode from its first moment on.
fn listen_at(path: &Path, mode: u32) -> io::Result<StdListener> {
    match std::fs::remove_file(path) {
        Err(cause) if cause.kind() != io::ErrorKind::NotFound => return Err(cause),
        _ => {}
    }
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // Linux gives the file the socket's own mode, less the umask; what the umask took is given back below.
    fchmod(&socket, Mode::from_raw_mode(mode))?;
    bind(&socket, &SocketAddrUnix::new(path)?)?;
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{FileTypeExt, PermissionsExt};
    use std::path::Path;

    use tempfile::tempdir;

    use super::{StdListener, StdStream, bind_at};

    fn names(directory: &Path) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(directory)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[tokio::test]
    async fn a_new_socket_has_its_mode_and_its_directory_is_private() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("run/app.sock");
        for mode in [0o600, 0o660, 0o666] {
            let bound = bind_at(&path, mode).unwrap();
            let metadata = std::fs::symlink_metadata(&path).unwrap();
            assert!(metadata.file_type().is_socket());
            assert_eq!(metadata.permissions().mode() & 0o777, mode);
            let parent = std::fs::metadata(path.parent().unwrap()).unwrap();
            assert_eq!(parent.permissions().mode() & 0o777, 0o700);
            StdStream::connect(&path).unwrap();
            bound.file.remove();
            assert_eq!(names(path.parent().unwrap()), ["app.sock.lock"]);
        }
    }

    #[tokio::test]
    async fn a_dead_socket_is_replaced() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("app.sock");
        drop(StdListener::bind(&path).unwrap());
        let bound = bind_at(&path, 0o600).unwrap();
        StdStream::connect(&path).unwrap();
        // Neither dropping the file nor the listener removes it: the next start does.
        drop(bound);
        assert!(path.exists());
        bind_at(&path, 0o600).unwrap();
    }

    #[tokio::test]
    async fn a_live_daemon_is_left_alone() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("app.sock");
        let first = bind_at(&path, 0o600).unwrap();
        let error = bind_at(&path, 0o600).unwrap_err();
        assert!(error.message().contains("another mcp-sidecar"), "{error}");
        StdStream::connect(&path).unwrap();
        first.file.remove();

        let _foreign = StdListener::bind(&path).unwrap();
        let error = bind_at(&path, 0o600).unwrap_err();
        assert!(error.message().contains("a process answers"), "{error}");
        StdStream::connect(&path).unwrap();
    }

    #[tokio::test]
    async fn what_is_not_a_socket_is_left_alone() {
        let dir = tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        for path in [&file, &link, &dir.path().to_owned()] {
            let error = bind_at(path, 0o600).unwrap_err();
            assert!(error.message().contains("not a socket"), "{error}");
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_file_that_is_not_ours_any_more_stays() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("app.sock");
        let bound = bind_at(&path, 0o600).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _other = StdListener::bind(&path).unwrap();
        bound.file.remove();
        assert!(path.exists());
    }

    #[tokio::test]
    async fn a_path_that_is_too_long_says_so() {
        let dir = tempdir().unwrap();
        let path = dir.path().join("a".repeat(120));
        let error = bind_at(&path, 0o600).unwrap_err();
        assert!(error.message().contains("at most 107"), "{error}");
        assert!(bind_at(Path::new("relative.sock"), 0o600).is_err());
    }
}
