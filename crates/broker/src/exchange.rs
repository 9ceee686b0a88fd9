//! The broker's decisions, without I/O: sessions, pairs, and who is told what.
//!
//! A call changes the tables and appends to [`Exchange::posts`] what is to be sent. Whoever calls sees to
//! the sending; a session that cannot be sent to is ended by [`Exchange::end_session`].

mod audit;
mod dmbs;
mod ending;
mod parking;
mod room;

use crate::ends::{Party, SessionId};
use crate::expectations::Expectations;
use crate::facts::{Endpoint, Facts, Proof};
use crate::foreign::Shared;
use crate::ism::IsmDevice;
use crate::links::{LinkId, Links, Seat, Side};
use crate::matching::{Decision, Matching};
use crate::policy::{Identity, Policy};
use ending::Ending;
use parking::Parking;
use room::{Holder, Promises};
use shunpike_shm::arena::BLOCKS;
use shunpike_wire::session::{ClcBytes, ConnId, Expected, FromBroker, Role};
use shunpike_wire::{DmbSize, Reason};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

/// So many handshakes at a time are congestion, for `limit_smc_hs`.
pub const CONGESTED: usize = 64;

/// A message on its way to a session.
#[derive(Debug)]
pub struct Post {
    /// To whom.
    pub to: SessionId,
    /// What.
    pub message: FromBroker,
    /// Descriptors that travel beside it.
    pub fds: Vec<Rc<Shared>>,
}

/// What became of a connection, for who keeps account of it.
#[derive(Debug)]
pub enum News {
    /// The two ends were matched.
    Matched {
        /// The one that connected.
        client: Party,
        /// The one that accepted.
        server: Party,
    },
    /// Both ends have each other's memory: of the match of this end.
    Opened {
        /// One of them.
        party: Party,
    },
    /// The broker refuses a lane.
    Refused {
        /// One end, or the two of a match that is not made.
        parties: Vec<Party>,
        /// Why.
        reason: Reason,
    },
    /// An end of a match wants no lane.
    Declined {
        /// That end.
        by: Party,
        /// The number that it gave.
        reason: u32,
    },
    /// An end has left its match.
    Left {
        /// That end.
        party: Party,
    },
}

struct Member {
    identity: Identity,
    /// Its process, if that and its peers may read each other's memory; else 0.
    reader: u32,
    doorbells: Rc<Shared>,
    /// How many.
    queues: u8,
    /// The connection that last nominated from each block of the arena.
    blocks: HashMap<u32, ConnId>,
}

/// One end of a match.
#[derive(Copy, Clone)]
struct End {
    seat: Seat,
    /// The other end; `None` once it left.
    peer: Option<Party>,
    /// For whose DMB room is kept.
    promise: Option<Holder>,
    /// Whether it has the peer's DMB, or had it.
    has_attached: bool,
    /// CLC messages that it has had passed on.
    said: u32,
}

/// CLC messages of one end of a match: a handshake has four. They wait at the peer, who is not to pay for more.
const MOST_CLC: u32 = 256;

/// All tables of the broker.
pub struct Exchange {
    /// The device that the DMBs are in.
    pub device: Box<dyn IsmDevice>,
    /// Link groups.
    pub links: Links,
    /// Whether new lanes may be opened.
    pub active: bool,
    /// Connections of one link group, 16 to 256.
    pub max_conns_per_lgr: u32,
    /// Whether nominations are refused while [`CONGESTED`] handshakes are under way.
    pub limit_smc_hs: bool,
    /// What is to be sent, in order.
    pub posts: Vec<Post>,
    /// What is to be noted, in order.
    pub news: Vec<News>,
    matching: Matching,
    expectations: Expectations,
    /// Ends whose nomination waits, and who are to be told so.
    unanswered: Vec<Party>,
    members: HashMap<SessionId, Member>,
    ends: BTreeMap<Party, End>,
    policy: Policy,
    promises: Promises,
    parking: Parking,
    ending: Ending,
    /// Connections that are known of each user, by their blocks.
    known: HashMap<u32, usize>,
}

/// Those of one user; what comes beyond stays on TCP.
const OF_USER: usize = 4 * BLOCKS;

impl Exchange {
    /// Empty tables around `device`. `across`: see [`Matching::new`].
    pub fn new(device: Box<dyn IsmDevice>, policy: Policy, across: bool) -> Self {
        Self {
            device,
            links: Links::default(),
            active: true,
            max_conns_per_lgr: 255,
            limit_smc_hs: false,
            posts: Vec::new(),
            news: Vec::new(),
            matching: Matching::new(across),
            expectations: Expectations::default(),
            unanswered: Vec::new(),
            members: HashMap::new(),
            ends: BTreeMap::new(),
            policy,
            promises: Promises::new(DmbSize::MIN),
            parking: Parking::default(),
            ending: Ending::default(),
            known: HashMap::new(),
        }
    }

    /// DMBs to come will have rings of this size, by the current settings.
    pub fn expect_rings_of(&mut self, ring: DmbSize) {
        self.promises.expect_rings_of(ring);
    }

    /// A session begins. Its peers are given `doorbells`, one for each of its `queues`.
    pub fn begin_session(&mut self, session: SessionId, identity: Identity, doorbells: Shared, queues: u8) {
        let doorbells = Rc::new(doorbells);
        let member = Member { identity, reader: 0, doorbells, queues, blocks: HashMap::new() };
        self.members.insert(session, member);
    }

    /// The session's process and its peers of the same user may try to read each other's memory.
    pub fn lets_read(&mut self, session: SessionId, pid: u32) {
        if let Some(member) = self.members.get_mut(&session) {
            member.reader = pid;
        }
    }

    /// The process of `peer`, where that of `own` may be told of it: 0 if not.
    fn readable(&self, own: Party, peer: Party) -> u32 {
        match [own, peer].map(|party| self.members.get(&party.session)) {
            [Some(own), Some(peer)]
                if self.device.capabilities().lends
                    && own.reader != 0
                    && own.identity.user().is_some()
                    && own.identity.user() == peer.identity.user() =>
            {
                peer.reader
            }
            _ => 0,
        }
    }

    /// A session is about to connect to `endpoint`, or listens there.
    pub fn expect(&mut self, party: Party, role: Role, endpoint: Endpoint) {
        if let Some(member) = self.members.get(&party.session) {
            self.expectations.enter(party, member.identity.uid, role, endpoint);
        }
    }

    /// How many ends [`Exchange::answer`] has something to say to.
    pub fn unanswered(&self) -> usize {
        self.unanswered.len()
    }

    /// Whose those are.
    pub fn asking(&self) -> BTreeSet<SessionId> {
        self.unanswered.iter().map(|party| party.session).collect()
    }

    /// Tells the first `count` unanswered ends, those that still wait, whether anybody may come to the other end.
    /// To be called when all has been heard that was said before their nominations.
    pub fn answer(&mut self, count: usize) {
        let due: Vec<Party> = self.unanswered.drain(..count.min(self.unanswered.len())).collect();
        for party in due {
            let Some((role, facts)) = self.matching.nomination(party) else { continue };
            let Some(asking) = self.members.get(&party.session) else { continue };
            let permitted = |session| {
                let other = self.members.get(&session);
                other.is_some_and(|other| self.policy.permits(&asking.identity, &other.identity))
            };
            let expected = match self.matching.asked_again(&facts).filter(|early| permitted(early.session)) {
                Some(early) if early.session == party.session => Expected::Own,
                Some(_) => Expected::Other,
                None => self.expectations.other_end(party.session, role, facts.tuple, permitted),
            };
            tracing::debug!(%party, ?expected, "waits");
            if expected == Expected::Nobody {
                self.matching.told_of_nobody(party);
            }
            self.post(party.session, FromBroker::Waiting { conn: party.conn, expected });
        }
    }

    /// Before a nomination is entered: whether the one that waits for it still is what it was, by `holds`. Where that is not
    /// known, that end is asked again, and the two meet then.
    pub fn confront(&mut self, party: Party, facts: &Facts, holds: impl FnOnce(&Facts) -> bool) {
        let Some((early, known)) = self.matching.opposite(facts) else { return };
        if early == party || self.matching.is_vindicated(party, facts, early) || holds(&known) {
            return;
        }
        match self.matching.doubt(early, party) {
            Decision::Refused(end, reason) => self.refuse(end, reason),
            _ => self.post(early.session, FromBroker::Again { conn: early.conn }),
        }
    }

    /// A nomination, with what the kernel said of the socket. `answer`: see
    /// [`Exchange::answer`].
    pub fn nominate(&mut self, party: Party, role: Role, proof: Proof, answer: bool) {
        self.part(party);
        if !self.retire_block(party) {
            return self.refuse(party, Reason::NominationLimit);
        }
        let decisions = match proof {
            _ if !self.active => vec![self.matching.refuse(party, Reason::Inactive)],
            Proof::Refused(reason) => vec![self.matching.refuse(party, reason)],
            _ if self.limit_smc_hs && self.promises.count() >= 2 * CONGESTED => {
                vec![self.matching.refuse(party, Reason::NominationLimit)]
            }
            Proof::Moving => vec![self.matching.again(party, Reason::BypassedHooks)],
            Proof::Proved(facts) => self.matching.nominate(party, role, facts),
        };
        tracing::debug!(%party, ?role, ?proof, ?decisions, "nominated");
        for decision in decisions {
            match decision {
                Decision::Matched { client, server } => self.join(client, server),
                Decision::Unheard(end) => {
                    let expected = Expected::Nobody;
                    self.post(end.session, FromBroker::Waiting { conn: end.conn, expected });
                }
                Decision::Again(end) => self.post(end.session, FromBroker::Again { conn: end.conn }),
                Decision::Refused(end, reason) => self.refuse(end, reason),
            }
        }
        if answer && self.matching.is_waiting(party) {
            self.unanswered.push(party);
        }
    }

    /// A block with a new name tells that its earlier connection is gone, though nobody withdrew it. So a
    /// session never has more ends than its arena has blocks. False: its user has too many.
    fn retire_block(&mut self, party: Party) -> bool {
        let Some(member) = self.members.get_mut(&party.session) else { return false };
        let known = self.known.entry(member.identity.uid).or_default();
        let is_new = !member.blocks.contains_key(&party.conn.index());
        if is_new && *known >= OF_USER {
            return false;
        }
        *known += usize::from(is_new);
        let before = member.blocks.insert(party.conn.index(), party.conn);
        if let Some(conn) = before.filter(|conn| *conn != party.conn) {
            self.withdraw(Party { conn, ..party });
        }
        true
    }

    /// An end was closed or wants no lane any more.
    pub fn withdraw(&mut self, party: Party) {
        self.matching.withdraw(party);
        self.expectations.remove(party);
        self.part(party);
    }

    /// An end has declined, with this number.
    pub fn declined(&mut self, by: Party, reason: u32) {
        if self.peer(by).is_some() {
            self.news.push(News::Declined { by, reason });
        }
    }

    /// Passes a CLC message on to the matched peer; to nobody when there is none any more. False: they are too many.
    pub fn relay(&mut self, from: Party, clc: ClcBytes) -> bool {
        let Some(End { peer: Some(peer), said, .. }) = self.ends.get_mut(&from) else { return true };
        let peer = *peer;
        *said += 1;
        let is_lawful = *said <= MOST_CLC;
        if is_lawful {
            self.post_to_member(peer.session, FromBroker::Clc { conn: peer.conn, clc });
        }
        is_lawful
    }

    /// Switches the device on or off. Off: nominations are refused and all lanes revoked.
    pub fn set_active(&mut self, active: bool) {
        self.active = active;
        if !active {
            self.drop_all_parked();
            for party in self.matching.clear() {
                self.refuse(party, Reason::Inactive);
            }
            let all: Vec<SessionId> = self.members.keys().copied().collect();
            for session in all {
                self.revoke(Party { session, conn: ConnId(0) });
            }
        }
    }

    /// Another policy holds from now on. Matches that it does not permit end on TCP, whether their lanes are open or on their way:
    /// each end is told, and neither needs the other for it. Returns how many connections those were.
    pub fn set_policy(&mut self, policy: Policy) -> usize {
        self.policy = policy;
        let forbidden: Vec<Party> = self
            .ends
            .keys()
            .copied()
            .filter(|own| self.members.contains_key(&own.session))
            .filter(|own| self.peer(*own).is_some_and(|peer| !self.permits(*own, peer)))
            .collect();
        forbidden.iter().for_each(|party| self.revoke(*party));
        self.drop_forbidden_parked();
        forbidden.len().div_ceil(2)
    }

    /// Whether policy lets two ends be peers.
    fn permits(&self, one: Party, other: Party) -> bool {
        let identity = |party: Party| self.members.get(&party.session).map(|member| &member.identity);
        identity(one).zip(identity(other)).is_some_and(|(one, other)| self.policy.permits(one, other))
    }

    /// Asks a process to close one lane, or with `ConnId(0)` all.
    pub fn revoke(&mut self, party: Party) {
        self.post(party.session, FromBroker::Revoke { conn: party.conn });
    }

    /// Says something to a session that is none of ours.
    pub fn tell(&mut self, session: SessionId, message: FromBroker) {
        self.post(session, message);
    }

    /// Link group and slot of a matched end.
    pub fn seat(&self, party: Party) -> Option<Seat> {
        self.ends.get(&party).map(|end| end.seat)
    }

    /// Doorbells of all.
    pub fn doorbells(&self) -> usize {
        self.members.values().map(|member| usize::from(member.queues)).sum()
    }

    /// Completion queues of a session's process.
    pub fn cqs(&self, session: SessionId) -> usize {
        self.members.get(&session).map_or(0, |member| member.queues.into())
    }

    /// The other end of a match, if its session goes on.
    pub fn peer(&self, party: Party) -> Option<Party> {
        self.ends.get(&party)?.peer.filter(|peer| self.members.contains_key(&peer.session))
    }

    /// Whether an end waits for its peer's nomination.
    pub fn is_waiting(&self, party: Party) -> bool {
        self.matching.is_waiting(party)
    }

    /// Whether an end waits or has a match.
    pub fn knows(&self, party: Party) -> bool {
        self.ends.contains_key(&party) || self.is_waiting(party)
    }

    /// Nominations that wait for their peer.
    pub fn waiting(&self) -> usize {
        self.matching.waiting()
    }

    /// Whether every table is empty.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
            && self.ends.is_empty()
            && self.matching.is_empty()
            && self.expectations.is_empty()
            && self.links.is_empty()
            && self.promises.is_empty()
            && self.parking.is_empty()
            && !self.is_ending()
            && self.known.is_empty()
            && self.device.dmb_count() == 0
    }

    fn holder(&self, session: SessionId) -> Option<Holder> {
        self.members.get(&session).map(|member| Holder { session, uid: member.identity.uid })
    }

    fn promise(&mut self, holder: Holder) -> Result<(), Reason> {
        self.evict_while(holder, |all| all.promises.make(holder, all.device.as_ref(), &all.policy))
    }

    /// The room that was kept for an end is everybody's again.
    fn forgo_promise(&mut self, party: Party) {
        if let Some(holder) = self.ends.get_mut(&party).and_then(|end| end.promise.take()) {
            self.promises.release(holder);
        }
    }

    fn join(&mut self, client: Party, server: Party) {
        if let Err(reason) = self.try_join(client, server) {
            self.refuse_all(vec![client, server], reason);
        }
    }

    fn try_join(&mut self, client: Party, server: Party) -> Result<(), Reason> {
        let seat = self.seat_permitted(client, server)?;
        let (Some(one), Some(other)) = (self.holder(client.session), self.holder(server.session)) else {
            return Err(Reason::Internal);
        };
        let promised = self.promise(one).and_then(|()| {
            let both = self.promise(other);
            both.inspect_err(|_| self.promises.release(one))
        });
        if let Err(reason) = promised {
            self.links.leave(seat);
            return Err(reason);
        }
        for (own, peer, holder) in [(client, server, one), (server, client, other)] {
            self.ends.insert(
                own,
                End { seat, peer: Some(peer), promise: Some(holder), has_attached: false, said: 0 },
            );
        }
        self.news.push(News::Matched { client, server });
        self.introduce(client, server, seat);
        Ok(())
    }

    fn seat_permitted(&mut self, client: Party, server: Party) -> Result<Seat, Reason> {
        let member = |party: Party| self.members.get(&party.session).ok_or(Reason::Internal);
        if !self.policy.permits(&member(client)?.identity, &member(server)?.identity) {
            return Err(Reason::NotPermitted);
        }
        let side = |party: Party| {
            let Member { identity, queues, .. } = member(party)?;
            Ok(Side { session: party.session, user: identity.uid, queues: *queues })
        };
        let seat = self.links.seat(side(client)?, side(server)?, self.max_conns_per_lgr);
        // Before the new one is told of, for which their descriptors make room.
        for (LinkId(link), to) in self.links.take_gone() {
            self.post_to_member(to, FromBroker::LinkGone { link });
        }
        seat.map_err(|error| {
            let Some(error) = error else { return Reason::NominationLimit };
            tracing::warn!(%error, "no link page");
            Reason::MemoryRefused
        })
    }

    /// Tells both ends of their match, and each of the other's doorbells where it does not know them.
    fn introduce(&mut self, client: Party, server: Party, seat: Seat) {
        for (side, own, peer) in [(0, client, server), (1, server, client)] {
            let peers = self.members.get(&peer.session);
            let page = self.links.introduce(seat.link, side);
            let first_contact = page.is_some();
            let doorbells = peers.filter(|_| first_contact).map(|member| Rc::clone(&member.doorbells));
            let fds = page.into_iter().chain(doorbells).collect();
            let message = FromBroker::Matched {
                conn: own.conn,
                link: seat.link.0,
                slot: seat.slot,
                side,
                first_contact,
                doorbells: peers.map_or(0, |member| member.queues),
                peer: self.readable(own, peer),
            };
            self.posts.push(Post { to: own.session, message, fds });
        }
    }

    /// Ends a match from one side. The seat is free when the other side has left too.
    fn part(&mut self, party: Party) {
        self.forgo_promise(party);
        let Some(End { seat, peer, .. }) = self.ends.remove(&party) else { return };
        self.news.push(News::Left { party });
        tracing::debug!(%party, link = seat.link.0, slot = seat.slot, "left its match");
        match peer {
            None => self.links.leave(seat),
            Some(peer) => {
                self.forgo_promise(peer);
                if let Some(end) = self.ends.get_mut(&peer) {
                    end.peer = None;
                }
                self.post_to_member(peer.session, FromBroker::Gone { conn: peer.conn });
            }
        }
    }

    fn refuse(&mut self, party: Party, reason: Reason) {
        self.refuse_all(vec![party], reason);
    }

    fn refuse_all(&mut self, parties: Vec<Party>, reason: Reason) {
        for party in &parties {
            self.post(party.session, FromBroker::Refused { conn: party.conn, reason: reason.code() });
        }
        self.news.push(News::Refused { parties, reason });
    }

    /// To one that may have ended.
    fn post_to_member(&mut self, to: SessionId, message: FromBroker) {
        if self.members.contains_key(&to) {
            self.post(to, message);
        }
    }

    fn post(&mut self, to: SessionId, message: FromBroker) {
        self.posts.push(Post { to, message, fds: Vec::new() });
    }
}

#[cfg(test)]
mod tests;
