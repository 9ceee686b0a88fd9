//! What a hook returns: a value, or -1 and errno.

use core::ffi::c_int;
use shunpike_core::call::Outcome;

use crate::errno::set_errno;

/// A C function's return value for `outcome`: -1 and errno on failure. `sigpipe`: a write that fails with
/// EPIPE raises the signal, as the kernel's does.
pub fn answer(outcome: Outcome, sigpipe: bool) -> isize {
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
pub fn result(result: Result<usize, impl Into<Raw>>) -> c_int {
    match result {
        Ok(n) => n as c_int,
        Err(errno) => {
            set_errno(errno.into().0);
            -1
        }
    }
}

/// An errno as a number.
pub struct Raw(c_int);

impl From<shunpike_core::Errno> for Raw {
    fn from(errno: shunpike_core::Errno) -> Self {
        Self(errno.raw_os_error())
    }
}
