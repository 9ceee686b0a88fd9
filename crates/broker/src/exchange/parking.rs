//! Parked DMBs: their connections are over, and their owners keep them mapped for the next one of the same two processes.
//!
//! They count as any other. So they go where somebody needs the room, after a while without use, and with either process.

use super::Exchange;
use super::room::Holder;
use crate::ends::SessionId;
use shunpike_wire::session::FromBroker;
use shunpike_wire::{DmbToken, Reason};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};

/// How long a DMB waits for its next connection.
const PATIENCE: Duration = Duration::from_secs(10);

struct Parked {
    token: DmbToken,
    owner: Holder,
    peer: SessionId,
    until: Instant,
}

/// All of them.
#[derive(Default)]
pub struct Parking {
    /// In the order of their coming.
    places: BTreeMap<u64, Parked>,
    of: HashMap<DmbToken, u64>,
    /// By their owners and peers,
    by_session: BTreeSet<(SessionId, u64)>,
    /// By their owners' users.
    by_user: BTreeSet<(u32, u64)>,
    last: u64,
}

impl Parking {
    fn enter(&mut self, parked: Parked) {
        self.last += 1;
        self.of.insert(parked.token, self.last);
        self.by_session.extend([parked.owner.session, parked.peer].map(|session| (session, self.last)));
        self.by_user.insert((parked.owner.uid, self.last));
        self.places.insert(self.last, parked);
    }

    fn remove(&mut self, token: DmbToken) -> Option<Parked> {
        let at = self.of.remove(&token)?;
        let parked = self.places.remove(&at)?;
        for session in [parked.owner.session, parked.peer] {
            self.by_session.remove(&(session, at));
        }
        self.by_user.remove(&(parked.owner.uid, at));
        Some(parked)
    }

    fn at(&self, place: Option<u64>) -> Option<DmbToken> {
        self.places.get(&place?).map(|parked| parked.token)
    }

    fn first(&self) -> Option<DmbToken> {
        self.at(self.places.keys().next().copied())
    }

    fn first_of_session(&self, session: SessionId) -> Option<DmbToken> {
        self.at(self.by_session.range((session, 0)..=(session, u64::MAX)).next().map(|(_, at)| *at))
    }

    fn first_of_user(&self, user: u32) -> Option<DmbToken> {
        self.at(self.by_user.range((user, 0)..=(user, u64::MAX)).next().map(|(_, at)| *at))
    }

    /// Their names.
    pub(super) fn tokens(&self) -> impl Iterator<Item = DmbToken> {
        self.places.values().map(|parked| parked.token)
    }

    /// Their owners and peers.
    pub(super) fn sessions(&self) -> impl Iterator<Item = SessionId> {
        self.places.values().flat_map(|parked| [parked.owner.session, parked.peer])
    }

    /// Whether each is found by its name.
    pub(super) fn is_consistent(&self) -> bool {
        self.of.len() == self.places.len()
            && self.by_user.len() == self.places.len()
            && self.by_session.iter().all(|(_, at)| self.places.contains_key(at))
            && self.of.iter().all(|(token, at)| self.places.get(at).is_some_and(|p| p.token == *token))
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty() && self.of.is_empty() && self.by_session.is_empty() && self.by_user.is_empty()
    }
}

impl Exchange {
    /// The owner of a DMB keeps it for another connection with the same process.
    pub fn park(&mut self, session: SessionId, token: u64, now: Instant) {
        let token = DmbToken(token);
        let parked = self.device.park_dmb(token, session);
        let owner = self.holder(session);
        if let (Ok(peer), Some(owner)) = (parked, owner)
            && self.active
            && self.members.contains_key(&peer)
        {
            self.parking.enter(Parked { token, owner, peer, until: now + PATIENCE });
            self.look_at_parked(token);
        } else {
            self.unregister(session, token.0);
            self.post(session, FromBroker::Dropped { token: token.0 });
        }
    }

    /// Its peer may have let go of it: then it can be used again, or never.
    pub(super) fn look_at_parked(&mut self, token: DmbToken) {
        let Some(parked) = self.parking.of.get(&token).and_then(|at| self.parking.places.get(at)) else {
            return;
        };
        let owner = parked.owner.session;
        match self.device.is_spare(token) {
            Ok(true) => self.post_to_member(owner, FromBroker::Parked { token: token.0 }),
            Ok(false) => {}
            Err(_) => self.drop_parked(token),
        }
    }

    /// Takes a parked DMB out of the list, for it is used again or let go of by its owner.
    pub(super) fn unpark(&mut self, token: DmbToken, owner: SessionId) {
        let is_its = |at| self.parking.places.get(at).is_some_and(|parked| parked.owner.session == owner);
        if self.parking.of.get(&token).is_some_and(is_its) {
            self.parking.remove(token);
        }
    }

    fn drop_parked(&mut self, token: DmbToken) {
        if let Some(Parked { owner, .. }) = self.parking.remove(token) {
            self.unregister(owner.session, token.0);
            self.post_to_member(owner.session, FromBroker::Dropped { token: token.0 });
        }
    }

    /// Lets go of all, as no lane will be opened.
    pub(super) fn drop_all_parked(&mut self) {
        while let Some(token) = self.parking.first() {
            self.drop_parked(token);
        }
    }

    /// Of what a session kept that has ended, and what others keep for connections with it, one. Whether there was one.
    pub(super) fn drop_one_parked_of(&mut self, session: SessionId) -> bool {
        let parked = self.parking.first_of_session(session);
        if let Some(token) = parked {
            self.drop_parked(token);
        }
        parked.is_some()
    }

    /// Lets go of what is kept for connections that policy does not permit any more.
    pub(super) fn drop_forbidden_parked(&mut self) {
        let identity = |session| self.members.get(&session).map(|member| &member.identity);
        let permits = |one, other| {
            identity(one).zip(identity(other)).is_some_and(|(one, other)| self.policy.permits(one, other))
        };
        let kept = self.parking.places.values();
        let forbidden: Vec<DmbToken> = kept
            .filter(|parked| !permits(parked.owner.session, parked.peer))
            .map(|parked| parked.token)
            .collect();
        forbidden.into_iter().for_each(|token| self.drop_parked(token));
    }

    /// Lets go of what has waited long enough.
    pub fn drop_stale(&mut self, now: Instant) {
        while let Some((_, parked)) = self.parking.places.first_key_value()
            && parked.until <= now
        {
            self.drop_parked(parked.token);
        }
    }

    /// When there is something to let go of.
    pub fn stale_at(&self) -> Option<Instant> {
        self.parking.places.first_key_value().map(|(_, parked)| parked.until)
    }

    /// Has `wanted` again, which said that there is no room for a DMB of `holder`'s, while a parked one that takes some of it
    /// can go. Errors: there is none, and why there is no room.
    pub(super) fn evict_while<T>(
        &mut self,
        holder: Holder,
        mut wanted: impl FnMut(&mut Self) -> Result<T, Reason>,
    ) -> Result<T, Reason> {
        loop {
            let reason = match wanted(self) {
                Err(reason @ (Reason::MaxDmb | Reason::DmbLimit)) => reason,
                other => return other,
            };
            let in_the_way = match reason {
                Reason::MaxDmb => self.parking.first(),
                _ => self.parking.first_of_user(holder.uid),
            };
            let token = in_the_way.ok_or(reason)?;
            self.drop_parked(token);
        }
    }
}
