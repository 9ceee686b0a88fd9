//! Pace: whether lending is no slower than copying, by the clock.
//!
//! Which of the two is quicker the machine decides: the kernel copies a lender's memory page by page, while the ring is filled
//! and emptied by the widest instructions that a CPU has, mostly within its caches (docs/zerocopy.md). So both ends time what
//! they copy, in ticks per 64 KiB, and the receiver tells the sender (shm's `loans`). Both are tried again now and then: memory
//! goes cold, and neighbours come.

use std::sync::atomic::Ordering;

use shunpike_shm::arena::Half;
use shunpike_shm::lane::{Dmb, Words};

use crate::clock;

/// Copies of fewer bytes say more about the call than about its bytes.
const LEAST: usize = 16 * 1024;
/// Copies by the ring are timed where the stream comes over a multiple of so many bytes: the clock costs a part of what 16 KiB do.
const SAMPLE: u64 = 512 * 1024;
/// Both ways are tried at the begin of a lane, after so many bytes,
const AGAIN: u64 = 2 << 30;
/// ... and each time that so many have gone: where copies make 48 GB/s and loans 12, each 2 GiB cost 2 % of the speed.
const LATER: u64 = 16 << 30;
/// ... copying by the ring once; at first by so many times, as its pages are not there before, and the pace is to be that of memory in use,
const ROUNDS: u64 = 4;
/// ... and lending by so many bytes: the first time that a receiver reads memory it takes it out of the sender's caches.
const LOANS: u64 = 16 << 20;

/// What was copied.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Way {
    /// Into the ring, or out of it.
    Ring,
    /// From the sender's memory.
    Lent,
}

/// Does `copy`, which says how many of the `n` bytes from `offset` on it copied, and keeps the pace that it had, where that is a sample
/// or the first. Under the half's lock.
pub fn timed<E>(
    half: &Half,
    way: Way,
    (offset, n): (u64, usize),
    copy: impl FnOnce() -> Result<usize, E>,
) -> Result<usize, E> {
    let is_sample = match way {
        Way::Ring => offset / SAMPLE != (offset + n as u64) / SAMPLE || pace(half, way) == 0,
        Way::Lent => true,
    };
    if n < LEAST || !is_sample {
        return copy();
    }
    let begin = clock::ticks();
    let copied = copy()?;
    if copied >= LEAST {
        let ticks = clock::ticks().wrapping_sub(begin);
        let sample = (ticks.saturating_mul(64 * 1024) / copied as u64).min(u64::from(u32::MAX)) as u32;
        let word = &half.paces[way as usize];
        word.store(after(word.load(Ordering::Relaxed), sample), Ordering::Relaxed);
    }
    Ok(copied)
}

/// A pace once a sample more is known. A thread that lost its CPU in the middle counts for little: one that seems too slow for a
/// moment would not be tried again for long.
fn after(known: u32, sample: u32) -> u32 {
    match known {
        0 => sample.max(1),
        known => known - known / 8 + sample.min(known.saturating_mul(2)).max(8) / 8,
    }
}

/// Receiver: what it has measured, for the sender, where that is no longer about what it was told. Under the receive lock.
pub fn tell(half: &Half, words: &Words) {
    let paces @ (ring, lent) = (pace(half, Way::Ring), pace(half, Way::Lent));
    let told = words.paces();
    if [(ring, told.0), (lent, told.1)].iter().any(|&(now, told)| now.abs_diff(told) > told / 8) {
        words.tell_paces(paces);
    }
}

fn pace(half: &Half, way: Way) -> u32 {
    half.paces[way as usize].load(Ordering::Relaxed)
}

/// Sender: whether a loan at `offset` is no slower than a copy, as far as is known, or is made to learn that. What
/// was chosen stays so unless it is clearly slower: each has its good and bad moments, and the other is not tried for long. Under the
/// send lock.
pub fn favours(half: &Half, dmb: &Dmb, offset: u64) -> bool {
    if let Some(way) = tried(offset, dmb.capacity().into()) {
        return matches!(way, Way::Lent);
    }
    let (ring, lent) = paces(half, dmb);
    let chosen = &half.paces[Way::Lent as usize];
    let most = if chosen.load(Ordering::Relaxed) == 0 { ring } else { ring.saturating_add(ring / 4) };
    let favours = lent != 0 && lent <= most;
    chosen.store(favours.into(), Ordering::Relaxed);
    favours
}

/// What is done at `offset` to learn how fast it is, with a ring of `capacity` bytes.
fn tried(offset: u64, capacity: u64) -> Option<Way> {
    let since = offset % if offset < 2 * AGAIN { AGAIN } else { LATER };
    let copies = if offset < AGAIN { ROUNDS } else { 1 } * capacity;
    match since {
        _ if since < copies => Some(Way::Ring),
        _ if since < copies + LOANS => Some(Way::Lent),
        _ => None,
    }
}

/// Sender: whether loans are, or could become, no slower than copies if their memory were in huge pages, as far as is known: on Zen 5
/// they are three and a half times as fast from there.
pub fn may_favour(half: &Half, dmb: &Dmb) -> bool {
    let (ring, lent) = paces(half, dmb);
    lent != 0 && lent <= ring.saturating_mul(4)
}

/// Of copies and of loans.
fn paces(half: &Half, dmb: &Dmb) -> (u32, u32) {
    let (theirs, lent) = dmb.words().paces();
    // Both ends copy at the same time: the slower one is waited for.
    (theirs.max(pace(half, Way::Ring)), lent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_are_tried_at_first_often_then_seldom() {
        const RING: u64 = 8 << 20;
        for (begin, copies) in [(0, ROUNDS * RING), (AGAIN, RING), (LATER, RING), (5 * LATER, RING)] {
            assert_eq!(tried(begin, RING), Some(Way::Ring), "{begin}");
            assert_eq!(tried(begin + copies - 1, RING), Some(Way::Ring), "{begin}");
            assert_eq!(tried(begin + copies, RING), Some(Way::Lent), "{begin}");
            assert_eq!(tried(begin + copies + LOANS - 1, RING), Some(Way::Lent), "{begin}");
            assert_eq!(tried(begin + copies + LOANS, RING), None, "{begin}");
        }
        assert_eq!([2 * AGAIN, LATER - 1, LATER + AGAIN].map(|offset| tried(offset, RING)), [None; 3]);
    }

    #[test]
    fn copies_are_timed_where_the_stream_comes_over_a_sample() {
        const KNOWN: u32 = 1_000_000;
        // SAFETY: atomics only, valid when zero, as a new block is.
        let half: Half = unsafe { core::mem::zeroed() };
        let is_timed = |way, at, n, known| {
            half.paces[way as usize].store(known, Ordering::Relaxed);
            assert_eq!(timed(&half, way, (at, n), || Ok::<_, ()>(n)), Ok(n));
            pace(&half, way) != known
        };
        assert!(is_timed(Way::Ring, 0, 32 * 1024, 0), "the first");
        assert!(!is_timed(Way::Ring, 0, 32 * 1024, KNOWN));
        assert!(is_timed(Way::Ring, SAMPLE - 16 * 1024, 16 * 1024, KNOWN));
        assert!(is_timed(Way::Ring, 3 * SAMPLE + 1, 2 * SAMPLE as usize, KNOWN));
        assert!(is_timed(Way::Lent, 0, 32 * 1024, KNOWN), "the kernel's take long");
        assert!(!is_timed(Way::Lent, 0, LEAST - 1, KNOWN));
    }

    #[test]
    fn a_pace_follows_what_is_measured_but_not_a_single_pause() {
        let mut pace = after(0, 1000);
        assert_eq!(pace, 1000);
        pace = after(pace, 1_000_000);
        assert!(pace <= 1300, "{pace}");
        for _ in 0..40 {
            pace = after(pace, 4000);
        }
        assert!((3900..=4100).contains(&pace), "{pace}");
        for _ in 0..80 {
            pace = after(pace, 10);
        }
        assert!((1..=20).contains(&pace), "{pace}");
    }
}
