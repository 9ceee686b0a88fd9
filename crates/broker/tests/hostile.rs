//! Clients that die, stall, flood or lie: the others are served, and nothing is left of them.

mod support;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::AsFd;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities};
use shunpike_broker::loopback::LoopbackIsm;
use shunpike_broker::{Config, Server, what};
use shunpike_shm::arena::Arena;
use shunpike_wire::Reason;
use shunpike_wire::session::{ConnId, FromBroker, LAST_WITHOUT_CONTROL, Role, ToBroker, VERSION};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use support::*;

const CONN: ConnId = ConnId(1 << 32);

/// A handshake between two sessions, step by step; `None` for a session that has died.
struct Handshake<'a> {
    broker: &'a TestBroker,
    client: Option<Client>,
    server: Option<Client>,
    tcp: (TcpStream, TcpStream),
    tokens: [u64; 2],
}

const STEPS: usize = 12;

impl<'a> Handshake<'a> {
    fn new(broker: &'a TestBroker) -> Self {
        Self { broker, client: None, server: None, tcp: tcp_pair(), tokens: [0; 2] }
    }

    /// Does step `n` as far as those concerned live, and waits until the broker has.
    fn step(&mut self, n: usize) {
        match n {
            0 => self.client = Some(Client::connect(self.broker)),
            1 => self.server = Some(Client::connect(self.broker)),
            2 => {
                let Some(client) = &self.client else { return };
                client.nominate(CONN, Role::Client, (0, 0), &self.tcp.0);
                until(|| self.broker.info().waiting == 1);
            }
            3 => {
                let Some(server) = &self.server else { return };
                server.nominate(CONN, Role::Server, (0, 0), &self.tcp.1);
                if let Some(client) = &self.client {
                    assert!(matches!(client.hear(), FromBroker::Matched { .. }));
                    assert!(matches!(server.hear(), FromBroker::Matched { .. }));
                }
            }
            4 => relay(&self.client, &self.server),
            5 => register(&self.server, &mut self.tokens[1]),
            6 => relay(&self.server, &self.client),
            7 => attach(&self.client, self.tokens[1]),
            8 => register(&self.client, &mut self.tokens[0]),
            9 => relay(&self.client, &self.server),
            10 => attach(&self.server, self.tokens[0]),
            _ => {
                for (session, own, peer) in [(&self.client, 0, 1), (&self.server, 1, 0)] {
                    let Some(session) = session else { continue };
                    session.say(ToBroker::Detach { token: self.tokens[peer], gone: true });
                    session.say(ToBroker::Unregister { token: self.tokens[own] });
                    session.say(ToBroker::Withdraw { conn: CONN });
                }
            }
        }
    }
}

/// The two ends of a match, and their sockets.
fn matched(broker: &TestBroker) -> (Client, Client, (TcpStream, TcpStream)) {
    let mut handshake = Handshake::new(broker);
    (0..4).for_each(|n| handshake.step(n));
    (handshake.client.take().unwrap(), handshake.server.take().unwrap(), handshake.tcp)
}

/// Says that so many times, or until the broker has ended the session.
fn flood(client: &Client, message: &ToBroker, times: usize) {
    let mut bytes = [0; 1024];
    let len = message.encode(&mut bytes).expect("encodes");
    let _ = (0..times).try_for_each(|_| send_bytes(&client.socket, &bytes[..len], &[]).map(drop));
}

fn relay(from: &Option<Client>, to: &Option<Client>) {
    if let Some(from) = from {
        from.say(ToBroker::Clc { conn: CONN, clc: clc() });
    }
    if let (Some(_), Some(to)) = (from, to) {
        hear_until(to, |message| matches!(message, FromBroker::Clc { .. } | FromBroker::Gone { .. }));
    }
}

fn register(session: &Option<Client>, token: &mut u64) {
    let Some(session) = session else { return };
    session.register(CONN);
    let answer = hear_until(session, |message| matches!(message, FromBroker::Registered { .. }));
    if let FromBroker::Registered { token: registered, .. } = answer {
        *token = registered;
    }
}

fn attach(session: &Option<Client>, token: u64) {
    let Some(session) = session else { return };
    session.say(ToBroker::Attach { conn: CONN, token });
    hear_until(session, |message| matches!(message, FromBroker::Attached { .. }));
}

fn hear_until(session: &Client, wanted: impl Fn(&FromBroker) -> bool) -> FromBroker {
    loop {
        let message = session.hear();
        if wanted(&message) {
            return message;
        }
    }
}

#[test]
fn a_session_may_die_after_any_step() {
    let broker = TestBroker::start();
    for death in 0..STEPS {
        for client_dies in [true, false] {
            let mut handshake = Handshake::new(&broker);
            for n in 0..STEPS {
                handshake.step(n);
                if n == death {
                    drop(if client_dies { handshake.client.take() } else { handshake.server.take() });
                }
            }
            drop(handshake);
            broker.until_empty();
        }
    }
}

#[test]
fn a_whole_life_leaves_nothing_though_the_sessions_go_on() {
    let broker = TestBroker::start();
    let mut handshake = Handshake::new(&broker);
    (0..STEPS).for_each(|n| handshake.step(n));
    until(|| broker.info().device.dmbs_cnt == 0);
    assert_eq!((broker.info().waiting, broker.info().sessions), (0, 2));
}

#[test]
fn a_client_that_does_not_read_is_dropped_and_others_are_served() {
    let broker = TestBroker::start();
    let (deaf, peer, _tcp) = matched(&broker);
    let mut worst = Duration::ZERO;
    while peer.silent() {
        flood(&deaf, &ToBroker::Attach { conn: CONN, token: 0 }, 200);
        let asked = Instant::now();
        broker.info();
        worst = worst.max(asked.elapsed());
    }
    assert_eq!(peer.hear(), FromBroker::Gone { conn: CONN });
    assert!(worst < Duration::from_secs(2), "another client waited {worst:?}");
    deaf.until_over();
    assert_eq!(broker.info().sessions, 1);
}

/// A handshake takes a few messages. What is said beyond it is the peer's to keep.
#[test]
fn a_client_that_says_more_than_any_handshake_is_dropped_and_its_peer_is_not() {
    let broker = TestBroker::start();
    let (client, peer, _tcp) = matched(&broker);
    flood(&client, &ToBroker::Clc { conn: CONN, clc: clc() }, 300);
    client.until_over();
    let heard =
        std::iter::from_fn(|| Some(peer.hear())).take_while(|said| !matches!(said, FromBroker::Gone { .. }));
    assert!(
        (1..=256).contains(&heard.count()),
        "no more than the broker lets through, and then that it is gone"
    );
    assert_eq!(broker.info().sessions, 1);
}

#[test]
fn bytes_that_are_no_message_end_that_session_only() {
    let broker = TestBroker::start();
    let bystander = Client::connect(&broker);
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for round in 0..500 {
        let greets = round % 2 == 0;
        let session = if greets {
            Client::connect(&broker).socket
        } else {
            try_connect(&broker.socket).expect("still there")
        };
        for _ in 0..random() % 8 {
            let len = 1 + (random() % 1100) as usize;
            let mut bytes: Vec<u8> = (0..len).map(|_| random() as u8).collect();
            if random() % 4 != 0 {
                // A type that exists, so that its fields are looked at.
                bytes[0] = (random() % 10) as u8;
                bytes.get_mut(1).into_iter().for_each(|byte| *byte = 0);
                let lens = [19, 27, 10, 23, 11, 18, 10, 10, 12];
                bytes.truncate(lens[(random() % 9) as usize].min(len).max(1));
            }
            let null = std::fs::File::open("/dev/null").unwrap();
            let fds = vec![null.as_fd(); (random() % 12) as usize];
            if send_bytes(&session, &bytes, &fds).is_err() {
                break;
            }
        }
    }
    assert!(bystander.silent());
    until(|| broker.info().sessions == 1);
}

#[test]
fn a_greeting_with_wrong_descriptors_is_the_end() {
    let broker = TestBroker::start();
    let arena = Arena::create(1).unwrap();
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let blocking = eventfd(0, EventfdFlags::empty()).unwrap();
    let null = std::fs::File::open("/dev/null").unwrap();
    let small = shunpike_shm::region::create("small", 4096).unwrap();
    let (arena, bell) = (arena.fd().as_fd(), bell.as_fd());
    for (doorbells, fds) in [
        (1, vec![]),
        (1, vec![arena]),
        (0, vec![arena]),
        (2, vec![arena, bell]),
        (1, vec![arena, bell, bell]),
        (1, vec![bell, arena]),
        (1, vec![arena, blocking.as_fd()]),
        (1, vec![arena, null.as_fd()]),
        (1, vec![null.as_fd(), bell]),
        (1, vec![small.as_fd(), bell]),
        (9, [vec![arena], vec![bell; 9]].concat()),
    ] {
        let session = try_connect(&broker.socket).unwrap();
        send(&session, &hello(doorbells), &fds);
        assert!(receive(&session).is_none(), "{doorbells} doorbells, {} descriptors", fds.len());
    }
    assert_eq!(broker.info().sessions, 0);
}

#[test]
fn a_version_that_is_not_understood_is_told_ours_and_let_go() {
    let broker = TestBroker::start();
    let arena = Arena::create(1).unwrap();
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let session = try_connect(&broker.socket).unwrap();
    let message =
        ToBroker::Hello { control: 0, version: LAST_WITHOUT_CONTROL - 1, doorbells: 1, comm: [0; 16] };
    send(&session, &message, &[arena.fd().as_fd(), bell.as_fd()]);
    let (welcome, _) = receive(&session).expect("a welcome");
    assert!(matches!(welcome, FromBroker::Welcome(welcome) if welcome.version == VERSION));
    assert!(receive(&session).is_none());
    broker.until_empty();
}

#[test]
fn messages_before_the_greeting_and_a_second_greeting_are_the_end() {
    let broker = TestBroker::start();
    let session = try_connect(&broker.socket).unwrap();
    send(&session, &ToBroker::Withdraw { conn: CONN }, &[]);
    assert!(receive(&session).is_none());
    let client = Client::connect(&broker);
    client.say(hello(1));
    client.until_over();
}

#[test]
fn a_socket_of_somebody_elses_gains_nothing() {
    let broker = TestBroker::start();
    let (victim, thief, peer) =
        (Client::connect(&broker), Client::connect(&broker), Client::connect(&broker));
    let (a, b) = tcp_pair();
    victim.nominate(CONN, Role::Client, (0, 0), &a);
    until(|| broker.info().waiting == 1);
    thief.nominate(CONN, Role::Client, (0, 0), &a);
    assert_eq!(thief.hear(), FromBroker::Refused { conn: CONN, reason: Reason::Shared.code() });
    peer.nominate(CONN, Role::Server, (0, 0), &b);
    assert!(matches!(victim.hear(), FromBroker::Matched { .. }));
    assert!(matches!(peer.hear(), FromBroker::Matched { .. }));
    assert!(thief.silent());
}

/// Connects from a port of our choice, so that two connections can have the same addresses one after the other.
fn connect_from(port: u16, to: &TcpListener) -> (TcpStream, TcpStream) {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
    let address = |port| std::net::SocketAddr::from(([127, 0, 0, 1], port));
    let client = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&client, true).unwrap();
    bind(&client, &address(port)).unwrap();
    connect(&client, &address(to.local_addr().unwrap().port())).unwrap();
    (client.into(), to.accept().unwrap().0)
}

/// Ends a connection without a trace: its addresses are free at once.
fn reset(connection: (TcpStream, TcpStream)) {
    rustix::net::sockopt::set_socket_linger(&connection.0, Some(Duration::ZERO)).unwrap();
    drop(connection);
}

#[test]
fn a_nomination_that_outlived_its_socket_is_nobodys_peer() {
    // With sequence numbers there would be nothing to find out: the broker's thread inherits what this one has left.
    let unprivileged = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    set_capabilities(None, unprivileged).unwrap();
    for stale_is_client in [true, false] {
        let broker = TestBroker::start();
        assert!(!broker.info().privileged);
        let [stale, client, server] = [(); 3].map(|()| Client::connect(&broker));
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let before = connect_from(0, &listener);
        let port = before.0.local_addr().unwrap().port();
        let (role, socket) =
            if stale_is_client { (Role::Client, &before.0) } else { (Role::Server, &before.1) };
        stale.nominate(CONN, role, (0, 0), socket);
        until(|| broker.info().waiting == 1);
        reset(before);
        let after = connect_from(port, &listener);
        let ends = [(&client, Role::Client, &after.0), (&server, Role::Server, &after.1)];
        // The end that the stale nomination waits for comes first.
        let order = if stale_is_client { [1, 0] } else { [0, 1] };
        for (session, role, socket) in order.map(|n| ends[n]) {
            session.nominate(CONN, role, (0, 0), socket);
        }
        for session in [&client, &server] {
            let heard = hear_until(session, |message| !matches!(message, FromBroker::Again { .. }));
            assert!(matches!(heard, FromBroker::Matched { .. }), "{heard:?}");
        }
        while !stale.silent() {
            let heard = stale.hear();
            assert!(matches!(heard, FromBroker::Again { .. } | FromBroker::Refused { .. }), "{heard:?}");
        }
    }
}

#[test]
fn bytes_that_go_between_two_nominations_do_no_harm() {
    let broker = TestBroker::start();
    let (client, server) = (Client::connect(&broker), Client::connect(&broker));
    let (mut a, mut b) = tcp_pair();
    client.nominate(CONN, Role::Client, (0, 0), &a);
    until(|| broker.info().waiting == 1);
    transfer(&mut a, &mut b, 1000);
    transfer(&mut b, &mut a, 10);
    // Counts of before the bytes went are proved wrong, and the connection is asked again.
    server.nominate(CONN, Role::Server, (0, 0), &b);
    assert_eq!(server.hear(), FromBroker::Again { conn: CONN });
    server.nominate(CONN, Role::Server, (10, 1000), &b);
    for session in [&client, &server] {
        assert!(matches!(session.hear(), FromBroker::Matched { .. }));
    }
}

#[test]
fn a_flood_of_connections_is_turned_away_and_leaves_room_for_the_served() {
    let broker = TestBroker::with(|config| config.max_sessions = 8);
    let client = Client::connect(&broker);
    let flood: Vec<_> = (0..100).filter_map(|_| try_connect(&broker.socket)).collect();
    client.say(ToBroker::Nominate { conn: CONN, role: Role::Client, tx: 0, rx: 0, answer: false });
    assert!(matches!(client.hear(), FromBroker::Refused { .. }));
    drop(flood);
    until(|| shunpike_broker::query(&broker.socket, shunpike_broker::what::INFO, "").is_ok());
}

#[test]
fn as_many_programs_as_configured_are_served_and_tools_besides() {
    let broker = TestBroker::with(|config| config.max_sessions = 2);
    let (_a, _b) = (Client::connect(&broker), Client::connect(&broker));
    let arena = Arena::create(1).unwrap();
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let third = try_connect(&broker.socket).unwrap();
    send(&third, &hello(1), &[arena.fd().as_fd(), bell.as_fd()]);
    assert!(receive(&third).is_none());
    assert_eq!(broker.info().sessions, 2);
}

#[test]
fn one_user_cannot_keep_the_others_out() {
    let broker = TestBroker::with(|config| {
        config.private = false;
        config.policy.user.sessions = 4;
    });
    // What one user may have, and some tools besides.
    let silent: Vec<_> = (0..20).map(|_| try_connect(&broker.socket).unwrap()).collect();
    let turned_away = try_connect(&broker.socket).unwrap();
    assert!(receive(&turned_away).is_none());
    drop(silent);
    until(|| shunpike_broker::query(&broker.socket, shunpike_broker::what::INFO, "").is_ok());
}

/// It took an end without a word for a broker in trouble. The broker looks when it is told to here: a question that comes after its look
/// finds nobody.
#[test]
fn a_tool_that_is_turned_away_is_told_why_and_a_library_is_told_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config::new(directory.path().join("broker.sock"));
    config.max_sessions = 1;
    let socket = config.socket.clone();
    let mut broker = Server::new(config, LoopbackIsm::boxed).unwrap();
    let mut look = || while broker.turn(Duration::ZERO).unwrap().expect("it goes on") > 0 {};
    let _crowd: Vec<_> = (0..65).map(|_| try_connect(&socket).unwrap()).collect();
    look();
    let arena = Arena::create(1).unwrap();
    let bell = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let library = try_connect(&socket).unwrap();
    send(&library, &hello(1), &[arena.fd().as_fd(), bell.as_fd()]);
    look();
    assert!(receive(&library).is_none());
    let tool = try_connect(&socket).unwrap();
    let empty = shunpike_wire::session::ClcBytes::new(b"").unwrap();
    send(&tool, &ToBroker::Query { what: what::INFO, arg: empty }, &[]);
    look();
    let mut answer = [0; 4096];
    let (len, _) = rustix::net::recv(&tool, &mut answer, rustix::net::RecvFlags::empty()).unwrap();
    let answer = std::str::from_utf8(&answer[..len]).unwrap();
    assert!(answer.contains("turned this connection away") && answer.contains("shunpike policy"), "{answer}");
    assert!(receive(&tool).is_none(), "that is all");
}

#[test]
fn a_tool_asks_once() {
    let broker = TestBroker::start();
    let tool = try_connect(&broker.socket).unwrap();
    let empty = shunpike_wire::session::ClcBytes::new(b"").unwrap();
    let question = ToBroker::Query { what: shunpike_broker::what::SYSCTL, arg: empty };
    for _ in 0..100 {
        let mut bytes = [0; 64];
        let len = question.encode(&mut bytes).unwrap();
        if send_bytes(&tool, &bytes[..len], &[]).is_err() {
            break;
        }
    }
    let mut answers = 0;
    let mut chunk = [0; 16384];
    while let Ok((1.., _)) = rustix::net::recv(&tool, &mut chunk[..], rustix::net::RecvFlags::empty()) {
        answers += 1;
    }
    assert!(answers <= 1, "{answers} answers");
}

#[test]
fn several_sessions_of_a_process_share_its_nominations() {
    let broker = TestBroker::with(|config| config.policy.process.nominations = 20);
    let (a, _b) = tcp_pair();
    let start = Instant::now();
    let sessions = [(); 4].map(|()| Client::connect(&broker));
    let mut served = 0;
    for n in 0..100 {
        let session = &sessions[n % sessions.len()];
        session.nominate(CONN, Role::Client, (1, 0), &a);
        let FromBroker::Refused { reason, .. } = session.hear() else {
            panic!("more was counted than was sent")
        };
        served += usize::from(reason != Reason::NominationLimit.code());
    }
    // As many at once as in a second, and those of the time that it took.
    let most = 20 + 1 + (start.elapsed().as_secs_f64() * 20.0) as usize;
    assert!((20..=most).contains(&served), "{served} of at most {most}");
}

/// How long `rounds` matches took, each from its first nomination on: the median and the longest.
fn latencies(broker: &TestBroker, rounds: u64) -> (Duration, Duration) {
    let (client, server) = (Client::connect(broker), Client::connect(broker));
    let mut took: Vec<Duration> = (0..rounds)
        .map(|round| {
            let conn = ConnId((2 + round) << 32);
            let (a, b) = tcp_pair();
            let start = Instant::now();
            client.nominate(conn, Role::Client, (0, 0), &a);
            server.nominate(conn, Role::Server, (0, 0), &b);
            for session in [&client, &server] {
                hear_until(
                    session,
                    |message| matches!(message, FromBroker::Matched { conn: of, .. } if *of == conn),
                );
            }
            start.elapsed()
        })
        .collect();
    took.sort();
    (took[took.len() / 2], took[took.len() - 1])
}

#[test]
fn a_flood_of_nominations_does_not_starve_others() {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    // No limit of nominations: all are looked at, by the longest way, and only the turns keep the others served.
    let broker = TestBroker::with(|config| config.policy.process.nominations = u32::MAX);
    let alone = latencies(&broker, 100);
    let (over, said) = (AtomicBool::new(false), AtomicU64::new(0));
    let beside = std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let flooder = Client::connect(&broker);
                let (mut a, _b) = tcp_pair();
                std::io::Write::write_all(&mut a, b"round the hooks").unwrap();
                while !over.load(Ordering::Relaxed) {
                    for n in 0..8 {
                        // Fewer than the kernel has counted: looked at four times, and asked again.
                        flooder.nominate(ConnId(n), Role::Client, (0, 0), &a);
                        said.fetch_add(1, Ordering::Relaxed);
                    }
                    while !flooder.silent() {
                        flooder.hear();
                    }
                }
            });
        }
        until(|| said.load(Ordering::Relaxed) > 1000);
        let beside = latencies(&broker, 100);
        over.store(true, Ordering::Relaxed);
        beside
    });
    let said = said.into_inner();
    eprintln!("alone {alone:?}, beside {said} nominations of 4 flooders {beside:?} (median, longest)");
    assert!(
        beside.0 < Duration::from_millis(100) && beside.1 < Duration::from_secs(3),
        "{beside:?}, alone {alone:?}"
    );
}
