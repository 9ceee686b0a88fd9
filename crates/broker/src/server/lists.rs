//! Answers that are made as they are read, a piece in a turn: the asker's room in its socket, and its user's share of the broker's time,
//! say how fast.

use super::Server;
use super::revocation::Begun;
use super::search::pid_and_fd;
use crate::client::what;
use crate::ends::SessionId;
use crate::listing::{Connections, Events, Explanations, LinkGroups, Listing, Search};
use crate::reply::{failure, json};
use crate::report;
use crate::session::{Kind, Sent};

/// Link groups, or events, of one piece, where no program says anything.
const SLICE: usize = 64;

/// A piece, a JSON text, behind what was there before; and whether it is the last.
type Piece = Result<(String, bool), report::Failure>;

impl Server {
    /// Begins the list that was asked for, or has the whole answer at once. Errors: what is wrong with the question.
    pub(super) fn begin_listing(
        &mut self,
        id: SessionId,
        what: u16,
        arg: &str,
    ) -> Result<Option<String>, report::Failure> {
        if what == what::REVOKE {
            return match self.begin_revocation(id, arg)? {
                Begun::Done(text) => Ok(Some(text)),
                Begun::Listing(listing) => Ok(self.go_on_with(id, listing)),
            };
        }
        let is_shown = self.sessions.is_shown(id);
        let is_shown = |session| is_shown(&self.sessions, session);
        let listing = match what {
            what::SS => Listing::Connections(Connections::new(self, is_shown)),
            what::EXPLAIN => {
                let (pid, fd) = pid_and_fd(arg)?;
                let other_versions = self.sessions.other_versions(|id, its| its == pid && is_shown(id));
                if !other_versions.is_empty() {
                    let explanations = Vec::new();
                    return Ok(Some(json(&report::Explanations { explanations, other_versions })));
                }
                let is_known = |session| self.may_know_of(id, session);
                Listing::Explanations(Explanations::new(Search::new(self, pid, fd, is_shown, is_known)))
            }
            what::LINKGROUP => Listing::LinkGroups(LinkGroups::new(self, is_shown)),
            _ => Listing::Events(self.begin_events(id, arg)?),
        };
        Ok(self.go_on_with(id, listing))
    }

    /// Has a list made as it is read: there is no answer yet.
    fn go_on_with(&mut self, id: SessionId, listing: Listing) -> Option<String> {
        if let Some(session) = self.sessions.get_mut(&id) {
            session.kind = Kind::Listing(listing);
            session.awaits_room = true;
            self.listen_to(id);
        }
        None
    }

    /// `SINCE LATELY`: the number of the last event that is known, and how many at most.
    fn begin_events(&self, asker: SessionId, arg: &str) -> Result<Events, report::Failure> {
        let wrong = || failure("not a number of an event", arg, "use: SINCE LATELY");
        let (since, lately) = arg.split_once(' ').ok_or_else(wrong)?;
        let since: u64 = since.parse().map_err(|_| wrong())?;
        let lately: usize = lately.parse().map_err(|_| wrong())?;
        let (of, sees) = self.sessions.sees_ends(asker);
        Ok(self.journal.begin(of, since, lately, sees))
    }

    /// There is room for more of a list: the next piece is made then, and no earlier.
    pub(super) fn list_more(&mut self, id: SessionId) -> Sent {
        let Some(session) = self.sessions.get_mut(&id) else { return Sent::Over };
        let Kind::Listing(mut listing) = std::mem::replace(&mut session.kind, Kind::Tool) else {
            return Sent::All;
        };
        let piece = self.next_piece(id, &mut listing);
        let Some(session) = self.sessions.get_mut(&id) else { return Sent::Over };
        match piece {
            Ok((text, is_last)) => {
                session.kind = Kind::Listing(listing);
                session.add(&text, is_last)
            }
            Err(failure) => session.answer(&json(&report::Answer { error: Some(failure) })),
        }
    }

    fn next_piece(&mut self, id: SessionId, listing: &mut Listing) -> Piece {
        let is_shown = self.sessions.is_shown(id);
        let is_shown = |session| is_shown(&self.sessions, session);
        match listing {
            Listing::Connections(list) => Ok(list.next(self, is_shown)),
            Listing::Explanations(list) => {
                let piece = list.next(self, is_shown, |session| self.may_know_of(id, session));
                self.found(id, piece)
            }
            Listing::LinkGroups(list) => Ok(list.next(self, is_shown)),
            Listing::Events(list) => {
                let (of, sees) = self.sessions.sees_ends(id);
                Ok(self.journal.next(list, of, self.share(SLICE), sees, self.life()))
            }
            Listing::Revocation(revocation) => {
                let piece = self.revoke_more(id, revocation);
                self.found(id, piece)
            }
        }
    }
}

impl LinkGroups {
    fn new(server: &Server, is_shown: impl Fn(SessionId) -> bool) -> Self {
        let shown = server.sessions.programs().map(|(id, ..)| id).filter(|id| is_shown(*id));
        let mut sessions: Vec<SessionId> = shown.collect();
        sessions.sort_unstable();
        Self { sessions: sessions.into(), ..Self::default() }
    }

    /// The next piece of the answer, a JSON text of [`report::LinkGroups`], and whether it is the last.
    fn next(&mut self, server: &Server, is_shown: impl Fn(SessionId) -> bool) -> (String, bool) {
        let links = &server.exchange.links;
        let (mut text, mut looked, slice) = (String::new(), 0, server.share(SLICE));
        while let Some(&session) = self.sessions.front() {
            for view in links.of(session, self.last) {
                if looked == slice {
                    return (text, false);
                }
                looked += 1;
                self.last = view.id.0;
                // A group of two that are shown is told of with its client's.
                if session == view.client || !is_shown(view.client) {
                    let is_first = !std::mem::replace(&mut self.began, true);
                    text.push_str(if is_first { "{\"link_groups\":[" } else { "," });
                    text.push_str(&json(&server.link_group(view, &is_shown)));
                }
            }
            // A session costs a look, whatever it has.
            looked = (looked + 1).min(slice);
            self.sessions.pop_front();
            self.last = 0;
            if looked == slice {
                return (text, false);
            }
        }
        text.push_str(if self.began { "]}" } else { "{\"link_groups\":[]}" });
        (text, true)
    }
}
