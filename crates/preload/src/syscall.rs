//! syscall(2) of calls that wait, or say what is to be waited for: answered as libc's functions of these names.

use core::cell::Cell;
use core::ffi::{c_int, c_long};
use libc::{epoll_event, fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use shunpike_core::{clock, conn, table, user};

use crate::cancel;
use crate::readiness::{Selected, ctl_by, limit, milliseconds, poll_by, pselect_by, select_by, wait};
use crate::real::by_number;

/// Whether [`wait_call`] is to answer the call of this number.
pub fn waits(number: c_long) -> bool {
    matches!(
        number,
        libc::SYS_poll
            | libc::SYS_ppoll
            | libc::SYS_select
            | libc::SYS_pselect6
            | libc::SYS_epoll_wait
            | libc::SYS_epoll_pwait
            | libc::SYS_epoll_pwait2
            | libc::SYS_epoll_ctl
            | libc::SYS_epoll_create
            | libc::SYS_epoll_create1
    )
}

/// The number and the arguments, as the kernel gets them.
struct Call {
    number: c_long,
    arguments: [usize; 6],
}

/// syscall(2) in the place of libc's. It is no cancellation point, as that is none.
pub extern "C" fn wait_call(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    let call = Call { number, arguments: [a, b, c, d, e, f] };
    // Nothing unwinds in between, as nothing is cancelled.
    let before = cancel::set_state(cancel::DISABLE);
    // SAFETY: the program's call.
    let result = unsafe { answer(&call) };
    cancel::set_state(before);
    result
}

/// The kernel's size of a mask of signals; it refuses others.
const MASK: usize = 8;

/// pselect6's last argument.
#[repr(C)]
#[derive(Clone, Copy)]
struct Masked {
    mask: *const sigset_t,
    size: usize,
}

unsafe fn answer(call: &Call) -> c_long {
    let [a, b, c, d, e, f] = call.arguments;
    let (fd, n, events) = (a as c_int, c as c_int, b as *mut epoll_event);
    let selected: Selected = (fd, [b as *mut fd_set, c as *mut fd_set, d as *mut fd_set]);
    // SAFETY: what the program promises the kernel, it promises us.
    unsafe {
        let kernels = Cell::new(None);
        let own = || {
            let result = by_number(call.number, call.arguments);
            kernels.set(Some(result));
            result as c_int
        };
        let fits = |mask: usize, size: usize| mask == 0 || size == MASK;
        let told = match call.number {
            libc::SYS_poll => {
                poll_by((a as *mut pollfd, b as nfds_t), || Ok(milliseconds(n)), core::ptr::null(), own)
            }
            libc::SYS_ppoll if fits(d, e) => {
                let (time, begin) = (c as *mut timespec, clock::ticks());
                let mut known = Err(());
                let ours = || {
                    known = limit(time);
                    known
                };
                let told = poll_by((a as *mut pollfd, b as nfds_t), ours, d as *const sigset_t, own);
                if kernels.get().is_none() {
                    left(time, known, begin);
                }
                told
            }
            libc::SYS_select if b | c | d != 0 && e == 0 => {
                select_by(selected, core::ptr::null_mut(), |_| own())
            }
            // Unlike libc's function, the call minds neither a bad address nor a time that cannot be written.
            libc::SYS_select if b | c | d != 0 => match user::fetch(e as *const timeval) {
                Some(mut time) => {
                    let told = select_by(selected, &raw mut time, |_| own());
                    if kernels.get().is_none() {
                        let _ = user::store(e as *mut timeval, time);
                    }
                    told
                }
                None => own(),
            },
            libc::SYS_pselect6 if b | c | d != 0 => {
                let masked = match f {
                    0 => Some(Masked { mask: core::ptr::null(), size: 0 }),
                    _ => user::fetch(f as *const Masked),
                };
                match masked.filter(|masked| fits(masked.mask as usize, masked.size)) {
                    Some(masked) => {
                        let (time, begin) = (e as *mut timespec, clock::ticks());
                        let known = limit(time);
                        let told = pselect_by(selected, known, masked.mask, |_| own());
                        if kernels.get().is_none() {
                            left(time, known, begin);
                        }
                        told
                    }
                    None => own(),
                }
            }
            libc::SYS_epoll_wait => wait(fd, events, n, milliseconds(d as c_int), core::ptr::null(), own),
            libc::SYS_epoll_pwait if fits(e, f) => {
                wait(fd, events, n, milliseconds(d as c_int), e as *const sigset_t, own)
            }
            libc::SYS_epoll_pwait2 if fits(e, f) && !table::is_none(fd) => {
                match limit(d as *const timespec) {
                    Ok(ns) => wait(fd, events, n, ns, e as *const sigset_t, own),
                    Err(()) => own(),
                }
            }
            libc::SYS_epoll_ctl if !table::is_none(fd) || !table::is_none(n) => {
                ctl_by(fd, b as c_int, n, d as *mut epoll_event, own)
            }
            libc::SYS_epoll_create | libc::SYS_epoll_create1 => {
                let fd = own();
                if fd >= 0 {
                    conn::set_created(fd);
                }
                fd
            }
            _ => own(),
        };
        // What libc has returned may be wider.
        kernels.get().filter(|&result| result as c_int == told).unwrap_or(c_long::from(told))
    }
}

/// The kernel writes back how much of the time is left; libc's functions hide it.
unsafe fn left(time: *mut timespec, limit: Result<Option<u64>, ()>, begin: u64) {
    let Ok(Some(ns)) = limit else { return };
    let left = ns.saturating_sub(clock::to_ns(clock::ticks().saturating_sub(begin)));
    let time_left =
        timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as i64 };
    // SAFETY: the program's, which need not be there any more.
    let _ = unsafe { user::store(time, time_left) };
}
