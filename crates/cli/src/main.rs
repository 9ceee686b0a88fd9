//! The `shunpike` command; see the library.

// std's own start-up would ignore SIGPIPE and reopen closed standard descriptors, and the program that
// `shunpike run` becomes would inherit that in place of what its caller gave it.
#![no_main]

use std::ffi::{CStr, OsStr, OsString, c_char, c_int};
use std::os::unix::ffi::OsStrExt;

/// What the C start-up code calls. `std::env::args_os` knows the arguments with glibc only.
// SAFETY: no other object of this executable defines `main`.
#[unsafe(no_mangle)]
extern "C" fn main(argc: c_int, argv: *const *const c_char) -> c_int {
    let argument = |n| -> OsString {
        // SAFETY: the C start-up code gives so many C strings, which stay as long as the process.
        let word = unsafe { CStr::from_ptr(*argv.add(n)) };
        OsStr::from_bytes(word.to_bytes()).to_owned()
    };
    let count = usize::try_from(argc).unwrap_or(0);
    shunpike_cli::command_line((0..count).map(argument).collect()).into()
}
