//! Tokens that a server was shown, so that nothing which it says about them is shown to others.

use std::collections::VecDeque;

use super::account::Account;
use crate::base::Secret;

/// How many are remembered: an answer may repeat the token of its request after that was renewed.
const MOST: usize = 4;

/// The tokens that a server was shown lately.
#[derive(Default)]
pub(super) struct Shown(VecDeque<Secret<String>>);

impl Shown {
    /// Remembers a token.
    pub(super) fn note(&mut self, token: &Secret<String>) {
        if self.0.contains(token) {
            return;
        }
        self.0.truncate(MOST - 1);
        self.0.push_front(token.clone());
    }
}

impl Account {
    /// A text of the server's without the tokens that it was shown.
    #[must_use]
    pub fn redact(&self, text: &str) -> String {
        let state = self.state();
        let mut text = text.to_owned();
        for token in &state.shown.0 {
            let token = token.expose().as_str();
            if !token.is_empty() && text.contains(token) {
                text = text.replace(token, "***");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, Shown};
    use crate::base::Secret;

    #[test]
    fn a_few_tokens_are_remembered_each_once() {
        let mut shown = Shown::default();
        for token in ["a", "b", "b", "a", "c", "d", "e"] {
            shown.note(&Secret::new(token.to_owned()));
        }
        let kept: Vec<_> = shown
            .0
            .iter()
            .map(|token| token.expose().as_str())
            .collect();
        assert_eq!(kept, ["e", "d", "c", "b"]);
        assert_eq!(kept.len(), MOST);
    }
}
