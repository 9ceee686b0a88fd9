//! Calls that reach a connection by ways that no hook of its data sees: options and jobs that programs hand to the kernel by system calls
//! of their own, and what makes descriptor numbers mean something else.

use core::ffi::c_int;

use shunpike_core::host::is_alone;
use shunpike_core::surface::{self, Does};
use shunpike_core::table::{self, Entry};
use shunpike_core::wire::Reason;
use shunpike_core::{life, options, sets, sys, user};

use crate::lifecycle::hand_over;
use crate::real::Arguments;

/// unshare(2). With CLONE_FILES a thread has descriptors of its own from now on: no table of ours says whose a number is.
pub fn before_unshare([flags, ..]: Arguments) {
    if flags & libc::CLONE_FILES as usize != 0 && !is_alone() {
        life::leave(Reason::PrivateDescriptors);
    }
}

stubs! { before_unshare:
    unshare,
}

/// Whether seccomp(2) with these arguments can install a filter. Others are refused: libraries ask so which flags the kernel knows.
pub fn is_filter(operation: usize, flags: usize, filter: usize) -> bool {
    match operation as u32 {
        libc::SECCOMP_SET_MODE_STRICT => flags == 0 && filter == 0,
        libc::SECCOMP_SET_MODE_FILTER => filter != 0,
        _ => false,
    }
}

/// Whether prctl(PR_SET_SECCOMP) with these arguments can install a filter.
pub fn is_filter_by_prctl(mode: usize, filter: usize) -> bool {
    match mode as u32 {
        libc::SECCOMP_MODE_STRICT => true,
        libc::SECCOMP_MODE_FILTER => filter != 0,
        _ => false,
    }
}

/// More jobs than this no context of Linux AIO takes, unless the operator raises fs.aio-max-nr.
const MOST_JOBS: usize = 1 << 16;

/// io_submit(2), of Linux AIO, reads, writes and polls what a list of `count` jobs names.
pub fn before_submit([_, count, jobs, ..]: Arguments) {
    /// `struct iocb` (linux/aio_abi.h), so far as it matters here.
    #[repr(C)]
    #[derive(Copy, Clone)]
    struct Job {
        before: [u32; 5],
        descriptor: u32,
    }
    if !table::any() {
        return;
    }
    let jobs = jobs as *const *const Job;
    for at in 0..count.min(MOST_JOBS) {
        // SAFETY: the program's array of pointers to jobs, any of which need not be there.
        let job = unsafe { user::fetch(jobs.wrapping_add(at)).and_then(|job| user::fetch(job)) };
        let Some(job) = job else { return };
        match table::look(job.descriptor as c_int) {
            // It can only be polled: a wait that we do not see.
            Entry::Set(set) => sets::watch(set),
            _ => hand_over(job.descriptor as c_int, Reason::BypassedHooks),
        }
    }
}

// libaio's; the call behind it is its own.
stubs! { before_submit:
    io_submit,
}

/// bpf(2). A socket that goes into a sockmap belongs to the programs that are attached to it.
pub fn before_bpf(command: usize, attributes: usize) {
    const MAP_UPDATE: usize = 2;
    /// BPF_MAP_TYPE_SOCKMAP and BPF_MAP_TYPE_SOCKHASH (linux/bpf.h).
    const OF_SOCKETS: [u32; 2] = [15, 18];
    #[repr(C)]
    #[derive(Copy, Clone)]
    struct Update {
        map: u32,
        key: u64,
        value: u64,
    }
    if command != MAP_UPDATE || !table::any() {
        return;
    }
    // SAFETY: the program's, which need not be there.
    let Some(update) = (unsafe { user::fetch(attributes as *const Update) }) else { return };
    // SAFETY: as above.
    let Some(fd) = (unsafe { user::fetch(update.value as *const c_int) }) else { return };
    let is_known = matches!(table::look(fd), Entry::Conn(_));
    if is_known && sys::map_kind(update.map as c_int).is_some_and(|kind| OF_SOCKETS.contains(&kind)) {
        hand_over(fd, Reason::HandedOver);
    }
}

/// setsockopt() and getsockopt() as system calls of the program's own: what takes a connection back to TCP does so whether the
/// call succeeds or not.
pub fn before_option(fd: c_int, level: c_int, name: c_int) {
    match (surface::of_option(level, name), table::look(fd)) {
        (Does::Tcp(_) | Does::Back(..), Entry::Conn(_)) => hand_over(fd, Reason::OptionUnsupported),
        (Does::Tcp(_), Entry::Socket) => options::ask_the_kernel(),
        _ if (level, name) == (libc::IPPROTO_TCP, libc::TCP_INQ) => options::unread_told(fd),
        _ => {}
    }
}
