//! How the C library's allocator is set for a daemon, however it was started.
//!
//! By default glibc keeps freed memory in one heap per thread, and raises its own thresholds as soon as a big message was
//! freed: under load the daemon comes to hold several times of the memory that it uses. glibc reads its settings once,
//! before the program runs, from the environment. So the program puts them there and executes itself once more: the same
//! process, with the same id, descriptors and arguments.
//!
//! Sets all or nothing: whoever has set anything of the allocator has decided for himself.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Two heaps instead of eight for every processor; blocks from 128 KiB on are memory of their own, which goes back when
/// they are freed; so does the free end of a heap from 128 KiB on.
const SETTINGS: [(&str, &str); 3] = [
    ("MALLOC_ARENA_MAX", "2"),
    ("MALLOC_MMAP_THRESHOLD_", "131072"),
    ("MALLOC_TRIM_THRESHOLD_", "131072"),
];
/// Holds the id of the process that has executed itself. The dynamic linker removes the settings from the environment
/// of a program with capabilities or another owner: without this it would do so for ever.
const DONE: &str = "MCP_SIDECAR_ALLOCATOR";

/// Executes the program anew with the settings, unless somebody has set the allocator, or it was done before. Returns if
/// there is nothing to do. Call it while the process has one thread and has opened nothing.
///
/// # Errors
/// That of the execution. The process is as it was, and can go on without the settings.
pub(crate) fn settle() -> io::Result<()> {
    if !cfg!(target_env = "gnu") || is_set(std::env::vars_os()) {
        return Ok(());
    }
    let own = std::process::id().to_string();
    if std::env::var(DONE).is_ok_and(|done| done == own) {
        return Err(io::Error::other(
            "its settings do not reach a program with capabilities or another owner",
        ));
    }
    let program = program()?;
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| program.clone().into());
    let mut command = Command::new(&program);
    command
        .arg0(name)
        .args(arguments)
        .envs(SETTINGS)
        .env(DONE, own);
    Err(command.exec())
}

/// Whether somebody has set anything of the allocator.
fn is_set(mut variables: impl Iterator<Item = (OsString, OsString)>) -> bool {
    variables.any(|(name, value)| {
        let name = name.to_string_lossy();
        name.starts_with("MALLOC_")
            || (name == "GLIBC_TUNABLES" && value.to_string_lossy().contains("glibc.malloc."))
    })
}

/// The file of this program. Not `/proc/self/exe` itself, whose name would be shown in lists of processes.
fn program() -> io::Result<PathBuf> {
    let named = || {
        let name = PathBuf::from(std::env::args_os().next()?);
        name.components().nth(1).is_some().then_some(name)
    };
    // Without /proc: a path is what it was executed by, a bare name could be anything.
    let found = std::env::current_exe().or_else(|cause| named().ok_or(cause))?;
    if is_linker(&found) {
        return Err(io::Error::other(
            "it was started through the dynamic linker",
        ));
    }
    Ok(found)
}

/// Whether it is a dynamic linker that was told to run the program (`ld-linux-x86-64.so.2 PROGRAM`): it would read our
/// arguments as its own.
fn is_linker(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.starts_with("ld") && name.contains(".so")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{is_linker, is_set};

    #[test]
    fn what_somebody_has_set_is_left_alone() {
        let set = |name: &str, value: &str| {
            let all = [("PATH", "/bin"), (name, value)];
            is_set(
                all.map(|(name, value)| (name.into(), value.into()))
                    .into_iter(),
            )
        };
        assert!(set("MALLOC_ARENA_MAX", "8"));
        assert!(set("MALLOC_PERTURB_", "1"));
        assert!(set("GLIBC_TUNABLES", "a.b=1:glibc.malloc.arena_max=1"));
        assert!(!set("GLIBC_TUNABLES", "glibc.pthread.rseq=0"));
        assert!(!set("HOME", "/"));
    }

    #[test]
    fn a_dynamic_linker_is_not_the_program() {
        let linker = |path: &str| is_linker(Path::new(path));
        assert!(linker("/lib64/ld-linux-x86-64.so.2") && linker("/lib64/ld64.so.2"));
        assert!(!linker("/usr/bin/mcp-sidecard") && !linker("./ldap"));
    }
}
