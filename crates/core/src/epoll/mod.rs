//! epoll_wait: turns over the lanes (`looks`) and the kernel's part of a set (`kernel`), and the `sleep` when neither has anything.

mod kernel;
mod looks;
mod sleep;
#[cfg(test)]
mod tests;

use core::ops::Range;
use core::sync::atomic::Ordering;

use rustix::io::Errno;

use self::kernel::{kernel, sort_out};
use self::looks::{hot, scan};
use self::sleep::sleep;
use crate::set::Set;
use crate::sets::entries::restore_left;
use crate::sets::list::news;
use crate::sets::refusal::{bar_of, has_lost, put_back};
use crate::sets::regs::{CONTROL, Control, has_tags, reg};
use crate::sets::standing::stand_all;
use crate::sets::{WAIT, asked, has_lanes, is_inherited, is_left, own, ring};
use crate::spin::spin;
use crate::tls::{critical, thread};
use crate::{above, call, clock, link, session, sets};

/// The kernel's part of a set is asked at least this often while lanes are busy, microseconds.
const KERNEL_US: u64 = 200;
/// The kernel's part is asked in each look for so long after its thread had to do with a connection on TCP, microseconds: who writes to such a one and
/// then to a lane may count on the order.
const MIXED_US: u64 = 10_000;
/// A set's wait that libc's own call does, into the program's array.
pub struct Kernels {
    set: &'static Set,
    before: u64,
    began: u64,
}

/// Whether libc's own call does: there is no lane in the set, and nobody waits for the broker's word. [`Kernels::is_all`] follows
/// it: a lane may come meanwhile, by another thread or a handler, and the kernel then tells of tags of ours.
#[inline]
pub fn kernels(set: &'static Set) -> Option<Kernels> {
    let is_quiet = !has_lanes(set)
        && !has_lost(set)
        && !is_inherited(set)
        && !session::has_news()
        && crate::eager::attention().is_none();
    if !is_quiet {
        return None;
    }
    // SeqCst, as is what `has_lanes` reads: whoever leaves a set with lanes finds this wait, or this one finds the lanes.
    set.waits.fetch_add(WAIT + 1, Ordering::SeqCst);
    if has_lanes(set) {
        set.waits.fetch_sub(WAIT + 1, Ordering::Relaxed);
        return None;
    }
    Some(Kernels { set, before: set.now(), began: clock::ticks() })
}

impl Kernels {
    /// libc's call has returned.
    #[inline(always)]
    pub fn returned(&self) {
        self.set.waits.fetch_add(WAIT - 1, Ordering::Relaxed);
    }

    /// Whether libc's call, which has told of `told` events and had room for so many, was all of it: no set of the process ever had a lane.
    #[inline]
    pub fn is_all(&self, told: i32, room: i32) -> bool {
        if (0..room).contains(&told) {
            self.set.told_all.store(self.began, Ordering::Relaxed);
        }
        told < 0 || !has_tags()
    }

    /// After a call for which it may not have been, with what it has told of in `out`: how many of these there are for the program,
    /// at the beginning of it. `None`: wait on, for what is left of the time.
    #[inline(never)]
    pub fn end(&self, out: &mut [libc::epoll_event]) -> Option<usize> {
        let n = sort_out(self.set, out, None).kept;
        if n == 0 {
            return (out.is_empty() && !has_lanes(self.set)).then_some(0);
        }
        let n = n + of_lanes(self.set, out, n, self.before);
        if has_lanes(self.set) {
            wake_others(self.set);
        }
        Some(n)
    }
}

/// epoll_wait and its kin. `timeout` in nanoseconds. Not for an `out` of nothing.
pub fn wait(
    set: &'static Set,
    mut epfd: i32,
    out: &mut [libc::epoll_event],
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    session::pump_if_news();
    set.waits.fetch_add(WAIT, Ordering::Relaxed);
    let deadline = call::deadline(timeout.filter(|&ns| ns > 0));
    let signals = call::restarts_before().0;
    // Whoever is late has yet to let signals in that the mask does not keep back: one that is pending ends the call.
    let mut owes_mask = timeout != Some(0) && !mask.is_null();
    // Once a look has found nothing, the next one is at the news of all link groups.
    let mut again = false;
    loop {
        if again {
            epfd = sets::number_of(set, epfd)?;
        }
        // Also where a child has begun to wait for it meanwhile.
        own(set);
        let left = match call::remaining(deadline) {
            _ if timeout == Some(0) => Some(0),
            Err(_) => Some(u64::from(owes_mask)),
            Ok(left) => left,
        };
        if has_lost(set) {
            put_back(&CONTROL.lock(), set);
        }
        let lanes = has_lanes(set);
        let complete = left == Some(0);
        let mut n = if lanes { turn(set, epfd, out, complete, complete || again) } else { 0 };
        if lanes && n == 0 && !complete && spin(left, || hot(set)) {
            n = turn(set, epfd, out, false, true);
        }
        if n == 0 && (!lanes || !complete) {
            if call::ends_wait(signals, mask) {
                wake_others(set);
                return Err(Errno::INTR);
            }
            // The look and the spin were part of the program's time.
            let (late, in_time) = (Some(u64::from(owes_mask)), call::remaining(deadline));
            let left = if lanes && !complete { in_time.unwrap_or(late) } else { left };
            match sleep(set, epfd, out, left, mask, signals) {
                Ok(Some(told)) => {
                    n = told;
                    // What is ours alone the kernel tells before it lets signals in.
                    owes_mask &= in_time.is_ok();
                }
                Ok(None) => {}
                Err(errno) => {
                    wake_others(set);
                    return Err(errno);
                }
            }
        }
        if n > 0 {
            wake_others(set);
            return Ok(n);
        }
        // The first lane of a set may have come meanwhile, with what the kernel has told us of it: then the look was half of one.
        if complete && (lanes || !has_lanes(set)) {
            wake_others(set);
            // A handler that ran before the time was over would have ended the kernel's wait.
            let ends = timeout != Some(0) && call::ends_wait(signals, mask);
            return if ends { Err(Errno::INTR) } else { Ok(0) };
        }
        again = true;
        if lanes && bar_of(set).is_some() {
            // The kernel told of nothing.
            stand_all(set);
        }
    }
}

/// The kernel has told the program of `n` events since `before`: how many more there are of lanes that came meanwhile.
fn of_lanes(set: &'static Set, out: &mut [libc::epoll_event], n: usize, before: u64) -> usize {
    if !has_lanes(set) {
        return 0;
    }
    news(set, true);
    scan_after(set, out, n, before)
}

/// A thread that goes back to the program leaves connections that are unarmed to one that still sleeps, and news for which it may have taken
/// that one's bell. Whoever rang has taken the sleep for answered: it is declared anew for those that sleep on (models/cq.pml, ONESET).
fn wake_others(set: &'static Set) {
    let list = set.list.lock();
    let (sleeps, is_listed) = (list.sleepers > 0 || set.has_waits_of_libc(), list.len > 0);
    drop(list);
    let Some(cq) = set.cq.load(Ordering::Acquire).checked_sub(1).filter(|_| sleeps) else { return };
    let finds_news = || {
        let _critical = critical();
        let ours = || link::all().filter(|link| !link.is_inherited());
        // Also where one stands: a publisher may have rung for that, and be about to clear it.
        ours().for_each(|link| link.declare_sleep(cq as u8));
        ours().any(|link| link.has_news(cq as u8))
    };
    if is_listed || finds_news() {
        ring(set);
    }
}

/// One look at lanes and, when it is time or the look must be complete, at the kernel's part. `all`: with the news of all link
/// groups. Nothing is told of twice, as the kernel would not: other threads take connections from the kernel and give them back
/// meanwhile.
fn turn(set: &'static Set, epfd: i32, out: &mut [libc::epoll_event], complete: bool, all: bool) -> usize {
    news(set, all);
    let now = clock::ticks();
    let mut list = set.list.lock();
    if has_used_tcp() {
        list.mixed_until = now + clock::from_us(MIXED_US);
    }
    // Where the kernel had enough for the whole of `out` last time, it has more, and it is the lanes' turn.
    let lanes_first = core::mem::take(&mut list.kernel_filled);
    let is_late = now.wrapping_sub(list.kernel_at) > clock::from_us(KERNEL_US);
    let due = complete || lanes_first || now < list.mixed_until || is_late;
    if due {
        list.kernel_at = now;
    }
    drop(list);
    if due {
        asked::recall();
    }
    let of_kernel = |out: &mut [libc::epoll_event], control: Option<&Control>| {
        kernel(set, epfd, out, Some(0), core::ptr::null(), control).unwrap_or(0)
    };
    let before = set.now();
    let mut n = 0;
    if lanes_first {
        // Held: what a scan told of does not become the kernel's before that is asked.
        let control = CONTROL.lock();
        n += scan(set, set.list.lock(), out, |_| false);
        if n < out.len() {
            let told = of_kernel(&mut out[n..], Some(&control));
            let told = once(set, out, 0..n, told);
            // The kernel may have told of lanes, too.
            let more = scan(set, set.list.lock(), &mut out[n + told..], |reg| reg.reported.get() > before);
            n += told + once(set, out, n..n + told, more);
        } else {
            // Then it is the kernel's.
            set.list.lock().kernel_at = 0;
        }
    } else {
        n += if due { of_kernel(out, None) } else { 0 };
        n += scan_after(set, out, n, before);
    }
    // Last: what goes back to the kernel may be told of already, and the kernel would tell of it a second time.
    if settle_unsettled(set) && n == 0 && complete {
        n = of_kernel(out, None);
    }
    n
}

/// Whether it has since it was last asked.
fn has_used_tcp() -> bool {
    let thread = thread();
    let calls = thread.tcp_calls.load(Ordering::Relaxed);
    calls != thread.tcp_known.load(Ordering::Relaxed) && {
        thread.tcp_known.store(calls, Ordering::Relaxed);
        true
    }
}

/// `scan`, when the kernel has told of `n` since `before`: what it has ceded since may be among them.
fn scan_after(set: &'static Set, out: &mut [libc::epoll_event], n: usize, before: u64) -> usize {
    let more = scan(set, set.list.lock(), &mut out[n..], |reg| n > 0 && reg.ours_since.get() > before);
    once(set, out, 0..n, more)
}

/// Of the `more` events behind `told`, those that `told` has not: one that it has is added there. Another process that shares the set may
/// have given an entry back to the kernel, which tells of it by the program's own word, as we do until the lane is over here, too.
fn once(set: &Set, out: &mut [libc::epoll_event], told: Range<usize>, more: usize) -> usize {
    if more == 0 || told.is_empty() || !set.shared.load(Ordering::Relaxed) {
        return more;
    }
    let (before, more) = out[..told.end + more].split_at_mut(told.end);
    let mut kept = 0;
    for at in 0..more.len() {
        let event = more[at];
        match before[told.clone()].iter_mut().find(|same| same.u64 == event.u64) {
            Some(same) => same.events |= event.events,
            None => {
                more[kept] = event;
                kept += 1;
            }
        }
    }
    kept
}

/// Connections whose lanes closed under a look go back to the kernel, now that no lock is held. Says whether there were
/// such.
fn settle_unsettled(set: &'static Set) -> bool {
    let mut any = false;
    loop {
        let found = {
            let list = set.list.lock();
            let mut at = list.head;
            let mut found = None;
            while let Some(reg) = reg(at) {
                if let Some(conn) = reg.conn.get()
                    && (conn.block.life.is_unsettled() || is_left(conn))
                {
                    found = Some((conn, reg.fd.get()));
                    break;
                }
                at = reg.next_active.get();
            }
            found
        };
        match found {
            Some((conn, _)) if is_left(conn) => restore_left(set, conn),
            Some((conn, fd)) => above::settle(conn, fd),
            None => return any,
        }
        any = true;
    }
}
