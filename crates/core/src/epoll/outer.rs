//! The outer epoll instance of a set that has lanes: the set and its doorbell are in it, and threads that wait for the set sleep there
//! (models/outer.pml). Nothing of ours is in the program's set, but for moments: the kicker, which brings threads that sleep in the
//! kernel's own wait on the set when the first lane comes.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use rustix::fd::{AsRawFd, IntoRawFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::active::push;
use super::regs::{CONTROL, Control, reg};
use super::{Set, WAIT, has_lanes, is_inherited, ring};
use crate::{clock, descriptors, process, sys, wait};

/// What the kernel tells of the kicker: no TCP socket has it.
pub(super) const KICK: u32 = libc::EPOLLWRBAND as u32;
/// The word of the set in its outer instance; the doorbell has 0.
const OF_SET: u64 = 1;
/// A thread that has not heard of the kicker after this long, microseconds, and after so many looks of others at it, is gone.
const GONE_US: u64 = 300_000;
const GONE_LOOKS: u32 = 1_000;

/// A socket that is always writable; -1 before the first.
pub(super) static KICKER: AtomicI32 = AtomicI32::new(-1);

/// The outer instance of a set.
pub(super) struct Outer {
    /// Its descriptor; -1 before the first lane.
    fd: AtomicI32,
    /// When the kicker came into the set; 0 while it is not there.
    pub(super) kicked_at: AtomicU64,
    /// How often it was seen there since.
    looks: AtomicU32,
    /// A thread is counted in the kernel's own wait that left it in a way of which nobody is told: siglongjmp. Whether others sleep there is not known any more, so the set loses its lanes. So it does where the program has closed
    /// the outer instance by system calls of its own, or no kicker can be had.
    is_lost: AtomicBool,
}

impl Outer {
    pub(super) const fn new() -> Self {
        Self {
            fd: AtomicI32::new(-1),
            kicked_at: AtomicU64::new(0),
            looks: AtomicU32::new(0),
            is_lost: AtomicBool::new(false),
        }
    }

    pub(super) fn reset(&self) {
        self.fd.store(-1, Ordering::Relaxed);
        self.kicked_at.store(0, Ordering::Relaxed);
        self.is_lost.store(false, Ordering::Relaxed);
    }

    /// The kicker in an inherited set is the parent's, whose threads have yet to hear of it.
    pub(super) fn leave_kick(&self) {
        self.kicked_at.store(0, Ordering::Relaxed);
    }

    /// The epoll instance.
    pub(super) fn fd(&self) -> i32 {
        self.fd.load(Ordering::Acquire)
    }
}

/// A thread in the kernel's own wait on a set, or on its way there or back. Dropped also when the thread is cancelled.
pub struct Within(&'static Set);

impl Within {
    /// The calling thread is about to wait in the set itself, where no lane's bell is heard. `None`: there are lanes.
    #[inline(always)]
    pub(super) fn enter(set: &'static Set) -> Option<Self> {
        // SeqCst: pairs with `kick`. Either the lane is seen here, or the thread is seen there.
        set.waits.fetch_add(WAIT + 1, Ordering::SeqCst);
        let within = Self(set);
        (!has_lanes(set)).then_some(within)
    }
}

impl Drop for Within {
    #[inline(always)]
    fn drop(&mut self) {
        // The lower half is at least 1: its borrow and the upper half's one are the same.
        self.0.waits.fetch_add(WAIT - 1, Ordering::SeqCst);
        // SeqCst, both: pairs with `kick`, which announces the kicker and then looks who is within.
        if self.0.outer.kicked_at.load(Ordering::SeqCst) != 0 {
            look_at_kick(self.0);
        }
    }
}

#[cold]
#[inline(never)]
fn look_at_kick(set: &Set) {
    end_kick(&CONTROL.lock(), set);
}

/// Threads in the kernel's own wait on the set, or on their way there or back.
pub(super) fn within(set: &Set) -> u32 {
    set.waits.load(Ordering::SeqCst) as u32
}

/// The outer instance is made, and the set gets a queue. Under CONTROL. Without descriptors there is none, and no lane can stay
/// (`ctl::set_bars`).
pub(super) fn make(set: &Set) {
    let cq = process::take_cq();
    let made = wait::new_sleeper(cq).and_then(|fd| {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: OF_SET };
        sys::epoll_ctl(fd, libc::EPOLL_CTL_ADD, set.epfd.load(Ordering::Relaxed), Some(&mut event))
            .inspect_err(|_| descriptors::close_number(fd))?;
        Ok(fd)
    });
    match made {
        Ok(fd) => {
            // Release pairs with the Acquire of who sleeps there.
            set.outer.fd.store(fd, Ordering::Release);
            set.cq.store(u32::from(cq) + 1, Ordering::Release);
        }
        Err(_) => process::leave_cq(cq),
    }
}

pub(super) fn is_there(set: &Set) -> bool {
    set.outer.fd() >= 0
}

/// The set is closed.
pub(super) fn close(set: &Set) {
    let fd = set.outer.fd.swap(-1, Ordering::Relaxed);
    if fd >= 0 {
        descriptors::close_number(fd);
    }
}

/// Whether what woke a sleeper was news of the set itself, of `events` of the outer instance.
pub(super) fn is_of_set(events: &[libc::epoll_event]) -> bool {
    events.iter().any(|event| event.u64 == OF_SET)
}

/// A lane is in the set: threads that wait in the kernel, where its bell is not heard, go to the outer instance. The kicker has a word that
/// the program has in the set, as who waits past the hooks may hear of it. Under CONTROL, when the lane is counted.
pub(super) fn kick(_control: &Control, set: &Set, data: u64) {
    // A set that is watched loses its lanes at once, and in an inherited one nobody of this process waits.
    let is_passing = set.watched.load(Ordering::SeqCst) || is_inherited(set);
    if is_passing || set.outer.kicked_at.load(Ordering::Relaxed) != 0 {
        return;
    }
    // SeqCst, both: a thread that leaves just now sees this, and takes the kicker out, or is seen to have left.
    set.outer.kicked_at.store(clock::ticks().max(1), Ordering::SeqCst);
    set.outer.looks.store(0, Ordering::Relaxed);
    if within(set) != 0 {
        match put_kicker(set, data) {
            Ok(()) => return,
            // Nobody wakes them but TCP (`ctl::set_bars`).
            Err(_) => lose(set),
        }
    }
    set.outer.kicked_at.store(0, Ordering::Relaxed);
}

fn put_kicker(set: &Set, data: u64) -> Result<(), Errno> {
    // Level-triggered: each thread that it wakes wakes the next one, and nobody takes it from another.
    let mut event = libc::epoll_event { events: KICK, u64: data };
    let epfd = set.epfd.load(Ordering::Relaxed);
    match sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, kicker()?, Some(&mut event)) {
        Ok(_) | Err(Errno::EXIST) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Whether an event is the kicker's, which it attends to. Under CONTROL.
pub(super) fn is_kick(control: &Control, set: &Set, events: u32) -> bool {
    let at = set.outer.kicked_at.load(Ordering::Relaxed);
    // It has been taken out since the kernel told of it, perhaps.
    let is_kick = events & !(libc::EPOLLERR | libc::EPOLLHUP) as u32 == KICK
        && (at != 0 || !set.asks_marks.load(Ordering::Relaxed));
    if is_kick && at != 0 {
        let looks = set.outer.looks.load(Ordering::Relaxed).saturating_add(1);
        set.outer.looks.store(looks, Ordering::Relaxed);
        if looks > GONE_LOOKS && clock::ticks().wrapping_sub(at) > clock::from_us(GONE_US) {
            lose(set);
        }
        end_kick(control, set);
    }
    is_kick
}

/// Threads can be woken by TCP alone.
pub(super) fn lose(set: &Set) {
    set.outer.is_lost.store(true, Ordering::Relaxed);
}

/// Whether nobody knows which threads sleep in the kernel's own wait: then TCP must wake them.
pub(super) fn is_lost(set: &Set) -> bool {
    set.outer.is_lost.load(Ordering::Relaxed)
}

/// The kicker goes, if nobody has to hear of it any more. A lane that comes later is counted under CONTROL, and kicks again.
#[cold]
fn end_kick(_control: &Control, set: &Set) {
    let is_needed = within(set) != 0 && has_lanes(set);
    // The kicker in an inherited set is the parent's, whose threads have yet to hear of it.
    if is_needed || is_inherited(set) || set.outer.kicked_at.swap(0, Ordering::Relaxed) == 0 {
        return;
    }
    let kicker = KICKER.load(Ordering::Acquire);
    let _ = sys::epoll_ctl(set.epfd.load(Ordering::Relaxed), libc::EPOLL_CTL_DEL, kicker, None);
}

/// The last lanes have left the set.
pub(super) fn lanes_left(set: &Set) {
    if set.outer.kicked_at.load(Ordering::Relaxed) != 0 {
        look_at_kick(set);
    }
}

fn kicker() -> Result<i32, Errno> {
    let known = KICKER.load(Ordering::Acquire);
    if known >= 0 {
        return Ok(known);
    }
    let made = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    let made = descriptors::internal(made)?;
    let fd = made.as_raw_fd();
    // Under CONTROL: nobody else makes one. Release pairs with the Acquire above.
    KICKER.store(fd, Ordering::Release);
    let _ = made.into_raw_fd();
    Ok(fd)
}

/// The set goes to queue `to`, which it has taken: pollers have come or gone. With no lock held.
pub(super) fn move_to(set: &'static Set, to: u8) {
    let control = CONTROL.lock();
    let fd = set.outer.fd();
    let from = set.cq.load(Ordering::Relaxed);
    // Another thread of the set may have been faster.
    let is_there = from == u32::from(to) + 1;
    if from == 0 || is_there || wait::add_doorbell(fd, to, 0).is_err() {
        return process::leave_cq(to);
    }
    set.cq.store(u32::from(to) + 1, Ordering::Release);
    // Publishers know the old queue: each connection is looked at, and armed for the new one.
    let mut list = set.list.lock();
    for index in 1..=control.used {
        if reg(index).is_some_and(|reg| reg.managed.get() && reg.is_in(set)) {
            push(&mut list, index);
        }
    }
    let wake = list.sleepers > 0;
    drop(list);
    if wake {
        ring(set);
    }
    let from = (from - 1) as u8;
    wait::remove_doorbell(fd, from);
    process::leave_cq(from);
}
