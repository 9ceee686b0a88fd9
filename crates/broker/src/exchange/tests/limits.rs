//! What a process and a user may have.

use super::*;

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
        end(&mut exchange, SessionId(session));
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
            end(&mut exchange, SessionId(session));
        }
        for session in [3, 4] {
            end(&mut exchange, SessionId(session));
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
fn what_a_session_held_goes_in_parts_and_nobody_stands_behind_it() {
    let mut exchange = with_users(exchange(), [1000; 4]);
    for conn in 1..=7 {
        join(&mut exchange, party(1, conn), party(2, conn), 100 + conn as u16);
    }
    join(&mut exchange, party(3, 1), party(4, 1), 99);
    exchange.posts.clear();
    exchange.end_session(SessionId(1));
    exchange.end_session(SessionId(3));
    let gone =
        |posts: Vec<FromBroker>| posts.iter().filter(|post| matches!(post, FromBroker::Gone { .. })).count();
    for (conn, of_others) in [(7, 0), (6, 1)] {
        assert_eq!(
            register(&mut exchange, 2, conn),
            Some(Reason::PeerVanished),
            "it is nobody's peer any more"
        );
        exchange.posts.clear();
        assert_eq!(exchange.let_go(3), if of_others == 0 { vec![] } else { vec![1000] });
        assert_eq!(exchange.audit(), Ok(()));
        assert_eq!(gone(posts_to(&mut exchange, 4)), of_others);
        assert!(exchange.is_ending());
    }
    exchange.posts.clear();
    while exchange.is_ending() {
        exchange.let_go(3);
        assert!(gone(posts_to(&mut exchange, 2)) <= 3);
        exchange.posts.clear();
        assert_eq!(exchange.audit(), Ok(()));
    }
    assert_eq!(exchange.matched().count(), 8, "those who go on take leave themselves");
}
