//! The descriptors 0 to 2, which a starter may have closed: whatever is opened then would have their numbers.

use crate::error::Error;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::io::{self, Stdout};
use std::os::fd::IntoRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

/// Standard output was closed: what is written there is nobody's to read, though /dev/null takes it.
static CLOSED: AtomicBool = AtomicBool::new(false);

/// Opens those that are closed. Not for `run`, whose program inherits what its caller gave it.
pub fn open() -> Result<(), Error> {
    // SAFETY: asks of a number whether it is a descriptor, and uses none.
    let is_open = |number| unsafe { libc::fcntl(number, libc::F_GETFD) } >= 0;
    CLOSED.store(!is_open(1), Ordering::Relaxed);
    // Each takes the lowest number that is free.
    while !(0..=2).all(is_open) {
        let null = rustix::fs::open("/dev/null", OFlags::RDWR, Mode::empty())
            .map_err(|errno| Error::Descriptors(errno.into()))?;
        // It is open for as long as the process lives.
        let _ = null.into_raw_fd();
    }
    Ok(())
}

/// Standard output. Errors: it was closed, so that nobody would have what is written.
pub fn output() -> Result<Stdout, Error> {
    if CLOSED.load(Ordering::Relaxed) { Err(Error::Output(Errno::BADF.into())) } else { Ok(io::stdout()) }
}
