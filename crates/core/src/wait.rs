//! Waiting: a spin perhaps ([`spin`]), then a nap, then a sleep, by the rules of models/wake.pml and models/cq.pml.
//!
//! A nap is a FUTEX_WAIT on the lane's own wait word: one system call on each side. It sees nothing of TCP, so it is
//! short, and the sleep follows. The sleeper's doorbell (an eventfd, see [`doorbell::new`](crate::doorbell::new)) sits edge-triggered in an
//! epoll instance of its own;
//! beside it the TCP fd tells of death and of bytes of a revoked lane.

use core::sync::atomic::{AtomicU64, Ordering};

use rustix::event;
use rustix::fd::{AsRawFd, IntoRawFd};
use rustix::io::Errno;
use shunpike_shm::arena::{Block, Half, wake_bucket};
use shunpike_shm::device::{ClientDevice, Own};
use shunpike_shm::lane::{Side, Wait, Words};

use crate::host::host;
use crate::policy::NAP_US;
use crate::sys::Res;
use crate::tls::{Thread, critical, thread};
use crate::trace::{self, Sleep};
use crate::{call, clock, descriptors, holders, link, process, session, spin, state, sys};

/// Longest sleep of somebody who shares its end with another process: a sender may be killed between
/// publishing and ringing while its sibling keeps TCP open (wake.pml, NOHELP).
pub const SHARED_BOUND_NS: u64 = 20_000_000;

/// Longest sleep without TCP in view, while the program leaves the kernel's notices unread.
const UNREAD_NS: u64 = 1_000_000;

/// How a sleep ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Woken {
    /// Something may have changed on the lane.
    Look,
    /// The TCP socket shows one of the events asked for, or an error.
    Tcp,
    /// The time is over.
    Timeout,
    /// A signal was handled.
    Interrupted,
}

/// Rings the doorbells of whoever sleeps on `side` of this lane, and wakes who naps, after a publish or consume.
#[inline(always)]
pub fn notify(block: &Block, words: &Words, side: Side) {
    if Own::awaited(words, side).declared() {
        notify_declared(block, words, side);
    }
}

/// As `notify`, where the caller publishes more at once: who naps is left alone until then, or until its nap is over.
#[inline(always)]
pub fn notify_of_part(block: &Block, words: &Words, side: Side) {
    let wait = Own::awaited(words, side);
    if wait.declared() && wait.cqs() != 0 {
        notify_declared(block, words, side);
    }
}

#[cold]
fn notify_declared(block: &Block, words: &Words, side: Side) {
    let wait = Own::awaited(words, side);
    let slot = block.slot.load(Ordering::Relaxed);
    let to = 1 - usize::from(block.side.load(Ordering::Relaxed) & 1);
    if let Some(link) = link::of(block) {
        link.post(to, wait.cqs(), slot);
    }
    // Ring first, clear then: a publisher killed in between has rung.
    words.answered(side, wait);
    // Clear first, wake then: who is about to nap finds another epoch. One killed in between leaves it the nap's length.
    if wait.naps() {
        thread().woke.store(true, Ordering::Relaxed);
        words.stamp(side, clock::stamp());
        sys::futex_wake(words.futex(side));
    }
}

/// Ends the naps of threads of ours on `side` of a lane that is over. Within a critical section.
pub fn wake_nappers(words: &Words, side: Side) {
    let wait = words.waiting(side);
    if wait.naps() {
        words.answered(side, wait);
        sys::futex_wake(words.futex(side));
    }
}

/// A thread that has said that it waits, and has found nothing in the look that followed: only such a one sleeps. Whoever brings news either
/// comes before that look or finds what was said (models/wake.pml, models/cq.pml).
pub struct Waiter(());

impl Waiter {
    /// `declare` says that the thread waits, and how it is told. `None`: there is something.
    #[inline(always)]
    pub fn declare<T>(declare: impl FnOnce() -> T, is_ready: impl FnOnce() -> bool) -> Option<(Self, T)> {
        let declared = declare();
        (!is_ready()).then_some((Self(()), declared))
    }

    /// One that waits for TCP alone, or looks again in a moment: nobody tells it of a lane.
    pub fn unrung() -> Self {
        Self(())
    }
}

/// A short wait for one side of a lane, declared and not yet begun.
pub struct Nap {
    waiter: Waiter,
    side: Side,
    futex: *const u32,
    declared: Wait,
}

/// How a nap ended.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Napped {
    /// Something may have changed on the lane.
    Look,
    /// Nothing came: it is time to sleep.
    Over,
    /// A signal was handled.
    Interrupted,
}

impl Nap {
    /// Longest nap, nanoseconds.
    const MOST_NS: u64 = NAP_US * 1000;

    /// Declares one, where it pays: not while waits are long, nor where a sibling in another process may be killed
    /// between publishing and waking. Within a critical section. Errors: what it comes to in its place.
    pub fn declare(
        block: &Block,
        half: &Half,
        (words, side): (&Words, Side),
        is_ready: impl FnOnce() -> bool,
    ) -> Result<Self, Napped> {
        if !spin::naps() || holders::shared(block) {
            return Err(if is_ready() { Napped::Look } else { Napped::Over });
        }
        let declare = || {
            let epoch = half.epoch.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
            words.declare_nap(side, epoch)
        };
        let (waiter, declared) = Waiter::declare(declare, is_ready).ok_or(Napped::Look)?;
        Ok(Self { waiter, side, futex: words.futex(side), declared })
    }

    /// Waits, at most so many nanoseconds. Outside of critical sections; the lane may be gone meanwhile.
    pub fn take(self, fd: i32, half: &Half, most: Option<u64>) -> Napped {
        let asleep = Asleep::begin(self.waiter, Sleep::Nap, fd);
        let handled = call::restarts_before().0;
        let bound = most.map_or(Self::MOST_NS, |most| most.min(Self::MOST_NS));
        let napped = sys::futex_wait(self.futex, self.declared.epoch(), bound);
        {
            // Looked up anew: the lane may be gone.
            let _critical = critical();
            let woken = state::whole_dmb(half)
                .filter(|_| napped.is_ok())
                .map_or(0, |dmb| dmb.words().woken(self.side));
            asleep.end(woken);
        }
        match napped {
            Err(Errno::TIMEDOUT) => {
                spin::slept(clock::from_us(bound / 1000));
                Napped::Over
            }
            // No handler of the program: libc's own, to cancel the thread perhaps, which the sleep attends to.
            Err(Errno::INTR) if call::restarts_before().0 == handled => Napped::Over,
            Err(Errno::INTR) => Napped::Interrupted,
            _ => Napped::Look,
        }
    }
}

/// A sleep or nap under way, for the statistics.
pub struct Asleep {
    how: trace::Sleep,
    fd: i32,
    since: u64,
}

impl Asleep {
    /// The thread goes to sleep over `fd`: the connection, the epoll set, or -1.
    pub fn begin(_waiter: Waiter, how: trace::Sleep, fd: i32) -> Self {
        process::count_sleep();
        trace::sleep(how, fd);
        let since = clock::ticks();
        session::look_in(since);
        Self { how, fd, since }
    }

    /// It runs again; `rung`: when it was last rung for, as the peer says. Who woke by itself has none to count.
    pub fn end(&self, rung: u64) {
        let slept = clock::ticks().wrapping_sub(self.since);
        let late = slept.checked_sub(rung.wrapping_sub(self.since));
        if let (Some(late), Some(waits)) = (late, process::waits()) {
            waits.wakes[wake_bucket(clock::to_us(late))].fetch_add(1, Ordering::Relaxed);
        }
        let in_place = late.is_some() && clock::is_from_here(rung);
        thread().in_place.store(in_place, Ordering::Relaxed);
        trace::wake(self.how, self.fd, clock::to_ns(slept), late.map(clock::to_ns));
    }

    /// It runs again, having slept for all that comes to queue `cq`.
    pub fn end_on(&self, cq: u8) {
        let with_news = link::all().filter(|link| link.has_news(cq));
        self.end(with_news.map(|link| link.rung(cq)).max().unwrap_or(0));
    }
}

/// Declares that whoever publishes (or consumes) must post to CQ `cq`. The caller looks at the ring once more.
pub fn arm(half: &Half, words: &Words, side: Side, cq: u8) {
    let epoch = half.epoch.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    words.declare(side, epoch, 1 << cq);
}

/// Declares that CQ `cq` goes to sleep for one side of a lane, and arms that.
pub fn declare(block: &Block, half: &Half, words: &Words, side: Side, cq: u8) {
    // The CQ first: who sees the lane armed finds the CQ asleep and rings. The other way round a publisher (of
    // bytes that we have read already, or one that only helps) could disarm the lane and not ring.
    if let Some(link) = link::of(block) {
        link.sleep_on(usize::from(block.side.load(Ordering::Relaxed) & 1), cq);
    }
    arm(half, words, side, cq);
}

/// CQ of the calling thread.
pub fn thread_cq() -> u8 {
    let thread = thread();
    own(thread);
    match thread.cq.load(Ordering::Relaxed) {
        0 => {
            let cq = process::take_cq();
            thread.cq.store(u32::from(cq) + 1, Ordering::Relaxed);
            cq
        }
        cq => (cq - 1) as u8,
    }
}

/// CQ of the calling thread, which is about to sleep: it may be time for another queue.
pub fn sleeping_cq() -> u8 {
    let cq = thread_cq();
    let Some(better) = process::better_cq(cq) else { return cq };
    let thread = thread();
    if let Some(sleeper) = thread.sleeper.load(Ordering::Relaxed).checked_sub(1) {
        if add_doorbell(sleeper as i32, better, 0).is_err() {
            process::leave_cq(better);
            return cq;
        }
        remove_doorbell(sleeper as i32, cq);
    }
    thread.cq.store(u32::from(better) + 1, Ordering::Relaxed);
    process::leave_cq(cq);
    better
}

/// The calling thread's private epoll instance, with its doorbell.
pub fn thread_sleeper() -> Result<i32, Errno> {
    let cq = thread_cq();
    let thread = thread();
    if let Some(fd) = thread.sleeper.load(Ordering::Relaxed).checked_sub(1) {
        return Ok(fd as i32);
    }
    if clock::ticks() < SLEEPER_AT.load(Ordering::Relaxed) {
        return Err(Errno::AGAIN);
    }
    let fd = new_sleeper(cq).inspect_err(|_| {
        SLEEPER_AT.store(clock::ticks() + clock::from_us(SLEEPER_US), Ordering::Relaxed);
    })?;
    thread.sleeper.store(fd as u32 + 1, Ordering::Relaxed);
    (host().owes)();
    Ok(fd)
}

/// One that could not be made (no descriptor left, a filter of system calls) is tried again after this long, microseconds.
const SLEEPER_US: u64 = 100_000;
static SLEEPER_AT: AtomicU64 = AtomicU64::new(0);

fn new_sleeper(cq: u8) -> Result<i32, Errno> {
    let fd = descriptors::internal(event::epoll::create(event::epoll::CreateFlags::CLOEXEC)?)?;
    match add_doorbell(fd.as_raw_fd(), cq, 0) {
        Ok(()) => Ok(fd.into_raw_fd()),
        Err(errno) => {
            descriptors::close(fd);
            Err(errno)
        }
    }
}

/// Adds doorbell `cq`, edge-triggered, to an epoll instance; its events carry `data`.
pub fn add_doorbell(epfd: i32, cq: u8, data: u64) -> Result<(), Errno> {
    let bell = process::doorbell(cq).ok_or(Errno::BADF)?;
    // A ring gives an edge of EPOLLOUT; EPOLLIN stands by the count, for when that is as full as can be.
    let events = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET;
    let mut event = libc::epoll_event { events: events as u32, u64: data };
    sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, bell, Some(&mut event)).map(drop)
}

/// Takes doorbell `cq` out of an epoll instance.
pub fn remove_doorbell(epfd: i32, cq: u8) {
    if let Some(bell) = process::doorbell(cq) {
        let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, bell, None);
    }
}

/// What the thread has of a process before a fork is not its own any more.
fn own(thread: &Thread) {
    let pid = process::pid();
    if thread.owner.load(Ordering::Relaxed) != pid {
        thread.owner.store(pid, Ordering::Relaxed);
        thread.sleeper.store(0, Ordering::Relaxed);
        thread.cq.store(0, Ordering::Relaxed);
    }
}

/// Closes what the calling thread has; at its end.
pub fn thread_ends() {
    let thread = thread();
    own(thread);
    if let Some(cq) = thread.cq.swap(0, Ordering::Relaxed).checked_sub(1) {
        process::leave_cq(cq as u8);
    }
    if let Some(fd) = thread.sleeper.swap(0, Ordering::Relaxed).checked_sub(1) {
        descriptors::close_number(fd as i32);
    }
}

/// Longest sleep that no doorbell can end, nanoseconds.
pub const UNRUNG_NS: u64 = 1_000_000;

/// Sleeps until the doorbell of this thread, `events` on the TCP fd, a signal, or `timeout` nanoseconds.
pub fn sleep(waiter: Waiter, block: &Block, fd: i32, events: i16, timeout: Option<u64>) -> Woken {
    // Where no descriptor is left for a doorbell: look again in a moment.
    let sleeper = thread_sleeper().unwrap_or(-1);
    let unrung = if sleeper < 0 { Some(UNRUNG_NS) } else { None };
    let asleep = Asleep::begin(waiter, Sleep::Call, fd);
    let bound = if holders::shared(block) { Some(SHARED_BOUND_NS) } else { None };
    let shortest = timeout.into_iter().chain(bound).chain(unrung).min();
    let mut fds = [
        libc::pollfd { fd, events, revents: 0 },
        libc::pollfd { fd: sleeper, events: libc::POLLIN, revents: 0 },
    ];
    let (mut slept, mut beyond) = poll_within_limit(&mut fds, shortest);
    if slept.is_ok() && fds[0].revents == libc::POLLERR && fds[1].revents == 0 {
        // What stands in the error queue is the program's to take away, and would end each sleep at once.
        fds[0].fd = -1;
        let nap = shortest.map_or(UNREAD_NS, |ns| ns.min(UNREAD_NS));
        slept = poll_within_limit(&mut fds, Some(nap)).0;
        beyond = shortest != Some(nap);
    }
    spin::slept(clock::ticks() - asleep.since);
    let rung = link::of(block).filter(|_| fds[1].revents != 0);
    asleep.end(rung.map_or(0, |link| link.rung(thread_cq())));
    match slept {
        Ok(0) if shortest == timeout && !beyond => Woken::Timeout,
        Ok(_) => {
            if fds[1].revents != 0 {
                consume_edge(sleeper);
            }
            if fds[0].revents != 0 { Woken::Tcp } else { Woken::Look }
        }
        Err(Errno::INTR) => Woken::Interrupted,
        Err(_) => Woken::Look,
    }
}

/// A sleep over descriptors of which the first is the program's. The kernel refuses more of them than a process may open, which the program
/// may have made as few as none: then less is watched, for a moment. Says, too, whether that is shorter than `timeout`.
fn poll_within_limit(fds: &mut [libc::pollfd; 2], timeout: Option<u64>) -> (Res, bool) {
    let mut slept = (host().poll)(fds, timeout, core::ptr::null());
    let brief = brief(timeout);
    let mut is_brief = false;
    for watched in [1, 0] {
        if slept == Err(Errno::INVAL) {
            is_brief = timeout != Some(brief);
            slept = (host().poll)(&mut fds[..watched], Some(brief), core::ptr::null());
        }
    }
    (slept, is_brief)
}

/// How long a sleep lasts that no doorbell can end.
pub fn brief(timeout: Option<u64>) -> u64 {
    timeout.map_or(UNRUNG_NS, |ns| ns.min(UNRUNG_NS))
}

/// Takes the doorbell's edge out of a private epoll instance.
pub fn consume_edge(sleeper: i32) {
    let mut event = [libc::epoll_event { events: 0, u64: 0 }];
    let _ = sys::epoll_wait(sleeper, &mut event, 0, core::ptr::null());
}
