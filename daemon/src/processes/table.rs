//! The process table as `/proc` shows it (proc_pid_stat(5), proc_pid_environ(5)).

use std::fs::File;
use std::io::{self, Read};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Longest environment that is looked through, in bytes.
const ENVIRONMENT: u64 = 4 << 20;

/// One process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) parent: i32,
    pub(super) group: i32,
    /// Ended and not waited for.
    pub(super) ended: bool,
    /// When it started, in clock ticks since boot: tells it from a later process with the same id.
    start: u64,
}

impl Process {
    /// Whether both are the same process, at any time.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.pid == other.pid && self.start == other.start
    }

    /// Sends a signal to this process and to no later one with its id. Tells whether it was still there.
    pub(super) fn signal(&self, signal: Signal) -> bool {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return false;
        };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
            return false;
        };
        // The handle is for whoever has the id now: is it still the same?
        one(self.pid).is_some_and(|now| now.is(self) && !now.ended)
            && pidfd_send_signal(handle, signal).is_ok()
    }
}

/// All processes that can be seen.
///
/// # Errors
/// When there is no process table here.
pub(super) fn all() -> io::Result<Vec<Process>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let pid = name.to_str().and_then(|name| name.parse().ok());
        // One that ended in between is none.
        all.extend(pid.and_then(one));
    }
    Ok(all)
}

fn one(pid: i32) -> Option<Process> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    parse(&text)
}

/// Reads `PID (NAME) STATE PARENT GROUP SESSION ...`; the name may hold anything, parentheses included.
fn parse(text: &[u8]) -> Option<Process> {
    let text = String::from_utf8_lossy(text);
    let (head, tail) = text.rsplit_once(')')?;
    let mut fields = tail.split_ascii_whitespace();
    Some(Process {
        pid: head.split_once(' ')?.0.parse().ok()?,
        ended: matches!(fields.next()?, "Z" | "X"),
        parent: fields.next()?.parse().ok()?,
        group: fields.next()?.parse().ok()?,
        start: fields.nth(16)?.parse().ok()?,
    })
}

/// The marker that a process was started with; `None` if it has none or may not be looked at.
pub(super) fn marker(pid: i32) -> Option<String> {
    let mut environment = Vec::new();
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(ENVIRONMENT).read_to_end(&mut environment).ok()?;
    environment.split(|byte| *byte == 0).find_map(|variable| {
        let value = variable
            .strip_prefix(super::MARKER.as_bytes())?
            .strip_prefix(b"=")?;
        String::from_utf8(value.to_vec()).ok()
    })
}

/// A process and everything below it, without what has ended.
pub(super) fn tree(all: &[Process], root: &Process) -> Vec<Process> {
    let mut found = vec![*root];
    let mut next = 0;
    while let Some(parent) = found.get(next).map(|process| process.pid) {
        let children = all.iter().filter(|process| {
            process.parent == parent && !found.iter().any(|other| other.pid == process.pid)
        });
        let children: Vec<_> = children.copied().collect();
        found.extend(children);
        next += 1;
    }
    found.retain(|process| !process.ended);
    found
}

#[cfg(test)]
mod tests {
    use super::{Process, all, parse, tree};

    #[test]
    fn names_may_hold_anything() {
        let line = b"42 (a) b (c) S 7 40 39 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 987 1 1\n";
        let expected = Process {
            pid: 42,
            parent: 7,
            group: 40,
            ended: false,
            start: 987,
        };
        assert_eq!(parse(line), Some(expected));
        for bad in [
            &b""[..],
            b"42",
            b"42 (x) S",
            b"42 (\xff) S 1 2",
            b"x (y) Z 1 2 3",
        ] {
            assert_eq!(parse(bad), None);
        }
    }

    #[test]
    fn this_process_is_in_the_table() {
        let own = i32::try_from(std::process::id()).unwrap();
        let all = all().unwrap();
        let found = all.iter().find(|process| process.pid == own).unwrap();
        assert!(tree(&all, found).contains(found));
    }

    #[test]
    fn a_tree_holds_what_is_below() {
        let process = |pid, parent, ended| Process {
            pid,
            parent,
            group: 1,
            ended,
            start: 0,
        };
        // The last two are each other's parents: a table that is read while it changes may say anything.
        let all = [
            process(2, 1, false),
            process(3, 2, true),
            process(4, 3, false),
            process(5, 1, false),
            process(6, 7, false),
            process(7, 6, false),
        ];
        let pids = |root: &Process| {
            let tree = tree(&all, root);
            tree.iter().map(|process| process.pid).collect::<Vec<_>>()
        };
        assert_eq!(pids(&all[0]), [2, 4]);
        assert_eq!(pids(&all[4]), [6, 7]);
    }
}
