//! What a fork has shared of a connection: the mappings of its lanes' memory, and its seat in a link group.
//!
//! Any process that holds the connection may end its lanes, and takes their addresses away from the block then. What the others have
//! mapped, and what the broker keeps for the one that opened them, stands in this list of theirs alone.

use core::sync::atomic::Ordering;

use shunpike_shm::arena::Block;

use crate::table::Conn;

/// Places for connections. One that finds none keeps what is mapped for it when another process ends it.
const MOST: usize = 4096;
/// Places that a connection may have.
const TRIES: usize = 8;

/// A seat in a link group.
#[derive(Copy, Clone)]
pub(crate) struct Seat {
    /// The connection's name towards the broker.
    pub(crate) name: u32,
    /// As in the block; 0 none.
    pub(crate) link: u32,
    pub(crate) slot: u16,
}

/// A mapping of a DMB in this process; all 0: none.
#[derive(Copy, Clone, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) address: usize,
    pub(super) token: u64,
}

const NOWHERE: Memory = Memory { address: 0, token: 0 };

#[derive(Copy, Clone)]
pub(crate) struct Shared {
    pub(crate) conn: Conn,
    seat: Seat,
    /// The receiving direction's, ours; the sending one's, the peer's.
    memory: [Memory; 2],
    /// Not 0: the broker is another process's to tell.
    told: u32,
}

impl Seat {
    /// What the block has now.
    fn of(block: &Block) -> Self {
        Self {
            name: block.name.load(Ordering::Relaxed),
            link: block.link.load(Ordering::Relaxed),
            slot: block.slot.load(Ordering::Relaxed),
        }
    }

    fn is_none(&self) -> bool {
        self.link == 0
    }

    /// Whether the block's connection has it now.
    pub(crate) fn is_of(&self, block: &Block) -> bool {
        self.is_at(Self::of(block))
    }

    /// Whether it is the same memory, by whatever name.
    fn is_at(&self, other: Self) -> bool {
        (self.link, self.slot) == (other.link, other.slot)
    }
}

impl Memory {
    /// What the block has now.
    fn all_of(block: &Block) -> [Self; 2] {
        block.halves().map(|half| {
            // Acquire pairs with the Release in `extend`: who finds what another process has mapped finds who has left before.
            let now =
                Self { token: half.token.load(Ordering::Acquire), address: half.dmb.load(Ordering::Acquire) };
            if now.token == 0 || now.address == 0 { NOWHERE } else { now }
        })
    }
}

impl Shared {
    fn is_empty(&self) -> bool {
        self.seat.is_none() && self.memory == [NOWHERE; 2]
    }

    /// Whether this is what the connection has, as far as it has something.
    fn is_of(&self, conn: Conn, seat: Seat, memory: [Memory; 2]) -> bool {
        let agrees =
            |(old, new): (&Memory, &Memory)| *old == NOWHERE || *new == NOWHERE || old.token == new.token;
        self.conn == conn
            && (self.seat.is_none() || seat.is_none() || self.seat.is_at(seat))
            && self.memory.iter().zip(&memory).all(agrees)
    }
}

pub(super) struct Shares {
    items: [Option<Shared>; MOST],
    count: usize,
}

impl Shares {
    pub(super) const fn new() -> Self {
        Self { items: [None; MOST], count: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The places that a connection with this block may have.
    fn places(block: &Block) -> impl Iterator<Item = usize> + Clone {
        let first = core::ptr::from_ref(block).addr() / size_of::<Block>();
        (0..TRIES).map(move |more| (first + more) % MOST)
    }

    /// Does something with each of the block's, of any use of it; who has nothing then goes.
    fn change(&mut self, block: &Block, mut f: impl FnMut(&mut Shared)) {
        if self.is_empty() {
            return;
        }
        for at in Self::places(block) {
            if self.items[at].is_some_and(|shared| core::ptr::eq(shared.conn.block, block)) {
                self.change_at(at, &mut f);
            }
        }
    }

    fn change_at(&mut self, at: usize, f: impl FnOnce(&mut Shared)) {
        let Some(shared) = &mut self.items[at] else { return };
        f(shared);
        if shared.is_empty() {
            self.items[at] = None;
            self.count -= 1;
        }
    }

    /// A child is about to share what the connection has. `own`: this process's bit among its holders.
    pub(super) fn note(&mut self, conn: Conn, own: u64) {
        let block = conn.block;
        let (memory, seat) = (Memory::all_of(block), Seat::of(block));
        // Only now: what is mapped by a process that has it alone is nothing of ours, and we have left it then.
        let is_ours = conn.current() && block.holders.load(Ordering::Acquire) & own != 0;
        if !is_ours || seat.is_none() && memory == [NOWHERE; 2] {
            return;
        }
        let places = Self::places(block);
        let known = |&at: &usize| self.items[at].is_some_and(|shared| shared.is_of(conn, seat, memory));
        let free = |&at: &usize| self.items[at].is_none();
        let Some(at) = places.clone().find(known).or_else(|| places.clone().find(free)) else { return };
        match &mut self.items[at] {
            Some(shared) => {
                // What it has got since it was noted. Of the rest a process that has gone on alone may have moved its own.
                for (old, new) in shared.memory.iter_mut().zip(memory).filter(|(old, _)| **old == NOWHERE) {
                    *old = new;
                }
                if shared.seat.is_none() && shared.told == 0 {
                    shared.seat = seat;
                }
            }
            none => {
                *none = Some(Shared { conn, seat, memory, told: 0 });
                self.count += 1;
            }
        }
    }

    /// The mapping of a DMB that is let go of: where it is here, and whether the broker is another process's to tell.
    pub(super) fn take(&mut self, block: &Block, token: u64) -> Option<(usize, bool)> {
        let mut found = None;
        self.change(block, |shared| {
            let told = shared.told != 0;
            for memory in shared.memory.iter_mut().filter(|memory| token != 0 && memory.token == token) {
                found = Some((memory.address, told));
                *memory = NOWHERE;
            }
        });
        found
    }

    /// A DMB is mapped elsewhere now.
    pub(super) fn moved(&mut self, block: &Block, token: u64, address: usize) {
        self.change(block, |shared| {
            for memory in shared.memory.iter_mut().filter(|memory| memory.token == token) {
                memory.address = address;
            }
        });
    }

    /// This process takes the connection off its link group itself.
    pub(super) fn parted(&mut self, block: &Block, seat: (u32, u16)) {
        self.change(block, |shared| {
            if (shared.seat.link, shared.seat.slot) == seat {
                shared.seat.link = 0;
            }
        });
    }

    /// The next one at or behind `at`, which is behind it then.
    pub(super) fn next(&self, at: &mut usize) -> Option<Shared> {
        let rest = self.items.get(*at..)?.iter();
        let (skipped, found) = rest.enumerate().find_map(|(skipped, item)| Some((skipped, (*item)?)))?;
        *at += skipped + 1;
        Some(found)
    }

    /// Gives up what the connection has no more, or all of it: its memory, and whether the broker knows, to `each`; its seat is returned.
    pub(super) fn give_up(
        &mut self,
        conn: Conn,
        all: bool,
        mut each: impl FnMut(usize, Memory, bool),
    ) -> Option<Seat> {
        let (block, mut left) = (conn.block, None);
        let now = Seat::of(block);
        // A nomination of ours may go by the name of what is over.
        let may_part = all || !block.life.phase().is_on_the_way();
        self.change(block, |shared| {
            if shared.conn != conn {
                return;
            }
            let told = shared.told != 0;
            for (which, (memory, half)) in shared.memory.iter_mut().zip(block.halves()).enumerate() {
                let is_over = all || half.token.load(Ordering::Acquire) != memory.token;
                // Not while its address is there: who is late could still find it.
                if *memory != NOWHERE && is_over && half.dmb.load(Ordering::Acquire) != memory.address {
                    each(which, *memory, told);
                    *memory = NOWHERE;
                }
            }
            if !shared.seat.is_none() && left.is_none() && (all || may_part && !shared.seat.is_at(now)) {
                left = Some(shared.seat);
                shared.seat.link = 0;
            }
        });
        left
    }

    /// In a forked child: its parent has the seats, and tells the broker.
    pub(super) fn are_parents(&mut self) {
        for at in 0..if self.count == 0 { 0 } else { MOST } {
            self.change_at(at, |shared| (shared.seat.link, shared.told) = (0, 1));
        }
    }
}
