//! What is known of a program's connections without asking: which calls make sense, and which waits must end. It never says what a
//! call answers: that is for TCP to say.

use crate::calls::Said;
use crate::op::{CONNS, Call, Child, End, LookBy, Meddle, ON_THE_WAY, Op, Opt, RecvBy, Side, WaitBy};

/// One end of a connection.
#[derive(Copy, Clone, Default)]
struct Half {
    open: bool,
    nonblock: bool,
    sent: usize,
    got: usize,
    shut_wr: bool,
    shut_rd: bool,
    low_water: usize,
    peek_off: bool,
    /// SO_LINGER with no time: a close is a reset.
    lingers_not: bool,
    /// It was closed with bytes unread: the other end hears of a reset, before or after what is still on its way.
    reset: bool,
    waiting: Option<WaitBy>,
}

impl Half {
    fn is_half_closed(&self) -> bool {
        self.open && self.shut_wr
    }
}

pub struct Model {
    ends: [[Half; 2]; CONNS as usize],
}

impl Model {
    pub fn new() -> Self {
        Self { ends: Default::default() }
    }

    fn end(&self, side: Side, conn: u8) -> &Half {
        &self.ends[conn as usize][side as usize]
    }

    fn end_mut(&mut self, side: Side, conn: u8) -> &mut Half {
        &mut self.ends[conn as usize][side as usize]
    }

    /// Bytes that `side` could read.
    fn bytes(&self, side: Side, conn: u8) -> usize {
        self.end(side.other(), conn).sent.saturating_sub(self.end(side, conn).got)
    }

    /// Whether a reader has nothing to wait for any more.
    fn is_over(&self, side: Side, conn: u8) -> bool {
        let (own, peer) = (self.end(side, conn), self.end(side.other(), conn));
        own.shut_rd || peer.shut_wr || !peer.open
    }

    fn readable(&self, side: Side, conn: u8) -> bool {
        self.bytes(side, conn) >= self.end(side, conn).low_water.max(1) || self.is_over(side, conn)
    }

    /// Waits under way.
    pub fn pending(&self) -> Vec<(Side, u8)> {
        let all = (0..CONNS).flat_map(|conn| Side::BOTH.map(|side| (side, conn)));
        all.filter(|&(side, conn)| self.end(side, conn).waiting.is_some()).collect()
    }

    /// Whether the wait must end now.
    pub fn wakes(&self, side: Side, conn: u8) -> bool {
        let end = self.end(side, conn);
        match end.waiting {
            Some(WaitBy::Recv | WaitBy::Read | WaitBy::PeekAll) => {
                self.bytes(side, conn) > 0 || self.is_over(side, conn) || end.nonblock
            }
            Some(_) => self.readable(side, conn),
            None => false,
        }
    }

    /// Whether a call makes sense now.
    pub fn allows(&self, op: Op) -> bool {
        let (side, conn) = (op.side, op.conn);
        let (own, peer) = (self.end(side, conn), self.end(side.other(), conn));
        match op.call {
            Call::Open { .. } => !own.open && !peer.open,
            Call::Meddle(_) => true,
            // One who waits in a thread is not disturbed by its own process.
            _ if !own.open || own.waiting.is_some() => false,
            // TCP throws away what the peer has not read by then, a lane does not.
            call if peer.reset => matches!(call, Call::Finish(End::Close | End::RawClose)),
            // What comes then TCP answers by a reset, a lane's end when its process makes its next call (COMPLIANCE.md).
            Call::Send(..) | Call::Fork(Child::Sends) if peer.shut_rd && peer.shut_wr => false,
            Call::Send(_, n) => own.sent + n <= peer.got + ON_THE_WAY,
            Call::Recv(by, n) => {
                let may_wait = matches!(by, RecvBy::Read | RecvBy::Readv | RecvBy::WaitAll | RecvBy::Splice)
                    && !own.nonblock;
                let enough = if by == RecvBy::WaitAll { n } else { own.low_water.max(1).min(n) };
                !may_wait || self.bytes(side, conn) >= enough || self.is_over(side, conn)
            }
            Call::Wait(by) | Call::Patience(by, _) | Call::Alarm(by) => {
                // Below the mark TCP's own answer depends on how the segments came.
                let between = own.low_water > 1 && (1..own.low_water).contains(&self.bytes(side, conn));
                let peeks_on = own.peek_off && matches!(by, WaitBy::PeekAll);
                !between && !peeks_on
            }
            Call::Echo { .. } => {
                let sound = |end: &Half| {
                    end.open && !end.shut_rd && !end.shut_wr && end.waiting.is_none() && end.low_water <= 1
                };
                sound(own) && sound(peer) && own.sent == peer.got && peer.sent == own.got
            }
            // What another process, or this one by a message, is given unread its sender sends once more, when it makes its next call (COMPLIANCE.md).
            Call::Pass | Call::Hand => self.bytes(side, conn) == 0,
            Call::Fork(Child::Execs) => (0..CONNS).all(|conn| self.bytes(side, conn) == 0),
            // A registration goes on under a number that is closed: what stands in the ring by then it does not tell of.
            Call::Dup => self.bytes(side, conn) == 0,
            Call::Fork(Child::Sends) => own.sent + 5 <= peer.got + ON_THE_WAY,
            // For what stands in a ring by then these do not count (COMPLIANCE.md).
            Call::Set(Opt::PeekOff(_) | Opt::LowWater(_)) => self.bytes(side, conn) == 0,
            // Of a connection that it has half closed, a set may be told of room once more (COMPLIANCE.md).
            Call::Look(LookBy::Epoll) => (0..CONNS).all(|conn| !self.end(side, conn).is_half_closed()),
            Call::Look(_)
            | Call::Set(_)
            | Call::Register(_)
            | Call::Finish(_)
            | Call::Fork(_)
            | Call::Nonblock(_) => true,
        }
    }

    /// Whether `second` can be made between two instructions of `first`: neither waits, and each makes sense before the other one.
    pub fn can_be_cut(&self, first: Op, second: Op) -> bool {
        let is_short = |call| {
            !matches!(
                call,
                Call::Open { .. }
                    | Call::Echo { .. }
                    | Call::Wait(_)
                    | Call::Patience(..)
                    | Call::Alarm(_)
                    | Call::Hand
                    | Call::Fork(_)
                    | Call::Meddle(Meddle::Wait(_))
            )
        };
        let is_meddling = matches!(second.call, Call::Meddle(_));
        let moves = |call| matches!(call, Call::Dup | Call::Pass);
        first.cut.is_some()
            && is_short(first.call)
            && is_short(second.call)
            && !matches!(first.call, Call::Meddle(_))
            && (is_meddling || !moves(first.call) && !moves(second.call))
            && (is_meddling || second.side != first.side && second.conn == first.conn)
            && self.allows(first)
            && self.allows(second)
    }

    pub fn begins_to_wait(&mut self, op: Op, by: WaitBy) {
        self.end_mut(op.side, op.conn).waiting = Some(by);
    }

    /// A wait has ended.
    pub fn woke(&mut self, side: Side, conn: u8, said: &Said) {
        let end = self.end_mut(side, conn);
        if matches!(end.waiting.take(), Some(WaitBy::Recv | WaitBy::Read)) && said.ret > 0 {
            end.got += said.ret as usize;
        }
    }

    /// What a call did, as far as its result tells.
    pub fn happened(&mut self, op: Op, said: &[Said]) {
        let ret = said.first().map_or(-1, |said| said.ret);
        let (side, conn) = (op.side, op.conn);
        match op.call {
            Call::Open { nonblock, .. } if ret == 1 => {
                let fresh = Half { open: true, nonblock, ..Half::default() };
                self.ends[conn as usize] = [fresh, fresh];
            }
            Call::Send(..) if ret > 0 => self.end_mut(side, conn).sent += ret as usize,
            Call::Patience(WaitBy::Recv | WaitBy::Read, _) | Call::Alarm(WaitBy::Recv | WaitBy::Read)
                if ret > 0 =>
            {
                self.end_mut(side, conn).got += ret as usize
            }
            Call::Recv(by, _) if ret > 0 && by != RecvBy::Peek => {
                self.end_mut(side, conn).got += ret as usize
            }
            Call::Echo { rounds, size } => {
                for side in Side::BOTH {
                    let end = self.end_mut(side, conn);
                    end.sent += usize::from(rounds) * size;
                    end.got += usize::from(rounds) * size;
                }
            }
            Call::Set(Opt::LowWater(bytes)) if ret == 0 => {
                self.end_mut(side, conn).low_water = bytes.max(1) as usize
            }
            Call::Set(Opt::PeekOff(at)) if ret == 0 => self.end_mut(side, conn).peek_off = at >= 0,
            Call::Finish(end) => {
                let unread = self.bytes(side, conn) > 0;
                let half = self.end_mut(side, conn);
                half.reset |= matches!(end, End::Close | End::RawClose) && (unread || half.lingers_not);
                half.shut_wr |= matches!(end, End::ShutWr | End::ShutBoth);
                half.shut_rd |= matches!(end, End::ShutRd | End::ShutBoth);
                half.open &= !matches!(end, End::Close | End::RawClose);
            }
            Call::Set(Opt::Linger(on)) if ret == 0 => self.end_mut(side, conn).lingers_not = on,
            Call::Nonblock(on) => self.end_mut(side, conn).nonblock = on,
            Call::Fork(Child::Sends) => {
                // Its exit status is what it sent.
                let sent =
                    said.first().and_then(|said| said.more.first()).map_or(0, |status| status >> 8 & 0xff);
                if (1..=5).contains(&sent) {
                    self.end_mut(side, conn).sent += sent as usize;
                }
            }
            Call::Fork(Child::Receives | Child::ReceivesAndCloses) => {
                let got =
                    said.first().and_then(|said| said.more.first()).map_or(0, |status| status >> 8 & 0xff);
                if (1..=10).contains(&got) {
                    self.end_mut(side, conn).got += got as usize;
                }
            }
            _ => {}
        }
    }
}
