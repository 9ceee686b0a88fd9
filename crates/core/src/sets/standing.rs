//! Sets that have no lanes: somebody waits for them, or the kernel gives them no doorbell. A lane that has left them may have bytes in its
//! ring still, and its sender be silent. The kernel tells of these: TCP has room as a rule, and our entry asks for that.
//!
//! Not through the doorbell, which a set need not have: it tells once, and of other sets, too. An entry that asks for what stands is told
//! of to each who waits for the set, as often as TCP's would be; it goes with the last byte.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_shm::arena::mode;
use shunpike_shm::lane::Cursor;

use super::entries::is_others;
use super::refusal::bar_of;
use super::regs::{CONTROL, Reg, bell_tag, kin_of, reg, tag};
use super::{EDGE, ONESHOT};
use crate::set::Set;
use crate::table::Conn;
use crate::tls::critical;
use crate::{process, state, sys, told};

/// What stands in the kernel for a registration in such a set. Noted here, by whomever it is told: who takes it for one that tells once
/// would ask the kernel for the next one for ever. Whoever is refused it takes the note back.
pub(super) fn standing(reg: &Reg, index: u32) -> libc::epoll_event {
    let events = asks_for(reg);
    reg.stands.set(events);
    libc::epoll_event { events, u64: tag(index, reg.turn.get()) }
}

fn asks_for(reg: &Reg) -> u32 {
    if reg.parked.get() {
        EDGE
    } else if is_level(reg) && reg.conn.get().is_none_or(has_paid) {
        reg.events.get() & OF_TCP | if tells(reg) { told::OUT & OF_TCP } else { 0 }
    } else if tells(reg) || reg.events.get() & told::OUT != 0 || !reg.conn.get().is_none_or(has_paid) {
        OF_TCP | EDGE
    } else {
        OF_TCP & !told::OUT | EDGE
    }
}

/// What TCP shows that our entry may ask for.
const OF_TCP: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32;

/// Whether what stands is told of again and again.
fn is_level(reg: &Reg) -> bool {
    reg.events.get() & (EDGE | ONESHOT) == 0
}

/// Whether the program is to be told of what is unread in the ring.
fn tells(reg: &Reg) -> bool {
    let has_edge =
        |conn: Conn| reg.edge.get() || told::Seen::of(conn.block).produced > reg.seen.get().produced;
    let is_asked_for = reg.events.get() & told::IN != 0 && !reg.parked.get() && !reg.disarmed.get();
    let _critical = critical();
    reg.conn.get().is_some_and(|conn| {
        is_asked_for && has_last_bytes(conn) && (reg.events.get() & EDGE == 0 || has_edge(conn))
    })
}

/// Whether bytes are unread of a lane that gets no more. Within a critical section.
fn has_last_bytes(conn: Conn) -> bool {
    let half = &conn.block.rx;
    let Some(dmb) = state::rx_dmb(half) else { return false };
    let prod = dmb.words().prod();
    matches!(half.mode.load(Ordering::Acquire), mode::GRANTED | mode::LANE)
        && prod.has(Cursor::END | Cursor::STOP)
        && !prod.has(Cursor::LEAVE)
        && prod.offset() != half.cursor.load(Ordering::Relaxed)
        && !dmb.words().cons().has(Cursor::TAKEN)
}

/// Whether the way out is TCP's, with nothing owed.
fn has_paid(conn: Conn) -> bool {
    conn.block.tx.mode.load(Ordering::Acquire) == mode::PLAIN
}

/// Whether the connection has left its lanes for good, but for what is unread.
pub(super) fn has_left(conn: Conn) -> bool {
    let _critical = critical();
    let (rx, tx) = (&conn.block.rx, &conn.block.tx);
    let is_receiving = || {
        matches!(rx.mode.load(Ordering::Acquire), mode::GRANTED | mode::LANE)
            && state::rx_dmb(rx).is_none_or(|dmb| !dmb.words().prod().has(Cursor::END | Cursor::STOP))
    };
    conn.block.life.phase().is_left() && tx.mode.load(Ordering::Acquire) != mode::LANE && !is_receiving()
}

/// A connection's lanes have left sets that have none, or it is read: those are told of what it leaves behind.
pub fn stand(conn: Conn) {
    let _control = CONTROL.lock();
    for index in kin_of(conn) {
        if let Some(reg) = reg(index) {
            update(reg, index, false);
        }
    }
}

/// All in `set`: of what has been read the kernel is to tell no more.
pub(crate) fn stand_all(set: &'static Set) {
    let control = CONTROL.lock();
    for index in 1..=control.used {
        if let Some(reg) = reg(index).filter(|reg| reg.is_in(set)) {
            update(reg, index, false);
        }
    }
}

/// The program has changed what it wants of `fd` in `set`, which may have no lanes. With no lock held.
#[inline]
pub(super) fn wished(set: &'static Set, reg: &Reg, index: u32, fd: i32) {
    if bar_of(set).is_some() {
        let _control = CONTROL.lock();
        if reg.is_in(set) && reg.fd.get() == fd {
            update(reg, index, true);
        }
    }
}

/// `is_wished`: the program asks anew. Under CONTROL.
#[cold]
pub(super) fn update(reg: &Reg, index: u32, is_wished: bool) {
    let Some(set) = reg.set.get().filter(|set| reg.managed.get() && bar_of(set).is_some()) else { return };
    // Its fields are the list's.
    let _list = set.list.lock();
    let _critical = critical();
    let tells = tells(reg);
    // An edge that it has been told of is none.
    let is_told = !is_level(reg) && !tells && reg.stands.get() == 0;
    if reg.lost.get() || !is_wished && (is_told || reg.stands.get() == asks_for(reg)) || is_others(reg) {
        return;
    }
    let (turn, stands) = (reg.turn.get(), reg.stands.get());
    reg.next_turn();
    let mut event = standing(reg, index);
    // Ours is never exclusive: it can be changed.
    let (epfd, fd) = (set.epfd.load(Ordering::Relaxed), reg.fd.get());
    if sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, Some(&mut event)).is_err() {
        reg.turn.set(turn);
        reg.stands.set(stands);
    }
}

/// The doorbell tells nothing in a set that somebody waits for, who would be told of the set for nothing. Under CONTROL.
pub(super) fn hush(set: &Set) {
    if let Some(cq) = set.cq.load(Ordering::Relaxed).checked_sub(1) {
        let _ = tell_nothing(set, cq as u8, libc::EPOLL_CTL_MOD);
    }
}

/// Has the doorbell so in the set, by `op`.
pub(super) fn tell_nothing(set: &Set, cq: u8, op: i32) -> Result<(), Errno> {
    let bell = process::doorbell(cq).ok_or(Errno::BADF)?;
    let mut nothing = libc::epoll_event { events: 0, u64: bell_tag() };
    sys::epoll_ctl(set.epfd.load(Ordering::Relaxed), op, bell, Some(&mut nothing))
}
