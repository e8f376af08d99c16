//! How long a call may still take: two clocks that stop while a human is asked.

use std::time::{Duration, Instant};

use super::call::CallOptions;
use crate::base::Clock;
use crate::error::{Error, Reason};

/// How long a call may still take. The clocks run only while the server is expected to work.
#[derive(Debug)]
pub struct Patience {
    call: Duration,
    idle: Duration,
    left: Duration,
    idle_since: Instant,
    running_since: Option<Instant>,
}

impl Patience {
    /// Both clocks, standing still.
    #[must_use]
    pub fn new(options: &CallOptions) -> Self {
        let (call, idle) = (options.call_timeout, options.idle_timeout);
        Self {
            call,
            idle,
            left: call,
            idle_since: Clock.now(),
            running_since: None,
        }
    }

    /// How much is left of the bound on the whole call; see [`Patience::with`].
    #[must_use]
    pub fn left(&self) -> Duration {
        self.left
    }

    /// The clocks of a call that has rested, of which so much was left.
    #[must_use]
    pub fn with(options: &CallOptions, left: Duration) -> Self {
        Self {
            left,
            ..Self::new(options)
        }
    }

    /// Starts or stops both clocks.
    pub(super) fn run(&mut self, run: bool) {
        let now = Clock.now();
        if let Some(since) = self.running_since.take() {
            self.left = self
                .left
                .saturating_sub(now.saturating_duration_since(since));
        } else {
            self.sign_of_life();
        }
        self.running_since = run.then_some(now);
    }

    pub(super) fn sign_of_life(&mut self) {
        self.idle_since = self.idle_since.max(Clock.now());
    }

    /// Nothing is to be heard from the server for a while: its silence counts from then on.
    pub(super) fn expect_silence(&mut self, pause: Duration) {
        if let Some(end) = Clock.now().checked_add(pause) {
            self.idle_since = self.idle_since.max(end);
        }
    }

    fn end(&self) -> Instant {
        let start = self.running_since.unwrap_or_else(|| Clock.now());
        let far = start + Duration::from_hours(24 * 365);
        let call_end = start.checked_add(self.left).unwrap_or(far);
        let idle_end = self.idle_since.checked_add(self.idle).unwrap_or(far);
        call_end.min(idle_end)
    }

    pub(super) fn exhausted(&self) -> impl Future<Output = ()> + use<> {
        tokio::time::sleep_until(self.end().into())
    }

    pub(super) fn error(&self) -> Error {
        let idle_end = self.idle_since.checked_add(self.idle);
        let message = if idle_end.is_some_and(|end| end <= Clock.now()) {
            format!(
                "the server was silent for {:?} (timeouts.call_idle); the call was cancelled",
                self.idle
            )
        } else {
            format!(
                "the call took longer than {:?} (timeouts.call) and was cancelled",
                self.call
            )
        };
        Error::new(Reason::UpstreamTimeout, message)
    }
}
