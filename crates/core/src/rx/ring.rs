//! What a receiver reads from the ring (models/lane.pml, Rd).

use core::sync::atomic::Ordering;

use shunpike_shm::arena::{Block, Held, RxHeld, mode};
use shunpike_shm::device::{ClientDevice, Own};
use shunpike_shm::lane::{Cursor, Dmb, Side};

use super::{Step, ask_back, bounded, finish, violated};
use crate::bufs::Bufs;
use crate::copy_rate::{self, Way};
use crate::table::Conn;
use crate::zerocopy::borrowing::{self, Failure};
use crate::{cork, peek, prefetch, seen, state, wait, window};

/// Rings writers once a good part of the ring is free, so that they do not wake for a few bytes.
#[inline(always)]
pub(super) fn wake_writers(block: &Block, dmb: &Dmb) {
    let words = dmb.words();
    if words.waiting(Side::Writers).declared() {
        let unread = words.prod().offset().wrapping_sub(block.rx.cursor.load(Ordering::Relaxed));
        // A window that cannot be will be met by the next read.
        let cursor = block.rx.cursor.load(Ordering::Relaxed);
        if dmb
            .as_sent_behind(cursor)
            .is_none_or(|dmb| dmb.most(cursor).saturating_sub(unread) >= window::writable_at(&dmb))
        {
            wait::notify(block, words, Side::Writers);
        }
    }
}

/// Rings a sender that may wait for notices, which it does with room in the ring: for their sake it is rung seldom.
/// The bytes from `before` on were consumed just now, with `prod` published.
#[cold]
fn wake_lender(block: &Block, half: RxHeld<'_>, dmb: &Dmb, before: u64, prod: Cursor) {
    let (cursor, prod) = (half.cursor.load(Ordering::Relaxed), prod.offset());
    let has_room = |cursor| {
        dmb.as_sent_behind(cursor)
            .is_none_or(|dmb| dmb.most(cursor).saturating_sub(prod - cursor) >= window::writable_at(&dmb))
    };
    // Who waits for room waits for this moment: it has found none before, and looks again once it is declared.
    let has_room_now = has_room(cursor) && !has_room(before);
    if has_room_now || borrowing::tells(half, before, cursor, prod) {
        wait::notify(block, dmb.words(), Side::Writers);
    }
}

/// From the ring.
pub(super) fn read(conn: Conn, fd: i32, half: RxHeld<'_>, bufs: &Bufs<'_>, flags: i32) -> Step {
    let own = half.own();
    let Some(dmb) = state::rx_dmb(&half) else { return Step::Plain };
    let words = dmb.words();
    let offset = half.cursor.load(Ordering::Relaxed);
    let at = Cursor::new(half.generation.load(Ordering::Relaxed), offset);
    let Some((dmb, prod, unread)) = unread(half, &dmb) else { return violated(conn, fd, half) };
    if unread == 0 {
        if prod.has(Cursor::LEAVE) {
            return ask_back::step(conn, half, &dmb, prod, at, fd);
        }
        if prod.has(Cursor::END | Cursor::STOP) {
            finish(conn, half);
            return Step::Again;
        }
        return if words.cons().has(Cursor::TAKEN) {
            taken(conn, half, &dmb, prod, at, fd)
        } else {
            Step::Empty
        };
    }
    let mut n = bufs.left().min(unread as usize);
    if n == 0 {
        prefetch::of_later(&dmb, offset, unread);
    }
    let known = own.loans.load(Ordering::Relaxed);
    let lent = words.lent().0 != known;
    // What is only looked at, or thrown away, is not copied once.
    let is_copied = flags & (libc::MSG_PEEK | libc::MSG_TRUNC) == 0;
    let deliver = || peek::deliver(half, &dmb, bufs, offset, n, flags).map(|()| n).map_err(Failure::Errno);
    let delivered = if lent {
        lent_bytes(half, &dmb, bufs, (offset, prod.offset()), n, flags)
    } else if is_copied && copy_rate::is_sample(offset, n) {
        timed(half, &dmb, deliver)
    } else {
        deliver()
    };
    match delivered {
        Ok(delivered) => n = delivered,
        Err(Failure::Errno(errno)) => return Step::Failed(errno),
        Err(Failure::Violated) => return violated(conn, fd, half),
        Err(Failure::Unreadable) => return ask_back::begin(conn, half, &dmb, prod, fd),
    }
    if flags & libc::MSG_PEEK != 0 {
        // Looked at again: what the sender took back meanwhile is not to be seen here.
        if words.cons() != at {
            return taken(conn, half, &dmb, prod, at, fd);
        }
        let is_last = prod.has(Cursor::END | Cursor::STOP) && n as u64 == unread;
        let behind = if is_last { bounded::peek_behind_lane(fd, &dmb, at, bufs, (0, n), flags) } else { 0 };
        return Step::Data(n + behind);
    }
    match Own::consume(words, at, n as u64) {
        Ok(next) => {
            half.cursor.store(half, next.offset(), Ordering::Relaxed);
            half.count(n);
            if dmb.is_at_its_end() {
                window::widen(conn.block, half, &dmb);
            }
            if lent {
                borrowing::consumed(half, &dmb, next.offset());
            }
            if lent || known != 0 {
                wake_lender(conn.block, half, &dmb, offset, prod);
            } else if n as u64 == unread && prod.has(Cursor::END | Cursor::STOP) {
                // The last byte of the lane: TCP answers from here on, to who asks the kernel as well.
                wake_writers(conn.block, &dmb);
                finish(conn, half);
            }
            Step::Data(n)
        }
        Err(_) => taken(conn, half, &dmb, prod, at, fd),
    }
}

/// From the ring, and what that takes is told to the sender.
#[cold]
fn timed(
    half: RxHeld<'_>,
    dmb: &Dmb,
    deliver: impl FnOnce() -> Result<usize, Failure>,
) -> Result<usize, Failure> {
    let paces = &half.own().paces;
    let delivered = copy_rate::timed(paces, Way::Ring, deliver);
    copy_rate::tell(paces, dmb.words());
    delivered
}

/// From the ring and from the sender's memory, as it has lent some.
#[cold]
pub(super) fn lent_bytes(
    half: RxHeld<'_>,
    dmb: &Dmb,
    bufs: &Bufs<'_>,
    at: (u64, u64),
    n: usize,
    flags: i32,
) -> Result<usize, Failure> {
    if half.own().loans.load(Ordering::Relaxed) == 0 {
        borrowing::probe(half, dmb);
    }
    let delivered = borrowing::deliver(half, dmb, bufs, at, n, flags);
    copy_rate::tell(&half.own().paces, dmb.words());
    delivered
}

/// The DMB as the sender uses it, the producer's word, and how much is unread and may be seen; all checked. `None`: no sender that
/// keeps to the rules wrote it.
///
/// What was once there to be read stays there until it is: a program that poll() told of it may rely on a read
/// that does not wait. But for what the sender was asked to take back.
pub(super) fn unread(half: RxHeld<'_>, dmb: &Dmb) -> Option<(Dmb, Cursor, u64)> {
    unread_as(half, dmb, Dmb::as_sent_behind)
}

/// As [`unread`]; `None` also while the sender moves from the first ring to the one behind the header.
#[inline(always)]
pub(super) fn unread_still(half: RxHeld<'_>, dmb: &Dmb) -> Option<(Dmb, Cursor, u64)> {
    unread_as(half, dmb, |dmb, _| dmb.as_sent())
}

#[inline(always)]
fn unread_as(
    half: RxHeld<'_>,
    dmb: &Dmb,
    as_sent: impl Fn(Dmb, u64) -> Option<Dmb>,
) -> Option<(Dmb, Cursor, u64)> {
    let prod = dmb.words().prod();
    let cursor = half.cursor.load(Ordering::Relaxed);
    let unread = prod.offset().wrapping_sub(cursor);
    let is_back = prod.offset() < half.other.load(Ordering::Relaxed);
    let ours = prod.generation() == half.generation.load(Ordering::Relaxed);
    let dmb = as_sent(*dmb, cursor).filter(|dmb| unread <= dmb.most(cursor))?;
    if !ours || !prod.is_lawful() || is_back {
        return None;
    }
    if prod.has(Cursor::LEAVE) {
        return Some((dmb, prod, 0));
    }
    let shown = cork::shown(&half, dmb.words(), prod);
    half.other.store(half, shown, Ordering::Relaxed);
    Some((dmb, prod, shown.saturating_sub(half.cursor.load(Ordering::Relaxed))))
}

/// The sender took back what is unread: it comes by TCP.
pub(super) fn taken(conn: Conn, half: RxHeld<'_>, dmb: &Dmb, prod: Cursor, at: Cursor, fd: i32) -> Step {
    let cons = dmb.words().cons();
    if cons.with(Cursor::UNPAID) != at.with(Cursor::TAKEN | Cursor::UNPAID) || !cons.has(Cursor::TAKEN) {
        return violated(conn, fd, half);
    }
    owed(conn, half, dmb, prod, at, fd)
}

/// What is unread comes by TCP, as far as it ever does. No byte is published any more.
pub(super) fn owed(conn: Conn, half: RxHeld<'_>, dmb: &Dmb, prod: Cursor, at: Cursor, fd: i32) -> Step {
    let own = half.own();
    // END stands since before TAKEN, so prod is final.
    let last = dmb.words().prod();
    let owed = last.offset().wrapping_sub(at.offset());
    // Asked again: it may have grown until then.
    let fits = dmb.as_sent_behind(at.offset()).is_some_and(|dmb| owed <= dmb.most(at.offset()));
    if last.generation() != prod.generation() || !fits {
        return violated(conn, fd, half);
    }
    if owed > 0 {
        bounded::await_payment(fd);
    }
    half.debt_end.store(half, own.start.load(Ordering::Relaxed) + owed, Ordering::Relaxed);
    seen::void(conn.block);
    half.mode.store(half, mode::DEBT, Ordering::Release);
    conn.block.life.unsettle();
    Step::Again
}
