//! Descriptors that came from a client, of which nothing is known yet.
//!
//! Merely closing one can make the closer wait: for a socket's unsent bytes (SO_LINGER), for the answer of a
//! file system that is a program (FUSE), for the freeing of very much memory. By design or by chance the
//! broker may be the last holder, and it must not wait. So what is not known to close at once is closed in
//! a thread of its own.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use rustix::fs::OFlags;
use rustix::net::sockopt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Closes that may wait at a time.
const MAX_WAITING: usize = 64;
/// Memory that is freed in no time, bytes; more than an arena or the largest DMB.
const MAX_MEMORY: i64 = 64 << 20;

static WAITING: AtomicUsize = AtomicUsize::new(0);

/// A client's descriptor.
#[derive(Debug)]
pub struct Foreign(Option<OwnedFd>);

impl Foreign {
    /// Takes charge of `fd`.
    pub fn new(fd: OwnedFd) -> Self {
        Self(Some(fd))
    }

    /// The descriptor, if it is a memfd of bearable size.
    pub fn into_memory(mut self) -> Option<OwnedFd> {
        self.0.take_if(|fd| is_memory(fd.as_fd()))
    }

    /// The descriptor, if it is an eventfd in non-blocking mode: what peers may be given to write to.
    pub fn into_doorbell(mut self) -> Option<OwnedFd> {
        let nonblocking =
            |fd: &OwnedFd| rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        self.0.take_if(|fd| is_eventfd(fd.as_fd()) && nonblocking(fd))
    }
}

impl AsFd for Foreign {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_ref().expect("taken only by those that consume it").as_fd()
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Some(fd) = self.0.take() {
            close(fd);
        }
    }
}

fn close(fd: OwnedFd) {
    if closes_at_once(fd.as_fd()) {
        return drop(fd);
    }
    if WAITING.fetch_add(1, Ordering::Relaxed) < MAX_WAITING {
        let raw = fd.into_raw_fd();
        let closing = move || {
            // SAFETY: given up just above, and handed to this thread alone.
            drop(unsafe { OwnedFd::from_raw_fd(raw) });
            WAITING.fetch_sub(1, Ordering::Relaxed);
        };
        if let Err(error) = std::thread::Builder::new().name("closer".to_owned()).spawn(closing) {
            tracing::error!(%error, "no thread to close a descriptor: left open");
            WAITING.fetch_sub(1, Ordering::Relaxed);
        }
        return;
    }
    WAITING.fetch_sub(1, Ordering::Relaxed);
    // So many at once is no accident. A socket's option is its program's, but so is the fault.
    if sockopt::set_socket_linger(&fd, None).is_ok() {
        tracing::warn!("too many lingering sockets: switched off SO_LINGER on one");
    } else {
        tracing::error!("too many descriptors that do not close: left one open");
        let _ = fd.into_raw_fd();
    }
}

fn closes_at_once(fd: BorrowedFd<'_>) -> bool {
    match sockopt::socket_linger(fd) {
        Ok(linger) => linger.is_none_or(|time| time == Duration::ZERO),
        Err(_) => is_memory(fd) || is_eventfd(fd),
    }
}

/// Asks for seals first: unlike fstat, that asks no file system.
fn is_memory(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fcntl_get_seals(fd).is_ok()
        && rustix::fs::fstat(fd).is_ok_and(|stat| stat.st_blocks.saturating_mul(512) <= MAX_MEMORY)
}

fn is_eventfd(fd: BorrowedFd<'_>) -> bool {
    let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    link.is_ok_and(|link| link.as_os_str() == "anon_inode:[eventfd]")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::Instant;

    #[test]
    fn closing_the_last_of_many_lingering_sockets_does_not_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let start = Instant::now();
        let mut peers = Vec::new();
        for _ in 0..MAX_WAITING + 10 {
            let mut socket = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            peers.push(listener.accept().unwrap().0);
            socket.set_nonblocking(true).unwrap();
            while socket.write(&[0; 65536]).is_ok() {}
            sockopt::set_socket_linger(&socket, Some(Duration::from_secs(60))).unwrap();
            drop(Foreign::new(socket.into()));
        }
        assert!(start.elapsed() < Duration::from_secs(30));
    }

    #[test]
    fn only_known_kinds_are_taken() {
        let file = || Foreign::new(std::fs::File::open("/dev/null").unwrap().into());
        let bell = |flags| Foreign::new(eventfd(0, flags).unwrap());
        let memory = || Foreign::new(shunpike_shm::region::create("t", 4096).unwrap());
        assert!(memory().into_memory().is_some());
        assert!(bell(EventfdFlags::NONBLOCK).into_doorbell().is_some());
        assert!(bell(EventfdFlags::empty()).into_doorbell().is_none());
        assert!(memory().into_doorbell().is_none());
        assert!(file().into_memory().is_none() && file().into_doorbell().is_none());
    }
}
