//! What the daemon takes of the system, sampled.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use mcp_sidecar_tests::daemon::TestDaemon;
use mcp_sidecar_tests::process::{anonymous, children, resident};
use tokio_util::sync::CancellationToken;

use crate::ledger::Ledger;

/// The daemon at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    /// Since the load began.
    pub(crate) at: Duration,
    /// Resident memory, in KiB.
    pub(crate) rss: u64,
    /// That part of it which is no file's, in KiB.
    pub(crate) anonymous: u64,
    /// Open descriptors.
    pub(crate) fds: usize,
    /// Threads.
    pub(crate) threads: usize,
    /// Children that run, and children that have ended and were not waited for.
    pub(crate) children: (usize, usize),
    /// What it says that it has under way.
    pub(crate) survey: BTreeMap<String, u64>,
}

impl Sample {
    /// Looks at the daemon now.
    pub(crate) async fn take(daemon: &TestDaemon, since: Instant) -> Self {
        let pid = daemon.pid();
        let entries = |what: &str| {
            let directory = std::fs::read_dir(format!("/proc/{pid}/{what}"));
            directory.expect("a running daemon").count()
        };
        let survey = daemon.survey().await;
        Self {
            at: since.elapsed(),
            rss: resident(pid).0 >> 10,
            anonymous: anonymous(pid) >> 10,
            fds: entries("fd"),
            threads: entries("task"),
            children: (children(pid, false).len(), children(pid, true).len()),
            survey,
        }
    }

    /// A count of the survey.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.survey.get(name).copied().unwrap_or(u64::MAX)
    }

    /// The head of the table.
    pub(crate) fn head() {
        println!(
            "{:>6} {:>9} {:>9} {:>5} {:>7} {:>8} {:>7} {:>5} {:>5} {:>5} {:>7} {:>5} {:>6} {:>9}",
            "t/s",
            "RSS/KiB",
            "anon/KiB",
            "fds",
            "threads",
            "children",
            "servers",
            "links",
            "rpcs",
            "calls",
            "waiting",
            "quest",
            "tasks",
            "made"
        );
    }

    /// A row of the table.
    pub(crate) fn row(&self, ledger: &Ledger) {
        println!(
            "{:>6} {:>9} {:>9} {:>5} {:>7} {:>8} {:>7} {:>5} {:>5} {:>5} {:>7} {:>5} {:>6} {:>9}",
            self.at.as_secs(),
            self.rss,
            self.anonymous,
            self.fds,
            self.threads,
            self.children.0,
            self.count("servers"),
            self.count("links"),
            self.count("rpcs"),
            self.count("calls"),
            self.count("waiting"),
            self.count("questions"),
            self.count("tasks"),
            ledger.totals().1,
        );
    }
}

/// Samples at an interval until `stop`; every `shown`th sample is printed.
pub(crate) async fn watch(
    daemon: &TestDaemon,
    ledger: &Ledger,
    interval: Duration,
    shown: usize,
    stop: CancellationToken,
) -> Vec<Sample> {
    let (since, mut samples) = (Instant::now(), Vec::new());
    let mut ticks = tokio::time::interval(interval);
    Sample::head();
    loop {
        tokio::select! {
            () = stop.cancelled() => return samples,
            _ = ticks.tick() => {}
        }
        let sample = Sample::take(daemon, since).await;
        if samples.len() % shown == 0 {
            sample.row(ledger);
        }
        samples.push(sample);
    }
}

/// Mean memory of the samples of a span, in KiB.
pub(crate) fn mean_rss(samples: &[Sample], from: Duration, to: Duration) -> u64 {
    let within = samples
        .iter()
        .filter(|sample| from <= sample.at && sample.at <= to);
    let all: Vec<u64> = within.map(|sample| sample.rss).collect();
    all.iter().sum::<u64>() / (all.len() as u64).max(1)
}
