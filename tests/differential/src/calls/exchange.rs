//! A reader that waits as servers do: for edges, or by system calls that no hook sees.

use std::os::fd::RawFd;

use libc::{c_int, epoll_event, pollfd};

use super::errno;
use super::waits::raw;
use crate::op::By;

/// Most milliseconds that a message takes.
const MOST_MS: c_int = 4000;
/// Room for a message and more, so that a read that takes all there is brings less.
const ROOM: usize = 16_384;

pub struct Reader {
    fd: RawFd,
    by: By,
    set: RawFd,
    /// Whether there may be something to read, by what was told and read since.
    ready: bool,
}

impl Reader {
    pub fn new(fd: RawFd, by: By) -> Self {
        let mut event = epoll_event { events: (libc::EPOLLIN | libc::EPOLLET) as u32, u64: 1 };
        let add = libc::EPOLL_CTL_ADD;
        // SAFETY: an event of ours.
        let set = unsafe {
            match by {
                By::Edge => {
                    let set = libc::epoll_create1(libc::EPOLL_CLOEXEC);
                    libc::epoll_ctl(set, add, fd, &raw mut event);
                    set
                }
                By::RawEdge => {
                    let cloexec = libc::EPOLL_CLOEXEC.into();
                    let set = raw(libc::SYS_epoll_create1, cloexec, 0, 0, 0, 0, 0);
                    let at = (&raw mut event) as i64;
                    raw(libc::SYS_epoll_ctl, set, add.into(), fd.into(), at, 0, 0);
                    set as RawFd
                }
                By::RawPoll => -1,
            }
        };
        Self { fd, by, set, ready: by == By::RawPoll }
    }

    /// `n` bytes; nothing at the stream's end, or where nobody tells of them in time.
    pub fn read(&mut self, n: usize) -> Option<Vec<u8>> {
        let (mut all, mut some) = (Vec::new(), vec![0u8; ROOM]);
        while all.len() < n {
            if !self.ready {
                if self.wait() <= 0 {
                    return None;
                }
                self.ready = true;
            }
            // SAFETY: the vector.
            let got = unsafe { libc::recv(self.fd, some.as_mut_ptr().cast(), ROOM, libc::MSG_DONTWAIT) };
            match got {
                0 => return None,
                got if got > 0 => {
                    all.extend_from_slice(&some[..got as usize]);
                    self.ready = got as usize == ROOM;
                }
                _ if errno() == libc::EAGAIN => self.ready = false,
                _ => return None,
            }
        }
        Some(all)
    }

    fn wait(&self) -> i64 {
        let mut told = epoll_event { events: 0, u64: 0 };
        let (set, at) = (self.set.into(), (&raw mut told) as i64);
        // SAFETY: memory of ours.
        unsafe {
            match self.by {
                By::Edge => libc::epoll_wait(self.set, &raw mut told, 1, MOST_MS).into(),
                By::RawEdge => raw(libc::SYS_epoll_pwait, set, at, 1, MOST_MS.into(), 0, 8),
                By::RawPoll => {
                    let mut one = pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
                    raw(libc::SYS_poll, (&raw mut one) as i64, 1, MOST_MS.into(), 0, 0, 0)
                }
            }
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        match self.by {
            By::Edge => super::close(self.set),
            By::RawEdge => drop(raw(libc::SYS_close, self.set.into(), 0, 0, 0, 0, 0)),
            By::RawPoll => {}
        }
    }
}
