//! Cgroups (version 2) for daemons under test.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tokio::process::Command;

use crate::process::not_tested;

/// Time that the kernel has to end what is left in a cgroup.
const END: Duration = Duration::from_secs(10);

/// A cgroup of a test's own, in which a daemon can be started. Dropping it ends what is left there.
pub struct TestCgroup {
    path: PathBuf,
}

impl TestCgroup {
    /// Makes one below the cgroup of the tests. `None`, and a loud word, where nobody lets us; a panic where a run that
    /// has to be complete (`CI=true`, as root, on a writable mount) would miss something.
    pub fn make() -> Option<Self> {
        let (place, writable) = match own_cgroup() {
            Ok(found) => found,
            Err(why) => return refuse(&why, false),
        };
        let made = tempfile::Builder::new()
            .prefix("mcp-sidecar-test-")
            .tempdir_in(&place)
            .map(tempfile::TempDir::keep);
        let path = match made {
            Ok(path) => path,
            Err(cause) => return refuse(&format!("{}: {cause}", place.display()), writable),
        };
        let made = Self { path };
        let mut trial = std::process::Command::new("sh");
        trial.args(["-c", JOIN, "true"]).arg(&made.path);
        match trial.output() {
            Ok(output) if output.status.success() => Some(made),
            Ok(output) => refuse(&String::from_utf8_lossy(&output.stderr), writable),
            Err(cause) => refuse(&cause.to_string(), writable),
        }
    }

    /// Its directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The cgroups that are in it.
    pub fn below(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(&self.path).expect("a cgroup").flatten();
        let directories = entries.filter(|entry| entry.file_type().unwrap().is_dir());
        directories.map(|entry| entry.path()).collect()
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        let begin = Instant::now();
        // Removed as soon as the kernel has ended what lives there, if anything does.
        let _kernel_is_old = std::fs::write(self.path.join("cgroup.kill"), "1");
        while remove(&self.path).is_err() && begin.elapsed() < END {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn remove(path: &Path) -> std::io::Result<()> {
    for entry in std::fs::read_dir(path)?.flatten() {
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    std::fs::remove_dir(path)
}

/// Goes into the cgroup `$1` and becomes `$0` with the other arguments.
const JOIN: &str = "echo $$ > \"$1/cgroup.procs\" && shift && exec \"$0\" \"$@\"";

/// A command that runs a program inside a cgroup; its arguments can be added.
pub(crate) fn command_in(cgroup: &Path, program: &Path) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", JOIN]).arg(program).arg(cgroup);
    command
}

/// The processes in a cgroup.
pub fn members(cgroup: &Path) -> Vec<i32> {
    let text = std::fs::read_to_string(cgroup.join("cgroup.procs")).unwrap_or_default();
    text.lines().filter_map(|line| line.parse().ok()).collect()
}

/// The directory of the cgroup that this process is in, and whether its mount can be written.
fn own_cgroup() -> Result<(PathBuf, bool), String> {
    let read = |file: &str| std::fs::read_to_string(file).map_err(|cause| cause.to_string());
    let own = read("/proc/self/cgroup")?;
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let own = own.ok_or("there are no cgroups of version 2")?;
    let mounts = read("/proc/self/mounts")?;
    let mount = mounts.lines().find(|line| {
        let kind = line.split(' ').nth(2);
        kind == Some("cgroup2")
    });
    let mut mount = mount.ok_or("cgroups are not mounted")?.split(' ').skip(1);
    let point = Path::new(mount.next().unwrap_or_default());
    let options = mount.nth(1).unwrap_or_default();
    Ok((point.join(own), options.split(',').any(|word| word == "rw")))
}

fn refuse<T>(why: &str, writable: bool) -> Option<T> {
    let root = rustix::process::geteuid().is_root();
    let complete = std::env::var("CI").is_ok_and(|value| value == "true");
    assert!(
        !(complete && root && writable),
        "cgroups have to be tested here, but: {why}"
    );
    not_tested(&format!("cgroups, because none can be made here: {why}"));
    None
}
