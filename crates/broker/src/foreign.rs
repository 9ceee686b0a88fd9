//! Descriptors that came from a client, and who closes them.
//!
//! Merely closing one can make the closer wait: for a socket's unsent bytes (SO_LINGER), for the answer of a file system that
//! is a program (FUSE), for an epoll instance whose lock a page fault of the client's holds. So the broker itself is given
//! none but memory, which a helper has looked at. A client's doorbells it holds *in flight*: unread in a socket that a helper
//! has made, from which it takes copies for the moment in which they are sent on. It is never the last to close one, nor memory:
//! whoever closes that last frees its pages, half a second for a GiB. That holds
//! for a broker that is killed as well: the kernel closes a process's own descriptors first (its lock, its sessions), and what
//! lay in a socket when that one is closed.

use crate::channel;
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use shunpike_shm::{arena, region};
use std::cell::{Cell, RefCell};
use std::mem;
use std::rc::Rc;

/// What is to be done with a descriptor that is not needed any more.
#[derive(Debug)]
pub enum Last {
    /// Close it.
    Close,
    /// Close it, which frees memory: so few at a time that a helper is done in time.
    Free,
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

/// What is passed on to clients: a descriptor of ours; or a client's, memory or what is in flight, which a helper ends.
#[derive(Debug)]
pub struct Shared {
    fd: Option<OwnedFd>,
    of: Option<(u32, Graves)>,
    is_in_flight: bool,
    /// As many bytes are given back to the system first.
    empties: Cell<u64>,
}

/// The descriptors of a [`Shared`], for as long as they are sent.
pub enum Given<'a> {
    /// The one that is held.
    Held(BorrowedFd<'a>),
    /// Copies of those in flight.
    Copies(Vec<OwnedFd>),
}

impl Shared {
    /// What came from a process of `user`, in flight: see [`put_in_flight`].
    pub fn of_client(in_flight: OwnedFd, user: u32, graves: &Graves) -> Self {
        Self::new(in_flight, Some((user, graves.clone())), true)
    }

    /// Memory that came from a process of `user`.
    pub fn memory_of_client(fd: OwnedFd, user: u32, graves: &Graves) -> Self {
        Self::new(fd, Some((user, graves.clone())), false)
    }

    fn new(fd: OwnedFd, of: Option<(u32, Graves)>, is_in_flight: bool) -> Self {
        Self { fd: Some(fd), of, is_in_flight, empties: Cell::new(0) }
    }

    /// Has as many bytes given back to the system when it is needed no more: its owner may have it mapped, and sleep.
    pub fn empty_at_last(&self, len: u64) {
        self.empties.set(len);
    }

    /// What a client is given.
    pub fn given(&self) -> Result<Given<'_>, Errno> {
        let fd = self.as_fd();
        if self.is_in_flight { channel::copies(fd).map(Given::Copies) } else { Ok(Given::Held(fd)) }
    }
}

impl Given<'_> {
    /// All of them.
    pub fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let (held, copies) = match self {
            Given::Held(fd) => (Some(*fd), &[][..]),
            Given::Copies(fds) => (None, fds.as_slice()),
        };
        held.into_iter().chain(copies.iter().map(AsFd::as_fd))
    }
}

impl From<OwnedFd> for Shared {
    /// One that closes at once: memory, or of our own making.
    fn from(fd: OwnedFd) -> Self {
        Self::new(fd, None, false)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let (Some(fd), Some((user, graves))) = (self.fd.take(), self.of.take()) {
            let last = match (self.is_in_flight, self.empties.get()) {
                (true, _) => Last::Close,
                (false, 0) => Last::Free,
                (false, len) => Last::Empty(len),
            };
            graves.enter(user, fd, last);
        }
    }
}

impl AsFd for Shared {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("there until it is dropped").as_fd()
    }
}

/// Leaves descriptors unread in a socket that nobody else can send to, and returns that.
pub fn put_in_flight(fds: &[OwnedFd]) -> Result<OwnedFd, Errno> {
    let (socket, sender) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    let beside: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
    // One byte: a message without any would be no message to whoever looks.
    channel::send(sender.as_fd(), &0_u8, &beside)?;
    Ok(socket)
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
        let bells = [0, 7].map(|value| eventfd(value, EventfdFlags::NONBLOCK).unwrap());
        let one = Rc::new(Shared::of_client(put_in_flight(&bells).unwrap(), 7, &graves));
        drop(bells);
        let other = Rc::clone(&one);
        drop(one);
        assert!(graves.take().is_empty());
        // As often as there are peers, the same ones in the same order.
        for value in [7_u64, 6] {
            let given = other.given().unwrap();
            let bells: Vec<BorrowedFd<'_>> = given.fds().collect();
            let mut count = [0; 8];
            assert_eq!(bells.len(), 2);
            assert!(rustix::io::read(bells[0], &mut count).is_err(), "nobody has rung");
            rustix::io::read(bells[1], &mut count).unwrap();
            assert_eq!(u64::from_ne_bytes(count), value);
            rustix::io::write(bells[1], &6_u64.to_ne_bytes()).unwrap();
        }
        drop(other);
        assert!(matches!(graves.take()[..], [(7, _, Last::Close)]));
        drop(Shared::from(eventfd(0, EventfdFlags::NONBLOCK).unwrap()));
        assert!(graves.take().is_empty());
        let memory = || Shared::memory_of_client(region::create("t", 4096).unwrap(), 7, &graves);
        assert!(matches!(memory().given(), Ok(Given::Held(_))));
        memory().empty_at_last(4096);
        assert!(matches!(graves.take()[..], [(7, _, Last::Free), (7, _, Last::Empty(4096))]));
    }
}
