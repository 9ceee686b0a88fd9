//! Connections go back to TCP as a tool asks: of a process that has a session at once, else those that a search finds, in turns.

use super::Server;
use super::connections::{LOOKS, SLICE};
use super::search::{nothing, pid_and_fd};
use crate::ends::{Party, SessionId};
use crate::listing::{Listing, Revocation, Search};
use crate::reply::{done, failure};
use crate::report::Failure;
use shunpike_wire::session::ConnId;
use std::collections::BTreeSet;

/// What has been done, or what there is to do yet.
pub(super) enum Begun {
    /// All; this is the answer.
    Done(String),
    /// This.
    Listing(Listing),
}

impl Server {
    /// Begins what `revoke` asks for: `PID` or `PID:FD`.
    pub(super) fn begin_revocation(&mut self, asker: SessionId, arg: &str) -> Result<Begun, Failure> {
        let (pid, fd) = pid_and_fd(arg)?;
        let is_shown = self.sessions.is_shown(asker);
        let is_shown = |id| is_shown(&self.sessions, id);
        let of_pid = self.sessions.iter().filter(|(_, session)| session.peer.pid == pid);
        let (mut own, mut others) = (Vec::new(), BTreeSet::new());
        for (id, session) in of_pid {
            match session.program() {
                Some(_) => own.push(*id),
                None if session.is_programs() && is_shown(*id) => drop(others.insert(*id)),
                None => {}
            }
        }
        if !others.is_empty() && fd.is_some() {
            let hint = "its library is of another version, which only the whole process can be told; use: revoke PID";
            return Err(failure("not this one connection", arg, hint));
        }
        if others.is_empty() && (fd.is_some() || own.is_empty()) {
            let is_known = |session| self.may_know_of(asker, session);
            let search = Search::new(self, pid, fd, is_shown, is_known);
            let revocation = Revocation { search, is_found: false, looked: 0, sessions: BTreeSet::new() };
            return Ok(Begun::Listing(Listing::Revocation(revocation)));
        }
        if others.is_empty() && !own.iter().all(|id| is_shown(*id)) {
            let is_hidden = own.into_iter().any(|id| self.may_know_of(asker, id));
            return self.found(asker, Err(nothing(&format!("PID {pid}"), is_hidden)));
        }
        if others.is_empty() {
            own.into_iter().for_each(|session| self.exchange.revoke(all_of(session)));
        } else {
            self.revoke_laneless(|id, _| others.contains(&id));
        }
        Ok(Begun::Done(asked(arg)))
    }

    /// Goes on for a turn. The answer, when it is over, and whether that is so.
    pub(super) fn revoke_more(
        &mut self,
        asker: SessionId,
        revocation: &mut Revocation,
    ) -> Result<(String, bool), Failure> {
        let is_shown = self.sessions.is_shown(asker);
        let is_shown = |session| is_shown(&self.sessions, session);
        let Revocation { search, is_found, looked, sessions } = revocation;
        if !*is_found {
            let is_known = |session| self.may_know_of(asker, session);
            *is_found = search.go_on(self, self.share(LOOKS), is_shown, is_known)?;
            return Ok((String::new(), false));
        }
        let slice = self.share(SLICE);
        let found = search.found.iter().skip(*looked).take(slice);
        let parties: Vec<Party> =
            found.filter_map(|place| Some(search.at(self, *place, is_shown)?.party)).collect();
        for party in parties {
            if search.fd.is_some() {
                self.exchange.revoke(party);
            } else if sessions.insert(party.session) {
                self.exchange.revoke(all_of(party.session));
            }
        }
        *looked += slice;
        let is_over = *looked >= search.found.len();
        Ok((if is_over { asked(&search.arg()) } else { String::new() }, is_over))
    }
}

fn all_of(session: SessionId) -> Party {
    Party { session, conn: ConnId(0) }
}

fn asked(whom: &str) -> String {
    done(&format!("asked {whom} to go back to TCP"))
}
