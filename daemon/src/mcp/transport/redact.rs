//! Keeps a server's own secrets out of what is shown of it: a server may repeat the header or variable it was given.

use std::sync::Arc;

use crate::auth::Account;
use crate::base::Secret;
use crate::error::Error;
use crate::model::spec::ServerSpec;

/// Shorter values are not looked for: they occur by chance, and protect nothing.
const SHORTEST: usize = 6;

/// Replaces the secrets of one registration, and the tokens that its server was shown, by stars. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub struct Redactor {
    secrets: Arc<[Secret<String>]>,
    account: Option<Account>,
}

impl Redactor {
    /// For the headers and variables of a registration.
    #[must_use]
    pub fn new(spec: &ServerSpec) -> Self {
        let mut values = Vec::new();
        for secret in spec.secrets() {
            let value = secret.value.expose();
            // A scheme such as `Bearer` is no secret, what follows it is.
            let token = value
                .split_once(' ')
                .map_or(value.as_str(), |(_, token)| token);
            for part in [value.as_str(), token.trim()] {
                if part.len() >= SHORTEST {
                    values.push(Secret::new(part.to_owned()));
                }
            }
        }
        Self {
            secrets: values.into(),
            account: None,
        }
    }

    /// The same for the tokens of an account as well.
    #[must_use]
    pub fn with_tokens_of(mut self, account: &Account) -> Self {
        self.account = Some(account.clone());
        self
    }

    /// A text without the secrets.
    #[must_use]
    pub fn text(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for secret in self.secrets.iter() {
            if text.contains(secret.expose().as_str()) {
                text = text.replace(secret.expose().as_str(), "***");
            }
        }
        match &self.account {
            Some(account) => account.redact(&text),
            None => text,
        }
    }

    /// An error whose texts hold no secrets.
    #[must_use]
    pub fn error(&self, error: Error) -> Error {
        if self.secrets.is_empty() && self.account.is_none() {
            error
        } else {
            error.map_texts(|text| self.text(text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Redactor;
    use crate::base::Secret;
    use crate::error::{Error, Reason};

    #[test]
    fn what_a_server_repeats_is_not_shown() {
        let redactor = Redactor {
            secrets: [Secret::new("s3cret-token".to_owned())].as_slice().into(),
            account: None,
        };
        let error =
            Error::new(Reason::Internal, "you sent s3cret-token").with("said", "s3cret-token!");
        let error = redactor.error(error);
        assert_eq!(error.message(), "you sent ***");
        assert_eq!(error.facts(), [("said".into(), "***!".to_owned())]);
    }
}
