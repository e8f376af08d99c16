//! The errors of servers that refuse what the daemon holds, or holds not.

use url::Url;

use crate::error::{Error, Reason};
use crate::model::auth::{Scopes, SignIn};
use crate::policy::printable;

/// A server that nobody shall sign in at wants somebody to.
pub(super) fn nobody_may(url: Option<&Url>) -> Error {
    let shown = url.map(printable).unwrap_or_default();
    Error::new(
        Reason::CredentialsRefused,
        format!(
            "{shown} wants authorization (HTTP 401), and is registered with `authorization.none`: UpdateServer with another \
             way, if there shall be one"
        ),
    )
}

/// The server does not take the token that somebody else looks after.
pub(super) fn token_refused(status: u16) -> Error {
    Error::new(
        Reason::CredentialsRefused,
        format!(
            "the server refuses the registered token (HTTP {status}); UpdateServer with `authorization.bearer_token` \
             sets another one"
        ),
    )
}

/// Less was granted than the server wants.
pub(super) fn not_granted(wanted: &Scopes) -> Error {
    Error::new(
        Reason::ScopeNotGranted,
        format!(
            "the server wants the scopes `{wanted}`, and they were asked for and not granted; StartSignIn asks again"
        ),
    )
    .with("scopes", wanted.to_string())
}

/// The error that tells how to go on with a sign-in.
pub(super) fn sign_in_required(shown: &str, sign_in: &SignIn) -> Error {
    let scopes = &sign_in.terms.scopes;
    let for_scopes = if scopes.is_empty() {
        String::new()
    } else {
        format!(" for the scopes `{scopes}`")
    };
    Error::new(
        Reason::SignInRequired,
        format!(
            "{shown} wants a user to sign in at {}{for_scopes}: open the `auth_url`, or call StartSignIn",
            sign_in.terms.server.issuer
        ),
    )
    .with("auth_url", sign_in.auth_url.clone())
    .with("sign_in_id", sign_in.id.as_str())
    .with("scopes", scopes.to_string())
}
