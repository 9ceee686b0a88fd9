//! Sending: kernel TCP, then the ring, and back (models/lane.pml, A).

mod ending;
pub mod fast;
mod room;
pub(crate) mod unheard;

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_shm::arena::{Held, TxGuard, TxHalf, TxHeld, mode};
use shunpike_shm::device::{ClientDevice, Own};
use shunpike_shm::lane::short;
use shunpike_shm::lane::{Cursor, Dmb, MAX_OFFSET, MIN_WINDOW, Side};
use shunpike_shm::lock::Section;
use shunpike_wire::Reason;

pub use ending::{
    asked_to_leave, attend, conclude, conclude_stream, end, end_last, is_to_attend, must_attend, outside_tcp,
    owes, pay_first, revoke,
};
pub use room::{has_room, looks_again, overflow};
pub use unheard::unheard;

use ending::{leave_plain, pay};
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
    above, call, clock, cork, hope, memory, passthrough, process, reset, send_lock, session, state, stores,
    sys, tap, user, window, zerocopy,
};

/// Bytes of a large write that are published at a time: the reader copies the first while we copy the next.
const CHUNK: usize = 32 * 1024;
/// Bytes of a large write after which a reader that naps is woken before the write is over.
const WAKE_BYTES: usize = 256 * 1024;

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
    let mut is_begun = false;
    loop {
        if conn.block.tx.mode.load(Ordering::Relaxed) == mode::PLAIN && conn.block.tx.enter() {
            // Who closes it takes its number away first.
            if is_begun && let Err(errno) = call::still_at(conn, fd) {
                conn.block.tx.leave();
                return ended(&source, errno);
            }
            return by_tcp(conn, fd, &mut source, call, real);
        }
        is_begun = true;
        let step = step(conn, fd, &source, flags, call);
        wait.is_long = call.lends();
        match step {
            Step::Sent(n) => {
                source.advance(n);
                wait.napped = false;
                if source.left() == 0 || n == 0 {
                    return Outcome::Ours(Ok(source.done()));
                }
                wait.moved(conn.block);
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
fn by_tcp(
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
                let mut at = *offset as u64;
                let [to, from] = [fd, *file].map(sys::borrowed);
                (*left, rustix::fs::sendfile(to, from, Some(&mut at), *left))
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

/// A holder that died may have done so between a send of what is owed and its count.
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
    // Read once: sockperf shows each time more.
    let now = clock::ticks();
    if offset > MAX_OFFSET || peer_is_gone(&half, fd, now) {
        end(conn, fd, half, &dmb);
        return Step::Again;
    }
    dmb = window::adapt(half, dmb, offset, source.left() as u64, now);
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
        Own::publish(words, at, n as u64)
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
                unheard::published(conn);
                return Step::Sent(n);
            }
            // A reader that is woken for a part would read that and wait again, for the CPU that we copy the rest on.
            if source.left() > n && source.done() + n < WAKE_BYTES {
                wait::notify_of_part(conn.block, words, Side::Readers);
            } else {
                wait::notify(conn.block, words, Side::Readers);
            }
            unheard::published(conn);
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
    match stage(half, dmb) {
        None => stores::fill(half, source, dmb, offset, n),
        Some(stage) => {
            let n = source.fill(&stage, offset, n, user::Stores::Cached)?;
            Own::move_data(dmb, &stage, offset, n);
            Ok(n)
        }
    }
}

/// In copy mode the send buffer.
#[inline]
fn stage(half: TxHeld<'_>, dmb: &Dmb) -> Option<Dmb> {
    let at = half.own().stage.load(Ordering::Relaxed);
    (at != 0).then(|| {
        // SAFETY: `begin` made a private send buffer of the DMB's own layout and capacity.
        let stage = unsafe { Dmb::at(at, dmb.mapped()) };
        stage.with_window(dmb.window()).unwrap_or(stage)
    })
}

/// Asks TCP now and then whether the peer still is there: what it closed, TCP answers with its own errors.
#[inline]
fn peer_is_gone(half: &TxHalf, fd: i32, now: u64) -> bool {
    if !is_to_be_checked(half, fd, now) {
        return false;
    }
    let is_gone = sys::tcp_shows(fd, libc::POLLRDHUP) != 0;
    // One that is gone is asked for again, by who ends the lane.
    if !is_gone {
        half.checked.store(now, Ordering::Relaxed);
    }
    is_gone
}

/// Whether it is time for that, `now`.
#[inline]
fn is_to_be_checked(half: &TxHalf, fd: i32, now: u64) -> bool {
    let since = now.wrapping_sub(half.checked.load(Ordering::Relaxed));
    since >= clock::from_us(tcp_check_us(fd))
}
