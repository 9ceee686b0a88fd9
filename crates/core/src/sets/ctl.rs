//! How registrations change: by epoll_ctl, and with a connection's descriptors.

use core::sync::atomic::Ordering;
use shunpike_shm::lifecycle::Event;

use rustix::io::Errno;
use shunpike_wire::Reason;

use super::entries::{
    as_asked, as_made, is_answered_here, is_armed_by_tag, is_others, restore, restore_left, take_over,
    tell_kernel,
};
use super::list::{pop, push};
use super::refusal::{bar_of_entry, bar_of_reg, has_lost, put_back};
use super::regs::{
    CONTROL, Control, Reg, allocate, bell_tag, find, glimpse, indices, reg, remove, tag, unmanage,
};
use super::standing::{has_left, wished};
use super::{
    EDGE, EXCLUSIVE, ONESHOT, has_lanes, is_inherited, is_left, new_set, open_sets, own, ring, watch,
};
use crate::set::List;
use crate::set::Set;
use crate::table::{self, Conn, Entry};
use crate::{above, holders, link, process, state, sys, wait};

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
    if let Some(conn) = conn
        && op == libc::EPOLL_CTL_MOD
        && set.shared.load(Ordering::Relaxed)
        && event.is_some_and(|event| event.events & ONESHOT != 0)
        && managed(glimpse(set, fd)).is_some_and(|(_, reg)| reg.disarmed.get())
        && is_answered_here(conn)
    {
        // One that has fired, and left what is unread in the ring: either process is to be told of that, by TCP.
        above::leave_to_sets(conn, fd);
    }
    if let Some(conn) = conn
        && set.shared.load(Ordering::Relaxed)
        && is_left(conn)
        && managed(glimpse(set, fd)).is_some()
    {
        // Another process has given the entry back to the kernel, as it knew it: what changes is to change there.
        restore_left(set, conn);
    }
    if let Some(conn) = conn.filter(|conn| link::is_inherited(conn.block)) {
        // Its news are a parent's. What is unread is in the ring yet, where we find it without any.
        above::revoke(conn, fd, Reason::Shared);
    }
    let result = change(set, epfd, op, fd, conn, event)?;
    if let Some(conn) = conn
        && let Some(reason) = bar_of_entry(set, event.map_or(0, |event| event.events))
        && is_answered_here(conn)
        && !has_left(conn)
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
        wished(set, known.1, known.0, fd);
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
        drop(control);
        wished(set, known.1, known.0, fd);
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
            let is_ours = conn.is_some_and(is_answered_here);
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
                // One that was registered before it was connected is known now.
                reg.conn.set(conn.or(reg.conn.get()));
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
            let is_lost = known.is_some_and(|(_, reg)| reg.lost.get() && reg.events.get() & EXCLUSIVE != 0);
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
            reg.forked.set(false);
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
    if is_ours || conn.is_some_and(is_answered_here) {
        take_over(control, index, true);
    }
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

/// `fd` is about to be a socket that is not connected, and stays in its sets: what stands there is the kernel's from here on, by the program's
/// own word.
pub fn staying(fd: i32) {
    if !watches(fd) {
        return;
    }
    let control = CONTROL.lock();
    for (index, reg) in indices(fd).filter_map(|index| reg(index).map(|reg| (index, reg))) {
        // What stands in a parent's set is the parent's.
        let Some(set) = reg.set.get().filter(|set| !is_inherited(set)) else { continue };
        let is_ours = reg.managed.get() || reg.lingers.get() || reg.tagged.get();
        unmanage(&control, reg, index);
        if !is_ours || is_others(reg) {
            // It has the program's word.
        } else if reg.parked.get() {
            let _ = sys::epoll_ctl(set.epfd.load(Ordering::Relaxed), libc::EPOLL_CTL_DEL, fd, None);
        } else {
            // A one-shot that has fired keeps a tag that nobody knows any more.
            let _ = tell_kernel(reg, index, if reg.disarmed.get() { as_asked } else { as_made });
        }
    }
}

fn leaving(conn: Conn, fd: i32) {
    // What stands in a parent's set is the parent's.
    let is_ours = |reg: &Reg| reg.set.get().is_some_and(|set| !is_inherited(set));
    // Once the number is closed, nobody can change an entry that lingers, and nobody knows the tag of an armed one-shot.
    let give_all_back = || {
        let _control = CONTROL.lock();
        for (index, reg) in indices(fd).filter_map(|index| reg(index).map(|reg| (index, reg))) {
            if is_ours(reg) && (reg.lingers.get() || is_armed_by_tag(reg)) {
                let _ = tell_kernel(reg, index, as_made);
            }
        }
    };
    if conn.block.dups.load(Ordering::Relaxed) != 0 || !holders::alone(conn.block) {
        give_all_back();
    }
    let here =
        || conn.block.dups.load(Ordering::Relaxed) != 0 && table::names_of(conn).any(|other| other != fd);
    if conn.block.life.was_lent() && !here() && holders::alone(conn.block) {
        return deregister(fd);
    }
    if conn.block.dups.load(Ordering::Relaxed) == 0 || !is_answered_here(conn) {
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

/// The set goes to queue `to`, which it has taken: pollers have come or gone. With no lock held.
pub(crate) fn move_to(set: &'static Set, to: u8) {
    let control = CONTROL.lock();
    let epfd = set.epfd.load(Ordering::Relaxed);
    let from = set.cq.load(Ordering::Relaxed);
    // Another thread of the set may have been faster.
    let is_there = from == u32::from(to) + 1;
    let is_hushed = set.watched.load(Ordering::Relaxed);
    if from == 0 || is_there || is_hushed || wait::add_doorbell(epfd, to, bell_tag()).is_err() {
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

/// Why the connection at `fd` must not come on a lane: how it is registered in epoll sets.
pub fn bars(fd: i32) -> Option<Reason> {
    let control = CONTROL.lock();
    if !watches(fd) {
        return open_sets().any(|set| kernel_knows(&control, set, fd)).then_some(Reason::SetUnseen);
    }
    indices(fd).filter_map(reg).find_map(bar_of_reg)
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
    use crate::link;

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
