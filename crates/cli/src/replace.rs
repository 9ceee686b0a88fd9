//! Files of the system that are written whole or not at all: whoever reads one meanwhile reads what was there before.

use crate::error::Error;
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What a new file is: anybody's to read.
const MODE: u32 = 0o644;

/// Makes `content` what `path` holds, with the mode that it has. Where it is a link, what that names is replaced. On an error
/// everything is as it was.
pub fn replace(path: &Path, content: &[u8]) -> Result<(), Error> {
    let failed = |source| Error::Write { path: path.to_owned(), source };
    refuse_others_link(path).map_err(failed)?;
    let target = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let directory = target.parent().unwrap_or(Path::new("/"));
    make(directory).map_err(failed)?;
    let beside = beside(&target);
    let written = write(&beside, &target, content).and_then(|()| fs::rename(&beside, &target));
    if written.is_err() {
        // It may not even have come to be.
        let _ = fs::remove_file(&beside);
    }
    // So that the new name is there after a power failure, too.
    written.and_then(|()| File::open(directory)?.sync_all()).map_err(failed)
}

/// Errors: what lies there is a link of another user's, who would choose what is written to. As the kernel has it in directories like /tmp
/// (protected_symlinks of proc_sys_fs(5)); by us a link is read, not followed, which it does not see.
pub fn refuse_others_link(path: &Path) -> io::Result<()> {
    let own = rustix::process::geteuid().as_raw();
    match fs::symlink_metadata(path) {
        Ok(there) if there.is_symlink() && there.uid() != own && there.uid() != 0 => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("it is a link of uid {}'s", there.uid()),
        )),
        _ => Ok(()),
    }
}

/// Makes a directory, and those above it, which anybody may look into whatever the caller's umask is.
fn make(directory: &Path) -> io::Result<()> {
    if directory.as_os_str().is_empty() || directory.is_dir() {
        return Ok(());
    }
    directory.parent().map_or(Ok(()), make)?;
    fs::create_dir(directory)?;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
}

/// A name in the same directory, which no reader of that directory takes for one of its files.
fn beside(target: &Path) -> PathBuf {
    let mut name = OsString::from(".");
    name.push(target.file_name().unwrap_or_default());
    name.push(format!(".{}.new", std::process::id()));
    target.with_file_name(name)
}

fn write(beside: &Path, target: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(beside)?;
    let mode = fs::metadata(target).map_or(MODE, |there| there.permissions().mode() & 0o7777);
    // The umask is the caller's, and this file everybody's.
    file.set_permissions(fs::Permissions::from_mode(mode))?;
    file.write_all(content)?;
    file.sync_all()
}

/// Takes a file away. One that is not there is no error.
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
