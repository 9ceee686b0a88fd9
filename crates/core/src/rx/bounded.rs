//! What a receiver reads from TCP while it may not read all of that: up to the lane's beginning, or what the sender took back from the ring.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_shm::arena::{RxHeld, mode};
use shunpike_shm::lane::{Cursor, Dmb};
use shunpike_wire::Reason;

use super::{NEWS, Step, finish, ring, violated};
use crate::bufs::Bufs;
use crate::table::Conn;
use crate::{clock, closing, peek, state, sys};

/// Its sender is in the middle of that. A program that was told of these bytes need not find none for so long, microseconds.
const PAYING_US: u64 = 5_000;

/// Until TCP has what was taken back, but no longer than its sender takes, unless that is held up. Our own SHUT_RD is no end of it.
pub(super) fn await_payment(fd: i32) {
    let began = clock::ticks();
    let is_on_its_way = || sys::unread(fd) == Ok(0) && sys::peer_may_send(fd);
    while is_on_its_way() && clock::ticks().wrapping_sub(began) < clock::from_us(PAYING_US) {
        rustix::thread::sched_yield();
    }
}

/// From TCP, no further than the start word allows (GRANTED), or paying the sender's debt (DEBT).
pub(super) fn read(conn: Conn, fd: i32, half: RxHeld<'_>, bufs: &Bufs<'_>, flags: i32) -> Step {
    let own = half.own();
    let Some(dmb) = state::rx_dmb(&half) else { return Step::Plain };
    let debt = half.mode.load(Ordering::Relaxed) == mode::DEBT;
    let seen = half.tcp_bytes.load(Ordering::Relaxed);
    if debt && seen >= half.debt_end.load(Ordering::Relaxed) {
        return paid(conn, half, &dmb, fd);
    }
    // First what TCP has, only then the start word: bytes counted now were written before it.
    let (queued, is_over) = match Tcp::look(fd) {
        Ok(Tcp::Bytes(queued)) => (queued, false),
        Ok(Tcp::Nothing) => (0, false),
        Ok(Tcp::Over) => (0, true),
        Ok(Tcp::Urgent) => return urgent(conn, fd, half),
        // The connection's own, or a filter's that refuses a peek, too.
        Err(errno) => return Step::Failed(errno),
    };
    let peeks = flags & libc::MSG_PEEK != 0;
    let limit = if debt {
        // Behind the debt TCP goes on, which only looking does not change.
        if peeks { u64::MAX } else { half.debt_end.load(Ordering::Relaxed) - seen }
    } else {
        match dmb.words().start(half.generation.load(Ordering::Relaxed)) {
            None => u64::MAX,
            Some(start) if start == seen => {
                own.start.store(start, Ordering::Relaxed);
                half.mode.store(half, mode::LANE, Ordering::Release);
                return Step::Again;
            }
            Some(start) if start < seen => return violated(conn, fd, half),
            Some(start) => start - seen,
        }
    };
    if queued == 0 {
        if !is_over {
            // Who owes it may be stopped: as on TCP that is no end.
            return if debt && was_read_by_others(conn, fd, half) { Step::Again } else { Step::Empty };
        }
        return match (debt, sys::peer_may_send(fd)) {
            // Our own SHUT_RD. What is owed comes yet,
            (true, true) => Step::Empty,
            // and a sender that begins at this moment is read.
            (false, true) => end_reading(conn, fd, half, &dmb),
            (true, false) => inherit(conn, half, &dmb, bufs, flags, fd),
            (false, false) => forget(conn, fd, half, seen),
        };
    }
    let n = queued.min(limit).min(bufs.left() as u64) as usize;
    if n == 0 {
        return Step::Data(0);
    }
    let mut iov = Bufs::kernel_iov();
    let used = bufs.for_kernel(&mut iov, n);
    let keep = flags & (libc::MSG_PEEK | libc::MSG_TRUNC);
    match sys::recv(fd, &mut iov[..used], keep | libc::MSG_DONTWAIT) {
        Ok(n) => {
            if !peeks {
                half.tcp_bytes.store(seen + n as u64, Ordering::Relaxed);
                if !debt {
                    dmb.words().set_drained(seen + n as u64);
                }
            }
            if !debt && n as u64 == limit && bufs.left() > n {
                return Step::Data(n + cross(conn, fd, half, &dmb, bufs, n, flags));
            }
            if debt {
                return peek::repeat(half, &dmb, bufs, owed_at(half, seen), n, flags)
                    .map_or_else(Step::Failed, |()| Step::Data(n));
            }
            Step::Data(n)
        }
        Err(Errno::AGAIN) => Step::Empty,
        Err(errno) => Step::Failed(errno),
    }
}

/// The `n` bytes up to the lane's beginning are read, and there is room for more: what the ring has is a part of the same read. Its
/// bytes, delivered.
fn cross(conn: Conn, fd: i32, half: RxHeld<'_>, dmb: &Dmb, bufs: &Bufs<'_>, n: usize, flags: i32) -> usize {
    if flags & libc::MSG_PEEK != 0 {
        return peek_ring(fd, half, dmb, bufs, n, flags);
    }
    let mut rest = *bufs;
    rest.advance(n);
    half.own().start.store(half.tcp_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    half.mode.store(half, mode::LANE, Ordering::Release);
    // Anything else is the next call's to find.
    if let Step::Data(n) = ring::read(conn, fd, half, &rest, flags) { n } else { 0 }
}

/// MSG_PEEK at the ring while the `before` bytes in front of it are on TCP. What cannot be shown now is not.
fn peek_ring(fd: i32, half: RxHeld<'_>, dmb: &Dmb, bufs: &Bufs<'_>, before: usize, flags: i32) -> usize {
    let mut rest = *bufs;
    rest.advance(before);
    let offset = half.cursor.load(Ordering::Relaxed);
    let at = Cursor::new(half.generation.load(Ordering::Relaxed), offset);
    let Some((dmb, prod, unread)) = ring::unread(half, dmb) else { return 0 };
    let is_over = prod.has(Cursor::END | Cursor::STOP) && !prod.has(Cursor::LEAVE);
    let cons = dmb.words().cons();
    if cons == at.with(Cursor::TAKEN) {
        // The sender took back what is unread: it stands on TCP, or will.
        let n = peek_behind(fd, bufs, (before, 0), flags);
        // Errors: of the program's buffers, which the kernel has written to.
        return peek::repeat(half, &dmb, &rest, offset, n, flags).map_or(0, |()| n);
    }
    if unread == 0 {
        // One that nothing was sent on, and that has ended.
        return if is_over && cons == at { peek_behind(fd, bufs, (before, 0), flags) } else { 0 };
    }
    let n = rest.left().min(unread as usize);
    let peeked = if dmb.words().lent().0 != half.own().loans.load(Ordering::Relaxed) {
        ring::lent_bytes(half, &dmb, &rest, (offset, prod.offset()), n, flags).ok()
    } else {
        peek::deliver(half, &dmb, &rest, offset, n, flags).ok().map(|()| n)
    };
    let Some(n) = peeked.filter(|_| dmb.words().cons() == at) else { return 0 };
    n + if is_over && n as u64 == unread {
        peek_behind_lane(fd, &dmb, at, bufs, (before, n), flags)
    } else {
        0
    }
}

/// MSG_PEEK at TCP behind the last byte of a lane that is over: `bufs` have `before` bytes that TCP has, too, in front of the lane's `n`.
pub(super) fn peek_behind(fd: i32, bufs: &Bufs<'_>, (before, n): (usize, usize), flags: i32) -> usize {
    let mut rest = *bufs;
    rest.advance(before + n);
    if rest.left() == 0 {
        return 0;
    }
    let mut iov = Bufs::kernel_iov();
    // Those before come to their places once more.
    let first = bufs.for_kernel(&mut iov, before);
    let used = first + rest.for_kernel(&mut iov[first..], usize::MAX);
    let flags = flags & (libc::MSG_PEEK | libc::MSG_TRUNC) | libc::MSG_DONTWAIT;
    sys::recv(fd, &mut iov[..used], flags).map_or(0, |peeked| peeked.saturating_sub(before))
}

/// MSG_PEEK at TCP behind the last byte of a lane whose reader stands at `at`. Where its bytes were taken back meanwhile, TCP has them once more.
pub(super) fn peek_behind_lane(
    fd: i32,
    dmb: &Dmb,
    at: Cursor,
    bufs: &Bufs<'_>,
    places: (usize, usize),
    flags: i32,
) -> usize {
    let peeked = peek_behind(fd, bufs, places, flags);
    if dmb.words().cons() == at { peeked } else { 0 }
}

/// What TCP has for a reader.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(super) enum Tcp {
    /// So many bytes.
    Bytes(u64),
    Nothing,
    /// Its end, or an error.
    Over,
    /// Urgent data is next, or bytes wait behind its mark (SIOCINQ counts up to it). A sleep would end at once: it hears of that, too.
    Urgent,
}

impl Tcp {
    pub(super) fn look(fd: i32) -> Result<Self, Errno> {
        let mut is_over = false;
        // The kernel's poll takes no lock: of a FIN that comes in just then it may show the byte (POLLIN), and not yet that it is the end
        // (tcp_data_queue, tcp_poll). SIOCINQ takes the lock, so the poll after it is behind that.
        for _ in 0..3 {
            match sys::unread(fd)? {
                0 if is_over => return Ok(Self::Over),
                0 => {}
                queued => return Ok(Self::Bytes(queued as u64)),
            }
            let shows = sys::tcp_shows(fd, NEWS);
            if shows == 0 {
                return Ok(Self::Nothing);
            }
            is_over = shows & !(libc::POLLIN | libc::POLLPRI) != 0;
        }
        Ok(Self::Urgent)
    }
}

/// What the kernel skips at urgent data's mark nobody can count. A lane that has not begun never will; behind one that has, it is no
/// peer's of ours.
fn urgent(conn: Conn, fd: i32, half: RxHeld<'_>) -> Step {
    closing::stop_receiving(conn, half);
    if half.mode.load(Ordering::Relaxed) != mode::PLAIN {
        return violated(conn, fd, half);
    }
    state::note(conn.block, Reason::UrgentData);
    Step::Again
}

/// Where in the ring the next byte lay that the sender owes, when `seen` bytes have come by TCP: what has since the
/// lane began was owed, too, and lay before it.
fn owed_at(half: RxHeld<'_>, seen: u64) -> u64 {
    let paid = seen.saturating_sub(half.own().start.load(Ordering::Relaxed));
    half.cursor.load(Ordering::Relaxed).wrapping_add(paid)
}

/// TCP is over before the lane has begun, or before the bytes that it should begin behind: those were read
/// round the hooks. Nothing more can come.
fn forget(conn: Conn, fd: i32, half: RxHeld<'_>, seen: u64) -> Step {
    let opener = state::opener(conn.block);
    if let Some(dmb) = state::rx_dmb(&half)
        && let Some(start) = dmb.words().start(half.generation.load(Ordering::Relaxed))
        && seen < start
        && sys::counts(fd, opener).is_ok_and(|counts| counts.received == start)
    {
        state::note(conn.block, Reason::BypassedHooks);
        half.tcp_bytes.store(start, Ordering::Relaxed);
        return Step::Again;
    }
    finish(conn, half);
    Step::Again
}

/// Reading was shut down round the hooks, before the lane has begun.
fn end_reading(conn: Conn, fd: i32, half: RxHeld<'_>, dmb: &Dmb) -> Step {
    closing::stop_receiving(conn, half);
    let has_begun = dmb.words().start(half.generation.load(Ordering::Relaxed)).is_some();
    if half.mode.load(Ordering::Relaxed) == mode::PLAIN {
        Step::Again
    } else if has_begun {
        // Behind bytes that TCP has yet to bring.
        Step::Data(0)
    } else {
        violated(conn, fd, half)
    }
}

/// The sender ended between taking back and resending: what never came by TCP is still in the ring.
fn inherit(conn: Conn, half: RxHeld<'_>, dmb: &Dmb, bufs: &Bufs<'_>, flags: i32, fd: i32) -> Step {
    let is_unpaid = dmb.words().cons().has(Cursor::UNPAID);
    // Another program may have read some of it. A stream's end counts as a byte (tcp_fin, net/ipv4/tcp_input.c), a reset does not.
    let read = sys::counts(fd, state::opener(conn.block))
        .map_or(0, |counts| counts.received.saturating_sub(u64::from(!is_unpaid)));
    let seen = half.tcp_bytes.load(Ordering::Relaxed).max(read);
    let end = half.debt_end.load(Ordering::Relaxed);
    let cursor = half.cursor.load(Ordering::Relaxed);
    let Some(sent) = dmb.as_sent_behind(cursor) else { return violated(conn, fd, half) };
    let owed = end.saturating_sub(seen).min(sent.most(cursor));
    let from = owed_at(half, seen);
    if owed == 0 {
        return paid(conn, half, dmb, fd);
    }
    let n = bufs.left().min(owed as usize);
    if let Err(errno) = peek::deliver(half, &sent, bufs, from, n, flags) {
        return Step::Failed(errno);
    }
    if flags & libc::MSG_PEEK == 0 {
        half.tcp_bytes.store(seen + n as u64, Ordering::Relaxed);
        // These came by no TCP byte: the kernel's count will not have them. It does not matter any more.
    }
    Step::Data(n)
}

/// Of a connection that others have, too: whether they have read of what was owed, as the kernel counts.
fn was_read_by_others(conn: Conn, fd: i32, half: RxHeld<'_>) -> bool {
    let seen = half.tcp_bytes.load(Ordering::Relaxed);
    let read = || sys::counts(fd, state::opener(conn.block)).ok().filter(|counts| counts.established);
    let more = conn.block.life.phase().is_left().then(read).flatten().filter(|counts| counts.received > seen);
    if let Some(counts) = more {
        half.tcp_bytes.store(counts.received, Ordering::Relaxed);
    }
    more.is_some()
}

/// All that was owed is delivered.
fn paid(conn: Conn, half: RxHeld<'_>, dmb: &Dmb, fd: i32) -> Step {
    if dmb.words().cons().has(Cursor::UNPAID) && !sys::peer_may_send(fd) {
        // Nothing is missing: the reset is the stream's end.
        let _ = sys::option::<i32>(fd, libc::SOL_SOCKET, libc::SO_ERROR);
    }
    finish(conn, half);
    Step::Again
}

#[cfg(test)]
mod tests;
