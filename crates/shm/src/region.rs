//! Sealed memfds and their mappings.

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

/// What failed on a region, with the kernel's errno.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum RegionError {
    /// memfd_create: descriptors exhausted, or refused by a filter.
    Create(Errno),
    /// ftruncate to the size.
    Size(Errno),
    /// F_ADD_SEALS.
    Seal(Errno),
    /// mmap.
    Map(Errno),
    /// A memfd of another process lacks a seal or has an unexpected size.
    Unsealed,
}

impl core::fmt::Display for RegionError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            RegionError::Create(e) => write!(f, "cannot create a memfd: {e}"),
            RegionError::Size(e) => write!(f, "cannot size a memfd: {e}"),
            RegionError::Seal(e) => write!(f, "cannot seal a memfd: {e}"),
            RegionError::Map(e) => write!(f, "cannot map a memfd: {e}"),
            RegionError::Unsealed => f.write_str("a peer's memfd is not sealed or of a wrong size"),
        }
    }
}

impl std::error::Error for RegionError {}

/// A mapping of a sealed memfd. Not unmapped on drop: see [`Region::unmap`].
///
/// Lanes are read without a lock by threads that only look for news, so whoever unmaps must know that
/// nobody looks any more; a destructor cannot.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Region {
    base: *mut u8,
    len: usize,
}

// SAFETY: a Region is an address and a length; what lies there is accessed through atomics or raw copies.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

/// Seals that keep a peer from truncating memory under us (SIGBUS) or growing it.
const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Makes a zeroed memfd of `len` bytes (a multiple of the page size), sealed against any change of size.
pub fn create(name: &str, len: usize) -> Result<OwnedFd, RegionError> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(RegionError::Create)?;
    rustix::fs::ftruncate(&fd, len as u64).map_err(RegionError::Size)?;
    rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS).map_err(RegionError::Seal)?;
    Ok(fd)
}

/// Makes a memfd that its creator maps writable and everybody else only readable.
/// Returns the memfd, then sealed F_SEAL_FUTURE_WRITE, and the creator's mapping.
pub fn create_published(name: &str, len: usize) -> Result<(OwnedFd, Region), RegionError> {
    let fd = rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
        .map_err(RegionError::Create)?;
    rustix::fs::ftruncate(&fd, len as u64).map_err(RegionError::Size)?;
    let region = Region::map(fd.as_fd(), len)?;
    rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS | SealFlags::FUTURE_WRITE).map_err(RegionError::Seal)?;
    Ok((fd, region))
}

/// Checks that a memfd from another process has exactly `len` bytes and cannot change its size.
pub fn verify(fd: BorrowedFd<'_>, len: usize) -> Result<(), RegionError> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(RegionError::Seal)?;
    let size = rustix::fs::fstat(fd).map_err(RegionError::Size)?.st_size;
    if seals.contains(SIZE_SEALS) && usize::try_from(size) == Ok(len) {
        Ok(())
    } else {
        Err(RegionError::Unsealed)
    }
}

impl Region {
    /// Maps `len` bytes of `fd` readable and writable, shared.
    pub fn map(fd: BorrowedFd<'_>, len: usize) -> Result<Self, RegionError> {
        Self::map_with(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    /// Maps `len` bytes of `fd` readable, shared.
    pub fn map_readable(fd: BorrowedFd<'_>, len: usize) -> Result<Self, RegionError> {
        Self::map_with(fd, len, ProtFlags::READ)
    }

    fn map_with(fd: BorrowedFd<'_>, len: usize, prot: ProtFlags) -> Result<Self, RegionError> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe { rustix::mm::mmap(core::ptr::null_mut(), len, prot, MapFlags::SHARED, fd, 0) }
            .map_err(RegionError::Map)?;
        Ok(Self { base: base.cast(), len })
    }

    /// The region that was mapped at `base` with `len` bytes, by whoever kept its address as a number.
    pub fn of(base: usize, len: usize) -> Self {
        Self { base: base as *mut u8, len }
    }

    /// Start address.
    pub fn base(&self) -> *mut u8 {
        self.base
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the region has no bytes (it never has).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the addresses back to the kernel.
    ///
    /// # Safety
    /// Nobody in this process uses the region any more or will again.
    pub unsafe fn unmap(self) {
        // SAFETY: base and len come from mmap; the caller vouches that nobody looks there.
        // An error is impossible for a whole mapping and could not be mended.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.len) };
    }

    /// A reference to a `T` made of atomics at byte `offset`.
    ///
    /// # Safety
    /// `T` consists of atomics only and is valid for any bit pattern; the region stays mapped for `'a`.
    /// Errors: `None` when it does not fit or is not aligned.
    pub unsafe fn at<'a, T>(&self, offset: usize) -> Option<&'a T> {
        let end = offset.checked_add(size_of::<T>())?;
        if end > self.len || !(self.base as usize + offset).is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: in bounds and aligned as just checked; the caller vouches for type and lifetime.
        Some(unsafe { &*self.base.add(offset).cast::<T>() })
    }
}
