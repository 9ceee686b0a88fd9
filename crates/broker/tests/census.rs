//! What the broker counts it counts in turns: however much programs have, everybody else is heard meanwhile.

mod support;

use rustix::fd::OwnedFd;
use rustix::net::{RecvFlags, recv};
use shunpike_broker::report::{Explanations, Processes, Stats};
use shunpike_broker::what;
use shunpike_wire::session::{ConnId, ToBroker};
use std::sync::atomic::Ordering;
use support::turns::{Turns, is_answered, read_in_turns, turns_until};
use support::*;

/// Connection ends of the one large program: sixteen turns' worth.
const MANY: usize = 8192;

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
