//! epoll_wait: turns over the lanes and the kernel's part of a set, and the sleep when neither has anything.

mod looks;
#[cfg(test)]
mod tests;

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use shunpike_shm::arena::mode;

use self::looks::{Armed, arm, hot, look, scan};
use crate::host::host;
use crate::set::Set;
use crate::sets::ctl::move_to;
use crate::sets::entries::{end_lingering_of, has_had_room, restore_left};
use crate::sets::list::{news, next, push};
use crate::sets::refusal::{PUT_BACK_NS, bar_of, has_lost, put_back};
use crate::sets::regs::{BELL, CONTROL, Control, Reg, has_tags, index_and_turn, managed_after, reg, untag};
use crate::sets::standing::stand_all;
use crate::sets::{EDGE, WAIT, asked, has_lanes, is_inherited, is_left, own, ring};
use crate::spin::spin;
use crate::table::Conn;
use crate::tls::{critical, thread};
use crate::trace::Sleep;
use crate::{above, call, clock, holders, link, process, session, state, told, tx, wait};

/// The kernel's part of a set is asked at least this often while lanes are busy, microseconds.
const KERNEL_US: u64 = 200;
/// ... and in each look for so long after its thread had to do with a connection on TCP, microseconds: who writes to such a one and
/// then to a lane may count on the order.
const MIXED_US: u64 = 10_000;
/// Events taken from the kernel in one call, where the program asks for no more.
const BATCH: usize = 128;
/// ... where it asks for few.
const FEW: usize = 8;

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
    is_quiet.then(|| {
        set.waits.fetch_add(WAIT + 1, Ordering::Relaxed);
        Kernels { set, before: set.now(), began: clock::ticks() }
    })
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
    epfd: i32,
    out: &mut [libc::epoll_event],
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    session::pump_if_news();
    own(set);
    set.waits.fetch_add(WAIT, Ordering::Relaxed);
    let deadline = call::deadline(timeout.filter(|&ns| ns > 0));
    let signals = call::restarts_before().0;
    // Whoever is late has yet to let signals in that the mask does not keep back: one that is pending ends the call.
    let mut owes_mask = timeout != Some(0) && !mask.is_null();
    // Once a look has found nothing, the next one is at the news of all link groups.
    let mut again = false;
    loop {
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
            let late = Some(u64::from(owes_mask));
            let left = if lanes && !complete { call::remaining(deadline).unwrap_or(late) } else { left };
            match sleep(set, epfd, out, left, mask, signals) {
                Ok(Some(told)) => {
                    n = told;
                    owes_mask = false;
                }
                Ok(None) => {}
                Err(errno) => {
                    wake_others(set);
                    return Err(errno);
                }
            }
        }
        // The first lane of a set may have come meanwhile, with what the kernel has told us of it: then the look was half of one.
        if n > 0 || complete && (lanes || !has_lanes(set)) {
            wake_others(set);
            return Ok(n);
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

/// A thread that goes back to the program leaves connections that are unarmed to the one that still sleeps, and news for which it may have
/// taken that one's bell.
fn wake_others(set: &'static Set) {
    let list = set.list.lock();
    let (sleeps, is_listed) = (list.sleepers > 0, list.len > 0);
    drop(list);
    let has_news = || {
        let cq = set.cq.load(Ordering::Acquire).checked_sub(1);
        cq.is_some_and(|cq| link::all().any(|link| link.has_news(cq as u8)))
    };
    let wake = sleeps && (is_listed || has_news());
    if wake {
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
    let due =
        complete || now < list.mixed_until || now.wrapping_sub(list.kernel_at) > clock::from_us(KERNEL_US);
    // Where the kernel had enough for the whole of `out` last time, it is the lanes' turn.
    let lanes_first = core::mem::take(&mut list.kernel_filled);
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
    if due && lanes_first {
        // Held: what a scan told of does not become the kernel's before that is asked.
        let control = CONTROL.lock();
        n += scan(set, set.list.lock(), out, |_| false);
        if n < out.len() {
            n += of_kernel(&mut out[n..], Some(&control));
            // The kernel may have told of lanes, too.
            n += scan(set, set.list.lock(), &mut out[n..], |reg| reg.reported.get() > before);
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
    scan(set, set.list.lock(), &mut out[n..], |reg| n > 0 && reg.ours_since.get() > before)
}

/// The kernel's part of the set: its own events go to the program, ours are looked at. `control`: for who holds it.
///
/// Not into the program's array, which beyond its events must stay as it is; a large one serves itself, as the kernel
/// tells of what is level-triggered once in a call only.
fn kernel(
    set: &'static Set,
    epfd: i32,
    out: &mut [libc::epoll_event],
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
    control: Option<&Control>,
) -> Result<usize, Errno> {
    const NONE: libc::epoll_event = libc::epoll_event { events: 0, u64: 0 };
    asked::asking(set, || match out.len() {
        // Clearing the larger one takes as long as all the rest.
        0..=FEW => kernel_by(&mut [NONE; FEW], set, epfd, out, (timeout, mask), control),
        _ => kernel_by(&mut [NONE; BATCH], set, epfd, out, (timeout, mask), control),
    })
}

/// ... by way of `batch`.
#[inline(never)]
fn kernel_by(
    batch: &mut [libc::epoll_event],
    set: &'static Set,
    epfd: i32,
    out: &mut [libc::epoll_event],
    (mut timeout, mut mask): (Option<u64>, *const libc::sigset_t),
    control: Option<&Control>,
) -> Result<usize, Errno> {
    let mut n = 0;
    // Those of ours that stand are told of in each call, by turns with what the program has there. So may be one that nobody can change any
    // more: its number is closed, and another process has the connection.
    let (mut stood, mut ours) = (0, 0);
    while n < out.len() {
        let room = &mut out[n..];
        let (most, direct) = (room.len(), room.len() > batch.len());
        let into = if direct { &mut *room } else { &mut batch[..most] };
        let began = clock::ticks();
        let got = match (host().epoll)(epfd, into, timeout, mask) {
            Ok(got) => got,
            Err(_) if n > 0 => break,
            Err(errno) => return Err(errno),
        };
        if got < most {
            set.told_all.store(began, Ordering::Relaxed);
        }
        let Sorted { kept, has_more, stands } = sort_out(set, &mut into[..got], control);
        stood += stands;
        ours += got - kept;
        if !direct {
            room[..kept].copy_from_slice(&batch[..kept]);
        }
        n += kept;
        // Tags of ours took the place of what the kernel may have for the program. Not where it had something: a
        // second call would report what is level-triggered a second time.
        let managed = set.managed.load(Ordering::Relaxed);
        let has_all = got < most || stood > managed;
        if has_all && !has_more || n > 0 || ours > managed as usize + BATCH {
            break;
        }
        (timeout, mask) = (Some(0), core::ptr::null());
    }
    if n == out.len() {
        set.list.lock().kernel_filled = true;
    }
    Ok(n)
}

/// What an event of the kernel's comes to that has our tag.
enum Told {
    /// It is for the program.
    Event(libc::epoll_event),
    /// The kernel tells the program for itself, next time.
    Again,
    /// Nothing, or a connection that is to be looked at.
    Ours,
    /// Such a one, of which the kernel may tell again next time: once for each before all else that it has by then.
    Stands,
}

/// What the kernel has told.
#[derive(Default)]
struct Sorted {
    /// How much is for the program.
    kept: usize,
    /// The kernel has something again.
    has_more: bool,
    /// How much of it is told of in each call.
    stands: u32,
}

/// Of what the kernel has told, keeps at the beginning what is for the program. Ours is looked at.
fn sort_out(set: &'static Set, events: &mut [libc::epoll_event], control: Option<&Control>) -> Sorted {
    let mut sorted = Sorted::default();
    for at in 0..events.len() {
        let event = events[at];
        let told = match untag(event.u64) {
            None => Told::Event(event),
            Some(BELL) => Told::Ours,
            Some(word) => tcp_news(set, word, event.events, control),
        };
        match told {
            Told::Event(event) => {
                events[sorted.kept] = event;
                sorted.kept += 1;
            }
            Told::Again => sorted.has_more = true,
            Told::Ours => {}
            Told::Stands => sorted.stands += 1,
        }
    }
    sorted
}

/// The kernel reports the TCP socket of a registration that has our tag.
fn tcp_news(set: &'static Set, word: u32, events: u32, control: Option<&Control>) -> Told {
    let (index, turn) = index_and_turn(word);
    let _control = control.is_none().then(|| CONTROL.lock());
    let mut list = set.list.lock();
    let Some(reg) = reg(index).filter(|reg| reg.is_in(set)) else { return Told::Ours };
    if reg.turn.get() != turn {
        // Void, or what another process has the kernel tell of the set that it shares with us.
        if reg.managed.get() {
            reg.dirty.set(true);
            push(&mut list, index);
        }
        let may_stand = reg.managed.get() || reg.conn.get().is_some_and(|conn| holders::shared(conn.block));
        return if may_stand { Told::Stands } else { Told::Ours };
    }
    let is_news = is_news(reg, events) && is_asked_for(reg, events) && !is_of_debt(reg, events);
    if reg.managed.get() {
        reg.dirty.set(true);
        reg.edge.set(reg.edge.get() || is_news);
        push(&mut list, index);
        let is_level = reg.stands.get() != 0 && reg.stands.get() & EDGE == 0;
        return if is_level { Told::Stands } else { Told::Ours };
    }
    if reg.lingers.get() {
        return if is_news && end_lingering_of(reg, index) { Told::Again } else { Told::Ours };
    }
    if reg.lost.get() {
        let events = events & (reg.events.get() | (libc::EPOLLERR | libc::EPOLLHUP) as u32);
        let event = libc::epoll_event { events, u64: reg.data.get() };
        return if events != 0 { Told::Event(event) } else { Told::Ours };
    }
    // A one-shot on TCP. One that has fired still has the kernel's EPOLLERR and EPOLLHUP when it was restored.
    // One of another process's tags may be that of any of ours.
    let fires = reg.tagged.get() && !reg.disarmed.replace(true);
    if fires { Told::Event(libc::epoll_event { events, u64: reg.data.get() }) } else { Told::Ours }
}

/// Whether what the kernel tells of our entry is more than the program has been told. The first event of an entry is what stood when it was
/// made. Of the stream's end the kernel tells twice (tcp_fin, then tcp_data_ready, net/ipv4/tcp_input.c), to whoever asks in between,
/// and a look of ours may have come before both.
fn is_news(reg: &Reg, events: u32) -> bool {
    let Some(known) = reg.known.take() else { return true };
    // Off its lanes nobody counts the calls that find no room, and none of its edges may be lost.
    let may_be_room = || reg.lingers.get() && known.has_sent(reg.fd.get());
    if known.has_more(reg.fd.get()) || may_be_room() {
        return true;
    }
    if !known.is_over() {
        return false;
    }
    reg.known.set(Some(known));
    // Errors and notices come one after the other, and room is an edge each time that a call has found none.
    let is_error = events & (libc::EPOLLERR | libc::EPOLLPRI) as u32 != 0;
    is_error || reg.conn.get().is_none_or(|conn| is_in_want(reg, conn))
}

/// Whether news of our entry, which asks for all, are some of the program's. Room alone is not for a program that asks for bytes only.
/// Bytes alone are not for one that asks for room only, unless TCP may have had none. Ends and errors are for everybody.
fn is_asked_for(reg: &Reg, events: u32) -> bool {
    let are_bytes = events & !(told::IN | told::OUT) == 0;
    if are_bytes && events & told::IN == 0 && reg.events.get() & told::OUT == 0 {
        return false;
    }
    let may_be_room = |conn: Conn| {
        let is_on_tcp = conn.block.tx.mode.load(Ordering::Acquire) != mode::LANE;
        // Off its lanes nobody counts the calls that find no room.
        reg.lingers.get() || is_on_tcp && (is_in_want(reg, conn) || !has_had_room(reg))
    };
    !are_bytes || reg.events.get() & told::IN != 0 || reg.conn.get().is_none_or(may_be_room)
}

/// Whether room alone shows because the bytes came that a lane had owed: the program had been told of them by the lane, and has read them.
/// Not where TCP may have had no room, or anything came behind them.
fn is_of_debt(reg: &Reg, events: u32) -> bool {
    let is_paid = |conn: Conn| {
        let half = &conn.block.rx;
        let end = half.debt_end.load(Ordering::Relaxed);
        end != 0 && half.tcp_bytes.load(Ordering::Relaxed) == end
    };
    // Off its lanes nobody counts the calls that find no room: not behind one that went by TCP.
    let has_sent = |conn: Conn| {
        let guard = conn.block.tx.lock(critical());
        let half = guard.held();
        half.tcp_bytes.load(Ordering::Relaxed) != half.own().start.load(Ordering::Relaxed)
    };
    let is_debts = |conn: Conn| is_paid(conn) && !is_in_want(reg, conn) && !has_sent(conn);
    events & !told::OUT == 0 && reg.conn.get().is_some_and(is_debts) && has_had_room(reg)
}

/// Whether a call has found no room since the program was told of some.
fn is_in_want(reg: &Reg, conn: Conn) -> bool {
    reg.seen.get() != reg.seen.get().with_room(conn.block)
}

/// Arms everything, declares the sleep, looks once more, and waits in the kernel. `None`: there were news before.
fn sleep(
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
        asked::sleeps(set, &mut list);
        drop(list);
        if let Some(cq) = set.cq.load(Ordering::Acquire).checked_sub(1) {
            link::all().for_each(|link| link.declare_sleep(cq as u8));
            if link::all().any(|link| link.has_news(cq as u8)) {
                asked::wakes(set, &mut set.list.lock());
                return Ok(None);
            }
        }
        drop(critical);
        // By signals that were kept back until here.
        if call::ends_wait(signals, mask) {
            asked::wakes(set, &mut set.list.lock());
            return Err(Errno::INTR);
        }
        asleep = Some(wait::Asleep::begin(Sleep::Set, epfd));
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
        asked::wakes(set, &mut list);
        list.kernel_at = clock::ticks();
    }
    let n = result?;
    Ok(Some(if n == 0 { 0 } else { n + of_lanes(set, out, n, before) }))
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
    if fds[0].revents != 0 { kernel(set, epfd, out, Some(0), core::ptr::null(), None) } else { Ok(0) }
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
