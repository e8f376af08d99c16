//! How much memory half-sent requests may take: an app that announces large messages on many streams and never finishes
//! them must not take the daemon's memory. Counts bytes; never looks at them.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};
use tonic::Status;

use crate::error::{Error, Reason};

/// A budget of bytes. Cheap to clone; clones share it.
#[derive(Clone, Debug)]
pub(super) struct Meter(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    used: AtomicUsize,
    limit: usize,
    whose: &'static str,
}

impl Meter {
    /// A budget of `limit` bytes; `whose` is said when it is used up.
    pub(super) fn new(limit: usize, whose: &'static str) -> Self {
        Self(Arc::new(Budget {
            used: AtomicUsize::new(0),
            limit,
            whose,
        }))
    }

    /// Takes bytes out of the budget, if they are there.
    fn take(&self, bytes: usize) -> Result<(), Error> {
        let used = self.0.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if used <= self.0.limit {
            return Ok(());
        }
        self.give_back(bytes);
        Err(Error::new(
            Reason::TooMany,
            format!(
                "{} has more than {} bytes of unfinished requests",
                self.0.whose, self.0.limit
            ),
        ))
    }

    fn give_back(&self, bytes: usize) {
        self.0.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// A request body whose bytes count until it is dropped, which the gRPC library does once it has the message.
#[derive(Debug)]
pub(super) struct Metered<B> {
    inner: B,
    meters: [Meter; 2],
    used: usize,
}

impl<B> Metered<B> {
    /// Counts a body against two budgets: the connection's and the daemon's.
    pub(super) fn new(inner: B, meters: [Meter; 2]) -> Self {
        Self {
            inner,
            meters,
            used: 0,
        }
    }

    fn count(&mut self, bytes: usize) -> Result<(), Error> {
        let [one, two] = &self.meters;
        one.take(bytes)?;
        two.take(bytes).inspect_err(|_| one.give_back(bytes))?;
        self.used += bytes;
        Ok(())
    }
}

impl<B> Drop for Metered<B> {
    fn drop(&mut self) {
        for meter in &self.meters {
            meter.give_back(self.used);
        }
    }
}

impl<B> Body for Metered<B>
where
    B: Body<Data = Bytes> + Unpin,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx));
        Poll::Ready(frame.map(|frame| {
            let frame = frame.map_err(|cause| Status::from_error(cause.into()))?;
            if let Some(data) = frame.data_ref() {
                self.count(data.len())?;
            }
            Ok(frame)
        }))
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::{Meter, Metered};

    #[test]
    fn what_is_dropped_is_free_again() {
        let (connection, daemon) = (Meter::new(10, "the app"), Meter::new(15, "the daemon"));
        let body = || Metered::new((), [connection.clone(), daemon.clone()]);
        let mut first = body();
        assert!(first.count(8).is_ok());
        assert!(body().count(3).is_err());
        drop(first);
        let mut second = body();
        assert!(second.count(10).is_ok());
        let mut other = Metered::new((), [Meter::new(10, "another app"), daemon.clone()]);
        assert!(other.count(6).is_err());
        assert!(other.count(5).is_ok());
    }
}
