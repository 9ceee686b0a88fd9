//! The fast path of a receive call: on one buffer, on a lane where nothing else is going on.
//!
//! This is what nearly all messages are, and here they take a third of the instructions that `rx::step` needs, which
//! knows of everything. Whatever is out of the ordinary is left to it: `None` is said before anything has changed that it would
//! not find as it was.

use core::sync::atomic::Ordering;

use shunpike_shm::arena::{Held, RxHeld, mode};
use shunpike_shm::device::{ClientDevice, Own};
use shunpike_shm::lane::short;
use shunpike_shm::lane::{Cursor, Dmb, Side};
use shunpike_shm::lock::Section;

use super::ring;
use crate::call::is_ordinary;
use crate::table::Conn;
use crate::tls::critical;
use crate::{above, prefetch, rx, session, sets, state, user, window};

/// Receives what there is into `size` bytes at `to`.
///
/// # Safety
/// The program gave us the stretch to write to, where it is mapped.
#[inline(always)]
pub unsafe fn receive(conn: Conn, fd: i32, to: *mut u8, size: usize, flags: i32) -> Option<usize> {
    if !is_ordinary(flags) || conn.block.rx.mode.load(Ordering::Relaxed) != mode::LANE || session::has_news()
    {
        return None;
    }
    let critical = critical();
    let guard = conn.block.rx.lock(&critical);
    rx::repair(conn, fd, &guard);
    let half = guard.held();
    let dmb = ordinary(conn, half)?;
    let words = dmb.words();
    let offset = half.cursor.load(Ordering::Relaxed);
    let (dmb, prod, unread) = ring::unread_still(half, &dmb)?;
    let n = size.min(unread as usize);
    // The last byte of a lane ends it, and behind it TCP may have more for this call.
    let is_last = n as u64 == unread && prod.has(Cursor::END | Cursor::STOP);
    if n == 0 || is_last || half.own().peeked.load(Ordering::Relaxed) > offset {
        return None;
    }
    let short = if n <= short::MOST { words.accompanied(offset, n) } else { None };
    let (from, room) = match &short {
        Some(bytes) => (bytes.as_ptr().cast(), n),
        None => {
            let (at, room) = dmb.span(offset);
            (at.cast_const(), room)
        }
    };
    if n > room {
        return None;
    }
    // SAFETY: the program's buffer. The peer may change the ring's bytes meanwhile: they are its bytes.
    unsafe { user::copy(to, from, n) }.ok()?;
    let at = Cursor::new(half.generation.load(Ordering::Relaxed), offset);
    let next = Own::consume(words, at, n as u64).ok()?;
    half.cursor.store(half, next.offset(), Ordering::Relaxed);
    half.count(n);
    if dmb.is_at_its_end() {
        window::widen(conn.block, half, &dmb);
    }
    guard.release();
    ring::wake_writers(conn.block, &dmb);
    if n == size {
        sets::shown(conn, words, Side::Readers);
    }
    critical.leave();
    above::settle(conn, fd);
    Some(n)
}

/// Whether a read would find bytes.
#[inline]
pub fn shows(conn: Conn, fd: i32, section: impl Section) -> Option<bool> {
    let guard = conn.block.rx.lock(section);
    rx::repair(conn, fd, &guard);
    let half = guard.held();
    let dmb = ordinary(conn, half)?;
    let (dmb, prod, unread) = ring::unread_still(half, &dmb)?;
    let offset = half.cursor.load(Ordering::Relaxed);
    let at = Cursor::new(half.generation.load(Ordering::Relaxed), offset);
    if dmb.words().cons() != at || unread == 0 && prod != at {
        return None;
    }
    prefetch::of_later(&dmb, offset, unread);
    guard.release();
    Some(unread > 0)
}

/// The receiving lane, where none of its bytes are in the sender's memory.
#[inline(always)]
fn ordinary(conn: Conn, half: RxHeld<'_>) -> Option<Dmb> {
    let ordinary = conn.current()
        && half.mode.load(Ordering::Relaxed) == mode::LANE
        && half.own().loans.load(Ordering::Relaxed) == 0;
    state::rx_dmb(&half).filter(|dmb| ordinary && dmb.words().lent().0 == 0)
}
