//! When a run on lanes differs from one on TCP.

use std::fmt;

use crate::op::{Call, Child, End, LookBy, Meddle, Op, Opt, RecvBy, SendBy, WaitBy};
use crate::stage::{Outcome, Run};
use crate::team::Trouble;

/// How much longer than on TCP a call may take on lanes, and less where TCP's own slowest calls of this run show that the machine is quiet.
#[derive(Copy, Clone)]
pub struct Late {
    /// Where it is answered at once,
    pub at_once: u64,
    /// ... and where it takes its time, as a wait, a fork or an exchange of many calls does.
    pub otherwise: u64,
}

impl Late {
    /// The most: shorter than the shortest of TCP's own timers (delayed ACK, 40 ms), longer than a busy machine's time slices.
    pub const MOST_NS: u64 = 30_000_000;
    pub const MOST: Self = Self { at_once: Self::MOST_NS, otherwise: Self::MOST_NS };
}

/// Whether nobody waits in a call, and it ended no other wait: who waits hears of what only TCP tells up to 10 ms later (COMPLIANCE.md).
pub fn is_at_once(call: Call, outcome: &Outcome) -> bool {
    let is_alone = outcome.said.len() == 1;
    match call {
        Call::Send(..) | Call::Look(_) | Call::Set(_) | Call::Register(_) => is_alone,
        Call::Recv(by, _) => is_alone && !by.may_wait(),
        _ => false,
    }
}

/// TCP's delayed ACK, nearly.
const TIMER_US: u64 = 36_000;
/// CPU time that a call may take beyond TCP's: some spins, no loop.
const BURNT_NS: u64 = 8_000_000;
/// How much earlier than on TCP a wait with a limit may end: how far clocks are apart.
const EARLY_NS: u64 = 1_000_000;

/// How a program failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Difference {
    Said {
        at: usize,
        tcp: String,
        lane: String,
        /// Where the connection stood: phase, mode of the receiving half, mode of the sending half.
        state: Option<[u16; 3]>,
    },
    Late {
        at: usize,
        tcp_us: u64,
        lane_us: u64,
    },
    /// A wait that nothing ended, before its time.
    Early {
        at: usize,
        lane_us: u64,
    },
    Burnt {
        at: usize,
        tcp_us: u64,
        lane_us: u64,
    },
    Trouble {
        at: usize,
        trouble: Trouble,
    },
}

impl Difference {
    /// Whether a busy machine alone can show it.
    pub fn is_of_time(&self) -> bool {
        matches!(self, Self::Late { .. } | Self::Early { .. } | Self::Burnt { .. })
    }

    /// Whether it is as large as one that a timer of TCP's makes, and TCP's own calls never took longer than `tcp_ns`.
    pub fn is_a_timers(&self, tcp_ns: u64) -> bool {
        matches!(self, Self::Late { lane_us, .. } if lane_us.saturating_sub(tcp_ns / 1000) > TIMER_US)
    }

    pub fn is_hang(&self) -> bool {
        matches!(self, Self::Trouble { trouble: Trouble::Hangs, .. })
    }

    pub fn at(&self) -> usize {
        match self {
            Self::Said { at, .. }
            | Self::Late { at, .. }
            | Self::Early { at, .. }
            | Self::Burnt { at, .. }
            | Self::Trouble { at, .. } => *at,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Said { at, tcp, lane, state } => {
                write!(f, "call {at}: TCP says {tcp}, a lane {lane}")?;
                state.map_or(Ok(()), |state| write!(f, ", in state {state:?}"))
            }
            Self::Late { at, tcp_us, lane_us } => {
                write!(f, "call {at} took {tcp_us} us on TCP, {lane_us} us on a lane")
            }
            Self::Early { at, lane_us } => write!(f, "call {at} ended after {lane_us} us, before its time"),
            Self::Burnt { at, tcp_us, lane_us } => {
                write!(f, "call {at} took {tcp_us} us of CPU time on TCP, {lane_us} us on a lane")
            }
            Self::Trouble { at, trouble: Trouble::Hangs } => write!(f, "call {at} hangs"),
            Self::Trouble { at, trouble: Trouble::Died(how) } => {
                write!(f, "a program died at call {at}: {how}")
            }
        }
    }
}

/// The first call in which two runs differ.
pub fn difference(program: &[Op], tcp: &Run, lane: &Run, late: Late) -> Option<Difference> {
    let mut is_meddled = false;
    let mut looked_at_set = [false; 2];
    let (mut has_edges, mut may_tell_again) = ([false; 2], [false; 2]);
    let mut lingers = [false; 2];
    for (at, op) in program.iter().enumerate() {
        let meddles = |call| {
            matches!(
                call,
                Call::Meddle(_)
                    | Call::Flood { meanwhile: Some(_), .. }
                    | Call::Lend { meanwhile: Some(_), .. }
            )
        };
        is_meddled |= meddles(op.call);
        let (Some(tcp), Some(lane)) = (&tcp[at], &lane[at]) else { continue };
        let own = op.side as usize;
        may_tell_again[own] |= matches!(op.call, Call::Dup | Call::DupOver(_));
        lingers[own] |= matches!(op.call, Call::Set(Opt::LingerFor(1..)));
        if closes_lanes(op.call) {
            may_tell_again = [true; 2];
        }
        if let Call::Register(how) = op.call {
            looked_at_set[own] = false;
            has_edges[own] |= how.is_for_edges();
        }
        let says_nothing =
            matches!(op.call, Call::Corked { .. }) && (tcp.said.is_empty() || lane.said.is_empty());
        if says_nothing {
            continue;
        }
        let is_first = !is_look_at_set(op) || !std::mem::replace(&mut looked_at_set[own], true);
        if is_look_at_set(op) && is_first && is_false_alarm(tcp, lane) {
            continue;
        }
        if has_edges[own] && may_tell_again[own] && is_told_again(op, tcp, lane) {
            may_tell_again[own] = false;
            continue;
        }
        if told(op, tcp) != told(op, lane) && !(is_meddled && is_less_room(op, tcp, lane)) {
            return Some(Difference::Said {
                at,
                tcp: format!("{:?}", tcp.said),
                lane: format!("{:?}", lane.said),
                state: lane.state,
            });
        }
        // The end of TCP's stream is acknowledged when its timer says so (COMPLIANCE.md).
        let may_linger = lingers[own] && matches!(op.call, Call::Finish(_) | Call::DupOver(_));
        let bound = if is_at_once(op.call, tcp) { late.at_once } else { late.otherwise };
        if lane.ns > tcp.ns + bound && !may_linger {
            return Some(Difference::Late { at, tcp_us: tcp.ns / 1000, lane_us: lane.ns / 1000 });
        }
        if let Call::Patience(_, ms) = op.call
            && lane.ns + lane.held_up_ns + EARLY_NS < tcp.ns.min(u64::from(ms) * 1_000_000)
        {
            return Some(Difference::Early { at, lane_us: lane.ns / 1000 });
        }
        if lane.cpu_ns > tcp.cpu_ns + BURNT_NS {
            return Some(Difference::Burnt { at, tcp_us: tcp.cpu_ns / 1000, lane_us: lane.cpu_ns / 1000 });
        }
    }
    None
}

/// What of an outcome must be the same.
fn told(op: &Op, outcome: &Outcome) -> Vec<crate::calls::Said> {
    let mut said = outcome.said.clone();
    if matches!(op.call, Call::Dup | Call::Pass | Call::Open { .. }) {
        said.iter_mut().for_each(|said| said.more.clear());
    }
    said
}

/// Whether a connection's lanes may be closed by it before what is in them is read: who waits for edges is told again of what comes by TCP
/// then (COMPLIANCE.md).
fn closes_lanes(call: Call) -> bool {
    matches!(call, Call::Set(opt) if opt.bars())
        || matches!(
            call,
            Call::Meddle(Meddle::Revoke | Meddle::Off)
            | Call::Finish(End::ShutRd | End::ShutBoth)
            | Call::Send(SendBy::Oob | SendBy::Splice, _)
            | Call::Recv(RecvBy::Splice, _)
            | Call::Pass
            | Call::Hand
            | Call::Share
            // ... the number under which it stands in a set is closed, and another one is open.
            | Call::Twin
            | Call::Turn
            | Call::Swap
            | Call::Exec
            | Call::Fork(Child::Execs | Child::Spawns | Child::Vforks | Child::LooksAtSet)
            // ... somebody waits for the set itself.
            | Call::Look(LookBy::Set | LookBy::Nested | LookBy::Mapped)
            | Call::Wait(WaitBy::Set)
        )
}

/// Whether a set has told of what TCP's has, and of bytes or room besides, perhaps with an end that stands.
fn is_told_again(op: &Op, tcp: &Outcome, lane: &Outcome) -> bool {
    const AGAIN: i64 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP) as i64;
    if op.call != Call::Look(LookBy::Epoll) {
        return false;
    }
    let ([tcp, ..], [lane, ..]) = (&tcp.said[..], &lane.said[..]) else { return false };
    let events = |said: &crate::calls::Said| -> std::collections::BTreeMap<i64, i64> {
        said.more.chunks_exact(2).map(|event| (event[0], event[1])).collect()
    };
    let (tcp, lane) = (events(tcp), events(lane));
    let is_more = |(data, &told): (&i64, &i64)| {
        let shown = tcp.get(data).copied().unwrap_or(0);
        told & shown == shown && (told & !shown) & !AGAIN == 0
    };
    tcp != lane && tcp.keys().all(|data| lane.contains_key(data)) && lane.iter().all(is_more)
}

fn is_look_at_set(op: &Op) -> bool {
    matches!(op.call, Call::Look(LookBy::Set | LookBy::Nested))
}

/// Whether a set showed something when it was first looked at as a descriptor since a connection came into it, and then had nothing to tell: its lanes close just then, and
/// their doorbell is in it (COMPLIANCE.md).
fn is_false_alarm(tcp: &Outcome, lane: &Outcome) -> bool {
    let ([tcp, ..], [lane, ..]) = (&tcp.said[..], &lane.said[..]) else { return false };
    tcp.ret == 0 && lane.ret == 1 && lane.more.last() == Some(&0) && tcp.more.last() == Some(&0)
}

/// Whether a set has told of less than TCP's, and that only of room that was never used up: with the news of bytes that were read meanwhile,
/// a closing lane forgets that there is room, too (COMPLIANCE.md).
fn is_less_room(op: &Op, tcp: &Outcome, lane: &Outcome) -> bool {
    const ROOM: i64 = libc::EPOLLOUT as i64;
    if op.call != Call::Look(LookBy::Epoll) {
        return false;
    }
    let ([tcp, ..], [lane, ..]) = (&tcp.said[..], &lane.said[..]) else { return false };
    let mut left = lane.more.chunks_exact(2).peekable();
    let is_less = tcp.more.chunks_exact(2).all(|event| left.next_if_eq(&event).is_some() || event[1] == ROOM);
    tcp.ret > lane.ret && lane.ret >= 0 && is_less && left.peek().is_none()
}
