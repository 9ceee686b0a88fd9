//! Descriptors of ours: where they lie, how many there may be.
//!
//! The kernel keeps a process's descriptors in a table that doubles when a number does not fit. Where threads share the table
//! it waits then until every CPU has been through the scheduler (`expand_fdtable`, fs/file.c): 8 to 20 milliseconds. So the
//! table is enlarged once, at start-up, while there is one thread, and later no number is asked for that could enlarge it.
//!
//! RLIMIT_NOFILE bounds numbers, not how many there are. So ours take nothing from the program where they lie beyond its limit: with a
//! soft limit that is low, and a hard one that is not, the soft one is raised for the one call that makes a descriptor of ours.

use core::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};

use rustix::event::EventfdFlags;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, prlimit};

use crate::host::is_alone;
use crate::mutex::{Guard, Mutex};
use crate::table::{self, Entry};
use crate::{clock, sys};

/// Ours begin here where the limit allows it: behind those that a set of select(2) can hold.
const FLOOR: u64 = libc::FD_SETSIZE as u64;
/// Of limits from [`FLOOR`] on, which hold for ours, too, all but one part in so many is the program's. Of lower ones, all.
const SHARE: u64 = 8;
/// The table's size where ours lie beyond the program's limit.
const BEYOND: u64 = 2 * FLOOR;
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
/// The kernel has let us raise the limit at start-up, where it was low.
static MAY_RAISE: AtomicBool = AtomicBool::new(false);
/// Who raises the limit.
static RAISING: Mutex<()> = Mutex::new(());

/// What the limit of descriptors leaves to us.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
struct Place {
    /// Behind the last number that we may have.
    limit: u32,
    floor: i32,
    share: u32,
    /// The program's limit has to be raised for it.
    is_beyond: bool,
}

impl Place {
    fn within(limit: u64) -> Self {
        let limit = limit.min(i32::MAX as u64);
        let share = if limit < FLOOR { 0 } else { limit / SHARE };
        let floor = (limit - share).min(FLOOR) as i32;
        Self { limit: limit as u32, floor, share: share as u32, is_beyond: false }
    }

    /// By the program's limits; `may_raise`: the kernel would let us raise them.
    fn of(limits: &Rlimit, may_raise: bool) -> Self {
        let [soft, hard] = [limits.current, limits.maximum].map(|limit| limit.unwrap_or(u64::MAX));
        if !may_raise || soft > FLOOR || hard < BEYOND {
            return Self::within(soft);
        }
        let share = (BEYOND - FLOOR) as u32 - SLACK;
        Self { limit: BEYOND as u32, floor: FLOOR as i32, share, is_beyond: true }
    }
}

fn limits() -> Rlimit {
    getrlimit(Resource::Nofile)
}

fn place() -> Place {
    Place::of(&limits(), MAY_RAISE.load(Ordering::Relaxed))
}

/// The limit is raised for our sake until this is dropped.
struct Raised {
    before: Rlimit,
    set: Rlimit,
    _alone: Guard<'static, ()>,
}

impl Raised {
    /// Errors: the kernel's, where it does not let us.
    fn begin() -> Result<Self, Errno> {
        let alone = RAISING.lock();
        let set = Rlimit { current: Some(BEYOND), maximum: limits().maximum };
        // What the program has set by now, also since that look.
        let before = prlimit(None, Resource::Nofile, set)?;
        Ok(Self { before, set, _alone: alone })
    }
}

impl Drop for Raised {
    fn drop(&mut self) {
        // What is found is what we have set, unless the program has set something meanwhile: that it keeps.
        if let Ok(found) = prlimit(None, Resource::Nofile, self.before)
            && (found.current, found.maximum) != (self.set.current, self.set.maximum)
        {
            let _ = prlimit(None, Resource::Nofile, found);
        }
    }
}

/// Whether `more` descriptors are within our share.
pub fn are_left(more: u32) -> bool {
    COUNT.load(Ordering::Relaxed) + more <= place().share
}

/// Makes the table large enough, while no other thread shares it: at start-up, and in a forked child.
pub fn make_room() {
    let soft = limits().current.unwrap_or(u64::MAX);
    // Servers raise their limit to the hard one, with threads by then: it is made use of here for a moment.
    let raised = if soft <= FLOOR { Raised::begin().ok() } else { None };
    MAY_RAISE.store(raised.is_some() || soft > FLOOR, Ordering::Relaxed);
    let floor = if raised.is_some() { FLOOR as i32 } else { Place::within(soft).floor };
    // A file of our own: a close of the program's might let go of its locks.
    if let Ok(file) = rustix::event::eventfd(0, EventfdFlags::CLOEXEC)
        && let Ok(high) = rustix::io::fcntl_dupfd_cloexec(&file, floor)
    {
        ROOM.store(room_with(high.as_raw_fd()), Ordering::Relaxed);
    }
}

/// Before fork(): the child's limit is to be the program's.
pub fn hold_across_fork() {
    RAISING.hold();
}

/// After it, in the parent and in the child.
pub fn let_go_after_fork() {
    RAISING.let_go();
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
    let from = if is_alone() { place.floor } else { free_number(place).ok_or(Errno::MFILE)? };
    let raised = if place.is_beyond { Some(Raised::begin()?) } else { None };
    let high = rustix::io::fcntl_dupfd_cloexec(fd, from)?;
    drop(raised);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn place(current: u64, maximum: u64, may_raise: bool) -> Place {
        Place::of(&Rlimit { current: Some(current), maximum: Some(maximum) }, may_raise)
    }

    #[test]
    fn a_low_limit_is_all_the_program_s() {
        for limit in [0, 32, 256, 1023] {
            assert_eq!(place(limit, limit, false).share, 0, "{limit}");
            assert_eq!(place(limit, 1 << 20, false).share, 0, "{limit}, which may not be raised");
            assert!(place(limit, 1 << 20, true).floor as u64 >= limit, "{limit}, beyond which there is room");
        }
    }

    #[test]
    fn ours_are_a_share_of_a_high_one() {
        for limit in [1024, 4096, 1 << 20] {
            let place = place(limit, limit, true);
            assert!((1..=limit / 8).contains(&place.share.into()) && !place.is_beyond, "{limit}");
        }
    }
}
