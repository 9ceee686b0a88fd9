//! Waiting for room in the ring.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_shm::arena::{Block, MOVES, TxHalf, TxHeld, mode};
use shunpike_shm::lane::{Cursor, Dmb, Side};
use shunpike_wire::Reason;

use super::{end, owes};
use crate::blocking::Blocking;
use crate::spin::spin;
use crate::table::Conn;
use crate::tls::critical;
use crate::wait::{self, Nap, Napped, Waiter, Woken};
use crate::window::writable_at;
use crate::{clock, closing, process, state, sys, window};

/// Whether a write would find room, or something else than a lane. Without the lock, inside a critical section.
#[inline]
pub fn has_room(half: &TxHalf) -> bool {
    has_much(half) || has_enough(half)
}

#[inline(never)]
fn has_enough(half: &TxHalf) -> bool {
    !owes(half)
        && room(half).is_none_or(|(free, dmb)| {
            dmb.is_first() || free >= writable_at(&dmb) || can_take(half, &dmb, free)
        })
}

/// The usual case: half of a window that does not move, which is more than anybody waits for.
#[inline]
fn has_much(half: &TxHalf) -> bool {
    if half.mode.load(Ordering::Acquire) != mode::LANE {
        return false;
    }
    let window = half.window.load(Ordering::Relaxed);
    let Some(words) = state::tx_words(half).filter(|_| window & MOVES == 0) else { return false };
    let generation = half.generation.load(Ordering::Relaxed);
    let (prod, cons) = (words.prod(), words.cons());
    !prod.has(Cursor::STOP)
        && prod.generation() == generation
        && cons.generation() == generation
        && half.cursor.load(Ordering::Relaxed).wrapping_sub(cons.offset()) <= u64::from(window / 2)
}

/// Whether a ring that is not as large as it may become would take more, where no writer was refused since something was published: such a
/// one is far from what TCP's buffers hold. Who was refused waits for a good part of it to be read.
fn can_take(half: &TxHalf, dmb: &Dmb, free: u64) -> bool {
    half.full_since.load(Ordering::Relaxed) == 0 && window::can_grow(dmb) && {
        let offset = half.cursor.load(Ordering::Relaxed);
        free > 0 || dmb.may_double(offset.wrapping_sub(dmb.window()), offset)
    }
}

/// A reader that has gone on since the ring was seen full behind TCP's bytes, and has stopped for so long, has perhaps read all that it wants
/// for now, microseconds. On TCP alone there would be room then; a reader that goes on frees the ring soon.
const PAUSE_US: u64 = 8_000;

/// For how long a full ring is borne whose reader does not move, microseconds.
fn grace_us() -> u64 {
    u64::from(process::knobs().grace_ms.load(Ordering::Relaxed)) * 1000
}

/// After how long a writer that found no room looks again, nanoseconds.
pub fn looks_again(half: &TxHalf) -> u64 {
    let grace = grace_us();
    1000 * if half.full_with.load(Ordering::Relaxed) == 0 { grace } else { grace.min(PAUSE_US) }
}

/// Bytes of TCP that the reader has yet to read before the ring, as far as it says.
fn in_front(half: TxHeld<'_>, dmb: &Dmb) -> u64 {
    let start = half.own().start.load(Ordering::Relaxed);
    dmb.words().drained().map_or(0, |drained| start.saturating_sub(drained))
}

/// The ring is full: since when, and with how much before the reader.
pub(super) fn note_full(half: TxHeld<'_>, dmb: &Dmb) {
    half.full_since.store(half, clock::ticks().max(1), Ordering::Relaxed);
    let offset = half.cursor.load(Ordering::Relaxed);
    let (front, unread) = (in_front(half, dmb), dmb.unread(offset));
    if front > 0 {
        half.full_with.store(half, front + unread, Ordering::Relaxed);
    } else if offset > dmb.window() + writable_at(dmb) {
        // There was room since: what TCP had is long read.
        half.full_with.store(half, 0, Ordering::Relaxed);
    }
    half.full_left.store(half, front + unread, Ordering::Relaxed);
}

/// Of a part of a write that is stuck, readers that nap were not told yet.
fn wake_readers(conn: Conn) {
    let _critical = critical();
    if let Some(dmb) = state::tx_dmb(&conn.block.tx) {
        wait::notify(conn.block, dmb.words(), Side::Readers);
    }
}

/// Free bytes of the ring. `None`: `step` finds something else than a lane. It must find it: a writer that was
/// told of room comes back at once.
fn room(half: &TxHalf) -> Option<(u64, Dmb)> {
    if half.mode.load(Ordering::Acquire) != mode::LANE {
        return None;
    }
    let dmb = state::tx_dmb(half)?;
    let words = dmb.words();
    let generation = half.generation.load(Ordering::Relaxed);
    let (prod, cons) = (words.prod(), words.cons());
    if prod.has(Cursor::STOP) || prod.generation() != generation || cons.generation() != generation {
        return None;
    }
    // By our own cursor: what stands in the shared one is the peer's to write, too.
    Some((dmb.room(cons.offset(), half.cursor.load(Ordering::Relaxed))?, dmb))
}

/// Whether the peer, which does not read, is a writer that waits for us to read: each would wait for the other's grace.
fn peer_writes(conn: Conn) -> bool {
    let half = &conn.block.rx;
    let _critical = critical();
    half.mode.load(Ordering::Relaxed) == mode::LANE
        && state::rx_dmb(half).is_some_and(|dmb| dmb.words().waiting(Side::Writers).declared())
        && state::has_unread(half)
}

/// Ends the lanes of a writer that found no room for longer than the grace: a stopped receiver must not block
/// it where TCP's buffers would take the bytes. Says whether it did.
pub fn overflow(conn: Conn, fd: i32) -> bool {
    let overflow = overflowed(conn, fd);
    if overflow == Overflow::Ended {
        // Both directions, else neither would ever come on a lane again.
        closing::stop(conn);
    }
    overflow != Overflow::No
}

#[derive(PartialEq, Eq)]
enum Overflow {
    No,
    Room,
    Ended,
}

fn overflowed(conn: Conn, fd: i32) -> Overflow {
    let guard = conn.block.tx.lock(critical());
    let half = guard.held();
    let Some((free, dmb)) = room(&half) else {
        return if owes(&half) { Overflow::No } else { Overflow::Room };
    };
    let now = clock::ticks();
    let since = half.full_since.load(Ordering::Relaxed);
    if free >= writable_at(&dmb) {
        half.full_since.store(half, 0, Ordering::Relaxed);
        return Overflow::Room;
    }
    let consumed = dmb.words().cons().offset();
    if consumed < half.other.load(Ordering::Relaxed) {
        return Overflow::Room;
    }
    let seen = half.other.swap(half, consumed, Ordering::Relaxed);
    if since == 0 {
        note_full(half, &dmb);
        return Overflow::No;
    }
    let left = in_front(half, &dmb) + dmb.unread(half.cursor.load(Ordering::Relaxed));
    let left_before = half.full_left.load(Ordering::Relaxed);
    if left < left_before || consumed != seen {
        // The grace is for a reader that does not move at all.
        half.full_left.store(half, left.min(left_before), Ordering::Relaxed);
        half.full_since.store(half, now.max(1), Ordering::Relaxed);
        return Overflow::No;
    }
    let waited = now.wrapping_sub(since);
    let is_mutual = || waited >= clock::from_us(PAUSE_US) && peer_writes(conn);
    let may_pause = || {
        left < half.full_with.load(Ordering::Relaxed)
            && waited >= clock::from_us(PAUSE_US)
            && sys::tcp_shows(fd, libc::POLLOUT) & libc::POLLOUT != 0
    };
    if waited < clock::from_us(grace_us()) && !may_pause() && !is_mutual() {
        return Overflow::No;
    }
    state::note(conn.block, Reason::GraceExceeded);
    end(conn, fd, half, &dmb);
    Overflow::Ended
}

/// A send call that found the ring full.
pub(super) struct Wait {
    blocking: Blocking,
    /// It napped since there was room: the next wait is a sleep.
    pub(super) napped: bool,
    /// Room comes when the reader has read what was lent: no spinning for that.
    pub(super) is_long: bool,
}

impl Wait {
    pub(super) fn new(flags: i32) -> Self {
        Self { blocking: Blocking::new(flags, libc::SO_SNDTIMEO), napped: false, is_long: false }
    }

    /// See [`Blocking::moved`].
    pub(super) fn moved(&mut self, block: &Block) {
        self.blocking.moved(block);
    }

    /// Waits for room. Errors: EAGAIN when the call does not block or its time is over, EINTR.
    pub(super) fn more(&mut self, conn: Conn, fd: i32) -> Result<(), Errno> {
        let block = conn.block;
        let half = &block.tx;
        wake_readers(conn);
        if !self.blocking.may_wait(block) {
            // A full ring is seldom.
            if overflow(conn, fd) || self.blocking.blocks_after_all(block, fd) {
                return Ok(());
            }
            block.starved.fetch_add(1, Ordering::Relaxed);
            crate::sets::starved(conn);
            return Err(Errno::AGAIN);
        }
        {
            let _critical = critical();
            if !self.is_long && spin(None, || has_room(half)) {
                return Ok(());
            }
        }
        self.blocking.ask(conn, fd)?;
        if overflow(conn, fd) {
            return Ok(());
        }
        if !self.napped && (self.nap(conn, fd)? != Napped::Over || overflow(conn, fd)) {
            return Ok(());
        }
        let cq = wait::sleeping_cq();
        let mut events = libc::POLLRDHUP;
        let waiter = if owes(half) {
            // TCP's room is all that is waited for.
            events |= libc::POLLOUT;
            Waiter::unrung()
        } else {
            let _critical = critical();
            let Some(dmb) = state::tx_dmb(half) else { return Ok(()) };
            let declare = || wait::declare(block, half, dmb.words(), Side::Writers, cq);
            let Some((waiter, ())) = Waiter::declare(declare, || has_room(half)) else { return Ok(()) };
            // Whoever filled the ring may have been killed before it rang.
            wait::notify(block, dmb.words(), Side::Readers);
            waiter
        };
        let remaining = self.blocking.remaining()?;
        let patience = looks_again(half);
        let grace = if peer_writes(conn) { patience.min(PAUSE_US * 1000) } else { patience } + 1;
        self.blocking.attend_signals()?;
        let nap = remaining.map_or(grace, |left| left.min(grace));
        match wait::sleep(waiter, block, fd, events, Some(nap)) {
            Woken::Look => Ok(()),
            Woken::Tcp => {
                half.checked.store(0, Ordering::Relaxed);
                Ok(())
            }
            Woken::Timeout if remaining.is_some_and(|left| left <= grace) => Err(Errno::AGAIN),
            Woken::Timeout => {
                overflow(conn, fd);
                Ok(())
            }
            Woken::Interrupted => self.blocking.interrupted(),
        }
    }

    /// Naps, where that can be, as a reader does. Errors: EAGAIN when the program's time is over, EINTR.
    fn nap(&mut self, conn: Conn, fd: i32) -> Result<Napped, Errno> {
        self.napped = true;
        let half = &conn.block.tx;
        self.blocking.nap(conn, fd, half, || {
            let dmb = state::tx_dmb(half).filter(|_| !owes(half)).ok_or(Napped::Over)?;
            let words = dmb.words();
            let nap = Nap::declare(conn.block, half, (words, Side::Writers), || has_room(half));
            if !matches!(nap, Err(Napped::Look)) {
                // Whoever filled the ring may have been killed before it rang.
                wait::notify(conn.block, words, Side::Readers);
            }
            nap
        })
    }
}
