//! Two calls at once: one that is cut between two of its instructions, and what is made meanwhile.

use std::time::Duration;

use super::{Outcome, Stage};
use crate::model::Model;
use crate::op::{Call, Op};
use crate::order::{How, Order, Reply};
use crate::stepper::Stepper;
use crate::team::{HANG, Trouble};

impl Stage {
    /// Two calls of a process on a connection, one after the other.
    pub(super) fn pair(
        &mut self,
        op: Op,
        next: Op,
        how: How,
        model: &mut Model,
    ) -> Result<[Option<Outcome>; 2], Trouble> {
        let order = Order::Pair { conn: op.conn, calls: [op.call, next.call], how };
        let reply = self.holder(op.side, op.conn).ask(&order)?;
        self.both_happened(op, next, reply, how, model)
    }

    fn both_happened(
        &mut self,
        op: Op,
        next: Op,
        mut reply: Reply,
        how: How,
        model: &mut Model,
    ) -> Result<[Option<Outcome>; 2], Trouble> {
        let also = reply.also.take().into_iter().collect::<Vec<_>>();
        let first = Outcome::from(reply);
        let mut second = Outcome { said: also, ..Outcome::nothing() };
        if how == How::Swapped {
            model.happened(next, &second.said);
            model.happened(op, &first.said);
        } else {
            model.happened(op, &first.said);
            model.happened(next, &second.said);
        }
        self.hear_waits(model, &mut second)?;
        Ok([Some(first), Some(second)])
    }

    /// A call, and another one between two of its instructions. Who would wait for the first one's end waits for it, and no longer.
    pub(super) fn cut(
        &mut self,
        op: Op,
        next: Op,
        model: &mut Model,
    ) -> Result<[Option<Outcome>; 2], Trouble> {
        const MOST: Duration = Duration::from_millis(300);
        // One that waits for a lock of the stopped thread does so for no longer.
        const MOST_OF_A_THREAD: Duration = Duration::from_millis(20);
        let (conn, steps) = (op.conn, op.cut.unwrap_or(0));
        let order = |op: Op, cut| Order::Make { conn: op.conn, call: op.call, cut };
        let is_pair = next.side == op.side && !next.call.is_of_driver();
        let actor = self.holder(op.side, conn);
        let stepper = Stepper::seize(actor.pid as u32)
            .map_err(|error| Trouble::Died(format!("not traced: {error}")))?;
        if is_pair {
            actor.tell(&Order::Pair { conn, calls: [op.call, next.call], how: How::Traced });
        } else {
            actor.tell(&order(op, true));
        }
        let is_within = stepper.begin(steps, HANG)?;
        self.windows += u64::from(is_within);
        let mut other = None;
        match next.call {
            Call::Kill if is_within => {
                self.drive(next)?;
                drop(stepper);
                let mut outcome = Outcome::nothing();
                // Nobody tells how far it came.
                model.may_have_happened(op);
                model.happened(next, &[]);
                self.hear_waits(model, &mut outcome)?;
                return Ok([None, Some(outcome)]);
            }
            Call::Kill => {}
            Call::Signal(_) if is_within => self.holder(op.side, conn).signal(libc::SIGUSR1),
            Call::Signal(_) => {}
            _ if is_pair => self.holder(op.side, conn).go(if is_within {
                MOST_OF_A_THREAD
            } else {
                Duration::from_millis(1)
            }),
            call if call.is_of_driver() => self.drive(next)?,
            _ if is_within => {
                let peer = self.holder(next.side, conn);
                peer.tell(&order(next, false));
                other = peer.replies.recv_timeout(MOST).ok();
            }
            _ => {}
        }
        if is_within {
            stepper.end(HANG)?;
        }
        drop(stepper);
        let first = self.holder(op.side, conn).hear()?;
        if is_pair {
            return self.both_happened(op, next, first, How::Traced, model);
        }
        let mut first = Outcome::from(first);
        model.happened(op, &first.said);
        if next.call.is_of_driver() {
            if next.call == Call::Kill {
                self.drive(next)?;
            }
            model.happened(next, &[]);
            self.hear_waits(model, &mut first)?;
            return Ok([Some(first), Some(Outcome::nothing())]);
        }
        let peer = self.holder(next.side, conn);
        let second = match other {
            Some(line) => serde_json::from_str(&line).map_err(|_| Trouble::Died(line))?,
            None if is_within => peer.hear()?,
            None => peer.ask(&order(next, false))?,
        };
        let mut second = Outcome::from(second);
        model.happened(next, &second.said);
        self.hear_waits(model, &mut second)?;
        Ok([Some(first), Some(second)])
    }
}
