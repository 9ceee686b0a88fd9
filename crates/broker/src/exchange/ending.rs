//! Sessions that have ended. What they held may be tens of thousands of connections, so it is let go in turns.
//!
//! Such a session is no member any more: it waits for nobody, nobody is matched with it, and a peer gets no memory for a lane with it.
//! What is not let go yet counts for its user.

use super::{Exchange, Member};
use crate::ends::{Party, SessionId};
use crate::links::LinkId;
use shunpike_wire::session::FromBroker;
use std::collections::VecDeque;

struct Ended {
    session: SessionId,
    user: u32,
    /// Connections that were known of it.
    known: usize,
}

/// All of them, by whose turn it is.
#[derive(Default)]
pub struct Ending(VecDeque<Ended>);

impl Ending {
    /// Whether something of this session is left.
    pub(super) fn holds(&self, session: SessionId) -> bool {
        self.0.iter().any(|ended| ended.session == session)
    }
}

impl Exchange {
    /// A session has ended. [`Self::let_go`] does the larger part.
    pub fn end_session(&mut self, session: SessionId) {
        self.matching.end_session(session);
        self.expectations.end_session(session);
        self.unanswered.retain(|party| party.session != session);
        self.posts.retain(|post| post.to != session);
        if let Some(Member { identity, blocks, .. }) = self.members.remove(&session) {
            self.ending.0.push_back(Ended { session, user: identity.uid, known: blocks.len() });
        }
    }

    /// Whether [`Self::let_go`] has something to do.
    pub fn is_ending(&self) -> bool {
        !self.ending.0.is_empty()
    }

    /// Lets go of what sessions held that have ended, and tells their peers: of so many things, more or less. Returns the users of
    /// whose sessions nothing is left now.
    pub fn let_go(&mut self, most: usize) -> Vec<u32> {
        let (mut left, mut over) = (most, Vec::new());
        while let Some(session) = self.ending.0.front().map(|ended| ended.session) {
            left = left.saturating_sub(self.let_go_of(session, left));
            if left == 0 {
                break;
            }
            if let Some(Ended { user, known, .. }) = self.ending.0.pop_front() {
                self.forget_known(user, known);
                over.push(user);
            }
        }
        // Whoever has more does not stand before the others.
        if let Some(first) = self.ending.0.pop_front() {
            self.ending.0.push_back(first);
        }
        over
    }

    /// Returns how many things those were; if fewer than `most`, they were all.
    fn let_go_of(&mut self, session: SessionId, most: usize) -> usize {
        let ends = self.ends.range(Party::all_of(session)).map(|(party, _)| *party);
        let ends: Vec<Party> = ends.take(most).collect();
        ends.iter().for_each(|party| self.part(*party));
        let mut done = ends.len();
        while done < most && self.drop_one_parked_of(session) {
            done += 1;
        }
        done += self.device.end_session(session, most - done);
        while done < most
            && let Some(told) = self.links.end_one_of(session)
        {
            done += 1;
            if let Some((LinkId(link), to)) = told {
                self.post_to_member(to, FromBroker::LinkGone { link });
            }
        }
        done
    }

    /// So many connections of a user's are known no more.
    fn forget_known(&mut self, user: u32, count: usize) {
        if let Some(known) = self.known.get_mut(&user) {
            *known = known.saturating_sub(count);
            if *known == 0 {
                self.known.remove(&user);
            }
        }
    }
}
