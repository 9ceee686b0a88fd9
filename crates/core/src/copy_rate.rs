//! Pace: how long copies take, by the clock, in ticks per 64 KiB.
//!
//! A lane's bytes can go by several ways: through the caches or past them (`stores`), or straight from a lender's memory
//! (`zerocopy::choice`). Which is the quickest the machine decides, and what else runs on it. So both ends time what they copy now and
//! then, and the receiver tells the sender (shm's `loans`), who chooses.

use core::sync::atomic::{AtomicU32, Ordering};

use shunpike_shm::arena::Paces;
use shunpike_shm::lane::{Dmb, Words};

use crate::clock;

/// Copies by the ring of fewer bytes say more about the call than about its bytes,
pub const LEAST: usize = 2048;
/// Copies by the kernel of fewer bytes say more about the call than about its bytes.
const LEAST_LENT: usize = 16 * 1024;
/// Copies by the ring are timed where the stream comes over a multiple of so many bytes: the clock costs a part of what 2 KiB do.
pub const SAMPLE: u64 = 512 * 1024;

/// What was copied.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Way {
    /// Into the ring, or out of it.
    Ring,
    /// From the sender's memory.
    Lent,
}

/// Whether a copy of `n` bytes at `offset` of the ring is timed.
#[inline]
pub fn is_sample(offset: u64, n: usize) -> bool {
    n >= LEAST && offset / SAMPLE != (offset + n as u64) / SAMPLE
}

/// Does `copy`, which says how many bytes it copied, and keeps the pace that it had. Under the lock of
/// its direction.
pub fn timed<E>(paces: &Paces, way: Way, copy: impl FnOnce() -> Result<usize, E>) -> Result<usize, E> {
    let (least, memory) = match way {
        Way::Ring => (LEAST, MEMORY),
        Way::Lent => (LEAST_LENT, MEMORY_LENT),
    };
    let begin = clock::ticks();
    let copied = copy()?;
    if copied >= least {
        let ticks = clock::ticks().wrapping_sub(begin);
        let sample = (ticks.saturating_mul(64 * 1024) / copied as u64).min(u64::from(u32::MAX)) as u32;
        let word = word(paces, way);
        word.store(after(word.load(Ordering::Relaxed), sample, memory), Ordering::Relaxed);
    }
    Ok(copied)
}

/// Samples of which a pace of the ring is the mean, about: 8 MiB. Who comes to another CPU finds its caches empty, and copies slowly
/// for as much.
const MEMORY: u32 = 16;
/// Samples of which a pace of loans is the mean, about. Each is timed: a trial has as few as 16.
const MEMORY_LENT: u32 = 8;
/// A first sample counts for no more, µs: nothing that is copied takes longer, only a thread that has lost its CPU.
const FIRST_MOST_US: u64 = 100;

/// A pace once a sample more is known. A thread that lost its CPU in the middle counts for little: one that seems too slow for a
/// moment would not be tried again for long.
fn after(known: u32, sample: u32, memory: u32) -> u32 {
    match known {
        0 => u64::from(sample).clamp(1, clock::from_us(FIRST_MOST_US)) as u32,
        known => known - known / memory + sample.min(known.saturating_mul(2)).max(memory).div_ceil(memory),
    }
}

/// Receiver: what it has measured, for the sender, where that is no longer about what it was told. Under the receive lock.
pub fn tell(paces: &Paces, words: &Words) {
    let known @ (ring, lent) = (own(paces, Way::Ring), own(paces, Way::Lent));
    let told = words.paces();
    if [(ring, told.0), (lent, told.1)].iter().any(|&(now, told)| now.abs_diff(told) > told / 8) {
        words.tell_paces(known);
    }
}

fn own(paces: &Paces, way: Way) -> u32 {
    word(paces, way).load(Ordering::Relaxed)
}

fn word(paces: &Paces, way: Way) -> &AtomicU32 {
    match way {
        Way::Ring => &paces.ring,
        Way::Lent => &paces.lent,
    }
}

/// Sender: of copies by the ring, where both ends know theirs, and of loans; 0 unknown. What the receiver says of them is not checked.
pub fn both(paces: &Paces, dmb: &Dmb) -> (u32, u32) {
    let (theirs, lent) = dmb.words().paces();
    let ours = own(paces, Way::Ring);
    // Both ends copy at the same time: the slower one is waited for.
    (if theirs == 0 || ours == 0 { 0 } else { theirs.max(ours) }, lent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_timed_where_the_stream_comes_over_a_sample() {
        assert!(!is_sample(0, 32 * 1024));
        assert!(is_sample(SAMPLE - LEAST as u64, LEAST));
        assert!(!is_sample(SAMPLE - 1, LEAST - 1), "too few");
        assert!(is_sample(3 * SAMPLE + 1, 2 * SAMPLE as usize));
    }

    #[test]
    fn what_was_hardly_copied_is_not_a_pace() {
        // SAFETY: atomics only, valid when zero, as a new block is.
        let paces: Paces = unsafe { core::mem::zeroed() };
        clock::calibrate();
        let timed = |n| timed(&paces, Way::Lent, || Ok::<_, ()>(n));
        assert_eq!((timed(LEAST_LENT - 1), own(&paces, Way::Lent)), (Ok(LEAST_LENT - 1), 0));
        assert_eq!(timed(LEAST_LENT), Ok(LEAST_LENT));
        assert_ne!(own(&paces, Way::Lent), 0);
        assert_eq!(own(&paces, Way::Ring), 0);
    }

    #[test]
    fn a_pace_follows_what_is_measured_but_not_a_single_pause() {
        clock::calibrate();
        let most = after(0, u32::MAX, MEMORY);
        assert!(u64::from(most) <= clock::from_us(FIRST_MOST_US), "{most}");
        let mut pace = after(0, 1000, MEMORY);
        assert_eq!(pace, 1000);
        pace = after(pace, 1_000_000, MEMORY);
        assert!(pace <= 1100, "{pace}");
        for _ in 0..100 {
            pace = after(pace, 4000, MEMORY);
        }
        assert!((3900..=4100).contains(&pace), "{pace}");
        for _ in 0..200 {
            pace = after(pace, 10, MEMORY);
        }
        assert!((1..=40).contains(&pace), "{pace}");
    }
}
