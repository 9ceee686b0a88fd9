//! A set for which a forked child waits, too. The parent's connections come on lanes also after the fork, and of those the child knows nothing:
//! it tells its parent, whose lanes of that set end. The processes of a tree have a page in common for that.

use core::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use super::regs::bell_tag;
use super::{EDGE, SETS, SETS_AT};
use crate::set::Set;
use crate::{clock, doorbell, sys};

/// How long a child gives a parent that sleeps for the set to hear of it, microseconds.
const HEARS_US: u64 = 5_000;

/// A bit for each set's place. Sets of two processes that have one place are taken for each other, which costs lanes.
struct Page {
    /// A child waits for it.
    watched: [AtomicU64; SETS / 64],
    /// Who made it sleeps for it.
    asleep: [AtomicU64; SETS / 64],
}

/// Made by the first fork of a process that has a set.
static PAGE: AtomicPtr<Page> = AtomicPtr::new(core::ptr::null_mut());

fn page() -> Option<&'static Page> {
    // SAFETY: null, or a mapping of this size that is never unmapped; atomics only, for which zeroes are sound.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// Where a set's bit is, and the bit.
fn place(set: &Set) -> (usize, u64) {
    let index = (core::ptr::from_ref(set).addr() - SETS_AT.as_ptr().addr()) / size_of::<Set>();
    (index / 64, 1 << (index % 64))
}

/// Before fork(): the child will have this process's sets. Where there is no memory it tells nobody.
pub(super) fn begin() {
    if page().is_some() {
        return;
    }
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let len = size_of::<Page>();
    // SAFETY: a fresh anonymous mapping touches no memory of ours.
    let made = unsafe { mmap_anonymous(core::ptr::null_mut(), len, access, MapFlags::SHARED) };
    if let Ok(made) = made {
        PAGE.store(made.cast(), Ordering::Release);
    }
}

/// A set is made in this place: what was said of the one before it is over.
pub(super) fn forget(set: &Set) {
    if let Some(page) = page() {
        let (at, bit) = place(set);
        page.watched[at].fetch_and(!bit, Ordering::Relaxed);
    }
}

/// In a child that is about to wait for its parent's set at `epfd`, or to change it. While the parent sleeps there, the child would take its
/// doorbell.
#[cold]
pub(super) fn tell_parent(set: &Set, epfd: i32) {
    let Some(page) = page() else { return };
    let (at, bit) = place(set);
    // SeqCst: pairs with `sleeps`. Either it finds this, or we find that it sleeps.
    page.watched[at].fetch_or(bit, Ordering::SeqCst);
    let is_asleep = || page.asleep[at].load(Ordering::SeqCst) & bit != 0;
    if !is_asleep() {
        return;
    }
    let Ok(bell) = doorbell::new() else { return };
    let number = rustix::fd::AsRawFd::as_raw_fd(&bell);
    // Its count is above 0, so that this is an edge for who sleeps.
    let mut event = libc::epoll_event { events: libc::EPOLLIN as u32 | EDGE, u64: bell_tag() };
    if sys::epoll_ctl(epfd, libc::EPOLL_CTL_ADD, number, Some(&mut event)).is_ok() {
        let began = clock::ticks();
        while is_asleep() && clock::ticks().wrapping_sub(began) < clock::from_us(HEARS_US) {
            rustix::thread::sched_yield();
        }
        let _ = sys::epoll_ctl(epfd, libc::EPOLL_CTL_DEL, number, None);
    }
}

/// Whether a child has said that it waits for the set, which a fork has shared.
pub(super) fn is_told(set: &Set) -> bool {
    let (at, bit) = place(set);
    page().is_some_and(|page| page.watched[at].load(Ordering::SeqCst) & bit != 0)
}

/// A thread is about to sleep for the set, which a fork may have shared. False: a child waits for it, which is to be heard of first.
#[inline]
pub(crate) fn sleeps(set: &Set) -> bool {
    !set.shared.load(Ordering::Relaxed) || declares(set)
}

#[cold]
fn declares(set: &Set) -> bool {
    let Some(page) = page() else { return true };
    let (at, bit) = place(set);
    page.asleep[at].fetch_or(bit, Ordering::SeqCst);
    let sleeps = !is_told(set);
    if !sleeps {
        wakes(set);
    }
    sleeps
}

/// It has slept.
#[inline]
pub(crate) fn wakes(set: &Set) {
    if set.shared.load(Ordering::Relaxed)
        && let Some(page) = page()
    {
        let (at, bit) = place(set);
        page.asleep[at].fetch_and(!bit, Ordering::SeqCst);
    }
}
