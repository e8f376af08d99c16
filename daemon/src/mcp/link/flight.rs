//! One request under way; giving it up tells the server.

use std::sync::Arc;

use super::Link;
use crate::mcp::era::Request;
use crate::mcp::protocol::{self, ObjectWriter, method};
use crate::mcp::transport::{Exchange, Loss};
use crate::model::spec::Abilities;
use crate::model::status::Era;

/// A request under way; giving it up tells the server.
pub(super) struct Flight {
    pub(super) exchange: Exchange,
    pub(super) guard: Guard,
    pub(super) landed: bool,
}

impl Drop for Flight {
    fn drop(&mut self) {
        self.guard.armed &= !self.landed;
    }
}

/// Sends `notifications/cancelled` when a request is given up before its answer
/// (MCP 2026-07-28 basic/patterns/cancellation). Modern HTTP has no such message: closing the stream says it.
pub(super) struct Guard {
    pub(super) link: Arc<Link>,
    pub(super) id: u64,
    pub(super) armed: bool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        let link = &self.link;
        let by_stream = link.dialect.era() == Era::Modern && link.transport.is_streamable_http();
        if !self.armed || by_stream || link.closed.is_cancelled() {
            return;
        }
        let mut params = ObjectWriter::new();
        params
            .raw("requestId", &self.id.to_string())
            .string("reason", "cancelled by the caller");
        let body = protocol::encode_notification(method::CANCELLED, Some(&params.finish()));
        let headers = link.dialect.message_headers(method::CANCELLED);
        let (transport, closed) = (link.transport.clone(), link.closed.clone());
        let bound = link.request_timeout;
        link.tasks.spawn(async move {
            tokio::select! {
                _ = tokio::time::timeout(bound, transport.send(body, &headers)) => {}
                () = closed.cancelled() => {}
            }
        });
    }
}

impl Link {
    pub(super) async fn send(
        self: &Arc<Self>,
        request: &Request,
        id: u64,
        able: Abilities,
    ) -> std::result::Result<Flight, Loss> {
        let frame = self.dialect.encode(request, id, able);
        // A child has not seen a request that still waits for its turn; over HTTP it may be on its way already.
        let armed = self.transport.is_streamable_http();
        let mut guard = Guard {
            link: Arc::clone(self),
            id,
            armed,
        };
        match self.transport.request(frame).await {
            Ok(exchange) => {
                guard.armed = true;
                Ok(Flight {
                    exchange,
                    guard,
                    landed: false,
                })
            }
            Err(loss) => {
                guard.armed = false;
                Err(loss)
            }
        }
    }
}
