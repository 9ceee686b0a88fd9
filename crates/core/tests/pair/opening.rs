//! How a connection comes on lanes.

use crate::Pair;
use shunpike_core::conn;
use shunpike_shm::lifecycle::Phase;
use shunpike_wire::Reason;

#[test]
fn a_busy_connection_comes_on_lanes_both_ways() {
    let pair = Pair::open();
    assert_eq!(pair.state(), (Phase::Open, Phase::Open));
    let before = pair.client.carried();
    pair.talk();
    assert_eq!(pair.client.carried(), before + 14);
}

#[test]
fn a_quiet_one_stays_on_tcp() {
    let pair = Pair::watched();
    pair.talk();
    pair.talk();
    assert_eq!(pair.state(), (Phase::Watched, Phase::Watched));
    assert!(pair.is_on_tcp());
}

#[test]
fn one_end_alone_waits_for_the_other() {
    let pair = Pair::watched();
    let stays = pair.server.conn();
    conn::revoke_for_good(stays, pair.server.fd, Reason::OptionUnsupported);
    for _ in 0..32 {
        pair.talk();
    }
    assert!(pair.is_on_tcp());
    assert_eq!(pair.server.phase(), Phase::Stays);
    assert_ne!(pair.client.phase(), Phase::Open);
}
