//! The connection that requests go over, and the token that they bring over TCP.

use std::fmt;
use std::path::Path;
use std::task::{Context, Poll};

use http::HeaderValue;
use http::header::AUTHORIZATION;
use tonic::body::Body;
use tonic::transport::Channel;
use tonic::transport::channel::ResponseFuture;
use tower::Service;

use crate::error::{Error, Result};

/// A token of the daemon (`mcp-sidecar tokens create`), for whoever reaches it over TCP. It cannot be printed.
#[derive(Clone)]
pub struct Token(HeaderValue);

impl Token {
    /// This token; a line end behind it does not belong to it.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] for what cannot be a token. It is not quoted.
    pub fn new(token: &str) -> Result<Self> {
        let token = token.trim_end_matches(['\r', '\n']);
        let visible = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
        let value = HeaderValue::from_str(&format!("Bearer {token}")).ok();
        let mut value = value.filter(|_| visible).ok_or_else(|| {
            Error::Setting("the token is none; `mcp-sidecar tokens create` makes one".to_owned())
        })?;
        value.set_sensitive(true);
        Ok(Self(value))
    }

    /// The one in this file.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`] if the file cannot be read, or what it holds cannot be a token.
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path).map_err(|cause| {
            let shown = path.display();
            Error::Setting(format!("the token in `{shown}` cannot be read: {cause}"))
        })?;
        Self::new(&text)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// The connection to the daemon, as generated clients take it: what goes over it brings the token, where one is needed.
#[derive(Clone, Debug)]
pub struct Connection {
    channel: Channel,
    token: Option<Token>,
}

impl Connection {
    pub(crate) fn new(channel: Channel, token: Option<Token>) -> Self {
        Self { channel, token }
    }
}

impl Service<http::Request<Body>> for Connection {
    type Response = http::Response<Body>;
    type Error = tonic::transport::Error;
    type Future = ResponseFuture;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Service::poll_ready(&mut self.channel, cx)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        if let Some(Token(value)) = &self.token {
            request.headers_mut().insert(AUTHORIZATION, value.clone());
        }
        self.channel.call(request)
    }
}

#[cfg(test)]
mod tests {
    use super::Token;

    #[test]
    fn a_token_is_never_printed() {
        let token = Token::new("mcps_abc\n").unwrap();
        assert_eq!(token.0, "Bearer mcps_abc");
        assert_eq!(format!("{token:?} {:?}", token.0), "*** Sensitive");
        for none in ["", "\n", "two words", "line\nline", "ä"] {
            let refused = Token::new(none).unwrap_err().to_string();
            assert!(
                none.trim().is_empty() || !refused.contains(none),
                "{refused}"
            );
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let refused = Token::from_file("/nowhere/token").unwrap_err().to_string();
        assert!(refused.contains("`/nowhere/token`"), "{refused}");
    }
}
