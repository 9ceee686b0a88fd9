//! io_uring: rings move bytes with no call that a hook could see, so a process that has one keeps its connections on TCP; but for those whose
//! submissions are seen (conn/rings.rs).

use core::ffi::CStr;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, Ordering};

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, RawDir, SeekFrom};

use crate::table::{self};

static IN_USE: AtomicBool = AtomicBool::new(false);
static NOMINATIONS: AtomicU32 = AtomicU32::new(0);
/// Position of the first descriptor in a process's fd directory: behind "." and "..".
const FIRST: u64 = 2;
/// Descriptors in a row that the table has, after which the search goes on behind all that follow.
const SKIP: usize = 8;

/// More than a process has threads with an event loop, as a rule.
pub(crate) const MOST: usize = 32;
/// Rings whose submissions are seen, by their descriptors; -1: none. A number is another ring's, once it is made anew.
static FOLLOWED: [AtomicI32; MOST] = [const { AtomicI32::new(-1) }; MOST];

/// The place of a ring whose submissions are seen.
pub(crate) fn followed(fd: i32) -> Option<usize> {
    FOLLOWED.iter().position(|one| fd >= 0 && one.load(Ordering::Relaxed) == fd)
}

/// Nothing goes into this ring unseen: its place. `None`: there are too many such rings.
pub(crate) fn follow(fd: i32) -> Option<usize> {
    let becomes =
        |one: &AtomicI32| one.compare_exchange(-1, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    followed(fd).or_else(|| FOLLOWED.iter().position(becomes))
}

/// A ring was set up. Says whether it is the first one.
pub(crate) fn note() -> bool {
    !IN_USE.swap(true, Ordering::Relaxed)
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
    let is_ring = |name: &CStr| {
        let mut target = [MaybeUninit::<u8>::uninit(); 64];
        let target = rustix::fs::readlinkat_raw(&directory, name, &mut target[..]);
        target.is_ok_and(|(target, _)| *target == *b"anon_inode:[io_uring]")
    };
    let mut found = false;
    open_from(&directory, 0, |fd, name| {
        found = table::is_none(fd) && is_ring(name) && followed(fd).is_none();
        !found
    });
    found
}

/// Calls `each` with the open descriptors from `next` on until it says no; those that the table has are left out where many
/// follow each other: a server has thousands, and each costs a microsecond.
fn open_from(directory: &OwnedFd, mut next: i32, mut each: impl FnMut(i32, &CStr) -> bool) {
    loop {
        while !table::is_none(next) {
            next += 1;
        }
        // Where a descriptor stands in the directory: fs/proc/fd.c, proc_readfd_common.
        if rustix::fs::seek(directory, SeekFrom::Start(FIRST + next as u64)).is_err() {
            return;
        }
        let mut room = [MaybeUninit::<u8>::uninit(); 1024];
        let mut entries = RawDir::new(directory, &mut room);
        let (mut any, mut known) = (false, 0);
        while known < SKIP
            && let Some(Ok(entry)) = entries.next()
        {
            let name = entry.file_name();
            let Some(fd) = name.to_str().ok().and_then(|name| name.parse().ok()) else { continue };
            if !each(fd, name) {
                return;
            }
            any = true;
            known = if table::is_none(fd) { 0 } else { known + 1 };
            next = fd + 1;
        }
        if !any {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::{self, Entry};
    use rustix::fd::{FromRawFd, IntoRawFd};

    fn found(directory: &OwnedFd) -> Vec<i32> {
        let mut found = Vec::new();
        open_from(directory, 0, |fd, name| {
            assert_eq!(name.to_str().ok().and_then(|name| name.parse().ok()), Some(fd));
            found.push(fd);
            true
        });
        found
    }

    #[test]
    fn descriptors_are_found_beside_many_that_the_table_has() {
        assert!(table::init());
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(c"/proc/self/fd", flags, Mode::empty()).expect("/proc");
        // Beyond what other tests open meanwhile; more than one read of the directory gives.
        let numbers = 500..700;
        for number in numbers.clone() {
            // SAFETY: nobody has a descriptor of such a number.
            let mut to = unsafe { OwnedFd::from_raw_fd(number) };
            rustix::io::dup2(&directory, &mut to).expect("dup2");
            let _ = to.into_raw_fd();
        }
        let all = |from: Vec<i32>| from.into_iter().filter(|fd| numbers.contains(fd)).collect::<Vec<_>>();
        assert_eq!(all(found(&directory)), numbers.clone().collect::<Vec<_>>());
        let known = |fd: i32| !(500..503).contains(&fd) && fd != 600 && fd != 699;
        for fd in numbers.clone().filter(|&fd| known(fd)) {
            table::set(fd, Entry::Socket);
        }
        let found = all(found(&directory));
        assert!(numbers.clone().filter(|&fd| !known(fd)).all(|fd| found.contains(&fd)), "{found:?}");
        assert!(found.len() <= 5 + 2 * SKIP, "{found:?}");
        for number in numbers {
            table::set(number, Entry::None);
            // SAFETY: ours, from above.
            drop(unsafe { OwnedFd::from_raw_fd(number) });
        }
    }
}
