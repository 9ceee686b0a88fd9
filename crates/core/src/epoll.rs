//! The program's epoll sets.
//!
//! A set stays the kernel's own. While a connection is on a lane its registration there is edge-triggered
//! and carries a tag of ours (TCP then only tells of death and stray bytes), and the set has our doorbell;
//! what the program registered is kept here and answered from the lane. Sets without lanes are untouched.
//!
//! A set keeps an *active list* of connections that it looks at itself. One that has been quiet is armed
//! (its publisher posts to the set's CQ) and leaves the list: epoll_wait costs O(active), and a busy
//! connection costs its peer no post at all (models/cq.pml).

use std::cell::UnsafeCell;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use rustix::io::Errno;
use shunpike_shm::arena::mode;
use shunpike_shm::lane::Side;
use shunpike_wire::Reason;

use crate::mutex::Mutex;
use crate::ready::{self, Level};
use crate::table::{self, Conn, Entry};
use crate::tls::critical;
use crate::{clock, conn, link, process, rx, sys, tx, wait};

/// Registrations of a process (sets times connections); more are left to the kernel, on TCP.
const REGS: usize = 1 << 18;
/// Sets of a process that can have lanes.
const SETS: usize = 4096;
/// Looks without news after which a connection is armed and leaves the active list.
const QUIET: u8 = 32;
/// The kernel's part of a set is asked at least this often while lanes are busy, microseconds.
const KERNEL_US: u64 = 200;
/// Events taken from the kernel in one call.
const BATCH: usize = 128;
/// What a connection on a lane is registered for in the kernel: news of TCP, once each.
const TCP_EVENTS: i32 = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI | libc::EPOLLET;
/// Tag of the doorbell, in place of a registration's index.
const BELL: u32 = u32::MAX;
const INDEX_BITS: u32 = 20;
const TURNS: u32 = 1 << (32 - INDEX_BITS);
const _: () = assert!(REGS < 1 << INDEX_BITS);

const ONESHOT: u32 = libc::EPOLLONESHOT as u32;
const EDGE: u32 = libc::EPOLLET as u32;
const EXCLUSIVE: u32 = libc::EPOLLEXCLUSIVE as u32;

/// An epoll set of the program. 64-byte aligned: the table keeps its address beside a kind.
#[repr(align(64))]
pub struct Set {
    epfd: AtomicI32,
    /// Process that uses it.
    pid: AtomicU32,
    refs: AtomicU32,
    /// Registrations in it that are on lanes.
    managed: AtomicU32,
    /// Doorbell queue plus one, once the doorbell is in the set.
    cq: AtomicU32,
    /// Somebody waits for the set itself (nested, or in poll): its connections are on TCP, where the kernel
    /// answers for the whole of it.
    watched: AtomicBool,
    list: Mutex<List>,
}

/// The active list, and what its scans remember.
struct List {
    head: u32,
    tail: u32,
    len: u32,
    kernel_at: u64,
    /// The kernel's events left no room for the lanes'.
    kernel_filled: bool,
    sleepers: u32,
}

/// One registration of a TCP socket in a set. Indices are plus one; 0 is none.
struct Reg {
    set: Option<&'static Set>,
    fd: i32,
    conn: Option<Conn>,
    events: u32,
    data: u64,
    /// Next registration of the same descriptor.
    next: u32,
    managed: bool,
    /// The list of its connection's managed registrations: where it begins, and what follows.
    kin: Option<&'static AtomicU32>,
    next_kin: u32,
    /// The program has deleted it. The kernel keeps it while the connection is on a lane: programs that delete
    /// and add with every message need no system call.
    parked: bool,
    listed: bool,
    prev_active: u32,
    next_active: u32,
    /// Changes of what the kernel has: an event of an earlier turn is void, its like was queued anew.
    turn: u32,
    /// A one-shot that has fired.
    disarmed: bool,
    /// Looks without news.
    quiet: u8,
    /// The kernel had news of the TCP socket.
    dirty: bool,
    /// Something happened since the last report of an edge-triggered registration.
    edge: bool,
    /// What was there at the last report.
    seen: ready::Seen,
}

/// Owns the registrations: taken for epoll_ctl, for changes of mode, and to hand out news.
struct Control {
    free: u32,
    used: u32,
}

static CONTROL: Mutex<Control> = Mutex::new(Control { free: 0, used: 0 });
static POOL: AtomicPtr<UnsafeCell<Reg>> = AtomicPtr::new(core::ptr::null_mut());
static SETS_AT: [Set; SETS] = [const { Set::new() }; SETS];
static NEXT_SET: AtomicUsize = AtomicUsize::new(0);
/// See [`cookie`]; 0 before the first tag.
static COOKIE: AtomicU32 = AtomicU32::new(0);

impl Set {
    const fn new() -> Self {
        Self {
            epfd: AtomicI32::new(-1),
            pid: AtomicU32::new(0),
            refs: AtomicU32::new(0),
            managed: AtomicU32::new(0),
            cq: AtomicU32::new(0),
            watched: AtomicBool::new(false),
            list: Mutex::new(List {
                head: 0,
                tail: 0,
                len: 0,
                kernel_at: 0,
                kernel_filled: false,
                sleepers: 0,
            }),
        }
    }
}

/// A registration by index. Fields of the active list are guarded by the set's lock, the rest by CONTROL or
/// by being in a set's active list under that set's lock.
#[allow(clippy::mut_from_ref, reason = "the guards are witnesses; see the safety comment")]
fn reg(index: u32) -> Option<&'static mut Reg> {
    let pool = POOL.load(Ordering::Acquire);
    if pool.is_null() || index == 0 || index as usize > REGS {
        return None;
    }
    // SAFETY: inside the pool. Callers hold CONTROL or the lock of the registration's set, and keep one
    // reference at a time; both locks are held where a registration changes hands.
    Some(unsafe { &mut *(*pool.add(index as usize - 1)).get() })
}

/// Our word in the kernel for a registration: cookie (32 bits) | turn (12) | index (20).
fn tag(index: u32, turn: u32) -> u64 {
    u64::from(cookie()) << 32 | u64::from(turn << INDEX_BITS | index)
}

fn bell_tag() -> u64 {
    u64::from(cookie()) << 32 | u64::from(BELL)
}

/// Index and turn, or the doorbell's word, of a tag of ours.
fn untag(data: u64) -> Option<u32> {
    let cookie = COOKIE.load(Ordering::Relaxed);
    (cookie != 0 && (data >> 32) as u32 == cookie).then_some(data as u32)
}

/// Upper half of our tags: no pointer's and no small number's, positive or negative.
fn cookie() -> u32 {
    let cookie = COOKIE.load(Ordering::Relaxed);
    if cookie != 0 {
        return cookie;
    }
    let mut bytes = [0u8; 4];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::NONBLOCK);
    let fresh = (u32::from_ne_bytes(bytes) ^ clock::ticks() as u32) & 0xbfff_ffff | 0x8000_0000;
    match COOKIE.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => fresh,
        Err(other) => other,
    }
}

/// epoll_create() returned `epfd`.
pub fn created(epfd: i32) {
    conn::replaced(epfd);
    if let Some(set) = new_set(epfd) {
        table::set(epfd, Entry::Set(set));
    }
}

fn new_set(epfd: i32) -> Option<&'static Set> {
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
            *set.list.lock() =
                List { head: 0, tail: 0, len: 0, kernel_at: 0, kernel_filled: false, sleepers: 0 };
            return Some(set);
        }
    }
    None
}

/// Whether an epoll set watches TCP on behalf of `fd`, so that nobody else must ask how it is.
#[inline]
pub fn watches(fd: i32) -> bool {
    table::regs(fd).is_some_and(|head| head.load(Ordering::Relaxed) != 0)
}

/// Another descriptor of the same set.
pub fn retain(set: &'static Set) {
    set.refs.fetch_add(1, Ordering::Relaxed);
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
    let mut control = CONTROL.lock();
    for index in 1..=control.used {
        if let Some(reg) = reg(index)
            && reg.set.is_some_and(|other| core::ptr::eq(other, set))
        {
            remove(&mut control, index, reg.fd);
        }
    }
    set.refs.fetch_sub(1, Ordering::AcqRel);
}

/// epoll_ctl: done here for sockets that are or may come on a lane, by libc for the rest.
pub fn ctl(epfd: i32, op: i32, fd: i32, event: Option<libc::epoll_event>) -> Option<Result<usize, Errno>> {
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
    if let Some(conn) = conn.filter(|&conn| set.watched.load(Ordering::SeqCst) && on_lane(conn)) {
        conn::revoke_for_good(conn, fd, Reason::EpollSets);
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
) -> Option<Result<usize, Errno>> {
    let mut control = CONTROL.lock();
    let known = find(set, fd).and_then(|index| Some((index, reg(index)?)));
    let result = match (op, event) {
        (libc::EPOLL_CTL_ADD, Some(mut event)) => match known {
            Some((index, reg)) if reg.parked && event.events & EXCLUSIVE == 0 => {
                reg.parked = false;
                rearm(set, index, reg, event);
                Ok(0)
            }
            known => {
                if let Some((index, _)) = known.filter(|(_, reg)| reg.parked) {
                    let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None);
                    remove(&mut control, index, fd);
                }
                let done = sys::epoll_ctl(epfd, op, fd, Some(&mut event));
                if done.is_ok() {
                    // One that we still know was closed behind our back.
                    if let Some(index) = find(set, fd) {
                        remove(&mut control, index, fd);
                    }
                    add(&mut control, set, fd, conn, event);
                }
                done
            }
        },
        (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, _)
            if known.as_ref().is_some_and(|(_, reg)| reg.parked) =>
        {
            Err(Errno::NOENT)
        }
        (libc::EPOLL_CTL_MOD, Some(mut event)) => match known {
            Some((_, reg)) if (event.events | reg.events) & EXCLUSIVE != 0 => Err(Errno::INVAL),
            Some((index, reg)) if reg.managed => {
                rearm(set, index, reg, event);
                Ok(0)
            }
            Some((index, reg)) => {
                let before = (reg.events, reg.data, reg.disarmed);
                (reg.events, reg.data, reg.disarmed) = (event.events, event.u64, false);
                let done = tell_kernel(reg, index);
                if done.is_err() {
                    (reg.events, reg.data, reg.disarmed) = before;
                }
                done
            }
            None => sys::epoll_ctl(epfd, op, fd, Some(&mut event)),
        },
        (libc::EPOLL_CTL_DEL, _) => match known {
            Some((index, reg)) if reg.managed => {
                let mut list = set.list.lock();
                reg.parked = true;
                reg.disarmed = true;
                pop(&mut list, index);
                Ok(0)
            }
            known => {
                let done = sys::epoll_ctl(epfd, op, fd, None);
                if let (Ok(_), Some((index, _))) = (&done, known) {
                    remove(&mut control, index, fd);
                }
                done
            }
        },
        _ => return None,
    };
    Some(result)
}

/// New wishes for a registration on a lane: in the kernel it stands as ever, only our side of it changes.
fn rearm(set: &'static Set, index: u32, reg: &mut Reg, event: libc::epoll_event) {
    let mut list = set.list.lock();
    reg.events = event.events;
    reg.data = event.u64;
    reg.disarmed = false;
    reg.edge = true;
    reg.dirty |= event.events & EDGE != 0;
    push(&mut list, index);
    let wake = list.sleepers > 0;
    drop(list);
    if wake {
        ring(set);
    }
}

fn add(control: &mut Control, set: &'static Set, fd: i32, conn: Option<Conn>, event: libc::epoll_event) {
    let Some(index) = allocate(control) else {
        // More registrations than we can keep: this connection stays on TCP.
        if let Some(conn) = conn {
            conn.block.phase.store(conn::phase::DONE, Ordering::Relaxed);
            conn::note(conn.block, Reason::EpollSets);
        }
        return;
    };
    let (Some(reg), Some(head)) = (reg(index), table::regs(fd)) else { return };
    *reg = Reg {
        set: Some(set),
        fd,
        conn,
        events: event.events,
        data: event.u64,
        next: head.load(Ordering::Relaxed),
        managed: false,
        kin: None,
        next_kin: 0,
        parked: false,
        listed: false,
        prev_active: 0,
        next_active: 0,
        turn: (reg.turn + 1) % TURNS,
        disarmed: false,
        quiet: 0,
        dirty: false,
        edge: false,
        seen: ready::Seen::NOTHING,
    };
    head.store(index, Ordering::Relaxed);
    if conn.is_some_and(on_lane) {
        take_over(control, index);
    } else if event.events & ONESHOT != 0 {
        let _ = tell_kernel(reg, index);
    }
}

fn on_lane(conn: Conn) -> bool {
    conn.block.rx.mode.load(Ordering::Relaxed) != mode::PLAIN
        || conn.block.phase.load(Ordering::Relaxed) == conn::phase::OPEN
}

fn allocate(control: &mut Control) -> Option<u32> {
    if POOL.load(Ordering::Relaxed).is_null() {
        POOL.store(reserve()?, Ordering::Release);
    }
    if control.free != 0 {
        let index = control.free;
        control.free = reg(index)?.next;
        return Some(index);
    }
    if control.used as usize >= REGS {
        return None;
    }
    control.used += 1;
    Some(control.used)
}

fn reserve() -> Option<*mut UnsafeCell<Reg>> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    let len = REGS * size_of::<Reg>();
    // SAFETY: a fresh anonymous mapping touches no memory of ours. Zero is a valid Reg (no set, no conn).
    unsafe { mmap_anonymous(core::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) }
        .ok()
        .map(|at| at.cast())
}

fn find(set: &'static Set, fd: i32) -> Option<u32> {
    indices(fd)
        .find(|&index| reg(index).is_some_and(|reg| reg.set.is_some_and(|other| core::ptr::eq(other, set))))
}

/// Registrations of `fd`. Under CONTROL.
fn indices(fd: i32) -> impl Iterator<Item = u32> {
    let mut next = table::regs(fd).map_or(0, |head| head.load(Ordering::Relaxed));
    core::iter::from_fn(move || {
        let index = next;
        next = reg(index)?.next;
        Some(index)
    })
}

fn remove(control: &mut Control, index: u32, fd: i32) {
    if let Some(head) = table::regs(fd) {
        let after = reg(index).map_or(0, |reg| reg.next);
        if head.load(Ordering::Relaxed) == index {
            head.store(after, Ordering::Relaxed);
        } else {
            let before = indices(fd).find(|&other| reg(other).is_some_and(|reg| reg.next == index));
            if let Some(before) = before.and_then(reg) {
                before.next = after;
            }
        }
    }
    let Some(reg) = reg(index) else { return };
    unmanage(reg, index);
    reg.set = None;
    reg.conn = None;
    reg.next = control.free;
    control.free = index;
}

/// Answered by the kernel from now on, or not at all. Under CONTROL.
fn unmanage(reg: &mut Reg, index: u32) {
    let Some(set) = reg.set.filter(|_| reg.managed) else { return };
    reg.managed = false;
    set.managed.fetch_sub(1, Ordering::SeqCst);
    unlist(set, index);
    let Some(first) = reg.kin.take() else { return };
    if first.load(Ordering::Relaxed) == index {
        first.store(reg.next_kin, Ordering::Relaxed);
    } else if let Some(before) =
        kin(first).find_map(|other| self::reg(other).filter(|other| other.next_kin == index))
    {
        before.next_kin = reg.next_kin;
    }
}

/// The managed registrations of a connection, under whichever descriptor. Under CONTROL.
fn kin(first: &AtomicU32) -> impl Iterator<Item = u32> {
    let mut next = first.load(Ordering::Relaxed);
    core::iter::from_fn(move || {
        let index = next;
        next = reg(index)?.next_kin;
        Some(index)
    })
}

fn kin_of(conn: Conn) -> impl Iterator<Item = u32> {
    link::registrations(conn.block).into_iter().flat_map(kin)
}

/// `fd` is about to be closed. The kernel keeps its registrations while the connection has another descriptor,
/// and nobody can change them any more: they become the kernel's own before.
pub fn closing(conn: Conn, fd: i32) {
    if conn.block.refs.load(Ordering::Relaxed) == 1 || !watches(fd) || !on_lane(conn) {
        return;
    }
    let here = || {
        table::all().any(|(other, entry)| other != fd && matches!(entry, Entry::Conn(other) if other == conn))
    };
    let own = |index| reg(index).is_some_and(|reg| reg.set.is_some_and(|set| !is_inherited(set)));
    let concerned = {
        let _control = CONTROL.lock();
        indices(fd).any(own)
    };
    if concerned && here() {
        conn::revoke_for_good(conn, fd, Reason::EpollSets);
        restore(conn);
    }
}

/// A forked child has its parent's sets, and shares what the kernel tells of them: where it uses one itself, the
/// connections in it go back to TCP.
fn is_inherited(set: &Set) -> bool {
    set.pid.load(Ordering::Relaxed) != process::pid()
}

fn own(set: &'static Set) {
    if is_inherited(set) {
        set.pid.store(process::pid(), Ordering::Relaxed);
        watch(set);
    }
}

/// `fd` was closed: the kernel has dropped its registrations (or reports them by a dup's grace).
pub fn forget(fd: i32) {
    if table::regs(fd).is_none_or(|head| head.load(Ordering::Relaxed) == 0) {
        return;
    }
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
            if let Some(reg) = reg(index) {
                reg.conn = Some(conn);
            }
            take_over(&mut control, index);
        }
    };
    manage(fd);
    if conn.block.refs.load(Ordering::Relaxed) > 1 {
        let same = |entry| matches!(entry, Entry::Conn(other) if other == conn);
        table::all()
            .filter(|&(other, entry)| other != fd && same(entry))
            .for_each(|(other, _)| manage(other));
    }
}

/// Under CONTROL.
fn take_over(control: &mut Control, index: u32) {
    let Some(reg) = reg(index) else { return };
    let Some(set) = reg.set else { return };
    if !reg.managed {
        reg.managed = true;
        reg.kin = reg.conn.and_then(|conn| link::registrations(conn.block));
        if let Some(first) = reg.kin {
            reg.next_kin = first.swap(index, Ordering::Relaxed);
        }
        set.managed.fetch_add(1, Ordering::SeqCst);
        if set.cq.load(Ordering::Relaxed) == 0 {
            let cq = process::next_cq();
            let added = wait::add_doorbell(set.epfd.load(Ordering::Relaxed), cq, bell_tag());
            if matches!(added, Ok(()) | Err(Errno::EXIST)) {
                set.cq.store(u32::from(cq) + 1, Ordering::Release);
            }
        }
    }
    {
        let mut list = set.list.lock();
        reg.dirty = true;
        reg.edge = true;
        push(&mut list, index);
    }
    if tell_kernel(reg, index).is_err() {
        // Closed behind our back, the kernel has it no more.
        let fd = reg.fd;
        return remove(control, index, fd);
    }
    // A thread that sleeps there has not armed this connection.
    ring(set);
}

/// What stands in the kernel for a registration.
///
/// A one-shot carries our tag also on TCP: only so do we know that it has fired, when its connection comes on
/// a lane before the program has armed it again.
fn in_kernel(reg: &Reg, index: u32) -> libc::epoll_event {
    match reg.events {
        _ if reg.managed => libc::epoll_event { events: TCP_EVENTS as u32, u64: tag(index, reg.turn) },
        events if events & ONESHOT == 0 => libc::epoll_event { events, u64: reg.data },
        _ if reg.disarmed => libc::epoll_event { events: ONESHOT, u64: tag(index, reg.turn) },
        events => libc::epoll_event { events, u64: tag(index, reg.turn) },
    }
}

/// Changes what stands in the kernel. EPOLLEXCLUSIVE cannot be changed, only made (epoll_ctl(2)).
fn tell_kernel(reg: &mut Reg, index: u32) -> Result<usize, Errno> {
    let Some(set) = reg.set else { return Err(Errno::NOENT) };
    let epfd = set.epfd.load(Ordering::Relaxed);
    reg.turn = (reg.turn + 1) % TURNS;
    let mut event = in_kernel(reg, index);
    if reg.events & EXCLUSIVE == 0 {
        return sys::epoll_ctl(epfd, libc::EPOLL_CTL_MOD, reg.fd, Some(&mut event));
    }
    sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, reg.fd, None)?;
    sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, reg.fd, Some(&mut event))
}

/// A connection is on TCP again: its registrations are the kernel's, as the program made them.
pub fn restore(conn: Conn) {
    let mut control = CONTROL.lock();
    for index in kin_of(conn) {
        let Some(reg) = reg(index) else { continue };
        if reg.parked {
            let (fd, epfd) = (reg.fd, reg.set.map_or(-1, |set| set.epfd.load(Ordering::Relaxed)));
            let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, fd, None);
            remove(&mut control, index, fd);
        } else {
            unmanage(reg, index);
            let _ = tell_kernel(reg, index);
        }
    }
}

/// Something changed on a connection outside of its peer's posts: its sets look at it.
pub fn touch(conn: Conn) {
    let _control = CONTROL.lock();
    look_at(kin_of(conn), None);
}

/// A call found no room: the sets that wait for it look at the connection again.
pub fn starved(conn: Conn) {
    if link::registrations(conn.block).is_some_and(|first| first.load(Ordering::Relaxed) != 0) {
        touch(conn);
    }
}

/// Puts registrations on their active lists; sets other than `own` whose threads sleep are rung. Under CONTROL.
fn look_at(indices: impl Iterator<Item = u32>, own: Option<&'static Set>) {
    for index in indices {
        let Some(reg) = reg(index) else { continue };
        let Some(set) = reg.set.filter(|_| reg.managed) else { continue };
        let mut list = set.list.lock();
        reg.dirty |= own.is_none();
        push(&mut list, index);
        let wake = list.sleepers > 0 && own.is_none_or(|own| !core::ptr::eq(own, set));
        drop(list);
        if wake {
            ring(set);
        }
    }
}

fn ring(set: &Set) {
    if let Some(cq) = set.cq.load(Ordering::Acquire).checked_sub(1)
        && let Some(bell) = process::doorbell(cq as u8)
    {
        wait::ring(bell);
    }
}

fn push(list: &mut List, index: u32) {
    let Some(reg_) = reg(index) else { return };
    reg_.quiet = 0;
    if reg_.listed {
        return;
    }
    reg_.listed = true;
    reg_.prev_active = list.tail;
    reg_.next_active = 0;
    match reg(list.tail) {
        Some(tail) => tail.next_active = index,
        None => list.head = index,
    }
    list.tail = index;
    list.len += 1;
}

fn unlist(set: &'static Set, index: u32) {
    pop(&mut set.list.lock(), index);
}

fn pop(list: &mut List, index: u32) {
    let Some(gone) = reg(index).filter(|reg| reg.listed) else { return };
    gone.listed = false;
    let (prev, next) = (gone.prev_active, gone.next_active);
    match reg(prev) {
        Some(prev) => prev.next_active = next,
        None => list.head = next,
    }
    match reg(next) {
        Some(next) => next.prev_active = prev,
        None => list.tail = prev,
    }
    list.len -= 1;
}

/// epoll_wait and its kin. `None`: no lane in this set, libc's business. `timeout` in nanoseconds.
pub fn wait(
    epfd: i32,
    out: &mut [libc::epoll_event],
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
) -> Option<Result<usize, Errno>> {
    let Entry::Set(set) = table::look(epfd) else { return None };
    crate::session::pump_if_news();
    if out.is_empty() {
        return None;
    }
    own(set);
    let deadline = conn::deadline(timeout.filter(|&ns| ns > 0));
    let signals = conn::restarts_before().0;
    loop {
        let left = match (timeout, conn::remaining(deadline)) {
            (Some(0), _) | (_, Err(_)) => Some(0),
            (_, Ok(left)) => left,
        };
        let lanes = has_lanes(set);
        let mut n = if lanes { turn(set, epfd, out, left == Some(0)) } else { 0 };
        if lanes && n == 0 && left != Some(0) && wait::spin(|| hot(set)) {
            n = turn(set, epfd, out, false);
        }
        if n == 0 && (!lanes || left != Some(0)) {
            // A handler that ran while we looked would have ended the kernel's own wait.
            if conn::restarts_before().0 != signals {
                return Some(Err(Errno::INTR));
            }
            n = match sleep(set, epfd, out, left, mask) {
                Ok(n) => n,
                Err(errno) => return Some(Err(errno)),
            };
        }
        if n > 0 || left == Some(0) {
            wake_others(set);
            return Some(Ok(n));
        }
    }
}

/// A thread that goes back to the program with connections unarmed leaves them to the one that still sleeps.
fn wake_others(set: &'static Set) {
    let list = set.list.lock();
    let wake = list.sleepers > 0 && list.len > 0;
    drop(list);
    if wake {
        ring(set);
    }
}

/// One look at lanes and, when it is time or the look must be complete, at the kernel's part.
fn turn(set: &'static Set, epfd: i32, out: &mut [libc::epoll_event], complete: bool) -> usize {
    news(set);
    let now = clock::ticks();
    let due = {
        let mut list = set.list.lock();
        // Where the kernel had enough for the whole of `out` last time, it is the lanes' turn.
        let due =
            !list.kernel_filled && (complete || now.wrapping_sub(list.kernel_at) > clock::from_us(KERNEL_US));
        list.kernel_filled = false;
        if due {
            list.kernel_at = now;
        }
        due
    };
    let mut n = if due { kernel(set, epfd, out, 0, core::ptr::null()).unwrap_or(0) } else { 0 };
    let list = set.list.lock();
    n += scan(set, list, &mut out[n..]);
    settle_unsettled(set);
    if n == 0 && complete && !due {
        n = kernel(set, epfd, out, 0, core::ptr::null()).unwrap_or(0);
    }
    n
}

/// Connections whose lanes closed under a look go back to the kernel, now that no lock is held.
fn settle_unsettled(set: &'static Set) {
    loop {
        let found = {
            let list = set.list.lock();
            let mut at = list.head;
            let mut found = None;
            while let Some(reg) = reg(at) {
                if let Some(conn) = reg.conn
                    && (conn.block.unsettled.load(Ordering::Relaxed) != 0 || is_left(conn))
                {
                    found = Some((conn, reg.fd));
                    break;
                }
                at = reg.next_active;
            }
            found
        };
        match found {
            Some((conn, _)) if is_left(conn) => restore_left(set, conn),
            Some((conn, fd)) => conn::settle(conn, fd),
            None => return,
        }
    }
}

/// Whether another process that has the connection took it back to TCP.
fn is_left(conn: Conn) -> bool {
    link::of(conn.block).is_none() && ready::modes(conn.block) == (mode::PLAIN, mode::PLAIN)
}

/// `restore` for the registrations in `set` of a connection that is on no link any more.
fn restore_left(set: &'static Set, conn: Conn) {
    let control = CONTROL.lock();
    for index in 1..=control.used {
        if let Some(reg) = reg(index)
            && reg.conn == Some(conn)
            && reg.set.is_some_and(|other| core::ptr::eq(other, set))
        {
            unmanage(reg, index);
            let _ = tell_kernel(reg, index);
        }
    }
}

/// Posted connections go on their active lists.
fn news(set: &'static Set) {
    let Some(cq) = set.cq.load(Ordering::Acquire).checked_sub(1) else { return };
    for link in link::all() {
        if link.has_news(cq as u8) {
            let _control = CONTROL.lock();
            link.take_news(cq as u8, |first| look_at(kin(&AtomicU32::new(first)), Some(set)));
        }
    }
}

/// Whether a turn would find something: for spinning.
fn hot(set: &'static Set) -> bool {
    let Some(cq) = set.cq.load(Ordering::Acquire).checked_sub(1) else { return false };
    if link::all().any(|link| link.has_news(cq as u8)) {
        return true;
    }
    let list = set.list.lock();
    let mut at = list.head;
    while let Some(reg) = reg(at) {
        if let Some(conn) = reg.conn
            && !reg.disarmed
            && ready::changed(conn, reg.events, &reg.seen)
        {
            return true;
        }
        at = reg.next_active;
    }
    false
}

/// Reports what is ready on the active list, each at most once and the first to the back; arms the quiet.
fn scan(
    set: &'static Set,
    mut list: crate::mutex::Guard<'static, List>,
    out: &mut [libc::epoll_event],
) -> usize {
    let mut n = 0;
    for _ in 0..list.len {
        if n == out.len() {
            break;
        }
        let index = list.head;
        let Some(reg) = reg(index) else { break };
        pop(&mut list, index);
        let Some(conn) = reg.conn.filter(|_| reg.managed && !reg.disarmed) else { continue };
        let level = look(reg, conn);
        match report(reg, &level) {
            Some(event) => {
                out[n] = event;
                n += 1;
                reg.quiet = 0;
                if !reg.disarmed {
                    push(&mut list, index);
                }
            }
            None => {
                let quiet = reg.quiet.saturating_add(1);
                if quiet < QUIET || level.full || arm(set, reg, conn, &level) {
                    push(&mut list, index);
                }
                reg.quiet = quiet;
            }
        }
    }
    n
}

fn look(reg: &mut Reg, conn: Conn) -> Level {
    let level = ready::level(conn, reg.fd, reg.events, reg.dirty);
    reg.dirty = level.keep_looking;
    level
}

/// The event to report, if there is one: level-triggered as it stands, edge-triggered once per news.
fn report(reg: &mut Reg, level: &Level) -> Option<libc::epoll_event> {
    let wanted = reg.events | (libc::EPOLLERR | libc::EPOLLHUP) as u32;
    let events = level.events & wanted;
    if events == 0 {
        return None;
    }
    if reg.events & EDGE != 0 && !reg.edge && !level.is_fresh(reg.events, &reg.seen) {
        return None;
    }
    reg.edge = false;
    level.note(events, &mut reg.seen);
    reg.disarmed = reg.events & ONESHOT != 0;
    Some(libc::epoll_event { events, u64: reg.data })
}

/// Declares that publishers of this connection must post. True when there is news since `level` after all.
fn arm(set: &Set, reg: &Reg, conn: Conn, level: &Level) -> bool {
    let Some(cq) = set.cq.load(Ordering::Acquire).checked_sub(1) else { return true };
    let block = conn.block;
    if reg.events & ready::IN != 0
        && let Some(dmb) = rx::dmb(&block.rx)
    {
        wait::arm(&block.rx, dmb.words(), Side::Readers, cq as u8);
    }
    if ready::waits_for_room(block, reg.events, &reg.seen)
        && let Some(dmb) = tx::dmb(&block.tx)
    {
        wait::arm(&block.tx, dmb.words(), Side::Writers, cq as u8);
    }
    level.modes != ready::modes(block) || ready::changed(conn, reg.events, &reg.seen)
}

/// The kernel's part of the set: its own events go to the program, ours are looked at.
fn kernel(
    set: &'static Set,
    epfd: i32,
    out: &mut [libc::epoll_event],
    timeout: i32,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    // Not into the program's array, which beyond its events must stay as it is.
    let mut batch = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
    let (mut n, mut timeout, mut mask) = (0, timeout, mask);
    while n < out.len() {
        let room = (out.len() - n).min(BATCH);
        let got = match sys::sleep_in_epoll(epfd, &mut batch[..room], timeout, mask) {
            Ok(got) => got,
            Err(_) if n > 0 => break,
            Err(errno) => return Err(errno),
        };
        let before = n;
        for event in &batch[..got] {
            match untag(event.u64) {
                None => {
                    out[n] = *event;
                    n += 1;
                }
                Some(BELL) => {}
                Some(word) => {
                    if let Some(event) = tcp_news(set, word, event.events) {
                        out[n] = event;
                        n += 1;
                    }
                }
            }
        }
        // Tags of ours took the place of what the kernel may have for the program.
        if got < room || got == n - before {
            break;
        }
        (timeout, mask) = (0, core::ptr::null());
    }
    if n == out.len() {
        set.list.lock().kernel_filled = true;
    }
    Ok(n)
}

/// The kernel reports the TCP socket of a registration that has our tag. Returns what the program is to see of it.
fn tcp_news(set: &'static Set, word: u32, events: u32) -> Option<libc::epoll_event> {
    let (index, turn) = (word & ((1 << INDEX_BITS) - 1), word >> INDEX_BITS);
    let _control = CONTROL.lock();
    let mut list = set.list.lock();
    let reg = reg(index).filter(|reg| reg.turn == turn)?;
    if !reg.set.is_some_and(|other| core::ptr::eq(other, set)) {
        return None;
    }
    if reg.managed {
        reg.dirty = true;
        // TCP's own edges count while TCP carries the bytes.
        reg.edge |= events & !(libc::EPOLLOUT as u32) != 0
            || reg.conn.is_some_and(|conn| conn.block.tx.mode.load(Ordering::Relaxed) == mode::PLAIN);
        push(&mut list, index);
        return None;
    }
    // A one-shot on TCP. One that has fired still has the kernel's EPOLLERR and EPOLLHUP when it was restored.
    let fires = !core::mem::replace(&mut reg.disarmed, true);
    fires.then_some(libc::epoll_event { events, u64: reg.data })
}

/// Arms everything, declares the sleep, looks once more, and waits in the kernel.
fn sleep(
    set: &'static Set,
    epfd: i32,
    out: &mut [libc::epoll_event],
    left: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let lanes = set.managed.load(Ordering::SeqCst) > 0;
    let mut bound = None;
    if lanes && left != Some(0) {
        let _critical = critical();
        let mut list = set.list.lock();
        let mut news = false;
        for _ in 0..list.len {
            let index = list.head;
            let Some(reg) = reg(index) else { break };
            pop(&mut list, index);
            let Some(conn) = reg.conn.filter(|_| reg.managed && !reg.disarmed) else { continue };
            let level = look(reg, conn);
            let stays = arm(set, reg, conn, &level);
            let wanted = reg.events | (libc::EPOLLERR | libc::EPOLLHUP) as u32;
            let reported = reg.events & EDGE == 0 || reg.edge || level.is_fresh(reg.events, &reg.seen);
            news |= stays || level.settled || level.events & wanted != 0 && reported;
            if level.full {
                bound = Some(u64::from(process::knobs().grace_ms.load(Ordering::Relaxed)) * 1_000_000);
            }
            if stays
                || level.full
                || level.settled
                || level.events & wanted != 0 && reported
                || level.keep_looking && reg.events & EDGE == 0
            {
                push(&mut list, index);
            }
            if conn.block.refs.load(Ordering::Relaxed) > 1 {
                bound = Some(bound.unwrap_or(u64::MAX).min(wait::SHARED_BOUND_NS));
            }
        }
        if news {
            return Ok(0);
        }
        list.sleepers += 1;
        drop(list);
        if let Some(cq) = set.cq.load(Ordering::Acquire).checked_sub(1) {
            link::all().for_each(|link| link.declare_sleep(cq as u8));
            if link::all().any(|link| link.has_news(cq as u8)) {
                set.list.lock().sleepers -= 1;
                return Ok(0);
            }
        }
        process::count_sleep();
    }
    let shortest = match (left, bound) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    };
    let ms = shortest.map_or(-1, |ns| i32::try_from(ns.div_ceil(1_000_000)).unwrap_or(i32::MAX));
    let result = kernel(set, epfd, out, ms, mask);
    if lanes && left != Some(0) {
        let mut list = set.list.lock();
        list.sleepers -= 1;
        list.kernel_at = clock::ticks();
    }
    if let Ok(n) = result
        && n > 0
        && has_lanes(set)
    {
        news(set);
        let list = set.list.lock();
        return Ok(n + scan(set, list, &mut out[n..]));
    }
    result
}

/// Somebody is about to wait for the set itself: its connections go back to TCP, for good. With no lock held.
pub fn watch(set: &'static Set) {
    // SeqCst: pairs with `take_over`, which looks after it has counted itself.
    set.watched.store(true, Ordering::SeqCst);
    let mut after = 0;
    while set.managed.load(Ordering::SeqCst) > 0 {
        let Some((index, conn, fd)) = managed_after(set, after) else { return };
        conn::revoke_for_good(conn, fd, Reason::EpollSets);
        after = index;
    }
}

fn managed_after(set: &'static Set, after: u32) -> Option<(u32, Conn, i32)> {
    let control = CONTROL.lock();
    (after + 1..=control.used).find_map(|index| {
        let reg = reg(index)?;
        let ours = reg.managed && reg.set.is_some_and(|other| core::ptr::eq(other, set));
        reg.conn.filter(|_| ours).map(|conn| (index, conn, reg.fd))
    })
}

/// Why the connection at `fd` must not come on a lane: how it is registered in epoll sets.
pub fn bars(fd: i32) -> Option<Reason> {
    if !watches(fd) {
        return open_sets().any(|set| kernel_knows(set, fd)).then_some(Reason::IoUring);
    }
    let _control = CONTROL.lock();
    let watched =
        |index| reg(index).and_then(|reg| reg.set).is_some_and(|set| set.watched.load(Ordering::SeqCst));
    indices(fd).any(watched).then_some(Reason::EpollSets)
}

fn open_sets() -> impl Iterator<Item = &'static Set> {
    let used = NEXT_SET.load(Ordering::Relaxed).min(SETS);
    SETS_AT.iter().take(used).filter(|set| set.refs.load(Ordering::Acquire) != 0)
}

/// Whether the kernel has a registration of `fd` in the set, by whomever: io_uring and raw system calls make
/// them behind our back. Asked of /proc/self/fdinfo (proc_pid_fdinfo(5)), without memory of its own.
fn kernel_knows(set: &Set, fd: i32) -> bool {
    use rustix::fs::{Mode, OFlags};
    let mut path = [0u8; 40];
    let mut rest = &mut path[..];
    if write!(rest, "/proc/self/fdinfo/{}\0", set.epfd.load(Ordering::Relaxed)).is_err() {
        return false;
    }
    let Ok(path) = core::ffi::CStr::from_bytes_until_nul(&path) else { return false };
    let Ok(file) = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return false;
    };
    let mut targets = Targets::default();
    let mut bytes = [0u8; 4096];
    while let Ok(n @ 1..) = rustix::io::read(&file, &mut bytes) {
        if bytes[..n].iter().any(|&byte| targets.next(byte) == Some(fd)) {
            return true;
        }
    }
    false
}

/// Finds the numbers of the lines "tfd: N ..." in a stream of bytes.
#[derive(Default)]
struct Targets {
    /// Bytes of "tfd:" seen since the line's beginning; more: not such a line, or its number is over.
    at: usize,
    number: Option<i32>,
}

impl Targets {
    /// The number that ends with this byte.
    fn next(&mut self, byte: u8) -> Option<i32> {
        const KEY: &[u8] = b"tfd:";
        match (byte, KEY.get(self.at)) {
            (b'\n', _) => *self = Self::default(),
            (byte, Some(&key)) if byte == key => self.at += 1,
            (b'0'..=b'9', None) if self.at == KEY.len() => {
                let digit = i32::from(byte - b'0');
                self.number = Some(self.number.unwrap_or(0).saturating_mul(10).saturating_add(digit));
            }
            (b' ', None) if self.number.is_none() => {}
            _ => {
                self.at = KEY.len() + 1;
                return self.number.take();
            }
        }
        None
    }
}

/// Whether lanes are in the set.
pub fn has_lanes(set: &Set) -> bool {
    set.managed.load(Ordering::SeqCst) > 0
}

/// In a forked child: only this thread exists, no lock is held by anybody.
pub fn after_fork_in_child() {
    CONTROL.reopen();
    for set in &SETS_AT {
        set.list.reopen();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn targets(text: &str) -> Vec<i32> {
        let mut targets = Targets::default();
        text.bytes().filter_map(|byte| targets.next(byte)).collect()
    }

    #[test]
    fn the_kernel_s_list_of_registrations_is_read_to_its_numbers() {
        let line = "tfd:        7 events:       19 data:                7  pos:0 ino:1b sdev:8\n";
        assert_eq!(
            targets(&format!(
                "pos:\t0\nflags:\t02\nmnt_id:\t15\nino:\t1\n{line}{}",
                line.replace('7', "412")
            )),
            [7, 412]
        );
        assert_eq!(targets("data: 7\nxtfd: 9 \ntfd 3 \n"), []);
    }
}
