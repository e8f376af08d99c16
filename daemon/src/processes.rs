//! Child processes that leave nothing behind: starts them, knows everything that comes of them, ends it.
//!
//! A server's *family* is its process and whatever that starts. Orphans are adopted by the daemon (it is a subreaper), so
//! a family never leaves the daemon's tree; an adopted process is recognised by its process group, by its cgroup where
//! families have one, or by the marker in its environment. A [`guard`] ends what a killed daemon leaves behind. Knows
//! nothing of MCP.

mod cgroup;
pub mod guard;
mod table;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, kill_process_group, test_kill_process_group};
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::base::Clock;
use cgroup::{Cgroup, Home};
use table::Process;

/// The variable that a family carries: `HOME.RUN.NUMBER`, where HOME is the data directory and RUN this daemon process.
/// Its cgroup is named by the same value.
const MARKER: &str = "MCP_SIDECAR_PROCESS";
/// There is no event for "no process is left": it is asked for this often.
const POLL: Duration = Duration::from_millis(50);
/// Orphans that ended are looked for at most this often.
const REAP_PAUSE: Duration = Duration::from_millis(200);
/// Pause before a guard that died is replaced, and the longest one if that goes on.
const GUARD_PAUSE: Duration = Duration::from_secs(1);
const GUARD_PAUSE_MAX: Duration = Duration::from_mins(1);

/// Starts families and keeps track of them.
#[derive(Debug)]
pub struct Keeper {
    /// `HOME.`, common to all daemons that ever ran on this data directory.
    home: String,
    /// `HOME.RUN.`, of this daemon only.
    run: String,
    grace: Duration,
    next: AtomicU64,
    /// Our children by process id, with the number of their family; 0 is the guard. Locked while a process is started,
    /// so that nobody takes one that has just been born for an orphan.
    known: Mutex<HashMap<i32, u64>>,
    /// Where the cgroups of families are made; empty where there are none.
    cgroups: OnceLock<Home>,
    /// Held by whoever starts a process: meanwhile the daemon may be in the cgroup of a family.
    births: tokio::sync::Mutex<()>,
    last: tokio::sync::Mutex<Option<(Instant, Arc<Survey>)>>,
    /// Cancelled when the first family is about to start.
    wanted: CancellationToken,
    /// Whether processes may be started: leftovers are gone, and the guard watches.
    ready: watch::Sender<bool>,
    stop: CancellationToken,
    /// Set before `stop` if nothing is left for the guard to do.
    clean: AtomicBool,
    /// Children that this process had before it was the daemon. They are none of its business.
    inherited: Vec<Process>,
}

/// Who lives below the daemon at one moment; without those that have ended.
#[derive(Debug, Default)]
struct Survey {
    families: HashMap<u64, Vec<Process>>,
    /// Adopted processes that hide where they come from.
    strays: Vec<Process>,
    /// Processes cannot be listed here: only process groups are known.
    blind: bool,
}

/// One server's processes. The leader's id stays reserved until this is dropped, which must be after it was waited for.
#[derive(Debug)]
pub struct Family {
    keeper: Arc<Keeper>,
    number: u64,
    leader: Pid,
    cgroup: Option<Cgroup>,
}

impl Keeper {
    /// Makes this process the one that adopts orphans. `home` is the data directory, which no other daemon uses;
    /// `grace` bounds each step of ending what a killed daemon left behind.
    ///
    /// # Errors
    /// When the data directory cannot be looked at.
    pub fn new(home: &Path, grace: Duration) -> io::Result<Arc<Self>> {
        let place = std::fs::metadata(home)?;
        let home = format!("{:x}-{:x}.", place.dev(), place.ino());
        let run = format!("{home}{}.", uuid::Uuid::new_v4().simple());
        if let Err(cause) = rustix::process::set_child_subreaper(Some(rustix::process::getpid())) {
            tracing::warn!(%cause, "orphans of stdio servers cannot be adopted; those that leave their group may survive");
        }
        Ok(Arc::new(Self {
            home,
            run,
            grace,
            next: AtomicU64::new(1),
            known: Mutex::default(),
            cgroups: OnceLock::new(),
            births: tokio::sync::Mutex::default(),
            last: tokio::sync::Mutex::default(),
            wanted: CancellationToken::new(),
            ready: watch::Sender::new(false),
            stop: CancellationToken::new(),
            clean: AtomicBool::new(false),
            inherited: table::all()
                .unwrap_or_default()
                .into_iter()
                .filter(|process| process.parent == own())
                .collect(),
        }))
    }

    /// Starts the work in the background, on `tasks`: ends what an earlier daemon on this data directory left behind,
    /// then keeps a guard from the first family on, and buries adopted orphans. Ends with [`Keeper::stop`].
    pub fn start(self: &Arc<Self>, tasks: &TaskTracker) {
        tasks.spawn(Arc::clone(self).bury());
        tasks.spawn(Arc::clone(self).watch_over());
    }

    /// Starts a process as the leader of a group and a family. Waits until leftovers of an earlier daemon are gone and
    /// the guard is there; dropping the future before it completes starts nothing.
    ///
    /// # Errors
    /// Those of [`Command::spawn`].
    pub async fn spawn(self: &Arc<Self>, command: &mut Command) -> io::Result<(Child, Family)> {
        self.wanted.cancel();
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let marker = format!("{}{number}", self.run);
        command.env(MARKER, &marker).process_group(0);
        let _turn = self.births.lock().await;
        let (child, leader, cgroup) = match self.cgroups.get() {
            None => {
                let (child, leader) = self.give_birth(command, number)?;
                (child, leader, None)
            }
            Some(home) => blocking(|| {
                let cgroup = home.make(&marker).inspect_err(no_cgroup).ok();
                let visit = cgroup
                    .as_ref()
                    .map(|cgroup| cgroup.enter().inspect_err(no_cgroup));
                let born = self.give_birth(command, number);
                drop(visit);
                born.map(|(child, leader)| (child, leader, cgroup))
            })?,
        };
        let family = Family {
            keeper: Arc::clone(self),
            number,
            leader,
            cgroup,
        };
        Ok((child, family))
    }

    fn give_birth(&self, command: &mut Command, number: u64) -> io::Result<(Child, Pid)> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let child = command.spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let pid = id
            .and_then(Pid::from_raw)
            .ok_or_else(|| io::Error::other("a child has no process id"))?;
        known.insert(pid.as_raw_nonzero().get(), number);
        Ok((child, pid))
    }

    fn forget(&self, pid: Pid) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.remove(&pid.as_raw_nonzero().get());
    }

    /// Ends whatever is still below the daemon, and the guard. No family may be started any more.
    pub async fn stop(self: &Arc<Self>) {
        for signal in [Signal::TERM, Signal::KILL] {
            let mut told = HashSet::new();
            let all_gone = async {
                loop {
                    // Dropped at the end of each round, which removes those that have become empty.
                    let cgroups = self.own_cgroups();
                    if signal == Signal::KILL {
                        cgroups.iter().for_each(Cgroup::kill);
                    }
                    let survey = self.survey().await;
                    let left = survey
                        .strays
                        .iter()
                        .chain(survey.families.values().flatten());
                    let fresh = left.clone().filter(|process| told.insert(process.pid));
                    fresh.for_each(|process| {
                        process.signal(signal);
                    });
                    if left.count() == 0 && !cgroups.iter().any(Cgroup::populated) {
                        return;
                    }
                    tokio::time::sleep(POLL).await;
                }
            };
            if tokio::time::timeout(self.grace, all_gone).await.is_ok() {
                self.clean.store(true, Ordering::Relaxed);
                break;
            }
        }
        self.stop.cancel();
    }

    fn own_cgroups(&self) -> Vec<Cgroup> {
        let home = self.cgroups.get();
        home.map(|home| home.made(|marker| marker.starts_with(&self.run)))
            .unwrap_or_default()
    }

    /// Looks at the processes below the daemon as they are after this call began. Callers at the same time share a look.
    async fn survey(self: &Arc<Self>) -> Arc<Survey> {
        let asked = Clock.now();
        let mut last = self.last.lock().await;
        if let Some((at, survey)) = &*last
            && *at >= asked
        {
            return Arc::clone(survey);
        }
        let at = Clock.now();
        let keeper = Arc::clone(self);
        let look = tokio::task::spawn_blocking(move || keeper.look());
        let survey = Arc::new(look.await.unwrap_or_default());
        *last = Some((at, Arc::clone(&survey)));
        survey
    }

    /// Blocking: reads the process table, buries orphans that have ended, and finds out who belongs to whom.
    fn look(&self) -> Survey {
        let all = match table::all() {
            Ok(all) => all,
            Err(cause) => {
                tracing::warn!(%cause, "processes cannot be listed; only process groups are ended");
                return Survey {
                    blind: true,
                    ..Survey::default()
                };
            }
        };
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let children = || all.iter().filter(|process| process.parent == own());
        for orphan in children().filter(|process| process.ended) {
            // A known child is waited for by whoever started it.
            if let Some(pid) = Pid::from_raw(orphan.pid)
                && !known.contains_key(&orphan.pid)
            {
                let _ = rustix::process::waitpid(Some(pid), WaitOptions::NOHANG);
            }
        }
        let mut survey = Survey::default();
        for child in children().filter(|process| !process.ended) {
            if self.inherited.iter().any(|old| old.is(child)) {
                continue;
            }
            let family = known
                .get(&child.pid)
                .or_else(|| known.get(&child.group))
                .copied()
                .or_else(|| {
                    let mut markers = markers(child.pid);
                    markers.find_map(|marker| marker.strip_prefix(&self.run)?.parse().ok())
                });
            let members = match family {
                Some(0) => continue,
                Some(number) => survey.families.entry(number).or_default(),
                None => &mut survey.strays,
            };
            members.extend(table::tree(&all, child));
        }
        survey
    }

    /// Waits for adopted orphans when they end, so that no zombie stays.
    async fn bury(self: Arc<Self>) {
        let Ok(mut deaths) = signal(SignalKind::child()) else {
            return;
        };
        loop {
            tokio::select! {
                () = self.stop.cancelled() => return,
                _ = deaths.recv() => {}
            }
            self.survey().await;
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(REAP_PAUSE) => {}
            }
        }
    }

    /// Clears what an earlier daemon left, finds out whether families can have cgroups, then keeps a guard alive.
    async fn watch_over(self: Arc<Self>) {
        let keeper = Arc::clone(&self);
        let cleared = tokio::task::spawn_blocking(move || {
            let home = Home::find();
            let left = guard::Remnants {
                of: &keeper.home,
                but_not_of: Some(&keeper.run),
                cgroups: home.as_ref().ok(),
            };
            let ended = left.end(keeper.grace, Duration::ZERO);
            keeper.settle_in(home);
            ended
        });
        match cleared.await {
            Ok(0) | Err(_) => {}
            Ok(ended) => {
                tracing::warn!(ended, "ended processes that an earlier daemon left behind");
            }
        }
        tokio::select! {
            () = self.stop.cancelled() => return,
            () = self.wanted.cancelled() => {}
        }
        let mut pause = GUARD_PAUSE;
        loop {
            match self.run_guard().await {
                Ok(()) => return,
                Err(cause) => tracing::error!(
                    %cause,
                    "the guard does not run; stdio servers survive a killed daemon until the next one starts"
                ),
            }
            tokio::select! {
                () = self.stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            pause = GUARD_PAUSE_MAX.min(pause * 2);
        }
    }

    /// Blocking: from now on families have cgroups, if they can.
    fn settle_in(&self, home: io::Result<Home>) {
        let proven = home.and_then(|home| {
            home.prove(&format!("{}0", self.run))?;
            Ok(home)
        });
        match proven {
            Ok(home) => {
                let below = home.path().display();
                tracing::info!(%below, "each stdio server has a cgroup of its own");
                let _ = self.cgroups.set(home);
            }
            Err(cause) => tracing::info!(%cause, "stdio servers have no cgroups of their own"),
        }
    }

    /// Runs one guard until the daemon stops; fails if the guard ends before that.
    async fn run_guard(&self) -> io::Result<()> {
        // This very program, even if its file was replaced meanwhile.
        let mut command = Command::new("/proc/self/exe");
        command
            .arg0(guard::NAME)
            .args([guard::ARGUMENT, &self.run])
            .arg(self.grace.as_millis().to_string())
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        let turn = self.births.lock().await;
        let started = self.give_birth(&mut command, 0);
        drop(turn);
        self.ready.send_replace(true);
        let (mut child, pid) = started?;
        let mut line = child.stdin.take();
        let ended = tokio::select! {
            ended = child.wait() => Some(ended),
            () = self.stop.cancelled() => None,
        };
        if ended.is_none() && self.clean.load(Ordering::Relaxed) {
            if let Some(line) = &mut line {
                // Nothing is left: it need not look.
                let _ = line.write_all(guard::FAREWELL).await;
            }
            let _ = tokio::time::timeout(GUARD_PAUSE, child.wait()).await;
        }
        self.forget(pid);
        match ended {
            None => Ok(()),
            Some(Ok(status)) => Err(io::Error::other(format!("it ended ({status})"))),
            Some(Err(cause)) => Err(cause),
        }
    }
}

fn own() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// The markers of a process, first those that it cannot hide.
fn markers(pid: i32) -> impl Iterator<Item = String> {
    let in_environment = std::iter::once_with(move || table::marker(pid));
    let by_cgroup = cgroup::markers(pid).into_iter();
    by_cgroup.chain(in_environment.flatten())
}

/// Work that may take some milliseconds, without holding up other tasks where that is possible.
fn blocking<T>(work: impl FnOnce() -> T) -> T {
    if Handle::current().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return work();
    }
    tokio::task::block_in_place(work)
}

fn no_cgroup(cause: &io::Error) {
    tracing::warn!(%cause, "a stdio server has no cgroup of its own");
}

impl Family {
    /// Sends a signal to the leader's group and to every member that has left it. SIGKILL comes to the whole cgroup first.
    pub async fn signal(&self, signal: Signal) {
        if let Some(cgroup) = &self.cgroup
            && signal == Signal::KILL
        {
            cgroup.kill();
        }
        let survey = self.keeper.survey().await;
        let members = survey
            .families
            .get(&self.number)
            .map_or(&[][..], Vec::as_slice);
        let group = self.leader.as_raw_nonzero().get();
        if survey.blind || members.iter().any(|member| member.group == group) {
            // The whole group in one stroke: none of it can start another process in between.
            let _ = kill_process_group(self.leader, signal);
        }
        for member in members.iter().filter(|member| member.group != group) {
            member.signal(signal);
        }
    }

    /// Completes when no process of the family is left. Wait for the leader first: it counts as long as it runs.
    pub async fn extinct(&self) {
        loop {
            let survey = self.keeper.survey().await;
            let seen = if survey.blind {
                test_kill_process_group(self.leader).is_ok()
            } else {
                survey.families.contains_key(&self.number)
            };
            // The table is read while it changes: one that forks all the time may be missing in it.
            if !seen && !self.cgroup.as_ref().is_some_and(Cgroup::populated) {
                if let Some(cgroup) = &self.cgroup {
                    cgroup.remove();
                }
                return;
            }
            tokio::time::sleep(POLL).await;
        }
    }
}

impl Drop for Family {
    fn drop(&mut self) {
        self.keeper.forget(self.leader);
    }
}
