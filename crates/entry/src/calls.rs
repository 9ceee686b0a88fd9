//! The program's calls, by their numbers: what preload does by libc's names.

use core::ffi::{c_int, c_long, c_uint, c_ulong};
use core::sync::atomic::Ordering;

use shunpike_arch as arch;
use shunpike_core::wire::Reason;
use shunpike_core::zerocopy::lending;
use shunpike_core::{conn, life, limits, process, sets, table, tls, user, wait};

use crate::errno::as_kernels;
use crate::real::by_number;
use crate::start::{at_exit, blobs_handler};
use crate::state::{self, Frame, State};
use crate::vforked::{self, foreign_process};
use crate::{children, data, indirect, lifecycle, memory, signals, syscall};

/// The program makes its call.
const MAKE: u32 = 0;
/// It is done, and its result is in the frame.
pub const DONE: u32 = 1;

/// How many numbers are told apart (crates/inject/src/blob.rs).
pub const NUMBERS: usize = 512;

/// The calls that are shown to [`handler`], beside those that move memory ([`memory::CALLS`]).
const SHOWN: [c_long; 63] = [
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
    libc::SYS_splice,
    libc::SYS_tee,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_listen,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_shutdown,
    libc::SYS_close,
    libc::SYS_close_range,
    libc::SYS_dup,
    libc::SYS_dup2,
    libc::SYS_dup3,
    libc::SYS_fcntl,
    libc::SYS_ioctl,
    libc::SYS_setsockopt,
    libc::SYS_getsockopt,
    libc::SYS_poll,
    libc::SYS_ppoll,
    libc::SYS_select,
    libc::SYS_pselect6,
    libc::SYS_epoll_create,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_io_submit,
    libc::SYS_bpf,
    libc::SYS_unshare,
    libc::SYS_mlockall,
    libc::SYS_munlockall,
    libc::SYS_rt_sigaction,
    libc::SYS_set_robust_list,
    libc::SYS_fork,
    libc::SYS_vfork,
    libc::SYS_clone,
    libc::SYS_clone3,
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_seccomp,
    libc::SYS_prctl,
    libc::SYS_arch_prctl,
    libc::SYS_vmsplice,
    libc::SYS_sigaltstack,
];

/// As the header has it.
pub const fn shown() -> [u8; NUMBERS] {
    let mut shown = [0; NUMBERS];
    mark(&mut shown, &SHOWN);
    mark(&mut shown, &memory::CALLS);
    shown
}

const fn mark(shown: &mut [u8; NUMBERS], numbers: &[c_long]) {
    let mut at = 0;
    while at < numbers.len() {
        shown[numbers[at] as usize] = 1;
        at += 1;
    }
}

/// What the blob's own handler answers.
unsafe fn blob(state: *mut State, frame: *mut Frame) -> u32 {
    // SAFETY: the blob's handler has this type, and was given to us at start-up.
    unsafe {
        let handler: unsafe extern "C" fn(*mut State, *mut Frame) -> u32 =
            core::mem::transmute(blobs_handler());
        handler(state, frame)
    }
}

/// What each shown call enters.
///
/// # Safety
/// The blob's arguments.
pub unsafe extern "C" fn handler(state: *mut State, frame: *mut Frame) -> u32 {
    // SAFETY: the blob's frame.
    let (number, arguments) = unsafe { ((*frame).number as c_long, (*frame).arguments) };
    // SAFETY: as above.
    if unsafe { (*frame).up } != state::own() {
        // SAFETY: as above.
        unsafe { forget_or_leave(frame) };
    }
    let errno = state::errno();
    state::set_presents_next(0);
    // SAFETY: the program's call.
    let answer = match unsafe { answer(number, arguments, frame) } {
        Answer::Result(result) => {
            // SAFETY: the blob's frame.
            unsafe { (*frame).number = result as usize };
            DONE
        }
        Answer::Make => MAKE,
        // SAFETY: the blob's arguments.
        Answer::Blob => unsafe { blob(state, frame) },
    };
    state::set_errno(errno);
    answer
}

/// An entry within another one: a handler's, or the other one's handler has jumped away.
#[cold]
unsafe fn forget_or_leave(frame: *mut Frame) {
    // SAFETY: the caller's.
    unsafe { state::forget_abandoned(frame) };
    // With the last one in use, further calls go round.
    if frame.addr() <= state::last() && process::enabled() {
        life::leave(Reason::BypassedHooks);
    }
}

enum Answer {
    Make,
    Blob,
    Result(isize),
}

/// Of a libc's function.
fn libcs(result: impl TryInto<isize>) -> Answer {
    Answer::Result(as_kernels(result.try_into().unwrap_or(-1)))
}

#[allow(clippy::too_many_lines, reason = "one row for each call")]
unsafe fn answer(number: c_long, arguments: [usize; 6], frame: *mut Frame) -> Answer {
    let [a, b, c, d, e, f] = arguments;
    let fd = a as c_int;
    if !process::enabled() || process::confined() {
        if number == libc::SYS_exit && !process::confined() && !signals::is_foreign() {
            signals::pass_on();
        }
        return match number {
            libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork | libc::SYS_exit => {
                Answer::Blob
            }
            libc::SYS_seccomp | libc::SYS_prctl => {
                let by_prctl = number == libc::SYS_prctl;
                if !by_prctl && indirect::is_filter(a, b, c)
                    || by_prctl && fd == libc::PR_SET_SECCOMP && indirect::is_filter_by_prctl(b, c)
                {
                    life::confine();
                }
                Answer::Blob
            }
            libc::SYS_sigaltstack => Answer::Blob,
            // Its handlers are shown its own registers, whether or not there are lanes.
            libc::SYS_rt_sigaction => {
                // SAFETY: the program's.
                Answer::Result(unsafe { signals::install(fd, b as *const _, c as *mut _, d) })
            }
            libc::SYS_arch_prctl => arch_prctl(a),
            _ => Answer::Make,
        };
    }
    let is_none = table::is_none(fd);
    // SAFETY: what the program promises the kernel, it promises us.
    unsafe {
        match number {
            libc::SYS_read if !is_none => libcs(data::read(fd, b as *mut _, c)),
            libc::SYS_write if !is_none => libcs(data::write(fd, b as *const _, c)),
            libc::SYS_readv if !is_none => libcs(data::readv(fd, b as *const _, c as c_int)),
            libc::SYS_writev if !is_none => libcs(data::writev(fd, b as *const _, c as c_int)),
            libc::SYS_recvfrom if !is_none => {
                libcs(data::recvfrom(fd, b as *mut _, c, d as c_int, e as *mut _, f as *mut _))
            }
            libc::SYS_sendto if !is_none => {
                libcs(data::sendto(fd, b as *const _, c, d as c_int, e as *const _, f as u32))
            }
            libc::SYS_recvmsg if !is_none => libcs(data::recvmsg(fd, b as *mut _, c as c_int)),
            // Rights may be in a message by any socket.
            libc::SYS_sendmsg if table::any() => libcs(data::sendmsg(fd, b as *const _, c as c_int)),
            libc::SYS_recvmmsg if !is_none => {
                libcs(data::recvmmsg(fd, b as *mut _, c as c_uint, d as c_int, e as *mut _) as isize)
            }
            libc::SYS_sendmmsg if table::any() => {
                libcs(data::sendmmsg(fd, b as *mut _, c as c_uint, d as c_int) as isize)
            }
            libc::SYS_sendfile if !is_none || !table::is_none(b as c_int) => {
                libcs(data::sendfile(fd, b as c_int, c as *mut _, d))
            }
            libc::SYS_splice if !is_none || !table::is_none(c as c_int) => {
                libcs(data::splice(fd, b as *mut _, c as c_int, d as *mut _, e, f as c_uint))
            }
            libc::SYS_preadv2 if !is_none => {
                libcs(data::preadv2(fd, b as *const _, c as c_int, d as i64, f as c_int))
            }
            libc::SYS_pwritev2 if !is_none => {
                libcs(data::pwritev2(fd, b as *const _, c as c_int, d as i64, f as c_int))
            }
            libc::SYS_tee | libc::SYS_vmsplice if !is_none => {
                lifecycle::hand_over(fd, Reason::BypassedHooks);
                Answer::Make
            }
            libc::SYS_socket => libcs(lifecycle::socket(fd, b as c_int, c as c_int) as isize),
            libc::SYS_connect => libcs(lifecycle::connect(fd, b as *const _, c as u32) as isize),
            libc::SYS_listen if process::eager() => libcs(lifecycle::listen(fd, b as c_int) as isize),
            libc::SYS_accept => libcs(lifecycle::accept(fd, b as *mut _, c as *mut _) as isize),
            libc::SYS_accept4 => libcs(lifecycle::accept4(fd, b as *mut _, c as *mut _, d as c_int) as isize),
            libc::SYS_shutdown if !is_none => libcs(lifecycle::shutdown(fd, b as c_int) as isize),
            libc::SYS_close if !is_none => {
                if lifecycle::let_go(fd) {
                    Answer::Make
                } else {
                    Answer::Result(-(libc::EBADF as isize))
                }
            }
            libc::SYS_close_range => {
                libcs(lifecycle::close_range(a as c_uint, b as c_uint, c as c_int) as isize)
            }
            libc::SYS_dup if !is_none => libcs(lifecycle::dup(fd) as isize),
            libc::SYS_dup2 if !is_none || !table::is_none(b as c_int) => {
                libcs(lifecycle::dup2(fd, b as c_int) as isize)
            }
            libc::SYS_dup3 if !is_none || !table::is_none(b as c_int) => {
                libcs(lifecycle::dup3(fd, b as c_int, c as c_int) as isize)
            }
            libc::SYS_fcntl if !is_none => libcs(lifecycle::fcntl(fd, b as c_int, c) as isize),
            libc::SYS_ioctl => libcs(lifecycle::ioctl(fd, b as c_ulong, c) as isize),
            libc::SYS_setsockopt => {
                libcs(lifecycle::setsockopt(fd, b as c_int, c as c_int, d as *const _, e as u32) as isize)
            }
            libc::SYS_getsockopt if !is_none => {
                libcs(lifecycle::getsockopt(fd, b as c_int, c as c_int, d as *mut _, e as *mut _) as isize)
            }
            libc::SYS_poll | libc::SYS_ppoll | libc::SYS_select | libc::SYS_pselect6 if !table::any() => {
                Answer::Make
            }
            libc::SYS_epoll_wait | libc::SYS_epoll_pwait | libc::SYS_epoll_pwait2 if is_none => Answer::Make,
            libc::SYS_epoll_ctl if is_none && table::is_none(c as c_int) => Answer::Make,
            number if syscall::waits(number) => libcs(syscall::wait_call(number, a, b, c, d, e, f) as isize),
            libc::SYS_io_uring_setup => {
                let ring = by_number(number, arguments);
                if ring >= 0 {
                    conn::ring_made(ring as c_int, b);
                }
                libcs(ring as isize)
            }
            libc::SYS_io_uring_enter => {
                conn::before_ring_enters(arguments);
                Answer::Make
            }
            libc::SYS_io_uring_register => {
                conn::before_ring_registers(b);
                Answer::Make
            }
            libc::SYS_io_submit => {
                indirect::before_submit(arguments);
                Answer::Make
            }
            libc::SYS_bpf => {
                indirect::before_bpf(a, b);
                Answer::Make
            }
            libc::SYS_unshare => {
                indirect::before_unshare(arguments);
                Answer::Make
            }
            _ if memory::CALLS.contains(&number) => {
                memory::before_call(number, [a, b, c, d]);
                if number != libc::SYS_mmap || d & libc::MAP_ANONYMOUS as usize != 0 {
                    return Answer::Make;
                }
                let at = by_number(number, arguments);
                if at != -1 {
                    conn::ring_mapped(e as c_int, f, at as usize);
                }
                libcs(at as isize)
            }
            libc::SYS_mlockall => {
                limits::will_lock(a & libc::MCL_FUTURE as usize != 0);
                let result = by_number(number, arguments);
                if result == 0 {
                    limits::locked();
                }
                libcs(result as isize)
            }
            libc::SYS_munlockall => {
                limits::unlocked();
                Answer::Make
            }
            libc::SYS_rt_sigaction => Answer::Result(signals::install(fd, b as *const _, c as *mut _, d)),
            libc::SYS_set_robust_list => {
                // Another list than the one that our locks are named in: asked for anew.
                shunpike_shm::lock::after_fork_in_child();
                Answer::Make
            }
            libc::SYS_clone => cloned(number, a, b, arguments, frame),
            libc::SYS_fork => forked(number, arguments, None, frame),
            libc::SYS_clone3 => cloned_by_structure(arguments, frame),
            libc::SYS_vfork => {
                before_vfork();
                Answer::Blob
            }
            libc::SYS_execve => {
                conn::before_exec();
                children::before_exec(libc::AT_FDCWD, a, 0, c);
                Answer::Make
            }
            libc::SYS_execveat => {
                conn::before_exec();
                children::before_exec(fd, b, e as c_int, d);
                Answer::Make
            }
            libc::SYS_exit => {
                if !foreign_process() {
                    signals::pass_on();
                    thread_ends();
                }
                Answer::Blob
            }
            libc::SYS_exit_group => {
                at_exit();
                Answer::Make
            }
            libc::SYS_seccomp => {
                if indirect::is_filter(a, b, c) {
                    life::confine();
                }
                Answer::Blob
            }
            libc::SYS_prctl => {
                match fd {
                    libc::PR_SET_SECCOMP if indirect::is_filter_by_prctl(b, c) => life::confine(),
                    libc::PR_SET_PTRACER => children::refuse(),
                    libc::PR_SET_DUMPABLE if b == 0 => lending::close(),
                    _ => {}
                }
                Answer::Blob
            }
            libc::SYS_arch_prctl => arch_prctl(a),
            libc::SYS_sigaltstack => Answer::Blob,
            _ => Answer::Make,
        }
    }
}

/// The GS base is the program's own from now on: no lanes, and no trampoline.
fn arch_prctl(code: usize) -> Answer {
    const ARCH_SET_GS: usize = 0x1001;
    if code == ARCH_SET_GS {
        life::leave(Reason::BypassedHooks);
        signals::withdraw();
    }
    Answer::Blob
}

/// The child runs on our memory, thread state included, until it execs.
fn before_vfork() {
    // The child must not be the first to enter a critical section: this thread's would have its number.
    drop(tls::critical());
    vforked::begins();
}

const VM: usize = libc::CLONE_VM as usize;
const THREAD: usize = libc::CLONE_THREAD as usize;
const VFORK: usize = libc::CLONE_VFORK as usize;
const FILES: usize = libc::CLONE_FILES as usize;

/// Of a clone with such flags, what is done before it; `Some`: the blob's.
fn before_clone(flags: usize) -> Option<Answer> {
    if flags & VM == 0 && flags & FILES == 0 {
        return None;
    }
    if flags & (VM | VFORK) == VM | VFORK {
        before_vfork();
    } else if flags & THREAD == 0 || flags & FILES == 0 {
        // Memory and descriptors are not of the same threads: no table of ours says whose a number is.
        life::leave(Reason::PrivateDescriptors);
    }
    Some(Answer::Blob)
}

unsafe fn cloned(
    number: c_long,
    flags: usize,
    stack: usize,
    mut arguments: [usize; 6],
    frame: *mut Frame,
) -> Answer {
    if let Some(answer) = before_clone(flags) {
        return answer;
    }
    // The child comes back here, and goes on there.
    arguments[1] = 0;
    // SAFETY: the caller's.
    unsafe { forked(number, arguments, Some(stack).filter(|stack| *stack != 0), frame) }
}

/// clone3(2).
unsafe fn cloned_by_structure(arguments: [usize; 6], frame: *mut Frame) -> Answer {
    /// Words of struct clone_args (linux/sched.h), with room for more.
    const WORDS: usize = 16;
    const STACK: usize = 5;
    let [at, size, ..] = arguments;
    // SAFETY: the program's, which need not be there.
    let Some(flags) = (unsafe { user::fetch(at as *const usize) }) else { return Answer::Make };
    if let Some(answer) = before_clone(flags) {
        return answer;
    }
    let mut words = [0usize; WORDS];
    if size > size_of_val(&words) || !user::readable(at as *const u8, size) {
        // What the kernel may know, and we do not.
        life::leave(Reason::BypassedHooks);
        return Answer::Blob;
    }
    // SAFETY: as above.
    if unsafe { user::copy(words.as_mut_ptr().cast(), at as *const u8, size) }.is_err() {
        return Answer::Make;
    }
    let top = words[STACK].wrapping_add(words[STACK + 1]);
    let stack = Some(top).filter(|_| words[STACK] != 0);
    words[STACK] = 0;
    words[STACK + 1] = 0;
    // SAFETY: the caller's; the words live through the call.
    unsafe { forked(libc::SYS_clone3, [words.as_ptr() as usize, size, 0, 0, 0, 0], stack, frame) }
}

/// A child with memory of its own.
unsafe fn forked(
    number: c_long,
    [a, b, c, d, e, f]: [usize; 6],
    stack: Option<usize>,
    frame: *mut Frame,
) -> Answer {
    life::before_fork();
    // SAFETY: the program's call.
    let pid = unsafe { arch::syscall(number, a, b, c, d, e, f) };
    if pid == 0 {
        life::after_fork_in_child();
        if let Some(stack) = stack {
            // SAFETY: the blob's frame, of the child's own.
            unsafe { (*frame).stack = stack };
        }
    } else {
        life::after_fork_in_parent();
        process::after_fork(u32::try_from(pid).ok().filter(|_| pid > 0));
    }
    Answer::Result(pid)
}

/// What the calling thread has is given back. A list of locks in its memory, which is another thread's next, is not looked at by the kernel.
fn thread_ends() {
    sets::recall();
    wait::thread_ends();
    let [head, ..] = &arch::thread_block().locks;
    if state::is_in_block(head.load(Ordering::Relaxed) as usize) {
        head.store(0, Ordering::Relaxed);
        // SAFETY: no list.
        unsafe { arch::syscall(libc::SYS_set_robust_list, 0, 24, 0, 0, 0, 0) };
    }
}
