//! The tables under any order of messages and deaths.

use super::*;
use crate::facts::{Terms, Tuple};
use crate::foreign::{Graves, Last};
use crate::loopback::LoopbackIsm;
use crate::policy::{Limits, Peers};
use proptest::prelude::*;
use rustix::fd::{AsFd, OwnedFd};
use shunpike_shm::lane::HEADER;
use shunpike_shm::region;
use shunpike_wire::Gid;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

const SESSIONS: u64 = 3;

/// What one test DMB takes, bytes.
const DMB: u64 = (HEADER as u64) + (16 << 10);

fn exchange() -> Exchange {
    exchange_with(|_| {})
}

fn exchange_with(change: impl FnOnce(&mut Policy)) -> Exchange {
    let mut policy = Policy::system_wide(8, 32);
    change(&mut policy);
    Exchange::new(Box::new(LoopbackIsm::new(Gid(7), 16)), policy, false)
}

fn bell() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("eventfd")
}

fn party(session: u64, conn: u64) -> Party {
    Party { session: SessionId(session), conn: ConnId(conn) }
}

/// The client's (1) or the server's (2) end of the connection over `port`.
fn facts(side: u8, port: u16) -> Proof {
    let endpoint = |host| Endpoint { ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)), port };
    Proof::Proved(Facts {
        tuple: Tuple { local: endpoint(side), remote: endpoint(3 - side) },
        netns: Some(1),
        cookie: u64::from(port) << 8 | u64::from(side),
        sent: 0,
        received: 0,
        arrived: 0,
        acked: 0,
        terms: Terms { options: 0, snd_wscale: 0, rcv_wscale: 0 },
        sequences: None,
    })
}

fn join(exchange: &mut Exchange, client: Party, server: Party, port: u16) {
    exchange.nominate(client, Role::Client, facts(1, port), false);
    exchange.nominate(server, Role::Server, facts(2, port), false);
}

fn inode(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).expect("stat").st_ino
}

fn memory() -> Option<Shared> {
    region::create("dmb", HEADER + (16 << 10)).ok().map(Shared::from)
}

fn posts_to(exchange: &mut Exchange, session: u64) -> Vec<FromBroker> {
    let (own, others) = std::mem::take(&mut exchange.posts).into_iter().partition(|p| p.to.0 == session);
    exchange.posts = others;
    Vec::into_iter(own).map(|post: Post| post.message).collect()
}

#[test]
fn users_are_kept_apart() {
    let mut exchange = exchange();
    exchange.begin_session(SessionId(1), Identity::of_user(1000), bell().into(), 1);
    exchange.begin_session(SessionId(2), Identity::of_user(1001), bell().into(), 1);
    join(&mut exchange, party(1, 1), party(2, 1), 80);
    let reason = Reason::NotPermitted.code();
    for session in [1, 2] {
        let told = posts_to(&mut exchange, session);
        assert_eq!(told, [FromBroker::Refused { conn: ConnId(1), reason }]);
    }
}

#[test]
fn policy_decides_who_is_joined() {
    let mut exchange = exchange_with(|policy| policy.peers = Peers::Any);
    exchange.begin_session(SessionId(1), Identity::of_user(1000), bell().into(), 1);
    exchange.begin_session(SessionId(2), Identity::of_user(1001), bell().into(), 1);
    join(&mut exchange, party(1, 1), party(2, 1), 80);
    assert_eq!(exchange.peer(party(1, 1)), Some(party(2, 1)));
}

/// A lane that is open, and a handshake that is between any two of its steps.
#[test]
fn a_policy_that_forbids_what_was_matched_ends_it_on_both_sides() {
    let mut exchange = exchange_with(|policy| policy.peers = Peers::Any);
    for (session, uid) in [(1, 1000), (2, 1001), (3, 1000)] {
        exchange.begin_session(SessionId(session), Identity::of_user(uid), bell().into(), 1);
    }
    join(&mut exchange, party(1, 1), party(2, 1), 80);
    join(&mut exchange, party(1, 2), party(3, 1), 81);
    exchange.register(party(2, 1), 0, memory());
    let Some(FromBroker::Registered { token, .. }) = exchange.posts.pop().map(|post| post.message) else {
        panic!("not registered")
    };
    exchange.posts.clear();
    let policy = Policy::system_wide(8, 8);
    assert_eq!(exchange.set_policy(policy.clone()), 1);
    for session in [1, 2] {
        assert_eq!(posts_to(&mut exchange, session), [FromBroker::Revoke { conn: ConnId(1) }]);
    }
    assert_eq!(posts_to(&mut exchange, 3), [], "one user's is none of it");
    assert_eq!(register(&mut exchange, 1, 1), Some(Reason::NotPermitted));
    exchange.attach(party(1, 1), token);
    let answer = posts_to(&mut exchange, 1);
    let reason = Reason::NotPermitted.code();
    assert_eq!(answer, [FromBroker::Attached { conn: ConnId(1), token, class: 0, reason }]);
    assert_eq!(register(&mut exchange, 1, 2), None);
    assert_eq!(exchange.set_policy(Policy { peers: Peers::Any, ..policy }), 0);
}

#[test]
fn a_parked_dmb_goes_with_the_policy_that_permitted_its_pair() {
    let mut exchange =
        with_users(exchange_with(|policy| policy.peers = Peers::Any), [1000, 1001, 1000, 1000]);
    let token = registered_and_attached(&mut exchange);
    exchange.detach(SessionId(2), token, true);
    exchange.park(SessionId(1), token, Instant::now());
    exchange.posts.clear();
    let policy = Policy { peers: Peers::Any, ..Policy::system_wide(8, 8) };
    exchange.set_policy(policy.clone());
    assert_eq!(
        (exchange.device.dmb_count(), posts_to(&mut exchange, 1)),
        (1, vec![]),
        "it permits them, too"
    );
    exchange.set_policy(Policy { peers: Peers::SameUser, ..policy });
    assert_eq!(
        posts_to(&mut exchange, 1),
        [FromBroker::Revoke { conn: ConnId(1) }, FromBroker::Dropped { token }]
    );
    assert_eq!((exchange.device.dmb_count(), exchange.audit()), (0, Ok(())));
}

/// Registers a DMB for connection `conn` of `session`; why not.
fn register(exchange: &mut Exchange, session: u64, conn: u64) -> Option<Reason> {
    exchange.register(party(session, conn), 0, memory());
    match exchange.posts.pop().expect("an answer").message {
        FromBroker::Registered { reason, .. } => Reason::from_code(reason),
        other => panic!("{other:?}"),
    }
}

fn with_users(mut exchange: Exchange, users: [u32; 4]) -> Exchange {
    for (session, uid) in (1..).zip(users) {
        exchange.begin_session(SessionId(session), Identity::of_user(uid), bell().into(), 1);
    }
    exchange
}

const LIMIT: Option<Reason> = Some(Reason::DmbLimit);

#[test]
fn a_user_gets_a_share_of_the_dmbs() {
    let exchange = exchange_with(|policy| policy.user.dmbs = 3);
    let mut exchange = with_users(exchange, [1000, 1000, 1001, 1001]);
    join(&mut exchange, party(1, 1), party(2, 1), 80);
    join(&mut exchange, party(3, 1), party(4, 1), 81);
    let done = [(1, 1), (1, 1), (2, 1), (1, 1), (2, 1), (3, 1)].map(|(s, c)| register(&mut exchange, s, c));
    assert_eq!(done, [None, None, None, LIMIT, LIMIT, None]);
}

#[test]
fn a_limit_of_memory_holds_for_processes_and_users() {
    for by_user in [true, false] {
        let mut exchange = with_users(
            exchange_with(|policy| {
                let limits = if by_user { &mut policy.user } else { &mut policy.process };
                limits.bytes = 2 * DMB + DMB / 2;
            }),
            [1000, 1000, 1001, 1002],
        );
        join(&mut exchange, party(1, 1), party(2, 1), 80);
        assert_eq!(
            [1, 1, 1].map(|s| register(&mut exchange, s, 1)),
            [None, if by_user { LIMIT } else { None }, LIMIT]
        );
        assert_eq!(register(&mut exchange, 2, 1), None, "its room was kept");
    }
}

#[test]
fn what_outlives_its_process_still_counts_for_its_user() {
    let exchange = exchange_with(|policy| {
        policy.user.dmbs = 4;
        policy.peers = Peers::Any;
    });
    let mut exchange = with_users(exchange, [1000, 1000, 1001, 1001]);
    // User 1000 lets its other process hold what the ended one made, again and again.
    let mut kept = 0;
    for session in 10..20 {
        exchange.begin_session(SessionId(session), Identity::of_user(1000), bell().into(), 1);
        join(&mut exchange, party(session, 1), party(2, session), session as u16);
        if exchange.peer(party(session, 1)).is_none() {
            continue;
        }
        exchange.register(party(session, 1), 0, memory());
        let FromBroker::Registered { token, .. } = exchange.posts.pop().expect("an answer").message else {
            panic!("no answer");
        };
        exchange.attach(party(2, session), token);
        exchange.end_session(SessionId(session));
        kept += 1;
    }
    assert_eq!((kept, exchange.device.held_by_user(1000).dmbs), (3, 3));
}

/// As many handshakes as like at a limit: those that are matched have room for both their DMBs.
#[test]
fn a_crowd_at_a_limit_gets_on() {
    for (limited, reason) in
        [("device", Reason::MaxDmb), ("user", Reason::DmbLimit), ("process", Reason::DmbLimit)]
    {
        let mut exchange = exchange_with(|policy| match limited {
            "user" => policy.user.dmbs = 6,
            "process" => policy.process.dmbs = 3,
            _ => {}
        });
        if limited == "device" {
            exchange.device = Box::new(LoopbackIsm::new(Gid(7), 6));
        }
        let mut exchange = with_users(exchange, [1000, 1000, 1001, 1001]);
        for conn in 1..=10 {
            join(&mut exchange, party(1, conn), party(2, conn), conn as u16);
        }
        let refused = exchange.posts.iter().filter(
            |post| matches!(post.message, FromBroker::Refused { reason: why, .. } if why == reason.code()),
        );
        assert_eq!(refused.count(), 14, "{limited}");
        // All servers first, as it happens when all proposals are there: every one gets through.
        for (session, conn) in [2, 1].into_iter().flat_map(|session| (1..=3).map(move |conn| (session, conn)))
        {
            assert_eq!(register(&mut exchange, session, conn), None, "{limited}");
        }
        // One that gives up gives its room to the next.
        exchange.withdraw(party(1, 1));
        for session in [1, 2] {
            exchange.end_session(SessionId(session));
        }
        for session in [3, 4] {
            exchange.end_session(SessionId(session));
        }
        assert!(exchange.is_empty(), "{limited}");
    }
}

#[test]
fn room_that_is_not_used_is_given_to_others() {
    let mut exchange = with_users(exchange_with(|policy| policy.user.dmbs = 2), [1000, 1000, 1000, 1000]);
    for (leaves, conn) in [(1, 1), (2, 2), (1, 3)] {
        join(&mut exchange, party(1, conn), party(2, conn), conn as u16);
        join(&mut exchange, party(3, conn), party(4, conn), 100 + conn as u16);
        assert!(exchange.peer(party(1, conn)).is_some() && exchange.peer(party(3, conn)).is_none());
        exchange.withdraw(party(leaves, conn));
    }
    join(&mut exchange, party(3, 9), party(4, 9), 109);
    assert!(exchange.peer(party(3, 9)).is_some());
}

#[test]
fn under_congestion_no_handshake_begins_if_so_wished() {
    let mut exchange =
        Exchange::new(Box::new(LoopbackIsm::new(Gid(7), 4096)), Policy::system_wide(8, 8192), false);
    for session in [1, 2] {
        exchange.begin_session(SessionId(session), Identity::of_user(1000), bell().into(), 1);
    }
    let mut next = 0;
    let mut refused = |exchange: &mut Exchange| {
        next += 1;
        join(exchange, party(1, next), party(2, next), next as u16);
        posts_to(exchange, 2);
        let refused = |post: &FromBroker| match post {
            FromBroker::Refused { reason, .. } => Reason::from_code(*reason),
            _ => None,
        };
        posts_to(exchange, 1).iter().find_map(refused)
    };
    for _ in 0..CONGESTED {
        assert_eq!(refused(&mut exchange), None);
    }
    assert_eq!(refused(&mut exchange), None, "it is not wished for");
    exchange.limit_smc_hs = true;
    assert_eq!(refused(&mut exchange), Some(Reason::NominationLimit));
    // Two handshakes come to their end.
    exchange.withdraw(party(1, 1));
    exchange.withdraw(party(1, 2));
    assert_eq!(refused(&mut exchange), None);
}

#[test]
fn a_slot_is_free_when_both_ends_have_left() {
    let mut exchange = exchange();
    for session in [1, 2] {
        exchange.begin_session(SessionId(session), Identity::of_user(0), bell().into(), 1);
    }
    join(&mut exchange, party(1, 1), party(2, 1), 80);
    let first = exchange.seat(party(1, 1)).expect("matched");
    exchange.withdraw(party(1, 1));
    join(&mut exchange, party(1, 2), party(2, 2), 81);
    assert_ne!(exchange.seat(party(1, 2)), Some(first), "the server still knows the slot");
    exchange.withdraw(party(2, 1));
    join(&mut exchange, party(1, 3), party(2, 3), 82);
    assert_eq!(exchange.seat(party(1, 3)), Some(first));
}

#[test]
fn a_block_used_anew_ends_what_it_was() {
    let mut exchange = exchange();
    for session in [1, 2] {
        exchange.begin_session(SessionId(session), Identity::of_user(0), bell().into(), 1);
    }
    join(&mut exchange, party(1, 1), party(2, 1), 80);
    posts_to(&mut exchange, 2);
    exchange.nominate(party(1, 1 << 32 | 1), Role::Client, facts(1, 81), false);
    assert_eq!(posts_to(&mut exchange, 2), [FromBroker::Gone { conn: ConnId(1) }]);
}

#[test]
fn a_new_nomination_ends_the_match() {
    let mut exchange = exchange();
    for session in [1, 2] {
        exchange.begin_session(SessionId(session), Identity::of_user(0), bell().into(), 1);
    }
    join(&mut exchange, party(1, 1), party(2, 1), 80);
    posts_to(&mut exchange, 2);
    exchange.nominate(party(1, 1), Role::Client, facts(1, 80), false);
    assert_eq!(posts_to(&mut exchange, 2), [FromBroker::Gone { conn: ConnId(1) }]);
    assert!(exchange.relay(party(2, 1), ClcBytes::new(b"x").expect("fits")));
    exchange.nominate(party(2, 1), Role::Server, facts(2, 80), false);
    let told = posts_to(&mut exchange, 1);
    let again = told.last().expect("told");
    assert!(matches!(again, FromBroker::Matched { first_contact: false, slot: 0, .. }), "{again:?}");
    assert!(!told.iter().any(|m| matches!(m, FromBroker::Clc { .. })), "no peer, no relay");
}

/// Of two ends in a namespace that we cannot ask in, the earlier one is proved once more, by the same socket.
#[test]
fn an_earlier_nomination_is_matched_when_its_socket_lasts() {
    let (early, late) = (party(1, 1), party(2, 1));
    for lasts in [true, false] {
        let mut exchange = with_users(exchange(), [1000, 1000, 1000, 1000]);
        let nominate = |exchange: &mut Exchange, end, role, proof: Proof, holds: bool| {
            let Proof::Proved(facts) = proof else { panic!("{proof:?}") };
            exchange.confront(end, &facts, |_| holds);
            exchange.nominate(end, role, proof, true);
            exchange.answer(exchange.unanswered());
        };
        let waiting = |expected| FromBroker::Waiting { conn: ConnId(1), expected };
        nominate(&mut exchange, early, Role::Client, facts(1, 80), false);
        assert_eq!(posts_to(&mut exchange, 1), [waiting(Expected::Nobody)]);
        nominate(&mut exchange, late, Role::Server, facts(2, 80), false);
        assert_eq!(posts_to(&mut exchange, 1), [FromBroker::Again { conn: early.conn }]);
        assert_eq!(posts_to(&mut exchange, 2), [waiting(Expected::Other)], "the early one is to come again");
        assert!(exchange.is_waiting(late) && exchange.peer(late).is_none());
        let Proof::Proved(mut again) = facts(1, 80) else { panic!("facts") };
        again.cookie += if lasts { 0 } else { 1 << 32 };
        nominate(&mut exchange, early, Role::Client, Proof::Proved(again), false);
        assert_eq!(exchange.peer(early), lasts.then_some(late), "by the same socket: {lasts}");
        if !lasts {
            // Now it is the other one that came earlier.
            assert_eq!(posts_to(&mut exchange, 2), [FromBroker::Again { conn: late.conn }]);
            nominate(&mut exchange, late, Role::Server, facts(2, 80), false);
            assert_eq!(exchange.peer(early), Some(late));
        }
    }
}

/// Registers a DMB for connection 1 of session 1, whose peer is that of session 2, and attaches it there; its name.
fn registered_and_attached(exchange: &mut Exchange) -> u64 {
    registered_with(exchange, memory())
}

/// The same with this memory.
fn registered_with(exchange: &mut Exchange, memory: Option<Shared>) -> u64 {
    join(exchange, party(1, 1), party(2, 1), 80);
    exchange.register(party(1, 1), 0, memory);
    let told = exchange.posts.pop().expect("an answer").message;
    let FromBroker::Registered { token, reason: 0, .. } = told else { panic!("{told:?}") };
    exchange.attach(party(2, 1), token);
    exchange.posts.clear();
    token
}

/// Asks for a parked DMB for connection `conn` of session 1; its new name, or why not.
fn reuse(exchange: &mut Exchange, conn: u64, token: u64) -> Result<u64, Option<Reason>> {
    exchange.reuse(party(1, conn), token);
    match exchange.posts.pop().expect("an answer").message {
        FromBroker::Registered { token, reason: 0, .. } => Ok(token),
        FromBroker::Registered { reason, .. } => Err(Reason::from_code(reason)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_parked_dmb_serves_the_same_two_processes_again() {
    let mut exchange = with_users(exchange(), [1000; 4]);
    let token = registered_and_attached(&mut exchange);
    let now = Instant::now();
    exchange.park(SessionId(1), token, now);
    assert_eq!(posts_to(&mut exchange, 1), [], "its peer has it still");
    exchange.detach(SessionId(2), token, true);
    assert_eq!(posts_to(&mut exchange, 1), [FromBroker::Parked { token }]);
    join(&mut exchange, party(1, 2), party(2, 2), 81);
    exchange.posts.clear();
    let new = reuse(&mut exchange, 2, token).expect("it is spare");
    assert_ne!(new, token);
    exchange.attach(party(2, 2), new);
    assert_eq!(exchange.posts.pop().map(|post| post.fds.len()), Some(1));
    assert_eq!((exchange.device.dmb_count(), exchange.audit()), (1, Ok(())));

    // What the peer has let go of before is spare at once.
    exchange.detach(SessionId(2), new, true);
    exchange.park(SessionId(1), new, now);
    assert_eq!(posts_to(&mut exchange, 1), [FromBroker::Parked { token: new }]);
    exchange.unregister(SessionId(1), new);
    assert_eq!((exchange.device.dmb_count(), exchange.audit()), (0, Ok(())));
}

#[test]
fn a_parked_dmb_serves_nobody_else() {
    let unavailable = Err(Some(Reason::AttachRefused));
    let parked = || {
        let mut exchange = with_users(exchange(), [1000; 4]);
        let token = registered_and_attached(&mut exchange);
        exchange.park(SessionId(1), token, Instant::now());
        (exchange, token)
    };
    let (mut exchange, token) = parked();
    exchange.detach(SessionId(2), token, true);
    join(&mut exchange, party(1, 2), party(3, 2), 81);
    assert_eq!(reuse(&mut exchange, 2, token), unavailable, "it was another process's");
    assert_eq!((exchange.device.dmb_count(), exchange.audit()), (0, Ok(())), "nor is it kept");

    let (mut exchange, token) = parked();
    join(&mut exchange, party(1, 2), party(2, 2), 81);
    assert_eq!(reuse(&mut exchange, 2, token), unavailable, "its peer has it still");

    let (mut exchange, token) = parked();
    join(&mut exchange, party(3, 2), party(2, 2), 81);
    exchange.detach(SessionId(2), token, true);
    exchange.posts.clear();
    exchange.reuse(party(3, 2), token);
    exchange.park(SessionId(3), token, Instant::now());
    exchange.unregister(SessionId(3), token);
    let told = posts_to(&mut exchange, 3);
    assert!(matches!(told[0], FromBroker::Registered { token: 0, .. }), "{told:?}");
    assert_eq!(
        (told[1], exchange.device.dmb_count()),
        (FromBroker::Dropped { token }, 1),
        "it is its owner's"
    );
    assert_eq!(exchange.audit(), Ok(()));

    let (mut exchange, token) = parked();
    exchange.detach(SessionId(2), token, false);
    assert_eq!(
        posts_to(&mut exchange, 1),
        [FromBroker::Dropped { token }],
        "a child of its peer may have it"
    );
    assert_eq!((exchange.device.dmb_count(), exchange.audit()), (0, Ok(())));
}

#[test]
fn a_parked_dmb_goes_in_time_and_with_either_process() {
    type End = fn(&mut Exchange, Instant);
    let ends: [(End, usize); 4] = [
        (|exchange, now| exchange.drop_stale(now + Duration::from_secs(10)), 1),
        (|exchange, _| exchange.set_active(false), 1),
        (|exchange, _| exchange.end_session(SessionId(2)), 1),
        (|exchange, _| exchange.end_session(SessionId(1)), 0),
    ];
    for (number, (end, dropped)) in ends.into_iter().enumerate() {
        let mut exchange = with_users(exchange(), [1000; 4]);
        let token = registered_and_attached(&mut exchange);
        exchange.detach(SessionId(2), token, true);
        let now = Instant::now();
        exchange.park(SessionId(1), token, now);
        exchange.drop_stale(now + Duration::from_secs(9));
        assert_eq!(posts_to(&mut exchange, 1), [FromBroker::Parked { token }], "{number}");
        end(&mut exchange, now);
        let told = posts_to(&mut exchange, 1);
        let told = told.iter().filter(|message| **message == FromBroker::Dropped { token });
        assert_eq!((told.count(), exchange.device.dmb_count()), (dropped, 0), "{number}");
        assert_eq!((exchange.audit(), exchange.stale_at()), (Ok(()), None));
    }
    let mut exchange = with_users(exchange(), [1000; 4]);
    let token = registered_and_attached(&mut exchange);
    exchange.end_session(SessionId(2));
    exchange.posts.clear();
    exchange.park(SessionId(1), token, Instant::now());
    assert_eq!(posts_to(&mut exchange, 1), [FromBroker::Dropped { token }], "its peer has gone before");
    assert_eq!(exchange.device.dmb_count(), 0);
}

/// A process that its peer forked may be using the connection still.
#[test]
fn a_parked_dmb_is_emptied_where_nobody_else_can_have_it() {
    type End = fn(&mut Exchange, u64);
    let ends: [(End, bool); 4] = [
        (|exchange, token| exchange.detach(SessionId(2), token, true), false),
        (|exchange, token| exchange.detach(SessionId(2), token, false), true),
        (|exchange, _| exchange.end_session(SessionId(2)), true),
        (|exchange, _| exchange.end_session(SessionId(1)), true),
    ];
    for (number, (end, stays)) in ends.into_iter().enumerate() {
        for parked_before in [true, false] {
            let memory = memory().expect("a memfd");
            let seen = memory.as_fd().try_clone_to_owned().expect("a descriptor");
            let graves = Graves::default();
            let memory = Shared::memory_of_client(seen.try_clone().expect("a descriptor"), 1000, &graves);
            let device = LoopbackIsm::new(Gid(7), 16);
            let exchange = Exchange::new(Box::new(device), Policy::system_wide(8, 32), false);
            let mut exchange = with_users(exchange, [1000; 4]);
            let token = registered_with(&mut exchange, Some(memory));
            let park = |exchange: &mut Exchange| exchange.park(SessionId(1), token, Instant::now());
            if parked_before {
                park(&mut exchange);
            }
            end(&mut exchange, token);
            if !parked_before {
                park(&mut exchange);
            }
            exchange.drop_all_parked();
            let emptied = graves
                .take()
                .iter()
                .any(|(_, fd, last)| matches!(last, Last::Empty(DMB)) && inode(fd) == inode(&seen));
            assert_eq!(!emptied, stays, "{number}, parked before: {parked_before}");
        }
    }
}

#[test]
fn a_parked_dmb_takes_nobody_s_room() {
    let limit: fn(&mut Policy) = |policy| policy.process.dmbs = 1;
    for (change, limited) in [(limit, true), (|_| {}, false)] {
        let mut exchange = with_users(exchange_with(change), [1000; 4]);
        let token = registered_and_attached(&mut exchange);
        exchange.withdraw(party(1, 1));
        exchange.withdraw(party(2, 1));
        exchange.detach(SessionId(2), token, true);
        exchange.park(SessionId(1), token, Instant::now());
        exchange.posts.clear();
        let mut matched = 0;
        // The device has room for sixteen, eight handshakes.
        for conn in 2..if limited { 3 } else { 10 } {
            join(&mut exchange, party(1, conn), party(2, conn), conn as u16);
            matched += usize::from(exchange.peer(party(1, conn)).is_some());
            assert_eq!(exchange.audit(), Ok(()));
        }
        assert_eq!(matched, if limited { 1 } else { 8 });
        assert!(posts_to(&mut exchange, 1).contains(&FromBroker::Dropped { token }));
        assert_eq!(exchange.device.dmb_count(), 0);
    }
}

/// One thing that may happen to the broker.
#[derive(Clone, Debug)]
enum Event {
    Nominate {
        session: u64,
        conn: u64,
        side: u8,
        port: u16,
    },
    Moving {
        session: u64,
        conn: u64,
    },
    Withdraw {
        session: u64,
        conn: u64,
    },
    Register {
        session: u64,
        conn: u64,
    },
    Attach {
        session: u64,
        conn: u64,
        token: usize,
    },
    Unregister {
        session: u64,
        token: usize,
    },
    Detach {
        session: u64,
        token: usize,
        gone: bool,
    },
    Park {
        session: u64,
        token: usize,
    },
    Reuse {
        session: u64,
        conn: u64,
        token: usize,
    },
    /// Some seconds go by.
    Wait(u64),
    Die {
        session: u64,
    },
    Active(bool),
}

fn event() -> impl Strategy<Value = Event> {
    let session = 0..SESSIONS;
    let conn = prop_oneof![0..3_u64, Just(1 << 32)];
    let token = 0..8_usize;
    let end = (session.clone(), conn);
    let holding = (session.clone(), token.clone());
    prop_oneof![
        8 => (end.clone(), 1..3_u8, 1..3_u16)
            .prop_map(|((session, conn), side, port)| Event::Nominate { session, conn, side, port }),
        1 => end.clone().prop_map(|(session, conn)| Event::Moving { session, conn }),
        2 => end.clone().prop_map(|(session, conn)| Event::Withdraw { session, conn }),
        4 => end.clone().prop_map(|(session, conn)| Event::Register { session, conn }),
        4 => (end.clone(), token.clone()).prop_map(|((session, conn), token)| Event::Attach { session, conn, token }),
        2 => holding.clone().prop_map(|(session, token)| Event::Unregister { session, token }),
        3 => (holding.clone(), prop::bool::weighted(0.8))
            .prop_map(|((session, token), gone)| Event::Detach { session, token, gone }),
        3 => holding.prop_map(|(session, token)| Event::Park { session, token }),
        3 => (end, token).prop_map(|((session, conn), token)| Event::Reuse { session, conn, token }),
        1 => (1..7_u64).prop_map(Event::Wait),
        1 => session.prop_map(|session| Event::Die { session }),
        1 => any::<bool>().prop_map(Event::Active),
    ]
}

proptest! {
    /// Whatever happens in whatever order: a match is mutual, only living sessions are written to, memory is
    /// given only to the peer of its owner, and nothing is left once all are gone.
    #[test]
    fn tables_stay_sound(events in prop::collection::vec(event(), 0..80)) {
        let mut exchange = exchange();
        let mut alive: Vec<u64> = (0..SESSIONS).collect();
        let mut now = Instant::now();
        // Who owns each token, and the peer that the owner had then.
        let mut tokens: Vec<(u64, Party)> = Vec::new();
        for session in 0..SESSIONS {
            exchange.begin_session(SessionId(session), Identity::of_user(0), bell().into(), 1);
        }
        let token_of = |tokens: &[(u64, Party)], n: usize| tokens.get(n).map_or(99, |(token, _)| *token);
        for event in events {
            let (Event::Nominate { session, .. }
            | Event::Moving { session, .. }
            | Event::Withdraw { session, .. }
            | Event::Register { session, .. }
            | Event::Attach { session, .. }
            | Event::Unregister { session, .. }
            | Event::Detach { session, .. }
            | Event::Park { session, .. }
            | Event::Reuse { session, .. }
            | Event::Die { session }) = event
            else {
                match event {
                    Event::Active(active) => exchange.set_active(active),
                    Event::Wait(seconds) => {
                        now += Duration::from_secs(seconds);
                        exchange.drop_stale(now);
                    }
                    _ => {}
                }
                continue;
            };
            if !alive.contains(&session) {
                continue;
            }
            match event {
                Event::Nominate { conn, side, port, .. } => {
                    let role = if side == 1 { Role::Client } else { Role::Server };
                    exchange.nominate(party(session, conn), role, facts(side, port), false);
                }
                Event::Moving { conn, .. } => {
                    exchange.nominate(party(session, conn), Role::Client, Proof::Moving, false);
                }
                Event::Withdraw { conn, .. } => exchange.withdraw(party(session, conn)),
                Event::Register { conn, .. } => {
                    let owner = party(session, conn);
                    let peer = exchange.peer(owner);
                    exchange.register(owner, 0, memory());
                    let told = exchange.posts.pop().expect("an answer").message;
                    if let FromBroker::Registered { token, reason: 0, .. } = told {
                        tokens.push((token, peer.expect("only with a match")));
                    }
                }
                Event::Attach { conn, token, .. } => {
                    exchange.attach(party(session, conn), token_of(&tokens, token));
                    let post = exchange.posts.pop().expect("an answer");
                    if !post.fds.is_empty() {
                        prop_assert_eq!(tokens[token].1, party(session, conn));
                    }
                }
                Event::Unregister { token, .. } => {
                    exchange.unregister(SessionId(session), token_of(&tokens, token));
                }
                Event::Detach { token, gone, .. } => {
                    exchange.detach(SessionId(session), token_of(&tokens, token), gone);
                }
                Event::Park { token, .. } => {
                    exchange.park(SessionId(session), token_of(&tokens, token), now);
                }
                Event::Reuse { conn, token, .. } => {
                    let owner = party(session, conn);
                    exchange.reuse(owner, token_of(&tokens, token));
                    let told = exchange.posts.pop().expect("an answer").message;
                    if let FromBroker::Registered { token: new, reason: 0, .. } = told {
                        let peer = exchange.peer(owner).expect("only with a match");
                        prop_assert_eq!(tokens[token].1.session, peer.session);
                        prop_assert_ne!(new, tokens[token].0);
                        tokens.push((new, peer));
                    }
                }
                Event::Die { .. } => {
                    exchange.end_session(SessionId(session));
                    alive.retain(|other| *other != session);
                }
                Event::Active(_) | Event::Wait(_) => {}
            }
            prop_assert_eq!(exchange.audit(), Ok(()));
            for post in std::mem::take(&mut exchange.posts) {
                prop_assert!(alive.contains(&post.to.0), "{:?} to the dead", post.message);
            }
        }
        for session in alive {
            exchange.end_session(SessionId(session));
        }
        prop_assert!(exchange.is_empty());
    }
}

/// Whoever closes memory last frees it, which takes half a second for a GiB.
#[test]
fn memory_of_a_client_is_closed_elsewhere_whatever_becomes_of_it() {
    type End = fn(&mut Exchange, Shared);
    let ends: [End; 6] = [
        // Without a match, of a size that there is not, beyond a limit: refused.
        |exchange, memory| exchange.register(party(3, 1), 0, Some(memory)),
        |exchange, memory| exchange.register(party(1, 1), 11, Some(memory)),
        |exchange, memory| {
            let policy = Policy::system_wide(8, 32);
            let process = Limits { dmbs: 0, ..policy.process };
            exchange.set_policy(Policy { process, ..policy });
            exchange.register(party(1, 1), 0, Some(memory));
        },
        |exchange, memory| {
            exchange.register(party(1, 1), 0, Some(memory));
            exchange.end_session(SessionId(1));
        },
        |exchange, memory| {
            exchange.register(party(1, 1), 0, Some(memory));
            let told = exchange.posts.pop().map(|post| post.message);
            let Some(FromBroker::Registered { token, reason: 0, .. }) = told else { panic!("{told:?}") };
            exchange.unregister(SessionId(1), token);
        },
        // The last that has it is a message on its way.
        |exchange, memory| {
            exchange.register(party(1, 1), 0, Some(memory));
            let told = exchange.posts.pop().map(|post| post.message);
            let Some(FromBroker::Registered { token, reason: 0, .. }) = told else { panic!("{told:?}") };
            exchange.attach(party(2, 1), token);
            exchange.end_session(SessionId(1));
            exchange.end_session(SessionId(2));
        },
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let mut exchange = with_users(exchange_with(|_| {}), [1000; 4]);
        join(&mut exchange, party(1, 1), party(2, 1), 80);
        let (graves, fd) = (Graves::default(), region::create("dmb", HEADER + (16 << 10)).expect("a memfd"));
        let seen = fd.try_clone().expect("a descriptor");
        end(&mut exchange, Shared::memory_of_client(fd, 1000, &graves));
        exchange.posts.clear();
        let left = graves.take();
        let is_it = matches!(&left[..], [(1000, fd, Last::Free)] if inode(fd) == inode(&seen));
        assert!(is_it, "{number}: {left:?}");
    }
}

/// Messages that wait at the peer are the peer's, and end it when they are too many.
#[test]
fn who_has_more_passed_on_than_a_handshake_has_is_told_to_end() {
    let mut exchange = with_users(exchange_with(|_| {}), [1000; 4]);
    join(&mut exchange, party(1, 1), party(2, 1), 80);
    exchange.posts.clear();
    let clc = || ClcBytes::new(b"x").expect("fits");
    let passed = (0..1000).take_while(|_| exchange.relay(party(1, 1), clc())).count();
    assert_eq!((passed, posts_to(&mut exchange, 2).len()), (MOST_CLC as usize, MOST_CLC as usize));
    assert!(exchange.relay(party(2, 1), clc()), "the peer's are others");
}
