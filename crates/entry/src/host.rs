//! What core needs of the process ([`shunpike_core::host`]), as the kernel and the injector give it.

use core::sync::atomic::{AtomicPtr, Ordering};

use libc::{epoll_event, pollfd, sigset_t};
use shunpike_core::Errno;
use shunpike_core::host::Host;
use shunpike_core::sys::{self, Res};
use shunpike_shm::lock::NO_LIBC;

use crate::{gate, signals};

/// See the module.
pub static HOST: Host = Host {
    poll,
    epoll,
    // At the entry's end, or before it waits.
    deliver: || {},
    answer_faults: signals::guard,
    // It sees each that a program without a libc installs.
    may_be_interrupted: || false,
    // A thread's end is seen by its call.
    owes: || {},
    cpu,
    auxiliary,
    alone: || None,
    locks: &NO_LIBC,
};

/// A wait's result. Signals that were delivered in its place end it, as they would have.
fn result(waited: Option<isize>) -> Res {
    match waited {
        None => Err(Errno::INTR),
        Some(n) => usize::try_from(n).map_err(|_| Errno::from_raw_os_error(-n as i32)),
    }
}

fn poll(fds: &mut [pollfd], timeout: Option<u64>, mask: *const sigset_t) -> Res {
    let mut ts = sys::timespec(timeout);
    let ts = if timeout.is_some() { &raw mut ts as usize } else { 0 };
    // SAFETY: fds and ts live through the call; mask is null or the program's.
    result(unsafe {
        gate::wait(libc::SYS_ppoll, [fds.as_mut_ptr() as usize, fds.len(), ts, mask as usize, 8, 0])
    })
}

fn epoll(fd: i32, events: &mut [epoll_event], timeout: Option<u64>, mask: *const sigset_t) -> Res {
    if timeout == Some(0) {
        return sys::epoll_wait(fd, events, 0, mask);
    }
    let (at, room) = (events.as_mut_ptr() as usize, events.len());
    let exactly = |_: &mut [epoll_event], ts: &libc::timespec| {
        let ts = core::ptr::from_ref(ts) as usize;
        // SAFETY: events and ts live through the call; mask is null or the program's.
        result(unsafe { gate::wait(libc::SYS_epoll_pwait2, [fd as usize, at, room, ts, mask as usize, 8]) })
    };
    let in_ms = |_: &mut [epoll_event], ms: i32| {
        // SAFETY: as above.
        result(unsafe {
            gate::wait(libc::SYS_epoll_pwait, [fd as usize, at, room, ms as usize, mask as usize, 8])
        })
    };
    sys::as_exactly(events, timeout, exactly, in_ms)
}

/// As the vDSO asks: the limit of a segment that the kernel makes for each CPU (arch/x86/include/asm/segment.h, vdso_read_cpunode).
fn cpu() -> u32 {
    const SEGMENT: u32 = 15 * 8 + 3;
    let limit: u32;
    // SAFETY: it reads a descriptor's limit; without such a descriptor it changes nothing.
    unsafe {
        core::arch::asm!("lsl {0:e}, {1:e}", inout(reg) 0u32 => limit, in(reg) SEGMENT, options(nostack))
    };
    limit & 0xfff
}

static AUXILIARY: AtomicPtr<[u64; 2]> = AtomicPtr::new(core::ptr::null_mut());

/// Where the program's auxiliary vector is.
pub fn note_auxiliary(at: *mut [u64; 2]) {
    AUXILIARY.store(at, Ordering::Relaxed);
}

fn auxiliary(kind: u64) -> u64 {
    let mut at = AUXILIARY.load(Ordering::Relaxed);
    if at.is_null() {
        return 0;
    }
    loop {
        // SAFETY: the kernel's vector, which ends with a pair of zeroes.
        let [name, value] = unsafe { *at };
        if name == kind || name == 0 {
            return if name == kind { value } else { 0 };
        }
        at = at.wrapping_add(1);
    }
}
