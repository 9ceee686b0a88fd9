//! Names of sessions, and of the ends of their connections.

use shunpike_wire::session::ConnId;

/// Names a session with the broker; never used twice in a broker's life.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct SessionId(pub u64);

/// One end of a connection: a session, and the end's name within it.
#[derive(Copy, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Party {
    /// The session.
    pub session: SessionId,
    /// The end.
    pub conn: ConnId,
}

impl Party {
    /// All ends that a session can have.
    pub fn all_of(session: SessionId) -> core::ops::RangeInclusive<Party> {
        Party { session, conn: ConnId(0) }..=Party { session, conn: ConnId(u64::MAX) }
    }
}

impl core::fmt::Display for Party {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{}:{:x}", self.session.0, self.conn.0)
    }
}
