//! What a helper does: it takes messages that have descriptors, asks of these what the broker wants to know, and closes them.

use crate::channel::{self, Packet};
use crate::facts::{self, Counts, Proof};
use crate::foreign::{is_arena, is_doorbell, is_memory, put_in_flight};
use crate::runtime::Status;
use crate::sequence::SequenceReader;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use shunpike_shm::arena::{ArenaView, Block, Half};
use shunpike_wire::Reason;
use shunpike_wire::session::{ConnId, MAX, Role};
use std::sync::atomic::Ordering;

/// What a helper is asked to do.
#[derive(Copy, Clone, Debug)]
pub enum Request {
    /// With a session's socket: take its next message, a greeting, and return its arena, and its doorbells in flight.
    Greeting {
        /// How many these are.
        doorbells: usize,
        /// The process that says it, by its number here.
        pid: u32,
    },
    /// With a session's socket: take its next message, and return the one sealed memory of this size that lies beside it.
    Memory(usize),
    /// With a session's socket and its arena: take its next message, a nomination, and look at its socket.
    Nomination {
        /// The connection.
        conn: ConnId,
        /// Its role.
        role: Role,
        /// What the nomination says.
        claimed: Counts,
    },
    /// With a session's socket: take its next message, and close what lies beside it.
    Discard,
    /// Close what comes with this, once the next request says so: the broker has let go of it by then, and is not the last.
    Close,
    /// Nothing else.
    Go,
    /// Give the memory that comes with this back to the system, so many bytes.
    Empty(u64),
}

/// What came of it.
#[derive(Copy, Clone, Debug)]
pub enum Reply {
    /// It is done; what was asked for lies beside.
    Done,
    /// There was something else.
    Wrong,
    /// What there is to say of a nominated socket.
    Proof(Proof),
    /// What there is to say of a process that greets; what was asked for lies beside.
    Greeted(Status),
}

// SAFETY: numbers and enums of numbers.
unsafe impl Packet for Request {}
// SAFETY: as above; addresses are numbers.
unsafe impl Packet for Reply {}

/// Works until the broker is gone.
pub fn work(broker: &OwnedFd, sequences: Option<&SequenceReader>) {
    while let Ok(Some((request, fds))) = channel::receive::<Request>(broker.as_fd()) {
        if let Request::Close = request
            && !matches!(channel::receive::<Request>(broker.as_fd()), Ok(Some(_)))
        {
            break;
        }
        let (reply, fds) = perform(request, fds, sequences);
        let beside: Vec<BorrowedFd<'_>> = fds.iter().map(AsFd::as_fd).collect();
        if channel::send(broker.as_fd(), &reply, &beside).is_err() {
            break;
        }
    }
}

fn perform(request: Request, fds: Vec<OwnedFd>, sequences: Option<&SequenceReader>) -> (Reply, Vec<OwnedFd>) {
    let taken = || fds.first().map_or_else(Vec::new, |session| take(session.as_fd()));
    match request {
        Request::Close | Request::Go => (Reply::Done, Vec::new()),
        Request::Empty(len) => {
            let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
            for memory in &fds {
                // Failure leaves it to those who have it mapped.
                let _ = rustix::fs::fallocate(memory, flags, 0, len);
            }
            (Reply::Done, Vec::new())
        }
        Request::Discard => {
            drop(taken());
            (Reply::Done, Vec::new())
        }
        Request::Greeting { doorbells, pid } => {
            let greeting = taken();
            let is_whole = greeting.len() == 1 + doorbells
                && greeting.iter().take(1).all(|arena| is_arena(arena.as_fd()))
                && greeting.iter().skip(1).all(|bell| is_doorbell(bell.as_fd()));
            let mut fds = greeting.into_iter();
            match fds.next().filter(|_| is_whole).map(|arena| (arena, put_in_flight(fds.as_slice()))) {
                Some((arena, Ok(bells))) => (Reply::Greeted(Status::of(pid)), vec![arena, bells]),
                _ => (Reply::Wrong, Vec::new()),
            }
        }
        Request::Memory(len) => match <[OwnedFd; 1]>::try_from(taken()) {
            Ok([memory]) if is_memory(memory.as_fd(), len) => (Reply::Done, vec![memory]),
            _ => (Reply::Wrong, Vec::new()),
        },
        Request::Nomination { conn, role, claimed } => {
            // Closed before the answer goes: until then a program's own close would not be the connection's end.
            let proof = match <[OwnedFd; 1]>::try_from(taken()) {
                Ok([socket]) => {
                    let arena = fds.into_iter().nth(1).and_then(|fd| ArenaView::of(fd).ok());
                    prove(socket.as_fd(), conn, role, claimed, arena.as_ref(), sequences)
                }
                Err(_) => Proof::Refused(Reason::NoDescriptors),
            };
            (Reply::Proof(proof), Vec::new())
        }
    }
}

/// The descriptors beside the next message of a session. The broker has looked at its bytes, and decided by them.
fn take(session: BorrowedFd<'_>) -> Vec<OwnedFd> {
    // A client that goes with messages unread leaves an error, which is told of once and before the message.
    let taken = (0..2).find_map(|_| channel::take(session, &mut [0; MAX]).ok());
    taken.map_or_else(Vec::new, |(_, fds)| fds)
}

fn prove(
    socket: BorrowedFd<'_>,
    conn: ConnId,
    role: Role,
    claimed: Counts,
    arena: Option<&ArenaView>,
    sequences: Option<&SequenceReader>,
) -> Proof {
    let latest = || {
        let block = block_of(arena?, conn)?;
        let bytes = |half: &Half| half.tcp_bytes.load(Ordering::Acquire);
        Some(Counts { tx: bytes(&block.tx), rx: bytes(&block.rx) })
    };
    let mut proof = facts::prove(socket, role, claimed, latest);
    if let (Proof::Proved(facts), Some(reader)) = (&mut proof, sequences) {
        facts.sequences = reader.read(socket, role, facts);
    }
    proof
}

/// The block that a connection id names, while it is that connection's.
fn block_of(arena: &ArenaView, conn: ConnId) -> Option<Block> {
    let block = arena.block(conn.index())?;
    (block.name.load(Ordering::Acquire) == conn.name()).then_some(block)
}
