//! When a run on lanes differs from one on TCP.

use std::fmt;

use crate::op::{Call, Op};
use crate::stage::{Outcome, Run, Trouble};

/// A call that TCP answers at once takes no longer than this on lanes, beyond what TCP took. Shorter than the shortest of TCP's own
/// timers (delayed ACK, 40 ms), longer than a busy machine's time slices.
const LATE_NS: u64 = 30_000_000;

/// How a program failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    Said { at: usize, tcp: String, lane: String },
    Late { at: usize, tcp_us: u64, lane_us: u64 },
    Trouble { at: usize, trouble: Trouble },
}

impl Difference {
    pub fn at(&self) -> usize {
        match self {
            Self::Said { at, .. } | Self::Late { at, .. } | Self::Trouble { at, .. } => *at,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Said { at, tcp, lane } => write!(f, "call {at}: TCP says {tcp}, a lane {lane}"),
            Self::Late { at, tcp_us, lane_us } => {
                write!(f, "call {at} took {tcp_us} us on TCP, {lane_us} us on a lane")
            }
            Self::Trouble { at, trouble: Trouble::Hangs } => write!(f, "call {at} hangs"),
            Self::Trouble { at, trouble: Trouble::Died(how) } => {
                write!(f, "a program died at call {at}: {how}")
            }
        }
    }
}

/// The first call in which two runs differ.
pub fn difference(program: &[Op], tcp: &Run, lane: &Run) -> Option<Difference> {
    for (at, op) in program.iter().enumerate() {
        let (Some(tcp), Some(lane)) = (&tcp[at], &lane[at]) else { continue };
        if told(op, tcp) != told(op, lane) {
            return Some(Difference::Said {
                at,
                tcp: format!("{:?}", tcp.said),
                lane: format!("{:?}", lane.said),
            });
        }
        if lane.ns > tcp.ns + LATE_NS {
            return Some(Difference::Late { at, tcp_us: tcp.ns / 1000, lane_us: lane.ns / 1000 });
        }
    }
    None
}

/// What of an outcome must be the same.
fn told(op: &Op, outcome: &Outcome) -> Vec<crate::calls::Said> {
    let mut said = outcome.said.clone();
    if matches!(op.call, Call::Dup | Call::Open { .. }) {
        said.iter_mut().for_each(|said| said.more.clear());
    }
    said
}
