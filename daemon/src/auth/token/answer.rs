//! What an answer of a token endpoint means. Lenient about form (RFC 6749 section 5.1 as it is met in the field), strict
//! about verdicts: only an error that a server states as OAuth wants it condemns anything.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use oauth2::{AccessToken, RefreshToken, TokenResponse, TokenType};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use url::Url;

use super::{Failure, Tokens};
use crate::auth::challenge;
use crate::auth::said::said;
use crate::auth::web::{Reply, unavailable};
use crate::base::Secret;
use crate::error::{Error, Reason};

/// The longest name of a user that is kept.
const LONGEST_SUBJECT: usize = 255;

/// What was asked, where, and what must not be shown of it.
pub(super) struct Asked<'a> {
    pub(super) url: &'a Url,
    pub(super) issuer: &'a str,
    /// What a definite refusal is.
    pub(super) reason: Reason,
    /// A proof of possession went along.
    pub(super) proven: bool,
    pub(super) secrets: Vec<Secret<String>>,
}

impl Asked<'_> {
    /// What the server says, fit to be shown.
    fn said(&self, text: &str) -> String {
        let secrets: Vec<&str> = self
            .secrets
            .iter()
            .map(|secret| secret.expose().as_str())
            .collect();
        said(text, &secrets)
    }

    fn refused(&self, what: &str) -> Error {
        Error::new(
            self.reason,
            format!(
                "the authorization server `{}` {what}",
                said(self.issuer, &[])
            ),
        )
    }

    /// The answer is nothing that a token endpoint says.
    pub(super) fn unreadable(&self) -> Failure {
        Failure::Unavailable(unavailable(
            self.url,
            "answers with something that is no answer of a token endpoint",
        ))
    }
}

/// The body of a good answer, else what the answer condemns.
pub(super) fn verdict(reply: Reply, asked: &Asked<'_>) -> Result<Vec<u8>, Failure> {
    // Trouble is trouble, whatever a gateway writes into its body.
    if reply.is_transient() {
        return Err(Failure::Unavailable(reply.unavailable(asked.url)));
    }
    let object = reply.object();
    let text = |name: &str| {
        let text = object.as_ref().and_then(|object| object.get(name));
        text.and_then(Value::as_str).unwrap_or_default()
    };
    let has_token = !text("access_token").is_empty();
    let code = text("error");
    if reply.status.is_success() && has_token && code.is_empty() {
        return Ok(reply.body);
    }
    if code.is_empty() {
        return Err(if reply.status.is_success() {
            asked.unreadable()
        } else {
            Failure::Unavailable(reply.unavailable(asked.url))
        });
    }
    let details = asked.said(text("error_description"));
    let shown = asked.said(code);
    let what = match details.as_str() {
        "" => format!("`{shown}`"),
        details => format!("`{shown}` ({details})"),
    };
    let with = |error: Error| {
        error
            .with("http_status", reply.status.as_u16().to_string())
            .with("oauth_error", shown.clone())
    };
    Err(match code {
        // GitHub and Slack have words of their own.
        "invalid_grant"
        | "bad_verification_code"
        | "bad_refresh_token"
        | "invalid_code"
        | "invalid_refresh_token" => Failure::Grant(with(
            asked.refused(&format!("does not accept what was granted: {what}")),
        )),
        "invalid_client"
        | "unauthorized_client"
        | "incorrect_client_credentials"
        | "invalid_client_id"
        | "bad_client_secret" => Failure::Client(with(Error::new(
            Reason::CredentialsRefused,
            format!(
                "the authorization server `{}` does not accept the client: {what}; check its id and its secret",
                said(asked.issuer, &[])
            ),
        ))),
        "use_dpop_nonce" if !asked.proven => Failure::Refused(with(
            asked.refused("wants tokens to be bound; set `dpop` to DPOP_MODE_REQUIRED"),
        )),
        "temporarily_unavailable"
        | "server_error"
        | "slow_down"
        | "ratelimited"
        | "use_dpop_nonce" => {
            let error = with(unavailable(asked.url, format_args!("answers {what}")));
            Failure::Unavailable(match reply.retry_after() {
                Some(delay) => error.retry_after(delay),
                None => error,
            })
        }
        _ => Failure::Refused(with(asked.refused(&format!("refuses: {what}")))),
    })
}

/// A good answer.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Answer {
    access_token: AccessToken,
    #[serde(default, deserialize_with = "kind")]
    token_type: Kind,
    #[serde(default, deserialize_with = "seconds")]
    expires_in: Option<u64>,
    #[serde(default)]
    refresh_token: Option<RefreshToken>,
    #[serde(default, deserialize_with = "words")]
    scope: Option<Vec<oauth2::Scope>>,
    #[serde(default)]
    id_token: Option<AccessToken>,
    #[serde(default)]
    issued_token_type: Option<String>,
}

/// What a token can be used as.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize, Serialize)]
pub(super) enum Kind {
    /// By whoever has it; also where nothing is said.
    #[default]
    Bearer,
    /// With a proof of possession.
    Dpop,
    /// In another way.
    Other(String),
}

impl TokenType for Kind {}

impl TokenResponse for Answer {
    type TokenType = Kind;

    fn access_token(&self) -> &AccessToken {
        &self.access_token
    }

    fn token_type(&self) -> &Kind {
        &self.token_type
    }

    fn expires_in(&self) -> Option<Duration> {
        self.expires_in.map(Duration::from_secs)
    }

    fn refresh_token(&self) -> Option<&RefreshToken> {
        self.refresh_token.as_ref()
    }

    fn scopes(&self) -> Option<&Vec<oauth2::Scope>> {
        self.scope.as_ref()
    }
}

impl Answer {
    /// The tokens in it.
    pub(super) fn tokens(&self, asked: &Asked<'_>) -> Result<Tokens, Failure> {
        let access_token = self.access_token.secret();
        let bound = match &self.token_type {
            Kind::Bearer => false,
            Kind::Dpop if asked.proven => true,
            Kind::Dpop => {
                return Err(Failure::Refused(asked.refused(
                    "binds tokens to a key that it was not shown; set `dpop` to DPOP_MODE_REQUIRED",
                )));
            }
            Kind::Other(kind) => {
                let kind = asked.said(kind);
                let what = format!("gives out tokens of type `{kind}`, which cannot be used");
                return Err(Failure::Refused(asked.refused(&what)));
            }
        };
        // It has to fit into a header (RFC 6749 appendix A.12).
        if !access_token.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(asked.unreadable());
        }
        let scopes = self
            .scope
            .as_deref()
            .and_then(|words| challenge::scopes(words.iter().map(|scope| scope.as_str())));
        Ok(Tokens {
            access_token: Secret::new(access_token.clone()),
            refresh_token: self
                .refresh_token
                .as_ref()
                .map(RefreshToken::secret)
                .filter(|token| !token.is_empty())
                .map(|token| Secret::new(token.clone())),
            bound,
            expires_in: TokenResponse::expires_in(self),
            scopes,
            subject: self
                .id_token
                .as_ref()
                .and_then(|token| subject(token.secret())),
        })
    }

    /// The token in an answer to a token exchange.
    pub(super) fn issued(&self, asked: &Asked<'_>, kind: &str) -> Result<Secret<String>, Failure> {
        match self.issued_token_type.as_deref() {
            None => {}
            Some(issued) if issued == kind => {}
            Some(issued) => {
                let what = format!(
                    "gives out `{}` where `{kind}` was asked for",
                    asked.said(issued)
                );
                return Err(Failure::Refused(asked.refused(&what)));
            }
        }
        Ok(Secret::new(self.access_token.secret().clone()))
    }
}

/// `sub` of an ID token. Its signature is not looked at: it came from its issuer over a connection of its own (OpenID
/// Connect Core section 3.1.3.7), and nothing depends on it.
fn subject(token: &str) -> Option<String> {
    let payload = token.split('.').nth(1)?;
    let payload = URL_SAFE_NO_PAD.decode(payload.trim_end_matches('=')).ok()?;
    let claims: serde_json::Map<String, Value> = serde_json::from_slice(&payload).ok()?;
    let subject = claims.get("sub")?.as_str()?;
    let fits = !subject.is_empty()
        && subject.len() <= LONGEST_SUBJECT
        && !subject.chars().any(char::is_control);
    fits.then(|| subject.to_owned())
}

fn kind<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Kind, D::Error> {
    Ok(match Value::deserialize(deserializer)? {
        Value::String(kind) => match kind.trim().to_ascii_lowercase().as_str() {
            "" | "bearer" => Kind::Bearer,
            "dpop" => Kind::Dpop,
            _ => Kind::Other(kind),
        },
        _ => Kind::Bearer,
    })
}

/// A life time. Zero is how some say "unknown".
fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    let seconds = match Value::deserialize(deserializer)? {
        Value::Number(seconds) => seconds.as_u64().or_else(|| whole(seconds.as_f64()?)),
        Value::String(seconds) => {
            let seconds = seconds.trim();
            seconds
                .parse()
                .ok()
                .or_else(|| whole(seconds.parse().ok()?))
        }
        _ => None,
    };
    Ok(seconds.filter(|seconds| *seconds > 0))
}

/// The whole part; `None` for what is no life time.
fn whole(seconds: f64) -> Option<u64> {
    let duration = Duration::try_from_secs_f64(seconds).ok()?;
    Some(duration.as_secs())
}

fn words<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Vec<oauth2::Scope>>, D::Error> {
    let scope = |word: &str| oauth2::Scope::new(word.to_owned());
    Ok(match Value::deserialize(deserializer)? {
        // Some separate them with commas.
        Value::String(words) => Some(words.split([' ', ',']).map(scope).collect()),
        Value::Array(words) => Some(words.iter().filter_map(Value::as_str).map(scope).collect()),
        _ => None,
    })
}
