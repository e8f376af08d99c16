//! Server-Sent Events as a push parser: bytes in, events out (HTML standard, "event stream interpretation").
//!
//! No I/O. Bounded: an event larger than the limit is an error, or skipped, never a growing buffer.

use bytes::{Bytes, BytesMut};
use std::time::Duration;

/// One dispatched event. Comments and events without a data line dispatch nothing, but their `id` and `retry` count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event {
    /// The event type; `message` when not given.
    pub kind: String,
    /// The data lines, joined by newlines.
    pub data: Bytes,
    /// The event was larger than the limit: `data` is only the beginning of it.
    pub cut: bool,
}

/// Bytes that are kept of an event that is skipped.
const HEAD: usize = 4096;

/// The event is larger than the limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("an event of the stream is larger than {0} bytes")]
pub struct TooLarge(pub usize);

/// The parser. Feed it chunks as they arrive; borders between chunks mean nothing.
#[derive(Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent facts about the place in the stream"
)]
pub struct Parser {
    limit: usize,
    line: BytesMut,
    data: BytesMut,
    has_data: bool,
    kind: String,
    after_cr: bool,
    at_start: bool,
    /// The `id:` of the event that is being read; it counts once that event is complete.
    id: Option<String>,
    last_event_id: Option<String>,
    retry: Option<Duration>,
    /// An event that is too large is skipped, in place of an error.
    skip_oversize: bool,
    /// The beginning of the event that is being skipped.
    skipped: Option<Bytes>,
    /// The beginning of the line was thrown away: the rest of it goes the same way.
    in_cut_line: bool,
}

impl Parser {
    /// A parser that refuses events of more than `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            line: BytesMut::new(),
            data: BytesMut::new(),
            has_data: false,
            kind: String::new(),
            after_cr: false,
            at_start: true,
            id: None,
            last_event_id: None,
            retry: None,
            skip_oversize: false,
            skipped: None,
            in_cut_line: false,
        }
    }

    /// Skips events that are too large, for a stream that many share: one of them must not end the others. Of such an
    /// event comes the beginning, marked as [`Event::cut`].
    pub fn skip_oversize(&mut self) {
        self.skip_oversize = true;
    }

    /// Whether events that are too large are skipped.
    #[must_use]
    pub fn skips_oversize(&self) -> bool {
        self.skip_oversize
    }

    /// The id of the last complete event, for `Last-Event-ID`: what came of a broken event has to come again. An empty
    /// `id:` clears it.
    #[must_use]
    pub fn last_event_id(&self) -> Option<&str> {
        self.last_event_id.as_deref()
    }

    /// The last valid `retry:` that was seen.
    #[must_use]
    pub fn retry(&self) -> Option<Duration> {
        self.retry
    }

    /// Starts where another stream broke off: its last id and pause hold until this one names others.
    pub fn inherit(&mut self, last_event_id: String, retry: Duration) {
        self.last_event_id.get_or_insert(last_event_id);
        self.retry.get_or_insert(retry);
    }

    /// Takes a chunk and returns the events that it completes.
    ///
    /// # Errors
    /// [`TooLarge`]; the parser must not be used afterwards.
    pub fn push(&mut self, chunk: &[u8]) -> Result<Vec<Event>, TooLarge> {
        let mut events = Vec::new();
        let mut rest = chunk;
        while !rest.is_empty() {
            if std::mem::take(&mut self.after_cr) && rest.first() == Some(&b'\n') {
                rest = rest.get(1..).unwrap_or_default();
                continue;
            }
            let Some(end) = rest.iter().position(|byte| matches!(byte, b'\n' | b'\r')) else {
                self.extend_line(rest)?;
                break;
            };
            let (head, tail) = rest.split_at(end);
            self.extend_line(head)?;
            self.after_cr = tail.first() == Some(&b'\r');
            rest = tail.get(1..).unwrap_or_default();
            if std::mem::take(&mut self.in_cut_line) {
                continue;
            }
            let line = self.line.split();
            events.extend(self.take_line(&line));
        }
        Ok(events)
    }

    /// Takes a part of a line, if there is room for it beside the data of the event.
    fn extend_line(&mut self, part: &[u8]) -> Result<(), TooLarge> {
        if self.in_cut_line {
            return Ok(());
        }
        if self.line.len() + self.data.len() + part.len() <= self.limit {
            self.line.extend_from_slice(part);
            return Ok(());
        }
        if !self.skip_oversize {
            return Err(TooLarge(self.limit));
        }
        self.in_cut_line = true;
        let mut line = std::mem::take(&mut self.line);
        let mut head = std::mem::take(&mut self.data);
        if self.skipped.is_none() {
            line.extend_from_slice(part.get(..HEAD.min(part.len())).unwrap_or_default());
            let text = line.strip_prefix(b"data:").unwrap_or(&line);
            head.extend_from_slice(text.get(..HEAD.min(text.len())).unwrap_or_default());
            head.truncate(HEAD);
            // A copy: the buffer behind it may be large.
            self.skipped = Some(Bytes::copy_from_slice(&head));
        }
        Ok(())
    }

    fn take_line(&mut self, line: &[u8]) -> Option<Event> {
        let line = if std::mem::take(&mut self.at_start) {
            line.strip_prefix("\u{feff}".as_bytes()).unwrap_or(line)
        } else {
            line
        };
        if line.is_empty() {
            return self.dispatch();
        }
        let (name, value) = match line.iter().position(|byte| *byte == b':') {
            Some(colon) => {
                let (name, value) = line.split_at(colon);
                let value = value.get(1..).unwrap_or_default();
                (name, value.strip_prefix(b" ").unwrap_or(value))
            }
            None => (line, &[][..]),
        };
        match name {
            b"data" => {
                if self.has_data {
                    self.data.extend_from_slice(b"\n");
                }
                self.has_data = true;
                self.data.extend_from_slice(value);
            }
            b"event" => self.kind = String::from_utf8_lossy(value).into_owned(),
            b"id" if !value.contains(&0) => {
                let id = String::from_utf8_lossy(value).into_owned();
                self.id = Some(id);
            }
            b"retry" => {
                let digits = std::str::from_utf8(value).ok();
                if let Some(millis) = digits.and_then(|digits| digits.parse().ok()) {
                    self.retry = Some(Duration::from_millis(millis));
                }
            }
            _ => {}
        }
        None
    }

    fn dispatch(&mut self) -> Option<Event> {
        let kind = std::mem::take(&mut self.kind);
        if let Some(id) = self.id.take() {
            self.last_event_id = if id.is_empty() { None } else { Some(id) };
        }
        let data = self.data.split().freeze();
        if let Some(head) = self.skipped.take() {
            self.has_data = false;
            return Some(Event {
                kind,
                data: head,
                cut: true,
            });
        }
        if !std::mem::take(&mut self.has_data) || data.is_empty() {
            return None;
        }
        let kind = if kind.is_empty() {
            String::from("message")
        } else {
            kind
        };
        Some(Event {
            kind,
            data,
            cut: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::{Event, Parser, TooLarge};

    fn parse(parts: &[&[u8]]) -> (Vec<Event>, Parser) {
        let mut parser = Parser::new(1000);
        let events = parts
            .iter()
            .flat_map(|part| parser.push(part).unwrap())
            .collect();
        (events, parser)
    }

    fn event(kind: &str, data: &'static str) -> Event {
        Event {
            kind: kind.to_owned(),
            data: data.into(),
            cut: false,
        }
    }

    #[test]
    fn all_line_ends_and_fields() {
        let stream =
            b"\xef\xbb\xbf: hi\nid: 7\r\nretry: 500\rdata: a\r\ndata:b\n\nevent: x\ndata: c\n\n";
        let (events, parser) = parse(&[stream]);
        assert_eq!(events, [event("message", "a\nb"), event("x", "c")]);
        assert_eq!(parser.last_event_id(), Some("7"));
        assert_eq!(parser.retry(), Some(Duration::from_millis(500)));
    }

    #[test]
    fn an_event_without_data_only_moves_the_id() {
        let (events, parser) = parse(&[b"id: prime\ndata:\n\nretry: x\n\n"]);
        assert_eq!(events, []);
        assert_eq!(parser.last_event_id(), Some("prime"));
        assert_eq!(parser.retry(), None);
    }

    #[test]
    fn a_broken_event_does_not_move_the_id() {
        let (events, parser) = parse(&[b"id: 4\ndata: a\n\nid: 5\ndata: half"]);
        assert_eq!(events, [event("message", "a")]);
        assert_eq!(parser.last_event_id(), Some("4"));
    }

    #[test]
    fn endless_events_are_refused() {
        let mut parser = Parser::new(10);
        assert_eq!(parser.push(&[b'x'; 11]), Err(TooLarge(10)));
        let mut parser = Parser::new(10);
        let lines = "data: 123\n".repeat(4);
        assert_eq!(parser.push(lines.as_bytes()), Err(TooLarge(10)));
    }

    #[test]
    fn a_shared_stream_skips_what_is_too_large() {
        let mut parser = Parser::new(12);
        parser.skip_oversize();
        let mut events = Vec::new();
        for part in [
            "data: 1234567",
            "89\n",
            "data: more\n\ndata: a\n",
            "data:b\n\n",
        ] {
            events.extend(parser.push(part.as_bytes()).unwrap());
        }
        assert!(events[0].cut && events[0].data.starts_with(b" 123456"));
        assert_eq!(events[1..], [event("message", "a\nb")]);
    }

    proptest! {
        #[test]
        fn chunk_borders_mean_nothing(stream in "(data|id|event|retry|:)?[ :a\u{e9}\r\n0-9]{0,40}", cut in any::<usize>()) {
            let bytes = stream.as_bytes();
            let cut = cut % (bytes.len() + 1);
            let (whole, _) = parse(&[bytes]);
            let (split, _) = parse(&[&bytes[..cut], &bytes[cut..]]);
            prop_assert_eq!(whole, split);
        }

        #[test]
        fn no_bytes_make_the_parser_panic(bytes in any::<Vec<u8>>()) {
            let _ = Parser::new(64).push(&bytes);
            let mut shared = Parser::new(64);
            shared.skip_oversize();
            shared.push(&bytes).unwrap();
        }
    }
}
