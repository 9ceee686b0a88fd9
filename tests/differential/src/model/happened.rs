//! What the model learns of a call's result.

use super::{BRANCH, Half, Model};
use crate::calls::Said;
use crate::op::{
    CONNS, Call, Child, End, Handler, Lent, Op, Opt, Over, Registered, SendBy, Side, WaitBy, is_by_ring,
};

impl Model {
    /// What a call did, as far as its result tells.
    pub fn happened(&mut self, op: Op, said: &[Said]) {
        if is_by_ring(op.call) {
            for conn in self.beside(op.side, op.conn).collect::<Vec<_>>() {
                self.end_mut(op.side, conn).has_ring = true;
            }
        }
        let ret = said.first().map_or(-1, |said| said.ret);
        let (side, conn) = (op.side, op.conn);
        match op.call {
            Call::Open { nonblock, .. } if ret == 1 => {
                let fresh = Half { open: true, nonblock, ..Half::default() };
                self.ends[conn as usize] = [fresh, fresh];
            }
            Call::Send(SendBy::Oob, _) if ret > 0 => {
                let in_line = self.end(side.other(), conn).in_line;
                let half = self.end_mut(side, conn);
                half.urgent = true;
                half.sent += ret as usize - usize::from(!in_line);
            }
            Call::Send(..) | Call::Signal(Handler::Sends(_)) if ret > 0 => {
                self.end_mut(side, conn).sent += ret as usize
            }
            Call::Signal(Handler::Receives(_)) if ret > 0 => self.end_mut(side, conn).got += ret as usize,
            Call::Kill => {
                self.dead[side as usize] = true;
                self.stopped[side as usize] = false;
                for conn in 0..CONNS {
                    let half = self.end_mut(side, conn);
                    half.reset |= half.open && half.lingers_not;
                    half.open = false;
                    half.waiting = None;
                }
            }
            Call::Stop => self.stopped[side as usize] = true,
            Call::Continue => self.stopped[side as usize] = false,
            Call::Set(Opt::OobInline(on)) if ret == 0 => self.end_mut(side, conn).in_line = on,
            Call::Pour { rounds, size } => {
                self.may_have_waited[side.other() as usize] |= self.has_signals(side.other(), conn);
                let all = usize::from(rounds) * size;
                self.end_mut(side, conn).sent += all;
                self.end_mut(side.other(), conn).got += all;
            }
            Call::Patience(by, _) | Call::Alarm(by) => {
                let half = self.end_mut(side, conn);
                if matches!(by, WaitBy::Recv | WaitBy::Read) {
                    half.got += ret.max(0) as usize;
                }
                // The limit of such a wait is the same option, which is taken away.
                let sets = matches!(op.call, Call::Patience(..));
                half.reads_give_up &= !(sets && matches!(by, WaitBy::Recv | WaitBy::Read | WaitBy::PeekAll));
            }
            Call::Recv(by, _) if ret > 0 && !by.peeks() => self.end_mut(side, conn).got += ret as usize,
            Call::Echo { rounds, size } | Call::Exchange { rounds, size, .. } => {
                for side in Side::BOTH {
                    self.may_have_waited[side as usize] |= self.has_signals(side, conn);
                    let end = self.end_mut(side, conn);
                    end.sent += usize::from(rounds) * size;
                    end.got += usize::from(rounds) * size;
                }
            }
            Call::Set(Opt::LowWater(bytes)) if ret == 0 => {
                self.end_mut(side, conn).low_water = bytes.max(1) as usize
            }
            Call::Set(Opt::ReceiveTimeout(ms)) if ret == 0 => self.end_mut(side, conn).reads_give_up = ms > 0,
            Call::Set(Opt::SendTimeout(ms)) if ret == 0 => self.end_mut(side, conn).sends_give_up = ms > 0,
            Call::Set(Opt::Cork(on)) if ret == 0 => self.end_mut(side, conn).corked = on,
            Call::Set(Opt::SegmentDelay(us)) if ret == 0 => self.end_mut(side, conn).delays = us > 0,
            Call::Set(Opt::UnsentLowat(_)) if ret == 0 => self.end_mut(side, conn).unsent_lowat = true,
            Call::Set(Opt::UserTimeout(ms)) if ret == 0 => self.end_mut(side, conn).user_timeout = ms,
            Call::Set(Opt::PeekOff(at)) if ret == 0 => self.end_mut(side, conn).peek_off = at >= 0,
            Call::Finish(end)
                if end.is_close() && (self.has_twin(side, conn) || self.end(side, conn).also.is_some()) =>
            {
                self.leaves_number(side, conn);
                let half = self.end_mut(side, conn);
                if !std::mem::take(&mut half.twin) {
                    half.with = half.also.take().unwrap_or(half.with);
                }
            }
            Call::Twin if ret == 1 => self.end_mut(side, conn).twin = true,
            Call::Turn if ret == 1 => self.leaves_number(side, conn),
            Call::Share if ret == 1 => {
                let half = self.end_mut(side, conn);
                half.also = Some(1 - half.with);
                half.registered = None;
            }
            Call::Branch if ret == 1 => {
                self.has_branch[side as usize] = true;
                for conn in self.beside(side, conn).collect::<Vec<_>>() {
                    let half = self.end_mut(side, conn);
                    half.also = Some(BRANCH).filter(|_| half.open);
                }
            }
            Call::Swap => {
                self.leaves_number(side, conn);
                let half = self.end_mut(side, conn);
                if let Some(other) = &mut half.also {
                    std::mem::swap(other, &mut half.with);
                }
            }
            Call::KillBranch => {
                self.has_branch[side as usize] = false;
                for conn in 0..CONNS {
                    let half = self.end_mut(side, conn);
                    half.also = half.also.filter(|&who| who != BRANCH);
                    if half.with == BRANCH {
                        half.with = 0;
                    }
                }
            }
            Call::Finish(end) => {
                let unread = self.bytes(side, conn) > 0 || self.end(side.other(), conn).urgent;
                let half = self.end_mut(side, conn);
                half.reset |= end.is_close() && (unread || half.lingers_not);
                half.shut_wr |= matches!(end, End::ShutWr | End::ShutBoth);
                half.shut_rd |= matches!(end, End::ShutRd | End::ShutBoth);
                half.open &= !end.is_close();
                half.registered = half.registered.filter(|_| half.open);
            }
            Call::DupOver(Over::Conn(other)) if ret == 1 => {
                self.leaves_number(side, conn);
                self.happened(Op::new(side, other, Call::Finish(End::Close)), &[Said::of(0)]);
            }
            Call::Hand if ret == 1 => {
                let half = self.end_mut(side, conn);
                half.with = 1 - half.with;
                half.registered = None;
            }
            Call::Lend { lent: Lent::Ended, .. } if ret > 0 => self.end_mut(side, conn).shut_wr = true,
            Call::Set(Opt::LingerFor(seconds)) if ret == 0 => {
                self.end_mut(side, conn).lingers_not = seconds == 0
            }
            Call::Set(Opt::NonblockIoctl(on)) if ret == 0 => self.end_mut(side, conn).nonblock = on,
            Call::Set(opt) if opt.is_async() && ret == 0 => self.end_mut(side, conn).signals = true,
            Call::Set(Opt::Linger(on)) if ret == 0 => self.end_mut(side, conn).lingers_not = on,
            Call::Register(how) if ret == 0 => {
                let half = self.end_mut(side, conn);
                half.in_set_otherwise |= how.is_for_edges();
                half.registered = (how != Registered::Removed).then_some(how);
            }
            // The kernel goes on to tell of it under its old number.
            Call::Dup | Call::DupOver(Over::Far | Over::Next | Over::Set) if ret == 1 => {
                self.leaves_number(side, conn)
            }
            Call::Pass if ret == 1 => self.end_mut(side, conn).registered = None,
            Call::Nonblock(on) => self.end_mut(side, conn).nonblock = on,
            Call::Fork(Child::Sends) => {
                // Its exit status is what it sent.
                let sent =
                    said.first().and_then(|said| said.more.first()).map_or(0, |status| status >> 8 & 0xff);
                if (1..=5).contains(&sent) {
                    self.end_mut(side, conn).sent += sent as usize;
                }
            }
            Call::Fork(Child::Execs | Child::Spawns | Child::Vforks) => {
                (0..CONNS).for_each(|conn| self.end_mut(op.side, conn).given = true);
            }
            Call::Exec => {
                for conn in self.beside(side, conn).collect::<Vec<_>>() {
                    let half = self.end_mut(side, conn);
                    (half.given, half.registered, half.in_set_otherwise) = (true, None, false);
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
