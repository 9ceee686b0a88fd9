//! Sending: kernel TCP, then the ring, and back (models/lane.pml, A).

pub mod fast;
mod room;
pub(crate) mod unheard;

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_shm::arena::{Held, TxGuard, TxHalf, TxHeld, mode};
use shunpike_shm::lane::short;
use shunpike_shm::lane::{Cursor, Dmb, MAX_OFFSET, MIN_WINDOW, Side};
use shunpike_shm::lock::Section;
use shunpike_wire::Reason;

pub use room::{has_room, looks_again, overflow};
pub use unheard::unheard;

use room::Wait;

use crate::blocking::tcp_check_us;
use crate::bufs::Bufs;
use crate::call::Outcome;
use crate::source::Source;
use crate::table::Conn;
use crate::tls::critical;
use crate::wait;
use crate::window::writable_at;
use crate::zerocopy::lending;
use crate::{
    above, call, clock, closing, cork, hope, memory, passthrough, prefetch, process, reset, send_lock,
    session, state, stores, sys, tap, user, window, zerocopy,
};

/// Bytes of a large write that are published at a time: the reader copies the first while we copy the next.
const CHUNK: usize = 32 * 1024;
/// Bytes of a large write after which a reader that naps is woken before the write is over.
const WAKE_BYTES: usize = 256 * 1024;
/// Most bytes that are taken back at a stream's end: TCP takes so many at once.
const LAST_MOST: u64 = 64 * 1024;

/// What one attempt gave.
enum Step {
    /// So many bytes are on their way.
    Sent(usize),
    /// The mode changed: look again.
    Again,
    /// The ring is full.
    Full,
    /// The connection is broken.
    Failed(Errno),
}

/// send and its kin. `real` is libc's call for the very same arguments but the flags, which it is given, for a connection
/// on plain TCP.
pub fn send(conn: Conn, fd: i32, source: Source<'_>, flags: i32, real: impl FnOnce(i32) -> isize) -> Outcome {
    let mut call = zerocopy::Call::new(flags);
    let outcome = attempt(conn, fd, source, flags, &mut call, real);
    call.end(fd, &outcome);
    above::settle(conn, fd);
    if memory::wants_rings() {
        window::shrink_all();
    }
    outcome
}

fn attempt(
    mut conn: Conn,
    fd: i32,
    mut source: Source<'_>,
    flags: i32,
    call: &mut zerocopy::Call,
    real: impl FnOnce(i32) -> isize,
) -> Outcome {
    session::pump_if_news();
    if flags & libc::MSG_OOB != 0 {
        // The urgent pointer counts TCP bytes: back to TCP for good.
        above::revoke_for_good(conn, fd, Reason::UrgentData);
        if owes(&conn.block.tx) {
            // It would overtake what is owed.
            conclude(conn, fd);
        }
        return call.by_tcp(conn, fd, source.left(), real);
    }
    if process::eager() {
        conn = hope::await_lane(conn, fd, None).unwrap_or(conn);
    }
    let mut wait = Wait::new(flags);
    loop {
        if conn.block.tx.mode.load(Ordering::Relaxed) == mode::PLAIN && conn.block.tx.enter() {
            return plain(conn, fd, &mut source, call, real);
        }
        let step = step(conn, fd, &source, flags, call);
        wait.is_long = call.lends();
        match step {
            Step::Sent(n) => {
                source.advance(n);
                wait.napped = false;
                if source.left() == 0 || n == 0 {
                    return Outcome::Ours(Ok(source.done()));
                }
            }
            Step::Again => {}
            Step::Failed(errno) => return ended(&source, errno),
            Step::Full => match wait.more(conn, fd).and_then(|()| call::still_at(conn, fd)) {
                Ok(()) => {}
                Err(errno) => return ended(&source, errno),
            },
        }
    }
}

fn ended(source: &Source<'_>, errno: Errno) -> Outcome {
    Outcome::Ours(if source.done() > 0 { Ok(source.done()) } else { Err(errno) })
}

/// On plain TCP, inside (see `enter`): counts what libc's call took.
fn plain(
    conn: Conn,
    fd: i32,
    source: &mut Source<'_>,
    call: &mut zerocopy::Call,
    real: impl FnOnce(i32) -> isize,
) -> Outcome {
    let before = source.done();
    let wish = if matches!(source, Source::File { .. }) { passthrough::UNBOUNDED } else { source.left() };
    let (n, outcome) = if before > 0 {
        rest(fd, source, call.plain_flags());
        (source.done() - before, Outcome::Ours(Ok(source.done())))
    } else {
        let outcome = call.by_tcp(conn, fd, source.left(), real);
        (if let Outcome::Libc(n @ 1..) = outcome { n as usize } else { 0 }, outcome)
    };
    passthrough::counted(conn, &conn.block.tx, fd, n, wish);
    outcome
}

/// A lane ended in the middle of a write: what is left goes by TCP, all of it where the call blocks. An error is
/// the next call's.
fn rest(fd: i32, source: &mut Source<'_>, flags: i32) {
    while source.left() > 0 {
        let mut iov = Bufs::kernel_iov();
        let (asked, sent) = match source {
            Source::Memory(bufs) => {
                let used = bufs.for_kernel(&mut iov, usize::MAX);
                let asked = iov[..used].iter().map(|one| one.iov_len).sum();
                (asked, sys::send(fd, &iov[..used], flags))
            }
            Source::File { fd: file, offset, left, .. } => {
                let mut at = offset.and_then(|at| u64::try_from(at).ok());
                let [to, from] = [fd, *file].map(sys::borrowed);
                (*left, rustix::fs::sendfile(to, from, at.as_mut(), *left))
            }
        };
        match sent {
            Ok(n) if n > 0 => {
                source.advance(n);
                if n < asked {
                    return;
                }
            }
            _ => return,
        }
    }
}

/// The same where it owed: it may have died between a send and its count.
fn recount(conn: Conn, fd: i32, guard: &TxGuard<'_, impl Section>) {
    if guard.inherited()
        && let Ok(counts) = sys::counts(fd, state::opener(conn.block))
    {
        conn.block.tx.tcp_bytes.store(counts.sent, Ordering::Relaxed);
        guard.repaired();
    }
}

/// One attempt, under the send lock.
fn step(conn: Conn, fd: i32, source: &Source<'_>, flags: i32, call: &mut zerocopy::Call) -> Step {
    let critical = critical();
    prefetch::of_send(&conn.block.tx, source.left());
    let guard = send_lock::lock(conn.block, &critical);
    let half = guard.held();
    if !conn.current() {
        return Step::Failed(Errno::BADF);
    }
    let Some(mut dmb) = state::tx_dmb(&half) else { return Step::Again };
    match half.mode.load(Ordering::Relaxed) {
        mode::LANE => {}
        mode::DEBT => {
            recount(conn, fd, &guard);
            return if pay(conn, fd, half, &dmb) { Step::Again } else { Step::Full };
        }
        _ => return Step::Again,
    }
    if let Err(errno) = call.by_lane(conn, fd, source.left()) {
        return Step::Failed(errno);
    }
    let words = dmb.words();
    let generation = half.generation.load(Ordering::Relaxed);
    let offset = half.cursor.load(Ordering::Relaxed);
    if offset > MAX_OFFSET || peer_is_gone(&half, fd) {
        end(conn, fd, half, &dmb);
        return Step::Again;
    }
    dmb = window::adapt(half, dmb, offset, source.left() as u64);
    let (mut wish, mut from) = ((source.left() as u64).min(CHUNK as u64), core::ptr::null());
    // Whoever looks sees what is in the ring.
    if call.is_noticed() && !tap::is_on() {
        (wish, from) = call.next(half, &dmb, source, wish);
    }
    if wish == 0 {
        // Nothing needs no room, and nobody would look for any.
        return Step::Sent(0);
    }
    let known_free = || dmb.room(half.other.load(Ordering::Relaxed), offset).unwrap_or(0);
    let mut free = known_free();
    if free <= wish {
        let cons = words.cons();
        if cons.generation() != generation {
            leave_plain(conn, fd, half);
            return Step::Again;
        }
        let is_back = cons.offset() < half.other.load(Ordering::Relaxed);
        let Some(room) = dmb.room(cons.offset(), offset).filter(|_| !is_back && cons.offset() <= offset)
        else {
            return violated(conn, fd, half);
        };
        half.other.store(half, cons.offset(), Ordering::Relaxed);
        free = room;
    }
    let mut limit = u64::MAX;
    // Not full to the last byte either, where it can be larger: TCP's buffers would have room for more.
    if free <= wish || wish >= window::BULK {
        if dmb.window() > u64::from(MIN_WINDOW) && memory::is_tight() {
            // What is unread stays where it is until it is read; TCP's buffers are what the limit allows.
            dmb = window::shrink_now(half, dmb, offset);
            if dmb.window() > u64::from(MIN_WINDOW) {
                state::note(conn.block, Reason::MemoryRefused);
                end(conn, fd, half, &dmb);
                return Step::Again;
            }
        }
        (dmb, limit) = window::fit(conn.block, half, dmb, offset, source.left() as u64);
        free = dmb.room(half.other.load(Ordering::Relaxed), offset).unwrap_or(0);
    }
    let at = Cursor::new(generation, offset);
    // What is lent costs the receiver a system call, so it is worth waiting for as much room as poll() tells of.
    if free == 0 || !from.is_null() && free < wish.min(writable_at(&dmb)) {
        // A receiver that has stopped makes no room any more: who waited for it would wait for ever.
        let prod = words.prod();
        if prod != at {
            return refused(conn, fd, half, &dmb, prod);
        }
        if half.full_since.load(Ordering::Relaxed) == 0 {
            room::note_full(half, &dmb);
        }
        return Step::Full;
    }
    let n = free.min(wish).min(limit) as usize;
    if n < lending::LEAST_PART {
        from = core::ptr::null();
    }
    let done = if from.is_null() {
        put(half, &dmb, source, offset, n)
    } else {
        lending::lend(half, &dmb, from, n, offset)
    };
    let n = match done {
        Ok(n) => n,
        Err(Errno::NOMEM) => {
            // The system has no memory for the ring: TCP's buffers are accounted elsewhere.
            state::note(conn.block, Reason::MemoryRefused);
            end(conn, fd, half, &dmb);
            return Step::Again;
        }
        Err(_) if matches!(source, Source::File { .. }) => {
            // Not one to be read into memory like ours (O_DIRECT), or at all: the kernel's sendfile says.
            state::note(conn.block, Reason::Splice);
            end(conn, fd, half, &dmb);
            return Step::Again;
        }
        Err(errno) => return Step::Failed(errno),
    };
    if n == 0 {
        return Step::Sent(0);
    }
    let quiet = cork::before_publish(conn.block, half, &dmb, offset, n, flags);
    // What was lent just before somebody looked is missing there, and told by what follows.
    if n <= short::MOST
        && from.is_null()
        && let Some(bytes) = dmb.last_put(offset)
    {
        words.accompany(offset, n, bytes);
    }
    let published = if tap::is_on() && from.is_null() {
        tap::publish(conn.block, &dmb, at, n)
    } else {
        words.publish(at, n as u64)
    };
    match published {
        Ok(next) => {
            half.cursor.store(half, next.offset(), Ordering::Relaxed);
            half.full_since.store(half, 0, Ordering::Relaxed);
            half.count(n);
            if call.is_entered() {
                call.note(half, &dmb, from, n, offset, n == source.left());
            } else {
                call.note_brief(n == source.left());
            }
            drop(guard);
            // Not behind a part of the same call: who naps was not rung for that.
            if quiet && source.done() == 0 && !cork::may_be_over(&conn.block.tx) {
                return Step::Sent(n);
            }
            // A reader that is woken for a part would read that and wait again, for the CPU that we copy the rest on.
            if source.left() > n && source.done() + n < WAKE_BYTES {
                wait::notify_of_part(conn.block, words, Side::Readers);
            } else if !wait::notify(conn.block, words, Side::Readers) {
                unheard::published(conn);
            }
            Step::Sent(n)
        }
        Err(seen) => refused(conn, fd, half, &dmb, seen),
    }
}

/// What stands in the producer's word is not what we wrote: the receiver has stopped, or broken the rules.
fn refused(conn: Conn, fd: i32, half: TxHeld<'_>, dmb: &Dmb, seen: Cursor) -> Step {
    if seen.generation() != half.generation.load(Ordering::Relaxed) || !seen.has(Cursor::STOP) {
        return violated(conn, fd, half);
    }
    end(conn, fd, half, dmb);
    Step::Again
}

/// The peer wrote what it must not: this connection ends with ECONNRESET, nothing else is touched.
fn violated(conn: Conn, fd: i32, half: TxHeld<'_>) -> Step {
    reset::reset(conn, fd, half, Reason::PeerViolation);
    Step::Failed(Errno::CONNRESET)
}

/// Into the ring: straight (no-copy: the send buffer is the peer's DMB), or by way of our own send buffer and
/// the device's move_data (copy mode).
#[inline]
fn put(half: TxHeld<'_>, dmb: &Dmb, source: &Source<'_>, offset: u64, n: usize) -> Result<usize, Errno> {
    match half.own().stage.load(Ordering::Relaxed) {
        0 => stores::fill(half, source, dmb, offset, n),
        stage => {
            // SAFETY: `begin` made a private send buffer of the DMB's own layout and capacity.
            let staged = unsafe { Dmb::at(stage, dmb.mapped()) };
            let staged = staged.with_window(dmb.window()).unwrap_or(staged);
            let n = source.fill(&staged, offset, n, user::Stores::Cached)?;
            crate::device::move_data(dmb, &staged, offset, n);
            Ok(n)
        }
    }
}

/// Asks TCP now and then whether the peer still is there: what it closed, TCP answers with its own errors.
#[inline]
fn peer_is_gone(half: &TxHalf, fd: i32) -> bool {
    if !is_to_be_checked(half, fd) {
        return false;
    }
    let now = clock::ticks();
    let is_gone = sys::tcp_shows(fd, libc::POLLRDHUP) != 0;
    // One that is gone is asked for again, by who ends the lane.
    if !is_gone {
        half.checked.store(now, Ordering::Relaxed);
    }
    is_gone
}

/// Whether it is time for that.
#[inline]
fn is_to_be_checked(half: &TxHalf, fd: i32) -> bool {
    let since = clock::ticks().wrapping_sub(half.checked.load(Ordering::Relaxed));
    since >= clock::from_us(tcp_check_us(fd))
}

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
#[inline]
pub fn attend(conn: Conn, fd: i32) {
    let asked = {
        let _critical = critical();
        asked_to_leave(&conn.block.tx)
    };
    if asked || owes(&conn.block.tx) {
        revoke(conn, fd);
    }
}

/// Whether bytes of a closed lane still wait for room in TCP.
pub fn owes(half: &TxHalf) -> bool {
    half.mode.load(Ordering::Acquire) == mode::DEBT
}

/// Ends the lane before the stream's end, or before the descriptor is somebody else's: nothing may be owed after
/// it. Waits for TCP's room no longer than the grace.
pub fn conclude(conn: Conn, fd: i32) {
    revoke_with(conn, fd, Unread::AtMost(last_most(conn)));
    if !owes(&conn.block.tx) {
        return;
    }
    let widened = Widened::to_take(fd, outside_tcp(conn));
    pay_all(conn, fd);
    if let Some(before) = widened {
        before.restore(fd);
    }
}

/// Pays what is owed, and waits for TCP's room no longer than the grace.
fn pay_all(conn: Conn, fd: i32) {
    let deadline =
        call::deadline(Some(u64::from(process::knobs().grace_ms.load(Ordering::Relaxed)) * 1_000_000));
    loop {
        revoke(conn, fd);
        let Ok(left) = call::remaining(deadline) else { return };
        if !owes(&conn.block.tx) {
            return;
        }
        let _ =
            sys::poll(&mut [libc::pollfd { fd, events: libc::POLLOUT, revents: 0 }], left, core::ptr::null());
    }
}

/// What the server has not read when a client's stream ends goes by TCP, if it is little: it may accept connections for others, who read
/// TCP only. Of a server's last bytes the client is the reader, as a rule, and connections that end with an answer are common.
fn last_most(conn: Conn) -> u64 {
    if state::opener(conn.block) { LAST_MOST } else { 0 }
}

/// At exit: the same, of a lane that the kernel ends.
pub fn take_back_last(conn: Conn, fd: i32) {
    let half = &conn.block.tx;
    if half.mode.load(Ordering::Relaxed) != mode::LANE {
        return;
    }
    let guard = send_lock::lock(conn.block, critical());
    let half = guard.held();
    let Some(dmb) = state::tx_dmb(&half).filter(|_| half.mode.load(Ordering::Relaxed) == mode::LANE) else {
        return;
    };
    let unread = dmb.unread(half.cursor.load(Ordering::Relaxed));
    if goes_back(fd, unread, Unread::AtMost(last_most(conn))) {
        take_back(conn, fd, half, &dmb);
    }
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
fn pay(conn: Conn, fd: i32, half: TxHeld<'_>, dmb: &Dmb) -> bool {
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
fn leave_plain(conn: Conn, fd: i32, half: TxHeld<'_>) {
    lending::recall(conn, fd, half);
    half.mode.store(half, mode::PLAIN, Ordering::Release);
    closing::tx_closed(conn, half);
}
