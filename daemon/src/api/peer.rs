//! Who is at the other end of a connection. On a Unix socket the kernel says it, over TCP a token does (`gate`); nothing else
//! that the caller says counts.

use std::sync::Arc;

use tokio::net::UnixStream;
use tokio_util::sync::CancellationToken;

use super::apps::{Apps, Entered, Via};
use crate::base::load::Gauge;
use crate::base::{AppConnection, Caller, Process};
use crate::error::{Error, Result};

/// The process that made a connection, as the kernel recorded it at that moment.
///
/// # Errors
/// INTERNAL if the kernel does not tell.
pub fn process_of(stream: &UnixStream) -> Result<Process> {
    let peer = stream.peer_cred().map_err(|cause| {
        Error::internal(format!("the kernel does not name the caller: {cause}"))
    })?;
    Ok(Process {
        uid: peer.uid(),
        gid: peer.gid(),
        pid: peer.pid(),
    })
}

/// An app on a connection; the operator sees it as long as this lives.
pub(super) struct Known {
    /// Who it is.
    pub(super) caller: Caller,
    /// What it is to the parts below.
    pub(super) app: AppConnection,
    entered: Entered,
}

impl Known {
    /// An app that has connected, until `ended` is cancelled.
    pub(super) fn new(apps: &Apps, caller: Caller, ended: &CancellationToken, via: Via) -> Self {
        let app = AppConnection::new(caller.user(), ended.clone());
        let entered = apps.enter(&app, &caller, via);
        Self {
            caller,
            app,
            entered,
        }
    }

    /// What runs in it, if that can be seen.
    pub(super) fn program(&self) -> Option<String> {
        self.entered.program.clone()
    }

    /// What counts its RPCs.
    pub(super) fn rpcs(&self) -> &Gauge {
        &self.entered.rpcs
    }
}

/// Who makes an RPC.
pub(super) struct Met {
    /// The app.
    pub(super) known: Arc<Known>,
    /// Cancelled when it may no longer be served; `None` if that does not happen.
    pub(super) valid: Option<CancellationToken>,
}
