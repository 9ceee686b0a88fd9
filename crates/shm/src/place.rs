//! Where a broker's socket lies, and so whose broker it can be. What listens there is given descriptors of connections and arenas:
//! it must be this user's, root's, or that of the user to whom root has given the directory (a service that is not root).

use rustix::fs::Stat;
use rustix::io::Errno;

const ROOT: u32 = 0;
/// Group and others may write.
const WRITABLE: u32 = 0o022;
/// A UNIX socket's path has at most so many bytes.
const LONGEST: usize = 108;

/// The directory of a broker's socket, where nobody but these can have put one: this user, root, and its owner.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Place {
    owner: u32,
}

impl Place {
    /// The directory of the socket at `path`. Errors: it is not there, or (`PERM`) somebody else can have put a socket there.
    ///
    /// It may be another directory by the time that the socket is connected. So who listens has to be asked, too.
    pub fn of(path: &[u8]) -> Result<Self, Errno> {
        let directory = match path.iter().rposition(|byte| *byte == b'/') {
            Some(0) => b"/",
            Some(at) => path.get(..at).unwrap_or(b"."),
            None => b".",
        };
        let there = rustix::fs::stat(directory)?;
        let owner = there.st_uid;
        let is_guarded = is_closed(&there) && (owner == own() || owner == ROOT || is_given(directory));
        if is_guarded { Ok(Self { owner }) } else { Err(Errno::PERM) }
    }

    /// Whether a broker of user `uid`, by the kernel's word (SO_PEERCRED), may serve us there.
    pub fn may_serve(&self, uid: u32) -> bool {
        uid == own() || uid == ROOT || uid == self.owner
    }
}

/// Whoever we are towards a broker.
fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Whether a directory is its owner's alone to write.
fn is_closed(there: &Stat) -> bool {
    there.st_mode & libc::S_IFMT == libc::S_IFDIR && there.st_mode & WRITABLE == 0
}

/// Whether only root can have made a directory and given it to somebody, and only root can have its name lead there: a link in /tmp
/// may lead to what root gave to somebody else.
fn is_given(directory: &[u8]) -> bool {
    const UP: &[u8] = b"/..";
    let mut above = [0; LONGEST + UP.len()];
    let (len, all) = (directory.len(), directory.len() + UP.len());
    let Some(above) = above.get_mut(..all) else { return false };
    above[..len].copy_from_slice(directory);
    above[len..].copy_from_slice(UP);
    let is_roots_alone = |above: Stat| is_closed(&above) && above.st_uid == ROOT;
    is_named_by_root(directory) && rustix::fs::stat(&*above).is_ok_and(is_roots_alone)
}

/// Whether each part of a name is root's to say what it means.
fn is_named_by_root(path: &[u8]) -> bool {
    let slashes = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
    path.starts_with(b"/")
        && slashes.into_iter().all(|slash| {
            let end = path
                .iter()
                .skip(slash + 1)
                .position(|byte| *byte == b'/')
                .map_or(path.len(), |n| slash + 1 + n);
            let (above, part) = (path.get(..slash.max(1)), path.get(..end));
            let stat = above.and_then(|above| rustix::fs::stat(above).ok());
            stat.filter(|above| above.st_uid == ROOT).is_some_and(|above| {
                is_closed(&above) || is_sticky(&above) && part.is_some_and(is_directory_of_root)
            })
        })
}

/// Whether nobody may rename or remove there what is not his own.
fn is_sticky(there: &Stat) -> bool {
    there.st_mode & libc::S_IFMT == libc::S_IFDIR && there.st_mode & libc::S_ISVTX != 0
}

/// Whether it is itself one, and not a link to one.
fn is_directory_of_root(path: &[u8]) -> bool {
    rustix::fs::lstat(path)
        .is_ok_and(|there| there.st_mode & libc::S_IFMT == libc::S_IFDIR && there.st_uid == ROOT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{Permissions, create_dir, set_permissions};
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::path::Path;

    fn of(directory: &Path) -> Result<Place, Errno> {
        Place::of(directory.join("broker.sock").as_os_str().as_bytes())
    }

    fn mode(path: &Path, mode: u32) {
        set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_that_others_may_write_is_nobodys() {
        let base = tempfile::tempdir().unwrap();
        for (bits, is_closed) in
            [(0o700, true), (0o755, true), (0o777, false), (0o1777, false), (0o770, false), (0o702, false)]
        {
            mode(base.path(), bits);
            assert_eq!(of(base.path()).is_ok(), is_closed, "{bits:o}");
        }
        assert_eq!(of(&base.path().join("missing")), Err(Errno::NOENT));
        assert_eq!(Place::of(b"/broker.sock"), Ok(Place { owner: ROOT }));
        assert_eq!(Place::of(b"broker.sock"), Place::of(b"./broker.sock"));
    }

    #[test]
    fn another_users_directory_is_good_where_root_gave_it() {
        if own() != ROOT {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let given = base.path().join("given");
        create_dir(&given).unwrap();
        chown(&given, Some(1), Some(1)).unwrap();
        mode(base.path(), 0o755);
        let place = of(&given).unwrap();
        assert!(place.may_serve(1) && place.may_serve(ROOT) && !place.may_serve(2));
        mode(base.path(), 0o1777);
        assert_eq!(of(&given), Err(Errno::PERM), "anybody can have made it");
        mode(base.path(), 0o755);
        chown(base.path(), Some(1), Some(1)).unwrap();
        assert_eq!(of(&given), Err(Errno::PERM), "its owner can have made it");
    }

    #[test]
    fn a_link_that_others_could_make_leads_to_nobody() {
        if own() != ROOT {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        mode(base.path(), 0o755);
        let (given, open) = (base.path().join("given"), base.path().join("open"));
        create_dir(&given).unwrap();
        chown(&given, Some(1), Some(1)).unwrap();
        create_dir(&open).unwrap();
        for (link, to) in [
            (base.path().join("link"), &*given),
            (open.join("link"), &given),
            (open.join("above"), base.path()),
        ] {
            std::os::unix::fs::symlink(to, link).unwrap();
        }
        assert!(of(&base.path().join("link")).unwrap().may_serve(1), "root's own link");
        assert!(of(&open.join("above/given")).is_ok(), "root's directory as yet");
        mode(&open, 0o1777);
        assert_eq!(of(&open.join("link")), Err(Errno::PERM));
        assert_eq!(of(&open.join("above/given")), Err(Errno::PERM));
        mode(&open, 0o777);
        create_dir(open.join("of-root")).unwrap();
        create_dir(open.join("of-root/given")).unwrap();
        chown(open.join("of-root/given"), Some(1), Some(1)).unwrap();
        assert_eq!(of(&open.join("of-root/given")), Err(Errno::PERM), "anybody can put another one there");
        mode(&open, 0o1777);
        assert!(of(&open.join("of-root/given")).is_ok());
    }

    #[test]
    fn in_a_directory_of_our_own_it_is_ours_or_roots() {
        let base = tempfile::tempdir().unwrap();
        let place = of(base.path()).unwrap();
        assert!(place.may_serve(own()) && place.may_serve(ROOT));
        assert!(!place.may_serve(own() + 1));
    }
}
