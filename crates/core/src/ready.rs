//! What a connection is ready for: the lane's part from the rings, the rest from TCP.

use core::sync::atomic::Ordering;

use shunpike_shm::arena::{Block, Half, mode};

use crate::table::Conn;
use crate::tls::critical;
use crate::told::{IN, OUT, Seen};
use crate::zerocopy::lending;
use crate::{blocking, clock, cork, rx, state, tx};

const ERR: u32 = libc::EPOLLERR as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const TCP_NEWS: i16 = libc::POLLIN | libc::POLLPRI | libc::POLLRDHUP;

/// A look's result.
pub struct Level {
    /// Ready now, as EPOLL* bits (POLL* have the same values).
    pub events: u32,
    /// What makes an edge, as it was before the look.
    pub seen: Seen,
    /// Where the directions ran when it ended.
    pub modes: (u16, u16),
    /// A writer waits on a full ring, or notices are to come of what was lent: the grace runs.
    pub full: bool,
    /// TCP has a condition that stands (bytes, EOF, an error): look at it again next time.
    pub keep_looking: bool,
    /// Both directions are on TCP again: the kernel answers from now on.
    pub settled: bool,
}

impl Level {
    /// Whether there is more than `seen`, among what `wanted` asks for.
    pub fn is_fresh(&self, wanted: u32, seen: &Seen) -> bool {
        wanted & IN != 0 && self.seen.produced > seen.produced
            || wanted & self.events & OUT != 0 && self.seen.starved != seen.starved
            || self.events & ERR != 0 && self.seen.noticed != seen.noticed
    }

    /// Writes down that `events` were reported.
    pub fn note(&self, events: u32, seen: &mut Seen) {
        // Also where it has been read already, or came to nothing: one edge for one change.
        seen.produced = seen.produced.max(self.seen.produced);
        if events & OUT != 0 {
            seen.starved = self.seen.starved;
        }
        if events & ERR != 0 {
            seen.noticed = self.seen.noticed;
        }
    }
}

/// Whether a registration for `wanted` waits until the peer consumes: until there is room, or a notice.
pub fn waits_for_writers(block: &Block, wanted: u32, seen: &Seen) -> bool {
    waits_for_room(block, wanted, seen) || block.notices.pending() != 0
}

/// Whether a registration for `wanted` waits until the peer makes room.
fn waits_for_room(block: &Block, wanted: u32, seen: &Seen) -> bool {
    wanted & OUT != 0 && (wanted & EDGE == 0 || block.starved.load(Ordering::Relaxed) != seen.starved)
}

/// Looks at a connection. `wanted`: only those costs are paid; `tcp`: the socket may have news.
pub fn level(conn: Conn, fd: i32, wanted: u32, tcp: bool) -> Level {
    let critical = critical();
    let block = conn.block;
    let mut events = 0;
    let mut keep_looking = false;
    if tx::is_to_attend(&block.tx) {
        tx::revoke(conn, fd);
    }
    let pending = block.notices.pending() != 0;
    if pending {
        lending::refresh(conn, fd);
    }
    // Before the look: what is published from here on is an edge that this look need not have found.
    let seen = Seen::of(block);
    let mut readable = rx::readable_within(&critical, conn, fd);
    let on_tcp = |half: &Half| half.mode.load(Ordering::Acquire) != mode::LANE;
    // The end of the stream is TCP's to tell, and stands beside the bytes before it. Of an edge the kernel tells itself.
    let tcp = tcp || wanted & EDGE == 0 && rx::is_ended(&block.rx);
    if tcp || on_tcp(&block.rx) || (on_tcp(&block.tx) && wanted & OUT != 0) {
        let mut shows = crate::sys::poll_now(fd, TCP_NEWS | libc::POLLOUT);
        // Not POLLERR alone: see `sys::tcp_shows`.
        let over = libc::POLLRDHUP | libc::POLLHUP;
        if shows & (TCP_NEWS | over) != 0 && !on_tcp(&block.rx) && !readable {
            rx::tcp_news(conn, fd);
            readable = rx::readable_within(&critical, conn, fd);
        }
        if shows & over != 0 && !on_tcp(&block.tx) {
            tx::revoke(conn, fd);
            shows = crate::sys::poll_now(fd, TCP_NEWS | libc::POLLOUT);
        }
        let passed = libc::POLLPRI | libc::POLLERR | over;
        events |= (shows & passed) as u16 as u32;
        if on_tcp(&block.rx) {
            events |= (shows & libc::POLLIN) as u32;
        }
        if on_tcp(&block.tx) {
            events |= (shows & libc::POLLOUT) as u32;
        }
        keep_looking = shows & (TCP_NEWS | libc::POLLERR | over) != 0;
    }
    if readable {
        events |= libc::EPOLLIN as u32;
    }
    if block.notices.readable() {
        events |= ERR;
    }
    let mut full = pending && block.notices.pending() != 0;
    // An edge's report writes down all that stood beside it.
    if wanted & (OUT | EDGE) != 0 && !on_tcp(&block.tx) {
        if tx::has_room(&block.tx) {
            events |= libc::EPOLLOUT as u32;
        } else if wanted & OUT != 0 {
            full |= !tx::overflow(conn, fd);
        }
    }
    for (bit, norm) in [(libc::EPOLLIN, libc::EPOLLRDNORM), (libc::EPOLLOUT, libc::EPOLLWRNORM)] {
        if events & bit as u32 != 0 {
            events |= norm as u32;
        }
    }
    let modes = state::modes(block);
    let settled = modes == (mode::PLAIN, mode::PLAIN)
        && (block.life.is_unsettled() || crate::link::of(block).is_none());
    Level { events, seen, modes, full, keep_looking, settled }
}

/// Once a sleep is declared, and before the last look: nanoseconds after which a connection shows more of what `wanted` asks for, though
/// nobody says so. Within a critical section.
pub fn sleeps_at_most(conn: Conn, wanted: u32) -> Option<u64> {
    (wanted & IN != 0).then(|| cork::sleeps_at_most(&conn.block.rx)).flatten()
}

/// Whether it is time again to ask the TCP socket how it is. What a set hears of it nobody tells the caller.
pub fn tcp_due(conn: Conn) -> bool {
    let half = &conn.block.rx;
    let now = clock::ticks();
    let due = now.wrapping_sub(half.checked.load(Ordering::Relaxed)) > clock::from_us(blocking::UNWATCHED_US);
    if due {
        half.checked.store(now, Ordering::Relaxed);
    }
    due
}

/// After such a look: TCP has something that stands (its end, an error), and the next call is to find it, too.
pub fn ask_tcp_again(conn: Conn) {
    conn.block.rx.checked.store(0, Ordering::Relaxed);
}

/// Whether a look could find something new: cheap, without locks. TCP's part is the kernel's to tell.
pub fn changed(conn: Conn, wanted: u32, seen: &Seen) -> bool {
    let _critical = critical();
    let block = conn.block;
    let now = Seen::of(block);
    let readable = wanted & IN != 0
        && block.rx.mode.load(Ordering::Acquire) != mode::PLAIN
        && rx::has_news(&block.rx)
        && (wanted & EDGE == 0 || now.produced > seen.produced || rx::changes(&block.rx));
    let writable = waits_for_room(block, wanted, seen)
        && block.tx.mode.load(Ordering::Acquire) == mode::LANE
        && tx::has_room(&block.tx);
    let noticed = block.notices.readable() && (wanted & EDGE == 0 || now.noticed != seen.noticed);
    readable || writable || noticed || lending::is_due(block) || tx::asked_to_leave(&block.tx)
}
