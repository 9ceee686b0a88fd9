//! The process's pair of ends, and its broker: one test at a time.

use crate::broker::Broker;
use crate::end::End;
use shunpike_core::host::{self, Host};
use shunpike_core::{Errno, clock, conn, life, session, sys, wait};
use shunpike_shm::lifecycle::Phase;
use std::cell::Cell;
use std::fmt::Debug;
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::Duration;

/// A lane opens within fewer messages each way.
const MESSAGES: usize = 64;
/// The broker and core's session have nothing to say to each other after fewer rounds.
const ROUNDS: usize = 64;

/// The kernel, but for the ends of a sleep and of a thread.
static HOST: Host = Host {
    poll: |fds, timeout, mask| slept(timeout, sys::poll(fds, timeout, mask)),
    epoll: |fd, events, timeout, mask| slept(timeout, sys::epoll_for(fd, events, timeout, mask)),
    deliver: || {},
    answer_faults: || {},
    may_be_interrupted: || false,
    owes: || LEAVING.with(|_| {}),
    cpu: sys::cpu,
    auxiliary: |_| 0,
    alone: || None,
    locks: &shunpike_shm::lock::NO_LIBC,
};

struct Leaving;

impl Drop for Leaving {
    fn drop(&mut self) {
        wait::thread_ends();
    }
}

thread_local! {
    static LEAVING: Leaving = const { Leaving };
    static AFTER_A_SLEEP: Cell<fn()> = const { Cell::new(|| {}) };
}

fn slept(timeout: Option<u64>, told: sys::Res) -> sys::Res {
    if timeout != Some(0) {
        AFTER_A_SLEEP.replace(|| {})();
    }
    told
}

/// What happens as soon as this thread's next sleep is over.
pub fn after_a_sleep(happens: fn()) {
    AFTER_A_SLEEP.set(happens);
}

/// Core's state is the process's, and so is its broker: one test at a time.
pub fn alone() -> MutexGuard<'static, Broker> {
    static BROKER: OnceLock<Mutex<Broker>> = OnceLock::new();
    let broker = BROKER.get_or_init(|| {
        let (broker, socket) = Broker::start();
        host::start(&HOST);
        session::configure(socket.as_os_str().as_bytes(), b"");
        life::start(life::Options { eager: crate::EAGER, profile: None });
        Mutex::new(broker)
    });
    broker.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn connected() -> (End, End) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let client = TcpStream::connect(listener.local_addr().expect("its address")).expect("a connection");
    let (server, _) = listener.accept().expect("its other end");
    // No segment waits for the acknowledgement of another.
    client.set_nodelay(true).expect("a socket");
    server.set_nodelay(true).expect("a socket");
    (End::new(client), End::new(server))
}

/// Two ends of a connection.
pub struct Pair {
    /// Which called connect().
    pub client: End,
    /// Which was accepted.
    pub server: End,
    /// Last: the ends are closed before another test begins.
    pub broker: MutexGuard<'static, Broker>,
}

impl Pair {
    /// A connection of which core knows nothing.
    pub fn plain() -> Self {
        let broker = alone();
        let (client, server) = connected();
        Self { client, server, broker }
    }

    /// A new connection that core watches.
    pub fn watched() -> Self {
        let pair = Self::plain();
        // Nothing of an earlier test is still in the way: pauses, rates, patience.
        pair.pass(Duration::from_secs(20));
        conn::watch(pair.client.fd, false, false, false);
        conn::watch(pair.server.fd, true, false, false);
        pair
    }

    /// Closes it: another one takes its place, which core watches.
    pub fn renew(&mut self) {
        (self.client, self.server) = connected();
        conn::watch(self.client.fd, false, false, false);
        conn::watch(self.server.fd, true, false, false);
    }

    /// A connection with both directions on lanes, and nothing unread.
    pub fn open() -> Self {
        let pair = Self::watched();
        pair.earn();
        pair
    }

    /// Messages to and fro until both ends are on lanes.
    pub fn earn(&self) {
        for message in 0..MESSAGES {
            self.talk();
            if self.is_on_lanes() {
                return;
            }
            // One that was put off is asked for again after a while.
            if message > MESSAGES / 2 {
                self.pass(Duration::from_millis(50));
            }
        }
        let why = [&self.client, &self.server].map(End::reason);
        panic!("no lane after {MESSAGES} messages: {:?}, {why:?}", self.state());
    }

    /// One message each way, of which the broker is to hear.
    pub fn talk(&self) {
        self.exchange(|| self.pump());
    }

    /// The same without the broker: no lane opens. In a child, too.
    pub fn talk_alone(&self) {
        self.exchange(|| {});
    }

    fn exchange(&self, after_each: impl Fn()) {
        for (from, to) in [(&self.client, &self.server), (&self.server, &self.client)] {
            assert_eq!(from.send(b"message"), Ok(7));
            assert_ne!(to.poll(libc::POLLIN, Some(1_000_000_000)) & libc::POLLIN, 0);
            assert_eq!(to.recv(100).as_deref(), Ok(&b"message"[..]));
            after_each();
        }
    }

    /// The broker and core's session hear each other until nothing moves.
    pub fn pump(&self) {
        for _ in 0..ROUNDS {
            let served = self.broker.turn();
            let has_news = session::has_news();
            session::pump();
            if served == 0 && !has_news {
                return;
            }
        }
    }

    /// Time passes, for all of us.
    pub fn pass(&self, time: Duration) {
        clock::pass(time.as_micros() as u64);
        self.broker.pass(time);
    }

    /// Whether both directions are on lanes, as both ends see it.
    pub fn is_on_lanes(&self) -> bool {
        self.client.is_on_lanes() && self.server.is_on_lanes()
    }

    /// Whether both directions are TCP's, as both ends see it.
    pub fn is_on_tcp(&self) -> bool {
        self.client.is_on_tcp() && self.server.is_on_tcp()
    }

    /// Where the client and the server stand with the broker.
    pub fn state(&self) -> (Phase, Phase) {
        (self.client.phase(), self.server.phase())
    }
}

/// Does the same with a plain pair and with one on lanes, and compares what the script has seen.
pub fn as_tcp<T: PartialEq + Debug>(script: impl Fn(&Pair) -> T) {
    let tcp = script(&Pair::plain());
    let pair = Pair::open();
    assert_eq!(script(&pair), tcp, "a lane, TCP");
}

/// The same, of what needs the pair itself: it closes ends.
pub fn as_tcp_once<T: PartialEq + Debug>(script: impl Fn(Pair) -> T) {
    let tcp = script(Pair::plain());
    assert_eq!(script(Pair::open()), tcp, "a lane, TCP");
}

/// Bytes that tell where they were.
pub fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i % 251) as u8).collect()
}

/// "Nothing to read" as an error.
pub const NOTHING: Errno = Errno::AGAIN;
