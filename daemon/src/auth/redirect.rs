//! What an authorization server sends back through the browser: taken apart and compared with what was expected, as pure
//! functions (RFC 6749 section 4.1.2, RFC 9207 section 2.4).

use url::Url;

use crate::base::Secret;
use crate::error::{Error, Reason, Result};
use crate::model::auth::SignIn;

/// Longest redirect that is read, in bytes.
const MAX_URL: usize = 16 * 1024;
/// Parameters that must not come twice.
const ONCE: [&str; 5] = ["state", "code", "iss", "error", "error_description"];

/// A redirect, before anything in it is believed.
pub(super) struct Redirect {
    url: Url,
    state: Secret<String>,
    code: Option<Secret<String>>,
    iss: Option<String>,
    error: Option<String>,
    description: String,
}

/// What the authorization server says, believed.
pub(super) enum Answer {
    /// The user agreed.
    Code(Secret<String>),
    /// It refused.
    Refused {
        /// Its error code.
        error: String,
        /// What it says about it.
        description: String,
    },
}

fn invalid(what: impl Into<String>) -> Error {
    Error::invalid("redirect_url", what)
}

impl Redirect {
    /// Reads the URL of a redirect.
    ///
    /// # Errors
    /// `INVALID_FIELD` for what cannot be the redirect of any sign-in.
    pub(super) fn parse(text: &str) -> Result<Self> {
        if text.len() > MAX_URL {
            return Err(invalid(format!("it is longer than {MAX_URL} bytes")));
        }
        let url = Url::parse(text)
            .map_err(|_| invalid("it is not a URL; give the whole address with its query"))?;
        let mut found: [Option<String>; 5] = Default::default();
        for (name, value) in url.query_pairs() {
            let place = ONCE.iter().position(|once| *once == name);
            let Some(slot) = place.and_then(|place| found.get_mut(place)) else {
                continue;
            };
            if slot.replace(value.into_owned()).is_some() {
                return Err(invalid(format!("`{name}` comes more than once in it")));
            }
        }
        let [state, code, iss, error, description] = found;
        let state = state.filter(|state| !state.is_empty());
        Ok(Self {
            url,
            state: Secret::new(state.ok_or_else(|| invalid("it has no `state`"))?),
            code: code.map(Secret::new),
            iss,
            error,
            description: description.unwrap_or_default(),
        })
    }

    /// Which sign-in it claims to be about.
    pub(super) fn is_about(&self, sign_in: &SignIn) -> bool {
        let (mine, theirs) = (self.state.expose(), sign_in.nonce.expose());
        aws_lc_rs::constant_time::verify_slices_are_equal(mine.as_bytes(), theirs.as_bytes())
            .is_ok()
    }

    /// What it says, if it says it where it should and comes from whom it should. Otherwise nothing of it is to be used or
    /// shown.
    ///
    /// # Errors
    /// `INVALID_FIELD`.
    pub(super) fn answer(&self, sign_in: &SignIn) -> Result<Answer> {
        if !same_place(&self.url, &sign_in.redirect_uri) {
            return Err(invalid(format!(
                "it does not lead to `{}`, where this sign-in comes back to",
                sign_in.redirect_uri
            )));
        }
        let server = &sign_in.terms.server;
        match &self.iss {
            // Character by character (RFC 3986 section 6.2.1).
            Some(iss) if *iss == server.issuer => {}
            Some(_) => {
                return Err(invalid(format!(
                    "its `iss` is not `{}`: it does not come from the authorization server of this sign-in",
                    server.issuer
                )));
            }
            None if server.authorization_response_iss_parameter_supported => {
                return Err(invalid(format!(
                    "it has no `iss`, which `{}` always sends",
                    server.issuer
                )));
            }
            None => {}
        }
        match (&self.error, &self.code) {
            (Some(error), None) => Ok(Answer::Refused {
                error: error.clone(),
                description: self.description.clone(),
            }),
            (None, Some(code)) if !code.is_empty() => Ok(Answer::Code(code.clone())),
            _ => Err(invalid("it must have either a `code` or an `error`")),
        }
    }
}

/// Whether a redirect leads to this redirect URI: everything but what the authorization server adds to the query.
fn same_place(url: &Url, redirect_uri: &str) -> bool {
    let Ok(expected) = Url::parse(redirect_uri) else {
        return false;
    };
    let given = |url: &Url| {
        url.query_pairs()
            .into_owned()
            .collect::<Vec<(String, String)>>()
    };
    let all = given(url);
    url.scheme() == expected.scheme()
        && url.host() == expected.host()
        && url.port_or_known_default() == expected.port_or_known_default()
        && url.path() == expected.path()
        && given(&expected).iter().all(|pair| all.contains(pair))
}

/// A redirect about no sign-in that is known.
pub(super) fn unknown() -> Error {
    Error::new(
        Reason::SignInNotFound,
        "its `state` names no sign-in: it is forged, or its sign-in ended long ago",
    )
}
