//! The tenants of an arena: the processes of the tree that its blocks are shared with.
//!
//! An arena has a list of *tenants*, the processes that its blocks are shared with by fork: number 0 made it. A block
//! has a bit for each of them. Each tenant has locked its own byte of the arena's memfd by fcntl(2): the kernel lets go of
//! that lock when the process ends or executes another program, in whatever way, and not before (`sys::lock_byte`: it is neither
//! inherited by fork nor touched by what the process or a child closes). So whoever wants to know asks, and clears the bits of
//! those who are gone. Who cannot ask, as the program has closed the memfd, takes nobody for gone.

use core::sync::atomic::{AtomicU32, Ordering};

use rustix::fd::AsRawFd;
use shunpike_shm::arena::{Arena, TENANTS, tenant};

use crate::sys;
use crate::tls::critical;

/// The number of those who found all others taken: nobody can tell them apart, nor that one of them is gone.
pub const CROWD: u8 = 63;
// The bit between is that of a block which nobody holds yet.
const _: () = assert!(TENANTS < CROWD as usize);

/// Takes a number for a child that is about to be forked.
pub fn reserve(arena: &Arena, own: u8) -> u8 {
    let header = arena.header();
    let _guard = header.tenants_lock.lock(critical());
    let free = || {
        let is_free = |state: &AtomicU32| state.load(Ordering::Relaxed) == tenant::NONE;
        header.tenants.iter().position(is_free)
    };
    let number = free().or_else(|| {
        evict_dead(arena, own, u64::MAX);
        free()
    });
    let Some(number) = number else { return CROWD };
    header.tenants[number].store(tenant::EXPECTED, Ordering::Relaxed);
    number as u8
}

/// After fork(): who it is that was given `number`; nobody, where fork() failed.
pub fn expect(arena: &Arena, number: u8, child: Option<u32>) {
    let Some(state) = arena.header().tenants.get(usize::from(number)) else { return };
    match child {
        // The child may be here already.
        Some(pid) => {
            let known = pid << 2 | tenant::EXPECTED;
            let _ = state.compare_exchange(tenant::EXPECTED, known, Ordering::Relaxed, Ordering::Relaxed);
        }
        None => {
            let _guard = arena.header().tenants_lock.lock(critical());
            forget(arena, 1 << number);
        }
    }
}

/// The calling process is tenant `number` from now on. Where it cannot lock its byte it stays one for ever.
pub fn move_in(arena: &Arena, number: u8) {
    if let Some(state) = arena.header().tenants.get(usize::from(number))
        && let Some(fd) = arena.own_fd()
        && sys::lock_byte(fd.as_raw_fd(), i64::from(number))
    {
        // Release pairs with the Acquire in `evict_dead`: who sees it here finds the lock.
        state.store(tenant::HERE, Ordering::Release);
    }
}

/// Clears the bits of those among `asked` who are gone, in all blocks. Under the tenants' lock.
pub(crate) fn evict_dead(arena: &Arena, own: u8, asked: u64) {
    let Some(fd) = arena.own_fd() else { return };
    let gone = |&number: &usize| {
        if number == usize::from(own) || asked >> number & 1 == 0 {
            return false;
        }
        let state = arena.header().tenants[number].load(Ordering::Acquire);
        match state & tenant::STATE {
            tenant::HERE => sys::byte_locked(fd.as_raw_fd(), number as i64) == Some(false),
            // Killed before it could move in.
            tenant::EXPECTED => state > tenant::STATE && sys::has_ended(state >> 2),
            _ => false,
        }
    };
    let dead = (0..TENANTS).filter(gone).fold(0u64, |bits, number| bits | 1 << number);
    if dead != 0 {
        forget(arena, dead);
    }
}

/// Takes numbers back, and their bits of all blocks. Under the tenants' lock.
fn forget(arena: &Arena, bits: u64) {
    for index in 0..arena.header().high.load(Ordering::Relaxed) {
        arena.block(index).holders.fetch_and(!bits, Ordering::AcqRel);
    }
    for number in (0..TENANTS).filter(|number| bits >> number & 1 != 0) {
        arena.header().tenants[number].store(tenant::NONE, Ordering::Relaxed);
    }
}

/// Takes back the blocks that only processes hold that are gone.
pub fn evict_all_dead(arena: &Arena, own: u8) {
    let _guard = arena.header().tenants_lock.lock(critical());
    evict_dead(arena, own, u64::MAX);
}
