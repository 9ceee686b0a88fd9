//! What has to reach the broker though its socket is full just now: that something has ended. Lost, it would keep a
//! DMB or a slot for as long as the session lasts.

use shunpike_wire::session::{ConnId, ToBroker};

/// As many endings as can wait. A broker that is further behind loses the session, and with it all that it holds.
const MOST: usize = 1024;

#[derive(Copy, Clone)]
enum Ending {
    Withdraw(u64),
    Unregister(u64),
    Detach(u64),
}

/// Endings in the order in which they came.
pub struct Unsent {
    items: [Ending; MOST],
    first: usize,
    count: usize,
}

impl Unsent {
    /// None.
    pub const fn new() -> Self {
        Self { items: [Ending::Withdraw(0); MOST], first: 0, count: 0 }
    }

    /// The one that is next.
    pub fn first(&self) -> Option<ToBroker> {
        (self.count > 0).then(|| match self.items[self.first] {
            Ending::Withdraw(conn) => ToBroker::Withdraw { conn: ConnId(conn) },
            Ending::Unregister(token) => ToBroker::Unregister { token },
            Ending::Detach(token) => ToBroker::Detach { token },
        })
    }

    /// The first one was sent.
    pub fn sent(&mut self) {
        self.first = (self.first + 1) % MOST;
        self.count -= 1;
    }

    /// Keeps an ending for later. Errors: as many as can wait do, or `None`: this is no ending.
    pub fn keep(&mut self, message: &ToBroker) -> Result<(), Option<Full>> {
        let ending = match *message {
            ToBroker::Withdraw { conn } => Ending::Withdraw(conn.0),
            ToBroker::Unregister { token } => Ending::Unregister(token),
            ToBroker::Detach { token } => Ending::Detach(token),
            _ => return Err(None),
        };
        if self.count == MOST {
            return Err(Some(Full));
        }
        self.items[(self.first + self.count) % MOST] = ending;
        self.count += 1;
        Ok(())
    }

    /// Forgets all: what they are about ended with the session.
    pub fn clear(&mut self) {
        self.count = 0;
    }
}

/// No room for one more.
pub struct Full;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endings_keep_their_order_and_have_a_bound() {
        let mut unsent = Unsent::new();
        let endings = |n| match n % 3 {
            0 => ToBroker::Withdraw { conn: ConnId(n) },
            1 => ToBroker::Unregister { token: n },
            _ => ToBroker::Detach { token: n },
        };
        for round in 0..3 {
            for n in 0..MOST as u64 {
                assert!(unsent.keep(&endings(round + n)).is_ok());
            }
            assert!(matches!(unsent.keep(&endings(0)), Err(Some(Full))));
            for n in 0..MOST as u64 {
                assert_eq!(unsent.first(), Some(endings(round + n)));
                unsent.sent();
            }
            assert_eq!(unsent.first(), None);
        }
        assert!(matches!(unsent.keep(&ToBroker::Attach { conn: ConnId(1), token: 1 }), Err(None)));
    }
}
