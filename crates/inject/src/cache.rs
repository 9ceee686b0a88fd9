//! Sites that were found before: looking through tens of megabytes takes tens of milliseconds, and is done once for each version of a
//! program.
//!
//! What is in the cache is believed. So it is a directory of the user's own which nobody else can write to.

use crate::moved::{LONGEST, Moved};
use crate::program::Identity;
use crate::sites::Site;
use rustix::fd::{AsFd as _, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process;

/// Changes when another version would find other sites.
const FORMAT: u64 = 1;

/// A directory with a file for each program.
pub struct Cache(OwnedFd);

impl Cache {
    /// Opens a directory, and makes it if it is not there, in one that is there.
    ///
    /// # Errors
    /// It cannot be made, or others can write to it or to the one that it is in. Neither may be a link. From here on nobody can put
    /// another in its place: it is held, not named.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let name = directory.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let parent =
            directory.parent().filter(|parent| parent.is_absolute()).ok_or(io::ErrorKind::InvalidInput)?;
        let parent = ours(CWD, parent.as_os_str(), OFlags::DIRECTORY)?;
        match rustix::fs::mkdirat(&parent, name, Mode::RWXU) {
            Err(Errno::EXIST) | Ok(()) => {}
            Err(errno) => return Err(errno.into()),
        }
        Ok(Self(ours(parent.as_fd(), name, OFlags::DIRECTORY)?))
    }

    /// Of programs that were built anew many times, none is asked for again: with this many files it begins anew.
    const MOST: usize = 1000;

    fn make_room(&self) {
        let Ok(directory) = rustix::fs::Dir::read_from(&self.0) else { return };
        let is_file = |entry: &rustix::fs::DirEntry| !entry.file_name().to_bytes().starts_with(b".");
        let files: Vec<_> = directory.flatten().filter(is_file).collect();
        if files.len() >= Self::MOST {
            for file in files {
                let _ = rustix::fs::unlinkat(&self.0, file.file_name(), AtFlags::empty());
            }
        }
    }

    fn name(identity: &Identity) -> String {
        let Identity { file: (device, inode), size, changed: (seconds, rest) } = identity;
        format!("{device:x}-{inode:x}-{size:x}-{seconds:x}-{rest:x}")
    }

    /// What is known of a program.
    pub fn load(&self, identity: &Identity) -> Option<Vec<Site>> {
        let file = ours(self.0.as_fd(), OsStr::new(&Self::name(identity)), OFlags::NONBLOCK).ok()?;
        let mut bytes = Vec::new();
        File::from(file).read_to_end(&mut bytes).ok()?;
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
        let name = Self::name(identity);
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
        self.make_room();
        let beside = format!("{name}.{}", process::id());
        let whole = [&checksum(&bytes).to_le_bytes()[..], &bytes].concat();
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(&self.0, &beside, flags, Mode::RUSR | Mode::WUSR);
        let written = made.map_err(io::Error::from).and_then(|file| File::from(file).write_all(&whole));
        if written.and_then(|()| Ok(rustix::fs::renameat(&self.0, &beside, &self.0, &name)?)).is_err() {
            let _ = rustix::fs::unlinkat(&self.0, &beside, AtFlags::empty());
        }
    }
}

/// Opens what is ours, is no link, and nobody else can write to.
fn ours(at: BorrowedFd<'_>, name: &OsStr, kind: OFlags) -> io::Result<OwnedFd> {
    let fd = rustix::fs::openat(at, name, kind | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
    let there = rustix::fs::fstat(&fd)?;
    let own = rustix::process::geteuid().as_raw();
    if there.st_uid != own || there.st_mode & 0o022 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(fd)
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
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn it_does_not_grow_for_ever() {
        let directory = tempfile::tempdir().expect("a directory");
        let sites = directory.path().join("sites");
        let cache = Cache::open(&sites).expect("a cache");
        for number in 0..2 * Cache::MOST as u64 + 1 {
            cache.store(&Identity { file: (1, number), size: 3, changed: (4, 5) }, &[]);
        }
        assert_eq!(fs::read_dir(&sites).expect("a directory").count(), 1);
    }

    #[test]
    fn what_is_kept_is_found_and_what_is_spoilt_is_not() {
        let directory = tempfile::tempdir().expect("a directory");
        let sites = directory.path().join("sites");
        let cache = Cache::open(&sites).expect("a cache");
        let identity = Identity { file: (1, 2), size: 3, changed: (4, 5) };
        let before = Moved { bytes: vec![1, 2, 3, 4, 5], distances: vec![1] };
        let found = vec![Site { start: 1, call: 6, next: 8, end: 6, before, behind: Moved::default() }; 2];
        assert_eq!(cache.load(&identity), None);
        cache.store(&identity, &found);
        assert_eq!(cache.load(&identity), Some(found));
        assert_eq!(cache.load(&Identity { size: 4, ..identity }), None);
        let place = sites.join(Cache::name(&identity));
        let bytes = fs::read(&place).expect("a file");
        for length in 0..bytes.len() {
            fs::write(&place, &bytes[..length]).expect("a file");
            assert_eq!(cache.load(&identity), None, "cut off at {length}");
        }
    }

    #[test]
    fn a_directory_that_others_write_to_is_none() {
        let directory = tempfile::tempdir().expect("a directory");
        let (parent, sites) = (directory.path().join("parent"), directory.path().join("parent/sites"));
        assert!(Cache::open(&sites).is_err(), "whoever makes the parent has it");
        let open_to = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("our own");
        };
        fs::create_dir(&parent).expect("a directory");
        open_to(&parent, 0o777);
        assert!(Cache::open(&sites).is_err());
        open_to(&parent, 0o755);
        assert!(Cache::open(&sites).is_ok());
        open_to(&sites, 0o777);
        assert!(Cache::open(&sites).is_err());
    }

    #[test]
    fn a_link_is_none_and_what_is_held_cannot_be_exchanged() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |name: &str| directory.path().join(name);
        fs::create_dir(path("parent")).expect("a directory");
        std::os::unix::fs::symlink("parent", path("link")).expect("a link");
        assert!(Cache::open(&path("link/sites")).is_err());
        let cache = Cache::open(&path("parent/sites")).expect("a cache");
        fs::rename(path("parent/sites"), path("parent/others")).expect("renamed");
        let identity = Identity { file: (1, 2), size: 3, changed: (4, 5) };
        let site =
            Site { start: 1, call: 6, next: 8, end: 6, before: Moved::default(), behind: Moved::default() };
        cache.store(&identity, &[site]);
        assert!(path("parent/others").join(Cache::name(&identity)).exists());
        let name = path("parent/others").join(Cache::name(&identity));
        fs::rename(&name, path("elsewhere")).expect("renamed");
        std::os::unix::fs::symlink(path("elsewhere"), &name).expect("a link");
        assert_eq!(cache.load(&identity), None);
    }
}
