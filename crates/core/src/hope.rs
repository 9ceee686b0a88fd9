//! With `--eager`, a data call that is about to use TCP waits for its lane while there is hope: how long is said by what the broker knows of
//! the other end.

use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use shunpike_shm::lifecycle::Phase;

use rustix::io::Errno;
use shunpike_shm::arena::Block;

use crate::eager::{
    self, ATTENTION_US, BACKLOGS, LISTENERS, is_inherited, is_possible, is_settled, mark, was_put_off,
};
use crate::host::is_alone;
use crate::table::Conn;
use crate::{call, clock, holders, session, state, sys, upgrade};

/// For a broker that has our message and does not answer, microseconds; once, until it answers again.
const BROKER_US: u64 = 2_000_000;
/// For a peer that is ours to nominate its end, microseconds; twice that once it has. Halved with each wait that
/// was in vain, doubled with each that was not, up to this.
const PEER_US: u64 = 1_000_000;
const PEER_LEAST_US: u64 = 10_000;
/// While only this process stands in the way, and for a call that does not want to block, microseconds.
const SHORT_US: u64 = 100_000;
/// Calls that do not want to block wait in vain for one part in so many of their process's time: an event loop has others to serve.
const VAIN_PARTS: u64 = 10;
/// Another thread may take the message that this one waits for: it looks this often, nanoseconds;
const SLICE_NS: u64 = 1_000_000;
/// It looks this often, nanoseconds, where it would sleep anyway, and only answers the broker meanwhile.
const LISTENING_SLICE_NS: u64 = 10_000_000;

static PATIENCE_US: AtomicU64 = AtomicU64::new(PEER_US);
/// When what was waited in vain by calls that do not want to block will be made up for, ticks.
static MADE_UP_AT: AtomicU64 = AtomicU64::new(0);
/// A wait for the broker ran out, and it has said nothing since.
static SILENT: AtomicBool = AtomicBool::new(false);

/// The broker has said something.
pub(crate) fn heard() {
    SILENT.store(false, Ordering::Relaxed);
}

/// What a data call waits for.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Cause {
    Broker,
    Peer,
    Ourselves,
}

/// What there is to wait for, and how long, microseconds. `reads`: for a call that would sleep anyway.
fn hope(block: &Block, patience: u64, reads: bool) -> Option<(Cause, u64)> {
    let broker = || (!SILENT.load(Ordering::Relaxed)).then_some((Cause::Broker, BROKER_US));
    match block.life.phase() {
        Phase::Watched | Phase::Nominated | Phase::Shaking if is_inherited(block) => {
            // Until the process that accepted it has closed it.
            let spent = block.nomination.load(Ordering::Relaxed) & mark::SPENT != 0;
            (!spent).then_some((Cause::Ourselves, SHORT_US))
        }
        _ if !is_possible(block) => None,
        Phase::Watched if session::is_closed() => None,
        Phase::Watched if session::is_opening() => broker(),
        Phase::Watched => Some((Cause::Ourselves, SHORT_US)),
        Phase::Nominated => match block.nomination.load(Ordering::Relaxed) {
            marks if marks & mark::ANSWERED == 0 => broker(),
            marks if marks & mark::OTHER != 0 => Some((Cause::Peer, patience)),
            // It must be another thread of ours that connects or accepts.
            marks if marks & mark::OWN != 0 && sys::has_threads() => Some((Cause::Peer, patience)),
            _ => None,
        },
        // A peer that was told of nobody may be asleep in a read of the kernel's, which only our bytes by TCP end.
        Phase::Shaking if !reads && block.nomination.load(Ordering::Relaxed) & mark::ANSWERED != 0 => None,
        Phase::Shaking => Some((Cause::Peer, 2 * patience)),
        _ => None,
    }
}

/// Lets a data call that is about to use TCP wait for the lane while there is hope. `reading`: with these flags;
/// it waits only where it would wait anyway, and not beyond TCP's first byte.
///
/// Returns the connection, whose state may have moved to another block. Errors: EINTR, when reading.
#[inline]
pub fn await_lane(conn: Conn, fd: i32, reading: Option<i32>) -> Result<Conn, Errno> {
    if is_settled(conn.block) { Ok(conn) } else { await_unsettled(conn, fd, reading) }
}

#[inline(never)]
fn await_unsettled(mut conn: Conn, fd: i32, reading: Option<i32>) -> Result<Conn, Errno> {
    // Before any system call: most connections of most programs have nothing to wait for.
    let is_new = conn.block.life.is(Phase::Watched) && !was_put_off(conn.block);
    if !is_new
        && hope(conn.block, PATIENCE_US.load(Ordering::Relaxed), reading.is_some()).is_none()
        && !(reading.is_some() && may_be_asked(conn.block))
    {
        return Ok(conn);
    }
    let blocks = call::must_block(conn.block, fd).is_ok();
    if let Some(flags) = reading
        && (flags & libc::MSG_DONTWAIT != 0
            || !blocks
            || call::timeout_option(fd, libc::SO_RCVTIMEO).is_some())
    {
        return Ok(conn);
    }
    let (mut begin, interrupts) = (clock::ticks(), call::restarts_before().1);
    let patience = PATIENCE_US.load(Ordering::Relaxed);
    let longest = if blocks { u64::MAX } else { allowance(clock::ticks()) };
    let (mut waited, mut are_kept_waiting) = (false, false);
    loop {
        if is_inherited(conn.block) {
            // Its process may be gone, and have asked for a lane before.
            upgrade::retry(conn, fd);
        }
        if conn.block.life.is(Phase::Watched) {
            if is_inherited(conn.block) && holders::alone(conn.block) {
                conn = holders::made_ours(conn, fd).unwrap_or(conn);
            }
            upgrade::nominate(conn, fd);
        }
        let hope = hope(conn.block, patience, reading.is_some());
        if let Some((cause, most)) = hope {
            if clock::ticks() - begin >= clock::from_us(most.min(longest)) {
                conn.block.nomination.fetch_or(mark::SPENT, Ordering::Relaxed);
                if longest >= most.min(SHORT_US) {
                    give_up(cause, patience);
                }
                break;
            }
            // A server that cannot accept before it has these bytes.
            if !waited && reading.is_none() && state::opener(conn.block) && sys::is_held_back(fd) {
                conn.block.nomination.fetch_or(mark::SPENT, Ordering::Relaxed);
                break;
            }
            waited = true;
        } else if reading.is_some() && may_be_asked(conn.block) {
            // A peer that comes late finds us awake, and has all its time.
            begin = clock::ticks();
        } else {
            break;
        }
        // A peer that has closed will not come.
        let comes = if reading.is_some() { libc::POLLIN | libc::POLLPRI } else { 0 };
        let mut fds = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; 2 + LISTENERS];
        fds[0].fd = session::socket().unwrap_or(-1);
        fds[1] = libc::pollfd { fd, events: libc::POLLRDHUP | comes, revents: 0 };
        for (to, slot) in fds[2..].iter_mut().zip(&BACKLOGS) {
            to.fd = slot.load(Ordering::Relaxed);
        }
        // Who would sleep anyway does not keep others waiting.
        let looks = if reading.is_some() { 2 } else { fds.len() };
        let slice = match hope {
            Some(_) => SLICE_NS,
            None if is_alone() => ATTENTION_US * 1000,
            None => LISTENING_SLICE_NS,
        };
        let _ = sys::poll(&mut fds[..looks], Some(slice), core::ptr::null());
        session::pump();
        if reading.is_some() && call::restarts_before().1 != interrupts {
            return Err(Errno::INTR);
        }
        if fds[1].revents != 0 {
            break;
        }
        if fds[2..].iter().any(|backlog| backlog.revents & libc::POLLIN != 0) {
            // Whoever it is may wait for us before it comes to our peer. Another thread, or process, of ours has had its time.
            if are_kept_waiting {
                break;
            }
            are_kept_waiting = true;
            let _ = sys::poll(&mut fds[..2], Some(SLICE_NS), core::ptr::null());
        }
    }
    if waited && conn.block.life.has_been_open() {
        let _ =
            PATIENCE_US.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |patience| Some(more(patience)));
    } else if waited && !blocks {
        make_up_for(begin, clock::ticks());
    }
    Ok(conn)
}

/// Whether the peer may still ask for a lane before the connection's first byte, so that who sleeps should hear the broker.
fn may_be_asked(block: &Block) -> bool {
    is_possible(block) && block.life.phase().is_on_the_way() && eager::attention().is_some()
}

/// How long a call may wait that does not want to block, microseconds.
fn allowance(now: u64) -> u64 {
    let owed = MADE_UP_AT.load(Ordering::Relaxed).saturating_sub(now);
    SHORT_US.saturating_sub(clock::to_us(owed) / VAIN_PARTS)
}

/// It has waited in vain. No longer than it was to, as far as this goes: its process may have been stopped meanwhile.
fn make_up_for(begin: u64, end: u64) {
    let waited = end.saturating_sub(begin).min(clock::from_us(SHORT_US));
    let later = |at: u64| Some(at.max(end) + waited * VAIN_PARTS);
    let _ = MADE_UP_AT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, later);
}

/// The patience after a wait in vain,
fn less(patience: u64) -> u64 {
    (patience / 2).max(PEER_LEAST_US)
}

/// The patience after a wait that was not in vain: slowly, as one success among many waits in vain says little of the next.
fn more(patience: u64) -> u64 {
    (2 * patience).min(PEER_US)
}

/// A wait for `cause` ran out: what that says of the next one.
fn give_up(cause: Cause, patience: u64) {
    match cause {
        Cause::Broker => SILENT.store(true, Ordering::Relaxed),
        Cause::Peer => {
            // Threads that waited at the same time make one wait in vain.
            let next = less(patience);
            let _ = PATIENCE_US.compare_exchange(patience, next, Ordering::Relaxed, Ordering::Relaxed);
        }
        Cause::Ourselves => {}
    }
}

/// In a forked child: what was waited for is the parent's affair.
pub(crate) fn after_fork_in_child() {
    SILENT.store(false, Ordering::Relaxed);
    PATIENCE_US.store(PEER_US, Ordering::Relaxed);
    MADE_UP_AT.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patience_goes_and_comes_back_step_by_step() {
        assert_eq!(less(PEER_US), PEER_US / 2);
        assert_eq!(more(less(PEER_US)), PEER_US);
        assert_eq!((more(PEER_US), less(PEER_LEAST_US)), (PEER_US, PEER_LEAST_US));
        // One success in two: those that wait in vain in between stay as short as they were.
        assert!((0..10).fold(PEER_LEAST_US, |patience, _| less(more(patience))) == PEER_LEAST_US);
    }
}
