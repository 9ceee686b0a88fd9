//! One `enable` or `disable` of a system at a time: each reads files, and replaces them by what it has made of them.

use super::below;
use crate::error::Error;
use crate::replace;
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

/// Who has it locked is at work. Nobody but root can open it, and so keep root waiting.
const LOCK: &str = "/etc/.shunpike.lock";
/// How long another one may be at work.
const PATIENCE: Duration = Duration::from_secs(30);
const PAUSE: Duration = Duration::from_millis(10);

/// That nobody else changes anything meanwhile.
pub struct Turn {
    path: PathBuf,
    _locked: OwnedFd,
}

impl Turn {
    /// Waits for it. Errors: the file cannot be made, or another one does not end.
    pub fn take(root: &Path) -> Result<Self, Error> {
        let path = below(root, Path::new(LOCK));
        match lock(&path) {
            Ok(_locked) => Ok(Self { path, _locked }),
            Err(source) => Err(Error::Write { path, source }),
        }
    }
}

fn lock(path: &Path) -> io::Result<OwnedFd> {
    replace::make(path.parent().unwrap_or(Path::new("/")))?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let (ours, named) = (rustix::fs::fstat(&file)?, rustix::fs::lstat(path));
                // Who had it has removed it: the next one locks another.
                if named.is_ok_and(|named| (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino)) {
                    return Ok(file);
                }
            }
            Err(Errno::WOULDBLOCK) => thread::sleep(PAUSE),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Err(io::Error::new(io::ErrorKind::WouldBlock, "another 'shunpike enable' or 'disable' is at work"))
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Before it is unlocked: whoever waits for it sees that it is another's no more.
        let _ = replace::remove(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn turns_do_not_overlap_and_leave_nothing() {
        let dir = tempfile::tempdir().expect("a directory");
        let inside = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let turn = Turn::take(dir.path()).expect("a turn");
                        assert_eq!(inside.fetch_add(1, Ordering::Relaxed), 0);
                        thread::yield_now();
                        inside.fetch_sub(1, Ordering::Relaxed);
                        drop(turn);
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(dir.path().join("etc")).expect("there").count(), 0);
    }
}
