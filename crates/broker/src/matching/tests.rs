//! What is matched, and above all what is not.

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

/// A kernel before 5.14 has no name for a network namespace.
#[test]
fn namespaces_without_a_name_are_not_equal() {
    let nameless = |facts: Facts| Facts { netns: None, ..facts };
    let mut table = Matching::new(false);
    table.nominate(A(), Role::Client, nameless(client(1, 5, 0)));
    assert_eq!(table.nominate(B(), Role::Server, nameless(server(2, 0, 5))), []);
    assert!(!same_netns(&nameless(client(1, 5, 0)), &nameless(client(1, 5, 0))));
    assert!(
        same_netns(&client(1, 5, 0), &server(1, 0, 5)) && !same_netns(&client(1, 5, 0), &server(2, 0, 5))
    );
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
    assert_eq!(decisions, [Decision::Again(A()), Decision::Again(B())], "once may be chance");
    table.nominate(B(), Role::Server, server(2, 4, 10));
    let decisions = table.nominate(A(), Role::Client, client(1, 10, 4));
    assert_eq!(decisions, [Decision::Again(B()), Decision::Again(A())], "nothing has moved since");
    table.nominate(B(), Role::Server, server(2, 5, 11));
    let decisions = table.nominate(A(), Role::Client, client(1, 11, 5));
    assert_eq!(decisions, [Decision::Matched { client: A(), server: B() }]);
    assert!(table.is_empty());
}

#[test]
fn between_namespaces_a_busy_or_silent_connection_proves_nothing() {
    for (a, b) in [
        (client(1, 0, 0), server(2, 0, 0)),
        (Facts { arrived: 9, ..client(1, 10, 4) }, server(2, 4, 10)),
        (client(1, 10, 4), server(2, 4, 9)),
        (client(1, 10, 4), server(2, 5, 10)),
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
fn a_rival_that_was_asked_again_still_is_one() {
    let mut table = Matching::new(true);
    let again = |party| Decision::Again(party);
    table.nominate(A(), Role::Client, client(1, 10, 4));
    // Not its peer, but like it: the true one comes later.
    let other = party(4, 1);
    assert_eq!(table.nominate(other, Role::Server, server(4, 4, 10)), [again(A()), again(other)]);
    table.nominate(B(), Role::Server, server(2, 5, 11));
    let decisions = table.nominate(A(), Role::Client, client(1, 11, 5));
    assert_eq!(decisions, [again(B()), again(A())]);
    assert_eq!(table.nominate(other, Role::Server, server(4, 5, 11)), []);
    let decisions = table.nominate(A(), Role::Client, client(1, 11, 5));
    assert_eq!(decisions, [again(other), again(A())]);
    table.withdraw(other);
    for (n, expected) in [(12, false), (13, true)] {
        table.nominate(A(), Role::Client, client(1, n, 5));
        let decisions = table.nominate(B(), Role::Server, server(2, 5, n));
        let matched = decisions == [Decision::Matched { client: A(), server: B() }];
        assert_eq!(matched, expected, "{n}: {decisions:?}");
    }
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

/// It used to be as many entries, each of which every later nomination looked at.
#[test]
fn a_socket_that_is_nominated_from_many_blocks_is_entered_once() {
    let mut table = Matching::new(false);
    for conn in 1..1000 {
        let facts = Facts { sequences: Some(Sequences { own: 1, peer: 2 }), ..client(1, 0, 0) };
        assert_eq!(table.nominate(party(1, conn), Role::Client, facts), []);
        table.again(party(1, conn), Reason::BypassedHooks);
        assert_eq!((table.tuples.len(), table.at(facts.tuple).len()), (1, 1));
        assert_eq!(table.sequences.values().map(Vec::len).sum::<usize>(), 1);
    }
    assert!(table.is_consistent());
}
