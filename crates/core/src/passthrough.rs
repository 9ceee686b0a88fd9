//! What a connection on TCP pays, on one page: libc's call, with its bytes counted.
//!
//! Where nothing else is going on, which is so for short connections, and for those that get no lane. The rest is `rx`'s and
//! `tx`'s.

use core::sync::atomic::Ordering;
use shunpike_shm::lifecycle::Phase;

use shunpike_shm::arena::{Direction, Half, mode};

use crate::table::Conn;
use crate::{above, eager, link, process, session, sets, sys};

/// What `rx` and `tx` have to know of.
const SPECIAL: i32 = libc::MSG_OOB | libc::MSG_ERRQUEUE | libc::MSG_PEEK | libc::MSG_ZEROCOPY;

/// Before libc's call that moves bytes by `half`, a direction of the connection: true where it is all that is to be done, and
/// [`end`] follows it.
#[inline(always)]
#[must_use]
pub fn begin<D: Direction>(conn: Conn, half: &D, flags: i32) -> bool {
    let is_plain = |half: &Half| half.mode.load(Ordering::Relaxed) == mode::PLAIN;
    if !is_plain(&conn.block.rx) || !is_plain(&conn.block.tx) {
        return false;
    }
    let waits = process::eager() && !eager::is_settled(conn.block);
    // A read that is to be asked whether it waits.
    let asked = D::RECEIVES && conn.block.asks.load(Ordering::Relaxed) != 0;
    flags & SPECIAL == 0 && !session::has_news() && !waits && !asked && half.enter()
}

/// After it, as it has returned `n`; `wish`: see [`counted`].
#[inline(always)]
pub fn end(conn: Conn, half: &impl Direction, fd: i32, n: isize, wish: usize) {
    counted(conn, half, fd, usize::try_from(n).unwrap_or(0), wish);
    above::settle(conn, fd);
}

/// The wish of a write whose bytes may come to an end before TCP's room does: of a file.
pub const UNBOUNDED: usize = usize::MAX;

/// Inside (see [`Half::enter`]), after a call that has moved `n` bytes, of `wish` that a write was given: counts them, and leaves.
#[inline(always)]
pub fn counted<D: Direction>(conn: Conn, half: &D, fd: i32, n: usize, wish: usize) {
    let calls = if n > 0 { half.count_tcp(n) } else { 0 };
    // Only now: whoever sees nobody inside must see the bytes counted, too.
    half.leave();
    if n > 0 {
        sets::by_tcp();
    }
    if n == 0 || !is_young(conn, half, calls) {
        if !D::RECEIVES {
            heed_refusal(conn, fd, n, wish);
        }
        if n > 0 {
            above::moved(conn, fd, calls);
        }
    }
}

/// A write that TCP refuses, or cuts short, while its lane opens: room in the ring is an edge then. It counts whatever TCP has by now, as
/// the reader may have been faster. Of a file that moved `n` bytes the socket says whether it was cut short.
#[inline(never)]
fn heed_refusal(conn: Conn, fd: i32, n: usize, wish: usize) {
    let is_short = || match wish {
        UNBOUNDED => n == 0 || sys::poll_now(fd, libc::POLLOUT) == 0,
        wish => n < wish,
    };
    if link::registrations(conn.block).is_some() && is_short() {
        conn.block.starved.fetch_add(1, Ordering::Relaxed);
        // Another thread may have taken the kernel's word of room before that.
        sets::starved(conn);
    }
}

/// Whether it is too early for a lane, by what one direction has carried.
#[inline(always)]
fn is_young(conn: Conn, half: &Half, calls: u16) -> bool {
    let knobs = process::knobs();
    conn.block.life.is(Phase::Watched)
        && u32::from(calls) < knobs.nominate_calls.load(Ordering::Relaxed)
        && half.tcp_bytes.load(Ordering::Relaxed) < u64::from(knobs.nominate_bytes.load(Ordering::Relaxed))
}
