//! Text of servers, made harmless for a terminal.

use std::borrow::Cow;
use std::io::{self, Write};

use serde_json::ser::{CharEscape, Formatter, PrettyFormatter};

/// Whether a terminal may do something with this character other than show it, or show others in another order.
fn is_active(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            // Line and paragraph separators; marks that turn the direction of writing.
            '\u{2028}' | '\u{2029}' | '\u{200e}' | '\u{200f}' | '\u{061c}'
            | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
            // Nobody sees them.
            | '\u{200b}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// The text with everything in it shown that a terminal would obey. Line ends and tabs stay.
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    made_visible(text, |letter| matches!(letter, '\n' | '\t'))
}

/// The same on one line.
pub(crate) fn one_line(text: &str) -> Cow<'_, str> {
    if text.contains(['\n', '\t', '\r']) {
        let words: Vec<&str> = text.split_whitespace().collect();
        return Cow::Owned(made_visible(&words.join(" "), |_| false).into_owned());
    }
    made_visible(text, |_| false)
}

fn made_visible(text: &str, allowed: impl Fn(char) -> bool) -> Cow<'_, str> {
    let active = |letter: char| is_active(letter) && !allowed(letter);
    if !text.contains(active) {
        return Cow::Borrowed(text);
    }
    let mut visible = String::with_capacity(text.len() + 16);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            // The line end of other systems.
            '\r' if letters.peek() == Some(&'\n') && allowed('\n') => {}
            letter if active(letter) => visible.extend(letter.escape_unicode()),
            letter => visible.push(letter),
        }
    }
    Cow::Owned(visible)
}

/// Writes JSON on which a terminal does nothing: such characters become `\uXXXX`, which is the same JSON.
pub(crate) struct PlainJson<F>(pub(crate) F);

impl PlainJson<PrettyFormatter<'static>> {
    pub(crate) fn pretty() -> Self {
        Self(PrettyFormatter::new())
    }
}

impl<F: Formatter> Formatter for PlainJson<F> {
    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut rest = fragment;
        while let Some(place) = rest.find(is_active) {
            let (before, after) = rest.split_at(place);
            writer.write_all(before.as_bytes())?;
            let mut letters = after.chars();
            if let Some(letter) = letters.next() {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            }
            rest = letters.as_str();
        }
        writer.write_all(rest.as_bytes())
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        self.0.write_char_escape(writer, escape)
    }

    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_array(writer)
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array(writer)
    }

    fn begin_array_value<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_array_value(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_array_value(writer)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object(writer)
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object(writer)
    }

    fn begin_object_key<W: ?Sized + Write>(
        &mut self,
        writer: &mut W,
        first: bool,
    ) -> io::Result<()> {
        self.0.begin_object_key(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.begin_object_value(writer)
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.0.end_object_value(writer)
    }
}

#[cfg(test)]
mod tests {
    use serde::Serialize as _;

    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        assert_eq!(plain("a\tb\r\nc"), "a\tb\nc");
        assert_eq!(plain("\u{1b}]0;owned\u{7}"), "\\u{1b}]0;owned\\u{7}");
        assert_eq!(plain("\u{9b}31m \u{202e}"), "\\u{9b}31m \\u{202e}");
        assert_eq!(plain("over\rwritten"), "over\\u{d}written");
        assert_eq!(one_line("two\n  lines\u{8}"), "two lines\\u{8}");
        assert!(matches!(plain("Zürich 👩‍💻"), Cow::Borrowed(_)));
    }

    #[test]
    fn json_says_the_same_and_holds_nothing_that_a_terminal_obeys() {
        let text = "\u{1b}[2J\u{9b}\u{7f}\u{202e}\u{e0041} \"é\\";
        let mut written = Vec::new();
        let mut writer = serde_json::Serializer::with_formatter(&mut written, PlainJson::pretty());
        [text].serialize(&mut writer).unwrap();
        let written = String::from_utf8(written).unwrap();
        assert!(!written.contains(|letter| is_active(letter) && letter != '\n'));
        assert!(written.contains("\\udb40\\udc41"), "{written}");
        assert_eq!(
            serde_json::from_str::<[String; 1]>(&written).unwrap(),
            [text]
        );
    }
}
