//! Newline-delimited JSON-RPC over any stream of bytes: a child's pipes, a Unix socket
//! (MCP 2026-07-28 basic/transports/stdio).
//!
//! Never opens or ends a stream's peer, and never buffers more than one message: a longer line is skipped.

use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::mcp::protocol::{self, Message};
use crate::mcp::transport::pending::{HEAD, Pending};

/// Messages that wait to be written.
pub(super) const OUTBOX: usize = 256;

/// Writes messages, one to a line, until `hang_up` is cancelled, the queue is closed or the peer no longer reads.
pub(super) async fn write(
    mut output: impl AsyncWrite + Unpin,
    mut lines: mpsc::Receiver<Bytes>,
    hang_up: CancellationToken,
) {
    loop {
        let line = tokio::select! {
            () = hang_up.cancelled() => return,
            line = lines.recv() => line,
        };
        let Some(line) = line else { return };
        let mut framed = BytesMut::with_capacity(line.len() + 1);
        // JSON that an app wrote over several lines: a line break between tokens is worth a space.
        framed.extend(line.iter().map(|byte| {
            if matches!(byte, b'\n' | b'\r') {
                b' '
            } else {
                *byte
            }
        }));
        framed.put_u8(b'\n');
        let written = tokio::select! {
            () = hang_up.cancelled() => return,
            written = output.write_all(&framed) => written,
        };
        if written.is_err() {
            // The peer no longer reads; whoever reads from it will say why.
            return;
        }
    }
}

/// Reads messages, one from a line, to the end of the stream. Lines that are no messages go to `skipped`.
pub(super) async fn read(
    mut input: impl AsyncRead + Unpin,
    pending: Arc<Pending>,
    inbound: mpsc::Sender<Message>,
    outbox: mpsc::Sender<Bytes>,
    mut skipped: impl FnMut(&[u8]),
) {
    let mut lines = Lines::new(pending.message_limit());
    let mut garbage = 0_u64;
    loop {
        let mut chunk = BytesMut::with_capacity(16 * 1024);
        let read = input.read_buf(&mut chunk).await;
        let last = !matches!(read, Ok(bytes) if bytes > 0);
        let found = if last {
            lines.finish()
        } else {
            lines.push(&chunk)
        };
        for line in found {
            match line {
                Line::Oversize(head) => pending.oversize(&head),
                Line::Whole(line) => match protocol::parse_all(&line) {
                    Ok(messages) => {
                        for message in messages {
                            if let Some(refusal) = pending.deliver(message, &inbound) {
                                let _ = outbox.try_send(refusal);
                            }
                        }
                    }
                    Err(cause) => {
                        pending.unreadable(&line, &cause);
                        skipped(&line);
                        garbage += 1;
                        if garbage.is_power_of_two() {
                            let who = pending.who();
                            tracing::warn!(%who, %cause, count = garbage, "skipped output that is no message");
                        }
                    }
                },
            }
        }
        if last {
            return;
        }
    }
}

/// Splits a byte stream into lines with a bound; borders between chunks mean nothing.
#[derive(Debug)]
pub struct Lines {
    limit: usize,
    buffer: BytesMut,
    /// Inside a line that is too long: the rest of it is dropped.
    skipping: bool,
}

/// A line of a stream.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// The line, without its end.
    Whole(Bytes),
    /// The beginning of a line that is longer than the limit; the rest is skipped.
    Oversize(Bytes),
}

impl Lines {
    /// Of which none is longer than `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            buffer: BytesMut::new(),
            skipping: false,
        }
    }

    /// The lines that end within the next bytes.
    pub fn push(&mut self, mut chunk: &[u8]) -> Vec<Line> {
        let mut lines = Vec::new();
        while let Some(end) = chunk.iter().position(|byte| *byte == b'\n') {
            let (head, tail) = chunk.split_at(end);
            chunk = tail.get(1..).unwrap_or_default();
            self.take(head, &mut lines);
            self.end_line(&mut lines);
        }
        self.take(chunk, &mut lines);
        lines
    }

    /// The stream is over: what is left is a line too.
    pub fn finish(&mut self) -> Vec<Line> {
        let mut lines = Vec::new();
        self.end_line(&mut lines);
        lines
    }

    fn take(&mut self, part: &[u8], lines: &mut Vec<Line>) {
        if self.skipping {
            return;
        }
        if self.buffer.len() + part.len() > self.limit {
            self.skipping = true;
            self.buffer
                .extend_from_slice(part.get(..HEAD.min(part.len())).unwrap_or_default());
            self.buffer.truncate(HEAD);
            lines.push(Line::Oversize(self.buffer.split().freeze()));
            self.buffer = BytesMut::new();
            return;
        }
        self.buffer.extend_from_slice(part);
    }

    fn end_line(&mut self, lines: &mut Vec<Line>) {
        let line = self.buffer.split().freeze();
        if std::mem::take(&mut self.skipping) {
            return;
        }
        let line = if line.starts_with(b"\xef\xbb\xbf") {
            line.slice(3..)
        } else {
            line
        };
        if !line.trim_ascii().is_empty() {
            lines.push(Line::Whole(line));
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::{Line, Lines};

    fn whole(text: &'static str) -> Line {
        Line::Whole(Bytes::from(text))
    }

    #[test]
    fn lines_survive_any_framing() {
        let mut lines = Lines::new(8);
        assert_eq!(lines.push(b"a\r\n\n  \nbc"), [whole("a\r")]);
        assert_eq!(lines.push(b"d\n"), [whole("bcd")]);
        assert_eq!(
            lines.push(b"123456789"),
            [Line::Oversize(Bytes::from("123456789"))]
        );
        assert_eq!(lines.push(b"more\nok\nlast"), [whole("ok")]);
        assert_eq!(lines.finish(), [whole("last")]);
    }

    proptest! {
        #[test]
        fn chunk_borders_mean_nothing(bytes in any::<Vec<u8>>(), cut in any::<usize>()) {
            let cut = cut % (bytes.len() + 1);
            let (mut one, mut two) = (Lines::new(1000), Lines::new(1000));
            let mut whole = one.push(&bytes);
            whole.extend(one.finish());
            let mut split = two.push(&bytes[..cut]);
            split.extend(two.push(&bytes[cut..]));
            split.extend(two.finish());
            prop_assert_eq!(whole, split);
        }
    }
}
