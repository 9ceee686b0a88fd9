//! poll and select over mixed descriptors: lanes are answered here, the rest by the kernel, in one wait.

use core::sync::atomic::Ordering;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use shunpike_shm::arena::mode;
use shunpike_shm::lane::Side;

use crate::host::{host, is_alone};
use crate::spin::spin;
use crate::table::{self, Conn, Entry};
use crate::tls::critical;
use crate::trace::Sleep;
use crate::wait::{self, Waiter};
use crate::{
    above, call, eager, holders, process, ready, seen, session, sets, state, sys, told, tx, upgrade, user,
};

/// Where no lane can open for so long, nobody needs to ring.
const STAYS_NS: u64 = 10_000_000;
/// Descriptors of a call that are handled on the stack.
const FEW: usize = 64;

/// Whether the kernel's poll takes so many entries: not more than RLIMIT_NOFILE, which is asked for only where it may well be less.
pub fn is_permitted(n: usize) -> bool {
    const USUAL: usize = 1024;
    n <= USUAL || getrlimit(Resource::Nofile).current.is_none_or(|most| n as u64 <= most)
}

/// Whether a descriptor of the call is, or may come while it sleeps, on a lane: use `poll`. Else libc's business.
pub fn concerns_us(fds: &[libc::pollfd]) -> bool {
    if !fds.iter().any(|one| ours(one.fd)) {
        return false;
    }
    seen::polls();
    if !is_alone() {
        return true;
    }
    // Nobody else could open a lane meanwhile, unless the broker is to be heard. A handler that does ends the call.
    session::pump_if_news();
    let on_lane = |one: &libc::pollfd| match table::look(one.fd) {
        Entry::Conn(conn) => state::on_lane(conn),
        Entry::Set(set) => sets::has_lanes(set),
        _ => false,
    };
    eager::attention().is_some() || fds.iter().any(on_lane)
}

fn ours(fd: i32) -> bool {
    match table::look(fd) {
        Entry::Conn(_) => true,
        Entry::Set(set) => sets::has_lanes(set),
        _ => false,
    }
}

/// poll(2) with lanes among `fds`. `timeout` in nanoseconds.
pub fn poll(
    fds: &mut [libc::pollfd],
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
) -> Result<usize, Errno> {
    let signals = call::restarts_before().0;
    seen::polls();
    session::pump_if_news();
    let Some(mut kernel) = Scratch::new(fds.len() + 2) else { return Err(Errno::NOMEM) };
    poll_with(fds, kernel.slice(), timeout, mask, signals)
}

/// `signals` were handled before the call.
fn poll_with(
    fds: &mut [libc::pollfd],
    kernel: &mut [libc::pollfd],
    timeout: Option<u64>,
    mask: *const libc::sigset_t,
    signals: u32,
) -> Result<usize, Errno> {
    let deadline = call::deadline(timeout.filter(|&ns| ns > 0));
    // TCP's part of a lane is asked now and then, and after a sleep that watched it.
    let mut slept = false;
    // The kernel had nothing to tell until the time was over, and would have let signals in. Where it has something it lets none in.
    let mut has_let_in = mask.is_null();
    loop {
        let mut n = 0;
        let mut others = false;
        let mut lanes = false;
        for (one, slot) in fds.iter_mut().zip(kernel.iter_mut()) {
            one.revents = 0;
            let has_ended = has_ended(slot);
            *slot = libc::pollfd { fd: one.fd, events: one.events, revents: 0 };
            match table::look(one.fd) {
                Entry::Conn(conn) if state::on_lane(conn) => {
                    let tcp = slept || ready::tcp_due(conn);
                    let level = ready::level(conn, one.fd, one.events as u16 as u32, tcp);
                    if level.keep_looking {
                        ready::ask_tcp_again(conn);
                    }
                    above::settle(conn, one.fd);
                    let wanted = one.events | libc::POLLERR | libc::POLLHUP;
                    // RDNORM and WRNORM are IN and OUT under their STREAMS names.
                    one.revents = (level.events as i16 | norm(level.events as i16)) & wanted;
                    if one.revents & (libc::POLLIN | libc::POLLOUT) != 0 {
                        shown(conn, one.revents);
                    }
                    (slot.fd, slot.events) = (-1, if has_ended { libc::POLLRDHUP } else { 0 });
                    lanes = true;
                }
                Entry::Set(set) => {
                    sets::watch(set);
                    others = true;
                }
                _ => others |= one.fd >= 0,
            }
            n += usize::from(one.revents != 0);
        }
        // A pending signal that the mask lets in ends the call where nothing is ready, and no other one.
        let lets_in = if n == 0 { mask } else { core::ptr::null() };
        let at_once = timeout == Some(0);
        if others && (lanes || at_once) || at_once && !lets_in.is_null() {
            sys::poll(&mut kernel[..fds.len()], Some(0), lets_in)?;
            n += take(fds, kernel);
        }
        if n > 0 || timeout == Some(0) {
            return Ok(n);
        }
        // Who waits for notices alone waits for the receiver's copying: too long to spin.
        let wants = |one: &libc::pollfd| one.events != 0;
        let left = || call::remaining(deadline);
        if lanes && fds.iter().any(wants) && spin(left().unwrap_or(Some(0)), || any_changed(fds)) {
            continue;
        }
        let left = match left() {
            Ok(left) => left,
            Err(_) if call::ends_wait(signals, mask) => return Err(Errno::INTR),
            // Whoever is late has yet to let signals in that the mask does not keep back: one that is pending ends the call.
            Err(_) if has_let_in => return Ok(0),
            Err(_) if slept => return sys::poll(&mut [], Some(0), mask),
            Err(_) => Some(0),
        };
        // Without one (no descriptor left, a filter of system calls) nobody can ring: look again now and then.
        let stays = if lanes { 0 } else { stays_plain(fds) };
        let rung = stays < STAYS_NS;
        let cq = if rung { wait::sleeping_cq() } else { 0 };
        let sleeper = if rung { wait::thread_sleeper().unwrap_or(-1) } else { -1 };
        let unheard = unheard(fds);
        let declared = Waiter::declare(|| prepare(fds, kernel, cq), || any_changed(fds));
        let Some((waiter, (armed, bound))) = declared else { continue };
        lanes |= armed;
        kernel[fds.len()] = libc::pollfd { fd: sleeper, events: libc::POLLIN, revents: 0 };
        let unrung = match stays {
            _ if sleeper >= 0 => None,
            _ if lanes => Some(wait::UNRUNG_NS),
            _ if rung => Some(wait::SHARED_BOUND_NS),
            // For ever: a time, however long, would cost the kernel a timer.
            u64::MAX => None,
            stays => Some(stays),
        };
        let shortest = [left, bound, unrung, unheard].into_iter().flatten().min();
        let (session, shortest) = match eager::attention() {
            Some((session, most)) => (session, Some(shortest.map_or(most, |ns| ns.min(most)))),
            None => (libc::pollfd { fd: -1, events: 0, revents: 0 }, shortest),
        };
        kernel[fds.len() + 1] = session;
        let ours = if session.fd >= 0 { 2 } else { usize::from(sleeper >= 0) };
        if call::ends_wait(signals, mask) {
            return Err(Errno::INTR);
        }
        let asleep = lanes.then(|| wait::Asleep::begin(waiter, Sleep::Poll, -1));
        let mut polled = (host().poll)(&mut kernel[..fds.len() + ours], shortest, mask);
        if ours > 0 && polled == Err(Errno::INVAL) {
            // The kernel refuses more entries than a process may have descriptors, and takes the program's own.
            polled = (host().poll)(&mut kernel[..fds.len()], Some(wait::brief(shortest)), mask);
        }
        if let Some(asleep) = asleep {
            asleep.end_on(cq);
        }
        has_let_in = polled? == 0 && shortest == left || mask.is_null();
        if ours > 0 {
            if kernel[fds.len()].revents != 0 {
                wait::consume_edge(sleeper);
            }
            if session.fd >= 0 && (kernel[fds.len() + 1].revents != 0 || session::is_refused()) {
                session::pump();
            }
        }
        slept = true;
        if !lanes {
            n = take(fds, kernel);
            if n > 0 {
                return Ok(n);
            }
        }
    }
}

/// For how long it is borne that bytes of ours are unread by readers that have declared no wait, nanoseconds.
fn unheard(fds: &[libc::pollfd]) -> Option<u64> {
    let of_one = |one: &libc::pollfd| match table::look(one.fd) {
        Entry::Conn(conn) => tx::unheard(conn, one.fd),
        _ => None,
    };
    fds.iter().filter_map(of_one).min()
}

/// For how long no lane can open, while this thread sleeps, on a connection of the call that has none, nanoseconds. A
/// doorbell among what the kernel watches costs about as much as the call itself.
fn stays_plain(fds: &[libc::pollfd]) -> u64 {
    // Nobody else could open it. A handler that does ends the sleep.
    let alone = is_alone();
    let stays = |one: &libc::pollfd| match table::look(one.fd) {
        Entry::Conn(_) if alone => u64::MAX,
        Entry::Conn(conn) => upgrade::not_within(conn.block),
        Entry::Set(_) => 0,
        _ => u64::MAX,
    };
    fds.iter().map(stays).min().unwrap_or(u64::MAX)
}

/// The call tells the program of `revents`.
fn shown(conn: Conn, revents: i16) {
    let _critical = critical();
    for (bit, dmb, side) in [
        (libc::POLLIN, state::rx_dmb(&conn.block.rx), Side::Readers),
        (libc::POLLOUT, state::tx_dmb(&conn.block.tx), Side::Writers),
    ] {
        if let Some(dmb) = dmb.filter(|_| revents & bit != 0) {
            sets::shown(conn, dmb.words(), side);
        }
    }
}

fn norm(events: i16) -> i16 {
    let mut more = 0;
    if events & libc::POLLIN != 0 {
        more |= libc::POLLRDNORM;
    }
    if events & libc::POLLOUT != 0 {
        more |= libc::POLLWRNORM;
    }
    more
}

/// The kernel's answers for what is its own.
fn take(fds: &mut [libc::pollfd], kernel: &[libc::pollfd]) -> usize {
    let mut n = 0;
    for (one, slot) in fds.iter_mut().zip(kernel) {
        if slot.fd >= 0 && slot.revents != 0 {
            one.revents = slot.revents;
            n += 1;
        }
    }
    n
}

fn any_changed(fds: &[libc::pollfd]) -> bool {
    fds.iter().any(|one| match table::look(one.fd) {
        Entry::Conn(conn) if state::on_lane(conn) => {
            ready::changed(conn, one.events as u16 as u32, &told::Seen::NOTHING)
        }
        _ => false,
    })
}

/// What `prepare` asks for of each lane's TCP socket, beside what it waits for there: it is told anyway, and marks the slot.
const OF_A_LANE: i16 = libc::POLLHUP;

/// Whether TCP has told in this call that the peer has ended its stream, which it goes on telling.
fn has_ended(slot: &libc::pollfd) -> bool {
    if slot.fd < 0 {
        return slot.events & libc::POLLRDHUP != 0;
    }
    slot.events & OF_A_LANE != 0
        && (slot.revents & libc::POLLRDHUP != 0 || slot.events & libc::POLLRDHUP == 0)
}

/// Arms every lane of the call for queue `cq`, and puts its TCP socket among what the kernel watches. Returns
/// whether there was one, and how long the sleep may be at most.
fn prepare(fds: &[libc::pollfd], kernel: &mut [libc::pollfd], cq: u8) -> (bool, Option<u64>) {
    let _critical = critical();
    let mut armed = false;
    let mut bound: Option<u64> = None;
    for (one, slot) in fds.iter().zip(kernel.iter_mut()) {
        // Perhaps only since the look, by another thread, there is no lane: all that it waits for is the kernel's now.
        let Some(conn) = table::conn(one.fd).filter(|conn| state::on_lane(*conn)) else {
            (slot.fd, slot.events) = (one.fd, one.events);
            continue;
        };
        armed = true;
        let block = conn.block;
        // Whatever it waits for: POLLERR is always told.
        block.notices.sleep(cq);
        // Who waits for neither bytes nor the peer's end would not sleep any more once that has come.
        let wants_end = one.events & (libc::POLLIN | libc::POLLRDNORM | libc::POLLRDHUP) != 0;
        let mut events = OF_A_LANE;
        if wants_end || !has_ended(slot) {
            events |= libc::POLLRDHUP;
        }
        if one.events & (libc::POLLIN | libc::POLLRDNORM) != 0 {
            events |= libc::POLLIN;
            if let Some(dmb) = state::rx_dmb(&block.rx) {
                wait::declare(block, &block.rx, dmb.words(), Side::Readers, cq);
                bound = bound.into_iter().chain(ready::sleeps_at_most(conn, one.events as u16 as u32)).min();
            }
        }
        if tx::owes(&block.tx) {
            events |= libc::POLLOUT;
        } else if one.events & (libc::POLLOUT | libc::POLLWRNORM) != 0 || block.notices.pending() != 0 {
            match state::tx_dmb(&block.tx).filter(|_| block.tx.mode.load(Ordering::Relaxed) == mode::LANE) {
                Some(dmb) => {
                    wait::declare(block, &block.tx, dmb.words(), Side::Writers, cq);
                    bound = bound.into_iter().chain([tx::looks_again(&block.tx)]).min();
                }
                None => events |= libc::POLLOUT,
            }
        }
        if holders::shared(block) {
            bound = Some(bound.map_or(wait::SHARED_BOUND_NS, |other| other.min(wait::SHARED_BOUND_NS)));
        }
        *slot = libc::pollfd { fd: one.fd, events: events | one.events & libc::POLLPRI, revents: 0 };
    }
    (armed, bound)
}

/// Memory for a call's descriptors: poll may be called in a signal handler, so no malloc. Few are kept inline.
struct Scratch {
    few: [libc::pollfd; FEW],
    many: *mut libc::pollfd,
    n: usize,
}

impl Scratch {
    fn new(n: usize) -> Option<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let mut many = core::ptr::null_mut();
        if n > FEW {
            let len = n * size_of::<libc::pollfd>();
            let access = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: a fresh anonymous mapping touches no memory of ours.
            let made = unsafe { mmap_anonymous(core::ptr::null_mut(), len, access, MapFlags::PRIVATE) };
            many = made.ok()?.cast();
        }
        Some(Self { few: [libc::pollfd { fd: -1, events: 0, revents: 0 }; FEW], many, n })
    }

    fn slice(&mut self) -> &mut [libc::pollfd] {
        if self.many.is_null() {
            return &mut self.few[..self.n];
        }
        // SAFETY: our own mapping of n zeroed pollfds, borrowed as `self` is.
        unsafe { core::slice::from_raw_parts_mut(self.many, self.n) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.many.is_null() {
            // SAFETY: our own mapping; the slice lent out borrowed from self.
            let _ = unsafe { rustix::mm::munmap(self.many.cast(), self.n * size_of::<libc::pollfd>()) };
        }
    }
}

/// How many of `nfds` descriptors a select(2) looks at. The kernel stops at the size of its own table, so programs may pass
/// their limit of descriptors and sets of FD_SETSIZE bits. We make that table large (`descriptors`): here the program's own
/// count.
pub fn select_width(nfds: i32) -> i32 {
    const USUAL: i32 = libc::FD_SETSIZE as i32;
    if nfds <= USUAL || !process::enabled() {
        return nfds;
    }
    let theirs = |fd| !matches!(table::look(fd), Entry::Internal);
    nfds.min(sys::highest_open(theirs).map_or(USUAL, |highest| USUAL.max(highest + 1)))
}

/// One set of select(2): bits in the program's memory, or none.
type FdSet = *mut u64;

/// Whether select's sets hold something of ours; `fds` is the call as pollfds.
pub struct Select {
    scratch: Scratch,
    used: usize,
    sets: [FdSet; 3],
    words: usize,
}

/// What each of the three sets asks for, and what it is told of.
const ASKED: [i16; 3] = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
const WANTS: [i16; 3] = [
    libc::POLLIN | libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR,
    libc::POLLOUT | libc::POLLERR,
    libc::POLLPRI,
];

/// For each of the three sets, whether it has what was told of.
fn bits(one: &libc::pollfd) -> impl Iterator<Item = bool> {
    let (events, revents) = (one.events, one.revents);
    ASKED.into_iter().zip(WANTS).map(move |(asked, told)| events & asked != 0 && revents & told != 0)
}

impl Select {
    /// The call as pollfds. `None` when no descriptor in it is ours: libc's business.
    ///
    /// # Safety
    /// Each set is null or the program's, with `nfds` bits, rounded up to a long.
    pub unsafe fn new(nfds: i32, sets: [FdSet; 3]) -> Option<Self> {
        if !table::any() {
            return None;
        }
        let nfds = usize::try_from(nfds).ok()?;
        let words = nfds.div_ceil(64);
        let len = words * size_of::<u64>();
        // SAFETY: the program's sets, given to us to write to.
        let sound = |set: &FdSet| set.is_null() || unsafe { user::writable(set.cast(), len) };
        if !sets.iter().all(sound) {
            return None;
        }
        let at = |set: FdSet, fd: usize| {
            // SAFETY: fd < nfds, so inside the program's set.
            !set.is_null() && unsafe { *set.add(fd / 64) } >> (fd % 64) & 1 != 0
        };
        let in_any = |fd: usize| sets.iter().any(|&set| at(set, fd));
        if !(0..nfds).any(|fd| !table::is_none(fd as i32) && in_any(fd) && ours(fd as i32)) {
            return None;
        }
        let count = (0..nfds).filter(|&fd| in_any(fd)).count();
        let mut scratch = Scratch::new(count)?;
        let mut used = 0;
        for fd in (0..nfds).filter(|&fd| in_any(fd)) {
            let events = (0..3).filter(|&i| at(sets[i], fd)).fold(0, |sum, i| sum | ASKED[i]);
            scratch.slice()[used] = libc::pollfd { fd: fd as i32, events, revents: 0 };
            used += 1;
        }
        Some(Self { scratch, used, sets, words })
    }

    /// The descriptors of the call.
    pub fn fds(&mut self) -> &mut [libc::pollfd] {
        &mut self.scratch.slice()[..self.used]
    }

    /// Where all that was told of is no bit of any set, takes it out of the call, and says so: the kernel's select waits on.
    pub fn mutes(&mut self) -> bool {
        let mutes = !self
            .fds()
            .iter()
            .any(|one| one.revents & libc::POLLNVAL != 0 || bits(one).any(|is_told| is_told));
        if mutes {
            self.fds().iter_mut().filter(|one| one.revents != 0).for_each(|one| one.fd = -1);
        }
        mutes
    }

    /// Writes the result back and returns the number of bits, as select does. Errors: EBADF.
    pub fn answer(&mut self) -> Result<usize, Errno> {
        if self.fds().iter().any(|one| one.revents & libc::POLLNVAL != 0) {
            return Err(Errno::BADF);
        }
        let sets = self.sets;
        for set in self.sets.into_iter().filter(|set| !set.is_null()) {
            for word in 0..self.words {
                // SAFETY: as in `new`.
                unsafe { *set.add(word) = 0 };
            }
        }
        let mut n = 0;
        for one in self.fds().iter() {
            for (i, is_told) in bits(one).enumerate() {
                if is_told {
                    let fd = one.fd as usize;
                    // SAFETY: as in `new`.
                    unsafe { *sets[i].add(fd / 64) |= 1 << (fd % 64) };
                    n += 1;
                }
            }
        }
        Ok(n)
    }
}
