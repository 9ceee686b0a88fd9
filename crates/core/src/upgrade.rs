//! Nomination, the CLC handshake, and opening lanes: what the broker's messages do to a connection.
//!
//! Everything here runs under the session's lock, inside some hooked call of the program, and waits for
//! nothing. Order of locks: session, then receive half, then send half.

mod dmbs;
mod lanes;
mod nomination;

use core::sync::atomic::Ordering;
use shunpike_shm::lifecycle::{Event, Phase};

use rustix::fd::AsFd;
use shunpike_shm::arena::{Block, mode};
use shunpike_shm::pages::{CQS, PAGE};
use shunpike_shm::{Region, region};
use shunpike_wire::clc::Message;
use shunpike_wire::clc::handshake::{self, Client, Input, NamedDmb as Named, Next, Outbox, Server, Step};
use shunpike_wire::session::{ClcBytes, ConnId, FromBroker, ToBroker};
use shunpike_wire::{DmbToken, Reason};

use dmbs::{answered_reuse, attached, own_size, register, register_new, registered};
use lanes::{begin, open};
use nomination::postpone;
pub(crate) use nomination::{catch_up, made};
pub use nomination::{nominate, not_within};

use crate::handshakes::{Handshake, MOST, Machine};
use crate::session::{self, Fds, Session, close_raw, keep};
use crate::table::{self, Conn};
use crate::{above, clock, closing, device, eager, holders, link, process, reuse, seen, sets, state, tap};

/// How long the peer may take for each answer, as in the kernel (CLC_WAIT_TIME, net/smc/smc_clc.h).
const TIMEOUT_US: u64 = 6_000_000;

/// The id that names a connection towards the broker.
pub(crate) fn id_of(block: &Block) -> Option<ConnId> {
    Some(ConnId::new(process::index(block)?, block.name.load(Ordering::Relaxed)))
}

/// The connection that `id` names, if it still is that one.
fn conn_of(id: ConnId) -> Option<(Conn, i32)> {
    let block = process::block(id.index())?;
    if block.name.load(Ordering::Relaxed) != id.name() || !holders::holds(block) {
        return None;
    }
    let fd = block.fd.load(Ordering::Relaxed) as i32;
    let conn = table::conn(fd)?;
    core::ptr::eq(conn.block, block).then_some((conn, fd))
}

/// A message of the broker.
pub fn take(session: &mut Session, message: FromBroker, mut fds: Fds) {
    if let FromBroker::Matched { conn, .. }
    | FromBroker::Again { conn }
    | FromBroker::Refused { conn, .. }
    | FromBroker::Waiting { conn, .. } = message
        && let Some((conn, _)) = conn_of(conn)
    {
        eager::returned(conn.block);
    }
    match message {
        FromBroker::Matched { conn, link, slot, side, first_contact, doorbells, peer } => {
            matched(
                session,
                conn,
                (link, slot, side, peer),
                first_contact.then_some((&mut fds, doorbells)),
                first_contact,
            );
        }
        FromBroker::Again { conn } => {
            if let Some((conn, fd)) = conn_of(conn) {
                let block = conn.block;
                if block.life.on(Event::AskAgain).is_taken() {
                    eager::asked_again(session, conn, fd);
                }
            }
        }
        FromBroker::Refused { conn, reason } => {
            let reason = Reason::from_code(reason).unwrap_or(Reason::Internal);
            if let Some((conn, _)) = conn_of(conn) {
                postpone(conn.block, reason);
            }
        }
        FromBroker::Gone { conn } => step(session, conn, Input::PeerVanished),
        FromBroker::Clc { conn, clc } => step(session, conn, Input::Clc(clc.as_slice())),
        FromBroker::Registered { conn, token, reason } => {
            let Some(size) = own_size(session, conn) else {
                // The handshake that asked for it is over.
                if token != 0 {
                    session.send(&ToBroker::Unregister { token });
                }
                return;
            };
            let named = Named { token: DmbToken(token), size };
            let refusal = refusal(reason);
            if answered_reuse(session, conn, refusal.is_some()) {
                return register_new(session, conn, size.class());
            }
            match refusal {
                None => registered(session, conn, named),
                Some(reason) => step(session, conn, Input::Refused(reason)),
            }
        }
        FromBroker::Attached { conn, token, class, reason } => {
            let input = attached(session, conn, DmbToken(token), (class, reason), fds[0].take());
            if let Some(input) = input {
                step(session, conn, input);
            }
        }
        FromBroker::Parked { token } => session.spares.ready(DmbToken(token)),
        FromBroker::Dropped { token } => session.spares.dropped(DmbToken(token)),
        FromBroker::Revoke { conn: ConnId(0) } => {
            let off = process::knobs().active.load(Ordering::Relaxed) == 0;
            revoke_all(if off { Reason::Inactive } else { Reason::Revoked });
        }
        FromBroker::Revoke { conn } => {
            if let Some((conn, fd)) = conn_of(conn) {
                above::revoke(conn, fd, Reason::Revoked);
            }
        }
        FromBroker::LinkGone { link } => link::gone(session.number, link),
        FromBroker::Waiting { conn, expected } => {
            if let Some((conn, _)) = conn_of(conn) {
                eager::answered(conn.block, expected);
            }
        }
        FromBroker::Tap { tap, class, root } => tap::start(tap, class, root, fds[0].take()),
        FromBroker::Untap { tap } => {
            tap::stop(tap);
            reuse::sweep(session);
        }
        // Not for a program.
        FromBroker::Welcome(_) | FromBroker::Tapped { .. } | FromBroker::TapOver { .. } => {}
    }
}

fn refusal(code: u32) -> Option<Reason> {
    (code != 0).then(|| Reason::from_code(code).unwrap_or(Reason::Internal))
}

/// A connection that another process has inherited meanwhile, or has alone by now, gets no lane from us: what
/// is mapped here is not mapped there. Nor does one that was left to TCP for good.
fn shared(id: ConnId) -> Option<Reason> {
    let ours = conn_of(id).filter(|(conn, _)| holders::alone(conn.block));
    ours.map_or(Some(Reason::Shared), |(conn, _)| left_for_good(conn.block))
}

/// The broker has matched the two ends: join the link group, begin the handshake.
fn matched(
    session: &mut Session,
    id: ConnId,
    (number, slot, side, peer): (u32, u16, u8, u32),
    first: Option<(&mut Fds, u8)>,
    first_contact: bool,
) {
    let group = match first {
        Some((fds, doorbells)) => first_contact_link(session.number, number, side, fds, doorbells),
        // Where it is not there, the group's first connection found no room for it.
        None => link::find(session.number, number, side)
            .or_else(|| link::mirror(session.number, number, side))
            .ok_or(Reason::NoDescriptors),
    };
    let Some((conn, fd)) = conn_of(id) else {
        session.send(&ToBroker::Withdraw { conn: id });
        return;
    };
    if let Some(reason) = left_for_good(conn.block) {
        stay_if_reading_is_shut(conn.block);
        return decline_match(session, id, conn.block, reason);
    }
    // Asked again: the connection may have come into other sets since its nomination.
    let is_early = eager::is_possible(conn.block);
    if !(if is_early { seen::is_likely(conn, fd) } else { seen::is_seen(conn, fd) }) {
        decline_match(session, id, conn.block, Reason::WaitsUnseen);
        state::note(conn.block, Reason::WaitsUnseen);
        seen::put_off(conn.block);
        conn.block.life.on(Event::End);
        return;
    }
    let group = match group {
        Ok(group) => group,
        Err(reason) => {
            withdraw(session, conn.block);
            return postpone(conn.block, reason);
        }
    };
    let is_its = |shake: &Handshake| link::of(shake.conn.block).is_some_and(|of| core::ptr::eq(of, group));
    let mut free = session.handshakes.place_for(is_its);
    if free.is_none() {
        forget_overdue(session);
        free = session.handshakes.place_for(is_its);
    }
    let (Some(device), Some(free)) = (session.device, free) else {
        withdraw(session, conn.block);
        return postpone(conn.block, Reason::NominationLimit);
    };
    if !conn.block.life.on(Event::Match).is_taken() {
        return withdraw(session, conn.block);
    }
    eager::matched(conn.block);
    link::join(group, conn.block, slot);
    conn.block.rx.lender.store(peer, Ordering::Relaxed);
    let mut out: Outbox = [0; _];
    let (machine, proposal) = if state::opener(conn.block) {
        let (client, step) = Client::start(&device, first_contact, number, &mut out);
        (Machine::Client(client), step.send)
    } else {
        (Machine::Server(Server::new(first_contact, number)), None)
    };
    let deadline = clock::ticks() + clock::from_us(TIMEOUT_US);
    conn.block.retry_at.store(deadline, Ordering::Relaxed);
    session.handshakes.slots[free] = Some(Handshake::begin(conn, id, machine, deadline));
    if let Some(clc) = proposal.and_then(|clc| ClcBytes::new(clc).ok()) {
        session.send(&ToBroker::Clc { conn: id, clc });
    }
}

/// Handshakes end whose peers say nothing, by TCP neither: else their own next calls end them ([`retry`]).
#[cold]
fn forget_overdue(session: &mut Session) {
    for _ in 0..MOST {
        let Some(id) = session.handshakes.overdue(clock::ticks()) else { return };
        step(session, id, Input::Timeout);
    }
}

/// Tells the broker that a connection wants no lane, or has left its match, where it is off its link group, or about to be: its seat
/// there may be another's next. What the broker has said and we have not heard is void: it is of a name that is no more.
fn withdraw(session: &mut Session, block: &Block) {
    let Some(id) = id_of(block) else { return };
    session.send(&ToBroker::Withdraw { conn: id });
    block.name.fetch_add(1, Ordering::Relaxed);
    eager::returned(block);
}

/// Takes a connection off its link group; not where its peer has begun to send on a lane that can no longer be withdrawn:
/// the group is what tells of those bytes. That lane is open then, until it is read, and `settle` does the rest. Says
/// whether it did.
fn part_unless_granted(conn: Conn) -> bool {
    let over = conn.block.rx.mode.load(Ordering::Acquire) == mode::PLAIN;
    if over {
        sets::restore(conn, || link::part(conn.block));
    } else {
        conn.block.life.on(Event::Keep);
    }
    over
}

/// Why the connection stays on TCP for good: this process, or a child of it, gave it away since it was nominated, or did
/// with it what a lane cannot do.
fn left_for_good(block: &Block) -> Option<Reason> {
    if block.life.has_ended_reading() {
        return Some(Reason::ReadingShut);
    }
    block
        .life
        .phase()
        .is_left()
        .then(|| Reason::from_code(block.reason.load(Ordering::Relaxed)).unwrap_or(Reason::Internal))
}

/// The program has shut down its reading since it was nominated: no lane is waited for any more.
fn stay_if_reading_is_shut(block: &Block) {
    if block.life.has_ended_reading() {
        block.life.on(Event::Bar);
        state::note(block, Reason::ReadingShut);
    }
}

/// A match that came too late. The peer is told, lest it nominate anew and wait: not where others have the connection, who
/// may want a lane yet.
fn decline_match(session: &mut Session, id: ConnId, block: &Block, reason: Reason) {
    if holders::alone(block) {
        tell_peer(session, id, reason);
    }
    withdraw(session, block);
}

/// Tells the matched peer that there will be no lane.
fn tell_peer(session: &mut Session, id: ConnId, reason: Reason) {
    let mut out: Outbox = [0; _];
    let clc = session.device.and_then(|device| handshake::decline(&device, reason, &mut out));
    if let Some(clc) = clc.and_then(|clc| ClcBytes::new(clc).ok()) {
        session.send(&ToBroker::Clc { conn: id, clc });
    }
}

/// The connection is about to stay on TCP for good, for `reason`. A peer that waits for the lane (`--eager`) is told: now, or
/// by `decline_match`. With no lock held.
pub fn decline(conn: Conn, fd: i32, reason: Reason) {
    let Some(id) = id_of(conn.block) else { return };
    if eager::is_possible(conn.block) {
        nominate(conn, fd);
    }
    if conn.block.life.is(Phase::Shaking) {
        step(&mut crate::session::lock(), id, Input::Refused(reason));
    }
}

fn first_contact_link(
    session: u32,
    id: u32,
    side: u8,
    fds: &mut Fds,
    doorbells: u8,
) -> Result<&'static link::Link, Reason> {
    let page = fds[0].take().ok_or(Reason::NoDescriptors)?;
    region::verify(page.as_fd(), PAGE).map_err(|_| Reason::Internal)?;
    let page = Region::map(page.as_fd(), PAGE).map_err(|_| Reason::MemoryRefused)?;
    let mut bells = [-1; CQS];
    for (to, fd) in bells.iter_mut().zip(fds.iter_mut().skip(1)).take(usize::from(doorbells)) {
        *to = keep(fd.take());
    }
    let missing = bells.iter().take(usize::from(doorbells)).any(|&bell| bell < 0);
    let entered = if missing { None } else { link::enter(session, id, side, page.base() as usize, bells) };
    entered.ok_or_else(|| {
        bells.into_iter().for_each(close_raw);
        // SAFETY: mapped above, and nobody else was told of it.
        unsafe { page.unmap() };
        if missing { Reason::NoDescriptors } else { Reason::LinkLimit }
    })
}

/// A connection that was inherited while its process waited for a lane. Where that one is gone nobody hears the broker's answer: what it
/// has asked for is over, and this process may ask. Under the session's lock.
fn adopt(conn: Conn) {
    let block = conn.block;
    if holders::shared(block) {
        return;
    }
    let was_granted = block.rx.mode.load(Ordering::Acquire) != mode::PLAIN;
    closing::withdraw_grant(conn);
    if was_granted {
        // Before the fork, as is the link then: no lane comes to a connection that is shared.
        if !part_unless_granted(conn) {
            return;
        }
    } else {
        // A link of the other process, if any.
        block.link.store(0, Ordering::Relaxed);
    }
    state::note(block, Reason::NotNominated);
    block.retry_at.store(0, Ordering::Relaxed);
    block.life.on(Event::End);
}

/// What waited for a thread to come out of the kernel, what waits too long, and what a process that is gone waited for.
pub fn retry(conn: Conn, fd: i32) {
    let Some(mut session) = crate::session::try_lock() else { return };
    let block = conn.block;
    match block.life.phase() {
        Phase::Nominated | Phase::Shaking if state::is_inherited(block) => adopt(conn),
        Phase::Shaking => {
            let Some(id) = id_of(block) else { return };
            let Some(Some(shake)) = session.handshakes.find(id) else { return };
            let (deadline, waiting) = (shake.deadline, shake.registered);
            if clock::ticks() > deadline {
                return step(&mut session, id, Input::Timeout);
            }
            if let Some(named) = waiting {
                registered(&mut session, id, named);
            }
        }
        // What another process has opened may not be mapped here.
        Phase::Open if !state::is_inherited(block) => begin(conn, fd),
        _ => {}
    }
}

/// Drives one handshake with one input.
fn step(session: &mut Session, id: ConnId, input: Input<'_>) {
    let Some(device) = session.device else { return };
    let mut out: Outbox = [0; _];
    let Some(Some(shake)) = session.handshakes.find(id) else {
        return late(session, id, input);
    };
    let step: Step<'_> = match &mut shake.machine {
        Machine::Client(client) => client.step(&device, input, &mut out),
        Machine::Server(server) => server.step(&device, input, &mut out),
    };
    shake.deadline = clock::ticks() + clock::from_us(TIMEOUT_US);
    let (conn, fd) = (shake.conn, shake.fd());
    if let Some(clc) = step.send.and_then(|clc| ClcBytes::new(clc).ok()) {
        session.send(&ToBroker::Clc { conn: id, clc });
    }
    match step.next {
        Next::Wait => {}
        Next::Register => register(session, id),
        Next::Attach(dmb) => {
            session.send(&ToBroker::Attach { conn: id, token: dmb.token.0 });
        }
        Next::Open(opened) => open(session, id, opened),
        Next::Unregister(token) => {
            session.send(&ToBroker::Unregister { token: token.0 });
        }
        Next::Detach(token) => {
            session.send(&ToBroker::Detach { token: token.0, gone: false });
        }
        Next::Fallback(fallback) => {
            let Some(slot) = session.handshakes.find(id) else { return };
            let Some(shake) = slot.take() else { return };
            if fallback.peer_diagnosis != 0 {
                conn.block.peer_reason.store(fallback.peer_diagnosis, Ordering::Relaxed);
            }
            if let Some(header) = process::header() {
                header.handshake_errors.fetch_add(1, Ordering::Relaxed);
            }
            if let Some(region) = shake.peer {
                device::retire(region, fallback.peer.unwrap_or(DmbToken(0)), device::Owner::Peer);
            }
            let granted = conn.block.rx.mode.load(Ordering::Relaxed) != mode::PLAIN;
            if granted {
                // Stops the DMB that the peer may know, or have begun to use; it is retired when drained.
                closing::withdraw_grant(conn);
            }
            if let Some(region) = shake.own {
                // The machine has not heard of one whose grant waits for a thread to come out of the kernel.
                let waiting = shake.registered.map(|named| named.token);
                let token = fallback.own.or(waiting).unwrap_or(DmbToken(0));
                device::retire(region, token, device::Owner::Ours);
            }
            if !part_unless_granted(conn) {
                return state::note(conn.block, fallback.reason);
            }
            withdraw(session, conn.block);
            if !eager::again(session, conn, fd, fallback.reason, fallback.peer_diagnosis) {
                postpone(conn.block, fallback.reason);
            }
        }
    }
}

/// An input for a handshake that is over: a Decline after our Open takes the connection back to TCP, what
/// was registered or attached in vain is let go.
fn late(session: &mut Session, id: ConnId, input: Input<'_>) {
    match input {
        Input::Registered(dmb) => {
            session.send(&ToBroker::Unregister { token: dmb.token.0 });
        }
        Input::Clc(bytes) => {
            // Not the kernel's way, where a server that fails after Confirm strands its client.
            if let (Ok(Message::Decline(decline)), Some((conn, fd))) = (Message::decode(bytes), conn_of(id)) {
                conn.block.peer_reason.store(decline.diagnosis, Ordering::Relaxed);
                above::revoke(conn, fd, Reason::PeerDeclined);
            }
        }
        Input::PeerVanished => {
            // TCP tells of the peer's end. Nobody may be left who knows of our DMB: a child of the peer goes on without.
            if let Some((conn, fd)) = conn_of(id)
                && conn.block.life.is(Phase::Open)
                && !has_begun(conn.block)
            {
                above::revoke(conn, fd, Reason::PeerVanished);
            }
        }
        _ => {}
    }
}

/// Whether the peer of an open connection has begun to send by the lane towards us, or that is over. Under the session's lock.
fn has_begun(block: &Block) -> bool {
    let half = &block.rx;
    let generation = half.generation.load(Ordering::Relaxed);
    half.mode.load(Ordering::Acquire) != mode::GRANTED
        || state::rx_dmb(half).is_none_or(|dmb| dmb.words().start(generation).is_some())
}

/// Other programs got the connection in the middle of a nomination or a handshake, which was `id`'s: both end. Not where it came back
/// meanwhile, nor in a child after fork, which has no name for it: link group and broker are its parent's.
pub fn given_away(conn: Conn, id: Option<ConnId>) {
    let Some(id) = id else { return };
    let mut session = session::lock();
    if id_of(conn.block) == Some(id) && conn.block.life.phase().is_left() {
        // First: a peer that hears of our end while it has begun to send ends its lane, and what is unread would be in a ring that the
        // other programs do not know.
        closing::ask_back(conn, false);
        forget(&mut session, conn.block);
        part_unless_granted(conn);
    }
}

/// The connection is being closed or has gone back to TCP: the handshake's slot and the broker's match end.
pub fn forget(session: &mut Session, block: &Block) {
    let Some(id) = id_of(block) else { return };
    if let Some(slot) = session.handshakes.find(id)
        && let Some(shake) = slot.take()
    {
        if let Some(region) = shake.own {
            let token = shake.registered.map_or(DmbToken(0), |named| named.token);
            device::retire(region, token, device::Owner::Ours);
        }
        if let Some(region) = shake.peer {
            device::retire(region, shake.peer_token, device::Owner::Peer);
        }
    }
    withdraw(session, block);
}

/// The broker is gone: handshakes under way end on TCP; what was open stays open.
pub fn broker_gone(session: &mut Session) {
    for slot in 0..MOST {
        let Some(shake) = session.handshakes.slots[slot].take() else { continue };
        if shake.conn.block.rx.mode.load(Ordering::Relaxed) != mode::PLAIN {
            closing::withdraw_grant(shake.conn);
        }
        if let Some(region) = shake.own {
            device::retire(region, DmbToken(0), device::Owner::Ours);
        }
        if let Some(region) = shake.peer {
            device::retire(region, DmbToken(0), device::Owner::Peer);
        }
        if part_unless_granted(shake.conn) {
            postpone(shake.conn.block, Reason::BrokerGone);
        } else {
            state::note(shake.conn.block, Reason::BrokerGone);
        }
    }
    for (_, entry) in table::all() {
        if let table::Entry::Conn(conn) = entry
            && conn.block.life.is(Phase::Nominated)
        {
            postpone(conn.block, Reason::BrokerGone);
        }
    }
}

/// Closes all lanes of the process.
fn revoke_all(reason: Reason) {
    for (fd, entry) in table::all() {
        if let table::Entry::Conn(conn) = entry
            && conn.block.life.is(Phase::Open)
        {
            above::revoke(conn, fd, reason);
        }
    }
}

#[cfg(test)]
mod tests;
