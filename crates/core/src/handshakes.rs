//! The handshakes of a process that are under way: plain data, driven by `upgrade`.

use core::sync::atomic::Ordering;

use shunpike_shm::Region;
use shunpike_wire::DmbToken;
use shunpike_wire::clc::handshake::{Client, NamedDmb as Named, Server};
use shunpike_wire::session::ConnId;

use crate::table::{self, Conn};

/// Handshakes of a process at a time; a connection beyond waits for its next turn.
pub(crate) const MOST: usize = 256;

/// One side of it.
#[derive(Copy, Clone)]
pub(crate) enum Machine {
    Client(Client),
    Server(Server),
}

/// A handshake under way.
#[derive(Copy, Clone)]
pub struct Handshake {
    pub(crate) conn: Conn,
    pub(crate) id: ConnId,
    pub(crate) machine: Machine,
    /// Our DMB, registered or about to be; not once it is granted.
    pub(crate) own: Option<Region>,
    /// Capacity of its ring.
    pub(crate) own_ring: u32,
    /// Forks of this process before it was mapped.
    pub(crate) own_forks: u32,
    /// It has served another connection, and the broker has yet to agree.
    pub(crate) used: bool,
    /// Answer to Register that waits until no thread is inside a kernel call on the receiving side.
    pub(crate) registered: Option<Named>,
    /// The peer's DMB.
    pub(crate) peer: Option<Region>,
    /// Capacity of its ring.
    pub(crate) peer_ring: u32,
    /// Forks of this process before that was mapped.
    pub(crate) peer_forks: u32,
    /// Its name.
    pub(crate) peer_token: DmbToken,
    pub(crate) deadline: u64,
}

impl Handshake {
    /// One that begins.
    pub(crate) fn begin(conn: Conn, id: ConnId, machine: Machine, deadline: u64) -> Self {
        Self {
            conn,
            id,
            machine,
            own: None,
            own_ring: 0,
            own_forks: 0,
            used: false,
            registered: None,
            peer: None,
            peer_ring: 0,
            peer_forks: 0,
            peer_token: DmbToken(0),
            deadline,
        }
    }

    /// Its descriptor now: the program may have given it another number, and this one to another socket, since it began.
    pub(crate) fn fd(&self) -> i32 {
        let noted = self.conn.block.fd.load(Ordering::Relaxed) as i32;
        // A child that shares the block may have noted a number of its own there.
        let is_its = table::conn(noted) == Some(self.conn);
        if is_its { noted } else { table::names_of(self.conn).next().unwrap_or(noted) }
    }
}

/// The handshakes of a process.
pub struct Handshakes {
    pub(crate) slots: [Option<Handshake>; MOST],
}

impl Handshakes {
    /// None.
    pub(crate) const fn new() -> Self {
        Self { slots: [None; MOST] }
    }

    /// Forgets all. Pages that have none are not written to: after a fork each would be copied.
    pub(crate) fn clear(&mut self) {
        self.slots.iter_mut().filter(|slot| slot.is_some()).for_each(|slot| *slot = None);
    }

    /// A free place for one whose peer has those that `is_its`. A peer may be slow on purpose: where many are taken it gets fifteen times
    /// as many as it leaves to others. A crowd of one peer's has nearly all of them, since each that has to come again costs it time.
    pub(crate) fn place_for(&self, is_its: impl Fn(&Handshake) -> bool) -> Option<usize> {
        let place = self.slots.iter().position(Option::is_none)?;
        if place < MOST / 4 {
            return Some(place);
        }
        let taken = || self.slots.iter().flatten();
        let its = taken().filter(|shake| is_its(shake)).count();
        (its < 15 * (MOST - taken().count())).then_some(place)
    }

    /// One that has waited for too long at `now`.
    pub(crate) fn overdue(&self, now: u64) -> Option<ConnId> {
        self.slots.iter().flatten().find(|shake| now > shake.deadline).map(|shake| shake.id)
    }

    pub(crate) fn find(&mut self, id: ConnId) -> Option<&mut Option<Handshake>> {
        self.slots.iter_mut().find(|slot| slot.as_ref().is_some_and(|shake| shake.id == id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_slow_leaves_places_to_others() {
        let _alone = crate::device::tests::alone();
        let mut all = Handshakes::new();
        let conn = crate::process::allocate().map(Conn::new).expect("a block");
        // Each as often as it can, and one more.
        let fill = |all: &mut Handshakes, peer: u64| {
            let is_its = |shake: &Handshake| shake.id == ConnId(peer);
            while let Some(place) = all.place_for(is_its) {
                let machine = Machine::Server(Server::new(false, 0));
                all.slots[place] = Some(Handshake::begin(conn, ConnId(peer), machine, 0));
            }
            all.slots.iter().flatten().filter(|shake| is_its(shake)).count()
        };
        assert_eq!([1, 2, 3, 4].map(|peer| fill(&mut all, peer)), [240, 15, 1, 0]);
    }
}
