//! How much is under way: counts that go down by themselves when what they count is dropped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How many of something exist now. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Gauge(Arc<AtomicUsize>);

impl Gauge {
    /// Counts one more for as long as the returned value lives.
    #[must_use]
    pub fn enter(&self) -> Counted {
        self.0.fetch_add(1, Ordering::Relaxed);
        Counted(self.clone())
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// One that is counted; see [`Gauge::enter`].
#[derive(Debug)]
pub struct Counted(Gauge);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How often something happened. Clones share the count.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<AtomicU64>);

impl Tally {
    /// It happened once more.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// How often it happened.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// What is under way, which must come to rest when nothing is asked of the daemon, and what happened. Clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Load {
    /// RPCs of apps, streams among them.
    pub rpcs: Gauge,
    /// Calls that are made at servers for apps.
    pub calls: Gauge,
    /// Requests that wait for their answers in the table of a channel that many share.
    pub waiting: Gauge,
    /// Links to servers, until their last owner has let go of them.
    pub links: Gauge,
    /// Attempts to connect to a server.
    pub dials: Tally,
    /// Those that failed; not those that were given up.
    pub failed_dials: Tally,
    /// Readings of a server's lists that were begun.
    pub refreshes: Tally,
}

#[cfg(test)]
mod tests {
    use super::Gauge;

    #[test]
    fn what_is_dropped_is_no_longer_counted() {
        let gauge = Gauge::default();
        let (one, two) = (gauge.enter(), gauge.clone().enter());
        assert_eq!(gauge.count(), 2);
        drop(one);
        assert_eq!(gauge.count(), 1);
        drop(two);
        assert_eq!(gauge.count(), 0);
    }
}
