//! The tables, by subject; what the tests have in common.

mod any_order;
mod limits;
mod matches;
mod parked;
mod permitted;

use super::*;
use crate::facts::{Terms, Tuple};
use crate::foreign::{Graves, Last};
use crate::loopback::LoopbackIsm;
use crate::policy::{Limits, Peers};
use rustix::fd::{AsFd, OwnedFd};
use shunpike_shm::lane::HEADER;
use shunpike_shm::region;
use shunpike_wire::Gid;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

/// What one test DMB takes, bytes.
const DMB: u64 = (HEADER as u64) + (16 << 10);

fn exchange() -> Exchange {
    exchange_with(|_| {})
}

fn exchange_with(change: impl FnOnce(&mut Policy)) -> Exchange {
    let mut policy = Policy::system_wide(8, 32);
    change(&mut policy);
    Exchange::new(Box::new(LoopbackIsm::new(Gid(7), 16)), policy, false)
}

fn bell() -> OwnedFd {
    rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).expect("eventfd")
}

fn party(session: u64, conn: u64) -> Party {
    Party { session: SessionId(session), conn: ConnId(conn) }
}

/// The client's (1) or the server's (2) end of the connection over `port`.
fn facts(side: u8, port: u16) -> Proof {
    let endpoint = |host| Endpoint { ip: IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)), port };
    Proof::Proved(Facts {
        tuple: Tuple { local: endpoint(side), remote: endpoint(3 - side) },
        netns: Some(1),
        cookie: u64::from(port) << 8 | u64::from(side),
        sent: 0,
        received: 0,
        arrived: 0,
        acked: 0,
        terms: Terms { options: 0, snd_wscale: 0, rcv_wscale: 0 },
        sequences: None,
    })
}

fn join(exchange: &mut Exchange, client: Party, server: Party, port: u16) {
    exchange.nominate(client, Role::Client, facts(1, port), false);
    exchange.nominate(server, Role::Server, facts(2, port), false);
}

/// A session ends, and all that it held is let go.
fn end(exchange: &mut Exchange, session: SessionId) {
    exchange.end_session(session);
    while exchange.is_ending() {
        exchange.let_go(1);
    }
}

fn inode(fd: &OwnedFd) -> u64 {
    rustix::fs::fstat(fd).expect("stat").st_ino
}

fn memory() -> Option<Shared> {
    region::create("dmb", HEADER + (16 << 10)).ok().map(Shared::from)
}

fn posts_to(exchange: &mut Exchange, session: u64) -> Vec<FromBroker> {
    let (own, others) = std::mem::take(&mut exchange.posts).into_iter().partition(|p| p.to.0 == session);
    exchange.posts = others;
    Vec::into_iter(own).map(|post: Post| post.message).collect()
}

/// Registers a DMB for connection `conn` of `session`; why not.
fn register(exchange: &mut Exchange, session: u64, conn: u64) -> Option<Reason> {
    exchange.register(party(session, conn), 0, memory());
    match exchange.posts.pop().expect("an answer").message {
        FromBroker::Registered { reason, .. } => Reason::from_code(reason),
        other => panic!("{other:?}"),
    }
}

fn with_users(mut exchange: Exchange, users: [u32; 4]) -> Exchange {
    for (session, uid) in (1..).zip(users) {
        exchange.begin_session(SessionId(session), Identity::of_user(uid), bell().into(), 1);
    }
    exchange
}

const LIMIT: Option<Reason> = Some(Reason::DmbLimit);

/// Registers a DMB for connection 1 of session 1, whose peer is that of session 2, and attaches it there; its name.
fn registered_and_attached(exchange: &mut Exchange) -> u64 {
    registered_with(exchange, memory())
}

/// Registers and attaches a DMB as [`registered`] does, with this memory.
fn registered_with(exchange: &mut Exchange, memory: Option<Shared>) -> u64 {
    join(exchange, party(1, 1), party(2, 1), 80);
    exchange.register(party(1, 1), 0, memory);
    let told = exchange.posts.pop().expect("an answer").message;
    let FromBroker::Registered { token, reason: 0, .. } = told else { panic!("{told:?}") };
    exchange.attach(party(2, 1), token);
    exchange.posts.clear();
    token
}

/// Asks for a parked DMB for connection `conn` of session 1; its new name, or why not.
fn reuse(exchange: &mut Exchange, conn: u64, token: u64) -> Result<u64, Option<Reason>> {
    exchange.reuse(party(1, conn), token);
    match exchange.posts.pop().expect("an answer").message {
        FromBroker::Registered { token, reason: 0, .. } => Ok(token),
        FromBroker::Registered { reason, .. } => Err(Reason::from_code(reason)),
        other => panic!("{other:?}"),
    }
}

/// Whoever closes memory last frees it, which takes half a second for a GiB.
#[test]
fn memory_of_a_client_is_closed_elsewhere_whatever_becomes_of_it() {
    type End = fn(&mut Exchange, Shared);
    let ends: [End; 6] = [
        // Without a match, of a size that there is not, beyond a limit: refused.
        |exchange, memory| exchange.register(party(3, 1), 0, Some(memory)),
        |exchange, memory| exchange.register(party(1, 1), 11, Some(memory)),
        |exchange, memory| {
            let policy = Policy::system_wide(8, 32);
            let process = Limits { dmbs: 0, ..policy.process };
            exchange.set_policy(Policy { process, ..policy });
            exchange.register(party(1, 1), 0, Some(memory));
        },
        |exchange, memory| {
            exchange.register(party(1, 1), 0, Some(memory));
            end(exchange, SessionId(1));
        },
        |exchange, memory| {
            exchange.register(party(1, 1), 0, Some(memory));
            let told = exchange.posts.pop().map(|post| post.message);
            let Some(FromBroker::Registered { token, reason: 0, .. }) = told else { panic!("{told:?}") };
            exchange.unregister(SessionId(1), token);
        },
        // The last that has it is a message on its way.
        |exchange, memory| {
            exchange.register(party(1, 1), 0, Some(memory));
            let told = exchange.posts.pop().map(|post| post.message);
            let Some(FromBroker::Registered { token, reason: 0, .. }) = told else { panic!("{told:?}") };
            exchange.attach(party(2, 1), token);
            end(exchange, SessionId(1));
            end(exchange, SessionId(2));
        },
    ];
    for (number, end) in ends.into_iter().enumerate() {
        let mut exchange = with_users(exchange_with(|_| {}), [1000; 4]);
        join(&mut exchange, party(1, 1), party(2, 1), 80);
        let (graves, fd) = (Graves::default(), region::create("dmb", HEADER + (16 << 10)).expect("a memfd"));
        let seen = fd.try_clone().expect("a descriptor");
        end(&mut exchange, Shared::memory_of_client(fd, 1000, &graves));
        exchange.posts.clear();
        let left = graves.take();
        let is_it = matches!(&left[..], [(1000, fd, Last::Free)] if inode(fd) == inode(&seen));
        assert!(is_it, "{number}: {left:?}");
    }
}
