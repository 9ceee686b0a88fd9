//! The fast path of a send call: on one buffer, on a lane where nothing else is going on.
//!
//! This is what nearly all messages are, and here they take a third of the instructions that `tx::step` needs, which
//! knows of everything. Whatever is out of the ordinary is left to it: `None` is said before anything has changed that it would
//! not find as it was.

use core::sync::atomic::Ordering;

use shunpike_shm::arena::{Held, mode};
use shunpike_shm::device::{ClientDevice, Own};
use shunpike_shm::lane::short;
use shunpike_shm::lane::{Cursor, MAX_OFFSET, MIN_WINDOW, Side};

use crate::call::is_ordinary;
use crate::table::Conn;
use crate::tls::critical;
use crate::{above, clock, prefetch, send_lock, session, state, tap, tx, user, wait};

/// Most bytes of a message that is sent so: of longer ones the copy is what takes time.
const MOST: usize = 4096;

/// Sends `n` bytes at `from`, all of them.
///
/// # Safety
/// The program gave us the stretch, which need not be mapped.
#[inline(always)]
pub unsafe fn send(conn: Conn, fd: i32, from: *const u8, n: usize, flags: i32) -> Option<usize> {
    let half = &conn.block.tx;
    if !is_ordinary(flags)
        || half.mode.load(Ordering::Relaxed) != mode::LANE
        || session::has_news()
        || !(1..=MOST).contains(&n)
        || half.window.load(Ordering::Relaxed) > MIN_WINDOW
        || tap::is_on()
    {
        return None;
    }
    let critical = critical();
    prefetch::of_send(half, n);
    let guard = send_lock::lock(conn.block, &critical);
    let half = guard.held();
    let window = half.window.load(Ordering::Relaxed);
    let ordinary = conn.current()
        && half.mode.load(Ordering::Relaxed) == mode::LANE
        && window <= MIN_WINDOW
        && half.held.load(Ordering::Relaxed) == 0
        && !tx::is_to_be_checked(&half, fd, clock::ticks());
    let dmb = state::still_tx_dmb(&half, window).filter(|_| ordinary)?;
    let offset = half.cursor.load(Ordering::Relaxed);
    let unread = offset.wrapping_sub(half.other.load(Ordering::Relaxed));
    let (to, room) = dmb.span(offset);
    if unread.saturating_add(n as u64) >= dmb.window() || n > room || offset > MAX_OFFSET {
        return None;
    }
    match tx::stage(half, &dmb) {
        // SAFETY: the ring's bytes up to the window are the sender's, which we are by its lock.
        None => unsafe { user::copy(to, from, n) }.ok()?,
        Some(stage) => {
            // SAFETY: so are the send buffer's, which is laid out as the ring.
            unsafe { user::copy(stage.span(offset).0, from, n) }.ok()?;
            Own::move_data(&dmb, &stage, offset, n);
        }
    }
    let words = dmb.words();
    if n <= short::MOST
        && let Some(bytes) = dmb.last_put(offset)
    {
        words.accompany(offset, n, bytes);
    }
    let at = Cursor::new(half.generation.load(Ordering::Relaxed), offset);
    let next = Own::publish(words, at, n as u64).ok()?;
    half.cursor.store(half, next.offset(), Ordering::Relaxed);
    half.full_since.store(half, 0, Ordering::Relaxed);
    half.count(n);
    guard.release();
    wait::notify(conn.block, words, Side::Readers);
    tx::unheard::published(conn);
    critical.leave();
    above::settle(conn, fd);
    Some(n)
}
