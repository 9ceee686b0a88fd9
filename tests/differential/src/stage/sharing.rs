//! Connections that several processes of a side have, or that go from one to another.

use super::{Outcome, Stage};
use crate::calls::Said;
use crate::op::{Call, Op, Side};
use crate::order::Order;
use crate::team::Trouble;

impl Stage {
    /// The connection goes to the side's other process by a message; with `keeps`, this one has it, too.
    pub(super) fn give(&mut self, side: Side, conn: u8, keeps: bool) -> Result<Outcome, Trouble> {
        self.let_broker_go_on();
        let command = self.command(side);
        let team = &mut self.teams.as_mut().expect("ready")[side as usize];
        if team.actors.len() == 1 {
            team.add(command)?;
        }
        let given = team.holder(conn).ask(&Order::Give { conn })?;
        let (ns, state) = (given.ns, given.state);
        let said = given.said.unwrap_or_else(|| Said::of(-2));
        let &[sent, serial] = &said.more[..] else { return Err(Trouble::Died(format!("{said:?}"))) };
        let old = team.holders[conn as usize];
        let (sent, serial) = (sent as u64, serial as u64);
        let taken = team.actors[1 - old].ask(&Order::Take { conn, sent, serial })?;
        if keeps {
            team.also[conn as usize] = Some(1 - old);
        } else {
            team.holders[conn as usize] = 1 - old;
            team.actors[old].ask(&Order::Forget { conn })?;
        }
        let said = vec![Said::of(said.ret), taken.said.unwrap_or_else(|| Said::of(-2))];
        Ok(Outcome { said, ns: ns.max(taken.ns), held_up_ns: 0, cpu_ns: 0, calls: given.calls, state })
    }

    /// A process forks one that has its connections, too, or lets one that has this one make the next calls.
    pub(super) fn share(&mut self, op: Op) -> Result<Outcome, Trouble> {
        let team = &mut self.teams.as_mut().expect("ready")[op.side as usize];
        let done = if op.call == Call::Branch {
            Outcome::from(team.fork(op.conn)?)
        } else {
            team.swap(op.conn);
            Outcome::nothing()
        };
        Ok(Outcome { said: vec![Said::of(1)], ..done })
    }
}
