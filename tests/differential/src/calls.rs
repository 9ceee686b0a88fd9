//! The calls themselves, each with all that a program can see of its result.

mod exchange;
mod filter;
mod flood;
mod handlers;
mod lending;
mod masks;
mod moving;
mod odd;
mod ring;
mod times;
mod torrent;
mod waits;
mod wide;

use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr::null_mut;

use libc::{
    c_int, c_void, epoll_event, iovec, mmsghdr, msghdr, pollfd, sockaddr_in, sockaddr_in6, socklen_t,
};
use serde::{Deserialize, Serialize};

use crate::op::{End, Family, Opt, RecvBy, Registered, SendBy};

pub use exchange::Reader;
pub use filter::{can_be_answered, have_driver_asked, hear_listener};
pub use flood::{Room, drain};
pub use handlers::{arm, begin, heed, ran, urgents};
pub use lending::Lending;
pub use masks::wait_masked;
pub use moving::{JOINT, dup, dup_next, dup_over, exec, fork, give, pass, take};
pub use odd::PLAINS;
pub use times::{Timer, Times};
pub use torrent::torrent;
pub use waits::{
    GO, LONG_MS, await_go, hear_no_signals, look, look_at_set, mark, new_set, say_done, wait, wait_at_most,
    wait_for_alarm,
};
pub use wide::{Pipes, begin_to_wait, few, look_at_all, look_at_set_as, rouse, wait_for_all};

/// What a call said: its result, the error where it failed, and whatever else the program was given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Said {
    pub ret: i64,
    pub errno: i32,
    pub more: Vec<i64>,
}

impl Said {
    pub fn of(ret: i64) -> Self {
        Self { ret, errno: 0, more: Vec::new() }
    }

    pub fn failed() -> Self {
        Self { ret: -1, errno: errno(), more: Vec::new() }
    }

    fn from(ret: impl Into<i64>) -> Self {
        let ret = ret.into();
        if ret < 0 { Self::failed() } else { Self::of(ret) }
    }

    /// With the bytes that came.
    pub fn and_bytes(self, bytes: &[u8]) -> Self {
        self.with([hashed(bytes)])
    }

    fn with(mut self, more: impl IntoIterator<Item = i64>) -> Self {
        self.more.extend(more);
        self
    }
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

/// FNV-1a, on from `hash`.
pub fn hash(hash: u64, bytes: &[u8]) -> u64 {
    let begin = if hash == 0 { 0xcbf2_9ce4_8422_2325 } else { hash };
    bytes.iter().fold(begin, |hash, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

fn hashed(bytes: &[u8]) -> i64 {
    hash(0, bytes) as i64
}

fn address(port: u16) -> sockaddr_in {
    sockaddr_in {
        sin_family: libc::AF_INET as u16,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from_be_bytes([127, 0, 0, 1]).to_be() },
        sin_zero: [0; 8],
    }
}

const ADDRESS: socklen_t = size_of::<sockaddr_in>() as socklen_t;

fn address_v6(address: std::net::Ipv6Addr, port: u16) -> sockaddr_in6 {
    sockaddr_in6 {
        sin6_family: libc::AF_INET6 as u16,
        sin6_port: port.to_be(),
        sin6_flowinfo: 0,
        sin6_addr: libc::in6_addr { s6_addr: address.octets() },
        sin6_scope_id: 0,
    }
}

const ADDRESS_V6: socklen_t = size_of::<sockaddr_in6>() as socklen_t;

fn socket(family: c_int) -> RawFd {
    // SAFETY: no memory is passed.
    unsafe { libc::socket(family, libc::SOCK_STREAM, 0) }
}

/// A listening socket of IPv4 and one that takes both, and their ports; no port where there is no IPv6.
pub fn listen() -> ([RawFd; 2], [u16; 2]) {
    let fd = socket(libc::AF_INET);
    let mut at = address(0);
    let mut len = ADDRESS;
    // SAFETY: `at` and `len` are ours, of the sizes that are said.
    unsafe {
        assert_eq!(libc::bind(fd, (&raw const at).cast(), ADDRESS), 0, "bind");
        assert_eq!(libc::listen(fd, 64), 0, "listen");
        assert_eq!(libc::getsockname(fd, (&raw mut at).cast(), &raw mut len), 0, "getsockname");
    }
    let fd_v6 = socket(libc::AF_INET6);
    set(fd_v6, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 0);
    let mut at_v6 = address_v6(std::net::Ipv6Addr::UNSPECIFIED, 0);
    let mut len = ADDRESS_V6;
    // SAFETY: as above.
    let has_v6 = unsafe {
        libc::bind(fd_v6, (&raw const at_v6).cast(), ADDRESS_V6) == 0
            && libc::listen(fd_v6, 64) == 0
            && libc::getsockname(fd_v6, (&raw mut at_v6).cast(), &raw mut len) == 0
    };
    let port_v6 = if has_v6 { u16::from_be(at_v6.sin6_port) } else { 0 };
    ([fd, fd_v6], [u16::from_be(at.sin_port), port_v6])
}

pub fn connect(port: u16, family: Family) -> RawFd {
    use std::net::{Ipv4Addr, Ipv6Addr};
    let is_v6 = matches!(family, Family::V6 | Family::ClientV6);
    let fd = socket(if is_v6 { libc::AF_INET6 } else { libc::AF_INET });
    // SAFETY: the addresses are ours.
    let rc = unsafe {
        if is_v6 {
            let to =
                if family == Family::V6 { Ipv6Addr::LOCALHOST } else { Ipv4Addr::LOCALHOST.to_ipv6_mapped() };
            let at = address_v6(to, port);
            libc::connect(fd, (&raw const at).cast(), ADDRESS_V6)
        } else {
            let at = address(port);
            libc::connect(fd, (&raw const at).cast(), ADDRESS)
        }
    };
    if rc == 0 { fd } else { -1 }
}

/// By accept4(2) where it does not block.
pub fn accept(listener: RawFd, blocks_not: bool) -> RawFd {
    // SAFETY: no address is asked for.
    unsafe {
        if blocks_not {
            libc::accept4(listener, null_mut(), null_mut(), libc::SOCK_NONBLOCK)
        } else {
            libc::accept(listener, null_mut(), null_mut())
        }
    }
}

/// A new connection as programs make them.
pub fn prepare(fd: RawFd, blocks_not: bool, nagle: bool) {
    set(fd, libc::IPPROTO_TCP, libc::TCP_NODELAY, i32::from(!nagle));
    if blocks_not {
        nonblock(fd, true);
    }
}

fn set<T>(fd: RawFd, level: c_int, name: c_int, value: T) -> c_int {
    // SAFETY: `value` is ours.
    unsafe { libc::setsockopt(fd, level, name, (&raw const value).cast(), size_of::<T>() as socklen_t) }
}

fn get(fd: RawFd, level: c_int, name: c_int) -> i64 {
    let mut value = 0i32;
    let mut len = size_of::<i32>() as socklen_t;
    // SAFETY: both are ours.
    let rc = unsafe { libc::getsockopt(fd, level, name, (&raw mut value).cast(), &raw mut len) };
    if rc == 0 { value.into() } else { i64::from(-errno()) }
}

pub fn nonblock(fd: RawFd, on: bool) -> Said {
    // SAFETY: no memory is passed.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let flags = if on { flags | libc::O_NONBLOCK } else { flags & !libc::O_NONBLOCK };
    // SAFETY: no memory is passed.
    Said::from(unsafe { libc::fcntl(fd, libc::F_SETFL, flags) })
}

pub fn close(fd: RawFd) {
    // SAFETY: no memory is passed; the descriptor is one that this program made by libc's calls.
    unsafe { libc::close(fd) };
}

/// Closes with a reset, so that the port and its memory are free at once.
pub fn close_hard(fd: RawFd) {
    set(fd, libc::SOL_SOCKET, libc::SO_LINGER, libc::linger { l_onoff: 1, l_linger: 0 });
    close(fd);
}

fn wait_readable(fd: RawFd, events: i16) {
    let mut one = pollfd { fd, events, revents: 0 };
    // SAFETY: one entry, ours.
    while unsafe { libc::poll(&raw mut one, 1, 5000) } < 0 && errno() == libc::EINTR {}
}

/// Sends all, waiting for room where need be. Says whether.
pub fn send_all(fd: RawFd, mut bytes: &[u8]) -> bool {
    while !bytes.is_empty() {
        // SAFETY: the slice.
        let n = unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL) };
        match n {
            n if n > 0 => bytes = &bytes[n as usize..],
            _ if errno() == libc::EAGAIN => wait_readable(fd, libc::POLLOUT),
            _ => return false,
        }
    }
    true
}

/// What bytes are, whatever their order.
pub fn mixed(bytes: &[u8]) -> i64 {
    bytes.iter().fold(0, |sum: u64, &byte| sum.wrapping_add(hash(0, &[byte]))) as i64
}

/// Receives `n` bytes, waiting for them; `None` at the stream's end or after 5 s without any.
pub fn receive_all(fd: RawFd, n: usize) -> Option<Vec<u8>> {
    let mut all = vec![0; n];
    let mut have = 0;
    let mut waited = false;
    while have < n {
        let rest = &mut all[have..];
        // SAFETY: the slice.
        let got = unsafe { libc::recv(fd, rest.as_mut_ptr().cast(), rest.len(), 0) };
        match got {
            got if got > 0 => (have, waited) = (have + got as usize, false),
            -1 if errno() == libc::EAGAIN && !waited => {
                wait_readable(fd, libc::POLLIN);
                waited = true;
            }
            _ => return None,
        }
    }
    Some(all)
}

fn vector(bytes: &[u8]) -> [iovec; 2] {
    let (a, b) = bytes.split_at(bytes.len() / 2);
    [a, b].map(|part| iovec { iov_base: part.as_ptr().cast_mut().cast(), iov_len: part.len() })
}

fn message(parts: &mut [iovec], control: &mut [u64]) -> msghdr {
    // SAFETY: all-zero bytes are an empty message.
    let mut header: msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    header.msg_iov = parts.as_mut_ptr();
    header.msg_iovlen = parts.len();
    if !control.is_empty() {
        header.msg_control = control.as_mut_ptr().cast();
        header.msg_controllen = size_of_val(control);
    }
    header
}

/// One call that sends, and others until all is sent or the socket takes no more: how bytes are cut into calls is nobody's business.
///
/// A call that fails with EPIPE tells how many SIGPIPE came.
pub fn send(fd: RawFd, by: SendBy, bytes: &[u8]) -> Said {
    let mut sent = 0;
    let before = handlers::broken();
    while sent < bytes.len() {
        let n = send_once(fd, by, &bytes[sent..]);
        if n <= 0 {
            let signals = if errno() == libc::EPIPE { handlers::broken() - before } else { 0 };
            return if sent == 0 {
                Said::failed().with([signals])
            } else {
                Said::of(sent as i64).with([errno().into()])
            };
        }
        sent += n as usize;
    }
    Said::of(sent as i64)
}

/// One call: how many bytes it sent.
pub fn send_more(fd: RawFd, bytes: &[u8], has_more: bool) -> i64 {
    let more = if has_more { libc::MSG_MORE } else { 0 };
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | more;
    // SAFETY: the slice.
    unsafe { libc::send(fd, bytes.as_ptr().cast(), bytes.len(), flags) as i64 }
}

fn send_once(fd: RawFd, by: SendBy, bytes: &[u8]) -> i64 {
    const FLAGS: c_int = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    let mut parts = vector(bytes);
    // SAFETY: slices and structs of ours, which outlive each call.
    unsafe {
        match by {
            SendBy::Send => libc::send(fd, bytes.as_ptr().cast(), bytes.len(), FLAGS) as i64,
            SendBy::Oob => libc::send(fd, bytes.as_ptr().cast(), bytes.len(), FLAGS | libc::MSG_OOB) as i64,
            SendBy::Loud => libc::send(fd, bytes.as_ptr().cast(), bytes.len(), libc::MSG_DONTWAIT) as i64,
            SendBy::Many | SendBy::Batch | SendBy::Pwritev2 | SendBy::SendfileOn | SendBy::Flagged => {
                odd::send(fd, by, bytes)
            }
            SendBy::Ring => ring::send(fd, bytes, FLAGS),
            SendBy::Write => libc::write(fd, bytes.as_ptr().cast(), bytes.len()) as i64,
            SendBy::Writev => libc::writev(fd, parts.as_ptr(), 2) as i64,
            SendBy::Sendmsg => {
                let header = message(&mut parts, &mut []);
                libc::sendmsg(fd, &raw const header, FLAGS) as i64
            }
            SendBy::Sendmmsg => {
                let mut one = mmsghdr { msg_hdr: message(&mut parts, &mut []), msg_len: 0 };
                match libc::sendmmsg(fd, &raw mut one, 1, FLAGS as _) {
                    1 => one.msg_len.into(),
                    other => other.into(),
                }
            }
            SendBy::Sendfile => {
                let file = libc::memfd_create(c"differential".as_ptr(), libc::MFD_CLOEXEC);
                assert_eq!(
                    libc::write(file, bytes.as_ptr().cast(), bytes.len()),
                    bytes.len() as isize,
                    "a memfd"
                );
                let mut at = 0;
                let n = libc::sendfile(fd, file, &raw mut at, bytes.len()) as i64;
                let kept = errno();
                libc::close(file);
                *libc::__errno_location() = kept;
                n
            }
            SendBy::Splice => {
                let mut pipe = [0; 2];
                libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC);
                let some = bytes.len().min(16_384);
                assert_eq!(libc::write(pipe[1], bytes.as_ptr().cast(), some), some as isize, "a pipe");
                let n =
                    libc::splice(pipe[0], null_mut(), fd, null_mut(), some, libc::SPLICE_F_NONBLOCK) as i64;
                let kept = errno();
                let _ = pipe.map(|end| libc::close(end));
                *libc::__errno_location() = kept;
                n
            }
        }
    }
}

/// What a message brought besides bytes, in the kernel's order: level, type, and the value where it must be the same.
fn control_of(header: &msghdr) -> Vec<i64> {
    let mut all = vec![i64::from(header.msg_flags)];
    // SAFETY: the kernel, or who stands in for it, has filled the header's own buffer.
    unsafe {
        let mut at = libc::CMSG_FIRSTHDR(header);
        while let Some(one) = at.as_ref() {
            // Of time stamps TCP has none until the kernel has got round to taking them, some time after setsockopt.
            // The last three are those of a `time_t` of 64 bits.
            const STAMPS: [c_int; 6] =
                [libc::SCM_TIMESTAMP, libc::SCM_TIMESTAMPNS, libc::SCM_TIMESTAMPING, 63, 64, 65];
            if one.cmsg_level != libc::SOL_SOCKET || !STAMPS.contains(&one.cmsg_type) {
                all.extend([i64::from(one.cmsg_level), i64::from(one.cmsg_type)]);
            }
            if (one.cmsg_level, one.cmsg_type) == (libc::SOL_TCP, TCP_CM_INQ) {
                all.push(libc::CMSG_DATA(at).cast::<i32>().read_unaligned().into());
            }
            at = libc::CMSG_NXTHDR(header, at);
        }
    }
    all
}

/// include/uapi/linux/tcp.h
const TCP_INQ: c_int = 36;
const TCP_CM_INQ: c_int = 36;

/// Receives up to `n` bytes: what is read is read on until there is nothing more, as how a stream is cut into reads is nobody's business;
/// what is peeked at or thrown away is one call.
pub fn receive(fd: RawFd, by: RecvBy, n: usize) -> Said {
    let (said, bytes) = receive_bytes(fd, by, n);
    said.and_bytes(&bytes)
}

/// The same, with the bytes themselves; none of those that were thrown away.
pub fn receive_bytes(fd: RawFd, by: RecvBy, n: usize) -> (Said, Vec<u8>) {
    let mut to = vec![0u8; n];
    let once = by.peeks() || by.throws_away() || by == RecvBy::Once;
    let (mut have, mut more) = (0, Vec::new());
    loop {
        let (got, control) = receive_once(fd, by, &mut to[have..], have > 0);
        if have == 0 || got > 0 {
            more = control;
        }
        if got <= 0 {
            let said = if have > 0 { Said::of(have as i64) } else { Said::from(got) };
            to.truncate(have);
            return (said.with(more), to);
        }
        have += got as usize;
        if once || have >= n {
            to.truncate(if by.throws_away() { 0 } else { have });
            return (Said::of(have as i64).with(more), to);
        }
    }
}

fn receive_once(fd: RawFd, by: RecvBy, to: &mut [u8], again: bool) -> (i64, Vec<i64>) {
    const DONTWAIT: c_int = libc::MSG_DONTWAIT;
    let (at, n) = (to.as_mut_ptr().cast::<c_void>(), to.len());
    let mut parts = vector(to);
    let mut control = [0u64; 32];
    let none = |n: isize| (n as i64, Vec::new());
    // SAFETY: the slice, and structs of ours, which outlive each call.
    unsafe {
        match by {
            // What may wait was called where there are bytes; not for the rest of them.
            RecvBy::Read | RecvBy::Readv | RecvBy::WaitAll | RecvBy::Splice | RecvBy::ForOne if again => {
                none(libc::recv(fd, at, n, DONTWAIT))
            }
            RecvBy::Ring => (ring::receive(fd, to, DONTWAIT), Vec::new()),
            RecvBy::Preadv2
            | RecvBy::Many
            | RecvBy::ForOne
            | RecvBy::PeekMsg
            | RecvBy::TruncMsg
            | RecvBy::Cloexec
            | RecvBy::PeekTrunc
            | RecvBy::PeekWhole => odd::receive(fd, by, to),
            RecvBy::Recv | RecvBy::Once => none(libc::recv(fd, at, n, DONTWAIT)),
            RecvBy::Read => none(libc::read(fd, at, n)),
            RecvBy::Readv => none(libc::readv(fd, parts.as_ptr(), 2)),
            RecvBy::Recvfrom => none(libc::recvfrom(fd, at, n, DONTWAIT, null_mut(), null_mut())),
            RecvBy::Peek => none(libc::recv(fd, at, n, DONTWAIT | libc::MSG_PEEK)),
            RecvBy::Oob => none(libc::recv(fd, at, n, DONTWAIT | libc::MSG_OOB)),
            RecvBy::Trunc => none(libc::recv(fd, at, n, DONTWAIT | libc::MSG_TRUNC)),
            RecvBy::WaitAll => none(libc::recv(fd, at, n, libc::MSG_WAITALL)),
            RecvBy::Recvmsg => {
                let mut header = message(&mut parts, &mut control);
                let n = libc::recvmsg(fd, &raw mut header, DONTWAIT);
                (n as i64, if n >= 0 { control_of(&header) } else { Vec::new() })
            }
            RecvBy::Recvmmsg => {
                let mut one = mmsghdr { msg_hdr: message(&mut parts, &mut control), msg_len: 0 };
                match libc::recvmmsg(fd, &raw mut one, 1, DONTWAIT as _, null_mut()) {
                    1 => (one.msg_len.into(), control_of(&one.msg_hdr)),
                    other => (other.into(), Vec::new()),
                }
            }
            RecvBy::Splice => {
                let mut pipe = [0; 2];
                libc::pipe2(pipe.as_mut_ptr(), libc::O_CLOEXEC);
                let moved =
                    libc::splice(fd, null_mut(), pipe[1], null_mut(), n.min(16_384), libc::SPLICE_F_NONBLOCK);
                let kept = errno();
                if moved > 0 {
                    assert_eq!(libc::read(pipe[0], at, moved as usize), moved, "the pipe has it");
                }
                let _ = pipe.map(|end| libc::close(end));
                *libc::__errno_location() = kept;
                none(moved)
            }
        }
    }
}

pub fn set_option(fd: RawFd, opt: Opt) -> Said {
    let (level, name, value) = match opt {
        Opt::NoDelay(on) => (libc::IPPROTO_TCP, libc::TCP_NODELAY, i32::from(on)),
        Opt::LowWater(bytes) => (libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes),
        Opt::PeekOff(at) => (libc::SOL_SOCKET, libc::SO_PEEK_OFF, at),
        Opt::Inq(on) => (libc::IPPROTO_TCP, TCP_INQ, i32::from(on)),
        Opt::Timestamps(on) => (libc::SOL_SOCKET, libc::SO_TIMESTAMP, i32::from(on)),
        Opt::KeepAlive(on) => (libc::SOL_SOCKET, libc::SO_KEEPALIVE, i32::from(on)),
        Opt::QuickAck(on) => (libc::IPPROTO_TCP, libc::TCP_QUICKACK, i32::from(on)),
        Opt::Cork(on) => (libc::IPPROTO_TCP, libc::TCP_CORK, i32::from(on)),
        Opt::RcvBuf(bytes) => (libc::SOL_SOCKET, libc::SO_RCVBUF, bytes),
        Opt::SndBuf(bytes) => (libc::SOL_SOCKET, libc::SO_SNDBUF, bytes),
        Opt::UserTimeout(ms) => (libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, ms),
        Opt::OobInline(on) => (libc::SOL_SOCKET, libc::SO_OOBINLINE, i32::from(on)),
        // SAFETY: no memory is passed.
        Opt::Owner => return Said::from(unsafe { libc::fcntl(fd, libc::F_SETOWN, libc::getpid()) }),
        Opt::Linger(on) => {
            let value = libc::linger { l_onoff: i32::from(on), l_linger: 0 };
            return Said::from(set(fd, libc::SOL_SOCKET, libc::SO_LINGER, value));
        }
        opt => return odd::set_option(fd, opt),
    };
    Said::from(set(fd, level, name, value))
}

pub fn register(set: RawFd, fd: RawFd, data: u64, how: Registered, is_there: bool) -> Said {
    let all = libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP | libc::EPOLLPRI;
    let events = match how {
        Registered::Level => all,
        Registered::Edge => all | libc::EPOLLET,
        Registered::OneShot => libc::EPOLLIN | libc::EPOLLONESHOT,
        Registered::EdgeIn => libc::EPOLLIN | libc::EPOLLET,
        Registered::LevelIn => libc::EPOLLIN,
        Registered::Exclusive => libc::EPOLLIN | libc::EPOLLEXCLUSIVE,
        Registered::Removed => 0,
    };
    let op = match (how, is_there) {
        (Registered::Removed, _) => libc::EPOLL_CTL_DEL,
        (_, true) => libc::EPOLL_CTL_MOD,
        (_, false) => libc::EPOLL_CTL_ADD,
    };
    let mut event = epoll_event { events: events as u32, u64: data };
    // SAFETY: an event of ours.
    Said::from(unsafe { libc::epoll_ctl(set, op, fd, &raw mut event) })
}

pub fn finish(fd: RawFd, end: End) -> Said {
    // SAFETY: no memory is passed.
    Said::from(unsafe {
        match end {
            End::ShutWr => libc::shutdown(fd, libc::SHUT_WR),
            End::ShutRd => libc::shutdown(fd, libc::SHUT_RD),
            End::ShutBoth => libc::shutdown(fd, libc::SHUT_RDWR),
            End::Close => libc::close(fd),
            End::RawClose => libc::syscall(libc::SYS_close, fd) as c_int,
            End::Range => libc::close_range(fd as u32, fd as u32, 0),
            End::Over => {
                let other = libc::dup(0);
                let rc = libc::dup2(other, fd);
                libc::close(other);
                libc::close(fd);
                if rc == fd { 0 } else { -1 }
            }
        }
    })
}
