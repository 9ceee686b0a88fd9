//! A broker and up to four sessions, each of which may say anything with any descriptors, in any order.
//!
//! It is the real broker, with real sockets and helpers, and with a clock that is one of the inputs, turned by hand: one message, then turns until nobody has anything to
//! say. What the sessions hear is checked against what *they* know: who lent which socket, who was matched with
//! whom. After each step the broker's tables must agree with one another ([`Server::audit`]), and after the last
//! one, when all have left, they must be empty.

use crate::kinds;
use crate::script::Script;
use crate::session_socket::{Heard, connect, receive, send, send_bytes};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{MemfdFlags, SealFlags};
use shunpike_broker::loopback::LoopbackIsm;
use shunpike_broker::{Config, Server, clock, what};
use shunpike_shm::lane::{Dmb, HEADER};
use shunpike_shm::{arena, region};
use shunpike_wire::clc::{Decline, Message};
use shunpike_wire::session::{
    CONTROL, ClcBytes, ConnId, FromBroker, LAST_WITHOUT_CONTROL, MAX, Role, ToBroker, VERSION,
};
use shunpike_wire::{PeerId, Reason};
use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

/// Every session's name.
const COMM: [u8; 16] = *b"fuzzed\0\0\0\0\0\0\0\0\0\0";
/// Sessions at a time.
const SESSIONS: usize = 4;
/// TCP connections that they have the ends of.
const PAIRS: usize = 3;
/// Names of connections: blocks 0 and 1, in two uses; one that is no block.
const CONNS: [u64; 5] = [0, 1, 1 << 32, 1 << 32 | 1, 1 << 20];
/// Steps of one input.
const STEPS: usize = 200;
/// A message is served in fewer turns, and one that is not keeps the broker busy for nothing.
const TURNS: usize = 64;
/// A helper takes no longer for anything that is passed here.
const PATIENCE: Duration = Duration::from_millis(100);

/// A broker is made once, and again when an input has changed its settings.
struct Place {
    server: Server,
    socket: PathBuf,
    listener: TcpListener,
    _directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let mut config = Config::system_wide(directory.path().join("broker.sock"));
        // Few, so that limits are met.
        config.max_dmbs = 7;
        config.max_sessions = 6;
        config.policy.process.dmbs = 5;
        config.policy.process.sessions = usize::MAX;
        config.policy.user.sessions = 5;
        config.policy.user.dmbs = 6;
        config.policy.process.nominations = u32::MAX;
        config.policy.user.nominations = u32::MAX;
        let socket = config.socket.clone();
        let server = Server::new(config, LoopbackIsm::boxed).expect("a broker");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        Self { server, socket, listener, _directory: directory }
    }
}

thread_local! {
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

/// One input.
pub fn run(bytes: &[u8]) {
    PLACE.with_borrow_mut(|kept| {
        // The clock is made up. Each input has a user's connections of a second.
        clock::pass(Duration::from_secs(1));
        let mut place = kept.take().unwrap_or_else(Place::new);
        let mut world = World::new(&mut place);
        let mut script = Script::new(bytes);
        for _ in 0..STEPS {
            let Some(op) = script.next() else { break };
            world.step(op, &mut script);
            world.settle();
        }
        let changed = world.settings_changed;
        world.end();
        *kept = (!changed).then_some(place);
    });
}

/// An end of a connection: which session's, and its name there.
type Party = (usize, u64);

/// A program's session, or one that never says that it is.
struct Client {
    socket: OwnedFd,
    /// The broker has said welcome.
    welcome: bool,
    arena: OwnedFd,
    bells: Vec<OwnedFd>,
}

/// A TCP connection, by a number that no other one has.
struct Pair {
    number: usize,
    client: TcpStream,
    server: TcpStream,
}

/// A match as its two ends were told of it.
#[derive(Copy, Clone)]
struct Match {
    link: u32,
    slot: u16,
    side: u8,
    peer: Option<Party>,
}

/// Who may attach a DMB, and whether its owner still holds it.
struct Owned {
    owner: usize,
    peer: Party,
    held: bool,
    class: u8,
}

struct World<'a> {
    place: &'a mut Place,
    clients: [Option<Client>; SESSIONS],
    pairs: [Option<Pair>; PAIRS],
    pairs_made: usize,
    /// The socket that an end's last nomination lent: which pair's, which end.
    lent: HashMap<Party, (usize, usize)>,
    /// The connection that last nominated from each block.
    blocks: HashMap<(usize, u32), u64>,
    matches: HashMap<Party, Match>,
    tokens: Vec<(u64, Owned)>,
    /// The class of the Register, or the token of the Attach, whose answer is to come.
    asked: Option<u64>,
    /// The DMB that a Reuse asked for: whose it is, and with which session it was.
    again: Option<(usize, usize)>,
    settings_changed: bool,
}

impl<'a> World<'a> {
    fn new(place: &'a mut Place) -> Self {
        Self {
            place,
            clients: [const { None }; SESSIONS],
            pairs: [const { None }; PAIRS],
            pairs_made: 0,
            lent: HashMap::new(),
            blocks: HashMap::new(),
            matches: HashMap::new(),
            tokens: Vec::new(),
            asked: None,
            again: None,
            settings_changed: false,
        }
    }

    /// One thing that happens.
    fn step(&mut self, op: u8, script: &mut Script<'_>) {
        let at = script.below(SESSIONS);
        match op % 16 {
            0 => self.connect(at, script),
            1 => {
                // Both ends of a connection nominated as they should be: the way to everything else.
                let (other, pair) = (script.below(SESSIONS), script.below(PAIRS));
                for (client, role, end) in [(at, Role::Client, 0), (other, Role::Server, 1)] {
                    let conn = script.pick(&CONNS);
                    self.nominate(client, conn, role, pair, end, (0, 0));
                    self.settle();
                }
            }
            2 | 3 => {
                let (conn, pair, end) = (script.pick(&CONNS), script.below(PAIRS), script.below(2));
                let role = if script.below(4) == 0 { end == 1 } else { end == 0 };
                let counts = [(0, 0), (1, 0), (0, 1), (5, 0), (0, 5), (u64::MAX, u64::MAX)];
                let role = if role { Role::Client } else { Role::Server };
                self.nominate(at, conn, role, pair, end, script.pick(&counts));
            }
            4 | 5 => {
                let (conn, class) = (script.pick(&CONNS), script.pick(&[0, 0, 0, 1, 11, 255]));
                let memory = self.memory(class, script.byte());
                let fds: Vec<BorrowedFd<'_>> = memory.iter().map(AsFd::as_fd).collect();
                (self.asked, self.again) = (Some(class.into()), None);
                self.say(at, &ToBroker::Register { conn: ConnId(conn), class }, &fds);
            }
            6 | 7 => {
                let (conn, token) = (script.pick(&CONNS), self.token(script));
                self.say(at, &ToBroker::Attach { conn: ConnId(conn), token }, &[]);
            }
            8 => {
                let token = self.token(script);
                self.say(at, &ToBroker::Unregister { token }, &[]);
            }
            9 => {
                let (token, gone) = (self.token(script), script.below(4) != 0);
                self.say(at, &ToBroker::Detach { token, gone }, &[]);
            }
            10 => {
                let conn = script.pick(&CONNS);
                self.say(at, &ToBroker::Withdraw { conn: ConnId(conn) }, &[]);
                self.part((at, conn));
            }
            11 => {
                let conn = script.pick(&CONNS);
                let mut bytes = [0; MAX];
                let decline = Message::Decline(Decline::new(PeerId::default(), Reason::NoUeid));
                let len = decline.encode(&mut bytes).expect("encodes");
                let clc = if script.below(8) == 0 { script.take(40) } else { &bytes[..len] };
                let clc = ClcBytes::new(clc).expect("fits");
                self.say(at, &ToBroker::Clc { conn: ConnId(conn), clc }, &[]);
            }
            12 => match script.below(6) {
                0 => self.leave(at),
                1 => self.carry(script),
                2 => self.scribble(at, script),
                3 => {
                    let token = self.token(script);
                    self.say(at, &ToBroker::Park { token }, &[]);
                }
                4 => {
                    let (conn, token) = (script.pick(&CONNS), self.token(script));
                    self.ask_again(at, token);
                    self.say(at, &ToBroker::Reuse { conn: ConnId(conn), token }, &[]);
                }
                _ => self.pairs[script.below(PAIRS)] = None,
            },
            13 => {
                let (conn, port) = (script.pick(&CONNS), self.port());
                let ip = script.pick(&[[0; 16], std::net::Ipv4Addr::LOCALHOST.to_ipv6_mapped().octets()]);
                let role = script.pick(&[Role::Client, Role::Server]);
                self.say(at, &ToBroker::Expect { conn: ConnId(conn), role, ip, port }, &[]);
            }
            14 => self.query(script),
            // What patience, rates and parking go by.
            _ if op == 0xff => {
                clock::pass(script.pick(&[1, 30, 300, 3000, 11_000].map(Duration::from_millis)))
            }
            _ if op >= 0xc0 => self.odd(at, script),
            _ => self.raw(at, script),
        }
    }

    /// A connection, and in most cases a greeting.
    fn connect(&mut self, at: usize, script: &mut Script<'_>) {
        if self.clients[at].is_some() {
            return;
        }
        let Some(socket) = connect(&self.place.socket) else { return };
        let shape = script.byte();
        let len = if shape == 255 { 4096 } else { arena::SIZE };
        let arena = region::create("fuzzed-arena", len).expect("memory");
        let bell = |flags| eventfd(0, flags | EventfdFlags::CLOEXEC).expect("an eventfd");
        let count = if shape == 254 { 9 } else { usize::from(shape % 3) + 1 };
        let flags = if shape == 253 { EventfdFlags::empty() } else { EventfdFlags::NONBLOCK };
        let bells: Vec<OwnedFd> = (0..count).map(|_| bell(flags)).collect();
        self.clients[at] = Some(Client { socket, welcome: false, arena, bells });
        if shape == 252 {
            return;
        }
        let client = self.clients[at].as_ref().expect("just made");
        let doorbells = if shape == 251 { 0 } else { count as u8 };
        let (control, version) = match shape {
            250 => (CONTROL, VERSION + 1),
            249 => (0, LAST_WITHOUT_CONTROL),
            248 => (0, LAST_WITHOUT_CONTROL - 1),
            _ => (CONTROL, VERSION),
        };
        let mut fds = vec![client.arena.as_fd()];
        fds.extend(client.bells.iter().map(AsFd::as_fd));
        send(&client.socket, &ToBroker::Hello { control, version, doorbells, comm: COMM }, &fds);
    }

    fn nominate(&mut self, at: usize, conn: u64, role: Role, pair: usize, end: usize, (tx, rx): (u64, u64)) {
        self.pair(pair);
        let Some(Pair { number, client, server }) = &self.pairs[pair] else { return };
        let (socket, lent) = ([client, server][end], (*number, end));
        let Some(program) = self.clients[at].as_ref().filter(|client| client.welcome) else { return };
        let message = ToBroker::Nominate { conn: ConnId(conn), role, tx, rx, answer: tx == 0 };
        send(&program.socket, &message, &[socket.as_fd()]);
        self.nominated((at, conn), Some(lent));
    }

    /// What a nomination ends, whatever comes of it.
    fn nominated(&mut self, party: Party, lent: Option<(usize, usize)>) {
        self.part(party);
        let block = (party.0, party.1 as u32);
        if let Some(before) = self.blocks.insert(block, party.1) {
            self.part((party.0, before));
        }
        match lent {
            Some(lent) => self.lent.insert(party, lent),
            None => self.lent.remove(&party),
        };
    }

    /// A party has left its match, by its own word.
    fn part(&mut self, party: Party) {
        self.matches.remove(&party);
    }

    /// The pair, made if need be. Nothing stays of it in the kernel: it ends by a reset.
    fn pair(&mut self, n: usize) {
        if self.pairs[n].is_some() {
            return;
        }
        let Ok(address) = self.place.listener.local_addr() else { return };
        let Ok(client) = TcpStream::connect(address) else { return };
        let Ok((server, _)) = self.place.listener.accept() else { return };
        for socket in [&client, &server] {
            let _ = rustix::net::sockopt::set_socket_linger(socket, Some(Duration::ZERO));
            let _ = socket.set_nonblocking(true);
        }
        self.pairs_made += 1;
        self.pairs[n] = Some(Pair { number: self.pairs_made, client, server });
    }

    /// Bytes from end to end, read or left.
    fn carry(&mut self, script: &mut Script<'_>) {
        let (pair, n, reads) = (script.below(PAIRS), script.below(8), script.below(2) == 0);
        self.pair(pair);
        let Some(Pair { client, server, .. }) = &mut self.pairs[pair] else { return };
        let _ = client.write(&[7; 8][..n]);
        if reads {
            let _ = server.read(&mut [0; 8]);
        }
    }

    /// A word of its own arena, which the broker reads.
    fn scribble(&mut self, at: usize, script: &mut Script<'_>) {
        let Some(client) = &self.clients[at] else { return };
        let (place, word) = (script.short() & !7, script.word());
        let _ = rustix::io::pwrite(&client.arena, &word.to_ne_bytes(), place as u64);
    }

    fn port(&self) -> u16 {
        self.place.listener.local_addr().map_or(1, |address| address.port())
    }

    /// Memory for a DMB: as it should be, or nearly.
    fn memory(&self, class: u8, shape: u8) -> Vec<OwnedFd> {
        let right = Dmb::len(class.min(1));
        let sealed = |len| region::create("fuzzed-dmb", len).expect("memory");
        let unsealed = |seals| {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let fd = rustix::fs::memfd_create("fuzzed-dmb", flags).expect("memory");
            rustix::fs::ftruncate(&fd, right as u64).expect("a size");
            rustix::fs::fcntl_add_seals(&fd, seals).expect("seals");
            fd
        };
        match shape {
            255 => vec![],
            254 => vec![sealed(HEADER)],
            253 => vec![unsealed(SealFlags::empty())],
            252 => vec![unsealed(SealFlags::SHRINK | SealFlags::SEAL)],
            251 => vec![unsealed(SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL | SealFlags::WRITE)],
            250 => vec![sealed(right), sealed(right)],
            249 => vec![eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd")],
            248 => vec![std::fs::File::open("/dev/null").expect("a device").into()],
            _ => vec![sealed(right)],
        }
    }

    /// One that was given out, one that was nearly, or one that was never.
    fn token(&mut self, script: &mut Script<'_>) -> u64 {
        let n = script.below(32);
        let known = self.tokens.len().checked_sub(1 + n).map(|at| self.tokens[at].0);
        let token = known.unwrap_or_else(|| match self.tokens.first() {
            Some((token, _)) if n.is_multiple_of(2) => token ^ 1,
            _ => n as u64,
        });
        self.asked = Some(token);
        token
    }

    /// A tool's question.
    fn query(&mut self, script: &mut Script<'_>) {
        const ASK: [u16; 7] =
            [what::SS, what::STATS, what::DEVICE, what::INFO, what::EXPLAIN, what::LINKGROUP, what::REVOKE];
        const CHANGE: [(u16, &str); 6] = [
            (what::DEVICE_SET, "active off"),
            (what::DEVICE_SET, "active on"),
            (what::STATS_RESET, ""),
            (what::UEID, "add FUZZED"),
            (what::SYSCTL, "max_conns_per_lgr=16"),
            (what::DEVICE_SET, "rmem 16384"),
        ];
        let pid = std::process::id().to_string();
        let (what, arg) = match script.below(4) {
            0 => {
                let n = script.below(24);
                (u16::from(script.byte()), ClcBytes::new(script.take(n)))
            }
            1 => {
                let (what, arg) = script.pick(&CHANGE);
                (what, ClcBytes::new(arg.as_bytes()))
            }
            _ => (script.pick(&ASK), ClcBytes::new(pid.as_bytes())),
        };
        self.settings_changed |= !ASK.contains(&what);
        let Some(socket) = connect(&self.place.socket) else { return };
        send(&socket, &ToBroker::Query { what, arg: arg.expect("fits") }, &[]);
        self.turn();
        let mut answer = Vec::new();
        let mut chunk = [0; 16 << 10];
        while let Ok((n @ 1.., _)) =
            rustix::net::recv(&socket, &mut chunk[..], rustix::net::RecvFlags::DONTWAIT)
        {
            answer.extend_from_slice(&chunk[..n]);
        }
        // One that was turned away hears nothing.
        let said = std::str::from_utf8(&answer).expect("an answer is text");
        assert!(said.is_empty() || said.starts_with('{') && said.trim_end().ends_with('}'), "{said}");
    }

    /// Any bytes, with any descriptors.
    fn raw(&mut self, at: usize, script: &mut Script<'_>) {
        let (len, kinds) = (script.below(64), script.byte());
        let bytes = script.take(len);
        self.pair(0);
        let memory = self.memory(0, kinds);
        let Some(client) = &self.clients[at] else { return };
        let mut fds: Vec<BorrowedFd<'_>> = match (kinds % 3, &self.pairs[0]) {
            (0, _) => Vec::new(),
            (1, Some(pair)) => vec![pair.client.as_fd()],
            _ => memory.iter().map(AsFd::as_fd).collect(),
        };
        if kinds % 7 == 6 {
            fds.resize(fds.len() + usize::from(kinds % 11), client.arena.as_fd());
        }
        let lent = self.pairs[0].as_ref().filter(|_| kinds % 3 == 1 && fds.len() == 1);
        let lent = lent.map(|pair| (pair.number, 0));
        let message = ToBroker::decode(bytes);
        // A tool's question is answered by no message: see `query`.
        if bytes.is_empty()
            || matches!(message, Ok(ToBroker::Query { .. }))
            || send_bytes(&client.socket, bytes, &fds).is_err()
        {
            return;
        }
        // What it may have meant, where it was a message at all.
        match message {
            Ok(ToBroker::Nominate { conn, .. }) if client.welcome => self.nominated((at, conn.0), lent),
            Ok(ToBroker::Withdraw { conn }) => self.part((at, conn.0)),
            Ok(ToBroker::Register { class, .. }) => (self.asked, self.again) = (Some(class.into()), None),
            Ok(ToBroker::Attach { token, .. }) => self.asked = Some(token),
            Ok(ToBroker::Unregister { token } | ToBroker::Park { token }) => self.let_go(at, token),
            Ok(ToBroker::Reuse { token, .. }) => self.ask_again(at, token),
            _ => {}
        }
    }

    /// A message as it should be, beside which anything lies.
    fn odd(&mut self, at: usize, script: &mut Script<'_>) {
        let (shape, count, conn) = (script.below(4), 1 + script.below(4), script.pick(&CONNS));
        let made: Vec<OwnedFd> =
            (0..count).filter_map(|_| kinds::of(script.byte(), &self.place.socket)).collect();
        let mut fds: Vec<BorrowedFd<'_>> = made.iter().map(AsFd::as_fd).collect();
        if shape == 0 {
            let Some(socket) = self.clients[at].is_none().then(|| connect(&self.place.socket)).flatten()
            else {
                return;
            };
            let arena = region::create("fuzzed-arena", arena::SIZE).expect("memory");
            let doorbells = fds.len() as u8;
            // In place of a doorbell, or of the arena, too.
            if script.below(2) == 0 {
                fds.insert(0, arena.as_fd());
            }
            let hello = ToBroker::Hello { control: CONTROL, version: VERSION, doorbells, comm: COMM };
            send(&socket, &hello, &fds);
            self.clients[at] = Some(Client { socket, welcome: false, arena, bells: Vec::new() });
            return;
        }
        let Some(client) = self.clients[at].as_ref().filter(|client| client.welcome) else { return };
        match shape {
            1 => {
                let role = script.pick(&[Role::Client, Role::Server]);
                let message = ToBroker::Nominate { conn: ConnId(conn), role, tx: 0, rx: 0, answer: true };
                send(&client.socket, &message, &fds);
                self.nominated((at, conn), None);
            }
            2 => {
                send(&client.socket, &ToBroker::Register { conn: ConnId(conn), class: 0 }, &fds);
                (self.asked, self.again) = (Some(0), None);
            }
            // Of a type that nobody knows.
            _ => drop(send_bytes(&client.socket, &[0xff; 8], &fds)),
        }
    }

    /// What a session says, if it is a program by now.
    fn say(&mut self, at: usize, message: &ToBroker, fds: &[BorrowedFd<'_>]) {
        let Some(client) = self.clients[at].as_ref().filter(|client| client.welcome) else { return };
        send(&client.socket, message, fds);
        if let ToBroker::Unregister { token } | ToBroker::Park { token } = message {
            self.let_go(at, *token);
        }
    }

    /// A DMB is asked for that has served before. Whatever comes of it, its old name names nothing any more.
    fn ask_again(&mut self, at: usize, token: u64) {
        let known = self.tokens.iter().find(|(known, owned)| *known == token && owned.owner == at);
        self.asked = known.map(|(_, owned)| owned.class.into());
        self.again = known.map(|(_, owned)| (owned.owner, owned.peer.0));
        self.let_go(at, token);
    }

    fn let_go(&mut self, at: usize, token: u64) {
        let of_session = |(known, owned): &&mut (u64, Owned)| *known == token && owned.owner == at;
        self.tokens.iter_mut().filter(of_session).for_each(|(_, owned)| owned.held = false);
    }

    /// A session ends: of our own will, or because the broker ended it.
    fn leave(&mut self, at: usize) {
        let Some(client) = self.clients[at].take() else { return };
        // A helper that another thread has just forked has a copy of the socket yet.
        let _ = rustix::net::shutdown(&client.socket, rustix::net::Shutdown::Both);
        self.matches.retain(|party, _| party.0 != at);
        self.lent.retain(|party, _| party.0 != at);
        self.blocks.retain(|(session, _), _| *session != at);
        // A session at this place is another one from now on: nothing is its predecessor's.
        self.tokens.retain(|(_, owned)| owned.owner != at && owned.peer.0 != at);
    }

    /// The broker's turns until nobody has anything to say; nobody may keep it busy.
    fn turn(&mut self) {
        for _ in 0..TURNS {
            // What a helper works on comes soon.
            let patience = if self.place.server.is_busy() { PATIENCE } else { Duration::ZERO };
            match self.place.server.turn(patience).expect("it serves") {
                // Less in all than a helper may take.
                Some(0) if self.place.server.is_busy() => clock::pass(Duration::from_millis(1)),
                Some(0) => return self.place.server.audit().expect("the tables agree"),
                Some(_) => {}
                None => panic!("it left"),
            }
        }
        panic!("still busy after {TURNS} turns");
    }

    /// Lets the broker work, and all hear what it says.
    fn settle(&mut self) {
        self.turn();
        let mut matched: Vec<(Party, Match)> = Vec::new();
        let mut ended = Vec::new();
        for at in 0..SESSIONS {
            while let Some(client) = &mut self.clients[at] {
                match receive(&client.socket) {
                    Heard::Nothing => break,
                    Heard::End => {
                        ended.push(at);
                        break;
                    }
                    Heard::Message(message, fds) => self.hear(at, &message, &fds, &mut matched),
                }
            }
        }
        self.introduce(&matched, &ended);
        ended.into_iter().for_each(|at| self.leave(at));
    }

    fn hear(&mut self, at: usize, message: &FromBroker, fds: &[OwnedFd], matched: &mut Vec<(Party, Match)>) {
        let mut expected = 0;
        match *message {
            FromBroker::Welcome(_) => {
                expected = 2;
                let client = self.clients[at].as_mut().expect("it hears");
                assert!(!std::mem::replace(&mut client.welcome, true), "welcome twice");
            }
            FromBroker::Matched { conn, link, slot, side, first_contact, doorbells, peer } => {
                // All clients are this process.
                assert!(peer == 0 || peer == std::process::id());
                expected = if first_contact { 1 + usize::from(doorbells) } else { 0 };
                matched.push(((at, conn.0), Match { link, slot, side, peer: None }));
            }
            FromBroker::Gone { conn } => {
                let known = self.matches.get_mut(&(at, conn.0)).expect("it was matched");
                assert!(known.peer.take().is_some(), "gone twice");
            }
            FromBroker::Clc { conn, .. } => {
                let known = self.matches.get(&(at, conn.0)).expect("it is matched");
                let peer = known.peer.expect("with somebody");
                assert_eq!(self.matches.get(&peer).and_then(|m| m.peer), Some((at, conn.0)));
            }
            FromBroker::Registered { conn, token, reason: 0 } => {
                let peer = self.matches.get(&(at, conn.0)).and_then(|known| known.peer);
                let peer = peer.expect("only with a peer who may attach it");
                assert!(token != 0 && self.tokens.iter().all(|(known, _)| *known != token), "{token:x}");
                let class = self.asked.expect("asked for") as u8;
                if let Some(again) = self.again {
                    assert_eq!(again, (at, peer.0), "it was with the same two sessions");
                }
                self.tokens.push((token, Owned { owner: at, peer, held: true, class }));
            }
            FromBroker::Registered { token, .. } => assert_eq!(token, 0),
            FromBroker::Attached { conn, token, class, reason: 0 } => {
                expected = 1;
                assert_eq!(self.asked, Some(token));
                let (_, owned) =
                    self.tokens.iter().find(|(known, _)| *known == token).expect("it was given out");
                assert_eq!(owned.peer, (at, conn.0), "for its peer only");
                assert!(owned.held && owned.class == class);
                let size = fds.first().and_then(|fd| rustix::fs::fstat(fd).ok()).map(|stat| stat.st_size);
                assert_eq!(size, Some(Dmb::len(class) as i64));
            }
            FromBroker::Parked { token } => {
                let (_, owned) =
                    self.tokens.iter().find(|(known, _)| *known == token).expect("it was given out");
                assert!(owned.owner == at && !owned.held);
            }
            FromBroker::Dropped { .. }
            | FromBroker::Attached { .. }
            | FromBroker::Again { .. }
            | FromBroker::Refused { .. }
            | FromBroker::Revoke { .. }
            | FromBroker::LinkGone { .. }
            | FromBroker::Waiting { .. } => {}
            FromBroker::Tap { .. }
            | FromBroker::Untap { .. }
            | FromBroker::Tapped { .. }
            | FromBroker::TapOver { .. } => panic!("nobody taps here: {message:?}"),
        }
        assert_eq!(fds.len(), expected, "{message:?}");
    }

    /// Two that were matched were told of one another, and lent the two ends of one connection.
    fn introduce(&mut self, matched: &[(Party, Match)], ended: &[usize]) {
        for (party, told) in matched {
            let is_other = |(other, its): &&(Party, Match)| {
                (its.link, its.slot) == (told.link, told.slot) && its.side != told.side && other != party
            };
            let others: Vec<_> = matched.iter().filter(is_other).collect();
            let seat = (told.link, told.slot);
            let is_taken = |(other, its): (&Party, &Match)| {
                (its.link, its.slot) == seat
                    && other != party
                    && others.iter().all(|(known, _)| known != other)
            };
            assert!(!self.matches.iter().any(is_taken), "{seat:?} is somebody else's");
            let [(other, _)] = others[..] else {
                assert!(
                    others.is_empty() && !ended.is_empty(),
                    "{party:?} was matched with {}",
                    others.len()
                );
                continue;
            };
            let ends = [self.lent.get(party), self.lent.get(other)];
            let [Some((pair, end)), Some((other_pair, other_end))] = ends else { panic!("lent: {ends:?}") };
            assert!(pair == other_pair && end != other_end, "{party:?} and {other:?} lent {ends:?}");
            self.matches.insert(*party, Match { peer: Some(*other), ..*told });
        }
    }

    /// All leave, and nothing is left.
    fn end(mut self) {
        for at in 0..SESSIONS {
            self.leave(at);
            self.turn();
        }
        assert!(self.place.server.is_empty(), "something is left of those who left");
    }
}
