//! Closed loops of calls: so many workers, each of which makes its next call when it has the answer to the last one.
//!
//! Paths that are compared take turns in short rounds within one run, so that what disturbs the machine disturbs all of them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;

/// Makes one call and waits for its answer.
pub(crate) type Call = Arc<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// A way to the server.
#[derive(Clone)]
pub(crate) struct Path {
    /// What it is called in tables.
    pub(crate) name: String,
    /// Makes a call on it.
    pub(crate) call: Call,
    /// The process whose CPU time is counted, if any.
    pub(crate) pid: Option<i32>,
}

impl Path {
    /// A way on which this makes a call.
    pub(crate) fn new<F, T>(name: &str, call: F) -> Self
    where
        F: Fn() -> T + Send + Sync + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        Self {
            name: name.to_owned(),
            call: Arc::new(move || Box::pin(call())),
            pid: None,
        }
    }

    /// Counts the CPU time of this process.
    pub(crate) fn of(mut self, pid: i32) -> Self {
        self.pid = Some(pid);
        self
    }
}

/// How a run goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// Workers at the same time.
    pub(crate) concurrency: usize,
    /// Turns of every path.
    pub(crate) rounds: usize,
    /// Length of one turn.
    pub(crate) turn: Duration,
}

/// What was seen on one path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    /// The median of all calls.
    pub(crate) p50: Duration,
    /// The 99th percentile of all calls.
    pub(crate) p99: Duration,
    /// Calls per second: the median of the rounds.
    pub(crate) rate: f64,
    /// How far the rounds lie apart, as a share of the median.
    pub(crate) spread: f64,
    /// CPU time of the process per call.
    pub(crate) cpu: Option<Duration>,
}

#[derive(Default)]
struct Seen {
    latencies: Vec<Duration>,
    rates: Vec<f64>,
    cpu: Duration,
}

/// Runs all paths, in turns.
pub(crate) async fn in_turns(paths: &[Path], plan: Plan) -> Vec<Figures> {
    for path in paths {
        // Connections are open, and everything has been here once.
        turn(path, plan, Duration::from_millis(100)).await;
    }
    let mut seen: Vec<Seen> = paths.iter().map(|_| Seen::default()).collect();
    for round in 0..plan.rounds {
        for place in 0..paths.len() {
            // Who follows whom differs from round to round.
            let index = if round % 2 == 0 {
                place
            } else {
                paths.len() - 1 - place
            };
            let (path, seen) = (&paths[index], &mut seen[index]);
            let before = path.pid.map(cpu_time);
            let (latencies, took) = turn(path, plan, plan.turn).await;
            if let (Some(pid), Some(before)) = (path.pid, before) {
                seen.cpu += cpu_time(pid).saturating_sub(before);
            }
            seen.rates.push(latencies.len() as f64 / took.as_secs_f64());
            seen.latencies.extend(latencies);
        }
    }
    let figures = seen.into_iter().zip(paths).map(|(mut seen, path)| {
        seen.latencies.sort_unstable();
        seen.rates.sort_by(f64::total_cmp);
        let rate = seen.rates[seen.rates.len() / 2];
        let calls = u32::try_from(seen.latencies.len()).unwrap();
        Figures {
            p50: percentile(&seen.latencies, 50),
            p99: percentile(&seen.latencies, 99),
            rate,
            spread: (seen.rates[seen.rates.len() - 1] - seen.rates[0]) / rate,
            cpu: path.pid.map(|_| seen.cpu / calls),
        }
    });
    figures.collect()
}

async fn turn(path: &Path, plan: Plan, length: Duration) -> (Vec<Duration>, Duration) {
    let began = Instant::now();
    let workers: Vec<_> = (0..plan.concurrency)
        .map(|_| {
            let call = Arc::clone(&path.call);
            tokio::spawn(async move {
                let mut latencies = Vec::new();
                let mut before = began;
                while before - began < length || latencies.is_empty() {
                    call().await;
                    let now = Instant::now();
                    latencies.push(now - before);
                    before = now;
                }
                latencies
            })
        })
        .collect();
    let mut all = Vec::new();
    for worker in workers {
        all.extend(worker.await.unwrap());
    }
    (all, began.elapsed())
}

/// A percentile of values in order.
pub(crate) fn percentile(sorted: &[Duration], share: usize) -> Duration {
    sorted[(sorted.len() - 1) * share / 100]
}

/// CPU time of all threads of a process so far, of those that live.
pub(crate) fn cpu_time(pid: i32) -> Duration {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else {
        return Duration::ZERO;
    };
    let times = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        let nanos: u64 = text.split_whitespace().next()?.parse().ok()?;
        Some(Duration::from_nanos(nanos))
    });
    times.sum()
}
