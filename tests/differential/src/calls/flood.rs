//! A connection that is filled until it takes no more, and what tells its sender of room.

use std::os::fd::RawFd;
use std::ptr::null_mut;

use libc::{c_int, epoll_event, pollfd};

use super::{Said, errno, hash, nonblock, set};
use crate::op::RoomBy;

/// More than any kernel's buffers and any ring take.
const MOST: usize = 64 << 20;
/// Most milliseconds that a wait for room takes.
const MOST_MS: u16 = 3000;
/// The bytes come again after so many: a prime number, so that a piece that is missing, or there twice, shows.
const PERIOD: usize = 65_521;

pub struct Room {
    fd: RawFd,
    /// For edges, from before the first byte on.
    set: RawFd,
    bytes: Vec<u8>,
    sent: usize,
    hash: u64,
}

impl Room {
    pub fn new(fd: RawFd, by: RoomBy) -> Self {
        let mut set = -1;
        if by == RoomBy::Edge {
            set = super::new_set();
            let mut event = epoll_event { events: (libc::EPOLLOUT | libc::EPOLLET) as u32, u64: 1 };
            // SAFETY: an event of ours.
            unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
        }
        Self { fd, set, bytes: Vec::new(), sent: 0, hash: 0 }
    }

    /// Sends until there is no room, and no edge has told of some since: how many bytes, and their hash.
    pub fn fill(&mut self, chunk: usize, serial: u64) -> Said {
        self.bytes = (0..PERIOD as u64)
            .map(|p| (p.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(serial << 32) >> 40) as u8)
            .collect();
        let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
        while self.sent < MOST {
            if self.send(chunk, flags) > 0 || self.set >= 0 && told(self.set, 0) > 0 {
                continue;
            }
            let (ret, error) = (self.sent as i64, errno());
            return if error == libc::EAGAIN {
                Said::of(ret).with([self.hash as i64])
            } else {
                Said::failed()
            };
        }
        Said::of(-2)
    }

    fn send(&mut self, n: usize, flags: c_int) -> isize {
        let at = self.sent % PERIOD;
        let n = n.min(PERIOD - at);
        // SAFETY: a part of the vector.
        let sent = unsafe { libc::send(self.fd, self.bytes[at..].as_ptr().cast(), n, flags) };
        if sent > 0 {
            self.hash = hash(self.hash, &self.bytes[at..at + sent as usize]);
            self.sent += sent as usize;
        }
        sent
    }

    /// Waits for room. What it says: whether there is some, how many bytes were sent since, and the hash of all.
    pub fn wait(&mut self, by: RoomBy, n: usize) -> Said {
        let (fd, before) = (self.fd, self.sent);
        let most_ms = c_int::from(MOST_MS);
        let got = match by {
            RoomBy::Poll => {
                let mut one = pollfd { fd, events: libc::POLLOUT, revents: 0 };
                // SAFETY: one entry, ours.
                unsafe { libc::poll(&raw mut one, 1, most_ms) }
            }
            RoomBy::Select => has_room(fd),
            RoomBy::Edge => told(self.set, most_ms),
            RoomBy::Epoll => {
                let set = super::new_set();
                let mut event = epoll_event { events: libc::EPOLLOUT as u32, u64: 1 };
                // SAFETY: an event of ours.
                unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
                let got = told(set, most_ms);
                super::close(set);
                got
            }
            RoomBy::Send => self.send_all(n),
        };
        let error = if got < 0 { errno() } else { 0 };
        Said { ret: got.into(), errno: error, more: vec![(self.sent - before) as i64, self.hash as i64] }
    }

    /// Sends by calls that wait, in a time that is bounded.
    fn send_all(&mut self, n: usize) -> c_int {
        // SAFETY: no memory is passed.
        let did_wait = unsafe { libc::fcntl(self.fd, libc::F_GETFL) } & libc::O_NONBLOCK == 0;
        let limit = |ms: u16| libc::timeval { tv_sec: (ms / 1000).into(), tv_usec: 0 };
        if !did_wait {
            nonblock(self.fd, false);
        }
        set(self.fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, limit(MOST_MS));
        let until = self.sent + n;
        while self.sent < until && self.send(until - self.sent, libc::MSG_NOSIGNAL) > 0 {}
        let is_done = self.sent == until;
        let kept = errno();
        set(self.fd, libc::SOL_SOCKET, libc::SO_SNDTIMEO, limit(0));
        if !did_wait {
            nonblock(self.fd, true);
        }
        // SAFETY: this thread's own.
        unsafe { *libc::__errno_location() = kept };
        if is_done { 1 } else { -1 }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if self.set >= 0 {
            super::close(self.set);
        }
    }
}

fn told(set: RawFd, ms: c_int) -> c_int {
    let mut one = epoll_event { events: 0, u64: 0 };
    // SAFETY: an event of ours.
    unsafe { libc::epoll_wait(set, &raw mut one, 1, ms) }
}

fn has_room(fd: RawFd) -> c_int {
    // SAFETY: all-zero bytes are an empty set; FD_SET stays inside, as these programs have few descriptors.
    unsafe {
        let mut set: libc::fd_set = std::mem::zeroed();
        assert!((fd as usize) < libc::FD_SETSIZE, "few descriptors");
        libc::FD_SET(fd, &raw mut set);
        let mut most = libc::timeval { tv_sec: (MOST_MS / 1000).into(), tv_usec: 0 };
        libc::select(fd + 1, null_mut(), &raw mut set, null_mut(), &raw mut most)
    }
}

/// Receives `n` bytes: how many came, and the hash of all until now.
pub fn drain(fd: RawFd, n: usize, mut so_far: u64) -> Said {
    const PIECE: usize = 65_536;
    let mut have = 0;
    while have < n {
        let Some(some) = super::receive_all(fd, PIECE.min(n - have)) else { break };
        so_far = hash(so_far, &some);
        have += some.len();
    }
    Said::of(have as i64).with([so_far as i64])
}
