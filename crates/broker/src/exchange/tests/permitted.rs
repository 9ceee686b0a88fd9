//! Who may be a peer of whom.

use super::*;

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
