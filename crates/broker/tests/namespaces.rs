//! Two ends in different network namespaces: veth, equal addresses twice at once, NAT.
//!
//! Each test runs in namespaces of its own, made by `unshare`, so that it needs no root and leaves nothing.

mod support;

use rustix::fd::{AsFd, OwnedFd};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use shunpike_wire::session::{ConnId, FromBroker, Role, ToBroker};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;
use support::*;

const CONN: ConnId = ConnId(1 << 32);

/// Runs one of the ignored tests below as root of a user namespace and a network namespace.
fn unshared(test: &str) {
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--net"])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "--ignored", "--nocapture", test])
        .output()
        .expect("unshare is installed");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn run(command: &str) {
    let status = Command::new("sh").args(["-ec", command]).status().expect("a shell");
    assert!(status.success(), "{command}");
}

/// A network namespace, for as long as this lives.
struct Netns {
    fd: OwnedFd,
    holder: std::process::Child,
}

impl Netns {
    fn new() -> Self {
        let ours = std::fs::read_link("/proc/self/ns/net").expect("/proc");
        let holder = Command::new("unshare").args(["--net", "sleep", "600"]).spawn().expect("unshare");
        let path = format!("/proc/{}/ns/net", holder.id());
        until(|| std::fs::read_link(&path).is_ok_and(|its| its != ours));
        let netns = Self { fd: std::fs::File::open(path).expect("namespace").into(), holder };
        netns.sh("ip link set lo up");
        netns
    }

    fn pid(&self) -> u32 {
        self.holder.id()
    }

    /// Does something inside.
    fn enter<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        let inside = || {
            move_into_link_name_space(self.fd.as_fd(), Some(LinkNameSpaceType::Network)).expect("setns");
            f()
        };
        std::thread::scope(|scope| scope.spawn(inside).join().expect("inside the namespace"))
    }

    fn sh(&self, command: &str) {
        self.enter(|| run(command));
    }

    /// Joins us, as `10.0.N.1`, with `other`, as `10.0.N.2`.
    fn join(&self, other: &Netns, n: u8) {
        self.sh(&format!(
            "ip link add v{n} type veth peer name v{n} netns {}; ip addr add 10.0.{n}.1/24 dev v{n}; \
             ip link set v{n} up",
            other.pid()
        ));
        other.sh(&format!("ip addr add 10.0.{n}.2/24 dev v{n}; ip link set v{n} up"));
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// A connection from port `from` of `client` to `at` in `server`, known to the client as `to`.
fn connect(client: &Netns, from: u16, to: &str, server: &Netns, at: &str) -> (TcpStream, TcpStream) {
    let listener = server.enter(|| TcpListener::bind(at).expect("listen"));
    let stream = client.enter(|| {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("socket");
        sockopt::set_socket_reuseaddr(&socket, true).expect("option");
        bind(&socket, &SocketAddr::from(([0, 0, 0, 0], from))).expect("bind");
        connect(&socket, &to.parse::<SocketAddr>().expect("address")).expect("connect");
        TcpStream::from(socket)
    });
    (stream, listener.accept().expect("accept").0)
}

fn exchange((a, b): &mut (TcpStream, TcpStream)) {
    transfer(a, b, 10);
    transfer(b, a, 3);
}

/// Nominates both ends; true for a match, false for "again".
fn attempt(client: &Client, server: &Client, (a, b): &(TcpStream, TcpStream), counts: (u64, u64)) -> bool {
    client.nominate(CONN, Role::Client, counts, a);
    server.nominate(CONN, Role::Server, (counts.1, counts.0), b);
    match (client.hear(), server.hear()) {
        (FromBroker::Matched { .. }, FromBroker::Matched { .. }) => true,
        (FromBroker::Again { .. }, FromBroker::Again { .. }) => false,
        other => panic!("{other:?}"),
    }
}

#[test]
fn veth() {
    unshared("inner_veth");
}

/// In a user namespace nobody has CAP_BPF: this is the unprivileged broker.
#[test]
#[ignore = "run by `veth`"]
fn inner_veth() {
    let broker = TestBroker::start();
    assert!(!broker.info().privileged);
    let (left, right) = (Netns::new(), Netns::new());
    left.join(&right, 1);
    let mut tcp = connect(&left, 5000, "10.0.1.2:80", &right, "10.0.1.2:80");
    let (client, server) = (Client::connect(&broker), Client::connect(&broker));
    assert!(!attempt(&client, &server, &tcp, (0, 0)), "silence proves nothing");
    exchange(&mut tcp);
    assert!(!attempt(&client, &server, &tcp, (10, 3)), "once may be chance");
    exchange(&mut tcp);
    assert!(attempt(&client, &server, &tcp, (20, 6)), "twice is proof enough among one user's programs");
}

#[test]
fn equal_tuples() {
    unshared("inner_equal_tuples");
}

#[test]
#[ignore = "run by `equal_tuples`"]
fn inner_equal_tuples() {
    let broker = TestBroker::start();
    let netns: Vec<Netns> = (0..4).map(|_| Netns::new()).collect();
    netns[0].join(&netns[1], 1);
    netns[2].join(&netns[3], 1);
    let pair = |client, server| connect(&netns[client], 5000, "10.0.1.2:80", &netns[server], "10.0.1.2:80");
    let (mut first, mut second) = (pair(0, 1), pair(2, 3));
    assert_eq!(first.0.local_addr().unwrap(), second.0.local_addr().unwrap());
    exchange(&mut first);
    exchange(&mut second);
    let sessions: Vec<Client> = (0..4).map(|_| Client::connect(&broker)).collect();
    // Whoever comes first, and however alike the two connections are: nobody is matched.
    let mut heard = 0;
    for round in 1..40 {
        let counts = (round * 10, round * 3);
        for (session, role, socket) in [
            (&sessions[0], Role::Client, &first.0),
            (&sessions[1], Role::Server, &second.1),
            (&sessions[2], Role::Client, &second.0),
            (&sessions[3], Role::Server, &first.1),
        ] {
            let counts = if role == Role::Client { counts } else { (counts.1, counts.0) };
            session.nominate(CONN, role, counts, socket);
        }
        // What a session asks after its nomination is answered after it.
        sessions.iter().for_each(|session| session.say(ToBroker::Attach { conn: CONN, token: 0 }));
        for session in &sessions {
            loop {
                match session.hear() {
                    FromBroker::Again { .. } | FromBroker::Refused { .. } => heard += 1,
                    FromBroker::Attached { .. } => break,
                    other => panic!("guessed: {other:?}"),
                }
            }
        }
        exchange(&mut first);
        exchange(&mut second);
    }
    assert!(heard > 40, "{heard} answers");
}

#[test]
fn loopback_addresses() {
    unshared("inner_loopback_addresses");
}

/// The same addresses and ports in two namespaces, with the ends of both: each finds its own.
#[test]
#[ignore = "run by `loopback_addresses`"]
fn inner_loopback_addresses() {
    let broker = TestBroker::start();
    let netns = [Netns::new(), Netns::new()];
    let pairs = netns.each_ref().map(|ns| connect(ns, 5000, "127.0.0.1:80", ns, "127.0.0.1:80"));
    let sessions: Vec<Client> = (0..4).map(|_| Client::connect(&broker)).collect();
    sessions[0].nominate(CONN, Role::Client, (0, 0), &pairs[0].0);
    until(|| broker.info().waiting == 1);
    sessions[3].nominate(CONN, Role::Server, (0, 0), &pairs[1].1);
    until(|| broker.info().waiting == 2);
    sessions[2].nominate(CONN, Role::Client, (0, 0), &pairs[1].0);
    let group = |session: &Client| match session.hear() {
        FromBroker::Matched { link, .. } => link,
        other => panic!("{other:?}"),
    };
    // The broker cannot ask the kernel about sockets there: who came first is proved once more.
    let again = |session: &Client, role, socket: &TcpStream| {
        assert_eq!(session.hear(), FromBroker::Again { conn: CONN });
        session.nominate(CONN, role, (0, 0), socket);
    };
    again(&sessions[3], Role::Server, &pairs[1].1);
    assert_eq!(group(&sessions[2]), group(&sessions[3]));
    sessions[1].nominate(CONN, Role::Server, (0, 0), &pairs[0].1);
    again(&sessions[0], Role::Client, &pairs[0].0);
    assert_eq!(group(&sessions[0]), group(&sessions[1]));
}

/// Through NAT no tuple mirrors another; only sequence numbers tell. They need privileges that a user
/// namespace cannot give, so this test is for root.
#[test]
fn nat() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("not root: the privileged broker is not tested");
        return;
    }
    let broker = TestBroker::with(|config| config.private = false);
    assert!(broker.info().privileged);
    let (inside, router, outside) = (Netns::new(), Netns::new(), Netns::new());
    inside.join(&router, 2);
    router.join(&outside, 3);
    router.sh("echo 1 > /proc/sys/net/ipv4/ip_forward; nft add table ip nat; \
         nft 'add chain ip nat pre { type nat hook prerouting priority -100; }'; \
         nft 'add chain ip nat post { type nat hook postrouting priority 100; }'; \
         nft add rule ip nat pre tcp dport 80 dnat to 10.0.2.1:8080; \
         nft add rule ip nat post masquerade");
    let mut tcp = connect(&outside, 5000, "10.0.3.1:80", &inside, "10.0.2.1:8080");
    assert_ne!(tcp.0.local_addr().unwrap(), tcp.1.peer_addr().unwrap());
    let (client, server) = (Client::connect(&broker), Client::connect(&broker));
    assert!(attempt(&client, &server, &tcp, (0, 0)), "at once");
    exchange(&mut tcp);
    assert!(attempt_again(&client, &server, &tcp), "and whatever was sent");
}

/// Nominates once more ends that are matched already.
fn attempt_again(client: &Client, server: &Client, (a, b): &(TcpStream, TcpStream)) -> bool {
    client.nominate(CONN, Role::Client, (10, 3), a);
    assert_eq!(server.hear(), FromBroker::Gone { conn: CONN });
    server.nominate(CONN, Role::Server, (3, 10), b);
    matches!((client.hear(), server.hear()), (FromBroker::Matched { .. }, FromBroker::Matched { .. }))
}
