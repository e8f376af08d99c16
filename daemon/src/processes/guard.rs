//! The guard: one small process beside the daemon that ends stdio servers if the daemon is killed.
//!
//! It holds the reading end of a pipe whose writing end only the daemon has. The kernel closes that end however the daemon
//! ends; then the guard finds everything that carries the daemon's marker and ends it: end of input (which came with the
//! daemon's death), SIGTERM, SIGKILL; their cgroups are removed with them. It runs without a runtime and touches as little
//! memory as it can.

use std::collections::HashSet;
use std::ffi::OsString;
use std::io::Read;
use std::process::ExitCode;
use std::time::Duration;

use rustix::process::Signal;

use super::POLL;
use super::cgroup::{Cgroup, Home};
use super::table::{self, Process};
use crate::base::Clock;

/// The hidden argument that makes the daemon's program a guard.
pub const ARGUMENT: &str = "__guard";
/// How it is shown in lists of processes.
pub(super) const NAME: &str = "mcp-sidecard";
/// What the daemon says when it has ended everything by itself.
pub(super) const FAREWELL: &[u8] = b".";
/// A process that was being started when the daemon died carries the marker a moment later: the table must be clean for
/// this long.
const SETTLE: Duration = Duration::from_millis(300);

/// Runs the guard if the command line (without the program) asks for it; never returns before the daemon has ended then.
#[must_use]
pub fn run(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    if arguments.next()?.to_str()? != ARGUMENT {
        return None;
    }
    let of = arguments.next().and_then(|text| text.into_string().ok());
    let grace = arguments
        .next()
        .and_then(|text| text.to_str()?.parse().ok());
    let (Some(of), Some(grace)) = (of.filter(|of| !of.is_empty()), grace) else {
        return Some(ExitCode::from(64));
    };
    let mut word = [0; 1];
    // An error cannot be told from the daemon's end, and means the same.
    if matches!(std::io::stdin().lock().read(&mut word), Ok(1)) {
        return Some(ExitCode::SUCCESS);
    }
    // The guard lives where the daemon lived.
    let home = Home::find().ok();
    let left = Remnants {
        of: &of,
        but_not_of: None,
        cgroups: home.as_ref(),
    };
    left.end(Duration::from_millis(grace), SETTLE);
    Some(ExitCode::SUCCESS)
}

/// What a daemon that is gone has left behind.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remnants<'a> {
    /// Beginning of the markers.
    pub(super) of: &'a str,
    /// Beginning of the markers that are somebody else's.
    pub(super) but_not_of: Option<&'a str>,
    /// Where the cgroups of families may have been made.
    pub(super) cgroups: Option<&'a Home>,
}

impl Remnants<'_> {
    /// Blocking: ends them within three times `grace`, and returns their number. Their input has ended already, so the
    /// first step is only to wait. Done when none was there for `settle`; their cgroups are removed.
    pub(super) fn end(self, grace: Duration, settle: Duration) -> usize {
        let mut ended = HashSet::new();
        for signal in [None, Some(Signal::TERM), Some(Signal::KILL)] {
            let begin = Clock.now();
            let mut clean_since = None;
            let mut told = HashSet::new();
            loop {
                // Dropped at the end of each round, which removes those that have become empty.
                let cgroups = self.cgroups();
                if signal == Some(Signal::KILL) {
                    cgroups.iter().for_each(Cgroup::kill);
                }
                let left = self.find();
                let now = Clock.now();
                let since = *clean_since.get_or_insert(now);
                if !left.is_empty() || cgroups.iter().any(Cgroup::populated) {
                    clean_since = None;
                } else if now.saturating_duration_since(since) >= settle {
                    return ended.len();
                }
                for process in left {
                    ended.insert(process.pid);
                    if let Some(signal) = signal
                        && told.insert(process.pid)
                    {
                        process.signal(signal);
                    }
                }
                if clean_since.is_none() && now.saturating_duration_since(begin) >= grace {
                    break;
                }
                std::thread::sleep(POLL);
            }
        }
        ended.len()
    }

    /// Those that carry the marker, those in a group that one of them leads, and everything below.
    fn find(self) -> Vec<Process> {
        let all = table::all().unwrap_or_default();
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let marked: HashSet<i32> = all
            .iter()
            .filter(|process| process.pid != own && !process.ended && self.is_ours(process.pid))
            .map(|process| process.pid)
            .collect();
        let mut found = HashSet::new();
        let mut left = Vec::new();
        for process in &all {
            if marked.contains(&process.pid) || marked.contains(&process.group) {
                for member in table::tree(&all, process) {
                    if member.pid != own && found.insert(member.pid) {
                        left.push(member);
                    }
                }
            }
        }
        left
    }

    fn cgroups(self) -> Vec<Cgroup> {
        let home = self.cgroups;
        home.map(|home| home.made(|marker| self.is_named(marker)))
            .unwrap_or_default()
    }

    fn is_ours(self, pid: i32) -> bool {
        super::markers(pid).any(|marker| self.is_named(&marker))
    }

    fn is_named(self, marker: &str) -> bool {
        let foreign = |other| marker.starts_with(other);
        marker.starts_with(self.of) && !self.but_not_of.is_some_and(foreign)
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::{Remnants, run};
    use crate::processes::MARKER;

    #[test]
    fn other_command_lines_are_not_for_the_guard() {
        let line = |words: &[&str]| run(words.iter().map(Into::into));
        assert!(line(&[]).is_none());
        assert!(line(&["check-config", "__guard"]).is_none());
        // An empty marker would be everybody's.
        assert!(line(&["__guard", "", "5"]).is_some());
    }

    #[test]
    fn only_what_carries_the_marker_is_ended() {
        let start = |marker: &str| {
            let mut command = Command::new("sleep");
            command.arg("600").env(MARKER, marker).stdin(Stdio::null());
            command.spawn().unwrap()
        };
        let home = format!("test-{}.", std::process::id());
        let own = format!("{home}own.");
        let (mut old, mut new) = (start(&format!("{home}old.1")), start(&format!("{own}1")));
        let left = Remnants {
            of: &home,
            but_not_of: Some(&own),
            cgroups: None,
        };
        assert_eq!(left.end(Duration::from_millis(100), Duration::ZERO), 1);
        assert!(!old.wait().unwrap().success());
        assert_eq!(new.try_wait().unwrap(), None);
        new.kill().unwrap();
        new.wait().unwrap();
    }
}
