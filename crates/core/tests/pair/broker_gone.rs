//! What a broker that ends leaves behind.

use crate::{NOTHING, Pair};
use std::time::Duration;

#[test]
fn lanes_outlive_their_broker_and_new_ones_wait_for_the_next() {
    let pair = Pair::open();
    pair.broker.end();
    pair.pass(Duration::from_secs(2));
    pair.client.send(b"without a broker").expect("room");
    assert_eq!(pair.server.recv_all(), (b"without a broker".to_vec(), Some(NOTHING)));
    pair.broker.replace();
    pair.pass(Duration::from_secs(2));
    (0..30).for_each(|_| pair.talk());
    pair.pass(Duration::from_secs(20));
    pair.earn();
}

#[test]
fn a_connection_made_without_a_broker_gets_its_lanes_when_there_is_one() {
    let pair = Pair::watched();
    pair.broker.end();
    for _ in 0..20 {
        pair.talk();
    }
    assert!(pair.is_on_tcp());
    pair.broker.replace();
    pair.pass(Duration::from_secs(60));
    pair.earn();
}
