//! Another process's arena, as the broker reads it.

use super::{BLOCKS, Block, HEADER, Header, SIZE};
use crate::region::{self, RegionError};
use alloc::rc::Rc;
use alloc::vec::Vec;
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};

/// Another process's arena, for the broker: it is read, never mapped. A look through a mapping would allocate what was never
/// written, or was punched out since, and charge it to whoever looks.
#[derive(Clone)]
pub struct ArenaView {
    fd: Rc<OwnedFd>,
}

impl ArenaView {
    /// The arena in `fd`, after checking its size and seals.
    pub fn of(fd: impl Into<Rc<OwnedFd>>) -> Result<Self, RegionError> {
        let fd = fd.into();
        verify(fd.as_fd())?;
        Ok(Self { fd })
    }

    /// Its memfd.
    pub fn fd(&self) -> &Rc<OwnedFd> {
        &self.fd
    }

    /// Its memfd alone.
    pub fn into_fd(self) -> Rc<OwnedFd> {
        self.fd
    }

    /// The counters as they are now. Written by the client at will: believe nothing that matters.
    pub fn header(&self) -> Header {
        // SAFETY: Header is atomics only.
        unsafe { self.read(0) }
    }

    /// Block number `index` as it is now.
    pub fn block(&self, index: u32) -> Option<Block> {
        // SAFETY: Block is atomics only.
        ((index as usize) < BLOCKS).then(|| unsafe { self.read(block_at(index)) })
    }

    /// The blocks in use from number `from` on, each with its number. Of no more than `looks` blocks, from which those are taken
    /// that were looked at.
    pub fn held<'a>(&'a self, from: u32, looks: &'a mut usize) -> HeldBlocks<'a> {
        let end = (self.header().high.load(Ordering::Relaxed) as usize).min(self.backed()) as u32;
        HeldBlocks { view: self, next: from, end, looks, chunk: Vec::new() }
    }

    /// How many blocks the memory that the client has touched can hold: a look costs no more than it has.
    fn backed(&self) -> usize {
        let bytes = rustix::fs::fstat(&self.fd).map_or(0, |stat| stat.st_blocks.saturating_mul(512));
        (usize::try_from(bytes).unwrap_or(0) / size_of::<Block>()).min(BLOCKS)
    }

    /// What stands at `offset`; zeroes where it cannot be read.
    ///
    /// # Safety
    /// `T` consists of atomics only and is valid for any bit pattern.
    unsafe fn read<T>(&self, offset: usize) -> T {
        let mut value = MaybeUninit::uninit();
        self.read_at(offset, core::slice::from_mut(&mut value));
        // SAFETY: all of it is initialised, and the caller vouches that any bytes will do.
        unsafe { value.assume_init() }
    }

    /// Adds `count` blocks from number `from` on to `blocks`.
    fn read_blocks(&self, from: u32, count: usize, blocks: &mut Vec<Block>) {
        blocks.reserve_exact(count);
        self.read_at(block_at(from), &mut blocks.spare_capacity_mut()[..count]);
        // SAFETY: so many more are initialised, and Block is atomics only: any bytes will do.
        unsafe { blocks.set_len(blocks.len() + count) };
    }

    /// Initialises `values` with what stands at `offset`, or with zeroes.
    fn read_at<T>(&self, offset: usize, values: &mut [MaybeUninit<T>]) {
        values.fill_with(MaybeUninit::zeroed);
        let (start, len) = (values.as_mut_ptr().cast::<u8>(), size_of_val(values));
        // SAFETY: as many bytes as the values have, which are initialised.
        let bytes = unsafe { core::slice::from_raw_parts_mut(start, len) };
        let _ = rustix::io::pread(&self.fd, bytes, offset as u64);
    }
}

/// Checks that a memfd from another process can be an arena, and stays so.
pub fn verify(fd: BorrowedFd<'_>) -> Result<(), RegionError> {
    let size = rustix::fs::fstat(fd).map_err(RegionError::Size)?.st_size;
    let size = usize::try_from(size).map_err(|_| RegionError::Unsealed)?;
    if !(HEADER + size_of::<Block>()..=SIZE).contains(&size) {
        return Err(RegionError::Unsealed);
    }
    region::verify(fd, size)
}

/// Blocks that are read at a time.
const CHUNK: usize = 32;

/// Iterator over the blocks of an [`ArenaView`] that are in use.
pub struct HeldBlocks<'a> {
    view: &'a ArenaView,
    next: u32,
    end: u32,
    looks: &'a mut usize,
    /// Those that were read, the next one last. The memory is one for all: an allocator may give so much back to the kernel each time.
    chunk: Vec<Block>,
}

impl HeldBlocks<'_> {
    /// Reads some more; none at the end.
    fn read_more(&mut self) {
        let count = (self.end.saturating_sub(self.next) as usize).min(CHUNK).min(*self.looks);
        *self.looks -= count;
        self.view.read_blocks(self.next, count, &mut self.chunk);
        self.chunk.reverse();
    }
}

impl Iterator for HeldBlocks<'_> {
    type Item = (u32, Block);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.chunk.is_empty() {
                self.read_more();
            }
            let (index, block) = (self.next, self.chunk.pop()?);
            self.next += 1;
            if block.is_held() {
                return Some((index, block));
            }
        }
    }
}

fn block_at(index: u32) -> usize {
    HEADER + index as usize * size_of::<Block>()
}
