//! Pages of listings over several servers: where a page starts, when it is full, and the token of the next one.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::error::{Error, Result};

/// Bytes at which a page is cut, so that no answer grows without a bound.
const PAGE_BYTES: usize = 1024 * 1024;
/// Largest page, in entries.
const MAX_PAGE: usize = 1000;

/// How many entries a page has at most; 0 means `default`.
pub(super) fn size(wanted: u32, default: usize) -> usize {
    match usize::try_from(wanted).unwrap_or(MAX_PAGE).min(MAX_PAGE) {
        0 => default,
        size => size,
    }
}

/// A position in a listing: a server and an entry of it. Ordered as listings are.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Position {
    /// The server's id.
    pub(super) server: String,
    /// Index of the first entry of it that is still to be sent.
    pub(super) index: usize,
}

impl Position {
    /// Reads a page token; the empty one is the beginning.
    ///
    /// # Errors
    /// `INVALID_FIELD` for text that is no token of ours.
    pub(super) fn parse(token: &str) -> Result<Self> {
        if token.is_empty() {
            return Ok(Self::default());
        }
        let position = URL_SAFE_NO_PAD.decode(token).ok().and_then(|bytes| {
            let text = String::from_utf8(bytes).ok()?;
            let (index, server) = text.split_once(' ')?;
            Some(Self {
                server: server.to_owned(),
                index: index.parse().ok()?,
            })
        });
        position.ok_or_else(|| {
            Error::invalid(
                "page_token",
                "this is no token of a page; start again without one",
            )
        })
    }

    fn token(&self) -> String {
        URL_SAFE_NO_PAD.encode(format!("{} {}", self.index, self.server))
    }
}

/// A page that is being filled.
#[derive(Debug)]
pub(super) struct Page<T> {
    start: Position,
    size: usize,
    bytes: usize,
    entries: Vec<T>,
    next: Option<Position>,
}

impl<T: prost::Message> Page<T> {
    /// An empty page at the place of a token. A size of 0 means `default`.
    ///
    /// # Errors
    /// As [`Position::parse`].
    pub(super) fn start(token: &str, size: u32, default: usize) -> Result<Self> {
        Ok(Self {
            start: Position::parse(token)?,
            size: self::size(size, default),
            bytes: 0,
            entries: Vec::new(),
            next: None,
        })
    }

    /// Whether this is the first page.
    pub(super) fn is_first(&self) -> bool {
        self.start == Position::default()
    }

    /// Offers the entries of a server, in order. Servers must come in the order of their ids.
    pub(super) fn offer<'a, E: 'a>(
        &mut self,
        server: &str,
        entries: impl Iterator<Item = (usize, &'a E)>,
        convert: impl Fn(&E) -> T,
    ) {
        if self.next.is_some() || server < self.start.server.as_str() {
            return;
        }
        for (index, entry) in entries {
            if server == self.start.server && index < self.start.index {
                continue;
            }
            if self.entries.len() >= self.size || self.bytes >= PAGE_BYTES {
                self.next = Some(Position {
                    server: server.to_owned(),
                    index,
                });
                return;
            }
            let entry = convert(entry);
            self.bytes += entry.encoded_len();
            self.entries.push(entry);
        }
    }

    /// The entries and the token of the next page; empty on the last.
    pub(super) fn finish(self) -> (Vec<T>, String) {
        (
            self.entries,
            self.next.map(|next| next.token()).unwrap_or_default(),
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::Position;

    proptest! {
        #[test]
        fn tokens_round_trip(server in "[a-z-]{1,20}", index in any::<u16>()) {
            let position = Position { server, index: index.into() };
            prop_assert_eq!(Position::parse(&position.token()), Ok(position));
        }

        #[test]
        fn no_token_makes_the_parser_panic(token in any::<String>()) {
            let _ = Position::parse(&token);
        }
    }
}
