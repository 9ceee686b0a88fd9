//! Where a connection ends up: in this network namespace, in another one of this host, or elsewhere.

use super::Finding;
use crate::kernel::{self, LISTEN, Socket};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

/// How long a connection may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// A network namespace, as one of its processes sees it.
pub struct Namespace {
    /// A process in it, as /proc names it; `self` is ours.
    pub process: String,
    /// Its TCP sockets.
    pub sockets: Vec<Socket>,
}

impl Namespace {
    /// Ours.
    pub fn own() -> Self {
        Self::of("self".into())
    }

    fn of(process: String) -> Self {
        let sockets = kernel::sockets(&process);
        Self { process, sockets }
    }

    /// The others of this host, as far as we may look.
    pub fn others() -> Vec<Self> {
        let id = |process: &str| fs::read_link(format!("/proc/{process}/ns/net")).ok();
        let mut seen: HashSet<PathBuf> = id("self").into_iter().collect();
        let Ok(processes) = fs::read_dir("/proc") else { return Vec::new() };
        let names = processes.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let pids = names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
        pids.filter(|pid| id(pid).is_some_and(|id| seen.insert(id))).map(Self::of).collect()
    }

    /// Whether an address is one of its own.
    pub fn has(&self, ip: IpAddr) -> bool {
        let read =
            |name: &str| fs::read_to_string(format!("/proc/{}/net/{name}", self.process)).unwrap_or_default();
        match ip {
            IpAddr::V4(_) => local_v4(&read("fib_trie"), ip),
            IpAddr::V6(wanted) => {
                let digits: String = wanted.octets().iter().map(|byte| format!("{byte:02x}")).collect();
                read("if_inet6").lines().any(|line| line.split(' ').next() == Some(&digits))
            }
        }
    }

    /// Who listens where a connection to `address` ends up: the exact address before the wildcard.
    pub fn listeners(&self, address: SocketAddr) -> Vec<Socket> {
        listeners(&self.sockets, address)
    }
}

/// Whether /proc/net/fib_trie has the address as a local one: its line is followed by those of its kinds.
fn local_v4(trie: &str, ip: IpAddr) -> bool {
    let wanted = format!("|-- {ip}");
    let mut lines = trie.lines();
    while let Some(line) = lines.next() {
        if line.trim_start() == wanted && lines.clone().next().is_some_and(|kind| kind.contains("host LOCAL"))
        {
            return true;
        }
    }
    false
}

/// Who listens where a connection to `address` ends up: the exact address before the wildcard. Several at one address share it
/// (SO_REUSEPORT), and the kernel chooses one of them for each connection.
pub fn listeners(sockets: &[Socket], address: SocketAddr) -> Vec<Socket> {
    let at = |ip: IpAddr| {
        let is_it = |socket: &Socket| {
            socket.state == LISTEN
                && socket.local.port() == address.port()
                && socket.local.ip().to_canonical() == ip
        };
        sockets.iter().copied().filter(is_it).collect::<Vec<_>>()
    };
    let first =
        |ips: &[IpAddr]| ips.iter().map(|ip| at(*ip)).find(|found| !found.is_empty()).unwrap_or_default();
    let (any_v4, any_v6) = (Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into());
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => {
            // As the kernel looks: a listener of IPv6 takes what IPv4's own leave.
            let ip = if ip.is_unspecified() { Ipv4Addr::LOCALHOST } else { ip };
            first(&[ip.into(), any_v4, any_v6])
        }
        IpAddr::V6(ip) => {
            let ip = if ip.is_unspecified() { Ipv6Addr::LOCALHOST } else { ip };
            first(&[ip.into(), any_v6])
        }
    }
}

/// What is not known where a listener of IPv6 is the only one for an address of IPv4.
pub(super) fn of_both_families(address: SocketAddr, socket: &Socket) -> Option<Finding> {
    let is_v4 = address.ip().to_canonical().is_ipv4();
    let local = socket.local.ip().to_canonical();
    (is_v4 && local.is_ipv6() && socket.state == LISTEN).then(|| Finding {
        name: "family",
        is_so: None,
        text: format!(
            "the listener at {} takes IPv4 unless it has set IPV6_V6ONLY, which is not seen from here",
            socket.local
        ),
        advice: "".into(),
    })
}

/// A connection that was made, and its other end where that can be seen.
pub struct Made {
    /// Kept until all was looked at.
    _connection: TcpStream,
    /// The namespace of the other end, and the sockets there that listen, or the one that was accepted.
    pub peer: Option<(Namespace, Vec<Socket>)>,
}

/// Connects, and looks for the other end in all namespaces: it has our address as its peer's. Errors: what connecting said.
pub fn connect(address: SocketAddr) -> io::Result<Made> {
    let connection = TcpStream::connect_timeout(&address, PATIENCE)?;
    let own = connection.local_addr()?;
    let own = SocketAddr::new(own.ip().to_canonical(), own.port());
    // In whatever state: a server may end a connection at once.
    let is_peer = |socket: &&Socket| socket.state != LISTEN && socket.remote == own;
    let mut found = None;
    for namespace in [Namespace::own()].into_iter().chain(Namespace::others()) {
        let Some(peer) = namespace.sockets.iter().find(is_peer).copied() else { continue };
        // One that nobody has accepted yet, or that is closed again, is its listener's.
        let local = SocketAddr::new(peer.local.ip().to_canonical(), peer.local.port());
        let listeners = if peer.inode == 0 { namespace.listeners(local) } else { Vec::new() };
        let sockets = if listeners.is_empty() { vec![peer] } else { listeners };
        found = Some((namespace, sockets));
        break;
    }
    Ok(Made { _connection: connection, peer: found })
}

/// Programs that take connections to published ports, and make others of their own to the container.
const PROXIES: [&str; 6] =
    ["docker-proxy", "rootlessport", "pasta", "pasta.avx2", "slirp4netns", "rootlesskit"];

/// Whether a process of this name is an engine's proxy.
pub fn is_proxy(name: &str) -> bool {
    PROXIES.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn local_addresses_are_told_from_routes() {
        let trie = "Main:\n  +-- 10.1.0.0/24 2 0 2\n     |-- 10.1.0.0\n        /24 link UNICAST\nLocal:\n\
                    \x20    |-- 10.1.0.2\n        /32 host LOCAL\n     |-- 10.1.0.255\n        /32 link BROADCAST\n";
        let has = |ip: &str| local_v4(trie, ip.parse().expect("an address"));
        assert!(has("10.1.0.2") && !has("10.1.0.0") && !has("10.1.0.255") && !has("10.1.0.20"));
        assert!(Namespace::own().has([127, 0, 0, 1].into()));
    }

    #[test]
    fn the_other_end_of_a_connection_is_found_before_anybody_has_accepted_it() {
        let server = TcpListener::bind("127.0.0.1:0").expect("a listener");
        let address = server.local_addr().expect("bound");
        let made = connect(address).expect("a connection");
        let (namespace, sockets) = made.peer.expect("its other end");
        let [socket] = sockets[..] else { panic!("{} sockets", sockets.len()) };
        assert_eq!((namespace.process.as_str(), socket.local, socket.state), ("self", address, LISTEN));
        assert_ne!(socket.inode, 0);
    }

    #[test]
    fn where_nobody_listens_no_connection_is_made() {
        use rustix::net::{AddressFamily, SocketType, bind, getsockname, socket};
        // A port that is bound stays this test's: of one that was closed another test may be the listener by now.
        let bound = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
        bind(&bound, &SocketAddr::from(([127, 0, 0, 1], 0))).expect("bound");
        let address = SocketAddr::try_from(getsockname(&bound).expect("its address")).expect("of IPv4");
        assert!(connect(address).is_err());
    }
}
