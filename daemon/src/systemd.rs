//! What the service manager is told: ready, stopping, alive. Silent when none listens (`NOTIFY_SOCKET` is not set).
//!
//! Never fails the daemon: a message that cannot be sent is logged. Sockets that the service manager passes are taken
//! by `api::socket`, directories by `config`.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The daemon serves; `status` is shown by `systemctl status`. Sent once the socket is open.
pub fn ready(status: &str) {
    send(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// The daemon drains and will end.
pub fn stopping(status: &str) {
    send(&[NotifyState::Stopping, NotifyState::Status(status)]);
}

/// The configuration is being read again; [`ready`] ends this.
pub fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(cause) => tracing::warn!(%cause, "the monotonic clock cannot be read"),
    }
}

/// Pings the service manager's watchdog at half of its interval from a task on `tracker`, until `stop` is cancelled.
/// Does nothing if the unit has no `WatchdogSec=`. A runtime that no longer runs tasks stops pinging, and is restarted.
pub fn watchdog(tracker: &TaskTracker, stop: CancellationToken) {
    let Some(interval) = sd_notify::watchdog_enabled() else {
        return;
    };
    let period = (interval / 2).max(Duration::from_millis(1));
    tracker.spawn(async move {
        let mut ticks = tokio::time::interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = ticks.tick() => send(&[NotifyState::Watchdog]),
            }
        }
    });
}

fn send(state: &[NotifyState<'_>]) {
    if let Err(cause) = sd_notify::notify(state) {
        tracing::warn!(%cause, "the service manager cannot be told");
    }
}
