//! What stands in the kernel for a registration: the program's own entry while its connection is on TCP, a silent one of ours while it is on
//! a lane. One becomes the other with the connection's mode.

use core::sync::atomic::{Ordering, fence};

use rustix::io::Errno;
use shunpike_shm::arena::{Block, mode};
use shunpike_shm::lifecycle::Phase;

use super::list::push;
use super::refusal::{found, give_back_asked, lose, refuse};
use super::regs::{
    CONTROL, Changing, Control, Reg, bell_tag, draw_cookie, indices, kin, kin_of, reg, remove, tag, unmanage,
    untag,
};
use super::standing::{standing, tell_nothing};
use super::{EDGE, EXCLUSIVE, ONESHOT, is_inherited, open_sets, ring};
use crate::set::Set;
use crate::table::{self, Conn};
use crate::text::Text;
use crate::tls::critical;
use crate::{clock, holders, limits, link, process, sys, told, wait};

type Done = Result<(), Errno>;

/// What a connection on a lane is registered for in the kernel: news of TCP, once each.
const TCP_EVENTS: i32 = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLET;

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
        table::names_of(conn).filter(|&other| other != fd).for_each(manage);
    }
}

/// Under CONTROL, and the kernel first: until our silent entry stands there, it tells of the connection itself, so that a
/// change of the registration is the kernel's to hear of, and waits for CONTROL. `is_new`: the program asks for it just now.
///
/// Where the kernel refuses an entry the set is marked ([`refuse`]), and the registration stays as the program made it. But where its lane
/// may have bytes already the kernel would not tell of them: it is answered from here until the lane is over, and the set looked at.
pub(super) fn take_over(control: &mut Control, index: u32, is_new: bool) {
    let Some(reg) = reg(index) else { return };
    let Some(set) = reg.set.get() else { return };
    // Who waits for the set is told of it: not for what is ours alone.
    let is_watched = set.watched.load(Ordering::SeqCst);
    // Before the doorbell, which is news of the set.
    let mut known = if reg.managed.get() { None } else { known(set, reg, is_new) };
    if let Some((_, is_told)) = &mut known {
        *is_told = *is_told && !is_queued_alone(set, reg);
    }
    if set.cq.load(Ordering::Relaxed) == 0 {
        let cq = process::take_cq();
        let added = if is_watched {
            tell_nothing(set, cq, libc::EPOLL_CTL_ADD)
        } else {
            wait::add_doorbell(set.epfd.load(Ordering::Relaxed), cq, bell_tag())
        };
        if !matches!(added, Ok(()) | Err(Errno::EXIST)) {
            process::leave_cq(cq);
            if !may_have_bytes(reg) {
                return refuse(set, reg, index, is_new || known.is_some());
            }
            set.refused.store(true, Ordering::SeqCst);
        } else {
            set.cq.store(u32::from(cq) + 1, Ordering::Release);
        }
    }
    if !reg.managed.get() && !is_new && has_fired_unseen(set, reg) {
        reg.disarmed.set(true);
    }
    if !reg.managed.get()
        && let Err(errno) = tell_kernel(reg, index, if is_watched { standing } else { silent })
    {
        if matches!(errno, Errno::NOENT | Errno::BADF) {
            // Closed behind our back, the kernel has it no more.
            let fd = reg.fd.get();
            return remove(control, index, fd);
        }
        // Else the kernel tells for itself.
        let is_ours = is_new || reg.lost.get();
        if !is_ours || !may_have_bytes(reg) {
            return refuse(set, reg, index, is_new || known.is_some());
        }
        set.refused.store(true, Ordering::SeqCst);
        lose(set, reg);
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
        // Pairs with the one of `list::watch_over`: who notes the connection finds it here, or it is found noted.
        fence(Ordering::SeqCst);
        if reg.conn.get().is_some_and(|conn| conn.block.tx.unheard_since.load(Ordering::Relaxed) != 0) {
            set.note_unheard(&mut list, index, clock::ticks());
        }
    }
    // A thread that sleeps there has not armed this connection.
    ring(set);
}

/// Whether the kernel has told of a one-shot by the program's own word, so that nobody here heard: who nominated the connection had seen
/// waits of another kind. Only /proc says so (ep_show_fdinfo, fs/eventpoll.c: what has fired asks for nothing, not even for errors).
fn has_fired_unseen(set: &Set, reg: &Reg) -> bool {
    if reg.events.get() & ONESHOT == 0 || reg.tagged.get() || reg.lingers.get() || reg.lost.get() {
        return false;
    }
    in_kernel(set, reg).is_some_and(|(events, _)| events & (libc::EPOLLERR | libc::EPOLLHUP) as u64 == 0)
}

/// What the kernel has for a registration: events, and word.
fn in_kernel(set: &Set, reg: &Reg) -> Option<(u64, u64)> {
    let path = Text::new(format_args!("/proc/thread-self/fdinfo/{}", set.epfd.load(Ordering::Relaxed)));
    let mut found = None;
    limits::each_line(path.as_c_str(), |line| {
        let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
        let mut number = |name: &[u8], radix| {
            let value = (words.next()? == name).then(|| words.next())??;
            u64::from_str_radix(core::str::from_utf8(value).ok()?, radix).ok()
        };
        if number(b"tfd:", 10) == Some(reg.fd.get() as u64)
            && let Some(events) = number(b"events:", 16)
            && let Some(data) = number(b"data:", 16)
        {
            found = Some((events, data));
        }
    });
    found
}

/// Whether another process has given the entry back to the kernel since a fork, where this one has changed nothing: the other may have. Under
/// CONTROL.
pub(crate) fn is_others(reg: &Reg) -> bool {
    let shared = reg.set.get().filter(|set| reg.forked.get() && set.watched.load(Ordering::SeqCst));
    shared.and_then(|set| in_kernel(set, reg)).is_some_and(|(_, data)| untag(data).is_none())
}

/// Whether the lane towards us may have bytes.
fn may_have_bytes(reg: &Reg) -> bool {
    reg.conn.get().is_some_and(|conn| conn.block.rx.mode.load(Ordering::Acquire) != mode::PLAIN)
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

/// What stands in the kernel for a registration on a lane.
fn silent(reg: &Reg, index: u32) -> libc::epoll_event {
    libc::epoll_event { events: TCP_EVENTS as u32, u64: tag(index, reg.turn.get()) }
}

/// What stands in the kernel for a registration on TCP.
///
/// A one-shot carries our tag also on TCP: only so do we know that it has fired, when its connection comes on
/// a lane before the program has armed it again. Not where it comes on none (`Reg::waited`): in a set of which no wait through the hooks was
/// seen, where the program may look for itself; in one that others wait for, who would be told of our tag; nor a listening socket. One that
/// has fired tells nobody of anything.
pub(super) fn as_asked(reg: &Reg, index: u32) -> libc::epoll_event {
    let may_come = |set: &Set| {
        let is_others = set.shared.load(Ordering::Relaxed) || set.watched.load(Ordering::Relaxed);
        reg.conn.get().is_some() && !is_others && (reg.tagged.get() || set.waits() != 0)
    };
    let is_tagged = reg.disarmed.get() || reg.set.get().is_some_and(may_come);
    reg.tagged.set(reg.events.get() & ONESHOT != 0 && is_tagged);
    match reg.events.get() {
        events if !reg.tagged.get() => libc::epoll_event { events, u64: reg.data.get() },
        _ if reg.disarmed.get() => libc::epoll_event { events: ONESHOT, u64: tag(index, reg.turn.get()) },
        events => libc::epoll_event { events, u64: tag(index, reg.turn.get()) },
    }
}

/// What stands in the kernel for a one-shot that the program has armed and that is ours no more.
pub(super) fn as_made(reg: &Reg, _: u32) -> libc::epoll_event {
    reg.tagged.set(false);
    libc::epoll_event { events: reg.events.get(), u64: reg.data.get() }
}

/// A one-shot that the program has armed, of which the kernel is to tell by our tag.
pub(super) fn is_armed_by_tag(reg: &Reg) -> bool {
    reg.tagged.get() && !reg.managed.get() && !reg.disarmed.get()
}

/// Changes what stands in the kernel. EPOLLEXCLUSIVE cannot be changed, only made (epoll_ctl(2)). On an error all is as before, but for
/// an exclusive entry that the kernel does not take back: that one is lost until it does ([`put_back`](super::refusal::put_back)).
pub(super) fn tell_kernel(reg: &Reg, index: u32, what: fn(&Reg, u32) -> libc::epoll_event) -> Done {
    let Some(set) = reg.set.get() else { return Err(Errno::NOENT) };
    let (epfd, fd) = (set.epfd.load(Ordering::Relaxed), reg.fd.get());
    let before = (reg.turn.get(), reg.lingers.get(), reg.known.get(), reg.tagged.get(), reg.stands.get());
    reg.next_turn();
    reg.lingers.set(false);
    reg.known.set(None);
    reg.stands.set(0);
    let mut event = what(reg, index);
    if reg.events.get() & EXCLUSIVE != 0 {
        if !reg.lost.get() {
            sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None)?;
        }
        let added = sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, fd, Some(&mut event));
        return added.inspect(|()| found(reg)).inspect_err(|_| lose(set, reg));
    }
    let told = sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, fd, Some(&mut event));
    if told.is_err() {
        let (turn, lingers, known, tagged, stands) = before;
        reg.turn.set(turn);
        reg.lingers.set(lingers);
        reg.known.set(known);
        reg.tagged.set(tagged);
        reg.stands.set(stands);
    } else {
        found(reg);
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
    if is_others(reg) {
        if reg.parked.get() {
            remove(control, index, reg.fd.get());
        }
        return;
    }
    if lingers {
        return reg.lingers.set(true);
    }
    // Nobody else changes it any more.
    if reg.parked.get() {
        let (fd, epfd) = (reg.fd.get(), reg.set.get().map_or(-1, |set| set.epfd.load(Ordering::Relaxed)));
        let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None);
        remove(control, index, fd);
    } else {
        give_back_asked(reg, index);
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

/// Entries that linger in `set`, and one-shots, are the program's again, with its own words, as others than we are to hear of it.
pub fn give_words(set: &'static Set) {
    let control = CONTROL.lock();
    for index in 1..=control.used {
        let Some(reg) = reg(index).filter(|reg| reg.is_in(set)) else { continue };
        if reg.lingers.get() && is_others(reg) {
            reg.lingers.set(false);
        } else if reg.lingers.get() {
            end_lingering_of(reg, index);
        } else if is_armed_by_tag(reg) {
            let _ = tell_kernel(reg, index, as_made);
        }
    }
}

/// Before fork(): from here on either process is told of what stands in the sets. Armed one-shots carry the program's own words, and all tags
/// are of one cookie, so that either knows the other's.
pub(super) fn share(control: &Control) {
    // Those that were made since `to_be_shared`, too.
    if open_sets().inspect(|set| set.shared.store(true, Ordering::Relaxed)).count() == 0 {
        return;
    }
    draw_cookie();
    for index in 1..=control.used {
        let Some((reg, set)) = reg(index).and_then(|reg| Some((reg, reg.set.get()?))) else { continue };
        if is_armed_by_tag(reg) {
            let _ = tell_kernel(reg, index, as_made);
        }
        let _list = set.list.lock();
        reg.forked.set(true);
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

/// Whether registrations of the connection are answered from here.
pub(super) fn is_answered_here(conn: Conn) -> bool {
    conn.block.rx.mode.load(Ordering::Relaxed) != mode::PLAIN
        || conn.block.life.is(Phase::Open)
        || conn.block.notices.are_ours() && link::of(conn.block).is_some()
}
