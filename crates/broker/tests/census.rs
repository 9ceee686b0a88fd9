//! What the broker counts it counts in turns: however much programs have, everybody else is heard meanwhile.

mod support;

use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::{RecvFlags, recv};
use shunpike_broker::loopback::LoopbackIsm;
use shunpike_broker::report::{Explanations, Processes, Stats};
use shunpike_broker::{Config, Server, what};
use shunpike_shm::arena::Arena;
use shunpike_wire::Reason;
use shunpike_wire::session::{ClcBytes, ConnId, ToBroker};
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::*;

/// Connection ends of the one large program: sixteen turns' worth.
const MANY: usize = 8192;

/// A broker whose turns a test takes.
struct Turns {
    server: Server,
    config: Config,
    _directory: tempfile::TempDir,
}

impl Turns {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("temporary directory");
        let mut config = Config::new(directory.path().join("broker.sock"));
        // All sessions of a test are this one process's.
        config.policy.process.sessions = usize::MAX;
        let server = Server::new(config.clone(), LoopbackIsm::boxed).expect("a broker");
        Self { server, config, _directory: directory }
    }

    /// One turn; whether anybody was served.
    fn turn(&mut self) -> bool {
        self.server.turn(Duration::from_millis(1)).expect("a turn").expect("it goes on") > 0
    }

    fn take(&mut self, turns: usize) {
        for _ in 0..turns {
            self.turn();
        }
    }

    fn until_quiet(&mut self) {
        while self.turn() || self.server.is_busy() {}
    }

    /// A program with so many connections, each of which is on TCP with a reason.
    fn program(&mut self, connections: usize) -> (OwnedFd, Arena) {
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

    fn ask(&self, what: u16, arg: &str) -> OwnedFd {
        let tool = try_connect(&self.config.socket).expect("a broker listens");
        let arg = ClcBytes::new(arg.as_bytes()).expect("fits");
        send(&tool, &ToBroker::Query { what, arg }, &[]);
        tool
    }
}

/// A tool's answer, which is there.
fn answer<T: serde::de::DeserializeOwned>(tool: &OwnedFd) -> T {
    let mut text = Vec::new();
    loop {
        let mut chunk = [0; 1 << 16];
        match recv(tool, &mut chunk, RecvFlags::DONTWAIT).expect("an answer") {
            (0, _) => return serde_json::from_slice(&text).expect("of the expected type"),
            (len, _) => text.extend_from_slice(&chunk[..len]),
        }
    }
}

fn is_answered(tool: &OwnedFd) -> bool {
    readable(tool, Duration::ZERO)
}

/// Takes turns until this is answered, but for another question's answer, which has to come long before.
fn turns_until(turns: &mut Turns, slow: &OwnedFd) -> usize {
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

#[test]
fn sums_over_large_programs_are_made_in_turns() {
    let mut turns = Turns::new();
    let _program = turns.program(MANY);
    let stats = turns.ask(what::STATS, "");
    let took = turns_until(&mut turns, &stats);
    assert!(took >= MANY / 512, "{took} turns");
    assert_eq!(answer::<Stats>(&stats).connections.fallback, MANY as u64);
    let processes = turns.ask(what::PROCESSES, "");
    assert!(turns_until(&mut turns, &processes) >= MANY / 512);
    assert_eq!(answer::<Processes>(&processes).processes[0].connections, MANY as u64);
}

/// The whole answer, read as it comes, and how many turns it took.
fn read_in_turns(turns: &mut Turns, tool: &OwnedFd) -> (String, usize) {
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

#[test]
fn what_a_process_has_is_looked_for_and_explained_in_turns() {
    let mut turns = Turns::new();
    let (_socket, arena) = turns.program(MANY);
    let pid = std::process::id();
    let nobodys = turns.ask(what::EXPLAIN, &format!("{pid}:77"));
    assert!(turns_until(&mut turns, &nobodys) >= MANY / 512);
    assert!(read_in_turns(&mut turns, &nobodys).0.contains("no watched connection"));
    let too_many = turns.ask(what::EXPLAIN, &pid.to_string());
    assert!(read_in_turns(&mut turns, &too_many).0.contains("too many connections"));
    drop(arena);

    let mut turns = Turns::new();
    let _program = turns.program(1000);
    let all = turns.ask(what::EXPLAIN, &pid.to_string());
    let (text, took) = read_in_turns(&mut turns, &all);
    let told: Explanations = serde_json::from_str(&text).expect("explanations");
    assert_eq!(told.explanations.len(), 1000);
    assert!(took >= 1000 / 32, "{took} turns");
}

/// What becomes of a connection takes some turns: each is short while there is one, whoever else comes.
#[test]
fn while_a_program_speaks_others_have_a_sixteenth_of_a_turn() {
    let mut turns = Turns::new();
    let (socket, _arena) = turns.program(0);
    let speak = |turns: &mut Turns| {
        send(&socket, &ToBroker::Withdraw { conn: ConnId(1 << 32) }, &[]);
        turns.turn();
    };
    speak(&mut turns);
    let tools: Vec<OwnedFd> = (0..100).map(|_| turns.ask(what::UEID, "show")).collect();
    let answered = || tools.iter().filter(|tool| is_answered(tool)).count();
    (0..6).for_each(|_| speak(&mut turns));
    assert!((1..=6 * 4).contains(&answered()), "{} were answered", answered());
    turns.until_quiet();
    assert_eq!(answered(), 100);
}

#[test]
fn a_program_that_is_gone_is_looked_at_in_turns_and_counted_in_full() {
    let mut turns = Turns::new();
    let program = turns.program(MANY);
    drop(program);
    turns.turn();
    assert!(!turns.server.is_empty(), "it has not been looked at all over");
    let stats = turns.ask(what::STATS, "");
    assert!(turns_until(&mut turns, &stats) >= MANY / 512 - 1);
    assert_eq!(answer::<Stats>(&stats).connections.fallback, MANY as u64);
    turns.until_quiet();
    assert!(turns.server.is_empty());
}

#[test]
fn who_asks_in_the_midst_of_a_round_has_figures_of_a_later_one() {
    let mut turns = Turns::new();
    let (_socket, arena) = turns.program(MANY);
    let first = turns.ask(what::STATS, "");
    turns.take(4);
    arena.header().handled[0].store(9, Ordering::Relaxed);
    let second = turns.ask(what::STATS, "");
    turns.until_quiet();
    let handled = [first, second].map(|tool| answer::<Stats>(&tool).connections.handled);
    assert_eq!(handled, [0, 9]);
}

#[test]
fn a_program_that_ends_in_the_midst_of_a_round_is_counted_once() {
    let mut turns = Turns::new();
    let (large, small) = (turns.program(MANY), turns.program(10));
    let stats = turns.ask(what::STATS, "");
    turns.take(4);
    drop((large, small));
    turns.until_quiet();
    assert_eq!(answer::<Stats>(&stats).connections.fallback, MANY as u64 + 10);
    assert!(turns.server.is_empty());
}

#[test]
fn of_many_large_programs_that_are_gone_at_once_some_are_counted_in_part() {
    let mut turns = Turns::new();
    let programs: Vec<_> = (0..24).map(|_| turns.program(MANY)).collect();
    drop(programs);
    turns.until_quiet();
    let stats = turns.ask(what::STATS, "");
    turns.until_quiet();
    // Sixteen wait for their last look, and by then one or another has had it.
    let counted = answer::<Stats>(&stats).connections.fallback / MANY as u64;
    assert!((16..=20).contains(&counted), "{counted} were counted in full");
    assert!(turns.server.is_empty());
}

#[test]
fn sums_do_not_go_back_whoever_says_to_have_counted_all_that_there_is() {
    let mut turns = Turns::new();
    let mut before = 0;
    for _ in 0..300 {
        let (socket, arena) = turns.program(0);
        arena.header().tx.bytes.store(u64::MAX, Ordering::Relaxed);
        drop(socket);
        let stats = turns.ask(what::STATS, "");
        turns.until_quiet();
        let now = answer::<Stats>(&stats).tx.bytes;
        assert!(now >= before, "{before}, and then {now}");
        before = now;
    }
}
