//! A random number generator. SplitMix64 is implemented here so that a seed means the same run
//! after any update of a dependency.

use std::ops::Range;

/// A seeded stream of numbers.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns the stream of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `end`; 0 if `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        // The bias of a remainder does not matter here.
        self.number().checked_rem(end).unwrap_or_default()
    }

    /// Returns a number of a range.
    pub fn within(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end.saturating_sub(range.start))
    }

    /// Returns true `per_mille` times in a thousand.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// Returns one of several.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> Option<T> {
        let index = usize::try_from(self.below(choices.len() as u64)).ok()?;
        choices.get(index).copied()
    }

    /// Returns the index of one of several weights, in proportion; `None` when they are all zero.
    pub fn weighted(&mut self, weights: impl Iterator<Item = u64> + Clone) -> Option<usize> {
        let sum = weights.clone().sum();
        let mut rest = self.below(sum);
        weights.enumerate().find_map(|(index, weight)| {
            let found = rest < weight;
            rest = rest.saturating_sub(weight);
            found.then_some(index)
        })
    }
}
