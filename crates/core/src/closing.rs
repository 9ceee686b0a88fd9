//! How one direction leaves its lane: STOP and the end of what is granted on the receiving side, and what both let go of.

use core::sync::atomic::Ordering;
use shunpike_shm::lifecycle::Phase;

use shunpike_shm::Region;
use shunpike_shm::arena::{Half, mode};
use shunpike_shm::lane::{Cursor, Dmb};
use shunpike_wire::{DmbToken, Reason};

use crate::reset::wake_own_side;
use crate::table::Conn;
use crate::tls::critical;
use crate::zerocopy::lending;
use crate::{device, process, state, sys, window};

/// Bytes came by TCP that the sender's hooks did not announce: somebody writes round them there.
pub fn note_unexpected_bytes(conn: Conn, fd: i32) {
    if sys::queue(fd, sys::SIOCINQ).is_ok_and(|n| n > 0) {
        state::note(conn.block, Reason::BypassedHooks);
    }
}

/// One direction is on TCP again, under its lock: its memory is let go, the rest follows in `settle`.
pub fn lane_closed(conn: Conn, _fd: i32, half: &Half) {
    wake_own_side(conn.block, half);
    window::closed(half);
    if core::ptr::eq(half, &conn.block.tx) {
        lending::over(conn.block);
    }
    let base = half.dmb.swap(0, Ordering::AcqRel);
    let token = DmbToken(half.token.swap(0, Ordering::Relaxed));
    let owner = if core::ptr::eq(half, &conn.block.rx) { device::Owner::Ours } else { device::Owner::Peer };
    if base != 0 {
        let lane = device::Lane {
            group: half.group.swap(0, Ordering::Relaxed),
            forks: half.forks.load(Ordering::Relaxed),
            ring: half.ring.load(Ordering::Relaxed),
        };
        device::retire_lane(Region::of(Dmb::start_of(base), Dmb::len_at(base)), token, owner, Some(lane));
    }
    let sndbuf = half.sndbuf.swap(0, Ordering::AcqRel);
    // A copy of peeked bytes that another process of the tree made is not mapped here.
    if sndbuf != 0 && (owner == device::Owner::Peer || half.peeker.load(Ordering::Relaxed) == process::pid())
    {
        let copy = Region::of(Dmb::start_of(sndbuf), Dmb::len_at(sndbuf));
        device::retire(copy, DmbToken(0), device::Owner::Local);
    }
    conn.block.life.unsettle();
}

/// Takes back an offer that the peer did not, or not yet, make use of.
pub fn withdraw_grant(conn: Conn, fd: i32) {
    {
        let _guard = conn.block.rx.lock.lock(critical());
        stop_receiving(conn, fd);
    }
    if conn.block.life.is(Phase::Shaking) && conn.block.rx.mode.load(Ordering::Relaxed) == mode::PLAIN {
        conn.block.life.settle();
    }
}

/// Sets STOP. A lane that has nothing unread is empty for ever; else the reader drains it.
/// Under the receive lock.
pub fn stop_receiving(conn: Conn, fd: i32) {
    let half = &conn.block.rx;
    let Some(dmb) = state::rx_dmb(half) else { return };
    let generation = half.generation.load(Ordering::Relaxed);
    if let Ok(prod) = dmb.words().flag(generation, Cursor::STOP, 0)
        && prod.offset() == half.cursor.load(Ordering::Relaxed)
    {
        half.mode.store(mode::PLAIN, Ordering::Release);
        lane_closed(conn, fd, half);
    }
}

/// Wants no more by the lane towards us.
pub fn stop(conn: Conn, fd: i32) {
    let _guard = conn.block.rx.lock.lock(critical());
    if conn.block.rx.mode.load(Ordering::Relaxed) != mode::PLAIN {
        stop_receiving(conn, fd);
    }
}
