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

/// A request body whose bytes count until the gRPC library has decoded the message that they belong to, and at the latest
/// until it is dropped.
#[derive(Debug)]
pub(super) struct Metered<B> {
    inner: B,
    meters: [Meter; 2],
    used: usize,
    /// How many of them belong to messages that have ended.
    finished: usize,
    frames: Frames,
}

/// Follows the messages in a body (gRPC over HTTP2, "Length-Prefixed-Message").
#[derive(Debug, Default)]
struct Frames {
    /// How much of the prefix of the current message is there, and what.
    seen: usize,
    prefix: [u8; 5],
    /// How much of the current message is missing, once its prefix is there.
    missing: usize,
}

impl Frames {
    /// Takes the next bytes, and tells how many of them belong to a message that has not ended with them; `None` if no
    /// message has ended with them.
    fn read(&mut self, mut bytes: &[u8]) -> Option<usize> {
        let mut unfinished = None;
        while !bytes.is_empty() {
            let wanted = if self.seen < self.prefix.len() {
                self.prefix.len() - self.seen
            } else {
                self.missing
            };
            let (now, rest) = bytes.split_at(wanted.min(bytes.len()));
            bytes = rest;
            if let Some(prefix) = self.prefix.get_mut(self.seen..)
                && !prefix.is_empty()
            {
                prefix
                    .iter_mut()
                    .zip(now)
                    .for_each(|(to, from)| *to = *from);
                self.seen += now.len();
                if self.seen < self.prefix.len() {
                    break;
                }
                let [_, length @ ..] = self.prefix;
                self.missing = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
            } else {
                self.missing -= now.len();
            }
            if self.missing == 0 {
                self.seen = 0;
                unfinished = Some(bytes.len());
            }
        }
        unfinished
    }
}

impl<B> Metered<B> {
    /// Counts a body against two budgets: the connection's and the daemon's.
    pub(super) fn new(inner: B, meters: [Meter; 2]) -> Self {
        Self {
            inner,
            meters,
            used: 0,
            finished: 0,
            frames: Frames::default(),
        }
    }

    fn count(&mut self, bytes: usize) -> Result<(), Error> {
        let [one, two] = &self.meters;
        one.take(bytes)?;
        two.take(bytes).inspect_err(|_| one.give_back(bytes))?;
        self.used += bytes;
        Ok(())
    }

    fn read(&mut self, data: &[u8]) -> Result<(), Error> {
        self.count(data.len())?;
        if let Some(unfinished) = self.frames.read(data) {
            self.finished = self.used - unfinished;
        }
        Ok(())
    }

    /// The library asks for more when it has decoded all that is whole.
    fn give_back_finished(&mut self) {
        for meter in &self.meters {
            meter.give_back(self.finished);
        }
        self.used -= std::mem::take(&mut self.finished);
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
        self.give_back_finished();
        let frame = std::task::ready!(Pin::new(&mut self.inner).poll_frame(cx));
        Poll::Ready(frame.map(|frame| {
            let frame = frame.map_err(|cause| Status::from_error(cause.into()))?;
            if let Some(data) = frame.data_ref() {
                self.read(data)?;
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

    #[test]
    fn a_message_counts_until_more_is_asked_for_after_its_end() {
        let meter = Meter::new(40, "the app");
        let mut body = Metered::new((), [meter.clone(), Meter::new(100, "the daemon")]);
        let message = |bytes: u8| {
            let mut message = vec![0, 0, 0, 0, bytes];
            message.resize(5 + usize::from(bytes), 7);
            message
        };
        // However the bytes come: two messages, an empty one, and the beginning of a fourth.
        let stream = [message(4), message(2), message(0), message(9)].concat();
        let stream = &stream[..stream.len() - 3];
        for size in 1..=stream.len() {
            for chunk in stream.chunks(size) {
                body.give_back_finished();
                body.read(chunk).unwrap();
            }
            body.give_back_finished();
            assert_eq!(body.used, 11, "in chunks of {size}");
            body = Metered::new((), body.meters.clone());
        }
        // What is not finished is bounded.
        assert!(body.read(&message(34)).is_ok());
        assert!(body.read(&[0]).is_ok() && body.read(&[0]).is_err());
        body.give_back_finished();
        assert_eq!(body.used, 1);
    }
}
