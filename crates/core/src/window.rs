//! How much of a lane's ring is in use: it grows where a sender needs it, and shrinks when it is drained.
//!
//! Small windows stay in the first-level caches of both cores. Large ones move bulk faster: what the writer
//! overwrites and what the reader fetches lie in the shared cache by then, not in the other core's.

use std::sync::atomic::Ordering;

use shunpike_shm::arena::{Block, Half, Header, mode};
use shunpike_shm::lane::{Dmb, HEADER, MIN_WINDOW};

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

/// A crowded or bulk write of `left` bytes at `offset`, under the send lock: the DMB with as much more window as it
/// is worth and as can be had here, and how many bytes may be put before looking again.
pub fn fit(block: &Block, mut dmb: Dmb, offset: u64, left: u64) -> (Dmb, u64) {
    let half = &block.tx;
    half.crowded_at.store(clock::ticks(), Ordering::Relaxed);
    half.crowded.store(half.crowded.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    // What the receiver has consumed since is as unread as the rest: it only keeps the window smaller for longer.
    let cons = half.other.load(Ordering::Relaxed);
    while wants_more(half, &dmb, offset - cons, left) {
        if dmb.is_at_its_end() && !map_more(block, &mut dmb) {
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
fn map_more(block: &Block, dmb: &mut Dmb) -> bool {
    let more = if u64::from(dmb.mapped()) < FREE { dmb.capacity().min(FREE as u32) } else { dmb.capacity() };
    if device::extend(block, &block.tx, more)
        && let Some(larger) = state::tx_dmb(&block.tx)
    {
        *dmb = larger;
        return true;
    }
    block.tx.crowded.store(0, Ordering::Relaxed);
    false
}

/// A reader whose sender uses all that it may: the rest is mapped, and the sender told. Under the receive lock.
#[cold]
pub fn widen(block: &Block, dmb: &Dmb) {
    let (half, now) = (&block.rx, clock::ticks());
    // What was refused is asked for again later.
    if now.wrapping_sub(half.crowded_at.swap(now, Ordering::Relaxed)) > clock::from_us(AGAIN_US)
        && device::extend(block, half, dmb.capacity())
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

fn wants_more(half: &Half, dmb: &Dmb, unread: u64, left: u64) -> bool {
    let window = dmb.window();
    if !may_be_doubled(dmb) {
        return false;
    }
    if window < FREE && window.saturating_sub(unread) <= left.min(FREE - 1) {
        return true;
    }
    let affordable = |header: &Header| header.grown.load(Ordering::Relaxed) + window <= BUDGET;
    half.crowded.load(Ordering::Relaxed) >= CROWDED && process::header().is_some_and(affordable)
}

/// Goes back to the smallest window when nothing is unread and no larger one was needed of late. Under the send lock.
#[inline]
pub fn shrink(half: &Half, dmb: Dmb, offset: u64) -> Dmb {
    let idle = clock::ticks().wrapping_sub(half.crowded_at.load(Ordering::Relaxed)) > clock::from_us(IDLE_US);
    if idle { shrink_now(half, dmb, offset) } else { dmb }
}

/// The same, however lately a larger one was needed.
pub fn shrink_now(half: &Half, dmb: Dmb, offset: u64) -> Dmb {
    if dmb.words().cons().offset() != offset {
        return dmb;
    }
    let Some(small) = dmb.with_window(MIN_WINDOW.into()) else { return dmb };
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
        if half.window.load(Ordering::Relaxed) <= MIN_WINDOW {
            continue;
        }
        // Whoever has the lock sends, and sees to it itself. What a dead one left is the next sender's to mend.
        let Some(guard) = half.lock.try_lock(critical()) else { continue };
        if guard.inherited() || !conn.current() || half.mode.load(Ordering::Relaxed) != mode::LANE {
            continue;
        }
        if let Some(dmb) = state::tx_dmb(half) {
            let offset = half.cursor.load(Ordering::Relaxed);
            let _ = if is_tight { shrink_now(half, dmb, offset) } else { shrink(half, dmb, offset) };
        }
    }
}

/// The lane is closed: what it had beyond its share is others' again.
pub fn closed(half: &Half) {
    account(half.window.swap(0, Ordering::Relaxed).into(), 0);
}

fn change(half: &Half, dmb: Dmb) -> Dmb {
    // The shared word first: who inherits the lock of a killed sender asks there.
    dmb.words().set_window(dmb.window());
    let before = half.window.swap(dmb.window() as u32, Ordering::Relaxed);
    half.crowded.store(0, Ordering::Relaxed);
    account(before.into(), dmb.window());
    dmb
}

fn account(before: u64, after: u64) {
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

/// ... and its peer.
pub fn first_attached(ring: u32) -> usize {
    HEADER + ring.min(MIN_WINDOW) as usize
}
