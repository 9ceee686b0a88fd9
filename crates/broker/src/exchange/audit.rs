//! Whether the tables agree with one another. For tests, which ask after each step.

use super::{End, Exchange};
use crate::ends::{Party, SessionId};
use crate::links::Seat;
use std::collections::HashSet;

impl Exchange {
    /// The sessions, in order.
    pub fn members(&self) -> Vec<SessionId> {
        let mut members: Vec<SessionId> = self.members.keys().copied().collect();
        members.sort();
        members
    }

    /// The matched ends, in order.
    pub fn matched(&self) -> impl Iterator<Item = &Party> {
        self.ends.keys()
    }

    /// Errors: which tables do not agree, in words.
    pub fn audit(&self) -> Result<(), String> {
        self.audit_sessions()?;
        self.audit_matches()?;
        self.audit_room()
    }

    /// Nothing is kept of a session that never was, and of one that has ended only what is being let go.
    fn audit_sessions(&self) -> Result<(), String> {
        let named = self.matching.parties().map(|party| party.session);
        let named = named.chain(self.unanswered.iter().map(|party| party.session));
        let named = named.chain(self.expectations.sessions());
        let named = named.chain(self.posts.iter().map(|post| post.to));
        let held = self.ends.keys().map(|party| party.session);
        let held = held.chain(self.links.all().flat_map(|link| [link.client, link.server]));
        let held = held.chain(self.parking.sessions());
        let named = named.chain(held.filter(|session| !self.ending.holds(*session)));
        match named.into_iter().find(|session| !self.members.contains_key(session)) {
            Some(session) => Err(format!("something is kept of {session:?}, which is no member")),
            None => Ok(()),
        }
    }

    /// A match is mutual, nobody waits who has one, and a seat is one connection's.
    fn audit_matches(&self) -> Result<(), String> {
        let mut seats: HashSet<Seat> = HashSet::new();
        for (party, End { seat, peer, .. }) in &self.ends {
            if self.matching.is_waiting(*party) {
                return Err(format!("{party} waits and is matched"));
            }
            let Some(peer) = peer else {
                if !seats.insert(*seat) {
                    return Err(format!("{party} was left at {seat:?}, which is another's, too"));
                }
                continue;
            };
            let Some(other) = self.ends.get(peer) else {
                return Err(format!("{party}'s peer {peer} is no end"));
            };
            if other.peer != Some(*party) || other.seat != *seat || peer == party {
                return Err(format!("{party} has the peer {peer}, which has {:?}", other.peer));
            }
            // Once for the two of them.
            if party < peer && !seats.insert(*seat) {
                return Err(format!("{seat:?} of {party} is another's, too"));
            }
        }
        for link in self.links.all() {
            let taken = seats.iter().filter(|seat| seat.link == link.id).count();
            if taken != link.conns as usize {
                return Err(format!(
                    "{:?} has {} connections, and {taken} are matched there",
                    link.id, link.conns
                ));
            }
        }
        if self.matching.is_consistent() {
            Ok(())
        } else {
            Err("nominations are not found as they came".to_owned())
        }
    }

    /// Room is promised to those whose handshake has not come to its DMB, and there is that much.
    fn audit_room(&self) -> Result<(), String> {
        if !self.promises.are(self.ends.values().filter_map(|end| end.promise)) {
            return Err("what is promised is not what the ends were promised".to_owned());
        }
        let (held, limit) = (self.device.dmb_count(), self.device.dmb_limit());
        if held + self.promises.count() > limit {
            return Err(format!("{held} DMBs and {} promised, of {limit}", self.promises.count()));
        }
        let unknown = self.parking.tokens().find(|token| self.device.is_spare(*token).is_err());
        if !self.parking.is_consistent() || unknown.is_some() {
            return Err(format!("the parked are not those that the device knows: {unknown:?}"));
        }
        Ok(())
    }
}
