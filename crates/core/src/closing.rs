//! How one direction leaves its lane: STOP and the end of what is granted on the receiving side, and what both let go of.

use core::sync::atomic::Ordering;
use shunpike_shm::lifecycle::Phase;

use shunpike_shm::Region;
use shunpike_shm::arena::{Block, Held, RxHeld, TxHeld, mode};
use shunpike_shm::lane::{Cursor, Dmb, Side};
use shunpike_wire::{DmbToken, Reason};

use crate::reset::wake_own_side;
use crate::table::Conn;
use crate::tls::critical;
use crate::zerocopy::lending;
use crate::{device, link, process, state, sys, window};

/// Bytes came by TCP that the sender's hooks did not announce: somebody writes round them there.
pub fn note_unexpected_bytes(conn: Conn, fd: i32) {
    if sys::unread(fd).is_ok_and(|n| n > 0) {
        state::note(conn.block, Reason::BypassedHooks);
    }
}

/// The receiving direction is on TCP again: its memory is let go, the rest follows in `settle`.
pub fn rx_closed(conn: Conn, half: RxHeld<'_>) {
    wake_own_side(half.half(), Side::Readers);
    let own = half.own();
    let group = own.group.swap(0, Ordering::Relaxed);
    device::retire_half(conn.block, half, device::Owner::Ours, group);
    drop_copy(half);
    conn.block.life.unsettle();
}

fn drop_copy(half: RxHeld<'_>) {
    let own = half.own();
    let copy = own.copy.swap(0, Ordering::AcqRel);
    // A copy of peeked bytes that another process of the tree made is not mapped here.
    if copy != 0 && own.copier.load(Ordering::Relaxed) == process::pid() {
        retire_buffer(copy);
    }
}

/// The sending direction is on TCP again: its memory is let go, the rest follows in `settle`.
pub fn tx_closed(conn: Conn, half: TxHeld<'_>) {
    wake_own_side(half.half(), Side::Writers);
    window::closed(half);
    lending::over(conn.block, half);
    device::retire_half(conn.block, half, device::Owner::Peer, 0);
    let stage = half.own().stage.swap(0, Ordering::AcqRel);
    if stage != 0 {
        retire_buffer(stage);
    }
    conn.block.life.unsettle();
}

/// Both directions of a connection that this process left, and whose last holder has died: nobody reads or writes it any more.
pub(crate) fn abandoned(block: &Block) {
    {
        let guard = block.rx.lock(critical());
        let half = guard.held();
        half.mode.store(half, mode::PLAIN, Ordering::Release);
        device::retire_abandoned(block, half, device::Owner::Ours);
        drop_copy(half);
    }
    let guard = block.tx.lock(critical());
    let half = guard.held();
    half.mode.store(half, mode::PLAIN, Ordering::Release);
    let is_ours = device::retire_abandoned(block, half, device::Owner::Peer);
    let stage = half.own().stage.swap(0, Ordering::AcqRel);
    // Else it was made anew, with the mapping of the DMB.
    if stage != 0 && is_ours {
        retire_buffer(stage);
    }
}

fn retire_buffer(base: usize) {
    let region = Region::of(Dmb::start_of(base), Dmb::len_at(base));
    device::retire(region, DmbToken(0), device::Owner::Local);
}

/// Takes back an offer that the peer did not, or not yet, make use of.
pub fn withdraw_grant(conn: Conn) {
    {
        let guard = conn.block.rx.lock(critical());
        stop_receiving(conn, guard.held());
    }
    if conn.block.life.is(Phase::Shaking) && conn.block.rx.mode.load(Ordering::Relaxed) == mode::PLAIN {
        conn.block.life.settle();
    }
}

/// Sets STOP. A lane that has nothing unread is empty for ever; else the reader drains it.
pub fn stop_receiving(conn: Conn, half: RxHeld<'_>) {
    let Some(dmb) = state::rx_dmb(&half) else { return };
    let generation = half.generation.load(Ordering::Relaxed);
    if let Ok(prod) = dmb.words().flag(generation, Cursor::STOP, 0)
        && prod.offset() == half.cursor.load(Ordering::Relaxed)
    {
        half.mode.store(half, mode::PLAIN, Ordering::Release);
        rx_closed(conn, half);
    }
}

/// Wants no more by the lane towards us, and by TCP what is unread: its sender takes that back. `reads_on`: with hooks, when it has
/// (`rx::ask_back`).
pub fn ask_back(conn: Conn, reads_on: bool) {
    {
        let guard = conn.block.rx.lock(critical());
        let half = guard.held();
        let Some(dmb) = state::rx_dmb(&half).filter(|_| half.mode.load(Ordering::Relaxed) != mode::PLAIN)
        else {
            return;
        };
        let generation = half.generation.load(Ordering::Relaxed);
        // Should this process end before the next step: who shares the connection waits from now on (`rx::ask_back`).
        state::note_asked(half, state::is_lent(half, &dmb));
        let asked = dmb.words().flag(generation, Cursor::STOP | Cursor::LEAVE, Cursor::END);
        let empty = dmb.words().prod().offset() == half.cursor.load(Ordering::Relaxed);
        let taken = dmb.words().cons().has(Cursor::TAKEN);
        // Else the sender had ended its lane before, and takes nothing back: what is unread is read here.
        let comes_back = asked.unwrap_or_else(|seen| seen).has(Cursor::LEAVE) || taken;
        if empty || comes_back && !reads_on {
            half.mode.store(half, mode::PLAIN, Ordering::Release);
            rx_closed(conn, half);
        }
    }
    // It may be asleep, reading: it must look at what it sends.
    link::wake_peer(conn.block);
}

/// Wants no more by the lane towards us.
pub fn stop(conn: Conn) {
    let guard = conn.block.rx.lock(critical());
    if guard.held().mode.load(Ordering::Relaxed) != mode::PLAIN {
        stop_receiving(conn, guard.held());
    }
}
