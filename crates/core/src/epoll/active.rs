//! The active list of a set: what puts connections on it, how they are looked at, reported and armed.

use std::sync::atomic::Ordering;

use shunpike_shm::lane::{Side, Words};

use super::regs::{Reg, managed_of, reg};
use super::{EDGE, ONESHOT, Set, ring};
use crate::mutex::Guard;
use crate::ready::{self, Level};
use crate::table::Conn;
use crate::tx::unheard;
use crate::{ahead, link, state, sys, wait};

/// Looks without news after which a connection is armed and leaves the active list.
const QUIET: u8 = 32;

/// The active list, and what its scans remember.
pub(super) struct List {
    pub(super) head: u32,
    tail: u32,
    pub(super) len: u32,
    pub(super) kernel_at: u64,
    /// Until then the kernel's part is asked in each look.
    pub(super) mixed_until: u64,
    /// The kernel's events left no room for the lanes'.
    pub(super) kernel_filled: bool,
    pub(super) sleepers: u32,
}

impl List {
    pub(super) const fn new() -> Self {
        Self { head: 0, tail: 0, len: 0, kernel_at: 0, mixed_until: 0, kernel_filled: false, sleepers: 0 }
    }
}

pub(super) fn push(list: &mut List, index: u32) {
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

pub(super) fn pop(list: &mut List, index: u32) {
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
pub(super) fn next(list: &mut List) -> Option<(u32, &'static Reg, Conn)> {
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

/// The connection goes on the active lists of its sets, whose sleepers are left alone: it is looked at before the next sleep.
pub(crate) fn enlist(conn: Conn) {
    let Some(first) = link::registrations(conn.block) else { return };
    managed_of(first, |index| {
        let Some(reg) = reg(index) else { return };
        let Some(set) = reg.set.get() else { return };
        let mut list = set.list.lock();
        if reg.managed.get() && reg.is_in(set) {
            push(&mut list, index);
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
const SOME: usize = 8;

/// Posted connections go on their active lists. `all`: of every link group; else some, and others the next time.
pub(super) fn news(set: &'static Set, all: bool) {
    let Some(cq) = set.cq.load(Ordering::Acquire).checked_sub(1) else { return };
    for link in link::round(&set.links, if all { link::LINKS } else { SOME }) {
        if link.has_news(cq as u8) {
            link.take_news(cq as u8, |first| managed_of(first, |index| look_at(index, Some(set))));
        }
    }
}

/// Whether a turn would find something: for spinning, over and over.
pub(super) fn hot(set: &'static Set) -> bool {
    let Some(cq) = set.cq.load(Ordering::Acquire).checked_sub(1) else { return false };
    if link::round(&set.links, SOME).any(|link| link.has_news(cq as u8)) {
        return true;
    }
    let list = set.list.lock();
    let mut at = list.head;
    while let Some(reg) = reg(at) {
        if let Some(conn) = reg.conn.get()
            && !reg.disarmed.get()
            && ready::changed(conn, reg.events.get(), &reg.seen.get())
        {
            return true;
        }
        at = reg.next_active.get();
    }
    false
}

/// Reports what is ready on the active list, each at most once and the first to the back; arms the quiet. Those that the
/// call has told of already, as `told` says, are left for the next one.
pub(super) fn scan(
    set: &'static Set,
    mut list: Guard<'static, List>,
    out: &mut [libc::epoll_event],
    told: impl Fn(&Reg) -> bool,
) -> usize {
    let mut n = 0;
    for _ in 0..list.len {
        if n == out.len() {
            break;
        }
        let Some((index, reg, conn)) = next(&mut list) else { continue };
        look_ahead(&list);
        if told(reg) {
            push(&mut list, index);
            continue;
        }
        let level = look(reg, conn);
        match report(reg, &level) {
            Some(event) => {
                out[n] = event;
                n += 1;
                reg.reported.set(set.tick());
                reg.quiet.set(0);
                if !reg.disarmed.get() {
                    push(&mut list, index);
                }
            }
            None => {
                let quiet = reg.quiet.get().saturating_add(1);
                let stays = quiet < QUIET || level.full || level.bound.is_some();
                if stays || unheard::is_waited_for(conn, reg.fd.get()) || arm(set, reg, conn, &level) {
                    push(&mut list, index);
                }
                reg.quiet.set(quiet);
            }
        }
    }
    n
}

/// The next three on the list, each as far as the one before has made it known.
#[inline]
fn look_ahead(list: &List) {
    let Some(first) = reg(list.head) else { return };
    if let Some(conn) = first.conn.get() {
        ahead::of_look(conn.block);
    }
    let Some(second) = reg(first.next_active.get()) else { return };
    if let Some(conn) = second.conn.get() {
        ahead::of_words(conn.block);
    }
    if let Some(third) = reg(second.next_active.get()) {
        ahead::of(third);
    }
}

pub(super) fn look(reg: &Reg, conn: Conn) -> Level {
    let level = ready::level(conn, reg.fd.get(), reg.events.get(), reg.dirty.get());
    reg.dirty.set(level.keep_looking);
    level
}

/// The event to report, if there is one: level-triggered as it stands, edge-triggered once per news.
fn report(reg: &Reg, level: &Level) -> Option<libc::epoll_event> {
    let wanted = reg.events.get() | (libc::EPOLLERR | libc::EPOLLHUP) as u32;
    let events = level.events & wanted;
    if events == 0 {
        return None;
    }
    if reg.events.get() & EDGE != 0 && !reg.edge.get() && !level.is_fresh(reg.events.get(), &reg.seen.get()) {
        return None;
    }
    reg.edge.set(false);
    let mut seen = reg.seen.get();
    level.note(events, &mut seen);
    reg.seen.set(seen);
    if reg.events.get() & EDGE != 0 && level.events & libc::EPOLLRDHUP as u32 != 0 {
        reg.known.set(sys::Shown::at_the_end(reg.fd.get(), level.events as i16));
    }
    reg.disarmed.set(reg.events.get() & ONESHOT != 0);
    Some(libc::epoll_event { events, u64: reg.data.get() })
}

/// Declares that publishers of this connection must post. True when there is news since `level` after all.
pub(super) fn arm(set: &Set, reg: &Reg, conn: Conn, level: &Level) -> bool {
    let Some(cq) = set.cq.load(Ordering::Acquire).checked_sub(1) else { return true };
    let block = conn.block;
    if reg.events.get() & ready::IN != 0
        && let Some(dmb) = state::rx_dmb(&block.rx)
    {
        wait::arm(&block.rx, dmb.words(), Side::Readers, cq as u8);
    }
    if ready::waits_for_writers(block, reg.events.get(), &reg.seen.get())
        && let Some(dmb) = state::tx_dmb(&block.tx)
    {
        wait::arm(&block.tx, dmb.words(), Side::Writers, cq as u8);
    }
    level.modes != state::modes(block) || ready::changed(conn, reg.events.get(), &reg.seen.get())
}
