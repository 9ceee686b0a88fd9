//! A broker in a thread, and clients that speak its protocol as the library does.
#![allow(dead_code, reason = "each test file uses its part")]

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{IoSlice, IoSliceMut};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::time::Timespec;
use shunpike_broker::loopback::LoopbackIsm;
use shunpike_broker::report::Info;
use shunpike_broker::{BrokerError, Config, QueryError, query, what};
use shunpike_shm::arena::Arena;
use shunpike_shm::lane::HEADER;
use shunpike_shm::region;
use shunpike_wire::clc::{Decline, Message};
use shunpike_wire::session::{CONTROL, ClcBytes, ConnId, FromBroker, MAX, Role, ToBroker, VERSION, Welcome};
use shunpike_wire::{PeerId, Reason};
use std::io::{Read, Write};
use std::mem::MaybeUninit;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub mod turns;

/// Nothing in these tests takes nearly as long.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A broker that serves until dropped.
pub struct TestBroker {
    pub socket: PathBuf,
    directory: Option<tempfile::TempDir>,
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<Result<(), BrokerError>>>,
}

impl TestBroker {
    pub fn start() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let directory = tempfile::tempdir().expect("temporary directory");
        let mut broker = Self::at(&directory.path().join("broker.sock"), change);
        broker.directory = Some(directory);
        broker
    }

    /// A broker at a place that outlives it.
    pub fn at(socket: &Path, change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(socket.to_owned());
        // All sessions of a test are this one process's.
        config.policy.process.sessions = usize::MAX;
        change(&mut config);
        let (stop, stopped) = UnixStream::pair().expect("socket pair");
        let thread = std::thread::spawn(move || {
            shunpike_broker::run(config, LoopbackIsm::boxed, Some(stopped.as_fd()))
        });
        let broker =
            Self { socket: socket.to_owned(), directory: None, stop: Some(stop), thread: Some(thread) };
        until(|| try_connect(socket).is_some());
        broker
    }

    /// Waits for a broker that ends by itself.
    pub fn join(mut self) -> Result<(), BrokerError> {
        let thread = self.thread.take().expect("joined once");
        thread.join().expect("the broker does not panic")
    }

    pub fn ask<T: serde::de::DeserializeOwned>(&self, what: u16, arg: &str) -> T {
        // A test floods as the user that asks: who has just had too many connections is turned away for a moment.
        let mut answer = None;
        until(|| {
            answer = Some(query(&self.socket, what, arg));
            !matches!(answer, Some(Err(QueryError::Broken { .. } | QueryError::TurnedAway { .. })))
                && !matches!(&answer, Some(Err(QueryError::Refused(failure))) if failure.what.contains("turned"))
        });
        serde_json::from_str(&answer.expect("asked").expect("an answer")).expect("of the expected type")
    }

    pub fn info(&self) -> Info {
        self.ask(what::INFO, "")
    }

    /// Waits until nobody and nothing is left in the broker's tables.
    pub fn until_empty(&self) {
        until(|| {
            let info = self.info();
            info.sessions == 0
                && info.waiting == 0
                && info.device.dmbs_cnt == 0
                && info.device.link_groups == 0
        });
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            if !std::thread::panicking() {
                ended.expect("the broker does not panic").expect("it ends in peace");
            }
        }
    }
}

/// Waits for something that has to come.
pub fn until(mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "did not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub fn try_connect(path: &Path) -> Option<OwnedFd> {
    let family = AddressFamily::UNIX;
    let socket = rustix::net::socket_with(family, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).ok()?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path).ok()?).ok()?;
    Some(socket)
}

/// A program's session.
pub struct Client {
    pub socket: OwnedFd,
    pub arena: Arena,
    pub welcome: Welcome,
    /// Session page and knob page.
    pub pages: Vec<OwnedFd>,
    pub doorbells: Vec<OwnedFd>,
}

impl Client {
    pub fn connect(broker: &TestBroker) -> Self {
        Self::named(broker, *b"test\0\0\0\0\0\0\0\0\0\0\0\0")
    }

    pub fn named(broker: &TestBroker, comm: [u8; 16]) -> Self {
        Self::try_named(broker, comm).expect("a welcome")
    }

    /// After a flood of its own user's, which has a client turned away for a moment.
    pub fn connect_at_last(broker: &TestBroker) -> Self {
        let mut client = None;
        until(|| {
            client = Self::try_named(broker, *b"test\0\0\0\0\0\0\0\0\0\0\0\0");
            client.is_some()
        });
        client.expect("just made")
    }

    /// `None` where it is turned away.
    fn try_named(broker: &TestBroker, comm: [u8; 16]) -> Option<Self> {
        let socket = try_connect(&broker.socket).expect("a broker listens");
        let arena = Arena::create(std::process::id()).expect("arena");
        let bell = || eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC).expect("eventfd");
        let doorbells = vec![bell(), bell()];
        let fds = [arena.fd().as_fd(), doorbells[0].as_fd(), doorbells[1].as_fd()];
        let greeting = ToBroker::Hello { control: CONTROL, version: VERSION, doorbells: 2, comm };
        let mut bytes = [0; MAX];
        let len = greeting.encode(&mut bytes).expect("encodes");
        send_bytes(&socket, &bytes[..len], &fds).ok()?;
        let (message, pages) = receive(&socket)?;
        let FromBroker::Welcome(welcome) = message else { panic!("{message:?}") };
        assert_eq!(pages.len(), 2);
        Some(Self { socket, arena, welcome, pages, doorbells })
    }

    pub fn say(&self, message: ToBroker) {
        send(&self.socket, &message, &[]);
    }

    pub fn nominate(&self, conn: ConnId, role: Role, (tx, rx): (u64, u64), socket: &TcpStream) {
        send(&self.socket, &ToBroker::Nominate { conn, role, tx, rx, answer: false }, &[socket.as_fd()]);
    }

    /// Registers a fresh DMB of the smallest class and returns its memory.
    pub fn register(&self, conn: ConnId) -> OwnedFd {
        let memory = region::create("dmb", HEADER + (16 << 10)).expect("memfd");
        send(&self.socket, &ToBroker::Register { conn, class: 0 }, &[memory.as_fd()]);
        memory
    }

    pub fn hear(&self) -> FromBroker {
        self.hear_with_fds().0
    }

    pub fn hear_with_fds(&self) -> (FromBroker, Vec<OwnedFd>) {
        receive(&self.socket).expect("the session goes on")
    }

    /// Waits for the end of the session, whatever is said before.
    pub fn until_over(&self) {
        while receive(&self.socket).is_some() {}
    }

    /// Whether nothing has been said that was not heard.
    pub fn silent(&self) -> bool {
        !readable(&self.socket, Duration::ZERO)
    }
}

pub fn hello(doorbells: u8) -> ToBroker {
    ToBroker::Hello { control: CONTROL, version: VERSION, doorbells, comm: *b"test\0\0\0\0\0\0\0\0\0\0\0\0" }
}

pub fn send(socket: &OwnedFd, message: &ToBroker, fds: &[BorrowedFd<'_>]) {
    let mut bytes = [0; MAX];
    let len = message.encode(&mut bytes).expect("encodes");
    send_bytes(socket, &bytes[..len], fds).expect("sends");
}

pub fn send_bytes(socket: &OwnedFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(fds)));
    }
    rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)
}

/// The next message; `None` at the end of the session.
pub fn receive(socket: &OwnedFd) -> Option<(FromBroker, Vec<OwnedFd>)> {
    assert!(readable(socket, PATIENCE), "the broker says nothing");
    let mut bytes = [0; MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = match rustix::net::recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Ok(got) if got.bytes > 0 => got,
        _ => return None,
    };
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Some((FromBroker::decode(&bytes[..got.bytes]).expect("decodes"), fds))
}

/// Whether something was said within `patience`.
pub fn readable(socket: &OwnedFd, patience: Duration) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    let timeout = Timespec { tv_sec: patience.as_secs() as i64, tv_nsec: 0 };
    poll(&mut fds, Some(&timeout)).expect("poll") > 0
}

/// An established TCP connection over loopback: client's end, server's end.
pub fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
    (client, listener.accept().expect("accept").0)
}

/// Moves `n` bytes from one end to the other.
pub fn transfer(from: &mut TcpStream, to: &mut TcpStream, n: usize) {
    from.write_all(&vec![1; n]).expect("write");
    to.read_exact(&mut vec![0; n]).expect("read");
}

/// Some CLC message.
pub fn clc() -> ClcBytes {
    let mut bytes = [0; MAX];
    let message = Message::Decline(Decline::new(PeerId::default(), Reason::NoUeid));
    let len = message.encode(&mut bytes).expect("encodes");
    ClcBytes::new(&bytes[..len]).expect("fits")
}
