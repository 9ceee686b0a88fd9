//! An epoll set, by libc's names, which the preloaded library replaces.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

// The libc crate has none for musl, for which this file is compiled, too, and not linked: only `shunpike-load` has a use of it.
// SAFETY: as libc declares it.
unsafe extern "C" {
    fn epoll_pwait2(
        set: RawFd,
        events: *mut libc::epoll_event,
        room: i32,
        most: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> i32;
}

pub struct Set {
    fd: OwnedFd,
    events: Vec<libc::epoll_event>,
}

impl Set {
    pub fn new() -> io::Result<Self> {
        // SAFETY: takes no pointer.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just made this descriptor, and nobody else knows it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self { fd, events: vec![libc::epoll_event { events: 0, u64: 0 }; 512] })
    }

    /// Level-triggered, for reading; its events carry `data`.
    pub fn add(&self, fd: RawFd, data: usize) -> io::Result<()> {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: data as u64 };
        // SAFETY: `event` lives during the call.
        match unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Waits at most so long, and gives the data of those that are ready.
    pub fn wait_for(&mut self, most: Duration) -> io::Result<impl Iterator<Item = usize> + '_> {
        let room = self.events.len() as i32;
        let most = libc::timespec { tv_sec: most.as_secs() as i64, tv_nsec: i64::from(most.subsec_nanos()) };
        let (events, mask) = (self.events.as_mut_ptr(), std::ptr::null());
        // SAFETY: the kernel writes at most `room` events, which is the vector's length; `most` lives during the call.
        let n = unsafe { epoll_pwait2(self.fd.as_raw_fd(), events, room, &most, mask) };
        let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        Ok(self.events[..n].iter().map(|event| event.u64 as usize))
    }

    /// Waits, and gives the data of those that are ready.
    pub fn wait(&mut self) -> io::Result<impl Iterator<Item = usize> + '_> {
        let room = self.events.len() as i32;
        // SAFETY: the kernel writes at most `room` events, which is the vector's length.
        let n = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), self.events.as_mut_ptr(), room, -1) };
        let n = usize::try_from(n).map_err(|_| io::Error::last_os_error())?;
        Ok(self.events[..n].iter().map(|event| event.u64 as usize))
    }
}
