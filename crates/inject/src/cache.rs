//! Sites that were found before: looking through tens of megabytes takes tens of milliseconds, and is done once for each version of a
//! program.
//!
//! What is in the cache is believed. So it is a directory of the user's own which nobody else can write to.

use crate::moved::{LONGEST, Moved};
use crate::program::Identity;
use crate::sites::Site;
use std::hash::{DefaultHasher, Hasher as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::{fs, io, process};

/// Changes when another version would find other sites.
const FORMAT: u64 = 1;

/// A directory with a file for each program.
pub struct Cache(PathBuf);

impl Cache {
    /// Opens a directory, and makes it if it is not there.
    ///
    /// # Errors
    /// It cannot be made, or others can write to it.
    pub fn open(directory: &Path) -> io::Result<Self> {
        match fs::DirBuilder::new().mode(0o700).create(directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let metadata = fs::symlink_metadata(directory)?;
        let own = rustix::process::geteuid().as_raw();
        if !metadata.is_dir() || metadata.uid() != own || metadata.mode() & 0o022 != 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Self(directory.to_owned()))
    }

    fn place(&self, identity: &Identity) -> PathBuf {
        let Identity { file: (device, inode), size, changed: (seconds, rest) } = identity;
        self.0.join(format!("{device:x}-{inode:x}-{size:x}-{seconds:x}-{rest:x}"))
    }

    /// What is known of a program.
    pub fn load(&self, identity: &Identity) -> Option<Vec<Site>> {
        let bytes = fs::read(self.place(identity)).ok()?;
        let (sum, mut rest) = bytes.split_first_chunk::<8>()?;
        if u64::from_le_bytes(*sum) != checksum(rest) {
            return None;
        }
        let mut sites = Vec::new();
        while !rest.is_empty() {
            sites.push(site(&mut rest)?);
        }
        Some(sites).filter(|sites| !sites.is_empty())
    }

    /// Keeps what was found. That it cannot be kept harms nobody.
    pub fn store(&self, identity: &Identity, sites: &[Site]) {
        let place = self.place(identity);
        let mut bytes = Vec::with_capacity(sites.len() * 48);
        for site in sites {
            let Site { start, call, next, end, before, behind } = site;
            [start, call, next, end].iter().for_each(|address| bytes.extend(address.to_le_bytes()));
            for part in [&before.bytes, &before.distances, &behind.bytes, &behind.distances] {
                // No part is longer than `LONGEST`.
                bytes.push(part.len() as u8);
                bytes.extend(part);
            }
        }
        let beside = place.with_extension(process::id().to_string());
        let whole = [&checksum(&bytes).to_le_bytes()[..], &bytes].concat();
        if fs::write(&beside, whole).and_then(|()| fs::rename(&beside, &place)).is_err() {
            let _ = fs::remove_file(&beside);
        }
    }
}

/// The next site of a file.
fn site(bytes: &mut &[u8]) -> Option<Site> {
    let mut address = || bytes.split_off(..8)?.first_chunk().map(|eight| u64::from_le_bytes(*eight));
    let (start, call, next, end) = (address()?, address()?, address()?, address()?);
    let mut part = || {
        let length = usize::from(*bytes.split_off_first()?);
        bytes.split_off(..length).filter(|part| part.len() <= LONGEST).map(<[u8]>::to_vec)
    };
    let mut moved = || Some(Moved { bytes: part()?, distances: part()? });
    Some(Site { start, call, next, end, before: moved()?, behind: moved()? })
}

/// Of what was written, so that half a file is none.
fn checksum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write_u64(FORMAT);
    hasher.write(bytes);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_found_and_what_is_spoilt_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let cache = Cache::open(&directory.path().join("sites")).expect("a cache");
        let identity = Identity { file: (1, 2), size: 3, changed: (4, 5) };
        let before = Moved { bytes: vec![1, 2, 3, 4, 5], distances: vec![1] };
        let sites = vec![Site { start: 1, call: 6, next: 8, end: 6, before, behind: Moved::default() }; 2];
        assert_eq!(cache.load(&identity), None);
        cache.store(&identity, &sites);
        assert_eq!(cache.load(&identity), Some(sites));
        assert_eq!(cache.load(&Identity { size: 4, ..identity }), None);
        let place = cache.place(&identity);
        let bytes = fs::read(&place).expect("a file");
        for length in 0..bytes.len() {
            fs::write(&place, &bytes[..length]).expect("a file");
            assert_eq!(cache.load(&identity), None, "cut off at {length}");
        }
    }

    #[test]
    fn a_directory_that_others_write_to_is_none() {
        use std::os::unix::fs::PermissionsExt as _;
        let directory = tempfile::tempdir().expect("a directory");
        fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o777)).expect("our own");
        assert!(Cache::open(directory.path()).is_err());
    }
}
