//! `--eager`: connections are nominated at connect and accept, and their first data calls wait for the lane.
//!
//! How long they wait depends on what is known of the other end. Each process tells the broker where it listens,
//! and, before the kernel's SYN goes out, where it connects to; so the broker can say of a connection that one
//! end has nominated whether anybody may nominate the other. For a stranger nothing is waited; for a peer that
//! is ours a busy machine is given time, and less with each time that it was in vain.

use core::net::SocketAddr;
use core::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};
use shunpike_shm::lifecycle::{Event, Phase};

use shunpike_shm::arena::Block;
use shunpike_wire::Reason;
use shunpike_wire::session::{ConnId, Expected, Role, ToBroker};

use crate::session::{self, Session};
use crate::sys::borrowed;
use crate::table::{self, Conn, Entry};
use crate::{clock, look, process, state, sys};

/// Listening sockets of a process that are looked at.
pub(crate) const LISTENERS: usize = 16;
/// How long sleeping calls listen to the broker after the last step of a handshake, microseconds.
pub(crate) const ATTENTION_US: u64 = 2_000_000;
/// What the kernel has refused to send though there is room is offered to it so often by sleeping calls, nanoseconds.
const REFUSED_NS: u64 = 10_000_000;
/// Names what a descriptor expects, apart from connections.
const EXPECTATION: u64 = 1 << 63;

/// Bits of `Block::nomination`.
pub(crate) mod mark {
    /// The broker was told that this connection would be made.
    pub const ANNOUNCED: u8 = 1;
    /// The broker said who may come to the other end, or, of a peer that it has named, that nobody may hear us there:
    pub const ANSWERED: u8 = 2;
    /// this process,
    pub const OWN: u8 = 4;
    /// or another one.
    pub const OTHER: u8 = 8;
    /// No more waiting.
    pub const SPENT: u8 = 16;
    /// The broker has, or will have, a copy of the descriptor;
    pub const COPIED: u8 = 32;
    /// so may another program.
    pub const GIVEN: u8 = 64;
    /// It was nominated anew without a call of the program.
    pub const REPEATED: u8 = 128;
}

static ATTENTIVE_UNTIL: AtomicU64 = AtomicU64::new(0);
/// As long at most while nominations wait to be made, or for the broker's answer;
static PENDING_UNTIL: AtomicU64 = AtomicU64::new(0);
/// so many do for that.
static UNANSWERED: AtomicU32 = AtomicU32::new(0);

/// Sockets of this process that listen; -1 none.
pub(crate) static BACKLOGS: [AtomicI32; LISTENERS] = [const { AtomicI32::new(-1) }; LISTENERS];

/// The connection is nominated when that becomes possible.
pub(crate) fn put_off(session: &mut Session, conn: Conn, fd: i32) {
    if session.later.add(conn, fd) {
        look::look_soon();
        attend_to_pending();
    }
}

/// Before connect().
pub fn connecting(fd: i32, to: SocketAddr) {
    let mut session = session::lock();
    session.ready();
    expect(&mut session, fd, Role::Client, to);
}

/// After a connect() that failed at once.
pub fn not_connected(fd: i32) {
    session::lock().send(&ToBroker::Withdraw { conn: expectation(fd) });
}

/// After listen().
pub fn listening(fd: i32) {
    note_backlog(fd);
    let mut session = session::lock();
    session.ready();
    expect_peers_at(&mut session, fd);
}

fn note_backlog(fd: i32) {
    let names = |slot: &AtomicI32, fd| slot.load(Ordering::Relaxed) == fd;
    if !BACKLOGS.iter().any(|slot| names(slot, fd))
        && let Some(free) = BACKLOGS.iter().find(|slot| names(slot, -1))
    {
        free.store(fd, Ordering::Relaxed);
    }
}

/// Before accept() of `fd`, which may sleep: a forked child's session begins here.
pub fn accepting(fd: i32) {
    note_backlog(fd);
    if session::is_closed() {
        session::lock().ready();
    }
}

/// A socket that was no connection is closed.
pub fn closing(fd: i32) {
    for slot in &BACKLOGS {
        let _ = slot.compare_exchange(fd, -1, Ordering::Relaxed, Ordering::Relaxed);
    }
    if !session::is_closed() {
        session::lock().send(&ToBroker::Withdraw { conn: expectation(fd) });
    }
}

/// A connection is about to be closed: no other thread lends its descriptor to the broker from here on. (The kernel's epoll would go on
/// telling of a socket that the broker still has.) One that has another name is lent by that.
pub fn leaving(conn: Conn, fd: i32) {
    if process::eager() && conn.block.life.is(Phase::Watched) {
        let has_others = conn.block.dups.load(Ordering::Relaxed) != 0;
        let other = has_others.then(|| table::names_of(conn).find(|name| *name != fd)).flatten();
        session::lock().later.moved(conn, fd, other);
    }
}

/// A listening socket is about to accept connections with data only: the first byte has nobody to wait for.
pub fn deferring(fd: i32) {
    if matches!(table::look(fd), Entry::Socket) {
        closing(fd);
    }
}

/// The broker has welcomed us: sockets that listen already are announced.
pub(crate) fn welcomed(session: &mut Session) {
    for (fd, entry) in table::all() {
        if matches!(entry, Entry::Socket)
            && sys::option::<libc::c_int>(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN) == Ok(1)
        {
            expect_peers_at(session, fd);
        }
    }
}

fn expect_peers_at(session: &mut Session, fd: i32) {
    if sys::option::<libc::c_int>(fd, libc::IPPROTO_TCP, libc::TCP_DEFER_ACCEPT)
        .is_ok_and(|seconds| seconds != 0)
    {
        return;
    }
    let address = rustix::net::getsockname(borrowed(fd)).ok().and_then(|any| SocketAddr::try_from(any).ok());
    if let Some(address) = address {
        expect(session, fd, Role::Server, address);
    }
}

fn expect(session: &mut Session, fd: i32, role: Role, at: SocketAddr) {
    let ip = match at {
        SocketAddr::V4(v4) => v4.ip().to_ipv6_mapped().octets(),
        SocketAddr::V6(v6) => v6.ip().octets(),
    };
    session.send(&ToBroker::Expect { conn: expectation(fd), role, ip, port: at.port() });
}

fn expectation(fd: i32) -> ConnId {
    ConnId(EXPECTATION | u64::from(fd as u32))
}

/// `connecting` has told the broker of this connection.
pub(crate) fn note_announced(block: &Block) {
    block.nomination.fetch_or(mark::ANNOUNCED, Ordering::Relaxed);
}

/// Whether the connection may still get its lane before its first byte.
#[inline]
pub(crate) fn is_possible(block: &Block) -> bool {
    process::eager()
        && block.attempts.load(Ordering::Relaxed) == 0
        && !block.life.has_been_open()
        && block.nomination.load(Ordering::Relaxed) & mark::SPENT == 0
}

/// A handshake that ended because the peer's process let go of the connection: another one goes on with it, a
/// forked child for instance. True: the connection is nominated once more.
pub(crate) fn again(session: &mut Session, conn: Conn, fd: i32, reason: Reason, theirs: u32) -> bool {
    let passed_on = reason == Reason::PeerVanished || theirs == Reason::Shared.code();
    if !passed_on || !is_possible(conn.block) {
        return false;
    }
    state::note(conn.block, reason);
    conn.block.retry_at.store(0, Ordering::Relaxed);
    conn.block.life.on(Event::End);
    put_off(session, conn, fd);
    true
}

/// The broker wants to look at the connection once more. A sleeping process has no call to nominate it in, and a peer that waits for the
/// lane: the first time, it is not left to the next call.
pub(crate) fn asked_again(session: &mut Session, conn: Conn, fd: i32) {
    let marks = &conn.block.nomination;
    if is_possible(conn.block) && marks.fetch_or(mark::REPEATED, Ordering::Relaxed) & mark::REPEATED == 0 {
        put_off(session, conn, fd);
    }
}

/// The connection has been nominated.
pub(crate) fn nominated(session: &mut Session, block: &Block, fd: i32) {
    let announced =
        block.nomination.fetch_and(!(mark::ANSWERED | mark::OWN | mark::OTHER), Ordering::Relaxed);
    block.nomination.fetch_or(mark::COPIED, Ordering::Relaxed);
    forget_expectation(session, block, announced, fd);
    UNANSWERED.fetch_add(1, Ordering::Relaxed);
    attend_to_pending();
}

/// The broker has looked at the nominated descriptor and closed its copy.
pub(crate) fn returned(block: &Block) {
    if block.nomination.fetch_and(!mark::COPIED, Ordering::Relaxed) & mark::COPIED != 0 {
        let less = |n: u32| n.checked_sub(1);
        let _ = UNANSWERED.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }
}

/// The session is over: nothing is answered any more.
pub(crate) fn unanswered() {
    UNANSWERED.store(0, Ordering::Relaxed);
}

/// Whether the broker still has a copy of the descriptor, as far as it has said, and nobody else was given one.
pub(crate) fn is_lent(block: &Block) -> bool {
    block.nomination.load(Ordering::Relaxed) & (mark::COPIED | mark::GIVEN) == mark::COPIED
}

/// The descriptor goes to other programs, or to code that does not know us.
pub(crate) fn given(block: &Block) {
    block.nomination.fetch_or(mark::GIVEN, Ordering::Relaxed);
}

/// They have let go of it.
pub(crate) fn taken_back(block: &Block) {
    block.nomination.fetch_and(!mark::GIVEN, Ordering::Relaxed);
}

/// The connection is being closed: what was said of it before is taken back.
pub(crate) fn dropped(session: &mut Session, block: &Block, fd: i32) {
    forget_expectation(session, block, block.nomination.load(Ordering::Relaxed), fd);
}

fn forget_expectation(session: &mut Session, block: &Block, marks: u8, fd: i32) {
    if marks & mark::ANNOUNCED != 0 {
        block.nomination.fetch_and(!mark::ANNOUNCED, Ordering::Relaxed);
        session.send(&ToBroker::Withdraw { conn: expectation(fd) });
    }
}

/// Whether the connection was announced and not nominated yet.
pub(crate) fn is_announced(block: &Block) -> bool {
    block.nomination.load(Ordering::Relaxed) & mark::ANNOUNCED != 0
}

/// The broker's answer to a nomination that has no match yet.
pub(crate) fn answered(block: &Block, expected: Expected) {
    let who = match expected {
        Expected::Nobody => 0,
        Expected::Own => mark::OWN,
        Expected::Other => mark::OTHER,
    };
    block.nomination.fetch_or(mark::ANSWERED | who, Ordering::Relaxed);
    if who != 0 {
        attend();
    }
}

/// The connection has its peer: whoever was expected there is. What the broker says from now on is of that one.
pub(crate) fn matched(block: &Block) {
    block.nomination.fetch_and(!(mark::ANSWERED | mark::OWN | mark::OTHER), Ordering::Relaxed);
    attend();
}

/// From now on sleeping calls listen to the broker for a while: a peer of ours may wait for our part.
pub(crate) fn attend() {
    if process::eager() {
        ATTENTIVE_UNTIL.store(clock::ticks() + clock::from_us(ATTENTION_US), Ordering::Relaxed);
    }
}

/// Sleeping calls listen to the broker while a nomination waits to be made, or for its answer: for a stranger, the broker has said all that there is.
fn attend_to_pending() {
    if process::eager() {
        PENDING_UNTIL.store(clock::ticks() + clock::from_us(ATTENTION_US), Ordering::Relaxed);
    }
}

/// Whether it is before that moment, which is forgotten when it has passed.
fn is_before(moment: &AtomicU64) -> bool {
    let until = moment.load(Ordering::Relaxed);
    let is_before = until != 0 && clock::ticks() < until;
    if until != 0 && !is_before {
        moment.store(0, Ordering::Relaxed);
    }
    is_before
}

/// The session's socket and the events for a sleeping call to watch beside its own descriptors, and for how long at
/// most, nanoseconds.
pub fn attention() -> Option<(libc::pollfd, u64)> {
    let fd = session::socket()?;
    let is_pending = UNANSWERED.load(Ordering::Relaxed) != 0 || look::has_later();
    let is_attentive = is_before(&ATTENTIVE_UNTIL) || is_pending && is_before(&PENDING_UNTIL);
    // A full socket is everybody's affair: no call of the program may come for a long time.
    let (events, most) = match session::has_unsent() {
        true if session::is_refused() => (libc::POLLIN, REFUSED_NS),
        true => (libc::POLLIN | libc::POLLOUT, ATTENTION_US * 1000),
        false if is_attentive => (libc::POLLIN, ATTENTION_US * 1000),
        false => return None,
    };
    Some((libc::pollfd { fd, events, revents: 0 }, most))
}

/// Whether there is nothing to wait for, as far as a few words tell.
#[inline]
pub fn is_settled(block: &Block) -> bool {
    let has_no_broker = || was_put_off(block) && session::is_closed();
    (!is_possible(block) || has_no_broker()) && !is_inherited(block)
}

/// Whether it was tried to nominate the connection, and is to be again: after a call (`above::moved`).
#[inline]
pub(crate) fn was_put_off(block: &Block) -> bool {
    block.life.is(Phase::Watched) && block.retry_at.load(Ordering::Relaxed) != 0
}

/// Whether another process of the tree made the connection, which may get its lane as ours.
#[inline]
pub(crate) fn is_inherited(block: &Block) -> bool {
    !block.life.has_been_open() && state::is_inherited(block)
}

/// In a forked child: what was announced is the parent's affair.
pub(crate) fn after_fork_in_child() {
    ATTENTIVE_UNTIL.store(0, Ordering::Relaxed);
    unanswered();
}
