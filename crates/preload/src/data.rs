//! Data: read, write, and all their kin.

use core::ffi::{c_int, c_uint, c_void};
use core::ptr::{null, null_mut};
use libc::{iovec, mmsghdr, msghdr, off_t, size_t, sockaddr, socklen_t, ssize_t, timespec};
use shunpike_core::bufs::Bufs;
use shunpike_core::call::Outcome;
use shunpike_core::conn;
use shunpike_core::poll::poll;
use shunpike_core::rx::receive;
use shunpike_core::source::Source;
use shunpike_core::table::{self, Conn};
use shunpike_core::tx::send as transmit;
use shunpike_core::wire::Reason;
use shunpike_core::{Errno, passthrough, sys, user, zerocopy};

use crate::answers::answer;
use crate::cancel::cancellation_point;
use crate::control::{MOST_ENTRIES, hand_over_rights, hand_over_rights_of_all, header, tell_unread};
use crate::errno::{errno, set_errno};
use crate::kept;
use crate::readiness::nanoseconds;
use shunpike_core::call;
use shunpike_core::rx;
use shunpike_core::state;
use shunpike_core::tx;

/// The connection behind `fd`; `None` costs a load and a branch.
#[inline(always)]
fn ours(fd: c_int) -> Option<Conn> {
    let conn = table::conn(fd)?;
    // Elsewhere libc's own call is one.
    if state::may_be_on_lane(conn.block) {
        cancellation_point();
    }
    Some(conn)
}

/// The connection behind `fd`, for a call on one buffer; a stretch that cannot be is the kernel's to refuse, which it
/// does before it moves a byte.
#[inline(always)]
fn ours_for(fd: c_int, buf: *const c_void, len: size_t) -> Option<Conn> {
    ours(fd).filter(|_| user::plausible(buf.cast(), len.min(user::MOST)))
}

fn one(base: *const c_void, len: size_t) -> [iovec; 1] {
    [iovec { iov_base: base.cast_mut(), iov_len: len }]
}

/// MSG_CMSG_COMPAT (include/linux/socket.h), with which the kernel refuses a call on messages.
const CMSG_COMPAT: c_int = 1 << 31;

/// The program's vector. What the kernel refuses before it moves a byte, it is left to refuse.
unsafe fn vector<'a>(iov: *const iovec, count: impl TryInto<usize>) -> Option<&'a [iovec]> {
    let count = count.try_into().ok().filter(|&n| n <= MOST_ENTRIES)?;
    if count == 0 {
        return Some(&[]);
    }
    if !iov.is_aligned() || !user::readable(iov.cast(), count * size_of::<iovec>()) {
        return None;
    }
    // SAFETY: the program's vector of `count` entries, which are there.
    let bufs = unsafe { core::slice::from_raw_parts(iov, count) };
    let sound = |one: &iovec| {
        isize::try_from(one.iov_len).is_ok() && user::plausible(one.iov_base.cast(), one.iov_len)
    };
    bufs.iter().all(sound).then_some(bufs)
}

/// As `vector`, for a message: its name and its flags are looked at first, as the kernel does.
unsafe fn message<'a>(msg: &msghdr) -> Option<&'a [iovec]> {
    if !msg.msg_name.is_null() && (msg.msg_namelen as i32) < 0 {
        return None;
    }
    // SAFETY: the program's message.
    unsafe { vector(msg.msg_iov, msg.msg_iovlen) }
}

/// Whether an address that a connected socket ignores would at least be taken.
fn address_taken(to: *const c_void, size: socklen_t) -> bool {
    to.is_null()
        || size as usize <= size_of::<libc::sockaddr_storage>() && user::readable(to.cast(), size as usize)
}

/// Bytes of a message that is one of several; `None` where it cannot be told.
unsafe fn length(msg: *const msghdr) -> Option<usize> {
    // SAFETY: the program's message.
    let bufs = unsafe { header(msg).and_then(|header| message(&header)) }?;
    Some(bufs.iter().fold(0, |all: usize, one| one.iov_len.saturating_add(all)).min(user::MOST))
}

/// Waits for bytes of a message behind the first one, as poll does: a signal ends the call then, whatever its handler's flags. Says whether the
/// message is to be looked for.
unsafe fn comes(conn: Conn, fd: c_int, msg: *const msghdr, flags: c_int) -> bool {
    const WAITS_NOT: c_int = libc::MSG_DONTWAIT | libc::MSG_ERRQUEUE | libc::MSG_OOB;
    // SAFETY: the program's message.
    if flags & WAITS_NOT != 0 || unsafe { length(msg) }.is_none_or(|n| n == 0) {
        return true;
    }
    let mut one = [libc::pollfd { fd, events: libc::POLLIN, revents: 0 }];
    rx::readable(conn, fd)
        || call::must_block(conn.block, fd).is_err()
        || poll(&mut one, call::timeout_option(fd, libc::SO_RCVTIMEO), null()).is_ok_and(|n| n > 0)
}

fn write_through(conn: Conn, fd: c_int, iov: &[iovec], flags: c_int, real: impl Fn(c_int) -> isize) -> isize {
    let half = &conn.block.tx;
    if passthrough::begin(conn, half, flags) {
        let n = real(flags);
        passthrough::end(conn, half, fd, n, iov.iter().fold(0, |all, one| one.iov_len.saturating_add(all)));
        return n;
    }
    write_slowly(conn, fd, iov, flags, real)
}

/// A write of one buffer that names whom it is for.
#[inline(never)]
fn write_to(conn: Conn, fd: c_int, bytes: [iovec; 1], flags: c_int, real: impl Fn(c_int) -> isize) -> isize {
    // SAFETY: the program's buffer.
    match unsafe { tx::fast::send(conn, fd, bytes[0].iov_base.cast(), bytes[0].iov_len, flags) } {
        Some(n) => n as isize,
        None => write_through(conn, fd, &bytes, flags, real),
    }
}

#[inline(never)]
fn write_slowly(conn: Conn, fd: c_int, iov: &[iovec], flags: c_int, real: impl Fn(c_int) -> isize) -> isize {
    let quiet = flags & libc::MSG_NOSIGNAL != 0;
    answer(transmit(conn, fd, Source::Memory(Bufs::new(iov)), flags, real), !quiet)
}

fn read_through(conn: Conn, fd: c_int, iov: &[iovec], flags: c_int, real: impl Fn() -> isize) -> Outcome {
    let half = &conn.block.rx;
    if passthrough::begin(conn, half, flags) {
        let n = real();
        passthrough::end(conn, half, fd, n, 0);
        return or_kept(conn, Outcome::Libc(n));
    }
    or_kept(conn, receive(conn, fd, iov, flags, real))
}

/// A call of libc's on one buffer. Types, as closures are not sure to be part of whom they are given to, and each return after a
/// system call takes as long as dozens of instructions.
trait OnOne<Buf> {
    /// The call.
    ///
    /// # Safety
    /// As libc's.
    unsafe fn call(fd: c_int, buf: Buf, len: size_t, flags: c_int) -> ssize_t;
}

macro_rules! on_one {
    ($($name:ident: |$fd:ident, $buf:ident: $kind:ty, $len:ident, $flags:ident| $call:expr;)*) => {$(
        struct $name;
        impl OnOne<$kind> for $name {
            #[inline(always)]
            unsafe fn call($fd: c_int, $buf: $kind, $len: size_t, $flags: c_int) -> ssize_t {
                // SAFETY: the caller's.
                unsafe { $call }
            }
        }
    )*};
}

on_one! {
    Read: |fd, buf: *mut c_void, len, _flags| covered::read(fd, buf, len);
    Recv: |fd, buf: *mut c_void, len, flags| covered::recv(fd, buf, len, flags);
    RecvFrom: |fd, buf: *mut c_void, len, flags| covered::recvfrom(fd, buf, len, flags, null_mut(), null_mut());
    Write: |fd, buf: *const c_void, len, _flags| covered::write(fd, buf, len);
    Send: |fd, buf: *const c_void, len, flags| covered::send(fd, buf, len, flags);
    SendTo: |fd, buf: *const c_void, len, flags| covered::sendto(fd, buf, len, flags, null_mut(), 0);
}

/// A write of one buffer. In no frame but its own: a hook of what may be ours ends by a jump here, and that of what is not has none.
#[inline(never)]
fn write_one<Real: OnOne<*const c_void>>(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> isize {
    // SAFETY: the program's own call.
    let real = move |flags| unsafe { Real::call(fd, buf, len, flags) };
    let Some(conn) = ours_for(fd, buf, len).filter(|_| flags & libc::MSG_FASTOPEN == 0) else {
        return real(flags);
    };
    let half = &conn.block.tx;
    if passthrough::begin(conn, half, flags) {
        // SAFETY: as above.
        let n = unsafe { Real::call(fd, buf, len, flags) };
        passthrough::end(conn, half, fd, n, len);
        return n;
    }
    // SAFETY: the program's buffer.
    match unsafe { tx::fast::send(conn, fd, buf.cast(), len, flags) } {
        Some(n) => n as isize,
        None => write_slowly(conn, fd, &one(buf, len), flags, real),
    }
}

/// A read into one buffer. As above.
#[inline(never)]
fn read_one<Real: OnOne<*mut c_void>>(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> isize {
    // SAFETY: the program's own call.
    let real = move || unsafe { Real::call(fd, buf, len, flags) };
    let Some(conn) = ours_for(fd, buf, len) else { return real() };
    let half = &conn.block.rx;
    if passthrough::begin(conn, half, flags) {
        // SAFETY: as above.
        let n = unsafe { Real::call(fd, buf, len, flags) };
        passthrough::end(conn, half, fd, n, 0);
        return if n == 0 && len > 0 { end(conn) } else { n };
    }
    // SAFETY: the program's buffer.
    match unsafe { rx::fast::receive(conn, fd, buf.cast(), len, flags) } {
        Some(n) => n as isize,
        None => read_slowly(conn, fd, one(buf, len), flags, real),
    }
}

#[inline(never)]
fn read_slowly(conn: Conn, fd: c_int, room: [iovec; 1], flags: c_int, real: impl Fn() -> isize) -> isize {
    let outcome = if flags & libc::MSG_ERRQUEUE != 0 {
        // SAFETY: the program's buffer.
        unsafe { zerocopy::read_bare(conn, fd, room[0], flags, real) }
    } else {
        or_kept(conn, receive(conn, fd, &room, flags, real))
    };
    answer(outcome, false)
}

/// What a read of TCP's returns that has found the end.
#[cold]
fn end(conn: Conn) -> isize {
    answer(or_kept(conn, Outcome::Libc(0)), false)
}

/// What a read of TCP's returns that has found the end, or an error that is to be told before it.
fn or_kept(conn: Conn, outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Libc(0) | Outcome::Ours(Ok(0)) => match kept::take(conn) {
            Some(errno) => Outcome::Ours(Err(Errno::from_raw_os_error(errno))),
            None => outcome,
        },
        _ => outcome,
    }
}

/// A read that also asks who has sent.
#[inline(never)]
fn read_from(
    conn: Conn,
    fd: c_int,
    room: iovec,
    flags: c_int,
    size: *mut socklen_t,
    real: impl Fn() -> isize,
) -> isize {
    // SAFETY: the program's buffer.
    let fast = || unsafe { rx::fast::receive(conn, fd, room.iov_base.cast(), room.iov_len, flags) };
    let mut outcome = if flags & libc::MSG_ERRQUEUE != 0 {
        // SAFETY: the program's buffer.
        unsafe { zerocopy::read_bare(conn, fd, room, flags, real) }
    } else if let Some(n) = fast() {
        Outcome::Ours(Ok(n))
    } else {
        read_through(conn, fd, &[room], flags, real)
    };
    if let Outcome::Ours(Ok(_)) = &outcome {
        // TCP names no sender. The bytes are gone, even where that cannot be said.
        // SAFETY: the program's, which need not be there.
        match unsafe { user::fetch(size) } {
            Some(room) if (room as i32) < 0 => outcome = Outcome::Ours(Err(Errno::INVAL)),
            // SAFETY: as above.
            Some(_) if unsafe { user::store(size, 0) } => {}
            _ => outcome = Outcome::Ours(Err(Errno::FAULT)),
        }
    }
    answer(outcome, false)
}

hooks! {
    /// read(2)
    fn read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t {
        // Nothing asked, or more than can be counted: no wait, no bytes.
        if table::is_none(fd) || len == 0 || isize::try_from(len).is_err() {
            return covered::read(fd, buf, len);
        }
        read_one::<Read>(fd, buf, len, 0)
    }
    /// read(2), glibc's internal name
    fn __read(fd: c_int, buf: *mut c_void, len: size_t) -> ssize_t { read(fd, buf, len) }
    /// read(2) with the buffer's size known
    fn __read_chk(fd: c_int, buf: *mut c_void, len: size_t, size: size_t) -> ssize_t {
        if len > size { covered::__read_chk(fd, buf, len, size) } else { read(fd, buf, len) }
    }
    /// write(2)
    fn write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t {
        if table::is_none(fd) || isize::try_from(len).is_err() {
            return covered::write(fd, buf, len);
        }
        write_one::<Write>(fd, buf, len, 0)
    }
    /// write(2), glibc's internal name
    fn __write(fd: c_int, buf: *const c_void, len: size_t) -> ssize_t { write(fd, buf, len) }
    /// readv(2)
    fn readv(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
        match ours(fd).zip(vector(iov, count)) {
            Some((conn, bufs)) if bufs.iter().any(|one| one.iov_len > 0) => {
                answer(read_through(conn, fd, bufs, 0, || covered::readv(fd, iov, count)), false)
            }
            _ => covered::readv(fd, iov, count),
        }
    }
    /// writev(2)
    fn writev(fd: c_int, iov: *const iovec, count: c_int) -> ssize_t {
        match ours(fd).zip(vector(iov, count)) {
            Some((conn, bufs)) => write_through(conn, fd, bufs, 0, |_| covered::writev(fd, iov, count)),
            None => covered::writev(fd, iov, count),
        }
    }
    /// preadv2(2): with offset -1 a socket reads as by readv
    fn preadv2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        match ours(fd).filter(|_| at == -1 && flags == libc::RWF_NOWAIT).zip(vector(iov, count)) {
            Some((conn, bufs)) if bufs.iter().any(|one| one.iov_len > 0) => {
                let real = || covered::preadv2(fd, iov, count, at, flags);
                answer(read_through(conn, fd, bufs, libc::MSG_DONTWAIT, real), false)
            }
            _ if at == -1 && flags == 0 => readv(fd, iov, count),
            _ => covered::preadv2(fd, iov, count, at, flags),
        }
    }
    /// preadv2(2)
    fn preadv64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        preadv2(fd, iov, count, at, flags)
    }
    /// pwritev2(2): with offset -1 a socket writes as by writev
    fn pwritev2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        match ours(fd).filter(|_| at == -1 && flags == libc::RWF_NOWAIT).zip(vector(iov, count)) {
            Some((conn, bufs)) => write_through(conn, fd, bufs, libc::MSG_DONTWAIT, |_| {
                covered::pwritev2(fd, iov, count, at, flags)
            }),
            _ if at == -1 && flags == 0 => writev(fd, iov, count),
            _ => covered::pwritev2(fd, iov, count, at, flags),
        }
    }
    /// pwritev2(2)
    fn pwritev64v2(fd: c_int, iov: *const iovec, count: c_int, at: off_t, flags: c_int) -> ssize_t {
        pwritev2(fd, iov, count, at, flags)
    }
    /// recv(2)
    fn recv(fd: c_int, buf: *mut c_void, len: size_t, flags: c_int) -> ssize_t {
        if table::is_none(fd) {
            return covered::recv(fd, buf, len, flags);
        }
        read_one::<Recv>(fd, buf, len, flags)
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
        if from.is_null() && !table::is_none(fd) {
            return read_one::<RecvFrom>(fd, buf, len, flags);
        }
        let Some(conn) = ours_for(fd, buf, len) else {
            return covered::recvfrom(fd, buf, len, flags, from, size);
        };
        let [room] = one(buf, len);
        read_from(conn, fd, room, flags, size, || covered::recvfrom(fd, buf, len, flags, from, size))
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
        let Some(conn) = ours(fd).filter(|_| flags & CMSG_COMPAT == 0) else { return covered::recvmsg(fd, msg, flags) };
        let Some((mut header, bufs)) = header(msg).and_then(|header| Some((header, message(&header)?)))
        else {
            return covered::recvmsg(fd, msg, flags);
        };
        if flags & libc::MSG_ERRQUEUE != 0 {
            let real = || covered::recvmsg(fd, msg, flags);
            return answer(zerocopy::read(conn, fd, (msg, header), flags, real), false);
        }
        let mut outcome = read_through(conn, fd, bufs, flags, || covered::recvmsg(fd, msg, flags));
        if let Outcome::Ours(Ok(_)) = outcome {
            if !header.msg_name.is_null() {
                header.msg_namelen = 0;
            }
            header.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
            tell_unread(conn, fd, &mut header);
            if !user::store(msg, header) {
                outcome = Outcome::Ours(Err(Errno::FAULT));
            }
        }
        answer(outcome, false)
    }
    /// recvmmsg(2): one message each, until one would wait
    fn recvmmsg(
        fd: c_int, vec: *mut mmsghdr, count: c_uint, flags: c_int, timeout: *mut timespec,
    ) -> c_int {
        let limit = if timeout.is_null() { Some(None) } else { user::fetch(timeout).and_then(nanoseconds).map(Some) };
        let (true, Some(limit)) = (ours(fd).is_some() && flags & CMSG_COMPAT == 0, limit) else {
            return covered::recvmmsg(fd, vec, count, flags, timeout);
        };
        // The kernel has told of an error before it looks for bytes (do_recvmmsg, net/socket.c).
        let kept = || ours(fd).and_then(kept::take);
        if flags & libc::MSG_ERRQUEUE == 0
            && let Some(error @ 1..) = sys::option(fd, libc::SOL_SOCKET, libc::SO_ERROR).ok().filter(|&error| error > 0).or_else(kept)
        {
            set_errno(error);
            return -1;
        }
        let deadline = call::deadline(limit);
        let (mut done, mut wait) = (0, 0);
        // The time is looked at between messages only, as the kernel does (recvmmsg(2), BUGS).
        while done < count && (done == 0 || call::remaining(deadline).is_ok()) {
            let entry = vec.wrapping_add(done as usize);
            if done > 0
                && let Some(conn) = ours(fd)
                && !comes(conn, fd, &raw const (*entry).msg_hdr, flags | wait)
            {
                break;
            }
            let n = recvmsg(fd, &raw mut (*entry).msg_hdr, flags & !libc::MSG_WAITFORONE | wait);
            if n < 0 || !user::store(&raw mut (*entry).msg_len, n as c_uint) {
                if done == 0 {
                    if n >= 0 { set_errno(libc::EFAULT); }
                    return -1;
                }
                if n < 0
                    && !matches!(errno(), libc::EAGAIN | libc::EINTR | libc::EFAULT)
                    && let Some(conn) = ours(fd)
                {
                    kept::keep(conn, errno());
                }
                break;
            }
            done += 1;
            if flags & libc::MSG_WAITFORONE != 0 { wait = libc::MSG_DONTWAIT; }
        }
        if limit.is_some() && done > 0 {
            let left = call::remaining(deadline).ok().flatten().unwrap_or(0);
            let left = timespec { tv_sec: (left / 1_000_000_000) as _, tv_nsec: (left % 1_000_000_000) as _ };
            user::store(timeout, left);
        }
        done as c_int
    }
    /// send(2)
    fn send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t {
        if table::is_none(fd) {
            return covered::send(fd, buf, len, flags);
        }
        write_one::<Send>(fd, buf, len, flags)
    }
    /// send(2), glibc's internal name
    fn __send(fd: c_int, buf: *const c_void, len: size_t, flags: c_int) -> ssize_t { send(fd, buf, len, flags) }
    /// sendto(2): TCP ignores the address of a connected socket, and refuses MSG_FASTOPEN
    fn sendto(
        fd: c_int, buf: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, size: socklen_t,
    ) -> ssize_t {
        if table::is_none(fd) {
            return covered::sendto(fd, buf, len, flags, to, size);
        }
        if to.is_null() {
            return write_one::<SendTo>(fd, buf, len, flags);
        }
        match ours_for(fd, buf, len).filter(|_| flags & libc::MSG_FASTOPEN == 0 && address_taken(to.cast(), size)) {
            Some(conn) => write_to(conn, fd, one(buf, len), flags, |flags| {
                covered::sendto(fd, buf, len, flags, to, size)
            }),
            None => covered::sendto(fd, buf, len, flags, to, size),
        }
    }
    /// sendmsg(2); descriptors that it passes on leave their lanes
    fn sendmsg(fd: c_int, msg: *const msghdr, flags: c_int) -> ssize_t {
        let Some(conn) = ours(fd).filter(|_| flags & CMSG_COMPAT == 0) else {
            hand_over_rights(msg);
            return covered::sendmsg(fd, msg, flags);
        };
        let Some((header, bufs)) = header(msg)
            .filter(|header| flags & libc::MSG_FASTOPEN == 0 && address_taken(header.msg_name, header.msg_namelen))
            .and_then(|header| Some((header, message(&header)?)))
        else {
            return covered::sendmsg(fd, msg, flags);
        };
        if header.msg_controllen != 0 {
            // Marks, priorities and time stamps of segments.
            conn::revoke_for_good(conn, fd, Reason::OptionUnsupported);
        }
        write_through(conn, fd, bufs, flags, |flags| covered::sendmsg(fd, msg, flags))
    }
    /// sendmmsg(2)
    fn sendmmsg(fd: c_int, vec: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        let count = count.min(MOST_ENTRIES as c_uint);
        if ours(fd).is_none() || flags & CMSG_COMPAT != 0 {
            hand_over_rights_of_all(vec, count);
            return covered::sendmmsg(fd, vec, count, flags);
        }
        let mut done = 0;
        while done < count {
            let entry = vec.wrapping_add(done as usize);
            let n = sendmsg(fd, &raw const (*entry).msg_hdr, flags);
            if n < 0 || !user::store(&raw mut (*entry).msg_len, n as c_uint) {
                if n >= 0 { set_errno(libc::EFAULT); }
                return if done > 0 { done as c_int } else { -1 };
            }
            done += 1;
            // No byte of the next one comes in the middle of this one (__sys_sendmmsg, net/socket.c).
            if length(&raw const (*entry).msg_hdr).is_some_and(|all| (n as usize) < all) { break; }
        }
        done as c_int
    }
    /// sendmmsg(2), glibc's internal name
    fn __sendmmsg(fd: c_int, vec: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int {
        sendmmsg(fd, vec, count, flags)
    }
    /// sendfile(2): the file is read straight into the ring
    fn sendfile(out: c_int, file: c_int, offset: *mut off_t, count: size_t) -> ssize_t {
        let is_file = ours(out).is_some() && ours(file).is_none() && sys::is_seekable(file);
        // The file's own position moves when bytes have been sent: what a lane refuses is read once more, to go by TCP.
        let at = match offset {
            _ if !is_file => None,
            own if own.is_null() => sys::position(file).ok(),
            offset => user::fetch(offset),
        };
        let (Some(conn), Some(at)) = (ours(out), at) else {
            return covered::sendfile(out, file, offset, count);
        };
        let source = Source::File { fd: file, offset: at, left: count.min(user::MOST), done: 0 };
        let mut outcome = transmit(conn, out, source, 0, |_| covered::sendfile(out, file, offset, count));
        if let Outcome::Ours(Ok(n)) = &outcome {
            let end = at + *n as off_t;
            if offset.is_null() {
                sys::set_position(file, end);
            } else if !user::store(offset, end) {
                outcome = Outcome::Ours(Err(Errno::FAULT));
            }
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
            if let Err(errno) = tx::pay_first(conn, to, flags & libc::SPLICE_F_NONBLOCK == 0) {
                return answer(Outcome::Ours(Err(errno)), false);
            }
        }
        if let Some(conn) = ours(from) {
            conn::revoke_for_good(conn, from, Reason::Splice);
            let sound = from_at.is_null() && to_at.is_null() && sys::is_pipe(to);
            if sound && !conn::reads_tcp(conn) {
                return splice_ring(conn, from, to, len, flags);
            }
        }
        covered::splice(from, from_at, to, to_at, len, flags)
    }
}

/// What a revoked lane still holds, and TCP's bytes before it, into a pipe: written first, then consumed, so that nothing is
/// lost. To the end of the lane, also while it shows nothing: what TCP has then comes after bytes of the lane.
unsafe fn splice_ring(conn: Conn, from: c_int, to: c_int, len: size_t, flags: c_uint) -> ssize_t {
    // A write of so many bytes does not block where poll shows room: all of them fit into one page of the pipe.
    let mut bytes = [0u8; libc::PIPE_BUF];
    if flags & libc::SPLICE_F_NONBLOCK != 0 && sys::poll_now(to, libc::POLLOUT) & libc::POLLOUT == 0 {
        set_errno(libc::EAGAIN);
        return -1;
    }
    let room = one(bytes.as_mut_ptr().cast(), len.min(bytes.len()));
    let peeked = receive(conn, from, &room, libc::MSG_PEEK, || -1);
    if matches!(peeked, Outcome::Libc(_)) {
        // SAFETY: libc's own, on the program's descriptors.
        return unsafe { covered::splice(from, null_mut(), to, null_mut(), len, flags) };
    }
    let Outcome::Ours(Ok(n)) = peeked else { return answer(peeked, false) };
    // SAFETY: n bytes of our buffer were set.
    let written = unsafe { write(to, bytes.as_ptr().cast(), n) };
    if let Ok(written) = usize::try_from(written) {
        let _ = receive(conn, from, &one(bytes.as_ptr().cast(), written), libc::MSG_DONTWAIT, || -1);
    }
    written
}
