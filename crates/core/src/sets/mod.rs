//! The program's epoll sets.
//!
//! A set stays the kernel's own. While a connection is on a lane its registration there is edge-triggered
//! and carries a tag of ours (TCP then only tells of death and stray bytes), and the set has our doorbell;
//! what the program registered is kept here and answered from the lane. Sets without lanes are untouched.
//!
//! A set keeps an *active list* of connections that it looks at itself. One that has been quiet is armed
//! (its publisher posts to the set's CQ) and leaves the list: epoll_wait costs O(active), and a busy
//! connection costs its peer no post at all (models/cq.pml).
//!
//! Here: a set's life. `regs`: the registrations in it; `ctl`: how they change, and those made behind our back; `entries`: what stands in the
//! kernel for them; `list`: the active list; `refusal`: sets that the kernel gives no entry; `sharing`: those for which a child waits, too;
//! `standing`: how those that have no lanes are told of what a lane leaves behind. How a set is looked at and waited for is
//! [`epoll`](crate::epoll)'s.

pub(crate) mod asked;
pub(crate) mod ctl;
pub(crate) mod entries;
pub(crate) mod list;
pub(crate) mod refusal;
pub(crate) mod regs;
pub(crate) mod sharing;
pub(crate) mod standing;

use core::cell::Cell;
use core::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;
use shunpike_shm::arena::mode;
use shunpike_wire::Reason;

use crate::set::{List, Set};
use crate::table::{self, Conn, Entry};
use crate::tls::{critical, thread};
use crate::{above, link, process, state};

use self::entries::{restore_left, share};
use self::regs::{CONTROL, Reg, indices, managed_after, reg, remove};
use self::standing::hush;

pub use self::asked::recall;
pub use self::ctl::{bars, closing, ctl, forget, staying, watches};
pub use self::entries::{give_words, manage, restore};
pub(crate) use self::list::watch_over;
pub use self::list::{shown, starved, touch};
pub use self::refusal::bars_managed;
pub use self::standing::stand;

/// A wait through the hooks, in `Set::waits`.
pub(crate) const WAIT: u64 = 1 << 32;

/// Sets of a process that can have lanes.
const SETS: usize = 4096;

pub(crate) const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
pub(crate) const EDGE: u32 = libc::EPOLLET as u32;
pub(crate) const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

pub(crate) static SETS_AT: [Set; SETS] = [const { Set::new() }; SETS];
static NEXT_SET: AtomicUsize = AtomicUsize::new(0);

/// epoll_create() returned `epfd`.
pub fn created(epfd: i32) {
    if let Some(set) = new_set(epfd) {
        table::set(epfd, Entry::Set(set));
    }
}

pub(crate) fn new_set(epfd: i32) -> Option<&'static Set> {
    if !process::enabled() {
        return None;
    }
    for _ in 0..SETS {
        let set = &SETS_AT[NEXT_SET.fetch_add(1, Ordering::Relaxed) % SETS];
        if set.refs.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            set.epfd.store(epfd, Ordering::Relaxed);
            set.pid.store(process::pid(), Ordering::Relaxed);
            set.managed.store(0, Ordering::Relaxed);
            set.cq.store(0, Ordering::Relaxed);
            set.watched.store(false, Ordering::Relaxed);
            set.shared.store(false, Ordering::Relaxed);
            set.mark.store(0, Ordering::Relaxed);
            set.refused.store(false, Ordering::Relaxed);
            set.lost.store(0, Ordering::Relaxed);
            set.waits.store(0, Ordering::Relaxed);
            set.told_all.store(0, Ordering::Relaxed);
            *set.list.lock() = List::new();
            return Some(set);
        }
    }
    None
}

/// Another descriptor of the same set.
pub fn retain(set: &'static Set) {
    set.refs.fetch_add(1, Ordering::Relaxed);
}

/// A number of the set, for who waits for it at `fd`, which may have been closed meanwhile and be another set's. Errors: EBADF, it has none.
pub fn number_of(set: &'static Set, fd: i32) -> Result<i32, Errno> {
    let is_its = |fd: &i32| matches!(table::look(*fd), Entry::Set(same) if core::ptr::eq(same, set));
    let known = [fd, set.epfd.load(Ordering::Relaxed)].into_iter().find(is_its);
    known.or_else(|| table::all().map(|(other, _)| other).find(is_its)).ok_or(Errno::BADF)
}

/// A descriptor of the set is closed; with the last one its registrations go.
pub fn close(set: &'static Set, fd: i32) {
    if set.refs.load(Ordering::Acquire) > 1 {
        let same = |entry| matches!(entry, Entry::Set(other) if core::ptr::eq(other, set));
        if set.epfd.load(Ordering::Relaxed) == fd
            && let Some((other, _)) = table::all().find(|&(other, entry)| other != fd && same(entry))
        {
            set.epfd.store(other, Ordering::Relaxed);
        }
        set.refs.fetch_sub(1, Ordering::AcqRel);
        return;
    }
    if let Some(cq) = set.cq.load(Ordering::Relaxed).checked_sub(1)
        && !is_inherited(set)
    {
        process::leave_cq(cq as u8);
    }
    let mut control = CONTROL.lock();
    for index in 1..=control.used {
        if let Some(reg) = reg(index)
            && reg.is_in(set)
        {
            remove(&mut control, index, reg.fd.get());
        }
    }
    set.refs.fetch_sub(1, Ordering::AcqRel);
}

/// A forked child has its parent's sets, and shares what the kernel tells of them: where it uses one itself, the
/// connections in it go back to TCP.
pub(crate) fn is_inherited(set: &Set) -> bool {
    set.pid.load(Ordering::Relaxed) != process::pid()
}

pub(crate) fn own(set: &'static Set) {
    if is_inherited(set) {
        sharing::tell_parent(set);
        set.pid.store(process::pid(), Ordering::Relaxed);
        watch(set);
    } else if !set.watched.load(Ordering::Relaxed) && sharing::is_told(set) {
        watch(set);
    }
}

/// Somebody is about to wait for the set itself: its connections go back to TCP, for good. With no lock held.
pub fn watch(set: &'static Set) {
    if is_inherited(set) && !set.watched.load(Ordering::Relaxed) {
        sharing::tell_parent(set);
    }
    // SeqCst: pairs with who brings a connection on a lane and asks `bars_managed`, after `take_over` has counted it. Of those
    // on their way to one only they know.
    set.watched.store(true, Ordering::SeqCst);
    give_words(set);
    let mut after = 0;
    while set.managed.load(Ordering::SeqCst) > 0 {
        let Some((index, conn, fd)) = managed_after(set, after, |_| true) else { break };
        above::revoke_for_good(conn, fd, Reason::NestedSets);
        // No lane of it ends any more.
        if is_left(conn) {
            restore_left(set, conn);
        }
        after = index;
    }
    let _control = CONTROL.lock();
    hush(set);
}

/// Before fork(): connections on lanes whose one-shots the child will have, too, go back to TCP: whether one has fired only this process
/// knows until then. What is unread stays in the ring, where both find it: a sender that makes no call would never take it back. An armed one
/// is told of by both; one that has fired leaves it to TCP when it is armed (`ctl`). With no lock held.
pub fn to_be_shared() {
    // First: from here on none comes on a lane. SeqCst, as in `watch`.
    open_sets().for_each(sharing::begin);
    // Those of a parent are on TCP since its fork.
    for set in open_sets().filter(|set| !is_inherited(set)) {
        let mut after = 0;
        while has_lanes(set) {
            let has_fired = Cell::new(false);
            let is_shot = |reg: &Reg| {
                let _list = set.list.lock();
                has_fired.set(reg.disarmed.get());
                reg.events.get() & ONESHOT != 0
            };
            let Some((index, conn, fd)) = managed_after(set, after, is_shot) else { break };
            let has_unread = {
                let _critical = critical();
                state::has_unread(&conn.block.rx)
            };
            if has_fired.get() && !has_unread {
                above::leave_to_sets(conn, fd);
            } else {
                above::revoke_for_good(conn, fd, Reason::NestedSets);
            }
            after = index;
        }
    }
}

/// Whether another process that has the connection took it back to TCP.
pub(crate) fn is_left(conn: Conn) -> bool {
    state::modes(conn.block) == (mode::PLAIN, mode::PLAIN) && link::of(conn.block).is_none()
}

/// What is known of the waits for the sets that a connection is in.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Waited {
    /// It is in none.
    Nowhere,
    /// Each was waited for through the hooks since the connection came there,
    Since,
    /// Each was waited for through the hooks some time.
    Ever,
    /// Of one of them no wait was seen.
    Never,
}

/// What is known of the waits for the sets that hold the connection, under whichever of its descriptors.
pub fn waited(conn: Conn, fd: i32) -> Waited {
    let mut known = Waited::Nowhere;
    each_of(conn, fd, |reg| known = known.and(reg.waited()));
    known
}

/// Those count that come from now on.
pub fn forget_waits(conn: Conn, fd: i32) {
    each_of(conn, fd, Reg::forget_waits);
}

pub(crate) fn each_of(conn: Conn, fd: i32, mut each: impl FnMut(&Reg)) {
    let _control = CONTROL.lock();
    indices(fd).filter_map(reg).for_each(&mut each);
    if conn.block.dups.load(Ordering::Relaxed) != 0 {
        for other in table::names_of(conn).filter(|&other| other != fd) {
            indices(other).filter_map(reg).for_each(&mut each);
        }
    }
}

impl Waited {
    fn and(self, other: Self) -> Self {
        use Waited::{Ever, Never, Nowhere, Since};
        match (self, other) {
            (Never, _) | (_, Never) => Never,
            (Ever, _) | (_, Ever) => Ever,
            (Since, _) | (_, Since) => Since,
            (Nowhere, Nowhere) => Nowhere,
        }
    }
}

/// Whether any set of the process was waited for through the hooks.
pub fn any_waited() -> bool {
    open_sets().any(|set| set.waits() != 0)
}

/// Whether lanes are in the set.
pub fn has_lanes(set: &Set) -> bool {
    set.managed.load(Ordering::SeqCst) > 0
}

pub(crate) fn open_sets() -> impl Iterator<Item = &'static Set> {
    let used = NEXT_SET.load(Ordering::Relaxed).min(SETS);
    SETS_AT.iter().take(used).filter(|set| set.refs.load(Ordering::Acquire) != 0)
}

pub(crate) fn ring(set: &Set) {
    if let Some(cq) = set.cq.load(Ordering::Acquire).checked_sub(1)
        && let Some(bell) = process::doorbell(cq as u8)
    {
        crate::doorbell::ring(bell);
    }
}

/// Sets whose lists are held across a fork.
static HELD: AtomicUsize = AtomicUsize::new(0);

/// Before fork(): registrations and lists are whole. After the session's lock.
pub fn hold_across_fork() {
    let control = CONTROL.lock();
    share(&control);
    // Let go of below.
    core::mem::forget(control);
    // Those that are made meanwhile are not the child's.
    let held = NEXT_SET.load(Ordering::Relaxed).min(SETS);
    HELD.store(held, Ordering::Relaxed);
    SETS_AT.iter().take(held).for_each(|set| set.list.hold());
}

/// After it, in the parent and in the child.
pub fn let_go_after_fork() {
    SETS_AT.iter().take(HELD.load(Ordering::Relaxed)).for_each(|set| set.list.let_go());
    CONTROL.let_go();
}

/// The calling thread has moved bytes by TCP, or made a connection.
#[inline(always)]
pub fn by_tcp() {
    let calls = &thread().tcp_calls;
    calls.store(calls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
}
