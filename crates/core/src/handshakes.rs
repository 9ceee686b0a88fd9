//! The handshakes of a process that are under way: plain data, driven by `upgrade`.

use shunpike_shm::Region;
use shunpike_wire::DmbToken;
use shunpike_wire::clc::handshake::{Client, NamedDmb as Named, Server};
use shunpike_wire::session::ConnId;

use crate::table::Conn;

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
    pub(crate) fd: i32,
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

    pub(crate) fn find(&mut self, id: ConnId) -> Option<&mut Option<Handshake>> {
        self.slots.iter_mut().find(|slot| slot.as_ref().is_some_and(|shake| shake.id == id))
    }
}
