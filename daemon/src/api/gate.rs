//! The gate of the listener over TCP: who has a token comes in, as whom the token says. Nothing is served without one, health
//! and reflection neither.
//!
//! A request has to name this host in `:authority`, so that a web page whose name was made to point here cannot make one,
//! whatever it may send. One connection may bring several tokens: gRPC libraries let channels share connections.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::uri::Authority;
use http::{HeaderMap, Request};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::warn;

use super::apps::{Apps, Via};
use super::peer::{Known, Met};
use super::slots::{Claim, Shares};
use crate::base::{Caller, Clock, TokenId, User};
use crate::error::{Error, Reason, Result};
use crate::tokens::{Tokens, Valid};

/// How long a connection may take to bring a valid token.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often the log says that requests were refused, in milliseconds: anybody on the host can make any number of them.
const TELL: i64 = 60_000;

/// What guards a listener over TCP. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Gate {
    tokens: Tokens,
    port: u16,
    refusals: Arc<Refusals>,
}

/// Requests that were refused.
#[derive(Debug, Default)]
struct Refusals {
    /// Since the log said it.
    count: AtomicU64,
    /// When that was.
    told: AtomicI64,
}

impl Gate {
    /// Of a listener at this port of a loopback address.
    #[must_use]
    pub fn new(tokens: Tokens, port: u16) -> Self {
        Self {
            tokens,
            port,
            refusals: Arc::default(),
        }
    }

    fn admit<B>(&self, request: &mut Request<B>) -> Result<Valid> {
        meant_for(request.uri().authority(), self.port)?;
        let headers = request.headers_mut();
        let valid = self.tokens.bearer(token(headers)?)?;
        // It is the business of nobody behind the gate.
        headers.remove(AUTHORIZATION);
        Ok(valid)
    }

    /// Notes that a request was refused.
    fn refused(&self, error: &Error) {
        let Refusals { count, told } = &*self.refusals;
        count.fetch_add(1, Ordering::Relaxed);
        let (now, last) = (Clock.wall().0, told.load(Ordering::Relaxed));
        if now.saturating_sub(last) < TELL {
            return;
        }
        let mine = told.compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed);
        if mine.is_ok() {
            warn!(
                requests = count.swap(0, Ordering::Relaxed),
                reason = error.reason().as_str(),
                %error,
                "requests over TCP were refused"
            );
        }
    }
}

/// Whether a request is meant for this listener.
fn meant_for(authority: Option<&Authority>, port: u16) -> Result<()> {
    let local = |authority: &&Authority| {
        let host = authority.host();
        let address = host.trim_start_matches('[').trim_end_matches(']');
        let address = address.parse::<IpAddr>();
        address.is_ok_and(|address| address.is_loopback()) || host.eq_ignore_ascii_case("localhost")
    };
    let named = authority.filter(|authority| authority.port_u16() == Some(port));
    // What stands before an `@` is no part of a gRPC target.
    let named = named.filter(|authority| !authority.as_str().contains('@'));
    if named.as_ref().is_some_and(local) {
        return Ok(());
    }
    Err(Error::invalid(
        ":authority",
        format!(
            "the request is for another host; over TCP it has to name `127.0.0.1:{port}`, `[::1]:{port}` or `localhost:{port}`"
        ),
    ))
}

/// The token that a request brings.
fn token(headers: &HeaderMap) -> Result<&[u8]> {
    let required = |what: &str| {
        Error::new(
            Reason::AppTokenRequired,
            format!(
                "{what}; over TCP every request needs the metadata `authorization: Bearer TOKEN`, once, with a token of \
                 this daemon (`mcp-sidecar tokens create`)"
            ),
        )
    };
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else {
        return Err(required("the request brings no token"));
    };
    if values.next().is_some() {
        return Err(required("the request brings several tokens"));
    }
    let (scheme, token) = value.as_bytes().split_at_checked(7).unwrap_or_default();
    if scheme.eq_ignore_ascii_case(b"Bearer ") && !token.is_empty() {
        Ok(token)
    } else {
        Err(required("what the request brings is no Bearer token"))
    }
}

/// The token of a request that is under way has ceased to be valid.
pub(super) fn no_longer_valid() -> Error {
    Error::new(
        Reason::AppTokenRequired,
        "the token was revoked, or has expired, while the request was under way",
    )
}

/// Whoever comes over one connection of TCP. Cheap to clone.
#[derive(Clone)]
pub(super) struct Guests(Arc<Inner>);

/// What [`Guests`] work with.
pub(super) struct GuestsParts {
    /// Who comes in.
    pub(super) gate: Gate,
    /// Where they are entered.
    pub(super) apps: Apps,
    /// What each may have of the connections.
    pub(super) shares: Shares,
    /// Cancelled when the connection has ended.
    pub(super) ended: CancellationToken,
    /// Owner of their tasks.
    pub(super) tasks: TaskTracker,
}

struct Inner {
    parts: GuestsParts,
    inside: Mutex<HashMap<TokenId, Guest>>,
    /// Cancelled when the first has come in.
    first: CancellationToken,
    /// Cancelled when nobody is left whose token is valid.
    deserted: CancellationToken,
}

/// An app behind a valid token.
struct Guest {
    known: Arc<Known>,
    _claim: Claim,
}

impl Guests {
    /// Nobody yet.
    pub(super) fn new(parts: GuestsParts) -> Self {
        Self(Arc::new(Inner {
            parts,
            inside: Mutex::default(),
            first: CancellationToken::new(),
            deserted: CancellationToken::new(),
        }))
    }

    /// Who makes this request.
    ///
    /// # Errors
    /// INVALID_FIELD `:authority`, `APP_TOKEN_REQUIRED`; TOO_MANY if the bearer of the token has too many connections.
    pub(super) fn meet<B>(&self, request: &mut Request<B>) -> Result<Met> {
        let gate = &self.0.parts.gate;
        let met = gate.admit(request).and_then(|valid| self.greet(valid));
        met.inspect_err(|error| gate.refused(error))
    }

    fn greet(&self, Valid { bearer, over }: Valid) -> Result<Met> {
        let Inner { parts, .. } = &*self.0;
        let mut inside = self.0.inside.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(guest) = inside.get(&bearer.id) {
            return Ok(Met {
                known: Arc::clone(&guest.known),
                valid: Some(over),
            });
        }
        let id = bearer.id.clone();
        let claim = parts.shares.claim(&User::Token(id.clone())).ok_or_else(|| {
            Error::new(
                Reason::TooMany,
                "the bearer of the token has as many connections as limits.connections_per_user allows",
            )
        })?;
        let ended = parts.ended.child_token();
        let known = Known::new(&parts.apps, Caller::Token(bearer), &ended, Via::Tcp);
        let known = Arc::new(known);
        inside.insert(
            id.clone(),
            Guest {
                known: Arc::clone(&known),
                _claim: claim,
            },
        );
        self.0.first.cancel();
        let (guests, over_too) = (self.clone(), over.clone());
        parts.tasks.spawn(async move {
            tokio::select! {
                () = ended.cancelled() => {}
                () = over_too.cancelled() => {
                    ended.cancel();
                    guests.see_off(&id);
                }
            }
        });
        Ok(Met {
            known,
            valid: Some(over),
        })
    }

    fn see_off(&self, id: &TokenId) {
        let mut inside = self.0.inside.lock().unwrap_or_else(PoisonError::into_inner);
        inside.remove(id);
        if inside.is_empty() {
            self.0.deserted.cancel();
        }
    }

    /// Completes when nobody has come in for too long, or nobody is left whose token is valid.
    pub(super) async fn nobody(&self) {
        let came = tokio::time::timeout(PATIENCE, self.0.first.cancelled()).await;
        if came.is_ok() {
            self.0.deserted.cancelled().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use http::uri::Authority;
    use http::{HeaderMap, HeaderValue, Request};
    use tokio::time::{Instant, timeout};
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::super::slots::Slots;
    use super::{Gate, Guests, GuestsParts, PATIENCE, meant_for, token};
    use crate::api::apps::Apps;
    use crate::error::Reason;
    use crate::store::{Store, StoreConfig};
    use crate::tokens::Tokens;

    #[tokio::test(start_paused = true)]
    async fn a_connection_lasts_as_long_as_somebody_on_it_has_a_valid_token() {
        let dir = tempfile::tempdir().unwrap();
        let (store, _) = Store::open(StoreConfig::new(dir.path().join("data"))).unwrap();
        let tasks = TaskTracker::new();
        let starting = Tokens::start(store, 10, tasks.clone(), CancellationToken::new());
        let tokens = starting.await.unwrap();
        let guests = || {
            Guests::new(GuestsParts {
                gate: Gate::new(tokens.clone(), 7443),
                apps: Apps::default(),
                shares: Slots::new(2, 2).unwrap().shares(),
                ended: CancellationToken::new(),
                tasks: tasks.clone(),
            })
        };
        let began = Instant::now();
        guests().nobody().await;
        assert_eq!(began.elapsed(), PATIENCE);

        let (made, secret) = tokens.create("n".into(), Vec::new(), None).await.unwrap();
        let guests = guests();
        let mut request = Request::builder()
            .uri("http://localhost:7443/a.B/C")
            .header("authorization", format!("Bearer {}", secret.expose()))
            .body(())
            .unwrap();
        let met = guests.meet(&mut request).unwrap();
        assert_eq!(met.known.caller.bearer().unwrap().name, "n");
        // Nobody behind the gate sees the token.
        assert!(request.headers().is_empty());
        let day = Duration::from_hours(24);
        assert!(timeout(day, guests.nobody()).await.is_err());
        tokens.revoke(made.bearer.id.as_str()).await.unwrap();
        timeout(day, guests.nobody()).await.unwrap();
        assert!(met.valid.unwrap().is_cancelled() && met.known.app.ended().is_cancelled());
    }

    #[test]
    fn only_a_loopback_name_with_the_port_is_this_listener() {
        for (named, meant) in [
            ("127.0.0.1:7443", true),
            ("127.9.9.9:7443", true),
            ("[::1]:7443", true),
            ("LOCALHOST:7443", true),
            ("localhost", false),
            ("localhost:7444", false),
            ("10.0.0.1:7443", false),
            ("[::ffff:127.0.0.1]:7443", false),
            ("evil.example:7443", false),
            ("localhost.evil.example:7443", false),
            ("127.0.0.1.evil.example:7443", false),
            ("localhost@evil.example:7443", false),
            ("evil@localhost:7443", false),
        ] {
            let authority: Authority = named.parse().unwrap();
            let judged = meant_for(Some(&authority), 7443);
            assert_eq!(judged.is_ok(), meant, "{named}");
        }
        let refused = meant_for(None, 7443).unwrap_err();
        assert_eq!(refused.field(), Some(":authority"));
    }

    #[test]
    fn a_request_brings_one_token() {
        let headers = |values: &[&str]| {
            let mut headers = HeaderMap::new();
            for value in values {
                headers.append("authorization", HeaderValue::from_str(value).unwrap());
            }
            headers
        };
        for values in [&["Bearer t"][..], &["bearer t"], &["BEARER t"]] {
            assert_eq!(token(&headers(values)).unwrap(), b"t");
        }
        for values in [
            &[][..],
            &[""],
            &["Bearer"],
            &["Bearer "],
            &["Basic t"],
            &["t"],
            &["Bearer t", "Bearer t"],
        ] {
            let refused = token(&headers(values)).unwrap_err();
            assert_eq!(refused.reason(), Reason::AppTokenRequired, "{values:?}");
        }
    }
}
