//! Cancellation is the libc's in the program: it looks where its call was interrupted, and is shown that (signals.rs).

use core::ffi::c_int;

/// Nothing to do.
pub fn cancellation_point() {}

/// As in preload's.
pub const DISABLE: c_int = 1;

/// Nothing to do.
pub fn set_state(_: c_int) -> c_int {
    0
}
