//! errno, of which the program has none here: what a call returns is made of it.

use core::ffi::c_int;

use crate::state;

/// Sets it.
pub fn set_errno(errno: c_int) {
    state::set_errno(errno as usize);
}

/// What it is.
pub fn errno() -> c_int {
    state::errno() as c_int
}

/// What the kernel would return for `result` of a libc's function.
pub fn as_kernels(result: isize) -> isize {
    if result == -1 { -(errno() as isize) } else { result }
}

/// What a libc's function would return for `result` of the kernel's.
pub fn as_libcs(result: isize) -> isize {
    if (-4095..0).contains(&result) {
        set_errno(-result as c_int);
        -1
    } else {
        result
    }
}
