//! A filter by which another process decides on system calls of the library's own.

use std::io::{Error, Result};
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;

use super::waits::{GO, raw};

/// What is asked about, where the library makes it. Which are its own, and not made for the program, is the driver's to tell.
const ASKED: [i64; 9] = [
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_create1,
    libc::SYS_eventfd2,
    libc::SYS_memfd_create,
    libc::SYS_mmap,
    libc::SYS_sendmsg,
    libc::SYS_recvmsg,
    libc::SYS_getsockopt,
    libc::SYS_ioctl,
];

/// Where the library's code is.
fn code() -> Option<(u64, u64)> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    maps.lines().filter(|line| line.contains("r-xp") && line.ends_with("/libshunpike.so")).find_map(|line| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
    })
}

/// Has the driver asked, from now on, about each such call of this process's library. Not by libc's names: a program that installs a filter
/// has no lanes.
pub fn have_driver_asked() {
    let said = match ask() {
        Ok(listener) => {
            send_listener(listener);
            super::close(listener);
            return;
        }
        Err(error) => error.to_string(),
    };
    // SAFETY: bytes of ours.
    unsafe { libc::write(GO, said.as_ptr().cast(), said.len()) };
}

/// A message of a byte with one descriptor, or with room for it.
fn with_message<T>(fd: RawFd, text: &mut [u8], what: impl FnOnce(&mut libc::msghdr) -> T) -> T {
    let mut part = libc::iovec { iov_base: text.as_mut_ptr().cast(), iov_len: text.len() };
    let mut space = MaybeUninit::<[u64; 4]>::zeroed();
    // SAFETY: all-zero is a message of nothing.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = space.as_mut_ptr().cast();
    // SAFETY: the macros look at `space`, which has room for one.
    unsafe {
        message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
        let header = libc::CMSG_FIRSTHDR(&raw const message);
        (*header).cmsg_level = libc::SOL_SOCKET;
        (*header).cmsg_type = libc::SCM_RIGHTS;
        (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
        libc::CMSG_DATA(header).cast::<RawFd>().write_unaligned(fd);
    }
    what(&mut message)
}

fn send_listener(listener: RawFd) {
    let message = |message: &mut libc::msghdr| {
        raw(libc::SYS_sendmsg, GO.into(), &raw mut *message as i64, 0, 0, 0, 0);
    };
    with_message(listener, &mut [0], message);
}

/// In the driver: what `have_driver_asked` has sent. Errors: what it said.
pub fn hear_listener(go: &UnixStream) -> std::result::Result<OwnedFd, String> {
    let mut text = [0; 200];
    let listener = with_message(-1, &mut text, |message| {
        // SAFETY: the message, which lives through the call.
        let n = unsafe { libc::recvmsg(go.as_raw_fd(), message, libc::MSG_CMSG_CLOEXEC) };
        // SAFETY: as the kernel left it.
        let header = unsafe { libc::CMSG_FIRSTHDR(&raw const *message) };
        (n == 1 && !header.is_null()).then(|| {
            // SAFETY: a message of one descriptor, which is ours alone.
            unsafe { OwnedFd::from_raw_fd(libc::CMSG_DATA(header).cast::<RawFd>().read_unaligned()) }
        })
    });
    listener.ok_or_else(|| String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned())
}

fn ask() -> Result<RawFd> {
    let missing = || Error::other("no code of the library is mapped");
    let (from, to) = code().ok_or_else(missing)?;
    if from >> 32 != to >> 32 {
        return Err(Error::other("the library lies across a border of 4 GiB"));
    }
    let put = |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let load = |at: u32| put(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at, 0, 0);
    let give = |what| put(libc::BPF_RET | libc::BPF_K, what, 0, 0);
    let jump = |how: u32, k: u64, jt: usize, jf: usize| {
        put(libc::BPF_JMP | how | libc::BPF_K, k as u32, jt as u8, jf as u8)
    };
    let n = ASKED.len();
    // struct seccomp_data: the number, and at 8 the address behind the call.
    let mut filter = vec![
        load(12),
        jump(libc::BPF_JEQ, from >> 32, 0, n + 4),
        load(8),
        jump(libc::BPF_JGE, from, 0, n + 2),
        jump(libc::BPF_JGT, to, n + 1, 0),
        load(0),
    ];
    filter.extend(ASKED.iter().enumerate().map(|(at, &call)| jump(libc::BPF_JEQ, call as u64, n - at, 0)));
    filter.push(give(libc::SECCOMP_RET_ALLOW));
    filter.push(give(libc::SECCOMP_RET_USER_NOTIF));
    install(&mut filter)
}

/// Whether this kernel lets one process answer for another's calls; asked in a thread of its own, which keeps the filter.
pub fn can_be_answered() -> Result<()> {
    let put = || {
        let give = libc::sock_filter {
            code: (libc::BPF_RET | libc::BPF_K) as u16,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        };
        super::close(install(&mut [give])?);
        Ok(())
    };
    std::thread::spawn(put).join().unwrap_or_else(|_| Err(Error::other("the attempt ended badly")))
}

fn install(filter: &mut [libc::sock_filter]) -> Result<RawFd> {
    const NO_NEW_PRIVS: i64 = libc::PR_SET_NO_NEW_PRIVS as i64;
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    let set = |flags: u64| {
        let mode = i64::from(libc::SECCOMP_SET_MODE_FILTER);
        raw(libc::SYS_seccomp, mode, flags as i64, &raw const program as i64, 0, 0, 0)
    };
    // Signals that can be handled do not end a call that is being answered (Linux 5.19).
    let killable = libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;
    let mut done = raw(libc::SYS_prctl, NO_NEW_PRIVS, 1, 0, 0, 0, 0);
    if done == 0 {
        done = set(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | killable);
    }
    if done == -i64::from(libc::EINVAL) {
        done = set(libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    }
    if done < 0 { Err(Error::from_raw_os_error(-done as i32)) } else { Ok(done as RawFd) }
}
