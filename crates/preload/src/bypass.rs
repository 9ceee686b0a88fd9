//! Ways round the hooks that have names of their own: libc functions that read and write inside libc,
//! syscall(2), io_uring. A connection that goes there is plain TCP first.

use core::ffi::{c_char, c_int, c_long, c_uint, c_void};
use libc::{aiocb, mmsghdr, msghdr, sigevent};
use shunpike_core::table;
use shunpike_core::wire::Reason;
use shunpike_core::zerocopy::lending;
use shunpike_core::{conn, life, limits, process};

use crate::indirect::{
    before_bpf, before_option, before_submit, before_unshare, is_filter, is_filter_by_prctl,
};
use crate::lifecycle::{controlled, hand_over, let_go};
use crate::memory;
use crate::real::{Arguments, by_number};
use crate::{children, control, exec, removed, syscall};

fn before_dprintf([fd, ..]: Arguments) {
    hand_over(fd as c_int, Reason::Stdio);
}

stubs! { before_dprintf:
    dprintf, __dprintf_chk,
}

/// System calls that move bytes of their first argument, or name it anew.
const ON_DESCRIPTORS: [c_long; 19] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_preadv2,
    libc::SYS_pwritev2,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_sendmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendmmsg,
    libc::SYS_sendfile,
    libc::SYS_shutdown,
    libc::SYS_ioctl,
    libc::SYS_tee,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
];

/// A filter of system calls comes.
fn confine() {
    removed::confine();
    children::refuse();
    life::confine();
}

fn before_prctl([option, value, third, ..]: Arguments) {
    match option as c_int {
        libc::PR_SET_SECCOMP if is_filter_by_prctl(value, third) => confine(),
        libc::PR_SET_PTRACER => children::refuse(),
        // Nobody may look at its memory from then on.
        libc::PR_SET_DUMPABLE if value == 0 && process::enabled() => lending::close(),
        _ => {}
    }
}

stubs! { before_prctl:
    prctl,
}

fn before_syscall([number, fd, second, third, fourth, fifth]: Arguments) -> Option<*mut c_void> {
    match number as c_long {
        libc::SYS_execve => exec::before_exec_with_third([fd, second, third, 0, 0, 0]),
        libc::SYS_execveat => exec::before_exec_with_fourth([fd, second, third, fourth, fifth, 0]),
        // Sent by a connection they are no descriptors, but bytes: below.
        // SAFETY: the program's message, which need not be there.
        libc::SYS_sendmsg if table::is_none(fd as c_int) => unsafe {
            control::hand_over_rights(second as *const msghdr);
        },
        // SAFETY: as above.
        libc::SYS_sendmmsg if table::is_none(fd as c_int) => unsafe {
            control::hand_over_rights_of_all(second as *const mmsghdr, third as c_uint);
        },
        libc::SYS_seccomp if is_filter(fd, second, third) => confine(),
        libc::SYS_prctl => before_prctl([fd, second, third, 0, 0, 0]),
        libc::SYS_io_uring_setup => return Some(setup_call as *mut c_void),
        // SAFETY: the program's arguments.
        libc::SYS_io_uring_enter => unsafe {
            conn::before_ring_enters([fd, second, third, fourth, fifth, 0])
        },
        libc::SYS_io_uring_register => conn::before_ring_registers(second),
        libc::SYS_fcntl if !table::is_none(fd as c_int) => return Some(fcntl_call as *mut c_void),
        number if memory::CALLS.contains(&number) => {
            // SAFETY: the program's arguments.
            unsafe { memory::before_call(number, [fd, second, third, fourth]) };
        }
        libc::SYS_mlockall => limits::will_lock(fd & libc::MCL_FUTURE as usize != 0),
        libc::SYS_unshare => before_unshare([fd, 0, 0, 0, 0, 0]),
        libc::SYS_io_submit => before_submit([fd, second, third, 0, 0, 0]),
        libc::SYS_bpf => before_bpf(fd, second),
        libc::SYS_setsockopt | libc::SYS_getsockopt => {
            before_option(fd as c_int, second as c_int, third as c_int)
        }
        number if exec::clones(number, [fd, second, third, fourth, fifth, 0]) => {
            return Some(exec::clone_call as *mut c_void);
        }
        number if syscall::waits(number) => return Some(syscall::wait_call as *mut c_void),
        // libuv closes so, whatever it closes.
        libc::SYS_close => {
            let_go(fd as c_int);
        }
        number if ON_DESCRIPTORS.contains(&number) && !table::is_none(fd as c_int) => {
            hand_over(fd as c_int, Reason::BypassedHooks);
        }
        _ => {}
    }
    None
}

stubs! { before_syscall:
    syscall,
}

/// syscall(2) of fcntl(2).
extern "C" fn fcntl_call(
    number: c_long,
    fd: usize,
    command: usize,
    arg: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the program's arguments, handed on unchanged.
    let result = unsafe { by_number(number, [fd, command, arg, d, e, f]) };
    controlled(fd as c_int, command as c_int, arg, result as c_int);
    result
}

/// syscall(2) of io_uring_setup(2). The arguments that this one does not have are handed on, too, as a tracer may see them.
extern "C" fn setup_call(
    number: c_long,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    // SAFETY: the program's arguments, handed on unchanged.
    let fd = unsafe { by_number(number, [a, b, c, d, e, f]) };
    if fd >= 0 {
        // SAFETY: the kernel has written them.
        unsafe { conn::ring_made(fd as c_int, b) };
    }
    fd
}

/// What liburing's functions return: a negative errno where there is no ring.
unsafe fn made(result: c_int, ring: *mut c_void) -> c_int {
    if result >= 0 {
        // SAFETY: the program's, which liburing has filled.
        unsafe { conn::liburing_made(ring.expose_provenance()) };
    }
    result
}

/// What liburing's functions return, of a ring whose use nobody sees.
fn made_unseen(result: c_int) -> c_int {
    if result >= 0 {
        conn::ring_set_up();
    }
    result
}

fn before_liburing([ring, ..]: Arguments) {
    // SAFETY: the program's.
    unsafe { conn::before_liburing_submits(ring) };
}

// Those of liburing's functions that may submit; the calls behind them are its own.
stubs! { before_liburing:
    io_uring_submit, io_uring_submit_and_wait, io_uring_submit_and_wait_timeout, io_uring_submit_and_wait_min_timeout,
    io_uring_submit_and_get_events, io_uring_wait_cqes, io_uring_wait_cqes_min_timeout, io_uring_wait_cqe_timeout, __io_uring_get_cqe,
}

fn before_registering(_: Arguments) {
    conn::ring_set_up();
}

// Numbers mean other files then.
stubs! { before_registering:
    io_uring_register_files, io_uring_register_files_tags, io_uring_register_files_sparse, io_uring_register_files_update,
    io_uring_register_files_update_tag, io_uring_register_file_alloc_range,
}

hooks! {
    /// io_uring_setup(2), liburing's; the calls behind this one and the next ones are its own
    fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int {
        made_unseen(covered::io_uring_setup(entries, parameters))
    }
    /// io_uring_queue_init(3)
    fn io_uring_queue_init(entries: c_uint, ring: *mut c_void, flags: c_uint) -> c_int {
        made(covered::io_uring_queue_init(entries, ring, flags), ring)
    }
    /// io_uring_queue_init_params(3)
    fn io_uring_queue_init_params(entries: c_uint, ring: *mut c_void, parameters: *mut c_void) -> c_int {
        made(covered::io_uring_queue_init_params(entries, ring, parameters), ring)
    }
    /// io_uring_queue_init_mem(3)
    fn io_uring_queue_init_mem(
        entries: c_uint, ring: *mut c_void, parameters: *mut c_void, memory: *mut c_void, size: usize,
    ) -> c_int {
        made_unseen(covered::io_uring_queue_init_mem(entries, ring, parameters, memory, size))
    }
    /// io_uring_queue_mmap(3), which the two above come to, and whoever has made a ring by a call
    fn io_uring_queue_mmap(fd: c_int, parameters: *mut c_void, ring: *mut c_void) -> c_int {
        made(covered::io_uring_queue_mmap(fd, parameters, ring), ring)
    }
    /// mlockall(2)
    fn mlockall(flags: c_int) -> c_int {
        limits::will_lock(flags & libc::MCL_FUTURE != 0);
        let result = covered::mlockall(flags);
        if result == 0 {
            limits::locked();
        }
        result
    }
    /// munlockall(2)
    fn munlockall() -> c_int {
        let result = covered::munlockall();
        limits::unlocked();
        result
    }
    /// vdprintf(3); the va_list travels as a pointer
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        hand_over(fd, Reason::Stdio);
        covered::vdprintf(fd, format, arguments)
    }
    /// vdprintf(3), fortified
    fn __vdprintf_chk(fd: c_int, flag: c_int, format: *const c_char, arguments: *mut c_void) -> c_int {
        hand_over(fd, Reason::Stdio);
        covered::__vdprintf_chk(fd, flag, format, arguments)
    }
    /// login_tty(3)
    fn login_tty(fd: c_int) -> c_int {
        hand_over(fd, Reason::HandedOver);
        covered::login_tty(fd)
    }
    /// aio_read(3)
    fn aio_read(job: *mut aiocb) -> c_int {
        asynchronous(job);
        covered::aio_read(job)
    }
    /// aio_read(3), 64-bit offsets
    fn aio_read64(job: *mut aiocb) -> c_int {
        asynchronous(job);
        covered::aio_read64(job)
    }
    /// aio_write(3)
    fn aio_write(job: *mut aiocb) -> c_int {
        asynchronous(job);
        covered::aio_write(job)
    }
    /// aio_write(3), 64-bit offsets
    fn aio_write64(job: *mut aiocb) -> c_int {
        asynchronous(job);
        covered::aio_write64(job)
    }
    /// lio_listio(3)
    fn lio_listio(mode: c_int, jobs: *const *mut aiocb, n: c_int, event: *mut sigevent) -> c_int {
        list(jobs, n);
        covered::lio_listio(mode, jobs, n, event)
    }
    /// lio_listio(3), 64-bit offsets
    fn lio_listio64(mode: c_int, jobs: *const *mut aiocb, n: c_int, event: *mut sigevent) -> c_int {
        list(jobs, n);
        covered::lio_listio64(mode, jobs, n, event)
    }
}

/// libc's threads do the job, by calls that no hook sees.
unsafe fn asynchronous(job: *const aiocb) {
    // SAFETY: null, or the program's.
    if let Some(job) = unsafe { job.as_ref() } {
        hand_over(job.aio_fildes, Reason::BypassedHooks);
    }
}

unsafe fn list(jobs: *const *mut aiocb, n: c_int) {
    for at in 0..usize::try_from(n).unwrap_or(0) {
        // SAFETY: the program's array of n pointers, each null or a job.
        unsafe { asynchronous(*jobs.add(at)) };
    }
}
