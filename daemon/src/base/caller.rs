//! Who makes a request, and over which connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio_util::sync::CancellationToken;

use super::{NamespacePattern, TokenId};

/// The local process behind a connection on a Unix socket, as the kernel names it at accept time (`SO_PEERCRED`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Process {
    /// Effective user id.
    pub uid: u32,
    /// Effective group id.
    pub gid: u32,
    /// Process id, where the kernel knows it. For logs only: pids are reused.
    pub pid: Option<i32>,
}

/// What a token of an app says of whoever bears it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bearer {
    /// The token's id.
    pub id: TokenId,
    /// The name that the operator gave it; not unique.
    pub name: String,
    /// The namespaces that it may use. Not empty.
    pub namespaces: Vec<NamespacePattern>,
}

/// Who makes a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Caller {
    /// A process on a Unix socket: the kernel names it.
    Process(Process),
    /// Whoever bears a token, over TCP: nothing else is known of it.
    Token(Arc<Bearer>),
}

impl Caller {
    /// The user that everything of this caller counts for.
    #[must_use]
    pub fn user(&self) -> User {
        match self {
            Self::Process(process) => User::Uid(process.uid),
            Self::Token(bearer) => User::Token(bearer.id.clone()),
        }
    }

    /// The process; `None` for the bearer of a token.
    #[must_use]
    pub fn process(&self) -> Option<Process> {
        match self {
            Self::Process(process) => Some(*process),
            Self::Token(_) => None,
        }
    }

    /// The bearer of a token; `None` for a process.
    #[must_use]
    pub fn bearer(&self) -> Option<&Bearer> {
        match self {
            Self::Process(_) => None,
            Self::Token(bearer) => Some(bearer),
        }
    }
}

/// Whom things are counted for and kept apart by: a user of the host, or a token, which is a user of its own.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum User {
    /// A user of the host.
    Uid(u32),
    /// Whoever bears this token.
    Token(TokenId),
}

/// One connection of an app to the daemon. Apps with different tokens have different ones, also over one connection of TCP.
/// Cheap to clone.
#[derive(Clone, Debug)]
pub struct AppConnection {
    user: User,
    id: u64,
    ended: CancellationToken,
}

impl AppConnection {
    /// A connection that begins now; it ends when `ended` is cancelled.
    #[must_use]
    pub fn new(user: User, ended: CancellationToken) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self {
            user,
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            ended,
        }
    }

    /// Whose it is.
    #[must_use]
    pub fn user(&self) -> &User {
        &self.user
    }

    /// A number that no other connection has while the daemon runs.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Cancelled when the connection has ended.
    #[must_use]
    pub fn ended(&self) -> &CancellationToken {
        &self.ended
    }
}
