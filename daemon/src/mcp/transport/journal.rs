//! What the processes of a server wrote to their standard error: the last lines, with their times, over restarts. Beside
//! them, the first lines that each wrote to its standard output though they are no messages.
//!
//! Bounded in bytes, whatever is written, and without the secrets that the process was given. Cheap to clone; all clones are one journal.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use crate::base::Clock;
use crate::mcp::transport::redact::Redactor;
use crate::model::status::LogLine;

/// What a line costs beside its text, so that empty lines are bounded too.
const LINE_COST: usize = 32;

/// How many lines are noted of what a process writes to its standard output and is no message.
const ASIDES: u32 = 4;
/// Bytes that are kept of such a line.
const ASIDE_BYTES: usize = 256;
/// A longer line is none that somebody is to read.
const ASIDE_LIMIT: usize = 64 * 1024;

/// The last lines of a server. The newest survive.
#[derive(Clone, Debug)]
pub struct Journal(Arc<Mutex<Lines>>);

#[derive(Debug)]
struct Lines {
    limit: usize,
    /// Starts of a process so far.
    starts: u32,
    kept: VecDeque<Kept>,
    /// Cost of all kept lines.
    cost: usize,
}

#[derive(Debug)]
struct Kept {
    line: LogLine,
    /// For the secrets of this process; its successors may have others.
    redactor: Redactor,
    /// No line end was read yet.
    open: bool,
}

/// Writes for one process.
#[derive(Debug)]
pub struct Writer {
    journal: Journal,
    start: u32,
    redactor: Redactor,
    /// The beginning of a character whose end is still to come.
    rest: Vec<u8>,
}

/// Notes what one process writes to its standard output and is no message: a banner, a message of an installer.
#[derive(Debug)]
pub struct Aside {
    journal: Journal,
    start: u32,
    redactor: Redactor,
    /// Lines that are still taken.
    left: u32,
}

impl Journal {
    /// An empty journal that keeps about `limit` bytes.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Arc::new(Mutex::new(Lines {
            limit,
            starts: 0,
            kept: VecDeque::new(),
            cost: 0,
        })))
    }

    /// A process is about to start; what `redactor` looks for is not shown of it.
    #[must_use]
    pub fn begin(&self, redactor: Redactor) -> Writer {
        let mut lines = self.lock();
        lines.starts = lines.starts.saturating_add(1);
        Writer {
            journal: self.clone(),
            start: lines.starts,
            redactor,
            rest: Vec::new(),
        }
    }

    /// All lines that are kept, oldest first.
    #[must_use]
    pub fn lines(&self) -> Vec<LogLine> {
        let lines = self.lock();
        lines.kept.iter().map(Kept::shown).collect()
    }

    /// What the latest process wrote to its standard error, as one text.
    #[must_use]
    pub fn tail(&self) -> String {
        let lines = self.lock();
        let mut text = String::new();
        for kept in lines
            .kept
            .iter()
            .filter(|kept| kept.line.start == lines.starts && !kept.line.output)
        {
            text.push_str(&kept.shown().text);
            if !kept.open {
                text.push('\n');
            }
        }
        text
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Lines> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn shown(&self) -> LogLine {
        LogLine {
            text: self.redactor.text(&self.line.text),
            ..self.line.clone()
        }
    }
}

impl Aside {
    /// Takes a line, if the process has not had its share yet. What begins like a message may be a broken answer to some
    /// app, which is nobody else's business.
    pub fn note(&mut self, line: &[u8]) {
        let begins_a_message = matches!(line.trim_ascii_start().first(), Some(b'{' | b'['));
        if self.left == 0 || begins_a_message || line.len() > ASIDE_LIMIT {
            return;
        }
        self.left -= 1;
        // Secrets first: half of one would not be recognised any more.
        let mut text = self.redactor.text(&String::from_utf8_lossy(line));
        text.truncate(text.floor_char_boundary(ASIDE_BYTES));
        let mut lines = self.journal.lock();
        lines.insert(Kept {
            line: LogLine {
                at: Clock.wall(),
                start: self.start,
                text,
                output: true,
            },
            redactor: self.redactor.clone(),
            open: false,
        });
    }
}

impl Writer {
    /// What belongs to the other stream of the same process.
    #[must_use]
    pub fn aside(&self) -> Aside {
        Aside {
            journal: self.journal.clone(),
            start: self.start,
            redactor: self.redactor.clone(),
            left: ASIDES,
        }
    }

    /// Takes the next bytes; where they are cut means nothing.
    pub fn write(&mut self, bytes: &[u8]) {
        let mut joined = std::mem::take(&mut self.rest);
        joined.extend_from_slice(bytes);
        let last = joined
            .utf8_chunks()
            .last()
            .map_or(&[][..], |last| last.invalid());
        // At the very end, what is not a character may only be not a whole one.
        let whole = match std::str::from_utf8(last) {
            Err(error) if error.error_len().is_none() => joined.len() - last.len(),
            _ => joined.len(),
        };
        self.rest = joined.split_off(whole);
        let bytes = joined.as_slice();
        let mut lines = self.journal.lock();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let text = piece.strip_suffix(b"\n");
            lines.push(
                self.start,
                &self.redactor,
                text.unwrap_or(piece),
                text.is_some(),
            );
        }
    }
}

impl Lines {
    fn push(&mut self, start: u32, redactor: &Redactor, text: &[u8], ends: bool) {
        let text = String::from_utf8_lossy(text);
        let text = if ends {
            text.trim_end_matches('\r')
        } else {
            &*text
        };
        let goes_on = self
            .kept
            .back()
            .is_some_and(|last| last.open && last.line.start == start);
        if !goes_on {
            self.cost += LINE_COST;
            self.kept.push_back(Kept {
                line: LogLine {
                    at: Clock.wall(),
                    start,
                    text: String::new(),
                    output: false,
                },
                redactor: redactor.clone(),
                open: true,
            });
        }
        let limit = self.limit.saturating_sub(LINE_COST);
        if let Some(last) = self.kept.back_mut() {
            let line = &mut last.line.text;
            last.open = !ends;
            line.push_str(text);
            self.cost += text.len();
            // A line that never ends keeps its end; half of a secret would not be recognised any more.
            if line.len() > limit {
                let whole = redactor.text(line);
                self.cost = self.cost + whole.len() - line.len();
                *line = whole;
            }
            if line.len() > limit {
                let mut cut = line.len() - limit;
                while !line.is_char_boundary(cut) {
                    cut += 1;
                }
                line.drain(..cut);
                self.cost -= cut;
            }
        }
        self.evict();
    }

    /// Adds a whole line. One that goes on stays the last.
    fn insert(&mut self, kept: Kept) {
        self.cost += LINE_COST + kept.line.text.len();
        let open = self.kept.back().is_some_and(|last| last.open);
        let place = self.kept.len() - usize::from(open);
        self.kept.insert(place, kept);
        self.evict();
    }

    fn evict(&mut self) {
        while self.cost > self.limit {
            let Some(oldest) = self.kept.pop_front() else {
                break;
            };
            self.cost -= LINE_COST + oldest.line.text.len();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert, proptest};

    use super::{ASIDE_LIMIT, Journal, LINE_COST};
    use crate::mcp::transport::redact::Redactor;

    fn texts(journal: &Journal) -> Vec<String> {
        let lines = journal.lines();
        lines.into_iter().map(|line| line.text).collect()
    }

    #[test]
    fn lines_are_kept_over_starts() {
        let journal = Journal::new(1000);
        let mut first = journal.begin(Redactor::default());
        first.write(b"one\r\ntw");
        first.write(b"o\nno end");
        assert_eq!(texts(&journal), ["one", "two", "no end"]);
        assert_eq!(journal.tail(), "one\ntwo\nno end");
        let mut second = journal.begin(Redactor::default());
        assert_eq!(journal.tail(), "");
        for byte in "again \u{20ac}".as_bytes() {
            second.write(&[*byte]);
        }
        second.write(b"\xff\n");
        assert_eq!(
            texts(&journal),
            ["one", "two", "no end", "again \u{20ac}\u{fffd}"]
        );
        assert_eq!(journal.tail(), "again \u{20ac}\u{fffd}\n");
        let starts: Vec<_> = journal.lines().iter().map(|line| line.start).collect();
        assert_eq!(starts, [1, 1, 1, 2]);
    }

    #[test]
    fn the_first_lines_of_the_output_are_noted() {
        let journal = Journal::new(4096);
        let mut errors = journal.begin(Redactor::default());
        let mut output = errors.aside();
        errors.write(b"half a ");
        output.note(b"banner \xff");
        output.note(b" {\"id\":1,\"result\":\"\xff\"}");
        output.note(&vec![b'x'; ASIDE_LIMIT + 1]);
        errors.write(b"line\n");
        output.note("\u{20ac}".repeat(1000).as_bytes());
        assert_eq!(texts(&journal)[..2], ["banner \u{fffd}", "half a line"]);
        assert_eq!(texts(&journal)[2], "\u{20ac}".repeat(85));
        let of_output: Vec<_> = journal.lines().iter().map(|line| line.output).collect();
        assert_eq!(of_output, [true, false, true]);
        assert_eq!(journal.tail(), "half a line\n");
        for _ in 0..100 {
            output.note(b"more");
        }
        assert_eq!(journal.lines().len(), 5, "and no more of this process");
    }

    #[test]
    fn the_newest_survive() {
        let journal = Journal::new(3 * (LINE_COST + 4));
        let mut writer = journal.begin(Redactor::default());
        writer.write(b"aaaa\nbbbb\ncccc\ndddd\n");
        assert_eq!(texts(&journal), ["bbbb", "cccc", "dddd"]);
        writer.write(&[b'x'; 10_000]);
        writer.write(b"end");
        let tail = journal.tail();
        assert!(
            tail.ends_with("xxend") && tail.len() <= 3 * (LINE_COST + 4),
            "{tail}"
        );
        let nothing = Journal::new(0);
        nothing.begin(Redactor::default()).write(b"x\ny");
        assert!(nothing.lines().is_empty());
    }

    proptest! {
        #[test]
        fn never_more_than_the_limit(chunks in any::<Vec<Vec<u8>>>(), limit in 0_usize..300) {
            let journal = Journal::new(limit);
            let mut writer = journal.begin(Redactor::default());
            let mut output = writer.aside();
            for (number, chunk) in chunks.iter().enumerate() {
                if number % 2 == 1 {
                    output.note(chunk);
                }
                writer.write(chunk);
                let lines = journal.lines();
                let cost: usize = lines.iter().map(|line| line.text.len() + LINE_COST).sum();
                prop_assert!(cost <= limit);
                prop_assert!(cost == journal.lock().cost);
            }
        }
    }
}
