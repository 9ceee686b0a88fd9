//! Huge pages under memory that is lent again and again: the kernel looks up and pins 512 pages of such a stretch as one, and a
//! receiver copies from it half as fast again (docs/zerocopy.md).
//!
//! The memory is the program's, so this is asked for where it can be told to pay, once for a stretch, and only where nearly all
//! of it is there already: it shall not grow by this. What the program or its administrator has said against huge pages holds
//! (MADV_NOHUGEPAGE, PR_SET_THP_DISABLE); the bytes and their addresses stay as they are.

use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::io::Errno;

use crate::sys;

/// A huge page, bytes.
const SIZE: usize = shunpike_arch::HUGE_PAGE;
/// So many bytes of a stretch must have been lent: the kernel copies it all, once.
const HOT: u64 = 2 * SIZE as u64;
/// After as many more it is tried again, if the receiver was in the way.
const RETRY: u64 = SIZE as u64;
/// Stretches that are kept count of; others take their places.
const STRETCHES: usize = 64;
/// Pages of one that may be missing.
const HOLES: usize = SIZE / PAGE / 16;
const PAGE: usize = 4096;

struct Stretch {
    /// Address / [`SIZE`]; 0 none.
    number: AtomicUsize,
    /// Bytes of it that were lent. Guesses: threads that count at the same time may lose some.
    bytes: AtomicU64,
}

static STRETCH: [Stretch; STRETCHES] =
    [const { Stretch { number: AtomicUsize::new(0), bytes: AtomicU64::new(0) } }; STRETCHES];

/// `len` bytes at `from` are lent, where huge pages may pay.
pub fn note(from: *const u8, len: usize) {
    let (begin, end) = (from as usize, from as usize + len);
    for number in begin / SIZE..=(end - 1) / SIZE {
        let part = end.min((number + 1) * SIZE) - begin.max(number * SIZE);
        let stretch = &STRETCH[number % STRETCHES];
        if stretch.number.swap(number, Ordering::Relaxed) != number {
            stretch.bytes.store(0, Ordering::Relaxed);
        }
        let before = stretch.bytes.fetch_add(part as u64, Ordering::Relaxed);
        if before < HOT && before + part as u64 >= HOT && collapse(number * SIZE) == Err(Errno::AGAIN) {
            stretch.bytes.store(HOT - RETRY, Ordering::Relaxed);
        }
    }
}

/// What comes of it the pace shows. Errors: EAGAIN, the receiver reads there just now.
#[cold]
fn collapse(at: usize) -> Result<(), Errno> {
    let mut there = [0u8; SIZE / PAGE];
    sys::mincore(at, SIZE, &mut there)?;
    let holes = there.iter().filter(|&page| page & 1 == 0).count();
    if holes > HOLES { Err(Errno::NOMEM) } else { sys::collapse(at, SIZE) }
}
