//! What a server says when it refuses: the challenges of `WWW-Authenticate` (RFC 9110 section 11.6.1), as far as MCP uses
//! them, and the nonce for DPoP (RFC 9449 section 8).
//!
//! Reads leniently: of what is malformed, the rest is read. Pure.

use http::HeaderMap;
use http::header::WWW_AUTHENTICATE;

use crate::model::auth::Scopes;

/// Fields of the name that are read.
const MOST_FIELDS: usize = 16;
/// Bytes that are read of one field.
const LONGEST_FIELD: usize = 16 * 1024;
/// The longest URL of metadata.
const LONGEST_URL: usize = 4096;
/// The longest error code, and the longest nonce.
const LONGEST_WORD: usize = 1024;
/// Scopes that are read, and the length of one.
const MOST_SCOPES: usize = 100;
const LONGEST_SCOPE: usize = 256;

/// What the challenges for a bearer of tokens come to; where several say the same, the first one counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Challenge {
    /// Where the server's metadata are (RFC 9728 section 5.1), as it was said.
    pub resource_metadata: Option<String>,
    /// The scopes that the request needs (RFC 6750 section 3).
    pub scopes: Option<Scopes>,
    /// The error code.
    pub error: Option<String>,
    /// The `DPoP-Nonce` field, which may come with any answer.
    pub nonce: Option<String>,
}

impl Challenge {
    /// Reads the header of a response.
    #[must_use]
    pub fn of(headers: &HeaderMap) -> Self {
        let mut challenge = Self {
            nonce: nonce(headers),
            ..Self::default()
        };
        for field in headers.get_all(WWW_AUTHENTICATE).iter().take(MOST_FIELDS) {
            let field = field.as_bytes();
            let field = &field[..field.len().min(LONGEST_FIELD)];
            challenge.read(&String::from_utf8_lossy(field));
        }
        challenge
    }

    /// Whether the request is to be repeated with a nonce in its proof.
    #[must_use]
    pub fn wants_nonce(&self) -> bool {
        self.nonce.is_some() && self.error.as_deref() == Some("use_dpop_nonce")
    }

    /// Whether the token is good, but not for this.
    #[must_use]
    pub fn insufficient_scope(&self) -> bool {
        self.error.as_deref() == Some("insufficient_scope")
    }

    fn read(&mut self, field: &str) {
        let mut reader = Reader(field);
        let mut ours = false;
        while let Some(item) = reader.next() {
            match item {
                Item::Scheme(scheme) => {
                    ours = ["bearer", "dpop"].contains(&scheme.to_ascii_lowercase().as_str());
                }
                Item::Parameter(name, value) if ours => {
                    self.parameter(&name.to_ascii_lowercase(), value);
                }
                Item::Parameter(..) => {}
            }
        }
    }

    fn parameter(&mut self, name: &str, value: String) {
        match name {
            "resource_metadata" if !value.is_empty() && value.len() <= LONGEST_URL => {
                self.resource_metadata.get_or_insert(value);
            }
            "scope" if self.scopes.is_none() => self.scopes = scopes(value.split(' ')),
            "error"
                if !value.is_empty()
                    && value.len() <= LONGEST_WORD
                    && value.bytes().all(is_vchar) =>
            {
                self.error.get_or_insert(value);
            }
            _ => {}
        }
    }
}

/// The `DPoP-Nonce` field of a response, if it can be one (RFC 9449 section 8.1).
pub(super) fn nonce(headers: &HeaderMap) -> Option<String> {
    let nonce = headers.get("dpop-nonce")?.to_str().ok()?.trim();
    let fits = !nonce.is_empty() && nonce.len() <= LONGEST_WORD && nonce.bytes().all(is_vchar);
    fits.then(|| nonce.to_owned())
}

/// The scopes among these words (RFC 6749 section 3.3); `None` if there are none.
pub(super) fn scopes<'a>(words: impl IntoIterator<Item = &'a str>) -> Option<Scopes> {
    let is_scope = |word: &&str| {
        let bytes = word.as_bytes();
        !word.is_empty()
            && word.len() <= LONGEST_SCOPE
            && bytes.iter().all(|byte| is_vchar(*byte))
            && !word.contains(['"', '\\'])
    };
    let words = words.into_iter().filter(is_scope).take(MOST_SCOPES);
    let scopes: Scopes = words.map(str::to_owned).collect();
    (!scopes.is_empty()).then_some(scopes)
}

fn is_vchar(byte: u8) -> bool {
    byte.is_ascii_graphic()
}

/// A piece of the field.
#[derive(Debug, PartialEq, Eq)]
enum Item<'a> {
    /// A challenge begins.
    Scheme(&'a str),
    /// A parameter of it.
    Parameter(&'a str, String),
}

/// Reads a field from its beginning; holds what is left.
struct Reader<'a>(&'a str);

impl<'a> Reader<'a> {
    fn next(&mut self) -> Option<Item<'a>> {
        loop {
            self.0 = self.0.trim_start_matches([' ', '\t', ',']);
            let end = self.0.find(|c| !is_token(c)).unwrap_or(self.0.len());
            let (name, rest) = self.0.split_at(end);
            if name.is_empty() {
                // What cannot be here is skipped, up to the next item of the list.
                let (_, rest) = self.0.split_once(',')?;
                self.0 = rest;
                continue;
            }
            let after = rest.trim_start_matches([' ', '\t']);
            if let Some(value) = after.strip_prefix('=') {
                self.0 = value.trim_start_matches([' ', '\t']);
                if let Some(value) = self.value() {
                    return Some(Item::Parameter(name, value));
                }
                continue;
            }
            self.0 = rest;
            self.skip_token68();
            return Some(Item::Scheme(name));
        }
    }

    /// The value of a parameter; `None` for a quoted one without an end.
    fn value(&mut self) -> Option<String> {
        let Some(quoted) = self.0.strip_prefix('"') else {
            // URLs are seen here without quotes.
            let end = self.0.find([',', ' ', '\t']).unwrap_or(self.0.len());
            let (value, rest) = self.0.split_at(end);
            self.0 = rest;
            return Some(value.to_owned());
        };
        let mut value = String::new();
        let mut chars = quoted.chars();
        while let Some(c) = chars.next() {
            match c {
                '"' => {
                    self.0 = chars.as_str();
                    return Some(value);
                }
                '\\' => value.extend(chars.next()),
                c => value.push(c),
            }
        }
        self.0 = "";
        None
    }

    /// After a scheme: skips `token68`, which ends the challenge.
    fn skip_token68(&mut self) {
        let text = self.0.trim_start_matches(' ');
        if text.len() == self.0.len() {
            return;
        }
        let rest = text.trim_start_matches(|c: char| {
            c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | '~' | '+' | '/')
        });
        if rest.len() == text.len() {
            return;
        }
        let rest = rest.trim_start_matches('=').trim_start_matches([' ', '\t']);
        if rest.is_empty() || rest.starts_with(',') {
            self.0 = rest;
        }
    }
}

/// Whether a token may hold it (RFC 9110 section 5.6.2).
fn is_token(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(c)
}

#[cfg(test)]
#[path = "challenge_tests.rs"]
mod tests;
