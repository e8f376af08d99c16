//! Choices that a seed makes.

use std::ops::Range;
use std::time::Duration;

/// A stream of choices (SplitMix64): the same for the same seed. Every actor has one of its own, so that what one does
/// changes no choice of another.
#[derive(Clone)]
pub(crate) struct Dice(u64);

impl Dice {
    /// The choices of a seed.
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The choices of one actor.
    pub(crate) fn of(&self, role: &str, number: usize) -> Self {
        let mut hash = self.0 ^ 0xcbf2_9ce4_8422_2325;
        for byte in role.bytes().chain(number.to_le_bytes()) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        Self(hash)
    }

    /// Any number.
    pub(crate) fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from a range.
    pub(crate) fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.roll() % (range.end - range.start)
    }

    /// So many milliseconds.
    pub(crate) fn millis(&mut self, range: Range<u64>) -> Duration {
        Duration::from_millis(self.within(range))
    }

    /// True in so many cases of a hundred.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.within(0..100) < percent
    }

    /// One of these.
    pub(crate) fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        let index = self.within(0..all.len() as u64);
        &all[usize::try_from(index).unwrap()]
    }
}
