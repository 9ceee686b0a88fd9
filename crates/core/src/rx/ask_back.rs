//! Asking back: what is unread cannot be read where it is (lent memory that is gone, or that the kernel does not let us read any more), so the sender
//! takes it back and sends it by TCP (models/lane.pml, ASKBACK). Until it has, nothing is there to be read.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_shm::arena::{RxHalf, RxHeld, mode};
use shunpike_shm::lane::{Cursor, Dmb, Side};
use shunpike_wire::Reason;

use super::ring::{owed, taken};
use super::{NEWS, Step, finish};
use crate::table::Conn;
use crate::{clock, link, reset, state, sys, wait};

/// A sender that is asked answers in its next call, and is woken for it. poll() may have told of these bytes, and the program waits for
/// nothing else meanwhile: after so long they are lost, microseconds.
const ASKED_US: u64 = 5_000_000;

/// Asks for lent bytes. `prod`: the producer's word as it was before they could not be read.
#[cold]
pub(super) fn begin(conn: Conn, half: RxHeld<'_>, dmb: &Dmb, prod: Cursor, fd: i32) -> Step {
    let words = dmb.words();
    words.answer(false);
    state::note_asked(half, true);
    let generation = half.generation.load(Ordering::Relaxed);
    match words.flag(generation, Cursor::STOP | Cursor::LEAVE, Cursor::END) {
        Ok(_) => {
            state::note(conn.block, Reason::LentDenied);
            conn.block.life.end_both();
            wait::notify(conn.block, words, Side::Writers);
            link::wake_peer(conn.block);
            Step::Again
        }
        // Ended meanwhile: before that it has put all that it had lent into the ring.
        Err(seen) if seen.has(Cursor::END) && !prod.has(Cursor::END) => Step::Again,
        // Nobody would answer.
        Err(_) => lost(conn, fd, half),
    }
}

/// Asked: whether the sender has done its part. `at`: the consumer's word.
#[cold]
pub(super) fn step(conn: Conn, half: RxHeld<'_>, dmb: &Dmb, prod: Cursor, at: Cursor, fd: i32) -> Step {
    if prod.offset() == at.offset() {
        finish(conn, half);
        return Step::Again;
    }
    // TCP first: what the sender does before its FIN it has done then.
    let is_over = sys::tcp_shows(fd, NEWS) & !(libc::POLLIN | libc::POLLPRI) != 0 && !sys::peer_may_send(fd);
    if dmb.words().cons().has(Cursor::TAKEN) {
        taken(conn, half, dmb, prod, at, fd)
    } else if state::asked(&half).1 {
        if is_over || left(&half) == 0 { lost(conn, fd, half) } else { Step::Empty }
    } else if is_over {
        // Its sender died before it could answer: as if it had right after it.
        owed(conn, half, dmb, prod, at, fd)
    } else {
        Step::Empty
    }
}

/// For how long an answer is waited for, nanoseconds; `None` where nothing was asked, or what was asked for is in the ring at the worst. Within a
/// critical section.
pub(super) fn bound(half: &RxHalf) -> Option<u64> {
    let is_asked = half.mode.load(Ordering::Relaxed) == mode::LANE
        && state::rx_dmb(half).is_some_and(|dmb| dmb.words().prod().has(Cursor::LEAVE));
    (is_asked && state::asked(half).1).then(|| left(half))
}

fn left(half: &RxHalf) -> u64 {
    let since = clock::ticks().wrapping_sub(state::asked(half).0);
    clock::to_ns(clock::from_us(ASKED_US).saturating_sub(since))
}

/// Bytes that were sent are not to be had any more.
#[cold]
fn lost(conn: Conn, fd: i32, half: RxHeld<'_>) -> Step {
    reset::reset(conn, fd, half, Reason::LentUnreadable);
    Step::Failed(Errno::CONNRESET)
}
