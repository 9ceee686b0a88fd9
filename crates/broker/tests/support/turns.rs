//! A broker whose turns a test takes.

use super::{hello, readable, receive, send, try_connect};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{RecvFlags, recv};
use shunpike_broker::loopback::LoopbackIsm;
use shunpike_broker::{Config, Server, what};
use shunpike_shm::arena::Arena;
use shunpike_wire::Reason;
use shunpike_wire::session::{ClcBytes, ToBroker};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A broker whose turns a test takes.
pub struct Turns {
    pub server: Server,
    config: Config,
    _directory: tempfile::TempDir,
}

impl Turns {
    pub fn new() -> Self {
        let directory = tempfile::tempdir().expect("temporary directory");
        let mut config = Config::new(directory.path().join("broker.sock"));
        // All sessions of a test are this one process's.
        config.policy.process.sessions = usize::MAX;
        let server = Server::new(config.clone(), LoopbackIsm::boxed).expect("a broker");
        Self { server, config, _directory: directory }
    }

    /// One turn; whether anybody was served.
    pub fn turn(&mut self) -> bool {
        self.server.turn(Duration::from_millis(1)).expect("a turn").expect("it goes on") > 0
    }

    pub fn take(&mut self, turns: usize) {
        for _ in 0..turns {
            self.turn();
        }
    }

    pub fn until_quiet(&mut self) {
        while self.turn() || self.server.is_busy() {}
    }

    /// A program with so many connections, each of which is on TCP with a reason.
    pub fn program(&mut self, connections: usize) -> (OwnedFd, Arena) {
        let arena = Arena::create(std::process::id()).expect("arena");
        for _ in 0..connections {
            let block = arena.allocate().expect("a block");
            block.reason.store(Reason::NoUeid.code(), Ordering::Relaxed);
        }
        let bell = eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd");
        let socket = try_connect(&self.config.socket).expect("a broker listens");
        send(&socket, &hello(1), &[arena.fd().as_fd(), bell.as_fd()]);
        self.until_quiet();
        receive(&socket).expect("a welcome");
        (socket, arena)
    }

    pub fn ask(&self, what: u16, arg: &str) -> OwnedFd {
        let tool = try_connect(&self.config.socket).expect("a broker listens");
        let arg = ClcBytes::new(arg.as_bytes()).expect("fits");
        send(&tool, &ToBroker::Query { what, arg }, &[]);
        tool
    }
}

pub fn is_answered(tool: &OwnedFd) -> bool {
    readable(tool, Duration::ZERO)
}

/// Takes turns until this is answered, but for another question's answer, which has to come long before.
pub fn turns_until(turns: &mut Turns, slow: &OwnedFd) -> usize {
    let quick = turns.ask(what::UEID, "show");
    let mut count = 0;
    while !is_answered(slow) {
        assert!(count < 4 || is_answered(&quick), "the quick question waits for the slow one");
        turns.turn();
        count += 1;
    }
    assert!(is_answered(&quick), "the slow question was answered first");
    count
}

/// The whole answer, read as it comes, and how many turns it took.
pub fn read_in_turns(turns: &mut Turns, tool: &OwnedFd) -> (String, usize) {
    let (mut text, mut count) = (Vec::new(), 0);
    loop {
        let mut chunk = [0; 1 << 16];
        match recv(tool, &mut chunk, RecvFlags::DONTWAIT) {
            Ok((0, _)) => return (String::from_utf8(text).expect("text"), count),
            Ok((len, _)) => text.extend_from_slice(&chunk[..len]),
            Err(_) => {
                turns.turn();
                count += 1;
            }
        }
    }
}
