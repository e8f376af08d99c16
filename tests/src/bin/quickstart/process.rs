//! Child processes that are ended in order, or killed.

use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, Command};

/// Longer than the daemon's own drain (20 s).
const STOP_TIMEOUT: Duration = Duration::from_secs(25);

/// A child in a process group of its own, so that a Ctrl-C in the terminal reaches only this program, which then
/// ends the child in order. Dropping it kills the group.
pub(crate) struct Process {
    name: &'static str,
    pub(crate) child: Child,
    pid: Pid,
    armed: bool,
}

impl Process {
    pub(crate) fn start(name: &'static str, mut command: Command) -> Result<Self> {
        let child = command
            .stdin(Stdio::null())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let pid = child
            .id()
            .and_then(|id| i32::try_from(id).ok())
            .and_then(Pid::from_raw)
            .with_context(|| format!("{name} has no process id"))?;
        Ok(Self {
            name,
            child,
            pid,
            armed: true,
        })
    }

    pub(crate) fn id(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// SIGTERM, and then a bounded wait.
    pub(crate) async fn stop(mut self) -> Result<()> {
        if let Ok(Some(status)) = self.child.try_wait() {
            bail!("{} had ended before it was told to ({status})", self.name);
        }
        let _ = kill_process(self.pid, Signal::TERM);
        match tokio::time::timeout(STOP_TIMEOUT, self.child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => bail!("{} did not end cleanly ({status})", self.name),
            Ok(Err(error)) => Err(error).with_context(|| format!("cannot wait for {}", self.name)),
            Err(_) => bail!(
                "{} did not end within {} s and was killed",
                self.name,
                STOP_TIMEOUT.as_secs()
            ),
        }
    }

    /// Lets it run; returns its process id.
    pub(crate) fn leave(mut self) -> i32 {
        self.armed = false;
        self.id()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // A process that was waited for has no group to kill any more, and its id may be another's.
        if self.armed && self.child.id().is_some() {
            let _ = kill_process_group(self.pid, Signal::KILL);
        }
    }
}
