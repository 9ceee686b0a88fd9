//! Lanes that end in the midst of a connection's life, and come again.

use crate::{NOTHING, Pair, bytes};
use shunpike_core::conn;
use shunpike_shm::lifecycle::Phase;
use shunpike_wire::Reason;
use std::time::Duration;

/// As the broker's order does it.
fn revoke(pair: &Pair) {
    conn::revoke(pair.client.conn(), pair.client.fd, Reason::Revoked);
}

/// All of it is read in order, whichever way it goes.
fn carry(pair: &Pair) {
    for (from, to) in [(&pair.client, &pair.server), (&pair.server, &pair.client)] {
        from.send(b"one ").expect("room");
        from.send(b"two").expect("room");
        assert_eq!(to.recv_all(), (b"one two".to_vec(), Some(NOTHING)));
    }
}

#[test]
fn a_revoked_connection_goes_on_on_tcp() {
    let pair = Pair::open();
    pair.client.send(b"in the ring ").expect("room");
    revoke(&pair);
    pair.client.send(b"by TCP").expect("room");
    assert_eq!(pair.server.recv_all(), (b"in the ring by TCP".to_vec(), Some(NOTHING)));
    (0..3).for_each(|_| carry(&pair));
    assert!(pair.is_on_tcp());
    assert_eq!(pair.state(), (Phase::Watched, Phase::Watched));
}

#[test]
fn unread_bytes_of_both_directions_are_read_before_tcp_s() {
    let pair = Pair::open();
    pair.client.send(&bytes(5000)).expect("room");
    pair.server.send(&bytes(7000)).expect("room");
    revoke(&pair);
    pair.client.send(b"c").expect("room");
    pair.server.send(b"s").expect("room");
    let and = |n, last: &[u8]| ([&bytes(n)[..], last].concat(), Some(NOTHING));
    assert!(pair.server.recv_all() == and(5000, b"c"));
    assert!(pair.client.recv_all() == and(7000, b"s"));
}

#[test]
fn it_comes_on_lanes_again_after_a_pause_that_doubles() {
    let pair = Pair::open();
    // The first reopening is due after 10 ms, the next ones after twice as long each.
    for tries in 0..8 {
        revoke(&pair);
        (0..4).for_each(|_| pair.talk_alone());
        assert!(pair.is_on_tcp());
        let half = Duration::from_millis(5 << tries);
        pair.pass(half);
        // The true clock goes on, too, and is far behind where the pauses are long.
        if tries > 5 {
            (0..9).for_each(|_| pair.talk());
            assert!(pair.is_on_tcp(), "not yet, the {tries}. time");
        }
        pair.pass(half);
        pair.earn();
    }
}

#[test]
fn one_that_must_stay_on_tcp_does_for_good() {
    let pair = Pair::open();
    pair.client.send(b"in the ring").expect("room");
    conn::revoke_for_good(pair.client.conn(), pair.client.fd, Reason::OptionUnsupported);
    assert_eq!(pair.server.recv_all().0, b"in the ring");
    for _ in 0..40 {
        pair.pass(Duration::from_secs(1));
        pair.talk();
    }
    assert!(pair.is_on_tcp());
    assert_eq!(pair.client.phase(), Phase::Stays);
}

#[test]
fn the_receiver_revokes_with_the_ring_full() {
    let pair = Pair::open();
    let mut sent = 0;
    while let Ok(n) = pair.client.send(&bytes(251 * 100)) {
        sent += n;
    }
    conn::revoke(pair.server.conn(), pair.server.fd, Reason::Revoked);
    let (mut read, mut rest) = (pair.server.recv_all().0, b"the rest".to_vec());
    assert_eq!(pair.client.send(&rest), Ok(8));
    read.extend(pair.server.recv_all().0);
    assert_eq!(read.len(), sent + 8);
    assert_eq!(read.split_off(sent), std::mem::take(&mut rest));
}

#[test]
fn lanes_open_and_end_many_times_under_flow() {
    let pair = Pair::open();
    for round in 0..12 {
        pair.client.send(&bytes(1000 + round)).expect("room");
        if round % 2 == 0 {
            revoke(&pair);
        } else {
            conn::revoke(pair.server.conn(), pair.server.fd, Reason::Revoked);
        }
        assert_eq!(pair.server.recv_all().0, bytes(1000 + round));
        // Each direction ends with its next byte; the pause begins then.
        pair.talk();
        pair.pass(Duration::from_secs(10));
        pair.earn();
    }
}
