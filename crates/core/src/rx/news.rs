//! Waiting for news: of the ring, or of TCP.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_shm::arena::{Block, RxHalf, mode};
use shunpike_shm::lane::{Cursor, Side};

use super::{NEWS, ask_back};
use crate::blocking::Blocking;
use crate::blocking::tcp_check_us;
use crate::policy::{LEAD, Lead};
use crate::spin::spin;
use crate::table::Conn;
use crate::tls::critical;
use crate::wait::{self, Nap, Napped, Waiter, Woken};
use crate::{clock, closing, cork, link, process, state, sys, tx};

/// Whether a look under the lock would find something on the lane (or that it is over). Without the lock,
/// inside a critical section.
#[inline]
pub fn has_news(half: &RxHalf) -> bool {
    let Some(dmb) = state::rx_dmb(half) else { return true };
    let words = dmb.words();
    match half.mode.load(Ordering::Acquire) {
        mode::LANE => {
            let at =
                Cursor::new(half.generation.load(Ordering::Relaxed), half.cursor.load(Ordering::Relaxed));
            let prod = words.prod();
            prod != at && !prod.has(Cursor::LEAVE) && !cork::hides(half, words, prod, at)
                || words.cons().has(Cursor::TAKEN)
        }
        mode::GRANTED => {
            words.start(half.generation.load(Ordering::Relaxed))
                == Some(half.tcp_bytes.load(Ordering::Relaxed))
        }
        mode::DEBT => false,
        _ => true,
    }
}

/// Where [`has_news`] is true: whether it is of the lane's beginning or its end, which no byte tells of: the ring is not read from yet, or
/// nothing of it is unread. Without the lock, inside a critical section.
pub fn changes(half: &RxHalf) -> bool {
    half.mode.load(Ordering::Acquire) != mode::LANE
        || state::rx_dmb(half)
            .is_some_and(|dmb| dmb.words().prod().offset() == half.cursor.load(Ordering::Relaxed))
}

/// Whether the sender has left the lane, or the reader wants no more of it: what comes next comes by TCP. Without the lock, inside a
/// critical section.
pub fn is_ended(half: &RxHalf) -> bool {
    half.mode.load(Ordering::Acquire) == mode::LANE
        && state::rx_dmb(half).is_some_and(|dmb| dmb.words().prod().has(Cursor::END | Cursor::STOP))
}

/// A stream is bulk when its reader has read so much since it sent anything itself: an answer should not wait for its end.
const BULK: u64 = 8 << 20;

/// Lets the writer of a bulk stream take its lead. Within a critical section.
fn fall_behind(block: &Block) {
    let half = &block.rx;
    let Some(dmb) = state::rx_dmb(half).and_then(|dmb| dmb.as_sent()).filter(|dmb| dmb.window() >= 4 * LEAD)
    else {
        return;
    };
    if !process::may_spin() {
        return;
    }
    let (words, read) = (dmb.words(), half.cursor.load(Ordering::Relaxed));
    let on_tcp = block.tx.tcp_bytes.load(Ordering::Relaxed);
    let sent = block.tx.cursor.load(Ordering::Relaxed).wrapping_add(on_tcp);
    if half.answered.swap(sent, Ordering::Relaxed) != sent {
        half.answered_at.store(read, Ordering::Relaxed);
    }
    if read.saturating_sub(half.answered_at.load(Ordering::Relaxed)) < BULK {
        return;
    }
    let mut lead = Lead::begin(read, clock::from_us(1), clock::ticks());
    loop {
        let prod = words.prod();
        if prod.has(Cursor::END | Cursor::STOP) || !lead.goes_on(prod.offset(), clock::ticks()) {
            return;
        }
        core::hint::spin_loop();
    }
}

/// After the TCP socket showed news while the ring was empty: EOF and errors end the lane, bytes that the
/// sender did not announce stop it.
pub fn tcp_news(conn: Conn, fd: i32) {
    let half = &conn.block.rx;
    let _guard = half.lock(critical());
    if !conn.current() || half.mode.load(Ordering::Relaxed) != mode::LANE {
        return;
    }
    let Some(dmb) = state::rx_dmb(half) else { return };
    let shows = sys::tcp_shows(fd, NEWS);
    if shows & (NEWS | libc::POLLHUP) != 0 && !has_news(half) {
        // No publish after this: the next look is the second and last one that rule 5 asks for.
        let generation = half.generation.load(Ordering::Relaxed);
        if dmb.words().flag(generation, Cursor::STOP, 0).is_ok() && shows & libc::POLLIN != 0 {
            closing::note_unexpected_bytes(conn, fd);
        }
    }
}

/// A receive call that found nothing.
pub(super) struct Wait {
    blocking: Blocking,
    /// It napped since the last byte: the next wait is a sleep.
    pub(super) napped: bool,
}

impl Wait {
    pub(super) fn new(flags: i32) -> Self {
        Self { blocking: Blocking::new(flags, libc::SO_RCVTIMEO), napped: false }
    }

    /// See [`Blocking::moved`].
    pub(super) fn moved(&mut self, block: &Block) {
        self.blocking.moved(block);
    }

    /// Whether the call blocks, as far as we know.
    pub(super) fn may_wait(&self, block: &Block) -> bool {
        self.blocking.may_wait(block)
    }

    /// Waits for news. Errors: EAGAIN when the call does not block or its time is over, EINTR.
    pub(super) fn more(&mut self, conn: Conn, fd: i32) -> Result<(), Errno> {
        let block = conn.block;
        let half = &block.rx;
        tx::attend(conn, fd);
        if !self.blocking.may_wait(block) {
            let now = clock::ticks();
            let since = now.wrapping_sub(half.checked.load(Ordering::Relaxed));
            if since > clock::from_us(tcp_check_us(fd)) {
                half.checked.store(now, Ordering::Relaxed);
                if half.mode.load(Ordering::Relaxed) == mode::LANE && sys::tcp_shows(fd, NEWS) != 0 {
                    tcp_news(conn, fd);
                    return Ok(());
                }
                if self.blocking.blocks_after_all(block, fd) {
                    return Ok(());
                }
            }
            return Err(Errno::AGAIN);
        }
        let on_lane = half.mode.load(Ordering::Relaxed) == mode::LANE;
        {
            let _critical = critical();
            if on_lane && spin(None, || has_news(half)) {
                fall_behind(block);
                return Ok(());
            }
        }
        self.blocking.ask(conn, fd)?;
        if on_lane && !self.napped && self.nap(conn, fd)? != Napped::Over {
            return Ok(());
        }
        let cq = wait::sleeping_cq();
        let declared = {
            let _critical = critical();
            let Some(dmb) = state::rx_dmb(half) else { return Ok(()) };
            let declare = || {
                wait::declare(block, half, dmb.words(), Side::Readers, cq);
                cork::sleeps_at_most(half)
            };
            Waiter::declare(declare, || has_news(half) || tx::asked_to_leave(&block.tx))
        };
        let Some((waiter, shown)) = declared else { return Ok(()) };
        if self.sleep(waiter, conn, fd, shown)? == Woken::Tcp {
            tcp_news(conn, fd);
        }
        Ok(())
    }

    /// Naps, where that can be; TCP is not looked at meanwhile. Errors: EAGAIN when the program's time is over, EINTR.
    fn nap(&mut self, conn: Conn, fd: i32) -> Result<Napped, Errno> {
        self.napped = true;
        let half = &conn.block.rx;
        self.blocking.nap(conn, fd, half, || {
            let dmb = state::rx_dmb(half).filter(|_| !tx::owes(&conn.block.tx)).ok_or(Napped::Over)?;
            let is_ready = || has_news(half) || tx::asked_to_leave(&conn.block.tx);
            Nap::declare(conn.block, half, (dmb.words(), Side::Readers), is_ready)
        })
    }

    /// Waits for TCP's bytes while the sending side is not on plain TCP: a sleep in the kernel's recv would not
    /// hear that the peer wants back what we sent.
    pub(super) fn for_tcp(&mut self, conn: Conn, fd: i32) -> Result<(), Errno> {
        let block = conn.block;
        loop {
            tx::attend(conn, fd);
            if !self.blocking.may_wait(block)
                || block.tx.mode.load(Ordering::Relaxed) == mode::PLAIN
                || self.blocking.ask(conn, fd).is_err()
            {
                return Ok(());
            }
            let declare = || {
                if let Some(link) = link::of(block) {
                    link.declare_sleep(wait::thread_cq());
                }
            };
            let asked = || {
                let _critical = critical();
                tx::asked_to_leave(&block.tx) || block.rx.mode.load(Ordering::Relaxed) != mode::PLAIN
            };
            if let Some((waiter, ())) = Waiter::declare(declare, asked)
                && self.sleep(waiter, conn, fd, None)? == Woken::Tcp
                && sys::tcp_shows(fd, NEWS) != 0
            {
                return Ok(());
            }
        }
    }

    /// Waits for bytes beside those that are there and stay there, which nobody rings for: in short sleeps, as programs seldom look so.
    /// Errors: EAGAIN when the call does not block or its time is over, EINTR by whatever signal.
    pub(super) fn for_more(&mut self, conn: Conn, fd: i32) -> Result<(), Errno> {
        let block = conn.block;
        tx::attend(conn, fd);
        if !self.blocking.may_wait(block) {
            return Err(Errno::AGAIN);
        }
        self.blocking.moved(block);
        self.blocking.ask(conn, fd)?;
        let remaining = self.blocking.remaining()?;
        self.blocking.attend_signals()?;
        match wait::sleep(Waiter::unrung(), block, fd, libc::POLLRDHUP, Some(wait::brief(remaining))) {
            Woken::Interrupted => Err(Errno::INTR),
            _ => Ok(()),
        }
    }

    /// Sleeps until the doorbell or TCP, or for `shown` nanoseconds: until more is shown though nobody says so. Errors: EAGAIN when the
    /// program's time is over, EINTR.
    fn sleep(&mut self, waiter: Waiter, conn: Conn, fd: i32, shown: Option<u64>) -> Result<Woken, Errno> {
        let remaining = self.blocking.remaining()?;
        let owed = if tx::owes(&conn.block.tx) { libc::POLLOUT } else { 0 };
        let asked = {
            let _critical = critical();
            ask_back::bound(&conn.block.rx)
        };
        let nap = shown.into_iter().chain(asked).chain(tx::unheard(conn, fd)).chain(remaining).min();
        self.blocking.attend_signals()?;
        match wait::sleep(waiter, conn.block, fd, NEWS | owed, nap) {
            Woken::Timeout if remaining.is_none_or(|left| nap.is_some_and(|nap| nap < left)) => {
                Ok(Woken::Look)
            }
            Woken::Timeout => Err(Errno::AGAIN),
            Woken::Interrupted => self.blocking.interrupted().map(|()| Woken::Look),
            woken => Ok(woken),
        }
    }
}
