//! Choice: whether lending is no slower than copying.
//!
//! The kernel copies a lender's memory page by page, while the ring is filled and emptied by the widest instructions that a CPU has,
//! mostly within its caches (docs/zerocopy.md). Both are timed (`pace`), and both are tried again now and then: memory goes cold, and
//! neighbours come.

use core::sync::atomic::Ordering;

use shunpike_shm::arena::{LendingChoice, TxHeld};
use shunpike_shm::lane::Dmb;

use crate::copy_rate::{self, Way};
use crate::stores;

/// Both ways are tried at the begin of a lane, after so many bytes,
const AGAIN: u64 = 2 << 30;
/// Both ways are tried each time that so many bytes have gone: where copies make 48 GB/s and loans 12, each 2 GiB cost 2 % of the speed.
const LATER: u64 = 16 << 30;
/// A trial copies by the ring so many times: at first its pages are not there before, and after loans the first time is half as fast.
const ROUNDS: u64 = 4;
/// A trial lends so many bytes: the first time that a receiver reads memory it takes it out of the sender's caches.
const LOANS: u64 = 16 << 20;
/// The other way must seem better over so many rings: copies are slow for one after loans, and for two after a CPU was changed.
const DOUBTS: u64 = 3;

/// What is done at `offset` to learn how fast it is, with a ring of `capacity` bytes.
fn tried(offset: u64, capacity: u64) -> Option<Way> {
    let since = offset % if offset < 2 * AGAIN { AGAIN } else { LATER };
    let copies = ROUNDS * capacity;
    match since {
        _ if since < copies => Some(Way::Ring),
        _ if since < copies + LOANS => Some(Way::Lent),
        _ => None,
    }
}

/// Sender: whether a loan at `offset` is no slower than a copy, as far as is known, or is made to learn that. What
/// was chosen stays so unless it is clearly slower: each has its good and bad moments, and the other is not tried for long. Under the
/// send lock.
pub fn favours(half: TxHeld<'_>, dmb: &Dmb, offset: u64) -> bool {
    let own = half.own();
    let capacity = dmb.capacity().into();
    if let Some(way) = tried(offset, capacity) {
        own.choice.doubted.store(0, Ordering::Relaxed);
        return way == Way::Lent;
    }
    let (ring, lent) = copy_rate::both(&own.paces, dmb);
    chosen(&own.choice, (stores::settled(own, ring), lent), offset, capacity)
}

/// Whether lending is the way at `offset`, where copies and loans have these paces.
fn chosen(choice: &LendingChoice, (ring, lent): (u32, u32), offset: u64, capacity: u64) -> bool {
    let before = choice.lends.load(Ordering::Relaxed) != 0;
    let most = if before { ring.saturating_add(ring / 4) } else { ring };
    let better = ring != 0 && lent != 0 && lent <= most;
    let doubted = match choice.doubted.load(Ordering::Relaxed) {
        _ if better == before => 0,
        0 => offset,
        since if offset < since + DOUBTS * capacity => since,
        _ => {
            choice.lends.store(better.into(), Ordering::Relaxed);
            0
        }
    };
    choice.doubted.store(doubted, Ordering::Relaxed);
    choice.lends.load(Ordering::Relaxed) != 0
}

/// A new lane begins.
pub fn begin(half: TxHeld<'_>) {
    let choice = &half.own().choice;
    choice.lends.store(0, Ordering::Relaxed);
    choice.doubted.store(0, Ordering::Relaxed);
}

/// Sender: whether loans are, or could become, no slower than copies if their memory were in huge pages, as far as is known: on Zen 5
/// they are three and a half times as fast from there.
pub fn may_favour(half: TxHeld<'_>, dmb: &Dmb) -> bool {
    let (ring, lent) = copy_rate::both(&half.own().paces, dmb);
    lent != 0 && lent <= ring.saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RING: u64 = 8 << 20;

    #[test]
    fn both_ways_are_tried_at_first_often_then_seldom() {
        for begin in [0, AGAIN, LATER, 5 * LATER] {
            let [copied, lent] = [ROUNDS * RING, ROUNDS * RING + LOANS].map(|n| begin + n);
            assert_eq!([begin, copied - 1].map(|at| tried(at, RING)), [Some(Way::Ring); 2]);
            assert_eq!([copied, lent - 1].map(|at| tried(at, RING)), [Some(Way::Lent); 2]);
            assert_eq!(tried(lent, RING), None);
        }
        assert_eq!([2 * AGAIN, LATER - 1, LATER + AGAIN].map(|offset| tried(offset, RING)), [None; 3]);
    }

    #[test]
    fn a_change_must_seem_better_for_a_while() {
        // SAFETY: atomics only, valid when zero, as a new block is.
        let choice: LendingChoice = unsafe { core::mem::zeroed() };
        let mut offset = LOANS;
        // How many of `mib` MiB were lent.
        let mut lent = |paces, mib: u32| -> u32 {
            let mut one = || {
                offset += 1 << 20;
                u32::from(chosen(&choice, paces, offset, RING))
            };
            (0..mib).map(|_| one()).sum()
        };
        assert_eq!(lent((5_000, 0), 100), 0, "nothing is known of loans");
        assert_eq!(lent((5_000, 8_000), 100), 0);
        assert_eq!(lent((10_000, 8_000), 23), 0, "a hiccup");
        assert_eq!(lent((5_000, 8_000), 100), 0);
        assert_eq!(lent((10_000, 8_000), 100), 100 - 24);
        assert_eq!(lent((7_000, 8_000), 100), 100, "not clearly slower");
        assert_eq!(lent((5_000, 8_000), 23), 23, "a hiccup");
        assert_eq!(lent((7_000, 8_000), 100), 100);
        assert_eq!(lent((5_000, 8_000), 100), 24);
    }
}
