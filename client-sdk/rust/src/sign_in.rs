//! Sign-ins of users at servers, and what the daemon is authorized to do there. No request returns a token.

use std::io;
use std::process::Stdio;
use std::time::Duration;

use crate::client::{Client, duration, required};
use crate::error::Result;
use crate::proto::{
    AuthStatus, CancelSignInRequest, CompleteSignInRequest, GetAuthStatusRequest, GetSignInRequest,
    SignIn, SignInState, SignOutRequest, SignOutResponse, StartSignInRequest,
};

/// How long one request of [`Client::wait_sign_in`] waits.
const ONE_WAIT: Duration = Duration::from_secs(20);

/// Sign-ins.
impl Client {
    /// Begins a sign-in; the user goes on at its `auth_url`. See [`open_browser`] and [`Client::wait_sign_in`].
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::CREDENTIALS_REFUSED`] if the server's authorization needs no user.
    pub async fn start_sign_in(&self, server_id: impl Into<String>) -> Result<SignIn> {
        self.start_sign_in_with(StartSignInRequest {
            server_id: server_id.into(),
            ..Default::default()
        })
        .await
    }

    /// Begins a sign-in for more scopes.
    ///
    /// # Errors
    ///
    /// See [`Client::start_sign_in`].
    pub async fn start_sign_in_with(&self, mut request: StartSignInRequest) -> Result<SignIn> {
        self.fill(&mut request.namespace);
        let answer = self.auth().start_sign_in(self.request(request)).await?;
        required(answer.into_inner().sign_in)
    }

    /// A sign-in; with `wait`, as soon as it has ended or that time is over.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::SIGN_IN_NOT_FOUND`] if its end is long past.
    pub async fn get_sign_in(
        &self,
        sign_in_id: impl Into<String>,
        wait: impl Into<Option<Duration>>,
    ) -> Result<SignIn> {
        let request = self.request(GetSignInRequest {
            namespace: self.namespace().to_owned(),
            sign_in_id: sign_in_id.into(),
            wait_timeout: wait.into().map(duration),
        });
        required(self.auth().get_sign_in(request).await?.into_inner().sign_in)
    }

    /// Waits for the end of a sign-in, however long the user takes; the daemon ends it after a while. Look at its state.
    ///
    /// # Errors
    ///
    /// See [`Client::get_sign_in`].
    pub async fn wait_sign_in(&self, sign_in_id: impl Into<String>) -> Result<SignIn> {
        let id = sign_in_id.into();
        loop {
            let sign_in = self.get_sign_in(&id, ONE_WAIT).await?;
            if !matches!(
                sign_in.state(),
                SignInState::Pending | SignInState::Redeeming
            ) {
                return Ok(sign_in);
            }
        }
    }

    /// Completes a sign-in with the whole URL that the browser was redirected to: for hosts whose callback address the
    /// browser cannot reach.
    ///
    /// # Errors
    ///
    /// See [`Client`]; [`crate::Reason::INVALID_FIELD`] changes nothing, [`crate::Reason::SIGN_IN_FAILED`] says what the
    /// authorization server refused.
    pub async fn complete_sign_in(
        &self,
        sign_in_id: impl Into<String>,
        redirect_url: impl Into<String>,
    ) -> Result<SignIn> {
        let request = self.request(CompleteSignInRequest {
            namespace: self.namespace().to_owned(),
            redirect_url: redirect_url.into(),
            sign_in_id: sign_in_id.into(),
        });
        let answer = self.auth().complete_sign_in(request).await?;
        required(answer.into_inner().sign_in)
    }

    /// Ends a pending sign-in.
    ///
    /// # Errors
    ///
    /// See [`Client::get_sign_in`]; [`crate::Reason::ALREADY_RESOLVED`] if it has ended.
    pub async fn cancel_sign_in(&self, sign_in_id: impl Into<String>) -> Result<SignIn> {
        let request = self.request(CancelSignInRequest {
            namespace: self.namespace().to_owned(),
            sign_in_id: sign_in_id.into(),
        });
        let answer = self.auth().cancel_sign_in(request).await?;
        required(answer.into_inner().sign_in)
    }

    /// Forgets the tokens of a server and its pending sign-ins.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn sign_out(&self, server_id: impl Into<String>) -> Result<SignOutResponse> {
        let request = self.request(SignOutRequest {
            namespace: self.namespace().to_owned(),
            server_id: server_id.into(),
        });
        Ok(self.auth().sign_out(request).await?.into_inner())
    }

    /// What the daemon is authorized to do at a server.
    ///
    /// # Errors
    ///
    /// See [`Client`].
    pub async fn auth_status(&self, server_id: impl Into<String>) -> Result<AuthStatus> {
        let request = self.request(GetAuthStatusRequest {
            namespace: self.namespace().to_owned(),
            server_id: server_id.into(),
        });
        let answer = self.auth().get_auth_status(request).await?;
        required(answer.into_inner().status)
    }
}

/// Opens a web page in the user's browser: with `$BROWSER` if it is set, else with `xdg-open`. Whoever gets an error
/// shows the URL instead. The browser is not waited for.
///
/// Only for URLs that the user has agreed to: servers choose them.
///
/// # Errors
///
/// If the URL is no `https:` or `http:` URL, there is no desktop, or the program cannot be started.
pub fn open_browser(url: &str) -> io::Result<()> {
    let set = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let browser = set("BROWSER");
    if browser.is_none() && set("DISPLAY").is_none() && set("WAYLAND_DISPLAY").is_none() {
        return Err(io::Error::other("there is no desktop"));
    }
    let program = browser.unwrap_or_else(|| "xdg-open".to_owned());
    check_url(url)?;
    // What is written by a browser would disturb the terminal. The runtime waits for the child in the background.
    let child = tokio::process::Command::new(program)
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    drop(child);
    Ok(())
}

fn check_url(url: &str) -> io::Result<()> {
    let web = ["https://", "http://"].iter().any(|scheme| {
        let start = url.get(..scheme.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(scheme))
    });
    if web && !url.contains(|letter: char| letter.is_whitespace() || letter.is_control()) {
        return Ok(());
    }
    let message = "only `https:` and `http:` URLs without spaces are opened";
    Err(io::Error::new(io::ErrorKind::InvalidInput, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_web_pages_are_opened() {
        for url in ["https://as.example.com/authorize?x=1", "HTTP://127.0.0.1:1"] {
            assert!(check_url(url).is_ok(), "{url}");
        }
        for url in [
            "file:///etc/passwd",
            "--version",
            "https:/x",
            "https://a b",
            "https://a\u{1b}",
            "é",
            "",
        ] {
            assert!(check_url(url).is_err(), "{url}");
        }
    }
}
