//! One thing goes wrong at each place in turn.

use super::world::{CLIENT, End, Fault, World};
use super::*;
use crate::Reason;

fn run(fault: Fault) -> World {
    let world = World::run([host(); 2], [true; 2], fault);
    world.check();
    world
}

#[test]
fn without_faults_both_open_after_three_messages_and_four_requests() {
    for first_contact in [true, false] {
        let world = World::run([host(); 2], [first_contact; 2], Fault::None);
        world.check();
        assert_eq!(world.reasons(), [None, None]);
        assert_eq!((world.messages, world.requests), (3, 4));
    }
}

#[test]
fn any_lost_message_ends_on_tcp() {
    for n in 0..3 {
        let world = run(Fault::Lose(n));
        let [_, server] = world.reasons();
        assert!(server.is_some(), "message {n}");
    }
    assert_eq!(run(Fault::Lose(0)).reasons()[CLIENT], Some(Reason::ConfirmTimeout));
    // The client opened on its Confirm, and the server's Decline takes it back.
    let world = run(Fault::Lose(2));
    assert_eq!(world.reasons(), [Some(Reason::PeerDeclined), Some(Reason::ConfirmTimeout)]);
}

#[test]
fn a_broker_that_dies_leaves_at_most_an_open_client_that_the_server_stops() {
    for n in 0..4 {
        let world = run(Fault::LoseFrom(n));
        let alone = matches!(world.ends, [Some(End::Open(_)), Some(End::Fallback(_))]);
        assert_eq!(alone, n == 2, "from message {n}");
    }
}

#[test]
fn a_refusing_device_ends_on_tcp_on_both_sides() {
    // 0 server registers, 1 client attaches, 2 client registers, 3 server attaches.
    for n in 0..4 {
        let reasons = run(Fault::Refuse(n)).reasons();
        let by_server = n == 0 || n == 3;
        let (own, told) = (Some(Reason::DmbLimit), Some(Reason::PeerDeclined));
        assert_eq!(reasons, if by_server { [told, own] } else { [own, told] }, "request {n}");
    }
}

#[test]
fn a_declines_number_reaches_the_peer() {
    let world = run(Fault::Refuse(3));
    let Some(End::Fallback(fallback)) = world.ends[CLIENT] else { panic!("open") };
    assert_eq!(fallback.peer_diagnosis, Reason::DmbLimit.code());
}

#[test]
fn a_slow_or_confused_device_ends_on_tcp_and_leaks_nothing() {
    for n in 0..4 {
        for fault in [Fault::Dawdle(n), Fault::Confuse(n)] {
            let reasons = run(fault).reasons();
            assert!(reasons.iter().all(Option::is_some), "{fault:?} {reasons:?}");
        }
        // The client, which waits for the server's Accept all the while, gives up first.
        let first = if n == 0 { Reason::ConfirmTimeout } else { Reason::HandshakeTimeout };
        assert!(run(Fault::Dawdle(n)).reasons().contains(&Some(first)));
    }
}

#[test]
fn vanishing_and_timeouts_at_every_point_leak_nothing() {
    let whole = run(Fault::None).events;
    for n in 0..=whole {
        run(Fault::Vanish(n));
        run(Fault::TimeOut(n));
    }
}

#[test]
fn any_doubled_message_ends_alike_on_both_sides() {
    for n in 0..3 {
        let reasons = run(Fault::Double(n)).reasons();
        assert!(reasons.contains(&Some(Reason::Sync)), "message {n}: {reasons:?}");
        assert!(reasons.iter().all(Option::is_some));
    }
}

#[test]
fn any_corrupt_byte_is_survived() {
    for n in 0..3 {
        for byte in 0..MAX_LEN {
            run(Fault::Corrupt(n, byte));
        }
    }
}
