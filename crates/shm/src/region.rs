//! Sealed memfds and their mappings.

use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, MprotectFlags, MremapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

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

impl core::error::Error for RegionError {}

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

/// The smallest page that there is: a mapping of it takes one, however large they are.
const PAGE: usize = 4096;

/// The kernel is older than 6.3, and knows no MFD_NOEXEC_SEAL.
static KNOWS_NO_NOEXEC: AtomicBool = AtomicBool::new(false);
/// The program locks what it will map (mlockall with MCL_FUTURE).
static LOCKS_FUTURE: AtomicBool = AtomicBool::new(false);

/// Bytes of address space that this process has mapped here.
static MAPPED: AtomicUsize = AtomicUsize::new(0);
/// Mappings that it has here.
static MAPPINGS: AtomicUsize = AtomicUsize::new(0);

/// Bytes of address space, and mappings, that this process has here.
pub fn mapped() -> (usize, usize) {
    (MAPPED.load(Ordering::Relaxed), MAPPINGS.load(Ordering::Relaxed))
}

/// The program has said by mlockall(2) or munlockall(2) whether what it will map is to be locked.
pub fn set_locks_future(locks: bool) {
    LOCKS_FUTURE.store(locks, Ordering::Relaxed);
}

/// Makes a zeroed memfd of `len` bytes (a multiple of the page size), sealed against any change of size.
pub fn create(name: &str, len: usize) -> Result<OwnedFd, RegionError> {
    let fd = sized(name, len)?;
    rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS).map_err(RegionError::Seal)?;
    Ok(fd)
}

/// Makes a memfd that its creator maps writable and everybody else only readable.
/// Returns the memfd, then sealed F_SEAL_FUTURE_WRITE, and the creator's mapping.
pub fn create_published(name: &str, len: usize) -> Result<(OwnedFd, Region), RegionError> {
    let fd = sized(name, len)?;
    let region = Region::map(fd.as_fd(), len)?;
    // A child has no use for it, and might keep it when its reader is long gone.
    // SAFETY: what a child will map is not looked at here; the mapping is whole pages of ours.
    let _ = unsafe { rustix::mm::madvise(region.base.cast(), len, rustix::mm::Advice::LinuxDontFork) };
    rustix::fs::fcntl_add_seals(&fd, SIZE_SEALS | SealFlags::FUTURE_WRITE).map_err(RegionError::Seal)?;
    Ok((fd, region))
}

fn sized(name: &str, len: usize) -> Result<OwnedFd, RegionError> {
    if len as u64 > most_bytes() {
        return Err(RegionError::Size(Errno::FBIG));
    }
    let fd = memfd(name).map_err(RegionError::Create)?;
    rustix::fs::ftruncate(&fd, len as u64).map_err(RegionError::Size)?;
    Ok(fd)
}

/// Most bytes that a memfd may have: RLIMIT_FSIZE. Who asks for more is not only refused but killed (SIGXFSZ).
pub fn most_bytes() -> u64 {
    getrlimit(Resource::Fsize).current.unwrap_or(u64::MAX)
}

/// An empty memfd, not executable: vm.memfd_noexec can ask for that (2 refuses all others).
fn memfd(name: &str) -> Result<OwnedFd, Errno> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if !KNOWS_NO_NOEXEC.load(Ordering::Relaxed) {
        match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => KNOWS_NO_NOEXEC.store(true, Ordering::Relaxed),
            made => return made,
        }
    }
    rustix::fs::memfd_create(name, flags)
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

/// Keeps the open file of `fd` open, whoever closes the descriptor, until this process ends or executes something else: a page of it is
/// mapped, which nobody may look at, nor has a child by fork.
pub fn keep_open(fd: BorrowedFd<'_>) -> Result<(), RegionError> {
    // Not counted among the mappings: a child has the counts, but not this one.
    let base =
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        unsafe { rustix::mm::mmap(core::ptr::null_mut(), PAGE, ProtFlags::empty(), MapFlags::SHARED, fd, 0) }
            .map_err(RegionError::Map)?;
    let page = Region { base: base.cast(), len: PAGE };
    if LOCKS_FUTURE.load(Ordering::Relaxed) {
        page.unlock();
    }
    // SAFETY: our own mapping, whose contents this does not change.
    if let Err(errno) = unsafe { rustix::mm::madvise(base, PAGE, rustix::mm::Advice::LinuxDontFork) } {
        // SAFETY: nobody knows of it yet.
        let _ = unsafe { rustix::mm::munmap(base, PAGE) };
        return Err(RegionError::Map(errno));
    }
    Ok(())
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
        let region = Self::closed(fd, len)?;
        let prot = MprotectFlags::from_bits_retain(prot.bits());
        // SAFETY: our own mapping, which nobody knows of yet.
        if let Err(errno) = unsafe { rustix::mm::mprotect(region.base.cast(), len, prot) } {
            // SAFETY: as above.
            unsafe { region.unmap() };
            return Err(RegionError::Map(errno));
        }
        Ok(region)
    }

    /// Maps `len` bytes of `fd` so that nobody may look at them, nor are they in a core dump, before [`Self::open`].
    pub fn reserve(fd: BorrowedFd<'_>, len: usize) -> Result<Self, RegionError> {
        let region = Self::closed(fd, len)?;
        region.keep_out_of_dumps();
        Ok(region)
    }

    /// Makes the first `len` bytes readable and writable, and part of core dumps. Says whether they are.
    pub fn open(&self, len: usize) -> bool {
        let len = len.min(self.len);
        let prot = MprotectFlags::READ | MprotectFlags::WRITE;
        // SAFETY: our own mapping, where more is allowed than was before.
        let done = unsafe { rustix::mm::mprotect(self.base.cast(), len, prot) };
        // SAFETY: its contents do not change.
        let _ = unsafe { rustix::mm::madvise(self.base.cast(), len, rustix::mm::Advice::LinuxDoDump) };
        done.is_ok()
    }

    fn closed(fd: BorrowedFd<'_>, len: usize) -> Result<Self, RegionError> {
        // Of a program that locks what it will map, all pages would be there at once, unless nobody may look at them yet.
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
        let base = unsafe {
            rustix::mm::mmap(core::ptr::null_mut(), len, ProtFlags::empty(), MapFlags::SHARED, fd, 0)
        }
        .map_err(RegionError::Map)?;
        let region = Self { base: base.cast(), len };
        MAPPED.fetch_add(len, Ordering::Relaxed);
        MAPPINGS.fetch_add(1, Ordering::Relaxed);
        if LOCKS_FUTURE.load(Ordering::Relaxed) {
            region.unlock();
        }
        Ok(region)
    }

    /// Takes it out of what mlockall(2) has locked: its pages come as they are used, and count for no limit. Failure (a filter) leaves
    /// them locked.
    pub fn unlock(self) {
        // SAFETY: our own mapping, whose contents this does not change.
        let _ = unsafe { rustix::mm::munlock(self.base.cast(), self.len) };
    }

    /// Leaves it out of core dumps, which would otherwise have all of its pages: the kernel makes those that are not there.
    pub fn keep_out_of_dumps(self) {
        // SAFETY: our own mapping, whose contents this does not change. Failure (a filter) leaves it in.
        let _ = unsafe { rustix::mm::madvise(self.base.cast(), self.len, rustix::mm::Advice::LinuxDontDump) };
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

    /// A second mapping of the same memory, `len` bytes from its start on, which may be more than are mapped here: mremap(2), which makes
    /// a new one of a shared mapping where the old length is none.
    ///
    /// # Safety
    /// The memory has `len` bytes, and this region is mapped.
    pub unsafe fn again(&self, len: usize) -> Result<Self, RegionError> {
        // SAFETY: the old mapping stays as it is; the new one is at an address of the kernel's choice.
        let base = unsafe { rustix::mm::mremap(self.base.cast(), 0, len, MremapFlags::MAYMOVE) };
        let region = Self { base: base.map_err(RegionError::Map)?.cast(), len };
        MAPPED.fetch_add(len, Ordering::Relaxed);
        MAPPINGS.fetch_add(1, Ordering::Relaxed);
        Ok(region)
    }

    /// Gives the addresses behind the first `len` bytes back to the kernel.
    ///
    /// # Safety
    /// Nobody in this process uses them any more or will again.
    pub unsafe fn cut(self, len: usize) -> Self {
        let rest = Self { base: self.base.wrapping_add(len), len: self.len.saturating_sub(len) };
        if rest.len == 0 {
            return self;
        }
        MAPPINGS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's word for it.
        unsafe { rest.unmap() };
        Self { base: self.base, len }
    }

    /// Gives the addresses back to the kernel.
    ///
    /// # Safety
    /// Nobody in this process uses the region any more or will again.
    pub unsafe fn unmap(self) {
        let less = |n: usize, by| Some(n.saturating_sub(by));
        // Of what was mapped otherwise it may be told, too: never below nothing.
        let _ = MAPPED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| less(n, self.len));
        let _ = MAPPINGS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| less(n, 1));
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
