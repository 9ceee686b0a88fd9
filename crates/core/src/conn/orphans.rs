//! Connections that others of the tree were left with. When they are over, however the others ended, what this process has of them goes:
//! mappings, the broker's descriptors, the seat in the link group.
//!
//! It is looked for when a lane ends, when a connection is closed, and before a sleep, once a second.

use core::sync::atomic::{AtomicU64, Ordering};
use shunpike_shm::lifecycle::{Event, Phase};

use shunpike_shm::arena::Block;
use shunpike_wire::session::{ConnId, ToBroker};

use super::sum_up;
use crate::look::{LEFT, look_soon};
use crate::session::{self, Session};
use crate::table::{self, Conn, Entry};
use crate::{clock, closing, device, holders, link, process, tap, upgrade};

/// Not more often than this, microseconds: the kernel is asked about the others, and the whole list is looked at.
const LOOK_US: u64 = 200_000;
static LOOK_AT: AtomicU64 = AtomicU64::new(0);

/// This process has closed a connection that others go on with.
pub(super) fn left() {
    LEFT.store(true, Ordering::Relaxed);
}

/// A connection is closed: time to look for those that were left?
#[inline]
pub(super) fn note_activity() {
    if LEFT.load(Ordering::Relaxed)
        && clock::ticks() >= LOOK_AT.load(Ordering::Relaxed)
        && !session::is_closed()
    {
        look_soon();
    }
}

/// Lets go of what was shared and is over, if it is time for that. With no half's lock held.
pub(crate) fn look(session: &mut Session) {
    let now = clock::ticks();
    if !device::has_shared() || now < LOOK_AT.load(Ordering::Relaxed) {
        return;
    }
    LOOK_AT.store(now + clock::from_us(LOOK_US), Ordering::Relaxed);
    if LEFT.swap(false, Ordering::Relaxed) {
        process::evict_dead();
    }
    let mut at = 0;
    while let Some(shared) = device::next_shared(&mut at) {
        let conn = shared.conn;
        let is_over = !conn.current() || !conn.block.is_held() && end(session, conn);
        if let Some(seat) = device::give_up_shared(conn, is_over) {
            leave_seat(session, conn.block, seat);
        }
        if !is_over && !holders::holds(conn.block) {
            left();
        }
    }
}

/// Nobody holds it any more. Ends it, where its last holder died before it had done so; false: it is another one's to end, or another
/// connection by now.
fn end(session: &mut Session, conn: Conn) -> bool {
    let block = conn.block;
    if block.life.is(Phase::Closed) {
        return true;
    }
    if !holders::take_over(block) {
        return false;
    }
    if !conn.current() {
        block.free();
        return false;
    }
    closing::abandoned(block);
    upgrade::forget(session, block);
    link::part(block);
    tap::over(block);
    if block.life.has_been_open()
        && process::index(block).is_some()
        && let Some(header) = process::header()
    {
        sum_up(block, header);
    }
    block.life.on(Event::Close);
    block.free();
    true
}

/// Another process took the connection off its link group, of which the broker and our own table do not know.
fn leave_seat(session: &mut Session, block: &Block, seat: device::Seat) {
    // The block's next use makes the seat free at the broker: it may be a new connection's already.
    let is_taken =
        table::all().any(|(_, entry)| matches!(entry, Entry::Conn(conn) if seat.is_of(conn.block)));
    link::leave(seat.link, (!is_taken).then_some(seat.slot));
    if let Some(index) = process::index(block) {
        session.send(&ToBroker::Withdraw { conn: ConnId::new(index, seat.name) });
        // What the broker has said of it and we have not heard is void. Another use of the block has another name.
        let next = seat.name.wrapping_add(1);
        let _ = block.name.compare_exchange(seat.name, next, Ordering::Relaxed, Ordering::Relaxed);
    }
}
