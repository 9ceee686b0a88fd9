//! What every ISM device must do, whatever it is made of.

use crate::ends::{Party, SessionId};
use crate::ism::{Held, IsmDevice, IsmError, NewDmb, Transfer};
use shunpike_shm::lane::HEADER;
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
pub fn run<D: IsmDevice>(fixture: &Fixture<D>) {
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
    moved_bytes_arrive(&mut make());
    transfers_stay_in_bounds(&mut make());
    optional_operations_say_so(&mut make());
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
    let own = device.local_gid();
    assert_eq!(device.query_remote_gid(own), Ok(()));
    assert_eq!(device.query_remote_gid(Gid(own.0 ^ 1)), Err(IsmError::Unreachable));
    assert_eq!(device.query_remote_gid(Gid(own.0 ^ 1 << 127)), Err(IsmError::Unreachable));
    assert!(device.supports_v2() || !device.chid().is_emulated(), "an emulated device is a v2 device");
}

fn a_dmb_lives_until_the_last_reference_goes(device: &mut impl IsmDevice) {
    let token = register(device, 1, 2).expect("room");
    let attached = device.attach_dmb(token, party(2)).expect("attach");
    assert_eq!(attached.size, SIZE);
    assert_eq!(attached.memory.is_some(), device.support_dmb_nocopy());
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

fn limits_are_clear_errors<D: IsmDevice>(device: &mut D, fixture: &Fixture<D>) {
    for n in 0..fixture.limit {
        register(device, 1 + n as u64 % 2, 100).expect("room");
    }
    assert_eq!((device.dmb_count(), device.dmb_limit()), (fixture.limit, fixture.limit));
    assert_eq!(register(device, 3, 2), Err(IsmError::NoSpace));
    device.end_session(SessionId(1));
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
    device.end_session(one);
    assert_eq!(device.held_by_user(0), held(2), "its peer keeps it alive");
    device.detach_dmb(tokens[0], SessionId(20), true).expect("attached");
    device.end_session(two);
    assert_eq!(device.held_by_user(0), held(0));
}

fn a_session_takes_its_references_along(device: &mut impl IsmDevice) {
    let token = register(device, 1, 2).expect("room");
    device.attach_dmb(token, party(2)).expect("attach");
    device.attach_dmb(token, party(2)).expect("attach");
    device.end_session(SessionId(1));
    assert_eq!(device.dmb_count(), 1, "the peer may still be reading");
    device.end_session(SessionId(2));
    assert_eq!(device.dmb_count(), 0);

    let token = register(device, 1, 2).expect("room");
    device.attach_dmb(token, party(2)).expect("attach");
    device.end_session(SessionId(2));
    assert_eq!(device.dmb_count(), 1);
    assert_eq!(device.unregister_dmb(token, SessionId(1)), Ok(()));
    assert_eq!(device.dmb_count(), 0);

    // Both ends in one process.
    let token = register(device, 1, 1).expect("room");
    device.attach_dmb(token, party(1)).expect("attach");
    device.end_session(SessionId(1));
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
    let quiet = Transfer { offset: 0, data: b"x", signal: false };
    assert_eq!(device.move_data(token, party(2), quiet), Err(IsmError::PeerGone));
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
    device.end_session(SessionId(3));
    assert_eq!(device.dmb_count(), 1);
    let token = register(device, 1, 2).expect("room");
    assert_eq!(device.park_dmb(token, owner), Ok(peer));
    assert_eq!(device.unregister_dmb(token, owner), Ok(()));
    device.end_session(owner);
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

fn moved_bytes_arrive(device: &mut impl IsmDevice) {
    let memory = region::create("conformance", HEADER + SIZE.bytes()).expect("memfd");
    let look = memory.try_clone().expect("dup");
    let new = NewDmb { owner: party(1), user: 0, peer: party(2), size: SIZE, memory: memory.into() };
    let token = device.register_dmb(new).expect("room");
    device.attach_dmb(token, party(2)).expect("attach");
    let offset = HEADER as u64 + 5;
    let quiet = Transfer { offset, data: b"shunpike", signal: false };
    assert_eq!(device.move_data(token, party(2), quiet), Ok(None));
    let mut seen = [0; 10];
    rustix::io::pread(&look, &mut seen, offset - 1).expect("pread");
    assert_eq!(&seen, b"\0shunpike\0");
    let loud = Transfer { signal: true, ..quiet };
    assert_eq!(device.move_data(token, party(2), loud), Ok(Some(party(1))));
}

fn transfers_stay_in_bounds(device: &mut impl IsmDevice) {
    let token = register(device, 1, 2).expect("room");
    let len = (HEADER + SIZE.bytes()) as u64;
    let at = |offset| Transfer { offset, data: b"xyz", signal: true };
    assert_eq!(device.move_data(token, party(2), at(0)), Err(IsmError::NotAllowed), "not attached");
    device.attach_dmb(token, party(2)).expect("attach");
    assert_eq!(device.move_data(token, party(2), at(len - 3)), Ok(Some(party(1))));
    for offset in [len - 2, len, u64::MAX - 1, u64::MAX] {
        assert_eq!(device.move_data(token, party(2), at(offset)), Err(IsmError::OutOfBounds));
    }
    assert_eq!(device.move_data(token, party(3), at(0)), Err(IsmError::NotAllowed));
    let unknown = DmbToken(token.0 ^ 1);
    assert_eq!(device.move_data(unknown, party(2), at(0)), Err(IsmError::UnknownToken));
    device.unregister_dmb(token, SessionId(1)).expect("owner");
    assert_eq!(device.move_data(token, party(2), at(0)), Err(IsmError::PeerGone));
}

fn optional_operations_say_so(device: &mut impl IsmDevice) {
    let gid = device.local_gid();
    for result in [device.signal_event(gid, 0x83, 0), device.add_vlan_id(1), device.del_vlan_id(1)] {
        assert!(matches!(result, Ok(()) | Err(IsmError::Unsupported)), "{result:?}");
    }
}
