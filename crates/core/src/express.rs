//! The data path on one page: a call on one buffer, on a lane where nothing else is going on.
//!
//! This is what nearly all messages are, and here they take a third of the instructions that `tx::step` and `rx::step` need, which
//! know of everything. Whatever is out of the ordinary is left to those: `None` is said before anything has changed that they would
//! not find as it was.

use std::sync::atomic::Ordering;

use shunpike_shm::arena::{Block, Half, mode};
use shunpike_shm::lane::{Cursor, Dmb, MAX_OFFSET, MIN_WINDOW, Side};
use shunpike_shm::short;

use crate::table::Conn;
use crate::tls::critical;
use crate::{ahead, conn, epoll, rx, send_lock, session, state, tap, tx, user, wait, window};

/// Most bytes of a message that is sent so: of longer ones the copy is what takes time.
const MOST: usize = 4096;

/// Flags that change nothing where nothing has to be waited for and no error is answered.
const HARMLESS: i32 = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

#[inline(always)]
fn may_try(half: &Half, flags: i32) -> bool {
    flags & !HARMLESS == 0 && half.mode.load(Ordering::Relaxed) == mode::LANE && !session::has_news()
}

/// Sends `n` bytes at `from`, all of them.
///
/// # Safety
/// The program gave us the stretch, which need not be mapped.
#[inline(always)]
pub unsafe fn send(conn: Conn, fd: i32, from: *const u8, n: usize, flags: i32) -> Option<usize> {
    let half = &conn.block.tx;
    let window = u64::from(MIN_WINDOW);
    let has_grown = || u64::from(half.window.load(Ordering::Relaxed)) != window;
    if !may_try(half, flags) || !(1..=MOST).contains(&n) || has_grown() || tap::is_on() {
        return None;
    }
    let critical = critical();
    ahead::of_send(half, n);
    let guard = send_lock::lock(conn.block, &critical);
    let ordinary = conn.current()
        && half.mode.load(Ordering::Relaxed) == mode::LANE
        && !has_grown()
        && half.held.load(Ordering::Relaxed) == 0
        && half.sndbuf.load(Ordering::Relaxed) == 0
        && !tx::peer_is_gone(half, fd);
    let dmb = state::tx_dmb(half).filter(|_| ordinary)?;
    let offset = half.cursor.load(Ordering::Relaxed);
    let unread = offset.wrapping_sub(half.other.load(Ordering::Relaxed));
    let (to, room) = dmb.span(offset);
    if unread.saturating_add(n as u64) >= window || n > room || offset > MAX_OFFSET {
        return None;
    }
    // SAFETY: the ring's bytes up to the window are the sender's, which we are by its lock.
    unsafe { user::copy(to, from, n) }.ok()?;
    let words = dmb.words();
    if n <= short::MOST
        && let Some(bytes) = dmb.last_put(offset)
    {
        words.accompany(offset, n, bytes);
    }
    let next = words.publish(Cursor::new(half.generation.load(Ordering::Relaxed), offset), n as u64).ok()?;
    half.cursor.store(next.offset(), Ordering::Relaxed);
    half.full_since.store(0, Ordering::Relaxed);
    Block::count(half, n);
    drop(guard);
    if !wait::notify(conn.block, words, Side::Readers) {
        tx::unheard::published(conn);
    }
    drop(critical);
    conn::settle(conn, fd);
    Some(n)
}

/// Receives what there is into `size` bytes at `to`.
///
/// # Safety
/// The program gave us the stretch to write to, where it is mapped.
#[inline(always)]
pub unsafe fn receive(conn: Conn, fd: i32, to: *mut u8, size: usize, flags: i32) -> Option<usize> {
    let half = &conn.block.rx;
    if !may_try(half, flags) {
        return None;
    }
    let critical = critical();
    let guard = rx::lock(&conn, fd, &critical);
    let dmb = ordinary(conn)?;
    let words = dmb.words();
    let offset = half.cursor.load(Ordering::Relaxed);
    let (dmb, prod, unread) = rx::unread(half, &dmb)?;
    let n = size.min(unread as usize);
    // Behind the last byte of a lane that is over TCP may have more for this call.
    let is_short_of_end = n < size && prod.has(Cursor::END | Cursor::STOP);
    if n == 0 || is_short_of_end || half.peeked.load(Ordering::Relaxed) > offset {
        return None;
    }
    let short = if n <= short::MOST { words.accompanied(offset, n) } else { None };
    let (from, room) = match &short {
        Some(bytes) => (bytes.as_ptr().cast(), n),
        None => {
            let (at, room) = dmb.span(offset);
            (at.cast_const(), room)
        }
    };
    if n > room {
        return None;
    }
    // SAFETY: the program's buffer. The peer may change the ring's bytes meanwhile: they are its bytes.
    unsafe { user::copy(to, from, n) }.ok()?;
    let at = Cursor::new(half.generation.load(Ordering::Relaxed), offset);
    let next = words.consume(at, n as u64).ok()?;
    half.cursor.store(next.offset(), Ordering::Relaxed);
    Block::count(half, n);
    if dmb.is_at_its_end() {
        window::widen(conn.block, &dmb);
    }
    drop(guard);
    rx::wake_writers(conn.block, &dmb);
    if n == size {
        epoll::shown(conn, words, Side::Readers);
    }
    drop(critical);
    conn::settle(conn, fd);
    Some(n)
}

/// Whether a read would find bytes.
#[inline]
pub fn shows(conn: Conn, fd: i32) -> Option<bool> {
    let half = &conn.block.rx;
    let _guard = rx::lock(&conn, fd, critical());
    let dmb = ordinary(conn)?;
    let (dmb, prod, unread) = rx::unread(half, &dmb)?;
    let offset = half.cursor.load(Ordering::Relaxed);
    let at = Cursor::new(half.generation.load(Ordering::Relaxed), offset);
    if dmb.words().cons() != at || unread == 0 && prod != at {
        return None;
    }
    ahead::of_later(&dmb, offset, unread);
    Some(unread > 0)
}

/// The receiving lane, where none of its bytes are in the sender's memory. Under the receive lock.
#[inline(always)]
fn ordinary(conn: Conn) -> Option<Dmb> {
    let half = &conn.block.rx;
    let ordinary = conn.current()
        && half.mode.load(Ordering::Relaxed) == mode::LANE
        && half.loans.load(Ordering::Relaxed) == 0;
    state::rx_dmb(half).filter(|dmb| ordinary && dmb.words().lent().0 == 0)
}
