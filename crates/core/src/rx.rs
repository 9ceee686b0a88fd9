//! Receiving: kernel TCP, then bounded by the start word, then the ring, and back (models/lane.pml, Rd).

mod asking;
pub mod fast;
mod news;

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_shm::arena::{Block, Half, mode};
use shunpike_shm::lane::{Cursor, Dmb, Side};
use shunpike_shm::lock::{Guard, Section};
use shunpike_wire::Reason;

pub use news::{changes, has_news, is_ended, tcp_news};

use news::Wait;

use crate::bufs::Bufs;
use crate::call::Outcome;
use crate::copy_rate::{self, Way};
use crate::table::Conn;
use crate::tls::critical;
use crate::wait;
use crate::zerocopy::borrowing::{self, Failure};
use crate::{
    above, call, clock, closing, cork, hope, passthrough, peek, prefetch, process, reset, seen, session,
    sets, state, sys, window,
};

/// A sender that took its bytes back sends them at once: one that has sent none for so long is none of ours, or was stopped
/// in between, microseconds.
const DEBT_US: u64 = 10_000_000;
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
    let whole = flags & libc::MSG_WAITALL != 0 && flags & libc::MSG_PEEK == 0;
    let mut wait = Wait::new(flags);
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
                if !(whole && beside) {
                    let flags = if may_wait { flags } else { flags | libc::MSG_DONTWAIT };
                    return plain(conn, fd, &bufs, flags, real);
                }
                // The kernel's MSG_WAITALL would not hear, either: piece by piece.
                let piecewise = flags & !libc::MSG_WAITALL | libc::MSG_DONTWAIT;
                match inside(conn, fd, || kernel(fd, &bufs, piecewise), |got| got.unwrap_or(0)) {
                    Ok(n) if n > 0 && n < bufs.left() => bufs.advance(n),
                    Ok(n) => return Outcome::Ours(Ok(bufs.done() + n)),
                    Err(Errno::AGAIN) if wait.may_wait(conn.block) => {}
                    Err(errno) => return ended(&bufs, errno),
                }
                continue;
            }
        }
        match step(conn, fd, &bufs, flags) {
            Step::Data(n) => {
                bufs.advance(n);
                wait.napped = false;
                if bufs.left() == 0 || n == 0 || !whole && !goes_on(conn, flags) {
                    return Outcome::Ours(Ok(bufs.done()));
                }
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

/// Bytes already delivered come before an error, which the next call meets again.
fn ended(bufs: &Bufs<'_>, errno: Errno) -> Outcome {
    Outcome::Ours(if bufs.done() > 0 { Ok(bufs.done()) } else { Err(errno) })
}

/// On plain TCP, inside (see `enter`): counts what libc's call brings.
fn plain(conn: Conn, fd: i32, bufs: &Bufs<'_>, flags: i32, real: impl FnOnce() -> isize) -> Outcome {
    let peeks = flags & libc::MSG_PEEK != 0;
    if bufs.done() > 0 {
        // A lane ended in the middle of the call. An error is the next call's.
        let got = inside(conn, fd, || kernel(fd, bufs, flags), |got| got.unwrap_or(0));
        return Outcome::Ours(Ok(bufs.done() + got.unwrap_or(0)));
    }
    Outcome::Libc(inside(conn, fd, real, |&n| if peeks { 0 } else { usize::try_from(n).unwrap_or(0) }))
}

/// A call of ours into the kernel for what is left.
fn kernel(fd: i32, bufs: &Bufs<'_>, flags: i32) -> Result<usize, Errno> {
    let mut iov = Bufs::kernel_iov();
    let used = bufs.for_kernel(&mut iov, usize::MAX);
    sys::recv(fd, &mut iov[..used], flags)
}

/// Makes `call`, counts what it brought, and leaves what `enter` entered.
fn inside<T>(conn: Conn, fd: i32, call: impl FnOnce() -> T, brought: impl FnOnce(&T) -> usize) -> T {
    let result = call();
    passthrough::counted(conn, &conn.block.rx, fd, brought(&result), 0);
    result
}

/// The receive lock: what a holder that died had not written down is derived anew.
#[inline(always)]
pub fn lock<S: Section>(conn: &Conn, fd: i32, section: S) -> Guard<'_, S> {
    let guard = conn.block.rx.lock.lock(section);
    if guard.inherited() && conn.current() {
        recover(conn.block, fd);
        guard.repaired();
    }
    guard
}

/// One attempt, under the receive lock.
fn step(conn: Conn, fd: i32, bufs: &Bufs<'_>, flags: i32) -> Step {
    let critical = critical();
    let half = &conn.block.rx;
    let guard = lock(&conn, fd, &critical);
    if !conn.current() {
        return Step::Failed(Errno::BADF);
    }
    let step = match half.mode.load(Ordering::Relaxed) {
        mode::LANE => ring(conn, fd, bufs, flags),
        mode::GRANTED | mode::DEBT => bounded(conn, fd, bufs, flags),
        _ => return Step::Plain,
    };
    let by_ring = half.mode.load(Ordering::Relaxed) == mode::LANE;
    drop(guard);
    if let Step::Data(n) = step
        && let Some(dmb) = state::rx_dmb(half).filter(|_| by_ring)
        && bufs.left() > 0
    {
        let peeks = flags & libc::MSG_PEEK != 0;
        if !peeks && half.loans.load(Ordering::Relaxed) == 0 {
            wake_writers(conn.block, &dmb);
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
        mode::DEBT => half.tcp_bytes.load(Ordering::Relaxed) >= half.debt_end.load(Ordering::Relaxed),
        _ => false,
    }
}

/// Rings writers once a good part of the ring is free, so that they do not wake for a few bytes.
#[inline(always)]
pub fn wake_writers(block: &Block, dmb: &Dmb) {
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

/// The same for a sender that may wait for notices, which it does with room in the ring: for their sake it is rung seldom. Under
/// the receive lock; the bytes from `before` on were consumed just now, with `prod` published.
#[cold]
fn wake_lender(block: &Block, dmb: &Dmb, before: u64, prod: Cursor) {
    let (cursor, prod) = (block.rx.cursor.load(Ordering::Relaxed), prod.offset());
    let has_room = |cursor| {
        dmb.as_sent_behind(cursor)
            .is_none_or(|dmb| dmb.most(cursor).saturating_sub(prod - cursor) >= window::writable_at(&dmb))
    };
    // Who waits for room waits for this moment: it has found none before, and looks again once it is declared.
    let has_room_now = has_room(cursor) && !has_room(before);
    if has_room_now || borrowing::tells(&block.rx, before, cursor, prod) {
        wait::notify(block, dmb.words(), Side::Writers);
    }
}

/// From the ring.
fn ring(conn: Conn, fd: i32, bufs: &Bufs<'_>, flags: i32) -> Step {
    let half = &conn.block.rx;
    let Some(dmb) = state::rx_dmb(half) else { return Step::Plain };
    let words = dmb.words();
    let offset = half.cursor.load(Ordering::Relaxed);
    let at = Cursor::new(half.generation.load(Ordering::Relaxed), offset);
    let Some((dmb, prod, unread)) = unread(half, &dmb) else { return violated(conn, fd) };
    if unread == 0 {
        if prod.has(Cursor::LEAVE) {
            return asking::step(conn, &dmb, prod, at, fd);
        }
        if prod.has(Cursor::END | Cursor::STOP) {
            finish(conn, fd);
            return Step::Again;
        }
        return if words.cons().has(Cursor::TAKEN) { taken(conn, &dmb, prod, at, fd) } else { Step::Empty };
    }
    let mut n = bufs.left().min(unread as usize);
    if n == 0 {
        prefetch::of_later(&dmb, offset, unread);
    }
    let known = half.loans.load(Ordering::Relaxed);
    let lent = words.lent().0 != known;
    // What is only looked at, or thrown away, is not copied once.
    let is_copied = flags & (libc::MSG_PEEK | libc::MSG_TRUNC) == 0;
    let deliver = || peek::deliver(half, &dmb, bufs, offset, n, flags).map(|()| n).map_err(Failure::Errno);
    let delivered = if lent {
        lent_bytes(conn, &dmb, bufs, (offset, prod.offset()), n, flags)
    } else if is_copied && copy_rate::is_sample(offset, n) {
        timed(half, &dmb, deliver)
    } else {
        deliver()
    };
    match delivered {
        Ok(delivered) => n = delivered,
        Err(Failure::Errno(errno)) => return Step::Failed(errno),
        Err(Failure::Violated) => return violated(conn, fd),
        Err(Failure::Unreadable) => return asking::begin(conn, &dmb, prod, fd),
    }
    if flags & libc::MSG_PEEK != 0 {
        // Looked at again: what the sender took back meanwhile is not to be seen here.
        if words.cons() != at {
            return taken(conn, &dmb, prod, at, fd);
        }
        let is_last = prod.has(Cursor::END | Cursor::STOP) && n as u64 == unread;
        return Step::Data(n + if is_last { peek_behind(fd, bufs, (0, n), flags) } else { 0 });
    }
    match words.consume(at, n as u64) {
        Ok(next) => {
            half.cursor.store(next.offset(), Ordering::Relaxed);
            Block::count(half, n);
            if dmb.is_at_its_end() {
                window::widen(conn.block, &dmb);
            }
            if lent {
                borrowing::consumed(half, &dmb, next.offset());
            }
            if lent || known != 0 {
                wake_lender(conn.block, &dmb, offset, prod);
            }
            Step::Data(n)
        }
        Err(_) => taken(conn, &dmb, prod, at, fd),
    }
}

/// From the ring, and what that takes is told to the sender.
#[cold]
fn timed(half: &Half, dmb: &Dmb, deliver: impl FnOnce() -> Result<usize, Failure>) -> Result<usize, Failure> {
    let delivered = copy_rate::timed(half, Way::Ring, deliver);
    copy_rate::tell(half, dmb.words());
    delivered
}

/// From the ring and from the sender's memory, as it has lent some.
#[cold]
fn lent_bytes(
    conn: Conn,
    dmb: &Dmb,
    bufs: &Bufs<'_>,
    at: (u64, u64),
    n: usize,
    flags: i32,
) -> Result<usize, Failure> {
    if conn.block.rx.loans.load(Ordering::Relaxed) == 0 {
        borrowing::probe(conn, dmb);
    }
    let delivered = borrowing::deliver(conn, dmb, bufs, at, n, flags);
    copy_rate::tell(&conn.block.rx, dmb.words());
    delivered
}

/// The DMB as the sender uses it, the producer's word, and how much is unread and may be seen; all checked. `None`: no sender that
/// keeps to the rules wrote it. Under the lock.
///
/// What was once there to be read stays there until it is: a program that poll() told of it may rely on a read
/// that does not wait. But for what the sender was asked to take back.
pub fn unread(half: &Half, dmb: &Dmb) -> Option<(Dmb, Cursor, u64)> {
    unread_as(half, dmb, Dmb::as_sent_behind)
}

/// The same; `None` also while the sender moves from the first ring to the one behind the header.
#[inline(always)]
fn unread_still(half: &Half, dmb: &Dmb) -> Option<(Dmb, Cursor, u64)> {
    unread_as(half, dmb, |dmb, _| dmb.as_sent())
}

#[inline(always)]
fn unread_as(
    half: &Half,
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
    let shown = cork::shown(half, dmb.words(), prod);
    half.other.store(shown, Ordering::Relaxed);
    Some((dmb, prod, shown.saturating_sub(half.cursor.load(Ordering::Relaxed))))
}

/// The sender took back what is unread: it comes by TCP.
fn taken(conn: Conn, dmb: &Dmb, prod: Cursor, at: Cursor, fd: i32) -> Step {
    let half = &conn.block.rx;
    if dmb.words().cons() != at.with(Cursor::TAKEN) {
        return violated(conn, fd);
    }
    // END stands since before TAKEN, so prod is final.
    let last = dmb.words().prod();
    let owed = last.offset().wrapping_sub(at.offset());
    // Asked again: it may have grown until then.
    let fits = dmb.as_sent_behind(at.offset()).is_some_and(|dmb| owed <= dmb.most(at.offset()));
    if last.generation() != prod.generation() || !fits {
        return violated(conn, fd);
    }
    half.debt_end.store(half.start.load(Ordering::Relaxed) + owed, Ordering::Relaxed);
    half.full_since.store(clock::ticks(), Ordering::Relaxed);
    seen::void(conn.block);
    half.mode.store(mode::DEBT, Ordering::Release);
    Step::Again
}

/// From TCP, no further than the start word allows (GRANTED), or paying the sender's debt (DEBT).
fn bounded(conn: Conn, fd: i32, bufs: &Bufs<'_>, flags: i32) -> Step {
    let half = &conn.block.rx;
    let Some(dmb) = state::rx_dmb(half) else { return Step::Plain };
    let debt = half.mode.load(Ordering::Relaxed) == mode::DEBT;
    let seen = half.tcp_bytes.load(Ordering::Relaxed);
    if debt && seen >= half.debt_end.load(Ordering::Relaxed) {
        finish(conn, fd);
        return Step::Again;
    }
    // First what TCP has, only then the start word: bytes counted now were written before it.
    let (queued, is_over) = match Tcp::look(fd) {
        Ok(Tcp::Bytes(queued)) => (queued, false),
        Ok(Tcp::Nothing) => (0, false),
        Ok(Tcp::Over) => (0, true),
        Ok(Tcp::Urgent) => return urgent(conn, fd),
        // By a filter that came round the hooks.
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
                half.start.store(start, Ordering::Relaxed);
                half.mode.store(mode::LANE, Ordering::Release);
                return Step::Again;
            }
            Some(start) if start < seen => return violated(conn, fd),
            Some(start) => start - seen,
        }
    };
    if queued == 0 {
        if !is_over {
            // poll() may have told of these bytes: the program waits for nothing else meanwhile.
            let since = clock::ticks().wrapping_sub(half.full_since.load(Ordering::Relaxed));
            return if debt && since > clock::from_us(DEBT_US) { violated(conn, fd) } else { Step::Empty };
        }
        return match (debt, sys::peer_may_send(fd)) {
            // Our own SHUT_RD. What is owed comes yet,
            (true, true) => Step::Empty,
            // and a sender that begins at this moment is read.
            (false, true) => end_reading(conn, fd, &dmb),
            (true, false) => inherit(conn, &dmb, bufs, flags, fd),
            (false, false) => forget(conn, fd, seen),
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
            }
            if !debt && n as u64 == limit && bufs.left() > n {
                return Step::Data(n + cross(conn, fd, &dmb, bufs, n, flags));
            }
            if debt {
                half.full_since.store(clock::ticks(), Ordering::Relaxed);
                return peek::repeat(half, &dmb, bufs, owed_at(half, seen), n)
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
fn cross(conn: Conn, fd: i32, dmb: &Dmb, bufs: &Bufs<'_>, n: usize, flags: i32) -> usize {
    let half = &conn.block.rx;
    if flags & libc::MSG_PEEK != 0 {
        return peek_ring(conn, fd, dmb, bufs, n, flags);
    }
    let mut rest = *bufs;
    rest.advance(n);
    half.start.store(half.tcp_bytes.load(Ordering::Relaxed), Ordering::Relaxed);
    half.mode.store(mode::LANE, Ordering::Release);
    // Anything else is the next call's to find.
    if let Step::Data(n) = ring(conn, fd, &rest, flags) { n } else { 0 }
}

/// MSG_PEEK at the ring while the `before` bytes in front of it are on TCP. What cannot be shown now is not.
fn peek_ring(conn: Conn, fd: i32, dmb: &Dmb, bufs: &Bufs<'_>, before: usize, flags: i32) -> usize {
    let half = &conn.block.rx;
    let mut rest = *bufs;
    rest.advance(before);
    let offset = half.cursor.load(Ordering::Relaxed);
    let at = Cursor::new(half.generation.load(Ordering::Relaxed), offset);
    let Some((dmb, prod, unread)) = unread(half, dmb) else { return 0 };
    let is_over = prod.has(Cursor::END | Cursor::STOP) && !prod.has(Cursor::LEAVE);
    if unread == 0 {
        // One that nothing was sent on, and that has ended.
        let is_whole = is_over && dmb.words().cons() == at;
        return if is_whole { peek_behind(fd, bufs, (before, 0), flags) } else { 0 };
    }
    let n = rest.left().min(unread as usize);
    let peeked = if dmb.words().lent().0 != half.loans.load(Ordering::Relaxed) {
        lent_bytes(conn, &dmb, &rest, (offset, prod.offset()), n, flags).ok()
    } else {
        peek::deliver(half, &dmb, &rest, offset, n, flags).ok().map(|()| n)
    };
    let Some(n) = peeked.filter(|_| dmb.words().cons() == at) else { return 0 };
    n + if is_over && n as u64 == unread { peek_behind(fd, bufs, (before, n), flags) } else { 0 }
}

/// MSG_PEEK at TCP behind the last byte of a lane that is over: `bufs` have `before` bytes that TCP has, too, in front of the lane's `n`.
fn peek_behind(fd: i32, bufs: &Bufs<'_>, (before, n): (usize, usize), flags: i32) -> usize {
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

/// FIONREAD: bytes that a read would find without waiting.
pub fn available(conn: Conn, fd: i32) -> usize {
    let half = &conn.block.rx;
    let _guard = lock(&conn, fd, critical());
    // TCP first: what it has is before a lane that begins after this look, or behind one that is over in the next.
    let queued = sys::queue(fd, sys::SIOCINQ).unwrap_or(0);
    let seen = half.tcp_bytes.load(Ordering::Relaxed);
    let Some(dmb) = state::rx_dmb(half) else { return queued };
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
    let Some((_, prod, unread)) = unread(half, &dmb) else { return before as usize };
    if words.cons().has(Cursor::TAKEN) {
        return queued;
    }
    let is_over = prod.has(Cursor::END | Cursor::STOP) && !prod.has(Cursor::LEAVE);
    before as usize + unread as usize + if is_over { behind } else { 0 }
}

/// What TCP has for a reader.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Tcp {
    /// So many bytes.
    Bytes(u64),
    Nothing,
    /// Its end, or an error.
    Over,
    /// Urgent data is next, or bytes wait behind its mark (SIOCINQ counts up to it). A sleep would end at once: it hears of that, too.
    Urgent,
}

impl Tcp {
    fn look(fd: i32) -> Result<Self, Errno> {
        let mut is_over = false;
        // The kernel's poll takes no lock: of a FIN that comes in just then it may show the byte (POLLIN), and not yet that it is the end
        // (tcp_data_queue, tcp_poll). SIOCINQ takes the lock, so the poll after it is behind that.
        for _ in 0..3 {
            match sys::queue(fd, sys::SIOCINQ)? {
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
fn urgent(conn: Conn, fd: i32) -> Step {
    closing::stop_receiving(conn, fd);
    if conn.block.rx.mode.load(Ordering::Relaxed) != mode::PLAIN {
        return violated(conn, fd);
    }
    state::note(conn.block, Reason::UrgentData);
    Step::Again
}

/// Where in the ring the next byte lay that the sender owes, when `seen` bytes have come by TCP: what has since the
/// lane began was owed, too, and lay before it.
fn owed_at(half: &Half, seen: u64) -> u64 {
    let paid = seen.saturating_sub(half.start.load(Ordering::Relaxed));
    half.cursor.load(Ordering::Relaxed).wrapping_add(paid)
}

/// TCP is over before the lane has begun, or before the bytes that it should begin behind: those were read
/// round the hooks. Nothing more can come.
fn forget(conn: Conn, fd: i32, seen: u64) -> Step {
    let half = &conn.block.rx;
    let opener = state::opener(conn.block);
    if let Some(dmb) = state::rx_dmb(half)
        && let Some(start) = dmb.words().start(half.generation.load(Ordering::Relaxed))
        && seen < start
        && sys::counts(fd, opener).is_ok_and(|counts| counts.received == start)
    {
        state::note(conn.block, Reason::BypassedHooks);
        half.tcp_bytes.store(start, Ordering::Relaxed);
        return Step::Again;
    }
    finish(conn, fd);
    Step::Again
}

/// Reading was shut down round the hooks, before the lane has begun.
fn end_reading(conn: Conn, fd: i32, dmb: &Dmb) -> Step {
    let half = &conn.block.rx;
    closing::stop_receiving(conn, fd);
    let has_begun = dmb.words().start(half.generation.load(Ordering::Relaxed)).is_some();
    if half.mode.load(Ordering::Relaxed) == mode::PLAIN {
        Step::Again
    } else if has_begun {
        // Behind bytes that TCP has yet to bring.
        Step::Data(0)
    } else {
        violated(conn, fd)
    }
}

/// The sender died between taking back and resending: what never came by TCP is still in the ring.
fn inherit(conn: Conn, dmb: &Dmb, bufs: &Bufs<'_>, flags: i32, fd: i32) -> Step {
    let half = &conn.block.rx;
    let seen = half.tcp_bytes.load(Ordering::Relaxed);
    let end = half.debt_end.load(Ordering::Relaxed);
    let cursor = half.cursor.load(Ordering::Relaxed);
    let Some(dmb) = dmb.as_sent_behind(cursor) else { return violated(conn, fd) };
    let owed = end.saturating_sub(seen).min(dmb.most(cursor));
    let from = owed_at(half, seen);
    if owed == 0 {
        finish(conn, fd);
        return Step::Again;
    }
    let n = bufs.left().min(owed as usize);
    if let Err(errno) = peek::deliver(half, &dmb, bufs, from, n, flags) {
        return Step::Failed(errno);
    }
    if flags & libc::MSG_PEEK == 0 {
        half.tcp_bytes.store(seen + n as u64, Ordering::Relaxed);
        // These came by no TCP byte: the kernel's count will not have them. It does not matter any more.
    }
    Step::Data(n)
}

/// The lane is drained or paid: plain TCP again. Under the lock.
fn finish(conn: Conn, fd: i32) {
    conn.block.rx.mode.store(mode::PLAIN, Ordering::Release);
    closing::lane_closed(conn, fd, &conn.block.rx);
}

/// The peer wrote what it must not: this connection ends with ECONNRESET, nothing else is touched.
fn violated(conn: Conn, fd: i32) -> Step {
    reset::reset(conn, fd, Reason::PeerViolation);
    Step::Failed(Errno::CONNRESET)
}

/// The lock's holder died: what it had not written down is derived from the shared words.
fn recover(block: &Block, fd: i32) {
    let half = &block.rx;
    match half.mode.load(Ordering::Relaxed) {
        mode::LANE => {
            if let Some(dmb) = state::rx_dmb(half) {
                let cons = dmb.words().cons();
                if cons.generation() == half.generation.load(Ordering::Relaxed) {
                    half.cursor.store(cons.offset(), Ordering::Relaxed);
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
    if let Some(shows) = fast::shows(conn, fd) {
        return shows;
    }
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

#[cfg(test)]
mod tests;
