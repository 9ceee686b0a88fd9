//! Which two nominated sockets are the two ends of one connection. No I/O, no clock.
//!
//! Sequence numbers, where a privileged broker may look at them, are the match whatever lies between. Else,
//! in one network namespace, a connection's addresses name it: mirrored addresses are the match. Between
//! namespaces they may be anybody's, so that an exact mirror image of everything known is asked for, and
//! where two could be meant, neither is taken.

use crate::facts::{Facts, Tuple};
use crate::ism::{Party, SessionId};
use crate::sequence::Sequences;
use shunpike_wire::Reason;
use shunpike_wire::session::Role;
use std::collections::HashMap;
use std::hash::Hash;

/// How often one end may be asked to nominate again in a row.
pub const MAX_TRIES: u8 = 16;

/// What a nomination leads to. No decision on an end means: it waits.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Decision {
    /// Two ends of one connection. Neither waits any more.
    Matched {
        /// The end that connected.
        client: Party,
        /// The end that accepted.
        server: Party,
    },
    /// To be nominated again when quiet; no longer waiting.
    Again(Party),
    /// No lane; no longer waiting.
    Refused(Party, Reason),
}

#[derive(Copy, Clone)]
struct Waiting {
    role: Role,
    facts: Facts,
}

/// What is remembered of an end that is not matched.
#[derive(Default)]
struct Entry {
    waiting: Option<Waiting>,
    /// How often it was asked to nominate again.
    tries: u8,
}

/// Who the other end of a nomination is.
enum Counterpart {
    /// Nobody who waits.
    None,
    /// This one.
    Proved(Party),
    /// This one seems so, but is of an earlier connection.
    Stale(Party),
    /// Probably this one, but what is known does not suffice yet.
    Unproved(Party),
    /// One of several, or this one could be several's.
    Ambiguous(Vec<Party>),
}

/// The nominations that wait for their peer.
pub struct Matching {
    /// Whether ends in different namespaces are matched at all.
    across: bool,
    entries: HashMap<Party, Entry>,
    /// Those that wait, by their own view of the connection. One tuple may be in several namespaces.
    tuples: HashMap<Tuple, Vec<Party>>,
    /// Those that wait and whose sequence numbers are known, by these.
    sequences: HashMap<Sequences, Vec<Party>>,
    /// Entries of each session.
    sessions: HashMap<SessionId, usize>,
}

impl Matching {
    /// An empty table. `across`: match between namespaces without sequence numbers. Whoever is root in a
    /// namespace can imitate addresses and counts there, and so receive what is meant for another: only among
    /// processes that could do so anyway, those of one user.
    pub fn new(across: bool) -> Self {
        Self {
            across,
            entries: HashMap::new(),
            tuples: HashMap::new(),
            sequences: HashMap::new(),
            sessions: HashMap::new(),
        }
    }

    /// Enters a nomination, in the place of an earlier one of the same end.
    pub fn nominate(&mut self, party: Party, role: Role, facts: Facts) -> Vec<Decision> {
        self.stop_waiting(party);
        let mut decisions = Vec::new();
        let tuple = facts.tuple;
        if tuple == tuple.mirrored() {
            // Connected to itself (simultaneous open): one socket is both ends.
            return vec![self.refuse(party, Reason::Sync)];
        }
        for (other, twin) in self.at(tuple) {
            if twin.facts.cookie == facts.cookie {
                // One socket held by two processes: the first one speaks for it.
                return vec![self.refuse(party, Reason::Shared)];
            }
            if same_netns(&twin.facts, &facts) {
                // The kernel gives a tuple to one socket at a time: the older one is closed.
                decisions.push(self.refuse(other, Reason::NotEstablished));
            }
        }
        match self.counterpart(&facts) {
            Counterpart::None => {}
            Counterpart::Proved(peer) => {
                decisions.extend(self.meet(party, role, peer));
                return decisions;
            }
            Counterpart::Stale(peer) => decisions.push(self.refuse(peer, Reason::NotEstablished)),
            Counterpart::Unproved(peer) => {
                decisions.push(self.again(peer, Reason::Sync));
                decisions.push(self.again(party, Reason::Sync));
                return decisions;
            }
            Counterpart::Ambiguous(rivals) => {
                for rival in rivals {
                    decisions.push(self.again(rival, Reason::Indirect));
                }
                decisions.push(self.again(party, Reason::Indirect));
                return decisions;
            }
        }
        self.entry(party).waiting = Some(Waiting { role, facts });
        self.tuples.entry(tuple).or_default().push(party);
        if let Some(sequences) = facts.sequences {
            self.sequences.entry(sequences).or_default().push(party);
        }
        decisions
    }

    fn counterpart(&self, facts: &Facts) -> Counterpart {
        // 64 bits that only the two ends know are the best proof, whatever lies between them.
        let numbers = facts.sequences.map(Sequences::mirrored);
        let known = numbers.and_then(|numbers| self.sequences.get(&numbers)).map_or(&[][..], Vec::as_slice);
        match self.waiting_of(known).as_slice() {
            [] => {}
            [(peer, _)] => return Counterpart::Proved(*peer),
            several => return Counterpart::Ambiguous(several.iter().map(|(peer, _)| *peer).collect()),
        }
        let differ = |c: &Waiting| facts.sequences.is_some() && c.facts.sequences.is_some();
        let candidates = self.at(facts.tuple.mirrored());
        if let Some((peer, c)) = candidates.iter().find(|(_, c)| same_netns(&c.facts, facts)) {
            let is_peer = !differ(c) && follows(&c.facts, facts);
            // If not, it nominated an earlier connection of the same addresses.
            return if is_peer { Counterpart::Proved(*peer) } else { Counterpart::Stale(*peer) };
        }
        if !self.across || facts.tuple.is_loopback() {
            return Counterpart::None;
        }
        let mut far = candidates.iter().filter(|(_, c)| !differ(c) && could_be_peers(&c.facts, facts));
        let rivals = self.at(facts.tuple);
        match (far.next(), far.next()) {
            (None, _) => Counterpart::None,
            (Some((peer, c)), None) if rivals.is_empty() => {
                if exact_mirror(&c.facts, facts) {
                    Counterpart::Proved(*peer)
                } else {
                    Counterpart::Unproved(*peer)
                }
            }
            // The same addresses twice in different namespaces: nothing says who belongs to whom.
            _ => Counterpart::Ambiguous(candidates.iter().chain(&rivals).map(|(other, _)| *other).collect()),
        }
    }

    fn meet(&mut self, party: Party, role: Role, peer: Party) -> Vec<Decision> {
        let peers_role = self.entries.get(&peer).and_then(|entry| entry.waiting).map(|waiting| waiting.role);
        if peers_role == Some(role) {
            return vec![self.refuse(peer, Reason::Sync), self.refuse(party, Reason::Sync)];
        }
        self.withdraw(party);
        self.withdraw(peer);
        vec![match role {
            Role::Client => Decision::Matched { client: party, server: peer },
            Role::Server => Decision::Matched { client: peer, server: party },
        }]
    }

    /// Asks an end to nominate again, or refuses it with `reason` when it was asked [`MAX_TRIES`] times.
    pub fn again(&mut self, party: Party, reason: Reason) -> Decision {
        self.stop_waiting(party);
        let entry = self.entry(party);
        entry.tries += 1;
        if entry.tries > MAX_TRIES { self.refuse(party, reason) } else { Decision::Again(party) }
    }

    /// Refuses an end and forgets it.
    pub fn refuse(&mut self, party: Party, reason: Reason) -> Decision {
        self.withdraw(party);
        Decision::Refused(party, reason)
    }

    /// Forgets an end: it was closed, or wants no lane.
    pub fn withdraw(&mut self, party: Party) {
        self.stop_waiting(party);
        if self.entries.remove(&party).is_some()
            && let Some(count) = self.sessions.get_mut(&party.session)
        {
            *count -= 1;
            if *count == 0 {
                self.sessions.remove(&party.session);
            }
        }
    }

    /// Forgets all ends of a session.
    pub fn end_session(&mut self, session: SessionId) {
        if self.sessions.contains_key(&session) {
            let all: Vec<Party> = self.entries.keys().copied().filter(|p| p.session == session).collect();
            for party in all {
                self.withdraw(party);
            }
        }
    }

    /// Forgets all nominations and returns whose they were.
    pub fn clear(&mut self) -> Vec<Party> {
        self.tuples.clear();
        self.sequences.clear();
        self.sessions.clear();
        self.entries.drain().map(|(party, _)| party).collect()
    }

    /// Ends of a session that are remembered.
    pub fn of_session(&self, session: SessionId) -> usize {
        self.sessions.get(&session).copied().unwrap_or(0)
    }

    /// Whether this end's nomination waits.
    pub fn is_waiting(&self, party: Party) -> bool {
        self.entries.get(&party).is_some_and(|entry| entry.waiting.is_some())
    }

    /// Number of nominations that wait.
    pub fn waiting(&self) -> usize {
        self.tuples.values().map(Vec::len).sum()
    }

    /// Whether nothing is remembered of any end.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
            && self.tuples.is_empty()
            && self.sequences.is_empty()
            && self.sessions.is_empty()
    }

    fn at(&self, tuple: Tuple) -> Vec<(Party, Waiting)> {
        self.waiting_of(self.tuples.get(&tuple).map_or(&[][..], Vec::as_slice))
    }

    fn waiting_of(&self, parties: &[Party]) -> Vec<(Party, Waiting)> {
        parties.iter().filter_map(|party| Some((*party, self.entries.get(party)?.waiting?))).collect()
    }

    fn entry(&mut self, party: Party) -> &mut Entry {
        let sessions = &mut self.sessions;
        self.entries.entry(party).or_insert_with(|| {
            *sessions.entry(party.session).or_default() += 1;
            Entry::default()
        })
    }

    fn stop_waiting(&mut self, party: Party) {
        let Some(waiting) = self.entries.get_mut(&party).and_then(|entry| entry.waiting.take()) else {
            return;
        };
        forget(&mut self.tuples, &waiting.facts.tuple, party);
        if let Some(sequences) = waiting.facts.sequences {
            forget(&mut self.sequences, &sequences, party);
        }
    }
}

fn forget<K: Eq + Hash>(index: &mut HashMap<K, Vec<Party>>, key: &K, party: Party) {
    if let Some(parties) = index.get_mut(key) {
        parties.retain(|other| *other != party);
        if parties.is_empty() {
            index.remove(key);
        }
    }
}

fn same_netns(a: &Facts, b: &Facts) -> bool {
    a.netns.is_some() && a.netns == b.netns
}

/// Whether two ends in different namespaces agree on what does not change during a connection.
fn could_be_peers(a: &Facts, b: &Facts) -> bool {
    !same_netns(a, b) && a.cookie != b.cookie && a.terms == b.terms.mirrored()
}

/// Whether `late` can be the peer of `early`, seen some time before: what had been confirmed then must have
/// arrived by now, and what had arrived must have been sent.
fn follows(early: &Facts, late: &Facts) -> bool {
    early.cookie != late.cookie && late.arrived >= early.acked && late.sent >= early.arrived
}

/// Whether each end has received just what the other has sent. Empty counts are equal for everybody and
/// prove nothing.
fn exact_mirror(a: &Facts, b: &Facts) -> bool {
    a.is_quiet()
        && b.is_quiet()
        && a.sent == b.received
        && a.received == b.sent
        && (a.sent != 0 || a.received != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Endpoint, Terms};
    use proptest::prelude::*;
    use shunpike_wire::session::ConnId;
    use std::net::{IpAddr, Ipv4Addr};

    const CLIENT: u8 = 1;
    const SERVER: u8 = 2;

    fn party(session: u64, conn: u64) -> Party {
        Party { session: SessionId(session), conn: ConnId(conn) }
    }

    /// A quiet end in `netns` on host `local` of a connection to host `remote`.
    fn end(netns: u64, local: u8, remote: u8, sent: u64, received: u64) -> Facts {
        let endpoint = |host| Endpoint { ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)), port: host.into() };
        Facts {
            tuple: Tuple { local: endpoint(local), remote: endpoint(remote) },
            netns: Some(netns),
            cookie: netns << 32 | u64::from(local) << 8 | u64::from(remote),
            sent,
            received,
            arrived: received,
            acked: sent,
            terms: Terms { options: 7, snd_wscale: 7, rcv_wscale: 7 },
            sequences: None,
        }
    }

    fn client(netns: u64, sent: u64, received: u64) -> Facts {
        end(netns, CLIENT, SERVER, sent, received)
    }

    fn server(netns: u64, sent: u64, received: u64) -> Facts {
        end(netns, SERVER, CLIENT, sent, received)
    }

    const A: fn() -> Party = || party(1, 1);
    const B: fn() -> Party = || party(2, 1);

    #[test]
    fn mirrored_tuples_in_one_namespace_match_in_either_order() {
        let expected = vec![Decision::Matched { client: A(), server: B() }];
        let mut table = Matching::new(true);
        assert_eq!(table.nominate(A(), Role::Client, client(1, 5, 0)), []);
        assert_eq!(table.nominate(B(), Role::Server, server(1, 9, 5)), expected);
        assert_eq!(table.nominate(B(), Role::Server, server(1, 0, 0)), []);
        assert_eq!(table.nominate(A(), Role::Client, client(1, 0, 0)), expected);
        assert!(table.is_empty());
    }

    #[test]
    fn one_process_may_be_both_ends() {
        let mut table = Matching::new(true);
        table.nominate(party(1, 1), Role::Client, client(1, 0, 0));
        let decisions = table.nominate(party(1, 2), Role::Server, server(1, 0, 0));
        assert_eq!(decisions, [Decision::Matched { client: party(1, 1), server: party(1, 2) }]);
    }

    #[test]
    fn two_clients_are_not_a_connection_of_ours() {
        let mut table = Matching::new(true);
        table.nominate(A(), Role::Client, client(1, 0, 0));
        let decisions = table.nominate(B(), Role::Client, server(1, 0, 0));
        assert_eq!(decisions, [Decision::Refused(A(), Reason::Sync), Decision::Refused(B(), Reason::Sync)]);
        assert!(table.is_empty());
    }

    #[test]
    fn a_socket_connected_to_itself_is_refused() {
        let mut table = Matching::new(true);
        let decisions = table.nominate(A(), Role::Client, end(1, CLIENT, CLIENT, 0, 0));
        assert_eq!(decisions, [Decision::Refused(A(), Reason::Sync)]);
    }

    #[test]
    fn a_reused_tuple_replaces_the_closed_connection() {
        let mut table = Matching::new(true);
        table.nominate(A(), Role::Client, client(1, 100, 0));
        let reused = Facts { cookie: 99, ..client(1, 3, 0) };
        let decisions = table.nominate(party(1, 2), Role::Client, reused);
        assert_eq!(decisions, [Decision::Refused(A(), Reason::NotEstablished)]);
        let decisions = table.nominate(B(), Role::Server, server(1, 0, 3));
        assert_eq!(decisions, [Decision::Matched { client: party(1, 2), server: B() }]);
    }

    #[test]
    fn a_peer_that_cannot_be_of_this_connection_is_dropped() {
        let mut table = Matching::new(true);
        table.nominate(A(), Role::Client, client(1, 100, 0));
        // The server has received 3 bytes of what should be 100 confirmed ones.
        let decisions = table.nominate(B(), Role::Server, server(1, 0, 3));
        assert_eq!(decisions, [Decision::Refused(A(), Reason::NotEstablished)]);
        assert_eq!(table.waiting(), 1, "the server goes on waiting for the real client");
    }

    #[test]
    fn one_socket_in_two_processes_is_matched_once() {
        let mut table = Matching::new(true);
        table.nominate(A(), Role::Client, client(1, 0, 0));
        let decisions = table.nominate(party(3, 1), Role::Client, client(1, 0, 0));
        assert_eq!(decisions, [Decision::Refused(party(3, 1), Reason::Shared)]);
        assert_eq!(table.waiting(), 1);
    }

    #[test]
    fn between_namespaces_counts_must_mirror() {
        let mut table = Matching::new(true);
        table.nominate(A(), Role::Client, client(1, 10, 4));
        let decisions = table.nominate(B(), Role::Server, server(2, 4, 9));
        assert_eq!(decisions, [Decision::Again(A()), Decision::Again(B())]);
        table.nominate(A(), Role::Client, client(1, 10, 4));
        let decisions = table.nominate(B(), Role::Server, server(2, 4, 10));
        assert_eq!(decisions, [Decision::Matched { client: A(), server: B() }]);
        assert!(table.is_empty());
    }

    #[test]
    fn between_namespaces_a_busy_or_silent_connection_proves_nothing() {
        for (a, b) in [
            (client(1, 0, 0), server(2, 0, 0)),
            (Facts { arrived: 9, ..client(1, 10, 4) }, server(2, 4, 10)),
            (client(1, 10, 4), Facts { acked: 3, ..server(2, 4, 10) }),
        ] {
            let mut table = Matching::new(true);
            table.nominate(A(), Role::Client, a);
            let decisions = table.nominate(B(), Role::Server, b);
            assert_eq!(decisions, [Decision::Again(A()), Decision::Again(B())]);
        }
    }

    #[test]
    fn asking_again_ends() {
        let mut table = Matching::new(true);
        for _ in 0..MAX_TRIES {
            table.nominate(A(), Role::Client, client(1, 10, 4));
            let decisions = table.nominate(B(), Role::Server, server(2, 4, 9));
            assert_eq!(decisions, [Decision::Again(A()), Decision::Again(B())]);
        }
        table.nominate(A(), Role::Client, client(1, 10, 4));
        let decisions = table.nominate(B(), Role::Server, server(2, 4, 9));
        assert_eq!(decisions, [Decision::Refused(A(), Reason::Sync), Decision::Refused(B(), Reason::Sync)]);
        assert!(table.is_empty());
    }

    #[test]
    fn loopback_addresses_never_match_between_namespaces() {
        let to_loopback = |mut facts: Facts| {
            facts.tuple.local.ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
            facts.tuple.remote.ip = IpAddr::V4(Ipv4Addr::LOCALHOST);
            facts
        };
        let mut table = Matching::new(true);
        table.nominate(A(), Role::Client, to_loopback(client(1, 10, 4)));
        assert_eq!(table.nominate(B(), Role::Server, to_loopback(server(2, 4, 10))), []);
    }

    fn numbered(facts: Facts, own: u32, peer: u32) -> Facts {
        Facts { sequences: Some(Sequences { own, peer }), ..facts }
    }

    #[test]
    fn sequence_numbers_match_through_nat_and_namespaces_even_in_silence() {
        for across in [false, true] {
            let mut table = Matching::new(across);
            table.nominate(A(), Role::Client, numbered(end(1, 1, 2, 0, 0), 111, 222));
            let decisions = table.nominate(B(), Role::Server, numbered(end(2, 8, 9, 0, 0), 222, 111));
            assert_eq!(decisions, [Decision::Matched { client: A(), server: B() }]);
            assert!(table.is_empty());
        }
    }

    #[test]
    fn sequence_numbers_tell_equal_tuples_apart() {
        let mut table = Matching::new(true);
        table.nominate(A(), Role::Client, numbered(client(1, 10, 4), 1, 2));
        table.nominate(party(3, 1), Role::Client, numbered(client(3, 10, 4), 3, 4));
        let decisions = table.nominate(party(4, 1), Role::Server, numbered(server(4, 4, 10), 4, 3));
        assert_eq!(decisions, [Decision::Matched { client: party(3, 1), server: party(4, 1) }]);
        let decisions = table.nominate(B(), Role::Server, numbered(server(2, 4, 10), 2, 1));
        assert_eq!(decisions, [Decision::Matched { client: A(), server: B() }]);
    }

    #[test]
    fn sequence_numbers_that_differ_are_different_connections() {
        let mut table = Matching::new(true);
        table.nominate(A(), Role::Client, numbered(client(1, 10, 4), 1, 2));
        assert_eq!(table.nominate(B(), Role::Server, numbered(server(2, 4, 10), 2, 7)), []);
        let decisions = table.nominate(party(3, 1), Role::Server, numbered(server(1, 4, 10), 2, 7));
        assert_eq!(decisions[0], Decision::Refused(A(), Reason::NotEstablished), "A's connection is gone");
    }

    #[test]
    fn where_users_share_a_broker_namespaces_are_not_crossed() {
        let mut table = Matching::new(false);
        table.nominate(A(), Role::Client, client(1, 10, 4));
        assert_eq!(table.nominate(B(), Role::Server, server(2, 4, 10)), []);
        let decisions = table.nominate(party(3, 1), Role::Server, server(1, 4, 10));
        assert_eq!(decisions, [Decision::Matched { client: A(), server: party(3, 1) }]);
    }

    #[test]
    fn other_terms_are_another_connection() {
        let mut table = Matching::new(true);
        table.nominate(A(), Role::Client, client(1, 10, 4));
        let mut other = server(2, 4, 10);
        other.terms.snd_wscale = 9;
        assert_eq!(table.nominate(B(), Role::Server, other), []);
    }

    #[test]
    fn equal_tuples_in_two_namespaces_are_never_guessed() {
        let mut table = Matching::new(true);
        table.nominate(A(), Role::Client, client(1, 10, 4));
        assert_eq!(table.nominate(party(3, 1), Role::Client, client(3, 10, 4)), []);
        let decisions = table.nominate(B(), Role::Server, server(2, 4, 10));
        assert_eq!(decisions.len(), 3);
        assert!(decisions.iter().all(|d| matches!(d, Decision::Again(_))), "{decisions:?}");
        assert_eq!(table.waiting(), 0);
    }

    #[test]
    fn an_ended_session_or_withdrawn_end_is_forgotten() {
        let mut table = Matching::new(true);
        table.nominate(A(), Role::Client, client(1, 0, 0));
        table.withdraw(A());
        assert_eq!(table.nominate(B(), Role::Server, server(1, 0, 0)), []);
        table.end_session(B().session);
        assert!(table.is_empty());
        assert_eq!(table.nominate(A(), Role::Client, client(1, 0, 0)), []);
    }

    proptest! {
        /// Connections between namespaces, some of them with equal tuples and equal counts, nominated in
        /// any order and repeatedly: two ends of different connections are matched only if nothing
        /// distinguishes them and one of the true ends was not there; here all ends are always there.
        #[test]
        fn wrong_ends_never_meet_while_the_right_ones_wait(
            order in Just((0..8_u64).collect::<Vec<_>>()).prop_shuffle(),
            counts in prop::collection::vec((1..3_u64, 1..3_u64), 4),
        ) {
            let mut table = Matching::new(true);
            let connection = |end: u64| end / 2;
            let mut waiting_before_any_server = true;
            // All clients first: then each server sees every rival.
            let (clients, servers): (Vec<u64>, Vec<u64>) = order.iter().partition(|end| *end % 2 == 0);
            for end in clients.into_iter().chain(servers) {
                let (tx, rx) = counts[connection(end) as usize];
                let decisions = if end % 2 == 0 {
                    table.nominate(party(end, 0), Role::Client, client(end, tx, rx))
                } else {
                    waiting_before_any_server = false;
                    table.nominate(party(end, 0), Role::Server, server(end, rx, tx))
                };
                for decision in decisions {
                    if let Decision::Matched { client, server } = decision {
                        prop_assert!(!waiting_before_any_server);
                        prop_assert_eq!(connection(client.session.0), connection(server.session.0));
                    }
                }
            }
        }

        /// Whatever is nominated, withdrawn and ended: nothing is left once all sessions have ended, and
        /// nobody is matched with itself or with an end of the same role.
        #[test]
        fn nothing_is_left_behind(
            steps in prop::collection::vec((0..4_u64, 0..3_u64, 0..3_u64, 1..4_u8, 1..4_u8, any::<bool>()), 0..60)
        ) {
            let mut table = Matching::new(true);
            for (session, conn, netns, local, remote, is_client) in steps {
                let role = if is_client { Role::Client } else { Role::Server };
                match conn {
                    0 if netns == 0 => table.withdraw(party(session, 0)),
                    0 if netns == 1 => table.end_session(SessionId(session)),
                    _ => {
                        let facts = end(netns, local, remote, 1, 1);
                        for decision in table.nominate(party(session, conn), role, facts) {
                            if let Decision::Matched { client, server } = decision {
                                prop_assert_ne!(client, server);
                            }
                        }
                    }
                }
            }
            for session in 0..4 {
                table.end_session(SessionId(session));
            }
            prop_assert!(table.is_empty());
        }
    }
}
