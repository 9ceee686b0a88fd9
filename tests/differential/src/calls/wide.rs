//! Looks and waits of several descriptors at once, of several threads at one, and of sets as descriptors.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{c_int, epoll_event, pollfd};
use serde::{Deserialize, Serialize};

use super::{LONG_MS, Said, close, errno, look_at_set, new_set, wait};
use crate::op::{LookBy, WaitBy};

/// Descriptors beside the connections: one end of a pipe in which there is a byte, and of one in which there never is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pipes {
    full: RawFd,
    pub quiet: RawFd,
}

impl Pipes {
    pub fn new() -> Self {
        let [full, quiet] = [(); 2].map(|()| {
            let mut ends = [-1; 2];
            // SAFETY: an array of ours.
            unsafe { libc::pipe(ends.as_mut_ptr()) };
            ends
        });
        // SAFETY: a byte of ours.
        unsafe { libc::write(full[1], b"f".as_ptr().cast(), 1) };
        Self { full: full[0], quiet: quiet[0] }
    }
}

/// What all descriptors show now: connections (-1 where there is none), then `listener`, then pipes.
pub fn look_at_all(by: LookBy, connections: &[RawFd], listener: RawFd, pipes: &Pipes) -> Said {
    let all: Vec<RawFd> = connections.iter().copied().chain([listener, pipes.full, pipes.quiet]).collect();
    let events = libc::POLLIN | libc::POLLOUT | libc::POLLPRI;
    match by {
        LookBy::AllSelect => selected(&all, true, 0),
        LookBy::AllEpoll => epolled(&all, libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLPRI, 0),
        _ => polled(&all, events, 0),
    }
}

/// Waits until one of the connections is readable.
pub fn wait_for_all(by: WaitBy, connections: &[RawFd], listener: RawFd, pipes: &Pipes, ms: u16) -> Said {
    let all: Vec<RawFd> = connections.iter().copied().chain([listener, pipes.quiet]).collect();
    match by {
        WaitBy::AllSelect => selected(&all, false, ms),
        WaitBy::AllEpoll => epolled(&all, libc::EPOLLIN, ms),
        _ => polled(&all, libc::POLLIN, ms),
    }
}

/// Four threads wait, and all must hear.
pub fn crowd(fd: RawFd, ms: u16) -> Said {
    let all = [WaitBy::Poll, WaitBy::Epoll, WaitBy::Select, WaitBy::EpollPwait2];
    let said = std::thread::scope(|scope| {
        let threads = all.map(|by| {
            scope.spawn(move || {
                super::hear_no_signals();
                wait(fd, by, ms)
            })
        });
        threads.map(|thread| thread.join().expect("it does not panic"))
    });
    Said::of(0).with(said.into_iter().flat_map(|one| [one.ret, one.errno.into()].into_iter().chain(one.more)))
}

fn polled(all: &[RawFd], events: i16, ms: u16) -> Said {
    let mut entries: Vec<pollfd> = all.iter().map(|&fd| pollfd { fd, events, revents: 0 }).collect();
    // SAFETY: the vector.
    let n = unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, ms.into()) };
    Said::from(n).with(entries.iter().map(|entry| entry.revents.into()))
}

fn selected(all: &[RawFd], for_room: bool, ms: u16) -> Said {
    let mut most = libc::timeval { tv_sec: (ms / 1000).into(), tv_usec: i64::from(ms % 1000) * 1000 };
    // SAFETY: all-zero bytes are empty sets; FD_SET stays inside, as these programs have few descriptors.
    unsafe {
        let mut sets: [libc::fd_set; 3] = MaybeUninit::zeroed().assume_init();
        for &fd in all.iter().filter(|&&fd| fd >= 0) {
            assert!((fd as usize) < libc::FD_SETSIZE, "few descriptors");
            sets.iter_mut().for_each(|set| libc::FD_SET(fd, set));
        }
        let [read, write, other] = &mut sets;
        let write: *mut libc::fd_set = if for_room { write } else { null_mut() };
        let highest = all.iter().copied().max().unwrap_or(-1);
        let n = libc::select(highest + 1, read, write, other, &raw mut most);
        let is_in = |set: &libc::fd_set, fd: RawFd| i64::from(n > 0 && fd >= 0 && libc::FD_ISSET(fd, set));
        let shown = if for_room { 3 } else { 1 };
        Said::from(n).with(all.iter().flat_map(|&fd| sets[..shown].iter().map(move |set| is_in(set, fd))))
    }
}

fn epolled(all: &[RawFd], events: c_int, ms: u16) -> Said {
    let set = new_set();
    for (number, &fd) in all.iter().enumerate().filter(|&(_, &fd)| fd >= 0) {
        let mut event = epoll_event { events: events as u32, u64: number as u64 };
        // SAFETY: an event of ours.
        unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event) };
    }
    let said = told(set, ms);
    close(set);
    said
}

/// What a set tells of within so many milliseconds.
fn told(set: RawFd, ms: u16) -> Said {
    let mut events = [epoll_event { events: 0, u64: 0 }; 16];
    // SAFETY: an array of ours.
    let n = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 16, ms.into()) };
    if n < 0 {
        return Said { ret: -1, errno: errno(), more: Vec::new() };
    }
    let mut all: Vec<[i64; 2]> =
        events[..n as usize].iter().map(|one| [{ one.u64 } as i64, { one.events } as i64]).collect();
    all.sort_unstable();
    Said::of(n.into()).with(all.into_iter().flatten())
}

/// What a set shows as a descriptor: by poll(2), or within another set, and then itself.
pub fn look_at_set_as(by: LookBy, set: RawFd) -> Said {
    let shown = if by == LookBy::Nested {
        epolled(&[set], libc::EPOLLIN, 0)
    } else {
        polled(&[set], libc::POLLIN, 0)
    };
    let told = look_at_set(set);
    shown.with([told.ret]).with(told.more)
}

/// A wait of a thread, which nobody has to end.
pub fn begin_to_wait(by: WaitBy, fd: RawFd, all: &[RawFd], others: [RawFd; 2], pipes: &Pipes) -> Said {
    let [listener, set] = others;
    match by {
        WaitBy::Set => told(set, LONG_MS),
        by if by.is_of_all() => wait_for_all(by, all, listener, pipes, LONG_MS),
        by => wait(fd, by, LONG_MS),
    }
}

/// Ends a wait on the set.
pub fn rouse(set: RawFd, pipes: &Pipes) {
    let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
    // SAFETY: an event of ours.
    unsafe { libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, pipes.full, &raw mut event) };
}

/// Lowers the soft limit of descriptors, or puts it back: what the call says, and how the first call fails for which there is no number.
pub fn few(on: bool) -> Said {
    const FEW: libc::rlim_t = 64;
    static BEFORE: AtomicU64 = AtomicU64::new(0);
    // SAFETY: a limit of ours; descriptors that are closed again at once.
    unsafe {
        let mut limit: libc::rlimit = MaybeUninit::zeroed().assume_init();
        libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit);
        if on && limit.rlim_cur > FEW {
            BEFORE.store(limit.rlim_cur, Ordering::Relaxed);
            limit.rlim_cur = FEW;
        } else if !on && limit.rlim_cur == FEW {
            limit.rlim_cur = BEFORE.load(Ordering::Relaxed);
        }
        let said = Said::from(libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit));
        let mut made = Vec::new();
        while made.len() < FEW as usize {
            let fd = libc::dup(0);
            if fd < 0 {
                break;
            }
            made.push(fd);
        }
        let error = if made.len() < FEW as usize { errno() } else { 0 };
        made.into_iter().for_each(close);
        said.with([error.into()])
    }
}
