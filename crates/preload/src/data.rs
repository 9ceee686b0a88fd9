//! Data: read, write, and all their kin.

use core::ffi::{c_int, c_uint, c_void};
use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use shunpike_core::bufs::Bufs;
use shunpike_core::conn::{self, Outcome};
use shunpike_core::rx::receive;
use shunpike_core::table::{self, Conn, Entry};
use shunpike_core::tx::{Source, send as transmit};
use shunpike_core::wire::Reason;

use crate::answer;

/// The connection behind `fd`; `None` costs a load and a branch.
#[inline(always)]
fn ours(fd: c_int) -> Option<Conn> {
    if table::is_none(fd) { None } else { table::conn(fd) }
}

fn one(base: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec { iov_base: base.cast_mut(), iov_len: len }]
}

/// The program's vector. An absurd count or a null one is the kernel's to refuse.
unsafe fn vector<'a>(iov: *const iovec, count: impl TryInto<usize>) -> Option<&'a [iovec]> {
    let count = count.try_into().ok().filter(|&n| n <= 1024 && !iov.is_null())?;
    // SAFETY: the program's vector of `count` entries.
    Some(unsafe { core::slice::from_raw_parts(iov, count) })
}

fn write_through(conn: Conn, fd: c_int, iov: &[iovec], flags: c_int, real: impl FnOnce() -> isize) -> isize {
    let quiet = flags & libc::MSG_NOSIGNAL != 0;
    if flags & libc::MSG_ZEROCOPY != 0 {
        // Completion notifications are the kernel's.
        conn::revoke_for_good(conn, fd, Reason::OptionUnsupported);
    }
    answer(transmit(conn, fd, Source::Memory(Bufs::new(iov)), flags, real), !quiet)
}

hooks! {
    /// read(2)
    fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
        match ours(fd) {
            Some(conn) if len > 0 => {
                answer(receive(conn, fd, &one(buf, len), 0, || covered::read(fd, buf, len)), false)
            }
            _ => covered::read(fd, buf, len),
        }
    }
    /// read(2), glibc's internal name
    fn __read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t { read(fd, buf, len) }
    /// read(2) with the buffer's size known
    fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, size: size_t) -> ssize_t {
        if len > size { covered::__read_chk(fd, buf, len, size) } else { read(fd, buf, len) }
    }
    /// write(2)
    fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
        match ours(fd) {
            Some(conn) => write_through(conn, fd, &one(buf, len), 0, || covered::write(fd, buf, len)),
            None => covered::write(fd, buf, len),
        }
    }
    /// write(2), glibc's internal name
    fn __write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t { write(fd, buf, len) }
    /// readv(2)
    fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
        match ours(fd).zip(vector(iov, count)) {
            Some((conn, bufs)) => answer(receive(conn, fd, bufs, 0, || covered::readv(fd, iov, count)), false),
            None => covered::readv(fd, iov, count),
        }
    }
    /// writev(2)
    fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
        match ours(fd).zip(vector(iov, count)) {
            Some((conn, bufs)) => write_through(conn, fd, bufs, 0, || covered::writev(fd, iov, count)),
            None => covered::writev(fd, iov, count),
        }
    }
    /// preadv2(2): with offset -1 a socket reads as by readv
    fn preadv2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        if at == -1 && flags == 0 { readv(fd, iov, count) } else { covered::preadv2(fd, iov, count, at, flags) }
    }
    /// preadv2(2)
    fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        preadv2(fd, iov, count, at, flags)
    }
    /// pwritev2(2): with offset -1 a socket writes as by writev
    fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        if at == -1 && flags == 0 { writev(fd, iov, count) } else { covered::pwritev2(fd, iov, count, at, flags) }
    }
    /// pwritev2(2)
    fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        pwritev2(fd, iov, count, at, flags)
    }
    /// recv(2)
    fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        match ours(fd) {
            Some(conn) => {
                answer(receive(conn, fd, &one(buf, len), flags, || covered::recv(fd, buf, len, flags)), false)
            }
            None => covered::recv(fd, buf, len, flags),
        }
    }
    /// recv(2), glibc's internal name
    fn __recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t { recv(fd, buf, len, flags) }
    /// recv(2) with the buffer's size known
    fn __recv_chk(fd: c_int, buf: *mut c_void, len: size_t, size: size_t, flags: c_int) -> ssize_t {
        if len > size { covered::__recv_chk(fd, buf, len, size, flags) } else { recv(fd, buf, len, flags) }
    }
    /// recvfrom(2)
    fn recvfrom(
        fd: c_int, buf: *mut c_void, len: size_t, flags: c_int, from: *mut sockaddr, size: *mut socklen_t,
    ) -> ssize_t {
        let Some(conn) = ours(fd) else { return covered::recvfrom(fd, buf, len, flags, from, size) };
        let real = || covered::recvfrom(fd, buf, len, flags, from, size);
        let outcome = receive(conn, fd, &one(buf, len), flags, real);
        if let (Outcome::Ours(Ok(_)), false) = (&outcome, from.is_null() || size.is_null()) {
            // TCP names no sender.
            *size = 0;
        }
        answer(outcome, false)
    }
    /// recvfrom(2) with the buffer's size known
    fn __recvfrom_chk(
        fd: c_int, buf: *mut c_void, len: size_t, room: size_t, flags: c_int, from: *mut sockaddr,
        size: *mut socklen_t,
    ) -> ssize_t {
        if len > room {
            covered::__recvfrom_chk(fd, buf, len, room, flags, from, size)
        } else {
            recvfrom(fd, buf, len, flags, from, size)
        }
    }
    /// recvmsg(2)
    fn recvmsg(fd: c_int, msg: *mut msghdr, flags: c_int) -> ssize_t {
        let Some(conn) = ours(fd).filter(|_| !msg.is_null()) else { return covered::recvmsg(fd, msg, flags) };
        let Some(bufs) = vector((*msg).msg_iov, (*msg).msg_iovlen) else {
            return covered::recvmsg(fd, msg, flags);
        };
        let outcome = receive(conn, fd, bufs, flags, || covered::recvmsg(fd, msg, flags));
        if let Outcome::Ours(Ok(_)) = outcome {
            (*msg).msg_namelen = 0;
            (*msg).msg_controllen = 0;
            (*msg).msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
        }
        answer(outcome, false)
    }
    /// recvmmsg(2): one message each, until one would wait
    fn recvmmsg(
        fd: c_int, vec: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec,
    ) -> c_int {
        if ours(fd).is_none() || vec.is_null() {
            return covered::recvmmsg(fd, vec, count, flags, timeout);
        }
        let mut done = 0;
        while done < count {
            let entry = vec.add(done as usize);
            let wait = if done > 0 && flags & libc::MSG_WAITFORONE != 0 { libc::MSG_DONTWAIT } else { 0 };
            let n = recvmsg(fd, &raw mut (*entry).msg_hdr, flags & !libc::MSG_WAITFORONE | wait);
            if n < 0 {
                return if done > 0 { done as c_int } else { -1 };
            }
            (*entry).msg_len = n as c_uint;
            done += 1;
            if n == 0 { break; }
        }
        done as c_int
    }
    /// send(2)
    fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        match ours(fd) {
            Some(conn) => {
                write_through(conn, fd, &one(buf, len), flags, || covered::send(fd, buf, len, flags))
            }
            None => covered::send(fd, buf, len, flags),
        }
    }
    /// send(2), glibc's internal name
    fn __send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t { send(fd, buf, len, flags) }
    /// sendto(2): TCP ignores the address of a connected socket
    fn sendto(
        fd: c_int, buf: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, size: socklen_t,
    ) -> ssize_t {
        match ours(fd).filter(|_| flags & libc::MSG_FASTOPEN == 0) {
            Some(conn) => write_through(conn, fd, &one(buf, len), flags, || {
                covered::sendto(fd, buf, len, flags, to, size)
            }),
            None => covered::sendto(fd, buf, len, flags, to, size),
        }
    }
    /// sendmsg(2); descriptors that it passes on leave their lanes
    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
        if msg.is_null() {
            return covered::sendmsg(fd, msg, flags);
        }
        let Some(conn) = ours(fd) else {
            hand_over_rights(msg);
            return covered::sendmsg(fd, msg, flags);
        };
        match vector((*msg).msg_iov, (*msg).msg_iovlen) {
            Some(bufs) => write_through(conn, fd, bufs, flags, || covered::sendmsg(fd, msg, flags)),
            None => covered::sendmsg(fd, msg, flags),
        }
    }
    /// sendmmsg(2)
    fn sendmmsg(fd: c_int, vec: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        if ours(fd).is_none() || vec.is_null() {
            return covered::sendmmsg(fd, vec, count, flags);
        }
        let mut done = 0;
        while done < count {
            let entry = vec.add(done as usize);
            let n = sendmsg(fd, &raw const (*entry).msg_hdr, flags);
            if n < 0 {
                return if done > 0 { done as c_int } else { -1 };
            }
            (*entry).msg_len = n as c_uint;
            done += 1;
        }
        done as c_int
    }
    /// sendmmsg(2), glibc's internal name
    fn __sendmmsg(fd: c_int, vec: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        sendmmsg(fd, vec, count, flags)
    }
    /// sendfile(2): the file is read straight into the ring
    fn sendfile(out: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        let Some(conn) = ours(out).filter(|_| ours(file).is_none()) else {
            return covered::sendfile(out, file, offset, count);
        };
        let at = if offset.is_null() { None } else { Some(*offset) };
        let source = Source::File { fd: file, offset: at, left: count.min(0x7fff_f000), done: 0 };
        let outcome = transmit(conn, out, source, 0, || covered::sendfile(out, file, offset, count));
        if let (Outcome::Ours(Ok(n)), false) = (&outcome, offset.is_null()) {
            *offset += *n as off_t;
        }
        answer(outcome, true)
    }
    /// sendfile(2)
    fn sendfile64(out: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        sendfile(out, file, offset, count)
    }
    /// splice(2): pages move inside the kernel, so the connection goes back to TCP
    fn splice(
        from: c_int, from_at: *mut off_t, to: c_int, to_at: *mut off_t, len: size_t, flags: c_uint,
    ) -> ssize_t {
        if let Some(conn) = ours(to) {
            conn::revoke_for_good(conn, to, Reason::Splice);
        }
        if let Some(conn) = ours(from) {
            conn::revoke_for_good(conn, from, Reason::Splice);
            if conn::ring_bytes(conn) > 0 {
                return splice_ring(conn, from, to, len);
            }
        }
        covered::splice(from, from_at, to, to_at, len, flags)
    }
}

/// What a revoked lane still holds, into a pipe: written first, then consumed, so that nothing is lost.
unsafe fn splice_ring(conn: Conn, from: c_int, to: c_int, len: size_t) -> ssize_t {
    let mut bytes = [0u8; 16384];
    let room = one(bytes.as_mut_ptr().cast(), len.min(bytes.len()));
    let peeked = receive(conn, from, &room, libc::MSG_PEEK | libc::MSG_DONTWAIT, || -1);
    let Outcome::Ours(Ok(n)) = peeked else { return answer(peeked, false) };
    // SAFETY: n bytes of our buffer were set.
    let written = unsafe { write(to, bytes.as_ptr().cast(), n) };
    if let Ok(written) = usize::try_from(written) {
        let _ = receive(conn, from, &one(bytes.as_ptr().cast(), written), libc::MSG_DONTWAIT, || -1);
    }
    written
}

/// Connections among the descriptors of an SCM_RIGHTS message go to a program that may not be ours.
unsafe fn hand_over_rights(msg: *const msghdr) {
    // SAFETY: the program's message, walked as the CMSG macros of sys/socket.h do.
    unsafe {
        if (*msg).msg_control.is_null() {
            return;
        }
        let mut cmsg = libc::CMSG_FIRSTHDR(msg);
        while !cmsg.is_null() {
            if (*cmsg).cmsg_level == libc::SOL_SOCKET && (*cmsg).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*cmsg).cmsg_len as usize - (libc::CMSG_LEN(0) as usize);
                let fds = libc::CMSG_DATA(cmsg).cast::<c_int>();
                for i in 0..bytes / size_of::<c_int>() {
                    let fd = fds.add(i).read_unaligned();
                    if let Entry::Conn(conn) = table::look(fd) {
                        conn::hand_over(conn, fd, Reason::HandedOver);
                    }
                }
            }
            cmsg = libc::CMSG_NXTHDR(msg, cmsg);
        }
    }
}
