//! What calls on a connection ask of its life, which lies above them: one table, filled at start-up.

use shunpike_wire::Reason;

use crate::table::Conn;
use shunpike_shm::once::Once;

/// The floors above, as those below may call them.
pub struct Above {
    /// A lane has closed: what follows once no lock is held.
    pub settle: fn(Conn, i32),
    /// Closes both lanes at the next byte boundary.
    pub revoke: fn(Conn, i32, Reason),
    /// Closes both lanes, and the connection stays on TCP.
    pub revoke_for_good: fn(Conn, i32, Reason),
    /// Closes both lanes for good, and what is unread goes to TCP: an epoll set that processes share tells of it.
    pub leave_to_sets: fn(Conn, i32),
    /// So many calls have moved bytes by TCP in one direction.
    pub moved: fn(Conn, i32, u16),
}

static ABOVE: Once<Above> = Once::with(&Above {
    settle: |_, _| {},
    revoke: |_, _, _| {},
    revoke_for_good: |_, _, _| {},
    leave_to_sets: |_, _| {},
    moved: |_, _, _| {},
});

/// Names them; at start-up, once.
pub(crate) fn attach(above: &'static Above) {
    ABOVE.set(above);
}

fn tell(what: impl FnOnce(&Above)) {
    what(ABOVE.get());
}

/// After a lane closed, with no lock held: when both directions are on TCP the epoll sets are the kernel's
/// again, and the connection may be nominated anew.
#[inline]
pub fn settle(conn: Conn, fd: i32) {
    if conn.block.life.is_unsettled() {
        settle_slowly(conn, fd);
    }
}

#[cold]
fn settle_slowly(conn: Conn, fd: i32) {
    tell(|above| (above.settle)(conn, fd));
}

/// Closes both lanes of a connection at the next byte boundary; it goes on on TCP.
#[cold]
pub(crate) fn revoke(conn: Conn, fd: i32, reason: Reason) {
    tell(|above| (above.revoke)(conn, fd, reason));
}

/// Closes both lanes of a connection for good: what it does now, a lane cannot do.
#[cold]
pub(crate) fn revoke_for_good(conn: Conn, fd: i32, reason: Reason) {
    tell(|above| (above.revoke_for_good)(conn, fd, reason));
}

/// Closes both lanes of a connection for good; what is unread goes to TCP.
#[cold]
pub(crate) fn leave_to_sets(conn: Conn, fd: i32) {
    tell(|above| (above.leave_to_sets)(conn, fd));
}

/// After a call on plain TCP that moved bytes, one of so many in its direction: perhaps it is time for a lane.
pub(crate) fn moved(conn: Conn, fd: i32, calls: u16) {
    tell(|above| (above.moved)(conn, fd, calls));
}
