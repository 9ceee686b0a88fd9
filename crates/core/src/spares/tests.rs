use rustix::fd::AsFd;
use shunpike_shm::lane::HEADER;
use shunpike_shm::region;

use super::*;
use crate::device;
use crate::reuse::take;
use crate::session::{self, Session};

fn spare(token: u64, group: u32, class: u8) -> Spare {
    let memory = region::create("shunpike-test-spare", Dmb::len(class)).expect("a memfd");
    let region = Region::map(memory.as_fd(), Dmb::len(class)).expect("a mapping");
    let ring = (region.len() - HEADER) as u32;
    Spare { region, token: DmbToken(token), group, forks: device::forks(), ring }
}

fn tokens(session: &Session) -> Vec<u64> {
    session.spares.slots.iter().flatten().map(|(spare, _)| spare.token.0).collect()
}

/// A peer that has not detached may yet read what it sent there, to send it again by TCP.
#[test]
fn memory_is_given_back_when_the_peer_has_let_go_of_it() {
    let mut spares = Spares::new();
    let spare = spare(8, 1, 1);
    let dmb = Dmb::new(spare.region, 8).expect("a DMB");
    dmb.words().set_window(2 * u64::from(MIN_WINDOW));
    // SAFETY: within the ring, which only this thread uses.
    let byte = |at: u64| unsafe { &mut *dmb.span(at).0 };
    (*byte(5), *byte(20_000)) = (7, 7);
    assert!(spares.put(spare).is_none());
    assert_eq!((*byte(5), *byte(20_000)), (7, 7));
    spares.ready(spare.token);
    assert_eq!((*byte(5), *byte(20_000)), (7, 0));
    spares.clear();
}

/// The session is one for all tests of the process.
#[test]
fn the_latest_of_its_group_and_size_that_the_broker_agrees_to() {
    let _alone = device::tests::alone();
    let mut session = session::lock();
    for (token, group, class) in [(1, 1, 0), (2, 1, 1), (3, 2, 0), (4, 1, 0), (5, 1, 0)] {
        assert!(session.spares.put(spare(token, group, class)).is_none());
    }
    assert!(take(&mut session, 1, 16384).is_none(), "nobody has agreed");
    [1, 2, 3, 4, 99].into_iter().for_each(|token| session.spares.ready(DmbToken(token)));
    let mut taken = |group, class| {
        let taken = take(&mut session, group, 16384u32 << class)?;
        taken.let_go();
        Some(taken.token.0)
    };
    assert_eq!(
        [(1, 0), (1, 1), (1, 1), (3, 0), (1, 0), (1, 0)].map(|(g, c)| taken(g, c)),
        [Some(4), Some(2), None, None, Some(1), None]
    );
    assert_eq!(tokens(&session), [3, 5]);
    session.spares.dropped(DmbToken(5));
    session.spares.dropped(DmbToken(5));
    // A fork's child may have what is mapped.
    device::hold_across_fork();
    device::let_go_after_fork();
    assert!(take(&mut session, 2, 16384).is_none());
    assert_eq!(tokens(&session), []);

    // Few of a kind, and not too many of all kinds: the oldest go.
    let mut evicted = |token, group| {
        session.spares.put(spare(token, group, 0)).map(|old| {
            old.let_go();
            old.token.0
        })
    };
    let alike = MOST_ALIKE as u64;
    assert_eq!(evicted(100, 9), None);
    assert!((1..=alike).all(|token| evicted(token, 1).is_none()));
    assert_eq!(evicted(alike + 1, 1), Some(1));
    assert!((0..MOST as u64 - alike - 1).all(|token| evicted(200 + token, 10 + token as u32).is_none()));
    assert_eq!((evicted(300, 9), evicted(301, 9)), (Some(100), Some(2)));
    session.spares.clear();
    assert_eq!(tokens(&session), []);
}
