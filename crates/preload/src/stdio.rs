//! stdio's streams are opened and closed inside libc.

use core::ffi::{c_char, c_int};
use libc::FILE;
use shunpike_core::table;
use shunpike_core::wire::Reason;

use crate::errno::{errno, set_errno};
use crate::lifecycle::{hand_over, let_go};
use crate::streams;

/// The number of a stream, -1 where it has none, which is no error.
unsafe fn number(stream: *mut FILE) -> c_int {
    let errno = errno();
    // SAFETY: the program's stream, which is open.
    let fd = unsafe { libc::fileno(stream) };
    set_errno(errno);
    fd
}

/// `stream` was opened, unless it is null.
unsafe fn opened(stream: *mut FILE) -> *mut FILE {
    if stream.is_null() {
        return stream;
    }
    // SAFETY: just opened.
    let fd = unsafe { number(stream) };
    streams::opened(fd);
    stream
}

/// libc is about to close the stream's number, or to make something else of it.
unsafe fn closing(stream: *mut FILE) {
    // SAFETY: the program's stream, which is open.
    let fd = unsafe { number(stream) };
    streams::closed(fd);
    if !table::is_none(fd) {
        hand_over(fd, Reason::Stdio);
        let_go(fd);
    }
}

hooks! {
    /// fopen(3)
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE { opened(covered::fopen(path, mode)) }
    /// fopen(3), 64-bit offsets
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE { opened(covered::fopen64(path, mode)) }
    /// fdopen(3)
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        hand_over(fd, Reason::Stdio);
        opened(covered::fdopen(fd, mode))
    }
    /// freopen(3), which closes inside libc, also where it fails
    fn freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        closing(stream);
        opened(covered::freopen(path, mode, stream))
    }
    /// freopen(3), 64-bit offsets
    fn freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE) -> *mut FILE {
        closing(stream);
        opened(covered::freopen64(path, mode, stream))
    }
    /// fclose(3), which closes inside libc
    fn fclose(stream: *mut FILE) -> c_int {
        closing(stream);
        covered::fclose(stream)
    }
}
