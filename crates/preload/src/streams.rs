//! stdio's streams: what is read and written by them passes no hook. A connection at a number that one has is TCP's for good.

use core::ffi::{c_char, c_int};
use core::sync::atomic::{AtomicU64, Ordering};
use libc::FILE;
use shunpike_core::wire::Reason;
use shunpike_core::{conn, table};

use crate::errno::{errno, set_errno};
use crate::lifecycle::{let_go, plain};

const WORDS: usize = 16;

/// A bit for each number that a stream has: at first stdin's, stdout's and stderr's. Those that libc opens for itself are not seen, and
/// one whose number was closed without it keeps its bit, which costs a lane at most.
static NUMBERS: [AtomicU64; WORDS] = {
    let mut words = [const { AtomicU64::new(0) }; WORDS];
    words[0] = AtomicU64::new(0b111);
    words
};

fn word(fd: c_int) -> Option<(&'static AtomicU64, u64)> {
    let fd = usize::try_from(fd).ok()?;
    Some((NUMBERS.get(fd / 64)?, 1 << (fd % 64)))
}

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
    if let Some((word, bit)) = word(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
    stream
}

/// libc is about to close the stream's number, or to make something else of it.
unsafe fn closing(stream: *mut FILE) {
    // SAFETY: the program's stream, which is open.
    let fd = unsafe { number(stream) };
    if let Some((word, bit)) = word(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
    if !table::is_none(fd) {
        plain(fd, Reason::Stdio);
        let_go(fd);
    }
}

/// `new` is another number of `fd` since now. Where a stream has it, its bytes would go beside a lane.
pub fn duplicated(fd: c_int, new: c_int) {
    conn::duplicated(fd, new);
    if word(new).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0) {
        plain(new, Reason::Stdio);
    }
}

hooks! {
    /// fopen(3)
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE { opened(covered::fopen(path, mode)) }
    /// fopen(3), 64-bit offsets
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE { opened(covered::fopen64(path, mode)) }
    /// fdopen(3)
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE {
        plain(fd, Reason::Stdio);
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
