//! Who may have how many connections: so many in all, and of these only a share for one user, so that an app that opens
//! connections without end does not lock out the apps of others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::warn;

use crate::base::User;
use crate::error::{Error, Result};

/// Most connections that a daemon may be configured to have.
const MOST: usize = 65_536;

/// The places for connections.
#[derive(Debug)]
pub(super) struct Slots {
    free: Arc<Semaphore>,
    total: u32,
    shares: Shares,
    /// Whether it was said that all are taken.
    told: bool,
}

/// What users with at least one connection have.
type Users = Arc<Mutex<HashMap<User, Taken>>>;

#[derive(Debug, Default)]
struct Taken {
    open: usize,
    /// Whether it was said that the share is used up.
    told: bool,
}

/// One place, which is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    _permit: OwnedSemaphorePermit,
    _claim: Option<Claim>,
}

/// The shares of users. Cheap to clone.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    users: Users,
    share: usize,
}

/// One place out of the share of a user, which is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Claim {
    shares: Shares,
    user: User,
}

impl Shares {
    /// A place out of the share of this user. `None` if the share is used up, which is said once per shortage.
    pub(super) fn claim(&self, user: &User) -> Option<Claim> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = users.get_mut(user)
            && known.open >= self.share
        {
            if !std::mem::replace(&mut known.told, true) {
                let (uid, token) = match user {
                    User::Uid(uid) => (Some(*uid), None),
                    User::Token(id) => (None, Some(id.as_str())),
                };
                warn!(
                    uid,
                    token,
                    limit = self.share,
                    "connection refused: `limits.connections_per_user` of this user are open"
                );
            }
            return None;
        }
        users.entry(user.clone()).or_default().open += 1;
        Some(Claim {
            shares: self.clone(),
            user: user.clone(),
        })
    }
}

impl Slots {
    /// `connections` in all, `share` for one user.
    ///
    /// # Errors
    /// INTERNAL if there are none or too many of them.
    pub(super) fn new(connections: usize, share: usize) -> Result<Self> {
        let total = u32::try_from(connections)
            .ok()
            .filter(|_| (1..=MOST).contains(&connections))
            .ok_or_else(|| Error::internal("the number of connections must be 1 to 65,536"))?;
        if !(1..=connections).contains(&share) {
            return Err(Error::internal(
                "the number of connections per user must be 1 to that of all",
            ));
        }
        Ok(Self {
            free: Arc::new(Semaphore::new(connections)),
            total,
            shares: Shares {
                users: Users::default(),
                share,
            },
            told: false,
        })
    }

    /// A place for a connection of this user. `None` if there is none, which is said once per shortage: a client that dials
    /// in a loop must not fill the log. A shortage is over when half is free.
    pub(super) fn take(&mut self, user: &User) -> Option<Slot> {
        let claim = self.shares.claim(user)?;
        Some(Slot {
            _permit: self.permit()?,
            _claim: Some(claim),
        })
    }

    /// A place for a connection of which nobody knows yet whose it is; out of [`Slots::shares`] is claimed what becomes
    /// known. `None` as with [`Slots::take`].
    pub(super) fn take_for_anybody(&mut self) -> Option<Slot> {
        Some(Slot {
            _permit: self.permit()?,
            _claim: None,
        })
    }

    fn permit(&mut self) -> Option<OwnedSemaphorePermit> {
        let Ok(permit) = Arc::clone(&self.free).try_acquire_owned() else {
            if !std::mem::replace(&mut self.told, true) {
                warn!(
                    limit = self.total,
                    "connection refused: `limits.connections` are open"
                );
            }
            return None;
        };
        self.told &= self.open() > self.total / 2;
        Some(permit)
    }

    /// The shares of users.
    pub(super) fn shares(&self) -> Shares {
        self.shares.clone()
    }

    /// How many are taken.
    pub(super) fn open(&self) -> u32 {
        let free = u32::try_from(self.free.available_permits()).unwrap_or(u32::MAX);
        self.total.saturating_sub(free)
    }

    /// Completes when all are free.
    pub(super) async fn all_free(&self) {
        let _ = self.free.acquire_many(self.total).await;
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Shares { users, share } = &self.shares;
        let mut users = users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = users.get_mut(&self.user) {
            known.open = known.open.saturating_sub(1);
            known.told &= known.open > share / 2;
            if known.open == 0 {
                users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Slots;
    use crate::base::{TokenId, User};
    use crate::error::Reason;

    #[test]
    fn one_user_has_a_share_and_gives_it_back() {
        let mut slots = Slots::new(5, 3).unwrap();
        let mut first: Vec<_> = (0..4).filter_map(|_| slots.take(&User::Uid(1))).collect();
        assert_eq!(first.len(), 3);
        let second: Vec<_> = (0..4).filter_map(|_| slots.take(&User::Uid(2))).collect();
        assert_eq!((second.len(), slots.open()), (2, 5));
        // All are taken, so that a third user has none, and leaves no trace.
        assert!(slots.take(&User::Uid(3)).is_none());
        assert_eq!(slots.shares.users.lock().unwrap().len(), 2);

        first.pop();
        assert!(slots.take(&User::Uid(3)).is_some());
        first.push(slots.take(&User::Uid(1)).unwrap());
        assert!(slots.take(&User::Uid(1)).is_none());
        drop((first, second));
        assert_eq!(slots.open(), 0);
        assert!(slots.shares.users.lock().unwrap().is_empty());
    }

    #[test]
    fn a_place_is_claimed_when_it_is_known_whose_it_is() {
        let mut slots = Slots::new(2, 1).unwrap();
        let _held = [slots.take_for_anybody(), slots.take_for_anybody()].map(Option::unwrap);
        assert!(slots.take_for_anybody().is_none());
        let shares = slots.shares();
        let token = |id: &str| User::Token(TokenId::new(id));
        let claim = shares.claim(&token("a")).unwrap();
        assert!(shares.claim(&token("a")).is_none() && shares.claim(&token("b")).is_some());
        drop(claim);
        assert!(shares.claim(&token("a")).is_some());
        assert!(shares.users.lock().unwrap().is_empty());
    }

    #[test]
    fn a_shortage_is_over_when_half_is_free() {
        let mut slots = Slots::new(8, 4).unwrap();
        let mut held: Vec<_> = (0..4).filter_map(|_| slots.take(&User::Uid(1))).collect();
        let told = |slots: &Slots| slots.shares.users.lock().unwrap()[&User::Uid(1)].told;
        assert!(!told(&slots) && slots.take(&User::Uid(1)).is_none() && told(&slots));
        // Up and down at the limit is still the same shortage.
        held.pop();
        held.push(slots.take(&User::Uid(1)).unwrap());
        assert!(slots.take(&User::Uid(1)).is_none() && told(&slots));
        held.truncate(2);
        assert!(!told(&slots));
    }

    #[test]
    fn bounds_are_checked() {
        for (connections, share) in [(0, 0), (65_537, 1), (8, 0), (8, 9)] {
            let error = Slots::new(connections, share).unwrap_err();
            assert_eq!(error.reason(), Reason::Internal);
        }
        assert!(Slots::new(65_536, 65_536).is_ok() && Slots::new(1, 1).is_ok());
    }
}
