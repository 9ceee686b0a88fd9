//! Who holds a connection: the tenants of its arena that have a descriptor of it, a bit for each in its block.

use core::sync::atomic::Ordering;
use shunpike_shm::lifecycle::Event;

use shunpike_shm::arena::Block;

use crate::table::{self, Conn, Entry};
use crate::tenants::{CROWD, evict_dead};
use crate::tls::critical;
use crate::{clock, process, state};

/// How often the kernel is asked about the others for the length of a sleep, microseconds.
const ASK_US: u64 = 20_000;

/// Whether these holders are one process at most. Those of the crowd have one bit for all of them.
pub(crate) fn are_one(holders: u64) -> bool {
    holders & 1 << CROWD == 0 && holders.count_ones() <= 1
}

/// Whether no other process holds the connection. The kernel is asked about those who seem to.
#[inline]
pub fn alone(block: &Block) -> bool {
    are_one(block.holders.load(Ordering::Acquire)) || is_last(block)
}

/// Whether all other processes that had the connection are gone.
#[cold]
fn is_last(block: &Block) -> bool {
    let alone = process::with_home(block, |arena, own| {
        let _guard = arena.header().tenants_lock.lock(critical());
        evict_dead(arena, own, block.holders.load(Ordering::Acquire));
        are_one(block.holders.load(Ordering::Acquire))
    });
    alone == Some(true)
}

/// As `alone`, the other way round, for who asks often: an answer may be some milliseconds old.
#[inline]
pub fn shared(block: &Block) -> bool {
    !are_one(block.holders.load(Ordering::Relaxed)) && shared_slowly(block)
}

#[cold]
fn shared_slowly(block: &Block) -> bool {
    let now = clock::ticks();
    if now.wrapping_sub(block.asked.load(Ordering::Relaxed)) < clock::from_us(ASK_US) {
        return true;
    }
    block.asked.store(now, Ordering::Relaxed);
    !alone(block)
}

/// This process's bit of a block's holders; `None` among the crowd.
#[inline]
pub(crate) fn bit(block: &Block) -> Option<u64> {
    if process::index(block).is_some() { Some(1) } else { inherited_bit(block) }
}

#[cold]
fn inherited_bit(block: &Block) -> Option<u64> {
    process::with_home(block, |_, own| own).filter(|&own| own != CROWD).map(|own| 1 << own)
}

/// Whether this process is among the connection's holders.
pub fn holds(block: &Block) -> bool {
    bit(block).is_none_or(|bit| block.holders.load(Ordering::Acquire) & bit != 0)
}

/// This process has no descriptor of the connection any more. True: nor has any other; the caller ends it and then
/// calls `Block::free`.
#[inline]
#[must_use]
pub fn leave(block: &Block) -> bool {
    bit(block).is_some_and(|bit| block.leave(bit))
}

/// Nobody holds the block, which nobody has taken for another connection yet: this process does from now on, to end what it was. Says
/// whether it could.
pub(crate) fn take_over(block: &Block) -> bool {
    // Acquire, as in `claim`: the last holder's writes come before ours.
    bit(block).is_some_and(|own| {
        block.holders.compare_exchange(0, own, Ordering::Acquire, Ordering::Relaxed).is_ok()
    })
}

/// The connection with its state in our own arena, which is where the broker looks: one that was accepted
/// before a fork and is ours alone since moves over. `None` when no block is free.
pub fn made_ours(conn: Conn, fd: i32) -> Option<Conn> {
    let old = conn.block;
    if process::index(old).is_some() {
        return Some(conn);
    }
    let block = process::allocate()?;
    let server = !state::opener(old);
    block.role.store(u8::from(server), Ordering::Relaxed);
    block.nonblock.store(old.nonblock.load(Ordering::Relaxed), Ordering::Relaxed);
    block.corked.store(old.corked.load(Ordering::Relaxed), Ordering::Relaxed);
    block.tells_unread.store(old.tells_unread.load(Ordering::Relaxed), Ordering::Relaxed);
    block.kept.store(old.kept.load(Ordering::Relaxed), Ordering::Relaxed);
    block.dups.store(old.dups.load(Ordering::Relaxed), Ordering::Relaxed);
    block.fd.store(fd as u32, Ordering::Relaxed);
    if old.life.has_ended_reading() {
        block.life.end_reading();
    }
    for (to, from) in block.halves().into_iter().zip(old.halves()) {
        to.go_on_from(from);
    }
    block.notices.move_from(&old.notices);
    if let Some(header) = process::header() {
        header.handled[usize::from(server)].fetch_add(1, Ordering::Relaxed);
    }
    let moved = Conn::new(block);
    table::set(fd, Entry::Conn(moved));
    if block.dups.load(Ordering::Relaxed) != 0 {
        // One that was left behind would go on by TCP beside the lane.
        for name in table::names_of(conn) {
            table::set(name, Entry::Conn(moved));
        }
    }
    if leave(old) {
        old.life.on(Event::Close);
        old.free();
    }
    Some(moved)
}
