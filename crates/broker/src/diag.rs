//! Whether a socket that was looked at some time ago still is what holds its addresses: asked of the kernel by those and
//! by its cookie (sock_diag(7)), since no descriptor of it is kept.

use crate::facts::{Endpoint, Facts};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};
use std::net::IpAddr;
use std::time::Duration;

// include/uapi/linux/sock_diag.h, inet_diag.h, netlink.h, net/tcp_states.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const ALL_STATES: u32 = !0;
const TCP_ESTABLISHED: u8 = 1;
/// struct nlmsghdr.
const HEADER: usize = 16;
/// The answer comes within the call that asks; this is for a kernel that has to load a module first.
const PATIENCE: Duration = Duration::from_millis(100);

/// Asks of sockets in the broker's own network namespace.
pub struct Diag {
    socket: OwnedFd,
    netns: u64,
}

impl Diag {
    /// `None` where there is nobody to ask.
    pub fn new() -> Option<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            Some(netlink::SOCK_DIAG),
        )
        .ok()?;
        let patience = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&socket, patience, Some(PATIENCE)).ok()?;
        let netns = crate::facts::netns_cookie(socket.as_fd())?;
        Some(Self { socket, netns })
    }

    /// Whether the very socket of `facts` is established at these addresses now. False also where that is not known: in
    /// another namespace, or bound to an interface.
    pub fn holds(&self, facts: &Facts) -> bool {
        facts.netns == Some(self.netns) && self.ask(facts).unwrap_or(false)
    }

    fn ask(&self, facts: &Facts) -> Option<bool> {
        while rustix::net::recv(&self.socket, &mut [0; 64][..], RecvFlags::DONTWAIT).is_ok() {}
        rustix::net::send(&self.socket, &request(facts), SendFlags::empty()).ok()?;
        let mut answer = [0; 512];
        let (len, _) = rustix::net::recv(&self.socket, &mut answer[..], RecvFlags::empty()).ok()?;
        let answer = answer.get(..len)?;
        let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
        // struct inet_diag_msg: family, state. All else is an error: there is no such socket.
        Some(kind == SOCK_DIAG_BY_FAMILY && answer.get(HEADER + 1) == Some(&TCP_ESTABLISHED))
    }
}

/// struct nlmsghdr and struct inet_diag_req_v2.
fn request(facts: &Facts) -> [u8; 72] {
    let mut request = [0; 72];
    let mut at = 0;
    let mut put = |bytes: &[u8]| {
        request[at..at + bytes.len()].copy_from_slice(bytes);
        at += bytes.len();
    };
    put(&72_u32.to_ne_bytes());
    put(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(&NLM_F_REQUEST.to_ne_bytes());
    put(&[0; 8]);
    let Endpoint { ip, port } = facts.tuple.local;
    let family = if ip.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    put(&[family as u8, libc::IPPROTO_TCP as u8, 0, 0]);
    put(&ALL_STATES.to_ne_bytes());
    put(&port.to_be_bytes());
    put(&facts.tuple.remote.port.to_be_bytes());
    put(&address(ip));
    put(&address(facts.tuple.remote.ip));
    put(&[0; 4]);
    // Two words of 32 bits, the low one first.
    put(&(facts.cookie as u32).to_ne_bytes());
    put(&((facts.cookie >> 32) as u32).to_ne_bytes());
    request
}

fn address(ip: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match ip {
        IpAddr::V4(ip) => bytes[..4].copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => bytes = ip.octets(),
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::{Counts, Proof, prove};
    use shunpike_wire::session::Role;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_socket_holds_its_addresses_while_it_is_established() {
        let diag = Diag::new().expect("the kernel answers");
        for address in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let port = listener.local_addr().unwrap().port();
            let host = if address == "[::1]:0" { "::1" } else { "127.0.0.1" };
            let client = TcpStream::connect((host, port)).unwrap();
            let (server, _) = listener.accept().unwrap();
            let facts = |socket: &TcpStream, role| match prove(
                socket.as_fd(),
                role,
                Counts { tx: 0, rx: 0 },
                || None,
            ) {
                Proof::Proved(facts) => facts,
                other => panic!("{other:?}"),
            };
            let (of_client, of_server) = (facts(&client, Role::Client), facts(&server, Role::Server));
            assert!(diag.holds(&of_client) && diag.holds(&of_server), "{address}");
            assert!(!diag.holds(&Facts { cookie: of_client.cookie ^ 1, ..of_client }), "another socket");
            assert!(!diag.holds(&Facts { netns: Some(1), ..of_client }), "nobody to ask there");
            client.shutdown(std::net::Shutdown::Write).unwrap();
            assert!(!diag.holds(&of_client) && !diag.holds(&of_server), "half of it");
        }
    }
}
