//! One of the two processes: makes the calls that it is told to by lines on its standard input, and says what came of them.
//!
//! It is run on TCP and under Shunpike. It uses libc's names for everything, so that the hooks see what they would see of
//! any program, but for what is called raw.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::os::fd::RawFd;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::calls::{self, Said};
use crate::op::{Call, Child, End, LookBy, Registered, WaitBy};
use crate::state::Arena;

/// What an actor is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Order {
    /// Listen on a free port, which is the result.
    Listen,
    Connect {
        conn: u8,
        port: u16,
        serial: u64,
        nonblock: bool,
        nagle: bool,
    },
    Accept {
        conn: u8,
        serial: u64,
        nonblock: bool,
        nagle: bool,
    },
    Make {
        conn: u8,
        call: Call,
    },
    /// One side of an echo. The time is that of the slowest exchange.
    Echo {
        conn: u8,
        rounds: u16,
        size: usize,
        asks: bool,
    },
    /// A thread begins to wait.
    Begin {
        conn: u8,
        by: WaitBy,
    },
    /// What came of it, if it ends within so many milliseconds.
    Ended {
        conn: u8,
        ms: u64,
    },
    /// Closes everything.
    Reset,
}

/// What it says.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Reply {
    /// Nothing where a wait has not ended.
    pub said: Option<Said>,
    pub ns: u64,
    /// Descriptor of the connection, -1 none.
    pub fd: RawFd,
    /// Where the connection stood before the call: its phase, and the modes of its receiving and sending half.
    pub state: Option<[u16; 3]>,
}

struct Waiting {
    ended: mpsc::Receiver<(Said, u64)>,
}

struct Connection {
    fd: RawFd,
    /// What was sent and received so far gives the next bytes.
    sent: u64,
    serial: u64,
    registered: bool,
    waiting: Option<Waiting>,
}

struct Actor {
    listener: RawFd,
    set: RawFd,
    conns: HashMap<u8, Connection>,
    arena: Arena,
}

/// Serves until standard input ends.
pub fn run() {
    let mut actor = Actor { listener: -1, set: calls::new_set(), conns: HashMap::new(), arena: Arena::new() };
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { return };
        let order: Order = serde_json::from_str(&line).expect("an order");
        let reply = actor.obey(order);
        let mut text = serde_json::to_string(&reply).expect("a reply");
        text.push('\n');
        if out.write_all(text.as_bytes()).is_err() || out.flush().is_err() {
            return;
        }
    }
}

impl Actor {
    fn obey(&mut self, order: Order) -> Reply {
        let conn = match order {
            Order::Make { conn, .. } | Order::Echo { conn, .. } | Order::Begin { conn, .. } => Some(conn),
            _ => None,
        };
        let fd = conn.and_then(|conn| self.conns.get(&conn)).map_or(-1, |conn| conn.fd);
        let state = if fd < 0 { None } else { self.arena.state(fd) };
        let began = Instant::now();
        let (said, ns) = match order {
            Order::Listen => {
                let (fd, port) = calls::listen();
                self.listener = fd;
                (Some(Said::of(port.into())), None)
            }
            Order::Connect { conn, port, serial, nonblock, nagle } => {
                let fd = calls::connect(port);
                (Some(self.opened(conn, fd, serial, nonblock, nagle)), None)
            }
            Order::Accept { conn, serial, nonblock, nagle } => {
                let fd = calls::accept(self.listener);
                (Some(self.opened(conn, fd, serial, nonblock, nagle)), None)
            }
            Order::Make { conn, call } => (Some(self.make(conn, call)), None),
            Order::Echo { conn, rounds, size, asks } => {
                let (said, slowest) = self.echo(conn, rounds, size, asks);
                (Some(said), Some(slowest))
            }
            Order::Begin { conn, by } => {
                let (tell, ended) = mpsc::channel();
                std::thread::spawn(move || {
                    let began = Instant::now();
                    let said = calls::wait(fd, by);
                    let _ = tell.send((said, began.elapsed().as_nanos() as u64));
                });
                if let Some(conn) = self.conns.get_mut(&conn) {
                    conn.waiting = Some(Waiting { ended });
                }
                (Some(Said::of(0)), None)
            }
            Order::Ended { conn, ms } => self.ended(conn, ms),
            Order::Reset => {
                for (_, conn) in self.conns.drain() {
                    calls::close_hard(conn.fd);
                }
                calls::close(self.set);
                self.set = calls::new_set();
                (Some(Said::of(0)), None)
            }
        };
        let ns = ns.unwrap_or_else(|| began.elapsed().as_nanos() as u64);
        let fd = match order_conn(&said, conn, &self.conns) {
            Some(fd) => fd,
            None => fd,
        };
        Reply { said, ns, fd, state }
    }

    fn opened(&mut self, conn: u8, fd: RawFd, serial: u64, nonblock: bool, nagle: bool) -> Said {
        if fd < 0 {
            return Said::failed();
        }
        calls::prepare(fd, nonblock, nagle);
        self.conns.insert(conn, Connection { fd, sent: 0, serial, registered: false, waiting: None });
        Said { ret: 0, errno: 0, more: vec![fd.into()] }
    }

    fn ended(&mut self, conn: u8, ms: u64) -> (Option<Said>, Option<u64>) {
        let Some(conn) = self.conns.get_mut(&conn) else { return (None, None) };
        let Some(waiting) = &conn.waiting else { return (None, None) };
        match waiting.ended.recv_timeout(Duration::from_millis(ms)) {
            Ok((said, ns)) => {
                conn.waiting = None;
                (Some(said), Some(ns))
            }
            Err(_) => (None, None),
        }
    }

    /// Bytes of a connection are known by who sends them and where they stand.
    fn bytes(conn: &mut Connection, n: usize) -> Vec<u8> {
        let at = conn.sent;
        conn.sent += n as u64;
        (at..at + n as u64)
            .map(|p| (p.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(conn.serial) >> 24) as u8)
            .collect()
    }

    fn echo(&mut self, index: u8, rounds: u16, size: usize, asks: bool) -> (Said, u64) {
        let Some(conn) = self.conns.get_mut(&index) else { return (Said::of(-1), 0) };
        let (mut slowest, mut hash) = (0, 0);
        for round in 0..rounds {
            let began = Instant::now();
            let bytes = Self::bytes(conn, size);
            if asks && !calls::send_all(conn.fd, &bytes) {
                return (Said { more: vec![round.into()], ..Said::failed() }, slowest);
            }
            let Some(got) = calls::receive_all(conn.fd, size) else {
                return (Said { more: vec![round.into()], ..Said::failed() }, slowest);
            };
            hash = calls::hash(hash, &got);
            if !asks && !calls::send_all(conn.fd, &bytes) {
                return (Said { more: vec![round.into()], ..Said::failed() }, slowest);
            }
            // The other end may have been held up before our first exchange.
            if round > 0 || asks {
                slowest = slowest.max(began.elapsed().as_nanos() as u64);
            }
        }
        (Said { ret: 0, errno: 0, more: vec![hash as i64] }, slowest)
    }

    fn make(&mut self, index: u8, call: Call) -> Said {
        let set = self.set;
        let Some(conn) = self.conns.get_mut(&index) else { return Said::of(-1) };
        let fd = conn.fd;
        match call {
            Call::Send(by, n) => {
                let bytes = Self::bytes(conn, n);
                calls::send(fd, by, &bytes)
            }
            Call::Recv(by, n) => calls::receive(fd, by, n),
            Call::Look(LookBy::Epoll) => calls::look_at_set(set),
            Call::Look(by) => calls::look(fd, by),
            Call::Set(opt) => calls::set_option(fd, opt),
            Call::Register(how) => {
                let said = calls::register(set, fd, u64::from(index) + 0x5000, how, conn.registered);
                if said.ret == 0 {
                    conn.registered = how != Registered::Removed;
                }
                said
            }
            Call::Finish(end) => {
                let said = calls::finish(fd, end);
                if matches!(end, End::Close | End::RawClose) {
                    self.conns.remove(&index);
                }
                said
            }
            Call::Dup => {
                let (said, other) = calls::dup(fd);
                if other >= 0 {
                    conn.fd = other;
                    // The kernel goes on to tell of a socket by its old number, but nobody can change that any more.
                    conn.registered = false;
                }
                said
            }
            Call::Fork(child) => self.fork(index, child),
            Call::Nonblock(on) => calls::nonblock(fd, on),
            Call::Open { .. } | Call::Wait(_) | Call::Echo { .. } | Call::Meddle(_) => Said::of(-1),
        }
    }

    fn fork(&mut self, index: u8, child: Child) -> Said {
        let Some(conn) = self.conns.get_mut(&index) else { return Said::of(-1) };
        let bytes = if child == Child::Sends { Self::bytes(conn, 5) } else { Vec::new() };
        let all: Vec<RawFd> = self.conns.values().map(|conn| conn.fd).collect();
        calls::fork(self.conns[&index].fd, child, &bytes, &all)
    }
}

fn order_conn(said: &Option<Said>, conn: Option<u8>, conns: &HashMap<u8, Connection>) -> Option<RawFd> {
    match conn {
        Some(conn) => conns.get(&conn).map(|conn| conn.fd),
        None => said.as_ref().and_then(|said| said.more.first()).map(|&fd| fd as RawFd),
    }
}
