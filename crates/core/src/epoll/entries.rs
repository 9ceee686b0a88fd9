//! What stands in the kernel for a registration: always the program's own word, so that who waits past the hooks is told of it.
//!
//! An entry of ours asks for EPOLLRDNORM beside EPOLLIN, and for EPOLLWRNORM beside EPOLLOUT. TCP shows both of a pair at once, and
//! programs ask for one: so an event with such a mark is of an entry of ours. Of which, the index says, by set and word.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::io::Errno;

use super::regs::{Control, Reg, reg};
use super::{EDGE, EXCLUSIVE, ONESHOT, Set, outer};
use crate::{limits, proc, sys};

const IN: u32 = libc::EPOLLIN as u32;
const OUT: u32 = libc::EPOLLOUT as u32;
const IN_MARK: u32 = libc::EPOLLRDNORM as u32;
const OUT_MARK: u32 = libc::EPOLLWRNORM as u32;
/// What marks an entry as ours.
pub(super) const MARKS: u32 = IN_MARK | OUT_MARK;
/// What the kernel tells of without one.
const BARE: u32 = (libc::EPOLLERR | libc::EPOLLHUP | libc::EPOLLRDHUP | libc::EPOLLPRI) as u32;
/// What TCP has to tell of.
const TCP: u32 = IN | OUT | (libc::EPOLLRDHUP | libc::EPOLLPRI) as u32;

/// Heads of the index's chains.
const CHAINS: usize = 1 << 12;
static INDEX: [AtomicU32; CHAINS] = [const { AtomicU32::new(0) }; CHAINS];
/// Whether the kernel ever had an entry of ours.
static IS_USED: AtomicBool = AtomicBool::new(false);

type Done = Result<(), Errno>;

/// Whether the kernel ever had an entry of ours.
pub(super) fn are_ours() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

/// Whether an event may be of an entry of ours, or of the kicker.
#[inline]
pub(super) fn may_be_ours(events: u32) -> bool {
    events & (MARKS | outer::KICK) != 0 || events & !BARE == 0
}

/// Whether an event that has a mark is of an entry that somebody else made with it: in ours both of a pair stand.
pub(super) fn is_foreign(events: u32) -> bool {
    events & (IN | IN_MARK) == IN_MARK || events & (OUT | OUT_MARK) == OUT_MARK
}

fn marked(events: u32) -> u32 {
    let mark = |asked, mark| if events & asked != 0 { mark } else { 0 };
    events | mark(IN, IN_MARK) | mark(OUT, OUT_MARK)
}

/// What the kernel has to tell of while a registration is answered from here: what the program asks for, once each. A one-shot that
/// has fired asks for nothing.
fn silent_events(reg: &Reg) -> u32 {
    let asked = if reg.disarmed.get() { 0 } else { reg.events.get() & (TCP | MARKS) };
    marked(asked) | EDGE
}

/// Whether the kernel's entry of a managed registration serves for `event`. Under CONTROL or the list's lock.
pub(super) fn serves(reg: &Reg, event: libc::epoll_event) -> bool {
    let asked = marked(event.events & (TCP | MARKS));
    reg.entry.get().is_some_and(|(events, data)| data == event.u64 && asked & !events == 0)
}

/// The kernel gets a silent entry: it tells only us. Under CONTROL, and the list's lock where it is managed.
pub(super) fn silence(control: &Control, reg: &Reg, index: u32) -> Done {
    let before = reg.entry.get().filter(|_| reg.managed.get()).map_or(0, |(events, _)| events);
    put(control, reg, index, silent_events(reg) | before, true)
}

/// The kernel gets the entry as the program asks for it. Under CONTROL.
pub(super) fn restore(control: &Control, reg: &Reg, index: u32) -> Done {
    let (events, is_ours) = as_asked(reg);
    put(control, reg, index, events, is_ours)
}

/// The events of an entry on TCP, and whether it is one of ours.
///
/// A one-shot is: only so do we know that it has fired, when its connection comes on a lane before the program has armed it again. Not
/// in a set of which no wait through the hooks was seen: there the program may look for itself, and the connection gets no lane
/// (`Reg::waited`). Nor in one that has no lanes for good: other processes may have it.
pub(super) fn as_asked(reg: &Reg) -> (u32, bool) {
    let events = reg.events.get();
    if events & ONESHOT == 0 {
        return (events, false);
    }
    let may_have_lanes =
        |set: &Set| !set.watched.load(Ordering::Relaxed) && (reg.tracked.get() || set.waits() != 0);
    reg.tracked.set(events & (IN | OUT) != 0 && reg.set.get().is_some_and(may_have_lanes));
    match reg.tracked.get() {
        // The kernel tells of errors all the same.
        _ if reg.disarmed.get() => (ONESHOT, true),
        true => (marked(events), true),
        false => (events, false),
    }
}

/// Changes what stands in the kernel. EPOLLEXCLUSIVE cannot be changed, only made (epoll_ctl(2)).
fn put(control: &Control, reg: &Reg, index: u32, events: u32, is_ours: bool) -> Done {
    let Some(set) = reg.set.get() else { return Err(Errno::NOENT) };
    let epfd = set.epfd.load(Ordering::Relaxed);
    reg.lingers.set(false);
    reg.known.set(None);
    let mut event = libc::epoll_event { events, u64: reg.data.get() };
    if reg.events.get() & EXCLUSIVE == 0 {
        sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, reg.fd.get(), Some(&mut event))?;
    } else {
        sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, reg.fd.get(), None)?;
        sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, reg.fd.get(), Some(&mut event))?;
    }
    stands(control, reg, index, events, is_ours);
    Ok(())
}

/// The kernel has an entry with the program's present word. Under CONTROL, and the list's lock where it is managed.
pub(super) fn stands(_control: &Control, reg: &Reg, index: u32, events: u32, is_ours: bool) {
    drop_from_index(reg, index);
    if !is_ours {
        return;
    }
    IS_USED.store(true, Ordering::Relaxed);
    let data = reg.data.get();
    reg.entry.set(Some((events, data)));
    let head = chain(reg.set.get(), data);
    let first = head.swap(index, Ordering::Relaxed);
    reg.prev_alike.set(0);
    reg.next_alike.set(first);
    if let Some(first) = self::reg(first) {
        first.prev_alike.set(index);
    }
}

/// The kernel's entry is none of ours any more. Under CONTROL, and the list's lock where it is managed.
pub(super) fn drop_from_index(reg: &Reg, index: u32) {
    let Some((_, data)) = reg.entry.take() else { return };
    let (prev, next) = (reg.prev_alike.get(), reg.next_alike.get());
    match self::reg(prev) {
        Some(prev) => prev.next_alike.set(next),
        None => {
            let head = chain(reg.set.get(), data);
            debug_assert_eq!(head.load(Ordering::Relaxed), index);
            head.store(next, Ordering::Relaxed);
        }
    }
    if let Some(next) = self::reg(next) {
        next.prev_alike.set(prev);
    }
}

fn chain(set: Option<&'static Set>, data: u64) -> &'static AtomicU32 {
    let set = set.map_or(0, |set| core::ptr::from_ref(set) as u64);
    let hash = (data ^ set.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &INDEX[(hash >> 52) as usize % CHAINS]
}

/// Entries of ours in `set` that have this word. Under CONTROL; each may be changed when the next one is known.
pub(super) fn alike(set: &'static Set, data: u64) -> impl Iterator<Item = (u32, &'static Reg)> {
    let mut next = chain(Some(set), data).load(Ordering::Relaxed);
    core::iter::from_fn(move || {
        loop {
            let index = next;
            let reg = reg(index)?;
            next = reg.next_alike.get();
            if reg.is_in(set) && reg.entry.get().is_some_and(|(_, word)| word == data) {
                return Some((index, reg));
            }
        }
    })
}

/// Whether the kernel's entry for `fd` is a one-shot that has fired, which somebody may have been told of past the hooks: its mask is
/// empty then, where errors stand in each other one.
pub(super) fn has_fired(epfd: i32, fd: i32) -> bool {
    mask(epfd, fd).is_some_and(|events| events & (libc::EPOLLERR | libc::EPOLLHUP) as u32 == 0)
}

/// What the kernel's entry for `fd` asks for, if there is one. The kernel lists the whole set for that: a microsecond for each entry.
pub(super) fn mask(epfd: i32, fd: i32) -> Option<u32> {
    let path = proc::Text::new(format_args!("/proc/self/fdinfo/{epfd}\0"));
    let path = core::ffi::CStr::from_bytes_with_nul(path.as_bytes()).ok()?;
    let mut found = None;
    limits::each_line(path, |line| {
        let Ok(line) = core::str::from_utf8(line) else { return };
        let mut words = line.split_ascii_whitespace();
        if words.next() == Some("tfd:")
            && words.next().and_then(|word| word.parse().ok()) == Some(fd)
            && words.next() == Some("events:")
        {
            found = words.next().and_then(|word| u32::from_str_radix(word, 16).ok());
        }
    });
    found
}
