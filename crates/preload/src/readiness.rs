//! Readiness: poll, select, epoll.

use core::ffi::c_int;
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use shunpike_core::table::{self, Entry};
use shunpike_core::{call, clock, conn, epoll, poll as mixed, seen, sets, user};

use crate::this_libc::is_musl;

use crate::answers::result;
use crate::cancel::cancellation_point;
use crate::errno::set_errno;

/// Nanoseconds of a program's time; `None` when the kernel must refuse it.
pub fn nanoseconds(ts: timespec) -> Option<u64> {
    let sound = ts.tv_sec >= 0 && (0..1_000_000_000).contains(&ts.tv_nsec);
    sound.then(|| (ts.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(ts.tv_nsec as u64))
}

/// A program's timeout, nanoseconds: `Ok(None)` for ever, `Err` when the kernel must refuse it.
pub unsafe fn limit(ts: *const timespec) -> Result<Option<u64>, ()> {
    if ts.is_null() {
        return Ok(None);
    }
    // SAFETY: a C struct of integers.
    unsafe { user::fetch(ts) }.and_then(nanoseconds).map(Some).ok_or(())
}

/// A program's timeout in milliseconds as nanoseconds; `None` for ever.
pub fn milliseconds(ms: c_int) -> Option<u64> {
    u64::try_from(ms).ok().map(|ms| ms * 1_000_000)
}

/// Most descriptors of a call to poll that are looked at.
const MOST: nfds_t = 1 << 20;

unsafe fn slice<'a>(fds: *mut pollfd, n: nfds_t) -> Option<&'a mut [pollfd]> {
    if n == 0 || n > MOST || !table::any() || !mixed::is_permitted(n as usize) {
        return None;
    }
    let (n, len) = (n as usize, n as usize * size_of::<pollfd>());
    if !fds.is_aligned() || !user::readable(fds.cast(), len) {
        return None;
    }
    // SAFETY: the program's array of n entries, which are there.
    if !mixed::concerns_us(unsafe { core::slice::from_raw_parts(fds, n) }) {
        return None;
    }
    // SAFETY: the program's, which gives it to us to write to.
    if !unsafe { user::writable(fds.cast(), len) } {
        return None;
    }
    cancellation_point();
    // SAFETY: as above.
    Some(unsafe { core::slice::from_raw_parts_mut(fds, n) })
}

/// Begins a wait with this mask, or with none. False where the mask cannot be read: the kernel refuses such a call before it looks at anything else.
#[inline(always)]
fn begins(mask: *const sigset_t) -> bool {
    mask.is_null() || {
        call::begin_masked();
        // The kernel's own set of signals.
        user::readable(mask.cast(), size_of::<u64>())
    }
}

/// Looks up libc's waits now: a sleep's first use would write to a line that other threads read.
pub fn find_waits() {
    for name in [&behind::ppoll, &behind::epoll_pwait, &behind::epoll_pwait2] {
        name.address();
    }
}

hooks! {
    /// poll(2)
    fn poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int {
        poll_by((fds, n), || Ok(milliseconds(timeout)), core::ptr::null(), || covered::poll(fds, n, timeout))
    }
    /// poll(2), glibc's internal name
    fn __poll(fds: *mut pollfd, n: nfds_t, timeout: c_int) -> c_int { poll(fds, n, timeout) }
    /// poll(2) with the array's size known
    fn __poll_chk(fds: *mut pollfd, n: nfds_t, timeout: c_int, size: size_t) -> c_int {
        if size / size_of::<pollfd>() < n as usize {
            covered::__poll_chk(fds, n, timeout, size)
        } else {
            poll(fds, n, timeout)
        }
    }
    /// ppoll(2)
    fn ppoll(fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int {
        poll_by((fds, n), || limit(timeout), mask, || covered::ppoll(fds, n, timeout, mask))
    }
    /// ppoll(2) with the array's size known
    fn __ppoll_chk(
        fds: *mut pollfd, n: nfds_t, timeout: *const timespec, mask: *const sigset_t, size: size_t,
    ) -> c_int {
        if size / size_of::<pollfd>() < n as usize {
            covered::__ppoll_chk(fds, n, timeout, mask, size)
        } else {
            ppoll(fds, n, timeout, mask)
        }
    }
    /// select(2); the time left is written back, as Linux does
    fn select(
        n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval,
    ) -> c_int {
        // musl keeps the program's time as it is.
        let mut copy = if is_musl() && !timeout.is_null() { user::fetch(timeout) } else { None };
        let time = copy.as_mut().map_or(timeout, core::ptr::from_mut);
        select_by((n, [read, write, except]), time, |n| covered::select(n, read, write, except, timeout))
    }
    /// select(2), glibc's internal name
    fn __select(
        n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval,
    ) -> c_int {
        select(n, read, write, except, timeout)
    }
    /// pselect(2)
    fn pselect(
        n: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec,
        mask: *const sigset_t,
    ) -> c_int {
        pselect_by((n, [read, write, except]), limit(timeout), mask, |n| {
            covered::pselect(n, read, write, except, timeout, mask)
        })
    }
    /// epoll_create(2)
    fn epoll_create(size: c_int) -> c_int {
        let fd = covered::epoll_create(size);
        if fd >= 0 { conn::set_created(fd); }
        fd
    }
    /// epoll_create1(2)
    fn epoll_create1(flags: c_int) -> c_int {
        let fd = covered::epoll_create1(flags);
        if fd >= 0 { conn::set_created(fd); }
        fd
    }
    /// epoll_ctl(2)
    fn epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int {
        ctl_by(epfd, op, fd, event, || covered::epoll_ctl(epfd, op, fd, event))
    }
    /// epoll_wait(2)
    fn epoll_wait(epfd: c_int, events: *mut epoll_event, n: c_int, timeout: c_int) -> c_int {
        wait(epfd, events, n, milliseconds(timeout), core::ptr::null(), || covered::epoll_wait(epfd, events, n, timeout))
    }
    /// epoll_pwait(2)
    fn epoll_pwait(
        epfd: c_int, events: *mut epoll_event, n: c_int, timeout: c_int, mask: *const sigset_t,
    ) -> c_int {
        wait(epfd, events, n, milliseconds(timeout), mask, || covered::epoll_pwait(epfd, events, n, timeout, mask))
    }
    /// epoll_pwait2(2)
    fn epoll_pwait2(
        epfd: c_int, events: *mut epoll_event, n: c_int, timeout: *const timespec, mask: *const sigset_t,
    ) -> c_int {
        let covered = || covered::epoll_pwait2(epfd, events, n, timeout, mask);
        match limit(timeout) {
            Ok(ns) => wait(epfd, events, n, ns, mask, covered),
            Err(()) => covered(),
        }
    }
}

/// epoll_ctl, of which `covered` is libc's own.
#[inline(always)]
pub unsafe fn ctl_by(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
    covered: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the program's.
    let wish = if event.is_null() { None } else { unsafe { user::fetch_event(event) } };
    // An event that cannot be read is the kernel's to refuse, unless it does not look at it.
    let unread = wish.is_none() && !event.is_null() && op != libc::EPOLL_CTL_DEL;
    match if unread { None } else { sets::ctl(epfd, op, fd, wish) } {
        Some(done) => result(done.map(|()| 0)),
        None => covered(),
    }
}

/// poll and its kin, of which `covered` is libc's own. `limit`: nanoseconds; `Err` when the kernel must refuse it.
#[inline(always)]
pub unsafe fn poll_by(
    (fds, n): (*mut pollfd, nfds_t),
    limit: impl FnOnce() -> Result<Option<u64>, ()>,
    mask: *const sigset_t,
    covered: impl FnOnce() -> c_int,
) -> c_int {
    // SAFETY: the caller's.
    let ours = unsafe { slice(fds, n) };
    match ours.filter(|_| begins(mask)).and_then(|ours| Some((ours, limit().ok()?))) {
        Some((ours, ns)) => {
            let told = mixed::poll(&mut *ours, ns, mask);
            if let Ok(told @ 1..) = told {
                seen::told(ours, told);
            }
            result(told)
        }
        None => {
            let told = covered();
            if told > 0 && n <= MOST && fds.is_aligned() && table::any() {
                // SAFETY: the program's array of n entries. The kernel has read and written them just now, as the program will.
                seen::told(unsafe { core::slice::from_raw_parts(fds, n as usize) }, told as usize);
            }
            told
        }
    }
}

/// The descriptors of a call to select: below so many, those to read from, to write to, and others.
pub type Selected = (c_int, [*mut fd_set; 3]);

/// select, of which `covered` is libc's own for so many descriptors.
pub unsafe fn select_by(
    (n, sets): Selected,
    timeout: *mut timeval,
    covered: impl FnOnce(c_int) -> c_int,
) -> c_int {
    let n = mixed::select_width(n);
    // SAFETY: the program's sets.
    let Some(mut call) = (unsafe { mixed::Select::new(n, sets.map(<*mut fd_set>::cast)) }) else {
        return covered(n);
    };
    // SAFETY: libc itself looks at the time: a bad pointer is the program's fault there, too.
    let ns = match unsafe { timeout.as_ref() } {
        Some(tv) if tv.tv_sec < 0 || tv.tv_usec < 0 => {
            set_errno(libc::EINVAL);
            return -1;
        }
        Some(tv) => {
            Some((tv.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(tv.tv_usec as u64 * 1000))
        }
        None => None,
    };
    let begin = clock::now();
    let done = answered(&mut call, ns, core::ptr::null());
    // SAFETY: as above.
    if let (Some(ns), Some(tv)) = (ns, unsafe { timeout.as_mut() }) {
        let left = ns.saturating_sub(clock::now() - begin);
        tv.tv_sec = (left / 1_000_000_000) as i64;
        tv.tv_usec = (left % 1_000_000_000 / 1000) as i64;
    }
    done
}

/// pselect; as above.
pub unsafe fn pselect_by(
    (n, sets): Selected,
    limit: Result<Option<u64>, ()>,
    mask: *const sigset_t,
    covered: impl FnOnce(c_int) -> c_int,
) -> c_int {
    let n = mixed::select_width(n);
    // SAFETY: the program's sets.
    let call = unsafe { mixed::Select::new(n, sets.map(<*mut fd_set>::cast)) };
    match (call, limit) {
        (Some(mut call), Ok(ns)) if begins(mask) => answered(&mut call, ns, mask),
        _ => covered(n),
    }
}

fn answered(call: &mut mixed::Select, ns: Option<u64>, mask: *const sigset_t) -> c_int {
    let began = ns.map(|_| clock::now());
    let mut left = ns;
    loop {
        let told = mixed::poll(call.fds(), left, mask);
        if let Ok(told @ 1..) = told {
            seen::told(call.fds(), told);
            if call.mutes() {
                left = ns.zip(began).map(|(ns, began)| ns.saturating_sub(clock::now() - began));
                continue;
            }
        }
        return result(told.and_then(|_| call.answer()));
    }
}

/// epoll_wait and its kin, of which `covered` is libc's own.
#[inline(always)]
pub unsafe fn wait(
    mut epfd: c_int,
    events: *mut epoll_event,
    n: c_int,
    timeout: Option<u64>,
    mask: *const sigset_t,
    covered: impl Fn() -> c_int,
) -> c_int {
    let Entry::Set(set) = table::look(epfd) else { return covered() };
    // The counter is not looked at where nothing hangs on it.
    let now = || if matches!(timeout, None | Some(0)) { 0 } else { clock::ticks() };
    let mut left = timeout;
    if let Some(kernels) = epoll::kernels(set) {
        let begin = now();
        let told = covered();
        kernels.returned();
        if kernels.is_all(told, n) {
            return told;
        }
        let out: &mut [epoll_event] = match told as usize {
            // Then the kernel does not look at the address either.
            0 => &mut [],
            // SAFETY: of the program's array of n events, those that the kernel has written.
            told => unsafe { core::slice::from_raw_parts_mut(events, told) },
        };
        if let Some(n) = kernels.end(out) {
            return n as c_int;
        }
        match sets::number_of(set, epfd) {
            Ok(number) => epfd = number,
            Err(errno) => return result(Err(errno)),
        }
        left = timeout.map(|ns| ns.saturating_sub(clock::to_ns(now().saturating_sub(begin))));
    }
    if !begins(mask) {
        return covered();
    }
    // SAFETY: the caller's.
    unsafe { wait_for_lanes(set, epfd, (events, n), left, mask) }.unwrap_or_else(covered)
}

/// `None`: a call that the kernel refuses.
#[inline(never)]
unsafe fn wait_for_lanes(
    set: &'static shunpike_core::set::Set,
    epfd: c_int,
    (events, n): (*mut epoll_event, c_int),
    timeout: Option<u64>,
    mask: *const sigset_t,
) -> Option<c_int> {
    // EP_MAX_EVENTS (fs/eventpoll.c): beyond, and below 1, the kernel refuses.
    const MOST: usize = i32::MAX as usize / size_of::<epoll_event>();
    let n = usize::try_from(n).ok().filter(|n| (1..=MOST).contains(n))?;
    if !user::plausible(events.cast(), n * size_of::<epoll_event>()) {
        return None;
    }
    cancellation_point();
    // SAFETY: the program's, which gives it to us to write to.
    if !unsafe { user::writable(events.cast(), size_of::<epoll_event>()) } {
        set_errno(libc::EFAULT);
        return Some(-1);
    }
    // SAFETY: the program's array of n events.
    let out = unsafe { core::slice::from_raw_parts_mut(events, n) };
    Some(result(epoll::wait(set, epfd, out, timeout, mask)))
}
