//! Who is about to connect where, and who listens where: what lets a program that waits for its lane know
//! whether anybody may come to the other end. Hints only; nothing is matched by them.

use crate::ends::{Party, SessionId};
use crate::facts::{Endpoint, Tuple};
use shunpike_wire::session::{ConnId, Expected, Role};
use std::collections::{BTreeMap, HashMap};
use std::net::{Ipv4Addr, Ipv6Addr};

/// Expectations of one session; what comes beyond is not noted.
const MOST: usize = 4096;
/// Those of all sessions of one user.
const OF_USER: usize = 4 * MOST;

/// What one session expects.
struct Own {
    user: u32,
    of: HashMap<ConnId, (Role, Endpoint)>,
}

/// What all sessions expect.
#[derive(Default)]
pub struct Expectations {
    of: HashMap<SessionId, Own>,
    /// Who expects something there, and how often.
    at: HashMap<(Role, Endpoint), BTreeMap<SessionId, usize>>,
    users: HashMap<u32, usize>,
}

impl Expectations {
    /// Notes one of a session of `user`, in the place of an earlier one of the same name.
    pub fn enter(&mut self, party: Party, user: u32, role: Role, endpoint: Endpoint) {
        self.remove(party);
        let of_user = self.users.get(&user).copied().unwrap_or(0);
        let of_session = self.of.get(&party.session).map_or(0, |own| own.of.len());
        if of_session >= MOST || of_user >= OF_USER {
            return;
        }
        let own = self.of.entry(party.session).or_insert_with(|| Own { user, of: HashMap::new() });
        own.of.insert(party.conn, (role, endpoint));
        *self.users.entry(own.user).or_default() += 1;
        *self.at.entry((role, endpoint)).or_default().entry(party.session).or_default() += 1;
    }

    /// Forgets one, if it is there.
    pub fn remove(&mut self, party: Party) {
        let Some(own) = self.of.get_mut(&party.session) else { return };
        let (removed, user) = (own.of.remove(&party.conn), own.user);
        if own.of.is_empty() {
            self.of.remove(&party.session);
        }
        let Some(place) = removed else { return };
        take_one(&mut self.users, user);
        if let Some(there) = self.at.get_mut(&place) {
            if let Some(count) = there.get_mut(&party.session) {
                *count -= 1;
                if *count == 0 {
                    there.remove(&party.session);
                }
            }
            if there.is_empty() {
                self.at.remove(&place);
            }
        }
    }

    /// Forgets all of a session.
    pub fn end_session(&mut self, session: SessionId) {
        let conns: Vec<ConnId> =
            self.of.get(&session).into_iter().flat_map(|own| own.of.keys().copied()).collect();
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
        // A server may listen on all addresses of a kind.
        let all = [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
        let all = all.into_iter().filter(|ip| wanted == Role::Server && *ip != endpoint.ip);
        let places = std::iter::once(endpoint.ip).chain(all).map(|ip| (wanted, Endpoint { ip, ..endpoint }));
        let mut is_own = false;
        for id in places.filter_map(|place| self.at.get(&place)).flat_map(BTreeMap::keys) {
            if *id == session {
                is_own |= counts(*id);
            } else if counts(*id) {
                return Expected::Other;
            }
        }
        if is_own { Expected::Own } else { Expected::Nobody }
    }

    /// Who expects something.
    pub fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.of.keys().copied()
    }

    /// Whether nothing is expected.
    pub fn is_empty(&self) -> bool {
        self.of.is_empty() && self.at.is_empty() && self.users.is_empty()
    }
}

fn take_one(counts: &mut HashMap<u32, usize>, of: u32) {
    if let Some(count) = counts.get_mut(&of) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&of);
        }
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
        all.enter(party(66, 1), 7, Role::Server, endpoint("127.0.0.1:80"));
        all.enter(party(2, 1), 7, Role::Server, endpoint("127.0.0.2:80"));
        assert_eq!(of(&all, 1, Role::Client, client), Expected::Nobody, "another user's, another address");
        all.enter(party(2, 1), 7, Role::Server, endpoint("[::ffff:0.0.0.0]:80"));
        assert_eq!(of(&all, 1, Role::Client, client), Expected::Other);
        assert_eq!(of(&all, 2, Role::Client, client), Expected::Own);
        assert_eq!(of(&all, 2, Role::Server, server), Expected::Nobody);
        all.enter(party(1, 9), 7, Role::Client, endpoint("127.0.0.1:80"));
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
    fn a_session_has_so_many_and_so_has_a_user() {
        let mut all = Expectations::default();
        let server = endpoint("127.0.0.1:80");
        for conn in 0..2 * MOST as u64 {
            all.enter(party(1, conn), 7, Role::Client, server);
        }
        assert_eq!(all.at[&(Role::Client, server)][&SessionId(1)], MOST);
        for session in 2..12 {
            for conn in 0..MOST as u64 {
                all.enter(party(session, conn), 7, Role::Client, server);
            }
        }
        assert_eq!(all.users[&7], OF_USER);
        all.enter(party(20, 1), 8, Role::Client, server);
        assert_eq!(all.users[&8], 1, "another user's are its own");
        (1..=20).for_each(|session| all.end_session(SessionId(session)));
        assert!(all.is_empty());
    }

    /// It took 22 seconds for 64 sessions.
    #[test]
    fn what_many_expect_at_one_place_goes_at_once() {
        let mut all = Expectations::default();
        for session in 0..64 {
            for conn in 0..MOST as u64 {
                all.enter(party(session, conn), session as u32, Role::Client, endpoint("127.0.0.1:80"));
            }
        }
        let start = std::time::Instant::now();
        (0..64).for_each(|session| all.end_session(SessionId(session)));
        assert!(
            all.is_empty() && start.elapsed() < std::time::Duration::from_secs(5),
            "{:?}",
            start.elapsed()
        );
    }
}
