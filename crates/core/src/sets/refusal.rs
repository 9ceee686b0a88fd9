//! Sets that the kernel gives no entry: no memory, `max_user_watches` reached, a filter of system calls. They have no lanes.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_wire::Reason;

use super::entries::{as_asked, tell_kernel};
use super::regs::{CONTROL, Control, Reg, kin_of, reg};
use super::{EXCLUSIVE, each_of, ring};
use crate::set::Set;
use crate::sys;
use crate::table::Conn;

/// An exclusive entry that was refused is offered again to the kernel so often by who waits for its set, nanoseconds.
pub(crate) const PUT_BACK_NS: u64 = 10_000_000;

/// Why connections in `set` must not be on lanes.
pub(super) fn bar_of(set: &Set) -> Option<Reason> {
    // SeqCst: pairs with `watch`, which looks for lanes in the set after it has said that it is watched.
    if set.watched.load(Ordering::SeqCst) {
        return Some(Reason::NestedSets);
    }
    set.refused.load(Ordering::SeqCst).then_some(Reason::EpollSets)
}

/// Why a connection must not come on the lane that `manage` has been told of: its sets can have come into others since `bars`, or have
/// got no entry for it.
pub fn bars_managed(conn: Conn, fd: i32) -> Option<Reason> {
    let of = |reg: &Reg| reg.set.get().and_then(bar_of);
    let mut found = {
        let _control = CONTROL.lock();
        kin_of(conn).filter_map(reg).find_map(of)
    };
    // Those that were refused are no kin.
    each_of(conn, fd, |reg| found = found.or_else(|| of(reg)));
    found
}

/// The kernel has refused what a lane of this registration takes: it stays the kernel's. `is_silent`: what stands there may have been
/// silenced, for a look (`known`) or from the first. Under CONTROL.
#[cold]
pub(super) fn refuse(set: &'static Set, reg: &Reg, index: u32, is_silent: bool) {
    set.refused.store(true, Ordering::SeqCst);
    if is_silent && !reg.lingers.get() && reg.events.get() & EXCLUSIVE == 0 {
        let _ = tell_kernel(reg, index, as_asked);
    }
}

/// Whether the kernel owes the set an entry.
#[inline]
pub(crate) fn has_lost(set: &Set) -> bool {
    set.lost.load(Ordering::Relaxed) != 0
}

/// An exclusive entry, which was taken out to be changed, could not be put in again: as the program made it, at once or as soon as the
/// kernel takes it. Under CONTROL.
#[cold]
pub(super) fn give_back_exclusive(set: &'static Set, reg: &Reg, index: u32) {
    if !reg.lost.replace(true) {
        set.lost.fetch_add(1, Ordering::Relaxed);
    }
    offer(set, reg, index);
    if reg.lost.get() {
        // Who sleeps does so without a bound.
        ring(set);
    }
}

/// Offers the kernel what it has refused. Under CONTROL.
#[cold]
pub(crate) fn put_back(control: &Control, set: &'static Set) {
    for index in 1..=control.used {
        if let Some(reg) = reg(index).filter(|reg| reg.lost.get() && reg.is_in(set)) {
            offer(set, reg, index);
        }
    }
}

fn offer(set: &'static Set, reg: &Reg, index: u32) {
    let (epfd, fd) = (set.epfd.load(Ordering::Relaxed), reg.fd.get());
    let mut event = as_asked(reg, index);
    // EXIST: made by a call that no hook saw.
    if matches!(
        sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, Some(&mut event)),
        Ok(()) | Err(Errno::EXIST | Errno::BADF)
    ) {
        found(reg);
    }
}

/// A registration is the kernel's again, or no more. Under CONTROL.
pub(super) fn found(reg: &Reg) {
    if let Some(set) = reg.set.get().filter(|_| reg.lost.replace(false)) {
        set.lost.fetch_sub(1, Ordering::Relaxed);
    }
}
