//! Sets that the kernel gives no entry: no memory, `max_user_watches` reached, a filter of system calls. They have no lanes.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_wire::Reason;

use super::entries::{as_asked, tell_kernel};
use super::list::push;
use super::regs::{CONTROL, Control, Reg, kin_of, reg};
use super::standing::standing;
use super::{EXCLUSIVE, ONESHOT, each_of, ring, sharing};
use crate::set::Set;
use crate::sys;
use crate::table::Conn;

/// An entry that was refused is offered again to the kernel so often by who waits for its set, and a set without a doorbell is looked at,
/// nanoseconds.
pub(crate) const PUT_BACK_NS: u64 = 10_000_000;

/// Why connections in `set` must not be on lanes.
pub(crate) fn bar_of(set: &Set) -> Option<Reason> {
    // SeqCst: pairs with `watch`, which looks for lanes in the set after it has said that it is watched.
    if set.watched.load(Ordering::SeqCst) || sharing::is_told(set) {
        return Some(Reason::NestedSets);
    }
    set.refused.load(Ordering::SeqCst).then_some(Reason::EpollSets)
}

/// Why a connection that is registered so must not be on a lane. One-shots of a set that processes share are the kernel's: whether one has
/// fired is known to who got its event, and either process arms it again.
pub(super) fn bar_of_entry(set: &Set, events: u32) -> Option<Reason> {
    let is_others = || set.shared.load(Ordering::SeqCst) && events & ONESHOT != 0;
    bar_of(set).or_else(|| is_others().then_some(Reason::NestedSets))
}

/// Why a connection with this registration must not be on a lane.
pub(super) fn bar_of_reg(reg: &Reg) -> Option<Reason> {
    reg.set.get().and_then(|set| bar_of_entry(set, reg.events.get()))
}

/// Why a connection must not come on the lane that `manage` has been told of: its sets can have come into others since `bars`, or have
/// got no entry for it.
pub fn bars_managed(conn: Conn, fd: i32) -> Option<Reason> {
    let mut found = {
        let _control = CONTROL.lock();
        kin_of(conn).filter_map(reg).find_map(bar_of_reg)
    };
    // Those that were refused are no kin.
    each_of(conn, fd, |reg| found = found.or_else(|| bar_of_reg(reg)));
    found
}

/// The kernel has refused what a lane of this registration takes: it stays the kernel's. `is_silent`: what stands there may have been
/// silenced, for a look (`known`) or from the first. Under CONTROL.
#[cold]
pub(super) fn refuse(set: &'static Set, reg: &Reg, index: u32, is_silent: bool) {
    set.refused.store(true, Ordering::SeqCst);
    if reg.lost.get() {
        give_back_refused(set, reg, index);
    } else if is_silent && !reg.lingers.get() && reg.events.get() & EXCLUSIVE == 0 {
        give_back_asked(reg, index);
    }
}

/// Whether the kernel owes the set an entry.
#[inline]
pub(crate) fn has_lost(set: &Set) -> bool {
    set.lost.load(Ordering::Relaxed) != 0
}

/// The kernel has refused an entry. One that is exclusive, which was taken out to be changed, it has no more. Under CONTROL.
#[cold]
pub(super) fn lose(set: &Set, reg: &Reg) {
    if !reg.lost.replace(true) {
        set.lost.fetch_add(1, Ordering::Relaxed);
    }
}

/// The program's own entry stands in the kernel again, or is offered until it does. Under CONTROL.
pub(super) fn give_back_asked(reg: &Reg, index: u32) {
    let is_refused = |errno| !matches!(errno, Errno::NOENT | Errno::BADF);
    if tell_kernel(reg, index, as_asked).is_err_and(is_refused)
        && let Some(set) = reg.set.get()
    {
        give_back_refused(set, reg, index);
    }
}

/// The program's own entry, which the kernel has refused: at once, or as soon as the kernel takes it. Under CONTROL.
#[cold]
fn give_back_refused(set: &'static Set, reg: &Reg, index: u32) {
    lose(set, reg);
    offer(set, reg, index);
    if reg.lost.get() {
        // Who sleeps does so without a bound.
        ring(set);
    }
}

/// Offers the kernel what it has refused. What it tells us nothing of meanwhile is looked at. Under CONTROL.
#[cold]
pub(crate) fn put_back(control: &Control, set: &'static Set) {
    for index in 1..=control.used {
        let Some(reg) = reg(index).filter(|reg| reg.lost.get() && reg.is_in(set)) else { continue };
        // What a managed one asks for is the list's.
        let mut list = set.list.lock();
        offer(set, reg, index);
        if reg.managed.get() {
            reg.dirty.set(true);
            push(&mut list, index);
        }
    }
}

fn offer(set: &'static Set, reg: &Reg, index: u32) {
    let (epfd, fd) = (set.epfd.load(Ordering::Relaxed), reg.fd.get());
    let (turn, stands) = (reg.turn.get(), reg.stands.get());
    reg.next_turn();
    let mut event = if reg.managed.get() { standing(reg, index) } else { as_asked(reg, index) };
    let op = if reg.events.get() & EXCLUSIVE != 0 { libc::EPOLL_CTL_ADD } else { libc::EPOLL_CTL_MOD };
    // EXIST: made by a call that no hook saw. NOENT: taken out by one.
    if matches!(
        sys::epoll_ctl(epfd, op, fd, Some(&mut event)),
        Ok(()) | Err(Errno::EXIST | Errno::NOENT | Errno::BADF)
    ) {
        found(reg);
    } else {
        reg.turn.set(turn);
        reg.stands.set(stands);
    }
}

/// A registration is the kernel's again, or no more. Under CONTROL.
pub(super) fn found(reg: &Reg) {
    if let Some(set) = reg.set.get().filter(|_| reg.lost.replace(false)) {
        set.lost.fetch_sub(1, Ordering::Relaxed);
    }
}
