//! A server on a Unix socket that speaks newline-delimited JSON-RPC: what stdio is for a child, for a process that runs
//! already. The end of the connection is the end of the link.
//!
//! Never starts, signals or waits for the process behind the socket.

use std::sync::Arc;

use bytes::Bytes;
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::base::load::Load;
use crate::error::{Error, Reason};
use crate::mcp::era::Frame;
use crate::mcp::protocol::Message;
use crate::mcp::transport::pending::{Pending, SharedExchange, closed};
use crate::mcp::transport::{Loss, lines};

/// One open connection.
#[derive(Debug)]
pub struct UnixLines {
    outbox: mpsc::Sender<Bytes>,
    pending: Arc<Pending>,
    /// Closes the connection.
    hang_up: CancellationToken,
}

impl Drop for UnixLines {
    fn drop(&mut self) {
        self.hang_up.cancel();
    }
}

impl UnixLines {
    /// Connects. The caller bounds it, and has asked the policy. Messages that belong to no request of ours go to
    /// `inbound`; when it is full they are refused.
    ///
    /// # Errors
    /// `UPSTREAM_UNREACHABLE` when nobody listens.
    pub async fn connect(
        path: &str,
        message_limit: usize,
        inbound: mpsc::Sender<Message>,
        tasks: &TaskTracker,
        load: &Load,
    ) -> Result<Self, Error> {
        let stream = UnixStream::connect(path).await.map_err(|cause| {
            let message = format!("unix:{path} cannot be reached: {cause}");
            Error::new(Reason::UpstreamUnreachable, message)
        })?;
        let (input, output) = stream.into_split();
        let pending = Pending::new(format!("unix:{path}"), message_limit, load.waiting.clone());
        let (outbox, to_write) = mpsc::channel(lines::OUTBOX);
        let hang_up = CancellationToken::new();
        tasks.spawn(lines::write(output, to_write, hang_up.clone()));
        let (table, refusals, end) = (Arc::clone(&pending), outbox.clone(), hang_up.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = lines::read(input, Arc::clone(&table), inbound, refusals, |_| {}) => {}
                () = end.cancelled() => {}
            }
            table.end(&closed(table.who()));
        });
        Ok(Self {
            outbox,
            pending,
            hang_up,
        })
    }

    /// Completes when the connection has ended.
    pub(super) async fn ended(&self) -> Error {
        self.pending.ended().await
    }

    pub(super) async fn request(&self, frame: Frame) -> Result<SharedExchange, Loss> {
        let exchange = self.pending.enter(frame.id)?;
        self.send(frame.body).await?;
        Ok(exchange)
    }

    pub(super) async fn send(&self, body: Bytes) -> Result<(), Loss> {
        let sent = self.outbox.send(body).await;
        sent.map_err(|_| Loss::not_sent(self.pending.why()))
    }

    /// Closes the connection.
    pub(super) fn close(&self) {
        self.hang_up.cancel();
    }
}
