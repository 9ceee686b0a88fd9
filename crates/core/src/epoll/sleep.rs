//! The sleep of a thread that waits for a set.

use core::sync::atomic::Ordering;

use rustix::io::Errno;

use super::kernel::kernel;
use super::looks::{Armed, arm, look};
use super::of_lanes;
use crate::host::host;
use crate::set::{List, Set};
use crate::sets::ctl::move_to;
use crate::sets::list::{next, push};
use crate::sets::refusal::{PUT_BACK_NS, has_lost};
use crate::sets::regs::{Reg, managed_after, reg};
use crate::sets::{EDGE, asked, number_of, sharing};
use crate::table::Conn;
use crate::tls::critical;
use crate::trace::Sleep;
use crate::wait::{self, Waiter};
use crate::{above, call, clock, holders, link, process, session, state, tx};

/// Arms everything, declares the sleep, looks once more, and waits in the kernel. `None`: there were news before.
pub(super) fn sleep(
    set: &'static Set,
    epfd: i32,
    out: &mut [libc::epoll_event],
    left: Option<u64>,
    mask: *const libc::sigset_t,
    signals: u32,
) -> Result<Option<usize>, Errno> {
    asked::recall();
    let mut bound = if left == Some(0) { None } else { unheard(set) };
    let lanes = set.managed.load(Ordering::SeqCst) > 0;
    let mut asleep = None;
    let before = set.now();
    if lanes && left != Some(0) {
        let cq = set.cq.load(Ordering::Acquire).checked_sub(1);
        if let Some(better) = cq.and_then(|cq| process::better_cq(cq as u8)) {
            move_to(set, better);
        }
        asked::mark();
        let critical = critical();
        let mut list = set.list.lock();
        let mut news = false;
        for _ in 0..list.len {
            let Some((index, reg, conn)) = next(&mut list) else { continue };
            let level = look(reg, conn);
            let Armed { news: stays, shown } = arm(set, reg, conn, &level);
            let wanted = reg.events.get() | (libc::EPOLLERR | libc::EPOLLHUP) as u32;
            let reported = reg.events.get() & EDGE == 0
                || reg.edge.get()
                || level.is_fresh(reg.events.get(), &reg.seen.get());
            news |= stays || level.settled || level.events & wanted != 0 && reported;
            let full = level.full.then(|| tx::looks_again(&conn.block.tx));
            bound = bound.into_iter().chain(full).chain(shown).min();
            news |= state::modes(conn.block) != level.modes;
            if stays
                || level.full
                || shown.is_some()
                || state::modes(conn.block) != level.modes
                || level.settled
                || level.events & wanted != 0 && reported
                || level.keep_looking && reg.events.get() & EDGE == 0
            {
                push(&mut list, index);
            }
            if holders::shared(conn.block) {
                bound = Some(bound.unwrap_or(u64::MAX).min(wait::SHARED_BOUND_NS));
            }
        }
        if news {
            return Ok(None);
        }
        if !sharing::sleeps(set, &list) {
            return Ok(None);
        }
        asked::sleeps(set, &mut list);
        drop(list);
        let waiter = match set.cq.load(Ordering::Acquire).checked_sub(1) {
            None => Waiter::unrung(),
            Some(cq) => {
                let ours = || link::all().filter(|link| !link.is_inherited());
                let declare = || ours().for_each(|link| link.declare_sleep(cq as u8));
                let has_news = || ours().any(|link| link.has_news(cq as u8));
                let Some((waiter, ())) = Waiter::declare(declare, has_news) else {
                    wakes(set, &mut set.list.lock());
                    return Ok(None);
                };
                waiter
            }
        };
        drop(critical);
        // By signals that were kept back until here.
        if call::ends_wait(signals, mask) {
            wakes(set, &mut set.list.lock());
            return Err(Errno::INTR);
        }
        asleep = Some(wait::Asleep::begin(waiter, Sleep::Set, epfd));
    }
    let until_put_back = has_lost(set).then_some(PUT_BACK_NS);
    let shortest = left.into_iter().chain(bound).chain(until_put_back).min();
    let result = match crate::eager::attention().filter(|_| left != Some(0)) {
        Some(session) => attentive(set, epfd, out, (shortest, session), mask),
        None => kernel(set, epfd, out, shortest, mask, None),
    };
    if let (Some(asleep), Some(cq)) = (asleep, set.cq.load(Ordering::Relaxed).checked_sub(1)) {
        asleep.end_on(cq as u8);
    }
    if lanes && left != Some(0) {
        let mut list = set.list.lock();
        wakes(set, &mut list);
        list.kernel_at = clock::ticks();
    }
    let n = result?;
    Ok(Some(if n == 0 { 0 } else { n + of_lanes(set, out, n, before) }))
}

fn wakes(set: &Set, list: &mut List) {
    asked::wakes(set, list);
    sharing::wakes(set, list);
}

/// How long it is borne yet that bytes sent on the set's connections are heard of by nobody, nanoseconds. Those that were noted are looked at
/// when that is over for one: most have been read by then.
fn unheard(set: &'static Set) -> Option<u64> {
    let from = set.unheard_from.load(Ordering::Relaxed);
    if from == 0 {
        return None;
    }
    let left = from.saturating_sub(clock::ticks());
    // The clock may have been set back meanwhile, with the whole machine.
    if (1..=clock::from_us(tx::unheard::grace_us())).contains(&left) {
        return Some(clock::to_ns(left).max(1));
    }
    let noted = set.take_unheard(&mut set.list.lock());
    let mut bound = None;
    let mut look_at = |index: u32, conn: Conn, fd: i32| {
        if let Some(left) = tx::unheard(conn, fd) {
            let at = clock::ticks() + clock::from_us(left / 1000);
            set.note_unheard(&mut set.list.lock(), index, at);
            bound = Some(bound.map_or(left, |least: u64| least.min(left)));
        }
        above::settle(conn, fd);
    };
    match noted {
        Some(noted) => {
            let known = |index: u32| {
                // One that has left, or is another set's by now, is not told of by this one.
                let _list = set.list.lock();
                let reg = reg(index).filter(|reg| reg.managed.get() && reg.is_in(set))?;
                Some((reg.conn.get().filter(is_noted)?, reg.fd.get()))
            };
            for index in noted {
                if let Some((conn, fd)) = known(index) {
                    look_at(index, conn, fd);
                }
            }
        }
        None => {
            let mut after = 0;
            let is_one = |reg: &Reg| reg.conn.get().is_some_and(|conn| is_noted(&conn));
            while let Some((index, conn, fd)) = managed_after(set, after, is_one) {
                look_at(index, conn, fd);
                after = index;
            }
        }
    }
    bound
}

fn is_noted(conn: &Conn) -> bool {
    conn.block.tx.unheard_since.load(Ordering::Relaxed) != 0
}

/// Sleeps as `kernel`, but also until the broker says something, which is attended to.
fn attentive(
    set: &'static Set,
    epfd: i32,
    out: &mut [libc::epoll_event],
    (left, (session, most)): (Option<u64>, (libc::pollfd, u64)),
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let mut fds = [libc::pollfd { fd: epfd, events: libc::POLLIN, revents: 0 }, session];
    (host().poll)(&mut fds, Some(left.map_or(most, |left| left.min(most))), mask)?;
    if fds[1].revents != 0 || session::is_refused() {
        session::pump();
    }
    // poll() looked anew by the number as it woke.
    let epfd = number_of(set, epfd)?;
    if fds[0].revents != 0 { kernel(set, epfd, out, Some(0), core::ptr::null(), None) } else { Ok(0) }
}
