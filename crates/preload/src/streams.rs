//! The numbers of stdio's streams: what is read and written by them passes no hook. A connection at a number that one has is TCP's for good.

use core::ffi::c_int;
use core::sync::atomic::{AtomicU64, Ordering};
use shunpike_core::wire::Reason;
use shunpike_core::{conn, table};

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

/// A stream has `fd` since now.
pub fn opened(fd: c_int) {
    if let Some((word, bit)) = word(fd) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
}

/// A stream has `fd` no more.
pub fn closed(fd: c_int) {
    if let Some((word, bit)) = word(fd) {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// `new` is another number of `fd` since now. Where a stream has it, its bytes would go beside a lane.
pub fn duplicated(fd: c_int, new: c_int) {
    conn::duplicated(fd, new);
    if word(new).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
        && let Some(conn) = table::conn(new)
    {
        conn::hand_over(conn, new, Reason::Stdio);
    }
}
