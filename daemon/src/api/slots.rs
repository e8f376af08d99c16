//! Who may have how many connections: so many in all, and of these only a share for one user, so that an app that opens
//! connections without end does not lock out the apps of others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::warn;

use crate::error::{Error, Result};

/// Most connections that a daemon may be configured to have.
const MOST: usize = 65_536;

/// The places for connections.
#[derive(Debug)]
pub(super) struct Slots {
    free: Arc<Semaphore>,
    total: u32,
    share: usize,
    users: Users,
    /// Whether it was said that all are taken.
    told: bool,
}

/// Users with at least one connection, by their ids.
type Users = Arc<Mutex<HashMap<u32, User>>>;

#[derive(Debug, Default)]
struct User {
    open: usize,
    /// Whether it was said that the share is used up.
    told: bool,
}

/// One place, which is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Slot {
    users: Users,
    user: u32,
    share: usize,
    _permit: OwnedSemaphorePermit,
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
            share,
            users: Users::default(),
            told: false,
        })
    }

    /// A place for a connection of this user. `None` if there is none, which is said once per shortage: a client that dials
    /// in a loop must not fill the log. A shortage is over when half is free.
    pub(super) fn take(&mut self, user: u32) -> Option<Slot> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = users.get_mut(&user)
            && known.open >= self.share
        {
            if !std::mem::replace(&mut known.told, true) {
                warn!(
                    uid = user,
                    limit = self.share,
                    "connection refused: `limits.connections_per_user` of this user are open"
                );
            }
            return None;
        }
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
        users.entry(user).or_default().open += 1;
        Some(Slot {
            users: Arc::clone(&self.users),
            user,
            share: self.share,
            _permit: permit,
        })
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

impl Drop for Slot {
    fn drop(&mut self) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = users.get_mut(&self.user) {
            known.open = known.open.saturating_sub(1);
            known.told &= known.open > self.share / 2;
            if known.open == 0 {
                users.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Slots;
    use crate::error::Reason;

    #[test]
    fn one_user_has_a_share_and_gives_it_back() {
        let mut slots = Slots::new(5, 3).unwrap();
        let mut first: Vec<_> = (0..4).filter_map(|_| slots.take(1)).collect();
        assert_eq!(first.len(), 3);
        let second: Vec<_> = (0..4).filter_map(|_| slots.take(2)).collect();
        assert_eq!((second.len(), slots.open()), (2, 5));
        // All are taken, so that a third user has none, and leaves no trace.
        assert!(slots.take(3).is_none());
        assert_eq!(slots.users.lock().unwrap().len(), 2);

        first.pop();
        assert!(slots.take(3).is_some());
        first.push(slots.take(1).unwrap());
        assert!(slots.take(1).is_none());
        drop((first, second));
        assert_eq!(slots.open(), 0);
        assert!(slots.users.lock().unwrap().is_empty());
    }

    #[test]
    fn a_shortage_is_over_when_half_is_free() {
        let mut slots = Slots::new(8, 4).unwrap();
        let mut held: Vec<_> = (0..4).filter_map(|_| slots.take(1)).collect();
        let told = |slots: &Slots| slots.users.lock().unwrap()[&1].told;
        assert!(!told(&slots) && slots.take(1).is_none() && told(&slots));
        // Up and down at the limit is still the same shortage.
        held.pop();
        held.push(slots.take(1).unwrap());
        assert!(slots.take(1).is_none() && told(&slots));
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
