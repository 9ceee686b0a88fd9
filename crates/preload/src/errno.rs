//! errno.

use core::ffi::c_int;

/// Sets it.
pub fn set_errno(errno: c_int) {
    // SAFETY: libc's errno of this thread.
    unsafe { *libc::__errno_location() = errno };
}

/// What it is.
pub fn errno() -> c_int {
    // SAFETY: libc's errno of this thread.
    unsafe { *libc::__errno_location() }
}
