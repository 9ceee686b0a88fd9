//! A set for which a forked child waits, too. The parent's connections come on lanes also after the fork, and of those the child knows nothing:
//! it tells its parent, whose lanes of that set end. The processes of a tree have a page in common for that.

use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use rustix::fd::AsRawFd;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::regs::bell_tag;
use super::{EDGE, is_inherited, ring};
use crate::set::{List, Set};
use crate::tls::critical;
use crate::{clock, descriptors, doorbell, sys};

/// How long a child gives a parent that sleeps for the set to hear of it, microseconds.
const HEARS_US: u64 = 5_000;

/// Sets that have marks of their own.
const MARKS: u32 = 4096;

/// A bit for each mark.
struct Page {
    /// Marks given out (wrapping).
    given: AtomicU32,
    /// A child waits for it.
    watched: [AtomicU64; MARKS as usize / 64],
    /// Threads of who made it sleep for it.
    asleep: [AtomicU64; MARKS as usize / 64],
}

/// Made by the first fork of a process that has a set.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(core::ptr::null_mut());

fn page() -> Option<&'static Page> {
    // SAFETY: null, or a mapping of this size that is never unmapped; atomics only, for which zeroes are sound.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

fn made() -> Option<&'static Page> {
    if page().is_none() {
        let (len, access) = (size_of::<Page>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a fresh anonymous mapping touches no memory of ours.
        let made = unsafe { mmap_anonymous(core::ptr::null_mut(), len, access, MapFlags::SHARED) };
        if let Ok(made) = made
            // Another thread's fork may have made one: Acquire, as in `page`.
            && PAGE
                .compare_exchange(core::ptr::null_mut(), made.cast(), Ordering::AcqRel, Ordering::Acquire)
                .is_err()
        {
            // SAFETY: ours alone.
            let _ = unsafe { munmap(made, len) };
        }
    }
    page()
}

/// Where a set's bit is, and the bit.
fn place(set: &Set) -> Option<(usize, u64)> {
    let mark = set.mark.load(Ordering::Relaxed).checked_sub(1)? % MARKS;
    Some((mark as usize / 64, 1 << (mark % 64)))
}

/// Before fork(): the child will have the set, too. Who sleeps for it wakes, and declares that from now on. Where there is no memory the child
/// tells nobody.
pub(super) fn begin(set: &'static Set) {
    let list = set.list.lock();
    if let Some(page) = made()
        && set.mark.load(Ordering::Relaxed) == 0
    {
        set.mark.store(page.given.fetch_add(1, Ordering::Relaxed) % MARKS + 1, Ordering::Relaxed);
        if let Some((at, bit)) = place(set) {
            // Of the set that had this mark MARKS ago.
            page.watched[at].fetch_and(!bit, Ordering::Relaxed);
            page.asleep[at].fetch_and(!bit, Ordering::Relaxed);
        }
    }
    let was_shared = set.shared.swap(true, Ordering::SeqCst);
    let wakes = !was_shared && list.sleepers > 0;
    drop(list);
    if wakes {
        ring(set);
    }
}

/// In a child that is about to wait for its parent's set, or to change it. While the parent sleeps there, the child would take its doorbell.
#[cold]
pub(super) fn tell_parent(set: &Set) {
    let (Some(page), Some((at, bit))) = (page(), place(set)) else { return };
    // SeqCst: pairs with `declares`. Either it finds this, or we find that it sleeps.
    page.watched[at].fetch_or(bit, Ordering::SeqCst);
    let is_asleep = || page.asleep[at].load(Ordering::SeqCst) & bit != 0;
    if !is_asleep() {
        return;
    }
    // A handler that jumps away would leave the bell.
    let _critical = critical();
    let Ok(bell) = doorbell::new().and_then(descriptors::internal) else { return };
    let (number, epfd) = (bell.as_raw_fd(), set.epfd.load(Ordering::Relaxed));
    // Its count is above 0, so that this is an edge for who sleeps.
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32 | EDGE, u64: bell_tag() };
    if sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, number, Some(&mut event)).is_ok() {
        let began = clock::ticks();
        while is_asleep() && clock::ticks().wrapping_sub(began) < clock::from_us(HEARS_US) {
            rustix::thread::sched_yield();
        }
        let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, number, None);
    }
    descriptors::close(bell);
}

/// Whether a child has said that it waits for the set, which is this process's own.
#[inline]
pub(super) fn is_told(set: &Set) -> bool {
    let told =
        |page: &Page| place(set).is_some_and(|(at, bit)| page.watched[at].load(Ordering::SeqCst) & bit != 0);
    set.shared.load(Ordering::SeqCst) && !is_inherited(set) && page().is_some_and(told)
}

/// A thread is about to sleep for the set, which a fork may have shared, with the set's list. False: a child waits for it, which is to be
/// heard of first.
#[inline]
pub(crate) fn sleeps(set: &Set, list: &List) -> bool {
    !set.shared.load(Ordering::Relaxed) || declares(set, list)
}

#[cold]
fn declares(set: &Set, list: &List) -> bool {
    let (Some(page), Some((at, bit))) = (page(), place(set)) else { return true };
    page.asleep[at].fetch_or(bit, Ordering::SeqCst);
    // Once it is watched, that is heard.
    let sleeps = set.watched.load(Ordering::SeqCst) || !is_told(set);
    if !sleeps {
        wakes(set, list);
    }
    sleeps
}

/// It has slept; with the set's list, which knows whether others do yet.
#[inline]
pub(crate) fn wakes(set: &Set, list: &List) {
    if set.shared.load(Ordering::Relaxed)
        && list.sleepers == 0
        && let (Some(page), Some((at, bit))) = (page(), place(set))
    {
        page.asleep[at].fetch_and(!bit, Ordering::SeqCst);
    }
}
