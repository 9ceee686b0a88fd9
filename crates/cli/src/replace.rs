//! Files of the system that are written whole or not at all: whoever reads one meanwhile reads what was there before.

use crate::error::Error;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// What a new file is: anybody's to read.
const MODE: u32 = 0o644;

const NOT_ORDINARY: &str = "it is no ordinary file, or a link to what is none, and stays as it is";

/// Most links that are followed to a file. The kernel's bound is 40.
const LINKS: usize = 8;

/// A name in a directory that is held: what that directory is called may be another's by now.
pub struct Place {
    directory: OwnedFd,
    name: OsString,
    /// A link of proc(5), as /dev/stdout leads to: it is what this process has open, whatever its text says.
    is_procs: bool,
}

impl Place {
    /// What `path` leads to. A link at its end is followed if it is ours or root's: who else has put one there would choose what is written to.
    /// As the kernel has it in directories like /tmp (protected_symlinks of proc_sys_fs(5)); by us a link is read, not followed, which it
    /// does not see. Whose it is, and where it leads, is asked of the same link.
    ///
    /// # Errors
    /// No such directory; another user's link; too many of them.
    pub fn of(path: &Path) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let in_it = |directory: BorrowedFd<'_>, path: &Path| {
            let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
            let parent =
                path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            let directory = rustix::fs::openat(directory, parent, flags | OFlags::DIRECTORY, Mode::empty())?;
            io::Result::Ok(Self { directory, name, is_procs: false })
        };
        let mut place = in_it(CWD, path)?;
        for _ in 0..LINKS {
            let there = match rustix::fs::openat(
                &place.directory,
                &place.name,
                flags | OFlags::NOFOLLOW,
                Mode::empty(),
            ) {
                Err(Errno::NOENT) => return Ok(place),
                there => there?,
            };
            let found = rustix::fs::fstat(&there)?;
            if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
                return Ok(place);
            }
            if !is_trusted(found.st_uid) {
                return Err(denied(&format!("it is a link of uid {}'s", found.st_uid)));
            }
            if rustix::fs::fstatfs(&place.directory)?.f_type == rustix::fs::PROC_SUPER_MAGIC {
                place.is_procs = true;
                return Ok(place);
            }
            let target = rustix::fs::readlinkat(&there, "", Vec::new())?;
            place = in_it(place.directory.as_fd(), Path::new(OsStr::from_bytes(target.as_bytes())))?;
        }
        Err(Errno::LOOP.into())
    }

    /// What `path` names, where directories on the way may be another user's, as root's HOME is under some sudo. A link is followed
    /// only if it is ours or root's, in a directory that is: whose else it is would choose where we read and write. With `makes`, what
    /// lacks is made, for us alone.
    ///
    /// # Errors
    /// No such directory; another user's link; too many of them.
    pub fn on_trusted_way(path: &Path, makes: bool) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let open = |at: BorrowedFd<'_>, word: &OsStr| rustix::fs::openat(at, word, flags, Mode::empty());
        let words =
            |path: &Path| path.components().rev().map(|word| word.as_os_str().to_owned()).collect::<Vec<_>>();
        let mut directory = open(CWD, OsStr::new("."))?;
        let (mut ahead, mut links) = (words(path.parent().unwrap_or(Path::new("."))), 0);
        while let Some(word) = ahead.pop() {
            let there = match open(directory.as_fd(), &word) {
                Err(Errno::NOENT) if makes => {
                    match rustix::fs::mkdirat(&directory, &word, Mode::RWXU) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(errno) => return Err(errno.into()),
                    }
                    open(directory.as_fd(), &word)?
                }
                there => there?,
            };
            let found = rustix::fs::fstat(&there)?;
            match FileType::from_raw_mode(found.st_mode) {
                FileType::Directory => directory = there,
                FileType::Symlink if links == LINKS => return Err(Errno::LOOP.into()),
                FileType::Symlink => {
                    for owner in [found.st_uid, rustix::fs::fstat(&directory)?.st_uid] {
                        if !is_trusted(owner) {
                            let word = Path::new(&word).display();
                            return Err(denied(&format!("{word} is a link, and uid {owner}'s to change")));
                        }
                    }
                    links += 1;
                    let target = rustix::fs::readlinkat(&there, "", Vec::new())?;
                    ahead.extend(words(Path::new(OsStr::from_bytes(target.as_bytes()))));
                }
                _ => return Err(Errno::NOTDIR.into()),
            }
        }
        Ok(Self { directory, name, is_procs: false })
    }

    /// Opens what stands there, or makes it; no link is followed that came meanwhile.
    pub fn open(&self, flags: OFlags, mode: Mode) -> io::Result<OwnedFd> {
        let follow = if self.is_procs { OFlags::empty() } else { OFlags::NOFOLLOW };
        Ok(rustix::fs::openat(&self.directory, &self.name, flags | follow | OFlags::CLOEXEC, mode)?)
    }

    /// Whether it is something that this process has open, by its name in proc(5).
    pub fn is_open_already(&self) -> bool {
        self.is_procs
    }

    /// What is there.
    pub fn metadata(&self) -> io::Result<rustix::fs::Stat> {
        let follow = if self.is_procs { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
        Ok(rustix::fs::statat(&self.directory, &self.name, follow)?)
    }

    /// A name in the same directory, which no reader of that directory takes for one of its files.
    fn beside(&self) -> OsString {
        let mut name = OsString::from(".");
        name.push(&self.name);
        name.push(format!(".{}.new", std::process::id()));
        name
    }

    /// Makes `content` what is there. On an error everything is as it was. A file that is new, or another user's by now, gets `mode`.
    pub fn replace(&self, content: &[u8], mode: u32) -> io::Result<()> {
        let beside = self.beside();
        self.write(&beside, content, mode).inspect_err(|_| {
            // It may not even have come to be.
            let _ = rustix::fs::unlinkat(&self.directory, &beside, AtFlags::empty());
        })
    }

    fn write(&self, beside: &OsStr, content: &[u8], mode: u32) -> io::Result<()> {
        let there = self.metadata().ok();
        check_ordinary(there.as_ref())?;
        // Another user's may be open to that user: its mode is no wish of ours. Nor is a link's.
        let is_file = |there: &rustix::fs::Stat| FileType::from_raw_mode(there.st_mode) != FileType::Symlink;
        let kept = there.filter(|there| is_trusted(there.st_uid) && is_file(there));
        let mode = kept.map_or(Mode::from_raw_mode(mode), |there| Mode::from_raw_mode(there.st_mode));
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, beside, flags, Mode::RUSR | Mode::WUSR)?;
        // The umask is the caller's, and this file everybody's.
        rustix::fs::fchmod(&file, mode)?;
        let mut file = File::from(file);
        file.write_all(content)?;
        file.sync_all()?;
        rustix::fs::renameat(&self.directory, beside, &self.directory, &self.name)?;
        // So that the new name is there after a power failure, too.
        let directory =
            rustix::fs::openat(&self.directory, ".", OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        Ok(rustix::fs::fsync(directory)?)
    }
}

/// Errors: it is a device, a pipe or a directory. /dev/null would become a file with whatever is written to it, for all programs.
/// A link that is still one came meanwhile, and is itself replaced.
fn check_ordinary(there: Option<&rustix::fs::Stat>) -> io::Result<()> {
    match there.map(|there| FileType::from_raw_mode(there.st_mode)) {
        None | Some(FileType::RegularFile | FileType::Symlink) => Ok(()),
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidInput, NOT_ORDINARY)),
    }
}

/// Whether what such a user has made is what we would have.
fn is_trusted(uid: u32) -> bool {
    uid == 0 || uid == rustix::process::geteuid().as_raw()
}

/// Why something of another user's is left alone.
pub fn denied(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, why)
}

/// Makes `content` what `path` holds, with the mode that it has. Where it is a link, what that names is replaced. On an error
/// everything is as it was.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), Error> {
    let replaced = || {
        make(path.parent().unwrap_or(Path::new("/")))?;
        Place::of(path)?.replace(content, MODE)
    };
    replaced().map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// Makes a directory, and those above it, which anybody may look into whatever the caller's umask is.
pub fn make(directory: &Path) -> io::Result<()> {
    if directory.as_os_str().is_empty() || directory.is_dir() {
        return Ok(());
    }
    directory.parent().map_or(Ok(()), make)?;
    match fs::create_dir(directory) {
        // Another process has made it just now.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && directory.is_dir() => return Ok(()),
        made => made?,
    }
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
}

/// Errors: what is at `path`, links followed, is there and could not be replaced or removed as a file.
pub fn check(path: &Path) -> Result<(), Error> {
    check_ordinary(rustix::fs::stat(path).ok().as_ref())
        .map_err(|source| Error::Write { path: path.to_owned(), source })
}

/// Takes a file away. One that is not there is no error. A link goes itself, not what it leads to.
pub fn remove(path: &Path) -> Result<bool, Error> {
    match fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(Error::Write { path: path.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_keeps_its_mode_and_a_link_stays_one() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        replace(&real, b"one").expect("written");
        assert_eq!(fs::metadata(&real).expect("there").permissions().mode() & 0o777, MODE);
        fs::set_permissions(&real, fs::Permissions::from_mode(0o600)).expect("mode");
        std::os::unix::fs::symlink("real", &link).expect("link");
        replace(&link, b"two").expect("written");
        assert!(fs::symlink_metadata(&link).expect("there").is_symlink());
        assert_eq!(fs::read(&real).expect("readable"), b"two");
        assert_eq!(fs::metadata(&real).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 2, "nothing is left beside it");
    }

    /// /dev/null became a file of mode 0666, and whatever any user wrote there was in every program.
    #[test]
    fn what_is_no_ordinary_file_stays_what_it_is() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (fifo, link) = (dir.path().join("fifo"), dir.path().join("link"));
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o666), 0).expect("a FIFO");
        std::os::unix::fs::symlink("fifo", &link).expect("link");
        for path in [&fifo, &link] {
            let error = replace(path, b"content").expect_err("refused").to_string();
            assert!(error.contains("no ordinary file"), "{error}");
            assert!(check(path).is_err());
        }
        let kind = rustix::fs::stat(&link).expect("there").st_mode;
        assert_eq!(FileType::from_raw_mode(kind), FileType::Fifo);
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 2, "nothing is left beside it");
    }

    #[test]
    fn a_link_of_another_users_is_not_followed() {
        // Only root can make one here.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("temporary directory");
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::write(&real, "before").expect("written");
        std::os::unix::fs::symlink(&real, &link).expect("link");
        std::os::unix::fs::lchown(&link, Some(1), None).expect("given away");
        assert!(replace(&link, b"after").is_err());
        assert_eq!(fs::read(&real).expect("readable"), b"before");
    }

    #[test]
    fn a_mode_that_another_user_chose_is_not_kept() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("file");
        fs::write(&path, "before").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).expect("mode");
        std::os::unix::fs::chown(&path, Some(1), None).expect("given away");
        replace(&path, b"after").expect("written");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, MODE);
    }

    #[test]
    fn a_link_that_comes_meanwhile_is_not_followed() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let (real, link) = (dir.path().join("real"), dir.path().join("link"));
        fs::write(&real, "before").expect("written");
        let place = Place::of(&link).expect("a place");
        std::os::unix::fs::symlink(&real, &link).expect("link");
        assert!(place.open(OFlags::WRONLY | OFlags::CREATE, Mode::RUSR).is_err());
        place.replace(b"after", MODE).expect("written");
        assert_eq!(fs::read(&real).expect("readable"), b"before");
        assert_eq!(fs::read(&link).expect("readable"), b"after");
    }

    #[test]
    fn what_cannot_be_written_leaves_what_was_there() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let occupied = dir.path().join("directory");
        fs::create_dir_all(occupied.join("full")).expect("directories");
        assert!(replace(&occupied, b"content").is_err());
        assert_eq!(fs::read_dir(dir.path()).expect("readable").count(), 1, "nothing is left beside it");
        assert!(remove(&occupied).is_err());
        assert!(!remove(&dir.path().join("missing")).expect("no error"));
    }
}
