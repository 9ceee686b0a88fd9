//! A page that one process writes and all others can only read.

use crate::pages::{KnobPage, PAGE, SessionPage};
use crate::region::{self, Region, RegionError};
use core::marker::PhantomData;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// A layout that may lie in a [`Published`] page.
///
/// # Safety
/// Made of atomics only, valid when all bytes are zero, and no larger than [`PAGE`].
pub unsafe trait Layout {}

// SAFETY: one AtomicU32.
unsafe impl Layout for SessionPage {}
// SAFETY: AtomicU32s only.
unsafe impl Layout for KnobPage {}

/// The writer's mapping of such a page, unmapped on drop; readers keep theirs.
pub struct Published<T: Layout> {
    fd: OwnedFd,
    region: Region,
    layout: PhantomData<T>,
}

impl<T: Layout> Published<T> {
    /// Makes a zeroed page whose memfd nobody can map writable any more.
    pub fn create(name: &str) -> Result<Self, RegionError> {
        const { assert!(size_of::<T>() <= PAGE) };
        let (fd, region) = region::create_published(name, PAGE)?;
        Ok(Self { fd, region, layout: PhantomData })
    }

    /// The page, for its writer.
    pub fn page(&self) -> &T {
        // SAFETY: the mapping is page-aligned, holds PAGE bytes, and lives as long as the borrow; `Layout`
        // vouches that T is atomics valid as zeroes.
        unsafe { &*self.region.base().cast::<T>() }
    }

    /// The memfd, for the readers.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<T: Layout> Drop for Published<T> {
    fn drop(&mut self) {
        // SAFETY: references handed out borrow `self`, so nobody in this process looks any more.
        unsafe { self.region.unmap() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn readers_see_the_writer_and_cannot_write() {
        let page = Published::<SessionPage>::create("test").expect("memfd");
        let reader = Region::map_readable(page.fd(), PAGE).expect("readable");
        page.page().posted.store(7, Ordering::Release);
        // SAFETY: SessionPage is one atomic, and the region stays mapped for the test.
        let seen = unsafe { reader.at::<SessionPage>(0) }.expect("fits");
        assert_eq!(seen.posted.load(Ordering::Acquire), 7);
        assert!(Region::map(page.fd(), PAGE).is_err(), "a reader must not map it writable");
    }
}
