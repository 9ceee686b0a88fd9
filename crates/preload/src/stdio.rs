//! stdio's streams are opened and closed inside libc.

use core::ffi::{c_char, c_int, c_void};
use libc::{FILE, off64_t, size_t, ssize_t};
use shunpike_arch::weak_function;
use shunpike_core::wire::Reason;
use shunpike_core::{conn, table};

use crate::data::{read, write};
use crate::errno::{errno, set_errno};
use crate::lifecycle::{close, hand_over, let_go};
use crate::streams;
use crate::this_libc::is_musl;

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

/// How a stream of glibc's begins (bits/types/struct_FILE.h): with flags, places in its buffers, and its number.
#[repr(C)]
struct Head {
    flags: c_int,
    places: [usize; 13],
    number: c_int,
}

/// The number of a stream that has calls of its own.
const NO_NUMBER: c_int = -2;

/// fopencookie(3): the calls of such a stream.
#[repr(C)]
struct Calls {
    read: unsafe extern "C-unwind" fn(*mut c_void, *mut c_char, size_t) -> ssize_t,
    write: unsafe extern "C-unwind" fn(*mut c_void, *const c_char, size_t) -> ssize_t,
    seek: unsafe extern "C-unwind" fn(*mut c_void, *mut off64_t, c_int) -> c_int,
    close: unsafe extern "C-unwind" fn(*mut c_void) -> c_int,
}

unsafe extern "C-unwind" fn read_hooked(fd: *mut c_void, to: *mut c_char, len: size_t) -> ssize_t {
    // SAFETY: the stream's buffer, or the program's.
    unsafe { read(fd.addr() as c_int, to.cast(), len) }
}

unsafe extern "C-unwind" fn write_hooked(fd: *mut c_void, from: *const c_char, len: size_t) -> ssize_t {
    // SAFETY: as above. An error is a 0.
    unsafe { write(fd.addr() as c_int, from.cast(), len).max(0) }
}

unsafe extern "C-unwind" fn seek_nowhere(_fd: *mut c_void, _at: *mut off64_t, _from: c_int) -> c_int {
    set_errno(libc::ESPIPE);
    -1
}

unsafe extern "C-unwind" fn close_hooked(fd: *mut c_void) -> c_int {
    // SAFETY: the stream's own number.
    unsafe { close(fd.addr() as c_int) }
}

/// A stream for a connection whose sender has ended with bytes unread in the ring, where libc's own reads would not find them: it reads by
/// our hooks. `None`: there are none, or this libc has no such stream that has a number.
unsafe fn open_hooked(fd: c_int, mode: *const c_char) -> Option<*mut FILE> {
    type Open = unsafe extern "C" fn(*mut c_void, *const c_char, Calls) -> *mut FILE;
    table::conn(fd).filter(|&conn| !conn::reads_tcp(conn) && !is_musl())?;
    let open = weak_function!("fopencookie": Open)?;
    let calls = Calls { read: read_hooked, write: write_hooked, seek: seek_nowhere, close: close_hooked };
    // SAFETY: the program's mode; the calls live as long as this library.
    let stream = unsafe { open(core::ptr::without_provenance_mut(fd as usize), mode, calls) };
    let head = stream.cast::<Head>();
    // SAFETY: a stream of glibc's, just opened and known to nobody else.
    if !stream.is_null() && unsafe { (*head).number } == NO_NUMBER {
        // SAFETY: as above.
        unsafe { (*head).number = fd };
    }
    Some(stream)
}

hooks! {
    /// fopen(3)
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE { opened(covered::fopen(path, mode)) }
    /// fopen(3), 64-bit offsets
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE { opened(covered::fopen64(path, mode)) }
    /// fdopen(3)
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        hand_over(fd, Reason::Stdio);
        opened(open_hooked(fd, mode).unwrap_or_else(|| covered::fdopen(fd, mode)))
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
