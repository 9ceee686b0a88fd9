//! Where a connection stands, by the words of its block: its phase with the broker, the modes of its two directions, and their DMBs.

use core::sync::atomic::{Ordering, fence};

use shunpike_shm::arena::{Block, Half, MOVES, RxHalf, RxHeld, TxHalf, mode};
use shunpike_shm::lane::{Dmb, Words};
use shunpike_shm::lifecycle::Phase;
use shunpike_wire::Reason;

use crate::table::Conn;
use crate::{clock, process, sys};

/// Whether a direction may be on a lane.
#[inline]
pub fn may_be_on_lane(block: &Block) -> bool {
    !matches!(block.life.phase(), Phase::Watched | Phase::Nominated)
}

/// Whether this end called connect(): its bytes_acked counts the SYN.
pub fn opener(block: &Block) -> bool {
    block.role.load(Ordering::Relaxed) == 0
}

/// Why the connection is not on a lane, for the tools.
pub fn note(block: &Block, reason: Reason) {
    block.reason.store(reason.code(), Ordering::Relaxed);
}

/// Where the two directions run.
pub fn modes(block: &Block) -> (u16, u16) {
    (block.rx.mode.load(Ordering::Acquire), block.tx.mode.load(Ordering::Acquire))
}

/// Whether the connection is answered from here.
pub fn on_lane(conn: Conn) -> bool {
    conn.block.rx.mode.load(Ordering::Acquire) != mode::PLAIN
        || conn.block.tx.mode.load(Ordering::Acquire) != mode::PLAIN
        || conn.block.life.is(Phase::Open)
        || conn.block.notices.are_ours()
}

/// The whole DMB of a direction's lane.
#[inline]
pub fn whole_dmb(half: &Half) -> Option<Dmb> {
    let base = half.dmb.load(Ordering::Relaxed);
    // SAFETY: set by `grant` or `begin` to a mapping of a DMB with this ring size; unmapped only after every thread
    // has left the critical section in which it may have read the address.
    (base != 0).then(|| unsafe { Dmb::at(base, half.ring.load(Ordering::Relaxed)) })
}

/// The DMB of the lane towards us, ours.
#[inline]
pub fn rx_dmb(half: &RxHalf) -> Option<Dmb> {
    whole_dmb(half)
}

/// Whether bytes lie unread in the ring towards us. Within a critical section.
pub fn has_unread(half: &RxHalf) -> bool {
    rx_dmb(half).is_some_and(|dmb| dmb.words().prod().offset() != half.cursor.load(Ordering::Relaxed))
}

/// In `RxHalf::asked_at`, in the place of its lowest bit: some of what the sender was asked for is in its own memory. Known from before it was
/// asked: what it says later is not believed.
const LENT: u64 = 1;

/// The sender is asked for what is unread, of which some `is_lent`, not in the ring.
pub fn note_asked(half: RxHeld<'_>, is_lent: bool) {
    half.asked_at.store(half, clock::ticks() & !LENT | u64::from(is_lent), Ordering::Relaxed);
}

/// When it was asked, ticks, and whether for lent bytes.
pub fn asked(half: &RxHalf) -> (u64, bool) {
    let asked = half.asked_at.load(Ordering::Relaxed);
    (asked & !LENT, asked & LENT != 0)
}

/// Whether some of what is unread is in the sender's memory, as far as it says.
pub fn is_lent(half: RxHeld<'_>, dmb: &Dmb) -> bool {
    dmb.words().lent().0 != half.own().loans.load(Ordering::Relaxed)
}

/// The DMB of the lane towards the peer, the peer's.
#[inline]
pub fn tx_dmb(half: &TxHalf) -> Option<Dmb> {
    let window = half.window.load(Ordering::Relaxed);
    let until = if window & MOVES == 0 { 0 } else { moved(half) };
    whole_dmb(half)?.with_own_window(window & !MOVES, until)
}

#[cold]
fn moved(half: &TxHalf) -> u64 {
    // Acquire pairs with the Release in `window::note`, for who looks without the lock.
    fence(Ordering::Acquire);
    half.moved.load(Ordering::Relaxed)
}

/// The DMB of the lane towards the peer, for who has found the window of `half` not to move.
#[inline]
pub fn still_tx_dmb(half: &TxHalf, window: u32) -> Option<Dmb> {
    whole_dmb(half)?.with_own_window(window, 0)
}

/// The words of that DMB.
#[inline]
pub fn tx_words(half: &TxHalf) -> Option<&'static Words> {
    whole_dmb(half).map(|dmb| dmb.words())
}

/// Whether another process of the tree accepted or connected it, which is who speaks with the broker of it then.
#[inline]
pub fn is_inherited(block: &Block) -> bool {
    block.pid.load(Ordering::Relaxed) != process::pid()
}

/// A new lane begins: what was unread in the last one of this block is no debt of this one's reader.
pub(crate) fn owes_nothing_yet(half: &TxHalf) {
    half.unheard_since.store(0, Ordering::Relaxed);
}

/// On the lane our answers carry no acknowledgement, and a peer that still sends by TCP, or does so again, waits for one before its next
/// small segment (Nagle's algorithm). So TCP acknowledges at once what is read, until we send by TCP, too. From the lane's begin on; the
/// program's TCP_QUICKACK has no other meaning there.
pub fn acknowledge_at_once(conn: Conn, fd: i32) {
    if conn.block.tx.mode.load(Ordering::Relaxed) == mode::LANE {
        let _ = sys::set_option(fd, libc::IPPROTO_TCP, libc::TCP_QUICKACK, &1i32);
    }
}

/// Bits of `Block::seen`.
pub(crate) mod seen_bit {
    /// A read that found nothing waited for bytes.
    pub const READ: u8 = 1;
    /// poll or select told that there is something to read,
    pub const TOLD: u8 = 2;
    /// or that there is room, after bytes were sent: before, it tells that connect() is done.
    pub const ROOM: u8 = 4;
    /// epoll_wait was called on a set that held it.
    pub const SET: u8 = 8;
    /// The peer took back what was left unread: what is known is void.
    pub const VOID: u8 = 16;
    /// That has happened: nothing is supposed.
    pub const DOUBTED: u8 = 32;
    /// It was nominated on what was supposed, which stands until it proves wrong: the peer may be found much later.
    pub const SUPPOSED: u8 = 64;
    /// What says how it is read.
    pub const READS: u8 = READ | TOLD | SET;
}

/// Notes what was seen of the program's waits.
pub(crate) fn note_seen(block: &Block, what: u8) {
    if block.seen.load(Ordering::Relaxed) & what != what {
        block.seen.fetch_or(what, Ordering::Relaxed);
    }
}
