//! Taps at a broker: who is given which ring, and when.

mod support;

use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use shunpike_broker::{QueryError, TapSession};
use shunpike_shm::tap::{self, Reader};
use shunpike_wire::session::{FromBroker, ToBroker};
use std::time::Duration;
use support::{Client, PATIENCE, TestBroker, readable, send, try_connect, until};

fn begin(broker: &TestBroker) -> TapSession {
    TapSession::begin(&broker.socket).expect("a tap")
}

fn hand_over(session: &TapSession, ring: u32) {
    let (memory, _reader) = Reader::create(0).expect("memory");
    session.hand_over(ring, 0, memory.as_fd()).expect("the broker reads");
}

/// The next message to a tap.
fn hear(session: &TapSession) -> FromBroker {
    let mut heard = None;
    until(|| {
        heard = heard.or_else(|| session.hear().expect("the session goes on"));
        heard.is_some()
    });
    heard.expect("just heard")
}

/// Waits until the broker ends the session.
fn until_over(session: &TapSession) {
    until(|| session.hear() == Err(Errno::PIPE));
}

fn tapped(client: &Client) -> (u64, OwnedFd) {
    let (message, mut fds) = client.hear_with_fds();
    let FromBroker::Tap { tap, class: 0, .. } = message else { panic!("{message:?}") };
    (tap, fds.pop().expect("a ring"))
}

#[test]
fn programs_that_are_there_and_that_come_have_a_ring_each() {
    let broker = TestBroker::start();
    let there = Client::connect(&broker);
    let session = begin(&broker);
    (1..=3).for_each(|ring| hand_over(&session, ring));
    let (tap, memory) = tapped(&there);
    assert!(shunpike_shm::region::verify(memory.as_fd(), tap::len(0)).is_ok());
    let FromBroker::Tapped { ring: 1, pid, uid, .. } = hear(&session) else { panic!("the first ring") };
    assert_eq!((pid, uid), (std::process::id(), rustix::process::geteuid().as_raw()));

    // Nothing comes between its welcome and the tap: no lane is open before.
    let comes = Client::connect(&broker);
    assert_eq!(tapped(&comes).0, tap);
    assert!(matches!(hear(&session), FromBroker::Tapped { ring: 2, .. }));
    drop(comes);
    assert_eq!(hear(&session), FromBroker::TapOver { ring: 2 });

    drop(session);
    assert_eq!(there.hear(), FromBroker::Untap { tap });
    drop(there);
    broker.until_empty();
}

#[test]
fn a_program_that_no_ring_is_left_for_gets_the_next_one() {
    let broker = TestBroker::start();
    let clients = [Client::connect(&broker), Client::connect(&broker)];
    let session = begin(&broker);
    hand_over(&session, 7);
    assert!(matches!(hear(&session), FromBroker::Tapped { ring: 7, .. }));
    hand_over(&session, 8);
    assert!(matches!(hear(&session), FromBroker::Tapped { ring: 8, .. }));
    assert_eq!(clients.map(|client| tapped(&client).0).len(), 2);
}

#[test]
fn taps_have_a_bound() {
    let broker = TestBroker::start();
    let mut taps: Vec<_> = (0..4).map(|_| begin(&broker)).collect();
    let refused = TapSession::begin(&broker.socket).err();
    assert!(matches!(refused, Some(QueryError::Refused(failure)) if failure.what == "too many taps"));
    taps.pop();
    until(|| TapSession::begin(&broker.socket).is_ok());
}

#[test]
fn a_tap_may_be_silent_for_as_long_as_it_likes() {
    let broker = TestBroker::start();
    let session = begin(&broker);
    // Longer than other tools may be.
    let socket = session.as_fd().try_clone_to_owned().expect("a copy");
    assert!(!readable(&socket, Duration::from_secs(6)), "the session goes on");
    hand_over(&session, 1);
    let _client = Client::connect(&broker);
    assert!(matches!(hear(&session), FromBroker::Tapped { .. }));
}

#[test]
fn what_is_no_ring_ends_the_tap() {
    let broker = TestBroker::start();
    let unsealed = rustix::fs::memfd_create("t", MemfdFlags::CLOEXEC).expect("memfd");
    rustix::fs::ftruncate(&unsealed, tap::len(0) as u64).expect("size");
    let (small, _reader) = Reader::create(0).expect("memory");
    let file: OwnedFd = std::fs::File::open("/dev/null").expect("file").into();
    for (class, memory) in [(0, &unsealed), (1, &small), (tap::MAX_CLASS + 1, &small), (0, &file)] {
        let session = begin(&broker);
        session.hand_over(1, class, memory.as_fd()).expect("the broker reads");
        until_over(&session);
    }
    // More in advance than anybody needs.
    let session = begin(&broker);
    for ring in 0..64 {
        let (memory, _reader) = Reader::create(0).expect("memory");
        if session.hand_over(ring, 0, memory.as_fd()).is_err() {
            break;
        }
    }
    until_over(&session);
    broker.until_empty();
}

#[test]
fn only_a_tap_hands_over_rings_and_it_says_nothing_else() {
    let broker = TestBroker::start();
    let (memory, _reader) = Reader::create(0).expect("memory");
    let ring = ToBroker::Ring { ring: 1, class: 0 };
    let client = Client::connect(&broker);
    send(&client.socket, &ring, &[memory.as_fd()]);
    client.until_over();
    let stranger = try_connect(&broker.socket).expect("a broker listens");
    send(&stranger, &ring, &[memory.as_fd()]);
    assert!(readable(&stranger, PATIENCE) && support::receive(&stranger).is_none());

    let session = begin(&broker);
    let socket = session.as_fd().try_clone_to_owned().expect("a copy");
    send(&socket, &support::hello(1), &[]);
    until_over(&session);
}
