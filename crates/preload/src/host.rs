//! What core needs of the process ([`shunpike_core::host`]), as a libc gives it.

use core::ffi::c_int;

use libc::{epoll_event, pollfd, sigset_t, timespec};
use shunpike_core::Errno;
use shunpike_core::host::Host;
use shunpike_core::sys::{self, Res};
use shunpike_shm::lock::Libc;

use crate::errno::{errno, set_errno};
use crate::readiness::covered;
use crate::this_libc::{alone, auxiliary, calls, cpu, is_musl, show_list};
use crate::{signals, thread};

/// libc's.
pub static HOST: Host = Host {
    poll,
    epoll,
    deliver: signals::deliver,
    answer_faults: signals::guard,
    may_be_interrupted: signals::may_be_interrupted,
    owes: thread::mark,
    cpu,
    auxiliary,
    alone,
    locks: &Libc { is_musl, calls, show_list },
};

/// A C function's answer. The program's errno stays: what ends a sleep need not end the call.
fn answered(call: impl FnOnce() -> c_int) -> Res {
    let kept = errno();
    usize::try_from(call()).map_err(|_| {
        let failed = Errno::from_raw_os_error(errno());
        set_errno(kept);
        failed
    })
}

fn poll(fds: &mut [pollfd], timeout: Option<u64>, mask: *const sigset_t) -> Res {
    let ts = sys::timespec(timeout);
    let ts = if timeout.is_some() { &raw const ts } else { core::ptr::null() };
    // SAFETY: fds and ts live through the call; mask is null or the program's.
    answered(|| unsafe { covered::ppoll(fds.as_mut_ptr(), fds.len() as libc::nfds_t, ts, mask) })
}

/// A call that does not sleep is the kernel's own: libc would act upon a cancellation.
fn epoll(fd: i32, events: &mut [epoll_event], timeout: Option<u64>, mask: *const sigset_t) -> Res {
    if timeout == Some(0) {
        return sys::epoll_wait(fd, events, 0, mask);
    }
    let room = i32::try_from(events.len()).unwrap_or(i32::MAX);
    let exactly = |events: &mut [epoll_event], ts: &timespec| {
        // SAFETY: events and ts live through the call; mask is null or the program's.
        answered(|| unsafe { covered::epoll_pwait2(fd, events.as_mut_ptr(), room, ts, mask) })
    };
    let in_ms = |events: &mut [epoll_event], ms| {
        // SAFETY: as above.
        answered(|| unsafe { covered::epoll_pwait(fd, events.as_mut_ptr(), room, ms, mask) })
    };
    sys::as_exactly(events, timeout, exactly, in_ms)
}
