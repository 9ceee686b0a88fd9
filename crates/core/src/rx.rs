//! Receiving: kernel TCP, then bounded by the start word, then the ring, and back (models/lane.pml, Rd).

mod ask_back;
mod bounded;
pub mod fast;
mod news;
mod ring;

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_shm::arena::{Block, RxGuard, RxHeld, mode};
use shunpike_shm::lane::{Cursor, Side};
use shunpike_shm::lock::Section;
use shunpike_wire::Reason;

pub use news::{changes, has_news, is_ended, tcp_news};

use bounded::Tcp;
use news::Wait;

use crate::bufs::Bufs;
use crate::call::Outcome;
use crate::table::Conn;
use crate::tls::{Critical, critical};
use crate::{above, call, closing, hope, passthrough, process, reset, seen, session, sets, state, sys};

const NEWS: i16 = libc::POLLIN | libc::POLLRDHUP | libc::POLLPRI;

/// What one look at the connection gave.
enum Step {
    /// So many bytes.
    Data(usize),
    /// The mode changed: look again.
    Again,
    /// Plain TCP: libc's business.
    Plain,
    /// Nothing there now.
    Empty,
    /// The connection is broken.
    Failed(Errno),
}

/// recv and its kin. `real` is libc's call for the very same arguments, for a connection on plain TCP.
pub fn receive(
    conn: Conn,
    fd: i32,
    iov: &[libc::iovec],
    flags: i32,
    real: impl FnOnce() -> isize,
) -> Outcome {
    let outcome = attempt(conn, fd, iov, flags, real);
    above::settle(conn, fd);
    outcome
}

fn attempt(
    mut conn: Conn,
    fd: i32,
    iov: &[libc::iovec],
    flags: i32,
    real: impl FnOnce() -> isize,
) -> Outcome {
    session::pump_if_news();
    if flags & (libc::MSG_OOB | libc::MSG_ERRQUEUE) != 0 {
        return Outcome::Libc(real());
    }
    if process::eager() {
        match hope::await_lane(conn, fd, Some(flags)) {
            Ok(same) => conn = same,
            Err(errno) => return Outcome::Ours(Err(errno)),
        }
    }
    let mut bufs = Bufs::new(iov);
    let peeks = flags & libc::MSG_PEEK != 0;
    let whole = flags & libc::MSG_WAITALL != 0 && !peeks;
    // A look is begun anew until it shows all that is asked for.
    let looks_on = flags & libc::MSG_WAITALL != 0 && peeks;
    let mut wait = Wait::new(flags);
    let mut is_begun = false;
    loop {
        if conn.block.rx.mode.load(Ordering::Relaxed) == mode::PLAIN {
            let beside = conn.block.tx.mode.load(Ordering::Relaxed) != mode::PLAIN;
            let may_wait = whole || bufs.done() == 0;
            if beside
                && may_wait
                && let Err(errno) = wait.for_tcp(conn, fd).and_then(|()| call::still_at(conn, fd))
            {
                return ended(&bufs, errno);
            }
            if conn.block.asks.load(Ordering::Relaxed) != 0 {
                seen::ask(conn.block, fd, flags);
            }
            if conn.block.rx.enter() {
                // Who closes it takes its number away first.
                if is_begun && let Err(errno) = call::still_at(conn, fd) {
                    conn.block.rx.leave();
                    return ended(&bufs, errno);
                }
                is_begun = true;
                if looks_on && beside {
                    let is_over = sys::tcp_shows(fd, libc::POLLRDHUP) != 0;
                    let once = flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
                    match inside(conn, fd, || kernel(fd, &bufs, once), |_| 0) {
                        Ok(n @ 1..) if n < bufs.left() && !is_over && wait.for_more(conn, fd).is_ok() => {}
                        Err(Errno::AGAIN) if wait.may_wait(conn.block) => {}
                        result => return Outcome::Ours(result),
                    }
                    continue;
                }
                if !(whole && beside) {
                    let flags = if may_wait { flags } else { flags | libc::MSG_DONTWAIT };
                    return by_tcp(conn, fd, &bufs, flags, real);
                }
                // The kernel's MSG_WAITALL would not hear, either: piece by piece.
                let piecewise = flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
                if bufs.done() > 0 && gives_no_byte(fd, true) {
                    inside(conn, fd, || (), |()| 0);
                    return Outcome::Ours(Ok(bufs.done()));
                }
                match inside(conn, fd, || kernel(fd, &bufs, piecewise), |got| got.unwrap_or(0)) {
                    Ok(n) if n > 0 && n < bufs.left() => {
                        bufs.advance(n);
                        wait.moved(conn.block);
                    }
                    Ok(n) => return Outcome::Ours(Ok(bufs.done() + n)),
                    Err(Errno::AGAIN) if wait.may_wait(conn.block) => {}
                    Err(errno) => return ended(&bufs, errno),
                }
                continue;
            }
        }
        is_begun = true;
        let is_over = looks_on && sys::tcp_shows(fd, libc::POLLRDHUP) != 0;
        match step(conn, fd, &bufs, flags) {
            Step::Data(n @ 1..) if looks_on && n < bufs.left() && !is_over => {
                if wait.for_more(conn, fd).and_then(|()| call::still_at(conn, fd)).is_err() {
                    return Outcome::Ours(Ok(n));
                }
            }
            Step::Data(n) => {
                bufs.advance(n);
                wait.napped = false;
                if bufs.left() == 0 || n == 0 || !whole && !goes_on(conn, flags) {
                    return Outcome::Ours(Ok(bufs.done()));
                }
                wait.moved(conn.block);
            }
            Step::Empty if bufs.done() > 0 && !whole => return Outcome::Ours(Ok(bufs.done())),
            Step::Again | Step::Plain => {}
            Step::Failed(errno) => return ended(&bufs, errno),
            Step::Empty => {
                if let Err(errno) = wait.more(conn, fd).and_then(|()| call::still_at(conn, fd)) {
                    return ended(&bufs, errno);
                }
                if let [one] = iov {
                    // SAFETY: the program's buffer.
                    let n = unsafe { fast::receive(conn, fd, one.iov_base.cast(), one.iov_len, flags) };
                    if let Some(n) = n {
                        return Outcome::Ours(Ok(n));
                    }
                }
            }
        }
    }
}

/// Whether the next read of TCP gives no byte: none is there, and where it waits, none will be.
fn gives_no_byte(fd: i32, waits: bool) -> bool {
    sys::unread(fd).is_ok_and(|n| n == 0) && (!waits || sys::tcp_shows(fd, 0) != 0)
}

/// Bytes already delivered come before an error, which the next call meets again.
fn ended(bufs: &Bufs<'_>, errno: Errno) -> Outcome {
    Outcome::Ours(if bufs.done() > 0 { Ok(bufs.done()) } else { Err(errno) })
}

/// On plain TCP, inside (see `enter`): counts what libc's call brings.
fn by_tcp(conn: Conn, fd: i32, bufs: &Bufs<'_>, flags: i32, real: impl FnOnce() -> isize) -> Outcome {
    let peeks = flags & libc::MSG_PEEK != 0;
    if bufs.done() > 0 {
        // A lane ended in the middle of the call. An error is the next call's: the kernel would tell of it here, and never again.
        if gives_no_byte(fd, flags & libc::MSG_DONTWAIT == 0) {
            inside(conn, fd, || (), |()| 0);
            return Outcome::Ours(Ok(bufs.done()));
        }
        let got = inside(conn, fd, || rest(fd, bufs, flags), |&got| if peeks { 0 } else { got });
        return Outcome::Ours(Ok(bufs.done() + got));
    }
    Outcome::Libc(inside(conn, fd, real, |&n| if peeks { 0 } else { usize::try_from(n).unwrap_or(0) }))
}

/// A call of ours into the kernel for what is left, as much of it as one takes.
fn kernel(fd: i32, bufs: &Bufs<'_>, flags: i32) -> Result<usize, Errno> {
    let mut iov = Bufs::kernel_iov();
    let used = bufs.for_kernel(&mut iov, usize::MAX);
    sys::recv(fd, &mut iov[..used], flags)
}

/// Calls of ours into the kernel for all that is left. An error is the next call's, where it can be.
fn rest(fd: i32, bufs: &Bufs<'_>, flags: i32) -> usize {
    let mut left = *bufs;
    while left.left() > 0 {
        let one_call = left.one_call();
        match kernel(fd, &left, flags) {
            Ok(n) => {
                left.advance(n);
                if n < one_call
                    || flags & libc::MSG_PEEK != 0
                    || gives_no_byte(fd, flags & libc::MSG_DONTWAIT == 0)
                {
                    break;
                }
            }
            Err(_) => break,
        }
    }
    left.done() - bufs.done()
}

/// Makes `call`, counts what it brought, and leaves what `enter` entered.
fn inside<T>(conn: Conn, fd: i32, call: impl FnOnce() -> T, brought: impl FnOnce(&T) -> usize) -> T {
    let result = call();
    passthrough::counted(conn, &conn.block.rx, fd, brought(&result), 0);
    result
}

/// The receive lock: what a holder that died had not written down is derived anew.
#[inline(always)]
pub fn lock<S: Section>(conn: &Conn, fd: i32, section: S) -> RxGuard<'_, S> {
    let guard = conn.block.rx.lock(section);
    repair(*conn, fd, &guard);
    guard
}

/// The second step of [`lock`], for who takes it where a guard that is returned would cost too much.
#[inline(always)]
fn repair(conn: Conn, fd: i32, guard: &RxGuard<'_, impl Section>) {
    if guard.inherited() && conn.current() {
        recover(conn.block, guard.held(), fd);
        guard.repaired();
    }
}

/// One attempt, under the receive lock.
fn step(conn: Conn, fd: i32, bufs: &Bufs<'_>, flags: i32) -> Step {
    let critical = critical();
    let guard = lock(&conn, fd, &critical);
    let half = guard.held();
    if !conn.current() {
        return Step::Failed(Errno::BADF);
    }
    let step = match half.mode.load(Ordering::Relaxed) {
        mode::LANE => ring::read(conn, fd, half, bufs, flags),
        mode::GRANTED | mode::DEBT => bounded::read(conn, fd, half, bufs, flags),
        _ => return Step::Plain,
    };
    let by_ring = half.mode.load(Ordering::Relaxed) == mode::LANE;
    let lends = half.own().loans.load(Ordering::Relaxed) != 0;
    drop(guard);
    if let Step::Data(n) = step
        && let Some(dmb) = state::rx_dmb(&conn.block.rx).filter(|_| by_ring)
        && bufs.left() > 0
    {
        let peeks = flags & libc::MSG_PEEK != 0;
        if !peeks && !lends {
            ring::wake_writers(conn.block, &dmb);
        }
        if peeks || n == bufs.left() {
            sets::shown(conn, dmb.words(), Side::Readers);
        }
    }
    step
}

/// Whether a read that has got all of one part of the stream goes on with the next, which may be there already. A short read says that
/// nothing more was there: programs wait for an edge after it.
fn goes_on(conn: Conn, flags: i32) -> bool {
    let _critical = critical();
    let half = &conn.block.rx;
    let mode = half.mode.load(Ordering::Relaxed);
    if flags & libc::MSG_PEEK != 0 {
        return false;
    }
    if mode == mode::PLAIN {
        // The lane has ended in this very call, as one does that nothing was sent on: TCP goes on.
        return true;
    }
    let Some(dmb) = state::rx_dmb(half) else { return false };
    match mode {
        mode::LANE => {
            let prod = dmb.words().prod();
            prod.has(Cursor::END | Cursor::STOP) && prod.offset() == half.cursor.load(Ordering::Relaxed)
        }
        // What is owed, and what TCP has behind it.
        mode::DEBT => true,
        _ => false,
    }
}

/// FIONREAD: bytes that a read would find without waiting.
pub fn available(conn: Conn, fd: i32) -> usize {
    let guard = lock(&conn, fd, critical());
    let half = guard.held();
    // TCP first: what it has is before a lane that begins after this look, or behind one that is over in the next.
    let queued = sys::unread(fd).unwrap_or(0);
    let seen = half.tcp_bytes.load(Ordering::Relaxed);
    let Some(dmb) = state::rx_dmb(&half) else { return queued };
    let words = dmb.words();
    let before = match half.mode.load(Ordering::Relaxed) {
        mode::LANE => 0,
        mode::GRANTED => words
            .start(half.generation.load(Ordering::Relaxed))
            .map_or(u64::MAX, |start| start.wrapping_sub(seen)),
        mode::DEBT if queued == 0 && Tcp::look(fd) == Ok(Tcp::Over) => {
            // What `inherit` delivers.
            return half.debt_end.load(Ordering::Relaxed).saturating_sub(seen) as usize;
        }
        _ => return queued,
    };
    if (queued as u64) < before {
        return queued;
    }
    let behind = queued - before as usize;
    let Some((_, prod, unread)) = ring::unread(half, &dmb) else { return before as usize };
    if words.cons().has(Cursor::TAKEN) {
        if queued as u64 <= before && prod.offset() != half.cursor.load(Ordering::Relaxed) {
            bounded::await_payment(fd);
        }
        return sys::unread(fd).unwrap_or(queued);
    }
    let is_over = prod.has(Cursor::END | Cursor::STOP) && !prod.has(Cursor::LEAVE);
    before as usize + unread as usize + if is_over { behind } else { 0 }
}

/// The lane is drained or paid: plain TCP again.
fn finish(conn: Conn, half: RxHeld<'_>) {
    half.mode.store(half, mode::PLAIN, Ordering::Release);
    closing::rx_closed(conn, half);
}

/// The peer wrote what it must not: this connection ends with ECONNRESET, nothing else is touched.
fn violated(conn: Conn, fd: i32, half: RxHeld<'_>) -> Step {
    reset::reset(conn, fd, half, Reason::PeerViolation);
    Step::Failed(Errno::CONNRESET)
}

/// The lock's holder died: what it had not written down is derived from the shared words.
#[cold]
#[inline(never)]
fn recover(block: &Block, half: RxHeld<'_>, fd: i32) {
    match half.mode.load(Ordering::Relaxed) {
        mode::LANE => {
            if let Some(dmb) = state::rx_dmb(&half) {
                let cons = dmb.words().cons();
                if cons.generation() == half.generation.load(Ordering::Relaxed) {
                    half.cursor.store(half, cons.offset(), Ordering::Relaxed);
                }
            }
        }
        _ => {
            if let Ok(counts) = sys::counts(fd, state::opener(block)) {
                half.tcp_bytes.store(counts.received, Ordering::Relaxed);
            }
        }
    }
}

/// Whether a read would find bytes now; ends a lane that is over, so that TCP can answer.
pub fn readable(conn: Conn, fd: i32) -> bool {
    fast::shows(conn, fd, critical()).unwrap_or_else(|| would_read(conn, fd))
}

/// Whether a read would find bytes now, for who is in a critical section.
#[inline]
pub fn readable_within(critical: &Critical, conn: Conn, fd: i32) -> bool {
    fast::shows(conn, fd, critical).unwrap_or_else(|| would_read(conn, fd))
}

#[inline(never)]
fn would_read(conn: Conn, fd: i32) -> bool {
    let nothing = Bufs::new(&[]);
    for _ in 0..4 {
        match step(conn, fd, &nothing, libc::MSG_PEEK) {
            Step::Data(_) | Step::Failed(_) => return true,
            Step::Again => {}
            Step::Plain | Step::Empty => return false,
        }
    }
    true
}
