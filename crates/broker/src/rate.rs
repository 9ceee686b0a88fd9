//! How often something may happen: so many times in a second, and as many at once after a quiet second.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Users, or processes, whose rate is remembered before those that have been quiet are forgotten.
const MANY: usize = 1024;

/// What is left of one rate, kept as the time at which it will be whole again.
#[derive(Copy, Clone, Debug)]
pub struct Rate {
    whole_at: Instant,
}

impl Rate {
    /// A whole one.
    pub fn new(now: Instant) -> Self {
        Self { whole_at: now }
    }

    /// Whether it may happen once more, of `per_second` times; `u32::MAX` is no limit.
    pub fn take(&mut self, per_second: u32, now: Instant) -> bool {
        if per_second == u32::MAX {
            return true;
        }
        let Some(each) = Duration::from_secs(1).checked_div(per_second) else { return false };
        let whole_at = self.whole_at.max(now) + each;
        let has_one = whole_at <= now + Duration::from_secs(1);
        if has_one {
            self.whole_at = whole_at;
        }
        has_one
    }
}

/// The rates of all users, or of all processes.
#[derive(Debug)]
pub struct Rates<K> {
    of: HashMap<K, Rate>,
}

impl<K> Default for Rates<K> {
    fn default() -> Self {
        Self { of: HashMap::new() }
    }
}

impl<K: Eq + Hash> Rates<K> {
    /// As [`Rate::take`], of the rate of `who`.
    pub fn take(&mut self, who: K, per_second: u32, now: Instant) -> bool {
        if self.of.len() >= MANY {
            // One that is whole again is as one never seen.
            self.of.retain(|_, rate| rate.whole_at > now);
        }
        self.of.entry(who).or_insert(Rate::new(now)).take(per_second, now)
    }
}

/// How much of the broker's time each user has for questions: a tenth, and a tenth of a second at once.
#[derive(Default, Debug)]
pub struct Shares {
    of: HashMap<u32, Instant>,
}

impl Shares {
    const PART: u32 = 10;
    const BURST: Duration = Duration::from_secs(1);

    /// From when on something is left to `who`; in the past or now where something is.
    pub fn free_at(&self, who: u32) -> Option<Instant> {
        self.of.get(&who).and_then(|whole_at| whole_at.checked_sub(Self::BURST))
    }

    /// Whether something is left to `who`.
    pub fn has_left(&self, who: u32, now: Instant) -> bool {
        self.free_at(who).is_none_or(|at| at <= now)
    }

    /// `who` has had so much, which it has paid for after ten times as long.
    pub fn spend(&mut self, who: u32, time: Duration, now: Instant) {
        if self.of.len() >= MANY {
            self.of.retain(|_, whole_at| *whole_at > now);
        }
        let whole_at = self.of.entry(who).or_insert(now);
        *whole_at = (*whole_at).max(now) + time * Self::PART;
    }
}

/// Something that is told of once in a second at most, with how often it happened: who can have it happen writes no log.
#[derive(Debug)]
pub struct Seldom {
    rate: Rate,
    untold: u64,
}

impl Seldom {
    /// Nothing happened yet.
    pub fn new(now: Instant) -> Self {
        Self { rate: Rate::new(now), untold: 0 }
    }

    /// It happened. Whether to tell of it: how often it did since it was told of.
    pub fn happened(&mut self, now: Instant) -> Option<u64> {
        self.untold += 1;
        self.rate.take(1, now).then(|| std::mem::take(&mut self.untold))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_and_then_the_rate() {
        let mut rates = Rates::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let taken = |rates: &mut Rates<u32>, who, ms, tries| {
            (0..tries).filter(|_| rates.take(who, 100, at(ms))).count()
        };
        assert_eq!(taken(&mut rates, 1, 0, 1000), 100);
        assert_eq!(taken(&mut rates, 1, 50, 1000), 5, "refilled, not more");
        assert_eq!(taken(&mut rates, 2, 50, 1000), 100, "another one's is another one's");
        assert_eq!(taken(&mut rates, 1, 60_000, 1000), 100, "a long pause saves up one second's worth");
    }

    #[test]
    fn a_number_counts_for_its_user() {
        let (mut rates, now) = (Rates::default(), Instant::now());
        assert!((0..3).all(|_| rates.take((7, 1000), 3, now)) && !rates.take((7, 1000), 3, now));
        assert!(rates.take((7, 1001), 3, now), "that process has ended, and another user's has its number");
    }

    #[test]
    fn none_and_all() {
        let mut rates = Rates::default();
        let now = Instant::now();
        assert!(!rates.take(1, 0, now));
        assert!((0..100_000).all(|_| rates.take(1, u32::MAX, now)));
    }

    #[test]
    fn a_share_is_had_again_in_time() {
        let (mut shares, start) = (Shares::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        for _ in 0..11 {
            assert!(shares.has_left(1, start));
            shares.spend(1, Duration::from_millis(10), start);
        }
        assert!(!shares.has_left(1, start) && shares.has_left(2, start));
        assert!(!shares.has_left(1, at(99)) && shares.has_left(1, at(100)));
    }

    #[test]
    fn what_happens_often_is_told_of_seldom() {
        let start = Instant::now();
        let mut seldom = Seldom::new(start);
        let told: Vec<u64> =
            (0..5000).filter_map(|ms| seldom.happened(start + Duration::from_millis(ms))).collect();
        assert_eq!(told, [1, 1000, 1000, 1000, 1000]);
    }

    #[test]
    fn the_quiet_are_forgotten() {
        let mut rates = Rates::default();
        let start = Instant::now();
        for who in 0..10 * MANY as u32 {
            assert!(rates.take(who, 1000, start + Duration::from_millis(10 * who as u64)));
        }
        assert!(rates.of.len() <= MANY);
    }
}
