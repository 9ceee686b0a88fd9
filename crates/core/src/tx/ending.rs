//! How a lane ends for its sender: what the receiver has not read goes by TCP, or stays in the ring for it (models/lane.pml, A).

use core::sync::atomic::Ordering;

use rustix::fs::OFlags;
use rustix::io::Errno;
use shunpike_shm::arena::{Held, TxHalf, TxHeld, mode};
use shunpike_shm::lane::{Cursor, Dmb, Side};

use super::recount;
use crate::table::Conn;
use crate::tls::critical;
use crate::zerocopy::lending;
use crate::{call, closing, cork, process, send_lock, state, sys, wait};

/// Most bytes that are taken back at a stream's end: TCP takes so many at once.
const LAST_MOST: u64 = 64 * 1024;

/// A program whose sends wait ends its stream with so much patience, nanoseconds: on TCP its last send would have waited without end.
const PATIENCE: u64 = 5_000_000_000;
/// Whether TCP has moved any is looked at after so long, nanoseconds.
const LOOK: u64 = 10_000_000;

/// What of the bytes that are unread goes by TCP as a lane ends.
#[derive(Copy, Clone)]
enum Unread {
    /// All, as far as TCP takes it at once: a rest would wait for this program's next call.
    AtOnce,
    /// All where that is at most so many bytes, else nothing. The caller waits until TCP has taken it.
    AtMost(u64),
}

/// Ends the lane, and the connection goes on by TCP. What is unread goes by TCP, too: before the receiver reads it, it may hand its socket
/// to a program that knows of no ring.
pub fn end(conn: Conn, fd: i32, half: TxHeld<'_>, dmb: &Dmb) {
    end_with(conn, fd, half, dmb, Unread::AtOnce);
}

fn end_with(conn: Conn, fd: i32, half: TxHeld<'_>, dmb: &Dmb, what: Unread) {
    if !lending::recall(conn, fd, half) {
        return;
    }
    let unread = dmb.unread(half.cursor.load(Ordering::Relaxed));
    let widened = if let Unread::AtOnce = what { Widened::to_take(fd, unread) } else { None };
    if goes_back(fd, unread, what) {
        take_back(conn, fd, half, dmb);
    } else {
        // END even behind STOP: a receiver that asks later hears that nobody would answer (models/lane.pml, STOP_NO_END).
        match dmb.words().flag(half.generation.load(Ordering::Relaxed), Cursor::END, 0) {
            Ok(prod) if prod.has(Cursor::LEAVE) => take_back(conn, fd, half, dmb),
            _ => {
                wait::notify(conn.block, dmb.words(), Side::Readers);
                leave_plain(conn, fd, half);
            }
        }
    }
    if let Some(before) = widened {
        before.restore(fd);
    }
}

/// Whether it goes by TCP.
fn goes_back(fd: i32, unread: u64, what: Unread) -> bool {
    let fits = match what {
        Unread::AtOnce => unread > 0 && unread <= sys::tcp_takes(fd),
        Unread::AtMost(most) => (1..=most).contains(&unread),
    };
    // A peer that has ended its own stream may have shut both directions: it would answer a byte by TCP with a reset.
    fits && sys::tcp_shows(fd, libc::POLLRDHUP) == 0
}

/// A send buffer that was made larger for the moment, and how it was: its size as the program would set it, and which buffers it did set
/// (SO_BUF_LOCK; none where the kernel is older than Linux 5.14).
struct Widened(i32, Option<i32>);

impl Widened {
    /// Has TCP take `bytes` at once. Nothing where it does so already, or the kernel might not let the buffer become so large.
    fn to_take(fd: i32, bytes: u64) -> Option<Self> {
        /// net.core.wmem_max as it is by default: what is set beyond is cut down to it.
        const MOST: u64 = 212_992;
        let takes = if bytes == 0 { 0 } else { sys::tcp_takes(fd) };
        if bytes <= takes {
            return None;
        }
        let option = |name| sys::option::<i32>(fd, libc::SOL_SOCKET, name).ok();
        // The kernel doubles what is set (socket(7)).
        let has = option(libc::SO_SNDBUF)? / 2;
        let wanted = has as u64 + bytes - takes;
        if wanted > MOST {
            return None;
        }
        let before = Self(has, option(libc::SO_BUF_LOCK));
        sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &(wanted as i32)).ok()?;
        Some(before)
    }

    fn restore(self, fd: i32) {
        let Self(has, is_set) = self;
        let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, &has);
        if let Some(is_set) = is_set {
            let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_BUF_LOCK, &is_set);
        }
    }
}

/// Whether the receiver wants no more by this lane: it went back to TCP, or hands its socket to a foreign program and
/// wants its unread bytes by TCP. A sender that has nothing to send must do its part, too: no lane opens anew before.
#[inline]
pub fn asked_to_leave(half: &TxHalf) -> bool {
    half.mode.load(Ordering::Acquire) == mode::LANE
        && state::tx_dmb(half).is_some_and(|dmb| dmb.words().prod().has(Cursor::STOP | Cursor::LEAVE))
}

/// Ends the lane, if there is one, and pays what is owed as far as TCP takes it now.
pub fn revoke(conn: Conn, fd: i32) {
    revoke_with(conn, fd, Unread::AtOnce);
}

fn revoke_with(conn: Conn, fd: i32, what: Unread) {
    let critical = critical();
    let guard = send_lock::lock(conn.block, &critical);
    let half = guard.held();
    let Some(dmb) = state::tx_dmb(&half) else { return };
    match half.mode.load(Ordering::Relaxed) {
        mode::LANE => end_with(conn, fd, half, &dmb, what),
        mode::DEBT => {
            recount(conn, fd, &guard);
            pay(conn, fd, half, &dmb);
        }
        _ => {}
    }
}

/// What a thread must not sleep over, whatever it waits for: a receiver that wants no more by its lane, and gets by
/// TCP what it has not read where it left.
pub fn attend(conn: Conn, fd: i32) {
    if must_attend(conn) {
        revoke(conn, fd);
    }
}

/// Whether there is something to [`attend`] to.
pub fn must_attend(conn: Conn) -> bool {
    let _critical = critical();
    is_to_attend(&conn.block.tx)
}

/// Whether there is something to [`attend`] to. Within a critical section.
#[inline]
pub fn is_to_attend(half: &TxHalf) -> bool {
    asked_to_leave(half) || owes(half)
}

/// Whether bytes of a closed lane still wait for room in TCP.
pub fn owes(half: &TxHalf) -> bool {
    half.mode.load(Ordering::Acquire) == mode::DEBT
}

/// For how long a lane's last bytes are offered to TCP, nanoseconds.
#[derive(Copy, Clone)]
struct Patience {
    /// While neither TCP takes any nor the peer's TCP of what that has.
    idle: u64,
    /// In all.
    whole: Option<u64>,
}

impl Patience {
    /// Of a program that goes on, or whose sends do not wait.
    fn little() -> Self {
        let grace = u64::from(process::knobs().grace_ms.load(Ordering::Relaxed)) * 1_000_000;
        Self { idle: grace, whole: Some(10 * grace) }
    }

    /// Of one that ends the stream of `fd`, and has waited for `spent` already. Where its sends wait, TCP's would have waited for this reader.
    fn at_end(fd: i32, spent: u64) -> Self {
        let little = Self::little();
        match rustix::fs::fcntl_getfl(sys::borrowed(fd)) {
            Ok(flags) if !flags.contains(OFlags::NONBLOCK) => {
                Self { idle: PATIENCE.saturating_sub(spent).max(little.idle), whole: None }
            }
            _ => little,
        }
    }
}

/// Ends the lane before the descriptor is somebody else's: nothing should be owed after it. Waits a little for TCP's room.
pub fn conclude(conn: Conn, fd: i32) {
    revoke_with(conn, fd, Unread::AtMost(last_most(conn)));
    if owes(&conn.block.tx) {
        pay_within(conn, fd, Patience::little());
    }
}

fn pay_within(conn: Conn, fd: i32, patience: Patience) {
    let widened = Widened::to_take(fd, outside_tcp(conn));
    pay_all(conn, fd, patience);
    if let Some(before) = widened {
        before.restore(fd);
    }
}

/// Before the kernel moves bytes of its own into the connection: what is owed goes first. Errors: EAGAIN where the call does not wait, EINTR.
pub fn pay_first(conn: Conn, fd: i32, waits: bool) -> Result<(), Errno> {
    loop {
        revoke(conn, fd);
        if !owes(&conn.block.tx) {
            return Ok(());
        }
        if !waits {
            return Err(Errno::AGAIN);
        }
        call::must_block(conn.block, fd)?;
        sys::poll(&mut [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }], None, core::ptr::null())?;
    }
}

/// Ends the lane before the stream's end: close(), shutdown(), the process's end, which has waited for `spent` nanoseconds already. False: bytes
/// are owed still. They must never look like a whole stream, whoever reads it and however this process ends: closing it is a reset.
pub fn conclude_stream(conn: Conn, fd: i32, spent: u64) -> bool {
    revoke_with(conn, fd, Unread::AtMost(last_most(conn)));
    if !owes(&conn.block.tx) {
        return true;
    }
    let before = sys::option::<libc::linger>(fd, libc::SOL_SOCKET, libc::SO_LINGER);
    if before.is_ok_and(|linger| linger.l_onoff != 0 && linger.l_linger == 0) {
        // The program's own wish.
        pay_within(conn, fd, Patience::little());
        return !owes(&conn.block.tx);
    }
    sys::reset_at_close(fd);
    {
        let guard = send_lock::lock(conn.block, critical());
        let half = guard.held();
        if let Some(dmb) = state::tx_dmb(&half) {
            dmb.words().mark_unpaid(half.generation.load(Ordering::Relaxed));
        }
    }
    pay_within(conn, fd, Patience::at_end(fd, spent));
    let is_paid = !owes(&conn.block.tx);
    if let Ok(before) = before
        && is_paid
    {
        let _ = sys::set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &before);
    }
    is_paid
}

/// Pays what is owed, and waits for TCP's room.
fn pay_all(conn: Conn, fd: i32, patience: Patience) {
    let moved = || (conn.block.tx.tcp_bytes.load(Ordering::Relaxed), sys::queue(fd, sys::SIOCOUTQ));
    let mut last = moved();
    let [mut idle, whole] = [Some(patience.idle), patience.whole].map(call::deadline);
    loop {
        revoke(conn, fd);
        if !owes(&conn.block.tx) {
            return;
        }
        let now = moved();
        if now != last {
            (last, idle) = (now, call::deadline(Some(patience.idle)));
        }
        let (Ok(Some(left)), Ok(_)) = (call::remaining(idle), call::remaining(whole)) else { return };
        // TCP tells of room when a good part of its buffer is free, not of each byte that goes.
        let left = Some(left.min(LOOK));
        let _ =
            sys::poll(&mut [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }], left, core::ptr::null());
    }
}

/// What the server has not read when a client's stream ends goes by TCP, if it is little: it may accept connections for others, who read
/// TCP only. Of a server's last bytes the client is the reader, as a rule, and connections that end with an answer are common.
fn last_most(conn: Conn) -> u64 {
    if state::opener(conn.block) { LAST_MOST } else { 0 }
}

/// At exit: the lane ends as at close(), for a peer that naps looks at no TCP. What handlers at exit send behind this goes by TCP.
pub fn end_last(conn: Conn, fd: i32) {
    let half = &conn.block.tx;
    if half.mode.load(Ordering::Relaxed) != mode::LANE {
        return;
    }
    let guard = send_lock::lock(conn.block, critical());
    let half = guard.held();
    let Some(dmb) = state::tx_dmb(&half).filter(|_| half.mode.load(Ordering::Relaxed) == mode::LANE) else {
        return;
    };
    end_with(conn, fd, half, &dmb, Unread::AtMost(last_most(conn)));
}

/// What the receiver has not read is ours again and goes out by TCP before any other byte.
fn take_back(conn: Conn, fd: i32, half: TxHeld<'_>, dmb: &Dmb) {
    if !lending::recall(conn, fd, half) {
        return;
    }
    let end = half.cursor.load(Ordering::Relaxed);
    // A receiver that lies about what it has read can make us resend at most the ring.
    let from = dmb
        .words()
        .take_back(half.generation.load(Ordering::Relaxed))
        .map_or(end, |(from, _)| from.clamp(dmb.oldest(end), end));
    half.recount(end - from);
    half.other.store(half, from, Ordering::Relaxed);
    half.mode.store(half, mode::DEBT, Ordering::Release);
    pay(conn, fd, half, dmb);
    // Last: it would run in our place, find the debt and nothing of it, and on a busy machine take us for one that never pays.
    wait::notify(conn.block, dmb.words(), Side::Readers);
}

/// Bytes of the program that TCP has not had and the receiver has not read.
pub fn outside_tcp(conn: Conn) -> u64 {
    let guard = send_lock::lock(conn.block, critical());
    let half = guard.held();
    let end = half.cursor.load(Ordering::Relaxed);
    match half.mode.load(Ordering::Relaxed) {
        mode::LANE => state::tx_dmb(&half).map_or(0, |dmb| dmb.unread(end)),
        mode::DEBT => end.saturating_sub(paid_up_to(half)),
        _ => 0,
    }
}

/// Where the first byte is that is owed still. No byte went by TCP from the lane's beginning to the take-back: what did since was paid.
fn paid_up_to(half: TxHeld<'_>) -> u64 {
    let paid = half.tcp_bytes.load(Ordering::Relaxed) - half.own().start.load(Ordering::Relaxed);
    half.other.load(Ordering::Relaxed) + paid
}

/// Sends what is owed, as far as TCP takes it now; says whether nothing is owed any more.
pub(super) fn pay(conn: Conn, fd: i32, half: TxHeld<'_>, dmb: &Dmb) -> bool {
    const EMPTY: libc::iovec = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: 0 };
    let end = half.cursor.load(Ordering::Relaxed);
    loop {
        let at = paid_up_to(half);
        if at >= end {
            break;
        }
        // All parts at once: Nagle's algorithm may hold a later one back. Each of the two rings has two at most.
        let (mut iov, mut used, mut to) = ([EMPTY; 4], 0, at);
        while to < end && used < iov.len() {
            let (base, room) = dmb.span(to);
            let part = room.min((end - to) as usize);
            iov[used] = libc::iovec { iov_base: base.cast(), iov_len: part };
            (used, to) = (used + 1, to + part as u64);
        }
        match sys::send(fd, &iov[..used], libc::MSG_DONTWAIT) {
            Ok(n) => {
                half.tcp_bytes.fetch_add(n as u64, Ordering::Relaxed);
            }
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return false,
            // The connection is broken: the program's next call hears of it from TCP.
            Err(_) => break,
        }
    }
    // They were shown already.
    cork::push(fd);
    leave_plain(conn, fd, half);
    true
}

/// Plain TCP again.
pub(super) fn leave_plain(conn: Conn, fd: i32, half: TxHeld<'_>) {
    lending::recall(conn, fd, half);
    half.mode.store(half, mode::PLAIN, Ordering::Release);
    closing::tx_closed(conn, half);
}
