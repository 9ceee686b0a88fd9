//! The active list of a set, and what puts connections on it.

use core::sync::atomic::{Ordering, fence};

use shunpike_shm::lane::{Side, Words};

use super::regs::{Reg, managed_of, reg};
use super::ring;
use crate::link;
use crate::set::{List, Set};
use crate::table::Conn;
use crate::tls::critical;

pub(crate) fn push(list: &mut List, index: u32) {
    let Some(new) = reg(index) else { return };
    new.quiet.set(0);
    if new.listed.replace(true) {
        return;
    }
    new.prev_active.set(list.tail);
    new.next_active.set(0);
    match reg(list.tail) {
        Some(tail) => tail.next_active.set(index),
        None => list.head = index,
    }
    list.tail = index;
    list.len += 1;
}

pub(crate) fn pop(list: &mut List, index: u32) {
    let Some(gone) = reg(index).filter(|reg| reg.listed.get()) else { return };
    gone.listed.set(false);
    let (prev, next) = (gone.prev_active.get(), gone.next_active.get());
    match reg(prev) {
        Some(prev) => prev.next_active.set(next),
        None => list.head = next,
    }
    match reg(next) {
        Some(next) => next.prev_active.set(prev),
        None => list.tail = prev,
    }
    list.len -= 1;
}

/// Takes the first registration off the list, if it is one that can report: on a lane, and armed where it is a one-shot.
pub(crate) fn next(list: &mut List) -> Option<(u32, &'static Reg, Conn)> {
    let index = list.head;
    let reg = reg(index)?;
    pop(list, index);
    let conn = reg.conn.get().filter(|_| reg.managed.get() && !reg.disarmed.get())?;
    Some((index, reg, conn))
}

/// Something changed on a connection outside of its peer's posts: its sets look at it.
pub fn touch(conn: Conn) {
    if let Some(first) = link::registrations(conn.block) {
        managed_of(first, |index| look_at(index, None));
    }
}

/// The connection's sets look at it before their first sleep from `at` on, ticks; one that is under way does not end for it.
pub(crate) fn watch_over(conn: Conn, at: u64) {
    let Some(first) = link::registrations(conn.block) else { return };
    // Pairs with the one of `entries::take_over`.
    fence(Ordering::SeqCst);
    managed_of(first, |index| {
        let Some(reg) = reg(index) else { return };
        let Some(set) = reg.set.get() else { return };
        let mut list = set.list.lock();
        if reg.managed.get() && reg.is_in(set) {
            set.note_unheard(&mut list, index, at);
        }
    });
}

/// A call other than epoll_wait has shown the program news on `side`. Where a publisher has yet to post them, the
/// connection's sets are told here: a program that knows of bytes may rely on an epoll_wait that does not wait.
#[inline]
pub fn shown(conn: Conn, words: &Words, side: Side) {
    if words.waiting(side).cqs() != 0 {
        touch(conn);
    }
}

/// A call found no room: the sets that wait for it look at the connection again.
pub fn starved(conn: Conn) {
    if link::registrations(conn.block).is_some_and(|first| first.load(Ordering::Relaxed) != 0) {
        touch(conn);
    }
}

/// Puts a registration, if it still is managed, on its set's active list; sets other than `own` whose threads sleep are rung.
fn look_at(index: u32, own: Option<&'static Set>) {
    let Some(reg) = reg(index) else { return };
    let Some(set) = reg.set.get() else { return };
    let mut list = set.list.lock();
    // Now it stays so: it leaves under this lock.
    if !reg.managed.get() || !reg.is_in(set) {
        return;
    }
    reg.dirty.set(reg.dirty.get() | own.is_none());
    push(&mut list, index);
    let wake = list.sleepers > 0 && own.is_none_or(|own| !core::ptr::eq(own, set));
    drop(list);
    if wake {
        ring(set);
    }
}

/// Link groups that a look for news goes through while the set's active connections may have something to say. All of them are
/// a page each, and a server of thousands of connections has dozens.
pub(crate) const SOME: usize = 8;

/// Posted connections go on their active lists. `all`: of every link group; else some, and others the next time.
pub(crate) fn news(set: &'static Set, all: bool) {
    let Some(cq) = set.cq.load(Ordering::Acquire).checked_sub(1) else { return };
    for link in link::round(&set.links, if all { link::LINKS } else { SOME }) {
        if link.has_news(cq as u8) {
            // What is taken and not yet on a list is lost to a handler that jumps away.
            let _critical = critical();
            link.take_news(cq as u8, |first| managed_of(first, |index| look_at(index, Some(set))));
        }
    }
}
