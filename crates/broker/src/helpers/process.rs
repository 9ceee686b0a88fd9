//! A helper as a process: forked, so that it needs no program to be found and has what rights the broker has; and holding
//! nothing of the broker's but its end of their channel, for it may be there longer than the broker.

use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A helper process.
pub struct Process {
    pid: Pid,
    /// The broker's end of the channel, which does not wait.
    pub channel: OwnedFd,
}

impl Process {
    /// Starts one that does `body` and ends. It keeps the descriptors `kept`.
    pub fn start(kept: &[BorrowedFd<'_>], body: impl FnOnce(OwnedFd)) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let (channel, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::io::ioctl_fionbio(&channel, true)?;
        let parent = rustix::process::getpid();
        // SAFETY: the child goes on with this thread only. It calls what may be called after the fork of a process that has
        // other threads: system calls, and libc's allocator, whose locks its fork() sees to.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    settle(parent, kept.iter().chain([&theirs.as_fd()]).map(|fd| fd.as_raw_fd()).collect());
                    body(theirs);
                }));
                // SAFETY: ends the process at once; nothing of the broker's is flushed or dropped twice.
                unsafe { libc::_exit(i32::from(outcome.is_err())) }
            }
            pid => {
                let pid = Pid::from_raw(pid).ok_or(io::ErrorKind::InvalidData)?;
                Ok(Self { pid, channel })
            }
        }
    }

    /// Ends it, as soon as the kernel lets it.
    pub fn kill(&self) {
        let _ = kill_process(self.pid, Signal::KILL);
    }

    /// Whether it has ended and nothing is left of it.
    pub fn is_gone(&self) -> bool {
        !matches!(waitpid(Some(self.pid), WaitOptions::NOHANG), Ok(None))
    }
}

/// In the child: ends with its parent, and lets go of what is the parent's.
fn settle(parent: Pid, mut kept: Vec<RawFd>) {
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if rustix::process::getppid() != Some(parent) {
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(1) };
    }
    let _ = rustix::thread::set_name(c"shunpike-helper");
    kept.extend([0, 1, 2]);
    kept.sort_unstable();
    let ends = kept.iter().skip(1).map(|fd| fd - 1).chain([RawFd::MAX]);
    for (first, last) in kept.iter().map(|fd| fd + 1).zip(ends).filter(|(first, last)| first <= last) {
        close_range(first, last);
    }
}

fn close_range(first: RawFd, last: RawFd) {
    // SAFETY: the descriptors are copies in this process, which nothing here uses any more.
    let rc = unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) };
    if rc == 0 {
        return;
    }
    // Before Linux 5.9.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1 << 20);
    for fd in first..=last.min(RawFd::try_from(limit).unwrap_or(RawFd::MAX)) {
        // SAFETY: as above.
        unsafe { libc::close(fd) };
    }
}

/// Whether a failure to send means that the helper at the other end is gone.
pub fn is_final(errno: Errno) -> bool {
    matches!(errno, Errno::PIPE | Errno::CONNRESET | Errno::NOTCONN | Errno::CONNREFUSED)
}
