//! What every ISM device must do, whatever it is made of: its broker's half and its client's half.

use crate::ends::{Party, SessionId};
use crate::ism::{Held, IsmDevice, IsmError, NewDmb};
use rustix::fd::AsFd;
use shunpike_shm::device::ClientDevice;
use shunpike_shm::lane::{Cursor, Dmb, HEADER, MAX_CLASS, Side};
use shunpike_shm::pages::CqNews;
use shunpike_shm::region;
use shunpike_wire::session::ConnId;
use shunpike_wire::{DmbSize, DmbToken, Gid};

/// A device to be tested.
pub struct Fixture<D> {
    /// Makes a fresh one.
    pub make: fn() -> D,
    /// DMBs that it can hold; more than two.
    pub limit: usize,
}

const SIZE: DmbSize = DmbSize::MIN;

/// Runs the whole suite; panics at the first thing that does not conform.
pub fn run<D: IsmDevice, C: ClientDevice>(fixture: &Fixture<D>) {
    let make = fixture.make;
    identity(&make());
    a_dmb_lives_until_the_last_reference_goes(&mut make());
    only_the_peer_attaches(&mut make());
    only_holders_let_go(&mut make());
    limits_are_clear_errors(&mut make(), fixture);
    what_is_held_is_counted(&mut make());
    a_session_takes_its_references_along(&mut make());
    a_parked_dmb_serves_the_same_two_again(&mut make());
    a_parked_dmb_that_others_may_have_serves_nobody(&mut make());
    both_halves_can_the_same::<C>(&make());
    only_what_was_registered_is_attached::<C>();
    published_bytes_arrive::<C>(&mut make());
    one_of_two_changes_wins::<C>(&mut make());
    who_waits_is_told::<C>(&mut make());
}

fn party(session: u64) -> Party {
    Party { session: SessionId(session), conn: ConnId(session * 10) }
}

/// Registers a DMB of `owner`'s that `peer` may attach.
pub fn register(device: &mut impl IsmDevice, owner: u64, peer: u64) -> Result<DmbToken, IsmError> {
    let memory = region::create("conformance", HEADER + SIZE.bytes()).expect("memfd");
    // Users by the dozen.
    let user = owner as u32 / 12;
    device.register_dmb(NewDmb {
        owner: party(owner),
        user,
        peer: party(peer),
        size: SIZE,
        memory: memory.into(),
    })
}

fn identity(device: &impl IsmDevice) {
    assert_ne!(device.local_gid(), Gid(0));
    assert!(device.names().iter().all(|name| !name.is_empty() && !name.contains(char::is_whitespace)));
    assert!(device.supports_v2() || !device.chid().is_emulated(), "an emulated device is a v2 device");
}

fn a_dmb_lives_until_the_last_reference_goes(device: &mut impl IsmDevice) {
    let token = register(device, 1, 2).expect("room");
    let attached = device.attach_dmb(token, party(2)).expect("attach");
    assert_eq!(attached.size, SIZE);
    assert_eq!(attached.memory.is_some(), device.capabilities().mapped);
    assert_eq!(device.unregister_dmb(token, SessionId(1)), Ok(()));
    assert_eq!(device.dmb_count(), 1, "the peer still holds it");
    assert_eq!(device.attach_dmb(token, party(2)).map(drop), Err(IsmError::PeerGone));
    assert_eq!(device.detach_dmb(token, SessionId(2), true), Ok(()));
    assert_eq!(device.dmb_count(), 0);
    assert_eq!(device.detach_dmb(token, SessionId(2), true), Err(IsmError::UnknownToken));

    let token = register(device, 1, 2).expect("room");
    device.attach_dmb(token, party(2)).expect("attach");
    device.attach_dmb(token, party(2)).expect("references count");
    assert_eq!(device.detach_dmb(token, SessionId(2), true), Ok(()));
    assert_eq!(device.detach_dmb(token, SessionId(2), true), Ok(()));
    assert_eq!(device.dmb_count(), 1, "the owner still holds it");
    assert_eq!(device.unregister_dmb(token, SessionId(1)), Ok(()));
    assert_eq!(device.dmb_count(), 0);
}

fn only_the_peer_attaches(device: &mut impl IsmDevice) {
    let token = register(device, 1, 2).expect("room");
    let sibling = Party { session: SessionId(2), conn: ConnId(21) };
    for stranger in [party(1), party(3), sibling] {
        assert_eq!(device.attach_dmb(token, stranger).map(drop), Err(IsmError::NotAllowed));
    }
    let guess = DmbToken(token.0 ^ 1);
    assert_eq!(device.attach_dmb(guess, party(2)).map(drop), Err(IsmError::UnknownToken));
}

fn only_holders_let_go(device: &mut impl IsmDevice) {
    let token = register(device, 1, 2).expect("room");
    assert_eq!(device.detach_dmb(token, SessionId(2), true), Err(IsmError::UnknownToken), "not attached yet");
    device.attach_dmb(token, party(2)).expect("attach");
    assert_eq!(device.unregister_dmb(token, SessionId(2)), Err(IsmError::UnknownToken));
    assert_eq!(device.detach_dmb(token, SessionId(1), true), Err(IsmError::UnknownToken));
    assert_eq!(device.unregister_dmb(token, SessionId(1)), Ok(()));
    assert_eq!(device.unregister_dmb(token, SessionId(1)), Err(IsmError::UnknownToken), "only once");
    assert_eq!(device.dmb_count(), 1);
}

/// A session ends, in as many turns as it takes.
fn end(device: &mut impl IsmDevice, session: SessionId) {
    while device.end_session(session, 1) == 1 {}
}

fn limits_are_clear_errors<D: IsmDevice>(device: &mut D, fixture: &Fixture<D>) {
    for n in 0..fixture.limit {
        register(device, 1 + n as u64 % 2, 100).expect("room");
    }
    assert_eq!((device.dmb_count(), device.dmb_limit()), (fixture.limit, fixture.limit));
    assert_eq!(register(device, 3, 2), Err(IsmError::NoSpace));
    end(device, SessionId(1));
    register(device, 3, 2).expect("room again");
}

fn what_is_held_is_counted(device: &mut impl IsmDevice) {
    let each = (HEADER + SIZE.bytes()) as u64;
    let held = |dmbs| Held { dmbs, bytes: dmbs as u64 * each };
    let tokens = [1, 1, 2].map(|owner| register(device, owner, 20).expect("room"));
    let (one, two) = (SessionId(1), SessionId(2));
    assert_eq!([device.held_by_session(one), device.held_by_session(two)], [held(2), held(1)]);
    assert_eq!([device.held_by_user(0), device.held_by_user(1)], [held(3), held(0)]);
    device.attach_dmb(tokens[0], party(20)).expect("attach");
    device.unregister_dmb(tokens[1], one).expect("owner");
    assert_eq!(device.held_by_session(one), held(1));
    end(device, one);
    assert_eq!(device.held_by_user(0), held(2), "its peer keeps it alive");
    device.detach_dmb(tokens[0], SessionId(20), true).expect("attached");
    end(device, two);
    assert_eq!(device.held_by_user(0), held(0));
}

fn a_session_takes_its_references_along(device: &mut impl IsmDevice) {
    let token = register(device, 1, 2).expect("room");
    device.attach_dmb(token, party(2)).expect("attach");
    device.attach_dmb(token, party(2)).expect("attach");
    end(device, SessionId(1));
    assert_eq!(device.dmb_count(), 1, "the peer may still be reading");
    end(device, SessionId(2));
    assert_eq!(device.dmb_count(), 0);

    let token = register(device, 1, 2).expect("room");
    device.attach_dmb(token, party(2)).expect("attach");
    end(device, SessionId(2));
    assert_eq!(device.dmb_count(), 1);
    assert_eq!(device.unregister_dmb(token, SessionId(1)), Ok(()));
    assert_eq!(device.dmb_count(), 0);

    // Both ends in one process.
    let token = register(device, 1, 1).expect("room");
    device.attach_dmb(token, party(1)).expect("attach");
    end(device, SessionId(1));
    assert_eq!(device.dmb_count(), 0);
}

fn a_parked_dmb_serves_the_same_two_again(device: &mut impl IsmDevice) {
    let (owner, peer) = (SessionId(1), SessionId(2));
    let next = |session, conn| Party { session: SessionId(session), conn: ConnId(conn) };
    let token = register(device, 1, 2).expect("room");
    device.attach_dmb(token, party(2)).expect("attach");
    assert_eq!(device.is_spare(token), Err(IsmError::UnknownToken), "it is in use");
    assert_eq!(device.reuse_dmb(token, next(1, 11), next(2, 21)), Err(IsmError::UnknownToken));
    match device.park_dmb(token, peer) {
        Err(IsmError::Unsupported) => return,
        other => assert_eq!(other, Err(IsmError::UnknownToken), "the owner parks, nobody else"),
    }
    assert_eq!(device.park_dmb(token, owner), Ok(peer));
    assert_eq!(device.park_dmb(token, owner), Err(IsmError::UnknownToken), "only once");
    assert_eq!(device.attach_dmb(token, party(2)).map(drop), Err(IsmError::PeerGone));
    assert_eq!(device.is_spare(token), Ok(false), "its peer has it");
    assert_eq!(device.reuse_dmb(token, next(1, 11), next(2, 21)), Err(IsmError::NotAllowed));
    assert_eq!(device.detach_dmb(token, peer, true), Ok(()));
    assert_eq!(device.is_spare(token), Ok(true));
    assert_eq!(device.held_by_session(owner).dmbs, 1, "it counts");
    assert_eq!(
        device.reuse_dmb(token, next(3, 11), next(2, 21)),
        Err(IsmError::UnknownToken),
        "not the owner"
    );
    assert_eq!(device.reuse_dmb(token, next(1, 11), next(3, 21)), Err(IsmError::NotAllowed), "not its peer");
    let new = device.reuse_dmb(token, next(1, 11), next(2, 21)).expect("spare");
    assert_ne!(new, token);
    assert_eq!(device.attach_dmb(token, party(2)).map(drop), Err(IsmError::UnknownToken));
    assert_eq!(device.attach_dmb(new, party(2)).map(drop), Err(IsmError::NotAllowed), "not its connection");
    assert!(device.attach_dmb(new, next(2, 21)).is_ok());
    assert_eq!(device.unregister_dmb(new, owner), Ok(()));
    assert_eq!(device.detach_dmb(new, peer, true), Ok(()));
    assert_eq!((device.dmb_count(), device.held_by_session(owner)), (0, Held::default()));

    // Let go of after all, by its owner or with it.
    for session in [1, 3] {
        let token = register(device, session, 2).expect("room");
        assert_eq!(device.park_dmb(token, SessionId(session)), Ok(peer));
    }
    end(device, SessionId(3));
    assert_eq!(device.dmb_count(), 1);
    let token = register(device, 1, 2).expect("room");
    assert_eq!(device.park_dmb(token, owner), Ok(peer));
    assert_eq!(device.unregister_dmb(token, owner), Ok(()));
    end(device, owner);
    assert_eq!(device.dmb_count(), 0);
}

fn a_parked_dmb_that_others_may_have_serves_nobody(device: &mut impl IsmDevice) {
    let token = register(device, 1, 2).expect("room");
    device.attach_dmb(token, party(2)).expect("attach");
    device.detach_dmb(token, SessionId(2), false).expect("attached");
    if device.park_dmb(token, SessionId(1)) == Err(IsmError::Unsupported) {
        return;
    }
    assert_eq!(device.is_spare(token), Err(IsmError::NotAllowed));
    assert_eq!(device.reuse_dmb(token, party(1), party(2)), Err(IsmError::NotAllowed));
    device.unregister_dmb(token, SessionId(1)).expect("owner");
}

/// A DMB of 1's for 2, as both have it: the owner's view and the peer's, by two mappings.
fn lane<C: ClientDevice>(device: &mut impl IsmDevice) -> (Dmb, Dmb) {
    let memory = C::make(SIZE.class()).expect("memory");
    let len = Dmb::len(SIZE.class());
    let own = C::map(memory.as_fd(), len).expect("it maps");
    let new = NewDmb { owner: party(1), user: 0, peer: party(2), size: SIZE, memory: memory.into() };
    let token = device.register_dmb(new).expect("memory of the client's half is fit to be registered");
    let attached = device.attach_dmb(token, party(2)).expect("attach");
    let memory = attached.memory.expect("it is mapped");
    let peers = C::attach(memory.as_fd(), attached.size.class(), len).expect("what is attached can be had");
    assert_ne!(own.base(), peers.base());
    let dmb = |region| Dmb::new(region, token.0).expect("a DMB");
    let (own, peers) = (dmb(own), dmb(peers));
    own.words().grant(1);
    assert!(peers.words().begin(1, 0, peers.window()));
    (own, peers)
}

fn both_halves_can_the_same<C: ClientDevice>(device: &impl IsmDevice) {
    assert_eq!(device.capabilities(), C::CAPABILITIES);
}

fn only_what_was_registered_is_attached<C: ClientDevice>() {
    let (class, len) = (SIZE.class(), Dmb::len(SIZE.class()));
    let fit = C::make(class).expect("memory");
    assert!(C::attach(fit.as_fd(), class, len).is_ok());
    assert!(C::attach(fit.as_fd(), class, HEADER + 4096).is_ok(), "a part of it");
    assert!(C::attach(fit.as_fd(), class, len + HEADER).is_err(), "more than there is");
    assert!(C::attach(fit.as_fd(), class + 1, len).is_err(), "its owner said another size");
    assert!(C::attach(fit.as_fd(), MAX_CLASS + 1, len).is_err());
    let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
    let unsealed = rustix::fs::memfd_create("conformance", flags).expect("memfd");
    rustix::fs::ftruncate(&unsealed, len as u64).expect("its size");
    assert!(C::attach(unsealed.as_fd(), class, len).is_err(), "it could be truncated under its peer");
}

fn published_bytes_arrive<C: ClientDevice>(device: &mut impl IsmDevice) {
    let (own, peers) = lane::<C>(device);
    let sndbuf = C::map(C::make(SIZE.class()).expect("memory").as_fd(), Dmb::len(SIZE.class()));
    let sndbuf = Dmb::new(sndbuf.expect("it maps"), 0).expect("a send buffer has a DMB's layout");
    let ring = peers.window();
    let mut at = Cursor::new(1, 0);
    // Round the ring, and over its end.
    for n in [1, 8, ring - 12, 5, ring] {
        let bytes: Vec<u8> = (0..n).map(|byte| (byte ^ at.offset()) as u8).collect();
        // SAFETY: the test's own send buffer, and the ring's bytes, which nobody has published.
        unsafe { sndbuf.fill(at.offset(), bytes.as_ptr(), bytes.len()) };
        C::move_data(&peers, &sndbuf, at.offset(), bytes.len());
        assert_eq!(own.words().prod(), at, "moved, not published");
        let next = C::publish(peers.words(), at, n).expect("nobody has stopped it");
        assert_eq!(own.words().prod(), next);
        assert_eq!(read(&own, at.offset(), bytes.len()), bytes);
        assert_eq!(C::consume(own.words(), at, n), Ok(next));
        assert_eq!(peers.words().cons(), next);
        at = next;
    }
}

fn read(dmb: &Dmb, offset: u64, n: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < n {
        let (from, room) = dmb.span(offset + bytes.len() as u64);
        // SAFETY: within the ring; the sender is this thread.
        bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(from, room.min(n - bytes.len())) });
    }
    bytes
}

/// One end's word against the other's: who comes second hears of the first.
fn one_of_two_changes_wins<C: ClientDevice>(device: &mut impl IsmDevice) {
    if !C::CAPABILITIES.shared_cas {
        return;
    }
    let (own, peers) = lane::<C>(device);
    let at = Cursor::new(1, 0);
    let next = C::publish(peers.words(), at, 3).expect("nobody has stopped it");
    let stopped = own.words().flag(1, Cursor::STOP, Cursor::END).expect("the lane is open");
    assert_eq!(C::publish(peers.words(), next, 1), Err(stopped), "stopped meanwhile");
    assert!(stopped.has(Cursor::STOP));
    assert_eq!(C::publish(peers.words(), at, 1), Err(stopped), "another sender's");
    assert_eq!(C::consume(own.words(), at, 3), Ok(next));
    assert_eq!(C::consume(own.words(), at, 3), Err(next), "another reader has had it");
}

fn who_waits_is_told<C: ClientDevice>(device: &mut impl IsmDevice) {
    let (own, peers) = lane::<C>(device);
    for side in [Side::Readers, Side::Writers] {
        assert!(!C::awaited(peers.words(), side).declared(), "nobody waits");
        own.words().declare(side, 7, 1 << 3);
        let wait = C::awaited(peers.words(), side);
        assert!(wait.declared() && wait.cqs() == 1 << 3);
        peers.words().answered(side, wait);
        assert!(!C::awaited(own.words(), side).declared());
    }
    let queue = CqNews::new();
    let taken = || {
        let mut slots = Vec::new();
        queue.take(|slot| slots.push(slot));
        slots
    };
    assert!(C::notify(&queue, 5).is_none(), "nobody sleeps");
    assert_eq!(taken(), [5]);
    queue.declare(9);
    let sleep = C::notify(&queue, 200).expect("it sleeps");
    assert!(C::notify(&queue, 1).is_some(), "it has not been rung yet");
    queue.answered(sleep);
    assert!(C::notify(&queue, 200).is_none());
    assert_eq!(taken(), [1, 200]);
}
