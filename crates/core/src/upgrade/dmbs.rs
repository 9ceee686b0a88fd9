//! The two DMBs of a handshake: ours is registered and granted to the peer, the peer's is attached.

use rustix::fd::{AsFd, OwnedFd};
use shunpike_shm::device::{ClientDevice, Own};
use shunpike_shm::lane::ring_size;
use shunpike_wire::clc::handshake::{Input, NamedDmb as Named};
use shunpike_wire::session::{ConnId, ToBroker};
use shunpike_wire::{DmbSize, DmbToken, Reason};

use super::lanes::{grant, map_dmb, wished_class};
use super::{refusal, shared, step};
use crate::session::Session;
use crate::{device, limits, link, memory, reuse, sets, window};

/// Size of the DMB of ours that the broker was asked to register for a handshake.
pub(super) fn own_size(session: &mut Session, id: ConnId) -> Option<DmbSize> {
    let shake = session.handshakes.find(id)?.as_ref()?;
    shake.own?;
    DmbSize::holding(shake.own_ring as usize)
}

/// Registers a DMB of ours: one that served another connection of the link group, or a new one.
pub(super) fn register(session: &mut Session, id: ConnId) {
    let Some(shake) = session.handshakes.find(id).and_then(|slot| slot.as_ref()) else { return };
    let (conn, class) = (shake.conn, wished_class(shake.fd()));
    if !memory::may_open_lane() {
        return step(session, id, Input::Refused(Reason::MemoryRefused));
    }
    let spare =
        link::of(conn.block).and_then(|link| reuse::take(session, link.number(), ring_size(class) as u32));
    let Some(spare) = spare else { return register_new(session, id, class) };
    let Some(Some(shake)) = session.handshakes.find(id) else {
        // The broker turned out to be gone.
        return device::retire(spare.region, DmbToken(0), device::Owner::Ours);
    };
    (shake.own, shake.own_ring, shake.own_forks, shake.used) =
        (Some(spare.region), spare.ring, spare.forks, true);
    session.send(&ToBroker::Reuse { conn: id, token: spare.token.0 });
}

/// The broker has answered: where that was whether a DMB can be used again, and it cannot, we let go of it. Says whether.
pub(super) fn answered_reuse(session: &mut Session, id: ConnId, refused: bool) -> bool {
    let Some(Some(shake)) = session.handshakes.find(id) else { return false };
    let in_vain = core::mem::replace(&mut shake.used, false) && refused;
    if in_vain && let Some(region) = shake.own.take() {
        device::retire(region, DmbToken(0), device::Owner::Ours);
    }
    in_vain
}

/// Makes our DMB and registers it. Sizes step down when memory is refused, as in the kernel ("downgrade").
pub(super) fn register_new(session: &mut Session, id: ConnId, most: u8) {
    for class in (0..=most).rev() {
        let ring = ring_size(class) as u32;
        let first = window::first_mapped(ring);
        if !limits::may_map(first) {
            continue;
        }
        let Ok(fd) = Own::make(class) else { continue };
        let Ok(region) = limits::map_lane(fd.as_fd(), first) else { continue };
        if let Some(Some(shake)) = session.handshakes.find(id) {
            (shake.own, shake.own_ring, shake.own_forks) = (Some(region), ring, device::forks());
        }
        session.send_with(&ToBroker::Register { conn: id, class }, Some(fd.as_fd()));
        return;
    }
    step(session, id, Input::Refused(Reason::MemoryRefused));
}

/// The broker registered our DMB: offer it, unless a thread is just inside a kernel call that would read
/// past the lane's beginning; then the answer waits for `retry`.
pub(super) fn registered(session: &mut Session, id: ConnId, named: Named) {
    let Some(Some(shake)) = session.handshakes.find(id) else {
        session.send(&ToBroker::Unregister { token: named.token.0 });
        return;
    };
    let (conn, fd, forks, ring) = (shake.conn, shake.fd(), shake.own_forks, shake.own_ring);
    let Some(region) = shake.own else { return };
    if let Some(reason) = shared(id) {
        session.send(&ToBroker::Unregister { token: named.token.0 });
        return step(session, id, Input::Refused(reason));
    }
    if !grant(conn, fd, (region, ring), named.token, forks) {
        shake.registered = Some(named);
        return;
    }
    // The block's now: it is let go with the lane, also where that ends before the handshake does.
    shake.own = None;
    shake.registered = None;
    // The peer does not know of it yet. Whoever comes to wait for one of its sets from here on finds a lane there (`sets::watch`).
    let input = sets::bars_managed(conn, fd).map_or(Input::Registered(named), Input::Refused);
    step(session, id, input);
}

/// The peer's DMB, which the broker has attached for us, unless for a `reason`: what its handshake hears. Where that is over, or has
/// no use for it, it is let go.
pub(super) fn attached(
    session: &mut Session,
    id: ConnId,
    token: DmbToken,
    (class, reason): (u8, u32),
    memory: Option<OwnedFd>,
) -> Option<Input<'static>> {
    let map = || {
        let size = DmbSize::from_class(class).ok_or(Reason::AttachRefused)?;
        let memory = memory.ok_or(Reason::AttachRefused)?;
        let region = map_dmb(memory.as_fd(), class).ok_or(Reason::MemoryRefused)?;
        Ok((size, region))
    };
    let refused = match session.handshakes.find(id) {
        Some(Some(shake)) => match refusal(reason).or_else(|| shared(id)).map_or_else(map, Err) {
            Ok((size, region)) => {
                (shake.peer, shake.peer_forks, shake.peer_token) = (Some(region), device::forks(), token);
                shake.peer_ring = ring_size(class) as u32;
                return Some(Input::Attached(Named { token, size }));
            }
            Err(reason) => Some(Input::Refused(reason)),
        },
        _ => None,
    };
    if reason == 0 {
        session.send(&ToBroker::Detach { token: token.0, gone: true });
    }
    refused
}
