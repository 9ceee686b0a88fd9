//! io_uring: rings move bytes with no call that a hook could see, so a process that has one keeps its connections on TCP.

use core::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use rustix::fs::{CWD, Mode, OFlags, RawDir};
use shunpike_wire::Reason;

use crate::table::{self, Entry};
use crate::{conn, process};

static IN_USE: AtomicBool = AtomicBool::new(false);
static NOMINATIONS: AtomicU32 = AtomicU32::new(0);

/// A ring is about to be set up: every connection leaves its lane for good. With no lock held.
pub fn set_up() {
    if !process::enabled() || IN_USE.swap(true, Ordering::Relaxed) {
        return;
    }
    for (fd, entry) in table::all() {
        if let Entry::Conn(conn) = entry {
            conn::hand_over(conn, fd, Reason::IoUring);
        }
    }
}

/// Whether the process has a ring, asked at each nomination. One that was made by the program's own system calls is looked
/// for at the first nomination, the second, the fourth, and so on: programs make their rings early.
pub(crate) fn in_use() -> bool {
    if IN_USE.load(Ordering::Relaxed) {
        return true;
    }
    let nominations = NOMINATIONS.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
    let found = nominations.is_power_of_two() && is_held();
    if found {
        IN_USE.store(true, Ordering::Relaxed);
    }
    found
}

/// Whether a descriptor of the process is a ring, without memory of its own. Without /proc: no.
fn is_held() -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(directory) = rustix::fs::openat(CWD, c"/proc/self/fd", flags, Mode::empty()) else { return false };
    let mut entries = [MaybeUninit::<u8>::uninit(); 4096];
    let mut entries = RawDir::new(&directory, &mut entries);
    while let Some(Ok(entry)) = entries.next() {
        let mut target = [MaybeUninit::<u8>::uninit(); 64];
        let target = rustix::fs::readlinkat_raw(&directory, entry.file_name(), &mut target[..]);
        if target.is_ok_and(|(target, _)| *target == *b"anon_inode:[io_uring]") {
            return true;
        }
    }
    false
}
