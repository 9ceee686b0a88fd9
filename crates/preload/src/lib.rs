//! libshunpike.so: libc's names for sockets, mapped onto core.
//!
//! Each hook is a few lines: is the descriptor ours? then core; else the real function, found behind us in
//! the loader's order. The `hooks!` blocks are the one list of what is interposed; the loader's
//! export map derives from them, and a test compares it with what users' programs import.

#![allow(unknown_lints, reason = "stable Rust does not know the next one yet")]
#![allow(
    invalid_runtime_symbol_definitions,
    reason = "cancellation unwinds through the hooks, as through libc's own calls"
)]

#[macro_use]
mod real;
mod bypass;
mod data;
mod exec;
mod identity;
mod imports;
mod indirect;
mod lifecycle;
mod memory;
mod readiness;
mod removed;
mod signals;
mod start;
mod syscall;
mod vforked;

use core::ffi::{c_int, c_void};
use core::sync::atomic::{AtomicPtr, Ordering};
use shunpike_core::call::Outcome;
use shunpike_core::libc_function;

type TestCancel = unsafe extern "C-unwind" fn();

unsafe extern "C-unwind" fn not_to_be_cancelled() {}

/// pthread_testcancel(3), from start-up on. Before glibc 2.34 a process without threads is without it, too.
static TEST_CANCEL: AtomicPtr<c_void> = AtomicPtr::new(not_to_be_cancelled as *mut c_void);

/// libc's calls act upon a cancellation also where they need not wait. A call that a lane answers does it here, with
/// nothing held and nothing to be dropped: the frames of its hook are unwound.
#[inline]
fn cancellation_point() {
    // SAFETY: one of the two functions above, which have this type and no arguments.
    unsafe {
        let test: TestCancel = core::mem::transmute(TEST_CANCEL.load(Ordering::Relaxed));
        test();
    }
}

/// Finds what `cancellation_point` calls.
fn can_be_cancelled() {
    if let Some(test) = libc_function!("pthread_testcancel": TestCancel) {
        TEST_CANCEL.store(test as *mut c_void, Ordering::Relaxed);
    }
}

/// Sets errno.
fn set_errno(errno: c_int) {
    // SAFETY: glibc's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// A C function's return value for `outcome`: -1 and errno on failure. `sigpipe`: a write that fails with
/// EPIPE raises the signal, as the kernel's does.
fn answer(outcome: Outcome, sigpipe: bool) -> isize {
    match outcome {
        Outcome::Libc(n) => n,
        Outcome::Ours(Ok(n)) => n as isize,
        Outcome::Ours(Err(errno)) => {
            if sigpipe && errno.raw_os_error() == libc::EPIPE {
                shunpike_core::sys::raise(libc::SIGPIPE);
            }
            set_errno(errno.raw_os_error());
            -1
        }
    }
}

/// `result` as a C function returns it.
fn result(result: Result<usize, impl Into<Raw>>) -> c_int {
    match result {
        Ok(n) => n as c_int,
        Err(errno) => {
            set_errno(errno.into().0);
            -1
        }
    }
}

/// An errno as a number.
struct Raw(c_int);

impl From<shunpike_core::Errno> for Raw {
    fn from(errno: shunpike_core::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}
