//! epoll, with core called as the preload library's hooks call it.

use crate::end::{Res, libcs};
use shunpike_core::table::{self, Entry};
use shunpike_core::{conn, epoll, sets, sys};

/// An epoll set, which core follows where it has connections that core watches.
pub struct Epoll {
    /// Its descriptor.
    pub fd: i32,
}

impl Epoll {
    /// An empty one.
    pub fn new() -> Self {
        // SAFETY: no pointers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        assert!(fd >= 0);
        conn::set_created(fd);
        Self { fd }
    }

    /// epoll_ctl(2); the descriptor is what it is told by.
    pub fn ctl(&self, op: i32, fd: i32, events: i32) -> Res<()> {
        let mut event = libc::epoll_event { events: events as u32, u64: fd as u64 };
        // SAFETY: the event is ours.
        let real = |event: &mut libc::epoll_event| unsafe { libc::epoll_ctl(self.fd, op, fd, event) };
        match sets::ctl(self.fd, op, fd, Some(event)) {
            Some(done) => done,
            None => libcs(real(&mut event) as isize).map(drop),
        }
    }

    /// EPOLL_CTL_ADD.
    pub fn add(&self, fd: i32, events: i32) -> Res<()> {
        self.ctl(libc::EPOLL_CTL_ADD, fd, events)
    }

    /// Whom it tells of what, within `ns`.
    pub fn wait(&self, ns: u64) -> Vec<(i32, i32)> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
        let n = self.waited(&mut events, ns);
        let mut told: Vec<_> = events[..n].iter().map(|one| (one.u64 as i32, one.events as i32)).collect();
        told.sort_unstable();
        told
    }

    /// The one that a wait tells of which has room for no more.
    pub fn first(&self, ns: u64) -> Option<(i32, i32)> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; 1];
        (self.waited(&mut events, ns) == 1).then(|| (events[0].u64 as i32, events[0].events as i32))
    }

    /// How a wait ends that has room for one.
    pub fn ends(&self, ns: u64) -> Res<usize> {
        self.result(&mut [libc::epoll_event { events: 0, u64: 0 }], ns)
    }

    fn waited(&self, events: &mut [libc::epoll_event], ns: u64) -> usize {
        self.result(events, ns).expect("a set")
    }

    fn result(&self, events: &mut [libc::epoll_event], ns: u64) -> Res<usize> {
        let mut real = |ns| sys::epoll_for(self.fd, events, Some(ns), core::ptr::null());
        let Entry::Set(set) = table::look(self.fd) else { return real(ns) };
        if let Some(kernels) = epoll::kernels(set) {
            let told = real(ns)?;
            kernels.returned();
            if kernels.is_all(told as i32, events.len() as i32) {
                return Ok(told);
            }
            if let Some(n) = kernels.end(&mut events[..told]) {
                return Ok(n);
            }
        }
        epoll::wait(set, self.fd, events, Some(ns), core::ptr::null())
    }
}

impl Drop for Epoll {
    fn drop(&mut self) {
        conn::close(self.fd);
        // SAFETY: it is ours.
        unsafe { libc::close(self.fd) };
    }
}
