//! Asking the broker for a lane: the byte-count proof, and when to ask again.

use core::net::SocketAddr;
use core::sync::atomic::Ordering;
use shunpike_shm::lifecycle::{Event, Phase};

use rustix::io::Errno;
use shunpike_shm::arena::Block;
use shunpike_wire::Reason;
use shunpike_wire::session::{Role, ToBroker};

use super::id_of;
use crate::session::Session;
use crate::sys::borrowed;
use crate::table::Conn;
use crate::{
    clock, eager, enabled, holders, later, options, process, rings, seen, session, sets, state, sys, table,
    trace, user,
};

/// A connection that got no lane is nominated again after this long, doubled with each try.
const BACKOFF_US: u64 = 50_000;
/// A connection is nominated so often at most.
const TRIES: u32 = 12;
/// What will pass by itself is asked for again at least this often: doublings of the pause.
const PASSING: u32 = 4;

/// What asking takes and gives no answer is a small part of the time: it is repeated after so many times as long,
const SELDOM: u64 = 32;
/// Where the thread lost the CPU meanwhile, asking counts as if it had taken no more than this, microseconds.
const ASKING_US: u64 = 300;

/// Asks the broker for a lane, if the time has come.
pub fn nominate(conn: Conn, fd: i32) {
    let block = conn.block;
    if clock::ticks() < block.retry_at.load(Ordering::Relaxed) {
        return;
    }
    if let Some(mut session) = crate::session::try_lock() {
        nominate_in(&mut session, conn, fd);
    }
}

/// For how long nobody will ask for a lane for this connection, nanoseconds.
pub fn not_within(block: &Block) -> u64 {
    match block.life.phase() {
        Phase::Stays | Phase::Given => u64::MAX,
        // With hope for its first byte it is asked for without regard to the time.
        Phase::Watched if !eager::is_possible(block) => {
            clock::to_ns(block.retry_at.load(Ordering::Relaxed).saturating_sub(clock::ticks()))
        }
        _ => 0,
    }
}

/// Nominates the connection, under the session's lock.
pub(crate) fn nominate_in(session: &mut Session, conn: Conn, fd: i32) {
    let block = conn.block;
    if !block.life.is(Phase::Watched) {
        return;
    }
    if process::knobs().active.load(Ordering::Relaxed) == 0 {
        return postpone(block, Reason::Inactive);
    }
    if !holders::alone(block) {
        return postpone(block, Reason::Shared);
    }
    let Some(conn) = holders::made_ours(conn, fd) else { return postpone(block, Reason::Memory) };
    let block = conn.block;
    if session.ready().is_none() {
        block.retry_at.store(session.ready_at(), Ordering::Relaxed);
        return state::note(block, session.absence());
    }
    // The broker's welcome has what waits for it nominated (`eager::catch_up`): this one, too.
    if !block.life.is(Phase::Watched) {
        return;
    }
    let stays = |reason| {
        block.life.on(Event::Bar);
        state::note(block, reason);
    };
    if let Some(reason) = rings::in_use().then_some(Reason::IoUring).or_else(|| sets::bars(fd)) {
        return stays(reason);
    }
    // Its reader would take what TCP shows then for the stream's end.
    if block.life.has_ended_reading() {
        return stays(Reason::ReadingShut);
    }
    // A peer that waits for the lane (`--eager`) hears of it by way of the match.
    let barred = options::barred(block, fd);
    if let Some(reason) = barred.filter(|_| !eager::is_possible(block)) {
        return stays(reason);
    }
    // Before the first byte nothing is known yet: `matched` asks.
    if !eager::is_possible(block) && !seen::is_seen(conn, fd) {
        seen::put_off(block);
        return state::note(block, Reason::WaitsUnseen);
    }
    let Some(id) = id_of(block) else { return postpone(block, Reason::Shared) };
    let began = clock::ticks();
    match proved(block, fd) {
        Proof::Equal => {}
        Proof::Moving => return ask_seldom(block, began),
        // connect() that does not wait: nominated when it has succeeded.
        Proof::Connecting if eager::is_possible(block) => return,
        Proof::Connecting | Proof::NotEstablished => return postpone(block, Reason::NotEstablished),
        // Asked again later: should the counts ever be equal, that is the proof.
        Proof::Bypassed => return postpone(block, Reason::BypassedHooks),
        Proof::Refused => return postpone(block, Reason::Confined),
    }
    // It is established: before, it has no peer's port yet.
    if enabled::bars(fd) {
        return stays(Reason::PortOff);
    }
    let message = ToBroker::Nominate {
        conn: id,
        role: if state::opener(block) { Role::Client } else { Role::Server },
        tx: block.tx.tcp_bytes.load(Ordering::Relaxed),
        rx: block.rx.tcp_bytes.load(Ordering::Relaxed),
        answer: true,
    };
    describe(block, fd);
    // Before the first copy on a lane.
    user::arm();
    block.life.lend();
    if session.offer(&message, &[borrowed(fd)]) {
        eager::nominated(session, block, fd);
        block.fd.store(fd as u32, Ordering::Relaxed);
        block.life.on(Event::Nominate);
        state::note(block, Reason::AwaitingPeer);
        barred.map(stays);
    } else {
        // The broker is far behind.
        ask_seldom(block, began);
    }
}

/// It could not be told now, which took since `began`: the next call that moves bytes might ask in vain, too.
fn ask_seldom(block: &Block, began: u64) {
    let now = clock::ticks();
    let took = now.saturating_sub(began).min(clock::from_us(ASKING_US));
    block.retry_at.store(now + SELDOM * took, Ordering::Relaxed);
}

/// Writes down addresses for the tools, the socket's cookie, and whether it blocks.
fn describe(block: &Block, fd: i32) {
    block.cookie.store(sys::cookie(fd), Ordering::Relaxed);
    let socket = borrowed(fd);
    let local = rustix::net::getsockname(socket).ok().and_then(|any| SocketAddr::try_from(any).ok());
    let remote =
        rustix::net::getpeername(socket).ok().flatten().and_then(|any| SocketAddr::try_from(any).ok());
    if let (Some(local), Some(remote)) = (local, remote) {
        block.set_addresses(local, remote);
    }
    if let Ok(flags) = rustix::fs::fcntl_getfl(socket) {
        block.nonblock.store(u8::from(flags.contains(rustix::fs::OFlags::NONBLOCK)), Ordering::Relaxed);
    }
}

/// What the kernel's counts say of ours.
enum Proof {
    Equal,
    /// Somebody is in a call just now.
    Moving,
    /// connect() is under way.
    Connecting,
    NotEstablished,
    Bypassed,
    /// A filter of system calls keeps us from asking.
    Refused,
}

fn proved(block: &Block, fd: i32) -> Proof {
    let ours = || (block.tx.tcp_bytes.load(Ordering::Relaxed), block.rx.tcp_bytes.load(Ordering::Relaxed));
    let busy =
        || block.tx.inflight.load(Ordering::SeqCst) != 0 || block.rx.inflight.load(Ordering::SeqCst) != 0;
    let before = ours();
    let busy_before = busy();
    let counts = match sys::counts(fd, state::opener(block)) {
        Ok(counts) => counts,
        Err(Errno::AGAIN) => return Proof::Moving,
        Err(_) => return Proof::Refused,
    };
    if !counts.established {
        return if counts.connecting { Proof::Connecting } else { Proof::NotEstablished };
    }
    if (counts.sent, counts.received) == before {
        return Proof::Equal;
    }
    if busy_before || busy() || ours() != before { Proof::Moving } else { Proof::Bypassed }
}

/// Not now; perhaps later.
pub(super) fn postpone(block: &Block, reason: Reason) {
    state::note(block, reason);
    trace::fallback(block, block.fd.load(Ordering::Relaxed) as i32, false);
    let tries = block.attempts.fetch_add(1, Ordering::Relaxed);
    let passes = passes(reason);
    let most = passes.unwrap_or(TRIES);
    let pause = clock::from_us(BACKOFF_US << tries.min(most));
    block.retry_at.store(clock::ticks() + pause, Ordering::Relaxed);
    let is_last = tries >= TRIES && passes.is_none();
    block.life.on(if is_last { Event::GiveUp } else { Event::End });
}

/// How often the pause doubles, where the reason lies outside of the connection, so that it says nothing of the next try.
fn passes(reason: Reason) -> Option<u32> {
    use Reason::{
        BrokerGone, DmbLimit, Inactive, LinkLimit, MaxDmb, MemoryRefused, NoDescriptors, NominationLimit,
        Shared, WaitsUnseen,
    };
    match reason {
        // Where policy allows no more, that may be for good.
        NominationLimit => Some(2 * PASSING),
        BrokerGone | DmbLimit | Inactive | LinkLimit | MaxDmb | MemoryRefused | NoDescriptors | Shared
        | WaitsUnseen => Some(PASSING),
        _ => None,
    }
}

/// A connection was made: it is nominated now, or as soon as that is possible. `announced`: by `connecting`.
pub(crate) fn made(conn: Conn, fd: i32, announced: bool) {
    if announced {
        eager::note_announced(conn.block);
    }
    let mut session = session::lock();
    nominate_in(&mut session, conn, fd);
    if eager::is_possible(conn.block) && conn.block.life.is(Phase::Watched) {
        eager::put_off(&mut session, conn, fd);
    }
}

/// Nominates what could not be nominated earlier.
pub(crate) fn catch_up(session: &mut Session) {
    for index in 0..later::MOST {
        let Some((conn, fd)) = session.later.take(index) else { continue };
        if !conn.current() || table::conn(fd) != Some(conn) {
            continue;
        }
        nominate_in(session, conn, fd);
        if eager::is_possible(conn.block) && conn.block.life.is(Phase::Watched) {
            eager::put_off(session, conn, fd);
        }
    }
}
