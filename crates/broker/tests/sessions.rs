//! The protocol over a real socket, with real TCP connections.

mod support;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::AsFd;
use shunpike_broker::loopback::LoopbackIsm;
use shunpike_broker::report::{
    Connections, Device, Done, Explanations, LinkGroups, Seid, Stats, Sysctls, Ueids,
};
use shunpike_broker::{BrokerError, Config, QueryError, query, what};
use shunpike_shm::arena::Arena;
use shunpike_shm::pages::{KnobPage, PAGE, SessionPage};
use shunpike_shm::region::Region;
use shunpike_wire::session::{ConnId, Expected, FromBroker, Role, ToBroker};
use shunpike_wire::{Eid, Gid, Reason};
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::*;

const CONN: ConnId = ConnId(1 << 32);

/// Two sessions with one connection, matched.
fn matched(broker: &TestBroker) -> (Client, Client, (std::net::TcpStream, std::net::TcpStream)) {
    let (client, server) = (Client::connect(broker), Client::connect(broker));
    let (mut a, mut b) = tcp_pair();
    transfer(&mut a, &mut b, 10);
    transfer(&mut b, &mut a, 3);
    client.nominate(CONN, Role::Client, (10, 3), &a);
    server.nominate(CONN, Role::Server, (3, 10), &b);
    for (session, own_side) in [(&client, 0), (&server, 1)] {
        let (message, fds) = session.hear_with_fds();
        match message {
            FromBroker::Matched { conn, side, first_contact, doorbells, .. } => {
                assert_eq!((conn, side, first_contact, doorbells), (CONN, own_side, true, 2));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(fds.len(), 3, "link page and two doorbells");
    }
    (client, server, (a, b))
}

#[test]
fn a_whole_handshake() {
    let broker = TestBroker::start();
    let (client, server, _tcp) = matched(&broker);
    client.say(ToBroker::Clc { conn: CONN, clc: clc() });
    assert_eq!(server.hear(), FromBroker::Clc { conn: CONN, clc: clc() });

    let memory = server.register(CONN);
    let FromBroker::Registered { conn: CONN, token, reason: 0 } = server.hear() else { panic!("refused") };
    assert_ne!(token, 0);
    client.say(ToBroker::Attach { conn: CONN, token });
    let (message, fds) = client.hear_with_fds();
    assert_eq!(message, FromBroker::Attached { conn: CONN, token, class: 0, reason: 0 });
    rustix::io::pwrite(&memory, b"lane", 4096).unwrap();
    let mut seen = [0; 4];
    rustix::io::pread(&fds[0], &mut seen, 4096).unwrap();
    assert_eq!(&seen, b"lane");
    assert_eq!(broker.info().device.dmbs_cnt, 1);
    assert_eq!(broker.info().device.link_groups, 1);

    server.say(ToBroker::Unregister { token });
    client.say(ToBroker::Detach { token, gone: true });
    until(|| broker.info().device.dmbs_cnt == 0);
    client.say(ToBroker::Withdraw { conn: CONN });
    assert_eq!(server.hear(), FromBroker::Gone { conn: CONN });
    let link = broker.ask::<LinkGroups>(what::LINKGROUP, "").link_groups[0].id;
    drop(client);
    assert_eq!(server.hear(), FromBroker::LinkGone { link });
    drop(server);
    broker.until_empty();
}

#[test]
fn posted_counts_messages_and_pages_cannot_be_written() {
    let broker = TestBroker::start();
    let (client, server, _tcp) = matched(&broker);
    let page = Region::map_readable(client.pages[0].as_fd(), PAGE).unwrap();
    // SAFETY: atomics only, mapped until the end of the test.
    let page = unsafe { page.at::<SessionPage>(0) }.unwrap();
    // Counted when sent, which may be a moment after it was heard.
    until(|| page.posted.load(Ordering::Acquire) == 2);
    server.say(ToBroker::Clc { conn: CONN, clc: clc() });
    client.hear();
    until(|| page.posted.load(Ordering::Acquire) == 3);
    for page in &client.pages {
        assert!(Region::map(page.as_fd(), PAGE).is_err());
    }
}

#[test]
fn a_second_connection_shares_the_link_group() {
    let broker = TestBroker::start();
    let (client, server, _tcp) = matched(&broker);
    let (a, b) = tcp_pair();
    let conn = ConnId(CONN.0 + 1);
    server.nominate(conn, Role::Server, (0, 0), &b);
    client.nominate(conn, Role::Client, (0, 0), &a);
    for session in [client, server] {
        let (message, fds) = session.hear_with_fds();
        assert!(matches!(message, FromBroker::Matched { first_contact: false, slot: 1, .. }), "{message:?}");
        assert!(fds.is_empty());
    }
}

#[test]
fn both_ends_in_one_process() {
    let broker = TestBroker::start();
    let both = Client::connect(&broker);
    let (a, b) = tcp_pair();
    both.nominate(ConnId(1), Role::Client, (0, 0), &a);
    both.nominate(ConnId(2), Role::Server, (0, 0), &b);
    let (first, fds) = both.hear_with_fds();
    assert!(
        matches!(first, FromBroker::Matched { conn: ConnId(1), side: 0, first_contact: true, .. }),
        "{first:?}"
    );
    assert_eq!(fds.len(), 3);
    let (second, fds) = both.hear_with_fds();
    assert!(
        matches!(second, FromBroker::Matched { conn: ConnId(2), side: 1, first_contact: true, .. }),
        "{second:?}"
    );
    assert_eq!(fds.len(), 3);
    both.register(ConnId(2));
    let FromBroker::Registered { token, .. } = both.hear() else { panic!() };
    both.say(ToBroker::Attach { conn: ConnId(1), token });
    assert!(matches!(both.hear(), FromBroker::Attached { conn: ConnId(1), reason: 0, .. }));
    drop(both);
    broker.until_empty();
}

/// What was said before a nomination counts for its answer, also where it lies behind messages that helpers have to take first.
#[test]
fn what_lies_behind_messages_with_descriptors_was_said_too() {
    const BEFORE: u32 = 16;
    let broker = TestBroker::start();
    let (client, server) = (Client::connect(&broker), Client::connect(&broker));
    let (a, b) = tcp_pair();
    let (other, _its_peer) = tcp_pair();
    let port = b.local_addr().unwrap().port();
    let ip = std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets();
    for round in 1..=10 {
        for block in 1..=BEFORE {
            server.nominate(ConnId::new(block, round), Role::Client, (0, 0), &other);
        }
        server.say(ToBroker::Expect { conn: ConnId(1 << 63), role: Role::Server, ip, port });
        let message = ToBroker::Nominate { conn: CONN, role: Role::Client, tx: 0, rx: 0, answer: true };
        send(&client.socket, &message, &[a.as_fd()]);
        assert_eq!(client.hear(), FromBroker::Waiting { conn: CONN, expected: Expected::Other });
        client.say(ToBroker::Withdraw { conn: CONN });
        server.say(ToBroker::Withdraw { conn: ConnId(1 << 63) });
    }
    drop((client, server));
    broker.until_empty();
}

/// Who has greeted and is gone before a helper has looked at what lay beside: its counts count.
#[test]
fn a_program_that_is_gone_at_once_is_counted() {
    const PROGRAMS: u64 = 30;
    let broker = TestBroker::start();
    let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).unwrap();
    for _ in 0..PROGRAMS {
        let arena = Arena::create(1).unwrap();
        arena.header().handled[0].store(1, Ordering::Relaxed);
        let session = try_connect(&broker.socket).unwrap();
        send(&session, &hello(1), &[arena.fd().as_fd(), bell.as_fd()]);
    }
    broker.until_empty();
    until(|| broker.ask::<Stats>(what::STATS, "").connections.handled == PROGRAMS);
}

/// One that waits is told who may come, from all that was said before it nominated, by whomever.
#[test]
fn who_waits_is_told_for_whom() {
    let broker = TestBroker::start();
    let (client, server) = (Client::connect(&broker), Client::connect(&broker));
    let expect = |role, to: std::net::SocketAddr| {
        let std::net::IpAddr::V4(ip) = to.ip() else { panic!("{to}") };
        let ip = ip.to_ipv6_mapped().octets();
        ToBroker::Expect { conn: ConnId(1 << 63), role, ip, port: to.port() }
    };
    let ask = |session: &Client, role, socket: &std::net::TcpStream| {
        let message = ToBroker::Nominate { conn: CONN, role, tx: 0, rx: 0, answer: true };
        send(&session.socket, &message, &[socket.as_fd()]);
    };
    let waiting = |expected| FromBroker::Waiting { conn: CONN, expected };
    for _ in 0..50 {
        let (a, b) = tcp_pair();
        let address = b.local_addr().unwrap();
        ask(&client, Role::Client, &a);
        assert_eq!(client.hear(), waiting(Expected::Nobody));
        server.say(expect(Role::Server, address));
        ask(&client, Role::Client, &a);
        assert_eq!(client.hear(), waiting(Expected::Other));
        client.say(expect(Role::Server, address));
        server.say(ToBroker::Withdraw { conn: ConnId(1 << 63) });
        ask(&client, Role::Client, &a);
        assert_eq!(client.hear(), waiting(Expected::Own));
        client.say(expect(Role::Client, address));
        client.say(ToBroker::Withdraw { conn: CONN });
        ask(&server, Role::Server, &b);
        assert_eq!(server.hear(), waiting(Expected::Other));
        ask(&client, Role::Client, &a);
        for session in [&client, &server] {
            assert!(matches!(session.hear(), FromBroker::Matched { .. }), "no more waiting");
            session.say(ToBroker::Withdraw { conn: CONN });
        }
        client.say(ToBroker::Withdraw { conn: ConnId(1 << 63) });
        // The one that withdrew later hears that the other is gone.
        until(|| [&client, &server].iter().any(|session| !session.silent()));
        let left = if client.silent() { &server } else { &client };
        assert_eq!(left.hear(), FromBroker::Gone { conn: CONN });
    }
    drop((client, server));
    broker.until_empty();
}

#[test]
fn a_token_is_worth_nothing_to_others() {
    let broker = TestBroker::start();
    let (_client, server, _tcp) = matched(&broker);
    let (thief, _accomplice, _tcp2) = matched(&broker);
    server.register(CONN);
    let FromBroker::Registered { token, .. } = server.hear() else { panic!() };
    for (session, conn, expected) in [
        (&thief, CONN, Reason::AttachRefused),
        (&thief, ConnId(9), Reason::PeerVanished),
        (&server, CONN, Reason::AttachRefused),
    ] {
        session.say(ToBroker::Attach { conn, token });
        let (message, fds) = session.hear_with_fds();
        assert_eq!(message, FromBroker::Attached { conn, token, class: 0, reason: expected.code() });
        assert!(fds.is_empty());
    }
    thief.say(ToBroker::Detach { token, gone: true });
    thief.say(ToBroker::Unregister { token });
    thief.say(ToBroker::Attach { conn: CONN, token: token ^ 1 });
    assert!(matches!(thief.hear(), FromBroker::Attached { reason: 0x0a04_0002, .. }));
    assert_eq!(broker.info().device.dmbs_cnt, 1);
}

#[test]
fn what_cannot_have_a_lane_is_refused_with_its_reason() {
    let broker = TestBroker::start();
    let client = Client::connect(&broker);
    let (mut a, mut b) = tcp_pair();
    transfer(&mut a, &mut b, 10);
    let refused = |reason: Reason| FromBroker::Refused { conn: CONN, reason: reason.code() };
    client.nominate(CONN, Role::Client, (11, 0), &a);
    assert_eq!(client.hear(), refused(Reason::BypassedHooks));
    client.say(ToBroker::Nominate { conn: CONN, role: Role::Client, tx: 10, rx: 0, answer: false });
    assert_eq!(client.hear(), refused(Reason::NoDescriptors));
    for _ in 0..16 {
        client.nominate(CONN, Role::Client, (9, 0), &a);
        assert_eq!(client.hear(), FromBroker::Again { conn: CONN });
    }
    client.nominate(CONN, Role::Client, (9, 0), &a);
    assert_eq!(client.hear(), refused(Reason::BypassedHooks));
    drop(b);
    transfer_until_closed(&a);
    client.nominate(CONN, Role::Client, (10, 0), &a);
    assert_eq!(client.hear(), refused(Reason::NotEstablished));
    client.register(CONN);
    let reason = Reason::PeerVanished.code();
    assert_eq!(client.hear(), FromBroker::Registered { conn: CONN, token: 0, reason });
}

fn transfer_until_closed(socket: &std::net::TcpStream) {
    use std::io::Read;
    let mut socket = socket;
    assert_eq!(socket.read(&mut [0; 1]).unwrap(), 0);
}

#[test]
fn a_nomination_that_was_under_way_is_proved_by_the_arena() {
    let broker = TestBroker::start();
    let client = Client::connect(&broker);
    let server = Client::connect(&broker);
    let (mut a, mut b) = tcp_pair();
    let block = client.arena.allocate().unwrap();
    let index = client.arena.index(block).unwrap();
    let conn = ConnId::new(index, block.name.load(Ordering::Relaxed));
    transfer(&mut a, &mut b, 10);
    block.tx.tcp_bytes.store(10, Ordering::Relaxed);
    server.nominate(CONN, Role::Server, (0, 10), &b);
    client.nominate(conn, Role::Client, (4, 0), &a);
    assert!(matches!(client.hear(), FromBroker::Matched { .. }));
    assert!(matches!(server.hear(), FromBroker::Matched { .. }));
}

#[test]
fn the_broker_does_not_keep_a_connection_alive() {
    let broker = TestBroker::start();
    let client = Client::connect(&broker);
    let (a, b) = tcp_pair();
    client.nominate(CONN, Role::Client, (0, 0), &a);
    until(|| broker.info().waiting == 1);
    drop(a);
    transfer_until_closed(&b);
}

#[test]
fn the_dmb_limit_is_a_reason() {
    let broker = TestBroker::with(|config| {
        config.max_dmbs = 4;
        config.policy.process.dmbs = 2;
    });
    let (client, server, _tcp) = matched(&broker);
    let register = |session: &Client| {
        session.register(CONN);
        match session.hear() {
            FromBroker::Registered { reason, .. } => Reason::from_code(reason),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!([register(&client), register(&client)], [None, None]);
    assert_eq!(register(&client), Some(Reason::DmbLimit));
    assert_eq!([register(&server), register(&server)], [None, None]);
    assert_eq!(register(&server), Some(Reason::MaxDmb));
}

#[test]
fn switched_off_and_on() {
    let broker = TestBroker::start();
    let (client, server, _tcp) = matched(&broker);
    let knobs = Region::map_readable(client.pages[1].as_fd(), PAGE).unwrap();
    // SAFETY: atomics only, mapped until the end of the test.
    let knobs = unsafe { knobs.at::<KnobPage>(0) }.unwrap();
    assert_eq!(knobs.active.load(Ordering::Relaxed), 1);
    let (a, b) = tcp_pair();
    let waiting = ConnId(77);
    client.nominate(waiting, Role::Client, (0, 0), &a);
    until(|| broker.info().waiting == 1);

    assert!(!broker.ask::<Device>(what::DEVICE_SET, "active off").active);
    assert_eq!(knobs.active.load(Ordering::Relaxed), 0);
    let inactive = Reason::Inactive.code();
    assert_eq!(client.hear(), FromBroker::Refused { conn: waiting, reason: inactive });
    for session in [&client, &server] {
        assert_eq!(session.hear(), FromBroker::Revoke { conn: ConnId(0) });
    }
    client.nominate(waiting, Role::Client, (0, 0), &a);
    assert_eq!(client.hear(), FromBroker::Refused { conn: waiting, reason: inactive });

    assert!(broker.ask::<Device>(what::DEVICE_SET, "active on").active);
    assert_eq!(knobs.active.load(Ordering::Relaxed), 1);
    client.nominate(waiting, Role::Client, (0, 0), &a);
    server.nominate(waiting, Role::Server, (0, 0), &b);
    assert!(matches!(client.hear(), FromBroker::Matched { .. }));
}

#[test]
fn a_restarted_broker_is_the_same_device_unless_told_otherwise() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("broker.sock");
    let gid_of = |change: fn(&mut Config)| {
        let broker = TestBroker::at(&socket, change);
        Client::connect(&broker).welcome.gid
    };
    let first = gid_of(|_| {});
    assert_eq!(gid_of(|_| {}), first);
    assert_eq!(gid_of(|config| config.gid = Some(Gid(42))), 42);
    assert_eq!(gid_of(|_| {}), first);
}

#[test]
fn ueids_are_announced() {
    let broker = TestBroker::with(|config| config.ueids = vec![Eid::ueid("ONE").unwrap()]);
    let ueids = |client: &Client| {
        let count = usize::from(client.welcome.ueid_count);
        client.welcome.ueids[..count].iter().map(|u| Eid(*u).as_str().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ueids(&Client::connect(&broker)), ["ONE"]);
    let changed: Ueids = broker.ask(what::UEID, "add two");
    assert_eq!(changed.ueids, ["ONE", "TWO"]);
    assert_eq!(ueids(&Client::connect(&broker)), ["ONE", "TWO"]);
    assert_eq!(broker.ask::<Ueids>(what::UEID, "del ONE").ueids, ["TWO"]);
    assert!(broker.ask::<Ueids>(what::UEID, "flush").ueids.is_empty());
    assert!(ueids(&Client::connect(&broker)).is_empty());
    let default = TestBroker::start().info().ueids;
    assert!(default.len() == 1 && default[0].starts_with("SHUNPIKE-"), "{default:?}");
}

#[test]
fn a_programs_name_says_nothing_to_a_terminal() {
    let broker = TestBroker::start();
    let client = Client::named(&broker, *b"\x1b[2J\r\n\xc2\x9b1m\x9b\x07ps\0\0");
    let block = client.arena.allocate().unwrap();
    block.fd.store(5, Ordering::Relaxed);
    block.pid.store(std::process::id(), Ordering::Relaxed);
    let shown = broker.ask::<Connections>(what::SS, "").connections;
    assert_eq!(shown[0].comm, "?[2J???1m\u{fffd}?ps");
}

#[test]
fn the_tools_are_answered() {
    let broker = TestBroker::start();
    let (client, _server, _tcp) = matched(&broker);
    let pid = std::process::id();
    let block = client.arena.allocate().unwrap();
    block.fd.store(5, Ordering::Relaxed);
    block.pid.store(pid, Ordering::Relaxed);
    block.reason.store(Reason::NoUeid.code(), Ordering::Relaxed);
    block.set_addresses("10.0.0.1:1".parse().unwrap(), "10.0.0.2:2".parse().unwrap());
    let shown = broker.ask::<Connections>(what::SS, "").connections;
    assert_eq!(shown.len(), 1);
    assert_eq!((shown[0].pid, shown[0].fd, shown[0].comm.as_str()), (pid, 5, "test"));
    assert_eq!(shown[0].mode, "TCP 0x03030008");
    assert_eq!((shown[0].local.as_str(), shown[0].remote.as_str()), ("", ""), "an earlier connection's");
    block.cookie.store(7, Ordering::Relaxed);
    let shown = broker.ask::<Connections>(what::SS, "").connections;
    assert_eq!((shown[0].local.as_str(), shown[0].remote.as_str()), ("10.0.0.1:1", "10.0.0.2:2"));
    let words = broker.ask::<Explanations>(what::EXPLAIN, &format!("{pid}:5")).explanations;
    assert_eq!(words[0].why, Reason::NoUeid.text());
    assert_eq!(broker.ask::<Stats>(what::STATS, "").connections.reasons[0].client, 1);
    broker.ask::<Done>(what::STATS_RESET, "");
    assert!(broker.ask::<Stats>(what::STATS, "").connections.reasons.is_empty());
    broker.ask::<Done>(what::REVOKE, &format!("{pid}:5"));
    assert!(
        matches!(client.hear(), FromBroker::Revoke { conn } if conn.0 as u32 == client.arena.index(block).unwrap())
    );
    broker.ask::<Done>(what::REVOKE, &pid.to_string());
    assert_eq!(client.hear(), FromBroker::Revoke { conn: ConnId(0) });
    assert!(!broker.ask::<Seid>(what::SEID, "show").enabled);
    assert_eq!(broker.ask::<Device>(what::DEVICE_SET, "rmem 100000").rmem, 131072);
    assert!(broker.ask::<Device>(what::DEVICE_SET, "dmb_copy on").dmb_copy);
    let sysctls = broker.ask::<Sysctls>(what::SYSCTL, "spin_us=7").sysctls;
    assert_eq!(sysctls.iter().find(|s| s.name == "spin_us").unwrap().value, 7);
    let groups = broker.ask::<LinkGroups>(what::LINKGROUP, "").link_groups;
    assert_eq!((groups.len(), groups[0].conns, groups[0].client_pid), (1, 1, pid));
}

#[test]
fn wrong_questions_get_an_answer_too() {
    let broker = TestBroker::start();
    for (what, arg) in [
        (what::DEVICE_SET, "active maybe"),
        (what::DEVICE_SET, "rmem 99999999999"),
        (what::DEVICE_SET, ""),
        (what::UEID, "add ,"),
        (what::UEID, "del X"),
        (what::SEID, "enable"),
        (what::EXPLAIN, "1"),
        (what::EXPLAIN, "x:y"),
        (what::REVOKE, "1:2"),
        (what::SYSCTL, "spin_us=-1"),
        (what::SYSCTL, "max_conns_per_lgr=15"),
        (what::SYSCTL, "nonsense=1"),
        (999, ""),
    ] {
        let failure = match query(&broker.socket, what, arg) {
            Err(QueryError::Refused(failure)) => failure,
            other => panic!("{what} {arg}: {other:?}"),
        };
        assert!(!failure.what.is_empty() && !failure.hint.is_empty(), "{failure:?}");
    }
    let long = "x".repeat(2000);
    assert!(matches!(query(&broker.socket, what::EXPLAIN, &long), Err(QueryError::Argument(2000))));
}

#[test]
fn a_long_answer_comes_whole() {
    let broker = TestBroker::start();
    let client = Client::connect(&broker);
    for _ in 0..4000 {
        client.arena.allocate().unwrap();
    }
    let text = query(&broker.socket, what::SS, "").unwrap();
    assert!(text.len() > 1 << 20);
    let shown: Connections = serde_json::from_str(&text).unwrap();
    assert_eq!(shown.connections.len(), 4000);
}

/// More than come in one piece.
#[test]
fn all_link_groups_are_told_of_once() {
    let broker = TestBroker::start();
    let clients: Vec<Client> = (0..12).map(|_| Client::connect(&broker)).collect();
    let mut conn = 0;
    for (at, one) in clients.iter().enumerate() {
        for other in &clients[at + 1..] {
            conn += 1;
            let (conn, (a, b)) = (ConnId(1 << 32 | conn), tcp_pair());
            one.nominate(conn, Role::Client, (0, 0), &a);
            other.nominate(conn, Role::Server, (0, 0), &b);
            for session in [one, other] {
                assert!(matches!(session.hear(), FromBroker::Matched { .. }));
            }
        }
    }
    let told: LinkGroups = broker.ask(what::LINKGROUP, "");
    let mut ids: Vec<u32> = told.link_groups.iter().map(|group| group.id).collect();
    ids.sort_unstable();
    assert_eq!(ids, (1..=66).collect::<Vec<_>>());
}

#[test]
fn an_idle_broker_leaves_and_takes_its_socket_along() {
    let idle = |config: &mut Config| config.idle_exit = Some(Duration::from_millis(200));
    let broker = TestBroker::with(idle);
    let socket = broker.socket.clone();
    let client = Client::connect(&broker);
    std::thread::sleep(Duration::from_millis(400));
    assert!(broker.info().sessions == 1, "not while it has a session");
    drop(client);
    broker.join().unwrap();
    assert!(!socket.exists());
}

#[test]
fn two_brokers_at_once_end_with_one() {
    let broker = TestBroker::start();
    let second = shunpike_broker::run(Config::new(broker.socket.clone()), LoopbackIsm::boxed, None);
    assert!(matches!(second, Err(BrokerError::AlreadyServed { .. })), "{second:?}");
    broker.info();
}
