//! Descriptors that came from a client, and who closes them.
//!
//! Merely closing one can make the closer wait: for a socket's unsent bytes (SO_LINGER), for the answer of a file system that
//! is a program (FUSE), for an epoll instance whose lock a page fault of the client's holds. So the broker itself is given
//! none but memory and eventfds, which a helper has looked at, and it is never the last to close an eventfd.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use shunpike_shm::{arena, region};
use std::cell::RefCell;
use std::mem;
use std::rc::Rc;

/// What is to be done with a descriptor that is not needed any more.
#[derive(Debug)]
pub enum Last {
    /// Close it.
    Close,
    /// Give its memory, so many bytes, back to the system, and close it.
    Empty(u64),
}

/// Descriptors that wait for a helper, each with its user.
#[derive(Clone, Default, Debug)]
pub struct Graves(Rc<RefCell<Vec<(u32, OwnedFd, Last)>>>);

impl Graves {
    /// One more.
    pub fn enter(&self, user: u32, fd: OwnedFd, last: Last) {
        self.0.borrow_mut().push((user, fd, last));
    }

    /// All of them.
    pub fn take(&self) -> Vec<(u32, OwnedFd, Last)> {
        mem::take(&mut self.0.borrow_mut())
    }
}

/// A descriptor that is passed on to clients. One of a client's own is closed by a helper.
#[derive(Debug)]
pub struct Shared {
    fd: Option<OwnedFd>,
    of: Option<(u32, Graves)>,
}

impl Shared {
    /// A descriptor that came from a process of `user`.
    pub fn of_client(fd: OwnedFd, user: u32, graves: &Graves) -> Self {
        Self { fd: Some(fd), of: Some((user, graves.clone())) }
    }
}

impl From<OwnedFd> for Shared {
    /// One that closes at once: memory, or of our own making.
    fn from(fd: OwnedFd) -> Self {
        Self { fd: Some(fd), of: None }
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("there until it is dropped").as_fd()
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let (Some(fd), Some((user, graves))) = (self.fd.take(), self.of.take()) {
            graves.enter(user, fd, Last::Close);
        }
    }
}

/// Whether this is sealed memory of just this size. Asks for seals first: unlike fstat, that asks no file system.
pub fn is_memory(fd: BorrowedFd<'_>, len: usize) -> bool {
    region::verify(fd, len).is_ok()
}

/// Whether this is memory that can be an arena. Seals first, as above.
pub fn is_arena(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok() && arena::verify(fd).is_ok()
}

/// Whether this is an eventfd in non-blocking mode: what peers may be given to write to.
pub fn is_doorbell(fd: BorrowedFd<'_>) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == "anon_inode:[eventfd]")
        && rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};

    #[test]
    fn only_known_kinds_are_taken() {
        let file: OwnedFd = std::fs::File::open("/dev/null").unwrap().into();
        let bell = |flags| eventfd(0, flags).unwrap();
        let memory = region::create("t", 4096).unwrap();
        assert!(is_memory(memory.as_fd(), 4096) && !is_memory(memory.as_fd(), 8192));
        assert!(is_doorbell(bell(EventfdFlags::NONBLOCK).as_fd()));
        assert!(!is_doorbell(bell(EventfdFlags::empty()).as_fd()));
        assert!(!is_doorbell(memory.as_fd()));
        assert!(!is_memory(file.as_fd(), 4096) && !is_doorbell(file.as_fd()));
    }

    #[test]
    fn the_last_of_a_clients_is_left_to_be_closed() {
        let graves = Graves::default();
        let one = Rc::new(Shared::of_client(eventfd(0, EventfdFlags::NONBLOCK).unwrap(), 7, &graves));
        let other = Rc::clone(&one);
        drop(one);
        assert!(graves.take().is_empty());
        drop(other);
        assert!(matches!(graves.take()[..], [(7, _, Last::Close)]));
        drop(Shared::from(eventfd(0, EventfdFlags::NONBLOCK).unwrap()));
        assert!(graves.take().is_empty());
    }
}
