//! Which memory may be lent: what the program has mapped by mmap's name, with no file behind it.
//!
//! TCP pins the pages that a call with MSG_ZEROCOPY sends: the program may unmap them at once. A loan has nothing pinned, so it must be
//! recalled before its memory goes, and only where the hooks see that is memory lent. What malloc has from the kernel it gives back by
//! calls within libc that no hook sees, and so does who grows the heap or attaches shared memory: none of that is here, and it is
//! copied. Nor is a mapping of a file: its pages may be somebody's to deliver (FUSE), and a reader would wait for them.
//!
//! The table is written without a lock, as allocators come here from anywhere. An entry only shrinks until it is free again, so what a
//! thread that is late does to one is that less is lent.

use core::sync::atomic::{AtomicUsize, Ordering};

/// Mappings that are known at a time; what is in further ones is copied.
const MOST: usize = 512;
/// Smaller ones hold nothing that would be lent.
const LEAST: usize = 16 * 1024;

/// Addresses from `start` to `end`; free where `end` is 0.
struct Mapping {
    start: AtomicUsize,
    end: AtomicUsize,
}

static MAPPINGS: [Mapping; MOST] =
    [const { Mapping { start: AtomicUsize::new(0), end: AtomicUsize::new(0) } }; MOST];
/// Entries that were ever used.
static USED: AtomicUsize = AtomicUsize::new(0);

fn used() -> &'static [Mapping] {
    &MAPPINGS[..USED.load(Ordering::Acquire).min(MOST)]
}

/// The program has mapped `len` bytes at `start`, without a file.
pub fn mapped(start: usize, len: usize) {
    if len < LEAST || start == 0 {
        return;
    }
    // An end of 1 is before every start: the entry is taken, and holds nothing yet.
    let take = |one: &Mapping| one.end.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok();
    let free = || {
        used().iter().find(|one| one.end.load(Ordering::Relaxed) == 0 && take(one)).or_else(|| {
            loop {
                let next = USED.load(Ordering::Relaxed);
                let one = MAPPINGS.get(next)?;
                // Release pairs with the Acquire in `used`.
                let grown = USED.compare_exchange(next, next + 1, Ordering::Release, Ordering::Relaxed);
                if grown.is_ok() && take(one) {
                    return Some(one);
                }
            }
        })
    };
    let Some(one) = free() else { return };
    one.start.store(start, Ordering::Relaxed);
    // Release pairs with the Acquire in `holds`: who finds the end finds the start.
    one.end.store(start.saturating_add(len), Ordering::Release);
}

/// The program unmaps `len` bytes at `start`, or maps something else there. Of a mapping that is cut in two the first part stays known.
pub fn unmapped(start: usize, len: usize) {
    let end = start.saturating_add(len);
    for one in used() {
        let [from, to] = [one.start.load(Ordering::Relaxed), one.end.load(Ordering::Relaxed)];
        if to <= 1 || from >= end || to <= start {
            continue;
        }
        if from >= start && to <= end {
            let _ = one.end.compare_exchange(to, 0, Ordering::Release, Ordering::Relaxed);
        } else if from >= start {
            one.start.fetch_max(end, Ordering::Relaxed);
        } else {
            let _ = one.end.compare_exchange(to, start, Ordering::Release, Ordering::Relaxed);
        }
    }
}

/// Whether all `len` bytes at `start` lie in one known mapping.
pub fn holds(start: usize, len: usize) -> bool {
    let Some(end) = start.checked_add(len) else { return false };
    used().iter().any(|one| {
        let to = one.end.load(Ordering::Acquire);
        to > 1 && end <= to && one.start.load(Ordering::Relaxed) <= start
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const K: usize = 1024;

    /// One test for all: the table is the process's.
    #[test]
    fn what_is_cut_off_is_not_held() {
        let at = 1 << 40;
        mapped(at, 100 * K);
        assert!(holds(at, 100 * K) && holds(at + K, 10 * K) && !holds(at, 101 * K) && !holds(at - 1, K));
        unmapped(at, 10 * K);
        assert!(!holds(at + 9 * K, 2 * K) && holds(at + 10 * K, 90 * K));
        unmapped(at + 95 * K, 50 * K);
        assert!(!holds(at + 94 * K, 2 * K) && holds(at + 10 * K, 85 * K));
        unmapped(at + 50 * K, K);
        assert!(holds(at + 10 * K, 40 * K) && !holds(at + 52 * K, K), "of two parts the first one");
        unmapped(at, 1 << 30);
        assert!(!holds(at + 10 * K, K));
        mapped(at, 8 * K);
        assert!(!holds(at, K), "too small to be of use");
        for n in 0..2 * MOST {
            mapped(at + n * 64 * K, 64 * K);
        }
        assert!(holds(at, 64 * K) && !holds(at + 2 * MOST * 64 * K, 64 * K));
        unmapped(0, usize::MAX);
        assert!(!(0..2 * MOST).any(|n| holds(at + n * 64 * K, K)), "none is left");
        mapped(at, 64 * K);
        assert!(holds(at, 64 * K), "entries are used again");
        unmapped(at, 64 * K);
    }
}
