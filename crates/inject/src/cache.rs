//! Sites that were found before: looking through tens of megabytes takes tens of milliseconds, and is done once for each version of a program.
//!
//! What is in the cache is believed. So it is a directory of the user's own which nobody else can write to.

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
        let (sum, bytes) = bytes.split_first_chunk::<8>()?;
        let (words, rest) = bytes.as_chunks::<8>();
        let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let (sites, odd) = words.as_chunks::<5>();
        let is_whole = u64::from_le_bytes(*sum) == checksum(bytes) && rest.is_empty() && odd.is_empty();
        let site = |&[start, call, next, end, anywhere]: &[u64; 5]| Site { start, call, next, end, anywhere: anywhere != 0 };
        (is_whole && !sites.is_empty()).then(|| sites.iter().map(site).collect())
    }

    /// Keeps what was found. That it cannot be kept harms nobody.
    pub fn store(&self, identity: &Identity, sites: &[Site]) {
        let place = self.place(identity);
        if place.exists() {
            return;
        }
        let words = sites.iter().flat_map(|site| [site.start, site.call, site.next, site.end, u64::from(site.anywhere)]);
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let beside = place.with_extension(process::id().to_string());
        let whole = [&checksum(&bytes).to_le_bytes()[..], &bytes].concat();
        if fs::write(&beside, whole).and_then(|()| fs::rename(&beside, &place)).is_err() {
            let _ = fs::remove_file(&beside);
        }
    }
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
        let sites = vec![Site { start: 1, call: 6, next: 8, end: 6, anywhere: true }];
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
