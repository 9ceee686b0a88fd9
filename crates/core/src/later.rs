//! Connections that wait to be nominated.

use crate::table::Conn;

/// So many at most; a connection beyond waits for its next call.
pub(crate) const MOST: usize = 64;

/// Connections to be nominated when that becomes possible.
pub struct Later {
    slots: [Option<(Conn, i32)>; MOST],
}

impl Later {
    /// None.
    pub(crate) const fn new() -> Self {
        Self { slots: [None; MOST] }
    }

    /// Forgets all, as `Handshakes::clear` does.
    pub(crate) fn clear(&mut self) {
        self.slots.iter_mut().filter(|slot| slot.is_some()).for_each(|slot| *slot = None);
    }

    /// One more; says whether there was room.
    pub(crate) fn add(&mut self, conn: Conn, fd: i32) -> bool {
        let free = self.slots.iter_mut().find(|slot| slot.is_none());
        free.map(|free| *free = Some((conn, fd))).is_some()
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.slots.iter().all(Option::is_none)
    }

    pub(crate) fn take(&mut self, index: usize) -> Option<(Conn, i32)> {
        self.slots.get_mut(index)?.take()
    }

    /// The connection is no more at `fd`, but at `other`, if anywhere.
    pub(crate) fn moved(&mut self, conn: Conn, fd: i32, other: Option<i32>) {
        let its = self.slots.iter_mut().filter(|slot| **slot == Some((conn, fd)));
        its.for_each(|slot| *slot = other.map(|other| (conn, other)));
    }
}
