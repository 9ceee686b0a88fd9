//! Waking our own threads that wait on a lane, and the end of a connection whose peer broke the protocol.

use shunpike_shm::lifecycle::Event;

use shunpike_shm::arena::{Half, Held};
use shunpike_shm::lane::Side;
use shunpike_wire::Reason;

use crate::table::Conn;
use crate::tls::critical;
use crate::{doorbell, process, state, sys, wait};

/// Threads of ours that nap on one direction look again: its mode has changed.
pub(crate) fn wake_own_side(half: &Half, side: Side) {
    let _critical = critical();
    if let Some(dmb) = state::whole_dmb(half) {
        wait::wake_nappers(dmb.words(), side);
    }
}

/// Threads of ours that sleep on a lane look again.
pub fn wake_ourselves() {
    for cq in 0..process::cqs() {
        if let Some(bell) = process::doorbell(cq) {
            doorbell::ring(bell);
        }
    }
}

/// The peer broke the protocol: this connection ends as by a reset, on both sides. By who holds one of its locks.
pub fn reset(conn: Conn, fd: i32, held: impl Held, reason: Reason) {
    state::note(conn.block, reason);
    sys::reset_at_close(fd);
    let _ = rustix::net::shutdown(sys::borrowed(fd), rustix::net::Shutdown::Both);
    let halves: [(&Half, Side); 2] = [(&conn.block.rx, Side::Readers), (&conn.block.tx, Side::Writers)];
    for (half, side) in halves {
        half.break_off(held);
        wake_own_side(half, side);
    }
    conn.block.life.on(Event::Bar);
}
