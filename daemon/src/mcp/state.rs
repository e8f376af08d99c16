//! The life of a connection as a pure machine: a state and an event give the next state and what is to be done.
//!
//! No clock, no randomness, no I/O: the time and the jitter come in, effects go out. `connection` performs them.

use std::time::Duration;

use crate::model::spec::RetryPolicy;
use crate::model::status::ConnectionState;

/// A connection that was READY for this long is healthy: its loss is answered with an immediate attempt, and the
/// back-off starts anew. One that breaks sooner goes on backing off, so that a crash loop never spins.
pub const STABLE_AFTER: Duration = Duration::from_secs(10);

/// Where a connection is. `attempt` counts failed attempts since it was last healthy.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Not connected on purpose.
    Disconnected,
    /// A dial is under way, or a quick retry is about to start.
    Connecting {
        /// Failed attempts so far.
        attempt: u32,
    },
    /// The server wants a sign-in.
    Authenticating,
    /// Lists are being read for the first time on this link.
    Discovering {
        /// Failed attempts so far.
        attempt: u32,
    },
    /// Usable.
    Ready {
        /// Failed attempts before this link.
        attempt: u32,
    },
    /// Waiting for the next background attempt.
    Failed {
        /// Failed attempts so far.
        attempt: u32,
    },
}

impl State {
    /// As apps see it.
    #[must_use]
    pub fn public(self) -> ConnectionState {
        match self {
            Self::Disconnected => ConnectionState::Disconnected,
            Self::Connecting { .. } => ConnectionState::Connecting,
            Self::Authenticating => ConnectionState::Authenticating,
            Self::Discovering { .. } => ConnectionState::Discovering,
            Self::Ready { .. } => ConnectionState::Ready,
            Self::Failed { .. } => ConnectionState::Failed,
        }
    }

    /// Failed attempts since the connection was last healthy.
    #[must_use]
    pub fn attempts(self) -> u32 {
        match self {
            Self::Connecting { attempt }
            | Self::Discovering { attempt }
            | Self::Ready { attempt }
            | Self::Failed { attempt } => attempt,
            Self::Disconnected | Self::Authenticating => 0,
        }
    }
}

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// Somebody wants the connection: start-up, AddServer, ConnectServer, or changed settings (`fresh`: what is open is
    /// replaced).
    Connect {
        /// Whether an open link is to be replaced.
        fresh: bool,
    },
    /// Somebody wants it ended.
    Disconnect,
    /// A dial succeeded and a version is agreed.
    Opened,
    /// A dial failed.
    OpenFailed(Fault),
    /// The lists of a new link are read, completely or in part.
    Listed,
    /// The link ended, `healthy` if it had been READY for [`STABLE_AFTER`], or was nothing but an old session resumed.
    Lost {
        /// Why.
        fault: Fault,
        /// See above.
        healthy: bool,
    },
    /// The delay of a retry is over.
    RetryDue,
}

/// What kind of failure it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// May go away by itself: try again soon.
    Transient,
    /// Needs somebody to act: try again, but slowly.
    Permanent,
    /// Needs a sign-in: do not try again.
    Unauthorized,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Effect {
    /// Dial. At most one dial runs.
    Open,
    /// Stop a dial that is running.
    AbortOpen,
    /// Close the link.
    Close,
    /// Read all lists.
    List,
    /// Send [`Event::RetryDue`] after this delay.
    Retry(Duration),
    /// Forget a retry that was scheduled.
    CancelRetry,
}

/// How attempts are spaced.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spacing {
    /// The server's own policy.
    pub retry: RetryPolicy,
    /// Upper bound of background delays.
    pub max_background: Duration,
    /// In [0, 1): where in its range a delay falls.
    pub jitter: f64,
}

impl Spacing {
    /// The delay before the attempt that follows `attempt` failed ones (1 is the first failure). Quick attempts have
    /// full jitter; background ones at least half of their range, so that they never bunch at the start.
    #[must_use]
    pub fn delay(&self, attempt: u32, fault: Fault) -> Duration {
        let quick = attempt < self.retry.max_attempts && fault == Fault::Transient;
        if quick {
            let bound = self
                .retry
                .base_delay
                .saturating_mul(1 << attempt.saturating_sub(1).min(16));
            return bound.min(self.retry.max_delay).mul_f64(self.jitter);
        }
        let steps = attempt.saturating_sub(self.retry.max_attempts).min(16);
        let start = self.retry.max_delay.max(Duration::from_secs(1));
        let bound = start
            .saturating_mul(1 << steps)
            .min(self.max_background.max(start));
        bound.mul_f64(0.5 + self.jitter / 2.0)
    }
}

/// The next state and what is to be done, in order. An event that means nothing in a state changes nothing.
#[must_use]
pub fn step(state: State, event: Event, spacing: &Spacing) -> (State, Vec<Effect>) {
    use Effect::{AbortOpen, CancelRetry, Close, List, Open};
    use State::{Authenticating, Connecting, Disconnected, Discovering, Failed, Ready};

    match (state, event) {
        (Disconnected | Authenticating, Event::Connect { .. }) => {
            (Connecting { attempt: 0 }, vec![Open])
        }
        (Failed { .. }, Event::Connect { .. }) => {
            (Connecting { attempt: 0 }, vec![CancelRetry, Open])
        }
        (Connecting { .. }, Event::Connect { fresh: true }) => (
            Connecting { attempt: 0 },
            vec![CancelRetry, AbortOpen, Open],
        ),
        (Discovering { .. } | Ready { .. }, Event::Connect { fresh: true }) => {
            (Connecting { attempt: 0 }, vec![Close, Open])
        }

        (Connecting { .. }, Event::Disconnect) => (Disconnected, vec![CancelRetry, AbortOpen]),
        (Failed { .. }, Event::Disconnect) => (Disconnected, vec![CancelRetry]),
        (Discovering { .. } | Ready { .. }, Event::Disconnect) => (Disconnected, vec![Close]),
        (Authenticating, Event::Disconnect) => (Disconnected, vec![]),

        (Connecting { attempt }, Event::Opened) => (Discovering { attempt }, vec![List]),
        (Connecting { attempt }, Event::OpenFailed(fault)) => failed(attempt + 1, fault, spacing),
        (Discovering { attempt }, Event::Listed) => (Ready { attempt }, vec![]),

        (
            Discovering { .. } | Ready { .. },
            Event::Lost {
                fault: Fault::Transient,
                healthy: true,
            },
        ) => (Connecting { attempt: 0 }, vec![Close, Open]),
        (Discovering { attempt } | Ready { attempt }, Event::Lost { fault, .. }) => {
            let (state, mut effects) = failed(attempt + 1, fault, spacing);
            effects.insert(0, Close);
            (state, effects)
        }

        (Connecting { attempt } | Failed { attempt }, Event::RetryDue) => {
            // Quick retries stay CONNECTING; background ones show that something is tried again.
            (Connecting { attempt }, vec![Open])
        }

        (
            state,
            Event::Connect { .. }
            | Event::Disconnect
            | Event::Opened
            | Event::OpenFailed(_)
            | Event::Listed
            | Event::Lost { .. }
            | Event::RetryDue,
        ) => (state, vec![]),
    }
}

fn failed(attempt: u32, fault: Fault, spacing: &Spacing) -> (State, Vec<Effect>) {
    if fault == Fault::Unauthorized {
        return (State::Authenticating, vec![]);
    }
    let retry = Effect::Retry(spacing.delay(attempt, fault));
    if fault == Fault::Transient && attempt < spacing.retry.max_attempts {
        (State::Connecting { attempt }, vec![retry])
    } else {
        (State::Failed { attempt }, vec![retry])
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::{Just, Strategy, prop_assert, prop_oneof, proptest};

    use super::{Effect, Event, Fault, Spacing, State, step};
    use crate::model::spec::RetryPolicy;

    const SPACING: Spacing = Spacing {
        retry: RetryPolicy {
            max_attempts: 3,
            base_delay: Duration::from_millis(500),
            max_delay: Duration::from_secs(5),
        },
        max_background: Duration::from_mins(5),
        jitter: 0.5,
    };

    fn run(events: &[Event]) -> (State, Vec<Effect>) {
        let mut state = State::Disconnected;
        let mut all = Vec::new();
        for event in events {
            let (next, effects) = step(state, *event, &SPACING);
            state = next;
            all.extend(effects);
        }
        (state, all)
    }

    const CONNECT: Event = Event::Connect { fresh: false };
    const FAIL: Event = Event::OpenFailed(Fault::Transient);

    #[test]
    fn three_attempts_then_the_background() {
        let (state, effects) = run(&[CONNECT, FAIL, Event::RetryDue, FAIL, Event::RetryDue, FAIL]);
        assert_eq!(state, State::Failed { attempt: 3 });
        let dials = effects
            .iter()
            .filter(|effect| **effect == Effect::Open)
            .count();
        assert_eq!(dials, 3);
        let (state, _) = run(&[CONNECT, FAIL, Event::RetryDue, FAIL]);
        assert_eq!(state, State::Connecting { attempt: 2 });
    }

    #[test]
    fn a_sign_in_is_never_retried() {
        let (state, effects) = run(&[CONNECT, Event::OpenFailed(Fault::Unauthorized)]);
        assert_eq!(
            (state, effects),
            (State::Authenticating, vec![Effect::Open])
        );
    }

    #[test]
    fn a_healthy_loss_dials_at_once_and_a_crash_loop_backs_off() {
        let ready = [CONNECT, Event::Opened, Event::Listed];
        let lost = |healthy| Event::Lost {
            fault: Fault::Transient,
            healthy,
        };
        let (state, effects) = run(&[ready.as_slice(), &[lost(true)]].concat());
        assert_eq!(state, State::Connecting { attempt: 0 });
        assert_eq!(effects.last(), Some(&Effect::Open));
        let mut events = ready.to_vec();
        for _ in 0..4 {
            events.extend([lost(false), Event::RetryDue, Event::Opened, Event::Listed]);
        }
        let (state, _) = run(&events);
        assert_eq!(state, State::Ready { attempt: 4 });
    }

    #[test]
    fn delays_grow_and_stay_within_bounds() {
        let delay = |attempt| SPACING.delay(attempt, Fault::Transient);
        assert_eq!(delay(1), Duration::from_millis(250));
        assert_eq!(delay(2), Duration::from_millis(500));
        assert!(delay(3) >= Duration::from_millis(2500));
        assert!(delay(40) <= SPACING.max_background);
        assert!(SPACING.delay(1, Fault::Permanent) >= Duration::from_millis(2500));
    }

    fn any_event() -> impl Strategy<Value = Event> {
        let fault = prop_oneof![
            Just(Fault::Transient),
            Just(Fault::Permanent),
            Just(Fault::Unauthorized)
        ];
        prop_oneof![
            proptest::bool::ANY.prop_map(|fresh| Event::Connect { fresh }),
            Just(Event::Disconnect),
            Just(Event::Opened),
            fault.clone().prop_map(Event::OpenFailed),
            Just(Event::Listed),
            (fault, proptest::bool::ANY)
                .prop_map(|(fault, healthy)| Event::Lost { fault, healthy }),
            Just(Event::RetryDue),
        ]
    }

    proptest! {
        /// Whatever happens in whatever order: READY is only reached through a dial and its lists and only left for a
        /// cause; a connection that is wanted always has something under way that will bring it forward.
        #[test]
        fn no_order_of_events_strands_a_connection(events in proptest::collection::vec(any_event(), 0..60)) {
            let mut state = State::Disconnected;
            let (mut link, mut dialling, mut retrying) = (false, false, false);
            for event in events {
                // Only what can happen: results need a dial, losses need a link.
                match event {
                    Event::Opened | Event::OpenFailed(_) if !dialling => continue,
                    Event::Lost { .. } | Event::Listed if !link => continue,
                    Event::RetryDue if !retrying => continue,
                    Event::Opened => { dialling = false; link = true; }
                    Event::OpenFailed(_) => dialling = false,
                    Event::RetryDue => retrying = false,
                    _ => {}
                }
                let before = state;
                let (next, effects) = step(state, event, &SPACING);
                for effect in effects {
                    match effect {
                        Effect::Open => { prop_assert!(!dialling && !link, "{before:?} {event:?}"); dialling = true; }
                        Effect::AbortOpen => dialling = false,
                        Effect::Close => { prop_assert!(link); link = false; }
                        Effect::List => prop_assert!(link),
                        Effect::Retry(_) => retrying = true,
                        Effect::CancelRetry => retrying = false,
                    }
                }
                state = next;
                match state {
                    State::Connecting { .. } => prop_assert!(dialling != retrying, "{before:?} {event:?}"),
                    State::Failed { .. } => prop_assert!(retrying && !dialling && !link),
                    State::Discovering { .. } | State::Ready { .. } => prop_assert!(link && !dialling && !retrying),
                    State::Disconnected | State::Authenticating => prop_assert!(!link && !dialling && !retrying),
                }
                if matches!(state, State::Ready { .. }) && before != state {
                    prop_assert!(event == Event::Listed);
                }
            }
        }
    }
}
