//! DMBs that are used again.

use super::*;

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
        (|exchange, _| end(exchange, SessionId(2)), 1),
        (|exchange, _| end(exchange, SessionId(1)), 0),
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
    end(&mut exchange, SessionId(2));
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
        (|exchange, _| end(exchange, SessionId(2)), true),
        (|exchange, _| end(exchange, SessionId(1)), true),
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
