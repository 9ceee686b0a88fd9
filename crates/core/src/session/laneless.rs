//! A session with a broker whose lanes are of another version than ours, as after an upgrade: the broker lists us, and can tell us to
//! give up the lanes that we have from an earlier one. There are no new lanes, and nothing is asked for.

use core::sync::atomic::Ordering;

use shunpike_shm::arena::mode;
use shunpike_wire::Reason;
use shunpike_wire::session::{ConnId, FromBroker, ToBroker};

use super::{Fds, RETRY_US, SOCKET, Session, tell};
use crate::look::{LATER, look_later};
use crate::table::{self, Entry};
use crate::{clock, process};

impl Session {
    /// Whether this is such a session.
    pub(super) fn is_laneless(&self) -> bool {
        self.socket.is_some() && self.absence == Reason::VersionDiffers
    }

    /// The broker's welcome was of another version.
    pub(super) fn begin_without_lanes(&mut self) {
        self.absence = Reason::VersionDiffers;
        self.told = None;
        // Nobody has to wait for what comes there: the page counts it.
        SOCKET.store(-1, Ordering::Relaxed);
        LATER.store(false, Ordering::Relaxed);
        tell(|above| (above.unanswered)());
        self.tell_what_we_have();
    }

    /// A message of control; all others are passed over.
    pub(super) fn take_control(&mut self, message: FromBroker, fds: Fds) {
        if matches!(message, FromBroker::Revoke { conn: ConnId(0) }) {
            tell(|above| (above.take)(self, message, fds));
            look_later();
        }
    }

    /// Lanes that were revoked end when they are read: says so then.
    pub(super) fn see_lanes_end(&mut self) {
        self.tell_what_we_have();
        LATER.store(has_lanes(), Ordering::Relaxed);
    }

    /// A connection would like a lane: in place of asking, says what there is, if that has changed.
    pub(super) fn ask_without_lanes(&mut self) {
        if clock::ticks() >= self.retry_at {
            self.retry_at = clock::ticks() + clock::from_us(RETRY_US);
            self.read_all();
            self.tell_what_we_have();
        }
    }

    fn tell_what_we_have(&mut self) {
        let now = connections();
        if self.is_laneless() && self.told != Some(now) {
            let (lanes, plain) = now;
            if self.offer(&ToBroker::Lanes { lanes, plain }, &[]) {
                self.told = Some(now);
            }
        }
    }
}

/// Whether this process has any.
pub(super) fn has_lanes() -> bool {
    connections().0 > 0
}

/// Watched connections of this process: those of which a direction is on a lane, and others.
fn connections() -> (u32, u32) {
    let is_ours = |entry: &Entry| matches!(entry, Entry::Conn(conn) if conn.block.pid.load(Ordering::Relaxed) == process::pid());
    let has_lane = |entry: &Entry| {
        let Entry::Conn(conn) = entry else { return false };
        conn.block.halves().iter().any(|half| half.mode.load(Ordering::Relaxed) == mode::LANE)
    };
    let ours = table::all().map(|(_, entry)| entry).filter(is_ours);
    ours.fold(
        (0, 0),
        |(lanes, plain), entry| {
            if has_lane(&entry) { (lanes + 1, plain) } else { (lanes, plain + 1) }
        },
    )
}
