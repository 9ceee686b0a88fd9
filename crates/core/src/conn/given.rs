//! Connections that other programs got by exec or posix_spawn come back when those have let go of them: a child that closes
//! what it does not know (Java's) has no use for them.
//!
//! A block lists the processes that got it. When none of them has the socket any more, nor anybody who was made since, it may
//! be nominated again; bytes that they moved meanwhile are found by the proof. A descriptor that such a process passes on by
//! SCM_RIGHTS is not seen.

use core::sync::atomic::{AtomicU32, Ordering};
use shunpike_shm::lifecycle::{Event, Phase};

use shunpike_shm::arena::{Block, mode};
use shunpike_wire::Reason;

use crate::table::{self, Conn, Entry};
use crate::{clock, eager, link, options, proc, process, state, sys};

/// In the list: nobody can say who has got it.
const ANYBODY: u32 = u32::MAX;
/// With a thread's number: the child that it is about to spawn.
const SPAWNING: u32 = 1 << 31;
/// Whether they have let go is looked at after this long, microseconds, doubled each time,
const LOOK_US: u64 = 20_000;
/// It is doubled so many times.
const DOUBLINGS: u32 = 6;

/// The calling thread, as long as the child that it spawns has no number.
pub(super) fn child_to_be() -> u32 {
    SPAWNING | rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// Nobody can say who has it from now on.
pub(super) fn to_anybody(block: &Block) {
    block.given[0].store(ANYBODY, Ordering::Relaxed);
}

/// Whether anybody got it who has not let go of it, as far as is known.
pub(super) fn is_listed(block: &Block) -> bool {
    block.given.iter().any(|slot| slot.load(Ordering::Relaxed) != 0)
}

/// `child` has it, too.
pub(super) fn to_child(block: &Block, fd: i32, child: u32) {
    let [first, ..] = &block.given;
    let is_known = |slot: &AtomicU32| slot.load(Ordering::Relaxed) == child;
    if first.load(Ordering::Relaxed) == ANYBODY || block.given.iter().any(is_known) {
        return;
    }
    let is_new = !is_listed(block);
    if is_new && block.life.phase().is_left() {
        // For another reason, which lasts.
        return to_anybody(block);
    }
    let mut places = block.given.iter();
    if !places.any(|slot| slot.compare_exchange(0, child, Ordering::Relaxed, Ordering::Relaxed).is_ok()) {
        // Those that were made by others are looked for from the first one on: it stays.
        let has_let_go = |slot: &&AtomicU32| lets_go(slot.load(Ordering::Relaxed), fd);
        match block.given.iter().skip(1).find(has_let_go) {
            Some(slot) => slot.store(child, Ordering::Relaxed),
            None => return to_anybody(block),
        }
    }
    block.attempts.store(0, Ordering::Relaxed);
    block.retry_at.store(clock::ticks() + clock::from_us(LOOK_US), Ordering::Relaxed);
}

/// The calling thread's child was spawned, or none was.
pub fn spawned(child: Option<u32>) {
    let to_be = child_to_be();
    for (_, entry) in table::all() {
        let Entry::Conn(conn) = entry else { continue };
        for slot in &conn.block.given {
            let is = child.unwrap_or(0);
            let _ = slot.compare_exchange(to_be, is, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

/// After a call that moved bytes by TCP. A connection that was given away, and is this process's alone again, is taken back. Says whether
/// somebody got it while that was done: then it is to be handed over once more.
#[inline]
pub(super) fn look(conn: Conn, fd: i32) -> bool {
    let block = conn.block;
    block.given[0].load(Ordering::Relaxed) != ANYBODY
        && block.life.is(Phase::Given)
        && clock::ticks() >= block.retry_at.load(Ordering::Relaxed)
        && look_closely(conn, fd)
}

#[cold]
fn look_closely(conn: Conn, fd: i32) -> bool {
    let block = conn.block;
    let is_plain = state::modes(block) == (mode::PLAIN, mode::PLAIN);
    let listed = block.given.each_ref().map(|slot| slot.load(Ordering::Relaxed));
    let emptied = |at: usize| {
        block.given[at].compare_exchange(listed[at], 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    };
    // The first one last: who was made before those that stay is looked for from it on.
    let is_free =
        is_plain && link::of(block).is_none() && is_back(&listed, fd) && (1..listed.len()).all(emptied);
    if !is_free {
        let tries = block.attempts.load(Ordering::Relaxed).min(DOUBLINGS);
        block.attempts.store(tries + 1, Ordering::Relaxed);
        block.retry_at.store(clock::ticks() + clock::from_us(LOOK_US << tries), Ordering::Relaxed);
        return false;
    }
    block.attempts.store(0, Ordering::Relaxed);
    block.retry_at.store(0, Ordering::Relaxed);
    eager::taken_back(block);
    // They may have set options, and ended its reading.
    options::ask_the_kernel();
    block.notices.option_changed();
    if sys::tcp_shows(fd, libc::POLLRDHUP) != 0 && sys::peer_may_send(fd) {
        block.life.end_reading();
    }
    state::note(block, Reason::NotNominated);
    block.life.on(Event::TakeBack);
    // Another thread gives it away by a place in the list, then by its event. An event before ours was lost, and its place is seen here; one
    // after ours counts by itself.
    let is_same = emptied(0);
    !is_same || is_listed(block)
}

/// Whether process `pid` has the socket at `fd` no more.
fn lets_go(pid: u32, fd: i32) -> bool {
    pid & SPAWNING == 0 && inode(fd).is_some_and(|inode| proc::holds_socket(pid, inode) == Some(false))
}

fn inode(fd: i32) -> Option<u64> {
    rustix::fs::fstat(sys::borrowed(fd)).ok().map(|stat| stat.st_ino)
}

fn is_back(listed: &[u32], fd: i32) -> bool {
    let Some(inode) = inode(fd) else { return false };
    if !proc::is_ours() || sys::pid() != process::pid() {
        return false;
    }
    // Our own number: an exec of this very process has failed.
    let mut others = listed.iter().copied().filter(|&pid| pid != 0 && pid != process::pid());
    let Some(first) = others.next() else { return true };
    lets_go(first, fd) && others.all(|pid| lets_go(pid, fd)) && proc::none_since_holds(first, inode)
}
