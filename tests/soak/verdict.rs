//! What the figures mean: one line per criterion.

use std::time::Duration;

use crate::ledger::Ledger;
use crate::measure::{Sample, mean_rss};
use crate::others::Seen;

/// How much memory may grow after the first minute, in percent.
const GROWTH: u64 = 10;

/// A shorter load says nothing about memory: caches and the log's tail are filling.
const SHORTEST: Duration = Duration::from_mins(2);

/// Everything that is known at the end.
pub(crate) struct Evidence<'a> {
    /// The calls.
    pub(crate) ledger: &'a Ledger,
    /// Length of the load.
    pub(crate) duration: Duration,
    /// The daemon under load.
    pub(crate) samples: &'a [Sample],
    /// The daemon before.
    pub(crate) before: &'a Sample,
    /// The daemon without calls, with its servers.
    pub(crate) idle: &'a Sample,
    /// Requests with which it listens to them, at most.
    pub(crate) listening: u64,
    /// The daemon at rest.
    pub(crate) after: &'a Sample,
    /// Processes with the daemon's marker that are left.
    pub(crate) marked_processes: usize,
    /// What the readers of updates saw.
    pub(crate) seen: &'a [Seen],
    /// The last revision.
    pub(crate) head: u64,
    /// Whether the daemon ended well.
    pub(crate) clean_end: bool,
    /// Its log.
    pub(crate) log: &'a str,
}

/// The criteria and whether they hold.
#[derive(Default)]
pub(crate) struct Verdict(Vec<(bool, String)>);

impl Verdict {
    fn say(&mut self, holds: bool, what: String) {
        self.0.push((holds, what));
    }

    /// Prints every line; true if all of them hold.
    pub(crate) fn print(&self) -> bool {
        println!();
        for (holds, what) in &self.0 {
            println!("{} {what}", if *holds { "PASS" } else { "FAIL" });
        }
        let passed = self.0.iter().all(|(holds, _)| *holds);
        println!(
            "{}",
            if passed {
                "the soak passed"
            } else {
                "the soak FAILED"
            }
        );
        passed
    }
}

/// Whether the daemon is where it was before the load.
pub(crate) fn at_rest(before: &Sample, now: &Sample) -> bool {
    let counts = ["servers", "links", "rpcs", "calls", "waiting", "questions"];
    counts.iter().all(|name| now.count(name) == 0)
        && now.count("tasks") <= before.count("tasks")
        && now.fds <= before.fds
        && now.threads <= before.threads
        && now.children.0 <= before.children.0
        && now.children.1 == 0
}

/// Whether nothing of the calls is left, while the servers are still connected.
pub(crate) fn is_idle(now: &Sample, listening: u64) -> bool {
    ["calls", "questions"]
        .iter()
        .all(|name| now.count(name) == 0)
        && now.count("waiting") <= listening
}

/// Judges a run.
pub(crate) fn judge(evidence: &Evidence) -> Verdict {
    let mut verdict = Verdict::default();
    calls(&mut verdict, evidence.ledger);
    let (idle, listening) = (evidence.idle, evidence.listening);
    verdict.say(
        is_idle(idle, listening),
        format!(
            "with its servers and without calls: calls {}, questions {}, waiting {} (at most {listening} to listen)",
            idle.count("calls"),
            idle.count("questions"),
            idle.count("waiting")
        ),
    );
    leftovers(&mut verdict, evidence);
    memory(&mut verdict, evidence);
    updates(&mut verdict, evidence);
    verdict.say(
        evidence.clean_end && !evidence.log.contains("tasks are left behind"),
        "the daemon ended cleanly".to_owned(),
    );
    let panics = evidence.log.matches("panicked").count();
    verdict.say(panics == 0, format!("panics in the daemon: {panics}"));
    let errors: Vec<&str> = evidence
        .log
        .lines()
        .filter(|line| line.contains(" ERROR "))
        .take(5)
        .collect();
    verdict.say(errors.is_empty(), format!("errors in its log: {errors:?}"));
    verdict
}

fn calls(verdict: &mut Verdict, ledger: &Ledger) {
    let (failures, first) = ledger.close();
    let (started, ended) = ledger.totals();
    let (outcomes, events) = ledger.tables();
    println!("\nends of calls:");
    for (outcome, count) in &outcomes {
        let example = ledger.example(outcome).unwrap_or_default();
        println!("  {count:>8}  {outcome} {example}");
    }
    println!("what happened:");
    for (event, count) in &events {
        println!("  {count:>8}  {event}");
    }
    verdict.say(
        started == ended && started > 0,
        format!("calls begun {started}, ended exactly once {ended}"),
    );
    verdict.say(
        failures == 0,
        format!("wrong ends, second runs, broken promises: {failures}"),
    );
    for failure in first {
        println!("failure: {failure}");
    }
}

fn leftovers(verdict: &mut Verdict, evidence: &Evidence) {
    let (before, after) = (evidence.before, evidence.after);
    verdict.say(
        after.children.0 <= before.children.0 && after.children.1 == 0,
        format!(
            "children {} before, {} after (the guard), {} not waited for; at most {} under load",
            before.children.0,
            after.children.0,
            after.children.1,
            peak(evidence, |sample| sample.children.0)
        ),
    );
    verdict.say(
        evidence.marked_processes <= before.children.0,
        format!(
            "processes with the daemon's marker: {}",
            evidence.marked_processes
        ),
    );
    verdict.say(
        after.fds <= before.fds,
        format!(
            "descriptors {} before, {} after; at most {} under load",
            before.fds,
            after.fds,
            peak(evidence, |sample| sample.fds)
        ),
    );
    verdict.say(
        after.threads <= before.threads,
        format!(
            "threads {} before, {} after; at most {} under load",
            before.threads,
            after.threads,
            peak(evidence, |sample| sample.threads)
        ),
    );
    for (name, allowed) in [
        ("tasks", before.count("tasks")),
        ("calls", 0),
        ("waiting", 0),
        ("questions", 0),
        ("rpcs", 0),
        ("links", 0),
        ("servers", 0),
    ] {
        let top = peak(evidence, |sample| {
            usize::try_from(sample.count(name)).unwrap_or(0)
        });
        verdict.say(
            after.count(name) <= allowed,
            format!(
                "{name} {} before, {} after; at most {top} under load",
                before.count(name),
                after.count(name)
            ),
        );
    }
}

fn peak(evidence: &Evidence, of: impl Fn(&Sample) -> usize) -> usize {
    evidence.samples.iter().map(of).max().unwrap_or(0)
}

fn memory(verdict: &mut Verdict, evidence: &Evidence) {
    let mark = Duration::from_mins(1).min(evidence.duration / 3);
    // One moment says little: big messages come and go.
    let span = mark.min(evidence.duration / 4);
    let first = mean_rss(evidence.samples, mark, mark + span);
    let last = mean_rss(
        evidence.samples,
        evidence.duration.saturating_sub(span),
        evidence.duration,
    );
    let limit = first + first * GROWTH / 100;
    println!(
        "memory: {} KiB before, {first} KiB after {mark:?}, {last} KiB at the end of the load, {} KiB at rest ({} KiB and {} KiB of it anonymous)",
        evidence.before.rss,
        evidence.after.rss,
        evidence.before.anonymous,
        evidence.after.anonymous
    );
    if evidence.duration < SHORTEST {
        println!("memory is still finding its level: it is judged from {SHORTEST:?} of load on");
        return;
    }
    for (when, level) in [
        ("at the end of the load", last),
        ("at rest", evidence.after.rss),
    ] {
        verdict.say(
            level <= limit,
            format!("memory {when} {level} KiB, after {mark:?} {first} KiB (limit {limit} KiB)"),
        );
    }
}

/// Nobody missed a change: what two readers have both read is the same.
fn updates(verdict: &mut Verdict, evidence: &Evidence) {
    let Some((steady, others)) = evidence.seen.split_first() else {
        return verdict.say(false, "nobody read updates".to_owned());
    };
    let mut missed = 0;
    for other in others {
        let since = steady.since.max(other.since);
        let of = |seen: &Seen| -> Vec<u64> {
            let all = seen.revisions.iter().copied();
            all.filter(|revision| *revision > since).collect()
        };
        let (one, two) = (of(steady), of(other));
        if one != two {
            let lacking = one
                .iter()
                .filter(|revision| two.binary_search(revision).is_err());
            missed += lacking.count().max(1);
        }
    }
    verdict.say(
        missed == 0,
        format!(
            "changes up to revision {}; missed by readers that resume: {missed}",
            evidence.head
        ),
    );
    let open = evidence.seen.iter().map(|seen| {
        let servers = seen.exists.iter().filter(|(is_server, _)| *is_server);
        servers.count()
    });
    let open: usize = open.sum();
    verdict.say(
        open == 0,
        format!("servers that readers still believe in: {open}"),
    );
}
