//! What a connection is ready for: the lane's part from the rings, the rest from TCP.

use std::sync::atomic::Ordering;

use shunpike_shm::arena::mode;

use crate::table::Conn;
use crate::tls::critical;
use crate::{clock, conn, rx, tx};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const TCP_NEWS: i16 = libc::POLLIN | libc::POLLPRI | libc::POLLRDHUP;

/// A look's result.
pub struct Level {
    /// Ready now, as EPOLL* bits (POLL* have the same values).
    pub events: u32,
    /// Room again after a call that found none.
    pub edge: bool,
    /// Producer offset of the receiving lane: a change is an edge.
    pub produced: u64,
    /// A writer waits on a full ring: the grace runs.
    pub full: bool,
    /// TCP has a condition that stands (bytes, EOF, an error): look at it again next time.
    pub keep_looking: bool,
    /// Both directions are on TCP again: the kernel answers from now on.
    pub settled: bool,
}

/// Looks at a connection. `wanted`: only those costs are paid; `tcp`: the socket may have news.
pub fn level(conn: Conn, fd: i32, wanted: u32, tcp: bool) -> Level {
    let _critical = critical();
    let block = conn.block;
    let mut events = 0;
    let mut keep_looking = false;
    if tx::asked_to_leave(&block.tx) {
        tx::revoke(conn, fd);
    }
    let mut readable = rx::readable(conn, fd);
    let on_tcp = |half: &shunpike_shm::arena::Half| half.mode.load(Ordering::Acquire) != mode::LANE;
    if tcp || on_tcp(&block.rx) || (on_tcp(&block.tx) && wanted & OUT != 0) {
        let mut shows = crate::sys::poll_now(fd, TCP_NEWS | libc::POLLOUT);
        let over = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        if shows & (TCP_NEWS | over) != 0 && !on_tcp(&block.rx) && !readable {
            rx::tcp_news(conn, fd);
            readable = rx::readable(conn, fd);
        }
        if shows & over != 0 && !on_tcp(&block.tx) {
            tx::revoke(conn, fd);
            shows = crate::sys::poll_now(fd, TCP_NEWS | libc::POLLOUT);
        }
        let passed = libc::POLLPRI | over;
        events |= (shows & passed) as u16 as u32;
        if on_tcp(&block.rx) {
            events |= (shows & libc::POLLIN) as u32;
        }
        if on_tcp(&block.tx) {
            events |= (shows & libc::POLLOUT) as u32;
        }
        keep_looking = shows & (TCP_NEWS | over) != 0;
    }
    if readable {
        events |= IN;
    }
    let room = tx::has_room(&block.tx);
    let mut full = false;
    if !on_tcp(&block.tx) {
        if room {
            events |= OUT;
        } else if wanted & OUT != 0 {
            full = !tx::overflow(conn, fd);
        }
    }
    let edge = events & OUT != 0 && block.tx.starved.load(Ordering::Relaxed) != 0;
    let produced = rx::dmb(&block.rx).map_or(u64::MAX, |dmb| dmb.words().prod().offset());
    let settled = block.unsettled.load(Ordering::Relaxed) != 0
        && block.rx.mode.load(Ordering::Relaxed) == mode::PLAIN
        && block.tx.mode.load(Ordering::Relaxed) == mode::PLAIN;
    Level { events, edge, produced, full, keep_looking, settled }
}

/// Whether it is time again to ask the TCP socket how it is.
pub fn tcp_due(conn: Conn, fd: i32) -> bool {
    let half = &conn.block.rx;
    let now = clock::ticks();
    let due = now.wrapping_sub(half.checked.load(Ordering::Relaxed)) > clock::from_us(rx::tcp_check_us(fd));
    if due {
        half.checked.store(now, Ordering::Relaxed);
    }
    due
}

/// Whether a look could find something new: cheap, without locks. `seen`: producer offset last reported.
pub fn changed(conn: Conn, wanted: u32, seen: u64) -> bool {
    let _critical = critical();
    let block = conn.block;
    if wanted & libc::EPOLLET as u32 != 0 {
        let over = block.rx.mode.load(Ordering::Relaxed) != mode::GRANTED && rx::is_over(&block.rx);
        let moved = rx::dmb(&block.rx).is_some_and(|dmb| dmb.words().prod().offset() != seen);
        if over || moved && rx::has_news(&block.rx) {
            return true;
        }
    } else if wanted & IN != 0 && rx::has_news(&block.rx) {
        return true;
    }
    let waits = wanted & OUT != 0
        && (wanted & libc::EPOLLET as u32 == 0 || block.tx.starved.load(Ordering::Relaxed) != 0);
    tx::asked_to_leave(&block.tx)
        || waits && block.tx.mode.load(Ordering::Relaxed) == mode::LANE && tx::has_room(&block.tx)
}

/// Whether the connection is answered from here.
pub fn on_lane(conn: Conn) -> bool {
    conn.block.rx.mode.load(Ordering::Acquire) != mode::PLAIN
        || conn.block.tx.mode.load(Ordering::Acquire) != mode::PLAIN
        || conn.block.phase.load(Ordering::Relaxed) == conn::phase::OPEN
}
