//! Memory that an engine may read from and write into.

use rustix::fd::{AsFd, BorrowedFd};
use shunpike_shm::region::{self, Region, RegionError};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;

/// A mapped memfd. Who holds it keeps it mapped: a clone is the same memory.
///
/// A peer's adapter writes into it at any time. So it is never borrowed as a slice: bytes are copied in and out, words are atomics.
#[derive(Clone, Debug)]
pub struct Memory(Rc<Mapping>);

#[derive(Debug)]
struct Mapping(Region);

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the last `Memory` of it is gone. Nothing that `Memory` gives out outlives the borrow of one.
        unsafe { self.0.unmap() }
    }
}

impl Memory {
    /// Zeroed memory of `len` bytes, a multiple of the page size. Errors: no descriptor, no memory.
    pub fn new(len: usize) -> Result<Self, RegionError> {
        let memfd = region::create("shunpike-fabric", len)?;
        Self::of(memfd.as_fd(), len)
    }

    /// The first `len` bytes of a sealed memfd, as a DMB is. Errors: it cannot be mapped.
    pub fn of(memfd: BorrowedFd<'_>, len: usize) -> Result<Self, RegionError> {
        Region::map(memfd, len).map(|region| Self(Rc::new(Mapping(region))))
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.0.0.len()
    }

    /// Whether it has none (it never has).
    pub fn is_empty(&self) -> bool {
        self.0.0.is_empty()
    }

    /// Whether the `len` bytes at `offset` are all inside.
    pub fn contains(&self, offset: usize, len: usize) -> bool {
        offset.checked_add(len).is_some_and(|end| end <= self.len())
    }

    /// The address of byte `offset`, for an engine.
    ///
    /// # Panics
    /// `offset` is beyond the end.
    pub fn address(&self, offset: usize) -> *mut u8 {
        assert!(self.contains(offset, 0), "{offset} of {} bytes", self.len());
        self.0.0.base().wrapping_add(offset)
    }

    /// Copies `bytes` in at `offset`.
    ///
    /// # Panics
    /// They do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(self.contains(offset, bytes.len()));
        // SAFETY: in bounds as just checked; mapped as long as `self`; `bytes` is not ours, as nothing borrows from a mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.address(offset), bytes.len()) }
    }

    /// Copies the bytes at `offset` out.
    ///
    /// # Panics
    /// There are not as many.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) {
        assert!(self.contains(offset, bytes.len()));
        // SAFETY: as in `write`, the other way.
        unsafe { std::ptr::copy_nonoverlapping(self.address(offset), bytes.as_mut_ptr(), bytes.len()) }
    }

    /// The word at `offset`.
    ///
    /// # Panics
    /// It is not aligned, or not inside.
    pub fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: an atomic is valid for any bits; mapped as long as `self`.
        unsafe { self.0.0.at(offset) }.expect("an aligned word inside")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_clone_is_the_same_memory() {
        let memory = Memory::new(8192).expect("memory");
        let clone = memory.clone();
        memory.write(4090, b"hello");
        drop(memory);
        let mut said = [0; 5];
        clone.read(4090, &mut said);
        assert_eq!(&said, b"hello");
        clone.word(8).store(7, Ordering::Relaxed);
        clone.read(8, &mut said);
        assert_eq!(said[0], 7);
        assert!(clone.contains(8191, 1) && !clone.contains(8191, 2) && !clone.contains(usize::MAX, 2));
    }
}
