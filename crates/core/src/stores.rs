//! Stores: whether copies into the ring go through the caches, or past them to memory.
//!
//! Between CPUs that share a cache, a ring in it is the quickest place there is. Between CPUs that share none (two dies of a
//! processor, two sockets) each of its lines is fetched from the other's cache when it is written and again when it is read, a few at
//! a time: 3 to 5 GB/s on an EPYC of the fourth generation, where past the caches it is 13. Where they share one, that makes 12 in
//! place of 32 (docs/profiles.md). Which of the two it is can change under a program that runs, in a virtual machine without anybody in
//! it being told. So where copies are slower than any shared cache makes them, the other way is tried for a while.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_shm::arena::{StoresTrial, TxHeld, TxOwn};
use shunpike_shm::lane::Dmb;

use crate::clock;
use crate::copy_rate::{self, Way};
use crate::source::Source;
use crate::user::Stores;

/// Copies through the caches of 64 KiB that take longer are slow, µs.
const SLOW_US: u64 = 10;
/// Nothing is judged before the ring was filled so many times: its pages are not there at first.
const ROUNDS: u64 = 4;
/// Samples of a trial, beside those of a ring that was filled before it: as many as a pace needs to forget what was before.
const TRIAL: u64 = 64;
/// Bytes from one trial to the next; twice as many each time that it changes nothing,
const FIRST_WAIT: u64 = 256 << 20;
/// Bytes from one trial to the next at most.
const LONGEST_WAIT: u64 = 4 << 30;

/// Puts up to `n` bytes into the ring at `offset`, the quicker way; returns how many. Under the send lock.
#[inline]
pub fn fill(half: TxHeld<'_>, source: &Source<'_>, dmb: &Dmb, offset: u64, n: usize) -> Result<usize, Errno> {
    if n < copy_rate::LEAST || matches!(source, Source::File { .. }) {
        return source.fill(dmb, offset, n, Stores::Cached);
    }
    let own = half.own();
    let stores = if own.stores.past.load(Ordering::Relaxed) == 0 { Stores::Cached } else { Stores::Past };
    if !copy_rate::is_sample(offset, n) {
        return source.fill(dmb, offset, n, stores);
    }
    let filled = copy_rate::timed(&own.paces, Way::Ring, || source.fill(dmb, offset, n, stores))?;
    let (pace, _) = copy_rate::both(&own.paces, dmb);
    if pace != 0 && offset >= ROUNDS * u64::from(dmb.capacity()) {
        look(&own.stores, offset, pace, clock::from_us(SLOW_US), dmb.capacity().into());
    }
    Ok(filled)
}

/// What to do from `offset` on, where copies have this pace; `slow`: what is slow through the caches.
fn look(trial: &StoresTrial, offset: u64, pace: u32, slow: u64, capacity: u64) {
    let past = trial.past.load(Ordering::Relaxed) != 0;
    let known = trial.other.load(Ordering::Relaxed);
    if known != 0 {
        let left = trial.left.load(Ordering::Relaxed).saturating_sub(1);
        trial.left.store(left, Ordering::Relaxed);
        if left == 0 {
            judge(trial, offset, if past { [known, pace] } else { [pace, known] });
        }
    } else if offset >= trial.next.load(Ordering::Relaxed) && (past || u64::from(pace) > slow) {
        trial.left.store((capacity / copy_rate::SAMPLE + TRIAL) as u32, Ordering::Relaxed);
        trial.past.store((!past).into(), Ordering::Relaxed);
        trial.other.store(pace, Ordering::Relaxed);
    }
}

/// A trial is over at `offset`: the better way, by the paces through the caches and past them.
fn judge(trial: &StoresTrial, offset: u64, [cached, beyond]: [u32; 2]) {
    let before = trial.past.load(Ordering::Relaxed) == 0;
    let better = cached / 3 > beyond / 2;
    let wait = trial.wait.load(Ordering::Relaxed).max(FIRST_WAIT);
    let wait = if better == before { (2 * wait).min(LONGEST_WAIT) } else { FIRST_WAIT };
    trial.past.store(better.into(), Ordering::Relaxed);
    trial.other.store(0, Ordering::Relaxed);
    trial.wait.store(wait, Ordering::Relaxed);
    trial.next.store(offset + wait, Ordering::Relaxed);
}

/// Where copies have this pace: what they have without a trial of the slower way.
pub fn settled(own: &TxOwn, pace: u32) -> u32 {
    match own.stores.other.load(Ordering::Relaxed) {
        0 => pace,
        other => pace.min(other),
    }
}

/// A new lane begins: its ring is another, and so may its receiver's CPU be.
pub fn begin(half: TxHeld<'_>) {
    let StoresTrial { past, other, left, next, wait } = &half.own().stores;
    for word in [past, other, left] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [next, wait] {
        word.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: u64 = 8 << 20;
    const SLOW: u64 = 20_000;

    struct Stream {
        trial: StoresTrial,
        offset: u64,
    }

    impl Stream {
        fn new() -> Self {
            // SAFETY: atomics only, valid when zero, as a new block is.
            Self { trial: unsafe { core::mem::zeroed() }, offset: 0 }
        }

        /// `bytes` more, where copies take what `paces` says, through the caches and past them: the share that went past them, percent.
        fn share(&mut self, paces: [u32; 2], bytes: u64) -> u64 {
            let mut past = 0;
            for _ in 0..bytes / copy_rate::SAMPLE {
                let way = self.trial.past.load(Ordering::Relaxed);
                past += u64::from(way) * copy_rate::SAMPLE;
                self.offset += copy_rate::SAMPLE;
                look(&self.trial, self.offset, paces[way as usize], SLOW, RING);
            }
            past * 100 / bytes
        }
    }

    #[test]
    fn with_a_cache_in_common_nothing_else_is_tried() {
        assert_eq!(Stream::new().share([5_000, 1], 64 << 30), 0);
    }

    #[test]
    fn without_one_copies_go_past_the_caches_and_the_other_way_is_tried_ever_more_seldom() {
        let mut stream = Stream::new();
        assert!((85..98).contains(&stream.share([48_000, 10_000], 1 << 30)));
        stream.share([48_000, 10_000], 16 << 30);
        assert!(stream.share([48_000, 10_000], 16 << 30) >= 99);
    }

    #[test]
    fn what_is_slow_both_ways_stays_in_the_caches() {
        let mut stream = Stream::new();
        assert!((1..15).contains(&stream.share([30_000, 25_000], 1 << 30)));
        stream.share([30_000, 25_000], 16 << 30);
        assert!(stream.share([30_000, 25_000], 16 << 30) <= 1);
    }

    #[test]
    fn a_process_that_moves_is_followed() {
        let mut stream = Stream::new();
        stream.share([48_000, 10_000], 32 << 30);
        stream.share([5_000, 10_000], LONGEST_WAIT + 2 * RING + TRIAL * copy_rate::SAMPLE);
        assert_eq!(stream.share([5_000, 10_000], 1 << 30), 0);
        stream.share([48_000, 10_000], FIRST_WAIT);
        assert!(stream.share([48_000, 10_000], 1 << 30) > 80);
    }
}
