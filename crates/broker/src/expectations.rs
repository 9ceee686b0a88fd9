//! Who is about to connect where, and who listens where: what lets a program that waits for its lane know
//! whether anybody may come to the other end. Hints only; nothing is matched by them.

use crate::facts::{Endpoint, Tuple};
use crate::ism::{Party, SessionId};
use shunpike_wire::session::{ConnId, Expected, Role};
use std::collections::HashMap;

/// Expectations of one session; what comes beyond is not noted.
const MOST: usize = 4096;

/// What all sessions expect.
#[derive(Default)]
pub struct Expectations {
    of: HashMap<SessionId, HashMap<ConnId, (Role, Endpoint)>>,
    at: HashMap<(Role, u16), Vec<(Party, Endpoint)>>,
}

impl Expectations {
    /// Notes one, in the place of an earlier one of the same name.
    pub fn enter(&mut self, party: Party, role: Role, endpoint: Endpoint) {
        self.remove(party);
        let own = self.of.entry(party.session).or_default();
        if own.len() < MOST {
            own.insert(party.conn, (role, endpoint));
            self.at.entry((role, endpoint.port)).or_default().push((party, endpoint));
        }
    }

    /// Forgets one, if it is there.
    pub fn remove(&mut self, party: Party) {
        let Some(own) = self.of.get_mut(&party.session) else { return };
        let removed = own.remove(&party.conn);
        if own.is_empty() {
            self.of.remove(&party.session);
        }
        if let Some((role, Endpoint { port, .. })) = removed
            && let Some(there) = self.at.get_mut(&(role, port))
        {
            there.retain(|(other, _)| *other != party);
            if there.is_empty() {
                self.at.remove(&(role, port));
            }
        }
    }

    /// Forgets all of a session.
    pub fn end_session(&mut self, session: SessionId) {
        let conns: Vec<ConnId> =
            self.of.get(&session).into_iter().flat_map(|own| own.keys().copied()).collect();
        for conn in conns {
            self.remove(Party { session, conn });
        }
    }

    /// Who may be at the other end of a connection of `session`, which has `role` there and sees `tuple`.
    /// Only sessions that `counts` lets count.
    pub fn other_end(
        &self,
        session: SessionId,
        role: Role,
        tuple: Tuple,
        counts: impl Fn(SessionId) -> bool,
    ) -> Expected {
        let (wanted, endpoint) = match role {
            Role::Client => (Role::Server, tuple.remote),
            Role::Server => (Role::Client, tuple.local),
        };
        let there = self.at.get(&(wanted, endpoint.port)).map_or(&[][..], Vec::as_slice);
        let here = |other: &Endpoint| {
            other.ip == endpoint.ip || (wanted == Role::Server && other.ip.is_unspecified())
        };
        let mut sessions =
            there.iter().filter(|(_, at)| here(at)).map(|(party, _)| party.session).filter(|id| counts(*id));
        match (sessions.next(), sessions.any(|id| id != session)) {
            (None, _) => Expected::Nobody,
            (Some(first), false) if first == session => Expected::Own,
            _ => Expected::Other,
        }
    }

    /// Who expects something.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.of.keys().copied()
    }

    /// Whether nothing is expected.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty() && self.at.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(text: &str) -> Endpoint {
        text.parse::<std::net::SocketAddr>().unwrap().into()
    }

    fn party(session: u64, conn: u64) -> Party {
        Party { session: SessionId(session), conn: ConnId(conn) }
    }

    #[test]
    fn each_end_is_told_of_the_other() {
        let mut all = Expectations::default();
        let client = Tuple { local: endpoint("127.0.0.1:5000"), remote: endpoint("127.0.0.1:80") };
        let server = client.mirrored();
        let of = |all: &Expectations, session, role, tuple| {
            all.other_end(SessionId(session), role, tuple, |session| session != SessionId(66))
        };
        assert_eq!(of(&all, 1, Role::Client, client), Expected::Nobody);
        all.enter(party(66, 1), Role::Server, endpoint("127.0.0.1:80"));
        all.enter(party(2, 1), Role::Server, endpoint("127.0.0.2:80"));
        assert_eq!(of(&all, 1, Role::Client, client), Expected::Nobody, "another user's, another address");
        all.enter(party(2, 1), Role::Server, endpoint("[::ffff:0.0.0.0]:80"));
        assert_eq!(of(&all, 1, Role::Client, client), Expected::Other);
        assert_eq!(of(&all, 2, Role::Client, client), Expected::Own);
        assert_eq!(of(&all, 2, Role::Server, server), Expected::Nobody);
        all.enter(party(1, 9), Role::Client, endpoint("127.0.0.1:80"));
        assert_eq!(of(&all, 2, Role::Server, server), Expected::Other);
        assert_eq!(of(&all, 1, Role::Server, server), Expected::Own);
        all.remove(party(1, 9));
        all.remove(party(1, 9));
        assert_eq!(of(&all, 2, Role::Server, server), Expected::Nobody);
        all.end_session(SessionId(2));
        all.end_session(SessionId(66));
        assert!(all.is_empty());
    }

    #[test]
    fn a_session_has_so_many() {
        let mut all = Expectations::default();
        for conn in 0..2 * MOST as u64 {
            all.enter(party(1, conn), Role::Client, endpoint("127.0.0.1:80"));
        }
        assert_eq!(all.at[&(Role::Client, 80)].len(), MOST);
        all.end_session(SessionId(1));
        assert!(all.is_empty());
    }
}
