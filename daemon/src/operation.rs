//! What an operator can ask of the running daemon and do to it: how it is, what it logs, to read its configuration again, to stop.
//!
//! Knows no gRPC; whether somebody may is decided above.

pub mod declared;
pub mod explain;
pub mod reload;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::access::Access;
use crate::base::load::Load;
use crate::base::{Clock, Timestamp};
use crate::config::{Config, Sources};
use crate::error::{Error, Result};
use crate::registry::Registry;
use crate::telemetry::LogFilter;

/// For how long another log filter can hold.
const LOG_FILTER_TIME: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_hours(720);

/// The running daemon as its operator sees it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Operation(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    parts: Parts,
    running: tokio::sync::Mutex<Config>,
    /// When that was read, in milliseconds: whoever asks does not wait for a reload.
    read: AtomicI64,
    started: Timestamp,
    since: Instant,
    /// Cancelled when the operator wants the daemon to stop.
    stop: CancellationToken,
}

/// What [`Operation`] works with.
#[derive(Debug)]
pub struct Parts {
    /// Where the configuration comes from.
    pub sources: Sources,
    /// The servers.
    pub registry: Registry,
    /// Who may use which namespaces.
    pub access: Access,
    /// What is logged.
    pub log: LogFilter,
    /// What is under way.
    pub load: Load,
    /// Owner of the tasks that wait for something.
    pub tasks: TaskTracker,
    /// Cancelled when the daemon begins to stop.
    pub draining: CancellationToken,
    /// Where the sockets and the state are.
    pub places: Places,
}

/// Where the daemon's files are.
#[derive(Clone, Debug)]
pub struct Places {
    /// The socket for apps, if its path is known.
    pub app_socket: Option<PathBuf>,
    /// The admin socket, if its path is known.
    pub admin_socket: Option<PathBuf>,
    /// Where apps with tokens come in.
    pub tcp: Option<SocketAddr>,
    /// The state.
    pub data_dir: PathBuf,
}

impl Operation {
    /// Of a daemon that starts now with this configuration.
    #[must_use]
    pub fn new(parts: Parts, config: Config) -> Self {
        let started = Clock.wall();
        Self(Arc::new(Inner {
            parts,
            running: tokio::sync::Mutex::new(config),
            read: AtomicI64::new(started.0),
            started,
            since: Clock.now(),
            stop: CancellationToken::new(),
        }))
    }

    /// When the daemon started.
    #[must_use]
    pub fn started(&self) -> Timestamp {
        self.0.started
    }

    /// How long it has been running.
    #[must_use]
    pub fn uptime(&self) -> Duration {
        Clock.now().saturating_duration_since(self.0.since)
    }

    /// Where its files are.
    #[must_use]
    pub fn places(&self) -> &Places {
        &self.0.parts.places
    }

    /// The file that the configuration comes from, if any, and when it was last read with success.
    #[must_use]
    pub fn configuration(&self) -> (Option<PathBuf>, Timestamp) {
        let read = self.0.read.load(Ordering::Relaxed);
        (self.0.parts.sources.config_file(), Timestamp(read))
    }

    /// What is under way.
    #[must_use]
    pub fn load(&self) -> &Load {
        &self.0.parts.load
    }

    /// What is logged, and until when if that was set for a time.
    #[must_use]
    pub fn log_filter(&self) -> (String, Option<Timestamp>) {
        self.0.parts.log.now()
    }

    /// Logs by this filter for a time, or until the daemon ends; the empty filter is the configured one.
    ///
    /// # Errors
    /// `INVALID_FIELD` for what is no filter, or a time out of bounds.
    pub fn set_log_filter(&self, filter: &str, time: Option<Duration>) -> Result<()> {
        if let Some(time) = time
            && !LOG_FILTER_TIME.contains(&time)
        {
            return Err(Error::invalid(
                "duration",
                format!("{time:?} is out of bounds; give 1 s to 720 h"),
            ));
        }
        let parts = &self.0.parts;
        parts
            .log
            .set(filter, time, &parts.tasks, parts.draining.clone())?;
        tracing::info!(
            filter = self.log_filter().0,
            ?time,
            "the log filter was set"
        );
        Ok(())
    }

    /// Whether the daemon is stopping.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.parts.draining.is_cancelled() || self.0.stop.is_cancelled()
    }

    /// The daemon shall stop. Returns whether it is stopping already.
    #[must_use]
    pub fn drain(&self) -> bool {
        let already = self.is_draining();
        self.0.stop.cancel();
        already
    }

    /// Completes when the operator wants the daemon to stop.
    pub async fn stopping(&self) {
        self.0.stop.cancelled().await;
    }
}
