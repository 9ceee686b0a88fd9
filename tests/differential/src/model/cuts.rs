//! Which two calls can be made at once.

use super::Model;
use crate::calls::Said;
use crate::op::{Call, Child, Handler, Meddle, Op, Opt, SendBy, Side, is_by_ring, reads};

impl Model {
    /// Whether `second` can be made between two instructions of `first`: neither waits, and each makes sense before the other one.
    pub fn can_be_cut(&self, first: Op, second: Op) -> bool {
        let is_short = |call: Call| {
            !call.is_of_both()
                && !call.is_of_driver()
                && !matches!(call, Call::Look(by) if by.is_of_several())
                && !matches!(
                    call,
                    Call::Wait(_)
                        | Call::Patience(..)
                        | Call::Alarm(_)
                        | Call::Masked(..)
                        | Call::Hand
                        | Call::Share
                        | Call::Branch
                        | Call::Swap
                        | Call::Twin
                        | Call::Turn
                        | Call::Exec
                        // Three messages: others may see one of them.
                        | Call::Send(SendBy::Many | SendBy::Batch, _)
                )
        };
        let moves = |call| matches!(call, Call::Dup | Call::DupOver(_) | Call::Pass);
        let is_kill = second.call == Call::Kill;
        let is_fit = match second.call {
            Call::Meddle(Meddle::Wait(_)) => false,
            Call::Meddle(_) => true,
            // What has come of the first one then only the other side can tell.
            Call::Kill => {
                second.side == first.side && !matches!(first.call, Call::Fork(_) | Call::Set(Opt::Linger(_)))
            }
            call if !is_short(call) || moves(call) || moves(first.call) => false,
            Call::Signal(_) if second.side != first.side => false,
            _ if second.conn != first.conn => false,
            _ if second.side != first.side => true,
            _ => self.go_together(first, second),
        };
        // Which of the two a wait saw the end of would be anybody's guess.
        let is_waited_for = |side| self.is_waited_for(side, first.conn);
        let is_meddling = matches!(second.call, Call::Meddle(_));
        first.cut.is_some()
            && Side::BOTH.into_iter().all(|side| self.end(side, first.conn).is_alone())
            && !is_waited_for(first.side)
            && (is_meddling || !is_waited_for(first.side.other()))
            && (is_short(first.call) && !matches!(first.call, Call::Signal(_)))
            && is_fit
            && !self.gives_up(first)
            && !self.gives_up(second)
            && !is_by_ring(first.call)
            && !is_by_ring(second.call)
            && self.allows(first)
            && (is_kill || !self.is_stopped(first.side) && !self.is_stopped(second.side))
            && self.allows(second)
            && (is_kill || self.with_end_of(first).allows(second) && self.with_end_of(second).allows(first))
    }

    /// Two calls were made at once. Whether a close found the other side's bytes unread, and so resets, nobody knows: from here on nothing is
    /// done that depends on it.
    pub fn happened_at_once(&mut self, first: Op, second: Op) {
        let sends = |call| {
            matches!(call, Call::Send(..) | Call::Signal(Handler::Sends(_)) | Call::Fork(Child::Sends))
        };
        for (one, other) in [(first, second), (second, first)] {
            let closes = matches!(one.call, Call::Finish(end) if end.is_close());
            if closes && one.side != other.side && sends(other.call) {
                self.end_mut(one.side, one.conn).reset = true;
            }
        }
    }

    /// A call was under way whose process was killed.
    pub fn may_have_happened(&mut self, op: Op) {
        *self = self.with_end_of(op);
    }

    /// As it is after the call, where that sends, or ends a stream.
    fn with_end_of(&self, op: Op) -> Self {
        let mut after = self.clone();
        if let Call::Send(_, n) = op.call {
            after.happened(op, &[Said::of(n as i64)]);
        }
        if let Call::Finish(_) = op.call {
            after.happened(op, &[Said::of(0)]);
        }
        after
    }

    /// Whether two threads of a process can make two calls at once, or a signal's handler one within another.
    fn go_together(&self, first: Op, second: Op) -> bool {
        let (own, peer) = (self.end(first.side, first.conn), self.end(first.side.other(), first.conn));
        let fits = |call: Call| match call {
            Call::Recv(by, _) => own.nonblock || !by.may_wait(),
            Call::Finish(end) => !end.is_close(),
            Call::Fork(child) => {
                matches!(child, Child::Exits | Child::Closes | Child::Execs | Child::Spawns | Child::Vforks)
            }
            Call::Set(
                Opt::LowWater(_)
                | Opt::PeekOff(_)
                | Opt::OobInline(_)
                | Opt::NonblockIoctl(_)
                | Opt::ReceiveTimeout(_)
                | Opt::Cork(_)
                | Opt::SegmentDelay(_),
            )
            | Call::Nonblock(_) => false,
            // The thread that makes the second call ends with it, and so do its signals.
            Call::Set(Opt::OwnerThread) => false,
            _ => true,
        };
        let both = |what: fn(Call) -> bool| what(first.call) && what(second.call);
        let is_fork = |call| matches!(call, Call::Fork(_));
        fits(first.call)
            && fits(second.call)
            && !is_fork(second.call)
            && (!is_fork(first.call) || matches!(second.call, Call::Send(..) | Call::Signal(_)))
            && !both(|call| matches!(call, Call::Register(_)))
            // A mark in the stream, or bytes that peeks pass over, would show who came first.
            && !((reads(first.call) || reads(second.call)) && (own.peek_off || peer.urgent))
    }
}
