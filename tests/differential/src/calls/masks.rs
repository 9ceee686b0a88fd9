//! Waits with a mask of signals, and those that a timer's descriptor ends.

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicI64, Ordering};

use libc::{c_int, epoll_event, pollfd, sigset_t, timespec};

use super::waits::{LONG_MS, epoll_pwait2};
use super::{Said, close, errno, new_set};
use crate::op::{Mask, MaskBy, WaitBy};

/// When the signal comes that comes within a wait.
const COMES_US: i64 = 3000;

static RAN: AtomicI64 = AtomicI64::new(0);

extern "C" fn count(_: c_int) {
    RAN.fetch_add(1, Ordering::Relaxed);
}

/// Puts another one in place of SIGALRM's handler, which interrupts waits, and starts or stops its timer.
fn alarm(us: i64) {
    let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
    let timer = libc::itimerval { it_interval: none, it_value: libc::timeval { tv_sec: 0, tv_usec: us } };
    // SAFETY: memory of ours; the handler counts.
    unsafe {
        let mut action: libc::sigaction = MaybeUninit::zeroed().assume_init();
        action.sa_sigaction = count as *const () as usize;
        libc::sigaction(libc::SIGALRM, &raw const action, null_mut());
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, null_mut());
    }
}

/// A wait in which SIGALRM is blocked or not, as `mask` says: what it says, and where the signal was sure to come, whether its handler ran
/// and whether it is still pending.
pub fn wait_masked(fd: RawFd, by: MaskBy, mask: Mask, ms: u16) -> Said {
    // SAFETY: memory of ours.
    unsafe {
        let (mut alarm_only, mut before): (sigset_t, sigset_t) =
            (MaybeUninit::zeroed().assume_init(), MaybeUninit::zeroed().assume_init());
        libc::sigaddset(&raw mut alarm_only, libc::SIGALRM);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const alarm_only, &raw mut before);
        let mut within = before;
        libc::sigdelset(&raw mut within, libc::SIGALRM);
        if mask == Mask::Kept {
            libc::sigaddset(&raw mut within, libc::SIGALRM);
        }
        RAN.store(0, Ordering::Relaxed);
        alarm(if mask == Mask::Pending { 0 } else { COMES_US });
        if mask == Mask::Pending {
            libc::raise(libc::SIGALRM);
        }
        let said = wait(fd, by, &within, if mask == Mask::Comes { LONG_MS } else { ms });
        let ran = RAN.load(Ordering::Relaxed);
        alarm(0);
        let mut pending: sigset_t = MaybeUninit::zeroed().assume_init();
        libc::sigpending(&raw mut pending);
        let is_pending = libc::sigismember(&raw const pending, libc::SIGALRM);
        let at_once = timespec { tv_sec: 0, tv_nsec: 0 };
        libc::sigtimedwait(&raw const alarm_only, null_mut(), &raw const at_once);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, null_mut());
        let is_sure = mask == Mask::Pending || mask == Mask::Comes && said.ret < 0;
        said.with(if is_sure { vec![ran, is_pending.into()] } else { vec![] })
    }
}

/// # Safety
/// `mask` is one.
unsafe fn wait(fd: RawFd, by: MaskBy, mask: &sigset_t, ms: u16) -> Said {
    let most = timespec { tv_sec: (ms / 1000).into(), tv_nsec: i64::from(ms % 1000) * 1_000_000 };
    // SAFETY: memory of ours.
    unsafe {
        match by {
            MaskBy::Ppoll => {
                let mut one = pollfd { fd, events: libc::POLLIN, revents: 0 };
                Said::from(libc::ppoll(&raw mut one, 1, &raw const most, mask)).with([one.revents.into()])
            }
            MaskBy::PpollBeside => {
                let quiet = libc::eventfd(0, libc::EFD_CLOEXEC);
                let mut both = [quiet, fd].map(|fd| pollfd { fd, events: libc::POLLIN, revents: 0 });
                let said = Said::from(libc::ppoll(both.as_mut_ptr(), 2, &raw const most, mask));
                close(quiet);
                said.with(both.map(|one| i64::from(one.revents)))
            }
            MaskBy::Pselect => {
                let mut set: libc::fd_set = MaybeUninit::zeroed().assume_init();
                assert!((fd as usize) < libc::FD_SETSIZE, "few descriptors");
                libc::FD_SET(fd, &raw mut set);
                let (read, none) = (&raw mut set, null_mut());
                let n = libc::pselect(fd + 1, read, none, none, &raw const most, mask);
                Said::from(n).with([i64::from(n > 0 && libc::FD_ISSET(fd, read))])
            }
            MaskBy::EpollPwait | MaskBy::EpollPwait2 => {
                let set = new_set();
                let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: 0x77 };
                let mut told = epoll_event { events: 0, u64: 0 };
                libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event);
                let n = if by == MaskBy::EpollPwait {
                    libc::epoll_pwait(set, &raw mut told, 1, ms.into(), mask)
                } else {
                    epoll_pwait2(set, &raw mut told, 1, &raw const most, mask)
                };
                let kept = errno();
                close(set);
                let said =
                    if n < 0 { Said { ret: -1, errno: kept, more: Vec::new() } } else { Said::of(n.into()) };
                said.with([{ told.events } as i64])
            }
        }
    }
}

/// A descriptor that is readable after so many milliseconds.
pub(super) fn timer(ms: u16) -> RawFd {
    let none = timespec { tv_sec: 0, tv_nsec: 0 };
    let value = timespec { tv_sec: (ms / 1000).into(), tv_nsec: i64::from(ms % 1000) * 1_000_000 };
    let value = libc::itimerspec { it_interval: none, it_value: value };
    // SAFETY: a time of ours.
    unsafe {
        let timer = libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC | libc::TFD_NONBLOCK);
        libc::timerfd_settime(timer, 0, &raw const value, null_mut());
        timer
    }
}

/// A wait that a timer ends after `ms`: what the connection shows, else whether the timer has gone off.
pub(super) fn wait_beside_timer(fd: RawFd, by: WaitBy, ms: u16) -> Said {
    let timer = timer(ms);
    let most_ms = c_int::from(LONG_MS);
    // SAFETY: memory of ours.
    let (n, shown, is_over) = unsafe {
        if by == WaitBy::TimerPoll {
            let mut all = [timer, fd].map(|fd| pollfd { fd, events: libc::POLLIN, revents: 0 });
            let n = libc::poll(all.as_mut_ptr(), 2, most_ms);
            (n, i64::from(all[1].revents), all[0].revents != 0)
        } else {
            let set = new_set();
            for (data, fd) in [(1, timer), (2, fd)] {
                let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: data };
                libc::epoll_ctl(set, libc::EPOLL_CTL_ADD, fd, &raw mut event);
            }
            let mut told = [epoll_event { events: 0, u64: 0 }; 2];
            let n = libc::epoll_wait(set, told.as_mut_ptr(), 2, most_ms);
            let kept = errno();
            close(set);
            *libc::__errno_location() = kept;
            let of = |data| told[..n.max(0) as usize].iter().find(|one| { one.u64 } == data);
            (n, of(2).map_or(0, |one| i64::from(one.events)), of(1).is_some())
        }
    };
    let said = if n < 0 { Said::failed() } else { Said::of(n.signum().into()) };
    close(timer);
    said.with([shown, i64::from(is_over && shown == 0)])
}
