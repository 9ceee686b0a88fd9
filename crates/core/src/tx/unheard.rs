//! Bytes that a reader leaves unread without having declared that it waits: it is busy, or it waits past the hooks, where a lane
//! wakes nobody (models/waits.pml).

use core::sync::atomic::Ordering;

use shunpike_shm::arena::{TxHalf, mode};
use shunpike_shm::lane::Side;
use shunpike_wire::Reason;

use super::end;
use crate::table::Conn;
use crate::tls::critical;
use crate::{clock, closing, process, send_lock, sets, state};

/// Before a sleep of ours: where bytes of ours are unread so, for how long that is borne yet, nanoseconds. After the grace the
/// lane ends: they go by TCP, which wakes whoever waits there, a busy reader's too. What TCP does not take at once stays where it is: the
/// kernel would send it whatever the program does, and we only within its calls.
pub fn unheard(conn: Conn, fd: i32) -> Option<u64> {
    let half = &conn.block.tx;
    let is_noted = half.unheard_since.load(Ordering::Relaxed) != 0;
    if half.mode.load(Ordering::Relaxed) != mode::LANE || !is_noted && !is_unheard(half) {
        return None;
    }
    match look(conn, fd) {
        Unheard::Not => None,
        Unheard::For(ns) => Some(ns),
        Unheard::Ended => {
            state::note(conn.block, Reason::GraceExceeded);
            // Both directions, else neither would ever come on a lane again.
            closing::stop(conn);
            None
        }
    }
}

/// Bytes were published: sets look at the connection when the grace is over. Also where a wait was declared: one that ended before, by time,
/// leaves its declaration, and the next one may go past the hooks.
#[inline(always)]
pub(crate) fn published(conn: Conn) {
    let half = &conn.block.tx;
    if half.unheard_since.load(Ordering::Relaxed) == 0 {
        watch_over(conn, half);
    }
}

#[cold]
fn watch_over(conn: Conn, half: &TxHalf) {
    sets::watch_over(conn, note(half));
}

/// Notes that bytes are unread so from now on; when the grace will be over, ticks.
fn note(half: &TxHalf) -> u64 {
    let now = clock::ticks().max(1);
    half.unheard_at.store(half.other.load(Ordering::Relaxed), Ordering::Relaxed);
    half.unheard_since.store(now, Ordering::Relaxed);
    now + clock::from_us(grace_us())
}

/// What [`look`] finds under the lock, as far as it is seen without.
fn is_unheard(half: &TxHalf) -> bool {
    let _critical = critical();
    half.mode.load(Ordering::Relaxed) == mode::LANE
        && state::tx_dmb(half).is_some_and(|dmb| {
            let words = dmb.words();
            !words.waiting(Side::Readers).declared()
                && words.cons().offset() != half.cursor.load(Ordering::Relaxed)
        })
}

pub(crate) fn grace_us() -> u64 {
    u64::from(process::knobs().grace_ms.load(Ordering::Relaxed)) * 1000
}

enum Unheard {
    Not,
    For(u64),
    Ended,
}

fn look(conn: Conn, fd: i32) -> Unheard {
    let critical = critical();
    let guard = send_lock::lock(conn.block, &critical);
    let half = guard.held();
    let on_lane = conn.current() && half.mode.load(Ordering::Relaxed) == mode::LANE;
    let Some(dmb) = state::tx_dmb(&half).filter(|_| on_lane) else { return Unheard::Not };
    let (words, now) = (dmb.words(), clock::ticks());
    let consumed = words.cons().offset();
    let unread = half.cursor.load(Ordering::Relaxed).wrapping_sub(consumed);
    let is_declared = words.waiting(Side::Readers).declared();
    if is_declared || unread == 0 || unread > dmb.most(consumed) {
        half.unheard_since.store(0, Ordering::Relaxed);
        return Unheard::Not;
    }
    let grace = grace_us();
    let since = half.unheard_since.load(Ordering::Relaxed);
    if since == 0 || half.unheard_at.swap(consumed, Ordering::Relaxed) != consumed {
        half.unheard_at.store(consumed, Ordering::Relaxed);
        half.unheard_since.store(now.max(1), Ordering::Relaxed);
        return Unheard::For(grace * 1000);
    }
    let left = clock::from_us(grace).saturating_sub(now.wrapping_sub(since));
    if left > 0 {
        return Unheard::For(clock::to_ns(left).max(1));
    }
    half.unheard_since.store(0, Ordering::Relaxed);
    end(conn, fd, half, &dmb);
    Unheard::Ended
}
