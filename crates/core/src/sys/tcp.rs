//! What the kernel says of a TCP connection: its counts, what it shows, its queues.

use rustix::io::Errno;

use super::{Res, call, option, poll_now, recv, set_option};

/// ioctl(2) that fills an int: SIOCINQ, SIOCOUTQ.
pub fn queue(fd: i32, request: libc::c_ulong) -> Res {
    let mut n = 0i32;
    // SAFETY: n lives through the call.
    unsafe { call(libc::SYS_ioctl, fd as usize, request as usize, &raw mut n as usize, 0, 0, 0) }?;
    Ok(n as usize)
}

/// SIOCINQ: bytes in the receive queue.
pub const SIOCINQ: libc::c_ulong = 0x541B;
/// How many bytes a read of a TCP socket would get now, up to urgent data. By a peek where a filter that came round the hooks refuses the
/// ioctl. Errors: also one that the connection has come to, which a peek takes away as a read does.
pub fn unread(fd: i32) -> Res {
    const MOST: usize = 1 << 30;
    queue(fd, SIOCINQ).or_else(|errno| {
        if poll_now(fd, libc::POLLPRI) & libc::POLLPRI != 0 {
            return Err(errno);
        }
        // With MSG_TRUNC TCP counts the bytes and copies none (tcp(7)).
        let flags = libc::MSG_PEEK | libc::MSG_TRUNC | libc::MSG_DONTWAIT;
        let nowhere = libc::iovec { iov_base: core::ptr::null_mut(), iov_len: MOST };
        match recv(fd, &mut [nowhere], flags) {
            Err(Errno::AGAIN) => Ok(0),
            counted => counted,
        }
    })
}

/// SIOCOUTQ: bytes sent and not acknowledged, or not sent.
pub const SIOCOUTQ: libc::c_ulong = 0x5411;

/// Bytes that TCP takes without waiting, at least: half of what the send buffer has free, as the kernel counts its own overhead, too (socket(7)).
pub fn tcp_takes(fd: i32) -> u64 {
    let buffer = option::<i32>(fd, libc::SOL_SOCKET, libc::SO_SNDBUF).map_or(0, |bytes| bytes as u64);
    (buffer / 2).saturating_sub(queue(fd, SIOCOUTQ).map_or(u64::MAX, |queued| queued as u64))
}

/// Whoever closes it last resets the connection.
pub fn reset_at_close(fd: i32) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let _ = set_option(fd, libc::SOL_SOCKET, libc::SO_LINGER, &linger);
}

/// What TCP itself shows of a connection, among `events` and POLLHUP. Not POLLERR: with the connection's end it never comes
/// alone, and alone it tells of something in the error queue (notices, time stamps), which the program is to read.
pub fn tcp_shows(fd: i32, events: i16) -> i16 {
    poll_now(fd, events) & !libc::POLLERR
}

/// The kernel's count of a connection's stream.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Bytes that the program has written so far.
    pub sent: u64,
    /// Bytes that the program has read so far.
    pub received: u64,
    /// TCP state is ESTABLISHED.
    pub established: bool,
    /// TCP state is SYN_SENT.
    pub connecting: bool,
}

/// Reads [`Counts`] from TCP_INFO, SIOCOUTQ and SIOCINQ. `opener`: this end called connect(), its bytes_acked counts the SYN.
/// Errors: EAGAIN where the figures moved while they were read; others where the kernel would not say.
pub fn counts(fd: i32, opener: bool) -> Result<Counts, Errno> {
    for _ in 0..3 {
        let before: TcpInfo = option(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
        let unacked = queue(fd, SIOCOUTQ)? as u64;
        let unread = queue(fd, SIOCINQ)? as u64;
        let after: TcpInfo = option(fd, libc::IPPROTO_TCP, libc::TCP_INFO)?;
        if (before.acked, before.received) == (after.acked, after.received) {
            return Ok(Counts {
                sent: (after.acked + unacked).checked_sub(u64::from(opener)).ok_or(Errno::AGAIN)?,
                received: after.received.checked_sub(unread).ok_or(Errno::AGAIN)?,
                established: after.state == 1,
                connecting: after.state == 2,
            });
        }
    }
    Err(Errno::AGAIN)
}

/// What TCP has shown of a connection to who waits for it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Shown {
    /// Bytes that have come, read or not, and the stream's end.
    received: u64,
    /// Bytes that were sent, acknowledged or not.
    sent: u64,
    /// POLL* bits that stand.
    pub events: i16,
}

impl Shown {
    /// Now; none where the kernel would not say.
    pub fn now(fd: i32) -> Option<Self> {
        let info: TcpInfo = option(fd, libc::IPPROTO_TCP, libc::TCP_INFO).ok()?;
        let events = libc::POLLIN | libc::POLLOUT | libc::POLLPRI | libc::POLLRDHUP;
        let unacked = queue(fd, SIOCOUTQ).ok()? as u64;
        Some(Self { received: info.received, sent: info.acked + unacked, events: poll_now(fd, events) })
    }

    /// What a look has shown that found `events`, the stream's end among them: no more can come after it.
    pub fn at_the_end(fd: i32, events: i16) -> Option<Self> {
        debug_assert!(events & libc::POLLRDHUP != 0, "more may have come since the look");
        Some(Self { events, ..Self::now(fd)? })
    }

    /// Whether more stands now than did then, the room for writing aside.
    pub fn has_more(self, fd: i32) -> bool {
        Self::now(fd).is_none_or(|now| {
            now.received != self.received || now.events & !self.events & !(libc::POLLIN | libc::POLLOUT) != 0
        })
    }

    /// Whether TCP was given bytes since: before that it cannot have come to lack room.
    pub fn has_sent(self, fd: i32) -> bool {
        Self::now(fd).is_none_or(|now| now.sent != self.sent)
    }

    /// Whether the stream's end is among it.
    pub fn is_over(self) -> bool {
        self.events & libc::POLLRDHUP != 0
    }
}

/// Whether the kernel holds the last part of a client's handshake back for its first bytes, without which no server can accept: it has
/// sent nothing but the SYN (tcp_rcv_synsent_state_process, net/ipv4/tcp_input.c).
pub fn is_held_back(fd: i32) -> bool {
    option(fd, libc::IPPROTO_TCP, libc::TCP_INFO)
        .is_ok_and(|info: TcpInfo| info.state == 1 && info.segs_out == 1)
}

/// Whether the peer may send yet, whatever POLLRDHUP shows: that stands after one's own SHUT_RD, too.
pub fn peer_may_send(fd: i32) -> bool {
    const ESTABLISHED: u8 = 1;
    const FIN_WAIT1: u8 = 4;
    const FIN_WAIT2: u8 = 5;
    option(fd, libc::IPPROTO_TCP, libc::TCP_INFO)
        .is_ok_and(|info: TcpInfo| matches!(info.state, ESTABLISHED | FIN_WAIT1 | FIN_WAIT2))
}

/// What SIOCINQ leaves out of what a reader finds behind the first `read` bytes of a stream: urgent data and all behind it, and the stream's
/// end, which is a byte (tcp_inq and tcp_fin, net/ipv4).
pub fn left_out_by_siocinq(fd: i32, read: u64) -> u64 {
    let counted = queue(fd, SIOCINQ).unwrap_or(0) as u64;
    option(fd, libc::IPPROTO_TCP, libc::TCP_INFO)
        .map_or(0, |info: TcpInfo| info.received.saturating_sub(read + counted))
}

/// struct tcp_info of include/uapi/linux/tcp.h, as far as we read it.
#[repr(C)]
#[derive(Copy, Clone)]
struct TcpInfo {
    state: u8,
    _to_acked: [u8; 119],
    acked: u64,
    received: u64,
    segs_out: u32,
}

const _: () = assert!(core::mem::offset_of!(TcpInfo, acked) == 120);
