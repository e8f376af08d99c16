//! Tokens of apps that come over TCP: made, recognised, and made useless.
//!
//! A token is 256 random bits, shown once. What is kept of it is its SHA-256, so whoever reads the database cannot use it.
//! Knows no gRPC; whether somebody may make one is decided above.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use aws_lc_rs::rand;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use zeroize::{Zeroize, Zeroizing};

use crate::base::{Bearer, Clock, NamespacePattern, Secret, Timestamp, TokenId};
use crate::error::{Error, Reason, Result};
use crate::model::token::{AppToken, Digest};
use crate::store::Store;

/// Begins every token, so that people and scanners recognise one that got lost.
const PREFIX: &str = "mcps_";
/// Longest name, in bytes.
const MAX_NAME: usize = 64;
/// Most namespaces that one token is for.
const MAX_NAMESPACES: usize = 100;
/// How long a token may be valid, if not for ever.
const LIFETIME: std::ops::RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_hours(87_600);
/// How often the clock is looked at while a token waits for its end: it may be set, and timers stand still while a host
/// sleeps.
const LOOK: Duration = Duration::from_mins(1);

/// The tokens. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tokens(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Store,
    most: usize,
    /// Oldest first.
    all: RwLock<Vec<Live>>,
    /// Held while they are changed.
    changing: tokio::sync::Mutex<()>,
    tasks: TaskTracker,
    stopping: CancellationToken,
}

#[derive(Clone, Debug)]
struct Live {
    token: AppToken,
    /// Cancelled when it is no longer valid.
    over: CancellationToken,
}

/// A token that was shown, and is valid.
#[derive(Clone, Debug)]
pub struct Valid {
    /// Who bears it.
    pub bearer: Arc<Bearer>,
    /// Cancelled when it is no longer valid.
    pub over: CancellationToken,
}

impl Tokens {
    /// Those in the store. Of new ones `most` may be valid at a time. Tasks run on `tasks`, until `stopping` is cancelled.
    ///
    /// # Errors
    /// STORE_FAILED.
    pub async fn start(
        store: Store,
        most: usize,
        tasks: TaskTracker,
        stopping: CancellationToken,
    ) -> Result<Self> {
        let known = store.app_tokens().await?;
        let tokens = Self(Arc::new(Inner {
            store,
            most,
            all: RwLock::default(),
            changing: tokio::sync::Mutex::default(),
            tasks,
            stopping,
        }));
        for token in known {
            tokens.enter(token);
        }
        Ok(tokens)
    }

    /// Makes a token. It is on disk when this returns; those that have expired are forgotten.
    ///
    /// # Errors
    /// INVALID_FIELD `name`, `namespaces` or `lifetime`; TOO_MANY at the limit; STORE_FAILED.
    pub async fn create(
        &self,
        name: String,
        mut namespaces: Vec<NamespacePattern>,
        lifetime: Option<Duration>,
    ) -> Result<(AppToken, Secret<String>)> {
        check(&name, &namespaces, lifetime)?;
        if namespaces.is_empty() {
            namespaces.push(NamespacePattern::default());
        }
        let (digest, secret) = generate()?;
        let created = Clock.wall();
        let token = AppToken {
            bearer: Arc::new(Bearer {
                id: TokenId::generate(),
                name,
                namespaces,
            }),
            digest,
            created,
            expires: lifetime.map(|lifetime| created.plus(lifetime)),
        };
        let (tokens, made) = (self.clone(), token.clone());
        self.change(async move { tokens.add(token, created).await })
            .await?;
        Ok((made, secret))
    }

    async fn add(&self, token: AppToken, now: Timestamp) -> Result<()> {
        let _changing = self.0.changing.lock().await;
        let (expired, valid): (Vec<_>, Vec<_>) = self
            .list()
            .into_iter()
            .partition(|token| token.has_expired(now));
        if valid.len() >= self.0.most {
            return Err(Error::new(
                Reason::TooMany,
                format!(
                    "there are {} tokens of apps (limits.app_tokens); revoke one first",
                    valid.len()
                ),
            ));
        }
        let expired: Vec<_> = expired
            .into_iter()
            .map(|token| token.bearer.id.clone())
            .collect();
        let store = &self.0.store;
        store.add_app_token(token.clone(), expired.clone()).await?;
        self.leave(&expired);
        self.enter(token);
        Ok(())
    }

    /// All of them, oldest first; those that have expired as well, until another one is made.
    #[must_use]
    pub fn list(&self) -> Vec<AppToken> {
        let all = self.0.all.read().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|live| live.token.clone()).collect()
    }

    /// Makes a token useless. It is on disk when this returns, and what was under way with it is told to end.
    ///
    /// # Errors
    /// `APP_TOKEN_NOT_FOUND`, STORE_FAILED.
    pub async fn revoke(&self, id: &str) -> Result<AppToken> {
        let (tokens, id) = (self.clone(), TokenId::new(id));
        self.change(async move {
            let _changing = tokens.0.changing.lock().await;
            let found = tokens.list().into_iter().find(|it| it.bearer.id == id);
            let Some(token) = found else {
                return Err(Error::new(
                    Reason::AppTokenNotFound,
                    format!("no token has the id `{id}`; ListAppTokens shows them"),
                ));
            };
            // Not before it is on disk: a restart must not bring back what somebody was told is gone.
            tokens.0.store.remove_app_token(id.clone()).await?;
            tokens.leave(&[id]);
            Ok(token)
        })
        .await
    }

    /// Whose token this is. Every token is compared with, in the same time, whichever it is.
    ///
    /// # Errors
    /// `APP_TOKEN_REQUIRED` if it is none, or no longer.
    pub fn bearer(&self, shown: &[u8]) -> Result<Valid> {
        let shown = Digest::of(shown);
        let mut found = None;
        {
            let all = self.0.all.read().unwrap_or_else(PoisonError::into_inner);
            for live in all.iter() {
                if live.token.digest.matches(&shown) {
                    found = Some(live.clone());
                }
            }
        }
        let Some(Live { token, over }) = found else {
            return Err(Error::new(
                Reason::AppTokenRequired,
                "the token is none of this daemon, or was revoked; `mcp-sidecar tokens create` makes one",
            ));
        };
        if token.has_expired(Clock.wall()) {
            return Err(Error::new(
                Reason::AppTokenRequired,
                format!(
                    "the token `{}` has expired; `mcp-sidecar tokens create` makes another one",
                    token.bearer.name
                ),
            )
            .with("token_id", token.bearer.id.as_str()));
        }
        Ok(Valid {
            bearer: token.bearer,
            over,
        })
    }

    /// Makes a change in a task of its own: a caller that goes away must not leave it half made.
    async fn change<T: Send + 'static>(
        &self,
        change: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        let task = self.0.tasks.spawn(change);
        task.await
            .map_err(|cause| Error::internal(format!("a change of tokens failed: {cause}")))?
    }

    /// From now on it is recognised, until it expires.
    fn enter(&self, token: AppToken) {
        let over = CancellationToken::new();
        if let Some(expires) = token.expires {
            let (over, stopping) = (over.clone(), self.0.stopping.clone());
            self.0.tasks.spawn(async move {
                tokio::select! {
                    () = over.cancelled() => {}
                    () = stopping.cancelled() => {}
                    () = reached(expires) => over.cancel(),
                }
            });
        }
        let mut all = self.0.all.write().unwrap_or_else(PoisonError::into_inner);
        all.push(Live { token, over });
    }

    /// From now on they are not recognised.
    fn leave(&self, ids: &[TokenId]) {
        let mut all = self.0.all.write().unwrap_or_else(PoisonError::into_inner);
        all.retain(|live| {
            let stays = !ids.contains(&live.token.bearer.id);
            if !stays {
                live.over.cancel();
            }
            stays
        });
    }
}

/// Completes when the clock shows this time.
async fn reached(time: Timestamp) {
    loop {
        let left = Clock.wall().until(time);
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK)).await;
    }
}

fn check(name: &str, namespaces: &[NamespacePattern], lifetime: Option<Duration>) -> Result<()> {
    let printable = name.bytes().all(|byte| byte.is_ascii_graphic());
    if name.is_empty() || name.len() > MAX_NAME || !printable {
        return Err(Error::invalid(
            "name",
            format!("write 1 to {MAX_NAME} visible ASCII characters"),
        ));
    }
    if namespaces.len() > MAX_NAMESPACES {
        return Err(Error::invalid(
            "namespaces",
            format!(
                "there are {}; name at most {MAX_NAMESPACES}, or the start of several and `*`",
                namespaces.len()
            ),
        ));
    }
    if let Some(lifetime) = lifetime
        && !LIFETIME.contains(&lifetime)
    {
        return Err(Error::invalid(
            "lifetime",
            format!("{lifetime:?} is out of bounds; give 1 s to 87600 h, or none"),
        ));
    }
    Ok(())
}

/// A token, and by what it is recognised.
fn generate() -> Result<(Digest, Secret<String>)> {
    let mut bits = Zeroizing::new([0_u8; 32]);
    rand::fill(&mut *bits).map_err(|_| Error::internal("no random numbers"))?;
    let mut text = String::with_capacity(PREFIX.len() + 43);
    text.push_str(PREFIX);
    let mut encoded = URL_SAFE_NO_PAD.encode(*bits);
    text.push_str(&encoded);
    encoded.zeroize();
    Ok((Digest::of(text.as_bytes()), Secret::new(text)))
}

#[cfg(test)]
mod tests {
    use super::{check, generate};
    use crate::model::token::Digest;
    use std::time::Duration;

    #[test]
    fn a_token_is_recognisable_and_never_the_same() {
        let (digest, secret) = generate().unwrap();
        let (other, _) = generate().unwrap();
        let text = secret.expose();
        assert!(text.starts_with("mcps_") && text.len() == 48 && secret.is_token68());
        assert!(digest.matches(&Digest::of(text.as_bytes())) && !digest.matches(&other));
        assert_eq!(format!("{digest:?} {secret:?}"), "*** ***");
    }

    #[test]
    fn what_a_token_is_for_has_bounds() {
        let namespace = "a".parse().unwrap();
        assert!(check("build 1", &[], None).is_err());
        for (name, field) in [("", "name"), ("ä", "name"), (&"n".repeat(65), "name")] {
            assert_eq!(check(name, &[], None).unwrap_err().field(), Some(field));
        }
        let many = vec![namespace; 101];
        let refused = check("n", &many, None).unwrap_err();
        assert_eq!(refused.field(), Some("namespaces"));
        assert!(check("n", &many[..100], None).is_ok());
        for (seconds, fits) in [
            (0, false),
            (1, true),
            (315_360_000, true),
            (315_360_001, false),
        ] {
            let lifetime = Some(Duration::from_secs(seconds));
            assert_eq!(check("n", &[], lifetime).is_ok(), fits, "{seconds}");
        }
    }
}
