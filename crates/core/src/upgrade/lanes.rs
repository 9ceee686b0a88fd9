//! The two halves of a connection get their lanes: the receive side is granted, the send side opened and begun.

use core::sync::atomic::Ordering;
use shunpike_shm::lifecycle::Event;

use shunpike_shm::Region;
use shunpike_shm::arena::mode;
use shunpike_shm::lane::{Dmb, FIRST_WINDOW, HEADER, MAX_CLASS, ring_size};
use shunpike_wire::clc::handshake::Opened;
use shunpike_wire::session::ConnId;
use shunpike_wire::{DmbSize, DmbToken};

use super::{left_for_good, part_unless_granted, stay_if_reading_is_shut, tell_peer, withdraw};
use crate::session::Session;
use crate::table::Conn;
use crate::tls::critical;
use crate::{
    above, closing, cork, device, holders, keepalive, limits, link, process, reset, sets, state, stores, sys,
    tap, trace, window, zerocopy,
};

/// Maps a peer's DMB after checking that it cannot change its size under us.
pub(super) fn map_dmb(fd: rustix::fd::BorrowedFd<'_>, class: u8) -> Option<Region> {
    if class > MAX_CLASS {
        return None;
    }
    limits::attach_lane(fd, class, window::first_attached(ring_size(class) as u32)).ok()
}

/// Size class for our DMB: the knob's, and as the kernel does (smc_buf_create), no more than the program itself lets
/// TCP hold for it.
pub(super) fn wished_class(fd: i32) -> u8 {
    /// SOCK_RCVBUF_LOCK (include/uapi/linux/socket.h): SO_RCVBUF is the program's word, not the kernel's tuning.
    const RCVBUF_LOCK: i32 = 2;
    let most = process::knobs().rmem_class.load(Ordering::Relaxed).min(u32::from(MAX_CLASS)) as u8;
    let option = |name| sys::option::<i32>(fd, libc::SOL_SOCKET, name).unwrap_or(0);
    if option(libc::SO_BUF_LOCK) & RCVBUF_LOCK == 0 {
        return most;
    }
    // The kernel says twice what was asked for: half is for its own bookkeeping.
    DmbSize::holding(option(libc::SO_RCVBUF) as usize / 2).map_or(most, |size| size.class().min(most))
}

/// Offers `region`, the start of a DMB with a ring of so many bytes, mapped after so many forks, to the peer as the lane towards us. False when a thread is inside the kernel.
pub(super) fn grant(conn: Conn, fd: i32, (region, ring): (Region, u32), token: DmbToken, forks: u32) -> bool {
    {
        let guard = conn.block.rx.lock(critical());
        let half = guard.held();
        let is_busy =
            half.mode.load(Ordering::Relaxed) != mode::PLAIN || half.inflight.load(Ordering::SeqCst) != 0;
        if is_busy || conn.block.life.has_ended_reading() {
            return false;
        }
        let Some(dmb) = Dmb::part(region, token.0, ring) else { return false };
        half.generation.store(half, 1, Ordering::Relaxed);
        half.cursor.store(half, 0, Ordering::Relaxed);
        half.other.store(half, 0, Ordering::Relaxed);
        let own = half.own();
        own.peeked.store(0, Ordering::Relaxed);
        half.answered_at.store(0, Ordering::Relaxed);
        own.tell[0].store(0, Ordering::Relaxed);
        own.loans.store(0, Ordering::Relaxed);
        half.ring.store(half, dmb.capacity(), Ordering::Relaxed);
        half.token.store(half, token.0, Ordering::Relaxed);
        own.group.store(link::of(conn.block).map_or(0, link::Link::number), Ordering::Relaxed);
        half.forks.store(half, forks, Ordering::Relaxed);
        half.dmb.store(half, dmb.address(), Ordering::Relaxed);
        dmb.words().set_reach(dmb.mapped().into());
        dmb.words().set_drained(half.tcp_bytes.load(Ordering::Relaxed));
        dmb.words().grant(1);
        half.mode.store(half, mode::GRANTED, Ordering::SeqCst);
        // Who came in before the store is counted; who comes after sees it.
        if half.inflight.load(Ordering::SeqCst) != 0 {
            half.mode.store(half, mode::PLAIN, Ordering::SeqCst);
            half.dmb.store(half, 0, Ordering::Relaxed);
            return false;
        }
        // From here on the kernel's count is ours to compare with the start word.
        let proved = sys::counts(fd, state::opener(conn.block));
        if !proved.is_ok_and(|counts| counts.received == half.tcp_bytes.load(Ordering::Relaxed)) {
            half.mode.store(half, mode::PLAIN, Ordering::SeqCst);
            half.dmb.store(half, 0, Ordering::Relaxed);
            return false;
        }
    }
    sets::manage(conn, fd);
    // A thread that waits in poll() for this connection has TCP in view only.
    reset::wake_ourselves();
    true
}

/// Both DMBs are known: open.
pub(super) fn open(session: &mut Session, id: ConnId, opened: Opened) {
    let Some(shake) = session.handshakes.find(id).and_then(Option::take) else { return };
    let (conn, fd) = (shake.conn, shake.fd());
    let Some(region) = shake.peer else { return };
    let half = &conn.block.tx;
    if let Some(reason) = left_for_good(conn.block) {
        // A child gave it to another program during the handshake: the bytes of the lane would not be its own.
        device::retire(region, opened.peer.token, device::Owner::Peer);
        closing::withdraw_grant(conn);
        tell_peer(session, id, reason);
        if part_unless_granted(conn) {
            withdraw(session, conn.block);
            stay_if_reading_is_shut(conn.block);
        }
        return;
    }
    {
        let guard = conn.block.tx.lock(critical());
        let half = guard.held();
        let capacity = shake.peer_ring;
        half.ring.store(half, capacity, Ordering::Relaxed);
        half.window.store(half, FIRST_WINDOW, Ordering::Relaxed);
        half.moved.store(half, 0, Ordering::Relaxed);
        half.own().crowded.store(0, Ordering::Relaxed);
        half.token.store(half, opened.peer.token.0, Ordering::Relaxed);
        half.forks.store(half, shake.peer_forks, Ordering::Relaxed);
        half.generation.store(half, 1, Ordering::Relaxed);
        // Here, under the session's lock, no fork comes between: a child's send buffer would not be its parent's.
        let alone = holders::alone(conn.block);
        if alone && process::knobs().dmb_copy.load(Ordering::Relaxed) != 0 {
            half.own().stage.store(device::sndbuf((region.len() - HEADER) as u32), Ordering::Relaxed);
        }
        let words = region.base() as usize + Dmb::words_at(opened.peer.token.0);
        half.dmb.store(half, Dmb::address_of(words, (region.len() - HEADER) as u32), Ordering::Relaxed);
    }
    // Before others see it open: what they note from then on is why it ends.
    conn.block.reason.store(0, Ordering::Relaxed);
    conn.block.life.on(Event::Open);
    conn.block.carried.store(conn.block.lane_bytes(), Ordering::Relaxed);
    if let Some(header) = process::header() {
        header.upgraded[usize::from(!state::opener(conn.block))].fetch_add(1, Ordering::Relaxed);
    }
    trace::upgrade(conn.block, fd, half.ring.load(Ordering::Relaxed));
    keepalive::begin(conn, fd);
    sets::manage(conn, fd);
    if let Some(reason) = sets::bars_managed(conn, fd) {
        // A set that it has come into since the grant.
        above::revoke(conn, fd, reason);
        return sets::stand(conn);
    }
    begin(conn, fd);
}

/// Switches sending to the lane at the byte where TCP stands, if nobody is inside the kernel just now.
pub(super) fn begin(conn: Conn, fd: i32) {
    let guard = conn.block.tx.lock(critical());
    let half = guard.held();
    let Some(dmb) = state::tx_dmb(&half) else { return };
    if half.mode.load(Ordering::Relaxed) != mode::PLAIN || left_for_good(conn.block).is_some() {
        return;
    }
    half.mode.store(half, mode::LANE, Ordering::SeqCst);
    let sent = half.tcp_bytes.load(Ordering::Relaxed);
    cork::lane_begins(conn, fd, half);
    let proved = half.inflight.load(Ordering::SeqCst) == 0
        && sys::counts(fd, state::opener(conn.block)).is_ok_and(|counts| counts.sent == sent);
    if !proved {
        half.mode.store(half, mode::PLAIN, Ordering::SeqCst);
        return;
    }
    conn.block.notices.begin();
    half.cursor.store(half, 0, Ordering::Relaxed);
    half.other.store(half, 0, Ordering::Relaxed);
    half.own().start.store(sent, Ordering::Relaxed);
    half.full_with.store(half, 0, Ordering::Relaxed);
    state::owes_nothing_yet(&half);
    stores::begin(half);
    zerocopy::choice::begin(half);
    if !dmb.words().begin(half.generation.load(Ordering::Relaxed), sent, dmb.window()) {
        half.mode.store(half, mode::PLAIN, Ordering::SeqCst);
        closing::tx_closed(conn, half);
        return;
    }
    state::acknowledge_at_once(conn, fd);
    tap::begun(conn.block);
}
