//! A program's file, looked at: what it is, and how to know it again.

use crate::image::{self, Image, Kind};
use crate::reason::Reason;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::{File, Metadata};
use std::ops::Deref;
use std::os::unix::fs::MetadataExt as _;

/// Which file it is, and which version of it. The time of its last change cannot be set by anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Device and inode.
    pub file: (u64, u64),
    /// Its size.
    pub size: u64,
    /// ctime.
    pub changed: (i64, i64),
}

impl From<&Metadata> for Identity {
    fn from(metadata: &Metadata) -> Self {
        Self {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// A file's bytes. Who cuts it off meanwhile kills the process that reads it: the tracer, or who asks before there is one. Never the program.
pub struct Bytes {
    at: *mut std::ffi::c_void,
    length: usize,
}

impl Bytes {
    /// All of them.
    pub(crate) fn of(file: &File, length: usize) -> Result<Self, Reason> {
        if length == 0 {
            return Err(Reason::NotElf);
        }
        // SAFETY: a new mapping, where the kernel likes.
        let at = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, MapFlags::PRIVATE, file, 0) };
        Ok(Self { at: at.map_err(|_| Reason::Unreadable)?, length })
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: mapped by `of`, until `drop`.
        unsafe { std::slice::from_raw_parts(self.at.cast(), self.length) }
    }
}

impl Drop for Bytes {
    fn drop(&mut self) {
        // SAFETY: `of` has mapped it, and nobody else has it.
        let _ = unsafe { munmap(self.at, self.length) };
    }
}

/// A program that can be patched.
pub struct Program {
    /// What it is.
    pub image: Image,
    /// Its file.
    pub bytes: Bytes,
    /// Which one that is.
    pub identity: Identity,
}

impl Program {
    /// Looks at a file.
    ///
    /// # Errors
    /// It cannot be patched, or is none.
    pub fn of(file: &File) -> Result<Self, Reason> {
        let metadata = file.metadata().map_err(|_| Reason::Unreadable)?;
        if !metadata.is_file() {
            return Err(Reason::Unreadable);
        }
        if image::is_privileged(file) {
            return Err(Reason::Privileged);
        }
        let identity = Identity::from(&metadata);
        let length = usize::try_from(metadata.len()).map_err(|_| Reason::Malformed)?;
        let bytes = Bytes::of(file, length)?;
        let image = image::read(&bytes)?;
        if matches!(image.kind, Kind::Dynamic { needs_libraries: true, .. }) {
            return Err(Reason::HasLibc);
        }
        Ok(Self { image, bytes, identity })
    }
}
