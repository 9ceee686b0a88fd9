//! Descriptors of ours: where they lie, how many there may be.
//!
//! The kernel keeps a process's descriptors in a table that doubles when a number does not fit. Where threads share the table
//! it waits then until every CPU has been through the scheduler (`expand_fdtable`, fs/file.c): 8 to 20 milliseconds. So the
//! table is enlarged once, at start-up, while there is one thread, and later no number is asked for that could enlarge it.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::table::{self, Entry};
use crate::{clock, sys};

/// Ours begin here where the limit allows it: behind those that a set of select(2) can hold.
const FLOOR: u64 = libc::FD_SETSIZE as u64;
/// What the process may have open is the program's but for one part in so many.
const SHARE: u64 = 8;
/// Numbers at the end of the table that are left alone, for others who take some at the same time.
const SLACK: u32 = 64;
/// Numbers in a row that are tried.
const TRIES: i32 = 128;
/// /proc is asked again after this long for the table's size, microseconds.
const ASK_US: u64 = 100_000;

/// Numbers that the table has room for, at the least.
static ROOM: AtomicU32 = AtomicU32::new(0);
/// Ours at present.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// Behind the last one of ours.
static HINT: AtomicI32 = AtomicI32::new(0);
static ASK_AT: AtomicU64 = AtomicU64::new(0);

/// What the limit of descriptors leaves to us.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Place {
    limit: u32,
    floor: i32,
    share: u32,
}

impl Place {
    fn within(limit: u64) -> Self {
        let limit = limit.min(i32::MAX as u64);
        let share = limit / SHARE;
        Self { limit: limit as u32, floor: (limit - share).min(FLOOR) as i32, share: share as u32 }
    }
}

fn limits() -> Rlimit {
    getrlimit(Resource::Nofile)
}

fn place() -> Place {
    Place::within(limits().current.unwrap_or(u64::MAX))
}

/// Whether `more` descriptors are within our share.
pub fn are_left(more: u32) -> bool {
    COUNT.load(Ordering::Relaxed) + more <= place().share
}

/// Makes the table large enough, while no other thread shares it: at start-up, and in a forked child.
pub fn make_room() {
    let limits = limits();
    let (soft, hard) = (limits.current.unwrap_or(u64::MAX), limits.maximum.unwrap_or(u64::MAX));
    // Servers raise their limit to the hard one, with threads by then: it is made use of here for a moment.
    let is_raised = soft <= FLOOR
        && hard > FLOOR
        && setrlimit(Resource::Nofile, Rlimit { current: Some(FLOOR + 1), maximum: limits.maximum }).is_ok();
    let floor = if is_raised { FLOOR as i32 } else { Place::within(soft).floor };
    // A file of our own: a close of the program's might let go of its locks.
    if let Ok(file) = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)
        && let Ok(high) = rustix::io::fcntl_dupfd_cloexec(&file, floor)
    {
        ROOM.store(room_with(high.as_raw_fd()), Ordering::Relaxed);
    }
    if is_raised {
        let _ = setrlimit(Resource::Nofile, limits);
    }
}

/// Numbers that a table with `fd` in it has room for, at the least: the kernel makes 64, and then powers of two.
fn room_with(fd: i32) -> u32 {
    (fd as u32 + 1).next_power_of_two().max(64)
}

/// Moves a descriptor of ours to a high number, CLOEXEC, and marks it as not the program's. Errors: EMFILE where our share is
/// used up, or the number would make others wait.
pub fn internal(fd: OwnedFd) -> Result<OwnedFd, Errno> {
    internal_copy(fd.as_fd())
}

/// A copy of a descriptor, as `internal` makes them.
pub fn internal_copy(fd: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    let place = place();
    if COUNT.load(Ordering::Relaxed) >= place.share {
        return Err(Errno::MFILE);
    }
    let from =
        if sys::is_single_threaded() { place.floor } else { free_number(place).ok_or(Errno::MFILE)? };
    let high = rustix::io::fcntl_dupfd_cloexec(fd, from)?;
    let number = high.as_raw_fd();
    COUNT.fetch_add(1, Ordering::Relaxed);
    HINT.store(number + 1, Ordering::Relaxed);
    ROOM.fetch_max(room_with(number), Ordering::Relaxed);
    table::set(number, Entry::Internal);
    Ok(high)
}

/// A number from which on one is free that the table has room for.
fn free_number(place: Place) -> Option<i32> {
    let found = free_within(place, ROOM.load(Ordering::Relaxed));
    if found.is_some() || clock::ticks() < ASK_AT.load(Ordering::Relaxed) {
        return found;
    }
    ASK_AT.store(clock::ticks() + clock::from_us(ASK_US), Ordering::Relaxed);
    let before = ROOM.fetch_max(sys::descriptor_table()?, Ordering::Relaxed);
    let now = ROOM.load(Ordering::Relaxed);
    if now > before { free_within(place, now) } else { None }
}

fn free_within(place: Place, room: u32) -> Option<i32> {
    // No number beyond the limit makes the table grow.
    let end = if place.limit <= room { place.limit } else { room.saturating_sub(SLACK) } as i32;
    [HINT.load(Ordering::Relaxed), place.floor, table::end()]
        .into_iter()
        .flat_map(|from| from..from.saturating_add(TRIES))
        .filter(|number| (place.floor..end).contains(number))
        .find(|&number| table::is_none(number) && !sys::is_open(number))
}

/// Closes one of ours.
pub fn close(fd: OwnedFd) {
    let number = fd.as_raw_fd();
    forget(number);
    drop(fd);
}

/// Closes one of ours that was kept as a number; not where that is none.
pub fn close_number(number: i32) {
    if number >= 0 {
        forget(number);
        // SAFETY: made by `internal`, and forgotten by the caller.
        unsafe { rustix::io::close(number) };
    }
}

/// The mark of `internal` is taken away; the caller closes.
pub fn forget(number: i32) {
    if matches!(table::take(number), Entry::Internal) {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}
