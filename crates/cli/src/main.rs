//! The `shunpike` command; see the library.

// std's own start-up would ignore SIGPIPE and reopen closed standard descriptors, and the program that
// `shunpike run` becomes would inherit that in place of what its caller gave it.
#![no_main]

use std::ffi::{c_char, c_int};

/// What the C start-up code calls. The arguments reach `std::env::args_os` by themselves.
// SAFETY: no other object of this executable defines `main`.
#[unsafe(no_mangle)]
extern "C" fn main(_argc: c_int, _argv: *const *const c_char) -> c_int {
    shunpike_cli::command_line().into()
}
