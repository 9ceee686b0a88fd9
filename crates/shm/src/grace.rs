//! Grace periods: what was shared with readers that take no lock goes only when none of them can still look at it.
//!
//! A reader counts the borders of its critical sections in a word of its own. Who wants memory gone first makes
//! its address unreachable, then has every running thread pass a fence, then notes who is inside a section: only
//! these can have read the address before. When each of them has crossed a border since, nobody holds it. How long
//! a thread stays inside does not matter: it may be stopped there.
//!
//! | step | reader | reclaimer |
//! |---|---|---|
//! | 1 | `enter`: its count becomes odd | the address is taken away |
//! | 2 | fence for the compiler only ... | ... as the other one's fence is for both: membarrier(2) |
//! | 3 | reads the address | [`Grace::begin`]: notes the odd counts |
//! | 4 | uses it; `leave`: the count becomes even | [`Grace::is_over`]: none of them stands as it did |

use crate::primitive::{AtomicU64, Ordering, light_fence};

/// One thread's count of the borders of its critical sections; odd while it is inside one. Written by that thread
/// only, on a line of its own.
#[repr(align(64))]
pub struct Reader {
    borders: AtomicU64,
}

impl Reader {
    /// A reader outside.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        Self { borders: AtomicU64::new(0) }
    }

    /// A reader outside.
    #[cfg(loom)]
    pub fn new() -> Self {
        Self { borders: AtomicU64::new(0) }
    }

    /// Goes inside; not while inside. What it reads from here on is there until it leaves, where a [`Grace`] is
    /// waited for.
    #[inline(always)]
    pub fn enter(&self) {
        // Release: who sees this border and not the one before must see the section before as over (`Grace`).
        self.borders.store(self.borders.load(Ordering::Relaxed) + 1, Ordering::Release);
        // The reads that follow come after it.
        light_fence();
    }

    /// How often it has gone inside or outside.
    pub fn crossed(&self) -> u64 {
        self.borders.load(Ordering::Relaxed)
    }

    /// Goes outside.
    #[inline(always)]
    pub fn leave(&self) {
        // Release pairs with the Acquire in `Grace`: whoever sees the border crossed comes after all our reads.
        self.borders.store(self.borders.load(Ordering::Relaxed) + 1, Ordering::Release);
    }

    /// The word has another thread from now on, whose predecessor may have died inside.
    pub fn pass_on(&self) {
        let borders = self.borders.load(Ordering::Relaxed);
        // Release: as in `leave`; what the dead one read, it has read.
        self.borders.store(borders + (borders & 1), Ordering::Release);
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

/// A grace period among at most `N` readers.
pub struct Grace<const N: usize> {
    /// The odd count that each reader had at the beginning; 0: it was outside, or has crossed a border since.
    inside: [u64; N],
    used: usize,
}

impl<const N: usize> Grace<N> {
    /// One that is over.
    pub const fn new() -> Self {
        Self { inside: [0; N], used: 0 }
    }

    /// Begins one. The addresses that it is about were taken away before, and every running thread has passed a
    /// fence since. `readers` are all that there are, at most `N`.
    pub fn begin<'a>(&mut self, readers: impl Iterator<Item = &'a Reader>) {
        self.used = 0;
        for (inside, reader) in self.inside.iter_mut().zip(readers) {
            // Acquire pairs with the Release in `leave`.
            let borders = reader.borders.load(Ordering::Acquire);
            *inside = borders * (borders & 1);
            self.used += 1;
        }
    }

    /// Whether nobody is left inside who was there at the beginning. `is_gone` tells whether the thread of a reader,
    /// by its place, has died or has no address in hand; asked only of those inside.
    pub fn is_over<'a>(
        &mut self,
        readers: impl Iterator<Item = &'a Reader>,
        mut is_gone: impl FnMut(usize) -> bool,
    ) -> bool {
        let mut over = true;
        for (place, (inside, reader)) in self.inside.iter_mut().take(self.used).zip(readers).enumerate() {
            if *inside == 0 {
                continue;
            }
            // Acquire as in `begin`.
            if reader.borders.load(Ordering::Acquire) != *inside || is_gone(place) {
                *inside = 0;
            } else {
                over = false;
            }
        }
        over
    }
}

impl<const N: usize> Default for Grace<N> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_who_was_inside_is_waited_for() {
        let readers = [const { Reader::new() }; 3];
        let mut grace = Grace::<3>::new();
        readers[0].enter();
        grace.begin(readers.iter());
        readers[1].enter();
        assert!(!grace.is_over(readers.iter(), |_| false));
        readers[0].leave();
        readers[0].enter();
        assert!(grace.is_over(readers.iter(), |_| false), "inside again is not inside still");
    }

    #[test]
    fn the_dead_are_not_waited_for() {
        let readers = [const { Reader::new() }; 2];
        let mut grace = Grace::<2>::new();
        readers[1].enter();
        grace.begin(readers.iter());
        assert!(grace.is_over(readers.iter(), |place| place == 1));
    }

    #[test]
    fn a_word_that_is_passed_on_is_outside() {
        let reader = Reader::new();
        let mut grace = Grace::<1>::new();
        reader.enter();
        grace.begin(core::iter::once(&reader));
        reader.pass_on();
        assert!(grace.is_over(core::iter::once(&reader), |_| false));
        grace.begin(core::iter::once(&reader));
        assert!(grace.is_over(core::iter::once(&reader), |_| false));
    }
}
