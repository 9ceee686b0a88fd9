//! What the limits of the process leave for lanes: a program has to live on them under each limit under which it lives on TCP.

use core::ffi::CStr;
use core::sync::atomic::{AtomicUsize, Ordering};

use rustix::fd::BorrowedFd;
use rustix::fs::{CWD, Mode, OFlags};
use rustix::process::{Resource, getrlimit};
use shunpike_shm::device::{ClientDevice, Own};
use shunpike_shm::{Region, RegionError, arena, region};

use rustix::io::Errno;

const PAGE: u64 = 4096;
/// The share that is ours of what the program leaves of a limit.
const SHARE: u64 = 8;
/// Mappings of a process, where the kernel does not say how many it allows (vm.max_map_count).
const FEW_MAPPINGS: usize = 65_530;

/// vm.max_map_count, as first asked for; 0 not yet.
static MAP_COUNT: AtomicUsize = AtomicUsize::new(0);

/// Whether so many bytes of address space more leave the program its own.
pub fn may_map(len: usize) -> bool {
    let (mapped, mappings) = region::mapped();
    mappings < map_count() / SHARE as usize && (mapped + len) as u64 <= address_space(mapped as u64)
}

/// Address space that may be ours, of which we have `mapped`.
fn address_space(mapped: u64) -> u64 {
    let Some(limit) = getrlimit(Resource::As).current else { return u64::MAX };
    // Without /proc the program may have half of it.
    let in_use = first_number(c"/proc/self/statm").map_or(limit / 2, |pages| pages * PAGE);
    (limit.saturating_sub(in_use) + mapped) / SHARE
}

fn map_count() -> usize {
    let known = MAP_COUNT.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let most = first_number(c"/proc/sys/vm/max_map_count").map_or(FEW_MAPPINGS, |most| most as usize);
    MAP_COUNT.store(most.max(1), Ordering::Relaxed);
    most
}

/// Maps the first `len` bytes of a DMB of ours.
pub fn map_lane(fd: BorrowedFd<'_>, len: usize) -> Result<Region, RegionError> {
    within(len, || Own::map(fd, len))
}

/// Maps the first `len` bytes of a peer's DMB of size class `class`.
pub fn attach_lane(fd: BorrowedFd<'_>, class: u8, len: usize) -> Result<Region, RegionError> {
    within(len, || Own::attach(fd, class, len))
}

fn within(len: usize, map: impl FnOnce() -> Result<Region, RegionError>) -> Result<Region, RegionError> {
    if may_map(len) { map() } else { Err(RegionError::Map(Errno::NOMEM)) }
}

/// Largest size of an arena: of a limited address space little, as the lanes need some of our share, too.
pub fn arena_size() -> usize {
    region::most_bytes().min(address_space(0) / SHARE).min(arena::SIZE as u64) as usize
}

/// Before mlockall(2), which says with MCL_FUTURE that what is mapped from now on is locked.
pub fn will_lock(future: bool) {
    if future {
        region::set_locks_future(true);
    }
}

/// After it: what is ours needs not to be locked.
pub fn locked() {
    each_line(c"/proc/self/maps", |line| {
        if let Some((start, end)) = own_mapping(line) {
            Region::of(start, end - start).unlock();
        }
    });
}

/// After munlockall(2).
pub fn unlocked() {
    region::set_locks_future(false);
}

/// Of a line of /proc/self/maps: where the mapping is, if it is one of ours.
fn own_mapping(line: &[u8]) -> Option<(usize, usize)> {
    const NAME: &[u8] = b"/memfd:shunpike-";
    line.windows(NAME.len()).any(|part| part == NAME).then_some(())?;
    let range = line.split(|&byte| byte == b' ').next()?;
    let mut ends = range
        .split(|&byte| byte == b'-')
        .map(|digits| usize::from_str_radix(core::str::from_utf8(digits).ok()?, 16).ok());
    Some((ends.next()??, ends.next()??))
}

/// The number that a file of the kernel's begins with.
fn first_number(path: &CStr) -> Option<u64> {
    let mut number = None;
    each_line(path, |line| number = number.or_else(|| number_of(line)));
    number
}

/// The number that `text` begins with.
pub(crate) fn number_of(text: &[u8]) -> Option<u64> {
    let digits = text.split(|byte| !byte.is_ascii_digit()).next()?;
    core::str::from_utf8(digits).ok()?.parse().ok()
}

/// Calls `each` with the lines of a file of the kernel's, without memory of its own. Lines are cut at a kilobyte.
pub(crate) fn each_line(path: &CStr, mut each: impl FnMut(&[u8])) {
    let Ok(file) = rustix::fs::openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
        return;
    };
    let (mut room, mut held) = ([0u8; 1024], 0);
    loop {
        let got = match rustix::io::read(&file, &mut room[held..]) {
            Err(Errno::INTR) => continue,
            Ok(got) => got,
            Err(_) => 0,
        };
        held += got;
        let mut from = 0;
        while let Some(len) = room[from..held].iter().position(|&byte| byte == b'\n') {
            each(&room[from..from + len]);
            from += len + 1;
        }
        if got == 0 || from == 0 && held == room.len() {
            each(&room[from..held]);
            from = held;
        }
        room.copy_within(from..held, 0);
        held -= from;
        if got == 0 {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_ours_are_told_from_others() {
        let ours = own_mapping(b"7f10-7f30 rw-s 00000000 00:01 1031  /memfd:shunpike-dmb (deleted)");
        assert_eq!(ours, Some((0x7f10, 0x7f30)));
        assert_eq!(own_mapping(b"7f10-7f30 rw-s 00000000 00:01 1031  /memfd:other (deleted)"), None);
        assert_eq!(own_mapping(b"7f10-7f30 rw-p 00000000 00:00 0 "), None);
    }

    #[test]
    fn files_of_the_kernel_are_read_line_by_line() {
        let (mut lines, mut longest) = (0, 0);
        each_line(c"/proc/self/maps", |line| (lines, longest) = (lines + 1, longest.max(line.len())));
        assert!(lines > 8 && longest > 40, "{lines} lines, of at most {longest} bytes");
        assert!(first_number(c"/proc/self/statm").is_some_and(|pages| pages > 100));
        assert_eq!(first_number(c"/proc/self/none"), None);
    }
}
