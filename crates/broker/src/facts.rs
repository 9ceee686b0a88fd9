//! What the kernel says of a nominated socket, and whether it agrees with what the hooks counted.
//!
//! The descriptor is borrowed for the time of the reading: the broker never keeps a connection alive.

use rustix::fd::{AsRawFd, BorrowedFd};
use rustix::net::{AddressFamily, SocketAddrAny, SocketType, ipproto, sockopt};
use shunpike_wire::Reason;
use shunpike_wire::session::Role;
use std::net::{IpAddr, SocketAddr};

/// One end of a TCP connection as the wire sees it: IPv4-mapped addresses are IPv4's, and an interface's
/// scope, which differs from namespace to namespace, is no part of it.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Endpoint {
    /// Address.
    pub ip: IpAddr,
    /// Port.
    pub port: u16,
}

impl From<SocketAddr> for Endpoint {
    fn from(addr: SocketAddr) -> Self {
        Self { ip: addr.ip().to_canonical(), port: addr.port() }
    }
}

/// A TCP connection as one of its ends sees it.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tuple {
    /// This end.
    pub local: Endpoint,
    /// The other.
    pub remote: Endpoint,
}

impl Tuple {
    /// The same connection as the other end sees it.
    pub fn mirrored(self) -> Self {
        Self { local: self.remote, remote: self.local }
    }

    /// Whether the connection cannot leave its network namespace.
    pub fn is_loopback(self) -> bool {
        self.local.ip.is_loopback() || self.remote.ip.is_loopback()
    }
}

/// What both ends of a connection must have agreed upon when it was made.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Terms {
    /// Timestamps, SACK and window scaling in use (`TCPI_OPT_*`).
    pub options: u8,
    /// Window scale that this end sends by.
    pub snd_wscale: u8,
    /// Window scale that this end receives by.
    pub rcv_wscale: u8,
}

impl Terms {
    /// The same terms as the other end sees them.
    pub fn mirrored(self) -> Self {
        Self { options: self.options, snd_wscale: self.rcv_wscale, rcv_wscale: self.snd_wscale }
    }
}

/// Sequence numbers of the first byte in each direction.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Sequences {
    /// Of the bytes that this end sends.
    pub own: u32,
    /// Of those that it receives.
    pub peer: u32,
}

impl Sequences {
    /// The same connection as the other end sees it.
    pub fn mirrored(self) -> Self {
        Self { own: self.peer, peer: self.own }
    }
}

/// An established TCP connection whose byte counts are proved.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Addresses.
    pub tuple: Tuple,
    /// SO_NETNS_COOKIE; `None` on a kernel without it (before 5.14).
    pub netns: Option<u64>,
    /// SO_COOKIE: names the socket for as long as the system runs.
    pub cookie: u64,
    /// Bytes written to the connection.
    pub sent: u64,
    /// Bytes read from it.
    pub received: u64,
    /// Bytes that TCP has received, read or not.
    pub arrived: u64,
    /// Bytes that the peer's TCP has confirmed.
    pub acked: u64,
    /// Window scales and options.
    pub terms: Terms,
    /// Initial sequence numbers, where the broker may look at them.
    pub sequences: Option<Sequences>,
}

/// What comes of a look at a nominated socket.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Proof {
    /// The kernel's counts are the hooks' counts.
    Proved(Facts),
    /// The kernel has counted on since the nomination was written: to be asked again.
    Moving,
    /// Not a connection that can have a lane.
    Refused(Reason),
}

/// Bytes that the hooks counted: sent and received.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Counts {
    /// Sent.
    pub tx: u64,
    /// Received.
    pub rx: u64,
}

/// Looks at `socket`. `claimed` are the counts of the nomination; `latest` reads those that the hooks have
/// counted by now, for a connection that went on while the nomination was under way.
pub fn prove(
    socket: BorrowedFd<'_>,
    role: Role,
    claimed: Counts,
    latest: impl Fn() -> Option<Counts>,
) -> Proof {
    const TRIES: usize = 4;
    for _ in 0..TRIES {
        let facts = match read(socket, role) {
            Ok(Some(facts)) => facts,
            Ok(None) => continue,
            Err(reason) => return Proof::Refused(reason),
        };
        let kernel = Counts { tx: facts.sent, rx: facts.received };
        if kernel == claimed || latest() == Some(kernel) {
            return Proof::Proved(facts);
        }
        if kernel.tx < claimed.tx || kernel.rx < claimed.rx {
            return Proof::Refused(Reason::BypassedHooks);
        }
    }
    Proof::Moving
}

/// The facts, `None` when they moved between two looks. Errors: why the socket can have no lane.
fn read(socket: BorrowedFd<'_>, role: Role) -> Result<Option<Facts>, Reason> {
    let not_ours = |_| Reason::OptionUnsupported;
    let domain = sockopt::socket_domain(socket).map_err(not_ours)?;
    let tcp = sockopt::socket_type(socket) == Ok(SocketType::STREAM)
        && sockopt::socket_protocol(socket) == Ok(Some(ipproto::TCP))
        && matches!(domain, AddressFamily::INET | AddressFamily::INET6);
    if !tcp {
        return Err(Reason::OptionUnsupported);
    }
    let before = TcpInfo::of(socket)?;
    if before.state != TCP_ESTABLISHED {
        return Err(Reason::NotEstablished);
    }
    if before.options & TCPI_OPT_SYN_DATA != 0 {
        return Err(Reason::FastOpen);
    }
    if has_upper_layer(socket) {
        return Err(Reason::Ktls);
    }
    let outq = bytes_queued_out(socket)?;
    let inq = rustix::io::ioctl_fionread(socket).map_err(not_ours)?;
    let after = TcpInfo::of(socket)?;
    if after != before {
        return Ok(None);
    }
    let endpoint = |addr: SocketAddrAny| {
        SocketAddr::try_from(addr).map(Endpoint::from).map_err(|_| Reason::OptionUnsupported)
    };
    let local = endpoint(rustix::net::getsockname(socket).map_err(not_ours)?)?;
    let remote =
        endpoint(rustix::net::getpeername(socket).map_err(not_ours)?.ok_or(Reason::NotEstablished)?)?;
    // The active opener's SYN takes a sequence number, which the kernel counts as an acknowledged byte.
    let syn = u64::from(role == Role::Client);
    let acked = after.bytes_acked.checked_sub(syn).ok_or(Reason::BypassedHooks)?;
    let Some(received) = after.bytes_received.checked_sub(inq) else {
        return Ok(None);
    };
    Ok(Some(Facts {
        tuple: Tuple { local, remote },
        netns: netns_cookie(socket),
        cookie: sockopt::socket_cookie(socket).map_err(not_ours)?,
        sent: acked + outq,
        received,
        arrived: after.bytes_received,
        acked,
        terms: Terms {
            options: after.options & (TCPI_OPT_TIMESTAMPS | TCPI_OPT_SACK | TCPI_OPT_WSCALE),
            snd_wscale: after.wscales & 0xf,
            rcv_wscale: after.wscales >> 4,
        },
        sequences: None,
    }))
}

// include/net/tcp_states.h and include/uapi/linux/tcp.h
const TCP_ESTABLISHED: u8 = 1;
const TCPI_OPT_TIMESTAMPS: u8 = 1;
const TCPI_OPT_SACK: u8 = 2;
const TCPI_OPT_WSCALE: u8 = 4;
const TCPI_OPT_SYN_DATA: u8 = 32;
// include/uapi/asm-generic/socket.h
const SO_NETNS_COOKIE: libc::c_int = 71;

/// The parts of `struct tcp_info` (include/uapi/linux/tcp.h) that are looked at. libc's own struct ends
/// before the byte counts.
#[derive(Copy, Clone, PartialEq, Eq)]
struct TcpInfo {
    state: u8,
    options: u8,
    wscales: u8,
    bytes_acked: u64,
    bytes_received: u64,
}

impl TcpInfo {
    fn of(socket: BorrowedFd<'_>) -> Result<Self, Reason> {
        const BYTES_ACKED: usize = 120;
        const BYTES_RECEIVED: usize = 128;
        let mut raw = [0; 136];
        let len = crate::sockopt::read(socket, libc::IPPROTO_TCP, libc::TCP_INFO, &mut raw)
            .ok_or(Reason::OptionUnsupported)?;
        if len < raw.len() {
            // A kernel before 4.1 does not count: nothing can be proved on it.
            return Err(Reason::OptionUnsupported);
        }
        let word = |at: usize| {
            raw.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |bytes| u64::from_ne_bytes(*bytes))
        };
        Ok(Self {
            state: raw[0],
            options: raw[5],
            wscales: raw[6],
            bytes_acked: word(BYTES_ACKED),
            bytes_received: word(BYTES_RECEIVED),
        })
    }
}

fn has_upper_layer(socket: BorrowedFd<'_>) -> bool {
    let mut name = [0; 16];
    crate::sockopt::read(socket, libc::IPPROTO_TCP, libc::TCP_ULP, &mut name).is_some_and(|len| len > 0)
}

/// SO_NETNS_COOKIE: names the network namespace of a socket, of any kind.
pub fn netns_cookie(socket: BorrowedFd<'_>) -> Option<u64> {
    let mut raw = [0; 8];
    crate::sockopt::read(socket, libc::SOL_SOCKET, SO_NETNS_COOKIE, &mut raw).map(|_| u64::from_ne_bytes(raw))
}

fn bytes_queued_out(socket: BorrowedFd<'_>) -> Result<u64, Reason> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ, which is TIOCOUTQ, writes one int.
    let rc = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if rc == 0 { u64::try_from(bytes).map_err(|_| Reason::Internal) } else { Err(Reason::OptionUnsupported) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fd::AsFd;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};

    const NOTHING: Counts = Counts { tx: 0, rx: 0 };

    fn pair(address: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn proved(socket: &TcpStream, role: Role, tx: u64, rx: u64) -> Facts {
        match prove(socket.as_fd(), role, Counts { tx, rx }, || None) {
            Proof::Proved(facts) => facts,
            other => panic!("{other:?}"),
        }
    }

    /// Loopback acknowledges within the call that sends, but for a delayed ACK's timer.
    fn until_acked(socket: &TcpStream, role: Role, sent: u64) {
        while read(socket.as_fd(), role).unwrap().is_none_or(|facts| facts.acked < sent) {
            std::thread::yield_now();
        }
    }

    #[test]
    fn two_ends_mirror() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let (mut client, mut server) = pair(address);
            client.write_all(b"hello").unwrap();
            server.read_exact(&mut [0; 5]).unwrap();
            server.write_all(b"hi").unwrap();
            client.read_exact(&mut [0; 2]).unwrap();
            until_acked(&client, Role::Client, 5);
            until_acked(&server, Role::Server, 2);
            let (a, b) = (proved(&client, Role::Client, 5, 2), proved(&server, Role::Server, 2, 5));
            assert_eq!(a.tuple, b.tuple.mirrored());
            assert_eq!(a.terms, b.terms.mirrored());
            assert_eq!(a.netns, b.netns);
            assert!(a.netns.is_some());
            assert_ne!(a.cookie, b.cookie);
            assert!(a.tuple.is_loopback());
        }
    }

    #[test]
    fn mapped_addresses_are_ipv4() {
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let server = listener.accept().unwrap().0;
        assert!(server.local_addr().unwrap().is_ipv6());
        let (a, b) = (proved(&client, Role::Client, 0, 0), proved(&server, Role::Server, 0, 0));
        assert_eq!(a.tuple, b.tuple.mirrored());
    }

    #[test]
    fn bytes_in_flight_are_counted_where_they_are() {
        let (mut client, server) = pair("127.0.0.1:0");
        client.write_all(&[7; 1000]).unwrap();
        until_acked(&client, Role::Client, 1000);
        let facts = proved(&server, Role::Server, 0, 0);
        assert_eq!((facts.received, facts.arrived), (0, 1000));
    }

    #[test]
    fn bytes_that_went_round_the_hooks_are_found() {
        let (mut client, server) = pair("127.0.0.1:0");
        client.write_all(b"hello").unwrap();
        let prove = |claimed, latest| prove(client.as_fd(), Role::Client, claimed, || latest);
        assert_eq!(prove(NOTHING, None), Proof::Moving);
        assert_eq!(prove(NOTHING, Some(NOTHING)), Proof::Moving);
        assert!(matches!(prove(NOTHING, Some(Counts { tx: 5, rx: 0 })), Proof::Proved(_)));
        let claimed = Counts { tx: 6, rx: 0 };
        assert_eq!(prove(claimed, None), Proof::Refused(Reason::BypassedHooks));
        drop(server);
    }

    #[test]
    fn what_is_no_established_tcp_connection_is_refused() {
        let refused = |fd: BorrowedFd<'_>| match prove(fd, Role::Server, NOTHING, || None) {
            Proof::Refused(reason) => reason,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(UdpSocket::bind("127.0.0.1:0").unwrap().as_fd()), Reason::OptionUnsupported);
        assert_eq!(refused(std::fs::File::open("/dev/null").unwrap().as_fd()), Reason::OptionUnsupported);
        let unix = std::os::unix::net::UnixStream::pair().unwrap();
        assert_eq!(refused(unix.0.as_fd()), Reason::OptionUnsupported);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(refused(listener.as_fd()), Reason::NotEstablished);
        let (client, server) = pair("127.0.0.1:0");
        client.shutdown(std::net::Shutdown::Write).unwrap();
        assert_eq!(refused(client.as_fd()), Reason::NotEstablished);
        drop(server);
    }
}
