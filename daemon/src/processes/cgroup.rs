//! A cgroup for each family, where the daemon may make some (cgroups(7), version 2).
//!
//! What is born in a cgroup stays there whatever it forks, hides or leaves, so membership needs nobody's help; and the
//! kernel ends all of it in one stroke. Lies below the daemon's own cgroup and enables no controller, so the rule against
//! processes in inner cgroups does not apply. Everything here is small reads and writes that may block for some
//! milliseconds.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

/// A directory is named so, and then after the marker of its family.
const NAME: &str = "mcp-sidecar.";
/// Most that is read of one file of the kernel, in bytes.
const LENGTH: u64 = 16 << 20;
/// Most cgroups that a family may have made inside its own and that are removed with it.
const NESTED: usize = 10_000;
/// How often going home is tried: it fails only when the kernel has no memory, or when somebody has changed our cgroup.
const RETURNS: usize = 3;

/// The cgroup that this process lives in, and makes others in.
#[derive(Clone, Debug)]
pub(super) struct Home(PathBuf);

/// The cgroup of one family. Dropping it removes it, if nobody is in it.
#[derive(Debug)]
pub(super) struct Cgroup {
    home: Home,
    path: PathBuf,
}

/// This process is in a family's cgroup, with every thread, and what it starts is born there. Dropping it goes home.
#[derive(Debug)]
pub(super) struct Visit<'a>(&'a Home);

impl Home {
    /// Looks for it; changes nothing.
    ///
    /// # Errors
    /// Says why there is none.
    pub(super) fn find() -> io::Result<Self> {
        let own = own_path()?;
        let mounts = read(Path::new("/proc/self/mountinfo"))?;
        for path in places(&mounts, &own) {
            // In the root of all cgroups nothing is delegated to anybody. It has no events.
            if is_ours(&path) && path.join("cgroup.events").exists() {
                return Ok(Self(path));
            }
        }
        Err(io::Error::other(
            "the daemon is in no cgroup of version 2 but the root",
        ))
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Makes a cgroup, goes there and comes back.
    ///
    /// # Errors
    /// When one of it is not possible; says where.
    pub(super) fn prove(&self, marker: &str) -> io::Result<()> {
        let proof = || -> io::Result<bool> {
            let trial = self.make(marker)?;
            drop(trial.enter()?);
            Ok(is_ours(&self.0))
        };
        let at = |what: &dyn std::fmt::Display| format!("{}: {what}", self.0.display());
        match proof() {
            Ok(true) => Ok(()),
            Ok(false) => Err(io::Error::other(at(&"there is no way back"))),
            Err(cause) => Err(io::Error::new(cause.kind(), at(&cause))),
        }
    }

    /// Makes the cgroup of a family.
    ///
    /// # Errors
    /// When there may not be another one, or none at all.
    pub(super) fn make(&self, marker: &str) -> io::Result<Cgroup> {
        let path = self.0.join(format!("{NAME}{marker}"));
        std::fs::create_dir(&path)?;
        let home = self.clone();
        Ok(Cgroup { home, path })
    }

    /// Those that are there already, by their markers.
    pub(super) fn made(&self, wanted: impl Fn(&str) -> bool) -> Vec<Cgroup> {
        let entries = std::fs::read_dir(&self.0).into_iter().flatten().flatten();
        let wanted = entries.filter(|entry| {
            let name = entry.file_name();
            name.to_str()
                .and_then(|name| name.strip_prefix(NAME))
                .is_some_and(&wanted)
        });
        let cgroup = |entry: std::fs::DirEntry| Cgroup {
            home: self.clone(),
            path: entry.path(),
        };
        wanted.map(cgroup).collect()
    }
}

impl Cgroup {
    /// Goes there. Nothing else may be started meanwhile.
    ///
    /// # Errors
    /// When that is not possible; this process stays where it is.
    pub(super) fn enter(&self) -> io::Result<Visit<'_>> {
        join(&self.path)?;
        Ok(Visit(&self.home))
    }

    /// Whether a process lives in it, or in one that was made below it. Those that have ended do not count.
    pub(super) fn populated(&self) -> bool {
        let events = read(&self.path.join("cgroup.events")).unwrap_or_default();
        is_populated(&events) && !self.holds_us()
    }

    /// Kills everything in it and below it at once. A kernel before 5.14 cannot do that: there it only stops all of it, so
    /// that nothing can be started any more, and whoever calls this goes on to kill every process that is found then.
    pub(super) fn kill(&self) {
        if !self.populated() {
            return;
        }
        let killed = match put(&self.path.join("cgroup.kill"), b"1\n") {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => {
                put(&self.path.join("cgroup.freeze"), b"1\n")
            }
            outcome => outcome,
        };
        if let Err(cause) = killed {
            tracing::warn!(cgroup = %self.path.display(), %cause, "a cgroup cannot be killed as a whole");
        }
    }

    /// Removes it with all that was made below it, unless a process lives there.
    pub(super) fn remove(&self) {
        if std::fs::remove_dir(&self.path).is_ok() || self.populated() {
            return;
        }
        let mut below = vec![self.path.clone()];
        let mut next = 0;
        while let Some(path) = below.get(next)
            && below.len() < NESTED
        {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            let directories =
                entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
            let paths: Vec<_> = directories.map(|entry| entry.path()).collect();
            below.extend(paths);
            next += 1;
        }
        for path in below.iter().rev() {
            let _ = std::fs::remove_dir(path);
        }
    }

    /// Whether this process did not get home from it.
    fn holds_us(&self) -> bool {
        let own = own_path().unwrap_or_default();
        own.components()
            .any(|part| Some(part.as_os_str()) == self.path.file_name())
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        self.remove();
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        let mut outcome = Ok(());
        for _ in 0..RETURNS {
            outcome = join(&self.0.0);
            if outcome.is_ok() {
                return;
            }
        }
        if let Err(cause) = outcome {
            let home = self.0.path().display();
            tracing::error!(%home, %cause, "the daemon cannot leave the cgroup of a stdio server");
        }
    }
}

/// The markers of the cgroups that a process lives in, which it cannot hide.
pub(super) fn markers(pid: i32) -> Vec<String> {
    let text = read(Path::new(&format!("/proc/{pid}/cgroup"))).unwrap_or_default();
    let path = unified(&text).unwrap_or_default();
    let names = path.components().filter_map(|part| match part {
        Component::Normal(name) => name.to_str()?.strip_prefix(NAME),
        _ => None,
    });
    names.map(str::to_owned).collect()
}

fn own_path() -> io::Result<PathBuf> {
    let text = read(Path::new("/proc/self/cgroup"))?;
    unified(&text).ok_or_else(|| io::Error::other("there are no cgroups of version 2"))
}

/// Whether this process is a member of the cgroup in this directory.
fn is_ours(path: &Path) -> bool {
    let members = read(&path.join("cgroup.procs")).unwrap_or_default();
    let own = std::process::id().to_string();
    lines(&members).any(|line| line == own.as_bytes())
}

/// Moves this process, with every thread.
fn join(path: &Path) -> io::Result<()> {
    put(&path.join("cgroup.procs"), b"0\n")
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(LENGTH).read_to_end(&mut text)?;
    Ok(text)
}

fn put(path: &Path, text: &[u8]) -> io::Result<()> {
    File::options().write(true).open(path)?.write_all(text)
}

fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n')
}

/// The path of version 2 in `/proc/PID/cgroup`: the line of hierarchy 0, which has no controllers.
fn unified(text: &[u8]) -> Option<PathBuf> {
    let path = lines(text).find_map(|line| line.strip_prefix(b"0::"))?;
    Some(PathBuf::from(OsStr::from_bytes(path)))
}

/// Whether `cgroup.events` tells of a living member.
fn is_populated(events: &[u8]) -> bool {
    lines(events).any(|line| line == b"populated 1")
}

/// Where a cgroup may be seen: one directory for each mount of version 2 (`/proc/self/mountinfo`) that shows it.
fn places(mounts: &[u8], cgroup: &Path) -> Vec<PathBuf> {
    let place = |line: &[u8]| {
        let words: Vec<_> = line.split(|byte| *byte == b' ').collect();
        // ID PARENT DEVICE ROOT POINT OPTIONS [FIELD...] - TYPE ...
        let dash = words.iter().position(|word| word == b"-")?;
        if words.get(dash + 1) != Some(&&b"cgroup2"[..]) {
            return None;
        }
        let (root, point) = (unescaped(words.get(3)?), unescaped(words.get(4)?));
        let below = cgroup.strip_prefix(root).ok()?;
        // Above the root of our namespace there is nothing to be seen.
        let climbs = below.components().any(|part| part == Component::ParentDir);
        // By parts, so that there is no slash at the end.
        (!climbs).then(|| Path::new(&point).join(below).components().collect())
    };
    lines(mounts).filter_map(place).collect()
}

/// A word of `mountinfo`, in which blanks and backslashes are written in octal (`\040`).
fn unescaped(word: &[u8]) -> OsString {
    let mut text = Vec::with_capacity(word.len());
    let mut rest = word;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if let (
            b'\\',
            [
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ],
        ) = (first, tail)
        {
            text.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
            rest = after;
        } else {
            text.push(*first);
        }
    }
    OsString::from_vec(text)
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::{is_populated, places, unified};

    #[test]
    fn the_path_is_that_of_version_2() {
        let path = |text: &[u8]| unified(text);
        assert_eq!(path(b"0::/a/b c\n"), Some("/a/b c".into()));
        assert_eq!(
            path(b"2:cpu:/other\n1:name=systemd:/0::/x\n0::/\n"),
            Some("/".into())
        );
        assert_eq!(path(b"0::/:a\xff\n").unwrap().as_os_str().len(), 4);
        for none in [&b""[..], b"1:memory:/a\n", b"10::/a\n"] {
            assert_eq!(path(none), None);
        }
    }

    #[test]
    fn a_cgroup_is_found_where_it_is_mounted() {
        let found = |mounts: &str, cgroup: &str| places(mounts.as_bytes(), Path::new(cgroup));
        let one = |path: &str| vec![PathBuf::from(path)];
        let plain = "31 23 0:28 / /sys/fs/cgroup ro,nosuid shared:9 - cgroup2 cgroup2 rw\n";
        assert_eq!(found(plain, "/"), one("/sys/fs/cgroup"));
        assert_eq!(found(plain, "/a/b"), one("/sys/fs/cgroup/a/b"));
        assert_eq!(found(plain, "/../a"), Vec::<PathBuf>::new());

        // Version 1 beside it, fields that are optional, and a mount that shows only a part.
        let mixed = "30 23 0:27 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n\
            32 30 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
            33 30 0:30 / /sys/fs/cgroup/unified rw shared:1 master:2 - cgroup2 none rw\n\
            34 23 0:30 /a\\040b /mnt/c\\134d rw - cgroup2 none rw\n";
        assert_eq!(found(mixed, "/x"), one("/sys/fs/cgroup/unified/x"));
        assert_eq!(
            found(mixed, "/a b/c"),
            ["/sys/fs/cgroup/unified/a b/c", "/mnt/c\\d/c"].map(PathBuf::from)
        );
        // A name that only begins like the root.
        assert_eq!(found(mixed, "/a bc").len(), 1);
        for broken in ["", "31 23", "31 23 0:28 / /x rw -", "cgroup2 - cgroup2"] {
            assert_eq!(found(broken, "/"), Vec::<PathBuf>::new());
        }
    }

    #[test]
    fn events_tell_whether_somebody_is_there() {
        assert!(is_populated(b"populated 1\nfrozen 0\n"));
        assert!(!is_populated(b"populated 0\nfrozen 1\n"));
        assert!(!is_populated(b""));
    }
}
