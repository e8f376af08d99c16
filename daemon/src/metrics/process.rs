//! What the kernel says of the daemon's process.

/// Ticks in a second, as the kernel shows them to programs on Linux.
const TICKS: f64 = 100.0;

/// The process now; what cannot be read is left out.
#[derive(Debug, Default)]
pub(super) struct Process {
    pub(super) resident_bytes: Option<u64>,
    pub(super) open_fds: Option<u64>,
    pub(super) max_fds: Option<u64>,
    pub(super) threads: Option<u64>,
    pub(super) cpu_seconds: Option<f64>,
}

impl Process {
    /// Reads it. A few microseconds, and one system call for every hundred descriptors.
    pub(super) fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
        let fds = std::fs::read_dir("/proc/self/fd").map(Iterator::count);
        Self {
            resident_bytes: field(&status, "VmRSS:").map(|kib| kib * 1024),
            // One of them is the directory itself.
            open_fds: fds.ok().and_then(|fds| u64::try_from(fds - 1).ok()),
            max_fds: field(&limits, "Max open files"),
            threads: field(&status, "Threads:"),
            cpu_seconds: cpu_seconds(&stat),
        }
    }
}

/// The first number behind a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Time in user and in kernel mode: the 14th and 15th field. The 2nd is a name in parentheses, and may hold anything.
fn cpu_seconds(stat: &str) -> Option<f64> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut ticks = rest.split_whitespace().skip(11).map(str::parse::<u32>);
    let (user, kernel) = (ticks.next()?.ok()?, ticks.next()?.ok()?);
    Some((f64::from(user) + f64::from(kernel)) / TICKS)
}

#[cfg(test)]
mod tests {
    use super::{Process, cpu_seconds};

    #[test]
    fn this_process_has_all_of_it() {
        let process = Process::now();
        assert!(process.resident_bytes.is_some_and(|bytes| bytes > 100_000));
        assert!(process.open_fds.is_some_and(|fds| fds >= 3));
        assert!(process.max_fds >= process.open_fds && process.threads >= Some(1));
        assert!(process.cpu_seconds.is_some());
        let odd = "7 (a) b) S 1 7 7 0 -1 4194560 1 0 0 0 250 50 0 0";
        assert_eq!(cpu_seconds(odd), Some(3.0));
    }
}
