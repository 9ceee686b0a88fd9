//! What is known of a program's connections without asking: which calls make sense, and which waits must end. It never says what a
//! call answers: that is for TCP to say.

mod cuts;
mod happened;

use crate::calls::Said;
use crate::op::{
    CONNS, Call, Child, End, Handler, LookBy, ON_THE_WAY, Op, Opt, Over, RecvBy, Registered, SendBy, Side,
    WaitBy, is_by_ring,
};

/// Which process of a side: the first one, the second, or the forked one.
type Who = u8;
const BRANCH: Who = 2;

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
    /// It has sent urgent data: at most once, as a second one changes what became of the first.
    urgent: bool,
    /// SO_OOBINLINE: the urgent byte is one of the stream.
    in_line: bool,
    /// Another program has got it.
    given: bool,
    /// SO_RCVTIMEO, SO_SNDTIMEO: a call that would wait gives up.
    reads_give_up: bool,
    sends_give_up: bool,
    /// TCP_CORK: what it sends goes when that is off, or 200 ms later.
    corked: bool,
    /// TCP_TX_DELAY: what it sends comes later.
    delays: bool,
    /// TCP_NOTSENT_LOWAT: there is room where less is unsent, of which a lane knows nothing (COMPLIANCE.md).
    unsent_lowat: bool,
    /// TCP_USER_TIMEOUT: a peer that takes nothing for so long, milliseconds, is given up.
    user_timeout: i32,
    /// How it is in its process's set,
    registered: Option<Registered>,
    /// ... and whether it is, or was, there for edges, for one event, or under a number that was closed.
    in_set_otherwise: bool,
    /// Which process of the side makes the calls on it,
    with: Who,
    /// and who has it, too.
    also: Option<Who>,
    /// It has a second number.
    twin: bool,
    /// O_ASYNC: a signal may come at any time.
    signals: bool,
    /// Its process has had a ring of io_uring.
    has_ring: bool,
    waiting: Option<WaitBy>,
}

impl Half {
    /// Whether a close ends it.
    fn is_alone(&self) -> bool {
        self.also.is_none() && !self.twin && self.with != BRANCH
    }

    fn is_half_closed(&self) -> bool {
        self.open && self.shut_wr
    }
}

#[derive(Clone)]
pub struct Model {
    ends: [[Half; 2]; CONNS as usize],
    stopped: [bool; 2],
    dead: [bool; 2],
    /// A forked process lives on.
    has_branch: [bool; 2],
    /// Bytes came for which a reader with O_ASYNC may have waited: then the kernel signals nothing (sock_wake_async(), net/socket.c).
    may_have_waited: [bool; 2],
}

impl Model {
    pub fn new() -> Self {
        Self {
            ends: Default::default(),
            stopped: [false; 2],
            dead: [false; 2],
            has_branch: [false; 2],
            may_have_waited: [false; 2],
        }
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

    /// Connections of the process that has `conn`.
    fn beside(&self, side: Side, conn: u8) -> impl Iterator<Item = u8> + '_ {
        let with = self.end(side, conn).with;
        (0..CONNS).filter(move |&other| self.end(side, other).with == with)
    }

    /// Whether several processes of a side have its connections.
    fn is_split(&self, side: Side) -> bool {
        self.has_branch[side as usize] || (0..CONNS).any(|conn| self.end(side, conn).also.is_some())
    }

    pub fn has_twin(&self, side: Side, conn: u8) -> bool {
        self.end(side, conn).twin
    }

    /// Whether signals may come to the process that has `conn`.
    fn has_signals(&self, side: Side, conn: u8) -> bool {
        let end = self.end(side, conn);
        end.signals
            || self.is_split(side) && (0..CONNS).any(|conn| self.end(side, conn).signals)
            || self.beside(side, conn).any(|conn| self.end(side, conn).signals)
    }

    /// Whether a thread waits for an end, alone or among others.
    fn is_waited_for(&self, side: Side, conn: u8) -> bool {
        let is_for_all = |by: Option<WaitBy>| by.is_some_and(WaitBy::is_of_many);
        let end = self.end(side, conn);
        end.waiting.is_some()
            || end.open && self.beside(side, conn).any(|other| is_for_all(self.end(side, other).waiting))
    }

    fn is_set_waited_for(&self, side: Side, conn: u8) -> bool {
        self.beside(side, conn).any(|conn| self.end(side, conn).waiting == Some(WaitBy::Set))
    }

    /// Waits under way.
    pub fn pending(&self) -> Vec<(Side, u8)> {
        let all = (0..CONNS).flat_map(|conn| Side::BOTH.map(|side| (side, conn)));
        all.filter(|&(side, conn)| self.end(side, conn).waiting.is_some()).collect()
    }

    /// Whether several threads make the wait.
    pub fn is_crowd(&self, side: Side, conn: u8) -> bool {
        self.end(side, conn).waiting == Some(WaitBy::Crowd)
    }

    pub fn is_stopped(&self, side: Side) -> bool {
        self.stopped[side as usize]
    }

    pub fn is_dead(&self, side: Side) -> bool {
        self.dead[side as usize]
    }

    /// Whether a kill would reset a connection for whose end the other side waits.
    fn may_reset(&self, side: Side) -> bool {
        (0..CONNS).any(|conn| self.end(side, conn).lingers_not && self.is_waited_for(side.other(), conn))
    }

    /// Whether all that was sent has been read, and nobody waits for more.
    fn is_quiet(&self, conn: u8) -> bool {
        Side::BOTH.into_iter().all(|side| {
            self.bytes(side, conn) == 0 && !self.end(side, conn).urgent && !self.is_waited_for(side, conn)
        })
    }

    /// Whether time alone would bring what was sent.
    fn is_held_back(&self, conn: u8) -> bool {
        self.ends[usize::from(conn)].iter().any(|end| end.corked || end.delays)
    }

    /// Whether a call waits, and gives up.
    fn gives_up(&self, op: Op) -> bool {
        let end = self.end(op.side, op.conn);
        end.reads_give_up && !end.nonblock && matches!(op.call, Call::Recv(by, _) if by.may_wait())
    }

    /// Whether nothing is left to be read by a side, of any connection: of what is, a killed process's end of a lane tells nobody (COMPLIANCE.md).
    fn has_read_all(&self, side: Side) -> bool {
        (0..CONNS).all(|conn| {
            !self.end(side, conn).open || self.bytes(side, conn) == 0 && !self.end(side.other(), conn).urgent
        })
    }

    /// Whether the wait must end now.
    pub fn wakes(&self, side: Side, conn: u8) -> bool {
        let end = self.end(side, conn);
        match end.waiting {
            Some(WaitBy::Recv | WaitBy::Read | WaitBy::PeekAll) => {
                self.bytes(side, conn) > 0 || self.is_over(side, conn) || end.nonblock
            }
            // A hang-up ends it, too.
            Some(WaitBy::Urgent) => {
                self.end(side.other(), conn).urgent || end.shut_wr && self.is_over(side, conn)
            }
            Some(by) if by.is_of_all() => {
                self.beside(side, conn).any(|conn| self.end(side, conn).open && self.readable(side, conn))
            }
            Some(WaitBy::Set) => self.beside(side, conn).any(|conn| match self.end(side, conn).registered {
                Some(Registered::Level) => true,
                Some(_) => self.readable(side, conn),
                None => false,
            }),
            Some(_) => self.readable(side, conn),
            None => false,
        }
    }

    /// Whether a call makes sense now.
    pub fn allows(&self, op: Op) -> bool {
        let (side, conn) = (op.side, op.conn);
        let (own, peer) = (self.end(side, conn), self.end(side.other(), conn));
        match op.call {
            Call::Meddle(_) => true,
            Call::Continue => self.is_stopped(side),
            Call::KillBranch => {
                let is_idle = |conn| {
                    let end = self.end(side, conn);
                    end.waiting.is_none() && !(end.open && end.with == BRANCH)
                };
                let is_there =
                    self.has_branch[side as usize] && !self.is_stopped(side) && !self.is_dead(side);
                is_there && (0..CONNS).all(is_idle)
            }
            Call::Kill if (0..CONNS).any(|conn| self.is_held_back(conn)) => false,
            Call::Kill => !self.is_dead(side) && self.has_read_all(side) && !self.may_reset(side),
            _ if self.is_dead(side) || self.is_stopped(side) => false,
            call if call.is_of_both() && (self.is_dead(side.other()) || self.is_stopped(side.other())) => {
                false
            }
            // Who waits for all sees it come, or has seen it accepted.
            Call::Open { .. } => {
                let is_for_all = |(who, conn)| self.end(who, conn).waiting.is_some_and(WaitBy::is_of_many);
                !own.open && !peer.open && !self.pending().into_iter().any(is_for_all)
            }
            // After a stop, epoll's waits end with EINTR.
            Call::Stop => self.pending().into_iter().all(|(who, conn)| {
                let by = self.end(who, conn).waiting;
                use WaitBy::{AllPoll, AllSelect, PeekAll, Poll, Read, Recv, Select};
                who != side || matches!(by, Some(Recv | Read | PeekAll | Poll | Select | AllPoll | AllSelect))
            }),
            Call::Look(LookBy::Arrivals) if self.may_have_waited[side as usize] => false,
            _ if !own.open => false,
            // Of bytes that come later only who waits for them is sure.
            call if self.is_held_back(conn)
                && (own.corked || peer.corked || !matches!(call, Call::Echo { .. })) =>
            {
                match call {
                    Call::Send(by, n) => {
                        let is_plain = !matches!(by, SendBy::Oob | SendBy::Ring);
                        own.corked && is_plain && own.sent + n <= peer.got + ON_THE_WAY
                    }
                    Call::Set(Opt::Cork(false)) => own.corked,
                    Call::Set(Opt::SegmentDelay(_)) => own.delays,
                    _ => false,
                }
            }
            Call::Set(Opt::Cork(true) | Opt::SegmentDelay(1..)) => own.is_alone() && self.is_quiet(conn),
            // What is sent to one that has closed is answered by a reset, which ends the wait, but not at once.
            Call::Send(..) | Call::Signal(Handler::Sends(_))
                if own.waiting == Some(WaitBy::Urgent) && !peer.open =>
            {
                false
            }
            // The other process makes other calls meanwhile.
            Call::Swap => own.also.is_some(),
            // While a thread waits to read, others do not.
            call if self.is_waited_for(side, conn) && !self.goes_with_a_wait(call) => false,
            Call::Register(how) if how.is_for_edges() && self.is_set_waited_for(side, conn) => false,
            // TCP throws away what the peer has not read by then, a lane does not.
            call if peer.reset => matches!(call, Call::Finish(end) if end.is_close()),
            // What comes then TCP answers by a reset, a lane's end when its process makes its next call, and
            // a killed one's when the sender looks or waits (COMPLIANCE.md).
            Call::Send(..) | Call::Fork(Child::Sends) | Call::Signal(Handler::Sends(_))
                if peer.shut_rd && peer.shut_wr || self.is_dead(side.other()) =>
            {
                false
            }
            // What is unread then its sender sends once more, as where it is handed on.
            call if is_by_ring(call) && self.is_split(side) => false,
            call if is_by_ring(call)
                && self
                    .beside(side, conn)
                    .any(|conn| !self.end(side, conn).has_ring && self.bytes(side, conn) > 0) =>
            {
                false
            }
            Call::Send(SendBy::Oob, _) if own.urgent || peer.low_water > 1 => false,
            Call::Send(_, n) | Call::Signal(Handler::Sends(n)) => own.sent + n <= peer.got + ON_THE_WAY,
            Call::Recv(by, n) => {
                let may_wait = by.may_wait() && !own.nonblock;
                let enough = if by.is_for_all() { n } else { own.low_water.max(1).min(n) };
                // Where it begins to count is another place then.
                let is_sure = by != RecvBy::PeekWhole || !own.peek_off && !peer.urgent;
                let comes_back = own.reads_give_up && !self.has_signals(side, conn);
                let has_enough = self.bytes(side, conn) >= enough || self.is_over(side, conn);
                is_sure && (!may_wait || has_enough || comes_back)
            }
            Call::Look(by) if by.is_of_all() && self.is_split(side) => false,
            Call::Wait(by) | Call::Patience(by, _) if by.is_of_many() && self.is_split(side) => false,
            Call::Look(LookBy::Set | LookBy::Nested) | Call::Fork(Child::LooksAtSet)
                if self.is_split(side) =>
            {
                false
            }
            Call::Look(by) if by.is_of_all() => self
                .beside(side, conn)
                .filter(|&conn| self.end(side, conn).open)
                .all(|conn| self.allows(Op::new(side, conn, Call::Look(LookBy::Poll)))),
            // What is in the set otherwise may be told once more, or no more.
            Call::Wait(WaitBy::Set) => self.beside(side, conn).all(|conn| {
                let half = self.end(side, conn);
                let has_peer = !half.open || !self.end(side.other(), conn).reset && !self.is_held_back(conn);
                !self.is_waited_for(side, conn) && !half.in_set_otherwise && half.low_water <= 1 && has_peer
            }),
            Call::Wait(by) | Call::Patience(by, _) if by.is_of_all() => {
                let one =
                    |by| if let Call::Wait(_) = op.call { Call::Wait(by) } else { Call::Patience(by, 1) };
                let mut others = self.beside(side, conn).filter(|&conn| self.end(side, conn).open);
                others.all(|conn| {
                    !self.is_waited_for(side, conn) && self.allows(Op::new(side, conn, one(WaitBy::Poll)))
                })
            }
            Call::Wait(WaitBy::Recv | WaitBy::Read | WaitBy::PeekAll)
            | Call::Alarm(WaitBy::Recv | WaitBy::Read | WaitBy::PeekAll)
                if own.reads_give_up =>
            {
                false
            }
            Call::Wait(WaitBy::Urgent) => !peer.urgent && !self.is_over(side, conn),
            // Who begins to wait for one that was killed naps up to 10 ms before it asks TCP (COMPLIANCE.md).
            Call::Patience(..) | Call::Alarm(_) | Call::Masked(..) if self.is_dead(side.other()) => false,
            // A signal's handler with SA_RESTART ends some of them early.
            Call::Wait(_) | Call::Patience(..) | Call::Alarm(_) | Call::Masked(..) if peer.urgent => false,
            Call::Patience(..) | Call::Alarm(_) | Call::Masked(..) if self.has_signals(side, conn) => false,
            Call::Masked(..) => own.low_water <= 1,
            Call::Wait(by) | Call::Patience(by, _) | Call::Alarm(by) => {
                // Below the mark TCP's own answer depends on how the segments came.
                let between = own.low_water > 1 && (1..own.low_water).contains(&self.bytes(side, conn));
                let peeks_on = own.peek_off && matches!(by, WaitBy::PeekAll);
                // A call that has gone to sleep for a byte is not told of bytes below the mark; one that comes a moment later finds them.
                let receives = matches!(by, WaitBy::Recv | WaitBy::Read | WaitBy::PeekAll);
                let may_miss = receives && own.low_water > 1 && !self.readable(side, conn);
                !between && !peeks_on && !may_miss
            }
            Call::Echo { .. }
            | Call::Exchange { .. }
            | Call::Pour { .. }
            | Call::Flood { .. }
            | Call::Corked { .. }
            | Call::Lend { .. }
            | Call::Torrent { .. } => {
                let sound = |end: &Half| end.open && !end.shut_rd && !end.shut_wr && end.low_water <= 1;
                let is_waited_for = Side::BOTH.into_iter().any(|side| self.is_waited_for(side, conn));
                // A machine that is busy takes its time until a peer reads.
                let gives_up = |end: &Half| end.reads_give_up || end.sends_give_up;
                let is_patient =
                    !(1..10_000).contains(&own.user_timeout) && !gives_up(own) && !gives_up(peer);
                let may_be_interrupted = Side::BOTH.into_iter().any(|side| self.has_signals(side, conn));
                let is_fit = match op.call {
                    Call::Echo { .. } | Call::Pour { .. } => true,
                    _ if may_be_interrupted => false,
                    Call::Flood { .. } => is_patient && !own.unsent_lowat,
                    Call::Torrent { .. } | Call::Exchange { .. } => is_patient,
                    // What is held back while urgent data is pending, TCP sends with it.
                    Call::Corked { .. } | Call::Lend { .. } => is_patient && !own.urgent && !peer.urgent,
                    _ => true,
                };
                is_fit
                    && !is_waited_for
                    && sound(own)
                    && sound(peer)
                    && own.sent == peer.got
                    && peer.sent == own.got
            }
            // What another process, or this one by a message, is given unread its sender sends once more, when it makes its next call (COMPLIANCE.md).
            Call::Hand | Call::Share => {
                let is_free = own.is_alone() && !self.is_split(side);
                is_free && self.bytes(side, conn) == 0
            }
            Call::Pass => self.bytes(side, conn) == 0,
            // What the child goes on with is as here: no thread, ring or second number.
            Call::Branch => {
                let is_plain = |conn| {
                    let end = self.end(side, conn);
                    end.waiting.is_none() && !end.has_ring && !end.twin
                };
                !self.is_split(side) && (0..CONNS).all(is_plain)
            }
            Call::Twin => own.is_alone(),
            Call::Turn => own.twin,
            Call::Fork(Child::Execs | Child::Spawns | Child::Vforks) => {
                (0..CONNS).all(|conn| self.bytes(side, conn) == 0)
            }
            // A signal that comes before there is a handler would end the new program.
            Call::Exec if self.is_split(side) || self.has_signals(side, conn) => false,
            Call::Exec => self.beside(side, conn).all(|conn| {
                let is_urgent = self.end(side.other(), conn).urgent;
                let is_quiet = self.bytes(side, conn) == 0 && !self.is_waited_for(side, conn);
                is_quiet && !is_urgent && !self.end(side, conn).twin
            }),
            // A registration goes on under a number that is closed: what stands in the ring by then it does not tell of.
            Call::Dup | Call::DupOver(Over::Set | Over::Far | Over::Next) => self.bytes(side, conn) == 0,
            Call::DupOver(Over::Same) => true,
            Call::DupOver(Over::Conn(other)) => {
                let is_beside = other != conn
                    && self.beside(side, conn).any(|beside| beside == other)
                    && self.end(side, other).is_alone();
                let close = Op::new(side, other, Call::Finish(End::Close));
                is_beside
                    && self.bytes(side, conn) == 0
                    && !self.is_waited_for(side, other)
                    && self.allows(close)
            }
            Call::Fork(Child::Sends) => own.sent + 5 <= peer.got + ON_THE_WAY,
            // For what stands in a ring by then these do not count (COMPLIANCE.md).
            Call::Set(Opt::PeekOff(_) | Opt::LowWater(_)) => self.bytes(side, conn) == 0 && !peer.urgent,
            Call::Set(Opt::OobInline(_)) => !peer.urgent,
            // What comes by TCP once more is signalled once more.
            Call::Set(opt) if opt.is_async() => {
                self.bytes(side, conn) == 0
                    && self.bytes(side.other(), conn) == 0
                    && self.pending().is_empty()
            }
            // Of a connection that it has half closed, a set may be told of room once more, and of what stands where a lane closes for good, or as
            // another program gets the connection; urgent data does the first (COMPLIANCE.md).
            // Who waits for the set itself takes its connections back to TCP: edges are told once more (COMPLIANCE.md).
            Call::Look(LookBy::Set | LookBy::Nested) | Call::Fork(Child::LooksAtSet)
                if self.beside(side, conn).any(|conn| self.end(side, conn).in_set_otherwise) =>
            {
                false
            }
            Call::Look(by) if by.is_of_set() => (0..CONNS).all(|conn| {
                let (own, peer) = (self.end(side, conn), self.end(side.other(), conn));
                let is_usual = !own.is_half_closed() && !own.given && !self.is_held_back(conn);
                is_usual && !own.urgent && !peer.urgent
            }),
            // From a page on the kernel wants a mapping.
            Call::Look(LookBy::Mapped) => self.bytes(side, conn) < 4096 && !peer.urgent,
            // The kernel's poll looks at a socket without its lock: of a reset just then it may see the error alone.
            Call::Finish(end) if end.is_close() && self.is_waited_for(side.other(), conn) => {
                self.bytes(side, conn) == 0 && !peer.urgent && !own.lingers_not
            }
            Call::Look(_)
            | Call::Signal(_)
            | Call::Set(_)
            | Call::Register(_)
            | Call::Finish(_)
            | Call::Fork(_)
            | Call::Few(_)
            | Call::Nonblock(_) => true,
        }
    }

    fn leaves_number(&mut self, side: Side, conn: u8) {
        let half = self.end_mut(side, conn);
        half.in_set_otherwise |= half.registered.take().is_some();
    }

    /// Whether a call disturbs no thread of its process that waits to read.
    fn goes_with_a_wait(&self, call: Call) -> bool {
        match call {
            Call::Send(..) | Call::Finish(End::ShutWr | End::ShutRd | End::ShutBoth) | Call::Register(_) => {
                true
            }
            Call::Signal(what) => !matches!(what, Handler::Receives(_)),
            Call::Look(by) => !matches!(by, LookBy::RecvNothing),
            Call::Set(opt) => {
                !opt.is_async()
                    && !matches!(
                        opt,
                        Opt::LowWater(_)
                            | Opt::PeekOff(_)
                            | Opt::OobInline(_)
                            | Opt::Owner
                            | Opt::NonblockIoctl(_)
                            | Opt::AddressForm
                            | Opt::ReceiveTimeout(_)
                    )
            }
            _ => false,
        }
    }

    pub fn begins_to_wait(&mut self, op: Op, by: WaitBy) {
        self.may_have_waited[op.side as usize] |= self.has_signals(op.side, op.conn);
        self.end_mut(op.side, op.conn).waiting = Some(by);
    }

    /// A wait has ended.
    pub fn woke(&mut self, side: Side, conn: u8, said: &Said) {
        let end = self.end_mut(side, conn);
        if matches!(end.waiting.take(), Some(WaitBy::Recv | WaitBy::Read)) && said.ret > 0 {
            end.got += said.ret as usize;
        }
    }
}
