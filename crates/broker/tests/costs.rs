//! What each message may cost: the threat model's table has a line for each, and a flood of each stays within it.

mod support;

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use shunpike_broker::what;
use shunpike_shm::arena::Arena;
use shunpike_shm::lane::HEADER;
use shunpike_shm::{region, tap};
use shunpike_wire::session::{ClcBytes, ConnId, Role, ToBroker};
use std::net::TcpStream;
use std::time::{Duration, Instant};
use support::*;

/// Each message once, number `n` of its flood.
fn messages(n: u64) -> [ToBroker; 14] {
    let conn = ConnId((1 << 32) | (n % 1024));
    let arg = ClcBytes::new(b"").expect("fits");
    [
        hello(2),
        ToBroker::Nominate { conn, role: Role::Client, tx: 1, rx: 1, answer: true },
        ToBroker::Withdraw { conn },
        ToBroker::Clc { conn, clc: clc() },
        ToBroker::Register { conn, class: 0 },
        ToBroker::Attach { conn, token: n },
        ToBroker::Unregister { token: n },
        ToBroker::Detach { token: n, gone: true },
        ToBroker::Park { token: n },
        ToBroker::Reuse { conn, token: n },
        ToBroker::Lanes { lanes: n as u32, plain: 0 },
        ToBroker::Query { what: what::SS, arg },
        ToBroker::Expect { conn: ConnId(n), role: Role::Server, ip: [0; 16], port: 80 },
        ToBroker::Ring { ring: n as u32, class: 0 },
    ]
}

/// Its name in the table. A new message has to be given one, and a line.
fn name(message: &ToBroker) -> &'static str {
    match message {
        ToBroker::Hello { .. } => "Hello",
        ToBroker::Nominate { .. } => "Nominate",
        ToBroker::Withdraw { .. } => "Withdraw",
        ToBroker::Clc { .. } => "Clc",
        ToBroker::Register { .. } => "Register",
        ToBroker::Attach { .. } => "Attach",
        ToBroker::Unregister { .. } => "Unregister",
        ToBroker::Detach { .. } => "Detach",
        ToBroker::Park { .. } => "Park",
        ToBroker::Reuse { .. } => "Reuse",
        ToBroker::Lanes { .. } => "Lanes",
        ToBroker::Query { .. } => "Query",
        ToBroker::Expect { .. } => "Expect",
        ToBroker::Ring { .. } => "Ring",
    }
}

const FLOOD: Duration = Duration::from_millis(150);

#[test]
fn a_flood_of_each_message_costs_what_the_threat_model_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/threat-model.md");
    let model = std::fs::read_to_string(path).expect("the threat model");
    let broker = TestBroker::start();
    let (socket, _peer) = tcp_pair();
    for (kind, message) in messages(0).iter().enumerate() {
        let name = name(message);
        assert!(model.contains(&format!("| `{name}` |")), "the threat model has no line for {name}");
        let worst = flood(&broker, kind, &socket);
        eprintln!("{name}: others waited {worst:?}");
        assert!(worst < Duration::from_secs(1), "{name}: others waited {worst:?}");
        broker.until_empty();
    }
}

/// The longest that another waited for an answer during a flood from four sessions, and at their end.
fn flood(broker: &TestBroker, kind: usize, socket: &TcpStream) -> Duration {
    let begins_session = matches!(messages(0)[kind], ToBroker::Hello { .. } | ToBroker::Query { .. });
    let clients: Vec<Client> = (0..4).map(|_| Client::connect_at_last(broker)).collect();
    let worst = std::thread::scope(|scope| {
        for client in clients {
            scope.spawn(move || {
                let began = Instant::now();
                let fds = beside(&messages(0)[kind], socket, &client);
                let fds: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
                let mut n = 0;
                while began.elapsed() < FLOOD {
                    n += 1;
                    let mut bytes = [0; 1024];
                    let len = messages(n)[kind].encode(&mut bytes).expect("encodes");
                    let fresh = begins_session.then(|| try_connect(&broker.socket)).flatten();
                    // Those whom the broker has ended have said enough.
                    let to = fresh.as_ref().unwrap_or(&client.socket);
                    if send_bytes(to, &bytes[..len], &fds).is_err() && !begins_session {
                        break;
                    }
                    while !begins_session && readable(&client.socket, Duration::ZERO) {
                        if receive(&client.socket).is_none() {
                            return;
                        }
                    }
                }
            });
        }
        waited(broker, FLOOD)
    });
    worst.max(waited(broker, FLOOD / 3))
}

/// What has to lie beside a message.
fn beside(message: &ToBroker, socket: &TcpStream, client: &Client) -> Vec<OwnedFd> {
    match message {
        ToBroker::Hello { .. } => {
            let arena = Arena::create(1).expect("arena").fd().try_clone().expect("dup");
            let bells = client.doorbells.iter().map(|bell| bell.try_clone().expect("dup"));
            std::iter::once(arena).chain(bells).collect()
        }
        ToBroker::Nominate { .. } => vec![socket.try_clone().expect("dup").into()],
        ToBroker::Register { .. } => vec![region::create("dmb", HEADER + (16 << 10)).expect("memfd")],
        ToBroker::Ring { .. } => vec![region::create("ring", tap::len(0)).expect("memfd")],
        _ => Vec::new(),
    }
}

fn waited(broker: &TestBroker, during: Duration) -> Duration {
    let (began, mut worst) = (Instant::now(), Duration::ZERO);
    while began.elapsed() < during {
        let asked = Instant::now();
        if shunpike_broker::query(&broker.socket, what::INFO, "").is_ok() {
            worst = worst.max(asked.elapsed());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    worst
}
