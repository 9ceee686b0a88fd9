//! How much of a lane's ring is in use: it grows where a sender needs it, and shrinks when it is drained.
//!
//! A lane begins in the first ring, in the page of its words. The others are behind it ([`shunpike_shm::lane`]). Small windows stay in the
//! first-level caches of both cores. Large ones move bulk faster: what the writer overwrites and what the reader fetches lie in the shared
//! cache by then, not in the other core's.
//!
//! | window | is left for more | who grants it | refused | is come back to |
//! |---|---|---|---|---|
//! | first, 2 KiB | by the first write that does not fit; by one that passes the ring's end, the fourth within 10 ms of the one before | \
//!   nobody need: what a lane counts for when it opens ([`memory::may_open_lane`]), and both ends have mapped it | by the system alone \
//!   (ENOMEM): TCP | |
//! | least, 16 KiB | by a write that does not fit, where what is unread lies so that it can; by 32 bulk writes | `wmem`, the reader's reach, \
//!   the limits ([`memory::may_grow`]), address space | it stays as it is, and is asked for again by the next such write | when nothing is \
//!   unread, by the first write of those that take the slow way after a second in which no larger one was needed; at once where memory is scarce |
//! | up to 256 KiB | the same | the same | the same | the same: to the first |
//! | up to the DMB's | by 32 bulk writes | the same, and 64 MiB for all | the same | the same |

use core::sync::atomic::Ordering;

use shunpike_shm::arena::{Block, Header, MOVES, RxHeld, TxHeld, mode};
use shunpike_shm::lane::{Dmb, FIRST_WINDOW, HEADER, MIN_WINDOW};

use crate::table::{self, Entry};
use crate::tls::critical;
use crate::{clock, device, memory, process, state};

/// Up to this window a lane grows at the first write that finds too little room, bytes: about what TCP's buffers take
/// before anybody reads.
pub const FREE: u64 = 256 * 1024;
/// A write from so many bytes on is bulk.
pub const BULK: u64 = 16 * 1024;
/// In any case it grows after so many bulk or crowded writes at one size: a MiB or so.
const CROWDED: u32 = 32;
/// What all lanes of the processes that share an arena may have beyond [`FREE`], bytes.
const BUDGET: u64 = 64 << 20;
/// A reader that could not map more tries again after this long, microseconds.
const AGAIN_US: u64 = 10_000;
/// A window that was not too small for so long is given back, microseconds.
const IDLE_US: u64 = 1_000_000;
/// A first ring whose end is passed again so soon, microseconds, this often in a row, is left for speed: each time takes the slow way. All lanes
/// that do that have less of the least windows than they carry in a tenth of a second.
const QUICK_US: u64 = 10_000;
const QUICK_TURNS: u32 = 4;

/// A crowded or bulk write of `left` bytes at `offset`, under the send lock: the DMB with as much more window as it
/// is worth and as can be had here, and how many bytes may be put before looking again.
pub fn fit(block: &Block, half: TxHeld<'_>, mut dmb: Dmb, offset: u64, left: u64) -> (Dmb, u64) {
    if dmb.is_first() {
        dmb = leave_first(half, dmb, offset);
    }
    half.own().crowded_at.store(clock::ticks(), Ordering::Relaxed);
    half.own().crowded.store(half.own().crowded.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    // What the receiver has consumed since is as unread as the rest: it only keeps the window smaller for longer.
    let cons = half.other.load(Ordering::Relaxed);
    while wants_more(half, &dmb, offset - cons.max(dmb.until()), left) {
        if dmb.is_at_its_end() && !map_more(block, half, &mut dmb) {
            break;
        }
        match dmb.doubled(cons, offset) {
            Some(grown) => dmb = change(half, grown),
            None if dmb.window() < u64::from(dmb.capacity()) => {
                return (dmb, dmb.growth_point(offset) - offset);
            }
            None => break,
        }
    }
    (dmb, u64::MAX)
}

/// All that is mapped here is in use: maps more, first what every lane may grow to, then the whole.
fn map_more(block: &Block, half: TxHeld<'_>, dmb: &mut Dmb) -> bool {
    let more = if u64::from(dmb.mapped()) < FREE { dmb.capacity().min(FREE as u32) } else { dmb.capacity() };
    if device::extend(block, half, Some(&half.own().stage), more)
        && let Some(larger) = state::tx_dmb(&half)
    {
        *dmb = larger;
        return true;
    }
    half.own().crowded.store(0, Ordering::Relaxed);
    false
}

/// A reader whose sender uses all that it may: the rest is mapped, and the sender told. Under the receive lock.
#[cold]
pub fn widen(block: &Block, half: RxHeld<'_>, dmb: &Dmb) {
    let now = clock::ticks();
    // What was refused is asked for again later.
    if now.wrapping_sub(half.own().widened_at.swap(now, Ordering::Relaxed)) > clock::from_us(AGAIN_US)
        && device::extend(block, half, None, dmb.capacity())
    {
        dmb.words().set_reach(dmb.capacity().into());
    }
}

/// Whether the window grows at the first write that finds too little room, if what is unread lies so that it can.
pub fn can_grow(dmb: &Dmb) -> bool {
    dmb.window() < FREE && may_be_doubled(dmb)
}

fn may_be_doubled(dmb: &Dmb) -> bool {
    let window = dmb.window();
    // wmem: what the program may have under way. 0 is a broker that does not say.
    let wmem = u64::from(process::knobs().wmem.load(Ordering::Relaxed));
    if wmem != 0 && window >= wmem || 2 * window > dmb.words().reach() {
        return false;
    }
    let windows = process::header().map_or(0, |header| header.windows.load(Ordering::Relaxed));
    memory::may_grow(windows, window)
}

fn wants_more(half: TxHeld<'_>, dmb: &Dmb, unread: u64, left: u64) -> bool {
    let window = dmb.window();
    if !may_be_doubled(dmb) {
        return false;
    }
    if window < FREE && window.saturating_sub(unread) <= left.min(FREE - 1) {
        return true;
    }
    let affordable = |header: &Header| header.grown.load(Ordering::Relaxed) + window <= BUDGET;
    half.own().crowded.load(Ordering::Relaxed) >= CROWDED && process::header().is_some_and(affordable)
}

/// Goes on behind the header. What is unread in the first ring stays there.
fn leave_first(half: TxHeld<'_>, dmb: Dmb, offset: u64) -> Dmb {
    match dmb.moved_on(half.other.load(Ordering::Relaxed), offset) {
        Some(moved) => change(half, moved),
        None => dmb,
    }
}

/// Before a write of `n` bytes at `offset` that takes the slow way: the DMB with the window that the lane has earned or no longer needs. `now`
/// is the clock's, in ticks. Under the send lock.
pub fn adapt(half: TxHeld<'_>, mut dmb: Dmb, offset: u64, n: u64, now: u64) -> Dmb {
    if dmb.until() != 0 {
        dmb = settle(half, dmb, offset);
    }
    if dmb.is_first() || dmb.window() == u64::from(MIN_WINDOW) {
        let since = now.wrapping_sub(half.own().crowded_at.load(Ordering::Relaxed));
        let turns = half.own().crowded.load(Ordering::Relaxed);
        match Pass::of(&dmb, offset, n, clock::to_us(since), turns) {
            Pass::None => {}
            Pass::Turn(turns) => {
                half.own().crowded_at.store(now, Ordering::Relaxed);
                half.own().crowded.store(turns, Ordering::Relaxed);
            }
            Pass::Keep => half.own().crowded_at.store(now, Ordering::Relaxed),
            Pass::Leave if memory::is_tight() => half.own().crowded.store(0, Ordering::Relaxed),
            Pass::Leave => {
                half.own().crowded_at.store(now, Ordering::Relaxed);
                dmb = leave_first(half, dmb, offset);
            }
        }
    }
    if dmb.is_first() { dmb } else { shrink(half, dmb, offset, now) }
}

/// What a write says of how much the lane needs, by what it passes.
#[derive(PartialEq, Eq, Debug)]
enum Pass {
    /// Nothing.
    None,
    /// It passes the first ring's end, so often in short order by now.
    Turn(u32),
    /// That is often enough.
    Leave,
    /// The least window behind the header is needed still.
    Keep,
}

impl Pass {
    /// Of `n` bytes at `offset`, so long after the last such; `turns` were counted.
    fn of(dmb: &Dmb, offset: u64, n: u64, since_us: u64, turns: u32) -> Self {
        let (window, first) = (dmb.window(), u64::from(FIRST_WINDOW));
        let passes = (offset & (window - 1)) + n >= window;
        if !dmb.is_first() {
            // Twice as long as it would have been left for: who is near that should not go to and fro.
            let is_quick = passes && since_us <= 2 * QUICK_US * (window / first);
            return if is_quick || n > first { Self::Keep } else { Self::None };
        }
        match (passes, since_us <= QUICK_US) {
            (false, _) => Self::None,
            (true, false) => Self::Turn(0),
            (true, true) if turns + 1 < QUICK_TURNS => Self::Turn(turns + 1),
            (true, true) => Self::Leave,
        }
    }
}

/// The first ring is read: says so, and both ends take the fast path again.
fn settle(half: TxHeld<'_>, dmb: Dmb, offset: u64) -> Dmb {
    let cons = dmb.words().cons();
    let ours = cons.generation() == half.generation.load(Ordering::Relaxed);
    let known = half.other.load(Ordering::Relaxed);
    if !ours || !(dmb.until().max(known)..=offset).contains(&cons.offset()) {
        return dmb;
    }
    // What is unread is counted from there, no longer from where the first ring ends.
    half.other.store(half, cons.offset(), Ordering::Relaxed);
    let dmb = dmb.settled();
    dmb.words().set_window(dmb.said().0);
    note(half, &dmb);
    dmb
}

/// Goes back to the first ring when nothing is unread and no larger one was needed of late. Under the send lock.
#[inline]
pub fn shrink(half: TxHeld<'_>, dmb: Dmb, offset: u64, now: u64) -> Dmb {
    let idle = now.wrapping_sub(half.own().crowded_at.load(Ordering::Relaxed)) > clock::from_us(IDLE_US);
    if idle { shrink_now(half, dmb, offset) } else { dmb }
}

/// Goes back to the first ring, however lately a larger one was needed.
pub fn shrink_now(half: TxHeld<'_>, dmb: Dmb, offset: u64) -> Dmb {
    if dmb.words().cons().offset() != offset {
        return dmb;
    }
    let Some(small) = dmb.with_window(FIRST_WINDOW.into()) else { return dmb };
    dmb.release_behind(small.window());
    change(half, small)
}

/// Memory is scarce: the windows of this process that are drained, and not needed of late, become small again. With no lock held.
#[cold]
pub fn shrink_all() {
    let is_tight = memory::is_tight();
    for (_, entry) in table::all() {
        let Entry::Conn(conn) = entry else { continue };
        let half = &conn.block.tx;
        if half.window.load(Ordering::Relaxed) <= FIRST_WINDOW {
            continue;
        }
        // Whoever has the lock sends, and sees to it itself. What a dead one left is the next sender's to mend.
        let Some(guard) = half.try_lock(critical()) else { continue };
        if guard.inherited() || !conn.current() || half.mode.load(Ordering::Relaxed) != mode::LANE {
            continue;
        }
        if let Some(dmb) = state::tx_dmb(half) {
            let half = guard.held();
            let offset = half.cursor.load(Ordering::Relaxed);
            let dmb = if dmb.until() == 0 { dmb } else { settle(half, dmb, offset) };
            let now = clock::ticks();
            let _ = if is_tight { shrink_now(half, dmb, offset) } else { shrink(half, dmb, offset, now) };
        }
    }
}

/// The lane is closed: what it had beyond its share is others' again.
pub fn closed(half: TxHeld<'_>) {
    account(half.window.swap(half, 0, Ordering::Relaxed) & !MOVES, 0);
}

fn change(half: TxHeld<'_>, dmb: Dmb) -> Dmb {
    // The shared word first: who inherits the lock of a killed sender asks there.
    dmb.words().set_window(dmb.said().0);
    let before = note(half, &dmb);
    half.own().crowded.store(0, Ordering::Relaxed);
    account(before, dmb.window());
    dmb
}

/// Our own copy of what a sender's DMB is. Returns the window before.
pub fn note(half: TxHeld<'_>, dmb: &Dmb) -> u32 {
    half.moved.store(half, dmb.until(), Ordering::Relaxed);
    let moves = if dmb.until() == 0 { 0 } else { MOVES };
    // Release pairs with the Acquire in `state::tx_dmb`.
    half.window.swap(half, dmb.window() as u32 | moves, Ordering::Release) & !MOVES
}

fn account(before: u32, after: u64) {
    let before = u64::from(before);
    let Some(header) = process::header() else { return };
    let beyond = |window: u64| window.saturating_sub(FREE);
    // Wraps back: each addition is taken away again, but for those of killed processes that shared the arena.
    header.grown.fetch_add(beyond(after).wrapping_sub(beyond(before)), Ordering::Relaxed);
    let smallest = u64::from(MIN_WINDOW);
    let more = after.saturating_sub(smallest).wrapping_sub(before.saturating_sub(smallest));
    header.windows.fetch_add(more, Ordering::Relaxed);
}

/// Free bytes from which on a lane that was full counts as writable: a third, as of TCP's send buffer (`sk_stream_min_wspace`).
#[inline]
pub fn writable_at(dmb: &Dmb) -> u64 {
    dmb.window().div_ceil(3)
}

/// Bytes of a DMB with a ring of `ring` bytes that its owner maps at first: what a window can grow to before anybody reads.
pub fn first_mapped(ring: u32) -> usize {
    HEADER + ring.min(FREE as u32) as usize
}

/// Bytes of a DMB with a ring of `ring` bytes that its owner's peer maps at first.
pub fn first_attached(ring: u32) -> usize {
    HEADER + ring.min(MIN_WINDOW) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: u64 = QUICK_US;
    const FIRST: u64 = FIRST_WINDOW as u64;

    /// A DMB that is only counted with.
    fn dmb(window: u32) -> Dmb {
        static MEMORY: Aligned = Aligned([0; 2 * 4096]);
        #[repr(C, align(4096))]
        struct Aligned([u8; 2 * 4096]);
        let words = core::ptr::from_ref(&MEMORY).expose_provenance();
        // SAFETY: the header is there, and nothing else is looked at.
        let whole = unsafe { Dmb::at(Dmb::address_of(words, 64 << 10), 64 << 10) };
        whole.with_own_window(window, 0).expect("mapped")
    }

    #[test]
    fn the_first_ring_is_left_by_who_goes_round_it_often() {
        let pass = |offset, n, since, turns| Pass::of(&dmb(FIRST_WINDOW), offset, n, since, turns);
        assert_eq!(pass(0, FIRST - 1, 0, QUICK_TURNS), Pass::None, "its end is not passed");
        assert_eq!(pass(FIRST - 100, 100, SOON, 0), Pass::Turn(1));
        assert_eq!(pass(FIRST - 100, 100, SOON, QUICK_TURNS - 1), Pass::Leave);
        assert_eq!(pass(FIRST - 100, 100, SOON + 1, QUICK_TURNS - 1), Pass::Turn(0), "in a row");
        assert_eq!(pass(5 * FIRST - 1, 2, SOON, 1), Pass::Turn(2));
    }

    #[test]
    fn what_was_left_for_speed_is_kept_at_half_of_it() {
        let pass = |offset, n, since| Pass::of(&dmb(MIN_WINDOW), offset, n, since, 0);
        let (end, round) = (u64::from(MIN_WINDOW) - 1, 2 * SOON * u64::from(MIN_WINDOW) / FIRST);
        assert_eq!(
            [pass(end, 1, round), pass(end, 1, round + 1), pass(0, 1, 0)],
            [Pass::Keep, Pass::None, Pass::None]
        );
        assert_eq!(pass(0, FIRST + 1, u64::MAX), Pass::Keep, "a message that the first ring does not hold");
    }
}
