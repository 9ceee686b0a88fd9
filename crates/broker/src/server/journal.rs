//! What the journal is told of the sessions, and what it tells.

use super::sessions::Sessions;
use crate::ends::{Party, SessionId};
use crate::exchange::Exchange;
use crate::journal::{End, Ends, Journal, Whose};
use crate::report::EventEnd;
use crate::session::Session;
use shunpike_wire::Reason;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

impl Ends for HashMap<SessionId, Session> {
    fn describe(&self, party: Party) -> Option<End> {
        let session = self.get(&party.session)?;
        let program = session.program()?;
        let block = program.arena.block(party.conn.index())?;
        let (local, remote): (SocketAddr, SocketAddr) = block.addresses();
        let is_client = block.role.load(Ordering::Relaxed) == 0;
        let shown = EventEnd {
            role: if is_client { "client" } else { "server" }.to_owned(),
            pid: session.peer.pid,
            uid: session.peer.uid(),
            comm: program.comm.clone(),
            local: local.to_string(),
            remote: remote.to_string(),
        };
        let whose = Whose { user: session.peer.identity.user(), netns: session.peer.netns };
        Some(End { whose, shown })
    }

    /// The arena says so until the block is another connection's, and of one that is open it has no reason.
    fn reason_of_leaving(&self, party: Party) -> Option<u32> {
        let program = self.get(&party.session)?.program()?;
        let block = program.arena.block(party.conn.index())?;
        let name = block.name.load(Ordering::Acquire);
        // It takes another name when it leaves.
        let is_it = name == party.conn.name() || name == party.conn.name().wrapping_add(1);
        let code = block.reason.load(Ordering::Relaxed);
        let says_nothing = [0, Reason::NotNominated.code(), Reason::AwaitingPeer.code()].contains(&code);
        (is_it && !says_nothing).then_some(code)
    }
}

/// Notes what the exchange has decided. Before anything of the sessions that it tells of is gone.
pub(super) fn note_news(journal: &mut Journal, exchange: &mut Exchange, sessions: &Sessions) {
    for news in std::mem::take(&mut exchange.news) {
        journal.take(news, &**sessions);
    }
}

/// Whether the journal keeps matches that there are, and no others. Errors: which.
pub(super) fn audit(journal: &Journal, exchange: &Exchange) -> Result<(), String> {
    let kept: Vec<&Party> = journal.matched().collect();
    let matched: Vec<&Party> = exchange.matched().collect();
    if kept == matched && exchange.news.is_empty() {
        return Ok(());
    }
    Err(format!("the journal has matches of {kept:?}, the exchange of {matched:?}, news {:?}", exchange.news))
}
