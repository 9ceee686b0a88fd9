//! One of the processes: makes the calls that it is told to by lines on its standard input, and says what came of them.
//!
//! It is run on TCP and under Shunpike. It uses libc's names for everything, so that the hooks see what they would see of
//! any program, but for what is called raw.

mod branch;
mod dialogues;

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::os::fd::RawFd;
use std::sync::mpsc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::calls::{self, Said, Times};
use crate::edges::Edges;
use crate::op::{CONNS, Call, Child, End, Family, Handler, LookBy, Over, Registered};
use crate::op::{looks, reads};
use crate::order::{How, Order, Reply};
use crate::state::Arena;

struct Waiting {
    ended: mpsc::Receiver<(Said, Times)>,
}

struct Connection {
    fd: RawFd,
    /// What was sent and received so far gives the next bytes.
    sent: u64,
    serial: u64,
    registered: bool,
    /// Its second number.
    twin: Option<RawFd>,
    waiting: Option<Waiting>,
    /// After a flood: what tells of room.
    room: Option<calls::Room>,
    lending: Option<calls::Lending>,
}

impl Connection {
    fn new(fd: RawFd, serial: u64) -> Self {
        Self { fd, sent: 0, serial, registered: false, twin: None, waiting: None, room: None, lending: None }
    }
}

struct Actor {
    /// For IPv4, and for both.
    listeners: [RawFd; 2],
    pipes: std::sync::Arc<calls::Pipes>,
    set: RawFd,
    conns: HashMap<u8, Connection>,
    arena: Arena,
    edges: Edges,
    timer: calls::Timer,
    /// The child that lives on.
    branch: Option<libc::pid_t>,
}

/// What an actor's program goes on from when it was executed anew.
#[derive(Serialize, Deserialize)]
struct Inherited {
    listeners: [RawFd; 2],
    pipes: calls::Pipes,
    /// The connections: number, descriptor, what was sent, and serial.
    conns: Vec<(u8, RawFd, u64, u64)>,
}

/// Serves until standard input ends. With a state, first says that it goes on from there.
pub fn run(state: Option<&str>) {
    calls::heed();
    let inherited = state.map(|state| serde_json::from_str(state).expect("a state"));
    let is_anew = inherited.is_some();
    let Inherited { listeners, pipes, conns } = inherited.unwrap_or_else(|| Inherited {
        listeners: [-1; 2],
        pipes: calls::Pipes::new(),
        conns: Vec::new(),
    });
    let conns = conns
        .into_iter()
        .map(|(conn, fd, sent, serial)| (conn, Connection { sent, ..Connection::new(fd, serial) }));
    let mut actor = Actor {
        listeners,
        pipes: pipes.into(),
        set: calls::new_set(),
        conns: conns.collect(),
        arena: Arena::new(),
        edges: Edges::new(),
        timer: calls::Timer::new(),
        branch: None,
    };
    let mut out = std::io::stdout().lock();
    if is_anew {
        let reply = Reply {
            said: Some(Said::of(1)),
            also: None,
            ns: 0,
            cpu_ns: 0,
            held_up_ns: 0,
            calls: [0; 2],
            state: None,
        };
        let mut text = serde_json::to_string(&reply).expect("a reply");
        text.push('\n');
        if out.write_all(text.as_bytes()).is_err() || out.flush().is_err() {
            return;
        }
    }
    actor.serve(std::io::stdin().lock(), out);
}

impl Actor {
    /// Obeys until there are no more orders.
    fn serve(&mut self, orders: impl BufRead, mut out: impl Write) {
        for line in orders.lines() {
            let Ok(line) = line else { return };
            let order: Order = serde_json::from_str(&line).expect("an order");
            let reply = self.obey(order);
            let mut text = serde_json::to_string(&reply).expect("a reply");
            text.push('\n');
            if out.write_all(text.as_bytes()).is_err() || out.flush().is_err() {
                return;
            }
        }
    }

    fn obey(&mut self, order: Order) -> Reply {
        let conn = match order {
            Order::Make { conn, .. }
            | Order::Give { conn }
            | Order::Branch { conn }
            | Order::Echo { conn, .. }
            | Order::Pair { conn, .. }
            | Order::Exchange { conn, .. }
            | Order::Flood { conn, .. }
            | Order::Room { conn, .. }
            | Order::Lend { conn, .. }
            | Order::Lent { conn }
            | Order::Torrent { conn, .. }
            | Order::Cork { conn, .. }
            | Order::Uncork { conn, .. }
            | Order::Begin { conn, .. } => Some(conn),
            _ => None,
        };
        let fd = conn.and_then(|conn| self.conns.get(&conn)).map_or(-1, |conn| conn.fd);
        let state = if fd < 0 { None } else { self.arena.state(fd) };
        let begin = self.timer.now();
        let (mut exchanges, mut also) = (None, None);
        let (said, times) = match order {
            Order::Listen => {
                let (listeners, [port, port_v6]) = calls::listen();
                self.listeners = listeners;
                (Some(Said { more: vec![port_v6.into()], ..Said::of(port.into()) }), None)
            }
            Order::Connect { conn, port, family, serial, nonblock, nagle } => {
                let fd = calls::connect(port, family);
                (Some(self.opened(conn, fd, serial, nonblock, nagle)), None)
            }
            Order::Accept { conn, family, serial, nonblock, nagle } => {
                let is_for_both = matches!(family, Family::V6 | Family::ServerV6);
                let fd = calls::accept(self.listeners[usize::from(is_for_both)], nonblock);
                (Some(self.opened(conn, fd, serial, nonblock, nagle)), None)
            }
            Order::Make { conn, call, cut } => {
                if cut {
                    calls::mark();
                }
                let said = self.make(conn, call);
                if cut {
                    calls::mark();
                }
                (Some(said), None)
            }
            Order::Give { conn } => (Some(self.give(conn)), None),
            Order::Take { conn, sent, serial } => {
                let fd = calls::take(calls::JOINT);
                self.conns.insert(conn, Connection { sent, ..Connection::new(fd, serial) });
                (Some(Said::of(i64::from(fd >= 0))), None)
            }
            Order::Branch { .. } => (Some(self.branch()), None),
            Order::Reap => (Some(self.reap()), None),
            Order::Quit => std::process::exit(0),
            Order::Forget { conn } => {
                if let Some(conn) = self.conns.remove(&conn) {
                    calls::close(conn.fd);
                }
                (Some(Said::of(0)), None)
            }
            Order::Echo { conn, rounds, size, asks } => {
                let (said, slowest, made) = self.echo(conn, rounds, size, asks);
                exchanges = Some(made);
                (Some(said), Some(slowest))
            }
            Order::Pair { conn, calls, how } => {
                let [said, second] = self.pair(conn, calls, how);
                also = Some(second);
                (Some(said), None)
            }
            Order::Exchange { conn, by, rounds, size, asks } => {
                let (said, slowest, made) = self.exchange(conn, by, rounds, size, asks);
                exchanges = Some(made);
                (Some(said), Some(slowest))
            }
            Order::EndWaits => {
                calls::rouse(self.set, &self.pipes);
                for conn in self.conns.values_mut() {
                    if let Some(waiting) = conn.waiting.take() {
                        calls::finish(conn.fd, End::ShutBoth);
                        let _ = waiting.ended.recv();
                    }
                }
                (Some(Said::of(0)), None)
            }
            Order::Flood { conn, by, chunk } => (Some(self.flood(conn, by, chunk.into())), None),
            Order::Drain { conn, n, hash } => (
                Some(self.conns.get(&conn).map_or(Said::of(-1), |conn| calls::drain(conn.fd, n, hash))),
                None,
            ),
            Order::Room { conn, by, n, early } => {
                let Some(mut room) = self.conns.get_mut(&conn).and_then(|conn| conn.room.take()) else {
                    panic!("a room to wait for")
                };
                if early {
                    self.begin(conn, move || room.wait(by, n));
                    (Some(Said::of(0)), None)
                } else {
                    (Some(room.wait(by, n)), None)
                }
            }
            Order::Lend { conn, size, lent } => (Some(self.lend(conn, size, lent)), None),
            Order::Torrent { conn, threads, rounds, size } => {
                let serial = self.conns.get(&conn).map_or(0, |conn| conn.serial);
                (Some(calls::torrent(fd, threads, rounds, size.into(), serial)), None)
            }
            Order::Lent { conn } => (Some(self.lent(conn)), None),
            Order::Cork { conn, by, pieces, size } => (Some(self.cork(conn, by, pieces, size.into())), None),
            Order::Uncork { conn, by, size } => (Some(self.uncork(conn, by, size.into())), None),
            Order::Begin { conn, by } => {
                let (all, others, pipes) = (self.all(), [self.listeners[0], self.set], self.pipes.clone());
                self.begin(conn, move || calls::begin_to_wait(by, fd, &all, others, &pipes));
                (Some(Said::of(0)), None)
            }
            Order::Ended { conn, ms } => self.ended(conn, ms),
            Order::Reset => {
                self.reap();
                for (_, conn) in self.conns.drain() {
                    if let Some(twin) = conn.twin {
                        calls::close(twin);
                    }
                    calls::close_hard(conn.fd);
                }
                calls::few(false);
                calls::close(self.set);
                self.set = calls::new_set();
                calls::begin();
                let edges = self.edges.new_ones().into_iter().map(i64::from).collect();
                (Some(Said { more: edges, ..Said::of(self.edges.all().into()) }), None)
            }
        };
        let Times { ns, cpu_ns, held_up_ns } = times.unwrap_or_else(|| self.timer.since(&begin));
        let calls = exchanges.unwrap_or_else(|| [conn.is_some().into(), is_on_lane(state).into()]);
        Reply { said, also, ns, cpu_ns, held_up_ns, calls, state }
    }

    /// A thread of its own makes a call that waits.
    fn begin(&mut self, conn: u8, call: impl FnOnce() -> Said + Send + 'static) {
        let (tell, ended) = mpsc::channel();
        std::thread::spawn(move || {
            calls::hear_no_signals();
            let timer = calls::Timer::new();
            let begin = timer.now();
            let said = call();
            let _ = tell.send((said, timer.since(&begin)));
        });
        if let Some(conn) = self.conns.get_mut(&conn) {
            conn.waiting = Some(Waiting { ended });
        }
    }

    /// All connections of this process, in their order; -1 where there is none.
    fn all(&self) -> Vec<RawFd> {
        (0..CONNS).map(|conn| self.conns.get(&conn).map_or(-1, |conn| conn.fd)).collect()
    }

    fn opened(&mut self, conn: u8, fd: RawFd, serial: u64, nonblock: bool, nagle: bool) -> Said {
        if fd < 0 {
            return Said::failed();
        }
        calls::prepare(fd, nonblock, nagle);
        self.conns.insert(conn, Connection::new(fd, serial));
        Said { ret: 0, errno: 0, more: vec![fd.into()] }
    }

    fn ended(&mut self, conn: u8, ms: u64) -> (Option<Said>, Option<Times>) {
        let Some(conn) = self.conns.get_mut(&conn) else { return (None, None) };
        let Some(waiting) = &conn.waiting else { return (None, None) };
        match waiting.ended.recv_timeout(Duration::from_millis(ms)) {
            Ok((said, times)) => {
                conn.waiting = None;
                (Some(said), Some(times))
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

    /// Two calls of this process. Of two that read, how they shared the bytes is nobody's to say, nor is what a look says while another call
    /// reads.
    fn pair(&mut self, index: u8, calls: [Call; 2], how: How) -> [Said; 2] {
        let (set, all) = (self.set, self.conns.values().map(|conn| conn.fd).collect::<Vec<_>>());
        let Some(conn) = self.conns.get_mut(&index) else { return [Said::of(-1), Said::of(-1)] };
        let bytes = calls.map(|call| match call {
            Call::Send(_, n) | Call::Signal(Handler::Sends(n)) => Self::bytes(conn, n),
            Call::Fork(Child::Sends) => Self::bytes(conn, 5),
            _ => Vec::new(),
        });
        let (fd, is_there) = (conn.fd, conn.registered);
        let one = |at: usize| match calls[at] {
            Call::Send(by, _) => (calls::send(fd, by, &bytes[at]), Vec::new()),
            Call::Recv(by, n) => calls::receive_bytes(fd, by, n),
            Call::Look(LookBy::Epoll) => (calls::look_at_set(set), Vec::new()),
            Call::Look(by) => (calls::look(fd, by), Vec::new()),
            Call::Set(opt) => (calls::set_option(fd, opt), Vec::new()),
            Call::Register(how) => {
                (calls::register(set, fd, u64::from(index) + 0x5000, how, is_there), Vec::new())
            }
            Call::Finish(end) => (calls::finish(fd, end), Vec::new()),
            Call::Nonblock(on) => (calls::nonblock(fd, on), Vec::new()),
            Call::Fork(child) => (calls::fork(fd, child, &bytes[at], &all, set), Vec::new()),
            _ => (Said::of(-1), Vec::new()),
        };
        let handler = if let Call::Signal(what) = calls[1] { Some(what) } else { None };
        if let Some(what) = handler {
            calls::arm(fd, what, &bytes[1]);
        }
        let second = || if handler.is_some() { calls::ran() } else { one(1) };
        let [first, second] = match how {
            How::InOrder => [one(0), second()],
            How::Swapped => {
                let second = second();
                [one(0), second]
            }
            How::Traced if handler.is_some() => {
                calls::mark();
                let first = one(0);
                calls::mark();
                [first, second()]
            }
            How::Traced => std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    calls::hear_no_signals();
                    calls::await_go();
                    let second = one(1);
                    calls::say_done();
                    second
                });
                calls::mark();
                let first = one(0);
                calls::mark();
                [first, other.join().expect("it does not panic")]
            }),
        };
        for (call, (said, _)) in calls.iter().zip([&first, &second]) {
            if let Call::Register(how) = call
                && said.ret == 0
            {
                conn.registered = *how != Registered::Removed;
            }
        }
        match calls.map(reads) {
            [true, true] => {
                let read = |said: &Said| said.ret.max(0);
                let is_thrown_away =
                    calls.iter().any(|call| matches!(call, Call::Recv(by, _) if by.throws_away()));
                let mixed = calls::mixed(&first.1).wrapping_add(calls::mixed(&second.1));
                let more = if is_thrown_away { Vec::new() } else { vec![mixed] };
                [Said { ret: read(&first.0) + read(&second.0), errno: 0, more }, Said::of(0)]
            }
            [true, false] if looks(calls[1]) => [first.0.and_bytes(&first.1), Said::of(0)],
            [false, true] if looks(calls[0]) => [Said::of(0), second.0.and_bytes(&second.1)],
            _ => [first, second].map(|(said, bytes)| said.and_bytes(&bytes)),
        }
    }

    fn make(&mut self, index: u8, call: Call) -> Said {
        let (set, all) = (self.set, self.all());
        match call {
            Call::DupOver(over) => return self.dup_over(index, over),
            Call::Exec => return self.exec(),
            _ => {}
        }
        let Some(conn) = self.conns.get_mut(&index) else { return Said::of(-1) };
        let fd = conn.fd;
        match call {
            Call::Send(by, n) => {
                let bytes = Self::bytes(conn, n);
                calls::send(fd, by, &bytes)
            }
            Call::Recv(by, n) => calls::receive(fd, by, n),
            Call::Look(LookBy::Epoll) => calls::look_at_set(set),
            Call::Look(by @ (LookBy::Set | LookBy::Nested)) => calls::look_at_set_as(by, set),
            Call::Look(by) if by.is_of_all() => calls::look_at_all(by, &all, self.listeners[0], &self.pipes),
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
                match conn.twin.take() {
                    Some(twin) if end.is_close() => (conn.fd, conn.registered) = (twin, false),
                    twin if !end.is_close() => conn.twin = twin,
                    _ => drop(self.conns.remove(&index)),
                }
                said
            }
            Call::Patience(by, ms) if by.is_of_all() => {
                calls::wait_for_all(by, &all, self.listeners[0], &self.pipes, ms)
            }
            Call::Patience(by, ms) => calls::wait_at_most(fd, by, ms),
            Call::Alarm(by) => calls::wait_for_alarm(fd, by),
            Call::Masked(by, mask, ms) => calls::wait_masked(fd, by, mask, ms),
            Call::Twin => {
                // SAFETY: no memory is passed.
                conn.twin = Some(unsafe { libc::dup(fd) }).filter(|&twin| twin >= 0);
                Said::of(conn.twin.is_some().into())
            }
            Call::Turn => {
                let Some(twin) = conn.twin.replace(fd) else { return Said::of(-1) };
                (conn.fd, conn.registered) = (twin, false);
                Said::of(1)
            }
            Call::Dup | Call::Pass => {
                let is_pass = call == Call::Pass;
                if is_pass && conn.registered {
                    calls::register(set, fd, 0, Registered::Removed, true);
                }
                let (said, other) = if is_pass { calls::pass(fd) } else { calls::dup(fd) };
                if other >= 0 {
                    conn.fd = other;
                    // The kernel goes on to tell of a socket by its old number, but nobody can change that any more.
                    conn.registered = false;
                }
                said
            }
            Call::Fork(child) => self.fork(index, child),
            Call::Nonblock(on) => calls::nonblock(fd, on),
            Call::Few(on) => calls::few(on),
            Call::Signal(what) => {
                let n = if let Handler::Sends(n) = what { n } else { 0 };
                let bytes = Self::bytes(conn, n);
                calls::arm(fd, what, &bytes);
                let (said, bytes) = calls::ran();
                said.and_bytes(&bytes)
            }
            // These are not for one process alone.
            Call::Open { .. }
            | Call::Wait(_)
            | Call::Echo { .. }
            | Call::Pour { .. }
            | Call::Exchange { .. }
            | Call::Flood { .. }
            | Call::Corked { .. }
            | Call::Lend { .. }
            | Call::Torrent { .. }
            | Call::DupOver(_)
            | Call::Exec
            | Call::Hand
            | Call::Share
            | Call::Branch
            | Call::Swap
            | Call::KillBranch
            | Call::Kill
            | Call::Stop
            | Call::Continue
            | Call::Meddle(_) => Said::of(-1),
        }
    }

    fn exec(&self) -> Said {
        calls::few(false);
        let conns =
            self.conns.iter().map(|(&index, conn)| (index, conn.fd, conn.sent, conn.serial)).collect();
        let state = Inherited { listeners: self.listeners, pipes: (*self.pipes).clone(), conns };
        calls::exec(&serde_json::to_string(&state).expect("a state"))
    }

    fn dup_over(&mut self, index: u8, over: Over) -> Said {
        const FAR: RawFd = 700;
        const NEXT: RawFd = 300;
        let Some(conn) = self.conns.get(&index) else { return Said::of(-1) };
        let from = conn.fd;
        if over == Over::Next {
            let (said, other) = calls::dup_next(from, NEXT);
            if let Some(conn) = self.conns.get_mut(&index)
                && other >= 0
            {
                (conn.fd, conn.registered) = (other, false);
            }
            return said;
        }
        let to = match over {
            Over::Conn(other) => self.conns.get(&other).map_or(-1, |other| other.fd),
            Over::Set => self.set,
            Over::Same => from,
            Over::Far | Over::Next => FAR + RawFd::from(index),
        };
        let said = calls::dup_over(from, to);
        if said.ret != 1 || from == to {
            return said;
        }
        match over {
            Over::Conn(other) => drop(self.conns.remove(&other)),
            Over::Set => {
                self.set = calls::new_set();
                self.conns.values_mut().for_each(|conn| conn.registered = false);
            }
            Over::Same | Over::Far | Over::Next => {}
        }
        if let Some(conn) = self.conns.get_mut(&index) {
            (conn.fd, conn.registered) = (to, false);
        }
        said
    }

    fn give(&mut self, index: u8) -> Said {
        let set = self.set;
        let Some(conn) = self.conns.get_mut(&index) else { return Said::of(-1) };
        // What the set went on to tell of a closed number nobody could change any more.
        if std::mem::take(&mut conn.registered) {
            calls::register(set, conn.fd, 0, Registered::Removed, true);
        }
        let given = calls::give(calls::JOINT, conn.fd);
        Said { ret: i64::from(given), errno: 0, more: vec![conn.sent as i64, conn.serial as i64] }
    }

    fn fork(&mut self, index: u8, child: Child) -> Said {
        let Some(conn) = self.conns.get_mut(&index) else { return Said::of(-1) };
        let bytes = if child == Child::Sends { Self::bytes(conn, 5) } else { Vec::new() };
        let all: Vec<RawFd> = self.conns.values().map(|conn| conn.fd).collect();
        calls::fork(self.conns[&index].fd, child, &bytes, &all, self.set)
    }
}

fn is_on_lane(state: Option<[u16; 3]>) -> bool {
    state.is_some_and(|[_, rx, tx]| rx != 0 || tx != 0)
}
