//! The daemon that holds every MCP connection, token and pending question of a host. See `ARCHITECTURE.md`.
//!
//! This file builds the parts in order and owns their end; it is the only one that sees all of them.

pub mod api;
pub mod base;
pub mod config;
pub mod error;
pub mod model;
pub mod policy;
pub mod systemd;
pub mod telemetry;

#[cfg(test)]
mod architecture_test;

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::service::Routes;

use crate::api::socket::{self, Bound};
use crate::api::{Health, ServeOptions, infrastructure, serve};
use crate::config::Config;
use crate::error::Result;

/// The services of the contract that the daemon serves, by full name.
const SERVICES: &[&str] = &[];

/// What tasks may still do after the last connection has ended.
const LAST_GRACE: Duration = Duration::from_secs(5);

/// A daemon that is built, holds its socket, and does not serve yet.
#[derive(Debug)]
pub struct Daemon {
    config: Config,
    bound: Bound,
    routes: Routes,
    health: Health,
    tracker: TaskTracker,
}

impl Daemon {
    /// Builds the parts in order: everything that can fail at start fails here, before any app is served. Dropping the
    /// result closes the socket.
    ///
    /// # Errors
    /// The failure of the first part that cannot start, with its remedy.
    pub async fn build(config: Config) -> Result<Self> {
        let (routes, health) = infrastructure(Routes::default(), SERVICES).await?;
        let bound = socket::open(&config.socket)?;
        Ok(Self {
            config,
            bound,
            routes,
            health,
            tracker: TaskTracker::new(),
        })
    }

    /// Serves until `shutdown` is cancelled, then drains: health says NOT_SERVING, running RPCs may finish, the socket
    /// is removed. Returns when nothing runs any more, at most `timeouts.drain` and a few seconds later.
    ///
    /// # Errors
    /// That of the accept loop.
    pub async fn run(self, shutdown: CancellationToken) -> Result<()> {
        let drain = CancellationToken::new();
        let end = CancellationToken::new();
        let options = ServeOptions {
            connections: self.config.limits.connections,
            drain: self.config.timeouts.drain,
        };
        let serving = serve(
            self.bound.listener,
            self.routes,
            options,
            drain.clone(),
            self.tracker.clone(),
        );
        self.health.serving().await;
        systemd::watchdog(&self.tracker, end.clone());
        systemd::ready("serving");
        tracing::info!(socket = %self.config.socket.path.display(), "ready");

        let draining = async {
            shutdown.cancelled().await;
            tracing::info!("draining");
            systemd::stopping("draining");
            self.health.draining().await;
            drain.cancel();
        };
        let mut serving = std::pin::pin!(serving);
        let served = tokio::select! {
            served = &mut serving => served,
            () = draining => serving.await,
        };

        end.cancel();
        self.tracker.close();
        if tokio::time::timeout(LAST_GRACE, self.tracker.wait())
            .await
            .is_err()
        {
            tracing::warn!(tasks = self.tracker.len(), "tasks are left behind");
        }
        self.bound.file.remove();
        tracing::info!("stopped");
        served
    }
}
