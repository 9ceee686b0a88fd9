//! Calls by which a connection comes to another number or another process.

use std::ffi::CString;
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;
use std::ptr::{null, null_mut};

use libc::c_int;

use super::{Said, close, errno, message, vector};
use crate::op::Child;

/// The descriptor under another number, and the first one closed.
pub fn dup(fd: RawFd) -> (Said, RawFd) {
    // SAFETY: no memory is passed.
    let other = unsafe { libc::dup(fd) };
    if other >= 0 {
        close(fd);
    }
    (Said::of(i64::from(other >= 0)), other)
}

/// The descriptor as number `to`, by dup2(2) or dup3(2), and its own number closed.
pub fn dup_over(fd: RawFd, to: RawFd) -> Said {
    // SAFETY: no memory is passed.
    let other = unsafe { if to % 2 == 0 || fd == to { libc::dup2(fd, to) } else { libc::dup3(fd, to, 0) } };
    if other >= 0 && other != fd {
        close(fd);
    }
    if other == to { Said::of(1) } else { Said::failed() }
}

/// The descriptor under the next free number from `from` on, by F_DUPFD, and the first one closed.
pub fn dup_next(fd: RawFd, from: RawFd) -> (Said, RawFd) {
    // SAFETY: no memory is passed.
    let other = unsafe { libc::fcntl(fd, libc::F_DUPFD, from) };
    if other >= 0 {
        close(fd);
    }
    (Said::of(i64::from(other >= from)), other)
}

/// Where the two processes of a side have the socket that joins them.
pub const JOINT: RawFd = 200;

/// A message with the descriptor `fd`, over the UNIX socket `to`. Says whether.
pub fn give(to: RawFd, fd: RawFd) -> bool {
    let mut parts = vector(b"fd");
    let mut control = [0u64; 4];
    let mut header = message(&mut parts, &mut control);
    // SAFETY: there is room for one descriptor in `control`, which outlives the call.
    unsafe {
        header.msg_controllen = libc::CMSG_SPACE(4) as _;
        let one = libc::CMSG_FIRSTHDR(&raw const header);
        (*one).cmsg_level = libc::SOL_SOCKET;
        (*one).cmsg_type = libc::SCM_RIGHTS;
        (*one).cmsg_len = libc::CMSG_LEN(4) as _;
        libc::CMSG_DATA(one).cast::<c_int>().write_unaligned(fd);
        libc::sendmsg(to, &raw const header, 0) == 2
    }
}

/// The descriptor that such a message brings, -1 if none.
pub fn take(from: RawFd) -> RawFd {
    let mut bytes = [0u8; 2];
    let mut parts = [libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() }];
    let mut control = [0u64; 4];
    loop {
        let mut header = message(&mut parts, &mut control);
        // SAFETY: as above; the kernel has filled the header's own buffer.
        let (n, one) = unsafe {
            let n = libc::recvmsg(from, &raw mut header, 0);
            (n, libc::CMSG_FIRSTHDR(&raw const header))
        };
        match n {
            // A program's signals come when they like,
            -1 if errno() == libc::EINTR => {}
            ..=0 => return -1,
            // and a word may still be there for a call that was over before it came.
            _ if one.is_null() => {}
            // SAFETY: a descriptor, as `give` sends it.
            _ => return unsafe { libc::CMSG_DATA(one).cast::<c_int>().read_unaligned() },
        }
    }
}

/// The descriptor under another number, brought by a message of this process to itself, and the first one closed.
pub fn pass(fd: RawFd) -> (Said, RawFd) {
    let mut pair = [-1; 2];
    // SAFETY: an array of ours.
    unsafe { libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0, pair.as_mut_ptr()) };
    let other = if give(pair[0], fd) { take(pair[1]) } else { -1 };
    for end in pair {
        close(end);
    }
    if other >= 0 {
        close(fd);
    }
    (Said::of(i64::from(other >= 0)), other)
}

/// This program anew, as an actor that goes on from `state`. Returns where that failed.
pub fn exec(state: &str) -> Said {
    let own = std::env::current_exe().ok().and_then(|own| CString::new(own.into_os_string().into_vec()).ok());
    let (Some(own), Ok(state)) = (own, CString::new(state)) else { return Said::of(-1) };
    // SAFETY: strings of ours.
    unsafe {
        libc::execl(own.as_ptr(), c"differential".as_ptr(), c"actor".as_ptr(), state.as_ptr(), null::<u8>());
    }
    Said::failed()
}

/// Another program's exit status, started by posix_spawn(3).
fn spawn() -> Said {
    let mut pid = 0;
    let argv = [c"true".as_ptr().cast_mut(), null_mut()];
    let environment = [null_mut()];
    // SAFETY: strings of ours.
    unsafe {
        let path = c"/bin/true".as_ptr();
        let rc = libc::posix_spawn(&raw mut pid, path, null(), null(), argv.as_ptr(), environment.as_ptr());
        let mut status = -1;
        let waited = if rc == 0 { libc::waitpid(pid, &raw mut status, 0) } else { -1 };
        Said::of(i64::from(rc == 0 && waited == pid)).with([status.into()])
    }
}

/// Another program's exit status, started by vfork(2).
fn vforked() -> Said {
    // SAFETY: strings of ours; until its exec the child does nothing but ask for it.
    unsafe {
        #[expect(deprecated, reason = "programs call it, and its hook is what is tested")]
        let pid = libc::vfork();
        if pid == 0 {
            libc::execl(c"/bin/true".as_ptr(), c"true".as_ptr(), null::<u8>());
            libc::_exit(99);
        }
        let mut status = 0;
        let waited = libc::waitpid(pid, &raw mut status, 0);
        Said::of(i64::from(waited == pid)).with([status.into()])
    }
}

/// A child that does something with the connection `fd` and ends: its exit status.
pub fn fork(fd: RawFd, child: Child, bytes: &[u8], all: &[RawFd], set: RawFd) -> Said {
    match child {
        Child::Spawns => return spawn(),
        Child::Vforks => return vforked(),
        _ => {}
    }
    // SAFETY: between fork and exit the child makes calls on memory that was there before, and allocates nothing.
    unsafe {
        let pid = libc::fork();
        if pid == 0 {
            let mut some = [0u8; 16];
            let status = match child {
                Child::Exits | Child::Spawns | Child::Vforks => 0,
                Child::Closes => all.iter().map(|&one| libc::close(one)).sum(),
                Child::Sends => libc::send(
                    fd,
                    bytes.as_ptr().cast(),
                    bytes.len(),
                    libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT,
                ) as c_int,
                Child::Receives => libc::recv(fd, some.as_mut_ptr().cast(), 10, libc::MSG_DONTWAIT) as c_int,
                Child::ReceivesAndCloses => {
                    let got = libc::recv(fd, some.as_mut_ptr().cast(), 10, libc::MSG_DONTWAIT) as c_int;
                    libc::close(fd);
                    got
                }
                Child::Looks => {
                    let mut one = libc::pollfd {
                        fd,
                        events: libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDHUP,
                        revents: 0,
                    };
                    libc::poll(&raw mut one, 1, 0);
                    // POLLRDHUP is 0x2000.
                    c_int::from(one.revents | one.revents >> 6)
                }
                Child::LooksAtSet => {
                    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 8];
                    let n = libc::epoll_wait(set, events.as_mut_ptr(), 8, 0);
                    events[..n.max(0) as usize].iter().fold(n << 6, |sum, one| sum ^ one.events as c_int)
                }
                Child::Execs => {
                    libc::execl(c"/bin/true".as_ptr(), c"true".as_ptr(), null::<u8>());
                    99
                }
            };
            libc::_exit(status & 0xff);
        }
        let mut status = 0;
        let waited = libc::waitpid(pid, &raw mut status, 0);
        Said::of(i64::from(waited == pid)).with([status.into()])
    }
}
