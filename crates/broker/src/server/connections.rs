//! The watched connections of all programs, as their arenas show them.

use super::Server;
use crate::delays;
use crate::ends::{Party, SessionId};
use crate::ism::Cursors;
use crate::listing::Connections;
use crate::reply::json;
use crate::report::{Connection, ReasonText};
use crate::runtime::OwnPid;
use crate::session::{Program, Session};
use crate::stats::{ArenaKey, direction};
use shunpike_shm::arena::{Block, Half, mode};
use shunpike_wire::session::ConnId;
use shunpike_wire::{DmbToken, Reason, cdc};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

/// A connection and who it is in the broker's tables.
pub struct Found {
    /// Its end.
    pub party: Party,
    /// As shown.
    pub connection: Connection,
}

/// Connections that are looked at before others have their turn, where no program says anything.
pub(super) const SLICE: usize = 32;
/// Blocks, in use or not, that are looked at before others have their turn.
pub(super) const LOOKS: usize = 512;

/// The sessions that share an arena, in order.
pub(super) type Tree<'a> = Vec<(SessionId, &'a Session, &'a Program)>;

/// All of them, by arena.
pub(super) fn trees(server: &Server) -> HashMap<ArenaKey, Tree<'_>> {
    let mut trees: HashMap<ArenaKey, Tree<'_>> = HashMap::new();
    for entry in server.sessions.programs() {
        trees.entry(entry.2.key).or_default().push(entry);
    }
    trees.values_mut().for_each(|tree| tree.sort_by_key(|(id, ..)| *id));
    trees
}

/// The sessions that share this arena.
pub(super) fn tree(server: &Server, key: ArenaKey) -> Tree<'_> {
    let mut tree: Tree<'_> =
        server.sessions.programs().filter(|(_, _, program)| program.key == key).collect();
    tree.sort_by_key(|(id, ..)| *id);
    tree
}

impl Connections {
    /// All connections of sessions that `is_shown`.
    pub fn new(server: &Server, is_shown: impl Fn(SessionId) -> bool) -> Self {
        let trees = trees(server);
        let shown = trees.values().filter(|tree| tree.iter().any(|(id, ..)| is_shown(*id)));
        let mut firsts: Vec<_> =
            shown.filter_map(|tree| tree.first()).map(|(id, s, _)| (s.peer.pid, *id)).collect();
        firsts.sort_unstable();
        Self { arenas: firsts.into_iter().map(|(_, id)| id).collect(), ..Self::default() }
    }

    /// The next piece of the answer, a JSON text of [`crate::report::Connections`], and whether it is the last.
    pub fn next(&mut self, server: &Server, is_shown: impl Fn(SessionId) -> bool) -> (String, bool) {
        let mut text = String::new();
        let (mut looked, slice, looks) = (0, server.share(SLICE), server.share(LOOKS));
        while let Some(&first) = self.arenas.front() {
            let key = server.sessions.get(&first).and_then(Session::program).map(|program| program.key);
            let tree = key.map_or_else(Vec::new, |key| tree(server, key));
            let Some((_, _, program)) = tree.first() else {
                self.go_to_next();
                continue;
            };
            let user = tree.first().map_or(u32::MAX, |(_, session, _)| session.peer.uid());
            let _watch = delays::look(user);
            let maker = program.arena.header().pid.load(Ordering::Relaxed);
            let (from, mut left, mut is_cut_off) = (self.block, looks, false);
            for (index, block) in program.arena.held(from, &mut left) {
                if looked == slice {
                    return (text, false);
                }
                looked += 1;
                self.block = index + 1;
                let conn = ConnId::new(index, block.name.load(Ordering::Acquire));
                let found =
                    show(server, &tree, maker, conn, &block).filter(|found| is_shown(found.party.session));
                if let Some(found) = found {
                    let is_first = self.listed.is_empty();
                    if !self.enter(user) {
                        is_cut_off = true;
                        break;
                    }
                    text.push_str(if is_first { "{\"connections\":[" } else { "," });
                    text.push_str(&json(&found.connection));
                }
            }
            if left == 0 && !is_cut_off {
                // There may be more behind those.
                self.block = from + looks as u32;
                return (text, false);
            }
            // An arena costs a look, whatever is in it.
            looked = (looked + 1).min(slice);
            self.go_to_next();
            if looked == slice {
                return (text, false);
            }
        }
        text.push_str(if self.listed.is_empty() { "{\"connections\":[]" } else { "]" });
        if !self.cut_off.is_empty() {
            text.push_str(",\"cut_off\":");
            text.push_str(&json(&self.cut_off));
        }
        let others = server.sessions.other_versions(|id, _| is_shown(id));
        if !others.is_empty() {
            text.push_str(",\"other_versions\":");
            text.push_str(&json(&others));
        }
        text.push('}');
        (text, true)
    }

    fn go_to_next(&mut self) {
        self.arenas.pop_front();
        self.block = 0;
    }
}

/// The number of the process that `watcher` names in the pid namespace of the session's program, as we see it; 0: we do not.
fn number_here(session: &Session, program: &Program, watcher: u32) -> u32 {
    match program.own_pid {
        own if own.is(watcher, session.peer.pid) => session.peer.pid,
        OwnPid::Ours => watcher,
        _ => 0,
    }
}

/// `tree` are the sessions that share the block's arena, which process `maker` made.
pub(super) fn show(
    server: &Server,
    tree: &Tree<'_>,
    maker: u32,
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
        .or_else(|| tree.iter().find(|(_, session, program)| program.own_pid.is(watcher, session.peer.pid)))
        .or(tree.first())?;
    let party = Party { session: *id, conn };
    let in_maker = watcher == maker;
    let own = match block.reason.load(Ordering::Relaxed) {
        0 if exchange.is_waiting(party) => Reason::AwaitingPeer.code(),
        0 => Reason::NotNominated.code(),
        code => code,
    };
    let peer = block.peer_reason.load(Ordering::Relaxed);
    let on_lane = block.halves().iter().any(|half| half.mode.load(Ordering::Relaxed) == mode::LANE);
    let seat = exchange.seat(party);
    let cookie = block.cookie.load(Ordering::Relaxed);
    // A program writes both down when it asks for a lane. Until then the block has the addresses of an earlier connection.
    let [local, remote] = match cookie {
        0 => Default::default(),
        _ => <[SocketAddr; 2]>::from(block.addresses()).map(|address| address.to_string()),
    };
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
        pid: if in_maker || watcher == 0 { session.peer.pid } else { number_here(session, program, watcher) },
        comm: program.comm.clone(),
        fd: block.fd.load(Ordering::Relaxed),
        cookie,
        role: if block.role.load(Ordering::Relaxed) == 0 { "client" } else { "server" }.to_owned(),
        local,
        remote,
        mode: match (on_lane, peer) {
            (true, _) => "SMCD".to_owned(),
            (false, 0) => format!("TCP 0x{own:08x}"),
            (false, peer) => format!("TCP 0x{own:08x}/0x{peer:08x}"),
        },
        reason: (!on_lane).then(|| ReasonText::of_code(own)),
        peer_reason: (!on_lane && peer != 0).then(|| ReasonText::of_code(peer)),
        tx,
        rx,
        entry: None,
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
