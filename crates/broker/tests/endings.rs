//! What ends, and what goes back to TCP, does so in turns: however much it is, everybody else is heard meanwhile.

mod support;

use rustix::fd::{AsFd, OwnedFd};
use shunpike_broker::what;
use shunpike_shm::arena::Arena;
use shunpike_wire::session::{ConnId, FromBroker, Role, ToBroker};
use std::sync::atomic::Ordering;
use std::time::Duration;
use support::turns::{Turns, is_answered, read_in_turns, turns_until};
use support::*;

/// Connections of one program with another: more than are let go in two turns.
const MATCHES: u32 = 1100;

fn nominate(turns: &mut Turns, ends: [(&OwnedFd, Role); 2], block: u32) {
    let (one, other) = tcp_pair();
    for ((session, role), socket) in ends.into_iter().zip([&one, &other]) {
        let message = ToBroker::Nominate { conn: ConnId::new(block, 1), role, tx: 0, rx: 0, answer: false };
        send(session, &message, &[socket.as_fd()]);
    }
    turns.until_quiet();
}

/// All that has been said to a session.
fn heard(session: &OwnedFd) -> Vec<FromBroker> {
    let said = || readable(session, Duration::ZERO).then(|| receive(session).expect("it goes on").0);
    std::iter::from_fn(said).collect()
}

#[test]
fn what_a_session_held_is_let_go_in_turns() {
    let mut turns = Turns::new();
    let ((client, _), (server, _)) = (turns.program(0), turns.program(0));
    for block in 0..MATCHES {
        nominate(&mut turns, [(&client, Role::Client), (&server, Role::Server)], block);
        heard(&client);
        let said = heard(&server);
        assert!(matches!(said[..], [FromBroker::Matched { .. }]), "{said:?}");
    }
    drop(client);
    turns.turn();
    let quick = turns.ask(what::UEID, "show");
    let (mut gone, mut links, mut took) = (0, 0, 0);
    while (gone, links) != (MATCHES, 5) {
        turns.server.audit().expect("the tables agree in the midst of it");
        for message in heard(&server) {
            match message {
                FromBroker::Gone { .. } => gone += 1,
                FromBroker::LinkGone { .. } => links += 1,
                other => panic!("{other:?}"),
            }
        }
        turns.turn();
        took += 1;
        assert!(took < 4 || is_answered(&quick), "a question waits for the end of another's session");
        assert!(took < 1000, "{gone} connections and {links} link groups are gone");
    }
    assert!(took > MATCHES / 512, "{took} turns");
    // The other end of a match that is being let go is no peer any more.
    drop(server);
    turns.until_quiet();
    assert!(turns.server.is_empty());
}

/// A server that is stopped, or busy, while a crowd comes and goes.
#[test]
fn who_does_not_look_for_a_while_hears_all_of_it_later() {
    let mut turns = Turns::new();
    let ((client, _), (server, _)) = (turns.program(0), turns.program(0));
    for block in 0..2 * MATCHES {
        nominate(&mut turns, [(&client, Role::Client), (&server, Role::Server)], block);
        heard(&client);
    }
    drop(client);
    turns.take(100);
    let (mut matched, mut gone) = (0, 0);
    while gone < 2 * MATCHES {
        for message in heard(&server) {
            matched += u32::from(matches!(message, FromBroker::Matched { .. }));
            gone += u32::from(matches!(message, FromBroker::Gone { .. }));
        }
        assert_eq!(matched < 2 * MATCHES, gone == 0, "in the order that it was said in");
        turns.turn();
    }
}

/// In the midst of its end a session is nobody's peer, whatever its peer asks for.
#[test]
fn who_has_ended_is_nobodys_peer() {
    let mut turns = Turns::new();
    let ((client, _), (server, _)) = (turns.program(0), turns.program(0));
    for block in 0..600 {
        nominate(&mut turns, [(&client, Role::Client), (&server, Role::Server)], block);
        heard(&client);
        heard(&server);
    }
    drop(client);
    turns.turn();
    let conn = ConnId::new(599, 1);
    let memory = shunpike_shm::region::create("dmb", shunpike_shm::lane::HEADER + (16 << 10)).expect("memfd");
    send(&server, &ToBroker::Register { conn, class: 0 }, &[memory.as_fd()]);
    let answer = (0..100).find_map(|_| {
        turns.turn();
        turns.server.audit().expect("the tables agree");
        heard(&server).into_iter().find(|said| matches!(said, FromBroker::Registered { .. }))
    });
    assert!(matches!(answer, Some(FromBroker::Registered { reason, .. }) if reason != 0), "{answer:?}");
}

/// A tree of processes that share an arena: each of its connections may be any of theirs.
#[test]
fn one_of_many_connections_is_looked_for_and_revoked_in_turns() {
    let mut turns = Turns::new();
    let (session, arena) = turns.program(8192);
    let last = arena.block(8191);
    last.fd.store(77, Ordering::Relaxed);
    let pid = std::process::id();
    let revoke = turns.ask(what::REVOKE, &format!("{pid}:77"));
    assert!(turns_until(&mut turns, &revoke) >= 8192 / 512);
    assert!(read_in_turns(&mut turns, &revoke).0.contains(&format!("asked {pid}:77 to go back")));
    let said = heard(&session);
    assert!(matches!(said[..], [FromBroker::Revoke { conn }] if conn.index() == 8191), "{said:?}");
    let nobodys = turns.ask(what::REVOKE, &format!("{pid}:78"));
    assert!(read_in_turns(&mut turns, &nobodys).0.contains("no watched connection"));
    let all = turns.ask(what::REVOKE, &pid.to_string());
    turns.until_quiet();
    assert!(read_in_turns(&mut turns, &all).0.contains("to go back"));
    assert!(matches!(heard(&session)[..], [FromBroker::Revoke { conn: ConnId(0) }]));
    let _keeps: Arena = arena;
}
