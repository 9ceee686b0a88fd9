//! Calls that both sides take part in, step by step.

use std::time::{Duration, Instant};

use super::{Outcome, Stage};
use crate::calls::Said;
use crate::op::{Call, Lent, LookBy, Meddle, Op, RecvBy, RoomBy, SendBy, Uncork};
use crate::order::Order;
use crate::team::Trouble;

/// TCP holds bytes back for 200 ms at most: what took longer than this is not compared.
const HELD: Duration = Duration::from_millis(120);

impl Stage {
    /// Bytes in one direction, sent and received in turn. It tells of the first two calls, and of those that said otherwise.
    pub(super) fn pour(&mut self, op: Op, rounds: u16, size: usize) -> Result<Outcome, Trouble> {
        let conn = op.conn;
        let order = |call| Order::Make { conn, call, cut: false };
        let (send, receive) = (Call::Send(SendBy::Send, size), Call::Recv(RecvBy::WaitAll, size));
        let mut all: Option<Outcome> = None;
        for round in 0..rounds {
            for (side, call) in [(op.side, send), (op.side.other(), receive)] {
                let one = Outcome::from(self.holder(side, conn).ask(&order(call))?);
                let Some(all) = &mut all else {
                    all = Some(one);
                    continue;
                };
                let is_whole = one.said.iter().all(|said| said.ret == size as i64);
                if !is_whole || round == 0 || round + 1 == rounds {
                    all.said.extend(one.said);
                }
                all.ns = all.ns.max(one.ns);
                all.cpu_ns = all.cpu_ns.max(one.cpu_ns);
                all.calls = [all.calls[0] + one.calls[0], all.calls[1] + one.calls[1]];
            }
        }
        Ok(all.unwrap_or_else(Outcome::nothing))
    }

    /// A connection is filled and read, as [`Call::Flood`] tells: whether the sender learnt of room, whether the bytes came as they were sent,
    /// and what a look shows then. The time is that until it learnt.
    pub(super) fn flood(
        &mut self,
        op: Op,
        by: RoomBy,
        chunk: u16,
        early: bool,
        meanwhile: Option<Meddle>,
    ) -> Result<Outcome, Trouble> {
        let (conn, side, other) = (op.conn, op.side, op.side.other());
        let filled = self.holder(side, conn).ask(&Order::Flood { conn, by, chunk })?;
        let calls = filled.calls;
        let said = filled.said.unwrap_or_else(|| Said::of(-2));
        if said.ret <= 0 {
            return Ok(Outcome {
                said: vec![said],
                ns: 0,
                held_up_ns: 0,
                cpu_ns: 0,
                calls,
                state: filled.state,
            });
        }
        let all = said.ret as usize;
        let n = usize::from(chunk).min(all / 4);
        if early {
            self.holder(side, conn).ask(&Order::Room { conn, by, n, early })?;
        }
        if let Some(meddle) = meanwhile {
            self.meddle(op, meddle)?;
        }
        let most = all - all / 8;
        let read = self.holder(other, conn).ask(&Order::Drain { conn, n: most, hash: 0 })?.said;
        let so_far = read.map_or(0, |said| said.more[0] as u64);
        // It goes on, and another lane may open.
        match meanwhile {
            Some(Meddle::Off) => self.meddle(op, Meddle::On)?,
            Some(Meddle::StopBroker) => self.meddle(op, Meddle::ContinueBroker)?,
            _ => {}
        }
        let asked = Instant::now();
        let order = if early { Order::Ended { conn, ms: 4000 } } else { Order::Room { conn, by, n, early } };
        let told = self.holder(side, conn).ask(&order)?;
        let ns = if early { asked.elapsed().as_nanos() as u64 } else { told.ns };
        let Some(room) = told.said else { return Err(Trouble::Hangs) };
        let rest = all - most + room.more[0] as usize;
        let read = self.holder(other, conn).ask(&Order::Drain { conn, n: rest, hash: so_far })?.said;
        let is_whole = read.is_some_and(|said| said.ret == rest as i64 && said.more[0] == room.more[1]);
        let look = Order::Make { conn, call: Call::Look(LookBy::Poll), cut: false };
        let shows = self.holder(side, conn).ask(&look)?.said.unwrap_or_else(|| Said::of(-2));
        let said = vec![Said { more: Vec::new(), ..room }, Said::of(is_whole.into()), shows];
        Ok(Outcome { said, ns, held_up_ns: 0, cpu_ns: told.cpu_ns, calls, state: filled.state })
    }

    /// Pieces are held back, and let go: what the receiver sees before and after. It says nothing where the machine took too long.
    pub(super) fn corked(&mut self, op: Op, by: Uncork, pieces: u8, size: u16) -> Result<Outcome, Trouble> {
        let (conn, side, other) = (op.conn, op.side, op.side.other());
        let make = |call| Order::Make { conn, call, cut: false };
        let looks = [LookBy::Fionread, LookBy::Poll, LookBy::Peek].map(Call::Look);
        let begin = Instant::now();
        let first = Outcome::from(self.holder(side, conn).ask(&Order::Cork { conn, by, pieces, size })?);
        let mut said = first.said;
        for call in looks {
            let shows = self.holder(other, conn).ask(&make(call))?.said;
            // What only MSG_MORE holds back, an acknowledgement lets go.
            said.extend(shows.filter(|_| by != Uncork::More));
        }
        let go = self.holder(side, conn).ask(&Order::Uncork { conn, by, size })?;
        let is_in_time = begin.elapsed() < HELD;
        said.extend(go.said);
        for call in looks {
            said.extend(self.holder(other, conn).ask(&make(call))?.said);
        }
        let n = usize::from(size) * (usize::from(pieces) + usize::from(by == Uncork::More));
        said.extend(self.holder(other, conn).ask(&make(Call::Recv(RecvBy::WaitAll, n)))?.said);
        if by == Uncork::NoDelay {
            self.holder(side, conn).ask(&Order::Uncork { conn, by: Uncork::Off, size })?;
        }
        if !is_in_time {
            said.clear();
        }
        Ok(Outcome { said, ns: 0, held_up_ns: 0, cpu_ns: 0, calls: first.calls, state: first.state })
    }

    /// Memory is lent: whether the bytes came as they were sent, and a notice of each call.
    pub(super) fn lend(
        &mut self,
        op: Op,
        size: u32,
        lent: Lent,
        meanwhile: Option<Meddle>,
    ) -> Result<Outcome, Trouble> {
        let (conn, side, other) = (op.conn, op.side, op.side.other());
        let one = self.holder(side, conn).ask(&Order::Lend { conn, size, lent })?;
        let (calls, state) = (one.calls, one.state);
        let sent = one.said.unwrap_or_else(|| Said::of(-2));
        if let Some(meddle) = meanwhile {
            self.meddle(op, meddle)?;
        }
        let n = sent.ret.max(0) as usize;
        let read = self.holder(other, conn).ask(&Order::Drain { conn, n, hash: 0 })?.said;
        let is_whole = read.is_some_and(|said| said.ret == n as i64 && (n == 0 || said.more == sent.more));
        let noticed = self.holder(side, conn).ask(&Order::Lent { conn })?.said;
        let look = Order::Make { conn, call: Call::Look(LookBy::Poll), cut: false };
        let shows = self.holder(side, conn).ask(&look)?.said;
        let sent = Said { ret: sent.ret.signum(), more: Vec::new(), ..sent };
        let said = [sent, Said::of(is_whole.into())].into_iter().chain(noticed).chain(shows).collect();
        Ok(Outcome { said, ns: 0, held_up_ns: 0, cpu_ns: 0, calls, state })
    }
}
