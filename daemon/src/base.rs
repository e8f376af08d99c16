//! The small types that every part shares: ids, revisions, secrets, callers, deadlines, time.
//!
//! Knows no other part, no protobuf and no I/O.

mod caller;
pub mod load;
mod namespace;

pub use caller::{AppConnection, Bearer, Caller, Process, User};
pub use namespace::NamespacePattern;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};
use zeroize::Zeroize;

/// Declares a cheap-to-clone string newtype. Validation is the business of whoever makes one.
macro_rules! text_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(Arc<str>);

        impl $name {
            /// Wraps text that is known to be a valid id.
            pub fn new(text: impl Into<Arc<str>>) -> Self {
                Self(text.into())
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

text_id! {
    /// A tenancy unit: 1 to 64 characters of `[A-Za-z0-9._-]`. See [`Namespace::DEFAULT`].
    Namespace
}
text_id! {
    /// Id of a registered server, unique in its namespace; normalised by `model::spec`.
    ServerId
}
text_id! {
    /// Id of one call made for an app; a `UUIDv7`, so that ids sort by time.
    CallId
}
text_id! {
    /// Id of one question of a server; a `UUIDv7`, so that ids sort by time.
    ElicitationId
}

text_id! {
    /// Id of one sign-in; a `UUIDv7`, so that ids sort by time.
    SignInId
}

text_id! {
    /// Id of a token of an app; a `UUIDv7`, so that ids sort by time. No secret.
    TokenId
}

impl TokenId {
    /// A fresh id.
    #[must_use]
    pub fn generate() -> Self {
        Self::new(uuid::Uuid::now_v7().to_string())
    }
}

impl SignInId {
    /// A fresh id.
    #[must_use]
    pub fn generate() -> Self {
        Self::new(uuid::Uuid::now_v7().to_string())
    }
}

impl Namespace {
    /// The namespace of a request that names none.
    pub const DEFAULT: &'static str = "default";
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new(Self::DEFAULT)
    }
}

impl CallId {
    /// A fresh id.
    #[must_use]
    pub fn generate() -> Self {
        Self::new(uuid::Uuid::now_v7().to_string())
    }
}

impl ElicitationId {
    /// A fresh id.
    #[must_use]
    pub fn generate() -> Self {
        Self::new(uuid::Uuid::now_v7().to_string())
    }
}

/// The full name of a server: ids repeat between namespaces.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ServerKey {
    /// The namespace that owns it.
    pub namespace: Namespace,
    /// Its id there.
    pub id: ServerId,
}

impl ServerKey {
    /// Joins the two halves.
    #[must_use]
    pub fn new(namespace: Namespace, id: ServerId) -> Self {
        Self { namespace, id }
    }
}

impl fmt::Display for ServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.id)
    }
}

/// Position of a committed change in the update log. Grows by one with every change; 0 is "before the first".
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// A value that must not be seen: `Debug` prints stars, there is no `Display` and no `Serialize`, and the memory is
/// wiped on drop.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Secret<T: Zeroize>(T);

impl<T: Zeroize> Secret<T> {
    /// Takes the value into custody.
    pub fn new(value: T) -> Self {
        Self(value)
    }

    /// Opens the secret. Only `store::seal`, `auth` and `mcp::transport` may call this, and `api::app_tokens`, which shows a new
    /// token once.
    pub fn expose(&self) -> &T {
        &self.0
    }
}

impl Secret<String> {
    /// Length in bytes; says nothing else.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether it is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether it holds a NUL character, which no header and no environment variable can.
    #[must_use]
    pub fn has_nul(&self) -> bool {
        self.0.contains('\0')
    }

    /// Whether it has printable ASCII characters only (`VSCHAR` in RFC 6749 appendix A).
    #[must_use]
    pub fn is_printable(&self) -> bool {
        self.0.chars().all(|c| matches!(c, '\x20'..='\x7e'))
    }

    /// Whether it can stand behind `Bearer` (`b64token` in RFC 6750 section 2.1), as every compact JWT can.
    #[must_use]
    pub fn is_token68(&self) -> bool {
        let token = self.0.trim_end_matches('=');
        let plain = |c: char| c.is_ascii_alphanumeric() || "-._~+/".contains(c);
        !token.is_empty() && token.chars().all(plain)
    }

    /// Whether it has the form of a PEM block with this label (RFC 7468), and maybe text around it.
    #[must_use]
    pub fn is_pem(&self, label: &str) -> bool {
        let inside = self.0.split_once(&format!("-----BEGIN {label}-----"));
        inside.is_some_and(|(_, inside)| inside.contains(&format!("-----END {label}-----")))
    }
}

impl<T: Zeroize> fmt::Debug for Secret<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl<T: Zeroize> Drop for Secret<T> {
    fn drop(&mut self) {
        self.0.zeroize();
    }
}

/// Wall-clock time in milliseconds since the Unix epoch; what is stored and shown.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Timestamp(pub i64);

impl Timestamp {
    /// This time plus a duration; saturates.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(millis))
    }

    /// How long it is from this moment to `later`; zero if that is past.
    #[must_use]
    pub fn until(self, later: Self) -> Duration {
        Duration::from_millis(u64::try_from(later.0.saturating_sub(self.0)).unwrap_or(0))
    }
}

/// The one source of time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Clock;

impl Clock {
    /// Monotonic time, for deadlines and intervals.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the clock"
    )]
    #[must_use]
    pub fn now(self) -> Instant {
        Instant::now()
    }

    /// Wall-clock time, for what is stored and shown.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads the clock"
    )]
    #[must_use]
    pub fn wall(self) -> Timestamp {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let millis = since_epoch.map_or(0, |elapsed| elapsed.as_millis());
        Timestamp(i64::try_from(millis).unwrap_or(i64::MAX))
    }
}

/// A number in [0, 1), for delays that are not to fall together; its quality matters little.
#[must_use]
pub fn jitter() -> f64 {
    let bits = uuid::Uuid::new_v4().as_u128() & u128::from(u32::MAX);
    f64::from(u32::try_from(bits).unwrap_or(0)) / (f64::from(u32::MAX) + 1.0)
}

/// When something must be over. Passed down from the edge, so that every layer knows what is left.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Deadline(Option<Instant>);

impl Deadline {
    /// No bound of its own; the bounds of the layers below still hold.
    pub const NONE: Self = Self(None);

    /// At this instant.
    #[must_use]
    pub fn at(instant: Instant) -> Self {
        Self(Some(instant))
    }

    /// This long from now; none if that is beyond what the clock can express.
    #[must_use]
    pub fn after(duration: Duration) -> Self {
        Self(Clock.now().checked_add(duration))
    }

    /// The earlier of the two.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(a), Some(b)) => Self(Some(a.min(b))),
            (Some(instant), None) | (None, Some(instant)) => Self(Some(instant)),
            (None, None) => Self::NONE,
        }
    }

    /// The instant, if there is one.
    #[must_use]
    pub fn instant(self) -> Option<Instant> {
        self.0
    }

    /// What is left: zero when it is past, `None` without a bound.
    #[must_use]
    pub fn remaining(self) -> Option<Duration> {
        self.0
            .map(|instant| instant.saturating_duration_since(Clock.now()))
    }

    /// Completes at the deadline; never without one. Dropping it does nothing.
    pub async fn elapsed(self) {
        match self.0 {
            Some(instant) => tokio::time::sleep_until(instant.into()).await,
            None => std::future::pending().await,
        }
    }
}
