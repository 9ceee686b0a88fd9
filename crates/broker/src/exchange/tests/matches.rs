//! Two ends that meet, and part.

use super::*;

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

/// One that was told so may sleep in the kernel by then: its peer need not wait for it.
#[test]
fn who_comes_after_nobody_was_expected_is_told_of_that() {
    for is_asked in [true, false] {
        let mut exchange = with_users(exchange(), [1000, 1000, 1000, 1000]);
        exchange.nominate(party(1, 1), Role::Client, facts(1, 80), is_asked);
        exchange.answer(exchange.unanswered());
        exchange.nominate(party(2, 1), Role::Server, facts(2, 80), true);
        let told = posts_to(&mut exchange, 2);
        assert!(matches!(told[0], FromBroker::Matched { .. }), "{told:?}");
        let waiting = FromBroker::Waiting { conn: ConnId(1), expected: Expected::Nobody };
        assert_eq!(told[1..], [waiting][..usize::from(is_asked)]);
    }
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
