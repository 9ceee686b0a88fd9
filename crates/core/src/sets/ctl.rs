//! How registrations change: by epoll_ctl, with a connection's mode, and with its descriptors.

use core::sync::atomic::Ordering;
use shunpike_shm::lifecycle::{Event, Phase};

use rustix::io::Errno;
use shunpike_shm::arena::{Block, mode};
use shunpike_wire::Reason;

use super::list::{pop, push};
use super::refusal::{bar_of, found, give_back_exclusive, has_lost, put_back, refuse};
use super::regs::{
    CONTROL, Changing, Control, Reg, allocate, bell_tag, find, glimpse, indices, kin, kin_of, reg, remove,
    tag, unmanage,
};
use super::{EDGE, EXCLUSIVE, ONESHOT, has_lanes, is_inherited, new_set, open_sets, own, ring, watch};
use crate::set::List;
use crate::set::Set;
use crate::table::{self, Conn, Entry};
use crate::tls::critical;
use crate::{above, holders, link, process, state, sys, told, wait};

/// What a connection on a lane is registered for in the kernel: news of TCP, once each.
const TCP_EVENTS: i32 = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLET;

/// How a change ended. Narrow, so that it stays in registers: programs make four changes for each message.
type Done = Result<(), Errno>;

/// epoll_ctl: done here for sockets that are or may come on a lane, by libc for the rest.
pub fn ctl(epfd: i32, op: i32, fd: i32, event: Option<libc::epoll_event>) -> Option<Done> {
    let conn = match table::look(fd) {
        Entry::Conn(conn) => Some(conn),
        Entry::Socket => None,
        Entry::Set(inner) if op == libc::EPOLL_CTL_ADD && fd != epfd => {
            watch(inner);
            return None;
        }
        _ => return None,
    };
    let set = match table::look(epfd) {
        Entry::Set(set) => set,
        Entry::None => {
            let set = new_set(epfd)?;
            table::set(epfd, Entry::Set(set));
            set
        }
        _ => return None,
    };
    own(set);
    let result = change(set, epfd, op, fd, conn, event)?;
    if let Some(conn) = conn
        && let Some(reason) = bar_of(set).filter(|_| on_lane(conn))
    {
        above::revoke_for_good(conn, fd, reason);
    }
    Some(result)
}

fn change(
    set: &'static Set,
    epfd: i32,
    op: i32,
    fd: i32,
    conn: Option<Conn>,
    event: Option<libc::epoll_event>,
) -> Option<Done> {
    // One that is just becoming managed is found so under CONTROL, if not here.
    if has_lanes(set)
        && let Some(known) = managed(glimpse(set, fd))
        && let Some(done) = change_managed(set, known, op, fd, event)
    {
        return Some(done);
    }
    let mut control = CONTROL.lock();
    let known = find(set, fd);
    if has_lost(set) {
        put_back(&control, set);
    }
    if let Some(known) = managed(known)
        && let Some(done) = change_managed(set, known, op, fd, event)
    {
        return Some(done);
    }
    let result = match (op, event) {
        (libc::EPOLL_CTL_ADD, Some(mut event)) => {
            if let Some((index, _)) = known.filter(|(_, reg)| reg.parked.get()) {
                let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None);
                remove(&mut control, index, fd);
            }
            let added = prepare(&mut control, set, fd, conn, event);
            // A one-shot is ours from the first: to change it when it has fired already would arm it twice.
            if let Some((index, reg)) = added.filter(|_| event.events & ONESHOT != 0) {
                event = as_asked(reg, index);
            }
            // Silent from the first: a thread that waits there would be told of TCP alone before `take_over`.
            let is_ours = conn.is_some_and(on_lane);
            if let Some((index, reg)) = added.filter(|_| is_ours && event.events & EXCLUSIVE == 0) {
                event = libc::epoll_event { events: EDGE, u64: tag(index, reg.turn.get()) };
            }
            let done = sys::epoll_ctl(epfd, op, fd, Some(&mut event));
            if done.is_ok() {
                // One that we still know was closed behind our back.
                if let Some((index, _)) = find(set, fd) {
                    remove(&mut control, index, fd);
                }
                add(&mut control, fd, conn, added, is_ours);
            } else if let Some((index, _)) = added {
                remove(&mut control, index, fd);
            }
            done
        }
        (libc::EPOLL_CTL_MOD, Some(mut event)) => match known {
            Some((_, reg)) if (event.events | reg.events.get()) & EXCLUSIVE != 0 => Err(Errno::INVAL),
            Some((index, reg)) => {
                let before = (reg.events.get(), reg.data.get(), reg.disarmed.get());
                reg.wish(event.events, event.u64, false);
                let done = tell_kernel(reg, index, as_asked);
                if done.is_err() {
                    let (events, data, disarmed) = before;
                    reg.wish(events, data, disarmed);
                }
                done
            }
            None => sys::epoll_ctl(epfd, op, fd, Some(&mut event)),
        },
        (libc::EPOLL_CTL_DEL, _) => {
            let is_lost = known.is_some_and(|(_, reg)| reg.lost.get());
            let done = if is_lost { Ok(()) } else { sys::epoll_ctl(epfd, op, fd, None) };
            if let (Ok(_), Some((index, _))) = (&done, known) {
                remove(&mut control, index, fd);
            }
            done
        }
        _ => return None,
    };
    Some(result)
}

/// A registration, if it seems to be managed.
#[inline]
fn managed(known: Option<(u32, &'static Reg)>) -> Option<(u32, &'static Reg)> {
    known.filter(|(_, reg)| reg.managed.get())
}

/// What the program wants of a registration on a lane: in the kernel it stands as ever, only our side of it changes. Under
/// the lock of the set's list alone, as programs may do it for every message. `None`: it is not managed, or has to be made
/// anew.
fn change_managed(
    set: &'static Set,
    (index, reg): (u32, &'static Reg),
    op: i32,
    fd: i32,
    event: Option<libc::epoll_event>,
) -> Option<Done> {
    let mut list = set.list.lock();
    // Now it stays so, and its descriptor with it.
    if !reg.managed.get() || !reg.is_in(set) || reg.fd.get() != fd {
        return None;
    }
    match (op, event) {
        (libc::EPOLL_CTL_ADD, Some(event)) if reg.parked.get() && event.events & EXCLUSIVE == 0 => {
            reg.parked.set(false);
            rearm(&mut list, index, reg, event);
        }
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, _) if reg.parked.get() => return Some(Err(Errno::NOENT)),
        (libc::EPOLL_CTL_MOD, Some(event)) if (event.events | reg.events.get()) & EXCLUSIVE != 0 => {
            return Some(Err(Errno::INVAL));
        }
        (libc::EPOLL_CTL_MOD, Some(event)) => rearm(&mut list, index, reg, event),
        (libc::EPOLL_CTL_DEL, _) => {
            reg.parked.set(true);
            reg.disarmed.set(true);
            pop(&mut list, index);
            return Some(Ok(()));
        }
        _ => return None,
    }
    let wake = list.sleepers > 0;
    drop(list);
    if wake {
        ring(set);
    }
    Some(Ok(()))
}

/// New wishes: what is there is news again.
fn rearm(list: &mut List, index: u32, reg: &Reg, event: libc::epoll_event) {
    reg.wish(event.events, event.u64, false);
    reg.edge.set(true);
    reg.dirty.set(reg.dirty.get() || event.events & EDGE != 0);
    push(list, index);
}

/// A registration that is not in the descriptor's list yet; `None` when there are more than we can keep.
fn prepare(
    control: &mut Control,
    set: &'static Set,
    fd: i32,
    conn: Option<Conn>,
    event: libc::epoll_event,
) -> Option<(u32, &'static Reg)> {
    let index = allocate(control)?;
    let reg = reg(index)?;
    reg.begin(set, fd, conn, event);
    Some((index, reg))
}

/// `is_ours`: its connection was on a lane when the kernel got the entry.
fn add(
    control: &mut Control,
    fd: i32,
    conn: Option<Conn>,
    added: Option<(u32, &'static Reg)>,
    is_ours: bool,
) {
    let Some((index, reg)) = added else {
        // More registrations than we can keep: this connection stays on TCP.
        if let Some(conn) = conn {
            conn.block.life.on(Event::Bar);
            state::note(conn.block, Reason::EpollSets);
        }
        return;
    };
    let Some(head) = table::regs(fd) else { return };
    reg.next.set(head.swap(index, Ordering::Relaxed));
    if is_ours || conn.is_some_and(on_lane) {
        take_over(control, index, true);
    }
}

fn on_lane(conn: Conn) -> bool {
    conn.block.rx.mode.load(Ordering::Relaxed) != mode::PLAIN
        || conn.block.life.is(Phase::Open)
        || conn.block.notices.are_ours() && link::of(conn.block).is_some()
}

/// Whether an epoll set watches TCP on behalf of `fd`, so that nobody else must ask how it is.
#[inline]
pub fn watches(fd: i32) -> bool {
    table::regs(fd).is_some_and(|head| head.load(Ordering::Relaxed) != 0)
}

/// `fd` is about to be closed. The kernel keeps its registrations while the connection has another descriptor,
/// and nobody can change them any more: they become the kernel's own before.
#[inline]
pub fn closing(conn: Conn, fd: i32) {
    if watches(fd) {
        leaving(conn, fd);
    }
}

fn leaving(conn: Conn, fd: i32) {
    // What stands in a parent's set is the parent's.
    let is_ours = |reg: &Reg| reg.set.get().is_some_and(|set| !is_inherited(set));
    // Once the number is closed, nobody can change an entry that lingers, and nobody knows the tag of an armed one-shot.
    let give_all_back = || {
        let _control = CONTROL.lock();
        for (index, reg) in indices(fd).filter_map(|index| reg(index).map(|reg| (index, reg))) {
            let is_tagged = reg.tagged.get() && !reg.managed.get() && !reg.disarmed.get();
            if is_ours(reg) && (reg.lingers.get() || is_tagged) {
                let _ = tell_kernel(reg, index, as_made);
            }
        }
    };
    if conn.block.dups.load(Ordering::Relaxed) != 0 || !holders::alone(conn.block) {
        give_all_back();
    }
    let here = || {
        conn.block.dups.load(Ordering::Relaxed) != 0
            && table::all()
                .any(|(other, entry)| other != fd && matches!(entry, Entry::Conn(other) if other == conn))
    };
    if conn.block.life.was_lent() && !here() && holders::alone(conn.block) {
        return deregister(fd);
    }
    if conn.block.dups.load(Ordering::Relaxed) == 0 || !on_lane(conn) {
        return;
    }
    let concerned = {
        let _control = CONTROL.lock();
        indices(fd).filter_map(reg).any(is_ours)
    };
    if concerned && here() {
        above::revoke_for_good(conn, fd, Reason::SharedInSet);
        restore(conn, || ());
        // `restore` may have left some more.
        give_all_back();
    }
}

/// The last descriptor is about to be closed, but the broker may hold the socket for a moment longer: the kernel
/// would go on reporting it, with data that the program is free to have given up by then.
fn deregister(fd: i32) {
    let _control = CONTROL.lock();
    for set in indices(fd).filter_map(reg).filter_map(|reg| reg.set.get()) {
        let _ = sys::epoll_ctl(set.epfd.load(Ordering::Relaxed), libc::EPOLL_CTL_DEL, fd, None);
    }
}

/// `fd` is closed, or about to be: the kernel drops its registrations (or reports them by a dup's grace).
#[inline]
pub fn forget(fd: i32) {
    if watches(fd) {
        drop_all(fd);
    }
}

fn drop_all(fd: i32) {
    let mut control = CONTROL.lock();
    while let Some(index) =
        table::regs(fd).map(|head| head.load(Ordering::Relaxed)).filter(|&index| index != 0)
    {
        remove(&mut control, index, fd);
    }
}

/// A connection comes on a lane: its registrations are answered from here.
pub fn manage(conn: Conn, fd: i32) {
    let mut control = CONTROL.lock();
    let mut manage = |fd| {
        for index in indices(fd) {
            // A managed one, which scans read, has it already.
            if let Some(reg) = reg(index).filter(|reg| reg.conn.get() != Some(conn)) {
                reg.conn.set(Some(conn));
            }
            take_over(&mut control, index, false);
        }
    };
    manage(fd);
    if conn.block.dups.load(Ordering::Relaxed) != 0 {
        let same = |entry| matches!(entry, Entry::Conn(other) if other == conn);
        table::all()
            .filter(|&(other, entry)| other != fd && same(entry))
            .for_each(|(other, _)| manage(other));
    }
}

/// Under CONTROL, and the kernel first: until our silent entry stands there, it tells of the connection itself, so that a
/// change of the registration is the kernel's to hear of, and waits for CONTROL. `is_new`: the program asks for it just now.
///
/// Where the kernel refuses an entry the set is marked ([`refuse`]), and the registration stays as the program made it.
fn take_over(control: &mut Control, index: u32, is_new: bool) {
    let Some(reg) = reg(index) else { return };
    let Some(set) = reg.set.get() else { return };
    // Before the doorbell, which is news of the set.
    let mut known = if reg.managed.get() { None } else { known(set, reg, is_new) };
    if let Some((_, is_told)) = &mut known {
        *is_told = *is_told && !is_queued_alone(set, reg);
    }
    if set.cq.load(Ordering::Relaxed) == 0 {
        let cq = process::take_cq();
        let added = wait::add_doorbell(set.epfd.load(Ordering::Relaxed), cq, bell_tag());
        if !matches!(added, Ok(()) | Err(Errno::EXIST)) {
            process::leave_cq(cq);
            return refuse(set, reg, index, is_new || known.is_some());
        }
        set.cq.store(u32::from(cq) + 1, Ordering::Release);
    }
    if !reg.managed.get()
        && let Err(errno) = tell_kernel(reg, index, silent)
    {
        if matches!(errno, Errno::NOENT | Errno::BADF) {
            // Closed behind our back, the kernel has it no more.
            let fd = reg.fd.get();
            return remove(control, index, fd);
        }
        return refuse(set, reg, index, is_new || known.is_some());
    }
    // Also one that is ours still: the connection may have left the link, and the list there, under which it became so.
    let first = reg.conn.get().and_then(|conn| link::registrations(conn.block));
    if let Some(first) = first.filter(|first| kin(first).all(|other| other != index)) {
        let _changing = Changing::begin(control);
        reg.next_kin.set(first.swap(index, Ordering::Relaxed));
    }
    reg.kin.set(first);
    {
        let mut list = set.list.lock();
        if !reg.managed.get() {
            reg.managed.set(true);
            reg.ours_since.set(set.tick());
            set.managed.fetch_add(1, Ordering::SeqCst);
            reg.known.set(known.map(|(shown, _)| shown));
            reg.edge.set(is_new || known.is_none_or(|(_, is_told)| !is_told));
            if let Some(conn) = reg.conn.get() {
                reg.seen.set(reg.seen.get().with_room(conn.block));
            }
        }
        if let Some(conn) = reg.conn.get() {
            let _critical = critical();
            reg.seen.set(reg.seen.get().of_lane(conn.block));
        }
        reg.dirty.set(true);
        push(&mut list, index);
    }
    // A thread that sleeps there has not armed this connection.
    ring(set);
}

/// Before an edge-triggered registration becomes ours: what TCP shows, and whether the program has been told of it. Who waits by
/// edges is told once, so a second time would be one too many, and none would be a hang. `None`: that cannot be known.
///
/// A one-shot that is armed has told of nothing, also where another thread has its event from the kernel just now: it carries our tag, and
/// is void with the next turn.
fn known(set: &Set, reg: &Reg, is_new: bool) -> Option<(sys::Shown, bool)> {
    if reg.events.get() & (EDGE | ONESHOT) != EDGE {
        return None;
    }
    let shown = sys::Shown::now(reg.fd.get())?;
    if is_new {
        return Some((shown, false));
    }
    // Our entry of the lane before, of which the kernel has yet to tell.
    if let Some(before) = reg.known.get().filter(|_| reg.lingers.get()) {
        return Some((shown, !before.has_more(reg.fd.get())));
    }
    // What stood before this look is told where the set has nothing more to tell.
    let epfd = set.epfd.load(Ordering::Relaxed);
    let is_idle = sys::poll_now(epfd, libc::POLLIN) == 0;
    // Room that has been there from the first is told by the first wait that has told of all.
    let is_asked_for =
        if reg.events.get() & told::IN != 0 { !libc::POLLOUT } else { !(libc::POLLIN | libc::POLLOUT) };
    let stands = shown.events & is_asked_for != 0;
    let is_told =
        is_idle || !stands && set.told_all.load(Ordering::Relaxed) > reg.asked_at.get() && has_had_room(reg);
    // What it waits for in vain now, a lane may have.
    Some((shown, is_told && shown.events & libc::POLLOUT != 0))
}

/// Whether the kernel has an event of the registration to tell, and no other of its set: of bytes, say, that were read meanwhile. Leaves an
/// entry that asks for nothing.
fn is_queued_alone(set: &Set, reg: &Reg) -> bool {
    let epfd = set.epfd.load(Ordering::Relaxed);
    let is_idle = || sys::poll_now(epfd, libc::POLLIN) == 0;
    let mut nothing = libc::epoll_event { events: EDGE, u64: reg.data.get() };
    let mut silence = || sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, reg.fd.get(), Some(&mut nothing));
    // One that lingers is of the lane before.
    !reg.lingers.get() && reg.events.get() & EXCLUSIVE == 0 && !is_idle() && silence().is_ok() && is_idle()
}

/// Whether so little has gone out that TCP's buffer has had room at all times: at most a page for each call beside the bytes, and the
/// kernel calls it writable up to two thirds.
pub(crate) fn has_had_room(reg: &Reg) -> bool {
    let Some(conn) = reg.conn.get() else { return false };
    let half = &conn.block.tx;
    let most =
        half.tcp_bytes.load(Ordering::Relaxed) + 4096 * u64::from(half.tcp_calls.load(Ordering::Relaxed));
    let room = sys::option::<i32>(reg.fd.get(), libc::SOL_SOCKET, libc::SO_SNDBUF).unwrap_or(0);
    most < room as u64 / 2
}

/// The set goes to queue `to`, which it has taken: pollers have come or gone. With no lock held.
pub(crate) fn move_to(set: &'static Set, to: u8) {
    let control = CONTROL.lock();
    let epfd = set.epfd.load(Ordering::Relaxed);
    let from = set.cq.load(Ordering::Relaxed);
    // Another thread of the set may have been faster.
    let is_there = from == u32::from(to) + 1;
    if from == 0 || is_there || wait::add_doorbell(epfd, to, bell_tag()).is_err() {
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
    wait::remove_doorbell(epfd, from);
    process::leave_cq(from);
}

/// What stands in the kernel for a registration on a lane.
fn silent(reg: &Reg, index: u32) -> libc::epoll_event {
    libc::epoll_event { events: TCP_EVENTS as u32, u64: tag(index, reg.turn.get()) }
}

/// ... for one on TCP.
///
/// A one-shot carries our tag also on TCP: only so do we know that it has fired, when its connection comes on
/// a lane before the program has armed it again. Not in a set of which no wait through the hooks was seen: there the program may look for
/// itself, and the connection gets no lane (`Reg::waited`).
pub(super) fn as_asked(reg: &Reg, index: u32) -> libc::epoll_event {
    let is_waited_for = reg.tagged.get() || reg.set.get().is_some_and(|set| set.waits() != 0);
    reg.tagged.set(reg.events.get() & ONESHOT != 0 && is_waited_for);
    match reg.events.get() {
        events if !reg.tagged.get() => libc::epoll_event { events, u64: reg.data.get() },
        _ if reg.disarmed.get() => libc::epoll_event { events: ONESHOT, u64: tag(index, reg.turn.get()) },
        events => libc::epoll_event { events, u64: tag(index, reg.turn.get()) },
    }
}

/// ... for one that the program has armed and that is ours no more.
fn as_made(reg: &Reg, _: u32) -> libc::epoll_event {
    reg.tagged.set(false);
    libc::epoll_event { events: reg.events.get(), u64: reg.data.get() }
}

/// Changes what stands in the kernel. EPOLLEXCLUSIVE cannot be changed, only made (epoll_ctl(2)). On an error all is as before, but for
/// an exclusive entry that the kernel does not take back: that one is lost until it does ([`put_back`]).
pub(super) fn tell_kernel(reg: &Reg, index: u32, what: fn(&Reg, u32) -> libc::epoll_event) -> Done {
    let Some(set) = reg.set.get() else { return Err(Errno::NOENT) };
    let (epfd, fd) = (set.epfd.load(Ordering::Relaxed), reg.fd.get());
    let before = (reg.turn.get(), reg.lingers.get(), reg.known.get(), reg.tagged.get());
    reg.next_turn();
    reg.lingers.set(false);
    reg.known.set(None);
    let mut event = what(reg, index);
    if reg.events.get() & EXCLUSIVE != 0 {
        if !reg.lost.get() {
            sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None)?;
        }
        let added = sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, Some(&mut event));
        return added.inspect(|()| found(reg)).inspect_err(|_| give_back_exclusive(set, reg, index));
    }
    let told = sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, Some(&mut event));
    if told.is_err() {
        let (turn, lingers, known, tagged) = before;
        reg.turn.set(turn);
        reg.lingers.set(lingers);
        reg.known.set(known);
        reg.tagged.set(tagged);
    }
    told
}

/// A connection is on TCP again: its registrations are the kernel's, as the program made them. `over` says so in the connection:
/// under CONTROL, so that one that is added is either given back here or not taken over.
pub fn restore(conn: Conn, over: impl FnOnce()) {
    let mut control = CONTROL.lock();
    for index in kin_of(conn) {
        let Some(reg) = reg(index) else { continue };
        give_back(&mut control, reg, index);
    }
    over();
}

/// One registration to the kernel, as the program made it; one that the program has deleted goes.
///
/// The kernel tells of what stands when it gets it, room for writing for one: an edge that TCP has not. So where the program has been
/// told of all, our entry lingers until the kernel has news, of which it then tells the program (`end_lingering_of`).
fn give_back(control: &mut Control, reg: &'static Reg, index: u32) {
    let lingers = lingers(reg);
    unmanage(control, reg, index);
    if lingers {
        return reg.lingers.set(true);
    }
    // Nobody else changes it any more.
    if reg.parked.get() {
        let (fd, epfd) = (reg.fd.get(), reg.set.get().map_or(-1, |set| set.epfd.load(Ordering::Relaxed)));
        let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None);
        remove(control, index, fd);
    } else {
        let _ = tell_kernel(reg, index, as_asked);
    }
}

/// Whether the kernel may keep our silent entry for a while. It may where the entry stands for edges, all of which the program has been
/// told of. It must where the set is still the parent's: the parent would hear twice of what it manages. A child that uses the set itself
/// gives the entry back (`own`).
fn lingers(reg: &Reg) -> bool {
    let is_parents = reg.set.get().is_some_and(is_inherited);
    if is_parents && reg.managed.get() && !reg.parked.get() {
        return true;
    }
    let kind = reg.events.get() & (EDGE | ONESHOT | EXCLUSIVE);
    let is_watched = || reg.set.get().is_none_or(|set| set.watched.load(Ordering::SeqCst));
    // Its lanes end, or its handshake has: nobody gives it away.
    let goes_on = |block: &Block| match block.life.phase() {
        Phase::Open => true,
        Phase::Shaking => !holders::shared(block),
        _ => false,
    };
    let is_told = |conn: Conn| {
        conn.current() && goes_on(conn.block) && reg.seen.get() == reg.seen.get().with_room(conn.block)
    };
    kind == EDGE
        && reg.managed.get()
        && !reg.parked.get()
        && !reg.edge.get()
        && !is_watched()
        && reg.conn.get().is_some_and(is_told)
}

/// The kernel has news for a registration of which our entry lingers: it gets the program's, and tells of them anew. Under CONTROL. Says
/// whether it does.
pub(crate) fn end_lingering_of(reg: &Reg, index: u32) -> bool {
    tell_kernel(reg, index, as_asked).is_ok()
}

/// Entries that linger in `set` are the program's again, as others than we are to hear of it.
pub fn end_lingering(set: &'static Set) {
    let control = CONTROL.lock();
    for index in 1..=control.used {
        if let Some(reg) = reg(index).filter(|reg| reg.lingers.get() && reg.is_in(set)) {
            end_lingering_of(reg, index);
        }
    }
}

/// `restore` for the registrations in `set` of a connection that is on no link any more.
pub(crate) fn restore_left(set: &'static Set, conn: Conn) {
    let mut control = CONTROL.lock();
    for index in 1..=control.used {
        if let Some(reg) = reg(index)
            && reg.conn.get() == Some(conn)
            && reg.is_in(set)
        {
            give_back(&mut control, reg, index);
        }
    }
}

/// Why the connection at `fd` must not come on a lane: how it is registered in epoll sets.
pub fn bars(fd: i32) -> Option<Reason> {
    let control = CONTROL.lock();
    if !watches(fd) {
        return open_sets().any(|set| kernel_knows(&control, set, fd)).then_some(Reason::SetUnseen);
    }
    indices(fd).filter_map(reg).filter_map(|reg| reg.set.get()).find_map(bar_of)
}

/// Whether the kernel has a registration of `fd` in the set that we do not know of: io_uring and raw system calls make them
/// behind our back. It has where it refuses a second one; ours is gone again before anybody can make one by a hook. (What
/// /proc/self/fdinfo lists is the whole set: milliseconds where there are thousands.)
fn kernel_knows(_control: &Control, set: &Set, fd: i32) -> bool {
    let epfd = set.epfd.load(Ordering::Relaxed);
    // Told of nothing, at most once; a sleeper takes this word for the doorbell's.
    let mut nothing = libc::epoll_event { events: ONESHOT, u64: bell_tag() };
    match sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, Some(&mut nothing)) {
        Ok(_) => {
            let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None);
            false
        }
        Err(errno) => errno == Errno::EXIST,
    }
}

#[cfg(test)]
mod tests {
    use rustix::fd::{AsRawFd, FromRawFd, OwnedFd};
    use shunpike_shm::arena::Arena;
    use shunpike_shm::pages::CQS;

    use super::super::regs::managed_of;
    use super::super::{SETS_AT, has_lanes};
    use super::*;

    /// A connection can leave its link, and join another, without a word to its registrations: it was shared with a child that
    /// took it back to TCP, or its handshake ended.
    #[test]
    fn news_find_a_registration_that_was_on_another_link_before() {
        let session = crate::session::lock();
        let set = &SETS_AT[SETS_AT.len() - 1];
        // SAFETY: a fresh descriptor.
        let epoll = unsafe { OwnedFd::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
        set.epfd.store(epoll.as_raw_fd(), Ordering::Relaxed);
        set.cq.store(1, Ordering::Relaxed);
        let (socket, _peer) = std::os::unix::net::UnixStream::pair().expect("two sockets");
        let fd = socket.as_raw_fd();
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 7 };
        sys::epoll_ctl(epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, Some(&mut event)).expect("EPOLL_CTL_ADD");

        let arena = Arena::create(1).expect("an arena");
        let conn = Conn::new(arena.allocate().expect("a block"));
        let link = link::enter(u32::MAX, 1, 0, 0, [-1; CQS]).expect("a link");
        let index = {
            let mut control = CONTROL.lock();
            prepare(&mut control, set, fd, Some(conn), event).expect("a registration").0
        };
        for slot in [3, 3, 4] {
            link::join(link, conn.block, slot);
            for _ in 0..2 {
                take_over(&mut CONTROL.lock(), index, false);
                let mut found = Vec::new();
                managed_of(link::registrations(conn.block).expect("a list"), |index| found.push(index));
                assert_eq!(found, [index]);
            }
            link::part(conn.block);
        }
        assert!(has_lanes(set));
        remove(&mut CONTROL.lock(), index, fd);
        assert!(!has_lanes(set));
        set.cq.store(0, Ordering::Relaxed);
        link::gone(u32::MAX, 1);
        drop(session);
    }
}
