//! MSG_ERRQUEUE: notices as control messages, byte for byte as ip_recv_error (net/ipv4/ip_sockglue.c) and ipv6_recv_error
//! (net/ipv6/datagram.c) give them. What else the kernel has in a socket's error queue passes unchanged.

use rustix::io::Errno;
use shunpike_shm::notices::Fact;

use super::{end_turn, lending, tell};
use crate::call::Outcome;
use crate::table::Conn;
use crate::{session, sys, user};

/// struct sock_extended_err of include/uapi/linux/errqueue.h.
#[repr(C)]
#[derive(Copy, Clone)]
struct Extended {
    errno: u32,
    origin: u8,
    kind: u8,
    code: u8,
    pad: u8,
    info: u32,
    data: u32,
}

const ORIGIN_ZEROCOPY: u8 = 5;
const CODE_COPIED: u8 = 1;

/// Length of a cmsghdr; what follows it, and the next one, is aligned by a long.
const HEADER: usize = size_of::<libc::cmsghdr>();

/// recvmsg(2) with MSG_ERRQUEUE. `header` is what stands at `msg`, its vector looked at; `real` libc's call.
///
/// # Safety
/// The program's message, with the buffers that it names.
pub unsafe fn read(
    conn: Conn,
    fd: i32,
    (msg, mut header): (*mut libc::msghdr, libc::msghdr),
    flags: i32,
    real: impl FnOnce() -> isize,
) -> Outcome {
    session::pump_if_news();
    if conn.block.notices.untouched() {
        return Outcome::Libc(real());
    }
    let mut control = Control::of(&header);
    header.msg_flags = flags & libc::MSG_CMSG_CLOEXEC;
    // SAFETY: the caller's word for the buffers that `header` names.
    let bytes = match unsafe { next(conn, fd, &mut header, flags, &mut control) } {
        Ok(bytes) => bytes,
        Err(errno) => return Outcome::Ours(Err(errno)),
    };
    end_turn(conn, fd);
    header.msg_flags |= libc::MSG_ERRQUEUE | control.truncated;
    header.msg_control = control.begin.cast();
    header.msg_controllen = control.used;
    // SAFETY: the caller's word for it.
    let stored = unsafe { user::store(msg, header) };
    Outcome::Ours(if stored { Ok(bytes) } else { Err(Errno::FAULT) })
}

/// recv(2) and recvfrom(2) with MSG_ERRQUEUE: takes a notice off, and has no place to tell what it said.
///
/// # Safety
/// The program's buffer.
pub unsafe fn read_bare(
    conn: Conn,
    fd: i32,
    buffer: libc::iovec,
    flags: i32,
    real: impl FnOnce() -> isize,
) -> Outcome {
    session::pump_if_news();
    if conn.block.notices.untouched() {
        return Outcome::Libc(real());
    }
    let mut buffer = [buffer];
    // SAFETY: an all-zero msghdr is valid.
    let mut header: libc::msghdr = unsafe { core::mem::zeroed() };
    header.msg_iov = buffer.as_mut_ptr();
    header.msg_iovlen = 1;
    let mut control = Control::of(&header);
    // SAFETY: the caller's word for it.
    let taken = unsafe { next(conn, fd, &mut header, flags, &mut control) };
    end_turn(conn, fd);
    Outcome::Ours(taken)
}

/// The next entry of the error queue: bytes of its payload. Errors: EAGAIN.
///
/// # Safety
/// The name and the buffers of `header` are the program's.
unsafe fn next(
    conn: Conn,
    fd: i32,
    header: &mut libc::msghdr,
    flags: i32,
    control: &mut Control,
) -> Result<usize, Errno> {
    let notices = &conn.block.notices;
    lending::refresh(conn, fd);
    // The kernel's first, also where they are still on their way: their numbers are the lower ones.
    if notices.kernel_owes() {
        // SAFETY: the caller's word for it.
        let taken = unsafe { kernels(conn, fd, header, flags, control) };
        if notices.readable() {
            tell(conn);
        }
        return taken;
    }
    let Some((info, data, copied)) = notices.take() else {
        // A notice of a call that another thread makes just now, or something else than a notice.
        // SAFETY: the caller's word for it.
        return unsafe { kernels(conn, fd, header, flags, control) };
    };
    // Those that have waited because their code is another.
    lending::refresh(conn, fd);
    if notices.readable() {
        tell(conn);
    }
    let code = if copied { CODE_COPIED } else { 0 };
    let notice = Extended { errno: 0, origin: ORIGIN_ZEROCOPY, kind: 0, code, pad: 0, info, data };
    if notices.is(Fact::Stamped, || Stamp::ALL.iter().any(|one| one.is_wanted(fd))) {
        control.put_time(fd);
    }
    // The socket's own family tells, also where its addresses are IPv4-mapped; behind it the offender's address: none.
    let is_ipv6 = || sys::option(fd, libc::SOL_SOCKET, libc::SO_DOMAIN) == Ok(libc::AF_INET6);
    let (level, kind, offender) = if notices.is(Fact::Ipv6, is_ipv6) {
        (libc::SOL_IPV6, libc::IPV6_RECVERR, size_of::<libc::sockaddr_in6>())
    } else {
        (libc::SOL_IP, libc::IP_RECVERR, size_of::<libc::sockaddr_in>())
    };
    let mut bytes = [0u8; size_of::<Extended>() + size_of::<libc::sockaddr_in6>()];
    notice.write(&mut bytes);
    control.put(level, kind, &bytes[..size_of::<Extended>() + offender]);
    header.msg_namelen = 0;
    Ok(0)
}

/// The next entry of the kernel's queue; a notice gets the number that it has in the program's sequence.
///
/// # Safety
/// As `next`.
unsafe fn kernels(
    conn: Conn,
    fd: i32,
    header: &mut libc::msghdr,
    flags: i32,
    control: &mut Control,
) -> Result<usize, Errno> {
    // More than any entry has; 8-byte words for the alignment.
    let mut space = [0u64; 64];
    let mut ours = *header;
    ours.msg_control = space.as_mut_ptr().cast();
    ours.msg_controllen = size_of_val(&space);
    // SAFETY: the control space is ours, the rest the caller's word.
    let bytes = unsafe { sys::recv_message(fd, &mut ours, flags) }?;
    // SAFETY: the control messages that the kernel wrote just now, walked as the CMSG macros do.
    unsafe {
        let mut cmsg = libc::CMSG_FIRSTHDR(&ours);
        while !cmsg.is_null() {
            let len = (*cmsg).cmsg_len.saturating_sub(HEADER);
            let data = core::slice::from_raw_parts_mut(libc::CMSG_DATA(cmsg), len);
            let place = ((*cmsg).cmsg_level, (*cmsg).cmsg_type);
            let is_error =
                matches!(place, (libc::SOL_IP, libc::IP_RECVERR) | (libc::SOL_IPV6, libc::IPV6_RECVERR));
            if let Some(mut entry) =
                Extended::read(data).filter(|entry| is_error && entry.origin == ORIGIN_ZEROCOPY)
            {
                (entry.info, entry.data) = conn.block.notices.translate((entry.info, entry.data));
                entry.write(data);
            }
            control.put(place.0, place.1, data);
            cmsg = libc::CMSG_NXTHDR(&ours, cmsg);
        }
    }
    header.msg_namelen = ours.msg_namelen;
    header.msg_flags |= ours.msg_flags;
    Ok(bytes)
}

impl Extended {
    fn read(from: &[u8]) -> Option<Self> {
        // SAFETY: as many bytes as asked for; any are valid.
        (from.len() >= size_of::<Self>()).then(|| unsafe { from.as_ptr().cast::<Self>().read_unaligned() })
    }

    fn write(self, to: &mut [u8]) {
        assert!(to.len() >= size_of::<Self>());
        // SAFETY: there is room, as asserted; a C struct without padding.
        unsafe { to.as_mut_ptr().cast::<Self>().write_unaligned(self) }
    }
}

/// An option by which a time comes with what is received.
struct Stamp {
    option: i32,
    kind: i32,
    /// What the second half of the time counts.
    nanoseconds: i64,
}

impl Stamp {
    const ALL: [Self; 2] = [
        Self { option: libc::SO_TIMESTAMP, kind: libc::SCM_TIMESTAMP, nanoseconds: 1000 },
        Self { option: libc::SO_TIMESTAMPNS, kind: libc::SCM_TIMESTAMPNS, nanoseconds: 1 },
    ];

    fn is_wanted(&self, fd: i32) -> bool {
        sys::option(fd, libc::SOL_SOCKET, self.option) == Ok(1i32)
    }
}

/// The program's room for control messages.
struct Control {
    begin: *mut u8,
    size: usize,
    used: usize,
    /// MSG_CTRUNC once something did not fit.
    truncated: i32,
}

impl Control {
    fn of(header: &libc::msghdr) -> Self {
        Self { begin: header.msg_control.cast(), size: header.msg_controllen, used: 0, truncated: 0 }
    }

    /// The time of the reading, where the program wants one with whatever it receives (socket(7), SO_TIMESTAMP).
    fn put_time(&mut self, fd: i32) {
        if let Some(stamp) = Stamp::ALL.iter().find(|one| one.is_wanted(fd)) {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
            let words = [now.tv_sec.to_ne_bytes(), (now.tv_nsec / stamp.nanoseconds).to_ne_bytes()];
            self.put(libc::SOL_SOCKET, stamp.kind, words.as_flattened());
        }
    }

    /// One message, as put_cmsg (net/core/scm.c) does it: what does not fit is cut off, and a place that cannot be written
    /// to is passed over.
    fn put(&mut self, level: i32, kind: i32, data: &[u8]) {
        let left = self.size - self.used;
        if self.begin.is_null() || left < HEADER {
            self.truncated = libc::MSG_CTRUNC;
            return;
        }
        let mut len = HEADER + data.len();
        if left < len {
            self.truncated = libc::MSG_CTRUNC;
            len = left;
        }
        let at = self.begin.wrapping_add(self.used);
        let header = libc::cmsghdr { cmsg_len: len, cmsg_level: level, cmsg_type: kind };
        // SAFETY: the program's room for it, if it is mapped.
        let written = unsafe {
            user::store(at.cast(), header)
                && user::copy(at.wrapping_add(HEADER), data.as_ptr(), len - HEADER).is_ok()
        };
        if written {
            self.used += (HEADER + data.len()).next_multiple_of(size_of::<usize>()).min(left);
        }
    }
}
