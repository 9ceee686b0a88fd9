//! Calls that look at a connection, and those that wait for it.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::{null, null_mut};

use libc::{c_int, epoll_event, pollfd};

use super::{Said, errno, get, set};
use crate::op::{LookBy, WaitBy};

/// include/uapi/asm-generic/sockios.h
const SIOCATMARK: libc::c_ulong = 0x8905;

pub(super) fn raw(number: i64, a: i64, b: i64, c: i64, d: i64, e: i64, f: i64) -> i64 {
    let result;
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a wait, with memory that its caller keeps.
    unsafe {
        std::arch::asm!(
            "syscall", inlateout("rax") number => result, in("rdi") a, in("rsi") b, in("rdx") c, in("r10") d, in("r8") e,
            in("r9") f, out("rcx") _, out("r11") _, options(nostack)
        );
    }
    result
}

pub fn new_set() -> RawFd {
    // SAFETY: no memory is passed.
    unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) }
}

/// What a set says now, in the order of the data words: the kernel's own order is by arrival.
pub fn look_at_set(set: RawFd) -> Said {
    let mut events = [epoll_event { events: 0, u64: 0 }; 16];
    // SAFETY: an array of ours.
    let n = unsafe { libc::epoll_wait(set, events.as_mut_ptr(), 16, 0) };
    if n < 0 {
        return Said::failed();
    }
    let mut all: Vec<[i64; 2]> =
        events[..n as usize].iter().map(|one| [{ one.u64 } as i64, { one.events } as i64]).collect();
    all.sort_unstable();
    Said::of(n.into()).with(all.into_iter().flatten())
}

pub fn look(fd: RawFd, by: LookBy) -> Said {
    match by {
        LookBy::Fionread => {
            let mut bytes = -1i32;
            // SAFETY: an int of ours.
            let rc = unsafe { libc::ioctl(fd, libc::FIONREAD, &raw mut bytes) };
            Said::from(rc).with([bytes.into()])
        }
        LookBy::Poll => polled(fd, libc::POLLIN | libc::POLLOUT | libc::POLLPRI),
        LookBy::PollRdhup => polled(fd, libc::POLLIN | libc::POLLRDHUP),
        LookBy::Select => selected(fd, None),
        LookBy::SoError => Said::of(get(fd, libc::SOL_SOCKET, libc::SO_ERROR)),
        LookBy::Peek => {
            let mut byte = 0u8;
            // SAFETY: a byte of ours.
            let n = unsafe { libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK | libc::MSG_DONTWAIT) };
            Said::from(n as i64).with([byte.into()])
        }
        LookBy::RecvNothing => {
            // SAFETY: nothing is written.
            Said::from(unsafe { libc::recv(fd, null_mut(), 0, libc::MSG_DONTWAIT) } as i64)
        }
        LookBy::AtMark => {
            let mut at = -1i32;
            // SAFETY: an int of ours.
            let rc = unsafe { libc::ioctl(fd, SIOCATMARK, &raw mut at) };
            Said::from(rc).with([at.into()])
        }
        LookBy::Names => {
            let options = [
                libc::SO_TYPE,
                libc::SO_DOMAIN,
                libc::SO_PROTOCOL,
                libc::SO_ACCEPTCONN,
                libc::SO_KEEPALIVE,
                libc::SO_RCVLOWAT,
            ];
            let socket = options.map(|name| get(fd, libc::SOL_SOCKET, name));
            let tcp = [libc::TCP_NODELAY, libc::TCP_CORK, libc::TCP_KEEPIDLE, libc::TCP_KEEPINTVL]
                .map(|name| get(fd, libc::IPPROTO_TCP, name));
            Said::of(0).with(socket.into_iter().chain(tcp))
        }
        LookBy::Peers => Said::of(0).with([false, true].into_iter().flat_map(|of_peer| name(fd, of_peer))),
        LookBy::Urgents => Said::of(super::urgents()),
        LookBy::Arrivals
        | LookBy::Flags
        | LookBy::Refused
        | LookBy::Errors
        | LookBy::SendNothing
        | LookBy::TcpState
        | LookBy::PollEach
        | LookBy::Kinds
        | LookBy::CloseOnExec
        | LookBy::Empty
        | LookBy::Faults
        | LookBy::Unsent
        | LookBy::Figures
        | LookBy::Mapped => super::odd::look(fd, by),
        LookBy::Epoll
        | LookBy::Set
        | LookBy::Nested
        | LookBy::AllPoll
        | LookBy::AllSelect
        | LookBy::AllEpoll => Said::of(-1),
    }
}

/// An address without its port: the call's result, its length, family, and a hash.
fn name(fd: RawFd, of_peer: bool) -> [i64; 4] {
    let mut at = [0u8; 128];
    let mut len = at.len() as libc::socklen_t;
    // SAFETY: memory of ours.
    let rc = unsafe {
        let to = at.as_mut_ptr().cast();
        if of_peer {
            libc::getpeername(fd, to, &raw mut len)
        } else {
            libc::getsockname(fd, to, &raw mut len)
        }
    };
    let error = if rc < 0 { errno() } else { 0 };
    [error.into(), len.into(), at[0].into(), super::hashed(&at[4..len.clamp(4, 28) as usize])]
}

fn polled(fd: RawFd, events: i16) -> Said {
    let mut one = pollfd { fd, events, revents: 0 };
    // SAFETY: one entry, ours.
    let n = unsafe { libc::poll(&raw mut one, 1, 0) };
    Said::from(n).with([one.revents.into()])
}

// SAFETY: glibc 2.35's function, of this signature; the libc crate does not have it.
unsafe extern "C" {
    /// epoll_pwait2(2)
    pub(super) fn epoll_pwait2(
        set: c_int,
        events: *mut epoll_event,
        room: c_int,
        most: *const libc::timespec,
        mask: *const libc::sigset_t,
    ) -> c_int;
}

/// A look at all that select(2) shows, or with `ms` a wait for bytes.
fn selected(fd: RawFd, ms: Option<u16>) -> Said {
    // SAFETY: all-zero bytes are empty sets; FD_SET stays inside, as these programs have few descriptors.
    unsafe {
        let mut sets: [libc::fd_set; 3] = MaybeUninit::zeroed().assume_init();
        assert!((fd as usize) < libc::FD_SETSIZE, "few descriptors");
        libc::FD_SET(fd, &raw mut sets[0]);
        if ms.is_none() {
            libc::FD_SET(fd, &raw mut sets[1]);
            libc::FD_SET(fd, &raw mut sets[2]);
        }
        let ms = ms.unwrap_or(0);
        let mut most = libc::timeval { tv_sec: (ms / 1000).into(), tv_usec: i64::from(ms % 1000) * 1000 };
        let [read, write, except] = &mut sets;
        let n = libc::select(fd + 1, read, write, except, &raw mut most);
        // After an error they are as before, and tell nothing.
        Said::from(n).with(sets.iter().map(|set| i64::from(n >= 0 && libc::FD_ISSET(fd, set))))
    }
}

/// A wait that nobody ends does so by itself, so that a hang says so.
pub const LONG_MS: u16 = 5000;

/// A wait of `ms` milliseconds at most; what receives has that from the socket's own option.
pub fn wait_at_most(fd: RawFd, by: WaitBy, ms: u16) -> Said {
    let receives = matches!(by, WaitBy::Recv | WaitBy::Read | WaitBy::PeekAll);
    let limit = |ms: u16| {
        let (seconds, rest) = (ms / 1000, ms % 1000);
        libc::timeval { tv_sec: seconds.into(), tv_usec: i64::from(rest) * 1000 }
    };
    if receives {
        set(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, limit(ms));
    }
    let said = wait(fd, by, ms);
    if receives {
        set(fd, libc::SOL_SOCKET, libc::SO_RCVTIMEO, limit(0));
    }
    said
}

/// A wait that a signal interrupts after 5 ms, or one of those that follow where the wait had not begun.
pub fn wait_for_alarm(fd: RawFd, by: WaitBy) -> Said {
    extern "C" fn nothing(_: c_int) {}
    let timer = |us| libc::itimerval {
        it_interval: libc::timeval { tv_sec: 0, tv_usec: us },
        it_value: libc::timeval { tv_sec: 0, tv_usec: us },
    };
    // SAFETY: memory of ours; the handler does nothing.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGALRM, &raw const action, null_mut());
        libc::setitimer(libc::ITIMER_REAL, &timer(5000), null_mut());
    }
    let said = wait(fd, by, LONG_MS);
    // SAFETY: as above.
    unsafe { libc::setitimer(libc::ITIMER_REAL, &timer(0), null_mut()) };
    said
}

/// Signals are not for the calling thread.
pub fn hear_no_signals() {
    // SAFETY: a set of ours.
    unsafe {
        let mut all: libc::sigset_t = MaybeUninit::zeroed().assume_init();
        let signals =
            [libc::SIGALRM, libc::SIGURG, libc::SIGUSR1, libc::SIGIO, super::handlers::own_signal()];
        for signal in signals {
            libc::sigaddset(&raw mut all, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, null_mut());
    }
}

/// CPU time of the calling thread, nanoseconds.
pub fn cpu_ns() -> u64 {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a time of ours.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut at) };
    at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64
}

/// Where the driver says that the second call of a pair is to be made, and hears that it has been.
pub const GO: RawFd = 201;

pub fn await_go() {
    let mut byte = 0u8;
    // SAFETY: a byte of ours.
    unsafe { libc::read(GO, (&raw mut byte).cast(), 1) };
}

pub fn say_done() {
    // SAFETY: a byte of ours.
    unsafe { libc::write(GO, b"d".as_ptr().cast(), 1) };
}

/// Where a call that is to be cut begins and ends, for who traces this process.
pub fn mark() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a trap that the tracer takes; nobody asks for marks without one.
    unsafe {
        std::arch::asm!("int3")
    };
}

/// Waits until the connection is readable, or has brought a byte.
pub fn wait(fd: RawFd, by: WaitBy, ms: u16) -> Said {
    let most_ms = c_int::from(ms);
    let mut byte = 0u8;
    let mut one = pollfd { fd, events: libc::POLLIN, revents: 0 };
    let most = libc::timespec { tv_sec: (ms / 1000).into(), tv_nsec: i64::from(ms % 1000) * 1_000_000 };
    // SAFETY: memory of ours, which outlives each call.
    unsafe {
        match by {
            WaitBy::Recv => {
                Said::from(libc::recv(fd, (&raw mut byte).cast(), 1, 0) as i64).with([byte.into()])
            }
            WaitBy::Read => Said::from(libc::read(fd, (&raw mut byte).cast(), 1) as i64).with([byte.into()]),
            WaitBy::PeekAll => Said::from(libc::recv(fd, (&raw mut byte).cast(), 1, libc::MSG_PEEK) as i64)
                .with([byte.into()]),
            WaitBy::Poll => Said::from(libc::poll(&raw mut one, 1, most_ms)).with([one.revents.into()]),
            WaitBy::Urgent => {
                one.events = libc::POLLPRI;
                Said::from(libc::poll(&raw mut one, 1, most_ms)).with([one.revents.into()])
            }
            WaitBy::Ppoll => {
                Said::from(libc::ppoll(&raw mut one, 1, &raw const most, null())).with([one.revents.into()])
            }
            WaitBy::RawPoll => {
                let n = raw(libc::SYS_poll, (&raw mut one) as i64, 1, most_ms.into(), 0, 0, 0);
                Said::of(n).with([one.revents.into()])
            }
            WaitBy::Crowd => super::wide::crowd(fd, ms),
            WaitBy::Timer | WaitBy::TimerPoll => super::masks::wait_beside_timer(fd, by, ms),
            WaitBy::AllPoll | WaitBy::AllSelect | WaitBy::AllEpoll | WaitBy::Set => Said::of(-1),
            WaitBy::Select => selected(fd, Some(ms)),
            WaitBy::Pselect => {
                let mut set: libc::fd_set = MaybeUninit::zeroed().assume_init();
                assert!((fd as usize) < libc::FD_SETSIZE, "few descriptors");
                libc::FD_SET(fd, &raw mut set);
                let (read, none) = (&raw mut set, null_mut());
                let n = libc::pselect(fd + 1, read, none, none, &raw const most, null());
                Said::from(n).with([i64::from(n > 0 && libc::FD_ISSET(fd, read))])
            }
            WaitBy::Epoll | WaitBy::RawEpoll | WaitBy::EpollPwait | WaitBy::EpollPwait2 => {
                let set = new_set();
                let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: 0x77 };
                let mut told = epoll_event { events: 0, u64: 0 };
                libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event);
                let n = match by {
                    WaitBy::Epoll => libc::epoll_wait(set, &raw mut told, 1, most_ms).into(),
                    WaitBy::EpollPwait => libc::epoll_pwait(set, &raw mut told, 1, most_ms, null()).into(),
                    WaitBy::EpollPwait2 => {
                        epoll_pwait2(set, &raw mut told, 1, &raw const most, null()).into()
                    }
                    _ => raw(
                        libc::SYS_epoll_pwait,
                        set.into(),
                        (&raw mut told) as i64,
                        1,
                        most_ms.into(),
                        0,
                        8,
                    ),
                };
                let kept = errno();
                libc::close(set);
                let said =
                    if n == -1 { Said { ret: -1, errno: kept, more: Vec::new() } } else { Said::of(n) };
                said.with([{ told.u64 } as i64, { told.events } as i64])
            }
        }
    }
}
