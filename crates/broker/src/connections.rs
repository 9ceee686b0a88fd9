//! The watched connections of all programs, as their arenas show them.

use crate::ism::{Cursors, Party, SessionId};
use crate::query::failure;
use crate::report::{Connection, Failure, ReasonText};
use crate::server::Server;
use crate::session::{Program, Session};
use crate::stats::{ArenaKey, direction};
use shunpike_shm::arena::{Block, Half, mode};
use shunpike_wire::session::ConnId;
use shunpike_wire::{DmbToken, Reason, cdc};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// A connection and who it is in the broker's tables.
pub struct Found {
    /// Its end.
    pub party: Party,
    /// As shown.
    pub connection: Connection,
}

/// All connections, by process and descriptor.
pub fn all(server: &Server) -> Vec<Found> {
    find(server, |_, _| true)
}

/// The connections of a process, or the one of a descriptor of it. Errors: there is none.
pub fn of(server: &Server, pid: u32, fd: Option<u32>) -> Result<Vec<Found>, Failure> {
    let found = find(server, |its_pid, its_fd| its_pid == pid && fd.is_none_or(|fd| fd == its_fd));
    if found.is_empty() {
        let on = fd.map_or_else(|| format!("PID {pid}"), |fd| format!("PID {pid}, descriptor {fd}"));
        let hint = "was it started by 'shunpike run', and does it have TCP connections? See 'shunpike ss'";
        return Err(failure("no watched connection", &on, hint));
    }
    Ok(found)
}

fn find(server: &Server, wanted: impl Fn(u32, u32) -> bool) -> Vec<Found> {
    let mut arenas: HashMap<ArenaKey, Vec<(SessionId, &Session, &Program)>> = HashMap::new();
    for entry in server.programs() {
        arenas.entry(entry.2.key).or_default().push(entry);
    }
    let mut all = Vec::new();
    for mut tree in arenas.into_values() {
        tree.sort_by_key(|(id, ..)| *id);
        let Some((_, _, program)) = tree.first() else { continue };
        for (index, block) in program.arena.blocks().enumerate() {
            if !block.is_held() {
                continue;
            }
            let conn = ConnId::new(index as u32, block.name.load(Ordering::Acquire));
            let Some(found) = show(server, &tree, conn, block) else { continue };
            if wanted(found.connection.pid, found.connection.fd) {
                all.push(found);
            }
        }
    }
    all.sort_by_key(|found| (found.connection.pid, found.connection.fd));
    all
}

/// `tree` are the sessions that share the block's arena.
fn show(
    server: &Server,
    tree: &[(SessionId, &Session, &Program)],
    conn: ConnId,
    block: &Block,
) -> Option<Found> {
    let exchange = &server.exchange;
    let watcher = block.pid.load(Ordering::Relaxed);
    let known = |id: SessionId| exchange.knows(Party { session: id, conn });
    // A child of the arena's maker may be the one that speaks for the connection.
    let (id, session, program) = tree
        .iter()
        .find(|(id, ..)| known(*id))
        .or_else(|| tree.iter().find(|(_, session, _)| session.peer.pid == watcher))
        .or(tree.first())?;
    let party = Party { session: *id, conn };
    let in_maker = watcher == program.arena.header().pid.load(Ordering::Relaxed);
    let own = match block.reason.load(Ordering::Relaxed) {
        0 if exchange.is_waiting(party) => Reason::AwaitingPeer.code(),
        0 => Reason::NotNominated.code(),
        code => code,
    };
    let peer = block.peer_reason.load(Ordering::Relaxed);
    let on_lane = [&block.tx, &block.rx].iter().any(|half| half.mode.load(Ordering::Relaxed) == mode::LANE);
    let seat = exchange.seat(party);
    let (local, remote) = block.addresses();
    let (mut tx, mut rx) = (direction(&block.tx), direction(&block.rx));
    // Programs keep copies of their own; the DMB has the truth of both sides.
    let cursors = |half: &Half| match half.mode.load(Ordering::Relaxed) {
        mode::LANE => exchange.device.cursors(DmbToken(half.token.load(Ordering::Relaxed))),
        _ => None,
    };
    if let Some(seen) = cursors(&block.tx) {
        (tx.own_cursor, tx.peer_cursor, tx.window) = (seen.produced, seen.consumed, seen.window);
        (tx.prod_flags, tx.state_flags) = cdc_flags(seen);
    }
    if let Some(seen) = cursors(&block.rx) {
        (rx.own_cursor, rx.peer_cursor, rx.window) = (seen.consumed, seen.produced, seen.window);
        (rx.prod_flags, rx.state_flags) = cdc_flags(seen);
    }
    let connection = Connection {
        state: "ACTIVE".to_owned(),
        uid: session.peer.uid(),
        pid: if in_maker || watcher == 0 { session.peer.pid } else { watcher },
        comm: program.comm.clone(),
        fd: block.fd.load(Ordering::Relaxed),
        cookie: block.cookie.load(Ordering::Relaxed),
        role: if block.role.load(Ordering::Relaxed) == 0 { "client" } else { "server" }.to_owned(),
        local: local.to_string(),
        remote: remote.to_string(),
        mode: match (on_lane, peer) {
            (true, _) => "SMCD".to_owned(),
            (false, 0) => format!("TCP 0x{own:08x}"),
            (false, peer) => format!("TCP 0x{own:08x}/0x{peer:08x}"),
        },
        reason: (!on_lane).then(|| reason_text(own)),
        peer_reason: (!on_lane && peer != 0).then(|| reason_text(peer)),
        tx,
        rx,
        gid: on_lane.then(|| exchange.device.local_gid().to_string()),
        link: seat.map(|seat| seat.link.0),
        slot: seat.map(|seat| seat.slot),
    };
    Some(Found { party, connection })
}

/// What the sender would say in a CDC message: producer flags, state flags.
fn cdc_flags(seen: Cursors) -> (u8, u8) {
    let prod = if seen.blocked { cdc::WRITE_BLOCKED | cdc::CONS_UPDATE_REQUESTED } else { 0 };
    (prod, if seen.ended { cdc::DONE_WRITING } else { 0 })
}

fn reason_text(code: u32) -> ReasonText {
    let (key, text) = match Reason::from_code(code) {
        Some(reason) => (reason.key(), reason.text()),
        None => ("unknown", "a reason that this version does not know"),
    };
    ReasonText { code, key: key.to_owned(), text: text.to_owned() }
}
