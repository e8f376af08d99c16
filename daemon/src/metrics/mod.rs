//! Figures for Prometheus: what happened since the start is counted here, how things stand is asked for when somebody looks.
//!
//! | file | |
//! |---|---|
//! | `page` | the figures as text, under their names |
//! | `process` | what the kernel says of the daemon's process |
//! | `questions` | counts the ends of questions, from the update log |
//! | `serve` | the HTTP listener |
//!
//! What varies in number is bounded: series of a server end with it, tools are no label, methods are those of the contract.

mod page;
mod process;
mod questions;
mod serve;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::histogram::Histogram;

pub use questions::follow;
pub use serve::{Bound, Look, serve};

use crate::base::{Clock, ServerKey, Timestamp};

/// The method of an RPC that the contract does not know.
const OTHER: &str = "other";
/// Bounds of the buckets of durations, in seconds: from what is answered from memory to what people are asked for.
const BUCKETS: [f64; 12] = [
    0.001, 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0, 600.0,
];

/// What is counted. Cheap to clone; counts nothing unless somebody can look.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Option<Arc<Inner>>);

#[derive(Debug)]
struct Inner {
    started: Timestamp,
    /// The RPCs of the contract, as they are in requests.
    methods: HashSet<String>,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    calls: HashMap<ServerKey, Calls>,
    rpcs: BTreeMap<String, Rpcs>,
    questions: BTreeMap<(&'static str, &'static str), u64>,
}

/// Calls to one server that have ended.
#[derive(Debug)]
struct Calls {
    ended: BTreeMap<&'static str, u64>,
    took: Histogram,
}

/// RPCs of one method that have ended.
#[derive(Debug)]
struct Rpcs {
    ended: BTreeMap<&'static str, u64>,
    took: Histogram,
}

/// How things stand now.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// The servers: how each stands, and how many calls are under way there.
    pub servers: Vec<(ServerKey, &'static str, u32)>,
    /// Calls that are made at servers now.
    pub calls_in_flight: usize,
    /// RPCs that are under way, streams among them.
    pub rpcs_in_flight: usize,
    /// Links to servers.
    pub links: usize,
    /// Attempts to connect to servers, and how many failed.
    pub dials: (u64, u64),
    /// How often the lists of a server were read.
    pub refreshes: u64,
    /// Questions that wait for an answer.
    pub questions_pending: u64,
    /// Update streams and followers of resources.
    pub subscribers: usize,
    /// The last entry of the update log, and how many are kept.
    pub updates: (u64, u64),
}

impl Metrics {
    /// Counts from now on. `methods` are the paths of the RPCs of the contract.
    #[must_use]
    pub fn new(methods: HashSet<String>) -> Self {
        Self(Some(Arc::new(Inner {
            started: Clock.wall(),
            methods,
            counts: Mutex::default(),
        })))
    }

    /// Whether anything is counted.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// A call has ended.
    pub fn call(&self, server: &ServerKey, outcome: &'static str, took: Duration) {
        let Some(inner) = &self.0 else { return };
        let mut counts = inner.counts();
        let calls = counts.calls.entry(server.clone()).or_insert_with(|| Calls {
            ended: BTreeMap::new(),
            took: Histogram::new(BUCKETS),
        });
        *calls.ended.entry(outcome).or_default() += 1;
        calls.took.observe(took.as_secs_f64());
    }

    /// An RPC has ended.
    pub fn rpc(&self, path: &str, code: &'static str, took: Duration) {
        let Some(inner) = &self.0 else { return };
        let name = if inner.methods.contains(path) {
            path.trim_start_matches('/')
        } else {
            OTHER
        };
        let mut counts = inner.counts();
        if !counts.rpcs.contains_key(name) {
            let rpcs = Rpcs {
                ended: BTreeMap::new(),
                took: Histogram::new(BUCKETS),
            };
            counts.rpcs.insert(name.to_owned(), rpcs);
        }
        if let Some(rpcs) = counts.rpcs.get_mut(name) {
            *rpcs.ended.entry(code).or_default() += 1;
            rpcs.took.observe(took.as_secs_f64());
        }
    }

    /// A question has ended.
    fn question(&self, mode: &'static str, end: &'static str) {
        let Some(inner) = &self.0 else { return };
        *inner.counts().questions.entry((mode, end)).or_default() += 1;
    }
}

impl Inner {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
